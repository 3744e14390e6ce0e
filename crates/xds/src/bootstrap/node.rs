//! The node as it goes to servers.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3 as pb;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};

use super::{MetadataValue, Node, NodeLocality};

impl Node {
    /// The node message of a first request and of CSDS (B-24). The user agent and the features are
    /// the client's, never the bootstrap's (B-22).
    pub fn to_proto(&self, user_agent_name: &str, user_agent_version: &str, features: &[&str]) -> pb::Node {
        pb::Node {
            id: self.id.clone(),
            cluster: self.cluster.clone(),
            // A message without content is left out, as if the bootstrap had not named it.
            locality: (self.locality != NodeLocality::default()).then(|| self.locality.to_proto()),
            metadata: (!self.metadata.is_empty()).then(|| to_struct(&self.metadata)),
            user_agent_name: user_agent_name.to_owned(),
            user_agent_version_type: Some(pb::node::UserAgentVersionType::UserAgentVersion(
                user_agent_version.to_owned(),
            )),
            client_features: features.iter().map(|feature| (*feature).to_owned()).collect(),
            ..pb::Node::default()
        }
    }
}

impl NodeLocality {
    fn to_proto(&self) -> pb::Locality {
        pb::Locality { region: self.region.clone(), zone: self.zone.clone(), sub_zone: self.sub_zone.clone() }
    }
}

impl MetadataValue {
    /// A number.
    pub fn number(number: f64) -> Self {
        Self::Number(number.to_bits())
    }

    fn to_proto(&self) -> Value {
        let kind = match self {
            Self::Null => Kind::NullValue(0),
            Self::Bool(bool) => Kind::BoolValue(*bool),
            Self::Number(bits) => Kind::NumberValue(f64::from_bits(*bits)),
            Self::String(string) => Kind::StringValue(string.clone()),
            Self::List(values) => {
                Kind::ListValue(ListValue { values: values.iter().map(MetadataValue::to_proto).collect() })
            }
            Self::Struct(fields) => Kind::StructValue(to_struct(fields)),
        };
        Value { kind: Some(kind) }
    }
}

fn to_struct(fields: &BTreeMap<String, MetadataValue>) -> Struct {
    Struct { fields: fields.iter().map(|(name, value)| (name.clone(), value.to_proto())).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{minimal, parse};
    use super::{Kind, Node, pb};

    #[test]
    fn the_node_goes_out_as_it_is_with_the_clients_own_fields() {
        // B-21, B-22, B-23, B-24
        let mut value = minimal("a");
        value["node"] = json!({
            "id": "n", "cluster": "c", "locality": {"region": "r", "zone": "z", "sub_zone": "s", "subZone": "no"},
            "metadata": {"k": [null, true, -1.5, {"x": "y"}]},
            "user_agent_name": "no", "user_agent_version": "no", "client_features": ["no"], "build_version": "no",
        });
        let node = parse(&value).unwrap().node.to_proto("Mainstay", "1.2", &["f1", "f2"]);
        assert_eq!((&*node.id, &*node.cluster, &*node.user_agent_name), ("n", "c", "Mainstay"));
        assert_eq!(node.locality, Some(pb::Locality { region: "r".into(), zone: "z".into(), sub_zone: "s".into() }));
        assert_eq!(
            node.user_agent_version_type,
            Some(pb::node::UserAgentVersionType::UserAgentVersion("1.2".to_owned()))
        );
        assert_eq!(node.client_features, ["f1", "f2"]);

        let metadata = node.metadata.unwrap().fields;
        let Some(Kind::ListValue(list)) = &metadata["k"].kind else { panic!("k is a list") };
        let [null, yes, number, object] = &list.values[..] else { panic!("k has four values") };
        assert_eq!(null.kind, Some(Kind::NullValue(0)));
        assert_eq!(yes.kind, Some(Kind::BoolValue(true)));
        assert_eq!(number.kind, Some(Kind::NumberValue(-1.5)));
        let Some(Kind::StructValue(object)) = &object.kind else { panic!("the last value is an object") };
        assert_eq!(object.fields["x"].kind, Some(Kind::StringValue("y".to_owned())));
    }

    #[test]
    fn an_empty_node_has_neither_locality_nor_metadata() {
        // B-21: all optional.
        let node = Node::default().to_proto("Mainstay", "1", &[]);
        assert_eq!((node.id.as_str(), node.locality, node.metadata), ("", None, None));
    }
}
