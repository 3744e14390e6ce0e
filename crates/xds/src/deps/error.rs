//! Why there is no configuration or no cluster, and the notes that explain failures (L-13, L-14, L-19).

use std::fmt;
use std::sync::Arc;

use crate::client::{ErrorKind, ResourceError};

/// Why a cluster cannot be used. RPCs for it fail UNAVAILABLE with this text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterError {
    /// Which cluster.
    pub cluster: Arc<str>,
    /// Why.
    pub kind: ClusterErrorKind,
}

/// Why a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterErrorKind {
    /// The CDS resource cannot be had.
    Resource(Arc<ResourceError>),
    /// Aggregates are nested more than 16 deep.
    TooDeep,
    /// No leaf of the aggregate exists; the missing clusters with their reasons. Empty: it only refers to itself.
    NoLeaves(Vec<Arc<ResourceError>>),
}

/// Why a channel has no configuration (L-11). RPCs fail UNAVAILABLE with this text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConfigError {
    /// The Listener or the RouteConfiguration cannot be had.
    Resource(Arc<ResourceError>),
    /// The Listener is for servers.
    NotApiListener(Arc<str>),
    /// No virtual host matches.
    NoVirtualHost {
        /// The data-plane authority.
        authority: Arc<str>,
        /// The route configuration; the Listener if it is inline.
        route_config: Arc<str>,
    },
}

// === impl ClusterError ===

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ClusterErrorKind::Resource(error) => error.fmt(f),
            ClusterErrorKind::TooDeep => {
                write!(f, "aggregate Cluster {:?}: clusters are nested more than {MAX_DEPTH} deep", self.cluster)
            }
            ClusterErrorKind::NoLeaves(missing) => {
                write!(f, "aggregate Cluster {:?} has no leaf clusters", self.cluster)?;
                for (index, error) in missing.iter().enumerate() {
                    f.write_str(if index == 0 { ": " } else { "; " })?;
                    error.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ClusterError {}

// === impl ConfigError ===

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(error) => error.fmt(f),
            Self::NotApiListener(name) => write!(f, "Listener {name:?} is for servers: expected an API listener"),
            Self::NoVirtualHost { authority, route_config } => {
                write!(f, "RouteConfiguration {route_config:?} has no virtual host for {authority:?}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Whether this is the last word on a resource, as a value would be: it is known that there is none, or none that can
/// be used. Everything else is trouble with servers: the resource may come as soon as that is over.
pub(super) fn is_answer(kind: &ErrorKind) -> bool {
    match kind {
        // No server will ever be asked.
        ErrorKind::InvalidName(_) | ErrorKind::UnknownAuthority(_) => true,
        // A server that is alive does not have it, or has something else.
        ErrorKind::DoesNotExist { .. } | ErrorKind::Deleted | ErrorKind::Rejected { .. } => true,
        ErrorKind::FromServer { code, .. } => matches!(*code, NOT_FOUND | PERMISSION_DENIED),
        // Another server may do what this one cannot, or this one may learn it.
        ErrorKind::Unreachable(_) | ErrorKind::TimedOut { .. } | ErrorKind::NeedsDelta => false,
    }
}

/// gRPC status codes.
const NOT_FOUND: u16 = 5;
const PERMISSION_DENIED: u16 = 7;

/// The longest chain of clusters from a root to a leaf, both counted (A37). A loop counts with all its members.
pub(super) const MAX_DEPTH: u8 = 16;
