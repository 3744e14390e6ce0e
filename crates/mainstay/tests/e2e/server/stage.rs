//! A server, its control plane, and callers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use mainstay::bootstrap::{Bootstrap, BootstrapBuilder, Node, ServerConfig};
use mainstay::{Peer, Running, ServerBuilder, ServingState};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::common::in_time;

/// A caller that knows nothing of xDS.
pub(crate) type PlainClient = TestServiceClient<Channel>;

/// A server on a port of its own, and the control plane that configures it.
pub(crate) struct Stage {
    pub(crate) control: Server,
    pub(crate) running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) seen: Seen,
    pub(crate) states: mpsc::UnboundedReceiver<(SocketAddr, ServingState)>,
}

/// What reached handlers.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<SeenInner>);

#[derive(Default)]
struct SeenInner {
    requests: AtomicU64,
    peers: std::sync::Mutex<Vec<Peer>>,
    certificates: std::sync::Mutex<Vec<CertificateDer<'static>>>,
}

impl Stage {
    /// A server in plaintext without any configuration yet.
    pub(crate) async fn empty() -> Self {
        Self::with(|builder| builder).await
    }

    /// A server that serves.
    pub(crate) async fn serving() -> Self {
        let stage = Self::empty().await;
        stage.set(stage.listener());
        stage.until_serving().await;
        stage
    }

    /// A server without any configuration, built as `build` says.
    pub(crate) async fn with(build: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        Self::with_bootstrap(|bootstrap| bootstrap, |server| server, build).await
    }

    /// A server with such a bootstrap and such an xDS server in it.
    pub(crate) async fn with_bootstrap(
        bootstrap: impl FnOnce(BootstrapBuilder) -> BootstrapBuilder,
        xds_server: impl FnOnce(ServerConfig) -> ServerConfig,
        build: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let control = ControlPlane::new().serve("127.0.0.1:0").await.expect("a free port");
        let server = xds_server(ServerConfig::insecure(control.addr().to_string()));
        let parts = Bootstrap::builder().node(Node::new("server")).server(server);
        let parts = bootstrap(parts.server_listener_resource_name_template(TEMPLATE));
        let (told, states) = mpsc::unbounded_channel();
        let seen = Seen::default();
        let builder = builder(&seen)
            .bootstrap(parts.build().expect("a valid bootstrap"))
            .on_serving_state(move |address, state| drop(told.send((address, state.clone()))));
        let running = build(builder.listen("127.0.0.1:0".parse().unwrap())).start().expect("a server");
        let address = running.local_addresses()[0];
        Self { control, running, address, seen, states }
    }

    /// The Listener of the server, with routes that let everything through.
    pub(crate) fn listener(&self) -> Listener {
        listener(self.address, routes())
    }

    /// Configures exactly this.
    pub(crate) fn set(&self, listener: Listener) {
        self.control.control_plane().set(Snapshot::builder().listener(listener));
    }

    pub(crate) fn set_with_routes(&self, listener: Listener, routes: RouteConfiguration) {
        self.control.control_plane().set(Snapshot::builder().listener(listener).route(routes));
    }

    /// The next state that the application is told.
    pub(crate) async fn next_state(&mut self) -> ServingState {
        let (address, state) = in_time(self.states.recv()).await.expect("a server that lives");
        assert!(self.running.local_addresses().contains(&address));
        state
    }

    /// Waits until the server says that it serves.
    pub(crate) async fn until_serving(&self) {
        let mut states = self.running.serving_state(self.address).expect("its address");
        assert!(in_time(states.serving()).await);
    }

    /// A caller over a connection of its own.
    pub(crate) async fn caller(&self) -> PlainClient {
        connect(self.address).await.expect("a server that serves")
    }

    /// A connection of its own, without a stub.
    #[cfg(feature = "opentelemetry")]
    pub(crate) async fn channel(&self) -> Channel {
        endpoint(self.address).connect().await.expect("a server that serves")
    }

    /// How many connections channelz shows.
    pub(crate) async fn connections(&self) -> usize {
        super::admin::sockets(self.address).await.len()
    }

    /// Waits until there are so many connections.
    pub(crate) async fn until_connections(&self, wanted: usize) {
        in_time(async {
            while self.connections().await != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Seen {
    /// How many requests reached a handler.
    pub(crate) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// Who sent the last one.
    pub(crate) fn last_peer(&self) -> Peer {
        self.0.peers.lock().unwrap().last().expect("a request").clone()
    }

    /// The filter chain of the last one, if there was any.
    pub(crate) fn last_chain(&self) -> Option<String> {
        self.0.peers.lock().unwrap().last()?.filter_chain().map(str::to_owned)
    }

    /// What tonic says that the last one presented.
    pub(crate) fn last_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.0.certificates.lock().unwrap().clone()
    }

    /// From how many connections requests came.
    pub(crate) fn callers(&self) -> usize {
        let peers = self.0.peers.lock().unwrap();
        peers.iter().map(Peer::address).collect::<std::collections::BTreeSet<_>>().len()
    }

    fn note(&self, request: &Request<()>) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let peer = request.extensions().get::<Peer>().expect("a peer");
        assert_eq!(request.remote_addr(), Some(peer.address()), "SV-2: what tonic tells handlers");
        assert!(request.local_addr().is_some());
        self.0.peers.lock().unwrap().push(peer.clone());
        *self.0.certificates.lock().unwrap() = request.peer_certs().map(|chain| chain.to_vec()).unwrap_or_default();
    }
}

/// A server of the test service that notes what reaches its handlers, and does not wait long for anything.
pub(crate) fn builder(seen: &Seen) -> ServerBuilder {
    let seen = seen.clone();
    mainstay::Server::builder()
        .add_service(mainstay_testservice::service("one", "one").expect("a host name"))
        .layer(InterceptorLayer::new(move |request: Request<()>| {
            seen.note(&request);
            Ok::<_, Status>(request)
        }))
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .reconnect_spread(Duration::ZERO)
}

/// The Listener resource of a server on `address`.
pub(crate) fn listener(address: SocketAddr, routes: impl Into<resources::Routes>) -> Listener {
    resources::server_listener(name(address), address, routes)
}

/// What the Listener resource of an address is called.
pub(crate) fn name(address: SocketAddr) -> String {
    TEMPLATE.replace("%s", &address.to_string())
}

/// Routes that let everything through.
pub(crate) fn routes() -> RouteConfiguration {
    resources::server_route("routes")
}

/// A connection of its own.
pub(crate) async fn connect(address: SocketAddr) -> Result<PlainClient, tonic::transport::Error> {
    in_time(endpoint(address).connect()).await.map(PlainClient::new)
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address")
}

/// One call; who answered it.
pub(crate) async fn call(client: &mut PlainClient) -> Result<String, Status> {
    let request = Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
    in_time(client.unary_call(request)).await.map(|response| response.into_inner().server_id)
}

pub(crate) const TEMPLATE: &str = "server/%s";
