//! States of small worlds, visited one after the other.

use std::sync::Arc;

use mainstay_sim::{Search, small};

#[test]
fn nothing_goes_wrong_in_the_states_of_two_small_worlds_with_one_fault() {
    for scenario in small::all().into_iter().take(2) {
        let scenario = Arc::new(scenario.limits(|limits| {
            limits.faults = 1;
            limits.delays = 0;
        }));
        let search = Search { max_states: 400_000, ..Search::default() };
        match search.run(&scenario) {
            // What was not visited was not tested.
            Ok(visited) => assert!(visited.states > 100, "{}: {visited:?}", scenario.name),
            Err(failure) => panic!("{failure}"),
        }
    }
}
