//! Bootstraps: faults, and what is misspelt.

use std::collections::BTreeMap;

use mainstay_xds::bootstrap::{Bootstrap, ChannelCreds, Guards, ServerConfig};
use serde_json::{Map, Value};

use crate::catalog::Id;
use crate::finding::{Finding, Findings};
use crate::input::Origin;
use crate::names::nearest;

/// The text of a bootstrap and where it is.
#[derive(Clone, Debug)]
pub struct BootstrapFile {
    /// Its JSON.
    pub text: String,
    /// Where it is.
    pub origin: Origin,
}

impl BootstrapFile {
    /// What a client makes of it.
    pub(crate) fn parsed(&self) -> Option<Bootstrap> {
        Bootstrap::parse(&self.text, Guards::default()).ok()
    }
}

/// Whether a text with these keys at its top is meant to be a bootstrap, and not resources.
pub fn is_bootstrap(keys: &[&str]) -> bool {
    let is_resources = keys.iter().any(|key| ["@type", "resources", "errors"].contains(key));
    !is_resources
        && keys.iter().any(|key| *key != "node" && (ROOT.contains(key) || nearest(key, ROOT.into_iter()).is_some()))
}

pub(crate) fn check(file: &BootstrapFile, findings: &mut Findings) {
    let mut look = Look { origin: &file.origin, findings };
    if let Err(invalid) = Bootstrap::parse(&file.text, Guards::default()) {
        for fault in invalid.faults() {
            look.add(Id::MS110, &fault.path, fault.message.clone());
        }
    }
    if let Ok(Value::Object(root)) = serde_json::from_str(&file.text) {
        look.root(&root);
    }
    if let Some(bootstrap) = file.parsed() {
        look.servers("xds_servers", &bootstrap.servers.iter().map(|server| &**server).collect::<Vec<_>>());
        for (name, authority) in &bootstrap.authorities {
            let servers: Vec<&ServerConfig> = authority.servers.iter().map(|server| &**server).collect();
            look.servers(&format!("authorities[{name}].xds_servers"), &servers);
        }
    }
}

struct Look<'a> {
    origin: &'a Origin,
    findings: &'a mut Findings,
}

impl Look<'_> {
    fn add(&mut self, id: Id, path: &str, message: impl Into<String>) {
        self.findings.push(Finding::at(id, self.origin, "bootstrap", path, message));
    }

    fn root(&mut self, root: &Map<String, Value>) {
        self.fields("", root, &ROOT);
        self.each(root, "xds_servers", "", Self::server);
        if let Some(Value::Object(node)) = root.get("node") {
            self.fields("node", node, &["id", "cluster", "locality", "metadata"]);
            if let Some(Value::Object(locality)) = node.get("locality") {
                self.fields("node.locality", locality, &["region", "zone", "sub_zone"]);
            }
        }
        if let Some(Value::Object(last_good)) = root.get("last_good") {
            self.fields("last_good", last_good, &LAST_GOOD);
        }
        for (name, authority) in objects(root.get("authorities")) {
            let path = format!("authorities[{name}]");
            self.fields(&path, authority, &AUTHORITY);
            self.each(authority, "xds_servers", &path, Self::server);
        }
        if let Some(Value::Object(last_good)) = root.get("last_good") {
            self.fields("last_good", last_good, &LAST_GOOD);
        }
        for (name, provider) in objects(root.get("certificate_providers")) {
            let path = format!("certificate_providers[{name}]");
            self.fields(&path, provider, &["plugin_name", "config"]);
            match provider.get("plugin_name").and_then(Value::as_str) {
                Some("file_watcher") => {
                    if let Some(Value::Object(config)) = provider.get("config") {
                        self.fields(&format!("{path}.config"), config, &CERTIFICATES);
                    }
                }
                Some(other) => {
                    let message = unknown("plugin", other, &["file_watcher"], "clients leave out this instance");
                    self.add(Id::MS112, &format!("{path}.plugin_name"), message);
                }
                None => {}
            }
        }
    }

    fn server(&mut self, path: &str, server: &Map<String, Value>) {
        self.fields(path, server, &["server_uri", "channel_creds", "call_creds", "server_features"]);
        self.each(server, "channel_creds", path, |look, path, creds| {
            look.credentials(path, creds, &CHANNEL_CREDS, &CERTIFICATES);
        });
        self.each(server, "call_creds", path, |look, path, creds| {
            look.credentials(path, creds, &["jwt_token_file"], &["jwt_token_file"]);
        });
        let features = server.get("server_features").and_then(Value::as_array);
        for (i, feature) in features.into_iter().flatten().enumerate() {
            if let Some(feature) = feature.as_str().filter(|feature| !FEATURES.contains(feature)) {
                let message = unknown("server feature", feature, &FEATURES, "it changes nothing");
                self.add(Id::MS112, &format!("{path}.server_features[{i}]"), message);
            }
        }
    }

    fn credentials(&mut self, path: &str, creds: &Map<String, Value>, types: &[&str], config_fields: &[&str]) {
        self.fields(path, creds, &["type", "config"]);
        match creds.get("type").and_then(Value::as_str) {
            Some(kind) if !types.contains(&kind) => {
                let message = unknown("type of credentials", kind, types, "this entry is passed over");
                self.add(Id::MS112, &format!("{path}.type"), message);
            }
            Some("tls" | "jwt_token_file") => {
                if let Some(Value::Object(config)) = creds.get("config") {
                    self.fields(&format!("{path}.config"), config, config_fields);
                }
            }
            Some(_) | None => {}
        }
    }

    /// MS111: a field that no client reads.
    fn fields(&mut self, path: &str, object: &Map<String, Value>, known: &[&str]) {
        for field in object.keys().filter(|field| !known.contains(&field.as_str())) {
            let message = unknown("field", field, known, "clients ignore it");
            self.add(Id::MS111, &crate::walk::join(path, field), message);
        }
    }

    fn each(
        &mut self,
        object: &Map<String, Value>,
        field: &str,
        path: &str,
        mut look: impl FnMut(&mut Self, &str, &Map<String, Value>),
    ) {
        for (i, element) in object.get(field).and_then(Value::as_array).into_iter().flatten().enumerate() {
            if let Value::Object(element) = element {
                look(self, &crate::walk::join(path, &format!("{field}[{i}]")), element);
            }
        }
    }

    fn servers(&mut self, path: &str, servers: &[&ServerConfig]) {
        let mut seen = BTreeMap::new();
        // The one that stands for `last_good` is not written in the list.
        let written = servers.iter().enumerate().filter(|(_, server)| !server.is_last_good());
        for (i, server) in written {
            let first = *seen.entry(&server.server_uri).or_insert(i);
            if first != i {
                let message =
                    format!("{:?} is already server {first}: a fallback to itself is none", server.server_uri);
                self.add(Id::MS605, &format!("{path}[{i}].server_uri"), message);
            }
            // Files of this machine, such as last-good ones, are no connection.
            let is_here = server.is_local() || is_local(&server.server_uri);
            if server.channel_creds == ChannelCreds::Insecure && !is_here {
                let message = format!("the configuration comes from {:?} in plaintext", server.server_uri);
                self.add(Id::MS606, &format!("{path}[{i}].channel_creds"), message);
            }
        }
    }
}

fn objects(value: Option<&Value>) -> impl Iterator<Item = (&String, &Map<String, Value>)> {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, value)| Some((name, value.as_object()?)))
}

fn unknown(what: &str, found: &str, known: &[&str], then: &str) -> String {
    match nearest(found, known.iter().copied()) {
        Some(near) => format!("unknown {what} {found:?}: did you mean {near:?}? As it is, {then}"),
        None => format!("unknown {what} {found:?}: {then}"),
    }
}

/// Whether a server can only be on this machine.
fn is_local(uri: &str) -> bool {
    let rest =
        uri.trim_start_matches("dns:").trim_start_matches("ipv4:").trim_start_matches("ipv6:").trim_start_matches('/');
    let rest = rest.trim_start_matches('[');
    let is_of_this_machine = ["unix:", "file:"].iter().any(|scheme| uri.starts_with(scheme));
    is_of_this_machine || ["localhost", "127.", "::1"].iter().any(|local| rest.starts_with(local))
}

const ROOT: [&str; 8] = [
    "xds_servers",
    "node",
    "authorities",
    "certificate_providers",
    "client_default_listener_resource_name_template",
    "server_listener_resource_name_template",
    "allowed_grpc_services",
    "last_good",
];
/// Ours alone: others do not know it, and do not mind.
const LAST_GOOD: [&str; 5] = ["directory", "max_age", "allow_expired", "eager", "exclude_types"];
const AUTHORITY: [&str; 3] = ["client_listener_resource_name_template", "xds_servers", "fallback_on_reachability_only"];
const CERTIFICATES: [&str; 6] = [
    "certificate_file",
    "private_key_file",
    "ca_certificate_file",
    "refresh_interval",
    "spiffe_trust_bundle_map_file",
    "spiffe_bundle_map_file",
];
const CHANNEL_CREDS: [&str; 3] = ["insecure", "tls", "google_default"];
/// Those of the gRFCs, `xds_v3` of old, and our own two.
const FEATURES: [&str; 7] = [
    "xds_v3",
    "ignore_resource_deletion",
    "fail_on_data_errors",
    "resource_timer_is_transient_error",
    "trusted_xds_server",
    "mainstay_delta",
    "mainstay_prefer_delta",
];
