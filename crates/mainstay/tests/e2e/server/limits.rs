//! What callers may do to a server, and what becomes of those who do more.

use std::time::Duration;

use mainstay_testservice::proto::SimpleRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::drains::good;
use super::raw::{GOAWAY, RST_STREAM, RawHttp2};
use super::stage::{Stage, call};
use crate::common::in_time;

/// SV-20: a caller that never begins does not hold a connection for ever, nor does one that begins and does not go on.
#[tokio::test]
async fn a_caller_that_does_not_begin_is_closed() {
    let stage = Stage::with(|builder| builder.handshake_timeout(Duration::from_millis(200))).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut quiet = stage.caller().await;
    call(&mut quiet).await.unwrap();
    for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04"] {
        let mut stream = TcpStream::connect(stage.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        // The settings of the server may come; then it is over.
        in_time(stream.read_to_end(&mut heard)).await.unwrap();
    }
    call(&mut quiet).await.unwrap();
    assert_eq!(stage.seen.callers(), 1, "one that has begun may be quiet for as long as it likes");
}

/// SV-24: what callers are told that they may do.
#[tokio::test]
async fn limits_have_defaults_and_may_be_set() {
    let (max_concurrent_streams, max_header_list_size) = (3, 6);
    let stage = Stage::serving().await;
    let own = Stage::with(|builder| builder.max_concurrent_streams(7).max_header_list_size(4096)).await;
    own.set(own.listener());
    own.until_serving().await;
    for (stage, streams, headers) in [(stage, 100, 16 << 10), (own, 7, 4096)] {
        let mut raw = RawHttp2::connect(stage.address).await;
        assert_eq!(raw.setting(max_concurrent_streams).await, Some(streams));
        let mut raw = RawHttp2::connect(stage.address).await;
        assert_eq!(raw.setting(max_header_list_size).await, Some(headers));
    }
}

/// SV-24: a caller that begins more RPCs than it may has those refused, as such that it may try again; the others go on.
#[tokio::test]
async fn more_streams_than_allowed_are_refused() {
    let stage = Stage::with(|builder| builder.max_concurrent_streams(2)).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut raw = RawHttp2::connect(stage.address).await;
    let waits = good().map(|(name, value)| match name {
        ":path" => (name, "/grpc.testing.TestService/UnaryCall"),
        _ => (name, value),
    });
    for stream in [1, 3, 5] {
        raw.begin(stream, &waits).await;
    }
    let frame = raw.next().await.expect("a refusal");
    let refused_stream = [0, 0, 0, 7];
    assert_eq!((frame.kind, frame.stream, &frame.payload[..]), (RST_STREAM, 5, &refused_stream[..]));
    assert_eq!(stage.seen.requests(), 2);
}

/// SV-24: headers larger than allowed fail their RPC, reach no handler, and cost no other RPC of the connection anything.
#[tokio::test]
async fn headers_that_are_too_large_fail_their_rpc() {
    let stage = Stage::serving().await;
    let mut caller = stage.caller().await;
    for (bytes, fits) in [(15 << 10, true), (17 << 10, false)] {
        let mut request = tonic::Request::new(SimpleRequest::default());
        request.metadata_mut().insert("large", "x".repeat(bytes).parse().unwrap());
        let before = stage.seen.requests();
        let answer = in_time(caller.unary_call(request)).await;
        assert_eq!((answer.is_ok(), stage.seen.requests() - before), (fits, u64::from(fits)), "{bytes}: {answer:?}");
    }
    call(&mut caller).await.unwrap();
    assert_eq!(stage.seen.callers(), 1, "all on one connection");
}

/// SV-24: RPCs that are begun only to be taken back ("rapid reset", CVE-2023-44487) end their connection, and no other.
#[tokio::test]
async fn a_flood_of_resets_ends_its_connection() {
    let stage = Stage::serving().await;
    let mut other = stage.caller().await;
    call(&mut other).await.unwrap();
    let before = stage.seen.requests();
    let mut raw = RawHttp2::connect(stage.address).await;
    raw.begin_and_reset(5_000, &good()).await;
    let goaway = loop {
        let frame = raw.next().await.expect("a GOAWAY");
        if frame.kind == GOAWAY {
            break frame;
        }
    };
    let enhance_your_calm = [0, 0, 0, 11];
    assert_eq!(goaway.payload[4..8], enhance_your_calm);
    assert!(stage.seen.requests() - before < 1_000, "{} reached a handler", stage.seen.requests() - before);
    call(&mut other).await.unwrap();
}
