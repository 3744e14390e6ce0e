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
fn serving_by_rds() -> Testbed {
    let mut bed = Testbed::new();
    bed.rds("r1");
    bed.routes("r1", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed
}

#[test]
fn a_server_that_dies_between_listener_and_routes_fails_nothing() {
    for kind in transient() {
        let mut bed = serving_by_rds();
        bed.rds("r2");
        bed.take();
        bed.fail_with(RDS, "r2", kind);
        assert_eq!(bed.take(), "{a=1}"); // with a note
        assert!(bed.note("a").contains("RouteConfiguration \"r2\""), "{}", bed.note("a"));
        bed.endpoints("a", &[2]);
        bed.routes("r2", &["a"]);
        assert_eq!(bed.take(), "{a=2} {a=2} -RDS r1");
        assert_eq!(bed.note("a"), "xDS node ID:node-1");
    }
}

#[test]
fn a_server_that_dies_between_routes_and_clusters_fails_nothing() {
    for kind in transient() {
        let mut bed = Testbed::serving(&["a"]);
        bed.inline(&["b"]);
        bed.take();
        bed.fail_with(CDS, "b", kind.clone());
        bed.endpoints("a", &[2]);
        assert_eq!(bed.take(), "{a=2}");
        bed.eds("b");
        bed.fail_with(EDS, "b", kind.clone());
        assert_eq!(bed.take(), "+EDS b");
        bed.endpoints_in("b", &["l"]);
        bed.fail_with(LEDS, "l", kind);
        assert_eq!(bed.take(), "+LEDS l");
        bed.collection("l", &[3]);
        assert_eq!(bed.take(), "{b=3} -CDS a -EDS a");
    }
}

#[test]
fn an_answer_completes_what_is_new() {
    for kind in answers() {
        let mut bed = serving_by_rds();
        bed.rds("r2");
        bed.fail_with(RDS, "r2", kind.clone());
        assert_eq!(bed.take(), "+RDS r2 error RDS r2 -RDS r1");

        let mut bed = Testbed::serving(&["a"]);
        bed.inline(&["a", "b", "c"]);
        bed.eds("b");
        bed.fail_with(EDS, "b", kind.clone());
        bed.fail_with(CDS, "c", kind);
        assert_eq!(bed.take(), "+CDS b +CDS c +EDS b {a=1 b=none c!}");
    }
}

#[test]
fn a_rejection_of_something_never_had_is_an_answer() {
    let invalid = Invalid::one("lb_policy", "unknown");
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["a", "b"]);
    bed.fail_with(CDS, "b", ErrorKind::Rejected { version: "2".into(), invalid });
    assert_eq!(bed.take(), "+CDS b {a=1 b!}");
}

#[test]
fn an_answer_may_come_after_the_trouble() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["a", "b"]);
    bed.fail(CDS, "b");
    bed.deny(CDS, "b");
    assert_eq!(bed.take(), "+CDS b {a=1 b!}");
}

#[test]
fn a_cluster_in_use_stays_as_it_is_and_says_why() {
    // EDS, LEDS and DNS, below the routes and below an aggregate.
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.eds_named("a", "new");
    bed.fail(EDS, "new");
    assert_eq!(bed.take(), "+EDS new {a=1 agg>a}");
    assert!(bed.note("a").contains("ClusterLoadAssignment \"new\""), "{}", bed.note("a"));
    bed.endpoints_in("new", &["l"]);
    bed.fail(LEDS, "l");
    assert_eq!(bed.take(), "+LEDS l {a=1 agg>a} {a=1 agg>a}");
    assert!(bed.note("a").contains("LbEndpointCollection \"l\""), "{}", bed.note("a"));
    bed.logical_dns("a", "host");
    bed.answer("host", Err("no name server"));
    assert!(bed.take().ends_with("{a=1 agg>a}"));
    assert!(bed.note("a").contains("no name server"), "{}", bed.note("a"));
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2 agg>a}");
    bed.aggregate("agg", &["x"]);
    bed.fail(CDS, "x");
    bed.endpoints("a", &[3]);
    assert_eq!(bed.take(), "+CDS x {a=3 agg>a}");
    bed.deny(CDS, "x");
    assert_eq!(bed.take(), "{agg! x!} -CDS a -EDS a");
}

#[test]
fn a_subscribed_aggregate_stays_as_it_is_too() {
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("agg");
    bed.aggregate("agg", &["b"]);
    bed.eds("b");
    bed.endpoints("b", &[2]);
    bed.take();
    bed.aggregate("agg", &["x"]);
    bed.fail(CDS, "x");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "+CDS x {a=1 agg>b b=3}");
    bed.eds("x");
    bed.endpoints("x", &[4]);
    assert!(bed.take().ends_with("{a=1 agg>x x=4} -CDS b -EDS b"));
}

#[test]
fn without_a_configuration_errors_reach_rpcs_at_once() {
    for kind in transient() {
        let mut bed = Testbed::new();
        bed.fail_with(LDS, "l", kind.clone());
        assert_eq!(bed.take(), "error LDS l");
        bed.rds("r");
        bed.fail_with(RDS, "r", kind.clone());
        assert_eq!(bed.take(), "+RDS r error RDS r");
        bed.routes("r", &["a", "b", "c"]);
        bed.fail_with(CDS, "a", kind.clone());
        bed.eds("b");
        bed.fail_with(EDS, "b", kind.clone());
        bed.eds("c");
        bed.endpoints_in("c", &["l1", "l2"]);
        bed.collection("l1", &[1]);
        bed.fail_with(LEDS, "l2", kind);
        assert!(bed.take().ends_with("{a! b=none c=1}"));
    }
}

#[test]
fn what_waited_for_a_server_fails_when_nothing_is_in_force_any_more() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["b"]);
    bed.fail(CDS, "b");
    bed.deny(LDS, "l");
    assert_eq!(bed.take(), "+CDS b error LDS l");
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "{b!} -CDS a -EDS a");
}

#[test]
fn what_is_missing_already_holds_nothing_back() {
    // Started while a server was away: what it lacks it may go on lacking.
    let mut bed = Testbed::routed(&["a", "b", "c", "d"]);
    bed.fail(CDS, "a");
    bed.eds("b");
    bed.fail(EDS, "b");
    bed.eds("c");
    bed.endpoints_in("c", &["l1", "l2"]);
    bed.collection("l1", &[1]);
    bed.fail(LEDS, "l2");
    bed.logical_dns("d", "host");
    bed.answer("host", Err("no name server"));
    assert!(bed.take().ends_with("{a! b=none c=1 d=none}"));
    bed.collection("l1", &[2]);
    assert_eq!(bed.take(), "{a! b=none c=2 d=none}");
    bed.endpoints_in("c", &["l3", "l2"]);
    bed.collection("l3", &[3]);
    assert_eq!(bed.take(), "+LEDS l3 {a! b=none c=3 d=none} -LEDS l1");
    bed.inline(&["a", "b", "c", "d", "e"]);
    bed.eds("e");
    bed.endpoints("e", &[4]);
    assert_eq!(bed.take(), "+CDS e +EDS e {a! b=none c=3 d=none e=4}");
    bed.fail_with(CDS, "a", ErrorKind::TimedOut { after: seconds(30) });
    assert!(bed.cluster_error("a").to_string().contains("was not sent"));
}

#[test]
fn a_name_that_cannot_be_looked_up_is_awaited_up_to_a_point() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["d"]);
    bed.logical_dns("d", "host");
    bed.take();
    let mut waited = Duration::ZERO;
    for pause in [1_000, 1_600, 2_560, 4_096, 6_554] {
        bed.answer("host", Err("no name server"));
        assert_eq!(bed.take(), "", "after {waited:?}");
        bed.pass(Duration::from_millis(pause));
        waited += Duration::from_millis(pause);
        assert_eq!(bed.take(), "?host:80");
    }
    assert_eq!(waited.as_secs(), 15);
    bed.answer("host", Err("no name server"));
    assert_eq!(bed.take(), "{d=none} -CDS a -EDS a");

    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Ok(&[])); // an answer
    assert_eq!(bed.take(), "+CDS d ?host:80 {d=none} -CDS a -EDS a");
}

#[test]
fn a_switch_to_a_server_that_dies_leaves_what_is_in_force() {
    // The bound of a switch publishes a mixture; it does not make trouble an answer.
    let mut bed = Testbed::serving(&["a"]);
    bed.switch("B");
    bed.inline(&["a", "b"]);
    bed.fail(CDS, "b");
    bed.endpoints("a", &[2]);
    bed.pass(seconds(60));
    assert_eq!(bed.take(), "+CDS b {a=2}mixed");
}

/// D9, promise 1: a leaf that is in force with a collection missing has no trouble any more that anybody could wait for.
#[test]
fn what_is_in_force_with_its_trouble_keeps_no_aggregate_back() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a", "b"]);
    bed.eds("a");
    bed.endpoints_in("a", &["g", "h"]);
    bed.collection("g", &[1]);
    bed.fail(CDS, "b");
    bed.fail(LEDS, "h");
    assert!(bed.take().ends_with("{a=1 agg>a b!}"), "{:?}", bed.config);
    bed.eds("b");
    bed.endpoints("b", &[2]);
    assert!(bed.take().ends_with("{a=1 agg>a,b b=2}"), "{:?}", bed.config);
}

/// Promise 1: new routes do not wait for a leaf that an aggregate in force lacks already.
#[test]
fn an_aggregate_in_force_with_a_leaf_missing_holds_nothing_back() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a", "b"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.fail(CDS, "b");
    assert!(bed.take().ends_with("{a=1 agg>a b!}"), "{:?}", bed.config);
    // The trouble goes on, and is another one.
    bed.fail_with(CDS, "b", ErrorKind::TimedOut { after: seconds(30) });
    bed.take();
    bed.inline(&["agg", "c"]);
    bed.eds("c");
    bed.endpoints("c", &[3]);
    assert!(bed.take().ends_with("{a=1 agg>a b! c=3}"), "{:?}", bed.config);
    // It still does not take the place of what can be used.
    bed.aggregate("agg", &["b"]);
    assert_eq!(bed.take(), "");
}

/// Work is bounded by what is there: a cluster that waits counts each server once, however often it is built.
#[test]
fn a_cluster_that_waits_does_not_grow() {
    let mut bed = Testbed::serving(&["a"]);
    bed.eds_named("a", "other");
    bed.take();
    let before = bed.manager.clone();
    bed.ambient(EDS, "a");
    bed.clear(EDS, "a");
    assert_eq!(bed.manager, before);
}
