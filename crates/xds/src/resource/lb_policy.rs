//! The LB policy of a cluster as a typed tree. No JSON between policies.

use std::fmt;

use envoy_types::pb::envoy::config::cluster::v3 as pb;
use envoy_types::pb::envoy::extensions::load_balancing_policies as pb_policies;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use pb::cluster::{LbConfig, LbPolicy as LegacyPolicy};
use prost::Message;

use super::fields;
use crate::invalid::Faults;

mod json;
mod least_request;
mod random_subsetting;
mod ring_hash;
mod weighted_round_robin;

pub use ring_hash::RingHashConfig;
pub use weighted_round_robin::{Metric, Penalty, Weighing, WeightedRoundRobinConfig};

/// A load-balancing policy and its config.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LbPolicy {
    /// `wrr_locality`: localities by weight, then the child among the endpoints of one.
    WrrLocality(Box<LbPolicy>),
    /// `round_robin`: each ready endpoint in turn.
    RoundRobin,
    /// `ring_hash`: requests with the same hash to the same endpoint.
    RingHash(RingHashConfig),
    /// `least_request`: of some ready endpoints, the one with the fewest requests under way.
    LeastRequest {
        /// How many are compared, 2 to 10.
        choices: u8,
    },
    /// `weighted_round_robin`: each ready endpoint as often as the load that it reports allows.
    WeightedRoundRobin(Box<WeightedRoundRobinConfig>),
    /// `random_subsetting`: the child among some endpoints.
    RandomSubsetting {
        /// How many; never zero.
        size: u32,
        /// What happens among them.
        child: Box<LbPolicy>,
    },
    /// `pick_first`: the first endpoint that answers.
    PickFirst {
        /// Shuffle the endpoints first (A62).
        shuffle: bool,
    },
}

impl fmt::Display for LbPolicy {
    /// The names of gRPC's registry, a parent before its child.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrrLocality(child) => write!(f, "wrr_locality of {child}"),
            Self::RoundRobin => f.write_str("round_robin"),
            Self::RingHash(_) => f.write_str("ring_hash"),
            Self::LeastRequest { choices } => write!(f, "least_request of {choices} choices"),
            Self::WeightedRoundRobin(_) => f.write_str("weighted_round_robin"),
            Self::RandomSubsetting { size, child } => write!(f, "random_subsetting to {size} of {child}"),
            Self::PickFirst { shuffle: false } => f.write_str("pick_first"),
            Self::PickFirst { shuffle: true } => f.write_str("pick_first of shuffled endpoints"),
        }
    }
}

/// How one policy is named and read. A new policy is one more of these in [`POLICIES`], and an arm in
/// [`LbPolicy::parse_legacy`] if it has an old-style name.
struct PolicyType {
    /// The message that configures it in `load_balancing_policy`.
    message: &'static str,
    /// Its name in gRPC's registry, which a TypedStruct or a JSON config uses.
    name: &'static str,
    /// Reads the message; faults are at it.
    from_message: fn(&Any, Depth, &mut Faults) -> Option<LbPolicy>,
    /// Reads the JSON config; faults are at it.
    from_json: fn(&Struct, Depth, &mut Faults) -> Option<LbPolicy>,
}

const POLICIES: &[PolicyType] = &[
    PolicyType {
        message: "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality",
        name: "xds_wrr_locality_experimental",
        from_message: wrr_locality,
        from_json: wrr_locality_json,
    },
    PolicyType {
        message: "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
        name: "round_robin",
        from_message: round_robin,
        from_json: |_, _, _| Some(LbPolicy::RoundRobin),
    },
    PolicyType {
        message: "envoy.extensions.load_balancing_policies.pick_first.v3.PickFirst",
        name: "pick_first",
        from_message: pick_first,
        from_json: pick_first_json,
    },
    ring_hash::POLICY,
    least_request::POLICY,
    weighted_round_robin::POLICY,
    random_subsetting::POLICY,
];

impl LbPolicy {
    /// The policy of a Cluster; `faults` is at the Cluster.
    pub(crate) fn parse(pb: &pb::Cluster, faults: &mut Faults) -> Option<Self> {
        match &pb.load_balancing_policy {
            // the old fields do not count beside the new one.
            Some(policy) => faults.field("load_balancing_policy", |f| Self::parse_list(policy, Depth::TOP, f)),
            None => Self::parse_legacy(pb, faults),
        }
    }

    /// What a cluster without any setting has.
    pub(crate) fn default_for_cluster() -> Self {
        Self::WrrLocality(Box::new(Self::RoundRobin))
    }

    /// The old enum and its configs; `faults` is at the Cluster.
    fn parse_legacy(pb: &pb::Cluster, faults: &mut Faults) -> Option<Self> {
        let expected = "expected ROUND_ROBIN, RING_HASH or LEAST_REQUEST";
        match (LegacyPolicy::try_from(pb.lb_policy), &pb.lb_config) {
            (Ok(LegacyPolicy::RoundRobin), _) => Some(Self::default_for_cluster()),
            (Ok(LegacyPolicy::RingHash), Some(LbConfig::RingHashLbConfig(config))) => {
                faults.field("ring_hash_lb_config", |f| ring_hash::from_legacy(config, f))
            }
            (Ok(LegacyPolicy::RingHash), _) => ring_hash::from_legacy(&Default::default(), faults),
            (Ok(LegacyPolicy::LeastRequest), Some(LbConfig::LeastRequestLbConfig(config))) => {
                let child = faults.field("least_request_lb_config", |f| least_request::from_legacy(config, f))?;
                Some(Self::WrrLocality(Box::new(child)))
            }
            (Ok(LegacyPolicy::LeastRequest), _) => {
                let child = least_request::from_legacy(&Default::default(), faults)?;
                Some(Self::WrrLocality(Box::new(child)))
            }
            (Ok(other), _) => {
                let fault = format!("{} is not supported: {expected}", other.as_str_name());
                faults.field("lb_policy", |f| f.add(fault));
                None
            }
            (Err(_), _) => {
                faults.field("lb_policy", |f| f.add(format!("unknown value {}: {expected}", pb.lb_policy)));
                None
            }
        }
    }

    /// The first policy of a list that we know; `faults` is at the LoadBalancingPolicy.
    fn parse_list(pb: &pb::LoadBalancingPolicy, depth: Depth, faults: &mut Faults) -> Option<Self> {
        faults.field("policies", |f| {
            let mut skipped = Vec::new();
            for (i, policy) in pb.policies.iter().enumerate() {
                let choice = f.index(i, |f| {
                    f.field("typed_extension_config.typed_config", |f| {
                        match policy.typed_extension_config.as_ref().and_then(|config| config.typed_config.as_ref()) {
                            Some(any) => Choice::of_any(any, depth, f),
                            None => {
                                f.add("must be set");
                                Choice::Faulty
                            }
                        }
                    })
                });
                match choice {
                    Choice::Policy(policy) => return Some(policy),
                    Choice::Faulty => return None,
                    Choice::Unknown(name) => skipped.push(name),
                }
            }
            f.add(none_supported(&skipped));
            None
        })
    }

    /// The first policy of a JSON list `[{"name": {config}}]` that we know; `faults` is at the list.
    fn parse_json_list(list: &[Value], depth: Depth, faults: &mut Faults) -> Option<Self> {
        let mut skipped = Vec::new();
        for (i, entry) in list.iter().enumerate() {
            let choice = faults.index(i, |f| match single_entry(entry) {
                Some((name, config)) => match POLICIES.iter().find(|policy| policy.name == name) {
                    Some(policy) => Choice::from(f.key(name, |f| (policy.from_json)(config, depth, f))),
                    None => Choice::Unknown(name.to_owned()),
                },
                None => {
                    f.add("must be an object with one key, the name of a policy, and its config, an object");
                    Choice::Faulty
                }
            });
            match choice {
                Choice::Policy(policy) => return Some(policy),
                Choice::Faulty => return None,
                Choice::Unknown(name) => skipped.push(name),
            }
        }
        faults.add(none_supported(&skipped));
        None
    }
}

/// What became of one entry of a list of policies.
enum Choice {
    /// We know it: it is the one.
    Policy(LbPolicy),
    /// We know it, but cannot use it; or it is no policy at all. No further entry is tried.
    Faulty,
    /// We do not know it, and go on to the next.
    Unknown(String),
}

impl From<Option<LbPolicy>> for Choice {
    fn from(policy: Option<LbPolicy>) -> Self {
        policy.map_or(Self::Faulty, Self::Policy)
    }
}

impl Choice {
    /// `faults` is at the Any.
    fn of_any(any: &Any, depth: Depth, faults: &mut Faults) -> Self {
        match fields::any_type(any, faults) {
            None => Self::Faulty,
            Some("xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct") => Self::of_typed_struct(any, depth, faults),
            Some(message) => match POLICIES.iter().find(|policy| policy.message == message) {
                Some(policy) => Self::from((policy.from_message)(any, depth, faults)),
                None => Self::Unknown(message.to_owned()),
            },
        }
    }

    /// A policy by its registered name, with its config as JSON.
    fn of_typed_struct(any: &Any, depth: Depth, faults: &mut Faults) -> Self {
        let inner = match TypedStruct::decode(any.value.as_slice()) {
            Ok(inner) => inner,
            Err(error) => {
                faults.field("value", |f| f.add(format!("is not a TypedStruct: {error}")));
                return Self::Faulty;
            }
        };
        faults.field("value", |f| {
            let named = Any { type_url: inner.type_url, value: Vec::new() };
            let Some(name) = fields::any_type(&named, f) else { return Self::Faulty };
            match POLICIES.iter().find(|policy| policy.name == name) {
                Some(policy) => Self::from((policy.from_json)(&inner.value.unwrap_or_default(), depth, f)),
                None => Self::Unknown(name.to_owned()),
            }
        })
    }
}

/// How many lists of policies are around the current one.
#[derive(Clone, Copy)]
struct Depth(usize);

impl Depth {
    const TOP: Self = Self(1);
    ///
    const MAX: usize = 16;

    fn deeper(self, faults: &mut Faults) -> Option<Self> {
        if self.0 == Self::MAX {
            faults.add(format!("policies are nested more than {} deep", Self::MAX));
            return None;
        }
        Some(Self(self.0 + 1))
    }
}

/// `xds.type.v3.TypedStruct` and `udpa.type.v1.TypedStruct`, which have the same form.
#[derive(Clone, PartialEq, prost::Message)]
struct TypedStruct {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Struct>,
}

fn wrr_locality(any: &Any, depth: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let pb: pb_policies::wrr_locality::v3::WrrLocality = fields::unpack(any, faults)?;
    faults.field("endpoint_picking_policy", |f| match &pb.endpoint_picking_policy {
        Some(child) => {
            let depth = depth.deeper(f)?;
            LbPolicy::parse_list(child, depth, f).map(|child| LbPolicy::WrrLocality(Box::new(child)))
        }
        None => {
            f.add("must be set");
            None
        }
    })
}

fn wrr_locality_json(config: &Struct, depth: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    faults.field("childPolicy", |f| match json::field(config, "childPolicy") {
        Some(Kind::ListValue(list)) => {
            let depth = depth.deeper(f)?;
            LbPolicy::parse_json_list(&list.values, depth, f).map(|child| LbPolicy::WrrLocality(Box::new(child)))
        }
        _ => {
            f.add("must be a list of policies");
            None
        }
    })
}

fn round_robin(any: &Any, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let _: pb_policies::round_robin::v3::RoundRobin = fields::unpack(any, faults)?;
    Some(LbPolicy::RoundRobin)
}

fn pick_first(any: &Any, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let pb: pb_policies::pick_first::v3::PickFirst = fields::unpack(any, faults)?;
    Some(LbPolicy::PickFirst { shuffle: pb.shuffle_address_list })
}

fn pick_first_json(config: &Struct, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    json::boolean(config, "shuffleAddressList", faults).map(|shuffle| LbPolicy::PickFirst { shuffle })
}

/// The only key of an object and its value, if that is an object too.
fn single_entry(value: &Value) -> Option<(&str, &Struct)> {
    let Some(Kind::StructValue(object)) = &value.kind else { return None };
    let mut entries = object.fields.iter();
    match (entries.next(), entries.next()) {
        (Some((name, Value { kind: Some(Kind::StructValue(config)) })), None) => Some((name, config)),
        _ => None,
    }
}

fn none_supported(skipped: &[String]) -> String {
    if skipped.is_empty() {
        return "must not be empty".to_owned();
    }
    format!("no policy is supported: found {}", skipped.join(", "))
}

#[cfg(test)]
mod tests;
