//! What happens at a server, as values that a test can wait for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::sync::mpsc;
use tonic::Code;

use crate::load::LoadReport;
use crate::protocol::RequestKind;
use crate::type_url::TypeUrl;

/// The number of a connection at one server, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The number of a stream at one server, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Something that happened at a server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A connection was accepted.
    ConnectionOpened {
        /// Which one.
        connection: ConnectionId,
        /// The client's end of it; unspecified for a socket in the file system.
        peer: SocketAddr,
    },
    /// A client that was accepted failed to secure its connection with TLS; it is closed.
    HandshakeFailed {
        /// Which one.
        connection: ConnectionId,
        /// The client's end of it.
        peer: SocketAddr,
        /// What was wrong.
        reason: String,
    },
    /// A connection ended.
    ConnectionClosed {
        /// Which one.
        connection: ConnectionId,
    },
    /// An ADS stream was opened.
    StreamOpened {
        /// Which one.
        stream: StreamId,
        /// The connection that carries it.
        connection: ConnectionId,
        /// Whether it is of the incremental variant.
        delta: bool,
    },
    /// An ADS stream was not let in, and told when to come back.
    StreamRefused {
        /// The connection on which it was asked for.
        connection: ConnectionId,
        /// Why.
        refusal: Refusal,
    },
    /// A client asked for more than anybody needs; its stream ends.
    AskedTooMuch {
        /// Which one.
        stream: StreamId,
        /// What it asked for.
        what: String,
    },
    /// A client has not read what it was sent for too long; its connection is cut.
    SlowReader {
        /// Which one.
        stream: StreamId,
    },
    /// A request was read.
    Request(SeenRequest),
    /// A response was handed to the transport.
    ResponseSent(SentResponse),
    /// An ADS stream ended.
    StreamClosed {
        /// Which one.
        stream: StreamId,
    },
    /// A client reported its load.
    LoadReported(LoadReport),
    /// The server stopped, abruptly or not; it can be started again.
    Stopped,
}

impl Event {
    /// The request, if this is one.
    pub fn as_request(&self) -> Option<&SeenRequest> {
        if let Self::Request(request) = self { Some(request) } else { None }
    }

    /// Whether it is not of those that happen all the time while all is well: connections that come and go, responses, and
    /// requests that neither begin a stream nor reject anything.
    pub fn is_notable(&self) -> bool {
        match self {
            Self::Request(request) => request.node.is_some() || request.kind == RequestKind::Nack,
            Self::ResponseSent(_) | Self::ConnectionOpened { .. } | Self::ConnectionClosed { .. } => false,
            Self::HandshakeFailed { .. }
            | Self::StreamOpened { .. }
            | Self::StreamRefused { .. }
            | Self::AskedTooMuch { .. }
            | Self::SlowReader { .. }
            | Self::StreamClosed { .. }
            | Self::LoadReported(_)
            | Self::Stopped => true,
        }
    }

    /// The response, if this is one.
    pub fn as_response(&self) -> Option<&SentResponse> {
        if let Self::ResponseSent(response) = self { Some(response) } else { None }
    }
}

/// Why a stream was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too many came at once.
    Busy,
    /// The server is about to stop.
    Draining,
    /// [`Server::refuse_streams`](crate::Server::refuse_streams).
    Closed,
}

/// A request as it was read from the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenRequest {
    /// The stream on which it came.
    pub stream: StreamId,
    /// The node, if this message carried it.
    pub node: Option<Box<Node>>,
    /// What it asks for.
    pub type_url: TypeUrl,
    /// The names, in the order of the message; in the incremental variant those that it subscribes.
    pub names: Vec<String>,
    /// The names that it unsubscribes, in the incremental variant.
    pub unsubscribed: Vec<String>,
    /// `initial_resource_versions`, in the incremental variant.
    pub claims: BTreeMap<String, String>,
    /// `version_info`.
    pub version: String,
    /// `response_nonce`.
    pub nonce: String,
    /// `error_detail`, as code and message.
    pub error: Option<(Code, String)>,
    /// How the server understood it.
    pub kind: RequestKind,
}

/// A response as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct SentResponse {
    /// The stream on which it went.
    pub stream: StreamId,
    /// What it answers.
    pub type_url: TypeUrl,
    /// The names of the resources and errors in it.
    pub names: Vec<String>,
    /// `removed_resources`, in the incremental variant.
    pub removed: Vec<String>,
    /// `version_info`, or `system_version_info`.
    pub version: String,
    /// `nonce`.
    pub nonce: String,
}

/// The events of a server, from the moment of [`Server::events`](crate::Server::events) on. None is lost; an `Events`
/// that nobody reads grows, so drop it when it is not needed any more.
#[derive(Debug)]
pub struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    /// The next event; `None` once the server was dropped.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The next event, if it has happened already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_recv().ok()
    }

    /// Skips events until one is accepted, and returns what `accept` made of it; `None` once the server was dropped.
    pub async fn wait_for<T>(&mut self, mut accept: impl FnMut(&Event) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = accept(&self.next().await?) {
                return Some(found);
            }
        }
    }

    /// Skips events until a request of this type comes, and returns it.
    pub async fn request(&mut self, type_url: TypeUrl) -> Option<SeenRequest> {
        self.wait_for(|event| event.as_request().filter(|request| request.type_url == type_url).cloned()).await
    }

    /// Skips events until a request of this type comes that accepts or rejects a response.
    pub async fn answer(&mut self, type_url: TypeUrl) -> Option<SeenRequest> {
        let is_answer =
            |r: &&SeenRequest| r.type_url == type_url && matches!(r.kind, RequestKind::Ack | RequestKind::Nack);
        self.wait_for(|event| event.as_request().filter(is_answer).cloned()).await
    }

    /// Skips events until a response of this type is sent, and returns it.
    pub async fn response(&mut self, type_url: TypeUrl) -> Option<SentResponse> {
        self.wait_for(|event| event.as_response().filter(|response| response.type_url == type_url).cloned()).await
    }
}

/// Counts of what happened at a server since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that are open now.
    pub open_connections: u64,
    /// Connections that were ever accepted.
    pub connections: u64,
    /// Streams that are open now.
    pub open_streams: u64,
    /// Streams that were ever opened.
    pub streams: u64,
    /// Requests that were read.
    pub requests: u64,
    /// Requests that rejected a response.
    pub nacks: u64,
    /// Responses that were sent.
    pub responses: u64,
    /// Responses that were encoded; the others shared the bytes of an earlier one with the same content.
    pub encodings: u64,
    /// Bytes of responses, without those of HTTP/2.
    pub response_bytes: u64,
    /// Streams that were not let in because too many came at once.
    pub refused_busy: u64,
    /// Those that were not because the server was about to stop.
    pub refused_draining: u64,
    /// Those that were not for [`Server::refuse_streams`](crate::Server::refuse_streams).
    pub refused_closed: u64,
    /// Streams that ended because their client asked for too much.
    pub asked_too_much: u64,
    /// Connections that were cut because their client did not read.
    pub slow_readers: u64,
    /// Responses and rejections by type, in the order of [`Stats::TYPES`].
    pub by_type: [TypeStats; Stats::TYPES.len()],
    /// How long streams waited for their first response.
    pub first_responses: Waits,
}

impl Stats {
    /// What types are called, and the name for all that have none.
    pub const TYPES: [&'static str; 6] = ["LDS", "RDS", "CDS", "EDS", "LEDS", "other"];
}

/// Counts of what happened to one type of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeStats {
    /// Responses that were sent.
    pub responses: u64,
    /// Requests that rejected a response.
    pub nacks: u64,
}

/// How long things took, in a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many took at most so long, but longer than the bound before; the last are those that took longer than all.
    pub counts: [u64; Waits::BOUNDS.len() + 1],
    /// All of them together, in microseconds.
    pub micros: u64,
}

impl Waits {
    /// The bounds in seconds.
    pub const BOUNDS: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];
}

/// Who is told of events.
#[derive(Debug)]
struct Listener {
    events: mpsc::UnboundedSender<Event>,
    /// Only of those that an operator may want to hear of.
    only_notable: bool,
}

impl Listener {
    fn wants(&self, event: &Event) -> bool {
        !self.only_notable || event.is_notable()
    }
}

/// Counts events and hands them to whoever listens.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    listeners: Mutex<Vec<Listener>>,
    connections: AtomicU64,
    closed_connections: AtomicU64,
    streams: AtomicU64,
    closed_streams: AtomicU64,
    requests: AtomicU64,
    nacks: AtomicU64,
    responses: AtomicU64,
    encodings: AtomicU64,
    response_bytes: AtomicU64,
    refused: [AtomicU64; 3],
    asked_too_much: AtomicU64,
    slow_readers: AtomicU64,
    responses_by_type: [AtomicU64; Stats::TYPES.len()],
    nacks_by_type: [AtomicU64; Stats::TYPES.len()],
    waits: [AtomicU64; Waits::BOUNDS.len() + 1],
    waited: AtomicU64,
}

impl Journal {
    pub(crate) fn record(&self, event: Event) {
        match &event {
            // Counted when their numbers are drawn.
            Event::ConnectionOpened { .. } | Event::HandshakeFailed { .. } | Event::StreamOpened { .. } => {}
            // Nobody counts these.
            Event::LoadReported(_) | Event::Stopped => {}
            Event::ConnectionClosed { .. } => add_one(&self.closed_connections),
            Event::StreamClosed { .. } => add_one(&self.closed_streams),
            Event::StreamRefused { refusal, .. } => add_one(self.refused(*refusal)),
            Event::AskedTooMuch { .. } => add_one(&self.asked_too_much),
            Event::SlowReader { .. } => add_one(&self.slow_readers),
            Event::Request(request) => {
                add_one(&self.requests);
                if request.kind == RequestKind::Nack {
                    add_one(&self.nacks);
                    add_one(&self.nacks_by_type[position(&request.type_url)]);
                }
            }
            Event::ResponseSent(response) => {
                add_one(&self.responses);
                add_one(&self.responses_by_type[position(&response.type_url)]);
            }
        }
        tracing::debug!(?event);
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| !listener.events.is_closed());
        let mut wanting = listeners.iter().filter(|listener| listener.wants(&event)).peekable();
        while let Some(listener) = wanting.next() {
            if wanting.peek().is_none() {
                // Whoever is gone by now needs to hear nothing.
                let _ = listener.events.send(event);
                return;
            }
            let _ = listener.events.send(event.clone());
        }
    }

    /// Records a response. It is only spelled out where somebody listens: it may name thousands of resources.
    pub(crate) fn record_response(&self, type_url: &TypeUrl, spell_out: impl FnOnce() -> SentResponse) {
        let is_heard = lock(&self.listeners).iter().any(|listener| !listener.only_notable);
        if is_heard || tracing::enabled!(tracing::Level::DEBUG) {
            return self.record(Event::ResponseSent(spell_out()));
        }
        add_one(&self.responses);
        add_one(&self.responses_by_type[position(type_url)]);
    }

    pub(crate) fn count_encoding(&self) {
        add_one(&self.encodings);
    }

    pub(crate) fn count_bytes(&self, bytes: usize) {
        self.response_bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    pub(crate) fn count_first_response(&self, after: Duration) {
        let index = Waits::BOUNDS.iter().position(|bound| after.as_secs_f64() <= *bound);
        add_one(&self.waits[index.unwrap_or(Waits::BOUNDS.len())]);
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.waited.fetch_add(micros, Ordering::AcqRel);
    }

    fn refused(&self, refusal: Refusal) -> &AtomicU64 {
        match refusal {
            Refusal::Busy => &self.refused[0],
            Refusal::Draining => &self.refused[1],
            Refusal::Closed => &self.refused[2],
        }
    }

    pub(crate) fn listen(&self, only_notable: bool) -> Events {
        let (sender, events) = mpsc::unbounded_channel();
        lock(&self.listeners).push(Listener { events: sender, only_notable });
        Events(events)
    }

    pub(crate) fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.connections.fetch_add(1, Ordering::AcqRel) + 1)
    }

    pub(crate) fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::AcqRel) + 1)
    }

    pub(crate) fn stats(&self) -> Stats {
        // Ends are read before beginnings, so that no count of open things can fall below zero.
        let closed_connections = self.closed_connections.load(Ordering::Acquire);
        let closed_streams = self.closed_streams.load(Ordering::Acquire);
        let connections = self.connections.load(Ordering::Acquire);
        let streams = self.streams.load(Ordering::Acquire);
        Stats {
            open_connections: connections - closed_connections,
            connections,
            open_streams: streams - closed_streams,
            streams,
            requests: self.requests.load(Ordering::Acquire),
            nacks: self.nacks.load(Ordering::Acquire),
            responses: self.responses.load(Ordering::Acquire),
            encodings: self.encodings.load(Ordering::Acquire),
            response_bytes: self.response_bytes.load(Ordering::Acquire),
            refused_busy: self.refused(Refusal::Busy).load(Ordering::Acquire),
            refused_draining: self.refused(Refusal::Draining).load(Ordering::Acquire),
            refused_closed: self.refused(Refusal::Closed).load(Ordering::Acquire),
            asked_too_much: self.asked_too_much.load(Ordering::Acquire),
            slow_readers: self.slow_readers.load(Ordering::Acquire),
            by_type: std::array::from_fn(|index| TypeStats {
                responses: self.responses_by_type[index].load(Ordering::Acquire),
                nacks: self.nacks_by_type[index].load(Ordering::Acquire),
            }),
            first_responses: Waits {
                counts: std::array::from_fn(|index| self.waits[index].load(Ordering::Acquire)),
                micros: self.waited.load(Ordering::Acquire),
            },
        }
    }
}

/// Where a type is counted: clients choose type URLs, so all that are not known are one.
fn position(type_url: &TypeUrl) -> usize {
    let name = type_url.short_name();
    Stats::TYPES.iter().position(|known| *known == name).unwrap_or(Stats::TYPES.len() - 1)
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::AcqRel);
}

/// A poisoned lock only means that another thread panicked between two whole changes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
