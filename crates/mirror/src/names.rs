//! Which Listeners the primary knows, where it answers wildcards: their names only. What is behind each is followed as a
//! target, with the rules of a client.

use std::collections::BTreeSet;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse, Resource};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// Tells the targets that there are, whenever they change, until nobody listens.
pub(crate) async fn watch(primary: String, node: Node, names: mpsc::Sender<BTreeSet<String>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let (said, heard) = (listen(&primary, &node, &names).await, names.is_closed());
        match said {
            _ if heard => return,
            // It answered, so it is worth to come back soon.
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => tracing::debug!("{primary} was asked for all Listeners: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// One stream. It ends well if it brought something.
async fn listen(primary: &str, node: &Node, names: &mpsc::Sender<BTreeSet<String>>) -> Result<(), String> {
    let endpoint = Endpoint::from_shared(format!("http://{primary}")).map_err(|error| error.to_string())?;
    let endpoint =
        endpoint.connect_timeout(CONNECT_TIMEOUT).keep_alive_while_idle(true).http2_keep_alive_interval(KEEPALIVE);
    let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
    let mut client = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let (requests, body) = mpsc::channel(4);
    let first =
        DiscoveryRequest { node: Some(node.clone()), type_url: LISTENER.to_owned(), ..DiscoveryRequest::default() };
    // There is room: it is the first.
    let _ = requests.send(first).await;
    let opened = client.stream_aggregated_resources(ReceiverStream::new(body)).await;
    let mut responses = opened.map_err(|status| status.to_string())?.into_inner();
    let mut answered = false;
    loop {
        let response = tokio::select! {
            () = names.closed() => return Ok(()),
            response = responses.message() => match response {
                Ok(Some(response)) => response,
                Ok(None) | Err(_) if answered => return Ok(()),
                Ok(None) => return Err("it ended the stream without an answer".to_owned()),
                Err(status) => return Err(status.to_string()),
            },
        };
        answered = true;
        let acknowledged = DiscoveryRequest {
            type_url: LISTENER.to_owned(),
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            ..DiscoveryRequest::default()
        };
        // Whether what it names is worth to be believed is for those to say who follow it.
        if response.type_url == LISTENER && names.send(targets(&response)).await.is_err() {
            return Ok(());
        }
        if requests.send(acknowledged).await.is_err() {
            return Ok(());
        }
    }
}

/// The targets of channels that the Listeners of a response are for.
fn targets(response: &DiscoveryResponse) -> BTreeSet<String> {
    let listener = |any: &Any| {
        let inner = if any.type_url == WRAPPER { Resource::decode(&*any.value).ok()?.resource? } else { any.clone() };
        Listener::decode(&*inner.value).ok().filter(|listener| listener.api_listener.is_some())
    };
    response.resources.iter().filter_map(listener).filter_map(|listener| target_of(&listener.name)).collect()
}

/// The target whose Listener has this name, by the templates that a bootstrap has unless told otherwise.
pub(crate) fn target_of(listener: &str) -> Option<String> {
    if listener.is_empty() {
        return None;
    }
    let Some(rest) = listener.strip_prefix("xdstp://") else { return Some(format!("xds:///{listener}")) };
    let (authority, rest) = rest.split_once('/')?;
    let (_, name) = rest.split_once('/')?;
    Some(format!("xds://{authority}/{name}"))
}

const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use mainstay_control_plane::resources;

    use super::*;

    #[test]
    fn listeners_of_channels_are_targets_and_those_of_servers_are_not() {
        let any = |listener: &Listener| Any { type_url: LISTENER.to_owned(), value: listener.encode_to_vec() };
        let api = resources::listener("greeter", resources::rds("r"));
        let wrapped = Resource {
            resource: Some(any(&Listener { name: "stock".to_owned(), ..api.clone() })),
            ..Resource::default()
        };
        let wrapped = Any { type_url: WRAPPER.to_owned(), value: wrapped.encode_to_vec() };
        let server = Listener { name: "grpc/server".to_owned(), ..Listener::default() };
        let broken = Any { type_url: LISTENER.to_owned(), value: vec![0xff] };
        let response = DiscoveryResponse {
            resources: vec![any(&api), wrapped, any(&server), broken],
            ..DiscoveryResponse::default()
        };
        let found: Vec<_> = targets(&response).into_iter().collect();
        assert_eq!(found, ["xds:///greeter", "xds:///stock"]);
    }

    #[test]
    fn a_name_of_an_authority_is_a_target_of_it() {
        assert_eq!(target_of("a:80").as_deref(), Some("xds:///a:80"));
        let name = "xdstp://auth/envoy.config.listener.v3.Listener/shop/cart";
        assert_eq!(target_of(name).as_deref(), Some("xds://auth/shop/cart"));
        assert_eq!(target_of(""), None);
        assert_eq!(target_of("xdstp://auth"), None);
    }
}
