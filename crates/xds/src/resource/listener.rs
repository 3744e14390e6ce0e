//! Listener (LDS), `docs/rules/04` section 2.

use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3 as pb;

use super::filter::Side;
use super::{FromWire, ParseContext, fields};
use crate::invalid::{Faults, Invalid};

mod chain_index;
mod filter_chain_match;
mod http_connection_manager;
mod server;
#[cfg(test)]
mod tests;

pub use http_connection_manager::{HttpConnectionManager, RouteSource};
pub use server::{FilterChain, ServerListener};

/// A Listener: for a client channel, or for an xDS-enabled server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// Has `api_listener`: for clients.
    Api(HttpConnectionManager),
    /// Has only `address`: for servers. A client reports an error and does not NACK.
    Server(Arc<ServerListener>),
}

impl FromWire for Listener {
    type Message = pb::Listener;

    fn name(message: &mut Self::Message) -> Option<String> {
        Some(std::mem::take(&mut message.name))
    }

    fn from_message(message: &Self::Message, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        Self::parse(message, cx)
    }
}

impl Listener {
    /// Checks a Listener.
    pub fn parse(pb: &pb::Listener, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        let mut faults = Faults::new();
        // With both it is for clients: Istio sends an address as well.
        let listener = match (&pb.api_listener, &pb.address) {
            (Some(pb), _) => api_listener(pb, cx, &mut faults).map(Self::Api),
            (None, Some(_)) => {
                ServerListener::parse(pb, cx, &mut faults).map(|listener| Self::Server(Arc::new(listener)))
            }
            (None, None) => {
                faults.add("api_listener or address must be set");
                None
            }
        };
        Ok(faults.finish(listener)?.expect("what cannot be parsed reports a fault"))
    }
}

fn api_listener(pb: &pb::ApiListener, cx: ParseContext<'_>, faults: &mut Faults) -> Option<HttpConnectionManager> {
    faults.field("api_listener.api_listener", |f| match &pb.api_listener {
        Some(any) => HttpConnectionManager::parse(&fields::unpack(any, f)?, Side::Client, cx, f),
        None => {
            f.add("must be set");
            None
        }
    })
}
