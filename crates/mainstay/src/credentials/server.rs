//! How a server secures the connections that it accepts.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::sign::SingleCertAndKey;

use super::CredentialsError;
use crate::certificates::{Identity, Trust};
use crate::tls::{client_verifier, server_builder};

/// How a [`Server`](crate::Server) secures the connections that it accepts.
///
/// ```no_run
/// use mainstay::certificates::Identity;
/// use mainstay::{Server, ServerCredentials};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // As the control plane says; plaintext where it says nothing.
/// let server = Server::builder().credentials(ServerCredentials::xds(ServerCredentials::insecure()));
///
/// // mTLS with a certificate of our own, whatever the control plane says.
/// let identity = Identity::from_pem(&std::fs::read("cert.pem")?, &std::fs::read("key.pem")?)?;
/// let credentials = ServerCredentials::tls_from_pem(identity, Some(&std::fs::read("client-ca.pem")?))?;
/// let server = Server::builder().credentials(credentials);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ServerCredentials {
    /// What the application says.
    own: Option<OwnServerTls>,
    /// Whether the control plane is asked first.
    xds: bool,
}

/// TLS as an application wants it.
#[derive(Clone, Debug)]
pub(crate) struct OwnServerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// What it presents, where that is known.
    pub(crate) identity: Option<Identity>,
}

impl ServerCredentials {
    /// Returns credentials for plaintext, the default.
    pub fn insecure() -> Self {
        Self::default()
    }

    /// Returns credentials for TLS with a certificate of our own. With root certificates in PEM, callers must present a
    /// certificate that one of them vouches for (mTLS).
    pub fn tls_from_pem(identity: Identity, client_ca: Option<&[u8]>) -> Result<Self, CredentialsError> {
        let builder = match client_ca {
            None => server_builder()?.with_no_client_auth(),
            Some(ca) => server_builder()?.with_client_cert_verifier(client_verifier(&Trust::from_pem(ca)?, true)?),
        };
        let key = SingleCertAndKey::from(identity.certified_key().clone());
        let mut credentials = Self::tls_with(builder.with_cert_resolver(Arc::new(key)));
        if let Some(own) = &mut credentials.own {
            own.identity = Some(identity);
        }
        Ok(credentials)
    }

    /// Returns credentials for TLS with a configuration of your own. The protocol `h2` is negotiated in any case.
    pub fn tls_with(mut config: ServerConfig) -> Self {
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self { own: Some(OwnServerTls { config: Arc::new(config), identity: None }), xds: false }
    }

    /// Returns credentials that follow the control plane (gRFC A29).
    ///
    /// Where the filter chain of a connection has a TLS context, the connection is secured as the context says, with the
    /// certificate providers of the bootstrap or of
    /// [`ServerBuilder::certificate_provider`](crate::ServerBuilder::certificate_provider). The fallback is for filter chains
    /// without one, and for those only: whatever goes wrong fails the connection.
    pub fn xds(fallback: Self) -> Self {
        Self { xds: true, ..fallback }
    }

    /// Whether the control plane is asked.
    pub(crate) fn follow_xds(&self) -> bool {
        self.xds
    }

    /// TLS of the application, if any.
    pub(crate) fn own(&self) -> Option<&OwnServerTls> {
        self.own.as_ref()
    }
}

impl fmt::Debug for ServerCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = if self.own.is_some() { "ServerCredentials::tls" } else { "ServerCredentials::insecure" };
        if self.xds { write!(f, "ServerCredentials::xds({own})") } else { f.write_str(own) }
    }
}
