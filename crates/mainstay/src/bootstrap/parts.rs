//! What a bootstrap is made of. The names are those of the JSON fields.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_xds::bootstrap as core;

use crate::names::Locality;

/// An xDS server.
///
/// ```
/// use mainstay::bootstrap::{CallCreds, ServerConfig, CertificateFiles};
///
/// let server = ServerConfig::tls("xds.example:443", CertificateFiles::default())
///     .with_call_creds(CallCreds::JwtTokenFile("/var/run/token".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where the server is: `host:port`, or a `dns:`, `ipv4:`, `ipv6:` or `unix:` target.
    pub server_uri: String,
    /// How the connection to the server is secured.
    pub channel_creds: ChannelCreds,
    /// The credentials of each call to the server.
    pub call_creds: Vec<CallCreds>,
    /// What the server can do.
    pub features: ServerFeatures,
}

/// How the connection to an xDS server is secured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChannelCreds {
    /// Plaintext.
    Insecure,
    /// TLS, or mTLS if the configuration has an identity (gRFC A65).
    Tls(CertificateFiles),
}

/// The files that say whom to trust and what to present: of a TLS connection to an xDS server (gRFC A65), where they are
/// read anew for each connection, or of a `file_watcher` certificate provider, where at least one must be set.
///
/// ```
/// use mainstay::bootstrap::{Bootstrap, CertificateFiles, ServerConfig};
///
/// let files = CertificateFiles::default()
///     .with_ca_certificate_file("/tls/ca.pem")
///     .with_identity("/tls/cert.pem", "/tls/key.pem");
/// let bootstrap = Bootstrap::builder()
///     .server(ServerConfig::tls("xds.example:443", files.clone()))
///     .certificate_provider("provider", files)
///     .build()?;
/// # Ok::<(), mainstay::bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CertificateFiles {
    /// The PEM file of the root certificates; for an xDS server the roots of the system if absent.
    pub ca_certificate_file: Option<PathBuf>,
    /// The certificate of this process; none if absent.
    pub identity: Option<IdentityFiles>,
    /// A SPIFFE trust bundle map, which replaces the roots (gRFC A87).
    pub spiffe_trust_bundle_map_file: Option<PathBuf>,
    /// How often the files are read again.
    pub refresh_interval: Duration,
}

/// The files of a certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct IdentityFiles {
    /// The certificate chain.
    pub certificate_file: PathBuf,
    /// The private key.
    pub private_key_file: PathBuf,
}

/// The credentials of each call to an xDS server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallCreds {
    /// A JSON Web Token that is read from this file (gRFC A97).
    JwtTokenFile(PathBuf),
}

/// What an xDS server can do: its `server_features`.
///
/// ```
/// let mut features = mainstay::bootstrap::ServerFeatures::default();
/// features.trusted_xds_server = true;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ServerFeatures {
    /// A resource that the server deletes stays in use (gRFC A53). With gRFC A88 this is so anyway.
    pub ignore_resource_deletion: bool,
    /// A data error takes the cached resource out of use (gRFC A88).
    pub fail_on_data_errors: bool,
    /// A resource that is not sent within 30 s is a transient error (gRFC A88).
    pub resource_timer_is_transient_error: bool,
    /// Security-sensitive configuration of this server is honoured (gRFC A81).
    pub trusted_xds_server: bool,
    /// Whether the server is spoken to in the incremental variant of ADS.
    pub delta: Delta,
}

/// Whether a server is spoken to in the incremental variant of ADS, in which only what changed is sent. gRPC has no server
/// feature for it; other implementations ignore these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Delta {
    /// No. State of the world is what gRPC's control planes are tested with.
    #[default]
    Off,
    /// If the server speaks it, otherwise the other variant: `mainstay_prefer_delta`.
    Preferred,
    /// Always: `mainstay_delta`. A server that does not speak it counts as unreachable.
    Required,
}

/// The identity of this client, as xDS servers see it: `envoy.config.core.v3.Node`.
///
/// ```
/// use mainstay::Locality;
/// use mainstay::bootstrap::Node;
///
/// let node = Node::new("client-1")
///     .with_cluster("checkout")
///     .with_locality(Locality::new("europe", "north-1", ""))
///     .with_metadata("generation", 7.0);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Node {
    /// The id of the client.
    pub id: String,
    /// The service cluster of the client.
    pub cluster: String,
    /// Where the client runs.
    pub locality: Locality,
    /// What else servers may want to know.
    pub metadata: BTreeMap<String, MetadataValue>,
}

/// A value of a node's metadata: any JSON value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MetadataValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string.
    String(String),
    /// An array.
    List(Vec<MetadataValue>),
    /// An object.
    Struct(BTreeMap<String, MetadataValue>),
}

/// The servers and names of an authority of `xdstp:` names (gRFC A47). Everything has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Authority {
    /// The template of Listener names for targets with this authority. It must start with `xdstp://AUTHORITY/`;
    /// by default it is `xdstp://AUTHORITY/envoy.config.listener.v3.Listener/%s`.
    pub client_listener_resource_name_template: Option<String>,
    /// The servers in order of preference; the top-level ones if empty.
    pub servers: Vec<ServerConfig>,
    /// Whether the loss of a server is enough to fall back, even if every resource is cached (gRFC A95).
    pub fallback_on_reachability_only: bool,
}

/// Behaviours that an environment variable can turn off. All are on by default.
///
/// ```
/// use mainstay::bootstrap::{Bootstrap, Guards, ServerConfig};
///
/// let mut guards = Guards::from_env();
/// guards.fallback = false;
/// let bootstrap = Bootstrap::builder()
///     .server(ServerConfig::insecure("first.example:18000"))
///     .server(ServerConfig::insecure("second.example:18000"))
///     .guards(guards)
///     .build()?;
/// assert_eq!(bootstrap.server_uris().count(), 1);
/// # Ok::<(), mainstay::bootstrap::BootstrapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Guards {
    /// More than one server per authority: `GRPC_EXPERIMENTAL_XDS_FALLBACK` (gRFC A71).
    pub fallback: bool,
    /// Endpoint fallback and LEDS: `GRPC_EXPERIMENTAL_XDS_ENDPOINT_FALLBACK` (gRFC A95).
    pub endpoint_fallback: bool,
    /// Data error handling: `GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING` (gRFC A88).
    pub data_error_handling: bool,
    /// Authorities: `GRPC_EXPERIMENTAL_XDS_FEDERATION` (gRFC A47).
    pub federation: bool,
    /// Authority rewriting: `GRPC_EXPERIMENTAL_XDS_AUTHORITY_REWRITE` (gRFC A81).
    pub authority_rewrite: bool,
    /// Call credentials: `GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS` (gRFC A97).
    pub call_creds: bool,
    /// HTTP CONNECT proxies: `GRPC_EXPERIMENTAL_XDS_HTTP_CONNECT` (gRFC A86).
    pub http_connect: bool,
}

// === impl ServerConfig ===

impl ServerConfig {
    /// Creates a server that is reached in plaintext.
    pub fn insecure(server_uri: impl Into<String>) -> Self {
        Self {
            server_uri: server_uri.into(),
            channel_creds: ChannelCreds::Insecure,
            call_creds: Vec::new(),
            features: ServerFeatures::default(),
        }
    }

    /// Creates a server that is reached over TLS. `CertificateFiles::default()` trusts the roots of the system.
    pub fn tls(server_uri: impl Into<String>, config: CertificateFiles) -> Self {
        Self { channel_creds: ChannelCreds::Tls(config), ..Self::insecure(server_uri) }
    }

    /// Adds credentials to each call.
    #[must_use]
    pub fn with_call_creds(mut self, creds: CallCreds) -> Self {
        self.call_creds.push(creds);
        self
    }

    /// Sets the features of the server.
    #[must_use]
    pub fn with_features(mut self, features: ServerFeatures) -> Self {
        self.features = features;
        self
    }

    pub(super) fn into_core(self) -> core::ServerConfig {
        let ServerFeatures {
            ignore_resource_deletion,
            fail_on_data_errors,
            resource_timer_is_transient_error,
            trusted_xds_server,
            delta,
        } = self.features;
        core::ServerConfig {
            server_uri: self.server_uri,
            channel_creds: match self.channel_creds {
                ChannelCreds::Insecure => core::ChannelCreds::Insecure,
                ChannelCreds::Tls(config) => core::ChannelCreds::Tls(config.into_core()),
            },
            call_creds: (self.call_creds.into_iter())
                .map(|CallCreds::JwtTokenFile(path)| core::CallCreds::JwtTokenFile(path))
                .collect(),
            features: core::ServerFeatures {
                ignore_resource_deletion,
                fail_on_data_errors,
                resource_timer_is_transient_error,
                trusted_xds_server,
                delta: match delta {
                    Delta::Off => core::DeltaMode::Off,
                    Delta::Preferred => core::DeltaMode::Preferred,
                    Delta::Required => core::DeltaMode::Required,
                },
            },
        }
    }
}

// === impl CertificateFiles ===

impl CertificateFiles {
    /// Sets the file of the root certificates.
    #[must_use]
    pub fn with_ca_certificate_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_certificate_file = Some(path.into());
        self
    }

    /// Sets the files of the certificate chain and the private key of this process.
    #[must_use]
    pub fn with_identity(mut self, certificate: impl Into<PathBuf>, private_key: impl Into<PathBuf>) -> Self {
        self.identity = Some(IdentityFiles::new(certificate, private_key));
        self
    }

    /// Sets the file of the SPIFFE trust bundle map.
    #[must_use]
    pub fn with_spiffe_trust_bundle_map_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.spiffe_trust_bundle_map_file = Some(path.into());
        self
    }

    /// Sets how often the files are read again.
    #[must_use]
    pub fn with_refresh_interval(mut self, interval: Duration) -> Self {
        self.refresh_interval = interval;
        self
    }

    pub(super) fn into_core(self) -> core::CertificateFiles {
        core::CertificateFiles {
            ca_certificate_file: self.ca_certificate_file,
            identity: self.identity.map(IdentityFiles::into_core),
            spiffe_trust_bundle_map_file: self.spiffe_trust_bundle_map_file,
            refresh_interval: self.refresh_interval,
        }
    }
}

impl Default for CertificateFiles {
    /// No files: the roots of the system, no certificate of our own. Files are read again every 600 s.
    fn default() -> Self {
        Self {
            ca_certificate_file: None,
            identity: None,
            spiffe_trust_bundle_map_file: None,
            refresh_interval: core::CertificateFiles::default().refresh_interval,
        }
    }
}

// === impl IdentityFiles ===

impl IdentityFiles {
    /// Creates a pair of files.
    pub fn new(certificate_file: impl Into<PathBuf>, private_key_file: impl Into<PathBuf>) -> Self {
        Self { certificate_file: certificate_file.into(), private_key_file: private_key_file.into() }
    }

    fn into_core(self) -> core::IdentityFiles {
        core::IdentityFiles { certificate_file: self.certificate_file, private_key_file: self.private_key_file }
    }
}

// === impl Node ===

impl Node {
    /// Creates a node with this id.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Sets the service cluster.
    #[must_use]
    pub fn with_cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// Sets where the client runs.
    #[must_use]
    pub fn with_locality(mut self, locality: Locality) -> Self {
        self.locality = locality;
        self
    }

    /// Adds an entry to the metadata, or replaces it.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<MetadataValue>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    pub(super) fn into_core(self) -> core::Node {
        core::Node {
            id: self.id,
            cluster: self.cluster,
            locality: self.locality.into_core(),
            metadata: metadata_into_core(self.metadata),
        }
    }
}

fn metadata_into_core(metadata: BTreeMap<String, MetadataValue>) -> BTreeMap<String, core::MetadataValue> {
    metadata.into_iter().map(|(key, value)| (key, value.into_core())).collect()
}

// === impl MetadataValue ===

impl MetadataValue {
    fn into_core(self) -> core::MetadataValue {
        match self {
            Self::Null => core::MetadataValue::Null,
            Self::Bool(value) => core::MetadataValue::Bool(value),
            // The core keeps the bits of a number.
            Self::Number(value) => core::MetadataValue::Number(value.to_bits()),
            Self::String(value) => core::MetadataValue::String(value),
            Self::List(values) => core::MetadataValue::List(values.into_iter().map(Self::into_core).collect()),
            Self::Struct(values) => core::MetadataValue::Struct(metadata_into_core(values)),
        }
    }
}

impl From<bool> for MetadataValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<f64> for MetadataValue {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<String> for MetadataValue {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}

impl From<&str> for MetadataValue {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

// === impl Authority ===

impl Authority {
    /// Adds a server. The first is the primary; the others are its fallbacks, in order.
    #[must_use]
    pub fn with_server(mut self, server: ServerConfig) -> Self {
        self.servers.push(server);
        self
    }

    /// Sets the template of Listener names.
    #[must_use]
    pub fn with_client_listener_resource_name_template(mut self, template: impl Into<String>) -> Self {
        self.client_listener_resource_name_template = Some(template.into());
        self
    }

    /// Sets whether the loss of a server is enough to fall back (gRFC A95).
    #[must_use]
    pub fn with_fallback_on_reachability_only(mut self, fall_back: bool) -> Self {
        self.fallback_on_reachability_only = fall_back;
        self
    }

    pub(super) fn into_core(self) -> core::AuthorityOptions {
        core::AuthorityOptions {
            client_listener_resource_name_template: self.client_listener_resource_name_template,
            servers: self.servers.into_iter().map(ServerConfig::into_core).collect(),
            fallback_on_reachability_only: self.fallback_on_reachability_only,
        }
    }
}

// === impl Guards ===

impl Guards {
    /// Reads the guards from the environment. A behaviour is on unless its variable is `false`.
    pub fn from_env() -> Self {
        Self::of(core::Guards::from_vars(|name| std::env::var(name).ok()))
    }

    fn of(core: core::Guards) -> Self {
        let core::Guards {
            fallback,
            endpoint_fallback,
            data_error_handling,
            federation,
            authority_rewrite,
            call_creds,
            http_connect,
        } = core;
        Self {
            fallback,
            endpoint_fallback,
            data_error_handling,
            federation,
            authority_rewrite,
            call_creds,
            http_connect,
        }
    }

    pub(super) fn into_core(self) -> core::Guards {
        let Self {
            fallback,
            endpoint_fallback,
            data_error_handling,
            federation,
            authority_rewrite,
            call_creds,
            http_connect,
        } = self;
        core::Guards {
            fallback,
            endpoint_fallback,
            data_error_handling,
            federation,
            authority_rewrite,
            call_creds,
            http_connect,
        }
    }
}

impl Default for Guards {
    /// Everything is on.
    fn default() -> Self {
        Self::of(core::Guards::default())
    }
}
