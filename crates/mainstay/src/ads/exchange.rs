//! One gRPC call on a connection to an xDS server: messages as bytes in both directions.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, header};
use mainstay_lb::PushBack;
use mainstay_xds::client::CloseCause;
use tonic::{Code, Status};

use super::connection::{Established, StreamPermit};
use super::wire::Receipt;
use crate::code;
use crate::failure::describe;

/// A stream that is open in both directions.
pub(super) struct Exchange<'a> {
    established: &'a Established,
    requests: SendStream<Bytes>,
    responses: Responses,
    /// What has come of messages that are not complete.
    buffer: BytesMut,
    max_message: usize,
}

enum Responses {
    Awaited(ResponseFuture),
    Begun(http::StatusCode, RecvStream),
}

/// How a stream ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) cause: CloseCause,
    /// The server has said that it did nothing with the stream.
    pub(super) refused: bool,
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    pub(super) fn open(
        permit: &'a StreamPermit,
        path: &'static str,
        bearer: Option<HeaderValue>,
        max_message: usize,
    ) -> Result<Self, End> {
        let established = permit.established();
        let mut request = request(established, path);
        if let Some(bearer) = bearer {
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
        }
        let sent = established.requests.clone().send_request(request, false);
        let (response, requests) = sent.map_err(|error| failed(established, &error))?;
        Ok(Self {
            established,
            requests,
            responses: Responses::Awaited(response),
            buffer: BytesMut::new(),
            max_message,
        })
    }

    /// Sends a message. It is on the wire when the receipt comes; if the stream ends before, it never does.
    pub(super) fn send(&mut self, message: &[u8]) -> Receipt {
        let framed = frame(message);
        let receipt = self.established.wire.expect(self.requests.stream_id().as_u32(), framed.len());
        // A stream that is over says so when it is read. h2 sends what it is given as the server makes room.
        let _ = self.requests.send_data(framed, false);
        receipt
    }

    /// The next message. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Result<Bytes, End> {
        loop {
            if let Some(message) = take_message(&mut self.buffer, self.max_message)? {
                return Ok(message);
            }
            match &mut self.responses {
                Responses::Awaited(response) => {
                    let response = response.await.map_err(|error| failed(self.established, &error))?;
                    let (head, body) = response.into_parts();
                    if body.is_end_stream() || head.headers.contains_key(GRPC_STATUS) {
                        return Err(ended(head.headers, head.status));
                    }
                    self.responses = Responses::Begun(head.status, body);
                }
                Responses::Begun(status, body) => match body.data().await {
                    Some(Ok(bytes)) => {
                        // It is out of the window once it is here: messages may be larger than that.
                        let _ = body.flow_control().release_capacity(bytes.len());
                        if *status == http::StatusCode::OK {
                            self.buffer.extend_from_slice(&bytes);
                        }
                    }
                    Some(Err(error)) => return Err(failed(self.established, &error)),
                    None => {
                        let trailers = body.trailers().await.map_err(|error| failed(self.established, &error))?;
                        return Err(ended(trailers.unwrap_or_default(), *status));
                    }
                },
            }
        }
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.established.wire.forget(self.requests.stream_id().as_u32());
    }
}

/// Asks the server whether it is well, and waits for any answer (grpc.health.v1). What the answer says does not matter.
/// Fails if there will be none.
pub(super) async fn check_health(established: &Established) -> Result<(), h2::Error> {
    let request = request(established, "/grpc.health.v1.Health/Check");
    let (response, mut body) = established.requests.clone().send_request(request, false)?;
    body.send_data(frame(&[]), true)?;
    match response.await {
        Ok(_) => Ok(()),
        Err(error) if error.is_remote() && error.is_reset() => Ok(()),
        Err(error) => Err(error),
    }
}

fn request(established: &Established, path: &'static str) -> http::Request<()> {
    let uri = http::Uri::builder()
        .scheme(established.scheme.clone())
        .authority(established.authority.clone())
        .path_and_query(path)
        .build()
        .expect("scheme, authority and path are valid parts");
    let mut request = http::Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    request
}

fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("requests are far below 4 GiB"));
    framed.put_slice(message);
    framed.freeze()
}

/// The first message, if it is there as a whole.
fn take_message(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, End> {
    let Some(prefix) = buffer.first_chunk::<PREFIX>() else { return Ok(None) };
    let [flag, length @ ..] = *prefix;
    let length = u32::from_be_bytes(length) as usize;
    if flag != 0 {
        return Err(violation(Code::Internal, "a compressed message, which nobody asked for".to_owned()));
    }
    if length > max {
        return Err(violation(
            Code::ResourceExhausted,
            format!("a message of {length} bytes, over the limit of {max}"),
        ));
    }
    if buffer.len() - PREFIX < length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    let message = buffer.split_to(length).freeze();
    if buffer.is_empty() {
        // A stream is quiet most of the time: it keeps no room for what may come.
        *buffer = BytesMut::new();
    }
    Ok(Some(message))
}

/// The end that the server's last headers tell.
fn ended(mut headers: HeaderMap, http: http::StatusCode) -> End {
    // Nobody reads the details, and tonic panics on those that are no base64.
    headers.remove("grpc-status-details-bin");
    let status = Status::from_header_map(&headers).unwrap_or_else(|| {
        let code = code::to_tonic(mainstay_xds::Code::of_http_status(http.as_u16()));
        Status::new(code, format!("no grpc-status, HTTP status {http}"))
    });
    let (code, message) = (code_number(status.code()), status.message().to_owned());
    let cause = match PushBack::of(&headers) {
        PushBack::After(come_back) => CloseCause::Deferred { code, message, come_back },
        // Whoever never wants to see us again will say so again: there is no life without a control plane.
        PushBack::None | PushBack::Never => CloseCause::Ended { code, message },
    };
    End { cause, refused: false }
}

/// What the server sent cannot be read on.
fn violation(code: Code, what: String) -> End {
    End { cause: CloseCause::Ended { code: code_number(code), message: what }, refused: false }
}

/// The end of a stream that was reset, or whose connection is gone.
fn failed(established: &Established, error: &h2::Error) -> End {
    let refused = error.is_remote()
        && (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR)
            || error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM));
    let lost = established.lost.borrow().clone();
    let cause = match (lost, error.reason()) {
        (None, Some(reason)) if error.is_reset() && error.is_remote() => {
            let code = code_number(Status::from_error(Box::new(h2::Error::from(reason))).code());
            CloseCause::Ended { code, message: format!("the stream was reset: {reason}") }
        }
        (lost, _) => CloseCause::ConnectionLost(lost.unwrap_or_else(|| describe(error))),
    };
    End { cause, refused }
}

fn code_number(code: Code) -> u16 {
    u16::try_from(i32::from(code)).unwrap_or(2)
}

const GRPC_STATUS: &str = "grpc-status";

const USER_AGENT: &str = concat!("mainstay/", env!("CARGO_PKG_VERSION"));

/// The flag and the length before each message.
const PREFIX: usize = 5;
