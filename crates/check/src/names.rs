//! Names: the same one twice, and nearly the same.

use std::collections::BTreeMap;

use mainstay_xds::resource::ResourceType;

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::{Body, Item};
use crate::set::{Set, canonical};

/// MS602: `?a=1&b=2` and `?b=2&a=1` are one name to clients.
pub(crate) fn check(set: &Set<'_>, findings: &mut Findings) {
    let mut taken: BTreeMap<(ResourceType, String), &Item> = BTreeMap::new();
    for item in set.items.iter().filter(|item| matches!(item.body, Body::Message(_))) {
        let Some(resource_type) = ResourceType::from_type_url(&item.message_name) else { continue };
        let first = *taken.entry((resource_type, canonical(resource_type, &item.name))).or_insert(item);
        if first.name != item.name {
            let message = format!(
                "clients take {:?} and {:?} for the same name and reject the response: \
                 context parameters have no order",
                item.name, first.name
            );
            findings.add(Id::MS602, item, "name", message);
        }
    }
}

/// The candidate that somebody may have meant.
pub(crate) fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    // Long names may differ by more than short ones.
    let bound = 1 + name.chars().count() / 5;
    let near = candidates.map(|candidate| (distance(name, candidate), candidate));
    near.filter(|(distance, _)| *distance <= bound).min().map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed, replaced or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > MOST_DIFFERENT {
        return usize::MAX;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let differs = usize::from(one[i - 1] != other[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + differs);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

const MOST_DIFFERENT: usize = 8;

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn what_is_nearly_the_same_is_found_and_what_is_not_is_not() {
        let known = ["xds_servers", "node", "authorities"];
        assert_eq!(nearest("xds_server", known.into_iter()), Some("xds_servers"));
        assert_eq!(nearest("ndoe", known.into_iter()), Some("node"));
        assert_eq!(nearest("authoritys", known.into_iter()), Some("authorities"));
        assert_eq!(nearest("metadata", known.into_iter()), None);
    }
}
