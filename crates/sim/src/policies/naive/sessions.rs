//! Sessions of a cluster: which addresses cookies may name, and which connections are kept for them (L-95 to L-98).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::resource::cluster::{Cluster, OverrideHostStatuses};
use mainstay_xds::resource::endpoint::HealthStatus;

use super::pick::{HostState, Ready, SessionHost};
use super::{Addr, Connections, Deadline, Env, Kind, Part, Site, State, What, Who, set_of};

#[derive(Clone, Debug)]
pub(super) struct Sessions {
    who: Who,
    hosts: BTreeMap<SocketAddr, Host>,
    last_slot: u32,
    statuses: OverrideHostStatuses,
    idle_timeout: Duration,
    sweep: Option<Time>,
}

#[derive(Clone, Debug)]
struct Host {
    slot: u32,
    addr: Addr,
    endpoint: Vec<SocketAddr>,
    allowed: bool,
    ejected: bool,
    counter: Option<u64>,
    /// Where its uses are noted.
    book: u64,
    /// Since when nothing is known to have used the connection that is kept for it.
    kept: Option<Time>,
}

impl Sessions {
    pub(super) fn new(env: &mut Env<'_>, cluster: &Cluster, parts: &[&Part]) -> Self {
        let (statuses, idle_timeout) = (cluster.override_host_statuses, cluster.idle_timeout);
        let hosts = BTreeMap::new();
        let mut sessions = Self { who: env.new_who(), hosts, last_slot: 0, statuses, idle_timeout, sweep: None };
        sessions.list(env, parts);
        sessions
    }

    pub(super) fn update(&mut self, env: &mut Env<'_>, cluster: &Cluster, parts: &[&Part]) {
        (self.statuses, self.idle_timeout) = (cluster.override_host_statuses, cluster.idle_timeout);
        self.list(env, parts);
    }

    pub(super) fn list(&mut self, env: &mut Env<'_>, parts: &[&Part]) {
        let mut old = std::mem::take(&mut self.hosts);
        let areas = parts.iter().flat_map(|part| &part.localities);
        for site in areas.flat_map(|area| area.all()) {
            let draining = site.endpoint.health == HealthStatus::Draining;
            if !draining || self.statuses.draining {
                self.list_site(env, &mut old, &site);
            }
        }
        old.into_values().for_each(|gone| self.let_go(env, gone));
    }

    fn list_site(&mut self, env: &mut Env<'_>, old: &mut BTreeMap<SocketAddr, Host>, site: &Site) {
        let endpoint: Vec<SocketAddr> = site.addresses.iter().map(|addr| addr.key.0).collect();
        for addr in &site.addresses {
            let socket = addr.key.0;
            if self.hosts.contains_key(&socket) {
                continue;
            }
            let known = old.remove(&socket);
            let mut host = match known {
                Some(host) if host.addr.key == addr.key => host,
                other => {
                    other.into_iter().for_each(|other| self.let_go(env, other));
                    self.last_slot += 1;
                    let (slot, book) = (self.last_slot, env.books.new_number());
                    let (addr, endpoint) = (addr.clone(), endpoint.clone());
                    Host { slot, addr, endpoint, allowed: false, ejected: false, counter: None, book, kept: None }
                }
            };
            host.addr = addr.clone();
            host.endpoint = endpoint.clone();
            host.allowed = match site.endpoint.health {
                HealthStatus::Unknown => self.statuses.unknown,
                HealthStatus::Healthy => self.statuses.healthy,
                HealthStatus::Draining => self.statuses.draining,
            };
            let who = Who { slot: host.slot, ..self.who };
            match env.health.as_mut().map(|health| health.join(&site.set, who)) {
                Some(Some((counter, ejected))) => (host.ejected, host.counter) = (ejected, Some(counter)),
                Some(None) => {}
                None => (host.ejected, host.counter) = (false, None),
            }
            self.hosts.insert(socket, host);
        }
    }

    pub(super) fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        if who.policy != self.who.policy {
            return false;
        }
        let host = self.hosts.values_mut().find(|host| host.slot == who.slot);
        match (what, host) {
            (What::Wake, Some(host)) => {
                if host.kept.is_none() {
                    env.connections.acquire(&host.addr.key, who);
                }
                host.kept = Some(env.now);
                env.connections.connect(&host.addr.key);
                self.sweep.get_or_insert(next_sweep(env.now, self.idle_timeout));
            }
            (What::Health(ejected), Some(host)) => host.ejected = *ejected,
            (What::Timer(_), _) => self.look(env),
            (What::Connection(_) | What::Wake | What::Health(_), _) => {}
        }
        true
    }

    /// L-98.
    fn look(&mut self, env: &mut Env<'_>) {
        for host in self.hosts.values_mut() {
            let Some(last) = host.kept else { continue };
            let used = env.books.used.remove(&host.book);
            host.kept = Some(if used { env.now } else { last });
            if host.kept.is_some_and(|last| env.now.since(last) >= self.idle_timeout) {
                host.kept = None;
                env.connections.release(&host.addr.key, Who { slot: host.slot, ..self.who });
            }
        }
        let any = self.hosts.values().any(|host| host.kept.is_some());
        self.sweep = any.then(|| next_sweep(env.now, self.idle_timeout));
    }

    pub(super) fn close(&mut self, env: &mut Env<'_>) {
        std::mem::take(&mut self.hosts).into_values().for_each(|host| self.let_go(env, host));
    }

    fn let_go(&self, env: &mut Env<'_>, host: Host) {
        let who = Who { slot: host.slot, ..self.who };
        if host.kept.is_some() {
            env.connections.release(&host.addr.key, who);
        }
        if let (Some(health), Some(_)) = (&mut env.health, host.counter) {
            health.leave(&set_of(host.endpoint.into_iter()), who);
        }
    }

    pub(super) fn picks(&self, connections: &Connections) -> Vec<SessionHost> {
        let pick = |(address, host): (&SocketAddr, &Host)| {
            let cluster = self.who.cluster;
            let ours = connections.users(&host.addr.key).iter().any(|user| user.cluster == cluster);
            let state = match connections.state(&host.addr.key) {
                _ if !host.allowed || host.ejected => HostState::Unusable,
                _ if !ours => HostState::Missing,
                State::Ready => HostState::Ready(Ready { addr: host.addr.clone(), counter: host.counter }),
                State::Idle => HostState::Idle,
                State::Connecting => HostState::Connecting,
                State::Failing => HostState::Unusable,
            };
            let who = Who { slot: host.slot, ..self.who };
            let (endpoint, book, kept) = (host.endpoint.clone(), host.book, host.kept.is_some());
            SessionHost { address: *address, who, endpoint, state, book, kept }
        };
        self.hosts.iter().map(pick).collect()
    }

    pub(super) fn deadlines(&self, into: &mut Vec<Deadline>) {
        into.extend(self.sweep.map(|at| (at, self.who, Kind::Sweep)));
    }
}

/// A quarter of the idle timeout, and never less than 5 s (A75).
fn next_sweep(now: Time, idle_timeout: Duration) -> Time {
    now + (idle_timeout / 4).max(Duration::from_secs(5))
}
