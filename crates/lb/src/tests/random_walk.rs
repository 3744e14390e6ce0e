//! Anything may happen in any order: what must hold then.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_xds::deps::{ClusterChildren, ClusterConfig};
use mainstay_xds::resource::cluster::{FailurePercentageEjection, OutlierDetection};
use mainstay_xds::resource::lb_policy::{LbPolicy, RingHashConfig, Weighing, WeightedRoundRobinConfig};
use proptest::prelude::*;

use crate::testbed::{Testbed, aggregate, config, dns, edit_cluster, eds, routed, with_policy, with_sessions};

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A configuration, with or without sessions.
    Update(usize, bool),
    Report(u16, u8),
    Advance(u64),
}

proptest! {
    #[test]
    fn whatever_happens_the_tree_stays_sound(
        steps in prop::collection::vec(any_step(), 1..60),
        draws in prop::collection::vec(any::<u64>(), 0..40),
    ) {
        let mut bed = Testbed::new();
        bed.script.draws = draws.into();
        let (mut listed, mut updated) = (BTreeSet::new(), bed.now);
        for step in steps {
            if let Step::Update(which, _) = step {
                (listed, updated) = (ports(&configurations()[which]), bed.now);
            }
            apply(&mut bed, step);
            // Never to a connection that is not ready, nor for long to an endpoint that is gone, and never without a text.
            let rpc = bed.rpc();
            if let Some(port) = rpc.strip_prefix("send ") {
                let port = port.parse().expect("a port");
                prop_assert!(bed.is_ready(port));
                prop_assert!(listed.contains(&port) || bed.now < updated + Duration::from_secs(5));
            } else {
                prop_assert!(rpc.len() > "wait 14: ".len(), "{}", rpc);
            }
            let (session, _) = bed.rpc_of_session("/s/m", "10.0.0.1:3,10.0.0.1:4;cluster:c");
            if let Some(port) = session.strip_prefix("send ") {
                prop_assert!(bed.is_ready(port.parse().expect("a port")));
            }
            // A clone is equal, and a second poll has nothing to say.
            prop_assert_eq!(&bed.tree.clone(), &bed.tree);
            prop_assert!(bed.tree.poll_snapshot().is_none());
        }
        // When every connection is ready, RPCs are sent.
        bed.update(config([eds("c", "a=1,2 b=3|c=4")]));
        for port in 1..=4 {
            if bed.helper.live.contains_key(&port) {
                bed.ready(port);
            }
        }
        prop_assert_eq!(bed.outcome(), "send");
        // Nothing is left of a configuration without clusters. The helper checks that nothing is released twice.
        bed.update(routed([], []));
        prop_assert!(bed.helper.live.is_empty());
        prop_assert_eq!(bed.tree.next_deadline(), None);
    }
}

/// Every endpoint of a configuration.
fn ports(clusters: &[ClusterConfig]) -> BTreeSet<u16> {
    let endpoints = clusters.iter().filter_map(|cluster| match &cluster.children {
        ClusterChildren::Endpoints(endpoints) => endpoints.as_ref(),
        ClusterChildren::Aggregate(_) => None,
    });
    let localities = endpoints.flat_map(|endpoints| endpoints.priorities().flatten().collect::<Vec<_>>());
    let addresses = localities.flat_map(|locality| {
        locality.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses.as_slice()).collect::<Vec<_>>()
    });
    addresses.map(|address| address.port()).collect()
}

fn apply(bed: &mut Testbed, step: Step) {
    match step {
        Step::Update(which, true) => bed.update(with_sessions(config(configurations().swap_remove(which)))),
        Step::Update(which, false) => bed.update(config(configurations().swap_remove(which))),
        Step::Report(port, _) if !bed.helper.live.contains_key(&port) => {}
        Step::Report(port, 0) => bed.idle(port),
        Step::Report(port, 1) => bed.connecting(port),
        Step::Report(port, 2) => bed.fail(port),
        Step::Report(port, _) => bed.ready(port),
        Step::Advance(seconds) => bed.advance(Duration::from_millis(seconds * 250)),
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..configurations().len(), any::<bool>()).prop_map(|(which, sessions)| Step::Update(which, sessions)),
        8 => (1..6_u16, 0..5_u8).prop_map(|(port, state)| Step::Report(port, state)),
        1 => prop::sample::select(vec![1, 40, 4_000]).prop_map(Step::Advance),
    ]
}

fn configurations() -> Vec<Vec<ClusterConfig>> {
    vec![
        vec![eds("c", "a=1,2")],
        vec![eds("c", "a=1,2 b=3|c=4")],
        vec![detecting(eds("c", "a=1,2 b=3|c=4"))],
        vec![detecting(eds("c", "a=1|b=3+4"))],
        vec![eds("c", "c=4|a=1 b=3")],
        vec![eds("c", "b=3+4,5|a=1+2")],
        vec![eds("c", "")],
        vec![with_policy(dns("c", "a=1,2+3"), LbPolicy::PickFirst { shuffle: true })],
        vec![with_policy(eds("c", "a=1 b=2|c=3"), LbPolicy::RoundRobin)],
        vec![with_policy(eds("c", "a=1,2 b=3+5|c=4"), ring_hash())],
        vec![with_policy(eds("c", "a=1,2 b=3|c=4"), LbPolicy::WrrLocality(Box::new(ring_hash())))],
        vec![with_policy(eds("c", "a=1,2 b=3|c=4,5"), LbPolicy::LeastRequest { choices: 2 })],
        vec![with_policy(dns("c", "a=1,2,3,4,5"), subset())],
        vec![aggregate("c", &["x", "y"]), eds("x", "a=1|b=2"), dns("y", "a=3,4")],
        vec![aggregate("c", &["y", "x"]), eds("x", "a=1|b=2"), dns("y", "a=5")],
    ]
}

/// Every RPC that the walk makes is cancelled, so every endpoint that is used is ejected sooner or later.
fn detecting(cluster: ClusterConfig) -> ClusterConfig {
    let failure_percentage =
        FailurePercentageEjection { threshold: 10, enforcement: 50, minimum_hosts: 1, request_volume: 1 };
    edit_cluster(cluster, |cluster| {
        cluster.outlier_detection = Some(OutlierDetection {
            interval: Duration::from_secs(10),
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_percent: 100,
            success_rate: None,
            failure_percentage: Some(failure_percentage),
        });
    })
}

fn ring_hash() -> LbPolicy {
    LbPolicy::RingHash(RingHashConfig { min_ring_size: 16, max_ring_size: 32, request_hash_header: None })
}

/// Of weighted_round_robin.
fn subset() -> LbPolicy {
    let config = WeightedRoundRobinConfig {
        oob_reporting_period: Some(Duration::from_secs(1)),
        blackout_period: Duration::ZERO,
        weight_expiration_period: Duration::from_secs(180),
        weight_update_period: Duration::from_secs(10),
        weighing: Weighing::default(),
    };
    LbPolicy::RandomSubsetting { size: 3, child: Box::new(LbPolicy::WeightedRoundRobin(Box::new(config))) }
}
