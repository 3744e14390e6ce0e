//! The dependency manager: one complete, tear-free configuration (A74).
//!
//! It decides which resources a channel needs and watches them: the Listener, its RouteConfiguration, the
//! clusters of the chosen virtual host and of subscriptions, their endpoints, their collections, their DNS
//! names. What comes in changes a graph; what comes out is an [`XdsConfig`] whose parts fit together:
//!
//! - a Listener and its routes are one unit, and a new unit waits until all its clusters are there;
//! - inside one authority everything is from one server, as long as the switch between two takes no
//!   longer than a bound;
//! - what concerns one cluster fails that cluster only.
//!
//! Calls only note what changed. The work is done by the first [`DependencyManager::poll_output`] after
//! them, so the driver should hand over everything that came in together before it polls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::ServerConfig;
use crate::client::Update;
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::listener::{HttpConnectionManager, RouteSource};
use crate::resource::route::VirtualHost;
use crate::resource::{Listener, ResourceType, RouteConfig};
use crate::{Backoff, Choose, Time};

mod config;
mod dns;
mod error;
mod graph;
mod sources;
mod watch;

#[cfg(test)]
mod tests;

pub use config::{ClusterChildren, ClusterConfig, ClusterResult, JoinedLocality, ResolvedEndpoints, XdsConfig};
pub use dns::DnsName;
pub use error::{ClusterError, ClusterErrorKind, ConfigError};

use graph::{Context, Graph, Origin};
use sources::{Source, Verdict};
use watch::{Name, State, Watched, key};

/// What the driver must do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Do this, then poll again.
    Do(Action),
    /// Nothing left: wait for an update, or until this time and call [`DependencyManager::handle_timeout`].
    Wait(Option<Time>),
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Watch a resource; its updates go to [`DependencyManager::handle_update`].
    Watch(ResourceKey),
    /// End a watch.
    Unwatch(ResourceKey),
    /// Look up a name once; the answer goes to [`DependencyManager::handle_dns`]. Retries and re-resolution come as new actions.
    Resolve(DnsName),
    /// The answer for this name is not wanted any more.
    StopResolving(DnsName),
    /// Put this configuration, or this error, in force.
    Publish(Result<Arc<XdsConfig>, Arc<ConfigError>>),
}

/// Numbers that users may change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DepsSettings {
    /// Whether `xdstp:` names are understood (B-30).
    pub federation: bool,
    /// How long a switch between servers may hold an update back.
    pub switch_timeout: Duration,
    /// Least time between two lookups of one name, unless one failed.
    pub min_resolution_interval: Duration,
    /// Look names up again after this long; never if absent.
    pub resolution_refresh: Option<Duration>,
    /// Pauses between lookups of a name that fail.
    pub resolution_backoff: Backoff,
}

impl Default for DepsSettings {
    fn default() -> Self {
        Self {
            federation: true,
            switch_timeout: Duration::from_secs(15),
            min_resolution_interval: Duration::from_secs(30),
            resolution_refresh: None,
            resolution_backoff: Backoff::default(),
        }
    }
}

/// Makes one configuration out of many resources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DependencyManager {
    listener_name: Arc<str>,
    data_plane_authority: Arc<str>,
    node_id: Arc<str>,
    settings: DepsSettings,
    /// The latest time that anybody told us.
    now: Time,

    listener: Watched<Listener>,
    /// The RouteConfiguration that the Listener names, by canonical name.
    routes: Option<(Arc<str>, Watched<RouteConfig>)>,
    /// The newest Listener and RouteConfiguration that fit together. While a new Listener waits for its
    /// routes, the pair before it stays (D15). None once the channel must not use it any more (L-11).
    unit: Option<Unit>,
    /// Why the channel must not use the pair it had.
    failure: Option<Arc<ConfigError>>,
    /// Notes of the Listener and the RouteConfiguration.
    common_notes: Vec<String>,
    /// How often each cluster is subscribed to.
    subscriptions: BTreeMap<Arc<str>, usize>,
    graph: Graph,

    /// The last configuration published, to be shared where nothing changed.
    published: Option<Arc<XdsConfig>>,
    /// What the channel uses: the last configuration, an error, or nothing yet.
    in_force: Option<Result<(), Arc<ConfigError>>>,
    /// Published clusters that are gone from the graph, but that the last result of a subscribed aggregate still lists.
    kept: BTreeSet<Arc<str>>,
    /// Until when a mixture of servers is held back.
    held_until: Option<Time>,

    stale: Stale,
    closed: bool,
    out: VecDeque<Action>,
}

/// A Listener and the routes that belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unit {
    listener: Arc<HttpConnectionManager>,
    route_config: Arc<RouteConfig>,
    virtual_host: Arc<VirtualHost>,
    sources: Vec<Source>,
}

/// What must be looked at again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Stale {
    /// Anything at all.
    any: bool,
    /// The Listener or the RouteConfiguration.
    unit: bool,
    /// The set of subscriptions.
    subscriptions: bool,
}

impl DependencyManager {
    /// Starts by watching `listener`. `node_id` is for notes.
    pub fn new(listener: Arc<str>, data_plane_authority: Arc<str>, node_id: Arc<str>, settings: DepsSettings) -> Self {
        let name = Name::new::<Listener>(&listener, settings.federation);
        Self {
            out: VecDeque::from([Action::Watch(key::<Listener>(&name.canonical))]),
            listener_name: name.canonical,
            data_plane_authority,
            node_id,
            settings,
            now: Time::ZERO,
            listener: Watched::new(name.authority),
            routes: None,
            unit: None,
            failure: None,
            common_notes: Vec::new(),
            subscriptions: BTreeMap::new(),
            graph: Graph::new(),
            published: None,
            in_force: None,
            kept: BTreeSet::new(),
            held_until: None,
            stale: Stale::default(),
            closed: false,
        }
    }

    /// Takes in news of a watched resource. News of one that is not watched any more is ignored.
    pub fn handle_update(&mut self, now: Time, resource: &ResourceKey, update: Update) {
        if !self.advance(now) {
            return;
        }
        let news = match resource.resource_type {
            ResourceType::Listener if resource.name == self.listener_name => self.listener.hear(update),
            ResourceType::RouteConfig => match &mut self.routes {
                Some((name, watched)) if *name == resource.name => watched.hear(update),
                _ => false,
            },
            _ => {
                self.stale.any |= self.graph.hear(resource, update);
                return;
            }
        };
        self.stale.any |= news;
        self.stale.unit |= news;
    }

    /// Takes in that another server is in charge of an authority.
    pub fn handle_active_server(&mut self, now: Time, authority: &AuthorityKey, server: &Arc<ServerConfig>) {
        if self.advance(now) {
            self.stale.any |= self.graph.sources.switch(now, authority, server);
        }
    }

    /// Takes in the answer of a lookup.
    pub fn handle_dns(
        &mut self,
        now: Time,
        choose: &mut dyn Choose,
        name: &DnsName,
        answer: Result<Vec<SocketAddr>, String>,
    ) {
        if self.advance(now) {
            self.stale.any |= self.graph.hear_dns(now, choose, &self.settings, name, answer);
        }
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.advance(now) {
            self.graph.lookups.expire(now, &mut self.out);
            self.stale.any |= self.held_until.is_some_and(|until| until <= now);
        }
    }

    /// Asks for fresh DNS answers (L-18).
    pub fn request_reresolution(&mut self, now: Time) {
        if self.advance(now) {
            self.graph.lookups.refresh(now, &self.settings);
            self.graph.lookups.expire(now, &mut self.out);
        }
    }

    /// Keeps `cluster` in the configuration until released as often as subscribed (L-17). It never holds an
    /// update back: it is in the first configuration after it is complete.
    pub fn subscribe_cluster(&mut self, now: Time, cluster: &str) {
        if self.advance(now) {
            *self.subscriptions.entry(cluster.into()).or_default() += 1;
            self.stale = Stale { any: true, subscriptions: true, ..self.stale };
        }
    }

    /// Releases one subscription.
    pub fn release_cluster(&mut self, now: Time, cluster: &str) {
        if !self.advance(now) {
            return;
        }
        if let Some(count) = self.subscriptions.get_mut(cluster) {
            *count -= 1;
            if *count == 0 {
                self.subscriptions.remove(cluster);
                self.stale = Stale { any: true, subscriptions: true, ..self.stale };
            }
        }
    }

    /// Ends every watch and lookup. Whatever comes later is ignored.
    pub fn shut_down(&mut self, now: Time) {
        if !self.advance(now) {
            return;
        }
        self.closed = true;
        self.stale = Stale::default();
        self.held_until = None;
        self.out.push_back(Action::Unwatch(key::<Listener>(&self.listener_name)));
        self.watch_routes(None);
        self.settle_graph(Some(BTreeSet::new()), Some(BTreeSet::new()));
        self.graph.sweep(&mut self.out);
    }

    /// What the channel uses: the last configuration, an error in its place, or nothing yet.
    pub fn in_force(&self) -> Option<Result<&Arc<XdsConfig>, &Arc<ConfigError>>> {
        match self.in_force.as_ref()? {
            Ok(()) => self.published.as_ref().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Output {
        if std::mem::take(&mut self.stale.any) {
            self.evaluate();
        }
        match self.out.pop_front() {
            Some(action) => Output::Do(action),
            None => Output::Wait(self.held_until.into_iter().chain(self.graph.lookups.next_due()).min()),
        }
    }

    /// Notes the time. Says whether there is anything left to do for this manager.
    fn advance(&mut self, now: Time) -> bool {
        self.now = self.now.max(now);
        !self.closed
    }

    /// Brings everything up to date with what came in. New watches go out before old ones end (P-96).
    fn evaluate(&mut self) {
        let routed = if std::mem::take(&mut self.stale.unit) { self.read_unit() } else { None };
        let subscribed = std::mem::take(&mut self.stale.subscriptions);
        let subscribed = subscribed.then(|| self.subscriptions.keys().cloned().collect());
        self.settle_graph(routed, subscribed);
        self.decide();
        self.graph.sweep(&mut self.out);
    }

    fn settle_graph(&mut self, routed: Option<BTreeSet<Arc<str>>>, subscribed: Option<BTreeSet<Arc<str>>>) {
        let cx = Context {
            now: self.now,
            federation: self.settings.federation,
            node_id: &self.node_id,
            common_notes: &self.common_notes,
            published: self.published.as_ref().map(|config| &config.clusters),
        };
        for (origin, roots) in [(Origin::Routes, routed), (Origin::Subscriptions, subscribed)] {
            if let Some(roots) = roots {
                self.graph.set_roots(&cx, origin, roots, &mut self.out);
            }
        }
        self.graph.settle(&cx, &mut self.out);
    }

    // --- Listener and routes ---

    /// Takes over a Listener and routes that fit together, or the reason why there are none. Answers with
    /// the clusters that new routes name. Without new routes the old clusters stay watched: while a new
    /// pair is awaited they are in use, and after an error they are likely to be wanted again.
    fn read_unit(&mut self) -> Option<BTreeSet<Arc<str>>> {
        let found = self.find_unit();
        let ambient = self.listener.ambient.iter().chain(self.routes.iter().flat_map(|(_, watched)| &watched.ambient));
        let notes: Vec<_> = ambient.map(ToString::to_string).collect();
        if self.common_notes != notes {
            self.common_notes = notes;
            self.graph.rebuild_all();
        }
        let (unit, failure) = match found {
            Ok(None) => (self.unit.clone(), None),
            Ok(Some(unit)) => (Some(unit), None),
            Err(error) => (None, Some(Arc::new(error))),
        };
        let sources = |unit: &Option<Unit>| unit.as_ref().map_or(Vec::new(), |unit| unit.sources.clone());
        self.graph.sources.replace(&sources(&self.unit), &sources(&unit));
        self.unit = unit;
        self.failure = failure;
        self.unit.as_ref().map(|unit| unit.virtual_host.clusters().map(Arc::from).collect())
    }

    /// The pair that is there now; `None` if a part of it is still awaited.
    fn find_unit(&mut self) -> Result<Option<Unit>, ConfigError> {
        let listener = match &self.listener.state {
            State::Waiting => return Ok(None),
            State::Failed(error) => return Err(ConfigError::Resource(error.clone())),
            State::Valid(listener, _) => listener.clone(),
        };
        let Listener::Api(listener) = &*listener else {
            return Err(ConfigError::NotApiListener(self.listener_name.clone()));
        };
        let mut sources: Vec<_> = self.listener.source().into_iter().collect();
        let (name, route_config) = match &listener.routes {
            RouteSource::Inline(route_config) => {
                self.watch_routes(None);
                (&self.listener_name, route_config)
            }
            RouteSource::Rds(name) => {
                let name = Name::new::<RouteConfig>(name, self.settings.federation);
                self.watch_routes(Some(name));
                let Some((name, watched)) = &self.routes else { return Ok(None) };
                sources.extend(watched.source());
                match &watched.state {
                    State::Waiting => return Ok(None),
                    State::Failed(error) => return Err(ConfigError::Resource(error.clone())),
                    State::Valid(route_config, _) => (name, route_config),
                }
            }
        };
        let Some(virtual_host) = route_config.virtual_host(&self.data_plane_authority) else {
            let authority = self.data_plane_authority.clone();
            return Err(ConfigError::NoVirtualHost { authority, route_config: name.clone() });
        };
        let before = self.published.as_ref();
        Ok(Some(Unit {
            listener: match before {
                Some(before) if *before.listener == *listener => before.listener.clone(),
                _ => Arc::new(listener.clone()),
            },
            route_config: match before {
                Some(before) if before.route_config == *route_config => before.route_config.clone(),
                _ => route_config.clone(),
            },
            virtual_host: match before {
                Some(before) if before.virtual_host == *virtual_host => before.virtual_host.clone(),
                _ => virtual_host.clone(),
            },
            sources,
        }))
    }

    /// Makes `name` the RouteConfiguration that is watched. The new watch goes out before the old one ends (P-96).
    fn watch_routes(&mut self, name: Option<Name>) {
        if self.routes.as_ref().map(|(name, _)| name) != name.as_ref().map(|name| &name.canonical) {
            if let Some(name) = &name {
                self.out.push_back(Action::Watch(key::<RouteConfig>(&name.canonical)));
            }
            let new = name.map(|name| (name.canonical, Watched::new(name.authority)));
            if let Some((old, _)) = std::mem::replace(&mut self.routes, new) {
                self.out.push_back(Action::Unwatch(key::<RouteConfig>(&old)));
            }
        }
    }

    // --- What the channel uses ---

    /// Publishes what is new, if it is complete and of one piece.
    fn decide(&mut self) {
        let verdict = self.graph.sources.judge(self.now, self.settings.switch_timeout);
        self.held_until = None;
        if let Some(error) = &self.failure {
            let failed = Some(Err(error.clone()));
            if self.in_force != failed {
                self.in_force = failed;
                self.out.push_back(Action::Publish(Err(error.clone())));
            }
            return;
        }
        let Some(unit) = self.unit.clone() else { return };
        if !self.graph.is_complete() {
            return;
        }
        let mixed_sources = match verdict {
            Verdict::Clean => false,
            Verdict::Mixed => true,
            Verdict::Hold(until) => return self.held_until = Some(until),
        };
        let edits = self.cluster_edits();
        let config = match &self.published {
            Some(before) if edits.is_empty() && unit.is_in(before) && before.mixed_sources == mixed_sources => {
                if self.in_force == Some(Ok(())) {
                    return;
                }
                before.clone()
            }
            before => {
                let mut clusters = before.as_ref().map_or_else(BTreeMap::new, |before| before.clusters.clone());
                for (name, result) in edits {
                    match result {
                        Some(result) => drop(clusters.insert(name, result)),
                        None => drop(clusters.remove(&name)),
                    }
                }
                let Unit { listener, route_config, virtual_host, .. } = unit;
                Arc::new(XdsConfig { listener, route_config, virtual_host, clusters, mixed_sources })
            }
        };
        self.published = Some(config.clone());
        self.in_force = Some(Ok(()));
        self.out.push_back(Action::Publish(Ok(config)));
    }

    /// How the published clusters differ from those of the graph. A cluster that only subscriptions need
    /// keeps its last result, with the leaves that this lists, until it is complete again.
    fn cluster_edits(&mut self) -> Vec<(Arc<str>, Option<ClusterResult>)> {
        let published = |name: &str| self.published.as_ref()?.clusters.get(name);
        let pending = self.graph.pending().clone();
        let leaves = |name: &Arc<str>| match &published(name)?.as_ref().ok()?.children {
            ClusterChildren::Aggregate(leaves) => Some(leaves),
            ClusterChildren::Endpoints(_) => None,
        };
        let listed: BTreeSet<_> = pending.iter().filter_map(leaves).flatten().cloned().collect();

        let mut changed = self.graph.take_changed();
        changed.append(&mut self.kept);
        let mut edits = Vec::new();
        for name in changed {
            let result = self.graph.result(&name);
            if result == published(&name) || pending.contains(&name) {
                continue;
            } else if result.is_none() && listed.contains(&name) {
                self.kept.insert(name);
            } else {
                edits.push((name, result.cloned()));
            }
        }
        edits
    }
}

impl Unit {
    /// Whether this is the pair of `config`.
    fn is_in(&self, config: &XdsConfig) -> bool {
        self.listener == config.listener
            && self.route_config == config.route_config
            && self.virtual_host == config.virtual_host
    }
}
