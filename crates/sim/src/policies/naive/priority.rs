//! priority (L-63 to L-73), and that what serves goes on while what an update put in its place connects.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_xds::Time;

use super::pick::Picker;
use super::{Connections, Deadline, Env, Kind, Policy, State, What, Who};

/// A child as the configuration has it: its number, its configuration, and whether nobody hears its requests for
/// re-resolution.
pub(super) type ChildConfig<C> = (u32, C, bool);

#[derive(Clone, Debug)]
pub(super) struct Priority<P: Policy> {
    who: Who,
    order: Vec<u32>,
    children: BTreeMap<u32, Child<P>>,
    selected: usize,
    handover: Option<(From<P>, Time)>,
}

#[derive(Clone, Debug)]
struct Child<P: Policy> {
    config: P::Config,
    deaf: bool,
    live: Option<Live<P>>,
}

#[derive(Clone, Debug)]
struct Live<P> {
    policy: P,
    state: State,
    failover: Option<Time>,
    /// Was ready or idle since it last failed.
    hopeful: bool,
    deactivation: Option<Time>,
}

/// Who serves in the place of the one selected.
#[derive(Clone, Debug)]
enum From<P: Policy> {
    Listed(u32),
    Gone(Box<Child<P>>),
}

impl<P: Policy> Priority<P> {
    pub(super) fn new(env: &mut Env<'_>, config: Vec<ChildConfig<P::Config>>) -> Self {
        let who = env.new_who();
        let mut priority = Self { who, order: Vec::new(), children: BTreeMap::new(), selected: 0, handover: None };
        priority.update(env, config);
        priority
    }

    pub(super) fn update(&mut self, env: &mut Env<'_>, config: Vec<ChildConfig<P::Config>>) {
        let served = self.served();
        let mut from = served.map(From::Listed);
        let mut old = std::mem::take(&mut self.children);
        self.order = config.iter().map(|(number, ..)| *number).collect();
        for (number, config, deaf) in config {
            let mut child = match old.remove(&number) {
                None => Child { config, deaf, live: None },
                Some(mut child) => {
                    child.deaf = deaf;
                    if child.config != config {
                        let keeps = child.live.as_ref().is_some_and(|l| l.policy.keeps(env.connections, &config));
                        if served == Some(number) && !keeps {
                            let before = std::mem::replace(&mut child.config, config);
                            let gone = Child { config: before, deaf, live: child.live.take() };
                            from = Some(From::Gone(Box::new(gone)));
                        } else {
                            child.config = config;
                            child.with(env, |env, policy, config| policy.update(env, config));
                        }
                    }
                    child
                }
            };
            child.deaf = deaf;
            self.children.insert(number, child);
        }
        for (number, mut gone) in old {
            if served == Some(number) {
                from = Some(From::Gone(Box::new(gone)));
            } else {
                gone.close(env);
            }
        }
        match (from, &mut self.handover, env.bound) {
            (Some(from), Some(handover), _) => handover.0 = from,
            (Some(from), None, Some(bound)) => self.handover = Some((from, env.now + bound)),
            (Some(From::Gone(mut gone)), None, None) => gone.close(env),
            (Some(From::Listed(_)), None, None) | (None, _, _) => {}
        }
        self.settle(env);
    }

    pub(super) fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        if who.policy == self.who.policy {
            self.timer(env, who.slot, what);
            return true;
        }
        let mut handled = self.children.values_mut().any(|child| {
            let mut handled = false;
            child.with(env, |env, policy, _| handled = policy.handle(env, who, what));
            handled
        });
        if let (false, Some((From::Gone(gone), _))) = (handled, &mut self.handover)
            && let Some(live) = &mut gone.live
        {
            handled = env.deaf_if(gone.deaf, |env| live.policy.handle(env, who, what));
            live.state = live.policy.state();
        }
        if handled {
            self.settle(env);
        }
        handled
    }

    fn timer(&mut self, env: &mut Env<'_>, slot: u32, what: &What) {
        match what {
            What::Timer(Kind::Handover) => {
                self.end_handover(env);
                self.settle(env);
            }
            What::Timer(Kind::Failover) => {
                if let Some(live) = self.children.get_mut(&slot).and_then(|child| child.live.as_mut()) {
                    live.failover = None;
                    self.settle(env);
                }
            }
            What::Timer(Kind::Deactivation) => {
                self.children.get_mut(&slot).into_iter().for_each(|child| child.close(env));
            }
            What::Connection(_) | What::Timer(_) | What::Wake | What::Health(_) => {}
        }
    }

    pub(super) fn exit_idle(&mut self, env: &mut Env<'_>) {
        if self.state() == State::Idle {
            self.wake_selected(env);
            self.settle(env);
        }
    }

    pub(super) fn close(&mut self, env: &mut Env<'_>) {
        self.end_handover(env);
        self.children.values_mut().for_each(|child| child.close(env));
    }

    pub(super) fn state(&self) -> State {
        self.serving().map_or(State::Failing, |live| live.state)
    }

    pub(super) fn picker(&self, connections: &Connections) -> Picker {
        match self.serving() {
            Some(live) => live.policy.picker(connections),
            None => Picker::Fail(vec!["empty".into()]),
        }
    }

    /// The configurations of all that may serve.
    pub(super) fn configs(&self) -> Vec<&P::Config> {
        let mut configs: Vec<_> = self.order.iter().map(|number| &self.children[number].config).collect();
        if let Some((From::Gone(gone), _)) = &self.handover {
            configs.push(&gone.config);
        }
        configs
    }

    pub(super) fn has_gone_one(&self) -> bool {
        matches!(self.handover, Some((From::Gone(_), _)))
    }

    pub(super) fn place(&self) -> (usize, usize) {
        (self.selected, self.order.len())
    }

    pub(super) fn deadlines(&self, into: &mut Vec<Deadline>) {
        for (number, child) in &self.children {
            if let Some(live) = &child.live {
                let who = Who { slot: *number, ..self.who };
                into.extend(live.failover.map(|at| (at, who, Kind::Failover)));
                into.extend(live.deactivation.map(|at| (at, who, Kind::Deactivation)));
                live.policy.deadlines(into);
            }
        }
        if let Some((from, until)) = &self.handover {
            into.push((*until, self.who, Kind::Handover));
            if let From::Gone(gone) = from {
                gone.live.iter().for_each(|live| live.policy.deadlines(into));
            }
        }
    }

    /// The number of the child that serves, if it is ready and in the list.
    fn served(&self) -> Option<u32> {
        let number = match &self.handover {
            Some((From::Listed(number), _)) => *number,
            Some((From::Gone(_), _)) => return None,
            None => *self.order.get(self.selected)?,
        };
        (self.children.get(&number)?.state() == Some(State::Ready)).then_some(number)
    }

    fn serving(&self) -> Option<&Live<P>> {
        match &self.handover {
            Some((From::Listed(number), _)) => self.children.get(number)?.live.as_ref(),
            Some((From::Gone(gone), _)) => gone.live.as_ref(),
            None => self.children.get(self.order.get(self.selected)?)?.live.as_ref(),
        }
    }

    fn selected_state(&self) -> Option<State> {
        self.children.get(self.order.get(self.selected)?)?.state()
    }

    fn wake_selected(&mut self, env: &mut Env<'_>) {
        let child = self.order.get(self.selected).and_then(|number| self.children.get_mut(number));
        child.into_iter().for_each(|child| child.with(env, |env, policy, _| policy.exit_idle(env)));
    }

    /// L-70.
    fn choose(&mut self, env: &mut Env<'_>) {
        for place in 0..self.order.len() {
            let Some(child) = self.children.get_mut(&self.order[place]) else { continue };
            let live = child.activate(env);
            if matches!(live.state, State::Ready | State::Idle) {
                self.selected = place;
                for below in &self.order[place + 1..] {
                    if let Some(live) = self.children.get_mut(below).and_then(|child| child.live.as_mut()) {
                        live.deactivation.get_or_insert(env.now + RETENTION);
                    }
                }
                return;
            }
            if live.failover.is_some() {
                self.selected = place;
                return;
            }
        }
        let connects = |number: &u32| self.children.get(number).and_then(Child::state) == Some(State::Connecting);
        self.selected = self.order.iter().position(connects).unwrap_or(self.order.len().max(1) - 1);
    }

    fn settle(&mut self, env: &mut Env<'_>) {
        self.choose(env);
        if self.handover.is_some() && self.selected_state() == Some(State::Idle) {
            self.wake_selected(env);
            self.choose(env);
        }
        let serves = match &self.handover {
            None => return,
            Some((From::Listed(number), _)) => self.children.get(number).and_then(Child::state),
            Some((From::Gone(gone), _)) => gone.state(),
        };
        if serves != Some(State::Ready) || self.selected_state() != Some(State::Connecting) {
            self.end_handover(env);
        }
    }

    fn end_handover(&mut self, env: &mut Env<'_>) {
        if let Some((From::Gone(mut gone), _)) = self.handover.take() {
            gone.close(env);
        }
    }
}

impl<P: Policy> Child<P> {
    fn activate(&mut self, env: &mut Env<'_>) -> &Live<P> {
        if self.live.is_none() {
            let policy = env.deaf_if(self.deaf, |env| P::new(env, &self.config));
            let failover = Some(env.now + FAILOVER);
            let live = Live { policy, state: State::Connecting, failover, hopeful: true, deactivation: None };
            self.live = Some(live);
            self.note(env.now);
        }
        let live = self.live.as_mut().expect("just made");
        live.deactivation = None;
        live
    }

    fn with(&mut self, env: &mut Env<'_>, work: impl FnOnce(&mut Env<'_>, &mut P, &P::Config)) {
        if let Some(live) = &mut self.live {
            env.deaf_if(self.deaf, |env| work(env, &mut live.policy, &self.config));
            self.note(env.now);
        }
    }

    /// L-66.
    fn note(&mut self, now: Time) {
        let Some(live) = &mut self.live else { return };
        let before = std::mem::replace(&mut live.state, live.policy.state());
        match live.state {
            State::Ready | State::Idle => (live.hopeful, live.failover) = (true, None),
            State::Failing => (live.hopeful, live.failover) = (false, None),
            State::Connecting if before != State::Connecting && live.hopeful => {
                live.failover.get_or_insert(now + FAILOVER);
            }
            State::Connecting => {}
        }
    }

    fn state(&self) -> Option<State> {
        self.live.as_ref().map(|live| live.state)
    }

    fn close(&mut self, env: &mut Env<'_>) {
        if let Some(mut live) = self.live.take() {
            live.policy.close(env);
        }
    }
}

const FAILOVER: Duration = Duration::from_secs(10);
const RETENTION: Duration = Duration::from_secs(15 * 60);
