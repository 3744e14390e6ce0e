//! Sets of resources, as they came: names, bytes and versions of the primary (FB-17).

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpointCollection};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use mainstay_control_plane::{Resource, Snapshot};
use mainstay_xds::local::Stored;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::resource::endpoint::glob_of;
use prost::Message;

/// Resources by type and name; members of glob collections one by one.
pub type Set = BTreeMap<ResourceKey, Stored>;

/// All resources of several sets. Where some have one of the same name, the newest: they are of one server, and follow it at
/// slightly different moments. Whatever the one of a set refers to is in that set, so what is left out breaks nothing.
pub fn union<'a>(sets: impl IntoIterator<Item = &'a Arc<Set>>) -> Set {
    let mut all = Set::new();
    for (key, stored) in sets.into_iter().flat_map(|set| set.iter()) {
        let is_newer = all.get(key).is_none_or(|other| other.received_at <= stored.received_at);
        if is_newer {
            all.insert(key.clone(), stored.clone());
        }
    }
    all
}

/// Whether two sets say the same, whenever it came.
pub fn is_same(one: &Set, other: &Set) -> bool {
    let content = |stored: &Stored| (stored.resource.clone(), stored.version.clone(), stored.value.clone());
    one.len() == other.len() && one.values().map(content).eq(other.values().map(content))
}

/// What a control plane serves for a set.
pub fn snapshot(set: &Set) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for stored in set.values() {
        let type_url = stored.resource.resource_type.type_url();
        let resource = Resource::new(type_url, &*stored.resource.name, stored.value.to_vec());
        snapshot.insert_with_version(resource, &*stored.version);
    }
    snapshot
}

/// How much there is in a set of what traffic needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Listeners.
    pub listeners: usize,
    /// Routes in all route configurations, with those inside of Listeners.
    pub routes: usize,
    /// Clusters.
    pub clusters: usize,
    /// Endpoints.
    pub all_endpoints: usize,
    /// Endpoints by the name of the resource that lists them.
    pub endpoints: BTreeMap<Arc<str>, usize>,
}

impl Size {
    /// Of a set. What cannot be read counts as nothing; it was validated before it came into a set.
    pub fn of(set: &Set) -> Self {
        let mut size = Self::default();
        let mut members: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for (key, stored) in set {
            match key.resource_type {
                ResourceType::EndpointGlob => {
                    let glob = glob_of(&key.name).map_or_else(|| key.name.clone(), Into::into);
                    *members.entry(glob).or_default() += 1;
                }
                ResourceType::EndpointCollection => {
                    let collection = LbEndpointCollection::decode(&*stored.value).unwrap_or_default();
                    members.insert(key.name.clone(), collection.entries.len());
                }
                ResourceType::Listener
                | ResourceType::RouteConfig
                | ResourceType::Cluster
                | ResourceType::Endpoints => {}
            }
        }
        for (key, stored) in set {
            match key.resource_type {
                ResourceType::Listener => {
                    size.listeners += 1;
                    size.routes += routes_inside(&stored.value).map_or(0, |routes| count_routes(&routes));
                }
                ResourceType::RouteConfig => {
                    size.routes += RouteConfiguration::decode(&*stored.value).map_or(0, |routes| count_routes(&routes));
                }
                ResourceType::Cluster => size.clusters += 1,
                ResourceType::Endpoints => {
                    let endpoints = count_endpoints(&stored.value, &members);
                    size.all_endpoints += endpoints;
                    size.endpoints.insert(key.name.clone(), endpoints);
                }
                ResourceType::EndpointCollection | ResourceType::EndpointGlob => {}
            }
        }
        size
    }

    /// The larger of two, of each thing.
    pub fn max(&self, other: &Self) -> Self {
        let mut endpoints = self.endpoints.clone();
        for (name, count) in &other.endpoints {
            let most = endpoints.entry(name.clone()).or_default();
            *most = (*most).max(*count);
        }
        Self {
            listeners: self.listeners.max(other.listeners),
            routes: self.routes.max(other.routes),
            clusters: self.clusters.max(other.clusters),
            all_endpoints: self.all_endpoints.max(other.all_endpoints),
            endpoints,
        }
    }
}

fn count_routes(routes: &RouteConfiguration) -> usize {
    routes.virtual_hosts.iter().map(|host| host.routes.len()).sum()
}

/// The routes that a Listener has inside.
fn routes_inside(listener: &[u8]) -> Option<RouteConfiguration> {
    let listener = Listener::decode(listener).ok()?;
    let manager = HttpConnectionManager::decode(&*listener.api_listener?.api_listener?.value).ok()?;
    match manager.route_specifier? {
        RouteSpecifier::RouteConfig(routes) => Some(routes),
        RouteSpecifier::Rds(_) | RouteSpecifier::ScopedRoutes(_) => None,
    }
}

fn count_endpoints(assignment: &[u8], members: &BTreeMap<Arc<str>, usize>) -> usize {
    use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
    let assignment = ClusterLoadAssignment::decode(assignment).unwrap_or_default();
    let in_locality = |locality: &envoy_types::pb::envoy::config::endpoint::v3::LocalityLbEndpoints| {
        let listed = if let Some(LbConfig::LedsClusterLocalityConfig(leds)) = &locality.lb_config {
            members.get(leds.leds_collection_name.as_str()).copied()
        } else {
            None
        };
        locality.lb_endpoints.len() + listed.unwrap_or(0)
    };
    assignment.endpoints.iter().map(in_locality).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use mainstay_control_plane::{Body, SnapshotBuilder, resources};

    use super::*;

    /// What a client would hold of a snapshot, with versions of one server.
    pub(crate) fn set_of(snapshot: impl Into<Snapshot>, received_at: u64) -> Set {
        let snapshot: Snapshot = snapshot.into();
        let stored = |resource: Resource| {
            let resource_type = ResourceType::from_type_url(resource.type_url.as_str()).unwrap();
            let Body::Message(any) = resource.body else { panic!("an error is nothing to hold") };
            let key = ResourceKey { resource_type, name: resource.name.as_str().into() };
            let stored = Stored {
                resource: key.clone(),
                version: "7".into(),
                value: any.value.into(),
                source: "primary:1".into(),
                received_at: Duration::from_secs(received_at),
            };
            (key, stored)
        };
        snapshot.resources().map(stored).collect()
    }

    /// A service with one cluster and so many endpoints.
    pub(crate) fn service(name: &str, endpoints: usize) -> SnapshotBuilder {
        let addresses: Vec<String> = (0..endpoints).map(|n| format!("10.0.0.{n}:80")).collect();
        Snapshot::builder()
            .listener(resources::listener(name, resources::rds(name)))
            .route(resources::route(name, name))
            .cluster(resources::eds_cluster(name))
            .endpoints(resources::endpoints(name, addresses.iter().map(String::as_str)))
    }

    #[test]
    fn a_set_is_served_with_the_bytes_and_versions_that_it_came_with_fb17() {
        let set = set_of(service("a", 2), 1);
        let served = snapshot(&set);
        assert_eq!(set_of(served, 1), set);
    }

    #[test]
    fn of_equal_names_the_newest_is_taken_and_nothing_is_lost() {
        let (old, new) = (Arc::new(set_of(service("a", 1), 1)), Arc::new(set_of(service("a", 2), 2)));
        let other = Arc::new(set_of(service("b", 1), 1));
        for order in [[&old, &new, &other], [&new, &other, &old]] {
            let all = union(order);
            assert_eq!(all.len(), 8);
            assert_eq!(Size::of(&all).endpoints[&Arc::from("a")], 2, "the newer one");
        }
    }

    #[test]
    fn routes_inside_of_listeners_and_in_collections_count_too() {
        let inline = Snapshot::builder().listener(resources::listener("l", resources::route("r", "c")));
        assert_eq!(Size::of(&set_of(inline, 1)), Size { listeners: 1, routes: 1, ..Size::default() });
        let size = Size::of(&set_of(service("a", 3), 1));
        assert_eq!((size.listeners, size.routes, size.clusters, size.all_endpoints), (1, 1, 1, 3));
    }
}
