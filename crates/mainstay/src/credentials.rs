//! How connections are secured.

use std::fmt;
use std::sync::Arc;

use mainstay_xds::bootstrap::{CertificateFiles, ChannelCreds};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

pub(crate) use self::server::OwnServerTls;
pub use self::server::ServerCredentials;
use crate::certificates::{CertificateError, Certificates, Identity, Trust, read_once};
use crate::tls::{OneIdentity, PeerVerifier, Tls, builder, host_of, server_name, system_roots};

mod server;

/// How a channel secures its connections to endpoints.
///
/// ```no_run
/// use mainstay::certificates::Identity;
/// use mainstay::{Channel, Credentials};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // As the control plane says, cluster by cluster; plaintext where it says nothing.
/// let channel = Channel::builder("xds:///greeter").credentials(Credentials::xds(Credentials::insecure())).build()?;
///
/// // TLS with the system's roots.
/// let channel = Channel::builder("xds:///greeter").credentials(Credentials::tls()?).build()?;
///
/// // mTLS with roots and a certificate of our own.
/// let identity = Identity::from_pem(&std::fs::read("cert.pem")?, &std::fs::read("key.pem")?)?;
/// let credentials = Credentials::tls_from_pem(&std::fs::read("ca.pem")?, Some(identity))?;
/// let channel = Channel::builder("xds:///greeter").credentials(credentials).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Credentials {
    /// What the application says.
    own: Option<OwnTls>,
    /// Whether the control plane is asked first.
    xds: bool,
}

/// TLS as an application wants it.
#[derive(Clone)]
struct OwnTls {
    config: Arc<ClientConfig>,
    /// What the server must be called, if not as the target is.
    server_name: Option<ServerName<'static>>,
}

/// Why credentials cannot be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The certificates cannot be used.
    #[error("{0}")]
    Certificates(#[from] CertificateError),
    /// The parts do not fit together.
    #[error("TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    /// The name is not one that a TLS server can have.
    #[error("{0:?} is not a name that a TLS server can have")]
    ServerName(String),
}

// === impl Credentials ===

impl Credentials {
    /// Returns credentials for plaintext, the default.
    pub fn insecure() -> Self {
        Self::default()
    }

    /// Returns credentials for TLS with the root certificates of the system. The certificate of an endpoint must have the name of
    /// the target.
    pub fn tls() -> Result<Self, CredentialsError> {
        let config = builder()?.with_root_certificates(system_roots()?).with_no_client_auth();
        Ok(Self::tls_with(config))
    }

    /// Returns credentials for TLS with root certificates in PEM, and with a certificate of our own for servers that ask for
    /// one (mTLS). The certificate of an endpoint must have the name of the target.
    pub fn tls_from_pem(ca: &[u8], identity: Option<Identity>) -> Result<Self, CredentialsError> {
        let Trust::Roots(roots) = Trust::from_pem(ca)? else {
            return Err(CertificateError::Pem("expected root certificates".to_owned()).into());
        };
        let builder = builder()?.with_root_certificates(roots);
        Ok(Self::tls_with(match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(OneIdentity(identity))),
        }))
    }

    /// Returns credentials for TLS with a configuration of your own. The protocol `h2` is negotiated in any case.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// # fn example(roots: rustls::RootCertStore) -> Result<mainstay::Credentials, rustls::Error> {
    /// let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
    ///     .with_safe_default_protocol_versions()?
    ///     .with_root_certificates(roots)
    ///     .with_no_client_auth();
    /// Ok(mainstay::Credentials::tls_with(config))
    /// # }
    /// ```
    pub fn tls_with(mut config: ClientConfig) -> Self {
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self { own: Some(OwnTls { config: Arc::new(config), server_name: None }), xds: false }
    }

    /// Sets the name that the certificate of an endpoint must have, in place of the name of the target. Has no effect on
    /// plaintext, nor on connections that the control plane says how to secure.
    pub fn with_server_name(mut self, name: &str) -> Result<Self, CredentialsError> {
        let name = named(name)?;
        if let Some(own) = &mut self.own {
            own.server_name = Some(name);
        }
        Ok(self)
    }

    /// Returns credentials that follow the control plane (gRFC A29).
    ///
    /// Where a cluster has a TLS context, connections to its endpoints are secured as the context says, with the certificate
    /// providers of the bootstrap or of [`ChannelBuilder::certificate_provider`](crate::ChannelBuilder::certificate_provider).
    /// The fallback is for clusters without one, and for those only: whatever goes wrong fails the connection.
    pub fn xds(fallback: Self) -> Self {
        Self { xds: true, ..fallback }
    }

    /// Whether the control plane is asked.
    pub(crate) fn follow_xds(&self) -> bool {
        self.xds
    }

    /// TLS of the application for connections to `authority`, if any.
    pub(crate) fn for_authority(&self, authority: &str) -> Result<Option<Tls>, CredentialsError> {
        let Some(OwnTls { config, server_name: name }) = &self.own else { return Ok(None) };
        let server_name = name.clone().map_or_else(|| named(host_of(authority)), Ok)?;
        Ok(Some(Tls { config: config.clone(), server_name }))
    }
}

impl PartialEq for Credentials {
    /// Whether both are the very same: rustls configurations cannot be compared.
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.own, &other.own) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(&a.config, &b.config) && a.server_name == b.server_name,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.xds == other.xds && same
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = if self.own.is_some() { "Credentials::tls" } else { "Credentials::insecure" };
        if self.xds { write!(f, "Credentials::xds({own})") } else { f.write_str(own) }
    }
}

impl fmt::Debug for CredentialsError {
    /// The text: it is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// TLS for a connection to the xDS server `host`. Files are read each time, so that new certificates are used.
pub(crate) async fn for_xds_server(creds: &ChannelCreds, host: &str) -> Result<Option<Tls>, CredentialsError> {
    match creds {
        ChannelCreds::Insecure => Ok(None),
        ChannelCreds::Tls(files) => {
            let files = files.clone();
            let read = tokio::task::spawn_blocking(move || read_tls(&files)).await;
            let config = read.map_err(|error| CertificateError::Other(error.to_string()))??;
            Ok(Some(Tls { config: Arc::new(config), server_name: named(host)? }))
        }
    }
}

fn named(host: &str) -> Result<ServerName<'static>, CredentialsError> {
    server_name(host).map_err(|_| CredentialsError::ServerName(host.to_owned()))
}

/// What the credentials of an xDS server say. The server must have the name that it is reached by, unless a SPIFFE bundle
/// map says whom to trust: names of hosts mean nothing there (A87).
fn read_tls(files: &CertificateFiles) -> Result<ClientConfig, CredentialsError> {
    let Certificates { identity, trust, .. } = read_once(files)?;
    let builder = match trust {
        None => builder()?.with_root_certificates(system_roots()?),
        Some(Trust::Roots(roots)) => builder()?.with_root_certificates(roots),
        Some(trust @ Trust::Spiffe(_)) => {
            builder()?.dangerous().with_custom_certificate_verifier(Arc::new(PeerVerifier::any(trust)))
        }
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_cert_resolver(Arc::new(OneIdentity(identity))),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;

    use super::*;

    #[test]
    fn a_name_that_no_server_can_have_is_refused() {
        let credentials = Credentials::tls_with(
            builder().unwrap().with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        );
        let error = credentials.for_authority("not a name").map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "\"not a name\" is not a name that a TLS server can have");
    }
}
