//! xds_override_host: RPCs of a session go to the endpoint that their cookie names (A55, A61, A75, L-95 to L-98).
//!
//! It stands above the priorities, so that a session stays where it is when its endpoint moves to another one. Whatever
//! subchannel the policies below have for an address is used. One that a session uses is kept beside them, so that it
//! stays when they let it go; where there is none, one is made.
//!
//! A cluster without sessions has none of this.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::resource::cluster::{Cluster, OverrideHostStatuses};
use mainstay_xds::resource::endpoint::HealthStatus;

use super::endpoint_policy::EndpointPolicy;
use super::priority::{ChildConfig, Priority};
use super::{Cx, Event, What};
use crate::calls::CallCounter;
use crate::endpoint::{Address, AddressSet, EndpointRef, LocalityConfig, PriorityConfig};
use crate::owner::Owner;
use crate::picker::{HostState, OverridePicker, Parts, Picker, Ready, SessionHost, Standing, Used};
use crate::pool::{Handles, Pool};
use crate::subchannel::{State, Subchannel, SubchannelId};
use crate::timers::TimerKind;

/// The priorities of a cluster, with or without sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OverrideHost {
    sessions: Option<Box<Sessions>>,
    priority: Priority<EndpointPolicy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sessions {
    owner: Owner,
    /// Every address of every endpoint of every priority (L-95).
    hosts: BTreeMap<SocketAddr, Host>,
    last_slot: u32,
    statuses: OverrideHostStatuses,
    idle_timeout: Duration,
    /// When connections that no session uses any more are looked for; only while there are any.
    sweep: Option<Time>,
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    /// Never used twice.
    slot: u32,
    address: Address,
    /// All addresses of its endpoint.
    endpoint: Arc<[SocketAddr]>,
    /// Whether the health of the endpoint allows its use.
    allowed: bool,
    /// Out of use for a while, as far as outlier detection is concerned.
    ejected: bool,
    counter: Option<Arc<CallCounter>>,
    used: Arc<Used>,
    kept: Option<Kept>,
}

/// A subchannel that a session uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kept {
    id: SubchannelId,
    last_used: Time,
}

// === impl OverrideHost ===

impl OverrideHost {
    pub(crate) fn new(
        cx: &mut Cx<'_>,
        cluster: &Cluster,
        sessions: bool,
        children: Vec<ChildConfig<PriorityConfig>>,
    ) -> Self {
        let priority = Priority::new(cx, children);
        let sessions = sessions.then(|| Box::new(Sessions::new(cx, cluster, priority.configs())));
        Self { sessions, priority }
    }

    pub(crate) fn update(
        &mut self,
        cx: &mut Cx<'_>,
        cluster: &Cluster,
        sessions: bool,
        children: Vec<ChildConfig<PriorityConfig>>,
    ) {
        self.priority.update(cx, children);
        match &mut self.sessions {
            Some(current) if sessions => current.update(cx, cluster, self.priority.configs()),
            None if sessions => self.sessions = Some(Box::new(Sessions::new(cx, cluster, self.priority.configs()))),
            _ => self.end_sessions(cx),
        }
    }

    pub(crate) fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        match &mut self.sessions {
            Some(sessions) if event.owner.policy == sessions.owner.policy => {
                sessions.handle(cx, event);
                true
            }
            sessions => {
                let lingered = self.priority.has_unlisted();
                let handled = self.priority.handle(cx, event);
                if let Some(sessions) = sessions
                    && lingered != self.priority.has_unlisted()
                {
                    sessions.list_all(cx, self.priority.configs());
                }
                handled
            }
        }
    }

    pub(crate) fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        self.priority.exit_idle(cx);
    }

    /// What its priorities are made of, and what served before if that still does.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &PriorityConfig> {
        self.priority.configs()
    }

    pub(crate) fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.end_sessions(cx);
        self.priority.shut_down(cx);
    }

    /// Which priority serves.
    pub(crate) fn standing(&self) -> Standing {
        let (position, count) = self.priority.position();
        Standing { position, count }
    }

    pub(crate) fn state(&self) -> State {
        self.priority.state()
    }

    pub(crate) fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        let (position, count) = self.priority.position();
        let of_child = parts
            .below(|before| if let Picker::Override(sessions) = before { Some(&sessions.child) } else { Some(before) });
        let child = self.priority.picker(of_child).explain(&format!("priority {position} of {count}"));
        match &self.sessions {
            Some(sessions) => Picker::Override(Box::new(sessions.picker(parts.pool, parts.handles, child))),
            None => child,
        }
    }

    fn end_sessions(&mut self, cx: &mut Cx<'_>) {
        if let Some(mut sessions) = self.sessions.take() {
            sessions.stop_sweep(cx);
            for host in std::mem::take(&mut sessions.hosts).into_values() {
                sessions.let_go(cx, host);
            }
        }
    }
}

// === impl Sessions ===

impl Sessions {
    fn new<'a>(cx: &mut Cx<'_>, cluster: &Cluster, configs: impl Iterator<Item = &'a PriorityConfig>) -> Self {
        let (owner, statuses, idle_timeout) = (cx.new_owner(), cluster.override_host_statuses, cluster.idle_timeout);
        let mut sessions = Self { owner, hosts: BTreeMap::new(), last_slot: 0, statuses, idle_timeout, sweep: None };
        sessions.list_all(cx, configs);
        sessions
    }

    fn update<'a>(&mut self, cx: &mut Cx<'_>, cluster: &Cluster, configs: impl Iterator<Item = &'a PriorityConfig>) {
        (self.statuses, self.idle_timeout) = (cluster.override_host_statuses, cluster.idle_timeout);
        self.list_all(cx, configs);
    }

    /// Knows the addresses of these endpoints and no others.
    fn list_all<'a>(&mut self, cx: &mut Cx<'_>, configs: impl Iterator<Item = &'a PriorityConfig>) {
        let statuses = self.statuses;
        let localities = configs.flat_map(|config| &config.localities);
        let mut old = std::mem::take(&mut self.hosts);
        for endpoint in localities.flat_map(LocalityConfig::all) {
            // Nobody else looks after one that drains (L-96).
            if endpoint.health != HealthStatus::Draining || statuses.draining {
                self.list(cx, &mut old, endpoint, allows(statuses, endpoint.health));
            }
        }
        for gone in old.into_values() {
            self.let_go(cx, gone);
        }
    }

    /// Adds the addresses of an endpoint. What is known of them stays.
    fn list(
        &mut self,
        cx: &mut Cx<'_>,
        old: &mut BTreeMap<SocketAddr, Host>,
        endpoint: EndpointRef<'_>,
        allowed: bool,
    ) {
        let addresses = endpoint.addresses.as_slice();
        let (set, all): (_, Arc<[SocketAddr]>) = (AddressSet::of(&endpoint), addresses.into());
        for (address, &socket) in endpoint.each_address().zip(addresses) {
            if self.hosts.contains_key(&socket) {
                continue; // Of two endpoints with one address the first counts.
            }
            let mut host = match old.remove(&socket) {
                Some(mut host) if host.address.identity() == address.identity() => {
                    if let Some(kept) = &host.kept {
                        cx.pool.renew(kept.id, Owner { slot: host.slot, ..self.owner }, &address);
                    }
                    host.address = address;
                    host
                }
                other => {
                    other.into_iter().for_each(|other| self.let_go(cx, other));
                    self.last_slot += 1;
                    Host::new(self.last_slot, address, Arc::clone(&all))
                }
            };
            host.allowed = allowed;
            if *host.endpoint != *all {
                host.endpoint = Arc::clone(&all);
            }
            let owner = Owner { slot: host.slot, ..self.owner };
            match cx.health.as_mut().map(|health| health.join(&set, owner)) {
                Some(Some(membership)) => {
                    (host.ejected, host.counter) = (membership.ejected, Some(membership.counter));
                }
                Some(None) => {} // It has left the configuration: what was last known of it stands.
                None => (host.ejected, host.counter) = (false, None),
            }
            self.hosts.insert(socket, host);
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) {
        let slot = event.owner.slot;
        match event.what {
            What::Wake => self.keep(cx, slot),
            What::Timer(_) => self.sweep(cx),
            What::Health { ejected } => {
                if let Some(host) = self.hosts.values_mut().find(|host| host.slot == slot) {
                    host.ejected = ejected;
                }
            }
            What::Connectivity(_) => {} // The next picker looks.
        }
    }

    /// A session wants this address: keeps its subchannel, and has it connect.
    fn keep(&mut self, cx: &mut Cx<'_>, slot: u32) {
        let Some(host) = self.hosts.values_mut().find(|host| host.slot == slot) else { return };
        let (owner, last_used) = (Owner { slot, ..self.owner }, cx.now);
        let kept = host.kept.get_or_insert_with(|| Kept { id: cx.pool.acquire(&host.address, owner), last_used });
        kept.last_used = last_used;
        cx.pool.connect(kept.id);
        if self.sweep.is_none() {
            self.start_sweep(cx);
        }
    }

    /// Lets go of connections that no session has used for the idle timeout (L-98).
    fn sweep(&mut self, cx: &mut Cx<'_>) {
        let mut any = false;
        for host in self.hosts.values_mut() {
            let Some(kept) = &mut host.kept else { continue };
            if host.used.take() {
                kept.last_used = cx.now;
            }
            if cx.now.since(kept.last_used) >= self.idle_timeout {
                cx.pool.release(kept.id, Owner { slot: host.slot, ..self.owner });
                host.kept = None;
            }
            any |= host.kept.is_some();
        }
        self.sweep = None;
        if any {
            self.start_sweep(cx);
        }
    }

    /// RPCs do not look at the clock, only the sweep does. So it comes often enough that nothing is kept for much
    /// longer than it should be, and never more often than A75 allows.
    fn start_sweep(&mut self, cx: &mut Cx<'_>) {
        let at = cx.now + (self.idle_timeout / SWEEPS).max(SHORTEST_SWEEP);
        cx.timers.start(at, self.owner, TimerKind::SessionSweep);
        self.sweep = Some(at);
    }

    fn stop_sweep(&mut self, cx: &mut Cx<'_>) {
        if let Some(at) = self.sweep.take() {
            cx.timers.stop(at, self.owner, TimerKind::SessionSweep);
        }
    }

    fn let_go(&self, cx: &mut Cx<'_>, host: Host) {
        let owner = Owner { slot: host.slot, ..self.owner };
        if let Some(kept) = host.kept {
            cx.pool.release(kept.id, owner);
        }
        if let Some(health) = cx.health.as_mut().filter(|_| host.counter.is_some()) {
            health.leave(&AddressSet::new(host.endpoint.iter().copied()), owner);
        }
    }

    fn picker<S: Subchannel>(&self, pool: &Pool, handles: &Handles<S>, child: Picker<S>) -> OverridePicker<S> {
        let host = |(address, host): (&SocketAddr, &Host)| SessionHost {
            address: *address,
            owner: Owner { slot: host.slot, ..self.owner },
            endpoint: Arc::clone(&host.endpoint),
            state: host.state(pool, handles, self.owner.cluster),
            used: Arc::clone(&host.used),
            kept: host.kept.is_some(),
        };
        OverridePicker { hosts: self.hosts.iter().map(host).collect(), child }
    }
}

// === impl Host ===

impl Host {
    fn new(slot: u32, address: Address, endpoint: Arc<[SocketAddr]>) -> Self {
        let (allowed, ejected, counter, used, kept) = (false, false, None, Arc::default(), None);
        Self { slot, address, endpoint, allowed, ejected, counter, used, kept }
    }

    fn state<S: Subchannel>(&self, pool: &Pool, handles: &Handles<S>, cluster: u32) -> HostState<S> {
        if !self.allowed || self.ejected {
            return HostState::Unusable;
        }
        let Some(id) = pool.find(&self.address, cluster) else { return HostState::Missing };
        let ready = |subchannel: &S| Ready {
            subchannel: subchannel.clone(),
            address: self.address.clone(),
            counter: self.counter.clone(),
        };
        match pool.state(id) {
            State::Ready => handles.get(id).map(ready).map_or(HostState::Connecting, HostState::Ready),
            State::Idle => HostState::Idle,
            State::Connecting => HostState::Connecting,
            State::TransientFailure => HostState::Unusable,
        }
    }
}

fn allows(statuses: OverrideHostStatuses, health: HealthStatus) -> bool {
    match health {
        HealthStatus::Unknown => statuses.unknown,
        HealthStatus::Healthy => statuses.healthy,
        HealthStatus::Draining => statuses.draining,
    }
}

/// How many sweeps there are in an idle timeout.
const SWEEPS: u32 = 4;

/// A75.
const SHORTEST_SWEEP: Duration = Duration::from_secs(5);
