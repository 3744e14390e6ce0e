//! How long to wait before the next attempt at a server (P-17 to P-20).

use std::time::Duration;

use super::ClientSettings;
use crate::Choose;

/// What a server's past attempts say about the next one.
///
/// Two things make a pause, and both use the same growing delays: attempts that end without an
/// answer, and streams that end soon although they had one. A response forgives the former at once
/// (P-20). "Soon" is sooner than the pause that would follow; a stream that lives longer forgives
/// the latter. So a server that answers and hangs up is not dialled in a hot loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Pacing {
    /// Attempts in a row without an answer.
    failures: u32,
    /// Answered streams in a row that ended, each but the first soon.
    ends: u32,
}

impl Pacing {
    /// An attempt ended without an answer: the pause before the next one.
    pub(super) fn failed(&mut self, settings: &ClientSettings, choose: &mut dyn Choose) -> Duration {
        let pause = settings.backoff().delay(self.failures, choose);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// A response came.
    pub(super) fn answered(&mut self) {
        self.failures = 0;
    }

    /// An answered stream ended that was open for `lived`: the pause before the next one. None the first time.
    pub(super) fn ended(&mut self, lived: Duration, settings: &ClientSettings, choose: &mut dyn Choose) -> Duration {
        match self.ends.checked_sub(1) {
            Some(earlier) if lived < settings.backoff().nominal(earlier) => {
                self.ends = self.ends.saturating_add(1);
                settings.backoff().delay(earlier, choose)
            }
            _ => {
                self.ends = 1;
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Always(u64);

    impl Choose for Always {
        fn choose(&mut self, bound: u64) -> u64 {
            self.0.min(bound - 1)
        }
    }

    const MIDDLE: u64 = 200;

    #[test]
    fn delays_grow_by_1_6_up_to_the_maximum_p19() {
        let settings = ClientSettings::default();
        let mut backoff = Pacing::default();
        let pauses: Vec<_> = (0..13).map(|_| backoff.failed(&settings, &mut Always(MIDDLE)).as_millis()).collect();
        assert_eq!(pauses[..5], [1000, 1600, 2560, 4096, 6553]);
        assert_eq!(pauses[8..], [30_000; 5]);
    }

    #[test]
    fn jitter_is_a_fifth_to_either_side_p19() {
        let settings = ClientSettings::default();
        assert_eq!(Pacing::default().failed(&settings, &mut Always(0)), Duration::from_millis(800));
        assert_eq!(Pacing::default().failed(&settings, &mut Always(u64::MAX)), Duration::from_millis(1200));
    }

    #[test]
    fn a_response_forgives_failures_p20() {
        let settings = ClientSettings::default();
        let mut backoff = Pacing::default();
        for _ in 0..5 {
            backoff.failed(&settings, &mut Always(MIDDLE));
        }
        backoff.answered();
        assert_eq!(backoff.failed(&settings, &mut Always(MIDDLE)), Duration::from_secs(1));
    }

    #[test]
    fn answered_streams_that_end_soon_again_and_again_are_paced_p18() {
        let settings = ClientSettings::default();
        let mut backoff = Pacing::default();
        let mut end = |lived| backoff.ended(Duration::from_millis(lived), &settings, &mut Always(MIDDLE)).as_millis();
        assert_eq!([end(0), end(0), end(1599), end(2559)], [0, 1000, 1600, 2560]);
        // Longer than the pause that would follow (4.096 s): all is forgiven.
        assert_eq!([end(4096), end(0), end(0)], [0, 1000, 1600]);
    }
}
