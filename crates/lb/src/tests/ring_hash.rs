//! ring_hash: where requests go, when endpoints are connected to, and what a parent sees.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderMap, HeaderName};
use mainstay_xds::deps::{ClusterConfig, XdsConfig};
use mainstay_xds::resource::endpoint::{Endpoint, EndpointNames};
use mainstay_xds::resource::lb_policy::{LbPolicy, RingHashConfig};
use mainstay_xds::resource::route::{HashPolicy, HashSource, Route, RouteAction};

use crate::testbed::{Testbed, aggregate, dns, edit_endpoints, edit_locality, eds, route, routed, with_policy};
use crate::{Chosen, Outlook};

#[test]
fn nothing_is_connected_to_before_a_request_needs_it() {
    let mut bed = ring("a=1,2,3");
    assert_eq!(bed.log(), "", "L-113: children are made lazily");
    let (port, rpc) = first_of(&mut bed, "u");
    assert!(
        rpc.starts_with("wait 14: cluster \"c\": connecting to the endpoint that the hash of the request leads to"),
        "L-116: {rpc}"
    );
    assert_eq!(bed.log(), "", "L-116: once");
    bed.ready(port);
    assert_eq!(bed.rpc_of("u"), format!("send {port}"), "L-116");
    assert_eq!(bed.log(), "", "L-116: no other endpoint");
}

/// The channel is READY as soon as one endpoint is (L-114), whatever became of the others.
#[test]
fn a_ring_is_as_good_as_its_best_endpoint() {
    let mut bed = ring("a=1,2");
    assert_eq!(bed.snapshot.outlook(), Outlook::Wait, "L-114: IDLE, and an RPC would connect");
    let (first, _) = first_of(&mut bed, "u");
    bed.fail(first);
    let second = port_of(&bed.log());
    assert_eq!(bed.snapshot.outlook(), Outlook::Wait, "L-114: one failed, one connects");
    bed.ready(second);
    assert_eq!(bed.snapshot.outlook(), Outlook::Send, "L-114");
    bed.fail(second);
    assert_eq!(bed.snapshot.outlook(), Outlook::Fail, "L-114: both failed");
}

#[test]
fn one_request_keeps_its_endpoint_and_all_endpoints_get_some() {
    let mut bed = connected("a=1,2,3");
    let places = places(&mut bed, 300);
    assert_eq!(places.values().collect::<BTreeSet<_>>().len(), 3, "L-112");
    assert_eq!(places, self::places(&mut bed, 300), "L-112: the same hash, the same endpoint");
}

#[test]
fn when_one_of_a_hundred_endpoints_goes_only_its_keys_move() {
    let list = |left_out: Option<u16>| {
        let ports = (1..=100).filter(|port| Some(*port) != left_out).map(|port: u16| port.to_string());
        format!("a={}", ports.collect::<Vec<_>>().join(","))
    };
    let mut bed = connected(&list(None));
    let before = places(&mut bed, 500);
    let mut moved = 0;
    for gone in 1..=100 {
        bed.update(hashed(policy(eds("c", &list(Some(gone))))));
        let after = places(&mut bed, 500);
        for (key, port) in &before {
            assert!(after[key] == *port || *port == gone, "L-112: {key} moved from {port}, which stays");
            moved += usize::from(after[key] != *port);
        }
        bed.update(hashed(policy(eds("c", &list(None)))));
        bed.log();
    }
    // Each key was moved exactly once, when its own endpoint went: of 100 endpoints, on average, 99 % of the keys stay.
    assert_eq!(moved, before.len());
}

#[test]
fn an_endpoint_keeps_its_keys_with_its_hash_key_under_another_address() {
    let named = |ports: &str| {
        let name = |endpoints: &mut [Endpoint]| {
            for (endpoint, name) in endpoints.iter_mut().zip(["x", "y", "z"]) {
                let names = EndpointNames { hash_key: Some(name.into()), ..EndpointNames::default() };
                endpoint.names = Some(names.into());
            }
        };
        hashed(policy(edit_endpoints(eds("c", ports), |all| edit_locality(all, 0, name))))
    };
    let mut bed = Testbed::new();
    bed.update(named("a=1,2,3"));
    connect_all(&mut bed);
    let before = places(&mut bed, 100);
    bed.update(named("a=11,12,13"));
    let first = port_of(&bed.log());
    bed.ready(first); // Until then, those of before serve.
    connect_all(&mut bed);
    let moved = before.into_iter().map(|(key, port)| (key, port + 10)).collect();
    assert_eq!(places(&mut bed, 100), moved, "L-112: A76");
}

#[test]
fn weights_decide_how_many_keys_an_endpoint_has() {
    let weigh = |endpoints: &mut [Endpoint]| endpoints[0].weight = 3;
    let mut bed = Testbed::new();
    bed.update(hashed(policy(edit_endpoints(eds("c", "a=1,2"), |all| edit_locality(all, 0, weigh)))));
    connect_all(&mut bed);
    let heavy = places(&mut bed, 2_000).values().filter(|port| **port == 1).count();
    assert!((1400..=1600).contains(&heavy), "L-112: {heavy} of 2000, expected about 1500");
}

#[test]
fn a_request_passes_over_endpoints_that_fail() {
    let mut bed = ring("a=1,2,3");
    let (first, _) = first_of(&mut bed, "u");
    bed.fail(first);
    let log = bed.log();
    let second = port_of(&log);
    assert_eq!(log, format!("create {second}, connect {second}"), "L-115: one failed, so another one is tried");
    assert_eq!(bed.outcome(), "wait", "L-114: one failure among several endpoints is CONNECTING");
    bed.ready(second);
    let rpc = bed.rpc_of("u");
    if rpc.starts_with("wait") {
        let third = port_of(&bed.log());
        bed.ready(third);
        assert_eq!(bed.rpc_of("u"), format!("send {third}"), "L-116: the next on the ring");
    } else {
        assert_eq!(rpc, format!("send {second}"), "L-116: the next on the ring");
    }
    bed.idle(first);
    assert_eq!(bed.log(), format!("connect {first}"), "L-123: pick_first goes on trying");
    bed.ready(first);
    assert_eq!(bed.rpc_of("u"), format!("send {first}"), "L-116: and gets its requests back");
}

#[test]
fn a_lost_connection_waits_for_the_next_request() {
    let mut bed = ring("a=1,2");
    let (port, _) = first_of(&mut bed, "u");
    bed.ready(port);
    bed.log();
    bed.die_silently(port);
    assert!(bed.rpc_of("u").starts_with("wait"), "it keeps to its endpoint");
    assert_eq!(bed.log(), "");
    bed.idle(port);
    assert_eq!(bed.log(), "", "L-113: READY to IDLE");
    assert!(bed.rpc_of("u").starts_with("wait"));
    assert_eq!(bed.log(), format!("connect {port}"), "L-116");
}

#[test]
fn the_state_follows_from_those_of_the_endpoints() {
    // A second cluster takes over as soon as the first reports failure, and gives back when it does not.
    let mut bed = Testbed::new();
    let first = policy(eds("x", "a=1,2,3"));
    bed.update(hashed_all([aggregate("c", &["x", "y"]), first, eds("y", "b=9")]));
    assert_eq!(bed.log(), "", "L-114: all IDLE is IDLE, and priority waits for it");
    let (one, _) = first_of(&mut bed, "u");
    bed.connecting(one);
    bed.fail(one);
    let two = port_of(&bed.log());
    assert!(!bed.helper.live.contains_key(&9), "L-114: one failure is CONNECTING");
    bed.fail(two);
    let log = bed.log();
    assert!(log.contains("connect 9"), "L-114: two failures are TRANSIENT_FAILURE: {log}");
    let three = (1..=3).find(|port| ![one, two].contains(port)).expect("a third");
    assert!(log.contains(&format!("connect {three}")), "L-115: and the third is tried unasked: {log}");
    bed.ready(9);
    assert_eq!(bed.rpc_of("u"), "send 9");
    bed.ready(three);
    assert_eq!(bed.rpc_of("u"), format!("send {three}"), "L-114: one that is READY is enough");
}

#[test]
fn a_single_endpoint_that_fails_is_failure() {
    let mut bed = ring("a=1");
    bed.rpc_of("u");
    bed.fail(1);
    assert_eq!(
        bed.rpc_of("u"),
        "fail 14: cluster \"c\": priority 0 of 1: connections to all 1 endpoints failing; last error: 10.0.0.1:1: \
         refused (xDS node ID:n)",
        "L-114, L-116"
    );
    bed.idle(1);
    bed.ready(1);
    assert_eq!(bed.rpc_of("u"), "send 1");
}

#[test]
fn no_endpoints_fail() {
    let mut bed = ring("a=");
    assert_eq!(bed.rpc(), "fail 14: cluster \"c\": priority 0 of 1: no endpoints (xDS node ID:n)", "L-114");
}

#[test]
fn failing_endpoints_are_replaced_by_others_while_nobody_asks() {
    let mut bed = ring("a=1,2,3,4");
    let (one, _) = first_of(&mut bed, "u");
    bed.script.draws = [2, 1].into();
    bed.fail(one);
    let two = port_of(&bed.log());
    bed.fail(two);
    let three = port_of(&bed.log());
    let rest: Vec<u16> = (1..=4).filter(|port| *port != one).collect();
    assert_eq!((two, Some(&three)), (rest[2], rest.iter().filter(|port| **port != two).nth(1)), "L-115: at random");
    bed.connecting(three);
    bed.idle(one);
    bed.fail(one);
    assert_eq!(bed.log(), format!("connect {one}"), "L-115: not while one is CONNECTING");
}

#[test]
fn a_request_without_any_hash_goes_anywhere_but_stays_there() {
    let mut bed = ring_routed("a=1,2,3", vec![]);
    bed.script.draws = [u64::MAX / 3].into();
    let mut chosen = Chosen::default();
    let headers = HeaderMap::new();
    assert!(bed.decide("/s/m", &headers, &mut chosen).starts_with("wait"), "L-42: a random hash");
    let port = port_of(&bed.log());
    assert!(bed.decide("/s/m", &headers, &mut chosen).starts_with("wait"));
    assert_eq!(bed.log(), "", "A76: all picks of one RPC lead to one endpoint");
    bed.ready(port);
    assert_eq!(bed.decide("/s/m", &headers, &mut chosen), format!("send {port}"));
    assert_eq!(bed.script.bounds, [u64::MAX], "L-42: one draw; L-118: so that there is always a hash");
}

#[test]
fn a_hash_outlives_the_route_that_it_was_made_by() {
    let mut bed = ring("a=1,2,3,4,5");
    let (port, _) = first_of(&mut bed, "u");
    let headers = HeaderMap::from_iter([(HeaderName::from_static("user"), "u".parse().expect("a value"))]);
    let mut chosen = Chosen::default();
    assert!(bed.decide("/s/m", &headers, &mut chosen).starts_with("wait"));
    // Other routes, with another header; the cluster that the RPC waits for stays.
    bed.update(routed([hashed_by(route("", "c"), vec![header("other")])], [policy(eds("c", "a=1,2,3,4,5"))]));
    bed.ready(port);
    assert_eq!(bed.decide("/s/m", &headers, &mut chosen), format!("send {port}"), "L-27, L-42");
    assert_eq!(bed.script.bounds, [0_u64; 0], "no draw");
}

#[test]
fn the_channel_has_a_number_of_its_own() {
    let channel_id = || vec![HashPolicy { source: HashSource::ChannelId, terminal: false }];
    let mut bed = Testbed::new();
    bed.script.draws = [77].into();
    bed.update(routed([hashed_by(route("", "c"), channel_id())], [policy(eds("c", "a=1,2,3"))]));
    assert_eq!(bed.script.bounds, [u64::MAX], "L-42: drawn once, when a route asks for it");
    connect_all(&mut bed);
    let ports: BTreeSet<u16> = bed.ports(20).into_iter().collect();
    assert_eq!(ports.len(), 1, "L-42: every request of the channel has the same hash");
    let bounds = bed.script.bounds.len();
    bed.update(routed([hashed_by(route("/", "c"), channel_id())], [policy(eds("c", "a=1,2,3"))]));
    assert_eq!(bed.script.bounds.len(), bounds, "L-42: it stays with the channel");
    assert_eq!(bed.ports(1), ports.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_header_of_the_policy_stands_in_the_place_of_the_route() {
    let mut bed = Testbed::new();
    bed.update(hashed(with_policy(eds("c", "a=1,2,3"), ring_hash(Some("session")))));
    let session = |value: &str| HeaderMap::from_iter([(HeaderName::from_static("session"), parse(value))]);
    assert!(bed.decide("/s/m", &session("s"), &mut Chosen::default()).starts_with("wait"));
    let port = port_of(&bed.log());
    bed.ready(port);
    assert_eq!(bed.decide("/s/m", &session("s"), &mut Chosen::default()), format!("send {port}"), "L-117");
    for (key, port) in places(&mut connected("a=1,2,3"), 30) {
        let rpc = loop {
            let rpc = bed.decide("/s/m", &session(&key), &mut Chosen::default());
            if rpc.starts_with("send") {
                break rpc;
            }
            let connecting = port_of(&bed.log());
            bed.ready(connecting);
        };
        assert_eq!(rpc, format!("send {port}"), "L-117: the same function as for routes");
    }
}

#[test]
fn without_the_header_of_the_policy_any_connected_endpoint_will_do() {
    let mut bed = Testbed::new();
    bed.update(hashed(with_policy(eds("c", "a=1,2,3"), ring_hash(Some("session")))));
    assert_eq!(bed.outcome(), "wait", "L-117: none is connected");
    let one = port_of(&bed.log());
    assert_eq!(bed.outcome(), "wait");
    assert_eq!(bed.log(), "", "L-117: one is CONNECTING, so no other is woken");
    bed.ready(one);
    // From anywhere on the ring: to the one that is connected, and one more is connected to on the way.
    let mut draw = 0;
    while bed.helper.live.len() == 1 {
        draw += u64::MAX / 64;
        bed.script.draws = [draw].into();
        assert_eq!(bed.rpc(), format!("send {one}"), "L-117: the first READY wins");
    }
    let two = port_of(&bed.log());
    assert_ne!(two, one);
    for draw in 0..64 {
        bed.script.draws = [draw * (u64::MAX / 64)].into();
        assert_eq!(bed.rpc(), format!("send {one}"));
    }
    assert_eq!(bed.log(), "", "L-117: at most one at a time");
    // An empty value is none.
    let empty = HeaderMap::from_iter([(HeaderName::from_static("session"), parse(""))]);
    assert_eq!(bed.decide("/s/m", &empty, &mut Chosen::default()), format!("send {one}"), "A76");
    bed.fail(two);
    bed.idle(one);
    for _ in 0..2 {
        assert_eq!(bed.outcome(), "wait", "L-117: one is CONNECTING");
        let connecting = port_of(&bed.log());
        bed.fail(connecting);
    }
    assert_eq!(bed.outcome(), "fail", "L-117: all failed");
}

#[test]
fn an_update_keeps_connections_and_the_ring_if_nothing_about_it_changes() {
    let mut bed = connected("a=1,2,3");
    let (before, published) = (places(&mut bed, 50), bed.published);
    bed.update(hashed(policy(eds("c", "a=1,2,3"))));
    assert_eq!((bed.log().as_str(), bed.published), ("", published));
    bed.update(hashed(policy(eds("c", "a=3,2,1"))));
    assert_eq!((bed.log().as_str(), places(&mut bed, 50)), ("", before), "another order is the same ring");
    bed.update(hashed(policy(eds("c", "a=1,2,3,4"))));
    assert_eq!(bed.log(), "", "L-113: a new endpoint is connected to when needed");
}

#[test]
fn below_a_locality_an_endpoint_is_connected_to_at_once() {
    let lb_policy = LbPolicy::WrrLocality(Box::new(ring_hash(None)));
    let mut bed = Testbed::new();
    bed.update(hashed(with_policy(eds("c", "a=1,2 b=3"), lb_policy)));
    assert_eq!(bed.log(), "create 1, create 3, connect 1, connect 3", "L-100: no locality stays idle");
    bed.ready(1);
    // The hash decides within the locality, and what it leads to is woken.
    let mut woken = false;
    for key in 0..50 {
        let rpc = bed.rpc_of(&format!("key-{key}"));
        woken |= rpc.starts_with("wait") && bed.log() == "create 2, connect 2";
    }
    assert!(woken, "L-116");
    bed.ready(2);
    let places = places(&mut bed, 50);
    assert_eq!(places.values().copied().collect::<BTreeSet<_>>(), [1, 2].into());
}

#[test]
fn the_policy_of_a_cluster_may_become_ring_hash_and_back() {
    let mut bed = Testbed::new();
    bed.update(hashed(eds("c", "a=1")));
    bed.ready(1);
    bed.log();
    bed.update(hashed(policy(eds("c", "a=1"))));
    assert_eq!((bed.rpc_of("u").as_str(), bed.log().as_str()), ("send 1", ""), "L-47: the connection is shared");
    bed.update(hashed(eds("c", "a=1")));
    assert_eq!((bed.rpc_of("u").as_str(), bed.log().as_str()), ("send 1", ""));
}

#[test]
fn an_aggregate_falls_back_from_ring_hash_at_startup() {
    let ring = |name, endpoints| policy(eds(name, endpoints));
    let mut bed = Testbed::new();
    bed.update(hashed_all([aggregate("c", &["x", "y"]), ring("x", "a=1,2"), ring("y", "b=3")]));
    let (one, _) = first_of(&mut bed, "u");
    bed.fail(one);
    let next = port_of(&bed.log());
    bed.fail(next);
    assert!(bed.rpc_of("u").starts_with("wait"), "C-core: AggregateClusterFallBackFromRingHashAtStartup");
    bed.ready(3);
    assert_eq!(bed.rpc_of("u"), "send 3");
}

#[test]
fn an_aggregate_falls_back_from_ring_hash_to_dns_and_comes_back() {
    let mut bed = Testbed::new();
    bed.update(hashed_all([aggregate("c", &["x", "y"]), policy(eds("x", "a=1,2")), dns("y", "b=3")]));
    let (one, _) = first_of(&mut bed, "u");
    bed.fail(one);
    let two = port_of(&bed.log());
    assert!(bed.rpc_of("u").starts_with("wait"), "C-core: …AtStartupNoFailedRpcs");
    bed.fail(two);
    assert!(bed.rpc_of("u").starts_with("wait"), "C-core: …AtStartupNoFailedRpcs");
    bed.ready(3);
    assert_eq!(bed.rpc_of("u"), "send 3", "C-core: AggregateClusterFallBackFromRingHashToLogicalDnsAtStartup");
    bed.idle(one);
    bed.idle(two);
    assert_eq!(bed.rpc_of("u"), "send 3", "C-core: SwitchToLowerPriorityAndThenBack");
    bed.ready(two);
    assert_eq!(bed.rpc_of("u"), format!("send {two}"));
}

fn policy(cluster: ClusterConfig) -> ClusterConfig {
    with_policy(cluster, ring_hash(None))
}

fn ring_hash(header: Option<&str>) -> LbPolicy {
    let request_hash_header = header.map(str::to_owned);
    LbPolicy::RingHash(RingHashConfig { min_ring_size: 1024, max_ring_size: 8_388_608, request_hash_header })
}

/// A testbed with cluster `c`, whose requests are hashed by the header `user`.
fn ring(endpoints: &str) -> Testbed {
    ring_routed(endpoints, vec![header("user")])
}

fn ring_routed(endpoints: &str, policies: Vec<HashPolicy>) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(routed([hashed_by(route("", "c"), policies)], [policy(eds("c", endpoints))]));
    bed
}

/// With a connection to every endpoint.
fn connected(endpoints: &str) -> Testbed {
    let mut bed = ring(endpoints);
    connect_all(&mut bed);
    bed
}

/// Sends requests until the endpoints that they lead to are connected.
fn connect_all(bed: &mut Testbed) {
    places(bed, 500);
    bed.log();
}

/// Where `n` keys lead, connecting on the way.
fn places(bed: &mut Testbed, n: usize) -> BTreeMap<String, u16> {
    let mut place = |key: String| {
        let mut rpc = bed.rpc_of(&key);
        if rpc.starts_with("wait") {
            let port = port_of(&bed.log());
            bed.ready(port);
            rpc = bed.rpc_of(&key);
        }
        let port = rpc.strip_prefix("send ").and_then(|port| port.parse().ok());
        (key, port.unwrap_or_else(|| panic!("{rpc}")))
    };
    (0..n).map(|n| format!("key-{n}")).map(&mut place).collect()
}

/// Where the first request of a user leads, and what becomes of it.
fn first_of(bed: &mut Testbed, user: &str) -> (u16, String) {
    let rpc = bed.rpc_of(user);
    let log = bed.log();
    let port = port_of(&log);
    assert_eq!(log, format!("create {port}, connect {port}"));
    (port, rpc)
}

/// The port that was last asked to connect.
#[track_caller]
fn port_of(log: &str) -> u16 {
    let connect = log.split(", ").filter_map(|entry| entry.strip_prefix("connect ")).last();
    connect.unwrap_or_else(|| panic!("{log:?}")).parse().expect("a port")
}

fn hashed(cluster: ClusterConfig) -> XdsConfig {
    hashed_all([cluster])
}

fn hashed_all<const N: usize>(clusters: [ClusterConfig; N]) -> XdsConfig {
    routed([hashed_by(route("", "c"), vec![header("user")])], clusters)
}

fn hashed_by(mut route: Route, policies: Vec<HashPolicy>) -> Route {
    if let RouteAction::Forward(forward) = &mut route.action {
        forward.hash_policies = policies;
    }
    route
}

fn header(name: &str) -> HashPolicy {
    HashPolicy { source: HashSource::Header { name: name.into(), rewrite: None }, terminal: false }
}

fn parse(value: &str) -> http::HeaderValue {
    value.parse().expect("a value")
}
