//! Counts calls. Small, and without a lock: every endpoint has one, and every call counts on two.

use crate::sync::{Arc, AtomicI64, Ordering};

/// An id and counters. Small: every endpoint has one.
#[derive(Debug)]
pub(crate) struct CallCounters {
    /// Unique in the process and never used twice (I-21).
    pub(crate) id: i64,
    started: AtomicI64,
    succeeded: AtomicI64,
    failed: AtomicI64,
}

/// A call that is counted: failed unless it is said to have succeeded.
#[derive(Debug)]
pub(crate) struct Call {
    counters: Arc<CallCounters>,
    succeeded: bool,
}

/// Counters at one moment. Never more ended calls than started ones (I-13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) started: i64,
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
}

// === impl CallCounters ===

impl CallCounters {
    pub(crate) fn with_id(id: i64) -> Self {
        Self { id, started: AtomicI64::new(0), succeeded: AtomicI64::new(0), failed: AtomicI64::new(0) }
    }

    /// Enters a call that begins now. Without the time: most RPCs never look at the clock.
    pub(crate) fn begin(self: &Arc<Self>) -> Call {
        self.started.fetch_add(1, Ordering::Relaxed);
        Call { counters: self.clone(), succeeded: false }
    }

    pub(crate) fn calls(&self) -> Calls {
        // Ended ones first: what ends between the reads has begun before.
        let (succeeded, failed) = (self.succeeded.load(Ordering::Acquire), self.failed.load(Ordering::Acquire));
        Calls { started: self.started.load(Ordering::Relaxed), succeeded, failed }
    }
}

// === impl Call ===

impl Call {
    /// The call has ended with OK.
    pub(crate) fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let ended = if self.succeeded { &self.counters.succeeded } else { &self.counters.failed };
        ended.fetch_add(1, Ordering::Release);
    }
}

// === impl Calls ===

impl Calls {
    /// Those after `earlier`. A call that began before and ended after it may be missing from one of the counters.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let after = |now: i64, then: i64| now.saturating_sub(then).max(0);
        Self {
            started: after(self.started, earlier.started),
            succeeded: after(self.succeeded, earlier.succeeded),
            failed: after(self.failed, earlier.failed),
        }
    }
}
