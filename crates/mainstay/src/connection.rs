//! Connections to endpoints, shared by all channels of the process.
//!
//! ```text
//!            connect()                 connected
//!   IDLE ───────────────► CONNECTING ───────────► READY
//!    ▲                        │ failed              │ lost, or GOAWAY
//!    │      backoff over      ▼                     │
//!    ├──────────────── TRANSIENT_FAILURE ◄──────────┤ dead, or again without an answer
//!    └──────────────────────────────────────────────┘
//! ```
//!
//! Whatever ends the task of a connection, be it a panic or the end of its runtime, the connection is IDLE with it.
//!
//! Threads meet in two places. `progress` is behind a lock, under which states are both changed and told, so that all
//! users hear them in order; a task runs exactly while the state is not IDLE, since only the change from IDLE starts one,
//! under that lock, and only the end of the task changes back. `socket` is one atomic pointer, set before READY is told
//! and cleared before any other state is, or with the last user: an RPC sees a sender or none, and one that comes too late
//! gets its request back.
//!
//! Channels that want the same address with the same credentials and settings use one connection; each hears its
//! states. One task carries a connection from CONNECTING back to IDLE and ends there; an idle one costs no task.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use futures_channel::mpsc::UnboundedSender;
use http::uri::Scheme;
use mainstay_lb::{Connectivity, SubchannelId};
use mainstay_xds::Backoff;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::channelz_node::{CallCounters, Calls};
use crate::disconnect::{Cause, Disconnect};
use crate::failure::describe;
use crate::guard;
use crate::http2::{self, Address, ConnectError, Ends, Http2Settings};
use crate::process::{self, Kind, Table};
use crate::random::Random;
use crate::stream::Requests;
use crate::tls::{Handshake, HandshakeNote, TransportSecurity, has_name};

/// A connection to one address.
pub(crate) struct Connection {
    spec: ConnectionSpec,
    /// Set while the connection takes requests.
    socket: ArcSwapOption<Socket>,
    progress: Mutex<Progress>,
    counters: Arc<CallCounters>,
}

/// An established connection.
pub(crate) struct Socket {
    pub(crate) requests: Requests,
    /// For channelz, as the following.
    pub(crate) id: i64,
    pub(crate) ends: Ends,
    /// Whether an authority other than the channel's must be in the certificate (S-33, S-34).
    checks_authority: bool,
    /// What was counted before it was there.
    before: Calls,
    /// The authority that was last checked against the certificate, and whether it is the server's. Nearly always the
    /// only one: an endpoint has one host name.
    checked: ArcSwapOption<(Box<str>, bool)>,
}

/// The certificate of a server does not have the name of an authority.
#[derive(Debug)]
pub(crate) struct WrongName;

/// What a connection is. Whoever wants equal ones shares one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ConnectionSpec {
    /// Where its task runs: channels on different runtimes share nothing, as one may end before the other.
    pub(crate) runtime: runtime::Id,
    pub(crate) address: SocketAddr,
    /// The HTTP proxy on the way there (A86).
    pub(crate) proxy: Option<SocketAddr>,
    pub(crate) security: TransportSecurity,
    pub(crate) settings: ConnectSettings,
}

/// How endpoints are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectSettings {
    pub(crate) timeout: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) http2: Http2Settings,
    /// How long an endpoint may say nothing at all after a call to it was given up.
    pub(crate) silence: Duration,
    /// Off for a channel that only shows its configuration.
    pub(crate) enabled: bool,
}

/// Who uses a connection: a subchannel of a hub. News go to the hub's driver. They never wait there for room, so that
/// a busy hub does not hold up the others; their number is small, since every round needs a hub to ask for it.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) id: SubchannelId,
    pub(crate) news: UnboundedSender<News>,
}

/// A new state of a connection, for one of its users.
#[derive(Clone, Debug)]
pub(crate) struct News {
    pub(crate) id: SubchannelId,
    pub(crate) state: Connectivity,
    pub(crate) cause: Cause,
}

struct Progress {
    state: Connectivity,
    /// When it entered the state.
    since: SystemTime,
    /// How often it has changed.
    changes: u32,
    /// Attempts since the last connection that was of any use.
    failures: u32,
    /// How often the endpoint has turned us away for too many pings. Each doubles the time between them (A8).
    calmed: u32,
    /// Why the connection before was lost, if nobody has been told yet.
    lost: Option<Disconnect>,
    users: Vec<User>,
    /// Dropped with the last user, which the task notices.
    in_use: Option<oneshot::Sender<()>>,
}

/// Every connection that has a user. Locked before the progress of any of them.
#[derive(Default)]
struct Connections(HashMap<ConnectionSpec, Arc<Connection>>);

impl Table for Connections {
    const KIND: Kind = Kind::Connections;
}

impl Connection {
    /// The connection that `spec` describes, made if there is none. `user` hears of it until [`Connection::leave`].
    pub(crate) fn join(spec: ConnectionSpec, user: User) -> Arc<Self> {
        let Connections(connections) = &mut *process::table();
        let connection = connections.entry(spec).or_insert_with_key(|spec| {
            let progress = Mutex::new(Progress {
                state: Connectivity::Idle,
                since: SystemTime::now(),
                changes: 0,
                failures: 0,
                calmed: 0,
                lost: None,
                users: Vec::new(),
                in_use: None,
            });
            Arc::new(Self {
                spec: spec.clone(),
                socket: ArcSwapOption::empty(),
                progress,
                counters: CallCounters::new(),
            })
        });
        let mut progress = lock(&connection.progress);
        if progress.state != Connectivity::Idle {
            user.tell(progress.state.clone(), Cause::default());
        }
        progress.users.push(user);
        drop(progress);
        connection.clone()
    }

    /// Ends a use. After the last one the connection is closed as soon as the RPCs on it are done.
    pub(crate) fn leave(&self, user: &User) {
        let Connections(connections) = &mut *process::table();
        let mut progress = lock(&self.progress);
        progress.users.retain(|other| other.id != user.id || !other.news.same_receiver(&user.news));
        if progress.users.is_empty() {
            progress.in_use = None;
            // Without it the connection ends with the last RPC on it.
            self.socket.store(None);
            connections.remove(&self.spec);
        }
    }

    /// Starts an attempt if the connection is idle. Whoever asks at another time hears how the one under way ends.
    pub(crate) fn connect(self: &Arc<Self>) {
        let mut progress = lock(&self.progress);
        if progress.state != Connectivity::Idle || progress.users.is_empty() {
            return;
        }
        let (in_use, not_in_use) = oneshot::channel();
        progress.in_use = Some(in_use);
        progress.enter(Connectivity::Connecting, Cause::default());
        // A runtime that is about to end drops what is spawned at once, and with it goes the state.
        drop(progress);
        // Not a `Task`: a connection without users lives on until the RPCs on it are done.
        tokio::spawn(UntilIdle(self.clone()).run(not_in_use));
    }

    /// The established connection for a request with an `authority` other than the channel's, which must not be sent to a
    /// server that has not proved to have that name (A81, S-34).
    pub(crate) fn socket_as(&self, authority: Option<&str>) -> Option<Result<Arc<Socket>, WrongName>> {
        let socket = self.socket()?;
        let is_right = authority.is_none_or(|authority| socket.is_named(authority));
        Some(if is_right { Ok(socket) } else { Err(WrongName) })
    }

    /// The established connection, if there is one. Whoever holds it keeps the connection open.
    pub(crate) fn socket(&self) -> Option<Arc<Socket>> {
        self.socket.load_full()
    }

    /// What channelz shows of the state: which, since when, and how often it has changed.
    pub(crate) fn state(&self) -> (Connectivity, SystemTime, u32) {
        let progress = lock(&self.progress);
        (progress.state.clone(), progress.since, progress.changes)
    }

    /// Counts the RPCs on it.
    pub(crate) fn counters(&self) -> &Arc<CallCounters> {
        &self.counters
    }

    /// The RPCs on this socket only.
    pub(crate) fn calls_on(&self, socket: &Socket) -> Calls {
        self.counters.calls().since(socket.before)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.socket.load().is_some()
    }

    /// Pauses between attempts.
    pub(crate) fn backoff(&self) -> Backoff {
        self.spec.settings.backoff
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.spec.address
    }

    /// From CONNECTING to the loss of the connection, or to the end of all use. How long to pause.
    async fn run(&self, not_in_use: &mut oneshot::Receiver<()>) -> Option<Duration> {
        let note = HandshakeNote::default();
        let established = tokio::select! {
            _ = &mut *not_in_use => return None,
            established = self.establish(&note) => established,
        };
        match established {
            Ok(established) => self.carry(established, note.ended()).await,
            Err(text) => Some(self.fail(text, note.ended())),
        }
    }

    async fn establish(&self, note: &HandshakeNote) -> Result<http2::Established, String> {
        let ConnectionSpec { address, proxy, security, settings, .. } = &self.spec;
        let ip = address.ip();
        let address = match *proxy {
            None => Address::Tcp(*address),
            Some(proxy) => Address::Proxied { proxy, endpoint: *address },
        };
        let until = Instant::now() + settings.timeout;
        let tls = security.current(ip, settings.timeout).await;
        let tls = tls.map_err(|error| describe(&ConnectError::Certificates(address.clone(), Box::new(error))))?;
        let http2 = settings.http2.calmed(lock(&self.progress).calmed);
        let connected = http2::connect(&address, tls.as_ref(), &http2, settings.silence, note);
        match tokio::time::timeout_at(until, connected).await {
            Ok(Ok(established)) => Ok(established),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no connection to {address} within {:?}", settings.timeout)),
        }
    }

    /// Notes a failed attempt; how long to pause.
    fn fail(&self, text: String, handshake: Option<Handshake>) -> Duration {
        lock(&self.progress).fail(text, Cause { handshake, lost: None }, self.spec.settings.backoff)
    }

    /// Drives the connection until it takes no more requests, or until nobody uses it and its RPCs are done. How long to
    /// pause.
    async fn carry(&self, established: http2::Established, handshake: Option<Handshake>) -> Option<Duration> {
        let http2::Established { requests, mut driver, ends, goaway } = established;
        let began = Instant::now();
        let socket = Socket {
            requests,
            id: process::new_id(),
            ends,
            checks_authority: matches!(self.spec.security, TransportSecurity::Tls(_)),
            before: self.counters.calls(),
            checked: ArcSwapOption::empty(),
        };
        // Declared after `driver`, so that it goes first: the requests that `driver` did not send must not come here again.
        let published = Published::new(self, socket, handshake)?;
        let ended = driver.until_closing().await;
        drop(published);
        let pulse = driver.pulse();
        let life = Life { dead: pulse.is_dead(), answered: pulse.has_answered(), lasted: began.elapsed() };
        let lost = goaway.get().map_or_else(|| Disconnect::of(ended.as_ref()), |code| Disconnect::GoAway(*code));
        if ended.is_none() {
            // The RPCs on it go on. The task ends with the last of them.
            tokio::spawn(driver);
        }
        let mut progress = lock(&self.progress);
        if progress.users.is_empty() {
            return None;
        }
        progress.lose(lost, life, &self.spec)
    }
}

/// The life of a connection that was lost.
#[derive(Clone, Copy)]
struct Life {
    /// It was suspected, pinged, and gave no sign of life.
    dead: bool,
    /// Whether the endpoint has answered any request.
    answered: bool,
    lasted: Duration,
}

impl Progress {
    fn enter(&mut self, state: Connectivity, cause: Cause) {
        self.users.iter().for_each(|user| user.tell(state.clone(), cause));
        self.state = state;
        self.since = SystemTime::now();
        self.changes = self.changes.saturating_add(1);
    }

    fn fail(&mut self, text: String, cause: Cause, backoff: Backoff) -> Duration {
        let pause = backoff.delay(self.failures, &mut Random);
        self.failures = self.failures.saturating_add(1);
        self.enter(Connectivity::TransientFailure(text.into()), cause);
        pause
    }

    /// The connection takes no more requests. How long to pause, if that shall be.
    ///
    /// One that was of use may be made again at once. An endpoint that accepts and closes, and answers nothing, is given
    /// one more chance; then its connections are paced as failed attempts are.
    fn lose(&mut self, lost: Disconnect, life: Life, spec: &ConnectionSpec) -> Option<Duration> {
        let (address, backoff) = (spec.address, spec.settings.backoff);
        if lost == Disconnect::GoAway(ENHANCE_YOUR_CALM) {
            self.calmed = self.calmed.saturating_add(1);
        }
        if life.dead {
            let text =
                format!("{address} gave no sign of life for {:?} after a call was given up", spec.settings.silence);
            return Some(self.fail(text, Cause::lost(lost), backoff));
        }
        if life.answered || life.lasted >= backoff.delay(self.failures, &mut Random) {
            self.failures = 0;
        } else if self.failures > 0 {
            let text = format!("{address} closes connections before it has answered");
            return Some(self.fail(text, Cause::lost(lost), backoff));
        } else {
            self.failures = 1;
        }
        self.lost = Some(lost);
        None
    }
}

/// A connection whose task runs. IDLE when this is dropped.
struct UntilIdle(Arc<Connection>);

impl UntilIdle {
    async fn run(self, mut not_in_use: oneshot::Receiver<()>) {
        let pause = match guard::caught(self.0.run(&mut not_in_use)).await {
            Ok(pause) => pause,
            // Of a certificate verifier, say.
            Err(panic) => Some(self.0.fail(format!("the connection to {} panicked: {panic}", self.0.address()), None)),
        };
        if let Some(pause) = pause {
            tokio::select! {
                _ = not_in_use => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

impl Socket {
    /// The scheme of requests.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.ends.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Whether the server may be asked as `authority`. In plaintext it may be anyone, and where the cluster says who it is
    /// the names of hosts do not count (A29).
    fn is_named(&self, authority: &str) -> bool {
        let Some(tls) = self.ends.tls.as_ref().filter(|_| self.checks_authority) else { return true };
        if let Some(checked) = self.checked.load().as_deref()
            && *checked.0 == *authority
        {
            return checked.1;
        }
        let is_named = tls.certificate().is_some_and(|certificate| has_name(certificate, authority));
        self.checked.store(Some(Arc::new((authority.into(), is_named))));
        is_named
    }
}

impl Drop for UntilIdle {
    fn drop(&mut self) {
        let mut progress = lock(&self.0.progress);
        let cause = Cause { lost: progress.lost.take(), handshake: None };
        progress.enter(Connectivity::Idle, cause);
    }
}

/// A connection that takes requests, until this is dropped.
struct Published<'a>(&'a Connection);

impl<'a> Published<'a> {
    /// None if nobody uses the connection any more.
    fn new(connection: &'a Connection, socket: Socket, handshake: Option<Handshake>) -> Option<Self> {
        let mut progress = lock(&connection.progress);
        if progress.users.is_empty() {
            return None;
        }
        connection.socket.store(Some(Arc::new(socket)));
        progress.enter(Connectivity::Ready, Cause { handshake, lost: None });
        Some(Self(connection))
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        self.0.socket.store(None);
    }
}

impl User {
    fn tell(&self, state: Connectivity, cause: Cause) {
        // The driver may be gone: then nobody needs to know.
        let _ = self.news.unbounded_send(News { id: self.id, state, cause });
    }
}

// === impl ConnectionSpec ===

impl Hash for ConnectionSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Nearly always enough to tell connections apart.
        self.address.hash(state);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("address", &self.spec.address).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The code of a GOAWAY for those who ask too much (RFC 9113, section 7).
const ENHANCE_YOUR_CALM: u32 = 11;

#[cfg(test)]
mod tests {
    use crate::bootstrap::{Bootstrap, ServerConfig};
    use mainstay_control_plane::{ControlPlane, Snapshot, resources};
    use mainstay_testservice::Backend;
    use tonic::body::Body;
    use tower_service::Service;

    use super::*;
    use crate::Channel;

    /// Nothing leads there that we know of: a connection whose task has ended is not READY. If it were all the same,
    /// calls must not go round and round.
    #[tokio::test]
    async fn a_request_that_comes_back_is_sent_again_a_bounded_number_of_times() {
        let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
        let snapshot = Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [backend.addr()]));
        let control_plane = ControlPlane::new();
        control_plane.set(snapshot);
        let server = control_plane.serve("127.0.0.1:0").await.unwrap();
        let bootstrap = Bootstrap::builder().server(ServerConfig::insecure(server.addr().to_string())).build().unwrap();
        let mut channel = Channel::builder("xds:///service").bootstrap(bootstrap).build().unwrap();
        channel.ready().await.unwrap();

        let address = backend.addr();
        let connection =
            process::table::<Connections>().0.values().find(|known| known.spec.address == address).unwrap().clone();
        let socket = connection.socket().unwrap();
        let settings = Http2Settings::default();
        let Ok(dead) =
            http2::connect(&Address::Tcp(address), None, &settings, Duration::MAX, &HandshakeNote::default()).await
        else {
            panic!("the backend lives")
        };
        drop(dead.driver);
        connection.socket.store(Some(Arc::new(Socket {
            requests: dead.requests,
            id: process::new_id(),
            ends: socket.ends.clone(),
            checks_authority: false,
            before: socket.before,
            checked: ArcSwapOption::empty(),
        })));
        let request = http::Request::post("http://service/service/method").body(Body::empty()).unwrap();
        let status = channel.call(request).await.unwrap_err();
        assert!(status.message().ends_with("closed before the request left, 16 times over"), "{}", status.message());
    }
}
