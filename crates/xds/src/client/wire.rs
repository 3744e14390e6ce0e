//! The envelope messages of ADS, in both variants.
//!
//! Responses have messages of our own: their `bytes` fields are slices of the buffer that came in,
//! so that decoding a response copies none of its resources. Field numbers are those of P-8 to P-10.
//! Requests have them too: generated maps have a random order, and the same request must be the same
//! bytes in every run.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::google::protobuf;
use envoy_types::pb::google::protobuf::value::Kind;
use prost::{Message, Oneof};

use super::authority::AuthorityId;
use super::dialect::Protocol;

mod delta;
mod sotw;

pub(super) use delta::{DeltaDiscoveryResponse, DeltaRequest, DeltaResource};
pub(super) use sotw::{DiscoveryResponse, SotwRequest, encode_names};

/// A request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Sotw(SotwRequest),
    Delta(DeltaRequest),
}

/// A response that came.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Response {
    Sotw(DiscoveryResponse),
    Delta(DeltaDiscoveryResponse),
}

impl Response {
    /// Reads a message of a stream, or says what is wrong with it.
    pub(super) fn decode(protocol: Protocol, message: Bytes) -> Result<Self, String> {
        match protocol {
            Protocol::Sotw => DiscoveryResponse::decode(message)
                .map(Self::Sotw)
                .map_err(|error| format!("not a DiscoveryResponse: {error}")),
            Protocol::Delta => DeltaDiscoveryResponse::decode(message)
                .map(Self::Delta)
                .map_err(|error| format!("not a DeltaDiscoveryResponse: {error}")),
        }
    }

    pub(super) fn type_url(&self) -> &str {
        match self {
            Self::Sotw(response) => &response.type_url,
            Self::Delta(response) => &response.type_url,
        }
    }

    /// The version of the whole; over delta for people only (P-78).
    pub(super) fn version(&self) -> &str {
        match self {
            Self::Sotw(response) => &response.version_info,
            Self::Delta(response) => &response.system_version_info,
        }
    }

    pub(super) fn nonce(&self) -> &str {
        match self {
            Self::Sotw(response) => &response.nonce,
            Self::Delta(response) => &response.nonce,
        }
    }

    /// How many resources are in it.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Sotw(response) => response.resources.len(),
            Self::Delta(response) => response.resources.len(),
        }
    }

    /// The errors in the place of resources.
    pub(super) fn errors(&self) -> &[ResourceError] {
        match self {
            Self::Sotw(response) => &response.resource_errors,
            Self::Delta(response) => &response.resource_errors,
        }
    }
}

/// A watched resource, and the version of it that a server may be told that we have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub name: Arc<str>,
    pub authority: AuthorityId,
    pub version: Option<Arc<str>>,
}

impl Request {
    /// Its bytes. `node` is asked for only if the request carries it.
    pub(super) fn encode(self, node: impl FnOnce() -> core::Node) -> Bytes {
        match self {
            Self::Sotw(request) => request.encode(node),
            Self::Delta(request) => request.encode(node),
        }
    }
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

/// The bytes of a node, with its metadata in order.
pub(crate) fn encode_node(mut node: core::Node) -> Vec<u8> {
    let metadata = node.metadata.take().map(Fields::from);
    let mut bytes = node.encode_to_vec();
    // Fields of a message may come in any order.
    bytes.extend(Metadata { metadata }.encode_to_vec());
    bytes
}

/// The metadata of `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "3")]
    metadata: Option<Fields>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
struct Fields {
    #[prost(btree_map = "string, message", tag = "1")]
    fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(oneof = "ValueKind", tags = "1, 2, 3, 4, 5, 6")]
    kind: Option<ValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum ValueKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Fields),
    #[prost(message, tag = "6")]
    List(Values),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
struct Values {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

impl From<protobuf::Struct> for Fields {
    fn from(unordered: protobuf::Struct) -> Self {
        Self { fields: unordered.fields.into_iter().map(|(name, value)| (name, value.into())).collect() }
    }
}

impl From<protobuf::Value> for Value {
    fn from(value: protobuf::Value) -> Self {
        let kind = value.kind.map(|kind| match kind {
            Kind::NullValue(null) => ValueKind::Null(null),
            Kind::NumberValue(number) => ValueKind::Number(number),
            Kind::StringValue(string) => ValueKind::String(string),
            Kind::BoolValue(bool) => ValueKind::Bool(bool),
            Kind::StructValue(fields) => ValueKind::Struct(fields.into()),
            Kind::ListValue(list) => {
                ValueKind::List(Values { values: list.values.into_iter().map(Value::from).collect() })
            }
        });
        Self { kind }
    }
}

/// Message name of [`Wrapper`].
pub(super) const WRAPPER: &str = "envoy.service.discovery.v3.Resource";

/// Code of every NACK (P-31).
const INVALID_ARGUMENT: i32 = 3;
