//! HTTP/2 connections: dial, secure, shake hands. Endpoints and xDS servers use the same code.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::Status;

use crate::frames::{Frames, Seen};
use crate::http_connect::{self, ProxyError};
use crate::pulse::{Order, Pulse};
use crate::request::Sending;
use crate::tls::{ClusterTlsError, Presenting, Tls, TlsInfo};

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

/// HTTP/2 keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeepAlive {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
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

/// An established connection: requests go through `sender`, `driver` must be polled.
pub(crate) struct Established<B: Outgoing> {
    pub(crate) sender: http2::SendRequest<B>,
    pub(crate) driver: Driver<B>,
    pub(crate) ends: Ends,
    /// The code of the first GOAWAY of the peer, once there was one.
    pub(crate) goaway: Arc<OnceLock<u32>>,
    pub(crate) pulse: Arc<Pulse>,
}

/// The ends of a connection, as channelz shows them.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) tls: Option<Arc<TlsInfo>>,
}

/// The body of requests on a connection.
pub(crate) trait Outgoing: Body<Data = Bytes, Error = Status> + Send + Unpin + 'static {}

impl<T: Body<Data = Bytes, Error = Status> + Send + Unpin + 'static> Outgoing for T {}

/// Moves the bytes of a connection; ends when the connection takes no more requests.
pub(crate) type Driver<B> = http2::Connection<Io, B, Executor>;

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
/// The wait matters: a process that accepts and never answers must not count as connected.
pub(crate) async fn connect<B: Outgoing>(
    address: &Address,
    tls: Option<&Tls>,
    settings: &Http2Settings,
) -> Result<Established<B>, ConnectError> {
    let (stream, ends) = dial(address, tls, settings.user_timeout()).await?;
    handshake(stream, address, settings, ends).await
}

/// A stream of bytes to `address`, secured if asked for. The network may keep what is sent for `user_timeout` without a
/// sign that it has arrived (A18), where the system knows such a bound.
pub(crate) async fn dial(
    address: &Address,
    tls: Option<&Tls>,
    user_timeout: Duration,
) -> Result<(Box<dyn Stream>, Ends), ConnectError> {
    let failed = |error| ConnectError::Connect(address.clone(), error);
    match address {
        Address::Tcp(socket) => {
            let stream = TcpStream::connect(socket).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            bound_silence(&stream, user_timeout).map_err(failed)?;
            let local = stream.local_addr().ok();
            maybe_secure(stream, local, tls, address).await
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path).await.map_err(failed)?;
            maybe_secure(stream, None, tls, address).await
        }
        #[cfg(not(unix))]
        Address::Unix(_) => Err(failed(std::io::ErrorKind::Unsupported.into())),
        Address::Proxied { proxy, endpoint } => {
            let opened = http_connect::open(*proxy, *endpoint).await;
            let stream = opened.map_err(|error| ConnectError::Proxy { proxy: *proxy, endpoint: *endpoint, error })?;
            bound_silence(stream.get_ref(), user_timeout).map_err(failed)?;
            let local = stream.get_ref().local_addr().ok();
            maybe_secure(stream, local, tls, address).await
        }
    }
}

async fn maybe_secure(
    stream: impl Stream + 'static,
    local: Option<SocketAddr>,
    tls: Option<&Tls>,
    address: &Address,
) -> Result<(Box<dyn Stream>, Ends), ConnectError> {
    let Some(tls) = tls else { return Ok((Box::new(stream), Ends { local, tls: None })) };
    let (stream, info) = secure(stream, tls, address).await?;
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
    let stream = tokio_rustls::TlsConnector::from(config)
        .connect(tls.server_name.clone(), stream)
        .await
        .map_err(|error| ConnectError::tls(address, &tls.server_name, error))?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(ConnectError::Alpn(address.clone()));
    }
    let info = TlsInfo::of(stream.get_ref().1, presenting.as_ref().and_then(|presenting| presenting.certificate()));
    Ok((stream, info))
}

async fn handshake<B: Outgoing>(
    stream: Box<dyn Stream>,
    address: &Address,
    settings: &Http2Settings,
    ends: Ends,
) -> Result<Established<B>, ConnectError> {
    let (transport, greeting, goaway) = Transport::over(stream);
    let pulse = transport.pulse.clone();
    let io = Io(TokioIo::new(transport));
    let mut builder = http2::Builder::new(Executor);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(settings.stream_window)
        .initial_connection_window_size(settings.connection_window)
        .max_header_list_size(settings.max_header_list_size)
        // Answers to calls that were given up a moment ago are no fault of the peer. h2 remembers 50 such calls for a
        // second, and breaks the connection off after a thousand surprises in its whole life.
        .max_concurrent_reset_streams(1 << 10)
        .max_local_error_reset_streams(1 << 20);
    if let Some(keep_alive) = settings.keep_alive {
        builder
            .keep_alive_interval(keep_alive.interval)
            .keep_alive_timeout(keep_alive.timeout)
            .keep_alive_while_idle(settings.keep_alive_without_calls);
    }
    let (sender, mut driver) = builder.handshake(io).await.map_err(|error| ConnectError::http2(address, error))?;
    greeting.hear(&mut driver, address).await?;
    Ok(Established { sender, driver, ends, goaway, pulse })
}

/// Any byte stream. Boxed: one allocation per connection, and one type of connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Runs what a connection does in the background: two small pieces for every RPC. They come in the type of the whole
/// connection, which is large, and each move of it would be a copy; in a box it is moved once.
#[derive(Clone, Copy)]
pub(crate) struct Executor;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, piece: F) {
        let piece = Box::pin(piece);
        match Sending::just_begun() {
            None => tokio::spawn(piece),
            Some(request) => tokio::spawn(request.carry(piece)),
        };
    }
}

/// The transport of a [`Driver`].
pub(crate) struct Io(TokioIo<Transport>);

/// The bytes of a connection.
///
/// Watches the frames that the peer sends: the first must be SETTINGS on stream 0, and a GOAWAY is noted. And reads to the end what a
/// peer that has closed the connection said before. A server that drains says last which requests it did not process
/// (GOAWAY), then closes; a request that meets the closed socket fails to be written, and h2 would give up there, with
/// the last word unread. So writing never fails here: what cannot be written is thrown away, and the end comes when
/// there is nothing left to read, which follows at once, as only a connection that is gone refuses bytes.
pub(crate) struct Transport {
    stream: Box<dyn Stream>,
    frames: Frames,
    greeted: Option<oneshot::Sender<FirstWord>>,
    goaway: Arc<OnceLock<u32>>,
    pulse: Arc<Pulse>,
    /// The task that is woken when there is an order.
    task: Option<Waker>,
    /// Whether everything that h2 had to say is written, so that another frame may be put in.
    between_frames: bool,
    /// How much of a ping is written, if there is one to be written.
    ping: Option<usize>,
    write_failed: bool,
}

/// What a peer says first, once it does.
pub(crate) struct Greeting(oneshot::Receiver<FirstWord>);

enum FirstWord {
    Settings,
    Other,
    /// Such as the alert of a TLS server that wants a client certificate: hyper keeps it to itself.
    Error(io::Error),
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

// === impl Transport ===

impl Transport {
    /// With what the peer says first, and the code of its GOAWAY once there is one.
    pub(crate) fn over(stream: Box<dyn Stream>) -> (Self, Greeting, Arc<OnceLock<u32>>) {
        let (greeted, greeting) = oneshot::channel();
        let goaway = Arc::new(OnceLock::new());
        let frames = Frames::default();
        let transport = Self {
            stream,
            frames,
            greeted: Some(greeted),
            goaway: goaway.clone(),
            pulse: Pulse::new(),
            task: None,
            between_frames: false,
            ping: None,
            write_failed: false,
        };
        (transport, Greeting(greeting), goaway)
    }

    fn wait_for_orders(&mut self, cx: &Context<'_>) {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            self.pulse.wake_for_orders(cx);
        }
    }

    /// The outcome of writing `len` bytes, or of pretending to.
    fn written(&mut self, polled: Poll<io::Result<usize>>, len: usize) -> Poll<io::Result<usize>> {
        polled.map(|outcome| {
            outcome.or_else(|_| {
                self.write_failed = true;
                Ok(len)
            })
        })
    }

    /// Writes what is left of a ping, where that is allowed.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(written) = self.ping {
            if self.write_failed || written == PING.len() {
                self.ping = None;
                // TLS may hold it back. If there is no room now, h2 flushes again before it writes.
                let _ = Pin::new(&mut self.stream).poll_flush(cx);
            } else if written == 0 && !self.between_frames {
                break;
            } else {
                let polled = Pin::new(&mut self.stream).poll_write(cx, &PING[written..]);
                let len = ready!(self.written(polled, PING.len() - written)).unwrap_or_default();
                self.ping = Some(written + len);
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.pulse.order() {
            None => {}
            Some(Order::Ping) => self.ping = Some(0),
            Some(Order::BreakOff) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
        if self.ping.is_some() {
            let _ = self.poll_ping(cx);
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_pending() {
            self.wait_for_orders(cx);
            return polled;
        }
        self.pulse.hear();
        if let Poll::Ready(Err(error)) = &polled
            && let Some(greeted) = self.greeted.take()
        {
            let _ = greeted.send(FirstWord::Error(io::Error::new(error.kind(), error.to_string())));
        }
        let Self { frames, greeted, goaway, pulse, .. } = &mut *self;
        frames.follow(&buf.filled()[before..], |seen| match seen {
            Seen::First { settings } => {
                let word = if settings { FirstWord::Settings } else { FirstWord::Other };
                if let Some(greeted) = greeted.take() {
                    let _ = greeted.send(word);
                }
            }
            Seen::Answer => pulse.note_answer(),
            Seen::GoAway(code) => drop(goaway.set(code)),
        });
        polled
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.write_failed {
            return Poll::Ready(Ok(buf.len()));
        }
        if self.ping.is_some() {
            ready!(self.poll_ping(cx));
        }
        self.between_frames = false;
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(polled, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        if self.write_failed {
            return Poll::Ready(Ok(len));
        }
        if self.ping.is_some() {
            ready!(self.poll_ping(cx));
        }
        self.between_frames = false;
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(polled, len)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // h2 flushes when all its frames are written.
        self.between_frames = true;
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(polled.map_ok(|()| 0), 0).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === impl Io ===

impl hyper::rt::Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A PING (RFC 9113, section 6.7). What it carries is told apart from h2's own.
const PING: [u8; 17] = *b"\0\0\x08\x06\0\0\0\0\0mainstay";

/// As long as gRPC waits for the answer to a ping by default.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::Waker;

    use tonic::body::Body;

    use super::*;
    use crate::failure;

    #[tokio::test]
    async fn what_a_peer_said_before_it_closed_is_read_though_writing_fails() {
        let peer = Peer::default();
        let address = Address::Tcp(([127, 0, 0, 1], 1).into());
        let ends = Ends { local: None, tls: None };
        let connection = handshake::<Body>(Box::new(peer.clone()), &address, &Http2Settings::default(), ends).await;
        let Ok(Established { mut sender, driver, .. }) = connection else { panic!("the peer said SETTINGS") };
        peer.0.lock().unwrap().closed = true;
        let request = http::Request::post("http://peer/").body(Body::empty()).unwrap();
        let (error, ended) = tokio::join!(sender.try_send_request(request), driver);
        let error = error.unwrap_err().into_error();
        assert!(failure::is_refusal(&error), "A6: the peer said that it did not process the request: {error:?}");
        ended.unwrap();
    }

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
            // Type 4 is SETTINGS. Type 7 is GOAWAY: no stream was processed, no error.
            const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
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
