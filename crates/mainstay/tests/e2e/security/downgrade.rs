//! Whatever goes wrong, no byte is sent in plaintext where TLS was asked for (TL-1): not even to a server that would
//! gladly take it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envoy_types::util::pack_any;
use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::certificates::{CertificateError, Certificates, Identity, Trust};
use mainstay::{Channel, Credentials};
use mainstay_control_plane::{Snapshot, resources};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tonic::Code;

use super::{Pki, Provided, mtls, upstream};
use crate::common::{Client, backends, call, call_within, control_plane, in_time};
use crate::no_downgrade::with_cluster;
use crate::pki::Authority;

/// At each address a server waits that answers in plaintext whoever speaks plaintext. To TLS it does what the row says.
#[tokio::test]
async fn no_fault_of_a_handshake_leads_to_plaintext() {
    let pki = Pki::new();
    let [plain] = backends(["plain"]).await;
    let mut no_alpn = pki.ca.serve_as(pki.ca.issue("service"));
    no_alpn.alpn_protocols = Vec::new();
    let mut http1 = pki.ca.serve_as(pki.ca.issue("service"));
    http1.alpn_protocols = vec![b"http/1.1".to_vec()];
    for (what, answer) in [
        ("closed at once", Answer::Close),
        ("an alert", Answer::Say(b"\x15\x03\x03\0\x02\x02\x28")),
        ("HTTP/1.1", Answer::Say(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
        ("HTTP/2 in plaintext", Answer::Say(b"\0\0\0\x04\0\0\0\0\0")),
        ("half a record", Answer::Say(b"\x16\x03\x03\x40\0\x02")),
        ("silence", Answer::Say(b"")),
        ("another authority", Answer::Tls(Arc::new(Authority::new().serve_as(Authority::new().issue("service"))))),
        ("another name", Answer::Tls(Arc::new(pki.ca.serve_as(pki.ca.issue("other"))))),
        ("no protocol", Answer::Tls(Arc::new(no_alpn))),
        ("another protocol", Answer::Tls(Arc::new(http1))),
        ("our certificate refused", Answer::Tls(Arc::new(pki.ca.server_config(Some(&Authority::new()))))),
    ] {
        let mut front = Front::start(answer, plain.addr()).await;
        let endpoints = resources::endpoints("service", [front.address]);
        let server = control_plane(with_cluster(pack_any(upstream(mtls(&["service"]))), endpoints)).await;
        let channel = pki.builder(&server).connect_timeout(Duration::from_millis(500)).build().unwrap();
        let mut client = Client::new(channel);
        for _ in 0..2 {
            let status = call(&mut client).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{what}: {status}");
            in_time(front.connected.recv()).await.expect("it was tried");
        }
        assert_eq!((front.plaintext(), plain.requests()), (0, 0), "{what}");
    }
    // It is the rule that keeps plaintext away, not the server.
    let front = Front::start(Answer::Close, plain.addr()).await;
    let unsecured = Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [front.address]));
    let server = control_plane(unsecured).await;
    assert_eq!(call(&mut pki.client(&server)).await.unwrap(), "plain");
    assert_eq!(front.plaintext(), 1);
}

/// Nor does anything that a certificate provider does.
#[tokio::test]
async fn no_fault_of_a_provider_leads_to_plaintext() {
    let pki = Pki::new();
    let [plain] = backends(["plain"]).await;
    let front = Front::start(Answer::Close, plain.addr()).await;
    let endpoints = resources::endpoints("service", [front.address]);
    let server = control_plane(with_cluster(pack_any(upstream(mtls(&["service"]))), endpoints)).await;
    let issued = pki.ca.issue("client");
    let identity = Identity::from_pem(issued.certificate_pem.as_bytes(), issued.key_pem.as_bytes()).unwrap();
    let trust = Trust::from_pem(pki.ca.pem().as_bytes()).unwrap();
    for (provided, expected) in [
        (Err(CertificateError::Pending), "not loaded yet"),
        (Err(CertificateError::Other("the agent is away".to_owned())), "the agent is away"),
        (Ok(Certificates::new(Some(identity), None)), "provides no roots"),
        (Ok(Certificates::new(None, Some(trust))), "provides no certificate of our own"),
        (Ok(Certificates::default()), "provides no"),
    ] {
        let bootstrap =
            Bootstrap::builder().node(Node::new("provided")).server(ServerConfig::insecure(server.addr().to_string()));
        let channel = Channel::builder("xds:///service")
            .bootstrap(bootstrap.build().unwrap())
            .credentials(Credentials::xds(Credentials::insecure()))
            .certificate_provider("files", Arc::new(Provided(watch::Sender::new(provided))))
            .connect_timeout(Duration::from_millis(100))
            .build()
            .unwrap();
        let status = call_within(&mut Client::new(channel), Duration::from_secs(5)).await.unwrap_err();
        assert!(status.code() == Code::Unavailable && status.message().contains(expected), "{expected}: {status}");
    }
    assert_eq!((front.plaintext(), plain.requests()), (0, 0));
}

/// What a server does to a client that begins a TLS handshake.
enum Answer {
    Close,
    Say(&'static [u8]),
    Tls(Arc<rustls::ServerConfig>),
}

/// A server that tells TLS from plaintext by the first byte, as a TLS inspector does.
struct Front {
    address: SocketAddr,
    /// One word per connection.
    connected: mpsc::UnboundedReceiver<()>,
    plaintext: Arc<AtomicUsize>,
}

impl Front {
    async fn start(answer: Answer, plain: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (connects, connected) = mpsc::unbounded_channel();
        let (plaintext, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
        let seen = plaintext.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = connects.send(());
                tokio::spawn(serve(stream, answer.clone(), plain, seen.clone()));
            }
        });
        Self { address, connected, plaintext }
    }

    /// How many connections brought a byte that was not TLS.
    fn plaintext(&self) -> usize {
        self.plaintext.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream, answer: Arc<Answer>, plain: SocketAddr, plaintext: Arc<AtomicUsize>) {
    let mut first = [0];
    if !matches!(stream.peek(&mut first).await, Ok(1)) {
        return;
    }
    if first != [HANDSHAKE] {
        plaintext.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut backend) = TcpStream::connect(plain).await {
            let _ = copy_bidirectional(&mut stream, &mut backend).await;
        }
        return;
    }
    match &*answer {
        Answer::Close => {}
        Answer::Say(text) => {
            let _ = stream.write_all(text).await;
            // Whatever comes after it is TLS, too: nobody changes his mind on a connection.
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said).await;
            if !is_tls(&said) {
                plaintext.fetch_add(1, Ordering::Relaxed);
            }
        }
        Answer::Tls(config) => {
            let acceptor = tokio_rustls::TlsAcceptor::from(config.clone());
            if let Ok(mut stream) = acceptor.accept(stream).await {
                // A client that goes on would send its preface.
                let _ = stream.read_u8().await;
            }
        }
    }
}

/// Whether this is a sequence of TLS records, the last of which may be cut off.
fn is_tls(mut bytes: &[u8]) -> bool {
    while let [kind, 3, 1..=4, high, low, rest @ ..] = bytes {
        if !(20..=23).contains(kind) {
            return false;
        }
        bytes = rest.get(usize::from(*high) * 256 + usize::from(*low)..).unwrap_or_default();
    }
    bytes.is_empty()
}

/// The type of the record that a TLS connection begins with.
const HANDSHAKE: u8 = 22;
