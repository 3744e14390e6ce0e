//! Listeners for xDS-enabled servers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::socket_address::Protocol;
use envoy_types::pb::envoy::config::core::v3::transport_socket;
use envoy_types::pb::envoy::config::listener::v3 as pb;
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType;

use super::super::ParseContext;
use super::super::fields::{self, excerpt};
use super::super::filter::Side;
use super::super::tls::DownstreamTls;
use super::chain_index::ChainIndex;
use super::filter_chain_match::TakenMatches;
use super::{HttpConnectionManager, RouteSource};
use crate::invalid::Faults;

/// A server-side listener: what each connection to an address is served by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerListener {
    /// The address the server must listen on; see [`ServerListener::is_for`].
    pub address: SocketAddr,
    /// All chains; the default one is last.
    pub chains: Vec<Arc<FilterChain>>,
    /// Which of them are for certain connections.
    index: ChainIndex,
    /// The place of the chain for all others.
    default_place: Option<usize>,
}

/// What a connection is served by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterChain {
    /// As given, else its place in the listener; for messages only.
    pub name: Arc<str>,
    /// How a server with xDS credentials secures the connection; not at all if absent (TL-1).
    pub tls: Option<Arc<DownstreamTls>>,
    /// What becomes of RPCs.
    pub http: HttpConnectionManager,
}

impl ServerListener {
    /// A listener whose connections all have one chain; without one, they are closed.
    pub fn new(address: SocketAddr, chain: Option<Arc<FilterChain>>) -> Self {
        let default_place = chain.as_ref().map(|_| 0);
        Self { address, chains: chain.into_iter().collect(), index: ChainIndex::default(), default_place }
    }

    /// Whether a server that listens on `address` may use it: the IP must be the same (`::` is not `0.0.0.0`), and the
    /// port, unless the listener is for any (SV-11).
    pub fn is_for(&self, address: SocketAddr) -> bool {
        self.address.ip() == address.ip() && (self.address.port() == 0 || self.address.port() == address.port())
    }

    /// The chain of a connection from `source` that was accepted at the local address `destination`, as a place in
    /// `chains`; none if it is to be closed (SV-16, SV-19).
    pub fn choose(&self, destination: IpAddr, source: SocketAddr) -> Option<usize> {
        self.index.find(destination, source).or(self.default_place)
    }

    /// The RouteConfigurations that its chains name, as given; a name may come more than once.
    pub fn route_names(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().filter_map(|chain| match &chain.http.routes {
            RouteSource::Rds(name) => Some(name.as_str()),
            RouteSource::Inline(_) => None,
        })
    }

    /// Checks a server-side Listener; `faults` is at it.
    pub(super) fn parse(pb: &pb::Listener, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        let address = faults.field("address", |f| {
            let socket = fields::socket_address(pb.address.as_ref(), f)?;
            if socket.protocol != Protocol::Tcp as i32 {
                f.field("socket_address.protocol", |f| f.add("must be TCP"));
            }
            fields::ip_address(pb.address.as_ref(), f)
        });
        if !pb.listener_filters.is_empty() {
            faults.field("listener_filters", |f| f.add("must be empty"));
        }
        if pb.use_original_dst.is_some_and(|on| on.value) {
            faults.field("use_original_dst", |f| f.add("must be false"));
        }
        if pb.filter_chains.is_empty() && pb.default_filter_chain.is_none() {
            faults.add("filter_chains or default_filter_chain must be set");
        }
        let mut taken = TakenMatches::default();
        let chains: Vec<_> = faults.field("filter_chains", |f| {
            let chain = |(i, pb): (usize, &pb::FilterChain)| {
                f.index(i, |f| {
                    let chain = FilterChain::parse(pb, || format!("filter_chains[{i}]"), cx, f);
                    // A chain without a match is one that matches everything.
                    let pb = pb.filter_chain_match.clone().unwrap_or_default();
                    f.field("filter_chain_match", |f| taken.add(i, &pb, f));
                    chain.map(Arc::new)
                })
            };
            pb.filter_chains.iter().enumerate().map(chain).collect()
        });
        let default_chain = pb.default_filter_chain.as_ref().and_then(|pb| {
            let name = || "default_filter_chain".to_owned();
            faults.field("default_filter_chain", |f| FilterChain::parse(pb, name, cx, f)).map(Arc::new)
        });
        // A chain that is missing here has faults, and with them the whole listener.
        let mut chains: Vec<_> = chains.into_iter().flatten().collect();
        let default_place = default_chain.is_some().then_some(chains.len());
        chains.extend(default_chain);
        Some(Self { address: address?, chains, index: ChainIndex::new(taken.into_matches()), default_place })
    }
}

impl FilterChain {
    /// Checks the filters and the transport socket of a chain; `faults` is at the chain.
    fn parse(
        pb: &pb::FilterChain,
        place: impl FnOnce() -> String,
        cx: ParseContext<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let mut http = None;
        faults.field("filters", |f| {
            if pb.filters.len() != 1 {
                f.add(format!("has {} entries: expected one HttpConnectionManager and nothing else", pb.filters.len()));
            }
            let mut names = BTreeSet::new();
            for (i, pb) in pb.filters.iter().enumerate() {
                f.index(i, |f| {
                    if !names.insert(&pb.name) {
                        f.field("name", |f| f.add(format!("{} is in the chain twice", excerpt(&pb.name))));
                    }
                    f.field("typed_config", |f| match &pb.config_type {
                        Some(ConfigType::TypedConfig(any)) => {
                            if let Some(pb) = fields::unpack(any, f) {
                                http = HttpConnectionManager::parse(&pb, Side::Server, cx, f);
                            }
                        }
                        Some(ConfigType::ConfigDiscovery(_)) | None => f.add("must be set"),
                    });
                });
            }
        });
        let tls = pb.transport_socket.as_ref().and_then(|pb| {
            faults.field("transport_socket.typed_config", |f| match &pb.config_type {
                Some(transport_socket::ConfigType::TypedConfig(any)) => {
                    DownstreamTls::parse(&fields::unpack(any, f)?, cx, f).map(Arc::new)
                }
                None => {
                    f.add("must be set");
                    None
                }
            })
        });
        let name = if pb.name.is_empty() { place().into() } else { pb.name.as_str().into() };
        Some(Self { name, tls, http: http? })
    }
}
