//! What a gRPC process tells by CSDS and channelz.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use envoy_types::pb::{
    envoy::{
        admin::v3::{ClientResourceStatus, UpdateFailureState},
        config::{cluster::v3::Cluster, core::v3::Node, core::v3::transport_socket::ConfigType},
        extensions::transport_sockets::tls::v3::{
            CommonTlsContext, DownstreamTlsContext, UpstreamTlsContext, common_tls_context::ValidationContextType,
        },
        service::status::v3::{
            ClientConfig, ClientStatusRequest, PerXdsConfig,
            client_status_discovery_service_client::ClientStatusDiscoveryServiceClient,
            per_xds_config::PerXdsConfig as Dump,
        },
    },
    google::protobuf::{Any, Struct, Timestamp, value::Kind},
};
use mainstay::view::{HeldResource, ResourceState};
use prost::Message as _;
use tonic::{Code, Status, transport::Endpoint};

use super::{Holding, Scope};
use crate::{
    channelz::Channels,
    failure::{Failure, causes, told},
};

/// Asks a process.
pub(super) async fn fetch(address: &str, timeout: Duration) -> Result<Holding, Failure> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| Failure::usage(format!("{address}: {error}")).tip("give HOST:PORT, such as 127.0.0.1:9901"))?;
    let asked = async {
        let channel = endpoint.connect_timeout(timeout).timeout(timeout).connect().await.map_err(|error| {
            // The first is "transport error", whatever happened.
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), causes);
            Failure::failed(format!("cannot connect to {address}: {cause}"))
                .tip("give the address of the admin services of a gRPC process, such as that of load --admin")
        })?;
        let mut csds = ClientStatusDiscoveryServiceClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let answer = csds.fetch_client_status(ClientStatusRequest::default()).await;
        let configs = answer.map_err(|status| refused(address, &status))?.into_inner().config;
        let channels = Channels::fetch(&channel).await.map_err(|status| lost(address, &status))?;
        Ok(Holding { name: address.to_owned(), scopes: configs.iter().map(scope).collect(), channels })
    };
    tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| {
        Err(Failure::failed(format!("{address} did not answer within {timeout:?}"))
            .tip("it may hang, or be no gRPC server; --timeout gives it more time"))
    })
}

fn refused(address: &str, status: &Status) -> Failure {
    match status.code() {
        Code::Unimplemented => Failure::failed(format!("{address} has no CSDS"))
            .tip("the process must serve the admin services of gRPC (A38) at that port; for Envoy use envoy:HOST:PORT"),
        _ => lost(address, status),
    }
}

fn lost(address: &str, status: &Status) -> Failure {
    Failure::failed(format!("{address} ended the talk while it was asked: {}", told(status)))
        .tip("the process may have died")
}

/// What one client of the process holds.
fn scope(config: &ClientConfig) -> Scope {
    let node = config.node.clone().unwrap_or_default();
    let sources = metadata(&node, "mainstay.sources");
    let mut resources: Vec<HeldResource> = config.generic_xds_configs.iter().map(generic).collect();
    resources.extend(older(config));
    for resource in &mut resources {
        // As our own processes tell.
        let message = resource.type_url.rsplit(['/', '.']).next().unwrap_or_default();
        let name = format!("{message} {:?}", resource.name);
        resource.server = sources.iter().find(|(key, _)| *key == name).map(|(_, uri)| uri.clone()).unwrap_or_default();
    }
    let version = node.user_agent_version_type.as_ref().map(|version| {
        use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
        match version {
            UserAgentVersionType::UserAgentVersion(version) => version.clone(),
            UserAgentVersionType::UserAgentBuildVersion(_) => String::new(),
        }
    });
    Scope {
        scope: config.client_scope.clone(),
        user_agent: format!("{} {}", node.user_agent_name, version.unwrap_or_default()).trim().to_owned(),
        servers: metadata(&node, "mainstay.servers"),
        node: node.id,
        resources,
    }
}

fn generic(from: &envoy_types::pb::envoy::service::status::v3::client_config::GenericXdsConfig) -> HeldResource {
    let held = HeldResource::new(&*from.type_url, &*from.name);
    fill(
        held,
        from.client_status,
        &from.version_info,
        from.xds_config.as_ref(),
        from.last_updated.as_ref(),
        from.error_state.as_ref(),
    )
}

/// What processes tell that know only `PerXdsConfig`, a dump for each type.
#[allow(deprecated)]
fn older(config: &ClientConfig) -> Vec<HeldResource> {
    let mut held = Vec::new();
    for PerXdsConfig { per_xds_config, .. } in &config.xds_config {
        match per_xds_config {
            Some(Dump::ListenerConfig(dump)) => held.extend(dump.dynamic_listeners.iter().map(|from| {
                let state = from.active_state.as_ref();
                let any = state.and_then(|state| state.listener.as_ref());
                let updated = state.and_then(|state| state.last_updated.as_ref());
                let version = state.map_or("", |state| &state.version_info);
                fill(
                    HeldResource::new(LISTENER, &*from.name),
                    from.client_status,
                    version,
                    any,
                    updated,
                    from.error_state.as_ref(),
                )
            })),
            Some(Dump::RouteConfig(dump)) => held.extend(dump.dynamic_route_configs.iter().map(|from| {
                let (any, updated) = (from.route_config.as_ref(), from.last_updated.as_ref());
                fill(
                    HeldResource::new(ROUTES, name_in(any)),
                    from.client_status,
                    &from.version_info,
                    any,
                    updated,
                    from.error_state.as_ref(),
                )
            })),
            Some(Dump::ClusterConfig(dump)) => held.extend(dump.dynamic_active_clusters.iter().map(|from| {
                let (any, updated) = (from.cluster.as_ref(), from.last_updated.as_ref());
                fill(
                    HeldResource::new(CLUSTER, name_in(any)),
                    from.client_status,
                    &from.version_info,
                    any,
                    updated,
                    from.error_state.as_ref(),
                )
            })),
            Some(Dump::EndpointConfig(dump)) => held.extend(dump.dynamic_endpoint_configs.iter().map(|from| {
                let (any, updated) = (from.endpoint_config.as_ref(), from.last_updated.as_ref());
                fill(
                    HeldResource::new(ENDPOINTS, name_in(any)),
                    from.client_status,
                    &from.version_info,
                    any,
                    updated,
                    from.error_state.as_ref(),
                )
            })),
            Some(Dump::ScopedRouteConfig(_)) | None => {}
        }
    }
    held
}

fn fill(
    mut held: HeldResource,
    status: i32,
    version: &str,
    value: Option<&Any>,
    updated: Option<&Timestamp>,
    error: Option<&UpdateFailureState>,
) -> HeldResource {
    let status = ClientResourceStatus::try_from(status).unwrap_or(ClientResourceStatus::Unknown);
    held.state = match status {
        ClientResourceStatus::Requested => ResourceState::Requested,
        ClientResourceStatus::DoesNotExist => ResourceState::DoesNotExist,
        ClientResourceStatus::Nacked => ResourceState::Nacked,
        ClientResourceStatus::ReceivedError => ResourceState::ReceivedError,
        ClientResourceStatus::Timeout => ResourceState::TimedOut,
        // Some tell nothing about what they use.
        ClientResourceStatus::Acked => ResourceState::Acked,
        ClientResourceStatus::Unknown if value.is_some() => ResourceState::Acked,
        ClientResourceStatus::Unknown => ResourceState::Requested,
    };
    held.version = version.to_owned();
    held.encoded = value.map(|any| Bytes::from(any.value.clone()));
    held.age = updated.map(age).unwrap_or_default();
    held.error = error.map(|error| error.details.clone()).filter(|details| !details.is_empty());
    held
}

/// The name inside a resource.
fn name_in(any: Option<&Any>) -> String {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
    }
    any.and_then(|any| Named::decode(any.value.as_slice()).ok()).map(|named| named.name).unwrap_or_default()
}

fn age(updated: &Timestamp) -> Duration {
    let nanos = u32::try_from(updated.nanos).unwrap_or(0);
    let at = Duration::new(u64::try_from(updated.seconds).unwrap_or(0), nanos);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(at)
}

/// Texts that a node carries for whom it may concern.
fn metadata(node: &Node, key: &str) -> Vec<(String, String)> {
    let fields = node.metadata.as_ref().and_then(|metadata| metadata.fields.get(key));
    let Some(Kind::StructValue(Struct { fields })) = fields.and_then(|value| value.kind.as_ref()) else {
        return Vec::new();
    };
    let mut texts: Vec<_> = fields
        .iter()
        .filter_map(|(name, value)| match &value.kind {
            Some(Kind::StringValue(text)) => Some((name.clone(), text.clone())),
            _ => None,
        })
        .collect();
    texts.sort();
    texts
}

/// The certificate provider instances that a resource names. The bootstrap of another process is not known to us.
pub(super) fn certificate_providers(resource: &HeldResource) -> Vec<String> {
    let Some(bytes) = resource.encoded.as_ref() else { return Vec::new() };
    let mut sockets = Vec::new();
    if resource.type_url.ends_with("Cluster") {
        sockets.extend(Cluster::decode(bytes.as_ref()).ok().and_then(|cluster| cluster.transport_socket));
    }
    if resource.type_url.ends_with("Listener") {
        use envoy_types::pb::envoy::config::listener::v3::Listener;
        let listener = Listener::decode(bytes.as_ref()).unwrap_or_default();
        let chains = listener.filter_chains.into_iter().chain(listener.default_filter_chain);
        sockets.extend(chains.filter_map(|chain| chain.transport_socket));
    }
    let contexts = sockets.into_iter().filter_map(|socket| match socket.config_type? {
        ConfigType::TypedConfig(any) if any.type_url.ends_with("UpstreamTlsContext") => {
            UpstreamTlsContext::decode(any.value.as_slice()).ok()?.common_tls_context
        }
        ConfigType::TypedConfig(any) => DownstreamTlsContext::decode(any.value.as_slice()).ok()?.common_tls_context,
    });
    contexts.flat_map(|context| instances(&context)).collect()
}

#[allow(deprecated)]
fn instances(context: &CommonTlsContext) -> Vec<String> {
    let mut names = Vec::new();
    names.extend(context.tls_certificate_provider_instance.as_ref().map(|one| one.instance_name.clone()));
    names.extend(context.tls_certificate_certificate_provider_instance.as_ref().map(|one| one.instance_name.clone()));
    let validation = match &context.validation_context_type {
        Some(ValidationContextType::ValidationContext(context)) => Some(context),
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            let old = combined.validation_context_certificate_provider_instance.as_ref();
            names.extend(old.map(|one| one.instance_name.clone()));
            combined.default_validation_context.as_ref()
        }
        _ => None,
    };
    let roots = validation.and_then(|context| context.ca_certificate_provider_instance.as_ref());
    names.extend(roots.map(|one| one.instance_name.clone()));
    names.retain(|name| !name.is_empty());
    names
}

const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
