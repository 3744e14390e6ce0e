//! The clusters that routes and subscriptions need, what each of them needs in turn, and what becomes of it.
//!
//! Every cluster is a [`Node`]. Work follows change: an update marks the nodes that use the resource,
//! and only those are read and built again. Leaf lists of aggregates depend on the clusters below, not
//! on endpoints; all of them are made again when a cluster appears, fails or changes its kind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use super::config::{ClusterChildren, ClusterConfig, ClusterResult, ResolvedEndpoints};
use super::dns::{DnsName, Lookups};
use super::error::{ClusterError, ClusterErrorKind, MAX_DEPTH, Note};
use super::sources::{Source, Sources};
use super::watch::{Name, State, Table, Watched};
use super::{Action, DepsSettings};
use crate::client::{ResourceError, Update};
use crate::name::ResourceKey;
use crate::resource::cluster::ClusterKind;
use crate::resource::endpoint::EndpointSource;
use crate::resource::{Cluster, EndpointCollection, Endpoints, ResourceType};
use crate::{Choose, Time};

/// All clusters in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Graph {
    nodes: BTreeMap<Arc<str>, Node>,
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

/// Why a leaf list cannot be made.
enum NoList {
    Incomplete,
    TooDeep,
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
                Node::new(watch.canonical)
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
            ClusterKind::Eds { service_name } => {
                let endpoints = Name::new::<Endpoints>(service_name.as_deref().unwrap_or(name), cx.federation);
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

    // --- Results ---

    /// Builds the result of one cluster and counts its sources. Lists of aggregates are left for later.
    fn build(&mut self, cx: &Context<'_>, name: &Arc<str>) {
        let Some(node) = self.nodes.get(name) else { return };
        let mut sources = Vec::new();
        let watched = self.clusters.get(&node.canonical);
        sources.extend(watched.and_then(Watched::source));
        let is_aggregate = matches!(node.shape, Shape::Aggregate(_));
        let result = match (&node.shape, watched) {
            (Shape::Failed(error), _) => {
                let error = ClusterError { cluster: name.clone(), kind: ClusterErrorKind::Resource(error.clone()) };
                Some(Err(Arc::new(error)))
            }
            (Shape::Eds { endpoints, collections }, Some(watched)) => {
                self.build_eds(cx, name, watched, endpoints, collections, &mut sources)
            }
            (Shape::Dns(dns), Some(watched)) => self.build_dns(cx, name, watched, dns),
            _ => None,
        };
        sources.sort();
        sources.dedup();
        if !node.required {
            sources.clear();
        }
        self.sources.replace(&node.sources, &sources);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.sources = sources;
        if is_aggregate {
            self.incomplete.remove(name);
            self.leaves_stale = true;
        } else {
            let was_complete = node.built.is_some();
            let (complete, required) = (result.is_some(), node.required);
            self.leaves_stale |= was_complete != complete;
            if required && !complete {
                self.incomplete.insert(name.clone());
            } else {
                self.incomplete.remove(name);
            }
            self.set_result(name, result);
        }
    }

    fn build_eds(
        &self,
        cx: &Context<'_>,
        name: &Arc<str>,
        cluster: &Watched<Cluster>,
        endpoints: &Name,
        collections: &BTreeMap<Arc<str>, Name>,
        sources: &mut Vec<Source>,
    ) -> Option<ClusterResult> {
        let watched = self.endpoints.get(&endpoints.canonical)?;
        let mut notes: Vec<_> = watched.ambient.iter().map(|error| Note(error).to_string()).collect();
        let resolved = match &watched.state {
            State::Waiting => return None,
            State::Failed(error) => {
                notes.push(Note(error).to_string());
                None
            }
            State::Valid(value, _) => {
                sources.extend(watched.source());
                let mut found = BTreeMap::new();
                for (as_written, collection) in collections {
                    let watched = self.collections.get(&collection.canonical)?;
                    notes.extend(watched.ambient.iter().map(|error| Note(error).to_string()));
                    match &watched.state {
                        State::Waiting => return None,
                        State::Failed(error) => notes.push(Note(error).to_string()),
                        State::Valid(value, _) => {
                            sources.extend(watched.source());
                            found.insert(as_written.clone(), value.clone());
                        }
                    }
                }
                let resolved = ResolvedEndpoints { endpoints: value.clone(), collections: found };
                notes.extend(resolved.emptiness().map(|what| format!("EDS resource {}: {what}", endpoints.canonical)));
                Some(Arc::new(resolved))
            }
        };
        self.ok(cx, name, cluster, ClusterChildren::Endpoints(resolved), notes)
    }

    fn build_dns(
        &self,
        cx: &Context<'_>,
        name: &Arc<str>,
        cluster: &Watched<Cluster>,
        dns: &DnsName,
    ) -> Option<ClusterResult> {
        let lookup = self.lookups.get(dns)?;
        if lookup.answer.is_none() && lookup.failure.is_none() {
            return None;
        }
        let failure = lookup.failure.iter().map(|why| format!("DNS resolution failed for {dns}: {why}"));
        self.ok(cx, name, cluster, ClusterChildren::Endpoints(lookup.answer.clone()), failure.collect())
    }

    /// The leaf list of an aggregate, from its own point of view: what others list plays no part (D9).
    fn build_aggregate(&self, cx: &Context<'_>, name: &Arc<str>) -> Option<ClusterResult> {
        let node = self.nodes.get(name)?;
        let cluster = self.clusters.get(&node.canonical)?;
        let (mut seen, mut leaves, mut missing) = (BTreeSet::new(), Vec::new(), Vec::new());
        let kind = match self.list_leaves(name, 1, &mut seen, &mut leaves, &mut missing) {
            Err(NoList::Incomplete) => return None,
            Err(NoList::TooDeep) => ClusterErrorKind::TooDeep,
            Ok(()) if leaves.is_empty() => ClusterErrorKind::NoLeaves(missing),
            Ok(()) => {
                let notes = missing.iter().map(|error| Note(error).to_string()).collect();
                return self.ok(cx, name, cluster, ClusterChildren::Aggregate(leaves), notes);
            }
        };
        Some(Err(Arc::new(ClusterError { cluster: name.clone(), kind })))
    }

    /// Adds the leaves at and below `name`, in order, to `leaves`. One that is listed already keeps its
    /// place, and a loop ends where it began.
    fn list_leaves<'a>(
        &'a self,
        name: &'a Arc<str>,
        depth: u8,
        seen: &mut BTreeSet<&'a str>,
        leaves: &mut Vec<Arc<str>>,
        missing: &mut Vec<Arc<ResourceError>>,
    ) -> Result<(), NoList> {
        if !seen.insert(name) {
            return Ok(());
        }
        // A cluster that is not in the graph is too far from every root.
        let Some(node) = self.nodes.get(name).filter(|_| depth <= MAX_DEPTH) else { return Err(NoList::TooDeep) };
        match &node.shape {
            Shape::Unknown => return Err(NoList::Incomplete),
            Shape::Failed(error) => missing.push(error.clone()),
            Shape::Eds { .. } | Shape::Dns(_) if node.built.is_none() => return Err(NoList::Incomplete),
            Shape::Eds { .. } | Shape::Dns(_) => leaves.push(name.clone()),
            Shape::Aggregate(children) => {
                for child in children {
                    self.list_leaves(child, depth + 1, seen, leaves, missing)?;
                }
            }
        }
        Ok(())
    }

    /// A cluster that can be used. What is equal to what was there before is shared with it.
    fn ok(
        &self,
        cx: &Context<'_>,
        name: &Arc<str>,
        cluster: &Watched<Cluster>,
        mut children: ClusterChildren,
        own_notes: Vec<String>,
    ) -> Option<ClusterResult> {
        let mut notes = cx.common_notes.to_vec();
        notes.extend(cluster.ambient.iter().map(|error| Note(error).to_string()));
        notes.extend(own_notes);
        let note = if notes.is_empty() { format!("xDS node ID:{}", cx.node_id) } else { notes.join("; ") };

        let before = self.before(cx, name).and_then(|result| result.as_ref().ok());
        if let Some(before) = before.filter(|before| before.children == children) {
            children = before.children.clone();
        }
        let cluster = cluster.value()?.clone();
        let config = ClusterConfig { name: name.clone(), cluster, children, note: note.into() };
        Some(Ok(match before {
            Some(before) if **before == config => before.clone(),
            _ => Arc::new(config),
        }))
    }

    /// The last result of a cluster; the published one while there is none.
    fn before<'a>(&'a self, cx: &Context<'a>, name: &str) -> Option<&'a ClusterResult> {
        self.result(name).or_else(|| cx.published?.get(name))
    }

    fn set_result(&mut self, name: &Arc<str>, result: Option<ClusterResult>) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if result.is_none() && !node.required {
            self.pending.insert(name.clone());
        } else {
            self.pending.remove(name);
        }
        if node.built != result {
            node.built = result;
            self.changed.insert(name.clone());
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
