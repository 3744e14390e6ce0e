//! The tree of policies of a channel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::deps::{ClusterChildren, ClusterResult, ConfigError, XdsConfig};
use mainstay_xds::lrs::LoadStore;
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::shared::{Difference, SharedMap};

use crate::helper::{Context, Helper};
use crate::owner::{Owner, Wake};
use crate::picker::{Parts, Picker, count};
use crate::policy::cds::{Cds, CdsConfig};
use crate::policy::{Cx, Event, What};
use crate::pool::{Handles, Pool};
use crate::request_hash::random_hash;
use crate::routing::RouteTable;
use crate::snapshot::{Content, Failure, Snapshot, Works};
use crate::subchannel::{Connectivity, Subchannel, SubchannelId, XdsSecurity};
use crate::timers::Timers;
use crate::tree::warm::Warming;

mod warm;

/// The load-balancing tree of one channel: the cluster manager and everything below it (L-51).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree<S: Subchannel> {
    config: Config,
    /// By number; a number is never used twice.
    clusters: Nodes,
    pickers: BTreeMap<Arc<str>, Numbered<S>>,
    /// Those of the clusters that are aggregates: they depend on others.
    aggregates: BTreeSet<Arc<str>>,
    /// What lives inside an aggregate of the configuration.
    below: Arc<BTreeSet<Arc<str>>>,
    last_cluster: u32,
    last_policy: u64,
    pool: Pool,
    timers: Timers,
    handles: Handles<S>,
    loads: LoadStore,
    /// Clusters whose pickers may be out of date.
    touched: BTreeSet<u32>,
    /// Whether anything but pickers changed since the last snapshot.
    changed: bool,
    /// The last snapshot, of which the next one mostly is a part.
    content: Content<S>,
    /// What RPCs still go by, if that is not the configuration.
    warming: Option<Warming>,
    warm_bound: Option<Duration>,
    /// Whether clusters that ask for TLS are refused.
    security: XdsSecurity,
    /// Whether RPCs may go by other routes than when [`Tree::poll_clusters_in_use`] was last called.
    rerouted: bool,
    /// Drawn when a route first asks for it.
    channel_id: Option<u64>,
}

/// What RPCs are routed by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Config {
    Nothing,
    Broken(Failure),
    Works { config: Arc<XdsConfig>, routes: Arc<RouteTable> },
}

/// In boxes: a map has room for more than it holds, and most channels use a cluster or two.
type Nodes = BTreeMap<u32, Box<Node>>;

/// The clusters of a configuration.
type Clusters = SharedMap<Arc<str>, ClusterResult>;

/// A cluster that RPCs may be routed to, or that is subscribed to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    name: Arc<str>,
    cds: Cds,
}

/// The number of a cluster, and its picker as of the last snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Numbered<S> {
    number: u32,
    picker: Arc<Picker<S>>,
}

impl<S: Subchannel> Tree<S> {
    /// A tree without configuration: RPCs wait (L-30).
    pub fn new() -> Self {
        Self {
            config: Config::Nothing,
            clusters: BTreeMap::new(),
            pickers: BTreeMap::new(),
            aggregates: BTreeSet::new(),
            below: Arc::default(),
            last_cluster: 0,
            last_policy: 0,
            pool: Pool::default(),
            timers: Timers::default(),
            handles: Handles::new(),
            loads: LoadStore::default(),
            touched: BTreeSet::new(),
            changed: false,
            content: Content::Nothing,
            warming: None,
            warm_bound: Some(warm::BOUND),
            security: XdsSecurity::Ignore,
            rerouted: false,
            channel_id: None,
        }
    }

    /// Says what becomes of clusters that ask for TLS by their transport socket.
    #[must_use]
    pub fn with_security(mut self, security: XdsSecurity) -> Self {
        self.security = security;
        self
    }

    /// Puts a configuration in force, or an error in its place (L-29).
    pub fn update<H: Helper<Subchannel = S>>(
        &mut self,
        cx: &mut Context<'_, H>,
        config: Result<Arc<XdsConfig>, Arc<ConfigError>>,
    ) {
        match config {
            Ok(config) => self.put_in_force(cx, config),
            Err(error) => self.break_off(cx, Failure::no_config(error.to_string())),
        }
    }

    /// Takes in the state of a subchannel. Unknown ids are ignored: they were released.
    pub fn handle_connectivity<H: Helper<Subchannel = S>>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: SubchannelId,
        state: Connectivity,
    ) {
        for owner in self.pool.set_state(id, state) {
            self.dispatch(cx, Event { owner, what: What::Connectivity(id) });
        }
        self.switch_if_warm(cx);
        self.pool.flush(cx.helper, &mut self.handles);
    }

    /// Lets a part of the tree connect because an RPC waits for it. One that does so already, or is gone, does nothing.
    pub fn wake<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, wake: Wake) {
        self.dispatch(cx, Event { owner: wake.0, what: What::Wake });
        self.pool.flush(cx.helper, &mut self.handles);
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) {
        while let Some(timer) = self.timers.pop_due(cx.now) {
            self.dispatch(cx, Event { owner: timer.owner, what: What::Timer(timer.kind) });
        }
        self.switch_if_warm(cx);
        self.pool.flush(cx.helper, &mut self.handles);
    }

    /// What RPCs count for load reports.
    pub fn loads(&mut self) -> &mut LoadStore {
        &mut self.loads
    }

    /// When [`Tree::handle_timeout`] is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let warm = self.warming.as_ref().and_then(|warming| warming.until);
        self.timers.next_deadline().into_iter().chain(warm).min()
    }

    /// The newest snapshot, if it changed since the last call.
    pub fn poll_snapshot(&mut self) -> Option<Arc<Snapshot<S>>> {
        let mut replaced = Vec::new();
        for number in std::mem::take(&mut self.touched) {
            let Some(node) = self.clusters.get(&number) else { continue };
            let Some(published) = self.pickers.get_mut(&node.name) else { continue };
            let parts = Parts { pool: &self.pool, handles: &self.handles, before: Some(&published.picker) };
            let picker = node.cds.picker(parts);
            if *published.picker != picker {
                published.picker = Arc::new(picker);
                replaced.push((&node.name, Arc::clone(&published.picker)));
            }
        }
        match &mut self.content {
            _ if std::mem::take(&mut self.changed) => self.content = self.make_content(),
            // The clusters are the same: they come and go with a change.
            Content::Works(works) if !replaced.is_empty() => {
                replaced.into_iter().for_each(|(name, picker)| works.replace(name, picker));
            }
            Content::Works(_) | Content::Nothing | Content::Broken(_) => return None,
        }
        Some(Arc::new(Snapshot { content: self.content.clone() }))
    }

    /// The clusters of the routes that RPCs go by and of those that wait to be warm, if that changed since the last call.
    /// They must stay in the configuration as long as they are here.
    pub fn poll_clusters_in_use(&mut self) -> Option<BTreeSet<Arc<str>>> {
        if !std::mem::take(&mut self.rerouted) {
            return None;
        }
        let newest = match &self.config {
            Config::Works { routes, .. } => Some(routes),
            Config::Nothing | Config::Broken(_) => None,
        };
        let served = self.warming.as_ref().map(|warming| &warming.routes);
        Some(newest.into_iter().chain(served).flat_map(|routes| routes.clusters()).cloned().collect())
    }

    /// Releases every subchannel.
    pub fn shut_down<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) {
        self.break_off(cx, Failure::unavailable("the channel is shut down".into()));
    }

    fn put_in_force<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, config: Arc<XdsConfig>) {
        let current = match &self.config {
            Config::Works { config: current, .. } if *current == config => return,
            Config::Works { config: current, routes }
                if current.virtual_host == config.virtual_host && *routes.chain() == *config.listener.filters =>
            {
                self.changed |= default_limit(current) != default_limit(&config);
                Some((current, routes))
            }
            Config::Works { .. } | Config::Broken(_) | Config::Nothing => None,
        };
        let concerned = current.and_then(|(current, _)| changed_clusters(&current.clusters, &config.clusters));
        let routes = match current {
            Some((_, routes)) => Arc::clone(routes),
            None => {
                (self.changed, self.rerouted) = (true, true);
                Arc::new(RouteTable::new(Arc::clone(&config.virtual_host), &config.listener.filters))
            }
        };
        let concerned = match concerned {
            Some(mut changed) => {
                changed.extend(self.aggregates.iter().cloned());
                changed
            }
            None => {
                self.below = Arc::new(below_aggregates(&config));
                let known = self.pickers.keys().chain(config.clusters.keys());
                known.chain(routes.clusters()).cloned().collect()
            }
        };
        if self.channel_id.is_none() && routes.needs_channel_id() {
            self.channel_id = Some(random_hash(cx.choose));
        }
        let before = self.take_kept();
        let below = Arc::clone(&self.below);
        for name in concerned {
            let wanted = is_wanted(&name, &config, &routes, &below);
            let serves = before.as_ref().is_some_and(|before| before.routes.names(&name));
            let is_known = config.clusters.contains_key(&name);
            match self.pickers.get(&name).map(|numbered| numbered.number) {
                Some(number) if wanted || (serves && is_known) => {
                    self.update_cluster(cx, number, CdsConfig::of(&name, &config, self.security));
                }
                None if wanted => self.add_cluster(cx, &name, CdsConfig::of(&name, &config, self.security)),
                Some(_) if serves => {} // Still in use.
                Some(_) => self.remove_cluster(cx, &name),
                None => {}
            }
        }
        self.config = Config::Works { config, routes };
        if let Some(before) = before {
            self.keep(cx, before);
        }
        self.pool.flush(cx.helper, &mut self.handles);
    }

    /// Lets go of everything; RPCs fail from now on.
    fn break_off<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, failure: Failure) {
        for name in self.pickers.keys().cloned().collect::<Vec<_>>() {
            self.remove_cluster(cx, &name);
        }
        self.warming = None;
        self.rerouted = true;
        let config = Config::Broken(failure);
        self.changed |= self.config != config;
        self.config = config;
        self.pool.flush(cx.helper, &mut self.handles);
    }

    fn add_cluster<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, name: &Arc<str>, config: CdsConfig) {
        self.last_cluster += 1;
        let number = self.last_cluster;
        let cds = self.with_cx(cx, number, |cx, _| Cds::new(cx, config));
        let picker = Arc::new(Picker::Wait(String::new())); // Replaced before anyone sees it.
        self.clusters.insert(number, Box::new(Node { name: Arc::clone(name), cds }));
        self.pickers.insert(Arc::clone(name), Numbered { number, picker });
        self.touched.insert(number);
        self.changed = true;
        self.note_kind(number);
    }

    fn update_cluster<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, number: u32, config: CdsConfig) {
        let update = |cx: &mut Cx<'_>, clusters: &mut Nodes| {
            clusters.get_mut(&number).is_some_and(|node| node.cds.update(cx, config))
        };
        if self.with_cx(cx, number, update) {
            self.touched.insert(number);
            self.note_kind(number);
        }
    }

    /// A cluster may be an aggregate now, or none any more.
    fn note_kind(&mut self, number: u32) {
        let Some(node) = self.clusters.get(&number) else { return };
        match node.cds.is_aggregate() {
            true => _ = self.aggregates.insert(Arc::clone(&node.name)),
            false => _ = self.aggregates.remove(&node.name),
        }
    }

    fn remove_cluster<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, name: &str) {
        if let Some(Numbered { number, .. }) = self.pickers.remove(name)
            && let Some(mut node) = self.clusters.remove(&number)
        {
            self.with_cx(cx, number, |cx, _| node.cds.shut_down(cx));
            self.aggregates.remove(name);
            self.changed = true;
        }
    }

    fn dispatch<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, event: Event) {
        let Owner { cluster, .. } = event.owner;
        let handle = |cx: &mut Cx<'_>, clusters: &mut Nodes| {
            clusters.get_mut(&cluster).is_some_and(|node| node.cds.handle(cx, &event))
        };
        if self.with_cx(cx, cluster, handle) {
            self.touched.insert(cluster);
        }
    }

    /// Runs `work` with what policies get.
    fn with_cx<H: Helper<Subchannel = S>, T>(
        &mut self,
        cx: &mut Context<'_, H>,
        cluster: u32,
        work: impl FnOnce(&mut Cx<'_>, &mut Nodes) -> T,
    ) -> T {
        let (helper, mut observations) = (&mut *cx.helper, Vec::new());
        let mut policy_cx = Cx {
            now: cx.now,
            choose: &mut *cx.choose,
            pool: &mut self.pool,
            timers: &mut self.timers,
            breakers: &mut |cluster, eds_service| helper.circuit_breaker(cluster, eds_service),
            loads: &mut self.loads,
            last_policy: &mut self.last_policy,
            health: None,
            cluster,
            ignore_reresolution: false,
            warm_bound: self.warm_bound,
            observations: &mut observations,
        };
        let result = work(&mut policy_cx, &mut self.clusters);
        observations.iter().for_each(|observation| cx.helper.observe(observation));
        result
    }

    fn make_content(&self) -> Content<S> {
        let (routes, default_limit) = match (&self.config, &self.warming) {
            (Config::Nothing, _) => return Content::Nothing,
            (Config::Broken(failure), _) => return Content::Broken(failure.clone()),
            (Config::Works { .. }, Some(before)) => (&before.routes, before.default_limit),
            (Config::Works { config, routes }, None) => (routes, default_limit(config)),
        };
        count(self.pickers.len());
        // Both lists are in order, and every cluster that a route names has a picker.
        let (mut pickers, mut others) = (Vec::with_capacity(routes.clusters().len()), SharedMap::new());
        for (name, Numbered { picker, .. }) in &self.pickers {
            if routes.clusters().get(pickers.len()) == Some(name) {
                pickers.push(Arc::clone(picker));
            } else {
                others.insert(Arc::clone(name), Arc::clone(picker));
            }
        }
        let (channel_id, pickers) = (self.channel_id.unwrap_or_default(), pickers.into_iter().collect());
        Content::Works(Works { routes: Arc::clone(routes), default_limit, channel_id, pickers, others })
    }
}

impl<S: Subchannel> Default for Tree<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Helper> fmt::Debug for Context<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The clusters that differ; `None` if aggregates do, so that others may have to come or go.
fn changed_clusters(old: &Clusters, new: &Clusters) -> Option<BTreeSet<Arc<str>>> {
    let is_aggregate = |entry: &ClusterResult| {
        entry.as_ref().is_ok_and(|cluster| matches!(cluster.cluster.kind, ClusterKind::Aggregate { .. }))
    };
    let mut changed = BTreeSet::new();
    for Difference { key, old, new } in old.differences(new) {
        if [old, new].into_iter().flatten().any(is_aggregate) {
            return None;
        }
        changed.insert(Arc::clone(key));
    }
    Some(changed)
}

/// What lives inside an aggregate.
fn below_aggregates(config: &XdsConfig) -> BTreeSet<Arc<str>> {
    let mut below = BTreeSet::new();
    for cluster in config.clusters.values().filter_map(|entry| entry.as_ref().ok()) {
        if let ClusterChildren::Aggregate(_) = cluster.children
            && let ClusterKind::Aggregate { clusters } = &cluster.cluster.kind
        {
            below.extend(clusters.iter().map(|name| Arc::from(name.as_str())));
        }
    }
    below
}

/// Whether a route names the cluster, or it is there for no other reason than a subscription.
fn is_wanted(name: &str, config: &XdsConfig, routes: &RouteTable, below: &BTreeSet<Arc<str>>) -> bool {
    routes.names(name) || (config.clusters.contains_key(name) && !below.contains(name))
}

fn default_limit(config: &XdsConfig) -> Option<Duration> {
    config.listener.max_stream_duration
}
