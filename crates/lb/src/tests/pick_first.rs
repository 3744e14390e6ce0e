//! pick_first as the policy of a cluster, and Happy Eyeballs.

use std::net::SocketAddr;
use std::time::Duration;

use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::tls::HttpConnect;

use crate::testbed::{Testbed, config, dns, edit_cluster, eds, with_policy};

#[test]
fn the_second_address_is_tried_beside_a_slow_first_one() {
    let mut bed = pick_first("a=1,2,3");
    assert_eq!(bed.log(), "create 1, create 2, create 3, connect 1", "L-121");
    bed.connecting(1);
    bed.advance(Duration::from_millis(249));
    assert_eq!(bed.log(), "", "L-121");
    bed.advance(Duration::from_millis(1));
    assert_eq!(bed.log(), "connect 2", "L-121: 250 ms");
    bed.ready(1);
    assert_eq!(bed.log(), "release 2, release 3", "L-122");
    assert_eq!(bed.rpc(), "send 1");
    assert_eq!(bed.tree.next_deadline(), None);
}

#[test]
fn a_failure_goes_on_at_once_and_the_delay_starts_anew() {
    let mut bed = pick_first("a=1,2,3");
    bed.log();
    bed.advance(Duration::from_millis(100));
    bed.fail(1);
    assert_eq!(bed.log(), "connect 2", "L-121");
    bed.advance(Duration::from_millis(249));
    assert_eq!(bed.log(), "", "L-121");
    bed.advance(Duration::from_millis(1));
    assert_eq!(bed.log(), "connect 3", "L-121");
    assert_eq!(bed.outcome(), "wait", "L-122: CONNECTING until the pass ends");
}

#[test]
fn when_every_address_failed_rpcs_fail_until_one_is_ready() {
    let mut bed = pick_first("a=1,2");
    bed.fail(1);
    assert_eq!(bed.outcome(), "wait", "L-122");
    bed.log();
    bed.fail(2);
    assert_eq!(bed.log(), "reresolve", "L-123");
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: failed to connect to all addresses; last error: 10.0.0.1:2: \
         refused (xDS node ID:n)"
    );
    bed.idle(1);
    assert_eq!(bed.log(), "connect 1", "L-123: at the end of its backoff");
    bed.connecting(1);
    assert_eq!(bed.outcome(), "fail", "L-123: sticky");
    bed.fail(1);
    assert_eq!(bed.log(), "", "L-123");
    bed.idle(2);
    bed.fail(2);
    assert_eq!(bed.log(), "connect 2, reresolve", "L-123: as many failures as addresses");
    bed.idle(1);
    bed.log();
    bed.ready(1);
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "release 2"));
}

#[test]
fn one_whose_backoff_ends_during_the_pass_is_tried_again_after_it() {
    let mut bed = pick_first("a=1,2");
    bed.fail(1);
    bed.idle(1);
    bed.log();
    bed.fail(2);
    assert_eq!(bed.log(), "connect 1, reresolve", "L-123");
}

#[test]
fn an_earlier_failure_does_not_hurry_the_attempt_that_runs() {
    let mut bed = pick_first("a=1,2,3");
    bed.connecting(1);
    bed.advance(Duration::from_millis(250));
    bed.log();
    bed.fail(1);
    assert_eq!(bed.log(), "", "L-121: the delay of the second address runs on");
    bed.advance(Duration::from_millis(250));
    assert_eq!(bed.log(), "connect 3", "L-121");
}

#[test]
fn an_address_in_backoff_is_passed_over() {
    let mut bed = pick_first("a=1,2");
    bed.fail(1);
    bed.ready(2);
    bed.log();
    // 1 was released, so bring it back in backoff: through another list that shares it.
    bed.update(config([with_policy(dns("c", "a=3,1"), LbPolicy::PickFirst { shuffle: false })]));
    bed.fail(1);
    bed.update(config([with_policy(dns("c", "a=1,4"), LbPolicy::PickFirst { shuffle: false })]));
    assert!(bed.log().ends_with("create 4, connect 4, release 3"), "L-121: TF counts as failed, go on");
}

#[test]
fn a_list_that_still_has_the_selected_address_changes_nothing() {
    let mut bed = pick_first("a=1,2");
    bed.ready(1);
    bed.log();
    bed.update(config([with_policy(dns("c", "a=3,1"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!(bed.log(), "", "L-124");
    assert_eq!(bed.rpc(), "send 1", "L-124");
    bed.idle(1);
    assert_eq!(bed.log(), "reresolve", "L-125: idle");
    assert_eq!(bed.outcome(), "wait");
    assert_eq!(bed.log(), "create 3, connect 3", "L-125: the next pick starts a new pass over the new list");
    assert_eq!(bed.outcome(), "wait");
    assert_eq!(bed.log(), "", "L-125: once");
}

#[test]
fn a_list_without_the_selected_address_starts_a_new_pass() {
    let mut bed = pick_first("a=1");
    bed.ready(1);
    bed.log();
    bed.update(config([with_policy(dns("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 2, connect 2"), "L-124");
    bed.ready(2);
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", "release 1"), "L-124");
}

#[test]
fn a_new_list_does_not_end_the_failure_of_the_old_one() {
    let mut bed = pick_first("a=1");
    bed.fail(1);
    bed.update(config([with_policy(dns("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!(bed.outcome(), "fail", "L-123: sticky until READY");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
}

#[test]
fn an_empty_list_fails() {
    let mut bed = pick_first("a=");
    assert_eq!(bed.rpc(), "fail 14: cluster \"c\": priority 0 of 1: no endpoints (xDS node ID:n)", "L-124");
    bed.update(config([with_policy(dns("c", "a=1"), LbPolicy::PickFirst { shuffle: false })]));
    bed.ready(1);
    bed.log();
    bed.update(config([with_policy(dns("c", "a="), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!((bed.outcome().as_str(), bed.log().as_str()), ("fail", "release 1"), "L-124");
}

#[test]
fn endpoints_are_shuffled_but_not_their_addresses() {
    let mut bed = Testbed::new();
    bed.script.draws = [1, 1 << 31, 1 << 30].into();
    bed.update(config([with_policy(dns("c", "a=1,2+22,3"), LbPolicy::PickFirst { shuffle: true })]));
    assert_eq!(
        bed.log(),
        "create 2, create 22, create 3, create 1, connect 2",
        "L-119: by descending key, equal weights"
    );
}

#[test]
fn a_lost_connection_is_replaced_when_an_rpc_needs_it() {
    let mut bed = pick_first("a=1,2");
    bed.ready(1);
    bed.log();
    bed.idle(1);
    assert_eq!(bed.log(), "reresolve", "L-125: idle");
    assert_eq!(bed.outcome(), "wait", "L-125");
    assert_eq!(bed.log(), "create 2, connect 1", "L-125: the pick asks for it");
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn below_a_locality_a_lost_connection_is_replaced_at_once() {
    let mut bed = Testbed::new();
    let policy = LbPolicy::WrrLocality(Box::new(LbPolicy::PickFirst { shuffle: false }));
    bed.update(config([with_policy(dns("c", "a=1,2"), policy)]));
    bed.ready(1);
    bed.log();
    bed.idle(1);
    assert_eq!(bed.log(), "create 2, connect 1, reresolve", "L-100");
}

fn pick_first(endpoints: &str) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(config([with_policy(dns("c", endpoints), LbPolicy::PickFirst { shuffle: false })]));
    bed
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
    let mut bed = Testbed::new();
    bed.update(through(8080));
    bed.ready(1);
    bed.ready(2);
    bed.log();
    bed.update(through(8081));
    assert_eq!(bed.log(), "create 1, create 2, connect 1, connect 2", "A86");
    assert_eq!(bed.outcome(), "send", "what served goes on meanwhile");
    bed.ready(1);
    assert_eq!(bed.log(), "release 1, release 2");
    assert_eq!(bed.rpc(), "send 1");
    bed.ready(2);
    assert_eq!(bed.ports(4).iter().filter(|port| **port == 2).count(), 2);
    bed.call(|tree, cx| tree.shut_down(cx));
    assert!(bed.helper.live.is_empty(), "nothing is left");
}
