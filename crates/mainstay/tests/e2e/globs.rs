//! Glob collections of endpoints over real sockets (GC): members come and go one by one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mainstay::ResourceType;
use mainstay::bootstrap::{Bootstrap, Delta, Node, ServerConfig, ServerFeatures};
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{
    ControlPlane, RequestKind, Resource, Server, Snapshot, TypeUrl, load_directory, resources,
};
use prost::Message;
use tempfile::TempDir;

use crate::common::{Client, backends, call, control_plane, in_time, spread, status_of, until_answered_by};

#[tokio::test]
async fn a_directory_serves_a_glob_and_each_change_is_one_member_gc10() {
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
    write("service.yaml", service(&[GLOB]).to_yaml().unwrap());
    write("1.yaml", file("1", one.addr()));
    write("2.yaml", file("2", two.addr()));
    let control_plane = ControlPlane::new();
    let reload = reload(&control_plane, directory.path());
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let channel = builder("globs", &[&server], Delta::Required).build().unwrap();
    let mut client = Client::new(channel.clone());
    let counts = spread(&mut client, 20).await;
    assert_eq!((counts["one"], counts["two"]), (10, 10), "both members, from the first call on (GC-5)");

    // One more: one resource travels, of about 100 bytes.
    let mut seen = server.events();
    write("3.yaml", file("3", three.addr()));
    reload();
    until_answered_by(&mut client, "three").await;
    let response = in_time(seen.wait_for(|event| event.as_response().cloned())).await.unwrap();
    assert_eq!((response.type_url, response.names), (TypeUrl::ENDPOINT, vec![member("3")]));
    assert_eq!(in_time(seen.answer(TypeUrl::ENDPOINT)).await.unwrap().kind, RequestKind::Ack);

    // One is gone. No call fails.
    let mut seen = server.events();
    std::fs::remove_file(directory.path().join("1.yaml")).unwrap();
    reload();
    let response = in_time(seen.wait_for(|event| event.as_response().cloned())).await.unwrap();
    assert_eq!((response.names.len(), response.removed), (0, vec![member("1")]));
    in_time(async {
        while one.open_connections() > 0 {
            call(&mut client).await.unwrap();
        }
    })
    .await;
    assert!(!spread(&mut client, 20).await.contains_key("one"));

    // CSDS and the view say what it is.
    let status = status_of("globs").await;
    let globs: Vec<_> =
        status[0].generic_xds_configs.iter().filter(|c| c.type_url.ends_with("v3.LbEndpoint")).collect();
    assert_eq!((globs.len(), globs[0].name.as_str(), globs[0].client_status), (1, GLOB, 3), "ACKED");
    let view = channel.config().await.unwrap();
    let glob = view.resources.iter().find(|status| status.resource.resource_type == ResourceType::EndpointGlob);
    assert_eq!(glob.unwrap().resource.name, GLOB);
}

#[tokio::test]
async fn a_first_set_in_many_responses_gets_traffic_when_it_is_complete_gc5() {
    // The server cuts its responses: names and members are long.
    let [one] = backends(["one"]).await;
    let members = (0..4_000).map(|n| {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let endpoint = if n == 3_999 { resources::endpoint(one.addr()) } else { unhealthy(address) };
        Resource::new(TypeUrl::ENDPOINT, member(&format!("{n:0300}")), endpoint.encode_to_vec())
    });
    let server = control_plane(members.fold(service(&[GLOB]), |mut snapshot, member| {
        snapshot.insert(member);
        snapshot
    }))
    .await;
    let mut seen = server.events();
    let mut client = start(&[&server], Delta::Required);
    assert_eq!(call(&mut client).await.unwrap(), "one");
    let mut responses = 0;
    while let Some(Some(event)) = futures_util::FutureExt::now_or_never(seen.next()) {
        responses += usize::from(event.as_response().is_some_and(|response| response.type_url == TypeUrl::ENDPOINT));
    }
    assert!(responses > 1, "{responses} responses (DX-27)");
}

#[tokio::test]
async fn a_list_collection_is_a_resource_like_any_other_over_delta_gc1() {
    let [one, two] = backends(["one", "two"]).await;
    let list = |address: SocketAddr| {
        let list = resources::endpoint_collection([address]).encode_to_vec();
        Resource::new(TypeUrl::ENDPOINT_COLLECTION, LIST, list)
    };
    let mut snapshot = service(&[LIST]);
    snapshot.insert(list(one.addr()));
    let server = control_plane(snapshot).await;
    let mut client = start(&[&server], Delta::Required);
    assert_eq!(call(&mut client).await.unwrap(), "one");
    let mut seen = server.events();
    server.control_plane().update(|snapshot| snapshot.insert(list(two.addr())));
    until_answered_by(&mut client, "two").await;
    let response = in_time(seen.wait_for(|event| event.as_response().cloned())).await.unwrap();
    assert_eq!((response.type_url, response.names), (TypeUrl::ENDPOINT_COLLECTION, vec![LIST.to_owned()]));
    // Removed, it stays in use as everything does (A88).
    let mut seen = server.events();
    server.control_plane().update(|snapshot| assert!(snapshot.remove(&TypeUrl::ENDPOINT_COLLECTION, LIST)));
    let response = in_time(seen.wait_for(|event| event.as_response().cloned())).await.unwrap();
    assert_eq!(response.removed, [LIST]);
    assert_eq!(in_time(seen.answer(TypeUrl::ENDPOINT_COLLECTION)).await.unwrap().kind, RequestKind::Ack);
    assert_eq!(spread(&mut client, 20).await["two"], 20);
}

#[tokio::test]
async fn without_delta_the_cluster_says_what_it_needs_gc2() {
    let [one] = backends(["one"]).await;
    let mut snapshot = service(&[GLOB]);
    snapshot.insert(Resource::new(TypeUrl::ENDPOINT, member("1"), resources::endpoint(one.addr()).encode_to_vec()));
    let server = control_plane(snapshot).await;
    // A server that is said to speak state of the world: the endpoints are rejected.
    let mut seen = server.events();
    let mut client = start(&[&server], Delta::Off);
    let status = in_time(call(&mut client)).await.unwrap_err();
    assert!(status.message().contains("is a glob collection, which needs delta"), "{status:?}");
    assert_eq!(in_time(seen.answer(TypeUrl::ENDPOINTS)).await.unwrap().kind, RequestKind::Nack);
    // One that turns out to.
    server.faults().refuse_delta(true);
    let mut client = start(&[&server], Delta::Preferred);
    let status = in_time(call(&mut client)).await.unwrap_err();
    assert!(status.message().contains("is a glob collection, which needs delta"), "{status:?}");
}

// === What the tests need ===

const GLOB: &str = "xdstp://globs.test/envoy.config.endpoint.v3.LbEndpoint/service/*";

const LIST: &str = "list";

fn member(id: &str) -> String {
    GLOB.replace('*', id)
}

/// The chain for `xds:///service`, with endpoints in these collections.
fn service(collections: &[&str]) -> Snapshot {
    let localities = collections.iter().enumerate();
    let localities = localities.map(|(n, name)| resources::leds_locality(format!("z{n}"), *name));
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::localities("service", localities))
        .build()
}

/// A file with one member.
fn file(id: &str, address: SocketAddr) -> String {
    let endpoint = resources::endpoint(address).encode_to_vec();
    let member = Resource::new(TypeUrl::ENDPOINT, member(id), endpoint);
    Snapshot::builder().resource(member).build().to_yaml().unwrap()
}

fn unhealthy(address: SocketAddr) -> envoy_types::pb::envoy::config::endpoint::v3::LbEndpoint {
    let unhealthy = envoy_types::pb::envoy::config::core::v3::HealthStatus::Unhealthy as i32;
    envoy_types::pb::envoy::config::endpoint::v3::LbEndpoint {
        health_status: unhealthy,
        ..resources::endpoint(address)
    }
}

/// Serves what is in the directory now, each time it is called.
fn reload(control_plane: &ControlPlane, directory: &Path) -> impl Fn() + use<> {
    let (control_plane, directory) = (control_plane.clone(), directory.to_owned());
    let reload = move || control_plane.replace(load_directory(&directory).unwrap());
    reload();
    reload
}

fn start(servers: &[&Server], delta: Delta) -> Client {
    Client::new(builder("glob", servers, delta).build().unwrap())
}

fn builder(node: &str, servers: &[&Server], delta: Delta) -> ChannelBuilder {
    let mut features = ServerFeatures::default();
    features.delta = delta;
    let config = |server: &&Server| ServerConfig::insecure(server.addr().to_string()).with_features(features);
    let bootstrap = Bootstrap::builder().node(Node::new(node)).authority("globs.test", Default::default());
    let bootstrap = servers.iter().map(config).fold(bootstrap, |bootstrap, server| bootstrap.server(server));
    Channel::builder("xds:///service")
        .bootstrap(bootstrap.build().unwrap())
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .reconnect_spread(Duration::ZERO)
}
