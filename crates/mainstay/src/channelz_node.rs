//! The channelz nodes of channels, subchannels and xDS servers: an id, counters of calls, and a trace of the last events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use mainstay_xds::client::{Level, Report};

use crate::process::new_id;

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
        let warning = report.level() == Level::Warn;
        self.note_event(warning, report.to_string());
    }

    /// Notes something else that happened, and whether somebody may have to look.
    pub(crate) fn note_event(&self, warning: bool, text: String) {
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
