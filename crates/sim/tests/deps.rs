//! The dependency manager beside its naive reference.

use mainstay_sim::deps;

#[test]
fn the_manager_comes_to_what_the_reference_makes_from_scratch() {
    let mut seen = deps::History::default();
    for seed in 0..HISTORIES {
        let history = deps::run(seed).unwrap_or_else(|violation| panic!("{violation}"));
        seen.events += history.events;
        seen.published += history.published;
        seen.mixed += history.mixed;
        seen.lookups += history.lookups;
    }
    // What was not seen was not tested.
    assert!(seen.published > 4 * HISTORIES && seen.mixed > HISTORIES / 4 && seen.lookups > HISTORIES, "{seen:?}");
}

const HISTORIES: u64 = 1_200;
