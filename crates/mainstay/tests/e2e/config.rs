//! One complete configuration at a time, whatever the order in which its parts come (A74, A37, A95).

use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use mainstay::bootstrap::{Authority, Bootstrap, Node, ServerConfig};
use mainstay_control_plane::{Event, Events, Server, Snapshot, SnapshotBuilder, TypeUrl, resources};
use mainstay_testservice::Backend;
use tokio::task::JoinSet;

use crate::common::{
    Client, backends, builder, call, call_within, client, control_plane, in_time, service, spread, until_answered_by,
};
use crate::proxy::Proxy;

#[tokio::test]
async fn routes_move_to_a_cluster_only_when_it_is_there_and_no_call_waits_for_it() {
    // L-10: the configuration in force stays until everything that the next one needs has come.
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;

    let mut events = server.events();
    server.faults().hold(TypeUrl::CLUSTER);
    server.faults().hold(TypeUrl::ENDPOINTS);
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::eds_cluster("other"));
        snapshot.insert(resources::endpoints("other", [two.addr()]));
        snapshot.insert(resources::route("service", "other"));
    });
    // The gates open only after these calls are done, so a call that waited for the move would never end.
    until_asked_for(&mut events, TypeUrl::CLUSTER, "other").await;
    assert_eq!(spread(&mut client, 50).await["one"], 50);

    server.faults().release(&TypeUrl::CLUSTER);
    until_asked_for(&mut events, TypeUrl::ENDPOINTS, "other").await;
    assert_eq!(spread(&mut client, 50).await["one"], 50);

    server.faults().release(&TypeUrl::ENDPOINTS);
    until_answered_by(&mut client, "two").await;
    assert_eq!(spread(&mut client, 50).await["two"], 50);
}

#[tokio::test]
async fn a_call_that_waits_keeps_its_cluster_until_it_has_picked() {
    // L-27: the routes leave the cluster while a call waits for it; the call still ends there.
    let [one, two] = backends(["one", "two"]).await;
    // Accepts connections in its backlog and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "slow"))
        .cluster(resources::eds_cluster("slow"))
        .endpoints(resources::endpoints("slow", [silent.local_addr().unwrap()]));
    let server = control_plane(snapshot).await;
    let mut events = server.events();
    let mut client = client(&[&server]);
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { call(&mut client).await }
    });
    events.answer(TypeUrl::ENDPOINTS).await.unwrap();
    let expired = call_within(&mut client, Duration::from_millis(50)).await.unwrap_err();
    assert!(expired.message().contains("cluster \"slow\""), "{}", expired.message());

    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::eds_cluster("service"));
        snapshot.insert(resources::endpoints("service", [one.addr()]));
        snapshot.insert(resources::route("service", "service"));
    });
    // A call that begins before the new routes come has chosen the old cluster, too, and ends at its deadline.
    while call_within(&mut client, Duration::from_millis(50)).await.ok().as_deref() != Some("one") {}
    server.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("slow", [two.addr()])));
    assert_eq!(waiting.await.unwrap().unwrap(), "two");
    // Nobody needs it any more.
    while events.request(TypeUrl::CLUSTER).await.unwrap().names != ["service"] {}
}

#[tokio::test]
async fn a_call_that_waits_is_dropped_no_more_often_than_one_that_need_not() {
    // L-50: one draw, however many snapshots it sees before there is a connection.
    const CALLS: usize = 1_000;
    let [one] = backends(["one"]).await;
    let proxy = Proxy::to(one.addr()).await;
    proxy.freeze(true);
    let percent = Some(FractionalPercent { numerator: 30, denominator: 0 });
    let overload = DropOverload { category: "overload".into(), drop_percentage: percent };
    let mut endpoints = resources::endpoints("service", [proxy.address()]);
    endpoints.policy = Some(Policy { drop_overloads: vec![overload], ..Default::default() });
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(endpoints);
    let server = control_plane(snapshot).await;
    let mut events = server.events();
    let client = client(&[&server]);
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let mut client = client.clone();
        calls.spawn(async move { call(&mut client).await });
    }
    in_time(events.answer(TypeUrl::ENDPOINTS)).await.unwrap();
    for number in 0..5 {
        let mut routes = resources::route("service", "service");
        routes.virtual_hosts[0].routes[0].name = format!("change {number}");
        routes.virtual_hosts[0].domains.push(format!("other-{number}"));
        server.control_plane().update(|snapshot| snapshot.insert(routes));
        in_time(events.answer(TypeUrl::ROUTE)).await.unwrap();
    }
    proxy.freeze(false);
    let dropped = in_time(calls.join_all()).await.into_iter().filter(Result::is_err).count();
    // Seven standard deviations to either side. With a draw for each snapshot it would be most of them.
    assert!((200..=400).contains(&dropped), "{dropped} of {CALLS}");
}

#[tokio::test]
async fn a_primary_with_other_cluster_names_takes_over_without_a_failed_call() {
    // The case of A74: never routes of one server with clusters of the other.
    let [from_primary, from_fallback] = backends(["primary", "fallback"]).await;
    let primary = control_plane(named_service("primary-cluster", &from_primary)).await;
    let fallback = control_plane(named_service("fallback-cluster", &from_fallback)).await;
    primary.stop().await;
    let mut client = client(&[&primary, &fallback]);
    until_answered_by(&mut client, "fallback").await;

    let mut events = primary.events();
    primary.faults().hold(TypeUrl::CLUSTER);
    primary.faults().hold(TypeUrl::ENDPOINTS);
    primary.start().unwrap();
    until_asked_for(&mut events, TypeUrl::CLUSTER, "primary-cluster").await;
    assert_eq!(spread(&mut client, 50).await["fallback"], 50);
    primary.faults().release(&TypeUrl::CLUSTER);
    until_asked_for(&mut events, TypeUrl::ENDPOINTS, "primary-cluster").await;
    assert_eq!(spread(&mut client, 50).await["fallback"], 50);

    primary.faults().release(&TypeUrl::ENDPOINTS);
    until_answered_by(&mut client, "primary").await;
    assert_eq!(spread(&mut client, 50).await["primary"], 50);
}

#[tokio::test]
async fn the_same_cluster_names_on_both_servers_switch_as_one() {
    // C-50 and the single-source rule: everything is cached, so only the source changes until the last resource has come.
    let [from_primary, from_fallback] = backends(["primary", "fallback"]).await;
    let primary = control_plane(service(&[&from_primary])).await;
    let fallback = control_plane(service(&[&from_fallback])).await;
    primary.stop().await;
    let mut client = client(&[&primary, &fallback]);
    until_answered_by(&mut client, "fallback").await;

    let mut events = primary.events();
    primary.faults().hold(TypeUrl::LISTENER);
    primary.start().unwrap();
    // The endpoints of the primary are there; its listener is not.
    events.answer(TypeUrl::ENDPOINTS).await.unwrap();
    assert_eq!(spread(&mut client, 50).await["fallback"], 50);
    primary.faults().release(&TypeUrl::LISTENER);
    until_answered_by(&mut client, "primary").await;
}

#[tokio::test]
async fn an_aggregate_fails_over_to_dns_and_back() {
    // A37: the clusters of an aggregate are priorities, whatever their kinds.
    let [mut eds, dns] = backends(["eds", "dns"]).await;
    let server = control_plane(
        base("both")
            .cluster(resources::aggregate_cluster("both", ["from-eds", "from-dns"]))
            .cluster(resources::eds_cluster("from-eds"))
            .endpoints(resources::endpoints("from-eds", [eds.addr()]))
            .cluster(resources::logical_dns_cluster("from-dns", format!("localhost:{}", dns.addr().port()))),
    )
    .await;
    let mut client = client(&[&server]);
    assert_eq!(spread(&mut client, 20).await["eds"], 20);

    eds.stop().await;
    // One call may be sent on the connection that has just been cut. The others wait for the other cluster.
    let _ = call(&mut client).await;
    until_answered_by(&mut client, "dns").await;
    assert_eq!(spread(&mut client, 20).await["dns"], 20);

    eds.restart().await.unwrap();
    until_answered_by(&mut client, "eds").await;
    assert_eq!(spread(&mut client, 20).await["eds"], 20);
}

#[tokio::test]
async fn an_aggregate_takes_a_cluster_that_appears_and_one_that_changes_its_kind() {
    // L-20: a missing child is skipped until it is there.
    let [one, two] = backends(["one", "two"]).await;
    let missing = TypeUrl::CLUSTER;
    let server = control_plane(
        base("both")
            .cluster(resources::aggregate_cluster("both", ["first", "second"]))
            .error(missing, "first", tonic::Code::NotFound, "not yet")
            .cluster(resources::logical_dns_cluster("second", two.addr())),
    )
    .await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "two").await;

    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::eds_cluster("first"));
        snapshot.insert(resources::endpoints("first", [one.addr()]));
    });
    until_answered_by(&mut client, "one").await;

    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::aggregate_cluster("first", ["second"]));
    });
    until_answered_by(&mut client, "two").await;
}

#[tokio::test]
async fn endpoints_of_an_authority_fall_back_alone() {
    // A95: reachability alone moves the endpoints; everything else is cached and stays with the primary (C-42).
    let [one, two, wrong] = backends(["one", "two", "wrong"]).await;
    let serve = |cluster: &str, endpoints: &Backend| {
        base(cluster)
            .cluster(resources::eds_cluster_named("right", EDS_NAME))
            .endpoints(resources::endpoints(EDS_NAME, [endpoints.addr()]))
            .cluster(resources::eds_cluster("wrong"))
            .endpoints(resources::endpoints("wrong", [wrong.addr()]))
    };
    let primary = control_plane(serve("right", &one)).await;
    let fallback = control_plane(serve("wrong", &two)).await;
    let mut asked = fallback.events();
    let mut client = federated(&[&primary, &fallback], &[]);
    until_answered_by(&mut client, "one").await;

    primary.stop().await;
    until_answered_by(&mut client, "two").await;
    assert_eq!(spread(&mut client, 50).await["two"], 50);
    while let Some(event) = asked.try_next() {
        let type_url = event.as_request().map(|request| request.type_url.clone());
        assert!(type_url.is_none_or(|type_url| type_url == TypeUrl::ENDPOINTS), "{event:?}");
    }

    primary.start().unwrap();
    until_answered_by(&mut client, "one").await;
    assert_eq!(wrong.requests(), 0);
}

#[tokio::test]
async fn endpoints_come_from_list_collections_and_follow_them() {
    //
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let other = Snapshot::builder().endpoint_collection(LEDS_NAME, resources::endpoint_collection([two.addr()]));
    let other = control_plane(other).await;
    let server = control_plane(
        base("service")
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::localities(
                "service",
                [resources::leds_locality("a", "list-a"), resources::leds_locality("b", LEDS_NAME)],
            ))
            .endpoint_collection("list-a", resources::endpoint_collection([one.addr()])),
    )
    .await;
    let mut events = server.events();
    let mut client = federated(&[&server], &[&other]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;

    let node = events.wait_for(|event| event.as_request()?.node.clone()).await.unwrap();
    let feature = "xds.endpoint.supports_lb_endpoint_collection".to_owned();
    assert!(node.client_features.contains(&feature), "{:?}", node.client_features);

    // An update of one collection touches that locality only.
    let update = |addresses: &[std::net::SocketAddr]| {
        let snapshot = Snapshot::builder().endpoint_collection(LEDS_NAME, resources::endpoint_collection(addresses));
        other.control_plane().set(snapshot);
    };
    update(&[three.addr()]);
    until_answered_by(&mut client, "three").await;
    until_answered_by(&mut client, "one").await;
    let counts = spread(&mut client, 100).await;
    assert!(!counts.contains_key("two"), "{counts:?}");
}

#[tokio::test]
async fn an_empty_collection_makes_its_locality_unreachable() {
    //
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(
        base("service")
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::localities(
                "service",
                [resources::leds_locality("a", "list"), {
                    let mut spare = resources::locality("b", [two.addr()]);
                    spare.priority = 1;
                    spare
                }],
            ))
            .endpoint_collection("list", resources::endpoint_collection([one.addr()])),
    )
    .await;
    let set = |addresses: &[std::net::SocketAddr]| {
        use prost::Message;
        let bytes = resources::endpoint_collection(addresses).encode_to_vec();
        let list = mainstay_control_plane::Resource::new(TypeUrl::ENDPOINT_COLLECTION, "list", bytes);
        server.control_plane().update(|snapshot| snapshot.insert(list));
    };
    let mut client = client(&[&server]);
    assert_eq!(spread(&mut client, 20).await["one"], 20);

    set(&[]);
    until_answered_by(&mut client, "two").await;
    assert_eq!(spread(&mut client, 20).await["two"], 20);

    set(&[one.addr()]);
    until_answered_by(&mut client, "one").await;
}

#[tokio::test]
async fn a_cluster_whose_only_collection_is_empty_says_so() {
    let server = control_plane(
        base("service")
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::localities("service", [resources::leds_locality("a", "list")]))
            .endpoint_collection("list", resources::endpoint_collection::<&str>([])),
    )
    .await;
    let status = call(&mut client(&[&server])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("empty localities: [region/zone/a]"), "{}", status.message());
}

/// Listener and routes for `xds:///service` that send everything to `cluster`.
fn base(cluster: &str) -> SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", cluster))
}

/// The chain for `xds:///service` with another name for its cluster.
fn named_service(cluster: &str, backend: &Backend) -> SnapshotBuilder {
    base(cluster).cluster(resources::eds_cluster(cluster)).endpoints(resources::endpoints(cluster, [backend.addr()]))
}

/// A client whose bootstrap has an authority for endpoints, with these servers or else the same ones.
fn federated(servers: &[&Server], endpoint_servers: &[&Server]) -> Client {
    let insecure = |server: &&Server| ServerConfig::insecure(server.addr().to_string());
    let endpoints = endpoint_servers.iter().map(insecure).fold(Authority::default(), Authority::with_server);
    let mut bootstrap = Bootstrap::builder()
        .node(Node::new("test-node"))
        .authority("endpoints.test", endpoints.with_fallback_on_reachability_only(true));
    for server in servers {
        bootstrap = bootstrap.server(insecure(server));
    }
    let bootstrap = bootstrap.build().expect("a valid bootstrap");
    Client::new(builder(servers).bootstrap(bootstrap).build().expect("a channel"))
}

/// Waits until a request names this resource.
async fn until_asked_for(events: &mut Events, type_url: TypeUrl, name: &str) {
    let asked = |event: &Event| {
        let request = event.as_request()?;
        (request.type_url == type_url && request.names.iter().any(|asked| asked == name)).then_some(())
    };
    events.wait_for(asked).await.expect("a server that lives");
}

const EDS_NAME: &str = "xdstp://endpoints.test/envoy.config.endpoint.v3.ClusterLoadAssignment/service";
const LEDS_NAME: &str = "xdstp://endpoints.test/envoy.config.endpoint.v3.LbEndpointCollection/list-b";
