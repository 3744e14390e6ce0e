//! What the tree asks of the outside, written down.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mainstay_lb::{Counter, Helper, LoadSink, Observation, Subchannel, SubchannelId, SubchannelSpec};
use mainstay_xds::client::{Intern, Parsed};
use mainstay_xds::resource::{ParseContext, Resource, ResourceType};

use super::naive::Key;

/// A subchannel as pickers see it.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) id: SubchannelId,
    pub(super) key: Key,
    up: Arc<AtomicBool>,
}

/// Connections, and what was asked since the last look.
#[derive(Debug, Default)]
pub(super) struct Shell {
    pub(super) connections: BTreeMap<Key, Handle>,
    pub(super) asked: Vec<Key>,
    pub(super) watched: Vec<(Key, Duration, LoadSink)>,
    pub(super) reresolved: bool,
    pub(super) seen: Vec<Observation>,
    pub(super) counters: BTreeMap<(String, String), Arc<Counter>>,
    /// How often it was asked for anything.
    pub(super) requests: usize,
    pub(super) misuse: Option<String>,
    /// Whether parsed resources are shared with other channels.
    pub(super) shares: bool,
    parsed: Parsings,
}

/// What was parsed before.
#[derive(Debug, Default)]
struct Parsings(BTreeMap<(ResourceType, Bytes), Parsed>);

impl Shell {
    pub(super) fn look_away(&mut self) {
        (self.asked, self.watched, self.seen) = Default::default();
        (self.reresolved, self.requests) = (false, 0);
    }

    /// Whether RPCs can be sent there.
    pub(super) fn is_up(&self, key: &Key) -> bool {
        self.connections.get(key).is_some_and(Subchannel::is_ready)
    }

    pub(super) fn set_up(&self, key: &Key, up: bool) {
        if let Some(handle) = self.connections.get(key) {
            handle.up.store(up, Ordering::Relaxed);
        }
    }

    fn key(&mut self, id: SubchannelId, what: &str) -> Option<Key> {
        self.requests += 1;
        let found = self.connections.values().find(|handle| handle.id == id).map(|handle| handle.key.clone());
        if found.is_none() {
            self.misuse = Some(format!("{what} of a connection that is not there"));
        }
        found
    }
}

impl Helper for Shell {
    type Subchannel = Handle;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Handle {
        self.requests += 1;
        let tls = spec.tls.as_ref().map(|tls| format!("{tls:?}"));
        let key = (spec.address, spec.proxy, spec.hostname.clone(), tls);
        let handle = Handle { id, key: key.clone(), up: Arc::default() };
        let twice = self.connections.values().any(|other| other.id == id);
        if self.connections.insert(key, handle.clone()).is_some() || twice {
            self.misuse = Some(format!("a second connection to {}", spec.address));
        }
        handle
    }

    fn connect(&mut self, id: SubchannelId) {
        if let Some(key) = self.key(id, "use") {
            self.asked.push(key);
        }
    }

    fn release(&mut self, id: SubchannelId) {
        if let Some(key) = self.key(id, "release") {
            self.connections.remove(&key);
        }
    }

    fn request_reresolution(&mut self) {
        self.requests += 1;
        self.reresolved = true;
    }

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        let key = (cluster.to_owned(), eds_service.to_owned());
        Arc::clone(self.counters.entry(key).or_default())
    }

    fn observe(&mut self, observation: &Observation) {
        match observation {
            Observation::Outlier { .. }
            | Observation::Ejection { .. }
            | Observation::SecurityIgnored { .. }
            | Observation::Weights { .. } => self.seen.push(observation.clone()),
            // Words for people: who is in use is compared RPC by RPC.
            Observation::Priority { .. } | Observation::Leaf { .. } => {}
        }
    }

    fn interner(&mut self) -> Option<&mut dyn Intern> {
        if self.shares { Some(&mut self.parsed) } else { None }
    }

    fn watch_load(&mut self, id: SubchannelId, period: Duration, sink: LoadSink) {
        if let Some(key) = self.key(id, "watch") {
            self.watched.push((key, period, sink));
        }
    }
}

impl Intern for Parsings {
    fn find(&mut self, resource_type: ResourceType, bytes: &[u8], _: ParseContext<'_>) -> Option<Parsed> {
        self.0.get(&(resource_type, Bytes::copy_from_slice(bytes))).cloned()
    }

    fn keep(&mut self, resource: Resource, bytes: &[u8], _: ParseContext<'_>) -> Parsed {
        let key = (resource.resource_type(), Bytes::copy_from_slice(bytes));
        let parsed = Parsed { resource, bytes: key.1.clone() };
        self.0.entry(key).or_insert(parsed).clone()
    }
}

impl Subchannel for Handle {
    fn is_ready(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
