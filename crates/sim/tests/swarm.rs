//! Worlds from seeds, and cases that once went wrong.

use std::sync::Arc;

use mainstay_sim::{Recorder, Seeded, Stats, regressions, replay, replay_line, run, shrink, swarm};

#[test]
fn nothing_goes_wrong_in_the_worlds_of_many_seeds() {
    let mut seen = Stats::default();
    for seed in 0..SEEDS {
        match swarm::run_seed(seed) {
            Ok(stats) => seen += stats,
            Err(failure) => panic!("{}", shrink(&Arc::new(swarm::scenario(seed)), *failure)),
        }
    }
    // What was not seen was not tested.
    assert!(seen.events > 100 * SEEDS && seen.faults > SEEDS && seen.fallbacks > SEEDS / 20, "{seen:?}");
    assert!(seen.rpcs_sent > SEEDS && seen.configs > SEEDS, "{seen:?}");
}

#[test]
fn the_same_choices_make_the_same_transcript() {
    for seed in 0..20 {
        let scenario = Arc::new(swarm::scenario(seed));
        let mut recorder = Recorder::new(Seeded::new(seed));
        run(&scenario, &mut recorder, 100).expect("nothing goes wrong");
        let choices = recorder.into_choices();
        let (first, second) = (replay(&scenario, &choices), replay(&scenario, &choices));
        let (_, first) = first.expect("nothing goes wrong");
        assert_eq!(first, second.expect("nothing goes wrong").1, "seed {seed}");
        assert!(first.len() > 20, "{first:?}");
    }
}

#[test]
fn what_once_went_wrong_does_not_any_more() {
    for line in regressions() {
        if let Err(error) = replay_line(line) {
            panic!("{error}");
        }
    }
}

const SEEDS: u64 = 1_000;
