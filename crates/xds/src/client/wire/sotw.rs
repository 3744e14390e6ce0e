//! The messages of the state-of-the-world variant.

use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::{Any, INVALID_ARGUMENT, ResourceError, Status, encode_node};
use crate::resource::ResourceType;

/// `envoy.service.discovery.v3.DiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::client) struct DiscoveryResponse {
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

/// What one `DiscoveryRequest` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) struct SotwRequest {
    pub resource_type: ResourceType,
    /// Every name that is subscribed, canonical, each once (P-27, P-33), by [`encode_names`].
    pub names: Arc<[u8]>,
    pub version: Arc<str>,
    pub nonce: Arc<str>,
    /// Text of a NACK.
    pub error: Option<String>,
    /// Whether it opens the stream, so that it must carry the node (P-16).
    pub first: bool,
}

impl SotwRequest {
    /// Its bytes. `node` is asked for only if the request carries it.
    pub(super) fn encode(self, node: impl FnOnce() -> core::Node) -> Bytes {
        let head = Head { version_info: self.version.to_string(), node: self.first.then(|| encode_node(node())) };
        let tail = Tail {
            type_url: self.resource_type.type_url().to_owned(),
            response_nonce: self.nonce.to_string(),
            error_detail: self.error.map(|message| Status { code: INVALID_ARGUMENT, message }),
        };
        let mut bytes = Vec::with_capacity(head.encoded_len() + self.names.len() + tail.encoded_len());
        head.encode_raw(&mut bytes);
        bytes.extend_from_slice(&self.names);
        tail.encode_raw(&mut bytes);
        bytes.into()
    }
}

/// Names as they stand in a request. It is the long part of it, and mostly the same as in the one before.
pub(in crate::client) fn encode_names<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        encode_key(RESOURCE_NAMES, WireType::LengthDelimited, &mut bytes);
        encode_varint(name.len() as u64, &mut bytes);
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes
}

/// The fields of `envoy.service.discovery.v3.DiscoveryRequest` (P-7) before the names. To the wire, bytes are the same as
/// a message.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    node: Option<Vec<u8>>,
}

/// Those after the names.
#[derive(Clone, PartialEq, Message)]
struct Tail {
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    response_nonce: String,
    #[prost(message, optional, tag = "6")]
    error_detail: Option<Status>,
}

/// The number of the field `resource_names`.
const RESOURCE_NAMES: u32 = 3;

#[cfg(test)]
mod tests {
    use std::iter;

    use envoy_types::pb::envoy::service::discovery::v3 as discovery;
    use envoy_types::pb::google::protobuf;
    use envoy_types::pb::google::protobuf::value::Kind;

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
        let request = || SotwRequest {
            resource_type: ResourceType::Cluster,
            names: encode_names(["c".into(), "d".into()].iter()).into(),
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
