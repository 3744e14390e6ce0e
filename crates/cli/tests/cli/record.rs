//! `mainstay record`, and what `serve` makes of it (FB-20).

use std::{fs, time::Duration};

use mainstay::{Channel, bootstrap::Bootstrap};
use mainstay_control_plane::{Body, ControlPlane, Resource, Server, Snapshot, TypeUrl, resources};
use prost::Message as _;
use serde_json::json;

use crate::program::{Running, mainstay, text};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_is_served_with_the_same_names_and_bytes() {
    let mut snapshot = greeter("10.0.0.1:80");
    // A field that nobody here knows: other control planes are newer than we are.
    let mut cluster = resources::eds_cluster("cluster").encode_to_vec();
    cluster.extend([0xfa, 0xff, 0x0f, 0x01, b'x']);
    snapshot.insert(Resource::new(TypeUrl::CLUSTER, "cluster", cluster));
    snapshot.insert(resources::eds_cluster("nobody asks for it"));
    let server = serve(snapshot).await;
    let home = tempfile::tempdir().unwrap();
    let boot = home.path().join("bootstrap.json");
    fs::write(&boot, bootstrap(&server.addr().to_string())).unwrap();
    let directory = home.path().join("recorded");
    let directory = directory.to_str().unwrap();
    let args = ["record", "--bootstrap", boot.to_str().unwrap(), "--target", "xds:///greeter", "-o", directory];
    let output = mainstay(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("recorded 4 resources in {directory}/recorded.yaml\n"));
    let names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["recorded.yaml"], "nothing else is left behind");

    let before = held(&server.addr().to_string()).await;
    server.stop().await;
    let mut replay = Running::start(&["serve", directory, "--listen", "127.0.0.1:0"]);
    let first = replay.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 4 resources");
    let after = held(address).await;
    assert_eq!(before.len(), 4);
    assert_eq!(after, before, "a client holds the same bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_complete_configurations_and_writes_no_halves() {
    let server = serve(greeter("10.0.0.1:80")).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("recorded");
    let args = ["record", "--target", "xds:///greeter", "-o", directory.to_str().unwrap(), "--follow"];
    let mut record = Running::start_with_bootstrap(&bootstrap(&server.addr().to_string()), &args);
    assert!(record.line().starts_with("recorded 4 resources in "));
    // Half an update: routes to a cluster that does not come. Then the rest of it.
    server.faults().hold(TypeUrl::CLUSTER);
    let mut events = server.events();
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::route("routes", "next"));
        snapshot.insert(resources::eds_cluster("next"));
        snapshot.insert(resources::endpoints("next", ["10.0.0.2:80"]));
    });
    events.request(TypeUrl::CLUSTER).await.unwrap();
    let recorded = || Snapshot::from_yaml(&fs::read_to_string(directory.join("recorded.yaml")).unwrap()).unwrap();
    assert!(recorded().contains(&TypeUrl::ENDPOINTS, "cluster"), "the last whole one");
    server.faults().heal();
    assert!(record.line().starts_with("recorded 4 resources in "));
    let now = recorded();
    assert!(now.contains(&TypeUrl::ENDPOINTS, "next") && !now.contains(&TypeUrl::CLUSTER, "cluster"));
    record.signal("TERM");
    assert_eq!(record.end().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_complete_in_time_is_not_written() {
    let server = serve(greeter("10.0.0.1:80")).await;
    server.faults().hold(TypeUrl::ENDPOINTS);
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("recorded");
    let boot = home.path().join("bootstrap.json");
    fs::write(&boot, bootstrap(&server.addr().to_string())).unwrap();
    let output = mainstay(&[
        "record",
        "--bootstrap",
        boot.to_str().unwrap(),
        "--target",
        "xds:///greeter",
        "-o",
        directory.to_str().unwrap(),
        "--timeout",
        "500ms",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("error: xds:///greeter: no complete configuration within 500ms"), "{stderr}");
    assert!(!directory.exists());
}

/// What a client of a server holds: names and bytes.
async fn held(address: &str) -> Vec<(String, Vec<u8>)> {
    let bootstrap = Bootstrap::from_json(&bootstrap(address)).unwrap();
    let channel = Channel::builder("xds:///greeter").bootstrap(bootstrap).without_endpoints().build().unwrap();
    let mut configs = channel.configs();
    let recording = async {
        loop {
            if let Some(recording) = configs.next().await.unwrap().recording {
                return recording;
            }
        }
    };
    let recording = tokio::time::timeout(Duration::from_secs(10), recording).await.unwrap();
    let held = recording.resources.into_iter();
    held.map(|recorded| (recorded.resource.to_string(), recorded.value.encoded.to_vec())).collect()
}

async fn serve(snapshot: Snapshot) -> Server {
    assert!(snapshot.resources().all(|resource| matches!(resource.body, Body::Message(_))));
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.unwrap()
}

fn bootstrap(address: &str) -> String {
    let server = json!({ "server_uri": address, "channel_creds": [{ "type": "insecure" }] });
    json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string()
}

fn greeter(endpoint: &str) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .cluster(resources::eds_cluster("cluster"))
        .endpoints(resources::endpoints("cluster", [endpoint]))
        .build()
}
