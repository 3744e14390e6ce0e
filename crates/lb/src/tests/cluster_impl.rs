//! Drops, the circuit breaker, and priorities of one cluster.

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Code;
use mainstay_xds::deps::ClusterConfig;
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::endpoint::DropCategory;

use crate::testbed::{Testbed, config, edit_cluster, edit_endpoints, eds, without_endpoints};
use crate::{Decision, Rpc};

#[test]
fn drops_are_drawn_in_order_before_anything_else() {
    let mut bed = Testbed::new();
    bed.update(config([with_drops(eds("c", "a=1"), &[("lb", 100_000), ("throttle", 200_000)])]));
    bed.ready(1);
    bed.script.bounds.clear();
    bed.script.draws = [99_999].into();
    assert_eq!(bed.rpc(), "drop 14: EDS-configured drop: lb (cluster \"c\")", "L-85");
    bed.script.draws = [100_000, 199_999].into();
    assert_eq!(bed.rpc(), "drop 14: EDS-configured drop: throttle (cluster \"c\")", "L-85");
    bed.script.draws = [100_000, 200_000].into();
    assert_eq!(bed.rpc(), "send 1", "L-85");
    assert_eq!(bed.script.bounds, [1_000_000; 5], "L-85: an independent draw for each category");
}

#[test]
fn drops_also_hit_while_the_cluster_connects() {
    let mut bed = Testbed::new();
    bed.update(config([with_drops(eds("c", "a=1"), &[("lb", 500_000)])]));
    bed.script.draws = [0].into();
    assert_eq!(bed.outcome(), "drop", "L-85");
    bed.script.draws = [999_999].into();
    assert_eq!(bed.outcome(), "wait", "L-85");
}

#[test]
fn a_cluster_that_drops_everything_is_ready() {
    let mut bed = Testbed::new();
    let leaf = with_drops(without_priorities("one"), &[("all", 1_000_000)]);
    bed.update(config([crate::testbed::aggregate("agg", &["one", "two"]), leaf, eds("two", "a=2")]));
    assert_eq!(bed.log(), "", "L-87: READY, so the aggregate does not go on to the next leaf");
    assert_eq!(bed.rpc(), "drop 14: EDS-configured drop: all (cluster \"one\")", "L-87");
}

#[test]
fn changed_drops_take_effect_at_once_and_keep_connections() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.log();
    bed.update(config([with_drops(eds("c", "a=1"), &[("lb", 1_000_000)])]));
    assert_eq!((bed.outcome().as_str(), bed.log().as_str()), ("drop", ""), "L-92");
    bed.update_endpoints("a=1");
    assert_eq!(bed.rpc(), "send 1", "L-92");
}

#[test]
fn the_circuit_breaker_counts_rpcs_until_they_end() {
    let mut bed = Testbed::new();
    bed.update(config([limited("c", 2)]));
    bed.ready(1);
    let snapshot = Arc::clone(&bed.snapshot);
    let headers = http::HeaderMap::new();
    let mut decide = || snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut bed.script);
    let (first, second) = (decide(), decide());
    assert!(matches!((&first, &second), (Decision::Send(_), Decision::Send(_))));
    let Decision::Drop(failure) = decide() else { panic!("L-85: the limit is 2") };
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (Code::Unavailable, "circuit breaker drop (cluster \"c\" has 2 requests in flight, its limit)"),
        "L-85"
    );
    drop(first);
    assert!(matches!(decide(), Decision::Send(_)), "L-86");
}

#[test]
fn the_count_outlives_pickers_and_a_lowered_limit_leaves_running_rpcs_alone() {
    let mut bed = Testbed::new();
    bed.update(config([limited("c", 3)]));
    bed.ready(1);
    let snapshot = Arc::clone(&bed.snapshot);
    let headers = http::HeaderMap::new();
    let running: Vec<_> =
        (0..3).map(|_| snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut bed.script)).collect();
    bed.update(config([limited("c", 2)]));
    assert_eq!(bed.outcome(), "drop", "L-86");
    assert_eq!(bed.helper.counters[&("c".into(), String::new())].in_flight(), 3, "L-86");
    drop(running);
    assert_eq!(bed.rpc(), "send 1");
}

#[test]
fn the_count_is_shared_by_channels_and_split_by_eds_service() {
    let mut bed = Testbed::new();
    bed.update(config([limited("c", 1)]));
    let counter = Arc::clone(&bed.helper.counters[&("c".into(), String::new())]);
    let other_channel = counter.try_acquire(1);
    bed.ready(1);
    assert_eq!(bed.outcome(), "drop", "L-86");
    let named = edit_cluster(limited("c", 1), |cluster| {
        cluster.kind = ClusterKind::Eds { service_name: Some("s".into()) };
    });
    bed.update(config([named]));
    assert_eq!(bed.rpc(), "send 1", "L-86: another EDS service name");
    drop(other_channel);
}

#[test]
fn a_full_breaker_also_drops_rpcs_that_would_wait() {
    let mut bed = Testbed::new();
    bed.update(config([limited("c", 0)]));
    assert_eq!(bed.outcome(), "drop", "L-85: the breaker comes before the child");
}

#[test]
fn racing_picks_never_exceed_the_limit() {
    let mut bed = Testbed::new();
    bed.update(config([limited("c", 7)]));
    bed.ready(1);
    let sent = std::sync::atomic::AtomicUsize::new(0);
    let (snapshot, headers) = (&bed.snapshot, http::HeaderMap::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut script = crate::testbed::Script::default();
                for _ in 0..100 {
                    let decision = snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut script);
                    if matches!(decision, Decision::Send(_)) {
                        sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        std::mem::forget(decision); // In flight for ever.
                    }
                }
            });
        }
    });
    assert_eq!(sent.into_inner(), 7, "L-86, and stricter: compare and exchange");
}

#[test]
fn a_cluster_without_endpoints_fails_and_says_why() {
    let mut bed = Testbed::new();
    let mut cluster = without_endpoints("c");
    cluster.note = "EDS resource c: does not exist".into();
    bed.update(config([cluster]));
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: no endpoints (EDS resource c: does not exist)",
        "L-58, L-15, L-200"
    );
}

#[test]
fn a_changed_note_alone_is_published() {
    let mut bed = Testbed::new();
    bed.update(config([without_endpoints("c")]));
    let mut cluster = without_endpoints("c");
    cluster.note = "EDS resource c: gone".into();
    bed.update(config([cluster]));
    assert!(bed.rpc().ends_with("(EDS resource c: gone)"), "L-19");
}

#[test]
fn the_next_priority_is_used_only_when_the_first_fails() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    assert_eq!(bed.log(), "create 1, connect 1", "L-64");
    bed.fail(1);
    assert_eq!(bed.log(), "create 2, connect 2", "L-73");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
    bed.idle(1);
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "L-73");
    bed.log();
    bed.advance(Duration::from_secs(15 * 60));
    assert_eq!(bed.log(), "release 2", "L-68");
}

#[test]
fn a_first_priority_that_is_slow_is_waited_for_ten_seconds() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.connecting(1);
    bed.log();
    bed.advance(Duration::from_millis(9_999));
    assert_eq!(bed.log(), "");
    bed.advance(Duration::from_millis(1));
    assert_eq!(bed.log(), "create 2, connect 2", "L-67");
}

#[test]
fn an_empty_first_priority_is_passed_at_once() {
    let mut bed = Testbed::with_endpoints("a=|b=2");
    assert_eq!(bed.log(), "create 2, connect 2", "HighPriorityNoEndpoints");
}

#[test]
fn when_all_priorities_fail_the_text_is_that_of_the_last() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.fail(1);
    bed.fail(2);
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": priority 1 of 2: locality b: connections to all 1 endpoints failing; last error: \
         10.0.0.1:2: refused (xDS node ID:n)",
        "L-73"
    );
}

#[test]
fn localities_that_swap_priorities_keep_their_connections() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.fail(1);
    bed.ready(2);
    bed.log();
    bed.update_endpoints("b=2|a=1");
    assert_eq!(bed.log(), "", "L-59: the numbers move with the localities");
    assert_eq!(bed.rpc(), "send 2");
}

#[test]
fn a_locality_that_moves_to_another_child_keeps_its_connections() {
    let mut bed = Testbed::with_endpoints("a=1|b=2");
    bed.fail(1);
    bed.ready(2);
    bed.log();
    // The child that b was in is let go, and its connection taken over, in one call.
    bed.update_endpoints("a=1 b=2");
    assert_eq!((bed.rpc().as_str(), bed.log().as_str()), ("send 2", ""), "A115: what stays in use stays open");
}

#[test]
fn reresolution_requests_of_eds_endpoints_are_swallowed() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.log();
    bed.fail(1);
    assert_eq!(bed.log(), "", "L-72");
}

fn limited(name: &str, max_requests: u32) -> ClusterConfig {
    edit_cluster(eds(name, "a=1"), |cluster| cluster.max_requests = max_requests)
}

fn with_drops(cluster: ClusterConfig, drops: &[(&str, u32)]) -> ClusterConfig {
    edit_endpoints(cluster, |endpoints| {
        let category = |(category, per_million): &(&str, u32)| DropCategory {
            category: (*category).into(),
            per_million: *per_million,
        };
        endpoints.drops = drops.iter().map(category).collect();
    })
}

fn without_priorities(name: &str) -> ClusterConfig {
    edit_endpoints(eds(name, ""), |endpoints| endpoints.priorities.clear())
}
