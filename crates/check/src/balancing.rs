//! MS4xx: where load goes.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::{HealthStatus, RoutingPriority};
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::{Resource, ResourceType};

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::Item;
use crate::references::leds_name;
use crate::routing::per_million;
use crate::set::{Decoded, Set, canonical};
use crate::walk;

pub(crate) fn check(set: &Set<'_>, findings: &mut Findings) {
    set.endpoints.values().for_each(|endpoints| assignment(endpoints.item, &endpoints.message, findings));
    set.clusters.values().for_each(|cluster| self::cluster(cluster.item, cluster, findings));
}

pub(crate) fn check_across(set: &Set<'_>, findings: &mut Findings) {
    for cluster in set.clusters.values() {
        let endpoints = walk::eds_name(&cluster.message).map(|name| canonical(ResourceType::Endpoints, name));
        let Some(endpoints) = endpoints.and_then(|name| set.endpoints.get(&name)) else { continue };
        let count = usable(&endpoints.message).count();
        let has_collections = endpoints.message.endpoints.iter().any(|locality| leds_name(locality).is_some());
        if !has_collections && count > 0 {
            outliers(cluster, count, findings);
            ring(cluster, count, findings);
        }
    }
    hash_policies(set, findings);
}

/// What a ClusterLoadAssignment shows by itself.
fn assignment(item: &Item, message: &ClusterLoadAssignment, findings: &mut Findings) {
    let localities = &message.endpoints;
    let has_weight = |locality: &LocalityLbEndpoints| locality.load_balancing_weight.is_some_and(|it| it.value > 0);
    let dropped = localities.iter().enumerate().filter(|(_, locality)| !has_weight(locality));
    let dropped: Vec<usize> = dropped.map(|(i, _)| i).collect();
    if localities.is_empty() {
        findings.add(Id::MS403, item, "endpoints", "there are no endpoints: RPCs to this cluster fail");
    } else if dropped.len() == localities.len() {
        let message =
            "no locality has a load_balancing_weight, so that clients leave all of them out: RPCs to this cluster fail";
        findings.add(Id::MS401, item, "endpoints[0].load_balancing_weight", message);
    } else {
        for i in dropped {
            let message = "clients leave out a locality without load_balancing_weight: its endpoints get no RPCs";
            findings.add(Id::MS402, item, &format!("endpoints[{i}].load_balancing_weight"), message);
        }
    }
    let has_collections = localities.iter().any(|locality| leds_name(locality).is_some());
    let all = localities.iter().flat_map(|locality| &locality.lb_endpoints).count();
    if !localities.is_empty() && all == 0 && !has_collections {
        findings.add(Id::MS403, item, "endpoints", "there are no endpoints: RPCs to this cluster fail");
    } else if all > 0 && !has_collections && !localities.iter().flat_map(|it| &it.lb_endpoints).any(can_be_used) {
        let message = format!("of {all} endpoints none may be used, by their health_status: RPCs to this cluster fail");
        findings.add(Id::MS404, item, "endpoints", message);
    }
    for (i, locality) in localities.iter().enumerate() {
        let weighted = locality.lb_endpoints.iter().filter(|endpoint| endpoint.load_balancing_weight.is_some()).count();
        if weighted > 0 && weighted < locality.lb_endpoints.len() {
            let message = format!(
                "{weighted} of {} endpoints have a load_balancing_weight: those without one weigh 1 beside them",
                locality.lb_endpoints.len()
            );
            findings.add(Id::MS405, item, &format!("endpoints[{i}].lb_endpoints"), message);
        }
    }
    let drops = message.policy.as_ref().map(|policy| policy.drop_overloads.as_slice()).unwrap_or_default();
    let all_of_it = |(_, drop): &(usize, &_)| drop_share(drop).is_some_and(|share| share >= 1_000_000);
    if let Some((i, _)) = drops.iter().enumerate().find(all_of_it) {
        let path = format!("policy.drop_overloads[{i}].drop_percentage");
        findings.add(Id::MS411, item, &path, "all RPCs to this cluster are dropped");
    } else {
        let sum: u64 = drops.iter().filter_map(drop_share).sum();
        if sum >= 1_000_000 {
            let message = format!(
                "the drop percentages add up to {} %, but each is a share of what those before it let through",
                sum / 10_000
            );
            findings.add(Id::MS411, item, "policy.drop_overloads", message);
        }
    }
}

type DropOverload = envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;

fn drop_share(drop: &DropOverload) -> Option<u64> {
    drop.drop_percentage.as_ref().and_then(per_million)
}

/// The endpoints that clients use.
pub(crate) fn usable(message: &ClusterLoadAssignment) -> impl Iterator<Item = &LbEndpoint> {
    let localities = message.endpoints.iter();
    let localities =
        localities.filter(|locality| locality.load_balancing_weight.is_some_and(|weight| weight.value > 0));
    localities.flat_map(|locality| &locality.lb_endpoints).filter(|endpoint| can_be_used(endpoint))
}

fn can_be_used(endpoint: &LbEndpoint) -> bool {
    [HealthStatus::Unknown, HealthStatus::Healthy].iter().any(|status| *status as i32 == endpoint.health_status)
}

/// What a cluster shows by itself.
fn cluster(item: &Item, cluster: &Decoded<'_, Cluster>, findings: &mut Findings) {
    let message = &cluster.message;
    let thresholds = message.circuit_breakers.as_ref().map(|it| it.thresholds.as_slice()).unwrap_or_default();
    for (i, threshold) in thresholds.iter().enumerate() {
        if threshold.priority == RoutingPriority::Default as i32
            && threshold.max_requests.is_some_and(|it| it.value == 0)
        {
            let path = format!("circuit_breakers.thresholds[{i}].max_requests");
            findings.add(Id::MS413, item, &path, "no RPC may be under way at all: every RPC to this cluster fails");
        }
    }
    if let Some(outliers) = &message.outlier_detection
        && outliers.max_ejection_percent.is_some_and(|percent| percent.value >= 100)
    {
        let path = "outlier_detection.max_ejection_percent";
        findings.add(
            Id::MS409,
            item,
            path,
            "all endpoints may be ejected at once, and then RPCs fail until one returns",
        );
    }
    let lists_more = message.load_balancing_policy.as_ref().is_some_and(|list| list.policies.len() > 1);
    if let (true, Some(Resource::Cluster(value))) = (lists_more, &cluster.value) {
        policies(item, message, &value.lb_policy, findings);
    }
    let ignored = [
        ("health_checks", !message.health_checks.is_empty(), "gRPC does no active health checks"),
        ("lb_subset_config", message.lb_subset_config.is_some(), "gRPC knows no subsets"),
        (
            "transport_socket_matches",
            !message.transport_socket_matches.is_empty(),
            "gRPC looks at transport_socket only",
        ),
        ("upstream_bind_config", message.upstream_bind_config.is_some(), "gRPC chooses its own address"),
    ];
    for (field, _, why) in ignored.into_iter().filter(|(_, is_set, _)| *is_set) {
        findings.add(Id::MS414, item, field, format!("{field} changes nothing: {why}"));
    }
}

/// MS412: who knows the first policy of a list uses that, and everybody else another.
fn policies(item: &Item, message: &Cluster, chosen: &LbPolicy, findings: &mut Findings) {
    let list = message.load_balancing_policy.as_ref().map(|list| list.policies.as_slice()).unwrap_or_default();
    let type_of = |i: usize| {
        let config = list.get(i)?.typed_extension_config.as_ref()?.typed_config.as_ref()?;
        config.type_url.rsplit('/').next().map(str::to_owned)
    };
    // Which entry was chosen is what comes out of the list without those before it.
    let skipped: Vec<_> = (0..list.len()).map_while(|i| type_of(i).filter(|name| !is_grpc_policy(name))).collect();
    if !skipped.is_empty() {
        let message = format!("clients that know {} use it, all others {chosen}", skipped.join(" or "));
        findings.add(Id::MS412, item, "load_balancing_policy.policies", message);
    }
}

/// Whether Mainstay, and so a client that follows the gRFCs, has it.
fn is_grpc_policy(message_name: &str) -> bool {
    let ours = ["wrr_locality", "round_robin", "pick_first", "ring_hash", "least_request", "random_subsetting"];
    let package = message_name.strip_prefix("envoy.extensions.load_balancing_policies.").unwrap_or("");
    let package = package.split('.').next().unwrap_or("");
    ours.contains(&package) || package == "client_side_weighted_round_robin"
}

/// MS410.
fn outliers(cluster: &Decoded<'_, Cluster>, endpoints: usize, findings: &mut Findings) {
    let Some(Resource::Cluster(value)) = &cluster.value else { return };
    let Some(outliers) = &value.outlier_detection else { return };
    let by_rate = outliers.success_rate.as_ref().map(|it| it.minimum_hosts);
    let by_failures = outliers.failure_percentage.as_ref().map(|it| it.minimum_hosts);
    let Some(least) = by_rate.into_iter().chain(by_failures).min() else { return };
    if (endpoints as u64) < u64::from(least) {
        let message = format!("nothing is ever ejected: that takes {least} endpoints, and there are {endpoints}");
        findings.add(Id::MS410, cluster.item, "outlier_detection", message);
    }
}

/// MS406 and MS407.
fn ring(cluster: &Decoded<'_, Cluster>, endpoints: usize, findings: &mut Findings) {
    let Some(Resource::Cluster(value)) = &cluster.value else { return };
    let LbPolicy::RingHash(ring) = &value.lb_policy else { return };
    let path =
        if cluster.message.load_balancing_policy.is_some() { "load_balancing_policy" } else { "ring_hash_lb_config" };
    let size = ring.max_ring_size.min(RING_CAP);
    if (size as usize) < endpoints {
        let message = format!("a ring of {size} has no room for {endpoints} endpoints: some get no RPCs");
        findings.add(Id::MS406, cluster.item, path, message);
    }
    if ring.min_ring_size > RING_CAP {
        let message =
            format!("minimum_ring_size is {}, but gRPC clients make rings of at most {RING_CAP}", ring.min_ring_size);
        findings.add(Id::MS407, cluster.item, path, message);
    }
}

/// MS408: a route without a hash policy to a cluster that needs one.
fn hash_policies(set: &Set<'_>, findings: &mut Findings) {
    let needs_hash = |name: &str| -> bool {
        let cluster = set.clusters.get(&canonical(ResourceType::Cluster, name));
        let Some(Resource::Cluster(value)) = cluster.and_then(|cluster| cluster.value.as_ref()) else { return false };
        matches!(&value.lb_policy, LbPolicy::RingHash(ring) if ring.request_hash_header.is_none())
    };
    let mut told = BTreeMap::new();
    walk::each_route_configuration(set, |item, path, routes, _| {
        for (path, route) in walk::routes(path, routes) {
            let Some(Action::Route(action)) = &route.action else { continue };
            if !action.hash_policy.is_empty() {
                continue;
            }
            for (_, name) in walk::clusters(&path, route) {
                if needs_hash(name) && told.insert((item.name.clone(), path.clone()), ()).is_none() {
                    let message = format!(
                        "cluster {name:?} has ring_hash, but this route has no hash_policy: every RPC goes to a random endpoint"
                    );
                    findings.add(Id::MS408, item, &format!("{path}.route"), message);
                }
            }
        }
    });
}

/// What gRPC clients make of rings by default (A42).
const RING_CAP: u32 = 4096;
