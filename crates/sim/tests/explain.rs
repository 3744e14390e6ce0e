//! What is told of decisions beside the decisions.

use mainstay_sim::policies::explained;

/// `EXPLAIN_CASES=100000 cargo test -p mainstay-sim --test explain` compares a hundred thousand.
#[test]
#[expect(clippy::disallowed_methods, reason = "how much is run is up to whoever runs it")]
fn what_is_explained_is_what_is_done() {
    let cases: usize = std::env::var("EXPLAIN_CASES").map_or(10_000, |cases| cases.parse().unwrap());
    let (mut compared, mut seed) = (0, 0);
    while compared < cases {
        match explained::run(seed) {
            Ok(decisions) => compared += decisions,
            Err(failure) => panic!("OP-3: {failure}"),
        }
        seed += 1;
    }
    println!("{compared} decisions of {seed} seeds");
}
