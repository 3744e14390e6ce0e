//! Outages under load: a thousand RPCs per second, of which none may fail or wait, whatever becomes of the control planes.
//!
//! Nothing here looks at the clock to judge. RPCs have a deadline that is far above what they need, and the outage
//! lasts until the last of them has ended: whoever waits for the control plane fails. `mainstay soak --script outages`
//! measures the same outages at full length.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::event::{Event, Events};
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{Server, Snapshot, TypeUrl, resources};
use mainstay_testservice::Backend;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tonic::Status;

use crate::common::{Client, backends, call, call_within, control_plane, in_time, until_answered_by, until_left_alone};
use crate::proxy::Proxy;

// === Nobody left to ask ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_server_dies_in_mid_update_and_stays_away() {
    // A57, A74: what is in force stays in force; trouble with servers is no answer.
    let [one, three] = backends(["one", "three"]).await;
    let primary = control_plane(chain("cluster-1", &[&one])).await;
    let channel = builder(&[primary.addr()]).build().unwrap();
    let mut client = Client::new(channel.clone());
    until_answered_by(&mut client, "one").await;

    let mut events = events_from_now(&channel);
    let traffic = Traffic::start(&client);
    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
    primary.control_plane().set(chain("cluster-2", &[&three]));
    for _ in 0..5 {
        until_unreachable(&mut events).await;
    }
    assert_eq!(traffic.stop().await.only_backend(), "one");

    let traffic = Traffic::start(&client);
    primary.faults().heal();
    primary.start().unwrap();
    until_answered_by(&mut client, "three").await;
    traffic.stop().await.assert_no_failure();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_die_during_a_switch_back() {
    // A71: the last complete configuration stays in force until all of the new one is there.
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let primary = control_plane(chain("cluster-1", &[&one])).await;
    let fallback = control_plane(chain("fallback-cluster", &[&two])).await;
    let channel = builder(&[primary.addr(), fallback.addr()]).build().unwrap();
    let mut client = Client::new(channel.clone());
    until_answered_by(&mut client, "one").await;
    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
    primary.control_plane().set(chain("cluster-2", &[&one]));
    until_answered_by(&mut client, "two").await;

    let mut events = events_from_now(&channel);
    let mut requests = primary.events();
    let traffic = Traffic::start(&client);
    primary.faults().heal();
    primary.faults().hold(TypeUrl::CLUSTER);
    primary.control_plane().set(chain("cluster-3", &[&three]));
    primary.start().unwrap();
    let asked = requests.wait_for(|event| {
        let request = event.as_request()?;
        (request.type_url == TypeUrl::CLUSTER && request.names.iter().any(|name| name == "cluster-3")).then_some(())
    });
    in_time(asked).await.unwrap();
    primary.stop().await;
    fallback.stop().await;
    for _ in 0..5 {
        until_unreachable(&mut events).await;
    }
    assert_eq!(traffic.stop().await.only_backend(), "two");

    let traffic = Traffic::start(&client);
    primary.faults().heal();
    primary.start().unwrap();
    until_answered_by(&mut client, "three").await;
    traffic.stop().await.assert_no_failure();
}

// === Half of an update ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_roll_while_an_update_is_withheld() {
    // A74: what is in force follows its endpoints until it is replaced.
    let [mut one, two, three] = backends(["one", "two", "three"]).await;
    let primary = control_plane(chain("cluster-1", &[&one])).await;
    let channel = builder(&[primary.addr()]).build().unwrap();
    let mut client = Client::new(channel);
    until_answered_by(&mut client, "one").await;

    let traffic = Traffic::start(&client);
    let mut requests = primary.events();
    primary.faults().hold(TypeUrl::CLUSTER);
    // New routes, whose cluster is not there yet; and the cluster in force has other endpoints.
    let mut update = chain("cluster-2", &[&three]);
    update.insert(resources::eds_cluster("cluster-1"));
    update.insert(resources::endpoints("cluster-1", [one.addr()]));
    primary.control_plane().set(update.clone());
    in_time(requests.request(TypeUrl::CLUSTER)).await.unwrap();
    update.insert(resources::endpoints("cluster-1", [two.addr()]));
    primary.control_plane().set(update);
    until_answered_by(&mut client, "two").await;
    one.stop_gracefully().await;
    assert_eq!(call(&mut client).await.unwrap(), "two");
    traffic.stop().await.assert_no_failure();

    let traffic = Traffic::start(&client);
    primary.faults().release(&TypeUrl::CLUSTER);
    until_answered_by(&mut client, "three").await;
    traffic.stop().await.assert_no_failure();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_returns_with_nothing_takes_nothing_over() {
    // A71: fallback ends with a resource that somebody watches, not with an empty response.
    return_with_nothing_after_a_death_in_mid_update(|_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_returns_with_nothing_deletes_nothing_even_where_deletions_count() {
    // A88: fail_on_data_errors is about what a server in charge takes away; D-35: not even that one takes away what is in
    // force while something newer waits to replace it.
    return_with_nothing_after_a_death_in_mid_update(fail_on_data_errors).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_returns_with_nothing_deletes_nothing_that_the_fallback_has_by_the_same_names() {
    let [one, two] = backends(["one", "two"]).await;
    let primary = control_plane(Snapshot::default()).await;
    let fallback = control_plane(chain("cluster", &[&two])).await;
    primary.stop().await;
    let bootstrap = bootstrap_with(&[primary.addr(), fallback.addr()], fail_on_data_errors);
    let channel = short(Channel::builder("xds:///service").bootstrap(bootstrap)).build().unwrap();
    let mut client = Client::new(channel);
    until_answered_by(&mut client, "two").await;
    return_with_nothing(&primary, &fallback, client, chain("cluster", &[&one])).await;
}

fn fail_on_data_errors(server: &mut ServerConfig) {
    server.features.fail_on_data_errors = true;
}

/// The primary dies in the middle of an update, which takes the cluster in force away, and returns with an empty cache.
async fn return_with_nothing_after_a_death_in_mid_update(change: impl Fn(&mut ServerConfig)) {
    let [one, two] = backends(["one", "two"]).await;
    let primary = control_plane(chain("cluster-1", &[&one])).await;
    let fallback = control_plane(chain("fallback-cluster", &[&two])).await;
    let bootstrap = bootstrap_with(&[primary.addr(), fallback.addr()], change);
    let channel = short(Channel::builder("xds:///service").bootstrap(bootstrap)).build().unwrap();
    let mut client = Client::new(channel);
    until_answered_by(&mut client, "one").await;
    let traffic = Traffic::start(&client);
    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
    primary.control_plane().set(chain("cluster-2", &[&one]));
    until_answered_by(&mut client, "two").await;
    traffic.stop().await.assert_no_failure();
    return_with_nothing(&primary, &fallback, client, chain("cluster-3", &[&one])).await;
}

/// The primary returns with an empty cache while the fallback serves by "two", and later has what serves by "one".
async fn return_with_nothing(primary: &Server, fallback: &Server, mut client: Client, later: Snapshot) {
    let traffic = Traffic::start(&client);
    let mut requests = primary.events();
    primary.faults().heal();
    primary.control_plane().set(Snapshot::default());
    primary.start().unwrap();
    for type_url in [TypeUrl::LISTENER, TypeUrl::CLUSTER] {
        in_time(requests.answer(type_url)).await.unwrap();
    }
    assert_eq!(traffic.stop().await.only_backend(), "two");

    let traffic = Traffic::start(&client);
    primary.control_plane().set(later);
    until_answered_by(&mut client, "one").await;
    until_left_alone(fallback).await;
    traffic.stop().await.assert_no_failure();
}

// === Silence ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_swallows_everything_in_mid_update_leads_to_the_fallback() {
    // A57: silence of a server that shows no sign of life says nothing about resources.
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let primary = control_plane(chain("cluster-1", &[&one])).await;
    let fallback = control_plane(chain("fallback-cluster", &[&two])).await;
    let proxy = Proxy::to(primary.addr()).await;
    let channel = builder(&[proxy.address(), fallback.addr()]).resource_timeout(HALF_OF_IT * 2).build().unwrap();
    let mut client = Client::new(channel.clone());
    until_answered_by(&mut client, "one").await;

    let mut events = events_from_now(&channel);
    let traffic = Traffic::start(&client);
    let mut requests = primary.events();
    primary.faults().hold(TypeUrl::CLUSTER);
    primary.control_plane().set(chain("cluster-2", &[&three]));
    in_time(requests.request(TypeUrl::CLUSTER)).await.unwrap();
    proxy.freeze(true);
    let cause = until_unreachable(&mut events).await;
    assert!(cause.contains("did not answer") && cause.contains("no sign of life"), "{cause}");
    until_answered_by(&mut client, "two").await;
    traffic.stop().await.assert_no_failure();

    primary.faults().heal();
    proxy.freeze(false);
    until_answered_by(&mut client, "three").await;
}

#[tokio::test]
async fn a_server_whose_stack_answers_pings_and_nothing_else_is_left_for_the_next() {
    let [two] = backends(["two"]).await;
    let fallback = control_plane(chain("cluster", &[&two])).await;
    let mute = Mute::start().await;
    let channel = builder(&[mute.address, fallback.addr()]).resource_timeout(HALF_OF_IT * 2).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel.clone());
    assert_eq!(call_within(&mut client, PATIENCE).await.unwrap(), "two");
    let cause = until_unreachable(&mut events).await;
    assert!(cause.contains("did not answer") && cause.contains("PING"), "{cause}");
}

#[test]
fn a_client_that_was_stopped_itself_does_not_call_absent_what_it_was_about_to_hear() {
    // The thread that does everything for the channel is stopped.
    let servers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ([one], primary) = servers.block_on(async {
        let backends = backends(["one"]).await;
        let primary = control_plane(chain("cluster", &[&backends[0]])).await;
        primary.faults().hold(TypeUrl::LISTENER);
        (backends, primary)
    });
    let mine = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    mine.block_on(async {
        let channel = builder(&[primary.addr()]).resource_timeout(Duration::from_millis(500)).build().unwrap();
        let mut requests = primary.events();
        let mut client = Client::new(channel);
        in_time(requests.request(TypeUrl::LISTENER)).await.unwrap();
        // The subscription is written: let the channel take note. Then the answer comes while nobody can hear it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        primary.faults().release(&TypeUrl::LISTENER);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(call(&mut client).await.unwrap(), "one");
    });
    drop(one);
}

// === Helpers ===

/// Half of the time that a server has for an answer: then it is asked for a sign of life.
const HALF_OF_IT: Duration = Duration::from_millis(250);

/// A bound on what takes some seconds by design.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many RPCs at a time are no burden for any machine.
const IN_FLIGHT: usize = 64;

/// Far above what an RPC needs, far below what an outage takes.
const DEADLINE: Duration = Duration::from_secs(5);

fn builder(servers: &[SocketAddr]) -> ChannelBuilder {
    short(Channel::builder("xds:///service").bootstrap(bootstrap_with(servers, |_| {})))
}

fn short(builder: ChannelBuilder) -> ChannelBuilder {
    builder.backoff(Duration::from_millis(10), Duration::from_millis(50))
}

fn bootstrap_with(servers: &[SocketAddr], change: impl Fn(&mut ServerConfig)) -> Bootstrap {
    let mut builder = Bootstrap::builder().node(Node::new("outages"));
    for server in servers {
        let mut server = ServerConfig::insecure(server.to_string());
        change(&mut server);
        builder = builder.server(server);
    }
    builder.build().unwrap()
}

/// Target `xds:///service` by way of a cluster with a name of its own.
fn chain(cluster: &str, backends: &[&Backend]) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", cluster)))
        .cluster(resources::eds_cluster(cluster))
        .endpoints(resources::endpoints(cluster, backends.iter().map(|backend| backend.addr())))
        .build()
}

/// What the channel does from now on. Only the first listener hears what came before.
fn events_from_now(channel: &Channel) -> Events {
    drop(channel.events());
    channel.events()
}

async fn until<T>(events: &mut Events, accept: impl Fn(Event) -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = accept(events.next().await.expect("a channel that lives")) {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("waited in vain")
}

/// Waits for the next failure of a server; its cause.
async fn until_unreachable(events: &mut Events) -> String {
    until(events, |event| match event {
        Event::Unreachable { cause, .. } | Event::StreamEnded { cause, .. } => Some(cause),
        _ => None,
    })
    .await
}

/// A thousand RPCs per second, whatever becomes of those before.
struct Traffic {
    stop: oneshot::Sender<()>,
    calls: JoinHandle<Outcomes>,
}

#[derive(Default)]
struct Outcomes {
    answered: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Traffic {
    fn start(client: &Client) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let client = client.clone();
        let calls = tokio::spawn(async move {
            let mut beat = tokio::time::interval(Duration::from_millis(1));
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut calls = JoinSet::new();
            let mut outcomes = Outcomes::default();
            // Enough of them even if the outage is over at once.
            for number in 0.. {
                beat.tick().await;
                // A busy machine may be slower; RPCs that wait for the control plane fail at their deadlines.
                if calls.len() == IN_FLIGHT {
                    outcomes.note(calls.join_next().await);
                }
                let mut client = client.clone();
                calls.spawn(async move { call_within(&mut client, DEADLINE).await });
                if number >= 300 && stopped.try_recv().is_ok() {
                    break;
                }
            }
            while let Some(ended) = calls.join_next().await {
                outcomes.note(Some(ended));
            }
            outcomes
        });
        Self { stop, calls }
    }

    /// Begins no more RPCs and waits for those under way.
    async fn stop(self) -> Outcomes {
        let _ = self.stop.send(());
        self.calls.await.expect("no panic")
    }
}

impl Outcomes {
    fn note(&mut self, ended: Option<Result<Result<String, Status>, JoinError>>) {
        match ended.expect("a call").expect("no panic") {
            Ok(backend) => *self.answered.entry(backend).or_default() += 1,
            Err(status) => self.failures.push(status.to_string()),
        }
    }

    #[track_caller]
    fn assert_no_failure(&self) {
        let answered: usize = self.answered.values().sum();
        assert!(self.failures.is_empty(), "{} failed, {answered} did not: {}", self.failures.len(), self.failures[0]);
    }

    #[track_caller]
    fn only_backend(&self) -> &str {
        self.assert_no_failure();
        let names: Vec<_> = self.answered.keys().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        names[0]
    }
}

/// An HTTP/2 server that takes every request and answers none. Its stack answers pings.
struct Mute {
    address: SocketAddr,
    _requests: mpsc::UnboundedReceiver<(http::Request<h2::RecvStream>, h2::server::SendResponse<bytes::Bytes>)>,
}

impl Mute {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (keep, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let keep = keep.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok(request)) = connection.accept().await {
                        let _ = keep.send(request);
                    }
                });
            }
        });
        Self { address, _requests: requests }
    }
}
