//! Endpoints as policies see them: by priority and locality, by identity, and as the list of addresses that pick_first
//! tries (L-102, L-119, L-120).

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use mainstay_xds::Choose;
use mainstay_xds::resource::endpoint::{Endpoint, EndpointCollection, HealthStatus, Locality};
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::tls::{HttpConnect, UpstreamTls};

use crate::subchannel::{Origin, SubchannelSpec};

/// What the policy of a cluster works on: one priority of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PriorityConfig {
    pub(crate) lb_policy: LbPolicy,
    pub(crate) localities: Vec<Arc<LocalityConfig>>,
    /// Whether endpoints have to join outlier detection (A50).
    pub(crate) counted: bool,
}

/// The endpoints of one locality, with a collection looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocalityConfig {
    pub(crate) locality: Arc<Locality>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) weight: u32,
    pub(crate) endpoints: Arc<EndpointCollection>,
    /// The HTTP proxy on the way to its endpoints (A86); none if the cluster wants no proxies.
    pub(crate) http_connect: Option<HttpConnect>,
    /// How connections to its endpoints are secured (A29).
    pub(crate) tls: Option<Arc<UpstreamTls>>,
}

/// An endpoint with where it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointRef<'a> {
    pub(crate) endpoint: &'a Endpoint,
    locality: &'a Arc<LocalityConfig>,
    /// Its index in the locality.
    at: u32,
}

/// Identity of an endpoint: its addresses in any order (L-102).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AddressSet {
    One(SocketAddr),
    Many(Vec<SocketAddr>),
}

/// One address of an endpoint: its index in the list of its locality, so that nothing of a hundred thousand endpoints
/// is copied. It keeps the list.
#[derive(Clone)]
pub(crate) struct Address {
    locality: Arc<LocalityConfig>,
    endpoint: u32,
    address: u32,
}

/// What makes two addresses the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity<'a> {
    socket: SocketAddr,
    proxy: Option<SocketAddr>,
    hostname: Option<&'a str>,
    tls: Option<&'a UpstreamTls>,
}

/// The addresses of `endpoints` in order, IPv6 and IPv4 in turn, each once.
pub(crate) fn flatten<'a>(endpoints: impl IntoIterator<Item = EndpointRef<'a>>) -> Vec<Address> {
    let mut addresses = Vec::new();
    endpoints.into_iter().for_each(|endpoint| addresses.extend(endpoint.each_address()));
    if addresses.len() > 1 { interleave(addresses) } else { addresses }
}

/// Alternates between the families, starting with that of the first address (RFC 8305 section 4).
fn interleave(addresses: Vec<Address>) -> Vec<Address> {
    let mut seen: BTreeSet<SocketAddr> = BTreeSet::new();
    let first_is_ipv6 = addresses.first().is_some_and(|address| address.socket().is_ipv6());
    let (mut turn, mut other): (VecDeque<_>, VecDeque<_>) = addresses
        .into_iter()
        .filter(|address| seen.insert(address.socket()))
        .partition(|address| address.socket().is_ipv6() == first_is_ipv6);
    let mut mixed = Vec::with_capacity(turn.len() + other.len());
    while let Some(address) = turn.pop_front() {
        mixed.push(address);
        if !other.is_empty() {
            std::mem::swap(&mut turn, &mut other);
        }
    }
    mixed
}

/// The endpoints in a random order in which heavier ones tend to come first (A113).
///
/// Sorting by `u^(1/weight)` is the same as by `ln(u) / weight`.
pub(crate) fn shuffle<'a>(config: &'a PriorityConfig, choose: &mut dyn Choose) -> Vec<EndpointRef<'a>> {
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
        let weight = move |endpoint: EndpointRef<'_>| (of_locality * share(endpoint.weight, sum)) >> 31;
        locality.endpoints().map(weight).map(|weight| u32::try_from(weight).unwrap_or(u32::MAX).max(1))
    })
}

/// A part of a whole in units of 2^-31, at most one.
fn share(part: u32, whole: u64) -> u64 {
    ((u64::from(part) << 31) / whole.max(1)).min(1 << 31)
}

impl PriorityConfig {
    /// Every endpoint that may get traffic, localities in order.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = EndpointRef<'_>> + Clone {
        self.localities.iter().flat_map(LocalityConfig::endpoints)
    }
}

impl LocalityConfig {
    /// Its endpoints that may get traffic: draining ones are for session affinity only (L-96).
    pub(crate) fn endpoints(self: &Arc<Self>) -> impl Iterator<Item = EndpointRef<'_>> + Clone {
        self.all().filter(|endpoint| endpoint.health != HealthStatus::Draining)
    }

    /// All of them.
    pub(crate) fn all(self: &Arc<Self>) -> impl Iterator<Item = EndpointRef<'_>> + Clone {
        (0..).zip(&self.endpoints.endpoints).map(|(at, endpoint)| EndpointRef { endpoint, locality: self, at })
    }
}

impl EndpointRef<'_> {
    /// Each of its addresses.
    pub(crate) fn each_address(&self) -> impl Iterator<Item = Address> {
        let count = self.endpoint.addresses.as_slice().len() as u32;
        (0..count).map(|n| Address::new(self.locality, self.at, n))
    }
}

impl Deref for EndpointRef<'_> {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        self.endpoint
    }
}

// === impl Address ===

impl Address {
    /// Address number `address` of an endpoint; both must exist.
    fn new(locality: &Arc<LocalityConfig>, endpoint: u32, address: u32) -> Self {
        Self { locality: Arc::clone(locality), endpoint, address }
    }

    /// What to connect to.
    pub(crate) fn socket(&self) -> SocketAddr {
        self.endpoint().addresses.as_slice()[self.address as usize]
    }

    /// `endpoint.hostname` (A81).
    pub(crate) fn hostname(&self) -> Option<&Arc<str>> {
        self.endpoint().hostname()
    }

    /// Where it belongs.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.locality.origin
    }

    /// The HTTP proxy on the way to it: its own, else that of its locality (A86).
    pub(crate) fn proxy(&self) -> Option<SocketAddr> {
        let http_connect = self.locality.http_connect.as_ref()?;
        self.endpoint().proxy().or(http_connect.default)
    }

    /// Where these are equal, policies share a subchannel, wherever their endpoints belong.
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            socket: self.socket(),
            proxy: self.proxy(),
            hostname: self.hostname().map(|name| &**name),
            tls: self.locality.tls.as_deref(),
        }
    }

    /// For the shell.
    pub(crate) fn spec(&self) -> SubchannelSpec {
        SubchannelSpec {
            address: self.socket(),
            proxy: self.proxy(),
            hostname: self.hostname().cloned(),
            tls: self.locality.tls.clone(),
            origin: Arc::clone(self.origin()),
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.locality.endpoints.endpoints[self.endpoint as usize]
    }

    /// What is to be said about it, wherever it is listed.
    fn content(&self) -> (Identity<'_>, &Origin) {
        (self.identity(), self.origin())
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.content() == other.content()
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.content().hash(state);
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.content().fmt(f)
    }
}

// === impl AddressSet ===

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

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, SocketAddr> {
        match self {
            Self::One(address) => std::slice::from_ref(address).iter(),
            Self::Many(addresses) => addresses.iter(),
        }
    }
}

/// How fine the draws for shuffling are.
const DRAWS: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use mainstay_xds::resource::endpoint::{Addresses, EndpointCollection, EndpointNames, HealthStatus, Locality};
    use mainstay_xds::resource::lb_policy::LbPolicy;
    use mainstay_xds::resource::tls::HttpConnect;

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

    /// A86: the endpoint's own proxy first, then its locality's; none at all if the cluster wants none.
    #[test]
    fn a_proxy_is_used_where_the_cluster_wants_one() {
        let proxy = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let named = EndpointNames { proxy: Some(proxy(1)), ..EndpointNames::default() };
        let own = Endpoint { names: Some(Arc::new(named)), ..endpoint("1.0.0.1:1") };
        let plain = locality(1, vec![own, endpoint("1.0.0.2:1")]);
        let with =
            |default| Arc::new(LocalityConfig { http_connect: Some(HttpConnect { default }), ..(*plain).clone() });
        let proxies = |locality: &Arc<LocalityConfig>| -> Vec<_> {
            flatten(locality.all()).iter().map(|address| address.spec().proxy).collect()
        };
        assert_eq!(proxies(&plain), [None, None], "A86: not without the transport socket");
        assert_eq!(proxies(&with(None)), [Some(proxy(1)), None], "A86");
        assert_eq!(proxies(&with(Some(proxy(2)))), [Some(proxy(1)), Some(proxy(2))], "A86");
        let first = |locality: &Arc<LocalityConfig>| flatten(locality.all()).remove(0);
        assert_ne!(first(&plain).identity(), first(&with(None)).identity(), "no connection past the proxy is shared");
    }

    fn addresses(list: &[&str]) -> Vec<String> {
        let endpoints = list.iter().map(|text| endpoint(text)).collect();
        flatten(locality(1, endpoints).all()).iter().map(|address| address.socket().to_string()).collect()
    }

    fn weights_of(localities: &[(u32, &[u32])]) -> Vec<u32> {
        let weighted = |weight: &u32| Endpoint { weight: *weight, ..endpoint("1.0.0.1:1") };
        let localities =
            localities.iter().map(|(weight, weights)| locality(*weight, weights.iter().map(weighted).collect()));
        let localities = localities.collect();
        weights(&PriorityConfig { lb_policy: LbPolicy::RoundRobin, localities, counted: false }).collect()
    }

    fn locality(weight: u32, endpoints: Vec<Endpoint>) -> Arc<LocalityConfig> {
        Arc::new(LocalityConfig {
            locality: Arc::new(Locality::default()),
            origin: Arc::default(),
            weight,
            endpoints: Arc::new(EndpointCollection { endpoints }),
            http_connect: None,
            tls: None,
        })
    }

    fn endpoint(text: &str) -> Endpoint {
        let address = text.parse().expect("a socket address");
        Endpoint { addresses: Addresses::One(address), weight: 1, health: HealthStatus::Healthy, names: None }
    }
}
