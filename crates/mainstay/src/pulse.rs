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

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

/// What is known of the life of a peer. Shared by its transport, the task of its connection and the calls on it.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// Where the connection lives: a call on it may be given up anywhere.
    runtime: Handle,
    /// How long a suspect may be silent.
    patience: Duration,
    /// When the connection was made.
    start: Instant,
    /// When the peer said something, in microseconds from the start, if somebody needs to know.
    heard_at: AtomicU64,
    is_timed: AtomicBool,
    /// The newest stream whose headers were given to the network, even in part.
    sent: AtomicU32,
    /// The newest of them when the peer first said that it goes away; the greatest number until then.
    sent_before_goaway: AtomicU32,
    /// The connection can take no more requests, though its peer would.
    retired: AtomicBool,
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
    /// Of a peer that may be silent for `patience` when it is suspected. Its connection lives on this runtime.
    pub(crate) fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            runtime: Handle::current(),
            patience,
            start: Instant::now(),
            heard_at: AtomicU64::new(0),
            is_timed: AtomicBool::new(false),
            sent: AtomicU32::new(0),
            sent_before_goaway: AtomicU32::new(u32::MAX),
            retired: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            answered: AtomicBool::new(false),
            suspicion: AtomicU8::new(TRUSTED),
            order: AtomicU8::new(0),
            transport: Mutex::new(None),
        })
    }

    /// A call was given up before the peer answered it. If the peer stays silent though it is pinged, it is dead, and its
    /// transport breaks off. That takes a task.
    pub(crate) fn suspect(self: &Arc<Self>) {
        if self.suspicion.swap(SUSPECTED, Ordering::AcqRel) == TRUSTED {
            self.runtime.spawn(self.clone().look_after(self.patience));
        }
    }

    /// The connection can take no more requests. Whoever carries it is told.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.wake_transport();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// How many calls there are: each holds the pulse. So do the transport, its driver, the task that looks into a
    /// suspicion, and so many others: whoever sends requests, while the connection takes any.
    pub(crate) fn calls(self: &Arc<Self>, others: usize) -> usize {
        let looks = self.suspicion.load(Ordering::Relaxed) != TRUSTED;
        Arc::strong_count(self).saturating_sub(2 + usize::from(looks) + others)
    }

    /// Whether any part of the stream's headers was given to the network. If not, the peer knows nothing of it, and never
    /// will once the connection is over.
    pub(crate) fn has_sent(&self, stream: u32) -> bool {
        self.sent.load(Ordering::Acquire) >= stream
    }

    /// Whether the stream's headers left, if they did, after the peer had said that it goes away. h2 sends what it has
    /// queued when it hears that; a peer that drains in peace takes nothing in after the answer to its ping, which goes first.
    pub(crate) fn left_late(&self, stream: u32) -> bool {
        stream > self.sent_before_goaway.load(Ordering::Acquire)
    }

    /// From now on notes when the peer says something.
    pub(crate) fn note_times(&self) {
        self.is_timed.store(true, Ordering::Relaxed);
    }

    /// When the peer last said something, if that is noted.
    pub(crate) fn heard_at(&self) -> Instant {
        self.start + Duration::from_micros(self.heard_at.load(Ordering::Relaxed))
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
        self.wake_transport();
    }

    fn wake_transport(&self) {
        if let Some(transport) = &*self.transport.lock().unwrap_or_else(PoisonError::into_inner) {
            transport.wake_by_ref();
        }
    }

    // For the transport.

    /// The peer has said something.
    pub(crate) fn hear(&self) {
        // Only the transport writes it, so that no other addition is lost.
        self.heard.store(self.heard.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.is_timed.load(Ordering::Relaxed) {
            let at = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.heard_at.store(at, Ordering::Relaxed);
        }
    }

    /// The headers of a stream are given to the network, or its trailers. Streams begin in the order of their numbers.
    pub(crate) fn note_sent(&self, stream: u32) {
        // Only the transport writes it.
        if self.sent.load(Ordering::Relaxed) < stream {
            self.sent.store(stream, Ordering::Release);
        }
    }

    /// The peer has said for the first time that it goes away.
    pub(crate) fn note_goaway(&self) {
        self.sent_before_goaway.store(self.sent.load(Ordering::Relaxed), Ordering::Release);
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
        let pulse = Pulse::new(PATIENCE);
        tokio::time::sleep(10 * PATIENCE).await;
        assert_eq!((pulse.order(), pulse.is_dead()), (None, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_says_nothing_is_pinged_and_dead_if_it_stays_silent() {
        let pulse = Pulse::new(PATIENCE);
        pulse.suspect();
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!((pulse.order(), pulse.order()), (Some(Order::Ping), None));
        assert!(!pulse.is_dead());
        tokio::time::sleep(PATIENCE).await;
        assert!(pulse.is_dead());
        assert_eq!((pulse.order(), pulse.order()), (Some(Order::BreakOff), Some(Order::BreakOff)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_talks_is_not_pinged_and_one_that_answers_the_ping_lives() {
        let pulse = Pulse::new(PATIENCE);
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
        assert!(!pulse.is_dead() && pulse.order().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspicion_that_comes_while_another_is_looked_into_is_looked_into_next() {
        let pulse = Pulse::new(PATIENCE);
        pulse.suspect();
        tokio::time::sleep(PATIENCE / 16).await;
        pulse.hear();
        tokio::time::sleep(PATIENCE / 16).await;
        pulse.suspect();
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(pulse.is_dead(), "its last word was before that");
    }

    #[tokio::test(start_paused = true)]
    async fn many_suspicions_are_looked_into_by_one_task() {
        let (pulse, before) = (Pulse::new(PATIENCE), Handle::current().metrics().num_alive_tasks());
        (0..100).for_each(|_| pulse.suspect());
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before + 1);
        pulse.hear();
        tokio::time::sleep(PATIENCE / 8).await;
        pulse.hear();
        tokio::time::sleep(10 * PATIENCE).await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    }
}
