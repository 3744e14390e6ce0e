//! least_request: of a few endpoints, the one with the fewest RPCs under way.

use std::sync::Arc;

use mainstay_xds::Code;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Testbed, config, eds, with_policy};
use crate::{CallTracker, Ending};

#[test]
fn of_those_drawn_the_one_with_the_fewest_rpcs_is_taken() {
    let mut bed = bed("a=1,2,3", 2);
    let mut running = vec![begin(&mut bed, [0, 1], 1), begin(&mut bed, [0, 1], 2)];
    running.push(begin(&mut bed, [1, 0], 2));
    running.push(begin(&mut bed, [1, 2], 3));
    running.push(begin(&mut bed, [1, 0], 1));
    // 2, 2 and 1 are under way.
    running.push(begin(&mut bed, [0, 1], 1));
    assert_eq!(bed.script.bounds.split_off(bed.script.bounds.len() - 2), [3, 3], "L-105: a draw for each choice");
    drop(running);
    begin(&mut bed, [1, 0], 2);
}

#[test]
fn the_end_of_an_rpc_counts_whatever_its_status() {
    let mut bed = bed("a=1,2", 2);
    for code in [Code::Ok, Code::Unavailable] {
        let running = begin(&mut bed, [0, 0], 1);
        let other = begin(&mut bed, [0, 1], 2);
        running.end(Ending { code, trailers: None });
        begin(&mut bed, [1, 0], 1);
        drop(other);
    }
    let running = begin(&mut bed, [0, 0], 1);
    drop(running);
    begin(&mut bed, [0, 1], 1);
}

#[test]
fn an_endpoint_may_be_drawn_twice_and_more_choices_see_more() {
    let mut bed = bed("a=1,2,3", 4);
    let _busy = [begin(&mut bed, [0; 4], 1), begin(&mut bed, [0, 1, 0, 1], 2)];
    begin(&mut bed, [0, 1, 0, 2], 3);
    let _twice = begin(&mut bed, [0; 4], 1);
}

#[test]
fn counts_outlive_updates_and_pickers() {
    let mut bed = bed("a=1,2,3", 2);
    let _running = begin(&mut bed, [0, 0], 1);
    bed.update(config([with_policy(eds("c", "a=2,1"), LbPolicy::LeastRequest { choices: 2 })]));
    begin(&mut bed, [1, 0], 2);
    bed.idle(2);
    bed.ready(2);
    begin(&mut bed, [1, 0], 2);
}

#[test]
fn an_endpoint_with_another_set_of_addresses_counts_anew_from_its_first_rpc() {
    let policy = |endpoints| config([with_policy(eds("c", endpoints), LbPolicy::LeastRequest { choices: 2 })]);
    let mut bed = Testbed::new();
    bed.update(policy("a=1+3,2"));
    [1, 2].into_iter().for_each(|port| bed.ready(port));
    bed.update(policy("a=1+4,2"));
    let _running = begin(&mut bed, [0, 0], 1);
    bed.update(policy("a=1+4,2,5"));
    begin(&mut bed, [0, 1], 2); // L-102, L-105: the RPC under way is one of the new endpoint.
}

#[test]
fn two_policies_count_apart() {
    let policy = || LbPolicy::WrrLocality(Box::new(LbPolicy::LeastRequest { choices: 2 }));
    let mut bed = Testbed::new();
    bed.update(config([with_policy(eds("c", "a=1,2 b=1,2"), policy())]));
    [1, 2].into_iter().for_each(|port| bed.ready(port));
    let _running = begin(&mut bed, [0, 0, 0], 1);
    // The first draw chooses the locality.
    let _apart = begin(&mut bed, [1, 0, 1], 1);
    let _counted = begin(&mut bed, [0, 0, 1], 2);
}

#[test]
fn a_connection_that_died_is_passed_over() {
    let mut bed = bed("a=1,2,3", 2);
    bed.die_silently(1);
    begin(&mut bed, [0, 1], 2);
    begin(&mut bed, [0, 0], 2);
    bed.die_silently(2);
    bed.die_silently(3);
    assert_eq!(bed.outcome(), "wait");
}

#[test]
fn without_a_choice_nothing_is_drawn() {
    let mut bed = bed("a=1", 10);
    assert_eq!(bed.ports(2), [1, 1]);
    assert!(bed.script.bounds.is_empty());
}

#[test]
fn states_are_those_of_round_robin() {
    let mut bed = Testbed::new();
    bed.update(config([with_policy(eds("c", "a=1,2"), LbPolicy::LeastRequest { choices: 2 })]));
    assert_eq!(bed.log(), "create 1, create 2, connect 1, connect 2", "L-105: connects to all");
    assert_eq!(bed.outcome(), "wait");
    bed.fail(1);
    assert_eq!(bed.outcome(), "wait", "L-104");
    bed.fail(2);
    assert_eq!(bed.outcome(), "fail", "L-104");
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
}

fn bed(endpoints: &str, choices: u8) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(config([with_policy(eds("c", endpoints), LbPolicy::LeastRequest { choices })]));
    let ports: Vec<u16> = bed.helper.live.keys().copied().collect();
    ports.into_iter().for_each(|port| bed.ready(port));
    bed.script.bounds.clear();
    bed
}

/// Begins an RPC with these draws, which must go to `port`.
#[track_caller]
fn begin<const N: usize>(bed: &mut Testbed, draws: [u64; N], port: u16) -> CallTracker {
    bed.script.draws = draws.into();
    let snapshot = Arc::clone(&bed.snapshot);
    let (sent, tracker) = bed.begin(&snapshot);
    assert_eq!(sent, port, "L-105");
    tracker
}
