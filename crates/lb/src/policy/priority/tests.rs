//! Every branch of L-63 to L-72, with children whose states are set by hand.

use std::sync::Arc;

use mainstay_xds::lrs::LoadStore;

use super::*;
use crate::SubchannelId;
use crate::testbed::Script;
use crate::timers::Timers;

use State::{Connecting, Idle, Ready, TransientFailure as Failing};

#[test]
fn an_empty_list_fails() {
    let bed = Bed::new(&[]);
    assert_eq!(bed.priority.state(), Failing, "L-63, RemovesAllPriorities");
}

#[test]
fn only_the_first_child_is_made_and_it_is_waited_for() {
    let mut bed = Bed::new(&[0, 1]);
    assert_eq!(bed.show(), "0: 0 connecting", "L-64, L-73: P0 CONNECTING up to 10 s");
    bed.advance(9_999);
    assert_eq!(bed.show(), "0: 0 connecting");
    bed.set(0, Ready);
    assert_eq!(bed.show(), "0: 0 ready", "HighPriorityReady");
    assert_eq!(bed.timers.next_deadline(), None, "L-66: READY cancels the failover timer");
}

#[test]
fn after_ten_seconds_the_next_child_is_tried() {
    let mut bed = Bed::new(&[0, 1]);
    bed.advance(10_000);
    assert_eq!(bed.show(), "1: 0 connecting, 1 connecting", "L-67, InitTimeout");
    bed.set(1, Ready);
    assert_eq!(bed.show(), "1: 0 connecting, 1 ready");
    bed.set(0, Ready);
    assert_eq!(bed.show(), "0: 0 ready, 1 ready deactivated", "L-70");
}

#[test]
fn when_every_timer_is_over_the_first_that_connects_is_waited_for() {
    let mut bed = Bed::new(&[0, 1]);
    bed.advance(20_000);
    assert_eq!(bed.show(), "0: 0 connecting, 1 connecting", "L-70: no timer pending, first in CONNECTING");
}

#[test]
fn a_failure_goes_on_at_once() {
    let mut bed = Bed::new(&[0, 1, 2]);
    bed.set(0, Failing);
    assert_eq!(bed.show(), "1: 0 failing, 1 connecting", "L-73, SwitchPriority");
    bed.set(1, Failing);
    assert_eq!(bed.show(), "2: 0 failing, 1 failing, 2 connecting", "L-73");
    bed.set(2, Failing);
    assert_eq!(bed.show(), "2: 0 failing, 1 failing, 2 failing", "L-73: all TF, the last child's");
    assert_eq!(bed.priority.state(), Failing);
    bed.set(1, Ready);
    assert_eq!(bed.show(), "1: 0 failing, 1 ready, 2 failing deactivated", "HigherReadyCloseAllLower");
}

#[test]
fn a_recovered_child_takes_over_and_the_lower_one_is_kept_for_15_minutes() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Failing);
    bed.set(1, Ready);
    bed.set(0, Ready);
    assert_eq!(bed.show(), "0: 0 ready, 1 ready deactivated", "L-73");
    bed.advance(15 * 60_000 - 1);
    assert_eq!(bed.show(), "0: 0 ready, 1 ready deactivated", "L-68");
    bed.advance(1);
    assert_eq!(bed.show(), "0: 0 ready", "L-68");
}

#[test]
fn a_child_that_is_needed_again_is_reactivated() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Failing);
    bed.set(1, Ready);
    bed.set(0, Ready);
    bed.advance(60_000);
    bed.set(0, Failing);
    assert_eq!(bed.show(), "1: 0 failing, 1 ready", "L-68, L-70");
    bed.advance(60 * 60_000);
    assert_eq!(bed.show(), "1: 0 failing, 1 ready", "L-68: its timer was stopped");
}

#[test]
fn a_child_that_reconnects_after_ready_is_waited_for_again() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Ready);
    bed.set(0, Connecting);
    assert_eq!(bed.show(), "0: 0 connecting", "L-66, HighPriorityToConnectingFromReady");
    bed.advance(9_999);
    bed.set(0, Connecting);
    bed.advance(1);
    assert_eq!(bed.show(), "1: 0 connecting, 1 connecting", "L-66: a duplicate CONNECTING restarts nothing");
}

#[test]
fn a_child_that_reconnects_after_a_failure_is_not_waited_for() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Failing);
    bed.set(1, Failing);
    bed.set(0, Connecting);
    assert_eq!(bed.show(), "0: 0 connecting, 1 failing", "L-70: first in CONNECTING");
    assert_eq!(bed.timers.next_deadline(), None, "L-66: not READY or IDLE since TF");
    bed.set(0, Idle);
    bed.set(0, Connecting);
    assert!(bed.timers.next_deadline().is_some(), "L-66: IDLE sets the flag");
}

#[test]
fn an_idle_child_serves_and_its_timer_starts_when_it_connects() {
    let mut bed = Bed::new(&[0]);
    bed.set(0, Idle);
    bed.update(&[0, 1]);
    assert_eq!(bed.show(), "0: 0 idle", "L-73, HighPriorityInitIdle, AddLowPriorityWhenHighIsInIdle");
    bed.advance(60_000);
    assert_eq!(bed.show(), "0: 0 idle");
    bed.set(0, Connecting);
    bed.advance(9_999);
    assert_eq!(bed.show(), "0: 0 connecting", "idle to connecting does not fail over");
    bed.advance(1);
    assert_eq!(bed.show(), "1: 0 connecting, 1 connecting", "L-66");
}

#[test]
fn a_child_that_is_removed_goes_at_once() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Failing);
    bed.set(1, Ready);
    bed.update(&[0]);
    assert_eq!(bed.show(), "0: 0 failing", "L-69, A115, RemoveReadyLowestChild, RemoveOnlyReadyChild");
    bed.update(&[]);
    assert_eq!((bed.show(), bed.timers.next_deadline()), ("0: ".into(), None), "L-69");
}

#[test]
fn a_child_keeps_its_state_when_it_moves() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Failing);
    bed.set(1, Ready);
    bed.update(&[1, 0]);
    assert_eq!(bed.show(), "0: 0 failing deactivated, 1 ready", "MoveReadyChildToHigherPriority");
    bed.update(&[0, 1]);
    assert_eq!(bed.show(), "1: 0 failing, 1 ready", "MoveChildToHigherPriority and back");
}

#[test]
fn a_lower_child_is_added_while_the_higher_one_is_down() {
    let mut bed = Bed::new(&[0]);
    bed.set(0, Failing);
    bed.update(&[0, 1]);
    assert_eq!(bed.show(), "1: 0 failing, 1 connecting", "L-69, HigherDownWhileAddingLower");
}

#[test]
fn updates_of_a_higher_child_do_not_disturb_the_one_that_serves() {
    let mut bed = Bed::new(&[0, 1]);
    bed.set(0, Failing);
    bed.set(1, Ready);
    bed.set(0, Connecting);
    assert_eq!(bed.show(), "1: 0 connecting, 1 ready", "HighPriorityUpdatesWhenLowInUse");
}

#[test]
fn choosing_twice_is_choosing_once() {
    let mut bed = Bed::new(&[0, 1, 2]);
    bed.set(0, Failing);
    bed.set(1, Ready);
    let before = bed.priority.clone();
    let mut priority = bed.priority.clone();
    bed.call(|_, cx| priority.choose(cx));
    assert_eq!(priority, before, "L-71");
}

#[test]
fn requests_of_a_child_are_swallowed_where_the_configuration_says_so() {
    let mut bed = Bed::new(&[0, 1]);
    bed.ask(0);
    assert!(!bed.asked, "L-72, IgnoreReresolutionRequest: even numbers are swallowed in this bed");
    bed.set(0, Failing);
    bed.ask(1);
    assert!(bed.asked, "L-72, IgnoreReresolutionRequestTwoChildren");
}

/// A child that is in the state it is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fake {
    owner: Owner,
    state: State,
}

impl Policy for Fake {
    type Config = u32;

    fn new(cx: &mut Cx<'_>, _: &u32) -> Self {
        Self { owner: cx.new_owner(), state: Connecting }
    }

    fn update(&mut self, _: &mut Cx<'_>, _: &u32) {}

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        if event.owner.policy != self.owner.policy {
            return false;
        }
        match event.what {
            What::Connectivity(SubchannelId(ASK)) => cx.request_reresolution(),
            What::Connectivity(SubchannelId(place)) => self.state = STATES[place as usize].0,
            What::Timer(_) | What::Wake | What::Health { .. } => {}
        }
        true
    }

    fn shut_down(&mut self, _: &mut Cx<'_>) {}

    fn state(&self) -> State {
        self.state
    }

    fn picker<S: Subchannel>(&self, _: Parts<'_, S>) -> Picker<S> {
        Picker::reconnecting()
    }
}

/// The policy with time and tables.
struct Bed {
    priority: Priority<Fake>,
    pool: Pool,
    timers: Timers,
    last_policy: u64,
    now: Time,
    asked: bool,
}

impl Bed {
    fn new(numbers: &[u32]) -> Self {
        let owner = Owner { cluster: 0, policy: 0, slot: 0 };
        let priority = Priority { owner, order: Vec::new(), children: BTreeMap::new(), selected: 0, handover: None };
        let (pool, timers, now) = (Pool::default(), Timers::default(), Time::ZERO);
        let mut bed = Self { priority, pool, timers, last_policy: 0, now, asked: false };
        bed.update(numbers);
        bed
    }

    fn update(&mut self, numbers: &[u32]) {
        let child =
            |number: &u32| ChildConfig { number: *number, config: 0, ignore_reresolution: number.is_multiple_of(2) };
        let config = numbers.iter().map(child).collect();
        self.call(|priority, cx| priority.update(cx, config));
    }

    fn set(&mut self, number: u32, state: State) {
        let place = STATES.iter().position(|(other, _)| *other == state).expect("every state is listed");
        self.tell(number, place as u64);
    }

    fn ask(&mut self, number: u32) {
        let before = self.pool.clone();
        self.tell(number, ASK);
        self.asked = self.pool != before;
    }

    fn tell(&mut self, number: u32, what: u64) {
        let owner = self.priority.children[&number].live.as_ref().expect("the child is there").policy.owner;
        let event = Event { owner, what: What::Connectivity(SubchannelId(what)) };
        self.call(|priority, cx| assert!(priority.handle(cx, &event)));
    }

    fn advance(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while let Some(at) = self.timers.next_deadline().filter(|at| *at <= end) {
            self.now = at;
            let timer = self.timers.pop_due(at).expect("one is due");
            let event = Event { owner: timer.owner, what: What::Timer(timer.kind) };
            self.call(|priority, cx| assert!(priority.handle(cx, &event)));
        }
        self.now = end;
    }

    /// `place that serves: child state, child state, …`
    fn show(&self) -> String {
        let name = |state| STATES.iter().find(|(other, _)| *other == state).map_or("", |(_, name)| name);
        let live = self.priority.children.iter().filter_map(|(number, child)| Some((number, child.live.as_ref()?)));
        let children = live.map(|(number, live)| {
            let deactivated = if live.deactivation.is_some() { " deactivated" } else { "" };
            format!("{number} {}{deactivated}", name(live.state))
        });
        format!("{}: {}", self.priority.selected, children.collect::<Vec<_>>().join(", "))
    }

    fn call(&mut self, work: impl FnOnce(&mut Priority<Fake>, &mut Cx<'_>)) {
        let mut cx = Cx {
            now: self.now,
            choose: &mut Script::default(),
            pool: &mut self.pool,
            timers: &mut self.timers,
            breakers: &mut |_, _| Arc::default(),
            loads: &mut LoadStore::default(),
            last_policy: &mut self.last_policy,
            health: None,
            cluster: 0,
            ignore_reresolution: false,
            warm_bound: None,
            observations: &mut Vec::new(),
        };
        work(&mut self.priority, &mut cx);
    }
}

const STATES: [(State, &str); 4] = [(Connecting, "connecting"), (Ready, "ready"), (Idle, "idle"), (Failing, "failing")];

const ASK: u64 = 100;
