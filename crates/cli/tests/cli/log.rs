//! What the program logs on standard error.

use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_testservice::Backend;
use serde_json::{Value, json};

use crate::program::{Running, mainstay_with_env, text};

#[test]
fn with_log_json_every_line_of_the_log_is_an_object() {
    let output = load(&[], &["--log", "json"]);
    let lines: Vec<Value> = log(&output).map(|line| serde_json::from_str(line).expect(line)).collect();
    let unreachable = lines.iter().find(|line| line["level"] == "WARN").expect("the control plane is down");
    let message = unreachable["message"].as_str().unwrap();
    assert!(message.starts_with("xDS: 127.0.0.1:1 is unreachable, next attempt in "), "OP-29: {message}");
    assert_eq!(unreachable["target"], "xds:///greeter", "OP-29: stable fields");
}

#[test]
fn with_log_json_even_the_last_word_is_an_object() {
    let output = mainstay_with_env(&[], &["serve", "/no/such/directory", "--log", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> = text(&output.stderr).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let [last] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(last["level"], "ERROR");
    assert!(last["message"].as_str().unwrap().contains("/no/such/directory"), "{last}");
    assert!(last["timestamp"].is_string());
}

#[test]
fn a_log_of_text_has_colours_only_on_a_terminal() {
    let output = load(&[("RUST_LOG", "mainstay=warn")], &[]);
    let lines: Vec<&str> = log(&output).collect();
    assert!(lines.iter().any(|line| line.contains("is unreachable")), "{lines:?}");
    assert!(!text(&output.stderr).contains('\u{1b}'), "no terminal, no colours");
    let output = load(&[("RUST_LOG", "mainstay=warn"), ("CLICOLOR_FORCE", "1")], &[]);
    assert!(text(&output.stderr).contains('\u{1b}'), "unless somebody insists");
    let output = load(&[("RUST_LOG", "mainstay=warn"), ("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], &[]);
    let lines: Vec<&str> = log(&output).collect();
    assert!(!lines.iter().any(|line| line.contains('\u{1b}')), "or somebody does not want them: {lines:?}");
}

#[test]
fn unless_asked_only_errors_are_logged() {
    let output = load(&[], &[]);
    assert_eq!(log(&output).count(), 0, "{}", text(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_of_endpoints_and_servers_is_told_and_so_is_its_end() {
    let mut near = Backend::spawn("127.0.0.1:0", "near").await.unwrap();
    let far = Backend::spawn("127.0.0.1:0", "far").await.unwrap();
    let mut localities = vec![resources::locality("near", [near.addr()]), resources::locality("far", [far.addr()])];
    localities[1].priority = 1;
    let control_plane = ControlPlane::new();
    control_plane.set(
        Snapshot::builder()
            .listener(resources::listener("greeter", resources::rds("routes")))
            .route(resources::route("routes", "cluster"))
            .cluster(resources::eds_cluster("cluster"))
            .endpoints(resources::localities("cluster", localities)),
    );
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let bootstrap = bootstrap(&server.addr().to_string());
    let args = ["load", "xds:///greeter", "--qps", "50", "--wait-for-ready", "--json", "--log", "json"];
    let mut load = Running::start_with_bootstrap(&bootstrap, &args);
    while !load.line().contains("near") {}

    let endpoint = format!("endpoints: endpoint {} of cluster \"cluster\"", near.addr());
    near.stop().await;
    let level = next(&mut load, &format!("{endpoint} is "));
    assert_eq!(next(&mut load, "endpoints: cluster \"cluster\" uses priority 1 of 0 to 1, after 0"), "WARN");
    near.restart().await.unwrap();
    assert_eq!(next(&mut load, &format!("{endpoint} is connected again")), level, "OP-29: as loudly as it was lost");
    assert_eq!(next(&mut load, "endpoints: cluster \"cluster\" uses priority 0 of 0 to 1, after 1"), "WARN");

    server.stop().await;
    assert_eq!(next(&mut load, &format!("xDS: {} is unreachable, ", server.addr())), "WARN");
    server.start().unwrap();
    let back = format!("xDS: first response of {}, which was unreachable", server.addr());
    assert_eq!(next(&mut load, &back), "WARN", "OP-29: as loudly as it was lost");
    load.signal("TERM");
    assert_eq!(load.end().0, 0);
}

/// The level of the next line of the log that begins so.
fn next(load: &mut Running, begins: &str) -> String {
    loop {
        let line: Value = serde_json::from_str(&load.error_line()).expect("a line of the log");
        if line["message"].as_str().unwrap().starts_with(begins) {
            return line["level"].as_str().unwrap().to_owned();
        }
    }
}

fn bootstrap(server: &str) -> String {
    let server = json!({ "server_uri": server, "channel_creds": [{ "type": "insecure" }] });
    json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string()
}

fn load(environment: &[(&str, &str)], more: &[&str]) -> std::process::Output {
    let bootstrap = bootstrap("127.0.0.1:1");
    let args = ["load", "xds:///greeter", "--duration", "300ms", "--rpc-timeout", "100ms", "--json"];
    let environment = [&[("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap.as_str())], environment].concat();
    mainstay_with_env(&environment, &[&args, more].concat())
}

/// The lines of the log: the summary of `load` goes there, too.
fn log(output: &std::process::Output) -> impl Iterator<Item = &str> {
    text(&output.stderr).lines().filter(|line| line.starts_with('{') || line.contains("mainstay::logs"))
}
