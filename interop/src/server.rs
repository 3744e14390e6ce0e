//! The interop server: `grpc.testing.TestService` and the services that drivers control it with.

mod health;
mod hook;

use std::io;

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
    addresses: Addresses,
    server_id: String,
    hostname: String,
}

impl Settings {
    /// Reads the arguments after the program's name. Unknown flags are named on standard error and ignored (I-1).
    pub fn from_flags(arguments: impl IntoIterator<Item = String>) -> Result<Self, SettingsError> {
        let mut flags = Flags::parse(arguments);
        let settings = Self {
            port: flags.port("port", 8080)?,
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
        // Without secure mode all services share one port (I-17); the other one is only checked.
        flags.port("maintenance_port", 8081)?;
        if flags.switch("secure_mode")? {
            return Err(SettingsError::Unsupported(
                "--secure_mode=true: xDS-enabled servers are not supported yet; leave the flag out to serve in plaintext",
            ));
        }
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
    let Settings { port, addresses, server_id, hostname } = settings;
    let service = mainstay_testservice::service(&server_id, &hostname)
        .ok_or_else(|| io::Error::other(format!("--hostname={hostname}: expected visible ASCII")))?;
    let listener = admin::listen(port, addresses).await?;
    println!("xds_interop_server: {hostname} on port {}", listener.local_addr()?.port());
    let health = Health::default();
    let router = tonic::transport::Server::builder()
        .add_service(service)
        .add_service(XdsUpdateHealthServiceServer::new(health.clone()))
        .add_service(HookServiceServer::new(Hook::default()));
    let (router, reporter) = admin::add(router, SERVICES).await;
    health.report_to(reporter);
    router.serve_with_incoming(TcpListenerStream::new(listener)).await.map_err(io::Error::other)
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
        assert!(!settings.hostname.is_empty());
    }

    #[test]
    fn wrong_values_say_what_was_expected() {
        for (flag, expected) in [
            ("--port=x", "a port"),
            ("--address_type=IPX", "IPV4, IPV6 or IPV4_IPV6"),
            ("--secure_mode=true", "not supported yet"),
        ] {
            let error = settings(&[flag]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(expected), "{flag}: {error}");
        }
    }

    fn settings(arguments: &[&str]) -> Result<Settings, SettingsError> {
        Settings::from_flags(arguments.iter().map(|&argument| argument.to_owned()))
    }
}
