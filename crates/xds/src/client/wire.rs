//! The envelope messages of ADS.
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
        let request = DiscoveryRequest {
            version_info: self.version.to_string(),
            node: self.first.then(|| encode_node(node())),
            resource_names: self.names.iter().map(|name| name.to_string()).collect(),
            type_url: self.resource_type.type_url().to_owned(),
            response_nonce: self.nonce.to_string(),
            error_detail: self.error.map(|message| Status { code: INVALID_ARGUMENT, message }),
        };
        request.encode_to_vec().into()
    }
}

/// `envoy.service.discovery.v3.DiscoveryRequest` (P-7). To the wire, bytes are the same as a message.
#[derive(Clone, PartialEq, Message)]
struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    node: Option<Vec<u8>>,
    #[prost(string, repeated, tag = "3")]
    resource_names: Vec<String>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    response_nonce: String,
    #[prost(message, optional, tag = "6")]
    error_detail: Option<Status>,
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

#[cfg(test)]
mod tests {
    use std::iter;

    use envoy_types::pb::envoy::service::discovery::v3 as discovery;

    use super::*;

    #[test]
    fn the_same_request_is_the_same_bytes_and_says_what_the_node_says() {
        let value = |kind| protobuf::Value { kind: Some(kind) };
        let deep = || {
            let fields = (0..20).map(|n| (format!("key{n}"), value(Kind::NumberValue(f64::from(n))))).collect();
            protobuf::Struct { fields }
        };
        let node = || {
            let list = protobuf::ListValue { values: vec![value(Kind::BoolValue(true)), value(Kind::NullValue(0))] };
            let mut metadata = deep();
            metadata.fields.insert("list".to_owned(), value(Kind::ListValue(list)));
            metadata.fields.insert("deep".to_owned(), value(Kind::StructValue(deep())));
            metadata.fields.insert("text".to_owned(), value(Kind::StringValue("x".to_owned())));
            core::Node { id: "node".to_owned(), metadata: Some(metadata), ..core::Node::default() }
        };
        let request = || Request {
            resource_type: ResourceType::Cluster,
            names: vec!["c".into(), "d".into()],
            version: "1".into(),
            nonce: "2".into(),
            error: Some("wrong".to_owned()),
            first: true,
        };
        let bytes = request().encode(node);
        assert!(iter::repeat_with(|| request().encode(node)).take(20).all(|again| again == bytes));

        let read = discovery::DiscoveryRequest::decode(bytes).unwrap();
        let error = read.error_detail.unwrap();
        assert_eq!(read.node, Some(node()));
        assert_eq!(read.resource_names, ["c", "d"]);
        assert_eq!((&*read.version_info, &*read.response_nonce), ("1", "2"));
        assert_eq!((read.type_url.as_str(), error.code), (ResourceType::Cluster.type_url(), INVALID_ARGUMENT));
        assert_eq!(error.message, "wrong");
    }
}
