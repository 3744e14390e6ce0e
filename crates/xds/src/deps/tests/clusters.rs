//! Clusters, their endpoints, and subscriptions.

use super::*;

#[test]
fn a_cluster_that_cannot_be_had_fails_alone() {
    // L-14, L-21; Go: ClusterResourceError; Java: CDS error, missing CDS and EDS.
    let mut world = World::routed(&["a", "x"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.fail(CDS, "x");
    assert_eq!(world.take(), "{a=1 x!}");
    let text = world.cluster_error("x").to_string();
    assert!(text.contains("Cluster \"x\"") && text.contains("cable cut"), "{text}");
    world.eds("x");
    assert_eq!(world.take(), "+EDS x");
    world.endpoints("x", &[2]);
    assert_eq!(world.take(), "{a=1 x=2}");
}

#[test]
fn a_deleted_cluster_lets_go_of_its_endpoints() {
    // L-9, L-14; Java: CDS delete unsubscribes child.
    let mut world = World::serving(&["a", "b"]);
    world.fail(CDS, "a");
    assert_eq!(world.take(), "{a! b=1} -EDS a");
}

#[test]
fn ambient_errors_of_a_cluster_are_its_own_notes() {
    // L-12, L-19; Go: ClusterAmbientError, EndpointAmbientError.
    let mut world = World::serving(&["a", "b"]);
    let b = world.cluster_config("b").clone();
    let a = world.cluster_config("a").clone();
    world.ambient(CDS, "a");
    world.ambient(EDS, "a");
    assert_eq!(world.take(), "{a=1 b=1} {a=1 b=1}");
    let note = world.note("a");
    assert!(note.contains("Cluster \"a\"") && note.contains("ClusterLoadAssignment \"a\""), "{note}");
    assert!(Arc::ptr_eq(&b, world.cluster_config("b")));
    let (ClusterChildren::Endpoints(Some(before)), ClusterChildren::Endpoints(Some(after))) =
        (&a.children, &world.cluster_config("a").children)
    else {
        panic!("both have endpoints");
    };
    assert!(Arc::ptr_eq(before, after)); // no policy is disturbed
    world.clear(CDS, "a");
    world.confirmed(EDS, "a");
    assert_eq!(world.note("a"), "xDS node ID:node-1");
}

#[test]
fn endpoints_that_cannot_be_had_leave_the_cluster_usable_with_a_note() {
    // L-15.
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.fail(EDS, "a");
    assert_eq!(world.take(), "+EDS a {a=none}");
    assert!(world.note("a").contains("ClusterLoadAssignment \"a\""), "{}", world.note("a"));
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "{a=1}");
    assert_eq!(world.note("a"), "xDS node ID:node-1");
    world.fail(EDS, "a"); // an error that takes the value away, unlike an ambient one
    assert_eq!(world.take(), "{a=none}");
}

#[test]
fn empty_endpoints_are_noted_and_the_note_outlives_an_ambient_error() {
    // L-15, D8.
    let mut world = World::routed(&["a", "b"]);
    world.eds("a");
    world.eds("b");
    world.changed("a", Resource::Endpoints(Arc::new(Endpoints::default())));
    world.endpoints("b", &[]);
    assert_eq!(world.take(), "+EDS a +EDS b {a= b=}");
    for _ in 0..2 {
        assert_eq!(world.note("a"), "ClusterLoadAssignment \"a\" contains no localities");
        assert_eq!(world.note("b"), "ClusterLoadAssignment \"b\" contains empty localities: [/z0/]");
        world.ambient(EDS, "a");
        world.ambient(EDS, "b");
        assert!(world.note("a").contains("cable cut") && world.note("a").ends_with("contains no localities"));
        world.clear(EDS, "a");
        world.clear(EDS, "b");
    }
}

#[test]
fn a_cluster_that_moves_to_other_endpoints_waits_for_them() {
    // L-7, L-10, P-96.
    let mut world = World::serving(&["a", "b"]);
    world.eds_named("a", "e2");
    assert_eq!(world.take(), "+EDS e2");
    world.endpoints("b", &[7]);
    assert_eq!(world.take(), "{a=1 b=7}"); // what is in force goes on
    world.endpoints("e2", &[2]);
    assert_eq!(world.take(), "{a=2 b=7} -EDS a");
}

#[test]
fn clusters_share_the_watch_of_equal_endpoints() {
    // L-8; Java: multiple CDS refer to same EDS.
    let mut world = World::routed(&["a", "b"]);
    world.eds_named("a", "e");
    world.eds_named("b", "e");
    world.endpoints("e", &[1]);
    assert_eq!(world.take(), "+EDS e {a=1 b=1}");
    world.endpoints("e", &[2]);
    assert_eq!(world.take(), "{a=2 b=2}");
    world.inline(&["b"]);
    assert_eq!(world.take(), "{b=2} -CDS a");
    world.inline(&[]);
    assert_eq!(world.take(), "{} -CDS b -EDS e");
}

#[test]
fn a_watch_that_changes_hands_goes_on() {
    // L-8, P-96: one cluster lets go and another takes hold in the same step.
    let mut world = World::routed(&["a", "b"]);
    world.eds_named("a", "e1");
    world.eds_named("b", "e2");
    world.endpoints("e1", &[1]);
    world.endpoints("e2", &[2]);
    world.take();
    world.together(|world| {
        world.eds_named("a", "e2");
        world.eds_named("b", "e1");
    });
    assert_eq!(world.take(), "{a=2 b=1}");
}

#[test]
fn a_name_that_cannot_be_read_is_watched_as_it_is() {
    // C-8: the client knows the reason.
    let mut world = World::routed(&["xdstp:broken"]);
    assert!(world.watched.contains(&ResourceKey { resource_type: CDS, name: "xdstp:broken".into() }));
    world.fail(CDS, "xdstp:broken");
    assert_eq!(world.take(), "{xdstp:broken!}");
}

#[test]
fn two_spellings_of_a_name_are_two_clusters_with_one_watch() {
    // P-84, L-8: routes and policies use the name as written, the control plane the canonical one.
    let canonical = "xdstp://x/envoy.config.cluster.v3.Cluster/c?a=1&b=2";
    let other = "xdstp://x/envoy.config.cluster.v3.Cluster/c?b=2&a=1";
    let mut world = World::new();
    world.inline(&[other, canonical]);
    assert_eq!(world.take(), format!("+CDS {canonical}"));
    world.eds_named(canonical, "e");
    world.endpoints("e", &[1]);
    assert_eq!(world.take(), format!("+EDS e {{{canonical}=1 {other}=1}}"));
    world.inline(&[other]);
    assert_eq!(world.take(), format!("{{{other}=1}}"));
    world.inline(&[]);
    assert_eq!(world.take(), format!("{{}} -CDS {canonical} -EDS e"));
}

#[test]
fn without_federation_every_name_is_its_own() {
    // B-30.
    let name = "xdstp://x/envoy.config.cluster.v3.Cluster/c?b=2&a=1";
    let mut world = World::with(DepsSettings { federation: false, ..DepsSettings::default() });
    world.inline(&[name]);
    assert_eq!(world.take(), format!("+CDS {name}"));
}

#[test]
fn a_subscribed_cluster_is_there_until_released() {
    // L-17; Go: ClusterSubscription_Lifecycle; Java: delayed subscription.
    let mut world = World::serving(&["a"]);
    world.subscribe("s");
    assert_eq!(world.take(), "+CDS s");
    world.eds("s");
    world.endpoints("s", &[2]);
    assert_eq!(world.take(), "+EDS s {a=1 s=2}");
    world.subscribe("s");
    world.release("s");
    assert_eq!(world.take(), "");
    world.release("s");
    assert_eq!(world.take(), "{a=1} -CDS s -EDS s");
    world.release("s"); // once too often
    assert_eq!(world.take(), "");
}

#[test]
fn a_subscription_never_holds_an_update_back() {
    // L-10 as decided; Go: UpdateWithUnresolvedDynamicSubscription.
    let mut world = World::new();
    world.subscribe("s");
    assert_eq!(world.take(), "+CDS s");
    world.inline(&["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "+CDS a +EDS a {a=1}");
    world.eds("s");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "+EDS s {a=2}");
    world.endpoints("s", &[3]);
    assert_eq!(world.take(), "{a=2 s=3}");
}

#[test]
fn a_subscribed_cluster_that_fails_is_an_entry_with_its_error() {
    let mut world = World::serving(&["a"]);
    world.subscribe("s");
    world.fail(CDS, "s");
    assert_eq!(world.take(), "+CDS s {a=1 s!}");
}

#[test]
fn a_subscribed_cluster_keeps_its_last_result_while_it_is_incomplete() {
    // L-17: while held, it appears.
    let mut world = World::serving(&["a"]);
    world.subscribe("s");
    world.eds("s");
    world.endpoints("s", &[2]);
    world.take();
    world.eds_named("s", "e2");
    world.endpoints("a", &[5]);
    assert_eq!(world.take(), "+EDS e2 {a=5 s=2}");
    world.endpoints("e2", &[3]);
    assert_eq!(world.take(), "{a=5 s=3} -EDS s");
}

#[test]
fn a_subscription_released_and_taken_again_is_not_lost() {
    // D10, in any order and without a poll between.
    let mut world = World::serving(&["a"]);
    world.subscribe("s");
    world.eds("s");
    world.endpoints("s", &[2]);
    world.take();
    world.together(|world| {
        world.release("s");
        world.subscribe("s");
    });
    world.together(|world| {
        world.subscribe("s");
        world.release("s");
    });
    assert_eq!(world.take(), "");
    world.release("s");
    world.subscribe("s");
    assert_eq!(world.take(), "{a=1} -CDS s -EDS s +CDS s");
    world.eds("s");
    world.endpoints("s", &[3]);
    assert_eq!(world.take(), "+EDS s {a=1 s=3}");
}

#[test]
fn a_cluster_that_leaves_the_routes_stays_while_subscribed() {
    // L-17, L-27: RPCs in flight hold it.
    let mut world = World::serving(&["a", "b"]);
    world.subscribe("a");
    assert_eq!(world.take(), "");
    world.inline(&["b"]);
    assert_eq!(world.take(), "{a=1 b=1}");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2 b=1}");
    world.inline(&["a", "b"]);
    world.release("a");
    assert_eq!(world.take(), "{a=2 b=1}");
    world.inline(&["b"]);
    assert_eq!(world.take(), "{b=1} -CDS a -EDS a");
}

#[test]
fn a_subscription_may_begin_while_actions_are_carried_out() {
    // grpc-go defect 10: no lock, no re-entrance, no wait.
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.take();
    world.together(|world| world.endpoints("a", &[1]));
    let mut again = world.clone();
    again.together(|world| world.endpoints("a", &[2]));
    let Output::Wait(None) = again.manager.poll_output() else { panic!("nothing is left to do") };
    let key = ResourceKey { resource_type: EDS, name: "a".into() };
    let update = Update::Changed(Resource::Endpoints(Arc::new(Endpoints::default())), again.provenance());
    again.manager.handle_update(again.now, &key, update);
    let Output::Do(Action::Publish(Ok(_))) = again.manager.poll_output() else { panic!("a publication is next") };
    again.subscribe("s"); // in the middle of the drain
    assert_eq!(again.take(), "{a=1} {a=2} +CDS s");
}
