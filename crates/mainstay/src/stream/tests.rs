use std::time::Duration;

use http::uri::{Authority, Scheme};
use http_body::Body as _;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::DuplexStream;
use tonic::body::Body;

use super::*;
use crate::request::Request;
use crate::transport::Transport;

type Server = h2::server::Connection<DuplexStream, Bytes>;
type Connection = h2::client::Connection<Transport>;

#[tokio::test]
async fn a_request_that_is_there_as_a_whole_goes_out_with_its_headers_and_without_a_task() {
    let Pair { requests, connection, mut server } = connect(10).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    let response = requests.send(request("one").0).unwrap();
    assert_eq!(Handle::current().metrics().num_alive_tasks(), tasks);
    let driver = tokio::spawn(connection);
    let (request, mut respond) = server.accept().await.unwrap().unwrap();
    assert_eq!(request.uri(), "http://shop/s/m");
    let mut sent = request.into_body();
    assert_eq!(sent.data().await.unwrap().unwrap(), "one");
    assert!(sent.is_end_stream());
    respond.send_response(http::Response::new(()), true).unwrap();
    let serving = tokio::spawn(async move { server.accept().await.is_none() });
    let body = response.await.unwrap().into_body();
    assert!(body.is_end_stream());
    assert_eq!(requests.pulse.calls(1), 1, "until its body is dropped");
    drop(body);
    assert_eq!(requests.pulse.calls(1), 0);
    drop(requests);
    driver.await.unwrap().unwrap();
    assert!(serving.await.unwrap());
}

#[tokio::test]
async fn requests_wait_for_a_stream_in_their_order_and_those_given_up_never_reach_the_peer() {
    let Pair { requests, connection, mut server } = connect(1).await;
    tokio::spawn(connection);
    let requests = Arc::new(requests);
    let first = requests.send(request("first").0).unwrap();
    let (_, mut respond) = server.accept().await.unwrap().unwrap();
    assert!(!requests.has_room());
    let wait = |text: &'static str| {
        let requests = requests.clone();
        async move {
            let (outgoing, _request) = request(text);
            requests.turn().await.unwrap().send(outgoing).unwrap().await.unwrap();
        }
    };
    let mut waiting: Vec<_> = ["second", "third", "fourth", "fifth"].map(|text| Box::pin(wait(text))).into();
    for waits in &mut waiting {
        assert!(futures_util::poll!(waits).is_pending());
    }
    assert_eq!(requests.pulse.calls(1), 5);
    drop(waiting.remove(1));
    drop(waiting.remove(1));
    respond.send_response(http::Response::new(()), true).unwrap();
    let served = tokio::spawn(async move {
        let mut served = Vec::new();
        while let Some(Ok((request, mut respond))) = server.accept().await {
            served.push(request.into_body().data().await.unwrap().unwrap());
            respond.send_response(http::Response::new(()), true).unwrap();
        }
        served
    });
    first.await.unwrap();
    for waits in waiting {
        waits.await;
    }
    drop(requests);
    assert_eq!(served.await.unwrap(), ["second", "fifth"]);
}

#[tokio::test]
async fn the_one_that_waits_in_h2_is_reset_when_its_call_is_given_up() {
    let Pair { requests, mut connection, mut server } = connect(1).await;
    let gate = requests.gate();
    tokio::spawn(std::future::poll_fn(move |cx| {
        let polled = Pin::new(&mut connection).poll(cx);
        gate.upgrade().iter().for_each(|gate| gate.settle());
        polled
    }));
    let first = requests.send(request("first").0).unwrap();
    let (_, mut respond) = server.accept().await.unwrap().unwrap();
    let second = requests.turn().await.unwrap().send(request("second").0).unwrap();
    assert!(futures_util::poll!(Box::pin(requests.turn())).is_pending());
    drop(second);
    respond.send_response(http::Response::new(()), true).unwrap();
    let (_, mut respond) = server.accept().await.unwrap().unwrap();
    let serving = tokio::spawn(async move { server.accept().await.is_none() });
    first.await.unwrap();
    assert_eq!(std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap(), h2::Reason::CANCEL);
    drop((respond, requests));
    assert!(serving.await.unwrap());
}

#[tokio::test]
async fn it_is_known_whether_a_request_left_before_its_connection_ended() {
    let Pair { requests, mut connection, server } = connect(10).await;
    let left = requests.send(request("left").0).unwrap();
    assert!(futures_util::poll!(&mut connection).is_pending());
    let stayed = requests.send(request("stayed").0).unwrap();
    drop(server);
    drop(connection);
    assert!(matches!(left.await, Err(NoResponse::Failed(_))));
    assert!(matches!(stayed.await, Err(NoResponse::NeverLeft)));
    assert!(!requests.pulse.is_retired());
    assert!(matches!(requests.send(request("late").0), Err(Unsent::Closed)));
    assert!(requests.pulse.is_retired(), "whoever carries the connection may not know");
}

/// A server that drains pings after its good-bye. h2 answers that first, and then sends what was queued before it heard of it.
#[tokio::test]
async fn a_request_that_left_after_the_good_bye_is_as_one_that_never_left() {
    let Pair { requests, mut connection, mut server } = connect(10).await;
    let early = requests.send(request("early").0).unwrap();
    assert!(futures_util::poll!(&mut connection).is_pending());
    let (_, mut respond) = server.accept().await.unwrap().unwrap();
    server.graceful_shutdown();
    assert!(futures_util::poll!(Box::pin(server.accept())).is_pending());
    let late = requests.send(request("late").0).unwrap();
    assert!(futures_util::poll!(&mut connection).is_pending());
    assert!(requests.pulse.has_sent(late.stream), "h2 has sent it");
    respond.send_response(http::Response::new(()), true).unwrap();
    assert!(server.accept().await.is_none(), "nobody looks at it");
    drop((server, respond));
    connection.await.unwrap();
    assert!(early.await.is_ok(), "it was there in time");
    assert!(matches!(late.await, Err(NoResponse::NeverLeft)));
}

/// One that left before is the peer's to refuse, which counts (A6).
#[tokio::test]
async fn a_request_that_is_refused_by_a_good_bye_has_left() {
    let Pair { requests, mut connection, mut server } = connect(10).await;
    let refused = requests.send(request("refused").0).unwrap();
    assert!(futures_util::poll!(&mut connection).is_pending());
    server.abrupt_shutdown(h2::Reason::NO_ERROR);
    while server.accept().await.is_some() {}
    drop(server);
    let _ = connection.await;
    match refused.await {
        Err(NoResponse::Failed(error)) => assert!(failure::is_refusal(&error), "{error}"),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[tokio::test]
async fn a_request_that_is_no_good_is_not_sent() {
    let Pair { requests, connection: _connection, server: _server } = connect(10).await;
    let (mut outgoing, mut request) = request("one");
    outgoing.head.headers_mut().insert("connection", http::HeaderValue::from_static("close"));
    assert!(matches!(requests.send(outgoing), Err(Unsent::Malformed(_))));
    assert!(!request.strip_connection_headers(), "it was not the caller's");
    let broken = futures_util::stream::iter([Err::<Frame<Bytes>, _>(Status::data_loss("bug"))]);
    let (outgoing, _request) = request_of(Body::new(StreamBody::new(broken)));
    match requests.send(outgoing) {
        Err(Unsent::Broken(status)) => assert_eq!(status.message(), "bug"),
        other => panic!("{:?}", other.err()),
    }
    assert!(!requests.pulse.is_retired());
}

#[tokio::test]
async fn a_stream_that_breaks_before_anything_left_is_not_taken_for_a_lost_connection() {
    let Pair { requests, connection: _connection, server: _server } = connect(10).await;
    let broken = futures_util::stream::once(async {
        tokio::task::yield_now().await;
        Err::<Frame<Bytes>, _>(Status::data_loss("bug"))
    });
    let (outgoing, request) = request_of(Body::new(StreamBody::new(Box::pin(broken))));
    let response = requests.send(outgoing).unwrap();
    // The connection is not carried meanwhile, as happens on several threads.
    assert!(matches!(response.await, Err(NoResponse::Failed(_))), "sent again, it would be without its caller's error");
    assert_eq!(request.broken().map(|status| status.message().to_owned()).as_deref(), Some("bug"));
}

#[tokio::test]
async fn a_body_is_sent_as_the_peer_makes_room_and_ends_with_its_call() {
    let Pair { requests, connection, mut server } = connect(10).await;
    tokio::spawn(connection);
    let pieces = futures_util::stream::repeat_with(|| Ok::<_, Status>(Frame::data(Bytes::from_static(&[7; 1 << 14]))));
    let (outgoing, request) = request_of(Body::new(StreamBody::new(pieces)));
    let response = requests.send(outgoing).unwrap();
    let (received, mut respond) = server.accept().await.unwrap().unwrap();
    let serving = tokio::spawn(async move { while server.accept().await.is_some() {} });
    let mut received = received.into_body();
    let mut taken = 0;
    while taken < 1 << 20 {
        let data = received.data().await.unwrap().unwrap();
        taken += data.len();
        received.flow_control().release_capacity(data.len()).unwrap();
    }
    drop((response, request));
    while received.data().await.is_some_and(|data| data.is_ok()) {}
    assert_eq!(std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap(), h2::Reason::CANCEL);
    drop(requests);
    serving.await.unwrap();
}

struct Pair {
    requests: Requests,
    connection: Connection,
    server: Server,
}

/// A connection whose peer allows so many streams, and has said so.
async fn connect(max_streams: u32) -> Pair {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (transport, _, _) = Transport::over(Box::new(ours), Duration::MAX);
    // As a driver would hold it, for the life of the test.
    std::mem::forget(transport.pulse.clone());
    let pulse = transport.pulse.clone();
    let mut server = h2::server::Builder::new();
    server.max_concurrent_streams(max_streams);
    let (client, server) = tokio::join!(h2::client::Builder::new().handshake(transport), server.handshake(theirs));
    let ((h2, mut connection), server) = (client.unwrap(), server.unwrap());
    while h2.current_max_send_streams() != max_streams as usize {
        assert!(futures_util::poll!(&mut connection).is_pending());
        tokio::task::yield_now().await;
    }
    Pair { requests: Requests::new(h2, pulse), connection, server }
}

/// What is sent, and what keeps it from being given up.
fn request(text: &'static str) -> (Outgoing, Request) {
    request_of(Body::new(
        http_body_util::Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}),
    ))
}

fn request_of(body: Body) -> (Outgoing, Request) {
    let mut request = Request::new(http::Request::post("http://shop/s/m").body(body).unwrap());
    let outgoing = request.attempt(Scheme::HTTP, Authority::from_static("shop"), None, 0).unwrap();
    (outgoing, request)
}
