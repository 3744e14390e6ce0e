//! The settings of a server.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_xds::client::ClientSettings;
use mainstay_xds::serve::ServeSettings;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower_layer::Layer;
use tower_service::Service;

use super::error::ServeError;
use super::handlers::{Handlers, Wrap};
use super::limits::Limits;
use super::plan::{ClientPlan, OnState, Plan};
use super::running::Running;
use super::security::ServerSecurity;
use crate::ads::AdsLimits;
use crate::audit::{AuditLoggerFactory, AuditQueue, Auditor, OwnLoggers};
use crate::bootstrap::Bootstrap;
use crate::certificates::CertificateProvider;
use crate::credentials::ServerCredentials;
use crate::dns::{ResolveHost, Shielded};
use crate::http2::Http2Settings;
use crate::keep_alive::KeepAlive;
use crate::last_good::LastGood;
use crate::process;
use crate::serving_state::ServingState;
use crate::telemetry::Telemetry;
use crate::tls::OwnProviders;

/// The settings of a server. Made by [`Server::builder`](crate::Server::builder).
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(signal: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
/// # let greeter = mainstay_testservice::service("one", "one").unwrap();
/// let running = mainstay::Server::builder()
///     .add_service(greeter)
///     .drain_grace(Duration::from_secs(30))
///     .listen("0.0.0.0:50051".parse()?)
///     .listen("[::1]:0".parse()?) // any free port
///     .start()?;
/// println!("bound: {:?}", running.local_addresses());
/// signal.await;
/// running.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct ServerBuilder {
    addresses: Vec<SocketAddr>,
    bootstrap: Option<Bootstrap>,
    credentials: ServerCredentials,
    require_xds_security: bool,
    routes: Routes,
    services: BTreeSet<&'static str>,
    duplicate: Option<&'static str>,
    layers: Vec<Wrap>,
    on_state: Option<OnState>,
    limits: Limits,
    bind: bool,
    serve: ServeSettings,
    certificate_providers: OwnProviders,
    audit_loggers: OwnLoggers,
    audit_queue: AuditQueue,
    dns: Option<Arc<dyn ResolveHost>>,
    client: ClientSettings,
    ads: AdsLimits,
    telemetry: Option<Telemetry>,
    last_good: Option<LastGood>,
}

impl ServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            addresses: Vec::new(),
            bootstrap: None,
            credentials: ServerCredentials::insecure(),
            require_xds_security: false,
            routes: Routes::default(),
            services: BTreeSet::new(),
            duplicate: None,
            layers: Vec::new(),
            on_state: None,
            limits: Limits::default(),
            bind: true,
            serve: ServeSettings::default(),
            certificate_providers: OwnProviders::default(),
            audit_loggers: OwnLoggers::default(),
            audit_queue: AuditQueue::default(),
            dns: None,
            client: ClientSettings::default(),
            ads: AdsLimits::default(),
            telemetry: None,
            last_good: None,
        }
    }

    /// Adds a service: any tonic service, unchanged.
    pub fn add_service<S, B>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>, Error = std::convert::Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if self.services.insert(S::NAME) {
            self.routes = self.routes.add_service(service);
        } else {
            self.duplicate = Some(S::NAME);
        }
        self
    }

    /// Adds a layer around all services, such as one of tower or a tonic interceptor.
    ///
    /// It sees the RPCs that the control plane lets through. A layer that is added first sees them first.
    ///
    /// ```
    /// use tonic::service::InterceptorLayer;
    ///
    /// let server = mainstay::Server::builder().layer(InterceptorLayer::new(|request: tonic::Request<()>| {
    ///     match request.metadata().get("authorization") {
    ///         Some(_) => Ok(request),
    ///         None => Err(tonic::Status::unauthenticated("who are you?")),
    ///     }
    /// }));
    /// ```
    pub fn layer<L, B>(mut self, layer: L) -> Self
    where
        L: Layer<Handlers> + Send + 'static,
        L::Service: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Future: Send + 'static,
        <L::Service as Service<http::Request<Body>>>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.layers.push(Box::new(move |inner| Handlers::new(layer.layer(inner))));
        self
    }

    /// Sets the bootstrap. By default it comes from the environment, as for [`Channel::new`](crate::Channel::new).
    ///
    /// It must have a `server_listener_resource_name_template`, which says what the Listener resource of an address is called.
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> Self {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// Sets how connections are secured; plaintext by default.
    pub fn credentials(mut self, credentials: ServerCredentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Sets whether an address is not served while a filter chain of its Listener asks for TLS in its `transport_socket` and the
    /// credentials of the server do not follow the control plane (gRFC A29); off by default.
    ///
    /// [`ServerCredentials::xds`] follow it, so this changes nothing for them. With others, and while this is off, connections are
    /// secured as the credentials say, with a warning.
    pub fn require_xds_security(mut self, require: bool) -> Self {
        self.require_xds_security = require;
        self
    }

    /// Adds an address to listen on. Each has a Listener resource and a serving state of its own.
    ///
    /// With port 0 the system chooses a port; [`Running::local_addresses`] tells which.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Never binds an address, for tools that only look at [`Running::config`]. The addresses may be those of another machine, and
    /// serving means that there would be a server there.
    pub fn without_ports(mut self) -> Self {
        self.bind = false;
        self
    }

    /// Sets what is called with each serving state of each address, in order. By default states are logged.
    ///
    /// It is called in the task that runs the server, and must not block. A panic of it is logged and changes nothing.
    pub fn on_serving_state(mut self, call: impl Fn(SocketAddr, &ServingState) + Send + Sync + 'static) -> Self {
        self.on_state = Some(Arc::new(call));
        self
    }

    /// Sets how long RPCs may go on on a connection that is drained, because its configuration has been replaced or the server is
    /// shut down; 10 minutes by default (gRFC A36).
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.serve.drain_grace = grace;
        self
    }

    /// Sets the time over which many connections are told to go when their configuration has been replaced; 1 s by default, zero
    /// for at once.
    ///
    /// Callers that all come back in the same instant are a burden.
    pub fn drain_spread(mut self, spread: Duration) -> Self {
        self.serve.drain_spread = spread;
        self
    }

    /// Sets how long a caller may take until it has done its TLS handshake and begun to speak HTTP/2; 20 s by default.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.limits.handshake_timeout = timeout;
        self
    }

    /// Sets how many callers may be in their handshake at the same time; 1,024 by default. More have to wait.
    pub fn max_handshakes(mut self, handshakes: usize) -> Self {
        self.limits.max_handshakes = handshakes;
        self
    }

    /// Sets how many RPCs may run on one connection at the same time; 100 by default.
    pub fn max_concurrent_streams(mut self, streams: u32) -> Self {
        self.limits.max_concurrent_streams = streams;
        self
    }

    /// Sets the largest headers that a caller may send; 16 KiB by default. Larger ones fail their RPC.
    pub fn max_header_list_size(mut self, bytes: u32) -> Self {
        self.limits.http2.max_header_list_size = bytes;
        self
    }

    /// Sets how many bytes a caller may send before a handler reads them, for one RPC and for all RPCs on a connection; 1 MiB
    /// and 2 GiB by default.
    pub fn windows(mut self, stream: u32, connection: u32) -> Self {
        let largest = Http2Settings::default().connection_window;
        self.limits.http2.stream_window = stream.min(largest);
        self.limits.http2.connection_window = connection.min(largest);
        self
    }

    /// Sets the keepalive of connections: a caller from which nothing came for `interval` is pinged, and its connection is closed
    /// after `timeout` without an answer; 2 hours and 20 s by default.
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.limits.http2.keep_alive = Some(KeepAlive { interval, timeout });
        self
    }

    /// Adds a certificate provider of the application under the instance name that the resources of the control plane use.
    ///
    /// It takes the place of an instance of that name in the bootstrap. [`ServerCredentials::xds`] use it.
    pub fn certificate_provider(mut self, instance: impl Into<String>, provider: Arc<dyn CertificateProvider>) -> Self {
        self.certificate_providers.insert(instance.into(), provider);
        self
    }

    /// Adds an audit logger of the application under the name that the control plane uses for it (gRFC A59). See
    /// [`audit`](crate::audit).
    pub fn audit_logger(mut self, name: impl Into<String>, factory: Arc<dyn AuditLoggerFactory>) -> Self {
        self.audit_loggers.insert(name.into(), factory);
        self
    }

    /// Sets the queue in front of the audit log on standard output: how much it holds, and whether RPCs wait when it is full.
    pub fn audit_queue(mut self, queue: AuditQueue) -> Self {
        self.audit_queue = queue;
        self
    }

    /// Keeps what the server was told last in files of this directory, and goes on with it when the server is started while
    /// every control plane is down; off by default. See [`last_good`](crate::last_good).
    ///
    /// It takes the place of `last_good` in the bootstrap. Servers with one node id share a file: those of different
    /// processes need different ids, or directories.
    pub fn last_good(mut self, last_good: impl Into<LastGood>) -> Self {
        self.last_good = Some(last_good.into());
        self
    }

    /// Sets the resolver for the names of xDS servers; [`SystemDns`](crate::SystemDns) by default.
    pub fn dns(mut self, dns: impl ResolveHost) -> Self {
        self.dns = Some(Arc::new(Shielded(dns)));
        self
    }

    /// Sets the first and the longest backoff between attempts to connect to xDS servers; 1 s and 30 s by default.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.client.backoff_base = base;
        self.client.backoff_max = max;
        self
    }

    /// Sets the time over which servers come back to an xDS server that they lost; 2 s by default, zero for at once.
    pub fn reconnect_spread(mut self, spread: Duration) -> Self {
        self.client.reconnect_spread = spread;
        self
    }

    /// Sets whether xDS servers are told, when a stream to them is opened anew, the versions of what the server has, without
    /// a look at who they say they are; off by default.
    ///
    /// It saves sending everything again. With a control plane that counts versions from 1 in each process, and believes
    /// what it is told, a server may then stay on old content for ever. Servers of the incremental variant of ADS that
    /// call themselves the same in all responses are told in any case, and checked.
    pub fn trust_versions(mut self, on: bool) -> Self {
        self.client.trust_versions = on;
        self
    }

    /// Sets how long connecting to an xDS server may take: `next` while another one is next in the list, 5 s by default, and
    /// `last` for the last one, 20 s by default.
    pub fn xds_connect_timeouts(mut self, next: Duration, last: Duration) -> Self {
        self.client.connect_timeout = next;
        self.client.last_connect_timeout = last;
        self
    }

    /// Sets how long an xDS server may take to send a resource before the resource counts as not existing; 15 s by default.
    pub fn resource_timeout(mut self, timeout: Duration) -> Self {
        self.client.resource_timeout = timeout;
        self
    }

    /// Sets where metrics and traces are sent; nowhere by default.
    #[cfg(feature = "opentelemetry")]
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// Binds the addresses and starts the server in the background.
    ///
    /// It fails at once if the bootstrap cannot be used or an address cannot be bound, and never because of what the control plane
    /// does: until there is a configuration for an address, connections to it are refused.
    pub fn start(self) -> Result<Running, ServeError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ServeError::NoRuntime)?;
        if let Some(name) = self.duplicate {
            return Err(ServeError::DuplicateService(name));
        }
        if self.addresses.is_empty() {
            return Err(ServeError::NoAddress);
        }
        let bootstrap = match self.bootstrap {
            Some(bootstrap) => bootstrap,
            None => Bootstrap::from_env()?,
        };
        let bootstrap = self.certificate_providers.announce(bootstrap.core().clone());
        let bootstrap = self.audit_loggers.announce(bootstrap);
        let bootstrap = match self.last_good {
            Some(last_good) => last_good.announce(&bootstrap),
            None => bootstrap,
        };
        let handlers = Handlers::new(self.routes.prepare());
        let handlers = self.layers.into_iter().rev().fold(handlers, |inner, wrap| wrap(inner));
        let plan = Plan {
            security: ServerSecurity::new(&self.credentials, &bootstrap, self.certificate_providers),
            client: Arc::new(ClientPlan {
                bootstrap,
                dns: self.dns.unwrap_or_else(|| process::SYSTEM_DNS.clone()),
                client: self.client,
                ads: self.ads,
                telemetry: self.telemetry,
            }),
            auditor: Arc::new(Auditor::new(self.audit_loggers, self.audit_queue)),
            services: self.services,
            limits: self.limits,
            bind: self.bind,
            serve: ServeSettings {
                refuse_tls: self.require_xds_security && !self.credentials.follow_xds(),
                ..self.serve
            },
            on_state: self.on_state,
        };
        Running::start(plan, self.addresses, handlers, &runtime)
    }

    /// Serves on `address`, and on those of [`ServerBuilder::listen`], until the future is dropped.
    pub async fn serve_xds(self, address: SocketAddr) -> Result<(), ServeError> {
        self.serve_xds_with_shutdown(address, std::future::pending()).await
    }

    /// Serves on `address`, and on those of [`ServerBuilder::listen`], until `signal` completes. Then it stops listening, lets
    /// RPCs finish for at most the [grace](ServerBuilder::drain_grace), and returns.
    pub async fn serve_xds_with_shutdown(
        self,
        address: SocketAddr,
        signal: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let mut running = self.listen(address).start()?;
        tokio::select! {
            () = running.stopped() => {}
            () = signal => running.shutdown().await,
        }
        Ok(())
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("addresses", &self.addresses)
            .field("credentials", &self.credentials)
            .field("services", &self.services)
            .field("layers", &self.layers.len())
            .finish_non_exhaustive()
    }
}
