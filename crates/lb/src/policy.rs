//! The policies. Each is a state machine in a file of its own:
//!
//! ```text
//! cds (per cluster)                aggregate: cds
//!  └─ outlier_detection                        └─ priority
//!      └─ cluster_impl                             └─ leaf 1 └─ outlier_detection …
//!          └─ override_host                        └─ leaf 2 └─ …
//!              └─ priority
//!                  └─ policy of the cluster
//! ```
//!
//! The policy of the cluster is wrr_locality → weighted_target → round_robin, or any part of that,
//! or another one in the place of round_robin. All but pick_first itself have one pick_first machine per endpoint.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::deps::ClusterConfig;
use mainstay_xds::lrs::LoadStore;
use mainstay_xds::resource::cluster::OutlierDetection;
use mainstay_xds::resource::tls::UpstreamTls;
use mainstay_xds::{Choose, Time};

use crate::breaker::Counter;
use crate::endpoint::{Address, PriorityConfig};
use crate::helper::Observation;
use crate::owner::Owner;
use crate::picker::{Parts, Picker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel, SubchannelId};
use crate::timers::{TimerKind, Timers};
use outlier_detection::Health;

pub(crate) mod cds;
mod child_names;
mod cluster_impl;
mod endpoint_policy;
mod endpoint_sharding;
mod graceful_switch;
mod least_request;
mod outlier_detection;
mod override_host;
mod pick_first;
mod priority;
mod random_subsetting;
mod ring_hash;
mod round_robin;
mod weighted_round_robin;
mod weighted_target;

/// What every call into a policy brings along.
pub(crate) struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) choose: &'a mut dyn Choose,
    pub(crate) pool: &'a mut Pool,
    pub(crate) timers: &'a mut Timers,
    /// Finds the counter of {cluster, EDS service name}.
    pub(crate) breakers: &'a mut dyn FnMut(&str, &str) -> Arc<Counter>,
    /// Where RPCs are counted for load reports.
    pub(crate) loads: &'a mut LoadStore,
    pub(crate) last_policy: &'a mut u64,
    /// Where endpoints join, if their RPCs are counted (A50).
    pub(crate) health: Option<Health>,
    /// The cluster of the cluster manager that this call is about.
    pub(crate) cluster: u32,
    /// Whether a parent swallows re-resolution requests (L-72).
    pub(crate) ignore_reresolution: bool,
    /// How long what serves may go on while what an update put in its place connects; not at all if absent.
    pub(crate) warm_bound: Option<Duration>,
    /// What metrics want to know.
    pub(crate) observations: &'a mut Vec<Observation>,
}

/// Something that happened to a policy or to a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) owner: Owner,
    pub(crate) what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A subchannel has a new state; the pool knows which.
    Connectivity(SubchannelId),
    /// A timer is due. It is out of the table already.
    Timer(TimerKind),
    /// An RPC waits for something that is idle.
    Wake,
    /// The endpoint was ejected, or returns (L-82).
    Health { ejected: bool },
}

/// A policy as its parent sees it.
pub(crate) trait Policy: Clone + fmt::Debug + Eq + Hash + Sized {
    /// What it is made of. An update with an equal one is not passed on.
    type Config: Clone + fmt::Debug + Eq + Hash;

    /// Makes it, and starts what it does.
    fn new(cx: &mut Cx<'_>, config: &Self::Config) -> Self;

    /// Takes in another configuration.
    fn update(&mut self, cx: &mut Cx<'_>, config: &Self::Config);

    /// Takes in an event if it is for this policy or one below. Whether it was.
    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool;

    /// Connects if it waited for an RPC with that. For parents that want every child connected (L-100).
    fn exit_idle(&mut self, _cx: &mut Cx<'_>) {}

    /// Whether RPCs are sent on the connection that this part of the policy, or of one below, looks after.
    fn serves(&self, _owner: Owner) -> bool {
        false
    }

    /// Whether one of the connections that RPCs are sent on stays in use with another configuration. A policy that sees
    /// to it by itself that RPCs are served meanwhile says so, too.
    fn keeps(&self, _pool: &Pool, _config: &Self::Config) -> bool {
        true
    }

    /// Lets go of subchannels and timers. Nothing is called after this.
    fn shut_down(&mut self, cx: &mut Cx<'_>);

    /// Its state.
    fn state(&self) -> State;

    /// What becomes of RPCs now.
    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S>;
}

/// What a leaf cluster works on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeafCluster {
    pub(crate) config: Arc<ClusterConfig>,
    /// Whether RPCs may belong to sessions (A55).
    pub(crate) sessions: bool,
    /// How connections to its endpoints are secured, if the channel follows what clusters ask for (A29).
    pub(crate) tls: Option<Arc<UpstreamTls>>,
}

impl LeafCluster {
    /// The settings of outlier detection, if any algorithm is on (L-74).
    fn outlier_detection(&self) -> Option<&OutlierDetection> {
        let settings = self.config.cluster.outlier_detection.as_ref()?;
        (settings.success_rate.is_some() || settings.failure_percentage.is_some()).then_some(settings)
    }
}

impl Cx<'_> {
    /// Runs `work` of a child whose re-resolution requests are swallowed if `ignore` (L-72).
    fn ignoring_reresolution<T>(&mut self, ignore: bool, work: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.ignore_reresolution;
        self.ignore_reresolution |= ignore;
        let result = work(self);
        self.ignore_reresolution = outer;
        result
    }

    /// A number for a new policy.
    pub(crate) fn new_owner(&mut self) -> Owner {
        *self.last_policy += 1;
        Owner { cluster: self.cluster, policy: *self.last_policy, slot: 0 }
    }

    /// Asks for fresh DNS answers, unless a parent swallows that.
    pub(crate) fn request_reresolution(&mut self) {
        if !self.ignore_reresolution {
            self.pool.request_reresolution();
        }
    }
}

/// Whether one of the connections that `serves` says yes to leads to an endpoint that may get traffic.
fn leads_to_any(config: &PriorityConfig, pool: &Pool, serves: impl Fn(Owner) -> bool) -> bool {
    let is_served = |address: Address| pool.users(&address).any(&serves);
    config.endpoints().any(|endpoint| endpoint.each_address().any(is_served))
}
