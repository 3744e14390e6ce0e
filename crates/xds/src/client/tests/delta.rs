//! The incremental variant (DX, P-68 to P-80).

use std::time::Duration;

use super::talk::{Setup, talk};
use crate::bootstrap::DeltaMode;

// === Choosing the variant ===

#[test]
fn without_a_word_in_the_bootstrap_it_is_state_of_the_world_dx1() {
    talk(
        &["a"],
        "
        watch LDS shop
          active a
          open a 20 s
        ",
    );
}

#[test]
fn a_server_that_knows_no_delta_is_spoken_to_in_the_other_variant_at_once_dx3() {
    // Neither a failure nor a word to watchers; and the fallback server is left alone.
    delta(&["a", "b"]).show_reports().talk(
        "
        watch LDS shop
          active a
          Connecting a
          open a 5 s delta
        up a
          Connected a
          a> LDS +shop +node
        unimplemented a
          DeltaRefused a unimplemented
          Connecting a
          open a 5 s
        up a
          Connected a
          a> LDS - -: shop +node
        a< LDS 1 A: shop
          Answered a
          Acked a Listener 1 1
          a> LDS 1 A: shop
          w0 changed: 1 from a 1

        # It may have been upgraded meanwhile.
        lose a
          StreamEnded a lost 0 ms
          Connecting a
          open a 5 s delta
        ",
    );
}

#[test]
fn a_server_that_must_speak_delta_and_does_not_is_unreachable_dx5() {
    Setup::new(&["a", "b"]).delta(DeltaMode::Required).show_reports().talk(
        "
        watch LDS shop
          active a
          Connecting a
          open a 5 s delta
        up a
          Connected a
          a> LDS +shop +node
        unimplemented a
          Unreachable a it does not speak delta, which it must: the server ended the stream: UNIMPLEMENTED: what is delta? 1000 ms
          active b
          FellBack b
          Connecting b
          open b 20 s delta
        ",
    );
}

#[test]
fn a_server_that_lives_and_says_nothing_in_delta_is_spoken_to_in_the_other_variant_dx4() {
    // A proxy in between that accepts the method and never answers.
    delta(&["a"]).show_reports().talk(
        "
        watch LDS shop
          active a
          Connecting a
          open a 20 s delta
        up a
          Connected a
          a> LDS +shop +node
        wait 4999 ms
        wait 1001 ms
          close a
          DeltaRefused a it is alive and did not answer within 6 s
          Connecting a
          open a 20 s
        up a
          Connected a
          a> LDS - -: shop +node
        ",
    );
}

#[test]
fn a_server_that_is_dead_is_not_asked_in_another_variant_dx4() {
    // Its silence says nothing about what it speaks: the next server takes over as soon as without delta.
    delta(&["a", "b"]).talk(
        "
        watch LDS shop
          active a
          open a 5 s delta
        freeze a & up a
          a> LDS +shop +node
        wait 9999 ms
          probe a +call
        wait 1 ms
          close a
          active b
          open b 20 s delta
        ",
    );
}

// === Requests ===

#[test]
fn answers_and_changes_are_messages_of_their_own_dx6_dx10() {
    delta(&["a"]).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a< CDS A: x@1
          a> CDS ACK A
          w1 changed: 1 from a 1
        block a & a< CDS B: x@2:=two & watch CDS y & watch CDS z
          a> CDS ACK B
          w1 changed: two from a 2
        unblock a
          a> CDS +y +z
        ",
    );
}

#[test]
fn what_is_subscribed_and_unsubscribed_before_it_is_sent_cancels_out_dx7() {
    delta(&["a"]).talk(
        "
        watch CDS x
          active a
          open a 20 s delta
        up a
          a> CDS +x +node
        watch CDS y & unwatch w1
        watch CDS z & unwatch w0
          a> CDS +z -x
        unwatch w2 & watch CDS z
        ",
    );
}

#[test]
fn what_comes_after_it_was_unsubscribed_is_ignored_and_accepted_dx9() {
    delta(&["a"]).talk(
        "
        watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> CDS +x +y +node
        a< CDS A: x@1
          a> CDS ACK A
          w0 changed: 1 from a 1
        unwatch w0
          a> CDS -x
        a< CDS B: x@2!!
          a> CDS ACK B
        watch CDS x
          a> CDS +x
        a< CDS C: x@2:=two
          a> CDS ACK C
          w2 changed: two from a 2
        ",
    );
}

// === Responses ===

#[test]
fn a_bad_resource_leaves_the_old_one_and_its_version_and_is_not_asked_for_dx11() {
    let setup = delta(&["a"]);
    setup.talk(
        "
        watch LDS shop & watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y
        a is cp & a< LDS L: shop@1
          a> LDS ACK L
          w0 changed: 1 from a 1
        a< CDS A: x@1 y@1
          a> CDS ACK A
          w1 changed: 1 from a 1
          w2 changed: 1 from a 1
        a< CDS B: x@2!! y@2:=two
          a> CDS NACK B Cluster \"x\": <faults>
          w1 ambient: rejected from a 2
          w2 changed: two from a 2
        wait 1000 s

        # The old one is not claimed: a server that has gone back to it would say nothing, and it would be held to be
        # rejected for ever.
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y has y@2
        a< LDS L: shop@1 & a< CDS C: x@1
          a> LDS ACK L
          a> CDS ACK C
          w1 ambient: none
        ",
    );
}

#[test]
fn a_name_twice_is_rejected_and_an_empty_version_is_never_claimed_dx12() {
    delta(&["a"]).talk(
        "
        watch LDS shop & watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y
        a is cp & a< CDS A: x@1 x@2:=two y@
          a> CDS NACK A Cluster \"x\": is in the response more than once
          w1 failed: rejected from a 2
          w2 changed: 1 from a 
        a< LDS L: shop@1 & a< CDS B: x@1
          a> LDS ACK L
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y has x@1
        ",
    );
}

#[test]
fn removal_is_for_all_types_and_known_at_once_dx13_dx14() {
    delta(&["a"]).talk(
        "
        watch EDS x & watch EDS y & watch CDS c
          active a
          open a 20 s delta
        up a
          a> CDS +c +node
          a> EDS +x +y
        a< EDS A: x@1 -y -unknown
          a> EDS ACK A
          w0 changed: 1 from a 1
          w1 failed: does not exist on a after 0 s
        a< EDS B: -x
          a> EDS ACK B
          w0 ambient: deleted on a

        # A timer is needed all the same: some servers say nothing about what they do not have.
        wait 15 s
          w2 failed: does not exist on a after 15 s
        a< CDS C: c@1 -c
          a> CDS NACK C Cluster \"c\": is in the response and in removed_resources
          w2 changed: 1 from a 1
        ",
    );
}

#[test]
fn what_is_absent_is_subscribed_again_ever_more_rarely_dx15_dx8() {
    // Some servers forget who asked for what they do not have.
    delta(&["a"]).talk(
        "
        watch CDS x & watch CDS y & watch EDS z
          active a
          open a 20 s delta
        up a
          a> CDS +x +y +node
          a> EDS +z
        a< CDS A: x@1 -y & a< EDS B: -z
          a> CDS ACK A
          a> EDS ACK B
          w0 changed: 1 from a 1
          w1 failed: does not exist on a after 0 s
          w2 failed: does not exist on a after 0 s
        wait 29999 ms
        wait 1 ms
          a> CDS -y
          a> EDS -z
          a> CDS +y
          a> EDS +z
        wait 59999 ms
        wait 1 ms
          a> CDS -y
          a> EDS -z
          a> CDS +y
          a> EDS +z
        a< EDS C: z@1
          a> EDS ACK C
          w2 changed: 1 from a 1
        a< CDS D: y@1
          a> CDS ACK D
          w1 changed: 1 from a 1
        wait 1000 s
        ",
    );
}

// === What may be claimed ===

#[test]
fn what_came_from_this_server_is_claimed_but_for_one_resource_dx16() {
    delta(&["a"]).talk(
        "
        watch LDS shop & watch RDS r & watch CDS x
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> RDS +r
          a> CDS +x
        a is cp & a< LDS A: shop@1 & a< RDS B: r@7 & a< CDS C: x@9
          a> LDS ACK A
          a> RDS ACK B
          a> CDS ACK C
          w0 changed: 1 from a 1
          w1 changed: 1 from a 7
          w2 changed: 1 from a 9
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> RDS +r has r@7
          a> CDS +x has x@9
        # Nothing changed, and nothing is waited for but the listener.
        a< LDS D: shop@1
          a> LDS ACK D
        wait 1000 s
        ",
    );
}

#[test]
fn what_may_be_a_count_is_not_claimed_whoever_the_server_says_that_it_is_dx16() {
    // One that counts from 1 in each process and never changes its name: only this keeps us from being stale for ever.
    delta(&["a"]).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a is cp & a< LDS A: shop@#1 & a< CDS B: x@#123456789012345
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a #1
          w1 changed: 1 from a #123456789012345
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a< LDS A: shop@#1 & a< CDS B: x@#123456789012345:=other
          a> LDS ACK A
          a> CDS ACK B
          w1 changed: other from a #123456789012345
        ",
    );
}

#[test]
fn what_is_said_to_be_deleted_and_stays_in_use_is_not_claimed_dx16() {
    // The server that has it again would say nothing, and it would be held to be deleted for ever.
    delta(&["a"]).talk(
        "
        watch LDS shop & watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y
        a is cp & a< LDS A: shop@1 & a< CDS B: x@1 y@1
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
          w2 changed: 1 from a 1
        a< CDS C: -x
          a> CDS ACK C
          w1 ambient: deleted on a
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y has y@1
        a< LDS A: shop@1 & a< CDS B: x@1
          a> LDS ACK A
          a> CDS ACK B
          w1 ambient: none
        ",
    );
}

#[test]
fn watchers_hear_once_that_there_is_none_however_often_the_server_says_so_dx15() {
    delta(&["a"]).talk(
        "
        watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> CDS +x +y +node
        a< CDS A: x@1
          a> CDS ACK A
          w0 changed: 1 from a 1
        wait 15 s
          w1 failed: does not exist on a after 15 s
        wait 30 s
          a> CDS -y
          a> CDS +y
        a< CDS B: -y
          a> CDS ACK B
        end a
          open a 20 s delta
        up a
          a> CDS +x +y +node
        a< CDS A: x@1 -y
          a> CDS ACK A
        ",
    );
}

#[test]
fn a_limit_on_silence_holds_for_who_may_not_speak_delta_as_well_dx4() {
    // C-36: it is dead, and no sign of life is waited for beyond the limit.
    let limited =
        Setup::new(&["a", "b"]).settings(|settings| settings.silent_stream_timeout = Some(Duration::from_secs(4)));
    limited.delta(DeltaMode::Preferred).talk(
        "
        watch CDS x
          active a
          open a 5 s delta
        up a
          a> CDS +x +node
        freeze a
        wait 3999 ms
        wait 1 ms
          close a
          active b
          open b 20 s delta
        ",
    );
}

#[test]
fn what_is_asked_for_again_and_not_wanted_any_more_is_unsubscribed_once_dx6_dx8() {
    delta(&["a"]).talk(
        "
        watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> CDS +x +y +node
        a< CDS A: x@1 -y
          a> CDS ACK A
          w0 changed: 1 from a 1
          w1 failed: does not exist on a after 0 s
        wait 29999 ms
        block a
        wait 1 ms
          a> CDS -y
        unwatch w1
        unblock a
        wait 1000 s
        ",
    );
}

#[test]
fn another_server_under_the_same_address_is_asked_again_without_claims_dx16() {
    // A server that restarts and counts from 1: x@1 is something else now.
    delta(&["a"]).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a is one & a< LDS A: shop@1 & a< CDS B: x@1
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x has x@1
        a is two & a< LDS A: shop@1
          close a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a< LDS A: shop@1 & a< CDS B: x@1:=two
          a> LDS ACK A
          a> CDS ACK B
          w1 changed: two from a 1
        # From now on its versions can be trusted.
        wait 10 s
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x has x@1
        ",
    );
}

#[test]
fn without_an_identifier_nothing_is_claimed_unless_versions_are_trusted_dx16() {
    let begin = "
        watch LDS shop & watch CDS x
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a< LDS A: shop@1 & a< CDS B: x@1
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
        end a
          open a 20 s delta
        up a
          a> LDS +shop +node
        ";
    delta(&["a"]).talk(&format!("{begin}  a> CDS +x\n"));
    // With trust the same story ends in staleness: it is on whoever sets it.
    let trusting = delta(&["a"]).settings(|settings| settings.trust_versions = true);
    trusting
        .talk(&format!("{begin}  a> CDS +x has x@1\n        a is two & a< LDS A: shop@1\n          a> LDS ACK A\n"));
}

#[test]
fn what_came_in_the_other_variant_is_not_claimed_dx16() {
    delta(&["a"]).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        unimplemented a
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
          open a 20 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a< CDS C: x@v
          a> CDS ACK C
        ",
    );
}

// === Entries ===

#[test]
fn a_heartbeat_is_no_news_of_what_is_known_and_a_fault_of_what_is_not_dx17() {
    delta(&["a"]).talk(
        "
        watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> CDS +x +y +node
        a< CDS A: x@1
          a> CDS ACK A
          w0 changed: 1 from a 1
        a< CDS B: x@1~ y@1~
          a> CDS NACK B Cluster \"y\": resource: is missing
          w1 failed: rejected from a 1
        ",
    );
}

#[test]
fn an_entry_is_found_by_its_aliases_dx18() {
    delta(&["a"]).talk(
        "
        watch CDS x
          active a
          open a 20 s delta
        up a
          a> CDS +x +node
        a< CDS A: other=x@1
          a> CDS ACK A
          w0 changed: 1 from a 1
        a< CDS B: -x
          a> CDS ACK B
          w0 ambient: deleted on a
        ",
    );
}

#[test]
fn an_error_of_the_server_is_heard_as_in_the_other_variant_dx19() {
    delta(&["a"]).talk(
        "
        watch CDS x & watch CDS y
          active a
          open a 20 s delta
        up a
          a> CDS +x +y +node
        a< CDS A: x??5 y??14
          a> CDS ACK A
          w0 failed: a says 5
          w1 failed: a says 14
        # NOT_FOUND equals removal: it is asked for again.
        wait 30 s
          a> CDS -x
          a> CDS +x
        ",
    );
}

#[test]
fn a_response_without_a_nonce_is_used_and_cannot_be_answered() {
    // P-77.
    delta(&["a"]).talk(
        "
        watch CDS x
          active a
          open a 20 s delta
        up a
          a> CDS +x +node
        a< CDS -: x@1
          w0 changed: 1 from a 1
        a< garbage
        a< CDS B: x@2:=two
          a> CDS ACK B
          w0 changed: two from a 2
        ",
    );
}

// === Fallback ===

#[test]
fn a_switch_back_costs_only_what_was_overwritten_and_one_answer_dx20_dx21_dx22() {
    delta(&["a", "b"]).talk(
        "
        watch LDS shop & watch CDS x & watch CDS y
          active a
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y
        a is cp & b is cp
        a< LDS A: shop@1 & a< CDS B: x@1 y@1
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
          w2 changed: 1 from a 1
        lose a
          open a 5 s delta
        refuse a
          w0 ambient: unreachable a: refused
          w1 ambient: unreachable a: refused
          w2 ambient: unreachable a: refused

        # A new need: the fallback is told nothing of what came from another server.
        watch EDS z
          active b
          open b 20 s delta
          w0 ambient: none
          w1 ambient: none
          w2 ambient: none
        up b
          b> LDS +shop +node
          b> CDS +x +y
          b> EDS +z
        b< CDS A: x@1
          b> CDS ACK A
          w1 changed: 1 from b 1
        wait 1 s
          open a 5 s delta

        # Back: what is still its own is claimed, but for the listener, by which it shows that it is back.
        up a
          a> LDS +shop +node
          a> CDS +x +y has y@1
          a> EDS +z
        a< LDS A: shop@1
          active a
          a> LDS ACK A
          close b
        a< CDS B: x@1
          a> CDS ACK B
          w1 changed: 1 from a 1
        a< EDS C: z@1
          a> EDS ACK C
          w3 changed: 1 from a 1
        wait 1000 s
        ",
    );
}

#[test]
fn who_lacks_what_was_left_out_of_the_claims_is_asked_for_something_else_dx22() {
    // The primary is back without the one thing that it was not told of, and has everything else as it was.
    delta(&["a", "b"]).talk(
        "
        watch LDS shop & watch CDS x & watch CDS y
          active a
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y
        a is cp & b is cp
        a< LDS A: shop@1 & a< CDS B: x@1 y@1
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
          w2 changed: 1 from a 1
        lose a
          open a 5 s delta
        refuse a
          w0 ambient: unreachable a: refused
          w1 ambient: unreachable a: refused
          w2 ambient: unreachable a: refused
        watch EDS z
          active b
          open b 20 s delta
          w0 ambient: none
          w1 ambient: none
          w2 ambient: none
        up b
          b> LDS +shop +node
          b> CDS +x +y
          b> EDS +z
        b< EDS A: z@1
          b> EDS ACK A
          w3 changed: 1 from b 1
        wait 1 s
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x +y has x@1 has y@1
          a> EDS +z
        a< LDS A: -shop
          a> LDS ACK A
        a< EDS B: -z
          a> EDS ACK B
          a> CDS -x
          a> CDS +x
        a< CDS C: x@1
          active a
          a> CDS ACK C
          close b
          w0 ambient: deleted on a
        ",
    );
}

#[test]
fn what_the_fallback_overwrites_while_the_primary_is_asked_is_asked_for_again_dx21_dx8() {
    delta(&["a", "b"]).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a is cp & a< LDS A: shop@1 & a< CDS B: x@1
          a> LDS ACK A
          a> CDS ACK B
          w0 changed: 1 from a 1
          w1 changed: 1 from a 1
        lose a
          open a 5 s delta
        refuse a
          w0 ambient: unreachable a: refused
          w1 ambient: unreachable a: refused
        watch EDS z
          active b
          open b 20 s delta
          w0 ambient: none
          w1 ambient: none
        up b
          b> LDS +shop +node
          b> CDS +x
          b> EDS +z
        wait 1 s
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x has x@1
          a> EDS +z
        b< CDS A: x@1:=other
          a> CDS -x
          b> CDS ACK A
          a> CDS +x
          w1 changed: other from b 1
        a< CDS B: x@1
          active a
          a> CDS ACK B
          close b
          w1 changed: 1 from a 1
        ",
    );
}

#[test]
fn both_variants_can_be_in_one_list_dx20() {
    Setup::new(&["a", "b"]).features_of("a", |features| features.delta = DeltaMode::Required).talk(
        "
        watch LDS shop & watch CDS x
          active a
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a is cp & a< LDS A: shop@1
          a> LDS ACK A
          w0 changed: 1 from a 1
        lose a
          open a 5 s delta
        refuse a
          active b
          open b 20 s
        up b
          b> LDS - -: shop +node
          b> CDS - -: x
        b< LDS 5 A: shop & b< CDS 5 B: x
          b> LDS 5 A: shop
          b> CDS 5 B: x
          w0 confirmed: from b 5
          w1 changed: 1 from b 5
        wait 1 s
          open a 5 s delta
        up a
          a> LDS +shop +node
          a> CDS +x
        a< LDS A: shop@1
          active a
          a> LDS ACK A
          close b
          w0 confirmed: from a 1
        a< CDS B: x@1
          a> CDS ACK B
          w1 changed: 1 from a 1
        ",
    );
}

fn delta(servers: &[&str]) -> Setup {
    Setup::new(servers).delta(DeltaMode::Preferred)
}
