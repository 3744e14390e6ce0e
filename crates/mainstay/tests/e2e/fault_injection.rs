//! Faults that the control plane injects (A33).

use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::common::fault::v3::FaultDelay;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::google::protobuf::{Duration as PbDuration, UInt32Value};
use envoy_types::util::pack_any;
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::proto::{Empty, SimpleRequest, StreamingOutputCallRequest};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::Code;

use crate::common::{backends, call, call_within, client, control_plane, in_time, service};

#[tokio::test]
async fn calls_are_aborted_before_anything_is_sent_unless_their_route_says_otherwise() {
    let [one] = backends(["one"]).await;
    let mut snapshot = with_fault(service(&[&one]), abort(ErrorType::GrpcStatus(10)));
    let mut spared = resources::prefix_route("/grpc.testing.TestService/EmptyCall", "service");
    spared.typed_per_filter_config.insert("fault".into(), pack_any(HttpFault::default()));
    let routes = [spared, resources::prefix_route("", "service")];
    snapshot.insert(resources::route_table("service", routes));
    let server = control_plane(snapshot).await;
    let mut client = client(&[&server]);
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "S-52, L-200: any code");
    assert_eq!(status.message(), "RPC to xds:///service was aborted by a fault filter");
    assert_eq!(one.requests(), 0, "S-51");
    client.empty_call(Empty {}).await.expect("L-43: the route overrides the filter");
    assert_eq!(one.requests(), 1);
}

#[tokio::test]
async fn an_abort_with_ok_ends_a_stream_without_messages() {
    let server = with_aborts(ErrorType::GrpcStatus(0)).await;
    let mut client = client(&[&server]);
    let answer = client.streaming_output_call(StreamingOutputCallRequest::default()).await.unwrap();
    let messages: Vec<_> = answer.into_inner().collect().await;
    assert!(messages.is_empty(), "S-52: {messages:?}");
    call(&mut client).await.expect_err("S-52: a unary call misses its message");
}

#[tokio::test]
async fn headers_choose_the_abort_where_the_filter_leaves_it_to_them() {
    let server = with_aborts(ErrorType::HeaderAbort(Default::default())).await;
    let mut client = client(&[&server]);
    for (name, value, code) in [
        ("x-envoy-fault-abort-grpc-request", "8", Code::ResourceExhausted),
        ("x-envoy-fault-abort-request", "404", Code::Unimplemented),
    ] {
        let mut request = tonic::Request::new(SimpleRequest::default());
        request.metadata_mut().insert(name, value.parse().unwrap());
        assert_eq!(client.unary_call(request).await.unwrap_err().code(), code, "S-53");
    }
    let status = call(&mut client).await.unwrap_err();
    assert!(status.message().contains("no endpoints"), "S-53: no header, no fault: {}", status.message());
}

#[tokio::test]
async fn a_delay_counts_for_the_deadline() {
    let [one] = backends(["one"]).await;
    let server = control_plane(with_fault(service(&[&one]), long_delay(None))).await;
    let status = call_within(&mut client(&[&server]), Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "S-51");
    assert!(status.message().ends_with("while a fault filter held it up"), "{}", status.message());
    assert_eq!(one.requests(), 0, "S-51");
}

#[tokio::test]
async fn only_so_many_faults_are_at_work_at_once() {
    let [one] = backends(["one"]).await;
    let server = control_plane(with_fault(service(&[&one]), long_delay(Some(3)))).await;
    let client = client(&[&server]);
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let mut client = client.clone();
        calls.spawn(async move { call_within(&mut client, Duration::from_secs(100)).await });
    }
    // No fewer than seven pass; more if faults of other tests in this process are at work.
    for _ in 0..7 {
        in_time(calls.join_next()).await.unwrap().unwrap().expect("S-54: it is spared");
    }
}

/// A delay that nobody waits for.
fn long_delay(max_active: Option<u32>) -> HttpFault {
    let fixed = FaultDelaySecifier::FixedDelay(PbDuration { seconds: 100, nanos: 0 });
    HttpFault {
        delay: Some(FaultDelay { fault_delay_secifier: Some(fixed), percentage: all() }),
        max_active_faults: max_active.map(|value| UInt32Value { value }),
        ..HttpFault::default()
    }
}

/// A control plane for a service without endpoints whose calls are aborted.
async fn with_aborts(error_type: ErrorType) -> Server {
    control_plane(with_fault(service(&[]), abort(error_type))).await
}

fn with_fault(mut snapshot: Snapshot, fault: HttpFault) -> Snapshot {
    let listener = resources::listener("service", resources::rds("service"));
    snapshot.insert(resources::with_filter(listener, "fault", pack_any(fault)));
    snapshot
}

fn abort(error_type: ErrorType) -> HttpFault {
    let abort = FaultAbort { error_type: Some(error_type), percentage: all(), ..FaultAbort::default() };
    HttpFault { abort: Some(abort), ..HttpFault::default() }
}

fn all() -> Option<FractionalPercent> {
    Some(FractionalPercent { numerator: 100, denominator: 0 })
}
