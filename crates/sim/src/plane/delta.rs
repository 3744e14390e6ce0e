//! A control plane that speaks the incremental variant, with what real ones do differently.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use prost::Message;

use super::{Asked, Plane, ResourceError, Response, Sent, Session};
use crate::truth::Told;

/// What servers do differently over delta, and what stands between them and their clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeltaHabits {
    /// Whether it speaks delta at all, in the beginning.
    pub speech: Speech,
    /// Learns delta, or forgets it, with each start.
    pub fickle: bool,
    /// Drops a request with an outdated nonce, and one that rejects something, with its changes (istiod).
    pub drops_stale: bool,
    /// Says nothing when a name is subscribed that is subscribed already (go-control-plane).
    pub quiet_on_repeats: bool,
    /// Heeds what is unsubscribed after what is subscribed (go-control-plane).
    pub unsubscribes_last: bool,
    /// Says nothing of what it does not have (go-control-plane).
    pub silent_absence: bool,
    /// Forgets who asked for a listener or a cluster that it does not have (istiod).
    pub forgets_absent: bool,
    /// Does not look at what it could not answer before the next request comes (go-control-plane, once).
    pub loses_watches: bool,
    /// Sends everything on a new stream, whatever the client has (istiod).
    pub ignores_claims: bool,
    /// Puts each resource into a response of its own.
    pub splits: bool,
    /// Says of names that nobody asked for that they are gone (go-control-plane).
    pub gossips: bool,
    /// Who it says that it is.
    pub identity: Identity,
    /// How it makes the versions of its resources.
    pub versions: Versions,
}

impl DeltaHabits {
    /// The same of a server that speaks delta and forgets nothing that it was asked.
    pub(crate) fn of_steady_servers(self) -> Self {
        Self { speech: Speech::Delta, fickle: false, forgets_absent: false, loses_watches: false, ..self }
    }
}

/// Whether a server speaks delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Speech {
    /// Yes.
    #[default]
    Delta,
    /// No: UNIMPLEMENTED.
    Refuses,
    /// A proxy in between accepts the stream, and nothing ever comes of it.
    Swallows,
}

/// Who a server says that it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The same for ever.
    #[default]
    Stable,
    /// Another one after each start.
    OfProcess,
    /// Nobody.
    None,
}

/// How a server makes the versions of its resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Versions {
    /// Of their content.
    #[default]
    Hashes,
    /// It counts from 1 in each process.
    Counted,
    /// It has none.
    None,
}

/// A process of a control plane that counts: when each resource changed last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) number: u32,
    count: u32,
    stamps: BTreeMap<ResourceKey, (Arc<Told>, u32)>,
}

impl Process {
    pub(super) fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }
}

impl Plane {
    /// A new process: it begins to count anew, and may have been built without delta, or with it.
    pub(super) fn next_process(&mut self) {
        self.process = Process::new(self.process.number + 1);
        if self.habits.delta.fickle {
            self.speech = match self.speech {
                Speech::Delta | Speech::Swallows => Speech::Refuses,
                Speech::Refuses => Speech::Delta,
            };
        }
        self.stamp();
    }

    /// Counts the resources that changed.
    pub(super) fn stamp(&mut self) {
        let Process { count, stamps, .. } = &mut self.process;
        *count += 1;
        stamps.retain(|key, _| self.truth.resources.contains_key(key));
        for (key, told) in &self.truth.resources {
            if stamps.get(key).is_none_or(|(before, _)| before != told) {
                stamps.insert(key.clone(), (told.clone(), *count));
            }
        }
    }

    /// How often what it has changed, as it counts.
    pub(super) fn count(&self) -> u32 {
        self.process.count
    }

    /// Whether a stream of the incremental variant gets anywhere.
    pub(crate) fn speaks_delta(&self) -> bool {
        self.speech == Speech::Delta
    }

    /// The version of a resource.
    fn version_of(&self, told: &Told) -> Arc<str> {
        match self.habits.delta.versions {
            Versions::None => Arc::default(),
            Versions::Counted => self.process.stamps.get(&told.key).map_or(0, |(_, count)| *count).to_string().into(),
            Versions::Hashes => {
                let mut hasher = DefaultHasher::new();
                told.hash(&mut hasher);
                format!("{:032x}", hasher.finish()).into()
            }
        }
    }

    fn identifier(&self) -> Arc<str> {
        match self.habits.delta.identity {
            Identity::Stable => "plane".into(),
            Identity::OfProcess => format!("plane, process {}", self.process.number).into(),
            Identity::None => Arc::default(),
        }
    }

    /// Takes in a request of the incremental variant.
    pub(crate) fn take_delta(&mut self, session: &mut Session, request: &DeltaDiscoveryRequest) {
        let Some(resource_type) = ResourceType::from_type_url(&request.type_url) else { return };
        let habits = self.habits.delta;
        let first = !session.asked.contains_key(&resource_type);
        let asked = session.asked.entry(resource_type).or_default();
        let is_stale = !request.response_nonce.is_empty() && request.response_nonce != asked.nonce;
        if habits.drops_stale && (is_stale || request.error_detail.is_some()) {
            return;
        }
        let unsubscribe = |asked: &mut Asked| {
            for name in &request.resource_names_unsubscribe {
                asked.names.remove(name.as_str());
                asked.deaf.remove(name.as_str());
            }
        };
        if !habits.unsubscribes_last {
            unsubscribe(asked);
        }
        for name in &request.resource_names_subscribe {
            let name: Arc<str> = name.as_str().into();
            let is_known = asked.names.contains_key(&name) && !asked.deaf.remove(&name);
            if is_known && habits.quiet_on_repeats {
                continue;
            }
            let claim = request.initial_resource_versions.get(&*name).filter(|_| first && !habits.ignores_claims);
            let key = ResourceKey { resource_type, name: name.clone() };
            let sent = match (claim, self.truth().resources.get(&key)) {
                (None, _) => Sent::Nothing,
                (Some(version), Some(now)) if **version == *self.version_of(now) => Sent::Value(now.clone()),
                (Some(_), _) => Sent::Claimed,
            };
            asked.names.insert(name, sent);
        }
        if habits.unsubscribes_last {
            unsubscribe(asked);
        }
        if habits.loses_watches {
            let has = |name: &Arc<str>| {
                self.truth().resources.contains_key(&ResourceKey { resource_type, name: name.clone() })
            };
            let unanswered = asked.names.iter().filter(|(name, sent)| **sent == Sent::Nothing && !has(name));
            asked.deaf = unanswered.map(|(name, _)| name.clone()).collect();
        }
    }

    /// Whether there is something to say about a type.
    pub(super) fn is_delta_due(&self, session: &Session, resource_type: ResourceType) -> bool {
        if self.mute || self.speech != Speech::Delta {
            return false;
        }
        let Some(asked) = session.asked.get(&resource_type) else { return false };
        let is_due = |(name, sent): (&Arc<str>, &Sent)| {
            let told = self.truth().resources.get(&ResourceKey { resource_type, name: name.clone() });
            self.is_delta_news(asked, name, told, sent)
        };
        asked.names.iter().any(is_due)
    }

    fn is_delta_news(&self, asked: &Asked, name: &Arc<str>, told: Option<&Arc<Told>>, sent: &Sent) -> bool {
        if asked.deaf.contains(name) {
            return false; // Also when it says everything again: it does not know that this was asked for.
        }
        match (told, sent) {
            (Some(_), _) if asked.again => true,
            (Some(now), Sent::Value(sent)) => now != sent,
            (Some(_), Sent::Nothing | Sent::Absence | Sent::Claimed) => true,
            (None, Sent::Value(_) | Sent::Claimed) => true,
            (None, Sent::Nothing) => !self.habits.delta.silent_absence,
            (None, Sent::Absence) => false,
        }
    }

    /// Says what is due about a type.
    pub(super) fn respond_delta(&self, session: &mut Session, resource_type: ResourceType) -> Option<Response> {
        let habits = self.habits.delta;
        let mut asked = session.asked.remove(&resource_type)?;
        let (mut resources, mut removed, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for name in asked.names.keys().cloned().collect::<Vec<_>>() {
            let key = ResourceKey { resource_type, name: name.clone() };
            let told = self.truth().resources.get(&key);
            let Some(sent) = asked.names.get(&name) else { continue };
            if !self.is_delta_news(&asked, &name, told, sent) {
                continue;
            }
            let sent = match told {
                Some(told) => {
                    resources.push(told.clone());
                    Sent::Value(told.clone())
                }
                None => {
                    let list = if self.habits.tells_errors.is_some() { &mut errors } else { &mut removed };
                    list.push(name.clone());
                    let says_so = matches!(self.habits.tells_errors, None | Some(NOT_FOUND));
                    let is_root = matches!(resource_type, ResourceType::Listener | ResourceType::Cluster);
                    if habits.forgets_absent && says_so && is_root {
                        asked.deaf.insert(name.clone());
                    }
                    Sent::Absence
                }
            };
            asked.names.insert(name, sent);
            if habits.splits {
                break;
            }
        }
        asked.again = false;
        session.nonces += 1;
        let number = if self.habits.short_nonces { session.nonces % 4 } else { session.nonces };
        asked.nonce = format!("{number}");
        let names = asked.names.keys().cloned().collect();
        let nonce = asked.nonce.clone();
        if self.habits.generous {
            let unasked = |told: &&Arc<Told>| {
                told.key.resource_type == resource_type && !asked.names.contains_key(&told.key.name)
            };
            resources.extend(self.truth().resources.values().filter(unasked).cloned());
        }
        if habits.gossips {
            removed.push("somebody-else's".into());
        }
        session.asked.insert(resource_type, asked);
        Some(Response {
            resource_type,
            version: self.version(),
            nonce,
            versions: resources.iter().map(|told| self.version_of(told)).collect(),
            resources,
            errors,
            code: self.habits.tells_errors.unwrap_or_default(),
            wraps: false,
            asked: names,
            delta: Some(Delta { removed, identifier: self.identifier() }),
            ignored: BTreeSet::new(),
        })
    }
}

impl Session {
    /// The names of which it will not hear, although it asked for them: the server has forgotten that.
    pub(crate) fn deaf(&self) -> impl Iterator<Item = ResourceKey> {
        self.asked.iter().flat_map(|(&resource_type, asked)| {
            asked.deaf.iter().map(move |name| ResourceKey { resource_type, name: name.clone() })
        })
    }
}

/// What only responses of the incremental variant say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Delta {
    pub(crate) removed: Vec<Arc<str>>,
    pub(crate) identifier: Arc<str>,
}

impl Response {
    /// Its bytes, in the incremental variant.
    pub(super) fn encode_delta(&self, Delta { removed, identifier }: &Delta) -> Bytes {
        let type_url = self.resource_type.type_url();
        let resources = self.resources.iter().zip(&self.versions).map(|(told, version)| DeltaResource {
            version: version.to_string(),
            resource: Some(Any { type_url: type_url.to_owned(), value: told.bytes.to_vec() }),
            name: told.key.name.to_string(),
        });
        let message = DeltaDiscoveryResponse {
            system_version_info: self.version.to_string(),
            resources: resources.collect(),
            type_url: type_url.to_owned(),
            nonce: self.nonce.clone(),
            removed_resources: removed.iter().map(|name| name.to_string()).collect(),
            control_plane: Some(ControlPlane { identifier: identifier.to_string() }),
            resource_errors: self.errors.iter().map(|name| self.error(name)).collect(),
        };
        message.encode_to_vec().into()
    }
}

/// `envoy.service.discovery.v3.DeltaDiscoveryResponse` with `resource_errors`.
#[derive(Clone, PartialEq, Message)]
struct DeltaDiscoveryResponse {
    #[prost(string, tag = "1")]
    system_version_info: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<DeltaResource>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(string, repeated, tag = "6")]
    removed_resources: Vec<String>,
    #[prost(message, optional, tag = "7")]
    control_plane: Option<ControlPlane>,
    #[prost(message, repeated, tag = "9")]
    resource_errors: Vec<ResourceError>,
}

/// `envoy.service.discovery.v3.Resource`.
#[derive(Clone, PartialEq, Message)]
struct DeltaResource {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, optional, tag = "2")]
    resource: Option<Any>,
    #[prost(string, tag = "3")]
    name: String,
}

/// `envoy.config.core.v3.ControlPlane`.
#[derive(Clone, PartialEq, Message)]
struct ControlPlane {
    #[prost(string, tag = "1")]
    identifier: String,
}

/// gRPC status code.
const NOT_FOUND: u8 = 5;
