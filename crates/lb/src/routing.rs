//! Which route an RPC takes (L-32 to L-39).
//!
//! The result is that of the plain rule: the first route that matches, in order. What differs is
//! how much is looked at. Exact paths and prefixes are sorted once, so that a match looks only at
//! routes whose path fits, however many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use http::HeaderName;
use mainstay_xds::Choose;
use mainstay_xds::resource::filter::HttpFilter;
use mainstay_xds::resource::matcher::{HeaderMatcher, PathMatcher};
use mainstay_xds::resource::route::{ClusterTarget, ForwardAction, Route, RouteAction, VirtualHost, WeightedCluster};

use crate::filters::Filters;
use crate::request_hash::HashSteps;
use crate::rpc::{Rpc, visible_name, visible_value};
use crate::text_index::TextIndex;
use crate::trace::{Draw, Mismatch, Recorder, Step};

/// The routes of a virtual host, ready for use.
#[derive(Clone, Debug)]
pub(crate) struct RouteTable {
    virtual_host: Arc<VirtualHost>,
    /// The filter chain of the listener.
    chain: Box<[HttpFilter]>,
    /// Every cluster that a route names, in order.
    clusters: Box<[Arc<str>]>,
    /// One per route of the virtual host.
    compiled: Box<[Compiled]>,
    exact: TextIndex,
    exact_any_case: TextIndex,
    prefix: TextIndex,
    prefix_any_case: TextIndex,
    /// Routes with a pattern, in order.
    patterns: Box<[u32]>,
}

/// What is worked out once about a route.
#[derive(Clone, Debug)]
struct Compiled {
    /// One per header matcher; absent if no header can have that name.
    headers: Box<[Option<HeaderName>]>,
    target: Target,
    /// One, or one per weighted cluster; empty if none of them does anything.
    filters: Box<[Filters]>,
    hash: HashSteps,
}

/// The route of an RPC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) route: &'a Route,
    /// Its index among the routes of the virtual host.
    pub(crate) at: usize,
    /// Where it leads: an index of [`RouteTable::clusters`].
    pub(crate) cluster: Option<usize>,
    /// What happens on the way; none is nothing.
    pub(crate) filters: Option<&'a Filters>,
    /// How its requests are hashed.
    pub(crate) hash: &'a HashSteps,
}

/// Where a route leads, as indices of the list of clusters.
#[derive(Clone, Debug)]
enum Target {
    Nowhere,
    Cluster(u32),
    /// Each with the sum of the weights up to and including its own.
    Weighted(Box<[(u64, u32)]>),
}

impl RouteTable {
    pub(crate) fn new(virtual_host: Arc<VirtualHost>, chain: &[HttpFilter]) -> Self {
        let routes = &virtual_host.routes;
        let clusters: BTreeSet<Arc<str>> = virtual_host.clusters().map(Arc::from).collect();
        let clusters: Box<[Arc<str>]> = clusters.into_iter().collect();
        let compiled = routes.iter().map(|route| Compiled::new(route, &virtual_host, &clusters, chain)).collect();
        let index = |exact: bool, any_case: bool| paths(routes, exact, any_case);
        let is_pattern = |(at, route): (u32, &Route)| matches!(route.path, PathMatcher::Regex(_)).then_some(at);
        Self {
            chain: chain.into(),
            clusters,
            compiled,
            exact: index(true, false),
            exact_any_case: index(true, true),
            prefix: index(false, false),
            prefix_any_case: index(false, true),
            patterns: (0..).zip(routes).filter_map(is_pattern).collect(),
            virtual_host,
        }
    }

    pub(crate) fn virtual_host(&self) -> &Arc<VirtualHost> {
        &self.virtual_host
    }

    /// Every cluster that a route names, in order.
    pub(crate) fn clusters(&self) -> &[Arc<str>] {
        &self.clusters
    }

    /// Whether a route names this cluster.
    pub(crate) fn names(&self, cluster: &str) -> bool {
        self.index_of(cluster).is_some()
    }

    /// The index of a cluster that a route names.
    pub(crate) fn index_of(&self, cluster: &str) -> Option<usize> {
        self.clusters.binary_search_by(|name| (**name).cmp(cluster)).ok()
    }

    /// The filter chain of the listener.
    pub(crate) fn chain(&self) -> &[HttpFilter] {
        &self.chain
    }

    /// Whether a request hash may depend on the channel's own number.
    pub(crate) fn needs_channel_id(&self) -> bool {
        self.compiled.iter().any(|compiled| compiled.hash.needs_channel_id())
    }

    /// The first route that matches.
    pub(crate) fn find<R: Recorder>(&self, rpc: Rpc<'_>, choose: &mut dyn Choose, recorder: R) -> Option<Found<'_>> {
        let mut from = 0;
        loop {
            let Some(at) = self.first_match(rpc, from) else {
                recorder.record_all(|| self.passed(rpc, from..self.compiled.len() as u32));
                return None;
            };
            recorder.record_all(|| self.passed(rpc, from..at));
            let route = self.virtual_host.routes.get(at as usize)?;
            // The draw comes last; a route that loses it is passed over (L-37).
            let drawn = route.fraction.map(|fraction| (choose.choose(MILLION), u64::from(fraction)));
            let draw = drawn.map(|(drawn, below)| Draw { drawn, of: MILLION, below });
            if drawn.is_none_or(|(drawn, below)| drawn < below) {
                recorder.record(|| Step::Matched { route: at as usize, draw });
                let compiled = self.compiled.get(at as usize)?;
                let (choice, cluster) = compiled.target.choose(choose, recorder).unzip();
                let filters = compiled.filters.get(choice.unwrap_or(0));
                return Some(Found { route, at: at as usize, cluster, filters, hash: &compiled.hash });
            }
            if let Some(draw) = draw {
                recorder.record(|| Step::Passed { route: at as usize, why: Mismatch::Fraction(draw) });
            }
            from = at + 1;
        }
    }

    /// Why routes do not match that come before the one that does. They were not looked at one by one to find that one.
    fn passed(&self, rpc: Rpc<'_>, routes: Range<u32>) -> Vec<Step> {
        let passed = |at| self.mismatch(rpc, at).map(|why| Step::Passed { route: at, why });
        routes.filter_map(|at| passed(at as usize)).collect()
    }

    /// The first thing about a route, the draw aside, that does not match.
    fn mismatch(&self, rpc: Rpc<'_>, at: usize) -> Option<Mismatch> {
        let (route, compiled) = (self.virtual_host.routes.get(at)?, self.compiled.get(at)?);
        if !route.path.matches(rpc.path) {
            return Some(Mismatch::Path);
        }
        let mut headers = route.headers.iter().zip(&compiled.headers);
        headers.position(|(matcher, name)| !header_matches(rpc, matcher, name)).map(Mismatch::Header)
    }

    /// The first route from `from` on whose path and headers match.
    fn first_match(&self, rpc: Rpc<'_>, from: u32) -> Option<u32> {
        let (mut best, path) = (None, rpc.path.as_bytes());
        self.exact.equal(path).into_iter().for_each(|routes| self.improve(&mut best, rpc, from, routes));
        self.exact_any_case.equal(path).into_iter().for_each(|routes| self.improve(&mut best, rpc, from, routes));
        self.prefix.prefixes(path).for_each(|routes| self.improve(&mut best, rpc, from, routes));
        self.prefix_any_case.prefixes(path).for_each(|routes| self.improve(&mut best, rpc, from, routes));
        self.improve(&mut best, rpc, from, &self.patterns);
        best
    }

    /// Looks for a match among `candidates`, which are in order, before the best one so far.
    fn improve(&self, best: &mut Option<u32>, rpc: Rpc<'_>, from: u32, candidates: &[u32]) {
        let start = candidates.partition_point(|at| *at < from);
        for &at in &candidates[start..] {
            if best.is_some_and(|best| best <= at) {
                return;
            }
            if self.matches(rpc, at as usize) {
                *best = Some(at);
                return;
            }
        }
    }

    /// Whether headers, and a pattern if there is one, match.
    fn matches(&self, rpc: Rpc<'_>, at: usize) -> bool {
        let (Some(route), Some(compiled)) = (self.virtual_host.routes.get(at), self.compiled.get(at)) else {
            return false;
        };
        let path_matches = match &route.path {
            PathMatcher::Regex(pattern) => pattern.is_match(rpc.path),
            PathMatcher::Exact { .. } | PathMatcher::Prefix { .. } => true, // That is how we came here.
        };
        let mut headers = route.headers.iter().zip(&compiled.headers);
        path_matches && headers.all(|(matcher, name)| header_matches(rpc, matcher, name))
    }
}

/// The tables of equal virtual hosts with equal filters are equal.
impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.virtual_host == other.virtual_host && self.chain == other.chain
    }
}

impl Eq for RouteTable {}

impl Hash for RouteTable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.virtual_host.hash(state);
        self.chain.hash(state);
    }
}

impl Compiled {
    fn new(route: &Route, virtual_host: &VirtualHost, clusters: &[Arc<str>], chain: &[HttpFilter]) -> Self {
        let index = |name: &str| clusters.partition_point(|cluster| **cluster < *name) as u32;
        let target = match &route.action {
            RouteAction::Forward(forward) => match &forward.target {
                ClusterTarget::Cluster(name) => Target::Cluster(index(name)),
                ClusterTarget::Weighted(choices) => {
                    let mut sum = 0;
                    let choice = |choice: &WeightedCluster| {
                        sum += u64::from(choice.weight);
                        (sum, index(&choice.name))
                    };
                    Target::Weighted(choices.iter().map(choice).collect())
                }
            },
            RouteAction::NonForwarding | RouteAction::Unsupported(_) => Target::Nowhere,
        };
        let filters: Box<[Filters]> = match &route.action {
            RouteAction::Forward(ForwardAction { target: ClusterTarget::Weighted(choices), .. }) => choices
                .iter()
                .map(|choice| Filters::new(chain, &[&choice.overrides, &route.overrides, &virtual_host.overrides]))
                .collect(),
            RouteAction::Forward(ForwardAction { target: ClusterTarget::Cluster(_), .. })
            | RouteAction::NonForwarding
            | RouteAction::Unsupported(_) => [Filters::new(chain, &[&route.overrides, &virtual_host.overrides])].into(),
        };
        Self {
            headers: route.headers.iter().map(|matcher| visible_name(&matcher.name)).collect(),
            target,
            hash: match &route.action {
                RouteAction::Forward(forward) => HashSteps::new(&forward.hash_policies),
                RouteAction::NonForwarding | RouteAction::Unsupported(_) => HashSteps::default(),
            },
            filters: if filters.iter().all(Filters::is_empty) { Box::default() } else { filters },
        }
    }
}

impl Target {
    /// By weight, whatever state the clusters are in (L-38): which choice, and which cluster that is.
    fn choose<R: Recorder>(&self, choose: &mut dyn Choose, recorder: R) -> Option<(usize, usize)> {
        match self {
            Self::Nowhere => None,
            Self::Cluster(index) => Some((0, *index as usize)),
            Self::Weighted(choices) => {
                let total = choices.last().map(|(sum, _)| *sum).filter(|sum| *sum > 0)?;
                let draw = choose.choose(total);
                let choice = choices.partition_point(|(sum, _)| *sum <= draw);
                let &(below, index) = choices.get(choice)?;
                recorder.record(|| Step::Weighted { choice, draw: Draw { drawn: draw, of: total, below } });
                Some((choice, index as usize))
            }
        }
    }
}

/// Whether the request has what a header matcher wants; no request has a header that routes cannot see.
fn header_matches(rpc: Rpc<'_>, matcher: &HeaderMatcher, name: &Option<HeaderName>) -> bool {
    matcher.matches(name.as_ref().and_then(|name| visible_value(rpc.headers, name)).as_deref())
}

/// The routes whose whole path, or its start, is a text: where they are, by that text.
fn paths(routes: &[Route], exact: bool, any_case: bool) -> TextIndex {
    let mut by_text: BTreeMap<Box<[u8]>, Vec<u32>> = BTreeMap::new();
    for (at, route) in (0..).zip(routes) {
        let (value, case_sensitive) = match &route.path {
            PathMatcher::Exact { value, case_sensitive } if exact => (value, case_sensitive),
            PathMatcher::Prefix { value, case_sensitive } if !exact => (value, case_sensitive),
            PathMatcher::Exact { .. } | PathMatcher::Prefix { .. } | PathMatcher::Regex(_) => continue,
        };
        if *case_sensitive == any_case {
            continue;
        }
        let text = if any_case { value.to_ascii_lowercase() } else { value.clone() };
        let same_path = by_text.entry(text.into_bytes().into()).or_default();
        // Behind a route that takes everything there is nothing to find.
        let taken = same_path.last().and_then(|last: &u32| routes.get(*last as usize));
        if !taken.is_some_and(|last| last.headers.is_empty() && last.fraction.is_none()) {
            same_path.push(at);
        }
    }
    TextIndex::new(any_case, by_text)
}

const MILLION: u64 = 1_000_000;

#[cfg(test)]
mod tests;
