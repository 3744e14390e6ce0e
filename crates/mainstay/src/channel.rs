//! The public channel: a tower service for tonic's generated clients.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use mainstay_lb::{Outlook, RetryThrottle};
use mainstay_xds::Backoff;
use mainstay_xds::bootstrap::{Bootstrap, BootstrapError};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::target::{Target, TargetError};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::ads::AdsLimits;
use crate::body::ResponseBody;
use crate::call::{self, CallSettings};
use crate::config::{ConfigView, Configs};
use crate::connection::ConnectSettings;
use crate::credentials::{Credentials, CredentialsError};
use crate::dns::{ResolveHost, Shielded, SystemDns};
use crate::events::Events;
use crate::http2::{Http2Settings, KeepAlive};
use crate::hub::{Hub, Plan};
use crate::telemetry::Telemetry;

/// A channel to the service that an `xds:` target names.
///
/// Cheap to clone; clones share everything, and so do channels that are built with equal settings.
/// When the last one is dropped, every stream, task and connection is closed; RPCs under way are
/// finished first.
#[derive(Clone)]
pub struct Channel {
    hub: Arc<Hub>,
    settings: CallSettings,
}

/// Put into the extensions of a request: whether this RPC waits for a usable endpoint instead of
/// failing when there is none. Stronger than [`ChannelBuilder::wait_for_ready`].
///
/// ```
/// let mut request = tonic::Request::new(());
/// request.extensions_mut().insert(mainstay::WaitForReady(true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForReady(pub bool);

/// Settings of a channel. Made by [`Channel::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ChannelBuilder {
    target: String,
    bootstrap: Option<Arc<Bootstrap>>,
    credentials: Credentials,
    authority: Option<String>,
    calls: CallSettings,
    dns: Option<Arc<dyn ResolveHost>>,
    client: ClientSettings,
    deps: DepsSettings,
    connect: ConnectSettings,
    warm_switching: Option<Duration>,
    require_xds_security: bool,
    ads: AdsLimits,
    telemetry: Option<Telemetry>,
    idle_timeout: Option<Duration>,
}

/// What RPCs on a channel can expect: gRPC's connectivity states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChannelState {
    /// There is no configuration yet, or no connection: RPCs wait.
    Connecting,
    /// Some cluster takes RPCs. Which one an RPC needs depends on its route.
    Ready,
    /// RPCs fail, unless they wait for ready.
    TransientFailure,
}

/// Why a channel cannot be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no usable bootstrap.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The credentials do not fit the target.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The authority cannot stand in a request.
    #[error("{0:?} cannot be the :authority of a request: {1}")]
    Authority(String, #[source] http::uri::InvalidUri),
    /// Channels need a tokio runtime to run on.
    #[error("no tokio runtime: make the channel inside one, for example in a function under #[tokio::main]")]
    NoRuntime,
}

// === impl Channel ===

impl Channel {
    /// A channel with the bootstrap from the environment (`GRPC_XDS_BOOTSTRAP` or
    /// `GRPC_XDS_BOOTSTRAP_CONFIG`), plaintext to the endpoints, and defaults for the rest.
    ///
    /// It connects in the background; RPCs wait until there is a configuration.
    pub fn new(target: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder(target).build()
    }

    /// A channel with settings of your own.
    pub fn builder(target: impl Into<String>) -> ChannelBuilder {
        ChannelBuilder {
            target: target.into(),
            bootstrap: None,
            credentials: Credentials::insecure(),
            authority: None,
            calls: CallSettings { wait_for_ready: false, retries: true, retry_throttle: None },
            dns: None,
            client: ClientSettings::default(),
            deps: DepsSettings::default(),
            connect: ConnectSettings {
                timeout: Duration::from_secs(20),
                backoff: Backoff::default(),
                http2: Http2Settings::default(),
                silence: Duration::from_secs(5),
                enabled: true,
            },
            warm_switching: Some(Duration::from_secs(5)),
            require_xds_security: false,
            ads: AdsLimits {
                max_response_size: 256 << 20,
                keep_alive: KeepAlive { interval: Duration::from_secs(300), timeout: Duration::from_secs(20) },
            },
            telemetry: None,
            idle_timeout: Some(Duration::from_secs(30 * 60)),
        }
    }

    /// The target in canonical form.
    pub fn target(&self) -> &str {
        self.hub.target()
    }

    /// What RPCs can expect right now.
    pub fn state(&self) -> ChannelState {
        self.hub.shared.snapshot.load().outlook().into()
    }

    /// Waits until the channel takes RPCs, however long that may be. Nobody has to: RPCs wait by themselves.
    ///
    /// It has the form of tower's `ServiceExt::ready`, which is done at once on this channel, so that code that calls
    /// that one compiles and waits for what it means.
    pub async fn ready(&mut self) -> Result<&mut Self, Status> {
        // Listen first, then look: a snapshot that comes in between is not missed.
        let mut published = self.hub.shared.published.subscribe();
        while self.state() != ChannelState::Ready {
            if published.changed().await.is_err() {
                return Err(Status::unavailable(format!("the channel to {} has ended", self.target())));
            }
        }
        Ok(self)
    }

    /// What the xDS side of this channel does from now on: connects, falls back, rejects, recovers.
    /// The first caller also hears what has happened since the channel was made.
    pub fn events(&self) -> Events {
        self.hub.shared.events.listen()
    }

    /// What the channel has been told so far, and by whom. Wakes up a channel that is idle. `None` if its runtime has
    /// ended and there is no other one here.
    pub async fn config(&self) -> Option<ConfigView> {
        self.hub.resume().ok()?;
        self.hub.inspector.status().await.map(ConfigView::from)
    }

    /// What the channel has been told, now and whenever it changes. The channel does not become idle meanwhile.
    pub fn configs(&self) -> Configs {
        // If it cannot go on, the first view says so.
        let _ = self.hub.resume();
        Configs::new(&self.hub)
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<ResponseBody>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // What an RPC must wait for depends on its route, so it waits in its own future.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(call::run(self.hub.clone(), self.settings.clone(), request))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("target", &self.hub.target()).finish_non_exhaustive()
    }
}

// === impl ChannelState ===

impl From<Outlook> for ChannelState {
    fn from(outlook: Outlook) -> Self {
        match outlook {
            Outlook::Send => Self::Ready,
            Outlook::Wait => Self::Connecting,
            Outlook::Fail => Self::TransientFailure,
        }
    }
}

// === impl BuildError ===

impl fmt::Debug for BuildError {
    /// The text: it is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl ChannelBuilder ===

impl ChannelBuilder {
    /// Use this bootstrap instead of the environment's.
    pub fn bootstrap(mut self, bootstrap: impl Into<Arc<Bootstrap>>) -> Self {
        self.bootstrap = Some(bootstrap.into());
        self
    }

    /// How connections to endpoints are secured; plaintext by default.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Use this `:authority`, also to choose the virtual host, instead of the target's.
    pub fn authority(mut self, authority: impl Into<String>) -> Self {
        self.authority = Some(authority.into());
        self
    }

    /// Whether RPCs wait for a usable endpoint instead of failing when there is none. Off by default.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.calls.wait_for_ready = wait;
        self
    }

    /// Whether the retry policies that the control plane puts on routes are followed; they are by default. RPCs that
    /// no endpoint has seen are sent again in any case.
    pub fn retries(mut self, follow: bool) -> Self {
        self.calls.retries = follow;
        self
    }

    /// Stops retries while too many attempts fail, so that they do not keep an endpoint down that has too much to do
    /// (A6). Off by default: the control plane has no word for it. RPCs that succeed count, and attempts that fail in a
    /// way that their policy retries, over all methods and clones of the channel.
    pub fn retry_throttle(mut self, throttle: RetryThrottle) -> Self {
        self.calls.retry_throttle = Some(Arc::new(throttle));
        self
    }

    /// Use this resolver for DNS names.
    pub fn dns(mut self, dns: impl ResolveHost) -> Self {
        self.dns = Some(Arc::new(Shielded(dns)));
        self
    }

    /// Never connects to an endpoint: for tools that look at [`Channel::config`] only. RPCs wait for their deadlines.
    pub fn without_endpoints(mut self) -> Self {
        self.connect.enabled = false;
        self
    }

    /// How long new routes may wait until the clusters that they bring in are connected, while RPCs go by the routes
    /// before; 5 s by default. Endpoints that an update replaces altogether serve as long while the new ones connect.
    /// `None` lets both take effect at once, and RPCs wait for the connections.
    pub fn warm_switching(mut self, bound: Option<Duration>) -> Self {
        self.warm_switching = bound;
        self
    }

    /// Whether clusters are refused that ask for TLS in their `transport_socket`. No [`Credentials`] follow that yet, so
    /// such a cluster is otherwise connected to as the credentials of the channel say, with a warning and
    /// [`Event::SecurityIgnored`]. Off by default, as in gRPC, where credentials that are not for xDS ignore it (A29).
    ///
    /// [`Event::SecurityIgnored`]: crate::Event
    pub fn require_xds_security(mut self, require: bool) -> Self {
        self.require_xds_security = require;
        self
    }

    /// How long the channel stays connected without any RPC; 30 minutes by default, `None` for ever. Then it lets go of its
    /// endpoints and xDS servers, and of its configuration; the next RPC, or a look at [`Channel::config`], fetches them
    /// anew. Whoever must go on without a control plane after such a pause turns it off.
    pub fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// How long one attempt to connect to an endpoint may take; 20 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect.timeout = timeout;
        self
    }

    /// Keepalive of the connections to endpoints: while there are calls, a ping each `interval` without a word from the
    /// endpoint; lost after `timeout` without an answer. Off by default: servers may refuse it, and an endpoint to which
    /// calls run out of time is asked anyway ([`ChannelBuilder::silence_timeout`]). An endpoint that complains of too many
    /// pings gets half as many from then on (A8).
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.connect.http2.keep_alive = Some(KeepAlive { interval, timeout });
        self
    }

    /// Whether [`ChannelBuilder::keep_alive`] goes on while there are no calls. Off by default: servers count such pings
    /// and close the connection, unless they are told to permit them.
    pub fn keep_alive_without_calls(mut self, ping: bool) -> Self {
        self.connect.http2.keep_alive_without_calls = ping;
        self
    }

    /// How long an endpoint may say nothing at all after a call to it ran out of time or was cancelled; 5 s by default. It
    /// is pinged meanwhile. Then its connection is given up, and calls go elsewhere.
    pub fn silence_timeout(mut self, timeout: Duration) -> Self {
        self.connect.silence = timeout;
        self
    }

    /// How many bytes an endpoint may send before somebody reads them: for one call, and for all calls on a connection;
    /// 1 MiB and 2 GiB by default. Calls that nobody reads fill the second one, and then hold up all others on the same
    /// connection: it should be far above the first.
    pub fn windows(mut self, stream: u32, connection: u32) -> Self {
        let largest = Http2Settings::default().connection_window;
        self.connect.http2.stream_window = stream.min(largest);
        self.connect.http2.connection_window = connection.min(largest);
        self
    }

    /// The largest headers or trailers that an endpoint may send; 1 MiB by default. Larger ones fail their call.
    pub fn max_header_list_size(mut self, bytes: u32) -> Self {
        self.connect.http2.max_header_list_size = bytes;
        self
    }

    /// How long connecting to an xDS server may take: while another one is next in the list (5 s by
    /// default), and for the last one (20 s).
    pub fn xds_connect_timeouts(mut self, next: Duration, last: Duration) -> Self {
        self.client.connect_timeout = next;
        self.client.last_connect_timeout = last;
        self
    }

    /// Least time between two good lookups of one DNS name, however many connections fail meanwhile; 30 s by default.
    pub fn min_dns_interval(mut self, interval: Duration) -> Self {
        self.deps.min_resolution_interval = interval;
        self
    }

    /// Look up the names of LOGICAL_DNS clusters again this long after each answer. Off by default: they are looked up
    /// again when connections fail.
    pub fn dns_refresh(mut self, interval: Duration) -> Self {
        self.deps.resolution_refresh = Some(interval);
        self
    }

    /// First and longest pause between attempts to connect, to endpoints and to xDS servers, and between lookups that
    /// fail; 1 s and 120 s by default, and 30 s at most for xDS servers.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.connect.backoff = Backoff::new(base, max);
        self.deps.resolution_backoff = Backoff::new(base, max);
        self.client.backoff_base = base;
        self.client.backoff_max = max;
        self
    }

    /// A channel that lacks nothing comes back to an xDS server that it lost after a random part of this time, so that
    /// many do not come in the same instant; 2 s by default, zero for at once.
    pub fn reconnect_spread(mut self, spread: Duration) -> Self {
        self.client.reconnect_spread = spread;
        self
    }

    /// Least time between two load reports, whatever the xDS server asks for; 1 s by default.
    pub fn min_load_report_interval(mut self, interval: Duration) -> Self {
        self.client.min_load_report_interval = interval;
        self
    }

    /// How long an xDS server may take to send a resource before it counts as not existing; 15 s by default.
    pub fn resource_timeout(mut self, timeout: Duration) -> Self {
        self.client.resource_timeout = timeout;
        self
    }

    /// Treat an xDS server that owes an answer and says nothing on a new stream for this long as unreachable, even if it
    /// shows that it is alive. Off by default: one that shows no sign of life is left after about 10 s.
    pub fn silent_stream_timeout(mut self, timeout: Duration) -> Self {
        self.client.silent_stream_timeout = Some(timeout);
        self
    }

    /// The largest response that an xDS server may send; 256 MiB by default.
    pub fn max_xds_response_size(mut self, bytes: usize) -> Self {
        self.ads.max_response_size = bytes;
        self
    }

    /// Keepalive of the connections to xDS servers: a ping each `interval`, lost after `timeout`
    /// without an answer; 300 s and 20 s by default. Servers may refuse shorter intervals.
    pub fn xds_keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.ads.keep_alive = KeepAlive { interval, timeout };
        self
    }

    /// Sends metrics and traces there; off by default.
    #[cfg(feature = "opentelemetry")]
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// Makes the channel and starts it in the background.
    pub fn build(self) -> Result<Channel, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let bootstrap = match self.bootstrap {
            Some(bootstrap) => bootstrap,
            None => {
                Arc::new(Bootstrap::from_vars(|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path))?)
            }
        };
        let mut target = Target::resolve(&self.target, &bootstrap)?;
        if let Some(authority) = self.authority {
            target.data_plane_authority = authority.into();
        }
        let plan = Plan {
            target,
            bootstrap,
            credentials: self.credentials,
            dns: self.dns.unwrap_or_else(system_dns),
            client: self.client,
            deps: self.deps,
            connect: self.connect,
            warm_switching: self.warm_switching,
            require_xds_security: self.require_xds_security,
            ads: self.ads,
            telemetry: self.telemetry,
            idle_timeout: self.idle_timeout,
        };
        Ok(Channel { hub: Hub::of(plan, &runtime)?, settings: self.calls })
    }
}

/// One resolver for all channels that bring none of their own.
fn system_dns() -> Arc<dyn ResolveHost> {
    static SYSTEM: LazyLock<Arc<dyn ResolveHost>> = LazyLock::new(|| Arc::new(SystemDns::default()));
    SYSTEM.clone()
}
