//! CSDS as a control plane answers it: every client that is connected, and how it stands with each type.

use std::{pin::Pin, sync::Arc};

use envoy_types::pb::envoy::{
    admin::v3::UpdateFailureState,
    config::core::v3::Node,
    service::status::v3::{
        ClientConfig, ClientStatusRequest, ClientStatusResponse, ConfigStatus,
        client_config::GenericXdsConfig,
        client_status_discovery_service_server::{ClientStatusDiscoveryService, ClientStatusDiscoveryServiceServer},
    },
};
use mainstay_control_plane::{ClientStatus, TypeStatus, TypeUrl};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use crate::serve::subject::Subject;

/// The service.
pub(super) fn service(subject: Arc<Subject>) -> ClientStatusDiscoveryServiceServer<Service> {
    ClientStatusDiscoveryServiceServer::new(Service(subject))
}

#[derive(Debug)]
pub(super) struct Service(Arc<Subject>);

#[tonic::async_trait]
impl ClientStatusDiscoveryService for Service {
    type StreamClientStatusStream = Pin<Box<dyn Stream<Item = Result<ClientStatusResponse, Status>> + Send>>;

    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        respond(&self.0, &request.into_inner()).map(Response::new)
    }

    async fn stream_client_status(
        &self,
        requests: Request<Streaming<ClientStatusRequest>>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        let subject = Arc::clone(&self.0);
        let answers = requests.into_inner().map(move |request| request.and_then(|request| respond(&subject, &request)));
        Ok(Response::new(Box::pin(answers)))
    }
}

fn respond(subject: &Subject, request: &ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
    if !request.node_matchers.is_empty() {
        return Err(Status::invalid_argument("node_matchers are not supported: all clients are listed without"));
    }
    let config = subject.server.clients().into_iter().map(client).collect();
    Ok(ClientStatusResponse { config })
}

fn client(status: ClientStatus) -> ClientConfig {
    let generic_xds_configs = status.types.iter().map(|(type_url, of)| config(type_url, of)).collect();
    let node = Node { id: status.node_id, user_agent_name: status.user_agent, ..Node::default() };
    ClientConfig { node: Some(node), generic_xds_configs, ..ClientConfig::default() }
}

/// `config_status` is what a management server knows; `client_status`, which clients tell of themselves, stays out.
fn config(type_url: &TypeUrl, of: &TypeStatus) -> GenericXdsConfig {
    let status = match (&of.rejected, &of.sent) {
        (Some(_), _) => ConfigStatus::Error,
        (None, None) => ConfigStatus::NotSent,
        (None, Some(_)) if of.acked == of.sent => ConfigStatus::Synced,
        (None, Some(_)) => ConfigStatus::Stale,
    };
    let error_state = of.rejected.clone().map(|(version, details)| UpdateFailureState {
        details,
        version_info: version.as_ref().to_owned(),
        ..UpdateFailureState::default()
    });
    GenericXdsConfig {
        type_url: type_url.as_str().to_owned(),
        version_info: of.acked.as_deref().unwrap_or_default().to_owned(),
        config_status: status as i32,
        error_state,
        ..GenericXdsConfig::default()
    }
}
