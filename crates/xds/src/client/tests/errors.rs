//! Errors and what watchers hear of them: `docs/rules/03` sections 2 to 5, every row of the table C-22.

use super::talk::{Setup, Talk, talk};
use crate::bootstrap::ServerFeatures;

/// What watchers hear when `event` happens to Listener `l`, without and with a cached value.
fn heard(setup: Setup, event: &str) -> (Vec<String>, Vec<String>) {
    let told = |mut talk: Talk, event: &str| -> Vec<String> {
        talk.step(event).into_iter().filter(|line| line.starts_with('w')).collect()
    };
    let mut without = setup.clone().start();
    let mut with = setup.start();
    for talk in [&mut without, &mut with] {
        talk.step("watch LDS l");
        talk.step("up a");
    }
    with.step("a< LDS 1 A: l:=r");
    (told(without, event), told(with, event))
}

fn fail_on_data_errors(features: &mut ServerFeatures) {
    features.fail_on_data_errors = true;
}

#[test]
fn a_connection_that_fails_is_a_resource_error_or_an_ambient_one_c23a_to_c23d() {
    for setup in [Setup::new(&["a"]), Setup::new(&["a"]).features(fail_on_data_errors)] {
        setup.talk(
            "
            watch LDS l & watch LDS m
              active a
              open a 20 s
            up a
              a> LDS - -: l m +node
            a< LDS 1 A: l:=r
              a> LDS 1 A: l m
              w0 changed: r from a 1
            # An answered stream that ends is no error.
            lose a
              open a 20 s
            # No connection.
            refuse a
              w0 ambient: unreachable a: refused
              w1 failed: unreachable a: refused
            wait 1 s
              open a 20 s
            up a
              a> LDS - -: l m +node
            # A stream without an answer.
            end a
              w0 ambient: unreachable a: ended
              w1 failed: unreachable a: ended
            ",
        );
    }
}

#[test]
fn a_nack_drops_data_only_if_the_server_says_so_c23e_to_c23g() {
    let (without, with) = heard(Setup::new(&["a"]), "a< LDS 2 B: l!!");
    assert_eq!(without, ["w0 failed: rejected from a 2"]);
    assert_eq!(with, ["w0 ambient: rejected from a 2"]);
    let (without, with) = heard(Setup::new(&["a"]).features(fail_on_data_errors), "a< LDS 2 B: l!!");
    assert_eq!(without, ["w0 failed: rejected from a 2"]);
    assert_eq!(with, ["w0 failed: rejected from a 2"]);
}

#[test]
fn the_timer_fails_only_what_has_no_data_c24() {
    let (without, with) = heard(Setup::new(&["a"]), "wait 60 s");
    assert_eq!(without, ["w0 failed: does not exist on a after 15 s"]);
    assert_eq!(with, [""; 0]);
    let transient = Setup::new(&["a"]).features(|features| features.resource_timer_is_transient_error = true);
    let (without, with) = heard(transient, "wait 60 s");
    assert_eq!(without, ["w0 failed: timed out on a after 30 s"]);
    assert_eq!(with, [""; 0]);
}

#[test]
fn a_deletion_drops_data_only_if_the_server_says_so_c25() {
    let (without, with) = heard(Setup::new(&["a"]), "a< LDS 2 B:");
    assert_eq!(without, [""; 0]);
    assert_eq!(with, ["w0 ambient: deleted on a"]);
    // A53's feature is the default and changes nothing (C-27).
    let (_, with) = heard(Setup::new(&["a"]).features(|f| f.ignore_resource_deletion = true), "a< LDS 2 B:");
    assert_eq!(with, ["w0 ambient: deleted on a"]);
    let (without, with) = heard(Setup::new(&["a"]).features(fail_on_data_errors), "a< LDS 2 B:");
    assert_eq!(without, [""; 0]);
    assert_eq!(with, ["w0 failed: deleted on a"]);
}

#[test]
fn the_version_of_data_that_was_dropped_is_not_told_any_more_p29() {
    Setup::new(&["a"]).features(fail_on_data_errors).talk(
        "
        watch CDS c
          active a
          open a 20 s
        up a
          a> CDS - -: c +node
        a< CDS 1 A: c:=x
          a> CDS 1 A: c
          w0 changed: x from a 1
        # A server that goes back to version 1 must not believe that we have it.
        a< CDS 2 B: c!!
          a> CDS - B: c NACK Cluster \"c\": <faults>
          w0 failed: rejected from a 2
        ",
    );
}

#[test]
fn an_error_of_another_server_does_not_hide_a_deletion_p61() {
    Setup::new(&["a", "b"]).talk(
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
        b< LDS 2 B: l??14
          b> LDS 2 B: l m
          w0 ambient: b says 14
        wait 1 s
          open a 5 s
        up a
          a> LDS - -: l m +node
        a< LDS 1 A: m:=s
          active a
          a> LDS 1 A: l m
          close b
          w0 ambient: deleted on a
          w1 changed: s from a 1
        ",
    );
}

#[test]
fn errors_from_the_server_drop_data_only_if_they_are_data_errors_and_it_says_so_c26() {
    for code in [5, 7] {
        let event = format!("a< LDS 2 B: l??{code}");
        let (without, with) = heard(Setup::new(&["a"]), &event);
        assert_eq!(without, [format!("w0 failed: a says {code}")]);
        assert_eq!(with, [format!("w0 ambient: a says {code}")]);
        let (without, with) = heard(Setup::new(&["a"]).features(fail_on_data_errors), &event);
        assert_eq!(without, [format!("w0 failed: a says {code}")]);
        assert_eq!(with, [format!("w0 failed: a says {code}")]);
    }
    for setup in [Setup::new(&["a"]), Setup::new(&["a"]).features(fail_on_data_errors)] {
        let (without, with) = heard(setup, "a< LDS 2 B: l??14");
        assert_eq!(without, ["w0 failed: a says 14"]);
        assert_eq!(with, ["w0 ambient: a says 14"]);
    }
}

#[test]
fn an_error_from_the_server_is_acked_and_remembered_until_it_says_something_new_p59_p61() {
    talk(
        &["a"],
        "
        watch LDS l & watch LDS m & watch LDS n
          active a
          open a 20 s
        up a
          a> LDS - -: l m n +node
        a< LDS 1 A: l:=r m:=r
          a> LDS 1 A: l m n
          w0 changed: r from a 1
          w1 changed: r from a 1
        a< LDS 2 B: m:=r l??14 n??5
          a> LDS 2 B: l m n
          w0 ambient: a says 14
          w2 failed: a says 5
        # It is not in later responses: that is no deletion. The timer of n is over.
        a< LDS 3 C: m:=r
          a> LDS 3 C: l m n
        wait 60 s
        a< LDS 4 D: l:=r m:=r
          a> LDS 4 D: l m n
          w0 ambient: none
        # P-62: what is wrong with the entries themselves.
        a< LDS 5 E: l:=r m:=r ??5 n??0
          a> LDS 4 E: l m n NACK resource_errors[0]: resource_name: is missing; Listener \"n\": error_detail: is missing or OK: expected an error
          w2 failed: rejected from a 5
        ",
    );
}

#[test]
fn with_data_error_handling_off_the_older_rules_hold_c28() {
    let off = |set: fn(&mut ServerFeatures)| {
        Setup::new(&["a"]).guards(|guards| guards.data_error_handling = false).features(set)
    };
    // NACK: ambient. Deletion: dropped. TP3 fields: not read.
    let (_, with) = heard(off(fail_on_data_errors), "a< LDS 2 B: l!!");
    assert_eq!(with, ["w0 ambient: rejected from a 2"]);
    let (_, with) = heard(off(|_| {}), "a< LDS 2 B:");
    assert_eq!(with, ["w0 failed: deleted on a"]);
    let (without, with) = heard(off(|_| {}), "a< LDS 2 B: l l??14");
    assert_eq!((without.len(), with.len()), (1, 1));
    assert!(without[0].starts_with("w0 changed: 1") && with[0].starts_with("w0 changed: 1"));
    // A53.
    off(|features| features.ignore_resource_deletion = true).show_reports().start().run_filtered(
        &["w0", "Deletion"],
        "
        watch LDS l & watch LDS m
        up a
        a< LDS 1 A: l:=r m:=r
          w0 changed: r from a 1
        a< LDS 2 B: m:=r
          DeletionIgnored a Listener \"l\"
        a< LDS 3 C: m:=r
        a< LDS 4 D: l:=r m:=r
          DeletionOver a Listener \"l\"
        a< LDS 5 E: m:=r
          DeletionIgnored a Listener \"l\"
        unwatch w0
          DeletionOver a Listener \"l\"
        ",
    );
}

#[test]
fn a_new_watcher_hears_the_resource_then_the_error_c10_c11() {
    talk(
        &["a"],
        "
        watch LDS l & watch LDS m
          active a
          open a 20 s
        up a
          a> LDS - -: l m +node
        a< LDS 1 A: l:=r m!!
          a> LDS - A: l m NACK Listener \"m\": <faults>
          w0 changed: r from a 1
          w1 failed: rejected from a 1
        watch LDS l
          w2 changed: r from a 1
        watch LDS m
          w3 failed: rejected from a 1
        a< LDS 2 B: m!!
          a> LDS - B: l m NACK Listener \"m\": <faults>
          w0 ambient: deleted on a
          w1 failed: rejected from a 2
          w2 ambient: deleted on a
          w3 failed: rejected from a 2
        watch LDS l
          w4 changed: r from a 1
          w4 ambient: deleted on a
        # Further watchers only join; leaving changes nothing until the last one.
        unwatch w0 & unwatch w2
        a< LDS 3 C: l:=s m:=s
          a> LDS 3 C: l m
          w1 changed: s from a 3
          w3 changed: s from a 3
          w4 changed: s from a 3
        ",
    );
}

#[test]
fn a_new_watcher_hears_that_the_server_is_unreachable_c12() {
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
        lose a
          open a 20 s
        refuse a
          w0 ambient: unreachable a: refused
        watch LDS l
          w1 changed: r from a 1
          w1 ambient: unreachable a: refused
        watch LDS m
          w2 failed: unreachable a: refused
        ",
    );
}

#[test]
fn ambient_errors_are_called_off_for_all_resources_when_the_server_answers_d4() {
    talk(
        &["a"],
        "
        watch LDS l & watch RDS r & watch EDS e
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
          a> RDS - -: r
          a> EDS - -: e
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        a< RDS 1 A: r:=x
          a> RDS 1 A: r
          w1 changed: x from a 1
        a< EDS 1 A: e:=80
          a> EDS 1 A: e
          w2 changed: 80 from a 1
        lose a
          open a 20 s
        refuse a
          w0 ambient: unreachable a: refused
          w1 ambient: unreachable a: refused
          w2 ambient: unreachable a: refused
        wait 1 s
          open a 20 s
        # An open stream is no answer (C-31).
        up a
          a> LDS 1 -: l +node
          a> RDS 1 -: r
          a> EDS 1 -: e
        # The server sends one type only, and changes nothing.
        a< RDS 1 B: r:=x
          a> RDS 1 B: r
          w0 ambient: none
          w1 ambient: none
          w2 ambient: none
        ",
    );
}

#[test]
fn an_equal_resource_calls_off_the_error_of_a_nack_and_of_a_deletion_d4_c16() {
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
        a< LDS 2 B: l!!
          a> LDS 1 B: l NACK Listener \"l\": <faults>
          w0 ambient: rejected from a 2
        a< LDS 3 C: l:=r
          a> LDS 3 C: l
          w0 ambient: none
        a< LDS 4 D:
          a> LDS 4 D: l
          w0 ambient: deleted on a
        a< LDS 5 E: l:=r
          a> LDS 5 E: l
          w0 ambient: none
        # An outage over a data error: the data error is what remains.
        a< LDS 6 F:
          a> LDS 6 F: l
          w0 ambient: deleted on a
        lose a
          open a 20 s
        refuse a
          w0 ambient: unreachable a: refused
        wait 1 s
          open a 20 s
        up a
          a> LDS 6 -: l +node
        a< LDS 6 A:
          a> LDS 6 A: l
          w0 ambient: deleted on a
        ",
    );
}

#[test]
fn a_dropped_resource_is_told_as_new_when_it_returns() {
    Setup::new(&["a"]).features(fail_on_data_errors).talk(
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        a< LDS 2 B:
          a> LDS 2 B: l
          w0 failed: deleted on a
        watch LDS l
          w1 failed: deleted on a
        a< LDS 3 C: l:=r
          a> LDS 3 C: l
          w0 changed: r from a 3
          w1 changed: r from a 3
        ",
    );
}

#[test]
fn news_coalesce_for_a_watcher_that_is_slow() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch LDS l");
    talk.step("up a");
    let done = talk.step("a< LDS 1 A: l:=r & a< LDS 2 B: & a< LDS 3 C: l!! & a< LDS 4 D: l:=s");
    assert_eq!(done.iter().filter(|line| line.starts_with('w')).collect::<Vec<_>>(), ["w0 changed: s from a 4"]);
    assert_eq!(done.iter().filter(|line| line.starts_with("a>")).count(), 4, "each response has its answer: {done:?}");
}

/// A53: that a deletion is ignored, or over, is told after the response that says so.
#[test]
fn what_is_told_of_an_ignored_deletion_follows_its_response() {
    let old_rules = Setup::new(&["a"]).guards(|guards| guards.data_error_handling = false);
    old_rules.features(|features| features.ignore_resource_deletion = true).show_reports().start().run_filtered(
        &["Acked", "Deletion"],
        "
        watch LDS l & watch LDS m
        up a
        a< LDS 1 A: l:=r m:=r
          Acked a Listener 1 2
        a< LDS 2 B: m:=r
          Acked a Listener 2 1
          DeletionIgnored a Listener \"l\"
        a< LDS 3 C: l:=r m:=r
          Acked a Listener 3 2
          DeletionOver a Listener \"l\"
        ",
    );
}
