//! What the driver of a hub, its supervisor and the RPCs share: the plan, the state that is published, and commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use mainstay_lb::{Snapshot, Wake, XdsSecurity};
use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::client::{Capture, ClientSettings};
use mainstay_xds::deps::{ConfigError, DepsSettings, XdsConfig};
use mainstay_xds::name::AuthorityKey;
use mainstay_xds::target::Target;
use tokio::sync::{oneshot, watch};

use crate::ads::AdsLimits;
use crate::channelz_node::ChannelzNode;
use crate::connection::{ConnectSettings, Connection};
use crate::credentials::{Credentials, CredentialsError};
use crate::dns::ResolveHost;
use crate::event::EventSource;
use crate::subchannel::Subchannel;
use crate::telemetry::Telemetry;
use crate::tls::{ChannelSecurity, OwnProviders, Providers};
use crate::xds_status::XdsStatus;

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
    /// Whose last-good files it has: those of the target, and of the authority if another one is set, which has routes of its
    /// own.
    pub(crate) last_good_key: Arc<str>,
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
    pub(crate) channelz: ChannelzNode,
    /// Why no driver runs, if none does.
    pub(crate) halt: ArcSwapOption<Halt>,
}

/// Why no driver runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// Nobody needed it for a while.
    Idle,
    /// The runtime that it ran on has ended.
    RuntimeEnded,
    /// It panicked, and will be started again soon.
    Crashed(String),
}

/// A command to the driver, from an RPC or from who looks at the channel.
pub(crate) enum Command {
    /// Tell what you hold, and how your servers are.
    Status(oneshot::Sender<HubStatus>),
    /// Keep this cluster in the configuration: an RPC waits for it.
    Hold(Arc<str>),
    /// One RPC less waits for it.
    Release(Arc<str>),
    /// An RPC waits for something that connects only when asked.
    Wake(Wake),
}

/// What a hub shows of itself.
pub(crate) struct HubStatus {
    pub(crate) xds: XdsStatus,
    pub(crate) listener: Arc<str>,
    pub(crate) config: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    /// What the configuration is made of, if it is whole.
    pub(crate) capture: Option<BTreeMap<AuthorityKey, Capture>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Vec<Arc<Connection>>,
}

impl Shared {
    /// From now on RPCs go by this, until there is a driver again.
    pub(crate) fn halt(&self, halt: Halt) {
        self.halt.store(Some(Arc::new(halt)));
        self.progress.store(None);
        self.snapshot.store(Arc::new(Snapshot::empty()));
        self.published.send_modify(|count| *count = count.wrapping_add(1));
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// There is a driver, or will be at once.
    pub(crate) fn resume(&self) {
        self.halt.store(None);
    }
}

impl Plan {
    /// What becomes of clusters with a TLS context.
    pub(crate) fn xds_security(&self) -> XdsSecurity {
        match (self.credentials.follow_xds(), self.require_xds_security) {
            (true, _) => XdsSecurity::Follow,
            (false, true) => XdsSecurity::Refuse,
            (false, false) => XdsSecurity::Ignore,
        }
    }

    pub(crate) fn security(&self, authority: &str) -> Result<ChannelSecurity, CredentialsError> {
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
            && self.last_good_key == other.last_good_key
    }
}
