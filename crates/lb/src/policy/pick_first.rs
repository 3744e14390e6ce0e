//! pick_first: of several addresses, the first that answers (A61, L-121 to L-125).
//!
//! ```text
//!            ┌────────────── lost, or another list ─────────────┐
//!            ▼                                                  │
//!       FirstPass ── an address is ready ───────────────────► Ready
//!            │                                                  ▲
//!            └── every address failed ──► Retrying ── ready ────┘
//! ```
//!
//! As the policy of a cluster it is idle once its connection is lost, until an RPC wants one (L-125). For an endpoint
//! of another policy it starts a new pass at once: those stay connected to every endpoint.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::resource::endpoint::Addresses;
use mainstay_xds::resource::lb_policy::LbPolicy;

use super::{Cx, Event, Policy, What, leads_to_any};
use crate::calls::CallCounter;
use crate::endpoint::{Address, AddressSet, EndpointRef, PriorityConfig, flatten, shuffle};
use crate::owner::{Owner, Wake};
use crate::picker::{Parts, Picker, Ready};
use crate::pool::{Handles, Pool};
use crate::subchannel::{State, Subchannel, SubchannelId};
use crate::timers::TimerKind;

/// pick_first as the policy of a cluster: over all addresses of all endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PickFirstPolicy(PickFirst);

/// Finds a connection among addresses: of one endpoint, or of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PickFirst {
    owner: Owner,
    /// Whether it waits for an RPC before it connects again.
    lazy: bool,
    candidates: Candidates,
    phase: Phase,
    /// Failure is reported until an address is ready, whatever is tried meanwhile (L-123).
    failing: bool,
    /// Out of use for a while, though connected (L-82).
    ejected: bool,
    last_failed: u32,
    /// Counts the RPCs of the endpoint, if they are counted.
    counter: Option<Arc<CallCounter>>,
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Candidate {
    address: Address,
    /// Absent while another address is in use.
    subchannel: Option<SubchannelId>,
    /// Whether it failed in this pass.
    failed: bool,
}

/// Addresses in the order in which they are tried; without a heap block for the common case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Candidates {
    One(Candidate),
    Many(Vec<Candidate>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing is tried before an RPC asks for it.
    Idle,
    /// Happy Eyeballs: the first `started` addresses were tried, the next is tried when `timer` is due.
    FirstPass { started: u32, timer: Option<Time> },
    /// Every address failed; each is tried again when its backoff ends.
    Retrying { failures: u32 },
    /// This address is in use.
    Ready(u32),
}

// === impl PickFirst ===

impl PickFirst {
    pub(crate) fn new(owner: Owner) -> Self {
        let phase = Phase::Retrying { failures: 0 };
        Self {
            owner,
            lazy: false,
            candidates: Candidates::Many(Vec::new()),
            phase,
            failing: false,
            ejected: false,
            last_failed: 0,
            counter: None,
        }
    }

    /// One that connects only when woken, at first and whenever its connection is lost.
    pub(crate) fn idle(owner: Owner) -> Self {
        Self { lazy: true, phase: Phase::Idle, ..Self::new(owner) }
    }

    /// Takes in a list of addresses, none of them twice.
    pub(crate) fn update(&mut self, cx: &mut Cx<'_>, addresses: &[Address]) {
        let identities = addresses.iter().map(Address::identity);
        if !addresses.is_empty() && identities.eq(self.candidates.iter().map(|c| c.address.identity())) {
            for (candidate, address) in self.candidates.iter_mut().zip(addresses) {
                candidate.subchannel.into_iter().for_each(|id| cx.pool.renew(id, self.owner, address));
                candidate.address = address.clone();
            }
            return;
        }
        let selected = self.ready();
        self.stop_timer(cx);
        let key = |address: &Address| (address.socket(), address.proxy(), address.hostname().cloned());
        let mut known: BTreeMap<_, SubchannelId> = BTreeMap::new();
        known.extend(self.candidates.iter().filter_map(|c| Some((key(&c.address), c.subchannel?))));
        let candidate = |address: &Address| {
            let subchannel = known.remove(&key(address));
            subchannel.into_iter().for_each(|id| cx.pool.renew(id, self.owner, address));
            Candidate { address: address.clone(), subchannel, failed: false }
        };
        self.candidates = addresses.iter().map(candidate).collect();
        for id in known.into_values() {
            cx.pool.release(id, self.owner);
        }
        if self.candidates.is_empty() {
            self.phase = Phase::Retrying { failures: 0 };
            self.failing = true;
            return;
        }
        match selected.and_then(|id| self.position(id)) {
            Some(index) => self.phase = Phase::Ready(index), // L-124
            None if self.phase == Phase::Idle => {}
            None => self.start_pass(cx),
        }
    }

    /// Takes in the addresses of one endpoint: the same as before, perhaps in another order.
    pub(crate) fn update_endpoint(&mut self, cx: &mut Cx<'_>, endpoint: EndpointRef<'_>) {
        let membership = cx.health.as_mut().and_then(|health| health.join(&AddressSet::of(&endpoint), self.owner));
        self.ejected = membership.as_ref().is_some_and(|membership| membership.ejected);
        self.counter = membership.map(|membership| membership.counter);
        match endpoint.addresses {
            Addresses::One(_) => endpoint.each_address().for_each(|only| self.update(cx, std::slice::from_ref(&only))),
            Addresses::Many(_) => self.update(cx, &flatten([endpoint])),
        }
    }

    pub(crate) fn handle(&mut self, cx: &mut Cx<'_>, what: What) {
        match what {
            What::Timer(_) => {
                if let Phase::FirstPass { timer, .. } = &mut self.phase {
                    *timer = None;
                    self.try_next(cx);
                }
            }
            What::Connectivity(id) => {
                if let Some(index) = self.position(id) {
                    self.handle_connectivity(cx, index, id);
                }
            }
            What::Wake => {
                if self.phase == Phase::Idle {
                    self.start_pass(cx);
                }
            }
            What::Health { ejected } => self.ejected = ejected,
        }
    }

    pub(crate) fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.stop_timer(cx);
        self.release_except(cx, None);
        if self.counter.is_some()
            && let Some(health) = &mut cx.health
        {
            health.leave(&AddressSet::new(self.addresses()), self.owner);
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Idle => State::Idle,
            Phase::Ready(_) if self.ejected => State::TransientFailure, // L-126
            Phase::Ready(_) => State::Ready,
            Phase::FirstPass { .. } if !self.failing => State::Connecting,
            Phase::FirstPass { .. } | Phase::Retrying { .. } => State::TransientFailure,
        }
    }

    /// The subchannel in use.
    pub(crate) fn ready(&self) -> Option<SubchannelId> {
        match self.phase {
            Phase::Ready(index) => self.candidates.get(index as usize)?.subchannel,
            Phase::Idle | Phase::FirstPass { .. } | Phase::Retrying { .. } => None,
        }
    }

    /// The connection that RPCs may use, for a picker.
    pub(crate) fn connection<S: Subchannel>(&self, handles: &Handles<S>) -> Option<Ready<S>> {
        let Phase::Ready(index) = self.phase else { return None };
        if self.ejected {
            return None;
        }
        let candidate = self.candidates.get(index as usize)?;
        let subchannel = handles.get(candidate.subchannel?)?.clone();
        Some(Ready { subchannel, address: candidate.address.clone(), counter: self.counter.clone() })
    }

    /// Why the last attempt failed, or a connection is not used.
    pub(crate) fn last_error(&self, pool: &Pool) -> Option<String> {
        if let (Phase::Ready(index), true) = (self.phase, self.ejected) {
            let address = self.candidates.get(index as usize)?.address.socket();
            return Some(format!("{address}: ejected by outlier detection"));
        }
        pool.last_error(self.candidates.get(self.last_failed as usize)?.subchannel?)
    }

    /// Its position in the policy that it is part of.
    pub(crate) fn slot(&self) -> u32 {
        self.owner.slot
    }

    /// The addresses.
    pub(crate) fn addresses(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.candidates.iter().map(|candidate| candidate.address.socket())
    }

    fn handle_connectivity(&mut self, cx: &mut Cx<'_>, index: u32, id: SubchannelId) {
        match (self.phase, cx.pool.state(id)) {
            (Phase::Ready(_), State::Ready) => {}
            (Phase::Ready(_), _) => {
                self.failing = self.ejected; // Failure is sticky (L-104).
                cx.request_reresolution(); // L-125
                if self.lazy {
                    self.phase = Phase::Idle;
                } else {
                    self.start_pass(cx);
                }
            }
            (_, State::Ready) => self.select(cx, index),
            (Phase::Idle, _) | (_, State::Connecting) => {}
            (Phase::FirstPass { started, .. }, State::TransientFailure) => {
                if index < started {
                    self.mark_failed(index);
                }
                if index + 1 == started {
                    self.stop_timer(cx);
                    self.try_next(cx);
                } else {
                    self.end_pass_if_all_failed(cx);
                }
            }
            (Phase::FirstPass { started, .. }, State::Idle) => {
                // One that failed is tried again only after the pass; one that just went away, now.
                if index < started && !self.candidates[index as usize].failed {
                    cx.pool.connect(id);
                }
            }
            (Phase::Retrying { failures }, State::TransientFailure) => {
                self.last_failed = index;
                let failures = failures + 1;
                let round = failures as usize >= self.candidates.len();
                self.phase = Phase::Retrying { failures: if round { 0 } else { failures } };
                if round {
                    cx.request_reresolution(); // L-123
                }
            }
            (Phase::Retrying { .. }, State::Idle) => cx.pool.connect(id),
        }
    }

    fn start_pass(&mut self, cx: &mut Cx<'_>) {
        for candidate in &mut *self.candidates {
            candidate.failed = false;
            if candidate.subchannel.is_none() {
                candidate.subchannel = Some(cx.pool.acquire(&candidate.address, self.owner));
            }
        }
        self.phase = Phase::FirstPass { started: 0, timer: None };
        let is_ready = |c: &Candidate| c.subchannel.is_some_and(|id| cx.pool.state(id) == State::Ready);
        match self.candidates.iter().position(is_ready) {
            // Another policy is connected there already.
            Some(index) => self.select(cx, index as u32),
            None => self.try_next(cx),
        }
    }

    /// Starts the next address, and the timer for the one after it (L-121).
    fn try_next(&mut self, cx: &mut Cx<'_>) {
        let Phase::FirstPass { mut started, .. } = self.phase else { return };
        let mut timer = None;
        while let Some(candidate) = self.candidates.get(started as usize) {
            let id = candidate.subchannel;
            started += 1;
            if id.is_none_or(|id| cx.pool.state(id) == State::TransientFailure) {
                self.mark_failed(started - 1); // In backoff.
                continue;
            }
            id.into_iter().for_each(|id| cx.pool.connect(id));
            if (started as usize) < self.candidates.len() {
                let at = cx.now + ATTEMPT_DELAY;
                cx.timers.start(at, self.owner, TimerKind::NextAddress);
                timer = Some(at);
            }
            break;
        }
        self.phase = Phase::FirstPass { started, timer };
        self.end_pass_if_all_failed(cx);
    }

    fn mark_failed(&mut self, index: u32) {
        self.candidates[index as usize].failed = true;
        self.last_failed = index;
    }

    fn end_pass_if_all_failed(&mut self, cx: &mut Cx<'_>) {
        if !self.candidates.iter().all(|candidate| candidate.failed) {
            return;
        }
        self.stop_timer(cx);
        self.phase = Phase::Retrying { failures: 0 };
        self.failing = true;
        cx.request_reresolution(); // L-123
        for id in self.candidates.iter().filter_map(|candidate| candidate.subchannel) {
            cx.pool.connect(id); // Those whose backoff ended during the pass.
        }
    }

    fn select(&mut self, cx: &mut Cx<'_>, index: u32) {
        self.stop_timer(cx);
        self.release_except(cx, Some(index)); // L-122
        self.phase = Phase::Ready(index);
        self.failing = false;
    }

    fn release_except(&mut self, cx: &mut Cx<'_>, keep: Option<u32>) {
        for (index, candidate) in (0..).zip(&mut *self.candidates) {
            if Some(index) != keep
                && let Some(id) = candidate.subchannel.take()
            {
                cx.pool.release(id, self.owner);
            }
        }
    }

    fn stop_timer(&mut self, cx: &mut Cx<'_>) {
        if let Phase::FirstPass { timer, .. } = &mut self.phase
            && let Some(at) = timer.take()
        {
            cx.timers.stop(at, self.owner, TimerKind::NextAddress);
        }
    }

    fn position(&self, id: SubchannelId) -> Option<u32> {
        self.candidates.iter().position(|candidate| candidate.subchannel == Some(id)).map(|index| index as u32)
    }
}

// === impl Candidates ===

impl Deref for Candidates {
    type Target = [Candidate];

    fn deref(&self) -> &[Candidate] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Many(candidates) => candidates,
        }
    }
}

impl DerefMut for Candidates {
    fn deref_mut(&mut self) -> &mut [Candidate] {
        match self {
            Self::One(only) => std::slice::from_mut(only),
            Self::Many(candidates) => candidates,
        }
    }
}

impl FromIterator<Candidate> for Candidates {
    fn from_iter<I: IntoIterator<Item = Candidate>>(candidates: I) -> Self {
        let mut candidates = candidates.into_iter();
        let (first, second) = (candidates.next(), candidates.next());
        match (first, second) {
            (Some(only), None) => Self::One(only),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(candidates).collect()),
        }
    }
}

// === impl PickFirstPolicy ===

impl Policy for PickFirstPolicy {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy = Self(PickFirst { lazy: true, ..PickFirst::new(cx.new_owner()) });
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        let mut endpoints: Vec<_> = config.endpoints().collect();
        if matches!(config.lb_policy, LbPolicy::PickFirst { shuffle: true }) {
            endpoints = shuffle(config, cx.choose);
        }
        self.0.update(cx, &flatten(endpoints));
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let mine = event.owner.policy == self.0.owner.policy;
        if mine {
            self.0.handle(cx, event.what);
        }
        mine
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        self.0.handle(cx, What::Wake);
    }

    fn serves(&self, owner: Owner) -> bool {
        owner == self.0.owner && self.0.state() == State::Ready
    }

    fn keeps(&self, pool: &Pool, config: &PriorityConfig) -> bool {
        leads_to_any(config, pool, |owner| self.serves(owner))
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.0.shut_down(cx);
    }

    fn state(&self) -> State {
        self.0.state()
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        match self.0.state() {
            State::Ready => self.0.connection(parts.handles).map_or_else(Picker::reconnecting, Picker::One),
            State::TransientFailure if self.0.candidates.is_empty() => Picker::Fail("no endpoints".into()),
            State::TransientFailure => {
                let error = self.0.last_error(parts.pool).unwrap_or_else(|| "unknown".into());
                Picker::Fail(format!("failed to connect to all addresses; last error: {error}"))
            }
            State::Idle => Picker::Idle(Wake(self.0.owner)),
            State::Connecting => Picker::Wait(format!("connecting to one of {} addresses", self.0.candidates.len())),
        }
    }
}

/// How long the next address waits for the one before it (L-121).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
