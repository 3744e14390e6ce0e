//! Names: targets, Listener name templates and `xdstp:` resource names.

use std::fmt;
use std::sync::Arc;

use crate::bootstrap::Bootstrap;
use crate::resource::ResourceType;

/// A resource type and the canonical name of a resource of it: the key of caches and requests (P-84).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    /// Which kind.
    pub resource_type: ResourceType,
    /// Canonical name.
    pub name: Arc<str>,
}

/// Which servers are asked for a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthorityKey {
    /// Old-style names: the top-level servers (P-81).
    TopLevel,
    /// The authority of an `xdstp:` name; may be empty (P-83).
    Named(Arc<str>),
}

/// Why a string is not a usable resource name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NameError {
    /// Not a well-formed `xdstp:` name, with what is wrong.
    #[error("{0}")]
    Malformed(String),
    /// The type segment is not the type that is watched (P-82).
    #[error("names a resource of type {found:?}: expected {expected}")]
    WrongType {
        /// The segment.
        found: String,
        /// The type that is watched.
        expected: &'static str,
    },
}

/// A channel target, resolved against a bootstrap (B-31 to B-35).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Canonical form, `xds:///name` or `xds://authority/name`: the scope of the client (C-1).
    pub canonical: Arc<str>,
    /// The Listener to watch, canonical.
    pub listener: Arc<str>,
    /// `:authority` of RPCs and key of virtual host matching (B-35).
    pub data_plane_authority: Arc<str>,
}

/// Why a target cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TargetError {
    /// The scheme is not `xds`.
    #[error("target {0:?} does not start with xds:")]
    Scheme(String),
    /// No usable path.
    #[error("target {0:?} names no service: expected xds:///name or xds://authority/name")]
    Path(String),
    /// The authority is not in the bootstrap (B-32).
    #[error("target {target:?}: authority {authority:?} is not in the bootstrap's authorities")]
    UnknownAuthority {
        /// As given.
        target: String,
        /// As given.
        authority: String,
    },
    /// The template makes a name that cannot be used.
    #[error("target {target:?}: listener name {name:?}: {error}")]
    Listener {
        /// As given.
        target: String,
        /// What the template made.
        name: String,
        /// What is wrong with it.
        error: NameError,
    },
}

impl Target {
    /// Resolves `target` against `bootstrap`.
    pub fn resolve(target: &str, bootstrap: &Bootstrap) -> Result<Self, TargetError> {
        let _ = (target, bootstrap);
        todo!()
    }
}

impl ResourceKey {
    /// Parses and canonicalizes `name`, and says whose it is. With federation off every name is old-style (B-30).
    pub fn parse(resource_type: ResourceType, name: &str, federation: bool) -> Result<(Self, AuthorityKey), NameError> {
        let _ = (resource_type, name, federation);
        todo!()
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.resource_type, self.name)
    }
}

impl fmt::Display for AuthorityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TopLevel => f.write_str("top-level servers"),
            Self::Named(name) => write!(f, "authority {name:?}"),
        }
    }
}
