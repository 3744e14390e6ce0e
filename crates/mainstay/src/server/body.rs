//! The bodies of an RPC on a server, seen by those who count.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::channelz_node::Call;
use crate::failure::GRPC_STATUS;
use crate::telemetry::{ReceivedObserver, ServerCallObserver};

/// The body of a response. The RPC has ended when it has.
pub(super) struct AnswerBody {
    body: Body,
    call: Option<RunningCall>,
}

/// An RPC that is counted. If it is dropped, nobody waits for the answer any more.
pub(super) struct RunningCall {
    pub(super) on_server: Call,
    pub(super) on_socket: Call,
    pub(super) observer: ServerCallObserver,
}

impl AnswerBody {
    pub(super) fn of(response: http::Response<Body>, call: RunningCall) -> http::Response<Self> {
        let (head, body) = response.into_parts();
        let mut body = Self { body, call: Some(call) };
        // A response without messages has its status in the headers.
        body.read_status(&head.headers);
        http::Response::from_parts(head, body)
    }

    fn read_status(&mut self, headers: &HeaderMap) {
        let Some(status) = headers.get(&GRPC_STATUS) else { return };
        if let Some(call) = self.call.take() {
            call.end(Code::from_bytes(status.as_bytes()), Some(headers));
        }
    }
}

impl RunningCall {
    fn end(mut self, code: Code, headers: Option<&HeaderMap>) {
        self.observer.end(code, headers);
        if code == Code::Ok {
            self.on_server.succeed();
            self.on_socket.succeed();
        }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => {
                    if let Some(call) = &mut self.call {
                        call.observer.send(data);
                    }
                }
                (None, Some(trailers)) => self.read_status(trailers),
                (None, None) => {}
            },
            Some(Err(status)) => {
                let code = status.code();
                self.call.take().into_iter().for_each(|call| call.end(code, None));
            }
            // Without a status the caller cannot know whether it is all.
            None => self.call.take().into_iter().for_each(|call| call.end(Code::Unknown, None)),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request, where somebody counts.
pub(super) struct ReceivedBody {
    pub(super) body: Incoming,
    pub(super) observer: ReceivedObserver,
}

impl http_body::Body for ReceivedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.observer.receive(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
