//! The world: one channel, its control planes, the network, DNS and backends, one event at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_lb::{Action, CallTracker, ChannelCore, Connectivity, Context, Decision, Ending, Input, Rpc, Snapshot};
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{self, CloseCause, Report, StreamId};
use mainstay_xds::deps::DnsName;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::{Choose, Code, Time};
use prost::Message;

use crate::choose::Narrow;
use crate::fingerprint::Fingerprint;
use crate::invariant::{Invariant, Violation};
use crate::oracle::config::ConfigOracle;
use crate::oracle::picture::Picture;
use crate::oracle::{Oracle, Rules, Seen, View};
use crate::plane::{Net, Plane, Response, Session};
use crate::scenario::{Grain, Scenario};
use crate::shell::{Handle, Shell, State};
use crate::traffic;

mod drill;
mod end;
mod events;
mod loads;
mod side;
mod streams;
pub(crate) mod tell;

pub use events::Event;
use loads::Loads;
use side::Side;

/// One channel and everything around it.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) now: Time,
    core: ChannelCore<Handle>,
    pub(crate) shell: Shell,
    planes: Vec<Plane>,
    links: BTreeMap<LinkId, Link>,
    lookups: BTreeSet<DnsName>,
    snapshot: Arc<Snapshot<Handle>>,
    /// Configurations that RPCs may still go by, while newer ones get warm, and until when.
    recent: Vec<(Time, Arc<Picture>)>,
    /// RPCs that were sent and have not ended.
    rpcs: VecDeque<(SocketAddr, Arc<CallTracker>)>,
    /// Clusters that somebody subscribed to, and how often.
    subscriptions: BTreeMap<String, u32>,
    /// Another client of the process, with watchers of its own: `#server`.
    side: Option<Side>,
    pub(crate) loads: Loads,
    /// Whether RPCs of all kinds, and outages of backends, are tried when everything is well again.
    is_drilled: bool,
    /// What may still go wrong.
    faults_left: u32,
    delays_left: u32,
    backend_faults_left: u32,
    /// Judges, unless nothing but bytes is known of the resources.
    oracle: Option<Box<(Oracle, ConfigOracle)>>,
    stats: Stats,
    /// What the core did in this step.
    actions: usize,
    /// Whether the core was told in this step that something is due.
    awake: bool,
    transcript: Option<Vec<String>>,
    /// What the client reported, if anybody wants to know.
    reports: Option<Vec<Report>>,
}

/// Whose stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// The channel's.
    Channel,
    /// That of the other client.
    Side,
}

/// A stream of one of the clients.
pub type LinkId = (Who, StreamId);

/// A stream and the connection under it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    plane: usize,
    /// Until when it may connect; `None`: it is open.
    connecting: Option<Time>,
    session: Session,
    /// Given to the transport, and not taken by it yet.
    unsent: Option<Bytes>,
    to_plane: VecDeque<Bytes>,
    to_client: VecDeque<Arc<Response>>,
    /// Signs of life that were asked for and have not come: a PONG, an answer.
    ping: bool,
    call: bool,
    /// A sign of life was asked for at some time.
    probed: bool,
    /// Bytes came since the last request left.
    bytes: bool,
    /// The other end is gone and nobody told us.
    dead: bool,
    /// When keepalive finds out that nothing gets through.
    keepalive: Option<Time>,
    /// The client closed it; what is on the way to the client may still arrive.
    closed: bool,
}

/// What a world has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Faults among them.
    pub faults: u64,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Decisions about RPCs.
    pub rpcs: u64,
    /// RPCs that could be sent.
    pub rpcs_sent: u64,
    /// Configurations published.
    pub configs: u64,
    /// Falls to a lower server.
    pub fallbacks: u64,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.faults += other.faults;
        self.virtual_time += other.virtual_time;
        self.rpcs += other.rpcs;
        self.rpcs_sent += other.rpcs_sent;
        self.configs += other.configs;
        self.fallbacks += other.fallbacks;
    }
}

/// When a world begins. The clock is far from zero, so that times are told from other numbers
/// by their size (see [`Fingerprint`]).
const START: Time = Time::from_nanos(1 << 62);

/// How long warm switching, or connections that get ready, may keep RPCs at what was in force.
const WARM_BOUND: Duration = Duration::from_secs(5);

/// How long a connection through which nothing comes is believed in.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// So many actions may follow from one event, for each resource, stream and connection that there is.
const ACTIONS_PER_THING: usize = 8;

// === impl World ===

impl World {
    /// The world at its beginning: the channel has just been made.
    ///
    /// # Errors
    /// If something that must hold does not.
    pub fn new(scenario: Arc<Scenario>, choose: &mut dyn Choose) -> Result<Self, Violation> {
        Self::start(scenario, choose, false)
    }

    /// The same, with a transcript of everything that happens.
    ///
    /// # Errors
    /// If something that must hold does not.
    pub fn with_transcript(scenario: Arc<Scenario>, choose: &mut dyn Choose) -> Result<Self, Violation> {
        Self::start(scenario, choose, true)
    }

    /// The same, with the reports of the client kept for [`World::take_reports`].
    pub(crate) fn observed(scenario: Arc<Scenario>, choose: &mut dyn Choose) -> Result<Self, Violation> {
        let mut world = Self::start(scenario, choose, false)?;
        world.reports = Some(Vec::new());
        Ok(world)
    }

    /// The same without the drills at its end, which take most of a short life and need no choice.
    pub(crate) fn undrilled(scenario: Arc<Scenario>, choose: &mut dyn Choose) -> Result<Self, Violation> {
        let mut world = Self::start(scenario, choose, false)?;
        world.is_drilled = false;
        Ok(world)
    }

    fn start(scenario: Arc<Scenario>, choose: &mut dyn Choose, transcript: bool) -> Result<Self, Violation> {
        let planes = scenario.planes.iter().map(|spec| {
            let truth = spec.editions.first().cloned().unwrap_or_default();
            Plane::new(truth, spec.habits)
        });
        let rules = Arc::new(Rules::new(&scenario));
        let is_known = scenario.planes.iter().all(|plane| plane.is_known());
        let mut world = Self {
            now: START,
            core: scenario.core(),
            shell: Shell { limited: scenario.is_limited(), ..Shell::default() },
            planes: planes.collect(),
            links: BTreeMap::new(),
            lookups: BTreeSet::new(),
            snapshot: Arc::new(Snapshot::empty()),
            recent: Vec::new(),
            rpcs: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            side: (!scenario.side.is_empty()).then(|| Side::new(&scenario, &rules)),
            loads: Loads::default(),
            is_drilled: true,
            faults_left: scenario.limits.faults,
            delays_left: scenario.limits.delays,
            backend_faults_left: scenario.limits.backend_faults,
            oracle: is_known.then(|| Box::new((Oracle::new(rules), ConfigOracle::new(&scenario)))),
            stats: Stats::default(),
            actions: 0,
            awake: false,
            transcript: transcript.then(Vec::new),
            reports: None,
            scenario,
        };
        world.settle(choose)?;
        world.check(choose)?;
        Ok(world)
    }

    /// Lets one of [`World::events`] happen, and everything that follows from it at once. Then checks what must hold.
    ///
    /// # Errors
    /// If something that must hold does not.
    pub fn apply(&mut self, choose: &mut dyn Choose, event: &Event) -> Result<(), Violation> {
        // A coarse world has no choices but its events.
        let limit = if self.scenario.grain == Grain::Coarse { 0 } else { u64::MAX };
        let choose = &mut Narrow { source: choose, limit };
        self.note(|world| world.tell(event));
        match event {
            Event::Together(count) => {
                for _ in 0..*count {
                    let Some(next) = self.pending().into_iter().next() else { break };
                    self.note(|world| world.tell(&next));
                    self.stats.events += 1;
                    self.happen(choose, &next)?;
                }
                self.settle(choose)?;
                self.check(choose)
            }
            Event::Lull => {
                for _ in 0..MAX_LULL {
                    let Some(next) = self.pending().into_iter().next() else { break };
                    self.note(|world| world.tell(&next));
                    self.step(choose, &next)?;
                }
                Ok(())
            }
            event => self.step(choose, event),
        }
    }

    fn step(&mut self, choose: &mut dyn Choose, event: &Event) -> Result<(), Violation> {
        self.stats.events += 1;
        self.happen(choose, event)?;
        self.settle(choose)?;
        self.check(choose)
    }

    fn happen(&mut self, choose: &mut dyn Choose, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Connect(id) => self.connect(choose, *id),
            Event::Sent(id) => self.sent(choose, *id),
            Event::Arrive(id) => self.arrive(*id),
            Event::Serve(id, kind) => {
                if let Some(link) = self.links.get_mut(id) {
                    let response = self.planes[link.plane].respond(&mut link.session, *kind);
                    link.to_client.extend(response.map(Arc::new));
                    if self.scenario.grain == Grain::Coarse {
                        self.deliver(choose, *id);
                    }
                }
            }
            Event::Deliver(id) => self.deliver(choose, *id),
            Event::DeliverLate(id) => self.deliver_late(choose, *id)?,
            Event::Pong(id) | Event::Answer(id) | Event::Trickle(id) => self.show_life(choose, event, *id),
            Event::Load(id) => self.load_goes_on(choose, *id),
            Event::Resolve(name, works) => self.resolved(choose, name.clone(), *works),
            Event::Backend(id) => {
                if let Some(news) = self.shell.advance(self.now, *id) {
                    self.input(choose, Input::Connectivity(*id, news));
                }
            }
            Event::Time => {
                if !self.pending().is_empty() {
                    self.delays_left = self.delays_left.saturating_sub(1);
                }
                self.pass_time(choose);
            }
            Event::Stop(seconds) => self.stop(*seconds),
            Event::Rpc(path) => self.rpc(choose, *path),
            Event::RpcEnd => self.end_rpc(),
            Event::Subscribe(cluster) => self.subscribe(cluster, true),
            Event::Release(cluster) => self.subscribe(cluster, false),
            Event::Watch(index) => self.watch(*index),
            Event::Unwatch => self.unwatch(),
            Event::Impatience => {
                if let Some(side) = &mut self.side {
                    side.client.reset_backoff();
                    side.oracle.forgive(self.now);
                }
            }
            Event::Publish(index) => {
                let plane = &mut self.planes[*index];
                if let Some(truth) = self.scenario.planes[*index].editions.get(plane.edition + 1) {
                    plane.edition += 1;
                    plane.truth = truth.clone();
                }
            }
            Event::Repeat(id, kind) => {
                if let Some(link) = self.links.get_mut(id) {
                    Plane::repeat(&mut link.session, *kind);
                    self.delays_left = self.delays_left.saturating_sub(1);
                }
            }
            Event::Heal(index) => self.heal(*index),
            Event::BackendUp(address) => drop(self.shell.down.remove(address)),
            Event::BackendDown(address) => self.backend_down(choose, *address),
            fault => self.fault(choose, fault),
        }
        Ok(())
    }

    fn fault(&mut self, choose: &mut dyn Choose, event: &Event) {
        self.faults_left = self.faults_left.saturating_sub(1);
        self.stats.faults += 1;
        match event {
            Event::Kill(index) => {
                self.planes[*index].net = Net::Refusing;
                self.reset_links(choose, *index);
            }
            Event::Restart(index) => {
                self.planes[*index].restart();
                self.reset_links(choose, *index);
            }
            Event::BlackHole(index) => {
                self.planes[*index].net = Net::BlackHole;
                let keepalive = self.now + KEEPALIVE;
                for id in self.open_links(*index) {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.keepalive.get_or_insert(keepalive);
                    }
                }
            }
            Event::Mute(index) => self.planes[*index].mute = true,
            Event::Cut(id) => {
                self.lose(choose, *id, CloseCause::Ended { code: 14, message: "restarting".to_owned() });
            }
            Event::HalfOpen(id) => {
                if let Some(link) = self.links.get_mut(id) {
                    link.dead = true;
                    link.keepalive.get_or_insert(self.now + KEEPALIVE);
                }
            }
            Event::Garbage((who, id)) => {
                if let Some(link) = self.links.get_mut(&(*who, *id)) {
                    link.bytes = true;
                }
                if let Some(oracle) = self.oracle_of(*who) {
                    oracle.nonsense(*id);
                }
                let nonsense = Bytes::from_static(b"\xff\xffnonsense");
                self.xds(choose, *who, client::Event::Received(*id, nonsense));
            }
            _ => {}
        }
    }

    fn reset_links(&mut self, choose: &mut dyn Choose, plane: usize) {
        for id in self.open_links(plane) {
            self.lose(choose, id, CloseCause::ConnectionLost("connection reset".to_owned()));
        }
        self.lose_loads(choose, plane);
    }

    // --- Time, DNS, backends ---

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let links = self.links.values().filter(|link| !link.closed);
        let links = links.flat_map(|link| [link.connecting, link.keepalive]).flatten();
        let side = self.side.as_ref().and_then(Side::deadline);
        links.chain(self.core.next_deadline()).chain(side).chain(self.shell.next_deadline()).min()
    }

    fn pass_time(&mut self, choose: &mut dyn Choose) {
        let Some(next) = self.next_deadline() else { return };
        self.now = self.now.max(next);
        let now = self.now;
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let over: Vec<_> = (self.links.iter())
            .filter(|(_, link)| !link.closed && (due(link.connecting) || due(link.keepalive)))
            .map(|(id, link)| (*id, link.connecting.is_some()))
            .collect();
        for (id, connecting) in over {
            let cause = if connecting {
                CloseCause::ConnectFailed("timed out".to_owned())
            } else {
                CloseCause::ConnectionLost("keepalive timed out".to_owned())
            };
            self.lose(choose, id, cause);
        }
        for id in self.shell.connections.keys().copied().collect::<Vec<_>>() {
            let failed = |connection: &crate::shell::Connection| matches!(connection.state, State::Failed(_));
            if self.shell.connections.get(&id).is_some_and(failed)
                && let Some(news) = self.shell.advance(now, id)
            {
                self.input(choose, Input::Connectivity(id, news));
            }
        }
        if due(self.core.next_deadline()) {
            self.input(choose, Input::Timeout);
            self.awake = true;
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.0.timers_ran();
        }
        if let Some(side) = &mut self.side {
            side.client.handle_timeout(now, choose);
            side.oracle.timers_ran();
        }
    }

    /// Our process stops for so long: what was due meanwhile is late, and what came meanwhile waits to be read.
    fn stop(&mut self, seconds: u64) {
        self.faults_left = self.faults_left.saturating_sub(1);
        self.stats.faults += 1;
        self.now = self.now + Duration::from_secs(seconds);
        if let Some(oracle) = &mut self.oracle {
            oracle.0.woke(self.now);
        }
        if let Some(side) = &mut self.side {
            side.oracle.woke(self.now);
        }
    }

    fn resolved(&mut self, choose: &mut dyn Choose, name: DnsName, works: bool) {
        self.lookups.remove(&name);
        // Each name has addresses of its own.
        let number = name.host.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let address = |last| SocketAddr::from(([10, 2, number, last], name.port));
        let answer = if works { Ok(vec![address(1), address(2)]) } else { Err("no such name".to_owned()) };
        if let Some(oracle) = &mut self.oracle {
            oracle.1.resolved(&name, &answer);
        }
        self.input(choose, Input::Dns(name, answer));
    }

    fn backend_down(&mut self, choose: &mut dyn Choose, address: SocketAddr) {
        self.backend_faults_left = self.backend_faults_left.saturating_sub(1);
        self.stats.faults += 1;
        self.shell.down.insert(address);
        self.shell.troubled.insert(address);
        let mut lost = Vec::new();
        for (id, connection) in &mut self.shell.connections {
            if connection.handle.address == address && connection.state == State::Ready {
                connection.state = State::Idle;
                lost.push(*id);
            }
        }
        for id in lost {
            self.input(choose, Input::Connectivity(id, Connectivity::Idle));
        }
    }

    fn subscribe(&mut self, cluster: &str, begins: bool) {
        let count = self.subscriptions.entry(cluster.to_owned()).or_default();
        if begins {
            *count += 1;
            self.core.subscribe_cluster(self.now, cluster);
        } else {
            *count -= 1;
            self.core.release_cluster(self.now, cluster);
        }
        self.subscriptions.retain(|_, count| *count > 0);
        if let Some(oracle) = &mut self.oracle {
            oracle.1.subscribed(self.subscriptions.keys().cloned().collect());
        }
    }

    // --- RPCs ---

    fn rpc(&mut self, choose: &mut dyn Choose, path: u8) {
        self.shell.lend();
        self.stats.rpcs += 1;
        let path = path_of(path);
        let headers = http::HeaderMap::new();
        let decision = self.snapshot.decide(Rpc { path, headers: &headers }, choose);
        match decision {
            Decision::Send(to) => {
                self.stats.rpcs_sent += 1;
                self.loads.picked(&to.origin.cluster);
                let (address, wake) = (to.subchannel.address, to.wake);
                self.rpcs.push_back((address, Arc::new(to.tracker)));
                if let Some(wake) = wake {
                    self.input(choose, Input::Wake(wake));
                }
            }
            Decision::Wait(_, None) | Decision::Fail(_) | Decision::Drop(_) | Decision::Inject(_) => {}
            Decision::Wait(_, Some(wake)) => self.input(choose, Input::Wake(wake)),
        }
    }

    fn end_rpc(&mut self) {
        if let Some((_, tracker)) = self.rpcs.pop_front()
            && let Some(tracker) = Arc::into_inner(tracker)
        {
            tracker.end(Ending { code: Code::Ok, trailers: None });
        }
    }

    /// Every RPC ends well.
    fn end_rpcs(&mut self) {
        while !self.rpcs.is_empty() {
            self.end_rpc();
        }
    }

    /// Checks what RPCs would see right now.
    fn check_traffic(&mut self, choose: &mut dyn Choose, grain: Grain) -> Result<(), Violation> {
        let Some(oracle) = &self.oracle else { return Ok(()) };
        self.shell.lend();
        let headers = http::HeaderMap::new();
        let in_force = match self.core.config() {
            None => traffic::InForce::Nothing,
            Some(Err(_)) => traffic::InForce::Error,
            Some(Ok(_)) => traffic::InForce::Config(oracle.1.picture.as_deref()),
        };
        for path in [path_of(0), path_of(1)] {
            self.stats.rpcs += 1;
            let decision = self.snapshot.decide(Rpc { path, headers: &headers }, choose);
            traffic::check(path, &decision, in_force, &self.recent, &self.shell, grain)?;
            if let Decision::Send(to) = decision {
                self.stats.rpcs_sent += 1;
                to.tracker.withdraw(); // It was only a question.
            }
        }
        let counted: u32 = self.shell.counters.values().map(|counter| counter.in_flight()).sum();
        let in_flight = self.rpcs.len();
        Invariant::Breaker.holds(counted as usize == in_flight, || {
            format!("circuit breakers count {counted} RPCs, and {in_flight} are in flight")
        })
    }

    // --- The core ---

    pub(crate) fn input(&mut self, choose: &mut dyn Choose, input: Input) {
        let mut cx = Context { now: self.now, choose, helper: &mut self.shell };
        self.core.handle(&mut cx, input);
    }

    /// News of a stream of one of the clients.
    fn xds(&mut self, choose: &mut dyn Choose, who: Who, event: client::Event) {
        match (who, &mut self.side) {
            (Who::Side, Some(side)) => side.client.handle_event(self.now, choose, event),
            _ => self.input(choose, Input::Xds(event)),
        }
    }

    pub(crate) fn planes(&self) -> &[Plane] {
        &self.planes
    }

    fn oracle_of(&mut self, who: Who) -> Option<&mut Oracle> {
        match who {
            Who::Channel => self.oracle.as_mut().map(|oracle| &mut oracle.0),
            Who::Side => self.side.as_mut().map(|side| &mut side.oracle),
        }
    }

    /// Does what the core says until it has nothing more to say.
    fn settle(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        self.actions = 0;
        loop {
            self.core.settle(&mut Context { now: self.now, choose: &mut *choose, helper: &mut self.shell });
            while let Some(action) = self.core.poll_action() {
                self.actions += 1;
                self.act(action)?;
            }
            self.settle_side()?;
            if self.scenario.grain == Grain::Fine || !self.follow_up(choose) {
                break;
            }
        }
        // Whatever was due is done: nothing spins.
        let due = self.core.next_deadline();
        let spins = std::mem::take(&mut self.awake) && due.is_some_and(|due| due <= self.now);
        Invariant::Work.holds(!spins, || format!("something is still due at {due:?}, and it is {:?}", self.now))?;
        let things =
            self.links.len() + self.shell.connections.len() + self.oracle.as_ref().map_or(0, |o| o.0.entries.len());
        let bound = ACTIONS_PER_THING * (8 + things);
        Invariant::Work.holds(self.actions <= bound, || {
            format!("{} actions followed from one event; {things} things are there", self.actions)
        })?;
        Ok(())
    }

    /// In a coarse world, lets happen at once what is no choice there. Says whether there was anything.
    fn follow_up(&mut self, choose: &mut dyn Choose) -> bool {
        let unsent = self.links.iter().find(|(_, link)| link.unsent.is_some()).map(|(id, _)| *id);
        if let Some(id) = unsent {
            self.sent(choose, id);
            return true;
        }
        let arrives = |link: &Link| !link.to_plane.is_empty() && !link.dead && self.planes[link.plane].net == Net::Up;
        if let Some(id) = self.links.iter().find(|(_, link)| arrives(link)).map(|(id, _)| *id) {
            self.arrive(id);
            return true;
        }
        if let Some(event) = self.signs_of_life().into_iter().next() {
            if let Event::Pong(id) | Event::Answer(id) = event {
                self.show_life(choose, &event, id);
            }
            return true;
        }
        let under_way = self.shell.under_way().next();
        if let Some(id) = under_way
            && let Some(news) = self.shell.advance(self.now, id)
        {
            self.input(choose, Input::Connectivity(id, news));
            return true;
        }
        false
    }

    fn act(&mut self, action: Action<Handle>) -> Result<(), Violation> {
        match action {
            Action::OpenStream { stream, server, connect_timeout, .. } => {
                self.open_stream(Who::Channel, stream, &server, connect_timeout)
            }
            Action::Send(stream, bytes) => self.send(Who::Channel, stream, bytes),
            Action::Probe { stream, call } => self.probe(Who::Channel, stream, call),
            Action::CloseStream(stream) => self.close_stream(Who::Channel, stream),
            Action::Load(action) => self.load(action),
            Action::Resolve(name) => {
                self.note(|_| format!("  > resolve {name}"));
                let is_new = self.lookups.insert(name.clone());
                Invariant::Work.holds(is_new, || format!("{name} is looked up twice at a time"))
            }
            Action::StopResolving(name) => {
                let was_there = self.lookups.remove(&name);
                Invariant::Leak.holds(was_there, || format!("{name} is not looked up, and that was to stop"))
            }
            Action::Report(report) => self.report(Who::Channel, report),
            Action::Publish(snapshot) => {
                self.stats.configs += 1;
                self.note(|world| format!("  = {}", tell::config(&world.core)));
                self.snapshot = snapshot;
                Ok(())
            }
        }
    }

    fn open_stream(
        &mut self,
        who: Who,
        stream: StreamId,
        server: &ServerConfig,
        connect_timeout: Duration,
    ) -> Result<(), Violation> {
        let plane = self.scenario.plane_of(server);
        let plane = plane.ok_or_else(|| Invariant::Attempts.broken("an attempt at an unknown server"))?;
        self.note(|_| format!("  > {}open {}", who.tell(), server.server_uri));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.open(now, plane, stream, connect_timeout)?;
        }
        let link = Link {
            plane,
            connecting: Some(self.now + connect_timeout),
            session: Session::default(),
            unsent: None,
            to_plane: VecDeque::new(),
            to_client: VecDeque::new(),
            ping: false,
            call: false,
            probed: false,
            bytes: false,
            dead: false,
            keepalive: None,
            closed: false,
        };
        self.links.insert((who, stream), link);
        Ok(())
    }

    fn send(&mut self, who: Who, stream: StreamId, bytes: Bytes) -> Result<(), Violation> {
        let request = DiscoveryRequest::decode(bytes.clone());
        let request = request.map_err(|error| Invariant::Answers.broken(format!("not a request: {error}")))?;
        self.note(|world| format!("  > {}{}: {}", who.tell(), world.server_of((who, stream)), tell::request(&request)));
        if let Some(oracle) = self.oracle_of(who) {
            oracle.send(stream, &request)?;
        }
        if let Some(link) = self.links.get_mut(&(who, stream)) {
            link.unsent = Some(bytes);
        }
        Ok(())
    }

    fn probe(&mut self, who: Who, stream: StreamId, call: bool) -> Result<(), Violation> {
        self.note(|world| format!("  > {}{}: PING, call: {call}", who.tell(), world.server_of((who, stream))));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.probe(now, stream, call)?;
        }
        if let Some(link) = self.links.get_mut(&(who, stream)) {
            (link.ping, link.probed) = (true, true);
            link.call |= call;
        }
        Ok(())
    }

    fn close_stream(&mut self, who: Who, stream: StreamId) -> Result<(), Violation> {
        self.note(|world| format!("  > {}close {}", who.tell(), world.server_of((who, stream))));
        if let Some(oracle) = self.oracle_of(who) {
            oracle.close(stream)?;
        }
        if let Some(mut link) = self.links.remove(&(who, stream))
            && !link.to_client.is_empty()
        {
            link.closed = true;
            self.links.insert((who, stream), link);
        }
        Ok(())
    }

    fn report(&mut self, who: Who, report: Report) -> Result<(), Violation> {
        self.stats.fallbacks += u64::from(matches!(report, Report::FellBack(..)));
        self.note(|_| format!("  ! {}{}", who.tell(), report));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.report(now, &report)?;
        }
        if let Some(reports) = self.reports.as_mut().filter(|_| who == Who::Channel) {
            reports.push(report);
        }
        Ok(())
    }

    fn check(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        self.stats.virtual_time = self.now.since(START);
        if let Some(misuse) = self.shell.misuse.take() {
            return Err(Invariant::Connections.broken(misuse));
        }
        let Some(mut oracle) = self.oracle.take() else { return Ok(()) };
        let before = oracle.1.picture.clone();
        let quiet = self.quiet_links(Who::Channel);
        let is_quiet =
            quiet.len() == self.links.keys().filter(|(who, _)| *who == Who::Channel).count() && self.lookups.is_empty();
        let dump = self.core.client().dump();
        let servers = self.core.client().server_states();
        let view = View { now: self.now, dump: &dump, servers: &servers, quiet: &quiet };
        let (client, config) = &mut *oracle;
        let counted: usize = self.core.client().count_resources().iter().map(|count| count.count).sum();
        let verdict = client
            .check(&view)
            .and_then(|()| config.check(client, &view, self.core.config(), is_quiet, !self.lookups.is_empty()))
            .and_then(|()| {
                Invariant::States.holds(counted == dump.len(), || {
                    format!("{counted} resources are counted, and {} are shown", dump.len())
                })
            });
        self.oracle = Some(oracle);
        verdict?;
        self.check_side()?;
        let now = self.oracle.as_ref().and_then(|oracle| oracle.1.picture.as_ref());
        if let Some(before) = before
            && !now.is_some_and(|now| Arc::ptr_eq(now, &before))
        {
            self.recent.push((self.now + WARM_BOUND, before));
            self.loads.reconfigured();
        }
        self.recent.retain(|(until, _)| self.now <= *until);
        self.check_connections(is_quiet)?;
        self.check_traffic(choose, self.scenario.grain)
    }

    /// There is one connection to each address at most, and none to an address that nobody needs.
    fn check_connections(&self, is_quiet: bool) -> Result<(), Violation> {
        if !is_quiet {
            return Ok(());
        }
        let picture = self.oracle.as_ref().and_then(|oracle| oracle.1.picture.as_ref());
        let pictures = picture.into_iter().chain(self.recent.iter().map(|(_, recent)| recent));
        let needed: BTreeSet<SocketAddr> = pictures.flat_map(|picture| picture.all_addresses()).collect();
        let mut seen = BTreeSet::new();
        for connection in self.shell.connections.values() {
            let address = connection.handle.address;
            Invariant::Connections.holds(seen.insert(address), || format!("two connections to {address}"))?;
            Invariant::Connections
                .holds(needed.contains(&address), || format!("{address} is connected and not needed"))?;
        }
        Ok(())
    }

    /// The open streams of a client through which nothing is under way, and what is at their other end.
    fn quiet_links(&self, who: Who) -> BTreeMap<StreamId, Seen<'_>> {
        let is_quiet = |link: &Link| {
            link.connecting.is_none()
                && !link.closed
                && link.unsent.is_none()
                && link.to_plane.is_empty()
                && link.to_client.is_empty()
                && !link.session.has_news(&self.planes[link.plane])
        };
        let links = self.links.iter().filter(|((owner, _), link)| *owner == who && is_quiet(link));
        let seen = |link: &Link| {
            let plane = &self.planes[link.plane];
            Seen { truth: (plane.is_fine() && !link.dead).then_some(&**plane.truth()) }
        };
        links.map(|((_, id), link)| (*id, seen(link))).collect()
    }

    // --- Looking at it ---

    /// The snapshot that RPCs use.
    pub(crate) fn snapshot(&self) -> &Snapshot<Handle> {
        &self.snapshot
    }

    /// What happens next if nothing goes wrong; nothing if that is after `end`.
    pub(crate) fn fair_event(&self, end: Duration) -> Option<Event> {
        let due = self.next_deadline().is_some_and(|next| next.since(START) <= end);
        self.pending().into_iter().next().or(due.then_some(Event::Time))
    }

    /// What happens next at this moment, if nothing goes wrong.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.pending().into_iter().next()
    }

    /// The open stream of the channel to a control plane.
    pub(crate) fn link_to(&self, plane: usize) -> Option<LinkId> {
        self.open_links(plane).into_iter().find(|(who, _)| *who == Who::Channel)
    }

    /// The virtual host in force.
    pub(crate) fn host_in_force(&self) -> Option<String> {
        Some(self.core.config()?.ok()?.virtual_host.name.clone())
    }

    /// The addresses of a cluster in force.
    pub(crate) fn addresses_in_force(&self, cluster: &str) -> BTreeSet<SocketAddr> {
        let picture = self.oracle.as_ref().and_then(|oracle| oracle.1.picture.as_ref());
        picture.map_or_else(BTreeSet::new, |picture| picture.addresses(cluster))
    }

    /// The control plane that a cluster came from.
    pub(crate) fn teller_of(&self, cluster: &str) -> Option<usize> {
        let key = ResourceKey { resource_type: ResourceType::Cluster, name: cluster.into() };
        let entry = self.oracle.as_ref()?.0.entries.get(&key)?;
        entry.held.as_ref().map(|held| held.plane)
    }

    /// What is in force, in words.
    pub(crate) fn says(&self) -> String {
        tell::config(&self.core)
    }

    /// Lets time pass in which nothing happens.
    pub(crate) fn sleep_until(&mut self, age: Duration) {
        self.now = self.now.max(START + age);
    }

    /// The reports since the last call, if it was asked to keep them.
    pub(crate) fn take_reports(&mut self) -> Vec<Report> {
        self.reports.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What it has seen.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// See [`Scenario::calm`].
    pub(crate) fn calm(&self) -> u64 {
        self.scenario.calm
    }

    /// How long it has been there.
    pub fn age(&self) -> Duration {
        self.now.since(START)
    }

    /// What happened so far, if a transcript is kept.
    pub fn transcript(&self) -> &[String] {
        self.transcript.as_deref().unwrap_or_default()
    }

    /// A number that is the same for worlds with the same future, as far as that can be told cheaply.
    pub fn fingerprint(&self) -> u128 {
        let mut hasher = Fingerprint::new(self.now);
        self.core.hash(&mut hasher);
        self.shell.key().hash(&mut hasher);
        for plane in &self.planes {
            plane.key().hash(&mut hasher);
        }
        for link in self.links.values() {
            link.hash(&mut hasher);
        }
        self.lookups.hash(&mut hasher);
        (self.faults_left, self.delays_left, self.backend_faults_left).hash(&mut hasher);
        hasher.value()
    }

    pub(crate) fn server_of(&self, id: LinkId) -> &str {
        let plane = self.links.get(&id).map(|link| link.plane);
        plane.map_or("?", |plane| &self.scenario.planes[plane].server.server_uri)
    }

    fn note(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.transcript.is_some() {
            let line = line(self);
            let released = std::mem::take(&mut self.shell.log);
            let lines = released.into_iter().map(|line| format!("  > {line}")).chain([line]);
            if let Some(transcript) = &mut self.transcript {
                transcript.extend(lines);
            }
        } else {
            self.shell.log.clear();
        }
    }
}

impl Who {
    /// In transcripts.
    pub(crate) fn tell(self) -> &'static str {
        match self {
            Self::Channel => "",
            Self::Side => "(#server) ",
        }
    }
}

/// Path of an RPC.
pub(crate) fn path_of(number: u8) -> &'static str {
    if number == 0 { "/0/method" } else { "/1/method" }
}

/// At most so many events in one lull.
const MAX_LULL: usize = 600;
