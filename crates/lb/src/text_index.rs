//! Finds positions in a list by a text, or by what a text starts with.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Texts in order, each with positions. Those that are prefixes of one another are linked.
///
/// Paths and names of one system start alike, so the part that all have in common is compared once, and the eight bytes
/// after it as a number; the rest only where those are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TextIndex {
    any_case: bool,
    /// Keys of at most one byte: with these among the others there is nothing in common.
    short: Box<[Key]>,
    /// How many bytes all of `keys` have in common.
    common: usize,
    /// The eight bytes after those, of each of `keys`.
    words: Box<[u64]>,
    keys: Box<[Key]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    text: Box<[u8]>,
    /// The longest other key that this one starts with.
    parent: Option<u32>,
    positions: Box<[u32]>,
}

impl TextIndex {
    /// An index of texts, which are in lower case if those that are looked up may be in any.
    pub(crate) fn new(any_case: bool, by_text: BTreeMap<Box<[u8]>, Vec<u32>>) -> Self {
        let (mut short, mut keys): (Vec<Key>, Vec<Key>) = (Vec::new(), Vec::with_capacity(by_text.len()));
        for (text, positions) in by_text {
            let positions = positions.into();
            if text.len() <= 1 {
                short.push(Key { text, parent: None, positions });
                continue;
            }
            // In this order, what `text` starts with is the key before it or one of that key's parents.
            let mut parent = keys.len().checked_sub(1).map(|last| last as u32);
            while let Some(at) = parent
                && !text.starts_with(&keys[at as usize].text)
            {
                parent = keys[at as usize].parent;
            }
            keys.push(Key { text, parent, positions });
        }
        let common = match (keys.first(), keys.last()) {
            (Some(first), Some(last)) => first.text.iter().zip(&last.text).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let words = keys.iter().map(|key| word(&key.text[common..], false)).collect();
        Self { any_case, short: short.into(), common, words, keys: keys.into() }
    }

    /// The positions of `text`.
    pub(crate) fn equal(&self, text: &[u8]) -> Option<&[u32]> {
        let last = self.last_not_after(text).and_then(|at| self.keys.get(at));
        let mut candidates = last.into_iter().chain(&*self.short);
        let found = candidates.find(|key| key.text.len() == text.len() && self.starts_with(text, &key.text));
        found.map(|key| &*key.positions)
    }

    /// The positions of each text that `text` starts with.
    ///
    /// Each of them is the last key that is not after `text`, or one of its parents: whatever stands between a prefix and
    /// the text in order starts with that prefix, too.
    pub(crate) fn prefixes(&self, text: &[u8]) -> impl Iterator<Item = &[u32]> {
        let mut at = self.last_not_after(text);
        let chain = std::iter::from_fn(move || {
            let key = self.keys.get(at?)?;
            at = key.parent.map(|parent| parent as usize);
            Some(key)
        });
        let found = chain.chain(&*self.short).filter(move |key| self.starts_with(text, &key.text));
        found.map(|key| &*key.positions)
    }

    /// The index of the last key that is not after `text`; `None` also if no key can match it.
    fn last_not_after(&self, text: &[u8]) -> Option<usize> {
        let first = self.keys.first()?;
        let (start, rest) = text.split_at_checked(self.common)?;
        if !same(start, &first.text[..self.common], self.any_case) {
            return None;
        }
        let word = word(rest, self.any_case);
        let from = self.words.partition_point(|key| *key < word);
        if self.words.get(from) != Some(&word) {
            return from.checked_sub(1); // Mostly: the number decides.
        }
        let to = from + self.words[from..].partition_point(|key| *key == word);
        let is_after = |key: &Key| self.compare(&key.text, text) == Ordering::Greater;
        let after = from + self.keys[from..to].partition_point(|key| !is_after(key));
        after.checked_sub(1)
    }

    fn compare(&self, key: &[u8], text: &[u8]) -> Ordering {
        if self.any_case { key.iter().copied().cmp(text.iter().map(u8::to_ascii_lowercase)) } else { key.cmp(text) }
    }

    fn starts_with(&self, text: &[u8], key: &[u8]) -> bool {
        text.get(..key.len()).is_some_and(|start| same(start, key, self.any_case))
    }
}

fn same(a: &[u8], b: &[u8], any_case: bool) -> bool {
    if any_case { a.eq_ignore_ascii_case(b) } else { a == b }
}

/// The first eight bytes as a number that orders like the text; what is missing counts as zero.
fn word(text: &[u8], any_case: bool) -> u64 {
    let mut bytes = [0; 8];
    let len = text.len().min(8);
    bytes[..len].copy_from_slice(&text[..len]);
    if any_case {
        bytes.make_ascii_lowercase();
    }
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_what_a_search_through_all_texts_finds() {
        let texts = ["", "/", "a", "ab", "abc", "abc\0", "abcdefgh", "abcdefghi", "abcdefghij", "abd", "b/", "\u{e4}b"];
        let sought =
            ["", "/", "/a", "A", "ABC", "abc\0d", "abcdefghi", "abcdefghijk", "abcdefgi", "abdx", "b", "\u{e4}bc"];
        // Every subset: what texts have in common decides how they are looked for.
        for subset in 0..1_u32 << texts.len() {
            let has = |at: &u32| subset & (1 << at) != 0;
            let text = |at: u32| texts[at as usize].as_bytes();
            let kept: Vec<u32> = (0..texts.len() as u32).filter(has).collect();
            for any_case in [false, true] {
                let by_text = kept.iter().map(|at| (text(*at).into(), vec![*at])).collect();
                let index = TextIndex::new(any_case, by_text);
                for sought in sought.map(str::as_bytes) {
                    let starts =
                        |at: &&u32| sought.get(..text(**at).len()).is_some_and(|s| same(s, text(**at), any_case));
                    let mut found: Vec<u32> = index.prefixes(sought).flatten().copied().collect();
                    found.sort_unstable();
                    assert!(found.iter().eq(kept.iter().filter(starts)), "{sought:?} in {kept:?}");
                    let equal = kept.iter().filter(starts).find(|at| text(**at).len() == sought.len());
                    assert_eq!(index.equal(sought), equal.map(std::slice::from_ref), "{sought:?} in {kept:?}");
                }
            }
        }
    }
}
