//! What policies ask of the outside, and what they tell it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::client::Intern;
use mainstay_xds::resource::endpoint::Locality;
use mainstay_xds::{Choose, Time};

use crate::breaker::Counter;
use crate::orca::LoadSink;
use crate::subchannel::{Subchannel, SubchannelId, SubchannelSpec};

/// What the tree asks of the shell. No call may block or call back.
pub trait Helper {
    /// The handle that pickers carry.
    type Subchannel: Subchannel;

    /// Makes a subchannel; it starts idle.
    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Self::Subchannel;

    /// Asks an idle subchannel to connect.
    fn connect(&mut self, id: SubchannelId);

    /// Lets go of a subchannel. RPCs on it go on; nothing is heard of it any more.
    fn release(&mut self, id: SubchannelId);

    /// Asks for fresh DNS answers (L-18).
    fn request_reresolution(&mut self);

    /// The counter of RPCs in flight to `cluster` with EDS service name `eds_service`, empty if
    /// there is none. The same for every channel of the process (L-86).
    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter>;

    /// Hears what policies did, for metrics and logs.
    fn observe(&mut self, _observation: &Observation) {}

    /// Asks the endpoint at the other end of a connection for a report of its load each `period`, until the connection
    /// is lost or released, or the sink is not wanted any more (A51).
    fn watch_load(&mut self, _id: SubchannelId, _period: Duration, _sink: LoadSink) {}

    /// Where channels share parsed resources, if they do.
    fn interner(&mut self) -> Option<&mut dyn Intern> {
        None
    }
}

/// What every call into the tree brings along.
pub struct Context<'a, H: Helper> {
    /// The time.
    pub now: Time,
    /// Randomness.
    pub choose: &'a mut dyn Choose,
    /// Where connections come from.
    pub helper: &'a mut H,
}

/// Something that a policy did, as plain data.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// Outlier detection found an endpoint of a leaf cluster to eject, and did so unless there was a reason not to
    /// (A91, S-75).
    Outlier {
        /// The leaf cluster.
        cluster: Arc<str>,
        /// Which algorithm found it.
        method: DetectionMethod,
        /// Why it stays in use all the same.
        unenforced: Option<UnenforcedReason>,
    },
    /// An endpoint of a leaf cluster was ejected by outlier detection, or returns.
    Ejection {
        /// The leaf cluster.
        cluster: Arc<str>,
        /// The addresses of the endpoint.
        addresses: Vec<SocketAddr>,
        /// Whether it is out of use from now on.
        ejected: bool,
    },
    /// Another priority of a leaf cluster is in use, or is waited for.
    Priority {
        /// The leaf cluster.
        cluster: Arc<str>,
        /// Which one was, counted from 0.
        from: usize,
        /// Which one is.
        to: usize,
        /// How many there are.
        of: usize,
    },
    /// Another leaf of an aggregate cluster is in use, or is waited for.
    Leaf {
        /// The leaf cluster.
        cluster: Arc<str>,
        /// Its place in the aggregate, counted from 0.
        to: usize,
        /// The place of the one before.
        from: usize,
        /// How many there are.
        of: usize,
    },
    /// A leaf cluster asks for TLS by its transport socket, and connections to its endpoints are made without regard
    /// to that: the credentials of the channel do not follow the control plane (A29).
    SecurityIgnored {
        /// The leaf cluster.
        cluster: Arc<str>,
    },
    /// weighted_round_robin weighed the endpoints that are connected (A78).
    Weights {
        /// The leaf cluster.
        cluster: Arc<str>,
        /// The locality, if all of them are of one.
        locality: Option<Arc<Locality>>,
        /// How many have not reported, or not for long enough.
        not_yet_usable: u64,
        /// How many have not reported for too long.
        stale: u64,
        /// The weight of each; zero if it does not count. With fewer than two that do, all have the same share.
        weights: Vec<f64>,
    },
}

/// An algorithm of outlier detection (A50).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DetectionMethod {
    /// Its success rate is far below the mean.
    SuccessRate,
    /// It fails more than a share of its RPCs.
    FailurePercentage,
}

/// Why an outlier is not ejected (A91).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnenforcedReason {
    /// By chance, as configured.
    EnforcementPercentage,
    /// As many as may be are ejected already.
    MaxEjectionOverflow,
}
