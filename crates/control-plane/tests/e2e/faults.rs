//! Every fault, set and lifted while a real client is connected.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use mainstay_control_plane::{ControlPlane, Corruption, Event, Server, Snapshot, TypeUrl, resources};
use prost::Message;
use tonic::Code;

use crate::common::{Client, channel, in_time};

#[tokio::test]
async fn a_black_hole_accepts_connections_and_says_nothing() {
    let server = serve().await;
    let mut events = server.events();
    let mut open = Client::connect(server.addr()).await;
    in_time(events.wait_for(|event| matches!(event, Event::StreamOpened { .. }).then_some(()))).await;
    server.faults().black_hole(true);
    let mut tcp = tokio::net::TcpStream::connect(server.addr()).await.unwrap();
    let connected = |event: &Event| matches!(event, Event::ConnectionOpened { .. }).then_some(());
    in_time(events.wait_for(connected)).await.unwrap();
    // HTTP/2 servers speak first (settings): this one must not, and requests must not be read.
    open.subscribe(TypeUrl::CLUSTER, &["a"]);
    assert_eq!(tcp.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(server.stats().requests, 0);
    server.faults().black_hole(false);
    open.response().await;
    in_time(tcp.readable()).await.unwrap();
    server.faults().black_hole(true);
    in_time(server.stop()).await;
    assert!(in_time(tokio::io::AsyncReadExt::read_to_end(&mut tcp, &mut Vec::new())).await.is_ok());
}

#[tokio::test]
async fn a_silent_server_reads_and_does_not_answer() {
    let server = serve().await;
    server.faults().silent(true);
    let mut events = server.events();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    in_time(events.request(TypeUrl::CLUSTER)).await.unwrap();
    assert_eq!(server.stats().responses, 0);
    server.faults().silent(false);
    assert_eq!(client.response().await.resources.len(), 1);
}

#[tokio::test]
async fn a_stream_can_end_before_any_response() {
    // P-17.
    let server = serve().await;
    server.faults().close_streams_after(0, Code::Unavailable);
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    assert_eq!(client.next().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(server.stats().responses, 0);
}

#[tokio::test]
async fn a_stream_can_end_after_some_responses() {
    // P-18.
    let server = serve().await;
    server.faults().close_streams_after(2, Code::Ok);
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    client.response().await;
    assert_eq!(client.next().await.unwrap(), None);
}

#[tokio::test]
async fn streams_can_be_closed_by_hand() {
    let server = serve().await;
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    server.close_streams(Code::Aborted);
    assert_eq!(client.next().await.unwrap_err().code(), Code::Aborted);
    assert_eq!(server.stats().open_connections, 1);
}

#[tokio::test]
async fn a_server_dies_when_a_deadly_resource_is_requested() {
    // The interop test's StopOnRequest.
    let server = serve().await;
    let mut events = server.events();
    server.faults().die_on_request(TypeUrl::ENDPOINTS, "a");
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.response().await;
    client.subscribe(TypeUrl::ENDPOINTS, &["other", "a"]);
    assert!(client.next().await.is_err());
    in_time(events.wait_for(|event| (*event == Event::Stopped).then_some(()))).await.unwrap();
    assert!(channel(server.addr()).connect().await.is_err());
    server.faults().heal();
    server.start().unwrap();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    assert_eq!(client.response().await.resources.len(), 1);
}

#[tokio::test]
async fn a_held_type_waits_for_its_release_and_others_do_not() {
    let server = serve().await;
    server.faults().hold(TypeUrl::CLUSTER);
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    assert_eq!(client.response().await.type_url, TypeUrl::ENDPOINTS.as_str());
    server.faults().release(&TypeUrl::CLUSTER);
    assert_eq!(client.response().await.type_url, TypeUrl::CLUSTER.as_str());
}

#[tokio::test]
async fn a_delayed_type_comes_later() {
    let server = serve().await;
    let delay = Duration::from_millis(30);
    server.faults().delay(TypeUrl::CLUSTER, delay);
    let mut client = Client::connect(server.addr()).await;
    let begin = tokio::time::Instant::now();
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    assert_eq!(client.response().await.type_url, TypeUrl::ENDPOINTS.as_str());
    assert_eq!(client.response().await.type_url, TypeUrl::CLUSTER.as_str());
    assert!(begin.elapsed() >= delay);
    server.faults().delay(TypeUrl::CLUSTER, Duration::from_secs(3600));
    server.control_plane().update(|snapshot| assert!(snapshot.remove(&TypeUrl::CLUSTER, "a")));
    server.faults().delay(TypeUrl::CLUSTER, Duration::ZERO);
    assert!(client.response().await.resources.is_empty());
}

#[tokio::test]
async fn a_corrupt_resource_is_sent_at_once_and_so_is_the_mended_one() {
    let server = serve().await;
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    let whole = client.response().await;
    server.faults().corrupt(TypeUrl::CLUSTER, "a", Corruption::Truncated(2));
    let cut = client.response().await;
    assert_ne!(cut.version_info, whole.version_info);
    assert_eq!(cut.resources[0].value, whole.resources[0].value[..2]);
    assert!(Cluster::decode(cut.resources[0].value.as_slice()).is_err());
    client.nack(&cut, &["a"], "bad");
    server.faults().corrupt(TypeUrl::CLUSTER, "a", Corruption::Bytes(vec![0xff]));
    assert_eq!(client.response().await.resources[0].value, [0xff]);
    server.faults().mend(&TypeUrl::CLUSTER, "a");
    assert_eq!(client.response().await.resources, whole.resources);
}

#[tokio::test]
async fn an_error_takes_the_place_of_a_resource() {
    // P-59.
    let server = serve().await;
    server.faults().resource_error(TypeUrl::ENDPOINTS, "a", Code::PermissionDenied, "not yours");
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    let response = client.response().await;
    assert!(response.resources.is_empty());
    let error = response.resource_errors[0].error_detail.clone().unwrap();
    assert_eq!((error.code, error.message.as_str()), (Code::PermissionDenied as i32, "not yours"));
    server.faults().mend(&TypeUrl::ENDPOINTS, "a");
    assert_eq!(client.response().await.resources.len(), 1);
}

#[tokio::test]
async fn a_type_that_nobody_asked_for_can_be_sent() {
    // P-36.
    let server = serve().await;
    let mut events = server.events();
    let mut client = Client::connect(server.addr()).await;
    in_time(events.wait_for(|event| matches!(event, Event::StreamOpened { .. }).then_some(()))).await;
    let unknown = DiscoveryResponse { type_url: "type.googleapis.com/my.Type".to_owned(), ..Default::default() };
    server.send_raw(&unknown);
    assert_eq!(client.response().await, unknown);
}

#[tokio::test]
async fn headers_can_come_as_late_as_the_first_response() {
    let server = serve().await;
    server.faults().late_headers(true);
    let channel = channel(server.addr()).connect().await.unwrap();
    let mut events = server.events();
    // A client that waits for headers before it says what it wants never gets them.
    let opening = tokio::spawn(async move { Client::open(channel, "node").await });
    in_time(events.wait_for(|event| matches!(event, Event::StreamOpened { .. }).then_some(()))).await;
    assert!(!opening.is_finished());
    server.send_raw(&DiscoveryResponse::default());
    let mut client = in_time(opening).await.unwrap();
    assert_eq!(client.response().await, DiscoveryResponse::default());
}

async fn serve() -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(
        Snapshot::builder().cluster(resources::eds_cluster("a")).endpoints(resources::endpoints("a", ["10.0.0.1:80"])),
    );
    control_plane.serve("127.0.0.1:0").await.unwrap()
}
