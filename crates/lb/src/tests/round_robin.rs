//! round_robin over endpoints with one or more addresses.

use mainstay_xds::resource::endpoint::HealthStatus;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Testbed, config, dns, edit_endpoints, edit_locality, eds, with_policy};

#[test]
fn each_ready_endpoint_gets_its_turn_from_a_random_start() {
    let mut bed = Testbed::new();
    bed.script.draws = [0, 1].into(); // The starts for two and for three ready endpoints.
    bed.update(config([eds("c", "a=1,2,3")]));
    (1..=3).for_each(|port| bed.ready(port));
    assert_eq!(bed.ports(4), [2, 3, 1, 2], "L-103");
    assert_eq!(bed.script.bounds, [2, 3], "L-103: no draw where there is no choice");
}

#[test]
fn an_endpoint_that_fails_is_left_out_and_comes_back() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    bed.ready(1);
    bed.ready(2);
    bed.log();
    bed.idle(1);
    assert_eq!(bed.log(), "connect 1", "L-103: reconnects at once; EDS swallows the request for DNS (L-72)");
    assert_eq!(bed.ports(2), [2, 2]);
    bed.fail(1);
    bed.idle(1);
    assert_eq!(bed.log(), "connect 1", "L-123");
    bed.ready(1);
    assert_eq!(bed.ports(2), [1, 2]);
}

#[test]
fn a_disconnect_asks_dns_again() {
    let mut bed = Testbed::new();
    bed.update(config([dns("c", "a=1")]));
    bed.ready(1);
    bed.log();
    bed.idle(1);
    assert_eq!(bed.log(), "connect 1, reresolve", "L-103, L-72");
}

#[test]
fn rpcs_fail_only_when_every_endpoint_failed() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    bed.fail(1);
    assert_eq!(bed.outcome(), "wait", "L-104");
    bed.fail(2);
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: locality a: connections to all 2 endpoints failing; last error: \
         10.0.0.1:2: refused (xDS node ID:n)",
        "L-104"
    );
    bed.idle(1);
    bed.connecting(1);
    assert_eq!(bed.outcome(), "fail", "L-104: sticky per endpoint");
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn no_endpoints_fail() {
    let mut bed = Testbed::new();
    bed.update(config([with_policy(eds("c", "a="), LbPolicy::RoundRobin)]));
    assert_eq!(bed.rpc(), "fail 14: cluster \"c\": priority 0 of 1: no endpoints (xDS node ID:n)", "L-104");
}

#[test]
fn an_endpoint_is_its_set_of_addresses() {
    let mut bed = Testbed::with_endpoints("a=1+2");
    bed.ready(1);
    assert_eq!(bed.log(), "create 1, create 2, connect 1, release 2", "L-102: one pick_first per endpoint");
    bed.update_endpoints("a=2+1");
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", ""), "L-102: another order is an update");
    bed.update_endpoints("a=1+3");
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", ""), "its address 1 is connected");
    bed.update_endpoints("a=2+3");
    assert_eq!(bed.log(), "create 2, create 3, connect 2", "L-102: another set is another endpoint");
    bed.ready(2);
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", "release 1, release 3"));
}

#[test]
fn endpoints_with_the_same_addresses_count_once() {
    let mut bed = Testbed::new();
    bed.update(config([with_policy(eds("c", "a=1+2,2+1 b=1"), LbPolicy::RoundRobin)]));
    bed.ready(1);
    assert_eq!(bed.ports(2), [1, 1]);
    bed.die_silently(1);
    assert_eq!(bed.outcome(), "wait", "L-102: the second was a duplicate of the first");
}

#[test]
fn draining_endpoints_get_no_traffic() {
    let drain = |endpoint: &mut mainstay_xds::resource::endpoint::Endpoint| endpoint.health = HealthStatus::Draining;
    let mut bed = Testbed::new();
    let cluster = edit_endpoints(eds("c", "a=1,2"), |endpoints| {
        edit_locality(endpoints, 0, |endpoints| drain(&mut endpoints[0]));
    });
    bed.update(config([cluster]));
    assert_eq!(bed.log(), "create 2, connect 2", "L-96");
}

#[test]
fn endpoints_that_stay_keep_their_connections_in_any_order() {
    let mut bed = Testbed::with_endpoints("a=1,2,3");
    (1..=3).for_each(|port| bed.ready(port));
    bed.log();
    bed.update_endpoints("a=4,3,1");
    assert_eq!(bed.log(), "create 4, connect 4, release 2");
    assert_eq!(bed.ports(2), [3, 1], "L-103: list order");
}
