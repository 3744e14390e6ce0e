//! Metrics and traces as an exporter of OpenTelemetry gets them.

mod calls;
mod collect;
mod handshakes;
mod panics;
mod policies;
mod servers;
mod subchannels;
mod traces;
mod xds_client;
