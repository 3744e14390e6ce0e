//! The policy that a cluster asks for: a registry of those that spread load over endpoints.

use mainstay_xds::resource::lb_policy::LbPolicy;

use super::graceful_switch::{GracefulSwitch, Kind};
use super::least_request::LeastRequest;
use super::pick_first::PickFirstPolicy;
use super::random_subsetting::RandomSubsetting;
use super::ring_hash::RingHash;
use super::round_robin::RoundRobin;
use super::weighted_round_robin::WeightedRoundRobin;
use super::weighted_target::WeightedTarget;
use super::{Cx, Event, Policy};
use crate::endpoint::PriorityConfig;
use crate::owner::Owner;
use crate::picker::{Parts, Picker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};

/// The policy of a cluster, or the one below another.
pub(crate) type EndpointPolicy = GracefulSwitch<EndpointKind>;

/// One line per policy: its name, its type, and which configurations are for it. Every configuration that can be parsed
/// has a line.
macro_rules! endpoint_kinds {
    ($($name:ident($policy:ty) for $config:pat),+ $(,)?) => {
        /// The kinds there are.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum EndpointKind {
            $($name($policy),)+
        }

        impl Kind for EndpointKind {
            fn fits(&self, config: &PriorityConfig) -> bool {
                match config.lb_policy {
                    $($config => matches!(self, Self::$name(_)),)+
                }
            }
        }

        impl Policy for EndpointKind {
            type Config = PriorityConfig;

            fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
                match config.lb_policy {
                    $($config => Self::$name(<$policy>::new(cx, config)),)+
                }
            }

            fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
                match self {
                    $(Self::$name(policy) => policy.update(cx, config),)+
                }
            }

            fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
                match self {
                    $(Self::$name(policy) => policy.handle(cx, event),)+
                }
            }

            fn exit_idle(&mut self, cx: &mut Cx<'_>) {
                match self {
                    $(Self::$name(policy) => policy.exit_idle(cx),)+
                }
            }

            fn serves(&self, owner: Owner) -> bool {
                match self {
                    $(Self::$name(policy) => policy.serves(owner),)+
                }
            }

            fn keeps(&self, pool: &Pool, config: &PriorityConfig) -> bool {
                match self {
                    $(Self::$name(policy) => policy.keeps(pool, config),)+
                }
            }

            fn shut_down(&mut self, cx: &mut Cx<'_>) {
                match self {
                    $(Self::$name(policy) => policy.shut_down(cx),)+
                }
            }

            fn state(&self) -> State {
                match self {
                    $(Self::$name(policy) => policy.state(),)+
                }
            }

            fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
                match self {
                    $(Self::$name(policy) => policy.picker(parts),)+
                }
            }
        }
    };
}

endpoint_kinds! {
    WrrLocality(WeightedTarget<EndpointPolicy>) for LbPolicy::WrrLocality(_),
    PickFirst(PickFirstPolicy) for LbPolicy::PickFirst { .. },
    RingHash(RingHash) for LbPolicy::RingHash(_),
    LeastRequest(LeastRequest) for LbPolicy::LeastRequest { .. },
    WeightedRoundRobin(WeightedRoundRobin) for LbPolicy::WeightedRoundRobin(_),
    RandomSubsetting(RandomSubsetting<EndpointPolicy>) for LbPolicy::RandomSubsetting { .. },
    RoundRobin(RoundRobin) for LbPolicy::RoundRobin,
}
