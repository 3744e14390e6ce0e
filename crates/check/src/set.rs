//! The resources that one node is served, decoded, by type and name.

use std::collections::BTreeMap;

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpointCollection};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::{Resource, ResourceType};
use prost::Message;

use crate::input::{Body, Item};
use crate::parse::Parser;

/// What one node is served.
#[derive(Debug, Default)]
pub(crate) struct Set<'i> {
    /// All of it, in the order in which it was found.
    pub(crate) items: Vec<&'i Item>,
    pub(crate) listeners: Table<'i, Listener>,
    pub(crate) routes: Table<'i, RouteConfiguration>,
    pub(crate) clusters: Table<'i, Cluster>,
    pub(crate) endpoints: Table<'i, ClusterLoadAssignment>,
    pub(crate) collections: Table<'i, LbEndpointCollection>,
    /// Everything that is there, of whatever kind, with its size; absent ones are not.
    pub(crate) names: BTreeMap<(ResourceType, String), &'i Item>,
}

/// Resources of one type by canonical name.
pub(crate) type Table<'i, M> = BTreeMap<String, Decoded<'i, M>>;

/// A resource that could be decoded, if not used.
#[derive(Debug)]
pub(crate) struct Decoded<'i, M> {
    pub(crate) item: &'i Item,
    pub(crate) message: M,
    /// What a client makes of it; nothing if it rejects it.
    pub(crate) value: Option<Resource>,
}

impl<'i> Set<'i> {
    /// What a node is served: its own, and what is for all nodes.
    pub(crate) fn new(items: &'i [Item], node: Option<&str>, parser: &Parser<'_>) -> Self {
        let mut set = Self::default();
        let own: BTreeMap<_, _> = items
            .iter()
            .filter(|item| item.node.is_some() && item.node.as_deref() == node)
            .map(|item| ((&item.message_name, &item.name), ()))
            .collect();
        for item in items {
            let is_replaced = item.node.is_none() && own.contains_key(&(&item.message_name, &item.name));
            if (item.node.is_none() || item.node.as_deref() == node) && !is_replaced {
                set.insert(item, parser);
            }
        }
        set
    }

    fn insert(&mut self, item: &'i Item, parser: &Parser<'_>) {
        self.items.push(item);
        let Some(resource_type) = ResourceType::from_type_url(&item.message_name) else { return };
        let name = canonical(resource_type, &item.name);
        let Body::Message(bytes) = &item.body else { return };
        self.names.entry((resource_type, name.clone())).or_insert(item);
        let value = parser.value(resource_type, bytes);
        match resource_type {
            ResourceType::Listener => put(&mut self.listeners, name, item, bytes, value),
            ResourceType::RouteConfig => put(&mut self.routes, name, item, bytes, value),
            ResourceType::Cluster => put(&mut self.clusters, name, item, bytes, value),
            ResourceType::Endpoints => put(&mut self.endpoints, name, item, bytes, value),
            ResourceType::EndpointCollection => put(&mut self.collections, name, item, bytes, value),
            ResourceType::EndpointGlob => {}
        }
    }

    /// Whether there is such a resource, or it can only come from somebody else: names of an authority of which nothing is
    /// here are another control plane's.
    pub(crate) fn has(&self, resource_type: ResourceType, name: &str) -> bool {
        let canonical_name = canonical(resource_type, name);
        if self.names.contains_key(&(resource_type, canonical_name)) {
            return true;
        }
        match authority(resource_type, name) {
            None => false,
            Some(authority) => !self
                .names
                .keys()
                .any(|(other, name)| self::authority(*other, name).is_some_and(|other| other == authority)),
        }
    }

    /// What is known of a resource that is not there.
    pub(crate) fn absence(&self, resource_type: ResourceType, name: &str) -> String {
        let wanted = canonical(resource_type, name);
        let found = self.items.iter().find(|item| {
            ResourceType::from_type_url(&item.message_name) == Some(resource_type)
                && canonical(resource_type, &item.name) == wanted
        });
        match found.map(|item| &item.body) {
            Some(Body::Error) => " (it is answered with an error)".to_owned(),
            Some(Body::Nothing { status }) => format!(" ({status})"),
            Some(Body::Message(_)) | None => self.similar(resource_type, name),
        }
    }

    /// A name of that type that is nearly the same.
    fn similar(&self, resource_type: ResourceType, name: &str) -> String {
        let names = self.names.keys().filter(|(other, _)| *other == resource_type).map(|(_, name)| name.as_str());
        crate::names::nearest(name, names).map_or_else(String::new, |near| format!(": did you mean {near:?}?"))
    }
}

fn put<'i, M: Message + Default>(
    table: &mut Table<'i, M>,
    name: String,
    item: &'i Item,
    bytes: &Bytes,
    value: Option<Resource>,
) {
    if let Ok(message) = M::decode(bytes.as_ref()) {
        table.entry(name).or_insert(Decoded { item, message, value });
    }
}

/// The name under which a client keeps it (P-84); as written if it is none.
pub(crate) fn canonical(resource_type: ResourceType, name: &str) -> String {
    ResourceKey::parse(resource_type, name, true).map_or_else(|_| name.to_owned(), |(key, _)| key.name.to_string())
}

/// The authority of a new-style name.
pub(crate) fn authority(resource_type: ResourceType, name: &str) -> Option<String> {
    match ResourceKey::parse(resource_type, name, true) {
        Ok((_, AuthorityKey::Named(authority))) => Some(authority.to_string()),
        Ok((_, AuthorityKey::TopLevel)) | Err(_) => None,
    }
}
