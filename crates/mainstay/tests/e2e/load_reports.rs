//! Load reports (LRS): what the control plane adds up is what was sent.

use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use mainstay_control_plane::{Event, LoadRequest, Server, Snapshot, resources};
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::SimpleRequest;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::balance::Reporter;
use crate::common::{Client, backends, builder, call, control_plane, in_time, service, spread};

#[tokio::test]
async fn totals_equal_what_was_sent_exactly_across_a_restart_of_the_control_plane() {
    let [one, two] = backends(["one", "two"]).await;
    let mut snapshot = service(&[]);
    snapshot.insert(resources::with_load_reports(resources::eds_cluster("service"), [""; 0]));
    let localities = [resources::locality("left", [one.addr()]), resources::locality("right", [two.addr()])];
    snapshot.insert(resources::localities("service", localities));
    let server = control_plane(snapshot).await;
    server.request_loads(LoadRequest { interval: Duration::from_millis(300), ..LoadRequest::default() });
    let mut client = reporting(&server);
    let mut events = server.events();
    spread(&mut client, 50).await;
    failing(&mut client).await;
    // One that begins before the restart and ends after it.
    let (input, inputs) = tokio::sync::mpsc::channel(1);
    let long = client.full_duplex_call(ReceiverStream::new(inputs)).await.unwrap();
    in_time(events.wait_for(is_report)).await.unwrap();

    // Right after a report: none is on its way when the connection is cut.
    server.stop().await;
    spread(&mut client, 30).await;
    server.start().unwrap();
    spread(&mut client, 20).await;
    until_reported(&server, 101).await;
    assert_eq!(server.loads().cluster("service").issued, 102, "one is under way");
    drop(input);
    assert_eq!(long.into_inner().message().await.unwrap(), None);
    until_reported(&server, 102).await;
    // Nothing comes twice.
    spread(&mut client, 1).await;
    until_reported(&server, 103).await;

    let loads = server.loads();
    let total = loads.cluster("service");
    assert_eq!((total.issued, total.succeeded, total.failed), (103, 102, 1), "C-77");
    assert_eq!(one.requests() + two.requests(), 103, "what the backends have seen");
    let localities = &loads.clusters[&("service".to_owned(), String::new())].localities;
    let sent = |name: &str| localities[&format!("region/zone/{name}")].issued;
    assert_eq!((sent("left"), sent("right")), (one.requests(), two.requests()), "C-69: per locality");
}

#[tokio::test]
async fn drops_are_reported_by_category() {
    let [one] = backends(["one"]).await;
    let mut snapshot = service(&[&one]);
    snapshot.insert(resources::with_load_reports(resources::eds_cluster("service"), [""; 0]));
    let mut endpoints = resources::endpoints("service", [one.addr()]);
    let all = Some(FractionalPercent { numerator: 100, denominator: 0 });
    let drop = DropOverload { category: "throttle".into(), drop_percentage: all };
    endpoints.policy = Some(Policy { drop_overloads: vec![drop], ..Default::default() });
    snapshot.insert(endpoints);
    let server = control_plane(snapshot).await;
    server.request_loads(LoadRequest { interval: Duration::from_millis(20), ..LoadRequest::default() });
    let mut client = reporting(&server);
    for _ in 0..5 {
        assert_eq!(call(&mut client).await.unwrap_err().code(), Code::Unavailable);
    }
    let mut events = server.events();
    let dropped = || server.loads().clusters.values().map(|cluster| cluster.dropped).sum::<u64>();
    while dropped() < 5 {
        in_time(events.wait_for(is_report)).await.unwrap();
    }
    let loads = server.loads();
    let cluster = &loads.clusters[&("service".to_owned(), String::new())];
    assert_eq!(cluster.dropped_by_category["throttle"], 5, "C-77");
    assert_eq!((cluster.dropped, loads.cluster("service").issued), (5, 0), "C-77: drops are drops only");
}

#[tokio::test]
async fn metrics_of_endpoints_are_passed_on_as_the_cluster_says() {
    let one = Reporter::start("one", 0.25, 0.0).await;
    let mut snapshot = service(&[]);
    let metrics = ["application_utilization", "named_metrics.queue", "cpu_utilization", "mem"];
    snapshot.insert(resources::with_load_reports(resources::eds_cluster("service"), metrics));
    snapshot.insert(resources::endpoints("service", [one.address]));
    let server = control_plane(snapshot).await;
    server.request_loads(LoadRequest { interval: Duration::from_millis(20), ..LoadRequest::default() });
    let mut client = reporting(&server);
    spread(&mut client, 8).await;
    until_reported(&server, 8).await;
    let expected = [("application_utilization".to_owned(), (8, 2.0)), ("named_metrics.queue".to_owned(), (8, 16.0))];
    assert_eq!(server.loads().cluster("service").metrics, expected.into(), "C-79, C-80, C-81");
}

#[tokio::test]
async fn a_cluster_without_lrs_server_is_not_reported() {
    let [one] = backends(["one"]).await;
    let mut snapshot = two_clusters(&one);
    snapshot.insert(resources::with_load_reports(resources::eds_cluster("other"), [""; 0]));
    let server = control_plane(snapshot).await;
    server.request_loads(LoadRequest { interval: Duration::from_millis(20), ..LoadRequest::default() });
    let mut client = reporting(&server);
    let mut events = server.events();
    spread(&mut client, 5).await;
    let report = in_time(events.wait_for(is_report)).await.unwrap();
    assert_eq!(report, ["other"], "C-66, C-67");
    assert_eq!(server.loads().cluster("service").issued, 0, "C-67");
}

/// Routes to `service`, and a cluster `other` that gets no traffic.
fn two_clusters(backend: &mainstay_testservice::Backend) -> Snapshot {
    let mut snapshot = service(&[backend]);
    let routes = [resources::prefix_route("/other", "other"), resources::prefix_route("", "service")];
    snapshot.insert(resources::route_table("service", routes));
    snapshot.insert(resources::endpoints("other", [backend.addr()]));
    snapshot
}

fn reporting(server: &Server) -> Client {
    let builder = builder(&[server]).min_load_report_interval(Duration::from_millis(1));
    Client::new(builder.build().expect("a channel"))
}

/// One call that the backend fails.
async fn failing(client: &mut Client) {
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(BEHAVIOR_KEY, "error-code-13".parse().expect("a header value"));
    assert_eq!(client.unary_call(request).await.unwrap_err().code(), Code::Internal);
}

/// Waits until so many calls are known to have ended; never more.
async fn until_reported(server: &Server, calls: u64) {
    let mut events = server.events();
    loop {
        let total = server.loads().cluster("service");
        assert!(total.succeeded + total.failed <= calls, "{total:?}");
        if total.succeeded + total.failed == calls {
            return;
        }
        in_time(events.wait_for(is_report)).await.expect("a server that lives");
    }
}

/// The clusters of a report.
fn is_report(event: &Event) -> Option<Vec<String>> {
    match event {
        Event::LoadReported(report) => Some(report.clusters.iter().map(|c| c.cluster_name.clone()).collect()),
        _ => None,
    }
}
