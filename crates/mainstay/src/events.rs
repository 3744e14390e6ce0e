//! What the xDS side of a channel does, as it happens.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use mainstay_xds::client::Report;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Something that happened on the xDS side of a channel.
pub type Event = Report;

/// The events of a channel, from [`Channel::events`](crate::Channel::events). Ends with the channel.
///
/// A listener that falls more than 256 events behind loses the oldest; it never holds up the
/// channel or other listeners.
pub struct Events {
    next: NextEvent,
}

type NextEvent = Pin<Box<dyn Future<Output = (Option<Event>, broadcast::Receiver<Arc<Event>>)> + Send>>;

/// The sending side, in the hub.
pub(crate) struct EventSource {
    /// Shared, so that the room for events that may come is small.
    sender: broadcast::Sender<Arc<Event>>,
    /// Hears from the very start, for the first listener.
    first: Mutex<Option<broadcast::Receiver<Arc<Event>>>>,
}

// === impl Events ===

impl Events {
    /// The next event; `None` when the channel is closed.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.next.as_mut().poll(cx).map(|(event, receiver)| {
            self.next = Box::pin(receive(receiver));
            event
        })
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

async fn receive(mut receiver: broadcast::Receiver<Arc<Event>>) -> (Option<Event>, broadcast::Receiver<Arc<Event>>) {
    loop {
        match receiver.recv().await {
            Ok(event) => return (Some(Arc::unwrap_or_clone(event)), receiver),
            Err(RecvError::Closed) => return (None, receiver),
            Err(RecvError::Lagged(_)) => {}
        }
    }
}

// === impl EventSource ===

impl EventSource {
    pub(crate) fn new() -> Self {
        let (sender, first) = broadcast::channel(CAPACITY);
        Self { sender, first: Mutex::new(Some(first)) }
    }

    pub(crate) fn send(&self, event: Event) {
        // Nobody may be listening.
        let _ = self.sender.send(Arc::new(event));
    }

    /// A listener. The first one also hears what has happened since the start.
    pub(crate) fn listen(&self) -> Events {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        Events { next: Box::pin(receive(first.unwrap_or_else(|| self.sender.subscribe()))) }
    }
}

const CAPACITY: usize = 256;

#[cfg(test)]
mod tests {
    use mainstay_xds::bootstrap::ServerConfig;

    use super::*;

    #[tokio::test]
    async fn the_first_listener_hears_what_came_before_it_and_the_end() {
        let source = EventSource::new();
        let server = Arc::new(ServerConfig::insecure("127.0.0.1:1"));
        source.send(Report::Connecting(server.clone()));
        let (mut first, mut second) = (source.listen(), source.listen());
        source.send(Report::Connected(server.clone()));
        drop(source);
        assert_eq!(first.next().await, Some(Report::Connecting(server.clone())));
        assert_eq!(first.next().await, Some(Report::Connected(server.clone())));
        assert_eq!(first.next().await, None);
        assert_eq!(second.next().await, Some(Report::Connected(server)));
        assert_eq!(second.next().await, None);
    }
}
