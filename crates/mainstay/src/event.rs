//! What the xDS side of a channel or of a server does, as it happens: it connects, falls back, rejects, recovers.
//!
//! [`Channel::events`](crate::Channel::events) and [`Running::events`](crate::Running::events) give out a stream of them. Nobody has to listen: what needs a person is
//! in the logs, too ([`tracing`], at level `warn`).
//!
//! ```no_run
//! use mainstay::event::Event;
//!
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::new("xds:///greeter")?;
//! let mut events = channel.events();
//! tokio::spawn(async move {
//!     while let Some(event) = events.next().await {
//!         match &event {
//!             Event::FellBack { server, .. } => eprintln!("the control plane is down, served by {server}"),
//!             Event::Nacked { error, .. } => eprintln!("the control plane sends nonsense: {error}"),
//!             other => println!("{other}"),
//!         }
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! [`tracing`]: https://docs.rs/tracing

mod stream;

pub use stream::Events;

pub(crate) use stream::EventSource;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Line, Protocol, Report};
use mainstay_xds::name::AuthorityKey;

use crate::names::{ResourceName, ResourceType};
use crate::serving_state::ServingState;

/// Something that happened on the xDS side of a channel or of a server. [`Display`](fmt::Display) puts it in words.
///
/// A `server` is the URI of an xDS server, as in the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The channel starts to connect to a server.
    #[non_exhaustive]
    Connecting {
        /// The server.
        server: String,
    },
    /// The connection is there, and an ADS stream is open on it.
    #[non_exhaustive]
    Connected {
        /// The server.
        server: String,
        /// Whether the stream is of the incremental variant of ADS.
        delta: bool,
    },
    /// The first response on a stream came.
    #[non_exhaustive]
    Answered {
        /// The server.
        server: String,
    },
    /// A server that was unreachable shows that it is alive, and has nothing new to say.
    #[non_exhaustive]
    Alive {
        /// The server.
        server: String,
    },
    /// A server cannot be reached. What the channel has been told stays in use.
    #[non_exhaustive]
    Unreachable {
        /// The server.
        server: String,
        /// Why it cannot be reached.
        cause: String,
        /// How long the channel waits before the next attempt.
        retry_after: Duration,
    },
    /// A stream that had answers ended.
    #[non_exhaustive]
    StreamEnded {
        /// The server.
        server: String,
        /// Why the stream ended.
        cause: String,
        /// How long the channel waits before it opens another one.
        retry_after: Duration,
    },
    /// A server does not speak the incremental variant of ADS, as it says or as its silence shows. The other variant is
    /// used at once; nothing is lost.
    #[non_exhaustive]
    DeltaRefused {
        /// The server.
        server: String,
        /// How that is known.
        cause: String,
    },
    /// The channel falls back to a server that is further down in the list (gRFC A71).
    #[non_exhaustive]
    FellBack {
        /// The authority whose resources are concerned; `None` for names without one.
        authority: Option<String>,
        /// The server that is asked from now on.
        server: String,
    },
    /// The channel returns to a server that is further up in the list (gRFC A71).
    #[non_exhaustive]
    Recovered {
        /// The authority whose resources are concerned; `None` for names without one.
        authority: Option<String>,
        /// The server that is asked from now on.
        server: String,
    },
    /// The channel accepted a response.
    #[non_exhaustive]
    Acked {
        /// The server.
        server: String,
        /// The type of the resources.
        resource_type: ResourceType,
        /// The version of the response.
        version: String,
        /// How many resources were in it.
        resources: usize,
    },
    /// The channel rejected a response, or a part of it. Valid resources of it are used all the same (gRFC A46).
    #[non_exhaustive]
    Nacked {
        /// The server.
        server: String,
        /// The type of the resources.
        resource_type: ResourceType,
        /// The version of the response.
        version: String,
        /// How many resources were in it.
        resources: usize,
        /// How many of them cannot be used.
        invalid: usize,
        /// What is wrong, as the server is told.
        error: String,
    },
    /// A server did not send a resource in time.
    #[non_exhaustive]
    TimedOut {
        /// The server.
        server: String,
        /// The resource.
        resource: ResourceName,
    },
    /// The channel ignored a message: it was not a response, or of a type that was never asked for.
    #[non_exhaustive]
    Ignored {
        /// The server.
        server: String,
        /// Why the message was ignored.
        reason: String,
    },
    /// A server deleted a resource, which stays in use all the same (gRFC A53).
    #[non_exhaustive]
    DeletionIgnored {
        /// The server.
        server: String,
        /// The resource.
        resource: ResourceName,
    },
    /// A resource whose deletion was ignored is back, or is not needed any more (gRFC A53).
    #[non_exhaustive]
    DeletionOver {
        /// The server.
        server: String,
        /// The resource.
        resource: ResourceName,
    },
    /// A cluster asks for TLS, which the credentials of the channel do not follow. See
    /// [`ChannelBuilder::require_xds_security`](crate::ChannelBuilder::require_xds_security).
    #[non_exhaustive]
    SecurityIgnored {
        /// The cluster.
        cluster: String,
    },
    /// Last-good files serve, as no control plane can be reached, or as they are asked for at the start. See
    /// [`last_good`](crate::last_good).
    #[non_exhaustive]
    LastGoodLoaded {
        /// The server that stands for the files.
        server: String,
        /// How many resources there are.
        resources: usize,
        /// How long ago they were known to be what the control plane says.
        age: Duration,
    },
    /// The configuration in force was written to a last-good file.
    #[non_exhaustive]
    LastGoodWritten {
        /// The directory of the file.
        directory: String,
        /// How many resources there are.
        resources: usize,
    },
    /// The configuration in force could not be written to a last-good file. That is told once, until it succeeds again;
    /// nothing else depends on it.
    #[non_exhaustive]
    LastGoodFailed {
        /// The directory of the file.
        directory: String,
        /// Why not.
        cause: String,
    },
    /// A server begins or ceases to serve on an address (gRFC A36).
    #[non_exhaustive]
    ServingStateChanged {
        /// The local address.
        address: SocketAddr,
        /// The state from now on.
        state: ServingState,
    },
    /// A server closed connections at once, because no filter chain is for them. Told of the first, the second, the fourth and so
    /// on.
    #[non_exhaustive]
    Unmatched {
        /// The local address that the server listens on.
        address: SocketAddr,
        /// How many such connections there were in all.
        connections: u64,
    },
}

impl Event {
    /// Returns the URI of the server that it is about, if it is about one.
    pub fn server(&self) -> Option<&str> {
        match self {
            Self::Connecting { server }
            | Self::Connected { server, .. }
            | Self::Answered { server }
            | Self::Alive { server }
            | Self::Unreachable { server, .. }
            | Self::StreamEnded { server, .. }
            | Self::DeltaRefused { server, .. }
            | Self::FellBack { server, .. }
            | Self::Recovered { server, .. }
            | Self::Acked { server, .. }
            | Self::Nacked { server, .. }
            | Self::TimedOut { server, .. }
            | Self::Ignored { server, .. }
            | Self::DeletionIgnored { server, .. }
            | Self::DeletionOver { server, .. }
            | Self::LastGoodLoaded { server, .. } => Some(server),
            Self::SecurityIgnored { .. }
            | Self::ServingStateChanged { .. }
            | Self::Unmatched { .. }
            | Self::LastGoodWritten { .. }
            | Self::LastGoodFailed { .. } => None,
        }
    }

    pub(crate) fn of(report: &Report) -> Self {
        let uri = |server: &ServerConfig| server.server_uri.clone();
        let authority = |authority: &AuthorityKey| match authority {
            AuthorityKey::TopLevel => None,
            AuthorityKey::Named(name) => Some(name.to_string()),
        };
        match report {
            Report::Connecting(server) => Self::Connecting { server: uri(server) },
            Report::Connected(server, protocol) => {
                Self::Connected { server: uri(server), delta: *protocol == Protocol::Delta }
            }
            Report::Answered(server) => Self::Answered { server: uri(server) },
            Report::Alive(server) => Self::Alive { server: uri(server) },
            Report::Unreachable(server, cause, retry_after) => {
                Self::Unreachable { server: uri(server), cause: cause.clone(), retry_after: *retry_after }
            }
            Report::StreamEnded(server, cause, retry_after) => {
                Self::StreamEnded { server: uri(server), cause: cause.clone(), retry_after: *retry_after }
            }
            Report::DeltaRefused(server, cause) => Self::DeltaRefused { server: uri(server), cause: cause.clone() },
            Report::FellBack(whose, server) => Self::FellBack { authority: authority(whose), server: uri(server) },
            Report::Recovered(whose, server) => Self::Recovered { authority: authority(whose), server: uri(server) },
            Report::Acked(server, resource_type, version, received) => Self::Acked {
                server: uri(server),
                resource_type: ResourceType::of(*resource_type),
                version: version.to_string(),
                resources: received.resources,
            },
            Report::Nacked(server, resource_type, version, received, error) => Self::Nacked {
                server: uri(server),
                resource_type: ResourceType::of(*resource_type),
                version: version.to_string(),
                resources: received.resources,
                invalid: received.invalid,
                error: error.clone(),
            },
            Report::TimedOut(server, resource) => {
                Self::TimedOut { server: uri(server), resource: ResourceName::of(resource) }
            }
            Report::Ignored(server, reason) => Self::Ignored { server: uri(server), reason: reason.clone() },
            Report::DeletionIgnored(server, resource) => {
                Self::DeletionIgnored { server: uri(server), resource: ResourceName::of(resource) }
            }
            Report::DeletionOver(server, resource) => {
                Self::DeletionOver { server: uri(server), resource: ResourceName::of(resource) }
            }
            Report::SecurityIgnored(cluster) => Self::SecurityIgnored { cluster: cluster.to_string() },
        }
    }
}

impl fmt::Display for Event {
    /// Writes one line that names the server, the resource and the cause.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Connecting { server } => Line::Connecting(server),
            Self::Connected { server, delta: true } => Line::Connected(server, Protocol::Delta),
            Self::Connected { server, delta: false } => Line::Connected(server, Protocol::Sotw),
            Self::Answered { server } => Line::Answered(server),
            Self::Alive { server } => Line::Alive(server),
            Self::Unreachable { server, cause, retry_after } => Line::Unreachable(server, cause, *retry_after),
            Self::StreamEnded { server, cause, retry_after } => Line::StreamEnded(server, cause, *retry_after),
            Self::DeltaRefused { server, cause } => Line::DeltaRefused(server, cause),
            Self::FellBack { authority, server } => Line::FellBack(authority.as_deref(), server),
            Self::Recovered { authority, server } => Line::Recovered(authority.as_deref(), server),
            Self::Acked { server, resource_type, version, resources } => {
                Line::Acked(server, resource_type, version, *resources)
            }
            Self::Nacked { server, resource_type, version, resources, invalid, error } => {
                Line::Nacked(server, resource_type, version, (*invalid, *resources), error)
            }
            Self::TimedOut { server, resource } => Line::TimedOut(server, resource),
            Self::Ignored { server, reason } => Line::Ignored(server, reason),
            Self::DeletionIgnored { server, resource } => Line::DeletionIgnored(server, resource),
            Self::DeletionOver { server, resource } => Line::DeletionOver(server, resource),
            Self::SecurityIgnored { cluster } => Line::SecurityIgnored(cluster),
            Self::ServingStateChanged { address, state } => return write!(f, "{address}: {state}"),
            Self::LastGoodLoaded { server, resources, age } => {
                return write!(f, "{server}: {resources} resources that were good {} s ago are served", age.as_secs());
            }
            Self::LastGoodWritten { directory, resources } => {
                return write!(f, "{directory}: {resources} resources are kept as last good");
            }
            Self::LastGoodFailed { directory, cause } => {
                return write!(f, "{directory}: what is good now cannot be kept: {cause}");
            }
            Self::Unmatched { address, connections } => {
                return write!(f, "{address}: {connections} connections without a filter chain so far");
            }
        };
        line.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_xds::client::Received;
    use mainstay_xds::{name, resource};

    use super::*;

    #[test]
    fn events_are_told_in_the_words_of_the_reports_that_they_are_made_of() {
        let server = || Arc::new(ServerConfig::insecure("127.0.0.1:1"));
        let kind = resource::ResourceType::Cluster;
        let key = || name::ResourceKey::parse(kind, "c", true).unwrap().0;
        let received = Received { resources: 3, valid: 2, invalid: 1 };
        let (cause, pause) = ("refused".to_owned(), Duration::from_millis(1040));
        let reports = [
            Report::Connecting(server()),
            Report::Connected(server(), Protocol::Sotw),
            Report::Connected(server(), Protocol::Delta),
            Report::Answered(server()),
            Report::Alive(server()),
            Report::Unreachable(server(), cause.clone(), pause),
            Report::StreamEnded(server(), cause.clone(), Duration::ZERO),
            Report::FellBack(AuthorityKey::TopLevel, server()),
            Report::Recovered(AuthorityKey::Named("a.test".into()), server()),
            Report::Acked(server(), kind, "7".into(), received),
            Report::Nacked(server(), kind, "7".into(), received, cause.clone()),
            Report::TimedOut(server(), key()),
            Report::Ignored(server(), cause),
            Report::DeletionIgnored(server(), key()),
            Report::DeletionOver(server(), key()),
            Report::SecurityIgnored("c".into()),
        ];
        for report in reports {
            let event = Event::of(&report);
            assert_eq!(event.to_string(), report.to_string());
            assert_eq!(event.server().is_some(), !matches!(report, Report::SecurityIgnored(_)), "{event}");
        }
    }
}
