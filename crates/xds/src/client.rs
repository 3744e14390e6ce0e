//! The XdsClient: watches, cache, streams, failures and fallback between servers.
//!
//! One instance serves one data-plane target (A71). It is driven from outside: commands
//! ([`XdsClient::watch`], [`XdsClient::unwatch`]) and events ([`XdsClient::handle_event`],
//! [`XdsClient::handle_timeout`]) go in, then [`XdsClient::poll_output`] is drained until it
//! answers [`Output::Wait`].
//!
//! Nothing is sent, opened, closed or told before it is polled. What is handed out then is the
//! difference between what is watched and known at that moment and what servers and watchers were
//! told last. So commands that come together cost one request, and news of one resource are one
//! notification. In `server` and `stream` is what is known of the servers, in `subscription` what
//! each of them said of each name, in `life` whether it is alive, in `authority` which of them is
//! in charge, in `cache` what counts; `response`, `health` and `drive` change it. `dialect` knows which
//! variant of ADS a server speaks; only `wire`, `stream` when it makes a request, and the reading of a
//! response know how it sounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::invalid::Invalid;
use crate::name::{AuthorityKey, ResourceKey, is_glob};
use crate::resource::{Resource, ResourceType};
use crate::{Backoff, Time};

mod authority;
mod backoff;
mod cache;
mod capture;
mod dialect;
mod drive;
mod dump;
mod error;
mod health;
mod intern;
mod life;
mod notify;
mod report;
mod response;
mod server;
mod stream;
mod subscription;
mod timers;
mod wire;

#[cfg(test)]
mod tests;

pub use cache::ResourceState;
pub use capture::{Capture, Captured};
pub use dialect::Protocol;
pub use dump::{RawValue, ResourceCount, ResourceStatus, ServerState, ServerStatus};
pub use intern::{Intern, Parsed};
pub use report::{Level, Line, Received, Report};

use authority::{Authority, AuthorityId};
use cache::Cache;
use notify::{Told, Watch};
use server::Server;
use timers::Timers;
pub(crate) use wire::encode_node;

/// One watch. Ids are never used twice by one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// One attempt at a server: its connection and the ADS stream on it. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Index of a server in its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ServerId(pub usize);

/// What happened outside. Events of a stream that was closed are ignored (P-26).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The connection is READY and the stream is open on it.
    Opened(StreamId),
    /// The last [`Action::Send`] of the stream was written to the transport's socket (P-55). What waits in a queue
    /// of ours, or for the server's flow control, is not sent yet.
    Sent(StreamId),
    /// A sign of life on the connection of the stream, asked for by [`Action::Probe`]. Several may be told as one.
    Alive(StreamId, Sign),
    /// A message came in.
    Received(StreamId, Bytes),
    /// The stream is over, or never came to be.
    Closed(StreamId, CloseCause),
}

/// What shows that whoever is at the other end of a connection is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sign {
    /// An answer to an HTTP/2 PING, or another frame that stacks send by themselves (SETTINGS, WINDOW_UPDATE, PING,
    /// PRIORITY): some HTTP/2 stack is there, perhaps that of a proxy, or of a server that hangs.
    Pong,
    /// Any other byte: the answer to a health check whatever its status, a part of a response.
    Data,
}

/// Why a stream is over. The driver says what happened; nobody reads error texts to find out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CloseCause {
    /// No connection could be made: name resolution, TCP, TLS or HTTP/2 failed, or took too long.
    ConnectFailed(String),
    /// The connection was lost under the stream.
    ConnectionLost(String),
    /// The server ended the stream.
    Ended {
        /// gRPC status code.
        code: u16,
        /// gRPC status message.
        message: String,
    },
    /// The server ended the stream and said when it wants to see us again (`grpc-retry-pushback-ms`, SC-10).
    Deferred {
        /// gRPC status code.
        code: u16,
        /// gRPC status message.
        message: String,
        /// Not before so long.
        come_back: Duration,
    },
}

/// What the driver must do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Do this, then poll again.
    Do(Action),
    /// Nothing left: wait for an event, or until this time and call [`XdsClient::handle_timeout`].
    Wait(Option<Time>),
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Take or make a connection to `server` within `connect_timeout` and open an ADS stream on it. Answered by [`Event::Opened`] or [`Event::Closed`].
    Open {
        /// Id of the attempt.
        stream: StreamId,
        /// Where to.
        server: Arc<ServerConfig>,
        /// Bound on name resolution, TCP, TLS and HTTP/2 settings together.
        connect_timeout: Duration,
        /// The variant of ADS, and so the method to call.
        protocol: Protocol,
    },
    /// Send an encoded `DiscoveryRequest` or `DeltaDiscoveryRequest`. Answered by [`Event::Sent`]; at most one per stream is outstanding (P-23).
    Send(StreamId, Bytes),
    /// Ask for a sign of life on the connection of this stream: an HTTP/2 PING, and a unary
    /// `grpc.health.v1.Health/Check` if `call`.
    ///
    /// Answered by [`Event::Alive`]: at once with [`Sign::Data`] if such bytes came after the last request of the
    /// stream was written, and for what comes from then on until the stream is closed. If it is closed without a sign,
    /// nobody may be at the other end of the connection any more: no other stream is opened on it.
    Probe {
        /// Of which stream.
        stream: StreamId,
        /// Whether a PONG alone would not be enough.
        call: bool,
    },
    /// Close the stream and forget it; release its connection.
    Close(StreamId),
    /// Tell a watcher.
    Notify(WatchId, Update),
    /// The server that is in charge of an authority has changed (A71).
    ActiveServer(AuthorityKey, Arc<ServerConfig>),
    /// Tell whoever observes the client: logs, metrics, the demo.
    Report(Report),
}

/// What a watcher hears (A88, C-13).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// A new value. Clears any error.
    Changed(Resource, Provenance),
    /// The value it has already, from another server. Clears any error. A new version of it from the same server
    /// is not worth a word: see [`XdsClient::dump`].
    Confirmed(Provenance),
    /// The resource cannot be had; an earlier value must not be used any more.
    Failed(Arc<ResourceError>),
    /// Something is wrong, but the value stays in use; `None`: nothing is wrong any more.
    Ambient(Option<Arc<ResourceError>>),
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Provenance {
    /// The server that sent it.
    pub server: Arc<ServerConfig>,
    /// Version of the response, or of the resource itself over delta.
    pub version: Arc<str>,
    /// When it came.
    pub at: Time,
}

/// What is wrong with a resource, where, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceError {
    /// Which resource; the name as watched if it is not a valid one.
    pub resource: ResourceKey,
    /// The server concerned.
    pub server: Option<Arc<ServerConfig>>,
    /// Our node id.
    pub node_id: Arc<str>,
    /// What happened.
    pub kind: ErrorKind,
    /// When it happened.
    pub at: Time,
}

/// What happened to a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The name cannot be used (C-8).
    InvalidName(String),
    /// The name's authority is not in the bootstrap (C-8).
    UnknownAuthority(String),
    /// No server of the authority can be reached; the cause of the last one (C-20).
    Unreachable(String),
    /// The server did not send it in time (P-58).
    DoesNotExist {
        /// How long we waited.
        after: Duration,
    },
    /// As above, from a server whose silence is a transient error (A88).
    TimedOut {
        /// How long we waited.
        after: Duration,
    },
    /// The server took it away (P-49).
    Deleted,
    /// The last version was rejected.
    Rejected {
        /// The rejected version.
        version: Arc<str>,
        /// What is wrong with it.
        invalid: Invalid,
    },
    /// It is a glob collection, and the stream to the server is not one that can carry it (GC-2).
    NeedsDelta,
    /// The server answered with an error (TP3).
    FromServer {
        /// gRPC status code.
        code: u16,
        /// Its text.
        message: String,
    },
}

/// Numbers that users may change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientSettings {
    /// Name told to servers; see B-22.
    pub user_agent_name: String,
    /// Version told to servers.
    pub user_agent_version: String,
    /// Bound on connecting while another server is next in the list.
    pub connect_timeout: Duration,
    /// Bound on connecting to the last server of a list.
    pub last_connect_timeout: Duration,
    /// How long a resource may be missing before it does not exist (P-56).
    pub resource_timeout: Duration,
    /// The same for servers with `resource_timer_is_transient_error`.
    pub transient_resource_timeout: Duration,
    /// Treat a stream without any response for this long as a failed one while it owes an answer, even if the server
    /// shows that it is alive; off by default (C-36).
    pub silent_stream_timeout: Option<Duration>,
    /// Upper bound of the pause before a client that lacks nothing comes back to a server that it lost; each time it
    /// is drawn anew. Zero: at once.
    pub reconnect_spread: Duration,
    /// First pause between attempts (P-19).
    pub backoff_base: Duration,
    /// Longest pause between attempts, before jitter.
    pub backoff_max: Duration,
    /// Tell servers on new streams the versions that we have, without a look at who they say they are. For control planes
    /// whose versions mean the same in every process; with others a client may stay on old content for ever (DX-16, DX-30).
    pub trust_versions: bool,
    /// The first members of a glob collection are put in use when no more of them have come for this long (GC-5).
    pub collection_quiet: Duration,
    /// But after this long at the latest.
    pub collection_limit: Duration,
    /// Least time between two load reports, whatever a server asks for (C-73).
    pub min_load_report_interval: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            user_agent_name: "Mainstay".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            connect_timeout: Duration::from_secs(5),
            last_connect_timeout: Duration::from_secs(20),
            resource_timeout: Duration::from_secs(15),
            transient_resource_timeout: Duration::from_secs(30),
            silent_stream_timeout: None,
            reconnect_spread: Duration::from_secs(2),
            backoff_base: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            trust_versions: false,
            collection_quiet: Duration::from_millis(100),
            collection_limit: Duration::from_secs(1),
            min_load_report_interval: Duration::from_secs(1),
        }
    }
}

impl ClientSettings {
    /// How pauses between attempts grow.
    fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff_base, self.backoff_max)
    }
}

/// The client of one target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct XdsClient {
    bootstrap: Arc<Bootstrap>,
    settings: ClientSettings,
    node_id: Arc<str>,
    watches: BTreeMap<WatchId, Watch>,
    cache: Cache,
    /// Authorities that were ever watched. An [`AuthorityId`] is an index.
    authorities: Vec<Authority>,
    /// Servers that were ever needed. A [`ServerId`] is an index.
    servers: Vec<Server>,
    timers: Timers,
    /// What to do, in order, before watchers are told the news.
    outputs: VecDeque<Action>,
    /// Watches that may have something to be told.
    news: BTreeSet<WatchId>,
    /// Whether streams and requests follow from everything above.
    settled: bool,
    next_watch: u64,
    next_stream: u64,
}

impl XdsClient {
    /// A client that has not connected to anything yet.
    pub fn new(bootstrap: Arc<Bootstrap>, settings: ClientSettings) -> Self {
        Self {
            node_id: bootstrap.node.id.as_str().into(),
            bootstrap,
            settings,
            watches: BTreeMap::new(),
            cache: Cache::default(),
            authorities: Vec::new(),
            servers: Vec::new(),
            timers: Timers::default(),
            outputs: VecDeque::new(),
            news: BTreeSet::new(),
            settled: true,
            next_watch: 0,
            next_stream: 0,
        }
    }

    /// Watches a resource. Everything known about it is told at once (C-10 to C-12).
    pub fn watch(&mut self, now: Time, resource_type: ResourceType, name: &str) -> WatchId {
        let watch = WatchId(self.next_watch);
        self.next_watch += 1;
        self.news.insert(watch);
        let state = match self.resolve(resource_type, name) {
            Ok((key, authority)) => {
                self.add_watcher(&key, authority, watch);
                Watch::Of(key, Told::default())
            }
            Err(kind) => {
                let resource = ResourceKey { resource_type, name: name.into() };
                let error = ResourceError { resource, server: None, node_id: self.node_id.clone(), kind, at: now };
                Watch::Unusable { error: Arc::new(error), told: false }
            }
        };
        self.watches.insert(watch, state);
        watch
    }

    /// Ends a watch. The watcher hears nothing more.
    pub fn unwatch(&mut self, _now: Time, watch: WatchId) {
        self.news.remove(&watch);
        if let Some(Watch::Of(key, _)) = self.watches.remove(&watch)
            && let Some(authority) = self.cache.remove_watcher(&key, watch)
        {
            self.authorities[authority.0].watched -= 1;
            self.mark_streams(authority, key.resource_type);
        }
    }

    /// Forgets past failures: servers that wait for their next attempt are tried at once (C-83).
    pub fn reset_backoff(&mut self) {
        self.settled = false;
        for (index, server) in self.servers.iter_mut().enumerate() {
            server.reset_backoff(ServerId(index), &mut self.timers);
        }
    }

    /// Whether nothing is watched, open or left to do.
    pub fn is_idle(&self) -> bool {
        let at_rest = |server: &Server| matches!(server.link, server::Link::Idle);
        self.watches.is_empty() && self.settled && self.outputs.is_empty() && self.servers.iter().all(at_rest)
    }

    fn add_watcher(&mut self, key: &ResourceKey, id: AuthorityId, watch: WatchId) {
        if self.cache.add_watcher(key, id, watch) {
            self.authorities[id.0].watched += 1;
        }
        self.start(id);
        self.mark_streams(id, key.resource_type);
        self.heed(key); // The server in charge may have spoken of it before it was watched again.
        // C-43: a new need of a server that is known to be down does not wait for its next failure. A95: nor does an
        // authority that starts on such a server.
        let is_down = self.authorities[id.0].active().is_some_and(|server| self.servers[server.0].outage.is_some());
        let uncached = self.cache.get(key.resource_type, &key.name).is_some_and(|entry| entry.cached.is_uncached());
        let is_in_need = uncached || self.authorities[id.0].reachability_only;
        if is_in_need {
            self.hurry(id);
        }
        if is_down {
            self.active_is_down(id, is_in_need);
        }
    }

    /// The canonical key of a name and the authority that it belongs to, or why it cannot be used (C-8).
    fn resolve(&mut self, resource_type: ResourceType, name: &str) -> Result<(ResourceKey, AuthorityId), ErrorKind> {
        let (key, authority) = ResourceKey::parse(resource_type, name, self.bootstrap.guards.federation)
            .map_err(|error| ErrorKind::InvalidName(error.to_string()))?;
        if resource_type == ResourceType::EndpointGlob && !is_glob(&key.name) {
            return Err(ErrorKind::InvalidName(format!("{name:?} is no glob collection: expected /* at its end")));
        }
        if let Some(index) = self.authorities.iter().position(|known| known.key == authority) {
            return Ok((key, AuthorityId(index)));
        }
        let bootstrap = self.bootstrap.clone();
        let Some((configs, reachability_only)) = bootstrap.servers_of(&authority) else {
            return Err(ErrorKind::UnknownAuthority(match authority {
                AuthorityKey::TopLevel => String::new(),
                AuthorityKey::Named(name) => name.to_string(),
            }));
        };
        let mut servers = Vec::with_capacity(configs.len());
        let usable = if bootstrap.guards.fallback { configs.len() } else { 1 }; // A71's guard.
        for config in configs.iter().take(usable) {
            let id = self.server_id(config);
            if !servers.contains(&id) {
                servers.push(id);
            }
        }
        self.authorities.reserve_exact(1); // There are few of them, and of servers, in each of many clients.
        let is_eager =
            bootstrap.last_good.as_ref().is_some_and(|last_good| last_good.eager) && bootstrap.guards.fallback;
        self.authorities.push(Authority::new(authority, servers, reachability_only, is_eager));
        Ok((key, AuthorityId(self.authorities.len() - 1)))
    }

    fn server_id(&mut self, config: &Arc<ServerConfig>) -> ServerId {
        let index = self.servers.iter().position(|server| server.config == *config).unwrap_or_else(|| {
            self.servers.reserve_exact(1);
            self.servers.push(Server::new(config.clone()));
            self.servers.len() - 1
        });
        ServerId(index)
    }

    fn report(&mut self, report: Report) {
        self.outputs.push_back(Action::Report(report));
    }
}
