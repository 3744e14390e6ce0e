//! A running server: it listens, stops and starts again on the same port, and tells what happens to it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use envoy_types::pb::envoy::service::load_stats::v3::load_reporting_service_server::LoadReportingServiceServer;
use prost::Message;
use tokio::net::{TcpListener, TcpSocket, ToSocketAddrs};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::encoding::Encoded;
use crate::event::{Event, Events, Journal, Stats, lock};
use crate::faults::Faults;
use crate::load::{LoadRequest, LoadTotals};
use crate::server::absent::Absent;
use crate::server::connection::{Connection, Secured};
use crate::server::listener::{Listener, bind};
use crate::server::lrs::Lrs;
use crate::server::service::Ads;
use crate::server::streams::{Command, Raw, Streams};
use crate::store::ControlPlane;
use crate::tls::ServerTls;
use crate::type_url::TypeUrl;

pub use listener::Address;

mod absent;
mod connection;
mod listener;
mod lrs;
mod service;
mod stream;
mod streams;

impl ControlPlane {
    /// Serves this control plane on an address; port 0 lets the system choose one, which [`Server::addr`] tells.
    pub async fn serve(&self, addr: impl ToSocketAddrs) -> io::Result<Server> {
        let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the address to listen on resolves to nothing");
        for addr in tokio::net::lookup_host(addr).await? {
            match self.serve_at(Address::Tcp(addr), None) {
                Ok(server) => return Ok(server),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Serves this control plane at an address, over TLS if there is any.
    pub fn serve_at(&self, address: Address, tls: Option<ServerTls>) -> io::Result<Server> {
        let (address, reserved) = match address {
            Address::Tcp(addr) => {
                let reserved = bind(addr)?;
                (Address::Tcp(reserved.local_addr()?), Some(reserved))
            }
            unix @ Address::Unix(_) => (unix, None),
        };
        let listener = address.listen()?;
        Ok(self.server(address, reserved, listener, tls))
    }

    /// Serves this control plane on a listener that exists already.
    pub fn serve_on(&self, listener: TcpListener) -> io::Result<Server> {
        Ok(self.server(Address::Tcp(listener.local_addr()?), None, Listener::Tcp(listener), None))
    }

    fn server(
        &self,
        address: Address,
        reserved: Option<TcpSocket>,
        listener: Listener,
        tls: Option<ServerTls>,
    ) -> Server {
        let shared = Arc::new(Shared {
            address,
            tls: tls.map(Arc::new),
            control_plane: self.clone(),
            faults: Faults::new(self.clone()),
            journal: Journal::default(),
            life: watch::Sender::new(Life::default()),
            streams: Streams::default(),
            absent: Absent::default(),
            load_request: watch::Sender::new(LoadRequest::default()),
            loads: Mutex::default(),
            running: Mutex::default(),
        });
        shared.run(listener);
        Server { shared, reserved: Mutex::new(reserved) }
    }
}

/// A running ADS server. Dropping it stops it.
///
/// ```
/// use mainstay_control_plane::ControlPlane;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let server = ControlPlane::new().serve("127.0.0.1:0").await?;
/// let addr = server.addr();
/// server.stop().await; // connections are cut and new ones refused
/// server.start()?; // on the same port
/// assert_eq!(server.addr(), addr);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    /// A socket that is bound and does not listen. It keeps the port ours while the server is stopped: nobody else is
    /// given it, and a client that dials it cannot by chance reach its own end.
    reserved: Mutex<Option<TcpSocket>>,
}

impl Server {
    /// The TCP port on which it listens, or will listen again; `0.0.0.0:0` if that is a socket in the file system.
    pub fn addr(&self) -> SocketAddr {
        self.shared.address.tcp()
    }

    /// Where it listens, or will listen again.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// What it serves.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.shared.control_plane
    }

    /// What goes wrong at it.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// What happens at it from now on.
    pub fn events(&self) -> Events {
        self.shared.journal.listen()
    }

    /// What happened at it so far, in numbers.
    pub fn stats(&self) -> Stats {
        self.shared.journal.stats()
    }

    /// What clients reported about their load so far. Clients report clusters that ask for it, such as
    /// [`resources::with_load_reports`](crate::resources::with_load_reports).
    pub fn loads(&self) -> LoadTotals {
        lock(&self.shared.loads).clone()
    }

    /// What clients shall report from now on.
    pub fn request_loads(&self, wanted: LoadRequest) {
        self.shared.load_request.send_replace(wanted);
    }

    /// Whether it accepts connections.
    pub fn is_listening(&self) -> bool {
        lock(&self.shared.running).as_ref().is_some_and(|running| running.acceptor.is_some())
    }

    /// Stops abruptly, as if the process had died: connections are cut and new ones are refused. Done when no
    /// connection and no stream is left.
    pub async fn stop(&self) {
        if let Some(running) = self.shared.kill().await {
            running.ended().await;
        }
        self.reserve();
    }

    /// Stops as a well-behaved server does: it accepts no more, ends its streams with UNAVAILABLE and lets clients
    /// close their connections. Those that do not within ten seconds are cut.
    pub async fn stop_gracefully(&self) {
        let Some(mut running) = lock(&self.shared.running).take() else { return };
        running.stop_accepting().await;
        self.shared.address.remove();
        let generation = running.generation;
        self.shared.life.send_modify(|life| life.drain(generation));
        let ended = running.ended();
        tokio::pin!(ended);
        if tokio::time::timeout(GRACE, &mut ended).await.is_err() {
            self.shared.life.send_modify(|life| life.cut(generation));
            ended.await;
        }
        self.shared.journal.record(Event::Stopped);
        self.reserve();
    }

    /// Refuses new connections and keeps those that are open; [`start`](Self::start) accepts again.
    pub async fn refuse(&self) {
        let acceptor = lock(&self.shared.running).as_mut().and_then(|running| running.acceptor.take());
        if let Some(acceptor) = acceptor {
            end(acceptor).await;
        }
        self.reserve();
    }

    /// Listens again on the same address after a stop; does nothing while it listens.
    pub fn start(&self) -> io::Result<()> {
        if !self.is_listening() {
            self.shared.run(self.shared.address.listen()?);
        }
        Ok(())
    }

    /// Sends a response as it stands on every open stream: for types that nobody knows, and whatever else no real
    /// control plane would say.
    pub fn send_raw(&self, response: &DiscoveryResponse) {
        let raw = Raw {
            type_url: TypeUrl::from(response.type_url.as_str()),
            version: response.version_info.clone(),
            message: Encoded { body: response.encode_to_vec().into(), nonce: String::new() },
        };
        self.shared.streams.command(|| Command::Send(raw.clone()));
    }

    /// Ends every open stream with this status; connections stay.
    pub fn close_streams(&self, code: Code) {
        self.shared.streams.command(|| Command::Close(Status::new(code, "closed by the control plane's operator")));
    }

    fn reserve(&self) {
        let mut reserved = lock(&self.reserved);
        if reserved.is_none() {
            // Where the system does not allow it the port is merely not kept.
            *reserved = self.shared.address.reserve();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = lock(&self.shared.running).take() {
            if let Some(acceptor) = &running.acceptor {
                acceptor.abort();
            }
            self.shared.life.send_modify(|life| life.cut(running.generation));
            self.shared.address.remove();
        }
    }
}

/// What the tasks of a server have in common.
#[derive(Debug)]
struct Shared {
    address: Address,
    tls: Option<Arc<ServerTls>>,
    control_plane: ControlPlane,
    faults: Faults,
    journal: Journal,
    life: watch::Sender<Life>,
    streams: Streams,
    absent: Absent,
    load_request: watch::Sender<LoadRequest>,
    loads: Mutex<LoadTotals>,
    running: Mutex<Option<Running>>,
}

impl Shared {
    /// Accepts connections from this listener: for the generation that still runs, or else for a new one.
    fn run(self: &Arc<Self>, listener: Listener) {
        let mut running = lock(&self.running);
        let running = running.get_or_insert_with(|| Running::new(self));
        let (shared, incoming) = (Arc::clone(self), running.incoming.clone());
        running.acceptor = Some(tokio::spawn(accept(listener, shared, running.generation, incoming)));
    }

    /// Stops listening, then cuts every connection: a client that comes back must find nobody.
    async fn kill(&self) -> Option<Running> {
        let mut running = lock(&self.running).take()?;
        running.stop_accepting().await;
        self.address.remove();
        self.life.send_modify(|life| life.cut(running.generation));
        self.journal.record(Event::Stopped);
        Some(running)
    }
}

/// Which generations have ended. A generation is the time from a start to a stop.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    started: u64,
    drained: u64,
    cut: u64,
}

impl Life {
    fn drain(&mut self, generation: u64) {
        self.drained = self.drained.max(generation);
    }

    fn cut(&mut self, generation: u64) {
        self.cut = self.cut.max(generation);
    }

    fn is_cut(&self, generation: u64) -> bool {
        self.cut >= generation
    }

    fn is_ending(&self, generation: u64) -> bool {
        self.drained >= generation || self.is_cut(generation)
    }
}

/// One generation of a server.
#[derive(Debug)]
struct Running {
    generation: u64,
    acceptor: Option<JoinHandle<()>>,
    incoming: mpsc::Sender<io::Result<Secured>>,
    http: JoinHandle<()>,
    /// Ends when the last stream has dropped its sender.
    streams: mpsc::Receiver<()>,
}

impl Running {
    fn new(shared: &Arc<Shared>) -> Self {
        let mut generation = 0;
        shared.life.send_modify(|life| {
            life.started += 1;
            generation = life.started;
        });
        let (incoming, connections) = mpsc::channel(ACCEPT_QUEUE);
        let (stream_alive, streams) = mpsc::channel(1);
        let lrs = Lrs::new(Arc::clone(shared), generation, stream_alive.clone());
        let ads = Ads::new(Arc::clone(shared), generation, stream_alive);
        let http = tokio::spawn(serve_http(ads, lrs, connections, shared.life.subscribe(), generation));
        Self { generation, acceptor: None, incoming, http, streams }
    }

    async fn stop_accepting(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            end(acceptor).await;
        }
    }

    /// Waits until all connections and streams are gone.
    async fn ended(self) {
        let Self { incoming, http, mut streams, .. } = self;
        drop(incoming);
        // It cannot be cancelled, and a panic in it has ended it as well.
        let _ = http.await;
        // Nobody sends on it: this is the end of the last stream.
        streams.recv().await;
    }
}

async fn accept(listener: Listener, shared: Arc<Shared>, generation: u64, incoming: mpsc::Sender<io::Result<Secured>>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let connection = Connection::new(stream, peer, Arc::clone(&shared), generation);
                match shared.tls.clone() {
                    // A client that does not finish its handshake holds up nobody.
                    Some(tls) => drop(tokio::spawn(secure(connection, tls, Arc::clone(&shared), incoming.clone()))),
                    None if incoming.send(Ok(Secured::Plaintext(connection))).await.is_err() => return,
                    None => {}
                }
            }
            Err(error) => {
                // Often "too many open files": trying again at once would only burn the processor.
                tracing::warn!(%error, address = %shared.address, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Shakes hands with a client, and hands the connection over.
async fn secure(
    connection: Connection,
    tls: Arc<ServerTls>,
    shared: Arc<Shared>,
    incoming: mpsc::Sender<io::Result<Secured>>,
) {
    let (connection_id, peer) = (connection.id(), connection.peer());
    let handshake = async {
        let config = tokio::task::spawn_blocking(move || tls.newest()).await.map_err(io::Error::other)?;
        let stream = tokio_rustls::TlsAcceptor::from(config).accept(connection).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the client does not offer the protocol h2"));
        }
        Ok(stream)
    };
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    match shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        // An error means that the server has stopped meanwhile.
        Ok(stream) => drop(incoming.send(Ok(Secured::Tls(Box::new(stream)))).await),
        Err(error) => {
            let reason = error.to_string();
            shared.journal.record(Event::HandshakeFailed { connection: connection_id, peer, reason });
        }
    }
}

async fn serve_http(
    ads: Ads,
    lrs: Lrs,
    connections: mpsc::Receiver<io::Result<Secured>>,
    mut life: watch::Receiver<Life>,
    generation: u64,
) {
    let ending = async move {
        // An error means that the server is gone, which is an end as well.
        let _ = life.wait_for(|life| life.is_ending(generation)).await;
    };
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(ads)
        .add_service(LoadReportingServiceServer::new(lrs).max_decoding_message_size(MAX_REQUEST_SIZE))
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), ending)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the HTTP/2 server ended");
    }
}

/// Ends a task and waits until all that it owned is dropped.
async fn end(task: JoinHandle<()>) {
    task.abort();
    // Cancelled, finished or panicked: it is over.
    let _ = task.await;
}

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const KEEPALIVE: Duration = Duration::from_secs(60);
const ACCEPT_QUEUE: usize = 16;
/// A request lists every subscribed name; a hundred thousand of them fit.
const MAX_REQUEST_SIZE: usize = 64 << 20;
