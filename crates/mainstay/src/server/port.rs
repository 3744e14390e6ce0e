//! The port of an address, and the task that accepts connections there.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender};
use futures_util::StreamExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::connection;
use super::handlers::Handlers;
use super::listener::Listener;
use super::socket::BoundSocket;
use crate::guard;

/// What the task of an address is told, in order.
pub(super) enum Order {
    /// Let connections in. Answered.
    Listen,
    /// Refuse connections, and keep the port. Answered.
    StopListening,
    /// Give the port up, and end when the last connection has.
    Close,
}

/// The answer to an order: of which port, by the id that channelz has for it.
pub(super) type Answer = (i64, Result<(), String>);

/// The task of an address. Dropping it closes the port and every connection.
pub(super) struct ListenerTask {
    pub(super) listener: Arc<Listener>,
    pub(super) handlers: Handlers,
    pub(super) port: Port,
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) answers: UnboundedSender<Answer>,
    /// Room for handshakes, for all addresses of the server (SV-24).
    pub(super) handshakes: Arc<Semaphore>,
    pub(super) connections: JoinSet<()>,
    pub(super) closing: bool,
    /// Dropped with the task, which whoever waits for its end notices.
    pub(super) _alive: mpsc::Sender<Infallible>,
}

/// The port of an address. While it is bound the system refuses connections for us (SV-7).
pub(super) enum Port {
    Bound(BoundSocket),
    Listening(TcpListener),
    /// Of a server that is only looked at: there is none, and nobody comes.
    Imagined,
    /// Nothing is ours, because the system does not give it to us or because we do not want it any more.
    None,
}

impl ListenerTask {
    /// Runs until it is told to close and has no connections, or until nobody is left to tell it anything.
    pub(super) async fn run(mut self) {
        while let Err(panic) = guard::caught(self.serve()).await {
            tracing::error!(address = %self.listener.address, %panic, "a listener panicked, and goes on");
        }
    }

    async fn serve(&mut self) {
        loop {
            if self.closing && self.connections.is_empty() {
                return;
            }
            tokio::select! {
                order = self.orders.next() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                (stream, peer, permit) = accept(&self.port, &self.handshakes) => self.begin(stream, peer, permit),
                Some(ended) = self.connections.join_next() => {
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        tracing::error!(address = %self.listener.address, %error, "a connection panicked");
                    }
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        let outcome = match order {
            Order::Listen => self.listen(),
            Order::StopListening => self.stop_listening(),
            Order::Close => {
                (self.port, self.closing) = (Port::None, true);
                return;
            }
        };
        // A server that is gone needs no answer.
        let _ = self.answers.unbounded_send((self.listener.node.id, outcome.map_err(|error| error.to_string())));
    }

    fn listen(&mut self) -> io::Result<()> {
        let socket = match std::mem::replace(&mut self.port, Port::None) {
            Port::Listening(listener) => {
                self.port = Port::Listening(listener);
                return Ok(());
            }
            Port::Imagined => {
                self.port = Port::Imagined;
                return Ok(());
            }
            Port::Bound(socket) => socket,
            Port::None => BoundSocket::bind(self.listener.address)?,
        };
        self.port = Port::Listening(socket.listen()?);
        Ok(())
    }

    /// SV-8.
    fn stop_listening(&mut self) -> io::Result<()> {
        if let Port::Bound(_) | Port::Imagined = self.port {
            return Ok(());
        }
        // First, as nobody gets a port on which somebody listens.
        self.port = Port::None;
        self.port = Port::Bound(BoundSocket::bind(self.listener.address)?);
        Ok(())
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        // Code of the application: layers are cloned.
        match guard::catch(|| self.handlers.clone()) {
            Ok(handlers) => {
                let listener = self.listener.clone();
                self.connections.spawn(connection::serve(listener, stream, peer, handlers, permit));
            }
            Err(panic) => tracing::error!(%panic, "a layer panicked when it was cloned for a connection"),
        }
    }
}

/// The next connection, with room for its handshake. Whatever goes wrong does not end it (SV-20).
async fn accept(port: &Port, room: &Arc<Semaphore>) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let Port::Listening(listener) = port else { return std::future::pending().await };
    // Nobody closes it.
    let Ok(permit) = room.clone().acquire_owned().await else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, permit),
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection, which is tried again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether a connection was given up before it was accepted.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// After a connection could not be accepted, as when there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
