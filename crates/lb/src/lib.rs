//! The data-plane core of Mainstay: what an [`XdsConfig`](mainstay_xds::deps::XdsConfig) means for traffic.
//!
//! [`Tree`] is the tree of load-balancing policies. It is driven from outside like the cores of
//! `mainstay-xds`: configuration, connection states and time go in; connections are asked for
//! through [`Host`]; what comes out is a [`Snapshot`], an immutable value that decides about an RPC
//! without a lock, a queue or an allocation.

mod snapshot;
mod tree;

pub use snapshot::{Decision, Failure, Rpc, SendTo, Snapshot};
pub use tree::{Connectivity, Context, Host, Subchannel, SubchannelId, SubchannelSpec, Tree};
