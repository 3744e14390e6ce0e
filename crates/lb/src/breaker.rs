//! The circuit breaker: how many RPCs a cluster has in flight (L-86).

use std::hash::{Hash, Hasher};

use crate::sync::{Arc, AtomicU32, Ordering};

/// RPCs in flight: to one {cluster, EDS service name}, shared by every channel of the process, or to one endpoint of a
/// policy.
///
/// Two counters are equal if they are the same one: how many RPCs happen to run is no part of the state of a policy, but
/// where they are counted is.
#[derive(Debug, Default)]
pub struct Counter {
    in_flight: AtomicU32,
}

/// One RPC in flight, counted until it is dropped, whatever the RPC's status.
#[derive(Debug)]
pub struct InFlight {
    counter: Arc<Counter>,
}

impl Counter {
    /// A counter at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one more RPC unless `limit` are in flight. Racing calls never exceed the limit.
    pub fn try_acquire(self: &Arc<Self>, limit: u32) -> Option<InFlight> {
        self.in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then(|| n + 1))
            .is_ok()
            .then(|| InFlight { counter: Arc::clone(self) })
    }

    /// Counts one more RPC, however many are in flight.
    pub fn acquire(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight { counter: Arc::clone(self) }
    }

    /// How many RPCs are in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.counter.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PartialEq for Counter {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Counter {}

impl Hash for Counter {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_when_its_guard_is_dropped() {
        let counter = Arc::new(Counter::new());
        let first = counter.try_acquire(2);
        let second = counter.try_acquire(2);
        assert!(first.is_some() && second.is_some());
        assert!(counter.try_acquire(2).is_none(), "L-85: in flight == limit");
        drop(first);
        assert_eq!(counter.in_flight(), 1);
        assert!(counter.try_acquire(2).is_some(), "L-86: whatever the status, an RPC that ended is not counted");
    }

    #[test]
    fn a_lowered_limit_leaves_running_rpcs_alone() {
        let counter = Arc::new(Counter::new());
        let running: Vec<_> = (0..5).filter_map(|_| counter.try_acquire(5)).collect();
        assert!(counter.try_acquire(1).is_none(), "L-86");
        assert_eq!(counter.in_flight(), 5);
        drop(running);
        assert_eq!(counter.in_flight(), 0);
    }
}
