//! The instruments: names, units and buckets, word for word as the gRFCs have them.

use std::collections::BTreeMap;

use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};

use super::registry::Registry;

/// Every instrument that is on.
pub(super) struct Instruments {
    pub(super) attempt_started: Option<Counter<u64>>,
    pub(super) attempt_duration: Option<Histogram<f64>>,
    pub(super) attempt_sent: Option<Histogram<u64>>,
    pub(super) attempt_received: Option<Histogram<u64>>,
    pub(super) call_duration: Option<Histogram<f64>>,
    pub(super) call_retries: Option<Histogram<u64>>,
    pub(super) call_transparent_retries: Option<Histogram<u64>>,
    pub(super) call_retry_delay: Option<Histogram<f64>>,
    pub(super) disconnections: Option<Counter<u64>>,
    pub(super) attempts_succeeded: Option<Counter<u64>>,
    pub(super) attempts_failed: Option<Counter<u64>>,
    pub(super) open_connections: Option<UpDownCounter<i64>>,
    pub(super) ejections_enforced: Option<Counter<u64>>,
    pub(super) ejections_unenforced: Option<Counter<u64>>,
    pub(super) rr_fallback: Option<Counter<u64>>,
    pub(super) weights_not_yet_usable: Option<Counter<u64>>,
    pub(super) weights_stale: Option<Counter<u64>>,
    pub(super) weights: Option<Histogram<f64>>,
    pub(super) server_failure: Option<Counter<u64>>,
    pub(super) updates_valid: Option<Counter<u64>>,
    pub(super) updates_invalid: Option<Counter<u64>>,
    /// What the gauges of XdsClients show; none if they are off.
    pub(super) xds: Option<Registry>,
}

/// What a metric is.
pub(super) struct Metric {
    pub(super) name: &'static str,
    unit: &'static str,
    description: &'static str,
    /// Those that are not are off unless asked for (A79).
    stable: bool,
}

/// Which metrics the user wants.
pub(super) struct Choice {
    pub(super) experimental: bool,
    pub(super) by_name: BTreeMap<String, bool>,
}

impl Instruments {
    /// Those that are on; none without a meter.
    pub(super) fn new(meter: Option<&Meter>, choice: &Choice) -> Self {
        let on = |metric: &Metric| meter.filter(|_| choice.wants(metric));
        let counter = |metric: &Metric| {
            let builder = on(metric)?.u64_counter(metric.name);
            Some(builder.with_unit(metric.unit).with_description(metric.description).build())
        };
        let mut xds = None;
        if let Some(meter) = on(&CONNECTED) {
            let registry: &Registry = xds.get_or_insert_default();
            let (registry, metric) = (registry.clone(), CONNECTED);
            let builder = meter.u64_observable_gauge(metric.name).with_unit(metric.unit);
            builder.with_description(metric.description).with_callback(move |to| registry.connected(to)).build();
        }
        if let Some(meter) = on(&RESOURCES) {
            let registry: &Registry = xds.get_or_insert_default();
            let (registry, metric) = (registry.clone(), RESOURCES);
            let builder = meter.u64_observable_gauge(metric.name).with_unit(metric.unit);
            builder.with_description(metric.description).with_callback(move |to| registry.resources(to)).build();
        }
        let seconds = |metric: &Metric| {
            let builder = on(metric)?.f64_histogram(metric.name).with_boundaries(LATENCY.into());
            Some(builder.with_unit(metric.unit).with_description(metric.description).build())
        };
        let histogram = |metric: &Metric, boundaries: &[f64]| {
            let builder = on(metric)?.u64_histogram(metric.name).with_boundaries(boundaries.into());
            Some(builder.with_unit(metric.unit).with_description(metric.description).build())
        };
        Self {
            attempt_started: counter(&ATTEMPT_STARTED),
            attempt_duration: seconds(&ATTEMPT_DURATION),
            attempt_sent: histogram(&ATTEMPT_SENT, &SIZE),
            attempt_received: histogram(&ATTEMPT_RECEIVED, &SIZE),
            call_duration: seconds(&CALL_DURATION),
            call_retries: histogram(&CALL_RETRIES, &RETRIES),
            call_transparent_retries: histogram(&CALL_TRANSPARENT_RETRIES, &TRANSPARENT_RETRIES),
            call_retry_delay: seconds(&CALL_RETRY_DELAY),
            disconnections: counter(&DISCONNECTIONS),
            attempts_succeeded: counter(&ATTEMPTS_SUCCEEDED),
            attempts_failed: counter(&ATTEMPTS_FAILED),
            open_connections: on(&OPEN_CONNECTIONS).map(|meter| {
                let metric = OPEN_CONNECTIONS;
                let builder = meter.i64_up_down_counter(metric.name).with_unit(metric.unit);
                builder.with_description(metric.description).build()
            }),
            ejections_enforced: counter(&EJECTIONS_ENFORCED),
            ejections_unenforced: counter(&EJECTIONS_UNENFORCED),
            rr_fallback: counter(&RR_FALLBACK),
            weights_not_yet_usable: counter(&WEIGHTS_NOT_YET_USABLE),
            weights_stale: counter(&WEIGHTS_STALE),
            // A78 names no buckets.
            weights: on(&WEIGHTS).map(|meter| {
                let metric = WEIGHTS;
                let builder = meter.f64_histogram(metric.name).with_unit(metric.unit);
                builder.with_description(metric.description).build()
            }),
            server_failure: counter(&SERVER_FAILURE),
            updates_valid: counter(&UPDATES_VALID),
            updates_invalid: counter(&UPDATES_INVALID),
            xds,
        }
    }

    /// Whether any metric of calls or attempts is on.
    pub(super) fn of_calls(&self) -> bool {
        let counts = [&self.call_retries, &self.call_transparent_retries];
        let times = [&self.call_duration, &self.call_retry_delay];
        let calls = counts.into_iter().any(Option::is_some) || times.into_iter().any(Option::is_some);
        calls || self.attempt_started.is_some() || self.of_attempts()
    }

    /// Whether any metric of attempts that ended is on.
    pub(super) fn of_attempts(&self) -> bool {
        self.attempt_duration.is_some() || self.attempt_sent.is_some() || self.attempt_received.is_some()
    }

    /// Whether any metric of subchannels is on.
    pub(super) fn of_subchannels(&self) -> bool {
        let counters = [&self.disconnections, &self.attempts_succeeded, &self.attempts_failed];
        self.open_connections.is_some() || counters.into_iter().any(Option::is_some)
    }
}

impl Choice {
    fn wants(&self, metric: &Metric) -> bool {
        self.by_name.get(metric.name).copied().unwrap_or(metric.stable || self.experimental)
    }
}

// Attempts and calls (A66).
const ATTEMPT_STARTED: Metric = Metric {
    name: "grpc.client.attempt.started",
    unit: "{attempt}",
    description: "Number of client call attempts started.",
    stable: true,
};
const ATTEMPT_DURATION: Metric = Metric {
    name: "grpc.client.attempt.duration",
    unit: "s",
    description: "End-to-end time taken to complete a client call attempt.",
    stable: true,
};
const ATTEMPT_SENT: Metric = Metric {
    name: "grpc.client.attempt.sent_total_compressed_message_size",
    unit: "By",
    description: "Compressed message bytes sent per client call attempt.",
    stable: true,
};
const ATTEMPT_RECEIVED: Metric = Metric {
    name: "grpc.client.attempt.rcvd_total_compressed_message_size",
    unit: "By",
    description: "Compressed message bytes received per client call attempt.",
    stable: true,
};
const CALL_DURATION: Metric = Metric {
    name: "grpc.client.call.duration",
    unit: "s",
    description: "Time taken to complete a call from the perspective of the application.",
    stable: true,
};

// Retries (A96).
const CALL_RETRIES: Metric = Metric {
    name: "grpc.client.call.retries",
    unit: "{retry}",
    description: "Number of retries during the client call.",
    stable: false,
};
const CALL_TRANSPARENT_RETRIES: Metric = Metric {
    name: "grpc.client.call.transparent_retries",
    unit: "{transparent_retry}",
    description: "Number of transparent retries during the client call.",
    stable: false,
};
const CALL_RETRY_DELAY: Metric = Metric {
    name: "grpc.client.call.retry_delay",
    unit: "s",
    description: "Total time of delay while there is no active attempt during the client call.",
    stable: false,
};

// Subchannels (A94).
const DISCONNECTIONS: Metric = Metric {
    name: "grpc.subchannel.disconnections",
    unit: "{disconnection}",
    description: "Number of times the selected subchannel becomes disconnected.",
    stable: false,
};
const ATTEMPTS_SUCCEEDED: Metric = Metric {
    name: "grpc.subchannel.connection_attempts_succeeded",
    unit: "{attempt}",
    description: "Number of successful connection attempts.",
    stable: false,
};
const ATTEMPTS_FAILED: Metric = Metric {
    name: "grpc.subchannel.connection_attempts_failed",
    unit: "{attempt}",
    description: "Number of failed connection attempts.",
    stable: false,
};
const OPEN_CONNECTIONS: Metric = Metric {
    name: "grpc.subchannel.open_connections",
    unit: "{connection}",
    description: "Number of open connections.",
    stable: false,
};

// Outlier detection (A91).
const EJECTIONS_ENFORCED: Metric = Metric {
    name: "grpc.lb.outlier_detection.ejections_enforced",
    unit: "{ejection}",
    description: "Enforced outlier ejections by ejection reason.",
    stable: false,
};
const EJECTIONS_UNENFORCED: Metric = Metric {
    name: "grpc.lb.outlier_detection.ejections_unenforced",
    unit: "{ejection}",
    description: "Outliers that were not ejected, by the reason for that.",
    stable: false,
};

// weighted_round_robin (A78).
const RR_FALLBACK: Metric = Metric {
    name: "grpc.lb.wrr.rr_fallback",
    unit: "{update}",
    description: "Scheduler updates with too few usable weights, so that all endpoints have the same share.",
    stable: false,
};
const WEIGHTS_NOT_YET_USABLE: Metric = Metric {
    name: "grpc.lb.wrr.endpoint_weight_not_yet_usable",
    unit: "{endpoint}",
    description: "Endpoints in scheduler updates that have not reported, or not for the blackout period.",
    stable: false,
};
const WEIGHTS_STALE: Metric = Metric {
    name: "grpc.lb.wrr.endpoint_weight_stale",
    unit: "{endpoint}",
    description: "Endpoints in scheduler updates whose latest weight is older than the expiration period.",
    stable: false,
};
const WEIGHTS: Metric = Metric {
    name: "grpc.lb.wrr.endpoint_weights",
    unit: "{weight}",
    description: "Weight of each endpoint in each scheduler update; zero if it is not usable.",
    stable: false,
};

// XdsClient (A78).
const CONNECTED: Metric = Metric {
    name: "grpc.xds_client.connected",
    unit: "{bool}",
    description: "Whether the xDS client has a working ADS stream to the xDS server.",
    stable: false,
};
const SERVER_FAILURE: Metric = Metric {
    name: "grpc.xds_client.server_failure",
    unit: "{failure}",
    description: "Times that an xDS server went from healthy to unhealthy.",
    stable: false,
};
const UPDATES_VALID: Metric = Metric {
    name: "grpc.xds_client.resource_updates_valid",
    unit: "{resource}",
    description: "Resources received that were valid, also those that had not changed.",
    stable: false,
};
const UPDATES_INVALID: Metric = Metric {
    name: "grpc.xds_client.resource_updates_invalid",
    unit: "{resource}",
    description: "Resources received that were invalid.",
    stable: false,
};
const RESOURCES: Metric = Metric {
    name: "grpc.xds_client.resources",
    unit: "{resource}",
    description: "xDS resources by the state of their cache entry.",
    stable: false,
};

/// Every metric.
pub(super) const METRICS: [Metric; 23] = [
    ATTEMPT_STARTED,
    ATTEMPT_DURATION,
    ATTEMPT_SENT,
    ATTEMPT_RECEIVED,
    CALL_DURATION,
    CALL_RETRIES,
    CALL_TRANSPARENT_RETRIES,
    CALL_RETRY_DELAY,
    DISCONNECTIONS,
    ATTEMPTS_SUCCEEDED,
    ATTEMPTS_FAILED,
    OPEN_CONNECTIONS,
    EJECTIONS_ENFORCED,
    EJECTIONS_UNENFORCED,
    RR_FALLBACK,
    WEIGHTS_NOT_YET_USABLE,
    WEIGHTS_STALE,
    WEIGHTS,
    CONNECTED,
    SERVER_FAILURE,
    UPDATES_VALID,
    UPDATES_INVALID,
    RESOURCES,
];

// Buckets (S-62, A96).
const LATENCY: [f64; 41] = [
    0.0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01,
    0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8,
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];
const SIZE: [f64; 14] = [
    0.0,
    1024.0,
    2048.0,
    4096.0,
    16384.0,
    65536.0,
    262144.0,
    1048576.0,
    4194304.0,
    16777216.0,
    67108864.0,
    268435456.0,
    1073741824.0,
    4294967296.0,
];
const RETRIES: [f64; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];
const TRANSPARENT_RETRIES: [f64; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0];
