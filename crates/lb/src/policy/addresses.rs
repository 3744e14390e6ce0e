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
    let localities: u64 = config.localities.iter().map(|l| u64::from(l.weight)).sum();
    let mut keyed = Vec::new();
    for locality in &config.localities {
        let sum: u64 = locality.endpoints().map(|e| u64::from(e.weight)).sum();
        for endpoint in locality.endpoints() {
            let weight = share(locality.weight, localities) * share(endpoint.weight, sum);
            let u = (choose.choose(DRAWS) + 1) as f64 / (DRAWS + 1) as f64;
            keyed.push((u.ln() / weight, endpoint));
        }
    }
    keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    keyed.into_iter().map(|(_, endpoint)| endpoint).collect()
}

/// A part of a whole, in `0..=1`, never zero.
fn share(part: u32, whole: u64) -> f64 {
    f64::from(part.max(1)) / whole.max(1) as f64
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
    use mainstay_xds::resource::endpoint::{Addresses, HealthStatus};

    use super::*;

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

    fn endpoint(text: &str) -> Endpoint {
        let address = text.parse().expect("a socket address");
        let (health, hostname, hash_key) = (HealthStatus::Healthy, None, None);
        Endpoint { addresses: Addresses::One(address), weight: 1, health, hostname, hash_key }
    }
}
