//! Metrics of calls on servers (A66).

use mainstay_testservice::proto::{EchoStatus, Payload, SimpleRequest};
use tonic::Code;

use super::collect::{Metrics, Value};
use crate::server::stage::Stage;

#[tokio::test]
async fn metrics_of_servers_have_the_names_units_and_labels_of_a66() {
    let metrics = Metrics::new();
    let stage = Stage::with(|builder| builder.telemetry(metrics.telemetry().build())).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    let payload = Payload { body: vec![0; 1000], ..Default::default() };
    let request = SimpleRequest { payload: Some(payload), response_size: 5000, ..Default::default() };
    let received = prost::Message::encoded_len(&request) as f64;
    let response = caller.unary_call(request).await.unwrap().into_inner();
    let sent = prost::Message::encoded_len(&response) as f64;
    let not_found = EchoStatus { code: 5, message: String::new() };
    let failing = SimpleRequest { response_status: Some(not_found), ..Default::default() };
    assert_eq!(caller.unary_call(failing).await.unwrap_err().code(), Code::NotFound);

    assert_eq!(metrics.names(), [DURATION, RECEIVED, SENT, STARTED]);
    let method = "grpc.method=grpc.testing.TestService/UnaryCall";
    assert_eq!(metrics.numbers(STARTED), [(method.to_owned(), 2)]);
    for (name, unit, expected) in [(DURATION, "s", None), (SENT, "By", Some(sent)), (RECEIVED, "By", Some(received))] {
        let found = metrics.of(name).unwrap();
        assert_eq!(found.unit, unit, "{name}");
        let ok = found.points.iter().find(|(labels, _)| *labels == format!("{method} grpc.status=OK"));
        let Some((_, Value::Histogram(1, sum))) = ok else { panic!("{name}: {found:?}") };
        match expected {
            Some(expected) => assert_eq!(*sum, expected, "{name}"),
            None => assert!(*sum > 0.0 && *sum < 10.0, "{name}: {sum}"),
        }
        let failed = format!("{method} grpc.status=NOT_FOUND");
        assert!(found.points.iter().any(|(labels, _)| *labels == failed), "{name}: {found:?}");
    }
}

/// S-61: callers may ask for any method, and labels must stay few.
#[tokio::test]
async fn methods_that_no_service_has_are_one_label() {
    let metrics = Metrics::new();
    let stage = Stage::with(|builder| builder.telemetry(metrics.telemetry().build())).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    for service in ["no.such.Service", "another.Service"] {
        let mut grpc = tonic::client::Grpc::new(stage.channel().await);
        grpc.ready().await.unwrap();
        let path = format!("/{service}/Method").parse().unwrap();
        let codec = tonic_prost::ProstCodec::<SimpleRequest, SimpleRequest>::default();
        let status = grpc.unary(tonic::Request::new(SimpleRequest::default()), path, codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    }
    assert_eq!(metrics.numbers(STARTED), [("grpc.method=other".to_owned(), 2)]);
}

const STARTED: &str = "grpc.server.call.started";
const DURATION: &str = "grpc.server.call.duration";
const SENT: &str = "grpc.server.call.sent_total_compressed_message_size";
const RECEIVED: &str = "grpc.server.call.rcvd_total_compressed_message_size";
