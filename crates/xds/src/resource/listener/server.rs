//! Listeners for xDS-enabled servers.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::socket_address::Protocol;
use envoy_types::pb::envoy::config::core::v3::transport_socket;
use envoy_types::pb::envoy::config::listener::v3 as pb;
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;

use super::super::ParseContext;
use super::super::fields::{self, excerpt};
use super::super::filter::Side;
use super::HttpConnectionManager;
use super::filter_chain_match::TakenMatches;
use crate::invalid::Faults;

/// A server-side listener, as far as a client tells it apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerListener {
    /// The address the server must listen on.
    pub address: SocketAddr,
}

impl ServerListener {
    /// Checks a server-side Listener; `faults` is at it. The whole of it must be right, though we keep little.
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
        faults.field("filter_chains", |f| {
            let mut taken = TakenMatches::default();
            for (i, pb) in pb.filter_chains.iter().enumerate() {
                f.index(i, |f| {
                    filter_chain(pb, cx, f);
                    // A chain without a match is one that matches everything.
                    let pb = pb.filter_chain_match.clone().unwrap_or_default();
                    f.field("filter_chain_match", |f| taken.add(i, &pb, f));
                });
            }
        });
        if let Some(pb) = &pb.default_filter_chain {
            faults.field("default_filter_chain", |f| filter_chain(pb, cx, f));
        }
        Some(Self { address: address? })
    }
}

/// Checks the filters and the transport socket of a chain; `faults` is at the chain.
fn filter_chain(pb: &pb::FilterChain, cx: ParseContext<'_>, faults: &mut Faults) {
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
                            HttpConnectionManager::parse(&pb, Side::Server, cx, f);
                        }
                    }
                    Some(ConfigType::ConfigDiscovery(_)) | None => f.add("must be set"),
                });
            });
        }
    });
    if let Some(pb) = &pb.transport_socket {
        faults.field("transport_socket.typed_config", |f| match &pb.config_type {
            Some(transport_socket::ConfigType::TypedConfig(any)) => {
                fields::unpack::<DownstreamTlsContext>(any, f);
            }
            None => f.add("must be set"),
        });
    }
}
