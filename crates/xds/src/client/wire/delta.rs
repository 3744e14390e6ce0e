//! The messages of the incremental variant.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use prost::Message;

use super::{Any, INVALID_ARGUMENT, Named, ResourceError, Status, encode_node};
use crate::resource::ResourceType;

/// `envoy.service.discovery.v3.DeltaDiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::client) struct DeltaDiscoveryResponse {
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<DeltaResource>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: Vec<String>,
    /// `ControlPlane`, whose identifier is its first field.
    #[prost(message, optional, tag = "7")]
    pub control_plane: Option<Named>,
    #[prost(message, repeated, tag = "9")]
    pub resource_errors: Vec<ResourceError>,
}

/// `envoy.service.discovery.v3.Resource`, as far as a delta client uses it (DX-17).
#[derive(Clone, PartialEq, Message)]
pub(in crate::client) struct DeltaResource {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(message, optional, tag = "2")]
    pub resource: Option<Any>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, repeated, tag = "4")]
    pub aliases: Vec<String>,
}

/// What one `DeltaDiscoveryRequest` says: an answer, or a change of what is subscribed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) struct DeltaRequest {
    pub resource_type: ResourceType,
    pub subscribe: Vec<Arc<str>>,
    pub unsubscribe: Vec<Arc<str>>,
    /// What we have, by name: only in the first request of a type (P-71).
    pub claims: BTreeMap<Arc<str>, Arc<str>>,
    /// Of the response that is answered; empty for a change.
    pub nonce: Arc<str>,
    /// Text of a NACK.
    pub error: Option<String>,
    /// Whether it opens the stream, so that it must carry the node (P-70).
    pub first: bool,
}

impl DeltaRequest {
    pub(super) fn encode(self, node: impl FnOnce() -> core::Node) -> Bytes {
        let strings = |names: Vec<Arc<str>>| names.iter().map(|name| name.to_string()).collect();
        let claims = self.claims.iter().map(|(name, version)| (name.to_string(), version.to_string()));
        let request = DeltaDiscoveryRequest {
            node: self.first.then(|| encode_node(node())),
            type_url: self.resource_type.type_url().to_owned(),
            resource_names_subscribe: strings(self.subscribe),
            resource_names_unsubscribe: strings(self.unsubscribe),
            initial_resource_versions: claims.collect(),
            response_nonce: self.nonce.to_string(),
            error_detail: self.error.map(|message| Status { code: INVALID_ARGUMENT, message }),
        };
        request.encode_to_vec().into()
    }
}

/// `envoy.service.discovery.v3.DeltaDiscoveryRequest`. To the wire, bytes are the same as a message.
#[derive(Clone, PartialEq, Message)]
struct DeltaDiscoveryRequest {
    #[prost(bytes = "vec", optional, tag = "1")]
    node: Option<Vec<u8>>,
    #[prost(string, tag = "2")]
    type_url: String,
    #[prost(string, repeated, tag = "3")]
    resource_names_subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    resource_names_unsubscribe: Vec<String>,
    #[prost(btree_map = "string, string", tag = "5")]
    initial_resource_versions: BTreeMap<String, String>,
    #[prost(string, tag = "6")]
    response_nonce: String,
    #[prost(message, optional, tag = "7")]
    error_detail: Option<Status>,
}
