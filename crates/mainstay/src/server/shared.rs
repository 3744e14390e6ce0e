//! What all parts of a server share.

use std::net::SocketAddr;

use super::plan::Plan;
use crate::channelz_node::ChannelzNode;
use crate::event::{Event, EventSource};
use crate::serving_state::ServingState;
use crate::telemetry::ServerObserver;

/// What connections, listeners and the driver of a server share.
pub(crate) struct ServerShared {
    pub(super) plan: Plan,
    /// Counts RPCs and keeps what happened, for channelz.
    pub(crate) node: ChannelzNode,
    pub(super) observer: ServerObserver,
    pub(super) events: EventSource,
}

impl ServerShared {
    pub(super) fn new(plan: Plan) -> Self {
        let observer = ServerObserver::new(plan.client.telemetry.as_ref());
        Self { node: ChannelzNode::new(), observer, events: EventSource::new(), plan }
    }

    pub(super) fn tell(&self, address: SocketAddr, state: &ServingState) {
        self.node.note_event(!state.is_serving(), format!("{address}: {state}"));
        self.events.send_event(Event::ServingStateChanged { address, state: state.clone() });
    }

    pub(super) fn tell_unmatched(&self, address: SocketAddr, connections: u64) {
        self.node.note_event(true, format!("{address}: {connections} connections without a filter chain so far"));
        self.events.send_event(Event::Unmatched { address, connections });
    }
}
