//! How events come to those who listen.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use mainstay_xds::client::Report;

use super::Event;

/// The events of a channel or of a server, from [`Channel::events`](crate::Channel::events) or
/// [`Running::events`](crate::Running::events). They end with it.
///
/// A listener that falls more than 256 events behind loses the oldest. It never holds up the channel, the server or other
/// listeners.
pub struct Events(Arc<Inbox>);

/// The sending side, in the hub. What nobody waits for takes no room: a thousand idle targets have one each.
pub(crate) struct EventSource(Mutex<Listeners>);

struct Listeners {
    /// Hears from the very start, until somebody listens.
    first: Option<Arc<Inbox>>,
    all: Vec<Weak<Inbox>>,
}

/// What one listener has not seen yet.
type Inbox = Mutex<Unseen>;

#[derive(Default)]
struct Unseen {
    news: VecDeque<News>,
    closed: bool,
    waker: Option<Waker>,
}

/// Something that happened.
#[derive(Clone)]
enum News {
    /// Becomes an [`Event`] when it is read: most never are.
    Report(Arc<Report>),
    Event(Event),
}

// === impl Events ===

impl Events {
    /// Waits for the next event. Returns `None` when the channel is closed or the server has ended.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut unseen = lock(&self.0);
        match unseen.news.pop_front() {
            Some(News::Report(report)) => Poll::Ready(Some(Event::of(&report))),
            Some(News::Event(event)) => Poll::Ready(Some(event)),
            None if unseen.closed => Poll::Ready(None),
            None => {
                unseen.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

// === impl EventSource ===

impl EventSource {
    pub(crate) fn new() -> Self {
        let first = Arc::<Inbox>::default();
        Self(Mutex::new(Listeners { all: vec![Arc::downgrade(&first)], first: Some(first) }))
    }

    pub(crate) fn send(&self, report: Arc<Report>) {
        self.tell(&News::Report(report));
    }

    /// Tells of something that the client does not report.
    pub(crate) fn send_event(&self, event: Event) {
        self.tell(&News::Event(event));
    }

    fn tell(&self, news: &News) {
        self.tell_all(|unseen| {
            if unseen.news.len() == CAPACITY {
                unseen.news.pop_front();
            }
            unseen.news.push_back(news.clone());
        });
    }

    /// A listener. The first one also hears what has happened since the start.
    pub(crate) fn listen(&self) -> Events {
        let mut listeners = lock(&self.0);
        let inbox = listeners.first.take().unwrap_or_else(|| {
            let inbox = Arc::<Inbox>::default();
            listeners.all.push(Arc::downgrade(&inbox));
            inbox
        });
        Events(inbox)
    }

    /// Tells those that still listen, and forgets the others.
    fn tell_all(&self, tell: impl Fn(&mut Unseen)) {
        lock(&self.0).all.retain(|listener| {
            let Some(inbox) = listener.upgrade() else { return false };
            let mut unseen = lock(&inbox);
            tell(&mut unseen);
            let waker = unseen.waker.take();
            drop(unseen);
            waker.into_iter().for_each(Waker::wake);
            true
        });
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        self.tell_all(|unseen| unseen.closed = true);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const CAPACITY: usize = 256;

#[cfg(test)]
mod tests {
    use mainstay_xds::bootstrap::ServerConfig;

    use super::*;

    #[tokio::test]
    async fn the_first_listener_hears_what_came_before_it_and_the_end() {
        let source = EventSource::new();
        source.send(connecting(1));
        let (mut first, mut second) = (source.listen(), source.listen());
        source.send(connecting(2));
        drop(source);
        assert_eq!(first.next().await, Some(Event::of(&connecting(1))));
        assert_eq!(first.next().await, Some(Event::of(&connecting(2))));
        assert_eq!(first.next().await, None);
        assert_eq!(second.next().await, Some(Event::of(&connecting(2))));
        assert_eq!(second.next().await, None);
    }

    #[tokio::test]
    async fn a_listener_that_is_slow_loses_the_oldest_events() {
        let source = EventSource::new();
        for number in 0..=CAPACITY {
            source.send(connecting(number));
        }
        assert_eq!(source.listen().next().await, Some(Event::of(&connecting(1))));
    }

    #[tokio::test]
    async fn a_listener_that_waits_is_woken_and_one_that_went_is_forgotten() {
        let source = EventSource::new();
        let (mut here, gone) = (source.listen(), source.listen());
        drop(gone);
        let waiting = tokio::spawn(async move { here.next().await });
        tokio::task::yield_now().await;
        source.send(connecting(1));
        assert_eq!(waiting.await.unwrap(), Some(Event::of(&connecting(1))));
        assert_eq!(lock(&source.0).all.len(), 1);
    }

    fn connecting(number: usize) -> Arc<Report> {
        Arc::new(Report::Connecting(Arc::new(ServerConfig::insecure(format!("127.0.0.1:{number}")))))
    }
}
