//! A primary, a mirror of it, and clients of both.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::{Channel, ResourceType};
use mainstay_control_plane::{ControlPlane, LoadRequest, Server, Snapshot, SnapshotBuilder, resources};
use mainstay_mirror::config::MirrorConfig;
use mainstay_mirror::{ClassStatus, Mirror, Settings};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tokio::net::{TcpListener, TcpStream};
use tonic::Status;

/// A mirror behind a server, as `mainstay serve --mirror-of` has it.
pub(crate) struct Mirrored {
    pub(crate) mirror: Arc<Mirror>,
    pub(crate) server: Server,
    task: tokio::task::JoinHandle<()>,
}

impl Mirrored {
    pub(crate) async fn start(primary: &Server, config: &str) -> Self {
        Self::with(settings(primary, config)).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        let mirror = Arc::new(Mirror::start(settings).expect("good settings"));
        let control_plane = ControlPlane::new();
        mirror.classify(&control_plane);
        let mut changed = mirror.changed();
        changed.borrow_and_update();
        mirror.put(&control_plane, None);
        let server = control_plane.serve("127.0.0.1:0").await.expect("a free port");
        let interval = Duration::from_secs(300);
        server.request_loads(LoadRequest { interval, is_dropped: true, ..LoadRequest::default() });
        let put = mirror.clone();
        let task = tokio::spawn(async move {
            while changed.changed().await.is_ok() {
                put.put(&control_plane, None);
            }
        });
        Self { mirror, server, task }
    }

    pub(crate) fn status(&self, class: &str) -> ClassStatus {
        self.mirror.status().into_iter().find(|status| status.class == class).expect("such a class")
    }

    /// Waits until the status of a class is so.
    pub(crate) async fn until(&self, class: &str, what: &str, is_so: impl Fn(&ClassStatus) -> bool) -> ClassStatus {
        for _ in 0..2000 {
            let status = self.status(class);
            if is_so(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never {what}: {:?}", self.status(class));
    }

    /// Waits until a class is served exactly what the primary serves to its node.
    pub(crate) async fn until_equal(&self, class: &str, primary: &Server, node: &str) {
        let wanted = bytes(&primary.control_plane().snapshot_for_node(node).expect("a snapshot"));
        for _ in 0..2000 {
            if self.served(class) == Some(wanted.clone()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?} is served and not {wanted:?}: {:?}", self.served(class), self.status(class));
    }

    /// Ends it as a signal does: what is in force is on disk then.
    pub(crate) async fn stop(self) {
        self.mirror.stop().await;
    }

    pub(crate) fn served(&self, class: &str) -> Option<Bytes> {
        self.server.control_plane().snapshot_for_class(class, "").map(|snapshot| bytes(&snapshot))
    }
}

impl Drop for Mirrored {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn settings(primary: &Server, config: &str) -> Settings {
    Settings::new(primary.addr().to_string(), MirrorConfig::parse(config).expect("a good mirror.yaml"))
}

pub(crate) fn settings_with_files(primary: &Server, config: &str, directory: &Path) -> Settings {
    let write_interval = Duration::from_millis(1);
    Settings { last_good: Some(directory.to_owned()), write_interval, ..settings(primary, config) }
}

/// Resources by type and name.
pub(crate) type Bytes = BTreeMap<(String, String), Vec<u8>>;

pub(crate) fn bytes(snapshot: &Snapshot) -> Bytes {
    let entry = |resource: mainstay_control_plane::Resource| {
        let mainstay_control_plane::Body::Message(any) = resource.body else { panic!("an error") };
        ((resource.type_url.as_str().to_owned(), resource.name), any.value)
    };
    snapshot.resources().map(entry).collect()
}

/// What a channel holds of resources, with their versions.
pub(crate) async fn held(channel: &Channel) -> BTreeMap<(ResourceType, String), (String, String, Vec<u8>)> {
    let view = channel.config().await.expect("a view");
    let value = |status: mainstay::view::ResourceStatus| {
        let value = status.value?;
        let key = (status.resource.resource_type, status.resource.name);
        Some((key, (value.server, value.version, value.encoded.to_vec())))
    };
    view.resources.into_iter().filter_map(value).collect()
}

pub(crate) async fn primary(snapshot: impl Into<Snapshot>) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve("127.0.0.1:0").await.expect("a free port")
}

/// Listener, routes and cluster of one name.
pub(crate) fn service<'a>(name: &str, endpoints: impl IntoIterator<Item = &'a str>) -> SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener(name, resources::rds(name)))
        .route(resources::route(name, name))
        .cluster(resources::eds_cluster(name))
        .endpoints(resources::endpoints(name, endpoints))
}

/// One class for everybody.
pub(crate) const ONE_CLASS: &str =
    "classes: [{ name: all, node: { id: mirror }, default: true, targets: ['xds:///service'] }]";

pub(crate) fn channel(target: &str, node: &str, servers: &[&Server]) -> Channel {
    let mut bootstrap = Bootstrap::builder().node(Node::new(node));
    for server in servers {
        bootstrap = bootstrap.server(ServerConfig::insecure(server.addr().to_string()));
    }
    Channel::builder(target)
        .bootstrap(bootstrap.build().expect("a bootstrap"))
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .reconnect_spread(Duration::ZERO)
        .build()
        .expect("a channel")
}

/// Who answers an RPC.
pub(crate) async fn call(channel: &Channel) -> Result<String, Status> {
    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..SimpleRequest::default() });
    request.set_timeout(Duration::from_secs(10));
    TestServiceClient::new(channel.clone()).unary_call(request).await.map(|reply| reply.into_inner().server_id)
}

pub(crate) async fn until_answered_by(channel: &Channel, wanted: &str) {
    for _ in 0..1000 {
        if call(channel).await.is_ok_and(|id| id == wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never answered by {wanted}");
}

pub(crate) async fn backend(id: &str) -> Backend {
    Backend::spawn("127.0.0.1:0", id).await.expect("a free port")
}

/// Passes connections on, and counts them.
pub(crate) struct Counter {
    pub(crate) addr: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Counter {
    pub(crate) async fn before(backend: &Backend) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (addr, to) = (listener.local_addr().expect("an address"), backend.addr());
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    if let Ok(mut to) = TcpStream::connect(to).await {
                        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    }
                });
            }
        });
        Self { addr, connections, task }
    }

    pub(crate) fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.task.abort();
    }
}
