//! The server on real sockets: what it serves, how it stops and how it comes back.

use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::ClusterStats;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::load_stats::v3::LoadStatsRequest;
use envoy_types::pb::envoy::service::load_stats::v3::load_reporting_service_client::LoadReportingServiceClient;
use mainstay_control_plane::{
    ControlPlane, Event, LoadRequest, RequestKind, Server, Snapshot, SnapshotBuilder, Snapshots, TypeUrl, resources,
};
use tonic::Code;

use crate::common::{Client, channel, in_time};

#[tokio::test]
async fn a_client_walks_from_listener_to_endpoints() {
    // P-93.
    let server = serve(greeter("10.0.0.1:80")).await;
    let mut client = Client::connect(server.addr()).await;
    for (type_url, name) in [
        (TypeUrl::LISTENER, "greeter"),
        (TypeUrl::ROUTE, "routes"),
        (TypeUrl::CLUSTER, "cluster"),
        (TypeUrl::ENDPOINTS, "cluster"),
    ] {
        client.subscribe(type_url.clone(), &[name]);
        let response = client.response().await;
        assert_eq!(response.type_url, type_url.as_str());
        assert_eq!(response.resources.len(), 1);
        client.ack(&response, &[name]);
    }
}

#[tokio::test]
async fn an_update_reaches_every_stream() {
    let server = serve(greeter("10.0.0.1:80")).await;
    let (mut one, mut two) = (Client::connect(server.addr()).await, Client::connect(server.addr()).await);
    for client in [&mut one, &mut two] {
        client.subscribe(TypeUrl::ENDPOINTS, &["cluster"]);
        assert_eq!(client.response().await.version_info, version(&server));
    }
    let before = version(&server);
    server.control_plane().set(greeter("10.0.0.2:80"));
    assert_ne!(version(&server), before);
    for client in [&mut one, &mut two] {
        assert_eq!(client.response().await.version_info, version(&server));
    }
}

#[tokio::test]
async fn what_many_streams_are_sent_is_encoded_once_for_each_set_of_names_fb37() {
    let server = serve(clusters(["a", "b", "c"])).await;
    let mut clients = Vec::new();
    for n in 0..30 {
        let names: &[&str] = if n % 3 == 0 { &["a", "b"] } else { &["a", "b", "c"] };
        let mut client = Client::connect(server.addr()).await;
        client.subscribe(TypeUrl::CLUSTER, names);
        let response = client.response().await;
        assert_eq!(response.resources.len(), names.len());
        client.ack(&response, names);
        clients.push((client, names));
    }
    assert_eq!(server.stats().encodings, 2);
    server.control_plane().update(|s| s.insert(resources::logical_dns_cluster("a", "h:1")));
    let mut nonces = std::collections::BTreeSet::new();
    for (client, names) in &mut clients {
        let response = client.response().await;
        assert_eq!(response.resources.len(), names.len());
        assert!(nonces.insert(response.nonce));
    }
    assert_eq!((server.stats().encodings, server.stats().responses), (4, 60));
}

#[tokio::test]
async fn replicas_and_restarts_say_the_same_versions_of_the_same_content_dx24() {
    let one = serve(greeter("10.0.0.1:80")).await;
    one.control_plane().set(greeter("10.0.0.2:80"));
    let two = serve(greeter("10.0.0.2:80")).await;
    for (type_url, name) in [(TypeUrl::LISTENER, "greeter"), (TypeUrl::ENDPOINTS, "cluster")] {
        let mut responses = Vec::new();
        for server in [&one, &two] {
            let mut client = Client::connect(server.addr()).await;
            client.subscribe(type_url.clone(), &[name]);
            responses.push(DiscoveryResponse { nonce: String::new(), ..client.response().await });
        }
        assert_eq!(responses[0], responses[1]);
        assert_eq!(responses[0].control_plane.as_ref().unwrap().identifier, "mainstay");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_gets_the_last_update_and_may_skip_others() {
    let server = serve(greeter("10.0.0.1:80")).await;
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::ENDPOINTS, &["cluster"]);
    client.response().await;
    // More than the windows of HTTP/2 hold, so that the server must wait.
    let many = |n: u32| (0..2000).map(move |host| format!("10.{n}.{}.{}:80", host / 250, host % 250));
    for n in 0..50 {
        server.control_plane().update(|s| s.insert(resources::endpoints("cluster", many(n))));
        tokio::task::yield_now().await;
    }
    let last = server.control_plane().version(&TypeUrl::ENDPOINTS).unwrap();
    let mut read = 0;
    while client.response().await.version_info != last {
        read += 1;
    }
    assert!(read < 50, "{read}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_stream_misses_the_last_of_many_updates() {
    let server = serve(clusters(["a"])).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = Client::connect(server.addr()).await;
        client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
        clients.push(tokio::spawn(async move {
            loop {
                let response = client.response().await;
                client.ack(&response, &["a"]);
                if response.version_info == "last" {
                    return;
                }
            }
        }));
    }
    for port in 1..500 {
        server.control_plane().update(|s| s.insert(resources::endpoints("a", [format!("h:{port}")])));
    }
    let last = clusters(["a"]).endpoints(resources::endpoints("a", ["h:500"])).version(TypeUrl::ENDPOINTS, "last");
    server.control_plane().set(last);
    for client in clients {
        in_time(client).await.unwrap();
    }
}

#[tokio::test]
async fn nodes_can_have_snapshots_of_their_own() {
    let server = serve(clusters(["shared"])).await;
    server.control_plane().set_for_node("special", clusters(["shared", "own"]));
    let channel = channel(server.addr()).connect().await.unwrap();
    let mut plain = Client::open(channel.clone(), "plain").await;
    let mut special = Client::open(channel, "special").await;
    for (client, count) in [(&mut plain, 1), (&mut special, 2)] {
        client.subscribe(TypeUrl::CLUSTER, &["*"]);
        assert_eq!(client.response().await.resources.len(), count);
    }
    server.control_plane().clear_node("special");
    assert_eq!(special.response().await.resources.len(), 1);
}

#[tokio::test]
async fn nodes_are_served_what_their_class_is_and_others_are_refused_fb14() {
    let control_plane = ControlPlane::new();
    control_plane.classify(|node| match node.id.split_once('-') {
        Some((class, _)) => Ok(class.to_owned()),
        None => Err(format!("node {:?} is of no class", node.id)),
    });
    let class = |default: SnapshotBuilder| Snapshots { default: default.build().partial(), ..Snapshots::default() };
    let mut red = class(clusters(["red"]));
    red.nodes.insert("red-2".to_owned(), clusters(["red", "own"]).build().partial());
    control_plane.replace_classes([("red".to_owned(), red), ("blue".to_owned(), class(clusters(["blue"])))].into());
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let connected = channel(server.addr()).connect().await.unwrap();
    let ask = async |node: &str, type_url, names: &[&str]| {
        let mut client = Client::open(connected.clone(), node).await;
        client.subscribe(type_url, names);
        let answer = client.next().await.map(|response| response.unwrap().resources.len());
        (client, answer.map_err(|status| (status.code(), status.message().to_owned())))
    };
    assert_eq!(ask("red-1", TypeUrl::CLUSTER, &["red"]).await.1, Ok(1));
    assert_eq!(ask("red-2", TypeUrl::CLUSTER, &["*"]).await.1, Ok(2));
    let (mut blue, answer) = ask("blue-1", TypeUrl::CLUSTER, &["*"]).await;
    assert_eq!(answer, Ok(1));
    let refused = (Code::PermissionDenied, "node \"nobody\" is of no class".to_owned());
    assert_eq!(ask("nobody", TypeUrl::CLUSTER, &["*"]).await.1, Err(refused));
    let waiting = (Code::Unavailable, "there is no complete configuration for nodes of \"green\" yet".to_owned());
    assert_eq!(ask("green-1", TypeUrl::CLUSTER, &["*"]).await.1, Err(waiting));
    let (_, unknown) = ask("red-1", TypeUrl::LISTENER, &["greeter"]).await;
    let (code, text) = unknown.unwrap_err();
    assert_eq!(code, Code::Unavailable);
    assert!(text.starts_with("Listener \"greeter\" is not among what is held here"), "{text}");
    // A change reaches the streams of its class.
    let blue_now = class(clusters(["blue", "more"]));
    server.control_plane().replace_classes([("blue".to_owned(), blue_now)].into());
    assert_eq!(blue.response().await.resources.len(), 2);
}

#[tokio::test]
async fn reports_of_load_can_be_accepted_and_dropped_fb22() {
    let server = serve(clusters(["a"])).await;
    let interval = Duration::from_secs(300);
    server.request_loads(LoadRequest { interval, is_dropped: true, ..LoadRequest::default() });
    let mut stub = LoadReportingServiceClient::new(channel(server.addr()).connect().await.unwrap());
    let (reports, body) = tokio::sync::mpsc::channel(4);
    let stats = ClusterStats { cluster_name: "a".to_owned(), total_dropped_requests: 3, ..ClusterStats::default() };
    for _ in 0..2 {
        reports
            .send(LoadStatsRequest { cluster_stats: vec![stats.clone()], ..LoadStatsRequest::default() })
            .await
            .unwrap();
    }
    drop(reports);
    let body = tokio_stream::wrappers::ReceiverStream::new(body);
    let mut answers = stub.stream_load_stats(body).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!(answer.load_reporting_interval.unwrap().seconds, 300);
    assert!(answer.send_all_clusters);
    assert!(answers.message().await.unwrap().is_none(), "both were read");
    assert_eq!(server.loads().clusters.len(), 0);
}

#[tokio::test]
async fn everything_that_happens_is_an_event() {
    let server = serve(clusters(["a"])).await;
    let mut events = server.events();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    let response = client.response().await;
    client.nack(&response, &["a"], "no good");
    let Some(Event::ConnectionOpened { connection, .. }) = in_time(events.next()).await else { panic!() };
    let Some(Event::StreamOpened { stream, connection: carrier, delta: false }) = in_time(events.next()).await else {
        panic!()
    };
    assert_eq!(connection, carrier);
    let request = in_time(events.request(TypeUrl::CLUSTER)).await.unwrap();
    assert_eq!(request.node.unwrap().id, "node");
    assert_eq!((request.names.as_slice(), request.nonce.as_str()), (&["a".to_owned()][..], ""));
    let sent = in_time(events.response(TypeUrl::CLUSTER)).await.unwrap();
    assert_eq!((&sent.nonce, &sent.version, sent.stream), (&response.nonce, &response.version_info, stream));
    let nack = in_time(events.answer(TypeUrl::CLUSTER)).await.unwrap();
    assert_eq!(nack.kind, RequestKind::Nack);
    assert_eq!(nack.error, Some((Code::InvalidArgument, "no good".to_owned())));
    assert_eq!(nack.node, None);
    let stats = server.stats();
    assert_eq!((stats.open_streams, stats.requests, stats.nacks, stats.responses), (1, 2, 1, 1));
    drop(client);
    // In either order.
    let mut ends = vec![Event::StreamClosed { stream }, Event::ConnectionClosed { connection }];
    while !ends.is_empty() {
        let event = in_time(events.next()).await.unwrap();
        ends.retain(|end| *end != event);
    }
    assert_eq!((server.stats().open_connections, server.stats().connections), (0, 1));
}

#[tokio::test]
async fn a_stop_cuts_connections_and_refuses_new_ones_and_a_start_is_on_the_same_port() {
    let server = serve(clusters(["a"])).await;
    for version in 1..4 {
        let mut client = Client::connect(server.addr()).await;
        client.subscribe(TypeUrl::CLUSTER, &["a"]);
        client.response().await;
        in_time(server.stop()).await;
        assert_eq!((server.stats().open_connections, server.stats().open_streams), (0, 0), "{version}");
        assert!(!server.is_listening());
        assert!(client.next().await.is_err());
        assert!(channel(server.addr()).connect().await.is_err());
        server.start().unwrap();
    }
    assert_eq!(server.stats().connections, 3);
}

#[tokio::test]
async fn a_graceful_stop_ends_streams_with_a_status() {
    let server = serve(clusters(["a"])).await;
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    in_time(server.stop_gracefully()).await;
    assert_eq!(client.next().await.unwrap_err().code(), Code::Unavailable);
    assert!(channel(server.addr()).connect().await.is_err());
    server.start().unwrap();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
}

#[tokio::test]
async fn a_server_that_refuses_keeps_its_streams() {
    let server = serve(clusters(["a"])).await;
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    in_time(server.refuse()).await;
    assert!(channel(server.addr()).connect().await.is_err());
    server.control_plane().set(clusters([]));
    assert!(client.response().await.resources.is_empty());
    server.start().unwrap();
    Client::connect(server.addr()).await;
    assert!(server.is_listening());
}

#[tokio::test]
async fn dropping_a_server_ends_its_streams_and_tells_who_listens() {
    let server = serve(clusters(["a"])).await;
    let mut events = server.events();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    let addr = server.addr();
    drop(server);
    assert!(client.next().await.is_err());
    // The journal ends with the last task of the server.
    while in_time(events.next()).await.is_some() {}
    assert!(channel(addr).connect().await.is_err());
}

#[tokio::test]
async fn a_listener_that_exists_already_can_be_used_and_reopened() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let control_plane = ControlPlane::new();
    control_plane.set(clusters(["a"]));
    let server = control_plane.serve_on(listener).unwrap();
    Client::connect(server.addr()).await;
    in_time(server.stop()).await;
    server.start().unwrap();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    assert_eq!(client.response().await.resources.len(), 1);
}

#[tokio::test]
async fn the_incremental_variant_is_unimplemented_where_that_is_wanted() {
    // P-3.
    let server = serve(clusters(["a"])).await;
    server.faults().refuse_delta(true);
    let mut stub = AggregatedDiscoveryServiceClient::new(channel(server.addr()).connect().await.unwrap());
    let status = stub.delta_aggregated_resources(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

async fn serve(snapshot: SnapshotBuilder) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.unwrap()
}

/// The version of the endpoints in force.
fn version(server: &Server) -> String {
    server.control_plane().version(&TypeUrl::ENDPOINTS).unwrap()
}

fn clusters<const N: usize>(names: [&str; N]) -> SnapshotBuilder {
    Snapshot::builder().resources(names.map(resources::eds_cluster))
}

fn greeter(backend: &str) -> SnapshotBuilder {
    clusters(["cluster"])
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .endpoints(resources::endpoints("cluster", [backend]))
}
