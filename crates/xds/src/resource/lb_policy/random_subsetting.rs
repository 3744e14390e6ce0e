//! random_subsetting: a few endpoints of many, others for each client (A68).

use envoy_types::pb::envoy::extensions::load_balancing_policies::random_subsetting::v3 as pb;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct};

use super::super::fields;
use super::{Depth, LbPolicy, PolicyType, json};
use crate::invalid::Faults;

pub(super) const POLICY: PolicyType = PolicyType {
    message: "envoy.extensions.load_balancing_policies.random_subsetting.v3.RandomSubsetting",
    name: "random_subsetting_experimental",
    from_message,
    from_json,
};

fn from_message(any: &Any, depth: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let pb: pb::RandomSubsetting = fields::unpack(any, faults)?;
    let size = subset_size(pb.subset_size.map_or(0, |size| size.value.into()), "subset_size", faults);
    let child = faults.field("child_policy", |f| match &pb.child_policy {
        Some(child) => LbPolicy::parse_list(child, depth.deeper(f)?, f),
        None => {
            f.add("must be set");
            None
        }
    });
    Some(LbPolicy::RandomSubsetting { size: size?, child: Box::new(child?) })
}

fn from_json(config: &Struct, depth: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let size = json::whole(config, "subsetSize", 0, faults);
    let size = size.and_then(|size| subset_size(size, "subsetSize", faults));
    let child = faults.field("childPolicy", |f| match json::field(config, "childPolicy") {
        Some(Kind::ListValue(list)) => LbPolicy::parse_json_list(&list.values, depth.deeper(f)?, f),
        _ => {
            f.add("must be a list of policies");
            None
        }
    });
    Some(LbPolicy::RandomSubsetting { size: size?, child: Box::new(child?) })
}

fn subset_size(size: u64, name: &'static str, faults: &mut Faults) -> Option<u32> {
    let valid = u32::try_from(size).ok().filter(|size| *size > 0);
    if valid.is_none() {
        faults.field(name, |f| f.add(format!("is {size}: expected 1 to {}", u32::MAX)));
    }
    valid
}
