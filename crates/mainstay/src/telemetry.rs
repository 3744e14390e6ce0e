//! Metrics and traces through OpenTelemetry, as the gRFCs name them (A66, A72, A78, A79, A89, A94, A96).
//!
//! The rest of the crate tells observers what happens. Without the feature `opentelemetry` they are empty and compiled
//! away; without [`ChannelBuilder::telemetry`](crate::ChannelBuilder::telemetry) they do nothing.

#[cfg(feature = "opentelemetry")]
pub use on::{Telemetry, TelemetryBuilder};

#[cfg(feature = "opentelemetry")]
pub(crate) use on::{
    CallObserver, ChannelObserver, LbObserver, ReceivedObserver, SentObserver, ServerCallObserver, ServerObserver,
    SubchannelObserver, XdsObserver,
};

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use off::{
    CallObserver, ChannelObserver, LbObserver, ReceivedObserver, SentObserver, ServerCallObserver, ServerObserver,
    SubchannelObserver, Telemetry, XdsObserver,
};

#[cfg(feature = "opentelemetry")]
mod on;

#[cfg(not(feature = "opentelemetry"))]
mod off;
