//! A port that is bound before it listens, so that it is ours while a connect to it is refused.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

/// A socket that is bound and does not listen.
#[derive(Debug)]
pub(super) struct BoundSocket(Socket);

impl BoundSocket {
    /// Binds `address`. Port 0 stands for any that is free.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        if address.port() != 0 {
            share(&socket)?;
        }
        socket.bind(&address.into())?;
        if address.port() == 0 {
            // Not before: the system would be free to choose a port that somebody else shares.
            share(&socket)?;
        }
        Ok(Self(socket))
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Lets connections in.
    pub(super) fn listen(self) -> io::Result<TcpListener> {
        self.0.listen(BACKLOG)?;
        TcpListener::from_std(self.0.into())
    }
}

/// Lets us bind the port again while connections that we accepted on it, now or in a former life, live on. On Windows the
/// same option would let anybody take the port away, and is not needed.
fn share(socket: &Socket) -> io::Result<()> {
    if cfg!(unix) { socket.set_reuse_address(true) } else { Ok(()) }
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// SV-7, SV-8, SV-9.
    #[tokio::test]
    async fn a_bound_port_is_ours_and_refuses_until_it_listens() {
        let socket = BoundSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.address().unwrap();
        assert_ne!(address.port(), 0);
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(std::net::UdpSocket::bind(address).map(drop).ok(), Some(()), "only TCP");

        let listener = socket.listen().unwrap();
        let mut connected = TcpStream::connect(address).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let taken = BoundSocket::bind(address).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "somebody listens there");

        drop(listener);
        let again = BoundSocket::bind(address).unwrap();
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = again.listen().unwrap();
        TcpStream::connect(address).await.unwrap();
        listener.accept().await.unwrap();
        accepted.writable().await.unwrap();
        connected.set_nodelay(true).unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut connected, b"still here").await.unwrap();
        accepted.readable().await.unwrap();
    }
}
