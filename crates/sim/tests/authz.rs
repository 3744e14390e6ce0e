//! Random authorization filters and RPCs beside the naive reference.

use mainstay_sim::authz::{Tally, run};

/// `AUTHZ_CASES=1000000 cargo test -p mainstay-sim --test authz` runs a million.
#[test]
#[expect(clippy::disallowed_methods, reason = "how much is run is up to whoever runs it")]
fn az1_decisions_are_those_of_the_naive_reference() {
    let cases = std::env::var("AUTHZ_CASES").map_or(20_000, |cases| cases.parse().unwrap());
    let mut tally = Tally::default();
    for seed in 0..cases {
        run(seed, &mut tally).unwrap_or_else(|difference| panic!("{difference}"));
    }
    println!("{cases} filters: {tally:?}");
    // What is never drawn proves nothing.
    let Tally { refused, idle, allowed, denied, told } = tally;
    for (part, least) in [(refused, 10), (idle, 20), (allowed, 5), (denied, 20), (told, 100)] {
        assert!(part > cases / least, "{tally:?}");
    }
}
