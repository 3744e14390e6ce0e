//! The bytes of an HTTP/2 connection, watched for what h2 keeps to itself.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::frames::{Frames, Seen, Sent};
use crate::pulse::{Order, Pulse};

/// Any byte stream. Boxed: one allocation per connection, and one type of connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The bytes of a connection.
///
/// Watches the frames that the peer sends: the first must be SETTINGS on stream 0, and a GOAWAY is noted. And reads to
/// the end what a peer that has closed the connection said before. A server that drains says last which requests it did not process
/// (GOAWAY), then closes; a request that meets the closed socket fails to be written, and h2 would give up there, with
/// the last word unread. So writing never fails here: what cannot be written is thrown away, and the end comes when
/// there is nothing left to read, which follows at once, as only a connection that is gone refuses bytes.
pub(crate) struct Transport {
    stream: Box<dyn Stream>,
    frames: Frames,
    sent: Sent,
    greeted: Option<oneshot::Sender<FirstWord>>,
    goaway: Arc<OnceLock<u32>>,
    pub(crate) pulse: Arc<Pulse>,
    /// The task that is woken when there is an order.
    task: Option<Waker>,
    /// Whether everything that h2 had to say is written, so that another frame may be put in.
    between_frames: bool,
    /// How much of a ping is written, if there is one to be written.
    ping: Option<usize>,
    write_failed: bool,
}

/// What a peer says first, once it does.
pub(crate) struct Greeting(pub(crate) oneshot::Receiver<FirstWord>);

/// What a peer said first.
pub(crate) enum FirstWord {
    Settings,
    Other,
    /// Such as the alert of a TLS server that wants a client certificate: h2 keeps it to itself.
    Error(io::Error),
}

// === impl Transport ===

impl Transport {
    /// With what the peer says first, and the code of its GOAWAY once there is one. A peer that is suspected to be dead
    /// may be silent for `patience`.
    pub(crate) fn over(stream: Box<dyn Stream>, patience: Duration) -> (Self, Greeting, Arc<OnceLock<u32>>) {
        let (greeted, greeting) = oneshot::channel();
        let goaway = Arc::new(OnceLock::new());
        let frames = Frames::default();
        let transport = Self {
            stream,
            frames,
            sent: Sent::default(),
            greeted: Some(greeted),
            goaway: goaway.clone(),
            pulse: Pulse::new(patience),
            task: None,
            between_frames: false,
            ping: None,
            write_failed: false,
        };
        (transport, Greeting(greeting), goaway)
    }

    fn wait_for_orders(&mut self, cx: &Context<'_>) {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            self.pulse.wake_for_orders(cx);
        }
    }

    /// The outcome of writing `len` bytes, or of pretending to.
    fn written(&mut self, polled: Poll<io::Result<usize>>, len: usize) -> Poll<io::Result<usize>> {
        polled.map(|outcome| {
            outcome.or_else(|_| {
                self.write_failed = true;
                Ok(len)
            })
        })
    }

    /// The network took the first `len` bytes.
    fn note_sent(&mut self, mut len: usize, bufs: &[io::IoSlice<'_>]) {
        let Self { sent, pulse, .. } = self;
        for buf in bufs {
            let taken = len.min(buf.len());
            sent.follow(&buf[..taken], |stream| pulse.note_sent(stream));
            len -= taken;
        }
    }

    /// Writes what is left of a ping, where that is allowed.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(written) = self.ping {
            if self.write_failed || written == PING.len() {
                self.ping = None;
                // TLS may hold it back. If there is no room now, h2 flushes again before it writes.
                let _ = Pin::new(&mut self.stream).poll_flush(cx);
            } else if written == 0 && !self.between_frames {
                break;
            } else {
                let polled = Pin::new(&mut self.stream).poll_write(cx, &PING[written..]);
                let len = ready!(self.written(polled, PING.len() - written)).unwrap_or_default();
                self.ping = Some(written + len);
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.pulse.order() {
            None => {}
            Some(Order::Ping) => self.ping = Some(0),
            Some(Order::BreakOff) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
        if self.ping.is_some() {
            let _ = self.poll_ping(cx);
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_pending() {
            self.wait_for_orders(cx);
            return polled;
        }
        self.pulse.hear();
        if let Poll::Ready(Err(error)) = &polled
            && let Some(greeted) = self.greeted.take()
        {
            let _ = greeted.send(FirstWord::Error(copy(error)));
        }
        let Self { frames, greeted, goaway, pulse, .. } = &mut *self;
        frames.follow(&buf.filled()[before..], |seen| match seen {
            Seen::First { settings } => {
                let word = if settings { FirstWord::Settings } else { FirstWord::Other };
                if let Some(greeted) = greeted.take() {
                    let _ = greeted.send(word);
                }
            }
            Seen::Answer => pulse.note_answer(),
            Seen::GoAway(code) => {
                if goaway.set(code).is_ok() {
                    pulse.note_goaway();
                }
            }
        });
        polled
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.write_failed {
            return Poll::Ready(Ok(buf.len()));
        }
        if self.ping.is_some() {
            ready!(self.poll_ping(cx));
        }
        self.between_frames = false;
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(len)) = polled {
            self.note_sent(len, &[io::IoSlice::new(buf)]);
        }
        self.written(polled, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        if self.write_failed {
            return Poll::Ready(Ok(len));
        }
        if self.ping.is_some() {
            ready!(self.poll_ping(cx));
        }
        self.between_frames = false;
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(len)) = polled {
            self.note_sent(len, bufs);
        }
        self.written(polled, len)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // h2 flushes when all its frames are written.
        self.between_frames = true;
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(polled.map_ok(|()| 0), 0).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// An error that h2 is to have as well. What TLS says stays what it is: an alert is counted by its kind.
fn copy(error: &io::Error) -> io::Error {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(tls) => io::Error::new(error.kind(), tls.clone()),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// A PING (RFC 9113, section 6.7). What it carries is told apart from h2's own.
const PING: [u8; 17] = *b"\0\0\x08\x06\0\0\0\0\0mainstay";
