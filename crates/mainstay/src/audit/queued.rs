//! A logger that does not block, in front of one that may.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};

use super::{AuditLogger, AuditRecord};
use crate::guard;

/// Hands records to another logger on a thread of its own, through a queue.
///
/// Dropping it lets the thread write what is in the queue, and end.
pub struct Queued {
    queue: SyncSender<Item>,
    on_full: OnFull,
    lost: AtomicU64,
}

/// What is in the queue.
enum Item {
    Record(AuditRecord),
    /// Somebody waits until all before it is written.
    Mark(mpsc::Sender<()>),
}

/// The queue between RPCs and an audit logger that may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct AuditQueue {
    capacity: usize,
    on_full: OnFull,
}

/// What becomes of a record for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFull {
    /// It is lost, and counted. RPCs do not wait for a log.
    #[default]
    Lose,
    /// Its RPC waits for room and holds up its thread, and so do all others that have something to tell. For those who must
    /// not lose a record: if the log is stuck, so is the server.
    Block,
}

// === impl AuditQueue ===

impl AuditQueue {
    /// Sets how many records there is room for; 4,096 by default, at least 1.
    pub const fn capacity(mut self, records: usize) -> Self {
        self.capacity = records;
        self
    }

    /// Sets what becomes of a record for which there is no room; by default it is lost.
    pub const fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }
}

impl Default for AuditQueue {
    fn default() -> Self {
        Self { capacity: 4096, on_full: OnFull::default() }
    }
}

// === impl Queued ===

impl Queued {
    /// Returns a logger that hands records to `logger`.
    pub fn new(logger: impl AuditLogger, queue: AuditQueue) -> Self {
        let (sender, items) = mpsc::sync_channel(queue.capacity.max(1));
        let write = move || {
            for item in items {
                match item {
                    Item::Record(record) => guard::shielded("an audit logger", || logger.log(&record)),
                    // Whoever waits may have given up.
                    Item::Mark(reached) => _ = reached.send(()),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("mainstay-audit".to_owned()).spawn(write) {
            // The receiver went with the closure: all records will be counted as lost.
            tracing::error!(%error, "no thread for audit records, which are lost");
        }
        Self { queue: sender, on_full: queue.on_full, lost: AtomicU64::new(0) }
    }

    /// Returns how many records were lost, for want of room or because there is no thread.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Blocks until all records so far are written.
    pub(super) fn flush(&self) {
        let (reached, written) = mpsc::channel();
        if self.queue.send(Item::Mark(reached)).is_ok() {
            // An error is a thread that has ended: it will not write any more.
            let _ = written.recv();
        }
    }

    fn lose(&self) {
        // In powers of two: a log that is stuck must not fill another.
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        if lost.is_power_of_two() {
            tracing::warn!(lost, "audit records are lost");
        }
    }
}

impl AuditLogger for Queued {
    fn log(&self, record: &AuditRecord) {
        match self.queue.try_send(Item::Record(record.clone())) {
            Ok(()) => {}
            Err(TrySendError::Full(item)) => match self.on_full {
                OnFull::Lose => self.lose(),
                OnFull::Block => {
                    if self.queue.send(item).is_err() {
                        self.lose();
                    }
                }
            },
            Err(TrySendError::Disconnected(_)) => self.lose(),
        }
    }
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queued").field("on_full", &self.on_full).field("lost", &self.lost()).finish_non_exhaustive()
    }
}
