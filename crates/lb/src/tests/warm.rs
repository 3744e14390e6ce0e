//! Warm switching: new routes wait until the clusters that they bring in can take traffic. Ours, beyond the gRFCs.

use std::time::Duration;

use mainstay_xds::deps::{ConfigError, XdsConfig};
use mainstay_xds::resource::route::{ClusterTarget, WeightedCluster};

use crate::Tree;
use crate::testbed::{Testbed, eds, route, route_to, routed, without_endpoints};

#[test]
fn a_route_moves_when_the_new_cluster_is_ready() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    assert_eq!(bed.log(), "create 2, connect 2");
    bed.connecting(2);
    assert_eq!(bed.rpc(), "send 1");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
    assert_eq!(bed.log(), "release 1");
    assert_eq!(bed.tree.next_deadline(), None);
}

#[test]
fn a_route_moves_when_the_new_cluster_has_failed() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.fail(2);
    assert_eq!(bed.outcome(), "fail", "what is wrong is seen at once, not after the bound");
    bed.update(to("c", ""));
    assert_eq!(bed.outcome(), "fail", "no endpoints");
}

#[test]
fn a_route_moves_when_the_bound_is_over() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.advance(Duration::from_millis(4_999));
    assert_eq!(bed.rpc(), "send 1");
    bed.log();
    bed.advance(Duration::from_millis(1));
    assert_eq!(bed.outcome(), "wait");
    assert_eq!(bed.log(), "release 1");
}

#[test]
fn another_update_does_not_prolong_the_wait() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.advance(Duration::from_secs(4));
    bed.log();
    bed.update(to("c", "x=3"));
    assert_eq!(bed.log(), "create 3, connect 3, release 2", "only what serves and what is wanted stays");
    assert_eq!(bed.rpc(), "send 1");
    bed.advance(Duration::from_secs(1));
    assert_eq!(bed.outcome(), "wait");
}

#[test]
fn routes_that_come_back_end_the_wait() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.log();
    bed.update(to("a", "x=1"));
    assert_eq!((bed.rpc(), bed.log()), ("send 1".into(), "release 2".into()));
    assert_eq!(bed.tree.next_deadline(), None);
}

#[test]
fn endpoints_of_the_new_cluster_may_change_during_the_wait() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.update(to("b", "x=3"));
    assert_eq!(bed.rpc(), "send 1");
    bed.ready(3);
    assert_eq!(bed.rpc(), "send 3");
}

#[test]
fn endpoints_of_the_old_cluster_may_change_during_the_wait() {
    // L-27: what RPCs go by stays in the configuration, and is followed, until the new routes are warm.
    let mut bed = on_a();
    let in_use = |bed: &mut Testbed| bed.tree.poll_clusters_in_use().map(|names| names.into_iter().collect::<Vec<_>>());
    assert_eq!(in_use(&mut bed), Some(vec!["a".into()]));
    bed.update(routed([route("", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    assert_eq!(in_use(&mut bed), Some(vec!["a".into(), "b".into()]));
    bed.update(routed([route("", "b")], [eds("a", "x=1,3"), eds("b", "x=2")]));
    bed.ready(3);
    bed.update(routed([route("", "b")], [eds("a", "x=3"), eds("b", "x=2")]));
    assert_eq!(in_use(&mut bed), None);
    assert_eq!(bed.rpc(), "send 3");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
    assert_eq!(in_use(&mut bed), Some(vec!["b".into()]));
    bed.log();
    bed.update(routed([route("", "b")], [eds("b", "x=2")]));
    assert_eq!(bed.log(), "release 3");
}

#[test]
fn the_whole_update_waits_so_that_no_rpc_sees_half_of_it() {
    let mut bed = Testbed::new();
    bed.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.ready(1);
    bed.ready(2);
    bed.update(routed([route("/a", "c"), route("/b", "a")], [eds("a", "x=1"), eds("c", "x=3")]));
    assert_eq!((bed.rpc_to("/a/m"), bed.rpc_to("/b/m")), ("send 1".into(), "send 2".into()));
    bed.ready(3);
    assert_eq!((bed.rpc_to("/a/m"), bed.rpc_to("/b/m")), ("send 3".into(), "send 1".into()));
}

#[test]
fn a_split_waits_for_the_cluster_that_joins() {
    let mut bed = on_a();
    let split = ["a", "b"].map(|name| WeightedCluster { name: name.into(), weight: 1, overrides: Default::default() });
    bed.update(routed([route_to("", ClusterTarget::Weighted(split.into()))], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.script.draws = [1].into();
    assert_eq!(bed.rpc(), "send 1");
    bed.ready(2);
    bed.script.draws = [1].into();
    assert_eq!(bed.rpc(), "send 2");
}

#[test]
fn nothing_waits_for_the_sake_of_a_cluster_that_does_not_serve() {
    let mut bed = Testbed::new();
    bed.update(to("a", "x=1"));
    bed.fail(1);
    bed.update(to("b", "x=2"));
    assert_eq!(bed.outcome(), "wait", "waiting for b is better than failing on a");

    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.idle(1);
    assert_eq!(bed.outcome(), "wait");
    assert!(bed.log().ends_with("release 1"), "a is let go although it was lost during the wait");
}

#[test]
fn nothing_waits_while_rpcs_fail_that_the_new_routes_would_send_elsewhere() {
    let before = || {
        let mut bed = Testbed::new();
        bed.update(routed([route("/x", "b"), route("/y", "a")], [eds("a", "x=1"), eds("b", "x=2")]));
        bed.ready(1);
        bed.ready(2);
        bed
    };
    let after = |b| {
        let routes = [route("/x", "a"), route("/y", "c"), route("/z", "b")];
        routed(routes, [eds("a", "x=1"), b, eds("c", "x=3")])
    };
    let mut bed = before();
    bed.update(after(without_endpoints("b")));
    assert_eq!(bed.rpc_to("/x/m"), "send 1", "b comes with nothing in the same update");

    let mut bed = before();
    bed.update(after(eds("b", "x=2")));
    assert_eq!(bed.rpc_to("/x/m"), "send 2", "c is waited for");
    bed.idle(2);
    bed.fail(2);
    assert_eq!(bed.rpc_to("/x/m"), "send 1", "b fails during the wait");
}

#[test]
fn an_error_ends_the_wait() {
    let mut bed = on_a();
    bed.update(to("b", "x=2"));
    bed.break_config(ConfigError::NotApiListener("l".into()));
    assert_eq!(bed.outcome(), "fail");
    assert!(bed.log().ends_with("release 1, release 2"));
    assert_eq!(bed.tree.next_deadline(), None);
}

#[test]
fn without_warm_switching_a_route_moves_at_once() {
    let mut bed = Testbed::new();
    bed.tree = Tree::new().with_warm_switching(None);
    bed.update(to("a", "x=1"));
    bed.ready(1);
    bed.update(to("b", "x=2"));
    assert_eq!(bed.outcome(), "wait");
    assert!(bed.log().ends_with("release 1"));
}

/// A testbed whose route leads to cluster `a`, which is ready at endpoint 1.
fn on_a() -> Testbed {
    let mut bed = Testbed::new();
    bed.update(to("a", "x=1"));
    bed.ready(1);
    bed.log();
    bed
}

/// One route to one cluster.
fn to(cluster: &str, endpoints: &str) -> XdsConfig {
    routed([route("", cluster)], [eds(cluster, endpoints)])
}
