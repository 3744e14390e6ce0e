//! What chance says.

use mainstay_xds::Choose;

/// What was drawn for the question at this place stands, if it is the same question.
pub(super) fn once(draws: &mut Vec<(u64, u64)>, at: usize, bound: u64, chance: &mut dyn Choose) -> u64 {
    if draws.len() <= at {
        draws.resize(at + 1, (0, 0));
    }
    if draws[at].0 != bound {
        draws[at] = (bound, chance.choose(bound));
    }
    draws[at].1
}
