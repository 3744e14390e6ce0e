//! One address of a server: what it serves, and in which state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use super::generation::Generation;
use super::nodes::ListenerNode;
use super::shared::ServerShared;
use crate::guard;
use crate::serving_state::ServingState;

/// What the task of an address, its connections, the driver and those who look at the server share.
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    /// What new connections are served by.
    pub(super) serving: ArcSwapOption<Generation>,
    pub(super) states: watch::Sender<ServingState>,
    pub(crate) node: ListenerNode,
    pub(super) server: Arc<ServerShared>,
    /// Connections that no filter chain was for.
    unmatched: AtomicU64,
}

impl Listener {
    pub(super) fn new(address: SocketAddr, server: Arc<ServerShared>) -> Self {
        let state = ServingState::not_serving("no configuration yet");
        Self {
            address,
            serving: ArcSwapOption::empty(),
            states: watch::Sender::new(state),
            node: ListenerNode::new(),
            server,
            unmatched: AtomicU64::new(0),
        }
    }

    /// New connections are not served by this any more.
    pub(super) fn retire(&self, generation: &Arc<Generation>) {
        if self.serving.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, generation)) {
            self.serving.store(None);
        }
    }

    /// Tells the state to the application, or else to the log (SV-13, S-11).
    pub(super) fn tell(&self, state: ServingState) {
        // A driver that is started again may find what was told before.
        if *self.states.borrow() == state {
            return;
        }
        let (address, is_first) = (self.address, self.node.note_told());
        self.server.tell(address, &state);
        match (&self.server.plan.on_state, &state) {
            (Some(on_state), _) => guard::shielded("on_serving_state", || on_state(address, &state)),
            (None, ServingState::NotServing { reason }) => tracing::warn!(%address, reason, "not serving"),
            (None, ServingState::Serving) if is_first => tracing::info!(%address, "serving"),
            (None, ServingState::Serving) => tracing::warn!(%address, "serving again"),
        }
        self.states.send_replace(state);
    }

    /// Counts a connection that no filter chain is for. Not each is told of: scanners would flood those who listen (SV-19).
    pub(super) fn note_unmatched(&self) {
        let count = self.unmatched.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            self.server.tell_unmatched(self.address, count);
        }
    }
}
