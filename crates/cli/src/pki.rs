//! Certificates that are made on the spot, for demonstrations and soaks.

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use crate::failure::Failure;

/// A certificate authority that lives as long as the command.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
pub(crate) struct Issued {
    pub(crate) certificate: Certificate,
    pub(crate) key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(|error| no_certificate(&error))?;
        CertifiedIssuer::self_signed(params, key).map(Self).map_err(|error| no_certificate(&error))
    }

    /// Its own certificate, in PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for the workload with this SPIFFE id.
    pub(crate) fn issue(&self, id: &str) -> Result<Issued, Failure> {
        let issue = || {
            let mut params = CertificateParams::default();
            params.subject_alt_names = vec![SanType::URI(id.try_into()?)];
            let key = KeyPair::generate()?;
            Ok::<_, rcgen::Error>(Issued { certificate: params.signed_by(&key, &self.0)?, key })
        };
        issue().map_err(|error| no_certificate(&error))
    }
}

pub(crate) fn no_certificate(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot make a certificate: {error}"))
}
