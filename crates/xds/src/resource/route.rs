//! RouteConfiguration (RDS or inline), `spec/04` section 3.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3 as pb;

use super::ParseContext;
use super::filter::FilterOverrides;
use super::matcher::{FullRegex, HeaderMatcher, PathMatcher};
use crate::invalid::Invalid;

/// All virtual hosts of a route configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteConfig {
    /// In the order of the resource.
    pub virtual_hosts: Vec<Arc<VirtualHost>>,
}

/// Routes for a set of domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualHost {
    /// As given; for messages only.
    pub name: String,
    /// Domain patterns, never empty.
    pub domains: Vec<DomainPattern>,
    /// First match wins.
    pub routes: Vec<Route>,
    /// Filter overrides for all routes here.
    pub overrides: FilterOverrides,
}

/// A domain pattern, lower case. The order of the variants is the order of preference (L-31).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DomainPattern {
    /// The whole authority.
    Exact(String),
    /// `*suffix`, without the star.
    Suffix(String),
    /// `prefix*`, without the star.
    Prefix(String),
    /// `*`.
    Any,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Which path.
    pub path: PathMatcher,
    /// Which headers; all must match.
    pub headers: Vec<HeaderMatcher>,
    /// Which share of the RPCs, in parts of a million; all if absent (L-37).
    pub fraction: Option<u32>,
    /// What happens to an RPC that matches.
    pub action: RouteAction,
    /// Filter overrides for this route.
    pub overrides: FilterOverrides,
}

/// What happens to an RPC that matches a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouteAction {
    /// Send it to a cluster.
    Forward(ForwardAction),
    /// For servers; on a client the RPC fails.
    NonForwarding,
    /// An action we do not support, by name; the RPC fails.
    Unsupported(&'static str),
}

/// Send the RPC to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForwardAction {
    /// Which cluster.
    pub target: ClusterTarget,
    /// `grpc_timeout_header_max`, else `max_stream_duration`; zero means no limit (R-52, L-40).
    pub max_stream_duration: Option<Duration>,
    /// Retry policy of the route, else of the virtual host.
    pub retry: Option<RetryPolicy>,
    /// How the request hash is made.
    pub hash_policies: Vec<HashPolicy>,
    /// Use the endpoint's hostname as `:authority`; only from a trusted server.
    pub auto_host_rewrite: bool,
}

/// Which cluster an RPC goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterTarget {
    /// Always this one.
    Cluster(String),
    /// One of these, by weight. Never empty; no weight is zero; the sum fits `u32`.
    Weighted(Vec<WeightedCluster>),
}

/// One choice of a weighted target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedCluster {
    /// Cluster name.
    pub name: String,
    /// Share of the sum of all weights.
    pub weight: u32,
    /// Filter overrides for this choice.
    pub overrides: FilterOverrides,
}

/// When and how an RPC is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    /// gRPC status codes that allow a retry, ascending; never empty.
    pub retry_on: Vec<u8>,
    /// How many retries after the first attempt; at least one.
    pub num_retries: u32,
    /// First backoff.
    pub base_interval: Duration,
    /// Largest backoff.
    pub max_interval: Duration,
}

/// One step of the request hash (R-53, L-42).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HashPolicy {
    /// What is hashed.
    pub source: HashSource,
    /// Stop here once there is a hash.
    pub terminal: bool,
}

/// What is hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HashSource {
    /// A request header, after an optional replacement.
    Header {
        /// Header name, lower case.
        name: String,
        /// Pattern to look for and text to put in its place.
        rewrite: Option<(FullRegex, String)>,
    },
    /// The channel's own random number.
    ChannelId,
}

impl RouteConfig {
    /// Checks a RouteConfiguration.
    pub fn parse(pb: &pb::RouteConfiguration, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        let _ = (pb, cx);
        todo!()
    }
}
