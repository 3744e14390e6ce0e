//! Names that clients ask for, and what a view has of them. All streams that ask for the same share both (FB-37): a
//! stream takes a few bytes for a thousand names, and to see what changed it compares numbers.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::version::{Hash, Version};

/// Names in their order, each once.
#[derive(Debug)]
pub(crate) struct Names {
    /// Of the names: sets with the same id are the same.
    id: Version,
    list: Box<[Box<str>]>,
}

impl Names {
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut list: Vec<&str> = names.into_iter().collect();
        list.sort_unstable();
        list.dedup();
        let mut hash = Hash::new();
        for name in &list {
            hash.part(name.as_bytes());
        }
        Self { id: hash.finish(), list: list.into_iter().map(Into::into).collect() }
    }

    pub(crate) fn id(&self) -> Version {
        self.id
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.list.iter().map(|name| &**name)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.list.binary_search_by(|known| (**known).cmp(name)).ok()
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::of([])
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// Which content of a resource.
pub(crate) type Stamp = NonZeroU64;

/// What has a stamp: a number that changes with its content, and is never used for two contents.
pub(crate) trait Stamped {
    fn stamp(&self) -> u64;
}

/// What there is of some names.
#[derive(Debug)]
pub(crate) struct Selection {
    names: Arc<Names>,
    /// For each of the names; `None` where there is nothing.
    stamps: Box<[Option<Stamp>]>,
}

impl Selection {
    pub(crate) fn of(names: Arc<Names>, resources: &BTreeMap<String, impl Stamped>) -> Self {
        let stamp = |name: &str| NonZeroU64::new(resources.get(name)?.stamp());
        let stamps = names.iter().map(stamp).collect();
        Self { names, stamps }
    }

    /// The same, and `more` beside it.
    pub(crate) fn with(&self, more: &BTreeMap<String, impl Stamped>) -> Self {
        let names = Names::of(self.here().map(|(_, name, _)| name).chain(more.keys().map(String::as_str)));
        let stamp =
            |name: &str| more.get(name).map_or_else(|| self.stamp(name), |entry| NonZeroU64::new(entry.stamp()));
        let stamps = names.iter().map(stamp).collect();
        Self { names: Arc::new(names), stamps }
    }

    /// What is left of it when only these names count; the same value if that is all.
    pub(crate) fn retain(self: Arc<Self>, counts: impl Fn(&str) -> bool) -> Arc<Self> {
        if self.here().all(|(_, name, _)| counts(name)) {
            return self;
        }
        let stamps = self.names.iter().zip(&self.stamps).map(|(name, stamp)| stamp.filter(|_| counts(name)));
        Arc::new(Self { stamps: stamps.collect(), names: Arc::clone(&self.names) })
    }

    pub(crate) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    pub(crate) fn stamp(&self, name: &str) -> Option<Stamp> {
        self.stamps[self.names.place(name)?]
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.stamp(name).is_some()
    }

    /// What there is: its place among the names, its name, and its stamp.
    pub(crate) fn here(&self) -> impl Iterator<Item = (usize, &str, Stamp)> {
        let all = self.names.iter().zip(&self.stamps).enumerate();
        all.filter_map(|(place, (name, stamp))| Some((place, name, (*stamp)?)))
    }

    /// The names of which there is nothing.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &str> {
        self.names.iter().zip(&self.stamps).filter(|(_, stamp)| stamp.is_none()).map(|(name, _)| name)
    }

    /// What is other here than it was before: the places of what is new or changed, and the names of what is gone.
    pub(crate) fn since<'a>(&self, before: Option<&'a Self>) -> (Vec<usize>, Vec<&'a str>) {
        let Some(before) = before else { return (self.here().map(|(place, ..)| place).collect(), Vec::new()) };
        if std::ptr::eq(self, before) {
            return Default::default();
        }
        if Arc::ptr_eq(&self.names, &before.names) {
            let pairs = || self.stamps.iter().zip(&before.stamps).enumerate();
            let new = pairs().filter(|(_, (now, before))| now.is_some() && now != before).map(|(place, _)| place);
            let gone = pairs().filter(|(_, (now, before))| now.is_none() && before.is_some());
            let gone = gone.filter_map(|(place, _)| before.names.list.get(place)).map(|name| &**name);
            return (new.collect(), gone.collect());
        }
        let new = self.here().filter(|(_, name, stamp)| before.stamp(name) != Some(*stamp)).map(|(place, ..)| place);
        let gone = before.here().map(|(_, name, _)| name).filter(|name| !self.has(name));
        (new.collect(), gone.collect())
    }
}

/// What a view of a type has of the names that streams asked for.
#[derive(Debug, Default)]
pub(crate) struct Selections(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    all: Option<Arc<Selection>>,
    by_names: BTreeMap<Version, Arc<Selection>>,
    /// How many names there are in all of them.
    count: usize,
}

impl Selections {
    /// What there is of these names.
    pub(crate) fn of(&self, names: &Arc<Names>, resources: &BTreeMap<String, impl Stamped>) -> Arc<Selection> {
        let known = self.lock().by_names.get(&names.id).map(Arc::clone);
        known.unwrap_or_else(|| {
            // Not under the lock: others want other names. Of two who make the same, the first is shared.
            let made = Arc::new(Selection::of(Arc::clone(names), resources));
            let mut known = self.lock();
            if known.count + names.list.len() > MAX_NAMES {
                *known = Known::default();
            }
            known.count += names.list.len();
            Arc::clone(known.by_names.entry(names.id).or_insert(made))
        })
    }

    /// Everything.
    pub(crate) fn all(&self, resources: &BTreeMap<String, impl Stamped>) -> Arc<Selection> {
        let mut known = self.lock();
        let make = || Arc::new(Selection::of(Arc::new(Names::of(resources.keys().map(String::as_str))), resources));
        Arc::clone(known.all.get_or_insert_with(make))
    }

    /// A poisoned lock only means that another thread panicked between two whole changes.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Selections {
    /// A copy of a view is made to be changed, so nothing of this applies to it.
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// They are kept as long as their view, and clients choose the names: so there is a bound.
const MAX_NAMES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    struct Content(u64);

    impl Stamped for Content {
        fn stamp(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn what_is_other_is_found_among_the_same_names_and_among_others() {
        let before = Selection::of(names(&["a", "b", "c", "x"]), &resources(&[("a", 1), ("b", 1), ("c", 1)]));
        let now = resources(&[("a", 1), ("b", 2), ("d", 2), ("x", 2)]);
        let same = Selection::of(Arc::clone(&before.names), &now);
        assert_eq!(same.since(Some(&before)), (vec![1, 3], vec!["c"]));
        let others = Selection::of(names(&["a", "b", "d"]), &now);
        assert_eq!(others.since(Some(&before)), (vec![1, 2], vec!["c"]));
        assert_eq!(others.since(None), (vec![0, 1, 2], vec![]));
        assert_eq!(others.since(Some(&others)), (vec![], vec![]));
        assert_eq!(before.missing().collect::<Vec<_>>(), ["x"]);
    }

    #[test]
    fn what_counts_no_more_is_gone_and_what_is_kept_stays() {
        let whole = Arc::new(Selection::of(names(&["a", "b", "c"]), &resources(&[("a", 1), ("b", 1)])));
        assert!(Arc::ptr_eq(&whole, &Arc::clone(&whole).retain(|name| name != "c")));
        let less = Arc::clone(&whole).retain(|name| name != "a");
        assert_eq!((less.has("a"), less.has("b")), (false, true));
        let more = less.with(&resources(&[("k", 7)]));
        assert_eq!(more.here().map(|(_, name, stamp)| (name, stamp.get())).collect::<Vec<_>>(), [("b", 1), ("k", 7)]);
    }

    #[test]
    fn streams_that_ask_for_the_same_share_it_and_what_is_kept_is_bounded() {
        let (selections, resources) = (Selections::default(), resources(&[("a", 1)]));
        let one = selections.of(&names(&["b", "a", "b"]), &resources);
        assert!(Arc::ptr_eq(&one, &selections.of(&names(&["a", "b"]), &resources)));
        assert!(Arc::ptr_eq(&selections.all(&resources), &selections.all(&resources)));
        selections.lock().count = MAX_NAMES;
        selections.of(&names(&["c"]), &resources);
        let known = selections.lock();
        assert_eq!((known.by_names.len(), known.count), (1, 1));
    }

    fn names(names: &[&str]) -> Arc<Names> {
        Arc::new(Names::of(names.iter().copied()))
    }

    fn resources(of: &[(&str, u64)]) -> BTreeMap<String, Content> {
        of.iter().map(|(name, stamp)| ((*name).to_owned(), Content(*stamp))).collect()
    }
}
