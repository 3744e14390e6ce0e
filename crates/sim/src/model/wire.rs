//! What passes over one stream, and what must (P-16 to P-48).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_xds::Time;
use mainstay_xds::client::StreamId;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;

use super::Model;
use crate::invariant::{Invariant, Violation};
use crate::plane::Response;

/// One stream, from the client's side.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) server: usize,
    pub(super) opened: Option<Time>,
    pub(super) answered: bool,
    greeted: bool,
    sending: Option<ResourceType>,
    types: BTreeMap<ResourceType, Asked>,
}

/// What was asked for of one type.
#[derive(Clone, Debug, Default)]
struct Asked {
    names: BTreeMap<Arc<str>, Listed>,
    /// Of the last response.
    nonce: String,
    /// As told in the last request.
    version: String,
    /// Responses that have no answer yet.
    owed: VecDeque<Owed>,
}

/// What the answer to a response must say.
#[derive(Clone, Debug)]
struct Owed {
    nonce: String,
    version: Arc<str>,
    faulty: Vec<Arc<str>>,
}

/// How far a name has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// In a request that has not left.
    Sending,
    /// The request left at this time, and nothing was known of the resource.
    Since(Time),
    /// There is nothing to wait for any more.
    Settled,
}

impl Stream {
    pub(super) fn new(server: usize) -> Self {
        let types = BTreeMap::new();
        Self { server, opened: None, answered: false, greeted: false, sending: None, types }
    }

    pub(super) fn listed(&self, key: &ResourceKey) -> Option<&Listed> {
        self.types.get(&key.resource_type)?.names.get(&key.name)
    }

    pub(super) fn listed_mut(&mut self, key: &ResourceKey) -> Option<&mut Listed> {
        self.types.get_mut(&key.resource_type)?.names.get_mut(&key.name)
    }

    /// A response has come; it must be answered.
    pub(super) fn delivered(&mut self, response: &Response, version: Arc<str>, faulty: Vec<Arc<str>>) {
        self.answered = true;
        let asked = self.types.entry(response.resource_type).or_default();
        let resources = response.resources.iter().map(|told| &told.key.name);
        for name in resources.chain(&response.errors) {
            if let Some(listed) = asked.names.get_mut(name) {
                *listed = Listed::Settled;
            }
        }
        asked.nonce = response.nonce.clone();
        asked.owed.push_back(Owed { nonce: response.nonce.clone(), version, faulty });
    }
}

impl Model {
    /// The client sends a request.
    pub(crate) fn send(&mut self, stream: StreamId, request: &DiscoveryRequest) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&stream).filter(|stream| stream.opened.is_some()) else {
            return Err(Invariant::Answers.broken("a request on a stream that is not open"));
        };
        let wrong = |what: &str| Err(Invariant::Answers.broken(format!("{what}: {request:?}")));
        let Some(resource_type) = ResourceType::from_type_url(&request.type_url) else {
            return wrong("a request for an unknown type");
        };
        if stream.sending.replace(resource_type).is_some() {
            return wrong("a request while another is on its way (P-23)");
        }
        if request.node.is_some() == std::mem::replace(&mut stream.greeted, true) {
            return wrong("the node must be in the first request of a stream and in no other (P-16)");
        }
        let first = !stream.types.contains_key(&resource_type);
        if first && request.resource_names.is_empty() {
            return wrong("a first request without names is a wildcard (P-48)");
        }
        let versions = &self.servers[stream.server].versions;
        let asked = stream.types.entry(resource_type).or_default();
        let listed = |name: &String| asked.names.contains_key(name.as_str());
        let changed = request.resource_names.len() != asked.names.len() || !request.resource_names.iter().all(listed);
        match asked.owed.pop_front() {
            Some(Owed { nonce, version, faulty }) => {
                if request.response_nonce != nonce || *request.version_info != *version {
                    return wrong(&format!("expected the answer with nonce {nonce:?} and version {version:?} (P-35)"));
                }
                let message = request.error_detail.as_ref().map(|error| error.message.as_str());
                let blames = |message: &str| faulty.iter().all(|name| message.contains(&**name));
                if message.is_some() == faulty.is_empty() || !message.is_none_or(blames) {
                    return wrong(&format!("expected an answer that blames {faulty:?} and nothing else (P-31)"));
                }
            }
            None => {
                let version = versions.get(&resource_type).map(|version| &**version).unwrap_or_default();
                if request.response_nonce != asked.nonce || request.version_info != version {
                    let nonce = &asked.nonce;
                    return wrong(&format!("expected nonce {nonce:?} and version {version:?} (P-29, P-30)"));
                }
                if request.error_detail.is_some() {
                    return wrong("an error without a response to reject (P-31)");
                }
                if !first && !changed && asked.version == request.version_info {
                    return wrong("a request that says nothing new (P-28)");
                }
            }
        }
        asked.version.clone_from(&request.version_info);
        let mut before = std::mem::take(&mut asked.names);
        for name in &request.resource_names {
            let (name, listed) = before.remove_entry(name.as_str()).unwrap_or((name.as_str().into(), Listed::Sending));
            if asked.names.insert(name, listed).is_some() {
                return wrong("a name is listed twice (P-33)");
            }
        }
        Ok(())
    }

    /// The transport took the request: timers begin (P-55, P-57).
    pub(crate) fn sent(&mut self, now: Time, stream: StreamId) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let Some(resource_type) = stream.sending.take() else { return };
        let Some(asked) = stream.types.get_mut(&resource_type) else { return };
        for (name, listed) in &mut asked.names {
            if *listed == Listed::Sending {
                let key = ResourceKey { resource_type, name: name.clone() };
                let held = self.cache.get(&key).is_some_and(|entry| entry.held.is_some());
                *listed = if held { Listed::Settled } else { Listed::Since(now) };
            }
        }
    }

    /// On every quiet stream all responses are answered, and the names are those that are watched.
    pub(super) fn check_names(&self) -> Result<(), Violation> {
        for stream in self.streams.values().filter(|stream| stream.opened.is_some() && stream.sending.is_none()) {
            let uri = self.uri(stream.server);
            for resource_type in ResourceType::ALL {
                let asked = stream.types.get(&resource_type);
                let owed = asked.and_then(|asked| asked.owed.front());
                Invariant::Answers.holds(owed.is_none(), || {
                    format!("{uri} is owed an answer to its {resource_type} response: {owed:?} (P-35)")
                })?;
                let listed = asked.iter().flat_map(|asked| asked.names.keys());
                let of_type = self.cache.iter().filter(|(key, _)| key.resource_type == resource_type);
                let uses = |key: &ResourceKey| {
                    self.authority_of(key).is_some_and(|(_, authority)| authority.in_use().contains(&stream.server))
                };
                let wanted = of_type.filter(|(key, entry)| entry.watched && uses(key)).map(|(key, _)| &key.name);
                Invariant::Names.holds(listed.clone().eq(wanted.clone()), || {
                    let (listed, wanted) = (listed.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
                    format!("{uri} was asked for {resource_type} {listed:?}, and {wanted:?} are watched")
                })?;
            }
        }
        Ok(())
    }
}
