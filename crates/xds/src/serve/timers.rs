//! Every deadline of the addresses, in one ordered table.

use std::collections::BTreeSet;

use super::ListenerId;
use crate::Time;

/// The deadlines. Whoever sets one keeps its time, and cancels it when it is not wanted any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Timers(BTreeSet<(Time, ListenerId, Timer)>);

/// Why a deadline is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// A mixture of servers is held back no longer.
    Mixture,
    /// The socket is tried again.
    Socket,
}

impl Timers {
    /// Moves a deadline from `old`, which becomes `new`.
    pub(super) fn set(&mut self, id: ListenerId, timer: Timer, old: &mut Option<Time>, new: Option<Time>) {
        if let Some(old) = std::mem::replace(old, new) {
            self.0.remove(&(old, id, timer));
        }
        self.0.extend(new.map(|new| (new, id, timer)));
    }

    pub(super) fn cancel_all(&mut self, id: ListenerId) {
        self.0.retain(|(_, of, _)| *of != id);
    }

    /// Takes the earliest deadline if it is due.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<(ListenerId, Timer)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, id, timer)| (id, timer))
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, ..)| *at)
    }
}
