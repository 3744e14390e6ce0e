//! How control planes and endpoints are reached: TLS with files that change, and every form of `server_uri`
//! (A65, B-19, B-49).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mainstay::bootstrap::{Bootstrap, CallCreds, CertificateFiles, Node, ServerConfig};
use mainstay::event::Event;
use mainstay::{Channel, ChannelBuilder, ResolveHost};
use mainstay_control_plane::{Address, ControlPlane, Limits, ServerOptions, Snapshot, resources};
use mainstay_testservice::{Backend, Identity, ServerTlsConfig};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tonic::Code;

use crate::common::{Client, backends, call, control_plane, in_time, service, until_failed, until_left_alone};
use crate::pki::{Authority, Files};
use crate::proxy::Proxy;
use crate::relay::Relay;

// === Being told when to come back ===

#[tokio::test]
async fn a_client_that_is_refused_comes_back_when_the_server_says_sc10() {
    let control_plane = ControlPlane::new();
    control_plane.set(Snapshot::default());
    let push_back = (Duration::from_secs(3), Duration::from_secs(3));
    let options = ServerOptions { limits: Limits { push_back, ..Limits::default() }, ..ServerOptions::default() };
    let server = control_plane.serve_with(Address::Tcp("127.0.0.1:0".parse().unwrap()), options).unwrap();
    server.refuse_streams(Some("a herd is here".to_owned()));
    let channel = builder(ServerConfig::insecure(server.addr().to_string())).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    // The RPC waits: there is nothing to fail it with before the last server was heard.
    let rpc = tokio::spawn(async move { call(&mut client).await });
    let retry_after = in_time(async {
        loop {
            if let Event::Unreachable { retry_after, .. } = events.next().await.expect("the channel is there") {
                return retry_after;
            }
        }
    });
    // Give or take a fifth; our own first pause is 20 ms here.
    let retry_after = retry_after.await;
    assert!((Duration::from_millis(2400)..=Duration::from_millis(3600)).contains(&retry_after), "{retry_after:?}");
    rpc.abort();
}

// === TLS to the control plane ===

#[tokio::test]
async fn the_control_plane_is_reached_over_tls() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let files = Files::new();
    let ca = Authority::new();
    let front = TlsFront::start(server.addr(), ca.server_config(None)).await;
    files.write("ca.pem", &ca.pem());
    // By address and by name: the certificate has both.
    for host in ["127.0.0.1", "localhost"] {
        let tls = CertificateFiles::default().with_ca_certificate_file(files.path("ca.pem"));
        let server = ServerConfig::tls(format!("{host}:{}", front.address.port()), tls);
        assert_eq!(call(&mut client(server)).await.unwrap(), "one");
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_and_a_new_one_is_used_for_the_next_connection() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let (files, ca, clients) = (Files::new(), Authority::new(), Authority::new());
    let mut front = TlsFront::start(server.addr(), ca.server_config(Some(&clients))).await;
    files.write("ca.pem", &ca.pem());
    let (first, second) = (clients.issue("first"), clients.issue("second"));
    files.write_identity(&first);
    let tls = CertificateFiles::default()
        .with_ca_certificate_file(files.path("ca.pem"))
        .with_identity(files.path("cert.pem"), files.path("key.pem"));
    let mut client = client(ServerConfig::tls(front.address.to_string(), tls));
    assert_eq!(call(&mut client).await.unwrap(), "one");
    assert_eq!(front.next_client().await, Some(first.certificate()));

    files.write_identity(&second);
    server.stop().await;
    server.control_plane().set(service(&[&two]));
    server.start().unwrap();
    crate::common::until_answered_by(&mut client, "two").await;
    assert_eq!(front.next_client().await, Some(second.certificate()));
}

#[tokio::test]
async fn a_missing_client_certificate_is_refused_by_the_server() {
    let server = control_plane(Snapshot::default()).await;
    let (files, ca, clients) = (Files::new(), Authority::new(), Authority::new());
    let front = TlsFront::start(server.addr(), ca.server_config(Some(&clients))).await;
    files.write("ca.pem", &ca.pem());
    let tls = CertificateFiles::default().with_ca_certificate_file(files.path("ca.pem"));
    let text = failure(ServerConfig::tls(front.address.to_string(), tls)).await;
    let address = front.address;
    let expected =
        format!("cannot connect: {address} broke the connection off before it said anything: received fatal alert");
    assert!(text.contains(&expected) && text.contains("CertificateRequired"), "{text}");
}

#[tokio::test]
async fn a_server_of_another_authority_is_named_with_the_cause_and_used_once_it_is_trusted() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let (files, ca, stranger) = (Files::new(), Authority::new(), Authority::new());
    let front = TlsFront::start(server.addr(), ca.server_config(None)).await;
    files.write("ca.pem", &stranger.pem());
    let tls = CertificateFiles::default().with_ca_certificate_file(files.path("ca.pem"));
    let mut client = client(ServerConfig::tls(front.address.to_string(), tls));
    let status = call(&mut client).await.unwrap_err();
    let expected = format!(
        "no usable configuration for xds:///service: Listener \"service\" cannot be fetched from {0} (node \"tls\"), \
         which is unreachable: cannot connect: TLS handshake with {0} (server name 127.0.0.1) failed: \
         invalid peer certificate: ",
        front.address
    );
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with(&expected), "{}", status.message());

    // A65: the file is read again.
    files.write("ca.pem", &ca.pem());
    assert_eq!(until_answered(&mut client).await, "one");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let files = Files::new();
    files.write("empty.pem", "");
    let (missing, empty) = (files.path("missing.pem"), files.path("empty.pem"));
    let with_ca = |path: &PathBuf| CertificateFiles::default().with_ca_certificate_file(path.clone());
    let with_bundles = |path: &PathBuf| CertificateFiles::default().with_spiffe_trust_bundle_map_file(path.clone());
    for (tls, expected) in [
        (with_ca(&missing), format!("{}: No such file", missing.display())),
        (with_ca(&empty), format!("{}: no certificate in it: expected PEM", empty.display())),
        (with_bundles(&missing), format!("{}: No such file", missing.display())),
        (with_bundles(&empty), format!("{}: SPIFFE bundle map: EOF while parsing", empty.display())),
    ] {
        let text = failure(ServerConfig::tls("127.0.0.1:1", tls)).await;
        assert!(text.contains(&expected), "{text}");
    }
}

/// A65, A87: a control plane that is a workload is known by its SPIFFE id, not by a host name.
#[tokio::test]
async fn a_control_plane_is_vouched_for_by_its_trust_domain() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let (files, ca) = (Files::new(), Authority::new());
    files.write("bundles.json", &ca.bundle_map("example.com"));
    let tls = CertificateFiles::default().with_spiffe_trust_bundle_map_file(files.path("bundles.json"));
    let known = ca.serve_as(ca.issue_to_workload(&["spiffe://example.com/control-plane"]));
    let front = TlsFront::start(server.addr(), known).await;
    assert_eq!(call(&mut client(ServerConfig::tls(front.address.to_string(), tls.clone()))).await.unwrap(), "one");
    let unknown = ca.serve_as(ca.issue_to_workload(&["spiffe://example.org/control-plane"]));
    let front = TlsFront::start(server.addr(), unknown).await;
    let text = failure(ServerConfig::tls(front.address.to_string(), tls)).await;
    assert!(text.contains("trust domain \"example.org\" of the certificate is not in the SPIFFE bundle map"), "{text}");
}

#[tokio::test]
async fn a_token_is_never_sent_in_the_clear() {
    // S-98.
    let server = control_plane(Snapshot::default()).await;
    let mut config = ServerConfig::insecure(server.addr().to_string());
    config.call_creds = vec![CallCreds::JwtTokenFile("token".into())];
    let text = failure(config).await;
    assert!(text.contains("call credentials need a secure connection"), "{text}");
    assert_eq!(server.stats().streams, 0);
}

#[tokio::test]
async fn a_token_is_shown_to_the_server_and_kept_until_it_expires() {
    // A97, S-95: the file is not read again for a second stream.
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut relay = Relay::to(&server, None).await;
    let (files, ca) = (Files::new(), Authority::new());
    let front = TlsFront::start(relay.address(), ca.server_config(None)).await;
    files.write("ca.pem", &ca.pem());
    // {"exp": 99999999999}
    let token = "e30.eyJleHAiOiA5OTk5OTk5OTk5OX0.c2lnbmVk";
    files.write("token", &format!("{token}\n"));
    let tls = CertificateFiles::default().with_ca_certificate_file(files.path("ca.pem"));
    let mut config = ServerConfig::tls(front.address.to_string(), tls);
    config.call_creds = vec![CallCreds::JwtTokenFile(files.path("token"))];
    let mut client = client(config);
    assert_eq!(call(&mut client).await.unwrap(), "one");
    let shown = Some(format!("Bearer {token}"));
    assert_eq!(in_time(relay.next_token()).await, shown);

    files.write("token", "gone");
    server.close_streams(Code::Aborted);
    assert_eq!(in_time(relay.next_token()).await, shown);
}

#[tokio::test]
async fn a_file_without_a_usable_token_is_named_with_the_reason() {
    // S-96: streams without a token are not opened.
    let server = control_plane(Snapshot::default()).await;
    let (files, ca) = (Files::new(), Authority::new());
    let front = TlsFront::start(server.addr(), ca.server_config(None)).await;
    files.write("ca.pem", &ca.pem());
    // The last one: {"exp": 1}
    for (content, expected) in [
        (None, "No such file"),
        (Some("secret"), "not a JSON Web Token"),
        (Some("e30.eyJleHAiOiAxfQ.c2lnbmVk"), "the token has expired"),
    ] {
        content.into_iter().for_each(|content| files.write("token", content));
        let tls = CertificateFiles::default().with_ca_certificate_file(files.path("ca.pem"));
        let mut config = ServerConfig::tls(front.address.to_string(), tls);
        config.call_creds = vec![CallCreds::JwtTokenFile(files.path("token"))];
        let text = failure(config).await;
        assert!(text.contains(&format!("{}: {expected}", files.path("token").display())), "{text}");
    }
    assert_eq!(server.stats().streams, 0);
}

// === Forms of server_uri ===

#[tokio::test]
async fn a_unix_socket_leads_to_the_control_plane() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let files = Files::new();
    let path = files.path("xds.sock");
    let (listener, target) = (UnixListener::bind(&path).unwrap(), server.addr());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(pass_on(stream, target));
        }
    });
    for uri in [format!("unix:{}", path.display()), format!("unix://{}", path.display())] {
        assert_eq!(call(&mut client(ServerConfig::insecure(uri))).await.unwrap(), "one");
    }
}

#[tokio::test]
async fn a_dead_first_address_is_passed_over() {
    let [one] = backends(["one"]).await;
    let [server, dead] = [control_plane(service(&[&one])).await, control_plane(Snapshot::default()).await];
    dead.stop().await;
    let uri = format!("ipv4:{},{}", dead.addr(), server.addr());
    assert_eq!(call(&mut client(ServerConfig::insecure(uri))).await.unwrap(), "one");
}

#[tokio::test]
async fn a_first_address_that_keeps_silent_costs_a_quarter_of_a_second() {
    // Happy Eyeballs (RFC 8305): the connect timeout of 20 s is not waited for.
    let [one] = backends(["one"]).await;
    let [server, silent] = [control_plane(service(&[&one])).await, control_plane(Snapshot::default()).await];
    silent.faults().black_hole(true);
    let uri = format!("ipv4:{},{}", silent.addr(), server.addr());
    assert_eq!(call(&mut client(ServerConfig::insecure(uri))).await.unwrap(), "one");
}

#[tokio::test]
async fn every_address_that_failed_is_named() {
    let [one, two] = [control_plane(Snapshot::default()).await, control_plane(Snapshot::default()).await];
    one.stop().await;
    two.stop().await;
    let text = failure(ServerConfig::insecure(format!("ipv4:{},{}", one.addr(), two.addr()))).await;
    for server in [&one, &two] {
        assert!(text.contains(&format!("{}: Connection refused", server.addr())), "{text}");
    }
}

#[tokio::test]
async fn names_are_resolved_by_the_system_or_by_a_resolver_of_ones_own() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let port = server.addr().port();
    for host in [format!("dns:///localhost:{port}"), format!("localhost:{port}")] {
        assert_eq!(call(&mut client(ServerConfig::insecure(host))).await.unwrap(), "one");
    }
    let own = builder(ServerConfig::insecure(format!("xds.test:{port}"))).dns(OneName).build().unwrap();
    assert_eq!(call(&mut Client::new(own)).await.unwrap(), "one");
    let unknown = builder(ServerConfig::insecure("other.test:1")).dns(OneName).build().unwrap();
    let text = call(&mut Client::new(unknown)).await.unwrap_err().message().to_owned();
    assert!(text.contains("other.test:1: cannot resolve \"other.test\": no such name"), "{text}");
}

#[tokio::test]
async fn a_server_uri_that_cannot_be_used_makes_only_that_server_unreachable() {
    // B-49.
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let bootstrap = Bootstrap::builder()
        .server(ServerConfig::insecure("carrier://pigeon"))
        .server(ServerConfig::insecure(server.addr().to_string()))
        .build()
        .unwrap();
    let channel = Channel::builder("xds:///service").bootstrap(bootstrap).build().unwrap();
    assert_eq!(call(&mut Client::new(channel)).await.unwrap(), "one");
    let text = failure(ServerConfig::insecure("carrier://pigeon")).await;
    assert!(text.contains("the scheme \"carrier\" is not supported"), "{text}");
}

// === Connections and streams ===

#[tokio::test]
async fn a_connection_carries_the_streams_of_a_hundred_targets_and_no_more() {
    // RFC 9113, section 6.5.2: a server need not take more, and what it does not take waits without a word.
    let [one] = backends(["one"]).await;
    let names: Vec<_> = (0..101).map(|i| format!("service-{i}")).collect();
    let listeners = names.iter().map(|name| resources::listener(name, resources::route("service", "service")));
    let server = control_plane(
        Snapshot::builder()
            .resources(listeners)
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [one.addr()])),
    )
    .await;
    let bootstrap = bootstrap(ServerConfig::insecure(server.addr().to_string()));
    let mut clients = Vec::new();
    for name in &names {
        let channel = Channel::builder(format!("xds:///{name}")).bootstrap(bootstrap.clone()).build().unwrap();
        let mut client = Client::new(channel);
        assert_eq!(call(&mut client).await.unwrap(), "one");
        clients.push(client);
    }
    assert_eq!((server.stats().open_connections, server.stats().open_streams), (2, 101));
    drop(clients);
    until_left_alone(&server).await;
}

#[tokio::test]
async fn a_server_that_allows_two_streams_gets_another_connection_for_the_next_two() {
    // RFC 9113, section 5.1.2. A stream that waits for a place asks for nothing, and nothing it wants may be called
    // absent.
    let [one] = backends(["one"]).await;
    let names = ["a", "b", "c", "d"];
    let listeners = names.map(|name| resources::listener(name, resources::route("service", "service")));
    let server = control_plane(
        Snapshot::builder()
            .resources(listeners)
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [one.addr()])),
    )
    .await;
    let relay = Relay::to(&server, Some(2)).await;
    let proxy = Proxy::to(relay.address()).await;
    let bootstrap = bootstrap(ServerConfig::insecure(proxy.address().to_string()));
    let clients: Vec<_> = names
        .into_iter()
        .map(|name| Channel::builder(format!("xds:///{name}")).bootstrap(bootstrap.clone()).build().unwrap())
        .map(Client::new)
        .collect();
    for mut client in clients.clone() {
        assert_eq!(call(&mut client).await.unwrap(), "one");
    }
    assert_eq!(proxy.connections(), 2);
}

#[test]
fn runtimes_do_not_share_a_connection() {
    // It is carried by a task, which ends with its runtime.
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (servers, mine, other) = (runtime(), runtime(), runtime());
    let ([one], server) = servers.block_on(async {
        let backends = backends(["one"]).await;
        let server = control_plane(service(&[&backends[0]])).await;
        (backends, server)
    });
    let config = ServerConfig::insecure(server.addr().to_string());
    let [mut first, mut second] = [&mine, &other].map(|runtime| runtime.block_on(async { client(config.clone()) }));
    assert_eq!(other.block_on(call(&mut second)).unwrap(), "one");
    assert_eq!(mine.block_on(call(&mut first)).unwrap(), "one");
    assert_eq!(server.stats().connections, 2);

    other.shutdown_background();
    servers.block_on(async { server.control_plane().set(service(&[])) });
    mine.block_on(until_failed(&mut first));
    assert_eq!(server.stats().connections, 2, "the stream of the other runtime was not disturbed");
    drop(one);
}

// === TLS to endpoints ===

#[tokio::test]
async fn endpoints_are_reached_over_tls_under_the_name_of_the_target() {
    let ca = Authority::new();
    let issued = ca.issue("service");
    let identity = Identity::from_pem(&issued.certificate_pem, &issued.key_pem);
    let backend = Backend::builder("secure").tls(ServerTlsConfig::new().identity(identity));
    let backend = backend.spawn("127.0.0.1:0").await.unwrap();
    let server = control_plane(service(&[&backend])).await;
    let channel = || builder(ServerConfig::insecure(server.addr().to_string()));

    let trusting = channel().credentials(ca.client_credentials()).build().unwrap();
    assert_eq!(call(&mut Client::new(trusting)).await.unwrap(), "secure");

    let stranger = channel().credentials(Authority::new().client_credentials()).build().unwrap();
    let text = call(&mut Client::new(stranger)).await.unwrap_err().message().to_owned();
    for part in
        ["RPC to xds:///service", "cluster \"service\"", &backend.addr().to_string(), "invalid peer certificate"]
    {
        assert!(text.contains(part), "{text}");
    }

    let misnamed = channel().credentials(ca.client_credentials()).authority("impostor").build().unwrap();
    let text = call(&mut Client::new(misnamed)).await.unwrap_err().message().to_owned();
    assert!(text.contains("server name impostor"), "{text}");
}

#[tokio::test]
async fn an_endpoint_that_speaks_no_tls_is_not_talked_to_in_plain() {
    let [plain] = backends(["plain"]).await;
    let server = control_plane(
        Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [plain.addr()])),
    )
    .await;
    let channel = builder(ServerConfig::insecure(server.addr().to_string()));
    let channel = channel.credentials(Authority::new().client_credentials()).build().unwrap();
    let status = call(&mut Client::new(channel)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&format!("TLS handshake with {}", plain.addr())), "{}", status.message());
    assert_eq!(plain.requests(), 0);
}

// === Helpers ===

fn bootstrap(server: ServerConfig) -> Bootstrap {
    let node = Node::new("tls");
    Bootstrap::builder().node(node).server(server).build().unwrap()
}

fn builder(server: ServerConfig) -> ChannelBuilder {
    Channel::builder("xds:///service")
        .bootstrap(bootstrap(server))
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
}

fn client(server: ServerConfig) -> Client {
    Client::new(builder(server).build().unwrap())
}

/// Why a channel with this server has no configuration.
async fn failure(server: ServerConfig) -> String {
    call(&mut client(server)).await.unwrap_err().message().to_owned()
}

/// Calls until one is answered.
async fn until_answered(client: &mut Client) -> String {
    let answered = async {
        loop {
            if let Ok(id) = call(client).await {
                return id;
            }
            tokio::task::yield_now().await;
        }
    };
    in_time(answered).await
}

/// Knows that `xds.test` is here, and nothing else.
#[derive(Debug)]
struct OneName;

impl ResolveHost for OneName {
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        Box::pin(async move {
            if host == "xds.test" { Ok(vec![[127, 0, 0, 1].into()]) } else { Err("no such name".to_owned()) }
        })
    }
}

/// Ends TLS in front of a control plane.
struct TlsFront {
    address: SocketAddr,
    clients: mpsc::UnboundedReceiver<Option<CertificateDer<'static>>>,
}

impl TlsFront {
    async fn start(target: SocketAddr, config: rustls::ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, clients) = mpsc::unbounded_channel();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), seen.clone());
                tokio::spawn(async move {
                    // Whoever fails the handshake hears why from rustls.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
                    let _ = seen.send(shown.map(CertificateDer::into_owned));
                    pass_on(stream, target).await;
                });
            }
        });
        Self { address, clients }
    }

    /// The certificate of the next client, if it showed one.
    async fn next_client(&mut self) -> Option<CertificateDer<'static>> {
        in_time(self.clients.recv()).await.expect("a front that lives")
    }
}

async fn pass_on(mut stream: impl AsyncRead + AsyncWrite + Unpin, target: SocketAddr) {
    if let Ok(mut onward) = TcpStream::connect(target).await {
        let _ = copy_bidirectional(&mut stream, &mut onward).await;
    }
}
