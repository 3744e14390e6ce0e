//! A client that speaks ADS word by word.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::rpc::Status as RpcStatus;
use mainstay_control_plane::TypeUrl;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// One ADS stream, seen from the client.
pub(crate) struct Client {
    requests: mpsc::UnboundedSender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
    node: Option<Node>,
}

impl Client {
    /// Connects and opens a stream.
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self::open(channel(addr).connect().await.expect("a connection"), "node").await
    }

    /// Opens a stream on a channel.
    pub(crate) async fn open(channel: Channel, node_id: &str) -> Self {
        Self::try_open(channel, node_id).await.expect("a stream")
    }

    /// Opens a stream on a channel, if the server lets it in.
    pub(crate) async fn try_open(channel: Channel, node_id: &str) -> Result<Self, Status> {
        let (requests, body) = mpsc::unbounded_channel();
        let mut stub = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        let responses = stub.stream_aggregated_resources(UnboundedReceiverStream::new(body)).await?.into_inner();
        Ok(Self { requests, responses, node: Some(Node { id: node_id.to_owned(), ..Node::default() }) })
    }

    /// Subscribes.
    pub(crate) fn subscribe(&mut self, type_url: TypeUrl, names: &[&str]) {
        self.send(request(type_url, names));
    }

    /// Accepts a response.
    pub(crate) fn ack(&mut self, response: &DiscoveryResponse, names: &[&str]) {
        self.send(DiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            ..request(TypeUrl::from(response.type_url.as_str()), names)
        });
    }

    /// Rejects a response.
    pub(crate) fn nack(&mut self, response: &DiscoveryResponse, names: &[&str], why: &str) {
        self.send(DiscoveryRequest {
            response_nonce: response.nonce.clone(),
            error_detail: Some(RpcStatus { code: 3, message: why.to_owned(), details: Vec::new() }),
            ..request(TypeUrl::from(response.type_url.as_str()), names)
        });
    }

    /// Sends a request; the first one says who is there.
    pub(crate) fn send(&mut self, request: DiscoveryRequest) {
        let request = DiscoveryRequest { node: self.node.take(), ..request };
        // An error means that the stream has ended, which the next read tells.
        let _ = self.requests.send(request);
    }

    /// The next response.
    pub(crate) async fn response(&mut self) -> DiscoveryResponse {
        self.next().await.expect("no error").expect("no end")
    }

    /// Whatever comes next: a response, the end or an error.
    pub(crate) async fn next(&mut self) -> Result<Option<DiscoveryResponse>, Status> {
        in_time(self.responses.message()).await
    }
}

pub(crate) fn channel(addr: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{addr}")).expect("an address")
}

fn request(type_url: TypeUrl, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DiscoveryRequest::default()
    }
}

/// What takes this long will never happen; a test that hangs says where.
#[track_caller]
pub(crate) fn in_time<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        tokio::time::timeout(Duration::from_secs(20), future)
            .await
            .unwrap_or_else(|_| panic!("waited in vain: {caller}"))
    }
}
