//! The channelz nodes of channels, subchannels and xDS servers: an id, counters of calls, and a trace of the last events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use mainstay_xds::client::Report;

pub(crate) use crate::calls::{Call, CallCounters, Calls};

/// A node of channelz: counters of calls, and what happened.
#[derive(Debug)]
pub(crate) struct ChannelzNode {
    pub(crate) counters: Arc<CallCounters>,
    trace: Mutex<Trace>,
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

/// An id that nothing else in the process has, now or later.
pub(crate) fn new_id() -> i64 {
    static LAST_ID: AtomicI64 = AtomicI64::new(0);
    LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
}

// === impl CallCounters ===

impl CallCounters {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::with_id(new_id()))
    }
}

// === impl ChannelzNode ===

impl ChannelzNode {
    pub(crate) fn new() -> Self {
        let trace = Trace { created: SystemTime::now(), logged: 0, events: VecDeque::new() };
        Self { counters: CallCounters::new(), trace: Mutex::new(trace) }
    }

    /// Notes a report.
    pub(crate) fn note(&self, report: &Report) {
        let (warning, text) = words(report);
        self.push(TraceEvent { at: SystemTime::now(), warning, text });
    }

    pub(crate) fn trace(&self) -> Trace {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, event: TraceEvent) {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.logged += 1;
        if trace.events.len() == TRACE_LENGTH {
            trace.events.pop_front();
        }
        trace.events.push_back(event);
    }
}

/// A report in words, and whether somebody may have to look.
fn words(report: &Report) -> (bool, String) {
    match report {
        Report::Connecting(_) => (false, "connecting".to_owned()),
        Report::Connected(_) => (false, "connected, stream open".to_owned()),
        Report::Answered(_) => (false, "first response".to_owned()),
        Report::Alive(_) => (false, "reachable again, nothing new".to_owned()),
        Report::Unreachable(_, cause, pause) => (true, format!("unreachable, next attempt in {pause:.1?}: {cause}")),
        Report::StreamEnded(_, cause, pause) => (false, format!("stream ended, opened again in {pause:.1?}: {cause}")),
        Report::DeltaRefused(_, cause) => (false, format!("does not speak delta: {cause}")),
        Report::FellBack(authority, server) => (true, format!("{authority} fell back to {}", server.server_uri)),
        Report::Recovered(authority, server) => (false, format!("{authority} returned to {}", server.server_uri)),
        Report::Acked(_, kind, version, received) => {
            (false, format!("{} {kind} accepted, version {version:?}", received.resources))
        }
        Report::Nacked(_, kind, version, _, error) => (true, format!("{kind} version {version:?} rejected: {error}")),
        Report::TimedOut(_, resource) => (true, format!("{resource} was not sent in time")),
        Report::Ignored(_, reason) => (true, format!("message ignored: {reason}")),
        Report::DeletionIgnored(_, resource) => (true, format!("deletion of {resource} ignored")),
        Report::DeletionOver(_, resource) => (false, format!("{resource} is back or not watched any more")),
        Report::SecurityIgnored(cluster) => (true, format!("cluster {cluster:?} asks for TLS, which is not followed")),
    }
}

/// Events that are kept. The newest explain the state.
const TRACE_LENGTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_failed_unless_it_succeeds() {
        let counters = CallCounters::new();
        assert_ne!(counters.id, CallCounters::new().id);
        counters.begin().succeed();
        let before = counters.calls();
        drop(counters.begin());
        let open = counters.begin();
        let now = counters.calls();
        assert_eq!(now, Calls { started: 3, succeeded: 1, failed: 1 });
        assert_eq!(now.since(before), Calls { started: 2, succeeded: 0, failed: 1 });
        assert_eq!(before.since(now), Calls::default());
        open.succeed();
    }

    #[test]
    fn the_newest_events_are_kept_and_all_are_counted() {
        let channelz = ChannelzNode::new();
        for number in 0..40 {
            channelz.push(TraceEvent { at: SystemTime::now(), warning: false, text: number.to_string() });
        }
        let trace = channelz.trace();
        assert_eq!((trace.logged, trace.events.len()), (40, TRACE_LENGTH));
        assert_eq!(trace.events.back().map(|event| event.text.as_str()), Some("39"));
    }
}
