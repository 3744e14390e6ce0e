//! Numbers of priorities that stay with their localities across updates (A56, L-59).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstay_xds::resource::endpoint::Locality;

use crate::endpoint::LocalityConfig;

/// The numbers of the last update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ChildNames {
    /// Which child each locality was in.
    numbers: BTreeMap<Arc<Locality>, u32>,
    /// The first number that was never used.
    next: u32,
}

impl ChildNames {
    /// A number for each priority, in order.
    pub(crate) fn assign(&mut self, priorities: &[Vec<Arc<LocalityConfig>>]) -> Vec<u32> {
        let mut reusable = std::mem::take(&mut self.numbers);
        let mut assigned = Vec::with_capacity(priorities.len());
        for localities in priorities {
            let names: BTreeSet<&Arc<Locality>> = localities.iter().map(|l| &l.locality).collect();
            let number = match names.iter().find_map(|name| reusable.get(*name).copied()) {
                Some(number) => {
                    // Neither the other localities that were in this child nor those that are in it now
                    // may give a number to a later priority.
                    reusable.retain(|name, old| *old != number && !names.contains(name));
                    number
                }
                None => {
                    self.next += 1;
                    self.next - 1
                }
            };
            assigned.push(number);
            self.numbers.extend(names.into_iter().map(|name| (Arc::clone(name), number)));
        }
        assigned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_update_counts_from_zero() {
        assert_eq!(numbers(&["a b|c d"]), [[0, 1]], "L-59, InitialUpdate");
    }

    #[test]
    fn a_priority_of_new_localities_gets_a_new_number() {
        assert_eq!(numbers(&["a b|c d", "a b|e f"]), [[0, 1], [0, 2]], "L-59, UpdateNewChildNumber");
    }

    #[test]
    fn swapped_priorities_swap_numbers() {
        assert_eq!(numbers(&["a b|c d", "c d|a b"]), [[0, 1], [1, 0]], "L-59, UpdateReusesChildNumbers");
    }

    #[test]
    fn a_locality_that_moves_and_comes_back_changes_no_number() {
        let steps = ["a b|c d", "a b c|d", "a b|c d"];
        assert_eq!(numbers(&steps), [[0, 1], [0, 1], [0, 1]], "L-59, LocalityMovingBetweenPriorities");
    }

    #[test]
    fn the_first_locality_in_order_decides() {
        let steps = ["bb cc|aa dd", "aa bb cc|dd"];
        assert_eq!(numbers(&steps), [[0, 1], [1, 2]], "L-59, LocalityMovingBetweenPrioritiesSuboptimal");
    }

    #[test]
    fn the_example_of_the_rule() {
        assert_eq!(numbers(&["a b|c d", "c|d e", "a b|c d"]), [[0, 1], [1, 2], [3, 1]], "L-59");
    }

    #[test]
    fn merged_priorities_keep_one_number_and_a_split_makes_a_new_one() {
        assert_eq!(numbers(&["a|b", "a b", "a|b"]), [vec![0, 1], vec![0], vec![0, 2]], "L-59");
    }

    fn numbers(steps: &[&str]) -> Vec<Vec<u32>> {
        let mut names = ChildNames::default();
        steps.iter().map(|step| names.assign(&priorities(step))).collect()
    }

    fn priorities(text: &str) -> Vec<Vec<Arc<LocalityConfig>>> {
        let locality = |zone: &str| LocalityConfig {
            locality: Arc::new(Locality { zone: zone.into(), ..Locality::default() }),
            origin: Arc::default(),
            weight: 1,
            endpoints: Arc::default(),
            http_connect: None,
            tls: None,
        };
        text.split('|').map(|localities| localities.split(' ').map(locality).map(Arc::new).collect()).collect()
    }
}
