//! Requests and responses on a connection: what is there of a request goes out at once, the rest in a task of its own.
//!
//! `h2` directly, not hyper: no task and no queue between an RPC and its connection, and a request that was never given to
//! the network is known to be one.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http_body::{Body, Frame};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard};
use tonic::Status;

use crate::failure;
use crate::pulse::Pulse;
use crate::request::{Outgoing, RequestBody};

/// Where the requests of a connection go.
pub(crate) struct Requests {
    h2: SendRequest<Bytes>,
    gate: Arc<Gate>,
    pulse: Arc<Pulse>,
    /// Where the connection lives: a call may be made anywhere.
    runtime: Handle,
}

/// Where requests wait in their order when the peer allows no more streams, and one at a time in h2. There they could not be
/// taken back: h2 would send those that were given up only to reset them.
pub(crate) struct Gate {
    h2: Mutex<SendRequest<Bytes>>,
    /// Whether the last request that came through may still wait in h2.
    is_used: AtomicBool,
}

/// The right to send the next request on a connection.
pub(crate) struct Turn<'a> {
    requests: &'a Requests,
    h2: MutexGuard<'a, SendRequest<Bytes>>,
    /// Who waits is a call, or others would go first.
    _call: Arc<Pulse>,
}

/// Why a request was not sent.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The connection takes no more requests.
    Closed,
    /// It has headers that HTTP/2 does not allow.
    Malformed(h2::Error),
    /// The caller's stream failed.
    Broken(Status),
}

/// A response to come. Dropped, it cancels the request.
pub(crate) struct Response {
    h2: h2::client::ResponseFuture,
    stream: u32,
    pulse: Arc<Pulse>,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum NoResponse {
    /// The connection ended before any of the request was given to the network, or took requests.
    NeverLeft,
    Failed(h2::Error),
}

/// The body of a response. Dropped before its end, it resets the stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    data_done: bool,
    /// Who holds it is a call.
    _pulse: Arc<Pulse>,
}

/// Sends what is left of a request, as fast as the caller makes it and the peer takes it.
struct Upload {
    stream: SendStream<Bytes>,
    body: RequestBody,
    /// What waits for room at the peer, and whether it is the last piece.
    piece: Option<(Bytes, bool)>,
}

// === impl Requests ===

impl Requests {
    pub(crate) fn new(h2: SendRequest<Bytes>, pulse: Arc<Pulse>) -> Self {
        let gate = Arc::new(Gate { h2: Mutex::new(h2.clone()), is_used: AtomicBool::new(false) });
        Self { h2, gate, pulse, runtime: Handle::current() }
    }

    /// What whoever carries the connection must [settle](Gate::settle).
    pub(crate) fn gate(&self) -> Weak<Gate> {
        Arc::downgrade(&self.gate)
    }

    /// Whether the peer allows another stream.
    pub(crate) fn has_room(&self) -> bool {
        self.pulse.calls(1) < self.h2.current_max_send_streams()
    }

    /// Sends a request at once.
    pub(crate) fn send(&self, outgoing: Outgoing) -> Result<Response, Unsent> {
        self.send_by(&mut self.h2.clone(), outgoing)
    }

    /// Waits until the peer allows another stream, after those who waited before.
    pub(crate) async fn turn(&self) -> Result<Turn<'_>, Unsent> {
        let call = self.pulse.clone();
        let mut h2 = self.gate.h2.lock().await;
        match std::future::poll_fn(|cx| h2.poll_ready(cx)).await {
            Ok(()) => Ok(Turn { requests: self, h2, _call: call }),
            Err(_) => Err(self.closed()),
        }
    }

    fn send_by(&self, h2: &mut SendRequest<Bytes>, outgoing: Outgoing) -> Result<Response, Unsent> {
        let Outgoing { head, mut body } = outgoing;
        // Whoever carries the rest polls it again, so that nobody need be woken.
        let mut nobody = Context::from_waker(Waker::noop());
        let first = match Pin::new(&mut body).poll_frame(&mut nobody) {
            Poll::Ready(Some(Err(status))) => return Err(Unsent::Broken(status)),
            first => first.map(|frame| frame.and_then(Result::ok)),
        };
        let is_empty = matches!(first, Poll::Ready(None));
        let (response, mut stream) = match h2.send_request(head, is_empty) {
            Ok(sent) => sent,
            Err(_) if matches!(h2.poll_ready(&mut nobody), Poll::Ready(Err(_))) => return Err(self.closed()),
            Err(error) => return Err(Unsent::Malformed(error)),
        };
        let response = Response { stream: response.stream_id().as_u32(), h2: response, pulse: self.pulse.clone() };
        // If the stream has ended already, the response says why.
        let is_whole = match first {
            Poll::Ready(None) => true,
            Poll::Ready(Some(frame)) => match frame.into_data() {
                Ok(data) => {
                    let is_whole = body.is_end_stream();
                    let _ = stream.send_data(data, is_whole);
                    is_whole
                }
                Err(frame) => {
                    let _ = frame.into_trailers().map(|trailers| stream.send_trailers(trailers));
                    true
                }
            },
            Poll::Pending => false,
        };
        if !is_whole {
            self.runtime.spawn(Upload { stream, body, piece: None });
        }
        Ok(response)
    }

    /// The connection is over, or has no more numbers for streams: then only we know.
    fn closed(&self) -> Unsent {
        self.pulse.retire();
        Unsent::Closed
    }
}

// === impl Turn ===

impl Turn<'_> {
    pub(crate) fn send(mut self, outgoing: Outgoing) -> Result<Response, Unsent> {
        self.requests.gate.is_used.store(true, Ordering::Release);
        self.requests.send_by(&mut self.h2, outgoing)
    }
}

// === impl Gate ===

impl Gate {
    /// Lets go of the request that came through last, if its stream is open by now: or nobody else could end it.
    pub(crate) fn settle(&self) {
        if self.is_used.load(Ordering::Acquire)
            && let Ok(mut h2) = self.h2.try_lock()
            && h2.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            self.is_used.store(false, Ordering::Release);
        }
    }
}

// === impl Response ===

impl Response {
    /// Nobody waits for it any more. The peer may be dead.
    pub(crate) fn suspect(&self) {
        self.pulse.suspect();
    }
}

impl Future for Response {
    type Output = Result<http::Response<Incoming>, NoResponse>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.h2).poll(cx)) {
            Ok(response) => {
                let pulse = self.pulse.clone();
                Ok(response.map(|stream| Incoming { stream, data_done: false, _pulse: pulse }))
            }
            // What we reset ourselves, as the caller's stream broke, is not the connection's fault, and not to be repeated.
            Err(error) if error.is_reset() && !error.is_remote() => Err(NoResponse::Failed(error)),
            Err(_) if !self.pulse.has_sent(self.stream) => Err(NoResponse::NeverLeft),
            // Nobody but h2 would have sent it, and the peer says that it did not look at it.
            Err(error) if self.pulse.left_late(self.stream) && failure::is_refusal(&error) => {
                Err(NoResponse::NeverLeft)
            }
            Err(error) => Err(NoResponse::Failed(error)),
        })
    }
}

// === impl Incoming ===

impl Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_done {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // A stream that has ended needs no room.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_done = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx));
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

// === impl Upload ===

impl Future for Upload {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { stream, body, piece } = &mut *self;
        if body.is_over(cx) || stream.poll_reset(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            if let Some((data, is_last)) = piece.take() {
                while stream.capacity() == 0 && !data.is_empty() {
                    match stream.poll_capacity(cx) {
                        Poll::Ready(Some(Ok(_))) => {}
                        Poll::Ready(_) => return Poll::Ready(()),
                        Poll::Pending => {
                            *piece = Some((data, is_last));
                            return Poll::Pending;
                        }
                    }
                }
                if stream.send_data(data, is_last).is_err() || is_last {
                    return Poll::Ready(());
                }
            }
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        // No more than it takes to be told of room: what is reserved here is missing elsewhere.
                        stream.reserve_capacity(usize::from(!data.is_empty()));
                        *piece = Some((data, body.is_end_stream()));
                    }
                    Err(frame) => {
                        stream.reserve_capacity(0);
                        let _ = frame.into_trailers().map(|trailers| stream.send_trailers(trailers));
                        return Poll::Ready(());
                    }
                },
                Some(Err(_)) => {
                    stream.send_reset(h2::Reason::CANCEL);
                    return Poll::Ready(());
                }
                None => {
                    let _ = stream.send_data(Bytes::new(), true);
                    return Poll::Ready(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
