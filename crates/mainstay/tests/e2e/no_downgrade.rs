//! What the control plane says about security is followed, refused, or told: never passed over in silence.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::core::v3::{Metadata, TransportSocket};
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::HostRewriteSpecifier;
use envoy_types::pb::envoy::extensions::transport_sockets::http_11_proxy::v3::Http11ProxyUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use envoy_types::util::pack_any;
use mainstay::Channel;
use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::event::Event;
use mainstay_control_plane::{Server, Snapshot, SnapshotBuilder, resources};
use mainstay_testservice::{Backend, Identity, ServerTlsConfig};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tonic::Code;

use crate::common::{Client, backends, builder, call, client, control_plane, in_time};
use crate::pki::Authority;

/// A86, S-31: the endpoint names its proxy.
#[tokio::test]
async fn connections_go_through_the_proxy_of_the_endpoint() {
    let ([backend], mut proxy) = (backends(["one"]).await, HttpProxy::start("200 Connection established").await);
    let mut endpoints = resources::endpoints("service", [backend.addr()]);
    endpoints.endpoints[0].lb_endpoints[0].metadata = named(proxy.address);
    let server = control_plane(proxied(None, endpoints)).await;
    assert_eq!(call(&mut client(&[&server])).await.unwrap(), "one");
    assert_eq!(in_time(proxy.asked.recv()).await.unwrap(), format!("CONNECT {} HTTP/1.1", backend.addr()));
    assert_eq!(backend.open_connections(), 1);
}

/// A86: or its locality does.
#[tokio::test]
async fn connections_go_through_the_proxy_of_the_locality() {
    let ([backend], mut proxy) = (backends(["one"]).await, HttpProxy::start("200 OK").await);
    let mut endpoints = resources::endpoints("service", [backend.addr()]);
    endpoints.endpoints[0].metadata = named(proxy.address);
    let server = control_plane(proxied(None, endpoints)).await;
    assert_eq!(call(&mut client(&[&server])).await.unwrap(), "one");
    assert!(in_time(proxy.asked.recv()).await.is_some());
}

/// A86: TLS runs inside, to the endpoint.
#[tokio::test]
async fn tls_runs_through_the_proxy() {
    let authority = Authority::new();
    let (backend, mut proxy) = (secure_backend(&authority, "service").await, HttpProxy::start("200 OK").await);
    let mut endpoints = resources::endpoints("service", [backend.addr()]);
    endpoints.endpoints[0].metadata = named(proxy.address);
    let server = control_plane(proxied(None, endpoints)).await;
    let channel = builder(&[&server]).credentials(authority.client_credentials()).build().unwrap();
    assert_eq!(call(&mut Client::new(channel)).await.unwrap(), "secure");
    assert!(in_time(proxy.asked.recv()).await.is_some());
}

/// A86: a cluster with the wrapper whose endpoints name no proxy.
#[tokio::test]
async fn without_the_name_of_a_proxy_connections_are_direct() {
    let [backend] = backends(["one"]).await;
    let server = control_plane(proxied(None, resources::endpoints("service", [backend.addr()]))).await;
    assert_eq!(call(&mut client(&[&server])).await.unwrap(), "one");
}

/// A proxy that does not lead to the endpoint is never gone around.
#[tokio::test]
async fn a_proxy_that_refuses_fails_rpcs_with_its_words() {
    let ([backend], proxy) = (backends(["one"]).await, HttpProxy::start("403 Forbidden").await);
    let mut endpoints = resources::endpoints("service", [backend.addr()]);
    endpoints.endpoints[0].metadata = named(proxy.address);
    let server = control_plane(proxied(None, endpoints)).await;
    let status = call(&mut client(&[&server])).await.unwrap_err();
    let expected = format!(
        "the HTTP proxy {} on the way to {} refused CONNECT with \"HTTP/1.1 403 Forbidden\"",
        proxy.address,
        backend.addr()
    );
    assert!(status.code() == Code::Unavailable && status.message().contains(&expected), "{status}");
    assert_eq!(backend.requests(), 0);
}

/// A81, S-34: a server is asked by a name only if its certificate has that name.
#[tokio::test]
async fn an_authority_that_is_not_in_the_certificate_is_not_sent() {
    let authority = Authority::new();
    let backend = secure_backend(&authority, "service").await;
    let rewritten = |hostname: &'static str| {
        let (server, credentials) = (rewriting(backend.addr(), hostname), authority.client_credentials());
        async move {
            let server = server.await;
            let builder = Channel::builder("xds:///service").bootstrap(trusting(&server)).credentials(credentials);
            call(&mut Client::new(builder.build().unwrap())).await
        }
    };
    assert_eq!(rewritten("service").await.unwrap(), "secure");
    assert_eq!(rewritten("service:8080").await.unwrap(), "secure", "a port is no part of the name");
    assert_eq!(rewritten("127.0.0.1").await.unwrap(), "secure", "the certificate has this address too");
    let before = backend.requests();
    for other in ["other-tenant.example.com", "127.0.0.2"] {
        let status = rewritten(other).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let text = format!(
            "RPC to xds:///service: cluster \"service\" asks for :authority {other:?}, and the certificate of {} does \
             not have that name",
            backend.addr()
        );
        assert_eq!(status.message(), text);
    }
    assert_eq!(backend.requests(), before, "not one of them was sent");
}

/// In plaintext there is nothing that a name could be checked against.
#[tokio::test]
async fn an_authority_is_rewritten_freely_in_plaintext() {
    let [backend] = backends(["one"]).await;
    let server = rewriting(backend.addr(), "other-tenant.example.com").await;
    let channel = Channel::builder("xds:///service").bootstrap(trusting(&server)).build().unwrap();
    assert_eq!(call(&mut Client::new(channel)).await.unwrap(), "one");
}

/// A29: credentials that are not for xDS ignore the context of a cluster. That is told.
#[tokio::test]
async fn a_tls_context_that_is_not_followed_is_told() {
    let [backend] = backends(["plain"]).await;
    let server = control_plane(secured(&backend)).await;
    let channel = builder(&[&server]).build().unwrap();
    let mut events = channel.events();
    assert_eq!(call(&mut Client::new(channel)).await.unwrap(), "plain");
    let told = async {
        loop {
            if let Event::SecurityIgnored { cluster, .. } = events.next().await.expect("a channel that lives") {
                return cluster;
            }
        }
    };
    assert_eq!(&*in_time(told).await, "service");
}

/// And with `require_xds_security` nothing is sent, whatever the credentials are.
#[tokio::test]
async fn a_tls_context_that_is_not_followed_is_refused_where_xds_security_is_required() {
    let authority = Authority::new();
    let [plain] = backends(["plain"]).await;
    let server = control_plane(secured(&plain)).await;
    for builder in [builder(&[&server]), builder(&[&server]).credentials(authority.client_credentials())] {
        let channel = builder.require_xds_security(true).build().unwrap();
        let status = call(&mut Client::new(channel)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("cluster \"service\" asks for TLS in its transport_socket"), "{status}");
    }
    assert_eq!(plain.open_connections(), 0);
}

#[tokio::test]
async fn a_cluster_without_a_tls_context_works_where_xds_security_is_required() {
    let [backend] = backends(["one"]).await;
    let server = control_plane(crate::common::service(&[&backend])).await;
    let channel = builder(&[&server]).require_xds_security(true).build().unwrap();
    assert_eq!(call(&mut Client::new(channel)).await.unwrap(), "one");
}

/// An HTTP proxy that knows CONNECT. It answers with a status, and passes bytes on if that is a good one.
struct HttpProxy {
    address: SocketAddr,
    /// The first line of each request.
    asked: mpsc::UnboundedReceiver<String>,
}

impl HttpProxy {
    async fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (heard, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Self::serve(client, status, heard.clone()));
            }
        });
        Self { address, asked }
    }

    async fn serve(
        client: TcpStream,
        status: &'static str,
        heard: mpsc::UnboundedSender<String>,
    ) -> std::io::Result<()> {
        let mut client = BufReader::new(client);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            client.read_line(&mut head).await?;
        }
        let first = head.lines().next().unwrap_or_default().to_owned();
        let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let _ = heard.send(first);
        client.write_all(format!("HTTP/1.1 {status}\r\nVia: test\r\n\r\n").as_bytes()).await?;
        if status.starts_with('2') {
            copy_bidirectional(&mut client, &mut TcpStream::connect(target).await?).await?;
        }
        Ok(())
    }
}

async fn secure_backend(authority: &Authority, name: &str) -> Backend {
    let issued = authority.issue(name);
    let identity = Identity::from_pem(&issued.certificate_pem, &issued.key_pem);
    let tls = ServerTlsConfig::new().identity(identity);
    Backend::builder("secure").tls(tls).spawn("127.0.0.1:0").await.expect("a free port")
}

/// A service whose cluster wants an HTTP proxy, with this inside.
fn proxied(inside: Option<Any>, endpoints: ClusterLoadAssignment) -> SnapshotBuilder {
    let transport_socket = inside.map(socket);
    with_cluster(pack_any(Http11ProxyUpstreamTransport { transport_socket, ..Default::default() }), endpoints)
}

/// A service whose cluster asks for TLS, and whose endpoint is a backend in plaintext.
fn secured(backend: &Backend) -> SnapshotBuilder {
    let roots = tls::CertificateValidationContext { system_root_certs: Some(Default::default()), ..Default::default() };
    let common_tls_context = Some(tls::CommonTlsContext {
        validation_context_type: Some(tls::common_tls_context::ValidationContextType::ValidationContext(roots)),
        ..Default::default()
    });
    let context = tls::UpstreamTlsContext { common_tls_context, ..Default::default() };
    with_cluster(pack_any(context), resources::endpoints("service", [backend.addr()]))
}

pub(crate) fn with_cluster(transport_socket: Any, endpoints: ClusterLoadAssignment) -> SnapshotBuilder {
    let cluster = Cluster { transport_socket: Some(socket(transport_socket)), ..resources::eds_cluster("service") };
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(cluster)
        .endpoints(endpoints)
}

pub(crate) fn socket(config: Any) -> TransportSocket {
    TransportSocket { name: "socket".into(), config_type: Some(ConfigType::TypedConfig(config)) }
}

/// Metadata that names a proxy (A86).
fn named(proxy: SocketAddr) -> Option<Metadata> {
    let key = "envoy.http11_proxy_transport_socket.proxy_address".to_owned();
    let typed_filter_metadata = [(key, pack_any(resources::address(proxy)))].into();
    Some(Metadata { typed_filter_metadata, ..Default::default() })
}

/// A control plane whose route rewrites `:authority` to the host name of the endpoint (A81).
async fn rewriting(backend: SocketAddr, hostname: &str) -> Server {
    let mut routes: RouteConfiguration = resources::route("service", "service");
    let Some(Action::Route(action)) = &mut routes.virtual_hosts[0].routes[0].action else { panic!("a route") };
    action.host_rewrite_specifier = Some(HostRewriteSpecifier::AutoHostRewrite(BoolValue { value: true }));
    let mut endpoints = resources::endpoints("service", [backend]);
    let endpoint = &mut endpoints.endpoints[0].lb_endpoints[0];
    let Some(HostIdentifier::Endpoint(endpoint)) = &mut endpoint.host_identifier else { panic!("an endpoint") };
    endpoint.hostname = hostname.to_owned();
    let listener = resources::listener("service", routes);
    control_plane(
        Snapshot::builder().listener(listener).cluster(resources::eds_cluster("service")).endpoints(endpoints),
    )
    .await
}

/// A bootstrap that trusts the server enough to rewrite authorities.
fn trusting(server: &Server) -> Bootstrap {
    let mut server = ServerConfig::insecure(server.addr().to_string());
    server.features.trusted_xds_server = true;
    Bootstrap::builder().node(Node::new("trusting")).server(server).build().unwrap()
}
