use std::time::Duration;

use crate::Choose;

/// gRPC's connection backoff (P-19): attempt `n` waits `base · 1.6ⁿ`, at most `max`, ± 20 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    base: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses that grow from `base` to `max`.
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self { base, max }
    }

    /// The pause after `failures` earlier failures, without jitter.
    pub fn nominal(self, failures: u32) -> Duration {
        let mut pause = self.base;
        for _ in 0..failures {
            if pause >= self.max || pause.is_zero() {
                break;
            }
            pause = pause.saturating_mul(8) / 5;
        }
        pause.min(self.max)
    }

    /// The pause after `failures` earlier failures.
    pub fn delay(self, failures: u32, choose: &mut dyn Choose) -> Duration {
        Self::spread(self.nominal(failures), choose)
    }

    /// A pause, give or take a fifth, so that those who begin it together do not end it together.
    pub fn spread(pause: Duration, choose: &mut dyn Choose) -> Duration {
        let thousandths = 800 + choose.choose(401).min(400);
        let nanos = pause.as_nanos() * u128::from(thousandths) / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Default for Backoff {
    /// 1 s to 120 s.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(120))
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

    #[test]
    fn pauses_grow_by_1_6_up_to_the_maximum_p19() {
        let backoff = Backoff::default();
        let nominal = |n| backoff.nominal(n).as_secs_f64();
        assert_eq!([nominal(0), nominal(1), nominal(2)], [1.0, 1.6, 2.56]);
        assert!((nominal(10) - 1.6f64.powi(10)).abs() < 1e-6);
        assert_eq!(nominal(11), 120.0);
        assert_eq!(nominal(u32::MAX), 120.0);
    }

    #[test]
    fn jitter_stays_within_a_fifth_p19() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(0, &mut Always(0)), Duration::from_millis(800));
        assert_eq!(backoff.delay(0, &mut Always(u64::MAX)), Duration::from_millis(1200));
        assert_eq!(backoff.delay(0, &mut Always(200)), Duration::from_secs(1));
    }

    #[test]
    fn a_zero_base_never_spins_in_the_loop() {
        assert_eq!(Backoff::new(Duration::ZERO, Duration::from_secs(1)).nominal(u32::MAX), Duration::ZERO);
    }
}
