//! Streams on which endpoints report their load, on the connections that RPCs use (A51, L-109).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use envoy_types::pb::google::protobuf::Duration as PbDuration;
use http::uri::Authority;
use http::{HeaderMap, Method, header};
use http_body_util::{BodyExt, Full};
use mainstay_lb::LoadSink;
use prost::Message;
use tonic::Code;
use tonic::body::Body;

use crate::connection::Connection;
use crate::failure::describe;
use crate::random::Random;
use crate::request::Request;
use crate::stream::NoResponse;

/// What requests on endpoint connections start with.
#[derive(Clone, Debug)]
pub(crate) struct BaseUri {
    pub(crate) authority: Authority,
}

/// `xds.service.orca.v3.OrcaLoadReportRequest`.
#[derive(Clone, PartialEq, Message)]
struct OrcaLoadReportRequest {
    #[prost(message, optional, tag = "1")]
    report_interval: Option<PbDuration>,
}

/// Where reports go.
trait Sink {
    fn is_wanted(&self) -> bool;
    fn report(&self, report: &[u8]);
}

impl Sink for LoadSink {
    fn is_wanted(&self) -> bool {
        Self::is_wanted(self)
    }

    fn report(&self, report: &[u8]) {
        Self::report(self, report);
    }
}

/// Why a stream ended.
enum End {
    /// The endpoint does not report.
    Unsupported,
    /// Anything else; whether there was a report before.
    Other { cause: String, reported: bool },
    /// Nobody wants reports any more.
    Unwanted,
}

/// Brings reports to `sink` until this connection is lost, or nobody wants them any more.
pub(crate) async fn collect(base_uri: BaseUri, connection: Arc<Connection>, period: Duration, sink: LoadSink) {
    let Some(socket) = connection.socket().map(|socket| socket.id) else { return };
    let address = connection.address();
    let mut failures = 0;
    while connection.socket().is_some_and(|current| current.id == socket) {
        match stream(&base_uri, &connection, period, &sink).await {
            End::Unwanted => return,
            End::Unsupported => {
                tracing::error!(%address, "the endpoint reports no load: it has no OpenRcaService");
                return;
            }
            End::Other { cause, reported } => {
                failures = if reported { 0 } else { failures + 1 };
                tracing::debug!(%address, cause, "the endpoint ended its load reports");
            }
        }
        tokio::time::sleep(connection.backoff().delay(failures, &mut Random)).await;
    }
}

async fn stream(base_uri: &BaseUri, connection: &Connection, period: Duration, sink: &LoadSink) -> End {
    let other = |cause: &str, reported| End::Other { cause: cause.to_owned(), reported };
    let Some(socket) = connection.socket() else { return other("connection lost", false) };
    let Ok(turn) = socket.requests.turn().await else { return other("connection lost", false) };
    let mut request = Request::new(request(period));
    let attempt = request.attempt(socket.scheme(), base_uri.authority.clone(), None, 0);
    let Some(attempt) = attempt else { return other("no request", false) };
    let Ok(response) = turn.send(attempt) else { return other("connection lost", false) };
    drop(socket); // A connection that nobody else uses may close.
    let response = match response.await {
        Ok(response) => response,
        Err(NoResponse::NeverLeft) => return other("connection lost", false),
        Err(NoResponse::Failed(error)) => return other(&describe(&error), false),
    };
    if let Some(end) = ended(response.headers(), false) {
        return end;
    }
    read(response.into_body(), period, sink).await
}

/// Brings the reports of a stream to `sink`, the newest of those that come together. An endpoint is read no faster than it
/// was asked to report: one that reports all the time is held up by flow control, and costs no more than the others.
async fn read<B>(mut body: B, period: Duration, sink: &impl Sink) -> End
where
    B: http_body::Body<Data = Bytes, Error: std::error::Error + 'static> + Unpin,
{
    let other = |cause: &str, reported| End::Other { cause: cause.to_owned(), reported };
    let (mut buffer, mut reported) = (BytesMut::new(), false);
    loop {
        let Ok(frame) = tokio::time::timeout(PATIENCE, body.frame()).await else {
            if sink.is_wanted() {
                continue;
            }
            return End::Unwanted;
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return other(&describe(&error), reported),
            None => return other("without a status", reported),
        };
        if let Some(end) = frame.trailers_ref().and_then(|trailers| ended(trailers, reported)) {
            return end;
        }
        let Ok(data) = frame.into_data() else { continue };
        if buffer.len() + data.len() > MAX_REPORT {
            return other("a report is too large", reported);
        }
        buffer.extend_from_slice(&data);
        let Some(newest) = std::iter::from_fn(|| take_message(&mut buffer)).last() else { continue };
        if !sink.is_wanted() {
            return End::Unwanted;
        }
        sink.report(&newest);
        reported = true;
        // Not all of the period, or one that comes a little early would make the next one late.
        tokio::time::sleep(period / 2).await;
    }
}

/// The end that a status means, if there is one.
fn ended(headers: &HeaderMap, reported: bool) -> Option<End> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    Some(match code {
        Code::Unimplemented => End::Unsupported,
        code => End::Other { cause: code.to_string(), reported },
    })
}

fn request(period: Duration) -> http::Request<Body> {
    let seconds = i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
    let interval = PbDuration { seconds, nanos: period.subsec_nanos() as i32 };
    let message = OrcaLoadReportRequest { report_interval: Some(interval) }.encode_to_vec();
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(&message);
    let mut request = http::Request::new(Body::new(Full::new(framed.freeze())));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(METHOD);
    request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert(header::TE, header::HeaderValue::from_static("trailers"));
    request
}

/// The first message, if it is there as a whole.
fn take_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_be_bytes(buffer.get(1..PREFIX)?.try_into().ok()?) as usize;
    if buffer.len() - PREFIX < length {
        return None;
    }
    buffer.advance(PREFIX);
    Some(buffer.split_to(length).freeze())
}

const METHOD: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// The flag and the length before each message.
const PREFIX: usize = 5;

/// Larger reports are not read.
const MAX_REPORT: usize = 64 << 10;

/// How long a silent stream may go on before someone looks whether it is still wanted.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_reports_all_the_time_is_read_no_faster_than_it_was_asked_to_report() {
        let frames = Cell::new(0);
        let flood = StreamBody::new(futures_util::stream::repeat_with(|| {
            frames.set(frames.get() + 1);
            assert!(frames.get() < 1_000, "it is read without end");
            // A hundred empty reports.
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[0; 100 * PREFIX])))
        }));
        let reports = Counter::default();
        assert!(tokio::time::timeout(10 * PERIOD, read(flood, PERIOD, &reports)).await.is_err(), "it goes on for ever");
        assert!((20..=21).contains(&frames.get()), "{} frames in ten periods", frames.get());
        assert_eq!(reports.0.get(), frames.get(), "of those that come together only the newest counts");
    }

    #[derive(Default)]
    struct Counter(Cell<usize>);

    impl Sink for Counter {
        fn is_wanted(&self) -> bool {
            true
        }

        fn report(&self, _: &[u8]) {
            self.0.set(self.0.get() + 1);
        }
    }
}
