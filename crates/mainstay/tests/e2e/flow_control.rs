//! Readers that stall, and answers that are larger than usual.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay::Channel;
use mainstay_control_plane::{Snapshot, resources};
use mainstay_testservice::proto::{ResponseParameters, StreamingOutputCallRequest};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::common::{Client, backends, bootstrap, builder, call, call_within, client, control_plane, in_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_nobody_reads_hold_up_no_other_call_on_their_connection() {
    let [one] = backends(["one"]).await;
    let server = control_plane(
        Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .listener(resources::listener("other", resources::route("other", "service")))
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [one.addr()])),
    )
    .await;
    let mut unread = client(&[&server]);
    let other = Channel::builder("xds:///other").bootstrap(bootstrap(&[&server]));
    let other = other.backoff(Duration::from_millis(20), Duration::from_millis(100)).build().unwrap();
    let mut other = Client::new(other);
    call(&mut unread).await.unwrap();
    call(&mut other).await.unwrap();
    assert_eq!(one.open_connections(), 1, "both use one connection");
    let parameters = ResponseParameters { size: 64 << 10, ..Default::default() };
    let mut held = Vec::new();
    for _ in 0..16 {
        let request = StreamingOutputCallRequest { response_parameters: vec![parameters; 64], ..Default::default() };
        held.push(in_time(unread.streaming_output_call(request)).await.unwrap());
        for _ in 0..5 {
            assert_eq!(call_within(&mut other, Duration::from_secs(5)).await.unwrap(), "one");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_can_be_set_and_a_small_one_for_all_calls_is_filled_by_one() {
    let [one] = backends(["one"]).await;
    let server = control_plane(crate::common::service(&[&one])).await;
    let channel = builder(&[&server]).windows(64 << 10, 64 << 10).build().unwrap();
    let mut client = Client::new(channel);
    let parameters = ResponseParameters { size: 64 << 10, ..Default::default() };
    let request = StreamingOutputCallRequest { response_parameters: vec![parameters; 4], ..Default::default() };
    let unread = client.streaming_output_call(request).await.unwrap();
    let filled = async { while call_within(&mut client, Duration::from_millis(200)).await.is_ok() {} };
    in_time(filled).await;
    drop(unread);
    in_time(async { while call_within(&mut client, Duration::from_secs(1)).await.is_err() {} }).await;
}

#[tokio::test]
async fn large_trailers_keep_their_status_and_the_bound_can_be_set() {
    let details = || Status::with_details(Code::FailedPrecondition, "rich error", vec![7; 20_000].into());
    let server = control_plane(service(endpoint(move || details().into_http::<Body>()).await)).await;
    let status = call(&mut client(&[&server])).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message(), status.details().len()),
        (Code::FailedPrecondition, "rich error", 20_000)
    );

    let small = builder(&[&server]).max_header_list_size(4 << 10).build().unwrap();
    let status = call(&mut Client::new(small)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("max_header_list_size"), "{}", status.message());
}

#[tokio::test]
async fn an_answer_that_is_not_grpc_tells_its_http_status_with_a_body_as_without() {
    for body in ["", "<html>overloaded</html>"] {
        for (http, code) in
            [(503, Code::Unavailable), (502, Code::Unavailable), (404, Code::Unimplemented), (500, Code::Unknown)]
        {
            let respond = move || {
                let body = Body::new(Full::from(body).map_err(|never: Infallible| match never {}));
                http::Response::builder().status(http).header("content-type", "text/html").body(body).unwrap()
            };
            let server = control_plane(service(endpoint(respond).await)).await;
            let status = call(&mut client(&[&server])).await.unwrap_err();
            assert_eq!(status.code(), code, "{http} {body:?}: {status}");
            assert!(status.message().contains(&http.to_string()), "{status}");
        }
    }
}

fn service(endpoint: SocketAddr) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [endpoint]))
        .build()
}

/// An endpoint that answers every request in one way.
async fn endpoint(respond: impl Fn() -> http::Response<Body> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let respond = respond.clone();
            let service = service_fn(move |_: http::Request<hyper::body::Incoming>| {
                std::future::ready(Ok::<_, Infallible>(respond()))
            });
            tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}
