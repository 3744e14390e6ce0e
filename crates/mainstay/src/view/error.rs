//! Why there is no configuration, no cluster or no resource.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_xds::{client, deps};
use tonic::Code;

use super::Clock;
use crate::names::{Fault, ResourceName};

/// Why a channel has no configuration. RPCs fail with UNAVAILABLE and this text.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// What is missing.
    pub kind: ConfigErrorKind,
    text: Arc<str>,
}

/// The kinds of [`ConfigError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// The Listener or the RouteConfiguration is not available.
    Resource(Box<ResourceError>),
    /// The Listener is one for servers.
    NotApiListener,
    /// No virtual host of the RouteConfiguration matches the authority of the channel.
    NoVirtualHost,
}

/// Why a cluster cannot be used. RPCs for it fail with UNAVAILABLE and this text.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterError {
    /// What is wrong with the cluster.
    pub kind: ClusterErrorKind,
    text: Arc<str>,
}

/// The kinds of [`ClusterError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterErrorKind {
    /// The Cluster is not available.
    Resource(Box<ResourceError>),
    /// Aggregate clusters are nested too deep (gRFC A37).
    TooDeep,
    /// No leaf of the aggregate cluster exists. These clusters are missing.
    NoLeaves(Vec<ResourceError>),
}

/// What is wrong with a resource, and since when.
///
/// The text names the resource, the server and the cause.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceError {
    /// The type and the name of the resource.
    pub resource: ResourceName,
    /// The URI of the server concerned, if it is a single one.
    pub server: Option<String>,
    /// What happened.
    pub kind: ResourceErrorKind,
    /// When it happened.
    pub at: Instant,
    pub(super) text: Arc<str>,
}

/// The kinds of [`ResourceError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResourceErrorKind {
    /// The name cannot be used.
    InvalidName,
    /// The authority of the name is not in the bootstrap.
    #[non_exhaustive]
    UnknownAuthority {
        /// The authority.
        authority: String,
    },
    /// No server of the authority can be reached.
    #[non_exhaustive]
    Unreachable {
        /// Why the last server that was tried cannot be reached.
        cause: String,
    },
    /// The server did not send the resource in time, so it does not exist.
    #[non_exhaustive]
    DoesNotExist {
        /// How long the channel has waited.
        after: Duration,
    },
    /// The server did not send the resource in time, and for this server that is a transient error (gRFC A88).
    #[non_exhaustive]
    TimedOut {
        /// How long the channel has waited.
        after: Duration,
    },
    /// The server deleted the resource.
    Deleted,
    /// The channel rejected the last version.
    #[non_exhaustive]
    Rejected {
        /// The version that was rejected.
        version: String,
        /// Everything that is wrong with it.
        faults: Vec<Fault>,
    },
    /// The resource is a glob collection, and the server does not speak the incremental variant of the protocol, which
    /// alone can carry it.
    NeedsDelta,
    /// The server answered with an error.
    #[non_exhaustive]
    FromServer {
        /// The status code.
        code: Code,
        /// The text of the error.
        message: String,
    },
}

impl ConfigError {
    pub(super) fn of(core: &deps::ConfigError, clock: Clock) -> Self {
        let kind = match core {
            deps::ConfigError::Resource(error) => ConfigErrorKind::Resource(Box::new(ResourceError::of(error, clock))),
            deps::ConfigError::NotApiListener(_) => ConfigErrorKind::NotApiListener,
            deps::ConfigError::NoVirtualHost { .. } => ConfigErrorKind::NoVirtualHost,
        };
        Self { kind, text: core.to_string().into() }
    }
}

impl ClusterError {
    pub(super) fn of(core: &deps::ClusterError, clock: Clock) -> Self {
        let resource = |error: &Arc<client::ResourceError>| ResourceError::of(error, clock);
        let kind = match &core.kind {
            deps::ClusterErrorKind::Resource(error) => ClusterErrorKind::Resource(Box::new(resource(error))),
            deps::ClusterErrorKind::TooDeep => ClusterErrorKind::TooDeep,
            deps::ClusterErrorKind::NoLeaves(missing) => {
                ClusterErrorKind::NoLeaves(missing.iter().map(resource).collect())
            }
        };
        Self { kind, text: core.to_string().into() }
    }
}

impl ResourceError {
    pub(super) fn of(core: &client::ResourceError, clock: Clock) -> Self {
        Self {
            resource: ResourceName::of(&core.resource),
            server: core.server_uri().map(str::to_owned),
            kind: ResourceErrorKind::of(&core.kind),
            at: clock.at(core.at),
            text: core.to_string().into(),
        }
    }
}

impl ResourceErrorKind {
    fn of(core: &client::ErrorKind) -> Self {
        match core {
            client::ErrorKind::InvalidName(_) => Self::InvalidName,
            client::ErrorKind::UnknownAuthority(authority) => Self::UnknownAuthority { authority: authority.clone() },
            client::ErrorKind::Unreachable(cause) => Self::Unreachable { cause: cause.clone() },
            client::ErrorKind::DoesNotExist { after } => Self::DoesNotExist { after: *after },
            client::ErrorKind::TimedOut { after } => Self::TimedOut { after: *after },
            client::ErrorKind::Deleted => Self::Deleted,
            client::ErrorKind::NeedsDelta => Self::NeedsDelta,
            client::ErrorKind::Rejected { version, invalid } => {
                Self::Rejected { version: version.to_string(), faults: Fault::all(invalid) }
            }
            client::ErrorKind::FromServer { code, message } => {
                Self::FromServer { code: Code::from_i32((*code).into()), message: message.clone() }
            }
        }
    }
}

/// Errors print their text in either way, which is what a `main` that ends with `?` prints.
macro_rules! text {
    ($($error:ty),*) => {$(
        impl fmt::Display for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl std::error::Error for $error {}
    )*};
}

text!(ConfigError, ClusterError, ResourceError);
