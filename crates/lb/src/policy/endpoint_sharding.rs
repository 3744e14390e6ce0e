//! The endpoints of a policy: one pick_first machine each, which looks after its addresses (A61, L-102).
//!
//! What a policy of its own adds is how it picks among them, and when it connects.

use std::fmt;
use std::hash::Hash;

use mainstay_xds::resource::endpoint::Endpoint;

use super::pick_first::PickFirst;
use super::{Cx, Event, What};
use crate::endpoint::{AddressSet, EndpointRef};
use crate::index::Index;
use crate::owner::Owner;
use crate::picker::{MadeOf, Picker, RUN, Runs};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};

/// Endpoints by slot, each with what the policy keeps about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EndpointSharding<T> {
    owner: Owner,
    /// Whether an endpoint is connected to only when the policy wakes it.
    lazy: bool,
    /// By slot; a slot is never used twice. A list, because with many endpoints a map is twice as large.
    members: Vec<Member<T>>,
    /// Slots in the order of the configuration.
    order: Vec<u32>,
    /// Of each run of [`RUN`] endpoints in that order, a number that is another one whenever one of them may be different.
    states: Vec<u64>,
    last_state: u64,
    last_slot: u32,
    tally: Tally,
    /// The endpoint that failed last.
    last_failed: Option<u32>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member<T> {
    pub(crate) machine: PickFirst,
    pub(crate) mark: T,
}

/// How many endpoints are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    pub(crate) ready: u32,
    pub(crate) connecting: u32,
    pub(crate) idle: u32,
    pub(crate) failing: u32,
}

/// What an event did to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) slot: u32,
    pub(crate) before: State,
    pub(crate) after: State,
}

impl<T: Clone + Default + fmt::Debug + Eq + Hash> EndpointSharding<T> {
    /// Without endpoints. It connects to all that it gets.
    pub(crate) fn new(cx: &mut Cx<'_>) -> Self {
        Self {
            owner: cx.new_owner(),
            lazy: false,
            members: Vec::new(),
            order: Vec::new(),
            states: Vec::new(),
            last_state: 0,
            last_slot: 0,
            tally: Tally::default(),
            last_failed: None,
        }
    }

    /// Without endpoints. What it gets stays idle until woken.
    pub(crate) fn lazy(cx: &mut Cx<'_>) -> Self {
        Self { lazy: true, ..Self::new(cx) }
    }

    /// Takes in a list. `mark` is called for each entry of it, so more than once for an endpoint that is listed twice.
    pub(crate) fn update<'a>(
        &mut self,
        cx: &mut Cx<'_>,
        endpoints: impl Iterator<Item = EndpointRef<'a>> + Clone,
        mut mark: impl FnMut(&mut T, &Endpoint),
    ) {
        let count = endpoints.clone().count();
        let mut known = Index::with_capacity(self.members.len() + count);
        for (at, member) in (0..).zip(&self.members) {
            known.find_or_insert(&AddressSet::new(member.machine.addresses()), at, addresses_at(&self.members));
        }
        // Lists are as long as they need to be: with many endpoints, what doubling adds is a lot.
        let new = count.saturating_sub(self.members.len());
        self.members.reserve_exact(new);
        cx.pool.expect(new);
        // Whether the endpoint at a position was listed.
        let mut listed = vec![false; self.members.len()];
        self.order = Vec::with_capacity(count);
        for endpoint in endpoints {
            let addresses = AddressSet::of(&endpoint);
            let at = known.find_or_insert(&addresses, self.members.len() as u32, addresses_at(&self.members)) as usize;
            if at == self.members.len() {
                self.last_slot += 1;
                let owner = Owner { slot: self.last_slot, ..self.owner };
                let machine = if self.lazy { PickFirst::idle(owner) } else { PickFirst::new(owner) };
                self.members.push(Member { machine, mark: T::default() });
                listed.push(false);
            }
            let member = &mut self.members[at];
            if std::mem::replace(&mut listed[at], true) {
                mark(&mut member.mark, &endpoint);
                continue;
            }
            member.machine.update_endpoint(cx, endpoint);
            mark(&mut member.mark, &endpoint);
            self.order.push(member.machine.slot());
        }
        let mut stays = listed.into_iter();
        self.members.retain_mut(|member| {
            let stays = stays.next().unwrap_or_default();
            if !stays {
                member.machine.shut_down(cx);
            }
            stays
        });
        self.states = (1..=count.div_ceil(RUN) as u64).map(|run| self.last_state + run).collect();
        self.last_state += self.states.len() as u64;
        self.tally = Tally::default();
        self.members.iter().for_each(|member| *self.tally.of(member.machine.state()) += 1);
    }

    /// Takes in an event if it is for this policy: `None` if not. No change if its endpoint is gone.
    pub(crate) fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> Option<Option<Change>> {
        (event.owner.policy == self.owner.policy).then(|| self.tell(cx, event.owner.slot, event.what))
    }

    /// Has an idle endpoint connect.
    pub(crate) fn wake(&mut self, cx: &mut Cx<'_>, slot: u32) {
        self.tell(cx, slot, What::Wake);
    }

    fn tell(&mut self, cx: &mut Cx<'_>, slot: u32, what: What) -> Option<Change> {
        let at = self.position(slot)?;
        let machine = &mut self.members[at].machine;
        let before = machine.state();
        machine.handle(cx, what);
        let after = machine.state();
        if after == State::TransientFailure {
            self.last_failed = Some(slot);
        }
        *self.tally.of(before) -= 1;
        *self.tally.of(after) += 1;
        // Mostly the order is that in which they came.
        let is_at = |order: &[u32], at: usize| order.get(at) == Some(&slot);
        let in_order = if is_at(&self.order, at) { Some(at) } else { self.order.iter().position(|s| *s == slot) };
        if let Some(state) = in_order.and_then(|at| self.states.get_mut(at / RUN)) {
            self.last_state += 1;
            *state = self.last_state;
        }
        Some(Change { slot, before, after })
    }

    pub(crate) fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.members.iter_mut().for_each(|member| member.machine.shut_down(cx));
    }

    /// Whether the endpoint at this slot, if it is one of these, is connected and in use.
    pub(crate) fn serves(&self, owner: Owner) -> bool {
        let member = || self.members.get(self.position(owner.slot)?);
        owner.policy == self.owner.policy && member().is_some_and(|member| member.machine.state() == State::Ready)
    }

    /// Who it is.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// How many endpoints are in which state.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// How many endpoints there are.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The endpoints in the order of the configuration.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Member<T>> {
        self.order.iter().filter_map(|slot| self.members.get(self.position(*slot)?))
    }

    /// What a picker has of the endpoints, as far as `entry` has anything for it; the rest is taken from the picker before.
    pub(crate) fn runs<E>(&self, before: Option<&Runs<E>>, entry: impl Fn(&Member<T>) -> Option<E>) -> Runs<E> {
        let made_of = self.states.iter().map(|state| MadeOf { policy: self.owner.policy, state: *state });
        Runs::new(before, made_of, |run| {
            let order = self.order.iter().skip(run * RUN).take(RUN);
            order.filter_map(|slot| entry(self.members.get(self.position(*slot)?)?)).collect()
        })
    }

    /// The endpoints in no order that means anything.
    pub(crate) fn members_mut(&mut self) -> impl Iterator<Item = &mut Member<T>> {
        self.members.iter_mut()
    }

    /// The state of a policy that wants to be connected to all of them (L-104).
    pub(crate) fn state(&self) -> State {
        match self.tally {
            Tally { ready: 1.., .. } => State::Ready,
            Tally { connecting: 1.., .. } | Tally { idle: 1.., .. } => State::Connecting,
            Tally { .. } => State::TransientFailure,
        }
    }

    /// What becomes of RPCs while no endpoint is connected.
    pub(crate) fn picker_without_ready<S: Subchannel>(&self, pool: &Pool) -> Picker<S> {
        let count = self.len();
        match self.state() {
            State::TransientFailure if count == 0 => Picker::Fail("no endpoints".into()),
            State::TransientFailure => Picker::Fail(format!(
                "connections to all {count} endpoints failing; last error: {}",
                self.last_error(pool).unwrap_or_else(|| "unknown".into())
            )),
            State::Idle | State::Connecting | State::Ready => {
                let mut text = format!("connecting to {count} endpoints");
                if let Some(error) = self.last_error(pool) {
                    text += &format!("; last error: {error}");
                }
                Picker::Wait(text)
            }
        }
    }

    /// Why an endpoint could not be connected to, the latest first.
    fn last_error(&self, pool: &Pool) -> Option<String> {
        let latest = self.last_failed.and_then(|slot| self.members.get(self.position(slot)?)?.machine.last_error(pool));
        latest.or_else(|| self.members.iter().find_map(|member| member.machine.last_error(pool)))
    }

    fn position(&self, slot: u32) -> Option<usize> {
        self.members.binary_search_by_key(&slot, |member| member.machine.slot()).ok()
    }
}

/// Says which addresses the endpoint at a position has.
fn addresses_at<T>(members: &[Member<T>]) -> impl Fn(u32) -> AddressSet {
    |at| AddressSet::new(members[at as usize].machine.addresses())
}

impl Change {
    /// Whether it became ready, or is it no more.
    pub(crate) fn is_about_ready(self) -> bool {
        (self.before == State::Ready) != (self.after == State::Ready)
    }
}

impl Tally {
    fn of(&mut self, state: State) -> &mut u32 {
        match state {
            State::Ready => &mut self.ready,
            State::Connecting => &mut self.connecting,
            State::Idle => &mut self.idle,
            State::TransientFailure => &mut self.failing,
        }
    }
}
