//! How deep what is read and written may be nested, and a stack that is large enough for it.
//!
//! Reading and writing messages by their descriptors goes down one call after the other: without optimization the 2 MiB of a
//! thread of tokio's were used up by 12 LB policies in each other, which a file may well say, and a stack that is used up ends
//! the process.

use std::{io, panic, thread};

use bytes::Buf;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_reflect::{Kind, MessageDescriptor};

use crate::files::tree::{FieldError, Tree, Value};
use crate::type_url::TypeUrl;

/// Does `work` where there is room for anything [`MAX_NESTING`] deep.
pub(super) fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker =
            thread::Builder::new().name("reader".to_owned()).stack_size(STACK_SIZE).spawn_scoped(scope, work)?;
        Ok(worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

/// That maps and lists lie no more than [`MAX_NESTING`] deep in each other. The error names the outermost that does.
pub(super) fn check_tree(tree: &Tree) -> Result<(), FieldError> {
    check_within(tree, MAX_NESTING)
}

fn check_within(tree: &Tree, left: usize) -> Result<(), FieldError> {
    let is_nested = matches!(tree.value, Value::List(_) | Value::Map(_));
    let Some(left) = left.checked_sub(usize::from(is_nested)) else {
        return Err(FieldError::new(tree, TOO_DEEP));
    };
    match &tree.value {
        Value::List(items) => items.iter().enumerate().try_for_each(|(i, item)| {
            check_within(item, left).map_err(|error| error.inside(format!("[{i}]"), item.line))
        }),
        Value::Map(entries) => entries
            .iter()
            .try_for_each(|(key, value)| check_within(value, left).map_err(|error| error.inside(key, value.line))),
        Value::Null | Value::Bool(_) | Value::Signed(_) | Value::Unsigned(_) | Value::Float(_) | Value::String(_) => {
            Ok(())
        }
    }
}

/// That messages lie no more than [`MAX_NESTING`] deep in each other, what an Any holds included: decoders count anew in
/// each of them. The error names the field. Bytes that are no message are somebody else's to refuse.
pub(super) fn check_message(any: &Any, descriptor: &MessageDescriptor) -> Result<(), String> {
    match find_deep(descriptor, &any.encode_to_vec(), MAX_NESTING) {
        None => Ok(()),
        Some(mut path) => {
            path.reverse();
            Err(format!("{}: {TOO_DEEP}", path.join(".")))
        }
    }
}

/// The way from the inside to the outside to what is too deep, if there is such a thing.
fn find_deep(descriptor: &MessageDescriptor, bytes: &[u8], left: usize) -> Option<Vec<String>> {
    let Some(left) = left.checked_sub(1) else { return Some(Vec::new()) };
    if descriptor.full_name() == "google.protobuf.Any" {
        let any = Any::decode(bytes).ok()?;
        let inner =
            descriptor.parent_pool().get_message_by_name(TypeUrl::from(any.type_url.as_str()).message_name())?;
        return find_deep(&inner, &any.value, left);
    }
    let mut rest = bytes;
    while rest.has_remaining() {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        let field = descriptor.get_field(number);
        let Some((field, Kind::Message(inner))) =
            field.map(|field| (field.clone(), field.kind())).filter(|_| wire_type == WireType::LengthDelimited)
        else {
            skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?;
            continue;
        };
        let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let (payload, after) = rest.split_at_checked(length)?;
        if let Some(mut path) = find_deep(&inner, payload, left) {
            path.push(field.name().to_owned());
            return Some(path);
        }
        rest = after;
    }
    None
}

/// What is said of that which is nested deeper than it may be.
const TOO_DEEP: &str = "is nested more than 100 deep";
/// As deep as protobuf's own decoders go. The deepest that means something to gRPC are the 16 nested LB policies of R-66: 85.
const MAX_NESTING: usize = 100;
/// Address space only: what is not used takes no memory.
const STACK_SIZE: usize = 32 << 20;
