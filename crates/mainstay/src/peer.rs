//! The other side of an RPC.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_lb::Origin;

use crate::names::Locality;
use crate::tls::TlsInfo;

/// The other side of an RPC: the endpoint that answered it, in the extensions of its response, or the caller of a
/// [`Server`](crate::Server), in the extensions of its request.
///
/// ```
/// # fn example(response: tonic::Response<()>, request: tonic::Request<()>) {
/// if let Some(peer) = response.extensions().get::<mainstay::Peer>() {
///     println!("answered by {} of cluster {:?}", peer.address(), peer.cluster());
///     println!("which proved to be {:?}", peer.principal());
/// }
/// if let Some(peer) = request.extensions().get::<mainstay::Peer>() {
///     println!("asked by {:?} at {} through {:?}", peer.principal(), peer.address(), peer.filter_chain());
/// }
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Peer(Side);

/// Which side it is. A caller is told from an endpoint by values that no address has, so that the Peer of an endpoint, which
/// every RPC of a channel makes, is no larger for it.
#[derive(Clone, PartialEq, Eq)]
enum Side {
    Endpoint {
        address: SocketAddr,
        origin: Arc<Origin>,
        /// Of the connection that carried the RPC.
        tls: Option<Arc<TlsInfo>>,
    },
    Caller(Arc<Caller>),
}

#[derive(PartialEq, Eq)]
struct Caller {
    address: SocketAddr,
    filter_chain: Arc<str>,
    tls: Option<Arc<TlsInfo>>,
}

impl Peer {
    /// The endpoint of an RPC.
    pub(crate) fn endpoint(address: SocketAddr, origin: Arc<Origin>, tls: Option<Arc<TlsInfo>>) -> Self {
        Self(Side::Endpoint { address, origin, tls })
    }

    /// The caller of a server. One for all RPCs of its connection.
    pub(crate) fn caller(address: SocketAddr, filter_chain: Arc<str>, tls: Option<Arc<TlsInfo>>) -> Self {
        Self(Side::Caller(Arc::new(Caller { address, filter_chain, tls })))
    }

    /// Returns the address of the other side.
    pub fn address(&self) -> SocketAddr {
        match &self.0 {
            Side::Endpoint { address, .. } => *address,
            Side::Caller(caller) => caller.address,
        }
    }

    /// Returns the name of the cluster of the endpoint; below an aggregate cluster, that of the leaf. Empty for the caller of a
    /// server.
    pub fn cluster(&self) -> &str {
        match &self.0 {
            Side::Endpoint { origin, .. } => &origin.cluster,
            Side::Caller(_) => "",
        }
    }

    /// Returns the locality of the endpoint. Empty for the caller of a server.
    pub fn locality(&self) -> Locality {
        match &self.0 {
            Side::Endpoint { origin, .. } => Locality::of(&origin.locality),
            Side::Caller(_) => Locality::default(),
        }
    }

    /// Returns the filter chain of the connection on which a server was called: its name, or else its place in the Listener. `None`
    /// for an endpoint.
    pub fn filter_chain(&self) -> Option<&str> {
        match &self.0 {
            Side::Endpoint { .. } => None,
            Side::Caller(caller) => Some(&caller.filter_chain),
        }
    }

    /// Returns what the connection was secured with; `None` in plaintext.
    pub fn tls(&self) -> Option<&TlsInfo> {
        match &self.0 {
            Side::Endpoint { tls, .. } => tls.as_deref(),
            Side::Caller(caller) => caller.tls.as_deref(),
        }
    }

    /// Returns who the other side has proved to be; `None` in plaintext, and for a client without a certificate. See
    /// [`TlsInfo::principal`].
    pub fn principal(&self) -> Option<&str> {
        self.tls()?.principal()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Peer");
        debug.field("address", &self.address());
        match self.filter_chain() {
            None => debug.field("cluster", &self.cluster()).field("locality", &self.locality()),
            Some(chain) => debug.field("filter_chain", &chain),
        };
        debug.field("tls", &self.tls()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_an_endpoint_is_no_larger_than_what_it_says() {
        let parts = size_of::<(SocketAddr, Arc<Origin>, Option<Arc<TlsInfo>>)>();
        assert_eq!(size_of::<Peer>(), parts);
    }
}
