//! Worlds in which both variants of ADS are spoken.

use std::sync::Arc;

use mainstay_sim::{Meddling, Scenario, Stats, equivalence, shrink, swarm};

#[test]
fn nothing_goes_wrong_when_servers_speak_delta_or_not() {
    let (first, seeds) = seeds();
    let mut seen = Stats::default();
    let mut failures = Vec::new();
    for seed in first..first + seeds {
        match swarm::mixed::run_seed(seed) {
            Ok(stats) => seen += stats,
            Err(failure) => {
                println!("mixed-{seed}: {:?}", failure.violation);
                failures.push((seed, failure));
            }
        }
    }
    let count = failures.len();
    if let Some((seed, failure)) = failures.into_iter().next() {
        panic!("{count} of {seeds} failed; the first:\n{}", shrink(&Arc::new(swarm::mixed::scenario(seed)), *failure));
    }
    assert!(seen.events > 100 * seeds && seen.faults > seeds && seen.fallbacks > seeds / 20, "{seen:?}");
}

#[test]
fn a_client_that_breaks_a_rule_of_delta_is_noticed() {
    let breaks = |meddling: Meddling, seed: u64| {
        let scenario = Scenario { meddling: Some(meddling), ..swarm::mixed::scenario(seed) };
        swarm::run_scenario(&Arc::new(scenario), seed).is_err()
    };
    let unnoticed: Vec<_> =
        Meddling::ALL.into_iter().filter(|meddling| !(0..300).any(|seed| breaks(*meddling, seed))).collect();
    assert_eq!(unnoticed, []);
}

/// DX-23: fallback, timers and what is in use look at the cache, so a history comes to the same in both variants.
#[test]
fn both_variants_end_with_the_same_configuration() {
    let (first, seeds) = seeds();
    let seeds = seeds.div_ceil(3); // Each is two worlds.
    let mut alike = 0;
    for seed in first..first + seeds {
        match equivalence::run(seed) {
            Ok(times) => alike += times,
            Err(violation) => panic!("history {seed}: {violation}"),
        }
    }
    assert!(alike > seeds, "{alike}");
}

/// The first seed and how many: `MIXED_SEEDS=FIRST,COUNT` tries others.
#[expect(clippy::disallowed_methods, reason = "how much is tried is up to who runs the test")]
fn seeds() -> (u64, u64) {
    let given = std::env::var("MIXED_SEEDS").ok();
    let given = given.as_deref().and_then(|given| given.split_once(','));
    given.map_or((0, 300), |(first, count)| (first.parse().unwrap(), count.parse().unwrap()))
}
