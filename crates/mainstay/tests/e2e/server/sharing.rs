//! Servers with one bootstrap have one client `#server` (A71, C-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::{Running, ServingState};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, TypeUrl};

use super::stage::{Seen, TEMPLATE, builder, call, connect, listener, name, routes};
use super::updates::Streaming;
use crate::common::{in_time, status_of};
use crate::panics::Bomb;

/// Both serve over one stream; each has its own addresses, states and end.
#[tokio::test]
async fn servers_with_one_bootstrap_have_one_stream() {
    let control = ControlPlane::new().serve("127.0.0.1:0").await.unwrap();
    let (one, two, other) = (start(&control, "shared"), start(&control, "shared"), start(&control, "apart"));
    let servers = [&one, &two, &other];
    configure(&control, &servers);
    for server in servers {
        assert!(in_time(states(server).serving()).await);
        assert_eq!(call(&mut connect(address(server)).await.unwrap()).await.unwrap(), "one");
    }
    assert_eq!(control.stats().open_streams, 2, "of two bootstraps");
    let shown = async |node| {
        let [client] = &status_of(node).await[..] else { panic!("one client") };
        assert_eq!(client.client_scope, "#server");
        client.generic_xds_configs.iter().map(|resource| resource.name.clone()).collect::<Vec<_>>()
    };
    let mut both = [&one, &two].map(|server| name(address(server)));
    both.sort();
    assert_eq!(shown("shared").await, both);
    assert_eq!(shown("apart").await, [name(address(&other))]);

    // The end of one is nothing to the other, and its Listener is not asked for any more.
    let mut streaming = Streaming::begin(connect(address(&two)).await.unwrap()).await;
    let (gone, mut events) = (address(&one), control.events());
    in_time(one.shutdown()).await;
    let asked = in_time(events.request(TypeUrl::LISTENER)).await.unwrap();
    assert_eq!(asked.names.iter().collect::<Vec<_>>(), [&name(address(&two))]);
    assert!(connect(gone).await.is_err());
    streaming.exchange().await;
    assert_eq!(states(&two).current(), ServingState::Serving);
    // So is one that is dropped, and one that comes later.
    let three = start(&control, "shared");
    configure(&control, &[&two, &three, &other]);
    assert!(in_time(states(&three).serving()).await);
    drop(two);
    assert!(streaming.fails().await);
    call(&mut connect(address(&three)).await.unwrap()).await.unwrap();
    assert_eq!(control.stats().open_streams, 2);
    drop(three);
    in_time(async {
        while control.stats().open_streams != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A driver that panics takes neither of its servers with it, and the next one knows which of them was ending.
#[tokio::test]
async fn a_driver_that_panics_comes_back_for_all_of_its_servers() {
    let control = ControlPlane::new().serve("127.0.0.1:0").await.unwrap();
    let (one, two) = (start(&control, "crashing"), start(&control, "crashing"));
    configure(&control, &[&one, &two]);
    for server in [&one, &two] {
        assert!(in_time(states(server).serving()).await);
    }
    let streaming = Streaming::begin(connect(address(&one)).await.unwrap()).await;
    let bomb = Arc::new(AtomicUsize::new(usize::MAX));
    let _guard = tracing::subscriber::set_default(Bomb(bomb.clone()));
    let mut events = control.events();
    bomb.store(1, Ordering::Relaxed);
    control.close_streams(tonic::Code::Unavailable);
    in_time(async {
        while bomb.load(Ordering::Relaxed) != 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Between two drivers.
    let (gone, ended) = (address(&one), tokio::spawn(one.shutdown()));
    let both = in_time(events.request(TypeUrl::LISTENER)).await.unwrap().names;
    assert_eq!(both.len(), 2, "the next driver asks for both: {both:?}");
    streaming.finish().await;
    in_time(ended).await.unwrap();
    assert!(connect(gone).await.is_err());
    call(&mut connect(address(&two)).await.unwrap()).await.unwrap();
}

fn start(control: &Server, node: &str) -> Running {
    let bootstrap = Bootstrap::builder()
        .node(Node::new(node))
        .server(ServerConfig::insecure(control.addr().to_string()))
        .server_listener_resource_name_template(TEMPLATE);
    let builder = builder(&Seen::default()).bootstrap(bootstrap.build().unwrap());
    builder.listen("127.0.0.1:0".parse().unwrap()).start().unwrap()
}

fn configure(control: &Server, servers: &[&Running]) {
    let listeners = servers.iter().map(|server| listener(address(server), routes()));
    control.control_plane().set(listeners.fold(Snapshot::builder(), |snapshot, listener| snapshot.listener(listener)));
}

fn address(server: &Running) -> std::net::SocketAddr {
    server.local_addresses()[0]
}

fn states(server: &Running) -> mainstay::ServingStates {
    server.serving_state(address(server)).expect("its address")
}
