//! What an Envoy tells at its admin port: it has no CSDS of its own, but `/config_dump` in JSON.

use std::time::Duration;

use bytes::Bytes;
use mainstay::view::{HeldResource, ResourceState};
use mainstay_control_plane::{Body, Snapshot};
use serde_json::Value;

use super::{Holding, Scope};
use crate::{failure::Failure, http};

/// Asks an Envoy.
pub(super) async fn fetch(address: &str, timeout: Duration) -> Result<Holding, Failure> {
    let body = http::get(address, "/config_dump?include_eds", timeout)
        .await
        .map_err(|why| Failure::failed(format!("cannot ask Envoy at {address}: {why}")))?;
    let dump: Value = serde_json::from_slice(&body)
        .map_err(|error| Failure::failed(format!("{address} answered /config_dump with something else: {error}")))?;
    let bootstrap =
        &configs(&dump, "BootstrapConfigDump").next().map_or(Value::Null, |found| found["bootstrap"].clone());
    let agent = |key: &str| bootstrap["node"][key].as_str().unwrap_or_default().to_owned();
    let scope = Scope {
        scope: String::new(),
        node: agent("id"),
        user_agent: format!("envoy {}", agent("user_agent_version")).trim().to_owned(),
        resources: resources(&dump),
        servers: Vec::new(),
    };
    Ok(Holding { name: format!("envoy:{address}"), scopes: vec![scope], channels: None })
}

fn configs<'a>(dump: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let configs = dump["configs"].as_array().into_iter().flatten();
    configs.filter(move |config| config["@type"].as_str().is_some_and(|name| name.ends_with(kind)))
}

/// Every dynamic resource of the dump.
fn resources(dump: &Value) -> Vec<HeldResource> {
    let mut held = Vec::new();
    for (kind, list, message, inner) in DUMPS {
        for entry in configs(dump, kind).flat_map(|config| config[list].as_array().into_iter().flatten()) {
            let state = if entry["active_state"].is_object() { &entry["active_state"] } else { entry };
            held.push(resource(message, entry, state, &state[inner]));
        }
    }
    held
}

fn resource(message: &str, entry: &Value, state: &Value, value: &Value) -> HeldResource {
    let name = ["name", "cluster_name"].into_iter().find_map(|key| value[key].as_str().or(entry[key].as_str()));
    let mut held = HeldResource::new(format!("type.googleapis.com/{message}"), name.unwrap_or_default());
    held.version = state["version_info"].as_str().unwrap_or_default().to_owned();
    held.error = entry["error_state"]["details"].as_str().map(str::to_owned);
    if value.is_object() {
        match Snapshot::from_yaml(&serde_json::json!({ "resources": [value] }).to_string()) {
            Ok(snapshot) => {
                let body = snapshot.resources().next().map(|resource| resource.body);
                if let Some(Body::Message(any)) = body {
                    (held.state, held.encoded) = (ResourceState::Acked, Some(Bytes::from(any.value)));
                }
            }
            Err(errors) => held.error = held.error.or_else(|| errors.0.first().map(ToString::to_string)),
        }
    }
    if entry["error_state"].is_object() {
        held.state = ResourceState::Nacked;
    }
    held
}

/// The kind of dump, the list in it, the message, and where in an entry that is.
const DUMPS: [(&str, &str, &str, &str); 4] = [
    ("ListenersConfigDump", "dynamic_listeners", "envoy.config.listener.v3.Listener", "listener"),
    ("RoutesConfigDump", "dynamic_route_configs", "envoy.config.route.v3.RouteConfiguration", "route_config"),
    ("ClustersConfigDump", "dynamic_active_clusters", "envoy.config.cluster.v3.Cluster", "cluster"),
    (
        "EndpointsConfigDump",
        "dynamic_endpoint_configs",
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
        "endpoint_config",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resources_of_a_dump_are_read() {
        let cluster = serde_json::json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "a", "type": "EDS",
            "eds_cluster_config": { "eds_config": { "ads": {} } },
        });
        let bad = serde_json::json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "b", "nonsense": 1,
        });
        let dump = serde_json::json!({ "configs": [{
            "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
            "dynamic_active_clusters": [
                { "version_info": "7", "cluster": cluster },
                { "version_info": "8", "cluster": bad },
            ],
        }, {
            "@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
            "dynamic_listeners": [{ "name": "l", "error_state": { "details": "no port" } }],
        }] });
        let held = resources(&dump);
        let seen: Vec<_> = held.iter().map(|one| (one.name.as_str(), one.state, one.encoded.is_some())).collect();
        assert_eq!(
            seen,
            [
                ("l", ResourceState::Nacked, false),
                ("a", ResourceState::Acked, true),
                ("b", ResourceState::Requested, false)
            ]
        );
        assert_eq!((held[0].error.as_deref(), held[1].version.as_str()), (Some("no port"), "7"));
        assert!(held[2].error.as_ref().unwrap().contains("nonsense"), "{:?}", held[2].error);
    }
}
