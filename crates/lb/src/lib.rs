//! The data-plane core of Mainstay: what an [`XdsConfig`](mainstay_xds::deps::XdsConfig) means for traffic.
//!
//! **Unstable.** This crate is a part of [`mainstay`](https://docs.rs/mainstay), published because crates cannot be
//! published without their dependencies. It makes no semver promises: any release may change or remove anything. Use
//! `mainstay`, whose API has nothing of this crate in it.
//!
//! [`Tree`] is the tree of load-balancing policies. It is driven from outside like the cores of
//! `mainstay-xds`: configuration, connection states and time go in; connections are asked for
//! through [`Helper`]; what comes out is a [`Snapshot`], an immutable value that decides about an RPC
//! without a lock, a queue or an allocation.
//!
//! Inside, every policy is a plain state machine that owns its children. A policy never calls its
//! parent: an event goes down the tree to the policy it concerns, and each parent on the way back
//! looks at the state of the child it came from.

// A variant that is added is looked at wherever variants are told apart.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod authz;
mod breaker;
mod call_tracker;
mod calls;
mod channel;
mod draws;
mod endpoint;
pub mod explain;
mod filters;
mod helper;
pub mod identity;
mod index;
mod orca;
mod owner;
mod picker;
mod policy;
mod pool;
mod request_hash;
mod retry;
mod routing;
mod rpc;
pub mod serve;
mod session;
mod snapshot;
mod subchannel;
mod sync;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;
mod text_index;
mod throttle;
mod timers;
mod trace;
mod tree;

pub use authz::{AuditRecord, Authorization, Authorizer, Caller, CallerCertificate, Facts, Verdict};
pub use breaker::{Counter, InFlight};
pub use call_tracker::{CallTracker, Ending};
pub use channel::{Action, ChannelCore, Input};
pub use filters::{Effect, Injected};
pub use helper::{Context, DetectionMethod, Helper, Observation, UnenforcedReason};
pub use orca::LoadSink;
pub use owner::Wake;
pub use picker::Outlook;
pub use retry::{PushBack, Retry};
pub use rpc::Rpc;
pub use snapshot::{Chosen, Decision, Failure, SendTo, Snapshot};
pub use subchannel::{Connectivity, Origin, Subchannel, SubchannelId, SubchannelSpec, XdsSecurity};
pub use throttle::RetryThrottle;
pub use trace::{Candidate, Draw, Mismatch, Recorder, Step, Trace};
pub use tree::Tree;
