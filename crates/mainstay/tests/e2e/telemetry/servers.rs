//! Metrics of calls on servers (A66), and of their TLS handshakes (A118).

use mainstay_testservice::proto::{EchoStatus, Payload, SimpleRequest};
use tonic::Code;

use super::collect::{Metrics, Value};
use crate::common::in_time;
use crate::pki::Authority;
use crate::server::security::{Pki, Wanted};
use crate::server::stage::{Stage, call};

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

/// S-78: handshakes are counted by how they ended.
#[tokio::test]
async fn handshakes_are_counted_by_their_result() {
    let (metrics, pki) = (Metrics::new(), Pki::new());
    let telemetry = metrics.telemetry().metric(HANDSHAKES, true).optional_label("grpc.tls.handshake.resumed").build();
    let stage = pki.serving_with(Wanted::Required, pki.watched(), |builder| builder.telemetry(telemetry)).await;
    let good = pki.ca.issue("client");
    call(&mut pki.plain(&stage, Some(&good)).await.unwrap()).await.unwrap();
    let mut expired = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    for refused in [Some(pki.ca.issue_as(expired)), Some(Authority::new().issue("client")), None] {
        // In TLS 1.3 a client learns of it after its own side of the handshake.
        if let Ok(mut caller) = pki.plain(&stage, refused.as_ref()).await {
            call(&mut caller).await.unwrap_err();
        }
    }
    // Accepted, and broken off.
    drop(tokio::net::TcpStream::connect(stage.address).await.unwrap());
    let result = |word: &str| format!("grpc.tls.handshake.result={word}");
    let resumed = "grpc.tls.handshake.resumed=FULL_HANDSHAKE";
    let counts = [
        format!("{} {resumed}", result("SUCCESS")),
        result("CERTIFICATE_AUTHORITY_INVALID"),
        result("CERTIFICATE_EXPIRED"),
        result("CERTIFICATE_VERIFICATION_FAILED"),
        result("PEER_CONNECTION_CLOSED"),
    ];
    in_time(async {
        let seen =
            |label: &String| metrics.numbers(HANDSHAKES).iter().any(|(labels, count)| labels == label && *count > 0);
        while !counts.iter().all(seen) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

const HANDSHAKES: &str = "grpc.server.tls.handshakes";
const STARTED: &str = "grpc.server.call.started";
const DURATION: &str = "grpc.server.call.duration";
const SENT: &str = "grpc.server.call.sent_total_compressed_message_size";
const RECEIVED: &str = "grpc.server.call.rcvd_total_compressed_message_size";
