//! Graceful switches between kinds of policies.

use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Testbed, aggregate, config, eds, with_policy};

#[test]
fn another_policy_over_connected_endpoints_takes_over_at_once() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    bed.ready(1);
    bed.ready(2);
    bed.log();
    bed.update(config([with_policy(eds("c", "a=1,2"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!(bed.log(), "release 2", "L-47: the connections are shared, so it is ready at once");
    assert_eq!(bed.ports(2), [1, 1]);
}

#[test]
fn the_old_policy_serves_until_the_new_one_is_ready() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.log();
    bed.update(config([with_policy(eds("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 2, connect 2"), "L-47");
    bed.ready(2);
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", "release 1"), "L-47");
}

#[test]
fn the_new_policy_takes_over_when_the_old_one_is_not_ready_any_more() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.update(config([with_policy(eds("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    bed.log();
    bed.idle(1);
    assert_eq!(bed.outcome(), "wait", "L-47");
    assert_eq!(bed.log(), "release 1", "L-47");
}

#[test]
fn a_policy_that_is_not_ready_is_replaced_at_once() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.log();
    bed.update(config([with_policy(eds("c", "a=2"), LbPolicy::RoundRobin)]));
    assert_eq!(bed.log(), "create 2, connect 2, release 1", "L-47");
}

#[test]
fn a_change_back_keeps_the_old_policy() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.update(config([with_policy(eds("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    bed.log();
    bed.update_endpoints("a=1,2");
    assert_eq!(bed.log(), "", "the subchannel of the policy that was to come is taken over");
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn a_third_policy_replaces_the_second_before_that_served() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.update(config([with_policy(eds("c", "a=2"), LbPolicy::PickFirst { shuffle: false })]));
    bed.log();
    bed.update(config([with_policy(eds("c", "a=3"), LbPolicy::RoundRobin)]));
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 3, connect 3, release 2"), "L-47");
}

#[test]
fn the_policy_inside_a_locality_switches_too() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.log();
    let inner = LbPolicy::WrrLocality(Box::new(LbPolicy::PickFirst { shuffle: false }));
    bed.update(config([with_policy(eds("c", "a=2"), inner)]));
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 2, connect 2"), "L-47");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
}

#[test]
fn a_leaf_that_becomes_an_aggregate_switches_when_that_is_ready() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.log();
    bed.update(config([aggregate("c", &["x"]), eds("x", "a=2")]));
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 2, connect 2"), "L-47, D17");
    bed.ready(2);
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", "release 1"), "L-47, D17");
    bed.update_endpoints("a=2");
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", ""), "L-47, D17: and back");
}
