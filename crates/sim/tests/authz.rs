//! Random authorization filters and RPCs beside the naive reference.

use mainstay_sim::authz::{DEFECTS, Tally, run};

/// `AUTHZ_CASES=1000000 cargo test -p mainstay-sim --test authz` runs a million.
#[test]
#[expect(clippy::disallowed_methods, reason = "how much is run is up to whoever runs it")]
fn az1_decisions_are_those_of_the_naive_reference() {
    let cases = std::env::var("AUTHZ_CASES").map_or(20_000, |cases| cases.parse().unwrap());
    let mut tally = Tally::default();
    for seed in 0..cases {
        run(seed, None, &mut tally).unwrap_or_else(|difference| panic!("{difference}"));
    }
    println!("{cases} filters: {tally:?}");
    // What is never drawn proves nothing.
    let Tally { refused, idle, allowed, denied, told } = tally;
    for (part, least) in [(refused, 10), (idle, 20), (allowed, 5), (denied, 20), (told, 100)] {
        assert!(part > cases / least, "{tally:?}");
    }
}

/// AZ-2, AZ-3, AZ-4, AZ-5: whoever decides as an implementation in the field once did is found out.
#[test]
fn what_peers_decided_wrongly_is_found() {
    for defect in DEFECTS {
        let found = (0..20_000).any(|seed| run(seed, Some(defect), &mut Tally::default()).is_err());
        assert!(found, "{defect:?} is not found");
    }
}
