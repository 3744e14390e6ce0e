//! Policies that spread load in other ways than round_robin.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{LbConfig, LbPolicy, LeastRequestLbConfig};
use envoy_types::pb::envoy::config::cluster::v3::load_balancing_policy::Policy;
use envoy_types::pb::envoy::config::cluster::v3::{Cluster, LoadBalancingPolicy};
use envoy_types::pb::envoy::config::core::v3::{Metadata, TypedExtensionConfig};
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::HashPolicy;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{Header, PolicySpecifier};
use envoy_types::pb::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use envoy_types::pb::envoy::extensions::load_balancing_policies::random_subsetting::v3::RandomSubsetting;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, BoolValue, Duration as PbDuration, Struct, UInt32Value, Value};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::{SimpleRequest, SimpleResponse};
use mainstay_xds::orca::OrcaLoadReport;
use prost::{Message, Name};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::metadata::BinaryMetadataValue;
use tonic::{Code, Status};

use crate::common::{Client, backends, client, control_plane, in_time, spread, until_answered_by};

#[tokio::test]
async fn ring_hash_keeps_99_percent_of_the_keys_when_one_of_a_hundred_endpoints_goes() {
    let mut all = Vec::new();
    for n in 0..100 {
        all.push(Backend::spawn("127.0.0.1:0", &n.to_string()).await.expect("a free port"));
    }
    let all: Vec<&Backend> = all.iter().collect();
    let server = control_plane(hashed(&all)).await;
    let client = client(&[&server]);
    let before = places(&client, 500).await;
    for backend in &all {
        let is_used = before.values().any(|id| id == backend.id());
        assert_eq!(backend.open_connections(), usize::from(is_used), "L-113: connected where requests lead");
    }

    // One of them with as many keys as most have. Which one is known by heart: the ring is made of hash keys.
    let keys_of = |backend: &Backend| before.values().filter(|id| *id == backend.id()).count();
    let mut by_keys = all.clone();
    by_keys.sort_by_key(|backend| keys_of(backend));
    let gone = by_keys[50];
    let left: Vec<&Backend> = all.iter().copied().filter(|backend| backend.id() != gone.id()).collect();
    server.control_plane().update(|snapshot| snapshot.insert(keyed_endpoints(&left)));
    let moving = before.iter().find(|(_, id)| *id == gone.id()).map(|(user, _)| user.clone()).expect("it has keys");
    let mut mover = client.clone();
    in_time(async { while call_as(&mut mover, &moving).await.expect("an answer") == gone.id() {} }).await;

    let after = places(&client, 500).await;
    let kept = before.iter().filter(|(user, id)| after[*user] == **id).count();
    assert_eq!(kept, 500 - keys_of(gone), "L-112: only those that it had move");
    assert!(kept >= 495, "99 %: {kept} of 500");
}

#[tokio::test]
async fn ring_hash_connects_only_where_a_request_leads() {
    let all = backends(["one", "two", "three", "four"]).await;
    let server = control_plane(hashed(&all.each_ref())).await;
    let mut client = client(&[&server]);
    for _ in 0..10 {
        call_as(&mut client, "the only one").await.unwrap();
    }
    assert_eq!(all.iter().map(Backend::open_connections).sum::<usize>(), 1, "L-113, L-116");
}

#[tokio::test]
async fn ring_hash_passes_over_an_endpoint_that_dies_and_returns_to_it() {
    let mut all = backends(["one", "two", "three"]).await;
    let server = control_plane(hashed(&all.each_ref())).await;
    let mut client = client(&[&server]);
    let home = call_as(&mut client, "u").await.unwrap();
    let at = all.iter().position(|backend| backend.id() == home).unwrap();
    all[at].stop().await;
    // The RPC that meets the broken connection may fail; those after it go elsewhere.
    let moved = in_time(async {
        loop {
            if let Ok(id) = call_as(&mut client, "u").await {
                break id;
            }
        }
    });
    assert_ne!(moved.await, home, "L-116");
    all[at].restart().await.unwrap();
    in_time(async { while call_as(&mut client, "u").await.expect("an answer") != home {} }).await;
}

#[tokio::test]
async fn least_request_keeps_away_from_an_endpoint_that_is_busy() {
    let [one, two] = backends(["one", "two"]).await;
    let choice_count = Some(UInt32Value { value: 10 });
    let cluster = Cluster {
        lb_policy: LbPolicy::LeastRequest.into(),
        lb_config: Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig { choice_count, ..Default::default() })),
        ..resources::eds_cluster("service")
    };
    let server = control_plane(service_with(cluster, resources::route("service", "service"), &[&one, &two])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;

    // One call that never ends: from then on the other endpoint has fewer.
    let before = one.requests();
    let mut endless = client.clone();
    let _endless = tokio::spawn(async move {
        let mut request = tonic::Request::new(SimpleRequest::default());
        request.metadata_mut().insert("rpc-behavior", "keep-open".parse().expect("a value"));
        endless.unary_call(request).await
    });
    let total = one.requests() + two.requests();
    in_time(async {
        while one.requests() + two.requests() == total {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let free = if one.requests() > before { "two" } else { "one" };
    let counts = spread(&mut client, 40).await;
    // The busy one is taken only if it is drawn ten times out of ten.
    assert!(counts[free] >= 35, "L-105: {counts:?}, expected nearly all at {free}");
}

#[tokio::test]
async fn weighted_round_robin_goes_by_the_reports_that_come_with_answers() {
    let (heavy, light) = (Reporter::start("heavy", 0.8, 0.2).await, Reporter::start("light", 0.2, 0.8).await);
    let (_server, mut client) = weighted(&heavy, &light, false).await;
    until_share(&mut client, "light").await;
    assert_eq!(heavy.streams() + light.streams(), 0, "L-109: not asked");
}

#[tokio::test]
async fn weighted_round_robin_goes_by_the_reports_that_it_asks_for() {
    // What comes with answers says the opposite, and is not read.
    let (heavy, light) = (Reporter::start("heavy", 0.2, 0.8).await, Reporter::start("light", 0.8, 0.2).await);
    let (_server, mut client) = weighted(&heavy, &light, true).await;
    until_share(&mut client, "light").await;
    assert_eq!((heavy.streams(), light.streams()), (1, 1), "L-109: one stream per connection");
}

#[tokio::test]
async fn an_endpoint_that_has_no_reports_is_asked_once_and_one_that_fails_again_and_again() {
    let without = Reporter::ending("without", Code::Unimplemented).await;
    let failing = Reporter::ending("failing", Code::Unavailable).await;
    let (_server, mut client) = weighted(&without, &failing, true).await;
    in_time(async {
        while failing.streams() < 4 {
            spread(&mut client, 1).await;
        }
    })
    .await;
    assert_eq!(without.streams(), 1, "L-109");
    let counts = spread(&mut client, 10).await;
    assert_eq!((counts["without"], counts["failing"]), (5, 5), "L-108: as long as nobody reports");
}

#[tokio::test]
async fn random_subsetting_connects_to_so_many_and_no_more() {
    let all = backends(["one", "two", "three", "four", "five"]).await;
    let child_policy = Some(policies(RoundRobin::default()));
    let policy = RandomSubsetting { subset_size: Some(UInt32Value { value: 2 }), child_policy };
    let cluster = Cluster { load_balancing_policy: Some(policies(policy)), ..resources::eds_cluster("service") };
    let backends = all.each_ref();
    let server = control_plane(service_with(cluster, resources::route("service", "service"), &backends)).await;
    let mut client = client(&[&server]);
    let connected = || all.iter().filter(|backend| backend.open_connections() > 0).count();
    in_time(async {
        while connected() < 2 {
            spread(&mut client, 1).await;
        }
    })
    .await;
    let counts = spread(&mut client, 20).await;
    assert_eq!((counts.len(), connected()), (2, 2), "L-110: {counts:?}");
}

/// A server whose answers come with reports, and which reports on a stream of its own, too.
pub(crate) struct Reporter {
    pub(crate) address: SocketAddr,
    streams: Arc<AtomicUsize>,
}

impl Reporter {
    /// With the utilization that answers report, and the one that the stream does.
    pub(crate) async fn start(id: &'static str, with_answers: f64, on_stream: f64) -> Self {
        Self::serve(id, with_answers, Ok(on_stream)).await
    }

    /// Which ends its stream at once, with this status.
    async fn ending(id: &'static str, status: Code) -> Self {
        Self::serve(id, 0.5, Err(status)).await
    }

    async fn serve(id: &'static str, with_answers: f64, on_stream: Result<f64, Code>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, streams) = (listener.local_addr().expect("an address"), Arc::<AtomicUsize>::default());
        let counter = streams.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let streams = counter.clone();
                let service = service_fn(move |request: http::Request<Incoming>| {
                    let is_stream = request.uri().path() == "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";
                    let frames: Vec<Frame<Bytes>> = if is_stream {
                        streams.fetch_add(1, Ordering::Relaxed);
                        match on_stream {
                            Ok(utilization) => vec![Frame::data(framed(&report(utilization)))],
                            Err(code) => {
                                let status = HeaderValue::from(code as i32);
                                vec![Frame::trailers(
                                    [(HeaderName::from_static("grpc-status"), status)].into_iter().collect(),
                                )]
                            }
                        }
                    } else {
                        let answer = SimpleResponse { server_id: id.into(), ..Default::default() };
                        let report = BinaryMetadataValue::from_bytes(&report(with_answers));
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", HeaderValue::from_static("0"));
                        let report = HeaderValue::from_bytes(report.as_encoded_bytes()).expect("base64");
                        trailers.insert("endpoint-load-metrics-bin", report);
                        vec![Frame::data(framed(&answer.encode_to_vec())), Frame::trailers(trailers)]
                    };
                    let frames = tokio_stream::iter(frames.into_iter().map(Ok::<_, Infallible>));
                    // The stream of reports stays open.
                    let stays_open = is_stream && on_stream.is_ok();
                    let silence = tokio_stream::StreamExt::take(tokio_stream::pending(), usize::from(stays_open));
                    let body = StreamBody::new(tokio_stream::StreamExt::chain(frames, silence));
                    let response = http::Response::builder().header("content-type", "application/grpc").body(body);
                    async move { response }
                });
                let connection = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, streams }
    }

    fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

/// An encoded OrcaLoadReport with 100 requests per second, and a queue of two.
fn report(application_utilization: f64) -> Vec<u8> {
    let named_metrics = [("queue".to_owned(), 2.0)].into();
    let report =
        OrcaLoadReport { rps_fractional: 100.0, application_utilization, named_metrics, ..OrcaLoadReport::default() };
    report.encode_to_vec()
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

/// A channel that balances between two reporters by load.
async fn weighted(one: &Reporter, other: &Reporter, oob: bool) -> (Server, Client) {
    let server = control_plane(weighing(one, other, oob)).await;
    let client = client(&[&server]);
    (server, client)
}

/// A service with two reporters.
pub(crate) fn weighing(one: &Reporter, other: &Reporter, oob: bool) -> Snapshot {
    let policy = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(BoolValue { value: oob }),
        blackout_period: Some(PbDuration::default()),
        weight_update_period: Some(PbDuration { seconds: 0, nanos: 100_000_000 }),
        ..Default::default()
    };
    let cluster = Cluster { load_balancing_policy: Some(policies(policy)), ..resources::eds_cluster("service") };
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(cluster)
        .endpoints(resources::endpoints("service", [one.address, other.address]))
        .build()
}

fn policies<M: Message + Name>(config: M) -> LoadBalancingPolicy {
    let typed_config = Any { type_url: M::type_url(), value: config.encode_to_vec() };
    let config = TypedExtensionConfig { name: String::new(), typed_config: Some(typed_config) };
    LoadBalancingPolicy { policies: vec![Policy { typed_extension_config: Some(config) }] }
}

/// Calls until `wanted` gets four of five.
async fn until_share(client: &mut Client, wanted: &str) {
    let shared = async {
        while spread(client, 50).await.get(wanted).is_none_or(|count| !(38..=42).contains(count)) {
            tokio::task::yield_now().await;
        }
    };
    in_time(shared).await;
}

/// Backends of a ring of the usual size, with requests hashed by the header `user`.
fn hashed(backends: &[&Backend]) -> Snapshot {
    let cluster = Cluster { lb_policy: LbPolicy::RingHash.into(), ..resources::eds_cluster("service") };
    let mut routes = resources::route("service", "service");
    if let Some(Action::Route(action)) = &mut routes.virtual_hosts[0].routes[0].action {
        let header = Header { header_name: "user".into(), ..Default::default() };
        action.hash_policy =
            vec![HashPolicy { policy_specifier: Some(PolicySpecifier::Header(header)), terminal: false }];
    }
    let mut snapshot = service_with(cluster, routes, backends);
    snapshot.insert(keyed_endpoints(backends));
    snapshot
}

/// Endpoints whose place on a ring follows from their ids and not from their ports (A76).
fn keyed_endpoints(backends: &[&Backend]) -> ClusterLoadAssignment {
    let mut endpoints = resources::endpoints("service", backends.iter().map(|backend| backend.addr()));
    for (endpoint, backend) in endpoints.endpoints[0].lb_endpoints.iter_mut().zip(backends) {
        let key = Value { kind: Some(Kind::StringValue(backend.id().to_owned())) };
        let fields = Struct { fields: [("hash_key".to_owned(), key)].into() };
        let filter_metadata = [("envoy.lb".to_owned(), fields)].into();
        endpoint.metadata = Some(Metadata { filter_metadata, ..Default::default() });
    }
    endpoints
}

fn service_with(cluster: Cluster, routes: RouteConfiguration, backends: &[&Backend]) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(routes)
        .cluster(cluster)
        .endpoints(resources::endpoints("service", backends.iter().map(|backend| backend.addr())))
        .build()
}

/// Who answers each of so many users.
async fn places(client: &Client, users: usize) -> BTreeMap<String, String> {
    let place = |user: String| {
        let mut client = client.clone();
        async move { (call_as(&mut client, &user).await.expect("an answer"), user) }
    };
    let mut places = BTreeMap::new();
    for n in (0..users).step_by(50) {
        let calls: JoinSet<_> = (n..users.min(n + 50)).map(|n| place(format!("user-{n}"))).collect();
        places.extend(calls.join_all().await.into_iter().map(|(id, user)| (user, id)));
    }
    places
}

/// One call with the header `user`; who answered it.
async fn call_as(client: &mut Client, user: &str) -> Result<String, Status> {
    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
    request.metadata_mut().insert("user", user.parse().expect("a value"));
    request.set_timeout(Duration::from_secs(10));
    client.unary_call(request).await.map(|response| response.into_inner().server_id)
}
