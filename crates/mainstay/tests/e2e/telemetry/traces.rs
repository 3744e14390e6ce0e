//! Traces (A72).

use std::convert::Infallible;
use std::net::SocketAddr;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay::Telemetry;
use mainstay_control_plane::resources;
use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::{EchoStatus, SimpleRequest};
use opentelemetry::trace::{FutureExt, SpanKind, Status as SpanStatus, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::Status;

use crate::common::{Client, backends, builder, call, control_plane, service};
use crate::retry::with_policy;
use crate::server::stage::Stage;

#[tokio::test]
async fn a_call_is_a_span_below_that_of_the_caller_and_each_attempt_one_below_it() {
    let [one] = backends(["one"]).await;
    let policy = with_policy(service(&[&one]), 1, std::time::Duration::from_millis(1));
    let server = control_plane(policy).await;
    let (exporter, provider) = tracing();
    let telemetry = Telemetry::builder().tracer_provider(&provider).build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    let context = Context::new().with_span(provider.tracer("test").start("outer"));
    let mut request = tonic::Request::new(SimpleRequest { response_size: 7, ..Default::default() });
    request.metadata_mut().insert(BEHAVIOR_KEY, "succeed-on-retry-attempt-1,error-code-14".parse().unwrap());
    client.unary_call(request).with_context(context.clone()).await.unwrap();

    let spans = exporter.get_finished_spans().unwrap();
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    let (attempt, sent) = ("Attempt.grpc.testing.TestService.UnaryCall", "Sent.grpc.testing.TestService.UnaryCall");
    assert_eq!(names, [attempt, attempt, sent], "S-80");
    let [first, second, call] = &*spans else { unreachable!("three names") };
    assert_eq!(call.parent_span_id, context.span().span_context().span_id());
    assert_eq!((&call.span_kind, &call.status), (&SpanKind::Client, &SpanStatus::Ok), "S-83");
    assert_eq!(events(call), ["Delayed name resolution complete"], "S-82");
    for (attempt, previous) in [(first, 0), (second, 1)] {
        assert_eq!(attempt.parent_span_id, call.span_context.span_id());
        let attributes: Vec<_> = attempt.attributes.iter().map(|a| (a.key.as_str(), a.value.clone())).collect();
        let expected = [("previous-rpc-attempts", Value::I64(previous)), ("transparent-retry", Value::Bool(false))];
        assert_eq!(attributes, expected, "S-81");
    }
    assert!(
        matches!(&first.status, SpanStatus::Error { description } if description.starts_with("UNAVAILABLE, ")),
        "S-83: {:?}",
        first.status
    );
    assert_eq!(second.status, SpanStatus::Ok);
    let outbound = "Outbound message sequence-number=0 message-size=2";
    assert_eq!(events(first), ["Delayed LB pick complete", outbound], "S-82");
    assert_eq!(events(second), [outbound, "Inbound message sequence-number=0 message-size=21"], "S-82");
}

#[tokio::test]
async fn the_context_of_the_attempt_is_sent_in_metadata() {
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let (address, mut parents) = parent_recorder().await;
    let mut snapshot = service(&[]);
    snapshot.insert(resources::endpoints("service", [address]));
    let server = control_plane(snapshot).await;
    let (exporter, provider) = tracing();
    let telemetry = Telemetry::builder().tracer_provider(&provider).build();
    let mut client = Client::new(builder(&[&server]).telemetry(telemetry).build().unwrap());
    call(&mut client).await.unwrap_err();
    let spans = exporter.get_finished_spans().unwrap();
    let context = &spans[0].span_context;
    let expected = format!("00-{}-{}-01", context.trace_id(), context.span_id());
    assert_eq!(parents.recv().await, Some(expected), "S-84");
    assert_eq!(spans[1].status, SpanStatus::error("UNIMPLEMENTED, not here"), "S-83");
}

/// S-80: an RPC of a server is a span below the one that its headers name.
#[tokio::test]
async fn an_rpc_of_a_server_is_a_span_below_that_of_its_caller() {
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let (exporter, provider) = tracing();
    let telemetry = Telemetry::builder().tracer_provider(&provider).build();
    let stage = Stage::with(|builder| builder.telemetry(telemetry)).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let not_found = EchoStatus { code: 5, message: "nobody".to_owned() };
    for response_status in [None, Some(not_found)] {
        let mut request =
            tonic::Request::new(SimpleRequest { response_size: 7, response_status, ..Default::default() });
        request.metadata_mut().insert("traceparent", parent.parse().unwrap());
        let _ = caller.unary_call(request).await;
    }
    let spans = exporter.get_finished_spans().unwrap();
    let [good, bad] = &*spans else { panic!("{spans:?}") };
    for span in [good, bad] {
        assert_eq!(span.name, "Recv.grpc.testing.TestService.UnaryCall");
        assert_eq!(span.span_kind, SpanKind::Server);
        assert_eq!(span.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c", "S-84");
        assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331", "S-84");
    }
    let [inbound, outbound] = &events(good)[..] else { panic!("{:?}", events(good)) };
    assert_eq!(inbound, "Inbound message sequence-number=0 message-size=2", "S-82");
    assert!(outbound.starts_with("Outbound message sequence-number=0 message-size="), "S-82: {outbound}");
    assert_eq!(good.status, SpanStatus::Ok, "S-83");
    assert_eq!(bad.status, SpanStatus::error("NOT_FOUND, nobody"), "S-83");
}

fn tracing() -> (InMemorySpanExporter, SdkTracerProvider) {
    let exporter = InMemorySpanExporter::default();
    (exporter.clone(), SdkTracerProvider::builder().with_simple_exporter(exporter).build())
}

/// Each event with its attributes.
fn events(span: &SpanData) -> Vec<String> {
    let text = |event: &opentelemetry::trace::Event| {
        let attributes = event.attributes.iter().map(|a| format!(" {}={}", a.key, a.value));
        format!("{}{}", event.name, attributes.collect::<String>())
    };
    span.events.iter().map(text).collect()
}

/// A server that notes the `traceparent` of every request and answers none of them well.
async fn parent_recorder() -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (record, recorded) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let record = record.clone();
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let parent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
                let _ = record.send(parent.unwrap_or_default().to_owned());
                async { Ok::<_, Infallible>(Status::unimplemented("not here").into_http::<tonic::body::Body>()) }
            });
            let connection = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, recorded)
}
