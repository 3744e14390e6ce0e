//! The world: one channel, its control planes, the network, DNS and backends, one event at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_lb::{CallTracker, ChannelCore, Context, Input, Snapshot};
use mainstay_xds::client::{self, CloseCause, StreamId};
use mainstay_xds::deps::{DnsName, XdsConfig};
use mainstay_xds::{Choose, Time};

use crate::choose::Narrow;
use crate::fingerprint::Fingerprint;
use crate::invariant::{Invariant, Violation};
use crate::oracle::config::ConfigOracle;
use crate::oracle::picture::Picture;
use crate::oracle::{Oracle, Rules};
use crate::plane::{Net, Plane, Response, Session};
use crate::scenario::{Grain, Scenario};
use crate::shell::{Handle, Shell, State};

mod actions;
mod check;
mod drill;
mod end;
mod events;
mod faults;
mod loads;
mod rpcs;
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
            shell: Shell { limited: scenario.is_limited(), subsets: Arc::new(scenario.subsets()), ..Shell::default() },
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
            Event::Refuse(id) => {
                self.lose(choose, *id, CloseCause::Ended { code: 12, message: "unknown method".to_owned() });
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
                    plane.publish(truth.clone());
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

    /// The configuration in force, if there is one.
    pub(crate) fn config_in_force(&self) -> Option<Arc<XdsConfig>> {
        self.core.config()?.ok().cloned()
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

    /// What is in force, in words.
    pub(crate) fn says(&self) -> String {
        tell::config(&self.core)
    }

    /// Lets time pass in which nothing happens.
    pub(crate) fn sleep_until(&mut self, age: Duration) {
        self.now = self.now.max(START + age);
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
