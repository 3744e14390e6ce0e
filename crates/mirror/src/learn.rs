//! What running clients watch, as their CSDS tells: gRPC of any language (FB-15).

use std::collections::BTreeSet;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use envoy_types::pb::envoy::service::status::v3::per_xds_config::PerXdsConfig as Dump;
use envoy_types::pb::envoy::service::status::v3::{ClientConfig, ClientStatusRequest};
use prost::Message;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;

use crate::names::target_of;

/// What one client watches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Learned {
    pub(crate) node: Node,
    pub(crate) targets: BTreeSet<String>,
}

/// Asks a process again and again, until nobody listens.
pub(crate) async fn watch(address: String, interval: Duration, learned: mpsc::Sender<Learned>) {
    let mut is_failing = false;
    while !learned.is_closed() {
        match tokio::time::timeout(TIMEOUT, ask(&address))
            .await
            .unwrap_or_else(|_| Err("it does not answer".to_owned()))
        {
            Ok(found) => {
                is_failing = false;
                for one in found {
                    if learned.send(one).await.is_err() {
                        return;
                    }
                }
            }
            // A process that is not there now may be there later, and what it watched is known.
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::warn!("{address} cannot be asked what it watches: {error}");
            }
            Err(_) => {}
        }
        tokio::time::sleep(interval).await;
    }
}

async fn ask(address: &str) -> Result<Vec<Learned>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
    let mut client = ClientStatusDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let answer = client.fetch_client_status(ClientStatusRequest::default()).await;
    let configs = answer.map_err(|status| status.to_string())?.into_inner().config;
    Ok(configs.iter().map(read).filter(|learned| !learned.targets.is_empty()).collect())
}

fn read(config: &ClientConfig) -> Learned {
    let node = config.node.clone().unwrap_or_default();
    if config.client_scope.starts_with("xds:") {
        return Learned { node, targets: BTreeSet::from([config.client_scope.clone()]) };
    }
    // Clients that are older than scopes: their Listeners tell.
    let generic = config.generic_xds_configs.iter();
    let listeners = generic.filter(|generic| generic.type_url.ends_with("envoy.config.listener.v3.Listener"));
    let mut held: Vec<_> = listeners.map(|generic| (generic.name.clone(), generic.xds_config.clone())).collect();
    held.extend(older(config));
    let is_for_servers = |any: &Option<envoy_types::pb::google::protobuf::Any>| {
        let listener = any.as_ref().and_then(|any| Listener::decode(&*any.value).ok());
        listener.is_some_and(|listener| listener.api_listener.is_none())
    };
    let clients = held.into_iter().filter(|(_, any)| !is_for_servers(any));
    Learned { node, targets: clients.filter_map(|(name, _)| target_of(&name)).collect() }
}

/// The Listeners that processes tell of that know only `PerXdsConfig`.
#[allow(deprecated)]
fn older(config: &ClientConfig) -> Vec<(String, Option<envoy_types::pb::google::protobuf::Any>)> {
    let mut listeners = Vec::new();
    for dump in &config.xds_config {
        if let Some(Dump::ListenerConfig(dump)) = &dump.per_xds_config {
            listeners.extend(dump.dynamic_listeners.iter().map(|listener| {
                let any = listener.active_state.as_ref().and_then(|state| state.listener.clone());
                (listener.name.clone(), any)
            }));
        }
    }
    listeners
}

const TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::admin::v3::ListenersConfigDump;
    use envoy_types::pb::envoy::admin::v3::listeners_config_dump::{DynamicListener, DynamicListenerState};
    use envoy_types::pb::envoy::service::status::v3::PerXdsConfig;
    use envoy_types::pb::envoy::service::status::v3::client_config::GenericXdsConfig;
    use envoy_types::pb::google::protobuf::Any;
    use mainstay_control_plane::resources;

    use super::*;

    #[test]
    fn a_scope_tells_the_target_and_listeners_do_where_there_is_none_fb15() {
        let node = Some(Node { id: "n".to_owned(), ..Node::default() });
        let targets = |config: &ClientConfig| read(config).targets.into_iter().collect::<Vec<_>>();
        let channel = resources::listener("cart", resources::rds("r"));
        let server = Listener { name: "server".to_owned(), ..Listener::default() };
        let generic = |listener: &Listener| GenericXdsConfig {
            type_url: LISTENER.to_owned(),
            name: listener.name.clone(),
            xds_config: Some(any(listener)),
            ..GenericXdsConfig::default()
        };
        let all = vec![generic(&channel), generic(&server)];
        let scoped = ClientConfig {
            node: node.clone(),
            client_scope: "xds:///shop".to_owned(),
            generic_xds_configs: all.clone(),
            ..ClientConfig::default()
        };
        assert_eq!((targets(&scoped), read(&scoped).node.id.as_str()), (vec!["xds:///shop".to_owned()], "n"));
        let without = ClientConfig { generic_xds_configs: all, ..ClientConfig::default() };
        assert_eq!(targets(&without), ["xds:///cart"], "the Listener of a server is no target");
        let of_servers = ClientConfig { client_scope: "#server".to_owned(), ..ClientConfig::default() };
        assert_eq!(targets(&of_servers), [""; 0]);
    }

    #[test]
    #[allow(deprecated)]
    fn what_older_clients_tell_is_read_too_fb15() {
        let state = |listener: &Listener| DynamicListenerState { listener: Some(any(listener)), ..Default::default() };
        let channel = resources::listener("cart", resources::rds("r"));
        let dump = ListenersConfigDump {
            dynamic_listeners: vec![
                DynamicListener { name: "cart".to_owned(), active_state: Some(state(&channel)), ..Default::default() },
                DynamicListener { name: "asked-for".to_owned(), ..Default::default() },
            ],
            ..Default::default()
        };
        let older = PerXdsConfig { per_xds_config: Some(Dump::ListenerConfig(dump)), ..PerXdsConfig::default() };
        let config = ClientConfig { xds_config: vec![older], ..ClientConfig::default() };
        let targets: Vec<_> = read(&config).targets.into_iter().collect();
        assert_eq!(targets, ["xds:///asked-for", "xds:///cart"]);
    }

    fn any(listener: &Listener) -> Any {
        Any { type_url: LISTENER.to_owned(), value: listener.encode_to_vec() }
    }

    const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
}
