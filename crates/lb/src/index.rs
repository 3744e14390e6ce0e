//! Finds places in a list by what the list holds there.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

/// An index over a list that its owner keeps. It has places only, a few bytes for each.
///
/// Nobody can walk over it: the order inside differs from run to run, and must not decide anything. It says nothing
/// that the list does not say, so any two are equal.
#[derive(Clone, Default)]
pub(crate) struct Index {
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { places: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// Makes room for so many more; `key_at` says what is at a place.
    pub(crate) fn reserve<K: Hash>(&mut self, more: usize, key_at: impl Fn(u32) -> K) {
        self.places.reserve(more, |place| self.hasher.hash_one(key_at(*place)));
    }

    /// The place of `key`.
    pub(crate) fn find<K: Hash + Eq>(&self, key: &K, key_at: impl Fn(u32) -> K) -> Option<u32> {
        self.places.find(self.hasher.hash_one(key), |place| key_at(*place) == *key).copied()
    }

    /// The place of `key`, which is `place` from now on if it had none.
    pub(crate) fn find_or_insert<K: Hash + Eq>(&mut self, key: &K, place: u32, key_at: impl Fn(u32) -> K) -> u32 {
        let hash = |place: &u32| self.hasher.hash_one(key_at(*place));
        let entry = self.places.entry(self.hasher.hash_one(key), |place| key_at(*place) == *key, hash);
        *entry.or_insert(place).get()
    }

    /// Forgets a place, which has or had this key.
    pub(crate) fn remove<K: Hash>(&mut self, key: &K, place: u32) {
        if let Ok(entry) = self.places.find_entry(self.hasher.hash_one(key), |known| *known == place) {
            entry.remove();
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.places.len())
    }
}

impl PartialEq for Index {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Index {}

impl Hash for Index {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_until_it_is_removed() {
        let list: Vec<String> = (0..1_000).map(|n| format!("key {n}")).collect();
        let key_at = |place: u32| list[place as usize].as_str();
        let mut index = Index::with_capacity(1);
        for (place, key) in (0..).zip(&list) {
            assert_eq!(index.find(&key.as_str(), key_at), None);
            assert_eq!(index.find_or_insert(&key.as_str(), place, key_at), place);
            assert_eq!(index.find_or_insert(&key.as_str(), 1_000, key_at), place);
        }
        for (place, key) in (0..).zip(&list).step_by(2) {
            index.remove(&key.as_str(), place);
        }
        for (place, key) in (0..).zip(&list) {
            assert_eq!(index.find(&key.as_str(), key_at), (place % 2 == 1).then_some(place));
        }
    }
}
