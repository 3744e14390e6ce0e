//! Calls on servers (A66, A72), and the TLS handshakes before them (A118).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use http::HeaderMap;
use opentelemetry::KeyValue;
use tonic::{Code, Status};

use super::builder::Telemetry;
use super::calls::{METHOD, OTHER, STATUS, name};
use super::handshakes::handshake_labels;
use super::messages::Messages;
use super::traces::Trace;
use crate::guard;
use crate::tls::Handshake;

/// Sees the RPCs of a server and the handshakes of its connections.
pub(crate) struct ServerObserver {
    calls: Option<Arc<Observing>>,
    /// Set if handshakes are counted.
    handshakes: Option<Telemetry>,
}

struct Observing {
    telemetry: Telemetry,
    /// The methods that have labels of their own.
    methods: Mutex<BTreeSet<Arc<str>>>,
}

/// Sees one RPC. Empty if nobody wants to know.
pub(crate) struct ServerCallObserver(Option<Box<Call>>);

/// Sees what is received in one RPC, from wherever it is read.
#[derive(Clone)]
pub(crate) struct ReceivedObserver {
    messages: Arc<Mutex<Messages>>,
    trace: Trace,
}

struct Call {
    of: Arc<Observing>,
    method: Arc<str>,
    start: Instant,
    sent: Messages,
    received: ReceivedObserver,
    trace: Trace,
    ended: bool,
}

// === impl ServerObserver ===

impl ServerObserver {
    pub(crate) fn new(telemetry: Option<&Telemetry>) -> Self {
        let is_wanted =
            |telemetry: &&Telemetry| telemetry.instruments().of_server_calls() || telemetry.tracer().is_some();
        let wanted = telemetry.filter(is_wanted);
        let observing = wanted.map(|telemetry| Observing { telemetry: telemetry.clone(), methods: Mutex::default() });
        let counted = telemetry.filter(|telemetry| telemetry.instruments().server_handshakes.is_some());
        Self { calls: observing.map(Arc::new), handshakes: counted.cloned() }
    }

    /// A TLS handshake ended.
    pub(crate) fn handshake(&self, handshake: Handshake) {
        let Some(telemetry) = &self.handshakes else { return };
        let Some(counter) = &telemetry.instruments().server_handshakes else { return };
        let labels: Vec<_> = handshake_labels(telemetry.labels(), handshake).collect();
        guard::shielded("telemetry", || counter.add(1, &labels));
    }

    /// An RPC begins. `known` is whether the server has the service of its method.
    pub(crate) fn begin(&self, path: &str, known: bool, headers: &HeaderMap) -> ServerCallObserver {
        let begun = self.calls.as_ref().map(|observing| {
            let method = observing.method(path, known);
            if let Some(counter) = &observing.telemetry.instruments().server_call_started {
                guard::shielded("telemetry", || counter.add(1, &[KeyValue::new(METHOD, method.clone())]));
            }
            let (tracer, name) = (observing.telemetry.tracer(), path.trim_start_matches('/'));
            let trace = guard::catch(|| Trace::of_received(tracer, name, headers)).unwrap_or_default();
            let received = ReceivedObserver { messages: Arc::default(), trace: trace.clone() };
            let (start, sent) = (Instant::now(), Messages::default());
            Box::new(Call { of: observing.clone(), method, start, sent, received, trace, ended: false })
        });
        ServerCallObserver(begun)
    }
}

impl Observing {
    /// The label of a method. Callers may ask for any, and labels must stay few (S-61).
    fn method(&self, path: &str, known: bool) -> Arc<str> {
        let path = path.trim_start_matches('/');
        if !known {
            return OTHER.into();
        }
        let mut methods = lock(&self.methods);
        if let Some(method) = methods.get(path) {
            return method.clone();
        }
        if methods.len() >= MAX_METHODS {
            return OTHER.into();
        }
        let method: Arc<str> = path.into();
        methods.insert(method.clone());
        method
    }
}

// === impl ServerCallObserver ===

impl ServerCallObserver {
    /// Who is to be told of what is received, if anybody.
    pub(crate) fn received(&self) -> Option<ReceivedObserver> {
        self.0.as_ref().map(|call| call.received.clone())
    }

    /// Data of the response leaves.
    pub(crate) fn send(&mut self, data: &[u8]) {
        if let Some(call) = &mut self.0 {
            let Call { sent, trace, .. } = &mut **call;
            guard::shielded("telemetry", || sent.follow(data, |message| trace.outbound(message)));
        }
    }

    /// The RPC ended with this status, of which the message is in the headers if there are any.
    pub(crate) fn end(&mut self, code: Code, headers: Option<&HeaderMap>) {
        if let Some(mut call) = self.0.take() {
            let status = headers.and_then(Status::from_header_map);
            call.end(code, status.as_ref().map(Status::message).unwrap_or_default());
        }
    }
}

impl Call {
    fn end(&mut self, code: Code, message: &str) {
        self.ended = true;
        guard::shielded("telemetry", || {
            self.record(code);
            self.trace.end(code, name(code), message);
        });
    }

    fn record(&self, code: Code) {
        let instruments = self.of.telemetry.instruments();
        let labels = [KeyValue::new(METHOD, self.method.clone()), KeyValue::new(STATUS, name(code))];
        if let Some(histogram) = &instruments.server_call_duration {
            histogram.record(self.start.elapsed().as_secs_f64(), &labels);
        }
        if let Some(histogram) = &instruments.server_call_sent {
            histogram.record(self.sent.bytes, &labels);
        }
        if let Some(histogram) = &instruments.server_call_received {
            histogram.record(lock(&self.received.messages).bytes, &labels);
        }
    }
}

impl Drop for Call {
    /// The caller does not want it any more.
    fn drop(&mut self) {
        if !self.ended {
            self.end(Code::Cancelled, "the caller has given up");
        }
    }
}

// === impl ReceivedObserver ===

impl ReceivedObserver {
    /// Data of the request came.
    pub(crate) fn receive(&self, data: &[u8]) {
        guard::shielded("telemetry", || lock(&self.messages).follow(data, |message| self.trace.inbound(message)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Methods with labels of their own. Real services have fewer.
const MAX_METHODS: usize = 1000;
