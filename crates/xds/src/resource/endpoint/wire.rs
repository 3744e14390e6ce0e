//! ClusterLoadAssignment with its endpoints still encoded.
//!
//! There may be a hundred thousand endpoints, and decoded at once they take far more memory than their bytes. Decoded
//! one by one, each is still in the cache when it is checked. To the wire, bytes are the same as a message.

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::{Locality, Metadata};
use envoy_types::pb::envoy::config::endpoint::v3::LedsClusterLocalityConfig;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use envoy_types::pb::google::protobuf::UInt32Value;
use prost::Message;

/// `envoy.config.endpoint.v3.ClusterLoadAssignment`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Assignment {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub(crate) cluster_name: String,
    /// The localities.
    #[prost(message, repeated, tag = "2")]
    pub(crate) endpoints: Vec<LocalityAssignment>,
    /// Drops.
    #[prost(message, optional, tag = "4")]
    pub(crate) policy: Option<Policy>,
}

/// `envoy.config.endpoint.v3.LocalityLbEndpoints`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LocalityAssignment {
    /// Which locality.
    #[prost(message, optional, tag = "1")]
    pub(crate) locality: Option<Locality>,
    /// Its endpoints, each an `LbEndpoint`.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) lb_endpoints: Vec<Bytes>,
    /// Its weight.
    #[prost(message, optional, tag = "3")]
    pub(crate) load_balancing_weight: Option<UInt32Value>,
    /// Its priority.
    #[prost(uint32, tag = "5")]
    pub(crate) priority: u32,
    /// The collection that has its endpoints (A95).
    #[prost(message, optional, tag = "8")]
    pub(crate) leds_cluster_locality_config: Option<LedsClusterLocalityConfig>,
    /// What else there is to say.
    #[prost(message, optional, tag = "9")]
    pub(crate) metadata: Option<Metadata>,
}
