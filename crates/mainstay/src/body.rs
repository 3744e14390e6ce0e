//! The body of a response, under the deadline of its RPC.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use mainstay_lb::InFlight;
use tokio::time::Sleep;
use tonic::Status;

use crate::failure;

/// What comes back from an endpoint. Ends with DEADLINE_EXCEEDED when the RPC's time is up.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Option<Incoming>,
    address: SocketAddr,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Counts the RPC as in flight until the body has ended or is dropped.
    in_flight: Option<InFlight>,
}

impl ResponseBody {
    pub(crate) fn new(
        incoming: Incoming,
        address: SocketAddr,
        deadline: Option<Pin<Box<Sleep>>>,
        in_flight: Option<InFlight>,
    ) -> Self {
        Self { incoming: Some(incoming), address, deadline, in_flight }
    }

    fn end(&mut self) {
        self.incoming = None;
        self.deadline = None;
        self.in_flight = None;
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => {
                self.end();
                Poll::Ready(Some(Err(failure::transport(error, self.address))))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Some(deadline) = &mut self.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                // Dropping the incoming body resets the stream: the endpoint stops working for nobody.
                self.end();
                Poll::Ready(Some(Err(Status::deadline_exceeded("deadline passed while the response was read"))))
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
