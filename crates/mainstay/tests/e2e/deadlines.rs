//! Deadlines hold whatever a call is doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mainstay_control_plane::{Snapshot, resources};
use mainstay_testservice::proto::{Payload, ResponseParameters, StreamingInputCallRequest, StreamingOutputCallRequest};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tonic::{Code, Request};

use crate::common::{backends, call, client, control_plane, in_time, service};

const DEADLINE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_deadline_holds_while_messages_are_always_ready() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    let parameters = ResponseParameters { size: 10, ..Default::default() };
    let request = StreamingOutputCallRequest { response_parameters: vec![parameters; 20_000], ..Default::default() };
    let mut request = Request::new(request);
    request.set_timeout(DEADLINE);
    let begin = Instant::now();
    let mut answers = client.streaming_output_call(request).await.unwrap().into_inner();
    // What the endpoint sends faster than anybody reads is there long before the deadline.
    let status = in_time(async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                other => break other.expect_err("20,000 messages take 20 s"),
            }
        }
    })
    .await;
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(begin.elapsed() < 10 * DEADLINE, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_deadline_holds_while_an_endpoint_does_not_read_the_request_and_the_upload_ends_with_it() {
    let endpoint = Deaf::start(false).await;
    let server = control_plane(endpoint.service()).await;
    let mut client = client(&[&server]);
    let (dropped, uploads) = (Arc::new(AtomicUsize::new(0)), endless());
    let mut request = Request::new(Counted { requests: uploads, dropped: dropped.clone() });
    request.set_timeout(DEADLINE);
    let status = in_time(client.streaming_input_call(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    until(|| dropped.load(Ordering::Relaxed) == 1).await;
    until(|| endpoint.resets() == 1).await;
}

#[tokio::test]
async fn an_upload_that_waits_for_the_endpoint_ends_when_the_answer_is_not_wanted_any_more() {
    let endpoint = Deaf::start(true).await;
    let server = control_plane(endpoint.service()).await;
    let mut client = client(&[&server]);
    // By its deadline.
    let dropped = Arc::new(AtomicUsize::new(0));
    let requests = endless().map(|_| large_output_request());
    let mut request = Request::new(Counted { requests, dropped: dropped.clone() });
    request.set_timeout(DEADLINE);
    let mut answers = in_time(client.full_duplex_call(request)).await.unwrap().into_inner();
    let status = in_time(answers.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    until(|| dropped.load(Ordering::Relaxed) == 1).await;
    until(|| endpoint.resets() == 1).await;
    // By its caller.
    let requests = endless().map(|_| large_output_request());
    let request = Counted { requests, dropped: dropped.clone() };
    let answers = in_time(client.full_duplex_call(request)).await.unwrap();
    drop(answers);
    until(|| dropped.load(Ordering::Relaxed) == 2).await;
    until(|| endpoint.resets() == 2).await;
}

/// More than any window takes, as fast as it is asked for.
fn endless() -> impl tokio_stream::Stream<Item = StreamingInputCallRequest> + Send + Unpin + 'static {
    let payload = Payload { body: vec![7; 64 << 10], ..Default::default() };
    tokio_stream::iter(0..)
        .map(move |_: u64| StreamingInputCallRequest { payload: Some(payload.clone()), ..Default::default() })
}

fn large_output_request() -> StreamingOutputCallRequest {
    let payload = Payload { body: vec![7; 64 << 10], ..Default::default() };
    StreamingOutputCallRequest { payload: Some(payload), ..Default::default() }
}

/// Counts how often it is dropped.
struct Counted<S> {
    requests: S,
    dropped: Arc<AtomicUsize>,
}

impl<S: tokio_stream::Stream + Unpin> tokio_stream::Stream for Counted<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        std::pin::Pin::new(&mut self.requests).poll_next(cx)
    }
}

impl<S> Drop for Counted<S> {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// An endpoint that never reads a request, so that its flow control stops the sender.
struct Deaf {
    address: std::net::SocketAddr,
    resets: Arc<AtomicUsize>,
}

impl Deaf {
    /// `answers`: whether it begins to answer all the same.
    async fn start(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, resets) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = resets.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counter = counter.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let counter = counter.clone();
                        let (kept, mut keep) = mpsc::unbounded_channel();
                        kept.send(request.into_body()).unwrap();
                        tokio::spawn(async move {
                            let body = keep.recv().await;
                            let mut sender = answers.then(|| {
                                let response = http::Response::builder().header("content-type", "application/grpc");
                                respond.send_response(response.body(()).unwrap(), false).unwrap()
                            });
                            let reset = std::future::poll_fn(|cx| match &mut sender {
                                Some(sender) => h2::SendStream::<Bytes>::poll_reset(sender, cx),
                                None => respond.poll_reset(cx),
                            });
                            if reset.await.is_ok() {
                                counter.fetch_add(1, Ordering::Relaxed);
                            }
                            drop(body);
                        });
                    }
                });
            }
        });
        Self { address, resets }
    }

    fn service(&self) -> Snapshot {
        Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [self.address]))
            .build()
    }

    /// How many requests were taken back.
    fn resets(&self) -> usize {
        self.resets.load(Ordering::Relaxed)
    }
}

async fn until(holds: impl Fn() -> bool) {
    in_time(async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
