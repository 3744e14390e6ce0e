//! The picker of least_request: of some endpoints, the one with the fewest RPCs under way (A48, L-105).

use std::sync::Arc;

use super::{Pick, PickArgs, Ready, Runs};
use crate::breaker::Counter;
use crate::call_tracker::CallTracker;
use crate::subchannel::Subchannel;
use crate::trace::{Recorder, Step};

/// Connections, each with the number of its RPCs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeastRequestPicker<S> {
    endpoints: Runs<(Ready<S>, Arc<Counter>)>,
    choices: u8,
}

impl<S: Subchannel> LeastRequestPicker<S> {
    pub(crate) fn new(endpoints: Runs<(Ready<S>, Arc<Counter>)>, choices: u8) -> Self {
        Self { endpoints, choices }
    }

    /// For the next picker.
    pub(crate) fn endpoints(&self) -> &Runs<(Ready<S>, Arc<Counter>)> {
        &self.endpoints
    }

    pub(super) fn pick<R: Recorder>(&self, args: &mut PickArgs<'_, R>) -> Pick<'_, S> {
        args.recorder.record(|| Step::endpoints("least_request", self.endpoints.iter().map(|(ready, _)| ready)));
        let count = self.endpoints.len();
        let mut best: Option<(&Ready<S>, &Arc<Counter>, u32)> = None;
        for _ in 0..self.choices {
            // The same one may be drawn twice (A48).
            let draw = if count > 1 { args.choose.choose(count as u64) as usize } else { 0 };
            let Some((ready, counter)) = self.endpoints.get(draw) else { return Pick::lost() };
            let under_way = counter.in_flight();
            let is_better = best.is_none_or(|(_, _, least)| under_way < least); // The first of equals.
            if is_better && ready.subchannel.is_ready() {
                best = Some((ready, counter, under_way));
            }
            if count == 1 {
                break;
            }
        }
        // If all that were drawn have just died, any other will do.
        let any = || self.endpoints.iter().find(|(ready, _)| ready.subchannel.is_ready());
        match best
            .map(|(ready, counter, _)| (ready, counter))
            .or_else(|| any().map(|(ready, counter)| (ready, counter)))
        {
            Some((ready, counter)) => Pick::Send(ready, CallTracker::default().with_request(counter.acquire())),
            None => Pick::lost(),
        }
    }
}
