//! Between trees and protobuf messages, with the descriptors of all of Envoy's types.

use std::sync::LazyLock;

use bytes::Buf;
use envoy_types::pb::envoy::service::discovery::v3::Resource as Wrapper;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, SerializeOptions};
use serde::{Serialize, Serializer};

use crate::files::depth::check_message;
use crate::files::tree::{FieldError, TYPE_KEY, Tree};
use crate::snapshot::{Body, Resource};
use crate::type_url::TypeUrl;

/// Reads a resource: a message that says its type and has a name, or one inside the wrapper that gives it a name.
/// `key` is the name under which it stands in a map, if it does.
pub(super) fn read_resource(tree: &Tree, key: Option<&str>) -> Result<Resource, FieldError> {
    let any = read_any(tree)?;
    let type_url = TypeUrl::from(any.type_url.as_str());
    if type_url == TypeUrl::RESOURCE {
        return unwrap(tree, &any, key);
    }
    let own_name = name_of(&any);
    let name = match (own_name, key) {
        (Some(name), Some(key)) if name != key => {
            return Err(FieldError::new(tree, format!("its name is {name:?} but it stands under {key:?}")));
        }
        (Some(name), _) => name,
        (None, Some(key)) if type_url.is_nameless() => key.to_owned(),
        (None, _) if type_url.is_nameless() => {
            let problem = format!(
                "{} has no name of its own; wrap it as {{\"@type\": {}, name: …, resource: …}}",
                type_url.message_name(),
                TypeUrl::RESOURCE
            );
            return Err(FieldError::new(tree, problem));
        }
        (None, _) => {
            return Err(FieldError::new(tree, format!("a {} needs a name", type_url.message_name())));
        }
    };
    Ok(Resource::new(type_url, name, any.value))
}

/// Reads any message that need not say its type, and encodes it.
pub(super) fn read_message(tree: &Tree, name: &str) -> Result<Vec<u8>, FieldError> {
    let known = POOL.as_ref().ok().and_then(|pool| pool.get_message_by_name(name));
    let descriptor = known.ok_or_else(|| FieldError::new(tree, format!("no message type {name:?} is known")))?;
    let message = DynamicMessage::deserialize_with_options(descriptor, tree, &DeserializeOptions::new())?;
    Ok(message.encode_to_vec())
}

/// Writes a resource in the form that [`read_resource`] reads. An error has no such form.
pub(super) fn write_resource(resource: &Resource) -> Result<Json, String> {
    let Body::Message(any) = &resource.body else { return Err("an error is not a message".to_owned()) };
    // Whatever does not carry its name inside must carry it outside.
    if name_of(any).as_deref() == Some(resource.name.as_str()) {
        return Json::new(any);
    }
    let wrapper = Wrapper { name: resource.name.clone(), resource: Some(any.clone()), ..Wrapper::default() };
    Json::new(&Any { type_url: TypeUrl::RESOURCE.as_str().to_owned(), value: wrapper.encode_to_vec() })
}

/// A message that serializes as canonical JSON with the field names of the `.proto` files.
pub(super) struct Json(DynamicMessage);

impl Json {
    fn new(any: &Any) -> Result<Self, String> {
        let descriptor = any_descriptor()?;
        check_message(any, &descriptor)?;
        let message = DynamicMessage::decode(descriptor, any.encode_to_vec().as_slice());
        message.map(Self).map_err(|error| error.to_string())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize_with_options(serializer, &SerializeOptions::new().use_proto_field_name(true))
    }
}

fn read_any(tree: &Tree) -> Result<Any, FieldError> {
    let Some(type_url) = tree.get(TYPE_KEY) else {
        let problem = format!("expected a resource with \"@type\", found {}", tree.describe());
        return Err(FieldError::new(tree, problem));
    };
    let Some(url) = type_url.as_str() else {
        let problem = format!("expected a type URL, found {}", type_url.describe());
        return Err(FieldError::new(type_url, problem).inside(TYPE_KEY, None));
    };
    let name = url.rsplit_once('/').map_or(url, |(_, name)| name);
    let known = POOL.as_ref().ok().and_then(|pool| pool.get_message_by_name(name));
    let Some(descriptor) = known else {
        return Err(FieldError::new(type_url, format!("no message type {name:?} is known")).inside(TYPE_KEY, None));
    };
    let any = any_descriptor().map_err(|problem| FieldError::new(tree, problem))?;
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(any, tree, &options)?;
    let any = Any::decode(message.encode_to_vec().as_slice())
        .map_err(|error| FieldError::new(tree, format!("cannot be encoded: {error}")))?;
    let value = canonical(&descriptor, &any.value, MAX_DEPTH).unwrap_or(any.value);
    Ok(Any { type_url: any.type_url, value })
}

fn unwrap(tree: &Tree, any: &Any, key: Option<&str>) -> Result<Resource, FieldError> {
    let wrapper = Wrapper::decode(any.value.as_slice())
        .map_err(|error| FieldError::new(tree, format!("cannot be decoded: {error}")))?;
    let missing = |field: &str| FieldError::new(tree, "expected a value, found nothing").inside(field, None);
    let name = if wrapper.name.is_empty() { key.map(str::to_owned) } else { Some(wrapper.name) };
    let name = name.ok_or_else(|| missing("name"))?;
    let inner = wrapper.resource.ok_or_else(|| missing("resource"))?;
    let type_url = TypeUrl::from(inner.type_url.as_str());
    for (other, whose) in [(key.map(str::to_owned), "it stands under"), (name_of(&inner), "the resource inside is")] {
        if let Some(other) = other.filter(|other| *other != name) {
            return Err(FieldError::new(tree, format!("its name is {name:?} but {whose} {other:?}")));
        }
    }
    Ok(Resource::new(type_url, name, inner.value))
}

/// The name inside a message, if it has one. Only the message itself is looked at, and nothing that lies in it.
fn name_of(any: &Any) -> Option<String> {
    let type_url = TypeUrl::from(any.type_url.as_str());
    let descriptor = POOL.as_ref().ok()?.get_message_by_name(type_url.message_name())?;
    let field = descriptor.get_field_by_name(if type_url == TypeUrl::ENDPOINTS { "cluster_name" } else { "name" })?;
    if field.kind() != Kind::String || field.is_list() {
        return None;
    }
    let (mut rest, mut name) = (any.value.as_slice(), None);
    while rest.has_remaining() {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        if number != field.number() {
            skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let (text, after) = rest.split_at_checked(length)?;
        // The last one counts.
        name = Some(std::str::from_utf8(text).ok()?.to_owned());
        rest = after;
    }
    name.filter(|name| !name.is_empty())
}

/// The same message with its fields in the order of their numbers and its maps in the order of their bytes. Maps are
/// encoded in random order otherwise, and the same file would give another resource each time it is read.
fn canonical(descriptor: &MessageDescriptor, bytes: &[u8], depth: usize) -> Option<Vec<u8>> {
    let depth = depth.checked_sub(1)?;
    if descriptor.full_name() == "google.protobuf.Any" {
        let mut any = Any::decode(bytes).ok()?;
        let inner = descriptor.parent_pool().get_message_by_name(TypeUrl::from(any.type_url.as_str()).message_name());
        if let Some(value) = inner.and_then(|inner| canonical(&inner, &any.value, depth)) {
            any.value = value;
        }
        return Some(any.encode_to_vec());
    }
    let mut fields = Vec::new();
    let mut rest = bytes;
    while rest.has_remaining() {
        let before = rest;
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        let field = descriptor.get_field(number);
        let mut encoded = Vec::new();
        match (wire_type, field.as_ref().map(|field| field.kind())) {
            (WireType::LengthDelimited, Some(Kind::Message(inner))) => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                let (payload, after) = rest.split_at_checked(length)?;
                let payload = canonical(&inner, payload, depth)?;
                encode_key(number, wire_type, &mut encoded);
                encode_varint(payload.len() as u64, &mut encoded);
                encoded.extend(payload);
                rest = after;
            }
            _ => {
                skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?;
                encoded.extend(before.iter().take(before.len() - rest.len()));
            }
        }
        let is_map = field.is_some_and(|field| field.is_map());
        fields.push((number, is_map, encoded));
    }
    fields.sort_by(|(a, _, one), (b, is_map, other)| {
        a.cmp(b).then_with(|| match is_map {
            true => one.cmp(other),
            false => std::cmp::Ordering::Equal,
        })
    });
    Some(fields.into_iter().flat_map(|(_, _, encoded)| encoded).collect())
}

fn any_descriptor() -> Result<MessageDescriptor, String> {
    let pool = POOL.as_ref().map_err(Clone::clone)?;
    pool.get_message_by_name("google.protobuf.Any").ok_or_else(|| "google.protobuf.Any is not known".to_owned())
}

static POOL: LazyLock<Result<DescriptorPool, String>> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).map_err(|error| error.to_string()));

/// Every message and service of Envoy, as an encoded `FileDescriptorSet`: for reflection and for reading files.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/types.bin"));
/// Deeper messages are left as they are.
const MAX_DEPTH: usize = 100;
