//! Metrics of outlier detection (A91).

use envoy_types::pb::envoy::config::cluster::v3::OutlierDetection;
use envoy_types::pb::google::protobuf::{Duration, UInt32Value};
use mainstay_control_plane::resources;
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::SimpleRequest;

use super::collect::Metrics;
use crate::common::{Client, backends, builder, control_plane, in_time, service};

#[tokio::test]
async fn ejections_have_the_names_units_and_labels_of_a91() {
    let [one] = backends(["one"]).await;
    let mut snapshot = service(&[&one]);
    let mut cluster = resources::eds_cluster("service");
    let number = |value| Some(UInt32Value { value });
    cluster.outlier_detection = Some(OutlierDetection {
        interval: Some(Duration { seconds: 0, nanos: 50_000_000 }),
        failure_percentage_threshold: number(10),
        failure_percentage_minimum_hosts: number(1),
        failure_percentage_request_volume: number(1),
        enforcing_failure_percentage: number(100),
        ..OutlierDetection::default()
    });
    snapshot.insert(cluster);
    let server = control_plane(snapshot).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().experimental_metrics().optional_label("grpc.lb.backend_service").build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    let ejected = async {
        while metrics.of(ENFORCED).is_none() {
            let mut request = tonic::Request::new(SimpleRequest::default());
            request.metadata_mut().insert(BEHAVIOR_KEY, "error-code-13".parse().unwrap());
            client.unary_call(request).await.unwrap_err();
        }
    };
    in_time(ejected).await;
    let method = "grpc.lb.outlier_detection.detection_method=failure_percentage";
    let labels = format!("grpc.lb.backend_service=service {method} grpc.target=xds:///service");
    assert_eq!(metrics.numbers(ENFORCED), [(labels, 1)], "S-75");
    assert_eq!(metrics.of(ENFORCED).unwrap().unit, "{ejection}");
    assert_eq!(metrics.of("grpc.lb.outlier_detection.ejections_unenforced"), None);
}

const ENFORCED: &str = "grpc.lb.outlier_detection.ejections_enforced";
