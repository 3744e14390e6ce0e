//! The ADS conversation: `docs/rules/01` sections 3 to 9 and 11.

use super::talk::{Setup, talk};
use crate::client::ResourceState;

#[test]
fn the_first_message_of_each_stream_carries_the_node_and_no_other_p16() {
    talk(
        &["a"],
        "
        watch LDS l & watch RDS r
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
          a> RDS - -: r
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        end a
          open a 20 s
        up a
          a> LDS 1 -: l +node
          a> RDS - -: r
        ",
    );
}

#[test]
fn a_restarted_stream_keeps_versions_and_forgets_nonces_p25_p32() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< EDS 7 A: e:=80
          a> EDS 7 A: e
          w0 changed: 80 from a 7
        end a
          open a 20 s
        # Also when attempts fail in between.
        refuse a
          w0 ambient: unreachable a: refused
        wait 1 s
          open a 20 s
        up a
          a> EDS 7 -: e +node
        a< EDS 8 A: e:=80
          a> EDS 8 A: e
          w0 ambient: none
        ",
    );
}

#[test]
fn each_response_is_acked_and_an_equal_resource_is_not_told_again_p35_p43() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        # The same bytes, then the same meaning in other bytes.
        a< EDS 2 B: e:=80
          a> EDS 2 B: e
        a< EDS 3 C: [e]:=80
          a> EDS 3 C: e
        a< EDS 4 D: e:=81
          a> EDS 4 D: e
          w0 changed: 81 from a 4
        # P-45: an empty nonce is tolerated.
        a< EDS 5 : e:=82
          a> EDS 5 -: e
          w0 changed: 82 from a 5
        ",
    );
}

#[test]
fn a_nack_carries_its_nonce_the_old_version_and_the_error_p31_p39() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        # P-29: no version before the first good response.
        a< EDS 1 A: e!!
          a> EDS - A: e NACK ClusterLoadAssignment \"e\": <faults>
          w0 failed: rejected from a 1
        a< EDS 2 B: e:=80
          a> EDS 2 B: e
          w0 changed: 80 from a 2
        a< EDS 3 C: e!!
          a> EDS 2 C: e NACK ClusterLoadAssignment \"e\": <faults>
          w0 ambient: rejected from a 3
        # The next request of the type has no error any more.
        watch EDS f
          a> EDS 2 C: e f
        a< EDS 4 D: e:=80 f:=90
          a> EDS 4 D: e f
          w0 ambient: none
          w1 changed: 90 from a 4
        ",
    );
}

#[test]
fn a_nack_lists_a_name_that_was_added_meanwhile_p46() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        watch EDS f & a< EDS 1 A: e:=80 ~
          a> EDS - A: e f NACK resources[1]: <garbage>
          w0 changed: 80 from a 1
        ",
    );
}

#[test]
fn a_partly_bad_response_gives_its_good_resources_and_does_not_advance_the_version_p38_p39() {
    talk(
        &["a"],
        "
        watch RDS good & watch RDS bad & watch RDS other
          active a
          open a 20 s
        up a
          a> RDS - -: bad good other +node
        a< RDS 1 A: good:=x bad!! other:=x
          a> RDS - A: bad good other NACK RouteConfiguration \"bad\": <faults>
          w0 changed: x from a 1
          w1 failed: rejected from a 1
          w2 changed: x from a 1
        ",
    );
}

#[test]
fn every_fault_of_a_response_is_named_in_one_nack_p37() {
    talk(
        &["a"],
        "
        watch RDS r & watch RDS s
          active a
          open a 20 s
        up a
          a> RDS - -: r s +node
        a< RDS 1 A: ~ % [] [r]- [s]:=x unasked!!
          a> RDS - A: r s NACK resources[0]: <garbage>; resources[1]: type_url: is \"type.googleapis.com/another.Type\": expected \"type.googleapis.com/envoy.config.route.v3.RouteConfiguration\"; resources[2]: <garbage>; RouteConfiguration \"r\": resource: is missing; RouteConfiguration \"unasked\": <faults>
          w0 failed: rejected from a 1
          w1 changed: x from a 1
        ",
    );
}

#[test]
fn bad_then_good_before_the_nack_left_are_answered_each_with_its_own_nonce_d2() {
    talk(
        &["a"],
        "
        watch EDS e & watch EDS f
          active a
          open a 20 s
        block a
        up a
          a> EDS - -: e f +node
        a< EDS 1 A: e!! f:=81
          w0 failed: rejected from a 1
          w1 changed: 81 from a 1
        a< EDS 2 B: e:=80 f:=81
          w0 changed: 80 from a 2
        a< EDS 3 C: ~
        unblock a
          a> EDS - A: e f NACK ClusterLoadAssignment \"e\": <faults>
          a> EDS 2 B: e f
          a> EDS 2 C: e f NACK resources[0]: <garbage>
        ",
    );
}

#[test]
fn garbage_and_unknown_types_are_ignored_and_the_stream_goes_on_p36_d3() {
    let ignored = |server: &str| -> Vec<String> {
        let mut talk = Setup::new(&["a"]).show_reports().start();
        talk.step("watch EDS e");
        talk.step("up a");
        talk.step(server).into_iter().filter(|line| !line.contains("Answered")).collect()
    };
    assert!(ignored("a< garbage")[0].starts_with("Ignored"));
    assert!(ignored("a< what.Ever 1 A: x")[0].contains("which was not asked for"));
    // A type that we know and did not name on this stream: an ACK without names would be a wildcard (P-48).
    assert!(ignored("a< LDS 1 A: x")[0].contains("which was not asked for"));
    assert_eq!(ignored("a< garbage").len(), 1);

    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< garbage
        a< what.Ever 1 X: x
        a< LDS 1 Y: x
        # It was no answer: the end of the stream is a failure.
        end a
          w0 failed: unreachable a: ended
        wait 1 s
          open a 20 s
        up a
          a> EDS - -: e +node
        a< garbage
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        ",
    );
}

#[test]
fn resources_come_in_wrappers_whose_name_wins_p64_p65() {
    talk(
        &["a"],
        "
        watch LEDS c & watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
          a> LEDS - -: c
        a< LDS 1 A: [l]:=r
          a> LDS 1 A: l
          w1 changed: r from a 1
        a< LEDS 1 A: [c]:=80
          a> LEDS 1 A: c
          w0 changed: 80 from a 1
        # A collection has no name of its own.
        a< LEDS 2 B: c:=81
          a> LEDS 1 B: c NACK resources[0]: has no name: expected a Resource wrapper that names it
        ",
    );
}

#[test]
fn a_name_twice_in_a_response_is_rejected_p42() {
    talk(
        &["a"],
        "
        watch EDS e & watch EDS f
          active a
          open a 20 s
        up a
          a> EDS - -: e f +node
        a< EDS 1 A: e:=80 f:=81 e:=82
          a> EDS - A: e f NACK ClusterLoadAssignment \"e\": is in the response more than once
          w0 failed: rejected from a 1
          w1 changed: 81 from a 1
        ",
    );
}

#[test]
fn what_is_missing_from_a_full_state_is_deleted_but_not_what_is_new_p49_p50() {
    talk(
        &["a"],
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        watch LDS m
          a> LDS 1 A: l m
        # It may answer the request before: m has its time.
        a< LDS 2 B: l:=r
          a> LDS 2 B: l m
        a< LDS 3 C: m:=s
          a> LDS 3 C: l m
          w0 ambient: deleted on a
          w1 changed: s from a 3
        # Said once is enough.
        a< LDS 4 D: m:=s
          a> LDS 4 D: l m
        # P-54: it may come back.
        a< LDS 5 E: l:=r m:=s
          a> LDS 5 E: l m
          w0 ambient: none
        # P-40: nothing is a full state too.
        a< LDS 6 F:
          a> LDS 6 F: l m
          w0 ambient: deleted on a
          w1 ambient: deleted on a
        ",
    );
}

#[test]
fn a_response_with_a_nameless_resource_deletes_nothing() {
    talk(
        &["a"],
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        a< LDS 2 B: ~
          a> LDS 1 B: l NACK resources[0]: <garbage>
        ",
    );
}

#[test]
fn absence_from_other_types_says_nothing_p44_p52() {
    talk(
        &["a"],
        "
        watch EDS e & watch EDS f
          active a
          open a 20 s
        up a
          a> EDS - -: e f +node
        a< EDS 1 A: e:=80 f:=81
          a> EDS 1 A: e f
          w0 changed: 80 from a 1
          w1 changed: 81 from a 1
        a< EDS 2 B: f:=82
          a> EDS 2 B: e f
          w1 changed: 82 from a 2
        a< EDS 3 C:
          a> EDS 3 C: e f
        ",
    );
}

#[test]
fn unasked_resources_are_ignored_if_they_are_valid_p41() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< EDS 1 A: e:=80 f:=81
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        # Not cached: a new watch waits for the server.
        watch EDS f
          a> EDS 1 A: e f
        ",
    );
}

#[test]
fn the_timer_starts_when_the_request_has_left_p55() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        # No connection, no timer.
        wait 60 s
        block a
        up a
          a> EDS - -: e +node
        wait 60 s
        unblock a
        wait 14999 ms
        wait 1 ms
          w0 failed: does not exist on a after 15 s
        # P-57 (g): once per stream. P-54: it may still come.
        wait 60 s
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        ",
    );
}

#[test]
fn the_timer_is_per_resource_and_ends_when_the_resource_is_seen_good_or_bad_p57() {
    talk(
        &["a"],
        "
        watch EDS e & watch EDS f & watch EDS g
          active a
          open a 20 s
        up a
          a> EDS - -: e f g +node
        wait 10 s
        watch EDS h
          a> EDS - -: e f g h
        a< EDS 1 A: e:=80 f!!
          a> EDS - A: e f g h NACK ClusterLoadAssignment \"f\": <faults>
          w0 changed: 80 from a 1
          w1 failed: rejected from a 1
        wait 5 s
          w2 failed: does not exist on a after 15 s
        # P-57 (e): released in time.
        unwatch w3
          a> EDS - A: e f g
        wait 60 s
        ",
    );
}

#[test]
fn the_timer_starts_again_on_a_new_stream_but_not_for_cached_resources_p57() {
    let talk = Setup::new(&["a"]).talk(
        "
        watch EDS e & watch EDS f
          active a
          open a 20 s
        up a
          a> EDS - -: e f +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e f
          w0 changed: 80 from a 1
        wait 14 s
        end a
          open a 20 s
        wait 60 s
        up a
          a> EDS - -: e f +node
        wait 15 s
          w1 failed: does not exist on a after 15 s
        wait 60 s
        a< EDS 1 B: e:=80
          a> EDS 1 B: e f
        # Also for one that did not exist before; what was told is not told again.
        end a
          open a 20 s
        up a
          a> EDS - -: e f +node
        wait 60 s
        ",
    );
    let f = &talk.client.dump()[1];
    assert_eq!((f.resource.name.as_ref(), f.state), ("f", ResourceState::DoesNotExist));
    assert_eq!(f.error.as_ref().map(|error| error.at.since_start().as_secs()), Some(14 + 60 + 15));
}

#[test]
fn a_resource_that_was_seen_before_its_request_was_known_to_have_left_has_no_timer() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        block a
        up a
          a> EDS - -: e +node
        a< EDS 1 A: e!!
          w0 failed: rejected from a 1
        unblock a
          a> EDS - A: e NACK ClusterLoadAssignment \"e\": <faults>
        wait 60 s
        ",
    );
}

#[test]
fn a_transient_timer_takes_30_seconds_p56_d5() {
    let setup = Setup::new(&["a"]).features(|features| features.resource_timer_is_transient_error = true);
    setup.clone().talk(
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        wait 29999 ms
        wait 1 ms
          w0 failed: timed out on a after 30 s
        ",
    );
    setup.guards(|guards| guards.data_error_handling = false).talk(
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        wait 15 s
          w0 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn attempts_without_an_answer_are_paced_by_a_growing_backoff_p17_p19() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        refuse a
          w0 failed: unreachable a: refused
        wait 999 ms
        wait 1 ms
          open a 20 s
        # An open stream is no answer. The same failure is not told twice; another one is.
        up a
          a> EDS - -: e +node
        end a
          w0 failed: unreachable a: ended
        wait 1599 ms
        wait 1 ms
          open a 20 s
        refuse a
          w0 failed: unreachable a: refused
        wait 2560 ms
          open a 20 s
        up a
          a> EDS - -: e +node
        # P-20: a response forgives.
        a< EDS 1 A:
          a> EDS 1 A: e
        lose a
          open a 20 s
        refuse a
          w0 failed: unreachable a: refused
        wait 1 s
          open a 20 s
        ",
    );
}

#[test]
fn an_answered_stream_is_opened_again_at_once_and_a_loop_of_them_is_paced_p18() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        end a
          open a 20 s
        up a
          a> EDS 1 -: e +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
        end a
        wait 1 s
          open a 20 s
        up a
          a> EDS 1 -: e +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
        end a
        wait 1600 ms
          open a 20 s
        up a
          a> EDS 1 -: e +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
        # It lives longer than the pause that would follow.
        wait 2560 ms
        end a
          open a 20 s
        ",
    );
}

#[test]
fn a_silent_stream_is_no_failure_unless_the_settings_say_so_c36() {
    talk(
        &["a"],
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        wait 10 s
        ",
    );
    let setup =
        Setup::new(&["a", "b"]).settings(|s| s.silent_stream_timeout = Some(std::time::Duration::from_secs(10)));
    setup.talk(
        "
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 10 s
          close a
          active b
          open b 20 s
        # One answer is enough.
        up b
          b> LDS - -: l +node
        a< LDS 9 Z: l:=late
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        wait 500 ms
        wait 60 s
          open a 5 s
        ",
    );
}

#[test]
fn names_of_one_resource_are_one_subscription_whatever_their_form_p84_p94() {
    Setup::new(&["a"]).authority("x", &[], false).talk(
        "
        watch EDS xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e?b=1&a=2
          active a for x
          open a 20 s
        watch EDS xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e?a=2&b=1
        up a
          a> EDS - -: xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e?a=2&b=1 +node
        a< EDS 1 A: xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e?b=1&a=2:=80
          a> EDS 1 A: xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e?a=2&b=1
          w0 changed: 80 from a 1
          w1 changed: 80 from a 1
        ",
    );
}

#[test]
fn names_that_cannot_be_used_fail_at_once_and_cause_no_traffic_c8_p82_p88() {
    Setup::new(&["a"]).authority("x", &[], false).talk(
        "
        watch EDS xdstp://x/envoy.config.cluster.v3.Cluster/e
          w0 failed: invalid name
        watch EDS xdstp://y/envoy.config.endpoint.v3.ClusterLoadAssignment/e
          w1 failed: unknown authority y
        unwatch w0 & unwatch w1
        ",
    );
    // B-30: without federation every name is an old-style one.
    Setup::new(&["a"]).guards(|guards| guards.federation = false).talk(
        "
        watch EDS xdstp://y/any/thing
          active a
          open a 20 s
        ",
    );
}

#[test]
fn a_resource_with_a_bad_name_in_a_response_is_rejected_p82() {
    talk(
        &["a"],
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< EDS 1 A: xdstp://x/envoy.config.cluster.v3.Cluster/e:=80
          a> EDS - A: e NACK resources[0]: name: \"xdstp://x/envoy.config.cluster.v3.Cluster/e\": names a resource of type \"envoy.config.cluster.v3.Cluster\": expected envoy.config.endpoint.v3.ClusterLoadAssignment
        ",
    );
}

#[test]
fn unsubscribing_shrinks_the_list_and_the_last_name_of_a_type_leaves_an_empty_one_p34_p48() {
    talk(
        &["a"],
        "
        watch EDS e & watch EDS f & watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
          a> EDS - -: e f
        a< EDS 1 A: e:=80 f:=81
          a> EDS 1 A: e f
          w0 changed: 80 from a 1
          w1 changed: 81 from a 1
        unwatch w0
          a> EDS 1 A: f
        unwatch w1
          a> EDS 1 A: -
        # A late response is acknowledged; a later watch goes on with nonce and version.
        a< EDS 2 B: f:=82
          a> EDS 2 B: -
        watch EDS e
          a> EDS 2 B: e
        ",
    );
}

#[test]
fn a_stream_on_which_nothing_is_left_is_closed_without_a_word_p15() {
    let talk = Setup::new(&["a"]).talk(
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        unwatch w0
          close a
        # Whatever comes late is ignored, and everything starts afresh.
        a< EDS 2 B: e:=81
        watch EDS e
          active a
          open a 20 s
        old a< EDS 2 B: e:=81
        up a
          a> EDS - -: e +node
        unwatch w1
          close a
        ",
    );
    assert!(talk.client.is_idle());
}

#[test]
fn a_server_that_nobody_needs_is_left_in_every_state_p15() {
    talk(
        &["a"],
        "
        # While it is connecting.
        watch EDS e
          active a
          open a 20 s
        unwatch w0
          close a
        # While it waits for the next attempt: no timer is left.
        watch EDS e
          active a
          open a 20 s
        refuse a
          w1 failed: unreachable a: refused
        unwatch w1
        wait 60 s
        # While a request is on its way.
        block a
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        unwatch w2
          close a
        ",
    );
}

#[test]
fn a_quick_second_watch_finds_the_resource_that_was_just_released_p95() {
    talk(
        &["a"],
        "
        watch EDS e & watch EDS f
          active a
          open a 20 s
        up a
          a> EDS - -: e f +node
        a< EDS 1 A: e:=80 f:=81
          a> EDS 1 A: e f
          w0 changed: 80 from a 1
          w1 changed: 81 from a 1
        # Before anything was handed out.
        unwatch w0 & watch EDS e
          w2 changed: 80 from a 1
        # While the unsubscribing request cannot leave.
        block a
        watch EDS g
          a> EDS 1 A: e f g
        unwatch w2
        watch EDS e
          w4 changed: 80 from a 1
        unblock a
        # Too late: the server was told, so it must send it again.
        unwatch w4
          a> EDS 1 A: f g
        watch EDS e
          a> EDS 1 A: e f g
        # Even the last watch of all.
        unwatch w1 & unwatch w3 & unwatch w5 & watch EDS f
          a> EDS 1 A: f
          w6 changed: 81 from a 1
        ",
    );
}

#[test]
fn requests_coalesce_per_type_while_one_is_on_its_way_p23() {
    talk(
        &["a"],
        "
        watch LDS l
          active a
          open a 20 s
        block a
        up a
          a> LDS - -: l +node
        watch EDS e
        watch EDS f
        watch RDS r
        unwatch w1
        watch LDS m
        unblock a
          a> RDS - -: r
          a> EDS - -: f
          a> LDS - -: l m
        ",
    );
}

#[test]
fn five_thousand_watches_are_one_request_per_type() {
    let mut talk = Setup::new(&["a"]).start();
    let both = |n: usize| format!("watch CDS c{n:04} & watch EDS e{n:04}");
    let all: Vec<String> = (0..5000).map(both).collect();
    assert_eq!(talk.step(&all.join(" & ")), ["active a", "open a 20 s"]);
    let done = talk.step("up a");
    assert_eq!(done.len(), 2);
    assert!(done[0].starts_with("a> CDS - -: c0000 c0001 ") && done[0].ends_with(" c4999 +node"));
    assert!(done[1].starts_with("a> EDS - -: e0000 e0001 ") && done[1].ends_with(" e4999"));

    let clusters: Vec<String> = (0..5000).map(|n| format!("c{n:04}:=e{n:04}")).collect();
    let done = talk.step(&format!("a< CDS 1 A: {}", clusters.join(" ")));
    assert_eq!(done.len(), 1 + 5000);
    assert!(done[0].starts_with("a> CDS 1 A: c0000 "));
    // A resend with one change is one ACK and one notification.
    let clusters = clusters.join(" ").replace("c0007:=e0007", "c0007:=other");
    let done = talk.step(&format!("a< CDS 2 B: {clusters}"));
    assert_eq!(done.len(), 2);
    assert_eq!(done[1], "w14 changed: other from a 2");
}

/// A server that trusts versions may stay silent, and what never came would "not exist".
#[test]
fn a_new_stream_tells_no_version_of_a_type_of_which_something_never_came() {
    talk(
        &["a"],
        "
        watch EDS e & watch RDS r
          active a
          open a 20 s
        up a
          a> RDS - -: r +node
          a> EDS - -: e
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w0 changed: 80 from a 1
        a< RDS 1 A: r:=x
          a> RDS 1 A: r
          w1 changed: x from a 1
        watch EDS f & lose a
          open a 20 s
        up a
          a> RDS 1 -: r +node
          a> EDS - -: e f
        # Nor does a NACK.
        a< EDS 2 A: e!!
          a> EDS - A: e f NACK ClusterLoadAssignment \"e\": <faults>
          w0 ambient: rejected from a 2
        ",
    );
}

#[test]
fn a_client_that_lacks_nothing_comes_back_after_a_draw_and_a_new_need_ends_the_wait() {
    let spread = || Setup::new(&["a"]).settings(|s| s.reconnect_spread = std::time::Duration::from_secs(2));
    spread().talk(
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        # The draws of these tests are in the middle.
        lose a
        wait 999 ms
        wait 1 ms
          open a 20 s
        up a
          a> LDS 1 -: l +node
        wait 60 s
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
        lose a
        # Another watcher needs nothing new.
        watch LDS l
          w1 changed: r from a 1
        watch LDS m
          open a 20 s
        # Nor does a failure end a pause that failures made.
        refuse a
          w0 ambient: unreachable a: refused
          w1 ambient: unreachable a: refused
          w2 failed: unreachable a: refused
        watch LDS n
          w3 failed: unreachable a: refused
        wait 1 s
          open a 20 s
        ",
    );
    // What is missing is not waited for.
    spread().talk(
        "
        watch LDS l & watch LDS m
          active a
          open a 20 s
        up a
          a> LDS - -: l m +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l m
          w0 changed: r from a 1
        lose a
          open a 20 s
        ",
    );
}

#[test]
fn who_is_on_a_fallback_or_falls_back_readily_does_not_wait() {
    let set = |s: &mut crate::client::ClientSettings| s.reconnect_spread = std::time::Duration::from_secs(2);
    let mut talk = Setup::new(&["a", "b"]).settings(set).start();
    talk.step("watch LDS l");
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< LDS 1 A: l:=r");
    assert_eq!(talk.step("lose b"), ["open b 20 s"]);

    let e = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut talk = Setup::new(&["a"]).authority("x", &["a", "b"], true).settings(set).start();
    talk.step("watch LDS l");
    talk.step("up a");
    talk.step("a< LDS 1 A: l:=r");
    assert_eq!(talk.step("lose a"), [""; 0], "the top level may wait");
    assert_eq!(talk.step(&format!("watch EDS {e}")), ["active a for x", "open a 5 s"]);
    talk.step("up a");
    talk.step(&format!("a< EDS 1 A: {e}:=80"));
    talk.step("wait 60 s");
    assert_eq!(talk.step("lose a"), ["open a 5 s"], "x may not");
}

/// P-67: with the guard off nobody should send collections of endpoints.
#[test]
fn collections_of_endpoints_are_understood_unless_their_guard_is_off() {
    let tells = |on: bool| {
        let node = Setup::new(&["a"]).guards(|guards| guards.endpoint_fallback = on).start().client.node();
        node.client_features.iter().any(|feature| feature == "xds.endpoint.supports_lb_endpoint_collection")
    };
    assert_eq!([true, false].map(tells), [true, false]);
}

/// A lost server that one authority is in no hurry with is tried at once when another one falls back to it.
#[test]
fn who_falls_back_to_a_server_that_others_come_back_to_at_leisure_does_not_wait() {
    let setup = Setup::new(&["a", "b"]).authority("east", &["b"], false);
    let mut talk = setup.settings(|s| s.reconnect_spread = std::time::Duration::from_secs(2)).start();
    let name = "xdstp://east/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    talk.step(&format!("watch EDS {name}"));
    talk.step("up b");
    talk.step(&format!("b< EDS 1 A: {name}:=80"));
    assert_eq!(talk.step("lose b"), [""; 0]);
    talk.step("watch LDS l");
    assert_eq!(talk.step("refuse a"), ["active b", "open b 20 s"]);
}

#[test]
fn a_new_stream_tells_no_version_unless_versions_are_trusted_dx30() {
    // A server that counts from 1 in each process and believes versions would say nothing, with other content.
    Setup::new(&["a"]).settings(|settings| settings.trust_versions = false).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 20 s
        up a
          a> LDS - -: shop +node
          a> CDS - -: x
        a< LDS 1 A: shop & a< CDS 1 B: x
          a> LDS 1 A: shop
          a> CDS 1 B: x
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
        end a
          open a 20 s
        up a
          a> LDS - -: shop +node
          a> CDS - -: x
        # As it was, and something else under the same version.
        a< LDS 1 A: shop & a< CDS 1 B: x:=2
          a> LDS 1 A: shop
          a> CDS 1 B: x
          w1 changed: 2 from a 1
        ",
    );
}
