//! `mainstay last-good` and `--last-good`, as their users see them.

use std::{fs, path::Path};

use mainstay_control_plane::{ControlPlane, Server, Snapshot, load_directory, resources};
use serde_json::{Value, json};

use crate::program::{Running, mainstay, mainstay_with_bootstrap, text};

#[tokio::test(flavor = "multi_thread")]
async fn what_get_was_told_is_kept_shown_again_without_a_control_plane_and_turned_into_a_directory() {
    let server = serve("10.0.0.1:80").await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    let directory = directory.to_str().unwrap();
    let get =
        || mainstay_with_bootstrap(&bootstrap(&server), &["get", "xds:///greeter", "--json", "--last-good", directory]);
    let told = get();
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    server.stop().await;

    // A new process, and no control plane.
    let kept = get();
    assert_eq!(kept.status.code(), Some(0), "{}", text(&kept.stderr));
    let [told, kept] = [told, kept].map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap());
    assert_eq!(kept["status"], "complete");
    assert_eq!(kept["listener"]["server"], format!("last-good://{directory}"));
    assert_eq!(kept["listener"]["version"], told["listener"]["version"], "the version is the primary's");
    assert_eq!(
        kept["clusters"]["cluster"]["endpoints"][0][0]["endpoints"],
        told["clusters"]["cluster"]["endpoints"][0][0]["endpoints"]
    );

    // The file, as people and programs see it.
    let listed = mainstay(&["last-good", "ls", directory]);
    let listed = text(&listed.stdout).to_owned();
    assert!(listed.starts_with("xds:///greeter for node \"n1\": 4 resources, "), "{listed}");
    let listed = mainstay(&["last-good", "ls", "--json", directory]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(
        (&listed["key"], &listed["node"], &listed["resources"], &listed["previous"]),
        (&json!("xds:///greeter"), &json!("n1"), &json!(4), &json!(false))
    );
    let verified = mainstay(&["last-good", "verify", directory]);
    assert_eq!(verified.status.code(), Some(0));
    assert!(text(&verified.stdout).starts_with("good  xds:///greeter"), "{}", text(&verified.stdout));

    // FB-12: what is shown is what `serve` takes.
    let shown = mainstay(&["last-good", "show", directory]);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    let operators = home.path().join("operators");
    fs::create_dir(&operators).unwrap();
    fs::write(operators.join("greeter.yaml"), &shown.stdout).unwrap();
    assert_eq!(load_directory(&operators).unwrap().default.len(), 4);

    // And a file: server serves it.
    let insecure = json!([{ "type": "insecure" }]);
    let servers = json!([
        { "server_uri": server.addr().to_string(), "channel_creds": insecure },
        { "server_uri": format!("file://{}", operators.display()), "channel_creds": insecure },
    ]);
    let bootstrap = json!({ "xds_servers": servers, "node": { "id": "n1" } }).to_string();
    let output = mainstay_with_bootstrap(&bootstrap, &["get", "xds:///greeter", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let from_directory: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(from_directory["listener"]["server"], format!("file://{}", operators.display()));

    let removed = mainstay(&["last-good", "rm", directory, "--key", "xds:///another"]);
    assert_eq!((removed.status.code(), text(&removed.stdout)), (Some(0), ""));
    let removed = mainstay(&["last-good", "rm", directory]);
    assert!(text(&removed.stdout).starts_with("removed "), "{}", text(&removed.stdout));
    let listed = mainstay(&["last-good", "ls", directory]);
    assert_eq!(text(&listed.stdout), format!("no last-good files in {directory}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_used_is_named_with_the_reason_and_exit_code_1() {
    let server = serve("10.0.0.1:80").await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    let args = ["get", "xds:///greeter", "--last-good", directory.to_str().unwrap()];
    assert_eq!(mainstay_with_bootstrap(&bootstrap(&server), &args).status.code(), Some(0));
    server.stop().await;
    let file = only_file(&directory);
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    let verified = mainstay(&["last-good", "verify", directory.to_str().unwrap()]);
    assert_eq!(verified.status.code(), Some(1));
    let word = "it is damaged: the checksum does not match";
    assert_eq!(text(&verified.stdout), format!("bad   {}: {word}\n", file.display()));
    assert!(text(&verified.stderr).starts_with("error: 1 of 1 files cannot be used\n"), "{}", text(&verified.stderr));
    let shown = mainstay(&["last-good", "show", file.to_str().unwrap()]);
    assert_eq!(text(&shown.stderr), format!("error: {}: {word}\n", file.display()));
    // And who would start from it says so.
    let output = mainstay_with_bootstrap(&bootstrap(&server), &[&args[..], &["--timeout", "2s"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(word), "{}", text(&output.stdout));
    let none = mainstay(&["last-good", "ls", home.path().join("nowhere").to_str().unwrap()]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("nowhere: cannot be read"), "{}", text(&none.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn load_starts_from_files_while_all_is_down() {
    let backend = mainstay_testservice::Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let server = serve(&backend.addr().to_string()).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    let directory = directory.to_str().unwrap();
    let kept = mainstay_with_bootstrap(&bootstrap(&server), &["get", "xds:///greeter", "--last-good", directory]);
    assert_eq!(kept.status.code(), Some(0), "{}", text(&kept.stderr));
    server.stop().await;
    let load = ["load", "xds:///greeter", "--qps", "20", "--duration", "1s", "--fail-on-failed-rpc", "--json"];
    let output = mainstay_with_bootstrap(&bootstrap(&server), &[&load[..], &["--last-good", directory]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let first: Value = serde_json::from_str(text(&output.stdout).lines().next().unwrap()).unwrap();
    assert_eq!(first["server_id"], "one");
    eprintln!("first RPC of a new process from disk: {} ms", first["ms"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_serves_from_files_while_all_is_down() {
    let server = serve("10.0.0.1:80").await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("xds");
    let directory = directory.to_str().unwrap();
    let mut bootstrap: Value = serde_json::from_str(&bootstrap(&server)).unwrap();
    bootstrap["server_listener_resource_name_template"] = json!("listener/%s");
    let bootstrap = bootstrap.to_string();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::server_listener(format!("listener/{port}"), port, resources::server_route("r")));
    });
    // What a server at this address is told, without one.
    let address = port.to_string();
    let kept = mainstay_with_bootstrap(&bootstrap, &["get", "--server", &address, "--last-good", directory]);
    assert_eq!(kept.status.code(), Some(0), "{}", text(&kept.stderr));
    server.stop().await;
    let args = ["backend", "--xds", "--json", "--listen", &address, "--last-good", directory];
    let mut backend = Running::start_with_bootstrap(&bootstrap, &args);
    let state: Value = loop {
        let line: Value = serde_json::from_str(&backend.line()).unwrap();
        if line["state"] == "SERVING" {
            break line;
        }
    };
    assert_eq!(state["address"], address);
}

#[test]
fn wrong_flags_say_what_is_wrong() {
    let output = mainstay(&["last-good"]);
    assert_eq!(output.status.code(), Some(2));
    let output = mainstay(&["backend", "--last-good", "d"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--xds"), "{}", text(&output.stderr));
    let output = mainstay(&["load", "http://127.0.0.1:1", "--last-good", "d"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--last-good cannot be had for http://127.0.0.1:1"),
        "{}",
        text(&output.stderr)
    );
}

async fn serve(endpoint: &str) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(
        Snapshot::builder()
            .listener(resources::listener("greeter", resources::rds("routes")))
            .route(resources::route("routes", "cluster"))
            .cluster(resources::eds_cluster("cluster"))
            .endpoints(resources::endpoints("cluster", [endpoint])),
    );
    control_plane.serve("127.0.0.1:0").await.unwrap()
}

fn bootstrap(server: &Server) -> String {
    let server = json!({ "server_uri": server.addr().to_string(), "channel_creds": [{ "type": "insecure" }] });
    json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string()
}

fn only_file(directory: &Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(directory).unwrap();
    let file = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none());
    file
}
