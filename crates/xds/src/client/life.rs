//! Proof of life: whether a server was heard of since it was last asked something.
//!
//! Silence about a resource means that there is none only if the server is alive (A57). So a
//! subscription without an answer makes us ask for a sign of life after a while. Any sign will do,
//! and a response is one. Without a sign the server did not answer: it is as good as unreachable.

use std::time::Duration;

use super::ServerId;
use super::timers::{TimerKind, Timers};
use crate::Time;

/// What is known about the life of the server behind a stream.
///
/// ```text
///              something is asked               no sign for a while
///   Proven ───────────────────────► Unproven ────────────────────────► Probed ──► no sign: unreachable
///     ▲                                │ a sign                          │
///     └────────────────────────────────┴──── a sign ─────────────────────┘
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    /// It was heard of after everything that was asked, or nothing was.
    Proven,
    /// Something was asked since it was heard of last.
    Unproven {
        since: Time,
        /// When it is asked for a sign.
        probe_at: Time,
    },
    /// It was asked for a sign.
    Probed(Probed),
}

/// A sign of life was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Probed {
    pub since: Time,
    pub until: Time,
    /// Whether at least PINGs are answered.
    pub pong: bool,
    /// Whether it was asked once more because we ourselves were stopped.
    pub repeated: bool,
}

impl Life {
    /// Something was asked: a sign is wanted at the latest some time after `delay`.
    pub(super) fn ask(&mut self, now: Time, delay: Duration, server: ServerId, timers: &mut Timers) {
        if *self == Self::Proven {
            self.become_unproven(now, now + delay, server, timers);
        }
    }

    /// A sign is wanted at once, of what was asked until now.
    pub(super) fn ask_at_once(&mut self, now: Time, server: ServerId, timers: &mut Timers) {
        if !matches!(self, Self::Probed(_)) {
            self.become_unproven(now, now, server, timers);
        }
    }

    /// Puts off a sign that is wanted until `probe_at`.
    pub(super) fn put_off(&mut self, probe_at: Time, server: ServerId, timers: &mut Timers) {
        if let Self::Unproven { since, .. } = *self {
            self.become_unproven(since, probe_at, server, timers);
        }
    }

    /// A sign is asked for, of what was asked since then: its own timer is over.
    pub(super) fn probe(&mut self, now: Time, since: Time, repeated: bool, server: ServerId, timers: &mut Timers) {
        let until = now + PROOF_WITHIN;
        timers.set(until, TimerKind::Life(server));
        *self = Self::Probed(Probed { since, until, pong: false, repeated });
    }

    /// A sign came, or none is wanted any more.
    pub(super) fn prove(&mut self, server: ServerId, timers: &mut Timers) {
        if let Some(at) = self.timer() {
            timers.cancel(at, TimerKind::Life(server));
        }
        *self = Self::Proven;
    }

    /// A PING was answered, which is not enough.
    pub(super) fn pong(&mut self) {
        if let Self::Probed(probed) = self {
            probed.pong = true;
        }
    }

    /// Whether the server was heard of after `asked`.
    pub(super) fn is_proven_since(&self, asked: Time) -> bool {
        match self {
            Self::Proven => true,
            Self::Unproven { since, .. } | Self::Probed(Probed { since, .. }) => asked < *since,
        }
    }

    /// When it will be known, at the latest.
    pub(super) fn decided_by(&self) -> Option<Time> {
        match self {
            Self::Proven => None,
            Self::Unproven { probe_at, .. } => Some(*probe_at + PROOF_WITHIN),
            Self::Probed(probed) => Some(probed.until),
        }
    }

    fn timer(&self) -> Option<Time> {
        match self {
            Self::Proven => None,
            Self::Unproven { probe_at, .. } => Some(*probe_at),
            Self::Probed(probed) => Some(probed.until),
        }
    }

    fn become_unproven(&mut self, since: Time, probe_at: Time, server: ServerId, timers: &mut Timers) {
        self.prove(server, timers);
        timers.set(probe_at, TimerKind::Life(server));
        *self = Self::Unproven { since, probe_at };
    }
}

impl Probed {
    /// What is wrong if no sign came.
    pub(super) fn verdict(&self, now: Time) -> String {
        let span = now.since(self.since).as_secs_f64();
        if self.pong {
            format!("it did not answer within {span} s: it answers HTTP/2 PINGs, but not even a health check")
        } else {
            format!("it did not answer within {span} s: no sign of life")
        }
    }
}

/// How long a subscription may be unanswered before a sign of life is asked for, if the does-not-exist timer takes `wait`.
pub(super) fn probe_delay(wait: Duration) -> Duration {
    PROBE_AFTER.min(wait / 2)
}

/// Whether a deadline comes so late that it is not the server who was slow: our own process was stopped. The answer
/// may be waiting to be read. Less than this takes little away from the time that a server has.
pub(super) fn is_late(now: Time, deadline: Time) -> bool {
    now.since(deadline) > LATE
}

const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROOF_WITHIN: Duration = Duration::from_secs(5);
const LATE: Duration = Duration::from_secs(1);
