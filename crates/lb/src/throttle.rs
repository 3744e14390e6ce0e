//! Retry throttling: while too many attempts fail, none of them is tried again (A6).

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

/// A bucket of tokens for all RPCs of a channel. Attempts that fail take one, RPCs that succeed bring a part of one.
/// While no more than half of the tokens are there, nothing is tried again.
///
/// Any two with equal settings are equal: what RPCs count is no part of them.
#[derive(Debug)]
pub struct RetryThrottle {
    /// As the following, in thousandths of a token.
    max: u32,
    ratio: u32,
    tokens: AtomicU32,
}

impl RetryThrottle {
    /// A full bucket of `max_tokens`, which must be 1 to 1000. A success brings `token_ratio` tokens, of which three
    /// decimal places count; it must be above zero.
    pub fn new(max_tokens: u32, token_ratio: f64) -> Option<Self> {
        let ratio = (token_ratio * f64::from(TOKEN)) as u32;
        let max = (1..=MAX_TOKENS).contains(&max_tokens).then(|| max_tokens * TOKEN)?;
        (ratio > 0).then(|| Self { max, ratio: ratio.min(max), tokens: AtomicU32::new(max) })
    }

    /// An RPC succeeded.
    pub fn note_success(&self) {
        // A full bucket, as it mostly is, is not written to.
        let add = |tokens: u32| (tokens < self.max).then(|| self.max.min(tokens + self.ratio));
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// An attempt failed in a way that its policy retries, or its server wants no other. Whether another may follow.
    pub fn note_failure(&self) -> bool {
        let take = |tokens: u32| Some(tokens.saturating_sub(TOKEN));
        let before = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.is_ok_and(|before| before.saturating_sub(TOKEN) > self.max / 2)
    }
}

impl PartialEq for RetryThrottle {
    fn eq(&self, other: &Self) -> bool {
        (self.max, self.ratio) == (other.max, other.ratio)
    }
}

impl Eq for RetryThrottle {}

impl Hash for RetryThrottle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.max, self.ratio).hash(state);
    }
}

const TOKEN: u32 = 1000;
const MAX_TOKENS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_stop_at_half_of_the_tokens_and_begin_again_above_it() {
        let throttle = RetryThrottle::new(4, 0.5).unwrap();
        assert!(throttle.note_failure(), "A6: 3 of 4");
        assert!(!throttle.note_failure(), "A6: 2 of 4 is the threshold");
        assert!(!throttle.note_failure(), "A6: 1 of 4");
        for _ in 0..4 {
            throttle.note_success();
        }
        assert!(!throttle.note_failure(), "A6: 3 less one");
        for _ in 0..3 {
            throttle.note_success();
        }
        assert!(throttle.note_failure(), "A6: 3.5 less one");
    }

    #[test]
    fn the_bucket_neither_overflows_nor_goes_below_zero() {
        let throttle = RetryThrottle::new(2, 1000.0).unwrap();
        for _ in 0..5 {
            throttle.note_success();
        }
        assert!(!throttle.note_failure(), "A6: never more than 2");
        for _ in 0..5 {
            throttle.note_failure();
        }
        throttle.note_success();
        assert!(!throttle.note_failure(), "A6: never less than none, so that one success fills it");
    }

    #[test]
    fn settings_out_of_range_are_none() {
        for (max_tokens, token_ratio) in [(0, 1.0), (1001, 1.0), (1, 0.0), (1, 0.0009), (1, -1.0), (1, f64::NAN)] {
            assert_eq!(RetryThrottle::new(max_tokens, token_ratio), None, "A6: {max_tokens}, {token_ratio}");
        }
        assert!(RetryThrottle::new(1000, 0.001).is_some(), "A6");
    }
}
