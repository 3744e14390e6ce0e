//! Why there is no configuration or no cluster, and the notes that explain failures (L-13, L-14, L-19).

use std::fmt;
use std::sync::Arc;

use crate::client::{ErrorKind, ResourceError};
use crate::resource::ResourceType;

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
#[non_exhaustive]
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
#[non_exhaustive]
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

/// A resource error as a note: which resource, what happened, at which server.
pub(super) struct Note<'a>(pub(super) &'a ResourceError);

// === impl ClusterError ===

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ClusterErrorKind::Resource(error) => Note(error).fmt(f),
            ClusterErrorKind::TooDeep => {
                write!(f, "aggregate cluster {}: clusters are nested more than {MAX_DEPTH} deep", self.cluster)
            }
            ClusterErrorKind::NoLeaves(missing) => {
                write!(f, "aggregate cluster {} has no leaf clusters", self.cluster)?;
                for (index, error) in missing.iter().enumerate() {
                    f.write_str(if index == 0 { ": " } else { "; " })?;
                    Note(error).fmt(f)?;
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
            Self::Resource(error) => Note(error).fmt(f),
            Self::NotApiListener(name) => write!(f, "LDS resource {name}: not an API listener"),
            Self::NoVirtualHost { authority, route_config } => {
                write!(f, "route configuration {route_config}: no virtual host matches {authority}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

// === impl Note ===

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(ResourceError { resource, server, node_id, kind, .. }) = self;
        write!(f, "{resource}: ")?;
        match kind {
            ErrorKind::InvalidName(why) => write!(f, "invalid name: {why}")?,
            ErrorKind::UnknownAuthority(authority) => {
                write!(f, "authority {authority:?} is not in the bootstrap configuration")?
            }
            ErrorKind::Unreachable(cause) => write!(f, "no xDS server can be reached: {cause}")?,
            ErrorKind::DoesNotExist { after } => write!(f, "does not exist: not sent within {after:?}")?,
            ErrorKind::TimedOut { after } => write!(f, "timed out: not sent within {after:?}")?,
            ErrorKind::Deleted => f.write_str("does not exist: deleted by the server")?,
            ErrorKind::Rejected { version, invalid } => write!(f, "version {version} was rejected: {invalid}")?,
            ErrorKind::FromServer { code, message } => write!(f, "the server answered status {code}: {message}")?,
        }
        match server {
            Some(server) => write!(f, " (xDS server {server}, node ID:{node_id})"),
            None => write!(f, " (node ID:{node_id})"),
        }
    }
}

/// The name that operators know from gRPC's error texts.
pub(super) fn service(resource_type: ResourceType) -> &'static str {
    match resource_type {
        ResourceType::Listener => "LDS",
        ResourceType::RouteConfig => "RDS",
        ResourceType::Cluster => "CDS",
        ResourceType::Endpoints => "EDS",
        ResourceType::EndpointCollection => "LEDS",
    }
}

/// The longest chain of clusters from a root to a leaf, both counted (A37).
pub(super) const MAX_DEPTH: u8 = 16;
