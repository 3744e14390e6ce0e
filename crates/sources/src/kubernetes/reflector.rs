//! What is known of the objects of one kind: listed, then watched from there (KB-10 to KB-13).
//!
//! ```text
//!            list            watch            open             the end of its span
//!   Down ──────────► Listing ─────► Opening ─────► Watching ─────────────────────► Opening
//!     ▲                 │              │              │  410: list anew
//!     └─────────────────┴──────────────┴──────────────┘
//!        a failure; after a pause it goes on where it was
//! ```
//!
//! A watch may fall silent without an end, so each is asked to end after a short span, before which the API server tells how far it
//! is. And a watch may lack something that the store has, so everything is listed again now and then, and compared when the
//! watch is as far as the list.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::kubernetes::object::Key;

/// Keeps up with one kind of objects, of which it knows the versions only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reflector<T> {
    state: State,
    /// The version of each object.
    held: BTreeMap<Key, String>,
    /// From where to watch; without it, everything is listed.
    position: Option<String>,
    is_complete: bool,
    /// Which list or watch is under way: what earlier ones bring is too late.
    attempt: u64,
    /// Whether anything was told since the last list.
    is_told: bool,
    failures: u32,
    asked: Option<Duration>,
    reading: Option<Duration>,
    /// When the last question was sent that has been answered.
    answered: Option<Duration>,
    confirmed: Option<Duration>,
    read_at: Duration,
    compare_at: Duration,
    comparing: Option<Listed<T>>,
    differences: u64,
    trouble: Option<String>,
    actions: VecDeque<Action>,
    changes: VecDeque<Change<T>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down { retry_at: Duration },
    Listing { until: Duration },
    Opening { until: Duration },
    Watching { since: Duration },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// List everything.
    List { attempt: u64 },
    /// Watch from this position, for [`SPAN`].
    Watch { attempt: u64, from: String },
    /// Give up the list or watch that is under way.
    Stop,
    /// List everything beside the watch.
    Compare,
    /// Ask for one object, so that the store must answer.
    Read { sent: Duration },
}

/// What has become of an object; gone without a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change<T> {
    pub(crate) key: Key,
    pub(crate) value: Option<T>,
}

/// Everything that there is, as of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed<T> {
    pub(crate) version: String,
    pub(crate) items: BTreeMap<Key, (String, T)>,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told<T> {
    Put {
        key: Key,
        version: String,
        value: T,
    },
    Gone {
        key: Key,
        version: String,
    },
    /// Nothing up to this version but what was told.
    Bookmark {
        version: String,
    },
}

/// Why something did not go well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// What was asked for is not there any more: everything is to be listed again.
    Expired,
    /// Anything else, in words.
    Failed(String),
}

impl<T: Clone> Reflector<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Down { retry_at: Duration::ZERO },
            held: BTreeMap::new(),
            position: None,
            is_complete: false,
            attempt: 0,
            is_told: false,
            failures: 0,
            asked: None,
            reading: None,
            answered: None,
            confirmed: None,
            read_at: Duration::ZERO,
            compare_at: Duration::ZERO,
            comparing: None,
            differences: 0,
            trouble: None,
            actions: VecDeque::new(),
            changes: VecDeque::new(),
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn poll_change(&mut self) -> Option<Change<T>> {
        self.changes.pop_front()
    }

    /// Whether everything was there once.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// When what is known was last known to be current.
    pub(crate) fn confirmed(&self) -> Option<Duration> {
        self.confirmed
    }

    /// How often the watch had not told what the store has.
    pub(crate) fn differences(&self) -> u64 {
        self.differences
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When something is to be done, whatever happens.
    pub(crate) fn deadline(&self) -> Duration {
        let of_state = match self.state {
            State::Down { retry_at } => retry_at,
            State::Listing { until } | State::Opening { until } => until,
            State::Watching { since } => (since + SPAN + GRACE).min(self.compare_at),
        };
        match (self.reading, self.state) {
            (Some(sent), _) => of_state.min(sent + PATIENCE),
            (None, State::Watching { .. }) => of_state.min(self.read_at),
            (None, State::Down { .. } | State::Listing { .. } | State::Opening { .. }) => of_state,
        }
    }

    /// `jitter` is from 0 to 1.
    pub(crate) fn handle_timeout(&mut self, now: Duration, jitter: f64) {
        if let Some(sent) = self.reading.filter(|sent| sent.saturating_add(PATIENCE) <= now) {
            self.handle_read(now, sent, Err(Trouble::Failed("no answer in time".to_owned())));
        }
        match self.state {
            State::Down { retry_at } if retry_at <= now => self.go_on(now),
            State::Listing { until } | State::Opening { until } if until <= now => {
                self.fail(now, jitter, "no answer in time".to_owned());
            }
            State::Watching { since } if since + SPAN + GRACE <= now => {
                self.fail(now, jitter, "the watch gives no sign of life".to_owned());
            }
            State::Watching { .. } => {
                if self.read_at <= now {
                    self.read(now);
                }
                if self.compare_at <= now {
                    self.compare_at = now + COMPARE.mul_f64(0.75 + jitter / 2.0);
                    self.actions.push_back(Action::Compare);
                }
            }
            State::Down { .. } | State::Listing { .. } | State::Opening { .. } => {}
        }
    }

    /// Somebody wants to know whether what is known is current.
    pub(crate) fn handle_asked(&mut self, now: Duration) {
        self.asked = Some(now);
        self.read(now);
    }

    /// A list has come to its end.
    pub(crate) fn handle_listed(
        &mut self,
        now: Duration,
        jitter: f64,
        attempt: u64,
        listed: Result<Listed<T>, Trouble>,
    ) {
        if attempt != self.attempt || !matches!(self.state, State::Listing { .. }) {
            return;
        }
        match listed {
            Ok(listed) => {
                self.failures = 0;
                self.is_complete = true;
                self.is_told = false;
                self.trouble = None;
                self.comparing = None;
                self.compare_at = now + COMPARE.mul_f64(0.75 + jitter / 2.0);
                self.position = Some(listed.version.clone());
                self.adopt(listed);
                self.go_on(now);
            }
            // While it was listed page by page, the version of the first one went away.
            Err(Trouble::Expired) => self.fail(now, jitter, "the list took too long".to_owned()),
            Err(Trouble::Failed(why)) => self.fail(now, jitter, why),
        }
    }

    /// The watch is open.
    pub(crate) fn handle_open(&mut self, now: Duration, attempt: u64) {
        if attempt == self.attempt && matches!(self.state, State::Opening { .. }) {
            self.state = State::Watching { since: now };
            self.confirm();
            if self.reading.is_none() && (self.answered.is_none() || self.asked > self.answered) {
                self.read(now);
            }
        }
    }

    /// The watch tells something.
    pub(crate) fn handle_told(&mut self, attempt: u64, told: Told<T>) {
        if attempt != self.attempt || !matches!(self.state, State::Watching { .. }) {
            return;
        }
        (self.failures, self.is_told) = (0, true);
        let version = match &told {
            Told::Put { version, .. } | Told::Gone { version, .. } | Told::Bookmark { version } => version.clone(),
        };
        // As of the list it must be what the list has: before anything later is believed.
        self.compare(&version, false);
        match told {
            Told::Put { key, version, value } => {
                // After a watch was interrupted it may tell again what is known.
                if self.held.get(&key) != Some(&version) {
                    self.held.insert(key.clone(), version);
                    self.changes.push_back(Change { key, value: Some(value) });
                }
            }
            Told::Gone { key, .. } => {
                if self.held.remove(&key).is_some() {
                    self.changes.push_back(Change { key, value: None });
                }
            }
            Told::Bookmark { .. } => {}
        }
        self.compare(&version, true);
        self.position = Some(version);
    }

    /// The watch, or the attempt to open it, has ended.
    pub(crate) fn handle_watch_end(&mut self, now: Duration, jitter: f64, attempt: u64, end: Result<(), Trouble>) {
        if attempt != self.attempt || !matches!(self.state, State::Opening { .. } | State::Watching { .. }) {
            return;
        }
        match (end, self.state) {
            (Ok(()), State::Watching { since }) if since + SHORTEST <= now => self.go_on(now),
            (Ok(()), _) => self.fail(now, jitter, "the watch ended at once".to_owned()),
            (Err(Trouble::Expired), _) => {
                self.position = None;
                if self.is_told {
                    self.go_on(now);
                } else {
                    self.fail(now, jitter, "what was just listed cannot be watched".to_owned());
                }
            }
            (Err(Trouble::Failed(why)), _) => self.fail(now, jitter, why),
        }
    }

    /// A list beside the watch has come to its end; if it has not, there is another one in a while.
    pub(crate) fn handle_compared(&mut self, listed: Option<Listed<T>>) {
        self.comparing = listed;
        // Often nothing happens after it for long.
        if let Some(position) = self.position.clone() {
            self.compare(&position, true);
        }
    }

    /// A question was answered, or not.
    pub(crate) fn handle_read(&mut self, now: Duration, sent: Duration, outcome: Result<(), Trouble>) {
        if self.reading != Some(sent) {
            return;
        }
        self.reading = None;
        match outcome {
            Ok(()) => {
                self.answered = self.answered.max(Some(sent));
                self.confirm();
                if self.asked > Some(sent) {
                    self.read(now);
                }
            }
            Err(Trouble::Expired) => self.trouble = Some("a read was answered with 410 Gone".to_owned()),
            Err(Trouble::Failed(why)) => self.trouble = Some(why),
        }
    }

    /// Begins the next list or watch.
    fn go_on(&mut self, now: Duration) {
        self.attempt += 1;
        let attempt = self.attempt;
        match self.position.clone() {
            Some(from) => {
                self.state = State::Opening { until: now + PATIENCE };
                self.actions.push_back(Action::Watch { attempt, from });
            }
            None => {
                self.state = State::Listing { until: now + LIST };
                self.actions.push_back(Action::List { attempt });
            }
        }
    }

    fn fail(&mut self, now: Duration, jitter: f64, why: String) {
        let pause = (FIRST_PAUSE * 2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1).min(16);
        self.attempt += 1;
        self.state = State::Down { retry_at: now + pause.mul_f64(0.5 + jitter / 2.0) };
        self.trouble = Some(why);
        self.actions.push_back(Action::Stop);
    }

    fn read(&mut self, now: Duration) {
        if self.reading.is_none() {
            self.reading = Some(now);
            self.read_at = now + BEAT;
            self.actions.push_back(Action::Read { sent: now });
        }
    }

    /// What is known is current as of an answer, if a watch is open that would have told of more.
    fn confirm(&mut self) {
        if let State::Watching { .. } = self.state
            && self.answered.is_some()
        {
            self.confirmed = self.confirmed.max(self.answered);
            self.trouble = None;
        }
    }

    /// Compares with the last list: if `up_to` is its version, or later, and everything before that is known (`is_applied`).
    fn compare(&mut self, up_to: &str, is_applied: bool) {
        let Some(listed) = &self.comparing else { return };
        // Versions that are not numbers cannot be compared.
        let (Ok(up_to), Ok(as_of)) = (up_to.parse::<u64>(), listed.version.parse::<u64>()) else {
            self.comparing = None;
            return;
        };
        let is_due = if is_applied { up_to == as_of } else { up_to > as_of };
        if is_due && let Some(listed) = self.comparing.take() {
            let before = self.changes.len();
            self.adopt(listed);
            self.differences += (self.changes.len() - before) as u64;
        } else if up_to > as_of {
            // The watch was further already: another list has to do.
            self.comparing = None;
        }
    }

    /// Takes a list for the truth.
    fn adopt(&mut self, Listed { items, .. }: Listed<T>) {
        let gone: Vec<_> = self.held.keys().filter(|key| !items.contains_key(*key)).cloned().collect();
        for key in gone {
            self.held.remove(&key);
            self.changes.push_back(Change { key, value: None });
        }
        for (key, (version, value)) in items {
            if self.held.get(&key) != Some(&version) {
                self.held.insert(key.clone(), version);
                self.changes.push_back(Change { key, value: Some(value) });
            }
        }
    }
}

/// How long a watch lives: it is opened again from where it was. Short, so that one that has died without a word is found before
/// what it told is too old (FB-27).
pub(crate) const SPAN: Duration = Duration::from_secs(10);
/// How much longer it may take to end.
const GRACE: Duration = Duration::from_secs(3);
/// A watch that ends sooner has failed.
const SHORTEST: Duration = Duration::from_secs(1);
/// How often the store is asked whether it is there.
const BEAT: Duration = Duration::from_secs(5);
/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a list of everything may take.
pub(crate) const LIST: Duration = Duration::from_secs(60);
/// How often everything is listed again, to see whether the watch has told all of it.
const COMPARE: Duration = Duration::from_secs(10 * 60);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
