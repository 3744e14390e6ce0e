//! random_subsetting: some endpoints for each client, and few changes.

use std::collections::BTreeSet;

use mainstay_xds::deps::XdsConfig;
use mainstay_xds::resource::lb_policy::LbPolicy;
use xxhash_rust::xxh64::xxh64;

use crate::testbed::{Testbed, config, eds, with_policy};

#[test]
fn the_child_gets_so_many_endpoints_and_no_more() {
    let mut bed = with_seed(1);
    bed.update(subset(3, 1..=10));
    assert_eq!(bed.helper.live.len(), 3, "L-110");
    let ports: Vec<u16> = bed.helper.live.keys().copied().collect();
    ports.iter().for_each(|port| bed.ready(*port));
    assert_eq!(bed.ports(30).into_iter().collect::<BTreeSet<_>>(), ports.into_iter().collect());
}

#[test]
fn endpoints_are_ranked_by_the_hash_of_their_first_address_with_the_seed() {
    for seed in [1, 7, 1 << 60] {
        let mut bed = with_seed(seed);
        bed.update(subset(3, 1..=10));
        let mut ranked: Vec<u16> = (1..=10).collect();
        ranked.sort_by_key(|port| xxh64(format!("10.0.0.1:{port}").as_bytes(), seed));
        assert_eq!(live(&bed), ranked[..3].iter().copied().collect(), "L-110: seed {seed}");
    }
}

#[test]
fn few_endpoints_are_all_used() {
    let mut bed = with_seed(1);
    bed.update(subset(3, 1..=3));
    assert_eq!(live(&bed), [1, 2, 3].into(), "L-110");
    bed.update(subset(5, 1..=2));
    assert_eq!(live(&bed), [1, 2].into(), "L-110");
}

#[test]
fn clients_differ_by_their_seeds() {
    let of = |seed| {
        let mut bed = with_seed(seed);
        bed.update(subset(3, 1..=20));
        assert_eq!(bed.script.bounds.first(), Some(&u64::MAX), "L-110: a seed per policy");
        live(&bed)
    };
    assert_eq!(of(5), of(5));
    assert!((2..10).any(|seed| of(seed) != of(1)), "L-110");
    // Together they use them all.
    let used: BTreeSet<u16> = (0..100).flat_map(of).collect();
    assert_eq!(used.len(), 20, "L-110");
}

#[test]
fn an_endpoint_that_comes_or_goes_changes_one_place_at_most() {
    for seed in 0..20 {
        let mut bed = with_seed(seed);
        bed.update(subset(4, 1..=12));
        let before = live(&bed);
        bed.update(subset(4, 1..=11));
        let without = live(&bed);
        let kept = before.intersection(&without).count();
        assert!(kept >= 3 && (kept == 4 || before.contains(&12)), "L-110: {before:?} to {without:?}");
        bed.update(subset(4, 1..=12));
        assert_eq!(live(&bed), before, "L-110: the seed stays");
    }
}

#[test]
fn another_size_takes_in_others_and_leaves_those_that_were() {
    let mut bed = with_seed(3);
    bed.update(subset(2, 1..=10));
    let two = live(&bed);
    bed.update(subset(5, 1..=10));
    assert!(two.is_subset(&live(&bed)), "L-110");
    bed.update(subset(2, 1..=10));
    assert_eq!(live(&bed), two);
}

#[test]
fn another_child_takes_over_when_it_is_ready() {
    let mut bed = with_seed(1);
    bed.update(subset(1, 1..=1));
    bed.ready(1);
    let pick_first = Box::new(LbPolicy::PickFirst { shuffle: false });
    let policy = LbPolicy::RandomSubsetting { size: 1, child: pick_first };
    bed.update(config([with_policy(eds("c", "a=1"), policy)]));
    assert_eq!(bed.rpc(), "send 1", "L-47");
}

fn with_seed(seed: u64) -> Testbed {
    let mut bed = Testbed::new();
    bed.script.draws = [seed].into();
    bed
}

fn subset(size: u32, ports: impl Iterator<Item = u16>) -> XdsConfig {
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
    let policy = LbPolicy::RandomSubsetting { size, child: Box::new(LbPolicy::RoundRobin) };
    config([with_policy(eds("c", &format!("a={}", ports.join(","))), policy)])
}

fn live(bed: &Testbed) -> BTreeSet<u16> {
    bed.helper.live.keys().copied().collect()
}
