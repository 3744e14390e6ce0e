//! What the configuration in force needs of a cluster while something newer is incomplete or not published yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Context, Graph, Node, RootSet, Shape, collections_of, names_of_collections};
use crate::deps::Action;
use crate::deps::config::{ClusterChildren, ClusterResult};
use crate::deps::dns::DnsName;
use crate::deps::sources::Source;
use crate::deps::watch::{Name, State, Watched, key};
use crate::resource::cluster::ClusterKind;
use crate::resource::{Cluster, Endpoints};

/// What a cluster in force was made of, as far as it is to be followed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Held {
    /// The endpoints that the cluster named. Newer ones are taken over as soon as their collections are there.
    Eds {
        cluster: Arc<Cluster>,
        endpoints: Name,
        /// The collections of those in force, and of the newest.
        collections: BTreeMap<Arc<str>, Name>,
    },
    /// The addresses of a name.
    Dns { cluster: Arc<Cluster>, name: DnsName },
    /// The leaves that were listed; each of them goes its own way.
    Leaves(Vec<Arc<str>>),
}

impl Graph {
    /// What `node`, which is about to need something else, must hold on to. What it holds already is older, and in force.
    pub(super) fn what_to_hold(&self, cx: &Context<'_>, name: &str, node: &Node) -> Option<Box<Held>> {
        if node.held.is_some() {
            return node.held.clone();
        }
        let in_force = cx.in_force?.get(name)?.as_ref().ok()?;
        let cluster = in_force.cluster.clone();
        let collections = BTreeMap::new(); // Filled in by `follow_held`.
        Some(Box::new(match (&in_force.children, &node.shape) {
            (ClusterChildren::Endpoints(Some(_)), Shape::Eds { endpoints, .. }) => {
                Held::Eds { cluster, endpoints: endpoints.clone(), collections }
            }
            (ClusterChildren::Endpoints(Some(_)), Shape::Dns(name)) => Held::Dns { cluster, name: name.clone() },
            (ClusterChildren::Aggregate(leaves), Shape::Aggregate(_) | Shape::Unknown(_)) => {
                Held::Leaves(leaves.clone())
            }
            // It was let go, and is wanted again before anything without it was published: it is still in force.
            (ClusterChildren::Endpoints(Some(_)), Shape::Unknown(_)) => match &cluster.kind {
                ClusterKind::Eds { .. } => {
                    let endpoints = cluster.eds_resource_name(name).unwrap_or(name);
                    let endpoints = Name::new::<Endpoints>(endpoints, cx.federation);
                    Held::Eds { cluster, endpoints, collections }
                }
                ClusterKind::LogicalDns { host, port } => {
                    let name = DnsName { host: host.clone(), port: *port };
                    Held::Dns { cluster, name }
                }
                ClusterKind::Aggregate { .. } => return None,
            },
            _ => return None,
        }))
    }

    /// Makes an aggregate in force that waits for something below it hold on to the leaves that it lists: what is below
    /// may name others.
    pub(super) fn hold_leaves(&mut self, cx: &Context<'_>, name: &Arc<str>) {
        let Some(node) = self.nodes.get_mut(name).filter(|node| node.visible && node.held.is_none()) else { return };
        let Some(Ok(in_force)) = cx.in_force.and_then(|in_force| in_force.get(name)) else { return };
        if let ClusterChildren::Aggregate(leaves) = &in_force.children {
            node.held = Some(Box::new(Held::Leaves(leaves.clone())));
            self.holding.insert(name.clone());
            self.holds_stale = true;
        }
    }

    /// Acquires what `node` holds on to, and the collections that its endpoints need now.
    pub(super) fn follow_held(
        &mut self,
        cx: &Context<'_>,
        name: &Arc<str>,
        node: &mut Node,
        out: &mut VecDeque<Action>,
    ) {
        let in_force = self.resolved_in_force(cx, name).map(|resolved| &resolved.endpoints);
        let (endpoints, collections) = match node.held.as_deref_mut() {
            Some(Held::Eds { endpoints, collections, .. }) => (endpoints, collections),
            Some(Held::Dns { name: dns, .. }) => return self.lookups.acquire(cx.now, dns, name, out),
            Some(Held::Leaves(_)) | None => return,
        };
        self.endpoints.acquire(endpoints, name, out);
        let newest = self.endpoints.get(&endpoints.canonical).and_then(Watched::value);
        *collections = in_force.into_iter().chain(newest).flat_map(|value| collections_of(cx, value)).collect();
        for collection in collections.values() {
            self.collections.acquire(collection, name, out);
        }
    }

    /// Builds what is in force of a cluster from what it holds on to. `why` it is still in force is noted.
    pub(super) fn build_held(
        &self,
        cx: &Context<'_>,
        name: &Arc<str>,
        why: Option<String>,
        sources: &mut Vec<Source>,
    ) -> Option<ClusterResult> {
        let mut notes: Vec<_> = why.into_iter().collect();
        match self.nodes.get(name)?.held.as_deref()? {
            Held::Leaves(_) => None,
            Held::Dns { cluster, name: dns } => {
                let lookup = self.lookups.get(dns)?;
                notes.extend(lookup.failure.iter().map(|why| format!("DNS resolution failed for {dns}: {why}")));
                let answer = lookup.answer.clone().or_else(|| self.endpoints_in_force(cx, name).cloned());
                self.ok(cx, name, cluster, ClusterChildren::Endpoints(answer), notes)
            }
            Held::Eds { cluster, endpoints, collections } => {
                let watched = self.endpoints.get(&endpoints.canonical)?;
                // Endpoints that are taken away stay in use until their successors are there (D-35).
                if let State::Failed(error) = &watched.state {
                    notes.push(error.to_string());
                }
                notes.extend(watched.ambient.iter().map(ToString::to_string));
                let before = self.resolved_in_force(cx, name);
                let mut taken_over = None;
                for candidate in watched.value().into_iter().chain(before.map(|before| &before.endpoints)) {
                    let named: BTreeSet<_> = names_of_collections(candidate).collect();
                    let named = collections.iter().filter(|(as_written, _)| named.contains(&***as_written));
                    let (mut new_notes, mut new_sources) = (Vec::new(), Vec::new());
                    let joined = self.join(candidate, named, before, &mut new_notes, &mut new_sources);
                    if let Some((resolved, false)) = joined {
                        taken_over = Some(resolved);
                        notes.append(&mut new_notes);
                        sources.extend(watched.source());
                        sources.append(&mut new_sources);
                        break;
                    }
                }
                let resolved = taken_over?;
                let emptiness = resolved.emptiness();
                notes.extend(emptiness.map(|what| format!("{} {what}", key::<Endpoints>(&endpoints.canonical))));
                let children = ClusterChildren::Endpoints(Some(Arc::new(resolved)));
                self.ok(cx, name, cluster, children, notes)
            }
        }
    }

    /// Lets those nodes go of what they hold on to of which `is_done` says that it is not in force any more, or about to
    /// be replaced. Says whether there were any.
    pub(super) fn let_go(&mut self, is_done: impl Fn(&Node) -> bool) -> bool {
        let is_done = |name: &Arc<str>| self.nodes.get(name).is_none_or(|node| is_done(node));
        let done: Vec<_> = self.holding.iter().filter(|name| is_done(name)).cloned().collect();
        for name in &done {
            self.holding.remove(name);
            let Some(node) = self.nodes.get_mut(name) else { continue };
            let new = Node { held: None, ..(**node).clone() };
            let old = std::mem::replace(&mut **node, new.clone());
            self.release(name, &old.needs(), &new.needs());
            self.holds_stale = true;
        }
        !done.is_empty()
    }

    /// Makes the clusters of the routes in force, and the leaves that aggregates hold on to, the roots of what is in force.
    pub(super) fn root_what_is_held(&mut self, cx: &Context<'_>, out: &mut VecDeque<Action>) {
        let may_be_others = self.shrunk && !self.holding.is_empty();
        if !std::mem::take(&mut self.holds_stale) && !may_be_others {
            return;
        }
        let mut roots = self.in_force.clone();
        if !self.holding.is_empty() {
            roots.extend(self.held_leaves());
        }
        self.set_roots(cx, RootSet::InForce, roots, out);
        self.find_lent();
        self.find_leaving();
    }

    /// The leaves that aggregates hold on to, of those that the routes in force and subscriptions lead to: one that only
    /// its own old leaves lead back to does not keep itself.
    fn held_leaves(&self) -> BTreeSet<Arc<str>> {
        let roots = self.in_force.iter().chain(&self.roots[RootSet::Subscriptions as usize]);
        let mut leaves = BTreeSet::new();
        self.walk_in_force(roots, |_| true, |_, held| leaves.extend(held.iter().cloned()));
        leaves
    }

    /// Finds out which clusters are in force without the routes in force: what servers say of those counts for nobody but a
    /// subscription.
    fn find_lent(&mut self) {
        let mut lent = BTreeSet::new();
        if !self.holding.is_empty() {
            let mut led_to = BTreeSet::new();
            self.walk_in_force(self.in_force.iter(), |_| true, |name, _| led_to.extend([name.clone()]));
            lent = self.in_force_without(&led_to);
        }
        self.unbuilt.extend(self.lent.symmetric_difference(&lent).cloned());
        self.lent = lent;
    }

    /// Finds out which clusters are not in what is published next: whose they are does not hold that back (C-50).
    fn find_leaving(&mut self) {
        let is_done = |name: &Arc<str>| self.nodes.get(name).is_some_and(|node| node.settled);
        let mut leaving = BTreeSet::new();
        if self.holding.iter().any(is_done) {
            let mut led_to = BTreeSet::new();
            self.walk_in_force(self.in_force.iter(), |node| !node.settled, |name, _| led_to.extend([name.clone()]));
            leaving = self.in_force_without(&led_to);
        }
        self.unbuilt.extend(self.leaving.symmetric_difference(&leaving).cloned());
        self.leaving = leaving;
    }

    fn in_force_without(&self, others: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let in_force = self.nodes.iter().filter(|(_, node)| node.is_reached(RootSet::InForce));
        in_force.map(|(name, _)| name).filter(|name| !others.contains(*name)).cloned().collect()
    }

    /// Visits the clusters that these lead to as long as those that `hold` hold on to what is in force, each with the
    /// leaves that it holds.
    fn walk_in_force<'a>(
        &'a self,
        roots: impl Iterator<Item = &'a Arc<str>>,
        hold: impl Fn(&Node) -> bool,
        mut visit: impl FnMut(&Arc<str>, &[Arc<str>]),
    ) {
        let mut seen = BTreeSet::new();
        let mut work: Vec<_> = roots.collect();
        while let Some(name) = work.pop() {
            let Some(node) = self.nodes.get(name).filter(|_| seen.insert(name)) else { continue };
            work.extend(node.shape.children());
            let held: &[_] = match node.held.as_deref() {
                Some(Held::Leaves(held)) if hold(node) => held,
                Some(Held::Leaves(_) | Held::Eds { .. } | Held::Dns { .. }) | None => &[],
            };
            work.extend(held);
            visit(name, held);
        }
    }
}
