//! Metrics of calls and attempts (A66, A78, A89, A96).

use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use mainstay_control_plane::resources;
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::{Payload, SimpleRequest};
use tonic::{Code, Status};
use tower_service::Service;

use super::collect::{Metrics, Value};
use crate::common::{Client, backends, builder, call, control_plane, in_time, service};
use crate::retry::with_policy;

#[tokio::test]
async fn metrics_of_calls_have_the_names_units_labels_and_buckets_of_a66() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().optional_label("grpc.lb.locality").optional_label("grpc.lb.backend_service");
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry.build()).build().unwrap());
    let payload = Payload { body: vec![0; 1000], ..Default::default() };
    let request = SimpleRequest { payload: Some(payload), response_size: 5000, ..Default::default() };
    let (sent, received) = {
        let response = client.unary_call(request.clone()).await.unwrap().into_inner();
        (prost::Message::encoded_len(&request) as f64, prost::Message::encoded_len(&response) as f64)
    };

    let method = "grpc.method=grpc.testing.TestService/UnaryCall";
    let started = format!("{method} grpc.target=xds:///service");
    let call = format!("{method} grpc.status=OK grpc.target=xds:///service");
    let locality = r#"grpc.lb.locality={region="region", zone="zone", sub_zone="locality0"}"#;
    let attempt = format!("grpc.lb.backend_service=service {locality} {call}");
    assert_eq!(
        metrics.names(),
        [DURATION, RECEIVED, SENT, STARTED, CALL_DURATION],
        "S-79: experimental ones are off by default"
    );
    assert_eq!(metrics.numbers(STARTED), [(started, 1)]);
    for (name, unit, labels, first, last, count) in [
        (DURATION, "s", &attempt, 0.00001, 100.0, 41),
        (SENT, "By", &attempt, 1024.0, 4_294_967_296.0, 14),
        (RECEIVED, "By", &attempt, 1024.0, 4_294_967_296.0, 14),
        (CALL_DURATION, "s", &call, 0.00001, 100.0, 41),
    ] {
        let found = metrics.of(name).unwrap();
        assert_eq!(found.unit, unit, "{name}");
        let [(found_labels, Value::Histogram(1, sum))] = &*found.points else { panic!("{name}: {found:?}") };
        assert_eq!(found_labels, labels, "{name}");
        match name {
            SENT => assert_eq!(*sum, sent),
            RECEIVED => assert_eq!(*sum, received),
            _ => assert!(*sum > 0.0 && *sum < 10.0, "{name}: {sum}"),
        }
        let bounds = &found.bounds;
        assert_eq!((bounds[0], bounds[1], bounds[bounds.len() - 1], bounds.len()), (0.0, first, last, count), "S-62");
    }
    assert_eq!(metrics.of(STARTED).unwrap().unit, "{attempt}");
}

#[tokio::test]
async fn retries_are_attempts_of_one_call() {
    let [one] = backends(["one"]).await;
    let server = control_plane(with_policy(service(&[&one]), 2, Duration::from_millis(1))).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().experimental_metrics().build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    behaving(&mut client, "succeed-on-retry-attempt-2,error-code-14").await.unwrap();
    call(&mut client).await.unwrap();

    let method = "grpc.method=grpc.testing.TestService/UnaryCall";
    let labels = format!("{method} grpc.target=xds:///service");
    let status = |status: &str| format!("{method} grpc.status={status} grpc.target=xds:///service");
    assert_eq!(metrics.numbers(STARTED), [(labels.clone(), 4)]);
    assert_eq!(metrics.numbers(DURATION), [(status("OK"), 2), (status("UNAVAILABLE"), 2)]);
    assert_eq!(metrics.numbers(CALL_DURATION), [(status("OK"), 2)]);
    let retries = metrics.of("grpc.client.call.retries").unwrap();
    assert_eq!(retries.points, [(labels.clone(), Value::Histogram(1, 2.0))], "A96: a call without is not recorded");
    assert_eq!((retries.unit.as_str(), retries.bounds), ("{retry}", vec![1.0, 2.0, 3.0, 4.0, 5.0]));
    let delay = metrics.of("grpc.client.call.retry_delay").unwrap();
    assert_eq!((delay.unit.as_str(), delay.bounds.len()), ("s", 41));
    let [(found, Value::Histogram(1, delayed))] = &*delay.points else { panic!("{delay:?}") };
    assert!(*found == labels && *delayed > 0.0 && *delayed < 10.0, "{delay:?}");
    assert_eq!(metrics.of("grpc.client.call.transparent_retries"), None);
}

#[tokio::test]
async fn calls_that_end_early_have_the_status_that_the_caller_sees() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let metrics = Metrics::new();
    let channel = builder(&[&server]).telemetry(metrics.telemetry().build()).build().unwrap();
    let mut client = Client::new(channel.clone());
    call(&mut client).await.unwrap();

    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(BEHAVIOR_KEY, "keep-open".parse().unwrap());
    request.set_timeout(Duration::from_millis(50));
    assert_eq!(client.unary_call(request).await.unwrap_err().code(), Code::DeadlineExceeded);
    {
        let kept_open = behaving(&mut client, "keep-open");
        let mut kept_open = std::pin::pin!(kept_open);
        let before = one.requests();
        while one.requests() == before {
            assert!(futures_util::poll!(&mut kept_open).is_pending());
            tokio::task::yield_now().await;
        }
    }
    // Not of a generated client.
    let request = http::Request::post("/some.Service/Method").body(tonic::body::Body::empty()).unwrap();
    channel.clone().call(request).await.unwrap();

    let of = |method: &str, status: &str| {
        let method = method.to_owned();
        (format!("grpc.method={method} grpc.status={status} grpc.target=xds:///service"), 1)
    };
    let unary = "grpc.testing.TestService/UnaryCall";
    let expected =
        [of(unary, "CANCELLED"), of(unary, "DEADLINE_EXCEEDED"), of(unary, "OK"), of("other", "UNIMPLEMENTED")];
    assert_eq!(metrics.numbers(CALL_DURATION), expected, "S-61");
    assert_eq!(metrics.numbers(DURATION), expected);
}

#[tokio::test]
async fn picks_that_fail_are_attempts_at_the_cluster_and_at_no_locality() {
    let server = control_plane(service(&[])).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().optional_label("grpc.lb.locality").optional_label("grpc.lb.backend_service");
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry.build()).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap_err().code(), Code::Unavailable);
    let method = "grpc.method=grpc.testing.TestService/UnaryCall";
    let labels = format!(
        "grpc.lb.backend_service=service grpc.lb.locality= {method} grpc.status=UNAVAILABLE grpc.target=xds:///service"
    );
    for name in [DURATION, SENT, RECEIVED] {
        assert_eq!(metrics.numbers(name), [(labels.clone(), 1)], "S-63, S-64: {name}");
    }

    let mut endpoints = resources::endpoints::<&str>("service", []);
    let all = Some(FractionalPercent { numerator: 100, denominator: 0 });
    let drop = DropOverload { category: "all".into(), drop_percentage: all };
    endpoints.policy = Some(Policy { drop_overloads: vec![drop], ..Default::default() });
    server.control_plane().update(|snapshot| snapshot.insert(endpoints));
    in_time(async { while !call(&mut client).await.unwrap_err().message().contains("EDS-configured drop") {} }).await;
    assert_eq!(metrics.of(DURATION).unwrap().points.len(), 1, "S-64: of a drop as well");
    assert_eq!(metrics.of(DURATION).unwrap().points[0].0, labels, "S-64");
}

#[tokio::test]
async fn a_call_that_never_had_a_configuration_made_no_attempt() {
    let server = control_plane(mainstay_control_plane::Snapshot::default()).await;
    let metrics = Metrics::new();
    let builder = builder(&[&server]).resource_timeout(Duration::from_millis(50));
    let mut client = Client::new(builder.telemetry(metrics.telemetry().build()).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(metrics.names(), [CALL_DURATION]);
}

async fn behaving(client: &mut Client, behavior: &str) -> Result<(), Status> {
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(BEHAVIOR_KEY, behavior.parse().expect("a header value"));
    client.unary_call(request).await.map(drop)
}

const STARTED: &str = "grpc.client.attempt.started";
const DURATION: &str = "grpc.client.attempt.duration";
const SENT: &str = "grpc.client.attempt.sent_total_compressed_message_size";
const RECEIVED: &str = "grpc.client.attempt.rcvd_total_compressed_message_size";
const CALL_DURATION: &str = "grpc.client.call.duration";
