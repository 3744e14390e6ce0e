//! Glob collections (GC-2 to GC-7).

use super::talk::{Middle, Setup, Talk, delta_response, talk};
use crate::bootstrap::DeltaMode;
use crate::client::{Action, Event, Output, Update};
use crate::resource::Resource;
use crate::resource::endpoint::steps_taken;

#[test]
fn members_come_change_and_go_one_by_one_gc4_gc6() {
    delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: g/1@1:=1 g/2@1:=2 other/1@1:=9 g/deep/1@1:=9
          a> GLOB ACK A
        wait 99 ms
        wait 1 ms
          w0 changed: [1 2] from a
        a< GLOB B: g/3@1:=3
          a> GLOB ACK B
          w0 changed: [1 2 3] from a
        a< GLOB C: g/2@2:=22 -g/1 -g/7
          a> GLOB ACK C
          w0 changed: [22 3] from a
        a< GLOB D: g/2@3:=22
          a> GLOB ACK D
        a< GLOB E: -g/2 -g/3
          a> GLOB ACK E
          w0 changed: [] from a
        unwatch w0
          close a
        ",
    );
}

#[test]
fn the_first_set_is_put_in_use_when_no_more_comes_or_after_a_second_gc5() {
    let mut talk = delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        ",
    );
    // A server that sends one after the other.
    for n in 1..=10 {
        let nonce = char::from(b'A' + n);
        assert_eq!(talk.step(&format!("a< GLOB {nonce}: g/{n:02}@1:={n}")), [format!("a> GLOB ACK {nonce}")]);
        assert_eq!(talk.step("wait 99 ms"), Vec::<String>::new());
    }
    talk.run(
        "
        a< GLOB Y: g/11@1:=11 -g/01
          a> GLOB ACK Y
        wait 9 ms
        wait 1 ms
          w0 changed: [2 3 4 5 6 7 8 9 10 11] from a
        # From now on each change counts at once.
        a< GLOB Z: g/12@1:=12
          a> GLOB ACK Z
          w0 changed: [2 3 4 5 6 7 8 9 10 11 12] from a
        ",
    );
}

#[test]
fn an_empty_collection_is_told_by_its_name_and_asked_for_again_gc4_gc7() {
    delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: -g/*
          a> GLOB ACK A
          w0 failed: does not exist on a after 0 s
        wait 30 s
          a> GLOB -g/*
          a> GLOB +g/*
        a< GLOB B: g/1@1:=1
          a> GLOB ACK B
        wait 100 ms
          w0 changed: [1] from a
        # Of a collection that is gone the members stay in use (A88), until others take their place.
        a< GLOB C: -g/1 -g/*
          a> GLOB ACK C
          w0 changed: [] from a
          w0 ambient: deleted on a
        a< GLOB D: g/2@1:=2
          a> GLOB ACK D
        wait 100 ms
          w0 changed: [2] from a
        a< GLOB E: -g/*
          a> GLOB ACK E
          w0 ambient: deleted on a
        a< GLOB F: g/3@1:=3
          a> GLOB ACK F
        wait 100 ms
          w0 changed: [3] from a
        ",
    );
}

#[test]
fn with_fail_on_data_errors_a_collection_that_is_gone_is_not_used_gc6() {
    delta(&["a"]).features(|features| features.fail_on_data_errors = true).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: g/1@1:=1 g/2@1:=2
          a> GLOB ACK A
        wait 100 ms
          w0 changed: [1 2] from a
        # So it is with a member that cannot be used.
        a< GLOB B: g/1@2!!
          a> GLOB NACK B LbEndpoint \"g/1\": <faults>
          w0 changed: [2] from a
          w0 ambient: rejected from a 2
        a< GLOB C: -g/*
          a> GLOB ACK C
          w0 failed: deleted on a
        ",
    );
}

#[test]
fn an_unanswered_glob_is_absent_after_15_s_gc7() {
    delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        # Members that it takes away say nothing.
        a< GLOB A: -g/1
          a> GLOB ACK A
        wait 14999 ms
        wait 1 ms
          w0 failed: does not exist on a after 15 s
        wait 30 s
          a> GLOB -g/*
          a> GLOB +g/*
        ",
    );
}

#[test]
fn a_bad_member_leaves_the_old_one_and_all_others_dx11() {
    delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: g/1@1:=1 g/2@1!!
          a> GLOB NACK A LbEndpoint \"g/2\": <faults>
        wait 100 ms
          w0 changed: [1] from a
          w0 ambient: rejected from a 1
        a< GLOB B: g/1@2!! g/3@1:=3
          a> GLOB NACK B LbEndpoint \"g/1\": <faults>
          w0 changed: [1 3] from a
          w0 ambient: rejected from a 2
        a< GLOB C: g/1@3:=11 g/3@1~
          a> GLOB ACK C
          w0 changed: [11 3] from a
          w0 ambient: rejected from a 1
        a< GLOB D: -g/2
          a> GLOB ACK D
          w0 ambient: none
        # Twice in a response, both here and gone, a heartbeat of what nobody knows.
        a< GLOB E: g/3@1:=4 g/3@2:=5
          a> GLOB NACK E LbEndpoint \"g/3\": is in the response more than once
          w0 ambient: rejected from a 2
        a< GLOB F: g/3@2:=6 -g/3
          a> GLOB NACK F LbEndpoint \"g/3\": is in the response and in removed_resources
          w0 changed: [11 6] from a
        a< GLOB G: g/9@1~
          a> GLOB NACK G LbEndpoint \"g/9\": resource: is missing
          w0 ambient: rejected from a 1
        ",
    );
}

#[test]
fn errors_of_the_server_about_members_and_collections_dx19() {
    delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: g/1@1:=1 g/2@1:=2
          a> GLOB ACK A
        wait 100 ms
          w0 changed: [1 2] from a
        a< GLOB B: g/1??5
          a> GLOB ACK B
          w0 changed: [2] from a
        a< GLOB C: g/2??14
          a> GLOB ACK C
          w0 ambient: a says 14
        a< GLOB D: g/2@2:=2
          a> GLOB ACK D
          w0 ambient: none
        a< GLOB E: g/*??14
          a> GLOB ACK E
          w0 ambient: a says 14
        ",
    );
}

#[test]
fn a_new_stream_gathers_the_set_anew_and_forgets_who_is_gone_gc5() {
    // Nothing is claimed: who went while nobody listened would stay for ever with a server that forgets to say so.
    delta(&["a"]).talk(
        "
        watch LDS l & watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> LDS +l +node
          a> GLOB +g/*
        a is cp & a< LDS A: l@1 & a< GLOB B: g/1@1:=1 g/2@1:=2
          a> LDS ACK A
          a> GLOB ACK B
          w0 changed: 1 from a 1
        wait 100 ms
          w1 changed: [1 2] from a
        end a
          open a 20 s delta
        up a
          a> LDS +l +node
          a> GLOB +g/*
        a< LDS C: l@1 & a< GLOB D: g/2@1:=2 g/3@1:=3
          a> LDS ACK C
          a> GLOB ACK D
        wait 50 ms
        # Lost before all have come: what is in use stays.
        end a
        wait 2 s
          open a 20 s delta
        up a
          a> LDS +l +node
          a> GLOB +g/*
        a< GLOB E: g/2@1:=2 g/4@1!!
          a> GLOB NACK E LbEndpoint \"g/4\": <faults>
        wait 100 ms
          w1 changed: [2] from a
          w1 ambient: rejected from a 1
        ",
    );
}

#[test]
fn what_is_resent_as_it_was_is_no_news() {
    delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: g/1@1:=1 g/2@1:=2
          a> GLOB ACK A
        wait 100 ms
          w0 changed: [1 2] from a
        end a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB B: g/2@1:=2
          a> GLOB ACK B
        a< GLOB C: g/1@1:=1
          a> GLOB ACK C
        wait 100 ms
        a< GLOB D: g/1@1:=1
          a> GLOB ACK D
        ",
    );
}

#[test]
fn a_server_of_the_other_variant_cannot_send_globs_gc2() {
    talk(
        &["a"],
        "
        watch LDS l & watch GLOB g/*
          active a
          open a 20 s
        up a
          a> LDS - -: l +node
          w1 failed: needs delta on a
        # Nor is it believed if it sends them.
        a< GLOB 1 A: x
        wait 1000 s
          w0 failed: does not exist on a after 15 s
        unwatch w1
        ",
    );
}

#[test]
fn a_fallback_of_the_other_variant_leaves_the_members_in_use_gc2_dx20() {
    let setup = Setup::new(&["a", "b"]).features_of("a", |features| features.delta = DeltaMode::Required);
    setup.talk(
        "
        watch GLOB g/* & watch LDS l
          active a
          open a 5 s delta
        up a
          a> LDS +l +node
          a> GLOB +g/*
        a< GLOB A: g/1@1:=1
          a> GLOB ACK A
        wait 100 ms
          w0 changed: [1] from a
        lose a
          open a 5 s delta
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: l +node
          w0 ambient: needs delta on b
        b< LDS 1 A: l
          b> LDS 1 A: l
          w1 changed: 1 from b 1
        wait 1 s
          open a 5 s delta
        up a
          a> LDS +l +node
          a> GLOB +g/*
        a< GLOB B: g/1@1:=1 g/2@1:=2
          active a
          a> GLOB ACK B
          close b
          w0 ambient: none
        wait 100 ms
          w0 changed: [1 2] from a
        ",
    );
}

#[test]
fn only_globs_can_be_watched_by_this_type_gc2() {
    delta(&["a"]).talk(
        "
        watch GLOB g/1
          w0 failed: invalid name
        ",
    );
}

#[test]
fn nothing_stays_behind_when_nobody_watches() {
    let talk: Talk = delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        a< GLOB A: g/1@1:=1
          a> GLOB ACK A
        unwatch w0
          close a
        wait 10 s
        ",
    );
    assert!(talk.client.is_idle());
    assert_eq!(talk.client.timers.len(), 0);
    assert_eq!(talk.client.cache.len(), 0);
}

#[test]
fn a_change_of_some_members_costs_these_and_not_the_others_gc8() {
    let mut talk = delta(&["a"]).talk(
        "
        watch GLOB g/*
          active a
          open a 20 s delta
        up a
          a> GLOB +g/* +node
        ",
    );
    let receive = |talk: &mut Talk, words: Vec<String>| {
        let words: Vec<_> = ["GLOB", "N:"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let event = Event::Received(talk.stream("a", 0), delta_response(&words, None));
        talk.client.handle_event(talk.now, &mut Middle, event);
    };
    // The members that the watcher is told of, without a look at each.
    let told = |talk: &mut Talk| {
        let mut told = None;
        while let Output::Do(action) = talk.client.poll_output() {
            match action {
                Action::Send(stream, _) => talk.client.handle_event(talk.now, &mut Middle, Event::Sent(stream)),
                Action::Notify(_, Update::Changed(Resource::EndpointGlob(glob), _)) => told = Some(glob),
                _ => {}
            }
        }
        told
    };
    receive(&mut talk, (0..10_000).map(|n| format!("g/{n:05}@1:={}", n + 1)).collect());
    assert_eq!(told(&mut talk), None);
    talk.now = talk.now + talk.client.settings.collection_quiet;
    talk.client.handle_timeout(talk.now, &mut Middle);
    assert_eq!(told(&mut talk).unwrap().len(), 10_000);

    let start = steps_taken();
    receive(&mut talk, vec!["g/04711@2:=99".to_owned(), "-g/00815".to_owned(), "g/x@1:=7".to_owned()]);
    let glob = told(&mut talk).unwrap();
    let steps = steps_taken() - start;
    assert!(steps <= 3 * 4 * 14, "{steps} steps");
    assert_eq!(glob.len(), 10_000);
}

fn delta(servers: &[&str]) -> Setup {
    Setup::new(servers).delta(DeltaMode::Required)
}
