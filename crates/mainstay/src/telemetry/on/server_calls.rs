//! Calls on servers (A66).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use opentelemetry::KeyValue;
use tonic::Code;

use super::builder::Telemetry;
use super::calls::{METHOD, OTHER, STATUS, name};
use super::messages::Messages;
use crate::guard;

/// Sees the RPCs of a server.
pub(crate) struct ServerObserver(Option<Arc<Observing>>);

struct Observing {
    telemetry: Telemetry,
    /// The methods that have labels of their own.
    methods: Mutex<BTreeSet<Arc<str>>>,
}

/// Sees one RPC. Empty if nobody wants to know.
pub(crate) struct ServerCallObserver(Option<Box<Call>>);

/// Sees what is received in one RPC, from wherever it is read.
#[derive(Clone)]
pub(crate) struct ReceivedObserver(Arc<Mutex<Messages>>);

struct Call {
    of: Arc<Observing>,
    method: Arc<str>,
    start: Instant,
    sent: Messages,
    received: ReceivedObserver,
    ended: bool,
}

// === impl ServerObserver ===

impl ServerObserver {
    pub(crate) fn new(telemetry: Option<&Telemetry>) -> Self {
        let wanted = telemetry.filter(|telemetry| telemetry.instruments().of_server_calls());
        let observing = wanted.map(|telemetry| Observing { telemetry: telemetry.clone(), methods: Mutex::default() });
        Self(observing.map(Arc::new))
    }

    /// An RPC begins. `known` is whether the server has the service of its method.
    pub(crate) fn begin(&self, path: &str, known: bool) -> ServerCallObserver {
        let begun = self.0.as_ref().map(|observing| {
            let method = observing.method(path, known);
            if let Some(counter) = &observing.telemetry.instruments().server_call_started {
                guard::shielded("telemetry", || counter.add(1, &[KeyValue::new(METHOD, method.clone())]));
            }
            let received = ReceivedObserver(Arc::default());
            let (start, sent) = (Instant::now(), Messages::default());
            Box::new(Call { of: observing.clone(), method, start, sent, received, ended: false })
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
            call.sent.follow(data, |_| {});
        }
    }

    /// The RPC ended.
    pub(crate) fn end(&mut self, code: Code) {
        if let Some(mut call) = self.0.take() {
            call.end(code);
        }
    }
}

impl Call {
    fn end(&mut self, code: Code) {
        self.ended = true;
        guard::shielded("telemetry", || self.record(code));
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
            histogram.record(lock(&self.received.0).bytes, &labels);
        }
    }
}

impl Drop for Call {
    /// The caller does not want it any more.
    fn drop(&mut self) {
        if !self.ended {
            self.end(Code::Cancelled);
        }
    }
}

// === impl ReceivedObserver ===

impl ReceivedObserver {
    /// Data of the request came.
    pub(crate) fn receive(&self, data: &[u8]) {
        lock(&self.0).follow(data, |_| {});
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Methods with labels of their own. Real services have fewer.
const MAX_METHODS: usize = 1000;
