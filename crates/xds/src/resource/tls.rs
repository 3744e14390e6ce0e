//! `UpstreamTlsContext` of a cluster (R-98 to R-107, client side).

use super::matcher::StringMatcher;

/// How a channel with xDS credentials secures connections to a cluster's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// What the server's certificate is checked against.
    pub roots: Roots,
    /// Certificate provider instance of our own certificate.
    pub identity_instance: Option<String>,
    /// The server's certificate must have a name that one of these matches; any if empty.
    pub match_subject_alt_names: Vec<StringMatcher>,
    /// Server name to ask for.
    pub sni: Option<String>,
    /// Use the endpoint's hostname as the server name (A101).
    pub auto_host_sni: bool,
    /// Check the certificate against the server name (A101).
    pub auto_sni_san_validation: bool,
}

/// What a certificate is checked against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Roots {
    /// A certificate provider instance of the bootstrap.
    Instance(String),
    /// The system's roots (A82).
    System,
}
