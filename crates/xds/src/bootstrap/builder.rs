//! A bootstrap made in code, with the checks that JSON has to pass.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::last_good::local_features;
use super::{
    AuditLoggerKinds, Authority, Bootstrap, CallCreds, CertificateFiles, CertificateProviderConfig, ChannelCreds,
    Guards, IdentityFiles, LastGood, Node, ServerConfig, ServerFeatures,
};
use crate::invalid::{Faults, Invalid};
use crate::name::{decode_authority, encode_authority};

/// Collects the parts of a [`Bootstrap`]. See [`Bootstrap::builder`].
#[derive(Clone, Debug, Default)]
pub struct BootstrapBuilder {
    pub(super) servers: Vec<ServerConfig>,
    pub(super) node: Node,
    pub(super) authorities: BTreeMap<String, AuthorityOptions>,
    pub(super) client_default_listener_resource_name_template: Option<String>,
    pub(super) server_listener_resource_name_template: Option<String>,
    pub(super) certificate_providers: BTreeMap<String, CertificateFiles>,
    pub(super) last_good: Option<LastGood>,
    guards: Guards,
}

/// What may be said about an authority. Everything has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AuthorityOptions {
    /// Makes a Listener name from a target with this authority. Must start with `xdstp://<authority>/`;
    /// `None` means `xdstp://<authority>/envoy.config.listener.v3.Listener/%s` (B-27).
    pub client_listener_resource_name_template: Option<String>,
    /// Servers in order of preference; empty means the top-level list (B-28).
    pub servers: Vec<ServerConfig>,
    /// A95: fall back as soon as a server is lost, even if everything is cached (B-29).
    pub fallback_on_reachability_only: bool,
}

impl Bootstrap {
    /// Starts a bootstrap in code.
    ///
    /// ```
    /// use mainstay_xds::bootstrap::{AuthorityOptions, Bootstrap, Node, ServerConfig, CertificateFiles};
    ///
    /// let bootstrap = Bootstrap::builder()
    ///     .server(ServerConfig::tls("xds-primary.example:443", CertificateFiles::default()))
    ///     .server(ServerConfig::insecure("xds-fallback.example:18000"))
    ///     .node(Node { id: "client-1".to_owned(), ..Node::default() })
    ///     .authority("eds.example", AuthorityOptions { fallback_on_reachability_only: true, ..Default::default() })
    ///     .build()?;
    /// assert_eq!(bootstrap.servers.len(), 2);
    ///
    /// let nothing = Bootstrap::builder().build().unwrap_err();
    /// assert_eq!(nothing.to_string(), "xds_servers: must not be empty");
    /// # Ok::<(), mainstay_xds::invalid::Invalid>(())
    /// ```
    pub fn builder() -> BootstrapBuilder {
        BootstrapBuilder::default()
    }
}

impl BootstrapBuilder {
    /// Adds a top-level server. The first is the primary, the others are fallbacks in order (B-9).
    pub fn server(mut self, server: ServerConfig) -> Self {
        self.servers.push(server);
        self
    }

    /// Says who we are.
    pub fn node(mut self, node: Node) -> Self {
        self.node = node;
        self
    }

    /// Adds an authority, or replaces the one of this name. `""` is the one of names without authority (B-26).
    pub fn authority(mut self, name: impl Into<String>, options: AuthorityOptions) -> Self {
        self.authorities.insert(name.into(), options);
        self
    }

    /// Makes Listener names from targets without authority; `%s` by default.
    pub fn client_default_listener_resource_name_template(mut self, template: impl Into<String>) -> Self {
        self.client_default_listener_resource_name_template = Some(template.into());
        self
    }

    /// Makes the Listener names of xDS-enabled servers.
    pub fn server_listener_resource_name_template(mut self, template: impl Into<String>) -> Self {
        self.server_listener_resource_name_template = Some(template.into());
        self
    }

    /// Adds a `file_watcher` instance under the name that resources use.
    pub fn certificate_provider(mut self, instance: impl Into<String>, config: CertificateFiles) -> Self {
        self.certificate_providers.insert(instance.into(), config);
        self
    }

    /// Keeps what clients had last in files, as the last server of every list (FB-1).
    pub fn last_good(mut self, last_good: LastGood) -> Self {
        self.last_good = Some(last_good);
        self
    }

    /// Says which optional behaviours are on; `Guards::default()` unless told otherwise.
    pub fn guards(mut self, guards: Guards) -> Self {
        self.guards = guards;
        self
    }

    /// Checks everything. On failure names every faulty field as it is called in JSON.
    pub fn build(self) -> Result<Bootstrap, Invalid> {
        let mut faults = Faults::new();
        faults.field("xds_servers", |f| {
            if self.servers.is_empty() {
                f.add("must not be empty"); // B-8
            }
            check_servers(&self.servers, f);
        });
        faults.field("authorities", |f| {
            for (name, authority) in &self.authorities {
                f.key(name, |f| check_authority(name, authority, f));
            }
        });
        if self.client_default_listener_resource_name_template.as_deref() == Some("") {
            faults.field("client_default_listener_resource_name_template", |f| f.add("must not be empty"));
        }
        if self.server_listener_resource_name_template.as_deref() == Some("") {
            faults.field("server_listener_resource_name_template", |f| f.add("must not be empty"));
        }
        faults.field("certificate_providers", |f| {
            for (instance, config) in &self.certificate_providers {
                f.key(instance, |f| f.field("config", |f| check_file_watcher(config, f)));
            }
        });
        if let Some(last_good) = &self.last_good {
            faults.field("last_good", |f| last_good.check(f));
        }
        Ok(faults.finish(self)?.assemble())
    }

    /// Fills in the defaults and takes away what the guards turn off. The parts have been checked.
    pub(super) fn assemble(self) -> Bootstrap {
        let guards = self.guards;
        let (authorities, default_template) = if guards.federation {
            (self.authorities, self.client_default_listener_resource_name_template)
        } else {
            (BTreeMap::new(), None) // B-30
        };
        let authorities = authorities.into_iter().map(|(name, options)| {
            let authority = Authority {
                client_listener_resource_name_template: options
                    .client_listener_resource_name_template
                    .unwrap_or_else(|| default_authority_template(&name)),
                servers: guarded_servers(options.servers, guards),
                fallback_on_reachability_only: options.fallback_on_reachability_only && guards.endpoint_fallback,
            };
            (name, authority)
        });
        let bootstrap = Bootstrap {
            servers: guarded_servers(self.servers, guards),
            node: self.node,
            authorities: authorities.collect(),
            client_default_listener_resource_name_template: default_template.unwrap_or_else(|| "%s".to_owned()),
            server_listener_resource_name_template: self.server_listener_resource_name_template,
            certificate_providers: {
                let configs = self.certificate_providers.into_iter();
                configs.map(|(instance, config)| (instance, CertificateProviderConfig::FileWatcher(config))).collect()
            },
            audit_loggers: AuditLoggerKinds::default(),
            last_good: None,
            guards,
        };
        match self.last_good {
            Some(last_good) => bootstrap.with_last_good(last_good),
            None => bootstrap,
        }
    }
}

/// What remains of a server list under `guards`.
fn guarded_servers(mut servers: Vec<ServerConfig>, guards: Guards) -> Vec<Arc<ServerConfig>> {
    if !guards.fallback {
        servers.truncate(1); // B-10
    }
    for server in &mut servers {
        if server.is_local() {
            let trusted_xds_server = server.features.trusted_xds_server;
            server.features = ServerFeatures { trusted_xds_server, ..local_features(guards) };
        }
        if !guards.call_creds {
            server.call_creds.clear(); // B-15
        }
        if !guards.data_error_handling {
            server.features.fail_on_data_errors = false; // B-18
            server.features.resource_timer_is_transient_error = false;
        }
    }
    servers.into_iter().map(Arc::new).collect()
}

fn default_authority_template(name: &str) -> String {
    format!("xdstp://{}/envoy.config.listener.v3.Listener/%s", encode_authority(name))
}

/// A template of authority `name` must make names of that authority (B-27).
pub(super) fn check_authority_template(name: &str, template: &str, faults: &mut Faults) {
    let authority = template.strip_prefix("xdstp://").and_then(|rest| rest.split_once('/'));
    if !authority.is_some_and(|(found, _)| decode_authority(found).is_ok_and(|found| found == name)) {
        faults.add(format!(
            "found {template:?}, expected a template that starts with \"xdstp://{}/\"",
            encode_authority(name)
        ));
    }
}

/// A `file_watcher` without any file would watch nothing (B-39).
pub(super) fn check_file_watcher(config: &CertificateFiles, faults: &mut Faults) {
    let CertificateFiles { identity, ca_certificate_file, spiffe_trust_bundle_map_file, refresh_interval } = config;
    if identity.is_none() && ca_certificate_file.is_none() && spiffe_trust_bundle_map_file.is_none() {
        faults.add("names no file: expected certificate_file, ca_certificate_file or spiffe_trust_bundle_map_file");
    }
    check_files(identity.as_ref(), ca_certificate_file.as_deref(), spiffe_trust_bundle_map_file.as_deref(), faults);
    faults.field("refresh_interval", |f| check_interval(*refresh_interval, f));
}

/// Files that are read again without a pause would keep a processor busy.
pub(super) fn check_interval(interval: Duration, faults: &mut Faults) {
    if interval.is_zero() {
        faults.add("must be greater than zero");
    }
}

fn check_authority(name: &str, authority: &AuthorityOptions, faults: &mut Faults) {
    if let Some(template) = &authority.client_listener_resource_name_template {
        faults.field("client_listener_resource_name_template", |f| check_authority_template(name, template, f));
    }
    faults.field("xds_servers", |f| check_servers(&authority.servers, f));
}

fn check_servers(servers: &[ServerConfig], faults: &mut Faults) {
    for (i, server) in servers.iter().enumerate() {
        faults.index(i, |f| check_server(server, f));
    }
}

fn check_server(server: &ServerConfig, faults: &mut Faults) {
    if server.server_uri.is_empty() {
        faults.field("server_uri", |f| f.add("must not be empty")); // B-11
    }
    check_is_no_last_good(server, faults);
    if let ChannelCreds::Tls(tls) = &server.channel_creds {
        faults.field("channel_creds[0].config", |f| {
            let (ca, spiffe) = (tls.ca_certificate_file.as_deref(), tls.spiffe_trust_bundle_map_file.as_deref());
            check_files(tls.identity.as_ref(), ca, spiffe, f);
            f.field("refresh_interval", |f| check_interval(tls.refresh_interval, f));
        });
    }
    for (i, CallCreds::JwtTokenFile(path)) in server.call_creds.iter().enumerate() {
        faults.field("call_creds", |f| f.index(i, |f| check_path("config.jwt_token_file", Some(path), f)));
    }
}

/// Last-good files are no server that could be named: what they are for would not be known (FB-1).
pub(super) fn check_is_no_last_good(server: &ServerConfig, faults: &mut Faults) {
    if server.is_last_good() {
        let fault = format!("found {:?}: set last_good, which adds such a server to every list", server.server_uri);
        faults.field("server_uri", |f| f.add(fault));
    }
}

fn check_files(identity: Option<&IdentityFiles>, ca: Option<&Path>, spiffe: Option<&Path>, faults: &mut Faults) {
    check_path("certificate_file", identity.map(|files| &*files.certificate_file), faults);
    check_path("private_key_file", identity.map(|files| &*files.private_key_file), faults);
    check_path("ca_certificate_file", ca, faults);
    check_path("spiffe_trust_bundle_map_file", spiffe, faults);
}

fn check_path(field: &'static str, path: Option<&Path>, faults: &mut Faults) {
    if path.is_some_and(|path| path.as_os_str().is_empty()) {
        faults.field(field, |f| f.add("must not be empty"));
    }
}
