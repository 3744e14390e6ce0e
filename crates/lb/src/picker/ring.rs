//! The picker of ring_hash: the request's hash leads to an endpoint, which is connected to when first needed
//! (A61, A76, L-112, L-116, L-117).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::HeaderName;

use super::{Pick, PickArgs, Ready, Reason, Runs};
use crate::call_tracker::CallTracker;
use crate::owner::Wake;
use crate::picker::Outlook;
use crate::request_hash::{hash_bytes, hash_header, random_hash};
use crate::subchannel::Subchannel;
use crate::trace::{Recorder, Step};

/// Endpoints on a ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RingPicker<S> {
    ring: Arc<Ring>,
    /// The endpoints that the ring is of.
    spots: Runs<Spot<S>>,
    /// The header that is hashed instead of what the route says.
    header: Option<HeaderName>,
}

/// An endpoint as it was when the picker was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spot<S> {
    Ready(Ready<S>),
    Connecting,
    /// Connects when woken.
    Idle(Wake),
    Failing,
}

/// Where on the ring each endpoint is. It follows from the weights and keys of the endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    /// In order.
    hashes: Box<[u64]>,
    /// Whose each hash is: an index of the list of endpoints.
    owners: Box<[u32]>,
}

impl<S: Subchannel> RingPicker<S> {
    pub(crate) fn new(ring: &Arc<Ring>, spots: Runs<Spot<S>>, header: Option<&HeaderName>) -> Self {
        Self { ring: Arc::clone(ring), spots, header: header.cloned() }
    }

    /// For the next picker.
    pub(crate) fn spots(&self) -> &Runs<Spot<S>> {
        &self.spots
    }

    pub(super) fn outlook(&self) -> Outlook {
        let outlook = |spot: &Spot<S>| match spot {
            Spot::Ready(_) => Outlook::Send,
            Spot::Connecting | Spot::Idle(_) => Outlook::Wait,
            Spot::Failing => Outlook::Fail,
        };
        self.spots.iter().map(outlook).max().unwrap_or(Outlook::Fail)
    }

    pub(super) fn pick<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        match &self.header {
            None => {
                let hash = args.request_hash();
                self.pick_by(hash, args.recorder)
            }
            // An empty value counts as none (A76).
            Some(name) if args.headers.get(name).is_some_and(|value| !value.is_empty()) => {
                match hash_header(args.headers, name, None) {
                    Some(hash) => self.pick_by(hash, args.recorder),
                    None => self.pick_any(args),
                }
            }
            Some(_) => self.pick_any(args),
        }
    }

    /// The first endpoint from `hash` on that has not failed: to that one only (L-116).
    fn pick_by(&self, hash: u64, recorder: impl Recorder) -> Pick<'_, S> {
        recorder.record(|| Step::Hash(hash));
        for spot in self.from(hash) {
            return match spot {
                Spot::Ready(ready) if ready.subchannel.is_ready() => {
                    recorder.record(|| Step::endpoints(POLICY, [ready]));
                    Pick::Send(ready, CallTracker::default())
                }
                Spot::Ready(_) => Pick::lost(),
                Spot::Idle(wake) => Pick::Wait(Reason { wake: Some(*wake), ..Reason::new(CONNECTING) }),
                Spot::Connecting => Pick::Wait(Reason::new(CONNECTING)),
                Spot::Failing => continue,
            };
        }
        Pick::Fail(Reason::new(FAILING))
    }

    /// The first endpoint from `hash` on that is connected. Meanwhile one more endpoint is connected to, unless one is
    /// under way already: so without hashes, too, all will have their share in time (L-117).
    fn pick_any<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        let hash = random_hash(args.choose);
        args.recorder.record(|| Step::Hash(hash));
        let mut waits = self.spots.iter().any(|spot| matches!(spot, Spot::Connecting));
        let mut wake = None;
        for spot in self.from(hash) {
            match spot {
                Spot::Ready(ready) if ready.subchannel.is_ready() => {
                    args.wake = wake;
                    args.recorder.record(|| Step::endpoints(POLICY, [ready]));
                    return Pick::Send(ready, CallTracker::default());
                }
                Spot::Idle(idle) if !waits => {
                    waits = true;
                    wake = Some(*idle);
                }
                Spot::Ready(_) | Spot::Idle(_) | Spot::Connecting | Spot::Failing => {}
            }
        }
        if waits { Pick::Wait(Reason { wake, ..Reason::new(CONNECTING) }) } else { Pick::Fail(Reason::new(FAILING)) }
    }

    /// Once round the ring.
    fn from(&self, hash: u64) -> impl Iterator<Item = &Spot<S>> {
        let start = self.ring.hashes.partition_point(|entry| *entry < hash);
        let (before, after) = self.ring.owners.split_at(start);
        after.iter().chain(before).filter_map(|owner| self.spots.get(*owner as usize))
    }
}

impl Ring {
    /// A ring of endpoints, each with its key and its weight, with about `min` to `max` entries (L-112).
    pub(crate) fn new<'a>(endpoints: impl Iterator<Item = (&'a str, u32)> + Clone, min: u32, max: u32) -> Self {
        // In whole numbers, as what is rounded must not depend on the order of additions. With w the least weight and
        // s the sum of all, there is room for `per / whole` entries per unit of weight: enough for `min` entries in
        // all, such that w has a whole number of them; but no more than `max` in all.
        let sum: u128 = endpoints.clone().map(|(_, weight)| u128::from(weight)).sum();
        let least = endpoints.clone().map(|(_, weight)| u128::from(weight)).min().unwrap_or(0).max(1);
        let per_least = (least * u128::from(min)).div_ceil(sum.max(1));
        let is_too_large = per_least * sum > u128::from(max) * least;
        let (per, whole) = if is_too_large { (u128::from(max), sum.max(1)) } else { (per_least, least) };

        let (mut entries, mut weight_before) = (Vec::new(), 0);
        let mut text = String::new();
        for (at, (key, weight)) in (0_u32..).zip(endpoints) {
            weight_before += u128::from(weight);
            let target = (weight_before * per).div_ceil(whole);
            text.clear();
            text.push_str(key);
            text.push('_');
            for count in 0_u64.. {
                if entries.len() as u128 >= target {
                    break;
                }
                text.truncate(key.len() + 1);
                text.push_str(&count.to_string());
                entries.push((hash_bytes(text.as_bytes()), at));
            }
        }
        entries.sort_unstable();
        let (hashes, owners): (Vec<u64>, Vec<u32>) = entries.into_iter().unzip();
        Self { hashes: hashes.into(), owners: owners.into() }
    }
}

impl Hash for Ring {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hashes.len().hash(state);
    }
}

const POLICY: &str = "ring_hash";

const CONNECTING: &str = "connecting to the endpoint that the hash of the request leads to";

const FAILING: &str = "connections to all endpoints failing";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn equal_weights_get_equally_many_entries() {
        assert_eq!(sizes(&[1, 1, 1], 1024, 4096), [342; 3], "L-112: at least 1024 in all");
        assert_eq!(sizes(&[7], 1024, 4096), [1024]);
        assert_eq!(sizes(&[1; 100], 1024, 4096), [11; 100]);
        assert!(sizes(&[], 1024, 4096).is_empty());
    }

    #[test]
    fn weights_show_in_the_number_of_entries() {
        assert_eq!(sizes(&[1, 2, 3], 12, 4096), [2, 4, 6], "L-112");
        assert_eq!(sizes(&[1, 2, 3], 1, 4096), [1, 2, 3], "L-112: a whole number for the least");
        assert_eq!(sizes(&[1, 99], 10, 100), [1, 99], "L-112");
    }

    #[test]
    fn the_bound_holds_whatever_the_weights() {
        assert_eq!(sizes(&[1, 99], 10, 50).iter().sum::<usize>(), 50, "L-112: max_ring_size");
        assert_eq!(sizes(&[1, u32::MAX, u32::MAX], 1024, 4096).iter().sum::<usize>(), 4096, "L-112");
        assert_eq!(sizes(&[1; 5000], 1024, 4096).iter().sum::<usize>(), 4096, "L-112: more endpoints than entries");
    }

    #[test]
    fn entries_are_where_other_implementations_have_them() {
        // hash("10.0.0.1:80_0") and so on, as Envoy, C-core, Go and Java make them (A42).
        let ring = Ring::new([("10.0.0.1:80", 1), ("10.0.0.2:80", 1)].into_iter(), 2, 2);
        let hashes: BTreeMap<u32, u64> = ring.owners.iter().copied().zip(ring.hashes.iter().copied()).collect();
        assert_eq!(hashes[&0], hash_bytes(b"10.0.0.1:80_0"), "L-112");
        assert_eq!(hashes[&1], hash_bytes(b"10.0.0.2:80_0"), "L-112");
        assert!(ring.hashes.is_sorted());
    }

    /// How many entries each endpoint has.
    fn sizes(weights: &[u32], min: u32, max: u32) -> Vec<usize> {
        let keys: Vec<String> = (0..weights.len()).map(|n| format!("10.0.0.1:{n}")).collect();
        let ring = Ring::new(keys.iter().map(String::as_str).zip(weights.iter().copied()), min, max);
        let mut sizes = vec![0; weights.len()];
        ring.owners.iter().for_each(|owner| sizes[*owner as usize] += 1);
        sizes
    }
}
