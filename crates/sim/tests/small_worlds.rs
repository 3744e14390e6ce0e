//! Every state of every small world.

use std::sync::Arc;

use mainstay_sim::{Search, scenario, small};

/// Visits all states of a world and answers with how many there are.
fn visit(name: &str) -> usize {
    let scenario = scenario(name).unwrap_or_else(|| panic!("no world {name:?}"));
    let visited = Search::default().run(&Arc::new(scenario)).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(visited.complete, "{name}: too many states: {visited:?}");
    visited.states
}

macro_rules! worlds {
    ($($name:ident: $states:literal,)*) => {
        $(#[test]
        fn $name() {
            let states = visit(stringify!($name));
            // Fewer than there were may mean that less is looked at.
            assert!(states >= $states, "only {states} states");
        })*

        #[test]
        fn no_world_is_left_out() {
            let tested = [$(stringify!($name)),*];
            assert_eq!(small::all().iter().map(|scenario| scenario.name.as_str()).collect::<Vec<_>>(), tested);
        }
    };
}

worlds! {
    inline: 50_000,
    rds: 9_000,
    eds: 15_000,
    aggregate: 100_000,
    leds: 40_000,
    invalid: 60_000,
    missing: 25_000,
    deleted: 45_000,
    same: 30_000,
    resumed: 45_000,
    told: 25_000,
    reachability: 45_000,
    silent: 5_000,
    lonely: 35_000,
}
