//! The policy that a cluster asks for: a registry of those that spread load over endpoints.

use mainstay_xds::resource::lb_policy::LbPolicy;

use super::pick_first::PickFirstPolicy;
use super::round_robin::RoundRobin;
use super::switch::{Kind, Switch};
use super::weighted_target::WeightedTarget;
use super::{Cx, Event, Policy, PriorityConfig, State};
use crate::picker::Picker;
use crate::pool::{Handles, Pool};
use crate::tree::Subchannel;

/// The policy of a cluster, or the one below wrr_locality.
pub(crate) type EndpointPolicy = Switch<EndpointKind>;

/// The kinds there are. A policy that is parsed but not written yet serves as round_robin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EndpointKind {
    WrrLocality(WeightedTarget),
    RoundRobin(RoundRobin),
    PickFirst(PickFirstPolicy),
}

impl Kind for EndpointKind {
    fn fits(&self, config: &PriorityConfig) -> bool {
        match config.lb_policy {
            LbPolicy::WrrLocality(_) => matches!(self, Self::WrrLocality(_)),
            LbPolicy::PickFirst { .. } => matches!(self, Self::PickFirst(_)),
            LbPolicy::RoundRobin | _ => matches!(self, Self::RoundRobin(_)),
        }
    }
}

impl Policy for EndpointKind {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        match config.lb_policy {
            LbPolicy::WrrLocality(_) => Self::WrrLocality(WeightedTarget::new(cx, config)),
            LbPolicy::PickFirst { .. } => Self::PickFirst(PickFirstPolicy::new(cx, config)),
            LbPolicy::RoundRobin | _ => Self::RoundRobin(RoundRobin::new(cx, config)),
        }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        match self {
            Self::WrrLocality(policy) => policy.update(cx, config),
            Self::RoundRobin(policy) => policy.update(cx, config),
            Self::PickFirst(policy) => policy.update(cx, config),
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        match self {
            Self::WrrLocality(policy) => policy.handle(cx, event),
            Self::RoundRobin(policy) => policy.handle(cx, event),
            Self::PickFirst(policy) => policy.handle(cx, event),
        }
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::WrrLocality(policy) => policy.exit_idle(cx),
            Self::RoundRobin(policy) => policy.exit_idle(cx),
            Self::PickFirst(policy) => policy.exit_idle(cx),
        }
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::WrrLocality(policy) => policy.shut_down(cx),
            Self::RoundRobin(policy) => policy.shut_down(cx),
            Self::PickFirst(policy) => policy.shut_down(cx),
        }
    }

    fn state(&self) -> State {
        match self {
            Self::WrrLocality(policy) => policy.state(),
            Self::RoundRobin(policy) => policy.state(),
            Self::PickFirst(policy) => policy.state(),
        }
    }

    fn picker<S: Subchannel>(&self, pool: &Pool, handles: &Handles<S>) -> Picker<S> {
        match self {
            Self::WrrLocality(policy) => policy.picker(pool, handles),
            Self::RoundRobin(policy) => policy.picker(pool, handles),
            Self::PickFirst(policy) => policy.picker(pool, handles),
        }
    }
}
