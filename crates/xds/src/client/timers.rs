//! Every deadline of the client, in one ordered table.

use std::collections::BTreeSet;

use super::ServerId;
use crate::Time;
use crate::name::ResourceKey;

/// The deadlines. Whoever sets one keeps its time, and cancels it when it is not wanted any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Timers(BTreeSet<(Time, TimerKind)>);

/// Why a deadline is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TimerKind {
    /// The pause before the next attempt at a server is over.
    Backoff(ServerId),
    /// A stream had no response at all (C-36).
    Silent(ServerId),
    /// A sign of life is wanted, or did not come. Before those of resources: what is not alive says nothing of them.
    Life(ServerId),
    /// What a delta server says does not exist is asked for once more (DX-15).
    Insist(ServerId),
    /// The first members of a glob collection are all there, or have had their time (GC-5).
    Filled(ServerId, ResourceKey),
    /// A resource was not sent on the current stream (P-55).
    Missing(ServerId, ResourceKey),
}

impl Timers {
    pub(super) fn set(&mut self, at: Time, kind: TimerKind) {
        self.0.insert((at, kind));
    }

    pub(super) fn cancel(&mut self, at: Time, kind: TimerKind) {
        self.0.remove(&(at, kind));
    }

    /// Takes the earliest deadline if it is due.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<(Time, TimerKind)> {
        (self.next()? <= now).then(|| self.0.pop_first()).flatten()
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
