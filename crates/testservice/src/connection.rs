//! Accepted connections that are counted and can be cut from outside.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// The connections of one listener, as tonic's server wants them.
#[derive(Debug)]
pub(crate) struct Incoming {
    listener: TcpListener,
    open: Arc<AtomicUsize>,
    cut: watch::Receiver<()>,
}

impl Incoming {
    /// Accepts on `listener`, counts in `open`, and cuts every connection when the sender of `cut` is dropped.
    pub(crate) fn new(listener: TcpListener, open: Arc<AtomicUsize>, cut: watch::Receiver<()>) -> Self {
        Self { listener, open, cut }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.listener.poll_accept(cx).map(|accepted| Some(accepted.and_then(|(tcp, _)| Connection::new(tcp, &self))))
    }
}

/// One accepted connection.
pub(crate) struct Connection {
    tcp: TcpStream,
    /// Ends when the connection shall die; until then it only holds the wakers.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    open: Arc<AtomicUsize>,
}

impl Connection {
    fn new(tcp: TcpStream, incoming: &Incoming) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let mut cut = incoming.cut.clone();
        let open = Arc::clone(&incoming.open);
        open.fetch_add(1, Ordering::Relaxed);
        Ok(Self { tcp, cut: Box::pin(async move { while cut.changed().await.is_ok() {} }), open })
    }

    /// An error once the connection is cut. Only the reading side asks: hyper always reads, and one waker is enough.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                // A finished future must not be polled again.
                self.cut = Box::pin(std::future::ready(()));
                Err(io::ErrorKind::ConnectionAborted.into())
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.tcp.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
