//! Metrics of the XdsClient (A78, A88, S-70 to S-74).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Received, Report, ResourceCount, ResourceState, ServerState, XdsClient};
use mainstay_xds::name::AuthorityKey;
use opentelemetry::KeyValue;
use opentelemetry::metrics::AsyncInstrument;

use super::TARGET;
use super::builder::Telemetry;

/// Sees what an XdsClient does. Belongs to the driver.
pub(crate) struct XdsObserver(Option<Observing>);

struct Observing {
    telemetry: Telemetry,
    target: Arc<str>,
    /// Servers that are unhealthy: further failures of theirs do not count (S-73).
    down: Vec<Arc<ServerConfig>>,
    shown: Option<Arc<Mutex<Shown>>>,
}

/// The clients that gauges show. Callbacks of OpenTelemetry cannot be taken back, so there is one for all clients.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<Vec<Weak<Mutex<Shown>>>>>);

/// What gauges show of one client.
struct Shown {
    target: Arc<str>,
    /// Servers in use, and whether they work.
    servers: Vec<(Arc<ServerConfig>, bool)>,
    resources: Vec<ResourceCount>,
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
            _ => {}
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
            shown.servers = servers.into_iter().map(|status| (status.server, status.last_error.is_none())).collect();
            shown.resources = client.count_resources();
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

// === impl Registry ===

impl Registry {
    fn add(&self, target: &Arc<str>) -> Arc<Mutex<Shown>> {
        let shown = Shown { target: target.clone(), servers: Vec::new(), resources: Vec::new() };
        let shown = Arc::new(Mutex::new(shown));
        let mut all = lock(&self.0);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&shown));
        shown
    }

    /// Calls back with each client that is still there.
    fn each(&self, mut show: impl FnMut(&Shown)) {
        let all: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|shown| show(&lock(shown)));
    }

    /// Of clients with the same target, which have different settings, the worst is shown.
    pub(super) fn connected(&self, to: &dyn AsyncInstrument<u64>) {
        let mut connected = BTreeMap::new();
        self.each(|shown| {
            for (server, works) in &shown.servers {
                let key = (shown.target.clone(), server.server_uri.clone());
                *connected.entry(key).or_insert(true) &= works;
            }
        });
        for ((target, server), works) in connected {
            to.observe(u64::from(works), &[KeyValue::new(TARGET, target), KeyValue::new(SERVER, server)]);
        }
    }

    /// Clients with the same target are added up.
    pub(super) fn resources(&self, to: &dyn AsyncInstrument<u64>) {
        let mut resources: BTreeMap<_, u64> = BTreeMap::new();
        self.each(|shown| {
            for counted in &shown.resources {
                let authority: Arc<str> = match &counted.authority {
                    AuthorityKey::TopLevel => OLD_NAMES.into(),
                    AuthorityKey::Named(name) => name.clone(),
                };
                let kind = counted.resource_type.message_name();
                let key = (shown.target.clone(), authority, cache_state(counted), kind);
                *resources.entry(key).or_default() += counted.count as u64;
            }
        });
        for ((target, authority, state, kind), count) in resources {
            let labels = [
                KeyValue::new(TARGET, target),
                KeyValue::new(AUTHORITY, authority),
                KeyValue::new(CACHE_STATE, state),
                KeyValue::new(RESOURCE_TYPE, kind),
            ];
            to.observe(count, &labels);
        }
    }
}

/// The words of A78 and A88 (S-72).
fn cache_state(counted: &ResourceCount) -> &'static str {
    match (counted.state, counted.cached) {
        (ResourceState::Requested, _) => "requested",
        (ResourceState::Acked, _) => "acked",
        (ResourceState::DoesNotExist, false) => "does_not_exist",
        (ResourceState::DoesNotExist, true) => "does_not_exist_but_cached",
        (ResourceState::Nacked, false) => "nacked",
        (ResourceState::Nacked, true) => "nacked_but_cached",
        (ResourceState::ReceivedError, false) => "received_error",
        (ResourceState::ReceivedError, true) => "received_error_but_cached",
        (ResourceState::TimedOut, _) => "timeout",
    }
}

fn server_label(server: &ServerConfig) -> KeyValue {
    KeyValue::new(SERVER, server.server_uri.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const SERVER: &str = "grpc.xds.server";
const AUTHORITY: &str = "grpc.xds.authority";
const CACHE_STATE: &str = "grpc.xds.cache_state";
const RESOURCE_TYPE: &str = "grpc.xds.resource_type";

/// The authority of names without one (S-71).
const OLD_NAMES: &str = "#old";

#[cfg(test)]
mod tests {
    use mainstay_xds::resource::ResourceType;

    use super::*;

    #[test]
    fn every_state_of_the_cache_has_its_word() {
        let word = |state, cached| {
            let (authority, resource_type) = (AuthorityKey::TopLevel, ResourceType::Cluster);
            cache_state(&ResourceCount { authority, resource_type, state, cached, count: 1 })
        };
        use ResourceState::{Acked, DoesNotExist, Nacked, ReceivedError, Requested, TimedOut};
        let bare = [Requested, TimedOut, DoesNotExist, Nacked, ReceivedError].map(|state| word(state, false));
        assert_eq!(bare, ["requested", "timeout", "does_not_exist", "nacked", "received_error"], "S-72");
        let cached = [Acked, DoesNotExist, Nacked, ReceivedError].map(|state| word(state, true));
        let words = ["acked", "does_not_exist_but_cached", "nacked_but_cached", "received_error_but_cached"];
        assert_eq!(cached, words, "S-72");
    }
}
