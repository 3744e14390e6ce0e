//! Metrics of calls and attempts (A66, A78, A89, A96, S-61 to S-64), and what traces need to know of them.
//!
//! An attempt begins when there is a configuration to decide by, and includes the time that it takes to pick an
//! endpoint. What was begun and not ended is cancelled when its observer is dropped.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use mainstay_lb::{Failure, Origin};
use mainstay_xds::resource::endpoint::Locality;
use opentelemetry::KeyValue;
use tonic::body::Body;
use tonic::{Code, GrpcMethod, Status};

use super::TARGET;
use super::builder::Telemetry;
use super::messages::Messages;
use super::subchannels::origin_labels;
use super::traces::Trace;
use crate::code;
use crate::guard;

/// Sees the RPCs of a channel.
pub(crate) struct ChannelObserver(Option<Arc<Observing>>);

struct Observing {
    telemetry: Telemetry,
    target: Arc<str>,
}

/// Sees one RPC. Empty if nobody wants to know.
#[derive(Default)]
pub(crate) struct CallObserver(Option<Box<Call>>);

/// Sees what is sent in one attempt, from wherever it is sent.
#[derive(Clone, Default)]
pub(crate) struct SentObserver(Option<Arc<Sent>>);

struct Sent {
    messages: Mutex<Messages>,
    trace: Trace,
}

struct Call {
    of: Arc<Observing>,
    method: Arc<str>,
    start: Instant,
    trace: Trace,
    attempt: Option<Attempt>,
    /// Whether it waits, or waited, for a configuration.
    waits: bool,
    /// Whether there was an attempt, and when the last one ended.
    idle_since: Option<Instant>,
    /// Whether the next attempt is no new one for the policy (A6).
    transparent: bool,
    retries: u64,
    transparent_retries: u64,
    retry_delay: Duration,
    ended: bool,
}

struct Attempt {
    start: Instant,
    trace: Trace,
    /// Whether it waits, or waited, for a pick.
    waits: bool,
    /// The leaf cluster of the last pick (S-64).
    cluster: Option<Arc<str>>,
    /// The locality of the last pick, if that was successful (S-63).
    locality: Option<Arc<Locality>>,
    sent: SentObserver,
    received: Messages,
}

// === impl ChannelObserver ===

impl ChannelObserver {
    /// Of the channel to `target`.
    pub(crate) fn new(telemetry: Option<&Telemetry>, target: &Arc<str>) -> Self {
        let wanted = telemetry.filter(|telemetry| telemetry.instruments().of_calls() || telemetry.tracer().is_some());
        Self(wanted.map(|telemetry| Arc::new(Observing { telemetry: telemetry.clone(), target: target.clone() })))
    }

    /// An RPC begins.
    pub(crate) fn begin(&self, request: &http::Request<Body>) -> CallObserver {
        let begun = self.0.as_ref().map(|observing| {
            let path = request.uri().path().trim_start_matches('/');
            // Generated clients say which method it is. Others may send any path, and labels must stay few (S-61).
            let known = request.extensions().get::<GrpcMethod<'static>>().is_some();
            let trace = guard::catch(|| Trace::of_call(observing.telemetry.tracer(), path)).unwrap_or_default();
            Box::new(Call {
                of: observing.clone(),
                method: if known { path.into() } else { OTHER.into() },
                start: Instant::now(),
                trace,
                attempt: None,
                waits: false,
                idle_since: None,
                transparent: false,
                retries: 0,
                transparent_retries: 0,
                retry_delay: Duration::ZERO,
                ended: false,
            })
        });
        CallObserver(begun)
    }
}

// === impl CallObserver ===

impl CallObserver {
    /// The RPC waits: for a configuration, or for an endpoint to be picked.
    pub(crate) fn wait(&mut self, why: &Failure) {
        self.watch(|call| {
            if why.no_config {
                call.waits = true;
            } else {
                call.attempt().miss(why).waits = true;
            }
        });
    }

    /// The RPC cannot be sent. Without a configuration there was no attempt.
    pub(crate) fn give_up(&mut self, why: &Failure) {
        if !why.no_config {
            self.watch(|call| _ = call.attempt().miss(why));
        }
    }

    /// An endpoint was picked.
    pub(crate) fn pick(&mut self, origin: &Arc<Origin>) {
        self.watch(|call| {
            let attempt = call.attempt();
            if std::mem::take(&mut attempt.waits) {
                attempt.trace.event("Delayed LB pick complete");
            }
            (attempt.cluster, attempt.locality) = (Some(origin.cluster.clone()), Some(origin.locality.clone()));
        });
    }

    /// The attempt is about to be sent with these headers. Whoever sends its body tells the answer.
    pub(crate) fn send(&mut self, headers: &mut HeaderMap) -> SentObserver {
        self.watch(|call| {
            let attempt = call.attempt();
            attempt.trace.inject(headers);
            attempt.sent.clone()
        })
    }

    /// Data of the response came.
    pub(crate) fn receive(&mut self, data: &[u8]) {
        self.watch(|call| {
            if let Some(Attempt { received, trace, .. }) = &mut call.attempt {
                received.follow(data, |message| trace.inbound(message));
            }
        });
    }

    /// The attempt ended, and another one follows: at the cost of nobody if it is `transparent`.
    pub(crate) fn end_attempt(&mut self, code: Code, message: &str, transparent: bool) {
        self.watch(|call| {
            call.end_attempt(code, message);
            call.transparent = transparent;
        });
    }

    /// The RPC ended, and with it the attempt.
    pub(crate) fn end(&mut self, code: Code, message: &str) {
        self.watch(|call| call.end(code, message));
        self.forget();
    }

    /// The RPC ended with the status in these headers, if anybody wants to know.
    pub(crate) fn end_with(&mut self, code: Code, headers: Option<&HeaderMap>) {
        if self.0.is_some() {
            let status = headers.and_then(Status::from_header_map);
            self.end(code, status.as_ref().map(Status::message).unwrap_or_default());
        }
    }

    /// Has telemetry look at the RPC, if anybody wants to know. If it panics it sees no more of this one: an RPC does not
    /// fail because of who watches it.
    fn watch<T: Default>(&mut self, look: impl FnOnce(&mut Call) -> T) -> T {
        let Some(call) = &mut self.0 else { return T::default() };
        match guard::catch(|| look(call)) {
            Ok(seen) => seen,
            Err(panic) => {
                tracing::error!(who = "telemetry", %panic, "panicked");
                call.ended = true;
                self.forget();
                T::default()
            }
        }
    }

    fn forget(&mut self) {
        if let Some(call) = self.0.take() {
            guard::shielded("telemetry", || drop(call));
        }
    }
}

// === impl Call ===

impl Call {
    /// The attempt under way; a new one if there is none.
    fn attempt(&mut self) -> &mut Attempt {
        if self.attempt.is_none() {
            self.attempt = Some(self.begin_attempt());
        }
        self.attempt.as_mut().expect("begun just now")
    }

    fn begin_attempt(&mut self) -> Attempt {
        let start = Instant::now();
        if std::mem::take(&mut self.waits) {
            self.trace.event("Delayed name resolution complete");
        }
        let transparent = std::mem::take(&mut self.transparent);
        if let Some(since) = self.idle_since.take() {
            self.retry_delay += start.duration_since(since);
            *(if transparent { &mut self.transparent_retries } else { &mut self.retries }) += 1;
        }
        if let Some(counter) = &self.of.telemetry.instruments().attempt_started {
            counter.add(1, &[self.method_label(), self.target_label()]);
        }
        let trace = self.trace.of_attempt(self.of.telemetry.tracer(), self.retries, transparent);
        let sent = Sent { messages: Mutex::default(), trace: trace.clone() };
        Attempt {
            start,
            trace,
            waits: false,
            cluster: None,
            locality: None,
            sent: SentObserver(Some(Arc::new(sent))),
            received: Messages::default(),
        }
    }

    fn end_attempt(&mut self, code: Code, message: &str) {
        let Some(attempt) = self.attempt.take() else { return };
        let end = Instant::now();
        self.idle_since = Some(end);
        let telemetry = &self.of.telemetry;
        let instruments = telemetry.instruments();
        if instruments.of_attempts() {
            let mut labels = vec![self.method_label(), self.target_label(), KeyValue::new(STATUS, name(code))];
            origin_labels(telemetry.labels(), attempt.cluster.as_ref(), attempt.locality.as_deref(), &mut labels);
            if let Some(histogram) = &instruments.attempt_duration {
                histogram.record(end.duration_since(attempt.start).as_secs_f64(), &labels);
            }
            if let Some(histogram) = &instruments.attempt_sent {
                histogram.record(attempt.sent.bytes(), &labels);
            }
            if let Some(histogram) = &instruments.attempt_received {
                histogram.record(attempt.received.bytes, &labels);
            }
        }
        attempt.trace.end(code, name(code), message);
    }

    fn end(&mut self, code: Code, message: &str) {
        self.end_attempt(code, message);
        self.ended = true;
        let instruments = self.of.telemetry.instruments();
        let (method, target) = (self.method_label(), self.target_label());
        if let Some(histogram) = &instruments.call_duration {
            let labels = [method.clone(), target.clone(), KeyValue::new(STATUS, name(code))];
            histogram.record(self.start.elapsed().as_secs_f64(), &labels);
        }
        let labels = [method, target];
        let counts = [
            (self.retries, &instruments.call_retries),
            (self.transparent_retries, &instruments.call_transparent_retries),
        ];
        for (count, histogram) in counts {
            if let (1.., Some(histogram)) = (count, histogram) {
                histogram.record(count, &labels);
            }
        }
        if let (true, Some(histogram)) = (!self.retry_delay.is_zero(), &instruments.call_retry_delay) {
            histogram.record(self.retry_delay.as_secs_f64(), &labels);
        }
        self.trace.end(code, name(code), message);
    }

    fn method_label(&self) -> KeyValue {
        KeyValue::new(METHOD, self.method.clone())
    }

    fn target_label(&self) -> KeyValue {
        KeyValue::new(TARGET, self.of.target.clone())
    }
}

impl Attempt {
    /// A pick found no endpoint.
    fn miss(&mut self, why: &Failure) -> &mut Self {
        (self.cluster, self.locality) = (why.cluster.clone(), None);
        self
    }
}

impl Drop for Call {
    /// Whoever made the RPC does not want it any more.
    fn drop(&mut self) {
        if !self.ended {
            // Maybe because of a panic: a second one would end the process.
            guard::shielded("telemetry", || self.end(Code::Cancelled, ""));
        }
    }
}

// === impl SentObserver ===

impl SentObserver {
    /// Data of the request leaves.
    pub(crate) fn send(&self, data: &[u8]) {
        if let Some(sent) = &self.0 {
            lock(&sent.messages).follow(data, |message| sent.trace.outbound(message));
        }
    }

    fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |sent| lock(&sent.messages).bytes)
    }
}

impl fmt::Debug for CallObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallObserver").field(&self.0.as_ref().map(|call| &call.method)).finish()
    }
}

impl fmt::Debug for SentObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SentObserver").field(&self.bytes()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As gRPC spells it.
pub(super) fn name(code: Code) -> &'static str {
    code::of_tonic(code).name()
}

pub(super) const METHOD: &str = "grpc.method";
pub(super) const STATUS: &str = "grpc.status";

/// The method of RPCs that no generated client makes, or no server knows (S-61).
pub(super) const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

    use super::*;

    #[test]
    fn attempts_that_cost_nobody_anything_are_counted_apart_from_retries() {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let telemetry = Telemetry::builder().meter_provider(&provider).experimental_metrics().build();
        let channel = ChannelObserver::new(Some(&telemetry), &"xds:///service".into());
        let mut call = channel.begin(&http::Request::post("/service/method").body(Body::empty()).unwrap());
        for (code, transparent) in [(Code::Unavailable, true), (Code::Unavailable, true), (Code::Unavailable, false)] {
            call.pick(&Arc::default());
            call.end_attempt(code, "", transparent);
        }
        call.pick(&Arc::default());
        call.end(Code::Ok, "");
        provider.force_flush().unwrap();
        let collected = exporter.get_finished_metrics().unwrap();
        assert_eq!(recorded(&collected, "grpc.client.call.transparent_retries"), Some((1, 2)), "A96");
        assert_eq!(recorded(&collected, "grpc.client.call.retries"), Some((1, 1)), "A96");
        assert_eq!(recorded(&collected, "grpc.client.call.hedges"), None);
    }

    #[test]
    fn nothing_is_observed_if_no_metric_of_calls_is_on() {
        let provider = SdkMeterProvider::builder().build();
        let mut builder = Telemetry::builder().meter_provider(&provider).metric("grpc.xds_client.connected", true);
        for name in ["started", "duration", "sent_total_compressed_message_size", "rcvd_total_compressed_message_size"]
        {
            builder = builder.metric(format!("grpc.client.attempt.{name}"), false);
        }
        let telemetry = builder.metric("grpc.client.call.duration", false).build();
        assert!(ChannelObserver::new(Some(&telemetry), &"xds:///service".into()).0.is_none());
        assert!(ChannelObserver::new(Some(&Telemetry::builder().build()), &"xds:///service".into()).0.is_none());
    }

    /// How many calls were recorded, and the sum.
    fn recorded(collected: &[ResourceMetrics], name: &str) -> Option<(u64, u64)> {
        let mut metrics = collected.last()?.scope_metrics().flat_map(|scope| scope.metrics());
        match metrics.find(|metric| metric.name() == name)?.data() {
            AggregatedMetrics::U64(MetricData::Histogram(histogram)) => {
                histogram.data_points().next().map(|point| (point.count(), point.sum()))
            }
            other => panic!("{name} is no histogram of numbers: {other:?}"),
        }
    }
}
