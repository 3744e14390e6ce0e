//! The books of channels, subchannels and connections, which channelz shows: an id, counters, the last events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mainstay_xds::client::Report;

/// The books of one channel, subchannel or connection.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Unique in the process and never used twice (I-21).
    pub(crate) id: i64,
    /// What this is a part of: its calls are calls of the whole.
    whole: Option<Arc<Ledger>>,
    created: SystemTime,
    since: Instant,
    started: AtomicI64,
    succeeded: AtomicI64,
    failed: AtomicI64,
    /// Nanoseconds from the creation to the last call; 0 if there was none.
    last_started: AtomicU64,
    trace: Mutex<Trace>,
}

/// A call in the books: failed unless it is said to have succeeded.
#[derive(Debug)]
pub(crate) struct Call {
    ledger: Arc<Ledger>,
    succeeded: bool,
}

/// Counters at one moment. Never more ended calls than started ones (I-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) started: i64,
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
    pub(crate) last_started: Option<SystemTime>,
}

/// What happened, the newest last.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) created: SystemTime,
    /// How many events there were in all.
    pub(crate) logged: i64,
    pub(crate) events: VecDeque<TraceEvent>,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub(crate) struct TraceEvent {
    pub(crate) at: SystemTime,
    pub(crate) warning: bool,
    pub(crate) text: String,
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn new(whole: Option<Arc<Ledger>>) -> Arc<Self> {
        static LAST_ID: AtomicI64 = AtomicI64::new(0);
        let created = SystemTime::now();
        Arc::new(Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            whole,
            created,
            since: Instant::now(),
            started: AtomicI64::new(0),
            succeeded: AtomicI64::new(0),
            failed: AtomicI64::new(0),
            last_started: AtomicU64::new(0),
            trace: Mutex::new(Trace { created, logged: 0, events: VecDeque::new() }),
        })
    }

    /// Enters a call that begins now.
    pub(crate) fn begin(self: &Arc<Self>) -> Call {
        for ledger in self.up() {
            ledger.started.fetch_add(1, Ordering::Relaxed);
            let now = u64::try_from(ledger.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            ledger.last_started.store(now.max(1), Ordering::Relaxed);
        }
        Call { ledger: self.clone(), succeeded: false }
    }

    pub(crate) fn note(&self, warning: bool, text: String) {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.logged += 1;
        if trace.events.len() == TRACE_LENGTH {
            trace.events.pop_front();
        }
        trace.events.push_back(TraceEvent { at: SystemTime::now(), warning, text });
    }

    pub(crate) fn calls(&self) -> Calls {
        // Ended ones first: what ends between the reads has begun before.
        let (succeeded, failed) = (self.succeeded.load(Ordering::Acquire), self.failed.load(Ordering::Acquire));
        let last_started = match self.last_started.load(Ordering::Relaxed) {
            0 => None,
            nanos => self.created.checked_add(Duration::from_nanos(nanos)),
        };
        Calls { started: self.started.load(Ordering::Relaxed), succeeded, failed, last_started }
    }

    pub(crate) fn trace(&self) -> Trace {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This one and everything it is a part of.
    fn up(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |ledger| ledger.whole.as_deref())
    }
}

// === impl Call ===

impl Call {
    /// The call has ended with OK.
    pub(crate) fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for ledger in self.ledger.up() {
            let ended = if self.succeeded { &ledger.succeeded } else { &ledger.failed };
            ended.fetch_add(1, Ordering::Release);
        }
    }
}

/// A report in words, and whether somebody may have to look.
pub(crate) fn words(report: &Report) -> (bool, String) {
    match report {
        Report::Connecting(_) => (false, "connecting".to_owned()),
        Report::Connected(_) => (false, "connected, stream open".to_owned()),
        Report::Answered(_) => (false, "first response".to_owned()),
        Report::Unreachable(_, cause, pause) => (true, format!("unreachable, next attempt in {pause:.1?}: {cause}")),
        Report::StreamEnded(_, cause, pause) => (false, format!("stream ended, opened again in {pause:.1?}: {cause}")),
        Report::FellBack(authority, server) => (true, format!("{authority} fell back to {}", server.server_uri)),
        Report::Recovered(authority, server) => (false, format!("{authority} returned to {}", server.server_uri)),
        Report::Acked(_, kind, version, count) => (false, format!("{count} {kind} accepted, version {version:?}")),
        Report::Nacked(_, kind, version, error) => (true, format!("{kind} version {version:?} rejected: {error}")),
        Report::TimedOut(_, resource) => (true, format!("{resource} was not sent in time")),
        Report::Ignored(_, reason) => (true, format!("message ignored: {reason}")),
        Report::DeletionIgnored(_, resource) => (true, format!("deletion of {resource} ignored")),
        Report::DeletionOver(_, resource) => (false, format!("{resource} is back or not watched any more")),
        other => (false, format!("{other:?}")),
    }
}

/// Events that are kept. The newest explain the state.
const TRACE_LENGTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_for_the_whole_and_fails_unless_it_succeeds() {
        let whole = Ledger::new(None);
        let part = Ledger::new(Some(whole.clone()));
        assert!(part.id > whole.id);
        part.begin().succeed();
        drop(part.begin());
        let _open = part.begin();
        for ledger in [whole, part] {
            let Calls { started, succeeded, failed, last_started } = ledger.calls();
            assert_eq!((started, succeeded, failed), (3, 1, 1));
            assert!(last_started.is_some());
        }
    }

    #[test]
    fn the_newest_events_are_kept_and_all_are_counted() {
        let ledger = Ledger::new(None);
        for number in 0..40 {
            ledger.note(false, number.to_string());
        }
        let trace = ledger.trace();
        assert_eq!((trace.logged, trace.events.len()), (40, TRACE_LENGTH));
        assert_eq!(trace.events.back().map(|event| event.text.as_str()), Some("39"));
    }
}
