//! Metrics of subchannels (A94).

use mainstay_control_plane::resources;
use mainstay_testservice::Backend;

use super::collect::Metrics;
use crate::common::{Client, backends, builder, call, control_plane, in_time, service};

#[tokio::test]
async fn metrics_of_subchannels_have_the_names_units_and_labels_of_a94() {
    let [mut one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let metrics = Metrics::new();
    let mut telemetry = metrics.telemetry().experimental_metrics();
    for label in ["grpc.lb.locality", "grpc.lb.backend_service", "grpc.disconnect_error", "grpc.security_level"] {
        telemetry = telemetry.optional_label(label);
    }
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry.build()).build().unwrap());
    call(&mut client).await.unwrap();

    let lb = |sub_zone: &str| {
        let locality = format!(r#"{{region="region", zone="zone", sub_zone="{sub_zone}"}}"#);
        format!("grpc.lb.backend_service=service grpc.lb.locality={locality}")
    };
    let (old, new) = (lb("locality0"), lb("elsewhere"));
    let plain = format!("{old} grpc.target=xds:///service");
    let open = format!("{old} grpc.security_level=none grpc.target=xds:///service");
    let lost = |why: &str| format!("grpc.disconnect_error={why} {old} grpc.target=xds:///service");
    metrics.until(SUCCEEDED, &[(&plain, 1)]).await;
    metrics.until(OPEN, &[(&open, 1)]).await;
    assert_eq!((metrics.of(FAILED), metrics.of(LOST)), (None, None));

    // The endpoint says good-bye, and attempts fail until it is back.
    one.stop_gracefully().await;
    metrics.until(LOST, &[(&lost("GOAWAY NO_ERROR"), 1)]).await; // S-76
    metrics.until(OPEN, &[(&open, 0)]).await;
    while metrics.of(FAILED).is_none() {
        tokio::task::yield_now().await;
    }
    one.restart().await.unwrap();
    metrics.until(SUCCEEDED, &[(&plain, 2)]).await;
    metrics.until(OPEN, &[(&open, 1)]).await;

    // It moves to another locality: RPCs say so at once, on the same subchannel.
    server.control_plane().set(in_locality(&one, "elsewhere"));
    let moved = async {
        while !metrics.numbers(DURATION).iter().any(|(labels, _)| labels.starts_with(&new)) {
            call(&mut client).await.unwrap();
        }
    };
    in_time(moved).await;
    let kept = (metrics.numbers(OPEN), one.open_connections());
    assert_eq!(kept, (vec![(open.clone(), 1)], 1), "S-77 would have a new one; it costs a connection");

    // It leaves.
    server.control_plane().set(service(&[]));
    metrics.until(LOST, &[(&lost("GOAWAY NO_ERROR"), 1), (&lost("subchannel shutdown"), 1)]).await;
    metrics.until(OPEN, &[(&open, 0)]).await;
    assert_eq!(metrics.numbers(SUCCEEDED), [(plain.clone(), 2)]);
    assert!(metrics.numbers(FAILED).iter().all(|(labels, failed)| *labels == plain && *failed > 0));

    let units = [SUCCEEDED, FAILED, LOST, OPEN].map(|name| metrics.of(name).unwrap().unit);
    assert_eq!(units, ["{attempt}", "{attempt}", "{disconnection}", "{connection}"]);
}

#[tokio::test]
async fn a_channel_that_finds_a_connection_open_counts_its_use_and_no_attempt() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let (first, second) = (Metrics::new(), Metrics::new());
    let connect = |metrics: &Metrics| {
        let telemetry = metrics.telemetry().experimental_metrics().build();
        Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap())
    };
    let mut early = connect(&first);
    call(&mut early).await.unwrap();
    let mut late = connect(&second);
    call(&mut late).await.unwrap();
    let target = "grpc.target=xds:///service";
    second.until(OPEN, &[(target, 1)]).await;
    assert_eq!((first.numbers(SUCCEEDED), second.of(SUCCEEDED)), (vec![(target.to_owned(), 1)], None));
    assert_eq!(one.open_connections(), 1);
    drop(late);
    second.until(LOST, &[(target, 1)]).await;
    second.until(OPEN, &[(target, 0)]).await;
    assert_eq!((first.numbers(OPEN), first.of(LOST)), (vec![(target.to_owned(), 1)], None), "A94: labels are off");
}

fn in_locality(backend: &Backend, sub_zone: &str) -> mainstay_control_plane::Snapshot {
    let mut snapshot = service(&[backend]);
    snapshot.insert(resources::localities("service", [resources::locality(sub_zone, [backend.addr()])]));
    snapshot
}

const SUCCEEDED: &str = "grpc.subchannel.connection_attempts_succeeded";
const FAILED: &str = "grpc.subchannel.connection_attempts_failed";
const LOST: &str = "grpc.subchannel.disconnections";
const DURATION: &str = "grpc.client.attempt.duration";
const OPEN: &str = "grpc.subchannel.open_connections";
