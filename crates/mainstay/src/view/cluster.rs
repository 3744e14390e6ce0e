//! Clusters and their endpoints.

use std::net::SocketAddr;

use mainstay_xds::deps;
use mainstay_xds::resource::{cluster, endpoint, tls};

use super::route::HeaderMatchKind;
use crate::names::Locality;

/// A cluster that RPCs can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// Where the endpoints come from.
    pub kind: ClusterKind,
    /// The load-balancing policy, by the names of gRPC's registry. That of an aggregate is not used: each leaf has its
    /// own.
    pub lb_policy: String,
    /// How many RPCs may be in flight (gRFC A32).
    pub max_requests: u32,
    /// Whether outlier detection is on (gRFC A50).
    pub outlier_detection: bool,
    /// How channels with [`Credentials::xds`](crate::Credentials::xds) secure connections to the endpoints; `None` if the
    /// cluster does not say (gRFC A29).
    pub tls: Option<TlsContext>,
    /// The endpoints. `None` for an aggregate, and if they are not available: the note says why.
    pub endpoints: Option<Endpoints>,
    /// What is added to the errors of RPCs for this cluster.
    pub note: String,
}

/// Where the endpoints of a cluster come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterKind {
    /// From a ClusterLoadAssignment.
    #[non_exhaustive]
    Eds {
        /// The name of the resource.
        resource_name: String,
    },
    /// From DNS (gRFC A37).
    #[non_exhaustive]
    LogicalDns {
        /// The name that is looked up, or an IP address.
        host: String,
        /// The port of every address.
        port: u16,
    },
    /// From other clusters (gRFC A37).
    #[non_exhaustive]
    Aggregate {
        /// The clusters that it names, in order of preference.
        clusters: Vec<String>,
        /// The clusters with endpoints that they come down to, in order of preference.
        leaves: Vec<String>,
    },
}

/// How connections to the endpoints of a cluster are secured (gRFC A29, A82, A101).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsContext {
    /// The certificate provider instance whose roots vouch for the endpoints; `None` for the roots of the system.
    pub roots: Option<String>,
    /// The certificate provider instance of our own certificate, for endpoints that ask for one.
    pub identity: Option<String>,
    /// The names that an endpoint may have, in words, such as `"shop.example.com"` or `prefix "spiffe://example.com/"`; any
    /// if there are none.
    pub subject_alt_names: Vec<String>,
    /// The server name to ask for.
    pub sni: Option<String>,
    /// Whether the hostname of the endpoint is asked for, if it has one.
    pub auto_host_sni: bool,
    /// Whether the endpoint must have the server name that was asked for, in place of `subject_alt_names`.
    pub auto_sni_san_validation: bool,
}

/// The endpoints of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoints {
    /// The priorities, the most preferred first.
    pub priorities: Vec<Priority>,
    /// Shares of the RPCs that are dropped.
    pub drops: Vec<DropCategory>,
}

/// The localities of one priority.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Priority {
    /// The localities, in the order of the resource.
    pub localities: Vec<LocalityEndpoints>,
}

/// The endpoints of one locality.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalityEndpoints {
    /// The locality.
    pub locality: Locality,
    /// Its weight in its priority; never zero.
    pub weight: u32,
    /// The LbEndpointCollection, or the glob collection, that the endpoints are from; `None` if they are part of the ClusterLoadAssignment or
    /// from DNS.
    pub collection: Option<String>,
    /// The endpoints, in the order of the resource; none if the locality is unreachable.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint: a backend with one or more addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// The addresses in order of preference; at least one.
    pub addresses: Vec<SocketAddr>,
    /// Its weight in its locality; never zero.
    pub weight: u32,
    /// Its health.
    pub health: HealthStatus,
    /// Its hostname, if it has one (gRFC A81).
    pub hostname: Option<String>,
}

/// The health of an endpoint that may be used. Others are not part of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HealthStatus {
    /// Nothing is known; the endpoint is used.
    Unknown,
    /// The endpoint is healthy.
    Healthy,
    /// The endpoint is used only by sessions that it has already (gRFC A55).
    Draining,
}

/// A share of the RPCs that is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropCategory {
    /// The name of the category.
    pub category: String,
    /// The share, in parts of a million.
    pub per_million: u32,
}

impl Cluster {
    pub(super) fn of(core: &deps::ClusterConfig) -> Self {
        let resource = &core.cluster;
        Self {
            kind: ClusterKind::of(core),
            lb_policy: resource.lb_policy.to_string(),
            max_requests: resource.max_requests,
            outlier_detection: resource.outlier_detection.is_some(),
            tls: resource.tls.as_deref().map(TlsContext::of),
            endpoints: match &core.children {
                deps::ClusterChildren::Endpoints(endpoints) => endpoints.as_deref().map(Endpoints::of),
                deps::ClusterChildren::Aggregate(_) => None,
            },
            note: core.note.to_string(),
        }
    }
}

impl TlsContext {
    fn of(core: &tls::UpstreamTls) -> Self {
        let names = core.match_subject_alt_names.iter();
        Self {
            roots: match &core.roots {
                tls::Roots::Instance(instance) => Some(instance.clone()),
                tls::Roots::System => None,
            },
            identity: core.identity_instance.clone(),
            subject_alt_names: names.map(|matcher| HeaderMatchKind::of_string(matcher).to_string()).collect(),
            sni: core.sni.clone(),
            auto_host_sni: core.auto_host_sni,
            auto_sni_san_validation: core.auto_sni_san_validation,
        }
    }
}

impl ClusterKind {
    fn of(core: &deps::ClusterConfig) -> Self {
        match &core.cluster.kind {
            cluster::ClusterKind::Eds { service_name } => {
                Self::Eds { resource_name: service_name.as_deref().unwrap_or(&core.name).to_owned() }
            }
            cluster::ClusterKind::LogicalDns { host, port } => Self::LogicalDns { host: host.clone(), port: *port },
            cluster::ClusterKind::Aggregate { clusters } => Self::Aggregate {
                clusters: clusters.clone(),
                leaves: match &core.children {
                    deps::ClusterChildren::Aggregate(leaves) => leaves.iter().map(ToString::to_string).collect(),
                    deps::ClusterChildren::Endpoints(_) => Vec::new(),
                },
            },
        }
    }
}

impl Endpoints {
    fn of(core: &deps::ResolvedEndpoints) -> Self {
        let priority = |(localities, from): (Vec<deps::JoinedLocality<'_>>, &endpoint::Priority)| {
            let localities = localities.iter().zip(&from.localities);
            Priority { localities: localities.map(|(joined, from)| LocalityEndpoints::of(joined, from)).collect() }
        };
        let drop = |drop: &endpoint::DropCategory| DropCategory {
            category: drop.category.clone(),
            per_million: drop.per_million,
        };
        Self {
            priorities: core.priorities().zip(&core.endpoints.priorities).map(priority).collect(),
            drops: core.endpoints.drops.iter().map(drop).collect(),
        }
    }
}

impl LocalityEndpoints {
    fn of(joined: &deps::JoinedLocality<'_>, from: &endpoint::LocalityEndpoints) -> Self {
        Self {
            locality: Locality::of(joined.locality),
            weight: joined.weight,
            collection: match &from.source {
                endpoint::EndpointSource::Inline(_) => None,
                endpoint::EndpointSource::Collection(name) => Some(name.clone()),
            },
            endpoints: joined.endpoints.iter().map(|endpoint| Endpoint::of(endpoint)).collect(),
        }
    }
}

impl Endpoint {
    fn of(core: &endpoint::Endpoint) -> Self {
        Self {
            addresses: core.addresses.as_slice().to_vec(),
            weight: core.weight,
            health: match core.health {
                endpoint::HealthStatus::Unknown => HealthStatus::Unknown,
                endpoint::HealthStatus::Healthy => HealthStatus::Healthy,
                endpoint::HealthStatus::Draining => HealthStatus::Draining,
            },
            hostname: core.hostname().map(ToString::to_string),
        }
    }
}
