//! Addresses of endpoints: as identity, and as the list that pick_first tries (L-102, L-119, L-120).

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_xds::Choose;
use mainstay_xds::resource::endpoint::Endpoint;

use super::{Placed, PriorityConfig};
use crate::tree::SubchannelSpec;

/// Identity of an endpoint: its addresses in any order (L-102).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AddressSet {
    One(SocketAddr),
    Many(Vec<SocketAddr>),
}

/// The addresses of `endpoints` in order, IPv6 and IPv4 in turn, each once.
pub(crate) fn flatten<'a>(endpoints: impl IntoIterator<Item = Placed<'a>>) -> Vec<Arc<SubchannelSpec>> {
    let mut specs = Vec::new();
    for endpoint in endpoints {
        for &address in endpoint.addresses.as_slice() {
            let (hostname, origin) = (endpoint.hostname.clone(), Arc::clone(endpoint.origin));
            specs.push(Arc::new(SubchannelSpec { address, hostname, origin }));
        }
    }
    if specs.len() > 1 { interleave(specs) } else { specs }
}

/// Alternates between the families, starting with that of the first address (RFC 8305 section 4).
fn interleave(specs: Vec<Arc<SubchannelSpec>>) -> Vec<Arc<SubchannelSpec>> {
    let mut seen: BTreeSet<SocketAddr> = BTreeSet::new();
    let first_is_ipv6 = specs.first().is_some_and(|spec| spec.address.is_ipv6());
    let (mut turn, mut other): (VecDeque<_>, VecDeque<_>) = specs
        .into_iter()
        .filter(|spec| seen.insert(spec.address))
        .partition(|spec| spec.address.is_ipv6() == first_is_ipv6);
    let mut mixed = Vec::with_capacity(turn.len() + other.len());
    while let Some(spec) = turn.pop_front() {
        mixed.push(spec);
        if !other.is_empty() {
            std::mem::swap(&mut turn, &mut other);
        }
    }
    mixed
}

/// The endpoints in a random order in which heavier ones tend to come first (A113).
///
/// Sorting by `u^(1/weight)` is the same as by `ln(u) / weight`.
pub(crate) fn shuffle<'a>(config: &'a PriorityConfig, choose: &mut dyn Choose) -> Vec<Placed<'a>> {
    let key = |(weight, endpoint)| {
        let u = (choose.choose(DRAWS) + 1) as f64 / (DRAWS + 1) as f64;
        (u.ln() / f64::from(weight), endpoint)
    };
    let mut keyed: Vec<_> = weights(config).zip(config.endpoints()).map(key).collect();
    keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    keyed.into_iter().map(|(_, endpoint)| endpoint).collect()
}

/// The weight of each endpoint in its priority, in the order of [`PriorityConfig::endpoints`]: its share in its
/// locality times the share of that, in units of 2^-31, and never zero (A113, L-60).
pub(crate) fn weights(config: &PriorityConfig) -> impl Iterator<Item = u32> {
    let localities: u64 = config.localities.iter().map(|locality| u64::from(locality.weight)).sum();
    config.localities.iter().flat_map(move |locality| {
        let sum: u64 = locality.endpoints().map(|endpoint| u64::from(endpoint.weight)).sum();
        let of_locality = share(locality.weight, localities);
        let weight = move |endpoint: Placed<'_>| (of_locality * share(endpoint.weight, sum)) >> 31;
        locality.endpoints().map(weight).map(|weight| u32::try_from(weight).unwrap_or(u32::MAX).max(1))
    })
}

/// A part of a whole in units of 2^-31, at most one.
fn share(part: u32, whole: u64) -> u64 {
    ((u64::from(part) << 31) / whole.max(1)).min(1 << 31)
}

impl AddressSet {
    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        Self::new(endpoint.addresses.as_slice().iter().copied())
    }

    pub(crate) fn new(mut addresses: impl ExactSizeIterator<Item = SocketAddr>) -> Self {
        if addresses.len() == 1
            && let Some(address) = addresses.next()
        {
            return Self::One(address);
        }
        let mut all: Vec<SocketAddr> = addresses.collect();
        all.sort_unstable();
        all.dedup();
        Self::Many(all)
    }
}

/// How fine the draws for shuffling are.
const DRAWS: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use mainstay_xds::resource::endpoint::{Addresses, EndpointCollection, HealthStatus, Locality};
    use mainstay_xds::resource::lb_policy::LbPolicy;

    use super::super::LocalityConfig;
    use super::*;

    #[test]
    fn a_weight_is_the_share_in_the_locality_times_the_share_of_that() {
        const ONE: u32 = 1 << 31;
        assert_eq!(weights_of(&[(1, &[1])]), [ONE], "L-60");
        assert_eq!(weights_of(&[(1, &[1, 3]), (3, &[5])]), [ONE / 16, ONE / 16 * 3, ONE / 4 * 3], "L-60: A113");
        assert_eq!(weights_of(&[(7, &[100]), (7, &[1])]), [ONE / 2; 2], "L-60: normalized within each locality");
    }

    #[test]
    fn no_weight_is_too_small_to_count() {
        let weights = weights_of(&[(1, &[1, u32::MAX - 1]), (u32::MAX - 1, &[1])]);
        assert_eq!(weights[0], 1, "L-60: InvalidWeightsClamped");
    }

    #[test]
    fn families_alternate_and_duplicates_go() {
        let list = ["1.0.0.1:1", "[::1]:1", "1.0.0.2:1", "1.0.0.1:1", "1.0.0.3:1", "[::2]:1"];
        assert_eq!(addresses(&list), ["1.0.0.1:1", "[::1]:1", "1.0.0.2:1", "[::2]:1", "1.0.0.3:1"], "L-120");
        assert_eq!(addresses(&["[::1]:1", "[::2]:1", "1.0.0.1:1"]), ["[::1]:1", "1.0.0.1:1", "[::2]:1"], "L-120");
    }

    fn addresses(list: &[&str]) -> Vec<String> {
        let endpoints: Vec<Endpoint> = list.iter().map(|text| endpoint(text)).collect();
        let origin = Arc::default();
        let placed = endpoints.iter().map(|endpoint| Placed { endpoint, origin: &origin });
        flatten(placed).iter().map(|spec| spec.address.to_string()).collect()
    }

    fn weights_of(localities: &[(u32, &[u32])]) -> Vec<u32> {
        let locality = |(weight, endpoints): &(u32, &[u32])| {
            let weighted = |weight: &u32| Endpoint { weight: *weight, ..endpoint("1.0.0.1:1") };
            let endpoints = Arc::new(EndpointCollection { endpoints: endpoints.iter().map(weighted).collect() });
            LocalityConfig {
                locality: Arc::new(Locality::default()),
                origin: Arc::default(),
                weight: *weight,
                endpoints,
            }
        };
        let localities = localities.iter().map(locality).collect();
        weights(&PriorityConfig { lb_policy: LbPolicy::RoundRobin, localities, counted: false }).collect()
    }

    fn endpoint(text: &str) -> Endpoint {
        let address = text.parse().expect("a socket address");
        let (health, hostname, hash_key) = (HealthStatus::Healthy, None, None);
        Endpoint { addresses: Addresses::One(address), weight: 1, health, hostname, hash_key }
    }
}
