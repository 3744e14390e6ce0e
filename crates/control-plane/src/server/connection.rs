//! A connection that can be frozen and cut from outside, and TLS on it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;

use crate::event::{ConnectionId, Event};
use crate::faults::FaultState;
use crate::server::listener::Stream;
use crate::server::{Life, Shared};

/// A connection of one generation of a server.
pub(super) struct Connection {
    id: ConnectionId,
    stream: Box<dyn Stream>,
    peer: SocketAddr,
    shared: Arc<Shared>,
    generation: u64,
    gate: Gate,
    gate_change: Pin<Box<dyn Future<Output = Signals> + Send>>,
}

/// Whether bytes pass.
#[derive(Clone, Copy)]
enum Gate {
    Open,
    Frozen,
    Cut,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Stream>, peer: SocketAddr, shared: Arc<Shared>, generation: u64) -> Self {
        let id = shared.journal.next_connection();
        shared.journal.record(Event::ConnectionOpened { connection: id, peer });
        let mut signals = Signals { life: shared.life.subscribe(), faults: shared.faults.subscribe() };
        let gate = signals.gate(generation);
        Self { id, stream, peer, shared, generation, gate, gate_change: Box::pin(signals.changed()) }
    }

    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Ready when bytes may pass, an error when the connection is cut, pending while it is frozen.
    fn poll_gate(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Poll::Ready(mut signals) = self.gate_change.as_mut().poll(cx) {
            self.gate = signals.gate(self.generation);
            self.gate_change = Box::pin(signals.changed());
        }
        match self.gate {
            Gate::Open => Poll::Ready(Ok(())),
            Gate::Frozen => Poll::Pending,
            Gate::Cut => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.journal.record(Event::ConnectionClosed { connection: self.id });
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx))?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_gate(cx))?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_gate(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gate(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection as the HTTP/2 server sees it.
#[derive(Debug)]
pub(super) enum Secured {
    Plaintext(Connection),
    Tls(Box<TlsStream<Connection>>),
}

impl Secured {
    pub(super) fn id(&self) -> ConnectionId {
        self.connection().id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.connection().peer
    }

    fn connection(&self) -> &Connection {
        match self {
            Self::Plaintext(connection) => connection,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut (dyn Stream + 'static)> {
        match self.get_mut() {
            Self::Plaintext(connection) => Pin::new(connection),
            Self::Tls(stream) => Pin::new(&mut **stream),
        }
    }
}

impl AsyncRead for Secured {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plaintext(connection) => connection.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Whatever can freeze or cut a connection.
struct Signals {
    life: watch::Receiver<Life>,
    faults: watch::Receiver<FaultState>,
}

impl Signals {
    fn gate(&mut self, generation: u64) -> Gate {
        let is_cut = self.life.borrow_and_update().is_cut(generation);
        let is_frozen = self.faults.borrow_and_update().black_hole;
        match (is_cut, is_frozen) {
            (true, _) => Gate::Cut,
            (false, true) => Gate::Frozen,
            (false, false) => Gate::Open,
        }
    }

    async fn changed(mut self) -> Self {
        // The senders live at least as long as the connection, so an error cannot come; it would mean a busy loop.
        let changed = tokio::select! {
            changed = self.life.changed() => changed,
            changed = self.faults.changed() => changed,
        };
        match changed {
            Ok(()) => self,
            Err(_) => std::future::pending().await,
        }
    }
}
