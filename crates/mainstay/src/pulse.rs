//! Whether the peer of a connection is alive.
//!
//! A peer that has died without a word looks like one that has nothing to say. Calls to it run out of time; that is
//! when somebody suspects it, and it is asked with a PING (RFC 9113, section 6.7). No byte in answer: it is dead, and the
//! connection is broken off, so that later calls go elsewhere. Nobody pings a peer that nobody suspects, as gRPC servers
//! turn away those who ping without need (A8).
//!
//! Nothing of this costs a call to a peer that nobody suspects: whoever suspects one first has it looked at by a task of
//! its own, which ends with the verdict.
//!
//! No order is lost between threads: who gives one stores it and then wakes the transport, and the transport makes itself
//! known and then looks for orders once more. One of the two comes second, and sees the other.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

/// What is known of the life of a peer. Shared by its transport, the task of its connection and the calls on it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Grows with everything that the peer says.
    heard: AtomicU64,
    /// Whether the peer has ever answered a request, well or badly.
    answered: AtomicBool,
    suspicion: AtomicU8,
    /// What the transport is to do next.
    order: AtomicU8,
    /// The task of the transport. It stays when it is woken, so that the transport need not say again who it is.
    transport: Mutex<Option<Waker>>,
}

/// What a transport is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Ping,
    BreakOff,
}

impl Pulse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A call was given up before the peer answered it. If the peer stays silent for `patience`, though it is pinged, it
    /// is dead, and its transport breaks off. That takes a task, which needs the runtime of the connection: a call may
    /// be given up anywhere.
    pub(crate) fn suspect(self: &Arc<Self>, runtime: &Handle, patience: Duration) {
        if self.suspicion.swap(SUSPECTED, Ordering::AcqRel) == TRUSTED {
            runtime.spawn(self.clone().look_after(patience));
        }
    }

    /// Whether the peer has ever answered a request.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether the peer gave no sign of life, so that its transport was told to break off.
    pub(crate) fn is_dead(&self) -> bool {
        self.order.load(Ordering::Acquire) == Order::BreakOff as u8 + 1
    }

    async fn look_after(self: Arc<Self>, patience: Duration) {
        loop {
            self.suspicion.store(LOOKED_AT, Ordering::Release);
            if self.stays_silent(patience).await {
                return self.give(Order::BreakOff);
            }
            // Who became suspicious meanwhile may know more than we have seen.
            if self.suspicion.compare_exchange(LOOKED_AT, TRUSTED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }

    async fn stays_silent(&self, patience: Duration) -> bool {
        // Most peers that are suspected are busy with other calls, and say something soon.
        if !self.is_silent_for(patience / 4).await {
            return false;
        }
        self.give(Order::Ping);
        self.is_silent_for(patience - patience / 4).await
    }

    async fn is_silent_for(&self, time: Duration) -> bool {
        let before = self.heard.load(Ordering::Relaxed);
        tokio::time::sleep(time).await;
        self.heard.load(Ordering::Relaxed) == before
    }

    fn give(&self, order: Order) {
        // An order to break off stands for ever.
        self.order.fetch_max(order as u8 + 1, Ordering::AcqRel);
        if let Some(transport) = &*self.transport.lock().unwrap_or_else(PoisonError::into_inner) {
            transport.wake_by_ref();
        }
    }

    // For the transport.

    /// The peer has said something.
    pub(crate) fn hear(&self) {
        // Only the transport writes it, so that no other addition is lost.
        self.heard.store(self.heard.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The peer has begun to answer a request.
    pub(crate) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// The order that stands, if there is one. A ping is ordered once.
    pub(crate) fn order(&self) -> Option<Order> {
        match self.order.load(Ordering::Acquire) {
            0 => None,
            1 => self
                .order
                .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire)
                .map_or(Some(Order::BreakOff), |_| Some(Order::Ping)),
            _ => Some(Order::BreakOff),
        }
    }

    /// From now on wakes this task when there is an order, also one that came a moment ago.
    pub(crate) fn wake_for_orders(&self, cx: &Context<'_>) {
        *self.transport.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        if self.order.load(Ordering::Acquire) != 0 {
            cx.waker().wake_by_ref();
        }
    }
}

// Of a suspicion: nobody has one; somebody has one that nobody has looked into; somebody looks into it.
const TRUSTED: u8 = 0;
const SUSPECTED: u8 = 1;
const LOOKED_AT: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(4);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_nobody_suspects_is_left_alone() {
        let pulse = Pulse::new();
        tokio::time::sleep(10 * PATIENCE).await;
        assert_eq!((pulse.order(), pulse.is_dead()), (None, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_says_nothing_is_pinged_and_dead_if_it_stays_silent() {
        let pulse = Pulse::new();
        suspect(&pulse);
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!((pulse.order(), pulse.order()), (Some(Order::Ping), None));
        assert!(!pulse.is_dead());
        tokio::time::sleep(PATIENCE).await;
        assert!(pulse.is_dead());
        assert_eq!((pulse.order(), pulse.order()), (Some(Order::BreakOff), Some(Order::BreakOff)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_talks_is_not_pinged_and_one_that_answers_the_ping_lives() {
        let pulse = Pulse::new();
        suspect(&pulse);
        tokio::time::sleep(PATIENCE / 8).await;
        pulse.hear();
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(pulse.order(), None);
        suspect(&pulse);
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!(pulse.order(), Some(Order::Ping));
        pulse.hear();
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(!pulse.is_dead() && pulse.order().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspicion_that_comes_while_another_is_looked_into_is_looked_into_next() {
        let pulse = Pulse::new();
        suspect(&pulse);
        tokio::time::sleep(PATIENCE / 16).await;
        pulse.hear();
        tokio::time::sleep(PATIENCE / 16).await;
        suspect(&pulse);
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(pulse.is_dead(), "its last word was before that");
    }

    #[tokio::test(start_paused = true)]
    async fn many_suspicions_are_looked_into_by_one_task() {
        let (pulse, before) = (Pulse::new(), Handle::current().metrics().num_alive_tasks());
        (0..100).for_each(|_| suspect(&pulse));
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before + 1);
        pulse.hear();
        tokio::time::sleep(PATIENCE / 8).await;
        pulse.hear();
        tokio::time::sleep(10 * PATIENCE).await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    }

    fn suspect(pulse: &Arc<Pulse>) {
        pulse.suspect(&Handle::current(), PATIENCE);
    }
}
