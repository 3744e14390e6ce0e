//! What the load-balancing core asks of the shell: subchannels and circuit breakers.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_channel::mpsc::UnboundedSender;
use mainstay_lb::{Counter, Helper, LoadSink, Observation, Origin, SubchannelId, SubchannelSpec};
use mainstay_xds::client::Intern;
use tokio::runtime;
use tokio::time::Instant;

use crate::channelz_node;
use crate::connection::{ConnectSettings, Connection, ConnectionSpec, News, Socket, User, WrongName};
use crate::guard;
use crate::intern::Interner;
use crate::logs::EndpointLog;
use crate::orca_oob::{self, BaseUri};
use crate::process::{self, Kind, Table};
use crate::task::Task;
use crate::telemetry::{LbObserver, SubchannelObserver};
use crate::tls::ChannelSecurity;

/// A handle of a connection to one address, as snapshots carry it.
#[derive(Clone, Debug)]
pub(crate) struct Subchannel(Arc<Connection>);

/// The subchannels of one channel: its uses of connections.
pub(crate) struct Subchannels {
    runtime: runtime::Id,
    security: ChannelSecurity,
    settings: ConnectSettings,
    interner: Interner,
    news: UnboundedSender<News>,
    observer: LbObserver,
    pub(crate) log: EndpointLog,
    uses: BTreeMap<SubchannelId, Use>,
    base_uri: BaseUri,
}

/// Who hears of what becomes of the endpoints of a channel.
pub(crate) struct Audience {
    pub(crate) observer: LbObserver,
    pub(crate) log: EndpointLog,
}

/// The use of a connection by one subchannel.
struct Use {
    connection: Arc<Connection>,
    observer: SubchannelObserver,
    /// Where in the configuration it belongs.
    origin: Arc<Origin>,
    /// The streams of load reports on it.
    orca_oob: Vec<Task>,
}

// === impl Subchannel ===

impl Subchannel {
    /// See [`Connection::socket_as`].
    pub(crate) fn socket_as(&self, authority: Option<&str>) -> Option<Result<Arc<Socket>, WrongName>> {
        self.0.socket_as(authority)
    }

    /// Where it leads.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Counts an RPC that begins on it.
    pub(crate) fn begin(&self) -> channelz_node::Call {
        self.0.counters().begin()
    }
}

impl mainstay_lb::Subchannel for Subchannel {
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }
}

impl PartialEq for Subchannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Subchannel {}

impl Hash for Subchannel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

// === impl Subchannels ===

impl Subchannels {
    /// News of the subchannels go to `news`.
    pub(crate) fn new(
        runtime: runtime::Id,
        security: ChannelSecurity,
        base_uri: BaseUri,
        settings: ConnectSettings,
        interner: Interner,
        news: UnboundedSender<News>,
        audience: Audience,
    ) -> Self {
        let Audience { observer, log } = audience;
        Self { runtime, security, settings, interner, news, observer, log, uses: BTreeMap::new(), base_uri }
    }

    /// Sees what happened to a connection in use.
    pub(crate) fn note(&mut self, news: &News) {
        if let Some(used) = self.uses.get_mut(&news.id) {
            guard::shielded("telemetry", || used.observer.note(&news.state, news.cause));
            self.log.connection(news, used.connection.address(), &used.origin, Instant::now());
        }
    }

    /// The connections in use, each once.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let found = self.uses.values().map(|used| (used.connection.counters().id, used.connection.clone()));
        let by_id: BTreeMap<_, _> = found.collect();
        by_id.into_values().collect()
    }

    fn user(&self, id: SubchannelId) -> User {
        User { id, news: self.news.clone() }
    }
}

impl Helper for Subchannels {
    type Subchannel = Subchannel;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Subchannel {
        let connection = ConnectionSpec {
            runtime: self.runtime,
            address: spec.address,
            proxy: spec.proxy,
            security: self.security.of(spec),
            settings: self.settings,
        };
        let is_secure = !connection.security.is_plaintext();
        let connection = Connection::join(connection, self.user(id));
        let observer = self.observer.subchannel(&spec.origin, is_secure);
        let origin = Arc::clone(&spec.origin);
        self.uses.insert(id, Use { connection: connection.clone(), observer, origin, orca_oob: Vec::new() });
        Subchannel(connection)
    }

    fn connect(&mut self, id: SubchannelId) {
        if let Some(used) = self.uses.get(&id).filter(|_| self.settings.enabled) {
            used.connection.connect();
        }
    }

    fn watch_load(&mut self, id: SubchannelId, period: Duration, sink: LoadSink) {
        if let Some(Use { connection, orca_oob: tasks, .. }) = self.uses.get_mut(&id) {
            tasks.retain(|task| !task.is_finished());
            let (base_uri, connection) = (self.base_uri.clone(), connection.clone());
            tasks.push(Task::spawn(orca_oob::collect(base_uri, connection, period, sink)));
        }
    }

    fn release(&mut self, id: SubchannelId) {
        if let Some(Use { connection, orca_oob, .. }) = self.uses.remove(&id) {
            drop(orca_oob); // Or the connection would never be done.
            connection.leave(&self.user(id));
            self.log.forget(id);
        }
    }

    fn request_reresolution(&mut self) {
        // The channel core answers this one itself.
    }

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        process::table::<Counters>().of(cluster, eds_service)
    }

    fn observe(&mut self, observation: &Observation) {
        guard::shielded("telemetry", || self.observer.note(observation));
        self.log.observation(observation, Instant::now());
    }

    fn interner(&mut self) -> Option<&mut dyn Intern> {
        Some(&mut self.interner)
    }
}

impl Drop for Subchannels {
    /// A driver that is dropped with its runtime has released nothing.
    fn drop(&mut self) {
        for (id, used) in std::mem::take(&mut self.uses) {
            used.connection.leave(&self.user(id));
        }
    }
}

/// The in-flight counters of the process: one per {cluster, EDS service}, for all channels (L-86).
#[derive(Default)]
struct Counters {
    by_cluster: BTreeMap<(String, String), Weak<Counter>>,
    /// The size at which counters that nobody uses are forgotten. It doubles, so that the search for them costs little.
    prune_at: usize,
}

impl Table for Counters {
    const KIND: Kind = Kind::CircuitBreakers;
}

impl Counters {
    fn of(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        if self.by_cluster.len() >= self.prune_at {
            self.by_cluster.retain(|_, counter| counter.strong_count() > 0);
            self.prune_at = 64.max(2 * self.by_cluster.len());
        }
        let slot = self.by_cluster.entry((cluster.to_owned(), eds_service.to_owned())).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let counter = Arc::new(Counter::new());
            *slot = Arc::downgrade(&counter);
            counter
        })
    }
}
