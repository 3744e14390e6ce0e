//! Every interleaving of the few places of Mainstay where threads meet without a lock, by [loom].
//!
//! The files are those of the product, included as they are: they name what threads share by `crate::sync`, which is the
//! standard library there and loom's model of it here. So nothing of the product is built anew for this, and an ordinary
//! `cargo test` explores it.
//!
//! What else is shared is behind a lock, a channel or one atomic pointer, and its file says why that is enough:
//! `connection.rs`, `queue.rs`, `pulse.rs` and `request.rs` of `crates/mainstay`.
//!
//! With the feature `threads` the same runs on real threads, many times over: what Miri and ThreadSanitizer can judge.
//!
//! [loom]: https://docs.rs/loom

#[path = "../../lb/src/breaker.rs"]
#[expect(unreachable_pub, dead_code, reason = "as its own crate needs it")]
mod breaker;
#[path = "../../mainstay/src/calls.rs"]
#[expect(dead_code, reason = "as its own crate needs it")]
mod calls;

mod sync {
    pub(crate) use std::sync::Arc;

    #[cfg(not(feature = "threads"))]
    pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU32, Ordering};
    #[cfg(feature = "threads")]
    pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
}

#[cfg(not(feature = "threads"))]
use loom::{model, thread};
#[cfg(feature = "threads")]
use std::thread;

use self::breaker::Counter;
use self::calls::CallCounters;
use self::sync::Arc;

/// As often as there is a chance to see something; Miri lets threads take other turns each time.
#[cfg(feature = "threads")]
fn model(run: impl Fn()) {
    (0..if cfg!(miri) { 100 } else { 20_000 }).for_each(|_| run());
}

/// Racing RPCs never exceed the limit of a circuit breaker, and none is counted after its end (L-86).
pub fn circuit_breaker() {
    model(|| {
        let counter = Arc::new(Counter::new());
        let send = |counter: &Arc<Counter>| {
            let counted = counter.try_acquire(1);
            assert!(counter.in_flight() <= 1, "never above the limit");
            counted.is_some()
        };
        let other = Arc::clone(&counter);
        let other = thread::spawn(move || send(&other));
        let here = send(&counter);
        assert!(other.join().unwrap() || here, "somebody is first");
        assert_eq!(counter.in_flight(), 0, "an RPC that ended is not counted");
    });
}

/// Whoever reads the counters of a channel never sees more calls ended than begun (I-13).
pub fn counters() {
    model(|| {
        let counters = Arc::new(CallCounters::with_id(1));
        let calling = Arc::clone(&counters);
        let calling = thread::spawn(move || {
            calling.begin().succeed();
            // A call may end on another thread than it began on.
            let call = calling.begin();
            thread::spawn(move || drop(call)).join().unwrap();
        });
        let seen = counters.calls();
        assert!(seen.started >= seen.succeeded + seen.failed, "{seen:?}");
        calling.join().unwrap();
        let seen = counters.calls();
        assert_eq!((seen.started, seen.succeeded, seen.failed), (2, 1, 1));
    });
}
