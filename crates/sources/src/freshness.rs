//! When a replica lets others serve, and when it serves what it has (FB-27, FB-28).
//!
//! A replica that cannot reach its engine does not know whether others are better off. For a while it refuses new streams, so
//! that clients go to those; if they are not, it would be wrong to refuse for ever, so it then serves what it has and says
//! that this is stale. Streams that are open stay open all the time.

use std::time::Duration;

/// How sure a replica is that what it serves is what the engine has. Times are since the start of the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    limits: Limits,
    has_view: bool,
    confirmed: Option<Duration>,
}

/// How long a replica believes in what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Without a word from the engine for this long it is behind.
    pub behind_after: Duration,
    /// Behind for this long, it serves all the same.
    pub stale_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { behind_after: Duration::from_secs(15), stale_after: Duration::from_secs(60) }
    }
}

/// What a replica does with new streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has nothing to serve yet: they are refused.
    Empty,
    /// What it has is what the engine has: they are served.
    Fresh,
    /// It may be behind, and others may not be: they are refused.
    Behind,
    /// It was behind for so long that others are no better: they are served what it has.
    Stale,
}

impl Standing {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Fresh => "fresh",
            Self::Behind => "behind",
            Self::Stale => "stale",
        }
    }
}

impl Freshness {
    /// At the start; whether there is something to serve from the last time.
    pub fn new(limits: Limits, has_view: bool) -> Self {
        Self { limits, has_view, confirmed: None }
    }

    /// What is served is what the engine had at this time.
    pub fn confirm(&mut self, at: Duration) {
        self.has_view = true;
        self.confirmed = self.confirmed.max(Some(at));
    }

    /// When this was last known.
    pub fn confirmed(&self) -> Option<Duration> {
        self.confirmed
    }

    /// What it does with new streams now.
    pub fn standing(&self, now: Duration) -> Standing {
        if !self.has_view {
            return Standing::Empty;
        }
        match self.behind_since() {
            since if now < since => Standing::Fresh,
            since if now - since < self.limits.stale_after => Standing::Behind,
            _ => Standing::Stale,
        }
    }

    /// When this changes by itself.
    pub fn changes_at(&self, now: Duration) -> Option<Duration> {
        let since = self.behind_since();
        match self.standing(now) {
            Standing::Fresh => Some(since),
            Standing::Behind => Some(since + self.limits.stale_after),
            Standing::Empty | Standing::Stale => None,
        }
    }

    fn behind_since(&self) -> Duration {
        // Who has not listed yet is behind from the start.
        self.confirmed.map_or(Duration::ZERO, |at| at + self.limits.behind_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_anything_to_serve_it_refuses_for_ever_fb27() {
        let freshness = Freshness::new(Limits::default(), false);
        assert_eq!(freshness.standing(seconds(0)), Standing::Empty);
        assert_eq!(freshness.standing(seconds(1_000_000)), Standing::Empty);
        assert_eq!(freshness.changes_at(seconds(0)), None);
    }

    #[test]
    fn it_is_behind_after_15_s_and_serves_again_after_60_s_more_fb27() {
        let mut freshness = Freshness::new(Limits::default(), false);
        freshness.confirm(seconds(100));
        assert_eq!(
            (freshness.standing(seconds(100)), freshness.changes_at(seconds(100))),
            (Standing::Fresh, Some(seconds(115)))
        );
        assert_eq!(freshness.standing(seconds(114)), Standing::Fresh);
        assert_eq!(
            (freshness.standing(seconds(115)), freshness.changes_at(seconds(115))),
            (Standing::Behind, Some(seconds(175)))
        );
        assert_eq!((freshness.standing(seconds(175)), freshness.changes_at(seconds(175))), (Standing::Stale, None));
        freshness.confirm(seconds(200));
        assert_eq!(freshness.standing(seconds(200)), Standing::Fresh);
    }

    #[test]
    fn an_older_word_takes_nothing_back() {
        let mut freshness = Freshness::new(Limits::default(), false);
        freshness.confirm(seconds(100));
        freshness.confirm(seconds(90));
        assert_eq!(freshness.confirmed(), Some(seconds(100)));
    }

    #[test]
    fn a_restart_without_the_engine_serves_its_own_view_after_60_s_fb28() {
        let freshness = Freshness::new(Limits::default(), true);
        assert_eq!(freshness.standing(seconds(0)), Standing::Behind);
        assert_eq!(freshness.standing(seconds(59)), Standing::Behind);
        assert_eq!(freshness.standing(seconds(60)), Standing::Stale);
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
}
