//! Every state of every small world.

use std::sync::Arc;

use mainstay_sim::{Search, small};

#[test]
fn nothing_goes_wrong_in_any_state_of_a_small_world() {
    for scenario in small::all().into_iter().take(2) {
        let scenario = scenario.limits(|l| {
            l.faults = std::env::var("F").map_or(1, |f| f.parse().unwrap());
            l.delays = std::env::var("D").map_or(0, |f| f.parse().unwrap());
        });
        let name = scenario.name.clone();
        let begun = std::time::Instant::now();
        match (Search { max_states: 400000, ..Search::default() }).run(&Arc::new(scenario)) {
            Ok(visited) => println!("{name}: {visited:?} {:?}", begun.elapsed()),
            Err(failure) => panic!("{failure}"),
        }
    }
}
