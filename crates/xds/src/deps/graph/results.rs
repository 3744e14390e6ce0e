//! What a cluster comes to: its endpoints, its leaves, or why it cannot be used, with notes that explain failures.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Context, Graph, RootSet, Shape, names_of_collections};
use crate::client::ResourceError;
use crate::deps::config::{ClusterChildren, ClusterConfig, ClusterResult, ResolvedEndpoints};
use crate::deps::dns::DnsName;
use crate::deps::error::{ClusterError, ClusterErrorKind};
use crate::deps::sources::Source;
use crate::deps::watch::{Name, State, Watched, key};
use crate::resource::{Cluster, Endpoints};

/// What the newest resources of a cluster come to.
enum Made {
    /// Something has not been answered yet.
    Nothing,
    /// There is trouble with servers: this is what must do if nothing better is in force. With the reason.
    Makeshift(ClusterResult, String),
    /// Everything has been answered.
    Whole(ClusterResult),
}

impl Graph {
    /// Builds the result of one cluster and counts its sources. Lists of aggregates are left for later.
    pub(super) fn build(&mut self, cx: &Context<'_>, name: &Arc<str>) {
        let Some(node) = self.nodes.get(name) else { return };
        let mut sources = Vec::new();
        let watched = self.clusters.get(&node.canonical);
        sources.extend(watched.and_then(Watched::source));
        let made = match (&node.shape, watched) {
            (Shape::Aggregate(_), _) => {
                self.count_sources(name, sources.clone(), sources);
                return self.publish_list(cx, name);
            }
            (Shape::Failed(error), _) => {
                // Who takes away what is in use has its say in the configuration, as if it had sent something (D-35).
                let denial = watched.filter(|_| self.is_in_use(cx, name)).and_then(Watched::denial);
                sources.extend(denial);
                Made::Whole(unusable(name, error))
            }
            (Shape::Unknown(Some(trouble)), _) => Made::Makeshift(unusable(name, trouble), trouble.to_string()),
            (Shape::Eds { endpoints, collections }, Some(watched)) => {
                self.make_eds(cx, name, watched, endpoints, collections, &mut sources)
            }
            (Shape::Dns(dns), Some(watched)) => self.make_dns(cx, name, watched, dns),
            (Shape::Unknown(None) | Shape::Eds { .. } | Shape::Dns(_), _) => Made::Nothing,
        };
        let (result, troubled, why) = match made {
            Made::Nothing => (None, false, None),
            Made::Whole(Err(error)) if self.is_outgoing(cx, name) => (None, false, Some(error.to_string())),
            Made::Whole(result) if !is_usable(&result) && self.is_outgoing(cx, name) => (None, false, None),
            Made::Whole(result) => (Some(result), false, None),
            Made::Makeshift(_, why) if self.can_wait(cx, name) => (None, false, Some(why)),
            Made::Makeshift(result, _) => (Some(result), true, None),
        };
        let mut in_force = sources.clone();
        let stays = match &result {
            Some(_) => None,
            None => {
                in_force.clone_from(&self.nodes[name].sources[RootSet::InForce as usize]);
                let held = self.build_held(cx, name, why, &mut in_force);
                held.or_else(|| cx.in_force?.get(name).cloned())
            }
        };
        self.count_sources(name, sources, in_force);
        self.set_result(name, result, troubled, stays);
    }

    /// Whether a cluster need not make do with an error of connectivity: it is in use as it is, or it is new and what is
    /// in force does without it. What fails already goes on failing, with its newest reason, and one that is only
    /// subscribed to has nobody to wait for it.
    fn can_wait(&self, cx: &Context<'_>, name: &str) -> bool {
        let (Some(in_force), Some(node)) = (cx.in_force, self.nodes.get(name)) else { return false };
        match in_force.get(name) {
            Some(result) => is_usable(result),
            None => node.is_reached(RootSet::Newest) || node.is_reached(RootSet::InForce),
        }
    }

    /// Whether RPCs use a cluster.
    fn is_in_use(&self, cx: &Context<'_>, name: &str) -> bool {
        cx.in_force.and_then(|in_force| in_force.get(name)).is_some_and(is_usable)
    }

    /// Whether a cluster is in use and only what is in force needs it: something newer is about to replace it. Whoever
    /// takes it away meanwhile wants the newer one used, and not RPCs to fail before that is there (D-35). RPCs subscribe
    /// to what they use: that counts only if the routes in force do not lead to it, as then nothing takes its place.
    fn is_outgoing(&self, cx: &Context<'_>, name: &str) -> bool {
        let Some(node) = self.nodes.get(name) else { return false };
        self.is_in_use(cx, name)
            && node.is_reached(RootSet::InForce)
            && !node.is_reached(RootSet::Newest)
            && (!node.is_reached(RootSet::Subscriptions) || !self.lent.contains(name))
    }

    fn count_sources(&mut self, name: &str, newest: Vec<Source>, in_force: Vec<Source>) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        for (set, mut counted) in [(RootSet::Newest, newest), (RootSet::InForce, in_force)] {
            counted.sort();
            counted.dedup();
            // Subscriptions hold no switch back (D-21).
            if !node.is_reached(set) || (set == RootSet::InForce && self.lent.contains(name)) {
                counted.clear();
            }
            // Nor does what goes with it. But it may stay after all, and is then what it was.
            let counts = set != RootSet::InForce || !self.leaving.contains(name);
            let share: &[_] = if counts { &counted } else { &[] };
            self.sources[set as usize].replace(node.counted(set as usize), share);
            (node.sources[set as usize], node.counts[set as usize]) = (counted, counts);
        }
    }

    fn make_eds(
        &self,
        cx: &Context<'_>,
        name: &Arc<str>,
        cluster: &Watched<Cluster>,
        endpoints: &Name,
        collections: &BTreeMap<Arc<str>, Name>,
        sources: &mut Vec<Source>,
    ) -> Made {
        let (Some(cluster), Some(watched)) = (cluster.value(), self.endpoints.get(&endpoints.canonical)) else {
            return Made::Nothing;
        };
        let mut notes: Vec<_> = watched.ambient.iter().map(ToString::to_string).collect();
        let (resolved, troubled) = match &watched.state {
            State::Waiting(None) => return Made::Nothing,
            State::Waiting(Some(error)) => {
                notes.push(error.to_string());
                (None, true)
            }
            State::Failed(error) => {
                sources.extend(watched.denial().filter(|_| self.is_in_use(cx, name)));
                notes.push(error.to_string());
                (None, false)
            }
            State::Valid(value, _) => {
                sources.extend(watched.source());
                let before = self.resolved_in_force(cx, name);
                let Some((resolved, troubled)) = self.join(value, collections, before, &mut notes, sources) else {
                    return Made::Nothing;
                };
                notes.extend(
                    resolved.emptiness().map(|what| format!("{} {what}", key::<Endpoints>(&endpoints.canonical))),
                );
                (Some(Arc::new(resolved)), troubled)
            }
        };
        let why = notes.join("; ");
        match self.ok(cx, name, cluster, ClusterChildren::Endpoints(resolved), notes) {
            Some(result) if troubled => Made::Makeshift(result, why),
            Some(result) => Made::Whole(result),
            None => Made::Nothing,
        }
    }

    /// Endpoints with their collections; `None` if one has no answer and nobody knows why. Says whether one is missing
    /// for the sake of trouble with servers: not one that is missing in what is in force as well.
    pub(super) fn join<'a>(
        &self,
        endpoints: &Arc<Endpoints>,
        collections: impl IntoIterator<Item = (&'a Arc<str>, &'a Name)>,
        in_force: Option<&ResolvedEndpoints>,
        notes: &mut Vec<String>,
        sources: &mut Vec<Source>,
    ) -> Option<(ResolvedEndpoints, bool)> {
        let is_missed_already = |as_written: &Arc<str>| {
            in_force.is_some_and(|in_force| {
                !in_force.has_collection(as_written)
                    && names_of_collections(&in_force.endpoints).any(|name| *name == **as_written)
            })
        };
        let found = self.collections.find(endpoints, collections)?;
        notes.extend(found.notes);
        sources.extend(found.sources);
        let troubled = found.troubled.iter().any(|as_written| !is_missed_already(as_written));
        Some((found.resolved, troubled))
    }

    /// The endpoints of a cluster that are in force.
    pub(super) fn endpoints_in_force<'a>(&self, cx: &Context<'a>, name: &str) -> Option<&'a Arc<ResolvedEndpoints>> {
        match &cx.in_force?.get(name)?.as_ref().ok()?.children {
            ClusterChildren::Endpoints(resolved) => resolved.as_ref(),
            ClusterChildren::Aggregate(_) => None,
        }
    }

    pub(super) fn resolved_in_force<'a>(&self, cx: &Context<'a>, name: &str) -> Option<&'a ResolvedEndpoints> {
        self.endpoints_in_force(cx, name).map(|resolved| &**resolved)
    }

    fn make_dns(&self, cx: &Context<'_>, name: &Arc<str>, cluster: &Watched<Cluster>, dns: &DnsName) -> Made {
        let (Some(cluster), Some(lookup)) = (cluster.value(), self.lookups.get(dns)) else { return Made::Nothing };
        if lookup.answer.is_none() && lookup.failure.is_none() {
            return Made::Nothing;
        }
        let failure = lookup.failure.as_ref().map(|why| format!("DNS resolution failed for {dns}: {why}"));
        let notes = failure.iter().cloned().collect();
        match (self.ok(cx, name, cluster, ClusterChildren::Endpoints(lookup.answer.clone()), notes), failure) {
            (Some(result), Some(why)) if lookup.awaited => Made::Makeshift(result, why),
            (Some(result), _) => Made::Whole(result),
            (None, _) => Made::Nothing,
        }
    }

    /// A cluster that can be used. What is equal to what was there before is shared with it.
    pub(super) fn ok(
        &self,
        cx: &Context<'_>,
        name: &Arc<str>,
        cluster: &Arc<Cluster>,
        mut children: ClusterChildren,
        own_notes: Vec<String>,
    ) -> Option<ClusterResult> {
        let node = self.nodes.get(name)?;
        let mut notes = cx.common_notes.to_vec();
        let ambient = self.clusters.get(&node.canonical).and_then(|watched| watched.ambient.as_ref());
        notes.extend(ambient.map(ToString::to_string));
        notes.extend(own_notes);
        let note = if notes.is_empty() { format!("xDS node ID:{}", cx.node_id) } else { notes.join("; ") };

        // The last result; the published one while there is none.
        let before = node.built.as_ref().or_else(|| cx.published?.get(name)).and_then(|result| result.as_ref().ok());
        if let Some(before) = before.filter(|before| before.children == children) {
            children = before.children.clone();
        }
        let config = ClusterConfig { name: name.clone(), cluster: cluster.clone(), children, note: note.into() };
        Some(Ok(match before {
            Some(before) if **before == config => before.clone(),
            _ => Arc::new(config),
        }))
    }

    /// Takes over what a cluster comes to; as long as it is not complete, what `stays` in force.
    pub(super) fn set_result(
        &mut self,
        name: &Arc<str>,
        result: Option<ClusterResult>,
        troubled: bool,
        stays: Option<ClusterResult>,
    ) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let settled = result.is_some();
        if settled || !node.is_reached(RootSet::Newest) {
            self.incomplete.remove(name);
        } else {
            self.incomplete.insert(name.clone());
        }
        // Who is complete holds on to nothing that is in what is published next.
        self.holds_stale |= node.settled != settled && self.holding.contains(name);
        if (node.settled, node.troubled) != (settled, troubled) {
            match node.shape {
                Shape::Aggregate(_) => self.view_stale = true, // Lists of lists see to each other.
                Shape::Unknown(_) | Shape::Failed(_) | Shape::Eds { .. } | Shape::Dns(_) => self.lists.touch(name),
            }
        }
        (node.settled, node.troubled) = (settled, troubled);
        let built = result.or(stays);
        if node.built != built {
            node.built = built;
            self.changed.insert(name.clone());
        }
    }
}

/// Whether RPCs may succeed with it.
pub(super) fn is_usable(result: &ClusterResult) -> bool {
    result.as_ref().is_ok_and(|cluster| !matches!(cluster.children, ClusterChildren::Endpoints(None)))
}

fn unusable(name: &Arc<str>, error: &Arc<ResourceError>) -> ClusterResult {
    Err(Arc::new(ClusterError { cluster: name.clone(), kind: ClusterErrorKind::Resource(error.clone()) }))
}
