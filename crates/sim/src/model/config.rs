//! The configuration that must be in force, made from nothing after every step (A74).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ClusterResult, ConfigError, DnsName, XdsConfig};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::endpoint::EndpointSource;
use mainstay_xds::resource::listener::RouteSource;
use mainstay_xds::resource::route::VirtualHost;
use mainstay_xds::resource::{Cluster, EndpointCollection, Endpoints, Listener, Resource, ResourceType, RouteConfig};

use super::{Entry, Model, View};
use crate::invariant::{Invariant, Violation};
use crate::scenario::Scenario;

/// What outlives a step.
#[derive(Clone, Debug)]
pub(super) struct ConfigModel {
    listener: Arc<str>,
    authority: Arc<str>,
    note: String,
    bound: Duration,
    /// The newest Listener and routes that fit together.
    unit: Option<Unit>,
    /// The RouteConfiguration that the last Listener names.
    routes: Option<ResourceKey>,
    /// The clusters of the last routes.
    roots: BTreeSet<Arc<str>>,
    /// What lookups came to: the last addresses, and whether the last one failed.
    lookups: BTreeMap<DnsName, (Option<Vec<SocketAddr>>, bool)>,
    /// When the last switch of an authority began, and whether it was mixed after the last step.
    switches: BTreeMap<AuthorityKey, (Time, bool)>,
    in_force: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
}

/// A Listener and its routes.
#[derive(Clone, Debug)]
struct Unit {
    listener: Arc<Listener>,
    routes: Arc<RouteConfig>,
    host: Arc<VirtualHost>,
    sources: BTreeSet<(AuthorityKey, usize)>,
}

/// What is known of a resource.
enum Known<'a> {
    Waiting,
    Failed,
    Value(&'a Resource, usize),
}

/// What a cluster must be.
enum Want {
    Failed,
    Leaf(Arc<Cluster>, Option<Addresses>),
    Aggregate(Arc<Cluster>, Option<Vec<Arc<str>>>),
}

/// The endpoints of a leaf.
enum Addresses {
    Eds(Arc<Endpoints>, BTreeMap<Arc<str>, Arc<EndpointCollection>>),
    Dns(Vec<SocketAddr>),
}

/// Everything that clusters come to.
#[derive(Default)]
struct Graph {
    clusters: BTreeMap<Arc<str>, Want>,
    watches: BTreeSet<ResourceKey>,
    lookups: BTreeSet<DnsName>,
    sources: BTreeSet<(AuthorityKey, usize)>,
    /// Clusters that something must be said about.
    noted: BTreeSet<Arc<str>>,
    incomplete: bool,
}

impl ConfigModel {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            listener: scenario.target.listener.clone(),
            authority: scenario.target.data_plane_authority.clone(),
            note: format!("xDS node ID:{}", scenario.bootstrap.node.id),
            bound: scenario.deps.switch_timeout,
            unit: None,
            routes: None,
            roots: BTreeSet::new(),
            lookups: BTreeMap::new(),
            switches: BTreeMap::new(),
            in_force: None,
        }
    }

    /// Another server is in charge of an authority.
    pub(super) fn switched(&mut self, now: Time, authority: &AuthorityKey) {
        let mixed = self.switches.get(authority).is_some_and(|(_, mixed)| *mixed);
        self.switches.insert(authority.clone(), (now, mixed));
    }
}

impl Model {
    /// What was in force after the last step.
    pub(crate) fn in_force(&self) -> Option<&Arc<XdsConfig>> {
        self.config.in_force.as_ref()?.as_ref().ok()
    }

    /// A lookup is answered.
    pub(crate) fn resolved(&mut self, name: &DnsName, answer: &Result<Vec<SocketAddr>, String>) {
        let known = self.config.lookups.entry(name.clone()).or_default();
        match answer {
            Ok(addresses) => *known = (Some(addresses.clone()), false),
            Err(_) => known.1 = true,
        }
    }

    /// Compares what is in force, and what is watched, with what must be.
    pub(super) fn check_config(&mut self, view: &View<'_>) -> Result<(), Violation> {
        let failed = self.read_unit();
        let graph = self.graph();
        self.check_watches(view, &graph)?;
        self.config.lookups.retain(|name, _| graph.lookups.contains(name));
        let before = self.config.in_force.take();
        let now_in_force = view.config.map(|config| config.cloned().map_err(Clone::clone));
        let kept = before == now_in_force;
        self.config.in_force = now_in_force;
        let held = self.judge(view.now, &graph);
        if failed {
            let is_error = matches!(view.config, Some(Err(_)));
            return Invariant::Config.holds(is_error, || "a configuration is in force without a Listener".to_owned());
        }
        let unit = self.config.unit.as_ref().filter(|_| !graph.incomplete);
        let (Some(unit), Some(mixed)) = (unit, held) else {
            return Invariant::Config.holds(kept, || {
                "the configuration in force changed although the new one is not complete or not of one source"
                    .to_owned()
            });
        };
        let Some(Ok(config)) = view.config else {
            return Err(
                Invariant::Config.broken(format!("a configuration is complete and not in force: {:?}", view.config))
            );
        };
        compare(unit, &graph, mixed, config).map_err(|what| Invariant::Config.broken(what))?;
        self.check_notes(view, &graph, config)
    }

    /// Takes over a Listener and routes that fit together. Says whether there is none to be had.
    fn read_unit(&mut self) -> bool {
        let listener_key = key(ResourceType::Listener, &self.config.listener);
        let (listener, server) = match self.known(&listener_key) {
            Known::Waiting => return false,
            Known::Value(Resource::Listener(listener), server) => (listener.clone(), server),
            Known::Failed | Known::Value(..) => return self.no_unit(),
        };
        let Listener::Api(manager) = &*listener else { return self.no_unit() };
        let mut sources: BTreeSet<_> = self.source(&listener_key, server).into_iter().collect();
        let routes = match &manager.routes {
            RouteSource::Inline(routes) => {
                self.config.routes = None;
                routes.clone()
            }
            RouteSource::Rds(name) => {
                let routes_key = self.key(ResourceType::RouteConfig, name);
                self.config.routes = Some(routes_key.clone());
                match self.known(&routes_key) {
                    Known::Waiting => return false,
                    Known::Value(Resource::RouteConfig(routes), server) => {
                        let routes = routes.clone();
                        sources.extend(self.source(&routes_key, server));
                        routes
                    }
                    Known::Failed | Known::Value(..) => return self.no_unit(),
                }
            }
        };
        let Some(host) = routes.virtual_host(&self.config.authority).cloned() else { return self.no_unit() };
        self.config.roots = host.clusters().map(Arc::from).collect();
        self.config.unit = Some(Unit { listener, routes, host, sources });
        false
    }

    fn no_unit(&mut self) -> bool {
        self.config.unit = None;
        true
    }

    /// Follows the routes to clusters, endpoints and collections.
    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        let mut depths = BTreeMap::new();
        let mut work: VecDeque<_> = self.config.roots.iter().map(|root| (root.clone(), 1)).collect();
        while let Some((name, depth)) = work.pop_front() {
            if depth > MAX_DEPTH || depths.contains_key(&name) {
                continue;
            }
            depths.insert(name.clone(), depth);
            let cluster_key = self.key(ResourceType::Cluster, &name);
            graph.watches.insert(cluster_key.clone());
            let (cluster, server) = match self.known(&cluster_key) {
                Known::Waiting => {
                    graph.incomplete = true;
                    continue;
                }
                Known::Value(Resource::Cluster(cluster), server) => (cluster.clone(), server),
                Known::Failed | Known::Value(..) => {
                    graph.clusters.insert(name, Want::Failed);
                    continue;
                }
            };
            graph.sources.extend(self.source(&cluster_key, server));
            if self.is_noted(&cluster_key) {
                graph.noted.insert(name.clone());
            }
            match &cluster.kind {
                ClusterKind::Eds { service_name } => {
                    let service = service_name.as_deref().unwrap_or(&name);
                    if let Some(endpoints) = self.endpoints(&mut graph, &name, service) {
                        graph.clusters.insert(name, Want::Leaf(cluster, endpoints));
                    }
                }
                ClusterKind::LogicalDns { host, port } => {
                    if let Some(addresses) = self.addresses(&mut graph, &name, host, *port) {
                        graph.clusters.insert(name, Want::Leaf(cluster, addresses));
                    }
                }
                ClusterKind::Aggregate { clusters } => {
                    work.extend(clusters.iter().map(|child| (child.as_str().into(), depth + 1)));
                    graph.clusters.insert(name, Want::Aggregate(cluster, None));
                }
            }
        }
        let aggregates = graph.clusters.iter().filter(|(_, want)| matches!(want, Want::Aggregate(..)));
        for name in aggregates.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let (mut seen, mut leaves, mut missing) = (BTreeSet::new(), Vec::new(), false);
            let fits = list_leaves(&graph, &name, 1, &mut seen, &mut leaves, &mut missing);
            if missing {
                graph.noted.insert(name.clone());
            }
            if let Some(Want::Aggregate(_, list)) = graph.clusters.get_mut(&name) {
                *list = Some(leaves).filter(|leaves| fits && !leaves.is_empty());
            }
        }
        graph
    }

    /// The endpoints of a cluster; `None` if they are awaited.
    fn endpoints(&self, graph: &mut Graph, cluster: &Arc<str>, service: &str) -> Option<Option<Addresses>> {
        let service_key = self.key(ResourceType::Endpoints, service);
        graph.watches.insert(service_key.clone());
        let endpoints = match self.known(&service_key) {
            Known::Waiting => {
                graph.incomplete = true;
                return None;
            }
            Known::Value(Resource::Endpoints(endpoints), server) => {
                graph.sources.extend(self.source(&service_key, server));
                endpoints.clone()
            }
            Known::Failed | Known::Value(..) => {
                graph.noted.insert(cluster.clone());
                return Some(None);
            }
        };
        let localities = || endpoints.priorities.iter().flat_map(|priority| &priority.localities);
        let mut noted = self.is_noted(&service_key) || localities().next().is_none();
        let (mut collections, mut awaited) = (BTreeMap::new(), false);
        for locality in localities() {
            let name = match &locality.source {
                EndpointSource::Inline(inline) => {
                    noted |= inline.endpoints.is_empty();
                    continue;
                }
                EndpointSource::Collection(name) => name,
            };
            let collection_key = self.key(ResourceType::EndpointCollection, name);
            graph.watches.insert(collection_key.clone());
            match self.known(&collection_key) {
                Known::Waiting => awaited = true,
                Known::Value(Resource::EndpointCollection(collection), server) => {
                    graph.sources.extend(self.source(&collection_key, server));
                    noted |= self.is_noted(&collection_key) || collection.endpoints.is_empty();
                    collections.insert(name.as_str().into(), collection.clone());
                }
                Known::Failed | Known::Value(..) => noted = true,
            }
        }
        if noted {
            graph.noted.insert(cluster.clone());
        }
        graph.incomplete |= awaited;
        (!awaited).then(|| Some(Addresses::Eds(endpoints.clone(), collections)))
    }

    /// The addresses of a LOGICAL_DNS cluster; `None` if they are awaited.
    fn addresses(&self, graph: &mut Graph, cluster: &Arc<str>, host: &str, port: u16) -> Option<Option<Addresses>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Some(Addresses::Dns(vec![SocketAddr::new(ip, port)])));
        }
        let name = DnsName { host: host.to_owned(), port };
        let known = self.config.lookups.get(&name);
        graph.lookups.insert(name);
        match known {
            None => {
                graph.incomplete = true;
                None
            }
            Some((addresses, failed)) => {
                if *failed {
                    graph.noted.insert(cluster.clone());
                }
                Some(addresses.clone().map(Addresses::Dns))
            }
        }
    }

    /// Whether a complete configuration may be published, and if so whether it is a mixture of servers.
    fn judge(&mut self, now: Time, graph: &Graph) -> Option<bool> {
        let unit = self.config.unit.iter().flat_map(|unit| &unit.sources);
        let mut servers = BTreeMap::<_, BTreeSet<usize>>::new();
        for (authority, server) in unit.chain(&graph.sources) {
            servers.entry(authority.clone()).or_default().insert(*server);
        }
        let bound = self.config.bound;
        let (mut held, mut any_mixed) = (false, false);
        for (authority, (begun, was_mixed)) in &mut self.config.switches {
            let mixed = servers.get(authority).is_some_and(|servers| servers.len() > 1);
            if mixed && !*was_mixed && *begun + bound <= now {
                *begun = now; // The switch was over: this is another.
            }
            *was_mixed = mixed;
            any_mixed |= mixed;
            held |= mixed && now < *begun + bound;
        }
        (!held).then_some(any_mixed)
    }

    fn check_watches(&self, view: &View<'_>, graph: &Graph) -> Result<(), Violation> {
        let mut wanted = graph.watches.clone();
        wanted.insert(key(ResourceType::Listener, &self.config.listener));
        wanted.extend(self.config.routes.clone());
        wanted.retain(|key| self.authority_of(key).is_some());
        let watched: BTreeSet<_> = view.dump.iter().map(|status| status.resource.clone()).collect();
        Invariant::Watches.holds(watched == wanted, || {
            let more: Vec<_> = watched.difference(&wanted).map(ToString::to_string).collect();
            let less: Vec<_> = wanted.difference(&watched).map(ToString::to_string).collect();
            format!("watched without need: {more:?}; needed and not watched: {less:?}")
        })
    }

    /// Errors beside values are told where they matter, and nowhere else.
    fn check_notes(&self, view: &View<'_>, graph: &Graph, config: &XdsConfig) -> Result<(), Violation> {
        let listener = key(ResourceType::Listener, &self.config.listener);
        let common = [Some(&listener), self.config.routes.as_ref()].into_iter().flatten().any(|key| self.is_noted(key));
        for (name, cluster) in config.clusters.iter().filter_map(|(name, result)| Some((name, result.as_ref().ok()?))) {
            let noted = common || graph.noted.contains(name);
            Invariant::Ambient.holds(noted == (*cluster.note != *self.config.note), || {
                format!("cluster {name:?} says {:?} at {:?}: something wrong is {noted}", cluster.note, view.now)
            })?;
        }
        Ok(())
    }

    /// Whether something is wrong although the value stays in use.
    fn is_noted(&self, key: &ResourceKey) -> bool {
        let down = self.in_charge(key).is_some_and(|server| self.servers[server].outage);
        self.cache.get(key).is_some_and(|entry| entry.held.is_some() && (entry.error || down))
    }

    fn known(&self, key: &ResourceKey) -> Known<'_> {
        if self.authority_of(key).is_none() {
            return Known::Failed;
        }
        match self.cache.get(key) {
            Some(Entry { watched: true, held: Some((told, server)), .. }) => match &told.value {
                Some(value) => Known::Value(value, *server),
                None => Known::Failed,
            },
            Some(Entry { watched: true, failed: true, .. }) => Known::Failed,
            _ => Known::Waiting,
        }
    }

    fn source(&self, key: &ResourceKey, server: usize) -> Option<(AuthorityKey, usize)> {
        self.authority_of(key).map(|(authority, _)| (authority.clone(), server))
    }

    /// The key under which a name is watched.
    fn key(&self, resource_type: ResourceType, name: &str) -> ResourceKey {
        let parsed = ResourceKey::parse(resource_type, name, self.rules.bootstrap.guards.federation);
        parsed.map_or_else(|_| key(resource_type, name), |(key, _)| key)
    }
}

/// Adds the leaves below a cluster in order (A37). Says whether all are near enough.
fn list_leaves<'a>(
    graph: &'a Graph,
    name: &'a Arc<str>,
    depth: u32,
    seen: &mut BTreeSet<&'a str>,
    leaves: &mut Vec<Arc<str>>,
    missing: &mut bool,
) -> bool {
    if !seen.insert(name) {
        return true;
    }
    match graph.clusters.get(name) {
        _ if depth > MAX_DEPTH => false,
        None => false,
        Some(Want::Failed) => {
            *missing = true;
            true
        }
        Some(Want::Leaf(..)) => {
            leaves.push(name.clone());
            true
        }
        Some(Want::Aggregate(cluster, _)) => {
            let ClusterKind::Aggregate { clusters } = &cluster.kind else { return true };
            clusters.iter().all(|child| {
                let Some((child, _)) = graph.clusters.get_key_value(child.as_str()) else { return false };
                list_leaves(graph, child, depth + 1, seen, leaves, missing)
            })
        }
    }
}

/// Compares a configuration with what it must be; says what differs.
fn compare(unit: &Unit, graph: &Graph, mixed: bool, config: &XdsConfig) -> Result<(), String> {
    let Listener::Api(listener) = &*unit.listener else { return Err("no API listener".to_owned()) };
    let parts = [
        ("the Listener", *config.listener == *listener),
        ("the routes", config.route_config == unit.routes),
        ("the virtual host", config.virtual_host == unit.host),
        ("whether servers are mixed", config.mixed_sources == mixed),
        ("the list of clusters", config.clusters.keys().eq(graph.clusters.keys())),
    ];
    if let Some((what, _)) = parts.iter().find(|(_, equal)| !equal) {
        return Err(format!("{what} in force is not what the cache says"));
    }
    for (name, want) in &graph.clusters {
        let equal = config.clusters.get(name).is_some_and(|result| is_as_wanted(result, want));
        if !equal {
            return Err(format!(
                "cluster {name:?} in force is not what the cache says: {:?}",
                config.clusters.get(name)
            ));
        }
    }
    Ok(())
}

fn is_as_wanted(result: &ClusterResult, want: &Want) -> bool {
    let usable = |cluster: &Arc<Cluster>| {
        let fits = |config: &&Arc<ClusterConfig>| config.cluster == *cluster;
        result.as_ref().ok().filter(fits).map(|config| &config.children)
    };
    match want {
        Want::Failed | Want::Aggregate(_, None) => result.is_err(),
        Want::Aggregate(cluster, Some(leaves)) => {
            matches!(usable(cluster), Some(ClusterChildren::Aggregate(list)) if list == leaves)
        }
        Want::Leaf(cluster, endpoints) => match (usable(cluster), endpoints) {
            (Some(ClusterChildren::Endpoints(None)), None) => true,
            (Some(ClusterChildren::Endpoints(Some(resolved))), Some(Addresses::Eds(endpoints, collections))) => {
                resolved.endpoints == *endpoints && resolved.collections == *collections
            }
            (Some(ClusterChildren::Endpoints(Some(resolved))), Some(Addresses::Dns(addresses))) => {
                let localities = resolved.priorities().flatten();
                let found: Vec<_> = localities
                    .flat_map(|locality| locality.endpoints)
                    .flat_map(|endpoint| endpoint.addresses.as_slice().to_vec())
                    .collect();
                found == *addresses
            }
            _ => false,
        },
    }
}

fn key(resource_type: ResourceType, name: &str) -> ResourceKey {
    ResourceKey { resource_type, name: name.into() }
}

/// The longest chain of clusters (A37).
const MAX_DEPTH: u32 = 16;
