//! Why a server cannot start.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::bootstrap::BootstrapError;

/// Why a server cannot start, from [`ServerBuilder::start`](crate::ServerBuilder::start).
///
/// Nothing that the control plane does or does not do is among it: a server waits for its configuration.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is no usable bootstrap.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The bootstrap does not say what Listener resources of servers are called.
    #[error("the bootstrap has no server_listener_resource_name_template, which servers need")]
    NoTemplate,
    /// The template of the bootstrap makes a resource name that cannot be used.
    #[error("server_listener_resource_name_template makes a name for {0} that cannot be used: {1}")]
    ListenerName(SocketAddr, String),
    /// The address cannot be bound.
    #[error("cannot bind {0}: {1}")]
    Bind(SocketAddr, #[source] io::Error),
    /// No address was named: see [`ServerBuilder::listen`](crate::ServerBuilder::listen).
    #[error("no address to listen on")]
    NoAddress,
    /// Two services have the same name.
    #[error("service {0:?} was added twice")]
    DuplicateService(&'static str),
    /// There is no tokio runtime, and servers run on one.
    #[error("no tokio runtime: start the server inside one, for example in a function under #[tokio::main]")]
    NoRuntime,
}

impl fmt::Debug for ServeError {
    /// Writes the text, which is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
