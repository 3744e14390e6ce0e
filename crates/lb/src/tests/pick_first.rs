//! pick_first as the policy of a cluster, and Happy Eyeballs.

use std::net::SocketAddr;
use std::time::Duration;

use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::tls::HttpConnect;

use crate::testbed::{World, config, dns, edit_cluster, eds, with_policy};

#[test]
fn the_second_address_is_tried_beside_a_slow_first_one() {
    let mut world = pick_first("a=1,2,3");
    assert_eq!(world.log(), "create 1, create 2, create 3, connect 1", "L-121");
    world.connecting(1);
    world.advance(Duration::from_millis(249));
    assert_eq!(world.log(), "", "L-121");
    world.advance(Duration::from_millis(1));
    assert_eq!(world.log(), "connect 2", "L-121: 250 ms");
    world.ready(1);
    assert_eq!(world.log(), "release 2, release 3", "L-122");
    assert_eq!(world.rpc(), "send 1");
    assert_eq!(world.tree.next_deadline(), None);
}

#[test]
fn a_failure_goes_on_at_once_and_the_delay_starts_anew() {
    let mut world = pick_first("a=1,2,3");
    world.log();
    world.advance(Duration::from_millis(100));
    world.fail(1);
    assert_eq!(world.log(), "connect 2", "L-121");
    world.advance(Duration::from_millis(249));
    assert_eq!(world.log(), "", "L-121");
    world.advance(Duration::from_millis(1));
    assert_eq!(world.log(), "connect 3", "L-121");
    assert_eq!(world.outcome(), "wait", "L-122: CONNECTING until the pass ends");
}

#[test]
fn when_every_address_failed_rpcs_fail_until_one_is_ready() {
    let mut world = pick_first("a=1,2");
    world.fail(1);
    assert_eq!(world.outcome(), "wait", "L-122");
    world.log();
    world.fail(2);
    assert_eq!(world.log(), "reresolve", "L-123");
    assert_eq!(
        world.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: failed to connect to all addresses; last error: 10.0.0.1:2: \
         refused (xDS node ID:n)"
    );
    world.idle(1);
    assert_eq!(world.log(), "connect 1", "L-123: at the end of its backoff");
    world.connecting(1);
    assert_eq!(world.outcome(), "fail", "L-123: sticky");
    world.fail(1);
    assert_eq!(world.log(), "", "L-123");
    world.idle(2);
    world.fail(2);
    assert_eq!(world.log(), "connect 2, reresolve", "L-123: as many failures as addresses");
    world.idle(1);
    world.log();
    world.ready(1);
    assert_eq!((world.rpc().as_str(), world.log().as_str()), ("send 1", "release 2"));
}

#[test]
fn one_whose_backoff_ends_during_the_pass_is_tried_again_after_it() {
    let mut world = pick_first("a=1,2");
    world.fail(1);
    world.idle(1);
    world.log();
    world.fail(2);
    assert_eq!(world.log(), "connect 1, reresolve", "L-123");
}

#[test]
fn an_earlier_failure_does_not_hurry_the_attempt_that_runs() {
    let mut world = pick_first("a=1,2,3");
    world.connecting(1);
    world.advance(Duration::from_millis(250));
    world.log();
    world.fail(1);
    assert_eq!(world.log(), "", "L-121: the delay of the second address runs on");
    world.advance(Duration::from_millis(250));
    assert_eq!(world.log(), "connect 3", "L-121");
}

#[test]
fn an_address_in_backoff_is_passed_over() {
    let mut world = pick_first("a=1,2");
    world.fail(1);
    world.ready(2);
    world.log();
    // 1 was released, so bring it back in backoff: through another list that shares it.
    world.update(config([with_policy(dns("c", "a=3,1"), LbPolicy::PickFirst { shuffle: false })]));
    world.fail(1);
    world.update(config([with_policy(dns("c", "a=1,4"), LbPolicy::PickFirst { shuffle: false })]));
    assert!(world.log().ends_with("create 4, connect 4, release 3"), "L-121: TF counts as failed, go on");
}

#[test]
fn a_list_that_still_has_the_selected_address_changes_nothing() {
    let mut world = pick_first("a=1,2");
    world.ready(1);
    world.log();
    world.update(config([with_policy(dns("c", "a=3,1"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!(world.log(), "", "L-124");
    assert_eq!(world.rpc(), "send 1", "L-124");
    world.idle(1);
    assert_eq!(world.log(), "reresolve", "L-125: idle");
    assert_eq!(world.outcome(), "wait");
    assert_eq!(world.log(), "create 3, connect 3", "L-125: the next pick starts a new pass over the new list");
    assert_eq!(world.outcome(), "wait");
    assert_eq!(world.log(), "", "L-125: once");
}

#[test]
fn a_list_without_the_selected_address_starts_a_new_pass() {
    let mut world = pick_first("a=1");
    world.ready(1);
    world.log();
    world.update(config([with_policy(dns("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!((world.rpc().as_str(), world.log().as_str()), ("send 1", "create 2, connect 2"), "L-124");
    world.ready(2);
    assert_eq!((world.rpc().as_str(), world.log().as_str()), ("send 2", "release 1"), "L-124");
}

#[test]
fn a_new_list_does_not_end_the_failure_of_the_old_one() {
    let mut world = pick_first("a=1");
    world.fail(1);
    world.update(config([with_policy(dns("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!(world.outcome(), "fail", "L-123: sticky until READY");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2");
}

#[test]
fn an_empty_list_fails() {
    let mut world = pick_first("a=");
    assert_eq!(world.rpc(), "fail 14: cluster \"c\": priority 0 of 1: no endpoints (xDS node ID:n)", "L-124");
    world.update(config([with_policy(dns("c", "a=1"), LbPolicy::PickFirst { shuffle: false })]));
    world.ready(1);
    world.log();
    world.update(config([with_policy(dns("c", "a="), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!((world.outcome().as_str(), world.log().as_str()), ("fail", "release 1"), "L-124");
}

#[test]
fn endpoints_are_shuffled_but_not_their_addresses() {
    let mut world = World::new();
    world.script.draws = [1, 1 << 31, 1 << 30].into();
    world.update(config([with_policy(dns("c", "a=1,2+22,3"), LbPolicy::PickFirst { shuffle: true })]));
    assert_eq!(
        world.log(),
        "create 2, create 22, create 3, create 1, connect 2",
        "L-119: by descending key, equal weights"
    );
}

#[test]
fn a_lost_connection_is_replaced_when_an_rpc_needs_it() {
    let mut world = pick_first("a=1,2");
    world.ready(1);
    world.log();
    world.idle(1);
    assert_eq!(world.log(), "reresolve", "L-125: idle");
    assert_eq!(world.outcome(), "wait", "L-125");
    assert_eq!(world.log(), "create 2, connect 1", "L-125: the pick asks for it");
    world.ready(1);
    assert_eq!(world.rpc(), "send 1");
}

#[test]
fn below_a_locality_a_lost_connection_is_replaced_at_once() {
    let mut world = World::new();
    let policy = LbPolicy::WrrLocality(Box::new(LbPolicy::PickFirst { shuffle: false }));
    world.update(config([with_policy(dns("c", "a=1,2"), policy)]));
    world.ready(1);
    world.log();
    world.idle(1);
    assert_eq!(world.log(), "create 2, connect 1, reresolve", "L-100");
}

fn pick_first(endpoints: &str) -> World {
    let mut world = World::new();
    world.update(config([with_policy(dns("c", endpoints), LbPolicy::PickFirst { shuffle: false })]));
    world
}

/// A86: where a connection goes through is part of what it is.
#[test]
fn another_proxy_is_another_connection_and_the_one_before_serves_until_that_is_ready() {
    let through = |port: u16| {
        let proxy = SocketAddr::from(([127, 0, 0, 1], port));
        config([edit_cluster(eds("c", "a=1,2"), |cluster| {
            cluster.http_connect = Some(HttpConnect { default: Some(proxy) });
        })])
    };
    let mut world = World::new();
    world.update(through(8080));
    world.ready(1);
    world.ready(2);
    world.log();
    world.update(through(8081));
    assert_eq!(world.log(), "create 1, create 2, connect 1, connect 2", "A86");
    assert_eq!(world.outcome(), "send", "what served goes on meanwhile");
    world.ready(1);
    assert_eq!(world.log(), "release 1, release 2");
    assert_eq!(world.rpc(), "send 1");
    world.ready(2);
    assert_eq!(world.ports(4).iter().filter(|port| **port == 2).count(), 2);
    world.call(|tree, cx| tree.shut_down(cx));
    assert!(world.helper.live.is_empty(), "nothing is left");
}
