//! ADS and LRS streams over HTTP/2: what the client core asks for, done with sockets.
//!
//! One task per stream. It takes or makes a connection, opens the stream, passes bytes, and says
//! what happened. Streams to equal servers share one connection, across all channels of the process.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::uri::PathAndQuery;
use hyper::client::conn::http2::SendRequest;
use mainstay_lb::Input;
use mainstay_xds::bootstrap::ServerUri;
use mainstay_xds::bootstrap::{CallCreds, ChannelCreds, ServerConfig};
use mainstay_xds::client::{CloseCause, Event, Report, ServerState, ServerStatus, StreamId};
use tokio::sync::{OnceCell, watch};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::credentials;
use crate::dns::ResolveHost;
use crate::failure::describe;
use crate::http2::{self, Address, Http2Settings, KeepAlive};
use crate::ledger::Books;
use crate::queue::{self, Closed};
use crate::task::Task;

/// The streams of one channel.
pub(crate) struct AdsStreams {
    dns: Arc<dyn ResolveHost>,
    limits: AdsLimits,
    events: queue::Sender<Input>,
    streams: BTreeMap<(Service, StreamId), OpenStream>,
    /// The books of each server since it was last idle; a stream is a call (I-24).
    books: HashMap<Arc<ServerConfig>, Arc<Books>>,
}

/// What a stream is for. Each has stream ids of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    /// Resources.
    Ads,
    /// Load reports.
    Lrs,
}

/// Bounds on what an xDS server may do to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdsLimits {
    pub(crate) max_response_size: usize,
    pub(crate) keep_alive: KeepAlive,
}

struct OpenStream {
    requests: UnboundedSender<Bytes>,
    _task: Task,
}

/// A connection to an xDS server, made at first use, closed when the last stream lets go of it.
#[derive(Default)]
struct Connection {
    established: OnceCell<Established>,
}

struct Established {
    sender: SendRequest<Body>,
    scheme: http::uri::Scheme,
    authority: http::uri::Authority,
    /// Why the connection was lost, once it is.
    lost: watch::Receiver<Option<String>>,
    _driver: Task,
}

// === impl AdsStreams ===

impl AdsStreams {
    pub(crate) fn new(dns: Arc<dyn ResolveHost>, limits: AdsLimits, events: queue::Sender<Input>) -> Self {
        Self { dns, limits, events, streams: BTreeMap::new(), books: HashMap::new() }
    }

    pub(crate) fn open(
        &mut self,
        service: Service,
        id: StreamId,
        server: Arc<ServerConfig>,
        connect_timeout: Duration,
    ) {
        let (requests, queue) = unbounded();
        let books = self.books.entry(server.clone()).or_insert_with(|| Arc::new(Books::new())).clone();
        let (dns, events) = (self.dns.clone(), self.events.clone());
        let stream = StreamTask { service, id, server, dns, limits: self.limits, events, books };
        let task = Task::spawn(async move {
            let cause = stream.run(connect_timeout, queue).await;
            // The driver may be gone: then nobody needs to know.
            let _ = stream.tell(Event::Closed(stream.id, cause)).await;
        });
        self.streams.insert((service, id), OpenStream { requests, _task: task });
    }

    pub(crate) fn send(&mut self, service: Service, id: StreamId, message: Bytes) {
        if let Some(stream) = self.streams.get(&(service, id)) {
            // A stream that has just ended says so itself.
            let _ = stream.requests.unbounded_send(message);
        }
    }

    pub(crate) fn close(&mut self, service: Service, id: StreamId) {
        self.streams.remove(&(service, id));
    }

    /// Enters what happened into the books of a server.
    pub(crate) fn note(&self, server: &Arc<ServerConfig>, report: &Report) {
        if let Some(books) = self.books.get(server) {
            books.note(report);
        }
    }

    /// Closes the books of the servers that nobody needs any more.
    pub(crate) fn forget_idle(&mut self, servers: &[ServerStatus]) {
        let in_use = |wanted: &Arc<ServerConfig>| {
            servers.iter().any(|server| server.server == *wanted && server.state != ServerState::Idle)
        };
        self.books.retain(|server, _| in_use(server));
    }

    pub(crate) fn books(&self) -> HashMap<Arc<ServerConfig>, Arc<Books>> {
        self.books.clone()
    }
}

impl Service {
    fn method(self) -> &'static str {
        match self {
            Self::Ads => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            Self::Lrs => "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats", // C-66
        }
    }
}

/// One stream, from the first address to the last byte.
struct StreamTask {
    service: Service,
    id: StreamId,
    server: Arc<ServerConfig>,
    dns: Arc<dyn ResolveHost>,
    limits: AdsLimits,
    events: queue::Sender<Input>,
    books: Arc<Books>,
}

impl StreamTask {
    async fn run(&self, connect_timeout: Duration, queue: UnboundedReceiver<Bytes>) -> CloseCause {
        let queue = Arc::new(Mutex::new(queue));
        let mut opened = false;
        loop {
            let connection = connection_to(self.peer());
            let is_shared = connection.established.initialized();
            let connect = connection.established.get_or_try_init(|| self.connect());
            let established = match tokio::time::timeout(connect_timeout, connect).await {
                Ok(Ok(established)) => established,
                Ok(Err(cause)) => return CloseCause::ConnectFailed(cause),
                Err(_) => {
                    return CloseCause::ConnectFailed(format!(
                        "no connection to {} within {connect_timeout:?}",
                        self.uri()
                    ));
                }
            };
            let bearer = match self.bearer_token().await {
                Ok(bearer) => bearer,
                Err(cause) => return CloseCause::ConnectFailed(cause),
            };
            if !opened && self.tell(Event::Opened(self.id)).await.is_err() {
                return gone();
            }
            opened = true;
            match self.exchange(established, bearer, queue.clone()).await {
                // The server had sent GOAWAY, which shows only when a stream is tried: that is no failure of the server.
                End { cause: CloseCause::ConnectionLost(_), untouched: true } if is_shared => {}
                End { cause, .. } => return cause,
            }
        }
    }

    /// Opens the stream and passes messages until it ends. Returns why.
    async fn exchange(
        &self,
        established: &Established,
        bearer: Option<MetadataValue<tonic::metadata::Ascii>>,
        queue: Queue,
    ) -> End {
        let call = self.books.ledger.begin();
        let end = self.pass_messages(established, bearer, queue).await;
        if let CloseCause::Ended { code: 0, .. } = end.cause {
            call.succeed();
        }
        end
    }

    async fn pass_messages(
        &self,
        established: &Established,
        bearer: Option<MetadataValue<tonic::metadata::Ascii>>,
        queue: Queue,
    ) -> End {
        let (handed_over, mut sent) = unbounded();
        let mut request = tonic::Request::new(Requests { queue, handed_over });
        if let Some(bearer) = bearer {
            request.metadata_mut().insert("authorization", bearer);
        }
        let origin = http::Uri::builder()
            .scheme(established.scheme.clone())
            .authority(established.authority.clone())
            .path_and_query("/")
            .build()
            .expect("scheme, authority and path are valid parts");
        let mut grpc = tonic::client::Grpc::with_origin(SendRequestService(established.sender.clone()), origin)
            .max_decoding_message_size(self.limits.max_response_size);
        let call = grpc.streaming(request, PathAndQuery::from_static(self.service.method()), BytesCodec);
        tokio::pin!(call);
        let mut untouched = true;
        let mut responses = loop {
            tokio::select! {
                biased;
                Some(()) = sent.next() => {
                    untouched = false;
                    if self.tell(Event::Sent(self.id)).await.is_err() {
                        return End { cause: gone(), untouched };
                    }
                }
                response = &mut call => match response {
                    Ok(response) => break response.into_inner(),
                    Err(status) => return End { cause: ended(established, &status), untouched },
                },
            }
        };
        let cause = loop {
            let event = tokio::select! {
                message = responses.message() => match message {
                    Ok(Some(message)) => Event::Received(self.id, message),
                    Ok(None) => break CloseCause::Ended { code: 0, message: String::new() },
                    Err(status) => break ended(established, &status),
                },
                Some(()) = sent.next() => Event::Sent(self.id),
            };
            if self.tell(event).await.is_err() {
                break gone();
            }
        };
        End { cause, untouched: false }
    }

    /// The driver reads at its own pace: a flood of responses waits here, in the server's flow control.
    async fn tell(&self, event: Event) -> Result<(), Closed> {
        let input = match self.service {
            Service::Ads => Input::Xds(event),
            Service::Lrs => Input::Load(event),
        };
        self.events.send(input).await
    }

    async fn connect(&self) -> Result<Established, String> {
        let uri = ServerUri::parse(&self.server.server_uri).map_err(|error| error.to_string())?;
        let (host, addresses) = self.addresses(&uri).await?;
        let tls = credentials::for_xds_server(&self.server.channel_creds, &host).await.map_err(|e| e.to_string())?;
        let authority = http::uri::Authority::try_from(authority_of(&uri))
            .map_err(|error| format!("{}: cannot be an :authority: {error}", self.uri()))?;
        let scheme = if tls.is_some() { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP };
        // While idle too: a stream that only listens looks idle to hyper, and a dead server must be noticed.
        let settings = Http2Settings {
            keep_alive: Some(self.limits.keep_alive),
            keep_alive_without_calls: true,
            ..Http2Settings::default()
        };
        let http2::Established { sender, driver, .. } =
            race(&addresses, |address| http2::connect(address, tls.as_ref(), &settings)).await?;
        let (lose, lost) = watch::channel(None);
        let driver = Task::spawn(async move {
            let cause = match driver.await {
                Ok(()) => "the server closed the connection".to_owned(),
                Err(error) => describe(&error),
            };
            lose.send_replace(Some(cause));
        });
        Ok(Established { sender, scheme, authority, lost, _driver: driver })
    }

    /// The host name and all addresses to try.
    async fn addresses(&self, uri: &ServerUri) -> Result<(String, Vec<Address>), String> {
        match uri {
            ServerUri::Unix(path) => Ok(("localhost".to_owned(), vec![Address::Unix(path.clone())])),
            ServerUri::Ip(addresses) => {
                let host = addresses.first().map(|a| a.ip().to_string()).unwrap_or_default();
                Ok((host, addresses.iter().copied().map(Address::Tcp).collect()))
            }
            ServerUri::HostPort { host, port } => {
                let ips = match host.parse() {
                    Ok(ip) => vec![ip],
                    Err(_) => self
                        .dns
                        .resolve(host)
                        .await
                        .map_err(|error| format!("{}: cannot resolve {host:?}: {error}", self.uri()))?,
                };
                if ips.is_empty() {
                    return Err(format!("{}: {host:?} has no address", self.uri()));
                }
                Ok((host.clone(), ips.into_iter().map(|ip| Address::Tcp((ip, *port).into())).collect()))
            }
        }
    }

    /// The `authorization` header of A97 call credentials. Read anew for each stream.
    async fn bearer_token(&self) -> Result<Option<MetadataValue<tonic::metadata::Ascii>>, String> {
        let Some(CallCreds::JwtTokenFile(path)) = self.server.call_creds.first() else { return Ok(None) };
        if self.server.channel_creds == ChannelCreds::Insecure {
            // S-98: a bearer token never travels in the clear.
            return Err(format!("{}: call credentials need a secure connection", self.uri()));
        }
        let token = tokio::fs::read_to_string(path).await.map_err(|error| format!("{}: {error}", path.display()))?;
        let mut value = MetadataValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| format!("{}: holds no token that fits a header", path.display()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn uri(&self) -> &str {
        &self.server.server_uri
    }

    fn peer(&self) -> Peer {
        Peer {
            runtime: tokio::runtime::Handle::current().id(),
            server: self.server.clone(),
            keep_alive: self.limits.keep_alive,
            dns: Arc::as_ptr(&self.dns).addr(),
        }
    }
}

/// What streams must agree on to share a connection. A connection is carried by a task, so it belongs to a runtime.
#[derive(PartialEq, Eq, Hash)]
struct Peer {
    runtime: tokio::runtime::Id,
    server: Arc<ServerConfig>,
    keep_alive: KeepAlive,
    /// Another resolver may find another host under the same name. It lives at least as long as the connection.
    dns: usize,
}

/// The process's connection to `peer`: a live one with room for a stream, or a new one that is made by whoever needs
/// it first.
fn connection_to(peer: Peer) -> Arc<Connection> {
    static CONNECTIONS: LazyLock<Mutex<HashMap<Peer, Vec<Weak<Connection>>>>> = LazyLock::new(Mutex::default);
    let mut all = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, connections| {
        connections.retain(|connection| connection.strong_count() > 0);
        !connections.is_empty()
    });
    let connections = all.entry(peer).or_default();
    // Each stream holds its connection once.
    let with_room = connections.iter().filter(|connection| connection.strong_count() < STREAMS_PER_CONNECTION);
    let is_usable = |found: &Arc<Connection>| found.established.get().is_none_or(Established::is_usable);
    if let Some(connection) = with_room.filter_map(Weak::upgrade).find(is_usable) {
        return connection;
    }
    let connection = Arc::new(Connection::default());
    connections.push(Arc::downgrade(&connection));
    connection
}

/// Tries addresses one after the other, 250 ms apart, and keeps the first that answers (RFC 8305).
async fn race<'a, T, F>(addresses: &'a [Address], connect: impl Fn(&'a Address) -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, http2::ConnectError>>,
{
    let mut waiting = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut causes = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(connect(address));
        }
        // With nothing left to start there is no reason to wake early.
        let pause = async {
            match waiting.len() {
                0 => std::future::pending().await,
                _ => tokio::time::sleep(ATTEMPT_DELAY).await,
            }
        };
        tokio::select! {
            ended = attempts.next() => match ended {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) => causes.push(describe(&error)),
                None => {}
            },
            () = pause => {}
        }
        if attempts.is_empty() && waiting.len() == 0 {
            return Err(causes.join("; "));
        }
    }
}

/// How a stream ended.
struct End {
    cause: CloseCause,
    /// Nothing was sent and nothing was heard.
    untouched: bool,
}

fn gone() -> CloseCause {
    CloseCause::Ended { code: 1, message: "the channel is gone".to_owned() }
}

/// A transport failure has a source; a status of the server has none. The text decides nothing.
fn ended(established: &Established, status: &Status) -> CloseCause {
    if let Some(cause) = established.lost.borrow().clone() {
        return CloseCause::ConnectionLost(cause);
    }
    match std::error::Error::source(status) {
        Some(source) => CloseCause::ConnectionLost(describe(source)),
        None => CloseCause::Ended { code: code_number(status.code()), message: status.message().to_owned() },
    }
}

fn code_number(code: Code) -> u16 {
    u16::try_from(i32::from(code)).unwrap_or(2)
}

fn authority_of(uri: &ServerUri) -> String {
    match uri {
        ServerUri::Unix(_) => "localhost".to_owned(),
        ServerUri::Ip(addresses) => addresses.first().map(ToString::to_string).unwrap_or_default(),
        ServerUri::HostPort { host, port } if host.contains(':') => format!("[{host}]:{port}"),
        ServerUri::HostPort { host, port } => format!("{host}:{port}"),
    }
}

// === impl Established ===

impl Established {
    fn is_usable(&self) -> bool {
        self.lost.borrow().is_none() && self.sender.is_ready()
    }
}

/// Requests that wait. Shared, so that they outlive an attempt at a connection that takes no more streams.
type Queue = Arc<Mutex<UnboundedReceiver<Bytes>>>;

/// Requests of a stream. Says when one is handed to the transport.
struct Requests {
    queue: Queue,
    handed_over: UnboundedSender<()>,
}

impl Stream for Requests {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(cx);
        if let Poll::Ready(Some(_)) = next {
            let _ = self.handed_over.unbounded_send(());
        }
        next
    }
}

/// hyper's request sender as the service that tonic's client wants.
struct SendRequestService(SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for SendRequestService {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Messages stay bytes: the core reads them.
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let len = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(len)))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

/// A stream is quiet most of the time: its buffers are small until there is something to say, and a thousand idle
/// targets do not pay for them. The second number, when to pass bytes on, is tonic's own.
fn buffers() -> BufferSettings {
    BufferSettings::new(256, 32 << 10)
}

/// What any server should allow (RFC 9113, section 6.5.2). A stream beyond its limit would wait without a word.
const STREAMS_PER_CONNECTION: usize = 100;

const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
