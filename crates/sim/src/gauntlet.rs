//! Everything that the simulator has, in one call: whether a change of the cores is noticed.

use std::ops::Range;
use std::sync::Arc;

use crate::choose::Choices;
use crate::explore::Search;
use crate::named::replay_line;
use crate::run::Failure;
use crate::story::STORIES;
use crate::world::Stats;
use crate::{policies, small, swarm};

/// Holds the tree of policies against its reference, tells every story, replays what once went wrong, runs the worlds of
/// these seeds, those of channels and those of clients, and visits at most so many states of each small world.
///
/// # Errors
/// The first failure; it is not made short.
pub fn gauntlet(seeds: Range<u64>, states: usize) -> Result<Stats, Box<Failure>> {
    for seed in 0..policies::SEEDS {
        policies::run(seed)?;
    }
    for (name, tell) in STORIES {
        tell().map_err(|violation| {
            let (choices, transcript) = (Choices::default(), Vec::new());
            Box::new(Failure { violation: Some(violation), scenario: name.to_owned(), choices, transcript })
        })?;
    }
    for line in regressions() {
        if let Err(error) = replay_line(line)
            && let Ok(failure) = error.downcast::<Failure>()
        {
            return Err(failure);
        }
    }
    let mut stats = Stats::default();
    for seed in seeds {
        stats += swarm::run_seed(seed)?;
        stats += swarm::clients::run_seed(seed)?;
    }
    let search = Search { max_states: states, ..Search::default() };
    for scenario in small::all() {
        search.run(&Arc::new(scenario))?;
    }
    Ok(stats)
}

/// The lines of worlds in which something once went wrong.
pub fn regressions() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("../tests/regressions.txt").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}
