//! Localities by weight.

use http::HeaderMap;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Script, World, config, eds, with_policy};
use crate::{Decision, Rpc};

#[test]
fn localities_share_exactly_by_weight() {
    let mut world = World::with_endpoints("a*1=1 b*3=2");
    world.ready(1);
    world.ready(2);
    world.script.draws = (0..4).collect();
    world.script.bounds.clear();
    assert_eq!(world.ports(4), [1, 2, 2, 2], "L-100");
    assert_eq!(world.script.bounds, [4; 4], "L-100: one draw each");
}

#[test]
fn only_ready_localities_are_chosen_from() {
    let mut world = World::with_endpoints("a=1 b=2 c=3");
    world.ready(1);
    world.fail(2);
    world.script.bounds.clear();
    assert_eq!(world.ports(2), [1, 1], "L-100");
    assert!(world.script.bounds.is_empty(), "no draw where there is no choice");
}

#[test]
fn rpcs_wait_while_a_locality_may_still_connect() {
    let mut world = World::with_endpoints("a=1 b=2");
    world.fail(1);
    assert_eq!(world.outcome(), "wait", "L-100, L-49");
    world.fail(2);
    assert_eq!(world.outcome(), "fail", "L-100");
    world.idle(1);
    world.connecting(1);
    assert_eq!(world.outcome(), "fail", "L-49: sticky");
}

#[test]
fn a_failed_locality_that_gets_new_endpoints_stays_failed_until_ready() {
    let mut world = World::with_endpoints("a=1");
    world.fail(1);
    world.update_endpoints("a=2");
    assert_eq!(world.outcome(), "fail", "L-49");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2");
}

#[test]
fn a_changed_weight_keeps_the_connections() {
    let mut world = World::with_endpoints("a*1=1 b*1=2");
    world.ready(1);
    world.ready(2);
    world.log();
    world.update_endpoints("a*1=1 b*2=2");
    assert_eq!(world.log(), "");
    world.script.draws = (0..3).collect();
    assert_eq!(world.ports(3), [1, 2, 2], "L-100");
}

#[test]
fn a_locality_without_endpoints_is_no_target() {
    let mut world = World::with_endpoints("a= b=1");
    world.fail(1);
    assert_eq!(
        world.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: locality b: connections to all 1 endpoints failing; last error: \
         10.0.0.1:1: refused (xDS node ID:n)",
        "L-99"
    );
    world.update_endpoints("a= b=");
    assert_eq!(world.rpc(), "fail 14: cluster \"c\": priority 0 of 1: no endpoints (xDS node ID:n)", "L-100");
}

#[test]
fn a_text_names_a_few_localities_and_counts_the_rest() {
    let mut world = World::with_endpoints("a=1 b=2 c=3 d=4 e=5");
    (1..=5).for_each(|port| world.fail(port));
    let text = world.rpc();
    assert!(text.contains("locality c: ") && !text.contains("locality d: ") && text.contains("; and 2 more"), "{text}");
}

#[test]
fn an_endpoint_that_moves_to_another_locality_keeps_its_connection_and_rpcs_know_where_they_go() {
    for policy in [LbPolicy::WrrLocality(LbPolicy::RoundRobin.into()), LbPolicy::PickFirst { shuffle: false }] {
        let mut world = World::new();
        world.update(config([with_policy(eds("c", "a=1"), policy.clone())]));
        world.ready(1);
        assert_eq!(origin(&world), ("c".to_owned(), "a".to_owned()), "S-63, S-64");
        world.log();
        world.update(config([with_policy(eds("c", "b=1"), policy)]));
        assert_eq!(origin(&world), ("c".to_owned(), "b".to_owned()), "S-63");
        assert_eq!(world.log(), "", "no RPC waits for the sake of a label");
    }
}

/// The cluster and the locality of the endpoint that the next RPC goes to.
fn origin(world: &World) -> (String, String) {
    let headers = HeaderMap::new();
    match world.snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut Script::default()) {
        Decision::Send(to) => (to.origin.cluster.to_string(), to.origin.locality.zone.clone()),
        other => panic!("not sent: {other:?}"),
    }
}

#[test]
fn a_removed_locality_is_let_go_at_once() {
    let mut world = World::with_endpoints("a=1 b=2");
    world.log();
    world.update_endpoints("a=1");
    assert_eq!(world.log(), "release 2");
}

#[test]
fn a_locality_whose_connections_all_died_gives_its_rpcs_to_the_others() {
    let mut world = World::with_endpoints("a=1 b=2");
    world.ready(1);
    world.ready(2);
    world.die_silently(2);
    world.script.draws = [0, 1].into();
    assert_eq!(world.ports(2), [1, 1]);
}
