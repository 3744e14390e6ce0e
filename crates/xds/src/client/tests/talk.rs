//! Conversations as text. A test is the transcript it expects.
//!
//! A line at the margin is what happens; the indented lines below it are what the client does
//! about it. Running a transcript does what happens, writes down what the client does, and
//! compares the whole. Time stands still except in `wait`.
//!
//! What happens (several things joined by ` & ` happen before the client is asked what to do):
//! - `watch LDS shop`, `unwatch w0`: watches are `w0`, `w1`, ... in order;
//! - `up a`: the connection to server `a` is READY; `refuse a`: it cannot be made; `lose a`: it is
//!   lost; `end a`: the server ends the stream;
//! - `a< LDS 1 A: shop:=x bad!!`: server `a` sends a response of version 1 with nonce A;
//! - `old a< ...`: the same, on the stream before the last; `a< garbage`: it sends nonsense;
//! - `block a`: what is sent stays on its way, until `unblock a`;
//! - `hang a`: from now on it answers PINGs and no probe; `freeze a`: nothing at all comes from it any more;
//!   `thaw a`: all is well again. Otherwise probes are answered, as soon as time passes, and not worth a line;
//! - `a sends a byte`, `a pongs`: a sign of life that nobody probed for;
//! - `wait 15 s`, `wait 999 ms`; `stop 60 s`: our own process does not run for so long.
//!
//! On a delta stream a response is `a< LDS A: shop@1:=x -gone`, with a version for each resource and what is removed;
//! `shop@#1` is a version that is sent as it is, which may be a count; `shop=store@1` has an alias, `shop@1~` is a heartbeat, and `a is cp` says who the server is from then on. Requests are
//! `a> LDS +shop -gone has shop@1` and `a> LDS ACK A`. `unimplemented a`: the server knows no such method.
//!
//! Resources in a response: `name:=value`, or `name` for the value 1; `name!!` is invalid;
//! `[name]:=value` comes in a wrapper, `[name]-` is a wrapper without content, `[]` a broken one;
//! `name??5` is an error with code 5, `??5` one without a name; `~` is a resource that cannot be
//! decoded, `%` one of another type.
//!
//! What the client does: `open a 20 s` (with the bound on connecting), `close a`, `probe a` (of a server that hangs or
//! is frozen; `+call` if a PONG is not enough), `a> LDS 1 A: shop`
//! (a request with version, nonce and names; `+node` and `NACK text` if it has them; `-` is empty),
//! `active a`, and what it tells watchers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3 as cluster;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
use envoy_types::pb::envoy::config::listener::v3 as listener;
use envoy_types::pb::envoy::config::route::v3 as route;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::google::protobuf as google;
use envoy_types::pb::xds::core::v3::{CollectionEntry, collection_entry};
use prost::{Message, Name};

use crate::bootstrap::{AuthorityOptions, Bootstrap, DeltaMode, Guards, Node, ServerConfig, ServerFeatures};
use crate::client::wire::{
    Any, DeltaDiscoveryResponse, DeltaResource, DiscoveryResponse, Named, ResourceError, Status, WRAPPER, Wrapper,
};
use crate::client::{
    self, Action, ClientSettings, CloseCause, ErrorKind, Event, Output, Protocol, Report, Sign, StreamId, Update,
    WatchId, XdsClient,
};
use crate::name::AuthorityKey;
use crate::resource::cluster::ClusterKind;
use crate::resource::endpoint::EndpointSource;
use crate::resource::listener::RouteSource;
use crate::resource::{EndpointCollection, Listener, ParseContext, Resource, ResourceType, decode};
use crate::{Choose, Time};

/// A client and what is around it.
#[derive(Clone)]
pub(super) struct Talk {
    pub client: XdsClient,
    pub now: Time,
    /// Attempts at each server, oldest first.
    streams: BTreeMap<String, Vec<StreamId>>,
    /// Servers to which nothing gets through, with the stream of what is on its way.
    blocked: BTreeMap<String, Option<StreamId>>,
    /// Requests on their way; must never be more than one per stream.
    on_their_way: BTreeSet<StreamId>,
    /// Servers that are not well, and the only sign of life that they give.
    unwell: BTreeMap<String, Option<Sign>>,
    /// Streams that were probed, with the sign that will come.
    probed: Vec<(StreamId, Sign)>,
    show_reports: bool,
    /// What each stream speaks.
    protocols: BTreeMap<StreamId, Protocol>,
    /// Who delta servers say that they are.
    identifiers: BTreeMap<String, String>,
}

/// What a [`Talk`] starts from.
#[derive(Clone, Default)]
pub(super) struct Setup {
    servers: Vec<ServerConfig>,
    authorities: Vec<(String, AuthorityOptions)>,
    guards: Guards,
    settings: ClientSettings,
    show_reports: bool,
}

/// Runs `transcript` with the given top-level servers.
pub(super) fn talk(servers: &[&str], transcript: &str) {
    Setup::new(servers).talk(transcript);
}

// === impl Setup ===

impl Setup {
    pub(super) fn new(servers: &[&str]) -> Self {
        let servers = servers.iter().map(|uri| ServerConfig::insecure(*uri)).collect();
        // Whoever loses a server comes back at once, so that there is less to wait for.
        // Versions are trusted, so that what is told of them can be seen; over delta they are not, see `delta`.
        let settings =
            ClientSettings { reconnect_spread: Duration::ZERO, trust_versions: true, ..ClientSettings::default() };
        Self { servers, settings, ..Self::default() }
    }

    /// Gives features to every top-level server.
    pub(super) fn features(mut self, set: impl Fn(&mut ServerFeatures)) -> Self {
        self.servers.iter_mut().for_each(|server| set(&mut server.features));
        self
    }

    /// Every top-level server speaks delta, and what it says of versions is not trusted.
    pub(super) fn delta(self, mode: DeltaMode) -> Self {
        self.features(|features| features.delta = mode).settings(|settings| settings.trust_versions = false)
    }

    /// Gives features to one top-level server.
    pub(super) fn features_of(mut self, uri: &str, set: impl Fn(&mut ServerFeatures)) -> Self {
        self.servers.iter_mut().filter(|server| server.server_uri == uri).for_each(|server| set(&mut server.features));
        self
    }

    pub(super) fn authority(mut self, name: &str, servers: &[&str], fallback_on_reachability_only: bool) -> Self {
        let servers = servers.iter().map(|uri| ServerConfig::insecure(*uri)).collect();
        let options = AuthorityOptions { servers, fallback_on_reachability_only, ..Default::default() };
        self.authorities.push((name.to_owned(), options));
        self
    }

    pub(super) fn guards(mut self, set: impl FnOnce(&mut Guards)) -> Self {
        set(&mut self.guards);
        self
    }

    pub(super) fn settings(mut self, set: impl FnOnce(&mut ClientSettings)) -> Self {
        set(&mut self.settings);
        self
    }

    pub(super) fn show_reports(mut self) -> Self {
        self.show_reports = true;
        self
    }

    pub(super) fn start(self) -> Talk {
        let node = Node { id: "me".to_owned(), ..Node::default() };
        let mut builder = Bootstrap::builder().node(node).guards(self.guards);
        for server in self.servers {
            builder = builder.server(server);
        }
        for (name, options) in self.authorities {
            builder = builder.authority(name, options);
        }
        let bootstrap = builder.build().expect("a good bootstrap");
        Talk {
            client: XdsClient::new(Arc::new(bootstrap), self.settings),
            now: Time::ZERO,
            streams: BTreeMap::new(),
            blocked: BTreeMap::new(),
            on_their_way: BTreeSet::new(),
            unwell: BTreeMap::new(),
            probed: Vec::new(),
            show_reports: self.show_reports,
            protocols: BTreeMap::new(),
            identifiers: BTreeMap::new(),
        }
    }

    /// Runs `transcript` and gives back the talk it ends in.
    #[track_caller]
    pub(super) fn talk(self, transcript: &str) -> Talk {
        let mut talk = self.start();
        talk.run(transcript);
        talk
    }
}

// === impl Talk ===

impl Talk {
    #[track_caller]
    pub(super) fn run(&mut self, transcript: &str) {
        let expected = dedent(transcript);
        let mut actual = Vec::new();
        for line in &expected {
            if line.starts_with(' ') {
                continue;
            }
            actual.push(line.clone());
            if !line.is_empty() && !line.starts_with('#') {
                actual.extend(self.step(line).into_iter().map(|done| format!("  {done}").trim_end().to_owned()));
            }
        }
        let (expected, actual) = (expected.join("\n"), actual.join("\n"));
        assert!(expected == actual, "expected:\n{expected}\n\nactual:\n{actual}\n");
    }

    /// As [`Talk::run`], but of what the client does only lines that start with one of `prefixes` count.
    #[track_caller]
    pub(super) fn run_filtered(&mut self, prefixes: &[&str], transcript: &str) {
        let expected = dedent(transcript);
        let mut actual = Vec::new();
        for line in expected.iter().filter(|line| !line.starts_with(' ')) {
            actual.push(line.clone());
            let done =
                self.step(line).into_iter().filter(|done| prefixes.iter().any(|prefix| done.starts_with(prefix)));
            actual.extend(done.map(|done| format!("  {done}")));
        }
        let (expected, actual) = (expected.join("\n"), actual.join("\n"));
        assert!(expected == actual, "expected:\n{expected}\n\nactual:\n{actual}\n");
    }

    /// Does what a line says, and everything that the client wants done about it.
    pub(super) fn step(&mut self, line: &str) -> Vec<String> {
        if let Some(span) = line.strip_prefix("wait ") {
            return self.wait(duration(span));
        }
        if let Some(span) = line.strip_prefix("stop ") {
            self.now = self.now + duration(span);
            self.client.handle_timeout(self.now, &mut Middle);
            return self.drain();
        }
        line.split(" & ").for_each(|event| self.happen(event));
        self.drain()
    }

    fn happen(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let event = match words[..] {
            ["watch", kind, name] => {
                self.client.watch(self.now, resource_type(kind).expect("a known type"), name);
                return;
            }
            ["unwatch", watch] => {
                let id = watch.strip_prefix('w').and_then(|id| id.parse().ok()).expect("w0, w1, ...");
                return self.client.unwatch(self.now, WatchId(id));
            }
            ["up", server] => Event::Opened(self.stream(server, 0)),
            ["refuse", server] => {
                Event::Closed(self.stream(server, 0), CloseCause::ConnectFailed("connection refused".to_owned()))
            }
            ["lose", server] => Event::Closed(self.stream(server, 0), CloseCause::ConnectionLost("reset".to_owned())),
            ["end", server] => {
                Event::Closed(self.stream(server, 0), CloseCause::Ended { code: 14, message: "restarting".to_owned() })
            }
            ["defer", server, span, unit] => {
                let come_back = duration(&format!("{span} {unit}"));
                let cause = CloseCause::Deferred { code: 14, message: "busy".to_owned(), come_back };
                Event::Closed(self.stream(server, 0), cause)
            }
            ["hang", server] => {
                self.unwell.insert(server.to_owned(), Some(Sign::Pong));
                return;
            }
            ["freeze", server] => {
                self.unwell.insert(server.to_owned(), None);
                return;
            }
            ["thaw", server] => {
                self.unwell.remove(server);
                return;
            }
            [server, "sends", "a", "byte"] => Event::Alive(self.stream(server, 0), Sign::Data),
            [server, "pongs"] => Event::Alive(self.stream(server, 0), Sign::Pong),
            ["block", server] => {
                self.blocked.insert(server.to_owned(), None);
                return;
            }
            ["unblock", server] => match self.blocked.remove(server).flatten() {
                Some(stream) => {
                    self.on_their_way.remove(&stream);
                    Event::Sent(stream)
                }
                None => return,
            },
            ["old", server, ..] => {
                let server = server.trim_end_matches('<');
                Event::Received(self.stream(server, 1), self.message(server, 1, &words[2..]))
            }
            [server, ..] if server.ends_with('<') => {
                let server = server.trim_end_matches('<');
                Event::Received(self.stream(server, 0), self.message(server, 0, &words[1..]))
            }
            [server, "is", name] => {
                self.identifiers.insert(server.to_owned(), name.to_owned());
                return;
            }
            ["unimplemented", server] => Event::Closed(
                self.stream(server, 0),
                CloseCause::Ended { code: 12, message: "what is delta?".to_owned() },
            ),
            _ => panic!("what is {line:?}?"),
        };
        self.client.handle_event(self.now, &mut Middle, event);
    }

    /// A response in the variant that a stream speaks.
    fn message(&self, server: &str, before: usize, words: &[&str]) -> Bytes {
        match self.protocols[&self.stream(server, before)] {
            Protocol::Sotw => response(words),
            Protocol::Delta => delta_response(words, self.identifiers.get(server)),
        }
    }

    /// Lets time pass, from deadline to deadline.
    fn wait(&mut self, span: Duration) -> Vec<String> {
        let end = self.now + span;
        let mut done = self.give_signs();
        while let Output::Wait(Some(next)) = self.client.clone().poll_output()
            && next <= end
        {
            self.now = next;
            self.client.handle_timeout(next, &mut Middle);
            done.extend(self.drain());
            done.extend(self.give_signs());
        }
        self.now = end;
        self.client.handle_timeout(end, &mut Middle);
        done.extend(self.drain());
        done
    }

    /// Answers the probes.
    fn give_signs(&mut self) -> Vec<String> {
        for (stream, sign) in std::mem::take(&mut self.probed) {
            self.client.handle_event(self.now, &mut Middle, Event::Alive(stream, sign));
        }
        self.drain()
    }

    /// Everything that the client wants done.
    pub(super) fn drain(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        while let Output::Do(action) = self.client.poll_output() {
            match action {
                Action::Open { stream, server, connect_timeout, protocol } => {
                    let delta = if protocol == Protocol::Delta { " delta" } else { "" };
                    done.push(format!("open {} {} s{delta}", server.server_uri, connect_timeout.as_secs()));
                    self.protocols.insert(stream, protocol);
                    self.streams.entry(server.server_uri.clone()).or_default().push(stream);
                }
                Action::Close(stream) => {
                    done.push(format!("close {}", self.server(stream)));
                    self.on_their_way.remove(&stream);
                }
                Action::Probe { stream, call } => {
                    let server = self.server(stream);
                    match self.unwell.get(&server) {
                        Some(sign) => {
                            done.push(format!("probe {server}{}", if call { " +call" } else { "" }));
                            self.probed.extend(sign.map(|sign| (stream, sign)));
                        }
                        None => self.probed.push((stream, if call { Sign::Data } else { Sign::Pong })),
                    }
                }
                Action::Send(stream, bytes) => {
                    let server = self.server(stream);
                    assert!(self.on_their_way.insert(stream), "{server} has a request on its way already");
                    let text = match self.protocols[&stream] {
                        Protocol::Sotw => request_text(&bytes),
                        Protocol::Delta => delta_request_text(&bytes),
                    };
                    done.push(format!("{server}> {text}"));
                    match self.blocked.get_mut(&server) {
                        Some(blocked) => *blocked = Some(stream),
                        None => {
                            self.on_their_way.remove(&stream);
                            self.client.handle_event(self.now, &mut Middle, Event::Sent(stream));
                        }
                    }
                }
                Action::Notify(watch, update) => done.push(format!("w{} {}", watch.0, update_text(&update))),
                Action::ActiveServer(AuthorityKey::TopLevel, server) => {
                    done.push(format!("active {}", server.server_uri));
                }
                Action::ActiveServer(AuthorityKey::Named(name), server) => {
                    done.push(format!("active {} for {name}", server.server_uri));
                }
                Action::Report(report) if self.show_reports => done.push(report_text(&report)),
                Action::Report(_) => {}
            }
        }
        done
    }

    /// The latest attempt at a server, or one `before` it.
    pub(super) fn stream(&self, server: &str, before: usize) -> StreamId {
        let attempts = &self.streams[server];
        attempts[attempts.len() - 1 - before]
    }

    fn server(&self, stream: StreamId) -> String {
        let (server, _) = self.streams.iter().find(|(_, streams)| streams.contains(&stream)).expect("a known stream");
        server.clone()
    }
}

/// The middle of every range, so that jitter is nothing.
pub(super) struct Middle;

impl Choose for Middle {
    fn choose(&mut self, bound: u64) -> u64 {
        bound / 2
    }
}

// === text to messages ===

/// The bytes of a response such as `LDS 1 A: shop:=x`.
pub(super) fn response(words: &[&str]) -> Bytes {
    let [kind, version, nonce, items @ ..] = words else { return Bytes::from_static(b"\xff\xffgarbage") };
    let known = resource_type(kind);
    let mut response = DiscoveryResponse {
        version_info: (*version).to_owned(),
        nonce: nonce.trim_end_matches(':').to_owned(),
        type_url: known.map_or((*kind).to_owned(), |known| known.type_url().to_owned()),
        ..Default::default()
    };
    let kind = known.unwrap_or(ResourceType::Listener);
    for item in items {
        match item.split_once("??") {
            Some((name, code)) => response.resource_errors.push(ResourceError {
                resource_name: Some(Named { name: name.to_owned() }),
                error_detail: Some(Status { code: code.parse().expect("a code"), message: "so it is".to_owned() }),
            }),
            None => response.resources.push(resource(kind, item)),
        }
    }
    response.encode_to_vec().into()
}

/// The bytes of a delta response such as `LDS A: shop@1:=x -gone`.
pub(super) fn delta_response(words: &[&str], identifier: Option<&String>) -> Bytes {
    let [kind, nonce, items @ ..] = words else { return Bytes::from_static(b"\xff\xffgarbage") };
    let known = resource_type(kind);
    let nonce = nonce.trim_end_matches(':');
    let mut response = DeltaDiscoveryResponse {
        nonce: if nonce == "-" { String::new() } else { nonce.to_owned() },
        type_url: known.map_or((*kind).to_owned(), |known| known.type_url().to_owned()),
        control_plane: identifier.map(|name| Named { name: name.clone() }),
        ..Default::default()
    };
    let kind = known.unwrap_or(ResourceType::Listener);
    for item in items {
        if let Some((name, code)) = item.split_once("??") {
            response.resource_errors.push(ResourceError {
                resource_name: Some(Named { name: name.to_owned() }),
                error_detail: Some(Status { code: code.parse().expect("a code"), message: "so it is".to_owned() }),
            });
            continue;
        }
        if let Some(name) = item.strip_prefix('-') {
            response.removed_resources.push(name.to_owned());
            continue;
        }
        let (names, content) = item.split_once('@').expect("a version");
        let mut names = names.split('=').map(str::to_owned);
        let mut entry = DeltaResource { name: names.next().unwrap_or_default(), ..Default::default() };
        entry.aliases = names.collect();
        let (version, value) = match (content.strip_suffix("!!"), content.split_once(":=")) {
            (Some(version), _) => (version, None),
            (None, Some((version, value))) => (version, Some(value)),
            (None, None) => (content, Some("1")),
        };
        entry.version = long_version(version.trim_end_matches('~'));
        let value = encoded(kind, &entry.name, value);
        let any = Any { type_url: kind.type_url().to_owned(), value };
        entry.resource = (!version.ends_with('~')).then_some(any);
        response.resources.push(entry);
    }
    response.encode_to_vec().into()
}

/// The version of a resource as it is on the wire: long enough to be no count, unless it begins with `#`.
fn long_version(version: &str) -> String {
    if version.is_empty() || version.starts_with('#') { version.to_owned() } else { format!("{version}{LONG}") }
}

/// The same as it is in a transcript.
pub(super) fn short_version(version: &str) -> &str {
    version.strip_suffix(LONG).unwrap_or(version)
}

const LONG: &str = "-0123456789abcdef";

fn resource(kind: ResourceType, item: &str) -> Any {
    match item {
        "~" => return Any { type_url: kind.type_url().to_owned(), value: Bytes::from_static(GARBAGE) },
        "%" => return Any { type_url: "type.googleapis.com/another.Type".to_owned(), value: Bytes::new() },
        "[]" => return Any { type_url: WRAPPER.to_owned(), value: Bytes::from_static(GARBAGE) },
        _ => {}
    }
    let Some((name, rest)) = item.strip_prefix('[').and_then(|item| item.split_once(']')) else {
        let (name, value) = match (item.strip_suffix("!!"), item.split_once(":=")) {
            (Some(name), _) => (name, None),
            (None, Some((name, value))) => (name, Some(value)),
            (None, None) => (item, Some("1")),
        };
        return Any { type_url: kind.type_url().to_owned(), value: encoded(kind, name, value) };
    };
    let value = match rest {
        "!!" => None,
        _ => Some(rest.strip_prefix(":=").unwrap_or("1")),
    };
    // The name inside is another one: the wrapper's must win (P-65).
    let inner = Any { type_url: kind.type_url().to_owned(), value: encoded(kind, "inner", value) };
    let wrapper = Wrapper { name: name.to_owned(), resource: (rest != "-").then_some(inner) };
    Any { type_url: format!("type.googleapis.com/{WRAPPER}"), value: wrapper.encode_to_vec().into() }
}

/// A resource with some `value` in it, or an invalid one.
fn encoded(kind: ResourceType, name: &str, value: Option<&str>) -> Bytes {
    let name = name.to_owned();
    match kind {
        ResourceType::Listener => encoded_listener(name, value),
        ResourceType::RouteConfig => {
            let host = route::VirtualHost {
                name: value.unwrap_or_default().to_owned(),
                domains: value.map(|_| "*".to_owned()).into_iter().collect(),
                ..Default::default()
            };
            route::RouteConfiguration { name, virtual_hosts: vec![host], ..Default::default() }.encode_to_vec()
        }
        ResourceType::Cluster => {
            let eds = cluster::cluster::EdsClusterConfig {
                eds_config: Some(ads()),
                service_name: value.unwrap_or_default().to_owned(),
            };
            let discovery = cluster::cluster::DiscoveryType::Eds as i32;
            cluster::Cluster {
                name,
                eds_cluster_config: Some(eds),
                lrs_server: Some(core::ConfigSource {
                    config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Self_(
                        core::SelfConfigSource::default(),
                    )),
                    ..Default::default()
                }),
                cluster_discovery_type: value.map(|_| cluster::cluster::ClusterDiscoveryType::Type(discovery)),
                ..Default::default()
            }
            .encode_to_vec()
        }
        ResourceType::Endpoints => {
            let locality = endpoint::LocalityLbEndpoints {
                locality: Some(core::Locality { region: "r".to_owned(), ..Default::default() }),
                load_balancing_weight: Some(google::UInt32Value { value: 1 }),
                lb_endpoints: value.map(lb_endpoint).into_iter().collect(),
                ..Default::default()
            };
            // The same locality twice is not valid (R-115).
            let times = if value.is_some() { 1 } else { 2 };
            let endpoints = vec![locality; times];
            endpoint::ClusterLoadAssignment { cluster_name: name, endpoints, ..Default::default() }.encode_to_vec()
        }
        ResourceType::EndpointCollection => {
            let inline = value.map(|value| {
                let resource = Some(any(&lb_endpoint(value)));
                collection_entry::ResourceSpecifier::InlineEntry(collection_entry::InlineEntry {
                    resource,
                    ..Default::default()
                })
            });
            let entries = vec![CollectionEntry { resource_specifier: inline }];
            endpoint::LbEndpointCollection { entries }.encode_to_vec()
        }
        ResourceType::EndpointGlob => value.map(lb_endpoint).unwrap_or_default().encode_to_vec(),
    }
    .into()
}

fn encoded_listener(name: String, value: Option<&str>) -> Vec<u8> {
    let manager = |routes: &str| hcm::HttpConnectionManager {
        http_filters: vec![hcm::HttpFilter {
            name: "router".to_owned(),
            config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(&Router::default()))),
            ..Default::default()
        }],
        route_specifier: Some(hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
            config_source: Some(ads()),
            route_config_name: routes.to_owned(),
        })),
        ..Default::default()
    };
    let api_listener = value.map(|value| listener::ApiListener { api_listener: Some(any(&manager(value))) });
    listener::Listener { name, api_listener, ..Default::default() }.encode_to_vec()
}

fn lb_endpoint(port: &str) -> endpoint::LbEndpoint {
    let address = core::SocketAddress {
        address: "127.0.0.1".to_owned(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port.parse().expect("a port"))),
        ..Default::default()
    };
    let address = core::Address { address: Some(core::address::Address::SocketAddress(address)) };
    let endpoint = endpoint::Endpoint { address: Some(address), ..Default::default() };
    endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
        ..Default::default()
    }
}

fn ads() -> core::ConfigSource {
    let ads = core::config_source::ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {});
    core::ConfigSource { config_source_specifier: Some(ads), ..Default::default() }
}

fn any<M: Message + Name>(message: &M) -> google::Any {
    google::Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

// === messages to text ===

fn request_text(bytes: &Bytes) -> String {
    let request = DiscoveryRequest::decode(bytes.clone()).expect("a DiscoveryRequest");
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let kind = ResourceType::from_type_url(&request.type_url).expect("a type of ours");
    let mut text = format!(
        "{} {} {}: {}",
        short_name(kind),
        or_dash(request.version_info),
        or_dash(request.response_nonce),
        or_dash(request.resource_names.join(" ")),
    );
    if let Some(node) = request.node {
        assert_eq!(node.id, "me");
        text.push_str(" +node");
    }
    if let Some(error) = request.error_detail {
        assert_eq!(error.code, 3, "P-31");
        text.push_str(&format!(" NACK {}", short_faults(kind, error.message)));
    }
    text
}

fn delta_request_text(bytes: &Bytes) -> String {
    let request = DeltaDiscoveryRequest::decode(bytes.clone()).expect("a DeltaDiscoveryRequest");
    let kind = ResourceType::from_type_url(&request.type_url).expect("a type of ours");
    let names = request.resource_names_subscribe.iter().map(|name| format!(" +{name}"));
    let names = names.chain(request.resource_names_unsubscribe.iter().map(|name| format!(" -{name}")));
    let mut text = format!("{}{}", short_name(kind), names.collect::<String>());
    let is_change = text.contains(['+', '-']);
    let both = |name| request.resource_names_unsubscribe.contains(name);
    assert!(!request.resource_names_subscribe.iter().any(both), "DX-7: {text}");
    let is_answer = !request.response_nonce.is_empty();
    assert_ne!(is_change, is_answer, "DX-6: {request:?}");
    if is_answer {
        text.push_str(&format!(" ACK {}", request.response_nonce));
    }
    let claims: BTreeMap<_, _> = request.initial_resource_versions.into_iter().collect();
    for (name, version) in claims {
        text.push_str(&format!(" has {name}@{}", short_version(&version)));
    }
    if request.node.is_some() {
        text.push_str(" +node");
    }
    if let Some(error) = request.error_detail {
        assert_eq!(error.code, 3, "P-31");
        text = format!("{} {}", text.replace(" ACK ", " NACK "), short_faults(kind, error.message));
    }
    text
}

fn update_text(update: &Update) -> String {
    match update {
        Update::Changed(resource, from) => {
            format!("changed: {} from {} {}", value(resource), from.server.server_uri, short_version(&from.version))
        }
        Update::Confirmed(from) => {
            format!("confirmed: from {} {}", from.server.server_uri, short_version(&from.version))
        }
        Update::Failed(error) => format!("failed: {}", error_text(error)),
        Update::Ambient(Some(error)) => format!("ambient: {}", error_text(error)),
        Update::Ambient(None) => "ambient: none".to_owned(),
    }
}

/// An error in few words; its real text is tested on its own.
fn error_text(error: &client::ResourceError) -> String {
    let server = error.server_uri().unwrap_or("-");
    match &error.kind {
        ErrorKind::InvalidName(_) => "invalid name".to_owned(),
        ErrorKind::UnknownAuthority(name) => format!("unknown authority {name}"),
        ErrorKind::Unreachable(cause) => format!("unreachable {server}: {}", short_cause(cause)),
        ErrorKind::DoesNotExist { after } => format!("does not exist on {server} after {} s", after.as_secs()),
        ErrorKind::TimedOut { after } => format!("timed out on {server} after {} s", after.as_secs()),
        ErrorKind::Deleted => format!("deleted on {server}"),
        ErrorKind::NeedsDelta => format!("needs delta on {server}"),
        ErrorKind::Rejected { version, .. } => format!("rejected from {server} {}", short_version(version)),
        ErrorKind::FromServer { code, .. } => format!("{server} says {code}"),
    }
}

fn report_text(report: &Report) -> String {
    match report {
        Report::Connecting(server) => format!("Connecting {}", server.server_uri),
        Report::Connected(server, _) => format!("Connected {}", server.server_uri),
        Report::Answered(server) => format!("Answered {}", server.server_uri),
        Report::Alive(server) => format!("Alive {}", server.server_uri),
        Report::Unreachable(server, cause, pause) => {
            format!("Unreachable {} {} {} ms", server.server_uri, short_cause(cause), pause.as_millis())
        }
        Report::StreamEnded(server, cause, pause) => {
            format!("StreamEnded {} {} {} ms", server.server_uri, short_cause(cause), pause.as_millis())
        }
        Report::DeltaRefused(server, cause) => format!("DeltaRefused {} {}", server.server_uri, short_cause(cause)),
        Report::FellBack(_, server) => format!("FellBack {}", server.server_uri),
        Report::Recovered(_, server) => format!("Recovered {}", server.server_uri),
        Report::Acked(server, kind, version, received) => {
            format!("Acked {} {kind} {version} {}", server.server_uri, received.resources)
        }
        Report::Nacked(server, kind, version, _, text) => {
            format!("Nacked {} {kind} {version} {}", server.server_uri, short_faults(*kind, text.clone()))
        }
        Report::TimedOut(server, resource) => format!("TimedOut {} {resource}", server.server_uri),
        Report::Ignored(server, what) => format!("Ignored {} {what}", server.server_uri),
        Report::DeletionIgnored(server, resource) => format!("DeletionIgnored {} {resource}", server.server_uri),
        Report::DeletionOver(server, resource) => format!("DeletionOver {} {resource}", server.server_uri),
        Report::SecurityIgnored(cluster) => format!("SecurityIgnored {cluster}"),
    }
}

/// What the transcript calls the reasons that [`Talk::happen`] gives.
fn short_cause(cause: &str) -> &str {
    match cause {
        "cannot connect: connection refused" => "refused",
        "connection lost: reset" => "lost",
        "the server ended the stream: UNAVAILABLE: restarting" => "ended",
        "the server ended the stream: UNIMPLEMENTED: what is delta?" => "unimplemented",
        "the server ended the stream: UNAVAILABLE: busy" => "deferred",
        other => other,
    }
}

/// A NACK in which the faults that [`encoded`] makes, which are texts of the parsers, are cut short.
fn short_faults(kind: ResourceType, text: String) -> String {
    let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("a")).build().expect("a good bootstrap");
    let cx = ParseContext { bootstrap: &bootstrap, server: &bootstrap.servers[0] };
    let faults = |bytes: &[u8]| match decode(kind, &Bytes::copy_from_slice(bytes), cx).result {
        Ok(_) => panic!("an invalid {kind} is valid"),
        Err(invalid) => invalid.to_string(),
    };
    let garbage = Wrapper::decode(GARBAGE).expect_err("garbage");
    text.replace(&faults(&encoded(kind, "x", None)), "<faults>")
        .replace(&faults(GARBAGE), "<garbage>")
        .replace(&format!("cannot be decoded as a Resource wrapper: {garbage}"), "<garbage>")
}

const GARBAGE: &[u8] = b"\xff\xff";

/// The value that [`encoded`] put in.
pub(super) fn value(resource: &Resource) -> String {
    let port = |collection: &EndpointCollection| {
        collection.endpoints.first().map_or("-".to_owned(), |endpoint| endpoint.addresses.first().port().to_string())
    };
    match resource {
        Resource::Listener(listener) => match &**listener {
            Listener::Api(manager) => match &manager.routes {
                RouteSource::Rds(name) => name.clone(),
                RouteSource::Inline(_) => panic!("not one of ours"),
            },
            Listener::Server(_) => panic!("not one of ours"),
        },
        Resource::RouteConfig(routes) => routes.virtual_hosts.first().map_or("-".to_owned(), |host| host.name.clone()),
        Resource::Cluster(cluster) => match &cluster.kind {
            ClusterKind::Eds { service_name } => service_name.clone().unwrap_or("-".to_owned()),
            kind => panic!("not one of ours: {kind:?}"),
        },
        Resource::Endpoints(endpoints) => {
            let localities = endpoints.priorities.first().map(|priority| &priority.localities);
            match localities.and_then(|localities| localities.first()).map(|locality| &locality.source) {
                Some(EndpointSource::Inline(collection)) => port(collection),
                Some(EndpointSource::Collection(name)) => name.clone(),
                None => "-".to_owned(),
            }
        }
        Resource::EndpointCollection(collection) => port(collection),
        Resource::EndpointGlob(glob) => {
            let ports = glob.iter().map(|(_, endpoint)| endpoint.addresses.first().port().to_string());
            format!("[{}]", ports.collect::<Vec<_>>().join(" "))
        }
    }
}

// === small things ===

pub(super) fn resource_type(short: &str) -> Option<ResourceType> {
    ResourceType::ALL.into_iter().find(|&kind| short_name(kind) == short)
}

pub(super) fn short_name(kind: ResourceType) -> &'static str {
    match kind {
        ResourceType::Listener => "LDS",
        ResourceType::RouteConfig => "RDS",
        ResourceType::Cluster => "CDS",
        ResourceType::Endpoints => "EDS",
        ResourceType::EndpointCollection => "LEDS",
        ResourceType::EndpointGlob => "GLOB",
    }
}

fn duration(text: &str) -> Duration {
    let (number, unit) = text.split_once(' ').expect("a number and a unit");
    let number = number.parse().expect("a number");
    match unit {
        "s" => Duration::from_secs(number),
        "ms" => Duration::from_millis(number),
        _ => panic!("what is {unit:?}?"),
    }
}

/// The lines of a text without the indentation that all of them share, and without blank ends.
fn dedent(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let shared = lines.iter().filter(|line| !line.is_empty()).map(indent).min().unwrap_or_default();
    let lines = lines.into_iter().map(|line| line.get(shared..).unwrap_or_default().to_owned());
    let mut lines: Vec<String> = lines.skip_while(String::is_empty).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}
