//! What the dependency manager makes: a configuration whose parts fit together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::error::ClusterError;
use crate::resource::endpoint::{Endpoint, EndpointSource, Locality, LocalityEndpoints};
use crate::resource::listener::HttpConnectionManager;
use crate::resource::route::VirtualHost;
use crate::resource::{Cluster, EndpointCollection, EndpointGlob, Endpoints, RouteConfig};
use crate::shared::SharedMap;

/// A complete configuration of a channel. Immutable; parts that did not change are shared with the one before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct XdsConfig {
    /// The HTTP connection manager of the API listener.
    pub listener: Arc<HttpConnectionManager>,
    /// The route configuration, inline or from RDS.
    pub route_config: Arc<RouteConfig>,
    /// The virtual host chosen for the data-plane authority.
    pub virtual_host: Arc<VirtualHost>,
    /// Every cluster that routes, aggregates or subscriptions need (L-22).
    pub clusters: SharedMap<Arc<str>, ClusterResult>,
    /// Whether resources of one authority come from more than one server: only after a switch that was not complete in time.
    pub mixed_sources: bool,
}

/// A cluster, or why it cannot be used.
pub type ClusterResult = Result<Arc<ClusterConfig>, Arc<ClusterError>>;

/// A cluster and what its kind needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterConfig {
    /// Its name.
    pub name: Arc<str>,
    /// The CDS resource.
    pub cluster: Arc<Cluster>,
    /// Its endpoints or its leaves.
    pub children: ClusterChildren,
    /// What to add to error texts of this cluster (L-19); never empty.
    pub note: Arc<str>,
}

/// What a cluster resolves to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterChildren {
    /// EDS or LOGICAL_DNS. `None`: there are none to be had, and the note says why (L-15).
    Endpoints(Option<Arc<ResolvedEndpoints>>),
    /// Aggregate: leaf clusters in order of preference, each once; never empty (L-20).
    Aggregate(Vec<Arc<str>>),
}

/// Endpoints with the collections they name (A95). A collection that cannot be had is not in the map: its locality has no endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedEndpoints {
    /// The EDS resource, or the answer of DNS in its form (L-16).
    pub endpoints: Arc<Endpoints>,
    /// LbEndpointCollections by name.
    pub collections: BTreeMap<Arc<str>, Arc<EndpointCollection>>,
    /// Glob collections by name (GC-2).
    pub globs: BTreeMap<Arc<str>, Arc<EndpointGlob>>,
}

/// A locality with the endpoints it really has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JoinedLocality<'a> {
    /// Which locality.
    pub locality: &'a Arc<Locality>,
    /// Its weight in its priority; never zero.
    pub weight: u32,
    /// Its endpoints in order; none if it is unreachable.
    pub endpoints: Vec<&'a Endpoint>,
}

impl ResolvedEndpoints {
    /// Priorities in order, each with its localities in order. Collections are put in their places; an
    /// endpoint with an address that an earlier one has is left out, and so is a member of a glob with which
    /// the weights of its locality would not fit 32 bits.
    pub fn priorities(&self) -> impl Iterator<Item = Vec<JoinedLocality<'_>>> {
        // A single EDS resource has no address twice: only joined pieces need the check.
        let is_joined = !self.collections.is_empty() || !self.globs.is_empty();
        let mut seen = is_joined.then(BTreeSet::<SocketAddr>::new);
        self.endpoints.priorities.iter().map(move |priority| {
            let join = |locality| self.join(locality, &mut seen);
            priority.localities.iter().map(join).collect()
        })
    }

    /// What to say about localities without endpoints (L-15); `None` if each has some.
    pub(super) fn emptiness(&self) -> Option<String> {
        let mut localities = self.endpoints.priorities.iter().flat_map(|priority| &priority.localities).peekable();
        if localities.peek().is_none() {
            return Some("contains no localities".to_owned());
        }
        let is_empty = |source| match self.content(source) {
            Content::List(list) => list.is_empty(),
            Content::Glob(glob) => glob.is_empty(),
        };
        let empty: Vec<_> = localities
            .filter(|locality| is_empty(&locality.source))
            .map(|LocalityEndpoints { locality: l, .. }| format!("{}/{}/{}", l.region, l.zone, l.sub_zone))
            .collect();
        (!empty.is_empty()).then(|| format!("contains empty localities: [{}]", empty.join("; ")))
    }

    fn join<'a>(&'a self, from: &'a LocalityEndpoints, seen: &mut Option<BTreeSet<SocketAddr>>) -> JoinedLocality<'a> {
        let is_first = |endpoint: &&Endpoint| match seen {
            None => true,
            Some(seen) => {
                let addresses = endpoint.addresses.as_slice();
                let first = !addresses.iter().any(|address| seen.contains(address));
                if first {
                    seen.extend(addresses);
                }
                first
            }
        };
        let endpoints = match self.content(&from.source) {
            Content::List(list) => list.iter().filter(is_first).collect(),
            Content::Glob(glob) => {
                let mut weights = 0_u32;
                let mut fits = |endpoint: &&Endpoint| match weights.checked_add(endpoint.weight) {
                    Some(sum) => {
                        weights = sum;
                        true
                    }
                    None => false,
                };
                glob.iter().map(|(_, endpoint)| endpoint).filter(is_first).filter(|e| fits(e)).collect()
            }
        };
        JoinedLocality { locality: &from.locality, weight: from.weight, endpoints }
    }

    /// Whether there is a collection of this name.
    pub(super) fn has_collection(&self, name: &str) -> bool {
        self.collections.contains_key(name) || self.globs.contains_key(name)
    }

    fn content<'a>(&'a self, source: &'a EndpointSource) -> Content<'a> {
        match source {
            EndpointSource::Inline(collection) => Content::List(&collection.endpoints),
            EndpointSource::Collection(name) => {
                match (self.globs.get(name.as_str()), self.collections.get(name.as_str())) {
                    (Some(glob), _) => Content::Glob(glob),
                    (None, Some(collection)) => Content::List(&collection.endpoints),
                    (None, None) => Content::List(&[]),
                }
            }
        }
    }
}

/// The endpoints of a locality.
enum Content<'a> {
    List(&'a [Endpoint]),
    Glob(&'a EndpointGlob),
}
