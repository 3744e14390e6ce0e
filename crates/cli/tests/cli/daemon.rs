//! `mainstay serve` as a daemon, and a swarm of clients that falls upon it.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use envoy_types::pb::envoy::service::{
    discovery::v3::{DiscoveryRequest, aggregated_discovery_service_client::AggregatedDiscoveryServiceClient},
    status::v3::{
        ClientStatusRequest, ConfigStatus, client_status_discovery_service_client::ClientStatusDiscoveryServiceClient,
    },
};
use envoy_types::pb::{envoy::config::core::v3::Node, google::rpc::Status};
use mainstay_control_plane::{Snapshot, resources};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::program::{Running, mainstay, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_tells_probes_and_people_how_it_is_doing_op27() {
    let directory = greeter();
    let (serve, address, admin) = start(directory.path(), &[]);
    assert_eq!(http(&admin, "/healthz"), (200, "ok\n".to_owned()));
    let (code, ready) = http(&admin, "/readyz");
    let head = format!("{}: 4 resources, ", directory.path().display());
    assert!(code == 200 && ready.starts_with(&head), "{ready}");
    for port in [&address, &admin] {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{port}")).unwrap();
        let mut health = HealthClient::new(channel.connect().await.unwrap());
        let answer = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(answer.status, ServingStatus::Serving as i32, "{port}");
    }

    let (requests, mut responses) = talk(&address, "n1").await;
    let response = responses.message().await.unwrap().unwrap();
    let reject = DiscoveryRequest {
        type_url: CLUSTER.to_owned(),
        response_nonce: response.nonce.clone(),
        error_detail: Some(Status { code: 3, message: "I do not like it".to_owned(), ..Status::default() }),
        ..DiscoveryRequest::default()
    };
    requests.send(reject).await.unwrap();
    // The daemon has read it when it answers the next request.
    let listener = "type.googleapis.com/envoy.config.listener.v3.Listener".to_owned();
    requests.send(DiscoveryRequest { type_url: listener, ..DiscoveryRequest::default() }).await.unwrap();
    responses.message().await.unwrap().unwrap();

    let (_, metrics) = http(&admin, "/metrics");
    for line in [
        "mainstay_cp_streams 1",
        "mainstay_cp_stream_opens_total{result=\"accepted\"} 1",
        "mainstay_cp_responses_total{type=\"CDS\"} 1",
        "mainstay_cp_nacks_total{type=\"CDS\"} 1",
        "mainstay_cp_encodings_total 2",
        "mainstay_cp_first_response_seconds_count 1",
        "# TYPE mainstay_cp_first_response_seconds histogram",
        "# EOF",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    let age = format!("mainstay_cp_view_age_seconds{{class=\"{}\"}} ", directory.path().display());
    assert!(metrics.contains(&age) && metrics.contains("mainstay_cp_source_behind_seconds"), "{metrics}");
    assert!(!metrics.contains("n1"), "no label holds what clients choose");

    let shown = mainstay(&["status", "--control-plane", &admin]);
    assert_eq!(shown.status.code(), Some(0));
    let lines: Vec<&str> = text(&shown.stdout).lines().collect();
    let head = format!("{address} is ready: 1 stream, 1 accepted and 0 refused so far, 1 rejection");
    assert_eq!((lines[0], lines.len()), (head.as_str(), 4), "{lines:?}");
    assert!(lines[2].starts_with("NODE"), "{lines:?}");
    let version = &response.version_info[..8];
    assert!(lines[3].starts_with("n1 ") && lines[3].contains(&format!("CDS NACK {version}, has none")), "{lines:?}");
    assert!(lines[3].ends_with("I do not like it"), "{lines:?}");
    let shown = mainstay(&["status", "--control-plane", &admin, "--json"]);
    let page: Value = serde_json::from_str(text(&shown.stdout)).unwrap();
    assert_eq!(page["clients"][0]["types"]["CDS"]["reason"], "I do not like it");
    assert_eq!((&page["ready"], &page["sources"][0]["resources"]), (&json!(true), &json!(4)));

    let mut csds = ClientStatusDiscoveryServiceClient::connect(format!("http://{admin}")).await.unwrap();
    let config = csds.fetch_client_status(ClientStatusRequest::default()).await.unwrap().into_inner().config;
    assert_eq!(config[0].node.as_ref().unwrap().id, "n1");
    let of_clusters = config[0].generic_xds_configs.iter().find(|config| config.type_url == CLUSTER).unwrap();
    assert_eq!(of_clusters.config_status, ConfigStatus::Error as i32);

    serve.signal("TERM");
    let end = responses.message().await.unwrap_err();
    assert_eq!(end.code(), tonic::Code::Unavailable);
    assert!(end.metadata().get("grpc-retry-pushback-ms").is_some(), "{end:?}");
    assert_eq!(serve.end().0, 0);
}

#[test]
fn a_control_plane_that_cannot_be_asked_is_named() {
    let output = mainstay(&["status", "--control-plane", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: cannot ask the control plane at 127.0.0.1:1: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_the_log_is_an_object_where_that_is_wanted_op29() {
    let directory = greeter();
    let path = directory.path().to_str().unwrap();
    let mut serve = Running::start(&["serve", path, "--listen", "127.0.0.1:0", "--log", "json"]);
    let mut line = || serde_json::from_str::<Value>(&serve.line()).unwrap();
    let first = line();
    assert_eq!((&first["event"], &first["source"], &first["resources"]), (&json!("serving"), &json!(path), &json!(4)));
    assert!(first["time"].as_str().unwrap().ends_with('Z'));
    let address = first["address"].as_str().unwrap().to_owned();

    // Two clients that reject the same for the same reason are told once.
    for node in ["n1", "n2"] {
        let (requests, mut responses) = talk(&address, node).await;
        let nonce = responses.message().await.unwrap().unwrap().nonce;
        let reject = DiscoveryRequest {
            type_url: CLUSTER.to_owned(),
            response_nonce: nonce,
            error_detail: Some(Status { code: 3, message: "no".to_owned(), ..Status::default() }),
            ..DiscoveryRequest::default()
        };
        requests.send(reject).await.unwrap();
        let came = line();
        assert_eq!((&came["event"], &came["node"]), (&json!("came"), &json!(node)));
        if node == "n1" {
            let nack = line();
            let told = (&nack["event"], &nack["node"], &nack["type"], &nack["reason"]);
            assert_eq!(told, (&json!("nack"), &json!("n1"), &json!("CDS"), &json!("no")));
        }
        drop((requests, responses));
        let left = line();
        assert_eq!((&left["event"], &left["node"]), (&json!("left"), &json!(node)));
    }
    let more = Snapshot::builder().cluster(resources::eds_cluster("more")).build();
    fs::write(directory.path().join(".draft"), more.to_yaml().unwrap()).unwrap();
    fs::rename(directory.path().join(".draft"), directory.path().join("more.yaml")).unwrap();
    let reloaded = line();
    assert_eq!(reloaded["event"], "reloaded");
    assert_eq!(reloaded["added"], json!([{ "type": "CDS", "name": "more" }]));
    serve.signal("INT");
    assert_eq!(serve.end().0, 0);
}

#[test]
fn a_swarm_is_configured_and_nobody_sees_an_absence_sc23() {
    let directory = greeter();
    let (serve, address, admin) = start(directory.path(), &[]);
    let bootstrap = bootstrap(directory.path(), &address);
    let output = mainstay(&["swarm", "xds:///greeter", "--clients", "300", "--bootstrap", &bootstrap, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!((&report["clients"], &report["configured"]), (&json!(300), &json!(300)));
    assert_eq!((&report["absent"], &report["failed"], &report["unconnected"]), (&json!(0), &json!(0), &json!(0)));
    assert!(report["heard_ms"]["max"].as_u64().unwrap() < 5000, "{report}");
    assert!(report["resource_bytes"].as_u64().unwrap() > 300 * 100, "{report}");
    let (_, metrics) = http(&admin, "/metrics");
    let accepted = "mainstay_cp_stream_opens_total{result=\"accepted\"} 300";
    assert!(metrics.lines().any(|line| line == accepted), "each has a stream of its own\n{metrics}");
    serve.signal("INT");
    assert_eq!(serve.end().0, 0);
}

#[test]
fn a_swarm_needs_descriptors_and_says_so() {
    let directory = greeter();
    let bootstrap = bootstrap(directory.path(), "127.0.0.1:1");
    let limited =
        format!("ulimit -n 150; exec {} swarm xds:///greeter --bootstrap {bootstrap}", env!("CARGO_BIN_EXE_mainstay"));
    let output = std::process::Command::new("sh").args(["-c", &limited]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("error: 100 clients need 200 descriptors, and the system allows this process 150\n"),
        "{stderr}"
    );
    assert!(stderr.contains("or take --clients 50"), "{stderr}");
}

/// Serves with an admin port: the program, its address and that of its admin port.
fn start(directory: &Path, more: &[&str]) -> (Running, String, String) {
    let path = directory.to_str().unwrap();
    let flags = ["serve", path, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--drain", "100ms"];
    let mut serve = Running::start(&[&flags[..], more].concat());
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.split(',').next().unwrap().to_owned();
    let admin = serve.line().strip_prefix("admin on ").unwrap().to_owned();
    (serve, address, admin)
}

/// A stream that asks for every cluster.
async fn talk(
    address: &str,
    node: &str,
) -> (mpsc::Sender<DiscoveryRequest>, tonic::Streaming<envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse>)
{
    let mut client = AggregatedDiscoveryServiceClient::connect(format!("http://{address}")).await.unwrap();
    let (requests, stream) = mpsc::channel(4);
    let node = Some(Node { id: node.to_owned(), ..Node::default() });
    let subscribe = DiscoveryRequest { node, type_url: CLUSTER.to_owned(), ..DiscoveryRequest::default() };
    requests.send(subscribe).await.unwrap();
    let responses = client.stream_aggregated_resources(ReceiverStream::new(stream)).await.unwrap().into_inner();
    (requests, responses)
}

/// Status and body of a page.
fn http(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn greeter() -> tempfile::TempDir {
    let snapshot = Snapshot::builder()
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .cluster(resources::eds_cluster("cluster"))
        .endpoints(resources::endpoints("cluster", ["127.0.0.1:1"]))
        .build();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("greeter.yaml"), snapshot.to_yaml().unwrap()).unwrap();
    directory
}

/// The file of a bootstrap, where `serve` does not see it.
fn bootstrap(directory: &Path, address: &str) -> String {
    let file = directory.join(".bootstrap");
    let server = json!({ "server_uri": address, "channel_creds": [{ "type": "insecure" }] });
    fs::write(&file, json!({ "xds_servers": [server], "node": { "id": "s" } }).to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
