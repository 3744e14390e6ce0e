//! What is in force stays subscribed, and follows its clusters and endpoints, until something new replaces it (A74, L-27).

use super::*;

#[test]
fn the_configuration_in_force_goes_on_hearing_of_its_endpoints() {
    let mut world = World::serving(&["a"]);
    world.inline(&["b"]);
    assert_eq!(world.take(), "+CDS b");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2}"); // b is not a part of it yet
    world.eds("b");
    world.endpoints("a", &[3]);
    assert_eq!(world.take(), "+EDS b {a=3}");
    world.endpoints("b", &[4]);
    assert_eq!(world.take(), "{b=4} -CDS a -EDS a");
}

#[test]
fn the_configuration_in_force_goes_on_hearing_of_its_clusters() {
    let mut world = World::serving(&["a", "c"]);
    world.inline(&["b"]);
    world.eds_named("a", "e2");
    assert_eq!(world.take(), "+CDS b +EDS e2");
    world.endpoints("e2", &[2]);
    assert_eq!(world.take(), "{a=2 c=1} -EDS a");
    world.aggregate("c", &["a"]);
    assert_eq!(world.take(), "{a=2 c>a} -EDS c");
    world.inline(&["a", "c"]);
    world.deny(CDS, "a");
    assert_eq!(world.take(), "-CDS b {a! c!} -EDS e2");
}

#[test]
fn a_rollback_fetches_nothing_anew() {
    let mut world = World::new();
    world.rds("r1");
    world.routes("r1", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.rds("r2");
    world.routes("r2", &["b"]);
    world.eds("b");
    assert_eq!(world.take(), "+RDS r2 +CDS b +EDS b");
    world.rds("r1");
    assert_eq!(world.take(), "-RDS r2 -CDS b -EDS b");
    // Routes that changed while nobody used them are used now.
    world.rds("r2");
    world.routes("r1", &["a", "c"]);
    assert_eq!(world.take(), "+RDS r2");
    world.rds("r1");
    assert_eq!(world.take(), "+CDS c -RDS r2");
}

#[test]
fn a_listener_that_overtakes_another_leaves_nothing_behind() {
    // Three pairs at once: in force, complete but for its clusters, and without its routes.
    let mut world = World::new();
    world.rds("r1");
    world.routes("r1", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.rds("r2");
    world.routes("r2", &["b"]);
    world.take();
    world.rds("r3");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "+RDS r3 {a=2}");
    world.routes("r3", &["a"]);
    assert_eq!(world.take(), "{a=2} -RDS r1 -RDS r2 -CDS b");
}

#[test]
fn a_cluster_that_moves_to_other_endpoints_follows_the_old_ones_meanwhile() {
    let mut world = World::serving(&["a"]);
    world.eds_named("a", "new");
    assert_eq!(world.take(), "+EDS new");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2}");
    world.eds("a"); // and back: nothing is fetched anew
    assert_eq!(world.take(), "-EDS new");
    world.eds_named("a", "new");
    world.endpoints("new", &[3]);
    assert_eq!(world.take(), "+EDS new {a=3} -EDS a");
}

#[test]
fn endpoints_that_move_to_other_collections_follow_the_old_ones_meanwhile() {
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &["l1"]);
    world.collection("l1", &[1]);
    world.take();
    world.endpoints_in("a", &["l2"]);
    assert_eq!(world.take(), "+LEDS l2");
    world.collection("l1", &[2]);
    assert_eq!(world.take(), "{a=2}");
    world.endpoints_in("a", &["l3"]); // overtaken: only what is in force and what is newest stays
    assert_eq!(world.take(), "+LEDS l3 -LEDS l2");
    world.collection("l3", &[3]);
    assert_eq!(world.take(), "{a=3} -LEDS l1");
}

#[test]
fn old_endpoints_that_are_followed_may_move_to_other_collections_too() {
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &["l1"]);
    world.collection("l1", &[1]);
    world.eds_named("a", "new");
    world.take();
    world.endpoints_in("a", &["l2"]);
    world.collection("l1", &[2]);
    assert_eq!(world.take(), "+LEDS l2 {a=2}");
    world.collection("l2", &[3]);
    assert_eq!(world.take(), "{a=3} -LEDS l1");
    world.endpoints("new", &[4]);
    assert_eq!(world.take(), "{a=4} -EDS a -LEDS l2");
}

#[test]
fn a_name_that_is_not_looked_up_yet_leaves_the_old_addresses_in_use() {
    let mut world = World::routed(&["d"]);
    world.logical_dns("d", "old");
    world.answer("old", Ok(&[1]));
    world.take();
    world.logical_dns("d", "new");
    world.pass(seconds(30));
    world.reresolve();
    world.answer("old", Ok(&[2]));
    assert_eq!(world.take(), "?new:80 ?old:80 {d=2}");
    world.answer("new", Ok(&[3]));
    assert_eq!(world.take(), "{d=3}");
    world.pass(seconds(100));
    world.reresolve();
    assert_eq!(world.take(), "?new:80");
}

#[test]
fn an_aggregate_follows_its_old_leaves_until_the_new_ones_are_there() {
    let mut world = World::routed(&["top"]);
    world.aggregate("top", &["mid"]);
    world.aggregate("mid", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.aggregate("mid", &["b"]);
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "+CDS b {a=2 mid>a top>a}");
    world.aggregate("top", &["b"]);
    world.endpoints("a", &[3]);
    assert_eq!(world.take(), "{a=2 top>a} -CDS mid {a=3 top>a}");
    world.eds("b");
    world.endpoints("b", &[4]);
    assert_eq!(world.take(), "+EDS b {b=4 top>b} -CDS a -EDS a");
}

#[test]
fn a_leaf_that_is_listed_no_more_is_let_go_when_its_successor_is_denied() {
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a", "b"]);
    for leaf in ["a", "b"] {
        world.eds(leaf);
        world.endpoints(leaf, &[1]);
    }
    world.take();
    world.aggregate("agg", &["b", "c"]);
    assert_eq!(world.take(), "+CDS c");
    world.deny(CDS, "c");
    assert_eq!(world.take(), "{agg>b b=1 c!} -CDS a -EDS a");
}

#[test]
fn a_cluster_that_waits_does_not_hold_up_the_others() {
    let mut world = World::serving(&["a", "b"]);
    world.eds_named("a", "new");
    world.eds_named("b", "e");
    world.endpoints("e", &[2]);
    assert_eq!(world.take(), "+EDS new +EDS e {a=1 b=2} -EDS b");
}

#[test]
fn new_routes_wait_for_the_newest_of_a_cluster_in_force() {
    // A74: everything that the new routes name, as it is now.
    let mut world = World::serving(&["a"]);
    world.eds_named("a", "new");
    world.inline(&["a", "d"]);
    world.logical_dns("d", "192.0.2.1");
    assert_eq!(world.take(), "+EDS new +CDS d");
    world.endpoints("new", &[2]);
    assert_eq!(world.take(), "{a=2 d=80} -EDS a");
}

#[test]
fn what_is_in_force_keeps_to_its_own_server_until_the_bound() {
    // C-50: new routes of B wait for a cluster; endpoints of B do not mix with routes of A before the bound.
    let mut world = World::serving(&["a"]);
    world.switch("B");
    world.inline(&["a", "b"]);
    world.confirmed(CDS, "a");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "+CDS b");
    world.pass(seconds(15));
    assert_eq!(world.take(), "{a=2}mixed");
    world.eds("b");
    world.endpoints("b", &[3]);
    assert_eq!(world.take(), "+EDS b {a=2 b=3}");
}

#[test]
fn a_cluster_that_only_new_routes_name_any_more_lets_go_of_what_was_in_force() {
    // a is in force below agg, moves to other endpoints and waits for them; new routes that wait as well name it too.
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a"]);
    world.eds("a");
    world.endpoints_in("a", &["l1"]);
    world.collection("l1", &[1]);
    world.eds_named("a", "new");
    world.inline(&["a", "agg", "b"]);
    world.take();
    world.deny(CDS, "agg");
    assert_eq!(world.take(), "{agg!} -EDS a -LEDS l1");
    world.endpoints("new", &[2]);
    world.logical_dns("b", "192.0.2.1");
    assert_eq!(world.take(), "{a=2 agg! b=80}");
}

#[test]
fn an_aggregate_that_only_new_routes_name_any_more_lets_go_of_its_old_leaves() {
    // What its leaf holds on to in turn goes with it.
    let mut world = World::routed(&["top"]);
    world.aggregate("top", &["mid"]);
    world.aggregate("mid", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.aggregate("mid", &["b"]);
    world.eds_named("a", "new");
    world.inline(&["top", "mid", "a"]);
    world.take();
    world.deny(CDS, "top");
    assert_eq!(world.take(), "{top!} -EDS a");
}

#[test]
fn an_aggregate_that_goes_and_moves_away_from_its_leaves_at_once_leaves_nothing_behind() {
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a"]);
    world.logical_dns("a", "192.0.2.1");
    world.together(|world| {
        world.inline(&[]);
        world.eds_named("agg", "e");
    });
    assert!(world.config().clusters.is_empty());
    assert_eq!(world.watched.len(), 1, "{:?}", world.watched); // the Listener
}

#[test]
fn an_aggregate_that_its_own_old_leaf_leads_back_to_does_not_keep_itself() {
    let mut world = World::serving(&["a", "agg"]);
    world.aggregate("agg", &["a"]);
    world.together(|world| {
        world.aggregate("a", &["agg"]);
        world.eds_named("agg", "e");
    });
    world.inline(&[]);
    assert!(world.config().clusters.is_empty());
    assert_eq!(world.watched.len(), 1, "{:?}", world.watched); // the Listener
}

#[test]
fn an_aggregate_that_waits_for_one_child_keeps_the_leaf_that_another_one_gives_up() {
    let mut world = World::routed(&["top"]);
    world.aggregate("top", &["a", "mid"]);
    world.aggregate("mid", &["b"]);
    for (name, host) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        world.logical_dns(name, host);
    }
    world.eds("a");
    world.take();
    world.logical_dns("mid", "192.0.2.3");
    assert_eq!(world.take(), "{a=80 b=80 mid=80 top>a,b}"); // top still waits for the endpoints of a
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "{a=1 mid=80 top>a,mid} -CDS b");
}

#[test]
fn a_released_cluster_that_waits_is_not_in_force_when_it_is_subscribed_to_again() {
    let mut world = World::serving(&["s"]);
    world.subscribe("a");
    world.eds("a");
    world.endpoints("a", &[1]);
    world.eds_named("a", "new");
    world.inline(&["a", "b"]);
    world.take();
    world.release("a");
    assert_eq!(world.take(), "{s=1} -EDS a");
    world.subscribe("a"); // never in the configuration before it is complete (L-17)
    assert_eq!(world.take(), "");
    world.endpoints("new", &[2]);
    assert_eq!(world.take(), "{a=2 s=1}");
}

#[test]
fn a_cluster_that_an_aggregate_waits_with_is_in_force_once_it_is_subscribed_to() {
    let mut world = World::routed(&[]);
    world.subscribe("agg");
    world.aggregate("agg", &["a", "b"]);
    assert_eq!(world.take(), "+CDS agg +CDS a +CDS b");
    world.subscribe("a");
    world.eds("a");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "+EDS a {a=1}"); // agg still waits for b
}

#[test]
fn a_leaf_that_one_aggregate_waits_with_is_in_force_once_another_one_lists_it() {
    let mut world = World::serving(&["x", "agg"]);
    world.aggregate("agg", &["n", "m"]);
    world.eds("n");
    world.endpoints("n", &[2]);
    assert_eq!(world.take(), "+CDS n +CDS m +EDS n");
    world.aggregate("x", &["n"]);
    assert_eq!(world.take(), "{agg=1 n=2 x>n} -EDS x");
}

/// What a server does that takes something away.
fn take_away(world: &mut World, resource_type: ResourceType, name: &str) {
    world.fail_with(resource_type, name, ErrorKind::Deleted);
}

#[test]
fn a_cluster_that_new_routes_do_without_is_not_taken_away_before_they_are_used() {
    // C-52, D-35: the routes of the server that took over are incomplete, and it deletes what they do not need.
    let mut world = World::serving(&["a"]);
    world.switch("B");
    world.inline(&["b"]);
    assert_eq!(world.take(), "+CDS b");
    take_away(&mut world, CDS, "a");
    assert_eq!(world.take(), "{a=1}");
    assert!(world.note("a").contains("deleted"), "{}", world.note("a"));
    world.endpoints("a", &[2]); // still A's routes: B's endpoints wait for the bound (D-18)
    world.eds("b");
    assert_eq!(world.take(), "+EDS b");
    world.endpoints("b", &[3]);
    assert_eq!(world.take(), "{b=3} -CDS a -EDS a");
}

#[test]
fn endpoints_that_new_routes_do_without_are_not_taken_away_before_they_are_used() {
    let mut world = World::serving(&["a"]);
    world.inline(&["b"]);
    take_away(&mut world, EDS, "a");
    assert_eq!(world.take(), "+CDS b");
    world.logical_dns("b", "192.0.2.1");
    assert_eq!(world.take(), "{b=80} -CDS a -EDS a");
}

#[test]
fn endpoints_that_a_cluster_moves_away_from_are_not_taken_away_before_the_others_are_there() {
    let mut world = World::serving(&["a"]);
    world.eds_named("a", "new");
    take_away(&mut world, EDS, "a");
    assert_eq!(world.take(), "+EDS new {a=1}");
    world.endpoints("new", &[2]);
    assert_eq!(world.take(), "{a=2} -EDS a");
}

#[test]
fn a_leaf_that_its_aggregate_moves_away_from_is_not_taken_away_before_the_others_are_there() {
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.aggregate("agg", &["b"]);
    world.take();
    take_away(&mut world, CDS, "a");
    assert_eq!(world.take(), "{a=1 agg>a}");
    world.logical_dns("b", "192.0.2.1");
    assert_eq!(world.take(), "{agg>b b=80} -CDS a -EDS a");
}

#[test]
fn an_aggregate_that_new_routes_do_without_is_not_taken_away_before_they_are_used() {
    let mut world = World::routed(&["agg"]);
    world.aggregate("agg", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.inline(&["b"]);
    world.take();
    take_away(&mut world, CDS, "agg");
    take_away(&mut world, CDS, "a");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=1 agg>a} {a=2 agg>a}");
    world.logical_dns("b", "192.0.2.1");
    assert_eq!(world.take(), "{b=80} -CDS a -CDS agg -EDS a");
}

#[test]
fn a_cluster_that_was_taken_away_fails_once_nothing_replaces_it() {
    // It is kept for the sake of what comes next, and no longer: new routes name it after all, an RPC still holds it, or
    // there is no configuration any more.
    let mut world = World::serving(&["a"]);
    world.subscribe("a");
    world.inline(&["b"]);
    take_away(&mut world, CDS, "a");
    assert_eq!(world.take(), "+CDS b {a=1}");
    let mut back = world.clone();
    back.inline(&["a"]);
    assert_eq!(back.take(), "{a!} -CDS b -EDS a");
    let mut held = world.clone();
    held.logical_dns("b", "192.0.2.1");
    assert_eq!(held.take(), "{a! b=80} -EDS a");
    world.deny(LDS, "l");
    assert_eq!(world.take(), "error LDS l -EDS a");
}

#[test]
fn a_leaf_that_a_subscribed_aggregate_still_names_is_taken_away_at_once() {
    // No routes are awaited: nothing else would come in its place.
    let mut world = World::routed(&[]);
    world.subscribe("agg");
    world.aggregate("agg", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.together(|world| {
        world.aggregate("agg", &["b", "a"]);
        take_away(world, CDS, "a");
    });
    assert_eq!(world.take(), "+CDS b {a! agg>a} -EDS a");
    world.logical_dns("b", "192.0.2.1");
    assert_eq!(world.take(), "{a! agg>b b=80}");
}

#[test]
fn nothing_is_held_on_to_after_an_error() {
    let mut world = World::serving(&["a"]);
    world.deny(LDS, "l");
    world.inline(&["a"]);
    world.eds_named("a", "new");
    world.deny(LDS, "l");
    assert_eq!(world.take(), "error LDS l {a=1} +EDS new error LDS l -EDS a");
    world.endpoints("new", &[2]);
    world.inline(&["a"]);
    assert_eq!(world.take(), "{a=2}");
    assert_eq!(world.watched.len(), 3);
}

/// What is in force follows its endpoints until it is replaced, also if it is an aggregate that is to replace it.
#[test]
fn a_cluster_in_force_that_becomes_an_aggregate_follows_its_endpoints_until_the_leaves_are_there() {
    let mut world = World::serving(&["a"]);
    world.aggregate("a", &["b"]);
    assert_eq!(world.take(), "+CDS b");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2}");
    world.eds("b");
    world.endpoints("b", &[3]);
    assert_eq!(world.take(), "+EDS b {a>b b=3} -EDS a");
}
