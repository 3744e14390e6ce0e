//! A third world: xDS-enabled servers with their control planes, sockets, connections and RPCs, judged from outside.
//!
//! The core is the real one, and so is what decides about connections and RPCs; all around it is simulated. The judge
//! knows what the planes told, in few words, and what the client of the servers holds; from that alone it says what must
//! be in force, who must be drained, whether the port must be open, and what must become of an RPC. A [`Defect`] is one
//! that a server in the field has had: the judge must find each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use http::{HeaderMap, Method};
use mainstay_lb::serve::{Admission, ChainRoutes, Decision, Request, admit};
use mainstay_xds::bootstrap::{Bootstrap, Guards};
use mainstay_xds::client::{ClientSettings, CloseCause, Event, Sign, StreamId};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::{Listener, ParseContext, Resource, ResourceType, decode};
use mainstay_xds::serve::{
    Action, Drain, Generation, ListenerId, NotServing, Output, ServeSettings, ServerCore, Serving, ServingState,
};
use mainstay_xds::{Choose, Time};
use prost::Message;

use crate::choose::Seeded;
use crate::invariant::{Invariant, Violation};
use crate::plane::{Habits, Plane, Session};
use crate::truth::{Told, Truth};

mod judge;
mod specs;

use specs::{ChainSpec, INVALID, Kind, ListenerSpec, Mark, RoutesSpec, encode_routes, route_name};

/// What servers in the field did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// An equal Listener that comes again drains all connections (grpc-go #4695).
    DrainsOnResend,
    /// A new Listener is served before its routes are there (grpc-go, before #6915).
    ServesBeforeRoutes,
    /// The chain of the shortest prefix is taken.
    ShortestPrefix,
    /// A connection whose handshake fails goes on in plaintext.
    FallsBack,
    /// The port stays open when nothing is served.
    StaysOpen,
    /// Connections are ended, not drained, when their Listener is replaced.
    EndsConnections,
    /// A TLS handshake fails if its Listener is replaced meanwhile (grpc-java, before #8294).
    BreaksHandshakes,
    /// A response that lacks the Listener takes it away at once (grpc-go #5354).
    LosesListener,
    /// A first Listener that is invalid is the last one that is looked at (grpc-java #8657).
    GivesUp,
    /// A Listener for clients is taken for one that changes nothing (grpc-go #8114).
    OverlooksKind,
    /// A path without its slash is served, past the rules about paths (grpc-go, GHSA-p77j-4mvh-x3m3).
    ServesAnyPath,
    /// All connections of a Listener that is replaced are told to go in the same moment (istio #58100).
    DrainsAtOnce,
}

/// Every defect, with what must find it.
pub const DEFECTS: [(Defect, Invariant); 12] = [
    (Defect::DrainsOnResend, Invariant::Generations),
    (Defect::ServesBeforeRoutes, Invariant::Generations),
    (Defect::ShortestPrefix, Invariant::Traffic),
    (Defect::FallsBack, Invariant::Security),
    (Defect::StaysOpen, Invariant::Ports),
    (Defect::EndsConnections, Invariant::Traffic),
    (Defect::BreaksHandshakes, Invariant::Traffic),
    (Defect::LosesListener, Invariant::Generations),
    (Defect::GivesUp, Invariant::Generations),
    (Defect::OverlooksKind, Invariant::Generations),
    (Defect::ServesAnyPath, Invariant::Traffic),
    (Defect::DrainsAtOnce, Invariant::Traffic),
];

/// What a history has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Events.
    pub events: u64,
    /// Listeners that came in force.
    pub generations: u64,
    /// Routes that changed under a generation in force.
    pub routes: u64,
    /// Times that serving began.
    pub served: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were told to end.
    pub drained: u64,
    /// RPCs that were handed to the application.
    pub handled: u64,
    /// Configurations of more than one plane.
    pub mixed: u64,
}

/// Runs the history of a seed. The same seed is the same history.
///
/// # Errors
/// If something does not hold; with what happened before.
pub fn run(seed: u64, defect: Option<Defect>) -> Result<History, Violation> {
    World::new(seed, defect, false).live().or_else(|_| {
        let mut world = World::new(seed, defect, true);
        let outcome = world.live();
        outcome.map_err(|violation| {
            let lines = world.lines.unwrap_or_default().join("\n");
            Violation { detail: format!("{lines}\nseed {seed}: {}", violation.detail), ..violation }
        })
    })
}

/// A core and what is around it.
struct World {
    draw: Seeded,
    defect: Option<Defect>,
    now: Time,
    core: ServerCore,
    bootstrap: Arc<Bootstrap>,
    planes: Vec<Plane>,
    up: Vec<bool>,
    versions: u64,
    links: BTreeMap<StreamId, (usize, Session)>,
    /// What the planes ever told, by its bytes.
    listeners: BTreeMap<Bytes, ListenerSpec>,
    marks: BTreeMap<Bytes, Mark>,
    addresses: BTreeMap<ListenerId, Address>,
    history: History,
    lines: Option<Vec<String>>,
}

/// A listening address.
struct Address {
    name: Arc<str>,
    port: u16,
    /// Whether the credentials of the server let the control plane secure connections.
    follows_xds: bool,
    /// Whether the socket accepts connections.
    is_open: bool,
    /// What the core waits for an answer to: listening, or not.
    asked: Option<bool>,
    /// What the socket could not do when it was asked, and will be asked for again.
    failed: Option<bool>,
    state: ServingState,
    published: Option<Generation>,
    generations: BTreeMap<Generation, Live>,
    connections: Vec<Connection>,
    /// Since when the newest Listener and its routes are of more than one plane.
    mixed_since: Option<Time>,
    is_shut_down: bool,
    /// Set by [`Defect::GivesUp`].
    gave_up: bool,
}

/// A Listener that is or was in force.
struct Live {
    spec: ListenerSpec,
    serving: Arc<Serving>,
    chains: Vec<ChainRoutes>,
    drain: Option<Drain>,
}

struct Connection {
    generation: Generation,
    chain: usize,
    phase: Phase,
    /// Whether a byte went over it that TLS did not protect.
    plaintext: bool,
    goaway_at: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake,
    Open,
    Closed,
}

impl World {
    fn new(seed: u64, defect: Option<Defect>, told: bool) -> Self {
        let mut draw = Seeded::new(seed);
        let planes = 1 + below(&mut draw, 2);
        let features = if below(&mut draw, 3) == 0 { r#""xds_v3", "fail_on_data_errors""# } else { r#""xds_v3""# };
        let server = |number: usize| {
            format!(
                r#"{{"server_uri": "plane{number}", "channel_creds": [{{"type": "insecure"}}], "server_features": [{features}]}}"#
            )
        };
        let servers: Vec<_> = (0..planes).map(server).collect();
        let text = format!(
            r#"{{"xds_servers": [{}], "node": {{"id": "server"}}, "server_listener_resource_name_template": "server/%s",
                "certificate_providers": {{"id": {{"plugin_name": "file_watcher",
                    "config": {{"certificate_file": "c", "private_key_file": "k"}}}}}}}}"#,
            servers.join(", ")
        );
        let bootstrap = Arc::new(Bootstrap::parse(&text, Guards::default()).expect("a good bootstrap"));
        let plane = || Plane::new(Arc::new(Truth { version: "0".into(), ..Truth::default() }), Habits::default());
        Self {
            draw,
            defect,
            now: Time::from_start(Duration::from_secs(1_000)),
            core: ServerCore::new(bootstrap.clone(), ClientSettings::default()),
            bootstrap,
            planes: (0..planes).map(|_| plane()).collect(),
            up: vec![true; planes],
            versions: 0,
            links: BTreeMap::new(),
            listeners: BTreeMap::new(),
            marks: BTreeMap::new(),
            addresses: BTreeMap::new(),
            history: History::default(),
            lines: told.then(Vec::new),
        }
    }

    fn live(&mut self) -> Result<History, Violation> {
        for port in [50_051, 50_052].into_iter().take(1 + self.below(2)) {
            self.add(port);
        }
        self.settle()?;
        for _ in 0..120 {
            self.history.events += 1;
            self.happen()?;
            self.settle()?;
        }
        self.converge()?;
        self.end()?;
        Ok(self.history)
    }

    fn add(&mut self, port: u16) {
        let address = SocketAddr::new(OURS, port);
        let id = self.core.add(self.now, address, ServeSettings::default()).expect("there is a template");
        let name = self.core.listener_name(id).expect("just added").clone();
        let state = self.core.state(id).expect("just added").clone();
        let address = Address {
            name,
            port,
            follows_xds: self.below(4) > 0,
            is_open: false,
            asked: None,
            failed: None,
            state,
            published: None,
            generations: BTreeMap::new(),
            connections: Vec::new(),
            mixed_since: None,
            is_shut_down: false,
            gave_up: false,
        };
        self.addresses.insert(id, address);
    }

    // --- What happens ---

    fn happen(&mut self) -> Result<(), Violation> {
        match self.below(40) {
            0..=3 => self.tell_listener(),
            4..=8 => self.tell_routes(),
            9..=16 => return self.respond(false),
            17 => return self.respond(true),
            18 => {
                let plane = self.below(self.planes.len());
                self.up[plane] = !self.up[plane];
                let up = self.up[plane];
                self.note(|| format!("plane{plane} is {}", if up { "up" } else { "down" }));
                if !up {
                    self.cut(plane);
                }
            }
            19..=21 => self.pass_time(),
            22..=25 => self.answer_socket(),
            26..=29 => return self.connect(1),
            30 if self.below(10) == 0 => return self.connect(150),
            30..=32 => return self.shake_hands(),
            33..=38 => return self.call(),
            _ if self.below(20) == 0 => self.shut_down(),
            _ => {}
        }
        Ok(())
    }

    /// A plane has another Listener, an equal one in other bytes, or none.
    fn tell_listener(&mut self) {
        let plane = self.below(self.planes.len());
        let addresses: Vec<_> = self.addresses.values().map(|address| (address.name.clone(), address.port)).collect();
        let (name, port) = addresses[self.below(addresses.len())].clone();
        let key = ResourceKey { resource_type: ResourceType::Listener, name: name.clone() };
        let held =
            self.planes[plane].truth.resources.get(&key).and_then(|told| self.listeners.get(&told.bytes)).cloned();
        let spec = match self.below(10) {
            0 => None,
            1..=3 if held.is_some() => held,
            _ => Some(self.draw_listener()),
        };
        self.note(|| format!("plane{plane} has {name}: {spec:?}"));
        let grain = self.below(3) == 0;
        let bytes = spec.as_ref().map(|spec| spec.encode(&name, port, grain));
        if let (Some(bytes), Some(spec)) = (&bytes, spec) {
            self.listeners.insert(bytes.clone(), spec);
        }
        self.put(plane, key, bytes);
    }

    fn draw_listener(&mut self) -> ListenerSpec {
        let kind = match self.below(16) {
            0 => Kind::Client,
            1 => Kind::Elsewhere,
            2 => Kind::Invalid,
            3..=5 => Kind::AnyPort,
            _ => Kind::Server,
        };
        let chains: Vec<_> = [8, 16, 24].into_iter().filter(|_| self.below(3) == 0).collect();
        let chains: Vec<_> = chains.into_iter().map(|prefix| self.draw_chain(prefix)).collect();
        let default = (chains.is_empty() || self.below(2) == 0).then(|| self.draw_chain(0));
        ListenerSpec { kind, chains, default }
    }

    fn draw_chain(&mut self, prefix: u32) -> ChainSpec {
        let routes = match self.below(3) {
            0 => RoutesSpec::Inline(self.below(4) as Mark),
            _ => RoutesSpec::Rds(self.below(ROUTES)),
        };
        ChainSpec { prefix, tls: self.below(2) == 0, routes }
    }

    fn tell_routes(&mut self) {
        let (plane, number) = (self.below(self.planes.len()), self.below(ROUTES));
        let name = route_name(number);
        let mark = match self.below(12) {
            0 => INVALID,
            1..=3 => 1 + 2 * self.below(3) as Mark,
            _ => 2 * self.below(4) as Mark,
        };
        self.note(|| format!("plane{plane} has {name}: {mark}"));
        let bytes = encode_routes(&name, mark);
        self.marks.insert(bytes.clone(), mark);
        let key = ResourceKey { resource_type: ResourceType::RouteConfig, name: name.into() };
        self.put(plane, key, Some(bytes));
    }

    fn put(&mut self, plane: usize, key: ResourceKey, bytes: Option<Bytes>) {
        self.versions += 1;
        let mut truth = Truth::clone(&self.planes[plane].truth);
        truth.version = self.versions.to_string().into();
        match bytes {
            Some(bytes) => drop(truth.resources.insert(key.clone(), Arc::new(Told { key, bytes, spec: None }))),
            None => drop(truth.resources.remove(&key)),
        }
        self.planes[plane].truth = Arc::new(truth);
    }

    /// A plane says what is new, or everything again.
    fn respond(&mut self, again: bool) -> Result<(), Violation> {
        let mut due: Vec<(StreamId, ResourceType)> = Vec::new();
        for (stream, (plane, session)) in &mut self.links {
            for kind in [ResourceType::Listener, ResourceType::RouteConfig] {
                if again {
                    Plane::repeat(session, kind);
                }
                if self.planes[*plane].is_due(session, kind) {
                    due.push((*stream, kind));
                }
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        let (stream, kind) = due[self.below(due.len())];
        let Some((plane, session)) = self.links.get_mut(&stream) else { return Ok(()) };
        let plane = *plane;
        let Some(response) = self.planes[plane].respond(session, kind) else { return Ok(()) };
        self.note(|| {
            format!(
                "plane{plane} < {kind}: {:?}",
                response.resources.iter().map(|told| &told.key.name).collect::<Vec<_>>()
            )
        });
        let before: Vec<_> = self.addresses.keys().map(|id| (*id, self.newest(*id))).collect();
        self.event(Event::Received(stream, response.encode()));
        if self.defect.is_some() && kind == ResourceType::Listener {
            for (id, before) in before {
                let is_absent = response.resources.iter().all(|told| told.key.name != self.addresses[&id].name);
                if self.defect == Some(Defect::LosesListener) && is_absent && before.is_some() {
                    self.publish(id, None)?;
                }
                self.misbehave(id, before.as_ref())?;
            }
        }
        Ok(())
    }

    fn cut(&mut self, plane: usize) {
        let lost: Vec<_> = self.links.iter().filter(|(_, link)| link.0 == plane).map(|(stream, _)| *stream).collect();
        for stream in lost {
            self.links.remove(&stream);
            self.event(Event::Closed(stream, CloseCause::ConnectionLost("cut".to_owned())));
        }
    }

    fn event(&mut self, event: Event) {
        self.core.handle_event(self.now, &mut self.draw, None, event);
    }

    fn pass_time(&mut self) {
        let next = match self.core.poll_output() {
            Output::Wait(Some(next)) => next,
            Output::Wait(None) | Output::Do(_) => self.now + Duration::from_secs(20),
        };
        self.now = match self.below(3) {
            0 => self.now + next.since(self.now) / 2,
            1 => self.now.max(next) + Duration::from_millis(self.below(700_000) as u64),
            _ => self.now.max(next),
        };
        let now = self.now;
        self.note(|| format!("it is {:?}", now.since_start()));
        self.core.handle_timeout(now, &mut self.draw);
        self.expire();
    }

    /// Connections that were told to end are gone when their time is over.
    fn expire(&mut self) {
        for address in self.addresses.values_mut() {
            let ended: BTreeSet<_> = address
                .generations
                .iter()
                .filter(|(_, live)| live.drain.is_some_and(|drain| drain.until <= self.now))
                .map(|(generation, _)| *generation)
                .collect();
            address.connections.retain(|connection| !ended.contains(&connection.generation));
        }
    }

    fn answer_socket(&mut self) {
        let asked: Vec<_> = self.addresses.iter().filter_map(|(id, address)| Some((*id, address.asked?))).collect();
        if asked.is_empty() {
            return;
        }
        let (id, listen) = asked[self.below(asked.len())];
        let fails = self.below(4) == 0;
        self.note(|| {
            format!("{}: {} {}", id.0, if listen { "listen" } else { "stop" }, if fails { "fails" } else { "ok" })
        });
        let stays_open = self.defect == Some(Defect::StaysOpen);
        if let Some(address) = self.addresses.get_mut(&id) {
            address.asked = None;
            let is_wanted = !listen || address.published.is_some();
            address.failed = (fails && is_wanted).then_some(listen);
            // A socket that stops listening is gone, whether or not another can be bound.
            address.is_open = if listen { !fails } else { stays_open && address.is_open };
        }
        let outcome = if fails { Err("taken".to_owned()) } else { Ok(()) };
        self.core.handle_socket(self.now, id, outcome);
    }

    fn shut_down(&mut self) {
        let ids: Vec<_> = self.addresses.keys().copied().collect();
        if ids.len() < 2 {
            return;
        }
        let id = ids[self.below(ids.len())];
        self.note(|| format!("{}: shut down", id.0));
        self.core.shut_down(self.now, id);
    }

    // --- Connections and RPCs ---

    /// Somebody connects, to the address itself or to one that the host has beside it.
    fn connect(&mut self, many: usize) -> Result<(), Violation> {
        let ids: Vec<_> = self.addresses.keys().copied().collect();
        let id = ids[self.below(ids.len())];
        for _ in 0..many {
            let (destination, bits) = DESTINATIONS[self.below(DESTINATIONS.len())];
            let destination: IpAddr = destination.parse().expect("an address");
            let source = SocketAddr::new("192.0.2.1".parse().expect("an address"), 1_000);
            let Some(address) = self.addresses.get_mut(&id) else { return Ok(()) };
            if !address.is_open {
                return Ok(()); // The system refuses it.
            }
            let live =
                address.published.and_then(|generation| Some((generation, address.generations.get(&generation)?)));
            let admission = admit(live.map(|(_, live)| &*live.serving), destination, source, address.follows_xds);
            let shortest = |spec: &ListenerSpec| {
                let fitting = spec.chains.iter().enumerate().filter(|(_, chain)| chain.prefix <= bits);
                fitting.min_by_key(|(_, chain)| chain.prefix).map(|(place, _)| place)
            };
            let (chain, is_tls) = match admission {
                Admission::Close => {
                    let expected = live.and_then(|(_, live)| live.spec.chain_for(bits));
                    Invariant::Traffic.holds(expected.is_none(), || {
                        format!("{destination} is closed, and chain {expected:?} is for it")
                    })?;
                    continue;
                }
                Admission::Tls(chain, _) => (chain, true),
                Admission::Own(chain) => (chain, false),
            };
            let Some((generation, live)) = live else {
                return Err(Invariant::Ports.broken("a connection is served by nothing"));
            };
            let is_shortest = self.defect == Some(Defect::ShortestPrefix);
            let chain = shortest(&live.spec).filter(|_| is_shortest).unwrap_or(chain);
            let expected = live.spec.chain_for(bits);
            Invariant::Traffic.holds(expected == Some(chain), || {
                format!("{destination} gets chain {chain} of {:?}: expected {expected:?}", live.spec)
            })?;
            let phase = if is_tls { Phase::Handshake } else { Phase::Open };
            let connection = Connection { generation, chain, phase, plaintext: !is_tls, goaway_at: None };
            let wants_tls = address.follows_xds && live.spec.all_chains().nth(chain).is_some_and(|chain| chain.tls);
            Invariant::Security.holds(!(wants_tls && connection.plaintext), || {
                format!("a connection of chain {chain} of {:?} is in plaintext (TL-1)", live.spec)
            })?;
            address.connections.push(connection);
            self.history.accepted += 1;
        }
        self.note(|| format!("{}: {many} connect", id.0));
        Ok(())
    }

    /// A TLS handshake ends, well or not, perhaps long after its Listener was replaced (SV-22).
    fn shake_hands(&mut self) -> Result<(), Violation> {
        let fails = self.below(3) == 0;
        let falls_back = self.defect == Some(Defect::FallsBack);
        let breaks = self.defect == Some(Defect::BreaksHandshakes);
        for (id, address) in &mut self.addresses {
            let Some(connection) =
                address.connections.iter_mut().find(|connection| connection.phase == Phase::Handshake)
            else {
                continue;
            };
            let is_replaced = address.published != Some(connection.generation);
            connection.phase = match (fails, falls_back) {
                (true, true) => Phase::Open,
                (true, false) => Phase::Closed,
                (false, _) if breaks && is_replaced => Phase::Closed,
                (false, _) => Phase::Open,
            };
            Invariant::Traffic.holds(fails || connection.phase == Phase::Open, || {
                format!("{}: nothing is wrong with a handshake but that its Listener was replaced (SV-22)", id.0)
            })?;
            connection.plaintext = fails && falls_back;
            Invariant::Security.holds(!connection.plaintext, || {
                format!("{}: the handshake of a connection failed, and it goes on in plaintext (TL-1)", id.0)
            })?;
            address.connections.retain(|connection| connection.phase != Phase::Closed);
        }
        Ok(())
    }

    /// An RPC on a connection that runs, of whatever generation.
    fn call(&mut self) -> Result<(), Violation> {
        let mut open: Vec<(ListenerId, usize)> = Vec::new();
        for (id, address) in &self.addresses {
            let is_open =
                |(at, connection): (usize, &Connection)| (connection.phase == Phase::Open).then_some((*id, at));
            open.extend(address.connections.iter().enumerate().filter_map(is_open));
        }
        if open.is_empty() {
            return Ok(());
        }
        let (id, at) = open[self.below(open.len())];
        let path =
            ["/service/method", "/service/method", "/service/method", "/service", "service/method"][self.below(5)];
        let address = &self.addresses[&id];
        let connection = &address.connections[at];
        let live = &address.generations[&connection.generation];
        let slashed = format!("/{}", path.trim_start_matches('/'));
        let seen = if self.defect == Some(Defect::ServesAnyPath) { slashed.as_str() } else { path };
        let request =
            Request { method: &Method::POST, path: seen, authority: Some("host"), headers: &HeaderMap::new() };
        let outcome = match live.chains[connection.chain].decide(&request, &mut self.draw) {
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Pass { then, .. } => then,
        };
        let expected = judge::outcome(&live.serving, connection.chain, path);
        Invariant::Traffic.holds(outcome == expected, || {
            format!(
                "an RPC to {path} on a connection of {:?} is {outcome:?}: expected {expected:?}",
                connection.generation
            )
        })?;
        self.history.handled += u64::from(outcome.is_ok());
        Ok(())
    }

    // --- What the core does about it ---

    fn settle(&mut self) -> Result<(), Violation> {
        let mut actions = 0;
        loop {
            let action = match self.core.poll_output() {
                Output::Wait(_) => break,
                Output::Do(action) => action,
            };
            actions += 1;
            Invariant::Work.holds(actions < 1_000, || "no end of actions".to_owned())?;
            self.act(action)?;
        }
        self.judge()
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        if self.swallows(&action) {
            return Ok(());
        }
        match action {
            Action::OpenStream { stream, server, .. } => {
                let plane = server.server_uri.trim_start_matches("plane").parse::<usize>().expect("one of ours");
                if self.up[plane] {
                    self.links.insert(stream, (plane, Session::default()));
                    self.event(Event::Opened(stream));
                } else {
                    self.event(Event::Closed(stream, CloseCause::ConnectFailed("refused".to_owned())));
                }
            }
            Action::Send(stream, bytes) => {
                if let Some((plane, session)) = self.links.get_mut(&stream) {
                    let request = DiscoveryRequest::decode(bytes).expect("a request");
                    self.planes[*plane].take(session, &request);
                    self.event(Event::Sent(stream));
                }
            }
            Action::Probe { stream, .. } => {
                if self.links.contains_key(&stream) {
                    self.event(Event::Alive(stream, Sign::Data));
                }
            }
            Action::CloseStream(stream) => drop(self.links.remove(&stream)),
            Action::Report(_) | Action::TellRoutes(..) => {}
            Action::Listen(id) => self.ask(id, true)?,
            Action::StopListening(id) => self.ask(id, false)?,
            Action::Close(id) => {
                self.note(|| format!("  > {}: close", id.0));
                if let Some(address) = self.addresses.get_mut(&id) {
                    (address.is_open, address.asked, address.failed, address.is_shut_down) = (false, None, None, true);
                }
            }
            Action::Publish(id, serving) => self.publish(id, serving)?,
            Action::Drain(id, drain) => self.drain(id, drain)?,
            Action::Tell(id, state) => self.tell(id, state)?,
        }
        Ok(())
    }

    fn ask(&mut self, id: ListenerId, listen: bool) -> Result<(), Violation> {
        self.note(|| format!("  > {}: {}", id.0, if listen { "listen" } else { "stop listening" }));
        let Some(address) = self.addresses.get_mut(&id) else { return Ok(()) };
        Invariant::Ports.holds(address.asked.is_none(), || "the socket is asked for two things at once".to_owned())?;
        (address.asked, address.failed) = (Some(listen), None);
        Ok(())
    }

    /// Whether a peer would not do this at all.
    fn swallows(&mut self, action: &Action) -> bool {
        let defect = self.defect;
        let id = match action {
            Action::Tell(id, ServingState::NotServing(why)) if defect == Some(Defect::GivesUp) => {
                let is_invalid = matches!(&**why, NotServing::Resource(_));
                if let Some(address) = self.addresses.get_mut(id) {
                    address.gave_up |= is_invalid && address.generations.is_empty();
                }
                return false;
            }
            Action::Listen(id) | Action::Publish(id, Some(_)) => {
                return self.addresses.get(id).is_some_and(|address| address.gave_up);
            }
            Action::Publish(id, None) => *id,
            _ => return false,
        };
        let kind = self.newest(id).and_then(|newest| self.listeners.get(&newest)).map(|spec| spec.kind);
        defect == Some(Defect::OverlooksKind) && kind == Some(Kind::Client)
    }

    /// What a peer would have published after a response, in place of what the core wants.
    fn misbehave(&mut self, id: ListenerId, before: Option<&Bytes>) -> Result<(), Violation> {
        let newest = self.newest(id);
        let (Some(newest), Some(address)) = (newest, self.addresses.get(&id)) else { return Ok(()) };
        let spec = self.listeners.get(&newest).filter(|spec| spec.is_usable() && !address.is_shut_down);
        let Some(spec) = spec else { return Ok(()) };
        let in_force = address.published.and_then(|generation| address.generations.get(&generation));
        let is_again = in_force.is_some_and(|live| live.spec == *spec) && before == Some(&newest);
        let is_new = in_force.is_none_or(|live| live.spec != *spec) && before != Some(&newest);
        let wrong = (self.defect == Some(Defect::DrainsOnResend) && is_again)
            || (self.defect == Some(Defect::ServesBeforeRoutes) && is_new);
        let cx = ParseContext { bootstrap: &self.bootstrap, server: &self.bootstrap.servers[0] };
        let Ok(Resource::Listener(listener)) = decode(ResourceType::Listener, &newest, cx).result else {
            return Ok(());
        };
        let Listener::Server(listener) = &*listener else { return Ok(()) };
        if wrong {
            let serving = Serving {
                generation: Generation(1_000_000),
                name: address.name.clone(),
                listener: listener.clone(),
                mixed_sources: false,
                routes: Vec::new(),
            };
            self.publish(id, Some(Arc::new(serving)))?;
        }
        Ok(())
    }

    fn below(&mut self, bound: usize) -> usize {
        below(&mut self.draw, bound)
    }

    /// The newest Listener of an address, as the client of the servers holds it.
    fn newest(&self, id: ListenerId) -> Option<Bytes> {
        let name = &self.addresses.get(&id)?.name;
        let dump = self.core.client().dump();
        let status = dump.iter().find(|status| status.resource.name == *name)?;
        Some(status.value.as_ref()?.bytes.clone())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }
}

fn below(draw: &mut Seeded, bound: usize) -> usize {
    draw.choose(bound as u64) as usize
}

const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

/// How many RouteConfigurations there are.
const ROUTES: usize = 3;

/// Addresses of the host, with the number of bits, of those that prefixes end at, which they share with ours.
const DESTINATIONS: [(&str, u32); 4] = [("10.0.0.9", 24), ("10.0.7.1", 16), ("10.9.0.1", 8), ("::ffff:11.0.0.1", 0)];
