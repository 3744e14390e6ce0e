//! What the gauges of XdsClients show (A78, A88, S-70 to S-72).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Protocol, ResourceCount, ResourceState};
use mainstay_xds::name::AuthorityKey;
use opentelemetry::KeyValue;
use opentelemetry::metrics::AsyncInstrument;

use super::TARGET;

/// The clients that gauges show. Callbacks of OpenTelemetry cannot be taken back, so there is one for all clients.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<Vec<Weak<Mutex<Shown>>>>>);

/// What gauges show of one client.
pub(super) struct Shown {
    target: Arc<str>,
    /// Servers in use.
    pub(super) servers: Vec<ShownServer>,
    pub(super) resources: Vec<ResourceCount>,
    /// Since when the content of its last-good files is known to be good, since 1970.
    pub(super) last_good: Option<Duration>,
}

/// What gauges show of one server.
pub(super) struct ShownServer {
    pub(super) config: Arc<ServerConfig>,
    pub(super) works: bool,
    /// What the stream to it speaks, if one is open.
    pub(super) protocol: Option<Protocol>,
}

// === impl Registry ===

impl Registry {
    pub(super) fn add(&self, target: &Arc<str>) -> Arc<Mutex<Shown>> {
        let shown = Shown { target: target.clone(), servers: Vec::new(), resources: Vec::new(), last_good: None };
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
            for server in &shown.servers {
                let key = (shown.target.clone(), server.config.server_uri.clone());
                *connected.entry(key).or_insert(true) &= server.works;
            }
        });
        for ((target, server), works) in connected {
            to.observe(u64::from(works), &[KeyValue::new(TARGET, target), KeyValue::new(SERVER, server)]);
        }
    }

    /// Which variant of ADS the streams that are open speak. Of clients with the same target, one that does not speak
    /// delta is shown.
    pub(super) fn delta(&self, to: &dyn AsyncInstrument<u64>) {
        let mut delta = BTreeMap::new();
        self.each(|shown| {
            for server in &shown.servers {
                let Some(protocol) = server.protocol else { continue };
                let key = (shown.target.clone(), server.config.server_uri.clone());
                *delta.entry(key).or_insert(true) &= protocol == Protocol::Delta;
            }
        });
        for ((target, server), is_delta) in delta {
            to.observe(u64::from(is_delta), &[KeyValue::new(TARGET, target), KeyValue::new(SERVER, server)]);
        }
    }

    /// How long ago it was known to be good what last-good files hold. Of clients with the same target the oldest is shown.
    pub(super) fn last_good_age(&self, to: &dyn AsyncInstrument<u64>) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let mut ages: BTreeMap<_, u64> = BTreeMap::new();
        self.each(|shown| {
            if let Some(created_at) = shown.last_good {
                let age = ages.entry(shown.target.clone()).or_default();
                *age = (*age).max(now.saturating_sub(created_at).as_secs());
            }
        });
        for (target, age) in ages {
            to.observe(age, &[KeyValue::new(TARGET, target)]);
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) const SERVER: &str = "grpc.xds.server";
const AUTHORITY: &str = "grpc.xds.authority";
const CACHE_STATE: &str = "grpc.xds.cache_state";
pub(super) const RESOURCE_TYPE: &str = "grpc.xds.resource_type";

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
