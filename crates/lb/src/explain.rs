//! What a channel would do with an RPC, and how it comes to that (OP-2, OP-3).
//!
//! The tree, the snapshot and the decision are those of channels. Only the connections are not: whoever asks says what
//! becomes of each.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::deps::{ConfigError, XdsConfig};
use mainstay_xds::{Choose, Code, Time};

use crate::breaker::{Counter, InFlight};
use crate::filters::{Effect, Injected};
use crate::helper::{Context, Helper};
use crate::rpc::Rpc;
use crate::snapshot::{Chosen, Decision, Failure, Snapshot};
use crate::subchannel::{Connectivity, Origin, Subchannel, SubchannelId, SubchannelSpec};
use crate::trace::{Step, Trace};
use crate::tree::Tree;

/// What is known of the connections of a channel, and of its RPCs.
pub trait Surroundings {
    /// What becomes of a connection that is asked for.
    fn connect(&mut self, to: &SubchannelSpec) -> Connectivity;

    /// How many RPCs are in flight to a cluster.
    fn in_flight(&mut self, _cluster: &str, _eds_service: &str) -> u32 {
        0
    }
}

/// The decision about an RPC, and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What was looked at, in order.
    pub steps: Vec<Step>,
    /// What becomes of the RPC.
    pub outcome: Outcome,
}

/// What becomes of an RPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is sent.
    Sent {
        /// The address.
        address: SocketAddr,
        /// Where the endpoint belongs.
        origin: Arc<Origin>,
        /// The cluster of the route.
        cluster: Arc<str>,
        /// Time limit of the route; none if absent.
        limit: Option<Duration>,
        /// `:authority` in place of the channel's.
        authority: Option<String>,
    },
    /// A filter ends it with this code.
    Aborted(Code),
    /// It waits.
    Waits(Failure),
    /// It fails, unless it waits for ready.
    Fails(Failure),
    /// It fails in any case.
    Dropped(Failure),
}

/// Decides about one RPC on a channel that has this configuration and is otherwise new.
pub fn explain(
    config: Result<Arc<XdsConfig>, Arc<ConfigError>>,
    surroundings: &mut dyn Surroundings,
    rpc: Rpc<'_>,
    choose: &mut dyn Choose,
) -> Explanation {
    let mut channel = Channel { tree: Tree::new(), shell: Shell::new(surroundings), choose };
    channel.with_tree(|tree, cx| tree.update(cx, config));
    let (mut snapshot, mut chosen, mut steps) = (Arc::new(Snapshot::empty()), Chosen::default(), Vec::new());
    for _ in 0..MAX_DECISIONS {
        channel.connect_all();
        if let Some(newer) = channel.tree.poll_snapshot() {
            snapshot = newer;
        }
        let trace = Trace::default();
        let decision = snapshot.decide_traced(rpc, &mut chosen, channel.choose, &trace);
        go_on(&mut steps, trace.into_steps());
        let outcome = match decision {
            Decision::Send(to) => Outcome::Sent {
                address: to.subchannel.address,
                origin: Arc::clone(to.origin),
                cluster: Arc::clone(to.cluster),
                limit: to.limit,
                authority: to.authority.map(str::to_owned),
            },
            Decision::Fail(failure) => Outcome::Fails(failure),
            Decision::Drop(failure) => Outcome::Dropped(failure),
            Decision::Wait(failure, None) => Outcome::Waits(failure),
            Decision::Wait(_, Some(wake)) => {
                channel.with_tree(|tree, cx| tree.wake(cx, wake));
                continue;
            }
            Decision::Inject(effects) => match effects.iter().find_map(Injected::abort) {
                Some(code) => Outcome::Aborted(code),
                None => continue,
            },
        };
        return Explanation { steps, outcome };
    }
    let failure = Failure::unavailable("no decision: connections are asked for again and again".into());
    Explanation { steps, outcome: Outcome::Waits(failure) }
}

/// Adds the steps of a further decision about an RPC: the route stands, the pick is made anew.
fn go_on(steps: &mut Vec<Step>, further: Vec<Step>) {
    let is_pick = |step: &Step| matches!(step, Step::Leaf { .. });
    if let Some(at) = steps.iter().position(is_pick) {
        steps.truncate(at);
    }
    let is_new = steps.is_empty();
    steps.extend(further.into_iter().filter(|step| is_new || !matches!(step, Step::Cluster(_))));
}

/// A channel without a driver.
struct Channel<'a> {
    tree: Tree<Address>,
    shell: Shell<'a>,
    choose: &'a mut dyn Choose,
}

/// Makes connections by asking what becomes of them.
struct Shell<'a> {
    surroundings: &'a mut dyn Surroundings,
    specs: BTreeMap<SubchannelId, SubchannelSpec>,
    /// What is to be connected.
    asked: VecDeque<SubchannelId>,
    /// What counts as in flight while this lives.
    in_flight: Vec<InFlight>,
}

/// A connection, as far as pickers are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Address {
    id: SubchannelId,
    address: SocketAddr,
}

impl Channel<'_> {
    /// Makes every connection that is asked for, those included that are asked for because another one failed.
    fn connect_all(&mut self) {
        while let Some(id) = self.shell.asked.pop_front() {
            let Some(spec) = self.shell.specs.get(&id) else { continue };
            let state = self.shell.surroundings.connect(spec);
            self.with_tree(|tree, cx| tree.handle_connectivity(cx, id, Connectivity::Connecting));
            if state != Connectivity::Connecting {
                self.with_tree(|tree, cx| tree.handle_connectivity(cx, id, state));
            }
        }
    }

    fn with_tree(&mut self, act: impl FnOnce(&mut Tree<Address>, &mut Context<'_, Shell<'_>>)) {
        let mut cx = Context { now: Time::ZERO, choose: &mut *self.choose, helper: &mut self.shell };
        act(&mut self.tree, &mut cx);
    }
}

impl<'a> Shell<'a> {
    fn new(surroundings: &'a mut dyn Surroundings) -> Self {
        Self { surroundings, specs: BTreeMap::new(), asked: VecDeque::new(), in_flight: Vec::new() }
    }
}

impl Helper for Shell<'_> {
    type Subchannel = Address;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Address {
        self.specs.insert(id, spec.clone());
        Address { id, address: spec.address }
    }

    fn connect(&mut self, id: SubchannelId) {
        self.asked.push_back(id);
    }

    fn release(&mut self, id: SubchannelId) {
        self.specs.remove(&id);
    }

    fn request_reresolution(&mut self) {}

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        let counter = Arc::new(Counter::default());
        let in_flight = self.surroundings.in_flight(cluster, eds_service);
        self.in_flight.extend((0..in_flight).map(|_| counter.acquire()));
        counter
    }
}

impl Subchannel for Address {
    fn is_ready(&self) -> bool {
        true
    }
}

impl Injected {
    fn abort(&self) -> Option<Code> {
        match self.effect {
            Effect::Abort(code) => Some(code),
            Effect::Delay(_) => None,
        }
    }
}

/// An RPC wakes something now and then; more often than this it wakes the same thing again and again.
const MAX_DECISIONS: usize = 1_000;
