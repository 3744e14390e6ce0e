//! One server: the attempts at it, its health, and what it was last acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::backoff::Pacing;
use super::dialect::{Dialect, Identity, Protocol};
use super::stream::{Stream, Wanted};
use super::subscription::Word;
use super::timers::{TimerKind, Timers};
use super::wire::Request;
use super::{ServerId, StreamId};
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::name::ResourceKey;
use crate::resource::ResourceType;

/// A server that some authority names. Authorities that name the same one share its stream (P-13).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub config: Arc<ServerConfig>,
    pub link: Link,
    pub pacing: Pacing,
    /// Set by an attempt without an answer, cleared by an answer, or by a sign of life after the requests of a new
    /// stream were written. A connection alone clears nothing (C-31).
    pub outage: Option<Outage>,
    pub dialect: Dialect,
    /// Of the delta streams.
    pub identity: Identity,
    /// The last version of each type that was taken from this server. Survives streams (P-32), on which it is told if
    /// versions are trusted (DX-30).
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
///    ├──── due ───── Paused ◄── ends soon, again; nothing is missing ┤
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
    pub protocol: Protocol,
}

/// The stream is open and no response has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unanswered {
    pub stream: Stream,
    /// When it was opened.
    pub since: Time,
    /// When its silence becomes a failure, if ever (C-36). Only while it owes an answer.
    pub silent_at: Option<Time>,
    /// Whether that was put off because we ourselves were stopped.
    pub prolonged: bool,
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
    pub reason: Pause,
}

/// Why an attempt must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pause {
    /// Earlier ones failed, or their streams ended soon.
    Backoff,
    /// Nothing is missing, and others may come back in the same moment. A new need ends it.
    Spread,
}

// === impl Server ===

impl Server {
    pub(super) fn new(config: Arc<ServerConfig>) -> Self {
        Self {
            dialect: Dialect::new(config.features.delta),
            identity: Identity::default(),
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
        self.dialect = Dialect::new(self.config.features.delta);
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

    /// Something is missing: ends a pause that was made because nothing was.
    pub(super) fn hurry(&mut self, id: ServerId, timers: &mut Timers) {
        if let Link::Paused(Paused { reason: Pause::Spread, .. }) = self.link {
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
        wanted: impl Fn(ResourceType, bool) -> Wanted,
        timers: &mut Timers,
    ) -> Option<(StreamId, Request)> {
        let stream = self.link.stream_mut()?;
        let request = stream.next_request(wanted, &mut self.versions, timers)?;
        Some((stream.id(), request))
    }

    /// The version of a type that is in use; empty if none is (P-29).
    pub(super) fn version(&self, resource_type: ResourceType) -> Arc<str> {
        self.versions.get(&resource_type).cloned().unwrap_or_default()
    }

    pub(super) fn set_version(&mut self, resource_type: ResourceType, version: Arc<str>) {
        self.versions.insert(resource_type, version);
    }

    /// Forgets the version of a type of which something is not in use any more.
    pub(super) fn forget_version(&mut self, resource_type: ResourceType) {
        self.versions.remove(&resource_type);
    }

    /// The server is above the one in charge: it must show by an answer that it is back. In delta it owes one already,
    /// see [`Stream::owes`].
    pub(super) fn ask_for_proof(&mut self, key: &ResourceKey, timers: &mut Timers) {
        if self.link.stream().is_none_or(|stream| stream.protocol() == Protocol::Sotw) {
            self.ask_again(key, timers);
        }
    }

    /// The value that this server sent is not in use any more, or does not count any more: it must send it again, and
    /// must not believe that we have it.
    pub(super) fn ask_again(&mut self, key: &ResourceKey, timers: &mut Timers) {
        self.forget_version(key.resource_type);
        if let Some(stream) = self.link.stream_mut()
            && stream.word(key) == Some(&Word::Adopted)
        {
            stream.ask_again(key, timers);
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

    /// What the attempt that is under way speaks.
    pub(super) fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Opening(opening) => Some(opening.protocol),
            Self::Idle | Self::Paused(_) => None,
            Self::Unanswered(_) | Self::Answered(_) => self.stream().map(Stream::protocol),
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

    /// When the silence of the stream becomes a failure, if ever.
    pub(super) fn silent_at(&self) -> Option<Time> {
        match self {
            Self::Unanswered(unanswered) => unanswered.silent_at,
            Self::Idle | Self::Opening(_) | Self::Answered(_) | Self::Paused(_) => None,
        }
    }

    /// Ends every timer of a state that is left.
    pub(super) fn cancel_timers(mut self, server: ServerId, timers: &mut Timers) {
        if let Self::Unanswered(Unanswered { silent_at: Some(at), .. }) = self {
            timers.cancel(at, TimerKind::Silent(server));
        }
        if let Self::Paused(Paused { until, .. }) = self {
            timers.cancel(until, TimerKind::Backoff(server));
        }
        if let Some(stream) = self.stream_mut() {
            stream.cancel_timers(timers);
        }
    }
}

impl Opening {
    /// The connection is READY and the stream is open. From now on a sign of life is wanted some time after `delay`.
    pub(super) fn opened(self, now: Time, delay: Duration, server: ServerId, timers: &mut Timers) -> Unanswered {
        let mut stream = Stream::new(self.id, server, self.protocol);
        stream.life.ask(now, delay, server, timers);
        Unanswered { stream, since: now, silent_at: None, prolonged: false }
    }
}

impl Unanswered {
    /// Its silence becomes a failure at another time, or never.
    pub(super) fn set_silent_at(&mut self, at: Option<Time>, server: ServerId, timers: &mut Timers) {
        if let Some(before) = self.silent_at {
            timers.cancel(before, TimerKind::Silent(server));
        }
        if let Some(at) = at {
            timers.set(at, TimerKind::Silent(server));
        }
        self.silent_at = at;
    }

    /// The first response came.
    pub(super) fn answered(mut self, server: ServerId, timers: &mut Timers) -> Answered {
        self.set_silent_at(None, server, timers);
        Answered { stream: self.stream, since: self.since }
    }
}
