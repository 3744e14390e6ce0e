//! Clusters as routes name them: errors, and aggregates.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::deps::{ClusterChildren, ClusterError, ClusterErrorKind};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::tls::{Roots, UpstreamTls};

use crate::snapshot::Content;
use crate::testbed::{World, aggregate, broken, config, dns, edit_cluster, eds, route, routed, with_policy};
use crate::{Decision, Observation, Rpc, XdsSecurity};

#[test]
fn an_error_takes_the_place_of_a_cluster_at_once() {
    let mut world = World::with_endpoints("a=1");
    world.ready(1);
    world.log();
    let error = ClusterError { cluster: "c".into(), kind: ClusterErrorKind::TooDeep };
    let text = error.to_string();
    world.update(broken(config([eds("c", "a=1")]), error));
    assert_eq!(world.rpc(), format!("fail 14: cluster \"c\": {text}"), "L-56");
    assert_eq!(world.log(), "release 1", "L-56");
    world.update_endpoints("a=1");
    world.ready(1);
    assert_eq!(world.rpc(), "send 1");
}

#[test]
fn an_error_of_one_cluster_leaves_others_alone() {
    let routes = [route("/a", "a"), route("/b", "b")];
    let mut world = World::new();
    world.update(routed(routes.clone(), [eds("a", "x=1"), eds("b", "x=2")]));
    world.ready(1);
    world.ready(2);
    let error = ClusterError { cluster: "b".into(), kind: ClusterErrorKind::TooDeep };
    world.update(broken(routed(routes, [eds("a", "x=1")]), error));
    assert_eq!(world.rpc_to("/a/m"), "send 1", "L-14, L-21");
    assert!(world.rpc_to("/b/m").starts_with("fail 14"), "L-14");
}

/// A29: told when it begins, not with every update.
#[test]
fn a_tls_context_that_is_not_followed_is_told_once() {
    let secured = |endpoints| edit_cluster(eds("c", endpoints), |cluster| cluster.tls = Some(Arc::new(tls())));
    let told = Observation::SecurityIgnored { cluster: "c".into() };
    let mut world = World::new();
    world.update(config([eds("c", "a=1")]));
    assert_eq!(world.helper.observations, []);
    world.update(config([secured("a=1")]));
    world.update(config([secured("a=1,2")]));
    assert_eq!(world.helper.observations, std::slice::from_ref(&told));
    world.ready(1);
    assert_eq!(world.rpc(), "send 1", "as in gRPC with credentials that are not for xDS");
    world.update(config([eds("c", "a=1")]));
    world.update(config([secured("a=1")]));
    assert_eq!(world.helper.observations, [told.clone(), told]);
}

/// A cluster that cannot be used as it asks is as good as one that cannot be had.
#[test]
fn a_tls_context_that_is_not_followed_is_refused_where_security_is_required() {
    let secured = |name, endpoints| edit_cluster(eds(name, endpoints), |cluster| cluster.tls = Some(Arc::new(tls())));
    let mut world = World::new();
    world.tree = world.tree.with_security(XdsSecurity::Refuse);
    world.update(config([eds("c", "a=1")]));
    world.ready(1);
    assert_eq!(world.rpc(), "send 1");
    world.log();
    world.update(config([secured("c", "a=1")]));
    assert_eq!(
        world.rpc(),
        "fail 14: cluster \"c\": cluster \"c\" asks for TLS in its transport_socket, which the credentials of this \
         channel do not follow, and the channel requires xDS security"
    );
    assert_eq!(world.log(), "release 1", "nothing is sent any more");
    assert_eq!(world.helper.observations, [], "nothing was ignored");
    world.update(config([aggregate("agg", &["x", "y"]), secured("x", "a=1"), eds("y", "a=2")]));
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "an aggregate goes on to its next leaf");
}

/// A29: another TLS context means other connections, and RPCs wait for them rather than take those from before.
#[test]
fn a_tls_context_that_is_followed_is_never_served_by_other_connections() {
    let asks = |name, server: &str| {
        let tls = UpstreamTls { sni: Some(server.to_owned()), ..tls() };
        edit_cluster(eds(name, "a=1"), |cluster| cluster.tls = Some(Arc::new(tls)))
    };
    let mut world = World::new();
    world.tree = world.tree.with_security(XdsSecurity::Follow);
    world.update(config([eds("c", "a=1")]));
    world.ready(1);
    assert_eq!(world.rpc(), "send 1", "in plaintext: nothing else was asked for");
    world.log();
    world.update(config([asks("c", "100")]));
    assert_eq!(world.log(), "create 101, connect 101, release 1");
    assert_eq!(world.outcome(), "wait", "not on the connection in plaintext");
    world.ready(101);
    assert_eq!(world.rpc(), "send 101");
    world.update(config([asks("c", "200")]));
    assert_eq!(world.outcome(), "wait", "not on the connection to another server");
    world.ready(201);
    world.log();
    world.update(config([aggregate("c", &["l"]), asks("l", "300")]));
    assert_eq!(world.outcome(), "wait", "the same where a cluster becomes an aggregate");
    world.ready(301);
    world.update(config([aggregate("c", &["l"]), asks("l", "400")]));
    assert_eq!(world.outcome(), "wait", "and inside one");
    world.ready(401);
    assert_eq!(world.rpc(), "send 401");
    world.update(config([eds("c", "a=1")]));
    assert_eq!(world.outcome(), "wait", "nor does TLS serve where plaintext is asked for");
    assert_eq!(world.helper.observations, [], "nothing was ignored");
}

/// A29: which endpoint it is does not matter, only how it is to be reached.
#[test]
fn clusters_with_different_tls_share_no_connection() {
    let asks = |name, server: Option<&str>| {
        let tls = UpstreamTls { sni: server.map(str::to_owned), ..tls() };
        edit_cluster(eds(name, "a=1"), |cluster| cluster.tls = Some(Arc::new(tls)))
    };
    let routes = [route("/a", "a"), route("/b", "b"), route("/c", "c"), route("/d", "d")];
    let mut world = World::new();
    world.tree = world.tree.with_security(XdsSecurity::Follow);
    world.update(routed(
        routes,
        [asks("a", Some("100")), asks("b", Some("200")), asks("c", Some("100")), eds("d", "a=1")],
    ));
    [1, 101, 201].into_iter().for_each(|port| world.ready(port));
    let sent: Vec<_> = ["/a/m", "/b/m", "/c/m", "/d/m"].map(|path| world.rpc_to(path)).into();
    assert_eq!(sent, ["send 101", "send 201", "send 101", "send 1"], "equal ones do");
}

fn tls() -> UpstreamTls {
    UpstreamTls {
        roots: Roots::System,
        identity_instance: None,
        match_subject_alt_names: Vec::new(),
        sni: None,
        auto_host_sni: false,
        auto_sni_san_validation: false,
    }
}

#[test]
fn an_aggregate_uses_its_leaves_in_order() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), dns("y", "a=2")]));
    assert_eq!(world.log(), "create 1, connect 1", "L-61, L-64");
    world.fail(1);
    assert_eq!(world.log(), "create 2, connect 2", "L-61");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2");
    world.idle(1);
    world.ready(1);
    assert_eq!(world.rpc(), "send 1", "L-61");
}

#[test]
fn each_leaf_of_an_aggregate_has_its_own_policy_and_its_rpcs_its_name() {
    let pick_first = |cluster| with_policy(cluster, LbPolicy::PickFirst { shuffle: false });
    let mut world = World::new();
    let aggregate = pick_first(aggregate("agg", &["x", "y"]));
    world.update(config([aggregate, eds("x", "a=1,2"), pick_first(eds("y", "a=3,4"))]));
    assert!(world.log().ends_with("connect 1, connect 2"), "L-44: LoadBalancingPolicyComesFromUnderlyingCluster");
    world.ready(1);
    let leaf_of = |world: &mut World| match world
        .snapshot
        .decide(Rpc { path: "/s/m", headers: &HeaderMap::new() }, &mut world.script)
    {
        Decision::Send(to) => (to.cluster.to_string(), to.origin.cluster.to_string()),
        Decision::Wait(failure, _) | Decision::Fail(failure) => {
            ("not sent".into(), failure.cluster.expect("a leaf").to_string())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(leaf_of(&mut world), ("agg".into(), "x".into()), "L-62");
    world.idle(1);
    world.fail(1);
    world.log();
    world.fail(2);
    assert!(world.log().ends_with("connect 3"), "L-44: the second leaf takes the first address that answers");
    assert_eq!(leaf_of(&mut world), ("not sent".into(), "y".into()), "L-62, S-64: of a pick that waits");
    world.ready(3);
    assert_eq!(leaf_of(&mut world), ("agg".into(), "y".into()), "L-62");
}

#[test]
fn inside_an_aggregate_all_priorities_of_a_leaf_come_before_the_next_leaf() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1|b=2"), eds("y", "a=3")]));
    world.fail(1);
    assert!(!world.helper.live.contains_key(&3));
    world.fail(2);
    assert!(world.helper.live.contains_key(&3), "L-61");
    world.fail(3);
    assert_eq!(
        world.rpc(),
        "fail 14: cluster \"agg\": leaf \"y\": priority 0 of 1: locality a: connections to all 1 endpoints failing; \
         last error: 10.0.0.1:3: refused (xDS node ID:n)",
        "L-200"
    );
}

#[test]
fn a_slow_leaf_is_waited_for_ten_seconds_whatever_its_priorities_do() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1|b=2"), eds("y", "a=3")]));
    world.advance(Duration::from_secs(9));
    world.fail(1);
    world.advance(Duration::from_secs(1));
    assert!(world.helper.live.contains_key(&3), "the outer timer is not restarted by the inner priority");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "the inner one switches back when it is ready");
}

#[test]
fn a_changed_leaf_is_updated_inside_its_aggregate_only() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    world.ready(1);
    world.log();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1,3"), eds("y", "a=2")]));
    assert_eq!(world.log(), "create 3, connect 3");
    assert_eq!(world.rpc(), "send 1");
}

#[test]
fn leaves_that_change_places_keep_their_connections() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    world.fail(1);
    world.ready(2);
    world.log();
    world.update(config([aggregate("agg", &["y", "x"]), eds("x", "a=1"), eds("y", "a=2")]));
    assert_eq!((world.rpc().as_str(), world.log().as_str()), ("send 2", ""), "L-61: known by name");
}

#[test]
fn a_broken_leaf_is_passed_over() {
    let mut world = World::new();
    let error = ClusterError { cluster: "x".into(), kind: ClusterErrorKind::TooDeep };
    world.update(broken(config([aggregate("agg", &["x", "y"]), eds("y", "a=2")]), error));
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "A74: a leaf that fails is skipped");
}

#[test]
fn a_leaf_has_its_own_connections_only_where_it_is_used() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    assert_eq!(world.log(), "create 1, connect 1", "the leaf is no cluster of its own");
}

#[test]
fn aggregates_inside_aggregates_are_no_clusters_of_their_own() {
    // As the dependency manager flattens outer → inner → x, y.
    let outer = edit_cluster(aggregate("outer", &["x", "y"]), |cluster| {
        cluster.kind = ClusterKind::Aggregate { clusters: vec!["inner".into()] };
    });
    let mut world = World::new();
    world.update(config([outer, aggregate("inner", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    let Content::Works(works) = &world.snapshot.content else { panic!("there is a configuration") };
    assert!(works.others.is_empty(), "{:?}", works.others);
    world.ready(1);
    assert_eq!(world.rpc(), "send 1", "L-20");
}

#[test]
fn clusters_with_the_same_endpoints_share_connections() {
    let mut world = World::new();
    world.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=1")]));
    assert_eq!(world.log(), "create 1, connect 1");
    world.ready(1);
    assert_eq!((world.rpc_to("/a/m"), world.rpc_to("/b/m")), ("send 1".into(), "send 1".into()));
    world.update(routed([route("/c", "c")], [eds("c", "x=1")]));
    assert_eq!((world.rpc_to("/c/m").as_str(), world.log().as_str()), ("send 1", ""), "moved without a new connection");
}

#[test]
fn a_leaf_that_is_an_aggregate_fails_instead_of_going_round_in_circles() {
    let mut world = World::new();
    let mut cluster = aggregate("agg", &["agg"]);
    cluster.children = ClusterChildren::Aggregate(vec![Arc::clone(&cluster.name)]);
    world.update(config([cluster]));
    assert_eq!(world.rpc(), "fail 14: cluster \"agg\": leaf cluster \"agg\" is itself an aggregate");
}
