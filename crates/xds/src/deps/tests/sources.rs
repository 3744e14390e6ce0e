//! Switches between servers (C-50).

use super::*;

/// Listener with RDS `r`, cluster `a` and its endpoints, all from A.
fn serving_from_a() -> Testbed {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.rds("r");
    bed.routes("r", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    assert!(bed.take().ends_with("{a=1}"));
    bed
}

#[test]
fn a_switch_is_published_when_everything_is_from_the_new_server() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.confirmed(LDS, "l");
    bed.endpoints("a", &[2]);
    bed.routes("r", &["a", "b"]);
    bed.eds("b");
    bed.endpoints("b", &[3]);
    assert_eq!(bed.take(), "+CDS b +EDS b"); // complete, but cluster a is still A's
    bed.confirmed(CDS, "a");
    assert_eq!(bed.take(), "{a=2 b=3}");
}

/// The server behind the Listener and its routes counts at once, not with the next event.
#[test]
fn a_switch_is_published_when_its_listener_is_confirmed_last() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.confirmed(CDS, "a");
    bed.endpoints("a", &[2]);
    bed.confirmed(RDS, "r");
    assert_eq!(bed.take(), ""); // complete, but the Listener is still A's
    bed.confirmed(LDS, "l");
    assert_eq!(bed.take(), "{a=2}");
}

#[test]
fn a_switch_is_published_at_once_whatever_comes_last() {
    for last in [LDS, RDS, CDS] {
        let mut bed = serving_from_a();
        bed.switch("B");
        bed.endpoints("a", &[2]);
        let confirm = |bed: &mut Testbed, resource_type: ResourceType| match resource_type {
            LDS => bed.confirmed(LDS, "l"),
            RDS => bed.confirmed(RDS, "r"),
            _ => bed.confirmed(CDS, "a"),
        };
        for first in [LDS, RDS, CDS].into_iter().filter(|first| *first != last) {
            confirm(&mut bed, first);
            assert_eq!(bed.take(), "", "{last} is still A's");
        }
        confirm(&mut bed, last);
        assert_eq!(bed.take(), "{a=2}", "{last} came last");
    }
}

#[test]
fn a_switch_that_confirms_everything_publishes_nothing() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.confirmed(LDS, "l");
    bed.confirmed(RDS, "r");
    bed.confirmed(CDS, "a");
    bed.confirmed(EDS, "a");
    bed.pass(seconds(100));
    assert_eq!(bed.take(), "");
}

#[test]
fn a_switch_that_takes_too_long_is_published_as_mixed_until_it_is_clean() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.pass(seconds(1));
    bed.endpoints("a", &[2]);
    bed.pass(seconds(13));
    assert_eq!(bed.take(), "");
    bed.pass(seconds(1)); // 15 s after the switch
    assert_eq!(bed.take(), "{a=2}mixed");
    bed.endpoints("a", &[3]); // held back once, not each time
    assert_eq!(bed.take(), "{a=3}mixed");
    bed.confirmed(LDS, "l");
    bed.confirmed(RDS, "r");
    assert_eq!(bed.take(), "");
    let before = bed.cluster_config("a").clone();
    bed.confirmed(CDS, "a");
    assert_eq!(bed.take(), "{a=3}");
    assert!(Arc::ptr_eq(&before, bed.cluster_config("a")));
}

#[test]
fn a_new_server_that_is_slow_to_answer_has_not_used_up_its_time() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.pass(seconds(20)); // connecting
    bed.endpoints("a", &[2]);
    bed.pass(seconds(14));
    assert_eq!(bed.take(), "");
    bed.confirmed(LDS, "l");
    bed.confirmed(RDS, "r");
    bed.confirmed(CDS, "a");
    assert_eq!(bed.take(), "{a=2}");
}

#[test]
fn a_switch_back_is_a_switch() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.endpoints("a", &[2]);
    bed.pass(seconds(15));
    assert_eq!(bed.take(), "{a=2}mixed");
    bed.switch("A");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "{a=1}"); // all is A's again
    bed.switch("B");
    bed.switch("B"); // no news: the time goes on
    bed.confirmed(LDS, "l");
    bed.endpoints("a", &[4]);
    bed.pass(seconds(14));
    assert_eq!(bed.take(), "");
    bed.switch("B");
    bed.pass(seconds(1));
    assert_eq!(bed.take(), "{a=4}mixed");
}

#[test]
fn servers_that_come_and_go_do_not_hold_an_update_back_for_ever() {
    // C-50: the bound is on the whole time that a mixture is held back, not on each switch.
    let mut bed = serving_from_a();
    for (n, name) in ["B", "C", "B", "C"].iter().enumerate() {
        bed.switch(name);
        bed.endpoints("a", &[100 + n as u16]);
        bed.pass(seconds(7));
    }
    assert_eq!(bed.take(), "{a=102}mixed {a=103}mixed");
    // Nor does one that is clean in between hold back what came before.
    bed.switch("A");
    bed.endpoints("a", &[1]);
    assert_eq!(bed.take(), "{a=1}");
}

#[test]
fn flapping_between_two_servers_holds_an_update_back_no_longer_than_twenty_seconds() {
    let mut bed = Testbed::serving(&["a", "b"]);
    let mut held = 0;
    for n in 0..20u16 {
        bed.switch(if n % 2 == 0 { "B" } else { "A" });
        bed.endpoints("a", &[100 + n]); // The other resources are on their way.
        bed.pass(seconds(10));
        if bed.take().contains("a=1") {
            break;
        }
        held += 10;
    }
    assert!(held <= 20, "an update of a was held back for {held} s");
}

#[test]
fn a_mixture_is_held_back_even_if_the_switch_is_told_late() {
    let mut bed = serving_from_a();
    bed.server = server("B");
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "");
    bed.switch("B");
    bed.pass(seconds(15));
    assert_eq!(bed.take(), "{a=2}mixed");
}

#[test]
fn the_first_configuration_is_of_one_server_too() {
    // A71: the primary dies in the middle of its first answers.
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.rds("r");
    bed.routes("r", &["a"]);
    bed.switch("B");
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.confirmed(LDS, "l");
    assert_eq!(bed.take(), "+RDS r +CDS a +EDS a");
    bed.confirmed(RDS, "r");
    assert_eq!(bed.take(), "{a=1}");
}

#[test]
fn the_old_pair_stays_while_the_new_listener_waits_for_its_routes() {
    // D15 across a switch: the old listener counts, not the new one.
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.rds("r2");
    assert_eq!(bed.take(), "+RDS r2");
    bed.endpoints("a", &[2]);
    bed.routes("r2", &["a"]);
    assert_eq!(bed.take(), "");
    bed.confirmed(CDS, "a");
    assert_eq!(bed.take(), "{a=2} -RDS r");
}

#[test]
fn what_cannot_be_had_is_nobodys() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.confirmed(LDS, "l");
    bed.confirmed(RDS, "r");
    bed.fail(CDS, "a");
    assert_eq!(bed.take(), "{a!} -EDS a");
}

#[test]
fn what_a_new_server_lacks_is_not_taken_away_before_it_has_said_what_it_has() {
    // D-35, C-50: clusters are answered before routes, and the new server's routes do without the old ones.
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.fail_with(CDS, "a", ErrorKind::Deleted);
    assert_eq!(bed.take(), "");
    bed.routes("r", &["b"]);
    assert_eq!(bed.take(), "+CDS b");
    bed.confirmed(LDS, "l");
    bed.eds("b");
    bed.endpoints("b", &[2]);
    assert_eq!(bed.take(), "+EDS b {b=2} -CDS a -EDS a");
}

#[test]
fn what_a_new_server_lacks_is_taken_away_once_all_else_is_its_own() {
    for (resource_type, others) in [(CDS, &[LDS, RDS][..]), (EDS, &[LDS, RDS, CDS])] {
        let mut bed = serving_from_a();
        bed.switch("B");
        bed.fail_with(resource_type, "a", ErrorKind::Deleted);
        assert_eq!(bed.take(), "", "{resource_type:?}");
        for &other in others {
            let name = match other {
                LDS => "l",
                RDS => "r",
                _ => "a",
            };
            assert_eq!(bed.take(), "", "{resource_type:?} before {other:?}");
            bed.confirmed(other, name);
        }
        assert!(bed.take().starts_with("{a"), "{resource_type:?}");
    }
}

#[test]
fn what_a_new_server_lacks_is_taken_away_when_the_bound_has_passed() {
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.fail_with(CDS, "a", ErrorKind::Deleted);
    bed.pass(Duration::from_secs(14));
    assert_eq!(bed.take(), "");
    bed.pass(Duration::from_secs(1));
    assert!(bed.take().contains("{a!}"));
}

#[test]
fn an_error_of_the_listener_is_not_held_back() {
    // L-11.
    let mut bed = serving_from_a();
    bed.switch("B");
    bed.endpoints("a", &[2]);
    bed.fail(LDS, "l");
    assert_eq!(bed.take(), "error LDS l");
}

#[test]
fn subscriptions_do_not_hold_a_switch_back() {
    // L-10 as decided: the new server may not know what only old RPCs hold.
    let mut bed = serving_from_a();
    bed.subscribe("s");
    bed.eds("s");
    bed.endpoints("s", &[9]);
    bed.take();
    bed.switch("B");
    for (resource_type, name) in [(LDS, "l"), (RDS, "r"), (CDS, "a")] {
        bed.confirmed(resource_type, name);
    }
    bed.endpoints("a", &[2]);
    assert_eq!(bed.take(), "{a=2 s=9}");
}

#[test]
fn authorities_switch_on_their_own() {
    // A95: endpoints of another authority may fall back while the rest stays.
    let name = "xdstp://edge/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.inline(&["a", "b"]);
    bed.eds_named("a", name);
    bed.eds("b");
    bed.endpoints("b", &[1]);
    let edge = AuthorityKey::Named("edge".into());
    for (server_name, port) in [("E1", 2), ("E2", 3)] {
        bed.server = server(server_name);
        bed.manager.handle_active_server(bed.now, &edge, &server(server_name));
        bed.endpoints(name, &[port]);
    }
    assert!(bed.take().ends_with("{a=2 b=1} {a=3 b=1}"));
    assert!(!bed.config().mixed_sources);
}

#[test]
fn cached_resources_of_the_old_server_are_still_one_configuration() {
    // Nothing of the new server has come: what changes elsewhere goes out.
    let mut bed = serving_from_a();
    bed.routes("r", &["a", "d"]);
    bed.logical_dns("d", "host");
    bed.take();
    bed.switch("B");
    bed.answer("host", Ok(&[5]));
    assert_eq!(bed.take(), "{a=1 d=5}");
}

/// A mixture is in force. Once everything that the routes need is from one server again, that is published at once,
/// whatever the mixture still holds on to.
#[test]
fn the_end_of_a_mixture_is_published_at_once() {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.inline(&["both"]);
    bed.aggregate("both", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.switch("B");
    bed.aggregate("both", &["b", "a"]);
    bed.eds("b");
    bed.endpoints("b", &[2]);
    bed.confirmed(CDS, "a");
    bed.confirmed(EDS, "a");
    bed.pass(seconds(15));
    assert!(bed.take().contains("mixed"));
    bed.pass(seconds(5));
    bed.switch("A");
    bed.together(|bed| {
        bed.aggregate("both", &["a"]);
        bed.confirmed(CDS, "a");
        bed.confirmed(EDS, "a");
    });
    let told = bed.take();
    assert!(told.contains('{') && !told.contains("mixed"), "{told:?}");
}

/// The same if the switch and everything after it come together, and nothing must be looked up.
#[test]
fn the_end_of_a_mixture_of_addresses_is_published_at_once() {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.inline(&["both"]);
    bed.aggregate("both", &["a"]);
    bed.logical_dns("a", "10.0.0.1");
    bed.take();
    bed.switch("B");
    bed.aggregate("both", &["b", "a"]);
    bed.logical_dns("b", "10.0.0.2");
    bed.logical_dns("a", "10.0.0.3");
    bed.pass(seconds(15));
    assert!(bed.take().contains("mixed"));
    bed.pass(seconds(5));
    bed.together(|bed| {
        bed.switch("A");
        bed.aggregate("both", &["a"]);
        bed.logical_dns("a", "10.0.0.1");
    });
    let told = bed.take();
    assert!(told.contains('{') && !told.contains("mixed"), "{told:?}");
}

/// A mixture that took its time to be put in force is followed at once from then on.
#[test]
fn a_first_configuration_that_is_a_mixture_is_not_held_back_once_more() {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.inline(&["a"]);
    bed.switch("B");
    bed.logical_dns("a", "10.0.0.1");
    bed.pass(seconds(15));
    assert!(bed.take().contains("mixed"));
    bed.pass(seconds(5));
    bed.logical_dns("a", "10.0.0.2");
    assert!(bed.take().contains("mixed"));
}

/// What an aggregate in force held on to does not hold back what replaces it, which is all from the new server.
#[test]
fn the_leaves_of_an_aggregate_that_is_gone_hold_no_switch_back_c50() {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.rds("r");
    bed.routes("r", &["top"]);
    bed.aggregate("top", &["a", "b"]);
    for leaf in ["a", "b"] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[1]);
    }
    assert!(bed.take().ends_with("{a=1 b=1 top>a,b}"));
    let at_the_switch = |bed: &Testbed| {
        let mut bed = bed.clone();
        bed.switch("B");
        bed.confirmed(LDS, "l");
        bed.confirmed(RDS, "r");
        assert_eq!(bed.take(), "");
        bed
    };
    let mut gone = at_the_switch(&bed);
    gone.fail(CDS, "top");
    assert_eq!(gone.take(), "{top!} -CDS a -CDS b -EDS a -EDS b");
    // Nor do those that it lists no more.
    let mut shorter = at_the_switch(&bed);
    shorter.confirmed(CDS, "a");
    shorter.confirmed(EDS, "a");
    shorter.aggregate("top", &["a"]);
    assert_eq!(shorter.take(), "{a=1 top>a} -CDS b -EDS b");
}

/// A leaf that its aggregate moves away from, and that waits for nothing but its own end, still has its old server behind it.
#[test]
fn a_leaf_that_is_held_on_to_counts_for_the_server_that_it_came_from_c50() {
    let mut bed = Testbed::new();
    bed.switch("A");
    bed.inline(&["top", "c"]);
    bed.aggregate("top", &["x"]);
    for leaf in ["x", "c"] {
        bed.eds(leaf);
        bed.endpoints(leaf, &[1]);
    }
    assert!(bed.take().ends_with("{c=1 top>x x=1}"));
    bed.switch("B");
    bed.together(|bed| {
        bed.confirmed(LDS, "l");
        bed.confirmed(CDS, "c");
        bed.endpoints("c", &[2]);
        bed.aggregate("top", &["y"]);
        bed.fail(EDS, "x");
    });
    assert_eq!(bed.take(), "+CDS y");
    bed.pass(seconds(15));
    assert!(bed.take().contains("c=2"));
}
