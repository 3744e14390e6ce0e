//! A server that runs, as its owner sees it.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_channel::mpsc::unbounded;
use mainstay_xds::target::ServerListenerError;
use tokio::runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::error::ServeError;
use super::handle::ServerHandle;
use super::handlers::Handlers;
use super::hub::ServerHub;
use super::listener::Listener;
use super::member::Member;
use super::plan::Plan;
use super::port::{ListenerTask, Port};
use super::shared::ServerShared;
use super::socket::BoundSocket;
use crate::event::Events;
use crate::serving_state::ServingStates;
use crate::task::Task;
use crate::view::{ListenerView, ServerView};

/// A server that runs in the background, from [`ServerBuilder::start`](crate::ServerBuilder::start).
///
/// Dropping it ends the server at once, with all RPCs. [`Running::shutdown`] lets them finish.
pub struct Running {
    server: Arc<ServerHandle>,
    hub: Arc<ServerHub>,
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
        let hub = ServerHub::of(&shared.plan.client, runtime);
        let (alive, ended) = mpsc::channel(1);
        let (mut ports, mut tasks) = (Vec::new(), Vec::new());
        for address in &requested {
            let (local, port) = if shared.plan.bind {
                let bound = BoundSocket::bind(*address).and_then(|socket| Ok((socket.address()?, socket)));
                let (local, socket) = bound.map_err(|error| ServeError::Bind(*address, error))?;
                (local, Port::Bound(socket))
            } else {
                (*address, Port::Imagined)
            };
            shared.plan.client.bootstrap.server_listener_name(local).map_err(|error| match error {
                ServerListenerError::NoTemplate => ServeError::NoTemplate,
                other => ServeError::ListenerName(local, other.to_string()),
            })?;
            let listener = Arc::new(Listener::new(local, shared.clone()));
            let (order, ordered) = unbounded();
            tasks.push(ListenerTask {
                listener: listener.clone(),
                handlers: handlers.clone(),
                port,
                orders: ordered,
                answers: hub.answers.clone(),
                handshakes: handshakes.clone(),
                connections: JoinSet::new(),
                closing: false,
                _alive: alive.clone(),
            });
            ports.push((listener, order));
        }
        let listeners = ports.iter().map(|(listener, _)| listener.clone()).collect();
        let server = Arc::new(ServerHandle { shared: shared.clone(), listeners });
        server.show();
        let (shutdown, shut_down) = watch::channel(false);
        let task = runtime.spawn(run(hub.clone(), Member::new(shared, ports), tasks, ended, shut_down));
        Ok(Self { server, hub, requested, shutdown, task: Some(task) })
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

    /// Returns what the server has been told: its Listeners, their serving states, and every resource with its source. Servers
    /// with one bootstrap share a client, and the resources are those of all of them.
    ///
    /// Returns `None` if the server is ending.
    pub async fn config(&self) -> Option<ServerView> {
        let status = self.hub.status().await?;
        let listener = |listener: &Arc<Listener>| ListenerView {
            address: listener.address,
            // There is one, or the server would not have been started.
            name: self
                .server
                .shared
                .plan
                .client
                .bootstrap
                .server_listener_name(listener.address)
                .map_or_else(|_| String::new(), |name| name.to_string()),
            state: listener.states.borrow().clone(),
        };
        Some(ServerView::of(self.server.listeners.iter().map(listener).collect(), &status))
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

/// Runs a server until it has been shut down and has no connections left. Dropping the future ends everything.
async fn run(
    hub: Arc<ServerHub>,
    member: Member,
    tasks: Vec<ListenerTask>,
    mut ended: mpsc::Receiver<Infallible>,
    mut shut_down: watch::Receiver<bool>,
) {
    let _tasks: Vec<_> = tasks.into_iter().map(|task| Task::spawn(task.run())).collect();
    let membership = hub.join(member);
    // Nobody is left to want it when the server is dropped: then whoever runs us ends us.
    if shut_down.wait_for(|wanted| *wanted).await.is_ok() {
        membership.shut_down();
    }
    // Closed when the last task has ended.
    let _ = ended.recv().await;
}
