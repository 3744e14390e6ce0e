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

#[test]
fn a_name_is_left_out_once_and_not_at_every_response_p46() {
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
        # It has no such cluster, and says so each time that it is asked: the state of the world is without it.
        a< CDS 1 A: d:=e
          a> CDS 1 A: d
          a> CDS 1 A: c d
          w1 changed: e from a 1
        a< CDS 1 B: d:=e
          a> CDS 1 B: c d
        ",
    );
}
