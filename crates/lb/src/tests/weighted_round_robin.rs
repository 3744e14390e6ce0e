//! weighted_round_robin: shares by reported load, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::Code;
use mainstay_xds::deps::XdsConfig;
use mainstay_xds::resource::lb_policy::{LbPolicy, Penalty, Weighing, WeightedRoundRobinConfig};

use crate::testbed::{Testbed, config, eds, with_policy};
use crate::{CallTracker, Ending, Observation};

#[test]
fn before_any_report_all_have_the_same_share() {
    let mut bed = bed("a=1,2,3", &settings());
    assert_eq!(shares(&mut bed, 30), [(1, 10), (2, 10), (3, 10)].into(), "L-108");
}

#[test]
fn reported_load_decides_the_shares() {
    let mut bed = bed("a=1,2,3", &settings());
    // As many requests at half, at a fifth and at a tenth of the utilization: weights 2, 5 and 10.
    let load = [(1, 0.5), (2, 0.2), (3, 0.1)];
    report_for(&mut bed, &load, 12);
    let shares = shares(&mut bed, 1700);
    assert!((195..=205).contains(&shares[&1]), "L-107, L-108: {shares:?}");
    assert!((495..=505).contains(&shares[&2]), "L-107, L-108: {shares:?}");
    assert!((995..=1005).contains(&shares[&3]), "L-107, L-108: {shares:?}");
}

#[test]
fn a_weight_counts_only_after_the_blackout() {
    let mut bed = bed("a=1,2", &settings());
    let load = [(1, 0.8), (2, 0.2)];
    report_for(&mut bed, &load, 10);
    assert_eq!(shares(&mut bed, 20), [(1, 10), (2, 10)].into(), "L-107: within 10 s of the first");
    report_for(&mut bed, &load, 2);
    assert_eq!(shares(&mut bed, 20), [(1, 4), (2, 16)].into(), "L-107: after them");
}

#[test]
fn without_a_blackout_a_weight_counts_at_once() {
    let mut bed = bed("a=1,2", &WeightedRoundRobinConfig { blackout_period: Duration::ZERO, ..settings() });
    report_for(&mut bed, &[(1, 0.8), (2, 0.2)], 1);
    assert_eq!(shares(&mut bed, 20), [(1, 4), (2, 16)].into(), "L-107");
}

#[test]
fn a_weight_expires_and_then_the_blackout_applies_again() {
    let mut bed = bed("a=1,2", &settings());
    let load = [(1, 0.8), (2, 0.2)];
    report_for(&mut bed, &load, 12);
    bed.advance(Duration::from_secs(178));
    assert_eq!(shares(&mut bed, 20), [(1, 4), (2, 16)].into(), "L-107: 180 s are not over");
    bed.advance(Duration::from_secs(3));
    assert_eq!(shares(&mut bed, 20), [(1, 10), (2, 10)].into(), "L-107: now they are");
    report_for(&mut bed, &load, 10);
    assert_eq!(shares(&mut bed, 20), [(1, 10), (2, 10)].into(), "L-107: blackout again");
    report_for(&mut bed, &load, 2);
    assert_eq!(shares(&mut bed, 20), [(1, 4), (2, 16)].into());
}

#[test]
fn a_new_connection_begins_with_a_blackout() {
    let mut bed = bed("a=1,2,3", &settings());
    let load = [(1, 0.8), (2, 0.2), (3, 0.2)];
    report_for(&mut bed, &load, 12);
    assert_eq!(shares(&mut bed, 18), [(1, 2), (2, 8), (3, 8)].into());
    bed.idle(1);
    bed.ready(1);
    let mean = shares(&mut bed, 18);
    assert_eq!(mean, [(1, 6), (2, 6), (3, 6)].into(), "L-107, L-108: not known, so the mean of the others: {mean:?}");
    report_for(&mut bed, &load, 12);
    assert_eq!(shares(&mut bed, 18), [(1, 2), (2, 8), (3, 8)].into(), "L-107");
}

#[test]
fn one_known_weight_is_not_enough() {
    let mut bed = bed("a=1,2,3", &settings());
    report_for(&mut bed, &[(1, 0.9)], 12);
    assert_eq!(shares(&mut bed, 30), [(1, 10), (2, 10), (3, 10)].into(), "L-108: fewer than two");
}

#[test]
fn errors_lower_a_weight_as_much_as_the_penalty_says() {
    let weighing =
        |penalty| Weighing { error_utilization_penalty: Penalty::new(penalty).expect("one"), metrics: vec![] };
    let blackout_period = Duration::ZERO;
    for (penalty, expected) in [(1.0, [(1, 4), (2, 16)]), (0.0, [(1, 10), (2, 10)])] {
        let settings = WeightedRoundRobinConfig { weighing: weighing(penalty), blackout_period, ..settings() };
        let mut bed = bed("a=1,2", &settings);
        // 100 requests per second at utilization 0.2; 60 of the first's fail.
        end(&mut bed, |port| trailers(0.2, if port == 1 { 60.0 } else { 0.0 }), 10);
        bed.advance(Duration::from_secs(1));
        assert_eq!(shares(&mut bed, 20), expected.into(), "L-107: penalty {penalty}");
    }
}

#[test]
fn weights_are_looked_at_once_in_each_period() {
    let settings = WeightedRoundRobinConfig { blackout_period: Duration::ZERO, ..settings() };
    let mut bed = bed("a=1,2", &settings);
    let published = bed.published;
    end(&mut bed, |port| trailers(if port == 1 { 0.8 } else { 0.2 }, 0.0), 10);
    assert_eq!(bed.published, published, "L-108: nothing yet");
    bed.advance(Duration::from_millis(999));
    assert_eq!(shares(&mut bed, 20), [(1, 10), (2, 10)].into());
    bed.advance(Duration::from_millis(1));
    assert_eq!((bed.published, shares(&mut bed, 20)), (published + 1, [(1, 4), (2, 16)].into()), "L-108");
    bed.advance(Duration::from_secs(60));
    assert_eq!(bed.published, published + 1, "no new weights, no new snapshot");
}

#[test]
fn weights_outlive_updates_of_the_endpoints() {
    let mut bed = bed("a=1,2", &settings());
    report_for(&mut bed, &[(1, 0.8), (2, 0.2)], 12);
    bed.update(weighted("a=3,2,1", &settings()));
    bed.ready(3);
    let found = shares(&mut bed, 30);
    assert_eq!((found[&1], found[&2], found[&3]), (4, 16, 10), "L-108: the new one has the mean");
}

#[test]
fn out_of_band_reports_are_asked_for_and_others_ignored() {
    let oob = |seconds| WeightedRoundRobinConfig {
        oob_reporting_period: Some(Duration::from_secs(seconds)),
        blackout_period: Duration::ZERO,
        ..settings()
    };
    let mut bed = Testbed::new();
    bed.update(weighted("a=1,2", &oob(10)));
    bed.log();
    bed.ready(1);
    assert_eq!(bed.log(), "watch 1 each 10s", "L-109: when it is connected");
    bed.ready(2);
    bed.log();
    end(&mut bed, |port| trailers(if port == 1 { 0.8 } else { 0.2 }, 0.0), 10);
    bed.advance(Duration::from_secs(1));
    assert_eq!(shares(&mut bed, 20), [(1, 10), (2, 10)].into(), "A58: reports of RPCs are not read");
    for (port, utilization) in [(1, 0.8), (2, 0.2)] {
        bed.helper.sinks[&port].report(&report(utilization, 0.0));
    }
    bed.advance(Duration::from_secs(1));
    assert_eq!(shares(&mut bed, 20), [(1, 4), (2, 16)].into(), "L-109");
    bed.idle(1);
    bed.ready(1);
    assert!(bed.log().ends_with("watch 1 each 10s"), "L-109: on the new connection");

    let old = bed.helper.sinks[&2].clone();
    bed.update(weighted("a=1,2", &oob(5)));
    assert_eq!(bed.log(), "watch 1 each 5s, watch 2 each 5s", "A58: another period, other streams");
    assert!(!old.is_wanted() && bed.helper.sinks[&2].is_wanted());
    bed.update(weighted("a=1,2", &settings()));
    assert_eq!(bed.log(), "");
    assert!(!bed.helper.sinks[&2].is_wanted(), "A58: stopped");
}

#[test]
fn connections_that_died_are_passed_over() {
    let mut bed = bed("a=1,2,3", &settings());
    report_for(&mut bed, &[(1, 0.5), (2, 0.1), (3, 0.1)], 12);
    bed.die_silently(2);
    assert!(!shares(&mut bed, 30).contains_key(&2));
    bed.die_silently(1);
    bed.die_silently(3);
    assert_eq!(bed.outcome(), "wait");
}

#[test]
fn its_timer_ends_with_it() {
    let mut bed = bed("a=1", &settings());
    assert!(bed.tree.next_deadline().is_some());
    bed.update(config([eds("c", "a=1")]));
    assert_eq!(bed.tree.next_deadline(), None);
}

#[test]
fn what_is_weighed_is_told() {
    let mut bed = bed("a=1,2", &settings());
    assert_eq!(told(&mut bed), ["c a: 1 not yet, 0 stale, [0.0]", "c a: 2 not yet, 0 stale, [0.0, 0.0]"], "A78");
    report_for(&mut bed, &[(1, 0.5)], 11);
    told(&mut bed);
    report_for(&mut bed, &[(1, 0.5), (2, 0.2)], 1);
    assert_eq!(told(&mut bed), ["c a: 1 not yet, 0 stale, [200.0, 0.0]"], "A78: the other is in its blackout");
    report_for(&mut bed, &[(1, 0.5), (2, 0.2)], 10);
    assert_eq!(told(&mut bed).pop().unwrap(), "c a: 0 not yet, 0 stale, [200.0, 500.0]", "A78");
    bed.advance(Duration::from_secs(179));
    assert_eq!(told(&mut bed).pop().unwrap(), "c a: 0 not yet, 0 stale, [200.0, 500.0]", "A78: just before");
    bed.advance(Duration::from_secs(2));
    assert_eq!(told(&mut bed), ["c a: 0 not yet, 2 stale, [0.0, 0.0]"; 2], "A78: in each update");
    // Only what the next picker has.
    bed.idle(1);
    assert_eq!(told(&mut bed), ["c a: 0 not yet, 1 stale, [0.0]"], "A78");
    bed.idle(2);
    assert_eq!(told(&mut bed), [""; 0], "A78: nothing to weigh");
}

#[test]
fn a_locality_is_told_only_where_there_is_one() {
    let two = bed("a=1 b=2", &settings());
    assert_eq!(told(&mut { two }).pop().unwrap(), "c -: 2 not yet, 0 stale, [0.0, 0.0]", "S-63: not known");
    let policy = LbPolicy::WrrLocality(Box::new(LbPolicy::WeightedRoundRobin(Box::new(settings()))));
    let mut below = Testbed::new();
    below.update(config([with_policy(eds("c", "a=1 b=2"), policy)]));
    [1, 2].into_iter().for_each(|port| below.ready(port));
    let expected = ["c a: 1 not yet, 0 stale, [0.0]", "c b: 1 not yet, 0 stale, [0.0]"];
    assert_eq!(told(&mut below), expected, "L-101: each locality has its own policy");
}

/// What was told of weights since the last call: cluster, zone, and the rest.
fn told(bed: &mut Testbed) -> Vec<String> {
    let tell = |observation| match observation {
        Observation::Weights { cluster, locality, not_yet_usable, stale, weights } => {
            let locality = locality.map_or_else(|| "-".to_owned(), |locality| locality.zone.clone());
            format!("{cluster} {locality}: {not_yet_usable} not yet, {stale} stale, {weights:?}")
        }
        other => panic!("{other:?}"),
    };
    std::mem::take(&mut bed.helper.observations).into_iter().map(tell).collect()
}

#[test]
fn other_rules_hold_for_the_reports_that_follow() {
    let of = |penalty| WeightedRoundRobinConfig {
        weighing: Weighing { error_utilization_penalty: Penalty::new(penalty).expect("one"), metrics: vec![] },
        blackout_period: Duration::ZERO,
        ..settings()
    };
    let mut bed = bed("a=1,2", &of(0.0));
    let fail = |port| trailers(0.2, if port == 1 { 60.0 } else { 0.0 });
    end(&mut bed, fail, 10);
    bed.advance(Duration::from_secs(1));
    assert_eq!(shares(&mut bed, 20), [(1, 10), (2, 10)].into(), "L-107: errors do not count");
    bed.update(weighted("a=1,2", &of(1.0)));
    end(&mut bed, fail, 10);
    bed.advance(Duration::from_secs(1));
    assert_eq!(shares(&mut bed, 20), [(1, 4), (2, 16)].into(), "L-107: they do from now on");
}

#[test]
fn endpoints_that_lie_about_their_load_break_nothing() {
    let lies = [1e308, f64::MAX, f64::INFINITY, f64::NAN, -1.0, 5e-324];
    for (qps, load) in lies.iter().flat_map(|qps| lies.map(|load| (*qps, load))).chain([(1e308, 1.0), (1.0, 5e-324)]) {
        let mut bed = bed("a=1,2,3", &WeightedRoundRobinConfig { blackout_period: Duration::ZERO, ..settings() });
        let lie = |port| {
            let lie = crate::orca::tests::encode(&[("qps", qps), ("app", load)]);
            let honest = report(0.5, 0.0);
            let text = crate::orca::tests::base64(if port == 3 { &honest } else { &lie });
            HeaderMap::from_iter([(
                "endpoint-load-metrics-bin".parse().expect("a name"),
                text.parse().expect("a value"),
            )])
        };
        for _ in 0..3 {
            end(&mut bed, lie, 12);
            bed.advance(Duration::from_secs(1));
        }
        let shares = shares(&mut bed, 3_000);
        assert!((1..=3).all(|port| shares[&port] >= 8), "L-108: qps {qps}, load {load}: {shares:?}");
    }
}

/// The defaults.
fn settings() -> WeightedRoundRobinConfig {
    WeightedRoundRobinConfig {
        oob_reporting_period: None,
        blackout_period: Duration::from_secs(10),
        weight_expiration_period: Duration::from_secs(180),
        weight_update_period: Duration::from_secs(1),
        weighing: Weighing::default(),
    }
}

fn weighted(endpoints: &str, settings: &WeightedRoundRobinConfig) -> XdsConfig {
    config([with_policy(eds("c", endpoints), LbPolicy::WeightedRoundRobin(Box::new(settings.clone())))])
}

/// With a connection to every endpoint.
fn bed(endpoints: &str, settings: &WeightedRoundRobinConfig) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(weighted(endpoints, settings));
    let ports: Vec<u16> = bed.helper.live.keys().copied().collect();
    ports.into_iter().for_each(|port| bed.ready(port));
    bed
}

/// How many of `n` RPCs go to each port.
fn shares(bed: &mut Testbed, n: usize) -> BTreeMap<u16, usize> {
    let mut shares = BTreeMap::new();
    bed.ports(n).into_iter().for_each(|port| *shares.entry(port).or_default() += 1);
    shares
}

/// For some seconds, RPCs end with reports of this load at 100 requests per second; other ports report nothing.
fn report_for(bed: &mut Testbed, load: &[(u16, f64)], seconds: u64) {
    let load: BTreeMap<u16, f64> = load.iter().copied().collect();
    for _ in 0..seconds {
        end(bed, |port| load.get(&port).map_or_else(HeaderMap::new, |load| trailers(*load, 0.0)), 40);
        bed.advance(Duration::from_secs(1));
    }
}

/// Ends `n` RPCs with trailers by port.
fn end(bed: &mut Testbed, trailers: impl Fn(u16) -> HeaderMap, n: usize) {
    for _ in 0..n {
        let snapshot = std::sync::Arc::clone(&bed.snapshot);
        let (port, tracker): (u16, CallTracker) = bed.begin(&snapshot);
        tracker.end(Ending { code: Code::Ok, trailers: Some(&trailers(port)) });
    }
}

fn trailers(utilization: f64, eps: f64) -> HeaderMap {
    let text = crate::orca::tests::base64(&report(utilization, eps));
    let mut trailers = HeaderMap::new();
    trailers.insert("endpoint-load-metrics-bin", text.parse().expect("a value"));
    trailers
}

fn report(utilization: f64, eps: f64) -> Vec<u8> {
    crate::orca::tests::encode(&[("qps", 100.0), ("app", utilization), ("eps", eps)])
}
