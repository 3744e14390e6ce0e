//! Which filter chain a connection gets (SV-16 to SV-18).
//!
//! Criteria are decided one after the other, the most specific value of each first, and no decision is taken back: a
//! connection into a destination range whose chains are all for other sources gets none of a shorter range. What does
//! not depend on the connection, as we know no server names, protocols or destination ports, is decided when the index
//! is made.

use std::net::{IpAddr, SocketAddr};

use super::super::cidr::Cidr;
use super::filter_chain_match::{Match, SourceType, TransportProtocol};

/// The matches of all chains, by destination, then by source. Chains are places in the list of the listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ChainIndex {
    destinations: Ranges<Sources>,
}

/// The chains of one destination range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Sources {
    any: Ranges<Ports>,
    same_ip_or_loopback: Ranges<Ports>,
    external: Ranges<Ports>,
}

/// The chains of one source range, sorted by source port; `None` is any port.
type Ports = Box<[(Option<u32>, u32)]>;

/// Address ranges, each with what is behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ranges<T> {
    /// The lengths that occur among the ranges of either family, longest first.
    v4_lengths: Box<[u8]>,
    v6_lengths: Box<[u8]>,
    /// In order.
    ranges: Box<[(Cidr, T)]>,
    /// What is behind no range at all, which is less specific than one that holds every address.
    otherwise: Option<T>,
}

impl ChainIndex {
    /// Makes the index of normalized matches, each with the place of its chain. No two of them are equal.
    pub(super) fn new(matches: Vec<(Match, usize)>) -> Self {
        // Nothing has a destination port as far as we know, so this first criterion leaves only those without one.
        let eligible = matches.into_iter().filter(|(m, _)| m.destination_port.is_none()).collect();
        Self { destinations: Ranges::group(eligible, |m| m.prefix, Sources::new) }
    }

    /// The place of the chain for a connection from `source` that was accepted at `destination`.
    pub(super) fn find(&self, destination: IpAddr, source: SocketAddr) -> Option<usize> {
        // On a socket for both families the addresses of IPv4 are wrapped (SV-17).
        let (destination, source_ip) = (destination.to_canonical(), source.ip().to_canonical());
        let sources = self.destinations.longest(destination)?;
        let is_local = source_ip.is_loopback() || source_ip == destination;
        let specific = if is_local { &sources.same_ip_or_loopback } else { &sources.external };
        let ranges = if specific.is_empty() { &sources.any } else { specific };
        let ports = ranges.longest(source_ip)?;
        let place = |port: Option<u32>| {
            let at = ports.binary_search_by_key(&port, |(port, _)| *port).ok()?;
            Some(ports[at].1 as usize)
        };
        place(Some(source.port().into())).or_else(|| place(None))
    }
}

impl Sources {
    /// `matches` are those of one destination range.
    fn new(matches: Vec<(Match, usize)>) -> Self {
        let mut left: Vec<_> = matches.into_iter().filter(|(m, _)| m.server_name.is_none()).collect();
        let raw = |m: &Match| m.transport_protocol == TransportProtocol::RawBuffer;
        let wanted = match left.iter().any(|(m, _)| raw(m)) {
            true => TransportProtocol::RawBuffer,
            false => TransportProtocol::Any,
        };
        left.retain(|(m, _)| m.transport_protocol == wanted && m.application_protocol.is_none());
        let of = |source_type| {
            let matches = left.iter().filter(|(m, _)| m.source_type == source_type).copied().collect();
            Ranges::group(matches, |m| m.source_prefix, ports)
        };
        Self {
            any: of(SourceType::Any),
            same_ip_or_loopback: of(SourceType::SameIpOrLoopback),
            external: of(SourceType::External),
        }
    }
}

/// `matches` are those of one source range.
fn ports(matches: Vec<(Match, usize)>) -> Ports {
    let mut ports: Vec<_> = matches.into_iter().map(|(m, chain)| (m.source_port, chain as u32)).collect();
    ports.sort_unstable();
    ports.into()
}

impl<T> Ranges<T> {
    /// Puts matches with equal ranges behind one.
    fn group(
        mut matches: Vec<(Match, usize)>,
        range: impl Fn(&Match) -> Option<Cidr>,
        make: impl Fn(Vec<(Match, usize)>) -> T,
    ) -> Self {
        matches.sort_unstable_by_key(|(m, _)| range(m));
        let mut ranges = Vec::new();
        let mut otherwise = None;
        for group in matches.chunk_by(|(a, _), (b, _)| range(a) == range(b)) {
            let behind = make(group.to_vec());
            match range(&group[0].0) {
                Some(range) => ranges.push((range, behind)),
                None => otherwise = Some(behind),
            }
        }
        let lengths = |is_v4: bool| {
            let of_family = ranges.iter().filter(|(range, _)| range.network().is_ipv4() == is_v4);
            let mut lengths: Vec<u8> = of_family.map(|(range, _)| range.len()).collect();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
            lengths.into_boxed_slice()
        };
        Self { v4_lengths: lengths(true), v6_lengths: lengths(false), otherwise, ranges: ranges.into() }
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.otherwise.is_none()
    }

    /// What is behind the longest range that holds `address`.
    fn longest(&self, address: IpAddr) -> Option<&T> {
        let lengths = if address.is_ipv4() { &self.v4_lengths } else { &self.v6_lengths };
        let at = lengths
            .iter()
            .find_map(|len| self.ranges.binary_search_by_key(&Cidr::new(address, *len), |(range, _)| *range).ok());
        at.map(|at| &self.ranges[at].1).or(self.otherwise.as_ref())
    }
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { v4_lengths: [].into(), v6_lengths: [].into(), ranges: [].into(), otherwise: None }
    }
}
