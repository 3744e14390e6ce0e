//! TLS as a cluster asks for it (A29, A82, A87, A101).
//!
//! A connection is secured with what the certificate providers have at the moment when it is made; running ones stay as
//! they are. Whatever is missing or wrong fails the connection. There is no way from here to plaintext: the fallback
//! credentials are for clusters that have no TLS context, which never come here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use mainstay_lb::SubchannelSpec;
use mainstay_xds::bootstrap::{Bootstrap, CertificateProviderConfig};
use mainstay_xds::resource::tls::{Roots, UpstreamTls};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

pub(crate) use self::chain::{ChainTls, ChainTlsCache};
pub(crate) use self::client_verifier::client_verifier;
pub(crate) use self::config::{builder, server_builder, system_roots};
pub(crate) use self::handshake::{Handshake, HandshakeNote, HandshakeResult};
pub use self::info::TlsInfo;
pub(crate) use self::info::{OneIdentity, Presenting};
pub(crate) use self::name::{has_name, host_of, server_name};
pub(crate) use self::verifier::PeerVerifier;
use crate::certificates::{CertificateError, CertificateProvider, Certificates, FileWatcher, Identity, Trust};

mod chain;
mod client_verifier;
mod config;
mod handshake;
mod info;
mod name;
mod verifier;

/// TLS for one connection.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<rustls::ClientConfig>,
    pub(crate) server_name: ServerName<'static>,
}

/// How a connection is secured.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum TransportSecurity {
    Plaintext,
    /// As the application says.
    Tls(Tls),
    /// As the cluster says.
    Cluster {
        tls: Arc<ClusterTls>,
        /// The server name to ask for (S-29).
        sni: Option<Arc<str>>,
    },
}

/// How the connections of a channel are secured.
#[derive(Clone)]
pub(crate) enum ChannelSecurity {
    /// As the application says; plaintext if there is no TLS.
    Application(Option<Tls>),
    /// As clusters say; those that do not say anything, as the application does.
    Xds { fallback: Option<Tls>, providers: Arc<Providers> },
}

/// The TLS context of a cluster, with where its certificates come from.
pub(crate) struct ClusterTls {
    context: Arc<UpstreamTls>,
    trust: TrustSource,
    identity: Option<Instance>,
    /// What new connections are made with, as long as the certificates are the same: sessions are resumed there.
    built: Mutex<Option<(Material, Arc<ClientConfig>)>>,
}

/// The certificate providers of a channel, by the names that resources know them by.
pub(crate) struct Providers {
    bootstrap: Arc<Bootstrap>,
    own: OwnProviders,
    /// One for all connections to a cluster.
    clusters: Mutex<Vec<Weak<ClusterTls>>>,
}

/// Providers of the application. Equal if they are the same ones.
#[derive(Clone, Default)]
pub(crate) struct OwnProviders(BTreeMap<String, Arc<dyn CertificateProvider>>);

/// Where roots come from.
#[derive(Clone)]
enum TrustSource {
    /// The system (A82).
    System,
    Instance(Instance),
}

/// A certificate provider instance.
#[derive(Clone)]
struct Instance {
    name: String,
    provider: Arc<dyn CertificateProvider>,
}

/// The certificates of one moment.
#[derive(Clone)]
struct Material {
    trust: Trust,
    identity: Option<Identity>,
}

/// Why a connection cannot be secured as its cluster or its filter chain asks.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ClusterTlsError {
    #[error("certificate provider instance {instance:?}: {error}")]
    Provider {
        instance: String,
        #[source]
        error: CertificateError,
    },
    #[error("{0}")]
    System(#[source] CertificateError),
    #[error("certificate provider instance {0:?} provides no roots, which are asked for")]
    NoTrust(String),
    #[error("certificate provider instance {0:?} provides no certificate of our own, which is asked for")]
    NoIdentity(String),
    #[error("{0:?} is not a server name that can be asked for")]
    ServerName(String),
    #[error("TLS configuration: {0}")]
    Config(String),
}

// === impl Tls ===

impl PartialEq for Tls {
    /// Whether both make the same connection. rustls configurations cannot be compared: equal means the very same.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.server_name == other.server_name
    }
}

impl Eq for Tls {}

// === impl ChannelSecurity ===

impl ChannelSecurity {
    /// How a connection is secured.
    pub(crate) fn of(&self, spec: &SubchannelSpec) -> TransportSecurity {
        let tls = match self {
            Self::Application(tls) => tls,
            Self::Xds { fallback, providers } => match &spec.tls {
                Some(context) => return providers.secure(context, spec.hostname.as_deref()),
                None => fallback,
            },
        };
        tls.clone().map_or(TransportSecurity::Plaintext, TransportSecurity::Tls)
    }
}

// === impl Providers ===

impl Providers {
    pub(crate) fn new(bootstrap: Arc<Bootstrap>, own: OwnProviders) -> Self {
        Self { bootstrap, own, clusters: Mutex::default() }
    }

    /// How a connection to an endpoint of a cluster with this TLS context is secured. Providers are started by the first
    /// cluster that needs them, and stop after the last.
    pub(crate) fn secure(&self, context: &Arc<UpstreamTls>, hostname: Option<&str>) -> TransportSecurity {
        let sni = match (hostname.filter(|_| context.auto_host_sni), &context.sni) {
            (Some(hostname), _) => Some(host_of(hostname).into()),
            (None, sni) => sni.as_deref().map(Arc::from),
        };
        TransportSecurity::Cluster { tls: self.cluster(context), sni }
    }

    fn cluster(&self, context: &Arc<UpstreamTls>) -> Arc<ClusterTls> {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.retain(|cluster| cluster.strong_count() > 0);
        let known = clusters.iter().filter_map(Weak::upgrade).find(|cluster| cluster.context == *context);
        known.unwrap_or_else(|| {
            let trust = match &context.roots {
                Roots::System => TrustSource::System,
                Roots::Instance(instance) => TrustSource::Instance(self.instance(instance)),
            };
            let identity = context.identity_instance.as_deref().map(|instance| self.instance(instance));
            let cluster = ClusterTls { context: context.clone(), trust, identity, built: Mutex::default() };
            let cluster = Arc::new(cluster);
            clusters.push(Arc::downgrade(&cluster));
            cluster
        })
    }

    fn instance(&self, instance: &str) -> Instance {
        let provider: Arc<dyn CertificateProvider> = match self.own.0.get(instance) {
            Some(own) => own.clone(),
            None => match self.bootstrap.certificate_providers.get(instance) {
                Some(CertificateProviderConfig::FileWatcher(config)) => FileWatcher::of(config),
                // Resources that name such an instance are rejected.
                Some(CertificateProviderConfig::Application) | None => Arc::new(Missing),
            },
        };
        Instance { name: instance.to_owned(), provider }
    }
}

/// Stands where there is no provider.
struct Missing;

impl CertificateProvider for Missing {
    fn certificates(&self) -> Result<Certificates, CertificateError> {
        Err(CertificateError::Other("is not in the bootstrap".to_owned()))
    }

    fn changed(&self) -> Change<'_> {
        never()
    }
}

// === impl OwnProviders ===

impl OwnProviders {
    pub(crate) fn insert(&mut self, instance: String, provider: Arc<dyn CertificateProvider>) {
        self.0.insert(instance, provider);
    }

    /// Puts the instances into the bootstrap, so that resources may name them.
    pub(crate) fn announce(&self, bootstrap: Arc<Bootstrap>) -> Arc<Bootstrap> {
        if self.0.is_empty() {
            return bootstrap;
        }
        let mut bootstrap = Arc::unwrap_or_clone(bootstrap);
        let own = self.0.keys().map(|instance| (instance.clone(), CertificateProviderConfig::Application));
        bootstrap.certificate_providers.extend(own);
        Arc::new(bootstrap)
    }
}

impl PartialEq for OwnProviders {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): ((&String, &Arc<_>), (&String, &Arc<_>))| a.0 == b.0 && Arc::ptr_eq(a.1, b.1);
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

// === impl TransportSecurity ===

impl TransportSecurity {
    pub(crate) fn is_plaintext(&self) -> bool {
        matches!(self, Self::Plaintext)
    }

    /// TLS for a new connection to `address`, if it is not plaintext. Waits for certificates that are not there yet.
    pub(crate) async fn current(&self, address: IpAddr, wait: Duration) -> Result<Option<Tls>, ClusterTlsError> {
        match self {
            Self::Plaintext => Ok(None),
            Self::Tls(tls) => Ok(Some(tls.clone())),
            Self::Cluster { tls, sni } => tls.connect(sni.as_deref(), address, wait).await.map(Some),
        }
    }
}

// === impl ClusterTls ===

impl ClusterTls {
    async fn connect(&self, sni: Option<&str>, address: IpAddr, wait: Duration) -> Result<Tls, ClusterTlsError> {
        // An address is never sent as a server name, but has to stand for it where there is none.
        let server_name = match sni {
            None => ServerName::from(address),
            Some(sni) => {
                let name = ServerName::try_from(sni.to_owned());
                name.map_err(|_| ClusterTlsError::ServerName(sni.to_owned()))?
            }
        };
        Ok(Tls { config: self.newest(wait).await?, server_name })
    }

    /// What the providers have now. If one has nothing yet, this waits for it, and fails with what it says.
    async fn newest(&self, wait: Duration) -> Result<Arc<ClientConfig>, ClusterTlsError> {
        if matches!(self.trust, TrustSource::System) {
            let loaded = tokio::task::spawn_blocking(system_roots).await;
            let loaded = loaded.unwrap_or_else(|error| Err(CertificateError::Other(error.to_string())));
            loaded.map_err(ClusterTlsError::System)?;
        }
        let changed = || {
            let identity = self.identity.as_ref().map_or_else(never, Instance::changed);
            [self.trust.changed(), identity]
        };
        newest(wait, changed, || self.build()).await
    }

    fn build(&self) -> Result<Arc<ClientConfig>, ClusterTlsError> {
        let material = Material {
            trust: self.trust.trust()?,
            identity: self.identity.as_ref().map(Instance::identity).transpose()?,
        };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, config)) = &*built
            && before.is(&material)
        {
            return Ok(config.clone());
        }
        let config = self.config(&material).map_err(|error| ClusterTlsError::Config(error.to_string()))?;
        *built = Some((material, config.clone()));
        Ok(config)
    }

    fn config(&self, material: &Material) -> Result<Arc<ClientConfig>, rustls::Error> {
        let verifier = PeerVerifier::new(material.trust.clone(), self.context.clone());
        let builder = builder()?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &material.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(OneIdentity(identity.clone()))),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

impl PartialEq for ClusterTls {
    /// Whether connections may be shared: the same is asked for, and certificates come from the same place.
    fn eq(&self, other: &Self) -> bool {
        let same_identity = match (&self.identity, &other.identity) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is(b),
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.context == other.context && self.trust.is(&other.trust) && same_identity
    }
}

impl Eq for ClusterTls {}

// === impl Material ===

impl Material {
    fn is(&self, other: &Self) -> bool {
        let all = |material: &Self| Certificates::new(material.identity.clone(), Some(material.trust.clone()));
        all(self).is(&all(other))
    }
}

// === impl TrustSource ===

impl TrustSource {
    fn trust(&self) -> Result<Trust, ClusterTlsError> {
        match self {
            Self::System => system_roots().map(Trust::Roots).map_err(ClusterTlsError::System),
            Self::Instance(instance) => instance.trust(),
        }
    }

    fn changed(&self) -> Change<'_> {
        match self {
            Self::System => never(),
            Self::Instance(instance) => instance.changed(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::System, Self::System) => true,
            (Self::Instance(a), Self::Instance(b)) => a.is(b),
            (Self::System, Self::Instance(_)) | (Self::Instance(_), Self::System) => false,
        }
    }
}

// === impl Instance ===

impl Instance {
    fn certificates(&self) -> Result<Certificates, ClusterTlsError> {
        let certificates = self.provider.certificates();
        certificates.map_err(|error| ClusterTlsError::Provider { instance: self.name.clone(), error })
    }

    fn identity(&self) -> Result<Identity, ClusterTlsError> {
        let identity = self.certificates()?.identity;
        identity.ok_or_else(|| ClusterTlsError::NoIdentity(self.name.clone()))
    }

    fn trust(&self) -> Result<Trust, ClusterTlsError> {
        let trust = self.certificates()?.trust;
        trust.ok_or_else(|| ClusterTlsError::NoTrust(self.name.clone()))
    }

    fn changed(&self) -> Change<'_> {
        self.provider.changed()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.provider, &other.provider)
    }
}

/// What the providers have now, as `build` makes it. If one has nothing yet, this waits until there is a change, and fails
/// with what was missing last.
async fn newest<'a, T>(
    wait: Duration,
    changed: impl Fn() -> [Change<'a>; 2],
    build: impl Fn() -> Result<T, ClusterTlsError>,
) -> Result<T, ClusterTlsError> {
    let mut missing = None;
    let found = tokio::time::timeout(wait, async {
        loop {
            // From before the look, so that no change is missed.
            let [mut one, mut other] = changed();
            match build() {
                Ok(built) => return built,
                Err(error) => missing = Some(error),
            }
            tokio::select! {
                () = &mut one => {}
                () = &mut other => {}
            }
        }
    });
    match found.await {
        Ok(built) => Ok(built),
        Err(_) => Err(missing.unwrap_or_else(|| ClusterTlsError::Config("no certificates".to_owned()))),
    }
}

/// Completes when a provider has something else.
type Change<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

fn never<'a>() -> Change<'a> {
    Box::pin(std::future::pending())
}

impl fmt::Debug for ClusterTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterTls").field("context", &self.context).finish_non_exhaustive()
    }
}

impl fmt::Debug for OwnProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
