//! Nodes, as bootstraps write them and as they go over the wire.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::{Locality, Node};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::Value as Json;

/// The node of a bootstrap as a message.
pub(crate) fn node_of(json: &Json) -> Node {
    let text = |of: &Json, field: &str| of.get(field).and_then(Json::as_str).unwrap_or_default().to_owned();
    let locality = json.get("locality").map(|locality| Locality {
        region: text(locality, "region"),
        zone: text(locality, "zone"),
        sub_zone: text(locality, "sub_zone"),
    });
    let metadata = json.get("metadata").and_then(Json::as_object);
    Node {
        id: text(json, "id"),
        cluster: text(json, "cluster"),
        locality,
        metadata: metadata.map(|fields| Struct { fields: fields_of(fields) }),
        user_agent_name: "Mainstay mirror".to_owned(),
        ..Node::default()
    }
}

fn fields_of(fields: &serde_json::Map<String, Json>) -> HashMap<String, Value> {
    fields.iter().map(|(name, value)| (name.clone(), value_of(value))).collect()
}

fn value_of(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(items) => Kind::ListValue(ListValue { values: items.iter().map(value_of).collect() }),
        Json::Object(fields) => Kind::StructValue(Struct { fields: fields_of(fields) }),
    };
    Value { kind: Some(kind) }
}

/// Whether a value of a message says the same as one of a file.
pub(crate) fn is_equal(value: &Value, json: &Json) -> bool {
    match (value.kind.as_ref(), json) {
        (None | Some(Kind::NullValue(_)), Json::Null) => true,
        (Some(Kind::BoolValue(value)), Json::Bool(other)) => value == other,
        (Some(Kind::NumberValue(value)), Json::Number(other)) => other.as_f64() == Some(*value),
        (Some(Kind::StringValue(value)), Json::String(other)) => value == other,
        (Some(Kind::ListValue(ListValue { values })), Json::Array(others)) => {
            values.len() == others.len() && values.iter().zip(others).all(|(value, other)| is_equal(value, other))
        }
        (Some(Kind::StructValue(Struct { fields })), Json::Object(others)) => {
            let has = |(name, other): (&String, &Json)| fields.get(name).is_some_and(|value| is_equal(value, other));
            fields.len() == others.len() && others.iter().all(has)
        }
        _ => false,
    }
}
