//! The tree of policies and what it needs from outside.

use std::fmt;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_xds::deps::{ConfigError, XdsConfig};
use mainstay_xds::{Choose, Time};

use crate::Snapshot;

/// A handle of a connection to one address, as pickers carry it.
pub trait Subchannel: Clone + fmt::Debug + Eq + Hash {
    /// Whether an RPC may be sent on it right now. Pickers ask last, so that a connection that
    /// died after the snapshot was made is passed over.
    fn is_ready(&self) -> bool;
}

/// Identity of a subchannel in one tree. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubchannelId(pub u64);

/// What a subchannel connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubchannelSpec {
    /// The address.
    pub address: SocketAddr,
    /// `endpoint.hostname`, for TLS server names.
    pub hostname: Option<Arc<str>>,
}

/// State of a subchannel. A subchannel that fails waits out its own backoff in the shell: it
/// reports `TransientFailure`, and `Idle` once it may be asked to connect again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Connectivity {
    /// Not connected; connects when asked.
    Idle,
    /// Connecting.
    Connecting,
    /// Connected.
    Ready,
    /// The last attempt failed, with the cause; in backoff.
    TransientFailure(Arc<str>),
}

/// What the tree asks of the shell. No call may block or call back.
pub trait Host {
    /// The handle that pickers carry.
    type Subchannel: Subchannel;

    /// Makes a subchannel; it starts idle.
    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Self::Subchannel;

    /// Asks an idle subchannel to connect.
    fn connect(&mut self, id: SubchannelId);

    /// Lets go of a subchannel. RPCs on it go on; nothing is heard of it any more.
    fn release(&mut self, id: SubchannelId);

    /// Asks for fresh DNS answers (L-18).
    fn request_reresolution(&mut self);
}

/// What every call into the tree brings along.
pub struct Context<'a, H: Host> {
    /// The time.
    pub now: Time,
    /// Randomness.
    pub choose: &'a mut dyn Choose,
    /// Where connections come from.
    pub host: &'a mut H,
}

/// The load-balancing tree of one channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree<S: Subchannel> {
    _s: std::marker::PhantomData<S>,
}

impl<S: Subchannel> Tree<S> {
    /// A tree without configuration: RPCs wait (L-30).
    pub fn new() -> Self {
        todo!()
    }

    /// Puts a configuration in force, or an error in its place (L-29).
    pub fn update<H: Host<Subchannel = S>>(
        &mut self,
        cx: &mut Context<'_, H>,
        config: Result<Arc<XdsConfig>, Arc<ConfigError>>,
    ) {
        let _ = (cx, config);
        todo!()
    }

    /// Takes in the state of a subchannel. Unknown ids are ignored: they were released.
    pub fn handle_connectivity<H: Host<Subchannel = S>>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: SubchannelId,
        state: Connectivity,
    ) {
        let _ = (cx, id, state);
        todo!()
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout<H: Host<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) {
        let _ = cx;
        todo!()
    }

    /// When [`Tree::handle_timeout`] is due.
    pub fn next_deadline(&self) -> Option<Time> {
        todo!()
    }

    /// The newest snapshot, if it changed since the last call.
    pub fn poll_snapshot(&mut self) -> Option<Arc<Snapshot<S>>> {
        todo!()
    }

    /// Releases every subchannel.
    pub fn shut_down<H: Host<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) {
        let _ = cx;
        todo!()
    }
}
