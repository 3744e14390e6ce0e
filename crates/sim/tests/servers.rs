//! Servers beside a judge that knows what they were told.

use mainstay_sim::servers::{self, DEFECTS, History};

#[test]
fn servers_serve_what_they_are_told_and_no_rpc_fails_for_an_update() {
    // SV-5, TL-1
    let mut seen = History::default();
    for seed in 0..SEEDS {
        let history = servers::run(seed, None).unwrap_or_else(|violation| panic!("{violation}"));
        seen.generations += history.generations;
        seen.routes += history.routes;
        seen.served += history.served;
        seen.accepted += history.accepted;
        seen.drained += history.drained;
        seen.handled += history.handled;
        seen.mixed += history.mixed;
    }
    // What was not seen was not tested.
    let enough = seen.generations > 2 * SEEDS && seen.routes > SEEDS && seen.served > SEEDS && seen.drained > SEEDS;
    assert!(enough && seen.handled > SEEDS && seen.accepted > 2 * SEEDS && seen.mixed > 0, "{seen:?}");
}

#[test]
fn what_servers_in_the_field_did_wrong_is_found() {
    for (defect, invariant) in DEFECTS {
        let found = (0..SEEDS).find_map(|seed| servers::run(seed, Some(defect)).err());
        let violation = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
        assert_eq!(violation.invariant, invariant, "{defect:?}: {violation}");
    }
}

/// Histories that were at odds once, beyond those of every run: while everything heals, a socket that failed waits for its
/// turn as it does before (the judge).
#[test]
fn histories_that_were_at_odds_are_not_any_more() {
    for seed in [450, 661, 833, 877] {
        servers::run(seed, None).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

const SEEDS: u64 = 400;
