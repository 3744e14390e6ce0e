//! Switches between servers (C-50).

use super::*;

/// Listener with RDS `r`, cluster `a` and its endpoints, all from A.
fn serving_from_a() -> World {
    let mut world = World::new();
    world.switch("A");
    world.rds("r");
    world.routes("r", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    assert!(world.take().ends_with("{a=1}"));
    world
}

#[test]
fn a_switch_is_published_when_everything_is_from_the_new_server() {
    let mut world = serving_from_a();
    world.switch("B");
    world.confirmed(LDS, "l");
    world.endpoints("a", &[2]);
    world.routes("r", &["a", "b"]);
    world.eds("b");
    world.endpoints("b", &[3]);
    assert_eq!(world.take(), "+CDS b +EDS b"); // complete, but cluster a is still A's
    world.confirmed(CDS, "a");
    assert_eq!(world.take(), "{a=2 b=3}");
}

/// The server behind the Listener and its routes counts at once, not with the next event.
#[test]
fn a_switch_is_published_when_its_listener_is_confirmed_last() {
    let mut world = serving_from_a();
    world.switch("B");
    world.confirmed(CDS, "a");
    world.endpoints("a", &[2]);
    world.confirmed(RDS, "r");
    assert_eq!(world.take(), ""); // complete, but the Listener is still A's
    world.confirmed(LDS, "l");
    assert_eq!(world.take(), "{a=2}");
}

#[test]
fn a_switch_is_published_at_once_whatever_comes_last() {
    for last in [LDS, RDS, CDS] {
        let mut world = serving_from_a();
        world.switch("B");
        world.endpoints("a", &[2]);
        let confirm = |world: &mut World, resource_type: ResourceType| match resource_type {
            LDS => world.confirmed(LDS, "l"),
            RDS => world.confirmed(RDS, "r"),
            _ => world.confirmed(CDS, "a"),
        };
        for first in [LDS, RDS, CDS].into_iter().filter(|first| *first != last) {
            confirm(&mut world, first);
            assert_eq!(world.take(), "", "{last} is still A's");
        }
        confirm(&mut world, last);
        assert_eq!(world.take(), "{a=2}", "{last} came last");
    }
}

#[test]
fn a_switch_that_confirms_everything_publishes_nothing() {
    let mut world = serving_from_a();
    world.switch("B");
    world.confirmed(LDS, "l");
    world.confirmed(RDS, "r");
    world.confirmed(CDS, "a");
    world.confirmed(EDS, "a");
    world.pass(seconds(100));
    assert_eq!(world.take(), "");
}

#[test]
fn a_switch_that_takes_too_long_is_published_as_mixed_until_it_is_clean() {
    let mut world = serving_from_a();
    world.switch("B");
    world.pass(seconds(1));
    world.endpoints("a", &[2]);
    world.pass(seconds(13));
    assert_eq!(world.take(), "");
    world.pass(seconds(1)); // 15 s after the switch
    assert_eq!(world.take(), "{a=2}mixed");
    world.endpoints("a", &[3]); // held back once, not each time
    assert_eq!(world.take(), "{a=3}mixed");
    world.confirmed(LDS, "l");
    world.confirmed(RDS, "r");
    assert_eq!(world.take(), "");
    let before = world.cluster_config("a").clone();
    world.confirmed(CDS, "a");
    assert_eq!(world.take(), "{a=3}");
    assert!(Arc::ptr_eq(&before, world.cluster_config("a")));
}

#[test]
fn a_new_server_that_is_slow_to_answer_has_not_used_up_its_time() {
    let mut world = serving_from_a();
    world.switch("B");
    world.pass(seconds(20)); // connecting
    world.endpoints("a", &[2]);
    world.pass(seconds(14));
    assert_eq!(world.take(), "");
    world.confirmed(LDS, "l");
    world.confirmed(RDS, "r");
    world.confirmed(CDS, "a");
    assert_eq!(world.take(), "{a=2}");
}

#[test]
fn a_switch_back_is_a_switch() {
    let mut world = serving_from_a();
    world.switch("B");
    world.endpoints("a", &[2]);
    world.pass(seconds(15));
    assert_eq!(world.take(), "{a=2}mixed");
    world.switch("A");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "{a=1}"); // all is A's again
    world.switch("B");
    world.switch("B"); // no news: the time goes on
    world.confirmed(LDS, "l");
    world.endpoints("a", &[4]);
    world.pass(seconds(14));
    assert_eq!(world.take(), "");
    world.switch("B");
    world.pass(seconds(1));
    assert_eq!(world.take(), "{a=4}mixed");
}

#[test]
fn servers_that_come_and_go_do_not_hold_an_update_back_for_ever() {
    // C-50: the bound is on the whole time that a mixture is held back, not on each switch.
    let mut world = serving_from_a();
    for (n, name) in ["B", "C", "B", "C"].iter().enumerate() {
        world.switch(name);
        world.endpoints("a", &[100 + n as u16]);
        world.pass(seconds(7));
    }
    assert_eq!(world.take(), "{a=102}mixed {a=103}mixed");
    // Nor does one that is clean in between hold back what came before.
    world.switch("A");
    world.endpoints("a", &[1]);
    assert_eq!(world.take(), "{a=1}");
}

#[test]
fn flapping_between_two_servers_holds_an_update_back_no_longer_than_twenty_seconds() {
    let mut world = World::serving(&["a", "b"]);
    let mut held = 0;
    for n in 0..20u16 {
        world.switch(if n % 2 == 0 { "B" } else { "A" });
        world.endpoints("a", &[100 + n]); // The other resources are on their way.
        world.pass(seconds(10));
        if world.take().contains("a=1") {
            break;
        }
        held += 10;
    }
    assert!(held <= 20, "an update of a was held back for {held} s");
}

#[test]
fn a_mixture_is_held_back_even_if_the_switch_is_told_late() {
    let mut world = serving_from_a();
    world.server = server("B");
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "");
    world.switch("B");
    world.pass(seconds(15));
    assert_eq!(world.take(), "{a=2}mixed");
}

#[test]
fn the_first_configuration_is_of_one_server_too() {
    // A71: the primary dies in the middle of its first answers.
    let mut world = World::new();
    world.switch("A");
    world.rds("r");
    world.routes("r", &["a"]);
    world.switch("B");
    world.eds("a");
    world.endpoints("a", &[1]);
    world.confirmed(LDS, "l");
    assert_eq!(world.take(), "+RDS r +CDS a +EDS a");
    world.confirmed(RDS, "r");
    assert_eq!(world.take(), "{a=1}");
}

#[test]
fn the_old_pair_stays_while_the_new_listener_waits_for_its_routes() {
    // D15 across a switch: the old listener counts, not the new one.
    let mut world = serving_from_a();
    world.switch("B");
    world.rds("r2");
    assert_eq!(world.take(), "+RDS r2");
    world.endpoints("a", &[2]);
    world.routes("r2", &["a"]);
    assert_eq!(world.take(), "");
    world.confirmed(CDS, "a");
    assert_eq!(world.take(), "{a=2} -RDS r");
}

#[test]
fn what_cannot_be_had_is_nobodys() {
    let mut world = serving_from_a();
    world.switch("B");
    world.confirmed(LDS, "l");
    world.confirmed(RDS, "r");
    world.fail(CDS, "a");
    assert_eq!(world.take(), "{a!} -EDS a");
}

#[test]
fn an_error_of_the_listener_is_not_held_back() {
    // L-11.
    let mut world = serving_from_a();
    world.switch("B");
    world.endpoints("a", &[2]);
    world.fail(LDS, "l");
    assert_eq!(world.take(), "error LDS l");
}

#[test]
fn subscriptions_do_not_hold_a_switch_back() {
    // L-10 as decided: the new server may not know what only old RPCs hold.
    let mut world = serving_from_a();
    world.subscribe("s");
    world.eds("s");
    world.endpoints("s", &[9]);
    world.take();
    world.switch("B");
    for (resource_type, name) in [(LDS, "l"), (RDS, "r"), (CDS, "a")] {
        world.confirmed(resource_type, name);
    }
    world.endpoints("a", &[2]);
    assert_eq!(world.take(), "{a=2 s=9}");
}

#[test]
fn authorities_switch_on_their_own() {
    // A95: endpoints of another authority may fall back while the rest stays.
    let name = "xdstp://edge/envoy.config.endpoint.v3.ClusterLoadAssignment/e";
    let mut world = World::new();
    world.switch("A");
    world.inline(&["a", "b"]);
    world.eds_named("a", name);
    world.eds("b");
    world.endpoints("b", &[1]);
    let edge = AuthorityKey::Named("edge".into());
    for (server_name, port) in [("E1", 2), ("E2", 3)] {
        world.server = server(server_name);
        world.manager.handle_active_server(world.now, &edge, &server(server_name));
        world.endpoints(name, &[port]);
    }
    assert!(world.take().ends_with("{a=2 b=1} {a=3 b=1}"));
    assert!(!world.config().mixed_sources);
}

#[test]
fn cached_resources_of_the_old_server_are_still_one_configuration() {
    // Nothing of the new server has come: what changes elsewhere goes out.
    let mut world = serving_from_a();
    world.routes("r", &["a", "d"]);
    world.logical_dns("d", "host");
    world.take();
    world.switch("B");
    world.answer("host", Ok(&[5]));
    assert_eq!(world.take(), "{a=1 d=5}");
}

/// A mixture is in force. Once everything that the routes need is from one server again, that is published at once,
/// whatever the mixture still holds on to.
#[test]
fn the_end_of_a_mixture_is_published_at_once() {
    let mut world = World::new();
    world.switch("A");
    world.inline(&["both"]);
    world.aggregate("both", &["a"]);
    world.eds("a");
    world.endpoints("a", &[1]);
    world.take();
    world.switch("B");
    world.aggregate("both", &["b", "a"]);
    world.eds("b");
    world.endpoints("b", &[2]);
    world.confirmed(CDS, "a");
    world.confirmed(EDS, "a");
    world.pass(seconds(15));
    assert!(world.take().contains("mixed"));
    world.pass(seconds(5));
    world.switch("A");
    world.together(|world| {
        world.aggregate("both", &["a"]);
        world.confirmed(CDS, "a");
        world.confirmed(EDS, "a");
    });
    let told = world.take();
    assert!(told.contains('{') && !told.contains("mixed"), "{told:?}");
}

/// The same if the switch and everything after it come together, and nothing must be looked up.
#[test]
fn the_end_of_a_mixture_of_addresses_is_published_at_once() {
    let mut world = World::new();
    world.switch("A");
    world.inline(&["both"]);
    world.aggregate("both", &["a"]);
    world.logical_dns("a", "10.0.0.1");
    world.take();
    world.switch("B");
    world.aggregate("both", &["b", "a"]);
    world.logical_dns("b", "10.0.0.2");
    world.logical_dns("a", "10.0.0.3");
    world.pass(seconds(15));
    assert!(world.take().contains("mixed"));
    world.pass(seconds(5));
    world.together(|world| {
        world.switch("A");
        world.aggregate("both", &["a"]);
        world.logical_dns("a", "10.0.0.1");
    });
    let told = world.take();
    assert!(told.contains('{') && !told.contains("mixed"), "{told:?}");
}

/// A mixture that took its time to be put in force is followed at once from then on.
#[test]
fn a_first_configuration_that_is_a_mixture_is_not_held_back_once_more() {
    let mut world = World::new();
    world.switch("A");
    world.inline(&["a"]);
    world.switch("B");
    world.logical_dns("a", "10.0.0.1");
    world.pass(seconds(15));
    assert!(world.take().contains("mixed"));
    world.pass(seconds(5));
    world.logical_dns("a", "10.0.0.2");
    assert!(world.take().contains("mixed"));
}
