//! The gRPC service: every call becomes a stream task.

use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryService;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::event::{ConnectionId, Event};
use crate::server::Shared;
use crate::server::stream::Stream;

/// The aggregated discovery service of one generation of a server.
#[derive(Debug)]
pub(super) struct Ads {
    shared: Arc<Shared>,
    generation: u64,
    stream_alive: mpsc::Sender<()>,
}

impl Ads {
    pub(super) fn new(shared: Arc<Shared>, generation: u64, stream_alive: mpsc::Sender<()>) -> Self {
        Self { shared, generation, stream_alive }
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let connection = request.extensions().get().copied().unwrap_or(ConnectionId(0));
        let id = self.shared.journal.next_stream();
        self.shared.journal.record(Event::StreamOpened { stream: id, connection });
        // One response in the queue and one in the making: whatever changes meanwhile is part of the next.
        let (responses, body) = mpsc::channel(1);
        let (answered, first_response) = oneshot::channel();
        let late_headers = self.shared.faults.subscribe().borrow().late_headers;
        let stream = Stream::new(Arc::clone(&self.shared), self.generation, id, responses, answered);
        tokio::spawn(stream.run(request.into_inner(), self.stream_alive.clone()));
        if late_headers {
            // An error is the end of the stream, which the headers may well announce.
            let _ = first_response.await;
        }
        Ok(Response::new(ReceiverStream::new(body)))
    }

    type DeltaAggregatedResourcesStream = tokio_stream::Empty<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        _request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("this control plane does not speak the incremental variant; use the other one"))
    }
}
