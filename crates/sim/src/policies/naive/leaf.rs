//! A cluster: a leaf with outlier detection, drops, circuit breaker and sessions, or an aggregate of leaves (L-54 to L-98).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::{DetectionMethod, Observation, UnenforcedReason, XdsSecurity};
use mainstay_xds::Time;
use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ClusterResult, XdsConfig};
use mainstay_xds::resource::cluster::{ClusterKind, OutlierDetection};
use mainstay_xds::resource::endpoint::{DropCategory, Locality};
use mainstay_xds::resource::filter::FilterConfig;

use super::pick::{LoadMap, Picker};
use super::priority::{ChildConfig, Priority};
use super::sessions::Sessions;
use super::spread::Spread;
use super::switch::{OfKind, Switch};
use super::{Area, Connections, Deadline, Env, Kind, Part, Policy, Set, State, What, Who, priorities, set_of};

/// What the configuration says of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CdsConfig {
    Leaf(LeafConfig),
    Aggregate(Vec<LeafConfig>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeafConfig {
    name: Arc<str>,
    entry: Option<ClusterResult>,
    sessions: bool,
    security: XdsSecurity,
}

#[derive(Clone, Debug)]
pub(super) enum Cds {
    Leaf(Leaf),
    Aggregate { numbers: BTreeMap<Arc<str>, u32>, next: u32, priority: Priority<Leaf> },
}

#[derive(Clone, Debug)]
pub(super) enum Leaf {
    Works(Box<Works>),
    Broken(String),
}

#[derive(Clone, Debug)]
pub(super) struct Works {
    /// Whether TLS is heeded.
    follows: bool,
    ignored: bool,
    detector: Option<Detector>,
    config: Arc<ClusterConfig>,
    eds: String,
    load: Option<LoadMap>,
    /// Which localities each priority had, by number.
    names: BTreeMap<Arc<Locality>, u32>,
    next_name: u32,
    sessions: Option<Sessions>,
    priority: Priority<Switch<Spread>>,
}

#[derive(Clone, Debug)]
struct Detector {
    who: Who,
    config: OutlierDetection,
    began: Time,
    due: Time,
    health: Health,
}

/// The endpoints that outlier detection knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    endpoints: BTreeMap<Set, Tracked>,
}

#[derive(Clone, Debug)]
struct Tracked {
    number: u64,
    ejected_at: Option<Time>,
    multiplier: u32,
    users: Vec<Who>,
}

impl CdsConfig {
    pub(super) fn of(name: &Arc<str>, config: &XdsConfig, security: XdsSecurity) -> Self {
        let filters = &config.listener.filters;
        let sessions = filters.iter().any(|filter| matches!(filter.config, FilterConfig::StatefulSession(_)));
        let leaf = |name: &Arc<str>| LeafConfig {
            name: name.clone(),
            entry: config.clusters.get(name).cloned(),
            sessions,
            security,
        };
        let children = config.clusters.get(name).and_then(|entry| entry.as_ref().ok()).map(|cluster| &cluster.children);
        match children {
            Some(ClusterChildren::Aggregate(leaves)) => Self::Aggregate(leaves.iter().map(leaf).collect()),
            _ => Self::Leaf(leaf(name)),
        }
    }

    /// Whether it takes the place of what there was at once: an error does (L-56), and another kind of cluster where
    /// connections are secured as clusters ask.
    pub(super) fn is_abrupt(&self, before: &Self) -> bool {
        let secured = |config: &Self| match config {
            Self::Leaf(leaf) => leaf.is_secured(),
            Self::Aggregate(leaves) => leaves.iter().any(LeafConfig::is_secured),
        };
        let other_kind = matches!(self, Self::Leaf(_)) != matches!(before, Self::Leaf(_));
        matches!(self, Self::Leaf(LeafConfig { entry: None | Some(Err(_)), .. }))
            || (other_kind && (secured(self) || secured(before)))
    }
}

impl LeafConfig {
    fn is_secured(&self) -> bool {
        let follows = self.security == XdsSecurity::Follow;
        follows && matches!(&self.entry, Some(Ok(cluster)) if cluster.cluster.tls.is_some())
    }

    fn usable(&self) -> Result<Arc<ClusterConfig>, String> {
        match &self.entry {
            None => Err(format!("no entry for cluster {:?}", self.name)),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(cluster)) => match cluster.children {
                ClusterChildren::Aggregate(_) => Err(format!("{:?} is itself an aggregate", self.name)),
                _ if cluster.cluster.tls.is_some() && self.security == XdsSecurity::Refuse => {
                    Err(format!("{:?} asks for TLS", self.name))
                }
                _ => Ok(cluster.clone()),
            },
        }
    }
}

impl OfKind for Cds {
    fn fits(&self, config: &CdsConfig) -> bool {
        matches!(self, Self::Leaf(_)) == matches!(config, CdsConfig::Leaf(_))
    }
}

impl Policy for Cds {
    type Config = CdsConfig;

    fn new(env: &mut Env<'_>, config: &CdsConfig) -> Self {
        match config {
            CdsConfig::Leaf(leaf) => Self::Leaf(Leaf::new(env, leaf)),
            CdsConfig::Aggregate(leaves) => {
                let (mut numbers, mut next) = (BTreeMap::new(), 0);
                let children = number(leaves, &mut numbers, &mut next);
                let priority = Priority::new(env, children);
                Self::Aggregate { numbers, next, priority }
            }
        }
    }

    fn update(&mut self, env: &mut Env<'_>, config: &CdsConfig) {
        match (self, config) {
            (Self::Leaf(leaf), CdsConfig::Leaf(config)) => leaf.update(env, config),
            (Self::Aggregate { numbers, next, priority }, CdsConfig::Aggregate(leaves)) => {
                let children = number(leaves, numbers, next);
                priority.update(env, children);
            }
            _ => {}
        }
    }

    fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.handle(env, who, what),
            Self::Aggregate { priority, .. } => priority.handle(env, who, what),
        }
    }

    fn exit_idle(&mut self, _: &mut Env<'_>) {}

    fn serves(&self, _: Who) -> bool {
        false
    }

    fn keeps(&self, _: &Connections, _: &CdsConfig) -> bool {
        true
    }

    fn close(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Leaf(leaf) => leaf.close(env),
            Self::Aggregate { priority, .. } => priority.close(env),
        }
    }

    fn state(&self) -> State {
        match self {
            Self::Leaf(leaf) => leaf.state(),
            Self::Aggregate { priority, .. } => priority.state(),
        }
    }

    fn picker(&self, connections: &Connections) -> Picker {
        match self {
            Self::Leaf(leaf) => leaf.picker(connections),
            Self::Aggregate { priority, .. } => priority.picker(connections),
        }
    }

    fn deadlines(&self, into: &mut Vec<Deadline>) {
        match self {
            Self::Leaf(leaf) => leaf.deadlines(into),
            Self::Aggregate { priority, .. } => priority.deadlines(into),
        }
    }
}

/// A leaf keeps its number as long as it is in the list.
fn number(
    leaves: &[LeafConfig],
    numbers: &mut BTreeMap<Arc<str>, u32>,
    next: &mut u32,
) -> Vec<ChildConfig<LeafConfig>> {
    let old = std::mem::take(numbers);
    let mut children = Vec::new();
    for leaf in leaves {
        let number = old.get(&leaf.name).copied().unwrap_or(*next);
        *next = (*next).max(number + 1);
        numbers.insert(leaf.name.clone(), number);
        children.push((number, leaf.clone(), false));
    }
    children
}

impl Policy for Leaf {
    type Config = LeafConfig;

    fn new(env: &mut Env<'_>, config: &LeafConfig) -> Self {
        match config.usable() {
            Ok(cluster) => Self::Works(Box::new(Works::new(env, &cluster, config))),
            Err(text) => Self::Broken(text),
        }
    }

    fn update(&mut self, env: &mut Env<'_>, config: &LeafConfig) {
        match (&mut *self, config.usable()) {
            (Self::Works(works), Ok(cluster)) if works.is_secured_like(&cluster) => {
                works.update(env, &cluster, config.sessions);
            }
            _ => {
                self.close(env);
                *self = Self::new(env, config);
            }
        }
    }

    fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        match self {
            Self::Works(works) => works.handle(env, who, what),
            Self::Broken(_) => false,
        }
    }

    fn exit_idle(&mut self, env: &mut Env<'_>) {
        if let Self::Works(works) = self {
            with_health(&mut works.detector, env, |env| works.priority.exit_idle(env));
        }
    }

    fn serves(&self, _: Who) -> bool {
        false
    }

    fn keeps(&self, _: &Connections, _: &LeafConfig) -> bool {
        true
    }

    fn close(&mut self, env: &mut Env<'_>) {
        if let Self::Works(works) = self {
            works.detector = None;
            works.sessions.take().into_iter().for_each(|mut sessions| sessions.close(env));
            works.priority.close(env);
        }
    }

    fn state(&self) -> State {
        match self {
            // L-87.
            Self::Works(works) if drops(&works.config).iter().any(|drop| drop.per_million >= 1_000_000) => State::Ready,
            Self::Works(works) => works.priority.state(),
            Self::Broken(_) => State::Failing,
        }
    }

    fn picker(&self, connections: &Connections) -> Picker {
        match self {
            Self::Works(works) => works.picker(connections),
            Self::Broken(text) => Picker::Fail(vec![text.clone()]),
        }
    }

    fn deadlines(&self, into: &mut Vec<Deadline>) {
        if let Self::Works(works) = self {
            works.priority.deadlines(into);
            works.sessions.iter().for_each(|sessions| sessions.deadlines(into));
            into.extend(works.detector.as_ref().map(|detector| (detector.due, detector.who, Kind::Interval)));
        }
    }
}

impl Works {
    fn new(env: &mut Env<'_>, config: &Arc<ClusterConfig>, of: &LeafConfig) -> Self {
        let (follows, sessions) = (of.security == XdsSecurity::Follow, of.sessions);
        let ignored = tell_of_tls(env, config, follows, false);
        let mut detector = settings(config).map(|settings| Detector::new(env, settings, config));
        let (mut names, mut next_name) = (BTreeMap::new(), 0);
        let children = children(config, follows, &mut names, &mut next_name);
        let (priority, sessions) = with_health(&mut detector, env, |env| {
            let priority: Priority<Switch<Spread>> = Priority::new(env, children);
            let sessions = sessions.then(|| Sessions::new(env, &config.cluster, &priority.configs()));
            (priority, sessions)
        });
        let (eds, config) = (eds_service(config), config.clone());
        let load = load(&config, &eds, &priority);
        Self { follows, ignored, detector, config, eds, load, names, next_name, sessions, priority }
    }

    /// Whether connections stay what they are with another configuration.
    fn is_secured_like(&self, config: &ClusterConfig) -> bool {
        !self.follows || self.config.cluster.tls == config.cluster.tls
    }

    fn update(&mut self, env: &mut Env<'_>, config: &Arc<ClusterConfig>, sessions: bool) {
        self.ignored = tell_of_tls(env, config, self.follows, self.ignored);
        match (settings(config), &mut self.detector) {
            (Some(settings), Some(detector)) => detector.update(env, settings, config),
            (Some(settings), detector) => *detector = Some(Detector::new(env, settings, config)),
            (None, detector) => *detector = None,
        }
        (self.config, self.eds) = (config.clone(), eds_service(config));
        let children = children(config, self.follows, &mut self.names, &mut self.next_name);
        let (priority, current) = (&mut self.priority, &mut self.sessions);
        with_health(&mut self.detector, env, |env| {
            priority.update(env, children);
            match current {
                Some(current) if sessions => current.update(env, &config.cluster, &priority.configs()),
                None if sessions => *current = Some(Sessions::new(env, &config.cluster, &priority.configs())),
                Some(gone) => {
                    gone.close(env);
                    *current = None;
                }
                None => {}
            }
        });
        self.load = load(config, &self.eds, &self.priority);
    }

    fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        if let Some(detector) = &mut self.detector
            && detector.who.policy == who.policy
        {
            for (who, ejected) in detector.sweep(env, &self.config.name) {
                self.below(env, who, &What::Health(ejected));
            }
            return true;
        }
        self.below(env, who, what)
    }

    fn below(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        let (priority, sessions) = (&mut self.priority, &mut self.sessions);
        with_health(&mut self.detector, env, |env| {
            if sessions.as_mut().is_some_and(|sessions| sessions.handle(env, who, what)) {
                return true;
            }
            let lingered = priority.has_gone_one();
            let handled = priority.handle(env, who, what);
            if let Some(sessions) = sessions
                && lingered != priority.has_gone_one()
            {
                sessions.list(env, &priority.configs());
            }
            handled
        })
    }

    fn picker(&self, connections: &Connections) -> Picker {
        let (place, count) = self.priority.place();
        let mut child = self.priority.picker(connections);
        if let Picker::Wait(text) | Picker::Fail(text) = &mut child {
            text.insert(0, format!("priority {place} of {count}"));
        }
        if let Some(sessions) = &self.sessions {
            child = Picker::Override(sessions.picks(connections), Box::new(child));
        }
        Picker::Cluster {
            name: self.config.name.clone(),
            note: self.config.note.clone(),
            drops: drops(&self.config),
            max: self.config.cluster.max_requests,
            breaker: (self.config.name.to_string(), self.eds.clone()),
            load: self.load.clone(),
            child: Box::new(child),
        }
    }
}

fn tell_of_tls(env: &mut Env<'_>, config: &ClusterConfig, follows: bool, before: bool) -> bool {
    let ignored = config.cluster.tls.is_some() && !follows;
    if ignored && !before {
        env.seen.push(Observation::SecurityIgnored { cluster: config.name.clone() });
    }
    ignored
}

fn settings(config: &ClusterConfig) -> Option<&OutlierDetection> {
    let settings = config.cluster.outlier_detection.as_ref();
    settings.filter(|settings| settings.success_rate.is_some() || settings.failure_percentage.is_some())
}

fn eds_service(config: &ClusterConfig) -> String {
    match &config.cluster.kind {
        ClusterKind::Eds { service_name: Some(name) } => name.clone(),
        ClusterKind::Eds { .. } | ClusterKind::LogicalDns { .. } | ClusterKind::Aggregate { .. } => String::new(),
    }
}

fn drops(config: &ClusterConfig) -> Vec<DropCategory> {
    match &config.children {
        ClusterChildren::Endpoints(Some(resolved)) => resolved.endpoints.drops.clone(),
        ClusterChildren::Endpoints(_) | ClusterChildren::Aggregate(_) => Vec::new(),
    }
}

fn areas(config: &ClusterConfig, follows: bool) -> Vec<Vec<Area>> {
    match &config.children {
        ClusterChildren::Endpoints(Some(resolved)) => priorities(config, resolved, follows),
        ClusterChildren::Endpoints(_) | ClusterChildren::Aggregate(_) => Vec::new(),
    }
}

/// L-58, L-59.
fn children(
    config: &ClusterConfig,
    follows: bool,
    names: &mut BTreeMap<Arc<Locality>, u32>,
    next_name: &mut u32,
) -> Vec<ChildConfig<Part>> {
    let mut priorities = areas(config, follows);
    if priorities.is_empty() {
        priorities.push(Vec::new());
    }
    let mut old = std::mem::take(names);
    let mut children = Vec::new();
    for localities in priorities {
        let here: BTreeSet<Arc<Locality>> = localities.iter().map(|area| area.locality.clone()).collect();
        let known = here.iter().find_map(|locality| old.get(locality).copied());
        let number = known.unwrap_or(*next_name);
        *next_name = (*next_name).max(number + 1);
        if known.is_some() {
            old.retain(|locality, taken| *taken != number && !here.contains(locality));
        }
        names.extend(here.into_iter().map(|locality| (locality, number)));
        let (lb, counted) = (config.cluster.lb_policy.clone(), settings(config).is_some());
        let deaf = matches!(config.cluster.kind, ClusterKind::Eds { .. });
        children.push((number, Part { lb, localities, counted }, deaf));
    }
    children
}

fn load(config: &ClusterConfig, eds: &str, priority: &Priority<Switch<Spread>>) -> Option<LoadMap> {
    config.cluster.lrs_server.as_ref()?;
    let mut localities: BTreeMap<SocketAddr, Arc<Locality>> = BTreeMap::new();
    for area in priority.configs().into_iter().flat_map(|part| &part.localities) {
        for address in area.endpoints.iter().flat_map(|endpoint| endpoint.addresses.as_slice()) {
            localities.entry(*address).or_insert_with(|| area.locality.clone());
        }
    }
    let categories = drops(config).into_iter().map(|drop| drop.category).collect();
    Some(LoadMap { of: (config.name.to_string(), eds.to_owned()), categories, localities })
}

fn with_health<T>(detector: &mut Option<Detector>, env: &mut Env<'_>, work: impl FnOnce(&mut Env<'_>) -> T) -> T {
    let Some(detector) = detector else { return work(env) };
    let outer = env.health.replace(std::mem::take(&mut detector.health));
    let result = work(env);
    detector.health = std::mem::replace(&mut env.health, outer).expect("put there");
    result
}

impl Health {
    /// The counter of an endpoint, and whether it is ejected.
    pub(super) fn join(&mut self, set: &Set, who: Who) -> Option<(u64, bool)> {
        let tracked = self.endpoints.get_mut(set)?;
        if !tracked.users.contains(&who) {
            tracked.users.push(who);
        }
        Some((tracked.number, tracked.ejected_at.is_some()))
    }

    pub(super) fn leave(&mut self, set: &Set, who: Who) {
        if let Some(tracked) = self.endpoints.get_mut(set) {
            tracked.users.retain(|user| *user != who);
        }
    }

    /// L-83.
    fn follow(&mut self, env: &mut Env<'_>, config: &ClusterConfig) {
        let mut old = std::mem::take(&mut self.endpoints);
        for endpoint in areas(config, false).into_iter().flatten().flat_map(|area| area.endpoints) {
            let set = set_of(endpoint.addresses.as_slice().iter().copied());
            let new = || Tracked { number: 0, ejected_at: None, multiplier: 0, users: Vec::new() };
            let mut tracked = match self.endpoints.remove(&set) {
                Some(listed) => listed,
                None => old.remove(&set).unwrap_or_else(new),
            };
            if tracked.number == 0 {
                tracked.number = env.books.new_number();
                env.new_who();
            }
            self.endpoints.insert(set, tracked);
        }
    }
}

impl Detector {
    fn new(env: &mut Env<'_>, settings: &OutlierDetection, config: &ClusterConfig) -> Self {
        let (who, began) = (env.new_who(), env.now);
        let mut health = Health::default();
        health.follow(env, config);
        Self { who, config: settings.clone(), began, due: began + interval(settings), health }
    }

    /// L-78.
    fn update(&mut self, env: &mut Env<'_>, settings: &OutlierDetection, config: &ClusterConfig) {
        if self.config != *settings {
            self.config = settings.clone();
            self.due = env.now.max(self.began + interval(settings));
        }
        self.health.follow(env, config);
    }

    /// L-77 to L-81. Who hears that an endpoint returns, then who hears that one is ejected.
    fn sweep(&mut self, env: &mut Env<'_>, cluster: &Arc<str>) -> Vec<(Who, bool)> {
        (self.began, self.due) = (env.now, env.now + interval(&self.config));
        let (now, config) = (env.now, self.config.clone());
        let total = self.health.endpoints.len();
        let mut judged: Vec<(&mut Tracked, u64, u64)> = Vec::new();
        let mut sets = Vec::new();
        for ((_, addresses), tracked) in &mut self.health.endpoints {
            sets.push(addresses.clone());
            let (good, bad) = env.books.ended.remove(&tracked.number).unwrap_or_default();
            judged.push((tracked, good, bad));
        }
        let before: Vec<bool> = judged.iter().map(|(tracked, ..)| tracked.ejected_at.is_some()).collect();
        let mut eject = |judged: &mut Vec<(&mut Tracked, u64, u64)>, outliers: Vec<usize>, method, enforcement: u32| {
            for at in outliers {
                let ejected = judged.iter().filter(|(tracked, ..)| tracked.ejected_at.is_some()).count();
                let tracked = &mut judged[at].0;
                if tracked.ejected_at.is_some() {
                    continue;
                }
                let full = ejected > 0 && ejected * 100 >= config.max_ejection_percent as usize * total;
                let unenforced = if full {
                    Some(UnenforcedReason::MaxEjectionOverflow)
                } else if enforcement < 100 && env.chance.choose(100) >= u64::from(enforcement) {
                    Some(UnenforcedReason::EnforcementPercentage)
                } else {
                    tracked.ejected_at = Some(now);
                    tracked.multiplier += 1;
                    None
                };
                env.seen.push(Observation::Outlier { cluster: cluster.clone(), method, unenforced });
            }
        };
        if let Some(algorithm) = &config.success_rate {
            let busy = busy(&judged, algorithm.request_volume);
            if busy.len() >= 1.max(algorithm.minimum_hosts as usize) {
                let rate = |at: &usize| judged[*at].1 as f64 / (judged[*at].1 + judged[*at].2) as f64;
                let mean = busy.iter().map(rate).sum::<f64>() / busy.len() as f64;
                let variance = busy.iter().map(|at| (rate(at) - mean).powi(2)).sum::<f64>() / busy.len() as f64;
                let threshold = mean - variance.sqrt() * (f64::from(algorithm.stdev_factor) / 1000.0);
                let outliers = busy.iter().filter(|at| rate(at) < threshold).copied().collect();
                eject(&mut judged, outliers, DetectionMethod::SuccessRate, algorithm.enforcement);
            }
        }
        if let Some(algorithm) = &config.failure_percentage {
            let busy = busy(&judged, algorithm.request_volume);
            if busy.len() >= algorithm.minimum_hosts as usize {
                let threshold = u64::from(algorithm.threshold);
                let is_bad = |at: &&usize| 100 * judged[**at].2 > threshold * (judged[**at].1 + judged[**at].2);
                let outliers = busy.iter().filter(is_bad).copied().collect();
                eject(&mut judged, outliers, DetectionMethod::FailurePercentage, algorithm.enforcement);
            }
        }
        let (mut returned, mut ejected) = (Vec::new(), Vec::new());
        for (((tracked, ..), before), addresses) in judged.into_iter().zip(before).zip(sets) {
            match tracked.ejected_at {
                None => tracked.multiplier = tracked.multiplier.saturating_sub(1),
                Some(at) => {
                    let longest = config.base_ejection_time.max(config.max_ejection_time);
                    let span = (config.base_ejection_time * tracked.multiplier).min(longest);
                    if now > at && now.since(at) >= span {
                        tracked.ejected_at = None;
                    }
                }
            }
            let after = tracked.ejected_at.is_some();
            if after != before {
                env.seen.push(Observation::Ejection { cluster: cluster.clone(), addresses, ejected: after });
                let list = if after { &mut ejected } else { &mut returned };
                list.extend(tracked.users.iter().map(|who| (*who, after)));
            }
        }
        returned.extend(ejected);
        returned
    }
}

/// Those with enough RPCs.
fn busy(judged: &[(&mut Tracked, u64, u64)], volume: u32) -> Vec<usize> {
    let enough = u64::from(volume).max(1);
    (0..judged.len()).filter(|at| judged[*at].1 + judged[*at].2 >= enough).collect()
}

fn interval(config: &OutlierDetection) -> Duration {
    config.interval.max(Duration::from_millis(10))
}
