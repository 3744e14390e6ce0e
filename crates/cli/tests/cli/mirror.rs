//! `mainstay serve --mirror-of` and `mainstay mirror`, as processes.

use std::fs;

use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use mainstay_testservice::Backend;
use serde_json::{Value, json};

use crate::program::{Running, mainstay, mainstay_with_bootstrap, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_serves_when_the_primary_is_gone_and_holds_back_a_mass_removal_until_it_is_accepted() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let address = backend.addr().to_string();
    let primary = serve(greeter(&[&address, "127.0.0.1:2", "127.0.0.1:3"])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("own");
    fs::create_dir(&directory).unwrap();
    let config = home.path().join("mirror.yaml");
    fs::write(&config, MIRROR).unwrap();
    assert_eq!(text(&mainstay(&["check", config.to_str().unwrap()]).stdout), "nothing found\n");
    let files = home.path().join("kept");
    let uri = primary.addr().to_string();
    let args = [
        "serve",
        directory.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--mirror-of",
        &uri,
        "--mirror-config",
        config.to_str().unwrap(),
        "--mirror-last-good",
        files.to_str().unwrap(),
        "--admin",
        "127.0.0.1:0",
    ];
    let mut mirror = Running::start(&args);
    let first = mirror.line();
    let served = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 0 resources").to_owned();
    let admin = mirror.line().strip_prefix("admin on ").unwrap().to_owned();
    assert_eq!(mirror.line(), format!("mirroring {uri} for nodes of greeters"));
    until(&mut mirror, "class greeters: 4 resources, the primary answers");

    // What removes two of three endpoints is held back, shown, and accepted by command.
    primary.control_plane().set(greeter(&[&address]));
    let held = "class greeters: 4 resources, an update is held back: 1 of 3 endpoints would be left in all; \
                1 of 3 endpoints of \"cluster\" would be left";
    until(&mut mirror, held);
    let shown = mainstay(&["mirror", "held", "--admin", &admin]);
    assert!(
        text(&shown.stdout).contains("\n    1 of 3 endpoints of \"cluster\" would be left\n"),
        "{}",
        text(&shown.stdout)
    );
    let shown = mainstay(&["mirror", "status", "--admin", &admin, "--json"]);
    let class: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(
        (&class["class"], &class["ready"], &class["held"]["refused"]),
        (&json!("greeters"), &json!(true), &json!(false))
    );
    assert_eq!(endpoints(&served), 3);
    assert_eq!(mainstay(&["mirror", "refuse", "greeters", "--admin", &admin]).status.code(), Some(0));
    until(&mut mirror, &held.replace("is held back", "was refused"));
    let accepted = mainstay(&["mirror", "accept", "greeters", "--admin", &admin]);
    assert_eq!(text(&accepted.stdout), "accepted for class greeters\n");
    until(&mut mirror, "class greeters: 4 resources, the primary answers");
    assert_eq!(endpoints(&served), 1);
    let again = mainstay(&["mirror", "accept", "greeters", "--admin", &admin]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).starts_with("error: nothing is held back for class \"greeters\""),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(text(&mainstay(&["mirror", "held", "--admin", &admin]).stdout), "nothing is held back\n");

    // The primary dies; a client that starts now finds its way, and one of no class is told why not.
    primary.stop().await;
    let load =
        ["load", "xds:///greeter", "--qps", "50", "--duration", "400ms", "--fail-on-failed-rpc", "--wait-for-ready"];
    let output = mainstay_with_bootstrap(&bootstrap(&[&uri, &served], "client-1"), &load);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let get = ["get", "xds:///greeter", "--timeout", "2s"];
    let output = mainstay_with_bootstrap(&bootstrap(&[&uri, &served], "stranger"), &get);
    assert_eq!(output.status.code(), Some(1));
    let reason = "node \"stranger\" of cluster \"\" is of none of the classes \"greeters\"";
    assert!(text(&output.stdout).contains(reason), "{}{}", text(&output.stdout), text(&output.stderr));

    // And so it is after a restart of the mirror, with the primary still gone.
    mirror.signal("TERM");
    assert_eq!(mirror.end().0, 0);
    let mut mirror = Running::start(&args);
    let first = mirror.line();
    let served = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 0 resources").to_owned();
    let output = mainstay_with_bootstrap(&bootstrap(&[&uri, &served], "client-2"), &load);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn a_mirror_yaml_that_cannot_be_meant_is_told_with_its_fields() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("mirror.yaml");
    fs::write(&config, "classes: [{ name: a, node: { id: m }, targets: ['greeter'] }]").unwrap();
    let path = config.to_str().unwrap();
    let checked = mainstay(&["check", path]);
    assert_eq!(checked.status.code(), Some(1));
    let wrong = "classes[0].match: expected one, or \"default: true\": no node is of this class";
    assert!(text(&checked.stdout).starts_with(&format!("{path}: {wrong}\n")), "{}", text(&checked.stdout));
    assert_eq!(text(&checked.stderr), "error: 2 errors\n");
    let served = mainstay(&["serve", "--mirror-of", "127.0.0.1:1", "--mirror-config", path, "--listen", "127.0.0.1:0"]);
    assert_eq!(served.status.code(), Some(1));
    assert!(text(&served.stderr).contains(&format!("\n  {wrong}\n")), "{}", text(&served.stderr));
    let alone = mainstay(&["serve", "--mirror-config", path]);
    assert_eq!(alone.status.code(), Some(2), "what should it mirror?");
    let nobody = mainstay(&["mirror", "held", "--admin", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).starts_with("error: cannot ask 127.0.0.1:1: "), "{}", text(&nobody.stderr));
}

const MIRROR: &str = r#"
classes:
  - name: greeters
    node: { id: mirror }
    match: { id: { prefix: "client-" } }
    targets: ["xds:///greeter"]
"#;

/// Reads lines until this one.
fn until(process: &mut Running, wanted: &str) {
    let mut seen = Vec::new();
    for _ in 0..20 {
        let line = process.line();
        if line == wanted {
            return;
        }
        seen.push(line);
    }
    panic!("never {wanted:?} but {seen:#?}");
}

/// How many endpoints a client of the mirror is told.
fn endpoints(server: &str) -> usize {
    let output = mainstay_with_bootstrap(&bootstrap(&[server], "client-9"), &["get", "xds:///greeter", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["clusters"]["cluster"]["endpoints"]["priorities"][0][0]["endpoints"].as_array().map_or(0, Vec::len)
}

fn bootstrap(servers: &[&str], node: &str) -> String {
    let server = |uri: &&str| json!({ "server_uri": uri, "channel_creds": [{ "type": "insecure" }] });
    let servers: Vec<_> = servers.iter().map(server).collect();
    json!({ "xds_servers": servers, "node": { "id": node } }).to_string()
}

async fn serve(snapshot: Snapshot) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.unwrap()
}

fn greeter(endpoints: &[&str]) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .cluster(resources::eds_cluster("cluster"))
        .endpoints(resources::endpoints("cluster", endpoints.iter().copied()))
        .build()
}
