//! Whether the peer of a connection is alive.
//!
//! A peer that has died without a word looks like one that has nothing to say. Calls to it run out of time; that is
//! when somebody suspects it, and it is asked with a PING (RFC 9113, section 6.7). No byte in answer: it is dead, and the
//! connection is broken off, so that later calls go elsewhere. Nobody pings a peer that nobody suspects, as gRPC servers
//! turn away those who ping without need (A8).
//!
//! No order is lost between threads: who gives one stores it and then wakes the reader, and the reader makes itself known
//! and then looks for orders once more. One of the two comes second, and sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// What is known of the life of a peer. Shared by its transport, the task of its connection and the calls on it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Grows with everything that the peer says.
    heard: AtomicU64,
    /// Whether the peer has ever answered a request, well or badly.
    answered: AtomicBool,
    suspected: Notify,
    /// What the transport is to do next.
    order: AtomicU8,
    reader: AtomicWaker,
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

    /// A call was given up before the peer answered it.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Whether the peer has ever answered a request.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends when the peer is dead: suspected, pinged, and silent for `patience` in all.
    pub(crate) async fn until_dead(&self, patience: Duration) {
        loop {
            self.suspected.notified().await;
            // Most peers that are suspected are busy with other calls, and say something soon.
            if !self.is_silent_for(patience / 4).await {
                continue;
            }
            self.give(Order::Ping);
            if self.is_silent_for(patience - patience / 4).await {
                return;
            }
        }
    }

    /// Tells the transport what to do.
    pub(crate) fn give(&self, order: Order) {
        // An order to break off stands for ever.
        self.order.fetch_max(order as u8 + 1, Ordering::AcqRel);
        self.reader.wake();
    }

    async fn is_silent_for(&self, time: Duration) -> bool {
        let before = self.heard.load(Ordering::Relaxed);
        tokio::time::sleep(time).await;
        self.heard.load(Ordering::Relaxed) == before
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

    /// Wakes the task when there is an order, also one that came a moment ago.
    pub(crate) fn wait_for_orders(&self, cx: &Context<'_>) {
        self.reader.register(cx.waker());
        if self.order.load(Ordering::Acquire) != 0 {
            cx.waker().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(4);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_nobody_suspects_is_left_alone() {
        let pulse = Pulse::new();
        assert!(tokio::time::timeout(10 * PATIENCE, pulse.until_dead(PATIENCE)).await.is_err());
        assert_eq!(pulse.order(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_says_nothing_is_pinged_and_dead_if_it_stays_silent() {
        let pulse = Pulse::new();
        let watch = tokio::spawn({
            let pulse = pulse.clone();
            async move { pulse.until_dead(PATIENCE).await }
        });
        pulse.suspect();
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!((pulse.order(), pulse.order()), (Some(Order::Ping), None));
        tokio::time::sleep(PATIENCE).await;
        assert!(watch.is_finished());
        pulse.give(Order::BreakOff);
        assert_eq!((pulse.order(), pulse.order()), (Some(Order::BreakOff), Some(Order::BreakOff)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_talks_is_not_pinged_and_one_that_answers_the_ping_lives() {
        let pulse = Pulse::new();
        let watch = tokio::spawn({
            let pulse = pulse.clone();
            async move { pulse.until_dead(PATIENCE).await }
        });
        pulse.suspect();
        tokio::time::sleep(PATIENCE / 8).await;
        pulse.hear();
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(pulse.order(), None);
        pulse.suspect();
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!(pulse.order(), Some(Order::Ping));
        pulse.hear();
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(!watch.is_finished() && pulse.order().is_none());
    }
}
