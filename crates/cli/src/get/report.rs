//! A configuration in the words of the report: the same for people and for programs.

use std::{collections::BTreeMap, time::Instant};

use mainstay::{
    ResourceType,
    view::{
        Cluster, ClusterError, ClusterKind, ConfigView, DropCategory, Endpoint, Endpoints, HealthStatus,
        LocalityEndpoints, ResourceState, ResourceStatus, RetryPolicy, Route, RouteAction, ServerState, ServerStatus,
        TlsContext, XdsConfig,
    },
};
use serde::Serialize;

use super::left_out::left_out;

/// All there is to say about a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) target: String,
    pub(crate) status: Status,
    /// Why there is no configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) node: String,
    /// Whether resources of one authority are from more than one server.
    pub(crate) mixed_sources: bool,
    pub(crate) servers: Vec<ServerReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listener: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) routes: Option<Routes>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) clusters: BTreeMap<String, ClusterReport>,
    /// Every watched resource, if there is no configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) watched: Vec<Watched>,
}

/// How much of the configuration can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// Every cluster has endpoints.
    Complete,
    /// Some have none.
    Partial,
    /// There is no configuration.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ServerReport {
    pub(crate) uri: String,
    pub(crate) state: &'static str,
    /// Whether the stream to it is of the incremental variant.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) delta: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// Where a resource stands and where it came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Facts {
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Named {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) facts: Facts,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Watched {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(flatten)]
    pub(crate) resource: Named,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Routes {
    /// The RDS resource; absent if the routes are in the listener.
    #[serde(flatten)]
    pub(crate) resource: Option<Named>,
    pub(crate) virtual_host: String,
    pub(crate) routes: Vec<RouteReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RouteReport {
    #[serde(rename = "match")]
    pub(crate) matches: String,
    /// Where its RPCs go, with the share of each; empty if they fail.
    pub(crate) clusters: Vec<Weighted>,
    /// Why they fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsupported: Option<String>,
    /// The longest time that they may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    /// When they are sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<String>,
    /// What filters but the router do to them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) filters: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Weighted {
    pub(crate) name: String,
    pub(crate) weight: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClusterReport {
    #[serde(flatten)]
    pub(crate) facts: Facts,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unusable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lb_policy: Option<String>,
    /// The name that DNS is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dns: Option<String>,
    /// How its endpoints are connected to by channels with xDS credentials; absent if it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<TlsReport>,
    /// The circuit breaker, if it is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_requests: Option<u32>,
    /// What outlier detection does, if it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outlier_detection: Option<String>,
    /// Shares of the RPCs that are dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) drops: Vec<String>,
    /// Localities and endpoints of the resource that are not used, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) left_out: Vec<String>,
    /// The clusters of an aggregate, the most preferred first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) children: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints: Option<EndpointsReport>,
}

/// The TLS context of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TlsReport {
    /// The certificate provider instance with the roots; absent for those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) roots: Option<String>,
    /// The one with our certificate; absent if we present none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<String>,
    /// The names that endpoints may have; any, if there are none.
    pub(crate) subject_alt_names: Vec<String>,
    /// The server name that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sni: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EndpointsReport {
    /// The EDS resource; absent for DNS.
    #[serde(flatten)]
    pub(crate) resource: Option<Named>,
    pub(crate) priorities: Vec<Vec<LocalityReport>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LocalityReport {
    /// region/zone/sub_zone
    pub(crate) name: String,
    pub(crate) weight: u32,
    /// The list collection that the endpoints are from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) collection: Option<Named>,
    pub(crate) endpoints: Vec<EndpointReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EndpointReport {
    pub(crate) addresses: Vec<String>,
    pub(crate) health: &'static str,
    pub(crate) weight: u32,
    /// The state of the connection and its calls, if channelz tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<String>,
}

// === impl Report ===

impl Report {
    pub(crate) fn new(view: &ConfigView) -> Self {
        let mut report = Self {
            target: view.target.clone(),
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
            resource: config.route_config.as_ref().map(|name| Named::new(view, ResourceType::RouteConfig, name)),
            virtual_host: config.virtual_host.clone(),
            routes: config.routes.iter().map(|route| RouteReport::new(route, config)).collect(),
        });
        let clusters = config.clusters.iter();
        self.clusters =
            clusters.map(|(name, cluster)| (name.clone(), ClusterReport::new(view, name, cluster))).collect();
        self.status = if self.unusable().is_empty() { Status::Complete } else { Status::Partial };
    }

    /// The clusters without endpoints.
    pub(crate) fn unusable(&self) -> Vec<&str> {
        let unusable = self.clusters.iter().filter(|(_, cluster)| !cluster.is_usable());
        unusable.map(|(name, _)| name.as_str()).collect()
    }

    /// Whether only time has passed.
    pub(crate) fn says_the_same_as(&self, other: &Self) -> bool {
        self.ageless() == other.ageless()
    }

    /// All endpoints of all clusters.
    pub(crate) fn endpoints_mut(&mut self) -> impl Iterator<Item = &mut EndpointReport> {
        let priorities = self.clusters.values_mut().filter_map(|cluster| cluster.endpoints.as_mut());
        priorities
            .flat_map(|endpoints| endpoints.priorities.iter_mut().flatten())
            .flat_map(|locality| &mut locality.endpoints)
    }

    /// Without what changes all the time: ages, and what is counted.
    pub(crate) fn settled(&self) -> Self {
        let mut report = self.ageless();
        for endpoint in report.endpoints_mut() {
            let state = endpoint.connection.take();
            endpoint.connection = state.and_then(|state| state.rsplit_once(", ").map(|(state, _)| state.to_owned()));
        }
        report
    }

    fn ageless(&self) -> Self {
        let mut report = self.clone();
        let Self { listener, routes, clusters, watched, .. } = &mut report;
        let listed = watched.iter_mut().map(|watched| &mut watched.resource.facts);
        let route = routes.iter_mut().filter_map(|routes| routes.resource.as_mut()).map(|named| &mut named.facts);
        for facts in listener.iter_mut().map(|named| &mut named.facts).chain(route).chain(listed) {
            facts.age_ms = None;
        }
        for cluster in clusters.values_mut() {
            cluster.facts.age_ms = None;
            if let Some(endpoints) = &mut cluster.endpoints {
                let collections = endpoints.priorities.iter_mut().flatten().filter_map(|l| l.collection.as_mut());
                for named in endpoints.resource.iter_mut().chain(collections) {
                    named.facts.age_ms = None;
                }
            }
        }
        report
    }
}

impl ServerReport {
    pub(crate) fn new(status: &ServerStatus) -> Self {
        let state = match status.state {
            ServerState::Idle => "idle",
            ServerState::Connecting => "connecting",
            ServerState::Ready => "ready",
            ServerState::TransientFailure => "unreachable",
            _ => "unknown",
        };
        Self { uri: status.server.clone(), state, delta: status.delta, error: status.last_error.clone() }
    }

    /// What a process of ours tells in the metadata of its node.
    pub(crate) fn told(uri: &str, told: &str) -> Self {
        let (state, rest) = told.split_once([':', ',']).unwrap_or((told, ""));
        let rest = rest.trim();
        let state = match state {
            "IDLE" => "idle",
            "CONNECTING" => "connecting",
            "READY" => "ready",
            "TRANSIENT_FAILURE" => "unreachable",
            _ => "unknown",
        };
        let error = (!rest.is_empty() && rest != "delta").then(|| rest.to_owned());
        Self { uri: uri.to_owned(), state, delta: rest == "delta", error }
    }
}

// === impl resources ===

impl Named {
    fn new(view: &ConfigView, resource_type: ResourceType, name: &str) -> Self {
        let status = view.resource(resource_type, name);
        Self {
            name: name.to_owned(),
            facts: status.map(|status| Facts::new(view.taken_at, status)).unwrap_or_default(),
        }
    }
}

impl Watched {
    fn new(view: &ConfigView, status: &ResourceStatus) -> Self {
        let resource = Named { name: status.resource.name.clone(), facts: Facts::new(view.taken_at, status) };
        Self { kind: status.resource.resource_type.to_string(), resource }
    }
}

impl Facts {
    pub(crate) fn new(taken_at: Instant, status: &ResourceStatus) -> Self {
        let value = status.value.as_ref();
        let age = value.map(|value| taken_at.duration_since(value.received_at).as_millis());
        Self {
            state: match status.state {
                ResourceState::Requested => "requested",
                ResourceState::DoesNotExist => "does_not_exist",
                ResourceState::Acked => "acked",
                ResourceState::Nacked => "nacked",
                ResourceState::ReceivedError => "received_error",
                ResourceState::TimedOut => "timed_out",
                _ => "unknown",
            },
            version: value.map(|value| value.version.clone()),
            age_ms: age.map(|age| u64::try_from(age).unwrap_or(u64::MAX)),
            server: value.map(|value| value.server.clone()),
            error: status.error.as_ref().map(ToString::to_string),
        }
    }
}

impl RouteReport {
    fn new(route: &Route, config: &XdsConfig) -> Self {
        let (mut timeout, mut retry) = (None, None);
        let (clusters, unsupported) = match &route.action {
            RouteAction::Forward(forward) => {
                timeout = forward.max_stream_duration.or(config.max_stream_duration).filter(|limit| !limit.is_zero());
                retry = forward.retry.as_ref().map(retries);
                let clusters = forward.clusters.iter();
                (clusters.map(|to| Weighted { name: to.name.clone(), weight: to.weight }).collect(), None)
            }
            RouteAction::NonForwarding => (Vec::new(), Some("non_forwarding_action".to_owned())),
            RouteAction::Unsupported { action, .. } => (Vec::new(), Some(action.clone())),
            other => (Vec::new(), Some(format!("{other:?}"))),
        };
        Self {
            matches: route.matches.to_string(),
            clusters,
            unsupported,
            timeout_ms: timeout.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            retry,
            filters: Vec::new(),
        }
    }
}

impl ClusterReport {
    fn new(view: &ConfigView, name: &str, result: &Result<Cluster, ClusterError>) -> Self {
        let facts = Named::new(view, ResourceType::Cluster, name).facts;
        let mut report = Self {
            facts,
            unusable: None,
            kind: None,
            lb_policy: None,
            dns: None,
            tls: None,
            max_requests: None,
            outlier_detection: None,
            drops: Vec::new(),
            left_out: Vec::new(),
            children: Vec::new(),
            endpoints: None,
        };
        match result {
            Ok(cluster) => report.describe(view, cluster),
            // The error of the resource itself stands among its facts.
            Err(error) => report.unusable = report.facts.error.is_none().then(|| error.to_string()),
        }
        report
    }

    fn describe(&mut self, view: &ConfigView, cluster: &Cluster) {
        let mut eds = None;
        match &cluster.kind {
            ClusterKind::Eds { resource_name, .. } => {
                self.kind = Some("EDS");
                eds = Some(Named::new(view, ResourceType::Endpoints, resource_name));
            }
            ClusterKind::LogicalDns { host, port, .. } => {
                self.kind = Some("LOGICAL_DNS");
                self.dns = Some(format!("{host}:{port}"));
            }
            ClusterKind::Aggregate { clusters, .. } => {
                self.kind = Some("aggregate");
                self.children = clusters.clone();
                return;
            }
            _ => return,
        }
        self.lb_policy = Some(cluster.lb_policy.clone());
        self.tls = cluster.tls.as_ref().map(TlsReport::new);
        self.max_requests = Some(cluster.max_requests).filter(|limit| *limit != DEFAULT_MAX_REQUESTS);
        self.outlier_detection = cluster.outlier_detection.then(|| "on".to_owned());
        let drops = cluster.endpoints.iter().flat_map(|endpoints| &endpoints.drops);
        let drop = |drop: &DropCategory| format!("{} {} %", drop.category, f64::from(drop.per_million) / 10_000.0);
        self.drops = drops.filter(|drop| drop.per_million > 0).map(drop).collect();
        if let Some(value) =
            eds.as_ref().and_then(|eds| view.resource(ResourceType::Endpoints, &eds.name)?.value.as_ref())
        {
            self.left_out = left_out(&value.encoded);
        }
        let priorities = cluster.endpoints.as_ref().map_or_else(Vec::new, |endpoints| priorities(view, endpoints));
        if self.dns.is_some() && cluster.endpoints.is_none() {
            self.unusable = Some(cluster.note.clone());
        }
        self.endpoints = Some(EndpointsReport { resource: eds, priorities });
    }

    /// Whether it is an aggregate with leaves, or has endpoints.
    fn is_usable(&self) -> bool {
        let Some(endpoints) = &self.endpoints else { return self.kind.is_some() };
        endpoints.priorities.iter().flatten().any(|locality| !locality.endpoints.is_empty())
    }
}

impl TlsReport {
    fn new(tls: &TlsContext) -> Self {
        let sni = tls.sni.as_deref().map(|name| format!("{name:?}"));
        let sni = match (tls.auto_host_sni, sni) {
            (false, sni) => sni,
            (true, None) => Some("that of the endpoint".to_owned()),
            (true, Some(sni)) => Some(format!("that of the endpoint, or {sni}")),
        };
        let subject_alt_names = match (tls.auto_sni_san_validation, &sni) {
            (true, Some(_)) => vec!["the server name".to_owned()],
            _ => tls.subject_alt_names.clone(),
        };
        Self { roots: tls.roots.clone(), identity: tls.identity.clone(), subject_alt_names, sni }
    }
}

fn retries(retry: &RetryPolicy) -> String {
    let codes: Vec<String> = retry.retry_on.iter().map(|code| format!("{code:?}")).collect();
    let (base, max) = (retry.base_interval, retry.max_interval);
    format!("{} times after {}, {base:?} to {max:?} apart", retry.num_retries, codes.join(", "))
}

fn priorities(view: &ConfigView, endpoints: &Endpoints) -> Vec<Vec<LocalityReport>> {
    let report = |from: &LocalityEndpoints| LocalityReport {
        name: from.locality.to_string(),
        weight: from.weight,
        collection: from.collection.as_ref().map(|name| Named::new(view, collection_type(name), name)),
        endpoints: from.endpoints.iter().map(EndpointReport::new).collect(),
    };
    endpoints.priorities.iter().map(|priority| priority.localities.iter().map(report).collect()).collect()
}

/// Whether the name of a collection is that of a glob: then its path ends in `/*`.
fn collection_type(name: &str) -> ResourceType {
    let path = name.split(['?', '#']).next().unwrap_or(name);
    if path.ends_with("/*") { ResourceType::EndpointGlob } else { ResourceType::EndpointCollection }
}

impl EndpointReport {
    fn new(endpoint: &Endpoint) -> Self {
        Self {
            addresses: endpoint.addresses.iter().map(ToString::to_string).collect(),
            health: match endpoint.health {
                HealthStatus::Healthy => "healthy",
                HealthStatus::Draining => "draining",
                _ => "unknown",
            },
            weight: endpoint.weight,
            connection: None,
        }
    }
}

/// What circuit breakers allow that are not set (A32).
const DEFAULT_MAX_REQUESTS: u32 = 1024;
