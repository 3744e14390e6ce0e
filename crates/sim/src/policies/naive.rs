//! What the tree of policies must do, written down once more from the rules, as plainly as can be.
//!
//! Nothing here is shared with `mainstay-lb`, nothing is indexed, cached or stopped: lists are searched, deadlines and
//! pickers are made anew from what is the case each time someone asks. What the tree says and does is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::Observation;
use mainstay_xds::deps::{ClusterConfig, ResolvedEndpoints};
use mainstay_xds::resource::endpoint::{Endpoint, EndpointSource, HealthStatus, Locality};
use mainstay_xds::resource::lb_policy::{LbPolicy, Weighing};
use mainstay_xds::{Choose, Time};

mod leaf;
mod machine;
mod pick;
mod priority;
mod roster;
mod routes;
mod sessions;
mod spread;
mod switch;
mod tree;
mod weights;

pub(super) use pick::{Counted, Picker, Reason, Rpc, Sent, Verdict};
pub(super) use tree::{End, Naive};

/// State of a connection or of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Idle,
    Connecting,
    Ready,
    Failing,
}

/// What makes a connection another one: address, proxy, host name, and how it is secured, in words.
pub(super) type Key = (SocketAddr, Option<SocketAddr>, Option<Arc<str>>, Option<String>);

/// An address, and where its endpoint belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addr {
    pub(super) key: Key,
    pub(super) cluster: Arc<str>,
    pub(super) locality: Arc<Locality>,
}

/// The addresses of an endpoint in any order; one alone comes before several.
pub(super) type Set = (bool, Vec<SocketAddr>);

/// Part of a policy. Earlier ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Who {
    pub(super) cluster: u32,
    pub(super) policy: u64,
    pub(super) slot: u32,
}

/// What happens to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Connection(Key),
    Timer(Kind),
    Wake,
    Health(bool),
}

/// What a deadline is for; of two at the same time the first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    NextAddress,
    Failover,
    Deactivation,
    Handover,
    Weights,
    Interval,
    Sweep,
}

/// A deadline and whose it is.
pub(super) type Deadline = (Time, Who, Kind);

/// A connection that someone wants.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// Whether it was asked to connect since it last said something.
    asked: bool,
    error: Option<Arc<str>>,
    users: Vec<Who>,
    /// Tells it from others to the same place.
    pub(super) number: u64,
}

/// All connections, and what the world is asked about them.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    pub(super) all: BTreeMap<Key, Connection>,
    /// Asked to connect in this call.
    pub(super) asked: BTreeSet<Key>,
    /// Asked for reports of load in this call: how often, and into which book.
    pub(super) watched: Vec<(Key, Duration, u64)>,
    pub(super) reresolve: bool,
    last: u64,
}

/// What RPCs and endpoints count, apart from the policies.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) last: u64,
    /// RPCs in flight, by breaker.
    pub(super) in_flight: BTreeMap<(String, String), u32>,
    /// RPCs that ended well and badly, by endpoint of outlier detection.
    pub(super) ended: BTreeMap<u64, (u64, u64)>,
    /// RPCs under way, by endpoint of least_request.
    pub(super) under_way: BTreeMap<u64, u32>,
    /// By which rules the reports of a book are weighed.
    pub(super) weighing: BTreeMap<u64, Weighing>,
    /// How many reports came, and the last weight.
    pub(super) reports: BTreeMap<u64, (u32, f64)>,
    /// Whose turn it is, by weighted_round_robin.
    pub(super) turns: BTreeMap<u64, u64>,
    /// Addresses that sessions used since the last sweep.
    pub(super) used: BTreeSet<u64>,
}

/// What every step brings along.
pub(super) struct Env<'a> {
    pub(super) now: Time,
    pub(super) chance: &'a mut dyn Choose,
    pub(super) connections: &'a mut Connections,
    pub(super) books: &'a mut Books,
    pub(super) last_policy: &'a mut u64,
    pub(super) cluster: u32,
    /// Endpoints that outlier detection knows, if there is any.
    health: Option<leaf::Health>,
    /// Whether nobody listens to requests for re-resolution.
    pub(super) deaf: bool,
    /// The bound on handovers.
    pub(super) bound: Option<Duration>,
    pub(super) seen: &'a mut Vec<Observation>,
}

/// One priority of a cluster, or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) lb: LbPolicy,
    pub(super) localities: Vec<Area>,
    pub(super) counted: bool,
}

/// A locality with its endpoints.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) cluster: Arc<str>,
    pub(super) locality: Arc<Locality>,
    pub(super) weight: u32,
    pub(super) endpoints: Vec<Endpoint>,
    /// Whether proxies are used, and which by default.
    pub(super) proxy: Option<Option<SocketAddr>>,
    /// How connections are secured, if the channel heeds that.
    pub(super) tls: Option<String>,
}

/// An endpoint with its addresses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Site {
    pub(super) set: Set,
    pub(super) addresses: Vec<Addr>,
    pub(super) endpoint: Endpoint,
}

/// What a parent asks of a policy.
pub(super) trait Policy: Sized {
    type Config: Clone + std::fmt::Debug + PartialEq;

    fn new(env: &mut Env<'_>, config: &Self::Config) -> Self;
    fn update(&mut self, env: &mut Env<'_>, config: &Self::Config);
    /// Whether it was for this policy or one below.
    fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool;
    fn exit_idle(&mut self, env: &mut Env<'_>);
    fn serves(&self, who: Who) -> bool;
    fn keeps(&self, connections: &Connections, config: &Self::Config) -> bool;
    fn close(&mut self, env: &mut Env<'_>);
    fn state(&self) -> State;
    fn picker(&self, connections: &Connections) -> Picker;
    fn deadlines(&self, into: &mut Vec<Deadline>);
}

impl Env<'_> {
    pub(super) fn new_who(&mut self) -> Who {
        *self.last_policy += 1;
        Who { cluster: self.cluster, policy: *self.last_policy, slot: 0 }
    }

    pub(super) fn reresolve(&mut self) {
        self.connections.reresolve |= !self.deaf;
    }

    pub(super) fn deaf_if<T>(&mut self, deaf: bool, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.deaf;
        self.deaf |= deaf;
        let result = work(self);
        self.deaf = before;
        result
    }
}

impl Books {
    pub(super) fn new_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Connections {
    pub(super) fn acquire(&mut self, key: &Key, who: Who) {
        let number = self.last + 1;
        let connection = self.all.entry(key.clone()).or_insert_with(|| {
            self.last = number;
            Connection { state: State::Idle, asked: false, error: None, users: Vec::new(), number }
        });
        connection.users.push(who);
    }

    pub(super) fn release(&mut self, key: &Key, who: Who) {
        if let Some(connection) = self.all.get_mut(key)
            && let Some(at) = connection.users.iter().position(|user| *user == who)
        {
            connection.users.remove(at);
        }
    }

    pub(super) fn state(&self, key: &Key) -> State {
        self.all.get(key).map_or(State::Idle, |connection| connection.state)
    }

    pub(super) fn users(&self, key: &Key) -> &[Who] {
        self.all.get(key).map_or(&[], |connection| &connection.users)
    }

    /// Asks an idle connection to connect, once.
    pub(super) fn connect(&mut self, key: &Key) {
        if let Some(connection) = self.all.get_mut(key)
            && connection.state == State::Idle
            && !std::mem::replace(&mut connection.asked, true)
        {
            self.asked.insert(key.clone());
        }
    }

    pub(super) fn error(&self, key: &Key) -> Option<String> {
        let error = self.all.get(key)?.error.as_ref()?;
        Some(format!("{}: {error}", key.0))
    }

    /// What a connection says. Who has to hear of it.
    pub(super) fn hear(&mut self, key: &Key, state: State, error: Option<&Arc<str>>) -> Vec<Who> {
        let Some(connection) = self.all.get_mut(key) else { return Vec::new() };
        if connection.state == state && (error.is_none() || connection.error.as_ref() == error) {
            if connection.asked {
                self.asked.insert(key.clone());
            }
            return Vec::new();
        }
        (connection.state, connection.asked) = (state, false);
        match state {
            State::Ready => connection.error = None,
            State::Failing => connection.error = error.cloned(),
            State::Idle | State::Connecting => {}
        }
        connection.users.clone()
    }

    /// Forgets what nobody uses any more.
    pub(super) fn tidy(&mut self) {
        self.all.retain(|_, connection| !connection.users.is_empty());
        let all = &self.all;
        self.asked.retain(|key| all.contains_key(key));
        self.watched.retain(|(key, ..)| all.contains_key(key));
    }
}

impl Part {
    /// Every endpoint that may get traffic.
    pub(super) fn sites(&self) -> Vec<Site> {
        self.localities.iter().flat_map(Area::sites).collect()
    }

    /// Whether one of the endpoints is connected for somebody of whom `serves` is true.
    pub(super) fn has_any(&self, connections: &Connections, serves: impl Fn(Who) -> bool) -> bool {
        let addresses = self.sites().into_iter().flat_map(|site| site.addresses);
        addresses.into_iter().any(|address| connections.users(&address.key).iter().any(|who| serves(*who)))
    }
}

impl Area {
    /// All but those that drain.
    pub(super) fn sites(&self) -> Vec<Site> {
        self.all().into_iter().filter(|site| site.endpoint.health != HealthStatus::Draining).collect()
    }

    pub(super) fn all(&self) -> Vec<Site> {
        let site = |endpoint: &Endpoint| {
            let address = |socket: &SocketAddr| {
                let proxy = self.proxy.and_then(|default| endpoint.proxy().or(default));
                let key = (*socket, proxy, endpoint.hostname().cloned(), self.tls.clone());
                Addr { key, cluster: self.cluster.clone(), locality: self.locality.clone() }
            };
            let addresses = endpoint.addresses.as_slice();
            let set = set_of(addresses.iter().copied());
            Site { set, addresses: addresses.iter().map(address).collect(), endpoint: endpoint.clone() }
        };
        self.endpoints.iter().map(site).collect()
    }
}

pub(super) fn set_of(addresses: impl Iterator<Item = SocketAddr>) -> Set {
    let all: Vec<SocketAddr> = addresses.collect();
    let sorted: BTreeSet<SocketAddr> = all.iter().copied().collect();
    (all.len() != 1, sorted.into_iter().collect())
}

/// The priorities of a cluster as they are: collections in their places, no address twice.
pub(super) fn priorities(config: &ClusterConfig, resolved: &ResolvedEndpoints, follows: bool) -> Vec<Vec<Area>> {
    let mut seen = BTreeSet::new();
    let mut result = Vec::new();
    for priority in &resolved.endpoints.priorities {
        let mut areas = Vec::new();
        for locality in &priority.localities {
            let listed = match &locality.source {
                EndpointSource::Inline(list) => Some(list),
                EndpointSource::Collection(name) => resolved.collections.get(name.as_str()),
            };
            let mut endpoints = Vec::new();
            for endpoint in listed.into_iter().flat_map(|list| &list.endpoints) {
                let addresses = endpoint.addresses.as_slice();
                if resolved.collections.is_empty() || !addresses.iter().any(|address| seen.contains(address)) {
                    seen.extend(addresses.iter().copied());
                    endpoints.push(endpoint.clone());
                }
            }
            let proxy = config.cluster.http_connect.map(|cluster| locality.proxy.or(cluster.default));
            let (cluster, locality, weight) = (config.name.clone(), locality.locality.clone(), locality.weight);
            let tls = config.cluster.tls.as_ref().filter(|_| follows).map(|tls| format!("{tls:?}"));
            areas.push(Area { cluster, locality, weight, endpoints, proxy, tls });
        }
        result.push(areas);
    }
    result
}
