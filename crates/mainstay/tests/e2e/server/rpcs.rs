//! What becomes of single RPCs: malformed ones, those of no route, those whose handler panics.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use http::{Method, Request, Uri, header};
use mainstay_control_plane::resources;
use mainstay_testservice::proto::SimpleRequest;
use tonic::Code;
use tonic::service::InterceptorLayer;

use super::raw::{RST_STREAM, RawHttp2};
use super::stage::{Stage, call, listener, routes};
use crate::common::in_time;

/// SV-27: what is not well formed is refused before any rule or handler sees it, each as the rule says.
#[tokio::test]
async fn malformed_requests_reach_no_handler() {
    let stage = Stage::serving().await;
    let path = "/grpc.testing.TestService/FullDuplexCall";
    let uri = |authority: Option<&str>, path: &str| {
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(path.parse().unwrap());
        if let Some(authority) = authority {
            (parts.scheme, parts.authority) = (Some("http".parse().unwrap()), Some(authority.parse().unwrap()));
        }
        Uri::from_parts(parts).unwrap()
    };
    let request = |method: Method, uri: Uri, hosts: &[&str]| {
        let mut request = Request::builder().method(method).uri(uri).header("te", "trailers");
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        request.header(header::CONTENT_TYPE, "application/grpc").body(()).unwrap()
    };
    for (what, request, expected) in [
        ("one part", request(Method::POST, uri(Some("a"), "/UnaryCall"), &[]), Code::Unimplemented),
        ("three parts", request(Method::POST, uri(Some("a"), &format!("{path}/x")), &[]), Code::Unimplemented),
        ("an empty part", request(Method::POST, uri(Some("a"), "//UnaryCall"), &[]), Code::Unimplemented),
        ("only a query", request(Method::POST, uri(Some("a"), "?x"), &[]), Code::Unimplemented),
        ("a star", request(Method::POST, uri(Some("a"), "*"), &[]), Code::Unimplemented),
        ("GET", request(Method::GET, uri(Some("a"), path), &[]), Code::Internal),
        ("no authority", request(Method::POST, uri(None, path), &[]), Code::Internal),
        ("two hosts", request(Method::POST, uri(None, path), &["a", "b"]), Code::Internal),
    ] {
        assert_eq!(send(stage.address, request).await, expected, "{what}");
    }
    assert_eq!(stage.seen.requests(), 0);
    // S-48: a host stands in for a missing authority, and does not count beside one.
    for (authority, hosts) in [(Some("a"), vec!["b"]), (None, vec!["b"]), (Some("a"), vec!["b", "c"])] {
        let request = request(Method::POST, uri(authority, path), &hosts);
        assert_eq!(send(stage.address, request).await, Code::Ok, "{authority:?} {hosts:?}");
    }
    assert_eq!(stage.seen.requests(), 3);
}

/// SV-27: and what no client library sends.
#[tokio::test]
async fn malformed_frames_reach_no_handler() {
    let stage = Stage::serving().await;
    let good = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.testing.TestService/EmptyCall"),
        (":authority", "a"),
        ("content-type", "application/grpc"),
    ];
    let with = |name: &str, value: &'static str| good.map(|(n, v)| if n == name { (n, value) } else { (n, v) });
    let mut raw = RawHttp2::connect(stage.address).await;
    let without_slash = with(":path", "grpc.testing.TestService/EmptyCall");
    let two_authorities = [&good[..4], &[(":authority", "b")], &good[4..]].concat();
    let two_paths = [&good[..4], &[(":path", "/grpc.testing.TestService/EmptyCall")], &good[4..]].concat();
    for (what, stream, headers) in [
        ("a path without a slash", 1, &without_slash[..]),
        ("two authorities", 3, &two_authorities),
        ("two paths", 5, &two_paths),
    ] {
        raw.request(stream, headers).await;
        let frame = raw.next().await.expect(what);
        assert_eq!((frame.kind, frame.stream, &frame.payload[..]), (RST_STREAM, stream, &[0, 0, 0, 1][..]), "{what}");
    }
    assert_eq!(stage.seen.requests(), 0);
    raw.request(7, &good).await;
    in_time(async {
        while stage.seen.requests() == 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
}

/// SV-28, SV-29: without a virtual host or a route an RPC fails, and its caller learns nothing of the configuration.
#[tokio::test]
async fn rpcs_without_a_route_are_refused() {
    let stage = Stage::empty().await;
    let mut elsewhere = routes();
    elsewhere.virtual_hosts = vec![VirtualHost {
        name: "elsewhere".to_owned(),
        domains: vec!["elsewhere.example.com".to_owned()],
        ..elsewhere.virtual_hosts.remove(0)
    }];
    let nowhere = resources::route_table("routes", []);
    for routes in [elsewhere, nowhere] {
        stage.set(listener(stage.address, routes));
        stage.until_serving().await;
        let status = in_time(async {
            loop {
                if let Err(status) = call(&mut stage.caller().await).await {
                    break status;
                }
            }
        });
        let status = status.await;
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "configuration of the server is incomplete");
    }
    assert_eq!(stage.seen.requests(), 0);
}

/// SV-1: layers see what the control plane lets through, the first one first.
#[tokio::test]
async fn layers_are_around_the_handlers() {
    let stage = Stage::with(|builder| {
        builder
            .layer(InterceptorLayer::new(|mut request: tonic::Request<()>| {
                request.metadata_mut().insert("first", "seen".parse().unwrap());
                Ok(request)
            }))
            .layer(InterceptorLayer::new(|request: tonic::Request<()>| match request.metadata().get("first") {
                Some(_) => Err(tonic::Status::unauthenticated("who are you?")),
                None => Ok(request),
            }))
    })
    .await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let status = call(&mut stage.caller().await).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "who are you?"));
}

/// A panic of a handler fails its RPC, and no other one on the connection.
#[tokio::test]
async fn a_panic_fails_one_rpc() {
    let stage = Stage::with(|builder| {
        builder.layer(InterceptorLayer::new(|request: tonic::Request<()>| {
            assert!(request.metadata().get("panic").is_none(), "as the test wants it");
            Ok(request)
        }))
    })
    .await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    let mut streaming = super::updates::Streaming::begin(caller.clone()).await;
    for _ in 0..3 {
        let mut request = tonic::Request::new(SimpleRequest::default());
        request.metadata_mut().insert("panic", "please".parse().unwrap());
        let status = in_time(caller.unary_call(request)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Internal, "the handler panicked"));
        assert_eq!(call(&mut caller).await.unwrap(), "one");
    }
    streaming.exchange().await;
    assert_eq!(stage.connections().await, 1);
}

/// The deadline of the caller ends a handler that does not.
#[tokio::test]
async fn a_deadline_ends_the_handler() {
    let stage = Stage::serving().await;
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert(mainstay_testservice::BEHAVIOR_KEY, "sleep-60".parse().unwrap());
    request.set_timeout(Duration::from_millis(100));
    let status = in_time(stage.caller().await.unary_call(request)).await.unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()), "{status}");
}

/// Sends one request without a body over HTTP/2; the status that it ends with.
async fn send(address: SocketAddr, request: Request<()>) -> Code {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let (response, _) = client.send_request(request, true).unwrap();
    let response = in_time(response).await.unwrap();
    let status = response.headers().get("grpc-status");
    // Without one it is in the trailers.
    match status {
        Some(status) => Code::from_bytes(status.as_bytes()),
        None => {
            let mut body = response.into_body();
            while in_time(body.data()).await.is_some() {}
            let trailers = in_time(body.trailers()).await.unwrap().expect("trailers");
            Code::from_bytes(trailers["grpc-status"].as_bytes())
        }
    }
}
