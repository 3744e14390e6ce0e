//! Retry policies of virtual hosts and routes (A44).

use std::collections::BTreeSet;
use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::config::route::v3::retry_policy::RetryBackOff;

use super::super::fields;
use crate::Code;
use crate::invalid::Faults;

/// When and how an RPC is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    /// gRPC status codes that allow a retry, ascending; never empty.
    pub retry_on: Vec<Code>,
    /// How many retries after the first attempt; at least one.
    pub num_retries: u32,
    /// First backoff.
    pub base_interval: Duration,
    /// Largest backoff.
    pub max_interval: Duration,
}

impl RetryPolicy {
    /// Checks a RetryPolicy; `faults` is at it. `None` if it has faults or names no status that we know.
    pub(super) fn parse(pb: &pb::RetryPolicy, faults: &mut Faults) -> Option<Self> {
        let retry_on: BTreeSet<Code> = pb.retry_on.split(',').filter_map(|name| status_code(name.trim())).collect();
        let num_retries = pb.num_retries.map_or(DEFAULT_NUM_RETRIES, |pb| pb.value);
        if num_retries == 0 {
            faults.field("num_retries", |f| f.add("must be greater than zero"));
        }
        let (base_interval, max_interval) = match &pb.retry_back_off {
            Some(pb) => faults.field("retry_back_off", |f| intervals(pb, f))?,
            None => DEFAULT_INTERVALS,
        };
        let retry_on = Vec::from_iter(retry_on);
        (!retry_on.is_empty()).then_some(Self { retry_on, num_retries, base_interval, max_interval })
    }
}

/// The first and the largest backoff; `faults` is at the RetryBackOff.
fn intervals(pb: &RetryBackOff, faults: &mut Faults) -> Option<(Duration, Duration)> {
    let base = faults.field("base_interval", |f| match &pb.base_interval {
        Some(pb) => positive(pb, f),
        None => {
            f.add("must be set");
            None
        }
    });
    let max = match &pb.max_interval {
        Some(pb) => Some(faults.field("max_interval", |f| positive(pb, f))?),
        None => None,
    };
    let base = base?;
    if max.is_some_and(|max| max < base) {
        faults.field("max_interval", |f| f.add("must not be less than base_interval"));
        return None;
    }
    let base = base.max(LEAST_INTERVAL);
    let max = max.map_or(base.saturating_mul(10), |max| max.max(LEAST_INTERVAL));
    Some((base, max))
}

fn positive(pb: &envoy_types::pb::google::protobuf::Duration, faults: &mut Faults) -> Option<Duration> {
    let duration = fields::duration(pb, faults)?;
    if duration.is_zero() {
        faults.add("must be greater than zero");
        return None;
    }
    Some(duration)
}

/// The gRPC status code of a condition in `retry_on`; others are ignored.
fn status_code(name: &str) -> Option<Code> {
    Some(match name {
        "cancelled" => Code::Cancelled,
        "deadline-exceeded" => Code::DeadlineExceeded,
        "resource-exhausted" => Code::ResourceExhausted,
        "internal" => Code::Internal,
        "unavailable" => Code::Unavailable,
        _ => return None,
    })
}

/// Retries if the policy does not say how many.
const DEFAULT_NUM_RETRIES: u32 = 1;

/// First and largest backoff if the policy does not say.
const DEFAULT_INTERVALS: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));

/// Shorter intervals are raised to this.
const LEAST_INTERVAL: Duration = Duration::from_millis(1);
