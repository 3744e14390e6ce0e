//! The interop client: sends RPCs at a constant rate and tells what became of them.

mod call;
mod configure;
mod settings;
mod stats;
mod traffic;

pub use settings::{Settings, SettingsError};

use std::io;
use std::sync::Arc;

use mainstay_testservice::proto::load_balancer_stats_service_server::LoadBalancerStatsServiceServer;
use mainstay_testservice::proto::xds_update_client_configure_service_server::XdsUpdateClientConfigureServiceServer;
use tokio_stream::wrappers::TcpListenerStream;

use crate::admin::{self, Addresses};
use configure::Configuration;
use stats::Stats;

/// Sends RPCs until the process is killed (I-5), or until one fails that must not.
pub async fn run(settings: Settings) -> io::Result<()> {
    let stats = Arc::new(Stats::default());
    let configuration = Arc::new(Configuration::new(&settings));
    // First of all: drivers wait for the port, not for a control plane (I-6).
    let listener = admin::listen(settings.stats_port, Addresses::Both).await?;
    println!("xds_interop_client: stats on port {}", listener.local_addr()?.port());
    let router = tonic::transport::Server::builder()
        .add_service(LoadBalancerStatsServiceServer::from_arc(stats.clone()))
        .add_service(XdsUpdateClientConfigureServiceServer::from_arc(configuration.clone()));
    let (router, _health) = admin::add(router, SERVICES).await;
    let serving = router.serve_with_incoming(TcpListenerStream::new(listener));
    tokio::select! {
        ended = serving => ended.map_err(io::Error::other),
        failed = traffic::send(&settings, stats, configuration) => Err(io::Error::other(failed)),
    }
}

const SERVICES: &[&str] = &["grpc.testing.LoadBalancerStatsService", "grpc.testing.XdsUpdateClientConfigureService"];
