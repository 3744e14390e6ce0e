//! The request of an RPC, kept so that it can be sent again as long as no endpoint has processed it.
//!
//! An endpoint that goes away may refuse requests that were under way to it (GOAWAY). Such an RPC must not fail: it is
//! sent to another endpoint (A6, transparent retry). The same goes for one that failed, if its route has a retry policy
//! (A44). What was read of its body is kept until the response begins, up to a bound.
//!
//! Nothing that a caller's stream does may get out of here: a panic in it is an error of this one request. What the RPC
//! and the task that sends the rest of a body share is behind one lock, under which the task both looks whether it is
//! still wanted and says whom to wake: no end is missed.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Uri, Version};
use http_body::{Body as _, Frame};
use mainstay_lb::Rpc;
use tonic::Status;
use tonic::body::Body;

use crate::deadline::GRPC_TIMEOUT;
use crate::guard;
use crate::telemetry::SentObserver;

/// A request as the caller made it.
pub(crate) struct Request {
    method: Method,
    path: PathAndQuery,
    /// Taken by an attempt, and made anew for the next one.
    headers: HeaderMap,
    /// The same in the form that costs least, as nearly nobody looks at them again.
    kept_headers: Vec<(HeaderName, HeaderValue)>,
    body: Upload,
    attempts: u32,
}

/// A request as it is sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) head: http::Request<()>,
    pub(crate) body: RequestBody,
}

/// The body of one attempt. When the next one begins, this one ends.
#[derive(Debug)]
pub(crate) struct RequestBody {
    source: Arc<Mutex<Source>>,
    attempt: u32,
    /// How many of the kept pieces this attempt has read.
    position: usize,
    /// Whether everything was read.
    done: bool,
    observer: SentObserver,
}

#[derive(Debug)]
struct Source {
    /// None when it was read to its end, or will not be read any more.
    body: Option<Body>,
    /// What comes after the first piece, if it was there already.
    second: Option<Result<Frame<Bytes>, Status>>,
    /// What was read so far; none if it can never be asked for again.
    kept: Option<Kept>,
    /// The attempt that reads.
    attempt: u32,
    /// Why the caller gave up on it: an error in its stream, or a panic. The endpoint hears only that.
    broken: Option<Status>,
    /// The RPC is over: nobody wants the rest.
    abandoned: bool,
    /// The task that sends it, while that may have to wait for the endpoint.
    sending: Option<Waker>,
}

/// Pieces of a body. Most requests have one, which costs no list.
#[derive(Debug, Default)]
struct Kept {
    first: Option<Bytes>,
    more: Vec<Bytes>,
    bytes: usize,
}

impl Request {
    pub(crate) fn new(request: http::Request<Body>) -> Self {
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut headers = head.headers;
        headers.entry(USER_AGENT).or_insert(AGENT);
        let source = Source {
            body: Some(body),
            second: None,
            kept: Some(Kept::default()),
            attempt: 0,
            broken: None,
            abandoned: false,
            sending: None,
        };
        let body = Upload(Arc::new(Mutex::new(source)));
        Self { method: head.method, path, headers, kept_headers: Vec::new(), body, attempts: 0 }
    }

    /// What an RPC is chosen a way by.
    pub(crate) fn rpc(&mut self) -> Rpc<'_> {
        self.restore_headers();
        Rpc { path: self.path.path(), headers: &self.headers }
    }

    /// Makes headers anew that an attempt has taken.
    fn restore_headers(&mut self) {
        if self.headers.is_empty() {
            for (name, value) in &self.kept_headers {
                self.headers.append(name, value.clone());
            }
        }
    }

    /// The request for the next attempt, from its beginning; none if what was read is not there any more.
    pub(crate) fn attempt(
        &mut self,
        scheme: Scheme,
        authority: Authority,
        timeout: Option<HeaderValue>,
        previous_attempts: u32,
    ) -> Option<Outgoing> {
        let attempt = self.attempts;
        self.attempts += 1;
        if attempt > 0 {
            let mut source = lock(&self.body.0);
            source.kept.as_ref()?;
            source.begin(attempt);
        }
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(scheme);
        parts.authority = Some(authority);
        parts.path_and_query = Some(self.path.clone());
        let mut request = http::Request::new(());
        *request.version_mut() = Version::HTTP_2;
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path make a URI");
        self.restore_headers();
        if self.kept_headers.is_empty() {
            self.kept_headers.reserve_exact(self.headers.len());
            self.kept_headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        *request.headers_mut() = std::mem::take(&mut self.headers);
        if let Some(timeout) = timeout {
            request.headers_mut().insert(&GRPC_TIMEOUT, timeout);
        }
        if previous_attempts > 0 {
            request.headers_mut().insert(PREVIOUS_ATTEMPTS, previous_attempts.into());
        }
        let body = RequestBody {
            source: self.body.0.clone(),
            attempt,
            position: 0,
            done: false,
            observer: Default::default(),
        };
        Some(Outgoing { head: request, body })
    }

    /// Removes what HTTP/2 does not allow (RFC 9113, section 8.2.2); whether there was any.
    pub(crate) fn strip_connection_headers(&mut self) -> bool {
        let before = self.kept_headers.len();
        self.kept_headers.retain(|(name, value)| match name.as_str() {
            "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => false,
            "te" => value == "trailers",
            _ => true,
        });
        self.kept_headers.len() < before
    }

    /// Whether the request can be sent once more. If so, the attempt before reads nothing of it from now on, so that
    /// this stays true.
    pub(crate) fn prepare_another(&mut self) -> bool {
        let mut source = lock(&self.body.0);
        source.begin(self.attempts);
        source.kept.is_some()
    }

    /// An endpoint has begun to answer: there will be no other attempt. What is left of the request, if it is not sent
    /// as a whole.
    pub(crate) fn commit(self) -> Option<Upload> {
        let mut source = lock(&self.body.0);
        source.kept = None;
        let is_sent = Arc::strong_count(&self.body.0) == 1;
        if is_sent {
            source.let_go(); // Nobody sends it any more.
        }
        let is_whole = is_sent && source.broken.is_none();
        drop(source);
        (!is_whole).then_some(self.body)
    }

    /// Why the request itself failed, if it did.
    pub(crate) fn broken(&self) -> Option<Status> {
        self.body.broken()
    }
}

/// The body of a request that may still be sent. Dropped with the RPC or its answer, it ends, wherever it waits: or the
/// endpoint would not hear that nobody waits for an answer any more.
#[derive(Debug)]
pub(crate) struct Upload(Arc<Mutex<Source>>);

impl Upload {
    /// Why the request itself failed, if it did.
    pub(crate) fn broken(&self) -> Option<Status> {
        lock(&self.0).broken.clone()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut source = lock(&self.0);
        source.abandoned = true;
        let sending = source.sending.take();
        drop(source);
        sending.into_iter().for_each(Waker::wake);
    }
}

impl RequestBody {
    /// Has `observer` see what is sent.
    pub(crate) fn observe(&mut self, observer: SentObserver) {
        self.observer = observer;
    }

    /// Whether nobody wants it any more. If somebody does, wakes the task when that changes.
    pub(crate) fn is_over(&self, cx: &Context<'_>) -> bool {
        let mut source = lock(&self.source);
        if source.is_over(self.attempt) {
            return true;
        }
        if !source.sending.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            source.sending = Some(cx.waker().clone());
        }
        false
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let mut source = lock(&this.source);
        if source.is_over(this.attempt) {
            return Poll::Ready(None);
        }
        let polled = source.poll_piece(this.position, cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    guard::shielded("telemetry", || this.observer.send(data));
                }
                this.position += 1;
                this.done = source.is_read(this.position);
            }
            Poll::Ready(_) => this.done = true,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.done || lock(&self.source).is_read(self.position)
    }
}

impl Drop for RequestBody {
    /// Nobody sends it any more. If it will not be sent again either, its source may go, though the answer is still read.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut source = lock(&self.source);
        if source.kept.is_none() && source.attempt == self.attempt {
            source.let_go();
        }
    }
}

impl Source {
    /// The next piece for an attempt that has read so many.
    fn poll_piece(&mut self, position: usize, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(piece) = self.kept.as_ref().and_then(|kept| kept.get(position)) {
            return Poll::Ready(Some(Ok(Frame::data(piece.clone()))));
        }
        let frame = match self.second.take() {
            Some(second) => Some(second),
            None => ready!(self.poll_body(cx)),
        };
        match &frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => self.keep(data),
                None => self.kept = None,
            },
            Some(Err(_)) => self.kept = None,
            None => {}
        }
        // Most requests are one piece. Known to be the last one, it ends the stream, and no empty one has to.
        if position == 0
            && let Poll::Ready(second) = self.poll_body(cx)
        {
            self.second = second;
        }
        Poll::Ready(frame)
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = match guard::catch(|| Pin::new(body).poll_frame(cx)) {
            Ok(polled) => ready!(polled),
            Err(panic) => Some(Err(Status::internal(format!("the stream of the request panicked: {panic}")))),
        };
        if let Some(Err(status)) = &frame {
            self.broken = Some(status.clone());
        }
        if !matches!(frame, Some(Ok(_))) {
            self.let_go();
        }
        Poll::Ready(frame)
    }

    fn keep(&mut self, piece: &Bytes) {
        match &mut self.kept {
            Some(kept) if kept.bytes + piece.len() <= KEPT_BYTES => kept.push(piece.clone()),
            kept => *kept = None,
        }
    }

    /// Whether an attempt that has read so many pieces has read them all.
    fn is_read(&self, position: usize) -> bool {
        self.kept.as_ref().and_then(|kept| kept.get(position)).is_none()
            && self.second.is_none()
            && self.body.as_ref().is_none_or(|body| guard::catch(|| body.is_end_stream()).unwrap_or_default())
    }

    /// From now on this attempt reads. The one before ends, wherever it waits.
    fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.sending.take().into_iter().for_each(Waker::wake);
    }

    fn is_over(&self, attempt: u32) -> bool {
        self.abandoned || self.attempt != attempt
    }

    /// Drops what the caller gave us: it reads no more.
    fn let_go(&mut self) {
        if let Some(body) = self.body.take() {
            guard::shielded("the stream of a request", || drop(body));
        }
    }
}

impl Kept {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        match self.first {
            None => self.first = Some(piece),
            Some(_) => self.more.push(piece),
        }
    }

    fn get(&self, position: usize) -> Option<&Bytes> {
        match position.checked_sub(1) {
            None => self.first.as_ref(),
            Some(position) => self.more.get(position),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn lock(source: &Mutex<Source>) -> MutexGuard<'_, Source> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As much of a body as gRPC keeps for retries by default.
const KEPT_BYTES: usize = 256 << 10;

/// Tells the endpoint how many attempts failed before (A6).
const PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

const AGENT: HeaderValue = HeaderValue::from_static(concat!("mainstay/", env!("CARGO_PKG_VERSION")));

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    #[tokio::test]
    async fn another_attempt_starts_from_the_beginning_and_ends_the_one_before() {
        let mut request = request(&["one", "two", "three"]);
        let mut first = attempt(&mut request).unwrap();
        assert_eq!(read(&mut first).await.as_deref(), Some("one"));
        assert_eq!(read(&mut first).await.as_deref(), Some("two"));
        let mut second = attempt(&mut request).unwrap();
        assert_eq!(read(&mut first).await, None);
        for expected in [Some("one"), Some("two"), Some("three"), None, None] {
            assert_eq!(read(&mut second).await.as_deref(), expected);
        }
        assert!(second.is_end_stream());
    }

    #[tokio::test]
    async fn the_only_piece_is_known_to_be_the_last() {
        let mut whole = request(&["one"]);
        let mut body = attempt(&mut whole).unwrap();
        assert!(!body.is_end_stream());
        assert_eq!(read(&mut body).await.as_deref(), Some("one"));
        assert!(body.is_end_stream());
        let mut whole = request(&["one", "two"]);
        let mut body = attempt(&mut whole).unwrap();
        read(&mut body).await;
        assert!(!body.is_end_stream());
    }

    #[tokio::test]
    async fn an_attempt_that_was_answered_reads_on_and_keeps_nothing() {
        let mut request = request(&["one", "two"]);
        let mut body = attempt(&mut request).unwrap();
        assert_eq!(read(&mut body).await.as_deref(), Some("one"));
        let upload = request.commit();
        assert!(upload.is_some(), "it is not sent as a whole");
        assert_eq!(read(&mut body).await.as_deref(), Some("two"));
        assert_eq!(read(&mut body).await, None);
        assert!(lock(&body.source).kept.is_none());
    }

    #[tokio::test]
    async fn what_is_left_of_a_request_ends_with_its_answer() {
        let mut request = request(&["one", "two", "three"]);
        let mut body = attempt(&mut request).unwrap();
        assert_eq!(read(&mut body).await.as_deref(), Some("one"));
        drop(request.commit());
        assert_eq!(read(&mut body).await, None);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_request_and_the_caller_hears_of_it() {
        let stream = futures_util::stream::iter(0..2).map(|number| match number {
            0 => Ok::<_, Status>(Frame::data(Bytes::from_static(b"one"))),
            _ => panic!("bug"),
        });
        let stream = Body::new(StreamBody::new(stream));
        let mut request = Request::new(http::Request::builder().method(Method::POST).uri("/s/m").body(stream).unwrap());
        let mut body = attempt(&mut request).unwrap();
        assert_eq!(read(&mut body).await.as_deref(), Some("one"));
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.message()), (tonic::Code::Internal, "the stream of the request panicked: bug"));
        assert_eq!(request.broken().map(|status| status.code()), Some(tonic::Code::Internal));
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_large_body_is_sent_once() {
        let large = "x".repeat(KEPT_BYTES);
        let mut request = request(&["one", &large]);
        let mut body = attempt(&mut request).unwrap();
        read(&mut body).await;
        assert!(attempt(&mut request).is_some());
        let mut body = attempt(&mut request).unwrap();
        read(&mut body).await;
        assert_eq!(read(&mut body).await.map(|piece| piece.len()), Some(KEPT_BYTES));
        assert!(attempt(&mut request).is_none());
    }

    #[tokio::test]
    async fn a_request_that_is_prepared_for_another_attempt_stays_so() {
        let large = "x".repeat(KEPT_BYTES);
        let mut request = request(&["one", &large]);
        let mut first = attempt(&mut request).unwrap();
        read(&mut first).await;
        assert!(request.prepare_another());
        assert_eq!(read(&mut first).await, None, "A6: or it would overflow what is kept");
        let mut second = attempt(&mut request).unwrap();
        assert_eq!(read(&mut second).await.as_deref(), Some("one"));
        read(&mut second).await;
        assert!(!request.prepare_another(), "A6: the buffer overflowed, which commits the RPC");
    }

    #[test]
    fn an_attempt_carries_authority_timeout_and_user_agent() {
        let mut request = request(&[]);
        let timeout = Some(HeaderValue::from_static("5S"));
        let sent = request.attempt(Scheme::HTTP, Authority::from_static("shop"), timeout, 0).unwrap().head;
        assert_eq!(sent.uri(), "http://shop/s/m");
        assert_eq!(sent.headers()[&GRPC_TIMEOUT], "5S");
        assert_eq!(sent.headers()[USER_AGENT], AGENT);
        assert!(!request.headers.contains_key(&GRPC_TIMEOUT));
        assert!(!sent.headers().contains_key(PREVIOUS_ATTEMPTS), "A6: not on the first attempt");
        let sent = request.attempt(Scheme::HTTP, Authority::from_static("shop"), None, 2).unwrap().head;
        assert_eq!(sent.headers()[PREVIOUS_ATTEMPTS], "2", "A6");
        assert!(!sent.headers().contains_key(&GRPC_TIMEOUT));
    }

    #[test]
    fn every_attempt_has_the_headers_of_the_caller_and_so_has_the_choice_of_its_way() {
        let mut request = request(&[]);
        for value in ["one", "two"] {
            request.headers.append("many", HeaderValue::from_static(value));
        }
        let headers = request.headers.clone();
        for attempt in 0..3 {
            assert_eq!(request.rpc().headers, &headers, "attempt {attempt}");
            let sent = request.attempt(Scheme::HTTP, Authority::from_static("shop"), None, 0).unwrap().head;
            assert_eq!(sent.headers(), &headers, "attempt {attempt}");
        }
    }

    fn request(pieces: &[&str]) -> Request {
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(piece.as_bytes())))).collect();
        let body = Body::new(StreamBody::new(futures_util::stream::iter(pieces)));
        Request::new(http::Request::builder().method(Method::POST).uri("/s/m").body(body).unwrap())
    }

    fn attempt(request: &mut Request) -> Option<RequestBody> {
        let attempt = request.attempt(Scheme::HTTP, Authority::from_static("shop"), None, 0);
        attempt.map(|attempt| attempt.body)
    }

    async fn read(body: &mut RequestBody) -> Option<String> {
        let data = body.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(data.to_vec()).unwrap())
    }
}
