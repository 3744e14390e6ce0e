//! ClusterLoadAssignment (EDS) and LbEndpointCollection (LEDS), `docs/rules/04` sections 6 and 7.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::{Address, HealthStatus as PbHealthStatus, Metadata};
use envoy_types::pb::envoy::config::endpoint::v3 as pb;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::xds::core::v3::CollectionEntry;
use envoy_types::pb::xds::core::v3::collection_entry::ResourceSpecifier;
use pb::cluster_load_assignment::policy::DropOverload;
use pb::lb_endpoint::HostIdentifier;
use prost::{DecodeError, Message};

use super::{FromWire, ParseContext, fields};
use crate::bootstrap::{DeltaMode, NodeLocality};
use crate::invalid::{Faults, Invalid};
use crate::name::is_glob;

mod glob;
mod wire;

pub use glob::EndpointGlob;
pub use glob::glob_of;
#[cfg(test)]
pub(crate) use glob::steps_taken;

use wire::Assignment;

/// Endpoints of a cluster by priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// Priority 0 first; no gaps. Empty: the cluster is unreachable.
    pub priorities: Vec<Priority>,
    /// Shares of RPCs to drop, in order.
    pub drops: Vec<DropCategory>,
}

/// The localities of one priority; no locality twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Priority {
    /// In the order of the resource.
    pub localities: Vec<LocalityEndpoints>,
}

/// The endpoints of one locality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalityEndpoints {
    /// Which locality.
    pub locality: Arc<Locality>,
    /// Its weight in its priority; never zero.
    pub weight: u32,
    /// Where its endpoints come from.
    pub source: EndpointSource,
    /// The HTTP proxy on the way to endpoints that name none, if the cluster wants one (A86).
    pub proxy: Option<SocketAddr>,
}

/// Name of a locality; the same three parts as a node's.
pub type Locality = NodeLocality;

/// Where the endpoints of a locality come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointSource {
    /// Inside the ClusterLoadAssignment.
    Inline(Arc<EndpointCollection>),
    /// An LbEndpointCollection resource of this name (A95), or the glob collection that a name with `/*` at its end
    /// stands for (GC-2).
    Collection(String),
}

/// Which collections a ClusterLoadAssignment may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collections {
    /// LEDS is not looked at (A95's guard).
    Ignored,
    /// Lists.
    Lists,
    /// Those, and globs: only a delta server can send them (GC-2).
    ListsAndGlobs,
}

/// A list of endpoints. Empty: the locality is unreachable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointCollection {
    /// In the order of the resource; no address twice.
    pub endpoints: Vec<Endpoint>,
}

/// One endpoint: a backend with one or more addresses (A61).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its addresses in order of preference.
    pub addresses: Addresses,
    /// Its weight in its locality; never zero.
    pub weight: u32,
    /// Its health.
    pub health: HealthStatus,
    /// Its names and the like. Few have any, so that those without pay for one pointer.
    pub names: Option<Arc<EndpointNames>>,
}

/// What an endpoint may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointNames {
    /// `endpoint.hostname` if not empty (A81).
    pub hostname: Option<Arc<str>>,
    /// `envoy.lb` / `hash_key` of its metadata (A76).
    pub hash_key: Option<Arc<str>>,
    /// The HTTP proxy on the way to it, if the cluster wants one (A86).
    pub proxy: Option<SocketAddr>,
}

/// One or more addresses without a heap block for the common case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// A single address.
    One(SocketAddr),
    /// Two or more.
    Many(Arc<[SocketAddr]>),
}

/// The health states that survive parsing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthStatus {
    /// Not known; usable.
    #[default]
    Unknown,
    /// Usable.
    Healthy,
    /// Only for session affinity (A55).
    Draining,
}

/// A share of RPCs to drop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DropCategory {
    /// Category, for reports and messages.
    pub category: String,
    /// Parts of a million, at most a million.
    pub per_million: u32,
}

impl Addresses {
    /// All of them in order; never empty.
    pub fn as_slice(&self) -> &[SocketAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Many(addresses) => addresses,
        }
    }

    /// The most preferred one.
    pub fn first(&self) -> SocketAddr {
        self.as_slice()[0]
    }
}

impl FromWire for Endpoints {
    type Message = Assignment;

    /// What is not looked at stays a part of `bytes`.
    fn read(bytes: &Bytes) -> Result<Assignment, DecodeError> {
        Assignment::decode(bytes.clone())
    }

    fn name(message: &mut Self::Message) -> Option<String> {
        Some(std::mem::take(&mut message.cluster_name))
    }

    fn from_message(message: &Self::Message, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        let collections = match (cx.bootstrap.guards.endpoint_fallback, cx.server.features.delta) {
            (false, _) => Collections::Ignored,
            (true, DeltaMode::Off) => Collections::Lists,
            (true, DeltaMode::Preferred | DeltaMode::Required) => Collections::ListsAndGlobs,
        };
        Self::parse(message, collections)
    }
}

impl FromWire for EndpointCollection {
    type Message = pb::LbEndpointCollection;

    fn name(_: &mut Self::Message) -> Option<String> {
        None
    }

    fn from_message(message: &Self::Message, _: ParseContext<'_>) -> Result<Self, Invalid> {
        Self::parse(message)
    }
}

impl Endpoints {
    /// The largest priority that a locality may have: the limit that the definition of the message states.
    pub const MAX_PRIORITY: u32 = 128;

    /// How many drop categories there may be. Every RPC draws once for each.
    pub const MAX_DROPS: usize = 128;

    /// Checks a ClusterLoadAssignment.
    ///
    /// Localities and endpoints are not counted: what is kept of one takes a small multiple of its bytes.
    pub(super) fn parse(pb: &Assignment, collections: Collections) -> Result<Self, Invalid> {
        with_distinct_addresses(|addresses, faults| Self {
            priorities: faults.field("endpoints", |f| priorities(&pb.endpoints, collections, addresses, f)),
            drops: pb.policy.as_ref().map_or_else(Vec::new, |policy| {
                faults.field("policy.drop_overloads", |f| drops(&policy.drop_overloads, f))
            }),
        })
    }
}

impl EndpointCollection {
    /// Checks an LbEndpointCollection.
    pub(super) fn parse(pb: &pb::LbEndpointCollection) -> Result<Self, Invalid> {
        with_distinct_addresses(|addresses, faults| {
            faults.field("entries", |f| Self::collect(&pb.entries, f, |entry, f| collection_entry(entry, addresses, f)))
        })
    }

    /// Parses every element of `list`, of which some may not be used; `faults` is at the list.
    fn collect<T>(list: &[T], faults: &mut Faults, mut parse: impl FnMut(&T, &mut Faults) -> Option<Endpoint>) -> Self {
        let mut endpoints = Vec::with_capacity(list.len());
        // 64 bits: the sum of weights must fit 32, and must not wrap until that is known.
        let mut weights = 0;
        for (i, element) in list.iter().enumerate() {
            if let Some(endpoint) = faults.index(i, |f| parse(element, f)) {
                weights += u64::from(endpoint.weight);
                endpoints.push(endpoint);
            }
        }
        if weights > u64::from(u32::MAX) {
            faults.add(format!("the weights of the endpoints add up to {weights}: at most {}", u32::MAX));
        }
        endpoints.shrink_to_fit();
        Self { endpoints }
    }
}

impl Endpoint {
    /// Checks an LbEndpoint; `faults` is at it. `None` if its health takes it out or if it has a fault.
    fn parse(pb: &pb::LbEndpoint, addresses: &mut SeenAddresses, faults: &mut Faults) -> Option<Self> {
        // Before anything else: what is wrong with an endpoint that is not used does not matter.
        let health = HealthStatus::parse(pb.health_status)?;
        let weight = pb.load_balancing_weight.map_or(1, |weight| weight.value);
        if weight == 0 {
            faults.field("load_balancing_weight", |f| f.add("must not be 0"));
        }
        let metadata = pb.metadata.as_ref();
        let known = metadata.map(|metadata| faults.field("metadata", |f| fields::parse_metadata(metadata, f)));
        let endpoint = match &pb.host_identifier {
            Some(HostIdentifier::Endpoint(endpoint)) => endpoint,
            Some(HostIdentifier::EndpointName(_)) => {
                faults.field("endpoint_name", |f| f.add("not supported: expected endpoint"));
                return None;
            }
            None => {
                faults.field("endpoint", |f| f.add("must be set"));
                return None;
            }
        };
        Some(Self {
            addresses: faults.field("endpoint", |f| Addresses::parse(endpoint, addresses, f))?,
            weight,
            health,
            names: EndpointNames {
                hostname: non_empty(&endpoint.hostname),
                hash_key: metadata.and_then(hash_key),
                proxy: known.and_then(|known| known.proxy),
            }
            .unless_empty(),
        })
    }

    /// `endpoint.hostname` if not empty (A81).
    pub fn hostname(&self) -> Option<&Arc<str>> {
        self.names.as_ref()?.hostname.as_ref()
    }

    /// `envoy.lb` / `hash_key` of its metadata (A76).
    pub fn hash_key(&self) -> Option<&Arc<str>> {
        self.names.as_ref()?.hash_key.as_ref()
    }

    /// The HTTP proxy that its metadata names (A86).
    pub fn proxy(&self) -> Option<SocketAddr> {
        self.names.as_ref()?.proxy
    }
}

impl EndpointNames {
    fn unless_empty(self) -> Option<Arc<Self>> {
        (self != Self::default()).then(|| Arc::new(self))
    }
}

impl Addresses {
    /// Checks the addresses of an Endpoint; `faults` is at it.
    fn parse(pb: &pb::Endpoint, seen: &mut SeenAddresses, faults: &mut Faults) -> Option<Self> {
        let first = faults.field("address", |f| seen.parse(pb.address.as_ref(), f));
        if pb.additional_addresses.is_empty() {
            return first.map(Self::One);
        }
        let mut all = Vec::with_capacity(1 + pb.additional_addresses.len());
        all.push(first);
        faults.field("additional_addresses", |f| {
            for (i, additional) in pb.additional_addresses.iter().enumerate() {
                all.push(f.index(i, |f| f.field("address", |f| seen.parse(additional.address.as_ref(), f))));
            }
        });
        all.into_iter().collect::<Option<_>>().map(Self::Many)
    }
}

impl HealthStatus {
    /// `None` for every state that takes an endpoint out of use.
    fn parse(pb: i32) -> Option<Self> {
        match PbHealthStatus::try_from(pb) {
            Ok(PbHealthStatus::Unknown) => Some(Self::Unknown),
            Ok(PbHealthStatus::Healthy) => Some(Self::Healthy),
            Ok(PbHealthStatus::Draining) => Some(Self::Draining),
            _ => None,
        }
    }
}

/// The localities by priority; `faults` is at the list.
fn priorities(
    pb: &[wire::LocalityAssignment],
    collections: Collections,
    addresses: &mut SeenAddresses,
    faults: &mut Faults,
) -> Vec<Priority> {
    let mut priorities = Vec::new();
    // Sum of the weights by priority; 64 bits, so that it cannot wrap. Zero: no locality has that priority.
    let mut weights = Vec::new();
    let mut first_use = BTreeMap::new();
    for (i, locality) in pb.iter().enumerate() {
        // An entry without weight does not count, not even for gaps.
        let Some(weight) = locality.load_balancing_weight.map(|weight| weight.value).filter(|weight| *weight > 0)
        else {
            continue;
        };
        faults.index(i, |f| {
            let parsed = LocalityEndpoints::parse(locality, weight, collections, addresses, f);
            if locality.priority > Endpoints::MAX_PRIORITY {
                f.field("priority", |f| {
                    f.add(format!("{} is too large: at most {}", locality.priority, Endpoints::MAX_PRIORITY));
                });
                return;
            }
            let priority = locality.priority as usize;
            if priorities.len() <= priority {
                priorities.resize_with(priority + 1, Priority::default);
                weights.resize(priority + 1, 0);
            }
            weights[priority] += u64::from(weight);
            let Some(parsed) = parsed else { return };
            match first_use.entry((priority, parsed.locality.clone())) {
                Entry::Vacant(entry) => {
                    entry.insert(i);
                    priorities[priority].localities.push(parsed);
                }
                Entry::Occupied(entry) => f.field("locality", |f| {
                    f.add(format!("same locality as endpoints[{}] in priority {priority}", entry.get()));
                }),
            }
        });
    }
    for (priority, weight) in weights.into_iter().enumerate() {
        if weight == 0 {
            faults.add(format!("no locality has priority {priority}, but a larger priority is used"));
        } else if weight > u64::from(u32::MAX) {
            faults.add(format!("the weights of priority {priority} add up to {weight}: at most {}", u32::MAX));
        }
    }
    priorities
}

impl LocalityEndpoints {
    /// Checks a LocalityLbEndpoints that has a weight; `faults` is at it.
    fn parse(
        pb: &wire::LocalityAssignment,
        weight: u32,
        collections: Collections,
        addresses: &mut SeenAddresses,
        faults: &mut Faults,
    ) -> Option<Self> {
        let metadata = pb.metadata.as_ref();
        let known = metadata.map(|metadata| faults.field("metadata", |f| fields::parse_metadata(metadata, f)));
        let leds = pb.leds_cluster_locality_config.as_ref().filter(|_| collections != Collections::Ignored);
        let source = match leds {
            Some(leds) => faults
                .field("leds_cluster_locality_config", |f| collection_name(leds, collections, f))
                .map(EndpointSource::Collection),
            None => {
                let endpoints = faults.field("lb_endpoints", |f| {
                    EndpointCollection::collect(&pb.lb_endpoints, f, |bytes, f| {
                        match pb::LbEndpoint::decode(bytes.as_ref()) {
                            Ok(endpoint) => Endpoint::parse(&endpoint, addresses, f),
                            Err(error) => {
                                f.add(format!("cannot be decoded: {error}"));
                                None
                            }
                        }
                    })
                });
                Some(EndpointSource::Inline(Arc::new(endpoints)))
            }
        };
        let Some(locality) = &pb.locality else {
            faults.field("locality", |f| f.add("must be set"));
            return None;
        };
        let locality = Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            sub_zone: locality.sub_zone.clone(),
        };
        let proxy = known.and_then(|known| known.proxy);
        Some(Self { locality: Arc::new(locality), weight, source: source?, proxy })
    }
}

/// The name of a collection; `faults` is at the LedsClusterLocalityConfig.
fn collection_name(
    pb: &pb::LedsClusterLocalityConfig,
    collections: Collections,
    faults: &mut Faults,
) -> Option<String> {
    faults.field("leds_config", |f| fields::self_config_source(pb.leds_config.as_ref(), f));
    let name = pb.leds_collection_name.as_str();
    let fault = if name.is_empty() {
        "must not be empty"
    } else if is_glob(name) && collections != Collections::ListsAndGlobs {
        "is a glob collection, which needs delta: expected a list collection"
    } else {
        return Some(name.to_owned());
    };
    faults.field("leds_collection_name", |f| f.add(fault));
    None
}

/// One endpoint of a collection; `faults` is at the entry. Name and version are not used.
fn collection_entry(pb: &CollectionEntry, addresses: &mut SeenAddresses, faults: &mut Faults) -> Option<Endpoint> {
    let resource = match &pb.resource_specifier {
        Some(ResourceSpecifier::InlineEntry(inline)) => inline.resource.as_ref(),
        Some(ResourceSpecifier::Locator(_)) => {
            faults.field("locator", |f| f.add("not supported: expected inline_entry"));
            return None;
        }
        None => {
            faults.field("inline_entry", |f| f.add("must be set"));
            return None;
        }
    };
    faults.field("inline_entry.resource", |f| match resource {
        Some(any) => Endpoint::parse(&fields::unpack(any, f)?, addresses, f),
        None => {
            f.add("must be set");
            None
        }
    })
}

/// The drop categories; `faults` is at the list.
fn drops(pb: &[DropOverload], faults: &mut Faults) -> Vec<DropCategory> {
    if pb.len() > Endpoints::MAX_DROPS {
        faults.add(format!("has {} entries: at most {}", pb.len(), Endpoints::MAX_DROPS));
        return Vec::new();
    }
    let mut drops = Vec::with_capacity(pb.len());
    for (i, drop) in pb.iter().enumerate() {
        faults.index(i, |f| {
            if drop.category.is_empty() {
                f.field("category", |f| f.add("must not be empty"));
            }
            let per_million = f.field("drop_percentage", |f| match &drop.drop_percentage {
                Some(percentage) => fields::per_million(percentage, f),
                None => {
                    f.add("must be set");
                    None
                }
            });
            drops.extend(per_million.map(|per_million| DropCategory { category: drop.category.clone(), per_million }));
        });
    }
    drops
}

/// `envoy.lb` / `hash_key`, if it is a string that is not empty (A76).
fn hash_key(metadata: &Metadata) -> Option<Arc<str>> {
    let kind = metadata.filter_metadata.get("envoy.lb")?.fields.get("hash_key")?.kind.as_ref()?;
    if let Kind::StringValue(key) = kind { non_empty(key) } else { None }
}

fn non_empty(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

/// Runs `parse`, and makes sure that no address comes twice.
///
/// Sorting integers once is far cheaper than a tree of addresses, but does not say where a duplicate
/// stands. So a resource that has one, and only that, is parsed again with a tree.
fn with_distinct_addresses<T>(parse: impl Fn(&mut SeenAddresses, &mut Faults) -> T) -> Result<T, Invalid> {
    let mut faults = Faults::new();
    let mut seen = SeenAddresses::Unchecked { v4: Vec::new(), v6: Vec::new() };
    let mut value = parse(&mut seen, &mut faults);
    if seen.has_duplicates() {
        faults = Faults::new();
        value = parse(&mut SeenAddresses::Checked(BTreeSet::new()), &mut faults);
    }
    faults.finish(value)
}

/// The addresses of a resource so far.
enum SeenAddresses {
    /// To be checked together at the end. An address is an integer: the IP, then 16 bits of port.
    Unchecked { v4: Vec<u64>, v6: Vec<(u128, u16)> },
    /// Checked one by one, so that a duplicate is reported in its place.
    Checked(BTreeSet<SocketAddr>),
}

impl SeenAddresses {
    /// Checks an Address and remembers it; `faults` is at it.
    fn parse(&mut self, pb: Option<&Address>, faults: &mut Faults) -> Option<SocketAddr> {
        let address = fields::ip_address(pb, faults)?;
        match (self, address) {
            (Self::Unchecked { v4, .. }, SocketAddr::V4(address)) => {
                v4.push(u64::from(address.ip().to_bits()) << 16 | u64::from(address.port()));
            }
            (Self::Unchecked { v6, .. }, SocketAddr::V6(address)) => v6.push((address.ip().to_bits(), address.port())),
            (Self::Checked(addresses), address) => {
                if !addresses.insert(address) {
                    faults.add(format!("{address} is in this resource more than once"));
                }
            }
        }
        Some(address)
    }

    fn has_duplicates(self) -> bool {
        fn any_twice<T: Ord>(mut list: Vec<T>) -> bool {
            list.sort_unstable();
            list.windows(2).any(|pair| pair[0] == pair[1])
        }
        match self {
            Self::Unchecked { v4, v6 } => any_twice(v4) || any_twice(v6),
            Self::Checked(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
