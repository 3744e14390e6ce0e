//! The load reporting service: it says what it wants, and adds up what it gets.

use std::sync::Arc;

use envoy_types::pb::envoy::service::load_stats::v3::load_reporting_service_server::LoadReportingService;
use envoy_types::pb::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use envoy_types::pb::google::protobuf::Duration as PbDuration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::event::{Event, lock};
use crate::load::{LoadReport, LoadRequest};
use crate::server::Shared;
use crate::server::carrier::{Carrier, Order};

/// The load reporting service of one generation of a server.
#[derive(Debug)]
pub(super) struct Lrs {
    shared: Arc<Shared>,
    stream_alive: mpsc::Sender<()>,
}

impl Lrs {
    pub(super) fn new(shared: Arc<Shared>, stream_alive: mpsc::Sender<()>) -> Self {
        Self { shared, stream_alive }
    }
}

#[tonic::async_trait]
impl LoadReportingService for Lrs {
    type StreamLoadStatsStream = ReceiverStream<Result<LoadStatsResponse, Status>>;

    async fn stream_load_stats(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Response<Self::StreamLoadStatsStream>, Status> {
        let (responses, body) = mpsc::channel(1);
        let (shared, alive) = (Arc::clone(&self.shared), self.stream_alive.clone());
        let carrier = request.extensions().get::<Carrier>().cloned();
        let carrier = carrier.ok_or_else(|| Status::internal("the request has no connection"))?;
        tokio::spawn(run(shared, carrier, request.into_inner(), responses, alive));
        Ok(Response::new(ReceiverStream::new(body)))
    }
}

async fn run(
    shared: Arc<Shared>,
    carrier: Carrier,
    mut requests: Streaming<LoadStatsRequest>,
    responses: mpsc::Sender<Result<LoadStatsResponse, Status>>,
    _alive: mpsc::Sender<()>,
) {
    let mut orders = carrier.orders();
    let mut wanted = shared.load_request.subscribe();
    let mut node = String::new();
    let mut greeted = false;
    loop {
        let ending = async {
            // An error means that the connection is gone, which is an end as well.
            let _ = orders.wait_for(|order| *order != Order::Stay).await;
        };
        tokio::select! {
            // Reports that have come are read before the end is noticed.
            biased;
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                if let Some(named) = request.node {
                    node = named.id;
                }
                if !std::mem::replace(&mut greeted, true) {
                    let first = response(&wanted.borrow_and_update());
                    if responses.send(Ok(first)).await.is_err() {
                        return;
                    }
                }
                if !request.cluster_stats.is_empty() && !wanted.borrow().is_dropped {
                    request.cluster_stats.iter().for_each(|stats| lock(&shared.loads).add(stats));
                    let report = LoadReport { node: node.clone(), clusters: request.cluster_stats };
                    shared.journal.record(Event::LoadReported(report));
                }
            }
            Ok(()) = wanted.changed(), if greeted => {
                let next = response(&wanted.borrow_and_update());
                if responses.send(Ok(next)).await.is_err() {
                    return;
                }
            }
            () = ending => {
                // Whoever is gone does not need to hear it.
                let _ = responses.try_send(Err(Status::unavailable("the server is shutting down")));
                return;
            }
        }
    }
}

fn response(wanted: &LoadRequest) -> LoadStatsResponse {
    LoadStatsResponse {
        clusters: wanted.clusters.clone().unwrap_or_default(),
        send_all_clusters: wanted.clusters.is_none(),
        load_reporting_interval: Some(PbDuration {
            seconds: i64::try_from(wanted.interval.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(wanted.interval.subsec_nanos()).unwrap_or(0),
        }),
        report_endpoint_granularity: false,
    }
}
