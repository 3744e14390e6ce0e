//! Trouble with servers puts nothing unusable in force: only an answer completes what is new (A57, A74, promise 1).

use super::*;
use crate::invalid::Invalid;

fn transient() -> Vec<ErrorKind> {
    let from_server = |code| ErrorKind::FromServer { code, message: "later".to_owned() };
    let mut kinds = vec![ErrorKind::Unreachable("cable cut".to_owned()), ErrorKind::TimedOut { after: seconds(30) }];
    kinds.extend([1, 2, 4, 8, 13, 14, 16].map(from_server));
    kinds
}

fn answers() -> Vec<ErrorKind> {
    let from_server = |code| ErrorKind::FromServer { code, message: "no".to_owned() };
    vec![
        ErrorKind::InvalidName("spaces".to_owned()),
        ErrorKind::UnknownAuthority("elsewhere".to_owned()),
        ErrorKind::DoesNotExist { after: seconds(15) },
        ErrorKind::Deleted,
        from_server(5),
        from_server(7),
    ]
}

/// Listener with RDS `r1` and cluster `a`.
fn serving_by_rds() -> World {
    let mut world = World::new();
    world.rds("r1");
    world.routes("r1", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world
}

#[test]
fn a_server_that_dies_between_listener_and_routes_fails_nothing() {
    for kind in transient() {
        let mut world = serving_by_rds();
        world.rds("r2");
        world.take();
        world.fail_with(RDS, "r2", kind);
        assert_eq!(world.take(), "{a=1}"); // with a note
        assert!(world.note("a").contains("RouteConfiguration \"r2\""), "{}", world.note("a"));
        world.endpoints("a", &[2]);
        world.routes("r2", &["a"]);
        assert_eq!(world.take(), "{a=2} {a=2} -RDS r1");
        assert_eq!(world.note("a"), "xDS node ID:node-1");
    }
}

#[test]
fn a_server_that_dies_between_routes_and_clusters_fails_nothing() {
    for kind in transient() {
        let mut world = World::serving(&["a"]);
        world.inline(&["b"]);
        world.take();
        world.fail_with(CDS, "b", kind.clone());
        world.endpoints("a", &[2]);
        assert_eq!(world.take(), "{a=2}");
        world.eds("b");
        world.fail_with(EDS, "b", kind.clone());
        assert_eq!(world.take(), "+EDS b");
        world.endpoints_in("b", &["l"]);
        world.fail_with(LEDS, "l", kind);
        assert_eq!(world.take(), "+LEDS l");
        world.collection("l", &[3]);
        assert_eq!(world.take(), "{b=3} -CDS a -EDS a");
    }
}

#[test]
fn an_answer_completes_what_is_new() {
    for kind in answers() {
        let mut world = serving_by_rds();
        world.rds("r2");
        world.fail_with(RDS, "r2", kind.clone());
        assert_eq!(world.take(), "+RDS r2 error RDS r2 -RDS r1");

        let mut world = World::serving(&["a"]);
        world.inline(&["a", "b", "c"]);
        world.eds("b");
        world.fail_with(EDS, "b", kind.clone());
        world.fail_with(CDS, "c", kind);
        assert_eq!(world.take(), "+CDS b +CDS c +EDS b {a=1 b=none c!}");
    }
}

#[test]
fn a_rejection_of_something_never_had_is_an_answer() {
    let invalid = Invalid::one("lb_policy", "unknown");
    let mut world = World::serving(&["a"]);
    world.inline(&["a", "b"]);
    world.fail_with(CDS, "b", ErrorKind::Rejected { version: "2".into(), invalid });
    assert_eq!(world.take(), "+CDS b {a=1 b!}");
}

#[test]
fn an_answer_may_come_after_the_trouble() {
    let mut world = World::serving(&["a"]);
    world.inline(&["a", "b"]);
    world.fail(CDS, "b");
    world.deny(CDS, "b");
    assert_eq!(world.take(), "+CDS b {a=1 b!}");
}

#[test]
fn a_cluster_in_use_stays_as_it_is_and_says_why() {
    // EDS, LEDS and DNS, below the routes and below an aggregate.
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.eds_named("a", "new");
    world.fail(EDS, "new");
    assert_eq!(world.take(), "+EDS new {a=1 agg>a}");
    assert!(world.note("a").contains("ClusterLoadAssignment \"new\""), "{}", world.note("a"));
    world.endpoints_in("new", &["l"]);
    world.fail(LEDS, "l");
    assert_eq!(world.take(), "+LEDS l {a=1 agg>a} {a=1 agg>a}");
    assert!(world.note("a").contains("LbEndpointCollection \"l\""), "{}", world.note("a"));
    world.logical_dns("a", "host");
    world.answer("host", Err("no name server"));
    assert!(world.take().ends_with("{a=1 agg>a}"));
    assert!(world.note("a").contains("no name server"), "{}", world.note("a"));
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2 agg>a}");
    world.aggregate("agg", &["x"]);
    world.fail(CDS, "x");
    world.endpoints("a", &[3]);
    assert_eq!(world.take(), "+CDS x {a=3 agg>a}");
    world.deny(CDS, "x");
    assert_eq!(world.take(), "{agg! x!} -CDS a -EDS a");
}

#[test]
fn a_subscribed_aggregate_stays_as_it_is_too() {
    let mut world = World::serving(&["a"]);
    world.subscribe("agg");
    world.aggregate("agg", &["b"]);
    world.eds("b");
    world.endpoints("b", &[2]);
    world.take();
    world.aggregate("agg", &["x"]);
    world.fail(CDS, "x");
    world.endpoints("b", &[3]);
    assert_eq!(world.take(), "+CDS x {a=1 agg>b b=3}");
    world.eds("x");
    world.endpoints("x", &[4]);
    assert!(world.take().ends_with("{a=1 agg>x x=4} -CDS b -EDS b"));
}

#[test]
fn without_a_configuration_errors_reach_rpcs_at_once() {
    for kind in transient() {
        let mut world = World::new();
        world.fail_with(LDS, "l", kind.clone());
        assert_eq!(world.take(), "error LDS l");
        world.rds("r");
        world.fail_with(RDS, "r", kind.clone());
        assert_eq!(world.take(), "+RDS r error RDS r");
        world.routes("r", &["a", "b", "c"]);
        world.fail_with(CDS, "a", kind.clone());
        world.eds("b");
        world.fail_with(EDS, "b", kind.clone());
        world.eds("c");
        world.endpoints_in("c", &["l1", "l2"]);
        world.collection("l1", &[1]);
        world.fail_with(LEDS, "l2", kind);
        assert!(world.take().ends_with("{a! b=none c=1}"));
    }
}

#[test]
fn what_waited_for_a_server_fails_when_nothing_is_in_force_any_more() {
    let mut world = World::serving(&["a"]);
    world.inline(&["b"]);
    world.fail(CDS, "b");
    world.deny(LDS, "l");
    assert_eq!(world.take(), "+CDS b error LDS l");
    world.inline(&["b"]);
    assert_eq!(world.take(), "{b!} -CDS a -EDS a");
}

#[test]
fn what_is_missing_already_holds_nothing_back() {
    // Started while a server was away: what it lacks it may go on lacking.
    let mut world = World::routed(&["a", "b", "c", "d"]);
    world.fail(CDS, "a");
    world.eds("b");
    world.fail(EDS, "b");
    world.eds("c");
    world.endpoints_in("c", &["l1", "l2"]);
    world.collection("l1", &[1]);
    world.fail(LEDS, "l2");
    world.logical_dns("d", "host");
    world.answer("host", Err("no name server"));
    assert!(world.take().ends_with("{a! b=none c=1 d=none}"));
    world.collection("l1", &[2]);
    assert_eq!(world.take(), "{a! b=none c=2 d=none}");
    world.endpoints_in("c", &["l3", "l2"]);
    world.collection("l3", &[3]);
    assert_eq!(world.take(), "+LEDS l3 {a! b=none c=3 d=none} -LEDS l1");
    world.inline(&["a", "b", "c", "d", "e"]);
    world.eds("e");
    world.endpoints("e", &[4]);
    assert_eq!(world.take(), "+CDS e +EDS e {a! b=none c=3 d=none e=4}");
    world.fail_with(CDS, "a", ErrorKind::TimedOut { after: seconds(30) });
    assert!(world.cluster_error("a").to_string().contains("was not sent"));
}

#[test]
fn a_name_that_cannot_be_looked_up_is_awaited_up_to_a_point() {
    let mut world = World::serving(&["a"]);
    world.inline(&["d"]);
    world.logical_dns("d", "host");
    world.take();
    let mut waited = Duration::ZERO;
    for pause in [1_000, 1_600, 2_560, 4_096, 6_554] {
        world.answer("host", Err("no name server"));
        assert_eq!(world.take(), "", "after {waited:?}");
        world.pass(Duration::from_millis(pause));
        waited += Duration::from_millis(pause);
        assert_eq!(world.take(), "?host:80");
    }
    assert_eq!(waited.as_secs(), 15);
    world.answer("host", Err("no name server"));
    assert_eq!(world.take(), "{d=none} -CDS a -EDS a");

    let mut world = World::serving(&["a"]);
    world.inline(&["d"]);
    world.logical_dns("d", "host");
    world.answer("host", Ok(&[])); // an answer
    assert_eq!(world.take(), "+CDS d ?host:80 {d=none} -CDS a -EDS a");
}

#[test]
fn a_switch_to_a_server_that_dies_leaves_what_is_in_force() {
    // The bound of a switch publishes a mixture; it does not make trouble an answer.
    let mut world = World::serving(&["a"]);
    world.switch("B");
    world.inline(&["a", "b"]);
    world.fail(CDS, "b");
    world.endpoints("a", &[2]);
    world.pass(seconds(60));
    assert_eq!(world.take(), "+CDS b {a=2}mixed");
}

/// D9, promise 1: a leaf that is in force with a collection missing has no trouble any more that anybody could wait for.
#[test]
fn what_is_in_force_with_its_trouble_keeps_no_aggregate_back() {
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a", "b"]);
    world.eds("a");
    world.endpoints_in("a", &["g", "h"]);
    world.collection("g", &[1]);
    world.fail(CDS, "b");
    world.fail(LEDS, "h");
    assert!(world.take().ends_with("{a=1 agg>a b!}"), "{:?}", world.config);
    world.eds("b");
    world.endpoints("b", &[2]);
    assert!(world.take().ends_with("{a=1 agg>a,b b=2}"), "{:?}", world.config);
}

/// Promise 1: new routes do not wait for a leaf that an aggregate in force lacks already.
#[test]
fn an_aggregate_in_force_with_a_leaf_missing_holds_nothing_back() {
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a", "b"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.fail(CDS, "b");
    assert!(world.take().ends_with("{a=1 agg>a b!}"), "{:?}", world.config);
    // The trouble goes on, and is another one.
    world.fail_with(CDS, "b", ErrorKind::TimedOut { after: seconds(30) });
    world.take();
    world.inline(&["agg", "c"]);
    world.eds("c");
    world.endpoints("c", &[3]);
    assert!(world.take().ends_with("{a=1 agg>a b! c=3}"), "{:?}", world.config);
    // It still does not take the place of what can be used.
    world.aggregate("agg", &["b"]);
    assert_eq!(world.take(), "");
}

/// Work is bounded by what is there: a cluster that waits counts each server once, however often it is built.
#[test]
fn a_cluster_that_waits_does_not_grow() {
    let mut world = World::serving(&["a"]);
    world.eds_named("a", "other");
    world.take();
    let before = world.manager.clone();
    world.ambient(EDS, "a");
    world.clear(EDS, "a");
    assert_eq!(world.manager, before);
}
