//! What a handshake agreed on.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{CommonState, ProtocolVersion, SignatureScheme};

use crate::certificates::{Identity, names_of, subject_of};

/// What the TLS handshake of a connection agreed on, and who the other side proved to be.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsInfo {
    version: &'static str,
    cipher_suite: String,
    alpn: Option<String>,
    principal: Option<String>,
    /// The first certificate of the other side, in DER.
    certificate: Option<Vec<u8>>,
    /// Ours, if the other side asked for it.
    local_certificate: Option<Vec<u8>>,
}

impl TlsInfo {
    /// Of a connection whose handshake is done, in which we presented `local_certificate`.
    pub(crate) fn of(connection: &CommonState, local_certificate: Option<&[u8]>) -> Self {
        let certificate = connection.peer_certificates().and_then(|chain| chain.first());
        let suite = connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        Self {
            version: connection.protocol_version().map_or("", version_name),
            // rustls writes TLS13 where the registry has TLS.
            cipher_suite: suite.map(|name| name.replacen("TLS13_", "TLS_", 1)).unwrap_or_default(),
            alpn: connection.alpn_protocol().map(|protocol| String::from_utf8_lossy(protocol).into_owned()),
            principal: certificate.and_then(|certificate| principal_of(certificate)),
            certificate: certificate.map(|certificate| certificate.to_vec()),
            local_certificate: local_certificate.map(<[u8]>::to_vec),
        }
    }

    /// Returns the version of TLS, such as `TLSv1.3`.
    pub fn version(&self) -> &str {
        self.version
    }

    /// Returns the cipher suite by its name in IANA's registry, such as `TLS_AES_256_GCM_SHA384`.
    pub fn cipher_suite(&self) -> &str {
        &self.cipher_suite
    }

    /// Returns the protocol that was agreed on (ALPN).
    pub fn alpn(&self) -> Option<&str> {
        self.alpn.as_deref()
    }

    /// Returns who the other side is, by its verified certificate: its first URI, such as a SPIFFE id, or else its first DNS
    /// name, or else its subject as RFC 2253 writes it (gRFC A41). `None` if it presented no certificate.
    pub fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// Returns the certificate of the other side in DER, if it presented one.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.certificate.as_deref()
    }

    /// Returns our own certificate in DER, if it was presented: a client presents one only to a server that asks for it.
    pub fn local_certificate(&self) -> Option<&[u8]> {
        self.local_certificate.as_deref()
    }
}

impl fmt::Debug for TlsInfo {
    /// Without certificates, which nobody can read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsInfo")
            .field("version", &self.version)
            .field("cipher_suite", &self.cipher_suite)
            .field("alpn", &self.alpn)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

/// A certificate that cannot be read names nobody.
fn principal_of(certificate: &[u8]) -> Option<String> {
    let names = names_of(certificate).ok()?;
    let name = names.uri.into_iter().chain(names.dns).next();
    name.or_else(|| subject_of(certificate).ok())
}

fn version_name(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        // rustls speaks no other.
        _ => "",
    }
}

/// Presents our certificate to whoever asks.
#[derive(Debug)]
pub(crate) struct OneIdentity(pub(crate) Identity);

impl ResolvesClientCert for OneIdentity {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified_key().clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Presents our certificate as another resolver does, and remembers which one, for one connection.
#[derive(Debug)]
pub(crate) struct Presenting {
    resolver: Arc<dyn ResolvesClientCert>,
    presented: OnceLock<Arc<CertifiedKey>>,
}

impl Presenting {
    pub(crate) fn new(resolver: Arc<dyn ResolvesClientCert>) -> Self {
        Self { resolver, presented: OnceLock::new() }
    }

    /// Our certificate, if the other side asked for it.
    pub(crate) fn certificate(&self) -> Option<&[u8]> {
        self.presented.get()?.cert.first().map(|certificate| &**certificate)
    }
}

impl ResolvesClientCert for Presenting {
    fn resolve(&self, roots: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let resolved = self.resolver.resolve(roots, schemes)?;
        Some(self.presented.get_or_init(|| resolved).clone())
    }

    fn only_raw_public_keys(&self) -> bool {
        self.resolver.only_raw_public_keys()
    }

    fn has_certs(&self) -> bool {
        self.resolver.has_certs()
    }
}
