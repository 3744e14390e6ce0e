//! Traces (A72, S-80 to S-84): a span for each RPC of a channel, one for each attempt below it, and one for each RPC of a server.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use tonic::Code;

use super::messages::Message;

/// One span, or none if there are no traces.
#[derive(Clone, Default)]
pub(super) struct Trace(Option<Span>);

#[derive(Clone)]
struct Span {
    /// With the span in it.
    context: Context,
    /// `service.method`.
    name: Box<str>,
}

impl Trace {
    /// Of an RPC to `path`, which has no slash in front, below what the caller is doing now.
    pub(super) fn of_call(tracer: Option<&BoxedTracer>, path: &str) -> Self {
        Self(tracer.map(|tracer| {
            let (name, parent) = (path.replace('/', "."), Context::current());
            let builder = tracer.span_builder(format!("Sent.{name}")).with_kind(SpanKind::Client);
            let span = tracer.build_with_context(builder, &parent);
            Span { context: parent.with_span(span), name: name.into() }
        }))
    }

    /// Of an attempt of this RPC.
    pub(super) fn of_attempt(&self, tracer: Option<&BoxedTracer>, previous: u64, transparent: bool) -> Self {
        Self(tracer.zip(self.0.as_ref()).map(|(tracer, Span { context, name })| {
            let previous = i64::try_from(previous).unwrap_or(i64::MAX);
            let builder = tracer.span_builder(format!("Attempt.{name}")).with_attributes([
                KeyValue::new("previous-rpc-attempts", previous),
                KeyValue::new("transparent-retry", transparent),
            ]);
            let span = tracer.build_with_context(builder, context);
            Span { context: context.with_span(span), name: name.clone() }
        }))
    }

    /// Of an RPC to `path`, which has no slash in front, that a server has received with these headers: below the span that they
    /// name, if they do, in the way that the process has chosen (S-84).
    pub(super) fn of_received(tracer: Option<&BoxedTracer>, path: &str, headers: &HeaderMap) -> Self {
        Self(tracer.map(|tracer| {
            let name = path.replace('/', ".");
            let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Received(headers)));
            let builder = tracer.span_builder(format!("Recv.{name}")).with_kind(SpanKind::Server);
            let span = tracer.build_with_context(builder, &parent);
            Span { context: parent.with_span(span), name: name.into() }
        }))
    }

    /// Tells the endpoint which span it works for, in the way that the process has chosen (S-84).
    pub(super) fn inject(&self, headers: &mut HeaderMap) {
        if let Some(Span { context, .. }) = &self.0 {
            global::get_text_map_propagator(|propagator| propagator.inject_context(context, &mut Headers(headers)));
        }
    }

    pub(super) fn event(&self, name: &'static str) {
        if let Some(Span { context, .. }) = &self.0 {
            context.span().add_event(name, Vec::new());
        }
    }

    /// A message left. Of one that is compressed, only that size is known.
    pub(super) fn outbound(&self, message: Message) {
        let compressed = message.compressed;
        self.message(if compressed { "Outbound message compressed" } else { "Outbound message" }, message);
    }

    /// A message came.
    pub(super) fn inbound(&self, message: Message) {
        let compressed = message.compressed;
        self.message(if compressed { "Inbound compressed message" } else { "Inbound message" }, message);
    }

    pub(super) fn end(&self, code: Code, name: &str, message: &str) {
        if let Some(Span { context, .. }) = &self.0 {
            let span = context.span();
            span.set_status(match code {
                Code::Ok => Status::Ok,
                _ => Status::error(format!("{name}, {message}")),
            });
            span.end();
        }
    }

    fn message(&self, event: &'static str, message: Message) {
        if let Some(Span { context, .. }) = &self.0 {
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let size = if message.compressed { "message-size-compressed" } else { "message-size" };
            let attributes = vec![
                KeyValue::new("sequence-number", number(message.number)),
                KeyValue::new(size, number(message.size as u64)),
            ];
            context.span().add_event(event, attributes);
        }
    }
}

/// Metadata, to be written by a propagator.
struct Headers<'a>(&'a mut HeaderMap);

/// Metadata, to be read by a propagator.
struct Received<'a>(&'a HeaderMap);

impl Extractor for Received<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        // A propagator that writes what no header can hold writes nothing.
        if let (Ok(key), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(key, value);
        }
    }
}
