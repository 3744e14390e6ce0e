//! A channel, its control planes, DNS and backends, in which nothing happens by chance: whatever is under way happens at
//! once and in order, and only time and outages come between.
//!
//! Unlike a [`World`](crate::World) it knows nothing of what must hold: resources are somebody's own, and what it shows is
//! what comes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_lb::{Action, ChannelCore, Chosen, Context, Decision, Effect, Injected, Input, Rpc, Snapshot, Trace};
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{CloseCause, Event, Report, Sign, StreamId};
use mainstay_xds::deps::{DnsName, XdsConfig};
use mainstay_xds::local::{LocalServer, LocalSet, LocalValue};
use mainstay_xds::lrs;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::{Choose, Code, Time};
use prost::Message;

use super::Setup;
use super::probe::{Draws, Request};
use crate::choose::{Choices, Narrow, Replayed};
use crate::plane::{Habits, Net, Plane, Session};
use crate::shell::{Handle, Shell, State};
use crate::truth::Truth;

/// One channel and what is around it.
pub(super) struct Stage {
    now: Time,
    core: ChannelCore<Handle>,
    shell: Shell,
    servers: Vec<Server>,
    links: BTreeMap<StreamId, Link>,
    lookups: BTreeSet<DnsName>,
    snapshot: Arc<Snapshot<Handle>>,
    reports: Vec<Report>,
    /// Whether RPCs may fare differently than at the last look.
    is_stirred: bool,
}

/// Who answers at the other end of a stream.
enum Server {
    Remote(Arc<ServerConfig>, Box<Plane>),
    /// A part of the process, that no outage concerns.
    Local(Arc<ServerConfig>, Arc<LocalSet>),
}

struct Link {
    server: usize,
    /// Until when it may connect; `None`: it is open.
    connecting: Option<Time>,
    peer: Peer,
    to_server: Vec<Bytes>,
    to_client: Vec<Bytes>,
    /// Signs of life that were asked for and have not come.
    ping: bool,
    call: bool,
    /// Bytes came since the last request left.
    bytes: bool,
    /// When keepalive finds out that nothing gets through.
    keepalive: Option<Time>,
}

enum Peer {
    Remote(Session),
    Local(LocalServer),
}

/// What may be wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// It refuses connections, and those that were there are gone.
    Down,
    /// Packets to and from it vanish.
    BlackHole,
    /// It is alive, takes connections and requests, and sends no resource.
    Mute,
}

/// What becomes of an RPC that is made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Sent { cluster: String },
    OnPurpose(String),
    Waits(String),
    Fails(Code, String),
}

impl Stage {
    /// The beginning: the channel has just been made. `kept` is what last-good files have, and `faults` is wrong already.
    pub(super) fn new(setup: &Setup, kept: Option<Arc<LocalSet>>, faults: &[(usize, Fault)]) -> Self {
        let all = || Arc::new(all_of(setup));
        let server = |config: &Arc<ServerConfig>| match config.is_local() {
            true if config.is_last_good() => Server::Local(config.clone(), kept.clone().unwrap_or_default()),
            true => Server::Local(config.clone(), all()),
            false => {
                let resources = setup.resources.iter().cloned();
                let truth = Truth::foreign("1", resources, setup.bootstrap.guards.federation);
                Server::Remote(config.clone(), Box::new(Plane::new(Arc::new(truth), Habits::default())))
            }
        };
        let core = ChannelCore::new(&setup.target, setup.bootstrap.clone(), setup.client.clone(), setup.deps.clone());
        let mut stage = Self {
            now: START,
            core: core.with_warm_switching(Some(WARM_SWITCHING)),
            shell: Shell::default(),
            servers: setup.servers.iter().map(server).collect(),
            links: BTreeMap::new(),
            lookups: BTreeSet::new(),
            snapshot: Arc::new(Snapshot::empty()),
            reports: Vec::new(),
            is_stirred: true,
        };
        stage.begin(faults);
        stage
    }

    pub(super) fn age(&self) -> Duration {
        self.now.since(START)
    }

    /// What the client reported since the last call.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Option<Result<&Arc<XdsConfig>, String>> {
        self.core.config().map(|config| config.map_err(ToString::to_string))
    }

    /// What last-good files would have, if the configuration in force is whole.
    pub(super) fn kept(&self, excluded: &[ResourceType]) -> Option<Arc<LocalSet>> {
        let captures = self.core.capture()?;
        let captured = captures.into_values().flat_map(|capture| capture.resources);
        let kept = captured.filter(|captured| !excluded.contains(&captured.resource.resource_type));
        let value = |version, value| LocalValue { version, value };
        let resources = kept.map(|captured| (captured.resource, value(captured.version, captured.value)));
        Some(Arc::new(LocalSet { resources: resources.collect() }))
    }

    // --- Outages ---

    /// Something goes wrong with servers, with all of them at once; nothing can with those that are a part of the process.
    pub(super) fn begin(&mut self, faults: &[(usize, Fault)]) {
        for (server, fault) in faults {
            if let Some(Server::Remote(_, plane)) = self.servers.get_mut(*server) {
                match fault {
                    Fault::Down => plane.net = Net::Refusing,
                    Fault::BlackHole => plane.net = Net::BlackHole,
                    Fault::Mute => plane.mute = true,
                }
            }
        }
        for (server, fault) in faults {
            let hit = self.links.iter().filter(|(_, link)| link.server == *server);
            for id in hit.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.hit(id, *fault);
            }
        }
        self.settle();
    }

    /// What a fault of its server does to a stream.
    fn hit(&mut self, id: StreamId, fault: Fault) {
        match fault {
            Fault::Down => self.lose(id, CloseCause::ConnectionLost("connection reset".to_owned())),
            Fault::BlackHole => {
                if let Some(link) = self.links.get_mut(&id).filter(|link| link.connecting.is_none()) {
                    link.keepalive.get_or_insert(self.now + KEEPALIVE);
                }
            }
            Fault::Mute => {}
        }
    }

    /// Everything works again.
    pub(super) fn heal(&mut self) {
        for server in &mut self.servers {
            if let Server::Remote(_, plane) = server {
                (plane.net, plane.mute) = (Net::Up, false);
            }
        }
        self.links.values_mut().for_each(|link| link.keepalive = None);
        self.settle();
    }

    // --- Time ---

    /// Lets time pass until something happens, but not beyond `end`. Says whether anything did.
    pub(super) fn step(&mut self, end: Duration) -> bool {
        let links = self.links.values().flat_map(|link| [link.connecting, link.keepalive]).flatten();
        let next = links.chain(self.core.next_deadline()).chain(self.shell.next_deadline()).min();
        let end = START + end;
        let Some(next) = next.filter(|next| *next <= end) else {
            self.now = self.now.max(end);
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let over = self.links.iter().filter(|(_, link)| due(link.connecting) || due(link.keepalive));
        let over: Vec<_> = over.map(|(id, link)| (*id, link.connecting.is_some())).collect();
        for (id, is_connecting) in over {
            let cause = match is_connecting {
                true => CloseCause::ConnectFailed("timed out".to_owned()),
                false => CloseCause::ConnectionLost("keepalive timed out".to_owned()),
            };
            self.lose(id, cause);
        }
        let failed = self.shell.connections.iter().filter(|(_, c)| matches!(c.state, State::Failed(_)));
        let failed: Vec<_> = failed.map(|(id, _)| *id).collect();
        for id in failed {
            if let Some(news) = self.shell.advance(now, id) {
                self.input(Input::Connectivity(id, news));
            }
        }
        if due(self.core.next_deadline()) {
            self.input(Input::Timeout);
        }
        self.settle();
        true
    }

    // --- The core and what it asks for ---

    fn input(&mut self, input: Input) {
        let choices = Choices::default();
        let choose: &mut dyn Choose = &mut Narrow { source: Replayed::new(&choices), limit: 0 };
        let mut cx = Context { now: self.now, choose, helper: &mut self.shell };
        self.core.handle(&mut cx, input);
    }

    /// Does what the core says, and lets happen what follows, until there is nothing more.
    fn settle(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let choices = Choices::default();
            let choose: &mut dyn Choose = &mut Narrow { source: Replayed::new(&choices), limit: 0 };
            self.core.settle(&mut Context { now: self.now, choose, helper: &mut self.shell });
            while let Some(action) = self.core.poll_action() {
                self.act(action);
            }
            if !self.follow_up() {
                return;
            }
        }
    }

    fn act(&mut self, action: Action<Handle>) {
        match action {
            Action::OpenStream { stream, server, connect_timeout, .. } => self.open(stream, &server, connect_timeout),
            Action::Send(stream, bytes) => {
                if let Some(link) = self.links.get_mut(&stream) {
                    link.to_server.push(bytes);
                }
            }
            Action::Probe { stream, call } => {
                if let Some(link) = self.links.get_mut(&stream) {
                    link.ping = true;
                    link.call |= call;
                }
            }
            Action::CloseStream(stream) => drop(self.links.remove(&stream)),
            // Reports of load have no part in this: their streams stay unanswered.
            Action::Load(lrs::Action::Open { .. } | lrs::Action::Send(..) | lrs::Action::Close(_)) => {}
            Action::Resolve(name) => drop(self.lookups.insert(name)),
            Action::StopResolving(name) => drop(self.lookups.remove(&name)),
            Action::Report(report) => self.reports.push(report),
            Action::Publish(snapshot) => {
                self.snapshot = snapshot;
                self.is_stirred = true;
            }
        }
    }

    fn open(&mut self, stream: StreamId, server: &Arc<ServerConfig>, connect_timeout: Duration) {
        let is_it = |known: &Server| match known {
            Server::Remote(config, _) | Server::Local(config, _) => config.server_uri == server.server_uri,
        };
        let Some(index) = self.servers.iter().position(is_it) else { return };
        let peer = match &self.servers[index] {
            Server::Remote(..) => Peer::Remote(Session::default()),
            Server::Local(config, set) => Peer::Local(LocalServer::new(config.server_uri.as_str(), set.clone())),
        };
        let link = Link {
            server: index,
            connecting: Some(self.now + connect_timeout),
            peer,
            to_server: Vec::new(),
            to_client: Vec::new(),
            ping: false,
            call: false,
            bytes: false,
            keepalive: None,
        };
        self.links.insert(stream, link);
    }

    fn lose(&mut self, id: StreamId, cause: CloseCause) {
        self.links.remove(&id);
        self.input(Input::Xds(Event::Closed(id, cause)));
    }

    /// Lets one thing happen that is under way. Says whether there was any.
    fn follow_up(&mut self) -> bool {
        let ids: Vec<_> = self.links.keys().copied().collect();
        if ids.into_iter().any(|id| self.follow_stream(id)) {
            return true;
        }
        let under_way = self.shell.under_way().next();
        if let Some(id) = under_way
            && let Some(news) = self.shell.advance(self.now, id)
        {
            self.is_stirred = true;
            self.input(Input::Connectivity(id, news));
            return true;
        }
        if let Some(name) = self.lookups.pop_first() {
            // Each name has addresses of its own.
            let number = name.host.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
            let address = SocketAddr::from(([10, 2, number, 1], name.port));
            self.input(Input::Dns(name, Ok(vec![address])));
            return true;
        }
        false
    }

    fn follow_stream(&mut self, id: StreamId) -> bool {
        let Some(link) = self.links.get_mut(&id) else { return false };
        let net = match &self.servers[link.server] {
            Server::Remote(_, plane) => plane.net,
            Server::Local(..) => Net::Up,
        };
        if link.connecting.is_some() {
            match net {
                Net::BlackHole => return false,
                Net::Refusing => self.lose(id, CloseCause::ConnectFailed("connection refused".to_owned())),
                Net::Up => match (&link.peer, &self.servers[link.server]) {
                    (Peer::Local(_), Server::Local(_, set)) if set.resources.is_empty() => {
                        self.lose(id, CloseCause::ConnectFailed("there is no last-good file".to_owned()));
                    }
                    _ => {
                        link.connecting = None;
                        self.input(Input::Xds(Event::Opened(id)));
                    }
                },
            }
            return true;
        }
        if !link.to_server.is_empty() {
            let request = link.to_server.remove(0);
            link.bytes = false;
            // Written to a socket from which nobody reads it is lost.
            if net == Net::Up {
                match (&mut link.peer, &mut self.servers[link.server]) {
                    (Peer::Remote(session), Server::Remote(_, plane)) => {
                        if let Ok(request) = DiscoveryRequest::decode(request) {
                            plane.take(session, &request);
                        }
                    }
                    (Peer::Local(local), _) => link.to_client.extend(local.handle_request(&request).ok().flatten()),
                    (Peer::Remote(_), Server::Local(..)) => {}
                }
            }
            self.input(Input::Xds(Event::Sent(id)));
            return true;
        }
        if net != Net::Up {
            return false;
        }
        if let (Peer::Remote(session), Server::Remote(_, plane)) = (&mut link.peer, &self.servers[link.server]) {
            for kind in ResourceType::ALL {
                if plane.is_due(session, kind) {
                    link.to_client.extend(plane.respond(session, kind).map(|response| response.encode()));
                }
            }
        }
        if !link.to_client.is_empty() {
            let response = link.to_client.remove(0);
            link.bytes = true;
            self.input(Input::Xds(Event::Received(id, response)));
            return true;
        }
        if std::mem::take(&mut link.ping) {
            let sign = if link.bytes { Sign::Data } else { Sign::Pong };
            self.input(Input::Xds(Event::Alive(id, sign)));
            return true;
        }
        if std::mem::take(&mut link.call) {
            self.input(Input::Xds(Event::Alive(id, Sign::Data)));
            return true;
        }
        false
    }

    // --- RPCs ---

    /// Whether RPCs may fare differently than at the last call.
    pub(super) fn take_stirred(&mut self) -> bool {
        std::mem::take(&mut self.is_stirred)
    }

    /// Lets the connections be made that an RPC with these draws would ask for.
    pub(super) fn wake(&mut self, request: &Request, draws: Draws) {
        for _ in 0..MAX_WAKES {
            // One that is sent asks for connections that it does not need itself.
            let wake = match self.decide(request, draws, None) {
                Decided { wake: Some(wake), verdict: Verdict::Waits(_) } => wake,
                Decided { .. } => return,
            };
            self.input(Input::Wake(wake));
            self.settle();
        }
    }

    /// What becomes of an RPC that is made now, with these draws. `trace` hears how it comes to that.
    pub(super) fn verdict(&self, request: &Request, draws: Draws, trace: Option<&Trace>) -> Verdict {
        self.decide(request, draws, trace).verdict
    }

    fn decide(&self, request: &Request, mut draws: Draws, trace: Option<&Trace>) -> Decided {
        self.shell.lend();
        let rpc = Rpc { path: &request.path, headers: &request.headers };
        let mut chosen = Chosen::default();
        for _ in 0..MAX_WAKES {
            let decision = match trace {
                Some(trace) => self.snapshot.decide_traced(rpc, &mut chosen, &mut draws, trace),
                None => self.snapshot.decide_again(rpc, &mut chosen, &mut draws),
            };
            return match decision {
                Decision::Send(to) => {
                    let cluster = to.cluster.to_string();
                    Decided { verdict: Verdict::Sent { cluster }, wake: to.wake }
                }
                Decision::Wait(failure, wake) => Decided { verdict: Verdict::Waits(failure.message), wake },
                Decision::Fail(failure) => {
                    Decided { verdict: Verdict::Fails(failure.code, failure.message), wake: None }
                }
                // Limits of clusters and drops are there to fail RPCs.
                Decision::Drop(failure) => Decided { verdict: Verdict::OnPurpose(failure.message), wake: None },
                Decision::Inject(effects) => match effects.iter().find_map(abort) {
                    Some(code) => {
                        let what = format!("a fault filter ends it with {}", code.name());
                        Decided { verdict: Verdict::OnPurpose(what), wake: None }
                    }
                    None => continue,
                },
            };
        }
        Decided { verdict: Verdict::Waits("faults without end".to_owned()), wake: None }
    }
}

fn abort(injected: &Injected) -> Option<Code> {
    match injected.effect {
        Effect::Abort(code) => Some(code),
        Effect::Delay(_) => None,
    }
}

struct Decided {
    verdict: Verdict,
    wake: Option<mainstay_lb::Wake>,
}

/// Everything that a directory has, for servers that are directories.
fn all_of(setup: &Setup) -> LocalSet {
    let truth = Truth::foreign("1", setup.resources.iter().cloned(), setup.bootstrap.guards.federation);
    let value = |bytes: &Bytes| LocalValue { version: "1".into(), value: bytes.clone() };
    LocalSet { resources: truth.resources.values().map(|told| (told.key.clone(), value(&told.bytes))).collect() }
}

/// When time begins.
const START: Time = Time::from_nanos(1 << 62);

/// As channels do by default.
const WARM_SWITCHING: Duration = Duration::from_secs(5);

/// How long a connection through which nothing comes is believed in.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// No event has more consequences than this; a resource has a few.
const MAX_ROUNDS: usize = 1_000_000;

/// So often a call may ask for a connection before it is left waiting.
const MAX_WAKES: usize = 64;
