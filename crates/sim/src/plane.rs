//! A control plane that speaks state-of-the-world ADS, without a socket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use prost::Message;

use crate::truth::{Told, Truth};

/// One control plane.
#[derive(Clone, Debug)]
pub(crate) struct Plane {
    pub(crate) truth: Arc<Truth>,
    /// Which of the scenario's versions that is.
    pub(crate) edition: usize,
    /// How the network to it behaves.
    pub(crate) net: Net,
    /// Takes connections and requests, and says nothing.
    pub(crate) mute: bool,
    pub(crate) habits: Habits,
    /// What the client has of ours, as far as we know; see [`Habits::resumes`].
    acked: BTreeMap<ResourceKey, Arc<Told>>,
}

/// What servers may do differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Habits {
    /// Does not send again on a new stream what the client says it has, by the version in its first request.
    pub resumes: bool,
    /// Tells that a resource does not exist (TP3) instead of leaving it out.
    pub tells_errors: bool,
    /// Numbers responses in a small circle, so that equal states of the world are equal.
    pub short_nonces: bool,
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
    /// The client said that it has not what we sent it.
    again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Sent {
    Nothing,
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
    /// Resources that are told not to exist.
    pub(crate) errors: Vec<Arc<str>>,
}

// === impl Plane ===

impl Plane {
    pub(crate) fn new(truth: Arc<Truth>, habits: Habits) -> Self {
        Self { truth, edition: 0, net: Net::Up, mute: false, habits, acked: BTreeMap::new() }
    }

    /// What matters of it for the future.
    pub(crate) fn key(&self) -> impl std::hash::Hash {
        (self.truth.version.clone(), self.edition, self.net, self.mute, self.acked.clone())
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
        let resumes = first && self.habits.resumes && *request.version_info == *self.truth.version;
        if resumes {
            asked.version = self.truth.version.clone();
        }
        for name in wanted {
            let key = ResourceKey { resource_type, name: name.clone() };
            let known = self.acked.get(&key).filter(|_| resumes).cloned();
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

    /// Whether there is something to say about a type.
    pub(crate) fn is_due(&self, session: &Session, resource_type: ResourceType) -> bool {
        !self.mute
            && session.asked.get(&resource_type).is_some_and(|asked| {
                (asked.again && !asked.names.is_empty())
                    || asked.names.iter().any(|(name, sent)| self.is_news(resource_type, name, sent))
            })
    }

    fn is_news(&self, resource_type: ResourceType, name: &Arc<str>, sent: &Sent) -> bool {
        let key = ResourceKey { resource_type, name: name.clone() };
        match (self.truth.resources.get(&key), sent) {
            (Some(now), Sent::Value(sent)) => now != sent,
            (Some(_), _) => true,
            (None, Sent::Absence) => false,
            // The absence of others is no news in SotW: they cannot be deleted (P-52).
            (None, _) => resource_type.full_state() || self.habits.tells_errors,
        }
    }

    /// Says what is due about a type.
    pub(crate) fn respond(&self, session: &mut Session, resource_type: ResourceType) -> Option<Response> {
        let asked = session.asked.get_mut(&resource_type)?;
        let all = resource_type.full_state() || std::mem::take(&mut asked.again);
        asked.again = false;
        let (mut resources, mut errors) = (Vec::new(), Vec::new());
        for (name, sent) in &mut asked.names {
            if !all && !self.is_news(resource_type, name, sent) {
                continue;
            }
            let key = ResourceKey { resource_type, name: name.clone() };
            match self.truth.resources.get(&key) {
                Some(told) => {
                    resources.push(told.clone());
                    *sent = Sent::Value(told.clone());
                }
                None => {
                    if self.habits.tells_errors && *sent != Sent::Absence {
                        errors.push(name.clone());
                    }
                    *sent = Sent::Absence;
                }
            }
        }
        session.nonces += 1;
        let number = if self.habits.short_nonces { session.nonces % 4 } else { session.nonces };
        asked.nonce = format!("{number}");
        asked.version = self.truth.version.clone();
        asked.unacked = resources.clone();
        Some(Response { resource_type, version: asked.version.clone(), nonce: asked.nonce.clone(), resources, errors })
    }
}

// === impl Response ===

impl Response {
    /// Its bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let type_url = self.resource_type.type_url();
        let wrap = |told: &Arc<Told>| {
            let inner = Any { type_url: type_url.to_owned(), value: told.bytes.to_vec() };
            if self.resource_type != ResourceType::EndpointCollection {
                return inner;
            }
            let wrapper = Wrapper { resource: Some(inner), name: told.key.name.to_string() };
            Any { type_url: WRAPPER.to_owned(), value: wrapper.encode_to_vec() }
        };
        let error = |name: &Arc<str>| ResourceError {
            resource_name: Some(ResourceName { name: name.to_string() }),
            error_detail: Some(Status { code: NOT_FOUND, message: "no such resource".to_owned() }),
        };
        let message = DiscoveryResponse {
            version_info: self.version.to_string(),
            resources: self.resources.iter().map(wrap).collect(),
            type_url: type_url.to_owned(),
            nonce: self.nonce.clone(),
            resource_errors: self.errors.iter().map(error).collect(),
        };
        message.encode_to_vec().into()
    }

    /// The resources in it that must be rejected.
    pub(crate) fn faulty(&self) -> impl Iterator<Item = &Arc<Told>> {
        self.resources.iter().filter(|told| told.value.is_none())
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

/// gRPC status code.
const NOT_FOUND: i32 = 5;
