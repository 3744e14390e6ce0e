//! Clusters as routes name them: errors, and aggregates.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::deps::{ClusterChildren, ClusterError, ClusterErrorKind};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::tls::{Roots, UpstreamTls};

use crate::snapshot::Content;
use crate::testbed::{Testbed, aggregate, broken, config, dns, edit_cluster, eds, route, routed, with_policy};
use crate::{Decision, Observation, Rpc, XdsSecurity};

#[test]
fn an_error_takes_the_place_of_a_cluster_at_once() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.log();
    let error = ClusterError { cluster: "c".into(), kind: ClusterErrorKind::TooDeep };
    let text = error.to_string();
    bed.update(broken(config([eds("c", "a=1")]), error));
    assert_eq!(bed.rpc(), format!("fail 14: cluster \"c\": {text}"), "L-56");
    assert_eq!(bed.log(), "release 1", "L-56");
    bed.update_endpoints("a=1");
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn an_error_of_one_cluster_leaves_others_alone() {
    let routes = [route("/a", "a"), route("/b", "b")];
    let mut bed = Testbed::new();
    bed.update(routed(routes.clone(), [eds("a", "x=1"), eds("b", "x=2")]));
    bed.ready(1);
    bed.ready(2);
    let error = ClusterError { cluster: "b".into(), kind: ClusterErrorKind::TooDeep };
    bed.update(broken(routed(routes, [eds("a", "x=1")]), error));
    assert_eq!(bed.rpc_to("/a/m"), "send 1", "L-14, L-21");
    assert!(bed.rpc_to("/b/m").starts_with("fail 14"), "L-14");
}

/// A29: told when it begins, not with every update.
#[test]
fn a_tls_context_that_is_not_followed_is_told_once() {
    let secured = |endpoints| edit_cluster(eds("c", endpoints), |cluster| cluster.tls = Some(Arc::new(tls())));
    let told = Observation::SecurityIgnored { cluster: "c".into() };
    let mut bed = Testbed::new();
    bed.update(config([eds("c", "a=1")]));
    assert_eq!(bed.helper.observations, []);
    bed.update(config([secured("a=1")]));
    bed.update(config([secured("a=1,2")]));
    assert_eq!(bed.helper.observations, std::slice::from_ref(&told));
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "as in gRPC with credentials that are not for xDS");
    bed.update(config([eds("c", "a=1")]));
    bed.update(config([secured("a=1")]));
    assert_eq!(bed.helper.observations, [told.clone(), told]);
}

/// A cluster that cannot be used as it asks is as good as one that cannot be had.
#[test]
fn a_tls_context_that_is_not_followed_is_refused_where_security_is_required() {
    let secured = |name, endpoints| edit_cluster(eds(name, endpoints), |cluster| cluster.tls = Some(Arc::new(tls())));
    let mut bed = Testbed::new();
    bed.tree = bed.tree.with_security(XdsSecurity::Refuse);
    bed.update(config([eds("c", "a=1")]));
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
    bed.log();
    bed.update(config([secured("c", "a=1")]));
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": cluster \"c\" asks for TLS in its transport_socket, which the credentials of this \
         channel do not follow, and the channel requires xDS security"
    );
    assert_eq!(bed.log(), "release 1", "nothing is sent any more");
    assert_eq!(bed.helper.observations, [], "nothing was ignored");
    bed.update(config([aggregate("agg", &["x", "y"]), secured("x", "a=1"), eds("y", "a=2")]));
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "an aggregate goes on to its next leaf");
}

/// A29: another TLS context means other connections, and RPCs wait for them rather than take those from before.
#[test]
fn a_tls_context_that_is_followed_is_never_served_by_other_connections() {
    let asks = |name, server: &str| {
        let tls = UpstreamTls { sni: Some(server.to_owned()), ..tls() };
        edit_cluster(eds(name, "a=1"), |cluster| cluster.tls = Some(Arc::new(tls)))
    };
    let mut bed = Testbed::new();
    bed.tree = bed.tree.with_security(XdsSecurity::Follow);
    bed.update(config([eds("c", "a=1")]));
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "in plaintext: nothing else was asked for");
    bed.log();
    bed.update(config([asks("c", "100")]));
    assert_eq!(bed.log(), "create 101, connect 101, release 1");
    assert_eq!(bed.outcome(), "wait", "not on the connection in plaintext");
    bed.ready(101);
    assert_eq!(bed.rpc(), "send 101");
    bed.update(config([asks("c", "200")]));
    assert_eq!(bed.outcome(), "wait", "not on the connection to another server");
    bed.ready(201);
    bed.log();
    bed.update(config([aggregate("c", &["l"]), asks("l", "300")]));
    assert_eq!(bed.outcome(), "wait", "the same where a cluster becomes an aggregate");
    bed.ready(301);
    bed.update(config([aggregate("c", &["l"]), asks("l", "400")]));
    assert_eq!(bed.outcome(), "wait", "and inside one");
    bed.ready(401);
    assert_eq!(bed.rpc(), "send 401");
    bed.update(config([eds("c", "a=1")]));
    assert_eq!(bed.outcome(), "wait", "nor does TLS serve where plaintext is asked for");
    assert_eq!(bed.helper.observations, [], "nothing was ignored");
}

/// A29: which endpoint it is does not matter, only how it is to be reached.
#[test]
fn clusters_with_different_tls_share_no_connection() {
    let asks = |name, server: Option<&str>| {
        let tls = UpstreamTls { sni: server.map(str::to_owned), ..tls() };
        edit_cluster(eds(name, "a=1"), |cluster| cluster.tls = Some(Arc::new(tls)))
    };
    let routes = [route("/a", "a"), route("/b", "b"), route("/c", "c"), route("/d", "d")];
    let mut bed = Testbed::new();
    bed.tree = bed.tree.with_security(XdsSecurity::Follow);
    bed.update(routed(
        routes,
        [asks("a", Some("100")), asks("b", Some("200")), asks("c", Some("100")), eds("d", "a=1")],
    ));
    [1, 101, 201].into_iter().for_each(|port| bed.ready(port));
    let sent: Vec<_> = ["/a/m", "/b/m", "/c/m", "/d/m"].map(|path| bed.rpc_to(path)).into();
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
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), dns("y", "a=2")]));
    assert_eq!(bed.log(), "create 1, connect 1", "L-61, L-64");
    bed.fail(1);
    assert_eq!(bed.log(), "create 2, connect 2", "L-61");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
    bed.idle(1);
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "L-61");
}

#[test]
fn each_leaf_of_an_aggregate_has_its_own_policy_and_its_rpcs_its_name() {
    let pick_first = |cluster| with_policy(cluster, LbPolicy::PickFirst { shuffle: false });
    let mut bed = Testbed::new();
    let aggregate = pick_first(aggregate("agg", &["x", "y"]));
    bed.update(config([aggregate, eds("x", "a=1,2"), pick_first(eds("y", "a=3,4"))]));
    assert!(bed.log().ends_with("connect 1, connect 2"), "L-44: LoadBalancingPolicyComesFromUnderlyingCluster");
    bed.ready(1);
    let leaf_of = |bed: &mut Testbed| match bed
        .snapshot
        .decide(Rpc { path: "/s/m", headers: &HeaderMap::new() }, &mut bed.script)
    {
        Decision::Send(to) => (to.cluster.to_string(), to.origin.cluster.to_string()),
        Decision::Wait(failure, _) | Decision::Fail(failure) => {
            ("not sent".into(), failure.cluster.expect("a leaf").to_string())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(leaf_of(&mut bed), ("agg".into(), "x".into()), "L-62");
    bed.idle(1);
    bed.fail(1);
    bed.log();
    bed.fail(2);
    assert!(bed.log().ends_with("connect 3"), "L-44: the second leaf takes the first address that answers");
    assert_eq!(leaf_of(&mut bed), ("not sent".into(), "y".into()), "L-62, S-64: of a pick that waits");
    bed.ready(3);
    assert_eq!(leaf_of(&mut bed), ("agg".into(), "y".into()), "L-62");
}

#[test]
fn inside_an_aggregate_all_priorities_of_a_leaf_come_before_the_next_leaf() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1|b=2"), eds("y", "a=3")]));
    bed.fail(1);
    assert!(!bed.helper.live.contains_key(&3));
    bed.fail(2);
    assert!(bed.helper.live.contains_key(&3), "L-61");
    bed.fail(3);
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"agg\": leaf \"y\": priority 0 of 1: locality a: connections to all 1 endpoints failing; \
         last error: 10.0.0.1:3: refused (xDS node ID:n)",
        "L-200"
    );
}

#[test]
fn a_slow_leaf_is_waited_for_ten_seconds_whatever_its_priorities_do() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1|b=2"), eds("y", "a=3")]));
    bed.advance(Duration::from_secs(9));
    bed.fail(1);
    bed.advance(Duration::from_secs(1));
    assert!(bed.helper.live.contains_key(&3), "the outer timer is not restarted by the inner priority");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "the inner one switches back when it is ready");
}

#[test]
fn a_changed_leaf_is_updated_inside_its_aggregate_only() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    bed.ready(1);
    bed.log();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1,3"), eds("y", "a=2")]));
    assert_eq!(bed.log(), "create 3, connect 3");
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn leaves_that_change_places_keep_their_connections() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    bed.fail(1);
    bed.ready(2);
    bed.log();
    bed.update(config([aggregate("agg", &["y", "x"]), eds("x", "a=1"), eds("y", "a=2")]));
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", ""), "L-61: known by name");
}

#[test]
fn a_broken_leaf_is_passed_over() {
    let mut bed = Testbed::new();
    let error = ClusterError { cluster: "x".into(), kind: ClusterErrorKind::TooDeep };
    bed.update(broken(config([aggregate("agg", &["x", "y"]), eds("y", "a=2")]), error));
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "A74: a leaf that fails is skipped");
}

#[test]
fn a_leaf_has_its_own_connections_only_where_it_is_used() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    assert_eq!(bed.log(), "create 1, connect 1", "the leaf is no cluster of its own");
}

#[test]
fn aggregates_inside_aggregates_are_no_clusters_of_their_own() {
    // As the dependency manager flattens outer → inner → x, y.
    let outer = edit_cluster(aggregate("outer", &["x", "y"]), |cluster| {
        cluster.kind = ClusterKind::Aggregate { clusters: vec!["inner".into()] };
    });
    let mut bed = Testbed::new();
    bed.update(config([outer, aggregate("inner", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    let Content::Works(works) = &bed.snapshot.content else { panic!("there is a configuration") };
    assert!(works.others.is_empty(), "{:?}", works.others);
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "L-20");
}

#[test]
fn clusters_with_the_same_endpoints_share_connections() {
    let mut bed = Testbed::new();
    bed.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=1")]));
    assert_eq!(bed.log(), "create 1, connect 1");
    bed.ready(1);
    assert_eq!((bed.rpc_to("/a/m"), bed.rpc_to("/b/m")), ("send 1".into(), "send 1".into()));
    bed.update(routed([route("/c", "c")], [eds("c", "x=1")]));
    assert_eq!((bed.rpc_to("/c/m").as_str(), bed.log().as_str()), ("send 1", ""), "moved without a new connection");
}

#[test]
fn a_leaf_that_is_an_aggregate_fails_instead_of_going_round_in_circles() {
    let mut bed = Testbed::new();
    let mut cluster = aggregate("agg", &["agg"]);
    cluster.children = ClusterChildren::Aggregate(vec![Arc::clone(&cluster.name)]);
    bed.update(config([cluster]));
    assert_eq!(bed.rpc(), "fail 14: cluster \"agg\": leaf cluster \"agg\" is itself an aggregate");
}
