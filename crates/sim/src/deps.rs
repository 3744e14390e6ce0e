//! The dependency manager alone: what it watches, looks up and publishes, beside a naive reference.
//!
//! Histories are short and many. Whatever is told, in whatever order and however much of it at once, the manager must
//! come to what a naive reference makes from scratch, and nothing may be left over. Nothing here
//! repeats how the manager finds its answers: the reference searches all ways through all clusters each time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Provenance, ResourceError, Update};
use mainstay_xds::deps::{
    Action, ClusterChildren, ClusterConfig, ClusterResult, ConfigError, DependencyManager, DepsSettings, DnsName,
    Output, XdsConfig,
};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::endpoint::{EndpointSource, LocalityEndpoints};
use mainstay_xds::resource::listener::RouteSource;
use mainstay_xds::resource::route::VirtualHost;
use mainstay_xds::resource::{EndpointCollection, Listener, Resource, ResourceType, RouteConfig};
use mainstay_xds::{Choose, Time};

use crate::invariant::{Invariant, Violation};

mod clusters;
mod draw;
mod lookups;
mod reference;
mod state;
mod told;

use draw::Draw;
use reference::{Expected, Plan};
use state::{AUTHORITY, LISTENER, NODE, Reference};
use told::{State, Told};

/// What a history has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Events.
    pub events: u64,
    /// Configurations and errors that were published.
    pub published: u64,
    /// Mixtures of servers among them.
    pub mixed: u64,
    /// Lookups that began.
    pub lookups: u64,
}

/// Runs the history of a seed. The same seed is the same history.
///
/// # Errors
/// If something does not hold; with what happened before.
pub fn run(seed: u64) -> Result<History, Violation> {
    World::new(seed, false).live().or_else(|_| {
        let mut world = World::new(seed, true);
        let outcome = world.live();
        outcome.map_err(|violation| {
            let lines = world.lines.unwrap_or_default().join("\n");
            Violation { detail: format!("{lines}\nseed {seed}: {}", violation.detail), ..violation }
        })
    })
}

/// A manager and what is around it.
struct World {
    draw: Draw,
    now: Time,
    manager: DependencyManager,
    reference: Reference,
    servers: [Arc<ServerConfig>; 3],
    /// The server in charge of each authority.
    active: [usize; 2],
    /// Lookups under way.
    asking: BTreeSet<DnsName>,
    /// Whether anything is new since the manager was looked at.
    dirty: bool,
    /// What must be watched and looked up since then.
    expected: Expected,
    /// What is published.
    config: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    history: History,
    lines: Option<Vec<String>>,
}

/// No jitter.
struct Middle;

impl Choose for Middle {
    fn choose(&mut self, bound: u64) -> u64 {
        bound / 2
    }
}

impl World {
    fn new(seed: u64, told: bool) -> Self {
        let mut draw = Draw::new(seed);
        let settings = DepsSettings {
            federation: !draw.chance(8),
            resolution_refresh: draw.chance(4).then_some(Duration::from_secs(45)),
            ..DepsSettings::default()
        };
        Self {
            draw,
            now: Time::from_start(Duration::from_secs(1_000)),
            manager: DependencyManager::new(LISTENER.into(), AUTHORITY.into(), NODE.into(), settings.clone()),
            reference: Reference::new(settings),
            servers: ["A", "B", "C"].map(|name| Arc::new(ServerConfig::insecure(name))),
            active: [0, 0],
            asking: BTreeSet::new(),
            dirty: true,
            expected: Expected::default(),
            config: None,
            history: History::default(),
            lines: told.then(Vec::new),
        }
    }

    fn live(&mut self) -> Result<History, Violation> {
        self.settle(BTreeSet::new())?;
        // A control plane that has everything, all at once: many clusters, nested as deep as may be.
        for _ in 0..self.draw.depth() {
            self.tell_all();
            self.settle(BTreeSet::new())?;
        }
        let events = 20 + self.draw.below(60);
        for _ in 0..events {
            let together = if self.draw.chance(4) { 1 + self.draw.below(4) } else { 1 };
            let mut due = BTreeSet::new();
            for _ in 0..together {
                due.append(&mut self.happen());
            }
            self.settle(due)?;
        }
        if self.draw.chance(2) {
            self.note(|| "shut down".to_owned());
            self.manager.shut_down(self.now);
            self.reference.close();
            self.dirty = true;
            self.settle(BTreeSet::new())?;
            // Whatever comes now is not wanted.
            self.config = None;
            for _ in 0..6 {
                self.happen();
                self.settle(BTreeSet::new())?;
            }
        }
        Ok(self.history)
    }

    /// Lets something happen. Answers with the lookups that must begin for it.
    fn happen(&mut self) -> BTreeSet<DnsName> {
        self.history.events += 1;
        let awaited = self.keys(|told| matches!(told.state, State::Awaited(None)));
        let known = self.keys(|told| !matches!(told.state, State::Awaited(None)));
        match self.draw.below(24) {
            0..=9 if !awaited.is_empty() => {
                let key = awaited[self.draw.below(awaited.len())].clone();
                self.tell(&key);
            }
            0..=13 if !known.is_empty() => {
                let key = known[self.draw.below(known.len())].clone();
                self.tell(&key);
            }
            14 => {
                let (resource_type, name) = self.draw.key();
                let (key, _) = self.reference.key(resource_type, &name);
                if !self.reference.told.contains_key(&key) {
                    self.tell(&key); // Of what nobody watches.
                }
            }
            15 => self.switch(),
            16 | 17 => {
                let asking: Vec<_> = self.asking.iter().cloned().collect();
                if let Some(name) = self.draw.one_of(&asking).cloned() {
                    self.answer(&name);
                }
            }
            18 | 19 => return self.pass_time(),
            20 => {
                self.note(|| "look up again".to_owned());
                self.manager.request_reresolution(self.now);
                let now = self.now;
                let settings = self.reference.settings.clone();
                self.reference.lookups.values_mut().for_each(|lookup| lookup.refresh(now, &settings));
                return self.reference.expire(now);
            }
            21 | 22 if self.draw.subscribes => self.subscribe(),
            _ => {
                // A name that nobody looks up.
                let name = DnsName { host: "host0".to_owned(), port: 80 };
                if !self.reference.lookups.get(&name).is_some_and(|lookup| lookup.is_asking) {
                    let answer = self.draw.addresses();
                    self.manager.handle_dns(self.now, &mut Middle, &name, answer);
                }
            }
        }
        BTreeSet::new()
    }

    /// Tells values of the clusters that are awaited, and of what names them.
    fn tell_all(&mut self) {
        let awaited = self.keys(|told| matches!(told.state, State::Awaited(None)));
        for key in awaited.into_iter().filter(|key| key.resource_type != ResourceType::EndpointCollection) {
            let authority = usize::from(self.reference.key(key.resource_type, &key.name).1 != AuthorityKey::TopLevel);
            let server = self.servers[self.active[authority]].clone();
            let provenance = Provenance { server, version: "1".into(), at: self.now };
            let update = Update::Changed(self.draw.value(&key), provenance);
            self.note(|| format!("{key}: {}", tell_update(&update)));
            self.manager.handle_update(self.now, &key, update.clone());
            if let Some(told) = self.reference.told.get_mut(&key) {
                told.hear(update);
                self.dirty = true;
            }
        }
    }

    fn keys(&self, is_wanted: impl Fn(&Told) -> bool) -> Vec<ResourceKey> {
        self.reference.told.iter().filter(|(_, told)| is_wanted(told)).map(|(key, _)| key.clone()).collect()
    }

    /// Tells something of a resource that a client could tell.
    fn tell(&mut self, key: &ResourceKey) {
        let authority = usize::from(self.reference.key(key.resource_type, &key.name).1 != AuthorityKey::TopLevel);
        let now = self.now;
        let server = self.servers[self.active[authority]].clone();
        let before = self.reference.told.get(key).cloned().unwrap_or_else(Told::nothing);
        let from = before.server().cloned();
        let provenance = Provenance { server: server.clone(), version: "1".into(), at: now };
        let error = |this: &mut Self| {
            let kind = this.draw.trouble();
            let server = Some(server.clone());
            Arc::new(ResourceError { resource: key.clone(), server, node_id: NODE.into(), kind, at: now })
        };
        let update = match self.draw.below(12) {
            0 => Update::Failed(error(self)),
            1 | 2 if from.is_some() => {
                let error = if before.ambient.is_some() && self.draw.chance(2) { None } else { Some(error(self)) };
                Update::Ambient(error)
            }
            3..=5 if from.as_ref().is_some_and(|from| *from != server) => Update::Confirmed(provenance),
            _ => Update::Changed(self.draw.value(key), provenance),
        };
        self.note(|| format!("{key}: {}", tell_update(&update)));
        self.manager.handle_update(now, key, update.clone());
        if let Some(told) = self.reference.told.get_mut(key) {
            told.hear(update);
            self.dirty |= *told != before;
        }
    }

    fn switch(&mut self) {
        let authority = self.draw.below(2);
        self.active[authority] = self.draw.below(self.servers.len());
        let server = self.servers[self.active[authority]].clone();
        let authority = if authority == 0 { AuthorityKey::TopLevel } else { AuthorityKey::Named("east".into()) };
        self.note(|| format!("{authority}: {} is in charge", server.server_uri));
        self.manager.handle_active_server(self.now, &authority, &server);
        self.dirty |= self.reference.switch(self.now, &authority, &server);
    }

    fn answer(&mut self, name: &DnsName) {
        let answer = self.draw.addresses();
        self.note(|| format!("{name} is {answer:?}"));
        self.asking.remove(name);
        self.manager.handle_dns(self.now, &mut Middle, name, answer.clone());
        let (now, settings) = (self.now, self.reference.settings.clone());
        if let Some(lookup) = self.reference.lookups.get_mut(name) {
            let before = lookup.known();
            lookup.answered(now, &settings, answer);
            self.dirty |= lookup.known() != before;
        }
    }

    /// Lets time pass: to the next deadline, not as far, or somewhat farther.
    fn pass_time(&mut self) -> BTreeSet<DnsName> {
        let next = self.reference.deadline().unwrap_or(self.now + Duration::from_secs(7));
        self.now = match self.draw.below(4) {
            0 => self.now + next.since(self.now) / 2,
            1 => self.now.max(next) + Duration::from_millis(self.draw.below(20_000) as u64),
            _ => self.now.max(next),
        };
        let now = self.now;
        self.note(|| format!("it is {:?}", now.since_start()));
        self.manager.handle_timeout(now);
        self.dirty |= self.reference.held_until.is_some_and(|until| until <= now);
        self.reference.expire(now)
    }

    fn subscribe(&mut self) {
        let name: Arc<str> = self.draw.cluster_name().into();
        let count = self.reference.subscriptions.get(&name).copied().unwrap_or_default();
        if self.draw.chance(2) {
            self.note(|| format!("subscribe to {name}"));
            self.manager.subscribe_cluster(self.now, &name);
            self.reference.subscriptions.insert(name, count + 1);
            self.dirty = true;
        } else {
            self.note(|| format!("release {name}"));
            self.manager.release_cluster(self.now, &name);
            self.dirty |= count == 1;
            match count {
                0 | 1 => drop(self.reference.subscriptions.remove(&name)),
                _ => drop(self.reference.subscriptions.insert(name, count - 1)),
            }
        }
    }

    // --- What the manager does about it ---

    /// Does what the manager wants, and compares it with what it should want.
    fn settle(&mut self, due: BTreeSet<DnsName>) -> Result<(), Violation> {
        let mut published = Vec::new();
        let (mut begun, mut stopped) = (BTreeSet::new(), BTreeSet::new());
        let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
        let mut actions = 0;
        let deadline = loop {
            let action = match self.manager.poll_output() {
                Output::Wait(at) => break at,
                Output::Do(action) => action,
            };
            actions += 1;
            Invariant::Work.holds(actions < 2_000, || "no end of actions".to_owned())?;
            self.note(|| format!("  > {}", tell_action(&action)));
            match action {
                Action::Watch(key) => {
                    Invariant::Watches.holds(removed.is_empty(), || {
                        format!("{key} is watched after other watches ended: one that moves would be lost (P-96)")
                    })?;
                    let is_new = !self.reference.told.contains_key(&key) && added.insert(key.clone());
                    Invariant::Watches.holds(is_new, || format!("{key} is watched twice"))?;
                }
                Action::Unwatch(key) => {
                    // One that was about to begin comes to nothing.
                    let is_watched =
                        added.remove(&key) || (self.reference.told.contains_key(&key) && removed.insert(key.clone()));
                    Invariant::Watches.holds(is_watched, || format!("{key} is not watched, and that is to end"))?;
                }
                Action::Resolve(name) => {
                    let is_new = self.asking.insert(name.clone()) && begun.insert(name.clone());
                    Invariant::Work.holds(is_new, || format!("{name} is looked up twice at a time"))?;
                    self.history.lookups += 1;
                }
                Action::StopResolving(name) => {
                    let was_there = self.asking.remove(&name) && stopped.insert(name.clone());
                    Invariant::Leak.holds(was_there, || format!("{name} is not looked up, and that is to end"))?;
                }
                Action::Publish(config) => published.push(config),
            }
        };
        self.reference.told.extend(added.into_iter().map(|key| (key, Told::nothing())));
        self.judge_published(published)?;
        // What is not watched any more counted until now: the manager knew it when it decided.
        self.reference.told.retain(|key, _| !removed.contains(key));
        self.judge(due, &begun, &stopped, deadline)
    }

    /// Compares what is published with what should be.
    fn judge_published(&mut self, published: Vec<Result<Arc<XdsConfig>, Arc<ConfigError>>>) -> Result<(), Violation> {
        if std::mem::take(&mut self.dirty) {
            self.expected = self.reference.evaluate(self.now);
        }
        Invariant::Work.holds(published.len() < 4, || "so many configurations are published at once".to_owned())?;
        let mut published = published.into_iter().peekable();
        while self.judge_next(published.next())? {
            // What is in force now may make more complete: then that is in force as well, or held back.
            self.expected = self.reference.evaluate(self.now);
            let is_due = self.expected.publish.is_some() && !self.expected.may_be_left_out;
            if !is_due && published.peek().is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Compares what is watched and looked up with what should be.
    fn judge(
        &mut self,
        due: BTreeSet<DnsName>,
        begun: &BTreeSet<DnsName>,
        stopped: &BTreeSet<DnsName>,
        deadline: Option<Time>,
    ) -> Result<(), Violation> {
        let Expected { watches, optional, lookups, optional_lookups, holds, .. } = std::mem::take(&mut self.expected);
        let in_force = self.manager.in_force().map(|shown| shown.cloned().map_err(Clone::clone));
        Invariant::Config.holds(in_force.as_ref() == self.reference.in_force(), || {
            "what is said to be in force is not what was published".to_owned()
        })?;

        let watched: BTreeSet<_> = self.reference.told.keys().cloned().collect();
        let missing: Vec<_> = watches.difference(&watched).collect();
        Invariant::Watches.holds(missing.is_empty(), || format!("{missing:?} are needed and not watched"))?;
        let spare: Vec<_> = watched.iter().filter(|key| !watches.contains(key) && !optional.contains(key)).collect();
        Invariant::Watches.holds(spare.is_empty() || holds, || format!("{spare:?} are watched and not needed"))?;

        let may_go_on = |name: &&DnsName| self.reference.lookups.contains_key(*name) || begun.contains(*name);
        let kept = optional_lookups.iter().filter(|name| may_go_on(name) && !stopped.contains(*name));
        let lookups_now: BTreeSet<_> = lookups.iter().chain(kept).cloned().collect();
        self.expected =
            Expected { publish: None, may_be_left_out: false, watches, optional, lookups, optional_lookups, holds };
        let lookups = lookups_now;
        let (new, ended) = self.reference.look_up(self.now, &lookups);
        let expected: BTreeSet<_> = new.into_iter().chain(due).collect();
        // One that was due, and is not needed any more in the same moment, may be looked up in vain.
        let expected: BTreeSet<_> = expected.into_iter().filter(|name| lookups.contains(name)).collect();
        let begun: BTreeSet<_> = begun.difference(stopped).cloned().collect();
        Invariant::Work.holds(begun == expected, || format!("{begun:?} are looked up: expected {expected:?}"))?;
        let ended: BTreeSet<_> = ended.into_iter().filter(|name| self.asking.contains(name)).collect();
        Invariant::Leak.holds(ended.is_empty(), || format!("{ended:?} are looked up, and not needed any more"))?;
        let asked: BTreeSet<_> = self.reference.lookups.iter().filter(|(_, l)| l.is_asking).map(|(n, _)| n).collect();
        Invariant::Leak.holds(self.asking.iter().eq(asked.iter().copied()), || {
            format!("{:?} are looked up: expected {asked:?}", self.asking)
        })?;
        let due = self.reference.deadline();
        Invariant::Work.holds(deadline == due, || {
            format!("the next deadline is {deadline:?}: expected {due:?}, and it is {:?}", self.now)
        })
    }

    /// Compares what is published next with what should be. Says whether anything is.
    fn judge_next(&mut self, published: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>) -> Result<bool, Violation> {
        let may_be_left_out = self.expected.may_be_left_out;
        match (published, self.expected.publish.take()) {
            (None, None) => Ok(false),
            (None, Some(_)) if may_be_left_out => Ok(false),
            (Some(published), Some(plan)) => self.compare(published, plan).map(|()| true),
            (Some(Ok(config)), None) => {
                let before = match &self.config {
                    Some(Ok(before)) => format!("{:#?}", difference(before, &config)),
                    other => format!("{other:?}"),
                };
                Err(Invariant::Config.broken(format!("a configuration is published for nothing: {before}")))
            }
            (Some(Err(error)), None) => {
                Err(Invariant::Config.broken(format!("an error is published for nothing: {error}")))
            }
            (None, Some(Ok(plan))) => {
                let before = match &self.config {
                    Some(Ok(before)) => format!("{:#?}", difference(before, &plan.config)),
                    other => format!("{other:?} is in force, not {:#?}", plan.config.clusters),
                };
                Err(Invariant::Config.broken(format!("what is there is not published: {before}")))
            }
            (None, Some(Err(error))) => Err(Invariant::Config.broken(format!("an error is not published: {error}"))),
        }
    }

    fn compare(
        &mut self,
        published: Result<Arc<XdsConfig>, Arc<ConfigError>>,
        plan: Result<Plan, ConfigError>,
    ) -> Result<(), Violation> {
        self.history.published += 1;
        match (&published, plan) {
            (Ok(config), Ok(plan)) => {
                Invariant::Config.holds(plan.is_same(config), || {
                    format!("not what was expected: {:#?}", difference(config, &plan.config))
                })?;
                self.history.mixed += u64::from(config.mixed_sources);
                if let Some(Ok(before)) = &self.config {
                    check_sharing(before, config)?;
                }
            }
            (Err(error), Err(expected)) => {
                Invariant::Config
                    .holds(**error == expected, || format!("{error} is published: expected {expected}"))?;
            }
            (Ok(_), Err(expected)) => {
                return Err(Invariant::Config.broken(format!("a configuration is published: expected {expected}")));
            }
            (Err(error), Ok(_)) => {
                return Err(Invariant::Config.broken(format!("{error} is published, and everything is there")));
            }
        }
        self.config = Some(published.clone());
        self.reference.put_in_force(published);
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }
}

/// Parts that did not change are shared with the configuration before.
fn check_sharing(before: &XdsConfig, after: &XdsConfig) -> Result<(), Violation> {
    fn is_shared<T: PartialEq>(one: &Arc<T>, other: &Arc<T>) -> bool {
        one != other || Arc::ptr_eq(one, other)
    }
    let parts = is_shared(&before.listener, &after.listener)
        && is_shared(&before.route_config, &after.route_config)
        && is_shared(&before.virtual_host, &after.virtual_host);
    let clusters = before.clusters.iter().all(|(name, one)| match (one, after.clusters.get(name)) {
        (Ok(one), Some(Ok(other))) => is_shared(one, other),
        _ => true,
    });
    Invariant::Work.holds(parts && clusters, || "something is made anew although it has not changed".to_owned())
}

/// Where two configurations differ.
fn difference(one: &XdsConfig, other: &XdsConfig) -> Vec<String> {
    let mut all = Vec::new();
    if one.listener != other.listener || one.route_config != other.route_config {
        all.push("the pair".to_owned());
    }
    if one.virtual_host != other.virtual_host {
        all.push("the virtual host".to_owned());
    }
    if one.mixed_sources != other.mixed_sources {
        all.push(format!("mixed: {} and {}", one.mixed_sources, other.mixed_sources));
    }
    let names: BTreeSet<_> = one.clusters.keys().chain(other.clusters.keys()).collect();
    for name in names.into_iter().filter(|name| one.clusters.get(*name) != other.clusters.get(*name)) {
        all.push(format!("{name} is {}", tell_cluster(one.clusters.get(name))));
        all.push(format!("{name} or {}", tell_cluster(other.clusters.get(name))));
    }
    all
}

fn tell_update(update: &Update) -> String {
    match update {
        Update::Changed(resource, provenance) => {
            format!("{}: {}", provenance.server.server_uri, tell_resource(resource))
        }
        Update::Confirmed(provenance) => format!("{} has it too", provenance.server.server_uri),
        Update::Failed(error) => format!("failed: {:?}", error.kind),
        Update::Ambient(Some(error)) => format!("stays: {:?}", error.kind),
        Update::Ambient(None) => "is fine again".to_owned(),
    }
}

fn tell_resource(resource: &Resource) -> String {
    let ports = |collection: &EndpointCollection| -> Vec<u16> {
        collection.endpoints.iter().map(|endpoint| endpoint.addresses.first().port()).collect()
    };
    let hosts = |routes: &RouteConfig| -> Vec<String> {
        let tell = |host: &Arc<VirtualHost>| {
            format!("{} {:?} -> {:?}", host.name, host.domains, host.clusters().collect::<Vec<_>>())
        };
        routes.virtual_hosts.iter().map(tell).collect()
    };
    match resource {
        Resource::Listener(listener) => match &**listener {
            Listener::Api(api) => match &api.routes {
                RouteSource::Inline(routes) => format!("{:?} {:?}", api.max_stream_duration, hosts(routes)),
                RouteSource::Rds(name) => format!("{:?} routes {name}", api.max_stream_duration),
            },
            Listener::Server(_) => "for a server".to_owned(),
        },
        Resource::RouteConfig(routes) => format!("{:?}", hosts(routes)),
        Resource::Cluster(cluster) => format!("{:?} {}", cluster.kind, cluster.max_requests),
        Resource::Endpoints(endpoints) => {
            let localities = endpoints.priorities.iter().flat_map(|priority| &priority.localities);
            let tell = |locality: &LocalityEndpoints| match &locality.source {
                EndpointSource::Inline(collection) => format!("{:?}", ports(collection)),
                EndpointSource::Collection(name) => name.clone(),
            };
            format!("{} priorities: {}", endpoints.priorities.len(), localities.map(tell).collect::<Vec<_>>().join(" "))
        }
        Resource::EndpointCollection(collection) => format!("{:?}", ports(collection)),
        Resource::EndpointGlob(glob) => format!("{glob:?}"),
    }
}

fn tell_cluster(result: Option<&ClusterResult>) -> String {
    let tell = |config: &ClusterConfig| {
        let children = match &config.children {
            ClusterChildren::Aggregate(leaves) => format!("{leaves:?}"),
            ClusterChildren::Endpoints(None) => "no endpoints".to_owned(),
            ClusterChildren::Endpoints(Some(resolved)) => {
                let collections = resolved.collections.iter().map(|(name, collection)| {
                    format!(" {name}={}", tell_resource(&Resource::EndpointCollection(collection.clone())))
                });
                tell_resource(&Resource::Endpoints(resolved.endpoints.clone())) + &collections.collect::<String>()
            }
        };
        format!("{} {children}, {:?}", tell_resource(&Resource::Cluster(config.cluster.clone())), config.note)
    };
    match result {
        None => "not there".to_owned(),
        Some(Ok(config)) => tell(config),
        Some(Err(error)) => error.to_string(),
    }
}

fn tell_action(action: &Action) -> String {
    match action {
        Action::Watch(key) => format!("watch {key}"),
        Action::Unwatch(key) => format!("unwatch {key}"),
        Action::Resolve(name) => format!("look up {name}"),
        Action::StopResolving(name) => format!("stop looking up {name}"),
        Action::Publish(Ok(config)) => {
            format!("publish {:?}, mixed: {}", config.clusters.keys().collect::<Vec<_>>(), config.mixed_sources)
        }
        Action::Publish(Err(error)) => format!("publish {error}"),
    }
}
