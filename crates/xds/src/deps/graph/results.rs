//! What a cluster comes to: its endpoints, its leaves, or why it cannot be used, with notes that explain failures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Context, Graph, Shape};
use crate::client::ResourceError;
use crate::deps::config::{ClusterChildren, ClusterConfig, ClusterResult, ResolvedEndpoints};
use crate::deps::dns::DnsName;
use crate::deps::error::{ClusterError, ClusterErrorKind, MAX_DEPTH};
use crate::deps::sources::Source;
use crate::deps::watch::{Name, State, Watched, key};
use crate::resource::{Cluster, Endpoints};

/// Why a leaf list cannot be made.
enum NoList {
    Incomplete,
    TooDeep,
}

impl Graph {
    /// Builds the result of one cluster and counts its sources. Lists of aggregates are left for later.
    pub(super) fn build(&mut self, cx: &Context<'_>, name: &Arc<str>) {
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
        let mut notes: Vec<_> = watched.ambient.iter().map(ToString::to_string).collect();
        let resolved = match &watched.state {
            State::Waiting => return None,
            State::Failed(error) => {
                notes.push(error.to_string());
                None
            }
            State::Valid(value, _) => {
                sources.extend(watched.source());
                let mut found = BTreeMap::new();
                for (as_written, collection) in collections {
                    let watched = self.collections.get(&collection.canonical)?;
                    notes.extend(watched.ambient.iter().map(ToString::to_string));
                    match &watched.state {
                        State::Waiting => return None,
                        State::Failed(error) => notes.push(error.to_string()),
                        State::Valid(value, _) => {
                            sources.extend(watched.source());
                            found.insert(as_written.clone(), value.clone());
                        }
                    }
                }
                let resolved = ResolvedEndpoints { endpoints: value.clone(), collections: found };
                notes.extend(
                    resolved.emptiness().map(|what| format!("{} {what}", key::<Endpoints>(&endpoints.canonical))),
                );
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
    pub(super) fn build_aggregate(&self, cx: &Context<'_>, name: &Arc<str>) -> Option<ClusterResult> {
        let node = self.nodes.get(name)?;
        let cluster = self.clusters.get(&node.canonical)?;
        let (mut seen, mut leaves, mut missing) = (BTreeSet::new(), Vec::new(), Vec::new());
        let kind = match self.list_leaves(name, 1, &mut seen, &mut leaves, &mut missing) {
            Err(NoList::Incomplete) => return None,
            Err(NoList::TooDeep) => ClusterErrorKind::TooDeep,
            Ok(()) if leaves.is_empty() => ClusterErrorKind::NoLeaves(missing),
            Ok(()) => {
                let notes = missing.iter().map(ToString::to_string).collect();
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
        notes.extend(cluster.ambient.iter().map(ToString::to_string));
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

    pub(super) fn set_result(&mut self, name: &Arc<str>, result: Option<ClusterResult>) {
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
