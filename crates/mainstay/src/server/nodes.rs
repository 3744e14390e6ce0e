//! The channelz nodes of servers, of the ports that they listen on, and of the connections that they accepted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channelz_node::CallCounters;
use crate::process::new_id;
use crate::tls::TlsInfo;

/// The port of a server, as channelz shows it, with its connections.
#[derive(Debug)]
pub(crate) struct ListenerNode {
    pub(crate) id: i64,
    sockets: Mutex<BTreeMap<i64, Arc<SocketNode>>>,
    /// Whether a state has been told yet.
    told: AtomicBool,
}

/// A connection of a server, as channelz shows it. Its handshake is done.
#[derive(Debug)]
pub(crate) struct SocketNode {
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) tls: Option<Arc<TlsInfo>>,
}

/// Keeps a connection in sight as long as it lives.
pub(super) struct Shown<'a> {
    listener: &'a ListenerNode,
    id: i64,
}

impl ListenerNode {
    pub(super) fn new() -> Self {
        Self { id: new_id(), sockets: Mutex::default(), told: AtomicBool::new(false) }
    }

    /// Notes that a state is told. Whether it is the first.
    pub(super) fn note_told(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    pub(super) fn show(&self, socket: Arc<SocketNode>) -> Shown<'_> {
        let id = socket.counters.id;
        self.lock().insert(id, socket);
        Shown { listener: self, id }
    }

    /// The connections, by ascending id.
    pub(crate) fn sockets(&self) -> Vec<Arc<SocketNode>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, Arc<SocketNode>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.listener.lock().remove(&self.id);
    }
}
