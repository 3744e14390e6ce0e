//! The endpoints of a policy as its pickers have them.
//!
//! A cluster may have ten thousand endpoints, of which one is lost. So pickers hold them in runs, and the next picker
//! shares the runs in which nothing has changed since the one before.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What a picker has of each endpoint, in the order of the configuration. Endpoints of which it has nothing are left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runs<T> {
    runs: Box<[Arc<Run<T>>]>,
    /// How many entries there are up to the end of each run.
    ends: Box<[u32]>,
}

/// Some of them, one after the other.
#[derive(Clone, Debug)]
struct Run<T> {
    made_of: MadeOf,
    entries: Box<[T]>,
}

/// What a run was made of: a policy, which is never another one, and which state of the run it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeOf {
    pub(crate) policy: u64,
    pub(crate) state: u64,
}

/// How many endpoints a run is of. A change makes one run and takes a pointer to each of the others: for ten thousand
/// endpoints that is least for about a hundred.
pub(crate) const RUN: usize = 64;

impl<T> Runs<T> {
    /// One run for each of `made_of`, by its index: that of the picker before, or a new one.
    pub(crate) fn new(
        before: Option<&Self>,
        made_of: impl Iterator<Item = MadeOf>,
        make: impl Fn(usize) -> Box<[T]>,
    ) -> Self {
        let run = |(index, made_of): (usize, MadeOf)| {
            let known =
                before.and_then(|before| before.runs.get(index)).filter(|run: &&Arc<Run<T>>| run.made_of == made_of);
            known.cloned().unwrap_or_else(|| {
                let entries = make(index);
                count(entries.len());
                Arc::new(Run { made_of, entries })
            })
        };
        let runs: Box<[Arc<Run<T>>]> = made_of.enumerate().map(run).collect();
        let mut end = 0;
        let ends = runs.iter().map(|run| {
            end += run.entries.len() as u32;
            end
        });
        Self { ends: ends.collect(), runs }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let (run, at) = self.find(index);
        self.runs.get(run)?.entries.get(at)
    }

    /// All of them in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.runs.iter().flat_map(|run| run.entries.iter())
    }

    /// All of them, the one at `index` first and the one before it last.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &T> {
        let (run, at) = self.find(index);
        let (before, after) = self.runs.split_at(run.min(self.runs.len()));
        let (first, after) = after.split_first().map_or((&[][..], after), |(first, rest)| (&*first.entries, rest));
        let (end, begin) = first.split_at(at.min(first.len()));
        let between = after.iter().chain(before).flat_map(|run| run.entries.iter());
        begin.iter().chain(between).chain(end)
    }

    /// The run of an index, and where it is in there.
    fn find(&self, index: usize) -> (usize, usize) {
        let start =
            |run: usize| run.checked_sub(1).map_or(0, |before| self.ends.get(before).map_or(0, |e| *e as usize));
        // Mostly all endpoints are there.
        let likely = index / RUN;
        let is_in = |run: usize| self.ends.get(run).is_some_and(|end| start(run) <= index && index < *end as usize);
        let run = if is_in(likely) { likely } else { self.ends.partition_point(|end| *end as usize <= index) };
        (run, index - start(run).min(index))
    }
}

impl<T: PartialEq> PartialEq for Run<T> {
    /// What it was made of decides nothing.
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl<T: Eq> Eq for Run<T> {}

impl<T: Hash> Hash for Run<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}

/// Counts entries of pickers and snapshots that are made.
#[cfg(not(test))]
pub(crate) fn count(_: usize) {}

#[cfg(test)]
pub(crate) use tests::{count, entries_made};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static MADE: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn count(entries: usize) {
        MADE.set(MADE.get() + entries);
    }

    /// How many entries this thread has made.
    pub(crate) fn entries_made() -> usize {
        MADE.get()
    }

    #[test]
    fn entries_are_found_however_many_are_left_out_of_each_run() {
        let lengths = [64, 0, 3, 64, 1];
        let made_of = (0..5).map(|state| MadeOf { policy: 1, state });
        let first = |run: usize| lengths[..run].iter().sum::<usize>();
        let runs = Runs::new(None, made_of, |run| (first(run)..first(run) + lengths[run]).collect());
        assert_eq!(runs.len(), 132);
        assert!(runs.iter().copied().eq(0..132));
        for index in 0..132 {
            assert_eq!(runs.get(index), Some(&index));
            assert!(runs.from(index).copied().eq((index..132).chain(0..index)), "from {index}");
        }
        assert_eq!((runs.get(132), runs.from(132).count()), (None, 132));
        let none: Runs<u8> = Runs::new(None, std::iter::empty(), |_| Box::default());
        assert_eq!((none.len(), none.get(0), none.from(0).count()), (0, None, 0));
    }

    #[test]
    fn a_run_is_shared_until_its_policy_says_that_it_is_another() {
        let of = |policy, states: [u64; 3]| states.map(|state| MadeOf { policy, state }).into_iter();
        let make = |_: usize| Box::from([(); 2]);
        let before = Runs::new(None, of(1, [1, 2, 3]), make);
        let start = entries_made();
        let after = Runs::new(Some(&before), of(1, [1, 4, 3]), make);
        assert_eq!(entries_made() - start, 2, "one run");
        assert_eq!(before, after, "the entries are the same");
        Runs::new(Some(&before), of(2, [1, 2, 3]), make);
        assert_eq!(entries_made() - start, 2 + 6, "nothing is taken from another policy");
    }
}
