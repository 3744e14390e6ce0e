//! Metrics of the XdsClient (A78, A88, S-70 to S-74).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Received, Report, ServerState, ServerStatus, XdsClient};
use opentelemetry::KeyValue;

use super::TARGET;
use super::builder::Telemetry;
use super::registry::{RESOURCE_TYPE, SERVER, Shown, ShownServer, lock};

/// Sees what an XdsClient does. Belongs to the driver.
pub(crate) struct XdsObserver(Option<Observing>);

struct Observing {
    telemetry: Telemetry,
    target: Arc<str>,
    /// Servers that are unhealthy: further failures of theirs do not count (S-73).
    down: Vec<Arc<ServerConfig>>,
    shown: Option<Arc<Mutex<Shown>>>,
}

// === impl XdsObserver ===

impl XdsObserver {
    /// Of the client of `target`.
    pub(crate) fn new(telemetry: Option<&Telemetry>, target: &Arc<str>) -> Self {
        Self(telemetry.map(|telemetry| Observing {
            telemetry: telemetry.clone(),
            target: target.clone(),
            down: Vec::new(),
            shown: telemetry.instruments().xds.as_ref().map(|registry| registry.add(target)),
        }))
    }

    /// Counts what the client reports.
    pub(crate) fn note(&mut self, report: &Report) {
        let Some(this) = &mut self.0 else { return };
        match report {
            Report::Unreachable(server, ..) if !this.down.contains(server) => {
                this.down.push(server.clone());
                if let Some(counter) = &this.telemetry.instruments().server_failure {
                    counter.add(1, &[this.target(), server_label(server)]);
                }
            }
            Report::Answered(server) | Report::Alive(server) => this.down.retain(|down| down != server),
            Report::Acked(server, kind, _, received) | Report::Nacked(server, kind, _, received, _) => {
                this.count(server, kind.message_name(), *received);
            }
            Report::Connecting(_)
            | Report::Connected(..)
            | Report::Unreachable(..)
            | Report::StreamEnded(..)
            | Report::DeltaRefused(..)
            | Report::FellBack(..)
            | Report::Recovered(..)
            | Report::TimedOut(..)
            | Report::Ignored(..)
            | Report::DeletionIgnored(..)
            | Report::DeletionOver(..)
            | Report::SecurityIgnored(_) => {}
        }
    }

    /// Takes note of how the client is doing, for gauges.
    pub(crate) fn look_at(&mut self, client: &XdsClient) {
        let Some(this) = &mut self.0 else { return };
        let mut servers = client.server_states();
        // One that nobody needs is forgotten; it starts afresh when it is needed again.
        servers.retain(|server| server.state != ServerState::Idle);
        this.down.retain(|down| servers.iter().any(|server| server.server == *down));
        if let Some(shown) = &this.shown {
            let mut shown = lock(shown);
            // An error is cleared by an answer, not by a connection, as S-73 wants.
            let shown_of = |status: ServerStatus| ShownServer {
                works: status.last_error.is_none(),
                protocol: status.protocol,
                config: status.server,
            };
            shown.servers = servers.into_iter().map(shown_of).collect();
            shown.resources = client.count_resources();
        }
    }
}

impl XdsObserver {
    /// Since when the content of the last-good files is known to be good, since 1970; none without files.
    pub(crate) fn show_last_good(&mut self, created_at: Option<Duration>) {
        if let Some(shown) = self.0.as_ref().and_then(|this| this.shown.as_ref()) {
            lock(shown).last_good = created_at;
        }
    }
}

impl Observing {
    fn count(&self, server: &ServerConfig, message: &'static str, received: Received) {
        let instruments = self.telemetry.instruments();
        let counts = [(received.valid, &instruments.updates_valid), (received.invalid, &instruments.updates_invalid)];
        for (count, counter) in counts {
            if let (1.., Some(counter)) = (count, counter) {
                counter
                    .add(count as u64, &[self.target(), server_label(server), KeyValue::new(RESOURCE_TYPE, message)]);
            }
        }
    }

    fn target(&self) -> KeyValue {
        KeyValue::new(TARGET, self.target.clone())
    }
}

fn server_label(server: &ServerConfig) -> KeyValue {
    KeyValue::new(SERVER, server.server_uri.clone())
}
