//! What RPCs count for load reports (C-67, C-69, C-77).

use std::sync::Arc;

use mainstay_xds::Code;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::ClusterConfig;
use mainstay_xds::lrs::{Action, ClusterReport, LrsClient};
use mainstay_xds::resource::endpoint::DropCategory;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Testbed, config, dns, edit_cluster, edit_endpoints, eds, with_policy, with_sessions};
use crate::{CallTracker, Decision, Ending, Rpc};

#[test]
fn attempts_are_counted_per_locality_from_the_pick_to_the_end() {
    let mut bed = Testbed::new();
    bed.update(config([reported(eds("c", "a=1 b=2"))]));
    bed.ready(1);
    bed.ready(2);
    let [a, b, again] = [0, 1, 0].map(|draw| send(&mut bed, draw));
    assert_eq!(report(&mut bed, "s"), "c/ [a 2 0 0 2] [b 1 0 0 1]", "C-77: issued, succeeded, failed, in progress");
    a.end(Ending { code: Code::Ok, trailers: None });
    b.end(Ending { code: Code::Internal, trailers: None });
    drop(again);
    assert_eq!(report(&mut bed, "s"), "c/ [a 0 1 1 0] [b 0 0 1 0]", "C-77");
    send(&mut bed, 0).withdraw();
    assert_eq!(report(&mut bed, "s"), "c/", "what was never sent does not count");
}

#[test]
fn picks_that_wait_or_fail_are_not_counted_and_drops_only_as_drops() {
    let mut bed = Testbed::new();
    let dropping = edit_endpoints(reported(eds("c", "a=1")), |endpoints| {
        let category = |category: &str| DropCategory { category: category.into(), per_million: 500_000 };
        endpoints.drops = ["lb", "throttle"].map(category).into();
    });
    bed.update(config([edit_cluster(dropping, |cluster| cluster.max_requests = 1)]));
    bed.script.draws = [999_999, 999_999].into();
    assert_eq!(bed.outcome(), "wait");
    bed.fail(1);
    bed.script.draws = [999_999, 999_999].into();
    assert_eq!(bed.outcome(), "fail");
    assert_eq!(report(&mut bed, "s"), "c/", "C-77");
    bed.idle(1);
    bed.ready(1);
    bed.script.draws = [999_999, 0].into();
    assert_eq!(bed.outcome(), "drop");
    bed.script.draws = [999_999, 999_999].into();
    let running = decide(&mut bed);
    bed.script.draws = [999_999, 999_999].into();
    assert_eq!(bed.outcome(), "drop", "the circuit breaker");
    assert_eq!(report(&mut bed, "s"), "c/ circuit 1 throttle 1 [a 1 0 0 1]", "C-77, L-85");
    drop(running);
}

#[test]
fn only_clusters_that_ask_for_it_are_counted_and_each_for_its_server() {
    let mut bed = Testbed::new();
    bed.update(config([eds("c", "a=1")]));
    bed.ready(1);
    drop(send(&mut bed, 0));
    assert_eq!(report(&mut bed, "s"), "", "C-67");
    bed.update(config([reported(eds("c", "a=1"))]));
    let before = send(&mut bed, 0);
    let other = edit_cluster(eds("c", "a=1"), |cluster| cluster.lrs_server = Some(server("t")));
    bed.update(config([other]));
    drop(send(&mut bed, 0));
    drop(before);
    assert_eq!(report(&mut bed, "s"), "c/ [a 1 0 1 0]", "C-69, C-78: what is left of the old one");
    assert_eq!(report(&mut bed, "s"), "", "and then it is forgotten");
    assert_eq!(report(&mut bed, "t"), "c/ [a 1 0 1 0]", "C-69");
}

#[test]
fn endpoints_from_dns_count_for_the_empty_locality() {
    let mut bed = Testbed::new();
    let unnamed = edit_endpoints(reported(dns("c", "x=1")), |endpoints| {
        endpoints.priorities[0].localities[0].locality = Arc::default();
    });
    bed.update(config([unnamed]));
    bed.ready(1);
    drop(send(&mut bed, 0));
    assert_eq!(report(&mut bed, "s"), "c/ [ 1 0 1 0]", "L-88");
}

#[test]
fn pick_first_counts_for_the_locality_of_the_endpoint_that_it_took() {
    let mut bed = Testbed::new();
    bed.update(config([with_policy(reported(eds("c", "a=1 b=2")), LbPolicy::PickFirst { shuffle: false })]));
    bed.fail(1);
    bed.ready(2);
    drop(decide(&mut bed));
    assert_eq!(report(&mut bed, "s"), "c/ [b 1 0 1 0]", "L-88, Go: LoadReportingPickFirstMultiLocality");
}

#[test]
fn other_settings_of_a_cluster_leave_its_counts_alone_and_without_a_server_there_are_none() {
    let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("s")).build().expect("a bootstrap");
    let mut client = LrsClient::new(Arc::new(bootstrap), ClientSettings::default());
    let mut bed = Testbed::new();
    bed.update(config([reported(eds("c", "a=1"))]));
    client.follow(bed.tree.loads());
    assert!(matches!(client.poll_action(), Some(Action::Open { .. })), "C-70");
    bed.ready(1);
    let running = decide(&mut bed);
    bed.update(config([edit_cluster(reported(eds("c", "a=1")), |cluster| cluster.max_requests = 7)]));
    client.follow(bed.tree.loads());
    assert_eq!(client.poll_action(), None, "C-70, Go: ConfigUpdateWithSameLoadReportingServerConfig");
    drop(running);
    assert_eq!(report(&mut bed, "s"), "c/ [a 1 0 1 0]", "C-69: one count, whatever the settings");
    bed.update(config([eds("c", "a=1")]));
    drop(decide(&mut bed));
    assert_eq!(report(&mut bed, "s"), "c/", "C-67, Go: UpdateLRSServerToNil");
    assert_eq!(report(&mut bed, "s"), "", "and then it is forgotten");
}

#[test]
fn a_locality_that_is_gone_tells_its_last_counts() {
    let mut bed = Testbed::new();
    bed.update(config([reported(eds("c", "a=1 b=2"))]));
    bed.ready(1);
    bed.ready(2);
    let running = send(&mut bed, 1);
    bed.update(config([reported(eds("c", "a=1"))]));
    assert_eq!(report(&mut bed, "s"), "c/ [b 1 0 0 1]");
    running.end(Ending { code: Code::Ok, trailers: None });
    assert_eq!(report(&mut bed, "s"), "c/ [b 0 1 0 0]", "C-78");
    assert_eq!(report(&mut bed, "s"), "c/");
}

#[test]
fn a_connection_that_only_a_session_uses_counts_for_the_locality_of_its_endpoint() {
    let mut bed = Testbed::new();
    bed.update(with_sessions(config([reported(eds("c", "a=1|b=2"))])));
    bed.ready(1);
    let on_two = "10.0.0.1:2;cluster:c";
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "wait");
    bed.ready(2);
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 2");
    assert_eq!(report(&mut bed, "s"), "c/ [b 1 0 1 0]", "L-88, C-core: LoadReportingSubchannelNotYetCreated");
}

/// An RPC that is sent.
fn send(bed: &mut Testbed, draw: u64) -> CallTracker {
    bed.script.draws = [draw].into();
    decide(bed)
}

fn decide(bed: &mut Testbed) -> CallTracker {
    let (snapshot, headers) = (Arc::clone(&bed.snapshot), http::HeaderMap::new());
    match snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut bed.script) {
        Decision::Send(to) => to.tracker,
        other => panic!("an endpoint is ready: {other:?}"),
    }
}

/// What is told to a server.
fn report(bed: &mut Testbed, to: &str) -> String {
    let now = bed.now;
    let reports = bed.tree.loads().take(now, &server(to));
    reports.iter().map(describe).collect::<Vec<_>>().join(", ")
}

fn describe(report: &ClusterReport) -> String {
    let mut text = format!("{}/{}", report.cluster, report.eds_service);
    if report.circuit_drops > 0 {
        text += &format!(" circuit {}", report.circuit_drops);
    }
    for (category, count) in &report.drops {
        text += &format!(" {category} {count}");
    }
    for l in &report.localities {
        text += &format!(" [{} {} {} {} {}]", l.locality.zone, l.issued, l.succeeded, l.failed, l.in_progress);
    }
    text
}

fn reported(cluster: ClusterConfig) -> ClusterConfig {
    edit_cluster(cluster, |cluster| cluster.lrs_server = Some(server("s")))
}

fn server(uri: &str) -> Arc<ServerConfig> {
    Arc::new(ServerConfig::insecure(uri))
}
