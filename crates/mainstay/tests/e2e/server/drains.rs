//! How connections end: told twice, without a reset, not all at the same moment.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::raw::{Frame, GOAWAY, RawHttp2};
use super::stage::{Stage, call};
use super::updates::{named, until_chain};

/// SV-21: GOAWAY with room for what is under way, then the one that says what was taken, then the end.
#[tokio::test]
async fn a_drained_connection_is_told_twice_and_not_reset() {
    let stage = Stage::serving().await;
    let mut raw = RawHttp2::connect(stage.address).await;
    raw.request(1, &good()).await;
    assert_eq!(raw.next().await.expect("an answer").stream, 1);
    stage.set(named("second", &stage));
    let mut goaways = Vec::new();
    while let Some(frame) = raw.next().await {
        assert_eq!(frame.kind, GOAWAY, "nothing else: {frame:?}");
        goaways.push(last_stream_and_code(&frame));
    }
    assert_eq!(goaways, [(i32::MAX as u32, 0), (1, 0)]);
}

/// SV-21: a caller that connects and has said nothing yet is drained when it has.
#[tokio::test]
async fn a_connection_is_drained_that_has_not_begun_to_speak() {
    let stage = Stage::serving().await;
    let stream = TcpStream::connect(stage.address).await.unwrap();
    // Accepted, as a later one has been.
    call(&mut stage.caller().await).await.unwrap();
    stage.set(named("second", &stage));
    until_chain(&stage, "second").await;
    let mut raw = RawHttp2::over(stream).await;
    raw.request(1, &good()).await;
    let (mut answered, mut goaways) = (false, 0);
    while let Some(frame) = raw.next().await {
        answered |= frame.stream == 1;
        goaways += usize::from(frame.kind == GOAWAY);
    }
    assert!(answered, "what it asked is answered");
    assert_eq!(goaways, 2);
}

/// SV-23: many callers do not all come back in the same moment.
#[tokio::test]
async fn many_connections_are_drained_over_time() {
    let stage = Stage::with(|builder| builder.drain_spread(Duration::from_secs(1))).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut connections = Vec::new();
    for _ in 0..many() {
        let mut raw = RawHttp2::connect(stage.address).await;
        raw.request(1, &good()).await;
        assert_eq!(raw.next().await.expect("an answer").stream, 1);
        connections.push(raw);
    }
    stage.set(named("second", &stage));
    let waiting = connections.into_iter().map(|mut raw| {
        tokio::spawn(async move {
            while raw.next().await.expect("a GOAWAY").kind != GOAWAY {}
            Instant::now()
        })
    });
    let mut told = Vec::new();
    for waiting in waiting.collect::<Vec<_>>() {
        told.push(waiting.await.unwrap());
    }
    let first = *told.iter().min().unwrap();
    for part in 0..4 {
        let from = first + Duration::from_millis(250) * part;
        let until = from + Duration::from_millis(250);
        assert!(told.iter().any(|at| (from..until).contains(at)), "none in part {part} of the second");
    }
}

/// A thousand, where the system lets one process have both ends of so many beside those of other tests.
fn many() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let files = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    if files >= 4096 { 1000 } else { 200 }
}

/// A request that is answered.
pub(crate) fn good() -> [(&'static str, &'static str); 5] {
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.testing.TestService/EmptyCall"),
        (":authority", "a"),
        ("content-type", "application/grpc"),
    ]
}

fn last_stream_and_code(goaway: &Frame) -> (u32, u32) {
    let number = |at: usize| u32::from_be_bytes(goaway.payload[at..at + 4].try_into().unwrap());
    (number(0), number(4))
}
