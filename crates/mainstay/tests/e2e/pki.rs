//! Certificates for tests.

use std::path::PathBuf;
use std::sync::Arc;

use mainstay::Credentials;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;

/// A certificate authority for one test.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) struct Issued {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    pub(crate) der: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let (params, key) = Self::params();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// One that this one vouches for.
    pub(crate) fn below(&self) -> Self {
        let (params, key) = Self::params();
        Self(CertifiedIssuer::signed_by(params, key, &self.0).unwrap())
    }

    fn params() -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        // Each has a name of its own, so that none is taken for another.
        let name = format!("authority {:x?}", &key.public_key_raw()[1..9]);
        params.distinguished_name.push(DnType::CommonName, name);
        (params, key)
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name, and for this machine.
    pub(crate) fn issue(&self, name: &str) -> Issued {
        self.issue_as(CertificateParams::new([name, "localhost", "127.0.0.1"].map(str::to_owned)).unwrap())
    }

    /// A certificate with these URIs as names.
    pub(crate) fn issue_to_workload(&self, uris: &[&str]) -> Issued {
        let mut params = CertificateParams::default();
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        self.issue_as(params)
    }

    /// A certificate as described.
    pub(crate) fn issue_as(&self, params: CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            der: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    /// A SPIFFE bundle map in which we vouch for a trust domain.
    pub(crate) fn bundle_map(&self, trust_domain: &str) -> String {
        let x5c: String = self.pem().lines().filter(|line| !line.starts_with("-----")).collect();
        let key = serde_json::json!({ "kty": "EC", "use": "x509-svid", "x5c": [x5c] });
        serde_json::json!({ "trust_domains": { trust_domain: { "keys": [key] } } }).to_string()
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A server with a certificate of ours, which demands one of `clients` if there are any.
    pub(crate) fn server_config(&self, clients: Option<&Self>) -> rustls::ServerConfig {
        let builder =
            rustls::ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(clients.roots(), provider());
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let issued = self.issue("control-plane");
        Self::finish(builder, issued)
    }

    /// A server with this certificate.
    pub(crate) fn serve_as(&self, issued: Issued) -> rustls::ServerConfig {
        let builder =
            rustls::ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        Self::finish(builder.with_no_client_auth(), issued)
    }

    /// A server with this certificate that demands one of ours, in one version of TLS.
    pub(crate) fn serve_mtls(
        &self,
        issued: Issued,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> rustls::ServerConfig {
        let builder = rustls::ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[version]);
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider());
        Self::finish(builder.unwrap().with_client_cert_verifier(verifier.build().unwrap()), issued)
    }

    fn finish(
        builder: rustls::ConfigBuilder<rustls::ServerConfig, rustls::server::WantsServerCert>,
        issued: Issued,
    ) -> rustls::ServerConfig {
        let mut config = builder.with_single_cert(vec![issued.der], issued.key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }

    /// Credentials that trust only us.
    pub(crate) fn client_credentials(&self) -> Credentials {
        let builder =
            rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        Credentials::tls_with(builder.with_root_certificates(self.roots()).with_no_client_auth())
    }
}

impl Issued {
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.der.clone()
    }
}

pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A directory that goes with the test.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// Replaces both as a program does that renews them: each at once, one after the other.
    pub(crate) fn replace_identity(&self, issued: &Issued) {
        for (name, content) in [("cert.pem", &issued.certificate_pem), ("key.pem", &issued.key_pem)] {
            self.write("new.pem", content);
            std::fs::rename(self.path("new.pem"), self.path(name)).unwrap();
        }
    }

    pub(crate) fn write_identity(&self, issued: &Issued) {
        self.write("cert.pem", &issued.certificate_pem);
        self.write("key.pem", &issued.key_pem);
    }
}
