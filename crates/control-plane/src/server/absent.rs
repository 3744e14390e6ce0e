//! What clients ask for and is not here: said once per name, with what may have been meant.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::event::lock;
use crate::type_url::TypeUrl;
use crate::view::TypeView;

/// The names that were spoken of.
#[derive(Debug, Default)]
pub(super) struct Absent(Mutex<BTreeSet<(TypeUrl, String)>>);

impl Absent {
    /// A node asks for something that is not among `content`.
    pub(super) fn note(&self, node_id: &str, type_url: &TypeUrl, name: &str, content: Option<&TypeView>) {
        let mut spoken_of = lock(&self.0);
        if spoken_of.len() >= MAX_NAMES || !spoken_of.insert((type_url.clone(), name.to_owned())) {
            return;
        }
        drop(spoken_of);
        let names = content.into_iter().flat_map(|content| content.resources.keys());
        tracing::warn!("{}", describe(node_id, type_url, name, names.map(String::as_str)));
    }
}

fn describe<'a>(node_id: &str, type_url: &TypeUrl, name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let kind = type_url.message_name().rsplit('.').next().unwrap_or_default();
    let mut text = format!("node {node_id:?} asks for {kind} {name:?}, which is not here");
    if let Some(close) = closest(name, names) {
        text.push_str(&format!("; did you mean {close:?}?"));
    }
    text
}

/// The name that a slip of the fingers away is.
fn closest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let tolerance = 1 + wanted.chars().count() / 5;
    let similar = |name: &&str| name.len().abs_diff(wanted.len()) <= 4 * tolerance; // Four bytes a character at most.
    let distances = names.filter(similar).take(MAX_COMPARED).map(|name| (distance(wanted, name), name));
    distances.filter(|(distance, _)| *distance <= tolerance).min().map(|(_, name)| name)
}

/// How many characters must be put in, taken out or replaced to make one name of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// Clients choose these names, so there is a bound.
const MAX_NAMES: usize = 10_000;
const MAX_COMPARED: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_recognized() {
        let say = |name, names: &[&'static str]| describe("web-1", &TypeUrl::LISTENER, name, names.iter().copied());
        assert_eq!(
            say("stok", &["orders", "stock"]),
            "node \"web-1\" asks for Listener \"stok\", which is not here; did you mean \"stock\"?"
        );
        assert_eq!(say("stok", &["orders"]), "node \"web-1\" asks for Listener \"stok\", which is not here");
        assert_eq!(say("stok", &[]), "node \"web-1\" asks for Listener \"stok\", which is not here");
    }

    #[test]
    fn the_distance_of_names_counts_edits() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("größe", "grosse", 3),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn each_name_is_spoken_of_once() {
        let absent = Absent::default();
        absent.note("n", &TypeUrl::LISTENER, "a", None);
        absent.note("m", &TypeUrl::LISTENER, "a", None);
        absent.note("n", &TypeUrl::CLUSTER, "a", None);
        assert_eq!(lock(&absent.0).len(), 2);
    }
}
