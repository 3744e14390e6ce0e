//! Metrics of the XdsClient (A78, A88).

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use mainstay::bootstrap::{Bootstrap, Delta, Node, ServerConfig, ServerFeatures};
use mainstay_control_plane::TypeUrl;

use super::collect::Metrics;
use crate::common::{Client, backends, builder, call, control_plane, service};

#[tokio::test]
async fn metrics_of_the_xds_client_have_the_names_units_and_labels_of_a78() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().experimental_metrics().build();
    let channel = builder(&[&server]).telemetry(telemetry).build().unwrap();
    let mut client = Client::new(channel);
    call(&mut client).await.unwrap();

    let of_server = format!("grpc.target=xds:///service grpc.xds.server={}", server.addr());
    metrics.until("grpc.xds_client.connected", &[(&of_server, 1)]).await; // S-70, S-71
    assert_eq!(metrics.of("grpc.xds_client.connected").unwrap().unit, "{bool}");
    assert_eq!(metrics.of("grpc.xds_client.server_failure"), None, "S-73");

    let of_type = |kind: &str| {
        format!("grpc.target=xds:///service grpc.xds.resource_type={kind} grpc.xds.server={}", server.addr())
    };
    let kinds = [CLUSTER, ENDPOINTS, LISTENER, ROUTES].map(of_type);
    let valid: Vec<_> = kinds.iter().map(|labels| (labels.as_str(), 1)).collect();
    metrics.until("grpc.xds_client.resource_updates_valid", &valid).await;
    assert_eq!(metrics.of("grpc.xds_client.resource_updates_valid").unwrap().unit, "{resource}");
    assert_eq!(metrics.of("grpc.xds_client.resource_updates_invalid"), None, "S-74");

    let cached = |state: &str, kind: &str| {
        let target = "grpc.target=xds:///service grpc.xds.authority=#old";
        format!("{target} grpc.xds.cache_state={state} grpc.xds.resource_type={kind}")
    };
    let states = [CLUSTER, ENDPOINTS, LISTENER, ROUTES].map(|kind| cached("acked", kind));
    let acked: Vec<_> = states.iter().map(|labels| (labels.as_str(), 1)).collect();
    metrics.until("grpc.xds_client.resources", &acked).await;
    assert_eq!(metrics.of("grpc.xds_client.resources").unwrap().unit, "{resource}");

    // A bad version: the old one stays in use.
    let mut bad = service(&[&one]);
    bad.insert(Cluster { name: "service".into(), ..Cluster::default() });
    server.control_plane().set(bad);
    metrics.until("grpc.xds_client.resource_updates_invalid", &[(&kinds[0], 1)]).await;
    assert_eq!(metrics.of("grpc.xds_client.resource_updates_invalid").unwrap().unit, "{resource}");
    let states = [states[1].clone(), states[2].clone(), states[3].clone(), cached("nacked_but_cached", CLUSTER)];
    let nacked: Vec<_> = states.iter().map(|labels| (labels.as_str(), 1)).collect();
    metrics.until("grpc.xds_client.resources", &nacked).await;

    // A server that dies: the stream had answers, so only the next attempt fails. However often it does, it counts once.
    server.stop().await;
    metrics.until("grpc.xds_client.connected", &[(&of_server, 0)]).await;
    metrics.until("grpc.xds_client.server_failure", &[(&of_server, 1)]).await;
    assert_eq!(metrics.of("grpc.xds_client.server_failure").unwrap().unit, "{failure}");
    server.start().unwrap();
    metrics.until("grpc.xds_client.connected", &[(&of_server, 1)]).await;
    assert_eq!(metrics.numbers("grpc.xds_client.server_failure"), [(of_server, 1)], "S-73");

    // A channel that is gone is not shown.
    drop(client);
    metrics.until("grpc.xds_client.connected", &[]).await;
    metrics.until("grpc.xds_client.resources", &[]).await;
}

#[tokio::test]
async fn experimental_metrics_are_off_unless_named() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().metric("grpc.xds_client.connected", true).metric("no.such.metric", true);
    let telemetry = telemetry.metric("grpc.client.attempt.started", false).build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    call(&mut client).await.unwrap();
    let of_server = format!("grpc.target=xds:///service grpc.xds.server={}", server.addr());
    metrics.until("grpc.xds_client.connected", &[(&of_server, 1)]).await;
    let experimental: Vec<_> = metrics.names().into_iter().filter(|name| !name.starts_with("grpc.client.")).collect();
    assert_eq!(experimental, ["grpc.xds_client.connected"], "S-79");
}

#[tokio::test]
async fn a_missing_resource_is_requested_and_then_does_not_exist() {
    let mut snapshot = service(&[]);
    assert!(snapshot.remove(&TypeUrl::ENDPOINTS, "service"));
    let server = control_plane(snapshot).await;
    server.faults().hide_absence(true);
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().metric("grpc.xds_client.resources", true).build();
    let timeout = std::time::Duration::from_millis(300);
    let channel = builder(&[&server]).resource_timeout(timeout).telemetry(telemetry).build().unwrap();
    let of = |state: &str, kind: &str| {
        let target = "grpc.target=xds:///service grpc.xds.authority=#old";
        format!("{target} grpc.xds.cache_state={state} grpc.xds.resource_type={kind}")
    };
    let acked = [CLUSTER, LISTENER, ROUTES].map(|kind| of("acked", kind));
    for state in ["requested", "does_not_exist"] {
        let mut expected: Vec<_> = acked.iter().map(|labels| (labels.as_str(), 1)).collect();
        let missing = of(state, ENDPOINTS);
        expected.push((&missing, 1));
        metrics.until("grpc.xds_client.resources", &expected).await;
    }
    drop(channel);
}

#[tokio::test]
async fn a_gauge_says_which_variant_of_ads_a_server_is_spoken_to_in() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    for (mode, refuses, is_delta) in [(Delta::Off, false, 0), (Delta::Required, false, 1), (Delta::Preferred, true, 0)]
    {
        server.faults().refuse_delta(refuses);
        let metrics = Metrics::new();
        let telemetry = metrics.telemetry().metric("mainstay.xds_client.delta", true).build();
        let mut features = ServerFeatures::default();
        features.delta = mode;
        let config = ServerConfig::insecure(server.addr().to_string()).with_features(features);
        let bootstrap = Bootstrap::builder().node(Node::new("gauge")).server(config).build().unwrap();
        let channel = builder(&[&server]).bootstrap(bootstrap).telemetry(telemetry).build().unwrap();
        call(&mut Client::new(channel.clone())).await.unwrap();
        let of_server = format!("grpc.target=xds:///service grpc.xds.server={}", server.addr());
        metrics.until("mainstay.xds_client.delta", &[(&of_server, is_delta)]).await;
    }
}

const LISTENER: &str = "envoy.config.listener.v3.Listener";
const ROUTES: &str = "envoy.config.route.v3.RouteConfiguration";
const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const ENDPOINTS: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";
