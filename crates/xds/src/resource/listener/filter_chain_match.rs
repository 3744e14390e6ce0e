//! Which connections a filter chain is for, and whether two chains claim the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::CidrRange;
use envoy_types::pb::envoy::config::listener::v3 as pb;
use envoy_types::pb::envoy::config::listener::v3::filter_chain_match::ConnectionSourceType;

use super::super::cidr::Cidr;
use super::super::fields::excerpt;
use crate::invalid::Faults;

/// The normalized matches of the chains so far, each with the index of its chain.
#[derive(Debug, Default)]
pub(super) struct TakenMatches {
    chains: BTreeMap<Match, usize>,
    texts: Texts,
}

/// One combination out of a FilterChainMatch. Absent is a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Match {
    pub(super) destination_port: Option<u32>,
    pub(super) prefix: Option<Cidr>,
    pub(super) server_name: Option<TextId>,
    pub(super) transport_protocol: TransportProtocol,
    pub(super) application_protocol: Option<TextId>,
    pub(super) source_type: SourceType,
    pub(super) source_prefix: Option<Cidr>,
    pub(super) source_port: Option<u32>,
}

/// What a connection must be recognized as before its first byte is read by anybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TransportProtocol {
    Any,
    /// Nothing is recognized, which is so for all our connections.
    RawBuffer,
    /// Something that we do not look for.
    Other(TextId),
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SourceType {
    Any,
    SameIpOrLoopback,
    External,
}

impl TakenMatches {
    /// Adds every combination of the match of chain `index`; `faults` is at the match.
    pub(super) fn add(&mut self, index: usize, pb: &pb::FilterChainMatch, faults: &mut Faults) {
        let faults_before = faults.count();
        let prefixes = faults.field("prefix_ranges", |f| cidrs(&pb.prefix_ranges, f));
        let source_prefixes = faults.field("source_prefix_ranges", |f| cidrs(&pb.source_prefix_ranges, f));
        let source_type = source_type(pb, faults);
        let (Some(source_type), true) = (source_type, faults.count() == faults_before) else { return };
        let source_ports = values(pb.source_ports.iter().copied());
        let server_names = values(pb.server_names.iter().map(|name| self.texts.id(&name.to_ascii_lowercase())));
        let application_protocols = values(pb.application_protocols.iter().map(|name| self.texts.id(name)));

        let sizes = [
            prefixes.len(),
            source_prefixes.len(),
            source_ports.len(),
            server_names.len(),
            application_protocols.len(),
        ];
        let combinations = sizes.into_iter().fold(1, usize::saturating_mul);
        if self.chains.len().saturating_add(combinations) > MAX_MATCHES {
            faults.add(format!("too many combinations: a listener may have {MAX_MATCHES}"));
            return;
        }
        let mut matches = vec![Match {
            destination_port: pb.destination_port.map(|port| port.value),
            prefix: None,
            server_name: None,
            transport_protocol: match pb.transport_protocol.as_str() {
                "" => TransportProtocol::Any,
                "raw_buffer" => TransportProtocol::RawBuffer,
                other => TransportProtocol::Other(self.texts.id(other)),
            },
            application_protocol: None,
            source_type,
            source_prefix: None,
            source_port: None,
        }];
        expand(&mut matches, &prefixes, |m, prefix| m.prefix = prefix);
        expand(&mut matches, &server_names, |m, name| m.server_name = name);
        expand(&mut matches, &application_protocols, |m, name| m.application_protocol = name);
        expand(&mut matches, &source_prefixes, |m, prefix| m.source_prefix = prefix);
        expand(&mut matches, &source_ports, |m, port| m.source_port = port);
        let earlier = matches.into_iter().filter_map(|m| self.chains.insert(m, index)).min();
        if let Some(earlier) = earlier {
            faults.add(format!("matches the same connections as filter_chains[{earlier}]"));
        }
    }

    /// All of them, each with the index of its chain.
    pub(super) fn into_matches(self) -> Vec<(Match, usize)> {
        self.chains.into_iter().collect()
    }
}

fn source_type(pb: &pb::FilterChainMatch, faults: &mut Faults) -> Option<SourceType> {
    match ConnectionSourceType::try_from(pb.source_type) {
        Ok(ConnectionSourceType::Any) => Some(SourceType::Any),
        Ok(ConnectionSourceType::SameIpOrLoopback) => Some(SourceType::SameIpOrLoopback),
        Ok(ConnectionSourceType::External) => Some(SourceType::External),
        Err(_) => {
            faults.field("source_type", |f| f.add(format!("unknown value {}", pb.source_type)));
            None
        }
    }
}

/// Puts each of `values` into a copy of each match.
fn expand<T: Copy>(matches: &mut Vec<Match>, values: &[T], set: impl Fn(&mut Match, T)) {
    *matches = matches
        .iter()
        .flat_map(|m| {
            values.iter().map(|value| {
                let mut copy = *m;
                set(&mut copy, *value);
                copy
            })
        })
        .collect();
}

/// The different values of a field; an empty field has the one value `None`.
fn values<T: Ord>(field: impl Iterator<Item = T>) -> Vec<Option<T>> {
    let different = field.collect::<BTreeSet<T>>();
    if different.is_empty() { vec![None] } else { different.into_iter().map(Some).collect() }
}

/// Checks address ranges; `faults` is at the field.
fn cidrs(pb: &[CidrRange], faults: &mut Faults) -> Vec<Option<Cidr>> {
    let ranges: Vec<_> = pb.iter().enumerate().map(|(i, pb)| faults.index(i, |f| cidr(pb, f))).collect();
    values(ranges.into_iter().flatten())
}

/// A length that the address does not have is the whole address.
fn cidr(pb: &CidrRange, faults: &mut Faults) -> Option<Cidr> {
    let Ok(address) = pb.address_prefix.parse::<IpAddr>() else {
        let found = excerpt(&pb.address_prefix);
        faults.field("address_prefix", |f| f.add(format!("{found} is not an IPv4 or IPv6 address")));
        return None;
    };
    let len = pb.prefix_len.map_or(0, |len| len.value);
    Some(Cidr::new(address, u8::try_from(len).unwrap_or(u8::MAX)))
}

/// Numbers for texts, so that matches are small whatever a listener writes into its names.
#[derive(Debug, Default)]
struct Texts {
    ids: BTreeMap<String, TextId>,
}

pub(super) type TextId = usize;

impl Texts {
    fn id(&mut self, text: &str) -> TextId {
        let next = self.ids.len();
        match self.ids.get(text) {
            Some(id) => *id,
            None => *self.ids.entry(text.to_owned()).or_insert(next),
        }
    }
}

/// How many combinations the chains of a listener may have: lists of a hundred ports, names and ranges multiply.
const MAX_MATCHES: usize = 16_384;
