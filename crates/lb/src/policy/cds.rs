//! A cluster as routes name it: a leaf, or an aggregate of leaves (A74, A75, L-54 to L-61).

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ClusterResult, XdsConfig};
use mainstay_xds::resource::filter::{FilterConfig, HttpFilter};
use mainstay_xds::resource::tls::UpstreamTls;

use super::graceful_switch::{GracefulSwitch, Kind};
use super::outlier_detection::OutlierDetection;
use super::priority::{ChildConfig, Priority};
use super::{Cx, Event, LeafCluster, Policy};
use crate::helper::Observation;
use crate::picker::{Parts, Picker};
use crate::subchannel::{State, Subchannel, XdsSecurity};

/// A cluster below the cluster manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cds {
    config: CdsConfig,
    child: GracefulSwitch<CdsKind>,
}

/// What the configuration says of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CdsConfig {
    Leaf(LeafConfig),
    Aggregate(Vec<LeafConfig>),
}

/// What the configuration says of a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeafConfig {
    name: Arc<str>,
    /// Absent: the configuration has no such cluster.
    entry: Option<ClusterResult>,
    /// Whether RPCs may belong to sessions (A55).
    sessions: bool,
    /// What becomes of it if it asks for TLS.
    security: XdsSecurity,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CdsKind {
    Leaf(Leaf),
    Aggregate(Aggregate),
}

/// A leaf cluster, or why it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Leaf {
    Works {
        child: OutlierDetection,
        /// How its connections are secured.
        tls: Option<Arc<UpstreamTls>>,
        /// Whether it asked for TLS in vain when that was last looked at.
        ignored: bool,
    },
    Broken(String),
}

/// An aggregate: priority over its leaves (L-61).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Aggregate {
    /// Numbers of the leaves, for priority; never used twice.
    numbers: BTreeMap<Arc<str>, u32>,
    next: u32,
    priority: Priority<Leaf>,
}

// === impl Cds ===

impl Cds {
    pub(crate) fn new(cx: &mut Cx<'_>, config: CdsConfig) -> Self {
        Self { child: GracefulSwitch::new(cx, &config), config }
    }

    /// Takes in what the configuration says now. Whether that is anything new (L-57).
    pub(crate) fn update(&mut self, cx: &mut Cx<'_>, config: CdsConfig) -> bool {
        if self.config == config {
            return false;
        }
        match &config {
            // An error replaces what there was at once (L-56).
            CdsConfig::Leaf(LeafConfig { entry: None | Some(Err(_)), .. }) => {
                self.child.shut_down(cx);
                self.child = GracefulSwitch::new(cx, &config);
            }
            CdsConfig::Leaf(_) | CdsConfig::Aggregate(_) if config.may_follow(&self.config) => {
                self.child.update(cx, &config);
            }
            CdsConfig::Leaf(_) | CdsConfig::Aggregate(_) => {
                self.child.shut_down(cx);
                self.child = GracefulSwitch::new(cx, &config);
            }
        }
        self.config = config;
        true
    }

    pub(crate) fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        self.child.handle(cx, event)
    }

    /// Whether it depends on other clusters of the configuration.
    pub(crate) fn is_aggregate(&self) -> bool {
        matches!(self.config, CdsConfig::Aggregate(_))
    }

    pub(crate) fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.child.shut_down(cx);
    }

    pub(crate) fn state(&self) -> State {
        self.child.state()
    }

    pub(crate) fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        self.child.picker(parts)
    }
}

impl CdsConfig {
    /// Whether what serves under `before` may go on until this is ready. A cluster that becomes an aggregate, or was
    /// one, is another one with other connections; where TLS is asked for, those are not used a moment longer.
    fn may_follow(&self, before: &Self) -> bool {
        let secured = |config: &Self| match config {
            Self::Leaf(leaf) => leaf.follows_tls(),
            Self::Aggregate(leaves) => leaves.iter().any(LeafConfig::follows_tls),
        };
        matches!((self, before), (Self::Leaf(_), Self::Leaf(_)) | (Self::Aggregate(_), Self::Aggregate(_)))
            || !(secured(self) || secured(before))
    }

    /// Looks `name` up.
    pub(crate) fn of(name: &Arc<str>, config: &XdsConfig, security: XdsSecurity) -> Self {
        let has_sessions = |filter: &HttpFilter| matches!(filter.config, FilterConfig::StatefulSession(_));
        let sessions = config.listener.filters.iter().any(has_sessions);
        let leaf = |name: &Arc<str>| LeafConfig {
            name: Arc::clone(name),
            entry: config.clusters.get(name).cloned(),
            sessions,
            security,
        };
        match config.clusters.get(name) {
            Some(Ok(cluster)) => match &cluster.children {
                ClusterChildren::Aggregate(leaves) => Self::Aggregate(leaves.iter().map(leaf).collect()),
                ClusterChildren::Endpoints(_) => Self::Leaf(leaf(name)),
            },
            Some(Err(_)) | None => Self::Leaf(leaf(name)),
        }
    }
}

// === impl CdsKind ===

impl Kind for CdsKind {
    fn fits(&self, config: &CdsConfig) -> bool {
        matches!((self, config), (Self::Leaf(_), CdsConfig::Leaf(_)) | (Self::Aggregate(_), CdsConfig::Aggregate(_)))
    }
}

impl Policy for CdsKind {
    type Config = CdsConfig;

    fn new(cx: &mut Cx<'_>, config: &CdsConfig) -> Self {
        match config {
            CdsConfig::Leaf(leaf) => Self::Leaf(Leaf::new(cx, leaf)),
            CdsConfig::Aggregate(leaves) => Self::Aggregate(Aggregate::new(cx, leaves)),
        }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &CdsConfig) {
        match (self, config) {
            (Self::Leaf(leaf), CdsConfig::Leaf(config)) => leaf.update(cx, config),
            (Self::Aggregate(aggregate), CdsConfig::Aggregate(leaves)) => aggregate.update(cx, leaves),
            (Self::Leaf(_) | Self::Aggregate(_), _) => {} // Does not fit: the switch makes a new one.
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.handle(cx, event),
            Self::Aggregate(aggregate) => aggregate.handle(cx, event),
        }
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Leaf(leaf) => leaf.shut_down(cx),
            Self::Aggregate(aggregate) => aggregate.priority.shut_down(cx),
        }
    }

    fn state(&self) -> State {
        match self {
            Self::Leaf(leaf) => leaf.state(),
            Self::Aggregate(aggregate) => aggregate.priority.state(),
        }
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        match self {
            Self::Leaf(leaf) => leaf.picker(parts),
            Self::Aggregate(aggregate) => aggregate.priority.picker(parts),
        }
    }
}

impl LeafConfig {
    /// Whether its connections are secured as it asks.
    fn follows_tls(&self) -> bool {
        let asks = |cluster: &Arc<ClusterConfig>| cluster.cluster.tls.is_some();
        self.security == XdsSecurity::Follow && self.entry.as_ref().is_some_and(|entry| entry.as_ref().is_ok_and(asks))
    }

    /// The cluster that works, or why it does not.
    fn usable(&self) -> Result<LeafCluster, String> {
        match &self.entry {
            Some(Ok(cluster)) if matches!(cluster.children, ClusterChildren::Aggregate(_)) => {
                Err(format!("leaf cluster {:?} is itself an aggregate", self.name))
            }
            Some(Ok(cluster)) if cluster.cluster.tls.is_some() && self.security == XdsSecurity::Refuse => Err(format!(
                "cluster {:?} asks for TLS in its transport_socket, which the credentials of this channel do not \
                 follow, and the channel requires xDS security",
                self.name
            )),
            Some(Ok(cluster)) => Ok(LeafCluster {
                config: Arc::clone(cluster),
                sessions: self.sessions,
                tls: cluster.cluster.tls.clone().filter(|_| self.security == XdsSecurity::Follow),
            }),
            Some(Err(error)) => Err(error.to_string()),
            None => Err(format!("xDS config has no entry for cluster {:?}", self.name)), // L-55
        }
    }
}

// === impl Leaf ===

impl Policy for Leaf {
    type Config = LeafConfig;

    fn new(cx: &mut Cx<'_>, config: &LeafConfig) -> Self {
        match config.usable() {
            Ok(cluster) => {
                let ignored = tell_of_ignored_security(cx, &cluster, false);
                Self::Works { tls: cluster.tls.clone(), ignored, child: OutlierDetection::new(cx, &cluster) }
            }
            Err(text) => Self::Broken(text),
        }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &LeafConfig) {
        match (&mut *self, config.usable()) {
            // Under another TLS context nothing goes on, not even for a moment: what was connected before may not be whom
            // the cluster now means.
            (Self::Works { child, tls, ignored }, Ok(cluster)) if *tls == cluster.tls => {
                *ignored = tell_of_ignored_security(cx, &cluster, *ignored);
                child.update(cx, &cluster);
            }
            _ => {
                self.shut_down(cx);
                *self = Self::new(cx, config);
            }
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        match self {
            Self::Works { child, .. } => child.handle(cx, event),
            Self::Broken(_) => false,
        }
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Works { child, .. } => child.exit_idle(cx),
            Self::Broken(_) => {}
        }
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Works { child, .. } => child.shut_down(cx),
            Self::Broken(_) => {}
        }
    }

    fn state(&self) -> State {
        match self {
            Self::Works { child, .. } => child.state(),
            Self::Broken(_) => State::TransientFailure,
        }
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        match self {
            Self::Works { child, .. } => child.picker(parts),
            Self::Broken(text) => Picker::Fail(text.clone()),
        }
    }
}

// === impl Aggregate ===

impl Aggregate {
    fn new(cx: &mut Cx<'_>, leaves: &[LeafConfig]) -> Self {
        let (mut numbers, mut next) = (BTreeMap::new(), 0);
        let children = number(leaves, &mut numbers, &mut next);
        Self { numbers, next, priority: Priority::new(cx, children) }
    }

    fn update(&mut self, cx: &mut Cx<'_>, leaves: &[LeafConfig]) {
        let children = number(leaves, &mut self.numbers, &mut self.next);
        self.priority.update(cx, children);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let (from, _) = self.priority.position();
        let handled = self.priority.handle(cx, event);
        let (to, of) = self.priority.position();
        if let Some(leaf) = self.priority.configs().nth(to).filter(|_| to != from) {
            cx.observations.push(Observation::Leaf { cluster: Arc::clone(&leaf.name), to, from, of });
        }
        handled
    }
}

/// Tells when a cluster begins to ask for TLS in vain; whether it does.
fn tell_of_ignored_security(cx: &mut Cx<'_>, leaf: &LeafCluster, before: bool) -> bool {
    let ignored = leaf.config.cluster.tls.is_some() && leaf.tls.is_none();
    if ignored && !before {
        cx.observations.push(Observation::SecurityIgnored { cluster: Arc::clone(&leaf.config.name) });
    }
    ignored
}

/// Gives each leaf its old number or a new one.
fn number(
    leaves: &[LeafConfig],
    numbers: &mut BTreeMap<Arc<str>, u32>,
    next: &mut u32,
) -> Vec<ChildConfig<LeafConfig>> {
    let old = std::mem::take(numbers);
    let child = |leaf: &LeafConfig| {
        let number = old.get(&leaf.name).copied().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        numbers.insert(Arc::clone(&leaf.name), number);
        ChildConfig { number, config: leaf.clone(), ignore_reresolution: false }
    };
    leaves.iter().map(child).collect()
}
