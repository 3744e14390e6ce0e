//! Metrics of policies: outlier detection (A91, S-75), weighted_round_robin (A78, A89).

use std::sync::Arc;

use mainstay_lb::{DetectionMethod, Observation, Origin, UnenforcedReason};
use opentelemetry::KeyValue;

use super::TARGET;
use super::builder::{BACKEND_SERVICE, Telemetry};
use super::subchannels::{SubchannelObserver, origin_labels};

/// Sees what the policies of a channel do, and what becomes of its subchannels.
pub(crate) struct LbObserver(Option<(Telemetry, Arc<str>)>);

impl LbObserver {
    /// Of the channel to `target`.
    pub(crate) fn new(telemetry: Option<&Telemetry>, target: &Arc<str>) -> Self {
        Self(telemetry.map(|telemetry| (telemetry.clone(), target.clone())))
    }

    /// The observer of a new subchannel.
    pub(crate) fn subchannel(&self, origin: &Origin, secure: bool) -> SubchannelObserver {
        match &self.0 {
            Some((telemetry, target)) => SubchannelObserver::new(telemetry, target, origin, secure),
            None => SubchannelObserver::none(),
        }
    }

    /// Counts what a policy did.
    pub(crate) fn note(&self, observation: &Observation) {
        let Some((telemetry, target)) = &self.0 else { return };
        match observation {
            Observation::Outlier { cluster, method, unenforced } => {
                note_outlier(telemetry, target, cluster, *method, *unenforced);
            }
            Observation::Weights { cluster, locality, not_yet_usable, stale, weights } => {
                let mut labels = vec![KeyValue::new(TARGET, target.clone())];
                origin_labels(telemetry.labels(), Some(cluster), locality.as_deref(), &mut labels);
                let instruments = telemetry.instruments();
                let usable = weights.len() as u64 - not_yet_usable - stale;
                let counts = [
                    (u64::from(usable < 2), &instruments.rr_fallback),
                    (*not_yet_usable, &instruments.weights_not_yet_usable),
                    (*stale, &instruments.weights_stale),
                ];
                for (count, counter) in counts {
                    if let (1.., Some(counter)) = (count, counter) {
                        counter.add(count, &labels);
                    }
                }
                if let Some(histogram) = &instruments.weights {
                    weights.iter().for_each(|weight| histogram.record(*weight, &labels));
                }
            }
            Observation::SecurityIgnored { .. }
            | Observation::Ejection { .. }
            | Observation::Priority { .. }
            | Observation::Leaf { .. } => {}
        }
    }
}

fn note_outlier(
    telemetry: &Telemetry,
    target: &Arc<str>,
    cluster: &Arc<str>,
    method: DetectionMethod,
    unenforced: Option<UnenforcedReason>,
) {
    let instruments = telemetry.instruments();
    let counter = match unenforced {
        None => &instruments.ejections_enforced,
        Some(_) => &instruments.ejections_unenforced,
    };
    let Some(counter) = counter else { return };
    let mut labels = vec![KeyValue::new(TARGET, target.clone()), KeyValue::new(METHOD, name(method))];
    labels.extend(unenforced.map(|reason| KeyValue::new(REASON, why(reason))));
    if telemetry.labels().backend_service {
        labels.push(KeyValue::new(BACKEND_SERVICE, cluster.clone()));
    }
    counter.add(1, &labels);
}

fn name(method: DetectionMethod) -> &'static str {
    match method {
        DetectionMethod::SuccessRate => "success_rate",
        DetectionMethod::FailurePercentage => "failure_percentage",
    }
}

fn why(reason: UnenforcedReason) -> &'static str {
    match reason {
        UnenforcedReason::EnforcementPercentage => "enforcement_percentage",
        UnenforcedReason::MaxEjectionOverflow => "max_ejection_overflow",
    }
}

const METHOD: &str = "grpc.lb.outlier_detection.detection_method";
const REASON: &str = "grpc.lb.outlier_detection.unenforced_reason";
