//! The commands together: files, a control plane, a backend, and traffic through an xDS channel.

use std::fs;

use mainstay_control_plane::{Snapshot, resources};
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
    demo.signal("TERM");
    let (code, stdout, stderr) = demo.end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    let end: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&end["end"], &end["failed"]), (&true.into(), &0.into()));
}
