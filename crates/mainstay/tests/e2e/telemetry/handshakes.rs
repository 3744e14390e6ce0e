//! Metrics of the TLS handshakes of channels (A118).

use tonic::Code;

use super::collect::Metrics;
use crate::common::{Client, backends, builder, call, control_plane, in_time, service};
use crate::pki::Authority;
use crate::security::{Pki, mtls, secured};

/// S-78: handshakes are counted by how they ended, with the labels of the channel. In TLS 1.3 a server refuses our certificate
/// after our side of the handshake is done.
#[tokio::test]
async fn handshakes_of_channels_are_counted_by_their_result() {
    let pki = Pki::new();
    let mut expired = rcgen::CertificateParams::new(vec!["service".to_owned()]).unwrap();
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let presented = pki.ca.issue("service");
    let uncertified = envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::CommonTlsContext {
        tls_certificate_provider_instance: None,
        ..mtls(&["service"])
    };
    for (result, issued, context) in [
        ("SUCCESS", &presented, mtls(&["service"])),
        ("CERTIFICATE_EXPIRED", &pki.ca.issue_as(expired), mtls(&["service"])),
        ("CERTIFICATE_AUTHORITY_INVALID", &Authority::new().issue("service"), mtls(&["service"])),
        ("CERTIFICATE_VERIFICATION_FAILED", &pki.ca.issue("other"), mtls(&["service"])),
        ("CERTIFICATE_VERIFICATION_FAILED", &presented, uncertified),
    ] {
        let metrics = Metrics::new();
        let backend = pki.backend("one", issued, true).await;
        let server = control_plane(secured(&backend, context)).await;
        let mut telemetry = metrics.telemetry().metric(HANDSHAKES, true);
        for label in ["grpc.tls.handshake.resumed", "grpc.lb.backend_service"] {
            telemetry = telemetry.optional_label(label);
        }
        let mut client = Client::new(pki.builder(&server).telemetry(telemetry.build()).build().unwrap());
        let called = call(&mut client).await.map_err(|status| status.code());
        let is_good = result == "SUCCESS";
        assert_eq!(called, if is_good { Ok("one".to_owned()) } else { Err(Code::Unavailable) }, "{result}");
        let resumed = if is_good { " grpc.tls.handshake.resumed=FULL_HANDSHAKE" } else { "" };
        let label = format!(
            "grpc.lb.backend_service=service grpc.target=xds:///service grpc.tls.handshake.result={result}{resumed}"
        );
        // A handshake that failed is tried again.
        in_time(async {
            while metrics.numbers(HANDSHAKES).is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let counted = metrics.numbers(HANDSHAKES);
        assert!(matches!(&counted[..], [(labels, 1..)] if *labels == label), "{label}: {counted:?}");
        assert_eq!(metrics.of(HANDSHAKES).unwrap().unit, "{handshake}");
    }
}

/// Without TLS there is nothing to count.
#[tokio::test]
async fn a_connection_in_plaintext_has_no_handshake() {
    let metrics = Metrics::new();
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let telemetry = metrics.telemetry().experimental_metrics().build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    call(&mut client).await.unwrap();
    metrics.until("grpc.subchannel.connection_attempts_succeeded", &[("grpc.target=xds:///service", 1)]).await;
    assert_eq!(metrics.of(HANDSHAKES), None);
}

const HANDSHAKES: &str = "grpc.client.tls.handshakes";
