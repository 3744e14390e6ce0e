//! Who the other side of a connection is, by the names in its certificate (A29, A87, A101).
//!
//! Works on names as data. Whether the certificate may be trusted is found out elsewhere, and before.

use std::net::IpAddr;

use mainstay_xds::resource::matcher::StringMatcher;
use mainstay_xds::resource::tls::UpstreamTls;

/// The subject alternative names of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubjectAltNames {
    /// DNS names; the leftmost label may be a wildcard.
    pub dns: Vec<String>,
    /// URIs, SPIFFE ids among them.
    pub uri: Vec<String>,
    /// Mail addresses.
    pub email: Vec<String>,
    /// IP addresses.
    pub ip: Vec<IpAddr>,
}

/// The identity of a workload (A87): `spiffe://trust-domain/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpiffeId<'a> {
    /// The part that says whose roots vouch for it.
    pub trust_domain: &'a str,
    /// The rest, empty or with a leading slash.
    pub path: &'a str,
}

/// Why a URI is not a SPIFFE id, or a certificate has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SpiffeError {
    /// It has none, or more than one, so that it is not clear who it is.
    #[error("has {0} URI names: expected one, the SPIFFE id")]
    Count(usize),
    /// It is longer than allowed.
    #[error("has a URI name of {0} bytes: a SPIFFE id has at most {MAX_SPIFFE_ID}")]
    TooLong(usize),
    /// It is a URI of another kind.
    #[error("has a URI name that does not begin with \"spiffe://\"")]
    Scheme,
    /// The trust domain is missing, too long or has characters that it cannot have.
    #[error("has a SPIFFE id without a valid trust domain")]
    TrustDomain,
    /// The path has an empty segment, a dot segment, or characters that it cannot have.
    #[error("has a SPIFFE id whose path is not valid")]
    Path,
}

// === impl SubjectAltNames ===

impl SubjectAltNames {
    /// Whether there is no name at all.
    pub fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.uri.is_empty() && self.email.is_empty() && self.ip.is_empty()
    }

    /// Whether a server with these names is one that a cluster with this TLS context means, if `sni` was asked for. Any
    /// server is, if the cluster does not say which (S-23, S-30).
    pub fn satisfy(&self, tls: &UpstreamTls, sni: Option<&str>) -> bool {
        match sni.filter(|_| tls.auto_sni_san_validation) {
            Some(sni) => self.dns.iter().any(|name| dns_name_covers(name, sni)),
            None => tls.match_subject_alt_names.is_empty() || self.match_any(&tls.match_subject_alt_names),
        }
    }

    /// Whether one of the names is what one of the matchers wants.
    pub fn match_any(&self, matchers: &[StringMatcher]) -> bool {
        let named = |matcher: &StringMatcher, name: &str| !name.is_empty() && matcher.matches(name);
        matchers.iter().any(|matcher| {
            let dns = self.dns.iter().any(|name| match matcher {
                StringMatcher::Exact { value, .. } => dns_name_covers(name, value),
                StringMatcher::Prefix { .. }
                | StringMatcher::Suffix { .. }
                | StringMatcher::Contains { .. }
                | StringMatcher::Regex(_) => named(matcher, name),
            });
            dns || self.uri.iter().chain(&self.email).any(|name| named(matcher, name))
                || self.ip.iter().any(|ip| named(matcher, &ip.to_string()))
        })
    }

    /// The SPIFFE id of a workload, which is its only URI (A87).
    pub fn spiffe_id(&self) -> Result<SpiffeId<'_>, SpiffeError> {
        match &self.uri[..] {
            [uri] => SpiffeId::parse(uri),
            uris => Err(SpiffeError::Count(uris.len())),
        }
    }
}

impl std::fmt::Display for SubjectAltNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_empty() {
            return f.write_str("no name");
        }
        let named =
            |kind: &'static str, names: &[String]| names.iter().map(|name| format!("{kind} {name:?}")).collect();
        let mut all: Vec<String> = named("DNS", &self.dns);
        all.extend::<Vec<_>>(named("URI", &self.uri));
        all.extend::<Vec<_>>(named("email", &self.email));
        all.extend(self.ip.iter().map(|ip| format!("IP {ip}")));
        f.write_str(&all.join(", "))
    }
}

/// Whether the DNS name in a certificate, which may begin with the label `*`, is or covers `wanted`.
///
/// A wildcard stands for one whole label, and not in front of a single one: nobody owns all of `*.com`.
fn dns_name_covers(name: &str, wanted: &str) -> bool {
    let absolute = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let (name, wanted) = (absolute(name), absolute(wanted));
    if name.is_empty() || name.starts_with('.') || wanted.is_empty() || wanted.starts_with('.') {
        return false;
    }
    let Some(parent) = name.strip_prefix("*.") else { return !name.contains('*') && name == wanted };
    let is_plain = parent.contains('.') && !parent.contains('*');
    is_plain && wanted.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == parent)
}

// === impl SpiffeId ===

impl<'a> SpiffeId<'a> {
    /// Reads a SPIFFE id. Nothing but lower case in the trust domain, no port, query or fragment, no escapes.
    pub fn parse(uri: &'a str) -> Result<Self, SpiffeError> {
        if uri.len() > MAX_SPIFFE_ID {
            return Err(SpiffeError::TooLong(uri.len()));
        }
        let rest = uri.strip_prefix("spiffe://").ok_or(SpiffeError::Scheme)?;
        let (trust_domain, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !is_trust_domain(trust_domain) {
            return Err(SpiffeError::TrustDomain);
        }
        let is_segment = |segment: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(plain)
        };
        if !path.is_empty() && !path[1..].split('/').all(is_segment) {
            return Err(SpiffeError::Path);
        }
        Ok(Self { trust_domain, path })
    }
}

/// Whether this can be the name of a SPIFFE trust domain.
pub fn is_trust_domain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
    !name.is_empty() && name.len() <= MAX_TRUST_DOMAIN && name.bytes().all(plain)
}

const MAX_SPIFFE_ID: usize = 2048;
const MAX_TRUST_DOMAIN: usize = 255;
