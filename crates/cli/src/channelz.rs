//! What the channelz service of any gRPC process tells: channels, their subchannels, their calls, their last words.
//!
//! Only the parts of `grpc.channelz.v1` that are shown. Other fields are skipped when messages are read.

use std::{collections::BTreeMap, net::IpAddr, net::SocketAddr};

use tonic::{Code, Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

/// All channels of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Channels {
    pub(crate) channels: Vec<ChannelNode>,
}

/// A channel with everything below it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChannelNode {
    pub(crate) name: String,
    pub(crate) data: Data,
    pub(crate) subchannels: Vec<SubchannelNode>,
}

/// A connection to an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SubchannelNode {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) name: String,
    pub(crate) data: Data,
}

/// What channels and subchannels have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Data {
    pub(crate) target: String,
    pub(crate) state: Connectivity,
    pub(crate) started: i64,
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
    /// The last events, the newest last.
    pub(crate) trace: Vec<String>,
}

/// The states of gRPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Connectivity {
    #[default]
    Unknown,
    Idle,
    Connecting,
    Ready,
    TransientFailure,
    Shutdown,
}

impl Channels {
    /// Asks the process; nothing if it has no channelz.
    pub(crate) async fn fetch(channel: &Channel) -> Result<Option<Self>, Status> {
        let mut client = Client(Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX));
        let (mut channels, mut start) = (Vec::new(), 0);
        loop {
            let page = client.call("GetTopChannels", pb::Page { start, max: 0 }).await;
            let pb::TopChannels { channel, end } = match page {
                Ok(page) => page,
                Err(status) if status.code() == Code::Unimplemented => return Ok(None),
                Err(status) => return Err(status),
            };
            let last = channel.iter().filter_map(|channel| channel.id()).max();
            for top in channel {
                let node = client.read(top).await?;
                channels.push(node);
            }
            match last {
                Some(last) if !end => start = last + 1,
                _ => return Ok(Some(Self { channels })),
            }
        }
    }

    /// Every subchannel by its address; of several the one in the best state.
    pub(crate) fn by_address(&self) -> BTreeMap<SocketAddr, &SubchannelNode> {
        let mut found: BTreeMap<SocketAddr, &SubchannelNode> = BTreeMap::new();
        for subchannel in self.channels.iter().flat_map(|channel| &channel.subchannels) {
            let Some(address) = subchannel.address else { continue };
            let better = found.get(&address).is_none_or(|other| other.data.state != Connectivity::Ready);
            if better {
                found.insert(address, subchannel);
            }
        }
        found
    }

    /// The channel to a target.
    pub(crate) fn channel(&self, target: &str) -> Option<&ChannelNode> {
        self.channels.iter().find(|channel| channel.data.target == target || channel.name == target)
    }
}

impl Data {
    /// How many calls are under way.
    pub(crate) fn in_flight(&self) -> u32 {
        u32::try_from(self.started - self.succeeded - self.failed).unwrap_or(0)
    }

    fn new(data: Option<pb::Data>) -> Self {
        let Some(data) = data else { return Self::default() };
        let state = data.state.map_or(0, |state| state.state);
        let events = data.trace.map_or_else(Vec::new, |trace| trace.events);
        Self {
            target: data.target,
            state: match state {
                1 => Connectivity::Idle,
                2 => Connectivity::Connecting,
                3 => Connectivity::Ready,
                4 => Connectivity::TransientFailure,
                5 => Connectivity::Shutdown,
                _ => Connectivity::Unknown,
            },
            started: data.started,
            succeeded: data.succeeded,
            failed: data.failed,
            trace: events.into_iter().map(|event| event.description).collect(),
        }
    }
}

impl Connectivity {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unknown => "-",
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::TransientFailure => "transient failure",
            Self::Shutdown => "shut down",
        }
    }
}

/// The stub.
struct Client(Grpc<Channel>);

impl Client {
    async fn call<Q, A>(&mut self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.0.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = http::uri::PathAndQuery::try_from(format!("/grpc.channelz.v1.Channelz/{method}"))
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(self.0.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await?.into_inner())
    }

    /// A channel with its subchannels. Channels may be nested: what is below those counts as below this one.
    async fn read(&mut self, top: pb::Channel) -> Result<ChannelNode, Status> {
        let (mut subchannels, mut below) = (Vec::new(), vec![top.clone()]);
        let mut seen = 0;
        while let Some(channel) = below.pop() {
            seen += 1;
            if seen > MAX_CHANNELS {
                break;
            }
            for child in &channel.channel_ref {
                let found: Result<pb::GotChannel, _> = self.call("GetChannel", pb::Id { id: child.id }).await;
                below.extend(gone(found)?.and_then(|got| got.channel));
            }
            for child in &channel.subchannel_ref {
                let found: Result<pb::GotSubchannel, _> = self.call("GetSubchannel", pb::Id { id: child.id }).await;
                if let Some(subchannel) = gone(found)?.and_then(|got| got.subchannel) {
                    subchannels.push(self.read_subchannel(subchannel).await?);
                }
            }
        }
        let name = top.reference.map(|reference| reference.name).unwrap_or_default();
        Ok(ChannelNode { name, data: Data::new(top.data), subchannels })
    }

    async fn read_subchannel(&mut self, subchannel: pb::Subchannel) -> Result<SubchannelNode, Status> {
        let data = Data::new(subchannel.data);
        let name = subchannel.reference.map(|reference| reference.name).unwrap_or_default();
        // Where it leads stands in its name or target, or else at its socket.
        let mut address = [&name, &data.target].into_iter().find_map(|text| address_in(text));
        if let (None, Some(socket)) = (address, subchannel.socket_ref.first()) {
            let found: Result<pb::GotSocket, _> = self.call("GetSocket", pb::Id { id: socket.id }).await;
            address = gone(found)?.and_then(|got| got.socket?.remote?.tcp).and_then(|tcp| tcp.address());
        }
        Ok(SubchannelNode { address, name, data })
    }
}

/// Things come and go while they are asked for.
fn gone<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// The address in names such as `10.0.0.1:80`, `ipv4:10.0.0.1:80` and `Addr: "10.0.0.1:80", …`.
fn address_in(text: &str) -> Option<SocketAddr> {
    let is_part = |character: char| character.is_ascii_hexdigit() || matches!(character, '.' | ':' | '[' | ']');
    let mut parts = text.split(|character| !is_part(character)).map(|part| part.trim_start_matches(':'));
    parts.find_map(|part| part.parse().ok().or_else(|| part.split_once(':')?.1.parse().ok()))
}

impl pb::Channel {
    fn id(&self) -> Option<i64> {
        self.reference.as_ref().map(|reference| reference.id)
    }
}

impl pb::Tcp {
    fn address(&self) -> Option<SocketAddr> {
        let ip: IpAddr = match self.ip.len() {
            4 => <[u8; 4]>::try_from(self.ip.as_slice()).ok()?.into(),
            _ => <[u8; 16]>::try_from(self.ip.as_slice()).ok()?.into(),
        };
        Some(SocketAddr::new(ip, u16::try_from(self.port).ok()?))
    }
}

const MAX_CHANNELS: usize = 10_000;

/// The messages, by their field numbers in `grpc/channelz/v1/channelz.proto`.
mod pb {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Page {
        #[prost(int64, tag = "1")]
        pub(super) start: i64,
        #[prost(int64, tag = "2")]
        pub(super) max: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Id {
        #[prost(int64, tag = "1")]
        pub(super) id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct TopChannels {
        #[prost(message, repeated, tag = "1")]
        pub(super) channel: Vec<Channel>,
        #[prost(bool, tag = "2")]
        pub(super) end: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct GotChannel {
        #[prost(message, optional, tag = "1")]
        pub(super) channel: Option<Channel>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct GotSubchannel {
        #[prost(message, optional, tag = "1")]
        pub(super) subchannel: Option<Subchannel>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct GotSocket {
        #[prost(message, optional, tag = "1")]
        pub(super) socket: Option<Socket>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Channel {
        #[prost(message, optional, tag = "1")]
        pub(super) reference: Option<ChannelRef>,
        #[prost(message, optional, tag = "2")]
        pub(super) data: Option<Data>,
        #[prost(message, repeated, tag = "3")]
        pub(super) channel_ref: Vec<ChannelRef>,
        #[prost(message, repeated, tag = "4")]
        pub(super) subchannel_ref: Vec<SubchannelRef>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Subchannel {
        #[prost(message, optional, tag = "1")]
        pub(super) reference: Option<SubchannelRef>,
        #[prost(message, optional, tag = "2")]
        pub(super) data: Option<Data>,
        #[prost(message, repeated, tag = "5")]
        pub(super) socket_ref: Vec<SocketRef>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ChannelRef {
        #[prost(int64, tag = "1")]
        pub(super) id: i64,
        #[prost(string, tag = "2")]
        pub(super) name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SubchannelRef {
        #[prost(int64, tag = "7")]
        pub(super) id: i64,
        #[prost(string, tag = "8")]
        pub(super) name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SocketRef {
        #[prost(int64, tag = "3")]
        pub(super) id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Data {
        #[prost(message, optional, tag = "1")]
        pub(super) state: Option<State>,
        #[prost(string, tag = "2")]
        pub(super) target: String,
        #[prost(message, optional, tag = "3")]
        pub(super) trace: Option<Trace>,
        #[prost(int64, tag = "4")]
        pub(super) started: i64,
        #[prost(int64, tag = "5")]
        pub(super) succeeded: i64,
        #[prost(int64, tag = "6")]
        pub(super) failed: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct State {
        #[prost(int32, tag = "1")]
        pub(super) state: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Trace {
        #[prost(message, repeated, tag = "3")]
        pub(super) events: Vec<Event>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Event {
        #[prost(string, tag = "1")]
        pub(super) description: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Socket {
        #[prost(message, optional, tag = "4")]
        pub(super) remote: Option<Address>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Address {
        #[prost(message, optional, tag = "1")]
        pub(super) tcp: Option<Tcp>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Tcp {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) ip: Vec<u8>,
        #[prost(int32, tag = "2")]
        pub(super) port: i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_names_that_others_use() {
        for text in ["10.0.0.1:80", "ipv4:10.0.0.1:80", "Addr: \"10.0.0.1:80\", ServerName: \"a\"", "{10.0.0.1:80}"] {
            assert_eq!(address_in(text), Some("10.0.0.1:80".parse().unwrap()), "{text}");
        }
        assert_eq!(address_in("ipv6:[::1]:80"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(address_in("dead:beef"), None);
        assert_eq!(address_in(""), None);
    }
}
