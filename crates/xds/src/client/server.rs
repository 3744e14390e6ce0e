//! One server: the attempts at it, its health, and what it was last acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::StreamId;
use super::backoff::Pacing;
use super::stream::Stream;
use super::timers::{TimerKind, Timers};
use super::wire::Request;
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::resource::ResourceType;

/// Index of a server in its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ServerId(pub usize);

/// A server that some authority names. Authorities that name the same one share its stream (P-13).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub config: Arc<ServerConfig>,
    /// `config.server_uri`, to be shared by errors.
    pub uri: Arc<str>,
    pub link: Link,
    pub pacing: Pacing,
    /// Set by an attempt without an answer, cleared only by an answer (C-31).
    pub outage: Option<Outage>,
    /// The last version of each type that was taken from this server. Survives streams (P-32).
    versions: BTreeMap<ResourceType, Arc<str>>,
}

/// A server that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outage {
    /// Of the last attempt.
    pub cause: Arc<str>,
    /// When the first one failed.
    pub since: Time,
}

/// Where the attempts at a server stand. A connection and the stream on it are one attempt.
///
/// ```text
///          wanted            Opened              first response
///   Idle ─────────► Opening ────────► Unanswered ──────────────► Answered
///    ▲                 │ Closed          │ Closed, silent           │ Closed
///    │                 ▼                 ▼                          │
///    ├──── due ───── Paused ◄───────────────── ends soon, again ────┤
///    └────────────────────────────────────────────── else ──────────┘
/// ```
///
/// From every state a server that nobody needs goes back to `Idle`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Link {
    /// No attempt is made; the next one may begin at once.
    Idle,
    Opening(Opening),
    Unanswered(Unanswered),
    Answered(Answered),
    Paused(Paused),
}

/// The driver makes a connection and opens a stream on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Opening {
    pub id: StreamId,
}

/// The stream is open and no response has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unanswered {
    pub stream: Stream,
    /// When it was opened.
    pub since: Time,
    /// When its silence becomes a failure, if ever (C-36).
    pub silent_at: Option<Time>,
}

/// The stream has had a response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Answered {
    pub stream: Stream,
    /// When it was opened.
    pub since: Time,
}

/// The next attempt must wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Paused {
    pub until: Time,
}

// === impl Server ===

impl Server {
    pub(super) fn new(config: Arc<ServerConfig>) -> Self {
        Self {
            uri: config.server_uri.as_str().into(),
            config,
            link: Link::Idle,
            pacing: Pacing::default(),
            outage: None,
            versions: BTreeMap::new(),
        }
    }

    /// Forgets everything: nobody needs the server any more. Answers with the stream to close.
    pub(super) fn release(&mut self, id: ServerId, timers: &mut Timers) -> Option<StreamId> {
        let stream = self.link.stream_id();
        self.take_link().cancel_timers(id, timers);
        self.pacing = Pacing::default();
        self.outage = None;
        self.versions.clear();
        stream
    }

    /// Forgets past failures, and the pause that they caused.
    pub(super) fn reset_backoff(&mut self, id: ServerId, timers: &mut Timers) {
        self.pacing = Pacing::default();
        if let Link::Paused(_) = self.link {
            self.take_link().cancel_timers(id, timers);
        }
    }

    /// Leaves the current state, which the caller replaces by another.
    pub(super) fn take_link(&mut self) -> Link {
        std::mem::replace(&mut self.link, Link::Idle)
    }

    /// The next request on the stream; see [`Stream::next_request`].
    pub(super) fn next_request(
        &mut self,
        wanted: impl Fn(ResourceType) -> Vec<Arc<str>>,
        timers: &mut Timers,
    ) -> Option<(StreamId, Request)> {
        let Self { link, versions, .. } = self;
        let stream = link.stream_mut()?;
        let version = |resource_type| versions.get(&resource_type).cloned().unwrap_or_default();
        let request = stream.next_request(wanted, version, timers)?;
        Some((stream.id(), request))
    }

    /// The version of a type that is in use; empty if none is (P-29).
    pub(super) fn version(&self, resource_type: ResourceType) -> Arc<str> {
        self.versions.get(&resource_type).cloned().unwrap_or_default()
    }

    pub(super) fn set_version(&mut self, resource_type: ResourceType, version: Arc<str>) {
        self.versions.insert(resource_type, version);
    }

    /// Forgets the version of a type that a lower server has overwritten, so that this one sends it again.
    pub(super) fn forget_version(&mut self, resource_type: ResourceType) {
        if self.versions.remove(&resource_type).is_some()
            && let Some(stream) = self.link.stream_mut()
        {
            stream.repeat(resource_type);
        }
    }
}

// === impl Link ===

impl Link {
    /// The attempt that is under way.
    pub(super) fn stream_id(&self) -> Option<StreamId> {
        match self {
            Self::Opening(opening) => Some(opening.id),
            Self::Idle | Self::Paused(_) => None,
            Self::Unanswered(_) | Self::Answered(_) => self.stream().map(Stream::id),
        }
    }

    /// The stream, if it is open.
    pub(super) fn stream(&self) -> Option<&Stream> {
        match self {
            Self::Unanswered(Unanswered { stream, .. }) | Self::Answered(Answered { stream, .. }) => Some(stream),
            Self::Idle | Self::Opening(_) | Self::Paused(_) => None,
        }
    }

    pub(super) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match self {
            Self::Unanswered(Unanswered { stream, .. }) | Self::Answered(Answered { stream, .. }) => Some(stream),
            Self::Idle | Self::Opening(_) | Self::Paused(_) => None,
        }
    }

    /// Ends every timer of a state that is left.
    pub(super) fn cancel_timers(mut self, server: ServerId, timers: &mut Timers) {
        if let Self::Unanswered(Unanswered { silent_at: Some(at), .. }) = self {
            timers.cancel(at, TimerKind::Silent(server));
        }
        if let Self::Paused(Paused { until }) = self {
            timers.cancel(until, TimerKind::Backoff(server));
        }
        if let Some(stream) = self.stream_mut() {
            stream.cancel_timers(timers);
        }
    }
}

impl Opening {
    /// The connection is READY and the stream is open.
    pub(super) fn opened(
        self,
        now: Time,
        silent_timeout: Option<Duration>,
        server: ServerId,
        timers: &mut Timers,
    ) -> Unanswered {
        let silent_at = silent_timeout.map(|timeout| now + timeout);
        if let Some(at) = silent_at {
            timers.set(at, TimerKind::Silent(server));
        }
        Unanswered { stream: Stream::new(self.id, server), since: now, silent_at }
    }
}

impl Unanswered {
    /// The first response came.
    pub(super) fn answered(self, server: ServerId, timers: &mut Timers) -> Answered {
        if let Some(at) = self.silent_at {
            timers.cancel(at, TimerKind::Silent(server));
        }
        Answered { stream: self.stream, since: self.since }
    }
}
