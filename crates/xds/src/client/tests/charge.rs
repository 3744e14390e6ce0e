//! What servers say that are not in charge (yet, or any more): it is kept with their stream, and counts once they are.

use super::talk::{Setup, talk};

#[test]
fn a_rejection_from_a_server_that_returns_counts_when_it_takes_over() {
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
        # It dies in mid-update, and the next one is slow to connect.
        watch CDS c & lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
          a> CDS - -: c
        # Clusters come before listeners, as Envoy wants them.
        a< CDS 2 A: c!!
          a> CDS - A: c NACK Cluster \"c\": <faults>
        a< LDS 2 A: l:=s
          active a
          a> LDS 2 A: l
          close b
          w0 changed: s from a 2
          w1 failed: rejected from a 2
        wait 600 s
        ",
    );
}

#[test]
fn it_replaces_what_the_released_server_said() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch CDS c & watch CDS d
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          b> CDS - -: c d
        b< LDS 1 A: l:=r
          b> LDS 1 A: l
          w0 changed: r from b 1
        wait 15 s
          open a 5 s
          w1 failed: does not exist on b after 15 s
          w2 failed: does not exist on b after 15 s
        up a
          a> LDS - -: l +node
          a> CDS - -: c d
        a< CDS 2 A: c!!
          a> CDS - A: c d NACK Cluster \"c\": <faults>
        # Of d it has said nothing yet: that is waited for, and what b said of it does not count any more.
        a< LDS 2 A: l:=s
          active a
          a> LDS 2 A: l
          close b
          w0 changed: s from a 2
          w1 failed: rejected from a 2
        wait 15 s
          w2 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn a_timer_that_ran_out_before_the_takeover_counts_with_it() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch CDS c
          active a
          open a 5 s
        refuse a
          active b
          open b 20 s
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
          a> CDS - -: c
        wait 20 s
        up b
          b> LDS - -: l +node
          b> CDS - -: c
        a< LDS 1 A: l:=r
          active a
          a> LDS 1 A: l
          close b
          w0 changed: r from a 1
          w1 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn an_error_from_a_server_that_returns_counts_when_it_takes_over_p59() {
    let mut talk = Setup::new(&["a", "b"]).features(|features| features.fail_on_data_errors = true).start();
    talk.step("watch LDS l & watch EDS e & watch EDS f");
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< LDS 1 A: l:=r");
    talk.step("b< EDS 1 A: e:=80 f:=81");
    talk.step("wait 1 s");
    talk.step("up a");
    assert_eq!(talk.step("a< EDS 1 A: e??5 f??14"), ["a> EDS 1 A: e f"], "b is in charge");
    assert_eq!(
        talk.step("a< LDS 1 A: l:=r")[3..],
        ["w0 confirmed: from a 1", "w1 failed: a says 5", "w2 ambient: a says 14"]
    );
}

#[test]
fn errors_of_a_released_server_are_called_off() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch EDS e
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
          a> EDS - -: e
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w1 changed: 80 from a 1
        watch RDS r & lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          b> RDS - -: r
          b> EDS - -: e
        b< EDS 7 A: e!!
          b> EDS - A: e NACK ClusterLoadAssignment \"e\": <faults>
          w1 ambient: rejected from b 7
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
          a> RDS - -: r
          a> EDS - -: e
        a< RDS 1 A: r:=x
          active a
          a> RDS 1 A: r
          close b
          w1 ambient: none
          w2 changed: x from a 1
        ",
    );
}

#[test]
fn errors_of_a_server_that_failed_are_called_off_when_the_next_one_takes_over() {
    talk(
        &["a", "b"],
        "
        watch LDS l & watch EDS e
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
          a> EDS - -: e
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        a< LDS 2 B: l!!
          a> LDS 1 B: l NACK Listener \"l\": <faults>
          w0 ambient: rejected from a 2
        lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
          w0 ambient: none
        ",
    );
}

/// A71: "Once such a resource is received". A server that starts with an empty cache has sent none.
#[test]
fn a_response_without_a_resource_that_somebody_watches_does_not_end_fallback() {
    Setup::new(&["a", "b"]).features(|features| features.fail_on_data_errors = true).talk(
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
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
          a> RDS - -: r
        a< LDS 0 A:
          a> LDS 0 A: l
        a< LDS 1 B: other:=r
          a> LDS 1 B: l
        a< RDS 1 C: r??14
          a> RDS 1 C: r
        b< LDS 2 B: l:=s
          b> LDS 2 B: l
          w0 changed: s from b 2
        # It has filled its cache.
        a< RDS 2 D: r:=x
          active a
          a> RDS 2 D: r
          close b
          w1 changed: x from a 2
        ",
    );
}

#[test]
fn each_authority_returns_when_a_resource_of_its_own_comes() {
    let e = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut talk = Setup::new(&["a", "b"]).authority("x", &["a", "b"], false).start();
    talk.step(&format!("watch LDS l & watch EDS {e}"));
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< LDS 1 A: l:=r");
    talk.step(&format!("b< EDS 1 A: {e}:=80"));
    talk.step("wait 1 s");
    talk.step("up a");
    let told = talk.step("a< LDS 1 A: l:=r");
    assert!(told.contains(&"active a".to_owned()) && !told.contains(&"active a for x".to_owned()), "{told:?}");
    let told = talk.step(&format!("a< EDS 1 A: {e}:=80"));
    assert!(told.contains(&"active a for x".to_owned()), "{told:?}");
}

#[test]
fn a_version_that_does_not_count_any_more_is_not_told_by_a_nack_that_waits() {
    let mut talk = Setup::new(&["a", "b"]).start();
    talk.step("watch LDS l & watch CDS c");
    talk.step("up a");
    talk.step("a< CDS 5 A: c:=x");
    talk.step("lose a");
    talk.step("refuse a");
    talk.step("wait 1 s");
    assert_eq!(talk.step("up a"), ["a> LDS - -: l +node", "a> CDS - -: c"]);
    talk.step("block a");
    talk.step("watch RDS r");
    talk.step("a< CDS 6 A: c!!");
    talk.step("up b");
    talk.step("b< CDS 1 A: c:=y");
    assert_eq!(talk.step("unblock a"), ["a> CDS - A: c NACK Cluster \"c\": <faults>"]);
}

/// The same for an acknowledgement: a is in charge of one authority, and was of the other when it answered.
#[test]
fn an_ack_that_waits_tells_no_version_of_a_type_that_must_be_sent_again() {
    let [e, f] = ["e", "f"].map(|id| format!("xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/{id}"));
    let mut talk = Setup::new(&["a"]).authority("x", &["a", "b"], true).start();
    talk.step(&format!("watch LDS l & watch EDS d & watch EDS {e}"));
    talk.step("up a");
    talk.step("a< LDS 1 A: l:=r");
    talk.step(&format!("a< EDS 1 A: d:=80 {e}:=81"));
    talk.step("lose a");
    talk.step("refuse a");
    talk.step("wait 1 s");
    // While it is held to be down, x is with b: everything that x has must come again.
    assert_eq!(talk.step("up a"), ["a> LDS 1 -: l +node".to_owned(), format!("a> EDS - -: d {e}")]);
    talk.step("block a");
    talk.step("watch RDS r");
    talk.step("a< EDS 2 A: d:=82");
    talk.step(&format!("watch EDS {f}"));
    // The answer of a is an acknowledgement, and its version that of the response.
    assert_eq!(talk.step("unblock a"), [format!("a> EDS 2 A: d {e} {f}")]);
}

/// Both, if the version is forgotten while they wait: b overwrites what a had sent of the other authority.
#[test]
fn answers_that_wait_tell_no_version_that_was_forgotten_meanwhile() {
    let e = "xdstp://x/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut talk = Setup::new(&["a"]).authority("x", &["a", "b"], true).start();
    talk.step(&format!("watch LDS l & watch EDS d & watch EDS {e}"));
    talk.step("up a");
    talk.step("a< LDS 1 A: l:=r");
    talk.step(&format!("a< EDS 1 A: d:=80 {e}:=81"));
    talk.step("lose a");
    talk.step("refuse a");
    talk.step("wait 1 s");
    talk.step("up a & up b");
    talk.step("block a");
    talk.step("watch RDS r");
    talk.step("a< EDS 2 A: d:=82");
    talk.step("a< EDS 3 B: d!!");
    talk.step(&format!("b< EDS 1 A: {e}:=83"));
    let told = talk.step("unblock a");
    let to_a: Vec<_> = told.iter().filter(|line| line.starts_with("a> EDS")).collect();
    assert_eq!(to_a.len(), 2, "{told:?}");
    assert!(to_a.iter().all(|line| line.starts_with("a> EDS - ")), "{told:?}");
}

#[test]
fn the_answer_to_an_older_request_deletes_nothing_p50() {
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
        up a
          a> LDS - -: l +node
        watch LDS m
          a> LDS - -: l m
          b> LDS 1 A: l m
        b< LDS 2 B: l:=r m:=r
          b> LDS 2 B: l m
          w1 changed: r from b 2
        # It answers its first request, which named l only; the second crosses it on the wire.
        a< LDS 1 A: l:=r
          active a
          a> LDS 1 A: l m
          close b
          w0 confirmed: from a 1
        a< LDS 2 B: l:=r m:=s
          a> LDS 2 B: l m
          w1 changed: s from a 2
        # Now it has spoken of m.
        a< LDS 3 C: l:=r
          a> LDS 3 C: l m
          w1 failed: deleted on a
        ",
    );
}

#[test]
fn what_is_not_subscribed_any_more_is_not_deleted_by_a_response_that_leaves_it_out() {
    Setup::new(&["a", "b"]).features(|features| features.fail_on_data_errors = true).talk(
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
        block a
        watch EDS e
          a> EDS - -: e
          b> EDS - -: e
        # b is told, a is not yet.
        unwatch w1
          b> LDS 1 A: l
        b< LDS 2 B: l:=s
          b> LDS 2 B: l
          w0 changed: s from b 2
        # It is asked for anew.
        watch LDS m
          b> LDS 2 B: l m
        b< LDS 3 C: l:=s m:=t
          b> LDS 3 C: l m
          w3 changed: t from b 3
        ",
    );
}

/// Nor is such a deletion told as one that was ignored (A53): what is left out still comes from a, which is not told yet.
#[test]
fn what_is_not_subscribed_any_more_is_not_a_deletion_that_is_ignored() {
    let old_rules = Setup::new(&["a", "b"]).guards(|guards| guards.data_error_handling = false);
    old_rules.features(|features| features.ignore_resource_deletion = true).show_reports().start().run_filtered(
        &["Acked", "Deletion", "active", "b>"],
        "
        watch LDS l & watch LDS m
          active a
        up a
        a< LDS 1 A: l:=r m:=r
          Acked a Listener 1 2
        watch CDS c
        lose a
        refuse a
          active b
        up b
          b> LDS - -: l m +node
          b> CDS - -: c
        wait 1 s
        up a
        block a
        watch EDS e
          b> EDS - -: e
        unwatch w1
          b> LDS - -: l
        b< LDS 1 A: l:=s
          Acked b Listener 1 1
          b> LDS 1 A: l
        ",
    );
}

#[test]
fn what_a_server_said_while_nobody_watched_is_heard_by_the_next_watcher() {
    Setup::new(&["a"]).features(|features| features.fail_on_data_errors = true).talk(
        "
        watch LDS l & watch LDS m
          active a
          open a 20 s
        up a
          a> LDS - -: l m +node
        a< LDS 1 A: l:=r m:=r
          a> LDS 1 A: l m
          w0 changed: r from a 1
          w1 changed: r from a 1
        block a
        watch EDS e
          a> EDS - -: e
        # It does not know yet that nobody wants m.
        unwatch w1
        a< LDS 2 B: l:=r
        watch LDS m
          w3 failed: deleted on a
        unblock a
          a> LDS 2 B: l m
        ",
    );
}

#[test]
fn a_value_that_came_while_nobody_watched_is_asked_for_again() {
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
        block a
        watch EDS e
          a> EDS - -: e
          b> EDS - -: e
        unwatch w1
          b> LDS 1 A: l
        # a, which does not know that, sends it: nobody wants it, so that it is not kept and a does not take over.
        a< LDS 1 A: m:=s
        watch LDS m
          b> LDS 1 A: l m
        unblock a
          a> LDS - A: l m
        a< LDS 1 B: l:=r m:=s
          active a
          a> LDS 1 B: l m
          close b
          w0 confirmed: from a 1
          w3 changed: s from a 1
        ",
    );
}

/// What the server in charge said of a resource counts for whoever watches it again, though what was known of it is gone:
/// nothing is settled without a value, an error or a timer.
#[test]
fn a_resource_that_is_watched_again_is_told_what_the_server_in_charge_said_of_it() {
    let mut talk = Setup::new(&["a", "b"]).start();
    talk.step("watch LDS l & watch LDS m");
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< LDS 1 A: l:=x m:=y");
    talk.step("wait 1 s");
    talk.step("up a");
    talk.step("a< LDS 1 A: l!! m:=z");
    talk.step("block a");
    talk.step("watch LDS n"); // A request is on its way: no other can say that `l` is not wanted any more.
    talk.step("unwatch w0");
    let told = talk.step("watch LDS l");
    assert!(told.iter().any(|line| line.starts_with("w3 failed")), "{told:?}");
}

/// A71: what nobody watches any more does not put a server in charge.
#[test]
fn a_usable_resource_that_nobody_watches_any_more_does_not_end_fallback() {
    let mut talk = Setup::new(&["a", "b"]).start();
    talk.step("watch LDS l & watch CDS c");
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< LDS 1 A: l:=x");
    talk.step("b< CDS 1 A: c:=y");
    talk.step("wait 1 s");
    talk.step("up a");
    talk.step("block a & block b");
    talk.step("watch LDS n");
    talk.step("unwatch w0");
    let told = talk.step("a< LDS 1 A: l:=x");
    assert!(!told.contains(&"active a".to_owned()), "{told:?}");
    let told = talk.step("a< CDS 1 A: c:=z");
    assert!(told.contains(&"active a".to_owned()), "{told:?}");
}

/// A rejection that the returning server's first word is counts after the takeover, also if the resource belongs to
/// another authority that shares both servers.
#[test]
fn a_rejection_before_the_takeover_counts_after_it_across_authorities() {
    let leds = "xdstp://east/envoy.config.endpoint.v3.LbEndpointCollection/l";
    let mut talk = Setup::new(&["a", "b"]).authority("east", &["a", "b"], false).start();
    talk.step("watch LDS s & watch CDS c");
    talk.step("refuse a");
    talk.step("up b");
    talk.step("b< LDS 1 A: s:=r");
    talk.step("b< CDS 1 A: c:=x");
    talk.step(&format!("watch LEDS {leds}"));
    talk.step("wait 1 s");
    talk.step("up a");
    talk.step(&format!("a< LEDS 4 A: {leds}!!"));
    let mut told = talk.step("a< CDS 4 A: c:=y");
    told.extend(talk.step("a< LDS 4 A: s:=t"));
    told.extend(talk.step("wait 600 s"));
    assert!(told.iter().any(|line| line.starts_with("w2 ")), "the watcher of the collection hears nothing: {told:?}");
}

/// P1: a value of the server above that was overwritten, and then taken away, is asked for once more and waited for.
#[test]
fn what_must_be_sent_again_is_awaited_like_anything_else() {
    let mut talk = Setup::new(&["a", "b"]).features(|features| features.fail_on_data_errors = true).start();
    for line in [
        "watch LDS l",
        "up a",
        "a< LDS 1 A: l:=r",
        "lose a",
        "refuse a",
        "wait 1 s",
        "freeze a",
        "up a", // It is told the version, and owes nothing.
        "watch EDS e",
        "up b",
        "b< LDS 1 A: l:=s",
        "b< LDS 2 B:",
        "thaw a",
        "a< EDS 1 C: e:=80",
    ] {
        talk.step(line);
    }
    let told = talk.step("wait 15 s");
    assert_eq!(told, ["w0 failed: does not exist on a after 15 s"]);
}

/// The value that a had sent before it failed is still in use when a sends it again: what a said in between must not take
/// it away, or nothing is left that the response could confirm.
#[test]
fn an_error_that_the_response_takes_back_with_which_a_server_returns_does_not_count_c51() {
    let mut talk = Setup::new(&["a", "b"]).features(|features| features.fail_on_data_errors = true).start();
    talk.run(
        "
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        watch CDS c & lose a
          open a 5 s
        refuse a
          active b
          open b 20 s
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l +node
          a> CDS - -: c
        # It has just started, and knows nothing yet.
        a< LDS 2 A: l??7
          a> LDS 2 A: l
        ",
    );
    let mut other = talk.clone();
    talk.run(
        "
        a< LDS 3 B: l:=r
          active a
          a> LDS 3 B: l
          close b
        ",
    );
    // Nor does it if another error takes its place: only the last word of a server counts.
    other.run(
        "
        a< LDS 3 B: l??14
          a> LDS 3 B: l
        a< CDS 3 A: c:=e
          active a
          a> CDS 3 A: c
          close b
          w0 ambient: a says 14
          w1 changed: e from a 3
        ",
    );
}
