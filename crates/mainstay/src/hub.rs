//! What channels to one target share: a driver, its XdsClient and its connections (A71, C-1).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use envoy_types::pb::envoy::config::core::v3::Node;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use http::uri::Authority;
use mainstay_lb::{Snapshot, Wake, XdsSecurity};
use mainstay_xds::Time;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{ClientSettings, ResourceStatus, ServerStatus};
use mainstay_xds::deps::{ConfigError, DepsSettings, XdsConfig};
use mainstay_xds::name::Target;
use tokio::runtime;
use tokio::sync::{oneshot, watch};

use crate::ads::AdsLimits;
use crate::connection::{ConnectSettings, Connection};
use crate::credentials::{Credentials, CredentialsError};
use crate::dns::ResolveHost;
use crate::error::BuildError;
use crate::event::EventSource;
use crate::ledger::Books;
use crate::load_reports::Origin;
use crate::subchannel::Subchannel;
use crate::supervisor::{Halt, Supervisor};
use crate::telemetry::{ChannelObserver, Telemetry};
use crate::tls::{ChannelSecurity, OwnProviders, Providers};

/// The running part of a channel. Channels with equal [`Plan`]s share one; the last one to go closes it.
pub(crate) struct Hub {
    plan: Arc<Plan>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) authority: Authority,
    pub(crate) inspector: Inspector,
    pub(crate) observer: ChannelObserver,
    run: Mutex<Run>,
}

/// The present run of a hub, on one runtime.
struct Run {
    supervisor: Supervisor,
    /// Dropped with the hub, which the driver notices.
    _close: oneshot::Sender<()>,
}

/// Everything that decides how a hub behaves.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) bootstrap: Arc<Bootstrap>,
    pub(crate) credentials: Credentials,
    pub(crate) dns: Arc<dyn ResolveHost>,
    pub(crate) client: ClientSettings,
    pub(crate) deps: DepsSettings,
    pub(crate) connect: ConnectSettings,
    /// How long new routes may wait for the clusters that they bring in.
    pub(crate) warm_switching: Option<Duration>,
    /// Whether clusters are refused whose TLS context the credentials do not follow.
    pub(crate) require_xds_security: bool,
    /// Certificate providers of the application.
    pub(crate) certificate_providers: OwnProviders,
    pub(crate) ads: AdsLimits,
    pub(crate) telemetry: Option<Telemetry>,
    /// How long to go on without an RPC.
    pub(crate) idle_timeout: Option<Duration>,
}

/// What the driver and the RPCs share.
pub(crate) struct Shared {
    /// What RPCs decide from.
    pub(crate) snapshot: ArcSwap<Snapshot<Subchannel>>,
    /// Counts snapshots; RPCs that must wait listen to it.
    pub(crate) published: watch::Sender<u64>,
    /// Counts changes of what [`Hub::status`] shows.
    pub(crate) changed: watch::Sender<u64>,
    /// What the XdsClient reports.
    pub(crate) events: EventSource,
    /// How the last server that was tried is doing, for RPCs that wait for the first configuration in vain.
    pub(crate) progress: ArcSwapOption<String>,
    /// Counts RPCs and keeps what happened, for channelz.
    pub(crate) books: Books,
    /// Why no driver runs, if none does.
    pub(crate) halt: ArcSwapOption<Halt>,
}

/// Asks the driver of a hub, whichever runs.
#[derive(Clone)]
pub(crate) struct Inspector(Arc<ArcSwap<UnboundedSender<Query>>>);

/// A question to the driver.
pub(crate) enum Query {
    /// What do you hold, and how are your servers?
    Status(oneshot::Sender<HubStatus>),
    /// Keep this cluster in the configuration: an RPC waits for it.
    Hold(Arc<str>),
    /// One RPC less waits for it.
    Release(Arc<str>),
    /// An RPC waits for something that connects only when asked.
    Wake(Wake),
}

/// Keeps a cluster in the configuration for an RPC that has chosen it and waits for it (A31, L-27).
pub(crate) struct ClusterRef {
    cluster: Arc<str>,
    /// The driver that holds it. Another one knows nothing of it.
    driver: UnboundedSender<Query>,
}

/// What an XdsClient shows of itself.
pub(crate) struct HubStatus {
    pub(crate) target: Arc<str>,
    pub(crate) node: Node,
    pub(crate) listener: Arc<str>,
    pub(crate) config: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    pub(crate) resources: Vec<ResourceStatus>,
    pub(crate) servers: Vec<ServerStatus>,
    pub(crate) shared: Arc<Shared>,
    /// The books of the servers in use.
    pub(crate) server_books: HashMap<Arc<ServerConfig>, Arc<Books>>,
    pub(crate) connections: Vec<Arc<Connection>>,
    /// When time began for the client, and how long it has lasted.
    pub(crate) start: Instant,
    pub(crate) now: Time,
}

/// Every hub of the process. Hubs on different runtimes are never shared: one may end before the other.
static HUBS: Mutex<Vec<Weak<Hub>>> = Mutex::new(Vec::new());

impl Hub {
    /// The running hub of an equal plan, or a new one.
    pub(crate) fn of(plan: Plan, runtime: &runtime::Handle) -> Result<Arc<Self>, BuildError> {
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
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
            let hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
            let running = hubs.iter().filter_map(Weak::upgrade);
            running.map(|hub| (hub.plan.target.canonical.clone(), hub.inspector.clone())).collect()
        };
        let answers = asked.into_iter().map(|(target, inspector)| async move {
            let answer = tokio::time::timeout(STATUS_TIMEOUT, inspector.status()).await;
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
            books: Books::new(),
            halt: ArcSwapOption::empty(),
        });
        // The first driver brings the other end.
        let queries = Arc::new(ArcSwap::from_pointee(unbounded().0));
        let origin = Origin { authority: authority.clone() };
        let supervisor = Supervisor {
            plan: plan.clone(),
            security,
            origin,
            shared: shared.clone(),
            queries: queries.clone(),
            runtime: runtime.id(),
        };
        let run = Mutex::new(Run::start(supervisor, runtime));
        let observer = ChannelObserver::new(plan.telemetry.as_ref(), &plan.target.canonical);
        Ok(Self { shared, authority, inspector: Inspector(queries), observer, run, plan })
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

// === impl Inspector ===

impl Inspector {
    /// Asks for a connection that an RPC needs.
    pub(crate) fn wake(&self, wake: Wake) {
        // A driver that has ended connects to nothing.
        let _ = self.0.load().unbounded_send(Query::Wake(wake));
    }

    /// How the client of the hub is doing; `None` if it has just ended.
    pub(crate) async fn status(&self) -> Option<HubStatus> {
        let (answer, answered) = oneshot::channel();
        self.0.load().unbounded_send(Query::Status(answer)).ok()?;
        answered.await.ok()
    }
}

// === impl ClusterRef ===

impl ClusterRef {
    pub(crate) fn new(hub: &Hub, cluster: &Arc<str>) -> Self {
        let driver = UnboundedSender::clone(&hub.inspector.0.load());
        // One that has ended holds nothing, and no RPC waits for it.
        let _ = driver.unbounded_send(Query::Hold(cluster.clone()));
        Self { cluster: cluster.clone(), driver }
    }

    pub(crate) fn is_of(&self, cluster: &str) -> bool {
        *self.cluster == *cluster
    }
}

impl Drop for ClusterRef {
    fn drop(&mut self) {
        let _ = self.driver.unbounded_send(Query::Release(self.cluster.clone()));
    }
}

// === impl Plan ===

impl Plan {
    /// What becomes of clusters with a TLS context.
    pub(crate) fn xds_security(&self) -> XdsSecurity {
        match (self.credentials.follow_xds(), self.require_xds_security) {
            (true, _) => XdsSecurity::Follow,
            (false, true) => XdsSecurity::Refuse,
            (false, false) => XdsSecurity::Ignore,
        }
    }

    fn security(&self, authority: &str) -> Result<ChannelSecurity, CredentialsError> {
        let tls = self.credentials.for_authority(authority)?;
        if !self.credentials.follow_xds() {
            return Ok(ChannelSecurity::Application(tls));
        }
        let providers = Providers::new(self.bootstrap.clone(), self.certificate_providers.clone());
        Ok(ChannelSecurity::Xds { fallback: tls, providers: Arc::new(providers) })
    }
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.target == other.target
            && self.bootstrap == other.bootstrap
            && self.credentials == other.credentials
            && Arc::ptr_eq(&self.dns, &other.dns)
            && self.client == other.client
            && self.deps == other.deps
            && self.connect == other.connect
            && self.warm_switching == other.warm_switching
            && self.require_xds_security == other.require_xds_security
            && self.certificate_providers == other.certificate_providers
            && self.ads == other.ads
            && self.telemetry == other.telemetry
            && self.idle_timeout == other.idle_timeout
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("target", &self.plan.target.canonical).finish_non_exhaustive()
    }
}
