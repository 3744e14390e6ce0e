//! The picker of weighted_round_robin: each connection as often as its weight says (A58, L-108).
//!
//! Static stride, as C-core has it: every round visits every connection, and one of weight w is taken in w of 65535
//! rounds, evenly spread. One counter is all that changes, so RPCs never wait for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Pick, Position, Ready};
use crate::call_tracker::CallTracker;
use crate::orca::Reports;
use crate::subchannel::Subchannel;
use crate::trace::{Recorder, Step};

/// Connections by weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StridePicker<S> {
    endpoints: Box<[Reporting<S>]>,
    /// One per connection; absent if all are equal.
    strides: Option<Box<[u16]>>,
    /// Goes on from picker to picker.
    next: Arc<Position>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reporting<S> {
    pub(crate) ready: Ready<S>,
    /// Who reads its reports, if they come with RPCs.
    pub(crate) reports: Option<Arc<Reports>>,
}

impl<S: Subchannel> StridePicker<S> {
    pub(crate) fn new(endpoints: Box<[Reporting<S>]>, weights: &[Option<f64>], next: &Arc<Position>) -> Self {
        Self { endpoints, strides: strides(weights), next: Arc::clone(next) }
    }

    pub(super) fn pick(&self, recorder: impl Recorder) -> Pick<'_, S> {
        recorder
            .record(|| Step::endpoints("weighted_round_robin", self.endpoints.iter().map(|endpoint| &endpoint.ready)));
        if self.endpoints.is_empty() {
            return Pick::lost();
        }
        let (before, after) = self.endpoints.split_at(self.index());
        let mut from_place = after.iter().chain(before);
        match from_place.find(|endpoint| endpoint.ready.subchannel.is_ready()) {
            Some(Reporting { ready, reports }) => {
                Pick::Send(ready, CallTracker::default().with_reports(reports.as_ref()))
            }
            None => Pick::lost(),
        }
    }

    /// Whose turn it is.
    fn index(&self) -> usize {
        let count = self.endpoints.len();
        loop {
            let turn = self.next.0.fetch_add(1, Ordering::Relaxed);
            let index = turn % count;
            let Some(stride) = self.strides.as_ref().and_then(|strides| strides.get(index)) else { return index };
            // Apart by half a round, so that equal ones are not all taken in the same round.
            let (round, stride) = ((turn / count) as u64, u64::from(*stride));
            let at = (stride.wrapping_mul(round)).wrapping_add(HALF * index as u64) % MAX;
            // The heaviest has MAX, so this ends within a round.
            if at >= MAX - stride {
                return index;
            }
        }
    }
}

/// Weights in parts of the largest; none if fewer than two are known (L-108).
fn strides(weights: &[Option<f64>]) -> Option<Box<[u16]>> {
    let largest = weights.iter().copied().flatten().fold(0.0, f64::max);
    // In parts of the largest, so that no sum is too large.
    let part = |weight: &Option<f64>| weight.map(|weight| weight / largest);
    let known = || weights.iter().filter_map(part);
    let count = known().count();
    if count < 2 {
        return None;
    }
    let mean = known().sum::<f64>() / count as f64;
    // One that is far above all others would make every pick a search for it.
    let scale = MAX as f64 / (mean * MAX_RATIO).min(1.0);
    let least = (mean * scale * MIN_RATIO).ceil().max(1.0);
    let stride = |weight| (part(weight).unwrap_or(mean) * scale).round().clamp(least, MAX as f64) as u16;
    Some(weights.iter().map(stride).collect())
}

const MAX: u64 = u16::MAX as u64;
const HALF: u64 = MAX / 2;
const MAX_RATIO: f64 = 10.0;
const MIN_RATIO: f64 = 0.01;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::orca::tests::any_number;

    #[test]
    fn the_largest_weight_is_the_measure() {
        assert_eq!(of(&[Some(1.0), Some(2.0)]).as_deref(), Some(&[32768, 65535][..]));
        assert_eq!(of(&[Some(3.0), Some(3.0), Some(3.0)]).as_deref(), Some(&[65535; 3][..]));
    }

    #[test]
    fn one_that_is_not_known_has_the_mean_of_the_others() {
        assert_eq!(of(&[Some(1.0), Some(3.0), None]).as_deref(), Some(&[21845, 65535, 43690][..]), "L-108");
    }

    #[test]
    fn fewer_than_two_known_weights_are_none() {
        assert_eq!(of(&[Some(1.0), None, None]), None, "L-108");
        assert_eq!(of(&[None, None]), None, "L-108");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn extremes_are_capped() {
        let mut weights = vec![Some(1.0); 99];
        weights.push(Some(1e9));
        let strides = of(&weights).expect("strides");
        assert_eq!(strides[99], 65535, "L-108: ten times the mean");
        assert_eq!(strides[0], 66, "L-108: a hundredth of the mean, rounded up");
        assert_eq!(of(&[Some(1e308), Some(1e308)]).as_deref(), Some(&[65535; 2][..]), "too large to be added");
        let tiny = of(&[Some(f64::MIN_POSITIVE), Some(1.0)]).expect("strides");
        assert!(tiny[0] >= 1 && tiny[1] == 65535);
    }

    proptest! {
        #[test]
        fn whatever_the_weights_a_turn_comes_within_a_round(
            weights in prop::collection::vec(prop::option::of(any_number().prop_filter("a weight", is_weight)), 2..20),
        ) {
            if let Some(strides) = of(&weights) {
                prop_assert_eq!(strides.len(), weights.len());
                prop_assert_eq!(strides.iter().max(), Some(&u16::MAX), "the heaviest is taken in every round");
                prop_assert!(strides.iter().all(|stride| *stride > 0), "nobody is left out for ever");
            }
        }
    }

    fn is_weight(weight: &f64) -> bool {
        weight.is_finite() && *weight > 0.0
    }

    fn of(weights: &[Option<f64>]) -> Option<Vec<u16>> {
        strides(weights).map(Vec::from)
    }
}
