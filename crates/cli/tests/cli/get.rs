//! `mainstay get` as its users see it: whole trees, JSON, exit codes.

use mainstay_control_plane::{ControlPlane, Server, Snapshot, SnapshotBuilder, TypeUrl, resources};
use serde_json::{Value, json};

use crate::program::{Running, mainstay, mainstay_with_bootstrap, text};

#[tokio::test(flavor = "multi_thread")]
async fn the_tree_shows_everything_from_the_listener_to_the_endpoints() {
    let mut spare = resources::locality("b", ["10.0.0.3:80"]);
    spare.priority = 1;
    let server = serve(
        Snapshot::builder()
            .listener(resources::listener("greeter", resources::rds("routes")))
            .route(resources::route_table(
                "routes",
                [resources::prefix_route("/canary.", "both"), resources::prefix_route("", "eds")],
            ))
            .cluster(resources::aggregate_cluster("both", ["eds", "dns"]))
            .cluster(resources::eds_cluster("eds"))
            .cluster(resources::logical_dns_cluster("dns", "10.0.0.9:443"))
            .endpoints(resources::localities("eds", [resources::leds_locality("a", "list"), spare]))
            .endpoint_collection("list", resources::endpoint_collection(["10.0.0.1:80", "10.0.0.2:80"])),
    )
    .await;
    let output = get(&server, &[]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stable(&output.stdout, &server),
        "\
xds:///greeter complete  for node \"n1\"
├─ server SERVER ready
└─ listener greeter  version 1, AGE old, from SERVER
   └─ routes routes  version 1, AGE old, from SERVER
      └─ virtual host all
         ├─ prefix \"/canary.\"
         │  └─ cluster both aggregate  version 1, AGE old, from SERVER
         │     ├─ cluster eds EDS, wrr_locality of round_robin  version 1, AGE old, from SERVER
         │     │  └─ endpoints eds  version 1, AGE old, from SERVER
         │     │     ├─ priority 0
         │     │     │  └─ locality region/zone/a weight 1
         │     │     │     └─ collection list  version 1, AGE old, from SERVER
         │     │     │        ├─ 10.0.0.1:80 healthy, weight 1
         │     │     │        └─ 10.0.0.2:80 healthy, weight 1
         │     │     └─ priority 1
         │     │        └─ locality region/zone/b weight 1
         │     │           └─ 10.0.0.3:80 healthy, weight 1
         │     └─ cluster dns LOGICAL_DNS, 10.0.0.9:443, wrr_locality of round_robin  version 1, AGE old, from SERVER
         │        └─ priority 0
         │           └─ no locality weight 1
         │              └─ 10.0.0.9:443 unknown, weight 1
         └─ any path
            └─ cluster eds see above
"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_cannot_be_used_is_named_and_makes_it_exit_code_4() {
    let server = serve(
        Snapshot::builder()
            .listener(resources::listener("greeter", resources::weighted_route("", [("good", 90), ("bad", 10)])))
            .cluster(resources::eds_cluster("good"))
            .endpoints(resources::endpoints("good", ["10.0.0.1:80"]))
            .error(TypeUrl::CLUSTER, "bad", tonic::Code::NotFound, "never heard of it"),
    )
    .await;
    let output = get(&server, &[]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(
        text(&output.stderr),
        "error: xds:///greeter: no endpoints for bad\n\n  \
         tip: the tree shows what is missing and who was asked for it\n"
    );
    assert_eq!(
        stable(&output.stdout, &server),
        "\
xds:///greeter partial  for node \"n1\"
├─ server SERVER ready
└─ listener greeter  version 1, AGE old, from SERVER
   └─ routes in the listener
      └─ virtual host all
         └─ any path
            ├─ cluster good 90 of 100 EDS, wrr_locality of round_robin  version 1, AGE old, from SERVER
            │  └─ endpoints good  version 1, AGE old, from SERVER
            │     └─ priority 0
            │        └─ locality region/zone/locality0 weight 1
            │           └─ 10.0.0.1:80 healthy, weight 1
            └─ cluster bad 10 of 100  received error
               └─ ! Cluster \"bad\": SERVER (node \"n1\") answered with NOT_FOUND: never heard of it
"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_does_not_come_in_time_is_exit_code_1_with_what_is_missing() {
    let server = serve(greeter("10.0.0.1:80")).await;
    server.faults().hold(TypeUrl::ENDPOINTS);
    let output = get(&server, &["--timeout", "2s"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: xds:///greeter: no complete configuration within 2s\n\n  \
         tip: the list shows what has not come; --timeout gives the servers more time\n"
    );
    assert_eq!(
        stable(&output.stdout, &server),
        "\
xds:///greeter failed  for node \"n1\"
├─ server SERVER ready
├─ Listener greeter  version 1, AGE old, from SERVER
├─ RouteConfiguration routes  version 1, AGE old, from SERVER
├─ Cluster cluster  version 1, AGE old, from SERVER
└─ ClusterLoadAssignment cluster  requested
"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_cannot_be_reached_are_exit_code_1_with_the_cause() {
    let server = serve(greeter("10.0.0.1:80")).await;
    server.stop().await;
    let output = get(&server, &[]);
    assert_eq!(output.status.code(), Some(1));
    let stdout = stable(&output.stdout, &server);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[0], "xds:///greeter failed  for node \"n1\"");
    assert_eq!(lines[1], "├─ server SERVER unreachable");
    assert!(lines[2].starts_with("│  └─ ! ") && lines[2].contains("refused"), "{stdout}");
    let stderr = stable(&output.stderr, &server);
    assert!(
        stderr.starts_with("error: xds:///greeter: Listener \"greeter\" cannot be fetched from SERVER"),
        "{stderr}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_the_same_in_one_line() {
    let server = serve(greeter("10.0.0.1:80")).await;
    let output = get(&server, &["--json"]);
    assert_eq!(output.status.code(), Some(0));
    let mut value: Value = serde_json::from_str(&stable(&output.stdout, &server)).unwrap();
    let from = |name: &str| json!({ "name": name, "state": "acked", "version": "1", "age_ms": 0, "server": "SERVER" });
    let mut expected = json!({
        "target": "xds:///greeter",
        "status": "complete",
        "node": "n1",
        "mixed_sources": false,
        "servers": [{ "uri": "SERVER", "state": "ready" }],
        "listener": from("greeter"),
        "routes": from("routes"),
        "clusters": { "cluster": {
            "state": "acked", "version": "1", "age_ms": 0, "server": "SERVER",
            "kind": "EDS",
            "lb_policy": "wrr_locality of round_robin",
            "endpoints": from("cluster"),
        } },
    });
    expected["routes"]["virtual_host"] = "all".into();
    expected["routes"]["routes"] = json!([{ "match": "any path", "clusters": [{ "name": "cluster", "weight": 1 }] }]);
    let endpoint = json!({ "addresses": ["10.0.0.1:80"], "health": "healthy", "weight": 1 });
    let locality = json!({ "name": "region/zone/locality0", "weight": 1, "endpoints": [endpoint] });
    expected["clusters"]["cluster"]["endpoints"]["priorities"] = json!([[locality]]);
    without_ages(&mut value);
    assert_eq!(value, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_prints_it_again_when_it_changes_and_only_then() {
    let server = serve(greeter("10.0.0.1:80")).await;
    let args = ["get", "xds:///greeter", "--watch", "--json"];
    let mut watch = Running::start_with_bootstrap(&bootstrap(&server), &args);
    let endpoint = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        value["clusters"]["cluster"]["endpoints"]["priorities"][0][0]["endpoints"][0]["addresses"][0].clone()
    };
    assert_eq!(endpoint(&watch.line()), "10.0.0.1:80");
    server.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("cluster", ["10.0.0.2:80"])));
    assert_eq!(endpoint(&watch.line()), "10.0.0.2:80");
    watch.signal("TERM");
    let (code, stdout, stderr) = watch.end();
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
}

/// A server's Listener with its filter chains, TLS and RBAC, without a server.
#[tokio::test(flavor = "multi_thread")]
async fn the_listener_of_a_server_is_shown_with_its_chains() {
    use envoy_types::pb::envoy::config::listener::v3::FilterChainMatch;
    use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac, permission, principal};
    use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::Rbac as RbacFilter;

    let policy = Policy {
        permissions: vec![Permission { rule: Some(permission::Rule::Any(true)) }],
        principals: vec![Principal { identifier: Some(principal::Identifier::Any(true)) }],
        ..Default::default()
    };
    let policies = ["writers", "readers"].map(|name| (name.to_owned(), policy.clone())).into();
    let rules = Rbac { action: 1, policies, ..Default::default() };
    let filter = RbacFilter { rules: Some(rules), ..Default::default() };
    let plain = resources::server_listener("server/10.0.0.1:50051", "10.0.0.1:50051", resources::rds("routes"));
    let secured = resources::with_filter(plain.clone(), "authz", envoy_types::util::pack_any(filter));
    let mut listener = resources::with_server_tls(secured, "files", true);
    let mut local = plain.default_filter_chain.unwrap();
    local.name = "local".to_owned();
    local.filter_chain_match =
        Some(FilterChainMatch { source_type: 1, source_ports: vec![80, 81], ..Default::default() });
    listener.filter_chains = vec![local];
    let server = serve(Snapshot::builder().listener(listener).route(resources::server_route("routes"))).await;
    let mut bootstrap: Value = serde_json::from_str(&bootstrap(&server)).unwrap();
    bootstrap["server_listener_resource_name_template"] = "server/%s".into();
    let files =
        json!({ "certificate_file": "cert.pem", "private_key_file": "key.pem", "ca_certificate_file": "ca.pem" });
    bootstrap["certificate_providers"] = json!({ "files": { "plugin_name": "file_watcher", "config": files } });
    let bootstrap = bootstrap.to_string();
    let get = |args: &[&str]| mainstay_with_bootstrap(&bootstrap, &[&["get", "--server"], args].concat());

    let output = get(&["10.0.0.1:50051"]);
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
    assert_eq!(
        stable(&output.stdout, &server),
        "\
server at 10.0.0.1:50051 serving  for node \"n1\"
├─ server SERVER ready
└─ listener server/10.0.0.1:50051  version 1, AGE old, from SERVER
   ├─ filter chain local for from this machine, from port 80 or 81
   │  ├─ secured as the credentials of the server say
   │  ├─ filter router Router
   │  └─ routes routes  version 1, AGE old, from SERVER
   │     └─ virtual host all for *
   │        └─ any path
   └─ filter chain default_filter_chain for all others
      ├─ secured by mTLS: certificate \"files\", clients need a certificate of \"files\"
      ├─ filter authz RBAC
      │  └─ DENY, 2 policies: \"readers\", \"writers\"
      ├─ filter router Router
      └─ routes routes  version 1, AGE old, from SERVER
         └─ virtual host all for *
            └─ any path
"
    );
    let output = get(&["10.0.0.1:50051", "--json"]);
    let value: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(value["state"], "SERVING");
    let tls = json!({ "identity": "files", "roots": "files", "client_certificate_required": true });
    assert_eq!(value["filter_chains"][1]["tls"], tls);
    let rbac = json!({ "action": "DENY", "policies": ["readers", "writers"] });
    assert_eq!(value["filter_chains"][1]["http_filters"][0]["rbac"], rbac);

    // For another address there is nothing.
    let output = get(&["10.0.0.1:50052", "--timeout", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("error: 10.0.0.1:50052: not served within 1s: Listener \"server/10.0.0.1:50052\""),
        "{stderr}"
    );
    assert!(text(&output.stdout).starts_with("server at 10.0.0.1:50052 not serving"), "{}", text(&output.stdout));
}

#[test]
fn a_missing_bootstrap_and_a_wrong_target_say_what_to_do() {
    let output = mainstay(&["get", "xds:///greeter"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: no xDS bootstrap: set GRPC_XDS_BOOTSTRAP to the path of a bootstrap file, \
         or GRPC_XDS_BOOTSTRAP_CONFIG to the JSON text itself\n"
    );
    let output = mainstay(&["get", "http://a:1"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stderr),
        "error: invalid value 'http://a:1' for '[TARGET]': expected an xDS name such as xds:///greeter\n\n\
         For more information, try '--help'.\n"
    );
}

async fn serve(snapshot: SnapshotBuilder) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.unwrap()
}

fn greeter(endpoint: &str) -> SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .cluster(resources::eds_cluster("cluster"))
        .endpoints(resources::endpoints("cluster", [endpoint]))
}

fn get(server: &Server, args: &[&str]) -> std::process::Output {
    mainstay_with_bootstrap(&bootstrap(server), &[&["get", "xds:///greeter"], args].concat())
}

fn bootstrap(server: &Server) -> String {
    let server = json!({ "server_uri": server.addr().to_string(), "channel_creds": [{ "type": "insecure" }] });
    json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string()
}

/// The output without what differs from run to run.
fn stable(output: &[u8], server: &Server) -> String {
    let mut output = text(output).replace(&server.addr().to_string(), "SERVER");
    for type_url in
        [TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::CLUSTER, TypeUrl::ENDPOINTS, TypeUrl::ENDPOINT_COLLECTION]
    {
        if let Some(version) = server.control_plane().version(&type_url) {
            output = output.replace(&version, "1");
        }
    }
    // "12s old" follows the version and a comma.
    let mut parts = output.split(" old, ").map(str::to_owned).collect::<Vec<_>>();
    let last = parts.len() - 1;
    for part in &mut parts[..last] {
        let age = part.rfind(", ").unwrap() + 2;
        assert!(part[age..].ends_with('s'), "{part}");
        part.replace_range(age.., "AGE");
    }
    parts.join(" old, ")
}

fn without_ages(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(age) = map.get_mut("age_ms") {
                assert!(age.as_u64().is_some_and(|age| age < 60_000), "{age}");
                *age = 0.into();
            }
            map.values_mut().for_each(without_ages);
        }
        Value::Array(values) => values.iter_mut().for_each(without_ages),
        _ => {}
    }
}
