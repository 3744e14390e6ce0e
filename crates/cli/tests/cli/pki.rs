//! Certificates in files.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority, and a directory with its certificates: `ca.pem`, and what is issued.
pub(crate) struct Pki {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), ca.pem()).unwrap();
        Self { directory, ca }
    }

    /// A certificate for this name and for this machine, in `NAME.pem` with its key in `NAME.key`; their contents.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names = [name, "localhost", "127.0.0.1"].map(str::to_owned);
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.ca).unwrap().pem();
        std::fs::write(self.path(&format!("{name}.pem")), &certificate).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        (certificate, key.serialize_pem())
    }

    pub(crate) fn ca_pem(&self) -> String {
        self.ca.pem()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same as text, for command lines.
    pub(crate) fn file(&self, name: &str) -> String {
        text(&self.path(name))
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
