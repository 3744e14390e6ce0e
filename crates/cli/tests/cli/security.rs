//! TLS on every side of the commands.

use std::fs;

use mainstay_control_plane::{ControlPlane, Server, Snapshot, SnapshotBuilder, TypeUrl, resources};
use mainstay_testservice::{Backend, Identity, ServerTlsConfig};
use serde_json::{Value, json};
use tonic::transport::Certificate;

use crate::pki::Pki;
use crate::program::{Running, mainstay, mainstay_with_bootstrap, mainstay_with_env, text};

/// A29: the control plane says how, the bootstrap with what.
#[tokio::test(flavor = "multi_thread")]
async fn load_follows_the_security_of_the_cluster() {
    let pki = Pki::new();
    let backend = mtls_backend(&pki).await;
    let cluster = resources::with_mtls(resources::eds_cluster("cluster"), "files", ["greeter"]);
    let server = serve(service(cluster, &backend)).await;
    let bootstrap = bootstrap(&pki, &server);
    let load = |credentials: &str| {
        let args =
            ["load", "xds:///greeter", "--qps", "20", "--duration", "200ms", "--json", "--credentials", credentials];
        calls(&mainstay_with_bootstrap(&bootstrap, &args).stdout)
    };
    assert!(load("xds").iter().all(|call| call["server_id"] == "secure"));
    // Plaintext is what was asked for here, and the backend does not take it.
    assert!(load("insecure").iter().all(|call| call["code"] == "UNAVAILABLE"));
}

/// TLS of the command's own: with authorities from a file or those of the system, and a certificate of its own.
#[tokio::test(flavor = "multi_thread")]
async fn load_brings_certificates_of_its_own() {
    let pki = Pki::new();
    let backend = mtls_backend(&pki).await;
    let server = serve(service(resources::eds_cluster("cluster"), &backend)).await;
    let bootstrap = bootstrap(&pki, &server);
    pki.issue("me");
    let [ca, cert, key] = ["ca.pem", "me.pem", "me.key"].map(|name| pki.file(name));
    let load = ["load", "xds:///greeter", "--qps", "20", "--duration", "100ms", "--json", "--credentials", "tls"];
    let files = ["--ca", &ca, "--cert", &cert, "--key", &key];
    let answered = calls(&mainstay_with_bootstrap(&bootstrap, &[&load[..], &files].concat()).stdout);
    assert!(answered.iter().all(|call| call["server_id"] == "secure"), "{answered:?}");
    // Any method can be called so.
    let method = ["--method", "/grpc.testing.TestService/EmptyCall", "-H", "x-user:42"];
    let answered = calls(&mainstay_with_bootstrap(&bootstrap, &[&load[..], &files, &method].concat()).stdout);
    assert!(answered.iter().all(|call| call["server_id"] == backend.addr().to_string()), "{answered:?}");
    let refused = calls(&mainstay_with_bootstrap(&bootstrap, &[&load[..], &["--ca", &ca]].concat()).stdout);
    assert!(refused.iter().all(|call| call["code"] == "UNAVAILABLE"), "the backend wants a certificate: {refused:?}");

    // A82: the system's authorities are those in SSL_CERT_FILE; the backend wants no certificate.
    let open = backend_of(&pki, false).await;
    let server = serve(service(resources::eds_cluster("cluster"), &open)).await;
    let environment = [("GRPC_XDS_BOOTSTRAP_CONFIG", &*self::bootstrap(&pki, &server)), ("SSL_CERT_FILE", &ca)];
    let answered = calls(&mainstay_with_env(&environment, &load).stdout);
    assert!(answered.iter().all(|call| call["server_id"] == "secure"), "{answered:?}");
    let elsewhere = Pki::new();
    let other = elsewhere.file("ca.pem");
    let refused = calls(&mainstay_with_env(&[environment[0], ("SSL_CERT_FILE", &other)], &load).stdout);
    assert!(refused.iter().all(|call| call["code"] == "UNAVAILABLE"), "{refused:?}");
}

#[test]
fn flags_that_make_no_sense_are_told() {
    let pki = Pki::new();
    pki.issue("me");
    pki.issue("other");
    let [ca, cert, key, other, missing] =
        ["ca.pem", "me.pem", "me.key", "other.key", "none.pem"].map(|name| pki.file(name));
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let xds = ["load", "xds:///greeter"];
    for (args, code, expected) in [
        (vec!["--credentials", "alts"], 2, "invalid value 'alts' for '--credentials <KIND>'"),
        (vec!["--ca", &ca], 2, "--ca, --cert and --key are for --credentials tls only"),
        (vec!["--credentials", "xds", "--ca", &ca], 2, "--ca, --cert and --key are for --credentials tls only"),
        (vec!["--credentials", "tls", "--cert", &cert], 2, "--key <FILE>"),
        (vec!["--credentials", "tls", "--cert", &cert, "--key", &key], 2, "--cert needs --ca"),
        (vec!["--credentials", "tls", "--ca", &missing], 1, "none.pem: No such file"),
        (vec!["--credentials", "tls", "--ca", &key], 1, "me.key: PEM: no certificate in it"),
        (
            vec!["--credentials", "tls", "--ca", &ca, "--cert", &cert, "--key", &other],
            1,
            "me.pem: certificate and private key",
        ),
    ] {
        let output = mainstay(&[&xds[..], &args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
    let output = mainstay(&["load", "http://127.0.0.1:1", "--credentials", "xds"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--credentials cannot be had for http://127.0.0.1:1"));

    let serve = ["serve", dir, "--allow-mass-deletion", "--listen", "127.0.0.1:0"];
    for (args, code, expected) in [
        (vec!["--tls-cert", &*cert], 2, "--tls-key <FILE>"),
        (vec!["--client-ca", &ca], 2, "--tls-cert <FILE>"),
        (vec!["--tls-cert", &missing, "--tls-key", &key], 1, "cannot serve TLS: "),
        (vec!["--tls-cert", &cert, "--tls-key", &other], 1, "other.key: "),
        (vec!["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &key], 1, "me.key: no certificate in it"),
        (vec!["--listen", "unix:"], 2, "expected the path of a socket after unix:"),
    ] {
        // The last of two flags counts, which clap refuses: take the first away.
        let serve = if args[0] == "--listen" { &serve[..3] } else { &serve[..] };
        let output = mainstay(&[serve, &args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}

/// A65: the control plane itself over mTLS; new certificates are used at once.
#[test]
fn serve_lets_in_only_clients_with_a_certificate() {
    let pki = Pki::new();
    pki.issue("control-plane");
    pki.issue("me");
    let directory = resources_in_files();
    let [cert, key, ca] = ["control-plane.pem", "control-plane.key", "ca.pem"].map(|name| pki.file(name));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca];
    let args = ["serve", directory.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let mut serve = Running::start(&[&args[..], &tls].concat());
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.strip_suffix(" over mTLS, 4 resources").unwrap();
    (0..4).for_each(|_| drop(serve.line()));

    let get = |config: Value| {
        let server = json!({ "server_uri": address, "channel_creds": [{ "type": "tls", "config": config }] });
        let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
        mainstay_with_bootstrap(&bootstrap, &["get", "xds:///greeter", "--timeout", "3s"])
    };
    let mtls = json!({ "ca_certificate_file": ca, "certificate_file": pki.file("me.pem"), "private_key_file": pki.file("me.key") });
    assert_eq!(get(mtls.clone()).status.code(), Some(0));
    assert_eq!([serve.line(), serve.line()], ["node n1 came", "node n1 left"]);
    assert_eq!(get(json!({ "ca_certificate_file": ca })).status.code(), Some(1));
    let line = serve.line();
    assert!(line.starts_with("client 127.0.0.1:") && line.contains("failed the TLS handshake: "), "{line}");

    // A half is not used, and a whole pair is.
    fs::write(pki.path("control-plane.pem"), "half").unwrap();
    let mut seen = get(mtls.clone());
    assert_eq!(seen.status.code(), Some(0));
    pki.issue("control-plane");
    seen = get(mtls);
    assert_eq!(seen.status.code(), Some(0));
    serve.signal("TERM");
    assert_eq!(serve.end().0, 0);
}

#[cfg(unix)]
#[test]
fn serve_listens_on_a_socket_in_the_file_system() {
    let directory = resources_in_files();
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("xds.sock");
    let listen = format!("unix:{}", socket.display());
    let args = ["serve", directory.path().to_str().unwrap(), "--listen", &listen];
    let mut serve = Running::start(&args);
    assert!(serve.line().ends_with(&format!(" on {listen}, 4 resources")));
    let server = json!({ "server_uri": listen, "channel_creds": [{ "type": "insecure" }] });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    let get = || mainstay_with_bootstrap(&bootstrap, &["get", "xds:///greeter", "--timeout", "3s"]);
    let output = get();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // It is not taken from one that runs.
    let output = mainstay(&args);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).starts_with(&format!("error: cannot listen on {listen}: ")),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(get().status.code(), Some(0));
    serve.signal("TERM");
    assert_eq!(serve.end().0, 0);
    assert!(!socket.exists());
    // What one left behind that was killed is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut serve = Running::start(&args);
    assert!(serve.line().ends_with(", 4 resources"));
    assert_eq!(get().status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn get_shows_how_clusters_are_secured() {
    let pki = Pki::new();
    let server = serve(
        Snapshot::builder()
            .listener(resources::listener("greeter", resources::rds("routes")))
            .route(resources::weighted_route("routes", [("mtls", 1), ("tls", 1), ("plain", 1)]))
            .cluster(resources::with_mtls(resources::eds_cluster("mtls"), "files", ["a", "spiffe://b/c"]))
            .cluster(resources::with_tls(resources::eds_cluster("tls"), "files", [] as [&str; 0]))
            .cluster(resources::eds_cluster("plain"))
            .endpoints(resources::endpoints("mtls", ["127.0.0.1:1"]))
            .endpoints(resources::endpoints("tls", ["127.0.0.1:1"]))
            .endpoints(resources::endpoints("plain", ["127.0.0.1:1"])),
    )
    .await;
    let bootstrap = bootstrap(&pki, &server);
    let output = mainstay_with_bootstrap(&bootstrap, &["get", "xds:///greeter"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tree = text(&output.stdout);
    let shown: Vec<_> = tree.lines().filter_map(|line| line.split_once("TLS: ").map(|(_, rest)| rest)).collect();
    let mtls = "roots \"files\", our certificate \"files\", name \"a\" or \"spiffe://b/c\"";
    assert_eq!(shown, [mtls, "roots \"files\", any name"], "{tree}");
    let output = mainstay_with_bootstrap(&bootstrap, &["get", "xds:///greeter", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!({ "roots": "files", "identity": "files", "subject_alt_names": ["\"a\"", "\"spiffe://b/c\""] });
    assert_eq!(report["clusters"]["mtls"]["tls"], expected);
    assert_eq!(report["clusters"]["plain"]["tls"], Value::Null);
}

/// A36: a backend serves as long as the control plane has a Listener for it, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_serves_as_the_control_plane_says() {
    let pki = Pki::new();
    let control_plane = ControlPlane::new();
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let mut bootstrap: Value = serde_json::from_str(&bootstrap(&pki, &server)).unwrap();
    bootstrap["server_listener_resource_name_template"] = json!("servers/%s");
    pki.issue("greeter");
    let mut own = bootstrap["certificate_providers"]["files"].clone();
    own["config"]["certificate_file"] = json!(pki.file("greeter.pem"));
    own["config"]["private_key_file"] = json!(pki.file("greeter.key"));
    bootstrap["certificate_providers"]["own"] = own;
    let bootstrap = bootstrap.to_string();
    let mut events = server.events();
    let args = ["backend", "--listen", "127.0.0.1:0", "--id", "one", "--xds", "--credentials", "xds", "--json"];
    let mut backend = Running::start_with_bootstrap(&bootstrap, &args);
    let request = events.request(TypeUrl::LISTENER).await.unwrap();
    let [name] = &request.names[..] else { panic!("{request:?}") };
    let address = name.strip_prefix("servers/").unwrap().to_owned();
    assert!(std::net::TcpStream::connect(&address).is_err(), "it does not listen before it serves");

    let listener = resources::server_listener(name.clone(), &address, resources::server_route("routes"));
    let cluster = resources::with_mtls(resources::eds_cluster("cluster"), "files", ["greeter"]);
    let snapshot = Snapshot::builder()
        .listener(resources::with_server_tls(listener, "own", true))
        .listener(resources::listener("greeter", resources::route("routes", "cluster")))
        .cluster(cluster)
        .endpoints(resources::endpoints("cluster", [&address]));
    control_plane.set(snapshot);
    let mut line: Value = serde_json::from_str(&backend.line()).unwrap();
    if line["state"] == "NOT_SERVING" {
        assert!(line["reason"].is_string(), "{line}");
        line = serde_json::from_str(&backend.line()).unwrap();
    }
    assert_eq!(line, json!({ "event": "serving", "address": address, "state": "SERVING", "reason": null }));

    let load = ["load", "xds:///greeter", "--qps", "20", "--duration", "200ms", "--json", "--credentials", "xds"];
    let answered = calls(&mainstay_with_bootstrap(&bootstrap, &load).stdout);
    assert!(answered.iter().all(|call| call["server_id"] == "one"), "{answered:?}");

    backend.signal("TERM");
    let (code, stdout, stderr) = backend.end();
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{stdout}");
    assert!(std::net::TcpStream::connect(&address).is_err());
}

/// SV-20: connections that cannot be accepted, for want of files, do not end the accepting.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_without_files_to_spare_goes_on_accepting() {
    let control_plane = ControlPlane::new();
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let mut bootstrap: Value = serde_json::from_str(&bootstrap(&Pki::new(), &server)).unwrap();
    bootstrap["server_listener_resource_name_template"] = json!("servers/%s");
    let mut events = server.events();
    let args = ["backend", "--listen", "127.0.0.1:0", "--xds", "--json"];
    let mut backend = Running::start_with_few_files(&bootstrap.to_string(), 64, &args);
    let request = events.request(TypeUrl::LISTENER).await.unwrap();
    let address = request.names[0].strip_prefix("servers/").unwrap().to_owned();
    let listener = resources::server_listener(request.names[0].clone(), &address, resources::server_route("routes"));
    control_plane.set(Snapshot::builder().listener(listener));
    while !backend.line().contains("\"SERVING\"") {}

    // The system takes them in for it.
    let connections: Vec<_> = (0..80).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let line = backend.error_line();
    assert!(line.contains("cannot accept a connection, which is tried again"), "{line}");
    drop(connections);
    let output = mainstay(&["load", &format!("http://{address}"), "--qps", "20", "--duration", "200ms", "--json"]);
    assert!(calls(&output.stdout).iter().all(|call| call["server_id"] == "backend"), "{}", text(&output.stdout));
    backend.signal("TERM");
    assert_eq!(backend.end().0, 0);
}

#[test]
fn a_backend_says_what_it_lacks_to_be_configured() {
    let bootstrap = r#"{"xds_servers": [{"server_uri": "127.0.0.1:1", "channel_creds": [{"type": "insecure"}]}]}"#;
    let output = mainstay_with_bootstrap(bootstrap, &["backend", "--xds"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("server_listener_resource_name_template"), "{}", text(&output.stderr));
    let output = mainstay(&["backend", "--credentials", "xds"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--xds"), "{}", text(&output.stderr));
}

async fn mtls_backend(pki: &Pki) -> Backend {
    backend_of(pki, true).await
}

async fn backend_of(pki: &Pki, mtls: bool) -> Backend {
    let (certificate, key) = pki.issue("greeter");
    let mut tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
    if mtls {
        tls = tls.client_ca_root(Certificate::from_pem(pki.ca_pem()));
    }
    Backend::builder("secure").tls(tls).spawn("127.0.0.1:0").await.unwrap()
}

fn service(cluster: envoy_types::pb::envoy::config::cluster::v3::Cluster, backend: &Backend) -> SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener("greeter", resources::rds("routes")))
        .route(resources::route("routes", "cluster"))
        .cluster(cluster)
        .endpoints(resources::endpoints("cluster", [backend.addr()]))
}

async fn serve(snapshot: SnapshotBuilder) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.unwrap()
}

/// A bootstrap whose provider `files` has a certificate of ours.
fn bootstrap(pki: &Pki, server: &Server) -> String {
    pki.issue("client");
    let files = json!({
        "ca_certificate_file": pki.file("ca.pem"),
        "certificate_file": pki.file("client.pem"),
        "private_key_file": pki.file("client.key"),
    });
    let server = json!({ "server_uri": server.addr().to_string(), "channel_creds": [{ "type": "insecure" }] });
    json!({
        "xds_servers": [server],
        "node": { "id": "n1" },
        "certificate_providers": { "files": { "plugin_name": "file_watcher", "config": files } },
    })
    .to_string()
}

fn resources_in_files() -> tempfile::TempDir {
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

fn calls(stdout: &[u8]) -> Vec<Value> {
    let calls: Vec<Value> = text(stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!calls.is_empty());
    calls
}
