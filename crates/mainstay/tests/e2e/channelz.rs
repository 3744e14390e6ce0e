//! Channelz as drivers of interop suites read it.

use std::time::Duration;

use crate::channelz_v1::channel_connectivity_state::State;
use crate::channelz_v1::channelz_client::ChannelzClient;
use crate::channelz_v1::{
    Address, Channel as ChannelView, ChannelData, GetChannelRequest, GetSocketRequest, GetSubchannelRequest,
    GetTopChannelsRequest, address,
};
use mainstay::{Channel, admin};
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::{EchoStatus, SimpleRequest};
use tonic::Code;

use crate::common::{self, Client};

#[tokio::test]
async fn a_data_channel_leads_to_its_subchannel_and_socket_with_counters() {
    // I-21, I-23, I-25
    let [backend] = common::backends(["one"]).await;
    let control_plane = common::control_plane(service("channelz-data", &backend)).await;
    let mut client = client("channelz-data", &[&control_plane]);
    common::call(&mut client).await.unwrap();
    let not_found = EchoStatus { code: 5, message: String::new() };
    let failing = SimpleRequest { response_status: Some(not_found), ..Default::default() };
    assert_eq!(client.unary_call(failing).await.unwrap_err().code(), Code::NotFound);

    let mut channelz = ChannelzClient::new(admin::channelz());
    let channel = channel("xds:///channelz-data").await.unwrap();
    let data = channel.data.unwrap();
    assert_eq!((data.state.unwrap().state(), calls(&data)), (State::Ready, (2, 1, 1)));

    let [subchannel] = &channel.subchannel_ref[..] else { panic!("{:?}", channel.subchannel_ref) };
    let request = GetSubchannelRequest { subchannel_id: subchannel.subchannel_id };
    let subchannel = channelz.get_subchannel(request).await.unwrap().into_inner().subchannel.unwrap();
    let data = subchannel.data.unwrap();
    assert_eq!(data.target, backend.addr().to_string());
    assert_eq!((data.state.unwrap().state(), calls(&data)), (State::Ready, (2, 1, 1)));
    let events: Vec<_> = data.trace.unwrap().events.into_iter().map(|event| event.description).collect();
    assert_eq!(events, ["ready"]);

    let [socket] = &subchannel.socket_ref[..] else { panic!("{:?}", subchannel.socket_ref) };
    let request = GetSocketRequest { socket_id: socket.socket_id, summary: false };
    let socket = channelz.get_socket(request).await.unwrap().into_inner().socket.unwrap();
    let streams = socket.data.unwrap();
    assert_eq!((streams.streams_started, streams.streams_succeeded, streams.streams_failed), (2, 1, 1));
    assert_eq!(port(socket.remote), i32::from(backend.addr().port()));
    assert_ne!(port(socket.local), 0);
}

#[tokio::test]
async fn channels_to_xds_servers_show_their_state_and_vanish_when_they_are_let_go() {
    // I-22 to I-24, I-40 to I-43
    let [one, two] = common::backends(["one", "two"]).await;
    let primary = common::control_plane(service("channelz-ads", &one)).await;
    let fallback = common::control_plane(service("channelz-ads", &two)).await;
    primary.stop().await;
    let mut client = client("channelz-ads", &[&primary, &fallback]);
    common::until_answered_by(&mut client, "two").await;
    assert_eq!(state_of(&primary).await, Some(State::TransientFailure));
    let data = channel(&port_of(&fallback)).await.unwrap().data.unwrap();
    assert_eq!((data.state.unwrap().state(), calls(&data)), (State::Ready, (1, 0, 0)));

    primary.start().unwrap();
    common::until_answered_by(&mut client, "one").await;
    assert_eq!(state_of(&primary).await, Some(State::Ready));
    until_state(&fallback, None).await;

    primary.stop().await;
    until_state(&primary, Some(State::TransientFailure)).await;
    assert_eq!(state_of(&fallback).await, None);
    assert_eq!(common::call(&mut client).await.unwrap(), "one");

    drop(client);
    until_state(&primary, None).await;
}

#[tokio::test]
async fn pages_go_up_by_id_and_an_unknown_id_is_named() {
    // I-21
    let [backend] = common::backends(["one"]).await;
    let control_plane = common::control_plane(service("channelz-pages", &backend)).await;
    let mut client = client("channelz-pages", &[&control_plane]);
    common::call(&mut client).await.unwrap();
    let channels = top_channels().await;
    assert!(channels.len() >= 2 && channels.is_sorted_by_key(id), "{channels:?}");
    let first = id(&channel("xds:///channelz-pages").await.unwrap());

    let mut channelz = ChannelzClient::new(admin::channelz());
    let request = GetTopChannelsRequest { start_channel_id: first, max_results: 1 };
    let page = channelz.get_top_channels(request).await.unwrap().into_inner();
    assert_eq!(page.channel.iter().map(id).collect::<Vec<_>>(), [first]);
    assert!(!page.end);
    let request = GetTopChannelsRequest { start_channel_id: i64::MAX, max_results: 0 };
    let page = channelz.get_top_channels(request).await.unwrap().into_inner();
    assert!(page.channel.is_empty() && page.end);
    let status = channelz.get_channel(GetChannelRequest { channel_id: i64::MAX }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains(&i64::MAX.to_string()), "{status}");
}

/// Listener, routes and cluster all called `name`. Tests of one process see each other's channels: each has its own name.
fn service(name: &str, backend: &Backend) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener(name, resources::rds(name)))
        .route(resources::route(name, name))
        .cluster(resources::eds_cluster(name))
        .endpoints(resources::endpoints(name, [backend.addr()]))
        .build()
}

fn client(name: &str, servers: &[&Server]) -> Client {
    let channel = Channel::builder(format!("xds:///{name}"))
        .bootstrap(common::bootstrap(servers))
        .backoff(Duration::from_millis(20), Duration::from_millis(100))
        .build();
    Client::new(channel.unwrap())
}

async fn top_channels() -> Vec<ChannelView> {
    let request = GetTopChannelsRequest::default();
    let answer = ChannelzClient::new(admin::channelz()).get_top_channels(request).await.unwrap().into_inner();
    assert!(answer.end);
    answer.channel
}

/// The channel whose target ends with `end`, as drivers look for it.
async fn channel(end: &str) -> Option<ChannelView> {
    top_channels().await.into_iter().find(|channel| channel.data.as_ref().unwrap().target.ends_with(end))
}

/// The state of the channel to an xDS server; `None` if there is no such channel.
async fn state_of(server: &Server) -> Option<State> {
    Some(channel(&port_of(server)).await?.data.unwrap().state.unwrap().state())
}

fn port_of(server: &Server) -> String {
    format!(":{}", server.addr().port())
}

async fn until_state(server: &Server, wanted: Option<State>) {
    let reached = async {
        while state_of(server).await != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reached).await.unwrap_or_else(|_| panic!("never {wanted:?}"));
}

fn id(channel: &ChannelView) -> i64 {
    channel.r#ref.as_ref().unwrap().channel_id
}

fn calls(data: &ChannelData) -> (i64, i64, i64) {
    (data.calls_started, data.calls_succeeded, data.calls_failed)
}

fn port(end: Option<Address>) -> i32 {
    match end.unwrap().address.unwrap() {
        address::Address::TcpipAddress(tcp) => tcp.port,
        address::Address::UdsAddress(_) => panic!("not TCP"),
    }
}
