//! Clusters, their endpoints, and subscriptions.

use super::*;

#[test]
fn a_cluster_that_cannot_be_had_fails_alone() {
    // L-14, L-21; Go: ClusterResourceError; Java: CDS error, missing CDS and EDS.
    let mut bed = Testbed::routed(&["a", "x"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.fail(CDS, "x");
    assert_eq!(bed.take(), "{a=1 x!}");
    let text = bed.cluster_error("x").to_string();
    assert!(text.contains("Cluster \"x\"") && text.contains("cable cut"), "{text}");
    bed.eds("x");
    assert_eq!(bed.take(), "+EDS x");
    bed.endpoints("x", &[2]);
    assert_eq!(bed.take(), "{a=1 x=2}");
}

#[test]
fn a_deleted_cluster_lets_go_of_its_endpoints() {
    // L-9, L-14; Java: CDS delete unsubscribes child.
    let mut bed = Testbed::serving(&["a", "b"]);
    bed.fail(CDS, "a");
    assert_eq!(bed.take(), "{a! b=1} -EDS a");
}

#[test]
fn ambient_errors_of_a_cluster_are_its_own_notes() {
    // L-12, L-19; Go: ClusterAmbientError, EndpointAmbientError.
    let mut bed = Testbed::serving(&["a", "b"]);
    let b = bed.cluster_config("b").clone();
    let a = bed.cluster_config("a").clone();
    bed.ambient(CDS, "a");
    bed.ambient(EDS, "a");
    assert_eq!(bed.take(), "{a=1 b=1} {a=1 b=1}");
    let note = bed.note("a");
    assert!(note.contains("Cluster \"a\"") && note.contains("ClusterLoadAssignment \"a\""), "{note}");
    assert!(Arc::ptr_eq(&b, bed.cluster_config("b")));
    let (ClusterChildren::Endpoints(Some(before)), ClusterChildren::Endpoints(Some(after))) =
        (&a.children, &bed.cluster_config("a").children)
    else {
        panic!("both have endpoints");
    };
    assert!(Arc::ptr_eq(before, after)); // no policy is disturbed
    bed.clear(CDS, "a");
    bed.confirmed(EDS, "a");
    assert_eq!(bed.note("a"), "xDS node ID:node-1");
}

#[test]
fn endpoints_that_cannot_be_had_leave_the_cluster_usable_with_a_note() {
    // L-15.
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.fail(EDS, "a");
    assert_eq!(bed.take(), "+EDS a {a=none}");
    assert!(bed.note("a").contains("ClusterLoadAssignment \"a\""), "{}", bed.note("a"));
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "{a=1}");
    assert_eq!(bed.note("a"), "xDS node ID:node-1");
    bed.fail(EDS, "a"); // an error that takes the value away, unlike an ambient one
    assert_eq!(bed.take(), "{a=none}");
}

#[test]
fn empty_endpoints_are_noted_and_the_note_outlives_an_ambient_error() {
    // L-15, D8.
    let mut bed = Testbed::routed(&["a", "b"]);
    bed.eds("a");
    bed.eds("b");
    bed.changed("a", Resource::Endpoints(Arc::new(Endpoints::default())));
    bed.endpoints("b", &[]);
    assert_eq!(bed.take(), "+EDS a +EDS b {a= b=}");
    for _ in 0..2 {
        assert_eq!(bed.note("a"), "ClusterLoadAssignment \"a\" contains no localities");
        assert_eq!(bed.note("b"), "ClusterLoadAssignment \"b\" contains empty localities: [/z0/]");
        bed.ambient(EDS, "a");
        bed.ambient(EDS, "b");
        assert!(bed.note("a").contains("cable cut") && bed.note("a").ends_with("contains no localities"));
        bed.clear(EDS, "a");
        bed.clear(EDS, "b");
    }
}

#[test]
fn a_cluster_that_moves_to_other_endpoints_waits_for_them() {
    // L-7, L-10, P-96.
    let mut bed = Testbed::serving(&["a", "b"]);
    bed.eds_named("a", "e2");
    assert_eq!(bed.take(), "+EDS e2");
    bed.endpoints("b", &[7]);
    assert_eq!(bed.take(), "{a=1 b=7}"); // what is in force goes on
    bed.endpoints("e2", &[2]);
    assert_eq!(bed.take(), "{a=2 b=7} -EDS a");
}

#[test]
fn clusters_share_the_watch_of_equal_endpoints() {
    // L-8; Java: multiple CDS refer to same EDS.
    let mut bed = Testbed::routed(&["a", "b"]);
    bed.eds_named("a", "e");
    bed.eds_named("b", "e");
    bed.endpoints("e", &[1]);
    assert_eq!(bed.take(), "+EDS e {a=1 b=1}");
    bed.endpoints("e", &[2]);
    assert_eq!(bed.take(), "{a=2 b=2}");
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "{b=2} -CDS a");
    bed.inline(&[]);
    assert_eq!(bed.take(), "{} -CDS b -EDS e");
}

#[test]
fn a_watch_that_changes_hands_goes_on() {
    // L-8, P-96: one cluster lets go and another takes hold in the same step.
    let mut bed = Testbed::routed(&["a", "b"]);
    bed.eds_named("a", "e1");
    bed.eds_named("b", "e2");
    bed.endpoints("e1", &[1]);
    bed.endpoints("e2", &[2]);
    bed.take();
    bed.together(|bed| {
        bed.eds_named("a", "e2");
        bed.eds_named("b", "e1");
    });
    assert_eq!(bed.take(), "{a=2 b=1}");
}

#[test]
fn a_name_that_cannot_be_read_is_watched_as_it_is() {
    // C-8: the client knows the reason.
    let mut bed = Testbed::routed(&["xdstp:broken"]);
    assert!(bed.watched.contains(&ResourceKey { resource_type: CDS, name: "xdstp:broken".into() }));
    bed.fail(CDS, "xdstp:broken");
    assert_eq!(bed.take(), "{xdstp:broken!}");
}

#[test]
fn two_spellings_of_a_name_are_two_clusters_with_one_watch() {
    // P-84, L-8: routes and policies use the name as written, the control plane the canonical one.
    let canonical = "xdstp://x/envoy.config.cluster.v3.Cluster/c?a=1&b=2";
    let other = "xdstp://x/envoy.config.cluster.v3.Cluster/c?b=2&a=1";
    let mut bed = Testbed::new();
    bed.inline(&[other, canonical]);
    assert_eq!(bed.take(), format!("+CDS {canonical}"));
    bed.eds_named(canonical, "e");
    bed.endpoints("e", &[1]);
    assert_eq!(bed.take(), format!("+EDS e {{{canonical}=1 {other}=1}}"));
    bed.inline(&[other]);
    assert_eq!(bed.take(), format!("{{{other}=1}}"));
    bed.inline(&[]);
    assert_eq!(bed.take(), format!("{{}} -CDS {canonical} -EDS e"));
}

#[test]
fn without_federation_every_name_is_its_own() {
    // B-30.
    let name = "xdstp://x/envoy.config.cluster.v3.Cluster/c?b=2&a=1";
    let mut bed = Testbed::with(DepsSettings { federation: false, ..DepsSettings::default() });
    bed.inline(&[name]);
    assert_eq!(bed.take(), format!("+CDS {name}"));
}

#[test]
fn a_subscribed_cluster_is_there_until_released() {
    // L-17; Go: ClusterSubscription_Lifecycle; Java: delayed subscription.
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("s");
    assert_eq!(bed.take(), "+CDS s");
    bed.eds("s");
    bed.endpoints("s", &[2]);
    assert_eq!(bed.take(), "+EDS s {a=1 s=2}");
    bed.subscribe("s");
    bed.release("s");
    assert_eq!(bed.take(), "");
    bed.release("s");
    assert_eq!(bed.take(), "{a=1} -CDS s -EDS s");
    bed.release("s"); // once too often
    assert_eq!(bed.take(), "");
}

#[test]
fn a_subscription_never_holds_an_update_back() {
    // L-10 as decided; Go: UpdateWithUnresolvedDynamicSubscription.
    let mut bed = Testbed::new();
    bed.subscribe("s");
    assert_eq!(bed.take(), "+CDS s");
    bed.inline(&["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "+CDS a +EDS a {a=1}");
    bed.eds("s");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "+EDS s {a=2}");
    bed.endpoints("s", &[3]);
    assert_eq!(bed.take(), "{a=2 s=3}");
}

#[test]
fn a_subscribed_cluster_that_fails_is_an_entry_with_its_error() {
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("s");
    bed.fail(CDS, "s");
    assert_eq!(bed.take(), "+CDS s {a=1 s!}");
}

#[test]
fn a_subscribed_cluster_keeps_its_last_result_while_it_is_incomplete() {
    // L-17: while held, it appears.
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("s");
    bed.eds("s");
    bed.endpoints("s", &[2]);
    bed.take();
    bed.eds_named("s", "e2");
    bed.endpoints("a", &[5]);
    assert_eq!(bed.take(), "+EDS e2 {a=5 s=2}");
    bed.endpoints("e2", &[3]);
    assert_eq!(bed.take(), "{a=5 s=3} -EDS s");
}

#[test]
fn a_subscription_released_and_taken_again_is_not_lost() {
    // D10, in any order and without a poll between.
    let mut bed = Testbed::serving(&["a"]);
    bed.subscribe("s");
    bed.eds("s");
    bed.endpoints("s", &[2]);
    bed.take();
    bed.together(|bed| {
        bed.release("s");
        bed.subscribe("s");
    });
    bed.together(|bed| {
        bed.subscribe("s");
        bed.release("s");
    });
    assert_eq!(bed.take(), "");
    bed.release("s");
    bed.subscribe("s");
    assert_eq!(bed.take(), "{a=1} -CDS s -EDS s +CDS s");
    bed.eds("s");
    bed.endpoints("s", &[3]);
    assert_eq!(bed.take(), "+EDS s {a=1 s=3}");
}

#[test]
fn a_cluster_that_leaves_the_routes_stays_while_subscribed() {
    // L-17, L-27: RPCs in flight hold it.
    let mut bed = Testbed::serving(&["a", "b"]);
    bed.subscribe("a");
    assert_eq!(bed.take(), "");
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "{a=1 b=1}");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2 b=1}");
    bed.inline(&["a", "b"]);
    bed.release("a");
    assert_eq!(bed.take(), "{a=2 b=1}");
    bed.inline(&["b"]);
    assert_eq!(bed.take(), "{b=1} -CDS a -EDS a");
}

#[test]
fn a_subscription_may_begin_while_actions_are_carried_out() {
    // grpc-go defect 10: no lock, no re-entrance, no wait.
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.take();
    bed.together(|bed| bed.endpoints("a", &[1]));
    let mut again = bed.clone();
    again.together(|bed| bed.endpoints("a", &[2]));
    let Output::Wait(None) = again.manager.poll_output() else { panic!("nothing is left to do") };
    let key = ResourceKey { resource_type: EDS, name: "a".into() };
    let update = Update::Changed(Resource::Endpoints(Arc::new(Endpoints::default())), again.provenance());
    again.manager.handle_update(again.now, &key, update);
    let Output::Do(Action::Publish(Ok(_))) = again.manager.poll_output() else { panic!("a publication is next") };
    again.subscribe("s"); // in the middle of the drain
    assert_eq!(again.take(), "{a=1} {a=2} +CDS s");
}
