//! priority: the first child that can take traffic (A56, A115, L-63 to L-73); after an update, not before it can
//! (see [`handover`]).

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_xds::Time;

use super::{Cx, Event, Policy, What};
use crate::owner::Owner;
use crate::picker::{Parts, Picker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};
use crate::timers::TimerKind;
use handover::{Handover, Predecessor};

mod handover;

/// Children in order of preference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Priority<P: Policy> {
    owner: Owner,
    /// Numbers of children, most preferred first.
    order: Vec<u32>,
    /// Every child of the configuration by number. In boxes: a map has room for eleven, and most have one.
    children: Children<P>,
    /// Which position of `order` serves, or will.
    selected: usize,
    /// What serves instead for a while.
    handover: Option<Handover<P>>,
}

type Children<P> = BTreeMap<u32, Box<Child<P>>>;

/// A child as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChildConfig<C> {
    /// Its number. The number, not the position in the list, is what it is known by.
    pub(crate) number: u32,
    pub(crate) config: C,
    /// Swallow its re-resolution requests (L-72).
    pub(crate) ignore_reresolution: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Child<P: Policy> {
    config: P::Config,
    ignore_reresolution: bool,
    /// Made only when it is needed (L-64).
    live: Option<Live<P>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Live<P> {
    policy: P,
    /// As of the last look.
    state: State,
    /// When it is no longer waited for while it connects.
    failover: Option<Time>,
    /// Ready or idle since it last failed, so worth waiting for again (L-65).
    hopeful: bool,
    /// When it is let go, if it is not in use.
    deactivation: Option<Time>,
}

impl<P: Policy> Priority<P> {
    pub(crate) fn new(cx: &mut Cx<'_>, config: Vec<ChildConfig<P::Config>>) -> Self {
        let (owner, order, children) = (cx.new_owner(), Vec::new(), BTreeMap::new());
        let mut policy = Self { owner, order, children, selected: 0, handover: None };
        policy.update(cx, config);
        policy
    }

    /// Takes in another list. Children that are not in it any more go at once (A115), unless nothing else serves.
    pub(crate) fn update(&mut self, cx: &mut Cx<'_>, config: Vec<ChildConfig<P::Config>>) {
        let served = self.ready_child();
        let mut from = served.map(Predecessor::Listed);
        let mut old = std::mem::take(&mut self.children);
        self.order = config.iter().map(|child| child.number).collect();
        for ChildConfig { number, config, ignore_reresolution } in config {
            let new = || Box::new(Child { config: config.clone(), ignore_reresolution, live: None });
            let mut child = old.remove(&number).unwrap_or_else(new);
            child.ignore_reresolution = ignore_reresolution;
            if child.config != config {
                let leaves = served == Some(number) && !child.keeps(cx.pool, &config);
                let before = std::mem::replace(&mut child.config, config);
                if leaves {
                    child.stop_timers(cx, Owner { slot: number, ..self.owner });
                    let live = child.live.take();
                    from = Some(Predecessor::Unlisted(Box::new(Child { config: before, ignore_reresolution, live })));
                } else {
                    child.update(cx, Owner { slot: number, ..self.owner });
                }
            }
            self.children.insert(number, child);
        }
        for (number, mut gone) in old {
            let owner = Owner { slot: number, ..self.owner };
            if served == Some(number) {
                gone.stop_timers(cx, owner);
                from = Some(Predecessor::Unlisted(gone));
            } else {
                gone.shut_down(cx, owner);
            }
        }
        self.hand_over(cx, from);
    }

    /// Takes in an event if it is for this policy or one below. Whether it was.
    pub(crate) fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        if event.owner.policy == self.owner.policy {
            self.handle_timer(cx, event);
            return true;
        }
        let owner = self.owner;
        let handled =
            self.children.iter_mut().any(|(number, child)| child.handle(cx, Owner { slot: *number, ..owner }, event))
                || self.handover.as_mut().is_some_and(|handover| handover.handle(cx, event));
        if handled {
            self.settle(cx);
        }
        handled
    }

    /// Has the child that serves connect if it waited for an RPC with that.
    pub(crate) fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        if self.state() == State::Idle {
            self.wake_selected(cx);
            self.settle(cx);
        }
    }

    pub(crate) fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.end_handover(cx);
        for (number, child) in &mut self.children {
            child.shut_down(cx, Owner { slot: *number, ..self.owner });
        }
    }

    pub(crate) fn state(&self) -> State {
        self.serving().map_or(State::TransientFailure, |live| live.state)
    }

    /// The picker of the child that serves, as it is (L-71).
    pub(crate) fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        match self.serving() {
            Some(live) => live.policy.picker(parts),
            None => Picker::Fail("priority policy has empty priority list".into()), // L-63
        }
    }

    /// The configurations of all children that may serve, most preferred first.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &P::Config> {
        let listed = self.order.iter().filter_map(|number| self.children.get(number)).map(|child| &child.config);
        listed.chain(self.unlisted().map(|child| &child.config))
    }

    /// Whether a child serves that is not in the list any more.
    pub(crate) fn has_unlisted(&self) -> bool {
        self.unlisted().is_some()
    }

    /// The position of the child that serves, and how many there are.
    pub(crate) fn position(&self) -> (usize, usize) {
        (self.selected, self.order.len())
    }

    fn serving(&self) -> Option<&Live<P>> {
        match &self.handover {
            Some(handover) => handover.child(&self.children)?.live.as_ref(),
            None => self.children.get(self.order.get(self.selected)?)?.live.as_ref(),
        }
    }

    /// The number of the child that serves, if it is ready and in the list.
    fn ready_child(&self) -> Option<u32> {
        let number = match &self.handover {
            Some(handover) => handover.listed()?,
            None => *self.order.get(self.selected)?,
        };
        (self.children.get(&number)?.state() == Some(State::Ready)).then_some(number)
    }

    fn unlisted(&self) -> Option<&Child<P>> {
        self.handover.as_ref()?.unlisted()
    }

    fn selected_state(&self) -> Option<State> {
        self.children.get(self.order.get(self.selected)?)?.state()
    }

    /// Has the selected child connect, if it is idle.
    fn wake_selected(&mut self, cx: &mut Cx<'_>) {
        let Some(number) = self.order.get(self.selected) else { return };
        if let Some(child) = self.children.get_mut(number) {
            child.exit_idle(cx, Owner { slot: *number, ..self.owner });
        }
    }

    fn handle_timer(&mut self, cx: &mut Cx<'_>, event: &Event) {
        if event.what == What::Timer(TimerKind::Handover) {
            self.end_handover(cx);
            self.settle(cx);
            return;
        }
        let Some(child) = self.children.get_mut(&event.owner.slot) else { return };
        let Some(live) = &mut child.live else { return };
        match event.what {
            What::Timer(TimerKind::Failover) => {
                live.failover = None; // L-67: its state stays what it is.
                self.settle(cx);
            }
            What::Timer(TimerKind::Deactivation) => {
                live.deactivation = None;
                child.shut_down(cx, event.owner);
            }
            What::Timer(_) | What::Connectivity(_) | What::Wake | What::Health { .. } => {}
        }
    }

    /// Finds the child that serves (L-70). Doing it again changes nothing.
    fn choose(&mut self, cx: &mut Cx<'_>) {
        for position in 0..self.order.len() {
            let number = self.order[position];
            let owner = Owner { slot: number, ..self.owner };
            let Some(child) = self.children.get_mut(&number) else { continue };
            let live = child.activate(cx, owner);
            match live.state {
                State::Ready | State::Idle => {
                    self.selected = position;
                    self.deactivate_below(cx, position);
                    return;
                }
                State::Connecting | State::TransientFailure if live.failover.is_some() => {
                    self.selected = position;
                    return;
                }
                State::Connecting | State::TransientFailure => {}
            }
        }
        let state = |number| self.children.get(number).and_then(|child| Some(child.live.as_ref()?.state));
        let connecting = self.order.iter().position(|number| state(number) == Some(State::Connecting));
        self.selected = connecting.unwrap_or(self.order.len().saturating_sub(1));
    }

    fn deactivate_below(&mut self, cx: &mut Cx<'_>, position: usize) {
        for number in self.order.iter().skip(position + 1) {
            let owner = Owner { slot: *number, ..self.owner };
            if let Some(live) = self.children.get_mut(number).and_then(|child| child.live.as_mut())
                && live.deactivation.is_none()
            {
                let at = cx.now + RETENTION;
                cx.timers.start(at, owner, TimerKind::Deactivation);
                live.deactivation = Some(at);
            }
        }
    }
}

impl<P: Policy> Child<P> {
    /// Makes the policy if there is none; keeps it if it was about to go.
    fn activate(&mut self, cx: &mut Cx<'_>, owner: Owner) -> &Live<P> {
        let live = self.live.get_or_insert_with(|| {
            let at = cx.now + FAILOVER;
            cx.timers.start(at, owner, TimerKind::Failover);
            let policy = cx.ignoring_reresolution(self.ignore_reresolution, |cx| P::new(cx, &self.config));
            let mut live =
                Live { policy, state: State::Connecting, failover: Some(at), hopeful: true, deactivation: None };
            live.note_state(cx, owner);
            live
        });
        if let Some(at) = live.deactivation.take() {
            cx.timers.stop(at, owner, TimerKind::Deactivation);
        }
        live
    }

    fn update(&mut self, cx: &mut Cx<'_>, owner: Owner) {
        if let Some(live) = &mut self.live {
            cx.ignoring_reresolution(self.ignore_reresolution, |cx| live.policy.update(cx, &self.config));
            live.note_state(cx, owner);
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_>, owner: Owner, event: &Event) -> bool {
        let Some(live) = &mut self.live else { return false };
        let handled = cx.ignoring_reresolution(self.ignore_reresolution, |cx| live.policy.handle(cx, event));
        if handled {
            live.note_state(cx, owner);
        }
        handled
    }

    /// As [`Child::handle`], for one that is not in the list any more: nobody waits for it.
    fn handle_unlisted(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let Some(live) = &mut self.live else { return false };
        let handled = cx.ignoring_reresolution(self.ignore_reresolution, |cx| live.policy.handle(cx, event));
        live.state = live.policy.state();
        handled
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>, owner: Owner) {
        if let Some(live) = &mut self.live {
            cx.ignoring_reresolution(self.ignore_reresolution, |cx| live.policy.exit_idle(cx));
            live.note_state(cx, owner);
        }
    }

    fn keeps(&self, pool: &Pool, config: &P::Config) -> bool {
        self.live.as_ref().is_some_and(|live| live.policy.keeps(pool, config))
    }

    fn state(&self) -> Option<State> {
        self.live.as_ref().map(|live| live.state)
    }

    /// For one that leaves the list: another child may have its number from now on.
    fn stop_timers(&mut self, cx: &mut Cx<'_>, owner: Owner) {
        if let Some(live) = &mut self.live {
            live.stop_failover(cx, owner);
            if let Some(at) = live.deactivation.take() {
                cx.timers.stop(at, owner, TimerKind::Deactivation);
            }
        }
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>, owner: Owner) {
        self.stop_timers(cx, owner);
        if let Some(mut live) = self.live.take() {
            live.policy.shut_down(cx);
        }
    }
}

impl<P: Policy> Live<P> {
    /// Looks at the policy's state, and does to the failover timer what follows from it (L-66).
    fn note_state(&mut self, cx: &mut Cx<'_>, owner: Owner) {
        let before = std::mem::replace(&mut self.state, self.policy.state());
        match self.state {
            State::Ready | State::Idle => {
                self.hopeful = true;
                self.stop_failover(cx, owner);
            }
            State::TransientFailure => {
                self.hopeful = false;
                self.stop_failover(cx, owner);
            }
            State::Connecting => {
                if before != State::Connecting && self.hopeful && self.failover.is_none() {
                    let at = cx.now + FAILOVER;
                    cx.timers.start(at, owner, TimerKind::Failover);
                    self.failover = Some(at);
                }
            }
        }
    }

    fn stop_failover(&mut self, cx: &mut Cx<'_>, owner: Owner) {
        if let Some(at) = self.failover.take() {
            cx.timers.stop(at, owner, TimerKind::Failover);
        }
    }
}

/// How long a child that connects is waited for.
const FAILOVER: Duration = Duration::from_secs(10);

/// How long a child that is not in use is kept.
const RETENTION: Duration = Duration::from_secs(15 * 60);

#[cfg(test)]
mod tests;
