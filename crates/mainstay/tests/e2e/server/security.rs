//! Connections to servers, secured as the control plane says (A29, A87), and never otherwise.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use envoy_types::util::pack_any;
use mainstay::bootstrap::{Bootstrap, CertificateFiles, Node, ServerConfig};
use mainstay::certificates::Identity;
use mainstay::{Channel, Credentials, Peer, ServerBuilder, ServerCredentials, TlsInfo};
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::proto::SimpleRequest;
use rcgen::CertificateParams;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::raw::RawHttp2;
use super::stage::{PlainClient, Stage, call};
use super::updates::{Streaming, named};
use crate::common::{self, Client, in_time};
use crate::pki::{Authority, Files, Issued, provider};

/// A29: a plain tonic client and our own channel prove who they are, and learn who the server is.
#[tokio::test]
async fn both_sides_prove_who_they_are() {
    let pki = Pki::new();
    let stage = pki.serving(Wanted::Required).await;
    let issued = pki.ca.issue("plain-client");
    let mut plain = pki.plain(&stage, Some(&issued)).await.unwrap();
    assert_eq!(call(&mut plain).await.unwrap(), "one");
    let peer = stage.seen.last_peer();
    assert_eq!(peer.principal(), Some("plain-client"));
    assert_eq!(peer.tls().unwrap().certificate(), Some(&*issued.der));
    assert_eq!(peer.tls().unwrap().alpn(), Some("h2"));
    assert_eq!(stage.seen.last_certificates().first(), Some(&issued.der), "SV-2: as tonic tells handlers");

    let control = pki.service_at(&stage).await;
    let mut client = pki.channel(&control);
    let response = in_time(client.unary_call(SimpleRequest::default())).await.unwrap();
    let server = response.extensions().get::<Peer>().unwrap();
    assert_eq!((server.principal(), server.address()), (Some("server"), stage.address));
    assert_eq!(stage.seen.last_peer().principal(), Some("client"));
}

/// TL-15: channelz has the certificates of both sides, and both ends show the same.
#[tokio::test]
async fn channelz_shows_both_certificates() {
    use crate::channelz_v1::security::Model;
    let pki = Pki::new();
    let stage = pki.serving(Wanted::Required).await;
    let issued = pki.ca.issue("plain-client");
    let mut plain = pki.plain(&stage, Some(&issued)).await.unwrap();
    call(&mut plain).await.unwrap();
    let [socket] = &super::admin::sockets(stage.address).await[..] else { panic!("one connection") };
    let Some(Model::Tls(tls)) = socket.security.clone().unwrap().model else { panic!("TLS") };
    assert_eq!(tls.local_certificate, pki.server_der);
    assert_eq!(tls.remote_certificate, issued.der.to_vec());
    assert!(tls.cipher_suite.is_some());
}

/// TL-1, TL-5, TL-11: whatever is wrong with a caller fails its connection, and nothing reaches a handler.
#[tokio::test]
async fn callers_that_are_not_let_in_reach_no_handler() {
    let pki = Pki::new();
    let stage = pki.serving(Wanted::Required).await;
    let mut expired = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let mut early = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    early.not_before = rcgen::date_time_ymd(2999, 1, 1);
    let mut for_servers = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    for_servers.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (expired, early, for_servers) = (expired.clone(), early.clone(), for_servers.clone());
        for (what, issued, alpn) in [
            ("expired", Some(pki.ca.issue_as(expired)), &[&b"h2"[..]][..]),
            ("not valid yet", Some(pki.ca.issue_as(early)), &[b"h2"]),
            ("of another authority", Some(Authority::new().issue("client")), &[b"h2"]),
            ("for servers only", Some(pki.ca.issue_as(for_servers)), &[b"h2"]),
            ("no certificate", None, &[b"h2"]),
            ("no ALPN", Some(pki.ca.issue("client")), &[]),
            ("another protocol", Some(pki.ca.issue("client")), &[b"http/1.1"]),
        ] {
            let config = pki.client_config(issued, alpn, version);
            assert!(!tls_request(stage.address, config).await, "{what}, {version:?}");
        }
        let good = pki.client_config(Some(pki.ca.issue("client")), &[b"h2"], version);
        assert!(tls_request(stage.address, good).await, "{version:?}");
    }
    assert_eq!(stage.seen.requests(), 2);
    // Plaintext to a port with TLS: not one frame of HTTP/2 comes back.
    let mut stream = TcpStream::connect(stage.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut heard = Vec::new();
    let _ = in_time(stream.read_to_end(&mut heard)).await;
    assert!(heard.is_empty() || heard[0] == 0x15, "an alert, if anything: {heard:?}");
    assert_eq!(stage.seen.requests(), 2);
}

/// TLS to a port in plaintext comes to nothing.
#[tokio::test]
async fn tls_to_plaintext_fails() {
    let pki = Pki::new();
    let stage = Stage::serving().await;
    let config = pki.client_config(None, &[b"h2"], &rustls::version::TLS13);
    assert!(!tls_request(stage.address, config).await);
    assert_eq!(stage.seen.requests(), 0);
}

/// S-24: without `require_client_certificate` callers may have none. What they have must be good.
#[tokio::test]
async fn client_certificates_may_be_optional() {
    let pki = Pki::new();
    for (wanted, known) in [(Wanted::Optional, Some("client")), (Wanted::Nothing, None)] {
        let stage = pki.serving(wanted).await;
        call(&mut pki.plain(&stage, None).await.unwrap()).await.unwrap();
        let peer = stage.seen.last_peer();
        assert!(peer.tls().is_some() && peer.principal().is_none(), "{peer:?}");
        call(&mut pki.plain(&stage, Some(&pki.ca.issue("client"))).await.unwrap()).await.unwrap();
        assert_eq!(stage.seen.last_peer().principal(), known);
        let stranger = pki.client_config(Some(Authority::new().issue("client")), &[b"h2"], &rustls::version::TLS13);
        assert_eq!(tls_request(stage.address, stranger).await, wanted == Wanted::Nothing, "nobody asks, nobody minds");
    }
}

/// TL-10: with a bundle map, callers are workloads of the trust domains in it.
#[tokio::test]
async fn workloads_are_let_in_by_their_trust_domain() {
    let pki = Pki::new();
    pki.files.write("bundles.json", &pki.ca.bundle_map("example.com"));
    let watched = pki.watched().with_spiffe_trust_bundle_map_file(pki.files.path("bundles.json"));
    let stage = pki.serving_with(Wanted::Required, watched, |builder| builder).await;
    for (what, issued, let_in) in [
        ("ours", pki.ca.issue_to_workload(&["spiffe://example.com/shop"]), true),
        ("of a domain that is not known", pki.ca.issue_to_workload(&["spiffe://example.org/shop"]), false),
        ("with two ids", pki.ca.issue_to_workload(&["spiffe://example.com/a", "spiffe://example.com/b"]), false),
        ("no workload", pki.ca.issue("client"), false),
        ("a stranger", Authority::new().issue_to_workload(&["spiffe://example.com/shop"]), false),
    ] {
        let config = pki.client_config(Some(issued), &[b"h2"], &rustls::version::TLS13);
        assert_eq!(tls_request(stage.address, config).await, let_in, "{what}");
    }
    assert_eq!(stage.seen.last_peer().principal(), Some("spiffe://example.com/shop"));
}

/// TL-1: the fallback is for filter chains that ask for nothing. Whatever else is missing, there is no plaintext.
#[tokio::test]
async fn missing_certificates_never_lead_to_plaintext() {
    let pki = Pki::new();
    std::fs::remove_file(pki.files.path("key.pem")).unwrap();
    let stage = pki
        .serving_with(Wanted::Nothing, pki.watched(), |builder| builder.handshake_timeout(Duration::from_millis(300)))
        .await;
    let mut stream = TcpStream::connect(stage.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut heard = Vec::new();
    let _ = in_time(stream.read_to_end(&mut heard)).await;
    assert!(heard.is_empty(), "{heard:?}");
    let config = pki.client_config(None, &[b"h2"], &rustls::version::TLS13);
    assert!(!tls_request(stage.address, config).await);
    assert_eq!(stage.seen.requests(), 0);
    // TL-14: they come, and callers are let in, with nothing to be told to the server.
    pki.files.write_identity(&pki.ca.issue("server"));
    in_time(async { while pki.plain(&stage, None).await.is_err() {} }).await;
}

/// TL-11: a session that is resumed is not verified again, so there are none where callers are verified.
#[tokio::test]
async fn sessions_of_callers_with_certificates_are_not_resumed() {
    let pki = Pki::new();
    for (wanted, second) in [(Wanted::Required, HandshakeKind::Full), (Wanted::Nothing, HandshakeKind::Resumed)] {
        let stage = pki.serving(wanted).await;
        let config = pki.client_config(Some(pki.ca.issue("client")), &[b"h2"], &rustls::version::TLS13);
        let connector = TlsConnector::from(Arc::new(config));
        for expected in [HandshakeKind::Full, second] {
            let stream = TcpStream::connect(stage.address).await.unwrap();
            let secured = in_time(connector.connect(ServerName::try_from("server").unwrap(), stream)).await.unwrap();
            assert_eq!(secured.get_ref().1.handshake_kind(), Some(expected), "{wanted:?}");
            assert!(http2_request(secured).await);
        }
    }
}

/// SV-24, SV-20: callers that do not finish their handshake hold up others no longer than it may take.
#[tokio::test]
async fn handshakes_are_few_at_a_time_and_bounded() {
    let pki = Pki::new();
    let build = |builder: ServerBuilder| builder.max_handshakes(1).handshake_timeout(Duration::from_millis(300));
    let stage = pki.serving_with(Wanted::Nothing, pki.watched(), build).await;
    let began = Instant::now();
    let _silent = TcpStream::connect(stage.address).await.unwrap();
    let mut caller = pki.plain(&stage, None).await.unwrap();
    assert_eq!(call(&mut caller).await.unwrap(), "one");
    assert!(began.elapsed() >= Duration::from_millis(250), "it had to wait: {:?}", began.elapsed());
}

/// S-21: and where a chain asks for nothing, the fallback is used, which may be TLS.
#[tokio::test]
async fn a_chain_without_a_tls_context_has_the_fallback() {
    let pki = Pki::new();
    let plain = Stage::with(|builder| builder.credentials(ServerCredentials::xds(ServerCredentials::insecure()))).await;
    plain.set(plain.listener());
    plain.until_serving().await;
    assert_eq!(call(&mut plain.caller().await).await.unwrap(), "one");

    let issued = pki.ca.issue("server");
    let identity = Identity::from_pem(issued.certificate_pem.as_bytes(), issued.key_pem.as_bytes()).unwrap();
    let own = ServerCredentials::tls_from_pem(identity, Some(pki.ca.pem().as_bytes())).unwrap();
    for credentials in [ServerCredentials::xds(own.clone()), own] {
        let stage = Stage::with(|builder| builder.credentials(credentials)).await;
        stage.set(stage.listener());
        stage.until_serving().await;
        call(&mut pki.plain(&stage, Some(&pki.ca.issue("client"))).await.unwrap()).await.unwrap();
        assert_eq!(stage.seen.last_peer().principal(), Some("client"));
        let without = pki.client_config(None, &[b"h2"], &rustls::version::TLS13);
        assert!(!tls_request(stage.address, without).await);
    }
}

/// TL-3, TL-13: certificates are rotated under load on both sides. No RPC fails, new connections have the new certificate, and
/// old ones go on.
#[tokio::test]
async fn certificates_are_rotated_under_load() {
    let pki = Pki::new();
    let stage = pki.serving(Wanted::Required).await;
    let control = pki.service_at(&stage).await;
    let mut streaming = Streaming::begin(pki.plain(&stage, Some(&pki.ca.issue("client"))).await.unwrap()).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut load = Vec::new();
    for _ in 0..2 {
        let (mut client, stopped) = (pki.channel(&control), stopped.clone());
        load.push(tokio::spawn(async move {
            let mut calls = 0_u64;
            while !*stopped.borrow() {
                common::call(&mut client).await.unwrap_or_else(|status| panic!("call {calls}: {status}"));
                calls += 1;
            }
            calls
        }));
    }
    for number in 0..3 {
        let (server, client) = (pki.ca.issue("server"), pki.ca.issue("client"));
        pki.files.replace_identity(&server);
        pki.clients.replace_identity(&client);
        let began = Instant::now();
        while pki.presented_by(&stage).await != server.der {
            assert!(began.elapsed() < Duration::from_secs(10), "new connections have the new certificate");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A new Listener makes the channels of the load connect anew, until what they present is new, too.
        let mut attempt = 0;
        while stage.seen.last_peer().tls().and_then(TlsInfo::certificate) != Some(&*client.der) {
            assert!(began.elapsed() < Duration::from_secs(20), "and so do callers");
            attempt += 1;
            let chain = format!("chain {number}.{attempt}");
            stage.set(pki.secured(named(&chain, &stage), Wanted::Required));
            in_time(async {
                while stage.seen.last_peer().filter_chain() != Some(&chain) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        }
        streaming.exchange().await;
    }
    stop.send_replace(true);
    let mut calls = 0;
    for caller in load {
        calls += in_time(caller).await.expect("no call failed");
    }
    assert!(calls > 30, "{calls}");
    streaming.finish().await;
}

/// SV-22: a handshake under way when its chain is replaced is finished with what it began with, and its connection then drained.
#[tokio::test]
async fn a_handshake_outlives_its_filter_chain() {
    let pki = Pki::new();
    let stage = pki.serving(Wanted::Nothing).await;
    // A connection that is accepted, and whose caller takes its time.
    let stream = TcpStream::connect(stage.address).await.unwrap();
    stage.control.control_plane().set(Snapshot::builder().listener(named("plain", &stage)));
    in_time(async {
        loop {
            // Until new connections have the new chain, they are spoken to in TLS.
            if let Ok(mut client) = super::stage::connect(stage.address).await
                && call(&mut client).await.is_ok()
            {
                break;
            }
        }
    })
    .await;
    let config = pki.client_config(None, &[b"h2"], &rustls::version::TLS13);
    let connector = TlsConnector::from(Arc::new(config));
    let secured = in_time(connector.connect(ServerName::try_from("server").unwrap(), stream)).await.unwrap();
    let mut raw = RawHttp2::over(secured).await;
    let goaway = raw.next().await.expect("a word");
    assert_eq!(goaway.kind, super::raw::GOAWAY);
}

/// TL-2: credentials that do not follow the control plane stay as they are, whatever it asks for.
#[tokio::test]
async fn other_credentials_ignore_a_tls_context() {
    let pki = Pki::new();
    let stage =
        Stage::with_bootstrap(|parts| parts.certificate_provider("files", pki.watched()), |server| server, |b| b).await;
    stage.set(pki.secured(stage.listener(), Wanted::Required));
    stage.until_serving().await;
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
}

/// Whether client certificates are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Required,
    Optional,
    Nothing,
}

/// TL-2: and where xDS security is required, such a Listener is not served, and one that was is not any more.
#[tokio::test]
async fn a_listener_that_asks_for_tls_in_vain_is_not_served_where_xds_security_is_required() {
    let pki = Pki::new();
    let own = || {
        let issued = pki.ca.issue("own");
        let identity = Identity::from_pem(issued.certificate_pem.as_bytes(), issued.key_pem.as_bytes()).unwrap();
        ServerCredentials::tls_from_pem(identity, None).unwrap()
    };
    for credentials in [ServerCredentials::insecure(), own()] {
        let mut stage = Stage::with_bootstrap(
            |parts| parts.certificate_provider("files", pki.watched()),
            |server| server,
            |builder| builder.credentials(credentials).require_xds_security(true),
        )
        .await;
        stage.set(stage.listener());
        assert_eq!(stage.next_state().await.to_string(), "serving", "a Listener that asks for nothing");
        stage.set(pki.secured(stage.listener(), Wanted::Nothing));
        let expected = format!(
            "not serving: Listener {:?} from {}: filter chain \"default_filter_chain\" asks for TLS in its \
             transport_socket, which the credentials of the server do not follow",
            super::stage::name(stage.address),
            stage.control.addr()
        );
        assert_eq!(stage.next_state().await.to_string(), expected);
        stage.set(stage.listener());
        assert_eq!(stage.next_state().await.to_string(), "serving");
    }
    // Credentials that follow the control plane have nothing to refuse.
    let require = |builder: ServerBuilder| builder.require_xds_security(true);
    let stage = pki.serving_with(Wanted::Nothing, pki.watched(), require).await;
    call(&mut pki.plain(&stage, None).await.unwrap()).await.unwrap();
}

/// An authority that everyone trusts, and files with what servers and clients need.
pub(crate) struct Pki {
    pub(crate) ca: Authority,
    files: Files,
    clients: Files,
    server_der: Vec<u8>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let (ca, files, clients) = (Authority::new(), Files::new(), Files::new());
        let server = ca.issue("server");
        files.write("ca.pem", &ca.pem());
        files.write_identity(&server);
        clients.write("ca.pem", &ca.pem());
        clients.write_identity(&ca.issue("client"));
        Self { ca, files, clients, server_der: server.der.to_vec() }
    }

    pub(crate) fn watched(&self) -> CertificateFiles {
        watched(&self.files)
    }

    async fn serving(&self, wanted: Wanted) -> Stage {
        self.serving_with(wanted, self.watched(), |builder| builder).await
    }

    pub(crate) async fn serving_with(
        &self,
        wanted: Wanted,
        watched: CertificateFiles,
        build: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Stage {
        let credentials = ServerCredentials::xds(ServerCredentials::insecure());
        let stage = Stage::with_bootstrap(
            |parts| parts.certificate_provider("files", watched),
            |server| server,
            |builder| build(builder.credentials(credentials)),
        )
        .await;
        stage.set(self.secured(stage.listener(), wanted));
        stage.until_serving().await;
        stage
    }

    /// The Listener with a TLS context.
    pub(crate) fn secured(&self, mut listener: Listener, wanted: Wanted) -> Listener {
        let validation = tls::CertificateValidationContext {
            ca_certificate_provider_instance: Some(instance()),
            ..Default::default()
        };
        let common = tls::CommonTlsContext {
            tls_certificate_provider_instance: Some(instance()),
            validation_context_type: (wanted != Wanted::Nothing)
                .then_some(tls::common_tls_context::ValidationContextType::ValidationContext(validation)),
            ..Default::default()
        };
        let context = tls::DownstreamTlsContext {
            common_tls_context: Some(common),
            require_client_certificate: Some(BoolValue { value: wanted == Wanted::Required }),
            ..Default::default()
        };
        let chain = listener.default_filter_chain.as_mut().expect("a chain");
        chain.transport_socket = Some(socket(pack_any(context)));
        listener
    }

    /// A plain tonic client with TLS.
    pub(crate) async fn plain(
        &self,
        stage: &Stage,
        issued: Option<&Issued>,
    ) -> Result<PlainClient, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.ca.pem())).domain_name("server");
        if let Some(issued) = issued {
            tls = tls.identity(tonic::transport::Identity::from_pem(&issued.certificate_pem, &issued.key_pem));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", stage.address)).unwrap().tls_config(tls)?;
        in_time(endpoint.connect()).await.map(PlainClient::new)
    }

    fn client_config(
        &self,
        issued: Option<Issued>,
        alpn: &[&[u8]],
        version: &'static rustls::SupportedProtocolVersion,
    ) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version]).unwrap();
        let builder = builder.with_root_certificates(self.ca.roots());
        let mut config = match issued {
            None => builder.with_no_client_auth(),
            Some(issued) => builder.with_client_auth_cert(vec![issued.der], issued.key).unwrap(),
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }

    /// What the server presents to a new connection.
    async fn presented_by(&self, stage: &Stage) -> CertificateDer<'static> {
        let config = self.client_config(Some(self.ca.issue("probe")), &[b"h2"], &rustls::version::TLS13);
        let stream = TcpStream::connect(stage.address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let secured = in_time(connector.connect(ServerName::try_from("server").unwrap(), stream)).await.unwrap();
        secured.get_ref().1.peer_certificates().unwrap()[0].clone()
    }

    /// A control plane for clients of the server, over mTLS.
    async fn service_at(&self, stage: &Stage) -> Server {
        let common = tls::CommonTlsContext {
            tls_certificate_provider_instance: Some(instance()),
            validation_context_type: Some(tls::common_tls_context::ValidationContextType::ValidationContext(
                tls::CertificateValidationContext {
                    ca_certificate_provider_instance: Some(instance()),
                    ..Default::default()
                },
            )),
            ..Default::default()
        };
        let context = tls::UpstreamTlsContext { common_tls_context: Some(common), ..Default::default() };
        let cluster =
            Cluster { transport_socket: Some(socket(pack_any(context))), ..resources::eds_cluster("service") };
        let snapshot = Snapshot::builder()
            .listener(resources::listener("service", resources::rds("service")))
            .route(resources::route("service", "service"))
            .cluster(cluster)
            .endpoints(resources::endpoints("service", [stage.address]));
        common::control_plane(snapshot).await
    }

    /// A channel of its own, with the certificate of clients.
    fn channel(&self, control: &Server) -> Client {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        // Channels with equal settings share connections.
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bootstrap = Bootstrap::builder()
            .node(Node::new(format!("client-{number}")))
            .server(ServerConfig::insecure(control.addr().to_string()))
            .certificate_provider("files", watched(&self.clients));
        let channel = Channel::builder("xds:///service")
            .bootstrap(bootstrap.build().unwrap())
            .backoff(Duration::from_millis(20), Duration::from_millis(100))
            .credentials(Credentials::xds(Credentials::insecure()));
        Client::new(channel.build().unwrap())
    }
}

fn watched(files: &Files) -> CertificateFiles {
    CertificateFiles::default()
        .with_identity(files.path("cert.pem"), files.path("key.pem"))
        .with_ca_certificate_file(files.path("ca.pem"))
}

fn instance() -> tls::CertificateProviderPluginInstance {
    tls::CertificateProviderPluginInstance { instance_name: "files".to_owned(), certificate_name: String::new() }
}

fn socket(config: Any) -> TransportSocket {
    TransportSocket { name: "tls".to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}

/// Whether a request over TLS reaches anybody: whether a single frame of HTTP/2 comes back.
async fn tls_request(address: SocketAddr, config: ClientConfig) -> bool {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    match in_time(connector.connect(ServerName::try_from("server").unwrap(), stream)).await {
        Err(_) => false,
        Ok(secured) => http2_request(secured).await,
    }
}

async fn http2_request(stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
    let mut raw = RawHttp2::over(stream).await;
    let headers = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/grpc.testing.TestService/EmptyCall"),
        (":authority", "server"),
        ("content-type", "application/grpc"),
    ];
    raw.request(1, &headers).await;
    raw.next().await.is_some()
}
