//! Extension points: an `Any` that names a type which we may or may not know.

use std::borrow::Cow;

use envoy_types::pb::google::protobuf::{Any, Struct};
use prost::{Message, Name};

use super::fields;
use crate::invalid::Faults;

/// The config of an extension: its type, and its bytes if it came as that very message.
#[derive(Debug)]
pub(crate) struct Extension<'a> {
    type_name: Cow<'a, str>,
    body: Body<'a>,
}

/// How the config came.
#[derive(Debug)]
enum Body<'a> {
    /// As the message.
    Message(&'a [u8]),
    /// As a `TypedStruct`, whose bytes these are: JSON that claims to be the message.
    Struct(&'a [u8]),
}

impl<'a> Extension<'a> {
    /// Reads the type of an extension, looking through `TypedStruct`. `faults` is at the Any.
    pub(crate) fn parse(any: &'a Any, faults: &mut Faults) -> Option<Self> {
        let outer = fields::any_type(any, faults)?;
        if !TYPED_STRUCTS.contains(&outer) {
            return Some(Self { type_name: Cow::Borrowed(outer), body: Body::Message(&any.value) });
        }
        let inner = match TypedStruct::decode(any.value.as_slice()) {
            Ok(inner) => Any { type_url: inner.type_url, value: Vec::new() },
            Err(error) => {
                faults.field("value", |f| f.add(format!("is not a {outer}: {error}")));
                return None;
            }
        };
        let type_name = faults.field("value", |f| fields::any_type(&inner, f).map(str::to_owned))?;
        Some(Self { type_name: Cow::Owned(type_name), body: Body::Struct(&any.value) })
    }

    /// Full name of the message type.
    pub(crate) fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Whether it came as JSON.
    pub(crate) fn is_struct(&self) -> bool {
        matches!(self.body, Body::Struct(_))
    }

    /// The JSON object of a `TypedStruct`; `None` if it cannot be read, or came as a message.
    pub(crate) fn object(&self, faults: &mut Faults) -> Option<Struct> {
        let Body::Struct(bytes) = self.body else {
            faults.add("must be a TypedStruct");
            return None;
        };
        match TypedStructValue::decode(bytes) {
            Ok(inner) => Some(inner.value.unwrap_or_default()),
            Err(error) => {
                faults.field("value", |f| f.add(format!("is not a TypedStruct: {error}")));
                None
            }
        }
    }

    /// Decodes the config as the message `M`; a `TypedStruct` cannot be one.
    pub(crate) fn message<M: Message + Name + Default>(&self, faults: &mut Faults) -> Option<M> {
        let Body::Message(bytes) = self.body else {
            faults.add(format!("cannot parse a TypedStruct: expected {} itself", M::full_name()));
            return None;
        };
        match M::decode(bytes) {
            Ok(message) => Some(message),
            Err(error) => {
                faults.field("value", |f| f.add(format!("is not a {}: {error}", M::full_name())));
                None
            }
        }
    }
}

/// `xds.type.v3.TypedStruct` and `udpa.type.v1.TypedStruct`, without the struct: most types are known by it or unknown.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypedStruct {
    /// The type that the struct claims to be.
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
}

/// The same messages, without the type.
#[derive(Clone, PartialEq, Message)]
struct TypedStructValue {
    #[prost(message, optional, tag = "2")]
    value: Option<Struct>,
}

/// The message types that wrap another type.
const TYPED_STRUCTS: [&str; 2] = ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_type_after_the_last_slash() {
        //
        let any = Any { type_url: "a.example/b/x.y.Z".to_owned(), value: Vec::new() };
        let mut faults = Faults::new();
        assert_eq!(Extension::parse(&any, &mut faults).unwrap().type_name(), "x.y.Z");
        assert!(faults.is_empty());
    }

    #[test]
    fn a_typed_struct_has_its_inner_type() {
        //
        for outer in TYPED_STRUCTS {
            let inner = TypedStruct { type_url: "type.googleapis.com/x.y.Z".to_owned() };
            let any = Any { type_url: format!("type.googleapis.com/{outer}"), value: inner.encode_to_vec() };
            let mut faults = Faults::new();
            assert_eq!(Extension::parse(&any, &mut faults).unwrap().type_name(), "x.y.Z");
            assert!(faults.is_empty());
        }
    }

    #[test]
    fn a_bad_type_url_is_a_fault() {
        //
        let typed_struct = "type.googleapis.com/xds.type.v3.TypedStruct";
        for (type_url, value, path) in [
            ("", vec![], "type_url"),
            ("x.y.Z", vec![], "type_url"),
            ("type.googleapis.com/", vec![], "type_url"),
            (typed_struct, vec![], "value.type_url"),
            (typed_struct, vec![0xff], "value"),
        ] {
            let any = Any { type_url: type_url.to_owned(), value };
            let mut faults = Faults::new();
            assert!(Extension::parse(&any, &mut faults).is_none());
            assert_eq!(faults.finish(()).unwrap_err().faults()[0].path, path, "{type_url:?}");
        }
    }
}
