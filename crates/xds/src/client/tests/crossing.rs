//! Requests that cross a response: the server ignores them (P-46), so that it may believe that we have what we forgot
//! (P-95).

use super::talk::talk;

#[test]
fn what_was_left_out_and_is_back_is_left_out_again_by_the_answer_to_a_response_p46_p95() {
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
        unwatch w0
          a> EDS 1 A: f
        # The server may have sent this before it read that. Then it knows nothing of it, and has sent e already.
        a< EDS 2 B: f:=82 & watch EDS e
          a> EDS 2 B: f
          a> EDS 2 B: e f
          w1 changed: 82 from a 2
        a< EDS 2 C: e:=80
          a> EDS 2 C: e f
          w2 changed: 80 from a 2
        ",
    );
}

#[test]
fn so_is_what_was_back_before_the_response_came_unless_it_came_with_it_p46_p95() {
    let mut talk = super::talk::Setup::new(&["a"]).start();
    talk.run(
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
        unwatch w0
          a> EDS 1 A: f
        watch EDS e
          a> EDS 1 A: e f
        ",
    );
    talk.clone().run(
        "
        a< EDS 2 B: f:=82
          a> EDS 2 B: f
          a> EDS 2 B: e f
          w1 changed: 82 from a 2
        ",
    );
    talk.run(
        "
        a< EDS 2 B: e:=80
          a> EDS 2 B: e f
          w2 changed: 80 from a 2
        ",
    );
}

/// What leaves a name out may cross the next response as well.
#[test]
fn an_answer_that_leaves_a_name_out_may_cross_a_response_itself_p46() {
    let mut talk = super::talk::Setup::new(&["a"]).start();
    talk.run(
        "
        watch EDS e & watch EDS f
          active a
          open a 20 s
        up a
          a> EDS - -: e f +node
        unwatch w0
          a> EDS - -: f
        # The answer to the first request: e is not listed any more, and watched again.
        a< EDS 1 A: e:=80 f:=81 & watch EDS e
          a> EDS 1 A: f
          a> EDS 1 A: e f
          w1 changed: 81 from a 1
        # Sent before any of these was read. The server still believes that we have e.
        a< EDS 2 B: f:=82
          a> EDS 2 B: f
          a> EDS 2 B: e f
          w1 changed: 82 from a 2
        ",
    );
    talk.clone().run(
        "
        a< EDS 2 C: e:=80
          a> EDS 2 C: e f
          w2 changed: 80 from a 2
        # Now it has come.
        a< EDS 3 D: f:=83
          a> EDS 3 D: e f
          w1 changed: 83 from a 3
        ",
    );
    // Not for ever: a server that goes on talking has read it by then, and does not have e.
    talk.run(
        "
        a< EDS 3 C: f:=83
          a> EDS 3 C: f
          a> EDS 3 C: e f
          w1 changed: 83 from a 3
        a< EDS 4 D: f:=84
          a> EDS 4 D: e f
          w1 changed: 84 from a 4
        wait 15 s
          w2 failed: does not exist on a after 15 s
        ",
    );
}

/// Whoever watches it again must not get it from a response that crossed the request without it: if it is missing from the
/// next one, nobody could say whether it was deleted or that is the answer to this request (P-50).
#[test]
fn a_value_that_crosses_the_request_which_leaves_it_out_is_asked_for_again_p50() {
    talk(
        &["a"],
        "
        watch CDS c & watch CDS d
          active a
          open a 20 s
        up a
          a> CDS - -: c d +node
        unwatch w0
          a> CDS - -: d
        block a & watch CDS c & a< CDS 1 A: c:=e d:=f
          a> CDS 1 A: d
          w1 changed: f from a 1
        unblock a
          a> CDS 1 A: c d
        # It was deleted meanwhile.
        a< CDS 2 B: d:=f
          a> CDS 2 B: c d
        wait 15 s
          w2 failed: does not exist on a after 15 s
        ",
    );
}

#[test]
fn a_name_that_is_not_in_the_state_of_the_world_is_not_left_out_once_more_p46() {
    talk(
        &["a"],
        "
        watch CDS c & watch CDS d
          active a
          open a 20 s
        up a
          a> CDS - -: c d +node
        unwatch w0
          a> CDS - -: d
        watch CDS c
          a> CDS - -: c d
        # It has no such cluster, or knows that we left it out: the state of the world is without it, and does not lead it to
        # believe that we have it.
        a< CDS 1 A: d:=e
          a> CDS 1 A: c d
          w1 changed: e from a 1
        a< CDS 1 B: c:=e d:=e
          a> CDS 1 B: c d
          w2 changed: e from a 1
        ",
    );
}
