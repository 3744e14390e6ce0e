//! What RPCs count for load reports (C-67, C-69, C-77).

use std::sync::Arc;

use mainstay_xds::Code;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::ClusterConfig;
use mainstay_xds::lrs::{Action, ClusterReport, LrsClient};
use mainstay_xds::resource::endpoint::DropCategory;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{World, config, dns, edit_cluster, edit_endpoints, eds, with_policy, with_sessions};
use crate::{CallTracker, Decision, Ending, Rpc};

#[test]
fn attempts_are_counted_per_locality_from_the_pick_to_the_end() {
    let mut world = World::new();
    world.update(config([reported(eds("c", "a=1 b=2"))]));
    world.ready(1);
    world.ready(2);
    let [a, b, again] = [0, 1, 0].map(|draw| send(&mut world, draw));
    assert_eq!(report(&mut world, "s"), "c/ [a 2 0 0 2] [b 1 0 0 1]", "C-77: issued, succeeded, failed, in progress");
    a.end(Ending { code: Code::Ok, trailers: None });
    b.end(Ending { code: Code::Internal, trailers: None });
    drop(again);
    assert_eq!(report(&mut world, "s"), "c/ [a 0 1 1 0] [b 0 0 1 0]", "C-77");
    send(&mut world, 0).withdraw();
    assert_eq!(report(&mut world, "s"), "c/", "what was never sent does not count");
}

#[test]
fn picks_that_wait_or_fail_are_not_counted_and_drops_only_as_drops() {
    let mut world = World::new();
    let dropping = edit_endpoints(reported(eds("c", "a=1")), |endpoints| {
        let category = |category: &str| DropCategory { category: category.into(), per_million: 500_000 };
        endpoints.drops = ["lb", "throttle"].map(category).into();
    });
    world.update(config([edit_cluster(dropping, |cluster| cluster.max_requests = 1)]));
    world.script.draws = [999_999, 999_999].into();
    assert_eq!(world.outcome(), "wait");
    world.fail(1);
    world.script.draws = [999_999, 999_999].into();
    assert_eq!(world.outcome(), "fail");
    assert_eq!(report(&mut world, "s"), "c/", "C-77");
    world.idle(1);
    world.ready(1);
    world.script.draws = [999_999, 0].into();
    assert_eq!(world.outcome(), "drop");
    world.script.draws = [999_999, 999_999].into();
    let running = decide(&mut world);
    world.script.draws = [999_999, 999_999].into();
    assert_eq!(world.outcome(), "drop", "the circuit breaker");
    assert_eq!(report(&mut world, "s"), "c/ circuit 1 throttle 1 [a 1 0 0 1]", "C-77, L-85");
    drop(running);
}

#[test]
fn only_clusters_that_ask_for_it_are_counted_and_each_for_its_server() {
    let mut world = World::new();
    world.update(config([eds("c", "a=1")]));
    world.ready(1);
    drop(send(&mut world, 0));
    assert_eq!(report(&mut world, "s"), "", "C-67");
    world.update(config([reported(eds("c", "a=1"))]));
    let before = send(&mut world, 0);
    let other = edit_cluster(eds("c", "a=1"), |cluster| cluster.lrs_server = Some(server("t")));
    world.update(config([other]));
    drop(send(&mut world, 0));
    drop(before);
    assert_eq!(report(&mut world, "s"), "c/ [a 1 0 1 0]", "C-69, C-78: what is left of the old one");
    assert_eq!(report(&mut world, "s"), "", "and then it is forgotten");
    assert_eq!(report(&mut world, "t"), "c/ [a 1 0 1 0]", "C-69");
}

#[test]
fn endpoints_from_dns_count_for_the_empty_locality() {
    let mut world = World::new();
    let unnamed = edit_endpoints(reported(dns("c", "x=1")), |endpoints| {
        endpoints.priorities[0].localities[0].locality = Arc::default();
    });
    world.update(config([unnamed]));
    world.ready(1);
    drop(send(&mut world, 0));
    assert_eq!(report(&mut world, "s"), "c/ [ 1 0 1 0]", "L-88");
}

#[test]
fn pick_first_counts_for_the_locality_of_the_endpoint_that_it_took() {
    let mut world = World::new();
    world.update(config([with_policy(reported(eds("c", "a=1 b=2")), LbPolicy::PickFirst { shuffle: false })]));
    world.fail(1);
    world.ready(2);
    drop(decide(&mut world));
    assert_eq!(report(&mut world, "s"), "c/ [b 1 0 1 0]", "L-88, Go: LoadReportingPickFirstMultiLocality");
}

#[test]
fn other_settings_of_a_cluster_leave_its_counts_alone_and_without_a_server_there_are_none() {
    let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("s")).build().expect("a bootstrap");
    let mut client = LrsClient::new(Arc::new(bootstrap), ClientSettings::default());
    let mut world = World::new();
    world.update(config([reported(eds("c", "a=1"))]));
    client.follow(world.tree.loads());
    assert!(matches!(client.poll_action(), Some(Action::Open { .. })), "C-70");
    world.ready(1);
    let running = decide(&mut world);
    world.update(config([edit_cluster(reported(eds("c", "a=1")), |cluster| cluster.max_requests = 7)]));
    client.follow(world.tree.loads());
    assert_eq!(client.poll_action(), None, "C-70, Go: ConfigUpdateWithSameLoadReportingServerConfig");
    drop(running);
    assert_eq!(report(&mut world, "s"), "c/ [a 1 0 1 0]", "C-69: one count, whatever the settings");
    world.update(config([eds("c", "a=1")]));
    drop(decide(&mut world));
    assert_eq!(report(&mut world, "s"), "c/", "C-67, Go: UpdateLRSServerToNil");
    assert_eq!(report(&mut world, "s"), "", "and then it is forgotten");
}

#[test]
fn a_locality_that_is_gone_tells_its_last_counts() {
    let mut world = World::new();
    world.update(config([reported(eds("c", "a=1 b=2"))]));
    world.ready(1);
    world.ready(2);
    let running = send(&mut world, 1);
    world.update(config([reported(eds("c", "a=1"))]));
    assert_eq!(report(&mut world, "s"), "c/ [b 1 0 0 1]");
    running.end(Ending { code: Code::Ok, trailers: None });
    assert_eq!(report(&mut world, "s"), "c/ [b 0 1 0 0]", "C-78");
    assert_eq!(report(&mut world, "s"), "c/");
}

#[test]
fn a_connection_that_only_a_session_uses_counts_for_the_locality_of_its_endpoint() {
    let mut world = World::new();
    world.update(with_sessions(config([reported(eds("c", "a=1|b=2"))])));
    world.ready(1);
    let on_two = "10.0.0.1:2;cluster:c";
    assert_eq!(world.rpc_of_session("/s/m", on_two).0, "wait");
    world.ready(2);
    assert_eq!(world.rpc_of_session("/s/m", on_two).0, "send 2");
    assert_eq!(report(&mut world, "s"), "c/ [b 1 0 1 0]", "L-88, C-core: LoadReportingSubchannelNotYetCreated");
}

/// An RPC that is sent.
fn send(world: &mut World, draw: u64) -> CallTracker {
    world.script.draws = [draw].into();
    decide(world)
}

fn decide(world: &mut World) -> CallTracker {
    let (snapshot, headers) = (Arc::clone(&world.snapshot), http::HeaderMap::new());
    match snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut world.script) {
        Decision::Send(to) => to.tracker,
        other => panic!("an endpoint is ready: {other:?}"),
    }
}

/// What is told to a server.
fn report(world: &mut World, to: &str) -> String {
    let now = world.now;
    let reports = world.tree.loads().take(now, &server(to));
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
