//! What is in force for an address.

use std::sync::Arc;

use crate::client::ResourceError;
use crate::resource::RouteConfig;
use crate::resource::listener::{FilterChain, ServerListener};

/// The number of a Listener that was in force. A later one has a greater number; none is used twice by one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The routes of a filter chain, or why they cannot be had: then its RPCs fail UNAVAILABLE (S-17).
pub type RouteResult = Result<Arc<RouteConfig>, Arc<ResourceError>>;

/// A Listener with all RouteConfigurations that it names, published as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Serving {
    /// Which generation of connections it is for.
    pub generation: Generation,
    /// Name of the Listener resource.
    pub name: Arc<str>,
    /// What connections are served by.
    pub listener: Arc<ServerListener>,
    /// Whether resources of more than one server of an authority are in it, as a switch took too long.
    pub mixed_sources: bool,
    /// The routes of each chain of the listener, in the same order.
    pub routes: Vec<RouteResult>,
}

impl Serving {
    /// Each chain with its routes, or why there are none.
    pub fn chains(&self) -> impl Iterator<Item = (&Arc<FilterChain>, &RouteResult)> {
        self.listener.chains.iter().zip(&self.routes)
    }
}
