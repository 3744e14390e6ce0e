//! The gRPC service: every call becomes a stream task.
//!
//! Like the code that tonic generates for a service, but for the messages: responses come as bytes that streams share (FB-37),
//! and nothing of what was sent or read is kept.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{self, header::CONTENT_TYPE};
use tonic::metadata::GRPC_CONTENT_TYPE;

use crate::delta::Delta;
use crate::encoding::Encoded;
use crate::event::{Event, Refusal};
use crate::protocol::Protocol;
use crate::server::Shared;
use crate::server::carrier::Carrier;
use crate::server::requests::Requests;
use crate::server::stream::{DRAINING, Opened, Stream};
use crate::sotw::Sotw;

/// The aggregated discovery service of one generation of a server.
#[derive(Clone, Debug)]
pub(super) struct Ads {
    shared: Arc<Shared>,
    generation: u64,
    stream_alive: mpsc::Sender<()>,
}

impl Ads {
    pub(super) const NAME: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";

    pub(super) fn new(shared: Arc<Shared>, generation: u64, stream_alive: mpsc::Sender<()>) -> Self {
        Self { shared, generation, stream_alive }
    }

    /// Answers a call of one of its methods.
    pub(super) async fn call(self, request: http::Request<Incoming>) -> http::Response<Body> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let answer = match method {
            "StreamAggregatedResources" => self.stream::<Sotw>(request, false).await,
            "DeltaAggregatedResources" if self.shared.faults.subscribe().borrow().speaks_delta() => {
                self.stream::<Delta>(request, true).await
            }
            _ => Err(Status::unimplemented(format!("there is no method {}", request.uri().path()))),
        };
        match answer {
            Ok(responses) => {
                let mut response = http::Response::new(Body::new(responses));
                response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
                response
            }
            Err(status) => status.into_http(),
        }
    }

    async fn stream<P: Protocol>(self, request: http::Request<Incoming>, delta: bool) -> Result<Responses, Status> {
        let opened = Instant::now();
        let Self { shared, generation, stream_alive } = self;
        let carrier = request.extensions().get::<Carrier>().cloned();
        let carrier = carrier.ok_or_else(|| Status::internal("the request has no connection"))?;
        if let Err((refusal, status)) = admit(&shared, generation).await {
            shared.journal.record(Event::StreamRefused { connection: carrier.id, refusal });
            return Err(status);
        }
        let id = shared.journal.next_stream();
        shared.journal.record(Event::StreamOpened { stream: id, connection: carrier.id, delta });
        // One response in the queue and one in the making: whatever changes meanwhile is part of the next.
        let (responses, of_task) = mpsc::channel(1);
        let (answered, first_response) = oneshot::channel();
        let late_headers = shared.faults.subscribe().borrow().late_headers;
        let context = Opened { id, delta, generation, carrier, at: opened };
        let stream = Stream::<P>::new(shared, context, responses, answered);
        tokio::spawn(stream.run(Requests::new(request.into_body()), stream_alive));
        if late_headers {
            // An error is the end of the stream, which the headers may well announce.
            let _ = first_response.await;
        }
        Ok(Responses { of_task, rest: Bytes::new(), is_over: false })
    }
}

/// Whether a stream may be opened now, or after a short wait.
async fn admit(shared: &Shared, generation: u64) -> Result<(), (Refusal, Status)> {
    if shared.life.borrow().is_ending(generation) {
        return Err((Refusal::Draining, shared.door.away(DRAINING)));
    }
    shared.control_plane.admit().await.map_err(|why| (Refusal::Closed, shared.door.away(&why)))?;
    shared.door.admit().await
}

/// The responses of a stream as they go over the wire: bytes that all streams share, with a few of its own before them. Nothing
/// of a response is kept when it is sent.
struct Responses {
    of_task: mpsc::Receiver<Box<Result<Encoded, Status>>>,
    /// What of the last response is still to be sent.
    rest: Bytes,
    is_over: bool,
}

impl HttpBody for Responses {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.rest)))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let status = match ready!(self.of_task.poll_recv(cx)).map(|response| *response) {
            Some(Ok(response)) => {
                let (head, rest) = response.into_frame();
                self.rest = rest;
                return Poll::Ready(Some(Ok(Frame::data(head))));
            }
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.is_over = true;
        let mut trailers = http::HeaderMap::new();
        // What is no header of HTTP cannot be told, and the code is there by then.
        let _ = status.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}
