//! The tracker of a call: who hears how an RPC ends.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use mainstay_xds::Code;
use mainstay_xds::lrs::Load;
use mainstay_xds::orca::ORCA_TRAILER;

use crate::breaker::InFlight;
use crate::calls::{CallCounter, Counted};
use crate::orca::Reports;

/// Everyone on the way of an RPC through the tree who wants to hear how it ends. Dropped without a word, they take the
/// RPC for cancelled.
#[derive(Debug, Default)]
pub struct CallTracker {
    in_flight: Option<InFlight>,
    counted: Counted,
    request: Option<InFlight>,
    reports: Option<Arc<Reports>>,
    load: Option<Load>,
}

/// How an RPC ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// gRPC status code.
    pub code: Code,
    /// What came with the status from the endpoint; none if the connection broke.
    pub trailers: Option<&'a HeaderMap>,
}

impl CallTracker {
    /// Tells everyone.
    pub fn end(self, ending: Ending<'_>) {
        drop((self.in_flight, self.request)); // Whatever the status (L-86, L-105).
        self.counted.end(ending.code == Code::Ok);
        if let (Some(reports), Some(trailers)) = (self.reports, ending.trailers) {
            reports.read_trailers(trailers); // L-109
        }
        if let Some(load) = self.load {
            let orca = ending.trailers.and_then(|trailers| trailers.get(ORCA_TRAILER));
            load.end(ending.code == Code::Ok, orca.map(HeaderValue::as_bytes));
        }
    }

    /// Lets everyone go: the RPC never reached the endpoint, so it says nothing about it.
    pub fn withdraw(self) {
        self.counted.withdraw();
        if let Some(load) = self.load {
            load.withdraw();
        }
    }

    /// Adds who reads the report that comes with the status, if anyone does.
    pub(crate) fn with_reports(mut self, reports: Option<&Arc<Reports>>) -> Self {
        self.reports = reports.cloned();
        self
    }

    /// Adds the count among the requests of an endpoint (L-105).
    pub(crate) fn with_request(mut self, request: InFlight) -> Self {
        self.request = Some(request);
        self
    }

    /// Adds the count of the circuit breaker.
    pub(crate) fn with_place(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight);
        self
    }

    /// Adds the RPC in the load reports, if there are any.
    pub(crate) fn with_load(mut self, load: Option<Load>) -> Self {
        self.load = load;
        self
    }

    /// Adds the counter of the endpoint, if its RPCs are counted.
    pub(crate) fn with_counter(mut self, counter: Option<&Arc<CallCounter>>) -> Self {
        if let Some(counter) = counter {
            self.counted = Counted::new(counter);
        }
        self
    }
}
