//! Whether the invariants would notice a bug.

use std::sync::Arc;

use mainstay_sim::{Invariant, Mutant, Scenario, Search, small, swarm};

#[test]
fn every_deliberate_bug_is_noticed_as_the_readme_says() {
    let readme = include_str!("../README.md");
    for mutant in Mutant::ALL {
        let Some((how, invariant)) = notice(mutant) else { panic!("{mutant:?} is not noticed") };
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{mutant:?}` |")));
        let row = row.unwrap_or_else(|| panic!("{mutant:?} is not in the README: it breaks {invariant:?} in {how}"));
        assert!(row.contains(&format!("`{invariant:?}`")), "{mutant:?} breaks {invariant:?} in {how}: {row}");
    }
}

/// Where a bug is noticed first, and what it breaks there.
fn notice(mutant: Mutant) -> Option<(String, Invariant)> {
    for seed in 0..SEEDS {
        let scenario = Scenario { mutant: Some(mutant), ..swarm::scenario(seed) };
        if let Err(failure) = swarm::run_scenario(&Arc::new(scenario), seed) {
            return failure.violation.map(|violation| (format!("seed {seed}"), violation.invariant));
        }
    }
    let search = Search { max_states: 5_000, ..Search::default() };
    small::all().into_iter().find_map(|scenario| {
        let scenario = Scenario { mutant: Some(mutant), ..scenario };
        let failure = search.run(&Arc::new(scenario.clone())).err()?;
        failure.violation.map(|violation| (scenario.name, violation.invariant))
    })
}

/// How many seeds each bug has to show itself.
const SEEDS: u64 = 400;
