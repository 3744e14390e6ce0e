//! Updates under running RPCs: none fails, and everything comes to be as the control plane says.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use mainstay::ServingState;
use mainstay_control_plane::{Snapshot, SnapshotBuilder, TypeUrl, resources};
use mainstay_testservice::proto::{ResponseParameters, StreamingOutputCallRequest, StreamingOutputCallResponse};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming as Responses};

use super::stage::{PlainClient, Stage, call, listener, routes};
use crate::common::{self, in_time};

/// An RPC that goes on as long as it is wanted.
pub(crate) struct Streaming {
    requests: mpsc::UnboundedSender<StreamingOutputCallRequest>,
    responses: Responses<StreamingOutputCallResponse>,
}

impl Streaming {
    pub(crate) async fn begin(mut client: PlainClient) -> Self {
        let (requests, stream) = mpsc::unbounded_channel();
        let responses = in_time(client.full_duplex_call(UnboundedReceiverStream::new(stream))).await.unwrap();
        let mut streaming = Self { requests, responses: responses.into_inner() };
        streaming.exchange().await;
        streaming
    }

    /// There and back.
    pub(crate) async fn exchange(&mut self) {
        self.send();
        assert!(in_time(self.responses.message()).await.unwrap().is_some());
    }

    /// Ends well.
    pub(crate) async fn finish(self) {
        let Self { requests, mut responses } = self;
        drop(requests);
        assert!(in_time(responses.message()).await.unwrap().is_none());
    }

    /// Whether it ends badly.
    pub(crate) async fn fails(&mut self) -> bool {
        in_time(self.responses.message()).await.is_err()
    }

    fn send(&self) {
        let response_parameters = vec![ResponseParameters { size: 1, ..Default::default() }];
        self.requests.send(StreamingOutputCallRequest { response_parameters, ..Default::default() }).unwrap();
    }
}

/// SV-6, S-13: a new Listener is for new connections; RPCs on the old ones go on, and their connections end with them.
#[tokio::test]
async fn a_new_listener_fails_none_of_a_hundred_streams() {
    let stage = Stage::with(|builder| builder.drain_spread(Duration::ZERO)).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        let caller = stage.caller().await;
        for _ in 0..10 {
            streams.push(Streaming::begin(caller.clone()).await);
        }
    }
    assert_eq!(stage.connections().await, 10);
    stage.set(named("second", &stage));
    until_chain(&stage, "second").await;
    for stream in &mut streams {
        stream.exchange().await;
    }
    for stream in streams {
        stream.finish().await;
    }
    stage.until_connections(0).await;
}

/// S-13: connections that are not done when the grace is over are closed.
#[tokio::test]
async fn old_connections_end_with_the_grace() {
    let grace = Duration::from_millis(100);
    let stage = Stage::with(|builder| builder.drain_grace(grace).drain_spread(Duration::ZERO)).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut streaming = Streaming::begin(stage.caller().await).await;
    let began = Instant::now();
    stage.set(named("second", &stage));
    assert!(streaming.fails().await);
    assert!(began.elapsed() >= grace, "{:?}", began.elapsed());
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
}

/// SV-12: a Listener that is sent again in another version, and is the same, drains nothing.
#[tokio::test]
async fn an_equal_listener_does_nothing() {
    let mut stage = Stage::serving().await;
    assert_eq!(stage.next_state().await, ServingState::Serving);
    let mut caller = stage.caller().await;
    call(&mut caller).await.unwrap();
    let mut events = stage.control.events();
    for version in ["7", "8", "9"] {
        let snapshot = Snapshot::builder().listener(stage.listener()).version(TypeUrl::LISTENER, version);
        stage.control.control_plane().set(snapshot);
        let answer = in_time(events.answer(TypeUrl::LISTENER)).await.unwrap();
        assert_eq!((answer.version.as_str(), answer.error), (version, None));
        call(&mut caller).await.unwrap();
    }
    assert_eq!(stage.seen.callers(), 1, "the connection stayed");
    assert!(stage.states.try_recv().is_err());
}

/// SV-6, S-16: other routes hold from the next RPC on, on the same connection.
#[tokio::test]
async fn new_routes_are_for_running_connections() {
    let stage = Stage::empty().await;
    let with_routes = |routes: RouteConfiguration| {
        stage.set_with_routes(listener(stage.address, resources::rds("routes")), routes);
    };
    with_routes(routes());
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    call(&mut caller).await.unwrap();
    // Forwarding is not for servers.
    with_routes(resources::route("routes", "cluster"));
    let status = until(&mut caller, Code::Unavailable).await;
    assert_eq!(status, "configuration of the server is incomplete", "SV-29: no word of the configuration");
    with_routes(routes());
    until(&mut caller, Code::Ok).await;
    assert_eq!(stage.seen.callers(), 1, "all on one connection");
}

/// SV-11: a new Listener whose routes have not come leaves the old one in force.
#[tokio::test]
async fn a_listener_waits_for_its_routes() {
    let stage = Stage::serving().await;
    let mut caller = stage.caller().await;
    call(&mut caller).await.unwrap();
    let mut events = stage.control.events();
    let mut second = listener(stage.address, resources::rds("routes"));
    second.default_filter_chain.as_mut().expect("a chain").name = "second".to_owned();
    stage.control.faults().hold(TypeUrl::ROUTE);
    stage.set_with_routes(second, routes());
    in_time(events.request(TypeUrl::ROUTE)).await.unwrap();
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    assert_eq!(stage.seen.last_peer().filter_chain(), Some("default_filter_chain"), "the old one is in force");
    call(&mut caller).await.unwrap();
    assert_eq!(stage.seen.callers(), 2, "and drains nothing");
    stage.control.faults().release(&TypeUrl::ROUTE);
    until_chain(&stage, "second").await;
}

/// SV-11, S-17: when it is known that routes will not come, connections are accepted, and their RPCs fail.
#[tokio::test]
async fn a_listener_without_routes_is_served_in_the_end() {
    let stage = Stage::with(|builder| builder.resource_timeout(Duration::from_millis(100))).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    call(&mut stage.caller().await).await.unwrap();
    stage.control.faults().hold(TypeUrl::ROUTE);
    stage.set(listener(stage.address, resources::rds("nowhere")));
    in_time(async {
        loop {
            if let Err(status) = call(&mut stage.caller().await).await {
                break assert_eq!(status.code(), Code::Unavailable, "{status}");
            }
        }
    })
    .await;
}

/// SV-10: a Listener is replaced a hundred times under load. No RPC fails, and nothing of the old ones stays: no connection, no
/// task, no open file. What becomes of memory is for `mainstay soak --script listeners` to see.
#[tokio::test]
async fn a_listener_is_replaced_a_hundred_times_under_load() {
    let failed = replace_under_load(100).await;
    assert!(failed.is_empty(), "{failed:?}");
}

/// A connection that is lost and back before anybody looked is noticed by the RPCs that found it gone. On several threads the
/// good-byes of several connections may meet the same RPC, which is no fault of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_rpc_waits_for_a_connection_that_is_there() {
    let failed = replace_under_load(30).await;
    assert!(failed.is_empty(), "{failed:?}");
}

/// Replaces the Listener so often under the load of our own channel. The RPCs that failed.
async fn replace_under_load(times: usize) -> Vec<Status> {
    let stage = Stage::with(|builder| builder.drain_spread(Duration::from_millis(20))).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let endpoint = common::control_plane(service_at(&stage)).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = (tasks(), sockets_of(stage.address));
    let mut load = Vec::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for _ in 0..4 {
        // Its connections are taken away far more often than a client that is patient would like.
        let (mut client, stopped) = (common::client(&[&endpoint]), stopped.clone());
        load.push(tokio::spawn(async move {
            let (mut calls, mut failed) = (0, Vec::new());
            while !*stopped.borrow() {
                calls += 1;
                failed.extend(common::call(&mut client).await.err());
            }
            (calls, failed)
        }));
    }
    for number in 0..times {
        let chain = format!("chain {number}");
        stage.set(named(&chain, &stage));
        in_time(async {
            // The load is on a connection of the new one, and those of the old ones are gone.
            while stage.seen.last_chain().as_deref() != Some(&chain) || stage.connections().await != 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    stop.send_replace(true);
    let (mut all, mut failures) = (0, Vec::new());
    for caller in load {
        let (calls, failed) = in_time(caller).await.expect("a caller does not panic");
        all += calls;
        failures.extend(failed);
    }
    assert!(all >= times, "{all}");
    // The channels are gone, and so are the connections that were drained, on both sides.
    stage.until_connections(0).await;
    let left = tokio::time::timeout(Duration::from_secs(10), async {
        while tasks() > before.0 || sockets_of(stage.address) > before.1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    if left.await.is_err() {
        panic!("left of {before:?} tasks and sockets: {:?}", (tasks(), sockets_of(stage.address)));
    }
    failures
}

/// How many sockets of this process are of the port, on either side: other tests run beside this one, and have files too.
#[cfg(target_os = "linux")]
fn sockets_of(address: SocketAddr) -> usize {
    // Local and remote address are the second and third column, ports in hexadecimal; the inode is the tenth (proc(5)).
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("a table of sockets");
    let inode = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_ours = columns.get(1..3)?.iter().any(|address| address.ends_with(&port));
        Some(format!("socket:[{}]", columns.get(9).filter(|_| is_ours)?))
    };
    let of_the_port: Vec<_> = table.lines().filter_map(inode).collect();
    let files = std::fs::read_dir("/proc/self/fd").expect("a list of files").flatten();
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    targets.filter(|target| of_the_port.iter().any(|socket| target.as_os_str() == socket.as_str())).count()
}

/// Elsewhere channelz has to do, which shows what the server knows of.
#[cfg(not(target_os = "linux"))]
fn sockets_of(_: SocketAddr) -> usize {
    0
}

/// A Listener that differs from others by the name of its chain.
pub(crate) fn named(chain: &str, stage: &Stage) -> envoy_types::pb::envoy::config::listener::v3::Listener {
    let mut listener = stage.listener();
    listener.default_filter_chain.as_mut().expect("a chain").name = chain.to_owned();
    listener
}

/// Waits until new connections have this chain.
pub(crate) async fn until_chain(stage: &Stage, chain: &str) {
    in_time(async {
        loop {
            call(&mut stage.caller().await).await.unwrap();
            if stage.seen.last_peer().filter_chain() == Some(chain) {
                break;
            }
        }
    })
    .await;
}

/// Calls until one ends with this code, and says what it said.
async fn until(caller: &mut PlainClient, code: Code) -> String {
    in_time(async {
        loop {
            match call(caller).await {
                Ok(_) if code == Code::Ok => break String::new(),
                Err(status) if status.code() == code => break status.message().to_owned(),
                Ok(_) | Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

/// The usual chain of resources for clients of the server.
pub(crate) fn service_at(stage: &Stage) -> SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [stage.address]))
}
