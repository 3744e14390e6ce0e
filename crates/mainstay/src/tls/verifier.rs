//! Whether the other side of a connection is whom its cluster means.

use std::sync::Arc;

use mainstay_lb::identity::{SpiffeError, SubjectAltNames};
use mainstay_xds::resource::matcher::StringMatcher;
use mainstay_xds::resource::tls::UpstreamTls;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use crate::certificates::{LeafError, Trust, check_svid, names_of};

/// Verifies servers. The chain of certificates first; then the names, by the matchers of the cluster and not by the host
/// name (A29).
#[derive(Debug)]
pub(crate) struct PeerVerifier {
    trust: Trust,
    /// Which names are wanted. Any, if absent.
    wanted: Option<Arc<UpstreamTls>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Why somebody who has a certificate is refused.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the certificate {0}")]
    Leaf(LeafError),
    #[error("the certificate {0}")]
    Spiffe(SpiffeError),
    #[error("trust domain {0:?} of the certificate is not in the SPIFFE bundle map")]
    TrustDomain(String),
    #[error("the certificate check failed: presented {presented}; wanted {wanted}")]
    Names { presented: SubjectAltNames, wanted: String },
}

impl PeerVerifier {
    /// For the endpoints of a cluster.
    pub(crate) fn new(trust: Trust, wanted: Arc<UpstreamTls>) -> Self {
        Self { wanted: Some(wanted), ..Self::any(trust) }
    }

    /// For a server of any name.
    pub(crate) fn any(trust: Trust) -> Self {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        Self { trust, wanted: None, algorithms }
    }

    fn check_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        names: &SubjectAltNames,
        now: UnixTime,
    ) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let roots = match &self.trust {
            Trust::Roots(roots) => &**roots,
            Trust::Spiffe(map) => {
                let id = names.spiffe_id().map_err(|error| refuse(Refused::Spiffe(error)))?;
                check_svid(end_entity).map_err(|error| refuse(Refused::Leaf(error)))?;
                let roots = map.roots(id.trust_domain);
                roots.ok_or_else(|| refuse(Refused::TrustDomain(id.trust_domain.to_owned())))?
            }
        };
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, self.algorithms.all)
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let names = names_of(end_entity).map_err(|error| refuse(Refused::Leaf(error)))?;
        self.check_chain(end_entity, intermediates, &names, now)?;
        // An address stands for no name: it was not sent.
        let sni = match server_name {
            ServerName::DnsName(name) => Some(name.as_ref()),
            _ => None,
        };
        match &self.wanted {
            Some(wanted) if !names.satisfy(wanted, sni) => {
                Err(refuse(Refused::Names { presented: names, wanted: describe(wanted, sni) }))
            }
            Some(_) | None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

pub(super) fn refuse(refused: Refused) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
}

/// What was wanted, in words.
fn describe(wanted: &UpstreamTls, sni: Option<&str>) -> String {
    if let Some(sni) = sni.filter(|_| wanted.auto_sni_san_validation) {
        return format!("DNS {sni:?}, the server name that was asked for");
    }
    let matchers = wanted.match_subject_alt_names.iter().map(|matcher| match matcher {
        StringMatcher::Exact { value, .. } => format!("{value:?}"),
        StringMatcher::Prefix { value, .. } => format!("{value:?} and more"),
        StringMatcher::Suffix { value, .. } => format!("something with {value:?} at its end"),
        StringMatcher::Contains { value, .. } => format!("something with {value:?} in it"),
        StringMatcher::Regex(regex) => format!("something like the pattern {:?}", regex.pattern()),
    });
    matchers.collect::<Vec<_>>().join(" or ")
}
