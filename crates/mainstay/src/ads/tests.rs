use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use futures_util::FutureExt;
use h2::server;
use mainstay_lb::Input;
use mainstay_xds::client::Sign;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::local_stream::LocalContext;

/// A server, and a channel's streams to it.
struct Stage {
    server: XdsServer,
    streams: AdsStreams<Input>,
    events: queue::Receiver<Input>,
}

/// An HTTP/2 server that does what it is told: it answers pings, and nothing else by itself.
struct XdsServer {
    address: SocketAddr,
    frozen: watch::Sender<bool>,
    /// Requests as they come.
    requests: mpsc::UnboundedReceiver<Incoming>,
}

struct Incoming {
    connection: usize,
    path: String,
    /// Keeps the stream open.
    body: h2::RecvStream,
    respond: server::SendResponse<Bytes>,
}

// === Proof of life ===

#[tokio::test]
async fn a_server_that_only_answers_pings_shows_no_more_than_that() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let _ads = stage.open(1).await;
    stage.send(1, "subscribe").await;
    stage.streams.probe(StreamId(1), true);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
    let check = stage.server.next().await;
    assert_eq!((check.connection, &*check.path), (0, "/grpc.health.v1.Health/Check"));
    assert_eq!(stage.told(), None, "PONGs alone are no answer");
}

#[tokio::test]
async fn any_answer_to_a_health_check_is_a_sign_of_life() {
    for status in [http::StatusCode::OK, http::StatusCode::NOT_FOUND] {
        let mut stage = Stage::with(server::Builder::new()).await;
        let _ads = stage.open(1).await;
        stage.send(1, "subscribe").await;
        stage.streams.probe(StreamId(1), true);
        assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
        stage.server.next().await.answer(status, true);
        assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Data));
    }
}

#[tokio::test]
async fn a_reset_of_the_health_check_is_an_answer() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let _ads = stage.open(1).await;
    stage.send(1, "subscribe").await;
    stage.streams.probe(StreamId(1), true);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
    stage.server.next().await.respond.send_reset(h2::Reason::INTERNAL_ERROR);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Data));
}

#[tokio::test]
async fn a_connection_on_which_no_sign_came_takes_no_more_streams() {
    for (call, connection) in [(true, 1), (false, 0)] {
        let mut stage = Stage::with(server::Builder::new()).await;
        let (_ads, other) = (stage.open(1).await, stage.open(2).await);
        assert_eq!(other.connection, 0);
        stage.send(1, "subscribe").await;
        stage.streams.probe(StreamId(1), call);
        assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
        stage.streams.close(Service::Ads, StreamId(1));
        if call {
            let _check = stage.server.next().await;
        }
        assert_eq!(stage.open(3).await.connection, connection, "a PONG is enough only if no call was made: {call}");
    }
}

#[tokio::test]
async fn without_a_call_the_server_sees_a_ping_only() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let _ads = stage.open(1).await;
    stage.send(1, "subscribe").await;
    stage.streams.probe(StreamId(1), false);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
    assert!(stage.server.requests.try_recv().is_err());
}

#[tokio::test]
async fn what_came_after_the_last_request_is_told_at_once_and_what_came_before_is_not() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let mut ads = stage.open(1).await;
    let mut other = stage.open(2).await;
    stage.send(1, "subscribe").await;
    let _body = ads.answer(http::StatusCode::OK, false);
    stage.heard_data().await;
    // Before the last request: proves nothing.
    stage.send(1, "subscribe more").await;
    stage.streams.probe(StreamId(1), false);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
    assert_eq!(stage.told(), None);
    // After it, for another stream on the same connection: the server is alive.
    let _other_body = other.answer(http::StatusCode::OK, false);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Data));
    stage.streams.probe(StreamId(1), false);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Data), "told again to whoever asks again");
}

#[tokio::test]
async fn a_part_of_a_response_is_a_sign_of_life() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let mut ads = stage.open(1).await;
    let mut body = ads.answer(http::StatusCode::OK, false);
    stage.heard_data().await;
    stage.send(1, "subscribe").await;
    stage.streams.probe(StreamId(1), false);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
    // The first byte of a message of which the rest never comes.
    body.send_data(Bytes::from_static(&[0]), false).unwrap();
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Data));
}

#[tokio::test]
async fn a_frozen_server_shows_no_sign_until_it_thaws() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let _ads = stage.open(1).await;
    stage.send(1, "subscribe").await;
    stage.server.frozen.send_replace(true);
    stage.streams.probe(StreamId(1), true);
    tokio::task::yield_now().await;
    assert_eq!(stage.told(), None);
    stage.server.frozen.send_replace(false);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
}

// === Permits for streams ===

#[tokio::test]
async fn streams_beyond_the_limit_of_the_server_go_to_another_connection() {
    // RFC 9113, section 5.1.2.
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(2);
    let mut stage = Stage::with(builder).await;
    let mut per_connection = BTreeMap::<usize, usize>::new();
    let mut open = Vec::new();
    (1..=5).for_each(|id| stage.start(id));
    let mut sent = 0;
    while sent < 5 {
        match stage.event().await {
            Event::Opened(id) => stage.streams.send(Service::Ads, id, Bytes::from_static(b"subscribe")),
            Event::Sent(_) => sent += 1,
            other => panic!("{other:?}"),
        }
    }
    for _ in 1..=5 {
        let incoming = stage.server.next().await;
        *per_connection.entry(incoming.connection).or_default() += 1;
        open.push(incoming);
    }
    assert_eq!(per_connection.into_values().collect::<Vec<_>>(), [2, 2, 1]);
}

#[tokio::test]
async fn a_health_check_for_which_there_is_no_place_goes_over_another_connection_and_needs_a_pong_on_this_one() {
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(1);
    let mut stage = Stage::with(builder).await;
    let _ads = stage.open(1).await;
    stage.send(1, "subscribe").await;
    stage.streams.probe(StreamId(1), true);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Pong));
    let mut check = stage.server.next().await;
    assert_eq!((check.connection, &*check.path), (1, "/grpc.health.v1.Health/Check"));
    check.answer(http::StatusCode::OK, true);
    assert_eq!(stage.event().await, Event::Alive(StreamId(1), Sign::Data));
}

#[tokio::test]
async fn a_server_that_allows_no_stream_cannot_be_used() {
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(0);
    let mut stage = Stage::with(builder).await;
    stage.start(1);
    let cause = format!("{} allows no stream on a connection", stage.server.address);
    assert_eq!(stage.event().await, Event::Closed(StreamId(1), CloseCause::ConnectFailed(cause)));
}

// === Sent means on the wire ===

#[tokio::test]
async fn a_request_for_which_the_server_makes_no_room_is_not_sent_and_does_not_wait_for_ever() {
    let mut builder = server::Builder::new();
    builder.initial_window_size(0);
    let mut stage = Stage::with(builder).await;
    stage.streams.open(Service::Ads, StreamId(1), stage.server.config(), Duration::from_millis(100));
    assert_eq!(stage.event().await, Event::Opened(StreamId(1)));
    stage.streams.send(Service::Ads, StreamId(1), Bytes::from_static(b"subscribe"));
    let cause = CloseCause::ConnectionLost("no room for a request within 100ms".to_owned());
    assert_eq!(stage.event().await, Event::Closed(StreamId(1), cause), "and not Sent before");
}

#[tokio::test]
async fn a_large_request_is_sent_when_its_last_byte_is() {
    let mut builder = server::Builder::new();
    builder.initial_window_size(10);
    let mut stage = Stage::with(builder).await;
    let mut ads = stage.open(1).await;
    stage.streams.send(Service::Ads, StreamId(1), Bytes::from(vec![7; 100]));
    let mut read = 0;
    while read < 105 {
        assert_eq!(stage.told(), None, "after {read} bytes");
        let piece = in_time(ads.body.data()).await.unwrap().unwrap();
        read += piece.len();
        ads.body.flow_control().release_capacity(piece.len()).unwrap();
    }
    assert_eq!(stage.event().await, Event::Sent(StreamId(1)));
}

// === What a server may say ===

#[tokio::test]
async fn messages_come_out_whole_however_they_are_cut() {
    let mut stage = Stage::with(server::Builder::new()).await;
    let mut ads = stage.open(1).await;
    let mut body = ads.answer(http::StatusCode::OK, false);
    let bytes = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 1], b"d"].concat();
    for byte in bytes {
        body.send_data(Bytes::from(vec![byte]), false).unwrap();
    }
    for expected in ["abc", "", "d"] {
        assert_eq!(stage.event().await, Event::Received(StreamId(1), Bytes::from(expected)));
    }
}

#[tokio::test]
async fn what_is_no_message_ends_the_stream_with_the_reason() {
    for (prefix, code, message) in [
        ([1, 0, 0, 0, 3], 13, "a compressed message, which nobody asked for".to_owned()),
        ([0, 255, 255, 255, 255], 8, format!("a message of {} bytes, over the limit of 1000", u32::MAX)),
    ] {
        let mut stage = Stage::with(server::Builder::new()).await;
        let mut ads = stage.open(1).await;
        ads.answer(http::StatusCode::OK, false).send_data(Bytes::copy_from_slice(&prefix), false).unwrap();
        assert_eq!(stage.event().await, Event::Closed(StreamId(1), CloseCause::Ended { code, message }));
    }
}

#[tokio::test]
async fn an_end_is_told_with_the_servers_status_or_what_http_says() {
    let trailers = |status: &str, details: &str| {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        trailers.insert("grpc-message", "too%20bad".parse().unwrap());
        trailers.insert("grpc-status-details-bin", details.parse().unwrap());
        trailers
    };
    // The details are no base64: nobody reads them.
    for (trailers, code, message) in [
        (Some(trailers("7", "***")), 7, "too bad"),
        (Some(http::HeaderMap::new()), 2, "no grpc-status, HTTP status 200 OK"),
        (None, 1, "the stream was reset: stream no longer needed"),
    ] {
        let mut stage = Stage::with(server::Builder::new()).await;
        let mut ads = stage.open(1).await;
        let mut body = ads.answer(http::StatusCode::OK, false);
        match trailers {
            Some(trailers) => body.send_trailers(trailers).unwrap(),
            None => body.send_reset(h2::Reason::CANCEL),
        }
        let message = message.to_owned();
        assert_eq!(stage.event().await, Event::Closed(StreamId(1), CloseCause::Ended { code, message }));
    }
    let mut stage = Stage::with(server::Builder::new()).await;
    stage.open(1).await.answer(http::StatusCode::SERVICE_UNAVAILABLE, true);
    let message = "no grpc-status, HTTP status 503 Service Unavailable".to_owned();
    assert_eq!(stage.event().await, Event::Closed(StreamId(1), CloseCause::Ended { code: 14, message }));
}

// === Helpers ===

impl Stage {
    async fn with(builder: server::Builder) -> Self {
        let (sender, events) = queue::bounded(100);
        let keep_alive = KeepAlive { interval: Duration::from_secs(300), timeout: Duration::from_secs(20) };
        let limits = AdsLimits { max_response_size: 1000, keep_alive };
        Self {
            server: XdsServer::start(builder).await,
            streams: AdsStreams::new(Arc::new(NoDns), limits, LocalContext::default(), sender),
            events,
        }
    }

    fn start(&mut self, id: u64) {
        self.streams.open(Service::Ads, StreamId(id), self.server.config(), Duration::from_secs(10));
    }

    /// Opens a stream; the server has it.
    async fn open(&mut self, id: u64) -> Incoming {
        self.start(id);
        assert_eq!(self.event().await, Event::Opened(StreamId(id)));
        self.server.next().await
    }

    async fn send(&mut self, id: u64, message: &'static str) {
        self.streams.send(Service::Ads, StreamId(id), Bytes::from(message));
        assert_eq!(self.event().await, Event::Sent(StreamId(id)));
    }

    async fn event(&mut self) -> Event {
        match in_time(self.events.recv()).await {
            Some(Input::Xds(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    fn told(&mut self) -> Option<Event> {
        match self.events.recv().now_or_never()?? {
            Input::Xds(event) => Some(event),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until something other than a PONG was heard.
    async fn heard_data(&mut self) {
        let peer = Peer {
            server: self.server.config(),
            keep_alive: self.streams.limits.keep_alive,
            dns: self.streams.dns.clone(),
        };
        let permit = peer.permit().await.unwrap();
        let mut heard = permit.established().wire.listen();
        in_time(heard.wait_for(|heard| heard.data > 0)).await.unwrap();
    }
}

impl XdsServer {
    async fn start(builder: server::Builder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, is_frozen) = watch::channel(false);
        let (tell, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(connection, stream, builder.clone(), is_frozen.clone(), tell.clone()));
            }
        });
        Self { address, frozen, requests }
    }

    async fn next(&mut self) -> Incoming {
        in_time(self.requests.recv()).await.expect("a server that lives")
    }

    fn config(&self) -> Arc<ServerConfig> {
        Arc::new(ServerConfig::insecure(self.address.to_string()))
    }
}

impl Incoming {
    fn answer(&mut self, status: http::StatusCode, end: bool) -> h2::SendStream<Bytes> {
        let response = http::Response::builder().status(status).body(()).unwrap();
        self.respond.send_response(response, end).unwrap()
    }
}

async fn serve(
    number: usize,
    stream: TcpStream,
    builder: server::Builder,
    mut frozen: watch::Receiver<bool>,
    tell: mpsc::UnboundedSender<Incoming>,
) {
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    loop {
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            Ok(_) = frozen.wait_for(|frozen| *frozen) => {}
            request = connection.accept() => {
                let Some(Ok((request, respond))) = request else { return };
                let (head, body) = request.into_parts();
                let path = head.uri.path().to_owned();
                let _ = tell.send(Incoming { connection: number, path, body, respond });
            }
        }
    }
}

/// What takes this long will never happen.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("waited in vain")
}

#[derive(Debug)]
struct NoDns;

impl ResolveHost for NoDns {
    fn resolve<'a>(
        &'a self,
        _: &'a str,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        Box::pin(async { Err("no names here".to_owned()) })
    }
}
