//! TLS for a server: its certificate, and whose clients it lets in.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::event::lock;

/// The certificate of a server from files in PEM, and the authority of the clients that it lets in, if not all.
///
/// The files are looked at for each connection, and read again when they are others. What cannot be used then leaves what
/// was in use before.
#[derive(Debug)]
pub struct ServerTls {
    files: Files,
    current: Mutex<Current>,
}

/// Why TLS cannot be served with some files.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{path}: {cause}", path = .path.display())]
pub struct TlsError {
    path: PathBuf,
    cause: String,
}

#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct Current {
    seen: Vec<Option<FileState>>,
    config: Arc<ServerConfig>,
}

/// What changes when a file is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    inode: u64,
    modified: Option<SystemTime>,
    size: u64,
}

impl ServerTls {
    /// Reads the certificate chain of the server and its private key. With `client_ca`, clients must present a certificate
    /// that it vouches for (mTLS).
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        client_ca: Option<PathBuf>,
    ) -> Result<Self, TlsError> {
        let files = Files { certificate: certificate.into(), key: key.into(), client_ca };
        let (seen, config) = (files.state(), files.read()?);
        Ok(Self { files, current: Mutex::new(Current { seen, config: Arc::new(config) }) })
    }

    /// What a new connection is secured with. Looks at files: not on a thread of the runtime.
    pub(crate) fn newest(&self) -> Arc<ServerConfig> {
        let seen = self.files.state();
        let mut current = lock(&self.current);
        if current.seen != seen {
            current.seen = seen;
            match self.files.read() {
                Ok(config) => current.config = Arc::new(config),
                Err(error) => tracing::warn!(%error, "this cannot be used; the certificates from before stay in use"),
            }
        }
        current.config.clone()
    }
}

impl Files {
    fn state(&self) -> Vec<Option<FileState>> {
        let files = [&self.certificate, &self.key].into_iter().chain(&self.client_ca);
        files.map(|path| path.metadata().ok().map(|metadata| FileState::of(&metadata))).collect()
    }

    fn read(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| in_file(&self.certificate, error))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates_in(path)? {
                    roots.add(certificate).map_err(|error| in_file(path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| in_file(path, error))?)
            }
        };
        let chain = certificates_in(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| in_file(&self.key, format!("no private key can be read from it: {error}")))?;
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| {
            let cause = format!("cannot be used with the key in {}: {error}", self.key.display());
            TlsError { path: self.certificate.clone(), cause }
        })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Clients that come back, perhaps thousands at once, need no signature then (FB-40).
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(|error| in_file(&self.certificate, error))?;
        Ok(config)
    }
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Self { inode, modified: metadata.modified().ok(), size: metadata.len() }
    }
}

fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| in_file(path, error))?;
    if certificates.is_empty() {
        return Err(in_file(path, "no certificate in it: expected PEM"));
    }
    Ok(certificates)
}

fn in_file(path: &Path, cause: impl ToString) -> TlsError {
    TlsError { path: path.to_owned(), cause: cause.to_string() }
}
