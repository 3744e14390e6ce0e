//! Retries that the control plane allows (A44).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use envoy_types::pb::envoy::config::route::v3::RetryPolicy;
use envoy_types::pb::envoy::config::route::v3::retry_policy::RetryBackOff;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::google::protobuf::{Duration as PbDuration, UInt32Value};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay::RetryThrottle;
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::{Payload, SimpleRequest, StreamingInputCallRequest};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::common::{
    Client, Paced, backends, builder, call, call_within, client, control_plane, service, spread, until_answered_by,
};

#[tokio::test]
async fn allowed_retries_hide_failures_and_no_others() {
    let [one] = backends(["one"]).await;
    let (once, never) =
        (control_plane(with_policy(service(&[&one]), 1, MILLI)).await, control_plane(service(&[&one])).await);
    let mut client = client(&[&once]);
    behaving(&mut client, "succeed-on-retry-attempt-1,error-code-14").await.unwrap();
    let status = behaving(&mut client, "succeed-on-retry-attempt-2,error-code-14").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "R-57: one retry and no more");
    let status = behaving(&mut client, "succeed-on-retry-attempt-1,error-code-13").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "R-56: not a code of the policy");

    let mut off = Client::new(builder(&[&once]).retries(false).build().unwrap());
    behaving(&mut off, "succeed-on-retry-attempt-1,error-code-14").await.expect_err("L-41: the channel has them off");
    let mut without = crate::common::client(&[&never]);
    behaving(&mut without, "succeed-on-retry-attempt-1,error-code-14").await.expect_err("no policy, no retry");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_allowed_retry_hides_a_backend_that_is_killed_under_a_thousand_calls_a_second() {
    let [mut one, two] = backends(["one", "two"]).await;
    let server = control_plane(with_policy(service(&[&one, &two]), 1, Duration::from_millis(5))).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    // Of the calls before the kill, some wait at the backend that dies, so that the retry has something to hide.
    let hung = |n: usize| (400..500).contains(&n).then_some("hostname=one keep-open");
    let load = Paced::run(&client, hung, async move { one.stop().await }).await;
    load.assert_rate();
    let answers: Vec<&str> =
        load.calls.iter().map(|call| call.outcome.as_deref().expect("A44: the retry hides it")).collect();
    assert_eq!(answers.len(), 1000);
    assert!(answers[..400].contains(&"one"), "it had its share before it died");
    // Half of those that were to wait did, as the backends take turns: until the kill, and then the other answered.
    let waited = load.calls[400..500].iter().filter(|call| call.ended > load.event).count();
    assert!(waited >= 40, "{waited} calls were in flight on the backend that died");
    assert!(!answers[400..500].contains(&"one"));
    assert_eq!(spread(&mut client, 20).await["two"], 20, "it is gone");
}

#[tokio::test]
async fn a_request_stream_is_sent_again_from_its_beginning() {
    let [one] = backends(["one"]).await;
    let server = control_plane(with_policy(service(&[&one]), 1, MILLI)).await;
    let mut client = client(&[&server]);
    let payload = Some(Payload { body: vec![0; 1000], ..Default::default() });
    let inputs = vec![StreamingInputCallRequest { payload, ..Default::default() }; 6];
    let mut request = tonic::Request::new(tokio_stream::iter(inputs));
    request.metadata_mut().insert(BEHAVIOR_KEY, "succeed-on-retry-attempt-1,error-code-14".parse().unwrap());
    let sum = client.streaming_input_call(request).await.unwrap().into_inner();
    assert_eq!(sum.aggregated_payload_size, 6000);
}

#[tokio::test]
async fn the_deadline_is_over_all_attempts() {
    let [one] = backends(["one"]).await;
    let server = control_plane(with_policy(service(&[&one]), 4, Duration::from_secs(100))).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(BEHAVIOR_KEY, "error-code-14".parse().unwrap());
    request.set_timeout(Duration::from_millis(100));
    let status = client.unary_call(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "A6");
    assert!(status.message().contains("before the next attempt; the last one: "), "{}", status.message());
}

#[tokio::test]
async fn picks_that_fail_are_tried_again_and_drops_are_not() {
    let pause = Duration::from_secs(100);
    let empty = with_policy(service(&[]), 1, pause);
    let server = control_plane(empty.clone()).await;
    let mut client = client(&[&server]);
    let status = call_within(&mut client, Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "L-41: it waits for the next attempt");
    assert!(status.message().contains("no endpoints"), "{}", status.message());

    let mut dropping = empty;
    let mut endpoints = resources::endpoints::<&str>("service", []);
    let all = Some(FractionalPercent { numerator: 100, denominator: 0 });
    let drop = DropOverload { category: "all".into(), drop_percentage: all };
    endpoints.policy = Some(Policy { drop_overloads: vec![drop], ..Default::default() });
    dropping.insert(endpoints);
    let server = control_plane(dropping).await;
    let mut client = crate::common::client(&[&server]);
    let begin = Instant::now();
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "L-41, L-50");
    assert!(begin.elapsed() < Duration::from_secs(5), "at once");
}

#[tokio::test]
async fn the_server_decides_when_it_pushes_back() {
    for (push_back, requests) in [("0", 3), ("-1", 1), ("soon", 1)] {
        let (endpoint, seen) = refusing_endpoint(push_back).await;
        let snapshot = Snapshot::builder()
            .listener(resources::listener("service", resources::rds("service")))
            .route(resources::route("service", "service"))
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [endpoint]))
            .build();
        let server: Server = control_plane(with_policy(snapshot, 2, Duration::from_secs(100))).await;
        let status = call(&mut client(&[&server])).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "busy"), "the answer is passed on");
        assert_eq!(seen.load(Ordering::Relaxed), requests, "A6: {push_back}");
    }
}

#[tokio::test]
async fn too_many_failures_stop_retries_until_calls_succeed_again() {
    let [one] = backends(["one"]).await;
    let server = control_plane(with_policy(service(&[&one]), 4, MILLI)).await;
    let throttle = RetryThrottle::new(4, 0.5).unwrap();
    let mut client = Client::new(builder(&[&server]).retry_throttle(throttle).build().unwrap());
    let attempts = async |client: &mut Client| {
        let before = one.requests();
        behaving(client, "error-code-14").await.unwrap_err();
        one.requests() - before
    };
    assert_eq!(attempts(&mut client).await, 2, "A6: with 3 tokens of 4 it is tried again, with 2 it is not");
    assert_eq!(attempts(&mut client).await, 1, "A6: 1 of 4");
    for _ in 0..5 {
        call(&mut client).await.unwrap();
    }
    assert_eq!(attempts(&mut client.clone()).await, 2, "A6: 3.5 less one");
}

/// One call with a behaviour.
async fn behaving(client: &mut Client, behavior: &str) -> Result<(), Status> {
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(BEHAVIOR_KEY, behavior.parse().expect("a header value"));
    client.unary_call(request).await.map(drop)
}

/// Lets the routes of `service` retry what is UNAVAILABLE.
pub(crate) fn with_policy(mut snapshot: Snapshot, num_retries: u32, pause: Duration) -> Snapshot {
    let nanos = pause.subsec_nanos().try_into().expect("less than a second");
    let pause = Some(PbDuration { seconds: pause.as_secs().try_into().expect("a short time"), nanos });
    let mut routes = resources::route("service", "service");
    routes.virtual_hosts[0].retry_policy = Some(RetryPolicy {
        retry_on: "unavailable".into(),
        num_retries: Some(UInt32Value { value: num_retries }),
        retry_back_off: Some(RetryBackOff { base_interval: pause, max_interval: pause }),
        ..Default::default()
    });
    snapshot.insert(routes);
    snapshot
}

/// An endpoint that answers every request with UNAVAILABLE and this push-back, and how many it has seen.
async fn refusing_endpoint(push_back: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = count.clone();
            let service = service_fn(move |_: http::Request<hyper::body::Incoming>| {
                count.fetch_add(1, Ordering::Relaxed);
                let mut status = Status::unavailable("busy");
                status.metadata_mut().insert("grpc-retry-pushback-ms", push_back.parse().expect("a header value"));
                async { Ok::<_, Infallible>(status.into_http::<tonic::body::Body>()) }
            });
            let connection = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, seen)
}

const MILLI: Duration = Duration::from_millis(1);
