//! How resources and servers are doing.

use std::time::{Instant, SystemTime};

use bytes::Bytes;
use mainstay_xds::client;

use super::{Clock, ResourceError};
use crate::names::ResourceName;

/// What is known of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceStatus {
    /// The type and the name of the resource.
    pub resource: ResourceName,
    /// The state of the resource.
    pub state: ResourceState,
    /// The value in use, if there is one. It may be in use beside an error.
    pub value: Option<ResourceValue>,
    /// What is wrong with the resource, if the last answer was an error.
    pub error: Option<ResourceError>,
}

/// The value of a resource, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceValue {
    /// The URI of the server that sent it.
    pub server: String,
    /// The version of the response that it came with.
    pub version: String,
    /// When it was received; if it is from a last-good file, when that was from the server that sent it.
    pub received_at: Instant,
    /// The encoded protobuf message, as it was received.
    pub encoded: Bytes,
}

/// The states of a resource, as in `envoy.admin.v3.ClientResourceStatus` (gRFC A88).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ResourceState {
    /// The channel has asked for it and has received nothing yet.
    Requested,
    /// It was not sent in time, or the server deleted it.
    DoesNotExist,
    /// The last update was valid.
    Acked,
    /// The last update was rejected.
    Nacked,
    /// The server answered with an error.
    ReceivedError,
    /// It was not sent in time by a server for which that is a transient error.
    TimedOut,
}

/// How an xDS server is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// The URI of the server.
    pub server: String,
    /// The state of the connection to it.
    pub state: ServerState,
    /// Whether the stream to it is of the incremental variant of ADS.
    pub delta: bool,
    /// Why the server cannot be reached. Cleared by its next answer or sign of life, not by a connection alone.
    pub last_error: Option<String>,
}

/// The connectivity states of an xDS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ServerState {
    /// The channel does not need the server now.
    Idle,
    /// The channel connects to it.
    Connecting,
    /// The channel is connected and has a stream open.
    Ready,
    /// The last attempt to connect failed. The next one waits or is under way.
    TransientFailure,
}

impl ResourceStatus {
    /// `earlier` is when a value came that is served from a last-good file.
    pub(super) fn of(core: &client::ResourceStatus, earlier: Option<SystemTime>, clock: Clock) -> Self {
        let earlier = earlier.and_then(|at| Instant::now().checked_sub(at.elapsed().ok()?));
        Self {
            resource: ResourceName::of(&core.resource),
            state: ResourceState::of(core.state),
            value: core.value.as_ref().map(|value| ResourceValue {
                server: value.provenance.server.server_uri.clone(),
                version: value.provenance.version.to_string(),
                received_at: earlier.unwrap_or_else(|| clock.at(value.provenance.at)),
                encoded: value.bytes.clone(),
            }),
            error: core.error.as_ref().map(|error| ResourceError::of(error, clock)),
        }
    }
}

impl ResourceState {
    fn of(core: client::ResourceState) -> Self {
        match core {
            client::ResourceState::Requested => Self::Requested,
            client::ResourceState::DoesNotExist => Self::DoesNotExist,
            client::ResourceState::Acked => Self::Acked,
            client::ResourceState::Nacked => Self::Nacked,
            client::ResourceState::ReceivedError => Self::ReceivedError,
            client::ResourceState::TimedOut => Self::TimedOut,
        }
    }
}

impl ServerStatus {
    pub(super) fn of(core: &client::ServerStatus) -> Self {
        Self {
            server: core.server.server_uri.clone(),
            state: match core.state {
                client::ServerState::Idle => ServerState::Idle,
                client::ServerState::Connecting => ServerState::Connecting,
                client::ServerState::Ready => ServerState::Ready,
                client::ServerState::TransientFailure => ServerState::TransientFailure,
            },
            delta: core.protocol == Some(client::Protocol::Delta),
            last_error: core.last_error.as_ref().map(ToString::to_string),
        }
    }
}
