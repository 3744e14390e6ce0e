//! Warm switching: new routes wait until the clusters that they bring in can take traffic. Ours, beyond the gRFCs.

use std::time::Duration;

use mainstay_xds::deps::{ConfigError, XdsConfig};
use mainstay_xds::resource::route::{ClusterTarget, WeightedCluster};

use crate::Tree;
use crate::testbed::{World, eds, route, route_to, routed, without_endpoints};

#[test]
fn a_route_moves_when_the_new_cluster_is_ready() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    assert_eq!(world.log(), "create 2, connect 2");
    world.connecting(2);
    assert_eq!(world.rpc(), "send 1");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2");
    assert_eq!(world.log(), "release 1");
    assert_eq!(world.tree.next_deadline(), None);
}

#[test]
fn a_route_moves_when_the_new_cluster_has_failed() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.fail(2);
    assert_eq!(world.outcome(), "fail", "what is wrong is seen at once, not after the bound");
    world.update(to("c", ""));
    assert_eq!(world.outcome(), "fail", "no endpoints");
}

#[test]
fn a_route_moves_when_the_bound_is_over() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.advance(Duration::from_millis(4_999));
    assert_eq!(world.rpc(), "send 1");
    world.log();
    world.advance(Duration::from_millis(1));
    assert_eq!(world.outcome(), "wait");
    assert_eq!(world.log(), "release 1");
}

#[test]
fn another_update_does_not_prolong_the_wait() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.advance(Duration::from_secs(4));
    world.log();
    world.update(to("c", "x=3"));
    assert_eq!(world.log(), "create 3, connect 3, release 2", "only what serves and what is wanted stays");
    assert_eq!(world.rpc(), "send 1");
    world.advance(Duration::from_secs(1));
    assert_eq!(world.outcome(), "wait");
}

#[test]
fn routes_that_come_back_end_the_wait() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.log();
    world.update(to("a", "x=1"));
    assert_eq!((world.rpc(), world.log()), ("send 1".into(), "release 2".into()));
    assert_eq!(world.tree.next_deadline(), None);
}

#[test]
fn endpoints_of_the_new_cluster_may_change_during_the_wait() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.update(to("b", "x=3"));
    assert_eq!(world.rpc(), "send 1");
    world.ready(3);
    assert_eq!(world.rpc(), "send 3");
}

#[test]
fn endpoints_of_the_old_cluster_may_change_during_the_wait() {
    // L-27: what RPCs go by stays in the configuration, and is followed, until the new routes are warm.
    let mut world = on_a();
    let in_use =
        |world: &mut World| world.tree.poll_clusters_in_use().map(|names| names.into_iter().collect::<Vec<_>>());
    assert_eq!(in_use(&mut world), Some(vec!["a".into()]));
    world.update(routed([route("", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    assert_eq!(in_use(&mut world), Some(vec!["a".into(), "b".into()]));
    world.update(routed([route("", "b")], [eds("a", "x=1,3"), eds("b", "x=2")]));
    world.ready(3);
    world.update(routed([route("", "b")], [eds("a", "x=3"), eds("b", "x=2")]));
    assert_eq!(in_use(&mut world), None);
    assert_eq!(world.rpc(), "send 3");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2");
    assert_eq!(in_use(&mut world), Some(vec!["b".into()]));
    world.log();
    world.update(routed([route("", "b")], [eds("b", "x=2")]));
    assert_eq!(world.log(), "release 3");
}

#[test]
fn the_whole_update_waits_so_that_no_rpc_sees_half_of_it() {
    let mut world = World::new();
    world.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    world.ready(1);
    world.ready(2);
    world.update(routed([route("/a", "c"), route("/b", "a")], [eds("a", "x=1"), eds("c", "x=3")]));
    assert_eq!((world.rpc_to("/a/m"), world.rpc_to("/b/m")), ("send 1".into(), "send 2".into()));
    world.ready(3);
    assert_eq!((world.rpc_to("/a/m"), world.rpc_to("/b/m")), ("send 3".into(), "send 1".into()));
}

#[test]
fn a_split_waits_for_the_cluster_that_joins() {
    let mut world = on_a();
    let split = ["a", "b"].map(|name| WeightedCluster { name: name.into(), weight: 1, overrides: Default::default() });
    world.update(routed([route_to("", ClusterTarget::Weighted(split.into()))], [eds("a", "x=1"), eds("b", "x=2")]));
    world.script.draws = [1].into();
    assert_eq!(world.rpc(), "send 1");
    world.ready(2);
    world.script.draws = [1].into();
    assert_eq!(world.rpc(), "send 2");
}

#[test]
fn nothing_waits_for_the_sake_of_a_cluster_that_does_not_serve() {
    let mut world = World::new();
    world.update(to("a", "x=1"));
    world.fail(1);
    world.update(to("b", "x=2"));
    assert_eq!(world.outcome(), "wait", "waiting for b is better than failing on a");

    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.idle(1);
    assert_eq!(world.outcome(), "wait");
    assert!(world.log().ends_with("release 1"), "a is let go although it was lost during the wait");
}

#[test]
fn nothing_waits_while_rpcs_fail_that_the_new_routes_would_send_elsewhere() {
    let before = || {
        let mut world = World::new();
        world.update(routed([route("/x", "b"), route("/y", "a")], [eds("a", "x=1"), eds("b", "x=2")]));
        world.ready(1);
        world.ready(2);
        world
    };
    let after = |b| {
        let routes = [route("/x", "a"), route("/y", "c"), route("/z", "b")];
        routed(routes, [eds("a", "x=1"), b, eds("c", "x=3")])
    };
    let mut world = before();
    world.update(after(without_endpoints("b")));
    assert_eq!(world.rpc_to("/x/m"), "send 1", "b comes with nothing in the same update");

    let mut world = before();
    world.update(after(eds("b", "x=2")));
    assert_eq!(world.rpc_to("/x/m"), "send 2", "c is waited for");
    world.idle(2);
    world.fail(2);
    assert_eq!(world.rpc_to("/x/m"), "send 1", "b fails during the wait");
}

#[test]
fn an_error_ends_the_wait() {
    let mut world = on_a();
    world.update(to("b", "x=2"));
    world.break_config(ConfigError::NotApiListener("l".into()));
    assert_eq!(world.outcome(), "fail");
    assert!(world.log().ends_with("release 1, release 2"));
    assert_eq!(world.tree.next_deadline(), None);
}

#[test]
fn without_warm_switching_a_route_moves_at_once() {
    let mut world = World::new();
    world.tree = Tree::new().with_warm_switching(None);
    world.update(to("a", "x=1"));
    world.ready(1);
    world.update(to("b", "x=2"));
    assert_eq!(world.outcome(), "wait");
    assert!(world.log().ends_with("release 1"));
}

/// A world whose route leads to cluster `a`, which is ready at endpoint 1.
fn on_a() -> World {
    let mut world = World::new();
    world.update(to("a", "x=1"));
    world.ready(1);
    world.log();
    world
}

/// One route to one cluster.
fn to(cluster: &str, endpoints: &str) -> XdsConfig {
    routed([route("", cluster)], [eds(cluster, endpoints)])
}
