//! A test service on a port: begun, killed, stopped, brought back.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    net::{TcpListener, TcpSocket, ToSocketAddrs},
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tonic::transport::{Server, ServerTlsConfig};

use crate::{connection::Incoming, proto::test_service_server::TestServiceServer, service::Service};

/// A server of `grpc.testing.TestService`. Dropping it kills it.
#[derive(Debug)]
pub struct Backend {
    addr: SocketAddr,
    service: Service,
    tls: Option<ServerTlsConfig>,
    open: Arc<AtomicUsize>,
    port: Port,
    running: Option<Running>,
}

impl Backend {
    /// Starts a backend in plaintext. With port 0 the system chooses the port, which then stays reserved for this
    /// backend as long as the value lives, also while it is stopped.
    pub async fn spawn(addr: impl ToSocketAddrs, id: &str) -> io::Result<Self> {
        Self::builder(id).spawn(addr).await
    }

    /// A backend with more settings.
    pub fn builder(id: &str) -> Builder {
        Builder { id: id.to_owned(), hostname: None, tls: None }
    }

    /// Kills it as the end of its process would: the port is closed, every connection is cut in mid-call.
    /// When this returns, nothing of it is left. A stopped backend stays stopped.
    pub async fn stop(&mut self) {
        if let Some(Running { cut, shutdown, serving }) = self.running.take() {
            drop((cut, shutdown));
            // The only error would be a panic, which has been printed.
            let _ = serving.await;
        }
    }

    /// Stops it gracefully: the port is closed, callers are told to go away, calls under way are finished first.
    /// Dropping the future ends the patience: what is then still open is cut.
    pub async fn stop_gracefully(&mut self) {
        if let Some(Running { cut, shutdown, serving }) = self.running.take() {
            drop(shutdown);
            let _ = serving.await;
            drop(cut);
        }
    }

    /// Brings it back on the same port, after killing it if it still runs. The counter of requests goes on.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.stop().await;
        self.start()
    }

    /// Where it listens (or listened, while it is stopped).
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it answers as `server_id`.
    pub fn id(&self) -> &str {
        self.service.id()
    }

    /// What it answers as `hostname`.
    pub fn hostname(&self) -> &str {
        self.service.hostname()
    }

    /// Whether it serves.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// How many calls it has been sent since it was spawned.
    pub fn requests(&self) -> u64 {
        self.service.requests()
    }

    /// How many connections are open to it.
    pub fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn start(&mut self) -> io::Result<()> {
        let mut server = Server::builder();
        if let Some(tls) = &self.tls {
            server = server.tls_config(tls.clone()).map_err(io::Error::other)?;
        }
        let router = server.add_service(TestServiceServer::new(self.service.clone()));
        let listener = self.port.listen(self.addr)?;
        let (cut, when_cut) = watch::channel(());
        let (shutdown, when_shut_down) = oneshot::channel::<()>();
        let incoming = Incoming::new(listener, Arc::clone(&self.open), when_cut);
        let serving = tokio::spawn(async move {
            let shut_down = async {
                // Both a word and a dropped sender mean: stop.
                let _ = when_shut_down.await;
            };
            // tonic reports only errors of making services here, and ours cannot fail.
            let _ = router.serve_with_incoming_shutdown(incoming, shut_down).await;
        });
        self.running = Some(Running { cut, shutdown, serving });
        Ok(())
    }
}

/// The settings of a backend that is not there yet.
#[derive(Clone, Debug)]
pub struct Builder {
    id: String,
    hostname: Option<String>,
    tls: Option<ServerTlsConfig>,
}

impl Builder {
    /// What it answers as `hostname`; without this, the id.
    pub fn hostname(mut self, hostname: &str) -> Self {
        self.hostname = Some(hostname.to_owned());
        self
    }

    /// Serves TLS instead of plaintext.
    pub fn tls(mut self, tls: ServerTlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Starts it; see [`Backend::spawn`].
    pub async fn spawn(self, addr: impl ToSocketAddrs) -> io::Result<Backend> {
        let hostname = self.hostname.as_deref().unwrap_or(&self.id);
        let service = Service::new(&self.id, hostname).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{hostname:?} cannot be a host name: not visible ASCII"),
            )
        })?;
        let addr = tokio::net::lookup_host(addr).await?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let (addr, port) = Port::choose(addr)?;
        let mut backend = Backend { addr, service, tls: self.tls, open: Arc::default(), port, running: None };
        backend.start()?;
        Ok(backend)
    }
}

/// What is held while the backend runs. Dropping `shutdown` ends the accepting, dropping `cut` ends the connections.
#[derive(Debug)]
struct Running {
    cut: watch::Sender<()>,
    shutdown: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

/// How the port is kept for the backend while nothing listens on it.
#[derive(Debug)]
enum Port {
    /// Chosen by the caller. Exclusive, so that a second backend on it is an error.
    Fixed,
    /// Chosen by the system. A bound socket that never listens keeps others from being given the same one.
    Reserved { _holder: TcpSocket },
}

impl Port {
    fn choose(addr: SocketAddr) -> io::Result<(SocketAddr, Self)> {
        if addr.port() != 0 {
            return Ok((addr, Self::Fixed));
        }
        let holder = socket(addr, true)?;
        Ok((holder.local_addr()?, Self::Reserved { _holder: holder }))
    }

    fn listen(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        socket(addr, matches!(self, Self::Reserved { .. }))?.listen(BACKLOG)
    }
}

fn socket(addr: SocketAddr, shared: bool) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of the previous life may linger in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    #[cfg(unix)]
    socket.set_reuseport(shared)?;
    #[cfg(not(unix))]
    if shared {
        return Err(io::ErrorKind::Unsupported.into()); // Only SO_REUSEPORT keeps a port without listening on it.
    }
    socket.bind(addr)?;
    Ok(socket)
}

const BACKLOG: u32 = 1024;
