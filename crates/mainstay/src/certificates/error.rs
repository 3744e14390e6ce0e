use std::path::PathBuf;

/// Why there are no certificates.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file cannot be read, or does not hold what it should.
    #[error("{path}: {cause}", path = .0.display(), cause = .1)]
    File(PathBuf, String),
    /// A text is not PEM of the kind that is needed.
    #[error("PEM: {0}")]
    Pem(String),
    /// A certificate and a private key do not belong together, or cannot be used.
    #[error("certificate and private key: {0}")]
    Mismatch(#[source] rustls::Error),
    /// A text is not a SPIFFE bundle map.
    #[error("SPIFFE bundle map: {0}")]
    BundleMap(String),
    /// The system has no usable root certificates.
    #[error("no usable root certificate among the system's: {0}")]
    SystemRoots(String),
    /// They have not been loaded yet.
    #[error("not loaded yet")]
    Pending,
    /// Another reason, of a provider of the application.
    #[error("{0}")]
    Other(String),
}

impl std::fmt::Debug for CertificateError {
    /// The text: it is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
