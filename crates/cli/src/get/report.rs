//! A configuration in the words of the report: the same for people and for programs.

use std::collections::BTreeMap;

use mainstay::config::{
    ConfigView,
    client::{ResourceState, ResourceStatus, ServerState, ServerStatus},
    deps::{ClusterChildren, ClusterConfig, ClusterResult, JoinedLocality, ResolvedEndpoints, XdsConfig},
    resource::{
        ResourceType,
        cluster::ClusterKind,
        endpoint::{Endpoint, EndpointSource, HealthStatus},
        listener::RouteSource,
        matcher::{HeaderMatch, HeaderMatcher, PathMatcher, StringMatcher},
        route::{ClusterTarget, Route, RouteAction},
    },
};
use serde::Serialize;

/// All there is to say about a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) target: String,
    pub(super) status: Status,
    /// Why there is no configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) node: String,
    /// Whether resources of one authority are from more than one server.
    pub(super) mixed_sources: bool,
    pub(super) servers: Vec<ServerReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) listener: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) routes: Option<Routes>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) clusters: BTreeMap<String, ClusterReport>,
    /// Every watched resource, if there is no configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) watched: Vec<Watched>,
}

/// How much of the configuration can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// Every cluster has endpoints.
    Complete,
    /// Some have none.
    Partial,
    /// There is no configuration.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ServerReport {
    pub(super) uri: String,
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// Where a resource stands and where it came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Origin {
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Named {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Watched {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) resource: Named,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Routes {
    /// The RDS resource; absent if the routes are in the listener.
    #[serde(flatten)]
    pub(super) resource: Option<Named>,
    pub(super) virtual_host: String,
    pub(super) routes: Vec<RouteReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RouteReport {
    #[serde(rename = "match")]
    pub(super) matches: String,
    /// Where its RPCs go, with the share of each; empty if they fail.
    pub(super) clusters: Vec<Weighted>,
    /// Why they fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unsupported: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Weighted {
    pub(super) name: String,
    pub(super) weight: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ClusterReport {
    #[serde(flatten)]
    pub(super) origin: Origin,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unusable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lb_policy: Option<String>,
    /// The name that DNS is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dns: Option<String>,
    /// The clusters of an aggregate, the most preferred first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) children: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) endpoints: Option<EndpointsReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EndpointsReport {
    /// The EDS resource; absent for DNS.
    #[serde(flatten)]
    pub(super) resource: Option<Named>,
    pub(super) priorities: Vec<Vec<LocalityReport>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LocalityReport {
    /// region/zone/sub_zone
    pub(super) name: String,
    pub(super) weight: u32,
    /// The list collection that the endpoints are from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) collection: Option<Named>,
    pub(super) endpoints: Vec<EndpointReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EndpointReport {
    pub(super) addresses: Vec<String>,
    pub(super) health: &'static str,
    pub(super) weight: u32,
}

// === impl Report ===

impl Report {
    pub(super) fn new(view: &ConfigView) -> Self {
        let mut report = Self {
            target: view.target.to_string(),
            status: Status::Failed,
            error: None,
            node: view.node_id.clone(),
            mixed_sources: false,
            servers: view.servers.iter().map(ServerReport::new).collect(),
            listener: None,
            routes: None,
            clusters: BTreeMap::new(),
            watched: Vec::new(),
        };
        match &view.config {
            Some(Ok(config)) => report.describe(view, config),
            failed => {
                report.error = failed.as_ref().and_then(|config| config.as_ref().err()).map(ToString::to_string);
                report.watched = view.resources.iter().map(|status| Watched::new(view, status)).collect();
            }
        }
        report
    }

    fn describe(&mut self, view: &ConfigView, config: &XdsConfig) {
        self.mixed_sources = config.mixed_sources;
        self.listener = Some(Named::new(view, ResourceType::Listener, &view.listener));
        self.routes = Some(Routes {
            resource: match &config.listener.routes {
                RouteSource::Inline(_) => None,
                RouteSource::Rds(name) => Some(Named::new(view, ResourceType::RouteConfig, name)),
            },
            virtual_host: config.virtual_host.name.clone(),
            routes: config.virtual_host.routes.iter().map(RouteReport::new).collect(),
        });
        let cluster = |(name, result): (&_, &_)| (str::to_owned(name), ClusterReport::new(view, name, result));
        self.clusters = config.clusters.iter().map(|(name, result)| cluster((&**name, result))).collect();
        self.status = if self.unusable().is_empty() { Status::Complete } else { Status::Partial };
    }

    /// The clusters without endpoints.
    pub(super) fn unusable(&self) -> Vec<&str> {
        let unusable = self.clusters.iter().filter(|(_, cluster)| !cluster.is_usable());
        unusable.map(|(name, _)| name.as_str()).collect()
    }

    /// Whether only time has passed.
    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        self.ageless() == other.ageless()
    }

    fn ageless(&self) -> Self {
        let mut report = self.clone();
        let Self { listener, routes, clusters, watched, .. } = &mut report;
        let listed = watched.iter_mut().map(|watched| &mut watched.resource.origin);
        let route = routes.iter_mut().filter_map(|routes| routes.resource.as_mut()).map(|named| &mut named.origin);
        for origin in listener.iter_mut().map(|named| &mut named.origin).chain(route).chain(listed) {
            origin.age_ms = None;
        }
        for cluster in clusters.values_mut() {
            cluster.origin.age_ms = None;
            if let Some(endpoints) = &mut cluster.endpoints {
                let collections = endpoints.priorities.iter_mut().flatten().filter_map(|l| l.collection.as_mut());
                for named in endpoints.resource.iter_mut().chain(collections) {
                    named.origin.age_ms = None;
                }
            }
        }
        report
    }
}

impl ServerReport {
    fn new(status: &ServerStatus) -> Self {
        let state = match status.state {
            ServerState::Idle => "idle",
            ServerState::Connecting => "connecting",
            ServerState::Ready => "ready",
            ServerState::TransientFailure => "unreachable",
        };
        let error = status.last_error.as_ref().map(ToString::to_string);
        Self { uri: status.server.server_uri.clone(), state, error }
    }
}

// === impl resources ===

impl Named {
    fn new(view: &ConfigView, resource_type: ResourceType, name: &str) -> Self {
        let status = view.resource(resource_type, name);
        Self { name: name.to_owned(), origin: status.map(|status| Origin::new(view, status)).unwrap_or_default() }
    }
}

impl Watched {
    fn new(view: &ConfigView, status: &ResourceStatus) -> Self {
        let resource = Named { name: status.resource.name.to_string(), origin: Origin::new(view, status) };
        Self { kind: status.resource.resource_type.to_string(), resource }
    }
}

impl Origin {
    fn new(view: &ConfigView, status: &ResourceStatus) -> Self {
        let provenance = status.value.as_ref().map(|value| &value.provenance);
        let age = provenance.map(|from| view.age(from.at).as_millis());
        Self {
            state: match status.state {
                ResourceState::Requested => "requested",
                ResourceState::DoesNotExist => "does_not_exist",
                ResourceState::Acked => "acked",
                ResourceState::Nacked => "nacked",
                ResourceState::ReceivedError => "received_error",
                ResourceState::TimedOut => "timed_out",
            },
            version: provenance.map(|from| from.version.to_string()),
            age_ms: age.map(|age| u64::try_from(age).unwrap_or(u64::MAX)),
            server: provenance.map(|from| from.server.server_uri.clone()),
            error: status.error.as_ref().map(ToString::to_string),
        }
    }
}

impl RouteReport {
    fn new(route: &Route) -> Self {
        let (clusters, unsupported) = match &route.action {
            RouteAction::Forward(forward) => (targets(&forward.target), None),
            RouteAction::NonForwarding => (Vec::new(), Some("non_forwarding_action".to_owned())),
            RouteAction::Unsupported(action) => (Vec::new(), Some((*action).to_owned())),
        };
        Self { matches: matches(route), clusters, unsupported }
    }
}

fn targets(target: &ClusterTarget) -> Vec<Weighted> {
    match target {
        ClusterTarget::Cluster(name) => vec![Weighted { name: name.clone(), weight: 1 }],
        ClusterTarget::Weighted(choices) => {
            choices.iter().map(|choice| Weighted { name: choice.name.clone(), weight: choice.weight }).collect()
        }
    }
}

impl ClusterReport {
    fn new(view: &ConfigView, name: &str, result: &ClusterResult) -> Self {
        let origin = Named::new(view, ResourceType::Cluster, name).origin;
        let mut report = Self {
            origin,
            unusable: None,
            kind: None,
            lb_policy: None,
            dns: None,
            children: Vec::new(),
            endpoints: None,
        };
        match result {
            Ok(config) => report.describe(view, name, config),
            // The error of the resource itself stands at its origin.
            Err(error) => report.unusable = report.origin.error.is_none().then(|| error.to_string()),
        }
        report
    }

    fn describe(&mut self, view: &ConfigView, name: &str, config: &ClusterConfig) {
        let mut eds = None;
        match &config.cluster.kind {
            ClusterKind::Eds { service_name } => {
                self.kind = Some("EDS");
                let service = service_name.as_deref().unwrap_or(name);
                eds = Some(Named::new(view, ResourceType::Endpoints, service));
            }
            ClusterKind::LogicalDns { host, port } => {
                self.kind = Some("LOGICAL_DNS");
                self.dns = Some(format!("{host}:{port}"));
            }
            ClusterKind::Aggregate { clusters } => {
                self.kind = Some("aggregate");
                self.children = clusters.clone();
            }
        }
        if let ClusterChildren::Endpoints(endpoints) = &config.children {
            self.lb_policy = Some(config.cluster.lb_policy.to_string());
            let priorities = endpoints.as_ref().map_or_else(Vec::new, |endpoints| priorities(view, endpoints));
            if self.dns.is_some() && endpoints.is_none() {
                self.unusable = Some(config.note.to_string());
            }
            self.endpoints = Some(EndpointsReport { resource: eds, priorities });
        }
    }

    /// Whether it is an aggregate with leaves, or has endpoints.
    fn is_usable(&self) -> bool {
        let Some(endpoints) = &self.endpoints else { return self.kind.is_some() };
        endpoints.priorities.iter().flatten().any(|locality| !locality.endpoints.is_empty())
    }
}

fn priorities(view: &ConfigView, endpoints: &ResolvedEndpoints) -> Vec<Vec<LocalityReport>> {
    let sources = endpoints.endpoints.priorities.iter().map(|priority| &priority.localities);
    let joined = endpoints.priorities().zip(sources);
    joined
        .map(|(localities, sources)| {
            let report = |(locality, source): (JoinedLocality<'_>, &EndpointSource)| LocalityReport {
                name: [&*locality.locality.region, &*locality.locality.zone, &*locality.locality.sub_zone].join("/"),
                weight: locality.weight,
                collection: match source {
                    EndpointSource::Inline(_) => None,
                    EndpointSource::Collection(name) => Some(Named::new(view, ResourceType::EndpointCollection, name)),
                },
                endpoints: locality.endpoints.into_iter().map(EndpointReport::new).collect(),
            };
            localities.into_iter().zip(sources.iter().map(|locality| &locality.source)).map(report).collect()
        })
        .collect()
}

impl EndpointReport {
    fn new(endpoint: &Endpoint) -> Self {
        Self {
            addresses: endpoint.addresses.as_slice().iter().map(ToString::to_string).collect(),
            health: match endpoint.health {
                HealthStatus::Unknown => "unknown",
                HealthStatus::Healthy => "healthy",
                HealthStatus::Draining => "draining",
            },
            weight: endpoint.weight,
        }
    }
}

// === words ===

fn matches(route: &Route) -> String {
    let mut parts = vec![match &route.path {
        PathMatcher::Prefix { value, .. } if value.is_empty() => "any path".to_owned(),
        PathMatcher::Prefix { value, case_sensitive } => format!("prefix {value:?}{}", case(!case_sensitive)),
        PathMatcher::Exact { value, case_sensitive } => format!("path {value:?}{}", case(!case_sensitive)),
        PathMatcher::Regex(regex) => format!("regex {:?}", regex.pattern()),
    }];
    parts.extend(route.headers.iter().map(header));
    parts.extend(route.fraction.map(|millionths| format!("{} % of the RPCs", f64::from(millionths) / 10_000.0)));
    parts.join(" and ")
}

fn header(matcher: &HeaderMatcher) -> String {
    let text = match &matcher.kind {
        HeaderMatch::String(StringMatcher::Exact { value, ignore_case }) => format!("{value:?}{}", case(*ignore_case)),
        HeaderMatch::String(StringMatcher::Prefix { value, ignore_case }) => {
            format!("prefix {value:?}{}", case(*ignore_case))
        }
        HeaderMatch::String(StringMatcher::Suffix { value, ignore_case }) => {
            format!("suffix {value:?}{}", case(*ignore_case))
        }
        HeaderMatch::String(StringMatcher::Contains { value, ignore_case }) => {
            format!("with {value:?}{}", case(*ignore_case))
        }
        HeaderMatch::String(StringMatcher::Regex(regex)) => format!("regex {:?}", regex.pattern()),
        HeaderMatch::Range { start, end } => format!("in {start}..{end}"),
        HeaderMatch::Present(true) => "present".to_owned(),
        HeaderMatch::Present(false) => "absent".to_owned(),
    };
    format!("header {} {}{text}", matcher.name, if matcher.invert { "not " } else { "" })
}

fn case(ignored: bool) -> &'static str {
    if ignored { " in any case" } else { "" }
}
