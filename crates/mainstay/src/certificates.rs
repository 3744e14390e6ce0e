//! Certificates and where they come from (gRFC A29, A87).
//!
//! What a connection presents and whom it trusts comes from a certificate provider. It is either one of the bootstrap,
//! where `file_watcher` reads files and notices when they change, or one of the application, which implements
//! [`CertificateProvider`]. [`Credentials::xds`](crate::Credentials::xds) use them.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

pub use self::bundle_map::SpiffeBundleMap;
pub use self::error::CertificateError;
pub(crate) use self::file_watcher::{FileWatcher, read_once};
pub(crate) use self::names::{LeafError, check_svid, names_of, subject_of};

mod bundle_map;
mod error;
mod file_watcher;
mod names;
#[cfg(test)]
mod tests;

/// Provides certificates that may change while connections are made with them.
///
/// A channel asks for each new connection; running ones stay as they are. One provider may serve many channels.
///
/// ```no_run
/// use std::pin::Pin;
/// use std::sync::Arc;
///
/// use mainstay::certificates::{CertificateError, CertificateProvider, Certificates, Trust};
/// use mainstay::{Channel, Credentials};
///
/// /// Roots that never change.
/// struct Fixed(Certificates);
///
/// impl CertificateProvider for Fixed {
///     fn certificates(&self) -> Result<Certificates, CertificateError> {
///         Ok(self.0.clone())
///     }
///
///     fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
///         Box::pin(std::future::pending::<()>())
///     }
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let roots = Trust::from_pem(&std::fs::read("ca.pem")?)?;
/// let channel = Channel::builder("xds:///greeter")
///     .credentials(Credentials::xds(Credentials::insecure()))
///     .certificate_provider("default", Arc::new(Fixed(Certificates::new(None, Some(roots)))))
///     .build()?;
/// # Ok(())
/// # }
/// ```
pub trait CertificateProvider: Send + Sync + 'static {
    /// Returns the certificates as they are now, or why there are none yet. Must not block.
    fn certificates(&self) -> Result<Certificates, CertificateError>;

    /// Completes when [`CertificateProvider::certificates`] may answer something else than at the time of this call.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// What a [`CertificateProvider`] provides. Cheap to clone.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Certificates {
    /// What we present of ourselves.
    pub identity: Option<Identity>,
    /// Whom we trust.
    pub trust: Option<Trust>,
}

/// A certificate chain with the private key of its first certificate.
#[derive(Clone)]
pub struct Identity(Arc<CertifiedKey>);

/// What the certificates of others are checked against.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Trust {
    /// Root certificates.
    Roots(Arc<RootCertStore>),
    /// Root certificates by SPIFFE trust domain (gRFC A87).
    Spiffe(Arc<SpiffeBundleMap>),
}

// === impl Certificates ===

impl Certificates {
    /// Returns certificates that are always the same.
    pub fn new(identity: Option<Identity>, trust: Option<Trust>) -> Self {
        Self { identity, trust }
    }

    /// Whether both are the very same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let same_identity = match (&self.identity, &other.identity) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(&a.0, &b.0),
            (Some(_), None) | (None, Some(_)) => false,
        };
        let same_trust = match (&self.trust, &other.trust) {
            (None, None) => true,
            (Some(Trust::Roots(a)), Some(Trust::Roots(b))) => Arc::ptr_eq(a, b),
            (Some(Trust::Spiffe(a)), Some(Trust::Spiffe(b))) => Arc::ptr_eq(a, b),
            (Some(Trust::Roots(_)), Some(Trust::Spiffe(_)) | None)
            | (Some(Trust::Spiffe(_)), Some(Trust::Roots(_)) | None)
            | (None, Some(_)) => false,
        };
        same_identity && same_trust
    }
}

// === impl Identity ===

impl Identity {
    /// Reads a certificate chain and its private key from PEM. They must belong together.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain = certificates_of(chain).map_err(CertificateError::Pem)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| CertificateError::Pem(format!("no private key in it: {error}")))?;
        Self::from_der(chain, key)
    }

    fn from_der(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, CertificateError> {
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, key, &provider).map(Arc::new).map(Self).map_err(CertificateError::Mismatch)
    }

    /// The chain and the key, as rustls wants them.
    pub(crate) fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.0
    }
}

impl fmt::Debug for Identity {
    /// Nothing of the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("chain", &self.0.cert.len()).finish_non_exhaustive()
    }
}

// === impl Trust ===

impl Trust {
    /// Reads root certificates from PEM.
    pub fn from_pem(roots: &[u8]) -> Result<Self, CertificateError> {
        roots_of(roots).map(Arc::new).map(Self::Roots).map_err(CertificateError::Pem)
    }
}

/// The certificates in a PEM file. There must be one.
fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("no certificate in it: expected PEM".to_owned());
    }
    Ok(certificates)
}

fn roots_of(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(pem)? {
        roots.add(certificate).map_err(|error| format!("a certificate in it is not usable as a root: {error}"))?;
    }
    Ok(roots)
}

/// An error about a file.
fn in_file(path: &std::path::Path, cause: impl Into<String>) -> CertificateError {
    CertificateError::File(PathBuf::from(path), cause.into())
}
