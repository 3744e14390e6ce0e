//! One decision in the words of the report: the same for people and for programs.

use std::{sync::Arc, time::Duration};

use mainstay::{
    ResourceType,
    view::{ConfigView, RouteAction},
};
use mainstay_lb::{
    Mismatch, Rpc, Step,
    explain::{Explanation, Outcome},
};
use mainstay_xds::{
    deps::{ClusterChildren, ClusterConfig, XdsConfig},
    resource::{
        cluster::ClusterKind,
        matcher::HeaderMatcher,
        route::{DomainPattern, ForwardAction, Route, RouteAction as CoreAction},
    },
};
use serde::Serialize;

use super::{States, words};
use crate::{
    filters::{self, Filter},
    get::Facts,
    source::Resolved,
};

/// Everything that was looked at, and what came of it.
#[derive(Debug, Serialize)]
pub(super) struct Decided {
    pub(super) target: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) listener: Named,
    pub(super) virtual_host: Host,
    /// The route that matched.
    pub(super) route: Option<Matched>,
    /// Those that did not, if none did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) passed: Vec<Passed>,
    pub(super) filters: Vec<Filter>,
    /// What the filters do to this very call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) injected: Vec<String>,
    pub(super) cluster: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cluster_resource: Option<Facts>,
    /// The shares of a route with several clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weight: Option<Weight>,
    /// The leaf of an aggregate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) leaf: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) drops: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<PriorityStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locality: Option<LocalityStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lb_policy: Option<String>,
    /// Those that the policy chooses from.
    pub(super) endpoints: Vec<String>,
    /// The one that this call goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) picked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hash: Option<String>,
    pub(super) timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_from: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) circuit_breaker: Option<Breaker>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authority: Option<String>,
    /// Why the call is not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<&'static str>,
}

/// A resource.
#[derive(Debug, Serialize)]
pub(super) struct Named {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) facts: Facts,
}

#[derive(Debug, Serialize)]
pub(super) struct Host {
    pub(super) name: String,
    /// The pattern by which it was chosen.
    pub(super) domain: String,
    /// Others that match, less well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) others: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Matched {
    pub(super) index: usize,
    #[serde(rename = "match")]
    pub(super) matches: String,
    /// The draw that it won, if it is for a share of the calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draw: Option<String>,
    pub(super) passed: Vec<Passed>,
}

#[derive(Debug, Serialize)]
pub(super) struct Passed {
    pub(super) index: usize,
    #[serde(rename = "match")]
    pub(super) matches: String,
    pub(super) why: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Weight {
    pub(super) drawn: u64,
    pub(super) total: u64,
    pub(super) clusters: Vec<(String, u32)>,
}

#[derive(Debug, Serialize)]
pub(super) struct PriorityStep {
    pub(super) index: usize,
    pub(super) count: usize,
    pub(super) skipped: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct LocalityStep {
    pub(super) name: String,
    /// How it was drawn, if there were several to choose from.
    #[serde(flatten)]
    pub(super) share: Option<LocalityShare>,
}

#[derive(Debug, Serialize)]
pub(super) struct LocalityShare {
    pub(super) weight: u64,
    pub(super) total: u64,
    pub(super) drawn: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Retry {
    pub(super) retry_on: Vec<&'static str>,
    pub(super) num_retries: u32,
    pub(super) base_interval_ms: u128,
    pub(super) max_interval_ms: u128,
}

#[derive(Debug, Serialize)]
pub(super) struct Breaker {
    pub(super) in_flight: u32,
    pub(super) limit: u32,
}

impl Decided {
    pub(super) fn new(
        view: &ConfigView,
        resolved: &Resolved,
        config: &Arc<XdsConfig>,
        rpc: Rpc<'_>,
        told: &Explanation,
        states: &States<'_>,
    ) -> Self {
        let headers = rpc.headers.iter();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut decided = Self {
            target: view.target.clone(),
            path: rpc.path.to_owned(),
            headers: headers.map(|(name, value)| (name.to_string(), text(value))).collect(),
            listener: Named { name: view.listener.clone(), facts: facts(view, ResourceType::Listener, &view.listener) },
            virtual_host: host(config, &resolved.target.data_plane_authority),
            route: None,
            passed: Vec::new(),
            filters: Vec::new(),
            injected: Vec::new(),
            cluster: None,
            cluster_resource: None,
            weight: None,
            leaf: None,
            drops: Vec::new(),
            priority: None,
            locality: None,
            lb_policy: None,
            endpoints: Vec::new(),
            picked: None,
            hash: None,
            timeout_ms: None,
            timeout_from: None,
            retry: None,
            circuit_breaker: None,
            tls: None,
            authority: None,
            error: None,
            code: None,
        };
        for step in &told.steps {
            decided.take(step, view, config, rpc, states);
        }
        decided.end(&told.outcome);
        decided
    }

    fn take(&mut self, step: &Step, view: &ConfigView, config: &XdsConfig, rpc: Rpc<'_>, states: &States<'_>) {
        match step {
            Step::Passed { route: at, why } => {
                let Some(route) = config.virtual_host.routes.get(*at) else { return };
                let why = mismatch(route, *why, rpc);
                self.passed.push(Passed { index: *at, matches: matches(view, *at), why });
            }
            Step::Matched { route: at, draw } => {
                let draw =
                    draw.map(|draw| format!("{} % of the calls, drew {} %", percent(draw.below), percent(draw.drawn)));
                let passed = std::mem::take(&mut self.passed);
                self.route = Some(Matched { index: *at, matches: matches(view, *at), draw, passed });
                if let Some(route) = config.virtual_host.routes.get(*at) {
                    self.describe(config, route, None);
                }
            }
            Step::Weighted { choice, draw } => {
                let route = self.route.as_ref().and_then(|matched| config.virtual_host.routes.get(matched.index));
                if let Some((route, forward)) = route.and_then(|route| Some((route, forward(route)?))) {
                    let clusters = words::shares(forward);
                    self.weight = Some(Weight { drawn: draw.drawn, total: draw.of, clusters });
                    self.describe(config, route, Some(*choice));
                }
            }
            Step::SessionCluster(cluster) => self.injected.push(format!("the session wants cluster {cluster}")),
            Step::Cluster(cluster) => {
                self.cluster = Some(cluster.to_string());
                self.cluster_resource = Some(facts(view, ResourceType::Cluster, cluster));
            }
            Step::Injected(effects) => self.injected.extend(effects.iter().map(|one| words::effect(one.effect))),
            Step::Leaf { cluster, priority: (at, count) } => {
                self.leaf = (self.cluster.as_deref() != Some(&**cluster)).then(|| cluster.to_string());
                let found = config.clusters.get(cluster).and_then(|result| result.as_ref().ok());
                self.tls = found.and_then(|found| found.cluster.tls.as_ref()).map(|_| "asked for by the cluster");
                self.lb_policy = found.map(|found| found.cluster.lb_policy.to_string());
                let skipped = found.map_or_else(Vec::new, |found| skipped(found, *at, states));
                self.priority = Some(PriorityStep { index: *at, count: *count, skipped });
            }
            Step::Drop { category, draw, hit } => {
                let (share, drawn) = (percent(draw.below), percent(draw.drawn));
                let verdict = if *hit { "dropped" } else { "not dropped" };
                self.drops.push(format!("{category} {share} %: {verdict} (drew {drawn} %)"));
            }
            Step::Breaker { in_flight, limit } => {
                self.circuit_breaker = Some(Breaker { in_flight: *in_flight, limit: *limit });
            }
            Step::Locality { weight, draw } => {
                let share = Some(LocalityShare { weight: *weight, total: draw.of, drawn: draw.drawn });
                self.locality = Some(LocalityStep { name: String::new(), share });
            }
            Step::Hash(hash) => self.hash = Some(format!("{hash:016x}")),
            Step::Session(address) => {
                self.endpoints = vec![address.to_string()];
                self.lb_policy = Some("the endpoint of the session".to_owned());
            }
            Step::Endpoints { policy, candidates } => {
                self.endpoints = candidates.iter().map(|one| one.address.to_string()).collect();
                self.endpoints.sort();
                self.lb_policy = Some((*policy).to_owned());
            }
        }
    }

    /// What the route says besides where it leads.
    fn describe(&mut self, config: &XdsConfig, route: &Route, choice: Option<usize>) {
        let host = &config.virtual_host;
        let weighted = choice.and_then(|choice| words::choice(forward(route)?, choice));
        let levels = [
            weighted.map(|weighted| ("weighted cluster", &weighted.overrides)),
            Some(("route", &route.overrides)),
            Some(("virtual host", &host.overrides)),
        ];
        let levels: Vec<_> = levels.into_iter().flatten().collect();
        self.filters = filters::describe(&config.listener.filters, &levels);
        let Some(forward) = forward(route) else { return };
        let limit = forward.max_stream_duration.map(|limit| (limit, "route"));
        let limit = limit.or(config.listener.max_stream_duration.map(|limit| (limit, "listener")));
        let limit = limit.filter(|(limit, _)| !limit.is_zero());
        (self.timeout_ms, self.timeout_from) = limit.map(|(limit, from)| (millis(limit), from)).unzip();
        self.retry = forward.retry.as_ref().map(|retry| Retry {
            retry_on: retry.retry_on.iter().map(|code| code.name()).collect(),
            num_retries: retry.num_retries,
            base_interval_ms: retry.base_interval.as_millis(),
            max_interval_ms: retry.max_interval.as_millis(),
        });
    }

    fn end(&mut self, outcome: &Outcome) {
        let (error, code) = match outcome {
            Outcome::Sent { address, origin, authority, .. } => {
                self.picked = Some(address.to_string());
                self.authority.clone_from(authority);
                let place = &origin.locality;
                let name = format!("{}/{}/{}", place.region, place.zone, place.sub_zone);
                let share = self.locality.take().and_then(|step| step.share);
                self.locality = Some(LocalityStep { name, share });
                return;
            }
            Outcome::Aborted(code) => ("a fault filter ends it".to_owned(), code.name()),
            Outcome::Waits(failure) => (format!("it waits: {}", failure.message), failure.code.name()),
            Outcome::Fails(failure) | Outcome::Dropped(failure) => (failure.message.clone(), failure.code.name()),
        };
        (self.error, self.code) = (Some(error), Some(code));
    }
}

/// Why a route does not match.
fn mismatch(route: &Route, why: Mismatch, rpc: Rpc<'_>) -> String {
    match why {
        Mismatch::Path => "the path is another one".to_owned(),
        Mismatch::Header(at) => route.headers.get(at).map_or_else(String::new, |matcher| header(matcher, rpc)),
        Mismatch::Fraction(draw) => {
            format!("it is for {} % of the calls, and drew {} %", percent(draw.below), percent(draw.drawn))
        }
    }
}

fn header(matcher: &HeaderMatcher, rpc: Rpc<'_>) -> String {
    let name = &matcher.name;
    let hidden = name.ends_with("-bin") || name.starts_with("grpc-");
    match rpc.headers.get(name.as_str()) {
        _ if hidden => format!("header {name} cannot be seen by routes"),
        Some(value) => format!("header {name} is {:?}", String::from_utf8_lossy(value.as_bytes())),
        None => format!("header {name} is missing"),
    }
}

/// Why priorities before the one that serves do not.
fn skipped(cluster: &ClusterConfig, at: usize, states: &States<'_>) -> Vec<String> {
    let ClusterChildren::Endpoints(Some(endpoints)) = &cluster.children else { return Vec::new() };
    let priorities = endpoints.priorities().take(at).enumerate();
    let why = |(index, localities): (usize, Vec<mainstay_xds::deps::JoinedLocality<'_>>)| {
        let all = localities.iter().flat_map(|locality| &locality.endpoints);
        let addresses: Vec<_> = all.filter_map(|endpoint| endpoint.addresses.as_slice().first()).collect();
        let troubles: Vec<String> = addresses.iter().filter_map(|address| states.trouble(**address)).collect();
        let count = addresses.len();
        match troubles.first() {
            Some(first) => format!("{index}: {} of {count} endpoints ready ({first})", count - troubles.len()),
            None if count == 0 => format!("{index}: no endpoints"),
            None => format!("{index}: none of its {count} endpoints may be used"),
        }
    };
    priorities.map(why).collect()
}

fn host(config: &XdsConfig, authority: &str) -> Host {
    let authority = authority.to_ascii_lowercase();
    let best =
        |domains: &[DomainPattern]| domains.iter().filter(|one| one.matches(&authority)).min().map(words::domain);
    let chosen = &config.virtual_host;
    let others = config.route_config.virtual_hosts.iter().filter(|host| !Arc::ptr_eq(host, chosen));
    let others = others.filter_map(|host| Some(format!("{} ({})", host.name, best(&host.domains)?)));
    Host { name: chosen.name.clone(), domain: best(&chosen.domains).unwrap_or_default(), others: others.collect() }
}

pub(super) fn forward(route: &Route) -> Option<&ForwardAction> {
    match &route.action {
        CoreAction::Forward(forward) => Some(forward),
        CoreAction::NonForwarding | CoreAction::Unsupported(_) => None,
    }
}

/// The condition of a route in words.
pub(super) fn matches(view: &ConfigView, at: usize) -> String {
    let Some(Ok(config)) = &view.config else { return String::new() };
    config.routes.get(at).map_or_else(String::new, |route| {
        let action = match &route.action {
            RouteAction::Forward(_) => "",
            _ => " (not for clients)",
        };
        format!("{}{action}", route.matches)
    })
}

fn facts(view: &ConfigView, resource_type: ResourceType, name: &str) -> Facts {
    view.resource(resource_type, name).map(|status| Facts::new(view.taken_at, status)).unwrap_or_default()
}

/// How a cluster finds its endpoints.
pub(super) fn kind(cluster: &ClusterConfig) -> &'static str {
    match cluster.cluster.kind {
        ClusterKind::Eds { .. } => "EDS",
        ClusterKind::LogicalDns { .. } => "LOGICAL_DNS",
        ClusterKind::Aggregate { .. } => "aggregate",
    }
}

/// Parts of a million in percent.
fn percent(millionths: u64) -> f64 {
    millionths as f64 / 10_000.0
}

fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}
