//! Leaf lists of aggregates (A37, L-20).
//!
//! Lists are made from the bottom up: that of an aggregate from those of the aggregates below it. A change concerns the
//! aggregates above it and no others, and of those only the ones whose parts really changed. An aggregate that waits
//! knows one cluster that it waits for, and is not looked at again before that one is there.
//!
//! Aggregates that form a loop are made together, and a loop ends where it began. It counts with all its members
//! towards the limit of nesting, so that however clusters refer to each other no more than a few are ever in one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::results::is_usable;
use super::{Context, Graph, Shape};
use crate::client::ResourceError;
use crate::deps::config::ClusterChildren;
use crate::deps::error::{ClusterError, ClusterErrorKind, MAX_DEPTH};

/// The lists of all aggregates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lists {
    lists: BTreeMap<Arc<str>, Box<List>>,
    /// The aggregates that name a cluster, in order.
    parents: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Aggregates that name other clusters than before.
    stale: BTreeSet<Arc<str>>,
    /// Clusters that mean something else to the aggregates that name them.
    touched: BTreeSet<Arc<str>>,
}

/// The leaves of one aggregate, from its own point of view: what others list plays no part (D9).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum List {
    /// Not made yet: this child is not complete. `None`: something below a child is not, which names this one in turn.
    Waiting(Option<Arc<str>>),
    /// Clusters are nested too deep.
    TooDeep,
    Made(Made),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Made {
    /// In order of preference, each once.
    members: Vec<Member>,
    /// Their numbers.
    numbers: Numbers,
    /// The longest chain of clusters from here to a leaf, both counted.
    height: usize,
    /// Whether one of them is missing, or without endpoints, only for want of a server.
    troubled: bool,
}

/// A leaf, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    /// That of its cluster resource: two spellings of one name are one leaf.
    number: u32,
    leaf: Result<Arc<str>, Arc<ResourceError>>,
}

/// A set of numbers, most of them close to each other: words of 64 bits by their position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Numbers(Vec<(u32, u64)>);

/// What a cluster is to the aggregates that name it.
enum Child<'a> {
    /// Not complete.
    Incomplete,
    /// Too deep, or too far from every root to be known.
    TooDeep,
    /// A leaf, or one that is missing.
    Member(Member),
    /// An aggregate.
    Aggregate(&'a Made),
}

// === impl Lists ===

impl Lists {
    /// `name` is an aggregate.
    pub(super) fn insert(&mut self, name: &Arc<str>) {
        self.lists.entry(name.clone()).or_insert_with(|| Box::new(List::Waiting(None)));
    }

    /// `name` is not an aggregate.
    pub(super) fn remove(&mut self, name: &str) {
        self.lists.remove(name);
    }

    /// `name` names `new` and not `old` any more.
    pub(super) fn set_children(&mut self, name: &Arc<str>, old: &[Arc<str>], new: &[Arc<str>]) {
        for child in old {
            let Some(parents) = self.parents.get_mut(child) else { continue };
            if let Ok(at) = parents.binary_search(name) {
                parents.remove(at);
            }
            if parents.is_empty() {
                self.parents.remove(child);
            }
        }
        for child in new {
            let parents = self.parents.entry(child.clone()).or_default();
            if let Err(at) = parents.binary_search(name) {
                parents.insert(at, name.clone());
            }
        }
        self.stale.insert(name.clone());
    }

    /// `name` means something else to the aggregates that name it.
    pub(super) fn touch(&mut self, name: &Arc<str>) {
        self.touched.insert(name.clone());
    }

    /// What is in force of this aggregate is something else: what it waits for may be too.
    pub(super) fn make_again(&mut self, name: &Arc<str>) {
        if self.lists.contains_key(name) {
            self.stale.insert(name.clone());
        }
    }

    /// All lists are made again.
    pub(super) fn make_all(&mut self) {
        self.stale.extend(self.lists.keys().cloned());
    }
}

// === impl Graph ===

impl Graph {
    /// Makes the lists that may be different.
    pub(super) fn make_lists(&mut self, cx: &Context<'_>) {
        if self.lists.stale.is_empty() && self.lists.touched.is_empty() {
            return;
        }
        let mut renewed = std::mem::take(&mut self.lists.stale);
        for child in std::mem::take(&mut self.lists.touched) {
            renewed.extend(self.concerned(&child).cloned());
        }
        let mut affected = BTreeSet::new();
        let mut work: Vec<_> = renewed.iter().cloned().collect();
        while let Some(name) = work.pop() {
            if self.lists.lists.contains_key(&name) && affected.insert(name.clone()) {
                work.extend(self.concerned(&name).cloned());
            }
        }
        for group in self.groups(&affected) {
            let is_due = |name: &Arc<str>| {
                renewed.contains(name) || self.children(name).iter().any(|child| renewed.contains(child))
            };
            if !group.iter().any(is_due) {
                continue;
            }
            for (name, list) in self.list_group(cx, &group) {
                let Some(known) = self.lists.lists.get_mut(&name) else { continue };
                if **known == list {
                    renewed.remove(&name);
                } else {
                    **known = list;
                    renewed.insert(name.clone());
                }
                self.publish_list(cx, &name);
            }
        }
    }

    /// Makes what its list is the result of an aggregate.
    pub(super) fn publish_list(&mut self, cx: &Context<'_>, name: &Arc<str>) {
        let Some(list) = self.lists.lists.get(name) else { return };
        let error = |kind| Some(Err(Arc::new(ClusterError { cluster: name.clone(), kind })));
        let (result, troubled) = match &**list {
            List::Waiting(_) => (None, false),
            List::TooDeep => (error(ClusterErrorKind::TooDeep), false),
            List::Made(made) => {
                let leaves: Vec<_> = made.leaves().cloned().collect();
                let missing = made.members.iter().filter_map(|member| member.leaf.as_ref().err());
                let result = if leaves.is_empty() {
                    error(ClusterErrorKind::NoLeaves(missing.cloned().collect()))
                } else {
                    let cluster = self.nodes.get(name).and_then(|node| self.clusters.get(&node.canonical));
                    let notes = missing.map(ToString::to_string).collect();
                    let children = ClusterChildren::Aggregate(leaves);
                    cluster.and_then(|c| c.value()).and_then(|value| self.ok(cx, name, value, children, notes))
                };
                (result, made.troubled)
            }
        };
        if result.is_none() {
            self.hold_leaves(cx, name);
        }
        // What is in force may be no aggregate: its endpoints are followed until the leaves are there.
        let held = if result.is_none() { self.build_held(cx, name, None, &mut Vec::new()) } else { None };
        let stays = held.or_else(|| cx.in_force?.get(name).cloned());
        self.set_result(name, result, troubled, stays);
    }

    /// The aggregates that name `child`, without those that wait for another one anyway.
    fn concerned(&self, child: &Arc<str>) -> impl Iterator<Item = &Arc<str>> {
        let parents = self.lists.parents.get(child).into_iter().flatten();
        parents.filter(move |parent| match self.lists.lists.get(*parent).map(|list| &**list) {
            Some(List::Waiting(Some(other))) => other == child || !matches!(self.child(other), Child::Incomplete),
            Some(_) => true,
            None => false,
        })
    }

    fn children(&self, name: &str) -> &[Arc<str>] {
        self.nodes.get(name).map_or(&[], |node| node.shape.children())
    }

    fn child(&self, name: &Arc<str>) -> Child<'_> {
        let Some(node) = self.nodes.get(name) else { return Child::TooDeep };
        let number = self.clusters.number(&node.canonical).unwrap_or_default();
        match &node.shape {
            Shape::Aggregate(_) => match self.lists.lists.get(name).map(|list| &**list) {
                Some(List::Made(made)) => Child::Aggregate(made),
                Some(List::TooDeep) => Child::TooDeep,
                Some(List::Waiting(_)) | None => Child::Incomplete,
            },
            _ if !node.settled => Child::Incomplete,
            Shape::Unknown(None) => Child::Incomplete,
            Shape::Unknown(Some(error)) | Shape::Failed(error) => {
                Child::Member(Member { number, leaf: Err(error.clone()) })
            }
            Shape::Eds { .. } | Shape::Dns(_) => Child::Member(Member { number, leaf: Ok(name.clone()) }),
        }
    }

    /// Makes the lists of aggregates that name each other, or of a single one.
    fn list_group(&self, cx: &Context<'_>, group: &[Arc<str>]) -> Vec<(Arc<str>, List)> {
        let members: BTreeSet<_> = group.iter().collect();
        let waiting = |child: &Arc<str>| {
            let waits_for = |name| self.children(name).contains(child).then(|| child.clone());
            group.iter().map(|name| (name.clone(), List::Waiting(waits_for(name)))).collect()
        };
        let outside = |name: &Arc<str>| self.children(name).iter().rev().filter(|child| !members.contains(child));
        let (mut height, mut troubled, mut too_deep) = (0, None, false);
        for child in group.iter().flat_map(outside) {
            count(1);
            match self.child(child) {
                Child::Incomplete => return waiting(child),
                Child::TooDeep => too_deep = true,
                Child::Member(_) => height = height.max(1),
                Child::Aggregate(made) => height = height.max(made.height),
            }
            if self.nodes.get(child).is_some_and(|node| node.troubled) {
                troubled = Some(child);
            }
        }
        if group.len() > usize::from(MAX_DEPTH) {
            return group.iter().map(|name| (name.clone(), List::TooDeep)).collect();
        }
        let height = height + group.len();
        let too_deep = too_deep || height > usize::from(MAX_DEPTH);
        let list = |name: &Arc<str>| {
            if too_deep {
                return (name.clone(), List::TooDeep);
            }
            let mut made = Made { height, troubled: troubled.is_some(), ..Made::default() };
            self.gather(name, group, &mut BTreeSet::new(), &mut made);
            (name.clone(), List::Made(made))
        };
        let lists: Vec<_> = group.iter().map(list).collect();
        match troubled {
            // Trouble with servers replaces nothing that can be used. What is in force with the trouble is complete.
            Some(child) if lists.iter().any(|(name, list)| list.replaces_usable(cx, name)) => waiting(child),
            _ => lists,
        }
    }

    /// Adds the leaves below `name`, in order. One that is listed already keeps its place.
    fn gather<'a>(
        &'a self,
        name: &'a Arc<str>,
        group: &[Arc<str>],
        seen: &mut BTreeSet<&'a Arc<str>>,
        made: &mut Made,
    ) {
        if !seen.insert(name) {
            return;
        }
        for child in self.children(name) {
            if group.contains(child) {
                self.gather(child, group, seen, made);
                continue;
            }
            match self.child(child) {
                Child::Member(member) => made.add(&member),
                Child::Aggregate(below) if made.numbers.contain_all(&below.numbers) => (),
                Child::Aggregate(below) => below.members.iter().for_each(|member| made.add(member)),
                Child::Incomplete | Child::TooDeep => (),
            }
        }
    }

    /// Aggregates in groups that name each other, each group after those below it (Tarjan's algorithm, without recursion).
    fn groups(&self, names: &BTreeSet<Arc<str>>) -> Vec<Vec<Arc<str>>> {
        let names: Vec<_> = names.iter().collect();
        let edges = |at: usize| -> Vec<usize> {
            self.children(names[at]).iter().filter_map(|child| names.binary_search(&child).ok()).collect()
        };
        let (mut groups, mut stack, mut order) = (Vec::new(), Vec::new(), 0);
        let mut visits: Vec<Visit> = vec![Visit::default(); names.len()];
        for start in 0..names.len() {
            if visits[start].order != 0 {
                continue;
            }
            let mut path = vec![start];
            while let Some(&at) = path.last() {
                if visits[at].order == 0 {
                    order += 1;
                    visits[at] = Visit { order, lowest: order, waits: true, edges: edges(at) };
                    stack.push(at);
                }
                if let Some(next) = visits[at].edges.pop() {
                    count(1);
                    if visits[next].order == 0 {
                        path.push(next);
                    } else if visits[next].waits {
                        visits[at].lowest = visits[at].lowest.min(visits[next].order);
                    }
                    continue;
                }
                path.pop();
                let lowest = visits[at].lowest;
                if let Some(&above) = path.last() {
                    visits[above].lowest = visits[above].lowest.min(lowest);
                }
                if lowest == visits[at].order {
                    let first = stack.iter().rposition(|member| *member == at).unwrap_or_default();
                    let group: Vec<_> = stack.drain(first..).collect();
                    group.iter().for_each(|member| visits[*member].waits = false);
                    groups.push(group.into_iter().map(|member| names[member].clone()).collect());
                }
            }
        }
        groups
    }
}

/// How far the search for groups has come with one aggregate.
#[derive(Clone, Debug, Default)]
struct Visit {
    /// When it was found; 0: not yet.
    order: usize,
    /// The earliest one that it leads to and that waits.
    lowest: usize,
    /// Whether its group is not complete yet.
    waits: bool,
    /// Where it leads to and nobody has been yet.
    edges: Vec<usize>,
}

// === impl List ===

impl List {
    /// Whether other leaves than these are in force of the aggregate, and can be used.
    fn replaces_usable(&self, cx: &Context<'_>, name: &str) -> bool {
        let in_force = cx.in_force.and_then(|in_force| in_force.get(name)).filter(|result| is_usable(result));
        in_force.and_then(|result| result.as_ref().ok()).is_some_and(|config| match (&config.children, self) {
            (ClusterChildren::Aggregate(leaves), Self::Made(made)) => !made.leaves().eq(leaves),
            (ClusterChildren::Aggregate(_) | ClusterChildren::Endpoints(_), _) => true,
        })
    }
}

// === impl Made ===

impl Made {
    /// Those that are there.
    fn leaves(&self) -> impl Iterator<Item = &Arc<str>> {
        self.members.iter().filter_map(|member| member.leaf.as_ref().ok())
    }

    fn add(&mut self, member: &Member) {
        count(1);
        if self.numbers.insert(member.number) {
            self.members.push(member.clone());
        }
    }
}

// === impl Numbers ===

impl Numbers {
    /// Says whether it is new.
    fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = (number / 64, 1 << (number % 64));
        match self.0.binary_search_by_key(&word, |(word, _)| *word) {
            Ok(at) => {
                let is_new = self.0[at].1 & bit == 0;
                self.0[at].1 |= bit;
                is_new
            }
            Err(at) => {
                self.0.insert(at, (word, bit));
                true
            }
        }
    }

    fn contain_all(&self, others: &Self) -> bool {
        let mut rest = self.0.iter();
        others.0.iter().all(|(word, bits)| {
            let known = rest.by_ref().inspect(|_| count(1)).find(|(known, _)| known >= word);
            known.is_some_and(|(known, all)| known == word && bits & !all == 0)
        })
    }
}

/// Counts a step of work.
#[cfg(not(test))]
fn count(_: u64) {}

#[cfg(test)]
pub(in crate::deps) use test_count::{count, steps_taken};

#[cfg(test)]
mod test_count {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts steps of work, for tests that bound it.
    pub(in crate::deps) fn count(steps: u64) {
        STEPS.set(STEPS.get() + steps);
    }

    /// How many steps this thread has counted.
    pub(in crate::deps) fn steps_taken() -> u64 {
        STEPS.get()
    }
}
