//! Keepalive, dead endpoints, endpoints that close connections again and again, and channels that nobody uses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::{Payload, SimpleRequest, StreamingInputCallRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::common::{
    Client, backends, bootstrap, builder, call, call_within, control_plane, in_time, service, until_left_alone,
};

const INTERVAL: Duration = Duration::from_millis(30);

/// A8: pings without calls are what gRPC servers turn clients away for.
#[tokio::test]
async fn keep_alive_pings_while_there_are_calls_and_without_calls_only_if_asked() {
    let [one] = backends(["one"]).await;
    let wire = Wire::to(one.addr()).await;
    let server = control_plane(endpoint_service(wire.address)).await;
    let mut client = Client::new(keep_alive(&server).build().unwrap());
    call(&mut client).await.unwrap();
    let mut open = client.clone();
    let open = tokio::spawn(async move {
        let mut request = tonic::Request::new(SimpleRequest::default());
        request.metadata_mut().insert(BEHAVIOR_KEY, "keep-open".parse().unwrap());
        open.unary_call(request).await
    });
    in_time(wire.pinged(3)).await;
    open.abort();
    let _ = open.await;
    call(&mut client).await.unwrap();
    let pings = wire.pings();
    pass(10 * INTERVAL).await;
    call(&mut client).await.unwrap(); // After whatever was sent before it on the same connection.
    assert!(wire.pings() <= pings + 1, "one may have been on its way: {} after {pings}", wire.pings());
    drop(client);

    let wire = Wire::to(one.addr()).await;
    let server = control_plane(endpoint_service(wire.address)).await;
    let mut client = Client::new(keep_alive(&server).keep_alive_without_calls(true).build().unwrap());
    call(&mut client).await.unwrap();
    in_time(wire.pinged(3)).await;
}

/// A8: a GOAWAY with ENHANCE_YOUR_CALM means half as many pings on the next connection.
#[tokio::test]
async fn an_endpoint_that_complains_of_pings_gets_fewer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = control_plane(endpoint_service(listener.local_addr().unwrap())).await;
    let channel = keep_alive(&server).keep_alive_without_calls(true);
    let channel = channel.backoff(Duration::from_millis(1), Duration::from_millis(1)).build().unwrap();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let (mut stream, _) = in_time(listener.accept()).await.unwrap();
        stream.write_all(&SETTINGS).await.unwrap();
        let begin = Instant::now();
        let mut frames = FrameReader::default();
        // Acknowledged, so that only the first ping matters.
        in_time(async {
            loop {
                let mut buffer = [0; 1024];
                let read = stream.read(&mut buffer).await.unwrap();
                assert!(read > 0, "the client goes on");
                if frames.pings_in(&buffer[..read]) > 0 {
                    break;
                }
            }
        })
        .await;
        waits.push(begin.elapsed());
        // Type 7 is GOAWAY, code 11 is ENHANCE_YOUR_CALM.
        stream.write_all(b"\0\0\x16\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo_many_pings").await.unwrap();
        stream.shutdown().await.unwrap();
    }
    for (complaints, wait) in waits.iter().enumerate() {
        assert!(*wait >= INTERVAL * (1 << complaints), "{waits:?}");
    }
    drop(channel);
}

/// A peer that takes requests and says nothing, while its kernel acknowledges every byte.
#[tokio::test]
async fn an_endpoint_that_has_died_without_a_word_is_noticed_by_calls_that_run_out_of_time() {
    let [good] = backends(["good"]).await;
    let hole = Hole::start().await;
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [hole.address, good.addr()]));
    let server = control_plane(snapshot).await;
    let channel = Channel::builder("xds:///service").bootstrap(bootstrap(&[&server]));
    let channel = channel.silence_timeout(Duration::from_millis(400)).build().unwrap();
    let mut client = Client::new(channel);
    in_time(async {
        while hole.connections() == 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    // Until one runs out of time there, then until the connection is given up.
    in_time(async { while call_within(&mut client, Duration::from_millis(50)).await.is_ok() {} }).await;
    in_time(async {
        while hole.pings() == 0 || hole.open() > 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    for _ in 0..20 {
        assert_eq!(call(&mut client).await.unwrap(), "good", "it has a second of backoff");
    }
}

/// The same while so much is under way to it that nothing more can be written, not even a ping.
#[tokio::test]
async fn an_endpoint_that_has_died_with_its_connection_full_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dead = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // SETTINGS_INITIAL_WINDOW_SIZE (4) and a WINDOW_UPDATE (8) for the connection: it may be sent 2 GiB.
        stream.write_all(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff").await.unwrap();
        stream.write_all(b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0").await.unwrap();
        // Neither reads nor closes.
        std::future::pending::<()>().await;
        drop((stream, listener));
    });
    let server = control_plane(endpoint_service(address)).await;
    let channel = Channel::builder("xds:///service").bootstrap(bootstrap(&[&server]));
    let channel = channel.silence_timeout(Duration::from_millis(400)).build().unwrap();
    let mut client = Client::new(channel);
    let payload = Some(Payload { body: vec![0; 1 << 20], ..Default::default() });
    let message = StreamingInputCallRequest { payload, ..Default::default() };
    let mut request = tonic::Request::new(tokio_stream::iter(std::iter::repeat(message)));
    request.set_timeout(Duration::from_millis(300));
    in_time(client.streaming_input_call(request)).await.unwrap_err();
    in_time(async {
        loop {
            let status = call_within(&mut client, Duration::from_millis(100)).await.unwrap_err();
            if status.message().contains("gave no sign of life") {
                break;
            }
        }
    })
    .await;
    dead.abort();
}

#[tokio::test]
async fn an_endpoint_that_is_slow_but_alive_keeps_its_connection() {
    let [one] = backends(["one"]).await;
    let wire = Wire::to(one.addr()).await;
    let server = control_plane(endpoint_service(wire.address)).await;
    let channel = builder(&[&server]).silence_timeout(Duration::from_millis(100)).build().unwrap();
    let mut client = Client::new(channel);
    call(&mut client).await.unwrap();
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(BEHAVIOR_KEY, "keep-open".parse().unwrap());
    // Given up by the caller: of a deadline the endpoint knows, and may say something at the same time.
    tokio::time::timeout(Duration::from_millis(20), client.unary_call(request)).await.unwrap_err();
    in_time(wire.pinged(1)).await;
    pass(Duration::from_millis(200)).await;
    call(&mut client).await.unwrap();
    assert_eq!(wire.connections(), 1, "it answered the ping");
}

#[tokio::test]
async fn endpoints_that_accept_and_close_in_a_loop_are_paced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let _ = stream.write_all(&SETTINGS).await;
                // Type 7 is GOAWAY: no stream was processed, no error.
                let _ = stream.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await;
                let _ = stream.shutdown().await;
                let _ = stream.read(&mut [0; 1024]).await;
            });
        }
    });
    let server = control_plane(endpoint_service(address)).await;
    // The default backoff begins with a second.
    let channel = Channel::builder("xds:///service").bootstrap(bootstrap(&[&server])).build().unwrap();
    let mut client = Client::new(channel);
    let status = in_time(async {
        loop {
            if let Err(status) = call(&mut client).await {
                break status;
            }
        }
    })
    .await;
    assert!(status.message().contains("closes connections before it has answered"), "{}", status.message());
    pass(Duration::from_millis(500)).await;
    assert!(accepted.load(Ordering::Relaxed) <= 3, "{} connections in half a second", accepted.load(Ordering::Relaxed));
}

/// L-127.
#[tokio::test]
async fn a_channel_that_nobody_uses_lets_go_of_everything_and_the_next_call_brings_it_back() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let channel = builder(&[&server]).idle_timeout(Some(Duration::from_millis(200))).build().unwrap();
    let mut client = Client::new(channel.clone());
    for round in 0..3 {
        assert_eq!(call(&mut client).await.unwrap(), "one", "round {round}");
        until_left_alone(&server).await;
        in_time(async {
            while one.open_connections() > 0 {
                tokio::task::yield_now().await
            }
        })
        .await;
    }
    assert!(in_time(channel.config()).await.is_some(), "a look wakes it, too");
}

#[tokio::test]
async fn a_channel_with_a_call_or_an_onlooker_is_not_idle() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let timeout = Duration::from_millis(80);
    let channel = builder(&[&server]).idle_timeout(Some(timeout)).build().unwrap();
    let mut client = Client::new(channel.clone());
    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
    request.metadata_mut().insert(BEHAVIOR_KEY, "sleep-1".parse().unwrap());
    client.unary_call(request).await.unwrap();
    assert_eq!(server.stats().open_connections, 1, "a call of a second is longer than {timeout:?}");
    let mut configs = channel.configs();
    configs.next().await.unwrap();
    pass(5 * timeout).await;
    assert_eq!(server.stats().open_connections, 1, "somebody looks");
    drop(configs);
    until_left_alone(&server).await;
}

/// Lets time pass for this runtime, without waiting. In small steps, between which everybody has many turns: what is due is
/// done in its order, and what is sent for it arrives. Nothing here is on another runtime.
async fn pass(time: Duration) {
    const STEPS: u32 = 40;
    tokio::time::pause();
    for _ in 0..STEPS {
        tokio::time::advance(time / STEPS).await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
}

fn endpoint_service(endpoint: SocketAddr) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [endpoint]))
        .build()
}

fn keep_alive(server: &Server) -> ChannelBuilder {
    builder(&[server]).keep_alive(INTERVAL, Duration::from_secs(10))
}

/// An empty SETTINGS frame (RFC 9113, section 6.5).
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Passes bytes on, and counts the pings of the client.
struct Wire {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    pings: Arc<AtomicUsize>,
}

impl Wire {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, pings) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (made, heard) = (connections.clone(), pings.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                made.fetch_add(1, Ordering::Relaxed);
                let heard = heard.clone();
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                        (client.into_split(), server.into_split());
                    let back = tokio::spawn(async move {
                        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                    });
                    let (mut frames, mut buffer) = (FrameReader::default(), vec![0; 16 << 10]);
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        heard.fetch_add(frames.pings_in(&buffer[..read]), Ordering::Relaxed);
                        if to_server.write_all(&buffer[..read]).await.is_err() {
                            break;
                        }
                    }
                    back.abort();
                });
            }
        });
        Self { address, connections, pings }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn pings(&self) -> usize {
        self.pings.load(Ordering::Relaxed)
    }

    async fn pinged(&self, times: usize) {
        while self.pings() < times {
            tokio::task::yield_now().await;
        }
    }
}

/// An endpoint that says SETTINGS, and nothing after that.
struct Hole {
    address: SocketAddr,
    made: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    pings: Arc<AtomicUsize>,
}

impl Hole {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let hole = Self { address, made: Arc::default(), closed: Arc::default(), pings: Arc::default() };
        let (made, closed, pings) = (hole.made.clone(), hole.closed.clone(), hole.pings.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                made.fetch_add(1, Ordering::Relaxed);
                let (closed, pings) = (closed.clone(), pings.clone());
                tokio::spawn(async move {
                    let _ = stream.write_all(&SETTINGS).await;
                    let (mut frames, mut buffer) = (FrameReader::default(), [0; 4096]);
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        pings.fetch_add(frames.pings_in(&buffer[..read]), Ordering::Relaxed);
                    }
                    closed.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        hole
    }

    fn connections(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn open(&self) -> usize {
        self.connections() - self.closed.load(Ordering::Relaxed)
    }

    fn pings(&self) -> usize {
        self.pings.load(Ordering::Relaxed)
    }
}

/// Follows the frames of a client.
#[derive(Default)]
struct FrameReader {
    bytes: Vec<u8>,
    greeted: bool,
}

impl FrameReader {
    /// How many PING frames that are no answers end in these bytes.
    fn pings_in(&mut self, bytes: &[u8]) -> usize {
        self.bytes.extend_from_slice(bytes);
        let mut pings = 0;
        loop {
            let skip = if self.greeted { 0 } else { "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len() };
            let Some(header) = self.bytes.get(skip..skip + 9) else { return pings };
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            // Type 6 is PING, flag 1 is ACK.
            let is_ping = header[3] == 6 && header[4] & 1 == 0;
            if self.bytes.len() < skip + 9 + length {
                return pings;
            }
            self.bytes.drain(..skip + 9 + length);
            self.greeted = true;
            pings += usize::from(is_ping);
        }
    }
}
