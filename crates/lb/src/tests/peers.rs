//! Cases that other implementations test end to end, here on the core: what C-core calls FailoverTest, EdsTest and
//! AggregateClusterTest. Each test names its counterpart.

use std::time::Duration;

use mainstay_xds::resource::cluster::ClusterKind;

use crate::testbed::{World, aggregate, config, dns, edit_cluster, eds, without_endpoints};

#[test]
fn rpcs_wait_while_the_next_priority_connects() {
    let mut world = World::with_endpoints("a=1|b=2");
    world.fail(1);
    world.connecting(2);
    assert_eq!(world.outcome(), "wait", "ReportsConnectingDuringFailover");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2");
}

#[test]
fn a_priority_that_is_needed_again_while_it_connects_is_waited_for() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    world.fail(1);
    world.connecting(2);
    world.idle(1);
    world.ready(1);
    assert_eq!(world.rpc(), "send 1");
    // The second leaf is set aside while it still connects, for longer than it would be waited for.
    world.advance(Duration::from_secs(60));
    world.idle(1);
    world.fail(1);
    assert_eq!(world.outcome(), "wait", "FallBackWithConnectivityChurn");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "FallBackWithConnectivityChurn");
}

#[test]
fn an_update_may_bring_the_first_priorities_that_work() {
    let mut world = World::with_endpoints("a=1|b=2");
    world.fail(1);
    world.fail(2);
    assert_eq!(world.outcome(), "fail");
    world.update_endpoints("c=3|d=4");
    world.fail(3);
    world.ready(4);
    assert_eq!(world.rpc(), "send 4", "UpdateInitialUnavailable");
}

#[test]
fn priorities_may_be_turned_around_and_added_to() {
    let mut world = World::with_endpoints("a=1|b=2|c=3|d=4");
    for port in 1..=3 {
        world.fail(port);
    }
    world.ready(4);
    assert_eq!(world.rpc(), "send 4", "Failover");
    world.update_endpoints("d=4|c=3|b=2|a=1");
    assert_eq!(world.rpc(), "send 4", "UpdatePriority");
    world.log();
    world.update_endpoints("e=5|d=4|c=3|b=2|a=1");
    assert_eq!(world.log(), "create 5, connect 5", "a new first priority is tried");
    assert_eq!(world.rpc(), "send 4", "what is ready stays in use while a first priority that is new connects");
    world.fail(5);
    assert_eq!(world.rpc(), "send 4", "SwitchBackToHigherPriority");
    world.idle(5);
    world.ready(5);
    assert_eq!(world.rpc(), "send 5", "SwitchBackToHigherPriority");
}

#[test]
fn no_rpc_fails_when_every_locality_of_a_priority_is_replaced() {
    let mut world = World::with_endpoints("a=1 b=2");
    world.ready(1);
    world.ready(2);
    world.update_endpoints("c=3 d=4");
    assert_eq!(world.outcome(), "send", "ReplaceAllLocalitiesInPriority: nor does any wait");
    world.ready(4);
    assert_eq!(world.rpc(), "send 4", "ReplaceAllLocalitiesInPriority");
}

#[test]
fn news_of_a_priority_that_was_set_aside_and_emptied_does_no_harm() {
    let mut world = World::with_endpoints("a=1|b=2");
    world.fail(1);
    world.connecting(2);
    world.idle(1);
    world.ready(1);
    let before = world.published;
    world.update_endpoints("a=1|b=");
    assert!(!world.helper.live.contains_key(&2), "LocalityBecomesEmptyWithDeactivatedChildStateUpdate");
    assert_eq!((world.rpc().as_str(), world.published - before <= 1), ("send 1", true));
    world.advance(Duration::from_secs(15 * 60));
    assert_eq!(world.rpc(), "send 1");
}

#[test]
fn the_largest_weights_do_not_overflow() {
    // The parser allows a sum of up to 2^32 - 1.
    let mut world = World::with_endpoints("a*2147483648=1 b*2147483647=2");
    world.ready(1);
    world.ready(2);
    world.script.draws = [0, 2_147_483_647, 2_147_483_648, 4_294_967_294].into();
    assert_eq!(world.ports(4), [1, 1, 2, 2], "NoIntegerOverflowInLocalityWeights");
}

#[test]
fn many_localities_come_and_go_with_their_endpoints() {
    let list = |from: u16, to: u16| (from..to).map(|n| format!("l{n}={n}")).collect::<Vec<_>>().join(" ");
    let mut world = World::with_endpoints(&list(1, 51));
    (1..51).for_each(|port| world.ready(port));
    world.log();
    world.update_endpoints(&list(26, 76));
    let released = (1..26).map(|port| format!("release {port}"));
    let asked = world.log();
    assert!(released.clone().all(|line| asked.contains(&line)), "ManyLocalitiesStressTest: {asked}");
    assert_eq!(asked.matches("release").count(), 25, "LocalityMapUpdateChurn: those that stay keep their connections");
    assert_eq!(asked.matches("create").count(), 25);
    (51..76).for_each(|port| world.ready(port));
    world.script.draws = (0..50).collect();
    assert_eq!(world.ports(50), (26..76).collect::<Vec<_>>(), "each locality has its share");
}

#[test]
fn a_cluster_may_turn_from_endpoints_to_dns_and_back() {
    let mut world = World::with_endpoints("a=1");
    world.ready(1);
    world.update(config([dns("c", "=2")]));
    assert_ne!(world.outcome(), "fail", "EdsToLogicalDns");
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "EdsToLogicalDns");
    world.update(config([eds("c", "a=1")]));
    assert_ne!(world.outcome(), "fail", "LogicalDnsToEds");
    world.ready(1);
    assert_eq!(world.rpc(), "send 1", "LogicalDnsToEds");
}

#[test]
fn a_leaf_that_gets_other_endpoints_while_the_next_one_fails_is_not_mixed_up_with_it() {
    let leaves = |endpoints: &str| config([aggregate("agg", &["x", "y"]), eds("x", endpoints), without_endpoints("y")]);
    let mut world = World::new();
    world.update(leaves("a=1"));
    world.fail(1);
    assert!(world.rpc().starts_with("fail 14: cluster \"agg\": leaf \"y\""), "{}", world.rpc());
    // Other localities, so another number below the leaf: the number of the failing leaf is not touched.
    world.update(leaves("b=2"));
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "ReconfigEdsWhileLogicalDnsChildFails");
}

#[test]
fn leaves_may_have_the_same_localities() {
    let mut world = World::new();
    world.update(config([aggregate("agg", &["x", "y"]), eds("x", "a=1"), eds("y", "a=2")]));
    world.fail(1);
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "MultipleClustersWithSameLocalities");
}

#[test]
fn a_leaf_may_change_the_name_of_its_endpoints() {
    let named = |service: &str, endpoints: &str| {
        let leaf = edit_cluster(eds("x", endpoints), |cluster| {
            cluster.kind = ClusterKind::Eds { service_name: Some(service.into()) };
        });
        config([aggregate("agg", &["x"]), leaf])
    };
    let mut world = World::new();
    world.update(named("one", "a=1"));
    world.ready(1);
    world.update(named("two", "a=2"));
    world.ready(2);
    assert_eq!(world.rpc(), "send 2", "UpdateOfChildCluster");
    assert!(!world.helper.live.contains_key(&1));
}
