//! The clusters that routes and subscriptions need, what each of them needs in turn, and what becomes of it.
//!
//! Every cluster is a [`Node`]. Work follows change: an update marks the nodes that use the resource,
//! and only those are read and built again. Leaf lists of aggregates depend on the clusters below, not
//! on endpoints; all of them are made again when a cluster appears, fails or changes its kind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use super::config::ClusterResult;
use super::dns::{DnsName, Lookups};
use super::error::MAX_DEPTH;
use super::sources::{Source, Sources};
use super::watch::{Name, State, Table, Watched};
use super::{Action, DepsSettings};
use crate::client::{ResourceError, Update};
use crate::name::ResourceKey;
use crate::resource::cluster::ClusterKind;
use crate::resource::endpoint::EndpointSource;
use crate::resource::{Cluster, EndpointCollection, Endpoints, ResourceType};
use crate::{Choose, Time};

mod results;

/// All clusters in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Graph {
    nodes: BTreeMap<Arc<str>, Box<Node>>,
    /// Clusters that routes name, and clusters that are subscribed to.
    roots: [BTreeSet<Arc<str>>; 2],
    /// The nodes that are aggregates.
    aggregates: BTreeSet<Arc<str>>,

    clusters: Table<Cluster>,
    endpoints: Table<Endpoints>,
    collections: Table<EndpointCollection>,
    pub(super) lookups: Lookups,

    /// Servers behind the resources that routes need.
    pub(super) sources: Sources,

    /// Nodes whose cluster or endpoints changed: what they need may be different.
    unread: BTreeSet<Arc<str>>,
    /// Nodes whose result may be different.
    unbuilt: BTreeSet<Arc<str>>,
    /// Whether leaf lists may be different.
    leaves_stale: bool,
    /// Whether nodes may have become unreachable.
    shrunk: bool,

    /// Clusters that routes need and that are not complete; aggregates are not counted, their leaves are.
    incomplete: BTreeSet<Arc<str>>,
    /// Clusters without a result that only subscriptions need.
    pending: BTreeSet<Arc<str>>,
    /// Clusters whose result changed, or that are gone, since the last [`Graph::take_changed`].
    changed: BTreeSet<Arc<str>>,
}

/// Why a cluster is in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The routes need it.
    Routes,
    /// Somebody subscribed to it.
    Subscriptions,
}

/// What building a result needs from outside the graph.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) federation: bool,
    pub(super) node_id: &'a str,
    /// Notes of the Listener and the RouteConfiguration.
    pub(super) common_notes: &'a [String],
    /// The results that were published last, to be shared where nothing changed.
    pub(super) published: Option<&'a BTreeMap<Arc<str>, ClusterResult>>,
}

/// One cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// Key of its watch.
    canonical: Arc<str>,
    /// The shortest way from a root of each origin, itself counted; `None`: not reached.
    depths: [Option<u8>; 2],
    /// Whether routes need it.
    required: bool,
    shape: Shape,
    /// What it comes to; `None`: not complete.
    built: Option<ClusterResult>,
    /// Its share in [`Graph::sources`].
    sources: Vec<Source>,
}

/// What a cluster needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Shape {
    /// Nothing heard yet.
    Unknown,
    /// It cannot be had.
    Failed(Arc<ResourceError>),
    /// Endpoints, and the collections they name, by name as written.
    Eds { endpoints: Name, collections: BTreeMap<Arc<str>, Name> },
    /// Addresses.
    Dns(DnsName),
    /// Other clusters in order.
    Aggregate(Vec<Arc<str>>),
}

// === impl Graph ===

impl Graph {
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            roots: [BTreeSet::new(), BTreeSet::new()],
            aggregates: BTreeSet::new(),
            clusters: Table::new(),
            endpoints: Table::new(),
            collections: Table::new(),
            lookups: Lookups::default(),
            sources: Sources::default(),
            unread: BTreeSet::new(),
            unbuilt: BTreeSet::new(),
            leaves_stale: false,
            shrunk: false,
            incomplete: BTreeSet::new(),
            pending: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Puts `roots` in the place of all earlier roots of the origin.
    pub(super) fn set_roots(
        &mut self,
        cx: &Context<'_>,
        origin: Origin,
        roots: BTreeSet<Arc<str>>,
        out: &mut VecDeque<Action>,
    ) {
        let old = std::mem::replace(&mut self.roots[origin as usize], roots);
        let added: Vec<_> = self.roots[origin as usize].difference(&old).cloned().collect();
        self.shrunk |= old.len() + added.len() > self.roots[origin as usize].len();
        for root in added {
            self.reach(cx, origin, root, 1, out);
        }
    }

    /// Takes in news of a resource below the routes. Says whether anything is different now.
    pub(super) fn hear(&mut self, resource: &ResourceKey, update: Update) -> bool {
        let name = &resource.name;
        let (users, marks) = match resource.resource_type {
            ResourceType::Cluster => (self.clusters.hear(name, update), &mut self.unread),
            ResourceType::Endpoints => (self.endpoints.hear(name, update), &mut self.unread),
            ResourceType::EndpointCollection => (self.collections.hear(name, update), &mut self.unbuilt),
            ResourceType::Listener | ResourceType::RouteConfig => return false,
        };
        marks.extend(users.into_iter().flatten().cloned());
        users.is_some()
    }

    /// Takes in the answer of a lookup. Says whether anything is different now.
    pub(super) fn hear_dns(
        &mut self,
        now: Time,
        choose: &mut dyn Choose,
        settings: &DepsSettings,
        name: &DnsName,
        answer: Result<Vec<SocketAddr>, String>,
    ) -> bool {
        let users = self.lookups.answer(now, choose, settings, name, answer);
        self.unbuilt.extend(users.into_iter().flatten().cloned());
        users.is_some()
    }

    /// Builds every result again: a note that they share has changed.
    pub(super) fn rebuild_all(&mut self) {
        self.unbuilt.extend(self.nodes.keys().cloned());
    }

    /// Brings everything up to date. New watches begin here; old ones end in [`Graph::sweep`].
    pub(super) fn settle(&mut self, cx: &Context<'_>, out: &mut VecDeque<Action>) {
        self.drop_unreachable(cx, out);
        while let Some(name) = self.unread.pop_first() {
            self.read(cx, &name, out);
            self.unbuilt.insert(name);
        }
        self.drop_unreachable(cx, out);
        while let Some(name) = self.unbuilt.pop_first() {
            self.build(cx, &name);
        }
        // As long as a leaf is missing nothing is published: no list is needed, and none is made again and again.
        if self.incomplete.is_empty() && std::mem::take(&mut self.leaves_stale) {
            for name in self.aggregates.clone() {
                let result = self.build_aggregate(cx, &name);
                self.set_result(&name, result);
            }
        }
    }

    /// Ends the watches and lookups that nobody needs.
    pub(super) fn sweep(&mut self, out: &mut VecDeque<Action>) {
        self.clusters.sweep(out);
        self.endpoints.sweep(out);
        self.collections.sweep(out);
        self.lookups.sweep(out);
    }

    /// Whether everything that the routes need is there.
    pub(super) fn is_complete(&self) -> bool {
        self.incomplete.is_empty()
    }

    /// Clusters without a result that only subscriptions need.
    pub(super) fn pending(&self) -> &BTreeSet<Arc<str>> {
        &self.pending
    }

    /// Clusters whose result changed, or that are gone, since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// What a cluster comes to; `None` if it is not complete or not in the graph.
    pub(super) fn result(&self, name: &str) -> Option<&ClusterResult> {
        self.nodes.get(name)?.built.as_ref()
    }

    // --- Reachability ---

    /// Enters `name` and what is below it into the graph, unless a way at least as short is known. Below
    /// [`MAX_DEPTH`] nothing is entered, so that a chain without an end is not followed (L-20).
    fn reach(&mut self, cx: &Context<'_>, origin: Origin, name: Arc<str>, depth: u8, out: &mut VecDeque<Action>) {
        let mut work = VecDeque::from([(name, depth)]);
        while let Some((name, depth)) = work.pop_front() {
            if depth > MAX_DEPTH {
                continue;
            }
            let node = self.nodes.entry(name.clone()).or_insert_with(|| {
                let watch = Name::new::<Cluster>(&name, cx.federation);
                self.clusters.acquire(&watch, &name, out);
                self.unread.insert(name.clone());
                Box::new(Node::new(watch.canonical))
            });
            let known = &mut node.depths[origin as usize];
            if known.is_some_and(|known| known <= depth) {
                continue;
            }
            *known = Some(depth);
            if origin == Origin::Routes && !node.required {
                node.required = true;
                self.unbuilt.insert(name);
            }
            work.extend(node.shape.children().iter().map(|child| (child.clone(), depth + 1)));
        }
    }

    /// After a root or a child is gone: measures all ways again and drops what no root reaches any more, loops included.
    fn drop_unreachable(&mut self, cx: &Context<'_>, out: &mut VecDeque<Action>) {
        if !std::mem::take(&mut self.shrunk) {
            return;
        }
        for node in self.nodes.values_mut() {
            node.depths = [None, None];
        }
        for origin in [Origin::Routes, Origin::Subscriptions] {
            for root in self.roots[origin as usize].clone() {
                self.reach(cx, origin, root, 1, out);
            }
        }
        let mut unreachable = Vec::new();
        for (name, node) in &mut self.nodes {
            if node.depths == [None, None] {
                unreachable.push(name.clone());
            } else if node.required && node.depths[Origin::Routes as usize].is_none() {
                node.required = false;
                self.unbuilt.insert(name.clone());
            }
        }
        for name in unreachable {
            let Some(node) = self.nodes.remove(&name) else { continue };
            self.release(&name, &node.shape, &Shape::Unknown);
            self.clusters.release(&node.canonical, &name);
            self.sources.replace(&node.sources, &[]);
            self.aggregates.remove(&name);
            self.incomplete.remove(&name);
            self.pending.remove(&name);
            self.changed.insert(name);
            self.leaves_stale = true;
        }
    }

    // --- What a cluster needs ---

    /// Finds out what a cluster needs now, asks for what is new and lets go of the rest.
    fn read(&mut self, cx: &Context<'_>, name: &Arc<str>, out: &mut VecDeque<Action>) {
        let Some(canonical) = self.nodes.get(name).map(|node| node.canonical.clone()) else { return };
        let shape = self.shape_of(cx, name, &canonical, out);
        let Some(node) = self.nodes.get_mut(name) else { return };
        // Of leaves only the name stands in lists; of the others the error, the list or the note.
        self.leaves_stale |= !(shape.is_leaf() && node.shape.is_leaf());
        if node.shape == shape {
            return;
        }
        let depths = node.depths;
        let old = std::mem::replace(&mut node.shape, shape.clone());
        if matches!(shape, Shape::Aggregate(_)) {
            self.aggregates.insert(name.clone());
        } else {
            self.aggregates.remove(name);
        }
        for origin in [Origin::Routes, Origin::Subscriptions] {
            let Some(depth) = depths[origin as usize] else { continue };
            for child in shape.children() {
                self.reach(cx, origin, child.clone(), depth + 1, out);
            }
        }
        self.shrunk |= !old.children().is_empty();
        self.release(name, &old, &shape);
    }

    /// Reads the shape and acquires what it names.
    fn shape_of(&mut self, cx: &Context<'_>, name: &Arc<str>, canonical: &str, out: &mut VecDeque<Action>) -> Shape {
        let cluster = match self.clusters.get(canonical).map(|watched| &watched.state) {
            None | Some(State::Waiting) => return Shape::Unknown,
            Some(State::Failed(error)) => return Shape::Failed(error.clone()),
            Some(State::Valid(cluster, _)) => cluster,
        };
        match &cluster.kind {
            ClusterKind::Eds { .. } => {
                let endpoints = cluster.eds_resource_name(name).unwrap_or(name);
                let endpoints = Name::new::<Endpoints>(endpoints, cx.federation);
                self.endpoints.acquire(&endpoints, name, out);
                let collections = self.collections_of(cx, &endpoints);
                for collection in collections.values() {
                    self.collections.acquire(collection, name, out);
                }
                Shape::Eds { endpoints, collections }
            }
            ClusterKind::LogicalDns { host, port } => {
                let dns = DnsName { host: host.clone(), port: *port };
                self.lookups.acquire(cx.now, &dns, name, out);
                Shape::Dns(dns)
            }
            ClusterKind::Aggregate { clusters } => {
                Shape::Aggregate(clusters.iter().map(|child| child.as_str().into()).collect())
            }
        }
    }

    fn collections_of(&self, cx: &Context<'_>, endpoints: &Name) -> BTreeMap<Arc<str>, Name> {
        let value = self.endpoints.get(&endpoints.canonical).and_then(Watched::value);
        let localities = value.into_iter().flat_map(|value| &value.priorities).flat_map(|p| &p.localities);
        let names = localities.filter_map(|locality| match &locality.source {
            EndpointSource::Inline(_) => None,
            EndpointSource::Collection(name) => Some(name.as_str()),
        });
        names.map(|name| (name.into(), Name::new::<EndpointCollection>(name, cx.federation))).collect()
    }

    /// Lets go of what `old` names and `new` does not.
    fn release(&mut self, user: &str, old: &Shape, new: &Shape) {
        match old {
            Shape::Eds { endpoints, collections } => {
                let (kept_endpoints, kept) = match new {
                    Shape::Eds { endpoints, collections } => (Some(endpoints), Some(collections)),
                    _ => (None, None),
                };
                if kept_endpoints != Some(endpoints) {
                    self.endpoints.release(&endpoints.canonical, user);
                }
                let kept: BTreeSet<_> = kept.into_iter().flat_map(BTreeMap::values).map(|n| &n.canonical).collect();
                for collection in collections.values().filter(|name| !kept.contains(&name.canonical)) {
                    self.collections.release(&collection.canonical, user);
                }
            }
            Shape::Dns(name) if old != new => self.lookups.release(name, user),
            _ => (),
        }
    }
}

// === impl Node ===

impl Node {
    fn new(canonical: Arc<str>) -> Self {
        Self {
            canonical,
            depths: [None, None],
            required: false,
            shape: Shape::Unknown,
            built: None,
            sources: Vec::new(),
        }
    }
}

// === impl Shape ===

impl Shape {
    fn is_leaf(&self) -> bool {
        matches!(self, Self::Eds { .. } | Self::Dns(_))
    }

    fn children(&self) -> &[Arc<str>] {
        match self {
            Self::Aggregate(children) => children,
            _ => &[],
        }
    }
}
