//! What an XdsClient shows of itself to those who look: views, CSDS, channelz.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use envoy_types::pb::envoy::config::core::v3::Node;
use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{ResourceStatus, ServerStatus, XdsClient};
use tokio::time::Instant;

use crate::ads::{AdsStreams, StreamInput};
use crate::channelz_node::ChannelzNode;
use crate::last_good::Store;

/// How the XdsClient of a channel or of a server is doing.
pub(crate) struct XdsStatus {
    /// Whose it is: the target of a channel, or `#server` (C-2).
    pub(crate) scope: Arc<str>,
    pub(crate) node: Node,
    pub(crate) resources: Vec<ResourceStatus>,
    pub(crate) servers: Vec<ServerStatus>,
    /// The channelz nodes of the servers in use.
    pub(crate) server_nodes: HashMap<Arc<ServerConfig>, Arc<ChannelzNode>>,
    /// Its last-good files.
    pub(crate) last_good: Option<Arc<Store>>,
    /// When time began for the client, and how long it has lasted.
    pub(crate) start: std::time::Instant,
    pub(crate) now: Time,
}

impl XdsStatus {
    /// When a value that is served from a last-good file came from its server.
    pub(crate) fn received_at(&self, resource: &ResourceStatus) -> Option<SystemTime> {
        let value = resource.value.as_ref().filter(|value| value.provenance.server.is_last_good());
        self.last_good.as_ref().filter(|_| value.is_some())?.received_at(&resource.resource)
    }

    pub(crate) fn of<I: StreamInput>(
        scope: Arc<str>,
        client: &XdsClient,
        streams: &mut AdsStreams<I>,
        start: Instant,
    ) -> Self {
        let servers = client.server_states();
        streams.forget_idle(&servers);
        Self {
            scope,
            node: client.node(),
            resources: client.dump(),
            servers,
            server_nodes: streams.channelz(),
            last_good: streams.last_good().cloned(),
            start: start.into_std(),
            now: Time::from_start(start.elapsed()),
        }
    }
}
