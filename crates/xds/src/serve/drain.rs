//! How the connections of a generation end.

use std::time::Duration;

use super::Generation;
use crate::{Choose, Time};

/// Connections of one generation are told to end, and ended if they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drain {
    /// Which connections.
    pub generation: Generation,
    /// When the first of them are told.
    pub at: Time,
    /// When those that are left are ended (A36).
    pub until: Time,
    /// Over how long they are told if there are many.
    pub spread: Duration,
}

impl Drain {
    /// When one of so many connections is sent its GOAWAY.
    ///
    /// Few are told at once. Many that come back in the same moment would be a flood for whoever takes them, so each draws
    /// its own time (SV-23).
    pub fn goaway_at(&self, connections: usize, choose: &mut dyn Choose) -> Time {
        let spread = self.spread.min(self.until.since(self.at));
        let nanos = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX);
        if connections <= AT_ONCE || nanos == 0 {
            return self.at;
        }
        self.at + Duration::from_nanos(choose.choose(nanos))
    }
}

/// So many connections are told at once.
const AT_ONCE: usize = 100;
