//! The interop server: `grpc.testing.TestService` and the services that drivers control it with.
//!
//! In secure mode the test service is served as the control plane says, on a port of its own; the other services are on the
//! maintenance port, in plaintext and from the first moment on.

mod health;
mod hook;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mainstay::{Server, ServerCredentials};
use mainstay_testservice::proto::hook_service_server::HookServiceServer;
use mainstay_testservice::proto::xds_update_health_service_server::XdsUpdateHealthServiceServer;
use tokio_stream::wrappers::TcpListenerStream;

use crate::admin::{self, Addresses};
use crate::client::SettingsError;
use crate::flags::Flags;
use health::Health;
use hook::Hook;

/// What the command line asks for; see [`Settings::from_flags`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    port: u16,
    /// The port of the other services, in secure mode.
    maintenance_port: Option<u16>,
    addresses: Addresses,
    server_id: String,
    hostname: String,
}

impl Settings {
    /// Reads the arguments after the program's name. Unknown flags are named on standard error and ignored (I-1).
    pub fn from_flags(arguments: impl IntoIterator<Item = String>) -> Result<Self, SettingsError> {
        let mut flags = Flags::parse(arguments);
        let port = flags.port("port", 8080)?;
        // Without secure mode all services share one port (I-17); the other one is only checked.
        let maintenance_port = flags.port("maintenance_port", 8081)?;
        let secure = flags.switch("secure_mode")?;
        if secure && port == maintenance_port && port != 0 {
            return Err(SettingsError::Conflict(
                "--secure_mode=true: --maintenance_port must be another one than --port",
            ));
        }
        let settings = Self {
            port,
            maintenance_port: secure.then_some(maintenance_port),
            addresses: flags.take("address_type", Addresses::Both, "IPV4, IPV6 or IPV4_IPV6", |value| match value {
                "IPV4" => Some(Addresses::V4),
                "IPV6" => Some(Addresses::V6),
                "IPV4_IPV6" => Some(Addresses::Both),
                _ => None,
            })?,
            server_id: flags.text("server_id", "mainstay_server"),
            // Ours: servers that share a machine need names of their own.
            hostname: flags.text("hostname", &hostname()),
        };
        if flags.switch("enable_csm_observability")? {
            eprintln!("ignored: --enable_csm_observability: CSM labels are not supported yet");
        }
        let metrics = flags.text("metrics_mode", "NONE");
        if !metrics.eq_ignore_ascii_case("none") {
            eprintln!("ignored: --metrics_mode={metrics}: ORCA reports are not supported yet");
        }
        for report in ["report_qps", "report_application_utilization", "report_eps"] {
            flags.text(report, "");
        }
        flags.warn_of_rest();
        Ok(settings)
    }
}

/// Serves until the process is killed.
pub async fn run(settings: Settings) -> io::Result<()> {
    let Settings { port, maintenance_port, addresses, server_id, hostname } = settings;
    let service = mainstay_testservice::service(&server_id, &hostname)
        .ok_or_else(|| io::Error::other(format!("--hostname={hostname}: expected visible ASCII")))?;
    let listener = admin::listen(maintenance_port.unwrap_or(port), addresses).await?;
    let health = Health::default();
    let router = tonic::transport::Server::builder()
        .add_service(XdsUpdateHealthServiceServer::new(health.clone()))
        .add_service(HookServiceServer::new(Hook::default()));
    if maintenance_port.is_none() {
        println!("xds_interop_server: {hostname} on port {}", listener.local_addr()?.port());
        let (router, reporter) = admin::add(router.add_service(service), SERVICES).await;
        health.report_to(reporter);
        return router.serve_with_incoming(TcpListenerStream::new(listener)).await.map_err(io::Error::other);
    }
    let (router, reporter) = admin::add(router, SERVICES).await;
    health.report_to(reporter);
    let maintenance = tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    let address = match addresses {
        // As the servers of other languages call it: control planes know it by this name.
        Addresses::V4 | Addresses::Both => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        Addresses::V6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    };
    let mut running = Server::builder()
        .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
        .on_serving_state(|address, state| println!("{address}: {state}"))
        .add_service(service)
        .listen(address)
        .start()
        .map_err(io::Error::other)?;
    let port = running.local_addresses().first().map_or(port, SocketAddr::port);
    println!("xds_interop_server: {hostname} on port {port}");
    tokio::select! {
        ended = maintenance => ended.map_err(io::Error::other)?.map_err(io::Error::other),
        () = running.stopped() => Err(io::Error::other("the server ended")),
    }
}

/// The name of this machine.
fn hostname() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = from_kernel.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

const SERVICES: &[&str] =
    &["grpc.testing.TestService", "grpc.testing.XdsUpdateHealthService", "grpc.testing.HookService"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_the_contract_is_understood() {
        let settings = settings(&[
            "--port=7",
            "--maintenance_port=8",
            "--secure_mode=False",
            "--server_id=me",
            "--address_type=IPV4",
            "--metrics_mode=NONE",
            "--report_qps=1",
            "--enable_csm_observability=false",
        ])
        .unwrap();
        assert_eq!((settings.port, settings.addresses, &*settings.server_id), (7, Addresses::V4, "me"));
        assert_eq!(settings.maintenance_port, None);
        assert!(!settings.hostname.is_empty());
    }

    #[test]
    fn wrong_values_say_what_was_expected() {
        for (flag, expected) in [
            ("--port=x", "a port"),
            ("--address_type=IPX", "IPV4, IPV6 or IPV4_IPV6"),
            ("--secure_mode=maybe", "true or false"),
        ] {
            let error = settings(&[flag]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(expected), "{flag}: {error}");
        }
    }

    fn settings(arguments: &[&str]) -> Result<Settings, SettingsError> {
        Settings::from_flags(arguments.iter().map(|&argument| argument.to_owned()))
    }
}
