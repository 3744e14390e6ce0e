//! Connections to endpoints: shared, drained, killed, brought back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay::Channel;
use mainstay_control_plane::{Event, RequestKind, Snapshot, TypeUrl, resources};
use mainstay_testservice::Backend;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::common::{
    Client, Paced, backends, bootstrap, builder, call, call_within, client, control_plane, service, spread,
    until_answered_by,
};
use crate::proxy::Proxy;

#[tokio::test]
async fn channels_to_different_targets_share_a_connection_to_the_same_endpoint() {
    let [one] = backends(["one"]).await;
    let server = control_plane(two_targets(&one)).await;
    let (mut first, mut second) = (target(&server, "service"), target(&server, "other"));
    assert_eq!((call(&mut first).await.unwrap(), call(&mut second).await.unwrap()), ("one".into(), "one".into()));
    assert_eq!(one.open_connections(), 1);
    drop(first);
    assert_eq!(spread(&mut second, 20).await["one"], 20, "the other channel still uses it");
    assert_eq!(one.open_connections(), 1);
    drop(second);
    until("the last user has left", || one.open_connections() == 0).await;
}

#[tokio::test]
async fn both_channels_hear_that_a_shared_connection_is_lost_and_back() {
    let [mut one] = backends(["one"]).await;
    let server = control_plane(two_targets(&one)).await;
    let (mut first, mut second) = (target(&server, "service"), target(&server, "other"));
    call(&mut first).await.unwrap();
    call(&mut second).await.unwrap();
    one.stop().await;
    for client in [&mut first, &mut second] {
        until_refused(client).await;
    }
    one.restart().await.unwrap();
    for client in [&mut first, &mut second] {
        until_back(client).await;
    }
    assert_eq!(one.open_connections(), 1);
}

#[tokio::test]
async fn channels_with_other_settings_have_connections_of_their_own() {
    let [one] = backends(["one"]).await;
    let server = control_plane(two_targets(&one)).await;
    let mut first = target(&server, "service");
    let other =
        Channel::builder("xds:///other").bootstrap(bootstrap(&[&server])).connect_timeout(Duration::from_secs(7));
    let mut second = Client::new(other.build().unwrap());
    call(&mut first).await.unwrap();
    call(&mut second).await.unwrap();
    assert_eq!(one.open_connections(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_are_all_replaced_fail_no_call_and_hold_none_up() {
    let [one, two] = backends(["one", "two"]).await;
    let gates = [Proxy::to(one.addr()).await, Proxy::to(two.addr()).await];
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    let load = Load::start(&client, 16);
    let mut before = &one;
    for (gate, new) in [(&gates[1], &two), (&gates[0], &one)] {
        gate.freeze(true);
        let endpoints = resources::endpoints("service", [gate.address()]);
        server.control_plane().update(|snapshot| snapshot.insert(endpoints));
        until("it connects to the new endpoint", || gate.connections() > 0).await;
        assert_eq!(spread(&mut client, 50).await[before.id()], 50, "those of before serve until it answers");
        gate.freeze(false);
        until_answered_by(&mut client, new.id()).await;
        until("nothing is left of those before", || before.open_connections() == 0).await;
        before = new;
    }
    for outcome in load.stop().await {
        assert_eq!(outcome.failures, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_that_drain_one_after_the_other_fail_no_call() {
    let [mut one, mut two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one, &two])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    let load = Load::start(&client, 16);
    for _ in 0..3 {
        for backend in [&mut one, &mut two] {
            backend.stop_gracefully().await;
            backend.restart().await.unwrap();
            until_answered_by(&mut client, backend.id()).await;
        }
    }
    for outcome in load.stop().await {
        assert_eq!(outcome.failures, Vec::<String>::new());
        assert!(outcome.calls > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_calls_in_flight_fail_when_a_backend_is_killed_under_a_thousand_calls_a_second() {
    let [mut one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one, &two])).await;
    let mut client = Client::new(builder(&[&server]).retries(false).build().unwrap());
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    // Of the calls before the kill, some wait at the backend that dies.
    let hung = |n: usize| (400..500).contains(&n).then_some("hostname=one keep-open");
    let load = Paced::run(&client, hung, async move { one.stop().await }).await;
    load.assert_rate();
    let failed: Vec<_> = load.calls.iter().filter(|call| call.outcome.is_err()).collect();
    let noticed = failed.iter().map(|call| call.ended).min().expect("calls that were in flight");
    assert!(noticed > load.event, "none fails before the kill");
    for call in &failed {
        assert_eq!(call.outcome.as_ref().unwrap_err().code(), Code::Unavailable);
        assert!(call.began < noticed, "it began after the loss was known: {:?}", call.outcome);
    }
    // Half of those that were to wait did, as the backends take turns.
    assert!(failed.len() >= 40, "{} calls failed", failed.len());
    assert_eq!(spread(&mut client, 20).await["two"], 20, "it is gone");
}

#[tokio::test]
async fn an_endpoint_that_was_lost_while_idle_is_connected_to_again() {
    let [mut one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    one.stop_gracefully().await;
    one.restart().await.unwrap();
    until("it is connected without any call", || one.open_connections() == 1).await;
    until_back(&mut client).await;
}

#[tokio::test]
async fn a_route_moves_to_a_new_cluster_when_that_is_connected() {
    let [one, two] = backends(["one", "two"]).await;
    // Accepts connections in its backlog and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    let mut at_once = Client::new(builder(&[&server]).warm_switching(None).build().unwrap());
    call(&mut client).await.unwrap();
    call(&mut at_once).await.unwrap();
    let mut events = server.events();
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::eds_cluster("other"));
        snapshot.insert(resources::endpoints("other", [silent.local_addr().unwrap()]));
        snapshot.insert(resources::route("service", "other"));
    });
    // Both channels have it: what is acknowledged is in force.
    let mut sent = BTreeSet::new();
    let mut acked = 0;
    while acked < 2 {
        match events.next().await.unwrap() {
            Event::ResponseSent(response) if response.type_url == TypeUrl::ENDPOINTS => {
                sent.insert((response.stream, response.nonce));
            }
            // Only the nonce tells the answer to a response from a request for other names.
            Event::Request(request) if sent.remove(&(request.stream, request.nonce.clone())) => {
                assert_eq!((request.type_url, request.kind), (TypeUrl::ENDPOINTS, RequestKind::Ack));
                acked += 1;
            }
            _ => {}
        }
    }
    let waiting = call_within(&mut at_once, Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(waiting.code(), Code::DeadlineExceeded, "off: calls wait for the new cluster");
    assert_eq!(call(&mut client).await.unwrap(), "one", "on: they go where they went");
    server.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("other", [two.addr()])));
    until_answered_by(&mut client, "two").await;
}

/// Targets `service` and `other`, with clusters of their own and the same endpoint.
fn two_targets(backend: &Backend) -> Snapshot {
    let mut snapshot = service(&[backend]);
    snapshot.insert(resources::listener("other", resources::route("other", "other")));
    snapshot.insert(resources::eds_cluster("other"));
    snapshot.insert(resources::endpoints("other", [backend.addr()]));
    snapshot
}

fn target(server: &mainstay_control_plane::Server, name: &str) -> Client {
    let builder = Channel::builder(format!("xds:///{name}")).bootstrap(bootstrap(&[server]));
    Client::new(builder.backoff(Duration::from_millis(20), Duration::from_millis(100)).build().expect("a channel"))
}

/// Calls until there is no endpoint to call.
async fn until_refused(client: &mut Client) {
    let refused = async { while !matches!(call(client).await, Err(status) if status.code() == Code::Unavailable) {} };
    tokio::time::timeout(Duration::from_secs(10), refused).await.expect("the endpoint is gone");
}

/// Calls until there is an answer.
async fn until_back(client: &mut Client) {
    let back = async { while call(client).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(10), back).await.expect("the endpoint is back");
}

/// Waits for what only the peer can see.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), held).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Callers that call without a pause, each one call at a time.
struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Outcome>>,
}

#[derive(Default)]
struct Outcome {
    calls: usize,
    failures: Vec<String>,
}

impl Load {
    fn start(client: &Client, callers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |_| tokio::spawn(keep_calling(client.clone(), stop.clone()));
        Self { callers: (0..callers).map(caller).collect(), stop: stop.clone() }
    }

    async fn stop(self) -> Vec<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        let mut outcomes = Vec::new();
        for caller in self.callers {
            outcomes.push(caller.await.expect("a caller does not panic"));
        }
        outcomes
    }
}

async fn keep_calling(mut client: Client, stop: Arc<AtomicBool>) -> Outcome {
    let mut outcome = Outcome::default();
    while !stop.load(Ordering::Relaxed) {
        outcome.calls += 1;
        let failure: Option<Status> = call(&mut client).await.err();
        outcome.failures.extend(failure.map(|status| status.to_string()));
    }
    outcome
}
