//! Who answered an RPC.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_lb::Origin;

use crate::names::Locality;

/// The endpoint that answered an RPC, in the extensions of its response.
///
/// ```
/// # fn example(response: tonic::Response<()>) {
/// if let Some(peer) = response.extensions().get::<mainstay::Peer>() {
///     println!("answered by {} of cluster {:?}", peer.address(), peer.cluster());
/// }
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    address: SocketAddr,
    origin: Arc<Origin>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, origin: Arc<Origin>) -> Self {
        Self { address, origin }
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
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("address", &self.address)
            .field("cluster", &self.origin.cluster)
            .field("locality", &self.origin.locality)
            .finish()
    }
}
