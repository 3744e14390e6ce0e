//! Whether the caller of a server is one that its filter chain lets in (A29, A87).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::config::provider;
use super::verifier::{Refused, refuse};
use crate::certificates::{SpiffeBundleMap, Trust, check_svid, names_of};

/// Verifies callers against `trust` (TL-5). Without `required` those that present nothing are let in, too; what is
/// presented must be good in any case.
pub(crate) fn client_verifier(trust: &Trust, required: bool) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    match trust {
        Trust::Roots(roots) => web_pki(roots.clone(), required),
        Trust::Spiffe(map) => Ok(Arc::new(SpiffeVerifier::new(map, required)?)),
    }
}

fn web_pki(roots: Arc<RootCertStore>, required: bool) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| Error::General(error.to_string()))
}

/// Verifies workloads by the roots of their own trust domain (TL-10).
#[derive(Debug)]
struct SpiffeVerifier {
    domains: BTreeMap<String, Arc<dyn ClientCertVerifier>>,
    required: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SpiffeVerifier {
    fn new(map: &SpiffeBundleMap, required: bool) -> Result<Self, Error> {
        // A domain without roots vouches for nobody, as if it were not there.
        let domains = map.domains().filter(|(_, roots)| !roots.is_empty());
        let domains = domains.map(|(domain, roots)| Ok((domain.to_owned(), web_pki(roots.clone(), true)?)));
        let algorithms = provider().signature_verification_algorithms;
        Ok(Self { domains: domains.collect::<Result<_, Error>>()?, required, algorithms })
    }
}

impl ClientCertVerifier for SpiffeVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    /// Callers are not told which domains there are.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let names = names_of(end_entity).map_err(|error| refuse(Refused::Leaf(error)))?;
        let id = names.spiffe_id().map_err(|error| refuse(Refused::Spiffe(error)))?;
        check_svid(end_entity).map_err(|error| refuse(Refused::Leaf(error)))?;
        let domain = self.domains.get(id.trust_domain);
        let domain = domain.ok_or_else(|| refuse(Refused::TrustDomain(id.trust_domain.to_owned())))?;
        domain.verify_client_cert(end_entity, intermediates, now)
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
