//! Cases that other implementations test end to end, here on the core: what C-core calls FailoverTest, EdsTest and
//! AggregateClusterTest. Each test names its counterpart.

use std::time::Duration;

use mainstay_xds::resource::cluster::ClusterKind;

use crate::testbed::{Testbed, aggregate, config, dns, edit_cluster, eds, without_endpoints};

#[test]
fn rpcs_wait_while_the_next_priority_connects() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.fail(1);
    bed.connecting(2);
    assert_eq!(bed.outcome(), "wait", "ReportsConnectingDuringFailover");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
}

#[test]
fn a_priority_that_is_needed_again_while_it_connects_is_waited_for() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    bed.fail(1);
    bed.connecting(2);
    bed.idle(1);
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
    // The second leaf is set aside while it still connects, for longer than it would be waited for.
    bed.advance(Duration::from_secs(60));
    bed.idle(1);
    bed.fail(1);
    assert_eq!(bed.outcome(), "wait", "FallBackWithConnectivityChurn");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "FallBackWithConnectivityChurn");
}

#[test]
fn an_update_may_bring_the_first_priorities_that_work() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.fail(1);
    bed.fail(2);
    assert_eq!(bed.outcome(), "fail");
    bed.update_endpoints("c=3|d=4");
    bed.fail(3);
    bed.ready(4);
    assert_eq!(bed.rpc(), "send 4", "UpdateInitialUnavailable");
}

#[test]
fn priorities_may_be_turned_around_and_added_to() {
    let mut bed = Testbed::with_endpoints("a=1|b=2|c=3|d=4");
    for port in 1..=3 {
        bed.fail(port);
    }
    bed.ready(4);
    assert_eq!(bed.rpc(), "send 4", "Failover");
    bed.update_endpoints("d=4|c=3|b=2|a=1");
    assert_eq!(bed.rpc(), "send 4", "UpdatePriority");
    bed.log();
    bed.update_endpoints("e=5|d=4|c=3|b=2|a=1");
    assert_eq!(bed.log(), "create 5, connect 5", "a new first priority is tried");
    assert_eq!(bed.rpc(), "send 4", "what is ready stays in use while a first priority that is new connects");
    bed.fail(5);
    assert_eq!(bed.rpc(), "send 4", "SwitchBackToHigherPriority");
    bed.idle(5);
    bed.ready(5);
    assert_eq!(bed.rpc(), "send 5", "SwitchBackToHigherPriority");
}

#[test]
fn no_rpc_fails_when_every_locality_of_a_priority_is_replaced() {
    let mut bed = Testbed::with_endpoints("a=1 b=2");
    bed.ready(1);
    bed.ready(2);
    bed.update_endpoints("c=3 d=4");
    assert_eq!(bed.outcome(), "send", "ReplaceAllLocalitiesInPriority: nor does any wait");
    bed.ready(4);
    assert_eq!(bed.rpc(), "send 4", "ReplaceAllLocalitiesInPriority");
}

#[test]
fn news_of_a_priority_that_was_set_aside_and_emptied_does_no_harm() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.fail(1);
    bed.connecting(2);
    bed.idle(1);
    bed.ready(1);
    let before = bed.published;
    bed.update_endpoints("a=1|b=");
    assert!(!bed.helper.live.contains_key(&2), "LocalityBecomesEmptyWithDeactivatedChildStateUpdate");
    assert_eq!((bed.rpc().as_str(), bed.published - before <= 1), ("send 1", true));
    bed.advance(Duration::from_secs(15 * 60));
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn the_largest_weights_do_not_overflow() {
    // The parser allows a sum of up to 2^32 - 1.
    let mut bed = Testbed::with_endpoints("a*2147483648=1 b*2147483647=2");
    bed.ready(1);
    bed.ready(2);
    bed.script.draws = [0, 2_147_483_647, 2_147_483_648, 4_294_967_294].into();
    assert_eq!(bed.ports(4), [1, 1, 2, 2], "NoIntegerOverflowInLocalityWeights");
}

#[test]
fn many_localities_come_and_go_with_their_endpoints() {
    let list = |from: u16, to: u16| (from..to).map(|n| format!("l{n}={n}")).collect::<Vec<_>>().join(" ");
    let mut bed = Testbed::with_endpoints(&list(1, 51));
    (1..51).for_each(|port| bed.ready(port));
    bed.log();
    bed.update_endpoints(&list(26, 76));
    let released = (1..26).map(|port| format!("release {port}"));
    let asked = bed.log();
    assert!(released.clone().all(|line| asked.contains(&line)), "ManyLocalitiesStressTest: {asked}");
    assert_eq!(asked.matches("release").count(), 25, "LocalityMapUpdateChurn: those that stay keep their connections");
    assert_eq!(asked.matches("create").count(), 25);
    (51..76).for_each(|port| bed.ready(port));
    bed.script.draws = (0..50).collect();
    assert_eq!(bed.ports(50), (26..76).collect::<Vec<_>>(), "each locality has its share");
}

#[test]
fn a_cluster_may_turn_from_endpoints_to_dns_and_back() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.update(config([dns("c", "=2")]));
    assert_ne!(bed.outcome(), "fail", "EdsToLogicalDns");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "EdsToLogicalDns");
    bed.update(config([eds("c", "a=1")]));
    assert_ne!(bed.outcome(), "fail", "LogicalDnsToEds");
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "LogicalDnsToEds");
}

#[test]
fn a_leaf_that_gets_other_endpoints_while_the_next_one_fails_is_not_mixed_up_with_it() {
    let leaves = |endpoints: &str| config([aggregate("agg", &["x", "y"]), eds("x", endpoints), without_endpoints("y")]);
    let mut bed = Testbed::new();
    bed.update(leaves("a=1"));
    bed.fail(1);
    assert!(bed.rpc().starts_with("fail 14: cluster \"agg\": leaf \"y\""), "{}", bed.rpc());
    // Other localities, so another number below the leaf: the number of the failing leaf is not touched.
    bed.update(leaves("b=2"));
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "ReconfigEdsWhileLogicalDnsChildFails");
}

#[test]
fn leaves_may_have_the_same_localities() {
    let mut bed = Testbed::new();
    bed.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    bed.fail(1);
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "MultipleClustersWithSameLocalities");
}

#[test]
fn a_leaf_may_change_the_name_of_its_endpoints() {
    let named = |service: &str, endpoints: &str| {
        let leaf = edit_cluster(eds("x", endpoints), |cluster| {
            cluster.kind = ClusterKind::Eds { service_name: Some(service.into()) };
        });
        config([aggregate("agg", &["x"]), leaf])
    };
    let mut bed = Testbed::new();
    bed.update(named("one", "a=1"));
    bed.ready(1);
    bed.update(named("two", "a=2"));
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2", "UpdateOfChildCluster");
    assert!(!bed.helper.live.contains_key(&1));
}
