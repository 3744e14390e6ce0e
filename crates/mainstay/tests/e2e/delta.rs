//! Incremental ADS over real sockets (DX): the same promises, and control planes that do not speak it, restart or are replaced.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::ControlPlane as Identity;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource as Entry,
};
use mainstay::bootstrap::{Bootstrap, Delta, Node, ServerConfig, ServerFeatures};
use mainstay::event::Event;
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{
    Body, ControlPlane, Corruption, Event as Seen, RequestKind, Server, Snapshot, TypeUrl, resources,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::common::{
    Client, backends, call, call_within, control_plane, in_time, metadata, service, spread, status_of,
    until_answered_by,
};

#[tokio::test]
async fn a_channel_follows_its_control_plane_and_is_sent_what_changed() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut seen = server.events();
    let channel = builder(&[&server], Delta::Required).build().unwrap();
    let mut client = Client::new(channel.clone());
    assert_eq!(call(&mut client).await.unwrap(), "one");
    assert!(channel.config().await.unwrap().servers[0].delta);
    let delta = seen.wait_for(|event| match event {
        Seen::StreamOpened { delta, .. } => Some(*delta),
        _ => None,
    });
    assert_eq!(in_time(delta).await, Some(true));

    // Another cluster and other endpoints: only these travel.
    let mut seen = server.events();
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::eds_cluster("unused"));
        snapshot.insert(resources::endpoints("service", [two.addr()]));
    });
    until_answered_by(&mut client, "two").await;
    let response = in_time(seen.wait_for(|event| event.as_response().cloned())).await.unwrap();
    assert_eq!((response.type_url, response.names), (TypeUrl::ENDPOINTS, vec!["service".to_owned()]));
    let ack = in_time(seen.answer(TypeUrl::ENDPOINTS)).await.unwrap();
    assert_eq!((ack.kind, ack.names.len() + ack.unsubscribed.len()), (RequestKind::Ack, 0), "DX-6");
}

#[tokio::test]
async fn bad_updates_and_deletions_leave_what_is_in_use_in_use() {
    // A88, DX-11, DX-13.
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = start(&[&server], Delta::Required);
    assert_eq!(call(&mut client).await.unwrap(), "one");
    let mut seen = server.events();
    server.faults().corrupt(TypeUrl::CLUSTER, "service", Corruption::Bytes(vec![0xff]));
    assert_eq!(in_time(seen.answer(TypeUrl::CLUSTER)).await.unwrap().kind, RequestKind::Nack);
    assert_eq!(spread(&mut client, 20).await["one"], 20);
    server.faults().heal();
    assert_eq!(in_time(seen.answer(TypeUrl::CLUSTER)).await.unwrap().kind, RequestKind::Ack);
    server.control_plane().update(|snapshot| assert!(snapshot.remove(&TypeUrl::ENDPOINTS, "service")));
    assert_eq!(in_time(seen.answer(TypeUrl::ENDPOINTS)).await.unwrap().kind, RequestKind::Ack);
    assert_eq!(spread(&mut client, 20).await["one"], 20);
}

#[tokio::test]
async fn what_is_not_there_is_known_after_one_round_trip() {
    // DX-14, with everybody's timers. The server has something: who has nothing at all may have just begun (D-36).
    let [one] = backends(["one"]).await;
    let server = control_plane(Snapshot::builder().cluster(resources::eds_cluster("other")).build()).await;
    let mut client = start(&[&server], Delta::Required);
    let status = in_time(call(&mut client)).await.unwrap_err();
    assert!(status.message().contains("Listener \"service\" does not exist on"), "{status:?}");
    server.control_plane().set(service(&[&one]));
    in_time(async { while call(&mut client).await.is_err() {} }).await;
}

#[tokio::test]
async fn what_is_not_there_is_known_after_one_round_trip_in_the_other_variant_too() {
    // D-36, P-61: the Listener is the name in the target, which may be wrong. In state of the world our control plane says so by
    // `resource_errors`, with everybody's timers.
    let server = control_plane(Snapshot::builder().cluster(resources::eds_cluster("other")).build()).await;
    let mut client = start(&[&server], Delta::Off);
    let status = tokio::time::timeout(Duration::from_secs(5), call(&mut client)).await.expect("no timer").unwrap_err();
    assert!(status.message().ends_with("answered with NOT_FOUND: there is no such resource"), "{status:?}");
}

#[tokio::test]
async fn a_server_without_delta_is_used_in_the_other_variant_at_once() {
    // DX-3, with everybody's backoff: it plays no part.
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    server.faults().refuse_delta(true);
    let bootstrap = bootstrap(&[&server], Delta::Preferred);
    let channel = Channel::builder("xds:///service").bootstrap(bootstrap).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    assert_eq!(call_within(&mut client, Duration::from_millis(900)).await.unwrap(), "one");
    let refused = async {
        loop {
            match events.next().await.unwrap() {
                Event::DeltaRefused { cause, .. } => return cause,
                Event::Unreachable { cause, .. } => panic!("{cause}"),
                _ => {}
            }
        }
    };
    assert!(in_time(refused).await.contains("UNIMPLEMENTED"));
    let stats = server.stats();
    assert_eq!((stats.connections, stats.open_streams), (1, 1), "DX-2: one after the other, on one connection");
}

#[tokio::test]
async fn events_and_views_say_which_variant_a_server_is_spoken_to_in() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    for (mode, refuse, expected) in [
        (Delta::Off, false, vec![false]),
        (Delta::Required, false, vec![true]),
        (Delta::Preferred, true, vec![true, false]),
    ] {
        server.faults().refuse_delta(refuse);
        let channel = builder(&[&server], mode).build().unwrap();
        let mut events = channel.events();
        call(&mut Client::new(channel.clone())).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            if let Event::Connected { delta, .. } = in_time(events.next()).await.unwrap() {
                seen.push(delta);
            }
        }
        assert_eq!(seen, expected, "{mode:?}");
        assert_eq!(Some(&channel.config().await.unwrap().servers[0].delta), expected.last(), "{mode:?}");
        // CSDS, which `mainstay get` reads of other processes.
        let addr = server.addr().to_string();
        let configs = status_of("delta").await;
        let told: Vec<_> = configs.iter().filter_map(|c| metadata(c, "mainstay.servers").remove(&addr)).collect();
        let last = if expected.last() == Some(&true) { "READY, delta" } else { "READY" };
        assert!(told.iter().any(|told| told == last), "{mode:?}: {told:?}");
    }
}

#[tokio::test]
async fn a_server_that_must_speak_delta_and_does_not_is_left_for_the_next() {
    // DX-5; the next one is of the other kind.
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    primary.faults().refuse_delta(true);
    let mut client = start(&[&primary, &fallback], Delta::Required);
    assert_eq!(call(&mut client).await.unwrap(), "two");
}

#[tokio::test]
async fn a_client_falls_back_and_returns_over_delta() {
    // A71, DX-20 to DX-22.
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    primary.stop().await;
    let mut client = start(&[&primary, &fallback], Delta::Preferred);
    assert_eq!(call(&mut client).await.unwrap(), "two");
    primary.start().unwrap();
    until_answered_by(&mut client, "one").await;
    in_time(async {
        while fallback.stats().open_streams > 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    assert_eq!(spread(&mut client, 10).await["one"], 10);
}

#[tokio::test]
async fn replicas_with_equal_content_can_replace_each_other_unnoticed() {
    // FB-24, DX-24: no new connection, no new configuration, no failed call; over delta one resource travels.
    for delta in [Delta::Off, Delta::Required] {
        let [one] = backends(["one"]).await;
        let server = control_plane(service(&[&one])).await;
        let channel = builder(&[&server], delta).build().unwrap();
        let mut client = Client::new(channel.clone());
        assert_eq!(call(&mut client).await.unwrap(), "one");
        let before = channel.config().await.unwrap();
        let load = Load::start(&client);
        let mut configs = channel.configs();

        let replica = replace(server, service(&[&one])).await;
        let mut seen = replica.events();
        let answered = seen.answer(TypeUrl::LISTENER);
        assert_eq!(in_time(answered).await.unwrap().kind, RequestKind::Ack);
        let view = channel.config().await.unwrap();
        assert_eq!(view.config, before.config, "{delta:?}");
        while let Some(Some(view)) = futures_util::FutureExt::now_or_never(configs.next()) {
            assert_eq!(view.config, before.config, "{delta:?}");
        }
        load.stop().await;
        assert_eq!(one.open_connections(), 1, "{delta:?}");
        if delta == Delta::Required {
            let stats = replica.stats();
            assert_eq!(stats.responses, 1, "the listener, by which the replica says who it is (DX-16)");
        }
    }
}

#[tokio::test]
async fn a_control_plane_that_restarts_with_something_else_is_followed() {
    let [one, two] = backends(["one", "two"]).await;
    for delta in [Delta::Off, Delta::Required] {
        let server = control_plane(service(&[&one])).await;
        let mut client = start(&[&server], delta);
        assert_eq!(call(&mut client).await.unwrap(), "one");
        let _reborn = replace(server, service(&[&two])).await;
        until_answered_by(&mut client, "two").await;
    }
}

#[tokio::test]
async fn a_server_that_counts_from_1_in_each_process_never_leaves_a_client_behind() {
    // DX-16: version 1 of the endpoints is something else after the restart, and the server believes who has "1". Over
    // delta neither the name that it gives itself nor so short a version is believed; in the other variant it is told
    // nothing (DX-30).
    let [one, two] = backends(["one", "two"]).await;
    for (delta, names) in [
        (Delta::Required, ["process-1", "process-2"]),
        (Delta::Required, ["the same for ever", "the same for ever"]),
        (Delta::Off, ["process-1", "process-2"]),
    ] {
        let first = Counting::start("127.0.0.1:0".parse().unwrap(), names[0], &service(&[&one])).await;
        let addr = first.addr;
        let mut client = Client::new(builder_of(vec![server_config(&addr.to_string(), delta)]).build().unwrap());
        assert_eq!(call(&mut client).await.unwrap(), "one");
        first.kill().await;
        let second = Counting::start(addr, names[1], &service(&[&two])).await;
        until_answered_by(&mut client, "two").await;
        second.kill().await;
    }
}

#[tokio::test]
async fn who_trusts_the_versions_of_such_a_server_stays_behind() {
    // That proves the test above: with the check off, both variants believe that "1" is "1".
    let [one, two] = backends(["one", "two"]).await;
    for delta in [Delta::Required, Delta::Off] {
        let first = Counting::start("127.0.0.1:0".parse().unwrap(), "process-1", &service(&[&one])).await;
        let addr = first.addr;
        let builder = builder_of(vec![server_config(&addr.to_string(), delta)]).trust_versions(true);
        let mut client = Client::new(builder.build().unwrap());
        assert_eq!(call(&mut client).await.unwrap(), "one");
        first.kill().await;
        let mut second = Counting::start(addr, "process-2", &service(&[&two])).await;
        let asked = async { while second.asked.recv().await.unwrap() != TypeUrl::ENDPOINTS {} };
        in_time(asked).await;
        assert_eq!(spread(&mut client, 20).await["one"], 20, "{delta:?}");
        second.kill().await;
    }
}

// === What the tests need ===

fn start(servers: &[&Server], delta: Delta) -> Client {
    Client::new(builder(servers, delta).build().unwrap())
}

fn builder(servers: &[&Server], delta: Delta) -> ChannelBuilder {
    builder_of(servers.iter().map(|server| server_config(&server.addr().to_string(), delta)).collect())
}

fn builder_of(servers: Vec<ServerConfig>) -> ChannelBuilder {
    let bootstrap =
        servers.into_iter().fold(Bootstrap::builder().node(Node::new("delta")), |b, server| b.server(server));
    Channel::builder("xds:///service")
        .bootstrap(bootstrap.build().unwrap())
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .reconnect_spread(Duration::ZERO)
}

fn bootstrap(servers: &[&Server], delta: Delta) -> Bootstrap {
    let servers = servers.iter().map(|server| server_config(&server.addr().to_string(), delta));
    servers.fold(Bootstrap::builder().node(Node::new("delta")), |b, server| b.server(server)).build().unwrap()
}

fn server_config(uri: &str, delta: Delta) -> ServerConfig {
    let mut features = ServerFeatures::default();
    features.delta = delta;
    ServerConfig::insecure(uri).with_features(features)
}

/// Another process takes the place of a server.
async fn replace(server: Server, snapshot: Snapshot) -> Server {
    let addr = server.addr();
    server.stop().await;
    drop(server);
    let replica = ControlPlane::new();
    replica.set(snapshot);
    replica.serve(addr).await.expect("the port")
}

/// Calls one after the other, all of which must succeed.
struct Load(Arc<AtomicBool>, tokio::task::JoinHandle<usize>);

impl Load {
    fn start(client: &Client) -> Self {
        let (mut client, stop) = (client.clone(), Arc::<AtomicBool>::default());
        let stopped = stop.clone();
        let calls = tokio::spawn(async move {
            let mut calls = 0;
            while !stopped.load(Ordering::Relaxed) {
                call(&mut client).await.expect("an answer");
                calls += 1;
            }
            calls
        });
        Self(stop, calls)
    }

    async fn stop(self) {
        self.0.store(true, Ordering::Relaxed);
        assert!(in_time(self.1).await.expect("no panic") > 0);
    }
}

/// A server as some are: all its versions are "1", and who claims to have "1" is sent nothing. It has a runtime of its own,
/// so that its connections die with it.
struct Counting {
    addr: SocketAddr,
    /// The types of all requests.
    asked: mpsc::UnboundedReceiver<TypeUrl>,
    runtime: tokio::runtime::Runtime,
}

impl Counting {
    async fn start(addr: SocketAddr, identifier: &'static str, snapshot: &Snapshot) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let resources = snapshot.resources().map(|resource| ((resource.type_url, resource.name), resource.body));
        let (ask, asked) = mpsc::unbounded_channel();
        let service = CountingAds { identifier, resources: Arc::new(resources.collect()), asked: ask };
        let serving = runtime.spawn(async move {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(addr).unwrap();
            let listener = socket.listen(16).unwrap();
            let addr = listener.local_addr().unwrap();
            let server = tonic::transport::Server::builder()
                .add_service(AggregatedDiscoveryServiceServer::new(service))
                .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
            tokio::spawn(server);
            addr
        });
        Self { addr: serving.await.unwrap(), asked, runtime }
    }

    /// As if the process died. Its port is free afterwards.
    async fn kill(self) {
        let end = move || self.runtime.shutdown_timeout(Duration::from_secs(10));
        tokio::task::spawn_blocking(end).await.unwrap();
    }
}

struct CountingAds {
    identifier: &'static str,
    resources: Arc<BTreeMap<(TypeUrl, String), Body>>,
    asked: mpsc::UnboundedSender<TypeUrl>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for CountingAds {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, body) = mpsc::channel(16);
        let (identifier, resources, asked) = (self.identifier, self.resources.clone(), self.asked.clone());
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let mut nonce = 0;
            while let Ok(Some(request)) = requests.message().await {
                let type_url = TypeUrl::from(request.type_url.as_str());
                let _ = asked.send(type_url.clone());
                if request.version_info == "1" {
                    continue; // It has everything.
                }
                let found = request.resource_names.iter().filter_map(|name| {
                    match resources.get(&(type_url.clone(), name.clone())) {
                        Some(Body::Message(any)) => Some(any.clone()),
                        _ => None,
                    }
                });
                nonce += 1;
                let response = DiscoveryResponse {
                    version_info: "1".to_owned(),
                    resources: found.collect(),
                    type_url: type_url.as_str().to_owned(),
                    nonce: nonce.to_string(),
                    control_plane: Some(Identity { identifier: identifier.to_owned() }),
                    ..DiscoveryResponse::default()
                };
                if responses.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(body)))
    }

    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (responses, body) = mpsc::channel(16);
        let (identifier, resources, asked) = (self.identifier, self.resources.clone(), self.asked.clone());
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let mut nonce = 0;
            while let Ok(Some(request)) = requests.message().await {
                let type_url = TypeUrl::from(request.type_url.as_str());
                let _ = asked.send(type_url.clone());
                let entries = request.resource_names_subscribe.iter().filter_map(|name| {
                    let Some(Body::Message(any)) = resources.get(&(type_url.clone(), name.clone())) else {
                        return None;
                    };
                    let has_it = request.initial_resource_versions.get(name).is_some_and(|version| version == "1");
                    let (name, version, resource) = (name.clone(), "1".to_owned(), Some(any.clone()));
                    (!has_it).then(|| Entry { name, version, resource, ..Entry::default() })
                });
                let entries: Vec<_> = entries.collect();
                if entries.is_empty() {
                    continue;
                }
                nonce += 1;
                let response = DeltaDiscoveryResponse {
                    resources: entries,
                    type_url: type_url.as_str().to_owned(),
                    nonce: nonce.to_string(),
                    control_plane: Some(Identity { identifier: identifier.to_owned() }),
                    ..DeltaDiscoveryResponse::default()
                };
                if responses.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(body)))
    }
}
