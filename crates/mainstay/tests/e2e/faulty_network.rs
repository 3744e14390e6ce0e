//! The whole stack on connections that go wrong: what the simulation, which has no sockets, cannot show.

use std::time::Duration;

use mainstay::bootstrap::{Bootstrap, ServerConfig};
use mainstay::event::Event;
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{Server, Snapshot, TypeUrl, resources};
use tonic::Code;

use crate::common::{Client, backends, call, call_within, control_plane, in_time, service, spread, until_answered_by};
use crate::proxy::{Proxy, goaway, reset};

// === Connections to control planes ===

#[tokio::test]
async fn a_half_open_connection_to_the_control_plane_is_noticed_and_the_next_server_is_asked() {
    // A57, A71: the connection is there and nothing passes. Endpoints are still missing, so this is a time to fall back.
    let [one, two] = backends(["one", "two"]).await;
    let [primary, fallback] = [control_plane(service(&[&one])).await, control_plane(service(&[&two])).await];
    primary.faults().hold(TypeUrl::ENDPOINTS);
    let proxy = Proxy::to(primary.addr()).await;
    let mut requests = primary.events();
    let channel = builder(&proxy, Some(&fallback)).build().unwrap();
    let mut client = Client::new(channel.clone());
    let waiting = tokio::spawn(async move { (call(&mut client).await, client) });
    in_time(requests.request(TypeUrl::ENDPOINTS)).await.unwrap();

    proxy.freeze(true);
    let (answer, mut client) = in_time(waiting).await.unwrap();
    assert_eq!(answer.unwrap(), "two");

    primary.faults().release(&TypeUrl::ENDPOINTS);
    proxy.freeze(false);
    until_answered_by(&mut client, "one").await;
}

#[tokio::test]
async fn a_half_open_connection_to_the_control_plane_disturbs_no_call_and_is_replaced_when_it_can_be() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let proxy = Proxy::to(server.addr()).await;
    let channel = builder(&proxy, None).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    assert_eq!(call(&mut client).await.unwrap(), "one");

    proxy.freeze(true);
    server.control_plane().set(service(&[&two]));
    let cause = in_time(async {
        loop {
            if let Event::StreamEnded { cause, .. } = events.next().await.expect("a channel that lives") {
                return cause;
            }
            assert_eq!(call(&mut client).await.unwrap(), "one");
        }
    })
    .await;
    assert!(cause.contains("keep-alive timed out"), "{cause}");
    assert_eq!(spread(&mut client, 10).await["one"], 10);

    proxy.freeze(false);
    until_answered_by(&mut client, "two").await;
}

#[tokio::test]
async fn after_a_goaway_the_ads_stream_goes_on_and_new_ones_have_a_connection_of_their_own() {
    // RFC 9113, section 6.8: streams that are open are finished.
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(two_targets(&one)).await;
    let proxy = Proxy::to(server.addr()).await;
    let mut client = Client::new(builder(&proxy, None).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "one");

    proxy.say(goaway(1));
    server.control_plane().set(two_targets(&two));
    until_answered_by(&mut client, "two").await;
    assert_eq!((server.stats().streams, proxy.connections()), (1, 1), "the stream was not disturbed");

    let other = Channel::builder("xds:///other").bootstrap(bootstrap(&proxy, None));
    assert_eq!(call(&mut Client::new(quick(other).build().unwrap())).await.unwrap(), "two");
    assert_eq!((server.stats().streams, proxy.connections()), (2, 2));
}

#[tokio::test]
async fn a_goaway_that_disowns_the_ads_stream_costs_a_new_connection_and_no_call() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let proxy = Proxy::to(server.addr()).await;
    let mut client = Client::new(builder(&proxy, None).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "one");

    proxy.say(goaway(0));
    server.control_plane().set(service(&[&two]));
    until_answered_by(&mut client, "two").await;
    assert!(server.stats().streams >= 2 && proxy.connections() >= 2);
}

#[tokio::test]
async fn an_ads_stream_that_is_reset_is_opened_again_and_costs_no_call() {
    // A57: after an answered stream, at once.
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let proxy = Proxy::to(server.addr()).await;
    let channel = builder(&proxy, None).build().unwrap();
    let mut events = channel.events();
    let mut client = Client::new(channel);
    assert_eq!(call(&mut client).await.unwrap(), "one");

    for (code, next) in [(INTERNAL_ERROR, &two), (REFUSED_STREAM, &one), (ENHANCE_YOUR_CALM, &two)] {
        let streams = server.stats().streams;
        proxy.say(reset(1, code)); // The first stream of a client; each has a connection of its own here.
        let ended = async {
            loop {
                if let Event::StreamEnded { .. } = events.next().await.expect("a channel that lives") {
                    return;
                }
            }
        };
        in_time(ended).await;
        server.control_plane().set(service(&[next]));
        until_answered_by(&mut client, next.id()).await;
        assert_eq!(server.stats().streams, streams + 1);
    }
}

#[tokio::test]
async fn a_response_that_is_cut_in_the_middle_changes_nothing() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let proxy = Proxy::to(server.addr()).await;
    let mut client = Client::new(builder(&proxy, None).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "one");

    // Wherever the cut is: in the settings, in headers, in the first response or in the last.
    server.control_plane().set(service(&[&two]));
    for limit in (1..1200).step_by(149) {
        proxy.cut_after(Some(limit));
        let connections = proxy.connections();
        proxy.cut();
        in_time(async {
            while proxy.connections() == connections {
                call(&mut client).await.expect("an answer");
            }
        })
        .await;
    }
    proxy.cut_after(None);
    proxy.cut();
    until_answered_by(&mut client, "two").await;
}

#[tokio::test]
async fn a_response_that_comes_byte_by_byte_is_understood() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let proxy = Proxy::to(server.addr()).await;
    proxy.dribble(1);
    let mut client = Client::new(builder(&proxy, None).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "one");
}

// === Connections to endpoints ===

#[tokio::test]
async fn a_half_open_connection_to_an_endpoint_is_noticed_by_keepalive_and_left() {
    let [one, two] = backends(["one", "two"]).await;
    let proxy = Proxy::to(one.addr()).await;
    let server = control_plane(behind(&[proxy.address().to_string(), two.addr().to_string()])).await;
    let direct = Proxy::to(server.addr()).await;
    let keep_alive = (Duration::from_millis(50), Duration::from_millis(500));
    let channel = builder(&direct, None).keep_alive(keep_alive.0, keep_alive.1).build().unwrap();
    let mut client = Client::new(channel);
    until_answered_by(&mut client, "one").await;

    // Calls that are on the connection are lost with it; they say so long before their deadline. No later call goes there.
    proxy.freeze(true);
    let mut lost = 0;
    let settled = async {
        let mut in_a_row = 0;
        while in_a_row < 10 {
            match call(&mut client).await {
                Ok(id) => {
                    assert_eq!(id, "two");
                    in_a_row += 1;
                }
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    lost += 1;
                    in_a_row = 0;
                }
            }
        }
    };
    in_time(settled).await;
    assert!(lost <= 1, "{lost} calls were lost");

    proxy.freeze(false);
    until_answered_by(&mut client, "one").await;
}

#[tokio::test]
async fn without_keepalive_a_half_open_connection_costs_a_call_no_more_than_its_deadline() {
    let [one] = backends(["one"]).await;
    let proxy = Proxy::to(one.addr()).await;
    let server = control_plane(behind(&[proxy.address().to_string()])).await;
    let direct = Proxy::to(server.addr()).await;
    let mut client = Client::new(builder(&direct, None).build().unwrap());
    assert_eq!(call(&mut client).await.unwrap(), "one");
    proxy.freeze(true);
    let status = call_within(&mut client, Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    proxy.freeze(false);
    assert_eq!(call(&mut client).await.unwrap(), "one", "nothing was lost");
}

// === Helpers ===

fn builder(primary: &Proxy, fallback: Option<&Server>) -> ChannelBuilder {
    quick(Channel::builder("xds:///service").bootstrap(bootstrap(primary, fallback)))
}

fn quick(builder: ChannelBuilder) -> ChannelBuilder {
    builder
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .connect_timeout(Duration::from_millis(200))
        .xds_connect_timeouts(Duration::from_millis(200), Duration::from_millis(200))
        .xds_keep_alive(Duration::from_millis(50), Duration::from_millis(100))
}

fn bootstrap(primary: &Proxy, fallback: Option<&Server>) -> Bootstrap {
    let mut builder = Bootstrap::builder().server(ServerConfig::insecure(primary.address().to_string()));
    if let Some(fallback) = fallback {
        builder = builder.server(ServerConfig::insecure(fallback.addr().to_string()));
    }
    builder.build().expect("a valid bootstrap")
}

fn two_targets(backend: &mainstay_testservice::Backend) -> Snapshot {
    let mut snapshot = service(&[backend]);
    snapshot.insert(resources::listener("other", resources::rds("service")));
    snapshot
}

/// The usual chain to these addresses.
fn behind(addresses: &[String]) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", addresses))
        .build()
}

// Error codes of RFC 9113, section 7.
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;
