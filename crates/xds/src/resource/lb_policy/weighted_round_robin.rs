//! weighted_round_robin: endpoints by the load that they report (A58, A114).

use std::hash::{Hash, Hasher};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3 as pb;
use envoy_types::pb::google::protobuf::{Any, Duration as PbDuration, Struct};

use super::super::fields;
use super::{Depth, LbPolicy, PolicyType, json};
use crate::invalid::Faults;

/// How endpoints are weighed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedRoundRobinConfig {
    /// Ask endpoints for a report this often; absent, reports come with the answers to RPCs.
    pub oob_reporting_period: Option<Duration>,
    /// An endpoint must have reported for this long before its weight counts.
    pub blackout_period: Duration,
    /// A weight counts no more if no report has come for this long.
    pub weight_expiration_period: Duration,
    /// How often weights are looked at; at least 100 ms.
    pub weight_update_period: Duration,
    /// What reports are read for.
    pub weighing: Weighing,
}

/// How a weight is made of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Weighing {
    /// What errors count.
    pub error_utilization_penalty: Penalty,
    /// What counts as utilization: the largest of these, if any is reported (A114).
    pub metrics: Vec<Metric>,
}

/// How much errors count: finite, not negative.
#[derive(Clone, Copy, Debug)]
pub struct Penalty(f32);

/// A number in a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// `application_utilization`.
    ApplicationUtilization,
    /// `cpu_utilization`.
    CpuUtilization,
    /// `mem_utilization`.
    MemUtilization,
    /// An entry of `named_metrics`.
    Named(String),
    /// An entry of `utilization`.
    Utilization(String),
}

pub(super) const POLICY: PolicyType = PolicyType {
    message: "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
    name: "weighted_round_robin",
    from_message,
    from_json,
};

impl Penalty {
    /// A penalty; `None` if it is negative or no number.
    pub fn new(value: f32) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then_some(Self(value))
    }

    /// Its value.
    pub fn get(self) -> f32 {
        self.0
    }
}

impl PartialEq for Penalty {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Penalty {}

impl Hash for Penalty {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Default for Weighing {
    fn default() -> Self {
        Self { error_utilization_penalty: Penalty(1.0), metrics: Vec::new() }
    }
}

impl Metric {
    /// A metric by its name; `None` if no report can have it (A114).
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.split_once('.') {
            None => match name {
                "application_utilization" => Self::ApplicationUtilization,
                "cpu_utilization" => Self::CpuUtilization,
                "mem_utilization" => Self::MemUtilization,
                _ => return None,
            },
            Some(("named_metrics", key)) => Self::Named(key.to_owned()),
            Some(("utilization", key)) => Self::Utilization(key.to_owned()),
            Some(_) => return None,
        })
    }
}

fn from_message(any: &Any, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let pb: pb::ClientSideWeightedRoundRobin = fields::unpack(any, faults)?;
    let mut duration = |name: &'static str, pb: &Option<PbDuration>, default: Duration| match pb {
        Some(pb) => faults.field(name, |f| fields::duration(pb, f)),
        None => Some(default),
    };
    let oob_period = duration("oob_reporting_period", &pb.oob_reporting_period, OOB_PERIOD);
    let blackout = duration("blackout_period", &pb.blackout_period, BLACKOUT);
    let expiration = duration("weight_expiration_period", &pb.weight_expiration_period, EXPIRATION);
    let update = duration("weight_update_period", &pb.weight_update_period, UPDATE);
    let penalty = pb.error_utilization_penalty.map_or(1.0, |penalty| penalty.value);
    let penalty = check_penalty(penalty, "error_utilization_penalty", faults);
    Some(LbPolicy::WeightedRoundRobin(Box::new(WeightedRoundRobinConfig {
        oob_reporting_period: oob_period.filter(|_| pb.enable_oob_load_report.is_some_and(|on| on.value)),
        blackout_period: blackout?,
        weight_expiration_period: expiration?,
        weight_update_period: update?.max(MIN_UPDATE),
        weighing: weighing(penalty?, &pb.metric_names_for_computing_utilization),
    })))
}

fn from_json(config: &Struct, _: Depth, faults: &mut Faults) -> Option<LbPolicy> {
    let oob = json::boolean(config, "enableOobLoadReport", faults);
    let oob_period = json::duration(config, "oobReportingPeriod", OOB_PERIOD, faults);
    let blackout = json::duration(config, "blackoutPeriod", BLACKOUT, faults);
    let expiration = json::duration(config, "weightExpirationPeriod", EXPIRATION, faults);
    let update = json::duration(config, "weightUpdatePeriod", UPDATE, faults);
    let penalty = json::number(config, "errorUtilizationPenalty", 1.0, faults);
    let penalty = penalty.and_then(|penalty| check_penalty(penalty as f32, "errorUtilizationPenalty", faults));
    let metrics = json::texts(config, "metricNamesForComputingUtilization", faults);
    let (oob, oob_period) = (oob?, oob_period?);
    Some(LbPolicy::WeightedRoundRobin(Box::new(WeightedRoundRobinConfig {
        oob_reporting_period: oob.then_some(oob_period),
        blackout_period: blackout?,
        weight_expiration_period: expiration?,
        weight_update_period: update?.max(MIN_UPDATE),
        weighing: weighing(penalty?, &metrics?),
    })))
}

fn weighing(error_utilization_penalty: Penalty, metrics: &[String]) -> Weighing {
    Weighing { error_utilization_penalty, metrics: metrics.iter().filter_map(|name| Metric::parse(name)).collect() }
}

fn check_penalty(value: f32, name: &'static str, faults: &mut Faults) -> Option<Penalty> {
    let penalty = Penalty::new(value);
    if penalty.is_none() {
        faults.field(name, |f| f.add(format!("is {value}: expected a number that is not negative")));
    }
    penalty
}

const OOB_PERIOD: Duration = Duration::from_secs(10);
const BLACKOUT: Duration = Duration::from_secs(10);
const EXPIRATION: Duration = Duration::from_secs(180);
const UPDATE: Duration = Duration::from_secs(1);
const MIN_UPDATE: Duration = Duration::from_millis(100);
