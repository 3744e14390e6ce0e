//! Worlds from seeds, and the same seed twice.

use std::sync::Arc;

use mainstay_sim::{shrink, swarm};

#[test]
fn nothing_goes_wrong_in_the_worlds_of_many_seeds() {
    let count: u64 = std::env::var("SEEDS").map_or(300, |n| n.parse().unwrap());
    let first: u64 = std::env::var("FIRST").map_or(0, |n| n.parse().unwrap());
    let mut kinds = std::collections::BTreeMap::<String, (u64, String)>::new();
    for seed in first..first + count {
        if let Err(failure) = swarm::run_seed(seed) {
            let text = format!("{:?}", failure.violation.as_ref().unwrap().invariant);
            let entry = kinds.entry(text).or_default();
            entry.0 += 1;
            if entry.0 == 1 {
                entry.1 = shrink(&Arc::new(swarm::scenario(seed)), *failure).to_string();
            }
        }
    }
    for (kind, (times, example)) in &kinds {
        println!("=== {kind} x{times}\n{example}\n");
    }
    assert!(kinds.is_empty());
}
