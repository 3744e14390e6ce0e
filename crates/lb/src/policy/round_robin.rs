//! round_robin: every endpoint that is connected, in turn (A61, L-102 to L-104).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::addresses::AddressSet;
use super::pick_first::PickFirst;
use super::{Cx, Event, Policy, PriorityConfig, State};
use crate::picker::{InTurn, Picker};
use crate::pool::{Handles, Pool};
use crate::timers::Owner;
use crate::tree::Subchannel;

/// Connects to every endpoint. One pick_first machine per endpoint looks after its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoundRobin {
    owner: Owner,
    /// By slot; a slot is never used twice. A list, because with many endpoints a map is twice as large.
    endpoints: Vec<PickFirst>,
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

impl Policy for RoundRobin {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy = Self {
            owner: cx.new_owner(),
            endpoints: Vec::new(),
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
        // Where an endpoint was until now; `None` once it is listed.
        let places = self.endpoints.iter().enumerate().map(|(at, e)| (AddressSet::new(e.addresses()), Some(at)));
        let mut known: BTreeMap<AddressSet, Option<usize>> = places.collect();
        let mut stays = vec![false; self.endpoints.len()];
        let mut added = Vec::new();
        self.order.clear();
        for endpoint in config.endpoints() {
            match known.entry(AddressSet::of(endpoint)) {
                Entry::Occupied(mut place) => {
                    let Some(at) = place.insert(None) else { continue }; // Listed twice.
                    stays[at] = true;
                    self.endpoints[at].update_endpoint(cx, endpoint);
                    self.order.push(self.endpoints[at].slot());
                }
                Entry::Vacant(place) => {
                    place.insert(None);
                    self.last_slot += 1;
                    let mut machine = PickFirst::new(Owner { slot: self.last_slot, ..self.owner });
                    machine.update_endpoint(cx, endpoint);
                    added.push(machine);
                    self.order.push(self.last_slot);
                }
            }
        }
        let mut stays = stays.into_iter();
        self.endpoints.retain_mut(|endpoint| {
            let stays = stays.next().unwrap_or_default();
            if !stays {
                endpoint.shut_down(cx);
            }
            stays
        });
        self.endpoints.append(&mut added);
        self.tally = Tally::default();
        self.endpoints.iter().for_each(|endpoint| self.tally.add(endpoint.state()));
        self.draw_start(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        if event.owner.policy != self.owner.policy {
            return false;
        }
        let Some(at) = self.place(event.owner.slot) else { return true };
        let endpoint = &mut self.endpoints[at];
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
        for endpoint in &mut self.endpoints {
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
                let endpoints = self.order.iter().filter_map(|slot| self.endpoints.get(self.place(*slot)?));
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
        let latest = self.last_failed.and_then(|slot| self.endpoints.get(self.place(slot)?)?.last_error(pool));
        latest.or_else(|| self.endpoints.iter().find_map(|endpoint| endpoint.last_error(pool)))
    }

    fn place(&self, slot: u32) -> Option<usize> {
        self.endpoints.binary_search_by_key(&slot, PickFirst::slot).ok()
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
