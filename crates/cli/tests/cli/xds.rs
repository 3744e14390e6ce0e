//! The commands together: files, a control plane, a backend, and traffic through an xDS channel.

use std::fs;

use envoy_types::pb::envoy::admin::v3::ClientResourceStatus;
use envoy_types::pb::envoy::service::status::v3::{
    ClientStatusRequest, client_status_discovery_service_client::ClientStatusDiscoveryServiceClient,
};
use mainstay_control_plane::{ControlPlane, Snapshot, TypeUrl, resources};
use mainstay_testservice::Backend;
use serde_json::{Value, json};

use crate::program::{Running, mainstay, mainstay_with_bootstrap, text};

#[tokio::test(flavor = "multi_thread")]
async fn load_finds_its_backends_through_serve() {
    let backends =
        [Backend::spawn("127.0.0.1:0", "one").await.unwrap(), Backend::spawn("127.0.0.1:0", "two").await.unwrap()];
    let snapshot = Snapshot::builder()
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .cluster(resources::eds_cluster("cluster"))
        .endpoints(resources::endpoints("cluster", backends.each_ref().map(Backend::addr)))
        .build();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("greeter.yaml"), snapshot.to_yaml().unwrap()).unwrap();
    let mut serve = Running::start(&["serve", directory.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 4 resources");

    let server = json!({ "server_uri": address, "channel_creds": [{ "type": "insecure" }] });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    let args = ["load", "xds:///greeter", "--qps", "50", "--duration", "400ms", "--wait-for-ready", "--json"];
    let output = mainstay_with_bootstrap(&bootstrap, &args);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 20);
    assert!(lines.iter().all(|line| line["ok"] == true && line["target"] == "xds:///greeter"), "{lines:?}");
    assert!(backends.iter().all(|backend| backend.requests() > 0), "both backends must be called");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_shows_what_its_channels_hold_through_admin() {
    let control_plane = ControlPlane::new();
    control_plane.set(Snapshot::builder().listener(resources::listener("greeter", resources::rds("routes"))));
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let mut events = server.events();
    let server = json!({ "server_uri": server.addr().to_string(), "channel_creds": [{ "type": "insecure" }] });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    let mut load =
        Running::start_with_bootstrap(&bootstrap, &["load", "xds:///greeter", "--admin", "127.0.0.1:0", "--json"]);
    let line = load.error_line();
    let address = line.strip_prefix("admin: CSDS on ").unwrap_or_else(|| panic!("{line}"));
    events.request(TypeUrl::ROUTE).await.unwrap();

    let mut csds = ClientStatusDiscoveryServiceClient::connect(format!("http://{address}")).await.unwrap();
    let config = csds.fetch_client_status(ClientStatusRequest::default()).await.unwrap().into_inner().config;
    assert_eq!(config.len(), 1);
    assert_eq!(config[0].client_scope, "xds:///greeter");
    let states: Vec<_> =
        config[0].generic_xds_configs.iter().map(|resource| (resource.name.as_str(), resource.client_status)).collect();
    assert_eq!(
        states,
        [("greeter", ClientResourceStatus::Acked as i32), ("routes", ClientResourceStatus::Requested as i32)]
    );
    load.signal("TERM");
    assert_eq!(load.end().0, 0);
}

#[test]
fn an_admin_address_that_is_none_is_a_usage_error() {
    let output = mainstay(&["load", "http://127.0.0.1:1", "--admin", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: --admin nowhere: "), "{}", text(&output.stderr));
}

#[test]
fn an_xds_target_without_a_bootstrap_is_exit_code_1_and_says_what_to_set() {
    let output = mainstay(&["load", "xds:///greeter"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: no xDS bootstrap: set GRPC_XDS_BOOTSTRAP to the path of a bootstrap file, \
         or GRPC_XDS_BOOTSTRAP_CONFIG to the JSON text itself\n"
    );
}

#[test]
fn the_demo_tells_its_first_scene_and_ends_on_a_signal() {
    let mut demo = Running::start(&["demo", "--json"]);
    let scene: Value = serde_json::from_str(&demo.line()).unwrap();
    assert_eq!((&scene["scene"], &scene["settled"], &scene["failed"]), (&1.into(), &true.into(), &0.into()));
    let backends = scene["backends"].as_object().unwrap();
    assert_eq!(backends.keys().collect::<Vec<_>>(), ["one", "three", "two"]);
    let connected = scene["events"][0].as_str().unwrap();
    assert!(
        connected.starts_with("connected to 127.0.0.1:") && connected.ends_with(" (primary), stream open"),
        "{connected}"
    );
    demo.signal("TERM");
    let (code, stdout, stderr) = demo.end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    let end: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&end["end"], &end["failed"]), (&true.into(), &0.into()));
}
