//! What clusters come to, by brute force.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use mainstay_xds::client::ResourceError;
use mainstay_xds::deps::{
    ClusterChildren, ClusterConfig, ClusterError, ClusterErrorKind, ClusterResult, DnsName, ResolvedEndpoints,
};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::endpoint::{EndpointCollection, EndpointSource};
use mainstay_xds::resource::{Cluster, Endpoints, Resource, ResourceType};

use super::lookups::{Lookup, endpoints as dns_endpoints, literal};
use super::state::{NODE, Reference, Source};
use super::told::State;

/// All clusters that anybody needs.
pub(super) struct Clusters<'a> {
    reference: &'a Reference,
    /// Those that the newest routes, what is in force, and subscriptions lead to.
    newest: BTreeSet<Arc<str>>,
    in_force: BTreeSet<Arc<str>>,
    subscribed: BTreeSet<Arc<str>>,
    /// Those of what is in force that its routes lead to, and not only what a subscription holds on to.
    routed: BTreeSet<Arc<str>>,
    leaves: BTreeMap<Arc<str>, Leaf>,
    lists: RefCell<BTreeMap<Arc<str>, List>>,
    /// The aggregates below each that was asked for.
    below: RefCell<BTreeMap<Arc<str>, Rc<Names>>>,
}

/// What a cluster that is no aggregate comes to.
#[derive(Clone, Debug)]
struct Leaf {
    /// `None`: it is not complete.
    result: Option<ClusterResult>,
    /// Only trouble with servers makes it complete.
    troubled: bool,
    /// Why it is not complete, if somebody knows.
    why: Option<String>,
    sources: BTreeSet<Source>,
}

/// The leaves of an aggregate.
#[derive(Clone, Debug)]
enum List {
    Waiting,
    TooDeep,
    Made { members: Vec<Member>, height: usize, troubled: bool },
}

/// Names of clusters.
type Names = BTreeSet<Arc<str>>;

/// A leaf or why there is none, and the name by which its resource is known.
type Member = (Arc<str>, Result<Arc<str>, Arc<ResourceError>>);

/// What the newest resources come to.
enum Made {
    Nothing,
    Makeshift(ClusterResult, String),
    Whole(ClusterResult),
}

impl<'a> Clusters<'a> {
    pub(super) fn new(reference: &'a Reference) -> Self {
        Self::with(reference, false)
    }

    /// With `all`, what aggregates hold on to until something else is published is in force as well.
    pub(super) fn with(reference: &'a Reference, all: bool) -> Self {
        let newest = reference.reach(&reference.newest);
        let subscribed = reference.reach(reference.subscriptions.keys());
        let mut this = Self {
            reference,
            newest,
            in_force: reference.reach(&reference.routed),
            subscribed,
            routed: reference.reach(&reference.routed),
            leaves: BTreeMap::new(),
            lists: RefCell::default(),
            below: RefCell::default(),
        };
        // What is held on to leads to more, which may be held on to.
        loop {
            this.leaves.clear();
            this.lists.borrow_mut().clear();
            this.below.borrow_mut().clear();
            let names: BTreeSet<_> = this.all().cloned().collect();
            for name in &names {
                if !this.is_aggregate(name) {
                    let leaf = this.leaf(name);
                    this.leaves.insert(name.clone(), leaf);
                }
            }
            let roots: BTreeSet<_> = reference.routed.iter().cloned().chain(this.held_leaves(all)).collect();
            let in_force = reference.reach(&roots);
            let held: BTreeSet<_> = this.held_below(reference.routed.iter(), all).into_values().flatten().collect();
            let routed = reference.reach(reference.routed.iter().chain(&held));
            if (&in_force, &routed) == (&this.in_force, &this.routed) {
                return this;
            }
            (this.in_force, this.routed) = (in_force, routed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<str>> {
        let all: BTreeSet<_> = self.newest.iter().chain(&self.in_force).chain(&self.subscribed).collect();
        all.into_iter()
    }

    fn is_known(&self, name: &str) -> bool {
        [&self.newest, &self.in_force, &self.subscribed].iter().any(|names| names.contains(name))
    }

    fn is_aggregate(&self, name: &str) -> bool {
        !self.reference.children(name).is_empty()
    }

    fn used(&self, name: &str) -> Option<&'a ClusterResult> {
        self.reference.clusters_in_force()?.get(name)
    }

    /// Old leaves of aggregates that wait for something, or of all that hold on to them until something else is published.
    fn held_leaves(&self, all: bool) -> BTreeSet<Arc<str>> {
        self.holding(all).into_values().flatten().collect()
    }

    /// The aggregates that hold on to their old leaves.
    fn holding(&self, all: bool) -> BTreeMap<Arc<str>, Vec<Arc<str>>> {
        let roots = self.reference.routed.iter().chain(self.reference.subscriptions.keys());
        self.held_below(roots, all)
    }

    fn held_below<'b>(
        &self,
        roots: impl Iterator<Item = &'b Arc<str>>,
        all: bool,
    ) -> BTreeMap<Arc<str>, Vec<Arc<str>>> {
        let (mut held, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut work: Vec<Arc<str>> = roots.cloned().collect();
        while let Some(name) = work.pop() {
            if !seen.insert(name.clone()) || !self.is_known(&name) {
                continue;
            }
            work.extend(self.parts(&name));
            if let Some(Ok(config)) = self.used(&name)
                && let ClusterChildren::Aggregate(leaves) = &config.children
                && (!self.is_settled(&name) || (all && self.is_changing(&name, &config.cluster)))
            {
                work.extend(leaves.iter().cloned());
                held.insert(name, leaves.clone());
            }
        }
        held
    }

    /// The clusters that a cluster of what is in force names. What is new below an aggregate that waits is not a part of
    /// anything yet.
    fn parts(&self, name: &Arc<str>) -> Vec<Arc<str>> {
        let settled = self.is_settled(name);
        let children = self.reference.children(name).iter().map(|child| Arc::<str>::from(child.as_str()));
        children.filter(|child| settled || self.used(child).is_some()).collect()
    }

    /// Whether an aggregate names others than the one in force, or has not replaced it since it did.
    fn is_changing(&self, name: &Arc<str>, in_force: &Cluster) -> bool {
        let is_other = self.reference.cluster(name).is_none_or(|cluster| cluster.kind != in_force.kind);
        is_other || self.reference.holding.contains(name)
    }

    // --- Leaves ---

    fn leaf(&self, name: &Arc<str>) -> Leaf {
        let mut sources: BTreeSet<_> = self.reference.source_of(ResourceType::Cluster, name).into_iter().collect();
        let (result, troubled, why) = match self.make(name, &mut sources) {
            Made::Nothing => (None, false, None),
            // Who takes away what is about to be replaced wants the new one used, and not RPCs to fail before (D-35).
            Made::Whole(result) if !is_usable(&result) && self.is_outgoing(name) => {
                (None, false, result.err().map(|error| error.to_string()))
            }
            Made::Whole(result) => (Some(result), false, None),
            Made::Makeshift(_, why) if self.can_wait(name) => (None, false, Some(why)),
            Made::Makeshift(result, _) => (Some(result), true, None),
        };
        Leaf { result, troubled, why, sources }
    }

    /// Trouble with servers never puts an unusable configuration in force (promise 1).
    fn can_wait(&self, name: &str) -> bool {
        match (self.reference.clusters_in_force(), self.used(name)) {
            (None, _) => false,
            (_, Some(used)) => is_usable(used),
            (_, None) => self.newest.contains(name) || self.in_force.contains(name),
        }
    }

    /// Who takes away what RPCs use has its say in the configuration, as if it had sent something (D-35).
    fn denial(&self, resource_type: ResourceType, name: &str, of: &str) -> Option<Source> {
        let (key, authority) = self.reference.key(resource_type, name);
        match &self.reference.told.get(&key)?.state {
            State::Failed(error) if self.used(of).is_some_and(is_usable) => Some((authority, error.server.clone()?)),
            State::Failed(_) | State::Awaited(_) | State::Value(..) => None,
        }
    }

    fn is_outgoing(&self, name: &str) -> bool {
        self.used(name).is_some_and(is_usable)
            && self.in_force.contains(name)
            && !self.newest.contains(name)
            && (!self.subscribed.contains(name) || self.routed.contains(name))
    }

    fn make(&self, name: &Arc<str>, sources: &mut BTreeSet<Source>) -> Made {
        let unusable = |error: &Arc<ResourceError>| -> ClusterResult {
            Err(Arc::new(ClusterError { cluster: name.clone(), kind: ClusterErrorKind::Resource(error.clone()) }))
        };
        let told = self.reference.told_of(ResourceType::Cluster, name);
        let cluster = match told.map(|told| &told.state) {
            None | Some(State::Awaited(None)) => return Made::Nothing,
            Some(State::Awaited(Some(error))) => return Made::Makeshift(unusable(error), error.to_string()),
            Some(State::Failed(error)) => {
                sources.extend(self.denial(ResourceType::Cluster, name, name));
                return Made::Whole(unusable(error));
            }
            Some(State::Value(Resource::Cluster(cluster), _)) => cluster,
            Some(State::Value(..)) => return Made::Nothing,
        };
        match &cluster.kind {
            ClusterKind::Eds { .. } => self.make_eds(name, cluster, sources),
            ClusterKind::LogicalDns { host, port } => {
                let dns = DnsName { host: host.clone(), port: *port };
                self.make_dns(name, cluster, &dns)
            }
            ClusterKind::Aggregate { .. } => Made::Nothing,
        }
    }

    fn make_eds(&self, name: &Arc<str>, cluster: &Arc<Cluster>, sources: &mut BTreeSet<Source>) -> Made {
        let service = cluster.eds_resource_name(name).unwrap_or(name);
        let Some(told) = self.reference.told_of(ResourceType::Endpoints, service) else { return Made::Nothing };
        let mut notes: Vec<_> = told.ambient.iter().map(ToString::to_string).collect();
        let (resolved, troubled) = match &told.state {
            State::Awaited(None) => return Made::Nothing,
            State::Awaited(Some(error)) => {
                notes.push(error.to_string());
                (None, true)
            }
            State::Failed(error) => {
                sources.extend(self.denial(ResourceType::Endpoints, service, name));
                notes.push(error.to_string());
                (None, false)
            }
            State::Value(Resource::Endpoints(endpoints), _) => {
                sources.extend(self.reference.source_of(ResourceType::Endpoints, service));
                let Some((resolved, troubled)) = self.join(name, endpoints, &mut notes, sources) else {
                    return Made::Nothing;
                };
                notes.extend(self.emptiness(service, &resolved));
                (Some(Arc::new(resolved)), troubled)
            }
            State::Value(..) => return Made::Nothing,
        };
        let why = notes.join("; ");
        let result = self.config(name, cluster, ClusterChildren::Endpoints(resolved), notes);
        if troubled { Made::Makeshift(result, why) } else { Made::Whole(result) }
    }

    /// Endpoints with their collections, and whether one of those is missing for want of a server, which RPCs would
    /// miss. `None` if nobody has said anything of one: then nobody stands behind the others yet, whichever they are.
    fn join(
        &self,
        name: &str,
        endpoints: &Arc<Endpoints>,
        notes: &mut Vec<String>,
        sources: &mut BTreeSet<Source>,
    ) -> Option<(ResolvedEndpoints, bool)> {
        let before = match self.used(name) {
            Some(Ok(config)) => match &config.children {
                ClusterChildren::Endpoints(resolved) => resolved.as_deref(),
                ClusterChildren::Aggregate(_) => None,
            },
            _ => None,
        };
        let is_missing = |collection: &String| {
            before.is_some_and(|before| {
                collections_of(&before.endpoints).contains(collection)
                    && !before.collections.contains_key(collection.as_str())
            })
        };
        let (mut collections, mut behind, mut troubled) = (BTreeMap::new(), BTreeSet::new(), false);
        for collection in collections_of(endpoints) {
            let told = self.reference.told_of(ResourceType::EndpointCollection, &collection)?;
            notes.extend(told.ambient.iter().map(ToString::to_string));
            match &told.state {
                State::Awaited(None) => return None,
                State::Awaited(Some(error)) => {
                    notes.push(error.to_string());
                    troubled |= !is_missing(&collection);
                }
                State::Failed(error) => notes.push(error.to_string()),
                State::Value(Resource::EndpointCollection(value), _) => {
                    behind.extend(self.reference.source_of(ResourceType::EndpointCollection, &collection));
                    collections.insert(Arc::from(collection.as_str()), value.clone());
                }
                State::Value(..) => return None,
            }
        }
        sources.append(&mut behind);
        Some((ResolvedEndpoints { endpoints: endpoints.clone(), collections, globs: BTreeMap::new() }, troubled))
    }

    /// What to say of localities without endpoints (L-15).
    fn emptiness(&self, service: &str, resolved: &ResolvedEndpoints) -> Option<String> {
        let (key, _) = self.reference.key(ResourceType::Endpoints, service);
        let localities: Vec<_> = resolved.endpoints.priorities.iter().flat_map(|p| &p.localities).collect();
        if localities.is_empty() {
            return Some(format!("{key} contains no localities"));
        }
        let has_none = |collection: Option<&Arc<EndpointCollection>>| collection.is_none_or(|c| c.endpoints.is_empty());
        let mut empty = Vec::new();
        for locality in localities {
            let collection = match &locality.source {
                EndpointSource::Inline(collection) => Some(collection),
                EndpointSource::Collection(name) => resolved.collections.get(name.as_str()),
            };
            if has_none(collection) {
                let place = &locality.locality;
                empty.push(format!("{}/{}/{}", place.region, place.zone, place.sub_zone));
            }
        }
        (!empty.is_empty()).then(|| format!("{key} contains empty localities: [{}]", empty.join("; ")))
    }

    fn make_dns(&self, name: &Arc<str>, cluster: &Arc<Cluster>, dns: &DnsName) -> Made {
        let (endpoints, failure, troubled) = match (literal(dns), self.reference.lookups.get(dns)) {
            (Some(address), _) => (Some(dns_endpoints(dns, &[address])), None, false),
            (None, None) => return Made::Nothing,
            (None, Some(lookup)) if lookup.is_open() => return Made::Nothing,
            (None, Some(lookup)) => (lookup.endpoints(dns), failure_note(dns, lookup), lookup.is_trouble()),
        };
        let why = failure.clone().unwrap_or_default();
        let result = self.config(name, cluster, ClusterChildren::Endpoints(endpoints), failure.into_iter().collect());
        if troubled { Made::Makeshift(result, why) } else { Made::Whole(result) }
    }

    fn config(
        &self,
        name: &Arc<str>,
        cluster: &Arc<Cluster>,
        children: ClusterChildren,
        own_notes: Vec<String>,
    ) -> ClusterResult {
        let mut notes = self.reference.notes.clone();
        let told = self.reference.told_of(ResourceType::Cluster, name);
        notes.extend(told.and_then(|told| told.ambient.as_ref()).map(ToString::to_string));
        notes.extend(own_notes);
        let note = if notes.is_empty() { format!("xDS node ID:{NODE}") } else { notes.join("; ") };
        Ok(Arc::new(ClusterConfig { name: name.clone(), cluster: cluster.clone(), children, note: note.into() }))
    }

    // --- Aggregates ---

    /// The aggregates that a cluster leads to and that lead back to it, with itself.
    fn group(&self, name: &Arc<str>) -> BTreeSet<Arc<str>> {
        let below = self.below(name);
        let leads_back = |other: &&Arc<str>| self.below(other).contains(name);
        let mut group: BTreeSet<_> = below.iter().filter(leads_back).cloned().collect();
        group.insert(name.clone());
        group
    }

    /// The aggregates below a cluster.
    fn below(&self, name: &Arc<str>) -> Rc<Names> {
        if let Some(known) = self.below.borrow().get(name) {
            return known.clone();
        }
        let (mut found, mut work) = (BTreeSet::new(), vec![name.clone()]);
        let asked = name.clone();
        while let Some(name) = work.pop() {
            for child in self.reference.children(&name).iter().map(|child| Arc::<str>::from(child.as_str())) {
                if self.is_known(&child) && self.is_aggregate(&child) && found.insert(child.clone()) {
                    work.push(child);
                }
            }
        }
        self.below.borrow_mut().entry(asked).or_insert_with(|| Rc::new(found)).clone()
    }

    fn list(&self, name: &Arc<str>) -> List {
        if let Some(known) = self.lists.borrow().get(name) {
            return known.clone();
        }
        let made = self.make_list(name);
        self.lists.borrow_mut().insert(name.clone(), made.clone());
        made
    }

    fn make_list(&self, name: &Arc<str>) -> List {
        let group = self.group(name);
        let children = group.iter().flat_map(|member| self.reference.children(member));
        let outside: BTreeSet<Arc<str>> = children.map(|child| Arc::from(child.as_str())).collect();
        let outside = || outside.iter().filter(|child| !group.contains(*child));
        if outside().any(|child| self.is_known(child) && !self.is_settled(child)) {
            return List::Waiting;
        }
        if group.len() > MAX_DEPTH {
            return List::TooDeep;
        }
        let troubled = outside().any(|child| self.is_troubled(child));
        let height = self.height(&group, outside());
        let members_of = |member: &Arc<str>| {
            let mut members = Vec::new();
            self.gather(member, &group, &mut BTreeSet::new(), &mut members);
            members
        };
        // Trouble with servers replaces nothing that can be used: not what any aggregate of a loop lists now.
        let is_kept = |member: &Arc<str>| match self.used(member).filter(|used| is_usable(used)) {
            Some(Ok(config)) => {
                let new = members_of(member).into_iter().filter_map(|(_, leaf)| leaf.ok()).collect();
                height.is_none() || config.children != ClusterChildren::Aggregate(new)
            }
            _ => false,
        };
        if troubled && group.iter().any(is_kept) {
            return List::Waiting;
        }
        match height {
            Some(height) => List::Made { members: members_of(name), height, troubled },
            None => List::TooDeep,
        }
    }

    /// The longest chain of clusters from a group to a leaf; `None` if that is too long.
    fn height<'b>(&self, group: &BTreeSet<Arc<str>>, outside: impl Iterator<Item = &'b Arc<str>>) -> Option<usize> {
        let mut below = 0;
        for child in outside {
            match self.is_aggregate(child).then(|| self.list(child)) {
                _ if !self.is_known(child) => return None,
                Some(List::TooDeep) => return None,
                Some(List::Made { height, .. }) => below = below.max(height),
                Some(List::Waiting) | None => below = below.max(1),
            }
        }
        Some(below + group.len()).filter(|height| *height <= MAX_DEPTH)
    }

    /// Leaves in order of preference, depth first; the first of equals stays (A37).
    fn gather(
        &self,
        name: &Arc<str>,
        group: &BTreeSet<Arc<str>>,
        seen: &mut BTreeSet<Arc<str>>,
        members: &mut Vec<Member>,
    ) {
        if !seen.insert(name.clone()) {
            return;
        }
        let add = |members: &mut Vec<Member>, member: Member| {
            if !members.iter().any(|(known, _)| *known == member.0) {
                members.push(member);
            }
        };
        for child in self.reference.children(name).iter().map(|child| Arc::<str>::from(child.as_str())) {
            if group.contains(&child) {
                self.gather(&child, group, seen, members);
            } else if self.is_aggregate(&child) {
                if let List::Made { members: below, .. } = self.list(&child) {
                    below.into_iter().for_each(|member| add(members, member));
                }
            } else {
                let (key, _) = self.reference.key(ResourceType::Cluster, &child);
                let leaf = match self.leaves.get(&child).and_then(|leaf| leaf.result.as_ref()) {
                    Some(Err(error)) => match &error.kind {
                        ClusterErrorKind::Resource(error) => Err(error.clone()),
                        ClusterErrorKind::TooDeep | ClusterErrorKind::NoLeaves(_) => continue,
                    },
                    Some(Ok(_)) => Ok(child),
                    None => continue,
                };
                add(members, (key.name, leaf));
            }
        }
    }

    fn is_settled(&self, name: &Arc<str>) -> bool {
        match self.leaves.get(name) {
            Some(leaf) => leaf.result.is_some(),
            None if !self.is_known(name) => false,
            None => self.is_aggregate(name) && !matches!(self.list(name), List::Waiting),
        }
    }

    fn is_troubled(&self, name: &Arc<str>) -> bool {
        match self.leaves.get(name) {
            Some(leaf) => leaf.troubled,
            None if !self.is_known(name) => false,
            None => self.is_aggregate(name) && matches!(self.list(name), List::Made { troubled: true, .. }),
        }
    }

    /// What a cluster comes to now; `None` if it is not complete.
    fn result(&self, name: &Arc<str>) -> Option<ClusterResult> {
        if !self.is_aggregate(name) {
            return self.leaves.get(name)?.result.clone();
        }
        let error = |kind| Some(Err(Arc::new(ClusterError { cluster: name.clone(), kind })));
        match self.list(name) {
            List::Waiting => None,
            List::TooDeep => error(ClusterErrorKind::TooDeep),
            List::Made { members, .. } => {
                let leaves: Vec<_> = members.iter().filter_map(|(_, leaf)| leaf.clone().ok()).collect();
                let missing: Vec<_> = members.into_iter().filter_map(|(_, leaf)| leaf.err()).collect();
                if leaves.is_empty() {
                    return error(ClusterErrorKind::NoLeaves(missing));
                }
                let notes = missing.iter().map(ToString::to_string).collect();
                let cluster = self.reference.cluster(name)?;
                Some(self.config(name, cluster, ClusterChildren::Aggregate(leaves), notes))
            }
        }
    }

    // --- What is in force meanwhile ---

    /// What a cluster in force comes to that waits for something newer: the resources it is made of are followed.
    fn follow(&self, name: &Arc<str>, sources: &mut BTreeSet<Source>) -> Option<ClusterResult> {
        let used = self.used(name)?;
        let Ok(config) = used else { return Some(used.clone()) };
        let why = self.leaves.get(name).and_then(|leaf| leaf.why.clone());
        let mut notes: Vec<_> = why.into_iter().collect();
        match (&config.cluster.kind, &config.children) {
            (ClusterKind::Eds { .. }, ClusterChildren::Endpoints(Some(resolved))) => {
                let service = config.cluster.eds_resource_name(name).unwrap_or(name);
                let Some(told) = self.reference.told_of(ResourceType::Endpoints, service) else {
                    return Some(used.clone());
                };
                if let State::Failed(error) = &told.state {
                    notes.push(error.to_string());
                }
                notes.extend(told.ambient.iter().map(ToString::to_string));
                let newest = self.reference.endpoints(service);
                for endpoints in newest.into_iter().chain([&resolved.endpoints]) {
                    let (mut more_notes, mut more_sources) = (Vec::new(), BTreeSet::new());
                    if let Some((joined, false)) = self.join(name, endpoints, &mut more_notes, &mut more_sources) {
                        notes.append(&mut more_notes);
                        notes.extend(self.emptiness(service, &joined));
                        sources.extend(self.reference.source_of(ResourceType::Endpoints, service));
                        sources.append(&mut more_sources);
                        let children = ClusterChildren::Endpoints(Some(Arc::new(joined)));
                        return Some(self.config(name, &config.cluster, children, notes));
                    }
                }
                Some(used.clone())
            }
            (ClusterKind::LogicalDns { host, port }, ClusterChildren::Endpoints(Some(before))) => {
                let dns = DnsName { host: host.clone(), port: *port };
                let lookup = self.reference.lookups.get(&dns);
                notes.extend(lookup.and_then(|lookup| failure_note(&dns, lookup)));
                let answer = lookup.and_then(|lookup| lookup.endpoints(&dns)).or_else(|| Some(before.clone()));
                Some(self.config(name, &config.cluster, ClusterChildren::Endpoints(answer), notes))
            }
            _ => Some(used.clone()),
        }
    }

    // --- Seen from outside ---

    /// Whether everything is there that the newest routes need.
    pub(super) fn is_complete(&self) -> bool {
        self.newest.iter().all(|name| self.is_settled(name))
    }

    /// The clusters of a configuration with the routes in force, and which of them are only what was there before.
    pub(super) fn visible(&self) -> (BTreeMap<Arc<str>, ClusterResult>, BTreeSet<Arc<str>>) {
        let roots = self.reference.routed.iter().cloned().chain(self.held_leaves(false));
        let mut work: Vec<Arc<str>> = roots.chain(self.reference.subscriptions.keys().cloned()).collect();
        let (mut seen, mut kept) = (BTreeSet::new(), BTreeSet::new());
        let mut clusters = BTreeMap::new();
        while let Some(name) = work.pop() {
            if !self.is_known(&name) || !seen.insert(name.clone()) {
                continue;
            }
            work.extend(self.parts(&name));
            let result = self.result(&name);
            if result.is_none() {
                kept.insert(name.clone());
            }
            if let Some(result) = result.or_else(|| self.follow(&name, &mut BTreeSet::new())) {
                clusters.insert(name, result);
            }
        }
        (clusters, kept)
    }

    /// The servers behind the clusters of what is newest, and of what is in force.
    pub(super) fn sources(&self) -> [BTreeSet<Source>; 2] {
        let newest = self.newest.iter().flat_map(|name| self.own_sources(name)).collect();
        [newest, self.held_sources().into_values().flatten().collect()]
    }

    /// The servers behind each cluster of what is in force. One that waits is what it was, or follows.
    pub(super) fn held_sources(&self) -> BTreeMap<Arc<str>, BTreeSet<Source>> {
        let sources = |name: &Arc<str>| {
            if self.is_aggregate(name) || self.is_settled(name) {
                return self.own_sources(name);
            }
            let mut sources = self.reference.held_sources.get(name).cloned().unwrap_or_default();
            self.follow(name, &mut sources);
            sources
        };
        // Subscriptions hold no switch back (D-21).
        self.routed.iter().map(|name| (name.clone(), sources(name))).collect()
    }

    /// The aggregates that hold on to their old leaves.
    pub(super) fn holders(&self, all: bool) -> BTreeSet<Arc<str>> {
        self.holding(all).into_keys().collect()
    }

    fn own_sources(&self, name: &Arc<str>) -> BTreeSet<Source> {
        match self.leaves.get(name) {
            Some(leaf) => leaf.sources.clone(),
            None => self.reference.source_of(ResourceType::Cluster, name).into_iter().collect(),
        }
    }

    /// What must be watched for the clusters. With `all`, also what the clusters in force were made of that are about
    /// to be replaced.
    pub(super) fn watches(&self, all: bool, newest_only: bool) -> BTreeSet<ResourceKey> {
        let mut needed = BTreeSet::new();
        let mut add = |resource_type, name: &str| {
            needed.insert(self.reference.key(resource_type, name).0);
        };
        let in_force = self.reference.reach(&self.held_leaves(all));
        let more = in_force.iter().filter(|_| all);
        for name in self.all().chain(more).filter(|name| !newest_only || self.is_wanted(name)) {
            add(ResourceType::Cluster, name);
            let newest = self.reference.cluster(name);
            let used = self.used(name).and_then(|used| used.as_ref().ok());
            let used = used.filter(|_| !newest_only && (all || !self.is_settled(name)));
            let endpoints_used = used.and_then(|config| match &config.children {
                ClusterChildren::Endpoints(resolved) => resolved.as_ref(),
                ClusterChildren::Aggregate(_) => None,
            });
            // One without endpoints has nothing that could be followed.
            let held = used.filter(|_| endpoints_used.is_some()).map(|config| &config.cluster);
            for cluster in newest.into_iter().chain(held) {
                let Some(service) = cluster.eds_resource_name(name) else { continue };
                add(ResourceType::Endpoints, service);
                let endpoints = self.reference.endpoints(service);
                for collection in endpoints.into_iter().flat_map(|endpoints| collections_of(endpoints)) {
                    add(ResourceType::EndpointCollection, &collection);
                }
            }
            if held.is_some_and(|cluster| matches!(cluster.kind, ClusterKind::Eds { .. })) {
                for collection in endpoints_used.into_iter().flat_map(|resolved| collections_of(&resolved.endpoints)) {
                    add(ResourceType::EndpointCollection, &collection);
                }
            }
        }
        needed
    }

    /// Whether the newest routes or subscriptions lead to it.
    fn is_wanted(&self, name: &str) -> bool {
        self.newest.contains(name) || self.subscribed.contains(name)
    }

    /// The names whose addresses are needed.
    pub(super) fn lookups(&self, all: bool, newest_only: bool) -> BTreeSet<DnsName> {
        let mut needed = BTreeSet::new();
        let in_force = self.reference.reach(&self.held_leaves(all));
        let more = in_force.iter().filter(|_| all);
        for name in self.all().chain(more).filter(|name| !newest_only || self.is_wanted(name)) {
            let newest = self.reference.cluster(name);
            let used = self.used(name).and_then(|used| used.as_ref().ok());
            let used = used.filter(|_| !newest_only && (all || !self.is_settled(name)));
            let used = used.filter(|config| matches!(config.children, ClusterChildren::Endpoints(Some(_))));
            for cluster in newest.into_iter().chain(used.map(|config| &config.cluster)) {
                if let ClusterKind::LogicalDns { host, port } = &cluster.kind {
                    needed.insert(DnsName { host: host.clone(), port: *port });
                }
            }
        }
        needed
    }
}

fn failure_note(dns: &DnsName, lookup: &Lookup) -> Option<String> {
    lookup.failure.as_ref().map(|why| format!("DNS resolution failed for {dns}: {why}"))
}

/// The names of collections in endpoints, in order, each once.
fn collections_of(endpoints: &Endpoints) -> BTreeSet<String> {
    let localities = endpoints.priorities.iter().flat_map(|priority| &priority.localities);
    let names = localities.filter_map(|locality| match &locality.source {
        EndpointSource::Inline(_) => None,
        EndpointSource::Collection(name) => Some(name.clone()),
    });
    names.collect()
}

/// Whether RPCs may succeed with it.
fn is_usable(result: &ClusterResult) -> bool {
    result.as_ref().is_ok_and(|config| !matches!(config.children, ClusterChildren::Endpoints(None)))
}

/// The longest chain of clusters, the first and the last counted (A37).
const MAX_DEPTH: usize = 16;
