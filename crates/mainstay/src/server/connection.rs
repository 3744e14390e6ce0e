//! One connection, from its first byte to its last: filter chain, TLS, HTTP/2, drain.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::generation::{Chain, Drains};
use super::handlers::Handlers;
use super::limits::Limits;
use super::listener::Listener;
use super::nodes::SocketNode;
use super::rpc::{CallerIdentity, ConnectionFacts, RpcService};
use super::security::Secured;
use crate::channelz_node::CallCounters;
use crate::peer::Peer;
use crate::transport::Stream;

/// A connection that has its filter chain.
struct Connection {
    listener: Arc<Listener>,
    chain: Arc<Chain>,
    local: SocketAddr,
    peer: SocketAddr,
    /// For the handshake.
    deadline: Instant,
    drains: Drains,
}

/// Serves a connection until it ends. Dropping the future ends it at once.
pub(super) async fn serve(
    listener: Arc<Listener>,
    stream: TcpStream,
    peer: SocketAddr,
    handlers: Handlers,
    permit: OwnedSemaphorePermit,
) {
    let Ok(local) = stream.local_addr() else { return };
    let (local, peer) = (canonical(local), canonical(peer));
    // It fails if the peer is gone, which shows soon enough.
    let _ = stream.set_nodelay(true);
    // Loaded once: what comes after it is for other connections, and drains this one (SV-6).
    let Some(generation) = listener.serving.load_full() else { return };
    let Some((chain, security)) = generation.admit(local, peer) else {
        // Scanners would flood the log (SV-19).
        tracing::debug!(%local, %peer, "no filter chain for a connection, which is closed");
        return listener.note_unmatched();
    };
    let deadline = Instant::now() + listener.server.plan.limits.handshake_timeout;
    let connection = Connection { chain, local, peer, deadline, drains: generation.drains(), listener };
    drop(generation);
    match security.accept(stream, deadline, &connection.listener.server.observer).await {
        Ok(secured) => {
            drop(permit);
            connection.run(secured, handlers).await;
        }
        Err(error) => tracing::debug!(%local, %peer, %error, "a connection is refused"),
    }
}

impl Connection {
    /// Speaks HTTP/2.
    async fn run(mut self, secured: Secured, handlers: Handlers) {
        let Secured { stream, tls, info } = secured;
        let caller = match CallerIdentity::of(tls.as_deref()) {
            Ok(caller) => caller,
            Err(error) => {
                return tracing::debug!(peer = %self.peer, %error, "the certificate of a caller has no names to go by");
            }
        };
        let socket = Arc::new(SocketNode {
            counters: CallCounters::new(),
            local: self.local,
            remote: self.peer,
            tls: tls.clone(),
        });
        let _shown = self.listener.node.show(socket.clone());
        let facts = ConnectionFacts {
            peer: Peer::caller(self.peer, self.chain.name.clone(), tls),
            local: self.local,
            caller,
            chain: self.chain,
            info,
            socket,
            server: self.listener.server.clone(),
        };
        let (stream, greeted) = Greeting::over(stream);
        let service = RpcService::new(facts, handlers);
        let mut connection =
            pin!(builder(&self.listener.server.plan.limits).serve_connection(TokioIo::new(stream), service));
        let silent = async {
            // Whoever speaks HTTP/2 may be quiet for as long as it likes.
            if tokio::time::timeout_at(self.deadline, greeted).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        let drain = tokio::select! {
            ended = connection.as_mut() => return log_end(self.peer, ended),
            drain = self.drains.begun() => drain,
            () = silent => return tracing::debug!(peer = %self.peer, "a connection does not begin to speak HTTP/2, and is closed"),
        };
        tokio::select! {
            ended = connection.as_mut() => return log_end(self.peer, ended),
            () = tokio::time::sleep_until(drain.goaway_at) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            ended = connection.as_mut() => log_end(self.peer, ended),
            // What is left is reset with the connection (SV-21).
            () = tokio::time::sleep_until(drain.until) => {
                tracing::debug!(peer = %self.peer, "a connection is not drained in time, and is closed");
            }
        }
    }
}

/// Callers that go away are nothing to speak of.
fn log_end(peer: SocketAddr, ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection broke");
    }
}

fn builder(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(limits.http2.stream_window)
        .initial_connection_window_size(limits.http2.connection_window)
        .max_header_list_size(limits.http2.max_header_list_size)
        .max_concurrent_streams(limits.max_concurrent_streams);
    if let Some(keep_alive) = limits.http2.keep_alive {
        builder.keep_alive_interval(keep_alive.interval).keep_alive_timeout(keep_alive.timeout);
    }
    builder
}

/// An IPv4 address as such, also if it came through a socket for both (SV-17).
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Notices that the other side has begun to speak HTTP/2.
struct Greeting {
    stream: Box<dyn Stream>,
    /// How many bytes are missing until it has.
    missing: usize,
    greeted: Option<oneshot::Sender<()>>,
}

/// What every client begins with, and the head of the frame that must follow (RFC 9113, section 3.4). A single byte is no word: who
/// sends no more would hold the connection for as long as it likes.
const FIRST_WORD: usize = 24 + 9;

impl Greeting {
    fn over(stream: Box<dyn Stream>) -> (Self, oneshot::Receiver<()>) {
        let (greeted, heard) = oneshot::channel();
        (Self { stream, missing: FIRST_WORD, greeted: Some(greeted) }, heard)
    }
}

impl AsyncRead for Greeting {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        self.missing = self.missing.saturating_sub(read);
        // An end is a word, too: HTTP/2 deals with it, as with bytes that are not its own.
        if (self.missing == 0 || read == 0)
            && let Some(greeted) = self.greeted.take()
        {
            let _ = greeted.send(());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Greeting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
