//! A connection as its streams know it: they are told when it has to go, and may have it cut.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::event::ConnectionId;

/// A connection as its streams know it.
#[derive(Clone, Debug)]
pub(super) struct Carrier {
    pub(super) id: ConnectionId,
    pub(super) peer: SocketAddr,
    order: Arc<watch::Sender<Order>>,
}

/// What is to become of a connection and of the streams on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Stay,
    /// It has been told that nothing more is welcome on it; its streams end.
    Leave(Leave),
    /// It is closed at once.
    Cut,
}

/// Why a connection is sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It is old, and the next one may lead to another replica (FB-35).
    Age,
    /// The server stops (FB-36).
    Drain,
}

impl Carrier {
    pub(super) fn new(id: ConnectionId, peer: SocketAddr) -> Self {
        Self { id, peer, order: Arc::new(watch::Sender::new(Order::Stay)) }
    }

    /// The orders of this connection, now and from now on.
    pub(super) fn orders(&self) -> watch::Receiver<Order> {
        self.order.subscribe()
    }

    /// Ends the streams on the connection, which was told that nothing more is welcome.
    pub(super) fn leave(&self, why: Leave) {
        self.order.send_replace(Order::Leave(why));
    }

    /// Closes the connection at once: whoever is at its other end does not read.
    pub(super) fn cut(&self) {
        self.order.send_replace(Order::Cut);
    }
}
