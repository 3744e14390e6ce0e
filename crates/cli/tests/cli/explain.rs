//! `mainstay explain` as its users see it: whole outputs for a shop with a bit of everything.

use std::{fs, path::PathBuf};

use mainstay_control_plane::{ControlPlane, load_directory};
use mainstay_testservice::Backend;
use serde_json::{Value, json};

use crate::program::{Running, mainstay, mainstay_with_bootstrap, text};

/// What is asked, and the exit code. Draws depend on the seed, so that each is always the same.
const CASES: [(&str, &[&str], i32); 21] = [
    ("plain", &["/shop.Cart/Add"], 0),
    ("in-the-fraction", &["/shop.Cart/Add", "--seed", "7"], 0),
    ("canary", &["/shop.Cart/Add", "-H", "x-canary:yes"], 0),
    ("stable-by-weight", &["/any.Service/Call", "-H", "x-canary:yes", "--seed", "12"], 0),
    ("other-header-value", &["/other.Service/Call", "-H", "x-canary:no"], 3),
    ("aggregate", &["/shop.Cart/Add", "-H", "x-beta:1"], 0),
    ("admin", &["/shop.Admin/Reset"], 0),
    ("delayed", &["/slow.Service/Call"], 0),
    ("aborted", &["/broken.Service/Call"], 3),
    ("missing-cluster", &["/lost.Service/Call"], 3),
    ("dropped", &["/dropped.Service/Call"], 3),
    ("no-endpoints", &["/empty.Service/Call"], 3),
    ("by-hash", &["/hashed.Service/Call", "-H", "user:anna"], 0),
    ("by-another-hash", &["/hashed.Service/Call", "-H", "user:berta"], 0),
    ("for-servers", &["/server.Service/Call"], 3),
    ("no-route", &["/unknown.Service/Call"], 3),
    ("hidden-header", &["/unknown.Service/Call", "-H", "x-canary-bin:yes"], 3),
    ("json", &["/shop.Cart/Add", "-H", "x-canary:yes", "--json"], 0),
    ("json-error", &["/lost.Service/Call", "--json"], 3),
    ("all", &["--all"], 0),
    ("all-json", &["--all", "--json"], 0),
];

/// `UPDATE=1` writes what is expected anew.
#[test]
fn every_step_of_a_decision_is_told() {
    for (name, args, code) in CASES {
        let resources = resources();
        let output =
            mainstay(&[&["explain", "xds:///shop", "--resources", resources.to_str().unwrap()], args].concat());
        let told = text(&output.stdout).replace(resources.to_str().unwrap(), "DIR");
        let told =
            format!("{}{}", without_ages(&told), text(&output.stderr).replace(resources.to_str().unwrap(), "DIR"));
        let file = data().join("golden").join(name).with_extension("txt");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &told).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(told, expected, "OP-2, OP-6: {name} {args:?}");
        assert_eq!(output.status.code(), Some(code), "{name} {args:?}");
    }
}

#[test]
fn the_json_has_what_scripts_ask_for() {
    let value = explain_json(&["/shop.Cart/Add", "-H", "x-canary:yes"]);
    assert_eq!(value["route"]["index"], 3);
    assert_eq!(value["route"]["passed"].as_array().map(Vec::len), Some(3));
    assert_eq!((&value["cluster"], &value["timeout_ms"]), (&json!("canary"), &json!(3000)));
    assert_eq!(value["endpoints"], json!(["10.0.8.1:80", "10.0.8.2:80"]));
    assert_eq!(
        value["filters"][0],
        json!({ "name": "fault", "type": "fault", "effect": "off", "override": "virtual host" })
    );
    assert!(value.get("error").is_none(), "{value}");
    let value = explain_json(&["/lost.Service/Call"]);
    assert!(value["error"].as_str().unwrap().contains("nowhere"), "{value}");
    assert_eq!(
        (&value["cluster"], &value["endpoints"], &value["code"]),
        (&json!("nowhere"), &json!([]), &json!("UNAVAILABLE"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_and_files_say_the_same() {
    // OP-1: the source does not matter, only what it says.
    let control_plane = ControlPlane::new();
    control_plane.set(load_directory(resources()).unwrap().default);
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    // Over the incremental variant a server says what it does not have, and nobody waits for the cluster that is missing.
    let server = json!({
        "server_uri": server.addr().to_string(),
        "channel_creds": [{ "type": "insecure" }],
        "server_features": ["mainstay_delta"],
    });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    for (name, args, code) in CASES.into_iter().filter(|(_, args, _)| !args.contains(&"--all")) {
        let args: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--json").collect();
        let live = mainstay_with_bootstrap(&bootstrap, &[&["explain", "xds:///shop", "--json"], &args[..]].concat());
        assert_eq!(live.status.code(), Some(code), "{name}: {}", text(&live.stderr));
        let (mut live, mut files) = (json_of(&live.stdout), explain_json(&args));
        for value in [&mut live, &mut files] {
            for key in ["listener", "cluster_resource", "error"] {
                value.as_object_mut().unwrap().remove(key);
            }
        }
        assert_eq!(live, files, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_process_is_explained_with_the_states_of_its_endpoints() {
    // OP-4: the first priority refuses, so the call goes to the second.
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let mut gone = Backend::spawn("127.0.0.1:0", "gone").await.unwrap();
    let dead = gone.addr();
    gone.stop().await;
    let endpoint = |address: std::net::SocketAddr| {
        json!({ "endpoint": { "address": { "socket_address": {
        "address": address.ip().to_string(), "port_value": address.port() } } } })
    };
    let assignment = json!({
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "stable-endpoints",
        "endpoints": [
            { "locality": { "region": "eu" }, "load_balancing_weight": 1, "lb_endpoints": [endpoint(dead)] },
            { "locality": { "region": "us" }, "load_balancing_weight": 1, "priority": 1, "lb_endpoints": [endpoint(backend.addr())] },
        ],
    });
    let control_plane = ControlPlane::new();
    let mut snapshot = load_directory(resources()).unwrap().default;
    let other = mainstay_control_plane::Snapshot::from_yaml(&json!({ "resources": [assignment] }).to_string()).unwrap();
    other.resources().for_each(|resource| snapshot.insert(resource));
    control_plane.set(snapshot);
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let server = json!({ "server_uri": server.addr().to_string(), "channel_creds": [{ "type": "insecure" }] });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    let args = ["load", "xds:///shop", "--admin", "127.0.0.1:0", "--json", "--wait-for-ready", "--qps", "20"];
    let mut load = Running::start_with_bootstrap(&bootstrap, &args);
    let line = load.error_line();
    let address = line.strip_prefix("admin: CSDS on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    load.line(); // A call has ended: the test service is not among the routes, but the configuration is there.
    // Only the clusters of routes are held; nothing of other processes is needed to explain.
    let output = mainstay(&["explain", "xds:///shop", "/shop.Cart/Add", "--at", &address, "--json"]);
    let value = json_of(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{value} {}", text(&output.stderr));
    assert_eq!(value["endpoints"], json!([backend.addr().to_string()]), "{value}");
    assert_eq!(value["priority"]["index"], 1, "{value}");
    let skipped = value["priority"]["skipped"][0].as_str().unwrap();
    assert!(skipped.starts_with("0: 0 of 1 endpoints ready (cannot connect: "), "{skipped}");
    load.signal("INT");
}

#[test]
fn wrong_flags_and_missing_things_are_told() {
    let resources = resources();
    let resources = resources.to_str().unwrap();
    for (args, code, expected) in [
        (&["xds:///shop", "shop.Cart"][..], 2, "expected a method such as /hello.Greeter/SayHello"),
        (&["shop", "/a.B/C"], 2, "expected an xDS name such as xds:///greeter"),
        (&["xds:///shop", "/a.B/C", "-H", "novalue"], 2, "expected a header such as x-canary:yes"),
        (&["xds:///shop", "/a.B/C"], 1, "there is no bootstrap"),
        (&["xds:///shop", "/a.B/C", "--resources", "nowhere"], 1, "cannot read nowhere"),
        (&["xds:///other", "/a.B/C", "--at", "127.0.0.1:1"], 1, "cannot connect to 127.0.0.1:1"),
    ] {
        let output = mainstay(&[&["explain"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
    let output = mainstay(&["explain", "xds:///shop", "--resources", resources]);
    assert_eq!(output.status.code(), Some(2), "a method or --all");
}

#[test]
fn a_misspelt_target_is_not_explained_by_another_one() {
    let resources = resources();
    let args = ["explain", "xds:///shp", "/shop.Cart/Add", "--json", "--resources", resources.to_str().unwrap()];
    let output = mainstay(&args);
    assert_eq!(output.status.code(), Some(1));
    let told = json_of(&output.stdout);
    let error = told["error"].as_str().unwrap();
    assert!(error.ends_with(" holds nothing for xds:///shp"), "scripts find it where they look: {told}");
    assert_eq!((&told["target"], &told["path"]), (&json!("xds:///shp"), &json!("/shop.Cart/Add")));
    assert!(text(&output.stderr).contains("it holds xds:///shop"), "{}", text(&output.stderr));
}

pub(crate) fn resources() -> PathBuf {
    data().join("resources")
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/explain")
}

fn explain_json(args: &[&str]) -> Value {
    let resources = resources();
    let args = [&["explain", "xds:///shop", "--resources", resources.to_str().unwrap(), "--json"], args].concat();
    json_of(&mainstay(&args).stdout)
}

fn json_of(output: &[u8]) -> Value {
    serde_json::from_str(text(output)).unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

/// Ages differ from run to run, though those of files are hardly any.
fn without_ages(told: &str) -> String {
    let mut told = told.to_owned();
    while let Some(at) = told.find("\"age_ms\":") {
        let end = at + 9 + told[at + 9..].find(|character: char| !character.is_ascii_digit()).unwrap();
        told.replace_range(at..end, "\"AGE\":0");
    }
    told
}

#[test]
fn the_way_of_a_call_through_a_server_is_explained() {
    // OP-5
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("server.yaml"),
        r#"
resources:
  - "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: listener/127.0.0.1:50051
    address: { socket_address: { address: 127.0.0.1, port_value: 50051 } }
    filter_chains:
      - name: inside
        filter_chain_match: { source_prefix_ranges: [{ address_prefix: 10.0.0.0, prefix_len: 8 }] }
        filters:
          - name: hcm
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              http_filters:
                - name: who
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
                    rules:
                      action: ALLOW
                      policies:
                        readers:
                          permissions: [{ url_path: { path: { prefix: /shop.Books/Get } } }]
                          principals: [{ any: true }]
                        writers:
                          permissions: [{ any: true }]
                          principals: [{ header: { name: x-role, exact_match: writer } }]
                - name: router
                  typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
              route_config:
                name: routes
                virtual_hosts:
                  - name: all
                    domains: ["*"]
                    routes:
                      - match: { path: /shop.Books/Close }
                        route: { cluster: elsewhere }
                      - match: { prefix: "" }
                        non_forwarding_action: {}
"#,
    )
    .unwrap();
    let resources = directory.path().to_str().unwrap();
    let explain = |peer: &str, more: &[&str]| {
        let call = ["explain", "--server", "127.0.0.1:50051", "--resources", resources, "--peer", peer];
        let output = mainstay(&[&call[..], more].concat());
        (output.status.code().unwrap(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let (code, told, _) = explain("10.1.2.3", &["/shop.Books/GetOne"]);
    assert_eq!(
        (code, told.as_str()),
        (
            0,
            "\
127.0.0.1:50051  listener listener/127.0.0.1:50051
filter chain  inside  plaintext
virtual host  \"all\" (domains \"*\")
route         #1  #0 no: path
rbac          who  lets it pass: policy \"readers\" matches
handed to the application
"
        )
    );
    let (code, told, _) = explain("10.1.2.3", &["/shop.Books/Sell"]);
    assert_eq!(code, 3);
    assert!(told.contains("who  refuses it: no policy matches\nrefused PERMISSION_DENIED: "), "{told}");
    let (code, told, _) = explain("10.1.2.3", &["/shop.Books/Sell", "-H", "x-role:writer", "--json"]);
    assert_eq!(code, 0);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["filters"], serde_json::json!([{"name": "who", "allowed": true, "policy": "writers"}]));
    let (code, told, _) = explain("10.1.2.3", &["/shop.Books/Close", "-H", "x-role:writer"]);
    assert_eq!(code, 3);
    assert!(told.contains("refused UNAVAILABLE: matching route has inappropriate action"), "{told}");
    let (code, told, _) = explain("192.168.0.1", &["/shop.Books/GetOne"]);
    assert_eq!(code, 3);
    assert!(told.contains("no filter chain is for connections from 192.168.0.1:0"), "{told}");
}
