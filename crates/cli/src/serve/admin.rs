//! The admin port of `serve`: health, readiness, metrics and who is connected, over plain HTTP and over gRPC.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, header},
    routing::get,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{service::Routes, transport::server::TcpIncoming};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use crate::{
    failure::Failure,
    listen,
    serve::{
        csds, metrics, mirror, page,
        subject::{self, Subject},
    },
};

/// Whether a control plane is well, as gRPC's health checks ask for it.
#[derive(Clone, Debug)]
pub(super) struct Health(HealthReporter);

/// A running admin server; dropping it ends it.
#[derive(Debug)]
pub(super) struct Admin {
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Health {
    /// What tells, and the service that is asked. Not serving at first.
    pub(super) async fn new() -> (Self, HealthServer<HealthService>) {
        let health = Self(HealthReporter::new());
        health.set(false).await;
        let service = HealthServer::new(HealthService::from_health_reporter(health.0.clone()));
        (health, service)
    }

    /// Whether new clients are welcome.
    pub(super) async fn set(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", ADS] {
            self.0.set_service_status(service, status).await;
        }
    }
}

impl Admin {
    /// Serves at `address`.
    pub(super) async fn start(
        address: SocketAddr,
        subject: Arc<Subject>,
        health: HealthServer<HealthService>,
    ) -> Result<Self, Failure> {
        let failed = |error| listen::failure(address, &error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(mainstay_control_plane::ENVOY_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        let reflection = SERVICES.iter().fold(reflection, |reflection, name| reflection.with_service_name(*name));
        let reflection = reflection
            .build_v1()
            .map_err(|error| Failure::failed(format!("the descriptors for reflection cannot be read: {error}")))?;
        let mirrored = subject.mirror.as_ref().map(mirror::pages).unwrap_or_default();
        let routes = Routes::from(pages(&subject).merge(mirrored))
            .add_service(csds::service(subject))
            .add_service(health)
            .add_service(reflection);
        let serving = tonic::transport::Server::builder()
            .accept_http1(true)
            .add_routes(routes)
            .serve_with_incoming(TcpIncoming::from(listener));
        let task = tokio::spawn(async {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the admin port ended");
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is served over plain HTTP.
fn pages(subject: &Arc<Subject>) -> Router {
    let (ready, scraped, shown) = (Arc::clone(subject), Arc::clone(subject), Arc::clone(subject));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readiness(&ready) }))
        .route(
            "/metrics",
            get(move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics::text(&scraped)) }),
        )
        .route(
            "/status",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], page::json(&shown)) }),
        )
}

/// Ready is who has something whole to serve; how old it is stands beside it.
fn readiness(subject: &Subject) -> (StatusCode, String) {
    let code = if subject.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let feeds = subject.intake.feeds();
    let feeds = feeds.iter().map(|feed| format!("{}: {}\n", feed.name, subject::words(feed)));
    let classes = subject.mirror.as_ref().map(|mirror| mirror.status()).unwrap_or_default();
    let classes = classes.iter().map(|status| format!("class {}: {}\n", status.class, mirror::words(status)));
    (code, feeds.chain(classes).collect())
}

const ADS: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
const SERVICES: [&str; 3] = [
    "envoy.service.status.v3.ClientStatusDiscoveryService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
];
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
