//! Proof of life: what silence means, and when a server is not known to be down any more (`design.md`, A57).

use std::time::Duration;

use super::talk::{Setup, talk};
use crate::client::{ResourceState, ServerState};

const SILENT: Option<Duration> = Some(Duration::from_secs(7));

/// P-57a: a server that has the version that we told it need not repeat it.
#[test]
fn a_server_that_is_back_and_has_nothing_new_to_say_is_not_down() {
    for servers in [&["a"][..], &["a", "b"]] {
        let mut talk = Setup::new(servers).start();
        talk.step("watch LDS l");
        talk.step("up a");
        talk.step("a< LDS 1 A: l:=r");
        talk.step("lose a");
        assert_eq!(talk.step("refuse a"), ["w0 ambient: unreachable a: refused"]);
        talk.step("wait 1 s");
        // A connection proves nothing (C-31).
        assert_eq!(talk.step("up a"), ["a> LDS 1 -: l +node"]);
        assert!(talk.client.server_states()[0].last_error.is_some());
        assert_eq!(talk.step("wait 0 s"), ["w0 ambient: none"], "the probe is answered");
        assert_eq!(talk.client.server_states()[0].last_error, None);
        assert_eq!(talk.client.server_states()[0].state, ServerState::Ready);
        // A new watch neither fails nor falls back.
        assert_eq!(talk.step("wait 3600 s"), [""; 0]);
        assert_eq!(talk.step("watch LDS m"), ["a> LDS 1 -: l m"]);
    }
}

/// It owes no answer, so it is asked for a sign at once.
#[test]
fn a_server_that_is_back_is_down_until_it_gives_a_sign_of_life() {
    Setup::new(&["a"]).show_reports().start().run_filtered(
        &["w0", "probe", "close", "Unreachable", "Alive"],
        "
        watch LDS l
        up a
        a< LDS 1 A: l:=r
          w0 changed: r from a 1
        lose a
        refuse a
          Unreachable a refused 1000 ms
          w0 ambient: unreachable a: refused
        wait 1 s
        freeze a
        up a
        wait 4 s
          probe a
        wait 1 s
          close a
          Unreachable a it did not answer within 5 s: no sign of life 1600 ms
          w0 ambient: unreachable a: it did not answer within 5 s: no sign of life
        wait 1600 ms
        thaw a
        up a
        wait 1 s
          Alive a
          w0 ambient: none
        ",
    );
}

#[test]
fn all_requests_are_written_before_a_sign_of_life_counts() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch LDS l & watch EDS e");
    talk.step("up a");
    talk.step("a< LDS 1 A: l:=r");
    talk.step("a< EDS 1 A: e:=80");
    talk.step("lose a");
    talk.step("refuse a");
    talk.step("wait 1 s");
    talk.step("block a");
    talk.step("up a");
    // The second one is on its way.
    talk.step("unblock a & block a");
    assert_eq!(talk.step("a sends a byte"), [""; 0]);
    assert_eq!(talk.step("unblock a"), [""; 0]);
    assert_eq!(talk.step("a pongs"), ["w0 ambient: none", "w1 ambient: none"]);
}

#[test]
fn a_server_that_owes_nothing_may_be_silent_for_as_long_as_it_likes() {
    let setup = Setup::new(&["a"]).settings(|settings| settings.silent_stream_timeout = SILENT);
    setup.talk(
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
        up a
          a> LDS 1 -: l +node
        freeze a
        wait 3600 s
        # A new name makes it owe an answer from then on, and an unwatched one does not.
        watch LDS m
          a> LDS 1 -: l m
        thaw a
        wait 6 s
        unwatch w1 & watch LDS n
          a> LDS 1 -: l n
        wait 6 s
        wait 1 s
          close a
          w0 ambient: unreachable a: it did not answer within 7 s
          w2 failed: unreachable a: it did not answer within 7 s
        ",
    );
}

/// A57: a silent server is unreachable, and its resource is not called absent.
#[test]
fn a_server_that_is_frozen_in_mid_update_is_left_for_the_next_after_ten_seconds() {
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
        freeze a
        watch RDS r
          a> RDS - -: r
        wait 4999 ms
        wait 1 ms
          probe a +call
        wait 4999 ms
        wait 1 ms
          close a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          b> RDS - -: r
        b< RDS 1 A: r:=x
          b> RDS 1 A: r
          w1 changed: x from b 1
        ",
    );
}

#[test]
fn a_server_that_hangs_answers_pings_and_is_left_all_the_same_if_there_is_another() {
    talk(
        &["a", "b"],
        "
        hang a
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 5 s
          probe a +call
        wait 5 s
          close a
          active b
          open b 20 s
        refuse b
          w0 failed: unreachable b: refused
        ",
    );
    // The last one of the list is not left for a PONG: there is no better one, and A57's timer decides.
    talk(
        &["a"],
        "
        hang a
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        wait 5 s
          probe a
        wait 10 s
          w0 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn the_last_server_that_does_not_answer_is_unreachable_and_its_resources_are_not_absent() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch LDS l");
    talk.step("freeze a");
    talk.step("up a");
    assert_eq!(
        talk.step("wait 10 s"),
        ["probe a", "close a", "w0 failed: unreachable a: it did not answer within 10 s: no sign of life"]
    );
    assert_eq!(talk.client.dump()[0].state, ResourceState::Requested);
    assert_eq!(talk.step("wait 1 s"), ["open a 20 s"], "paced like any failed attempt");
}

#[test]
fn whoever_hangs_is_told_apart_from_whoever_is_gone() {
    let mut talk = Setup::new(&["a", "b"]).show_reports().start();
    talk.step("watch LDS l");
    talk.step("hang a");
    talk.step("up a");
    let told = talk.step("wait 10 s");
    let text =
        "Unreachable a it did not answer within 10 s: it answers HTTP/2 PINGs, but not even a health check 1000 ms";
    assert!(told.contains(&text.to_owned()), "{told:?}");
}

#[test]
fn an_answer_that_trickles_in_is_slow_and_not_dead() {
    talk(
        &["a", "b"],
        "
        freeze a
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 9 s
          probe a +call
        a sends a byte
        wait 5 s
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        ",
    );
}

#[test]
fn each_subscription_needs_a_sign_of_its_own() {
    talk(
        &["a", "b"],
        "
        watch EDS e
          active a
          open a 5 s
        up a
          a> EDS - -: e +node
        # The sign comes at 5 s, the second subscription later.
        wait 6 s
        freeze a
        watch EDS f
          a> EDS - -: e f
        wait 5 s
          probe a +call
        # The timer of e, whose sign came, decides; that of f would too, but nobody is there.
        wait 4 s
          w0 failed: does not exist on a after 15 s
        wait 1 s
          close a
          active b
          open b 20 s
        ",
    );
}

#[test]
fn a_timer_shorter_than_the_proof_waits_for_it() {
    let short = |seconds| {
        move |settings: &mut crate::client::ClientSettings| {
            settings.resource_timeout = Duration::from_secs(seconds);
        }
    };
    Setup::new(&["a"]).settings(short(2)).talk(
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        # Half-way there is a sign.
        wait 2 s
          w0 failed: does not exist on a after 2 s
        freeze a
        watch LDS m
          a> LDS - -: l m
        wait 1 s
          probe a
        wait 4999 ms
        wait 1 ms
          close a
          w0 failed: unreachable a: it did not answer within 6 s: no sign of life
          w1 failed: unreachable a: it did not answer within 6 s: no sign of life
        ",
    );
}

#[test]
fn nonsense_is_a_sign_of_life_and_no_answer() {
    let mut talk = Setup::new(&["a", "b"]).start();
    talk.step("watch LDS l");
    talk.step("freeze a");
    talk.step("up a");
    talk.step("wait 9 s");
    assert_eq!(talk.step("a< garbage"), [""; 0]);
    assert_eq!(talk.step("wait 6 s"), ["w0 failed: does not exist on a after 15 s"]);
    assert_eq!(talk.step("end a"), ["w0 failed: unreachable a: ended"], "P-36: the stream had no answer");
}

#[test]
fn a_stream_whose_first_request_cannot_be_written_is_left_too() {
    talk(
        &["a", "b"],
        "
        block a
        freeze a
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 10 s
          probe a +call
          close a
          active b
          open b 20 s
        ",
    );
}

#[test]
fn what_came_due_while_we_ourselves_were_stopped_waits_once_more() {
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 6 s
        # SIGSTOP. The answer lies in the socket when we go on.
        stop 60 s
        wait 14 s
        a< LDS 1 A: l:=r
          a> LDS 1 A: l
          w0 changed: r from a 1
        ",
    );
    talk(
        &["a", "b"],
        "
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 6 s
        stop 60 s
        # Only once: a process that is always late decides at some time.
        wait 6 s
        stop 60 s
          w0 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn a_sign_of_life_that_came_while_we_were_stopped_is_waited_for_once_more() {
    talk(
        &["a", "b"],
        "
        freeze a
        watch LDS l
          active a
          open a 5 s
        up a
          a> LDS - -: l +node
        wait 6 s
          probe a +call
        stop 60 s
          probe a +call
        wait 4 s
        thaw a
        a sends a byte
        wait 10 s
        wait 1 s
          w0 failed: does not exist on a after 15 s
        ",
    );
    let silent = || Setup::new(&["a"]).settings(|settings| settings.silent_stream_timeout = SILENT);
    silent().talk(
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        wait 5 s
        stop 60 s
        wait 6 s
        wait 1 s
          close a
          w0 failed: unreachable a: it did not answer within 7 s
        ",
    );
    // Only once, as above.
    silent().talk(
        "
        watch LDS l
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
        wait 5 s
        stop 60 s
        stop 60 s
          close a
          w0 failed: unreachable a: it did not answer within 7 s
        ",
    );
}

/// C-36: the setting treats silence as a failure whatever the proof says, also if it is shorter than the does-not-exist
/// timer: a live server that has no word for what it lacks is unreachable, again and again, and never lacks it.
#[test]
fn with_a_silent_stream_timeout_below_the_timer_silence_is_a_failure() {
    let mut talk = Setup::new(&["a"]).settings(|settings| settings.silent_stream_timeout = SILENT).start();
    talk.step("watch EDS e");
    talk.step("up a");
    let told = talk.step("wait 7 s");
    assert!(told.iter().any(|line| line.starts_with("w0 failed: unreachable")), "{told:?}");
    let told = talk.step("wait 600 s");
    assert!(!told.iter().any(|line| line.contains("does not exist")), "{told:?}");
}

/// C-36: nor does it lack it because that failure was put off, as we ourselves had been stopped.
#[test]
fn silence_that_is_given_more_time_is_no_absence_meanwhile() {
    let mut talk = Setup::new(&["a"]).settings(|settings| settings.silent_stream_timeout = SILENT).start();
    talk.step("watch EDS e");
    talk.step("up a");
    assert_eq!(talk.step("stop 14 s"), Vec::<String>::new());
    talk.step("a sends a byte");
    assert_eq!(talk.step("wait 6 s"), Vec::<String>::new(), "the timer of the resource was due after one second");
    let told = talk.step("wait 1 s");
    assert!(told.iter().any(|line| line.starts_with("w0 failed: unreachable")), "{told:?}");
}

/// C-36: what was asked for first is owed first.
#[test]
fn the_oldest_question_says_how_long_a_stream_may_be_silent() {
    Setup::new(&["a"]).settings(|settings| settings.silent_stream_timeout = SILENT).talk(
        "
        watch EDS e
          active a
          open a 20 s
        up a
          a> EDS - -: e +node
        wait 4 s
        watch EDS f
          a> EDS - -: e f
        wait 3 s
          close a
          w0 failed: unreachable a: it did not answer within 7 s
          w1 failed: unreachable a: it did not answer within 7 s
        ",
    );
}

#[test]
fn an_answer_ends_the_timer_of_silence() {
    let mut talk = Setup::new(&["a"]).settings(|settings| settings.silent_stream_timeout = SILENT).start();
    talk.step("watch LDS l");
    talk.step("up a");
    assert_ne!(talk.client.timers.len(), 0);
    talk.step("a< LDS 1 A: l:=r");
    assert_eq!(talk.client.timers.len(), 0);
}

/// It may hang as well as before: that nobody is next after it, as nobody asks it any more, proves nothing.
#[test]
fn a_pong_of_a_server_that_was_just_left_is_no_sign_of_life() {
    let mut talk = Setup::new(&["a", "b", "c"]).show_reports().start();
    for line in ["watch LDS l", "refuse a", "refuse b", "wait 1 s", "up b", "up a"] {
        talk.step(line);
    }
    let done = talk.step("a< LDS 1 A: l:=r & b pongs");
    assert!(done.iter().any(|line| line == "active a") && done.iter().any(|line| line == "close b"), "{done:?}");
    assert!(!done.iter().any(|line| line.starts_with("Alive")), "{done:?}");
}
