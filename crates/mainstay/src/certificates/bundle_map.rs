//! Roots by SPIFFE trust domain (A87, S-27, S-28).

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstay_lb::identity::is_trust_domain;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use serde::Deserialize;

use super::CertificateError;

/// Root certificates by SPIFFE trust domain: a workload is vouched for by the roots of its own domain, and by no others.
#[derive(Clone, Debug, Default)]
pub struct SpiffeBundleMap(BTreeMap<String, Arc<RootCertStore>>);

#[derive(Deserialize)]
struct Map {
    trust_domains: BTreeMap<String, Bundle>,
}

/// A JWK set. What else is in one is of no interest here.
#[derive(Deserialize)]
struct Bundle {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(default)]
    kty: String,
    #[serde(default, rename = "use")]
    usage: String,
    #[serde(default)]
    x5c: Vec<String>,
}

impl SpiffeBundleMap {
    /// Reads a bundle map from JSON. One bad entry makes all of it bad: half of a map would let in, or shut out, whom
    /// nobody meant.
    pub fn from_json(json: &[u8]) -> Result<Self, CertificateError> {
        let map: Map = serde_json::from_slice(json).map_err(|error| CertificateError::BundleMap(error.to_string()))?;
        let mut domains = BTreeMap::new();
        for (domain, bundle) in map.trust_domains {
            let bad = |cause: String| CertificateError::BundleMap(format!("trust domain {domain:?}: {cause}"));
            if !is_trust_domain(&domain) {
                return Err(bad("not a name that a trust domain can have".to_owned()));
            }
            let roots = bundle.roots().map_err(bad)?;
            domains.insert(domain, Arc::new(roots));
        }
        Ok(Self(domains))
    }

    /// Every trust domain with its roots.
    pub(crate) fn domains(&self) -> impl Iterator<Item = (&str, &Arc<RootCertStore>)> {
        self.0.iter().map(|(domain, roots)| (&**domain, roots))
    }

    /// The roots of a trust domain.
    pub(crate) fn roots(&self, trust_domain: &str) -> Option<&RootCertStore> {
        self.0.get(trust_domain).map(|roots| &**roots)
    }
}

impl Bundle {
    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for (at, key) in self.keys.iter().enumerate() {
            let bad = |cause: String| format!("keys[{at}]: {cause}");
            // The keys of tokens, which SPIRE puts into the same file.
            if key.usage == "jwt-svid" {
                continue;
            }
            roots.add(key.certificate().map_err(bad)?).map_err(|error| bad(format!("x5c: {error}")))?;
        }
        Ok(roots)
    }
}

impl Key {
    fn certificate(&self) -> Result<CertificateDer<'static>, String> {
        if self.usage != "x509-svid" {
            return Err(format!("use is {:?}: expected \"x509-svid\"", self.usage));
        }
        if !matches!(&*self.kty, "RSA" | "EC") {
            return Err(format!("kty is {:?}: expected \"RSA\" or \"EC\"", self.kty));
        }
        let [x5c] = &self.x5c[..] else {
            return Err(format!("x5c has {} entries: expected one", self.x5c.len()));
        };
        STANDARD.decode(x5c).map(CertificateDer::from).map_err(|error| format!("x5c: {error}"))
    }
}
