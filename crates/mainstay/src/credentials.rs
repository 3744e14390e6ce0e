//! How connections are secured.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, RootCertStore};

use mainstay_xds::bootstrap::{ChannelCreds, TlsConfig};

use crate::http2::Tls;

/// How a channel secures its connections to endpoints.
///
/// ```no_run
/// # async fn example() -> Result<(), mainstay::BuildError> {
/// let tls = mainstay::Credentials::tls()?;
/// let channel = mainstay::Channel::builder("xds:///greeter").credentials(tls).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<ClientConfig>>);

/// Why credentials cannot be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The system has no usable root certificates.
    #[error("no usable root certificate among the system's: {0}")]
    SystemRoots(String),
    /// A file cannot be read or holds no PEM of the kind that is needed.
    #[error("{path}: {cause}", path = .0.display(), cause = .1)]
    File(PathBuf, String),
    /// The parts do not fit together.
    #[error("TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    /// The host cannot be asked for by name.
    #[error("{0:?} is not a name that a TLS server can have")]
    ServerName(String),
}

// === impl Credentials ===

impl Credentials {
    /// Returns credentials for plaintext, the default.
    pub fn insecure() -> Self {
        Self(None)
    }

    /// Returns credentials for TLS with the root certificates of the system. The certificate of an endpoint must have the name of
    /// the target.
    pub fn tls() -> Result<Self, CredentialsError> {
        let config = builder()?.with_root_certificates(system_roots()?).with_no_client_auth();
        Ok(Self::tls_with(config))
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
        Self(Some(Arc::new(config)))
    }

    /// The scheme of requests.
    pub(crate) fn scheme(&self) -> http::uri::Scheme {
        if self.0.is_some() { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP }
    }

    /// TLS for a connection to `authority`, if any.
    pub(crate) fn for_authority(&self, authority: &str) -> Result<Option<Tls>, CredentialsError> {
        let Some(config) = &self.0 else { return Ok(None) };
        let host = host_of(authority);
        Ok(Some(Tls { config: config.clone(), server_name: server_name(host)? }))
    }
}

impl PartialEq for Credentials {
    /// Whether both are the very same: rustls configurations cannot be compared.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Credentials::tls" } else { "Credentials::insecure" })
    }
}

impl fmt::Debug for CredentialsError {
    /// The text: it is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether a server certificate in DER has the name of an authority. That it may be trusted was found out before.
pub(crate) fn has_name(certificate: &[u8], authority: &str) -> bool {
    let Ok(name) = server_name(host_of(authority)) else { return false };
    let certificate = CertificateDer::from(certificate);
    let parsed = ParsedCertificate::try_from(&certificate);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
}

/// TLS for a connection to the xDS server `host`. Files are read each time, so that new certificates are used.
pub(crate) async fn for_xds_server(creds: &ChannelCreds, host: &str) -> Result<Option<Tls>, CredentialsError> {
    match creds {
        ChannelCreds::Insecure => Ok(None),
        ChannelCreds::Tls(files) => {
            Ok(Some(Tls { config: Arc::new(read_tls(files).await?), server_name: server_name(host)? }))
        }
    }
}

async fn read_tls(files: &TlsConfig) -> Result<ClientConfig, CredentialsError> {
    if let Some(path) = &files.spiffe_trust_bundle_map_file {
        // Falling back to other roots would trust whom the operator did not name.
        return Err(CredentialsError::File(path.clone(), "SPIFFE trust bundle maps are not supported yet".to_owned()));
    }
    let roots = match &files.ca_certificate_file {
        None => tokio::task::spawn_blocking(system_roots)
            .await
            .map_err(|error| CredentialsError::SystemRoots(error.to_string()))??,
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path).await? {
                roots.add(certificate)?;
            }
            roots
        }
    };
    let builder = builder()?.with_root_certificates(roots);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates(&identity.certificate_file).await?;
            let pem = read(&identity.private_key_file).await?;
            let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
                CredentialsError::File(identity.private_key_file.clone(), format!("no private key in it: {error}"))
            })?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let pem = read(path).await?;
    let bad = |cause: String| CredentialsError::File(path.to_owned(), cause);
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|error| bad(error.to_string()))?;
    if certificates.is_empty() {
        return Err(bad("no certificate in it: expected PEM".to_owned()));
    }
    Ok(certificates)
}

async fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    tokio::fs::read(path).await.map_err(|error| CredentialsError::File(path.to_owned(), error.to_string()))
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, CredentialsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?)
}

fn system_roots() -> Result<RootCertStore, CredentialsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let causes: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(CredentialsError::SystemRoots(causes.join("; ")));
    }
    Ok(roots)
}

fn server_name(host: &str) -> Result<ServerName<'static>, CredentialsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| CredentialsError::ServerName(host.to_owned()))
}

/// The host of `host`, `host:port` or `[v6]:port`.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_taken_out_of_an_authority() {
        for (authority, host) in
            [("shop", "shop"), ("shop:443", "shop"), ("[::1]:80", "::1"), ("::1", "::1"), ("10.0.0.1:1", "10.0.0.1")]
        {
            assert_eq!(host_of(authority), host);
        }
    }

    #[test]
    fn a_name_that_no_server_can_have_is_refused() {
        let credentials = Credentials::tls_with(
            builder().unwrap().with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        );
        let error = credentials.for_authority("not a name").map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "\"not a name\" is not a name that a TLS server can have");
    }
}
