//! The clusters that configurations and subscriptions need, what each of them needs in turn, and what becomes of it.
//!
//! Every cluster is a [`Node`]. Work follows change: an update marks the nodes that use the resource,
//! and only those are read and built again. Leaf lists of aggregates depend on the clusters below, not
//! on endpoints; those above a cluster are made again when it appears, fails or changes its kind.
//!
//! A cluster in force stays as it is until what comes next is complete. Until that is published the graph holds on to
//! what the old one needs, and follows it: the old endpoints of a cluster that moves to others, the old leaves of an
//! aggregate, all clusters of the routes in force while new routes wait.

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
use crate::resource::{Cluster, Endpoints, ResourceType};
use crate::shared::SharedMap;
use crate::{Choose, Time};

mod collections;
mod held;
mod lists;
mod results;
mod whole;

use collections::Collections;
use held::Held;
use lists::Lists;

#[cfg(test)]
pub(super) use lists::steps_taken;

/// All clusters in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Graph {
    nodes: BTreeMap<Arc<str>, Box<Node>>,
    /// Where the ways of each set of roots begin.
    roots: [BTreeSet<Arc<str>>; 3],
    /// Clusters that the routes in force name.
    in_force: BTreeSet<Arc<str>>,
    /// Nodes that hold on to what is in force.
    holding: BTreeSet<Arc<str>>,
    /// Nodes that are in force only for an aggregate that a subscription leads to, and that holds on to its leaves: the
    /// routes in force do not need them.
    lent: BTreeSet<Arc<str>>,
    /// Nodes that are in force only because an aggregate holds on to its leaves that is complete without them: what is
    /// published next is without them.
    leaving: BTreeSet<Arc<str>>,
    lists: Lists,

    clusters: Table<Cluster>,
    endpoints: Table<Endpoints>,
    collections: Collections,
    pub(super) lookups: Lookups,

    /// Servers behind the newest configuration, and behind the one in force.
    pub(super) sources: [Sources; 2],

    /// Nodes whose cluster or endpoints changed: what they need may be different.
    unread: BTreeSet<Arc<str>>,
    /// Nodes whose result may be different.
    unbuilt: BTreeSet<Arc<str>>,
    /// Whether nodes may have become unreachable.
    shrunk: bool,
    /// Whether the leaves that are held may be different.
    holds_stale: bool,
    /// Whether other nodes may be visible.
    view_stale: bool,

    /// Clusters that the newest routes need and that are not complete.
    incomplete: BTreeSet<Arc<str>>,
    /// Clusters whose result changed, or that came or went, since the last [`Graph::take_changed`].
    changed: BTreeSet<Arc<str>>,
}

/// Who needs a cluster. Each has roots of its own in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootSet {
    /// The newest routes need it.
    Newest,
    /// The configuration in force needs it.
    InForce,
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
    pub(super) published: Option<&'a SharedMap<Arc<str>, ClusterResult>>,
    /// The same, if the channel uses them: what may stay while something new is awaited.
    pub(super) in_force: Option<&'a SharedMap<Arc<str>, ClusterResult>>,
}

/// One cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// Key of its watch.
    canonical: Arc<str>,
    /// The shortest way from a root of each set, itself counted; `None`: not reached.
    depths: [Option<u8>; 3],
    /// Whether the configuration in force has it, when last looked at: it, a subscription or a complete aggregate names it.
    visible: bool,
    shape: Shape,
    /// Whether it is complete: what it comes to now is known.
    settled: bool,
    /// Whether it is complete only because there is nothing better than an error of connectivity.
    troubled: bool,
    /// What it comes to; as long as it is not complete, what is in force.
    built: Option<ClusterResult>,
    /// What the one in force needs and the newest does not.
    held: Option<Box<Held>>,
    /// The servers behind the newest of it, and behind what is in force.
    sources: [Vec<Source>; 2],
    /// Whether they have a share in [`Graph::sources`].
    counts: [bool; 2],
}

/// What a cluster needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Shape {
    /// No answer yet, perhaps for a reason.
    Unknown(Option<Arc<ResourceError>>),
    /// It cannot be had.
    Failed(Arc<ResourceError>),
    /// Endpoints, and the collections they name, by name as written.
    Eds { endpoints: Name, collections: BTreeMap<Arc<str>, Name> },
    /// Addresses.
    Dns(DnsName),
    /// Other clusters in order.
    Aggregate(Vec<Arc<str>>),
}

/// What a cluster uses besides other clusters.
#[derive(Debug, Default)]
struct Needs<'a> {
    endpoints: BTreeSet<&'a Arc<str>>,
    collections: BTreeSet<&'a Arc<str>>,
    lookups: BTreeSet<&'a DnsName>,
}

// === impl Graph ===

impl Graph {
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            roots: Default::default(),
            in_force: BTreeSet::new(),
            holding: BTreeSet::new(),
            lent: BTreeSet::new(),
            leaving: BTreeSet::new(),
            lists: Lists::default(),
            clusters: Table::new(),
            endpoints: Table::new(),
            collections: Collections::new(),
            lookups: Lookups::default(),
            sources: Default::default(),
            unread: BTreeSet::new(),
            unbuilt: BTreeSet::new(),
            shrunk: false,
            holds_stale: false,
            view_stale: false,
            incomplete: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Puts `roots` in the place of all earlier roots of the set.
    pub(super) fn set_roots(
        &mut self,
        cx: &Context<'_>,
        set: RootSet,
        roots: BTreeSet<Arc<str>>,
        out: &mut VecDeque<Action>,
    ) {
        let old = std::mem::replace(&mut self.roots[set as usize], roots);
        let added: Vec<_> = self.roots[set as usize].difference(&old).cloned().collect();
        self.shrunk |= old.len() + added.len() > self.roots[set as usize].len();
        // A root is visible, also one that was known below an aggregate that waits.
        self.view_stale |= set != RootSet::Newest && !added.is_empty();
        if old != self.roots[set as usize] {
            // What waited to be replaced may have nothing to wait for.
            let waiting = self.nodes.iter().filter(|(_, node)| !node.settled);
            self.unbuilt.extend(waiting.map(|(name, _)| name.clone()));
        }
        for root in added {
            self.reach(cx, set, root, 1, out);
        }
    }

    /// Takes in news of a resource below the routes. Says whether anything is different now.
    pub(super) fn hear(&mut self, resource: &ResourceKey, update: Update) -> bool {
        let name = &resource.name;
        let (users, marks) = match resource.resource_type {
            ResourceType::Cluster => (self.clusters.hear(name, update), &mut self.unread),
            ResourceType::Endpoints => (self.endpoints.hear(name, update), &mut self.unread),
            ResourceType::EndpointCollection | ResourceType::EndpointGlob => {
                (self.collections.hear(name, update), &mut self.unbuilt)
            }
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
        loop {
            while let Some(name) = self.unread.pop_first() {
                self.read(cx, &name, out);
                self.unbuilt.insert(name);
            }
            self.root_what_is_held(cx, out);
            self.drop_unreachable();
            while let Some(name) = self.unbuilt.pop_first() {
                self.build(cx, &name);
            }
            self.make_lists(cx);
            // Whoever is gone holds on to nothing any more.
            if self.unread.is_empty() && self.unbuilt.is_empty() && !self.shrunk && !self.holds_stale {
                return;
            }
        }
    }

    /// Makes what is complete the part of what is in force: `routes` names its clusters, unless they are those of
    /// before. What only the configuration before needs is let go.
    pub(super) fn put_in_force(
        &mut self,
        cx: &Context<'_>,
        routes: Option<BTreeSet<Arc<str>>>,
        out: &mut VecDeque<Action>,
    ) {
        if let Some(routes) = routes {
            self.in_force = routes;
            self.holds_stale = true;
        }
        loop {
            self.settle(cx, out);
            self.look(cx);
            // What is complete is about to be in force. What is hidden, though it may be a part of what is newest, is not
            // in force any more. Neither has anything to hold on to.
            if !self.let_go(|node| node.settled || !node.visible) {
                return;
            }
        }
    }

    /// Nothing is in force any more: there is nothing to hold on to, and errors need not wait.
    pub(super) fn put_out_of_force(&mut self, cx: &Context<'_>, out: &mut VecDeque<Action>) {
        self.let_go(|_| true);
        self.rebuild_all();
        self.lists.make_all();
        self.settle(cx, out);
    }

    /// Other results of these clusters are in force now, or of all of them. What trouble means to a cluster depends on
    /// that, and whether somebody takes it away who counts: those that wait, have trouble or cannot be used are looked
    /// at again. Says whether there are any.
    pub(super) fn reconsider(&mut self, names: Option<&[Arc<str>]>) -> bool {
        let mut found = Vec::new();
        match names {
            Some(names) => found.extend(names.iter().filter_map(|name| self.nodes.get_key_value(name))),
            None => found.extend(&self.nodes),
        }
        let is_usable = |node: &Node| node.built.as_ref().is_some_and(results::is_usable);
        found.retain(|(_, node)| node.troubled || !node.settled || !is_usable(node));
        for (name, node) in &found {
            // What it holds on to may need other collections.
            let marks = if node.held.is_some() { &mut self.unread } else { &mut self.unbuilt };
            marks.insert(Arc::clone(name));
            self.lists.make_again(name);
        }
        !found.is_empty()
    }

    /// Ends the watches and lookups that nobody needs.
    pub(super) fn sweep(&mut self, out: &mut VecDeque<Action>) {
        self.clusters.sweep(out);
        self.endpoints.sweep(out);
        self.collections.sweep(out);
        self.lookups.sweep(out);
    }

    /// Whether everything that the newest routes need is there.
    pub(super) fn is_complete(&self) -> bool {
        self.incomplete.is_empty()
    }

    /// Clusters whose result changed, or that came or went, since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// What a cluster adds to the configuration in force; `None` if it is not complete or not a part of it.
    pub(super) fn result(&self, name: &str) -> Option<&ClusterResult> {
        self.nodes.get(name).filter(|node| node.visible)?.built.as_ref()
    }

    // --- Reachability ---

    /// Enters `name` and what is below it into the graph, unless a way at least as short is known. Below
    /// [`MAX_DEPTH`] nothing is entered, so that a chain without an end is not followed (L-20).
    fn reach(&mut self, cx: &Context<'_>, set: RootSet, name: Arc<str>, depth: u8, out: &mut VecDeque<Action>) {
        let mut work = VecDeque::from([(name, depth)]);
        while let Some((name, depth)) = work.pop_front() {
            if depth > MAX_DEPTH {
                continue;
            }
            let node = self.nodes.entry(name.clone()).or_insert_with(|| {
                let watch = Name::new::<Cluster>(&name, cx.federation);
                self.clusters.acquire(&watch, &name, out);
                self.unread.insert(name.clone());
                self.lists.touch(&name);
                Box::new(Node::new(watch.canonical))
            });
            let known = &mut node.depths[set as usize];
            if known.is_some_and(|known| known <= depth) {
                continue;
            }
            if known.replace(depth).is_none() {
                self.unbuilt.insert(name); // Its sources count, and who needs it says what trouble means to it.
                self.view_stale |= set != RootSet::Newest;
            }
            work.extend(node.shape.children().iter().map(|child| (child.clone(), depth + 1)));
        }
    }

    /// After a root or a child is gone: measures all ways again and drops what no root reaches any more, loops included.
    fn drop_unreachable(&mut self) {
        if !std::mem::take(&mut self.shrunk) {
            return;
        }
        self.view_stale = true;
        let mut before = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.values_mut() {
            before.push(std::mem::take(&mut node.depths).map(|depth| depth.is_some()));
        }
        for set in [RootSet::Newest, RootSet::InForce, RootSet::Subscriptions] {
            self.measure(set);
        }
        let mut unreachable = Vec::new();
        for ((name, node), before) in self.nodes.iter().zip(before) {
            let after = node.depths.map(|depth| depth.is_some());
            if !after.contains(&true) {
                unreachable.push(name.clone());
            } else if after != before {
                self.unbuilt.insert(name.clone());
            }
        }
        for name in unreachable {
            let Some(node) = self.nodes.remove(&name) else { continue };
            self.release(&name, &node.needs(), &Needs::default());
            self.clusters.release(&node.canonical, &name);
            for (set, sources) in self.sources.iter_mut().enumerate() {
                sources.replace(node.counted(set), &[]);
            }
            self.lists.set_children(&name, node.shape.children(), &[]);
            self.lists.remove(&name);
            self.lists.touch(&name);
            self.holds_stale |= self.holding.remove(&name);
            self.incomplete.remove(&name);
            self.changed.insert(name);
        }
    }

    /// Finds out which nodes are visible. What is new below an aggregate that is not complete is not a part of anything yet.
    fn look(&mut self, cx: &Context<'_>) {
        if !std::mem::take(&mut self.view_stale) {
            return;
        }
        let before: BTreeSet<_> = self.nodes.iter().filter(|(_, node)| node.visible).map(|(n, _)| n.clone()).collect();
        self.nodes.values_mut().for_each(|node| node.visible = false);
        let roots = [RootSet::InForce, RootSet::Subscriptions].map(|set| self.roots[set as usize].iter().cloned());
        let mut work: Vec<_> = roots.into_iter().flatten().collect();
        while let Some(name) = work.pop() {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            if !std::mem::replace(&mut node.visible, true) {
                let is_old = |name: &&Arc<str>| cx.in_force.is_some_and(|in_force| in_force.contains_key(*name));
                let children = node.shape.children().iter();
                work.extend(children.filter(|child| node.settled || is_old(child)).cloned());
            }
        }
        // What is hidden is not in force: there is nothing of it that stays until it is complete.
        for node in self.nodes.values_mut().filter(|node| !node.visible && !node.settled) {
            node.built = None;
        }
        let turned = self.nodes.iter().filter(|(name, node)| node.visible != before.contains(*name));
        self.changed.extend(turned.map(|(name, _)| name.clone()));
    }

    /// Finds the shortest ways from all roots of a set. Nothing new is found: ways only became longer.
    fn measure(&mut self, set: RootSet) {
        let mut work: VecDeque<_> = self.roots[set as usize].iter().map(|root| (root.clone(), 1)).collect();
        while let Some((name, depth)) = work.pop_front() {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            let known = &mut node.depths[set as usize];
            if depth <= MAX_DEPTH && known.is_none() {
                *known = Some(depth);
                work.extend(node.shape.children().iter().map(|child| (child.clone(), depth + 1)));
            }
        }
    }

    // --- What a cluster needs ---

    /// Finds out what a cluster needs now, asks for what is new and lets go of what nobody uses any more.
    fn read(&mut self, cx: &Context<'_>, name: &Arc<str>, out: &mut VecDeque<Action>) {
        let Some(canonical) = self.nodes.get(name).map(|node| node.canonical.clone()) else { return };
        let shape = self.shape_of(cx, name, &canonical, out);
        let Some(node) = self.nodes.get(name) else { return };
        // One that is new may be in force already.
        if node.shape == shape && node.held.is_none() && !matches!(shape, Shape::Unknown(_)) {
            return;
        }
        let mut new = Box::new(Node { shape, held: self.what_to_hold(cx, name, node), ..(**node).clone() });
        self.follow_held(cx, name, &mut new, out);
        let Some(old) = self.nodes.get_mut(name).map(|node| std::mem::replace(node, new.clone())) else { return };
        if new.held.is_some() && self.holding.insert(name.clone()) {
            self.holds_stale = true;
        }
        self.release(name, &old.needs(), &new.needs());
        if old.shape == new.shape {
            return;
        }
        // Of leaves only the name stands in lists; of the others the error or the list.
        if !(old.shape.is_leaf() && new.shape.is_leaf()) {
            self.lists.touch(name);
        }
        match &new.shape {
            Shape::Aggregate(_) => self.lists.insert(name),
            Shape::Unknown(_) | Shape::Failed(_) | Shape::Eds { .. } | Shape::Dns(_) => self.lists.remove(name),
        }
        self.lists.set_children(name, old.shape.children(), new.shape.children());
        self.holds_stale |= !self.holding.is_empty() && !new.shape.children().is_empty();
        self.shrunk |= !old.shape.children().is_empty();
        for set in [RootSet::Newest, RootSet::InForce, RootSet::Subscriptions] {
            let Some(depth) = new.depths[set as usize] else { continue };
            for child in new.shape.children() {
                self.reach(cx, set, child.clone(), depth + 1, out);
            }
        }
    }

    /// Reads the shape and acquires what it names.
    fn shape_of(&mut self, cx: &Context<'_>, name: &Arc<str>, canonical: &str, out: &mut VecDeque<Action>) -> Shape {
        let cluster = match self.clusters.get(canonical).map(|watched| &watched.state) {
            None => return Shape::Unknown(None),
            Some(State::Waiting(trouble)) => return Shape::Unknown(trouble.clone()),
            Some(State::Failed(error)) => return Shape::Failed(error.clone()),
            Some(State::Valid(cluster, _)) => cluster,
        };
        match &cluster.kind {
            ClusterKind::Eds { .. } => {
                let endpoints = cluster.eds_resource_name(name).unwrap_or(name);
                let endpoints = Name::new::<Endpoints>(endpoints, cx.federation);
                self.endpoints.acquire(&endpoints, name, out);
                let value = self.endpoints.get(&endpoints.canonical).and_then(Watched::value);
                let collections = value.map_or_else(BTreeMap::new, |value| collections_of(cx, value));
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

    /// Lets go of what was needed and is not any more.
    fn release(&mut self, user: &str, old: &Needs<'_>, new: &Needs<'_>) {
        for endpoints in old.endpoints.difference(&new.endpoints) {
            self.endpoints.release(endpoints, user);
        }
        for collection in old.collections.difference(&new.collections) {
            self.collections.release(collection, user);
        }
        for name in old.lookups.difference(&new.lookups) {
            self.lookups.release(name, user);
        }
    }
}

/// The collections that endpoints name.
fn collections_of(cx: &Context<'_>, endpoints: &Endpoints) -> BTreeMap<Arc<str>, Name> {
    let names = names_of_collections(endpoints);
    names.map(|name| (name.into(), collections::name(name, cx.federation))).collect()
}

fn names_of_collections(endpoints: &Endpoints) -> impl Iterator<Item = &str> {
    let localities = endpoints.priorities.iter().flat_map(|priority| &priority.localities);
    localities.filter_map(|locality| match &locality.source {
        EndpointSource::Inline(_) => None,
        EndpointSource::Collection(name) => Some(name.as_str()),
    })
}

// === impl Node ===

impl Node {
    fn new(canonical: Arc<str>) -> Self {
        Self {
            canonical,
            depths: [None; 3],
            visible: false,
            shape: Shape::Unknown(None),
            settled: false,
            troubled: false,
            built: None,
            held: None,
            sources: Default::default(),
            counts: [false; 2],
        }
    }

    /// Its share in the sources of a set.
    fn counted(&self, set: usize) -> &[Source] {
        if self.counts[set] { &self.sources[set] } else { &[] }
    }

    fn is_reached(&self, set: RootSet) -> bool {
        self.depths[set as usize].is_some()
    }

    fn needs(&self) -> Needs<'_> {
        let mut needs = Needs::default();
        match &self.shape {
            Shape::Eds { endpoints, collections } => needs.add(endpoints, collections),
            Shape::Dns(name) => drop(needs.lookups.insert(name)),
            Shape::Unknown(_) | Shape::Failed(_) | Shape::Aggregate(_) => (),
        }
        match self.held.as_deref() {
            Some(Held::Eds { endpoints, collections, .. }) => needs.add(endpoints, collections),
            Some(Held::Dns { name, .. }) => drop(needs.lookups.insert(name)),
            Some(Held::Leaves(_)) | None => (),
        }
        needs
    }
}

impl<'a> Needs<'a> {
    fn add(&mut self, endpoints: &'a Name, collections: &'a BTreeMap<Arc<str>, Name>) {
        self.endpoints.insert(&endpoints.canonical);
        self.collections.extend(collections.values().map(|name| &name.canonical));
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
            Self::Unknown(_) | Self::Failed(_) | Self::Eds { .. } | Self::Dns(_) => &[],
        }
    }
}
