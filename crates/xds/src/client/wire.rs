//! The envelope messages of ADS.
//!
//! Responses have messages of our own: their `bytes` fields are slices of the buffer that came in,
//! so that decoding a response copies none of its resources. Field numbers are those of P-8 to P-10.

use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::google::rpc;
use prost::Message;

use crate::resource::ResourceType;

/// `envoy.service.discovery.v3.DiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
    #[prost(message, repeated, tag = "7")]
    pub resource_errors: Vec<ResourceError>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `envoy.service.discovery.v3.Resource`, as far as a SotW client uses it (P-66).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Wrapper {
    #[prost(message, optional, tag = "2")]
    pub resource: Option<Any>,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `envoy.service.discovery.v3.ResourceError` (TP3).
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceError {
    #[prost(message, optional, tag = "1")]
    pub resource_name: Option<Named>,
    #[prost(message, optional, tag = "2")]
    pub error_detail: Option<Status>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The name of a resource. `ResourceName` and every resource type that has a name keep it in field 1 (P-5),
/// so this reads the name of a resource without decoding the rest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// What one `DiscoveryRequest` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub resource_type: ResourceType,
    /// Every name that is subscribed, canonical, each once (P-27, P-33).
    pub names: Vec<Arc<str>>,
    pub version: Arc<str>,
    pub nonce: Arc<str>,
    /// Text of a NACK.
    pub error: Option<String>,
    /// Whether it opens the stream, so that it must carry the node (P-16).
    pub first: bool,
}

impl Request {
    /// Its bytes. `node` is asked for only if the request carries it.
    pub(super) fn encode(self, node: impl FnOnce() -> core::Node) -> Bytes {
        let request = discovery::DiscoveryRequest {
            version_info: self.version.to_string(),
            node: self.first.then(node),
            resource_names: self.names.iter().map(|name| name.to_string()).collect(),
            type_url: self.resource_type.type_url().to_owned(),
            response_nonce: self.nonce.to_string(),
            error_detail: self.error.map(|message| rpc::Status {
                code: INVALID_ARGUMENT,
                message,
                details: Vec::new(),
            }),
            ..Default::default()
        };
        request.encode_to_vec().into()
    }
}

/// Message name of [`Wrapper`].
pub(super) const WRAPPER: &str = "envoy.service.discovery.v3.Resource";

/// Code of every NACK (P-31).
const INVALID_ARGUMENT: i32 = 3;
