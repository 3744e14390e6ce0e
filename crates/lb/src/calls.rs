//! How the RPCs to an endpoint ended, counted for outlier detection (A50).

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// RPCs to one endpoint that ended since someone last looked.
///
/// Two counters are equal if they are of the same endpoint: what was counted is no part of the state of a policy.
#[derive(Debug)]
pub(crate) struct CallCounter {
    /// Tells endpoints apart; never used twice in a tree.
    number: u64,
    successes: AtomicU64,
    failures: AtomicU64,
}

/// What was counted in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) successes: u64,
    pub(crate) failures: u64,
}

/// One RPC that is to be counted, or none. Dropped, it counts as a failure: then it was cancelled (L-76).
#[derive(Debug, Default)]
pub(crate) struct Counted(Option<Arc<CallCounter>>);

impl CallCounter {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, successes: AtomicU64::new(0), failures: AtomicU64::new(0) }
    }

    /// What was counted since the last call (L-77).
    pub(crate) fn take(&self) -> Calls {
        Calls {
            successes: self.successes.swap(0, Ordering::Relaxed),
            failures: self.failures.swap(0, Ordering::Relaxed),
        }
    }
}

impl Calls {
    pub(crate) fn total(self) -> u64 {
        self.successes.saturating_add(self.failures)
    }

    /// In `0..=1`. Only for endpoints that had calls.
    pub(crate) fn success_rate(self) -> f64 {
        self.successes as f64 / self.total().max(1) as f64
    }
}

impl Counted {
    pub(crate) fn new(counter: &Arc<CallCounter>) -> Self {
        Self(Some(Arc::clone(counter)))
    }

    /// Counts it.
    pub(crate) fn end(mut self, success: bool) {
        if let Some(counter) = self.0.take() {
            let bucket = if success { &counter.successes } else { &counter.failures };
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does not count it.
    pub(crate) fn withdraw(mut self) {
        self.0 = None;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(counter) = self.0.take() {
            counter.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl PartialEq for CallCounter {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for CallCounter {}

impl Hash for CallCounter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_counted_once_and_a_cancelled_rpc_is_a_failure() {
        let counter = Arc::new(CallCounter::new(1));
        Counted::new(&counter).end(true);
        Counted::new(&counter).end(false);
        drop(Counted::new(&counter));
        Counted::new(&counter).withdraw();
        assert_eq!(counter.take(), Calls { successes: 1, failures: 2 }, "L-76");
        assert_eq!(counter.take().total(), 0, "L-77: the buckets are new");
    }
}
