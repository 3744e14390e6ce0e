//! What channels to one target share: a driver, its XdsClient and its connections (A71, C-1).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_channel::mpsc::{UnboundedSender, unbounded};
use http::uri::Authority;
use mainstay_lb::{Snapshot, Wake};
use tokio::runtime;
use tokio::sync::{oneshot, watch};

use crate::channelz_node::ChannelzNode;
use crate::error::BuildError;
use crate::event::EventSource;
use crate::orca_oob::BaseUri;
use crate::process::{self, Kind, Table};
use crate::shared::{Command, Halt, HubStatus, Plan, Shared};
use crate::supervisor::Supervisor;
use crate::telemetry::ChannelObserver;

/// The running part of a channel. Channels with equal [`Plan`]s share one; the last one to go closes it.
pub(crate) struct Hub {
    plan: Arc<Plan>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) authority: Authority,
    pub(crate) driver: DriverHandle,
    pub(crate) observer: ChannelObserver,
    run: Mutex<Run>,
}

/// The present run of a hub, on one runtime.
struct Run {
    supervisor: Supervisor,
    /// Dropped with the hub, which the driver notices.
    _close: oneshot::Sender<()>,
}

/// A handle of the driver of a hub, whichever runs.
#[derive(Clone)]
pub(crate) struct DriverHandle(Arc<ArcSwap<UnboundedSender<Command>>>);

/// Keeps a cluster in the configuration for an RPC that has chosen it and waits for it (A31, L-27).
pub(crate) struct ClusterRef {
    cluster: Arc<str>,
    /// The driver that holds it. Another one knows nothing of it.
    driver: UnboundedSender<Command>,
}

/// Every hub of the process. Hubs on different runtimes are never shared: one may end before the other.
#[derive(Default)]
struct Hubs(Vec<Weak<Hub>>);

impl Table for Hubs {
    const KIND: Kind = Kind::Hubs;
}

impl Hub {
    /// The running hub of an equal plan, or a new one.
    pub(crate) fn of(plan: Plan, runtime: &runtime::Handle) -> Result<Arc<Self>, BuildError> {
        let Hubs(hubs) = &mut *process::table();
        hubs.retain(|hub| hub.strong_count() > 0);
        let running = hubs.iter().filter_map(Weak::upgrade).find(|hub| *hub.plan == plan && hub.is_on(runtime));
        if let Some(hub) = running {
            return Ok(hub);
        }
        let hub = Arc::new(Self::start(Arc::new(plan), runtime)?);
        hubs.push(Arc::downgrade(&hub));
        Ok(hub)
    }

    /// How each running hub of the process is doing. None is kept running by the question, and none is waited for
    /// long: a runtime that nobody drives answers nothing.
    pub(crate) async fn statuses() -> Vec<HubStatus> {
        let asked: Vec<_> = {
            let hubs = process::table::<Hubs>();
            let running = hubs.0.iter().filter_map(Weak::upgrade);
            running.map(|hub| (hub.plan.target.canonical.clone(), hub.driver.clone())).collect()
        };
        let answers = asked.into_iter().map(|(target, driver)| async move {
            let answer = tokio::time::timeout(STATUS_TIMEOUT, driver.status()).await;
            answer.unwrap_or_else(|_| {
                tracing::warn!(%target, "the channel does not say how it is: nothing drives its runtime");
                None
            })
        });
        futures_util::future::join_all(answers).await.into_iter().flatten().collect()
    }

    pub(crate) fn target(&self) -> &str {
        &self.plan.target.canonical
    }

    /// Goes on after an idle time, or on the runtime of the caller after its own has ended. Why not, if it cannot.
    pub(crate) fn resume(&self) -> Result<(), Arc<Halt>> {
        let mut run = self.run();
        // Looked at under the lock: somebody else may have done it a moment ago.
        let Some(halt) = self.shared.halt.load_full() else { return Ok(()) };
        let runtime = match (&*halt, runtime::Handle::try_current()) {
            (Halt::Crashed(_), _) | (_, Err(_)) => return Err(halt),
            (Halt::Idle | Halt::RuntimeEnded, Ok(runtime)) => runtime,
        };
        self.shared.resume();
        let supervisor = Supervisor { runtime: runtime.id(), ..run.supervisor.clone() };
        *run = Run::start(supervisor, &runtime);
        Ok(())
    }

    fn start(plan: Arc<Plan>, runtime: &runtime::Handle) -> Result<Self, BuildError> {
        let authority = &*plan.target.data_plane_authority;
        let security = plan.security(authority)?;
        let authority = Authority::try_from(authority)
            .map_err(|error| BuildError::Authority(plan.target.data_plane_authority.to_string(), error))?;
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            published: watch::Sender::new(0),
            changed: watch::Sender::new(0),
            events: EventSource::new(),
            progress: ArcSwapOption::empty(),
            channelz: ChannelzNode::new(),
            halt: ArcSwapOption::empty(),
        });
        // The first driver brings the other end.
        let commands = Arc::new(ArcSwap::from_pointee(unbounded().0));
        let base_uri = BaseUri { authority: authority.clone() };
        let supervisor = Supervisor {
            plan: plan.clone(),
            security,
            base_uri,
            shared: shared.clone(),
            commands: commands.clone(),
            runtime: runtime.id(),
        };
        let run = Mutex::new(Run::start(supervisor, runtime));
        let observer = ChannelObserver::new(plan.telemetry.as_ref(), &plan.target.canonical);
        Ok(Self { shared, authority, driver: DriverHandle(commands), observer, run, plan })
    }

    fn is_on(&self, runtime: &runtime::Handle) -> bool {
        self.run().supervisor.runtime == runtime.id()
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Run ===

impl Run {
    fn start(supervisor: Supervisor, runtime: &runtime::Handle) -> Self {
        let (close, closed) = oneshot::channel();
        supervisor.clone().start(runtime, closed);
        Self { supervisor, _close: close }
    }
}

/// A driver answers in microseconds; one that is very busy, in milliseconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

// === impl DriverHandle ===

impl DriverHandle {
    /// Asks for a connection that an RPC needs.
    pub(crate) fn wake(&self, wake: Wake) {
        // A driver that has ended connects to nothing.
        let _ = self.0.load().unbounded_send(Command::Wake(wake));
    }

    /// How the client of the hub is doing; `None` if it has just ended.
    pub(crate) async fn status(&self) -> Option<HubStatus> {
        let (answer, answered) = oneshot::channel();
        self.0.load().unbounded_send(Command::Status(answer)).ok()?;
        answered.await.ok()
    }
}

// === impl ClusterRef ===

impl ClusterRef {
    pub(crate) fn new(hub: &Hub, cluster: &Arc<str>) -> Self {
        let driver = UnboundedSender::clone(&hub.driver.0.load());
        // One that has ended holds nothing, and no RPC waits for it.
        let _ = driver.unbounded_send(Command::Hold(cluster.clone()));
        Self { cluster: cluster.clone(), driver }
    }

    pub(crate) fn is_of(&self, cluster: &str) -> bool {
        *self.cluster == *cluster
    }
}

impl Drop for ClusterRef {
    fn drop(&mut self) {
        let _ = self.driver.unbounded_send(Command::Release(self.cluster.clone()));
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("target", &self.plan.target.canonical).finish_non_exhaustive()
    }
}
