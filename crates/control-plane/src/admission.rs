//! Who is let in when many come at once (FB-31 to FB-36): decisions only, time and randomness are arguments.
//!
//! gRPC clients wait 15 seconds for a resource and then hold it for absent, so a server that lets them queue makes
//! configurations vanish. It is better to refuse at once, and to say when to come back. Work is limited, and how fast it
//! comes in; never how many clients there are (FB-34).

use std::time::{Duration, Instant};

/// How much a server takes on. The defaults are for one process on a small machine with ten thousand clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that may be opened in a second, when many come; 0 for any number.
    pub streams_per_second: u32,
    /// Streams that may be opened in one moment after a while without any.
    pub stream_burst: u32,
    /// First responses that are made at once.
    pub work: usize,
    /// How long a stream may wait for its turn before it is refused.
    pub longest_wait: Duration,
    /// When a stream that is refused shall come back: some time between these two.
    pub push_back: (Duration, Duration),
    /// Requests that a stream may send in a second, for long; 0 for any number.
    pub requests_per_second: u32,
    /// Requests that it may send in one moment.
    pub request_burst: u32,
    /// A client that has not read a response for this long is cut off.
    pub slow_reader: Duration,
    /// How old connections grow, give or take a half; then clients come back, perhaps to another replica.
    pub connection_age: Option<Duration>,
    /// TLS handshakes at once.
    pub handshakes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            streams_per_second: 2000,
            stream_burst: 2000,
            work: 4 * cores,
            longest_wait: Duration::from_secs(1),
            push_back: (Duration::from_secs(1), Duration::from_secs(10)),
            requests_per_second: 100,
            request_burst: 1000,
            slow_reader: Duration::from_secs(60),
            connection_age: Some(Duration::from_secs(30 * 60)),
            handshakes: 32 * cores,
        }
    }
}

impl Limits {
    /// When whoever is refused, or sent away, shall come back (FB-33).
    pub(crate) fn come_back(&self, draw: &mut dyn FnMut(u64) -> u64) -> Duration {
        let (least, most) = self.push_back;
        least + below(most.saturating_sub(least), draw)
    }

    /// How old one connection grows (FB-35).
    pub(crate) fn age(&self, draw: &mut dyn FnMut(u64) -> u64) -> Option<Duration> {
        self.connection_age.map(|age| age / 2 + below(age, draw))
    }
}

/// A moment of a time that is shared by many, so that they do not act together (FB-36).
pub(crate) fn below(time: Duration, draw: &mut dyn FnMut(u64) -> u64) -> Duration {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(draw(nanos.saturating_add(1)))
}

/// A token bucket that promises tokens before it has them.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The time in which a token comes; zero if nobody counts.
    interval: Duration,
    /// The time in which an empty bucket fills.
    capacity: Duration,
    /// When it will be full, if nobody takes a token.
    full_at: Instant,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        Self { interval, capacity: interval * burst.max(1), full_at: now }
    }

    /// Takes a token, and answers how long to wait for it; takes none if that is longer than `patience`.
    pub(crate) fn take(&mut self, now: Instant, patience: Duration) -> Option<Duration> {
        let full_at = self.full_at.max(now) + self.interval;
        let wait = (full_at - now).saturating_sub(self.capacity);
        if wait > patience {
            return None;
        }
        self.full_at = full_at;
        Some(wait)
    }

    /// Puts a token in, as far as there is room.
    pub(crate) fn put(&mut self) {
        self.full_at = self.full_at.checked_sub(self.interval).unwrap_or(self.full_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_is_let_in_by_the_burst_then_by_the_rate_and_else_refused_at_once_fb32_fb33() {
        let start = Instant::now();
        let limits = Limits::default();
        let mut bucket = Bucket::new(limits.streams_per_second, limits.stream_burst, start);
        let waits: Vec<_> = (0..10_000).map(|_| bucket.take(start, limits.longest_wait)).collect();
        assert!(waits[..2000].iter().all(|wait| *wait == Some(Duration::ZERO)));
        assert!(waits[2000..4000].iter().all(|wait| wait.is_some_and(|wait| wait <= limits.longest_wait)));
        assert!(waits[4000..].iter().all(Option::is_none), "nobody waits for longer");
        // Who was refused took nothing from those who come later.
        let later = start + Duration::from_secs(2);
        let waits: Vec<_> = (0..4000).map(|_| bucket.take(later, limits.longest_wait)).collect();
        assert!(waits.iter().all(Option::is_some));
    }

    #[test]
    fn a_bucket_gives_as_much_as_flows_in() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 5, start);
        let mut taken = 0;
        for tick in 0..1000 {
            let now = start + Duration::from_millis(10 * tick);
            taken += u32::from(bucket.take(now, Duration::ZERO).is_some());
        }
        assert_eq!(taken, 5 + 99, "a burst, and ten a second for almost ten seconds");
    }

    #[test]
    fn who_answers_what_it_was_sent_is_not_counted_fb39() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1, 3, start);
        for _ in 0..100 {
            bucket.put();
            assert_eq!(bucket.take(start, Duration::ZERO), Some(Duration::ZERO));
        }
        let taken = (0..10).filter(|_| bucket.take(start, Duration::ZERO).is_some()).count();
        assert_eq!(taken, 2, "the first one did not fit, and is not kept");
    }

    #[test]
    fn a_rate_of_zero_is_no_limit() {
        let start = Instant::now();
        let mut bucket = Bucket::new(0, 0, start);
        assert!((0..10_000).all(|_| bucket.take(start, Duration::ZERO) == Some(Duration::ZERO)));
    }

    #[test]
    fn who_is_refused_comes_back_within_one_to_ten_seconds_fb33() {
        let limits = Limits::default();
        assert_eq!(limits.come_back(&mut |_| 0), Duration::from_secs(1));
        assert_eq!(limits.come_back(&mut |bound| bound - 1), Duration::from_secs(10));
    }

    #[test]
    fn connections_grow_half_an_hour_old_give_or_take_a_half_fb35() {
        let limits = Limits::default();
        assert_eq!(limits.age(&mut |_| 0), Some(Duration::from_secs(15 * 60)));
        assert_eq!(limits.age(&mut |bound| bound - 1), Some(Duration::from_secs(45 * 60)));
        assert_eq!(Limits { connection_age: None, ..limits }.age(&mut |_| 0), None);
    }
}
