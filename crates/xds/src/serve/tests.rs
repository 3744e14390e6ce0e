//! What a server does, told as a conversation: what happens on the left, what the core wants for it on the right.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::listener::v3 as listener;
use envoy_types::pb::envoy::config::route::v3 as route;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::util::pack_any;
use prost::Message;

use super::*;
use crate::bootstrap::{Node, ServerFeatures};
use crate::client::CloseCause;
use crate::resource::ResourceType;

mod lifecycle;
mod sockets;
mod sources;

/// A core, its xDS servers and its sockets.
struct Testbed {
    core: ServerCore,
    now: Time,
    /// Streams that are open, by server.
    streams: BTreeMap<String, StreamId>,
    /// Servers that refuse connections.
    down: BTreeSet<String>,
    /// Names that were asked for last.
    asked: BTreeMap<(String, ResourceType), BTreeSet<String>>,
    nonce: u64,
    /// What sockets answer; nothing is left out for a while.
    socket: Answer,
    log: Vec<String>,
}

#[derive(Clone, Copy)]
enum Answer {
    Ok,
    Fails,
    Late,
}

struct Middle;

impl Choose for Middle {
    fn choose(&mut self, bound: u64) -> u64 {
        bound / 2
    }
}

const OURS: &str = "10.0.0.1:50051";
const L: &str = "server/10.0.0.1:50051";

impl Testbed {
    fn new() -> Self {
        Self::of(&["a"], ServerFeatures::default())
    }

    fn of(servers: &[&str], features: ServerFeatures) -> Self {
        let mut bootstrap = Bootstrap::builder()
            .node(Node { id: "node".to_owned(), ..Node::default() })
            .server_listener_resource_name_template("server/%s");
        for server in servers {
            bootstrap = bootstrap.server(ServerConfig { features, ..ServerConfig::insecure(*server) });
        }
        Self {
            core: ServerCore::new(Arc::new(bootstrap.build().unwrap()), ClientSettings::default()),
            now: Time::ZERO,
            streams: BTreeMap::new(),
            down: BTreeSet::new(),
            asked: BTreeMap::new(),
            nonce: 0,
            socket: Answer::Ok,
            log: Vec::new(),
        }
    }

    /// A bed that serves our address.
    fn serving() -> (Self, ListenerId) {
        let mut bed = Self::new();
        let id = bed.add(OURS);
        bed.listeners("a", &[(L, server(OURS, &["r"]))]);
        bed.routes("a", &[("r", "1")]);
        assert_eq!(bed.told(), ["0: publish g1 r=1", "0: listen", "0: SERVING"]);
        (bed, id)
    }

    fn add(&mut self, address: &str) -> ListenerId {
        let id = self.core.add(self.now, address.parse().unwrap(), ServeSettings::default()).unwrap();
        self.settle();
        id
    }

    /// Does what the core wants, until it wants nothing.
    fn settle(&mut self) -> Option<Time> {
        loop {
            let action = match self.core.poll_output() {
                Output::Wait(deadline) => return deadline,
                Output::Do(action) => action,
            };
            match action {
                Action::OpenStream { stream, server, .. } => {
                    let event = if self.down.contains(&server.server_uri) {
                        Event::Closed(stream, CloseCause::ConnectFailed("refused".to_owned()))
                    } else {
                        self.streams.insert(server.server_uri.clone(), stream);
                        Event::Opened(stream)
                    };
                    self.core.handle_event(self.now, &mut Middle, None, event);
                }
                Action::Send(stream, bytes) => {
                    let request = DiscoveryRequest::decode(bytes).unwrap();
                    let server = self.server_of(stream);
                    let kind = ResourceType::from_type_url(&request.type_url).unwrap();
                    self.asked.insert((server, kind), request.resource_names.into_iter().collect());
                    self.core.handle_event(self.now, &mut Middle, None, Event::Sent(stream));
                }
                Action::Probe { stream, .. } => {
                    let alive = Event::Alive(stream, client::Sign::Data);
                    self.core.handle_event(self.now, &mut Middle, None, alive);
                }
                Action::CloseStream(stream) => {
                    self.streams.retain(|_, open| *open != stream);
                }
                Action::Report(_) => {}
                Action::Listen(id) => {
                    self.log.push(format!("{}: listen", id.0));
                    self.answer(id);
                }
                Action::StopListening(id) => {
                    self.log.push(format!("{}: stop listening", id.0));
                    self.answer(id);
                }
                Action::Close(id) => self.log.push(format!("{}: close", id.0)),
                Action::Publish(id, None) => self.log.push(format!("{}: publish nothing", id.0)),
                Action::Publish(id, Some(serving)) => {
                    let chains: Vec<_> = serving.chains().map(|(chain, routes)| tell_chain(chain, routes)).collect();
                    let mixed = if serving.mixed_sources { " mixed" } else { "" };
                    self.log.push(format!("{}: publish g{}{mixed} {}", id.0, serving.generation.0, chains.join(" ")));
                }
                Action::Drain(id, drain) => {
                    assert_eq!((drain.at, drain.spread), (self.now, Duration::from_secs(1)));
                    let grace = drain.until.since(drain.at).as_secs();
                    self.log.push(format!("{}: drain g{} for {grace} s", id.0, drain.generation.0));
                }
                Action::Tell(id, ServingState::Serving) => self.log.push(format!("{}: SERVING", id.0)),
                Action::Tell(id, ServingState::NotServing(why)) => {
                    self.log.push(format!("{}: NOT SERVING: {why}", id.0));
                }
                Action::TellRoutes(id, name, Some(error)) => {
                    self.log.push(format!("{}: routes {name} are broken: {error}", id.0));
                }
                Action::TellRoutes(id, name, None) => self.log.push(format!("{}: routes {name} are back", id.0)),
            }
        }
    }

    fn answer(&mut self, id: ListenerId) {
        match self.socket {
            Answer::Ok => self.core.handle_socket(self.now, id, Ok(())),
            Answer::Fails => self.core.handle_socket(self.now, id, Err("taken".to_owned())),
            Answer::Late => {}
        }
    }

    fn server_of(&self, stream: StreamId) -> String {
        self.streams.iter().find(|(_, open)| **open == stream).map(|(name, _)| name.clone()).expect("an open stream")
    }

    /// What the core wanted since the last time.
    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn respond(&mut self, server: &str, kind: ResourceType, resources: Vec<Any>) {
        self.nonce += 1;
        let response = DiscoveryResponse {
            version_info: self.nonce.to_string(),
            nonce: self.nonce.to_string(),
            type_url: kind.type_url().to_owned(),
            resources,
            ..DiscoveryResponse::default()
        };
        let event = Event::Received(self.streams[server], response.encode_to_vec().into());
        self.core.handle_event(self.now, &mut Middle, None, event);
        self.settle();
    }

    /// All Listeners that a server has.
    fn listeners(&mut self, server: &str, listeners: &[(&str, listener::Listener)]) {
        let named = |(name, listener): &(&str, listener::Listener)| {
            pack_any(listener::Listener { name: (*name).to_owned(), ..listener.clone() })
        };
        self.respond(server, ResourceType::Listener, listeners.iter().map(named).collect());
    }

    /// RouteConfigurations, each with a mark.
    fn routes(&mut self, server: &str, routes: &[(&str, &str)]) {
        let resources = routes.iter().map(|(name, mark)| pack_any(routes_of(name, mark))).collect();
        self.respond(server, ResourceType::RouteConfig, resources);
    }

    fn wait(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(next) = self.settle().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.core.handle_timeout(self.now, &mut Middle);
        }
        self.now = until;
        self.core.handle_timeout(self.now, &mut Middle);
        self.settle();
    }

    fn lose(&mut self, server: &str) {
        self.down.insert(server.to_owned());
        let stream = self.streams.remove(server).expect("an open stream");
        let lost = Event::Closed(stream, CloseCause::ConnectionLost("reset".to_owned()));
        self.core.handle_event(self.now, &mut Middle, None, lost);
        self.settle();
    }

    /// Lets a server take connections again, and waits for one.
    fn reconnect(&mut self, server: &str) {
        self.down.remove(server);
        while !self.streams.contains_key(server) {
            self.wait(SECOND);
        }
    }

    fn asked_for_routes(&self, server: &str) -> Vec<&str> {
        let names = self.asked.get(&(server.to_owned(), ResourceType::RouteConfig));
        names.into_iter().flatten().map(String::as_str).collect()
    }
}

fn tell_chain(chain: &crate::resource::listener::FilterChain, routes: &RouteResult) -> String {
    let mark = match routes {
        Ok(routes) => routes.virtual_hosts[0].name.clone(),
        Err(_) => "!".to_owned(),
    };
    match &chain.http.routes {
        crate::resource::listener::RouteSource::Rds(name) => format!("{name}={mark}"),
        crate::resource::listener::RouteSource::Inline(_) => format!("inline={mark}"),
    }
}

/// A Listener for servers with a chain for each name of routes; the last is the default one.
fn server(address: &str, routes: &[&str]) -> listener::Listener {
    let (default, others) = routes.split_last().unwrap();
    let chain = |(port, routes): (u32, &&str)| listener::FilterChain {
        filter_chain_match: Some(listener::FilterChainMatch { source_ports: vec![port], ..Default::default() }),
        ..chain(rds(routes))
    };
    listener::Listener {
        address: Some(address_of(address)),
        filter_chains: (1..).zip(others).map(chain).collect(),
        default_filter_chain: Some(self::chain(rds(default))),
        ..Default::default()
    }
}

/// A Listener for servers with its routes inside.
fn server_inline(address: &str, mark: &str) -> listener::Listener {
    let routes = hcm::http_connection_manager::RouteSpecifier::RouteConfig(routes_of("inside", mark));
    listener::Listener {
        address: Some(address_of(address)),
        default_filter_chain: Some(chain(routes)),
        ..Default::default()
    }
}

fn client() -> listener::Listener {
    let api_listener = listener::ApiListener { api_listener: Some(pack_any(manager(rds("r")))) };
    listener::Listener { api_listener: Some(api_listener), ..Default::default() }
}

fn chain(routes: hcm::http_connection_manager::RouteSpecifier) -> listener::FilterChain {
    let config = listener::filter::ConfigType::TypedConfig(pack_any(manager(routes)));
    let filter = listener::Filter { name: "hcm".to_owned(), config_type: Some(config) };
    listener::FilterChain { filters: vec![filter], ..Default::default() }
}

fn manager(routes: hcm::http_connection_manager::RouteSpecifier) -> hcm::HttpConnectionManager {
    let router = hcm::http_filter::ConfigType::TypedConfig(pack_any(Router::default()));
    let router = hcm::HttpFilter { name: "router".to_owned(), config_type: Some(router), ..Default::default() };
    hcm::HttpConnectionManager { http_filters: vec![router], route_specifier: Some(routes), ..Default::default() }
}

fn rds(name: &str) -> hcm::http_connection_manager::RouteSpecifier {
    let ads = core::config_source::ConfigSourceSpecifier::Ads(Default::default());
    let config_source = Some(core::ConfigSource { config_source_specifier: Some(ads), ..Default::default() });
    hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds { config_source, route_config_name: name.to_owned() })
}

fn routes_of(name: &str, mark: &str) -> route::RouteConfiguration {
    let everything = route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Prefix(String::new())),
        ..Default::default()
    };
    let here = route::route::Action::NonForwardingAction(route::NonForwardingAction {});
    let host = route::VirtualHost {
        name: mark.to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![route::Route { r#match: Some(everything), action: Some(here), ..Default::default() }],
        ..Default::default()
    };
    route::RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host], ..Default::default() }
}

fn address_of(address: &str) -> core::Address {
    let address: SocketAddr = address.parse().unwrap();
    let socket = core::SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(address.port().into())),
        ..Default::default()
    };
    core::Address { address: Some(core::address::Address::SocketAddress(socket)) }
}

const SECOND: Duration = Duration::from_secs(1);
