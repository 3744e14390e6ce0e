//! A control plane that speaks ADS, without a socket: the state-of-the-world variant here, the other in [`delta`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use prost::Message;

use crate::truth::{Told, Truth};

mod delta;

pub(crate) use delta::Delta;
use delta::Process;
pub use delta::{DeltaHabits, Identity, Speech, Versions};

/// One control plane.
#[derive(Clone, Debug)]
pub(crate) struct Plane {
    pub(crate) truth: Arc<Truth>,
    /// Which of the scenario's versions that is.
    pub(crate) edition: usize,
    /// How the network to it behaves.
    pub(crate) net: Net,
    /// Takes connections and requests, answers PINGs, and says nothing else: a process that hangs.
    pub(crate) mute: bool,
    /// Just started: it has nothing yet.
    pub(crate) cold: bool,
    nothing: Arc<Truth>,
    pub(crate) habits: Habits,
    /// What the client has of ours, as far as we know; see [`Habits::resumes`].
    acked: BTreeMap<ResourceKey, Arc<Told>>,
    /// Whether it speaks delta now.
    pub(crate) speech: Speech,
    process: Process,
}

/// What servers may do differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Habits {
    /// Does not send again on a new stream what the client says it has, by the version in its first request.
    pub resumes: bool,
    /// As above, and takes the word of a client that names its version for everything that it asks for.
    pub trusting: bool,
    /// Tells an error with this gRPC status code (TP3) for a resource that it does not have.
    pub tells_errors: Option<u8>,
    /// Puts every resource into a `Resource` wrapper.
    pub wraps: bool,
    /// Sends everything it has of a type, asked for or not.
    pub generous: bool,
    /// Calls every version the same.
    pub one_version: bool,
    /// Numbers responses in a small circle, so that equal states of the world are equal.
    pub short_nonces: bool,
    /// Over delta.
    pub delta: DeltaHabits,
}

/// How the network to a server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Net {
    Up,
    /// Connections are refused.
    Refusing,
    /// Packets vanish: nothing arrives until it heals.
    BlackHole,
}

/// A stream, as the server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    /// Whether it is of the incremental variant.
    pub(crate) is_delta: bool,
    asked: BTreeMap<ResourceType, Asked>,
    nonces: u64,
}

/// What a client asked for of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Asked {
    /// Names with what was sent for them since they were asked for.
    names: BTreeMap<Arc<str>, Sent>,
    nonce: String,
    version: Arc<str>,
    /// Resources of the last response, until it is acknowledged.
    unacked: Vec<Arc<Told>>,
    /// Everything is to be sent again: the client said that it has not what we sent it, or the server feels like it.
    again: bool,
    /// Names that the server does not look at, although they were asked for. Only over delta.
    deaf: BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Sent {
    Nothing,
    /// Nothing, but the client says that it has something: another version, or what is not there any more.
    Claimed,
    /// That there is none.
    Absence,
    Value(Arc<Told>),
}

/// A response and what it says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Response {
    pub(crate) resource_type: ResourceType,
    pub(crate) version: Arc<str>,
    pub(crate) nonce: String,
    pub(crate) resources: Vec<Arc<Told>>,
    /// Their own versions, over delta.
    pub(crate) versions: Vec<Arc<str>>,
    /// Resources for which an error is told, and its code.
    pub(crate) errors: Vec<Arc<str>>,
    pub(crate) code: u8,
    pub(crate) wraps: bool,
    /// The names that the server knew to be asked for.
    pub(crate) asked: Vec<Arc<str>>,
    /// What is said over delta only; `None` in the other variant.
    pub(crate) delta: Option<Delta>,
    /// What is in it and not looked at: over delta, what nobody asks for any more (DX-9).
    pub(crate) ignored: BTreeSet<ResourceKey>,
}

// === impl Session ===

impl Session {
    pub(crate) fn new(is_delta: bool) -> Self {
        Self { is_delta, ..Self::default() }
    }

    /// Whether anything was asked for.
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether names of this type were asked for.
    pub(crate) fn is_asked(&self, resource_type: ResourceType) -> bool {
        self.asked.get(&resource_type).is_some_and(|asked| !asked.names.is_empty())
    }

    /// Whether the server has anything to say.
    pub(crate) fn has_news(&self, plane: &Plane) -> bool {
        ResourceType::ALL.into_iter().any(|kind| plane.is_due(self, kind))
    }
}

// === impl Plane ===

impl Plane {
    pub(crate) fn new(truth: Arc<Truth>, habits: Habits) -> Self {
        let nothing = Arc::new(Truth { version: "cold".into(), ..Truth::default() });
        let mut plane = Self {
            truth,
            edition: 0,
            net: Net::Up,
            mute: false,
            cold: false,
            nothing,
            habits,
            acked: BTreeMap::new(),
            speech: habits.delta.speech,
            process: Process::default(),
        };
        plane.stamp();
        plane
    }

    /// Has something else to say. While it is down it does not count.
    pub(crate) fn publish(&mut self, truth: Arc<Truth>) {
        self.edition += 1;
        self.truth = truth;
        if self.net == Net::Refusing || self.cold {
            self.process = Process::new(self.process.number);
        }
        self.stamp();
    }

    /// What it serves now.
    pub(crate) fn truth(&self) -> &Arc<Truth> {
        if self.cold { &self.nothing } else { &self.truth }
    }

    /// Starts afresh, with nothing yet.
    pub(crate) fn restart(&mut self) {
        self.cold = true;
        self.acked.clear();
        self.next_process();
    }

    /// Stops; what comes back is another process.
    pub(crate) fn stop(&mut self) {
        self.net = Net::Refusing;
        self.next_process();
    }

    /// Whether it works and can be reached.
    pub(crate) fn is_fine(&self) -> bool {
        self.net == Net::Up && !self.mute && !self.cold
    }

    fn version(&self) -> Arc<str> {
        match self.habits.delta.versions {
            Versions::Counted => self.count().to_string().into(),
            Versions::Hashes | Versions::None if self.habits.one_version => "same".into(),
            Versions::Hashes | Versions::None => self.truth().version.clone(),
        }
    }

    /// What matters of it for the future.
    pub(crate) fn key(&self) -> impl std::hash::Hash {
        (self.edition, self.net, self.mute, self.cold, self.acked.clone(), self.speech, self.process.clone())
    }

    /// Takes in a request.
    pub(crate) fn take(&mut self, session: &mut Session, request: &DiscoveryRequest) {
        let Some(resource_type) = ResourceType::from_type_url(&request.type_url) else { return };
        let first = !session.asked.contains_key(&resource_type);
        let asked = session.asked.entry(resource_type).or_default();
        if request.response_nonce != asked.nonce {
            return; // Stale: the answer to the response on its way has the same names (P-46).
        }
        let wanted: BTreeSet<Arc<str>> = request.resource_names.iter().map(|name| name.as_str().into()).collect();
        asked.names.retain(|name, _| wanted.contains(name));
        let resumes = first && self.habits.resumes && *request.version_info == *self.version();
        if resumes {
            asked.version = self.version();
        }
        for name in wanted {
            let key = ResourceKey { resource_type, name: name.clone() };
            let told = if self.habits.trusting { self.truth().resources.get(&key) } else { self.acked.get(&key) };
            let known = told.filter(|_| resumes).cloned();
            asked.names.entry(name).or_insert_with(|| known.map_or(Sent::Nothing, Sent::Value));
        }
        if request.error_detail.is_some() {
            asked.unacked.clear(); // A NACK: nothing to say until there is something new.
        } else if *request.version_info == *asked.version {
            self.acked.extend(asked.unacked.drain(..).map(|told| (told.key.clone(), told)));
        } else if !first {
            asked.again = true;
        }
    }

    /// Sends everything of a type once more.
    pub(crate) fn repeat(session: &mut Session, resource_type: ResourceType) {
        if let Some(asked) = session.asked.get_mut(&resource_type) {
            asked.again = true;
        }
    }

    /// Whether there is something to say about a type.
    pub(crate) fn is_due(&self, session: &Session, resource_type: ResourceType) -> bool {
        if session.is_delta {
            return self.is_delta_due(session, resource_type);
        }
        !self.mute
            && session.asked.get(&resource_type).is_some_and(|asked| {
                (asked.again && !asked.names.is_empty())
                    || asked.names.iter().any(|(name, sent)| self.is_news(resource_type, name, sent))
            })
    }

    fn is_news(&self, resource_type: ResourceType, name: &Arc<str>, sent: &Sent) -> bool {
        let key = ResourceKey { resource_type, name: name.clone() };
        match (self.truth().resources.get(&key), sent) {
            (Some(now), Sent::Value(sent)) => now != sent,
            (Some(_), _) => true,
            (None, Sent::Absence) => false,
            // The absence of others is no news in SotW: they cannot be deleted (P-52).
            (None, _) => resource_type.full_state() || self.habits.tells_errors.is_some(),
        }
    }

    /// Says what is due about a type.
    pub(crate) fn respond(&self, session: &mut Session, resource_type: ResourceType) -> Option<Response> {
        if session.is_delta {
            return self.respond_delta(session, resource_type);
        }
        let asked = session.asked.get_mut(&resource_type)?;
        let all = resource_type.full_state() || std::mem::take(&mut asked.again);
        asked.again = false;
        let (mut resources, mut errors) = (Vec::new(), Vec::new());
        for (name, sent) in &mut asked.names {
            if !all && !self.is_news(resource_type, name, sent) {
                continue;
            }
            let key = ResourceKey { resource_type, name: name.clone() };
            match self.truth().resources.get(&key) {
                Some(told) => {
                    resources.push(told.clone());
                    *sent = Sent::Value(told.clone());
                }
                None => {
                    if self.habits.tells_errors.is_some() && *sent != Sent::Absence {
                        errors.push(name.clone());
                    }
                    *sent = Sent::Absence;
                }
            }
        }
        session.nonces += 1;
        let number = if self.habits.short_nonces { session.nonces % 4 } else { session.nonces };
        asked.nonce = format!("{number}");
        asked.version = self.version();
        asked.unacked = resources.clone();
        if self.habits.generous {
            let unasked = |told: &&Arc<Told>| {
                told.key.resource_type == resource_type && !asked.names.contains_key(&told.key.name)
            };
            resources.extend(self.truth().resources.values().filter(unasked).cloned());
        }
        Some(Response {
            resource_type,
            version: asked.version.clone(),
            nonce: asked.nonce.clone(),
            resources,
            versions: Vec::new(),
            errors,
            code: self.habits.tells_errors.unwrap_or_default(),
            wraps: self.habits.wraps,
            asked: asked.names.keys().cloned().collect(),
            delta: None,
            ignored: BTreeSet::new(),
        })
    }
}

// === impl Response ===

impl Response {
    /// Its bytes.
    pub(crate) fn encode(&self) -> Bytes {
        if let Some(delta) = &self.delta {
            return self.encode_delta(delta);
        }
        let type_url = self.resource_type.type_url();
        let wrap = |told: &Arc<Told>| {
            let inner = Any { type_url: type_url.to_owned(), value: told.bytes.to_vec() };
            if self.resource_type != ResourceType::EndpointCollection && !self.wraps {
                return inner;
            }
            let wrapper = Wrapper { resource: Some(inner), name: told.key.name.to_string() };
            Any { type_url: WRAPPER.to_owned(), value: wrapper.encode_to_vec() }
        };
        let message = DiscoveryResponse {
            version_info: self.version.to_string(),
            resources: self.resources.iter().map(wrap).collect(),
            type_url: type_url.to_owned(),
            nonce: self.nonce.clone(),
            resource_errors: self.errors.iter().map(|name| self.error(name)).collect(),
        };
        message.encode_to_vec().into()
    }

    fn error(&self, name: &Arc<str>) -> ResourceError {
        ResourceError {
            resource_name: Some(ResourceName { name: name.to_string() }),
            error_detail: Some(Status { code: self.code.into(), message: "no such resource".to_owned() }),
        }
    }

    /// What it says is gone. Only over delta.
    pub(crate) fn removed(&self) -> &[Arc<str>] {
        self.delta.as_ref().map_or(&[], |delta| &delta.removed)
    }

    /// The version of a resource in it, as a client takes it down.
    pub(crate) fn version_of(&self, told: &Told) -> &Arc<str> {
        let index = self.resources.iter().position(|other| other.key == told.key);
        index.and_then(|index| self.versions.get(index)).unwrap_or(&self.version)
    }

    /// The resources in it that must be rejected.
    pub(crate) fn faulty(&self) -> impl Iterator<Item = &Arc<Told>> {
        self.resources.iter().filter(|told| !told.is_valid() && !self.ignored.contains(&told.key))
    }
}

/// `envoy.service.discovery.v3.DiscoveryResponse` with `resource_errors` (P-8).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    #[prost(message, repeated, tag = "7")]
    pub(crate) resource_errors: Vec<ResourceError>,
}

/// `envoy.service.discovery.v3.ResourceError` (P-9).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceError {
    #[prost(message, optional, tag = "1")]
    resource_name: Option<ResourceName>,
    #[prost(message, optional, tag = "2")]
    error_detail: Option<Status>,
}

/// `envoy.service.discovery.v3.ResourceName`.
#[derive(Clone, PartialEq, Message)]
struct ResourceName {
    #[prost(string, tag = "1")]
    name: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// `envoy.service.discovery.v3.Resource` (P-10): LEDS collections have their name only here (P-5).
#[derive(Clone, PartialEq, Message)]
struct Wrapper {
    #[prost(message, optional, tag = "2")]
    resource: Option<Any>,
    #[prost(string, tag = "3")]
    name: String,
}

const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
