//! Cluster (CDS), `docs/rules/04` section 4.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3 as pb;
use envoy_types::pb::envoy::config::core::v3::{HealthStatus, RoutingPriority, TypedExtensionConfig};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig as AggregateConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::google::protobuf::{Duration as PbDuration, UInt32Value};
use pb::circuit_breakers::Thresholds;
use pb::cluster::{ClusterDiscoveryType, CommonLbConfig, CustomClusterType, DiscoveryType};

use super::lb_policy::LbPolicy;
use super::tls::{HttpConnect, Socket, UpstreamTls};
use super::{FromWire, ParseContext, fields};
use crate::bootstrap::ServerConfig;
use crate::invalid::{Faults, Invalid};

/// A cluster: where its endpoints come from and how load is spread over them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// Where the endpoints come from.
    pub kind: ClusterKind,
    /// How load is spread. Not used for aggregates.
    pub lb_policy: LbPolicy,
    /// Circuit breaker: RPCs at one time.
    pub max_requests: u32,
    /// Outlier detection; absent means off.
    pub outlier_detection: Option<OutlierDetection>,
    /// TLS to the endpoints, for channels with xDS credentials.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Connections to the endpoints go through a proxy (A86).
    pub http_connect: Option<HttpConnect>,
    /// Where load is reported: the server that sent this resource, or nowhere.
    pub lrs_server: Option<Arc<ServerConfig>>,
    /// ORCA metrics forwarded to LRS, as written.
    pub lrs_report_endpoint_metrics: Vec<String>,
    /// Health states that session affinity may still use.
    pub override_host_statuses: OverrideHostStatuses,
    /// How long session affinity keeps an unused connection.
    pub idle_timeout: Duration,
}

/// Where the endpoints of a cluster come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterKind {
    /// An EDS resource; its name is `service_name`, else the cluster's.
    Eds {
        /// `eds_cluster_config.service_name` if not empty.
        service_name: Option<String>,
    },
    /// A DNS name.
    LogicalDns {
        /// Host name or IP literal.
        host: String,
        /// Port of every address.
        port: u16,
    },
    /// Other clusters in order of preference; never empty.
    Aggregate {
        /// Their names.
        clusters: Vec<String>,
    },
}

/// `outlier_detection` with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutlierDetection {
    /// Time between two evaluations.
    pub interval: Duration,
    /// First ejection time.
    pub base_ejection_time: Duration,
    /// Largest ejection time.
    pub max_ejection_time: Duration,
    /// Largest share of ejected endpoints, percent.
    pub max_ejection_percent: u32,
    /// Ejection by success rate.
    pub success_rate: Option<SuccessRateEjection>,
    /// Ejection by failure percentage.
    pub failure_percentage: Option<FailurePercentageEjection>,
}

/// Ejection of endpoints whose success rate is far below the mean.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SuccessRateEjection {
    /// Thousandths of a standard deviation below the mean.
    pub stdev_factor: u32,
    /// Chance that a detected outlier is ejected, percent.
    pub enforcement: u32,
    /// Endpoints with enough requests that are needed.
    pub minimum_hosts: u32,
    /// Requests that make an endpoint count.
    pub request_volume: u32,
}

/// Ejection of endpoints that fail more than a share of their requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FailurePercentageEjection {
    /// Share of failures, percent.
    pub threshold: u32,
    /// Chance that a detected outlier is ejected, percent.
    pub enforcement: u32,
    /// Endpoints with enough requests that are needed.
    pub minimum_hosts: u32,
    /// Requests that make an endpoint count.
    pub request_volume: u32,
}

/// A set of endpoint health states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OverrideHostStatuses {
    /// UNKNOWN is in the set.
    pub unknown: bool,
    /// HEALTHY is in the set.
    pub healthy: bool,
    /// DRAINING is in the set.
    pub draining: bool,
}

impl FromWire for Cluster {
    type Message = pb::Cluster;

    fn name(message: &mut Self::Message) -> Option<String> {
        Some(std::mem::take(&mut message.name))
    }

    fn from_message(message: &Self::Message, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        Self::parse(message, cx)
    }
}

impl Cluster {
    /// How many clusters an aggregate may name. Each of them is a subscription.
    pub const MAX_AGGREGATE_CLUSTERS: usize = 1_000;

    /// Checks a Cluster.
    ///
    /// Fields that are not mentioned here are ignored, whatever they hold.
    pub fn parse(pb: &pb::Cluster, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        let mut faults = Faults::new();
        let kind = ClusterKind::parse(pb, &mut faults);
        let lb_policy = match kind {
            // Only the leaves' policies count, so that of the aggregate may be anything, such as the CLUSTER_PROVIDED
            // that Envoy demands there (A75).
            Some(ClusterKind::Aggregate { .. }) => Some(LbPolicy::default_for_cluster()),
            _ => LbPolicy::parse(pb, &mut faults),
        };
        let max_requests = faults.field("circuit_breakers", |f| max_requests(pb.circuit_breakers.as_ref(), f));
        let outlier_detection = pb.outlier_detection.as_ref().map(|outlier_detection| {
            faults.field("outlier_detection", |f| OutlierDetection::parse(outlier_detection, f))
        });
        let socket = pb.transport_socket.as_ref();
        let socket = socket.and_then(|socket| faults.field("transport_socket", |f| Socket::parse(socket, cx, f)));
        let Socket { tls, mut http_connect } = socket.unwrap_or_default();
        if let (Some(ClusterKind::LogicalDns { .. }), Some(http_connect)) = (&kind, &mut http_connect) {
            let own = faults.field("load_assignment.endpoints[0]", |f| dns_proxy(pb.load_assignment.as_ref()?, f));
            http_connect.default = own.or(http_connect.default);
        }
        let lrs_server = pb.lrs_server.as_ref().map(|source| {
            faults.field("lrs_server", |f| fields::self_config_source(Some(source), f));
            cx.server.clone()
        });
        let idle_timeout = faults.field("upstream_config", |f| idle_timeout(pb.upstream_config.as_ref(), f));
        if let Some(metadata) = &pb.metadata {
            faults.field("metadata", |f| fields::parse_metadata(metadata, f));
        }
        let parsed = kind.zip(lb_policy).map(|(kind, lb_policy)| Self {
            kind,
            lb_policy,
            max_requests,
            outlier_detection,
            tls: tls.map(Arc::new),
            http_connect,
            lrs_server,
            lrs_report_endpoint_metrics: reported_metrics(&pb.lrs_report_endpoint_metrics),
            override_host_statuses: OverrideHostStatuses::parse(pb.common_lb_config.as_ref()),
            idle_timeout,
        });
        faults.finish(parsed).map(|parsed| parsed.expect("a part is missing only after a fault"))
    }

    /// The name of the EDS resource of the cluster called `cluster_name`; `None` if it has none.
    pub fn eds_resource_name<'a>(&'a self, cluster_name: &'a str) -> Option<&'a str> {
        match &self.kind {
            ClusterKind::Eds { service_name } => Some(service_name.as_deref().unwrap_or(cluster_name)),
            ClusterKind::LogicalDns { .. } | ClusterKind::Aggregate { .. } => None,
        }
    }
}

impl ClusterKind {
    /// `faults` is at the Cluster.
    fn parse(pb: &pb::Cluster, faults: &mut Faults) -> Option<Self> {
        let discovery_type = match &pb.cluster_discovery_type {
            Some(ClusterDiscoveryType::ClusterType(custom)) => {
                return faults.field("cluster_type.typed_config", |f| Self::parse_custom(custom, f));
            }
            Some(ClusterDiscoveryType::Type(discovery_type)) => *discovery_type,
            None => DiscoveryType::Static as i32,
        };
        match DiscoveryType::try_from(discovery_type) {
            Ok(DiscoveryType::Eds) => faults.field("eds_cluster_config", |f| Self::parse_eds(pb, f)),
            Ok(DiscoveryType::LogicalDns) => faults.field("load_assignment", |f| Self::parse_dns(pb, f)),
            other => {
                let found = other.map_or_else(|_| discovery_type.to_string(), |other| other.as_str_name().to_owned());
                faults.field("type", |f| {
                    f.add(format!("{found} is not supported: expected EDS, LOGICAL_DNS or an aggregate cluster"));
                });
                None
            }
        }
    }

    /// `faults` is at `eds_cluster_config`.
    fn parse_eds(pb: &pb::Cluster, faults: &mut Faults) -> Option<Self> {
        let Some(config) = &pb.eds_cluster_config else {
            faults.add("must be set");
            return None;
        };
        faults.field("eds_config", |f| fields::ads_config_source(config.eds_config.as_ref(), f));
        // The name of a cluster says its type, so it cannot be the name of its endpoints too (A47).
        if config.service_name.is_empty() && pb.name.starts_with("xdstp:") {
            faults.field("service_name", |f| f.add("must be set, because the name of the cluster starts with xdstp:"));
        }
        Some(Self::Eds { service_name: (!config.service_name.is_empty()).then(|| config.service_name.clone()) })
    }

    /// `faults` is at `load_assignment`.
    fn parse_dns(pb: &pb::Cluster, faults: &mut Faults) -> Option<Self> {
        let Some(assignment) = &pb.load_assignment else {
            faults.add("must be set");
            return None;
        };
        faults.field("endpoints", |f| {
            let locality = only_element(&assignment.endpoints, f)?;
            f.index(0, |f| {
                f.field("lb_endpoints", |f| {
                    let endpoint = only_element(&locality.lb_endpoints, f)?;
                    f.index(0, |f| f.field("endpoint.address", |f| Self::parse_dns_address(endpoint, f)))
                })
            })
        })
    }

    /// `faults` is at the Address of the endpoint.
    fn parse_dns_address(pb: &LbEndpoint, faults: &mut Faults) -> Option<Self> {
        let address = match &pb.host_identifier {
            Some(HostIdentifier::Endpoint(endpoint)) => endpoint.address.as_ref(),
            _ => None,
        };
        let socket = fields::socket_address(address, faults)?;
        faults.field("socket_address", |f| {
            if socket.address.is_empty() {
                f.field("address", |f| f.add("must not be empty"));
            }
            if !socket.resolver_name.is_empty() {
                f.field("resolver_name", |f| f.add("not supported"));
            }
        });
        let port = fields::port(socket, faults)?;
        Some(Self::LogicalDns { host: socket.address.clone(), port })
    }

    /// `faults` is at the `typed_config`.
    fn parse_custom(pb: &CustomClusterType, faults: &mut Faults) -> Option<Self> {
        let Some(any) = &pb.typed_config else {
            faults.add("must be set");
            return None;
        };
        let AggregateConfig { clusters } = fields::unpack(any, faults)?;
        faults.field("clusters", |f| {
            if clusters.is_empty() {
                f.add("must not be empty");
            }
            if clusters.len() > Cluster::MAX_AGGREGATE_CLUSTERS {
                f.add(format!("has {} entries: at most {}", clusters.len(), Cluster::MAX_AGGREGATE_CLUSTERS));
            }
            for (i, _) in clusters.iter().enumerate().filter(|(_, name)| name.is_empty()) {
                f.index(i, |f| f.add("must not be empty"));
            }
        });
        Some(Self::Aggregate { clusters })
    }
}

/// The proxy that the only endpoint of a LOGICAL_DNS cluster names, or else its locality (A86); `faults` is at the
/// locality.
fn dns_proxy(pb: &ClusterLoadAssignment, faults: &mut Faults) -> Option<SocketAddr> {
    let locality = pb.endpoints.first()?;
    let endpoint = locality.lb_endpoints.first().and_then(|endpoint| endpoint.metadata.as_ref());
    let own = endpoint
        .and_then(|metadata| faults.field("lb_endpoints[0].metadata", |f| fields::parse_metadata(metadata, f).proxy));
    let metadata = locality.metadata.as_ref();
    own.or_else(|| {
        metadata.and_then(|metadata| faults.field("metadata", |f| fields::parse_metadata(metadata, f).proxy))
    })
}

impl OutlierDetection {
    /// `faults` is at the OutlierDetection.
    fn parse(pb: &pb::OutlierDetection, faults: &mut Faults) -> Self {
        let base_ejection_time = duration_or("base_ejection_time", pb.base_ejection_time, 30, faults);
        Self {
            interval: duration_or("interval", pb.interval, 10, faults),
            base_ejection_time,
            max_ejection_time: pb
                .max_ejection_time
                .and_then(|max| faults.field("max_ejection_time", |f| fields::duration(&max, f)))
                .unwrap_or_else(|| base_ejection_time.max(Duration::from_secs(300))),
            max_ejection_percent: percent_or("max_ejection_percent", pb.max_ejection_percent, 10, faults),
            success_rate: SuccessRateEjection::parse(pb, faults),
            failure_percentage: FailurePercentageEjection::parse(pb, faults),
        }
    }
}

impl SuccessRateEjection {
    /// Unset means on, at 100 %: only an explicit 0 turns it off.
    fn parse(pb: &pb::OutlierDetection, faults: &mut Faults) -> Option<Self> {
        let enforcement = percent_or("enforcing_success_rate", pb.enforcing_success_rate, 100, faults);
        (enforcement > 0).then(|| Self {
            stdev_factor: value_or(pb.success_rate_stdev_factor, 1900),
            enforcement,
            minimum_hosts: value_or(pb.success_rate_minimum_hosts, 5),
            request_volume: value_or(pb.success_rate_request_volume, 100),
        })
    }
}

impl FailurePercentageEjection {
    /// Unset means off.
    fn parse(pb: &pb::OutlierDetection, faults: &mut Faults) -> Option<Self> {
        let enforcement = percent_or("enforcing_failure_percentage", pb.enforcing_failure_percentage, 0, faults);
        let threshold = percent_or("failure_percentage_threshold", pb.failure_percentage_threshold, 85, faults);
        (enforcement > 0).then(|| Self {
            threshold,
            enforcement,
            minimum_hosts: value_or(pb.failure_percentage_minimum_hosts, 5),
            request_volume: value_or(pb.failure_percentage_request_volume, 50),
        })
    }
}

impl OverrideHostStatuses {
    fn parse(pb: Option<&CommonLbConfig>) -> Self {
        match pb.and_then(|config| config.override_host_status.as_ref()) {
            Some(set) => {
                let has = |status| set.statuses.contains(&(status as i32));
                Self {
                    unknown: has(HealthStatus::Unknown),
                    healthy: has(HealthStatus::Healthy),
                    draining: has(HealthStatus::Draining),
                }
            }
            None => Self { unknown: true, healthy: true, draining: false },
        }
    }
}

/// R-71, and the check of R-72. `faults` is at the CircuitBreakers.
fn max_requests(pb: Option<&pb::CircuitBreakers>, faults: &mut Faults) -> u32 {
    let is_default = |threshold: &&Thresholds| threshold.priority == RoutingPriority::Default as i32;
    let Some(pb) = pb else { return DEFAULT_MAX_REQUESTS };
    let per_host = pb.per_host_thresholds.iter().enumerate();
    if let Some((i, per_host)) = per_host.clone().find(|(_, threshold)| is_default(threshold))
        && per_host.max_connections.is_some_and(|max| max.value == 0)
    {
        faults.field("per_host_thresholds", |f| {
            f.index(i, |f| f.field("max_connections", |f| f.add("must not be 0")));
        });
    }
    let threshold = pb.thresholds.iter().find(is_default);
    value_or(threshold.and_then(|threshold| threshold.max_requests), DEFAULT_MAX_REQUESTS)
}

/// `faults` is at `upstream_config`.
fn idle_timeout(pb: Option<&TypedExtensionConfig>, faults: &mut Faults) -> Duration {
    let timeout = pb.and_then(|pb| {
        faults.field("typed_config", |f| {
            let Some(any) = &pb.typed_config else {
                f.add("must be set");
                return None;
            };
            let options: HttpProtocolOptions = fields::unpack(any, f)?;
            let timeout = options.common_http_protocol_options?.idle_timeout?;
            f.field("common_http_protocol_options.idle_timeout", |f| fields::duration(&timeout, f))
        })
    });
    timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT)
}

/// The metrics that LRS can carry (C-80); others are ignored.
fn reported_metrics(pb: &[String]) -> Vec<String> {
    let known = |metric: &&String| {
        matches!(metric.as_str(), "cpu_utilization" | "mem_utilization" | "application_utilization")
            || metric.strip_prefix("named_metrics.").is_some_and(|key| !key.is_empty())
    };
    pb.iter().filter(known).cloned().collect()
}

/// The only element of a list that must have exactly one; `faults` is at the list.
fn only_element<'a, T>(list: &'a [T], faults: &mut Faults) -> Option<&'a T> {
    match list {
        [element] => Some(element),
        _ => {
            faults.add(format!("has {} entries: expected exactly one", list.len()));
            None
        }
    }
}

fn value_or(pb: Option<UInt32Value>, default: u32) -> u32 {
    pb.map_or(default, |value| value.value)
}

fn percent_or(field: &'static str, pb: Option<UInt32Value>, default: u32, faults: &mut Faults) -> u32 {
    let percent = value_or(pb, default);
    if percent > 100 {
        faults.field(field, |f| f.add(format!("{percent} is not a percentage: expected at most 100")));
    }
    percent
}

fn duration_or(field: &'static str, pb: Option<PbDuration>, default_secs: u64, faults: &mut Faults) -> Duration {
    pb.and_then(|duration| faults.field(field, |f| fields::duration(&duration, f)))
        .unwrap_or(Duration::from_secs(default_secs))
}

///
const DEFAULT_MAX_REQUESTS: u32 = 1024;

///
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

#[cfg(test)]
pub(super) mod tests;
