//! Whether a server serves, and what it says of it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::event::Event;
use mainstay::{ServeError, ServerCredentials, ServingState};
use mainstay_control_plane::{Events, Server, Snapshot, TypeUrl, resources};
use tokio::net::TcpStream;

use super::stage::{PlainClient, Seen, Stage, builder, call, connect, listener, name, routes};
use crate::common::in_time;

/// SV-7, SV-3: until there is a configuration the system refuses connections; then any tonic client is served.
#[tokio::test]
async fn a_server_listens_when_it_is_configured_and_not_before() {
    let mut stage = Stage::empty().await;
    assert_eq!(refused(stage.address).await, ErrorKind::ConnectionRefused);
    let state = stage.running.serving_state(stage.address).unwrap().current();
    assert!(!state.is_serving(), "{state}");
    stage.set(stage.listener());
    assert_eq!(stage.next_state().await, ServingState::Serving);
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    assert_eq!(stage.seen.last_peer().filter_chain(), Some("default_filter_chain"));
    assert_eq!(stage.seen.last_peer().principal(), None);
}

/// The example of the README: five lines, in a task.
#[tokio::test]
async fn the_example_of_the_readme_serves() {
    let control = crate::common::control_plane(Snapshot::builder()).await;
    let bootstrap = bootstrap(&control, "readme");
    let greeter = mainstay_testservice::service("one", "one").unwrap();
    let asked = control.events();
    let server = tokio::spawn(async move {
        mainstay::Server::builder()
            .bootstrap(bootstrap) // the README has it from the environment
            .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
            .add_service(greeter)
            .serve_xds("127.0.0.1:0".parse().unwrap())
            .await
    });
    assert_eq!(call(&mut once_configured(&control, asked).await.1).await.unwrap(), "one");
    server.abort();
}

/// SV-25: the signal of the application lets RPCs finish, and then the future is done.
#[tokio::test]
async fn a_signal_ends_the_server() {
    let control = crate::common::control_plane(Snapshot::builder()).await;
    let builder = builder(&Seen::default()).bootstrap(bootstrap(&control, "signalled"));
    let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
    let asked = control.events();
    let server = tokio::spawn(builder.serve_xds_with_shutdown("127.0.0.1:0".parse().unwrap(), async {
        signalled.await.expect("it is sent");
    }));
    let (address, caller) = once_configured(&control, asked).await;
    let mut streaming = super::updates::Streaming::begin(caller).await;
    signal.send(()).unwrap();
    in_time(async { while refused(address).await != ErrorKind::ConnectionRefused {} }).await;
    streaming.exchange().await;
    assert!(!server.is_finished());
    streaming.finish().await;
    in_time(server).await.unwrap().unwrap();
}

/// S-12, SV-13: what cannot be served is told with resource, server and reason, each once and in order.
#[tokio::test]
async fn what_cannot_be_served_is_told_once_and_by_name() {
    let mut stage = Stage::empty().await;
    let (address, control) = (stage.address, stage.control.addr());
    let other: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let mut elsewhere = stage.listener();
    elsewhere.address = Some(resources::address(other));
    stage.set(elsewhere);
    let expected = format!("Listener {:?} from {control} is for {other}: expected {address}", name(address));
    assert_eq!(reason(stage.next_state().await), expected);

    stage.set(resources::listener(name(address), resources::route("r", "c")));
    let reason = reason(stage.next_state().await);
    assert!(reason.contains(&name(address)) && reason.contains("is for clients"), "{reason}");
    assert_eq!(refused(address).await, ErrorKind::ConnectionRefused);

    stage.set(stage.listener());
    assert_eq!(stage.next_state().await, ServingState::Serving);
    assert!(stage.states.try_recv().is_err(), "nothing else was told");
}

/// SV-15, S-6: neither the loss of the control plane nor a deletion that is to be ignored changes anything.
#[tokio::test]
async fn a_server_goes_on_without_a_control_plane() {
    let mut stage = Stage::serving().await;
    assert_eq!(stage.next_state().await, ServingState::Serving);
    let (mut events, mut seen) = (stage.running.events(), stage.control.events());
    stage.control.control_plane().set(Snapshot::builder().version(TypeUrl::LISTENER, "gone"));
    in_time(async { while seen.answer(TypeUrl::LISTENER).await.unwrap().version != "gone" {} }).await;
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    stage.control.stop().await;
    in_time(async { while !matches!(events.next().await, Some(Event::Unreachable { .. })) {} }).await;
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    assert!(stage.states.try_recv().is_err());
}

/// SV-8, S-7: where the bootstrap says so, a deletion ends the serving: new connections are refused, RPCs under way finish.
#[tokio::test]
async fn a_deletion_that_counts_closes_the_port_and_fails_no_rpc() {
    let fail = |mut server: ServerConfig| {
        server.features.fail_on_data_errors = true;
        server
    };
    let mut stage = Stage::with_bootstrap(|parts| parts, fail, |builder| builder).await;
    stage.set(stage.listener());
    assert_eq!(stage.next_state().await, ServingState::Serving);
    let mut streaming = super::updates::Streaming::begin(stage.caller().await).await;
    for _ in 0..3 {
        stage.control.control_plane().set(Snapshot::builder());
        let reason = reason(stage.next_state().await);
        assert!(reason.contains(&name(stage.address)), "{reason}");
        assert_eq!(refused(stage.address).await, ErrorKind::ConnectionRefused);
        streaming.exchange().await;
        stage.set(stage.listener());
        assert_eq!(stage.next_state().await, ServingState::Serving);
        assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    }
    streaming.finish().await;
}

/// SV-9: one Listener with port 0 is for all instances, whatever ports they got.
#[tokio::test]
async fn a_listener_without_a_port_is_for_every_port() {
    let stage = Stage::empty().await;
    let mut any = stage.listener();
    any.address = Some(resources::address("127.0.0.1:0"));
    stage.set(any);
    stage.until_serving().await;
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
}

/// SV-3: what the control plane has nothing to do with fails at once.
#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let parts = || Bootstrap::builder().node(Node::new("server")).server(ServerConfig::insecure("127.0.0.1:1"));
    let good = parts().server_listener_resource_name_template("%s").build().unwrap();
    let server = || builder(&Seen::default());

    let error = server().bootstrap(good.clone()).listen(address).start().unwrap_err();
    assert!(matches!(&error, ServeError::Bind(at, _) if *at == address), "{error}");
    let free = "127.0.0.1:0".parse().unwrap();
    let error = server().bootstrap(parts().build().unwrap()).listen(free).start().unwrap_err();
    assert!(matches!(error, ServeError::NoTemplate), "{error}");
    let error = server().bootstrap(good.clone()).start().unwrap_err();
    assert!(matches!(error, ServeError::NoAddress), "{error}");
    let twice = server().add_service(mainstay_testservice::service("two", "two").unwrap());
    let error = twice.bootstrap(good.clone()).listen(free).start().unwrap_err();
    assert_eq!(error.to_string(), "service \"grpc.testing.TestService\" was added twice");
    // And nothing else does.
    let running = server().bootstrap(good).listen(free).start().unwrap();
    assert_eq!(refused(running.local_addresses()[0]).await, ErrorKind::ConnectionRefused);
}

/// SV-7: somebody else may be quicker to listen. That is told, and tried again.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_port_that_somebody_else_listens_on_is_tried_again() {
    let mut stage = Stage::empty().await;
    let quicker = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    quicker.set_reuse_address(true).unwrap();
    quicker.bind(&stage.address.into()).unwrap();
    quicker.listen(1).unwrap();
    stage.set(stage.listener());
    let reason = reason(stage.next_state().await);
    assert!(reason.starts_with(&format!("cannot listen on {}: ", stage.address)), "{reason}");
    drop(quicker);
    assert_eq!(stage.next_state().await, ServingState::Serving);
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
}

/// SV-4: each address has its own Listener and its own state.
#[tokio::test]
async fn addresses_are_served_one_by_one() {
    let stage = Stage::with(|builder| builder.listen("[::1]:0".parse().unwrap())).await;
    let [first, second] = stage.running.local_addresses()[..] else { panic!("two addresses") };
    let mut broken = listener(second, routes());
    broken.address = Some(resources::address("[::1]:1"));
    let both = |second| Snapshot::builder().listener(listener(first, routes())).listener(second);
    stage.control.control_plane().set(both(broken));
    let mut states = stage.running.serving_state(second).unwrap();
    stage.until_serving().await;
    in_time(states.next()).await;
    assert!(reason(states.current()).contains("is for [::1]:1"), "{}", states.current());
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    assert_eq!(refused(second).await, ErrorKind::ConnectionRefused);
    stage.control.control_plane().set(both(listener(second, routes())));
    assert!(in_time(states.serving()).await);
    assert_eq!(call(&mut connect(second).await.unwrap()).await.unwrap(), "one");
    assert!(stage.running.serving_state("127.0.0.1:1".parse().unwrap()).is_none());
}

/// A71, SV-14: the client of servers falls back like any other.
#[tokio::test]
async fn a_server_is_configured_by_the_fallback() {
    let fallback = crate::common::control_plane(Snapshot::builder()).await;
    let uri = fallback.addr().to_string();
    let dead = |_| ServerConfig::insecure("127.0.0.1:1");
    let parts = |parts: mainstay::bootstrap::BootstrapBuilder| parts.server(ServerConfig::insecure(uri));
    let stage = Stage::with_bootstrap(parts, dead, |builder| builder).await;
    fallback.control_plane().set(Snapshot::builder().listener(stage.listener()));
    stage.until_serving().await;
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
}

/// SV-10: the port stays open while Listeners change, and a bad one changes nothing.
#[tokio::test]
async fn a_bad_listener_leaves_the_good_one_in_force() {
    let mut stage = Stage::serving().await;
    assert_eq!(stage.next_state().await, ServingState::Serving);
    let mut events = stage.control.events();
    let mut bad = stage.listener();
    bad.use_original_dst = Some(envoy_types::pb::google::protobuf::BoolValue { value: true });
    stage.set(bad);
    let (_, error) = in_time(async {
        loop {
            if let Some(error) = events.answer(TypeUrl::LISTENER).await.unwrap().error {
                break error;
            }
        }
    })
    .await;
    assert!(error.contains("use_original_dst"), "{error}");
    assert_eq!(call(&mut stage.caller().await).await.unwrap(), "one");
    assert!(stage.states.try_recv().is_err());
}

/// SV-25: callers are told to go, RPCs finish, and the port is closed at once.
#[tokio::test]
async fn a_shutdown_lets_rpcs_finish() {
    let stage = Stage::serving().await;
    let (address, mut caller) = (stage.address, stage.caller().await);
    let mut streaming = super::updates::Streaming::begin(stage.caller().await).await;
    let mut states = stage.running.serving_state(address).unwrap();
    let ended = tokio::spawn(stage.running.shutdown());
    assert_eq!(reason(in_time(states.next()).await.unwrap()), "shut down by the application");
    in_time(async { while refused(address).await != ErrorKind::ConnectionRefused {} }).await;
    streaming.exchange().await;
    assert!(!ended.is_finished());
    streaming.finish().await;
    in_time(ended).await.unwrap();
    assert_eq!(states.next().await, None);
    assert!(call(&mut caller).await.is_err(), "nobody is there");
}

/// SV-21: what is not done when the grace is over is reset.
#[tokio::test]
async fn a_shutdown_ends_with_the_grace() {
    let stage = Stage::with(|builder| builder.drain_grace(Duration::from_millis(50))).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let mut streaming = super::updates::Streaming::begin(stage.caller().await).await;
    in_time(stage.running.shutdown()).await;
    assert!(streaming.fails().await);
}

/// A future that is dropped ends the server, whatever runs on it.
#[tokio::test]
async fn a_server_ends_with_its_owner() {
    let stage = Stage::serving().await;
    let (address, mut caller) = (stage.address, stage.caller().await);
    let mut streaming = super::updates::Streaming::begin(stage.caller().await).await;
    drop(stage.running);
    assert!(streaming.fails().await);
    in_time(async { while call(&mut caller).await.is_ok() {} }).await;
    in_time(async { while TcpStream::connect(address).await.is_ok() {} }).await;
}

fn reason(state: ServingState) -> String {
    match state {
        ServingState::NotServing { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

async fn refused(address: SocketAddr) -> ErrorKind {
    match TcpStream::connect(address).await {
        Ok(_) => ErrorKind::Other,
        Err(error) => error.kind(),
    }
}

fn bootstrap(control: &Server, node: &str) -> Bootstrap {
    Bootstrap::builder()
        .node(Node::new(node))
        .server(ServerConfig::insecure(control.addr().to_string()))
        .server_listener_resource_name_template("server/%s")
        .build()
        .unwrap()
}

/// Waits for the server to ask for its Listener, and gives it one: its address, and a connection to it.
async fn once_configured(control: &Server, mut asked: Events) -> (SocketAddr, PlainClient) {
    let request = in_time(asked.request(TypeUrl::LISTENER)).await.unwrap();
    let address: SocketAddr = request.names[0].strip_prefix("server/").unwrap().parse().unwrap();
    control.control_plane().set(Snapshot::builder().listener(listener(address, routes())));
    let connected = in_time(async {
        loop {
            if let Ok(caller) = connect(address).await {
                break caller;
            }
        }
    });
    (address, connected.await)
}
