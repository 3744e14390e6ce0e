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
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::admission::Limits;
use crate::encoding::Encoded;
use crate::event::{Event, Events, Journal, Stats, lock};
use crate::faults::Faults;
use crate::load::{LoadRequest, LoadTotals};
use crate::server::absent::Absent;
use crate::server::connection::{Connection, Secured};
use crate::server::door::Door;
use crate::server::http::Services;
use crate::server::listener::{Listener, bind};
use crate::server::lrs::Lrs;
use crate::server::service::Ads;
use crate::server::streams::{Command, Raw, Streams};
use crate::store::ControlPlane;
use crate::tls::ServerTls;
use crate::type_url::TypeUrl;

pub use listener::Address;
pub use streams::{ClientStatus, TypeStatus};

mod absent;
mod carrier;
mod connection;
mod door;
mod http;
mod listener;
mod lrs;
mod requests;
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
        self.serve_with(address, ServerOptions { tls, ..ServerOptions::default() })
    }

    /// Serves this control plane at an address, with a say in how.
    pub fn serve_with(&self, address: Address, options: ServerOptions) -> io::Result<Server> {
        let (address, reserved) = match address {
            Address::Tcp(addr) => {
                let reserved = bind(addr)?;
                (Address::Tcp(reserved.local_addr()?), Some(reserved))
            }
            unix @ Address::Unix(_) => (unix, None),
        };
        let listener = address.listen()?;
        Ok(self.server(address, reserved, listener, options))
    }

    /// Serves this control plane on a listener that exists already.
    pub fn serve_on(&self, listener: TcpListener) -> io::Result<Server> {
        Ok(self.server(Address::Tcp(listener.local_addr()?), None, Listener::Tcp(listener), ServerOptions::default()))
    }

    fn server(
        &self,
        address: Address,
        reserved: Option<TcpSocket>,
        listener: Listener,
        options: ServerOptions,
    ) -> Server {
        let ServerOptions { tls, limits, services } = options;
        let shared = Arc::new(Shared {
            address,
            tls: tls.map(Arc::new),
            services,
            door: Door::new(limits),
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

/// How a control plane is served.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// TLS, if any.
    pub tls: Option<ServerTls>,
    /// How much is taken on.
    pub limits: Limits,
    /// Services beside ADS and LRS, such as health checks.
    pub services: Routes,
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
        self.shared.journal.listen(false)
    }

    /// The same, but only what [`Event::is_notable`] says: for logs, which under a herd would hold a copy of all that is said
    /// to get to what they tell.
    pub fn notable_events(&self) -> Events {
        self.shared.journal.listen(true)
    }

    /// What happened at it so far, in numbers.
    pub fn stats(&self) -> Stats {
        self.shared.journal.stats()
    }

    /// Who is connected, a line for each ADS stream, and what they say about what they were sent.
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.shared.streams.clients()
    }

    /// Refuses new streams for this reason, or lets them in again. Those that are open stay.
    pub fn refuse_streams(&self, reason: Option<String>) {
        self.shared.door.close(reason);
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
        self.drain(Duration::ZERO).await;
    }

    /// The same, but connections are sent away one by one, spread evenly over a time, each with a word on when to come
    /// back: so that they do not fall upon another server in one moment (FB-36).
    pub async fn drain(&self, over: Duration) {
        let Some(mut running) = lock(&self.shared.running).take() else { return };
        running.stop_accepting().await;
        self.shared.address.remove();
        let generation = running.generation;
        self.shared.life.send_modify(|life| life.drain(generation, over));
        let ended = running.ended();
        tokio::pin!(ended);
        if tokio::time::timeout(over + GRACE, &mut ended).await.is_err() {
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
    services: Routes,
    door: Door,
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
        running.acceptor = Some(tokio::spawn(accept(listener, running.services.clone())));
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
    /// How long those that are drained may take.
    drain_over: Duration,
    cut: u64,
}

impl Life {
    fn drain(&mut self, generation: u64, over: Duration) {
        self.drained = self.drained.max(generation);
        self.drain_over = over;
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
    services: Services,
    /// Ends when the last connection and the last stream have dropped their sender.
    alive: mpsc::Receiver<()>,
}

impl Running {
    fn new(shared: &Arc<Shared>) -> Self {
        let mut generation = 0;
        shared.life.send_modify(|life| {
            life.started += 1;
            generation = life.started;
        });
        let (sender, alive) = mpsc::channel(1);
        let lrs = Lrs::new(Arc::clone(shared), sender.clone());
        let lrs = LoadReportingServiceServer::new(lrs).max_decoding_message_size(MAX_REQUEST_SIZE);
        let services = Services {
            ads: Ads::new(Arc::clone(shared), generation, sender),
            others: shared.services.clone().add_service(lrs),
            shared: Arc::clone(shared),
            generation,
        };
        Self { generation, acceptor: None, services, alive }
    }

    async fn stop_accepting(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            end(acceptor).await;
        }
    }

    /// Waits until all connections and streams are gone.
    async fn ended(self) {
        let Self { services, mut alive, .. } = self;
        drop(services);
        // Nobody sends on it: this is the end of the last one.
        alive.recv().await;
    }
}

async fn accept(listener: Listener, services: Services) {
    let Services { shared, generation, .. } = &services;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let connection = Connection::new(stream, peer, Arc::clone(shared), *generation);
                match shared.tls.clone() {
                    // A client that does not finish its handshake holds up nobody.
                    Some(tls) => drop(tokio::spawn(secure(connection, tls, services.clone()))),
                    None => drop(tokio::spawn(http::serve(Secured::Plaintext(connection), services.clone()))),
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

/// Shakes hands with a client, and serves it.
async fn secure(connection: Connection, tls: Arc<ServerTls>, services: Services) {
    let (connection_id, peer) = (connection.id(), connection.peer());
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, shake_hands(connection, tls, &services.shared.door)).await;
    match shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => http::serve(Secured::Tls(Box::new(stream)), services).await,
        Err(error) => {
            let reason = error.to_string();
            services.shared.journal.record(Event::HandshakeFailed { connection: connection_id, peer, reason });
        }
    }
}

/// The handshake of TLS. Its costly part waits for its turn, so that it does not starve open streams (FB-40); whoever is slow to
/// go on after it gives the turn back.
async fn shake_hands(connection: Connection, tls: Arc<ServerTls>, door: &Door) -> io::Result<TlsStream<Connection>> {
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), connection).await?;
    let turn = door.handshake().await;
    let config = tokio::task::spawn_blocking(move || tls.newest()).await.map_err(io::Error::other)?;
    let shaking = hello.into_stream(config);
    tokio::pin!(shaking);
    let stream = match tokio::time::timeout(HANDSHAKE_TURN, &mut shaking).await {
        Ok(shaken) => shaken?,
        Err(_) => {
            drop(turn);
            shaking.await?
        }
    };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(io::Error::other("the client does not offer the protocol h2"));
    }
    Ok(stream)
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
/// How long the costly part of a handshake may keep its turn.
const HANDSHAKE_TURN: Duration = Duration::from_secs(1);
/// A request lists every subscribed name; a hundred thousand of them fit.
const MAX_REQUEST_SIZE: usize = 64 << 20;
