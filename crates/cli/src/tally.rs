//! What the calls of a run came to: counts by backend and by code, and latencies.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;

use crate::{
    call::{CallError, Outcome, code_name},
    traffic::Event,
};

/// The sum of all calls so far.
#[derive(Debug)]
pub(crate) struct Tally {
    began: u64,
    ended: u64,
    /// Answered calls per server id.
    backends: BTreeMap<String, u64>,
    /// Failed calls per code, with the latest message of each: the newest explains what is wrong now.
    errors: BTreeMap<&'static str, Errors>,
    /// Latencies of answered calls, in microseconds.
    latencies: Histogram<u64>,
    latest: Duration,
}

/// Failed calls with one code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Errors {
    pub(crate) count: u64,
    pub(crate) message: String,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("constant bounds are valid");
        Self {
            began: 0,
            ended: 0,
            backends: BTreeMap::new(),
            errors: BTreeMap::new(),
            latencies,
            latest: Duration::ZERO,
        }
    }

    /// Takes an event into account.
    pub(crate) fn record(&mut self, event: &Event) {
        match event {
            Event::Began { late, .. } => {
                self.began += 1;
                self.latest = self.latest.max(*late);
            }
            Event::Ended(outcome) => self.record_outcome(outcome),
        }
    }

    fn record_outcome(&mut self, outcome: &Outcome) {
        self.ended += 1;
        match &outcome.result {
            Ok(server_id) => {
                count(&mut self.backends, server_id);
                self.latencies.saturating_record(u64::try_from(outcome.took.as_micros()).unwrap_or(LONGEST_US));
            }
            Err(CallError { code, message }) => {
                let errors = self.errors.entry(code_name(*code)).or_insert(Errors { count: 0, message: String::new() });
                errors.count += 1;
                errors.message.clone_from(message);
            }
        }
    }

    /// How many calls have begun.
    pub(crate) fn sent(&self) -> u64 {
        self.began
    }

    /// How many were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.backends.values().sum()
    }

    /// How many failed.
    pub(crate) fn failed(&self) -> u64 {
        self.errors.values().map(|errors| errors.count).sum()
    }

    /// How many have begun and not ended.
    pub(crate) fn unfinished(&self) -> u64 {
        self.began.saturating_sub(self.ended)
    }

    /// Answered calls per backend.
    pub(crate) fn backends(&self) -> &BTreeMap<String, u64> {
        &self.backends
    }

    /// Failed calls per code.
    pub(crate) fn errors(&self) -> &BTreeMap<&'static str, Errors> {
        &self.errors
    }

    /// How far behind the schedule a call began at worst.
    pub(crate) fn latest(&self) -> Duration {
        self.latest
    }

    /// The latency under which `percent` of the answered calls stayed; nothing if there was none.
    pub(crate) fn latency(&self, percent: f64) -> Option<Duration> {
        (!self.latencies.is_empty()).then(|| Duration::from_micros(self.latencies.value_at_percentile(percent)))
    }
}

/// Adds one to the count of `key`.
pub(crate) fn count(counts: &mut BTreeMap<String, u64>, key: &str) {
    match counts.get_mut(key) {
        Some(n) => *n += 1,
        None => {
            counts.insert(key.to_owned(), 1);
        }
    }
}

/// Shares in percent, largest first, such as `one 67%, two 33%`.
pub(crate) fn shares(counts: &BTreeMap<String, u64>) -> String {
    let total: u64 = counts.values().sum();
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by_key(|&(name, &n)| (std::cmp::Reverse(n), name));
    let share = |(name, &n): (&String, &u64)| format!("{} {:.0}%", shown(name), 100.0 * n as f64 / total as f64);
    sorted.into_iter().map(share).collect::<Vec<_>>().join(", ")
}

/// A backend's name for people; not every server tells its id.
pub(crate) fn shown(server_id: &str) -> &str {
    if server_id.is_empty() { "(no id)" } else { server_id }
}

/// An hour: longer than any sensible deadline. What takes longer counts as this.
const LONGEST_US: u64 = 3_600_000_000;

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tonic::Code;

    use super::*;

    #[test]
    fn calls_are_counted_by_backend_and_by_code() {
        let mut tally = Tally::new();
        for result in [Ok("one"), Ok("two"), Ok("one"), Err("first"), Err("second")] {
            tally.record(&Event::Began { target: 0, late: Duration::ZERO });
            tally.record(&ended(1, result));
        }
        tally.record(&Event::Began { target: 0, late: Duration::from_millis(3) });
        assert_eq!((tally.sent(), tally.answered(), tally.failed(), tally.unfinished()), (6, 3, 2, 1));
        assert_eq!(shares(tally.backends()), "one 67%, two 33%");
        assert_eq!(tally.errors()["UNAVAILABLE"], Errors { count: 2, message: "second".to_owned() });
        assert_eq!(tally.latest(), Duration::from_millis(3));
    }

    #[test]
    fn percentiles_are_those_of_answered_calls() {
        let mut tally = Tally::new();
        assert_eq!(tally.latency(50.0), None);
        for ms in 1..=100 {
            tally.record(&ended(ms, Ok("one")));
        }
        tally.record(&ended(60_000, Err("too late")));
        let ms = |percent| tally.latency(percent).unwrap().as_millis();
        assert_eq!((ms(50.0), ms(90.0), ms(99.0), ms(100.0)), (50, 90, 99, 100));
    }

    #[test]
    fn a_call_of_days_does_not_break_the_histogram() {
        let mut tally = Tally::new();
        tally.record(&ended(u64::MAX / 1_000_000, Ok("")));
        assert!(tally.latency(100.0).unwrap() >= Duration::from_secs(3600));
        assert_eq!(shares(tally.backends()), "(no id) 100%");
    }

    fn ended(ms: u64, result: Result<&str, &str>) -> Event {
        let error = |message: &str| CallError { code: Code::Unavailable, message: message.to_owned() };
        let (began, took) = (SystemTime::UNIX_EPOCH, Duration::from_millis(ms));
        let start = tokio::time::Instant::now();
        Event::Ended(Outcome { target: 0, began, start, took, result: result.map(str::to_owned).map_err(error) })
    }
}
