//! Pickers: what the policies decided, as plain data that many RPCs read at once.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;
use mainstay_xds::Choose;
use mainstay_xds::lrs::ClusterLoad;
use mainstay_xds::resource::endpoint::DropCategory;

use crate::breaker::Counter;
use crate::call_tracker::CallTracker;
use crate::calls::CallCounter;
use crate::draws::Draws;
use crate::endpoint::Address;
use crate::owner::Wake;
use crate::pool::{Handles, Pool};
use crate::request_hash::{HashSteps, random_hash};
use crate::session::{Session, SessionPick};
use crate::subchannel::Subchannel;
use crate::trace::{Candidate, Draw, Recorder, Step};

mod least_request;
mod override_host;
mod ring;
mod runs;
mod stride;

pub(crate) use least_request::LeastRequestPicker;
pub(crate) use override_host::{HostState, OverridePicker, SessionHost, Used};
pub(crate) use ring::{Ring, RingPicker, Spot};
#[cfg(test)]
pub(crate) use runs::entries_made;
pub(crate) use runs::{MadeOf, RUN, Runs, count};
pub(crate) use stride::{Reporting, StridePicker};

/// What becomes of RPCs at some point of the tree. Texts are whole sentences only at the top.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Picker<S> {
    /// They wait; for what.
    Wait(String),
    /// They wait, and the first one wakes what is idle.
    Idle(Wake),
    /// They fail unless they wait for ready; why.
    Fail(String),
    /// All on one connection.
    One(Ready<S>),
    /// On each connection in turn.
    InTurn(InTurn<S>),
    /// On each connection as often as its weight says.
    Stride(StridePicker<S>),
    /// On the connection with the fewest RPCs.
    LeastRequest(LeastRequestPicker<S>),
    /// To where the hash of the request leads.
    Ring(Box<RingPicker<S>>),
    /// By weight.
    Weighted(Weighted<S>),
    /// Where the session of an RPC lives, if that can be.
    Override(Box<OverridePicker<S>>),
    /// To a cluster, after drops and circuit breaker.
    Cluster(Box<ClusterPicker<S>>),
}

/// What a picker is made of.
#[derive(Debug)]
pub(crate) struct Parts<'a, S> {
    pub(crate) pool: &'a Pool,
    pub(crate) handles: &'a Handles<S>,
    /// The last picker that was made at the same point of the tree, if there was one: what did not change is shared with it.
    pub(crate) before: Option<&'a Picker<S>>,
}

/// A connection that was ready when the picker was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ready<S> {
    pub(crate) subchannel: S,
    /// Where it leads.
    pub(crate) address: Address,
    /// Counts its RPCs for outlier detection.
    pub(crate) counter: Option<Arc<CallCounter>>,
}

/// Connections in turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InTurn<S> {
    ready: Runs<Ready<S>>,
    next: Position,
}

/// Pickers by weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Weighted<S> {
    /// Each with the sum of the weights up to and including its own.
    entries: Box<[(u64, Picker<S>)]>,
}

/// A cluster: drops, circuit breaker, and what is below.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterPicker<S> {
    pub(crate) name: Arc<str>,
    pub(crate) note: Arc<str>,
    /// Which priority serves.
    pub(crate) priority: Standing,
    pub(crate) drops: Arc<[DropCategory]>,
    pub(crate) max_requests: u32,
    pub(crate) counter: Arc<Counter>,
    /// Where RPCs are counted, if someone wants to know.
    pub(crate) load: Option<Arc<ClusterLoad>>,
    pub(crate) child: Picker<S>,
}

/// Where the next RPC goes. Any two are equal: the position is no part of what was decided.
#[derive(Debug, Default)]
pub(crate) struct Position(AtomicUsize);

/// The position of the priority that serves when the picker is made, and how many there are. It is told to who asks and
/// decides nothing. Any two are equal: a picker that does the same goes on where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) position: usize,
    pub(crate) count: usize,
}

/// What RPCs can expect of a snapshot, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outlook {
    /// All fail.
    Fail,
    /// All fail or wait.
    Wait,
    /// Some cluster takes them.
    Send,
}

/// What chance says on the way through a picker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PickDraws {
    /// Whether the RPC is dropped.
    pub(crate) drops: Draws,
    /// Which locality it goes to. Drawn anew for each attempt, but not while the RPC waits: that would lead away from
    /// localities that take longer.
    pub(crate) locality: Draws,
}

/// What a pick goes by.
pub(crate) struct PickArgs<'a, R> {
    pub(crate) choose: &'a mut dyn Choose,
    pub(crate) headers: &'a HeaderMap,
    /// The request hash, as soon as someone has asked for it.
    hash: &'a mut Option<u64>,
    /// What chance said before.
    pub(crate) draws: &'a mut PickDraws,
    hash_steps: Option<&'a HashSteps>,
    channel_id: u64,
    /// What is to be woken although the RPC is sent elsewhere.
    pub(crate) wake: Option<Wake>,
    /// Of an RPC that belongs to a session, or begins one.
    pub(crate) session: Option<(&'a Session, &'a mut SessionPick)>,
    /// Who wants to know how it goes.
    pub(crate) recorder: R,
}

/// The result of a pick.
#[derive(Debug)]
pub(crate) enum Pick<'a, S> {
    /// Send it there, and tell these how it ended.
    Send(&'a Ready<S>, CallTracker),
    Wait(Reason<'a, S>),
    Fail(Reason<'a, S>),
    /// Fail it in any case: in which leaf cluster, and why.
    Drop(&'a ClusterPicker<S>, String),
}

/// Why a pick did not succeed, and in which leaf cluster.
#[derive(Debug)]
pub(crate) struct Reason<'a, S> {
    pub(crate) text: &'a str,
    pub(crate) cluster: Option<&'a ClusterPicker<S>>,
    /// What must be asked to connect, so that the wait has an end.
    pub(crate) wake: Option<Wake>,
    /// Whether the connections that were to be picked from have just died.
    lost: bool,
}

impl<'a, R: Recorder> PickArgs<'a, R> {
    pub(crate) fn new(
        choose: &'a mut dyn Choose,
        headers: &'a HeaderMap,
        hash: &'a mut Option<u64>,
        draws: &'a mut PickDraws,
        recorder: R,
    ) -> Self {
        Self { choose, headers, hash, draws, hash_steps: None, channel_id: 0, wake: None, session: None, recorder }
    }

    /// With how requests are hashed.
    pub(crate) fn hashed_by(self, steps: &'a HashSteps, channel_id: u64) -> Self {
        Self { hash_steps: Some(steps), channel_id, ..self }
    }

    /// For an RPC that may belong to a session; what comes of that is noted in `pick`.
    pub(crate) fn of_session(self, session: Option<&'a Session>, pick: &'a mut SessionPick) -> Self {
        Self { session: session.map(|session| (session, pick)), ..self }
    }

    /// Makes the hash if the route says how: the next snapshot may not have that route.
    pub(crate) fn keep_hash(&mut self) {
        if self.hash_steps.is_some_and(|steps| !steps.is_empty()) {
            self.request_hash();
        }
    }

    /// The hash of the request: made when first asked for, as most policies never do; random if the route says nothing
    /// that applies (L-42).
    pub(crate) fn request_hash(&mut self) -> u64 {
        if let Some(hash) = *self.hash {
            return hash;
        }
        let by_route = self.hash_steps.and_then(|steps| steps.hash(self.headers, self.channel_id));
        *self.hash.insert(by_route.unwrap_or_else(|| random_hash(self.choose)))
    }
}

impl<S: Subchannel> Picker<S> {
    /// For a connection that is ready in the tree but has no handle: cannot happen.
    pub(crate) fn reconnecting() -> Self {
        Self::Wait(LOST.into())
    }

    /// Puts `context` before the text, if there is one.
    pub(crate) fn explain(self, context: &str) -> Self {
        match self {
            Self::Wait(text) => Self::Wait(format!("{context}: {text}")),
            Self::Fail(text) => Self::Fail(format!("{context}: {text}")),
            Self::Idle(_)
            | Self::One(_)
            | Self::InTurn(_)
            | Self::Stride(_)
            | Self::LeastRequest(_)
            | Self::Ring(_)
            | Self::Weighted(_)
            | Self::Override(_)
            | Self::Cluster(_) => self,
        }
    }

    /// The text of a picker that sends nothing.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Wait(text) | Self::Fail(text) => Some(text),
            Self::Idle(_)
            | Self::One(_)
            | Self::InTurn(_)
            | Self::Stride(_)
            | Self::LeastRequest(_)
            | Self::Ring(_)
            | Self::Weighted(_)
            | Self::Override(_)
            | Self::Cluster(_) => None,
        }
    }

    pub(crate) fn outlook(&self) -> Outlook {
        match self {
            Self::Wait(_) | Self::Idle(_) => Outlook::Wait,
            Self::Fail(_) => Outlook::Fail,
            Self::One(_) | Self::InTurn(_) | Self::Stride(_) | Self::LeastRequest(_) => Outlook::Send,
            Self::Ring(ring) => ring.outlook(),
            Self::Weighted(weighted) => {
                weighted.entries.iter().map(|(_, picker)| picker.outlook()).max().unwrap_or(Outlook::Fail)
            }
            Self::Override(sessions) => sessions.child.outlook(),
            Self::Cluster(cluster) => cluster.child.outlook(),
        }
    }

    pub(crate) fn pick<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        match self {
            Self::Wait(text) => Pick::Wait(Reason::new(text)),
            Self::Idle(wake) => Pick::Wait(Reason { wake: Some(*wake), ..Reason::new(IDLE) }),
            Self::Fail(text) => Pick::Fail(Reason::new(text)),
            Self::One(ready) if ready.subchannel.is_ready() => {
                args.recorder.record(|| Step::endpoints("pick_first", [ready]));
                Pick::Send(ready, CallTracker::default())
            }
            Self::One(_) => Pick::lost(),
            Self::InTurn(in_turn) => in_turn.pick(args.recorder),
            Self::Stride(stride) => stride.pick(args.recorder),
            Self::LeastRequest(least_request) => least_request.pick(args),
            Self::Ring(ring) => ring.pick(args),
            Self::Weighted(weighted) => weighted.pick(args),
            Self::Override(sessions) => sessions.pick(args),
            Self::Cluster(cluster) => cluster.pick(args),
        }
    }
}

impl<'a, S> Parts<'a, S> {
    /// For what is below: `of` finds the picker of that in the one before.
    pub(crate) fn below(self, of: impl FnOnce(&'a Picker<S>) -> Option<&'a Picker<S>>) -> Self {
        Self { before: self.before.and_then(of), ..self }
    }
}

impl<S> Clone for Parts<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Parts<'_, S> {}

impl<S: Subchannel> InTurn<S> {
    pub(crate) fn new(ready: Runs<Ready<S>>, start: u32) -> Self {
        Self { ready, next: Position::at(start as usize) }
    }

    /// For the next picker.
    pub(crate) fn ready(&self) -> &Runs<Ready<S>> {
        &self.ready
    }

    fn pick(&self, recorder: impl Recorder) -> Pick<'_, S> {
        let count = self.ready.len();
        if count == 0 {
            return Pick::lost();
        }
        recorder.record(|| Step::endpoints("round_robin", self.ready.iter()));
        let start = self.next.0.fetch_add(1, Ordering::Relaxed) % count;
        // Mostly it is there.
        let first = self.ready.get(start).filter(|ready| ready.subchannel.is_ready());
        first
            .or_else(|| self.ready.from(start).find(|ready| ready.subchannel.is_ready()))
            .map_or_else(Pick::lost, |ready| Pick::Send(ready, CallTracker::default()))
    }
}

impl<S: Subchannel> Weighted<S> {
    pub(crate) fn new(pickers: impl IntoIterator<Item = (u32, Picker<S>)>) -> Self {
        let mut sum = 0;
        let add = |(weight, picker)| {
            sum += u64::from(weight);
            (sum, picker)
        };
        Self { entries: pickers.into_iter().map(add).collect() }
    }

    /// The picker at an index, for the next one.
    pub(crate) fn picker(&self, index: usize) -> Option<&Picker<S>> {
        self.entries.get(index).map(|(_, picker)| picker)
    }

    fn pick<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        let total = self.entries.last().map_or(0, |(sum, _)| *sum);
        if total == 0 {
            return Pick::lost();
        }
        let draw = args.draws.locality.once(args.choose).choose(total);
        let start = self.entries.partition_point(|(sum, _)| *sum <= draw);
        args.recorder.record_all(|| self.step(start, draw, total));
        let (before, after) = self.entries.split_at(start);
        // Normally the first; the others only if every connection of that one died since.
        let mut picks = after.iter().chain(before).map(|(_, picker)| picker.pick(args));
        picks.find(|pick| !pick.is_lost()).unwrap_or_else(Pick::lost)
    }

    /// The choice of an entry, in words.
    fn step(&self, at: usize, drawn: u64, of: u64) -> Option<Step> {
        let (below, _) = *self.entries.get(at)?;
        let before = at.checked_sub(1).and_then(|at| self.entries.get(at)).map_or(0, |(sum, _)| *sum);
        Some(Step::Locality { weight: below - before, draw: Draw { drawn, of, below } })
    }
}

impl<S: Subchannel> ClusterPicker<S> {
    /// Drops, then the circuit breaker, then the child (L-85).
    fn pick<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        args.recorder.record(|| Step::Leaf {
            cluster: Arc::clone(&self.name),
            priority: (self.priority.position, self.priority.count),
        });
        let mut chance = args.draws.drops.once(args.choose);
        for (index, drop) in self.drops.iter().enumerate() {
            let below = u64::from(drop.per_million);
            if below == 0 {
                continue;
            }
            let (drawn, category) = (chance.choose(MILLION), &drop.category);
            let draw = Draw { drawn, of: MILLION, below };
            args.recorder.record(|| Step::Drop { category: category.clone(), draw, hit: drawn < below });
            if drawn < below {
                if let Some(load) = &self.load {
                    load.count_drop(index);
                }
                return Pick::Drop(self, format!("EDS-configured drop: {} (cluster {:?})", drop.category, self.name));
            }
        }
        let in_flight = self.counter.in_flight();
        args.recorder.record(|| Step::Breaker { in_flight, limit: self.max_requests });
        if in_flight >= self.max_requests {
            return self.break_circuit();
        }
        match self.child.pick(args) {
            // Counted only now, so that RPCs that wait are not counted; and so asked again.
            Pick::Send(ready, tracker) => match self.counter.try_acquire(self.max_requests) {
                Some(in_flight) => {
                    let load = self.load.as_ref().map(|load| load.begin(ready.address.socket())); // C-77
                    let tracker = tracker.with_place(in_flight).with_counter(ready.counter.as_ref());
                    Pick::Send(ready, tracker.with_load(load))
                }
                None => self.break_circuit(),
            },
            Pick::Wait(reason) => Pick::Wait(Reason { cluster: Some(self), ..reason }),
            Pick::Fail(reason) => Pick::Fail(Reason { cluster: Some(self), ..reason }),
            drop @ Pick::Drop(..) => drop,
        }
    }

    fn break_circuit(&self) -> Pick<'_, S> {
        if let Some(load) = &self.load {
            load.count_circuit_drop();
        }
        let (name, max) = (&self.name, self.max_requests);
        Pick::Drop(self, format!("circuit breaker drop (cluster {name:?} has {max} requests in flight, its limit)"))
    }
}

impl Step {
    /// The choice between endpoints.
    fn endpoints<'a, S: 'a>(policy: &'static str, ready: impl IntoIterator<Item = &'a Ready<S>>) -> Self {
        let candidate = |ready: &Ready<S>| Candidate {
            address: ready.address.socket(),
            origin: Arc::clone(ready.address.origin()),
        };
        Self::Endpoints { policy, candidates: ready.into_iter().map(candidate).collect() }
    }
}

impl<S> Pick<'_, S> {
    /// Connections died that the tree does not know of yet.
    fn lost() -> Self {
        Self::Wait(Reason { lost: true, ..Reason::new(LOST) })
    }

    fn is_lost(&self) -> bool {
        matches!(self, Self::Wait(Reason { lost: true, .. }))
    }
}

impl<'a, S> Reason<'a, S> {
    fn new(text: &'a str) -> Self {
        Self { text, cluster: None, wake: None, lost: false }
    }
}

impl Position {
    pub(crate) fn at(start: usize) -> Self {
        Self(AtomicUsize::new(start))
    }
}

impl Clone for Position {
    fn clone(&self) -> Self {
        Self(AtomicUsize::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for Position {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Position {}

impl Hash for Position {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for Standing {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Standing {}

impl Hash for Standing {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

const IDLE: &str = "connecting again after a time without connection";

const LOST: &str = "connections were just lost; reconnecting";

const MILLION: u64 = 1_000_000;
