//! What the xDS side of a channel does, as it happens: it connects, falls back, rejects, recovers.
//!
//! [`Channel::events`](crate::Channel::events) gives out a stream of them. Nobody has to listen: what needs a person is
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
use std::time::Duration;

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::Report;
use mainstay_xds::name::AuthorityKey;

use crate::names::{ResourceName, ResourceType};

/// Something that happened on the xDS side of a channel. [`Display`](fmt::Display) puts it in words.
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
}

impl Event {
    pub(crate) fn of(report: &Report) -> Self {
        let uri = |server: &ServerConfig| server.server_uri.clone();
        let authority = |authority: &AuthorityKey| match authority {
            AuthorityKey::TopLevel => None,
            AuthorityKey::Named(name) => Some(name.to_string()),
        };
        match report {
            Report::Connecting(server) => Self::Connecting { server: uri(server) },
            Report::Connected(server) => Self::Connected { server: uri(server) },
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
        match self {
            Self::Connecting { server } => write!(f, "connecting to {server}"),
            Self::Connected { server } => write!(f, "connected to {server}, stream open"),
            Self::Answered { server } => write!(f, "first response of {server}"),
            Self::Alive { server } => write!(f, "{server} is reachable again, nothing new"),
            Self::Unreachable { server, cause, retry_after } => {
                write!(f, "{server} is unreachable, next attempt in {retry_after:.1?}: {cause}")
            }
            Self::StreamEnded { server, cause, retry_after } => {
                write!(f, "the stream to {server} ended, next one in {retry_after:.1?}: {cause}")
            }
            Self::DeltaRefused { server, cause } => write!(f, "{server} does not speak delta: {cause}"),
            Self::FellBack { authority, server } => write!(f, "fell back to {server}{}", Whose(authority)),
            Self::Recovered { authority, server } => write!(f, "returned to {server}{}", Whose(authority)),
            Self::Acked { server, resource_type, version, resources } => {
                write!(f, "accepted {resources} {resource_type} of {server}, version {version:?}")
            }
            Self::Nacked { server, resource_type, version, resources, invalid, error } => {
                write!(f, "rejected {invalid} of {resources} {resource_type} of {server}, version {version:?}: {error}")
            }
            Self::TimedOut { server, resource } => write!(f, "{server} did not send {resource} in time"),
            Self::Ignored { server, reason } => write!(f, "ignored a message of {server}: {reason}"),
            Self::DeletionIgnored { server, resource } => {
                write!(f, "{server} deleted {resource}, which stays in use")
            }
            Self::DeletionOver { server, resource } => {
                write!(f, "{resource}, which {server} had deleted, is back or not needed any more")
            }
            Self::SecurityIgnored { cluster } => {
                write!(f, "cluster {cluster:?} asks for TLS, which the credentials of the channel do not follow")
            }
        }
    }
}

/// For which authority something holds, if it is not for all names without one.
struct Whose<'a>(&'a Option<String>);

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(authority) => write!(f, " for authority {authority:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_xds::client::Received;
    use mainstay_xds::resource;

    use super::*;

    #[test]
    fn events_say_who_and_why() {
        let server = Arc::new(ServerConfig::insecure("127.0.0.1:1"));
        let received = Received { resources: 3, valid: 2, invalid: 1 };
        for (report, text) in [
            (Report::Connecting(server.clone()), "connecting to 127.0.0.1:1"),
            (
                Report::Unreachable(server.clone(), "refused".to_owned(), Duration::from_millis(1040)),
                "127.0.0.1:1 is unreachable, next attempt in 1.0s: refused",
            ),
            (Report::FellBack(AuthorityKey::TopLevel, server.clone()), "fell back to 127.0.0.1:1"),
            (
                Report::Recovered(AuthorityKey::Named("a.test".into()), server.clone()),
                "returned to 127.0.0.1:1 for authority \"a.test\"",
            ),
            (
                Report::Nacked(server, resource::ResourceType::Cluster, "7".into(), received, "bad".to_owned()),
                "rejected 1 of 3 Cluster of 127.0.0.1:1, version \"7\": bad",
            ),
        ] {
            assert_eq!(Event::of(&report).to_string(), text);
        }
    }
}
