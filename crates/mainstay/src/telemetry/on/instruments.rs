//! The instruments: names, units and buckets, word for word as the gRFCs have them.

use std::collections::BTreeMap;

use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};

use super::registry::Registry;

/// One line per metric that is told: its field, its kind, its buckets if it has any, whether it is on unless somebody
/// turns it off (A79), its name, its unit and what it says. Then one per gauge, which asks the [`Registry`] by the method
/// of its name.
macro_rules! metrics {
    (
        told {
            $($field:ident: $kind:ty $(=> $buckets:expr)?, $default:ident, $name:literal, $unit:literal, $says:literal;)+
        }
        gauges {
            $($gauge:ident, $gauge_default:ident, $gauge_name:literal, $gauge_unit:literal, $gauge_says:literal;)+
        }
    ) => {
        /// Every instrument that is on.
        pub(super) struct Instruments {
            $(pub(super) $field: Option<$kind>,)+
            /// What the gauges of XdsClients show; none if they are off.
            pub(super) xds: Option<Registry>,
        }

        impl Instruments {
            /// Those that are on; none without a meter.
            pub(super) fn new(meter: Option<&Meter>, choice: &Choice) -> Self {
                let on = |metric: &Metric| meter.filter(|_| choice.wants(metric));
                let mut xds = None;
                $(
                    let metric = Metric::new($gauge_name, $gauge_unit, $gauge_says, is!($gauge_default));
                    if let Some(meter) = on(&metric) {
                        let registry: &Registry = xds.get_or_insert_default();
                        let registry = registry.clone();
                        let builder = meter.u64_observable_gauge(metric.name).with_unit(metric.unit);
                        let builder = builder.with_description(metric.description);
                        builder.with_callback(move |to| registry.$gauge(to)).build();
                    }
                )+
                $(
                    let metric = Metric::new($name, $unit, $says, is!($default));
                    let $field = on(&metric).map(|meter| <$kind>::build(meter, &metric, &[$(&$buckets)?]));
                )+
                Self { $($field,)+ xds }
            }
        }

        /// Every metric.
        pub(super) const METRICS: &[Metric] = &[
            $(Metric::new($name, $unit, $says, is!($default)),)+
            $(Metric::new($gauge_name, $gauge_unit, $gauge_says, is!($gauge_default)),)+
        ];
    };
}

macro_rules! is {
    (on) => {
        true
    };
    (off) => {
        false
    };
}

#[rustfmt::skip] // One line each.
metrics! {
    told {
        // Attempts and calls (A66).
        attempt_started: Counter<u64>, on, "grpc.client.attempt.started", "{attempt}", "Number of client call attempts started.";
        attempt_duration: Histogram<f64> => LATENCY, on, "grpc.client.attempt.duration", "s", "End-to-end time taken to complete a client call attempt.";
        attempt_sent: Histogram<u64> => SIZE, on, "grpc.client.attempt.sent_total_compressed_message_size", "By", "Compressed message bytes sent per client call attempt.";
        attempt_received: Histogram<u64> => SIZE, on, "grpc.client.attempt.rcvd_total_compressed_message_size", "By", "Compressed message bytes received per client call attempt.";
        call_duration: Histogram<f64> => LATENCY, on, "grpc.client.call.duration", "s", "Time taken to complete a call from the perspective of the application.";

        // Calls on servers (A66).
        server_call_started: Counter<u64>, on, "grpc.server.call.started", "{call}", "Number of server calls started.";
        server_call_duration: Histogram<f64> => LATENCY, on, "grpc.server.call.duration", "s", "End-to-end time taken to complete a call from server transport's perspective.";
        server_call_sent: Histogram<u64> => SIZE, on, "grpc.server.call.sent_total_compressed_message_size", "By", "Compressed message bytes sent per server call.";
        server_call_received: Histogram<u64> => SIZE, on, "grpc.server.call.rcvd_total_compressed_message_size", "By", "Compressed message bytes received per server call.";

        // TLS handshakes (A118).
        client_handshakes: Counter<u64>, off, "grpc.client.tls.handshakes", "{handshake}", "Number of TLS handshakes of channels, by how they ended.";
        server_handshakes: Counter<u64>, off, "grpc.server.tls.handshakes", "{handshake}", "Number of TLS handshakes of servers, by how they ended.";

        // Retries (A96).
        call_retries: Histogram<u64> => RETRIES, off, "grpc.client.call.retries", "{retry}", "Number of retries during the client call.";
        call_transparent_retries: Histogram<u64> => TRANSPARENT_RETRIES, off, "grpc.client.call.transparent_retries", "{transparent_retry}", "Number of transparent retries during the client call.";
        call_retry_delay: Histogram<f64> => LATENCY, off, "grpc.client.call.retry_delay", "s", "Total time of delay while there is no active attempt during the client call.";

        // Subchannels (A94).
        disconnections: Counter<u64>, off, "grpc.subchannel.disconnections", "{disconnection}", "Number of times the selected subchannel becomes disconnected.";
        attempts_succeeded: Counter<u64>, off, "grpc.subchannel.connection_attempts_succeeded", "{attempt}", "Number of successful connection attempts.";
        attempts_failed: Counter<u64>, off, "grpc.subchannel.connection_attempts_failed", "{attempt}", "Number of failed connection attempts.";
        open_connections: UpDownCounter<i64>, off, "grpc.subchannel.open_connections", "{connection}", "Number of open connections.";

        // Outlier detection (A91).
        ejections_enforced: Counter<u64>, off, "grpc.lb.outlier_detection.ejections_enforced", "{ejection}", "Enforced outlier ejections by ejection reason.";
        ejections_unenforced: Counter<u64>, off, "grpc.lb.outlier_detection.ejections_unenforced", "{ejection}", "Outliers that were not ejected, by the reason for that.";

        // weighted_round_robin (A78). It names no buckets for weights.
        rr_fallback: Counter<u64>, off, "grpc.lb.wrr.rr_fallback", "{update}", "Scheduler updates with too few usable weights, so that all endpoints have the same share.";
        weights_not_yet_usable: Counter<u64>, off, "grpc.lb.wrr.endpoint_weight_not_yet_usable", "{endpoint}", "Endpoints in scheduler updates that have not reported, or not for the blackout period.";
        weights_stale: Counter<u64>, off, "grpc.lb.wrr.endpoint_weight_stale", "{endpoint}", "Endpoints in scheduler updates whose latest weight is older than the expiration period.";
        weights: Histogram<f64>, off, "grpc.lb.wrr.endpoint_weights", "{weight}", "Weight of each endpoint in each scheduler update; zero if it is not usable.";

        // XdsClient (A78).
        server_failure: Counter<u64>, off, "grpc.xds_client.server_failure", "{failure}", "Times that an xDS server went from healthy to unhealthy.";
        updates_valid: Counter<u64>, off, "grpc.xds_client.resource_updates_valid", "{resource}", "Resources received that were valid, also those that had not changed.";
        updates_invalid: Counter<u64>, off, "grpc.xds_client.resource_updates_invalid", "{resource}", "Resources received that were invalid.";
    }
    gauges {
        connected, off, "grpc.xds_client.connected", "{bool}", "Whether the xDS client has a working ADS stream to the xDS server.";
        delta, off, "mainstay.xds_client.delta", "{bool}", "Whether the ADS stream to the xDS server is of the incremental variant.";
        last_good_age, off, "mainstay.last_good.age", "s", "How long ago what the last-good files hold was known to be what the control plane says.";
        resources, off, "grpc.xds_client.resources", "{resource}", "xDS resources by the state of their cache entry.";
    }
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

/// A kind of instrument.
trait Build {
    /// `buckets` is one list, or none.
    fn build(meter: &Meter, metric: &Metric, buckets: &[&[f64]]) -> Self;
}

impl Instruments {
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

    /// Whether any metric of calls on servers is on.
    pub(super) fn of_server_calls(&self) -> bool {
        let sizes = [&self.server_call_sent, &self.server_call_received];
        let sizes = sizes.into_iter().any(Option::is_some);
        sizes || self.server_call_started.is_some() || self.server_call_duration.is_some()
    }

    /// Whether any metric of subchannels is on.
    pub(super) fn of_subchannels(&self) -> bool {
        let counters = [&self.disconnections, &self.attempts_succeeded, &self.attempts_failed, &self.client_handshakes];
        self.open_connections.is_some() || counters.into_iter().any(Option::is_some)
    }
}

impl Metric {
    const fn new(name: &'static str, unit: &'static str, description: &'static str, stable: bool) -> Self {
        Self { name, unit, description, stable }
    }
}

impl Choice {
    fn wants(&self, metric: &Metric) -> bool {
        self.by_name.get(metric.name).copied().unwrap_or(metric.stable || self.experimental)
    }
}

impl Build for Counter<u64> {
    fn build(meter: &Meter, metric: &Metric, _: &[&[f64]]) -> Self {
        meter.u64_counter(metric.name).with_unit(metric.unit).with_description(metric.description).build()
    }
}

impl Build for UpDownCounter<i64> {
    fn build(meter: &Meter, metric: &Metric, _: &[&[f64]]) -> Self {
        meter.i64_up_down_counter(metric.name).with_unit(metric.unit).with_description(metric.description).build()
    }
}

impl Build for Histogram<f64> {
    fn build(meter: &Meter, metric: &Metric, buckets: &[&[f64]]) -> Self {
        let builder = meter.f64_histogram(metric.name).with_unit(metric.unit).with_description(metric.description);
        if buckets.is_empty() { builder.build() } else { builder.with_boundaries(buckets.concat()).build() }
    }
}

impl Build for Histogram<u64> {
    fn build(meter: &Meter, metric: &Metric, buckets: &[&[f64]]) -> Self {
        let builder = meter.u64_histogram(metric.name).with_unit(metric.unit).with_description(metric.description);
        if buckets.is_empty() { builder.build() } else { builder.with_boundaries(buckets.concat()).build() }
    }
}

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
