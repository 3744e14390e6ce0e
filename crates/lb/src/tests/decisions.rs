//! What a decision carries: limits, authority, actions that cannot be taken, and choices that stand.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::Code;
use mainstay_xds::deps::{ClusterError, ClusterErrorKind};
use mainstay_xds::resource::endpoint::{DropCategory, EndpointNames};
use mainstay_xds::resource::filter::{DelayTime, Fault, FaultDelay, FaultShare, FilterConfig, HttpFilter};
use mainstay_xds::resource::lb_policy::{LbPolicy, RingHashConfig};
use mainstay_xds::resource::route::{ClusterTarget, RetryPolicy, Route, RouteAction, WeightedCluster};

use crate::testbed::{
    Testbed, broken, config, edit_endpoints, edit_locality, eds, route, route_to, routed, with_policy,
};
use crate::{Chosen, Decision, Rpc};

#[test]
fn limits_follow_the_table() {
    let secs = Duration::from_secs;
    // Route (grpc_timeout_header_max, else max_stream_duration), default of the listener, limit (L-40).
    let table = [
        (None, None, None),
        (None, Some(secs(5)), Some(secs(5))),
        (None, Some(secs(0)), None),
        (Some(secs(3)), None, Some(secs(3))),
        (Some(secs(3)), Some(secs(5)), Some(secs(3))),
        (Some(secs(0)), Some(secs(5)), None),
    ];
    for (of_route, of_listener, expected) in table {
        let mut route = route("", "c");
        if let RouteAction::Forward(forward) = &mut route.action {
            forward.max_stream_duration = of_route;
        }
        let mut config = routed([route], [eds("c", "a=1")]);
        Arc::make_mut(&mut config.listener).max_stream_duration = of_listener;
        let mut bed = Testbed::new();
        bed.update(config);
        bed.ready(1);
        assert_eq!(limit(&mut bed), expected, "L-40: route {of_route:?}, listener {of_listener:?}");
    }
}

#[test]
fn another_default_limit_alone_is_published() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    let mut changed = config([eds("c", "a=1")]);
    Arc::make_mut(&mut changed.listener).max_stream_duration = Some(Duration::from_secs(1));
    bed.update(changed);
    assert_eq!(limit(&mut bed), Some(Duration::from_secs(1)), "L-40");
}

#[test]
fn the_authority_is_rewritten_only_where_the_route_says_so() {
    for rewrite in [false, true] {
        let mut route = route("", "c");
        if let RouteAction::Forward(forward) = &mut route.action {
            forward.auto_host_rewrite = rewrite;
        }
        let cluster = edit_endpoints(eds("c", "a=1"), |endpoints| {
            let names = EndpointNames { hostname: Some("h".into()), ..EndpointNames::default() };
            edit_locality(endpoints, 0, |endpoints| endpoints[0].names = Some(names.into()));
        });
        let mut bed = Testbed::new();
        bed.update(routed([route], [cluster]));
        bed.ready(1);
        let headers = HeaderMap::new();
        let decision = bed.snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut bed.script);
        let Decision::Send(to) = decision else { panic!("the endpoint is ready") };
        assert_eq!((to.authority, &**to.cluster), (rewrite.then_some("h"), "c"), "L-89");
    }
}

#[test]
fn routes_that_lead_nowhere_fail_in_any_case() {
    let mut bed = Testbed::new();
    bed.update(routed(
        [action("/a", RouteAction::NonForwarding), action("/b", RouteAction::Unsupported("redirect"))],
        [],
    ));
    assert_eq!(
        bed.rpc_to("/a/m"),
        "drop 14: matching route has inappropriate action: the route of virtual host \"host\" for path \"/a/m\" has \
         non_forwarding_action, expected route",
        "L-39"
    );
    assert!(bed.rpc_to("/b/m").contains("has redirect, expected route"), "L-39");
    assert_eq!(
        bed.rpc_to("/c/m"),
        "drop 14: no matching route: no route of virtual host \"host\" matches path \"/c/m\"",
        "L-32"
    );
}

#[test]
fn the_cluster_chosen_by_weight_stands_while_the_rpc_waits() {
    let mut bed = Testbed::new();
    bed.update(routed([split()], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.ready(1);
    bed.script.draws = [1].into(); // Cluster b, which connects.
    let mut chosen = Chosen::default();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait");
    bed.script.draws = [0].into(); // Would be cluster a, which is ready.
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait", "L-38");
    bed.ready(2);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 2", "L-38");
}

#[test]
fn an_rpc_whose_cluster_is_deleted_after_the_routes_left_it_goes_by_the_routes() {
    // D-37. Other RPCs keep the old cluster in the configuration.
    let deleted = || ClusterError { cluster: "a".into(), kind: ClusterErrorKind::NoLeaves(Vec::new()) };
    let mut bed = Testbed::new();
    bed.update(config([eds("a", "x=1")]));
    let mut chosen = Chosen::default();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait");
    bed.update(broken(routed([route("", "b")], [eds("b", "x=2")]), deleted()));
    bed.ready(2);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 2");

    // What the routes still name fails as it did.
    let mut bed = Testbed::new();
    bed.update(config([eds("a", "x=1")]));
    let mut chosen = Chosen::default();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait");
    bed.update(broken(routed([route("", "a")], []), deleted()));
    assert!(decide_again(&mut bed, &mut chosen) == "fail");
}

#[test]
fn drops_are_drawn_once_however_long_the_rpc_waits() {
    let drop_overload = |per_million| DropCategory { category: "lb".into(), per_million };
    let with_drops = |endpoints, drops: &[u32]| {
        let drops = drops.iter().copied().map(drop_overload).collect();
        config([edit_endpoints(eds("c", endpoints), |endpoints| endpoints.drops = drops)])
    };
    let mut bed = Testbed::new();
    bed.update(with_drops("a=1", &[300_000, 300_000]));
    bed.script.draws = [300_000, 400_000].into();
    let mut chosen = Chosen::default();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait");
    for _ in 0..5 {
        assert_eq!(decide_again(&mut bed, &mut chosen), "wait", "L-85: what follows from the draws of before");
    }
    bed.update(with_drops("a=1,2", &[300_000, 300_000, 300_000]));
    bed.script.draws = [300_000].into();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait", "L-85: one draw for what is new");
    bed.ready(1);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 1");
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 1", "L-85: and for another attempt");
    bed.update(with_drops("a=1,2", &[300_000, 500_000]));
    assert_eq!(decide_again(&mut bed, &mut chosen), "drop", "L-85: the shares of today");
    assert_eq!(bed.script.bounds, [1_000_000; 3]);
}

#[test]
fn an_rpc_that_is_decided_about_again_takes_the_same_route() {
    let mut halves = [route("", "a"), split()];
    halves[0].fraction = Some(500_000);
    let mut bed = Testbed::new();
    bed.update(routed(halves, [eds("a", "x=1"), eds("b", "x=2")]));
    bed.ready(1);
    bed.ready(2);
    bed.script.draws = [500_000, 1].into();
    let mut chosen = Chosen::default();
    for _ in 0..3 {
        // Its connection closes before the request has left, and so it comes back.
        assert_eq!(decide_again(&mut bed, &mut chosen), "send 2", "L-37, L-38");
    }
    assert_eq!(bed.script.bounds, [1_000_000, 2]);
}

#[test]
fn the_locality_stands_while_the_rpc_waits_and_is_drawn_anew_for_each_attempt() {
    let ring = LbPolicy::RingHash(RingHashConfig { min_ring_size: 1, max_ring_size: 8, request_hash_header: None });
    let mut bed = Testbed::new();
    bed.update(config([with_policy(eds("c", "a=1 b=2,3"), LbPolicy::WrrLocality(Box::new(ring)))]));
    bed.ready(1);
    bed.ready(2); // The one of b that is connected to first; the other is idle.
    let (headers, mut chosen) = (HeaderMap::new(), Chosen::default());
    let decide = |bed: &mut Testbed, chosen: &mut Chosen, draws: &[u64]| {
        bed.script.draws = draws.iter().copied().collect();
        bed.decide("/s/m", &headers, chosen).chars().take(6).collect::<String>()
    };
    // A hash that leads to endpoint 3 of locality b.
    let leads_to_idle = (0..64).any(|hash| {
        chosen = Chosen::default();
        decide(&mut bed, &mut chosen, &[1, hash << 58]) == "wait 1"
    });
    assert!(leads_to_idle, "one of two endpoints is idle");
    assert_eq!(decide(&mut bed, &mut chosen, &[0]), "wait 1", "L-100: not to locality a, which is ready");
    bed.ready(3);
    assert_eq!(decide(&mut bed, &mut chosen, &[0]), "send 3", "L-100");
    assert_eq!(decide(&mut bed, &mut chosen, &[0]), "send 1", "L-100: another attempt");
}

#[test]
fn a_choice_that_is_gone_is_made_again() {
    let mut bed = Testbed::new();
    bed.update(routed([split()], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.script.draws = [1].into();
    let mut chosen = Chosen::default();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait");
    bed.update(routed([route("", "a")], [eds("a", "x=1")]));
    bed.ready(1);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 1", "L-53: it neither hangs nor fails");
}

#[test]
fn a_choice_stands_while_a_subscription_keeps_its_cluster() {
    let mut bed = Testbed::new();
    bed.update(routed([route("", "b")], [eds("b", "x=2")]));
    let mut chosen = Chosen::default();
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait");
    bed.update(routed([route("", "a")], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.ready(1);
    bed.ready(2);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 2", "L-27");
}

#[test]
fn a_choice_stands_for_all_attempts_where_there_may_be_several() {
    for retry in [None, Some(Arc::new(once()))] {
        let mut route = split();
        if let RouteAction::Forward(forward) = &mut route.action {
            forward.retry = retry.clone();
            forward.max_stream_duration = Some(Duration::from_secs(3));
        }
        let mut bed = Testbed::new();
        bed.update(routed([route], [eds("a", "x=1"), eds("b", "x=2,3")]));
        for port in [1, 2, 3] {
            bed.ready(port);
        }
        bed.script.draws = [1].into(); // Cluster b.
        let mut chosen = Chosen::default();
        assert_eq!(decide_again(&mut bed, &mut chosen), "send 2");
        assert_eq!(chosen.retry_policy(), retry.as_ref(), "L-41");
        if retry.is_some() {
            assert_eq!(chosen.limit(), Some(Duration::from_secs(3)), "L-40");
            bed.die_silently(2);
            assert_eq!(decide_again(&mut bed, &mut chosen), "send 3", "L-38, L-41: a new pick in the same cluster");
        } else {
            assert_eq!(chosen.cluster(), None, "of an RPC that is sent once nothing is kept but what was drawn");
        }
    }
}

#[test]
fn filters_have_their_turn_once_and_before_the_pick() {
    let mut config = routed([split()], [eds("a", "x=1"), eds("b", "x=2")]);
    let listener = Arc::make_mut(&mut config.listener);
    let filter = |config| HttpFilter { name: "f".into(), config, disabled: false };
    let share = FaultShare { numerator: 50, denominator: 100 };
    let delay = FaultDelay { time: DelayTime::Fixed(Duration::from_secs(1)), share };
    let fault = Fault { delay: Some(delay), abort: None, max_active: 1 };
    listener.filters = vec![filter(FilterConfig::Fault(Arc::new(fault)))];
    let mut bed = Testbed::new();
    bed.update(config.clone());
    let mut chosen = Chosen::default();
    bed.script.draws = [1, 49].into(); // Cluster b, and a delay.
    assert_eq!(decide_again(&mut bed, &mut chosen), "inject Delay(1s)", "S-51");
    assert_eq!(decide_again(&mut bed, &mut chosen), "wait", "S-51");
    bed.ready(1);
    bed.ready(2);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 2", "L-38: the choice stands");
    // Without its cluster it is routed anew, and not delayed twice.
    let mut chosen = Chosen::default();
    bed.script.draws = [1, 0].into();
    assert_eq!(decide_again(&mut bed, &mut chosen), "inject Delay(1s)");
    let mut only_a = routed([route("", "a")], [eds("a", "x=1")]);
    only_a.listener = Arc::clone(&config.listener);
    bed.update(only_a);
    assert_eq!(decide_again(&mut bed, &mut chosen), "send 1", "L-43");
    // One that loses the draw is sent at once.
    bed.script.draws = [50].into();
    assert_eq!(decide_again(&mut bed, &mut Chosen::default()), "send 1", "S-51");
    // Another chain alone is published too.
    bed.update(routed([route("", "a")], [eds("a", "x=1")]));
    assert_eq!(decide_again(&mut bed, &mut Chosen::default()), "send 1", "L-43");
}

/// One retry of what is UNAVAILABLE.
fn once() -> RetryPolicy {
    let pause = Duration::from_millis(25);
    RetryPolicy { retry_on: vec![Code::Unavailable], num_retries: 1, base_interval: pause, max_interval: pause }
}

fn split() -> Route {
    let weighted = |name: &str| WeightedCluster { name: name.into(), weight: 1, overrides: Default::default() };
    route_to("", ClusterTarget::Weighted(vec![weighted("a"), weighted("b")]))
}

fn action(prefix: &str, action: RouteAction) -> Route {
    Route { action, ..route(prefix, "c") }
}

fn limit(bed: &mut Testbed) -> Option<Duration> {
    let headers = HeaderMap::new();
    match bed.snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut bed.script) {
        Decision::Send(to) => to.limit,
        other => panic!("the endpoint is ready: {other:?}"),
    }
}

fn decide_again(bed: &mut Testbed, chosen: &mut Chosen) -> String {
    let headers = HeaderMap::new();
    match bed.snapshot.decide_again(Rpc { path: "/s/m", headers: &headers }, chosen, &mut bed.script) {
        Decision::Send(to) => format!("send {}", to.subchannel.port),
        Decision::Wait(..) => "wait".into(),
        Decision::Fail(_) => "fail".into(),
        Decision::Drop(_) => "drop".into(),
        Decision::Inject(effects) => format!("inject {:?}", effects[0].effect),
    }
}
