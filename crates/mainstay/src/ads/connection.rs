//! Connections to xDS servers, shared by the streams of all channels of the process.
//!
//! `h2` directly, not hyper: how many streams the server allows, pings, and when a request is on the wire are its
//! business and hyper keeps them to itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use mainstay_xds::bootstrap::{ServerConfig, ServerUri};
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use super::wire::{Tap, Wire};
use crate::credentials;
use crate::dns::ResolveHost;
use crate::failure::describe;
use crate::http2::{self, Address, ConnectError};
use crate::keep_alive::KeepAlive;
use crate::process::{self, Kind, Table};
use crate::task::Task;
use crate::tls::{HandshakeNote, Tls};
use crate::transport::Transport;

/// An xDS server and how it is reached: what streams must agree on to share a connection.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) server: Arc<ServerConfig>,
    pub(super) keep_alive: KeepAlive,
    pub(super) dns: Arc<dyn ResolveHost>,
}

/// A connection, made at first use, closed when the last stream lets go of it.
#[derive(Default)]
pub(super) struct Connection {
    established: OnceCell<Established>,
    /// Streams on it.
    taken: AtomicUsize,
    /// It takes no more streams, whatever else it says.
    retired: AtomicBool,
}

/// The right to one stream on a connection, within the limit that the server set.
pub(super) struct StreamPermit {
    connection: Arc<Connection>,
    /// Whether the connection was there before.
    pub(super) is_shared: bool,
}

/// What streams need of a connection.
pub(super) struct Established {
    pub(super) requests: SendRequest<Bytes>,
    pub(super) scheme: http::uri::Scheme,
    pub(super) authority: http::uri::Authority,
    pub(super) wire: Arc<Wire>,
    /// Why the connection was lost, once it is.
    pub(super) lost: watch::Receiver<Option<String>>,
    goaway: Arc<OnceLock<u32>>,
    pings: UnboundedSender<()>,
    _driver: Task,
}

// === impl Peer ===

impl Peer {
    /// A permit for a stream: on a connection that has room, or on a new one.
    pub(super) async fn permit(&self) -> Result<StreamPermit, String> {
        loop {
            let connection = self.connection();
            let is_shared = connection.established.initialized();
            let established = connection.established.get_or_try_init(|| self.connect()).await?;
            if established.limit() == 0 {
                return Err(format!("{} allows no stream on a connection", self.uri()));
            }
            if let Some(permit) = StreamPermit::take(connection, is_shared) {
                return Ok(permit);
            }
        }
    }

    /// The process's connection to this peer: a live one with room for a stream, or a new one that is made by whoever
    /// needs it first.
    fn connection(&self) -> Arc<Connection> {
        let Connections(all) = &mut *process::table();
        all.retain(|_, connections| {
            connections.retain(|connection| connection.strong_count() > 0);
            !connections.is_empty()
        });
        let connections = all.entry(self.key()).or_default();
        let alive: Vec<_> = connections.iter().filter_map(Weak::upgrade).collect();
        let limits = alive.iter().filter_map(|connection| connection.established.get()).map(Established::limit);
        let limit = limits.min().unwrap_or(STREAMS_PER_CONNECTION);
        // Each stream holds its connection once; here it is held once more.
        let has_room = |connection: &&Arc<Connection>| match connection.established.get() {
            Some(_) => connection.has_room(),
            None => Arc::strong_count(connection) - 1 < limit,
        };
        if let Some(connection) = alive.iter().find(has_room) {
            return connection.clone();
        }
        let connection = Arc::default();
        connections.push(Arc::downgrade(&connection));
        connection
    }

    async fn connect(&self) -> Result<Established, String> {
        let uri = ServerUri::parse(&self.server.server_uri).map_err(|error| error.to_string())?;
        let (host, addresses) = self.addresses(&uri).await?;
        let tls = credentials::for_xds_server(&self.server.channel_creds, &host).await.map_err(|e| e.to_string())?;
        let authority = http::uri::Authority::try_from(authority_of(&uri))
            .map_err(|error| format!("{}: cannot be an :authority: {error}", self.uri()))?;
        let scheme = if tls.is_some() { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP };
        let Handshake { requests, mut connection, wire, goaway } =
            race(&addresses, |address| handshake(address, tls.as_ref(), self.keep_alive)).await?;
        let (pings, asked) = unbounded();
        let keeper = keep(connection.ping_pong(), wire.clone(), self.keep_alive, asked);
        let (lose, lost) = watch::channel(None);
        let driver = Task::spawn(async move {
            let cause = tokio::select! {
                ended = connection => match ended {
                    Ok(()) => "the server closed the connection".to_owned(),
                    Err(error) => describe(&error),
                },
                () = keeper => "keep-alive timed out".to_owned(),
            };
            lose.send_replace(Some(cause));
        });
        Ok(Established { requests, scheme, authority, wire, lost, goaway, pings, _driver: driver })
    }

    /// The host name and all addresses to try.
    async fn addresses(&self, uri: &ServerUri) -> Result<(String, Vec<Address>), String> {
        match uri {
            // Such a server is not connected to.
            ServerUri::Directory(_) | ServerUri::LastGood(_) => {
                Err(format!("{} is not a peer, but a part of this process", self.server.server_uri))
            }
            ServerUri::Unix(path) => Ok(("localhost".to_owned(), vec![Address::Unix(path.clone())])),
            ServerUri::Ip(addresses) => {
                let host = addresses.first().map(|a| a.ip().to_string()).unwrap_or_default();
                Ok((host, addresses.iter().copied().map(Address::Tcp).collect()))
            }
            ServerUri::HostPort { host, port } => {
                let ips = match host.parse() {
                    Ok(ip) => vec![ip],
                    Err(_) => self
                        .dns
                        .resolve(host)
                        .await
                        .map_err(|error| format!("{}: cannot resolve {host:?}: {error}", self.uri()))?,
                };
                if ips.is_empty() {
                    return Err(format!("{}: {host:?} has no address", self.uri()));
                }
                Ok((host.clone(), ips.into_iter().map(|ip| Address::Tcp((ip, *port).into())).collect()))
            }
        }
    }

    fn uri(&self) -> &str {
        &self.server.server_uri
    }

    fn key(&self) -> Key {
        Key {
            runtime: tokio::runtime::Handle::current().id(),
            server: self.server.clone(),
            keep_alive: self.keep_alive,
            dns: Arc::as_ptr(&self.dns).addr(),
        }
    }
}

/// The connections of the process.
#[derive(Default)]
struct Connections(HashMap<Key, Vec<Weak<Connection>>>);

impl Table for Connections {
    const KIND: Kind = Kind::XdsConnections;
}

/// A connection is carried by a task, so it belongs to a runtime.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    runtime: tokio::runtime::Id,
    server: Arc<ServerConfig>,
    keep_alive: KeepAlive,
    /// Another resolver may find another host under the same name. It lives at least as long as the connection.
    dns: usize,
}

// === impl Connection ===

impl Connection {
    fn has_room(&self) -> bool {
        let usable = |established: &Established| established.is_usable() && !self.retired.load(Ordering::Relaxed);
        let room = |established: &Established| self.taken.load(Ordering::Acquire) < established.limit();
        self.established.get().is_some_and(|established| usable(established) && room(established))
    }
}

// === impl StreamPermit ===

impl StreamPermit {
    fn take(connection: Arc<Connection>, is_shared: bool) -> Option<Self> {
        let limit = connection.established.get()?.limit();
        let next = |taken| (taken < limit).then_some(taken + 1);
        connection.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(Self { connection, is_shared })
    }

    /// Another permit on the same connection, if there is room.
    pub(super) fn beside(&self) -> Option<Self> {
        if self.connection.has_room() { Self::take(self.connection.clone(), true) } else { None }
    }

    pub(super) fn established(&self) -> &Established {
        self.connection.established.get().expect("permits are taken on established connections")
    }

    /// The connection, without the right to a stream: it stays open as long as this is held.
    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// No more permits are given on the connection; those who have one may stay.
    pub(super) fn retire(&self) {
        self.connection.retired.store(true, Ordering::Relaxed);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.connection.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

// === impl Established ===

impl Established {
    /// Asks the peer to answer, which [`Wire::listen`] shows.
    pub(super) fn ping(&self) {
        // Whoever carries the connection may be gone, and says so elsewhere.
        let _ = self.pings.unbounded_send(());
    }

    /// How many streams there may be. Beyond the server's limit they would wait without a word.
    fn limit(&self) -> usize {
        self.requests.current_max_send_streams().min(STREAMS_PER_CONNECTION)
    }

    fn is_usable(&self) -> bool {
        self.lost.borrow().is_none() && self.goaway.get().is_none()
    }
}

struct Handshake {
    requests: SendRequest<Bytes>,
    connection: h2::client::Connection<Transport>,
    wire: Arc<Wire>,
    goaway: Arc<OnceLock<u32>>,
}

/// Connects, and waits until the server's first SETTINGS are in force: they say how many streams it allows.
async fn handshake(address: &Address, tls: Option<&Tls>, keep_alive: KeepAlive) -> Result<Handshake, ConnectError> {
    let (stream, _) = http2::dial(address, tls, keep_alive.timeout, &HandshakeNote::default()).await?;
    let wire = Wire::new();
    let (transport, greeting, goaway) = Transport::over(Box::new(Tap::on(stream, wire.clone())), keep_alive.timeout);
    let (requests, mut connection) = h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .initial_max_send_streams(UNKNOWN_LIMIT)
        .handshake(transport)
        .await
        .map_err(|error| ConnectError::http2(address, error))?;
    greeting.hear(&mut connection, address).await?;
    std::future::poll_fn(|cx| {
        if requests.current_max_send_streams() != UNKNOWN_LIMIT {
            return Poll::Ready(Ok(()));
        }
        let polled = std::pin::Pin::new(&mut connection).poll(cx);
        if requests.current_max_send_streams() != UNKNOWN_LIMIT {
            return Poll::Ready(Ok(()));
        }
        polled.map(|ended| {
            Err(ended
                .map_or_else(|error| ConnectError::http2(address, error), |()| ConnectError::Silent(address.clone())))
        })
    })
    .await?;
    Ok(Handshake { requests, connection, wire, goaway })
}

/// Sends a ping whenever somebody asks for one, and after a time without a word (A8). Ends when the peer is dead: not
/// a byte came in the time that an answer may take.
async fn keep(pings: Option<PingPong>, wire: Arc<Wire>, keep_alive: KeepAlive, mut asked: UnboundedReceiver<()>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::select! {
            Some(()) = asked.next() => {}
            () = quiet_for(&wire, keep_alive.interval) => {}
        }
        // One ping is enough for all who have asked.
        while asked.try_recv().is_ok() {}
        let sent = Instant::now();
        tokio::select! {
            answer = pings.ping(Ping::opaque()) => {
                if answer.is_err() {
                    return std::future::pending().await; // The connection is over, and says why.
                }
            }
            () = quiet_since(&wire, sent, keep_alive.timeout) => return,
        }
    }
}

/// Ends when nothing has been heard for so long.
async fn quiet_for(wire: &Wire, span: Duration) {
    quiet_since(wire, wire.heard().at, span).await;
}

/// Ends when nothing has been heard for so long, nor since `start`.
async fn quiet_since(wire: &Wire, start: Instant, span: Duration) {
    loop {
        let due = wire.heard().at.max(start) + span;
        if due <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(due).await;
    }
}

/// Tries addresses one after the other, 250 ms apart, and keeps the first that answers (RFC 8305).
async fn race<'a, T, F>(addresses: &'a [Address], connect: impl Fn(&'a Address) -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let mut waiting = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut causes = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(connect(address));
        }
        // With nothing left to start there is no reason to wake early.
        let pause = async {
            match waiting.len() {
                0 => std::future::pending().await,
                _ => tokio::time::sleep(ATTEMPT_DELAY).await,
            }
        };
        tokio::select! {
            ended = attempts.next() => match ended {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) => causes.push(describe(&error)),
                None => {}
            },
            () = pause => {}
        }
        if attempts.is_empty() && waiting.len() == 0 {
            return Err(causes.join("; "));
        }
    }
}

fn authority_of(uri: &ServerUri) -> String {
    match uri {
        ServerUri::Unix(_) | ServerUri::Directory(_) | ServerUri::LastGood(_) => "localhost".to_owned(),
        ServerUri::Ip(addresses) => addresses.first().map(ToString::to_string).unwrap_or_default(),
        ServerUri::HostPort { host, port } if host.contains(':') => format!("[{host}]:{port}"),
        ServerUri::HostPort { host, port } => format!("{host}:{port}"),
    }
}

/// What any server should allow (RFC 9113, section 6.5.2), and the most that we put on one connection.
const STREAMS_PER_CONNECTION: usize = 100;

/// Stands for a limit that the server has not told yet. No SETTINGS can say so much: it is more than 32 bits hold, and
/// less than what h2 takes the lack of a limit for.
const UNKNOWN_LIMIT: usize = usize::MAX - 1;

/// HTTP/2's own 64 KiB windows throttle any link with latency.
const STREAM_WINDOW: u32 = 1 << 20;
/// Room for every stream: one that nobody reads holds up no other.
const CONNECTION_WINDOW: u32 = (STREAMS_PER_CONNECTION as u32 + 1) * STREAM_WINDOW;

const MAX_HEADERS: u32 = 64 << 10;

const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
