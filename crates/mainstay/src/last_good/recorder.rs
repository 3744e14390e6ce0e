//! When what is in force is written (FB-4, FB-6).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use futures_util::StreamExt;
use mainstay_xds::Time;
use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::client::{Capture, Captured};
use mainstay_xds::local::{LastGoodFile, Stored};
use mainstay_xds::name::AuthorityKey;
use tokio::time::Instant;

use super::store::{Store, wall_clock};
use crate::event::Event;

/// Decides when a driver looks for something to keep, and has it written elsewhere. Belongs to the driver.
pub(crate) struct Recorder {
    store: Arc<Store>,
    events: UnboundedReceiver<Event>,
    start: Instant,
    /// Whether anything may be different since the last look.
    is_stirred: bool,
    next_look: Instant,
    kept: BTreeMap<AuthorityKey, Kept>,
}

/// What was kept last.
struct Kept {
    capture: Capture,
    at: Instant,
}

/// Why a driver is woken.
pub(crate) enum Wake {
    /// It is time for [`Recorder::record`].
    Look,
    /// Something became of the files.
    Event(Event),
}

impl Recorder {
    /// None if the bootstrap does not ask for one. `start` is when time began for the core.
    pub(crate) fn new(bootstrap: &Arc<Bootstrap>, key: Arc<str>, start: Instant) -> Option<Self> {
        let (sender, events) = unbounded();
        let store = Store::new(bootstrap, key, sender)?;
        Some(Self { store, events, start, is_stirred: false, next_look: start, kept: BTreeMap::new() })
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Something happened that may have changed what is in force.
    pub(crate) fn stir(&mut self) {
        self.is_stirred = true;
    }

    /// A configuration is in force. The first one is kept at once: the process may not live for long.
    pub(crate) fn published(&mut self) {
        self.is_stirred = true;
        if self.kept.is_empty() {
            self.next_look = self.next_look.min(Instant::now());
        }
    }

    /// Waits until there is something to do; for ever without a recorder.
    pub(crate) async fn next(this: &mut Option<Self>) -> Wake {
        let Some(this) = this else { return std::future::pending().await };
        let refresh = this.kept.values().map(|kept| kept.at + this.refresh()).min();
        let due = if this.is_stirred { Some(this.next_look) } else { refresh.map(|at| at.max(this.next_look)) };
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => Wake::Look,
            Some(event) = this.events.next() => Wake::Event(event),
        }
    }

    /// Keeps what is in force, if it is whole and new, or if it was kept long ago.
    pub(crate) fn record(&mut self, captures: Option<BTreeMap<AuthorityKey, Capture>>) {
        let now = Instant::now();
        let Some(captures) = captures else {
            self.next_look = now + RETRY;
            return;
        };
        self.is_stirred = false;
        self.next_look = now + INTERVAL;
        for (authority, capture) in captures {
            let is_due = match self.kept.get(&authority) {
                None => true,
                Some(kept) if !is_same(&kept.capture, &capture) => true,
                // It holds still, which keeps it from being too old.
                Some(kept) => capture.is_current && kept.at + self.refresh() <= now,
            };
            if is_due {
                self.keep(authority, capture, now);
            }
        }
    }

    fn keep(&mut self, authority: AuthorityKey, capture: Capture, now: Instant) {
        let file = Arc::new(self.file(&authority, &capture));
        self.store.keep(&authority, &file);
        self.kept.insert(authority.clone(), Kept { capture, at: now });
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.write(&authority));
    }

    fn file(&self, authority: &AuthorityKey, capture: &Capture) -> LastGoodFile {
        let now = wall_clock();
        let since_start = self.start.elapsed();
        let at = |time: Time| now.saturating_sub(since_start.saturating_sub(time.since_start()));
        let source: Arc<str> = capture.server.server_uri.as_str().into();
        let is_excluded =
            |stored: &Captured| self.store.settings.exclude_types.contains(&stored.resource.resource_type);
        let resources = capture.resources.iter().filter(|stored| !is_excluded(stored)).map(|captured| Stored {
            resource: captured.resource.clone(),
            version: captured.version.clone(),
            value: captured.value.clone(),
            source: source.clone(),
            received_at: at(captured.at),
        });
        let expected = self.store.expected(authority);
        LastGoodFile {
            key: expected.key,
            authority: expected.authority,
            node_id: expected.node_id,
            servers: expected.servers,
            created_at: now,
            resources: resources.collect(),
        }
    }

    /// How long what holds still is left as it is.
    fn refresh(&self) -> Duration {
        (self.store.settings.max_age / 8).clamp(INTERVAL, REFRESH)
    }
}

/// Whether the content is the same, whenever it came.
fn is_same(before: &Capture, now: &Capture) -> bool {
    let content = |captured: &Captured| (captured.resource.clone(), captured.version.clone(), captured.value.clone());
    before.server == now.server && before.resources.iter().map(content).eq(now.resources.iter().map(content))
}

/// At most one write of each file in this time.
const INTERVAL: Duration = Duration::from_secs(10);
/// The next look after one that found nothing whole.
const RETRY: Duration = Duration::from_secs(1);
const REFRESH: Duration = Duration::from_secs(3600);
