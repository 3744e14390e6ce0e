//! CSDS: the resources of every channel and server, and how the xDS servers are doing.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use envoy_types::pb::envoy::admin::v3::{ClientResourceStatus, UpdateFailureState};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::status::v3::client_config::GenericXdsConfig;
use envoy_types::pb::envoy::service::status::v3::client_status_discovery_service_server::{
    ClientStatusDiscoveryService, ClientStatusDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Timestamp, Value};
use futures_core::Stream;
use futures_util::StreamExt;
use mainstay_xds::Time;
use mainstay_xds::client::{ErrorKind, Protocol, RawValue, ResourceState, ResourceStatus, ServerState};
use mainstay_xds::resource::ResourceType;
use tonic::{Request, Response, Status};

use crate::hub::Hub;
use crate::server::ServerHandle;
use crate::xds_status::XdsStatus;

/// Returns the client status discovery service (gRFC A40).
///
/// It shows every resource that every channel and every server of this process subscribes to, with its state, version, bytes
/// and error. The `client_scope` of a channel is its target, and that of a server is `#server`.
///
/// The node of each `ClientConfig` has two more metadata entries: `mainstay.sources` tells from which server each
/// resource in use came, and `mainstay.servers` how each server is doing. Clients that do not know them ignore them.
pub fn csds() -> Csds {
    Csds(ClientStatusDiscoveryServiceServer::new(Service))
}

/// The service `envoy.service.status.v3.ClientStatusDiscoveryService`, from [`csds`].
#[derive(Clone)]
pub struct Csds(ClientStatusDiscoveryServiceServer<Service>);

service!(Csds);

impl tonic::server::NamedService for Csds {
    const NAME: &'static str = <ClientStatusDiscoveryServiceServer<Service> as tonic::server::NamedService>::NAME;
}

#[derive(Debug)]
struct Service;

#[tonic::async_trait]
impl ClientStatusDiscoveryService for Service {
    type StreamClientStatusStream = Pin<Box<dyn Stream<Item = Result<ClientStatusResponse, Status>> + Send>>;

    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        respond(&request.into_inner()).await.map(Response::new)
    }

    /// Each request is answered once (C-58).
    async fn stream_client_status(
        &self,
        request: Request<tonic::Streaming<ClientStatusRequest>>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        let answers = request.into_inner().then(|request| async move { respond(&request?).await });
        Ok(Response::new(Box::pin(answers)))
    }
}

async fn respond(request: &ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
    if !request.node_matchers.is_empty() {
        // C-59.
        return Err(Status::invalid_argument("node_matchers are not supported: leave the field empty"));
    }
    let mut statuses: Vec<_> = Hub::statuses().await.into_iter().map(|status| status.xds).collect();
    statuses.extend(ServerHandle::statuses().await);
    let with_contents = !request.exclude_resource_contents;
    let mut config: Vec<_> = statuses.iter().map(|status| client_config(status, with_contents)).collect();
    config.sort_by(|a, b| a.client_scope.cmp(&b.client_scope));
    Ok(ClientStatusResponse { config })
}

fn client_config(status: &XdsStatus, with_contents: bool) -> ClientConfig {
    ClientConfig {
        node: Some(node(status)),
        generic_xds_configs: status.resources.iter().map(|r| generic_config(r, status, with_contents)).collect(),
        client_scope: status.scope.to_string(),
        ..Default::default()
    }
}

/// The node as servers see it (B-24), with the sources of the resources added.
fn node(status: &XdsStatus) -> Node {
    let mut node = status.node.clone();
    let sources = status.resources.iter().filter_map(|resource| {
        let server = &resource.value.as_ref()?.provenance.server.server_uri;
        Some((resource.resource.to_string(), text(server)))
    });
    let servers = status.servers.iter().map(|server| {
        let state = match (server.state, &server.last_error) {
            (ServerState::Idle, _) => "IDLE".to_owned(),
            (ServerState::Connecting, _) => "CONNECTING".to_owned(),
            (ServerState::Ready, None) if server.server.is_last_good() => {
                let age = status.last_good.as_ref().and_then(|store| store.age());
                age.map_or_else(|| "READY".to_owned(), |age| format!("READY, {age}"))
            }
            (ServerState::Ready, None) if server.protocol == Some(Protocol::Delta) => "READY, delta".to_owned(),
            (ServerState::Ready, None) => "READY".to_owned(),
            (ServerState::Ready, Some(cause)) => format!("READY, no answer since: {cause}"),
            (ServerState::TransientFailure, cause) => {
                format!("TRANSIENT_FAILURE: {}", cause.as_deref().unwrap_or("no cause is known"))
            }
        };
        (server.server.server_uri.clone(), text(&state))
    });
    let metadata = node.metadata.get_or_insert_default();
    metadata.fields.insert(SOURCES.to_owned(), structure(sources));
    metadata.fields.insert(SERVERS.to_owned(), structure(servers));
    node
}

fn generic_config(resource: &ResourceStatus, status: &XdsStatus, with_contents: bool) -> GenericXdsConfig {
    let type_url = resource.resource.resource_type.type_url().to_owned();
    let value = resource.value.as_ref();
    GenericXdsConfig {
        name: resource.resource.name.to_string(),
        version_info: value.map(|value| value.provenance.version.to_string()).unwrap_or_default(),
        xds_config: value
            // A glob has no content of its own, but that of many resources, of which the bytes are not kept.
            .filter(|_| with_contents && resource.resource.resource_type != ResourceType::EndpointGlob)
            .map(|value| Any { type_url: type_url.clone(), value: value.bytes.to_vec() }),
        last_updated: value.map(|value| last_updated(resource, value, status)),
        client_status: client_status(resource.state) as i32,
        error_state: resource.error.as_ref().map(|error| UpdateFailureState {
            details: error.to_string(),
            last_update_attempt: Some(timestamp(error.at, status)),
            version_info: if let ErrorKind::Rejected { version, .. } = &error.kind {
                version.to_string()
            } else {
                String::new()
            },
            ..Default::default()
        }),
        type_url,
        ..Default::default()
    }
}

fn client_status(state: ResourceState) -> ClientResourceStatus {
    match state {
        ResourceState::Requested => ClientResourceStatus::Requested,
        ResourceState::DoesNotExist => ClientResourceStatus::DoesNotExist,
        ResourceState::Acked => ClientResourceStatus::Acked,
        ResourceState::Nacked => ClientResourceStatus::Nacked,
        ResourceState::ReceivedError => ClientResourceStatus::ReceivedError,
        ResourceState::TimedOut => ClientResourceStatus::Timeout,
    }
}

/// When a value came from its server: of one from a last-good file that is long ago.
fn last_updated(resource: &ResourceStatus, value: &RawValue, status: &XdsStatus) -> Timestamp {
    match status.received_at(resource) {
        Some(at) => on_wall_clock(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)),
        None => timestamp(value.provenance.at, status),
    }
}

/// The core's time on the wall clock.
fn timestamp(at: Time, status: &XdsStatus) -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    on_wall_clock(now.saturating_sub(status.now.since(at)))
}

fn on_wall_clock(since_epoch: Duration) -> Timestamp {
    Timestamp {
        seconds: i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since_epoch.subsec_nanos()).unwrap_or(0),
    }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn structure(fields: impl Iterator<Item = (String, Value)>) -> Value {
    Value { kind: Some(Kind::StructValue(Struct { fields: fields.collect() })) }
}

const SERVERS: &str = "mainstay.servers";
const SOURCES: &str = "mainstay.sources";
