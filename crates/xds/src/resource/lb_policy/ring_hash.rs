//! ring_hash (A42, A76).

use envoy_types::pb::envoy::config::cluster::v3::cluster::RingHashLbConfig;
use envoy_types::pb::envoy::config::cluster::v3::cluster::ring_hash_lb_config::HashFunction as LegacyHashFunction;
use envoy_types::pb::envoy::extensions::load_balancing_policies::ring_hash::v3 as pb;
use envoy_types::pb::google::protobuf::{Any, Struct, UInt64Value};
use pb::ring_hash::HashFunction;

use super::super::fields::{self, excerpt};
use super::{Depth, LbPolicy, PolicyType, json};
use crate::invalid::Faults;

/// How a ring is made. Sizes are in `1..=8388608`, the least not above the most.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RingHashConfig {
    /// So many entries the ring has at least.
    pub min_ring_size: u32,
    /// So many it has at most.
    pub max_ring_size: u32,
    /// The header that is hashed instead of what the route says: lower case, and no binary one (A76).
    pub request_hash_header: Option<String>,
}

pub(super) const POLICY: PolicyType = PolicyType {
    message: "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash",
    name: "ring_hash_experimental",
    from_message,
    from_json,
};

fn from_message(any: &Any, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let pb: pb::RingHash = fields::unpack(any, faults)?;
    let before = faults.count();
    match HashFunction::try_from(pb.hash_function) {
        Ok(HashFunction::DefaultHash | HashFunction::XxHash) => {}
        Ok(HashFunction::MurmurHash2) | Err(_) => unsupported_hash(pb.hash_function, faults),
    }
    let config = sizes(pb.minimum_ring_size.as_ref(), pb.maximum_ring_size.as_ref(), faults);
    (faults.count() == before).then_some(LbPolicy::RingHash(config?))
}

/// The old config of a Cluster; `faults` is at it.
pub(super) fn from_legacy(pb: &RingHashLbConfig, faults: &mut Faults) -> Option<LbPolicy> {
    let before = faults.count();
    if LegacyHashFunction::try_from(pb.hash_function) != Ok(LegacyHashFunction::XxHash) {
        unsupported_hash(pb.hash_function, faults);
    }
    let config = sizes(pb.minimum_ring_size.as_ref(), pb.maximum_ring_size.as_ref(), faults);
    (faults.count() == before).then_some(LbPolicy::RingHash(config?))
}

fn from_json(config: &Struct, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let min = json::whole(config, "minRingSize", MIN_DEFAULT, faults);
    let max = json::whole(config, "maxRingSize", MAX_DEFAULT_JSON, faults);
    let header = json::text(config, "requestHashHeader", faults).and_then(|name| header(name, faults));
    let config = ring(min?, max?, ["minRingSize", "maxRingSize"], faults)?;
    Some(LbPolicy::RingHash(RingHashConfig { request_hash_header: header?, ..config }))
}

fn sizes(min: Option<&UInt64Value>, max: Option<&UInt64Value>, faults: &mut Faults) -> Option<RingHashConfig> {
    let size = |pb: Option<&UInt64Value>, default| pb.map_or(default, |pb| pb.value);
    //
    ring(size(min, MIN_DEFAULT), size(max, MAX), ["minimum_ring_size", "maximum_ring_size"], faults)
}

fn ring(min: u64, max: u64, names: [&'static str; 2], faults: &mut Faults) -> Option<RingHashConfig> {
    let mut size = |name, value: u64| {
        let in_range = u32::try_from(value).ok().filter(|_| (1..=MAX).contains(&value));
        if in_range.is_none() {
            faults.field(name, |f| f.add(format!("is {value}: expected 1 to {MAX}")));
        }
        in_range
    };
    let (min_ring_size, max_ring_size) = (size(names[0], min), size(names[1], max));
    let (min_ring_size, max_ring_size) = (min_ring_size?, max_ring_size?);
    if min_ring_size > max_ring_size {
        faults.field(names[0], |f| f.add(format!("is {min}, above {}, which is {max}", names[1])));
        return None;
    }
    Some(RingHashConfig { min_ring_size, max_ring_size, request_hash_header: None })
}

/// The name of a header, none if empty.
fn header(name: &str, faults: &mut Faults) -> Option<Option<String>> {
    if name.is_empty() {
        return Some(None);
    }
    // What HTTP/2 and gRPC allow in names.
    let is_valid = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !is_valid || name.to_ascii_lowercase().ends_with("-bin") {
        faults.field("requestHashHeader", |f| {
            f.add(format!("{} cannot be hashed: expected the name of a header that is not binary", excerpt(name)));
        });
        return None;
    }
    Some(Some(name.to_ascii_lowercase()))
}

fn unsupported_hash(found: i32, faults: &mut Faults) {
    faults.field("hash_function", |f| f.add(format!("value {found} is not supported: expected XX_HASH")));
}

const MIN_DEFAULT: u64 = 1024;
const MAX_DEFAULT_JSON: u64 = 4096;
/// The largest size that a configuration may have.
const MAX: u64 = 8_388_608;
