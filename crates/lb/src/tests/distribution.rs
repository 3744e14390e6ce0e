//! Shares over many RPCs, with chance from a seed.

use std::collections::BTreeMap;

use http::HeaderMap;
use mainstay_xds::Choose;
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::route::{ClusterTarget, WeightedCluster};

use crate::testbed::{Testbed, config, eds, route_to, routed, with_policy};
use crate::{Decision, Rpc};

#[test]
fn weighted_clusters_share_within_two_percent() {
    let weighted = |name: &str, weight| WeightedCluster { name: name.into(), weight, overrides: Default::default() };
    let target = ClusterTarget::Weighted(vec![weighted("a", 75), weighted("b", 20), weighted("c", 5)]);
    let mut bed = Testbed::new();
    bed.update(routed([route_to("", target)], [eds("a", "l=1"), eds("b", "l=2"), eds("c", "l=3")]));
    (1..=3).for_each(|port| bed.ready(port));
    assert_shares(&bed, &[(1, 0.75), (2, 0.20), (3, 0.05)]); // L-38
}

#[test]
fn localities_and_their_endpoints_share_within_two_percent() {
    let mut bed = Testbed::with_endpoints("a*6=1,2 b*3=3 c*1=4");
    (1..=4).for_each(|port| bed.ready(port));
    assert_shares(&bed, &[(1, 0.3), (2, 0.3), (3, 0.3), (4, 0.1)]); // L-100, L-103
}

#[test]
fn pick_first_begins_with_an_endpoint_as_often_as_its_weight_says() {
    const TRIES: u32 = 2_000;
    let (mut chance, mut counts) = (Seeded(1), BTreeMap::<String, u32>::new());
    for _ in 0..TRIES {
        let mut bed = Testbed::new();
        bed.script.draws = (0..3).map(|_| chance.choose(1 << 32)).collect();
        let shuffled = LbPolicy::PickFirst { shuffle: true };
        bed.update(config([with_policy(eds("c", "a*3=1 b*1=2,3"), shuffled)]));
        let log = bed.log();
        *counts.entry(log.rsplit(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    for (port, share) in [("1", 0.75), ("2", 0.125), ("3", 0.125)] {
        let found = f64::from(counts[port]) / f64::from(TRIES);
        assert!((found - share).abs() <= 0.03, "L-119, A113: {port} is first in {found} instead of {share}");
    }
}

#[track_caller]
fn assert_shares(bed: &Testbed, expected: &[(u16, f64)]) {
    const RPCS: u32 = 20_000;
    let headers = HeaderMap::new();
    for seed in 0..5 {
        let mut chance = Seeded(seed);
        let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
        for _ in 0..RPCS {
            let decision = bed.snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut chance);
            let Decision::Send(to) = decision else { panic!("no RPC waits or fails") };
            *counts.entry(to.subchannel.port).or_default() += 1;
        }
        for (port, share) in expected {
            let found = f64::from(counts.get(port).copied().unwrap_or(0)) / f64::from(RPCS);
            assert!((found - share).abs() <= 0.02, "seed {seed}: {port} has {found} instead of {share}");
        }
    }
}

/// splitmix64.
struct Seeded(u64);

impl Choose for Seeded {
    fn choose(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }
}
