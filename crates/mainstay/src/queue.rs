//! A queue with bounded room that takes none while it is empty: every channel has one, and it is nearly always empty.
//!
//! Threads meet here in the channel and in the semaphore only. A value is in the channel together with its permit, so there
//! are never more values than permits: no counter of ours can differ from what is there. A permit is given back when its
//! value is taken out or dropped, and those who wait for one are woken by the semaphore. When the receiver goes, it closes
//! the semaphore, which wakes all of them with an error, and the channel with it: whoever got a permit before that finds
//! the channel closed, or leaves a value that is dropped with the channel.

use std::sync::Arc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Puts values in. Waits while there is no room.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    queue: UnboundedSender<(T, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// Takes values out, in order.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    queue: UnboundedReceiver<(T, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// Nobody takes values out any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// A queue with room for so many values.
pub(crate) fn bounded<T>(room: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = unbounded();
    let room = Arc::new(Semaphore::new(room));
    (Sender { queue: sender, room: room.clone() }, Receiver { queue: receiver, room })
}

impl<T> Sender<T> {
    pub(crate) async fn send(&self, value: T) -> Result<(), Closed> {
        let permit = self.room.clone().acquire_owned().await.map_err(|_| Closed)?;
        self.queue.unbounded_send((value, permit)).map_err(|_| Closed)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), room: self.room.clone() }
    }
}

impl<T> Receiver<T> {
    /// The next value; `None` when there are no senders left. Nothing is lost if the future is dropped.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        self.queue.next().await.map(|(value, _)| value)
    }

    /// The next value, if it is there already.
    pub(crate) fn try_recv(&mut self) -> Option<T> {
        self.queue.try_recv().ok().map(|(value, _)| value)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Those who wait for room learn that there will be none.
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sender_waits_for_room_and_values_keep_their_order() {
        let (sender, mut receiver) = bounded(2);
        let sending = tokio::spawn(async move {
            for value in 0..10 {
                sender.send(value).await.unwrap();
            }
        });
        tokio::task::yield_now().await;
        assert!(!sending.is_finished(), "no room for ten");
        assert_eq!((receiver.try_recv(), receiver.try_recv(), receiver.try_recv()), (Some(0), Some(1), None));
        for value in 2..10 {
            assert_eq!(receiver.recv().await, Some(value));
        }
        assert_eq!(receiver.recv().await, None, "the sender is gone");
    }

    #[tokio::test]
    async fn a_sender_that_waits_hears_that_the_receiver_is_gone() {
        let (sender, receiver) = bounded(1);
        sender.send(1).await.unwrap();
        let waiting = tokio::spawn(async move { (sender.send(2).await, sender.send(3).await) });
        tokio::task::yield_now().await;
        drop(receiver);
        assert_eq!(waiting.await.unwrap(), (Err(Closed), Err(Closed)));
    }
}
