//! What end-to-end tests share: a control plane, backends, and a channel between them.

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use envoy_types::pb::envoy::service::status::v3::{ClientConfig, ClientStatusRequest};
use envoy_types::pb::google::protobuf::Value;
use envoy_types::pb::google::protobuf::value::Kind;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use mainstay_testservice::{BEHAVIOR_KEY, Backend};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

/// A client stub over our channel.
pub(crate) type Client = TestServiceClient<Channel>;

/// A control plane that serves `snapshot`.
pub(crate) async fn control_plane(snapshot: impl Into<Snapshot>) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.expect("a free port")
}

/// Backends with the given ids.
pub(crate) async fn backends<const N: usize>(ids: [&str; N]) -> [Backend; N] {
    let mut backends = Vec::new();
    for id in ids {
        backends.push(Backend::spawn("127.0.0.1:0", id).await.expect("a free port"));
    }
    backends.try_into().unwrap_or_else(|_| unreachable!("as many as ids"))
}

/// The usual chain for target `xds:///service`: Listener, routes and cluster all called "service".
pub(crate) fn service(backends: &[&Backend]) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", backends.iter().map(|backend| backend.addr())))
        .build()
}

/// A bootstrap with these servers in order.
pub(crate) fn bootstrap(servers: &[&Server]) -> Bootstrap {
    bootstrap_of("test-node", servers)
}

/// A bootstrap with these servers in order, of a node that [`status_of`] can find.
pub(crate) fn bootstrap_of(node: &str, servers: &[&Server]) -> Bootstrap {
    let mut builder = Bootstrap::builder().node(Node::new(node));
    for server in servers {
        builder = builder.server(ServerConfig::insecure(server.addr().to_string()));
    }
    builder.build().expect("a valid bootstrap")
}

/// A channel to `xds:///service`, with short backoff so that nothing waits long.
pub(crate) fn builder(servers: &[&Server]) -> ChannelBuilder {
    Channel::builder("xds:///service")
        .bootstrap(bootstrap(servers))
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .reconnect_spread(Duration::ZERO)
}

/// A stub over such a channel.
pub(crate) fn client(servers: &[&Server]) -> Client {
    Client::new(builder(servers).build().expect("a channel"))
}

/// One call; who answered it.
pub(crate) async fn call(client: &mut Client) -> Result<String, Status> {
    call_within(client, Duration::from_secs(10)).await
}

/// One call with a deadline; who answered it.
pub(crate) async fn call_within(client: &mut Client, timeout: Duration) -> Result<String, Status> {
    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
    request.set_timeout(timeout);
    client.unary_call(request).await.map(|response| response.into_inner().server_id)
}

/// `n` calls that must all succeed; how many each backend answered.
pub(crate) async fn spread(client: &mut Client, n: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..n {
        let id = call(client).await.expect("an answer");
        *counts.entry(id).or_default() += 1;
    }
    counts
}

/// Calls until `wanted` answers. Every call must succeed.
pub(crate) async fn until_answered_by(client: &mut Client, wanted: &str) {
    let moved = async {
        while call(client).await.expect("an answer") != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), moved).await.unwrap_or_else(|_| panic!("{wanted} never answered"));
}

/// Calls until one fails.
pub(crate) async fn until_failed(client: &mut Client) -> Status {
    let failed = async {
        loop {
            if let Err(status) = call(client).await {
                return status;
            }
        }
    };
    in_time(failed).await
}

/// Calls that began one after the other at a steady rate, whatever became of those before.
pub(crate) struct Paced {
    /// In the order in which they began.
    pub(crate) calls: Vec<PacedCall>,
    /// How many began per second, as measured.
    pub(crate) rate: f64,
    /// When the event began.
    pub(crate) event: Instant,
}

pub(crate) struct PacedCall {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// Who answered.
    pub(crate) outcome: Result<String, Status>,
}

impl Paced {
    /// A second of a thousand calls. `behavior` says what the backends shall do with the nth; after half of them
    /// `event` happens, beside those that follow.
    pub(crate) async fn run(
        client: &Client,
        behavior: impl Fn(usize) -> Option<&'static str>,
        event: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let mut beat = tokio::time::interval(Duration::from_millis(1));
        let (mut running, mut event) = (Vec::with_capacity(1000), Some(event));
        let start = Instant::now();
        let mut event_at = start;
        for n in 0..1000 {
            beat.tick().await;
            if n == 500 {
                event_at = Instant::now();
                event.take().map(tokio::spawn);
            }
            let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
            request.set_timeout(Duration::from_secs(10));
            if let Some(behavior) = behavior(n) {
                request.metadata_mut().insert(BEHAVIOR_KEY, behavior.parse().expect("a header value"));
            }
            let mut client = client.clone();
            running.push(tokio::spawn(async move {
                let began = Instant::now();
                let outcome = client.unary_call(request).await.map(|response| response.into_inner().server_id);
                PacedCall { began, ended: Instant::now(), outcome }
            }));
        }
        let rate = 1000.0 / start.elapsed().as_secs_f64();
        let mut calls = Vec::with_capacity(running.len());
        for call in running {
            calls.push(call.await.expect("a caller does not panic"));
        }
        Self { calls, rate, event: event_at }
    }

    /// Panics unless about a thousand calls began in a second. A machine that is busy may be slower.
    #[track_caller]
    pub(crate) fn assert_rate(&self) {
        assert!((700.0..1100.0).contains(&self.rate), "{} calls per second, expected about 1000", self.rate);
    }
}

/// Waits until nobody is connected to `server`.
pub(crate) async fn until_left_alone(server: &Server) {
    let mut events = server.events();
    let alone = async {
        while server.stats().open_connections > 0 {
            events.next().await.expect("a server that lives");
        }
    };
    in_time(alone).await;
}

/// What takes this long will never happen; a test that hangs says where.
#[track_caller]
pub(crate) fn in_time<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        tokio::time::timeout(Duration::from_secs(10), future)
            .await
            .unwrap_or_else(|_| panic!("waited in vain: {caller}"))
    }
}

/// The CSDS of this process, asked without a socket.
pub(crate) async fn fetch_status(request: ClientStatusRequest) -> Result<Vec<ClientConfig>, Status> {
    let mut csds = ClientStatusDiscoveryServiceClient::new(mainstay::admin::csds());
    csds.fetch_client_status(request).await.map(|response| response.into_inner().config)
}

/// What CSDS shows of the channels with this node id.
pub(crate) async fn status_of(node: &str) -> Vec<ClientConfig> {
    let mut configs = fetch_status(ClientStatusRequest::default()).await.expect("a status");
    configs.retain(|config| config.node.as_ref().is_some_and(|found| found.id == node));
    configs
}

/// An entry of the node's metadata, which must be a map of texts.
pub(crate) fn metadata(config: &ClientConfig, entry: &str) -> BTreeMap<String, String> {
    let metadata = config.node.as_ref().and_then(|node| node.metadata.as_ref()).expect("metadata");
    let Some(Kind::StructValue(map)) = metadata.fields.get(entry).and_then(|value| value.kind.as_ref()) else {
        panic!("no map {entry:?} in {metadata:?}");
    };
    let text = |value: &Value| match &value.kind {
        Some(Kind::StringValue(text)) => text.clone(),
        other => panic!("no text: {other:?}"),
    };
    map.fields.iter().map(|(key, value)| (key.clone(), text(value))).collect()
}

/// A server that notes the `:authority` of every request and answers none of them well.
pub(crate) async fn authority_recorder() -> (std::net::SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (record, recorded) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let record = record.clone();
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
                let _ = record.send(authority);
                async { Ok::<_, std::convert::Infallible>(Status::unimplemented("").into_http::<tonic::body::Body>()) }
            });
            let connection = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, recorded)
}
