//! The naive reference: what must be in force, watched and looked up, made from scratch each time.
//!
//! It has the rules of A74, A37, A95 and of the design in their plainest form: everything is computed again from what
//! was told, by searching all ways through all clusters. All that it remembers is what a channel would: the last pair of
//! Listener and routes, what is in force, and since when servers are mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::deps::{ClusterResult, ConfigError, DepsSettings, DnsName, XdsConfig};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::listener::RouteSource;
use mainstay_xds::resource::route::{DomainPattern, VirtualHost};
use mainstay_xds::resource::{Cluster, Endpoints, Listener, Resource, ResourceType};
use mainstay_xds::shared::SharedMap;

use super::clusters::Clusters;
use super::lookups::{Lookup, literal};
use super::state::{AUTHORITY, IN_FORCE, LISTENER, NEWEST, Reference, Source, Unit};
use super::told::{State, Told};

/// What must come of it.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// What must be published now, if anything.
    pub(super) publish: Option<Result<Plan, ConfigError>>,
    /// Whether it need not be: only notes of what is kept are others.
    pub(super) may_be_left_out: bool,
    pub(super) watches: BTreeSet<ResourceKey>,
    /// What may be watched as well: something is held back.
    pub(super) optional: BTreeSet<ResourceKey>,
    pub(super) lookups: BTreeSet<DnsName>,
    pub(super) optional_lookups: BTreeSet<DnsName>,
    /// Something is held back: what is in force may hold on to more.
    pub(super) holds: bool,
}

/// A configuration, with the clusters in it that are only what was there before: their notes may be older.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) config: XdsConfig,
    pub(super) kept: BTreeSet<Arc<str>>,
    /// Something was held back until now: what is kept may be newer than what was in force.
    pub(super) was_held: bool,
}

/// Until when a mixture waits, and whether it is one.
enum Verdict {
    Clean,
    Hold(Time),
    Mixed,
}

impl Reference {
    pub(super) fn new(settings: DepsSettings) -> Self {
        Self {
            settings,
            told: BTreeMap::new(),
            lookups: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            route: None,
            unit: None,
            notes: Vec::new(),
            newest: BTreeSet::new(),
            routed: BTreeSet::new(),
            in_force: None,
            last: None,
            last_unit: None,
            mixtures: Default::default(),
            held_sources: BTreeMap::new(),
            holding: BTreeSet::new(),
            held_until: None,
            closed: false,
        }
    }

    /// Says whether that is news.
    pub(super) fn switch(&mut self, now: Time, authority: &AuthorityKey, server: &Arc<ServerConfig>) -> bool {
        let mut is_new = false;
        for mixtures in &mut self.mixtures {
            let mixture = mixtures.entry(authority.clone()).or_default();
            if mixture.active.as_ref() != Some(server) {
                is_new = true;
                mixture.active = Some(server.clone());
                if mixture.servers.len() < 2 {
                    mixture.begun = Some(now);
                }
            }
        }
        is_new
    }

    /// Nothing is wanted any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// What the channel uses, as it was published.
    pub(super) fn put_in_force(&mut self, published: Result<Arc<XdsConfig>, Arc<ConfigError>>) {
        if let Ok(config) = &published {
            self.last = Some(config.clone());
        }
        self.in_force = Some(published);
    }

    pub(super) fn in_force(&self) -> Option<&Result<Arc<XdsConfig>, Arc<ConfigError>>> {
        self.in_force.as_ref()
    }

    /// The clusters in force.
    pub(super) fn clusters_in_force(&self) -> Option<&SharedMap<Arc<str>, ClusterResult>> {
        match &self.in_force {
            Some(Ok(config)) => Some(&config.clusters),
            _ => None,
        }
    }

    /// A name as requests have it, and whose it is. One that is none is asked for as it is.
    pub(super) fn key(&self, resource_type: ResourceType, name: &str) -> (ResourceKey, AuthorityKey) {
        let parsed = ResourceKey::parse(resource_type, name, self.settings.federation);
        parsed.unwrap_or_else(|_| (ResourceKey { resource_type, name: name.into() }, AuthorityKey::TopLevel))
    }

    pub(super) fn told_of(&self, resource_type: ResourceType, name: &str) -> Option<&Told> {
        self.told.get(&self.key(resource_type, name).0)
    }

    pub(super) fn source_of(&self, resource_type: ResourceType, name: &str) -> Option<Source> {
        let (key, authority) = self.key(resource_type, name);
        Some((authority, self.told.get(&key)?.server()?.clone()))
    }

    pub(super) fn cluster(&self, name: &str) -> Option<&Arc<Cluster>> {
        match self.told_of(ResourceType::Cluster, name)?.value()? {
            Resource::Cluster(cluster) => Some(cluster),
            Resource::Listener(_)
            | Resource::RouteConfig(_)
            | Resource::Endpoints(_)
            | Resource::EndpointCollection(_)
            | Resource::EndpointGlob(_) => None,
        }
    }

    pub(super) fn endpoints(&self, name: &str) -> Option<&Arc<Endpoints>> {
        match self.told_of(ResourceType::Endpoints, name)?.value()? {
            Resource::Endpoints(endpoints) => Some(endpoints),
            Resource::Listener(_)
            | Resource::RouteConfig(_)
            | Resource::Cluster(_)
            | Resource::EndpointCollection(_)
            | Resource::EndpointGlob(_) => None,
        }
    }

    /// The clusters that a cluster names.
    pub(super) fn children(&self, name: &str) -> &[String] {
        match self.cluster(name).map(|cluster| &cluster.kind) {
            Some(ClusterKind::Aggregate { clusters }) => clusters,
            _ => &[],
        }
    }

    /// All clusters that these lead to, by ways of at most 16 clusters (A37).
    pub(super) fn reach<'a>(&self, roots: impl IntoIterator<Item = &'a Arc<str>>) -> BTreeSet<Arc<str>> {
        let mut reached = BTreeSet::new();
        let mut level: BTreeSet<Arc<str>> = roots.into_iter().cloned().collect();
        for _ in 0..16 {
            let children = level.iter().flat_map(|name| self.children(name)).map(|child| child.as_str().into());
            let next: BTreeSet<Arc<str>> = children.collect();
            reached.append(&mut level);
            level = next.difference(&reached).cloned().collect();
        }
        reached
    }

    // --- What follows ---

    /// What must have been done by now.
    pub(super) fn evaluate(&mut self, now: Time) -> Expected {
        let was_held = self.held_until.take().is_some();
        if self.closed {
            return Expected::default();
        }
        let failure = self.read_unit();
        let is_complete = Clusters::new(self).is_complete();
        self.count(true);
        let mut is_put = false;
        let publish = match failure {
            Some(error) => {
                // A mixture that nobody sees goes on all the same.
                self.judge(NEWEST, now);
                self.judge(IN_FORCE, now);
                self.held_sources.clear();
                self.holding.clear();
                let is_known = matches!(&self.in_force, Some(Err(known)) if **known == error);
                (!is_known).then_some(Err(error))
            }
            None => {
                let decided = self.decide(now, is_complete);
                is_put = decided.is_some();
                decided.flatten().map(|plan| Ok(Plan { was_held, ..plan }))
            }
        };
        let may_be_left_out = match (&publish, &self.in_force) {
            (Some(Ok(plan)), Some(Ok(before))) => plan.is_same(before),
            _ => false,
        };
        let will_fail = matches!(publish, Some(Err(_)));
        let mut after = self.clone();
        match &publish {
            Some(Ok(plan)) => after.put_in_force(Ok(Arc::new(plan.config.clone()))),
            Some(Err(error)) => after.put_in_force(Err(Arc::new(error.clone()))),
            None => {}
        }
        let clusters = Clusters::new(&after);
        // What is in force is not followed while something is held back: it may keep what it needs.
        let holds = self.held_until.is_some() && !will_fail && !is_put;
        let (mut watches, lookups) = (clusters.watches(false, holds), clusters.lookups(false, holds));
        let (optional, optional_lookups) = (clusters.watches(holds, false), clusters.lookups(holds, false));
        self.holding = clusters.holders(holds);
        watches.insert(ResourceKey { resource_type: ResourceType::Listener, name: LISTENER.into() });
        let last_unit = after.last_unit.as_ref().filter(|_| matches!(after.in_force, Some(Ok(_))));
        let units = after.unit.iter().chain(last_unit).filter_map(|unit| unit.route.as_ref());
        for route in units.chain(&after.route) {
            watches.insert(ResourceKey { resource_type: ResourceType::RouteConfig, name: route.clone() });
        }
        Expected { publish, may_be_left_out, watches, optional, lookups, optional_lookups, holds }
    }

    /// Takes over a Listener and routes that fit together, or answers with the reason why there are none.
    fn read_unit(&mut self) -> Option<ConfigError> {
        let found = self.find_unit();
        let of_listener = self.told_of(ResourceType::Listener, LISTENER);
        let of_routes = self.route.as_ref().and_then(|route| self.told_of(ResourceType::RouteConfig, route));
        let both = || of_listener.into_iter().chain(of_routes);
        let notes = both().filter_map(|told| told.ambient.as_ref()).chain(both().filter_map(Told::trouble));
        self.notes = notes.map(ToString::to_string).collect();
        match found {
            Ok(found) => {
                self.unit = found.or(self.unit.take());
                if let Some(unit) = &self.unit {
                    self.newest = unit.host.clusters().map(Arc::from).collect();
                }
                None
            }
            Err(error) => {
                self.unit = None;
                Some(error)
            }
        }
    }

    fn find_unit(&mut self) -> Result<Option<Unit>, ConfigError> {
        let has_config = matches!(self.in_force, Some(Ok(_)));
        let value = |told: Option<&Told>| match told.map(|told| &told.state) {
            None | Some(State::Awaited(None)) => Ok(None),
            // Trouble is a reason to fail only for who has nothing.
            Some(State::Awaited(Some(_))) if has_config => Ok(None),
            Some(State::Awaited(Some(error)) | State::Failed(error)) => Err(ConfigError::Resource(error.clone())),
            Some(State::Value(value, server)) => Ok(Some((value.clone(), server.clone()))),
        };
        let Some((Resource::Listener(listener), server)) = value(self.told_of(ResourceType::Listener, LISTENER))?
        else {
            return Ok(None);
        };
        let Listener::Api(listener) = &*listener else { return Err(ConfigError::NotApiListener(LISTENER.into())) };
        let mut sources = vec![(self.key(ResourceType::Listener, LISTENER).1, server)];
        let (name, routes) = match &listener.routes {
            RouteSource::Inline(routes) => {
                self.route = None;
                (LISTENER.into(), routes.clone())
            }
            RouteSource::Rds(name) => {
                let (key, authority) = self.key(ResourceType::RouteConfig, name);
                self.route = Some(key.name.clone());
                let Some((Resource::RouteConfig(routes), server)) = value(self.told.get(&key))? else {
                    return Ok(None);
                };
                sources.push((authority, server));
                (key.name, routes)
            }
        };
        let fits = |host: &&Arc<VirtualHost>| host.domains.contains(&DomainPattern::Exact(AUTHORITY.to_owned()));
        let Some(host) = routes.virtual_hosts.iter().find(fits).cloned() else {
            return Err(ConfigError::NoVirtualHost { authority: AUTHORITY.into(), route_config: name });
        };
        Ok(Some(Unit { listener: listener.clone(), routes, host, route: self.route.clone(), sources }))
    }

    /// Finds out which servers stand behind what is newest and what is in force.
    fn count(&mut self, all: bool) {
        let is_same = |unit: &&Unit| matches!(&self.in_force, Some(Ok(config)) if unit.is_in(config));
        if let Some(unit) = self.unit.as_ref().filter(is_same).cloned() {
            self.last_unit = Some(unit);
        }
        let of_unit = |unit: &Option<Unit>| unit.iter().flat_map(|unit| unit.sources.clone()).collect::<Vec<_>>();
        // What goes with the next publication does not hold it back; but it is what it was, should it stay after all.
        let [newest, in_force] = Clusters::new(self).sources();
        let held = Clusters::with(self, all).held_sources();
        self.set_servers(NEWEST, of_unit(&self.unit).into_iter().chain(newest));
        self.set_servers(IN_FORCE, of_unit(&self.last_unit).into_iter().chain(in_force));
        self.held_sources = held;
    }

    fn set_servers(&mut self, origin: usize, sources: impl Iterator<Item = Source>) {
        self.mixtures[origin].values_mut().for_each(|mixture| mixture.servers.clear());
        for (authority, server) in sources {
            self.mixtures[origin].entry(authority).or_default().servers.insert(server);
        }
    }

    /// Whether something is put in force now, and what must be published for it.
    fn decide(&mut self, now: Time, is_complete: bool) -> Option<Option<Plan>> {
        let verdicts = [self.judge(NEWEST, now), self.judge(IN_FORCE, now)];
        let unit = self.unit.clone()?;
        let has_config = matches!(self.in_force, Some(Ok(_)));
        let is_in_force = matches!(&self.in_force, Some(Ok(config)) if unit.is_in(config));
        let is_new = !is_in_force && is_complete;
        if is_new && self.may(&verdicts[NEWEST]) {
            self.last_unit = Some(unit);
            self.routed.clone_from(&self.newest);
            self.count(false);
            let [newest, in_force] = &mut self.mixtures;
            for (authority, mixture) in in_force {
                if let Some(newest) = newest.get(authority) {
                    (mixture.begun, mixture.was_mixed) = (newest.begun, newest.was_mixed);
                }
            }
            return Some(self.plan(matches!(verdicts[NEWEST], Verdict::Mixed)));
        }
        if has_config && self.may(&verdicts[IN_FORCE]) {
            self.count(false);
            let verdict = self.judge(IN_FORCE, now);
            return Some(self.plan(matches!(verdict, Verdict::Mixed)));
        }
        None
    }

    /// The configuration of the last pair with its clusters, if it is another one than before.
    fn plan(&mut self, mixed_sources: bool) -> Option<Plan> {
        let unit = self.last_unit.as_ref()?;
        let clusters = Clusters::new(self);
        let (clusters, kept) = clusters.visible();
        let config = XdsConfig {
            listener: Arc::new(unit.listener.clone()),
            route_config: unit.routes.clone(),
            virtual_host: unit.host.clone(),
            clusters: clusters.into_iter().collect(),
            mixed_sources,
        };
        let is_known = matches!(&self.in_force, Some(Ok(before)) if **before == config);
        (!is_known).then_some(Plan { config, kept, was_held: false })
    }

    fn may(&mut self, verdict: &Verdict) -> bool {
        if let Verdict::Hold(until) = verdict {
            self.held_until = Some(self.held_until.map_or(*until, |other| other.min(*until)));
            return false;
        }
        true
    }

    /// Inside one authority everything is from one server, unless a switch takes longer than the bound (C-50).
    fn judge(&mut self, origin: usize, now: Time) -> Verdict {
        let bound = self.settings.switch_timeout;
        let mut verdict = Verdict::Clean;
        for mixture in self.mixtures[origin].values_mut() {
            let was_mixed = std::mem::replace(&mut mixture.was_mixed, mixture.servers.len() > 1);
            if mixture.servers.len() < 2 {
                continue;
            }
            // It began with the switch, unless that is so long ago that what came now has nothing to do with it.
            let begun = match mixture.begun {
                Some(begun) if was_mixed || now < begun + bound => begun,
                _ => now,
            };
            mixture.begun = Some(begun);
            let until = begun + bound;
            verdict = match verdict {
                Verdict::Hold(other) => Verdict::Hold(other.max(until)),
                _ if now < until => Verdict::Hold(until),
                Verdict::Clean | Verdict::Mixed => Verdict::Mixed,
            };
        }
        verdict
    }

    // --- Lookups ---

    /// Begins the lookups of these names, ends all others. Answers with what was begun and what was under way.
    pub(super) fn look_up(&mut self, now: Time, names: &BTreeSet<DnsName>) -> (BTreeSet<DnsName>, BTreeSet<DnsName>) {
        let gone: Vec<_> = self.lookups.keys().filter(|name| !names.contains(name)).cloned().collect();
        let mut stopped = BTreeSet::new();
        for name in gone {
            if self.lookups.remove(&name).is_some_and(|lookup| lookup.is_asking) {
                stopped.insert(name);
            }
        }
        let new = names.iter().filter(|name| literal(name).is_none() && !self.lookups.contains_key(name));
        let begun: BTreeSet<_> = new.cloned().collect();
        self.lookups.extend(begun.iter().map(|name| (name.clone(), Lookup::begun(now))));
        (begun, stopped)
    }

    /// Begins the lookups that are due.
    pub(super) fn expire(&mut self, now: Time) -> BTreeSet<DnsName> {
        let due = self.lookups.iter().filter(|(_, lookup)| lookup.next.is_some_and(|next| next <= now));
        let due: BTreeSet<_> = due.map(|(name, _)| name.clone()).collect();
        for name in &due {
            if let Some(lookup) = self.lookups.get_mut(name) {
                lookup.ask(now);
            }
        }
        due
    }

    /// When something is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.lookups.values().filter_map(|lookup| lookup.next).chain(self.held_until).min()
    }
}

impl Unit {
    fn is_in(&self, config: &XdsConfig) -> bool {
        self.listener == *config.listener && self.routes == config.route_config && self.host == config.virtual_host
    }
}

impl Plan {
    /// Whether a configuration is the one that was planned, but for the notes of what is only kept.
    pub(super) fn is_same(&self, other: &XdsConfig) -> bool {
        let one = &self.config;
        one.listener == other.listener
            && one.route_config == other.route_config
            && one.virtual_host == other.virtual_host
            && one.mixed_sources == other.mixed_sources
            && one.clusters.keys().eq(other.clusters.keys())
            && one.clusters.iter().all(|(name, result)| match (result, &other.clusters[name]) {
                (Ok(one), Ok(other)) if self.kept.contains(name) => {
                    one.cluster == other.cluster && (self.was_held || one.children == other.children)
                }
                (one, other) => one == other,
            })
    }
}
