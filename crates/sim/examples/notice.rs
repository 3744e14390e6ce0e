//! Looks for anything that does not hold, and says what and where: `notice SEEDS STATES [WITHOUT...]`.
//!
//! Stories come first. Then, in rounds, lives of the tree of policies, histories of the dependency manager and of servers,
//! filters that authorize, worlds of clients and the worlds of so many seeds, without some; then what once went wrong, and so many states of each
//! small world. It ends at the first violation. `mainstay-mutants` runs it with one deliberate error after the other in the cores.

use std::process::ExitCode;
use std::sync::Arc;

use mainstay_sim::authz::{self, Tally};
use mainstay_sim::{Failure, STORIES, Search, deps, policies, regressions, replay_line, servers, small, swarm};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let seeds: u64 = numbers.next().unwrap_or(1_000);
    let states = numbers.next().map_or(5_000, |states| usize::try_from(states).expect("not that many"));
    let without: Vec<u64> = numbers.collect();
    let seeds: Vec<u64> = (0..seeds).filter(|seed| !without.contains(seed)).collect();
    match look(&seeds, states) {
        Ok(()) => ExitCode::SUCCESS,
        Err(found) => {
            println!("NOTICED {found}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a line for each thing that was looked at, so that one can see that it goes on. A little of everything comes
/// first: whatever can be noticed is noticed soon.
fn look(seeds: &[u64], states: usize) -> Result<(), String> {
    for (name, tell) in STORIES {
        tell().map_err(|violation| format!("{:?} in the story {name:?}", violation.invariant))?;
        println!("story {name}");
    }
    for round in 0..ROUNDS {
        let part = |count: u64| (0..count).filter(move |number| number % ROUNDS == round);
        for seed in part(policies::SEEDS) {
            policies::run(seed).map_err(|failure| format!("{} in {}", what(&failure), failure.scenario))?;
            if seed % 100 == round {
                println!("policies {seed}");
            }
        }
        for history in part(HISTORIES) {
            deps::run(history).map_err(|violation| format!("{:?} in the history {history}", violation.invariant))?;
            println!("history {history}");
        }
        for history in part(HISTORIES) {
            servers::run(history, None)
                .map_err(|violation| format!("{:?} in the server {history}", violation.invariant))?;
            println!("server {history}");
        }
        for seed in part(FILTERS) {
            authz::run(seed, None, &mut Tally::default())
                .map_err(|_| format!("another decision by the filter {seed}"))?;
        }
        println!("filters {round}");
        for seed in part(CLIENTS) {
            swarm::clients::run_seed(seed).map_err(|failure| format!("{} in the client {seed}", what(&failure)))?;
            println!("client {seed}");
        }
        for &seed in part(seeds.len() as u64).filter_map(|at| seeds.get(usize::try_from(at).ok()?)) {
            swarm::run_seed(seed).map_err(|failure| format!("{} in seed {seed}", what(&failure)))?;
            println!("seed {seed}");
        }
    }
    for line in regressions() {
        let name = line.split(':').next().unwrap_or(line);
        replay_line(line).map_err(|error| match error.downcast::<Failure>() {
            Ok(failure) => format!("{} in the case {name}", what(&failure)),
            Err(error) => format!("{error} in the case {name}"),
        })?;
        println!("case {name}");
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

const HISTORIES: u64 = 1_200;
const FILTERS: u64 = 2_000;
const CLIENTS: u64 = 400;
const ROUNDS: u64 = 20;
