//! What is in force stays subscribed, and follows its clusters and endpoints, until something new replaces it (A74, L-27).

use super::*;

#[test]
fn the_configuration_in_force_goes_on_hearing_of_its_endpoints() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "+CDS b");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2}"); // b is not a part of it yet
    bed.eds("b");
    bed.endpoints("a", &[3]);
    assert_eq!(bed.take(), "+EDS b {a=3}");
    bed.endpoints("b", &[4]);
    assert_eq!(bed.take(), "{b=4} -CDS a -EDS a");
}

#[test]
fn the_configuration_in_force_goes_on_hearing_of_its_clusters() {
    let mut bed = Testbed::serving(&["a", "c"]);
    bed.inline(&["b"]);
    bed.eds_named("a", "e2");
    assert_eq!(bed.take(), "+CDS b +EDS e2");
    bed.endpoints("e2", &[2]);
    assert_eq!(bed.take(), "{a=2 c=1} -EDS a");
    bed.aggregate("c", &["a"]);
    assert_eq!(bed.take(), "{a=2 c>a} -EDS c");
    bed.inline(&["a", "c"]);
    bed.deny(CDS, "a");
    assert_eq!(bed.take(), "-CDS b {a! c!} -EDS e2");
}

#[test]
fn a_rollback_fetches_nothing_anew() {
    let mut bed = Testbed::new();
    bed.rds("r1");
    bed.routes("r1", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.rds("r2");
    bed.routes("r2", &["b"]);
    bed.eds("b");
    assert_eq!(bed.take(), "+RDS r2 +CDS b +EDS b");
    bed.rds("r1");
    assert_eq!(bed.take(), "-RDS r2 -CDS b -EDS b");
    // Routes that changed while nobody used them are used now.
    bed.rds("r2");
    bed.routes("r1", &["a", "c"]);
    assert_eq!(bed.take(), "+RDS r2");
    bed.rds("r1");
    assert_eq!(bed.take(), "+CDS c -RDS r2");
}

#[test]
fn a_listener_that_overtakes_another_leaves_nothing_behind() {
    // Three pairs at once: in force, complete but for its clusters, and without its routes.
    let mut bed = Testbed::new();
    bed.rds("r1");
    bed.routes("r1", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.rds("r2");
    bed.routes("r2", &["b"]);
    bed.take();
    bed.rds("r3");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "+RDS r3 {a=2}");
    bed.routes("r3", &["a"]);
    assert_eq!(bed.take(), "{a=2} -RDS r1 -RDS r2 -CDS b");
}

#[test]
fn a_cluster_that_moves_to_other_endpoints_follows_the_old_ones_meanwhile() {
    let mut bed = Testbed::serving(&["a"]);
    bed.eds_named("a", "new");
    assert_eq!(bed.take(), "+EDS new");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2}");
    bed.eds("a"); // and back: nothing is fetched anew
    assert_eq!(bed.take(), "-EDS new");
    bed.eds_named("a", "new");
    bed.endpoints("new", &[3]);
    assert_eq!(bed.take(), "+EDS new {a=3} -EDS a");
}

#[test]
fn endpoints_that_move_to_other_collections_follow_the_old_ones_meanwhile() {
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["l1"]);
    bed.collection("l1", &[1]);
    bed.take();
    bed.endpoints_in("a", &["l2"]);
    assert_eq!(bed.take(), "+LEDS l2");
    bed.collection("l1", &[2]);
    assert_eq!(bed.take(), "{a=2}");
    bed.endpoints_in("a", &["l3"]); // overtaken: only what is in force and what is newest stays
    assert_eq!(bed.take(), "+LEDS l3 -LEDS l2");
    bed.collection("l3", &[3]);
    assert_eq!(bed.take(), "{a=3} -LEDS l1");
}

#[test]
fn old_endpoints_that_are_followed_may_move_to_other_collections_too() {
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["l1"]);
    bed.collection("l1", &[1]);
    bed.eds_named("a", "new");
    bed.take();
    bed.endpoints_in("a", &["l2"]);
    bed.collection("l1", &[2]);
    assert_eq!(bed.take(), "+LEDS l2 {a=2}");
    bed.collection("l2", &[3]);
    assert_eq!(bed.take(), "{a=3} -LEDS l1");
    bed.endpoints("new", &[4]);
    assert_eq!(bed.take(), "{a=4} -EDS a -LEDS l2");
}

#[test]
fn a_name_that_is_not_looked_up_yet_leaves_the_old_addresses_in_use() {
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "old");
    bed.answer("old", Ok(&[1]));
    bed.take();
    bed.logical_dns("d", "new");
    bed.pass(seconds(30));
    bed.reresolve();
    bed.answer("old", Ok(&[2]));
    assert_eq!(bed.take(), "?new:80 ?old:80 {d=2}");
    bed.answer("new", Ok(&[3]));
    assert_eq!(bed.take(), "{d=3}");
    bed.pass(seconds(100));
    bed.reresolve();
    assert_eq!(bed.take(), "?new:80");
}

#[test]
fn an_aggregate_follows_its_old_leaves_until_the_new_ones_are_there() {
    let mut bed = Testbed::routed(&["top"]);
    bed.aggregate("top", &["mid"]);
    bed.aggregate("mid", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.aggregate("mid", &["b"]);
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "+CDS b {a=2 mid>a top>a}");
    bed.aggregate("top", &["b"]);
    bed.endpoints("a", &[3]);
    assert_eq!(bed.take(), "{a=2 top>a} -CDS mid {a=3 top>a}");
    bed.eds("b");
    bed.endpoints("b", &[4]);
    assert_eq!(bed.take(), "+EDS b {b=4 top>b} -CDS a -EDS a");
}

#[test]
fn a_leaf_that_is_listed_no_more_is_let_go_when_its_successor_is_denied() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a", "b"]);
    for leaf in ["a", "b"] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[1]);
    }
    bed.take();
    bed.aggregate("agg", &["b", "c"]);
    assert_eq!(bed.take(), "+CDS c");
    bed.deny(CDS, "c");
    assert_eq!(bed.take(), "{agg>b b=1 c!} -CDS a -EDS a");
}

#[test]
fn a_cluster_that_waits_does_not_hold_up_the_others() {
    let mut bed = Testbed::serving(&["a", "b"]);
    bed.eds_named("a", "new");
    bed.eds_named("b", "e");
    bed.endpoints("e", &[2]);
    assert_eq!(bed.take(), "+EDS new +EDS e {a=1 b=2} -EDS b");
}

#[test]
fn new_routes_wait_for_the_newest_of_a_cluster_in_force() {
    // A74: everything that the new routes name, as it is now.
    let mut bed = Testbed::serving(&["a"]);
    bed.eds_named("a", "new");
    bed.inline(&["a", "d"]);
    bed.logical_dns("d", "192.0.2.1");
    assert_eq!(bed.take(), "+EDS new +CDS d");
    bed.endpoints("new", &[2]);
    assert_eq!(bed.take(), "{a=2 d=80} -EDS a");
}

#[test]
fn what_is_in_force_keeps_to_its_own_server_until_the_bound() {
    // C-50: new routes of B wait for a cluster; endpoints of B do not mix with routes of A before the bound.
    let mut bed = Testbed::serving(&["a"]);
    bed.switch("B");
    bed.inline(&["a", "b"]);
    bed.confirmed(CDS, "a");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "+CDS b");
    bed.pass(seconds(15));
    assert_eq!(bed.take(), "{a=2}mixed");
    bed.eds("b");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "+EDS b {a=2 b=3}");
}

#[test]
fn a_cluster_that_only_new_routes_name_any_more_lets_go_of_what_was_in_force() {
    // a is in force below agg, moves to other endpoints and waits for them; new routes that wait as well name it too.
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["l1"]);
    bed.collection("l1", &[1]);
    bed.eds_named("a", "new");
    bed.inline(&["a", "agg", "b"]);
    bed.take();
    bed.deny(CDS, "agg");
    assert_eq!(bed.take(), "{agg!} -EDS a -LEDS l1");
    bed.endpoints("new", &[2]);
    bed.logical_dns("b", "192.0.2.1");
    assert_eq!(bed.take(), "{a=2 agg! b=80}");
}

#[test]
fn an_aggregate_that_only_new_routes_name_any_more_lets_go_of_its_old_leaves() {
    // What its leaf holds on to in turn goes with it.
    let mut bed = Testbed::routed(&["top"]);
    bed.aggregate("top", &["mid"]);
    bed.aggregate("mid", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("mid", &["b"]);
    bed.eds_named("a", "new");
    bed.inline(&["top", "mid", "a"]);
    bed.take();
    bed.deny(CDS, "top");
    assert_eq!(bed.take(), "{top!} -EDS a");
}

#[test]
fn an_aggregate_that_goes_and_moves_away_from_its_leaves_at_once_leaves_nothing_behind() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.logical_dns("a", "192.0.2.1");
    bed.together(|bed| {
        bed.inline(&[]);
        bed.eds_named("agg", "e");
    });
    assert!(bed.config().clusters.is_empty());
    assert_eq!(bed.watched.len(), 1, "{:?}", bed.watched); // the Listener
}

#[test]
fn an_aggregate_that_its_own_old_leaf_leads_back_to_does_not_keep_itself() {
    let mut bed = Testbed::serving(&["a", "agg"]);
    bed.aggregate("agg", &["a"]);
    bed.together(|bed| {
        bed.aggregate("a", &["agg"]);
        bed.eds_named("agg", "e");
    });
    bed.inline(&[]);
    assert!(bed.config().clusters.is_empty());
    assert_eq!(bed.watched.len(), 1, "{:?}", bed.watched); // the Listener
}

#[test]
fn an_aggregate_that_waits_for_one_child_keeps_the_leaf_that_another_one_gives_up() {
    let mut bed = Testbed::routed(&["top"]);
    bed.aggregate("top", &["a", "mid"]);
    bed.aggregate("mid", &["b"]);
    for (name, host) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        bed.logical_dns(name, host);
    }
    bed.eds("a");
    bed.take();
    bed.logical_dns("mid", "192.0.2.3");
    assert_eq!(bed.take(), "{a=80 b=80 mid=80 top>a,b}"); // top still waits for the endpoints of a
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "{a=1 mid=80 top>a,mid} -CDS b");
}

#[test]
fn a_released_cluster_that_waits_is_not_in_force_when_it_is_subscribed_to_again() {
    let mut bed = Testbed::serving(&["s"]);
    bed.subscribe("a");
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.eds_named("a", "new");
    bed.inline(&["a", "b"]);
    bed.take();
    bed.release("a");
    assert_eq!(bed.take(), "{s=1} -EDS a");
    bed.subscribe("a"); // never in the configuration before it is complete (L-17)
    assert_eq!(bed.take(), "");
    bed.endpoints("new", &[2]);
    assert_eq!(bed.take(), "{a=2 s=1}");
}

/// What was released while a switch holds everything back is still in force. Who subscribes to it again uses it as it is
/// now, and not as it was then.
#[test]
fn a_released_cluster_that_is_still_in_force_is_followed_again_when_it_is_subscribed_to() {
    let released = |prepare: fn(&mut Testbed), before: &str| {
        let mut bed = Testbed::new();
        bed.switch("A");
        bed.inline(&["s"]);
        bed.eds("s");
        bed.endpoints("s", &[1]);
        bed.subscribe("a");
        prepare(&mut bed);
        assert!(bed.take().ends_with(before));
        bed.switch("B");
        bed.confirmed(CDS, "s"); // The others are still A's: until then nothing is published.
        bed.release("a");
        assert!(!bed.take().contains('{'));
        bed
    };
    let mut eds = released(
        |bed| {
            bed.eds("a");
            bed.endpoints("a", &[2]);
        },
        "{a=2 s=1}",
    );
    eds.subscribe("a");
    assert_eq!(eds.take(), "+CDS a +EDS a");
    eds.endpoints("a", &[3]);
    eds.eds_named("a", "new"); // It waits for those.
    eds.pass(seconds(15));
    assert_eq!(eds.take(), "+EDS new {a=3 s=1}mixed");

    let mut dns = released(
        |bed| {
            bed.logical_dns("a", "host");
            bed.answer("host", Ok(&[2]));
        },
        "{a=2 s=1}",
    );
    dns.subscribe("a");
    assert_eq!(dns.take(), "+CDS a ?host:80");
    dns.eds_named("a", "new");
    dns.pass(seconds(5));
    dns.confirmed(LDS, "l");
    dns.confirmed(EDS, "s");
    assert_eq!(dns.take(), "+EDS new", "what is not looked up yet is as it was");
    dns.answer("host", Ok(&[3]));
    assert_eq!(dns.take(), "{a=3 s=1}");

    let mut leaves = released(
        |bed| {
            bed.aggregate("a", &["s", "b"]);
            bed.eds("b");
            bed.endpoints("b", &[2]);
        },
        "{a>s,b b=2 s=1}",
    );
    leaves.subscribe("a");
    assert_eq!(leaves.take(), "+CDS a +CDS b +EDS b");
}

#[test]
fn a_cluster_that_an_aggregate_waits_with_is_in_force_once_it_is_subscribed_to() {
    let mut bed = Testbed::routed(&[]);
    bed.subscribe("agg");
    bed.aggregate("agg", &["a", "b"]);
    assert_eq!(bed.take(), "+CDS agg +CDS a +CDS b");
    bed.subscribe("a");
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "+EDS a {a=1}"); // agg still waits for b
}

#[test]
fn a_leaf_that_one_aggregate_waits_with_is_in_force_once_another_one_lists_it() {
    let mut bed = Testbed::serving(&["x", "agg"]);
    bed.aggregate("agg", &["n", "m"]);
    bed.eds("n");
    bed.endpoints("n", &[2]);
    assert_eq!(bed.take(), "+CDS n +CDS m +EDS n");
    bed.aggregate("x", &["n"]);
    assert_eq!(bed.take(), "{agg=1 n=2 x>n} -EDS x");
}

/// What a server does that takes something away.
fn take_away(bed: &mut Testbed, resource_type: ResourceType, name: &str) {
    bed.fail_with(resource_type, name, ErrorKind::Deleted);
}

#[test]
fn a_cluster_that_new_routes_do_without_is_not_taken_away_before_they_are_used() {
    // C-52, D-35: the routes of the server that took over are incomplete, and it deletes what they do not need.
    let mut bed = Testbed::serving(&["a"]);
    bed.switch("B");
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "+CDS b");
    take_away(&mut bed, CDS, "a");
    assert_eq!(bed.take(), "{a=1}");
    assert!(bed.note("a").contains("deleted"), "{}", bed.note("a"));
    bed.endpoints("a", &[2]); // still A's routes: B's endpoints wait for the bound (D-18)
    bed.eds("b");
    assert_eq!(bed.take(), "+EDS b");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "{b=3} -CDS a -EDS a");
}

#[test]
fn endpoints_that_new_routes_do_without_are_not_taken_away_before_they_are_used() {
    let mut bed = Testbed::serving(&["a"]);
    bed.inline(&["b"]);
    take_away(&mut bed, EDS, "a");
    assert_eq!(bed.take(), "+CDS b");
    bed.logical_dns("b", "192.0.2.1");
    assert_eq!(bed.take(), "{b=80} -CDS a -EDS a");
}

#[test]
fn endpoints_that_a_cluster_moves_away_from_are_not_taken_away_before_the_others_are_there() {
    let mut bed = Testbed::serving(&["a"]);
    bed.eds_named("a", "new");
    take_away(&mut bed, EDS, "a");
    assert_eq!(bed.take(), "+EDS new {a=1}");
    bed.endpoints("new", &[2]);
    assert_eq!(bed.take(), "{a=2} -EDS a");
}

#[test]
fn a_leaf_that_its_aggregate_moves_away_from_is_not_taken_away_before_the_others_are_there() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("agg", &["b"]);
    bed.take();
    take_away(&mut bed, CDS, "a");
    assert_eq!(bed.take(), "{a=1 agg>a}");
    bed.logical_dns("b", "192.0.2.1");
    assert_eq!(bed.take(), "{agg>b b=80} -CDS a -EDS a");
}

#[test]
fn an_aggregate_that_new_routes_do_without_is_not_taken_away_before_they_are_used() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.inline(&["b"]);
    bed.take();
    take_away(&mut bed, CDS, "agg");
    take_away(&mut bed, CDS, "a");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=1 agg>a} {a=2 agg>a}");
    bed.logical_dns("b", "192.0.2.1");
    assert_eq!(bed.take(), "{b=80} -CDS a -CDS agg -EDS a");
}

#[test]
fn a_cluster_that_was_taken_away_fails_once_nothing_replaces_it() {
    // It is kept for the sake of what comes next, and no longer: new routes name it after all, an RPC still holds it, or
    // there is no configuration any more.
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("a");
    bed.inline(&["b"]);
    take_away(&mut bed, CDS, "a");
    assert_eq!(bed.take(), "+CDS b {a=1}");
    let mut back = bed.clone();
    back.inline(&["a"]);
    assert_eq!(back.take(), "{a!} -CDS b -EDS a");
    let mut held = bed.clone();
    held.logical_dns("b", "192.0.2.1");
    assert_eq!(held.take(), "{a! b=80} -EDS a");
    bed.deny(LDS, "l");
    assert_eq!(bed.take(), "error LDS l -EDS a");
}

#[test]
fn a_leaf_that_a_subscribed_aggregate_still_names_is_taken_away_at_once() {
    // No routes are awaited: nothing else would come in its place.
    let mut bed = Testbed::routed(&[]);
    bed.subscribe("agg");
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.together(|bed| {
        bed.aggregate("agg", &["b", "a"]);
        take_away(bed, CDS, "a");
    });
    assert_eq!(bed.take(), "+CDS b {a! agg>a} -EDS a");
    bed.logical_dns("b", "192.0.2.1");
    assert_eq!(bed.take(), "{a! agg>b b=80}");
}

/// D-35: the routes in force still lead to it, and the aggregate waits for what takes its place.
#[test]
fn a_leaf_that_its_aggregate_moves_away_from_stays_though_an_rpc_subscribes_to_it() {
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.subscribe("a");
    bed.aggregate("agg", &["b"]);
    bed.take();
    take_away(&mut bed, CDS, "a");
    assert_eq!(bed.take(), "{a=1 agg>a}");
    bed.logical_dns("b", "192.0.2.1");
    assert_eq!(bed.take(), "{a! agg>b b=80} -EDS a");
}

/// What was kept for the sake of an aggregate that moves away from it fails once another one that an RPC wants names it:
/// nothing takes its place there.
#[test]
fn a_leaf_that_was_taken_away_fails_once_a_subscription_leads_to_it() {
    let mut bed = Testbed::routed(&[]);
    bed.subscribe("agg");
    bed.subscribe("other");
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("agg", &["b"]);
    bed.take();
    take_away(&mut bed, CDS, "a");
    assert_eq!(bed.take(), "{a=1 agg>a}");
    bed.aggregate("other", &["a"]);
    assert_eq!(bed.take(), "{a! agg>a other!} -EDS a");
}

/// New routes that are awaited take the place of those in force, and not of what only a subscription leads to: a leaf that
/// its aggregate waited for is not kept by that.
#[test]
fn a_leaf_of_a_subscribed_aggregate_fails_though_new_routes_are_awaited() {
    let mut bed = Testbed::routed(&[]);
    bed.subscribe("agg");
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.inline(&["n"]);
    bed.logical_dns("a", "host");
    bed.take();
    bed.answer("host", Ok(&[]));
    assert_eq!(bed.take(), "{a=none agg>a} -EDS a");
}

/// D-21: what is in force only for a subscription holds no switch back, also while its aggregate waits for other leaves.
#[test]
fn a_leaf_that_a_subscribed_aggregate_holds_on_to_does_not_hold_a_switch_back() {
    let mut bed = Testbed::routed(&[]);
    bed.switch("A");
    bed.subscribe("agg");
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("agg", &["b"]);
    bed.switch("B");
    bed.inline(&["c"]);
    bed.eds("c");
    bed.take();
    bed.endpoints("c", &[2]);
    bed.endpoints("c", &[3]);
    assert_eq!(bed.take(), "{a=1 agg>a c=2} {a=1 agg>a c=3}");
}

/// D-20: while a switch holds newer endpoints back, the collections of those in force stay watched, whatever the cluster
/// has come to meanwhile.
#[test]
fn collections_in_force_stay_watched_while_a_switch_holds_newer_ones_back() {
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["l1"]);
    bed.collection("l1", &[1]);
    bed.take();
    bed.switch("B");
    bed.endpoints_in("a", &["l2"]);
    bed.collection("l2", &[2]);
    bed.logical_dns("a", "host");
    assert_eq!(bed.take(), "+LEDS l2 ?host:80");
    // Back to what is in force: it was never lost.
    bed.collection("l1", &[3]);
    bed.endpoints_in("a", &["l1"]);
    assert_eq!(bed.take(), "-LEDS l2");
    bed.pass(seconds(15));
    assert_eq!(bed.take(), "{a=3}mixed");
}

#[test]
fn nothing_is_held_on_to_after_an_error() {
    let mut bed = Testbed::serving(&["a"]);
    bed.deny(LDS, "l");
    bed.inline(&["a"]);
    bed.eds_named("a", "new");
    bed.deny(LDS, "l");
    assert_eq!(bed.take(), "error LDS l {a=1} +EDS new error LDS l -EDS a");
    bed.endpoints("new", &[2]);
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "{a=2}");
    assert_eq!(bed.watched.len(), 3);
}

/// What is in force follows its endpoints until it is replaced, also if it is an aggregate that is to replace it.
#[test]
fn a_cluster_in_force_that_becomes_an_aggregate_follows_its_endpoints_until_the_leaves_are_there() {
    let mut bed = Testbed::serving(&["a"]);
    bed.aggregate("a", &["b"]);
    assert_eq!(bed.take(), "+CDS b");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2}");
    bed.eds("b");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "+EDS b {a>b b=3} -EDS a");
}
