//! What an RPC sees: routes and pickers as one immutable value.

use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::Choose;

use crate::tree::Subchannel;

/// Routes and pickers of one configuration, published together. An RPC loads it once.
#[derive(Debug)]
pub struct Snapshot<S: Subchannel> {
    _s: std::marker::PhantomData<S>,
}

/// What is known of an RPC before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Rpc<'a> {
    /// `/service/method`.
    pub path: &'a str,
    /// Request metadata.
    pub headers: &'a HeaderMap,
}

/// What becomes of an RPC.
#[derive(Debug)]
pub enum Decision<'a, S: Subchannel> {
    /// Send it.
    Send(SendTo<'a, S>),
    /// Wait for the next snapshot; the text says for what, for the error of a deadline that passes meanwhile.
    Wait(Failure),
    /// Fail it, unless it waits for ready.
    Fail(Failure),
    /// Fail it in any case; never try it again (L-50).
    Drop(Failure),
}

/// Where an RPC goes.
#[derive(Debug)]
pub struct SendTo<'a, S: Subchannel> {
    /// The connection.
    pub subchannel: &'a S,
    /// The cluster that was chosen.
    pub cluster: &'a str,
    /// Time limit of the route; none if absent (L-40).
    pub limit: Option<Duration>,
    /// `:authority` to use instead of the channel's (L-89).
    pub authority: Option<&'a str>,
}

/// Why an RPC cannot be sent. Codes: see L-200.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// gRPC status code: UNAVAILABLE (14) or INTERNAL (13).
    pub code: u8,
    /// Which cluster, which priority, and why.
    pub message: String,
}

impl<S: Subchannel> Snapshot<S> {
    /// A snapshot without configuration: RPCs wait.
    pub fn empty() -> Self {
        todo!()
    }

    /// Matches the route and picks.
    pub fn decide<'a>(&'a self, rpc: Rpc<'_>, choose: &mut dyn Choose) -> Decision<'a, S> {
        let _ = (rpc, choose);
        todo!()
    }
}
