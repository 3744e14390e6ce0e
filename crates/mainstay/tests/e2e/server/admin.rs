//! What CSDS, channelz and events say of servers.

use std::net::SocketAddr;

use mainstay::admin;
use mainstay::event::Event;
use mainstay_control_plane::Snapshot;
use mainstay_testservice::proto::{EchoStatus, SimpleRequest};
use tonic::Code;

use super::stage::{Stage, call, name};
use crate::channelz_v1::channelz_client::ChannelzClient;
use crate::channelz_v1::{
    GetServerRequest, GetServerSocketsRequest, GetServersRequest, GetSocketRequest, Server, Socket, address,
};
use crate::common::{in_time, status_of};

/// What channelz shows of the server that listens on `address`.
pub(crate) async fn server(address: SocketAddr) -> Option<Server> {
    let mut channelz = ChannelzClient::new(admin::channelz());
    let servers = channelz.get_servers(GetServersRequest::default()).await.unwrap().into_inner();
    assert!(servers.end);
    let name = address.to_string();
    servers.server.into_iter().find(|server| server.listen_socket.iter().any(|socket| socket.name == name))
}

/// What it shows of its connections.
pub(crate) async fn sockets(address: SocketAddr) -> Vec<Socket> {
    let mut channelz = ChannelzClient::new(admin::channelz());
    let server_id = server(address).await.expect("a server").r#ref.unwrap().server_id;
    let request = GetServerSocketsRequest { server_id, ..Default::default() };
    let refs = channelz.get_server_sockets(request).await.unwrap().into_inner().socket_ref;
    let mut sockets = Vec::new();
    for socket in refs {
        // It may be gone by now.
        if let Ok(socket) = channelz.get_socket(GetSocketRequest { socket_id: socket.socket_id, summary: false }).await
        {
            sockets.extend(socket.into_inner().socket);
        }
    }
    sockets
}

/// S-86: a server, its port, its connections, and what was counted on each.
#[tokio::test]
async fn channelz_shows_servers_with_their_ports_and_connections() {
    let stage = Stage::serving().await;
    let mut caller = stage.caller().await;
    call(&mut caller).await.unwrap();
    let not_found = EchoStatus { code: 5, message: String::new() };
    let failing = SimpleRequest { response_status: Some(not_found), ..Default::default() };
    assert_eq!(caller.unary_call(failing).await.unwrap_err().code(), Code::NotFound);

    let shown = server(stage.address).await.unwrap();
    let data = shown.data.unwrap();
    assert_eq!((data.calls_started, data.calls_succeeded, data.calls_failed), (2, 1, 1));
    let events: Vec<_> = data.trace.unwrap().events.into_iter().map(|event| event.description).collect();
    assert!(events.contains(&format!("{}: serving", stage.address)), "{events:?}");
    let mut channelz = ChannelzClient::new(admin::channelz());
    let request = GetServerRequest { server_id: shown.r#ref.unwrap().server_id };
    assert!(channelz.get_server(request).await.unwrap().into_inner().server.is_some());
    let socket_id = shown.listen_socket[0].socket_id;
    let port = channelz.get_socket(GetSocketRequest { socket_id, summary: false }).await.unwrap().into_inner();
    let port = port.socket.unwrap();
    assert_eq!((port_of(port.local), port.remote), (stage.address.port(), None));

    let [socket] = &sockets(stage.address).await[..] else { panic!("one connection") };
    let streams = socket.data.unwrap();
    assert_eq!((streams.streams_started, streams.streams_succeeded, streams.streams_failed), (2, 1, 1));
    assert_eq!(port_of(socket.local.clone()), stage.address.port());
    assert_eq!(port_of(socket.remote.clone()), stage.seen.last_peer().address().port());
    assert_eq!(socket.security, None);
    drop(caller);
    stage.until_connections(0).await;
    let address = stage.address;
    drop(stage);
    in_time(async {
        while server(address).await.is_some() {
            tokio::task::yield_now().await
        }
    })
    .await;
}

/// A40: the resources of a server are those of the client `#server`.
#[tokio::test]
async fn csds_shows_the_listener_of_a_server() {
    let node = |parts: mainstay::bootstrap::BootstrapBuilder| parts.node(mainstay::bootstrap::Node::new("csds-server"));
    let stage = Stage::with_bootstrap(node, |server| server, |builder| builder).await;
    stage.set(stage.listener());
    stage.until_serving().await;
    let [config] = &status_of("csds-server").await[..] else { panic!("one client") };
    assert_eq!(config.client_scope, "#server");
    let [listener] = &config.generic_xds_configs[..] else { panic!("{:?}", config.generic_xds_configs) };
    assert_eq!(listener.name, name(stage.address));
}

/// What a server does is an event: its states, and connections that no filter chain is for.
#[tokio::test]
async fn servers_have_events() {
    let stage = Stage::empty().await;
    let mut events = stage.running.events();
    let mut picky = stage.listener();
    let mut chain = picky.default_filter_chain.take().unwrap();
    chain.filter_chain_match = Some(envoy_types::pb::envoy::config::listener::v3::FilterChainMatch {
        source_ports: vec![1],
        ..Default::default()
    });
    picky.filter_chains = vec![chain];
    stage.control.control_plane().set(Snapshot::builder().listener(picky));
    let mut next = async |wanted: &str| {
        in_time(async {
            loop {
                let event = events.next().await.expect("a server that lives");
                match event {
                    Event::ServingStateChanged { .. } | Event::Unmatched { .. } => {
                        break assert_eq!(event.to_string(), wanted);
                    }
                    _ => {}
                }
            }
        })
        .await
    };
    next(&format!("{}: serving", stage.address)).await;
    for count in [1, 2] {
        // SV-19: closed without a byte.
        let mut stream = tokio::net::TcpStream::connect(stage.address).await.unwrap();
        let mut byte = [0];
        let read = in_time(tokio::io::AsyncReadExt::read(&mut stream, &mut byte)).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        next(&format!("{}: {count} connections without a filter chain so far", stage.address)).await;
    }
}

fn port_of(of: Option<crate::channelz_v1::Address>) -> u16 {
    match of.and_then(|of| of.address) {
        Some(address::Address::TcpipAddress(tcp)) => u16::try_from(tcp.port).unwrap(),
        other => panic!("{other:?}"),
    }
}
