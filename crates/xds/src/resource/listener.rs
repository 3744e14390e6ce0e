//! Listener (LDS), `spec/04` section 2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::listener::v3 as pb;

use super::ParseContext;
use super::filter::HttpFilter;
use super::route::RouteConfig;
use crate::invalid::Invalid;

/// A Listener: for a client channel, or for an xDS-enabled server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// Has `api_listener`: for clients.
    Api(HttpConnectionManager),
    /// Has only `address`: for servers. A client reports an error and does not NACK.
    Server(ServerListener),
}

/// The parts of `HttpConnectionManager` that gRPC uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpConnectionManager {
    /// Default time limit of RPCs on routes without one.
    pub max_stream_duration: Option<Duration>,
    /// The filter chain; the router is last.
    pub filters: Vec<HttpFilter>,
    /// Where the routes come from.
    pub routes: RouteSource,
}

/// Where a Listener's routes come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouteSource {
    /// Inside the Listener.
    Inline(Arc<RouteConfig>),
    /// An RDS resource of this name.
    Rds(String),
}

/// A server-side listener, as far as a client tells it apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerListener {
    /// The address the server must listen on.
    pub address: SocketAddr,
}

impl Listener {
    /// Checks a Listener.
    pub fn parse(pb: &pb::Listener, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        let _ = (pb, cx);
        todo!()
    }
}
