//! A bootstrap made in code.

use std::sync::Arc;

use mainstay_xds::bootstrap as core;

use super::{Authority, Bootstrap, BootstrapError, CertificateFiles, Guards, Node, ServerConfig};

/// The parts of a [`Bootstrap`]. Made by [`Bootstrap::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct BootstrapBuilder(core::BootstrapBuilder);

impl BootstrapBuilder {
    /// Adds a top-level server. The first is the primary; the others are its fallbacks, in order (gRFC A71).
    pub fn server(self, server: ServerConfig) -> Self {
        Self(self.0.server(server.into_core()))
    }

    /// Sets the identity of this client.
    pub fn node(self, node: Node) -> Self {
        Self(self.0.node(node.into_core()))
    }

    /// Adds an authority, or replaces the one of this name (gRFC A47).
    ///
    /// The authority `""` is the one of `xdstp:///` names.
    ///
    /// ```
    /// use mainstay::bootstrap::{Authority, Bootstrap, ServerConfig};
    ///
    /// let endpoints = Authority::default()
    ///     .with_server(ServerConfig::insecure("eds-1.example:18000"))
    ///     .with_server(ServerConfig::insecure("eds-2.example:18000"))
    ///     .with_fallback_on_reachability_only(true);
    /// let bootstrap = Bootstrap::builder()
    ///     .server(ServerConfig::insecure("xds.example:18000"))
    ///     .authority("eds.example", endpoints)
    ///     .build()?;
    /// # Ok::<(), mainstay::bootstrap::BootstrapError>(())
    /// ```
    pub fn authority(self, name: impl Into<String>, authority: Authority) -> Self {
        Self(self.0.authority(name, authority.into_core()))
    }

    /// Sets the template of Listener names for targets without an authority; `%s` by default.
    pub fn client_default_listener_resource_name_template(self, template: impl Into<String>) -> Self {
        Self(self.0.client_default_listener_resource_name_template(template))
    }

    /// Sets the template of Listener names for xDS-enabled servers.
    pub fn server_listener_resource_name_template(self, template: impl Into<String>) -> Self {
        Self(self.0.server_listener_resource_name_template(template))
    }

    /// Adds a `file_watcher` certificate provider under the instance name that resources use (gRFC A29).
    pub fn certificate_provider(self, instance: impl Into<String>, config: CertificateFiles) -> Self {
        Self(self.0.certificate_provider(instance, config.into_core()))
    }

    /// Sets which optional behaviours are on; all by default.
    pub fn guards(self, guards: Guards) -> Self {
        Self(self.0.guards(guards.into_core()))
    }

    /// Checks everything. The error names every faulty field as it is called in JSON.
    pub fn build(self) -> Result<Bootstrap, BootstrapError> {
        self.0.build().map(|bootstrap| Bootstrap(Arc::new(bootstrap))).map_err(BootstrapError::of_value)
    }
}
