//! RPCs of a session stay where they are.

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::deps::{ClusterConfig, XdsConfig};
use mainstay_xds::resource::cluster::{FailurePercentageEjection, OutlierDetection, OverrideHostStatuses};
use mainstay_xds::resource::endpoint::HealthStatus;
use mainstay_xds::resource::filter::{FilterConfig, FilterOverride, SessionCookie};
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::route::{ClusterTarget, Route, WeightedCluster};

use crate::testbed::{
    Testbed, config, edit_cluster, edit_endpoints, edit_locality, eds, route, route_to, routed, with_policy,
    with_sessions,
};

#[test]
fn a_session_begins_with_a_cookie_and_stays() {
    let mut bed = ready("a=1,2,3");
    let (first, cookie) = bed.rpc_of_session("/s/m", "");
    assert_eq!((first.as_str(), cookie.as_str()), ("send 1", "10.0.0.1:1;cluster:c"), "L-94");
    for _ in 0..5 {
        assert_eq!(bed.rpc_of_session("/s/m", &cookie), ("send 1".into(), String::new()), "L-97, L-94: no new cookie");
    }
    assert_eq!(bed.ports(3), [1, 2, 3], "L-97: other RPCs go their way");
}

#[test]
fn without_the_filter_nothing_is_different() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    (1..=2).for_each(|port| bed.ready(port));
    let seen: Vec<_> = (0..2).map(|_| bed.rpc_of_session("/s/m", "10.0.0.1:1;cluster:c")).collect();
    assert_eq!(seen, [("send 1".into(), String::new()), ("send 2".into(), String::new())], "L-95");
}

#[test]
fn an_address_that_is_not_there_starts_a_new_session() {
    let mut bed = ready("a=1,2");
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:9;cluster:c");
    assert_eq!((outcome.as_str(), cookie.as_str()), ("send 1", "10.0.0.1:1;cluster:c"), "SubchannelNotFound");
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:9,10.0.0.1:2;cluster:c");
    assert_eq!((outcome.as_str(), cookie.as_str()), ("send 2", "10.0.0.1:2;cluster:c"), "L-97: the next in the list");
}

#[test]
fn a_session_waits_while_its_endpoint_connects_and_moves_when_that_fails() {
    let mut bed = ready("a=1,2");
    let on_one = "10.0.0.1:1;cluster:c";
    bed.die_silently(1);
    assert_eq!(bed.rpc_of_session("/s/m", on_one).0, "wait", "the next snapshot knows more");
    bed.log();
    bed.idle(1);
    assert_eq!(bed.log(), "connect 1");
    bed.connecting(1);
    assert_eq!(bed.rpc_of_session("/s/m", on_one).0, "wait", "L-97");
    bed.fail(1);
    assert_eq!(bed.rpc_of_session("/s/m", on_one), ("send 2".into(), "10.0.0.1:2;cluster:c".into()), "L-97");
    bed.idle(1);
    bed.ready(1);
    assert_eq!(bed.rpc_of_session("/s/m", on_one).0, "send 1");
}

#[test]
fn an_idle_endpoint_is_asked_to_connect() {
    let mut bed = ready_with(|cluster| with_policy(cluster, LbPolicy::PickFirst { shuffle: false }), "a=1");
    let (_, cookie) = bed.rpc_of_session("/s/m", "");
    bed.idle(1);
    assert_eq!(bed.log(), "");
    assert_eq!((bed.rpc_of_session("/s/m", &cookie).0.as_str(), bed.log().as_str()), ("wait", "connect 1"), "L-97");
    bed.ready(1);
    assert_eq!(bed.rpc_of_session("/s/m", &cookie).0, "send 1");
}

#[test]
fn an_endpoint_that_nobody_has_a_connection_to_gets_one() {
    let mut bed = ready("a=1|b=2");
    assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c").0, "wait", "ChildPolicyNeverCreatedSubchannel");
    assert_eq!(bed.log(), "create 2, connect 2", "L-95, L-97: owned by the policy");
    assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c").0, "wait");
    assert_eq!(bed.log(), "", "once");
    bed.ready(2);
    assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c").0, "send 2", "L-97");
    assert_eq!(bed.rpc(), "send 1", "priority 0 serves all others");
}

#[test]
fn a_session_survives_a_change_of_priority() {
    let mut bed = ready("a=1,2");
    let (_, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c");
    assert_eq!(cookie, "");
    bed.log();
    bed.update(sessions(eds("c", "a=1|b=2")));
    assert_eq!(bed.log(), "", "A75: the connection that a session uses stays");
    assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c").0, "send 2", "A75, AffinityWorksAcrossPriorities");
    assert_eq!(bed.ports(2), [1, 1]);
    bed.update(sessions(eds("c", "x=3|a=1|b=2")));
    assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c").0, "send 2");
    bed.update(sessions(eds("c", "x=3|a=1")));
    assert!(bed.log().ends_with("release 2"), "L-96: the endpoint left");
}

#[test]
fn a_session_stays_when_its_endpoint_joins_a_priority_under_another_name() {
    let mut bed = ready("a=1|b=2");
    let on_two = "10.0.0.1:2;cluster:c";
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "wait");
    bed.ready(2);
    bed.log();
    // The second priority is that of `a` now, so that the policy of `b` is gone.
    bed.update(sessions(eds("c", "x=3|a=1 b=2")));
    assert_eq!(bed.rpc_of_session("/s/m", on_two), ("send 2".into(), String::new()), "L-59, L-98");
    assert!(!bed.log().contains("release 2"), "AffinityWorksAcrossPrioritiesHeuristicChangesChildName");
}

#[test]
fn endpoints_may_come_and_go() {
    let mut bed = ready("a=1,2,3");
    let on_two = "10.0.0.1:2;cluster:c";
    bed.update(sessions(eds("c", "a=1,3")));
    let (outcome, cookie) = bed.rpc_of_session("/s/m", on_two);
    assert_eq!((outcome.as_str(), cookie.as_str()), ("send 1", "10.0.0.1:1;cluster:c"), "SubchannelsComeAndGo");
    bed.update(sessions(eds("c", "a=1,2,3")));
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "wait", "SubchannelsComeAndGo: it connects");
    bed.ready(2);
    assert_eq!(bed.rpc_of_session("/s/m", on_two), ("send 2".into(), String::new()), "SubchannelsComeAndGo");
}

#[test]
fn a_connection_that_no_session_used_goes_with_the_policy_that_had_it() {
    let mut bed = ready("a=1,2");
    bed.ports(4);
    bed.log();
    bed.update(sessions(eds("c", "a=1|b=2")));
    assert_eq!(bed.log(), "release 2", "ChildPolicyUnrefsSubchannelNotUsedWithinIdleThreshold");
}

#[test]
fn an_unused_connection_is_let_go_after_the_idle_timeout() {
    let mut bed = ready("a=1,2");
    bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c");
    bed.update(sessions(eds("c", "a=1|b=2")));
    bed.log();
    for _ in 0..5 {
        bed.advance(MINUTE * 40);
        assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c").0, "send 2", "L-98: used within the hour");
    }
    bed.advance(MINUTE * 59);
    assert_eq!(bed.log(), "", "L-98");
    bed.advance(MINUTE * 16);
    assert_eq!(bed.log(), "release 2", "L-98: at most a quarter later");
    assert_eq!(bed.tree.next_deadline(), None, "nothing to sweep");
}

#[test]
fn the_idle_timeout_is_the_clusters_and_sweeps_are_five_seconds_apart() {
    let timeout = |cluster, timeout| edit_cluster(cluster, |cluster| cluster.idle_timeout = timeout);
    let mut bed = ready_with(|cluster| timeout(cluster, Duration::ZERO), "a=1|b=2");
    bed.rpc_of_session("/s/m", "10.0.0.1:2;cluster:c");
    assert_eq!(bed.tree.next_deadline(), Some(bed.now + Duration::from_secs(5)), "L-98");
    bed.log();
    bed.advance(Duration::from_secs(5));
    assert_eq!(bed.log(), "release 2", "L-98");
}

#[test]
fn a_draining_endpoint_keeps_its_sessions_and_gets_no_others() {
    let mut bed = ready_with(allow_draining, "a=1,2");
    let on_two = "10.0.0.1:2;cluster:c";
    bed.rpc_of_session("/s/m", on_two);
    bed.log();
    bed.update(sessions(drain(allow_draining(eds("c", "a=1,2")))));
    assert_eq!(bed.log(), "", "L-96");
    assert_eq!(bed.ports(3), [1, 1, 1], "L-96");
    assert_eq!(bed.rpc_of_session("/s/m", on_two), ("send 2".into(), String::new()), "L-96, DrainingState");
    bed.idle(2);
    assert_eq!((bed.rpc_of_session("/s/m", on_two).0.as_str(), bed.log().as_str()), ("wait", "connect 2"));
    bed.connecting(2);
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "wait", "DrainingSubchannelIsConnecting");
    bed.ready(2);
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 2");
    bed.update(sessions(allow_draining(eds("c", "a=1,2"))));
    assert_eq!((bed.ports(2), bed.log().as_str()), (vec![1, 2], ""), "DrainingToHealthy");
    bed.update(sessions(drain(allow_draining(eds("c", "a=1,2")))));
    bed.update(sessions(allow_draining(eds("c", "a=1"))));
    assert_eq!(bed.log(), "release 2", "L-96: until it leaves");
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 1");
}

#[test]
fn the_health_of_an_endpoint_must_be_allowed() {
    let mut bed = ready("a=1,2");
    let on_two = "10.0.0.1:2;cluster:c";
    bed.rpc_of_session("/s/m", on_two);
    bed.log();
    bed.update(sessions(drain(eds("c", "a=1,2"))));
    assert_eq!(bed.log(), "release 2", "L-96: DRAINING is not in the set");
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 1", "R-76");
    let none = |cluster| {
        edit_cluster(cluster, |cluster| {
            cluster.override_host_statuses = OverrideHostStatuses { unknown: true, healthy: false, draining: true };
        })
    };
    let mut bed = ready_with(none, "a=1,2");
    assert_eq!(
        bed.rpc_of_session("/s/m", on_two),
        ("send 1".into(), "10.0.0.1:1;cluster:c".into()),
        "OverrideHostStatus"
    );
}

#[test]
fn any_address_of_an_endpoint_is_the_endpoint() {
    let mut bed = Testbed::new();
    bed.update(sessions(eds("c", "a=1+11,2")));
    bed.ready(1);
    bed.ready(2);
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "");
    assert_eq!((outcome.as_str(), cookie.as_str()), ("send 1", "10.0.0.1:1,10.0.0.1:11;cluster:c"), "L-94");
    bed.idle(1);
    bed.fail(1);
    bed.ready(11);
    let (outcome, moved) = bed.rpc_of_session("/s/m", &cookie);
    assert_eq!(outcome, "send 11", "MultipleAddressesPerEndpoint");
    assert_eq!(moved, "10.0.0.1:11,10.0.0.1:1;cluster:c", "L-94: the address in use is first");
}

#[test]
fn a_cookie_names_one_of_the_clusters_of_its_route() {
    let mut bed = Testbed::new();
    let choice = |name: &str| WeightedCluster { name: name.into(), weight: 1, overrides: Default::default() };
    let both = || [route_to("", ClusterTarget::Weighted(vec![choice("c"), choice("d")]))];
    let clusters = || [eds("c", "a=1,2"), eds("d", "a=3,4")];
    bed.update(with_sessions(routed(both(), clusters())));
    (1..=4).for_each(|port| bed.ready(port));
    assert_eq!(bed.rpc_of_session("/s/m", "10.0.0.1:4;cluster:d"), ("send 4".into(), String::new()), "L-93, A60");
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:9;cluster:d");
    assert_eq!(
        (outcome.as_str(), cookie.as_str()),
        ("send 3", "10.0.0.1:3;cluster:d"),
        "ClusterOverrideHonoredButHostGone"
    );
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:4;cluster:gone");
    assert_eq!(
        (outcome.as_str(), cookie.as_str()),
        ("send 1", "10.0.0.1:1;cluster:c"),
        "A60: not a cluster of the route"
    );
    // The cluster goes, and the host is in the other one.
    bed.update(with_sessions(routed([route("", "c")], [eds("c", "a=1,4")])));
    let (outcome, cookie) = bed.rpc_of_session("/s/m", "10.0.0.1:4;cluster:d");
    assert_eq!((outcome.as_str(), cookie.as_str()), ("send 4", "10.0.0.1:4;cluster:c"), "ClusterGoneHostStays");
}

#[test]
fn overrides_decide_per_route() {
    let session = |name: &str| {
        let cookie = SessionCookie { name: name.into(), path: String::new(), ttl: Duration::ZERO };
        FilterOverride::StatefulSession(Some(Arc::new(cookie)))
    };
    let with = |prefix: &str, filter: Option<FilterOverride>| {
        let overrides = filter.map(|filter| ("session".to_owned(), filter)).into_iter().collect();
        Route { overrides, ..route(prefix, "c") }
    };
    let routes = || {
        let off = Some(FilterOverride::StatefulSession(None));
        [
            with("/on/", None),
            with("/off/", off),
            with("/disabled/", Some(FilterOverride::Disabled)),
            with("/sid/", Some(session("sid"))),
        ]
    };
    let mut bed = Testbed::new();
    bed.update(with_sessions(routed(routes(), [eds("c", "a=1,2")])));
    (1..=2).for_each(|port| bed.ready(port));
    let cookie = |bed: &mut Testbed, path: &str| !bed.rpc_of_session(path, "").1.is_empty();
    let seen = ["/on/m", "/off/m", "/disabled/m", "/sid/m"].map(|path| cookie(&mut bed, path));
    assert_eq!(seen, [true, false, false, true], "L-43, DifferentPerRoute");
    let mut inactive = with_sessions(routed(routes(), [eds("c", "a=1,2")]));
    Arc::make_mut(&mut inactive.listener).filters[0].config = FilterConfig::StatefulSession(None);
    bed.update(inactive);
    let seen = ["/on/m", "/off/m", "/disabled/m", "/sid/m"].map(|path| cookie(&mut bed, path));
    assert_eq!(seen, [false, false, false, true], "EnabledInRouteConfig");
}

#[test]
fn sessions_can_begin_and_end_with_the_filter() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    (1..=2).for_each(|port| bed.ready(port));
    bed.log();
    bed.update(sessions(eds("c", "a=1,2")));
    let (_, cookie) = bed.rpc_of_session("/s/m", "");
    assert_eq!(cookie, "10.0.0.1:1;cluster:c");
    bed.update(config([eds("c", "a=1,2")]));
    assert_eq!(bed.rpc_of_session("/s/m", &cookie).1, "");
    assert_eq!((bed.log().as_str(), bed.tree.next_deadline()), ("", None));
}

#[test]
fn rpcs_of_sessions_count_and_leave_an_ejected_endpoint() {
    let failure_percentage =
        FailurePercentageEjection { threshold: 50, enforcement: 100, minimum_hosts: 1, request_volume: 10 };
    let settings = OutlierDetection {
        interval: Duration::from_secs(10),
        base_ejection_time: Duration::from_secs(30),
        max_ejection_time: Duration::from_secs(300),
        max_ejection_percent: 10,
        success_rate: None,
        failure_percentage: Some(failure_percentage),
    };
    let detecting = |cluster| edit_cluster(cluster, |cluster| cluster.outlier_detection = Some(settings));
    let mut bed = ready_with(detecting, "a=1,2");
    let on_two = "10.0.0.1:2;cluster:c";
    for _ in 0..10 {
        assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 2"); // Dropped, so cancelled: a failure.
    }
    bed.advance(Duration::from_secs(10));
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 1", "A50: an ejected endpoint looks as if it failed");
    bed.advance(Duration::from_secs(30));
    assert_eq!(bed.rpc_of_session("/s/m", on_two).0, "send 2");
}

/// A cluster with sessions whose endpoints of the first priority are ready.
fn ready(endpoints: &str) -> Testbed {
    ready_with(|cluster| cluster, endpoints)
}

fn ready_with(edit: impl FnOnce(ClusterConfig) -> ClusterConfig, endpoints: &str) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(sessions(edit(eds("c", endpoints))));
    let ports: Vec<u16> = bed.helper.live.keys().copied().collect();
    ports.into_iter().for_each(|port| bed.ready(port));
    bed.log();
    bed
}

fn sessions(cluster: ClusterConfig) -> XdsConfig {
    with_sessions(config([cluster]))
}

/// The second endpoint drains.
fn drain(cluster: ClusterConfig) -> ClusterConfig {
    edit_endpoints(cluster, |endpoints| {
        edit_locality(endpoints, 0, |endpoints| endpoints[1].health = HealthStatus::Draining);
    })
}

fn allow_draining(cluster: ClusterConfig) -> ClusterConfig {
    edit_cluster(cluster, |cluster| cluster.override_host_statuses.draining = true)
}

const MINUTE: Duration = Duration::from_secs(60);
