//! Metrics of outlier detection (A91) and weighted_round_robin (A78, A89).

use envoy_types::pb::envoy::config::cluster::v3::OutlierDetection;
use envoy_types::pb::google::protobuf::{Duration, UInt32Value};
use mainstay_control_plane::resources;
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::SimpleRequest;

use super::collect::{Metrics, Value};
use crate::balance::{Reporter, weighing};
use crate::common::{Client, backends, builder, control_plane, in_time, service, spread};

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

#[tokio::test]
async fn weights_have_the_names_units_and_labels_of_a78() {
    let (heavy, light) = (Reporter::start("heavy", 0.8, 0.0).await, Reporter::start("light", 0.2, 0.0).await);
    let server = control_plane(weighing(&heavy, &light, false)).await;
    let metrics = Metrics::new();
    let telemetry = metrics.telemetry().experimental_metrics();
    let telemetry = telemetry.optional_label("grpc.lb.backend_service").optional_label("grpc.lb.locality").build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    // At first nothing is known; then each has reported 100 requests per second, at 0.8 and at 0.2.
    let sum = |metrics: &Metrics| {
        metrics.of(WEIGHTS).map_or(0.0, |weights| match weights.points[0].1 {
            Value::Histogram(_, sum) => sum,
            Value::Number(number) => panic!("{number}"),
        })
    };
    in_time(async {
        while sum(&metrics) < 125.0 + 500.0 {
            spread(&mut client, 1).await;
        }
    })
    .await;
    let locality = r#"grpc.lb.locality={region="region", zone="zone", sub_zone="locality0"}"#;
    let labels = format!("grpc.lb.backend_service=service {locality} grpc.target=xds:///service");
    for (name, unit) in [(FALLBACK, "{update}"), (NOT_YET, "{endpoint}"), (WEIGHTS, "{weight}")] {
        let found = metrics.of(name).unwrap();
        assert_eq!((found.unit.as_str(), found.points.len(), &found.points[0].0), (unit, 1, &labels), "{name}");
    }
    // One that connects is weighed alone, then both; neither has reported then.
    assert!(metrics.numbers(FALLBACK)[0].1 >= 1 && metrics.numbers(NOT_YET)[0].1 >= 1);
    assert_eq!(metrics.of("grpc.lb.wrr.endpoint_weight_stale"), None, "none is old");
}

const FALLBACK: &str = "grpc.lb.wrr.rr_fallback";
const NOT_YET: &str = "grpc.lb.wrr.endpoint_weight_not_yet_usable";
const WEIGHTS: &str = "grpc.lb.wrr.endpoint_weights";
const ENFORCED: &str = "grpc.lb.outlier_detection.ejections_enforced";
