//! Endpoints that are all replaced at once: what is ready stays in use until one of the new ones is ready, all have
//! failed, or 5 s have passed. Ours, beyond the gRFCs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Code;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::deps::{ClusterConfig, ClusterError, ClusterErrorKind, XdsConfig};
use mainstay_xds::resource::cluster::{ClusterKind, FailurePercentageEjection, OutlierDetection};
use mainstay_xds::resource::endpoint::{DropCategory, HealthStatus};
use mainstay_xds::resource::lb_policy::{LbPolicy, RingHashConfig, Weighing, WeightedRoundRobinConfig};

use crate::testbed::{
    Testbed, aggregate, broken, config, dns, edit_cluster, edit_endpoints, edit_locality, eds, with_policy,
    with_sessions,
};
use crate::{Decision, Ending, Rpc, Tree};

#[test]
fn every_policy_serves_with_what_is_ready_until_one_of_the_new_ones_is() {
    for policy in policies() {
        let mut bed = serving(&policy, "a=1,2");
        let before = used(&mut bed);
        assert!(!before.is_empty() && before.iter().all(|port| *port < 3), "{policy:?}: {before:?}");
        bed.update(with(&policy, "a=3,4"));
        assert_eq!(used(&mut bed), before, "{policy:?}: they stay in use, picked as before");
        let asked = bed.log();
        assert!(asked.contains("connect ") && !asked.contains("release"), "{policy:?}: {asked}");
        let new: u16 = asked.rsplit(' ').next().and_then(|port| port.parse().ok()).expect("a port");
        bed.ready(new);
        assert_eq!(sent_to(&mut bed), [new].into(), "{policy:?}");
        assert!([1, 2].iter().all(|port| !bed.helper.live.contains_key(port)), "{policy:?}: nothing is kept");
    }
}

#[test]
fn when_all_new_ones_have_failed_the_old_ones_go() {
    for policy in policies() {
        let mut bed = serving(&policy, "a=1,2");
        bed.update(with(&policy, "a=3"));
        bed.fail(3);
        assert_eq!(bed.outcome(), "fail", "{policy:?}: what is wrong is seen at once");
        assert!([1, 2].iter().all(|port| !bed.helper.live.contains_key(port)), "{policy:?}");
    }
}

#[test]
fn after_five_seconds_the_old_ones_go() {
    for policy in policies() {
        let mut bed = serving(&policy, "a=1,2");
        bed.update(with(&policy, "a=3"));
        bed.advance(Duration::from_millis(4_999));
        assert_eq!(bed.outcome(), "send", "{policy:?}");
        bed.advance(Duration::from_millis(1));
        assert_eq!(bed.outcome(), "wait", "{policy:?}");
        assert!([1, 2].iter().all(|port| !bed.helper.live.contains_key(port)), "{policy:?}");
    }
}

#[test]
fn another_update_does_not_make_it_longer() {
    let mut bed = serving(&round_robin(), "a=1");
    bed.update_endpoints("a=2");
    bed.advance(Duration::from_secs(4));
    bed.log();
    bed.update_endpoints("b=3");
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 3, connect 3, release 2"));
    bed.advance(Duration::from_secs(1));
    assert_eq!((bed.outcome().as_str(), bed.log().as_str()), ("wait", "release 1"));
}

#[test]
fn endpoints_that_come_back_are_used_as_if_they_had_not_been_away() {
    let mut bed = serving(&round_robin(), "a=1,2");
    bed.update_endpoints("a=3");
    bed.log();
    bed.update_endpoints("a=2,3");
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", "release 1"));
    assert_eq!(bed.tree.next_deadline(), None);
}

#[test]
fn while_one_of_the_ready_ones_stays_the_others_go_at_once() {
    // pick_first has one connection only: of the two it is the other.
    let others = |policy: &LbPolicy| !format!("{policy:?}").contains("PickFirst");
    for policy in policies().into_iter().filter(others) {
        let mut bed = serving(&policy, "a=1,2");
        bed.update(with(&policy, "a=2,3"));
        assert_eq!(sent_to(&mut bed), [2].into(), "{policy:?}");
        assert!(!bed.helper.live.contains_key(&1), "{policy:?}");
    }
}

#[test]
fn it_does_not_matter_which_locality_or_priority_they_were_in() {
    // Before, after, what is used meanwhile, and which new endpoint ends it.
    let table: [(&str, &str, &[u16], u16); 6] = [
        ("a=1 b=2", "c=3 d=4", &[1, 2], 4),
        ("a=1 b=2", "b=3", &[1, 2], 3),
        ("a=1|b=2", "c=3|b=2", &[1], 3),
        ("a=1|b=2", "b=3|a=4", &[1], 3),
        ("a=1", "b=2|a=1", &[1], 2),
        ("a=1,2", "b=3|a=1,2", &[1, 2], 3),
    ];
    for (before, after, meanwhile, new) in table {
        let mut bed = serving(&round_robin(), before);
        bed.update_endpoints(after);
        assert_eq!(used(&mut bed), meanwhile.iter().copied().collect(), "{before} to {after}");
        bed.ready(new);
        assert_eq!(used(&mut bed), [new].into(), "{before} to {after}");
    }
}

#[test]
fn a_lower_priority_that_is_ready_is_used_once_a_new_first_one_has_failed() {
    let mut bed = serving(&round_robin(), "a=1");
    bed.update_endpoints("b=2|c=3");
    bed.fail(2);
    assert_eq!(bed.rpc(), "send 1", "the second is being tried");
    bed.ready(3);
    assert_eq!(bed.rpc(), "send 3");
    assert!(!bed.helper.live.contains_key(&1));
}

#[test]
fn another_eds_name_or_policy_or_kind_of_cluster_makes_no_difference() {
    let service = |cluster: ClusterConfig| {
        edit_cluster(cluster, |cluster| cluster.kind = ClusterKind::Eds { service_name: Some("s".into()) })
    };
    let after: [(&str, XdsConfig); 5] = [
        ("another EDS name", config([service(eds("c", "b=3"))])),
        ("logical DNS", config([dns("c", "=3")])),
        ("another policy", with(&LbPolicy::PickFirst { shuffle: false }, "a=3")),
        ("another policy in the locality", with(&wrr_locality(ring_hash()), "a=3")),
        ("an aggregate", config([aggregate("c", &["x"]), eds("x", "a=3")])),
    ];
    for (name, after) in after {
        let mut bed = serving(&round_robin(), "a=1");
        bed.update(after.clone());
        assert_eq!(bed.rpc(), "send 1", "{name}");
        bed.advance(Duration::from_secs(5));
        assert_eq!(bed.outcome(), "wait", "{name}");
        let mut bed = serving(&round_robin(), "a=1");
        bed.update(after.clone());
        bed.ready(3);
        assert_eq!(bed.rpc(), "send 3", "{name}");
        let mut bed = serving(&round_robin(), "a=1");
        bed.update(after);
        bed.fail(3);
        assert_eq!(bed.outcome(), "fail", "{name}");
        assert!(!bed.helper.live.contains_key(&1), "{name}");
    }
}

#[test]
fn a_leaf_that_an_aggregate_gives_up_serves_until_the_new_one_does() {
    for policy in [round_robin(), ring_hash()] {
        let leaf = |name, endpoints| with_policy(eds(name, endpoints), policy.clone());
        let mut bed = Testbed::new();
        bed.update(config([aggregate("c", &["x"]), leaf("x", "a=1")]));
        connect(&mut bed);
        bed.log();
        bed.update(config([aggregate("c", &["y"]), leaf("y", "a=2")]));
        assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 1", "create 2, connect 2"), "{policy:?}");
        bed.ready(2);
        assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", "release 1"), "{policy:?}");
        bed.update(config([aggregate("c", &["x", "y"]), leaf("x", "a=1"), leaf("y", "a=2")]));
        assert_eq!(bed.rpc(), "send 2", "{policy:?}: a new first leaf connects");
        bed.ready(1);
        assert_eq!(bed.rpc(), "send 1", "{policy:?}");
    }
}

#[test]
fn errors_and_empty_lists_take_effect_at_once() {
    let mut bed = serving(&round_robin(), "a=1");
    bed.update_endpoints("a=");
    assert_eq!(bed.outcome(), "fail", "there is nothing to wait for");
    assert!(bed.helper.live.is_empty());
    let mut bed = serving(&round_robin(), "a=1");
    let error = ClusterError { cluster: "c".into(), kind: ClusterErrorKind::TooDeep };
    bed.update(broken(config([eds("c", "a=1")]), error));
    assert_eq!(bed.outcome(), "fail", "L-56");
    assert!(bed.helper.live.is_empty());
}

#[test]
fn an_endpoint_that_drains_is_replaced_like_one_that_is_gone() {
    let draining = edit_endpoints(eds("c", "a=1,2"), |endpoints| {
        edit_locality(endpoints, 0, |endpoints| endpoints[0].health = HealthStatus::Draining);
    });
    let mut bed = serving(&round_robin(), "a=1");
    bed.update(config([draining]));
    assert_eq!(bed.rpc(), "send 1", "L-96: until there is another");
    bed.ready(2);
    assert_eq!(bed.ports(3), [2; 3], "L-96");
    assert!(!bed.helper.live.contains_key(&1));
}

#[test]
fn connections_that_die_meanwhile_are_not_waited_for() {
    let mut bed = serving(&round_robin(), "a=1,2");
    bed.update_endpoints("a=3");
    bed.idle(1);
    assert_eq!(bed.ports(2), [2, 2]);
    bed.log();
    bed.idle(2);
    assert_eq!(bed.outcome(), "wait");
    let released = bed.log();
    assert!(released.contains("release 1") && released.contains("release 2"), "{released}");
}

#[test]
fn whoever_wants_no_warm_switching_has_the_old_ones_go_at_once() {
    let mut bed = Testbed::new();
    bed.tree = Tree::new().with_warm_switching(None);
    bed.update_endpoints("a=1");
    bed.ready(1);
    bed.log();
    bed.update_endpoints("a=2");
    assert_eq!((bed.outcome().as_str(), bed.log().as_str()), ("wait", "create 2, connect 2, release 1"));
}

#[test]
fn new_drops_and_limits_hold_at_once() {
    let mut bed = serving(&round_robin(), "a=1");
    let dropping = |cluster, per_million| {
        let drops = vec![DropCategory { category: "lb".into(), per_million }];
        edit_endpoints(cluster, |endpoints| endpoints.drops = drops)
    };
    let limited = edit_cluster(eds("c", "a=2"), |cluster| cluster.max_requests = 1);
    bed.update(config([dropping(limited, 500_000)]));
    bed.script.draws = [0].into();
    assert_eq!(bed.outcome(), "drop", "L-85");
    bed.script.draws = [500_000].into();
    let snapshot = Arc::clone(&bed.snapshot);
    let (port, running) = bed.begin(&snapshot);
    assert_eq!(port, 1);
    bed.script.draws = [500_000].into();
    assert!(bed.rpc().starts_with("drop 14: circuit breaker"), "L-85: it counts");
    bed.ready(2);
    bed.script.draws = [500_000].into();
    assert!(bed.rpc().starts_with("drop 14: circuit breaker"), "L-86: and goes on counting");
    drop(running);
    bed.script.draws = [500_000].into();
    assert_eq!(bed.rpc(), "send 2", "L-86");
}

#[test]
fn rpcs_count_for_the_locality_that_they_went_to() {
    let reported = |cluster| {
        let server = Arc::new(ServerConfig::insecure("s"));
        config([edit_cluster(cluster, |cluster| cluster.lrs_server = Some(server))])
    };
    let mut bed = Testbed::new();
    bed.update(reported(eds("c", "a=1")));
    bed.ready(1);
    bed.update(reported(eds("c", "b=2")));
    let snapshot = Arc::clone(&bed.snapshot);
    let (port, running) = bed.begin(&snapshot);
    assert_eq!(port, 1);
    bed.ready(2);
    running.end(Ending { code: Code::Ok, trailers: None });
    assert_eq!(bed.calls(1, |_| 0), [2]);
    let now = bed.now;
    let reports = bed.tree.loads().take(now, &ServerConfig::insecure("s"));
    let counts = reports.iter().flat_map(|report| &report.localities);
    let counts: Vec<_> = counts.map(|l| (l.locality.zone.as_str(), l.issued, l.succeeded, l.in_progress)).collect();
    assert_eq!(counts, [("a", 1, 1, 0), ("b", 1, 1, 0)], "C-77, C-78");
}

#[test]
fn an_ejected_endpoint_gets_nothing_while_it_waits_to_go() {
    let detecting = |endpoints| {
        let failure_percentage =
            FailurePercentageEjection { threshold: 50, enforcement: 100, minimum_hosts: 1, request_volume: 1 };
        let settings = OutlierDetection {
            interval: Duration::from_secs(1),
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_percent: 50,
            success_rate: None,
            failure_percentage: Some(failure_percentage),
        };
        let cluster = edit_cluster(eds("c", endpoints), |cluster| cluster.outlier_detection = Some(settings));
        with_sessions(config([cluster]))
    };
    let mut bed = Testbed::new();
    bed.update(detecting("a=1,2"));
    bed.ready(1);
    bed.ready(2);
    bed.calls(4, |port| if port == 1 { 14 } else { 0 });
    bed.advance(Duration::from_secs(1));
    assert_eq!(bed.look(2), [2, 2], "L-80");
    bed.update(detecting("a=3"));
    assert_eq!(bed.look(4), [2; 4], "of the two, the one that was in use");
    let (outcome, _) = bed.rpc_of_session("/s/m", "10.0.0.1:1;cluster:c");
    assert_eq!(outcome, "send 2", "no session goes there either");
    bed.calls(10, |_| 14);
    bed.advance(Duration::from_secs(2));
    assert_eq!(bed.look(2), [2, 2], "nobody is judged who has left");
    bed.ready(3);
    assert_eq!(bed.look(2), [3, 3]);
    bed.advance(Duration::from_secs(2));
    assert_eq!(bed.look(2), [3, 3], "and nobody for the RPCs of others");
}

#[test]
fn an_endpoint_that_is_ejected_and_stays_does_not_make_the_one_in_use_go() {
    let mut bed = serving(&round_robin(), "a=1,2");
    bed.idle(1); // Not connected: no better than one that is ejected.
    bed.update_endpoints("a=1,3");
    assert_eq!(bed.rpc(), "send 2");
    bed.ready(1);
    assert_eq!(bed.ports(2), [1, 1]);
}

#[test]
fn a_session_stays_at_its_endpoint_until_that_goes() {
    let mut bed = Testbed::new();
    bed.update(with_sessions(config([eds("c", "a=1,2")])));
    bed.ready(1);
    bed.ready(2);
    let (_, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c");
    assert_eq!(cookie, "", "L-94");
    bed.update(with_sessions(config([eds("c", "b=3")])));
    for _ in 0..4 {
        let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c");
        assert_eq!((outcome.as_str(), cookie.as_str()), ("send 2", ""), "L-97");
    }
    bed.ready(3);
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c");
    assert_eq!((outcome.as_str(), cookie.as_str()), ("send 3", "10.0.0.1:3;cluster:c"), "L-97, L-94");
    assert_eq!(bed.helper.live.keys().copied().collect::<Vec<_>>(), [3], "nothing is kept for a session");
}

#[test]
fn rpcs_on_a_connection_that_goes_end_well() {
    let mut bed = serving(&round_robin(), "a=1");
    bed.update_endpoints("a=2");
    let snapshot = Arc::clone(&bed.snapshot);
    let headers = http::HeaderMap::new();
    let decision = snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut bed.script);
    bed.ready(2);
    let Decision::Send(to) = decision else { panic!("it is sent") };
    to.tracker.end(Ending { code: Code::Ok, trailers: None });
    assert_eq!(bed.helper.counters[&("c".to_owned(), String::new())].in_flight(), 0, "L-86");
}

/// L-68: the timer of a child that is let go must not end the child that has its number now.
#[test]
fn what_is_left_of_a_child_that_was_replaced_does_not_end_the_one_in_its_place() {
    let ring = ring_hash();
    let mut bed = Testbed::new();
    bed.update(with(&ring, "z=9|a=1"));
    bed.rpc();
    bed.fail(9);
    bed.rpc();
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1");
    // The new first priority is idle for a moment, so that the second one is deactivated; then it is replaced.
    bed.update(with(&ring, "b=2|a=1"));
    bed.update(with(&ring, "b=2|a=3"));
    assert_eq!(bed.rpc(), "send 1");
    bed.fail(2);
    bed.ready(3);
    assert_eq!(bed.rpc(), "send 3");
    bed.advance(Duration::from_secs(16 * 60));
    assert_eq!(bed.rpc(), "send 3", "it has been in use all the time");
}

/// Every policy that holds endpoints.
fn policies() -> Vec<LbPolicy> {
    let of_some = |child| LbPolicy::RandomSubsetting { size: 2, child: Box::new(child) };
    let plain = [
        LbPolicy::RoundRobin,
        LbPolicy::PickFirst { shuffle: false },
        LbPolicy::LeastRequest { choices: 2 },
        weighted_round_robin(),
        ring_hash(),
        of_some(LbPolicy::RoundRobin),
        of_some(ring_hash()),
    ];
    plain.iter().cloned().chain(plain.iter().cloned().map(wrr_locality)).collect()
}

fn round_robin() -> LbPolicy {
    wrr_locality(LbPolicy::RoundRobin)
}

fn wrr_locality(child: LbPolicy) -> LbPolicy {
    LbPolicy::WrrLocality(Box::new(child))
}

fn ring_hash() -> LbPolicy {
    LbPolicy::RingHash(RingHashConfig { min_ring_size: 16, max_ring_size: 32, request_hash_header: None })
}

fn weighted_round_robin() -> LbPolicy {
    LbPolicy::WeightedRoundRobin(Box::new(WeightedRoundRobinConfig {
        oob_reporting_period: None,
        blackout_period: Duration::from_secs(10),
        weight_expiration_period: Duration::from_secs(180),
        weight_update_period: Duration::from_secs(1),
        weighing: Weighing::default(),
    }))
}

fn with(policy: &LbPolicy, endpoints: &str) -> XdsConfig {
    config([with_policy(eds("c", endpoints), policy.clone())])
}

/// With a connection to every endpoint of the first priority that the policy wants one to.
fn serving(policy: &LbPolicy, endpoints: &str) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(with(policy, endpoints));
    connect(&mut bed);
    bed.log();
    bed
}

/// Makes every connection that RPCs or policies ask for.
fn connect(bed: &mut Testbed) {
    for hash in 0..16 {
        rpc_with(bed, 4 * hash);
        let waiting: Vec<u16> = bed.helper.live.keys().copied().filter(|port| !bed.is_ready(*port)).collect();
        for port in waiting {
            if bed.helper.live.contains_key(&port) {
                bed.ready(port);
            }
        }
    }
}

/// Where RPCs go, whatever their hash. None of them waits.
fn used(bed: &mut Testbed) -> BTreeSet<u16> {
    let ports = sent_to(bed);
    assert!((0..64).all(|hash| rpc_with(bed, hash).starts_with("send ")));
    ports
}

/// Where RPCs go that need not wait: with ring_hash, some lead to endpoints that are not connected yet.
fn sent_to(bed: &mut Testbed) -> BTreeSet<u16> {
    let rpcs: Vec<String> = (0..64).map(|hash| rpc_with(bed, hash)).collect();
    rpcs.iter().filter_map(|rpc| rpc.strip_prefix("send ")?.parse().ok()).collect()
}

fn rpc_with(bed: &mut Testbed, hash: u64) -> String {
    // Its high bits lead round a ring, its low bits to a locality.
    bed.script.draws = [(hash << 58) | (hash % 3); 2].into();
    let rpc = bed.rpc();
    bed.script.draws.clear();
    rpc
}
