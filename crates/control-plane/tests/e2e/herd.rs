//! Many clients at once, slow ones and greedy ones: who is answered, who is refused, and how a server empties.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_control_plane::{
    Address, ControlPlane, Event, Limits, Refusal, Server, ServerOptions, ServerTls, Snapshot, TypeUrl, resources,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{Code, Status};

use crate::common::{Client, channel, in_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_of_a_herd_is_answered_or_refused_within_seconds_fb31_fb33() {
    let limits = Limits { streams_per_second: 100, stream_burst: 100, ..Limits::default() };
    let server = serve(limits);
    let mut channels = Vec::new();
    for _ in 0..10 {
        channels.push(channel(server.addr()).connect().await.unwrap());
    }
    let start = Instant::now();
    let streams = (0..400).map(|n| {
        let channel = channels[n % channels.len()].clone();
        tokio::spawn(async move {
            let mut client = Client::try_open(channel, &format!("n{n}")).await?;
            client.subscribe(TypeUrl::CLUSTER, &["a"]);
            let response = client.response().await;
            assert_eq!(response.resources.len(), 1, "never an absence");
            Ok::<_, Status>(client)
        })
    });
    let (mut kept, mut refused) = (Vec::new(), 0);
    for stream in streams.collect::<Vec<_>>() {
        match in_time(stream).await.unwrap() {
            Ok(client) => kept.push(client),
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable);
                assert!((1000..=10_000).contains(&push_back(&status).unwrap()), "{status:?}");
                refused += 1;
            }
        }
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    // A burst, and those whose turn came within a second; a slow machine lets in some more.
    assert!(kept.len() >= 200 && refused >= 1, "{} {refused}", kept.len());
    let stats = server.stats();
    assert_eq!((stats.streams, stats.refused_busy), (kept.len() as u64, refused));
    assert_eq!(stats.first_responses.counts.iter().sum::<u64>(), kept.len() as u64);
}

#[tokio::test]
async fn a_server_that_is_told_to_refuses_new_streams_and_keeps_those_that_are_open() {
    let server = serve(Limits::default());
    let mut events = server.events();
    let channel = channel(server.addr()).connect().await.unwrap();
    let mut client = Client::open(channel.clone(), "old").await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    server.refuse_streams(Some("the store is behind".to_owned()));
    let status = Client::try_open(channel.clone(), "new").await.err().unwrap();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the store is behind; come back later"));
    assert!(push_back(&status).is_some());
    let refusal = in_time(events.wait_for(|event| match event {
        Event::StreamRefused { refusal, .. } => Some(*refusal),
        _ => None,
    }));
    assert_eq!(refusal.await, Some(Refusal::Closed));
    client.subscribe(TypeUrl::CLUSTER, &["a", "b"]);
    client.response().await;
    server.refuse_streams(None);
    Client::open(channel, "new").await;
}

#[tokio::test]
async fn who_does_not_read_is_cut_off_and_delays_nobody_fb38() {
    let server = serve(Limits { slow_reader: Duration::from_millis(300), ..Limits::default() });
    let mut events = server.events();
    let mut slow = Client::connect(server.addr()).await;
    slow.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    slow.response().await;
    let mut quick = Client::connect(server.addr()).await;
    quick.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    quick.response().await;
    // More than the windows of HTTP/2 hold, which are 2 MiB here.
    let many = |n: u32| (0..20_000).map(move |host| format!("10.{n}.{}.{}:80", host / 250, host % 250));
    for n in 0..10 {
        server.control_plane().update(|s| s.insert(resources::endpoints("a", many(n))));
        let version = server.control_plane().version(&TypeUrl::ENDPOINTS);
        let response = quick.response().await;
        assert_eq!(Some(&response.version_info), version.as_ref(), "each update comes at once");
        quick.ack(&response, &["a"]);
    }
    let cut = in_time(events.wait_for(|event| match event {
        Event::SlowReader { stream } => Some(*stream),
        _ => None,
    }));
    let cut = cut.await.unwrap();
    in_time(events.wait_for(|event| matches!(event, Event::ConnectionClosed { .. }).then_some(()))).await.unwrap();
    assert_eq!((cut.0, server.stats().open_connections, server.stats().slow_readers), (1, 1, 1));
    server.control_plane().update(|s| s.insert(resources::endpoints("a", many(99))));
    quick.response().await;
    while let Ok(Some(_)) = slow.next().await {}
}

#[tokio::test]
async fn a_server_that_drains_sends_clients_away_one_by_one_and_says_when_to_come_back_fb36() {
    let server = Arc::new(serve(Limits::default()));
    let mut ends = Vec::new();
    let mut last = None;
    for n in 0..20 {
        let channel = channel(server.addr()).connect().await.unwrap();
        let mut client = Client::open(channel.clone(), &format!("n{n}")).await;
        client.subscribe(TypeUrl::CLUSTER, &["a"]);
        client.response().await;
        ends.push(tokio::spawn(async move { (client.next().await.unwrap_err(), Instant::now()) }));
        last = Some(channel);
    }
    let start = Instant::now();
    let draining = Arc::clone(&server);
    let drained = tokio::spawn(async move { draining.drain(Duration::from_millis(800)).await });
    let mut times = Vec::new();
    for end in ends {
        let (status, at) = in_time(end).await.unwrap();
        assert_eq!(status.code(), Code::Unavailable);
        assert!((1000..=10_000).contains(&push_back(&status).unwrap()), "{status:?}");
        times.push(at - start);
    }
    times.sort();
    let spread = times[times.len() - 1] - times[0];
    assert!(spread > Duration::from_millis(200), "{times:?}");
    assert!(Client::try_open(last.unwrap(), "late").await.is_err());
    in_time(drained).await.unwrap();
    assert_eq!((server.stats().open_connections, server.stats().open_streams), (0, 0));
}

#[tokio::test]
async fn an_old_connection_is_replaced_by_a_new_one_fb35() {
    let server = serve(Limits { connection_age: Some(Duration::from_millis(200)), ..Limits::default() });
    let channel = channel(server.addr()).connect().await.unwrap();
    let mut client = Client::open(channel.clone(), "n").await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    let status = client.next().await.unwrap_err();
    assert_eq!((status.code(), push_back(&status)), (Code::Unavailable, None), "it may come back at once");
    // GOAWAY came first: what is opened now is on another connection.
    let mut client = Client::open(channel, "n").await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    assert_eq!(server.stats().connections, 2);
}

#[tokio::test]
async fn a_client_that_asks_for_too_much_is_told_so_fb39() {
    let server = serve(Limits { requests_per_second: 1, request_burst: 5, ..Limits::default() });
    let mut events = server.events();
    let mut greedy = Client::connect(server.addr()).await;
    let names: Vec<String> = (0..10_001).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    greedy.subscribe(TypeUrl::CLUSTER, &names);
    let status = greedy.next().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "more than 10000 names of CDS"));
    let what = in_time(events.wait_for(|event| match event {
        Event::AskedTooMuch { what, .. } => Some(what.clone()),
        _ => None,
    }));
    assert_eq!(what.await.as_deref(), Some("more than 10000 names of CDS"));

    let mut restless = Client::connect(server.addr()).await;
    restless.subscribe(TypeUrl::CLUSTER, &["a"]);
    let mut response = restless.response().await;
    // Answers to what it is sent are free.
    for n in 0..20 {
        restless.ack(&response, &["a"]);
        server.control_plane().update(|s| s.insert(resources::logical_dns_cluster("a", format!("h:{}", n + 1))));
        response = restless.response().await;
    }
    for _ in 0..20 {
        restless.subscribe(TypeUrl::LISTENER, &["nobody"]);
    }
    let end = loop {
        match restless.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended in peace"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert_eq!(server.stats().asked_too_much, 2);
}

#[tokio::test]
async fn who_is_connected_and_what_they_think_of_it_can_be_asked() {
    let server = serve(Limits::default());
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    let response = client.response().await;
    let mut events = server.events();
    client.ack(&response, &["a"]);
    in_time(events.answer(TypeUrl::CLUSTER)).await.unwrap();
    server.control_plane().update(|s| s.insert(resources::logical_dns_cluster("a", "h:1")));
    let second = client.response().await;
    client.nack(&second, &["a"], "no good");
    in_time(events.answer(TypeUrl::CLUSTER)).await.unwrap();
    let clients = server.clients();
    assert_eq!((clients.len(), clients[0].node_id.as_str(), clients[0].delta), (1, "node", false));
    let of = &clients[0].types[&TypeUrl::CLUSTER];
    assert_eq!(of.sent.as_deref(), Some(second.version_info.as_str()));
    assert_eq!(of.acked.as_deref(), Some(response.version_info.as_str()));
    let (version, text) = of.rejected.clone().unwrap();
    assert_eq!((version.as_ref(), text.as_str()), (second.version_info.as_str(), "no good"));
    drop(client);
    in_time(events.wait_for(|event| matches!(event, Event::StreamClosed { .. }).then_some(()))).await.unwrap();
    assert!(server.clients().is_empty());
}

/// FB-40: one handshake at a time, and five clients that begin one and go no further.
#[tokio::test]
async fn handshakes_that_stall_hold_up_nobody_and_who_comes_back_needs_no_signature() {
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Some(ServerTls::from_files(&cert, &key, None).unwrap());
    let limits = Limits { handshakes: 1, ..Limits::default() };
    let options = ServerOptions { tls, limits, ..ServerOptions::default() };
    let server = control_plane().serve_with(Address::Tcp("127.0.0.1:0".parse().unwrap()), options).unwrap();
    let mut stalled = Vec::new();
    for _ in 0..5 {
        stalled.push(TcpStream::connect(server.addr()).await.unwrap());
    }

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let tcp = TcpStream::connect(server.addr()).await.unwrap();
        let mut stream = in_time(connector.connect("localhost".try_into().unwrap(), tcp)).await.unwrap();
        kinds.push(stream.get_ref().1.handshake_kind().unwrap());
        // The preface and an empty SETTINGS frame; what the server says to it comes after its tickets.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut heard = [0; 9];
        in_time(stream.read_exact(&mut heard)).await.unwrap();
    }
    assert_eq!(kinds, [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]);
}

fn serve(limits: Limits) -> Server {
    let options = ServerOptions { limits, ..ServerOptions::default() };
    control_plane().serve_with(Address::Tcp("127.0.0.1:0".parse().unwrap()), options).unwrap()
}

fn control_plane() -> ControlPlane {
    let control_plane = ControlPlane::new();
    let snapshot = Snapshot::builder().resources(["a", "b"].map(resources::eds_cluster));
    control_plane.set(snapshot.endpoints(resources::endpoints("a", ["10.0.0.1:80"])));
    control_plane
}

/// When to come back, in milliseconds.
fn push_back(status: &Status) -> Option<u64> {
    status.metadata().get("grpc-retry-pushback-ms")?.to_str().ok()?.parse().ok()
}
