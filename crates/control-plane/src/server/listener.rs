//! Where a server listens: a TCP port, or a socket in the file system.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A socket in the file system. It goes with the server.
    Unix(PathBuf),
}

/// What it is accepted from.
pub(super) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener),
}

/// The bytes of a connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Address {
    /// The TCP port; an unspecified one for a socket in the file system.
    pub(super) fn tcp(&self) -> SocketAddr {
        match self {
            Self::Tcp(address) => *address,
            Self::Unix(_) => NOWHERE,
        }
    }

    pub(super) fn listen(&self) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(bind(*address)?.listen(BACKLOG)?)),
            #[cfg(unix)]
            Self::Unix(path) => {
                // What a process left behind that ended without notice is nobody's; another server's is in use.
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(io::ErrorKind::AddrInUse.into());
                }
                self.remove();
                tokio::net::UnixListener::bind(path).map(Listener::Unix)
            }
            #[cfg(not(unix))]
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// A socket that is bound and does not listen, where there is such a thing.
    pub(super) fn reserve(&self) -> Option<TcpSocket> {
        match self {
            Self::Tcp(address) => bind(*address).ok(),
            Self::Unix(_) => None,
        }
    }

    /// Takes a socket out of the file system, so that clients find nobody.
    pub(super) fn remove(&self) {
        #[cfg(unix)]
        if let Self::Unix(path) = self
            && let Ok(metadata) = path.symlink_metadata()
            && std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
        {
            // If it cannot be removed, binding to it says so.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Listener {
    /// The next connection, and the client's end of it: an unspecified one if it has no name.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (tcp, peer) = listener.accept().await?;
                // Small messages, each awaited by the other side.
                let _ = tcp.set_nodelay(true);
                Ok((Box::new(tcp), peer))
            }
            #[cfg(unix)]
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), NOWHERE)),
        }
    }
}

pub(super) fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of an earlier life may linger in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// As many as may come in one moment; the system has a limit of its own (`net.core.somaxconn`).
const BACKLOG: u32 = 65_535;
