//! What users say about telemetry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use opentelemetry::InstrumentationScope;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::{Span, Tracer, TracerProvider};

use super::instruments::{Choice, Instruments, METRICS};

/// Where channels send metrics and traces. Cheap to clone; one is enough for all channels of a process.
///
/// ```no_run
/// # async fn example(meters: opentelemetry_sdk::metrics::SdkMeterProvider) -> Result<(), mainstay::BuildError> {
/// let telemetry = mainstay::Telemetry::builder()
///     .meter_provider(&meters)
///     .optional_label("grpc.lb.locality")
///     .metric("grpc.xds_client.connected", true)
///     .build();
/// let channel = mainstay::Channel::builder("xds:///greeter").telemetry(telemetry).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    instruments: Instruments,
    labels: Labels,
    /// Set if there are traces.
    tracer: Option<BoxedTracer>,
}

/// Which optional labels are on (A79).
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels {
    pub(super) locality: bool,
    pub(super) backend_service: bool,
    pub(super) disconnect_error: bool,
    pub(super) handshake_resumed: bool,
    pub(super) security_level: bool,
}

/// The settings of [`Telemetry`]. Made by [`Telemetry::builder`].
#[must_use]
pub struct TelemetryBuilder {
    meter: Option<Meter>,
    tracer: Option<BoxedTracer>,
    experimental: bool,
    metrics: BTreeMap<String, bool>,
    labels: BTreeSet<String>,
}

// === impl Telemetry ===

impl Telemetry {
    /// Returns a builder. What is not handed to it is off.
    pub fn builder() -> TelemetryBuilder {
        TelemetryBuilder {
            meter: None,
            tracer: None,
            experimental: false,
            metrics: BTreeMap::new(),
            labels: BTreeSet::new(),
        }
    }

    /// Returns telemetry with the default metrics and traces, to the providers that are global now.
    pub fn global() -> Self {
        Self::builder().meter_provider(&*global::meter_provider()).tracer_provider(&global::tracer_provider()).build()
    }

    pub(super) fn instruments(&self) -> &Instruments {
        &self.0.instruments
    }

    /// The optional labels that are on.
    pub(super) fn labels(&self) -> Labels {
        self.0.labels
    }

    pub(super) fn tracer(&self) -> Option<&BoxedTracer> {
        self.0.tracer.as_ref()
    }
}

impl PartialEq for Telemetry {
    /// Whether both are the very same: channels with other telemetry share nothing.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").field("labels", &self.0.labels).finish_non_exhaustive()
    }
}

// === impl TelemetryBuilder ===

impl TelemetryBuilder {
    /// Sets where metrics are sent. Without this there are none.
    pub fn meter_provider(mut self, provider: &(impl MeterProvider + ?Sized)) -> Self {
        self.meter = Some(provider.meter_with_scope(scope()));
        self
    }

    /// Sets where traces are sent. Without this there are none.
    ///
    /// The context of a span is sent in the metadata of its RPC, by the propagator that is global at that time (see
    /// [`opentelemetry::global::set_text_map_propagator`]).
    pub fn tracer_provider<P>(mut self, provider: &P) -> Self
    where
        P: TracerProvider,
        P::Tracer: Send + Sync + 'static,
        <P::Tracer as Tracer>::Span: Span + Send + Sync + 'static,
    {
        self.tracer = Some(BoxedTracer::new(Box::new(provider.tracer_with_scope(scope()))));
        self
    }

    /// Turns one metric on or off by its name. By default the stable ones are on: those of calls and attempts (gRFC A66).
    pub fn metric(mut self, name: impl Into<String>, on: bool) -> Self {
        self.metrics.insert(name.into(), on);
        self
    }

    /// Turns on every metric that the gRFCs call experimental, except those that are turned off by name.
    pub fn experimental_metrics(mut self) -> Self {
        self.experimental = true;
        self
    }

    /// Turns on a label that is off by default (gRFC A79): `grpc.lb.locality`, `grpc.lb.backend_service`,
    /// `grpc.disconnect_error` or `grpc.security_level`.
    pub fn optional_label(mut self, name: impl Into<String>) -> Self {
        self.labels.insert(name.into());
        self
    }

    /// Returns the telemetry. Unknown names are ignored with a warning (gRFC A79).
    pub fn build(self) -> Telemetry {
        let unknown_metrics = self.metrics.keys().filter(|name| !METRICS.iter().any(|metric| metric.name == **name));
        let unknown_labels = self.labels.iter().filter(|label| !OPTIONAL_LABELS.contains(&label.as_str()));
        for name in unknown_metrics.chain(unknown_labels) {
            tracing::warn!(name, "telemetry: no such metric or optional label");
        }
        let choice = Choice { experimental: self.experimental, by_name: self.metrics };
        let on = |label: &str| self.labels.contains(label);
        Telemetry(Arc::new(Inner {
            instruments: Instruments::new(self.meter.as_ref(), &choice),
            labels: Labels {
                locality: on(LOCALITY),
                backend_service: on(BACKEND_SERVICE),
                disconnect_error: on(DISCONNECT_ERROR),
                handshake_resumed: on(HANDSHAKE_RESUMED),
                security_level: on(SECURITY_LEVEL),
            },
            tracer: self.tracer,
        }))
    }
}

impl fmt::Debug for TelemetryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetryBuilder")
            .field("metrics", &self.metrics)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("mainstay").with_version(env!("CARGO_PKG_VERSION")).build()
}

// Optional labels.
pub(super) const LOCALITY: &str = "grpc.lb.locality";
pub(super) const BACKEND_SERVICE: &str = "grpc.lb.backend_service";
pub(super) const DISCONNECT_ERROR: &str = "grpc.disconnect_error";
pub(super) const SECURITY_LEVEL: &str = "grpc.security_level";
pub(super) const HANDSHAKE_RESUMED: &str = "grpc.tls.handshake.resumed";

const OPTIONAL_LABELS: [&str; 5] = [LOCALITY, BACKEND_SERVICE, DISCONNECT_ERROR, SECURITY_LEVEL, HANDSHAKE_RESUMED];
