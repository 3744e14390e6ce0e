//! What the client shows of itself: to CSDS, channelz and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::authority::AuthorityId;
use super::cache::{Entry, ResourceState};
use super::server::{Link, Server};
use super::stream::Stream;
use super::{Protocol, Provenance, ResourceError, XdsClient};
use crate::bootstrap::ServerConfig;
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::ResourceType;

/// What is known of one watched resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceStatus {
    /// Which one.
    pub resource: ResourceKey,
    /// Where it stands.
    pub state: ResourceState,
    /// The value in use, as it came and whence it came.
    pub value: Option<RawValue>,
    /// What is wrong, if the last word of the server was an error.
    pub error: Option<Arc<ResourceError>>,
}

/// The bytes of a resource in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawValue {
    /// The encoded message, unknown fields included.
    pub bytes: Bytes,
    /// The server, version and time.
    pub provenance: Provenance,
}

/// How many watched resources have this much in common (S-72).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceCount {
    /// Whose they are.
    pub authority: AuthorityKey,
    /// Of what type.
    pub resource_type: ResourceType,
    /// Where they stand.
    pub state: ResourceState,
    /// Whether a value is in use.
    pub cached: bool,
    /// How many.
    pub count: usize,
}

/// How a server is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerStatus {
    /// Which one.
    pub server: Arc<ServerConfig>,
    /// State of the connection to it.
    pub state: ServerState,
    /// What the stream to it speaks, if one is open.
    pub protocol: Option<Protocol>,
    /// Why it cannot be reached. Cleared by its next answer or sign of life, not by a connection (C-31).
    pub last_error: Option<Arc<str>>,
}

/// The connectivity states of gRPC that a server can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerState {
    /// Nobody needs it.
    Idle,
    /// The first attempt after a good one is under way.
    Connecting,
    /// Connected, with a stream on it.
    Ready,
    /// The last attempt failed; the next one waits or is under way.
    TransientFailure,
}

impl XdsClient {
    /// Every watched resource, by type and name (C-61).
    pub fn dump(&self) -> Vec<ResourceStatus> {
        let status = |(resource, entry): (ResourceKey, &Entry)| ResourceStatus {
            resource,
            state: entry.cached.state(),
            value: (entry.cached.held())
                .map(|held| RawValue { bytes: held.raw.clone(), provenance: held.provenance.clone() }),
            error: entry.cached.error().cloned(),
        };
        self.cache.watched().map(status).collect()
    }

    /// The watched resources, counted by what metrics tell apart.
    pub fn count_resources(&self) -> Vec<ResourceCount> {
        let mut counts = BTreeMap::new();
        for (resource_type, entry) in self.cache.watched_entries() {
            let (state, cached) = (entry.cached.state(), entry.cached.held().is_some());
            *counts.entry((entry.authority, resource_type, state, cached)).or_default() += 1;
        }
        let count = |((authority, resource_type, state, cached), count): ((AuthorityId, _, _, _), _)| {
            let authority = self.authorities.get(authority.0)?.key.clone();
            Some(ResourceCount { authority, resource_type, state, cached, count })
        };
        counts.into_iter().filter_map(count).collect()
    }

    /// Every server that was ever needed, in the order in which they were.
    pub fn server_states(&self) -> Vec<ServerStatus> {
        let status = |server: &Server| ServerStatus {
            server: server.config.clone(),
            state: server.state(),
            protocol: server.link.stream().map(Stream::protocol),
            last_error: server.outage.as_ref().map(|outage| outage.cause.clone()),
        };
        self.servers.iter().map(status).collect()
    }
}

impl Server {
    fn state(&self) -> ServerState {
        match (&self.link, &self.outage) {
            (Link::Idle, None) => ServerState::Idle,
            (Link::Opening(_) | Link::Paused(_), None) => ServerState::Connecting,
            (Link::Unanswered(_) | Link::Answered(_), _) => ServerState::Ready,
            // As gRPC's pick_first does, it stays in this state until a connection is READY (A62).
            (Link::Idle | Link::Opening(_) | Link::Paused(_), Some(_)) => ServerState::TransientFailure,
        }
    }
}
