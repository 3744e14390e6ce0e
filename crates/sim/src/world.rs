//! The world: one channel, its control planes, the network, DNS and backends, one event at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_lb::{Action, ChannelCore, Connectivity, Context, Decision, Input, Listeners, Rpc, Snapshot};
use mainstay_xds::client::{self, CloseCause, Report, ResourceStatus, StreamId};
use mainstay_xds::deps::{DnsName, XdsConfig};
use mainstay_xds::{Choose, Time};
use prost::Message;

use crate::choose::Narrow;
use crate::fingerprint::Fingerprint;
use crate::invariant::{Invariant, Violation};
use crate::model::{Model, View};
use crate::mutant::{Memory, Mutant};
use crate::plane::{Net, Plane, Response, Session};
use crate::scenario::{Grain, Scenario};
use crate::shell::{Handle, Shell, State};
use crate::tell;

mod end;
mod events;
mod streams;

pub use events::Event;

/// One channel and everything around it.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) now: Time,
    core: ChannelCore<Handle>,
    pub(crate) shell: Shell,
    planes: Vec<Plane>,
    links: BTreeMap<StreamId, Link>,
    lookups: BTreeSet<DnsName>,
    snapshot: Arc<Snapshot<Handle>>,
    /// Configurations that RPCs may still go by, while newer ones get warm, and until when.
    recent: Vec<(Time, Arc<XdsConfig>)>,
    /// RPCs that were sent and have not ended.
    rpcs: VecDeque<Arc<Listeners>>,
    /// What may still go wrong.
    faults_left: u32,
    delays_left: u32,
    backend_faults_left: u32,
    model: Model,
    stats: Stats,
    transcript: Option<Vec<String>>,
    /// What the client reported, if anybody wants to know.
    reports: Option<Vec<Report>>,
    /// What a deliberate bug remembers.
    memory: Memory,
}

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
    to_client: VecDeque<Response>,
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

/// How long warm switching may keep RPCs at earlier routes.
const WARM_BOUND: Duration = Duration::from_secs(5);

/// How long a connection through which nothing comes is believed in.
const KEEPALIVE: Duration = Duration::from_secs(20);

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

    fn start(scenario: Arc<Scenario>, choose: &mut dyn Choose, transcript: bool) -> Result<Self, Violation> {
        let planes = scenario.planes.iter().map(|spec| {
            let truth = spec.editions.first().cloned().unwrap_or_default();
            Plane::new(truth, spec.habits)
        });
        let mut world = Self {
            now: START,
            core: scenario.core(),
            shell: Shell { keeps: scenario.mutant == Some(Mutant::ConnectionKept), ..Shell::default() },
            planes: planes.collect(),
            links: BTreeMap::new(),
            lookups: BTreeSet::new(),
            snapshot: Arc::new(Snapshot::empty()),
            recent: Vec::new(),
            rpcs: VecDeque::new(),
            faults_left: scenario.limits.faults,
            delays_left: scenario.limits.delays,
            backend_faults_left: scenario.limits.backend_faults,
            model: Model::new(&scenario),
            stats: Stats::default(),
            transcript: transcript.then(Vec::new),
            reports: None,
            memory: Memory::default(),
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
        self.stats.events += 1;
        self.note(|world| world.tell(event));
        self.happen(choose, event)?;
        self.settle(choose)?;
        self.check(choose)
    }

    fn happen(&mut self, choose: &mut dyn Choose, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Connect(id) => self.connect(choose, *id)?,
            Event::Sent(id) => self.sent(choose, *id),
            Event::Arrive(id) => self.arrive(*id),
            Event::Serve(id, kind) => {
                if let Some(link) = self.links.get_mut(id) {
                    let response = self.planes[link.plane].respond(&mut link.session, *kind);
                    link.to_client.extend(response);
                    if self.scenario.grain == Grain::Coarse {
                        self.deliver(choose, *id)?;
                    }
                }
            }
            Event::Deliver(id) => self.deliver(choose, *id)?,
            Event::DeliverLate(id) => self.deliver_late(choose, *id)?,
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
                self.pass_time(choose)?;
            }
            Event::Rpc(path) => self.rpc(choose, *path)?,
            Event::RpcEnd => self.end_rpc(),
            Event::Publish(index) => {
                let plane = &mut self.planes[*index];
                if let Some(truth) = self.scenario.planes[*index].editions.get(plane.edition + 1) {
                    plane.edition += 1;
                    plane.truth = truth.clone();
                }
            }
            Event::Heal(index) => self.heal(*index),
            Event::BackendUp(address) => drop(self.shell.down.remove(address)),
            Event::BackendDown(address) => self.backend_down(choose, *address),
            fault => self.fault(choose, fault)?,
        }
        Ok(())
    }

    fn fault(&mut self, choose: &mut dyn Choose, event: &Event) -> Result<(), Violation> {
        self.faults_left = self.faults_left.saturating_sub(1);
        self.stats.faults += 1;
        match event {
            Event::Kill(index) => {
                self.planes[*index].net = Net::Refusing;
                for id in self.open_links(*index) {
                    self.lose(choose, id, CloseCause::ConnectionLost("connection reset".to_owned()))?;
                }
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
                self.lose(choose, *id, CloseCause::Ended { code: 14, message: "restarting".to_owned() })?;
            }
            Event::HalfOpen(id) => {
                if let Some(link) = self.links.get_mut(id) {
                    link.dead = true;
                    link.keepalive.get_or_insert(self.now + KEEPALIVE);
                }
            }
            Event::Garbage(id) => {
                let nonsense = Bytes::from_static(b"\xff\xffnonsense");
                self.memory.deaf.insert(*id);
                self.input(choose, Input::Xds(client::Event::Received(*id, nonsense)));
            }
            _ => {}
        }
        Ok(())
    }

    // --- Time, DNS, backends ---

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let links = self.links.values().filter(|link| !link.closed);
        let links = links.flat_map(|link| [link.connecting, link.keepalive]).flatten();
        links.chain(self.core_deadline()).chain(self.shell.next_deadline()).min()
    }

    fn core_deadline(&self) -> Option<Time> {
        self.core.next_deadline().filter(|_| !self.has(Mutant::TimeoutLost))
    }

    fn pass_time(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        let Some(next) = self.next_deadline() else { return Ok(()) };
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
            self.lose(choose, id, cause)?;
        }
        for id in self.shell.connections.keys().copied().collect::<Vec<_>>() {
            let failed = |connection: &crate::shell::Connection| matches!(connection.state, State::Failed(_));
            if self.shell.connections.get(&id).is_some_and(failed)
                && let Some(news) = self.shell.advance(now, id)
            {
                self.input(choose, Input::Connectivity(id, news));
            }
        }
        if due(self.core_deadline()) {
            self.input(choose, Input::Timeout);
        }
        Ok(())
    }

    fn resolved(&mut self, choose: &mut dyn Choose, name: DnsName, works: bool) {
        self.lookups.remove(&name);
        // Each name has addresses of its own.
        let number = name.host.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let address = |last| SocketAddr::from(([10, 2, number, last], name.port));
        let answer = if works { Ok(vec![address(1), address(2)]) } else { Err("no such name".to_owned()) };
        self.model.resolved(&name, &answer);
        if self.has(Mutant::LookupLost) {
            return;
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

    // --- RPCs ---

    fn rpc(&mut self, choose: &mut dyn Choose, path: u8) -> Result<(), Violation> {
        self.shell.lend();
        self.stats.rpcs += 1;
        let path = path_of(path);
        let headers = http::HeaderMap::new();
        let decision = self.snapshot.decide(Rpc { path, headers: &headers }, choose);
        match decision {
            Decision::Send(to) => {
                self.stats.rpcs_sent += 1;
                self.rpcs.push_back(Arc::new(to.listeners));
            }
            Decision::Wait(_, None) | Decision::Fail(_) | Decision::Drop(_) | Decision::Inject(_) => {}
            Decision::Wait(_, Some(wake)) => self.input(choose, Input::Wake(wake)),
        }
        Ok(())
    }

    fn end_rpc(&mut self) {
        let ended = self.rpcs.pop_front();
        if self.has(Mutant::CountKept) {
            std::mem::forget(ended);
        }
    }

    /// Checks what RPCs would see right now.
    fn check_traffic(&mut self, choose: &mut dyn Choose, grain: Grain) -> Result<(), Violation> {
        self.shell.lend();
        let headers = http::HeaderMap::new();
        for path in [path_of(0), path_of(1)] {
            self.stats.rpcs += 1;
            let decision = self.snapshot.decide(Rpc { path, headers: &headers }, choose);
            self.stats.rpcs_sent += u64::from(matches!(decision, Decision::Send(_)));
            let now = crate::traffic::check(path, &decision, self.core.config(), &self.shell, grain);
            let before = |(_, config): &(Time, _)| {
                crate::traffic::check(path, &decision, Some(Ok(config)), &self.shell, grain).is_ok()
            };
            if now.is_err() && !self.recent.iter().any(before) {
                return now;
            }
        }
        let counted: u32 = self.shell.counters.values().map(|counter| counter.in_flight()).sum();
        let in_flight = self.rpcs.len();
        Invariant::Breaker.holds(counted as usize == in_flight, || {
            format!("circuit breakers count {counted} RPCs, and {in_flight} are in flight")
        })
    }

    // --- The core ---

    fn input(&mut self, choose: &mut dyn Choose, input: Input) {
        let mut cx = Context { now: self.now, choose, host: &mut self.shell };
        self.core.handle(&mut cx, input);
    }

    /// Does what the core says until it has nothing more to say.
    fn settle(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        loop {
            self.core.settle(&mut Context { now: self.now, choose: &mut *choose, host: &mut self.shell });
            let mut probes = Vec::new();
            while let Some(action) = self.core.poll_action() {
                match action {
                    Action::Probe { stream, .. } => probes.push(stream),
                    action => self.act(action)?,
                }
            }
            if !probes.is_empty() {
                probes.into_iter().for_each(|stream| self.probe(choose, stream));
                continue;
            }
            if self.scenario.grain == Grain::Fine || !self.follow_up(choose) {
                return Ok(());
            }
        }
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
            Action::OpenStream { stream, server, connect_timeout } => {
                let plane = self.scenario.plane_of(&server);
                let plane = plane.ok_or_else(|| Invariant::Attempts.broken("an attempt at an unknown server"))?;
                self.note(|_| format!("  > open {}", server.server_uri));
                self.model.open(self.now, plane, stream)?;
                let link = Link {
                    plane,
                    connecting: Some(self.now + connect_timeout),
                    session: Session::default(),
                    unsent: None,
                    to_plane: VecDeque::new(),
                    to_client: VecDeque::new(),
                    dead: false,
                    keepalive: None,
                    closed: false,
                };
                self.links.insert(stream, link);
            }
            Action::Send(stream, bytes) => {
                let bytes = match self.scenario.mutant {
                    Some(mutant) => mutant.garble(self.way(stream), bytes, &mut self.memory),
                    None => Some(bytes),
                };
                let Some(bytes) = bytes else { return Ok(()) };
                let request = DiscoveryRequest::decode(bytes.clone());
                let request = request.map_err(|error| Invariant::Answers.broken(format!("not a request: {error}")))?;
                self.note(|world| format!("  > {}: {}", world.server_of(stream), tell::request(&request)));
                self.model.send(stream, &request)?;
                if let Some(link) = self.links.get_mut(&stream) {
                    link.unsent = Some(bytes);
                }
            }
            Action::CloseStream(_) if self.has(Mutant::StreamKept) => {}
            Action::CloseStream(stream) => {
                self.note(|world| format!("  > close {}", world.server_of(stream)));
                self.model.close(self.now, stream)?;
                if let Some(mut link) = self.links.remove(&stream)
                    && !link.to_client.is_empty()
                {
                    link.closed = true;
                    self.links.insert(stream, link);
                }
            }
            Action::Probe { .. } => {} // Answered where streams are.
            Action::Load(_) => {}      // No control plane of this world wants load reports.
            Action::Resolve(name) => {
                self.note(|_| format!("  > resolve {name}"));
                self.lookups.insert(name);
            }
            Action::StopResolving(name) => drop(self.lookups.remove(&name)),
            Action::Report(report) => {
                self.stats.fallbacks += u64::from(matches!(report, Report::FellBack(..)));
                if let Report::Unreachable(server, ..) = &report {
                    let place = self.scenario.plane_of(server);
                    self.memory.better_is_down |= self.links.values().any(|link| Some(link.plane) > place);
                }
                self.note(|_| format!("  ! {}", tell::report(&report)));
                self.model.report(self.now, &report)?;
                if let Some(reports) = &mut self.reports {
                    reports.push(report);
                }
            }
            Action::Publish(_) if self.has(Mutant::SnapshotKept) && self.stats.configs > 0 => {}
            Action::Publish(snapshot) => {
                self.stats.configs += 1;
                self.note(|world| format!("  = {}", tell::config(&world.core)));
                self.snapshot = snapshot;
            }
        }
        Ok(())
    }

    /// The server of a stream, the stream, and whether a lower server is in use as well.
    fn way(&self, stream: StreamId) -> (usize, StreamId, bool) {
        let plane = self.links.get(&stream).map_or(0, |link| link.plane);
        (plane, stream, self.links.values().any(|link| link.plane > plane && !link.closed))
    }

    fn check(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        self.stats.virtual_time = self.now.since(START);
        if let Some(misuse) = self.shell.misuse.take() {
            return Err(Invariant::Connections.broken(misuse));
        }
        self.remember_config();
        let mut dump = self.core.client().dump();
        let bent = self.scenario.mutant.map(|mutant| {
            let place = |status: &ResourceStatus| self.scenario.plane_of(&status.value.as_ref()?.provenance.server);
            let in_force = self.core.config().map(|config| config.cloned().map_err(Clone::clone));
            mutant.distort(&mut self.memory, self.now, &mut dump, in_force, place)
        });
        let config = bent.as_ref().map_or_else(|| self.core.config(), |bent| bent.as_ref().map(Result::as_ref));
        let view = View { now: self.now, dump: &dump, config };
        self.model.check(&view)?;
        self.check_traffic(choose, self.scenario.grain)
    }

    /// Keeps what was in force for as long as warm switching may let RPCs go by it.
    fn remember_config(&mut self) {
        let before = self.model.in_force().cloned();
        let now = self.core.config().and_then(Result::ok);
        if let Some(before) = before.filter(|before| now != Some(before)) {
            self.recent.push((self.now + WARM_BOUND, before));
        }
        self.recent.retain(|(until, _)| self.now <= *until);
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

    pub(crate) fn server_of(&self, stream: StreamId) -> &str {
        let plane = self.links.get(&stream).map(|link| link.plane);
        plane.map_or("?", |plane| &self.scenario.planes[plane].server.server_uri)
    }

    /// Whether this deliberate bug is in.
    fn has(&self, mutant: Mutant) -> bool {
        self.scenario.mutant == Some(mutant)
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

/// Path of an RPC.
pub(crate) fn path_of(number: u8) -> &'static str {
    if number == 0 { "/0/method" } else { "/1/method" }
}
