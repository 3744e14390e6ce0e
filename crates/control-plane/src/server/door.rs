//! The door of a server: who may open a stream now, who waits a little, and who is told to come back later.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::{Code, Status};

use crate::admission::{Bucket, Limits, below};
use crate::event::{Refusal, lock};

/// Admission with a clock, randomness and tasks.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) limits: Limits,
    streams: Mutex<Bucket>,
    work: Semaphore,
    handshakes: Semaphore,
    /// Why nobody is let in, if so.
    closed: Mutex<Option<String>>,
}

impl Door {
    pub(super) fn new(limits: Limits) -> Self {
        let streams = Bucket::new(limits.streams_per_second, limits.stream_burst, Instant::now());
        Self {
            streams: Mutex::new(streams),
            work: Semaphore::new(limits.work.max(1)),
            handshakes: Semaphore::new(limits.handshakes.max(1)),
            closed: Mutex::default(),
            limits,
        }
    }

    /// Lets nobody in any more for this reason, or everybody again.
    pub(super) fn close(&self, reason: Option<String>) {
        *lock(&self.closed) = reason;
    }

    /// Waits for the turn of a new stream (FB-32), or says why it is not let in (FB-33).
    pub(super) async fn admit(&self) -> Result<(), (Refusal, Status)> {
        if let Some(reason) = &*lock(&self.closed) {
            return Err((Refusal::Closed, self.away(reason)));
        }
        let turn = lock(&self.streams).take(Instant::now(), self.limits.longest_wait);
        match turn {
            Some(Duration::ZERO) => Ok(()),
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => Err((Refusal::Busy, self.away("too many streams are being opened"))),
        }
    }

    /// Waits for the turn to make a first response.
    pub(super) async fn work(&self) -> Result<SemaphorePermit<'_>, Status> {
        let turn = tokio::time::timeout(self.limits.longest_wait, self.work.acquire());
        // The semaphore is never closed.
        turn.await.ok().and_then(Result::ok).ok_or_else(|| self.away("too many first responses are being made"))
    }

    /// Waits for the turn of a TLS handshake (FB-40).
    pub(super) async fn handshake(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }

    /// What whoever is refused or sent away is told.
    pub(super) fn away(&self, why: &str) -> Status {
        let mut status = Status::new(Code::Unavailable, format!("{why}; come back later"));
        let millis = self.limits.come_back(&mut draw).as_millis();
        if let Ok(value) = millis.to_string().parse() {
            status.metadata_mut().insert(PUSH_BACK, value);
        }
        status
    }

    /// How long a connection may live.
    pub(super) fn age(&self) -> Option<Duration> {
        self.limits.age(&mut draw)
    }

    /// A moment of the time over which a server empties.
    pub(super) fn moment_of(over: Duration) -> Duration {
        below(over, &mut draw)
    }
}

fn draw(bound: u64) -> u64 {
    fastrand::u64(..bound.max(1))
}

/// gRPC's word for "try again after so many milliseconds" (A6).
const PUSH_BACK: &str = "grpc-retry-pushback-ms";
