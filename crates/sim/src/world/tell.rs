//! What happens, in plain words, for transcripts.

use std::collections::BTreeMap;
use std::fmt;

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use mainstay_lb::ChannelCore;
use mainstay_xds::resource::ResourceType;

use super::{Event, LinkId, World, path_of};
use crate::plane::Response;
use crate::shell::Handle;

impl World {
    /// An event in plain words.
    pub(crate) fn tell(&self, event: &Event) -> String {
        let plane = |index: &usize| self.scenario.planes[*index].server.server_uri.clone();
        let of = |id: &LinkId| format!("{}{}", id.0.tell(), self.server_of(*id));
        let what = match event {
            Event::Connect(id) => format!("{}: the connection attempt ends", of(id)),
            Event::Sent(id) => format!("{}: the transport takes a request", of(id)),
            Event::Arrive(id) => format!("{}: a request arrives", of(id)),
            Event::Serve(id, kind) => format!("{}: sends {kind}", of(id)),
            Event::Refuse(id) => format!("{}: does not know delta", of(id)),
            Event::Deliver(id) => format!("{}: a response arrives", of(id)),
            Event::DeliverLate(id) => format!("{}: a response arrives on a closed stream", of(id)),
            Event::Pong(id) => format!("{}: answers a PING", of(id)),
            Event::Answer(id) => format!("{}: answers a health check", of(id)),
            Event::Trickle(id) => format!("{}: a part of a response arrives", of(id)),
            Event::Load(id) => format!("load reports {}: the stream goes on", id.0),
            Event::Stop(seconds) => format!("our process IS STOPPED for {seconds} s"),
            Event::Together(count) => format!("{count} things happen before anything is done about them:"),
            Event::Lull => "a lull:".to_owned(),
            Event::Subscribe(cluster) => format!("somebody subscribes to cluster {cluster}"),
            Event::Release(cluster) => format!("somebody does not need cluster {cluster} any more"),
            Event::Watch(index) => format!("(#server) watches {}", self.scenario.side[*index]),
            Event::Unwatch => "(#server) a watch ends".to_owned(),
            Event::Impatience => "(#server) is told to forget past failures".to_owned(),
            Event::Repeat(id, kind) => format!("{}: will say all of {kind} again", of(id)),
            Event::Restart(index) => format!("{}: STARTS AFRESH with nothing", plane(index)),
            Event::Resolve(name, true) => format!("DNS: {name} is found"),
            Event::Resolve(name, false) => format!("DNS: {name} is not found"),
            Event::Backend(id) => match self.shell.connections.get(id) {
                Some(connection) => {
                    format!("backend {}: {:?} goes on", connection.handle.address.ip(), connection.state)
                }
                None => "a backend that is gone".to_owned(),
            },
            Event::Time => match self.next_deadline() {
                Some(next) => format!("{:?} pass", next.since(self.now)),
                None => "time passes".to_owned(),
            },
            Event::Rpc(path) => format!("an RPC for {}", path_of(*path)),
            Event::RpcEnd => "an RPC ends".to_owned(),
            Event::Publish(index) => format!("{}: has news", plane(index)),
            Event::Heal(index) => format!("{}: works again", plane(index)),
            Event::Kill(index) => format!("{}: STOPS", plane(index)),
            Event::BlackHole(index) => format!("{}: PACKETS VANISH", plane(index)),
            Event::Mute(index) => format!("{}: DOES NOT ANSWER any more", plane(index)),
            Event::Cut(id) => format!("{}: ENDS THE STREAM", of(id)),
            Event::HalfOpen(id) => format!("{}: CONNECTION LOST without a sign", of(id)),
            Event::Garbage(id) => format!("{}: SENDS NONSENSE", of(id)),
            Event::BackendDown(address) => format!("backend {}: STOPS", address.ip()),
            Event::BackendUp(address) => format!("backend {}: works again", address.ip()),
        };
        format!("{:>9.3} s  {what}", self.age().as_secs_f64())
    }
}

pub(crate) fn request(request: &DiscoveryRequest) -> String {
    let kind = ResourceType::from_type_url(&request.type_url);
    let kind = kind.map_or_else(|| request.type_url.clone(), |kind| kind.to_string());
    let answer = match (&request.error_detail, request.response_nonce.as_str()) {
        (Some(error), nonce) => format!("NACK {nonce} ({})", error.message),
        (None, "") => "ask".to_owned(),
        (None, nonce) => format!("ACK {nonce}"),
    };
    format!("{kind} {answer} version {:?} names {:?}", request.version_info, request.resource_names)
}

pub(crate) fn delta_request(request: &DeltaDiscoveryRequest) -> String {
    let kind = ResourceType::from_type_url(&request.type_url);
    let kind = kind.map_or_else(|| request.type_url.clone(), |kind| kind.to_string());
    let answer = match (&request.error_detail, request.response_nonce.as_str()) {
        (Some(error), nonce) => format!("NACK {nonce} ({})", error.message),
        (None, "") => "change".to_owned(),
        (None, nonce) => format!("ACK {nonce}"),
    };
    let (subscribe, unsubscribe) = (&request.resource_names_subscribe, &request.resource_names_unsubscribe);
    let claims: BTreeMap<_, _> = request.initial_resource_versions.iter().collect();
    format!("delta {kind} {answer} +{subscribe:?} -{unsubscribe:?} has {claims:?}")
}

pub(crate) fn config(core: &ChannelCore<Handle>) -> String {
    match core.config() {
        None => "no configuration yet".to_owned(),
        Some(Err(error)) => format!("no configuration: {error}"),
        Some(Ok(config)) => {
            let mixed = if config.mixed_sources { " (mixed)" } else { "" };
            let clusters = config.clusters.iter().map(|(name, cluster)| match cluster {
                Ok(_) => name.to_string(),
                Err(_) => format!("{name}!"),
            });
            let clusters: Vec<_> = clusters.collect();
            format!("in force{mixed}: {:?} with clusters {}", config.virtual_host.name, clusters.join(" "))
        }
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} version {:?} nonce {:?}:", self.resource_type, self.version, self.nonce)?;
        for told in &self.resources {
            let bad = if told.is_valid() { "" } else { " (invalid)" };
            write!(f, " {}{bad}", told.key.name)?;
        }
        for name in &self.errors {
            write!(f, " {name} (error {})", self.code)?;
        }
        for name in self.removed() {
            write!(f, " -{name}")?;
        }
        if let Some(delta) = &self.delta {
            write!(f, " of {:?} {:?}", delta.identifier, self.versions)?;
        }
        Ok(())
    }
}
