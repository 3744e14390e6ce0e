//! What the configuration in force needs of a cluster while something newer is incomplete or not published yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Context, Graph, Node, RootSet, Shape, collections_of, names_of_collections};
use crate::deps::Action;
use crate::deps::config::{ClusterChildren, ClusterResult};
use crate::deps::dns::DnsName;
use crate::deps::sources::Source;
use crate::deps::watch::{Name, State, Watched, key};
use crate::resource::{Cluster, Endpoints};

/// What a cluster in force was made of, as far as it is to be followed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Held {
    /// The endpoints that the cluster named. Newer ones are taken over as soon as their collections are there.
    Eds {
        cluster: Arc<Cluster>,
        endpoints: Name,
        /// Those in force.
        value: Arc<Endpoints>,
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
        Some(Box::new(match (&in_force.children, &node.shape) {
            (ClusterChildren::Endpoints(Some(resolved)), Shape::Eds { endpoints, .. }) => Held::Eds {
                cluster,
                endpoints: endpoints.clone(),
                value: resolved.endpoints.clone(),
                collections: BTreeMap::new(), // Filled in by `follow_held`.
            },
            (ClusterChildren::Endpoints(Some(_)), Shape::Dns(name)) => Held::Dns { cluster, name: name.clone() },
            (ClusterChildren::Aggregate(leaves), Shape::Aggregate(_)) => Held::Leaves(leaves.clone()),
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

    /// Finds out which collections the endpoints that `node` holds on to need now, and acquires them.
    pub(super) fn follow_held(
        &mut self,
        cx: &Context<'_>,
        name: &Arc<str>,
        node: &mut Node,
        out: &mut VecDeque<Action>,
    ) {
        let Some(Held::Eds { endpoints, value, collections, .. }) = node.held.as_deref_mut() else { return };
        *collections = collections_of(cx, value);
        let newest = self.endpoints.get(&endpoints.canonical).and_then(Watched::value);
        collections.extend(newest.map_or_else(BTreeMap::new, |newest| collections_of(cx, newest)));
        for collection in collections.values() {
            self.collections.acquire(collection, name, out);
        }
    }

    /// Builds what is in force of a cluster from what it holds on to. `why` it is still in force is noted.
    pub(super) fn build_held(
        &mut self,
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
                self.ok(cx, name, cluster, ClusterChildren::Endpoints(lookup.answer.clone()), notes)
            }
            Held::Eds { cluster, endpoints, value, collections } => {
                let watched = self.endpoints.get(&endpoints.canonical)?;
                // Endpoints that are taken away stay in use until their successors are there (D-35).
                if let State::Failed(error) = &watched.state {
                    notes.push(error.to_string());
                }
                notes.extend(watched.ambient.iter().map(ToString::to_string));
                let before = self.resolved_in_force(cx, name);
                let mut taken_over = None;
                for candidate in watched.value().into_iter().chain([value]) {
                    let named: BTreeSet<_> = names_of_collections(candidate).collect();
                    let named = collections.iter().filter(|(as_written, _)| named.contains(&***as_written));
                    let (mut new_notes, mut new_sources) = (Vec::new(), Vec::new());
                    let joined = self.join(candidate, named, before, &mut new_notes, &mut new_sources);
                    if let Some((resolved, false)) = joined {
                        taken_over = Some((candidate.clone(), resolved));
                        notes.append(&mut new_notes);
                        sources.extend(watched.source());
                        sources.append(&mut new_sources);
                        break;
                    }
                }
                let (taken_over, resolved) = taken_over?;
                let is_new = *value != taken_over;
                let emptiness = resolved.emptiness();
                notes.extend(emptiness.map(|what| format!("{} {what}", key::<Endpoints>(&endpoints.canonical))));
                let children = ClusterChildren::Endpoints(Some(Arc::new(resolved)));
                let result = self.ok(cx, name, cluster, children, notes);
                if is_new
                    && let Some(Held::Eds { value, .. }) =
                        self.nodes.get_mut(name).and_then(|node| node.held.as_deref_mut())
                {
                    *value = taken_over;
                    self.unread.insert(name.clone()); // Its collections may be others.
                }
                result
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
    }

    /// The leaves that aggregates hold on to, of those that the routes in force and subscriptions lead to: one that only
    /// its own old leaves lead back to does not keep itself.
    fn held_leaves(&self) -> BTreeSet<Arc<str>> {
        let mut leaves = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut work: Vec<_> = self.in_force.iter().chain(&self.roots[RootSet::Subscriptions as usize]).collect();
        while let Some(name) = work.pop() {
            let Some(node) = self.nodes.get(name).filter(|_| seen.insert(name)) else { continue };
            work.extend(node.shape.children());
            if let Some(Held::Leaves(held)) = node.held.as_deref() {
                leaves.extend(held.iter().cloned());
                work.extend(held);
            }
        }
        leaves
    }
}
