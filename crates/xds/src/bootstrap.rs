//! The bootstrap configuration: which xDS servers there are, who we are, how names are made.
//!
//! It comes from the environment ([`Bootstrap::from_vars`]), from JSON text ([`Bootstrap::parse`]) or
//! from code ([`Bootstrap::builder`]). All three make the same checks and name every faulty field.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

mod audit;
mod builder;
mod guards;
mod json;
mod last_good;
mod node;
mod parse;
mod server_uri;
mod source;

pub use audit::{AuditLoggerKind, AuditLoggerKinds};
pub use builder::{AuthorityOptions, BootstrapBuilder};
pub use last_good::LastGood;
pub use server_uri::{ServerUri, ServerUriError};
pub use source::{BootstrapError, BootstrapSource};

use crate::name::AuthorityKey;

/// A parsed, checked bootstrap. Built from JSON by [`Bootstrap::parse`] or in code by [`Bootstrap::builder`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Bootstrap {
    /// The top-level servers in order of preference; never empty (B-8, B-9).
    pub servers: Vec<Arc<ServerConfig>>,
    /// Who we are, as told to every server.
    pub node: Node,
    /// Authorities of `xdstp:` names; `""` is the key of names without one (B-26).
    pub authorities: BTreeMap<String, Authority>,
    /// Makes a Listener name from a target without authority; `%s` by default.
    pub client_default_listener_resource_name_template: String,
    /// Makes the Listener name of an xDS-enabled server.
    pub server_listener_resource_name_template: Option<String>,
    /// Certificate provider instances by the name that resources use; unknown plugins are left out (B-38).
    pub certificate_providers: BTreeMap<String, CertificateProviderConfig>,
    /// The kinds of audit logger that the application has: they come from code, never from JSON (A59).
    pub audit_loggers: AuditLoggerKinds,
    /// Last-good files, whose server is in every list already (FB-1).
    pub last_good: Option<LastGood>,
    /// Which optional behaviours are on.
    pub guards: Guards,
}

/// One xDS server. Two servers with equal values share a connection (B-17).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerConfig {
    /// The target as written: `host:port`, `dns:`, `ipv4:`, `ipv6:`, `unix:` or `file:`.
    pub server_uri: String,
    /// The first supported entry of `channel_creds` (B-12).
    pub channel_creds: ChannelCreds,
    /// Every supported entry of `call_creds` (B-15).
    pub call_creds: Vec<CallCreds>,
    /// The recognized server features.
    pub features: ServerFeatures,
}

/// How the connection to an xDS server is secured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChannelCreds {
    /// Plaintext.
    Insecure,
    /// TLS or mTLS (A65).
    Tls(CertificateFiles),
}

/// Config of `tls` channel credentials (B-19), where everything may be absent, and of the `file_watcher` certificate
/// provider (B-39), where at least one file is named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateFiles {
    /// PEM file of the roots; for `tls` the system's roots if absent.
    pub ca_certificate_file: Option<PathBuf>,
    /// PEM files of our certificate chain and key: both or neither.
    pub identity: Option<IdentityFiles>,
    /// SPIFFE trust bundle map (A87); wins over the roots.
    pub spiffe_trust_bundle_map_file: Option<PathBuf>,
    /// How often the files are read again.
    pub refresh_interval: Duration,
}

/// Certificate chain and private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityFiles {
    /// The certificate chain.
    pub certificate_file: PathBuf,
    /// The private key.
    pub private_key_file: PathBuf,
}

/// Per-call credentials for an xDS server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallCreds {
    /// A JWT read from a file (A97).
    JwtTokenFile(PathBuf),
}

/// The server features that we know; others are ignored (B-16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerFeatures {
    /// A53. Accepted; with A88 on its effect is the default.
    pub ignore_resource_deletion: bool,
    /// A88: a data error drops the cached resource.
    pub fail_on_data_errors: bool,
    /// A88: the resource timer takes 30 s and its result is transient.
    pub resource_timer_is_transient_error: bool,
    /// A81: security-sensitive configuration from this server is honoured.
    pub trusted_xds_server: bool,
    /// Whether it is spoken to in the incremental variant (DX-1).
    pub delta: DeltaMode,
}

/// Whether a server is spoken to in the incremental variant of ADS. gRPC has no feature for it: these are ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeltaMode {
    /// No: state of the world, which gRPC control planes are tested with.
    #[default]
    Off,
    /// `mainstay_prefer_delta`: if the server speaks it.
    Preferred,
    /// `mainstay_delta`: always. A server that does not speak it cannot be used.
    Required,
}

/// The client's identity, as in `envoy.config.core.v3.Node` (B-21).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// Opaque id.
    pub id: String,
    /// Service cluster of this node.
    pub cluster: String,
    /// Where this node runs.
    pub locality: NodeLocality,
    /// Opaque metadata.
    pub metadata: BTreeMap<String, MetadataValue>,
}

/// Where a node runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLocality {
    /// Region.
    pub region: String,
    /// Zone in the region.
    pub zone: String,
    /// Part of the zone.
    pub sub_zone: String,
}

/// A value of `google.protobuf.Struct`. The number is kept as its bits so that values have `Eq`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MetadataValue {
    /// JSON null.
    Null,
    /// JSON true or false.
    Bool(bool),
    /// `f64::to_bits` of a JSON number.
    Number(u64),
    /// JSON string.
    String(String),
    /// JSON array.
    List(Vec<MetadataValue>),
    /// JSON object.
    Struct(BTreeMap<String, MetadataValue>),
}

/// One entry of `authorities` (A47).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// Makes a Listener name from a target with this authority (B-27); the default is filled in.
    pub client_listener_resource_name_template: String,
    /// Servers of this authority in order of preference; empty means the top-level list (B-28).
    pub servers: Vec<Arc<ServerConfig>>,
    /// A95: fall back as soon as a server is lost, even if everything is cached (B-29).
    pub fallback_on_reachability_only: bool,
}

/// A certificate provider instance (B-37).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CertificateProviderConfig {
    /// The plugin `file_watcher`.
    FileWatcher(CertificateFiles),
    /// The application provides it.
    Application,
}

/// Behaviours that an environment variable can turn off. All are on by default. See [`Guards::from_vars`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guards {
    /// `GRPC_EXPERIMENTAL_XDS_FALLBACK` (A71).
    pub fallback: bool,
    /// `GRPC_EXPERIMENTAL_XDS_ENDPOINT_FALLBACK` (A95).
    pub endpoint_fallback: bool,
    /// `GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING` (A88).
    pub data_error_handling: bool,
    /// `GRPC_EXPERIMENTAL_XDS_FEDERATION` (A47).
    pub federation: bool,
    /// `GRPC_EXPERIMENTAL_XDS_AUTHORITY_REWRITE` (A81).
    pub authority_rewrite: bool,
    /// `GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS` (A97).
    pub call_creds: bool,
    /// `GRPC_EXPERIMENTAL_XDS_HTTP_CONNECT` (A86).
    pub http_connect: bool,
}

// === impl Bootstrap ===

impl Bootstrap {
    /// Whether what this server deletes stays in use without a word: A53, the rule before A88 (C-28).
    pub(crate) fn ignores_deletions(&self, server: &ServerConfig) -> bool {
        !self.guards.data_error_handling && server.features.ignore_resource_deletion
    }

    /// The servers to ask for resources of `authority`, in order of preference, and whether the loss of
    /// a server alone makes it fall back (A95). `None`: the authority is not in the bootstrap (P-88).
    pub fn servers_of(&self, authority: &AuthorityKey) -> Option<(&[Arc<ServerConfig>], bool)> {
        match authority {
            // Old-style names have no A95 switch (B-29).
            AuthorityKey::TopLevel => Some((&self.servers, false)),
            AuthorityKey::Named(name) => {
                let authority = self.authorities.get(&**name)?;
                // An authority without servers of its own has the top-level ones (B-28).
                let servers = if authority.servers.is_empty() { &self.servers } else { &authority.servers };
                Some((servers, authority.fallback_on_reachability_only && self.guards.endpoint_fallback))
            }
        }
    }
}

// === impl ServerConfig ===

impl ServerConfig {
    /// A server that is reached in plaintext.
    pub fn insecure(server_uri: impl Into<String>) -> Self {
        Self {
            server_uri: server_uri.into(),
            channel_creds: ChannelCreds::Insecure,
            call_creds: Vec::new(),
            features: ServerFeatures::default(),
        }
    }

    /// A server that is reached over TLS. `CertificateFiles::default()` trusts the system's roots.
    pub fn tls(server_uri: impl Into<String>, config: CertificateFiles) -> Self {
        Self { channel_creds: ChannelCreds::Tls(config), ..Self::insecure(server_uri) }
    }
}

// === impl CertificateFiles ===

impl Default for CertificateFiles {
    fn default() -> Self {
        Self {
            ca_certificate_file: None,
            identity: None,
            spiffe_trust_bundle_map_file: None,
            refresh_interval: DEFAULT_REFRESH_INTERVAL,
        }
    }
}

/// How often certificate files are read again unless told otherwise (B-19, B-39).
const DEFAULT_REFRESH_INTERVAL: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
