use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on a monotonic clock, in nanoseconds since a start that the caller chooses.
///
/// The cores never read a clock: `now` is an argument. A value of this type is the same in every
/// run, unlike `std::time::Instant`, so a simulation can be replayed and a state can be hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Time = Time(0);

    /// The point `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `since_start` after the start; saturates after 584 years.
    pub fn from_start(since_start: Duration) -> Self {
        Self(saturating_nanos(since_start))
    }

    /// How long after the start this point lies.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The span from `earlier` to this point; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(saturating_nanos(span)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, span: Duration) -> Time {
        Time(self.0.saturating_sub(saturating_nanos(span)))
    }
}

fn saturating_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::from_nanos(u64::MAX) + Duration::MAX, Time::from_nanos(u64::MAX));
        assert_eq!(Time::ZERO.since(Time::from_nanos(5)), Duration::ZERO);
        assert_eq!(Time::from_start(Duration::from_nanos(7)).since(Time::from_nanos(5)), Duration::from_nanos(2));
    }
}
