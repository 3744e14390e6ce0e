//! Observers that tell OpenTelemetry.

pub(crate) use calls::{CallObserver, ChannelObserver, SentObserver};
pub(crate) use policies::LbObserver;
pub(crate) use server_calls::{ReceivedObserver, ServerCallObserver, ServerObserver};
pub(crate) use subchannels::SubchannelObserver;
pub(crate) use xds::XdsObserver;

pub use builder::{Telemetry, TelemetryBuilder};

mod builder;
mod calls;
mod handshakes;
mod instruments;
mod messages;
mod policies;
mod registry;
mod server_calls;
mod subchannels;
mod traces;
mod xds;

/// The label that every metric has: the target of the channel in canonical form (S-61, S-70).
const TARGET: &str = "grpc.target";
