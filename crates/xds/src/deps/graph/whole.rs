//! Of which resources the clusters in force are made, when they are whole (FB-4).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Graph, RootSet, Shape};
use crate::deps::config::ClusterResult;
use crate::deps::watch::key;
use crate::name::{ResourceKey, is_glob};
use crate::resource::{Cluster, EndpointCollection, EndpointGlob, Endpoints};
use crate::shared::SharedMap;

impl Graph {
    /// Adds the resources of the clusters that the routes in force need; `None` if one of them waits for something, or
    /// is not what it is in `published`. What only subscriptions keep is not a part of it: their routes are gone.
    pub(in crate::deps) fn whole(
        &self,
        published: &SharedMap<Arc<str>, ClusterResult>,
        resources: &mut BTreeSet<ResourceKey>,
    ) -> Option<()> {
        if !self.incomplete.is_empty() || !self.holding.is_empty() {
            return None;
        }
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.is_reached(RootSet::InForce)) {
            if !node.settled || node.troubled || published.get(name) != node.built.as_ref() {
                return None;
            }
            resources.insert(key::<Cluster>(&node.canonical));
            let Shape::Eds { endpoints, collections } = &node.shape else { continue };
            resources.insert(key::<Endpoints>(&endpoints.canonical));
            resources.extend(collections.values().map(|name| match is_glob(&name.canonical) {
                true => key::<EndpointGlob>(&name.canonical),
                false => key::<EndpointCollection>(&name.canonical),
            }));
        }
        Some(())
    }
}
