//! Endpoints that fail their RPCs are taken out of use for a while (A50).

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::OutlierDetection;
use envoy_types::pb::google::protobuf::{Duration as PbDuration, UInt32Value};
use mainstay_control_plane::resources;
use mainstay_testservice::proto::SimpleRequest;

use crate::common::{Client, backends, client, control_plane, in_time, service, until_answered_by};

#[tokio::test]
async fn an_endpoint_that_fails_half_of_its_rpcs_is_ejected_and_returns() {
    // L-77, L-79: rates of 1, 1, 1, 1 and about 0.5, which is more than one standard deviation below the mean.
    let [bad, a, b, c, d] = backends(["bad", "a", "b", "c", "d"]).await;
    let mut snapshot = service(&[&bad, &a, &b, &c, &d]);
    let mut cluster = resources::eds_cluster("service");
    cluster.outlier_detection = Some(OutlierDetection {
        interval: Some(millis(300)),
        base_ejection_time: Some(millis(300)),
        success_rate_stdev_factor: Some(UInt32Value { value: 1_000 }),
        success_rate_request_volume: Some(UInt32Value { value: 3 }),
        ..OutlierDetection::default()
    });
    snapshot.insert(cluster);
    let server = control_plane(snapshot).await;
    let mut client = client(&[&server]);
    for id in ["bad", "a", "b", "c", "d"] {
        until_answered_by(&mut client, id).await;
    }

    // In turn over five endpoints, it would be hit in every fifth call, and asked to fail in every tenth.
    let ejected = async {
        let (mut well, mut badly, mut without) = (0_u32, 0_u32, 0);
        for n in 0_u64.. {
            match call(&mut client, n.is_multiple_of(2)).await.as_deref() {
                Some("bad") => (well, without) = (well + 1, 0),
                Some(_) => without += 1,
                None => (badly, without) = (badly + 1, 0),
            }
            if without == 10 {
                return (well, badly);
            }
        }
        unreachable!("there is always another number")
    };
    let (well, badly) = in_time(ejected).await;
    assert!(badly > 0 && well.abs_diff(badly) <= 1, "half of its answers are errors: {badly}, and {well} are not");
    until_answered_by(&mut client, "bad").await;
}

/// Who answered; none if the call failed, as asked of the endpoint "bad".
async fn call(client: &mut Client, fail: bool) -> Option<String> {
    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
    request.set_timeout(Duration::from_secs(10));
    if fail {
        request.metadata_mut().insert("rpc-behavior", "hostname=bad error-code-13".parse().unwrap());
    }
    match client.unary_call(request).await {
        Ok(response) => Some(response.into_inner().server_id),
        Err(status) => {
            assert_eq!(status.code(), tonic::Code::Internal, "{status}");
            None
        }
    }
}

fn millis(millis: i32) -> PbDuration {
    PbDuration { seconds: 0, nanos: millis * 1_000_000 }
}
