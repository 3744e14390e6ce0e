//! What a server has been told.

use std::net::SocketAddr;
use std::time::Instant;

use super::{Clock, ResourceStatus, ServerStatus, find};
use crate::names::ResourceType;
use crate::serving_state::ServingState;
use crate::xds_status::XdsStatus;

/// What a server has been told, at one point in time. From [`Running::config`](crate::Running::config).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerView {
    /// The id by which xDS servers know this client.
    pub node_id: String,
    /// The addresses of the server, in the order in which they were added.
    pub listeners: Vec<ListenerView>,
    /// Every resource that servers with this bootstrap subscribe to, by type and name.
    pub resources: Vec<ResourceStatus>,
    /// Every xDS server that they have needed so far.
    pub servers: Vec<ServerStatus>,
    /// When the view was taken.
    pub taken_at: Instant,
}

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerView {
    /// The local address.
    pub address: SocketAddr,
    /// The name of its Listener.
    pub name: String,
    /// Whether it is served.
    pub state: ServingState,
}

impl ServerView {
    /// Returns what is known of a resource, by its name as other resources write it; `None` if nobody subscribes to it.
    pub fn resource(&self, resource_type: ResourceType, name: &str) -> Option<&ResourceStatus> {
        find(&self.resources, resource_type, name)
    }

    pub(crate) fn of(listeners: Vec<ListenerView>, status: &XdsStatus) -> Self {
        let clock = Clock { start: status.start };
        Self {
            node_id: status.node.id.clone(),
            listeners,
            resources: status.resources.iter().map(|r| ResourceStatus::of(r, status.received_at(r), clock)).collect(),
            servers: status.servers.iter().map(ServerStatus::of).collect(),
            taken_at: clock.at(status.now),
        }
    }
}
