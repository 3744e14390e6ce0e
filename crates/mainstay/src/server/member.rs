//! The servers that one driver runs, and what it is told of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use tokio::sync::oneshot;

use super::listener::Listener;
use super::port::Order;
use super::shared::ServerShared;
use crate::xds_status::XdsStatus;

/// A server, as its driver knows it.
pub(super) struct Member {
    pub(super) server: Arc<ServerShared>,
    /// Its addresses, and the way to the task of each.
    pub(super) ports: Vec<(Arc<Listener>, UnboundedSender<Order>)>,
    /// Whether the application wants an end.
    closing: AtomicBool,
}

/// A command to the driver.
pub(super) enum Command {
    /// Serve the addresses of this server, too.
    Join(Arc<Member>),
    /// Let this server come to its end (SV-25).
    ShutDown(Arc<Member>),
    /// Forget this server.
    Leave(Arc<Member>),
    /// Tell how your client is doing.
    Status(oneshot::Sender<XdsStatus>),
}

/// The servers of one client, whichever driver runs it.
pub(super) struct Members(Mutex<Inner>);

struct Inner {
    members: Vec<Arc<Member>>,
    driver: UnboundedSender<Command>,
}

impl Member {
    pub(super) fn new(server: Arc<ServerShared>, ports: Vec<(Arc<Listener>, UnboundedSender<Order>)>) -> Self {
        Self { server, ports, closing: AtomicBool::new(false) }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

impl Members {
    pub(super) fn new() -> Self {
        // The first driver brings the other end.
        Self(Mutex::new(Inner { members: Vec::new(), driver: unbounded().0 }))
    }

    /// A new driver begins: with these servers, and with the commands that come from now on.
    pub(super) fn begin(&self) -> (Vec<Arc<Member>>, UnboundedReceiver<Command>) {
        let (driver, commands) = unbounded();
        let mut inner = self.lock();
        inner.driver = driver;
        (inner.members.clone(), commands)
    }

    pub(super) fn join(&self, member: &Arc<Member>) {
        let mut inner = self.lock();
        inner.members.push(member.clone());
        inner.tell(Command::Join(member.clone()));
    }

    pub(super) fn shut_down(&self, member: &Arc<Member>) {
        let inner = self.lock();
        member.closing.store(true, Ordering::Relaxed);
        inner.tell(Command::ShutDown(member.clone()));
    }

    pub(super) fn leave(&self, member: &Arc<Member>) {
        let mut inner = self.lock();
        inner.members.retain(|known| !Arc::ptr_eq(known, member));
        inner.tell(Command::Leave(member.clone()));
    }

    pub(super) fn ask_status(&self) -> oneshot::Receiver<XdsStatus> {
        let (answer, answered) = oneshot::channel();
        self.lock().tell(Command::Status(answer));
        answered
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn tell(&self, command: Command) {
        // Nobody listens between two drivers; the next one looks at the members.
        let _ = self.driver.unbounded_send(command);
    }
}
