//! Bootstrap JSON to [`Bootstrap`].
//!
//! One pass reads the whole text and collects every fault. Unknown fields are ignored (B-6), and so is
//! `allowed_grpc_services` (B-43): nothing that we support makes calls of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::builder::{
    AuthorityOptions, BootstrapBuilder, check_authority_template, check_file_watcher, check_interval,
    check_is_no_last_good,
};
use super::json::{age, array, boolean, duration, is_set, list, non_empty, object, optional, required, string};
use super::{
    Bootstrap, CallCreds, CertificateFiles, ChannelCreds, DEFAULT_REFRESH_INTERVAL, DeltaMode, Guards, IdentityFiles,
    LastGood, MetadataValue, Node, NodeLocality, ServerConfig, ServerFeatures,
};
use crate::invalid::{Faults, Invalid};
use crate::resource_type::ResourceType;

impl Bootstrap {
    /// Parses bootstrap JSON. On failure names every faulty field (B-7, B-46).
    pub fn parse(json: &str, guards: Guards) -> Result<Self, Invalid> {
        // The parser bounds the nesting, and its errors end with line and column.
        let value: Value =
            serde_json::from_str(json).map_err(|error| Invalid::one("", format!("not valid JSON: {error}")))?;
        let mut faults = Faults::new();
        let builder = bootstrap(&value, guards, &mut faults);
        Ok(faults.finish(builder.unwrap_or_default())?.assemble())
    }
}

fn bootstrap(value: &Value, guards: Guards, faults: &mut Faults) -> Option<BootstrapBuilder> {
    let root = object(value, faults)?;
    let mut builder = Bootstrap::builder().guards(guards);
    builder.servers = required(root, "xds_servers", faults, |v, f| {
        let servers = servers(v, guards, f);
        if v.as_array().is_some_and(Vec::is_empty) {
            f.add("must not be empty"); // B-8
        }
        servers
    })
    .unwrap_or_default();
    builder.node = optional(root, "node", faults, node).unwrap_or_default();
    // Without federation these two are not even looked at (B-30).
    if guards.federation {
        builder.authorities =
            optional(root, "authorities", faults, |v, f| authorities(v, guards, f)).unwrap_or_default();
        builder.client_default_listener_resource_name_template =
            optional(root, "client_default_listener_resource_name_template", faults, template);
    }
    builder.server_listener_resource_name_template =
        optional(root, "server_listener_resource_name_template", faults, template);
    builder.certificate_providers =
        optional(root, "certificate_providers", faults, certificate_providers).unwrap_or_default();
    builder.last_good = optional(root, "last_good", faults, last_good);
    Some(builder)
}

/// Where what clients had last is kept (FB-1).
fn last_good(value: &Value, faults: &mut Faults) -> Option<LastGood> {
    let fields = object(value, faults)?;
    let directory = required(fields, "directory", faults, path);
    let max_age = optional(fields, "max_age", faults, age);
    let allow_expired = optional(fields, "allow_expired", faults, boolean);
    let eager = optional(fields, "eager", faults, boolean);
    let exclude_types = optional(fields, "exclude_types", faults, |v, f| list(v, f, excluded_type));
    let defaults = LastGood::new(directory?);
    let last_good = LastGood {
        max_age: max_age.unwrap_or(defaults.max_age),
        allow_expired: allow_expired.unwrap_or_default(),
        eager: eager.unwrap_or_default(),
        exclude_types: exclude_types.unwrap_or_default(),
        ..defaults
    };
    last_good.check(faults);
    Some(last_good)
}

/// A type by its URL or by the name of its message.
fn excluded_type(value: &Value, faults: &mut Faults) -> Option<ResourceType> {
    let text = non_empty(value, faults)?;
    let known = ResourceType::from_type_url(text);
    if known.is_none() {
        let expected = ResourceType::ALL.map(ResourceType::message_name).join(", ");
        faults.add(format!("found {text:?}, expected one of {expected}"));
    }
    known
}

// === Servers ===

fn servers(value: &Value, guards: Guards, faults: &mut Faults) -> Option<Vec<ServerConfig>> {
    list(value, faults, |v, f| server(v, guards, f))
}

fn server(value: &Value, guards: Guards, faults: &mut Faults) -> Option<ServerConfig> {
    let server = object(value, faults)?;
    let server_uri = required(server, "server_uri", faults, non_empty);
    let channel_creds = required(server, "channel_creds", faults, channel_creds);
    // A field that a guard turns off is like an unknown one (B-15).
    let call_creds = if guards.call_creds { optional(server, "call_creds", faults, call_creds) } else { None };
    let features = optional(server, "server_features", faults, server_features);
    let server = ServerConfig {
        server_uri: server_uri?.to_owned(),
        channel_creds: channel_creds?,
        call_creds: call_creds.unwrap_or_default(),
        features: features.unwrap_or_default(),
    };
    check_is_no_last_good(&server, faults);
    Some(server)
}

/// The first entry of a supported type (B-12). The others are checked too, so that a change of their
/// order cannot make a good bootstrap bad (B-13).
fn channel_creds(value: &Value, faults: &mut Faults) -> Option<ChannelCreds> {
    let before = faults.count();
    let mut unsupported = Vec::new();
    let supported = list(value, faults, |v, f| {
        let (kind, config) = creds_entry(v, f)?;
        match kind {
            "insecure" => Some(ChannelCreds::Insecure),
            "tls" => tls_config(config, f).map(ChannelCreds::Tls),
            other => {
                unsupported.push(format!("{other:?}"));
                None
            }
        }
    })?;
    let chosen = supported.into_iter().next();
    // An entry with a fault of its own has said enough.
    if chosen.is_none() && faults.count() == before {
        faults.add(match unsupported.as_slice() {
            [] => format!("must not be empty: expected an entry of type {SUPPORTED_CHANNEL_CREDS}"),
            types => {
                let google = types.iter().any(|name| name == "\"google_default\"");
                let instead = if google { INSTEAD_OF_GOOGLE_DEFAULT } else { "" };
                let types = types.join(", ");
                format!("no entry of a supported type: found {types}, expected {SUPPORTED_CHANNEL_CREDS}{instead}")
            }
        });
    }
    chosen
}

/// Every entry of a supported type (B-15).
fn call_creds(value: &Value, faults: &mut Faults) -> Option<Vec<CallCreds>> {
    let no_config = Map::new();
    list(value, faults, |v, f| match creds_entry(v, f)? {
        ("jwt_token_file", config) => {
            let config = config.unwrap_or(&no_config);
            f.field("config", |f| required(config, "jwt_token_file", f, path)).map(CallCreds::JwtTokenFile)
        }
        _ => None,
    })
}

/// Type and config of an entry of `channel_creds` or `call_creds` (B-14).
fn creds_entry<'a>(value: &'a Value, faults: &mut Faults) -> Option<(&'a str, Option<&'a Map<String, Value>>)> {
    let entry = object(value, faults)?;
    let kind = required(entry, "type", faults, non_empty);
    let config = optional(entry, "config", faults, object);
    if is_set(entry, "config") && config.is_none() {
        return None;
    }
    Some((kind?, config))
}

/// Config of `tls` credentials: everything may be absent (B-19). `faults` is at the entry.
fn tls_config(config: Option<&Map<String, Value>>, faults: &mut Faults) -> Option<CertificateFiles> {
    let Some(config) = config else { return Some(CertificateFiles::default()) };
    faults.field("config", |f| certificate_files(config, f))
}

/// The known features. Entries may be of any JSON type, and unknown ones mean nothing to us (B-16).
fn server_features(value: &Value, faults: &mut Faults) -> Option<ServerFeatures> {
    let entries = array(value, faults)?;
    let has = |feature: &str| entries.iter().any(|entry| entry.as_str() == Some(feature));
    Some(ServerFeatures {
        ignore_resource_deletion: has("ignore_resource_deletion"),
        fail_on_data_errors: has("fail_on_data_errors"),
        resource_timer_is_transient_error: has("resource_timer_is_transient_error"),
        trusted_xds_server: has("trusted_xds_server"),
        delta: match (has("mainstay_delta"), has("mainstay_prefer_delta")) {
            (true, _) => DeltaMode::Required,
            (false, true) => DeltaMode::Preferred,
            (false, false) => DeltaMode::Off,
        },
    })
}

// === Node ===

/// Only these fields are read; user agent and client features are never the bootstrap's (B-21, B-22).
fn node(value: &Value, faults: &mut Faults) -> Option<Node> {
    let node = object(value, faults)?;
    Some(Node {
        id: owned_string(node, "id", faults),
        cluster: owned_string(node, "cluster", faults),
        locality: optional(node, "locality", faults, locality).unwrap_or_default(),
        metadata: optional(node, "metadata", faults, |v, f| Some(metadata(object(v, f)?))).unwrap_or_default(),
    })
}

fn locality(value: &Value, faults: &mut Faults) -> Option<NodeLocality> {
    let locality = object(value, faults)?;
    Some(NodeLocality {
        region: owned_string(locality, "region", faults),
        zone: owned_string(locality, "zone", faults),
        sub_zone: owned_string(locality, "sub_zone", faults),
    })
}

fn owned_string(object: &Map<String, Value>, name: &'static str, faults: &mut Faults) -> String {
    optional(object, name, faults, string).unwrap_or_default().to_owned()
}

fn metadata(fields: &Map<String, Value>) -> BTreeMap<String, MetadataValue> {
    fields.iter().map(|(name, value)| (name.clone(), metadata_value(value))).collect()
}

fn metadata_value(value: &Value) -> MetadataValue {
    match value {
        Value::Null => MetadataValue::Null,
        Value::Bool(bool) => MetadataValue::Bool(*bool),
        // Every JSON number that the parser lets through has a nearest f64, which is all that Struct has.
        Value::Number(number) => MetadataValue::number(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(string) => MetadataValue::String(string.clone()),
        Value::Array(values) => MetadataValue::List(values.iter().map(metadata_value).collect()),
        Value::Object(fields) => MetadataValue::Struct(metadata(fields)),
    }
}

// === Authorities and templates ===

fn authorities(value: &Value, guards: Guards, faults: &mut Faults) -> Option<BTreeMap<String, AuthorityOptions>> {
    map(value, faults, |name, v, f| {
        let authority = object(v, f)?;
        let template = optional(authority, "client_listener_resource_name_template", f, |v, f| {
            let template = template(v, f)?;
            check_authority_template(name, &template, f);
            Some(template)
        });
        let servers = optional(authority, "xds_servers", f, |v, f| servers(v, guards, f));
        let reachability_only = if guards.endpoint_fallback {
            optional(authority, "fallback_on_reachability_only", f, boolean)
        } else {
            None
        };
        Some(AuthorityOptions {
            client_listener_resource_name_template: template,
            servers: servers.unwrap_or_default(),
            fallback_on_reachability_only: reachability_only.unwrap_or_default(),
        })
    })
}

/// A template. An empty one could only make an empty name, so it counts as absent.
fn template(value: &Value, faults: &mut Faults) -> Option<String> {
    string(value, faults).filter(|template| !template.is_empty()).map(str::to_owned)
}

// === Certificate providers ===

/// The instances of `file_watcher`. Those of unknown plugins are left out (B-38).
fn certificate_providers(value: &Value, faults: &mut Faults) -> Option<BTreeMap<String, CertificateFiles>> {
    map(value, faults, |_, v, f| {
        let provider = object(v, f)?;
        let plugin_name = required(provider, "plugin_name", f, non_empty);
        let config = optional(provider, "config", f, object);
        if plugin_name? != "file_watcher" || (is_set(provider, "config") && config.is_none()) {
            return None;
        }
        f.field("config", |f| {
            let before = f.count();
            let files =
                config.map_or_else(|| Some(CertificateFiles::default()), |config| certificate_files(config, f))?;
            if f.count() == before {
                check_file_watcher(&files, f);
            }
            Some(files)
        })
    })
}

/// The files that `tls` credentials and `file_watcher` have in common; `faults` is at their config.
fn certificate_files(config: &Map<String, Value>, faults: &mut Faults) -> Option<CertificateFiles> {
    let before = faults.count();
    let files = CertificateFiles {
        identity: identity(config, faults),
        ca_certificate_file: optional(config, "ca_certificate_file", faults, path),
        // The first name is A87's and stands; the second is C-core's (B-40).
        spiffe_trust_bundle_map_file: optional(config, "spiffe_trust_bundle_map_file", faults, path).or(optional(
            config,
            "spiffe_bundle_map_file",
            faults,
            path,
        )),
        refresh_interval: optional(config, "refresh_interval", faults, interval).unwrap_or(DEFAULT_REFRESH_INTERVAL),
    };
    (faults.count() == before).then_some(files)
}

/// Certificate and key: both or neither (B-19, B-39).
fn identity(config: &Map<String, Value>, faults: &mut Faults) -> Option<IdentityFiles> {
    let certificate_file = optional(config, "certificate_file", faults, path);
    let private_key_file = optional(config, "private_key_file", faults, path);
    match (is_set(config, "certificate_file"), is_set(config, "private_key_file")) {
        (true, false) => faults.field("private_key_file", |f| f.add("must be set, because certificate_file is")),
        (false, true) => faults.field("certificate_file", |f| f.add("must be set, because private_key_file is")),
        _ => {}
    }
    Some(IdentityFiles { certificate_file: certificate_file?, private_key_file: private_key_file? })
}

fn interval(value: &Value, faults: &mut Faults) -> Option<Duration> {
    let interval = duration(value, faults)?;
    check_interval(interval, faults);
    Some(interval)
}

// === Small readers ===

fn path(value: &Value, faults: &mut Faults) -> Option<PathBuf> {
    non_empty(value, faults).map(PathBuf::from)
}

/// Reads every value of an object by its name. The result leaves out those that `read` does not want.
fn map<T>(
    value: &Value,
    faults: &mut Faults,
    mut read: impl FnMut(&str, &Value, &mut Faults) -> Option<T>,
) -> Option<BTreeMap<String, T>> {
    let fields = object(value, faults)?;
    let read = |(name, value): (&String, &Value)| {
        faults.key(name, |f| read(name, value, f)).map(|value| (name.clone(), value))
    };
    Some(fields.iter().filter_map(read).collect())
}

const SUPPORTED_CHANNEL_CREDS: &str = r#""insecure" or "tls""#;

/// Application default credentials need Google's client libraries; their two halves can be had without.
const INSTEAD_OF_GOOGLE_DEFAULT: &str = "; in place of \"google_default\" use \"tls\", and call_creds of type \
    \"jwt_token_file\" if the server asks for a token";
