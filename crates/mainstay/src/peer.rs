//! Who answered an RPC.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_lb::Origin;

use crate::names::Locality;
use crate::tls::TlsInfo;

/// The other side of an RPC: the endpoint that answered it, in the extensions of its response.
///
/// ```
/// # fn example(response: tonic::Response<()>) {
/// if let Some(peer) = response.extensions().get::<mainstay::Peer>() {
///     println!("answered by {} of cluster {:?}", peer.address(), peer.cluster());
///     println!("which proved to be {:?}", peer.principal());
/// }
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    address: SocketAddr,
    origin: Arc<Origin>,
    /// Of the connection that carried the RPC.
    tls: Option<Arc<TlsInfo>>,
}

impl Peer {
    /// The endpoint of an RPC.
    pub(crate) fn endpoint(address: SocketAddr, origin: Arc<Origin>, tls: Option<Arc<TlsInfo>>) -> Self {
        Self { address, origin, tls }
    }

    /// Returns the address of the endpoint.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the name of the cluster of the endpoint; below an aggregate cluster, that of the leaf.
    pub fn cluster(&self) -> &str {
        &self.origin.cluster
    }

    /// Returns the locality of the endpoint.
    pub fn locality(&self) -> Locality {
        Locality::of(&self.origin.locality)
    }

    /// Returns what the connection was secured with; `None` in plaintext.
    pub fn tls(&self) -> Option<&TlsInfo> {
        self.tls.as_deref()
    }

    /// Returns who the other side has proved to be; `None` in plaintext, and for a client without a certificate. See
    /// [`TlsInfo::principal`].
    pub fn principal(&self) -> Option<&str> {
        self.tls()?.principal()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("address", &self.address)
            .field("cluster", &self.origin.cluster)
            .field("locality", &self.origin.locality)
            .field("tls", &self.tls)
            .finish()
    }
}
