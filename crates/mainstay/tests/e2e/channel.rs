//! The channel: configuration in, traffic out.

use std::time::Duration;

use mainstay::bootstrap::BootstrapErrorKind;
use mainstay::{BuildError, Channel, WaitForReady};
use mainstay_control_plane::{RequestKind, Snapshot, TypeUrl, resources};
use mainstay_testservice::proto::{
    Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest, StreamingOutputCallRequest,
};
use tokio_stream::StreamExt;
use tonic::Code;

use crate::common::{
    Client, authority_recorder, backends, bootstrap, builder, call, call_within, client, control_plane, service,
    spread, until_answered_by,
};

#[tokio::test]
async fn calls_go_round_the_endpoints_of_the_control_plane() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one, &two])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    let counts = spread(&mut client, 10).await;
    assert_eq!((counts["one"], counts["two"]), (5, 5));
}

#[tokio::test]
async fn new_endpoints_and_new_routes_take_over_without_a_failed_call() {
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;

    server.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", [two.addr()])));
    until_answered_by(&mut client, "two").await;

    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::eds_cluster("other"));
        snapshot.insert(resources::endpoints("other", [three.addr()]));
        snapshot.insert(resources::route("service", "other"));
    });
    until_answered_by(&mut client, "three").await;
}

#[tokio::test]
async fn calls_go_on_while_the_control_plane_is_dead_and_after_its_return() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;

    server.stop().await;
    assert_eq!(spread(&mut client, 50).await["one"], 50);

    server.control_plane().set(service(&[&two]));
    server.start().unwrap();
    until_answered_by(&mut client, "two").await;
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_never_seen_while_another_answers() {
    let [one, mut dead] = backends(["one", "dead"]).await;
    dead.stop().await;
    let server = control_plane(service(&[&one, &dead])).await;
    let mut client = client(&[&server]);
    assert_eq!(spread(&mut client, 50).await["one"], 50);
}

#[tokio::test]
async fn all_four_shapes_of_streaming_pass() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();

    let wanted = StreamingOutputCallRequest {
        response_parameters: vec![ResponseParameters { size: 3, ..Default::default() }; 4],
        ..Default::default()
    };
    let sizes = |response: Result<mainstay_testservice::proto::StreamingOutputCallResponse, tonic::Status>| {
        response.unwrap().payload.unwrap().body.len()
    };
    let out = client.streaming_output_call(wanted.clone()).await.unwrap().into_inner();
    assert_eq!(out.map(sizes).collect::<Vec<_>>().await, [3; 4]);

    let payload = Some(Payload { body: vec![0; 5], ..Default::default() });
    let inputs = vec![StreamingInputCallRequest { payload, ..Default::default() }; 6];
    let sum = client.streaming_input_call(tokio_stream::iter(inputs)).await.unwrap().into_inner();
    assert_eq!(sum.aggregated_payload_size, 30);

    let both = client.full_duplex_call(tokio_stream::iter(vec![wanted; 2])).await.unwrap().into_inner();
    assert_eq!(both.map(sizes).collect::<Vec<_>>().await, [3; 8]);
}

#[tokio::test]
async fn a_deadline_holds_while_there_is_no_configuration() {
    let server = control_plane(Snapshot::builder().build()).await;
    server.faults().silent(true);
    let status = call_within(&mut client(&[&server]), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(
        status.message(),
        format!(
            "RPC to xds:///service ran out of time before it could be sent: waiting for the configuration; \
             {} has not answered yet",
            server.addr()
        )
    );
}

#[tokio::test]
async fn a_deadline_holds_while_endpoints_are_connected_to() {
    // Accepts connections in its backlog and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [silent.local_addr().unwrap()]));
    let server = control_plane(snapshot).await;
    let mut events = server.events();
    let mut client = client(&[&server]);
    let waiting = tokio::spawn(async move { call_within(&mut client, Duration::from_millis(200)).await });
    events.answer(TypeUrl::ENDPOINTS).await.unwrap();
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("before it could be sent: cluster \"service\""), "{}", status.message());
}

#[tokio::test]
async fn a_deadline_holds_while_an_endpoint_keeps_silent() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert("rpc-behavior", "keep-open".parse().unwrap());
    request.set_timeout(Duration::from_millis(50));
    let status = client.unary_call(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_deadline_holds_while_a_response_is_read() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    let hour = ResponseParameters { size: 1, interval_us: i32::MAX, ..Default::default() };
    let parameters = vec![ResponseParameters { size: 1, ..Default::default() }, hour];
    let mut request =
        tonic::Request::new(StreamingOutputCallRequest { response_parameters: parameters, ..Default::default() });
    request.set_timeout(Duration::from_millis(100));
    let mut responses = client.streaming_output_call(request).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().is_some());
    assert_eq!(responses.message().await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_route_limits_calls_without_a_deadline_of_their_own() {
    let [one] = backends(["one"]).await;
    let mut routes = resources::route("service", "service");
    let action = routes.virtual_hosts[0].routes[0].action.as_mut().unwrap();
    let envoy_types::pb::envoy::config::route::v3::route::Action::Route(action) = action else { panic!("a route") };
    action.max_stream_duration = Some(envoy_types::pb::envoy::config::route::v3::route_action::MaxStreamDuration {
        max_stream_duration: Some(envoy_types::pb::google::protobuf::Duration { seconds: 0, nanos: 50_000_000 }),
        ..Default::default()
    });
    let server = control_plane(service(&[&one])).await;
    server.control_plane().update(|snapshot| snapshot.insert(routes));
    let mut client = client(&[&server]);
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.metadata_mut().insert("rpc-behavior", "keep-open".parse().unwrap());
    assert_eq!(client.unary_call(request).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_call_fails_at_once_when_no_endpoint_can_be_reached_unless_it_waits_for_ready() {
    let [mut one] = backends(["one"]).await;
    one.stop().await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&one.addr().to_string()), "{}", status.message());

    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
    request.extensions_mut().insert(WaitForReady(true));
    let waiting = tokio::spawn(async move { client.unary_call(request).await });
    one.restart().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().into_inner().server_id, "one");
}

#[tokio::test]
async fn wait_for_ready_can_be_the_rule_of_a_channel() {
    let [mut one] = backends(["one"]).await;
    one.stop().await;
    let server = control_plane(service(&[&one])).await;
    let mut client = Client::new(builder(&[&server]).wait_for_ready(true).build().unwrap());
    let waiting = tokio::spawn(async move { call(&mut client).await });
    one.restart().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), "one");
}

#[tokio::test]
async fn a_call_says_why_there_is_no_configuration() {
    let server = control_plane(Snapshot::builder().build()).await;
    let channel = builder(&[&server]).resource_timeout(Duration::from_millis(20)).build().unwrap();
    let status = call(&mut Client::new(channel)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    for part in ["xds:///service", "Listener \"service\"", &server.addr().to_string(), "node \"test-node\""] {
        assert!(status.message().contains(part), "{part}: {}", status.message());
    }
}

#[tokio::test]
async fn the_authority_of_requests_is_the_name_of_the_target_unless_the_builder_sets_another() {
    let (backend, mut authorities) = authority_recorder().await;
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", "service")))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [backend]));
    let server = control_plane(snapshot).await;
    let _ = call(&mut client(&[&server])).await;
    assert_eq!(authorities.recv().await.unwrap(), "service");
    let other = builder(&[&server]).authority("shop.example:8080").build().unwrap();
    let _ = call(&mut Client::new(other)).await;
    assert_eq!(authorities.recv().await.unwrap(), "shop.example:8080");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_clone_closes_every_stream_task_and_connection() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one, &two])).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut first = client(&[&server]);
    let mut second = first.clone();
    until_answered_by(&mut first, "one").await;
    until_answered_by(&mut first, "two").await;
    drop(first);
    call(&mut second).await.expect("a clone keeps the channel alive");
    assert_eq!((server.stats().open_connections, server.stats().open_streams), (1, 1));
    drop(second);
    // The peers notice by the end of the connection; nothing else tells when all is done.
    let closed = async {
        let open = || (server.stats().open_connections, server.stats().open_streams, one.open_connections());
        while open() != (0, 0, 0) || two.open_connections() != 0 || tasks() > before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap_or_else(|_| {
        panic!(
            "left open: {:?}, backend connections {} and {}, tasks {} of {before} before",
            server.stats(),
            one.open_connections(),
            two.open_connections(),
            tasks()
        )
    });
}

#[tokio::test]
async fn five_thousand_clusters_cost_one_request_per_type_in_the_steady_state() {
    const CLUSTERS: usize = 5_000;
    let [one] = backends(["one"]).await;
    let names: Vec<_> = (0..CLUSTERS).map(|n| format!("cluster-{n:04}")).collect();
    let routes = names.iter().map(|name| resources::prefix_route(format!("/{name}/"), name));
    let routes = routes.chain([resources::prefix_route("", &names[0])]);
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::rds("routes")))
        .route(resources::route_table("routes", routes))
        .resources(names.iter().map(resources::eds_cluster))
        .resources(names.iter().map(|name| resources::endpoints(name, [one.addr()])));
    let server = control_plane(snapshot).await;
    let mut events = server.events();
    let mut client = client(&[&server]);
    // A busy machine takes its time over so many.
    call_within(&mut client, Duration::from_secs(60)).await.unwrap();

    // One request that asks and one that acknowledges, for each type, each with all names.
    for type_url in [TypeUrl::CLUSTER, TypeUrl::ENDPOINTS] {
        let mut requests = Vec::new();
        while requests.last() != Some(&(RequestKind::Ack, CLUSTERS)) {
            let request = events.request(type_url.clone()).await.unwrap();
            requests.push((request.kind, request.names.len()));
        }
        assert_eq!(requests.len(), 2, "{type_url:?}: {requests:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_built_says_why() {
    let server = control_plane(Snapshot::builder().build()).await;
    let build = |target: &str| Channel::builder(target).bootstrap(bootstrap(&[&server])).build().unwrap_err();
    assert_eq!(build("http://shop").to_string(), "target \"http://shop\" does not start with xds:");
    assert!(matches!(build("xds://nobody/shop"), BuildError::Target(_)));
    let BuildError::Bootstrap(error) = Channel::new("xds:///shop").unwrap_err() else { panic!("no bootstrap") };
    assert_eq!(error.kind(), BootstrapErrorKind::Missing);
}

#[test]
fn a_channel_outside_a_runtime_says_what_to_do() {
    let error = Channel::new("xds:///shop").unwrap_err();
    assert!(error.to_string().contains("#[tokio::main]"), "{error}");
}
