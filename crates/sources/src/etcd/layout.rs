//! Where a generation is in etcd, and in which transactions it gets there (FB-25).
//!
//! ```text
//! /mainstay/v1/SCOPE/current       which generation is in force: its number, how many resources it has, and their SHA-256
//! /mainstay/v1/SCOPE/last          the last number that was given to a publisher
//! /mainstay/v1/SCOPE/gen/N/KEY     the resources of generation N; keys are those of `entries`
//! /mainstay/v1/SCOPE/claims/N      generation N is being written, or its publisher has failed
//! /mainstay/v1/SCOPE/retired/N     since when generation N is not in force, in seconds since 1970
//! ```
//!
//! Nothing in `gen/N` changes once `current` has been N. So whoever sees N in `current` and then reads `gen/N` has it whole; that
//! the number of resources and the hash fit is checked all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::entries::Entries;

/// A name under which generations follow each other: several can live in one etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope(String);

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
        if text.is_empty() || !text.chars().all(allowed) {
            return Err(format!("{text:?} is no scope: letters, digits, \".\", \"_\" and \"-\" make one"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Scope {
    pub(crate) fn current(&self) -> String {
        self.key("current")
    }

    pub(crate) fn last(&self) -> String {
        self.key("last")
    }

    /// The beginning of all keys of resources of one generation.
    pub(crate) fn generation(&self, number: u64) -> String {
        self.key(&format!("gen/{number}/"))
    }

    pub(crate) fn claim(&self, number: u64) -> String {
        self.key(&format!("claims/{number}"))
    }

    pub(crate) fn claims(&self) -> String {
        self.key("claims/")
    }

    pub(crate) fn retired(&self, number: u64) -> String {
        self.key(&format!("retired/{number}"))
    }

    pub(crate) fn all_retired(&self) -> String {
        self.key("retired/")
    }

    fn key(&self, rest: &str) -> String {
        format!("/mainstay/v1/{}/{rest}", self.0)
    }
}

/// What `current` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The number of the generation. Later ones have higher numbers.
    pub generation: u64,
    /// How many entries it has.
    pub resources: u64,
    /// Their SHA-256, in hex.
    pub digest: String,
}

impl Manifest {
    pub(crate) fn new(generation: u64, entries: &Entries) -> Self {
        Self { generation, resources: entries.len() as u64, digest: entries.digest() }
    }

    /// Whether these are the resources of this generation, all of them and no other.
    pub(crate) fn fits(&self, entries: &Entries) -> bool {
        entries.len() as u64 == self.resources && entries.digest() == self.digest
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }
}

/// Resources that fit into one transaction each, with their whole keys.
///
/// # Errors
/// If one of them alone is more than etcd takes.
pub(crate) fn batches(prefix: &str, entries: &Entries) -> Result<Vec<Vec<(String, Bytes)>>, TooLarge> {
    let mut batches = Vec::<Vec<_>>::new();
    let mut room = 0;
    for (key, value) in entries.iter() {
        let (whole, size) = (format!("{prefix}{key}"), prefix.len() + key.len() + value.len() + OVERHEAD);
        if size > MOST_BYTES {
            return Err(TooLarge { key: key.to_owned(), size: value.len() });
        }
        match batches.last_mut() {
            Some(batch) if batch.len() < MOST_OPERATIONS && size <= room => {
                batch.push((whole, value.clone()));
                room -= size;
            }
            _ => {
                batches.push(vec![(whole, value.clone())]);
                room = MOST_BYTES - size;
            }
        }
    }
    Ok(batches)
}

/// A resource is more than a transaction takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} has {size} bytes, and etcd takes no request of more than 1.5 MiB unless it is told to")]
pub struct TooLarge {
    /// The resource.
    pub key: String,
    /// How many bytes it has.
    pub size: usize,
}

/// What is to be done about old generations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Out of force for so long that nobody can be reading them.
    pub(crate) remove: Vec<u64>,
    /// Never came into force, as their publishers failed; they are out of force from now on.
    pub(crate) retire: Vec<u64>,
}

impl Sweep {
    /// `retired` says since when each is out of force, `now` is since 1970.
    pub(crate) fn new(
        current: u64,
        claimed: &BTreeSet<u64>,
        retired: &BTreeMap<u64, Duration>,
        now: Duration,
        keep: Duration,
    ) -> Self {
        let is_over = |since: &Duration| now.saturating_sub(*since) >= keep;
        Self {
            remove: retired.iter().filter(|(_, since)| is_over(since)).map(|(number, _)| *number).collect(),
            // Higher numbers are of publishers that are at work.
            retire: claimed.iter().copied().filter(|number| *number < current).collect(),
        }
    }
}

/// A transaction may have 128 operations and 1.5 MiB, unless etcd is told otherwise.
const MOST_OPERATIONS: usize = 128;
const MOST_BYTES: usize = 1_572_864 - 16_384;
/// What protobuf adds to a key and a value, at most.
const OVERHEAD: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    #[test]
    fn keys_are_those_that_the_rules_name_fb25() {
        let scope: Scope = "prod-1".parse().expect("a scope");
        assert_eq!(scope.current(), "/mainstay/v1/prod-1/current");
        assert_eq!(scope.generation(7), "/mainstay/v1/prod-1/gen/7/");
        assert_eq!(scope.retired(7), "/mainstay/v1/prod-1/retired/7");
        for wrong in ["", "a/b", "a b", "\u{e9}"] {
            assert!(wrong.parse::<Scope>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_generation_is_whole_or_not_fb25() {
        let entries = entries([("a", 1), ("b", 2)]);
        let manifest = Manifest::new(3, &entries);
        assert!(manifest.fits(&entries));
        assert!(!manifest.fits(&self::entries([("a", 1)])));
        assert!(!manifest.fits(&self::entries([("a", 1), ("b", 3)])));
        assert_eq!(Manifest::decode(&manifest.encode()), Some(manifest));
        assert_eq!(Manifest::decode(b"7"), None);
    }

    proptest! {
        #[test]
        fn batches_have_all_of_it_within_the_limits_fb25(sizes in proptest::collection::vec(any::<u32>(), 0..400)) {
            let sizes = sizes.iter().enumerate().map(|(n, size)| (format!("key-{n:04}"), (*size as usize) % 60_000));
            let entries: Entries = sizes.map(|(key, size)| (key, Bytes::from(vec![7; size]))).collect();
            let batches = batches("prefix/", &entries).expect("nothing is too large");
            for batch in &batches {
                assert!(!batch.is_empty() && batch.len() <= 128);
                assert!(batch.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() < 1_572_864);
            }
            let all: Entries = batches.into_iter().flatten()
                .map(|(key, value)| (key.strip_prefix("prefix/").expect("the prefix").to_owned(), value)).collect();
            assert_eq!(all, entries);
        }
    }

    #[test]
    fn a_resource_beyond_the_limit_is_named_fb25() {
        let too_large = batches("p/", &entries([("a", 10), ("b", 1_600_000)])).expect_err("too large");
        assert_eq!(too_large, TooLarge { key: "b".to_owned(), size: 1_600_000 });
    }

    #[test]
    fn old_generations_go_after_ten_minutes_fb25() {
        let seconds = Duration::from_secs;
        let retired = [(1, seconds(100)), (2, seconds(500))].into();
        // 3 never came into force, 4 is in force, somebody writes 5.
        let sweep = Sweep::new(4, &[3, 5].into(), &retired, seconds(700), seconds(600));
        assert_eq!(sweep, Sweep { remove: vec![1], retire: vec![3] });
        // A clock that was set back removes nothing.
        let sweep = Sweep::new(4, &BTreeSet::new(), &retired, seconds(50), seconds(600));
        assert_eq!(sweep, Sweep::default());
    }

    fn entries<const N: usize>(sizes: [(&str, usize); N]) -> Entries {
        sizes.into_iter().map(|(key, size)| (key.to_owned(), Bytes::from(vec![7; size]))).collect()
    }
}
