//! The action of a route that sends RPCs to a cluster.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::PolicySpecifier;
use envoy_types::pb::envoy::config::route::v3::route_action::{ClusterSpecifier, HostRewriteSpecifier};

use super::super::ParseContext;
use super::super::fields::{self, excerpt};
use super::super::filter::{self, FilterOverrides};
use super::super::matcher::RegexRewrite;
use super::{RetryPolicy, Scope, each};
use crate::invalid::Faults;

/// Send the RPC to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForwardAction {
    /// Which cluster.
    pub target: ClusterTarget,
    /// `grpc_timeout_header_max`, else `max_stream_duration`; zero means no limit (R-52, L-40).
    pub max_stream_duration: Option<Duration>,
    /// Retry policy of the route, else of the virtual host.
    pub retry: Option<Arc<RetryPolicy>>,
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

impl ClusterTarget {
    /// Whether RPCs may go to this cluster.
    pub fn names(&self, cluster: &str) -> bool {
        match self {
            Self::Cluster(name) => name == cluster,
            Self::Weighted(choices) => choices.iter().any(|choice| choice.name == cluster),
        }
    }
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
        /// What to look for and what to put in its place.
        rewrite: Option<RegexRewrite>,
    },
    /// The channel's own random number.
    ChannelId,
}

// === impl ForwardAction ===

impl ForwardAction {
    /// Checks a RouteAction; `faults` is at it. `None` if it has faults or its route is ignored.
    pub(super) fn parse(pb: &pb::RouteAction, scope: Scope<'_>, faults: &mut Faults) -> Option<Self> {
        let target = match pb.cluster_specifier.as_ref()? {
            ClusterSpecifier::Cluster(name) => faults.field("cluster", |f| {
                if name.is_empty() {
                    f.add("must not be empty");
                }
                Some(ClusterTarget::Cluster(name.clone()))
            }),
            ClusterSpecifier::WeightedClusters(pb) => {
                faults.field("weighted_clusters", |f| weighted(pb, scope.cx, f)).map(ClusterTarget::Weighted)
            }
            ClusterSpecifier::ClusterSpecifierPlugin(name) => {
                if !scope.plugins.contains(name.as_str()) {
                    faults.field("cluster_specifier_plugin", |f| {
                        f.add(format!("{} is not in cluster_specifier_plugins", excerpt(name)));
                    });
                }
                // A plugin that we do not support is optional, or a fault where it is defined.
                return None;
            }
            //
            ClusterSpecifier::ClusterHeader(_) | ClusterSpecifier::InlineClusterSpecifierPlugin(_) => return None,
        };
        let max_stream_duration = faults.field("max_stream_duration", |f| max_stream_duration(pb, f));
        // A policy here replaces that of the virtual host, even with one that retries nothing.
        let retry = match &pb.retry_policy {
            Some(pb) => faults.field("retry_policy", |f| RetryPolicy::parse(pb, f)).map(Arc::new),
            None => scope.retry.cloned(),
        };
        let hash_policies = faults.field("hash_policy", |f| each(&pb.hash_policy, f, HashPolicy::parse));
        let trusted = scope.cx.server.features.trusted_xds_server && scope.cx.bootstrap.guards.authority_rewrite;
        let auto_host_rewrite = trusted
            && matches!(&pb.host_rewrite_specifier, Some(HostRewriteSpecifier::AutoHostRewrite(on)) if on.value);
        Some(Self { target: target?, max_stream_duration, retry, hash_policies, auto_host_rewrite })
    }
}

/// The choices of a weighted target; `faults` is at `weighted_clusters`.
fn weighted(pb: &pb::WeightedCluster, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Vec<WeightedCluster>> {
    let faults_before = faults.count();
    let choices = faults.field("clusters", |f| each(&pb.clusters, f, |pb, f| WeightedCluster::parse(pb, cx, f)));
    if faults.count() > faults_before {
        return None;
    }
    if choices.is_empty() {
        faults.add("must have a cluster with a weight greater than zero");
        return None;
    }
    // Cannot overflow: a message has far fewer than 2^32 entries.
    let sum: u64 = choices.iter().map(|choice| u64::from(choice.weight)).sum();
    if sum > u64::from(u32::MAX) {
        faults.add(format!("the sum of the weights is {sum}: expected at most {}", u32::MAX));
        return None;
    }
    Some(choices)
}

/// The time limit that the route sets; `faults` is at `max_stream_duration`.
fn max_stream_duration(pb: &pb::RouteAction, faults: &mut Faults) -> Option<Duration> {
    let pb = pb.max_stream_duration.as_ref()?;
    match (&pb.grpc_timeout_header_max, &pb.max_stream_duration) {
        (Some(pb), _) => faults.field("grpc_timeout_header_max", |f| fields::duration(pb, f)),
        (None, Some(pb)) => faults.field("max_stream_duration", |f| fields::duration(pb, f)),
        (None, None) => None,
    }
}

impl WeightedCluster {
    /// Checks a ClusterWeight; `None` if it has faults or its weight is zero.
    fn parse(pb: &pb::weighted_cluster::ClusterWeight, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        if pb.name.is_empty() {
            faults.field("name", |f| f.add("must not be empty"));
        }
        let overrides =
            faults.field("typed_per_filter_config", |f| filter::overrides(&pb.typed_per_filter_config, cx, f));
        match pb.weight {
            Some(weight) => (weight.value > 0).then(|| Self { name: pb.name.clone(), weight: weight.value, overrides }),
            None => {
                faults.field("weight", |f| f.add("must be set"));
                None
            }
        }
    }
}

impl HashPolicy {
    /// Checks a HashPolicy; `None` if it has faults or is of a kind that is left out.
    fn parse(pb: &pb::route_action::HashPolicy, faults: &mut Faults) -> Option<Self> {
        let source = match pb.policy_specifier.as_ref()? {
            PolicySpecifier::Header(pb) => faults.field("header", |f| {
                if pb.header_name.is_empty() {
                    f.field("header_name", |f| f.add("must not be empty"));
                }
                let rewrite = match &pb.regex_rewrite {
                    Some(pb) => Some(f.field("regex_rewrite", |f| RegexRewrite::parse(pb, f))?),
                    None => None,
                };
                Some(HashSource::Header { name: pb.header_name.to_ascii_lowercase(), rewrite })
            })?,
            PolicySpecifier::FilterState(pb) if pb.key == CHANNEL_ID_KEY => HashSource::ChannelId,
            PolicySpecifier::FilterState(_)
            | PolicySpecifier::Cookie(_)
            | PolicySpecifier::ConnectionProperties(_)
            | PolicySpecifier::QueryParameter(_) => return None,
        };
        Some(Self { source, terminal: pb.terminal })
    }
}

/// The filter state that means the channel's own random number (A42).
const CHANNEL_ID_KEY: &str = "io.grpc.channel_id";
