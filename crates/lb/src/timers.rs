//! Every deadline of a tree, in one ordered table.

use std::collections::BTreeSet;

use mainstay_xds::Time;

use crate::owner::Owner;

/// What happens when a deadline passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TimerKind {
    /// pick_first tries the next address beside the one that is slow (L-121).
    NextAddress,
    /// priority no longer waits for a child that connects (L-67).
    Failover,
    /// priority lets go of a child that is not in use (L-68).
    Deactivation,
    /// priority no longer has a child serve whose place an update gave to another.
    Handover,
    /// weighted_round_robin weighs its endpoints (L-108).
    Weights,
    /// outlier_detection judges its endpoints (L-77).
    Interval,
    /// override_host looks for connections that no session uses any more (L-98).
    SessionSweep,
}

/// A deadline's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Timer {
    pub(crate) owner: Owner,
    pub(crate) kind: TimerKind,
}

/// The table. A policy that starts a timer remembers its time, and stops it before it forgets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Timers {
    table: BTreeSet<(Time, Timer)>,
}

impl Timers {
    pub(crate) fn start(&mut self, at: Time, owner: Owner, kind: TimerKind) {
        self.table.insert((at, Timer { owner, kind }));
    }

    pub(crate) fn stop(&mut self, at: Time, owner: Owner, kind: TimerKind) {
        self.table.remove(&(at, Timer { owner, kind }));
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.table.first().map(|(at, _)| *at)
    }

    /// Takes the first timer that is due out of the table.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let first = *self.table.first().filter(|(at, _)| *at <= now)?;
        self.table.remove(&first);
        Some(first.1)
    }
}
