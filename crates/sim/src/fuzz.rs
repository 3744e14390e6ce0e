//! What fuzzers do with bytes: the bodies of the targets in `fuzz/`, and of the test that replays their corpus.
//!
//! Each takes any bytes and panics if something that must hold does not.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::bootstrap::{AuthorityOptions, Bootstrap, Guards, ServerConfig};
use mainstay_xds::client::{Action, ClientSettings, CloseCause, Event, Output, StreamId, WatchId, XdsClient};
use mainstay_xds::resource::{Listener, ParseContext, Resource, ResourceType, decode};
use mainstay_xds::target::Target;
use mainstay_xds::{Choose, Time};
use prost::Message;

use crate::authz;
use crate::choose::{FromBytes, Recorder};
use crate::plane::DiscoveryResponse;
use crate::resources::{Spec, sample};
use crate::run::Failure;
use crate::scenario::Scenario;
use crate::swarm;

mod endpoint;
mod last_good;

/// A target: its name, and what it does with bytes.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [FuzzTarget; 14] = [
    ("bootstrap", bootstrap),
    ("listener", |bytes| resource(ResourceType::Listener, bytes)),
    ("route", |bytes| resource(ResourceType::RouteConfig, bytes)),
    ("cluster", |bytes| resource(ResourceType::Cluster, bytes)),
    ("endpoints", |bytes| resource(ResourceType::Endpoints, bytes)),
    ("collection", |bytes| resource(ResourceType::EndpointCollection, bytes)),
    ("rbac", authz::decode),
    ("authz", authz),
    ("orca", endpoint::orca),
    ("push_back", endpoint::push_back),
    ("cookie", endpoint::cookie),
    ("last_good", last_good::last_good),
    ("stream", stream),
    ("world", world),
];

/// Runs a target by its name.
///
/// # Panics
/// If there is none of this name, or if something that must hold does not.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, run) = target.unwrap_or_else(|| panic!("{name:?} is not a target"));
    run(bytes);
}

/// A bootstrap, and names resolved with it.
fn bootstrap(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Bootstrap::parse(text, Guards::default()) {
        Ok(bootstrap) => {
            for target in ["xds:///shop", "xds://east/a/b?x=y", "xds:shop", "xds:///%", "xds:////"] {
                match Target::resolve(target, &bootstrap) {
                    Ok(target) => assert!(!target.canonical.is_empty()),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A resource: the same bytes are the same value or the same faults, and a fault has words.
fn resource(resource_type: ResourceType, bytes: &[u8]) {
    let bootstrap = &**TWO_SERVERS;
    for server in &bootstrap.servers {
        let cx = ParseContext { bootstrap, server };
        let bytes = Bytes::copy_from_slice(bytes);
        let decoded = decode(resource_type, &bytes, cx);
        assert_eq!(decoded, decode(resource_type, &bytes, cx));
        match decoded.result {
            Ok(resource) => {
                assert_eq!(resource.resource_type(), resource_type);
                choose_chains(&resource);
            }
            Err(invalid) => assert!(!invalid.to_string().is_empty()),
        }
    }
}

/// A filter and RPCs as the bytes choose, beside the naive reference.
fn authz(bytes: &[u8]) {
    if let Err(difference) = authz::replay(&mut FromBytes::new(bytes)) {
        panic!("{difference}");
    }
}

/// A server's listener has a chain for a connection, or none, and whatever it has is one of its own.
fn choose_chains(resource: &Resource) {
    let Resource::Listener(listener) = resource else { return };
    let Listener::Server(listener) = &**listener else { return };
    for destination in ["10.0.0.1", "127.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"].map(|ip| ip.parse().expect("an IP"))
    {
        for source in ["10.0.0.1:1", "192.0.2.1:2", "[::1]:65535"].map(|address| address.parse().expect("an address")) {
            assert!(listener.choose(destination, source).is_none_or(|chain| chain < listener.chains.len()));
        }
    }
}

/// The client with its streams: watches, answers, nonsense and endings as the bytes say.
fn stream(bytes: &[u8]) {
    let mut play = Play::new(bytes);
    while play.step() {}
    play.end();
}

/// A world: its scenario from the first two bytes, its choices from the others.
fn world(bytes: &[u8]) {
    let (seed, choices) = bytes.split_at(bytes.len().min(2));
    let scenario = scenario(seed.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte)));
    let mut choose = Recorder::new(FromBytes::new(choices));
    let events = choices.len().min(MAX_EVENTS);
    if let Err(violation) = crate::run::run_short(&scenario, &mut choose, events) {
        let choices = choose.into_choices();
        let name = scenario.name.clone();
        panic!("{}", Failure { violation: Some(violation), scenario: name, choices, transcript: Vec::new() });
    }
}

/// One of the scenarios that worlds are made of, each made once: making one takes longer than a short life in it.
fn scenario(seed: u64) -> Arc<Scenario> {
    thread_local! {
        static MADE: RefCell<BTreeMap<u64, Arc<Scenario>>> = const { RefCell::new(BTreeMap::new()) };
    }
    let made = |made: &RefCell<BTreeMap<u64, Arc<Scenario>>>| {
        let new = || Arc::new(small_scenario(seed % SCENARIOS));
        Arc::clone(made.borrow_mut().entry(seed % SCENARIOS).or_insert_with(new))
    };
    MADE.with(made)
}

/// The scenario of a seed or, if that is a large one, of another: in those, hundreds of clusters take the time in which
/// a fuzzer could have tried hundreds of inputs, and show nothing that a few do not.
fn small_scenario(seed: u64) -> Scenario {
    let seeds = (0..).map(|round| seed + round * SCENARIOS);
    let is_small = |scenario: &Scenario| {
        let truths = scenario.planes.iter().flat_map(|plane| &plane.editions);
        truths.map(|truth| truth.resources.len()).max().unwrap_or_default() <= SMALL
    };
    let mut small = seeds.map(swarm::scenario).filter(is_small);
    small.next().expect("most are small")
}

/// A client and what it may rely on.
struct Play<'a> {
    client: XdsClient,
    now: Time,
    bytes: FromBytes<'a>,
    rest: usize,
    watches: BTreeSet<WatchId>,
    streams: BTreeMap<StreamId, Stream>,
}

/// A stream as the other end sees it.
struct Stream {
    server: String,
    open: bool,
    /// A request was made and has not left.
    unsent: bool,
    greeted: bool,
    /// The nonces of each type that was asked for: those that must be told next, each once, and then the last one.
    nonces: BTreeMap<ResourceType, VecDeque<String>>,
}

impl<'a> Play<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            client: XdsClient::new(Arc::clone(&TWO_SERVERS), ClientSettings::default()),
            now: Time::ZERO,
            bytes: FromBytes::new(bytes),
            rest: bytes.len().min(MAX_STEPS),
            watches: BTreeSet::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Does what the next bytes say; `false` at their end.
    fn step(&mut self) -> bool {
        let Some(rest) = self.rest.checked_sub(1) else { return false };
        self.rest = rest;
        match self.bytes.choose(10) {
            0 | 1 => {
                let resource_type = self.pick(&ResourceType::ALL);
                let name = self.pick(&NAMES);
                self.watches.insert(self.client.watch(self.now, resource_type, name));
            }
            2 => {
                if let Some(watch) = self.watches.pop_first() {
                    self.client.unwatch(self.now, watch);
                }
            }
            3 => self.at_stream(
                |stream| !stream.open,
                |play, id| {
                    play.streams.entry(id).and_modify(|stream| stream.open = true);
                    Event::Opened(id)
                },
            ),
            4 => self.at_stream(
                |stream| stream.unsent,
                |play, id| {
                    play.streams.entry(id).and_modify(|stream| stream.unsent = false);
                    Event::Sent(id)
                },
            ),
            5 => self.at_stream(
                |stream| stream.open,
                |play, id| {
                    let nonsense = play.take();
                    play.receive(id, nonsense)
                },
            ),
            6 | 7 => self.at_stream(|stream| stream.open, Self::response),
            8 => self.at_stream(
                |_| true,
                |play, id| {
                    play.streams.remove(&id);
                    let cause = match play.bytes.choose(3) {
                        0 => CloseCause::ConnectFailed("refused".to_owned()),
                        1 => CloseCause::ConnectionLost("reset".to_owned()),
                        _ => CloseCause::Ended { code: 14, message: "away".to_owned() },
                    };
                    Event::Closed(id, cause)
                },
            ),
            _ => {
                self.now = self.now + Duration::from_millis(100 * self.bytes.choose(256));
                self.client.handle_timeout(self.now, &mut self.bytes);
            }
        }
        self.drain();
        true
    }

    /// A response that can be read, with anything in it.
    fn response(play: &mut Self, id: StreamId) -> Event {
        let resource_type = play.pick(&ResourceType::ALL);
        let type_url = resource_type.type_url().to_owned();
        let nonce = play.bytes.choose(256).to_string();
        let resources = (0..play.bytes.choose(4)).map(|_| {
            let name = play.pick(&NAMES);
            // What is valid, what is not, and what is nothing.
            let value = match play.bytes.choose(3) {
                0 => sample(resource_type, name).encode(name).to_vec(),
                1 => Spec::Invalid(resource_type).encode(name).to_vec(),
                _ => play.take().to_vec(),
            };
            Any { type_url: type_url.clone(), value }
        });
        let response = DiscoveryResponse {
            version_info: nonce.clone(),
            resources: resources.collect(),
            type_url: type_url.clone(),
            nonce,
            ..DiscoveryResponse::default()
        };
        play.receive(id, response.encode_to_vec().into())
    }

    /// What is received; its nonce counts from now on, if it is a response to anything.
    fn receive(&mut self, id: StreamId, message: Bytes) -> Event {
        if let Ok(response) = DiscoveryResponse::decode(message.clone())
            && let Some(resource_type) = ResourceType::from_type_url(&response.type_url)
            && let Some(nonces) = self.streams.get_mut(&id).and_then(|stream| stream.nonces.get_mut(&resource_type))
        {
            nonces.push_back(response.nonce);
        }
        Event::Received(id, message)
    }

    /// Something happens at one of the streams for which that is possible.
    fn at_stream(&mut self, possible: impl Fn(&Stream) -> bool, event: impl FnOnce(&mut Self, StreamId) -> Event) {
        let ids: Vec<_> = self.streams.iter().filter(|(_, stream)| possible(stream)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let id = self.pick(&ids);
        let event = event(self, id);
        self.client.handle_event(self.now, &mut self.bytes, event);
    }

    /// Does what the client says.
    fn drain(&mut self) {
        for _ in 0..MAX_ACTIONS {
            match self.client.poll_output() {
                Output::Do(action) => self.act(action),
                Output::Wait(deadline) => {
                    assert!(self.client.poll_output() == Output::Wait(deadline), "nothing happened in between");
                    return;
                }
            }
        }
        panic!("the client never rests");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Open { stream: id, server, .. } => {
                let server = server.server_uri.clone();
                let open = self.streams.values().filter(|stream| stream.server == server).count();
                assert_eq!(open, 0, "one attempt per server");
                let stream = Stream { server, open: false, unsent: false, greeted: false, nonces: BTreeMap::new() };
                assert!(self.streams.insert(id, stream).is_none(), "every attempt has an id of its own");
            }
            Action::Send(id, bytes) => {
                let request = DiscoveryRequest::decode(bytes).expect("a request can be read");
                let stream = self.streams.get_mut(&id).expect("requests go to streams that are there");
                assert!(stream.open && !stream.unsent, "one request at a time (P-23)");
                stream.unsent = true;
                assert_eq!(request.node.is_some(), !std::mem::replace(&mut stream.greeted, true), "P-16");
                let names: BTreeSet<_> = request.resource_names.iter().collect();
                assert_eq!(names.len(), request.resource_names.len(), "every name once (P-33)");
                let resource_type = ResourceType::from_type_url(&request.type_url).expect("a type that we know");
                let nonces = stream.nonces.entry(resource_type).or_insert_with(|| [String::new()].into());
                if nonces.len() > 1 {
                    nonces.pop_front();
                }
                assert_eq!(nonces.front(), Some(&request.response_nonce), "every response is answered (P-35)");
            }
            Action::Close(id) => assert!(self.streams.remove(&id).is_some(), "only what is there is closed"),
            Action::Notify(watch, _) => assert!(self.watches.contains(&watch), "only watchers are told"),
            Action::Probe { .. } | Action::ActiveServer(..) | Action::Report(_) => {}
        }
    }

    /// Nothing is left when nothing is watched.
    fn end(mut self) {
        for watch in std::mem::take(&mut self.watches) {
            self.client.unwatch(self.now, watch);
        }
        self.drain();
        assert!(self.streams.is_empty() && self.client.is_idle(), "nothing is open");
        assert!(self.client.dump().is_empty(), "nothing is kept");
        assert_eq!(self.client.poll_output(), Output::Wait(None), "nothing is waited for");
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.bytes.choose(of.len() as u64)).unwrap_or_default()]
    }

    fn take(&mut self) -> Bytes {
        (0..self.bytes.choose(64)).map(|_| self.bytes.choose(256) as u8).collect::<Vec<_>>().into()
    }
}

static TWO_SERVERS: LazyLock<Arc<Bootstrap>> = LazyLock::new(|| Arc::new(two_servers()));

/// Two top-level servers, and an authority that falls back when a server cannot be reached.
fn two_servers() -> Bootstrap {
    let trusted = ServerConfig {
        features: mainstay_xds::bootstrap::ServerFeatures { trusted_xds_server: true, ..Default::default() },
        ..ServerConfig::insecure("b")
    };
    let authority = AuthorityOptions {
        servers: vec![ServerConfig::insecure("c"), ServerConfig::insecure("d")],
        fallback_on_reachability_only: true,
        ..AuthorityOptions::default()
    };
    let builder = Bootstrap::builder().server(ServerConfig::insecure("a")).server(trusted).authority("east", authority);
    builder.guards(Guards::default()).build().expect("a good bootstrap")
}

const NAMES: [&str; 4] = [
    "shop",
    "other",
    "xdstp://east/envoy.config.endpoint.v3.ClusterLoadAssignment/e",
    "xdstp://nowhere/envoy.config.cluster.v3.Cluster/c",
];

/// More is not tried with one input: what takes a fuzzer's time is the length of a life, and many short ones show more
/// than a few long ones. Long ones are what the seeds of [`swarm`] are for.
const MAX_STEPS: usize = 150;
const MAX_EVENTS: usize = 30;

/// How many scenarios there are, and how many resources one may have.
const SCENARIOS: u64 = 64;
const SMALL: usize = 12;

/// After so many actions without a rest something is wrong.
const MAX_ACTIONS: usize = 10_000;
