//! least_request (A48).

use envoy_types::pb::envoy::config::cluster::v3::cluster::LeastRequestLbConfig;
use envoy_types::pb::envoy::extensions::load_balancing_policies::least_request::v3 as pb;
use envoy_types::pb::google::protobuf::{Any, Struct};

use super::super::fields;
use super::{Depth, LbPolicy, PolicyType, json};
use crate::invalid::Faults;

pub(super) const POLICY: PolicyType = PolicyType {
    message: "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
    name: "least_request_experimental",
    from_message,
    from_json,
};

fn from_message(any: &Any, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let pb: pb::LeastRequest = fields::unpack(any, faults)?;
    choices(pb.choice_count.map_or(DEFAULT, |count| count.value.into()), "choice_count", faults)
}

/// The old config of a Cluster; `faults` is at it.
pub(super) fn from_legacy(pb: &LeastRequestLbConfig, faults: &mut Faults) -> Option<LbPolicy> {
    choices(pb.choice_count.map_or(DEFAULT, |count| count.value.into()), "choice_count", faults)
}

fn from_json(config: &Struct, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let count = json::whole(config, "choiceCount", DEFAULT, faults)?;
    choices(count, "choiceCount", faults)
}

fn choices(count: u64, name: &'static str, faults: &mut Faults) -> Option<LbPolicy> {
    if count < 2 {
        faults.field(name, |f| f.add(format!("is {count}: expected at least 2")));
        return None;
    }
    Some(LbPolicy::LeastRequest { choices: count.min(MAX) as u8 })
}

const DEFAULT: u64 = 2;
/// More are not worth their draws (A48).
const MAX: u64 = 10;
