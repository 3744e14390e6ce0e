//! Backends and the connections to them, in the place of sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_lb::{Connectivity, Counter, Helper, Subchannel, SubchannelId, SubchannelSpec};
use mainstay_xds::Time;

/// A subchannel as pickers see it.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) id: SubchannelId,
    pub(crate) address: SocketAddr,
    /// Copies of a world share this; [`Shell::lend`] sets it to what is true in one of them.
    ready: Arc<AtomicBool>,
}

/// Everything that the LB tree asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shell {
    pub(crate) connections: BTreeMap<SubchannelId, Connection>,
    /// Backends that refuse connections.
    pub(crate) down: BTreeSet<SocketAddr>,
    /// Backends whose connections may still suffer from a time when they did.
    pub(crate) troubled: BTreeSet<SocketAddr>,
    /// Clusters with a part that was failing when its endpoints were replaced: it counts as failing until one of the new
    /// ones is ready (L-49).
    pub(crate) failing: BTreeSet<String>,
    pub(crate) counters: BTreeMap<(String, String), Arc<Counter>>,
    /// What the tree did that it must not do.
    pub(crate) misuse: Option<String>,
    /// Whether some cluster has a circuit breaker that can be reached, or drops RPCs.
    pub(crate) limited: bool,
    /// See [`Scenario::subsets`](crate::Scenario).
    pub(crate) subsets: Arc<BTreeSet<String>>,
    /// What was asked for since the last look, for transcripts.
    pub(crate) log: Vec<String>,
}

/// A connection to a backend.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) handle: Handle,
    pub(crate) state: State,
}

/// State of a connection. `Asked` is an idle one that was asked to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Idle,
    Asked,
    Connecting,
    Ready,
    /// In backoff until then.
    Failed(Time),
}

impl Shell {
    /// Whether one of these backends has a ready connection.
    pub(crate) fn has_ready(&self, addresses: &BTreeSet<SocketAddr>) -> bool {
        let mut ready = self.connections.values().filter(|connection| connection.state == State::Ready);
        ready.any(|connection| addresses.contains(&connection.handle.address))
    }

    /// Takes the next step of a connection that was asked for: what the tree must hear of it.
    pub(crate) fn advance(&mut self, now: Time, id: SubchannelId) -> Option<Connectivity> {
        let connection = self.connections.get_mut(&id)?;
        let (state, news) = match connection.state {
            State::Asked => (State::Connecting, Connectivity::Connecting),
            State::Connecting if self.down.contains(&connection.handle.address) => {
                (State::Failed(now + BACKOFF), Connectivity::TransientFailure("connection refused".into()))
            }
            State::Connecting => (State::Ready, Connectivity::Ready),
            State::Failed(until) if until <= now => (State::Idle, Connectivity::Idle),
            State::Idle | State::Ready | State::Failed(_) => return None,
        };
        connection.state = state;
        Some(news)
    }

    /// Whether circuit breakers may be at their limits, or RPCs are dropped on purpose.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited
    }

    /// Connections for which [`Shell::advance`] has something to do now.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = SubchannelId> {
        let under_way = |connection: &Connection| matches!(connection.state, State::Asked | State::Connecting);
        self.connections.iter().filter(move |(_, connection)| under_way(connection)).map(|(id, _)| *id)
    }

    /// When the first backoff ends.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let until = |connection: &Connection| match connection.state {
            State::Failed(until) => Some(until),
            State::Idle | State::Asked | State::Connecting | State::Ready => None,
        };
        self.connections.values().filter_map(until).min()
    }

    /// Makes handles tell what is true in this world.
    pub(crate) fn lend(&self) {
        for connection in self.connections.values() {
            connection.handle.ready.store(connection.state == State::Ready, Ordering::Relaxed);
        }
    }

    /// What matters of it for the future.
    pub(crate) fn key(&self) -> impl Hash {
        let connections = self.connections.values().map(|c| (c.handle.address, c.state));
        (connections.collect::<Vec<_>>(), self.down.clone(), self.troubled.clone(), self.failing.clone())
    }
}

impl Helper for Shell {
    type Subchannel = Handle;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Handle {
        let handle = Handle { id, address: spec.address, ready: Arc::default() };
        let connection = Connection { handle: handle.clone(), state: State::Idle };
        if self.connections.insert(id, connection).is_some() {
            self.misuse = Some(format!("subchannel {} was created twice", id.0));
        }
        handle
    }

    fn connect(&mut self, id: SubchannelId) {
        match self.connections.get_mut(&id) {
            Some(connection) if connection.state == State::Idle => connection.state = State::Asked,
            Some(_) => self.misuse = Some(format!("subchannel {} was asked to connect while not idle", id.0)),
            None => self.misuse = Some(format!("subchannel {} was asked to connect after its release", id.0)),
        }
    }

    fn release(&mut self, id: SubchannelId) {
        match self.connections.remove(&id) {
            Some(connection) => self.log.push(format!("backend {}: released", connection.handle.address.ip())),
            None => self.misuse = Some(format!("subchannel {} was released twice", id.0)),
        }
    }

    fn request_reresolution(&mut self) {}

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        let key = (cluster.to_owned(), eds_service.to_owned());
        Arc::clone(self.counters.entry(key).or_default())
    }
}

impl Subchannel for Handle {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// How long a connection that failed waits.
const BACKOFF: Duration = Duration::from_secs(1);
