//! What an Envoy tells at its admin port: it has no CSDS of its own, but `/config_dump` in JSON.

use std::time::Duration;

use bytes::Bytes;
use mainstay::view::{HeldResource, ResourceState};
use mainstay_control_plane::{Body, Snapshot};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Holding, Scope};
use crate::failure::Failure;

/// Asks an Envoy.
pub(super) async fn fetch(address: &str, timeout: Duration) -> Result<Holding, Failure> {
    let answer = tokio::time::timeout(timeout, get(address)).await;
    let body = match answer {
        Ok(Ok(body)) => body,
        Ok(Err(why)) => return Err(Failure::failed(format!("cannot ask Envoy at {address}: {why}"))),
        Err(_) => return Err(Failure::failed(format!("Envoy at {address} did not answer within {timeout:?}"))),
    };
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

/// A plain GET over HTTP/1.1, which is all that an admin port needs.
async fn get(address: &str) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let request = format!("GET /config_dump?include_eds HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
    let end =
        answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("it ended the talk before it had answered")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200") {
        return Err(format!("it answered {status:?}"));
    }
    let body = &answer[end + 4..];
    if head.contains("transfer-encoding: chunked") { unchunk(body) } else { Ok(body.to_vec()) }
}

/// Undoes the chunked encoding.
fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let cut = || "the answer is cut off".to_owned();
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").ok_or_else(cut)?;
        let size = std::str::from_utf8(&rest[..end]).ok().and_then(|text| text.split(';').next()).map(str::trim);
        let size = size.and_then(|text| usize::from_str_radix(text, 16).ok()).ok_or_else(cut)?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size).ok_or_else(cut)?);
        rest = rest.get(end + 4 + size..).ok_or_else(cut)?;
    }
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
    fn chunks_are_put_together() {
        assert_eq!(unchunk(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n").unwrap(), b"abcde");
        assert!(unchunk(b"5\r\nab").is_err());
        assert!(unchunk(b"zz\r\n").is_err());
    }

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
