//! Looks for anything that does not hold, and says what and where: `notice SEEDS STATES [WITHOUT...]`.
//!
//! Lives of the tree of policies and histories of the dependency manager and of servers come first, then stories and what
//! once went wrong, then the worlds of so many seeds, without some, then so many states of each small world. It ends at the first
//! violation. `mainstay-mutants` runs it with one deliberate error after the other in the cores.

use std::process::ExitCode;
use std::sync::Arc;

use mainstay_sim::{Failure, STORIES, Search, deps, policies, regressions, replay_line, servers, small, swarm};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let seeds: u64 = numbers.next().unwrap_or(1_000);
    let states = numbers.next().map_or(5_000, |states| usize::try_from(states).expect("not that many"));
    let without: Vec<u64> = numbers.collect();
    match look((0..seeds).filter(|seed| !without.contains(seed)), states) {
        Ok(()) => ExitCode::SUCCESS,
        Err(found) => {
            println!("NOTICED {found}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a line for each thing that was looked at, so that one can see that it goes on.
fn look(seeds: impl Iterator<Item = u64>, states: usize) -> Result<(), String> {
    for seed in 0..policies::SEEDS {
        policies::run(seed).map_err(|failure| format!("{} in {}", what(&failure), failure.scenario))?;
        if seed % 100 == 0 {
            println!("policies {seed}");
        }
    }
    for history in (0..HISTORIES).filter(|history| !deps::AT_ODDS.contains(history)) {
        deps::run(history).map_err(|violation| format!("{:?} in the history {history}", violation.invariant))?;
        println!("history {history}");
    }
    for history in 0..HISTORIES {
        servers::run(history, None)
            .map_err(|violation| format!("{:?} in the server {history}", violation.invariant))?;
        println!("server {history}");
    }
    for (name, tell) in STORIES {
        tell().map_err(|violation| format!("{:?} in the story {name:?}", violation.invariant))?;
        println!("story {name}");
    }
    for line in regressions() {
        let name = line.split(':').next().unwrap_or(line);
        replay_line(line).map_err(|error| match error.downcast::<Failure>() {
            Ok(failure) => format!("{} in the case {name}", what(&failure)),
            Err(error) => format!("{error} in the case {name}"),
        })?;
        println!("case {name}");
    }
    for seed in seeds {
        swarm::run_seed(seed).map_err(|failure| format!("{} in seed {seed}", what(&failure)))?;
        println!("seed {seed}");
    }
    for scenario in small::all() {
        let name = scenario.name.clone();
        let search = Search { max_states: states, ..Search::default() };
        search.run(&Arc::new(scenario)).map_err(|failure| format!("{} in the world {name}", what(&failure)))?;
        println!("world {name}");
    }
    Ok(())
}

fn what(failure: &Failure) -> String {
    failure.violation.as_ref().map_or_else(|| "chance".to_owned(), |violation| format!("{:?}", violation.invariant))
}

const HISTORIES: u64 = 600;
