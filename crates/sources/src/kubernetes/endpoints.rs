//! The endpoints of one port of a Service, from all of its EndpointSlices (KB-2 to KB-5).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::{HealthStatus, Locality};
use envoy_types::pb::envoy::config::endpoint::v3::endpoint::AdditionalAddress;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use envoy_types::pb::google::protobuf::UInt32Value;
use mainstay_control_plane::resources;

use crate::kubernetes::object::{Family, Readiness, Slice};

/// The EDS resource with this name: zones are localities, each with a weight of as many as it has endpoints.
pub(crate) fn assignment<'a>(
    name: String,
    port: &str,
    family: Family,
    region: &str,
    slices: impl IntoIterator<Item = &'a Slice>,
) -> ClusterLoadAssignment {
    let backends = backends(distinct(port, slices), family);
    // As kube-proxy: rather those that are going away than none at all.
    let best = backends.iter().map(|backend| backend.said.readiness).max();
    let mut zones = BTreeMap::<String, (u32, Vec<LbEndpoint>)>::new();
    for Backend { first, second, said: Said { readiness, zone, .. } } in backends {
        let health = match readiness {
            Readiness::Unready => continue,
            Readiness::Draining if best != Some(Readiness::Draining) => HealthStatus::Draining,
            Readiness::Draining | Readiness::Ready => HealthStatus::Healthy,
        };
        let (healthy, endpoints) = zones.entry(zone).or_default();
        *healthy += u32::from(health == HealthStatus::Healthy);
        endpoints.push(endpoint(first, second, health));
    }
    let localities = zones.into_iter().map(|(zone, (healthy, lb_endpoints))| LocalityLbEndpoints {
        locality: Some(Locality { region: region.to_owned(), zone, sub_zone: String::new() }),
        lb_endpoints,
        // A locality of weight 0 is none, and what is draining must be known.
        load_balancing_weight: Some(UInt32Value { value: healthy.max(1) }),
        ..LocalityLbEndpoints::default()
    });
    resources::localities(name, localities)
}

/// Something that serves the port, under one address or one of each family.
struct Backend {
    first: SocketAddr,
    second: Option<SocketAddr>,
    said: Said,
}

/// What is said about an address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    readiness: Readiness,
    target: Option<String>,
    zone: String,
}

/// Each address once. An endpoint that moves from one slice to another is in both for a while; the better word counts, whichever
/// slice it is in.
fn distinct<'a>(port: &str, slices: impl IntoIterator<Item = &'a Slice>) -> BTreeMap<SocketAddr, Said> {
    let mut all = BTreeMap::<SocketAddr, Said>::new();
    for slice in slices {
        let numbers = slice.ports.iter().filter(|there| there.name == port).map(|there| there.number);
        for number in numbers {
            for endpoint in &slice.endpoints {
                let (readiness, target, zone) = (endpoint.readiness, endpoint.target.clone(), endpoint.zone.clone());
                let said = Said { readiness, target, zone };
                all.entry(SocketAddr::new(endpoint.address, number))
                    .and_modify(|best| *best = best.clone().max(said.clone()))
                    .or_insert(said);
            }
        }
    }
    all
}

/// Joins the two addresses that a pod has in a dual-stack cluster, so that it counts once (A61).
fn backends(all: BTreeMap<SocketAddr, Said>, family: Family) -> Vec<Backend> {
    let mut backends = Vec::new();
    let mut of_target = BTreeMap::<String, [Vec<(SocketAddr, Said)>; 2]>::new();
    for (address, said) in all {
        match said.target.clone() {
            Some(target) => {
                let second = usize::from(Family::of(address.ip()) != family);
                of_target.entry(target).or_default()[second].push((address, said));
            }
            None => backends.push(Backend { first: address, second: None, said }),
        }
    }
    for [of_first, of_second] in of_target.into_values() {
        let mut of_second = of_second.into_iter();
        for (first, said) in of_first {
            let (second, said) = match of_second.next() {
                Some((second, other)) => (Some(second), said.max(other)),
                None => (None, said),
            };
            backends.push(Backend { first, second, said });
        }
        backends.extend(of_second.map(|(first, said)| Backend { first, second: None, said }));
    }
    // By address, so that equal sets are equal bytes on every replica.
    backends.sort_by_key(|backend| backend.first);
    backends
}

fn endpoint(first: SocketAddr, second: Option<SocketAddr>, health: HealthStatus) -> LbEndpoint {
    let mut endpoint = LbEndpoint { health_status: health.into(), ..resources::endpoint(first) };
    if let Some(HostIdentifier::Endpoint(host)) = &mut endpoint.host_identifier {
        let others = second.map(|second| AdditionalAddress { address: Some(resources::address(second)) });
        host.additional_addresses = others.into_iter().collect();
    }
    endpoint
}

#[cfg(test)]
mod tests;
