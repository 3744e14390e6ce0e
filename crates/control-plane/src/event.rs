//! What happens at a server, as values that a test can wait for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

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

    /// The response, if this is one.
    pub fn as_response(&self) -> Option<&SentResponse> {
        if let Self::ResponseSent(response) = self { Some(response) } else { None }
    }
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
}

/// Counts events and hands them to whoever listens.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    listeners: Mutex<Vec<mpsc::UnboundedSender<Event>>>,
    connections: AtomicU64,
    closed_connections: AtomicU64,
    streams: AtomicU64,
    closed_streams: AtomicU64,
    requests: AtomicU64,
    nacks: AtomicU64,
    responses: AtomicU64,
    encodings: AtomicU64,
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
            Event::Request(request) => {
                add_one(&self.requests);
                if request.kind == RequestKind::Nack {
                    add_one(&self.nacks);
                }
            }
            Event::ResponseSent(_) => add_one(&self.responses),
        }
        tracing::debug!(?event);
        lock(&self.listeners).retain(|listener| listener.send(event.clone()).is_ok());
    }

    pub(crate) fn count_encoding(&self) {
        add_one(&self.encodings);
    }

    pub(crate) fn listen(&self) -> Events {
        let (listener, events) = mpsc::unbounded_channel();
        lock(&self.listeners).push(listener);
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
        }
    }
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::AcqRel);
}

/// A poisoned lock only means that another thread panicked between two whole changes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
