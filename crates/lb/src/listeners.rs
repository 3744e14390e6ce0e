//! Who wants to hear how an RPC ends.

use http::HeaderMap;

use crate::breaker::InFlight;

/// Everyone on the way of an RPC through the tree who wants to hear how it ends. Dropped without a word, they take the
/// RPC for cancelled.
#[derive(Debug, Default)]
pub struct Listeners {
    in_flight: Option<InFlight>,
}

/// How an RPC ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// gRPC status code.
    pub code: u8,
    /// What came with the status from the endpoint; none if the connection broke.
    pub trailers: Option<&'a HeaderMap>,
}

impl Listeners {
    /// Tells everyone.
    pub fn end(self, _ending: Ending<'_>) {
        drop(self.in_flight); // Whatever the status (L-86).
    }

    /// Adds the place in the circuit breaker.
    pub(crate) fn with_place(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight);
        self
    }
}
