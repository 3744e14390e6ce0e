//! Of which class a node is (FB-14).

use envoy_types::pb::envoy::config::core::v3::Node;
use regex::Regex;

use crate::node::is_equal;

/// The classes, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Classes(pub Vec<Class>);

/// A class of nodes that the primary tells the same.
#[derive(Clone, Debug)]
pub struct Class {
    /// What it is called.
    pub name: String,
    /// Which nodes are of it; `None` if none is by itself.
    pub matches: Option<NodeMatch>,
    /// Whether it takes the nodes that no class matches.
    pub is_default: bool,
}

/// What must be true of a node. All that is given must be.
#[derive(Clone, Debug, Default)]
pub struct NodeMatch {
    /// Of its id.
    pub id: Option<IdMatch>,
    /// Its cluster.
    pub cluster: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Its zone.
    pub zone: Option<String>,
    /// Its part of the zone.
    pub sub_zone: Option<String>,
    /// Values in its metadata, by key; no value: there must be one, whatever it is.
    pub metadata: Vec<(String, Option<serde_json::Value>)>,
}

/// What must be true of the id of a node.
#[derive(Clone, Debug)]
pub enum IdMatch {
    /// It is this.
    Exact(String),
    /// It begins so.
    Prefix(String),
    /// All of it matches this expression.
    Regex(Regex),
}

/// A node is of no class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {id:?} of cluster {cluster:?} is of none of the classes {classes}, and none of them is the default")]
pub struct NoClass {
    id: String,
    cluster: String,
    classes: String,
}

impl Classes {
    /// The class of a node: the first one that matches, or else the default.
    ///
    /// # Errors
    /// If there is none. To guess would hand the routes of one tenant to another.
    pub fn of(&self, node: &Node) -> Result<&Class, NoClass> {
        let matching = self.0.iter().find(|class| class.matches.as_ref().is_some_and(|matches| matches.contains(node)));
        matching.or_else(|| self.0.iter().find(|class| class.is_default)).ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|class| format!("{:?}", class.name)).collect();
            NoClass { id: node.id.clone(), cluster: node.cluster.clone(), classes: names.join(", ") }
        })
    }
}

impl NodeMatch {
    fn contains(&self, node: &Node) -> bool {
        let locality = node.locality.clone().unwrap_or_default();
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let has = |(key, wanted): &(String, Option<serde_json::Value>)| {
            let value = node.metadata.as_ref().and_then(|metadata| metadata.fields.get(key));
            value.is_some_and(|value| wanted.as_ref().is_none_or(|wanted| is_equal(value, wanted)))
        };
        self.id.as_ref().is_none_or(|id| id.contains(&node.id))
            && is(&self.cluster, &node.cluster)
            && is(&self.region, &locality.region)
            && is(&self.zone, &locality.zone)
            && is(&self.sub_zone, &locality.sub_zone)
            && self.metadata.iter().all(has)
    }
}

impl IdMatch {
    fn contains(&self, id: &str) -> bool {
        match self {
            Self::Exact(exact) => id == exact,
            Self::Prefix(prefix) => id.starts_with(prefix.as_str()),
            Self::Regex(regex) => regex.is_match(id),
        }
    }
}
