//! Whether an address is served, and why not.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::client::ResourceError;

/// Whether an address is served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServingState {
    /// Connections are accepted.
    Serving,
    /// Connections are refused.
    NotServing(Arc<NotServing>),
}

/// Why an address is not served (S-12).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NotServing {
    /// Nothing was heard of the Listener yet.
    Awaited {
        /// Name of the Listener.
        listener: Arc<str>,
    },
    /// The Listener cannot be had.
    Resource(Arc<ResourceError>),
    /// The Listener is for clients.
    NotForServers {
        /// Name of the Listener.
        listener: Arc<str>,
        /// URI of the xDS server that it is from.
        server: Arc<str>,
    },
    /// The Listener is for another address.
    AnotherAddress {
        /// Name of the Listener.
        listener: Arc<str>,
        /// URI of the xDS server that it is from.
        server: Arc<str>,
        /// The address that it is for.
        found: SocketAddr,
        /// Ours.
        expected: SocketAddr,
    },
    /// The Listener asks for TLS, which the credentials of the server do not follow, and must (TL-2).
    SecurityNotFollowed {
        /// Name of the Listener.
        listener: Arc<str>,
        /// URI of the xDS server that it is from.
        server: Arc<str>,
        /// The first filter chain that asks for it.
        chain: Arc<str>,
    },
    /// The socket cannot be made to listen; it is tried again.
    Socket {
        /// Ours.
        address: SocketAddr,
        /// What the system says.
        error: String,
    },
    /// The application has ended it.
    ShutDown,
}

impl ServingState {
    /// Whether connections are accepted.
    pub fn is_serving(&self) -> bool {
        matches!(self, Self::Serving)
    }

    /// Whether there is nothing to tell after `other`: the same trouble at another time is the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Serving, Self::Serving) => true,
            (Self::NotServing(one), Self::NotServing(other)) => match (&**one, &**other) {
                (NotServing::Resource(one), NotServing::Resource(other)) => {
                    (&one.resource, &one.server, &one.kind) == (&other.resource, &other.server, &other.kind)
                }
                (one, other) => one == other,
            },
            (Self::Serving, Self::NotServing(_)) | (Self::NotServing(_), Self::Serving) => false,
        }
    }
}

impl fmt::Display for NotServing {
    /// Names the resource, the server and what is wrong (SV-13).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Awaited { listener } => write!(f, "Listener {listener:?} has not come yet"),
            Self::Resource(error) => error.fmt(f),
            Self::NotForServers { listener, server } => {
                write!(f, "Listener {listener:?} from {server} is for clients: expected one with an address")
            }
            Self::AnotherAddress { listener, server, found, expected } => {
                write!(f, "Listener {listener:?} from {server} is for {found}: expected {expected}")
            }
            Self::SecurityNotFollowed { listener, server, chain } => write!(
                f,
                "Listener {listener:?} from {server}: filter chain {chain:?} asks for TLS in its transport_socket, which the \
                 credentials of the server do not follow"
            ),
            Self::Socket { address, error } => write!(f, "cannot listen on {address}: {error}"),
            Self::ShutDown => f.write_str("shut down by the application"),
        }
    }
}

impl std::error::Error for NotServing {}
