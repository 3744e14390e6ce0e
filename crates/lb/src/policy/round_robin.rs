//! round_robin: every endpoint that is connected, in turn (A61, L-102 to L-104).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mainstay_xds::resource::endpoint::Endpoint;

use super::pick_first::PickFirst;
use super::{Cx, Event, Policy, PriorityConfig, State, addresses};
use crate::picker::{InTurn, Picker};
use crate::pool::{Handles, Pool};
use crate::timers::Owner;
use crate::tree::Subchannel;

/// Connects to every endpoint. One pick_first machine per endpoint looks after its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoundRobin {
    owner: Owner,
    /// By slot; a slot is never used twice.
    endpoints: BTreeMap<u32, PickFirst>,
    /// Slots in the order of the configuration.
    order: Vec<u32>,
    last_slot: u32,
    tally: Tally,
    /// The endpoint that failed last.
    last_failed: Option<u32>,
    /// Where the next picker starts.
    start: u32,
}

/// How many endpoints are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Tally {
    ready: u32,
    connecting: u32,
}

/// Identity of an endpoint: its addresses in any order (L-102).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressSet {
    One(SocketAddr),
    Many(Vec<SocketAddr>),
}

impl Policy for RoundRobin {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy = Self {
            owner: cx.new_owner(),
            endpoints: BTreeMap::new(),
            order: Vec::new(),
            last_slot: 0,
            tally: Tally::default(),
            last_failed: None,
            start: 0,
        };
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        let mut known: BTreeMap<AddressSet, u32> =
            self.endpoints.iter().map(|(slot, e)| (AddressSet::new(e.addresses()), *slot)).collect();
        let mut old = std::mem::take(&mut self.endpoints);
        self.order.clear();
        for endpoint in config.endpoints() {
            let set = AddressSet::of(endpoint);
            let slot = match known.get(&set) {
                Some(&slot) if self.endpoints.contains_key(&slot) => continue, // Listed twice.
                Some(&slot) => slot,
                None => {
                    self.last_slot += 1;
                    known.insert(set, self.last_slot);
                    self.last_slot
                }
            };
            let mut machine = old.remove(&slot).unwrap_or_else(|| PickFirst::new(Owner { slot, ..self.owner }));
            machine.update(cx, addresses::flatten([endpoint]));
            self.endpoints.insert(slot, machine);
            self.order.push(slot);
        }
        for mut gone in old.into_values() {
            gone.shut_down(cx);
        }
        self.tally = Tally::default();
        self.endpoints.values().for_each(|endpoint| self.tally.add(endpoint.state()));
        self.draw_start(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        if event.owner.policy != self.owner.policy {
            return false;
        }
        let Some(endpoint) = self.endpoints.get_mut(&event.owner.slot) else { return true };
        let before = endpoint.state();
        endpoint.handle(cx, event.what);
        let after = endpoint.state();
        if after == State::TransientFailure {
            self.last_failed = Some(event.owner.slot);
        }
        if before != after {
            self.tally.remove(before);
            self.tally.add(after);
        }
        if (before == State::Ready) != (after == State::Ready) {
            self.draw_start(cx);
        }
        true
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        for endpoint in self.endpoints.values_mut() {
            endpoint.shut_down(cx);
        }
    }

    fn state(&self) -> State {
        match self.tally {
            Tally { ready: 1.., .. } => State::Ready,
            Tally { connecting: 1.., .. } => State::Connecting,
            Tally { .. } => State::TransientFailure,
        }
    }

    fn picker<S: Subchannel>(&self, pool: &Pool, handles: &Handles<S>) -> Picker<S> {
        let count = self.order.len();
        match self.state() {
            State::Ready => {
                let endpoints = self.order.iter().filter_map(|slot| self.endpoints.get(slot));
                let ready = endpoints.filter_map(|endpoint| endpoint.connection(handles)).collect();
                Picker::InTurn(InTurn::new(ready, self.start))
            }
            State::TransientFailure if count == 0 => Picker::Fail("no endpoints".into()),
            State::TransientFailure => Picker::Fail(format!(
                "connections to all {count} endpoints failing; last error: {}",
                self.last_error(pool).unwrap_or_else(|| "unknown".into())
            )),
            State::Idle | State::Connecting => {
                let mut text = format!("connecting to {count} endpoints");
                if let Some(error) = self.last_error(pool) {
                    text += &format!("; last error: {error}");
                }
                Picker::Wait(text)
            }
        }
    }
}

impl RoundRobin {
    /// A random start for the next picker, so that clients do not move in step (L-103).
    fn draw_start(&mut self, cx: &mut Cx<'_>) {
        self.start = match self.tally.ready {
            0 | 1 => 0,
            ready => cx.choose.choose(u64::from(ready)) as u32,
        };
    }

    fn last_error(&self, pool: &Pool) -> Option<String> {
        let latest = self.last_failed.and_then(|slot| self.endpoints.get(&slot)?.last_error(pool));
        latest.or_else(|| self.endpoints.values().find_map(|endpoint| endpoint.last_error(pool)))
    }
}

impl Tally {
    fn add(&mut self, state: State) {
        match state {
            State::Ready => self.ready += 1,
            State::Connecting | State::Idle => self.connecting += 1,
            State::TransientFailure => {}
        }
    }

    fn remove(&mut self, state: State) {
        match state {
            State::Ready => self.ready -= 1,
            State::Connecting | State::Idle => self.connecting -= 1,
            State::TransientFailure => {}
        }
    }
}

impl AddressSet {
    fn of(endpoint: &Endpoint) -> Self {
        Self::new(endpoint.addresses.as_slice().iter().copied())
    }

    fn new(mut addresses: impl ExactSizeIterator<Item = SocketAddr>) -> Self {
        if addresses.len() == 1
            && let Some(address) = addresses.next()
        {
            return Self::One(address);
        }
        let mut all: Vec<SocketAddr> = addresses.collect();
        all.sort_unstable();
        all.dedup();
        Self::Many(all)
    }
}
