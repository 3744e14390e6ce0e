//! Keeping the books of the demo's traffic: where it is now, and which failures have an excuse.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    call::Outcome,
    tally::{self, Tally},
    traffic::Event,
};

/// The books of one scene, or of the whole demo.
#[derive(Debug)]
pub(super) struct Account {
    tally: Tally,
    /// Failed calls that a killed backend took with it.
    excused: u64,
    kills: Vec<Kill>,
    /// What ended within the last [`WINDOW`]: when, and which backend answered.
    recent: VecDeque<(Instant, Option<String>)>,
}

/// The time in which a backend was being killed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

impl Account {
    pub(super) fn new() -> Self {
        Self { tally: Tally::new(), excused: 0, kills: Vec::new(), recent: VecDeque::new() }
    }

    /// From now on, a failed call that was under way during `kill` has an excuse: no client can save it.
    pub(super) fn excuse(&mut self, kill: Kill) {
        self.kills.push(kill);
    }

    /// Takes an event into account.
    pub(super) fn record(&mut self, event: &Event) {
        self.tally.record(event);
        if let Event::Ended(outcome) = event {
            if outcome.result.is_err() && self.kills.iter().any(|kill| kill.excuses(outcome)) {
                self.excused += 1;
            }
            self.recent.push_back((outcome.start + outcome.took, outcome.result.clone().ok()));
        }
    }

    /// Everything that was counted.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// How many failed calls have an excuse.
    pub(super) fn excused(&self) -> u64 {
        self.excused
    }

    /// How many failed calls have none.
    pub(super) fn unexcused(&self) -> u64 {
        self.tally.failed().saturating_sub(self.excused)
    }

    /// How many calls each backend answered in the last second.
    pub(super) fn rates(&mut self, now: Instant) -> BTreeMap<String, u64> {
        while self.recent.front().is_some_and(|(ended, _)| *ended + WINDOW < now) {
            self.recent.pop_front();
        }
        let mut rates = BTreeMap::new();
        for name in self.recent.iter().filter_map(|(_, name)| name.as_deref()) {
            tally::count(&mut rates, name);
        }
        rates
    }

    /// Whether the traffic of the last second was answered by all of `expected` and by nobody else.
    pub(super) fn is_at(&mut self, expected: &[&str], now: Instant) -> bool {
        let rates = self.rates(now);
        rates.keys().map(String::as_str).collect::<BTreeSet<_>>() == expected.iter().copied().collect()
    }
}

impl Kill {
    fn excuses(&self, outcome: &Outcome) -> bool {
        outcome.start <= self.to + NOTICE && self.from <= outcome.start + outcome.took
    }
}

/// What counts as now. One second, so that counts are rates.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// How long a client may take to notice that a connection is dead.
const NOTICE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tonic::Code;

    use super::*;
    use crate::call::CallError;

    #[tokio::test(start_paused = true)]
    async fn only_calls_under_way_at_a_kill_are_excused() {
        let zero = Instant::now();
        let mut account = Account::new();
        account.excuse(Kill { from: zero + ms(1000), to: zero + ms(1010) });
        for (start, took, excused) in [(900, 50, 0), (900, 200, 1), (1100, 5, 2), (1300, 5, 2)] {
            account.record(&ended(zero + ms(start), ms(took), None));
            assert_eq!(account.excused(), excused, "a call at {start} ms that took {took} ms");
        }
        account.record(&ended(zero + ms(1000), ms(5), Some("one")));
        assert_eq!((account.tally().failed(), account.excused(), account.unexcused()), (4, 2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_traffic_is_where_the_last_second_was() {
        let zero = Instant::now();
        let mut account = Account::new();
        for (at, name) in [(0, "one"), (500, "two"), (1200, "one")] {
            account.record(&ended(zero + ms(at), Duration::ZERO, Some(name)));
        }
        assert!(account.is_at(&["two", "one"], zero + ms(1300)));
        assert!(!account.is_at(&["one"], zero + ms(1300)));
        assert!(!account.is_at(&["one", "two", "three"], zero + ms(1300)));
        assert!(account.is_at(&["one"], zero + ms(1600)));
        assert_eq!(account.rates(zero + ms(1600)), BTreeMap::from([("one".to_owned(), 1)]));
    }

    fn ended(start: Instant, took: Duration, name: Option<&str>) -> Event {
        let error = CallError { code: Code::Unavailable, message: String::new() };
        let result = name.map(str::to_owned).ok_or(error);
        Event::Ended(Outcome { target: 0, began: SystemTime::UNIX_EPOCH, start, took, result })
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}
