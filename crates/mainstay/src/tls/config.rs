//! What every TLS configuration begins with.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::certificates::CertificateError;
use crate::process::SYSTEM_ROOTS;

/// Everything but whom to trust and what to present.
pub(crate) fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
}

/// The same on the other side.
pub(crate) fn server_builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, rustls::Error> {
    ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The system's roots, looked for once. Reads files: not on a runtime's thread.
pub(crate) fn system_roots() -> Result<Arc<RootCertStore>, CertificateError> {
    if let Some(roots) = SYSTEM_ROOTS.get() {
        return Ok(roots.clone());
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let causes: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(CertificateError::SystemRoots(causes.join("; ")));
    }
    Ok(SYSTEM_ROOTS.get_or_init(|| Arc::new(roots)).clone())
}
