//! least_request: of a few endpoints, the one with the fewest RPCs under way.

use std::sync::Arc;

use mainstay_xds::Code;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{World, config, eds, with_policy};
use crate::{CallTracker, Ending};

#[test]
fn of_those_drawn_the_one_with_the_fewest_rpcs_is_taken() {
    let mut world = world("a=1,2,3", 2);
    let mut running = vec![begin(&mut world, [0, 1], 1), begin(&mut world, [0, 1], 2)];
    running.push(begin(&mut world, [1, 0], 2));
    running.push(begin(&mut world, [1, 2], 3));
    running.push(begin(&mut world, [1, 0], 1));
    // 2, 2 and 1 are under way.
    running.push(begin(&mut world, [0, 1], 1));
    assert_eq!(world.script.bounds.split_off(world.script.bounds.len() - 2), [3, 3], "L-105: a draw for each choice");
    drop(running);
    begin(&mut world, [1, 0], 2);
}

#[test]
fn the_end_of_an_rpc_counts_whatever_its_status() {
    let mut world = world("a=1,2", 2);
    for code in [Code::Ok, Code::Unavailable] {
        let running = begin(&mut world, [0, 0], 1);
        let other = begin(&mut world, [0, 1], 2);
        running.end(Ending { code, trailers: None });
        begin(&mut world, [1, 0], 1);
        drop(other);
    }
    let running = begin(&mut world, [0, 0], 1);
    drop(running);
    begin(&mut world, [0, 1], 1);
}

#[test]
fn an_endpoint_may_be_drawn_twice_and_more_choices_see_more() {
    let mut world = world("a=1,2,3", 4);
    let _busy = [begin(&mut world, [0; 4], 1), begin(&mut world, [0, 1, 0, 1], 2)];
    begin(&mut world, [0, 1, 0, 2], 3);
    let _twice = begin(&mut world, [0; 4], 1);
}

#[test]
fn counts_outlive_updates_and_pickers() {
    let mut world = world("a=1,2,3", 2);
    let _running = begin(&mut world, [0, 0], 1);
    world.update(config([with_policy(eds("c", "a=2,1"), LbPolicy::LeastRequest { choices: 2 })]));
    begin(&mut world, [1, 0], 2);
    world.idle(2);
    world.ready(2);
    begin(&mut world, [1, 0], 2);
}

#[test]
fn an_endpoint_with_another_set_of_addresses_counts_anew_from_its_first_rpc() {
    let policy = |endpoints| config([with_policy(eds("c", endpoints), LbPolicy::LeastRequest { choices: 2 })]);
    let mut world = World::new();
    world.update(policy("a=1+3,2"));
    [1, 2].into_iter().for_each(|port| world.ready(port));
    world.update(policy("a=1+4,2"));
    let _running = begin(&mut world, [0, 0], 1);
    world.update(policy("a=1+4,2,5"));
    begin(&mut world, [0, 1], 2); // L-102, L-105: the RPC under way is one of the new endpoint.
}

#[test]
fn two_policies_count_apart() {
    let policy = || LbPolicy::WrrLocality(Box::new(LbPolicy::LeastRequest { choices: 2 }));
    let mut world = World::new();
    world.update(config([with_policy(eds("c", "a=1,2 b=1,2"), policy())]));
    [1, 2].into_iter().for_each(|port| world.ready(port));
    let _running = begin(&mut world, [0, 0, 0], 1);
    // The first draw chooses the locality.
    let _apart = begin(&mut world, [1, 0, 1], 1);
    let _counted = begin(&mut world, [0, 0, 1], 2);
}

#[test]
fn a_connection_that_died_is_passed_over() {
    let mut world = world("a=1,2,3", 2);
    world.die_silently(1);
    begin(&mut world, [0, 1], 2);
    begin(&mut world, [0, 0], 2);
    world.die_silently(2);
    world.die_silently(3);
    assert_eq!(world.outcome(), "wait");
}

#[test]
fn without_a_choice_nothing_is_drawn() {
    let mut world = world("a=1", 10);
    assert_eq!(world.ports(2), [1, 1]);
    assert!(world.script.bounds.is_empty());
}

#[test]
fn states_are_those_of_round_robin() {
    let mut world = World::new();
    world.update(config([with_policy(eds("c", "a=1,2"), LbPolicy::LeastRequest { choices: 2 })]));
    assert_eq!(world.log(), "create 1, create 2, connect 1, connect 2", "L-105: connects to all");
    assert_eq!(world.outcome(), "wait");
    world.fail(1);
    assert_eq!(world.outcome(), "wait", "L-104");
    world.fail(2);
    assert_eq!(world.outcome(), "fail", "L-104");
    world.ready(1);
    assert_eq!(world.rpc(), "send 1");
}

fn world(endpoints: &str, choices: u8) -> World {
    let mut world = World::new();
    world.update(config([with_policy(eds("c", endpoints), LbPolicy::LeastRequest { choices })]));
    let ports: Vec<u16> = world.helper.live.keys().copied().collect();
    ports.into_iter().for_each(|port| world.ready(port));
    world.script.bounds.clear();
    world
}

/// Begins an RPC with these draws, which must go to `port`.
#[track_caller]
fn begin<const N: usize>(world: &mut World, draws: [u64; N], port: u16) -> CallTracker {
    world.script.draws = draws.into();
    let snapshot = Arc::clone(&world.snapshot);
    let (sent, tracker) = world.begin(&snapshot);
    assert_eq!(sent, port, "L-105");
    tracker
}
