//! Connections to endpoints.
//!
//! ```text
//!            connect()                 connected
//!   IDLE ───────────────► CONNECTING ───────────► READY
//!    ▲                        │ failed              │ lost, or GOAWAY
//!    │      backoff over      ▼                     │
//!    ├──────────────── TRANSIENT_FAILURE            │
//!    └──────────────────────────────────────────────┘
//! ```
//!
//! One task carries a subchannel from CONNECTING back to IDLE and ends there; an idle subchannel costs no task.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use hyper::client::conn::http2::SendRequest;
use mainstay_lb::{Connectivity, Counter, Host, Input, SubchannelId, SubchannelSpec};
use mainstay_xds::client::Intern;
use mainstay_xds::{Backoff, Choose};

use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;

use crate::failure::describe;
use crate::http2::{self, Address, Tls};
use crate::intern::Interner;
use crate::random::Random;

/// A handle of a connection to one address, as snapshots carry it.
#[derive(Clone, Debug)]
pub(crate) struct Subchannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    address: std::net::SocketAddr,
    /// Set while the connection takes requests.
    sender: ArcSwapOption<SendRequest<Body>>,
    /// Attempts that failed since the last success.
    failures: AtomicU32,
}

/// Makes and keeps the subchannels of one channel.
pub(crate) struct Subchannels {
    tls: Option<Tls>,
    settings: ConnectSettings,
    interner: Interner,
    events: mpsc::Sender<Input>,
    slots: BTreeMap<SubchannelId, Slot>,
}

/// How endpoints are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectSettings {
    pub(crate) timeout: Duration,
    pub(crate) backoff: Backoff,
    /// Off for a channel that only shows its configuration.
    pub(crate) enabled: bool,
}

struct Slot {
    subchannel: Subchannel,
    /// Dropped when the subchannel is released, which its task notices.
    released: Option<oneshot::Sender<()>>,
}

// === impl Subchannel ===

impl Subchannel {
    /// The way to send a request, if the connection takes any.
    pub(crate) fn sender(&self) -> Option<SendRequest<Body>> {
        self.0.sender.load().as_deref().cloned()
    }

    /// Where it leads.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.0.address
    }
}

impl mainstay_lb::Subchannel for Subchannel {
    fn is_ready(&self) -> bool {
        self.0.sender.load().as_ref().is_some_and(|sender| sender.is_ready())
    }
}

impl PartialEq for Subchannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Subchannel {}

impl Hash for Subchannel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

// === impl Subchannels ===

impl Subchannels {
    pub(crate) fn new(
        tls: Option<Tls>,
        settings: ConnectSettings,
        interner: Interner,
        events: mpsc::Sender<Input>,
    ) -> Self {
        Self { tls, settings, interner, events, slots: BTreeMap::new() }
    }
}

impl Host for Subchannels {
    type Subchannel = Subchannel;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Subchannel {
        let subchannel = Subchannel(Arc::new(Inner {
            address: spec.address,
            sender: ArcSwapOption::empty(),
            failures: AtomicU32::new(0),
        }));
        self.slots.insert(id, Slot { subchannel: subchannel.clone(), released: None });
        subchannel
    }

    fn connect(&mut self, id: SubchannelId) {
        let Some(slot) = self.slots.get_mut(&id).filter(|_| self.settings.enabled) else { return };
        let (released, on_release) = oneshot::channel();
        slot.released = Some(released);
        let attempt = Attempt {
            id,
            subchannel: slot.subchannel.clone(),
            tls: self.tls.clone(),
            settings: self.settings,
            events: self.events.clone(),
        };
        // Not a `Task`: a released connection lives on until the RPCs on it are done.
        tokio::spawn(attempt.run(on_release));
    }

    fn release(&mut self, id: SubchannelId) {
        self.slots.remove(&id);
    }

    fn request_reresolution(&mut self) {
        // The channel core answers this one itself.
    }

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        static COUNTERS: Mutex<Counters> = Mutex::new(Counters { by_cluster: BTreeMap::new(), prune_at: 64 });
        COUNTERS.lock().unwrap_or_else(PoisonError::into_inner).of(cluster, eds_service)
    }

    fn interner(&mut self) -> Option<&mut dyn Intern> {
        Some(&mut self.interner)
    }
}

/// The in-flight counters of the process: one per {cluster, EDS service}, for all channels (L-86).
struct Counters {
    by_cluster: BTreeMap<(String, String), Weak<Counter>>,
    /// The size at which counters that nobody uses are forgotten. It doubles, so that the search for them costs little.
    prune_at: usize,
}

impl Counters {
    fn of(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        if self.by_cluster.len() >= self.prune_at {
            self.by_cluster.retain(|_, counter| counter.strong_count() > 0);
            self.prune_at = 64.max(2 * self.by_cluster.len());
        }
        let slot = self.by_cluster.entry((cluster.to_owned(), eds_service.to_owned())).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let counter = Arc::new(Counter::new());
            *slot = Arc::downgrade(&counter);
            counter
        })
    }
}

/// One walk of a subchannel from CONNECTING back to IDLE.
struct Attempt {
    id: SubchannelId,
    subchannel: Subchannel,
    tls: Option<Tls>,
    settings: ConnectSettings,
    events: mpsc::Sender<Input>,
}

impl Attempt {
    async fn run(self, mut released: oneshot::Receiver<()>) {
        tokio::select! {
            _ = &mut released => return,
            _ = self.tell(Connectivity::Connecting) => {}
        }
        let connected = tokio::select! {
            _ = &mut released => return,
            connected = self.connect() => connected,
        };
        match connected {
            Ok(established) => self.carry(established, released).await,
            Err(cause) => {
                let pause = self.pause();
                tokio::select! {
                    _ = released => {}
                    () = async {
                        self.tell(Connectivity::TransientFailure(cause.into())).await;
                        tokio::time::sleep(pause).await;
                        self.tell(Connectivity::Idle).await;
                    } => {}
                }
            }
        }
    }

    async fn connect(&self) -> Result<http2::Established, String> {
        let address = Address::Tcp(self.subchannel.0.address);
        match tokio::time::timeout(self.settings.timeout, http2::connect(&address, self.tls.as_ref(), None)).await {
            Ok(Ok(established)) => Ok(established),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no connection to {address} within {:?}", self.settings.timeout)),
        }
    }

    /// Drives the connection until it takes no more requests, or until it is released and its RPCs are done.
    async fn carry(&self, established: http2::Established, released: oneshot::Receiver<()>) {
        let http2::Established { sender, driver } = established;
        let inner = &self.subchannel.0;
        inner.failures.store(0, Ordering::Relaxed);
        inner.sender.store(Some(Arc::new(sender)));
        tokio::pin!(driver);
        let alive = async {
            self.tell(Connectivity::Ready).await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            // How a connection ended does not matter: the next attempt finds out what is wrong.
            _ = &mut driver => {
                inner.sender.store(None);
                self.tell(Connectivity::Idle).await;
            }
            _ = released => {
                inner.sender.store(None);
                let _ = driver.await;
            }
            () = alive => {}
        }
    }

    fn pause(&self) -> Duration {
        let failures = self.subchannel.0.failures.fetch_add(1, Ordering::Relaxed);
        self.settings.backoff.delay(failures, &mut Random as &mut dyn Choose)
    }

    async fn tell(&self, state: Connectivity) {
        // The driver may be gone: then nobody needs to know.
        let _ = self.events.send(Input::Connectivity(self.id, state)).await;
    }
}
