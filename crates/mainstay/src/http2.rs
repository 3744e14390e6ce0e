//! HTTP/2 connections: dial, secure, shake hands. Endpoints and xDS servers use the same code.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::disconnect::Lost;
use crate::http_connect::{self, ProxyError};
use crate::keep_alive::{KeepAlive, Keeper};
use crate::pulse::Pulse;
use crate::stream::{Gate, Requests};
use crate::tls::{ClusterTlsError, Handshake, HandshakeNote, HandshakeResult, Presenting, Tls, TlsInfo};
use crate::transport::{FirstWord, Greeting, Stream, Transport};

/// Where a connection goes.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// An endpoint behind an HTTP proxy (A86).
    Proxied {
        proxy: SocketAddr,
        endpoint: SocketAddr,
    },
}

/// How HTTP/2 is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Http2Settings {
    /// What the peer may send on a stream, and in all, before somebody reads it.
    pub(crate) stream_window: u32,
    pub(crate) connection_window: u32,
    /// The largest headers or trailers that are taken in.
    pub(crate) max_header_list_size: u32,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Whether it is pinged while there are no calls, too.
    pub(crate) keep_alive_without_calls: bool,
}

/// An established connection: requests go through `requests`, `driver` must be polled.
pub(crate) struct Established {
    pub(crate) requests: Requests,
    pub(crate) driver: Driver,
    pub(crate) ends: Ends,
    /// The code of the first GOAWAY of the peer, once there was one.
    pub(crate) goaway: Arc<OnceLock<u32>>,
}

/// The ends of a connection, as channelz shows them.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) tls: Option<Arc<TlsInfo>>,
}

/// Moves the bytes of a connection, until it is over.
pub(crate) struct Driver {
    connection: h2::client::Connection<Transport>,
    keeper: Option<Keeper>,
    goaway: Arc<OnceLock<u32>>,
    pulse: Arc<Pulse>,
    gate: Weak<Gate>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{0}: {1}")]
    Connect(Address, #[source] io::Error),
    #[error("the HTTP proxy {proxy} on the way to {endpoint} {error}")]
    Proxy {
        proxy: SocketAddr,
        endpoint: SocketAddr,
        #[source]
        error: ProxyError,
    },
    #[error("TLS handshake with {0} (server name {1}) failed: {2}")]
    Tls(Address, String, #[source] io::Error),
    #[error("TLS handshake with {0} (server name {1}) failed: {2}")]
    Refused(Address, String, #[source] Arc<dyn std::error::Error + Send + Sync>),
    #[error("no TLS with {0}: {1}")]
    Certificates(Address, #[source] Box<ClusterTlsError>),
    #[error("{0} does not speak HTTP/2 over TLS: it did not choose the protocol h2")]
    Alpn(Address),
    #[error("HTTP/2 handshake with {0} failed: {1}")]
    Http2(Address, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} closed the connection before it said anything: expected an HTTP/2 server")]
    Silent(Address),
    #[error("{0} broke the connection off before it said anything: {1}")]
    BrokenOff(Address, #[source] io::Error),
    #[error("{0} does not speak HTTP/2: its first frame is not SETTINGS")]
    NotHttp2(Address),
}

/// Connects and waits until the server has proved with its first frame that it speaks HTTP/2.
///
/// The wait matters: a process that accepts and never answers must not count as connected. One that falls silent later
/// is given up after `patience` (see [`Pulse`]). How the handshake of TLS ends is said to `note`.
pub(crate) async fn connect(
    address: &Address,
    tls: Option<&Tls>,
    settings: &Http2Settings,
    patience: Duration,
    note: &HandshakeNote,
) -> Result<Established, ConnectError> {
    let (stream, ends) = dial(address, tls, settings.user_timeout(), note).await?;
    let established = handshake(stream, address, settings, patience, ends).await;
    if let Err(ConnectError::BrokenOff(_, error)) = &established {
        note.broken_off(error);
    }
    established
}

/// A stream of bytes to `address`, secured if asked for. The network may keep what is sent for `user_timeout` without a
/// sign that it has arrived (A18), where the system knows such a bound.
pub(crate) async fn dial(
    address: &Address,
    tls: Option<&Tls>,
    user_timeout: Duration,
    note: &HandshakeNote,
) -> Result<(Box<dyn Stream>, Ends), ConnectError> {
    let failed = |error| ConnectError::Connect(address.clone(), error);
    match address {
        Address::Tcp(socket) => {
            let stream = TcpStream::connect(socket).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            bound_silence(&stream, user_timeout).map_err(failed)?;
            let local = stream.local_addr().ok();
            maybe_secure(stream, local, tls, address, note).await
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path).await.map_err(failed)?;
            maybe_secure(stream, None, tls, address, note).await
        }
        #[cfg(not(unix))]
        Address::Unix(_) => Err(failed(std::io::ErrorKind::Unsupported.into())),
        Address::Proxied { proxy, endpoint } => {
            let opened = http_connect::open(*proxy, *endpoint).await;
            let stream = opened.map_err(|error| ConnectError::Proxy { proxy: *proxy, endpoint: *endpoint, error })?;
            bound_silence(stream.get_ref(), user_timeout).map_err(failed)?;
            let local = stream.get_ref().local_addr().ok();
            maybe_secure(stream, local, tls, address, note).await
        }
    }
}

async fn maybe_secure(
    stream: impl Stream + 'static,
    local: Option<SocketAddr>,
    tls: Option<&Tls>,
    address: &Address,
    note: &HandshakeNote,
) -> Result<(Box<dyn Stream>, Ends), ConnectError> {
    let Some(tls) = tls else { return Ok((Box::new(stream), Ends { local, tls: None })) };
    let (stream, info) = secure(stream, tls, address, note).await?;
    Ok((Box::new(stream), Ends { local, tls: Some(Arc::new(info)) }))
}

/// Bytes that a dead network swallows are noticed under load, without any ping (A18).
fn bound_silence(stream: &TcpStream, user_timeout: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(user_timeout))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, user_timeout);
    Ok(())
}

async fn secure<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    tls: &Tls,
    address: &Address,
    note: &HandshakeNote,
) -> Result<(tokio_rustls::client::TlsStream<T>, TlsInfo), ConnectError> {
    // Only a resolver of its own tells whether this connection was asked for a certificate. It also keeps rustls from
    // resuming a session that was begun with another certificate of ours.
    let resolver = &tls.config.client_auth_cert_resolver;
    let presenting = resolver.has_certs().then(|| Arc::new(Presenting::new(resolver.clone())));
    let config = match &presenting {
        None => tls.config.clone(),
        Some(presenting) => {
            let mut config = rustls::ClientConfig::clone(&tls.config);
            config.client_auth_cert_resolver = presenting.clone();
            Arc::new(config)
        }
    };
    let under_way = note.begin();
    let stream = match tokio_rustls::TlsConnector::from(config).connect(tls.server_name.clone(), stream).await {
        Ok(stream) => stream,
        Err(error) => {
            under_way.end(Handshake::failed(HandshakeResult::of(&error)));
            return Err(ConnectError::tls(address, &tls.server_name, error));
        }
    };
    let connection = stream.get_ref().1;
    if connection.alpn_protocol() != Some(b"h2") {
        under_way.end(Handshake::failed(HandshakeResult::NoApplicationProtocol));
        return Err(ConnectError::Alpn(address.clone()));
    }
    under_way.end(Handshake::done(connection));
    let info = TlsInfo::of(connection, presenting.as_ref().and_then(|presenting| presenting.certificate()));
    Ok((stream, info))
}

async fn handshake(
    stream: Box<dyn Stream>,
    address: &Address,
    settings: &Http2Settings,
    patience: Duration,
    ends: Ends,
) -> Result<Established, ConnectError> {
    let (transport, greeting, goaway) = Transport::over(stream, patience);
    let pulse = transport.pulse.clone();
    let handshake = settings.builder().handshake(transport).await;
    let (requests, mut connection) = handshake.map_err(|error| ConnectError::http2(address, error))?;
    let keeper = settings.keep_alive.zip(connection.ping_pong()).map(|(keep_alive, pings)| {
        pulse.note_times();
        Keeper::new(keep_alive, settings.keep_alive_without_calls, pings)
    });
    let requests = Requests::new(requests, pulse.clone());
    let mut driver = Driver { connection, keeper, goaway: goaway.clone(), pulse, gate: requests.gate() };
    greeting.hear(&mut driver, address).await?;
    Ok(Established { requests, driver, ends, goaway })
}

// === impl Driver ===

impl Driver {
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Moves the bytes until the connection takes no more requests. None if those on it may go on.
    pub(crate) async fn until_closing(&mut self) -> Option<Result<(), Lost>> {
        std::future::poll_fn(|cx| match Pin::new(&mut *self).poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if self.goaway.get().is_some() || self.pulse.is_retired() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

impl Future for Driver {
    type Output = Result<(), Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { connection, keeper, pulse, gate, .. } = &mut *self;
        if let Some(keeper) = keeper
            && keeper.poll(pulse, pulse.calls(gate.strong_count()), cx).is_ready()
        {
            return Poll::Ready(Err(Lost::KeepAlive));
        }
        let polled = Pin::new(connection).poll(cx);
        if let Some(gate) = gate.upgrade() {
            gate.settle();
        }
        polled.map_err(Lost::Http2)
    }
}

// === impl Http2Settings ===

impl Http2Settings {
    /// With pings as rare as a peer wants that has complained so often (A8).
    pub(crate) fn calmed(mut self, complaints: u32) -> Self {
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.interval = keep_alive.interval.saturating_mul(1 << complaints.min(16));
        }
        self
    }

    fn builder(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_header_list_size(self.max_header_list_size)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
            .max_send_buffer_size(SEND_BUFFER)
            // Answers to calls that were given up a moment ago are no fault of the peer. h2 remembers 50 such calls for a
            // second, and breaks the connection off after a thousand surprises in its whole life.
            .max_concurrent_reset_streams(1 << 10)
            .max_local_error_reset_streams(Some(1 << 20));
        builder
    }

    /// How long the network may keep what was sent without a sign that it has arrived (A18).
    fn user_timeout(&self) -> Duration {
        self.keep_alive.map_or(USER_TIMEOUT, |keep_alive| keep_alive.timeout)
    }
}

impl Default for Http2Settings {
    fn default() -> Self {
        Self {
            stream_window: 1 << 20,
            connection_window: (1 << 31) - 1,
            max_header_list_size: 1 << 20,
            keep_alive: None,
            keep_alive_without_calls: false,
        }
    }
}

// === impl Address ===

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", Path::display(path)),
            Self::Proxied { proxy, endpoint } => write!(f, "{endpoint} through the HTTP proxy {proxy}"),
        }
    }
}

// === impl ConnectError ===

impl ConnectError {
    /// A handshake failed. If it was our own verifier that refused the server, what it says is the cause.
    fn tls(address: &Address, server_name: &ServerName<'_>, error: io::Error) -> Self {
        let server_name = server_name.to_str().into_owned();
        match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(refused))) => {
                Self::Refused(address.clone(), server_name, refused.0.clone())
            }
            _ => Self::Tls(address.clone(), server_name, error),
        }
    }

    pub(crate) fn http2(address: &Address, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Http2(address.clone(), Box::new(error))
    }
}

// === impl Greeting ===

impl Greeting {
    /// Drives the connection until the peer has said something. Fails if that is not HTTP/2.
    pub(crate) async fn hear<E: std::error::Error + Send + Sync + 'static>(
        mut self,
        driver: &mut (impl Future<Output = Result<(), E>> + Unpin),
        address: &Address,
    ) -> Result<(), ConnectError> {
        let ended = tokio::select! {
            biased;
            word = &mut self.0 => return FirstWord::judge(word.ok(), address),
            ended = driver => ended,
        };
        // What the peer said explains why the connection ended.
        match (self.0.try_recv(), ended) {
            (Ok(word), _) => FirstWord::judge(Some(word), address),
            (Err(_), Err(error)) => Err(ConnectError::http2(address, error)),
            (Err(_), Ok(())) => Err(ConnectError::Silent(address.clone())),
        }
    }
}

impl FirstWord {
    fn judge(word: Option<Self>, address: &Address) -> Result<(), ConnectError> {
        match word {
            Some(Self::Settings) => Ok(()),
            Some(Self::Other) => Err(ConnectError::NotHttp2(address.clone())),
            Some(Self::Error(error)) => Err(ConnectError::BrokenOff(address.clone(), error)),
            None => Err(ConnectError::Silent(address.clone())),
        }
    }
}

/// How many streams there may be before the peer has said its limit: what any should allow (RFC 9113, section 6.5.2).
const STREAMS_BEFORE_SETTINGS: usize = 100;

/// How much of a body h2 takes in before it is sent.
const SEND_BUFFER: usize = 1 << 20;

/// As long as gRPC waits for the answer to a ping by default.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::Waker;

    use http::uri::{Authority, Scheme};
    use tokio::io::{AsyncWriteExt, ReadBuf};
    use tonic::body::Body;

    use super::*;
    use crate::request::Request;
    use crate::stream::NoResponse;

    #[tokio::test]
    async fn what_a_peer_said_before_it_closed_is_read_though_writing_fails() {
        let peer = Peer::default();
        let address = Address::Tcp(([127, 0, 0, 1], 1).into());
        let ends = Ends { local: None, tls: None };
        let settings = Http2Settings::default();
        let connection = handshake(Box::new(peer.clone()), &address, &settings, Duration::MAX, ends).await;
        let Ok(Established { requests, driver, goaway, .. }) = connection else { panic!("the peer said SETTINGS") };
        peer.0.lock().unwrap().closed = true;
        let request = http::Request::post("http://peer/").body(Body::empty()).unwrap();
        let request = Request::new(request).attempt(Scheme::HTTP, Authority::from_static("peer"), None, 0).unwrap();
        let response = requests.send(request).unwrap();
        let (response, ended) = tokio::join!(response, driver);
        assert!(matches!(response, Err(NoResponse::NeverLeft)), "{response:?}");
        assert_eq!(goaway.get(), Some(&0));
        ended.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_call_on_a_connection_that_takes_no_more_is_kept_alive_too() {
        let (ours, mut silent) = tokio::io::duplex(1 << 16);
        silent.write_all(&SETTINGS).await.unwrap();
        let keep_alive = KeepAlive { interval: Duration::from_secs(10), timeout: Duration::from_secs(5) };
        let settings = Http2Settings { keep_alive: Some(keep_alive), ..Http2Settings::default() };
        let address = Address::Tcp(([127, 0, 0, 1], 1).into());
        let ends = Ends { local: None, tls: None };
        let connection = handshake(Box::new(ours), &address, &settings, Duration::MAX, ends).await;
        let Ok(Established { requests, driver, .. }) = connection else { panic!("the peer said SETTINGS") };
        let request = http::Request::post("http://peer/").body(Body::empty()).unwrap();
        let request = Request::new(request).attempt(Scheme::HTTP, Authority::from_static("peer"), None, 0).unwrap();
        let response = requests.send(request).unwrap();
        drop(requests);
        let begin = tokio::time::Instant::now();
        let ended = tokio::time::timeout(Duration::from_secs(60), driver).await.expect("it is pinged, and dead");
        assert!(matches!(ended, Err(Lost::KeepAlive)), "{ended:?}");
        assert_eq!(begin.elapsed().as_secs(), 15);
        assert!(matches!(response.await, Err(NoResponse::Failed(_))));
    }

    /// Type 4.
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// Says SETTINGS. After it has closed it takes no more bytes, and whoever has noticed reads a GOAWAY and the end:
    /// the order of things that a busy machine brings about.
    #[derive(Clone, Default)]
    struct Peer(Arc<Mutex<PeerState>>);

    #[derive(Default)]
    struct PeerState {
        closed: bool,
        noticed: bool,
        said: usize,
        reader: Option<Waker>,
    }

    impl AsyncRead for Peer {
        fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            // Type 7: no stream was processed, no error.
            const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let mut state = self.0.lock().unwrap();
            state.said += 1;
            match state.said {
                1 => buf.put_slice(&SETTINGS),
                _ if !state.noticed => {
                    state.said -= 1;
                    state.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                2 => buf.put_slice(&GOAWAY),
                _ => {}
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Peer {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let mut state = self.0.lock().unwrap();
            if !state.closed {
                return Poll::Ready(Ok(buf.len()));
            }
            state.noticed = true;
            state.reader.take().into_iter().for_each(Waker::wake);
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
}
