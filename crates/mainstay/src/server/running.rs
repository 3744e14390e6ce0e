//! A server that runs, as its owner sees it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_channel::mpsc::unbounded;
use mainstay_xds::serve::ListenerId;
use mainstay_xds::target::ServerListenerError;
use tokio::runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::error::ServeError;
use super::handle::ServerHandle;
use super::handlers::Handlers;
use super::listener::Listener;
use super::plan::Plan;
use super::port::{ListenerTask, Port};
use super::shared::ServerShared;
use super::socket::BoundSocket;
use super::supervisor::Supervisor;
use crate::event::Events;
use crate::serving_state::ServingStates;

/// A server that runs in the background, from [`ServerBuilder::start`](crate::ServerBuilder::start).
///
/// Dropping it ends the server at once, with all RPCs. [`Running::shutdown`] lets them finish.
pub struct Running {
    server: Arc<ServerHandle>,
    /// As they were asked for.
    requested: Vec<SocketAddr>,
    shutdown: watch::Sender<bool>,
    /// Gone when it has ended.
    task: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(
        plan: Plan,
        requested: Vec<SocketAddr>,
        handlers: Handlers,
        runtime: &runtime::Handle,
    ) -> Result<Self, ServeError> {
        let shared = Arc::new(ServerShared::new(plan));
        let handshakes = Arc::new(Semaphore::new(shared.plan.limits.max_handshakes.min(Semaphore::MAX_PERMITS)));
        let (answer, answers) = unbounded();
        let (alive, ended) = mpsc::channel(1);
        let (mut listeners, mut tasks, mut orders) = (Vec::new(), Vec::new(), Vec::new());
        for (address, id) in requested.iter().zip(0..) {
            let bound = BoundSocket::bind(*address).and_then(|socket| Ok((socket.address()?, socket)));
            let (local, socket) = bound.map_err(|error| ServeError::Bind(*address, error))?;
            shared.plan.bootstrap.server_listener_name(local).map_err(|error| match error {
                ServerListenerError::NoTemplate => ServeError::NoTemplate,
                other => ServeError::ListenerName(local, other.to_string()),
            })?;
            let listener = Arc::new(Listener::new(ListenerId(id), local, shared.clone()));
            let (order, ordered) = unbounded();
            tasks.push(ListenerTask {
                listener: listener.clone(),
                handlers: handlers.clone(),
                port: Port::Bound(socket),
                orders: ordered,
                answers: answer.clone(),
                handshakes: handshakes.clone(),
                connections: JoinSet::new(),
                closing: false,
                _alive: alive.clone(),
            });
            listeners.push(listener);
            orders.push(order);
        }
        // The first driver brings the other end.
        let commands = ArcSwap::from_pointee(unbounded().0);
        let server = Arc::new(ServerHandle { shared, listeners, commands });
        server.show();
        let (shutdown, shut_down) = watch::channel(false);
        let supervisor = Supervisor { server: server.clone(), orders, answers, ended, shut_down };
        let task = runtime.spawn(supervisor.run(tasks));
        Ok(Self { server, requested, shutdown, task: Some(task) })
    }

    /// Returns the addresses that the server listens on, in the order of [`ServerBuilder::listen`](crate::ServerBuilder::listen),
    /// with the ports that the system chose.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.server.listeners.iter().map(|listener| listener.address).collect()
    }

    /// Returns the serving state of an address, now and whenever it changes. The address is a local one or one as it was given
    /// to the builder. Returns `None` if the server does not have it.
    pub fn serving_state(&self, address: SocketAddr) -> Option<ServingStates> {
        let listeners = self.server.listeners.iter().zip(&self.requested);
        let mut of_address =
            listeners.filter(|(listener, requested)| [listener.address, **requested].contains(&address));
        of_address.next().map(|(listener, _)| ServingStates::new(listener.states.subscribe()))
    }

    /// Returns the events of the server from now on: what its xDS side does, and serving states.
    ///
    /// The first caller also hears what has happened since the server was started. See [`event`](crate::event).
    pub fn events(&self) -> Events {
        self.server.shared.events.listen()
    }

    /// Returns how many audit records for standard output were lost, because it did not take them in time. See
    /// [`ServerBuilder::audit_queue`](crate::ServerBuilder::audit_queue).
    pub fn lost_audit_records(&self) -> u64 {
        self.server.shared.plan.auditor.lost()
    }

    /// Stops listening, tells callers to go, waits until the last RPC is done or the
    /// [grace](crate::ServerBuilder::drain_grace) is over, and ends the server.
    pub async fn shutdown(mut self) {
        self.shutdown.send_replace(true);
        self.stopped().await;
        self.server.shared.plan.auditor.flush().await;
    }

    /// Waits until the server has ended, which it does not do by itself unless its tokio runtime ends.
    pub async fn stopped(&mut self) {
        if let Some(task) = &mut self.task {
            // It has no result, and its panics are caught.
            let _ = task.await;
            self.task = None;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("addresses", &self.local_addresses()).finish_non_exhaustive()
    }
}
