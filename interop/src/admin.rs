//! The services that drivers expect on the control port of every interop program (I-6).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mainstay::admin;
use mainstay_testservice::proto::FILE_DESCRIPTOR_SET;
use tokio::net::TcpListener;
use tonic::transport::server::Router;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Adds CSDS, channelz, health and reflection. `services` are those that the router has already; all are healthy.
pub(crate) async fn add(router: Router, services: &[&str]) -> (Router, HealthReporter) {
    let (health, health_service) = tonic_health::server::health_reporter();
    for service in services {
        health.set_service_status(*service, ServingStatus::Serving).await;
    }
    let mut reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(admin::CHANNELZ_FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    for service in services.iter().chain(OTHERS) {
        reflection = reflection.with_service_name(*service);
    }
    let reflection = reflection.build_v1().expect("descriptors that a compiler made");
    let router = router
        .add_service(admin::csds())
        .add_service(admin::channelz())
        .add_service(health_service)
        .add_service(reflection);
    (router, health)
}

/// Listens on every address of the machine.
pub(crate) async fn listen(port: u16, addresses: Addresses) -> io::Result<TcpListener> {
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match addresses {
        Addresses::V4 => TcpListener::bind(v4).await,
        Addresses::V6 => TcpListener::bind(v6).await,
        // A machine without IPv6 is no reason to serve nothing.
        Addresses::Both => match TcpListener::bind(v6).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => TcpListener::bind(v4).await,
            bound => bound,
        },
    }
    .map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on port {port}: {error}; choose another port"))
    })
}

/// Which addresses to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    V4,
    V6,
    Both,
}

const OTHERS: &[&str] = &[
    "envoy.service.status.v3.ClientStatusDiscoveryService",
    "grpc.channelz.v1.Channelz",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
];
