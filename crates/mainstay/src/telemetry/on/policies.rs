//! Metrics of policies: outlier detection (A91, S-75).

use std::sync::Arc;

use mainstay_lb::{DetectionMethod, Observation, Origin, UnenforcedReason};
use opentelemetry::KeyValue;

use super::TARGET;
use super::builder::{BACKEND_SERVICE, Telemetry};
use super::subchannels::SubchannelObserver;

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
        let Observation::Outlier { cluster, method, unenforced } = observation else { return };
        let instruments = telemetry.instruments();
        let counter = match unenforced {
            None => &instruments.ejections_enforced,
            Some(_) => &instruments.ejections_unenforced,
        };
        let Some(counter) = counter else { return };
        let mut labels = vec![KeyValue::new(TARGET, target.clone()), KeyValue::new(METHOD, name(*method))];
        labels.extend(unenforced.map(|reason| KeyValue::new(REASON, why(reason))));
        if telemetry.labels().backend_service {
            labels.push(KeyValue::new(BACKEND_SERVICE, cluster.clone()));
        }
        counter.add(1, &labels);
    }
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
