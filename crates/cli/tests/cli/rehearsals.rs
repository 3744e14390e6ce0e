//! Rehearsals beside real runs: the same setup, the same outage, over sockets and with short timers. What the rehearsal says of each
//! call before, at the end of and after an outage is what a channel shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use http::uri::PathAndQuery;
use mainstay::bootstrap::Bootstrap;
use mainstay::event::Event;
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{ControlPlane, Server, load_directory};
use mainstay_testservice::{Backend, proto::Empty};
use serde_json::{Value, json};
use tonic::Code;

use crate::program::{mainstay, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server() {
    let one = backend().await;
    rehearse(1, false, service(routes(&["b"]), &[cluster("b"), endpoints("b", &[&one])])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers() {
    let one = backend().await;
    rehearse(2, false, service(routes(&["b"]), &[cluster("b"), endpoints("b", &[&one])])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weighted_clusters() {
    let (one, two) = (backend().await, backend().await);
    let more = [cluster("b"), endpoints("b", &[&one]), cluster("c"), endpoints("c", &[&two])];
    rehearse(2, false, service(routes(&["b", "c"]), &more)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_the_weighted_clusters_is_missing() {
    let one = backend().await;
    rehearse(1, false, service(routes(&["b", "nowhere"]), &[cluster("b"), endpoints("b", &[&one])])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_on_purpose() {
    let one = backend().await;
    let mut resources = service(routes(&["b"]), &[cluster("b"), endpoints("b", &[&one])]);
    let fault = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
        "abort": {"grpc_status": 7, "percentage": {"numerator": 50}},
    });
    let filters = &mut resources[0]["api_listener"]["api_listener"]["http_filters"];
    filters.as_array_mut().unwrap().insert(0, json!({"name": "fault", "typed_config": fault}));
    rehearse(1, false, resources).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_by_header_and_path() {
    let (one, two) = (backend().await, backend().await);
    let to = |cluster: &str| json!({"cluster": cluster});
    let routes = json!([
        {"match": {"prefix": "/", "headers": [{"name": "x-canary", "exact_match": "yes"}]}, "route": to("c")},
        {"match": {"safe_regex": {"regex": "/shop\\.[A-Z][a-z]+/Buy"}}, "route": to("nowhere")},
        {"match": {"prefix": "/grpc.testing."}, "route": to("b")},
    ]);
    let more = [cluster("b"), endpoints("b", &[&one]), cluster("c"), endpoints("c", &[&two])];
    let told = rehearse(2, false, service(routes, &more)).await;
    let paths: BTreeSet<_> = told["calls"].as_array().unwrap().iter().map(|call| call["path"].to_string()).collect();
    assert_eq!(paths.len(), 3, "a call for each route: {paths:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregate_cluster() {
    let (one, two) = (backend().await, backend().await);
    let aggregate = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "all",
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
            "clusters": ["b", "c"],
        }},
    });
    let more = [aggregate, cluster("b"), endpoints("b", &[&one]), cluster("c"), endpoints("c", &[&two])];
    rehearse(2, false, service(routes(&["all"]), &more)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_clients_reject() {
    let (one, two) = (backend().await, backend().await);
    let mut bad = endpoints("c", &[&two]);
    bad["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] = json!(99_999);
    let to = |cluster: &str| json!({"cluster": cluster});
    let routes = json!([
        {"match": {"prefix": "/bad."}, "route": to("c")},
        {"match": {"prefix": ""}, "route": to("b")},
    ]);
    rehearse(1, false, service(routes, &[cluster("b"), endpoints("b", &[&one]), cluster("c"), bad])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_healthy_endpoint() {
    let (one, two) = (backend().await, backend().await);
    let mut ill = endpoints("c", &[&two]);
    ill["endpoints"][0]["lb_endpoints"][0]["health_status"] = json!("UNHEALTHY");
    rehearse(2, false, service(routes(&["b", "c"]), &[cluster("b"), endpoints("b", &[&one]), cluster("c"), ill])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_in_dns() {
    let one = backend().await;
    let port = one.addr().port();
    let dns = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "b",
        "type": "LOGICAL_DNS",
        "load_assignment": {"cluster_name": "b", "endpoints": [{"lb_endpoints": [
            {"endpoint": {"address": {"socket_address": {"address": "localhost", "port_value": port}}}},
        ]}]},
    });
    rehearse(1, false, service(routes(&["b"]), &[dns])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_good_files() {
    let one = backend().await;
    rehearse(1, true, service(routes(&["b"]), &[cluster("b"), endpoints("b", &[&one])])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_good_files_beside_a_missing_cluster() {
    let one = backend().await;
    rehearse(2, true, service(routes(&["b", "nowhere"]), &[cluster("b"), endpoints("b", &[&one])])).await;
}

// === One setup, rehearsed and real ===

/// Rehearses a setup with so many servers, and lets each outage happen.
async fn rehearse(count: usize, last_good: bool, resources: Vec<Value>) -> Value {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config");
    std::fs::create_dir(&config).unwrap();
    std::fs::write(config.join("config.json"), json!({"resources": resources}).to_string()).unwrap();
    let mut servers = Vec::new();
    for _ in 0..count {
        let plane = ControlPlane::new();
        plane.replace(load_directory(&config).unwrap());
        servers.push(plane.serve("127.0.0.1:0").await.unwrap());
    }
    let insecure = json!([{"type": "insecure"}]);
    let uris = servers.iter().map(|server| json!({"server_uri": server.addr().to_string(), "channel_creds": insecure}));
    let mut bootstrap = json!({"xds_servers": uris.collect::<Vec<_>>(), "node": {"id": "rehearsal"}});
    if last_good {
        bootstrap["last_good"] = json!({"directory": home.path().join("last-good")});
    }
    let file = home.path().join("bootstrap.json");
    std::fs::write(&file, bootstrap.to_string()).unwrap();
    let told = told(&file, &config);
    let bootstrap = bootstrap.to_string();
    if last_good {
        write_last_good(&bootstrap).await;
    }
    let outages = told["outages"].as_array().unwrap();
    assert_eq!(outages.len(), 1 + 6 * if count > 1 { count + 1 } else { 1 }, "{told}");
    for outage in &outages[1..] {
        let (kind, who) = outage["id"].as_str().unwrap().split_once('@').unwrap();
        // Of the second server alone little is to be seen that the first one does not show.
        let is_first = servers[0].addr().to_string() == who;
        if is_first || who == "all" {
            let hit: Vec<_> = servers.iter().take(if is_first { 1 } else { count }).collect();
            Run { told: &told, outage, kind, hit, bootstrap: &bootstrap }.happen().await;
        }
    }
    told
}

fn told(bootstrap: &Path, config: &Path) -> Value {
    let (bootstrap, config) = (bootstrap.to_str().unwrap(), config.to_str().unwrap());
    let output = mainstay(&["sim", "--bootstrap", bootstrap, "--resources", config, "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("must hold"), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// An earlier run, which leaves its files.
async fn write_last_good(bootstrap: &str) {
    let channel = builder(bootstrap).build().unwrap();
    let mut events = channel.events();
    let written = async {
        // The channel does nothing before somebody needs it.
        _ = call(&channel, "/grpc.testing.TestService/EmptyCall", &Value::Null).await;
        while !matches!(events.next().await, Some(Event::LastGoodWritten { .. })) {}
    };
    tokio::time::timeout(PATIENCE, written).await.expect("a file");
}

struct Run<'a> {
    told: &'a Value,
    outage: &'a Value,
    kind: &'a str,
    hit: Vec<&'a Server>,
    bootstrap: &'a str,
}

/// What becomes of calls of each request.
type Fates = BTreeMap<(String, String), BTreeSet<String>>;

impl Run<'_> {
    async fn happen(&self) {
        let [begin, end, last] = ["begins_ms", "ends_ms", "watched_ms"].map(|key| self.outage[key].as_u64().unwrap());
        let is_at_start = self.kind.ends_with("-at-start");
        if is_at_start {
            self.begin().await;
        }
        let channel = builder(self.bootstrap).build().unwrap();
        let mut safe = BTreeSet::new();
        if !is_at_start {
            self.until(&channel, "before", self.fates(begin - 1), &safe).await;
            safe = self.safe(begin, last);
            self.begin().await;
        }
        self.until(&channel, "during", self.fates(end - 1), &safe).await;
        for server in &self.hit {
            server.faults().heal();
            if !server.is_listening() {
                server.start().unwrap();
            }
        }
        self.until(&channel, "after", self.fates(last), &safe).await;
    }

    async fn begin(&self) {
        for server in &self.hit {
            match self.kind.split('-').next() {
                Some("down") => server.stop().await,
                Some("unreachable") => server.faults().black_hole(true),
                Some("silent") => server.faults().silent(true),
                other => panic!("{other:?}"),
            }
        }
    }

    /// What the rehearsal says of calls that begin at a time.
    fn fates(&self, at: u64) -> Fates {
        let mut fates = Fates::new();
        let calls = self.told["calls"].as_array().unwrap().iter();
        for (call, spans) in calls.zip(self.outage["fates"].as_array().unwrap()) {
            let spans = spans.as_array().unwrap().iter();
            let fate = spans.take_while(|span| span["at_ms"].as_u64().unwrap() <= at).last().unwrap();
            fates.entry(request(call)).or_default().insert(fate["fate"].as_str().unwrap().to_owned());
        }
        fates
    }

    /// Requests of which the rehearsal says that every call is sent, whatever happens.
    fn safe(&self, begin: u64, last: u64) -> BTreeSet<(String, String)> {
        let moments = (begin..last).step_by(250).map(|at| self.fates(at));
        let mut safe: BTreeSet<_> = self.fates(begin).into_keys().collect();
        for moment in moments {
            safe.retain(|request| moment[request].iter().all(|fate| fate == "sent" || fate == "on purpose"));
        }
        safe
    }

    /// Makes calls until what becomes of them is this, twice in a row. Those of safe requests may not fail at any time.
    async fn until(&self, channel: &Channel, when: &str, expected: Fates, safe: &BTreeSet<(String, String)>) {
        let started = tokio::time::Instant::now();
        let mut in_a_row = 0;
        loop {
            let mut seen = Fates::new();
            for call in self.told["calls"].as_array().unwrap() {
                let key = request(call);
                if seen.contains_key(&key) {
                    continue;
                }
                let calls = (0..12).map(|_| {
                    let (channel, path, headers) = (channel.clone(), key.0.clone(), call["headers"].clone());
                    tokio::spawn(async move { self::call(&channel, &path, &headers).await })
                });
                for call in calls.collect::<Vec<_>>() {
                    let fate = call.await.unwrap();
                    assert!(!(safe.contains(&key) && fate == "fail"), "{}, {when}: {key:?} failed", self.outage["id"]);
                    seen.entry(key.clone()).or_default().insert(fate.to_owned());
                }
            }
            in_a_row = if seen == expected { in_a_row + 1 } else { 0 };
            if in_a_row == 2 {
                return;
            }
            let id = &self.outage["id"];
            assert!(started.elapsed() < PATIENCE, "{id}, {when}: rehearsed {expected:?}, seen {seen:?}");
        }
    }
}

fn request(call: &Value) -> (String, String) {
    (call["path"].as_str().unwrap().to_owned(), call["headers"].to_string())
}

/// What becomes of one call.
async fn call(channel: &Channel, path: &str, headers: &Value) -> &'static str {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = tonic::Request::new(Empty::default());
    request.set_timeout(Duration::from_millis(400));
    for (name, value) in headers.as_object().into_iter().flatten() {
        let name: tonic::metadata::MetadataKey<_> = name.parse().unwrap();
        request.metadata_mut().insert(name, value.as_str().unwrap().parse().unwrap());
    }
    let codec = tonic_prost::ProstCodec::<Empty, Empty>::default();
    match client.unary(request, PathAndQuery::try_from(path).unwrap(), codec).await {
        Ok(_) => "sent",
        // The backend does not have the method, and said so.
        Err(status) if status.code() == Code::Unimplemented => "sent",
        Err(status) if status.code() == Code::PermissionDenied => "on purpose",
        Err(status) if status.code() == Code::DeadlineExceeded => "wait",
        Err(_) => "fail",
    }
}

/// A channel whose timers are a thirtieth of the usual ones.
fn builder(bootstrap: &str) -> ChannelBuilder {
    Channel::builder("xds:///service")
        .bootstrap(Bootstrap::from_json(bootstrap).unwrap())
        .backoff(Duration::from_millis(30), Duration::from_millis(200))
        .reconnect_spread(Duration::ZERO)
        .xds_connect_timeouts(Duration::from_millis(170), Duration::from_millis(670))
        .resource_timeout(Duration::from_millis(500))
}

/// What takes this long will never happen.
const PATIENCE: Duration = Duration::from_secs(60);

// === Resources ===

async fn backend() -> Backend {
    Backend::spawn("127.0.0.1:0", "one").await.unwrap()
}

fn service(routes: Value, more: &[Value]) -> Vec<Value> {
    let router = json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"});
    let listener = json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "service",
        "api_listener": {"api_listener": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "http_filters": [{"name": "router", "typed_config": router}],
            "route_config": {"name": "r", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        }},
    });
    [&[listener], more].concat()
}

/// One route to these clusters, with equal weights.
fn routes(clusters: &[&str]) -> Value {
    let action = match clusters {
        [only] => json!({"cluster": only}),
        many => {
            let weighted = many.iter().map(|name| json!({"name": name, "weight": 1}));
            json!({"weighted_clusters": {"clusters": weighted.collect::<Vec<_>>()}})
        }
    };
    json!([{"match": {"prefix": ""}, "route": action}])
}

fn cluster(name: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"self": {}}},
    })
}

fn endpoints(name: &str, backends: &[&Backend]) -> Value {
    let address =
        |backend: &&Backend| json!({"socket_address": {"address": "127.0.0.1", "port_value": backend.addr().port()}});
    let endpoints = backends.iter().map(|backend| json!({"endpoint": {"address": address(backend)}}));
    json!({
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": name,
        "endpoints": [{
            "locality": {"sub_zone": "a"},
            "load_balancing_weight": 1,
            "lb_endpoints": endpoints.collect::<Vec<_>>(),
        }],
    })
}
