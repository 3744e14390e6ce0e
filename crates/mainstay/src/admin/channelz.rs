//! Channelz: every channel of the process, also those to xDS servers, and every server, with state, counters and the last
//! events.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use envoy_types::pb::google::protobuf::Timestamp;
use mainstay_lb::{Connectivity, Outlook};
use mainstay_xds::client::ServerState;
use tonic::{Request, Response, Status};

use crate::channelz_node::{CallCounters, Calls, ChannelzNode, TraceEvent};
use crate::connection::{Connection, Socket};
use crate::hub::Hub;
use crate::server::{Listener, ServerHandle, SocketNode};
use crate::shared::HubStatus;
use crate::tls::TlsInfo;
use crate::xds_status::XdsStatus;

use pb::channel_connectivity_state::State;
use pb::channel_trace_event::Severity;
use pb::channelz_server::ChannelzServer;

/// Returns gRPC's channelz service, version 1.
///
/// Top channels are the `xds:` channels of this process and their channels to xDS servers. Below the former are
/// subchannels with their sockets. Servers are those of [`Server`](crate::Server), with the ports that they listen on, and the
/// sockets of their connections.
pub fn channelz() -> Channelz {
    Channelz(ChannelzServer::new(Service))
}

/// The service `grpc.channelz.v1.Channelz`, from [`channelz`].
#[derive(Clone)]
pub struct Channelz(ChannelzServer<Service>);

/// The descriptors of `grpc.channelz.v1`, an encoded `FileDescriptorSet`, for server reflection.
pub const CHANNELZ_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../generated/descriptors.bin");

service!(Channelz);

impl tonic::server::NamedService for Channelz {
    const NAME: &'static str = <ChannelzServer<Service> as tonic::server::NamedService>::NAME;
}

/// The messages and stubs of `grpc.channelz.v1`.
mod pb {
    #![allow(missing_docs, dead_code, unreachable_pub, clippy::enum_variant_names, reason = "generated")]

    include!("../generated/grpc.channelz.v1.rs");
}

#[derive(Debug)]
struct Service;

#[tonic::async_trait]
impl pb::channelz_server::Channelz for Service {
    async fn get_top_channels(
        &self,
        request: Request<pb::GetTopChannelsRequest>,
    ) -> Result<Response<pb::GetTopChannelsResponse>, Status> {
        let pb::GetTopChannelsRequest { start_channel_id, max_results } = request.into_inner();
        let limit = limit(max_results)?;
        let mut channel = top_channels().await;
        channel.retain(|channel| id(channel) >= start_channel_id);
        let end = channel.len() <= limit;
        channel.truncate(limit);
        Ok(Response::new(pb::GetTopChannelsResponse { channel, end }))
    }

    async fn get_channel(
        &self,
        request: Request<pb::GetChannelRequest>,
    ) -> Result<Response<pb::GetChannelResponse>, Status> {
        let wanted = request.into_inner().channel_id;
        let channel = top_channels().await.into_iter().find(|channel| id(channel) == wanted);
        let channel = Some(channel.ok_or_else(|| unknown("channel", wanted))?);
        Ok(Response::new(pb::GetChannelResponse { channel }))
    }

    async fn get_subchannel(
        &self,
        request: Request<pb::GetSubchannelRequest>,
    ) -> Result<Response<pb::GetSubchannelResponse>, Status> {
        let wanted = request.into_inner().subchannel_id;
        let found = connections().await.into_iter().find(|connection| connection.counters().id == wanted);
        let found = found.ok_or_else(|| unknown("subchannel", wanted))?;
        let subchannel = Some(subchannel(&found));
        Ok(Response::new(pb::GetSubchannelResponse { subchannel }))
    }

    async fn get_socket(
        &self,
        request: Request<pb::GetSocketRequest>,
    ) -> Result<Response<pb::GetSocketResponse>, Status> {
        let wanted = request.into_inner().socket_id;
        let connections = connections().await;
        let of_channels = connections.iter().filter_map(|connection| Some((connection, connection.socket()?)));
        let mut of_channels = of_channels.filter(|(_, socket)| socket.id == wanted);
        let found = of_channels.next().map(|(connection, found)| socket(connection, &found));
        let found = found.or_else(|| server_socket(wanted)).ok_or_else(|| unknown("socket", wanted))?;
        Ok(Response::new(pb::GetSocketResponse { socket: Some(found) }))
    }

    async fn get_servers(
        &self,
        request: Request<pb::GetServersRequest>,
    ) -> Result<Response<pb::GetServersResponse>, Status> {
        let pb::GetServersRequest { start_server_id, max_results } = request.into_inner();
        let limit = limit(max_results)?;
        let mut servers = ServerHandle::all();
        servers.retain(|server| server.shared.node.counters.id >= start_server_id);
        let end = servers.len() <= limit;
        servers.truncate(limit);
        let server = servers.iter().map(|server| server_view(server)).collect();
        Ok(Response::new(pb::GetServersResponse { server, end }))
    }

    async fn get_server(
        &self,
        request: Request<pb::GetServerRequest>,
    ) -> Result<Response<pb::GetServerResponse>, Status> {
        let server = server(request.into_inner().server_id)?;
        Ok(Response::new(pb::GetServerResponse { server: Some(server_view(&server)) }))
    }

    async fn get_server_sockets(
        &self,
        request: Request<pb::GetServerSocketsRequest>,
    ) -> Result<Response<pb::GetServerSocketsResponse>, Status> {
        let pb::GetServerSocketsRequest { server_id, start_socket_id, max_results } = request.into_inner();
        let (server, limit) = (server(server_id)?, limit(max_results)?);
        let mut sockets: Vec<_> = server.listeners.iter().flat_map(|listener| listener.node.sockets()).collect();
        sockets.retain(|socket| socket.counters.id >= start_socket_id);
        sockets.sort_by_key(|socket| socket.counters.id);
        let end = sockets.len() <= limit;
        sockets.truncate(limit);
        let socket_ref = sockets.iter().map(|socket| accepted_ref(socket)).collect();
        Ok(Response::new(pb::GetServerSocketsResponse { socket_ref, end }))
    }
}

/// Data channels and channels to xDS servers in use, by ascending id (I-21, I-22).
async fn top_channels() -> Vec<pb::Channel> {
    let mut channels = Vec::new();
    for status in Hub::statuses().await {
        channels.push(data_channel(&status));
        channels.extend(xds_channels(&status.xds));
    }
    channels.sort_by_key(id);
    channels
}

/// How many an answer may have.
fn limit(max_results: i64) -> Result<usize, Status> {
    match usize::try_from(max_results) {
        Ok(0) => Ok(PAGE),
        Ok(limit) => Ok(limit),
        Err(_) => Err(Status::invalid_argument(format!("max_results {max_results}: expected 0 or more"))),
    }
}

fn server(id: i64) -> Result<Arc<ServerHandle>, Status> {
    let mut servers = ServerHandle::all().into_iter();
    servers.find(|server| server.shared.node.counters.id == id).ok_or_else(|| unknown("server", id))
}

/// The socket of a server with this id: a port, or a connection.
fn server_socket(id: i64) -> Option<pb::Socket> {
    let listeners = ServerHandle::all().into_iter().flat_map(|server| server.listeners.clone());
    listeners.into_iter().find_map(|listener| {
        if listener.node.id == id {
            return Some(port(&listener));
        }
        listener.node.sockets().iter().find(|socket| socket.counters.id == id).map(|socket| accepted(socket))
    })
}

fn server_view(server: &ServerHandle) -> pb::Server {
    let node = &server.shared.node;
    let calls = node.counters.calls();
    let addresses: Vec<_> = server.listeners.iter().map(|listener| listener.address.to_string()).collect();
    pb::Server {
        r#ref: Some(pb::ServerRef { server_id: node.counters.id, name: addresses.join(", ") }),
        data: Some(pb::ServerData {
            trace: Some(trace(node)),
            calls_started: calls.started,
            calls_succeeded: calls.succeeded,
            calls_failed: calls.failed,
            last_call_started_timestamp: None,
        }),
        listen_socket: server.listeners.iter().map(|listener| port_ref(listener)).collect(),
    }
}

/// The port that a server listens on.
fn port(listener: &Listener) -> pb::Socket {
    pb::Socket { r#ref: Some(port_ref(listener)), local: Some(address(listener.address)), ..Default::default() }
}

fn port_ref(listener: &Listener) -> pb::SocketRef {
    pb::SocketRef { socket_id: listener.node.id, name: listener.address.to_string() }
}

/// A connection of a server.
fn accepted(socket: &SocketNode) -> pb::Socket {
    pb::Socket {
        r#ref: Some(accepted_ref(socket)),
        data: Some(socket_data(socket.counters.calls())),
        local: Some(address(socket.local)),
        remote: Some(address(socket.remote)),
        security: socket.tls.as_deref().map(security),
        remote_name: String::new(),
    }
}

fn accepted_ref(socket: &SocketNode) -> pb::SocketRef {
    pb::SocketRef { socket_id: socket.counters.id, name: socket.remote.to_string() }
}

/// What gRPC calls subchannels. Channels share them.
async fn connections() -> Vec<Arc<Connection>> {
    Hub::statuses().await.into_iter().flat_map(|status| status.connections).collect()
}

fn data_channel(status: &HubStatus) -> pb::Channel {
    let state = match status.shared.snapshot.load().outlook() {
        Outlook::Send => State::Ready,
        Outlook::Wait => State::Connecting,
        Outlook::Fail => State::TransientFailure,
    };
    let channelz = &status.shared.channelz;
    pb::Channel {
        r#ref: Some(pb::ChannelRef { channel_id: channelz.counters.id, name: status.xds.scope.to_string() }),
        data: Some(data(&channelz.counters, &status.xds.scope, state, trace(channelz))),
        subchannel_ref: status.connections.iter().map(|connection| subchannel_ref(connection)).collect(),
        ..Default::default()
    }
}

fn xds_channels(status: &XdsStatus) -> impl Iterator<Item = pb::Channel> {
    status.servers.iter().filter_map(|server| {
        let channelz: &ChannelzNode = status.server_nodes.get(&server.server)?;
        let state = match server.state {
            ServerState::Idle => return None,
            ServerState::Connecting => State::Connecting,
            ServerState::Ready => State::Ready,
            ServerState::TransientFailure => State::TransientFailure,
        };
        let name = format!("xDS server of {}", status.scope);
        Some(pb::Channel {
            r#ref: Some(pb::ChannelRef { channel_id: channelz.counters.id, name }),
            data: Some(data(&channelz.counters, &server.server.server_uri, state, trace(channelz))),
            ..Default::default()
        })
    })
}

fn subchannel(connection: &Connection) -> pb::Subchannel {
    let (connectivity, since, changes) = connection.state();
    let (state, text) = match &connectivity {
        Connectivity::Idle => (State::Idle, "idle".to_owned()),
        Connectivity::Connecting => (State::Connecting, "connecting".to_owned()),
        Connectivity::Ready => (State::Ready, "ready".to_owned()),
        Connectivity::TransientFailure(cause) => (State::TransientFailure, format!("cannot connect: {cause}")),
    };
    // Of many endpoints only the last event is kept.
    let warning = state == State::TransientFailure;
    let trace = pb::ChannelTrace {
        num_events_logged: changes.into(),
        creation_timestamp: None,
        events: vec![trace_event(TraceEvent { at: since, warning, text })],
    };
    let socket = connection.socket().map(|socket| socket_ref(connection, &socket));
    pb::Subchannel {
        r#ref: Some(subchannel_ref(connection)),
        data: Some(data(connection.counters(), &connection.address().to_string(), state, trace)),
        socket_ref: socket.into_iter().collect(),
        ..Default::default()
    }
}

fn socket(connection: &Connection, socket: &Socket) -> pb::Socket {
    let calls = connection.calls_on(socket);
    pb::Socket {
        r#ref: Some(socket_ref(connection, socket)),
        data: Some(socket_data(calls)),
        local: socket.ends.local.map(address),
        remote: Some(address(connection.address())),
        security: socket.ends.tls.as_deref().map(security),
        remote_name: String::new(),
    }
}

fn socket_data(calls: Calls) -> pb::SocketData {
    pb::SocketData { streams_started: calls.started, streams_succeeded: calls.succeeded, streams_failed: calls.failed }
}

fn data(counters: &CallCounters, target: &str, state: State, trace: pb::ChannelTrace) -> pb::ChannelData {
    let calls = counters.calls();
    pb::ChannelData {
        state: Some(pb::ChannelConnectivityState { state: state.into() }),
        target: target.to_owned(),
        trace: Some(trace),
        calls_started: calls.started,
        calls_succeeded: calls.succeeded,
        calls_failed: calls.failed,
    }
}

fn trace(channelz: &ChannelzNode) -> pb::ChannelTrace {
    let trace = channelz.trace();
    pb::ChannelTrace {
        num_events_logged: trace.logged,
        creation_timestamp: Some(timestamp(trace.created)),
        events: trace.events.into_iter().map(trace_event).collect(),
    }
}

fn trace_event(event: TraceEvent) -> pb::ChannelTraceEvent {
    pb::ChannelTraceEvent {
        description: event.text,
        severity: if event.warning { Severity::CtWarning } else { Severity::CtInfo }.into(),
        timestamp: Some(timestamp(event.at)),
        child_ref: None,
    }
}

fn subchannel_ref(connection: &Connection) -> pb::SubchannelRef {
    pb::SubchannelRef { subchannel_id: connection.counters().id, name: connection.address().to_string() }
}

fn socket_ref(connection: &Connection, socket: &Socket) -> pb::SocketRef {
    pb::SocketRef { socket_id: socket.id, name: connection.address().to_string() }
}

fn address(address: SocketAddr) -> pb::Address {
    let ip_address = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let tcp = pb::address::TcpIpAddress { ip_address, port: address.port().into() };
    pb::Address { address: Some(pb::address::Address::TcpipAddress(tcp)) }
}

fn security(tls: &TlsInfo) -> pb::Security {
    let cipher_suite = pb::security::tls::CipherSuite::StandardName(tls.cipher_suite().to_owned());
    let tls = pb::security::Tls {
        cipher_suite: Some(cipher_suite),
        local_certificate: tls.local_certificate().unwrap_or_default().to_vec(),
        remote_certificate: tls.certificate().unwrap_or_default().to_vec(),
    };
    pb::Security { model: Some(pb::security::Model::Tls(tls)) }
}

fn timestamp(at: SystemTime) -> Timestamp {
    let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp {
        seconds: i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since_epoch.subsec_nanos()).unwrap_or(0),
    }
}

fn id(channel: &pb::Channel) -> i64 {
    channel.r#ref.as_ref().map_or(0, |channel| channel.channel_id)
}

fn unknown(kind: &str, id: i64) -> Status {
    Status::not_found(format!("no {kind} with id {id}: it never was, or it is gone"))
}

/// Channels of an answer whose request sets no limit.
const PAGE: usize = 100;
