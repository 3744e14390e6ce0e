//! Which mutants to look at, if not at all.

use std::collections::BTreeMap;

use xxhash_rust::xxh64::xxh64;

use crate::mutant::Mutant;

/// Numbers of all mutants in the order of a seed: of the first so many, each file has its share.
pub(crate) fn order(all: &[Mutant], seed: u64) -> Vec<u32> {
    let mut by_file: BTreeMap<&str, Vec<(u64, u32)>> = BTreeMap::new();
    for (number, mutant) in all.iter().enumerate() {
        let number = u32::try_from(number).expect("not that many mutants");
        by_file.entry(&mutant.file).or_default().push((mutant.rank(seed), number));
    }
    let mut placed = Vec::new();
    for (file, mut numbers) in by_file {
        numbers.sort_unstable();
        let first = xxh64(file.as_bytes(), seed) as f64 / u64::MAX as f64;
        let count = numbers.len() as f64;
        placed.extend(
            numbers.into_iter().enumerate().map(|(index, (_, number))| ((index as f64 + first) / count, number)),
        );
    }
    placed.sort_by(|(a, x), (b, y)| a.total_cmp(b).then(x.cmp(y)));
    placed.into_iter().map(|(_, number)| number).collect()
}
