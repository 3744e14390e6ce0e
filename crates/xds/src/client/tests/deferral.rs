//! What a server that asks us to come back later can ask for (SC-10).

use std::time::Duration;

use super::talk::Setup;

/// Nothing is missing: a server may keep us away for a minute, give or take a fifth.
#[test]
fn a_client_that_lacks_nothing_stays_away_for_as_long_as_it_is_asked_to_up_to_a_minute_sc10() {
    for (asked, pause) in [("7 s", 7), ("60 s", 60), ("3600 s", 60)] {
        let mut talk = Setup::new(&["a"]).show_reports().start();
        talk.step("watch LDS l");
        talk.step("up a");
        talk.step("a< LDS 1 A: l:=r");
        let ended = format!("StreamEnded a deferred {pause}000 ms");
        assert_eq!(talk.step(&format!("defer a {asked}")), [ended]);
        assert_eq!(talk.step(&format!("wait {} s", pause - 1)), [""; 0]);
        assert_eq!(talk.step("wait 1 s"), ["Connecting a", "open a 20 s"]);
    }
}

/// Something is missing: it must be had soon, from whoever has it.
#[test]
fn a_client_that_lacks_something_stays_away_for_five_seconds_at_most_sc10() {
    for (asked, pause) in [("500 ms", 1), ("3 s", 3), ("3600 s", 5)] {
        let mut talk = Setup::new(&["a"]).show_reports().start();
        talk.step("watch LDS l");
        talk.step("up a");
        let refused = talk.step(&format!("defer a {asked}"));
        let unreachable = format!("Unreachable a deferred {pause}000 ms");
        assert_eq!(refused[0], unreachable, "our own pause is one second");
        assert_eq!(talk.step(&format!("wait {} ms", pause * 1000 - 1)), [""; 0]);
        assert_eq!(talk.step("wait 1 ms"), ["Connecting a", "open a 20 s"]);
    }
}

/// It is a failed attempt as any other to fallback (A57, A71): the next server is asked at once.
#[test]
fn being_deferred_before_an_answer_is_a_failed_attempt_fb33() {
    let mut talk = Setup::new(&["a", "b"]).start();
    talk.step("watch LDS l");
    talk.step("up a");
    assert_eq!(talk.step("defer a 9 s"), ["active b", "open b 20 s"]);
}

/// Pauses grow all the same if a server refuses again and again and asks for less.
#[test]
fn a_server_cannot_make_us_come_back_sooner_than_we_would_p19() {
    let mut talk = Setup::new(&["a"]).show_reports().start();
    talk.step("watch LDS l");
    for pause in [1000, 1600, 2560, 4096, 6553] {
        talk.step("up a");
        assert_eq!(talk.step("defer a 10 ms")[0], format!("Unreachable a deferred {pause} ms"));
        talk.step(&format!("wait {} ms", pause + 1));
    }
}

/// A new need is worth a try at once.
#[test]
fn a_new_need_ends_a_deferral_that_was_made_in_no_need() {
    let mut talk = Setup::new(&["a"]).start();
    talk.step("watch LDS l");
    talk.step("up a");
    talk.step("a< LDS 1 A: l:=r");
    assert_eq!(talk.step("defer a 60 s"), [""; 0]);
    assert_eq!(talk.step("wait 10 s"), [""; 0]);
    assert_eq!(talk.step("watch LDS m"), ["open a 20 s"]);
    // But not again and again.
    talk.step("up a");
    talk.step("defer a 60 s");
    assert_eq!(talk.step("watch LDS n"), ["w2 failed: unreachable a: deferred"]);
    assert_eq!(talk.step("wait 4999 ms"), [""; 0]);
    assert_eq!(talk.step("wait 1 ms"), ["open a 20 s"]);
}

/// Those that are sent away together do not come back together.
#[test]
fn a_deferral_is_spread_by_a_fifth_to_either_side_sc10() {
    struct Always(u64);
    impl crate::Choose for Always {
        fn choose(&mut self, bound: u64) -> u64 {
            self.0.min(bound - 1)
        }
    }
    let spread = |draw| crate::Backoff::spread(Duration::from_secs(60), &mut Always(draw));
    assert_eq!((spread(0), spread(400)), (Duration::from_secs(48), Duration::from_secs(72)));
}
