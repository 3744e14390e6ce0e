//! A server that speaks TLS exactly as a test wants, in front of a backend that speaks none.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustls::pki_types::CertificateDer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Takes TLS off the connections to a backend.
pub(super) struct Terminator {
    pub(super) address: SocketAddr,
    clients: Arc<Mutex<Vec<Option<CertificateDer<'static>>>>>,
}

impl Terminator {
    pub(super) async fn start(config: rustls::ServerConfig, backend: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let clients = Arc::new(Mutex::new(Vec::new()));
        let (acceptor, seen) = (tokio_rustls::TlsAcceptor::from(Arc::new(config)), clients.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(terminate(acceptor.clone(), stream, backend, seen.clone()));
            }
        });
        Self { address, clients }
    }

    /// The certificates of the clients so far, in the order in which they came.
    pub(super) fn clients(&self) -> Vec<Option<CertificateDer<'static>>> {
        self.clients.lock().unwrap().clone()
    }
}

async fn terminate(
    acceptor: tokio_rustls::TlsAcceptor,
    stream: TcpStream,
    backend: SocketAddr,
    seen: Arc<Mutex<Vec<Option<CertificateDer<'static>>>>>,
) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    seen.lock().unwrap().push(certificate.map(|certificate| certificate.clone().into_owned()));
    if let Ok(mut backend) = TcpStream::connect(backend).await {
        // However it ends, both sides are closed with it.
        let _ = copy_bidirectional(&mut stream, &mut backend).await;
    }
}
