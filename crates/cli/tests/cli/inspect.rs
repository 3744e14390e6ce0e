//! `inspect`, `status`, `top` and `diff` as their users see them.

use std::{fs, net::SocketAddr};

use envoy_types::pb::envoy::{
    admin::v3::{
        ClientResourceStatus, ClustersConfigDump, ListenersConfigDump, UpdateFailureState,
        clusters_config_dump::DynamicCluster,
        listeners_config_dump::{DynamicListener, DynamicListenerState},
    },
    config::core::v3::Node,
    service::status::v3::{
        ClientConfig, ClientStatusRequest, ClientStatusResponse, PerXdsConfig,
        client_config::GenericXdsConfig,
        client_status_discovery_service_server::{ClientStatusDiscoveryService, ClientStatusDiscoveryServiceServer},
        per_xds_config::PerXdsConfig as Dump,
    },
};
use mainstay_control_plane::{Body, ControlPlane, Server, Snapshot, TypeUrl, load_directory, resources};
use mainstay_testservice::Backend;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use crate::{
    explain,
    program::{Running, mainstay, mainstay_with_env, text},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_ours_is_shown_as_it_is() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let control_plane = ControlPlane::new();
    control_plane.set(
        Snapshot::builder()
            .listener(resources::listener("greeter", resources::rds("routes")))
            .route(resources::route("routes", "cluster"))
            .cluster(resources::eds_cluster("cluster"))
            .endpoints(resources::endpoints("cluster", [backend.addr()])),
    );
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let (mut load, address) = load(&server);
    load.line();
    load.line();

    let output = mainstay(&["inspect", &address]);
    let told = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{told}");
    for part in [
        "client xds:///greeter".to_owned(),
        "node \"n1\"".to_owned(),
        format!("server {} ready", server.addr()),
        "xds:///greeter complete".to_owned(),
        format!("{} healthy, weight 1, ready, ", backend.addr()),
        format!("old, from {}", server.addr()),
        "channel xds:///greeter  ready".to_owned(),
    ] {
        assert!(told.contains(&part), "OP-17: {part} in {told}");
    }
    let value = json_of(&mainstay(&["inspect", &address, "--json"]).stdout);
    let report = &value["clients"][0]["reports"][0];
    assert_eq!((&report["status"], &report["target"]), (&json!("complete"), &json!("xds:///greeter")), "{value}");
    assert_eq!(value["channels"][0]["state"], "ready", "{value}");

    let row = json_of(&mainstay(&["status", &address, "--json"]).stdout);
    assert_eq!(
        (&row["target"], &row["channel"], &row["fallback"]),
        (&json!("xds:///greeter"), &json!("ready"), &json!(false))
    );
    assert_eq!(
        (&row["in_charge"], &row["resources"]),
        (&json!(server.addr().to_string()), &json!({ "acked": 4 })),
        "OP-16"
    );
    assert!(row["calls"]["started"].as_i64().unwrap() > 0, "{row}");
    let table = mainstay(&["status", &address]);
    assert!(text(&table.stdout).lines().nth(1).unwrap().contains("4 acked"), "{}", text(&table.stdout));

    let look = json_of(&mainstay(&["top", &address, "--once", "--json", "--interval", "500ms"]).stdout);
    assert!(look["rows"][0]["calls_per_second"].as_f64().unwrap() > 0.0, "OP-18: {look}");

    // The control plane dies: that is seen, and what is held is not lost.
    let uri = server.addr().to_string();
    server.stop().await;
    let mut seen = Value::Null;
    for _ in 0..200 {
        seen = json_of(&mainstay(&["status", &address, "--json"]).stdout);
        if seen["last_error"].is_string() {
            break;
        }
    }
    assert!(seen["last_error"].as_str().unwrap().starts_with(&uri), "{seen}");
    assert_eq!(seen["resources"], json!({ "acked": 4 }), "{seen}");

    load.signal("INT");
    let (code, _, _) = load.end();
    assert_eq!(code, 0);
    let output = mainstay(&["inspect", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).starts_with(&format!("error: cannot connect to {address}")),
        "{}",
        text(&output.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_a_process_ends_with_a_clear_word_when_it_dies() {
    let control_plane = ControlPlane::new();
    control_plane.set(Snapshot::builder().listener(resources::listener("greeter", resources::rds("routes"))));
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let (load, address) = load(&server);
    let mut watch = Running::start(&["inspect", &address, "--watch", "--interval", "100ms"]);
    assert_eq!(watch.line(), address);
    load.signal("KILL");
    let (code, _, stderr) = watch.end();
    assert_eq!(code, 1);
    assert!(stderr.starts_with("error: ") && stderr.contains(&address), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_tell_less_are_shown_with_what_they_tell() {
    // OP-17: no channelz, several clients, older dumps, resources that have not come, errors.
    let snapshot = load_directory(explain::resources()).unwrap().default;
    let any = |type_url: TypeUrl, name: &str| {
        let found = snapshot.resources().find(|one| one.type_url == type_url && one.name == name).unwrap();
        match found.body {
            Body::Message(any) => Some(any),
            Body::Error { .. } => None,
        }
    };
    let node = Some(Node { id: "others".into(), user_agent_name: "gRPC Go".into(), ..Node::default() });
    let generic = |type_url: TypeUrl, name: &str, status: ClientResourceStatus, error: Option<&str>| GenericXdsConfig {
        type_url: type_url.as_str().to_owned(),
        name: name.to_owned(),
        version_info: "7".into(),
        xds_config: if status == ClientResourceStatus::Requested { None } else { any(type_url, name) },
        client_status: status.into(),
        error_state: error.map(|details| UpdateFailureState { details: details.to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let newer = ClientConfig {
        node: node.clone(),
        client_scope: "xds:///shop".into(),
        generic_xds_configs: vec![
            generic(TypeUrl::LISTENER, "shop", ClientResourceStatus::Acked, None),
            generic(TypeUrl::ROUTE, "shop-routes", ClientResourceStatus::Nacked, Some("no such filter")),
            generic(TypeUrl::CLUSTER, "canary", ClientResourceStatus::Acked, None),
            generic(TypeUrl::CLUSTER, "stable", ClientResourceStatus::Requested, None),
        ],
        ..Default::default()
    };
    #[allow(deprecated)]
    let older = ClientConfig {
        node,
        xds_config: vec![
            PerXdsConfig {
                per_xds_config: Some(Dump::ListenerConfig(ListenersConfigDump {
                    dynamic_listeners: vec![DynamicListener {
                        name: "shop".into(),
                        active_state: Some(DynamicListenerState {
                            version_info: "3".into(),
                            listener: any(TypeUrl::LISTENER, "shop"),
                            ..Default::default()
                        }),
                        client_status: ClientResourceStatus::Acked.into(),
                        ..Default::default()
                    }],
                    ..Default::default()
                })),
                ..Default::default()
            },
            PerXdsConfig {
                per_xds_config: Some(Dump::ClusterConfig(ClustersConfigDump {
                    dynamic_active_clusters: vec![DynamicCluster {
                        cluster: any(TypeUrl::CLUSTER, "stable"),
                        client_status: ClientResourceStatus::Acked.into(),
                        ..Default::default()
                    }],
                    ..Default::default()
                })),
                ..Default::default()
            },
        ],
        ..Default::default()
    };
    let address = csds(vec![newer, older]).await.to_string();

    let output = mainstay(&["status", &address]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<Vec<&str>> = text(&output.stdout)
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let [head, newer, older] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(head[..2], ["ADDRESS", "TARGET"]);
    assert_eq!(newer[1..5], ["xds:///shop", "-", "-", "-"], "OP-16: what is not told is \"-\": {newer:?}");
    assert_eq!(newer[6..], ["1 NACKed, 2 acked, 1 requested", "RouteConfiguration \"shop-routes\": no such filter"]);
    assert_eq!((older[1], older[6], older[7]), ("xds:///shop", "2 acked", "-"), "{older:?}");

    let output = mainstay(&["inspect", &address]);
    let told = text(&output.stdout);
    for part in ["client xds:///shop", "gRPC Go, node \"others\"", "! no such filter", "channels: - (no channelz)"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let output = mainstay(&["explain", "xds:///shop", "/shop.Admin/Reset", "--at", &address]);
    let told = text(&output.stdout);
    assert!(told.contains("#0 prefix \"/shop.Admin/\"") && told.contains("cluster          canary"), "OP-4: {told}");
    assert_eq!(output.status.code(), Some(3), "it holds no endpoints: {}", text(&output.stderr));

    // One that cannot be asked is named, and the others are shown.
    let output = mainstay(&["status", "127.0.0.1:1", &address, "--json"]);
    assert_eq!((output.status.code(), text(&output.stdout).lines().count()), (Some(1), 2));
    assert!(text(&output.stderr).contains("cannot connect to 127.0.0.1:1"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("Connection refused"), "the cause, too: {}", text(&output.stderr));

    // Where a table does not fit, each client is a list; what is not known is left out.
    let narrow = mainstay_with_env(&[("COLUMNS", "40")], &["status", &address]);
    let lines: Vec<&str> = text(&narrow.stdout).lines().collect();
    assert_eq!(lines[..2], [address.as_str(), "  TARGET      xds:///shop"], "{lines:?}");
    assert!(lines.contains(&"  RESOURCES   1 NACKed, 2 acked, 1 requested"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("CHANNEL")), "{lines:?}");
}

#[test]
fn a_process_that_is_not_there_is_told_once_and_with_the_cause() {
    let output = mainstay(&["top", "127.0.0.1:1", "--once", "--interval", "10ms"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), "error: 1 process could not be asked\n"));
    let told = text(&output.stdout);
    assert!(told.starts_with("cannot connect to 127.0.0.1:1: ") && told.lines().count() == 1, "no empty table: {told}");
    assert!(told.contains("Connection refused"), "{told}");
}

#[test]
fn get_and_inspect_show_what_explains_calls() {
    let directory = format!("dir:{}", explain::resources().display());
    let output = mainstay(&["inspect", &directory]);
    let told = text(&output.stdout);
    for part in [
        "timeout 3s",
        "retried 3 times after Unavailable",
        "filter fault: off (override on virtual host)",
        "filter fault: delays 100 % of the calls by 500ms (override on route)",
        "circuit breaker at 7 RPCs in flight",
        "outlier detection every 5s, for a success rate",
        "or more than 50 % failures",
        "drops maintenance 100 %",
        "locality us/a/ is not used: it has no load_balancing_weight",
        "1 of 3 endpoints of locality eu/a/ are not used: UNHEALTHY",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
}

#[test]
fn a_difference_is_told_by_what_traffic_notices() {
    // OP-15
    let old = explain::resources();
    let text_of = fs::read_to_string(old.join("shop.yaml")).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(text_of.contains(from), "{from}");
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("shop.yaml"), text_of.replace(from, to)).unwrap();
        directory
    };
    let diff = |a: &std::path::Path, b: &std::path::Path, args: &[&str]| {
        let (a, b) = (format!("dir:{}", a.display()), format!("dir:{}", b.display()));
        mainstay(&[&["diff", &a, &b], args].concat())
    };
    let first = |output: &std::process::Output| text(&output.stdout).lines().next().unwrap_or_default().to_owned();

    assert_eq!(first(&diff(&old, &old, &[])), "no difference");
    let same = edited(
        "          - endpoint: { address: { socket_address: { address: 10.0.8.1, port_value: 80 } } }\n          - endpoint: { address: { socket_address: { address: 10.0.8.2, port_value: 80 } } }\n",
        "          - endpoint: { address: { socket_address: { address: 10.0.8.2, port_value: 80 } } }\n          - endpoint: { address: { socket_address: { address: 10.0.8.1, port_value: 80 } } }\n",
    );
    assert_eq!(first(&diff(&old, same.path(), &[])), "no difference", "endpoints are sets");
    let output = diff(&old, same.path(), &["--wire"]);
    assert!(text(&output.stdout).contains("ClusterLoadAssignment canary"), "{}", text(&output.stdout));

    let cases = [
        ("address: 10.0.9.1", "address: 10.0.9.2", "1 endpoint goes; 1 endpoint comes"),
        ("route: { cluster: nowhere }", "route: { cluster: stable }", "1 route moves to other clusters or shares"),
        (
            "{ name: canary, weight: 90 }, { name: stable, weight: 10 }",
            "{ name: stable, weight: 1 }, { name: canary, weight: 9 }",
            "no difference",
        ),
        (
            "max_stream_duration: { max_stream_duration: 3s }",
            "max_stream_duration: { max_stream_duration: 4s }",
            "1 route or cluster treats calls otherwise",
        ),
        ("max_requests: 7", "max_requests: 8", "1 route or cluster treats calls otherwise"),
        ("prefix: /hashed.", "prefix: /hashes.", "1 route goes; 1 route comes"),
    ];
    for (from, to, expected) in cases {
        let new = edited(from, to);
        let output = diff(&old, new.path(), &["--exit-code"]);
        let code = if expected == "no difference" { 0 } else { 3 };
        assert_eq!((first(&output).as_str(), output.status.code()), (expected, Some(code)), "{}", text(&output.stdout));
        // The other way round there is a difference, too.
        let back = diff(new.path(), &old, &["--json"]);
        assert_eq!(json_of(&back.stdout)["same"], code == 0);
    }
    let unhealthy = edited(
        "          - endpoint: { address: { socket_address: { address: 10.0.9.1, port_value: 80 } } }\n",
        "          - { endpoint: { address: { socket_address: { address: 10.0.9.1, port_value: 80 } } }, health_status: UNHEALTHY }\n",
    );
    assert_eq!(first(&diff(&old, unhealthy.path(), &[])), "1 cluster loses all its endpoints; 1 endpoint goes");
    let broken = edited("domains: [\"*\"]", "domains: [\"a*b*c\"]");
    assert!(first(&diff(&old, broken.path(), &[])).starts_with("1 target loses its configuration"));
}

/// A process that serves CSDS and no channelz, with these clients.
async fn csds(config: Vec<ClientConfig>) -> SocketAddr {
    struct Others(Vec<ClientConfig>);

    #[tonic::async_trait]
    impl ClientStatusDiscoveryService for Others {
        type StreamClientStatusStream = tokio_stream::Empty<Result<ClientStatusResponse, Status>>;

        async fn fetch_client_status(
            &self,
            _: Request<ClientStatusRequest>,
        ) -> Result<Response<ClientStatusResponse>, Status> {
            Ok(Response::new(ClientStatusResponse { config: self.0.clone() }))
        }

        async fn stream_client_status(
            &self,
            _: Request<tonic::Streaming<ClientStatusRequest>>,
        ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
            Err(Status::unimplemented("not asked for"))
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ClientStatusDiscoveryServiceServer::new(Others(config));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// A process of ours that sends calls, and the address of its admin services.
fn load(server: &Server) -> (Running, String) {
    let server = json!({ "server_uri": server.addr().to_string(), "channel_creds": [{ "type": "insecure" }] });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    let args = ["load", "xds:///greeter", "--admin", "127.0.0.1:0", "--json", "--wait-for-ready", "--qps", "50"];
    let mut load = Running::start_with_bootstrap(&bootstrap, &args);
    let line = load.error_line();
    let address = line.strip_prefix("admin: CSDS on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    (load, address)
}

fn json_of(output: &[u8]) -> Value {
    serde_json::from_str(text(output)).unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}
