//! ClusterLoadAssignment (EDS) and LbEndpointCollection (LEDS), `spec/04` sections 6 and 7.

use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::endpoint::v3 as pb;

use crate::bootstrap::NodeLocality;
use crate::invalid::Invalid;

/// Endpoints of a cluster by priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// Priority 0 first; no gaps. Empty: the cluster is unreachable.
    pub priorities: Vec<Priority>,
    /// Shares of RPCs to drop, in order.
    pub drops: Vec<DropCategory>,
}

/// The localities of one priority; no locality twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Priority {
    /// In the order of the resource.
    pub localities: Vec<LocalityEndpoints>,
}

/// The endpoints of one locality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalityEndpoints {
    /// Which locality.
    pub locality: Arc<Locality>,
    /// Its weight in its priority; never zero.
    pub weight: u32,
    /// Where its endpoints come from.
    pub source: EndpointSource,
}

/// Name of a locality; the same three parts as a node's.
pub type Locality = NodeLocality;

/// Where the endpoints of a locality come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointSource {
    /// Inside the ClusterLoadAssignment.
    Inline(Arc<EndpointCollection>),
    /// An LbEndpointCollection resource of this name (A95).
    Collection(String),
}

/// A list of endpoints. Empty: the locality is unreachable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointCollection {
    /// In the order of the resource; no address twice.
    pub endpoints: Vec<Endpoint>,
}

/// One endpoint: a backend with one or more addresses (A61).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its addresses in order of preference.
    pub addresses: Addresses,
    /// Its weight in its locality; never zero.
    pub weight: u32,
    /// Its health.
    pub health: HealthStatus,
    /// `endpoint.hostname` if not empty (A81).
    pub hostname: Option<Arc<str>>,
    /// `envoy.lb` / `hash_key` of its metadata (A76).
    pub hash_key: Option<Arc<str>>,
}

/// One or more addresses without a heap block for the common case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// A single address.
    One(SocketAddr),
    /// Two or more.
    Many(Arc<[SocketAddr]>),
}

/// The health states that survive parsing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthStatus {
    /// Not known; usable.
    #[default]
    Unknown,
    /// Usable.
    Healthy,
    /// Only for session affinity (A55).
    Draining,
}

/// A share of RPCs to drop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DropCategory {
    /// Category, for reports and messages.
    pub category: String,
    /// Parts of a million, at most a million.
    pub per_million: u32,
}

impl Addresses {
    /// All of them in order; never empty.
    pub fn as_slice(&self) -> &[SocketAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Many(addresses) => addresses,
        }
    }

    /// The most preferred one.
    pub fn first(&self) -> SocketAddr {
        self.as_slice()[0]
    }
}

impl Endpoints {
    /// Checks a ClusterLoadAssignment.
    pub fn parse(pb: &pb::ClusterLoadAssignment) -> Result<Self, Invalid> {
        let _ = pb;
        todo!()
    }
}

impl EndpointCollection {
    /// Checks an LbEndpointCollection.
    pub fn parse(pb: &pb::LbEndpointCollection) -> Result<Self, Invalid> {
        let _ = pb;
        todo!()
    }
}
