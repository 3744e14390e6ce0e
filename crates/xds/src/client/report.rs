//! What a client reports of itself, how much it matters, and the words for it: one rendering for logs, events, channelz,
//! the demo and the simulator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::dialect::Protocol;
use crate::bootstrap::ServerConfig;
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::ResourceType;

/// An observation, in the words of the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// An attempt at a server begins.
    Connecting(Arc<ServerConfig>),
    /// The connection is there and the stream is open.
    Connected(Arc<ServerConfig>, Protocol),
    /// The first response on a stream came.
    Answered(Arc<ServerConfig>),
    /// A server that could not be reached is back: it shows that it is alive, and has nothing new to say.
    Alive(Arc<ServerConfig>),
    /// The server cannot be reached, with the cause and the time until the next attempt.
    Unreachable(Arc<ServerConfig>, String, Duration),
    /// A stream that had answers is over; it is opened again after the given time.
    StreamEnded(Arc<ServerConfig>, String, Duration),
    /// The server does not speak delta, as it says or as its silence shows; the other variant is used at once (DX-3, DX-4).
    DeltaRefused(Arc<ServerConfig>, String),
    /// An authority falls back to a lower server.
    FellBack(AuthorityKey, Arc<ServerConfig>),
    /// An authority returns to a higher server.
    Recovered(AuthorityKey, Arc<ServerConfig>),
    /// A response was accepted: type, version, what was in it.
    Acked(Arc<ServerConfig>, ResourceType, Arc<str>, Received),
    /// A response was rejected: type, version, what was in it, text of the NACK.
    Nacked(Arc<ServerConfig>, ResourceType, Arc<str>, Received, String),
    /// A resource was not sent in time.
    TimedOut(Arc<ServerConfig>, ResourceKey),
    /// A message was ignored: not a response, or of a type never asked for (P-36).
    Ignored(Arc<ServerConfig>, String),
    /// A server took a resource away and it stays in use all the same; told once (A53, with A88 off).
    DeletionIgnored(Arc<ServerConfig>, ResourceKey),
    /// A resource whose deletion was ignored is back, or is not watched any more (A53).
    DeletionOver(Arc<ServerConfig>, ResourceKey),
    /// A cluster asks for TLS, which the credentials of the channel do not follow. Told by the channel, not the client.
    SecurityIgnored(Arc<str>),
}

/// How many resources a response brought. What nobody had asked for is neither valid nor invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Received {
    /// In all.
    pub resources: usize,
    /// Good ones, also those that have not changed (S-74).
    pub valid: usize,
    /// Those that cannot be used, and errors in the place of resources (S-74).
    pub invalid: usize,
}

/// How much a report matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// It happens all the time.
    Debug,
    /// It explains a change.
    Info,
    /// Somebody may have to look.
    Warn,
}

/// A report in words. Whatever has the parts of a report is printed by it, so that the same thing is told in the same
/// words everywhere.
pub enum Line<'a> {
    /// See [`Report::Connecting`].
    Connecting(&'a str),
    /// See [`Report::Connected`].
    Connected(&'a str, Protocol),
    /// See [`Report::Answered`].
    Answered(&'a str),
    /// See [`Report::Alive`].
    Alive(&'a str),
    /// See [`Report::Unreachable`].
    Unreachable(&'a str, &'a str, Duration),
    /// See [`Report::StreamEnded`].
    StreamEnded(&'a str, &'a str, Duration),
    /// See [`Report::DeltaRefused`].
    DeltaRefused(&'a str, &'a str),
    /// See [`Report::FellBack`]. The name of the authority, if it has one.
    FellBack(Option<&'a str>, &'a str),
    /// See [`Report::Recovered`]. The name of the authority, if it has one.
    Recovered(Option<&'a str>, &'a str),
    /// See [`Report::Acked`]. The last is the number of resources.
    Acked(&'a str, &'a dyn fmt::Display, &'a str, usize),
    /// See [`Report::Nacked`]. The numbers are those of invalid resources and of all.
    Nacked(&'a str, &'a dyn fmt::Display, &'a str, (usize, usize), &'a str),
    /// See [`Report::TimedOut`].
    TimedOut(&'a str, &'a dyn fmt::Display),
    /// See [`Report::Ignored`].
    Ignored(&'a str, &'a str),
    /// See [`Report::DeletionIgnored`].
    DeletionIgnored(&'a str, &'a dyn fmt::Display),
    /// See [`Report::DeletionOver`].
    DeletionOver(&'a str, &'a dyn fmt::Display),
    /// See [`Report::SecurityIgnored`].
    SecurityIgnored(&'a str),
}

impl Report {
    /// How much it matters. A deletion that is ignored is worth a warning, and its end a word (C-28).
    pub fn level(&self) -> Level {
        match self {
            Self::Unreachable(..)
            | Self::Nacked(..)
            | Self::TimedOut(..)
            | Self::Ignored(..)
            | Self::DeletionIgnored(..)
            | Self::SecurityIgnored(_) => Level::Warn,
            Self::DeltaRefused(..) | Self::FellBack(..) | Self::Recovered(..) | Self::DeletionOver(..) => Level::Info,
            Self::Connecting(_)
            | Self::Connected(..)
            | Self::Answered(_)
            | Self::Alive(_)
            | Self::StreamEnded(..)
            | Self::Acked(..) => Level::Debug,
        }
    }

    fn line(&self) -> Line<'_> {
        match self {
            Self::Connecting(server) => Line::Connecting(&server.server_uri),
            Self::Connected(server, protocol) => Line::Connected(&server.server_uri, *protocol),
            Self::Answered(server) => Line::Answered(&server.server_uri),
            Self::Alive(server) => Line::Alive(&server.server_uri),
            Self::Unreachable(server, cause, pause) => Line::Unreachable(&server.server_uri, cause, *pause),
            Self::StreamEnded(server, cause, pause) => Line::StreamEnded(&server.server_uri, cause, *pause),
            Self::DeltaRefused(server, cause) => Line::DeltaRefused(&server.server_uri, cause),
            Self::FellBack(authority, server) => Line::FellBack(name_of(authority), &server.server_uri),
            Self::Recovered(authority, server) => Line::Recovered(name_of(authority), &server.server_uri),
            Self::Acked(server, resource_type, version, received) => {
                Line::Acked(&server.server_uri, resource_type, version, received.resources)
            }
            Self::Nacked(server, resource_type, version, received, error) => {
                let numbers = (received.invalid, received.resources);
                Line::Nacked(&server.server_uri, resource_type, version, numbers, error)
            }
            Self::TimedOut(server, resource) => Line::TimedOut(&server.server_uri, resource),
            Self::Ignored(server, reason) => Line::Ignored(&server.server_uri, reason),
            Self::DeletionIgnored(server, resource) => Line::DeletionIgnored(&server.server_uri, resource),
            Self::DeletionOver(server, resource) => Line::DeletionOver(&server.server_uri, resource),
            Self::SecurityIgnored(cluster) => Line::SecurityIgnored(cluster),
        }
    }
}

impl fmt::Display for Report {
    /// One line that names the server, the resource and the cause.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line().fmt(f)
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting(server) => write!(f, "connecting to {server}"),
            Self::Connected(server, Protocol::Sotw) => write!(f, "connected to {server}, stream open"),
            Self::Connected(server, Protocol::Delta) => write!(f, "connected to {server}, delta stream open"),
            Self::Answered(server) => write!(f, "first response of {server}"),
            Self::Alive(server) => write!(f, "{server} is reachable again, nothing new"),
            Self::Unreachable(server, cause, pause) => {
                write!(f, "{server} is unreachable, next attempt {}: {cause}", After(*pause))
            }
            Self::StreamEnded(server, cause, pause) => {
                write!(f, "the stream to {server} ended, next one {}: {cause}", After(*pause))
            }
            Self::DeltaRefused(server, cause) => write!(f, "{server} does not speak delta: {cause}"),
            Self::FellBack(authority, server) => write!(f, "fell back to {server}{}", Whose(*authority)),
            Self::Recovered(authority, server) => write!(f, "returned to {server}{}", Whose(*authority)),
            Self::Acked(server, resource_type, version, resources) => {
                write!(f, "accepted {resources} {resource_type} of {server}, version {version:?}")
            }
            Self::Nacked(server, resource_type, version, (invalid, resources), error) => {
                write!(f, "rejected {invalid} of {resources} {resource_type} of {server}, version {version:?}: {error}")
            }
            Self::TimedOut(server, resource) => write!(f, "{server} did not send {resource} in time"),
            Self::Ignored(server, reason) => write!(f, "ignored a message of {server}: {reason}"),
            Self::DeletionIgnored(server, resource) => write!(f, "{server} deleted {resource}, which stays in use"),
            Self::DeletionOver(server, resource) => {
                write!(f, "{resource}, which {server} had deleted, is back or not needed any more")
            }
            Self::SecurityIgnored(cluster) => {
                write!(f, "cluster {cluster:?} asks for TLS, which the credentials of the channel do not follow")
            }
        }
    }
}

impl fmt::Debug for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// When something is tried again.
struct After(Duration);

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() { f.write_str("at once") } else { write!(f, "in {:.1} s", self.0.as_secs_f64()) }
    }
}

/// For which authority something holds, if it is not for all names without one.
struct Whose<'a>(Option<&'a str>);

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(authority) => write!(f, " for authority {authority:?}"),
        }
    }
}

fn name_of(authority: &AuthorityKey) -> Option<&str> {
    match authority {
        AuthorityKey::TopLevel => None,
        AuthorityKey::Named(name) => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_say_who_and_why() {
        let server = Arc::new(ServerConfig::insecure("127.0.0.1:1"));
        let received = Received { resources: 3, valid: 2, invalid: 1 };
        for (report, level, text) in [
            (Report::Connecting(server.clone()), Level::Debug, "connecting to 127.0.0.1:1"),
            (
                Report::Unreachable(server.clone(), "refused".to_owned(), Duration::from_millis(1040)),
                Level::Warn,
                "127.0.0.1:1 is unreachable, next attempt in 1.0 s: refused",
            ),
            (
                Report::StreamEnded(server.clone(), "it was cut".to_owned(), Duration::ZERO),
                Level::Debug,
                "the stream to 127.0.0.1:1 ended, next one at once: it was cut",
            ),
            (Report::FellBack(AuthorityKey::TopLevel, server.clone()), Level::Info, "fell back to 127.0.0.1:1"),
            (
                Report::Recovered(AuthorityKey::Named("a.test".into()), server.clone()),
                Level::Info,
                "returned to 127.0.0.1:1 for authority \"a.test\"",
            ),
            (
                Report::DeletionIgnored(server.clone(), key()),
                Level::Warn, // C-28
                "127.0.0.1:1 deleted Cluster \"c\", which stays in use",
            ),
            (
                Report::DeletionOver(server.clone(), key()),
                Level::Info, // C-28
                "Cluster \"c\", which 127.0.0.1:1 had deleted, is back or not needed any more",
            ),
            (
                Report::Nacked(server, ResourceType::Cluster, "7".into(), received, "bad".to_owned()),
                Level::Warn,
                "rejected 1 of 3 Cluster of 127.0.0.1:1, version \"7\": bad",
            ),
        ] {
            assert_eq!((report.level(), report.to_string().as_str()), (level, text));
        }
    }

    fn key() -> ResourceKey {
        ResourceKey::parse(ResourceType::Cluster, "c", true).unwrap().0
    }
}
