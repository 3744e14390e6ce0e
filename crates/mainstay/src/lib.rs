//! xDS channels for tonic: discovery, routing and load balancing from a control plane, that keep
//! working when the control plane does not.
//!
//! ```no_run
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::new("xds:///greeter")?; // bootstrap from GRPC_XDS_BOOTSTRAP
//! // let mut client = GreeterClient::new(channel);         // any tonic-generated client
//! # Ok(())
//! # }
//! ```
//!
//! A [`Channel`] is a tower service, cheap to clone and usable in any task. It fetches its
//! configuration from the servers that the [`bootstrap`] names, and goes on with what it has while
//! they are down, slow or wrong.

pub use mainstay_xds::bootstrap;

pub mod admin;
pub mod config;

mod ads;
mod body;
mod call;
mod calls;
mod channel;
mod code;
mod connection;
mod credentials;
mod deadline;
mod dns;
mod driver;
mod events;
mod failure;
mod frames;
mod guard;
mod http2;
mod http_connect;
mod hub;
mod intern;
mod ledger;
mod load_reports;
mod peer;
mod pulse;
mod queue;
mod random;
mod request;
mod subchannel;
mod supervisor;
mod sync;
mod task;
mod telemetry;

pub use body::ResponseBody;
pub use channel::{BuildError, Channel, ChannelBuilder, ChannelState, WaitForReady};
pub use credentials::{Credentials, CredentialsError};
pub use dns::{ResolveHost, SystemDns};
pub use events::{Event, Events};
pub use mainstay_lb::RetryThrottle;
pub use mainstay_xds::name::{AuthorityKey, ResourceKey};
pub use mainstay_xds::resource::ResourceType;
pub use mainstay_xds::resource::endpoint::Locality;
pub use peer::Peer;
#[cfg(feature = "opentelemetry")]
pub use telemetry::{Telemetry, TelemetryBuilder};
