//! The dependency manager: one complete, tear-free configuration (A74).
//!
//! It decides which resources a channel needs and watches them: the Listener, its RouteConfiguration, the
//! clusters of the chosen virtual host and of subscriptions, their endpoints, their collections, their DNS
//! names. What comes in changes a graph; what comes out is an [`XdsConfig`] whose parts fit together:
//!
//! - a Listener and its routes are one unit, and a new unit waits until all its clusters are there;
//! - what is in force stays subscribed, and follows its clusters and endpoints, until what is new replaces it;
//! - what only the one in force needs is not taken away meanwhile, though a server may delete it;
//! - trouble with servers completes nothing new as long as something is in force;
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
use crate::shared::SharedMap;
use crate::{Backoff, Choose, Time};

mod config;
mod dns;
mod error;
mod graph;
mod held;
mod sources;
mod watch;
mod whole;

#[cfg(test)]
mod tests;

pub use config::{ClusterChildren, ClusterConfig, ClusterResult, JoinedLocality, ResolvedEndpoints, XdsConfig};
pub use dns::DnsName;
pub use error::{ClusterError, ClusterErrorKind, ConfigError};
pub use held::{HeldResources, LookUp};

pub(crate) use sources::{Source, Sources, Verdict};
pub(crate) use watch::{Name, State, Watched, key};

use graph::{Context, Graph, RootSet};
use watch::Table;

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
    /// The RouteConfigurations of the newest Listener, of the newest pair and of the pair in force.
    routes: Table<RouteConfig>,
    /// The one that the newest Listener names, by canonical name.
    route_name: Option<Arc<str>>,
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
    /// The pair that it was made of.
    published_unit: Option<Unit>,
    /// What the channel uses: the last configuration, an error, or nothing yet.
    in_force: Option<Result<(), Arc<ConfigError>>>,
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
    /// The RouteConfiguration if it is not inline, by canonical name.
    route_name: Option<Arc<str>>,
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
            routes: Table::new(),
            route_name: None,
            unit: None,
            failure: None,
            common_notes: Vec::new(),
            subscriptions: BTreeMap::new(),
            graph: Graph::new(),
            published: None,
            published_unit: None,
            in_force: None,
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
            // One that only an earlier Listener names is kept up to date, in case that Listener comes back.
            ResourceType::RouteConfig => self.routes.hear(&resource.name, update).is_some(),
            ResourceType::Listener => return, // Another one: not watched any more.
            ResourceType::Cluster
            | ResourceType::Endpoints
            | ResourceType::EndpointCollection
            | ResourceType::EndpointGlob => {
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
            for sources in &mut self.graph.sources {
                self.stale.any |= sources.switch(now, authority, server);
            }
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
        (self.route_name, self.unit, self.published_unit) = (None, None, None);
        self.settle_graph(Some(BTreeSet::new()), Some(BTreeSet::new()));
        self.put_in_force(Some(BTreeSet::new()));
        self.sweep();
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
        self.sweep();
    }

    fn settle_graph(&mut self, routed: Option<BTreeSet<Arc<str>>>, subscribed: Option<BTreeSet<Arc<str>>>) {
        self.with_graph(|graph, cx, out| {
            for (set, roots) in [(RootSet::Newest, routed), (RootSet::Subscriptions, subscribed)] {
                if let Some(roots) = roots {
                    graph.set_roots(cx, set, roots, out);
                }
            }
            graph.settle(cx, out);
        });
    }

    /// See [`Graph::put_in_force`].
    fn put_in_force(&mut self, clusters: Option<BTreeSet<Arc<str>>>) {
        self.with_graph(|graph, cx, out| graph.put_in_force(cx, clusters, out));
    }

    fn with_graph(&mut self, act: impl FnOnce(&mut Graph, &Context<'_>, &mut VecDeque<Action>)) {
        let published = self.published.as_ref().map(|config| &config.clusters);
        let cx = Context {
            now: self.now,
            federation: self.settings.federation,
            node_id: &self.node_id,
            common_notes: &self.common_notes,
            published,
            in_force: published.filter(|_| self.in_force == Some(Ok(()))),
        };
        act(&mut self.graph, &cx, &mut self.out);
    }

    /// Ends the watches that nobody needs.
    fn sweep(&mut self) {
        let units = [self.unit.as_ref(), self.published_unit.as_ref().filter(|_| self.in_force == Some(Ok(())))];
        let needed = units.into_iter().flatten().filter_map(|unit| unit.route_name.as_ref()).chain(&self.route_name);
        self.routes.keep_only(&needed.collect());
        self.routes.sweep(&mut self.out);
        self.graph.sweep(&mut self.out);
    }

    // --- Listener and routes ---

    /// Takes over a Listener and routes that fit together, or the reason why there are none. Answers with
    /// the clusters that new routes name. Without new routes the old clusters stay watched: while a new
    /// pair is awaited they are in use, and after an error they are likely to be wanted again.
    fn read_unit(&mut self) -> Option<BTreeSet<Arc<str>>> {
        let found = self.find_unit();
        let (listener, routes) = (&self.listener, self.route_name.as_ref().and_then(|name| self.routes.get(name)));
        let ambient = listener.ambient.iter().chain(routes.and_then(|routes| routes.ambient.as_ref()));
        let awaited = listener.trouble().into_iter().chain(routes.and_then(Watched::trouble));
        let notes: Vec<_> = ambient.chain(awaited).map(ToString::to_string).collect();
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
        self.graph.sources[RootSet::Newest as usize].replace(&sources(&self.unit), &sources(&unit));
        self.unit = unit;
        self.failure = failure;
        self.unit.as_ref().map(Unit::clusters)
    }

    /// The pair that is there now; `None` if a part of it is still awaited. Trouble with servers is a reason to fail only
    /// if nothing is in force.
    fn find_unit(&mut self) -> Result<Option<Unit>, ConfigError> {
        let can_wait = self.in_force == Some(Ok(()));
        let listener = match &self.listener.state {
            State::Waiting(Some(error)) if !can_wait => return Err(ConfigError::Resource(error.clone())),
            State::Waiting(_) => return Ok(None),
            State::Failed(error) => return Err(ConfigError::Resource(error.clone())),
            State::Valid(listener, _) => listener.clone(),
        };
        let Listener::Api(listener) = &*listener else {
            return Err(ConfigError::NotApiListener(self.listener_name.clone()));
        };
        let mut sources: Vec<_> = self.listener.source().into_iter().collect();
        let (name, route_config) = match &listener.routes {
            RouteSource::Inline(route_config) => {
                self.route_name = None;
                (&self.listener_name, route_config)
            }
            RouteSource::Rds(name) => {
                let name = Name::new::<RouteConfig>(name, self.settings.federation);
                self.routes.acquire(&name, &self.listener_name, &mut self.out);
                let name = self.route_name.insert(name.canonical);
                let Some(watched) = self.routes.get(name) else { return Ok(None) };
                sources.extend(watched.source());
                match &watched.state {
                    State::Waiting(Some(error)) if !can_wait => return Err(ConfigError::Resource(error.clone())),
                    State::Waiting(_) => return Ok(None),
                    State::Failed(error) => return Err(ConfigError::Resource(error.clone())),
                    State::Valid(route_config, _) => (&*name, route_config),
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
            route_name: self.route_name.clone(),
            sources,
        }))
    }

    // --- What the channel uses ---

    /// Publishes what is new, if it is complete and of one piece; else what is new of the configuration in force.
    fn decide(&mut self) {
        let has_config = self.in_force == Some(Ok(()));
        let is_in_force = |unit: &&Unit| has_config && self.published.as_ref().is_some_and(|config| unit.is_in(config));
        let in_force = self.unit.as_ref().filter(is_in_force).cloned();
        let is_in_force = in_force.is_some();
        // Another server may stand behind the same pair now: that counts before anything is judged.
        if let Some(unit) = in_force {
            self.set_published_unit(unit);
        }
        let verdicts =
            self.graph.sources.each_mut().map(|sources| sources.judge(self.now, self.settings.switch_timeout));
        self.held_until = None;
        if let Some(error) = &self.failure {
            let failed = Some(Err(error.clone()));
            if self.in_force != failed {
                self.in_force = failed;
                self.out.push_back(Action::Publish(Err(error.clone())));
                self.with_graph(|graph, cx, out| graph.put_out_of_force(cx, out));
            }
            return;
        }
        let Some(unit) = self.unit.clone() else { return };
        if !is_in_force && self.graph.is_complete() && self.may_publish(verdicts[RootSet::Newest as usize]) {
            let clusters = unit.clusters();
            self.set_published_unit(unit);
            self.put_in_force(Some(clusters));
            let [newest, in_force, ..] = &mut self.graph.sources;
            in_force.take_up(newest);
            return self.publish(verdicts[RootSet::Newest as usize]);
        }
        if has_config && self.may_publish(verdicts[RootSet::InForce as usize]) {
            self.put_in_force(None);
            // What was held on to until now does not count any more.
            let bound = self.settings.switch_timeout;
            let verdict = self.graph.sources[RootSet::InForce as usize].judge(self.now, bound);
            self.publish(verdict);
        }
    }

    /// Whether a mixture need not be held back. If it must, notes until when.
    fn may_publish(&mut self, verdict: Verdict) -> bool {
        if let Verdict::Hold(until) = verdict {
            self.held_until = Some(self.held_until.map_or(until, |other| other.min(until)));
        }
        !matches!(verdict, Verdict::Hold(_))
    }

    fn set_published_unit(&mut self, unit: Unit) {
        let old = self.published_unit.as_ref().map_or(&[][..], |unit| &unit.sources);
        self.graph.sources[RootSet::InForce as usize].replace(old, &unit.sources);
        self.published_unit = Some(unit);
    }

    /// Publishes the pair in force with its clusters, if anything is different.
    fn publish(&mut self, verdict: Verdict) {
        let Some(unit) = &self.published_unit else { return };
        let mixed_sources = verdict == Verdict::Mixed;
        let changed = self.graph.take_changed();
        let published = |name: &str| self.published.as_ref()?.clusters.get(name);
        let is_new = |name: &Arc<str>| self.graph.result(name) != published(name);
        let edits: Vec<_> = changed.into_iter().filter(is_new).collect();
        let config = match &self.published {
            Some(before) if edits.is_empty() && unit.is_in(before) && before.mixed_sources == mixed_sources => {
                if self.in_force == Some(Ok(())) {
                    return;
                }
                before.clone()
            }
            before => {
                let mut clusters = before.as_ref().map_or_else(SharedMap::new, |before| before.clusters.clone());
                for name in &edits {
                    match self.graph.result(name) {
                        Some(result) => drop(clusters.insert(name.clone(), result.clone())),
                        None => drop(clusters.remove(name)),
                    }
                }
                let Unit { listener, route_config, virtual_host, .. } = unit.clone();
                Arc::new(XdsConfig { listener, route_config, virtual_host, clusters, mixed_sources })
            }
        };
        self.published = Some(config.clone());
        let had_config = self.in_force.replace(Ok(())) == Some(Ok(()));
        self.out.push_back(Action::Publish(Ok(config)));
        self.stale.any |= self.graph.reconsider(had_config.then_some(&edits));
    }
}

impl Unit {
    /// The clusters that its routes name.
    fn clusters(&self) -> BTreeSet<Arc<str>> {
        self.virtual_host.clusters().map(Arc::from).collect()
    }

    /// Whether this is the pair of `config`.
    fn is_in(&self, config: &XdsConfig) -> bool {
        self.listener == config.listener
            && self.route_config == config.route_config
            && self.virtual_host == config.virtual_host
    }
}
