//! How a decision about an RPC comes about, step by step, for whoever wants to be told why (OP-3).
//!
//! What decides is generic over a [`Recorder`]. The one of RPCs is `()`: it has no size and does nothing, so that what is
//! compiled for them is what it would be without. Steps are made only if somebody records them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::filters::Injected;
use crate::subchannel::Origin;

/// Hears how a decision comes about.
pub trait Recorder: Copy {
    /// Takes in the next steps. Who does not want them does not make them.
    fn record_all<I: IntoIterator<Item = Step>>(self, steps: impl FnOnce() -> I);

    /// Takes in the next step.
    #[inline(always)]
    fn record(self, step: impl FnOnce() -> Step) {
        self.record_all(|| [step()]);
    }
}

/// Nobody.
impl Recorder for () {
    #[inline(always)]
    fn record_all<I: IntoIterator<Item = Step>>(self, _: impl FnOnce() -> I) {}
}

/// The steps of a decision, in order.
#[derive(Debug, Default)]
pub struct Trace(RefCell<Vec<Step>>);

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A route was passed over.
    Passed {
        /// Its index among the routes of the virtual host.
        route: usize,
        /// Why.
        why: Mismatch,
    },
    /// A route matched.
    Matched {
        /// Its index.
        route: usize,
        /// The draw that it won, if it is for a share of the RPCs only.
        draw: Option<Draw>,
    },
    /// The route has several clusters: a draw chose one.
    Weighted {
        /// The index of the choice.
        choice: usize,
        /// The draw, and the sum of all weights.
        draw: Draw,
    },
    /// A session wants another cluster than the one that was drawn, and the route has it (A60).
    SessionCluster(Arc<str>),
    /// The cluster of the route.
    Cluster(Arc<str>),
    /// What the filters of the route do to the RPC before it is sent.
    Injected(Vec<Injected>),
    /// A leaf cluster was asked: which of its priorities serves.
    Leaf {
        /// The leaf cluster.
        cluster: Arc<str>,
        /// The position of the priority that serves, and how many there are.
        priority: (usize, usize),
    },
    /// A draw for a drop category.
    Drop {
        /// The category.
        category: String,
        /// The share of the RPCs that it drops, in parts of a million, and what was drawn.
        draw: Draw,
        /// Whether the RPC is dropped.
        hit: bool,
    },
    /// The circuit breaker of a leaf cluster was looked at.
    Breaker {
        /// How many RPCs were in flight.
        in_flight: u32,
        /// How many there may be.
        limit: u32,
    },
    /// One of several localities was drawn.
    Locality {
        /// Its weight.
        weight: u64,
        /// The draw, and the sum of the weights of localities that can take traffic.
        draw: Draw,
    },
    /// Endpoints that a policy chose from.
    Endpoints {
        /// The policy.
        policy: &'static str,
        /// Those that can be picked; the one that is picked is among them.
        candidates: Vec<Candidate>,
    },
    /// The hash of the request, which leads to an endpoint.
    Hash(u64),
    /// The RPC goes to where its session lives.
    Session(SocketAddr),
}

/// A draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// What was drawn.
    pub drawn: u64,
    /// Out of how many.
    pub of: u64,
    /// Below what the draw is won; for a choice, where its share ends.
    pub below: u64,
}

/// Why a route does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The path is another one.
    Path,
    /// This header matcher does not match; its index among those of the route.
    Header(usize),
    /// It is for a share of the RPCs, and this one is not in it.
    Fraction(Draw),
}

/// An endpoint that a policy may pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its address.
    pub address: SocketAddr,
    /// Where it belongs.
    pub origin: Arc<Origin>,
}

impl Recorder for &Trace {
    fn record_all<I: IntoIterator<Item = Step>>(self, steps: impl FnOnce() -> I) {
        self.0.borrow_mut().extend(steps());
    }
}

impl Trace {
    /// The steps so far.
    pub fn into_steps(self) -> Vec<Step> {
        self.0.into_inner()
    }
}
