//! Fallback and recovery: `docs/rules/03` section 6 (A71, A95).

use super::talk::{Setup, Talk, talk};
use crate::client::ResourceState;

#[test]
fn an_unreachable_first_server_at_the_start_falls_back_without_an_error_c40_c48() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
        b< LDS 1 A: l:=from-b
          b> LDS 1 A: l
          w0 changed: from-b from b 1
        # C-47: the first one keeps trying; its failures are not told (C-33).
        wait 1 s
          open a 5 s
        refuse a
        wait 1600 ms
          open a 5 s
        # C-49: neither a connection nor a stream is a recovery, a response is.
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=from-a
          active a
          a> LDS 1 A: l
          close b
          w0 changed: from-a from a 1
        # C-51: what b says now is too late.
        b< LDS 2 B: l:=late
        ",
    );
}

#[test]
fn with_everything_cached_there_is_no_fallback_until_a_new_need_c40_c43() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        lose a
          open a 5 s
        refuse a
          w0 ambient: unreachable a: refused
        # grpc-go needs the next failure for this, up to 144 s later.
        watch RDS r
          active b
          open b 20 s
          w0 ambient: none
        up b
          b> LDS - -: l +node
          b> RDS - -: r
        b< RDS 1 A: r:=x
          b> RDS 1 A: r
          w1 changed: x from b 1
        # C-10: a cached resource is served while fallback is on.
        watch LDS l
          w2 changed: r from a 1
        ",
    );
}

#[test]
fn a_server_that_dies_in_mid_update_falls_back_at_once() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        watch RDS r
          a> RDS - -: r
        # Re-opened without a pause, so that a dead server is known at once.
        lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          b> RDS - -: r
        ",
    );
}

#[test]
fn watchers_hear_of_it_once_when_every_server_is_unreachable_c48() {
    talk(
        &["a", "b", "c"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 5 s
        # C-46: the same test moves on to the next one.
        refuse b
          active c
          open c 20 s
        refuse c
          w0 failed: unreachable c: refused
        wait 1 s
          open a 5 s
          open b 5 s
          open c 20 s
        refuse a & refuse b & refuse c
        # Recovery to the middle releases only what is below it.
        wait 1600 ms
          open a 5 s
          open b 5 s
          open c 20 s
        up b
          b> LDS - -: l +node
        b< LDS 1 A: l:=r
          active b
          b> LDS 1 A: l
          close c
          w0 changed: r from b 1
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=s
          active a
          a> LDS 1 A: l
          close b
          w0 changed: s from a 1
        ",
    );
}

#[test]
fn known_absence_is_no_reason_to_fall_back_but_an_error_without_data_is_c41() {
    let reason = |event: &str, set: fn(&mut crate::bootstrap::ServerFeatures)| {
        let mut talk = Setup::new(&["a", "b"]).features(set).start();
        talk.step("watch LDS l & watch EDS e");
        talk.step("up a");
        talk.step("a< LDS 1 A: l:=r");
        talk.step(event);
        talk.step("a< LDS 2 B: l:=r"); // The stream has an answer.
        assert_eq!(talk.step("lose a"), ["open a 5 s"]);
        talk.step("refuse a").contains(&"active b".to_owned())
    };
    assert!(!reason("wait 15 s", |_| {}), "does not exist");
    assert!(!reason("a< EDS 1 A: e??5", |_| {}), "the server says that it does not exist");
    assert!(!reason("a< EDS 1 A: e:=80", |_| {}), "cached");
    assert!(reason("a< EDS 1 A: e!!", |_| {}), "only ever rejected");
    assert!(reason("a< EDS 1 A: e??14", |_| {}), "only ever an error");
    assert!(reason("wait 30 s", |f| f.resource_timer_is_transient_error = true), "a transient timeout");
    assert!(reason("wait 1 s", |_| {}), "requested");
}

#[test]
fn a_reachability_only_authority_falls_back_with_everything_cached_c42() {
    let setup = Setup::new(&["a"]).authority("x", &["b", "c"], true);
    let name = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let until_b_is_down = |setup: Setup| {
        let mut talk = setup.start();
        talk.step(&format!("watch EDS {name}"));
        talk.step("up b");
        talk.step(&format!("b< EDS 1 A: {name}:=80"));
        talk.step("lose b");
        (talk.step("refuse b"), talk)
    };
    let (done, mut talk) = until_b_is_down(setup.clone());
    assert_eq!(done, ["active c for x", "open c 20 s"]);
    // The data of c replaces what was cached, and b is asked for everything again when it is back: it is not told
    // a version, or it might answer nothing and we would never return to it (D1).
    assert_eq!(talk.step("up c"), [format!("c> EDS - -: {name} +node")]);
    talk.step(&format!("c< EDS 5 A: {name}:=81"));
    talk.step("wait 1 s");
    assert_eq!(talk.step("up b"), [format!("b> EDS - -: {name} +node")]);
    let done = talk.step(&format!("b< EDS 1 A: {name}:=80"));
    assert_eq!(done[0], "active b for x");
    assert_eq!(done[2..], ["close c".to_owned(), "w0 changed: 80 from b 1".to_owned()]);

    let (done, _) = until_b_is_down(setup.guards(|guards| guards.endpoint_fallback = false));
    assert_eq!(done, ["w0 ambient: unreachable b: refused"]);
}

#[test]
fn with_the_fallback_guard_off_only_the_first_server_is_used() {
    Setup::new(&["a", "b"]).guards(|guards| guards.fallback = false).talk(
        "
        watch LDS l
          active a
          open a 20 s
        refuse a
          w0 failed: unreachable a: refused
        ",
    );
}

#[test]
fn what_a_lower_server_overwrote_is_asked_for_again_without_a_version_d1() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch RDS r
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
          a> RDS - -: r
        a< LDS 20 A: l:=r
          a> LDS 20 A: l
          w0 changed: r from a 20
        a< RDS 20 A: r:=x
          a> RDS 20 A: r
          w1 changed: x from a 20
        watch EDS e & lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
        # The first one is there again, and is not told what we have of it: it must send everything to take over.
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
          a> RDS - -: r
          a> EDS - -: e
        up b
          b> LDS - -: l +node
          b> RDS - -: r
          b> EDS - -: e
        b< LDS 3 A: l:=r
          b> LDS 3 A: l
          w0 confirmed: from b 3
        # Equal again, but from another server.
        a< LDS 20 A: l:=r
          active a
          a> LDS 20 A: l
          close b
          w0 confirmed: from a 20
        ",
    );
}

#[test]
fn what_a_better_server_overwrote_is_asked_for_again_without_a_version() {
    // As D1, the other way round: b stays in use for another authority, so its versions are kept.
    let name = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut talk = Setup::new(&["b"]).authority("x", &["c", "b"], true).start();
    talk.step(&format!("watch LDS l & watch EDS {name}"));
    talk.step("up b");
    talk.step("up c");
    talk.step(&format!("c< EDS 1 A: {name}:=80"));
    let lose_c = |talk: &mut Talk| {
        talk.step("lose c");
        talk.step("wait 2 s"); // A stream that ends soon is not opened again at once.
        talk.step("refuse c")
    };
    assert!(lose_c(&mut talk).contains(&format!("b> EDS - -: {name}")));
    talk.step(&format!("b< EDS 1 A: {name}:=81"));
    talk.step("wait 1 s");
    talk.step("up c");
    let done = talk.step(&format!("c< EDS 1 A: {name}:=80"));
    assert!(done.contains(&"active c for x".to_owned()), "{done:?}");
    talk.step("lose b");
    talk.step("up b");
    let done = lose_c(&mut talk);
    assert!(done.contains(&format!("b> EDS - -: {name}")), "not version 1, which is not what we have: {done:?}");
}

#[test]
fn resources_first_watched_during_fallback_are_subscribed_on_every_server_go1() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
        up b
          b> LDS - -: l +node
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        watch RDS r
          a> RDS - -: r
          b> RDS - -: r
        b< RDS 1 A: r:=old
          b> RDS 1 A: r
          w1 changed: old from b 1
        a< LDS 7 A: l:=r
          active a
          a> LDS 7 A: l
          close b
          w0 confirmed: from a 7
        a< RDS 7 A: r:=new
          a> RDS 7 A: r
          w1 changed: new from a 7
        ",
    );
}

#[test]
fn a_silent_first_server_does_not_take_away_what_the_fallback_delivered_go2() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch LDS m
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        wait 1 s
          open a 5 s
        # Both timers of m run; that of the server in charge decides (C-54).
        up a
          a> LDS - -: l m +node
        wait 5 s
        up b
          b> LDS - -: l m +node
        b< LDS 1 A: l:=r
          b> LDS 1 A: l m
          w0 changed: r from b 1
        wait 14 s
        wait 1 s
          w1 failed: does not exist on b after 15 s
        wait 60 s
        ",
    );
}

#[test]
fn a_timer_does_not_touch_data_that_another_server_delivered_meanwhile_c54() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        wait 1 s
          open a 5 s
        # The timer of a starts, then b delivers, then b is lost too: a would be the one to decide.
        up a
          a> LDS - -: l +node
        up b
          b> LDS - -: l +node
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        lose b
          open b 20 s
        refuse b
          w0 ambient: unreachable b: refused
        wait 1 s
          open b 20 s
        wait 30 s
        ",
    );
}

#[test]
fn after_a_recovery_the_timer_of_the_recovered_server_decides() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch LDS m
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l m +node
        b< LDS 1 A: l:=r
          b> LDS 1 A: l m
          w0 changed: r from b 1
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l m +node
        wait 10 s
        a< LDS 1 A: l:=r
          active a
          a> LDS 1 A: l m
          close b
          w0 confirmed: from a 1
        wait 5 s
          w1 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn failures_of_a_server_above_a_healthy_one_are_not_told_go3() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch RDS r
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          b> RDS - -: r
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        # r is still missing, and a goes on failing.
        wait 1 s
          open a 5 s
        refuse a
        wait 1600 ms
          open a 5 s
        refuse a
        # A new watcher hears no error either.
        watch LDS l
          w2 changed: r from b 1
        watch EDS e
          b> EDS - -: e
        ",
    );
}

#[test]
fn a_response_that_is_bad_throughout_is_an_answer_but_no_recovery() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
        # NACKed, and without effect on what b delivered.
        a< LDS 9 A: l!!
          a> LDS - A: l NACK Listener \"l\": <faults>
        b< LDS 2 B: l:=s
          b> LDS 2 B: l
          w0 changed: s from b 2
        a< garbage
        a< LDS 10 B: l:=t
          active a
          a> LDS 10 B: l
          close b
          w0 changed: t from a 10
        ",
    );
}

#[test]
fn names_that_only_the_fallback_server_has_count_as_deleted_after_recovery_c52() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch LDS m
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l m +node
        b< LDS 1 A: l:=r m:=r
          b> LDS 1 A: l m
          w0 changed: r from b 1
          w1 changed: r from b 1
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l m +node
        a< LDS 1 A: l:=r
          active a
          a> LDS 1 A: l m
          close b
          w0 confirmed: from a 1
          w1 ambient: deleted on a
        ",
    );
}

#[test]
fn a_name_that_the_recovered_server_was_not_asked_for_yet_is_not_deleted_by_its_response_p50() {
    Setup::new(&["a", "b"]).features(|features| features.fail_on_data_errors = true).talk(
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        wait 1 s
          open a 5 s
        block a
        up a
          a> LDS - -: l +node
        watch LDS m
          b> LDS 1 A: l m
        b< LDS 2 B: l:=r m:=r
          b> LDS 2 B: l m
          w1 changed: r from b 2
        # It answers the request that named l only.
        a< LDS 1 A: l:=r
          active a
          close b
          w0 confirmed: from a 1
        unblock a
          a> LDS 1 A: l m
        ",
    );
}

#[test]
fn authorities_fall_back_on_their_own_and_share_streams_c38() {
    let [e, f] = ["e", "f"].map(|id| format!("xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/{id}"));
    let mut talk = Setup::new(&["a", "b"]).authority("x", &["c", "b"], false).start();
    // b is the fallback of both.
    assert_eq!(
        talk.step(&format!("watch LDS l & watch EDS {e}")),
        ["active a", "active c for x", "open a 5 s", "open c 5 s"]
    );
    talk.step("up a");
    assert_eq!(talk.step("a< LDS 1 A: l:=r"), ["a> LDS 1 A: l", "w0 changed: r from a 1"]);
    // Only the authority of the failed server falls back, and only its resources are subscribed there.
    assert_eq!(talk.step("refuse c"), ["active b for x", "open b 20 s"]);
    assert_eq!(talk.step("up b"), [format!("b> EDS - -: {e} +node")]);
    assert_eq!(
        talk.step(&format!("b< EDS 1 A: {e}:=80")),
        [format!("b> EDS 1 A: {e}"), "w1 changed: 80 from b 1".to_owned()]
    );
    // The other falls back too, by a new watch, onto the stream that is already there: all of its resources are
    // subscribed on it, not only the new one (D6).
    talk.step("lose a");
    assert_eq!(talk.step("refuse a"), ["w0 ambient: unreachable a: refused"]);
    assert_eq!(talk.step("watch RDS r"), ["active b", "b> LDS - -: l", "b> RDS - -: r", "w0 ambient: none"]);
    assert_eq!(talk.step("b< RDS 1 A: r:=x"), ["b> RDS 1 A: r", "w2 changed: x from b 1"]);
    // One returns to its first server: the shared stream stays, and lists only what the other needs.
    talk.step("wait 1 s");
    talk.step("up a");
    assert_eq!(
        talk.step("a< LDS 2 A: l:=s"),
        ["active a", "a> LDS 2 A: l", "b> LDS - -: -", "b> RDS 1 A: -", "w0 changed: s from a 2"]
    );
    // C-51: what the shared server still says about it is not taken.
    assert_eq!(talk.step("b< LDS 9 Z: l:=late"), ["b> LDS 9 Z: -"]);
    // A server that is known to be down is skipped (C-45) and stays open.
    talk.step("lose b");
    assert_eq!(talk.step("refuse b"), ["w1 ambient: unreachable b: refused"]);
    talk.step("lose a");
    assert_eq!(talk.step("watch LDS m"), [""; 0]);
    assert!(talk.step("wait 1 s").contains(&"open a 5 s".to_owned()));
    assert_eq!(
        talk.step("refuse a"),
        [
            "active b",
            "w0 ambient: unreachable b: refused",
            "w2 ambient: unreachable b: refused",
            "w3 failed: unreachable b: refused",
        ]
    );
    assert_eq!(talk.step(&format!("watch EDS {f}")), ["w4 failed: unreachable b: refused"]);
}

#[test]
fn a_server_does_not_answer_for_an_authority_that_it_does_not_serve() {
    let e = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut talk = Setup::new(&["a"]).authority("x", &["b"], false).start();
    talk.step(&format!("watch EDS d & watch EDS {e}"));
    talk.step("up a");
    talk.step("up b");
    assert_eq!(talk.step(&format!("a< EDS 1 A: {e}:=80")), ["a> EDS 1 A: d"]);
    assert_eq!(talk.step(&format!("b< EDS 1 A: {e}:=81"))[1..], ["w1 changed: 81 from b 1"]);
    assert_eq!(talk.step(&format!("a< EDS 2 B: {e}!!"))[1..], [""; 0]);
}

#[test]
fn a_fallback_server_that_is_released_starts_afresh_the_next_time_p32() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
        b< LDS 5 A: l:=r
          b> LDS 5 A: l
          w0 changed: r from b 5
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=s
          active a
          a> LDS 1 A: l
          close b
          w0 changed: s from a 1
        watch RDS r & lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          b> RDS - -: r
        ",
    );
}

#[test]
fn the_bound_on_connecting_is_short_while_another_server_is_next() {
    // b is the last of the top level and the first of x.
    let mut talk = Setup::new(&["a", "b"]).authority("x", &["b", "c"], false).start();
    talk.step("watch LDS l");
    assert_eq!(talk.step("refuse a"), ["active b", "open b 20 s"]);
    talk.step("watch LDS xdstp://x/envoy.config.listener.v3.Listener/l");
    assert_eq!(talk.step("refuse b"), ["active c for x", "open c 20 s", "w0 failed: unreachable b: refused"]);
    assert_eq!(talk.step("wait 1 s"), ["open a 5 s", "open b 5 s"]);
}

#[test]
fn when_the_last_watch_of_an_authority_ends_all_of_its_servers_are_released() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
        unwatch w0
          close b
        wait 60 s
        # And it starts from the first one again.
        watch LDS l
          active a
          open a 5 s
        ",
    );
}

#[test]
fn the_silence_of_a_server_that_is_not_in_charge_changes_nothing_c54() {
    let setup = Setup::new(&["a", "b", "c"]).features(|features| features.resource_timer_is_transient_error = true);
    let mut talk = setup.start();
    talk.step("watch LDS l");
    talk.step("refuse a");
    talk.step("up b");
    // The server in charge says that there is none, so nothing is uncached when it fails.
    assert_eq!(talk.step("b< LDS 1 A: l??5")[1..], ["w0 failed: b says 5"]);
    talk.step("wait 1 s");
    talk.step("up a");
    assert_eq!(talk.step("lose b"), ["open b 5 s"]);
    assert_eq!(talk.step("refuse b"), ["w0 failed: unreachable b: refused"]);
    // One above it that is alive and silent has its say only if it takes over.
    talk.step("block b");
    assert_eq!(talk.step("wait 30 s"), ["open b 5 s"]);
    assert_eq!(talk.client.dump()[0].state, ResourceState::ReceivedError);
}

/// A95, when an authority is started again while its first server is known to be down.
#[test]
fn a_reachability_only_authority_that_starts_on_a_server_that_is_down_falls_back_at_once_c42() {
    let e = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut talk = Setup::new(&["a"]).authority("x", &["a", "b"], true).start();
    talk.step(&format!("watch LDS l & watch EDS {e}"));
    talk.step("up a");
    talk.step("a< LDS 1 A: l:=r");
    talk.step(&format!("a< EDS 1 A: {e}:=80"));
    talk.step("lose a");
    talk.step("refuse a");
    talk.step("up b");
    talk.step(&format!("b< EDS 1 A: {e}:=81"));
    talk.step("wait 1 s");
    talk.step("up a");
    talk.step("block a");
    talk.step("watch LDS m");
    talk.step("unwatch w1");
    let told = talk.step(&format!("watch EDS {e}"));
    assert!(told.contains(&"active b for x".to_owned()), "a is down: {told:?}");
}

/// The same if everything is cached: its value is still there, because the server that sent it was not told yet that
/// nobody wants it.
#[test]
fn a_reachability_only_authority_falls_back_at_its_start_with_everything_cached_c42() {
    let e = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    for (reachability_only, falls_back) in [(true, true), (false, false)] {
        let mut talk = Setup::new(&["a"]).authority("x", &["a", "b"], reachability_only).start();
        talk.step(&format!("watch LDS l & watch EDS {e}"));
        talk.step("up a");
        talk.step("a< LDS 1 A: l:=r");
        talk.step(&format!("a< EDS 1 A: {e}:=80"));
        talk.step("lose a");
        talk.step("refuse a");
        talk.step("wait 1 s");
        talk.step("freeze a"); // It is held to be down until it says something.
        talk.step("up a");
        talk.step("block a");
        talk.step("watch LDS m");
        talk.step("unwatch w1");
        let told = talk.step(&format!("watch EDS {e}"));
        assert!(told.contains(&"w3 changed: 80 from a 1".to_owned()), "{told:?}");
        assert_eq!(told.contains(&"active b for x".to_owned()), falls_back, "{told:?}");
    }
}
