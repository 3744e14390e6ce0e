//! What all parts of a server share, and the servers of the process.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_channel::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::listener::Listener;
use super::plan::Plan;
use super::state::ServingState;
use crate::channelz_node::ChannelzNode;
use crate::event::{Event, EventSource};
use crate::process::{self, Kind, Table};
use crate::telemetry::ServerObserver;
use crate::xds_status::XdsStatus;

/// What connections, listeners and the driver of a server share.
pub(crate) struct ServerShared {
    pub(super) plan: Plan,
    /// Counts RPCs and keeps what happened, for channelz.
    pub(crate) node: ChannelzNode,
    pub(super) observer: ServerObserver,
    pub(super) events: EventSource,
}

/// A server that runs.
pub(crate) struct ServerHandle {
    pub(crate) shared: Arc<ServerShared>,
    pub(crate) listeners: Vec<Arc<Listener>>,
    /// Where commands to the present driver go.
    pub(super) commands: ArcSwap<UnboundedSender<Command>>,
}

/// A command to the driver.
pub(super) enum Command {
    /// Tell how your client is doing.
    Status(oneshot::Sender<XdsStatus>),
}

/// Every server of the process.
#[derive(Default)]
struct Servers(Vec<Weak<ServerHandle>>);

impl Table for Servers {
    const KIND: Kind = Kind::Servers;
}

// === impl ServerShared ===

impl ServerShared {
    pub(super) fn new(plan: Plan) -> Self {
        let observer = ServerObserver::new(plan.telemetry.as_ref());
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

// === impl ServerHandle ===

impl ServerHandle {
    /// Lets those who look at the process see it.
    pub(super) fn show(self: &Arc<Self>) {
        let Servers(servers) = &mut *process::table();
        servers.retain(|server| server.strong_count() > 0);
        servers.push(Arc::downgrade(self));
    }

    /// The servers of the process that run, by ascending id.
    pub(crate) fn all() -> Vec<Arc<Self>> {
        let mut running: Vec<_> = process::table::<Servers>().0.iter().filter_map(Weak::upgrade).collect();
        running.sort_by_key(|server| server.shared.node.counters.id);
        running
    }

    /// How the XdsClient of each running server is doing. None is waited for long: a runtime that nobody drives answers
    /// nothing.
    pub(crate) async fn statuses() -> Vec<XdsStatus> {
        let asked = Self::all().into_iter().map(|server| {
            let (answer, answered) = oneshot::channel();
            // A driver that is being started again says nothing of what is over.
            let _ = server.commands.load().unbounded_send(Command::Status(answer));
            async move { tokio::time::timeout(STATUS_TIMEOUT, answered).await.ok()?.ok() }
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }
}

/// A driver answers in microseconds; one that is very busy, in milliseconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
