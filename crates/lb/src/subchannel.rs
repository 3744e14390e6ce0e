//! Subchannels: what one connects to, the state it is in, and its handle.

use std::fmt;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_xds::resource::endpoint::Locality;
use mainstay_xds::resource::tls::UpstreamTls;

/// A handle of a connection to one address, as pickers carry it.
pub trait Subchannel: Clone + fmt::Debug + Eq + Hash {
    /// Whether an RPC may be sent on it right now. Pickers ask last, so that a connection that
    /// died after the snapshot was made is passed over.
    fn is_ready(&self) -> bool;
}

/// Identity of a subchannel in one tree. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubchannelId(pub u64);

/// What a subchannel connects to. Policies that want the same address, proxy, host name and TLS share one, wherever
/// their endpoints belong: an RPC never waits because an endpoint moved to another locality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubchannelSpec {
    /// The address.
    pub address: SocketAddr,
    /// The HTTP proxy to which CONNECT is said on the way there (A86).
    pub proxy: Option<SocketAddr>,
    /// `endpoint.hostname`, for TLS server names.
    pub hostname: Option<Arc<str>>,
    /// The TLS context of its cluster, if the channel follows it and there is one (A29).
    pub tls: Option<Arc<UpstreamTls>>,
    /// Where in the configuration it belongs; of a shared subchannel, where the first of those belongs that share it.
    pub origin: Arc<Origin>,
}

/// What a channel makes of the TLS context of a cluster (A29).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum XdsSecurity {
    /// Connects as its own credentials say, and tells once that the cluster asks for something else.
    #[default]
    Ignore,
    /// Does not use the cluster.
    Refuse,
    /// Connects as the cluster asks.
    Follow,
}

/// Where in the configuration an endpoint belongs: what metrics tell of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The leaf cluster (S-64).
    pub cluster: Arc<str>,
    /// The locality (S-63).
    pub locality: Arc<Locality>,
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

/// State of a subchannel or of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum State {
    /// Connects when asked.
    Idle,
    /// RPCs wait.
    Connecting,
    /// RPCs are sent.
    Ready,
    /// RPCs fail unless they wait for ready.
    TransientFailure,
}
