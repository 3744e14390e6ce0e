//! Collections that share what did not change with the ones that they were made of.
//!
//! A configuration, and the snapshot that RPCs use, is a value that never changes; the next one differs in a cluster or
//! two. So these are cut into chunks that any number of them may hold. Making a copy costs one pointer per chunk, a change
//! the entries of one chunk, and where two are compared, chunks that both hold are not looked into.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter;
use std::ops::Index;
use std::sync::Arc;

/// A map in the order of its keys.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// None of them empty. Where one ends and the next begins depends on the past, and means nothing.
    chunks: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

/// A list of which single entries are replaced.
#[derive(Clone, Debug)]
pub struct SharedList<T> {
    /// All but the last have [`CHUNK`] entries.
    chunks: Vec<Arc<Vec<T>>>,
}

/// How two maps differ in one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// What the first of them has.
    pub old: Option<&'a V>,
    /// What the second has.
    pub new: Option<&'a V>,
}

// === impl SharedMap ===

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = self.find(key).ok()?;
        Some(&self.chunks[chunk][at].1)
    }

    /// The value of a key, with the key as it is here.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = self.find(key).ok()?;
        let (key, value) = &self.chunks[chunk][at];
        Some((key, value))
    }

    /// Whether there is such a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Puts a value in place of the one that the key had, which is the answer.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok((chunk, at)) => {
                let chunk = Arc::make_mut(&mut self.chunks[chunk]);
                Some(std::mem::replace(&mut chunk[at].1, value))
            }
            Err((chunk, at)) => {
                self.len += 1;
                if chunk == self.chunks.len() {
                    self.chunks.push(Arc::new(Vec::new()));
                }
                let entries = Arc::make_mut(&mut self.chunks[chunk]);
                entries.insert(at, (key, value));
                if entries.len() > CHUNK {
                    // What is put in in order fills its chunks; else there is room in both halves.
                    let from = if at == CHUNK { CHUNK } else { CHUNK / 2 };
                    let rest = entries.split_off(from);
                    entries.shrink_to_fit(); // It may stay as it is for long.
                    self.chunks.insert(chunk + 1, Arc::new(rest));
                }
                None
            }
        }
    }

    /// Takes a key and its value out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = self.find(key).ok()?;
        self.len -= 1;
        let entries = Arc::make_mut(&mut self.chunks[chunk]);
        let (_, value) = entries.remove(at);
        if entries.is_empty() {
            self.chunks.remove(chunk);
        } else if let Some(next) = self.chunks.get(chunk + 1)
            && self.chunks[chunk].len() + next.len() <= CHUNK / 2
        {
            let next = self.chunks.remove(chunk + 1);
            Arc::make_mut(&mut self.chunks[chunk]).extend(next.iter().cloned());
        }
        Some(value)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// The keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Keeps only the entries of which that is said.
    pub fn retain(&mut self, mut stays: impl FnMut(&K, &V) -> bool) {
        *self = self.iter().filter(|(key, value)| stays(key, value)).map(|(k, v)| (k.clone(), v.clone())).collect();
    }

    /// Chunk and index of a key; if it is not there, where it would be.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<(usize, usize), (usize, usize)>
    where
        K: Borrow<Q>,
    {
        let after = self.chunks.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| first.borrow() <= key));
        let chunk = after.saturating_sub(1);
        let Some(entries) = self.chunks.get(chunk) else { return Err((chunk, 0)) };
        match entries.binary_search_by(|(other, _)| other.borrow().cmp(key)) {
            Ok(at) => Ok((chunk, at)),
            Err(at) => Err((chunk, at)),
        }
    }
}

impl<K: Ord, V: PartialEq> SharedMap<K, V> {
    /// Where `new` differs, in the order of the keys.
    pub fn differences<'a>(&'a self, new: &'a Self) -> impl Iterator<Item = Difference<'a, K, V>> {
        let (mut old, mut new) = (Cursor::new(&self.chunks), Cursor::new(&new.chunks));
        iter::from_fn(move || {
            loop {
                old.skip_shared(&mut new);
                let (key, before, after) = match (old.get(), new.get()) {
                    (None, None) => return None,
                    (Some((key, before)), Some((other, after))) if key == other => (key, Some(before), Some(after)),
                    (Some((key, before)), other) if other.is_none_or(|(other, _)| key < other) => {
                        (key, Some(before), None)
                    }
                    (_, Some((key, after))) => (key, None, Some(after)),
                    (Some((key, before)), None) => (key, Some(before), None),
                };
                count(1);
                if before.is_some() {
                    old.advance();
                }
                if after.is_some() {
                    new.advance();
                }
                if before != after {
                    return Some(Difference { key, old: before, new: after });
                }
            }
        })
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.differences(other).next().is_none()
    }
}

impl<K: Ord, V: Eq> Eq for SharedMap<K, V> {}

impl<K: Hash, V: Hash> Hash for SharedMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.chunks.iter().flat_map(|chunk| chunk.iter()).for_each(|entry| entry.hash(state));
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(k, v)| (k, v))).finish()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        // In order, so that chunks are full.
        for (key, value) in entries.into_iter().collect::<BTreeMap<_, _>>() {
            map.insert(key, value);
        }
        map
    }
}

impl<Q: Ord + ?Sized, K: Ord + Clone + Borrow<Q>, V: Clone> Index<&Q> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry for this key")
    }
}

/// A place in a map.
struct Cursor<'a, K, V> {
    chunks: &'a [Arc<Vec<(K, V)>>],
    at: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    fn new(chunks: &'a [Arc<Vec<(K, V)>>]) -> Self {
        Self { chunks, at: 0 }
    }

    fn get(&self) -> Option<(&'a K, &'a V)> {
        let (key, value) = self.chunks.first()?.get(self.at)?;
        Some((key, value))
    }

    fn advance(&mut self) {
        self.at += 1;
        if let Some((first, rest)) = self.chunks.split_first()
            && self.at == first.len()
        {
            (self.chunks, self.at) = (rest, 0);
        }
    }

    /// Leaves out the chunks that both hold here.
    fn skip_shared(&mut self, other: &mut Self) {
        while let (0, 0, Some((mine, rest)), Some((theirs, others))) =
            (self.at, other.at, self.chunks.split_first(), other.chunks.split_first())
            && Arc::ptr_eq(mine, theirs)
        {
            (self.chunks, other.chunks) = (rest, others);
        }
    }
}

// === impl SharedList ===

impl<T> SharedList<T> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The entry at an index.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

impl<T: Clone> SharedList<T> {
    /// The entry at an index, to be changed in this list only.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        Arc::make_mut(self.chunks.get_mut(index / CHUNK)?).get_mut(index % CHUNK)
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T: PartialEq> PartialEq for SharedList<T> {
    fn eq(&self, other: &Self) -> bool {
        let are_same = |(one, other): (&Arc<Vec<T>>, &Arc<Vec<T>>)| Arc::ptr_eq(one, other) || one == other;
        self.chunks.len() == other.chunks.len() && self.chunks.iter().zip(&other.chunks).all(are_same)
    }
}

impl<T: Eq> Eq for SharedList<T> {}

impl<T: Hash> Hash for SharedList<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.chunks.hash(state);
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut entries = entries.into_iter().peekable();
        let next = || entries.peek().is_some().then(|| Arc::new(entries.by_ref().take(CHUNK).collect()));
        Self { chunks: iter::from_fn(next).collect() }
    }
}

/// How many entries a chunk has at most. A change copies one chunk and the pointers to all of them: with 10,000 entries
/// that is least for about a hundred.
const CHUNK: usize = 64;

/// Counts entries that are compared.
#[cfg(not(test))]
fn count(_: usize) {}

#[cfg(test)]
use tests::count;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count(entries: usize) {
        COMPARED.set(COMPARED.get() + entries);
    }

    fn numbers(count: u32) -> SharedMap<u32, u32> {
        (0..count).map(|n| (n, n)).collect()
    }

    #[test]
    fn one_change_of_ten_thousand_is_found_in_one_chunk() {
        let before = numbers(10_000);
        let mut after = before.clone();
        after.insert(5_000, 0);
        after.remove(&7_000);
        COMPARED.set(0);
        let found: Vec<_> = before.differences(&after).map(|found| (*found.key, found.new.copied())).collect();
        assert_eq!(found, [(5_000, Some(0)), (7_000, None)]);
        assert!(COMPARED.get() <= 2 * CHUNK, "{} entries were compared", COMPARED.get());
        assert!(before != after && before == before.clone());
        assert!(COMPARED.get() <= 3 * CHUNK, "{} entries were compared", COMPARED.get());
    }

    #[test]
    fn maps_are_equal_however_they_came_to_be() {
        let (in_order, mut backwards) = (numbers(1_000), SharedMap::new());
        (0..1_000).rev().for_each(|n| assert_eq!(backwards.insert(n, n), None));
        assert_eq!(in_order, backwards);
        let hash = |map: &SharedMap<u32, u32>| {
            let mut hasher = std::hash::DefaultHasher::new();
            map.hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash(&in_order), hash(&backwards));
        backwards.retain(|n, _| *n != 1);
        assert_ne!(in_order, backwards);
    }

    #[test]
    fn a_list_replaces_one_entry_and_shares_the_others() {
        let before: SharedList<usize> = (0..1_000).collect();
        let mut after = before.clone();
        *after.get_mut(999).unwrap() = 0;
        assert_eq!((before.get(999), after.get(999), after.get(1_000)), (Some(&999), Some(&0), None));
        assert_eq!((before.len(), before.is_empty()), (1_000, false));
        assert!(before.iter().copied().eq(0..1_000));
        assert_eq!(before.chunks.iter().zip(&after.chunks).filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1);
        assert_ne!(before, after);
        assert_eq!((0..0).collect::<SharedList<usize>>(), SharedList::default());
    }

    proptest! {
        /// The map of the standard library is the reference.
        #[test]
        fn it_does_what_other_maps_do(steps in prop::collection::vec((0_u16..400, any::<bool>(), 0_u8..3), 0..1_500)) {
            let (mut ours, mut theirs) = (SharedMap::new(), BTreeMap::new());
            let (mut ours_before, mut theirs_before) = (ours.clone(), theirs.clone());
            for (at, (key, is_removal, value)) in steps.into_iter().enumerate() {
                if at % 97 == 0 {
                    (ours_before, theirs_before) = (ours.clone(), theirs.clone());
                }
                if is_removal {
                    prop_assert_eq!(ours.remove(&key), theirs.remove(&key));
                } else {
                    prop_assert_eq!(ours.insert(key, value), theirs.insert(key, value));
                }
                prop_assert_eq!(ours.get(&key), theirs.get(&key));
            }
            prop_assert!(ours.iter().eq(&theirs) && ours.keys().eq(theirs.keys()) && ours.values().eq(theirs.values()));
            prop_assert_eq!(ours.len(), theirs.len());
            prop_assert!(ours_before.iter().eq(&theirs_before), "an older one is as it was");
            let keys: std::collections::BTreeSet<_> = theirs_before.keys().chain(theirs.keys()).collect();
            let differ = keys.into_iter().filter(|key| theirs_before.get(key) != theirs.get(key));
            prop_assert!(ours_before.differences(&ours).map(|found| found.key).eq(differ));
        }
    }
}
