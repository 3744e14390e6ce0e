//! The body of a response, under the deadline of its RPC.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use mainstay_lb::{CallTracker, Ending, RetryThrottle};
use tokio::time::{Instant, Sleep};
use tonic::{Code, Status};

use crate::channelz_node;
use crate::code;
use crate::failure::{self, GRPC_STATUS};
use crate::request::Upload;
use crate::stream::Incoming;
use crate::telemetry::CallObserver;

/// The body of a response. It ends with DEADLINE_EXCEEDED when the time of the RPC is up.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Option<Incoming>,
    address: SocketAddr,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Let go when the body has ended or is dropped.
    held: Option<Held>,
}

/// What an RPC holds until it has ended: whoever listens for its end, and the counters that it is in.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) tracker: CallTracker,
    pub(crate) on_channel: channelz_node::Call,
    pub(crate) on_subchannel: channelz_node::Call,
    pub(crate) observer: CallObserver,
    pub(crate) throttle: Option<Arc<RetryThrottle>>,
    /// The rest of the request, which ends with the answer.
    pub(crate) upload: Option<Upload>,
}

impl Default for ResponseBody {
    /// Nothing at all: what tonic's interceptors answer with when they refuse a request.
    fn default() -> Self {
        Self { incoming: None, address: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(), deadline: None, held: None }
    }
}

impl ResponseBody {
    /// Puts `response` under the deadline of its RPC.
    pub(crate) fn of(
        response: http::Response<Incoming>,
        address: SocketAddr,
        deadline: Option<Pin<Box<Sleep>>>,
        held: Held,
    ) -> http::Response<Self> {
        let (head, incoming) = response.into_parts();
        let mut body = Self { incoming: Some(incoming), address, deadline, held: Some(held) };
        // A response without messages may have its status in the headers.
        body.read_status(&head.headers);
        http::Response::from_parts(head, body)
    }

    /// The status is the last word: with OK the RPC has succeeded, without it it has not.
    fn read_status(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get(&GRPC_STATUS) {
            self.end_as(Code::from_bytes(status.as_bytes()), Some(headers));
        }
    }

    fn end_as(&mut self, code: Code, trailers: Option<&HeaderMap>) {
        let Some(mut held) = self.held.take() else { return };
        held.observer.end_with(code, trailers);
        if code == Code::Ok {
            held.on_channel.succeed();
            held.on_subchannel.succeed();
            held.throttle.iter().for_each(|throttle| throttle.note_success());
        }
        held.tracker.end(Ending { code: code::of_tonic(code), trailers });
    }

    /// Ends an RPC that has no status of its own.
    fn end(&mut self, code: Code) {
        self.incoming = None;
        self.deadline = None;
        self.end_as(code, None);
    }

    fn expire<T>(&mut self) -> Poll<Option<Result<T, Status>>> {
        // Dropping the incoming body resets the stream: the endpoint stops working for nobody.
        self.end(Code::DeadlineExceeded);
        Poll::Ready(Some(Err(Status::deadline_exceeded("deadline passed while the response was read"))))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.read_status(trailers);
                } else if self.deadline.as_ref().is_some_and(|deadline| deadline.deadline() <= Instant::now()) {
                    // A caller that is slower than the endpoint never waits, and so never sees the timer.
                    return self.expire();
                } else if let (Some(held), Some(data)) = (&mut self.held, frame.data_ref()) {
                    held.observer.receive(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                let upload = self.held.as_ref().and_then(|held| held.upload.as_ref());
                let failed = upload.and_then(Upload::broken).unwrap_or_else(|| failure::transport(error, self.address));
                self.end(failed.code());
                Poll::Ready(Some(Err(failed)))
            }
            Poll::Ready(None) => {
                self.end(Code::Unknown);
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Some(deadline) = &mut self.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                self.expire()
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
