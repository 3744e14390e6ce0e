//! An ADS server that passes streams on to a control plane, for what our own control plane does not do.

use std::net::SocketAddr;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use mainstay_control_plane::Server;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

/// A relay to a control plane.
pub(crate) struct Relay {
    address: SocketAddr,
    tokens: mpsc::UnboundedReceiver<Option<String>>,
}

impl Relay {
    /// Begins to relay, with at most so many streams on a connection.
    pub(crate) async fn to(server: &Server, max_streams: Option<u32>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let onward = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr()));
        let onward = AggregatedDiscoveryServiceClient::new(onward.expect("an address").connect_lazy());
        let (token, tokens) = mpsc::unbounded_channel();
        let service = AggregatedDiscoveryServiceServer::new(Ads { onward, token });
        let server = tonic::transport::Server::builder().max_concurrent_streams(max_streams).add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, tokens }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The `authorization` of the next stream.
    pub(crate) async fn next_token(&mut self) -> Option<String> {
        self.tokens.recv().await.expect("a relay that lives")
    }
}

struct Ads {
    onward: AggregatedDiscoveryServiceClient<tonic::transport::Channel>,
    token: mpsc::UnboundedSender<Option<String>>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = Streaming<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Streaming<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let _ = self.token.send(token.map(str::to_owned));
        let requests = request.into_inner().map_while(Result::ok);
        self.onward.clone().stream_aggregated_resources(requests).await
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("not relayed"))
    }
}
