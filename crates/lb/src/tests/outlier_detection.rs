//! Endpoints that fail their RPCs are ejected, and return.

use std::time::Duration;

use mainstay_xds::deps::ClusterConfig;
use mainstay_xds::resource::cluster::{FailurePercentageEjection, OutlierDetection, SuccessRateEjection};
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Testbed, aggregate, config, edit_cluster, eds, with_policy};
use crate::{DetectionMethod, Observation, UnenforcedReason};

#[test]
fn an_endpoint_far_below_the_mean_is_ejected_and_returns() {
    let mut bed = bed("a=1,2,3,4,5", SUCCESS_RATE);
    bed.calls(50, half_of(3));
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-77: not before the interval ends");
    bed.log();
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 2, 4, 5], "L-79");
    assert_eq!(bed.log(), "", "L-82: the connection stays");
    bed.advance(Duration::from_secs(20));
    assert_eq!(used(&mut bed), [1, 2, 4, 5], "L-77: 30 s have not passed");
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-77");
}

#[test]
fn equal_endpoints_are_no_outliers_however_bad() {
    let mut bed = bed("a=1,2,3,4,5", SUCCESS_RATE);
    bed.calls(50, |_| 14);
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-79: none is below the mean");
}

#[test]
fn the_factor_says_how_far_is_far() {
    // Rates 1, 1, 1, 1 and 0: mean 0.8, standard deviation 0.4 of the population.
    let eject = |stdev_factor| {
        let settings = SuccessRateEjection { stdev_factor, ..SUCCESS_RATE_DEFAULT };
        let mut bed = bed("a=1,2,3,4,5", OutlierDetection { success_rate: Some(settings), ..SUCCESS_RATE });
        bed.calls(50, |port| if port == 1 { 14 } else { 0 });
        end_interval(&mut bed);
        used(&mut bed).len()
    };
    assert_eq!(eject(1_990), 4, "L-79: 0 < 0.8 - 0.4 * 1.99");
    assert_eq!(eject(2_010), 5, "L-79: 0 > 0.8 - 0.4 * 2.01");
}

#[test]
fn too_few_endpoints_with_enough_rpcs_are_not_judged() {
    let mut four = bed("a=1,2,3,4", SUCCESS_RATE);
    four.calls(40, half_of(3));
    end_interval(&mut four);
    assert_eq!(used(&mut four), [1, 2, 3, 4], "L-79: minimum_hosts is 5");
    let mut few = bed("a=1,2,3,4,5", SUCCESS_RATE);
    few.calls(45, half_of(3));
    end_interval(&mut few);
    assert_eq!(used(&mut few), [1, 2, 3, 4, 5], "L-79: nine RPCs each, request_volume is 10");
    let mut four = bed("a=1,2,3,4", FAILURE_PERCENTAGE);
    four.calls(40, |_| 14);
    end_interval(&mut four);
    assert_eq!(used(&mut four), [1, 2, 3, 4], "L-80");
}

#[test]
fn counts_are_of_one_interval() {
    let mut bed = bed("a=1,2,3,4,5", SUCCESS_RATE);
    bed.calls(25, half_of(3));
    end_interval(&mut bed);
    bed.calls(25, half_of(3));
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-77: five RPCs each in an interval");
}

#[test]
fn an_endpoint_that_fails_more_than_its_share_is_ejected() {
    let mut bed = bed("a=1,2,3,4,5", FAILURE_PERCENTAGE);
    bed.calls(50, half_of(2));
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-80: 50 is not greater than 50");
    let mut first = true;
    bed.calls(50, |port| if port == 2 && !std::mem::take(&mut first) { 14 } else { 0 });
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 3, 4, 5], "L-80");
}

#[test]
fn both_algorithms_eject_an_endpoint_once_and_share_the_limit() {
    let both = OutlierDetection { success_rate: Some(SUCCESS_RATE_DEFAULT), ..FAILURE_PERCENTAGE };
    let mut one = bed("a=1,2,3,4,5", both.clone());
    one.calls(50, |port| if port == 2 { 14 } else { 0 });
    end_interval(&mut one);
    assert_eq!(used(&mut one), [1, 3, 4, 5], "L-77");
    one.advance(Duration::from_secs(30));
    assert_eq!(used(&mut one), [1, 2, 3, 4, 5], "L-77: the multiplier grew by one");

    // Two fail, and both algorithms find both of them.
    let mut two = bed("a=1,2,3,4,5,6,7,8,9,10", both);
    two.calls(100, |port| if port < 3 { 14 } else { 0 });
    end_interval(&mut two);
    assert_eq!(used(&mut two).len(), 9, "L-81: 1 of 10 is 10 %, whichever found it");
}

#[test]
fn without_rpcs_nobody_is_judged() {
    let settings = SuccessRateEjection { request_volume: 0, ..SUCCESS_RATE_DEFAULT };
    let mut bed = bed("a=1,2,3,4,5", OutlierDetection { success_rate: Some(settings), ..SUCCESS_RATE });
    let mut n = 0;
    bed.calls(4, |_| {
        n += 1;
        0
    });
    end_interval(&mut bed);
    assert_eq!((n, used(&mut bed)), (4, vec![1, 2, 3, 4, 5]), "L-79: the fifth had none");
}

#[test]
fn ejections_stop_at_the_limit_but_one_is_always_allowed() {
    let ejected = |max_ejection_percent| {
        let mut bed = bed("a=1,2,3,4,5,6,7,8,9,10", OutlierDetection { max_ejection_percent, ..FAILURE_PERCENTAGE });
        bed.calls(100, |port| if port > 5 { 14 } else { 0 });
        end_interval(&mut bed);
        10 - used(&mut bed).len()
    };
    assert_eq!(ejected(0), 1, "L-81");
    assert_eq!(ejected(10), 1, "L-81: 1 of 10 is 10 %");
    assert_eq!(ejected(25), 3, "L-81: 2 of 10 is below 25 %");
    assert_eq!(ejected(100), 5, "L-81");
}

#[test]
fn what_is_ejected_already_counts_for_the_limit() {
    let mut bed = bed("a=1,2,3,4,5,6,7,8,9,10", OutlierDetection { max_ejection_percent: 20, ..FAILURE_PERCENTAGE });
    for bad in 1..=3 {
        bed.calls(100, |port| if port == bad { 14 } else { 0 });
        end_interval(&mut bed);
    }
    assert_eq!(used(&mut bed), [3, 4, 5, 6, 7, 8, 9, 10], "L-81");
}

#[test]
fn enforcement_is_by_chance() {
    let settings = FailurePercentageEjection { enforcement: 30, ..FAILURE_PERCENTAGE_DEFAULT };
    let mut bed = bed("a=1,2,3,4,5", OutlierDetection { failure_percentage: Some(settings), ..FAILURE_PERCENTAGE });
    bed.calls(50, |port| if port < 3 { 14 } else { 0 });
    bed.script.bounds.clear();
    bed.script.draws = [30, 29].into();
    end_interval(&mut bed);
    assert_eq!(bed.script.bounds[..2], [100, 100], "L-80: a draw for each outlier");
    assert_eq!(used(&mut bed), [1, 3, 4, 5], "L-80");
}

#[test]
fn what_is_found_is_told_and_why_it_was_not_ejected() {
    let found = |bed: &mut Testbed| {
        let observations = std::mem::take(&mut bed.helper.observations);
        let brief = observations.into_iter().filter_map(|observation| {
            let Observation::Outlier { cluster, method, unenforced } = observation else { return None };
            assert_eq!(&*cluster, "c", "S-64");
            Some((method, unenforced))
        });
        brief.collect::<Vec<_>>()
    };
    let mut by_rate = bed("a=1,2,3,4,5", SUCCESS_RATE);
    by_rate.calls(50, half_of(3));
    end_interval(&mut by_rate);
    assert_eq!(found(&mut by_rate), [(DetectionMethod::SuccessRate, None)], "S-75");

    let settings = FailurePercentageEjection { enforcement: 30, ..FAILURE_PERCENTAGE_DEFAULT };
    let settings = OutlierDetection { failure_percentage: Some(settings), ..FAILURE_PERCENTAGE };
    let mut by_percentage = bed("a=1,2,3,4,5", OutlierDetection { max_ejection_percent: 20, ..settings });
    by_percentage.calls(50, |port| if port < 4 { 14 } else { 0 });
    by_percentage.script.draws = [30, 29].into();
    end_interval(&mut by_percentage);
    let of = |unenforced| (DetectionMethod::FailurePercentage, unenforced);
    let (chance, limit) = (UnenforcedReason::EnforcementPercentage, UnenforcedReason::MaxEjectionOverflow);
    assert_eq!(found(&mut by_percentage), [of(Some(chance)), of(None), of(Some(limit))], "S-75");
}

#[test]
fn the_more_often_the_longer() {
    let mut bed = bed("a=1,2,3,4,5", FAILURE_PERCENTAGE);
    let mut intervals_out = Vec::new();
    for _ in 0..3 {
        bed.calls(50, |port| if port == 2 { 14 } else { 0 });
        end_interval(&mut bed);
        let mut out = 0;
        while used(&mut bed).len() == 4 {
            end_interval(&mut bed);
            out += 1;
        }
        intervals_out.push(out);
    }
    // The interval in which it fails again comes at once, so the multiplier goes on from where it was.
    assert_eq!(intervals_out, [3, 6, 9], "L-77: 30 s each time more, at intervals of 10 s");
}

#[test]
fn good_behaviour_makes_the_next_ejection_shorter_and_the_maximum_bounds_it() {
    let mut bed =
        bed("a=1,2,3,4,5", OutlierDetection { max_ejection_time: Duration::from_secs(40), ..FAILURE_PERCENTAGE });
    let eject = |bed: &mut Testbed| {
        bed.calls(50, |port| if port == 2 { 14 } else { 0 });
        end_interval(bed);
        let mut out = 0;
        while used(bed).len() == 4 {
            end_interval(bed);
            out += 1;
        }
        out
    };
    assert_eq!((eject(&mut bed), eject(&mut bed)), (3, 4), "L-77: at most max_ejection_time");
    for _ in 0..2 {
        end_interval(&mut bed);
    }
    assert_eq!(eject(&mut bed), 3, "L-77: two good intervals took the multiplier back to 0");
}

#[test]
fn when_all_are_ejected_rpcs_fail_and_say_why() {
    let mut bed = bed("a=1,2,3,4,5", OutlierDetection { max_ejection_percent: 100, ..FAILURE_PERCENTAGE });
    bed.calls(50, |_| 14);
    end_interval(&mut bed);
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: locality a: connections to all 5 endpoints failing; last error: \
         10.0.0.1:5: ejected by outlier detection (xDS node ID:n)",
        "L-82"
    );
    bed.advance(Duration::from_secs(30));
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5]);
}

#[test]
fn an_ejected_priority_gives_way_to_the_next_and_the_ejection_moves_with_the_endpoint() {
    let all = OutlierDetection { max_ejection_percent: 100, ..FAILURE_PERCENTAGE };
    let mut bed = bed("a=1,2,3,4,5|b=6", all.clone());
    bed.calls(50, |_| 14);
    end_interval(&mut bed);
    bed.ready(6);
    assert_eq!(used(&mut bed), [6], "L-73");
    bed.update(config([detecting(eds("c", "b=6|a=1,2,3,4,5"), all.clone())]));
    bed.update(config([detecting(eds("c", "a=2,7|b=6"), all)]));
    bed.ready(7);
    assert_eq!(used(&mut bed), [7], "EjectionRetainedAcrossPriorities, A75: above priority");
    end_interval(&mut bed);
    bed.advance(Duration::from_secs(20));
    assert_eq!(used(&mut bed), [2, 7]);
}

#[test]
fn an_ejected_endpoint_that_reconnects_stays_ejected() {
    let mut bed = bed("a=1,2,3,4,5", FAILURE_PERCENTAGE);
    bed.calls(50, |port| if port == 2 { 14 } else { 0 });
    end_interval(&mut bed);
    bed.log();
    bed.idle(2);
    assert_eq!(bed.log(), "connect 2", "L-126: raw connectivity decides about connections");
    bed.ready(2);
    assert_eq!(used(&mut bed), [1, 3, 4, 5], "L-83, L-126: and health about use");
    bed.advance(Duration::from_secs(30));
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5]);
}

#[test]
fn an_endpoint_that_leaves_the_configuration_loses_its_state() {
    let mut bed = bed("a=1,2,3,4,5", FAILURE_PERCENTAGE);
    bed.calls(50, |port| if port == 2 { 14 } else { 0 });
    end_interval(&mut bed);
    bed.update(config([detecting(eds("c", "a=1,3,4,5"), FAILURE_PERCENTAGE)]));
    bed.update(config([detecting(eds("c", "a=1,2,3,4,5"), FAILURE_PERCENTAGE)]));
    bed.ready(2);
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-83");
    bed.calls(50, |port| if port == 2 { 14 } else { 0 });
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 3, 4, 5], "it is counted with its new counter");
}

#[test]
fn all_addresses_of_an_endpoint_count_as_one() {
    let mut bed = Testbed::new();
    bed.update(config([detecting(eds("c", "a=1+11,2,3,4,5"), FAILURE_PERCENTAGE)]));
    (1..=5).for_each(|port| bed.ready(port));
    bed.calls(25, |port| if port == 1 { 14 } else { 0 });
    bed.idle(1);
    bed.fail(1);
    bed.ready(11);
    bed.calls(25, |port| if port == 11 { 14 } else { 0 });
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [2, 3, 4, 5], "L-75: five RPCs on each address, ten on the endpoint");
    bed.update(config([detecting(eds("c", "a=11+1,2,3,4,5"), FAILURE_PERCENTAGE)]));
    assert_eq!(used(&mut bed), [2, 3, 4, 5], "L-75: in any order");
    bed.update(config([detecting(eds("c", "a=11+12,2,3,4,5"), FAILURE_PERCENTAGE)]));
    assert_eq!(used(&mut bed), [2, 3, 4, 5, 11], "EjectionStateResetsWhenEndpointAddressesChange");
}

#[test]
fn detection_can_be_turned_on_and_off_under_connections() {
    let mut bed = Testbed::with_endpoints("a=1,2,3,4,5");
    (1..=5).for_each(|port| bed.ready(port));
    assert_eq!(bed.tree.next_deadline(), None, "L-74: no timer");
    bed.log();
    bed.update(config([detecting(eds("c", "a=1,2,3,4,5"), FAILURE_PERCENTAGE)]));
    bed.calls(50, |port| if port == 2 { 14 } else { 0 });
    end_interval(&mut bed);
    assert_eq!(used(&mut bed), [1, 3, 4, 5], "L-78");
    bed.update(config([eds("c", "a=1,2,3,4,5")]));
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-74: everything unejected");
    assert_eq!((bed.tree.next_deadline(), bed.log().as_str()), (None, ""), "L-74: the timer is gone");
    bed.update(config([detecting(eds("c", "a=1,2,3,4,5"), FAILURE_PERCENTAGE)]));
    bed.calls(50, |port| if port == 2 { 14 } else { 0 });
    end_interval(&mut bed);
    bed.advance(Duration::from_secs(30));
    assert_eq!(used(&mut bed), [1, 2, 3, 4, 5], "L-74: the multiplier began anew");
    let off = OutlierDetection { failure_percentage: None, ..FAILURE_PERCENTAGE };
    bed.update(config([detecting(eds("c", "a=1,2,3,4,5"), off)]));
    assert_eq!(bed.tree.next_deadline(), None, "L-74: without an algorithm it is off");
}

#[test]
fn another_interval_takes_effect_at_once() {
    let mut bed = bed("a=1,2,3,4,5", FAILURE_PERCENTAGE);
    bed.calls(50, |port| if port == 2 { 14 } else { 0 });
    bed.advance(Duration::from_secs(4));
    let short = |seconds| OutlierDetection { interval: Duration::from_secs(seconds), ..FAILURE_PERCENTAGE };
    bed.update(config([detecting(eds("c", "a=1,2,3,4,5"), short(6))]));
    bed.advance(Duration::from_millis(1_999));
    assert_eq!(used(&mut bed).len(), 5);
    bed.advance(Duration::from_millis(1));
    assert_eq!(used(&mut bed).len(), 4, "L-78: six seconds from the start; what was counted counts");
    bed.advance(Duration::from_secs(5));
    bed.update(config([detecting(eds("c", "a=1,2,3,4,5"), short(1))]));
    assert_eq!(bed.tree.next_deadline(), Some(bed.now), "L-78: at least 0");
}

#[test]
fn an_interval_of_zero_does_not_hang() {
    let mut bed = bed("a=1,2,3,4,5", OutlierDetection { interval: Duration::ZERO, ..FAILURE_PERCENTAGE });
    bed.advance(Duration::from_secs(1));
    assert_eq!(used(&mut bed).len(), 5);
}

#[test]
fn a_plain_pick_first_is_left_alone() {
    let settings = FailurePercentageEjection { minimum_hosts: 1, ..FAILURE_PERCENTAGE_DEFAULT };
    let settings = OutlierDetection { failure_percentage: Some(settings), ..FAILURE_PERCENTAGE };
    let mut bed = Testbed::new();
    let policy = LbPolicy::PickFirst { shuffle: false };
    bed.update(config([with_policy(detecting(eds("c", "a=1,2"), settings), policy)]));
    bed.ready(1);
    bed.calls(50, |_| 14);
    end_interval(&mut bed);
    assert_eq!(bed.rpc(), "send 1", "L-82, DoesNotWorkWithPickFirst");
}

#[test]
fn each_leaf_of_an_aggregate_has_its_own_detection() {
    let mut bed = Testbed::new();
    let all = OutlierDetection { max_ejection_percent: 100, ..FAILURE_PERCENTAGE };
    let leaves = [detecting(eds("one", "a=1,2,3,4,5"), all), eds("two", "a=1,9")];
    bed.update(config([aggregate("agg", &["one", "two"])].into_iter().chain(leaves)));
    (1..=5).for_each(|port| bed.ready(port));
    bed.calls(50, |_| 14);
    end_interval(&mut bed);
    assert_eq!(bed.rpc(), "send 1", "A75: the same address in another leaf is not ejected");
}

/// A cluster with detection whose endpoints are all ready.
fn bed(endpoints: &str, settings: OutlierDetection) -> Testbed {
    let mut bed = Testbed::new();
    bed.update(config([detecting(eds("c", endpoints), settings)]));
    let ports: Vec<u16> = bed.helper.live.keys().copied().collect();
    ports.into_iter().for_each(|port| bed.ready(port));
    bed
}

fn detecting(cluster: ClusterConfig, settings: OutlierDetection) -> ClusterConfig {
    edit_cluster(cluster, |cluster| cluster.outlier_detection = Some(settings))
}

/// Every other RPC to one port fails.
fn half_of(bad: u16) -> impl FnMut(u16) -> u8 {
    let mut fails = false;
    move |port| {
        fails = if port == bad { !fails } else { fails };
        if port == bad && fails { 14 } else { 0 }
    }
}

fn end_interval(bed: &mut Testbed) {
    bed.advance(Duration::from_secs(10));
}

/// The endpoints that RPCs go to. The RPCs are withdrawn, so that looking does not count.
fn used(bed: &mut Testbed) -> Vec<u16> {
    let mut ports = bed.look(20);
    ports.sort_unstable();
    ports.dedup();
    ports
}

const SUCCESS_RATE_DEFAULT: SuccessRateEjection =
    SuccessRateEjection { stdev_factor: 1900, enforcement: 100, minimum_hosts: 5, request_volume: 10 };

const FAILURE_PERCENTAGE_DEFAULT: FailurePercentageEjection =
    FailurePercentageEjection { threshold: 50, enforcement: 100, minimum_hosts: 5, request_volume: 10 };

const SUCCESS_RATE: OutlierDetection = OutlierDetection {
    interval: Duration::from_secs(10),
    base_ejection_time: Duration::from_secs(30),
    max_ejection_time: Duration::from_secs(300),
    max_ejection_percent: 10,
    success_rate: Some(SUCCESS_RATE_DEFAULT),
    failure_percentage: None,
};

const FAILURE_PERCENTAGE: OutlierDetection =
    OutlierDetection { success_rate: None, failure_percentage: Some(FAILURE_PERCENTAGE_DEFAULT), ..SUCCESS_RATE };
