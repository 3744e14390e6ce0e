//! Control planes that die, keep silent, and come back on the same port (A57, A71, A88, A95).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainstay::bootstrap::{Authority, Bootstrap, Node, ServerConfig};
use mainstay::event::{Event, Events};
use mainstay::{Channel, ChannelBuilder, ResolveHost};
use mainstay_control_plane::{Corruption, RequestKind, SeenRequest, Server, Snapshot, TypeUrl, resources};
use mainstay_testservice::Backend;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::common::{
    Client, backends, bootstrap_of, call, call_within, control_plane, in_time, metadata, service, spread, status_of,
    until_answered_by, until_failed, until_left_alone,
};

// === The three cases of gRPC's own fallback suite ===

#[tokio::test]
async fn on_startup() {
    // I-40 to I-43.
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    primary.stop().await;
    fallback.stop().await;

    // a: both down.
    let channel = builder("on-startup", &[&primary, &fallback]).build().unwrap();
    let mut client = Client::new(channel.clone());
    for _ in 0..5 {
        assert_eq!(call(&mut client).await.unwrap_err().code(), Code::Unavailable);
    }
    assert_states("on-startup", &[(&primary, "TRANSIENT_FAILURE"), (&fallback, "TRANSIENT_FAILURE")]).await;

    // b: the fallback comes up.
    fallback.start().unwrap();
    until_served_by(&mut client, "two").await;
    assert_states("on-startup", &[(&primary, "TRANSIENT_FAILURE"), (&fallback, "READY")]).await;

    // c: the primary comes up; from here on no call may fail.
    primary.start().unwrap();
    until_answered_by(&mut client, "one").await;
    until_left_alone(&fallback).await;
    assert_states("on-startup", &[(&primary, "READY"), (&fallback, "IDLE")]).await;
    let fallback_connections = fallback.stats().connections;

    // d: the primary dies with everything cached: nothing happens, at whichever of its failures one looks.
    let mut events = events_from_now(&channel);
    primary.stop().await;
    for _ in 0..3 {
        until_unreachable(&mut events).await;
        assert_eq!(spread(&mut client, 10).await["one"], 10);
    }
    assert_states("on-startup", &[(&primary, "TRANSIENT_FAILURE"), (&fallback, "IDLE")]).await;
    assert_eq!(fallback.stats().connections, fallback_connections, "nobody needs the fallback");

    // e: and the fallback too.
    fallback.stop().await;
    assert_eq!(spread(&mut client, 10).await["one"], 10);
}

#[tokio::test]
async fn mid_startup() {
    // I-44 to I-46.
    let [one, two] = backends(["one", "two"]).await;
    let primary = control_plane(chain("cluster", &one)).await;
    let fallback = control_plane(chain("fallback-cluster", &two)).await;
    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster");

    let mut client = start("mid-startup", &[&primary, &fallback]);
    assert_eq!(spread(&mut client, 10).await["two"], 10);
    assert_states("mid-startup", &[(&primary, "TRANSIENT_FAILURE"), (&fallback, "READY")]).await;

    primary.control_plane().set(chain("another-cluster", &one));
    primary.start().unwrap();
    until_answered_by(&mut client, "one").await;
    until_left_alone(&fallback).await;
    assert_eq!(spread(&mut client, 10).await["one"], 10);
    assert_states("mid-startup", &[(&primary, "READY"), (&fallback, "IDLE")]).await;
}

#[tokio::test]
async fn mid_update() {
    // I-47 to I-49.
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let primary = control_plane(chain("cluster-1", &one)).await;
    let fallback = control_plane(chain("fallback-cluster", &two)).await;
    let mut client = start("mid-update", &[&primary, &fallback]);
    assert_eq!(spread(&mut client, 10).await["one"], 10);
    assert_eq!(fallback.stats().connections, 0, "I-48");
    assert_states("mid-update", &[(&primary, "READY"), (&fallback, "IDLE")]).await;

    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
    primary.control_plane().set(chain("cluster-2", &one));
    until_answered_by(&mut client, "two").await;
    assert_states("mid-update", &[(&primary, "TRANSIENT_FAILURE"), (&fallback, "READY")]).await;

    primary.faults().heal();
    primary.control_plane().set(chain("cluster-3", &three));
    primary.start().unwrap();
    until_answered_by(&mut client, "three").await;
    until_left_alone(&fallback).await;
    assert_states("mid-update", &[(&primary, "READY"), (&fallback, "IDLE")]).await;
}

// === Ways to be down ===

#[tokio::test]
async fn a_primary_that_refuses_at_the_start_fails_no_call() {
    let [two] = backends(["two"]).await;
    let primary = control_plane(Snapshot::default()).await;
    primary.stop().await;
    let fallback = control_plane(service(&[&two])).await;
    assert_eq!(call(&mut start("refused", &[&primary, &fallback])).await.unwrap(), "two");
}

#[tokio::test]
async fn a_primary_that_accepts_and_never_speaks_is_left_after_the_connect_timeout() {
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    primary.faults().black_hole(true);
    let channel = builder("black-hole", &[&primary, &fallback])
        .xds_connect_timeouts(Duration::from_millis(50), Duration::from_secs(20));
    let mut client = Client::new(channel.build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "two");

    primary.faults().heal();
    until_answered_by(&mut client, "one").await;
    until_left_alone(&fallback).await;
}

#[tokio::test]
async fn a_primary_that_never_responds_can_count_as_down() {
    // C-36 and D-8: only if asked for.
    let [two] = backends(["two"]).await;
    let [primary, fallback] = [control_plane(Snapshot::default()).await, control_plane(service(&[&two])).await];
    primary.faults().silent(true);
    let channel = builder("silent", &[&primary, &fallback]).silent_stream_timeout(Duration::from_millis(300));
    assert_eq!(call(&mut Client::new(channel.build().unwrap())).await.unwrap(), "two");
}

#[tokio::test]
async fn a_primary_without_the_listener_is_not_left() {
    // C-57: what does not exist on the primary is not looked for elsewhere.
    let [two] = backends(["two"]).await;
    let [primary, fallback] = [control_plane(Snapshot::default()).await, control_plane(service(&[&two])).await];
    primary.faults().hide_absence(true);
    let channel = builder("missing", &[&primary, &fallback]).resource_timeout(Duration::from_millis(50));
    let status = call(&mut Client::new(channel.build().unwrap())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(
        status.message(),
        format!(
            "no usable configuration for xds:///service: Listener \"service\" does not exist on {} (node \"missing\"), \
             50 ms after it was requested",
            primary.addr()
        )
    );
    assert_eq!(fallback.stats().connections, 0);
}

#[tokio::test]
async fn what_our_control_plane_does_not_have_is_known_after_one_round_trip() {
    // TP3, D-36, with everybody's timers: others learn it after 15 s.
    let [two] = backends(["two"]).await;
    let other = Snapshot::builder().listener(resources::listener("other", resources::rds("other"))).build();
    let [primary, fallback] = [control_plane(other).await, control_plane(service(&[&two])).await];
    let mut client = start("told", &[&primary, &fallback]);
    let status = in_time(call(&mut client)).await.unwrap_err();
    assert_eq!(
        status.message(),
        format!(
            "no usable configuration for xds:///service: Listener \"service\": {} (node \"told\") answered with \
             NOT_FOUND: there is no such resource",
            primary.addr()
        )
    );
    assert_eq!((primary.stats().responses, fallback.stats().connections), (1, 0));
    // It is subscribed all the same: when it appears, it serves.
    primary.control_plane().set(service(&[&two]));
    until_served_by(&mut client, "two").await;
}

#[tokio::test]
async fn with_every_server_down_the_error_names_target_resource_server_and_cause() {
    // C-48.
    let [primary, fallback] = [control_plane(Snapshot::default()).await, control_plane(Snapshot::default()).await];
    primary.stop().await;
    fallback.stop().await;
    let status = call(&mut start("all-down", &[&primary, &fallback])).await.unwrap_err();
    assert_eq!(
        status.message(),
        format!(
            "no usable configuration for xds:///service: Listener \"service\" cannot be fetched from {0} \
             (node \"all-down\"), which is unreachable: cannot connect: {0}: Connection refused (os error 111)",
            fallback.addr()
        )
    );
}

#[tokio::test]
async fn three_servers_the_middle_one_dead() {
    // C-45.
    let [one, three] = backends(["one", "three"]).await;
    let [first, middle, last] = [
        control_plane(service(&[&one])).await,
        control_plane(Snapshot::default()).await,
        control_plane(service(&[&three])).await,
    ];
    first.stop().await;
    middle.stop().await;
    let mut client = start("three", &[&first, &middle, &last]);
    assert_eq!(call(&mut client).await.unwrap(), "three");
    let states = [(&first, "TRANSIENT_FAILURE"), (&middle, "TRANSIENT_FAILURE"), (&last, "READY")];
    assert_states("three", &states).await;

    first.start().unwrap();
    until_answered_by(&mut client, "one").await;
    until_left_alone(&last).await;
    assert_states("three", &[(&first, "READY"), (&middle, "IDLE"), (&last, "IDLE")]).await;
}

#[tokio::test]
async fn a_deadline_that_passes_while_servers_are_tried_tells_where_that_stands() {
    let primary = control_plane(Snapshot::default()).await;
    primary.faults().black_hole(true);
    let status = call_within(&mut start("tried", &[&primary]), Duration::from_millis(50)).await.unwrap_err();
    let expected = format!("waiting for the configuration; connecting to {}", primary.addr());
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().ends_with(&expected), "{}", status.message());
}

// === What is cached stays in use ===

#[tokio::test]
async fn calls_under_way_all_the_time_survive_death_and_return_of_the_primary() {
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    let channel = builder("load", &[&primary, &fallback]).build().unwrap();
    let mut client = Client::new(channel.clone());
    call(&mut client).await.unwrap();
    let mut events = events_from_now(&channel);
    let load = Load::start(&client);

    // Everything is cached: nobody asks the fallback.
    primary.stop().await;
    until_unreachable(&mut events).await;
    load.next_calls().await;
    assert_eq!(fallback.stats().connections, 0);

    // Something is missing: the fallback takes over, and gives back.
    primary.control_plane().set(chain("new", &one));
    primary.faults().die_on_request(TypeUrl::CLUSTER, "new");
    primary.start().unwrap();
    until_answered_by(&mut client, "two").await;
    primary.faults().heal();
    primary.start().unwrap();
    until_answered_by(&mut client, "one").await;
    until_left_alone(&fallback).await;
    load.next_calls().await;
    let answered = load.stop().await.expect("no call may fail");
    assert!(answered["one"] > 0 && answered["two"] > 0, "{answered:?}");
}

#[tokio::test]
async fn only_the_target_that_lacks_something_falls_back() {
    // A71: one client per target.
    let [one, two] = backends(["one", "two"]).await;
    let mut incomplete = service(&[&one]);
    incomplete.insert(resources::listener("other", resources::route("other", "other")));
    let primary = control_plane(incomplete).await;
    primary.faults().hide_absence(true);
    let fallback = control_plane(
        Snapshot::builder()
            .listener(resources::listener("other", resources::route("other", "other")))
            .cluster(resources::eds_cluster("other"))
            .endpoints(resources::endpoints("other", [two.addr()])),
    )
    .await;
    let servers = bootstrap_of("two-targets", &[&primary, &fallback]);
    let mut complete =
        Client::new(short(Channel::builder("xds:///service")).bootstrap(servers.clone()).build().unwrap());
    let mut lacking = Client::new(short(Channel::builder("xds:///other")).bootstrap(servers).build().unwrap());
    let mut requests = primary.events();
    assert_eq!(call(&mut complete).await.unwrap(), "one");
    in_time(requests.wait_for(|event| event.as_request().filter(|r| asks_for(r, TypeUrl::CLUSTER, "other")).cloned()))
        .await
        .unwrap();
    assert_eq!((primary.stats().open_connections, primary.stats().open_streams), (1, 2), "they share the connection");

    let mut heard = fallback.events();
    let load = Load::start(&complete);
    primary.stop().await;
    assert_eq!(call(&mut lacking).await.unwrap(), "two");
    load.next_calls().await;
    assert_eq!(load.stop().await.unwrap().keys().collect::<Vec<_>>(), ["one"]);
    assert_eq!(fallback.stats().streams, 1);
    while let Some(event) = heard.try_next() {
        let names = event.as_request().map(|request| request.names.clone()).unwrap_or_default();
        assert!(names.iter().all(|name| name == "other"), "{names:?}");
    }
}

#[tokio::test]
async fn a_rejected_update_changes_nothing() {
    // A88, C-57.
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    let mut client = start("rejected", &[&primary, &fallback]);
    call(&mut client).await.unwrap();
    let mut events = primary.events();
    primary.faults().corrupt(TypeUrl::CLUSTER, "service", Corruption::Truncated(3));
    assert_eq!(in_time(events.answer(TypeUrl::CLUSTER)).await.unwrap().kind, RequestKind::Nack);
    assert_eq!(spread(&mut client, 10).await["one"], 10);
    assert_eq!(fallback.stats().connections, 0);
}

#[tokio::test]
async fn a_deleted_listener_and_cluster_stay_in_use() {
    // A88: fail_on_data_errors is off by default.
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    let mut client = start("deleted", &[&primary]);
    call(&mut client).await.unwrap();
    let [mut listeners, mut clusters] = [primary.events(), primary.events()];
    primary.control_plane().set(Snapshot::default());
    assert_eq!(in_time(listeners.answer(TypeUrl::LISTENER)).await.unwrap().kind, RequestKind::Ack);
    assert_eq!(in_time(clusters.answer(TypeUrl::CLUSTER)).await.unwrap().kind, RequestKind::Ack);
    assert_eq!(spread(&mut client, 10).await["one"], 10);
}

#[tokio::test]
async fn a_deleted_listener_ends_service_where_the_bootstrap_says_so() {
    // A88: fail_on_data_errors.
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    let mut server = ServerConfig::insecure(primary.addr().to_string());
    server.features.fail_on_data_errors = true;
    let bootstrap = Bootstrap::builder().node(Node::new("strict")).server(server);
    let channel = short(Channel::builder("xds:///service")).bootstrap(bootstrap.build().unwrap());
    let mut client = Client::new(channel.build().unwrap());
    call(&mut client).await.unwrap();
    primary.control_plane().set(Snapshot::default());
    let status = until_failed(&mut client).await;
    let expected = format!(
        "no usable configuration for xds:///service: Listener \"service\" was deleted on {} (node \"strict\")",
        primary.addr()
    );
    assert_eq!((status.code(), status.message()), (Code::Unavailable, &*expected));
}

#[tokio::test]
async fn a_dead_peer_of_an_idle_stream_is_noticed_by_keepalive() {
    // The connection stays open and says nothing more: only a ping can tell.
    let [one] = backends(["one"]).await;
    let primary = control_plane(service(&[&one])).await;
    let channel = builder("keepalive", &[&primary])
        .xds_keep_alive(Duration::from_millis(50), Duration::from_millis(50))
        .xds_connect_timeouts(Duration::from_millis(50), Duration::from_millis(50));
    let channel = channel.build().unwrap();
    let mut client = Client::new(channel.clone());
    call(&mut client).await.unwrap();
    let mut events = events_from_now(&channel);
    primary.faults().black_hole(true);
    let cause = until(&mut events, |event| match event {
        Event::StreamEnded { cause, .. } => Some(cause),
        _ => None,
    })
    .await;
    assert!(cause.contains("connection lost") && cause.contains("keep-alive timed out"), "{cause}");
    until_unreachable(&mut events).await;
    assert_eq!(spread(&mut client, 10).await["one"], 10);
}

// === Federation ===

#[tokio::test]
async fn two_authorities_and_a_default_server_that_is_never_contacted() {
    // I-60, I-61.
    const CLUSTER: &str = "xdstp://authority2/envoy.config.cluster.v3.Cluster/cluster1";
    const ENDPOINTS: &str = "xdstp://authority2/envoy.config.endpoint.v3.ClusterLoadAssignment/cluster1";
    let [one] = backends(["one"]).await;
    let listener = "xdstp://authority1/envoy.config.listener.v3.Listener/listener_0";
    let first =
        control_plane(Snapshot::builder().listener(resources::listener(listener, resources::route("inline", CLUSTER))))
            .await;
    let second = control_plane(
        Snapshot::builder()
            .cluster(resources::eds_cluster_named(CLUSTER, ENDPOINTS))
            .endpoints(resources::endpoints(ENDPOINTS, [one.addr()])),
    )
    .await;
    let bootstrap = Bootstrap::builder()
        .node(Node::new("federation"))
        .server(ServerConfig::insecure("invalid.:8080"))
        .authority("authority1", servers_of(&[&first]))
        .authority("authority2", servers_of(&[&second]))
        .build()
        .unwrap();
    let dns = CountingDns::default();
    let channel = short(Channel::builder("xds://authority1/listener_0")).bootstrap(bootstrap).dns(dns.clone());
    let mut client = Client::new(channel.build().unwrap());
    assert_eq!(spread(&mut client, 10).await["one"], 10);
    assert_eq!(dns.0.load(Ordering::Relaxed), 0, "the default server was looked up");
    assert_states("federation", &[(&first, "READY"), (&second, "READY")]).await;
    assert_eq!(status_of("federation").await[0].client_scope, "xds://authority1/listener_0");
}

#[tokio::test]
async fn endpoints_fall_back_on_reachability_alone_while_the_rest_stays_with_the_cache() {
    // A95, C-42: the knob is per authority.
    const ENDPOINTS: &str = "xdstp://eds/envoy.config.endpoint.v3.ClusterLoadAssignment/service";
    let [one, two] = backends(["one", "two"]).await;
    let serve = |backend: &Backend| {
        Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .cluster(resources::eds_cluster_named("service", ENDPOINTS))
            .endpoints(resources::endpoints(ENDPOINTS, [backend.addr()]))
    };
    let [primary, fallback] = [control_plane(serve(&one)).await, control_plane(serve(&two)).await];
    let bootstrap = Bootstrap::builder()
        .node(Node::new("a95"))
        .server(ServerConfig::insecure(primary.addr().to_string()))
        .server(ServerConfig::insecure(fallback.addr().to_string()))
        .authority("eds", Authority::default().with_fallback_on_reachability_only(true))
        .build()
        .unwrap();
    let channel = short(Channel::builder("xds:///service")).bootstrap(bootstrap);
    let mut client = Client::new(channel.build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "one");

    let mut heard = fallback.events();
    primary.stop().await;
    until_answered_by(&mut client, "two").await;
    while let Some(event) = heard.try_next() {
        assert!(event.as_request().is_none_or(|request| request.type_url == TypeUrl::ENDPOINTS), "{event:?}");
    }
    let sources = metadata(&status_of("a95").await[0], "mainstay.sources");
    assert_eq!(sources["Listener \"service\""], primary.addr().to_string());
    assert_eq!(sources[&format!("ClusterLoadAssignment \"{ENDPOINTS}\"")], fallback.addr().to_string());

    primary.start().unwrap();
    until_answered_by(&mut client, "one").await;
    until_left_alone(&fallback).await;
}

// === Helpers ===

fn start(node: &str, servers: &[&Server]) -> Client {
    Client::new(builder(node, servers).build().unwrap())
}

fn builder(node: &str, servers: &[&Server]) -> ChannelBuilder {
    short(Channel::builder("xds:///service")).bootstrap(bootstrap_of(node, servers))
}

/// Pauses that let a test see many attempts.
fn short(builder: ChannelBuilder) -> ChannelBuilder {
    builder.backoff(Duration::from_millis(10), Duration::from_millis(50))
}

fn servers_of(servers: &[&Server]) -> Authority {
    let servers = servers.iter().map(|server| ServerConfig::insecure(server.addr().to_string()));
    servers.fold(Authority::default(), Authority::with_server)
}

/// Target `xds:///service` by way of a cluster with a name of its own.
fn chain(cluster: &str, backend: &Backend) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", cluster)))
        .cluster(resources::eds_cluster(cluster))
        .endpoints(resources::endpoints(cluster, [backend.addr()]))
        .build()
}

fn asks_for(request: &SeenRequest, type_url: TypeUrl, name: &str) -> bool {
    request.type_url == type_url && request.names.iter().any(|found| found == name)
}

/// Calls until one succeeds, which must be `wanted`'s.
async fn until_served_by(client: &mut Client, wanted: &str) {
    let served = async {
        loop {
            if let Ok(id) = call(client).await {
                return id;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(in_time(served).await, wanted);
}

/// The states that CSDS shows for the servers of a node's only channel.
async fn assert_states(node: &str, expected: &[(&Server, &str)]) {
    let states = metadata(&status_of(node).await[0], "mainstay.servers");
    let found: BTreeMap<_, _> = states
        .iter()
        .map(|(server, text)| (server.clone(), text.split(':').next().unwrap_or(text).to_owned()))
        .collect();
    let expected = expected.iter().map(|(server, state)| (server.addr().to_string(), (*state).to_owned())).collect();
    assert_eq!(found, expected);
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
    in_time(found).await
}

async fn until_unreachable(events: &mut Events) {
    until(events, |event| matches!(event, Event::Unreachable { .. }).then_some(())).await;
}

/// Calls one after the other in a task of its own.
struct Load {
    done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    calls: JoinHandle<Result<BTreeMap<String, usize>, Status>>,
}

impl Load {
    fn start(client: &Client) -> Self {
        let (mut client, done, stop) = (client.clone(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let calls = tokio::spawn({
            let (done, stop) = (done.clone(), stop.clone());
            async move {
                let mut answered = BTreeMap::new();
                while !stop.load(Ordering::Relaxed) {
                    *answered.entry(call_within(&mut client, Duration::from_secs(5)).await?).or_default() += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(answered)
            }
        });
        Self { done, stop, calls }
    }

    /// Waits until some more calls are done, or one has failed.
    async fn next_calls(&self) {
        let enough = self.done.load(Ordering::Relaxed) + 20;
        let done = async {
            while self.done.load(Ordering::Relaxed) < enough && !self.calls.is_finished() {
                tokio::task::yield_now().await;
            }
        };
        in_time(done).await;
    }

    /// How many calls each backend answered; the error if one failed.
    async fn stop(self) -> Result<BTreeMap<String, usize>, Status> {
        self.stop.store(true, Ordering::Relaxed);
        self.calls.await.expect("no panic")
    }
}

/// Finds nothing, and counts how often it was asked.
#[derive(Clone, Debug, Default)]
struct CountingDns(Arc<AtomicUsize>);

impl ResolveHost for CountingDns {
    fn resolve<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Vec::new()) })
    }
}
