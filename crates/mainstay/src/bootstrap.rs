//! The bootstrap: which xDS servers there are, who this client is, and how resource names are made.
//!
//! Most programs need nothing of this module: [`Channel::new`](crate::Channel::new) reads the bootstrap that the
//! environment names. A program that knows its servers makes one in code:
//!
//! ```no_run
//! use mainstay::bootstrap::{Bootstrap, Node, ServerConfig, CertificateFiles};
//!
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let bootstrap = Bootstrap::builder()
//!     .server(ServerConfig::tls("xds-primary.example:443", CertificateFiles::default()))
//!     .server(ServerConfig::insecure("xds-fallback.example:18000")) // asked when the first is unreachable
//!     .node(Node::new("client-1"))
//!     .build()?;
//! let channel = mainstay::Channel::builder("xds:///greeter").bootstrap(bootstrap).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! JSON and code pass the same checks, and an error names every faulty field at once.

mod builder;
mod error;
mod parts;

pub use builder::BootstrapBuilder;
pub use error::{BootstrapError, BootstrapErrorKind};
pub use parts::{
    Authority, CallCreds, CertificateFiles, ChannelCreds, Delta, Guards, IdentityFiles, MetadataValue, Node,
    ServerConfig, ServerFeatures,
};

use std::fmt;
use std::sync::Arc;

use mainstay_xds::bootstrap as core;

/// A checked bootstrap configuration. Cheap to clone.
///
/// It comes from the environment ([`Bootstrap::from_env`]), from JSON ([`Bootstrap::from_json`]) or from code
/// ([`Bootstrap::builder`]).
#[derive(Clone, PartialEq, Eq)]
pub struct Bootstrap(Arc<core::Bootstrap>);

impl Bootstrap {
    /// Returns a builder for a bootstrap made in code.
    ///
    /// ```
    /// use mainstay::bootstrap::{Bootstrap, BootstrapErrorKind, ServerConfig};
    ///
    /// let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("localhost:18000")).build()?;
    /// assert_eq!(bootstrap.server_uris().collect::<Vec<_>>(), ["localhost:18000"]);
    ///
    /// let nothing = Bootstrap::builder().build().unwrap_err();
    /// assert_eq!(nothing.kind(), BootstrapErrorKind::Invalid);
    /// assert_eq!(nothing.to_string(), "xds_servers: must not be empty");
    /// # Ok::<(), mainstay::bootstrap::BootstrapError>(())
    /// ```
    pub fn builder() -> BootstrapBuilder {
        BootstrapBuilder::default()
    }

    /// Reads the bootstrap that the environment names, as [`Channel::new`](crate::Channel::new) does.
    ///
    /// `GRPC_XDS_BOOTSTRAP` is the path of a JSON file. `GRPC_XDS_BOOTSTRAP_CONFIG` is the JSON text itself; it is used
    /// if the first variable is not set. A file that is named but cannot be used is an error. The [`Guards`] are read
    /// from the environment, too.
    ///
    /// ```no_run
    /// use mainstay::bootstrap::{Bootstrap, BootstrapErrorKind, ServerConfig};
    ///
    /// let bootstrap = match Bootstrap::from_env() {
    ///     Err(error) if error.kind() == BootstrapErrorKind::Missing => {
    ///         Bootstrap::builder().server(ServerConfig::insecure("localhost:18000")).build()?
    ///     }
    ///     result => result?,
    /// };
    /// # Ok::<(), mainstay::bootstrap::BootstrapError>(())
    /// ```
    pub fn from_env() -> Result<Self, BootstrapError> {
        let read = core::Bootstrap::from_vars(|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path));
        read.map(|bootstrap| Self(Arc::new(bootstrap))).map_err(BootstrapError::of_environment)
    }

    /// Parses the JSON text of a bootstrap file, with every guard on.
    ///
    /// ```
    /// let bootstrap = mainstay::bootstrap::Bootstrap::from_json(
    ///     r#"{ "xds_servers": [{ "server_uri": "localhost:18000", "channel_creds": [{ "type": "insecure" }] }],
    ///          "node": { "id": "client-1" } }"#,
    /// )?;
    /// assert_eq!(bootstrap.node_id(), "client-1");
    /// # Ok::<(), mainstay::bootstrap::BootstrapError>(())
    /// ```
    pub fn from_json(json: &str) -> Result<Self, BootstrapError> {
        Self::from_json_with_guards(json, Guards::default())
    }

    /// Parses the JSON text of a bootstrap file. What a guard turns off is ignored.
    pub fn from_json_with_guards(json: &str, guards: Guards) -> Result<Self, BootstrapError> {
        let parsed = core::Bootstrap::parse(json, guards.into_core());
        parsed.map(|bootstrap| Self(Arc::new(bootstrap))).map_err(BootstrapError::of_value)
    }

    /// Returns the URIs of the top-level xDS servers in order of preference. There is at least one.
    pub fn server_uris(&self) -> impl Iterator<Item = &str> {
        self.0.servers.iter().map(|server| server.server_uri.as_str())
    }

    /// Returns the id by which xDS servers know this client.
    pub fn node_id(&self) -> &str {
        &self.0.node.id
    }

    pub(crate) fn core(&self) -> &Arc<core::Bootstrap> {
        &self.0
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
