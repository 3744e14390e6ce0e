//! Finds positions in a list by what the list holds there.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

/// An index over a list that its owner keeps. It has positions only, a few bytes for each.
///
/// Nobody can walk over it: the order inside differs from run to run, and must not decide anything. It says nothing
/// that the list does not say, so any two are equal.
#[derive(Clone, Default)]
pub(crate) struct Index {
    positions: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { positions: HashTable::with_capacity(capacity), hasher: DefaultHashBuilder::default() }
    }

    /// Makes room for so many more; `key_at` says what is at a position.
    pub(crate) fn reserve<K: Hash>(&mut self, more: usize, key_at: impl Fn(u32) -> K) {
        self.positions.reserve(more, |position| self.hasher.hash_one(key_at(*position)));
    }

    /// The position of `key`.
    pub(crate) fn find<K: Hash + Eq>(&self, key: &K, key_at: impl Fn(u32) -> K) -> Option<u32> {
        self.positions.find(self.hasher.hash_one(key), |position| key_at(*position) == *key).copied()
    }

    /// The position of `key`, which is `position` from now on if it had none.
    pub(crate) fn find_or_insert<K: Hash + Eq>(&mut self, key: &K, position: u32, key_at: impl Fn(u32) -> K) -> u32 {
        let hash = |position: &u32| self.hasher.hash_one(key_at(*position));
        let entry = self.positions.entry(self.hasher.hash_one(key), |position| key_at(*position) == *key, hash);
        *entry.or_insert(position).get()
    }

    /// Forgets a position, which has or had this key.
    pub(crate) fn remove<K: Hash>(&mut self, key: &K, position: u32) {
        if let Ok(entry) = self.positions.find_entry(self.hasher.hash_one(key), |known| *known == position) {
            entry.remove();
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.positions.len())
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
        let key_at = |position: u32| list[position as usize].as_str();
        let mut index = Index::with_capacity(1);
        for (position, key) in (0..).zip(&list) {
            assert_eq!(index.find(&key.as_str(), key_at), None);
            assert_eq!(index.find_or_insert(&key.as_str(), position, key_at), position);
            assert_eq!(index.find_or_insert(&key.as_str(), 1_000, key_at), position);
        }
        for (position, key) in (0..).zip(&list).step_by(2) {
            index.remove(&key.as_str(), position);
        }
        for (position, key) in (0..).zip(&list) {
            assert_eq!(index.find(&key.as_str(), key_at), (position % 2 == 1).then_some(position));
        }
    }
}
