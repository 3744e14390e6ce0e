//! Random lives of the tree of policies beside its naive reference.

use mainstay_sim::policies;

#[test]
fn the_tree_of_policies_does_what_the_plain_rules_say() {
    for seed in 0..2 * policies::SEEDS {
        if let Err(failure) = policies::run(seed) {
            panic!("{failure}");
        }
    }
}
