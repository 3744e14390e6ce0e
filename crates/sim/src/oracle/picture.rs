//! A configuration in the fewest words: as it is, and as it follows, naively, from the words of which resources are made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use mainstay_xds::deps::{ClusterChildren, XdsConfig};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::listener::HttpConnectionManager;
use mainstay_xds::resource::{Cluster, ResourceType};

use super::lookups::{Answer, Lookups};
use super::{Known, Rules};
use crate::resources::{self, MARKS, PrioritySpec, SICK, Spec};

/// What a configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Mark of the Listener.
    pub(crate) listener: u32,
    /// Name of the virtual host, with the mark of the routes.
    pub(crate) host: String,
    /// The clusters of the routes; see [`resources::route`].
    pub(crate) roots: Vec<String>,
    pub(crate) parts: BTreeMap<String, Part>,
}

/// What it says of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It cannot be used.
    Failed,
    /// Mark, and endpoints if there are any to be had.
    Leaf(u32, Option<Vec<Priority>>),
    /// The leaves of an aggregate.
    Group(Vec<String>),
}

/// The localities of a priority: weight, and the addresses of each endpoint.
pub(crate) type Priority = Vec<(u32, Vec<Vec<SocketAddr>>)>;

/// A Listener and its routes.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    listener: u32,
    host: String,
    pub(crate) roots: Vec<String>,
    sources: BTreeMap<AuthorityKey, BTreeSet<usize>>,
    needs: BTreeSet<ResourceKey>,
}

/// What follows from what is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made {
    pub(crate) picture: Option<Picture>,
    /// The Listener or its routes cannot be had.
    pub(crate) failed: bool,
    /// Something is awaited.
    pub(crate) awaited: bool,
    /// Clusters that cannot be used only because of trouble that may pass.
    pub(crate) troubled: BTreeSet<String>,
    /// Everything that must be watched.
    pub(crate) needs: BTreeSet<ResourceKey>,
    pub(crate) hosts: BTreeSet<String>,
    /// What is complete below clusters that somebody subscribed to, and are not.
    pub(crate) optional: BTreeMap<String, Part>,
    /// The servers behind it.
    pub(crate) sources: BTreeMap<AuthorityKey, BTreeSet<usize>>,
}

/// Where what is known comes from.
pub(crate) struct Knowledge<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) known: &'a dyn Fn(&ResourceKey) -> Known<'a>,
    pub(crate) lookups: &'a Lookups,
    /// Whether trouble that may pass is waited out, with clusters and with the Listener and its routes.
    pub(crate) patient: bool,
    pub(crate) keeps_unit: bool,
    /// What RPCs use. Who takes away something of it counts as a server behind what is new (D-35).
    pub(crate) used: Option<&'a Picture>,
}

impl Picture {
    /// What a configuration says.
    pub(crate) fn of(config: &XdsConfig) -> Self {
        let part = |cluster: &mainstay_xds::deps::ClusterResult| {
            let Ok(cluster) = cluster else { return Part::Failed };
            match &cluster.children {
                ClusterChildren::Aggregate(leaves) => Part::Group(leaves.iter().map(|leaf| leaf.to_string()).collect()),
                ClusterChildren::Endpoints(None) => Part::Leaf(cluster_mark(&cluster.cluster), None),
                ClusterChildren::Endpoints(Some(resolved)) => {
                    let priorities = resolved.priorities().map(|localities| {
                        let locality = |locality: mainstay_xds::deps::JoinedLocality<'_>| {
                            let endpoints = locality.endpoints.iter();
                            (locality.weight, endpoints.map(|one| one.addresses.as_slice().to_vec()).collect())
                        };
                        localities.into_iter().map(locality).collect()
                    });
                    Part::Leaf(cluster_mark(&cluster.cluster), Some(priorities.collect()))
                }
            }
        };
        // One route for each cluster, five more, and one that splits among all of them.
        let named: Vec<&str> = config.virtual_host.clusters().collect();
        let roots = named.iter().take(named.len().saturating_sub(5) / 2);
        Self {
            roots: roots.map(|name| (*name).to_owned()).collect(),
            listener: listener_mark(&config.listener),
            host: config.virtual_host.name.clone(),
            parts: config.clusters.iter().map(|(name, cluster)| (name.to_string(), part(cluster))).collect(),
        }
    }

    /// All addresses of a cluster and its leaves.
    pub(crate) fn addresses(&self, cluster: &str) -> BTreeSet<SocketAddr> {
        match self.parts.get(cluster) {
            None | Some(Part::Failed | Part::Leaf(_, None)) => BTreeSet::new(),
            Some(Part::Leaf(_, Some(priorities))) => {
                priorities.iter().flatten().flat_map(|(_, all)| all).flatten().copied().collect()
            }
            Some(Part::Group(leaves)) => leaves.iter().flat_map(|leaf| self.addresses(leaf)).collect(),
        }
    }
}

impl Picture {
    /// The leaves of a cluster: its own, or itself.
    pub(crate) fn leaves<'a>(&'a self, cluster: &'a str) -> Vec<&'a str> {
        match self.parts.get(cluster) {
            Some(Part::Group(leaves)) => leaves.iter().map(String::as_str).collect(),
            Some(Part::Failed | Part::Leaf(..)) | None => vec![cluster],
        }
    }

    /// The addresses of all clusters.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.parts.keys().flat_map(|name| self.addresses(name))
    }
}

impl<'a> Knowledge<'a> {
    /// What follows for the Listener of this name, and for clusters that somebody subscribed to.
    ///
    /// `unit` is the Listener with its routes that was found last. It stays while a part of a new one is awaited.
    pub(crate) fn make(&self, listener: &str, unit: &mut Option<Unit>, subscribed: &BTreeSet<String>) -> Made {
        let mut made = Made::default();
        let found = self.unit(listener, &mut made);
        if made.failed {
            *unit = None;
        } else if found.is_some() {
            *unit = found;
        }
        let Some(Unit { listener, host, roots, sources, mut needs }) = unit.clone() else { return made };
        made.awaited = false;
        made.needs.append(&mut needs);
        made.sources = sources;
        let parts = self.clusters(&roots, &mut made);
        let mut picture = Picture { listener, host, roots, parts };
        // What somebody subscribed to never holds anything back.
        let mut apart = Made::default();
        let extra = self.clusters(&subscribed.iter().cloned().collect::<Vec<_>>(), &mut apart);
        for name in subscribed.iter().filter(|name| extra.contains_key(*name)) {
            let leaves = match extra.get(name) {
                Some(Part::Group(leaves)) => leaves.clone(),
                _ => Vec::new(),
            };
            for name in leaves.iter().chain([name]) {
                if let Some(part) = extra.get(name) {
                    picture.parts.entry(name.clone()).or_insert_with(|| part.clone());
                }
            }
        }
        made.optional = extra;
        made.needs.append(&mut apart.needs);
        made.picture = Some(picture);
        made
    }

    /// The Listener and its routes.
    fn unit(&self, listener: &str, made: &mut Made) -> Option<Unit> {
        let key = ResourceKey { resource_type: ResourceType::Listener, name: listener.into() };
        let (listener, host, roots) = match self.look(&key, made)? {
            Spec::InlineListener { clusters, mark } => (*mark, format!("{listener} {mark}"), clusters),
            Spec::Listener { routes, mark: listener_mark } => {
                let key = ResourceKey { resource_type: ResourceType::RouteConfig, name: routes.as_str().into() };
                match self.look(&key, made)? {
                    Spec::Routes { clusters, mark } => (*listener_mark, format!("{routes} {mark}"), clusters),
                    Spec::Listener { .. }
                    | Spec::InlineListener { .. }
                    | Spec::Eds { .. }
                    | Spec::Dns { .. }
                    | Spec::Aggregate { .. }
                    | Spec::Endpoints { .. }
                    | Spec::Collection { .. }
                    | Spec::Invalid(_) => return None,
                }
            }
            Spec::Routes { .. }
            | Spec::Eds { .. }
            | Spec::Dns { .. }
            | Spec::Aggregate { .. }
            | Spec::Endpoints { .. }
            | Spec::Collection { .. }
            | Spec::Invalid(_) => return None,
        };
        Some(Unit { listener, host, roots: roots.clone(), sources: made.sources.clone(), needs: made.needs.clone() })
    }

    /// Looks at a part of the unit. If it is not there the whole is not.
    fn look(&self, key: &ResourceKey, made: &mut Made) -> Option<&'a Spec> {
        made.needs.insert(key.clone());
        match (self.known)(key) {
            Known::Value(spec, plane) => {
                self.count(key, plane, made);
                Some(spec)
            }
            Known::Nothing(_) => {
                made.failed = true;
                None
            }
            Known::Trouble => {
                *(if self.keeps_unit { &mut made.awaited } else { &mut made.failed }) = true;
                None
            }
            Known::Awaited => {
                made.awaited = true;
                None
            }
        }
    }

    fn count(&self, key: &ResourceKey, plane: usize, made: &mut Made) {
        if let Some(authority) = self.rules.authority_of(key) {
            made.sources.entry(authority.clone()).or_default().insert(plane);
        }
    }

    fn count_denial(&self, key: &ResourceKey, by: Option<usize>, cluster: &str, made: &mut Made) {
        let part = self.used.and_then(|used| used.parts.get(cluster));
        if let (Some(by), Some(Part::Leaf(_, Some(_)) | Part::Group(_))) = (by, part) {
            self.count(key, by, made);
        }
    }

    /// Follows clusters to their ends.
    pub(crate) fn clusters(&self, roots: &[String], made: &mut Made) -> BTreeMap<String, Part> {
        let mut parts = BTreeMap::new();
        let mut groups: BTreeMap<String, &[String]> = BTreeMap::new();
        let mut work: Vec<String> = roots.to_vec();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        while let Some(name) = work.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let key = ResourceKey { resource_type: ResourceType::Cluster, name: name.as_str().into() };
            made.needs.insert(key.clone());
            let part = match (self.known)(&key) {
                Known::Awaited => None,
                Known::Trouble if self.patient => None,
                Known::Trouble => {
                    made.troubled.insert(name.clone());
                    Some(Part::Failed)
                }
                Known::Nothing(by) => {
                    self.count_denial(&key, by, &name, made);
                    Some(Part::Failed)
                }
                Known::Value(spec, plane) => {
                    self.count(&key, plane, made);
                    match spec {
                        Spec::Eds { service, mark, .. } => {
                            let service = if service.is_empty() { &name } else { service };
                            self.endpoints(&name, service, made).map(|endpoints| Part::Leaf(*mark, endpoints))
                        }
                        Spec::Dns { host, mark } => {
                            made.hosts.insert(host.clone());
                            self.addresses(&name, host, made).map(|addresses| Part::Leaf(*mark, addresses))
                        }
                        Spec::Aggregate { clusters } => {
                            groups.insert(name.clone(), clusters);
                            work.extend(clusters.iter().cloned());
                            continue;
                        }
                        Spec::Listener { .. }
                        | Spec::InlineListener { .. }
                        | Spec::Routes { .. }
                        | Spec::Endpoints { .. }
                        | Spec::Collection { .. }
                        | Spec::Invalid(_) => Some(Part::Failed),
                    }
                }
            };
            match part {
                Some(part) => drop(parts.insert(name, part)),
                None => made.awaited = true,
            }
        }
        let mut made_groups = BTreeMap::new();
        for name in groups.keys() {
            let (mut seen, mut leaves) = (BTreeSet::new(), Vec::new());
            if leaves_of(name, &groups, &parts, &mut seen, &mut leaves) {
                made_groups.insert(name.clone(), if leaves.is_empty() { Part::Failed } else { Part::Group(leaves) });
            }
        }
        parts.append(&mut made_groups);
        parts
    }

    /// The endpoints of an EDS resource; `None` if they are awaited.
    fn endpoints(&self, cluster: &str, service: &str, made: &mut Made) -> Option<Option<Vec<Priority>>> {
        let key = ResourceKey { resource_type: ResourceType::Endpoints, name: service.into() };
        made.needs.insert(key.clone());
        let priorities = match (self.known)(&key) {
            Known::Awaited => return None,
            Known::Trouble if self.patient => return None,
            Known::Trouble => {
                made.troubled.insert(cluster.to_owned());
                return Some(None);
            }
            Known::Nothing(by) => {
                self.count_denial(&key, by, cluster, made);
                return Some(None);
            }
            Known::Value(Spec::Endpoints { priorities, .. }, plane) => {
                self.count(&key, plane, made);
                priorities
            }
            Known::Value(..) => return Some(None),
        };
        let mut found = Vec::new();
        let mut is_awaited = false;
        for priority in priorities {
            found.push(match priority {
                PrioritySpec::Here(backends) => vec![(1, addresses_of(backends))],
                PrioritySpec::Spread(localities) => {
                    localities.iter().map(|(weight, backends)| (*weight, addresses_of(backends))).collect()
                }
                PrioritySpec::Collection(_) if !self.rules.guards.endpoint_fallback => vec![(1, Vec::new())], // A95's guard.
                PrioritySpec::Collection(name) => {
                    let key =
                        ResourceKey { resource_type: ResourceType::EndpointCollection, name: name.as_str().into() };
                    made.needs.insert(key.clone());
                    let backends = match (self.known)(&key) {
                        Known::Awaited => {
                            is_awaited = true;
                            &[][..]
                        }
                        Known::Trouble if self.patient => {
                            is_awaited = true;
                            &[][..]
                        }
                        Known::Value(Spec::Collection { backends }, plane) => {
                            self.count(&key, plane, made);
                            backends
                        }
                        Known::Trouble => {
                            made.troubled.insert(cluster.to_owned());
                            &[][..]
                        }
                        Known::Nothing(_) | Known::Value(..) => &[][..],
                    };
                    vec![(1, addresses_of(backends))]
                }
            });
        }
        (!is_awaited).then_some(Some(found))
    }

    /// The addresses of a host; `None` if they are awaited.
    fn addresses(&self, cluster: &str, host: &str, made: &mut Made) -> Option<Option<Vec<Priority>>> {
        let one = |addresses: Vec<SocketAddr>| vec![vec![(1, vec![addresses])]];
        if let Ok(ip) = host.parse() {
            return Some(Some(one(vec![SocketAddr::new(ip, 80)])));
        }
        match self.lookups.get(host) {
            Answer::Awaited => None,
            Answer::Failed if self.patient => None,
            Answer::Failed => {
                made.troubled.insert(cluster.to_owned());
                Some(None)
            }
            Answer::Addresses(addresses) => Some(Some(one(addresses.to_vec()))),
        }
    }
}

/// The leaves below a cluster, in order, each where it is met first; a loop ends where it began. Whether all are known.
fn leaves_of(
    name: &str,
    groups: &BTreeMap<String, &[String]>,
    parts: &BTreeMap<String, Part>,
    seen: &mut BTreeSet<String>,
    leaves: &mut Vec<String>,
) -> bool {
    if !seen.insert(name.to_owned()) {
        return true;
    }
    match (groups.get(name), parts.get(name)) {
        (Some(children), _) => children.iter().all(|child| leaves_of(child, groups, parts, seen, leaves)),
        (None, Some(part)) => {
            if matches!(part, Part::Leaf(..)) {
                leaves.push(name.to_owned());
            }
            true
        }
        (None, None) => false,
    }
}

fn addresses_of(backends: &[u16]) -> Vec<Vec<SocketAddr>> {
    let usable = backends.iter().filter(|backend| **backend < SICK);
    usable.filter_map(|backend| Some(vec![SocketAddr::new(resources::host(*backend).parse().ok()?, 80)])).collect()
}

/// The mark of a Listener.
pub(crate) fn listener_mark(listener: &HttpConnectionManager) -> u32 {
    let limit = listener.max_stream_duration.unwrap_or_default();
    u32::try_from(limit.as_secs()).unwrap_or(u32::MAX)
}

/// The mark of a cluster.
pub(crate) fn cluster_mark(cluster: &Cluster) -> u32 {
    u32::try_from(cluster.idle_timeout.as_secs()).unwrap_or(u32::MAX).wrapping_sub(MARKS)
}
