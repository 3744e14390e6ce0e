//! The public channel: a tower service for tonic's generated clients.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mainstay_lb::Outlook;
use mainstay_xds::Backoff;
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::target::Target;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::ads::AdsLimits;
use crate::body::ResponseBody;
use crate::bootstrap::Bootstrap;
use crate::call::{self, CallSettings};
use crate::certificates::CertificateProvider;
use crate::connection::ConnectSettings;
use crate::credentials::Credentials;
use crate::dns::{ResolveHost, Shielded};
use crate::error::{BuildError, TargetError};
use crate::event::Events;
use crate::http2::Http2Settings;
use crate::hub::Hub;
use crate::keep_alive::KeepAlive;
use crate::last_good::LastGood;
use crate::process;
use crate::shared::Plan;
use crate::telemetry::Telemetry;
use crate::throttle::RetryThrottle;
use crate::tls::OwnProviders;
use crate::view::{ConfigView, Configs};

/// A channel to the service that an `xds:` target names.
///
/// It is a tower service, so any tonic-generated client takes it. It is cheap to clone. Clones share everything, and so do
/// channels that are built with equal settings on one runtime. When the last one is dropped, RPCs under way are finished, and
/// then every stream, task and connection is closed.
#[derive(Clone)]
pub struct Channel {
    hub: Arc<Hub>,
    settings: CallSettings,
}

/// The settings of a channel. Made by [`Channel::builder`].
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), mainstay::BuildError> {
/// let channel = mainstay::Channel::builder("xds:///greeter")
///     .wait_for_ready(true)
///     .keep_alive(Duration::from_secs(30), Duration::from_secs(10))
///     .xds_connect_timeouts(Duration::from_secs(2), Duration::from_secs(10))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ChannelBuilder {
    target: String,
    bootstrap: Option<Bootstrap>,
    credentials: Credentials,
    authority: Option<String>,
    calls: CallSettings,
    dns: Option<Arc<dyn ResolveHost>>,
    client: ClientSettings,
    deps: DepsSettings,
    connect: ConnectSettings,
    warm_switching: Option<Duration>,
    require_xds_security: bool,
    certificate_providers: OwnProviders,
    ads: AdsLimits,
    telemetry: Option<Telemetry>,
    idle_timeout: Option<Duration>,
    last_good: Option<LastGood>,
}

/// The connectivity states of a channel: what RPCs can expect.
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

// === impl Channel ===

impl Channel {
    /// Creates a channel with the bootstrap from the environment, plaintext to the endpoints, and defaults for the rest.
    ///
    /// The bootstrap is the file that `GRPC_XDS_BOOTSTRAP` names, or the JSON in `GRPC_XDS_BOOTSTRAP_CONFIG`. The channel
    /// connects in the background, and RPCs wait until there is a configuration.
    pub fn new(target: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder(target).build()
    }

    /// Returns a builder for a channel with settings of your own.
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
            certificate_providers: OwnProviders::default(),
            ads: AdsLimits::default(),
            telemetry: None,
            idle_timeout: Some(Duration::from_secs(30 * 60)),
            last_good: None,
        }
    }

    /// Returns the target in canonical form, such as `xds:///greeter`.
    pub fn target(&self) -> &str {
        self.hub.target()
    }

    /// Returns what RPCs can expect right now.
    pub fn state(&self) -> ChannelState {
        ChannelState::of(self.hub.shared.snapshot.load().outlook())
    }

    /// Waits until the channel takes RPCs, however long that may be. Calling it is optional: RPCs wait by themselves.
    ///
    /// It has the form of tower's `ServiceExt::ready`, which is done at once on this channel, so that code that calls that one
    /// compiles and waits for what it means.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # async fn example(mut channel: mainstay::Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// tokio::time::timeout(Duration::from_secs(10), channel.ready()).await??;
    /// # Ok(())
    /// # }
    /// ```
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

    /// Returns the events of the xDS side of this channel from now on: it connects, falls back, rejects, recovers.
    ///
    /// The first caller also hears what has happened since the channel was made. See [`event`](crate::event).
    pub fn events(&self) -> Events {
        self.hub.shared.events.listen()
    }

    /// Returns what the channel has been told so far, and by whom. See [`view`](crate::view).
    ///
    /// A channel that is idle starts again. Returns `None` if the runtime of the channel has ended and this is not called on
    /// another one.
    pub async fn config(&self) -> Option<ConfigView> {
        self.hub.resume().ok()?;
        self.hub.driver.status().await.map(ConfigView::of)
    }

    /// Returns what the channel has been told, now and whenever it changes. The channel does not become idle meanwhile.
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

impl ChannelState {
    fn of(outlook: Outlook) -> Self {
        match outlook {
            Outlook::Send => Self::Ready,
            Outlook::Wait => Self::Connecting,
            Outlook::Fail => Self::TransientFailure,
        }
    }
}

// === impl ChannelBuilder ===

impl ChannelBuilder {
    /// Sets the bootstrap. By default it comes from the environment.
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> Self {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// Sets how connections to endpoints are secured; plaintext by default.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Sets the `:authority` of RPCs, which also chooses the virtual host. By default it is that of the target.
    pub fn authority(mut self, authority: impl Into<String>) -> Self {
        self.authority = Some(authority.into());
        self
    }

    /// Sets whether RPCs wait for a usable endpoint instead of failing when there is none; off by default.
    ///
    /// [`WaitForReady`](crate::WaitForReady) decides it for a single RPC.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.calls.wait_for_ready = wait;
        self
    }

    /// Sets whether the channel follows the retry policies of routes (gRFC A44); on by default.
    ///
    /// RPCs that no endpoint has seen are sent again in any case.
    pub fn retries(mut self, follow: bool) -> Self {
        self.calls.retries = follow;
        self
    }

    /// Stops retries while too many attempts fail, so that they do not keep an overloaded endpoint down (gRFC A6).
    ///
    /// Off by default: xDS has no word for it. All methods and clones of the channel are counted together.
    pub fn retry_throttle(mut self, throttle: RetryThrottle) -> Self {
        self.calls.retry_throttle = Some(Arc::new(throttle.into_core()));
        self
    }

    /// Sets the resolver for DNS names; [`SystemDns`](crate::SystemDns) by default.
    pub fn dns(mut self, dns: impl ResolveHost) -> Self {
        self.dns = Some(Arc::new(Shielded(dns)));
        self
    }

    /// Never connects to an endpoint, for tools that only look at [`Channel::config`]. RPCs wait for their deadlines.
    pub fn without_endpoints(mut self) -> Self {
        self.connect.enabled = false;
        self
    }

    /// Sets how long new routes may wait until the clusters that they bring in are connected; 5 s by default.
    ///
    /// Until then RPCs follow the routes before. Endpoints that an update replaces altogether serve as long while the new ones
    /// connect. With `None` updates take effect at once, and RPCs wait for the connections.
    pub fn warm_switching(mut self, bound: Option<Duration>) -> Self {
        self.warm_switching = bound;
        self
    }

    /// Sets whether clusters that ask for TLS in their `transport_socket` are refused when the credentials of the channel do not
    /// follow the control plane (gRFC A29); off by default.
    ///
    /// [`Credentials::xds`] follow it, so this changes nothing for them. With others, and while this is off, such a cluster is
    /// connected to as the credentials say, with a warning and
    /// [`Event::SecurityIgnored`](crate::event::Event::SecurityIgnored).
    pub fn require_xds_security(mut self, require: bool) -> Self {
        self.require_xds_security = require;
        self
    }

    /// Adds a certificate provider of the application under the instance name that the resources of the control plane use.
    ///
    /// It takes the place of an instance of that name in the bootstrap. [`Credentials::xds`] use it.
    pub fn certificate_provider(mut self, instance: impl Into<String>, provider: Arc<dyn CertificateProvider>) -> Self {
        self.certificate_providers.insert(instance.into(), provider);
        self
    }

    /// Sets how long the channel stays connected without any RPC; 30 minutes by default, forever with `None`.
    ///
    /// After that it lets go of its endpoints, its xDS servers and its configuration. The next RPC, or a look at
    /// [`Channel::config`], fetches them again. Turn it off if the channel must work without a control plane after such a pause.
    pub fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Keeps what the channel was told last in files of this directory, and goes on with it when the channel is made while every
    /// control plane is down; off by default. See [`last_good`](crate::last_good).
    ///
    /// It takes the place of `last_good` in the bootstrap. Clients with one node id and target share files.
    pub fn last_good(mut self, last_good: impl Into<LastGood>) -> Self {
        self.last_good = Some(last_good.into());
        self
    }

    /// Sets how long one attempt to connect to an endpoint may take; 20 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect.timeout = timeout;
        self
    }

    /// Turns on keepalive for connections to endpoints; off by default.
    ///
    /// While there are calls, an endpoint from which nothing came for `interval` is pinged, and its connection is closed after
    /// `timeout` without an answer. Servers may refuse frequent pings; one that complains gets half as many from then on
    /// (gRFC A8). An endpoint to which calls run out of time is pinged anyway: see [`ChannelBuilder::silence_timeout`].
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.connect.http2.keep_alive = Some(KeepAlive { interval, timeout });
        self
    }

    /// Sets whether [`ChannelBuilder::keep_alive`] goes on while there are no calls; off by default.
    ///
    /// Servers count such pings and close the connection, unless they are told to permit them.
    pub fn keep_alive_without_calls(mut self, ping: bool) -> Self {
        self.connect.http2.keep_alive_without_calls = ping;
        self
    }

    /// Sets how long an endpoint may stay silent after a call to it ran out of time or was cancelled; 5 s by default.
    ///
    /// It is pinged meanwhile. If nothing comes, its connection is closed, and calls go elsewhere.
    pub fn silence_timeout(mut self, timeout: Duration) -> Self {
        self.connect.silence = timeout;
        self
    }

    /// Sets how many bytes an endpoint may send before somebody reads them, for one call and for all calls on a connection;
    /// 1 MiB and 2 GiB by default.
    ///
    /// Calls that nobody reads fill the window of the connection and then hold up all others on it: it should be far larger
    /// than that of a call.
    pub fn windows(mut self, stream: u32, connection: u32) -> Self {
        let largest = Http2Settings::default().connection_window;
        self.connect.http2.stream_window = stream.min(largest);
        self.connect.http2.connection_window = connection.min(largest);
        self
    }

    /// Sets the largest headers or trailers that an endpoint may send; 1 MiB by default. Larger ones fail their call.
    pub fn max_header_list_size(mut self, bytes: u32) -> Self {
        self.connect.http2.max_header_list_size = bytes;
        self
    }

    /// Sets how long connecting to an xDS server may take: `next` while another one is next in the list, 5 s by default, and
    /// `last` for the last one, 20 s by default.
    pub fn xds_connect_timeouts(mut self, next: Duration, last: Duration) -> Self {
        self.client.connect_timeout = next;
        self.client.last_connect_timeout = last;
        self
    }

    /// Sets the least time between two successful lookups of one DNS name, however many connections fail meanwhile; 30 s by
    /// default.
    pub fn min_dns_interval(mut self, interval: Duration) -> Self {
        self.deps.min_resolution_interval = interval;
        self
    }

    /// Looks up the names of LOGICAL_DNS clusters again this long after each answer.
    ///
    /// Off by default: they are looked up again when connections fail.
    pub fn dns_refresh(mut self, interval: Duration) -> Self {
        self.deps.resolution_refresh = Some(interval);
        self
    }

    /// Sets the first and the longest backoff between attempts to connect and between lookups that fail; 1 s and 120 s by
    /// default, and 1 s and 30 s for xDS servers.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.connect.backoff = Backoff::new(base, max);
        self.deps.resolution_backoff = Backoff::new(base, max);
        self.client.backoff_base = base;
        self.client.backoff_max = max;
        self
    }

    /// Sets the time over which channels come back to an xDS server that they lost; 2 s by default, zero for at once.
    ///
    /// A channel that lacks nothing waits for a random part of it, so that many channels do not come in the same instant.
    pub fn reconnect_spread(mut self, spread: Duration) -> Self {
        self.client.reconnect_spread = spread;
        self
    }

    /// Sets whether xDS servers are told, when a stream to them is opened anew, the versions of what the channel has, without
    /// a look at who they say they are; off by default.
    ///
    /// It saves sending everything again. With a control plane that counts versions from 1 in each process, and believes
    /// what it is told, a channel may then stay on old content for ever. Servers of the incremental variant of ADS that
    /// call themselves the same in all responses are told in any case, and checked.
    pub fn trust_versions(mut self, on: bool) -> Self {
        self.client.trust_versions = on;
        self
    }

    /// Sets the least time between two load reports, whatever the xDS server asks for; 1 s by default.
    pub fn min_load_report_interval(mut self, interval: Duration) -> Self {
        self.client.min_load_report_interval = interval;
        self
    }

    /// Sets how long an xDS server may take to send a resource before the resource counts as not existing; 15 s by default.
    pub fn resource_timeout(mut self, timeout: Duration) -> Self {
        self.client.resource_timeout = timeout;
        self
    }

    /// Treats an xDS server that owes an answer and says nothing on a new stream for this long as unreachable, even if it shows
    /// that it is alive.
    ///
    /// Off by default: a server that shows no sign of life is left after about 10 s.
    pub fn silent_stream_timeout(mut self, timeout: Duration) -> Self {
        self.client.silent_stream_timeout = Some(timeout);
        self
    }

    /// Sets the largest response that an xDS server may send; 256 MiB by default.
    pub fn max_xds_response_size(mut self, bytes: usize) -> Self {
        self.ads.max_response_size = bytes;
        self
    }

    /// Sets the keepalive of connections to xDS servers: they are pinged every `interval` and closed after `timeout` without an
    /// answer; 300 s and 20 s by default. Servers may refuse shorter intervals.
    pub fn xds_keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.ads.keep_alive = KeepAlive { interval, timeout };
        self
    }

    /// Sets where metrics and traces are sent; nowhere by default.
    #[cfg(feature = "opentelemetry")]
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// Creates the channel and starts it in the background.
    pub fn build(self) -> Result<Channel, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let bootstrap = match self.bootstrap {
            Some(bootstrap) => bootstrap,
            None => Bootstrap::from_env()?,
        };
        let bootstrap = self.certificate_providers.announce(bootstrap.core().clone());
        let bootstrap = match self.last_good {
            Some(last_good) => last_good.announce(&bootstrap),
            None => bootstrap,
        };
        let mut target = Target::resolve(&self.target, &bootstrap).map_err(TargetError::of)?;
        let mut last_good_key = target.canonical.clone();
        if let Some(authority) = self.authority {
            last_good_key = format!("{last_good_key} (authority {authority})").into();
            target.data_plane_authority = authority.into();
        }
        let plan = Plan {
            target,
            bootstrap,
            credentials: self.credentials,
            dns: self.dns.unwrap_or_else(|| process::SYSTEM_DNS.clone()),
            client: self.client,
            deps: self.deps,
            connect: self.connect,
            warm_switching: self.warm_switching,
            require_xds_security: self.require_xds_security,
            certificate_providers: self.certificate_providers,
            ads: self.ads,
            telemetry: self.telemetry,
            idle_timeout: self.idle_timeout,
            last_good_key,
        };
        Ok(Channel { hub: Hub::of(plan, &runtime)?, settings: self.calls })
    }
}
