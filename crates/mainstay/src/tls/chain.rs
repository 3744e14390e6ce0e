//! TLS as a filter chain of a server asks for it (A29).

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use mainstay_xds::resource::tls::DownstreamTls;
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;

use super::{ClusterTlsError, Instance, Providers, client_verifier, never, newest, server_builder};
use crate::certificates::{Certificates, Identity, Trust};

/// The TLS contexts of the filter chains of a server: one for all generations of connections that have it.
pub(crate) struct ChainTlsCache {
    providers: Providers,
    chains: Mutex<Vec<Weak<ChainTls>>>,
}

/// The TLS context of a filter chain, with where its certificates come from.
pub(crate) struct ChainTls {
    context: Arc<DownstreamTls>,
    identity: Instance,
    /// What callers are checked against. They are not asked for a certificate if it is absent.
    trust: Option<Instance>,
    /// What new connections are accepted with, as long as the certificates are the same.
    built: Mutex<Option<(Material, Arc<ServerConfig>)>>,
}

/// The certificates of one moment.
#[derive(Clone)]
struct Material {
    identity: Identity,
    trust: Option<Trust>,
}

/// What one connection is accepted with.
pub(crate) struct Acceptance {
    pub(crate) config: Arc<ServerConfig>,
    /// What it presents.
    pub(crate) identity: Identity,
}

impl ChainTlsCache {
    pub(crate) fn new(providers: Providers) -> Self {
        Self { providers, chains: Mutex::default() }
    }

    /// How connections of a chain with this context are secured. Providers are started by the first chain that needs
    /// them, and stop after the last.
    pub(crate) fn of(&self, context: &Arc<DownstreamTls>) -> Arc<ChainTls> {
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        chains.retain(|chain| chain.strong_count() > 0);
        let known = chains.iter().filter_map(Weak::upgrade).find(|chain| chain.context == *context);
        known.unwrap_or_else(|| {
            let chain = Arc::new(ChainTls::new(context.clone(), &self.providers));
            chains.push(Arc::downgrade(&chain));
            chain
        })
    }
}

impl ChainTls {
    fn new(context: Arc<DownstreamTls>, providers: &Providers) -> Self {
        let trust = context.roots_instance.as_ref().map(|instance| providers.instance(instance));
        Self { identity: providers.instance(&context.identity_instance), trust, context, built: Mutex::default() }
    }

    /// What to accept a connection with. Waits for certificates that are not there yet.
    pub(crate) async fn accept(&self, wait: Duration) -> Result<Acceptance, ClusterTlsError> {
        let changed = || [self.identity.changed(), self.trust.as_ref().map_or_else(never, Instance::changed)];
        newest(wait, changed, || self.build()).await
    }

    fn build(&self) -> Result<Acceptance, ClusterTlsError> {
        let material = Material {
            identity: self.identity.identity()?,
            trust: self.trust.as_ref().map(Instance::trust).transpose()?,
        };
        let identity = material.identity.clone();
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, config)) = &*built
            && before.is(&material)
        {
            return Ok(Acceptance { config: config.clone(), identity });
        }
        let config = material
            .config(self.context.require_client_certificate)
            .map_err(|error| ClusterTlsError::Config(error.to_string()))?;
        let config = Arc::new(config);
        *built = Some((material, config.clone()));
        Ok(Acceptance { config, identity })
    }
}

impl Material {
    fn is(&self, other: &Self) -> bool {
        let all = |material: &Self| Certificates::new(Some(material.identity.clone()), material.trust.clone());
        all(self).is(&all(other))
    }

    fn config(&self, required: bool) -> Result<ServerConfig, rustls::Error> {
        let builder = match &self.trust {
            None => server_builder()?.with_no_client_auth(),
            Some(trust) => server_builder()?.with_client_cert_verifier(client_verifier(trust, required)?),
        };
        let key = SingleCertAndKey::from(self.identity.certified_key().clone());
        let mut config = builder.with_cert_resolver(Arc::new(key));
        config.alpn_protocols = vec![b"h2".to_vec()];
        if self.trust.is_some() {
            // A session that is resumed is not verified again, by whatever roots there are by then (TL-11).
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(config)
    }
}

impl std::fmt::Debug for ChainTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainTls").field("context", &self.context).finish_non_exhaustive()
    }
}
