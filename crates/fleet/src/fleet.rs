//! The run of a fleet: one heap of what is to come, in the order of time (SC-18).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_control_plane::{Limits, Snapshot};
use mainstay_lb::{Input, SubchannelId};
use mainstay_sim::Seeded;
use mainstay_xds::bootstrap::{Bootstrap, LastGood, Node, ServerConfig};
use mainstay_xds::client::{CloseCause, Event, Protocol, Sign, StreamId};
use mainstay_xds::target::Target;
use mainstay_xds::{Choose, Time};

use crate::client::{Client, Link, Parsings, Wish};
use crate::model::{Model, SYN_RETRIES};
use crate::plane::{Heard, Plane, PlaneState};
use crate::record::{Moments, Percentiles, PlaneReport, Report, ended_badly};
use crate::scenario::{Rules, Scenario, Script, Step};
use crate::setup::{TARGET, edition};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What happens.
    pub scenario: Scenario,
    /// How many clients there are.
    pub clients: u32,
    /// How long an outage lasts, where the scenario leaves that open.
    pub outage: Duration,
    /// The same seed is the same run.
    pub seed: u64,
    /// The rules of the clients.
    pub rules: Rules,
    /// What control planes take on.
    pub limits: Limits,
    /// What things cost.
    pub model: Model,
    /// Tell what this client does, too.
    pub follow: Option<u32>,
}

impl Plan {
    /// A thousand clients by our rules, an outage of half a minute.
    pub fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            clients: 1_000,
            outage: Duration::from_secs(30),
            seed: 0,
            rules: Rules::default(),
            limits: Limits::default(),
            model: Model::default(),
            follow: None,
        }
    }
}

/// Plays a scenario to its end.
pub fn run(plan: &Plan) -> Report {
    let mut fleet = Fleet::new(plan);
    while let Some(Reverse(next)) = fleet.queue.pop() {
        if next.at > fleet.end {
            break;
        }
        fleet.now = next.at;
        fleet.events += 1;
        fleet.handle(next.what);
    }
    fleet.report(plan)
}

/// A client, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u32);

/// A stream of a client at a control plane.
#[derive(Clone, Copy, Debug)]
struct Line {
    client: ClientId,
    stream: StreamId,
    plane: usize,
    delta: bool,
}

/// Something that is to come.
#[derive(Debug)]
enum Coming {
    /// A client starts, or a deadline of it has passed.
    Wake(ClientId),
    /// A connection to an endpoint is there.
    Connected(ClientId, SubchannelId),
    /// News of a stream reach the client.
    News(Line, Event),
    /// The client has waited long enough for a connection.
    GiveUp(Line),
    /// The client asks whether anybody is there.
    KeepAlive(Line),
    /// A SYN reaches the control plane, which is the n-th for this connection; more replicas may be tried after it.
    Dial(Line, usize, Vec<usize>),
    /// The control plane has a worker for a new connection.
    Accept(Line),
    /// A request reaches the control plane.
    Request(Line, Bytes),
    /// The stream may begin.
    Admit(Line),
    /// The control plane has a worker for a request.
    Serve(Line, Bytes),
    /// The control plane has a worker to send what is new.
    Push(Line),
    /// Something happens to a control plane.
    Step(Box<Step>),
}

/// What is to come, and when. What comes at the same time comes in the order in which it was planned.
#[derive(Debug)]
struct Next {
    at: Time,
    sequence: u64,
    what: Coming,
}

struct Fleet {
    now: Time,
    end: Time,
    outage_at: Time,
    queue: BinaryHeap<Reverse<Next>>,
    sequence: u64,
    events: u64,
    model: Model,
    choose: Seeded,
    parsed: Parsings,
    clients: Vec<Client>,
    planes: Vec<Plane>,
    moments: Vec<Moments>,
    script: Script,
    /// When each client that was cut off in the outage had a stream again.
    back: Vec<Option<Time>>,
    cut: BTreeSet<ClientId>,
    follow: Option<ClientId>,
    transcript: Vec<String>,
}

// === impl Fleet ===

impl Fleet {
    fn new(plan: &Plan) -> Self {
        let script = (plan.scenario.script)(plan);
        let mut planes: Vec<_> = script
            .planes
            .iter()
            .map(|slow| Plane::new(plan.model.clone().slowed(*slow), plan.limits.clone()))
            .collect();
        if script.last_good {
            planes.push(files());
        }
        let bootstraps: Vec<_> =
            script.groups.iter().map(|servers| bootstrap(servers.len(), script.last_good)).collect();
        let clients = (0..plan.clients).map(|index| {
            let (bootstrap, target) = &bootstraps[group_of(&script, index)];
            let rules = match script.peers {
                Some(share) if index.is_multiple_of(share) => Rules::Peers,
                _ => plan.rules,
            };
            let choose = Seeded::new(plan.seed ^ (u64::from(index) << 32));
            Client::new(target, Arc::clone(bootstrap), rules.settings(), choose)
        });
        let mut fleet = Self {
            now: Time::ZERO,
            end: Time::from_start(script.end),
            outage_at: Time::from_start(script.outage_at),
            queue: BinaryHeap::new(),
            sequence: 0,
            events: 0,
            model: plan.model.clone(),
            choose: Seeded::new(!plan.seed),
            parsed: Parsings::default(),
            clients: clients.collect(),
            moments: vec![Moments::default(); planes.len()],
            planes,
            back: vec![None; usize::try_from(plan.clients).unwrap_or_default()],
            cut: BTreeSet::new(),
            follow: plan.follow.map(ClientId),
            transcript: Vec::new(),
            script,
        };
        for (at, step) in fleet.script.steps.clone() {
            fleet.plan(Time::from_start(at), Coming::Step(Box::new(step)));
        }
        let start = u64::try_from(fleet.script.start.as_nanos()).unwrap_or(u64::MAX);
        for index in 0..plan.clients {
            let at = Time::from_nanos(fleet.choose.choose(start.max(1)));
            fleet.plan(at, Coming::Wake(ClientId(index)));
        }
        fleet
    }

    fn plan(&mut self, at: Time, what: Coming) {
        self.sequence += 1;
        self.queue.push(Reverse(Next { at: at.max(self.now), sequence: self.sequence, what }));
    }

    fn after(&mut self, span: Duration, what: Coming) {
        self.plan(self.now + span, what);
    }

    fn handle(&mut self, what: Coming) {
        match what {
            Coming::Wake(client) => {
                let (now, it) = (self.now, &mut self.clients[index(client)]);
                it.wake_at = None;
                let input = it.next_deadline().is_some_and(|at| at <= now).then_some(Input::Timeout);
                self.step(client, input);
            }
            Coming::Connected(client, id) => {
                let wishes = self.clients[index(client)].connected(self.now, &mut self.parsed, id);
                self.grant(client, wishes);
            }
            Coming::News(line, event) => self.tell(line, event),
            Coming::GiveUp(line) if !self.planes[line.plane].has(line.key()) => {
                self.tell(line, Event::Closed(line.stream, CloseCause::ConnectFailed("timed out".to_owned())));
            }
            Coming::GiveUp(_) => {}
            Coming::KeepAlive(line) => self.keep_alive(line),
            Coming::Dial(line, attempt, others) => self.dial(line, attempt, others),
            Coming::Accept(line) => self.accept(line),
            Coming::Request(line, request) => self.request(line, request),
            Coming::Admit(line) => {
                for request in self.planes[line.plane].admit(line.key(), line.delta) {
                    self.queue_request(line, request);
                }
            }
            Coming::Serve(line, request) => {
                let responses = self.planes[line.plane].serve(line.key(), &request);
                self.answer(line, responses);
            }
            Coming::Push(line) => {
                let responses = self.planes[line.plane].push(line.key());
                self.answer(line, responses);
            }
            Coming::Step(step) => self.happen(*step),
        }
    }

    // --- clients ---

    fn step(&mut self, client: ClientId, input: Option<Input>) {
        let wishes = self.clients[index(client)].step(self.now, &mut self.parsed, input);
        self.grant(client, wishes);
    }

    /// Does what a client wants, and whatever it wants because of that.
    fn grant(&mut self, client: ClientId, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Open(stream, server, timeout, protocol) => self.open(client, stream, &server, timeout, protocol),
                Wish::Send(stream, request) => {
                    if let Some(line) = self.line(client, stream) {
                        let way = self.planes[line.plane].model().way();
                        self.after(way, Coming::Request(line, request));
                        self.step(client, Some(Input::Xds(Event::Sent(stream))));
                    }
                }
                Wish::Probe(stream, call) => {
                    let Some(line) = self.line(client, stream) else { continue };
                    let plane = &self.planes[line.plane];
                    if plane.state == PlaneState::Up && plane.has(line.key()) {
                        let sign = if call { Sign::Data } else { Sign::Pong };
                        self.after(self.model.round_trip, Coming::News(line, Event::Alive(stream, sign)));
                    }
                }
                Wish::Close(stream) => {
                    if let Some(link) = self.clients[index(client)].links.remove(&stream) {
                        self.planes[link.plane].close((client, stream));
                    }
                }
                Wish::Connect(id) => self.after(self.model.round_trip, Coming::Connected(client, id)),
                Wish::Say(text) => self.say(client, text),
            }
        }
        let it = &mut self.clients[index(client)];
        if let Some(at) = it.next_deadline()
            && it.wake_at.is_none_or(|before| at < before)
        {
            it.wake_at = Some(at);
            self.plan(at, Coming::Wake(client));
        }
    }

    fn open(
        &mut self,
        client: ClientId,
        stream: StreamId,
        server: &ServerConfig,
        timeout: Duration,
        protocol: Protocol,
    ) {
        let mut replicas = self.replicas(client, server);
        let Some(plane) = (!replicas.is_empty()).then(|| replicas.remove(0)) else { return };
        let delta = protocol == Protocol::Delta;
        let line = Line { client, stream, plane, delta };
        self.clients[index(client)].links.insert(stream, Link { plane, delta });
        self.after(timeout, Coming::GiveUp(line));
        let way = self.planes[plane].model().way();
        self.after(way, Coming::Dial(line, 0, replicas));
    }

    /// The control planes behind a server, in the order in which they are tried: DNS answers in any order.
    fn replicas(&mut self, client: ClientId, server: &ServerConfig) -> Vec<usize> {
        let Some(place) = server.server_uri.strip_prefix(SERVER).and_then(|number| number.parse::<usize>().ok()) else {
            return vec![self.planes.len() - 1]; // the files
        };
        let mut replicas = self.script.groups[group_of(&self.script, client.0)][place].clone();
        // A hand-over is between one that all are at and another.
        if replicas.len() > 2 {
            for last in (1..replicas.len()).rev() {
                let other = usize::try_from(self.choose.choose(last as u64 + 1)).unwrap_or_default();
                replicas.swap(last, other);
            }
        }
        replicas
    }

    fn tell(&mut self, line: Line, event: Event) {
        let it = &mut self.clients[index(line.client)];
        if it.links.get(&line.stream).map(|link| link.plane) != Some(line.plane) {
            return;
        }
        match &event {
            Event::Opened(_) => {
                it.seen.met.insert(line.plane);
                if self.now >= self.outage_at && self.cut.contains(&line.client) {
                    self.back[index(line.client)].get_or_insert(self.now);
                }
            }
            Event::Closed(stream, cause) => {
                it.links.remove(stream);
                if matches!(cause, CloseCause::Deferred { .. }) {
                    it.was_refused();
                }
            }
            Event::Sent(_) | Event::Alive(..) | Event::Received(..) => {}
        }
        self.step(line.client, Some(Input::Xds(event)));
    }

    fn keep_alive(&mut self, line: Line) {
        if !self.is_current(line) {
            return;
        }
        let plane = &self.planes[line.plane];
        let (interval, patience) = plane.model().keep_alive;
        if plane.state == PlaneState::Up && plane.has(line.key()) {
            self.after(interval, Coming::KeepAlive(line));
        } else {
            let lost = CloseCause::ConnectionLost("keepalive: nobody answers".to_owned());
            self.after(patience, Coming::News(line, Event::Closed(line.stream, lost)));
        }
    }

    fn line(&self, client: ClientId, stream: StreamId) -> Option<Line> {
        let Link { plane, delta } = *self.clients[index(client)].links.get(&stream)?;
        Some(Line { client, stream, plane, delta })
    }

    /// Whether the client still has this stream, and there.
    fn is_current(&self, line: Line) -> bool {
        self.line(line.client, line.stream).is_some_and(|it| it.plane == line.plane)
    }

    fn say(&mut self, client: ClientId, text: String) {
        if self.follow == Some(client) {
            self.transcript.push(format!("{:9.3} s  {text}", self.now.since_start().as_secs_f64()));
        }
    }

    // --- control planes ---

    fn dial(&mut self, mut line: Line, attempt: usize, mut others: Vec<usize>) {
        if !self.is_current(line) {
            return;
        }
        let way = self.planes[line.plane].model().way();
        match self.planes[line.plane].state {
            PlaneState::Up => {
                self.moments[line.plane].at(self.now).opens += 1;
                if self.planes[line.plane].queue_connection() {
                    let cost = self.planes[line.plane].model().accept;
                    let done = self.work(line.plane, cost);
                    self.plan(done, Coming::Accept(line));
                } else {
                    self.moments[line.plane].at(self.now).refusals += 1;
                    self.dial_again(line, attempt, others);
                }
            }
            PlaneState::Down if !others.is_empty() => {
                self.moments[line.plane].at(self.now).refusals += 1;
                line.plane = others.remove(0);
                let link = Link { plane: line.plane, delta: line.delta };
                self.clients[index(line.client)].links.insert(line.stream, link);
                self.after(way * 2, Coming::Dial(line, 0, others));
            }
            PlaneState::Down => {
                self.moments[line.plane].at(self.now).refusals += 1;
                let refused = CloseCause::ConnectFailed("connection refused".to_owned());
                self.after(way, Coming::News(line, Event::Closed(line.stream, refused)));
            }
            PlaneState::Silent => self.dial_again(line, attempt, others),
        }
    }

    /// Nobody answered: the kernel asks again, until the client gives up.
    fn dial_again(&mut self, line: Line, attempt: usize, others: Vec<usize>) {
        if let Some(pause) = SYN_RETRIES.get(attempt) {
            self.after(*pause, Coming::Dial(line, attempt + 1, others));
        }
    }

    fn accept(&mut self, line: Line) {
        // Whoever gave up, or was cut off with all others, is not there any more.
        if self.planes[line.plane].state != PlaneState::Up || !self.is_current(line) {
            self.planes[line.plane].backlog = self.planes[line.plane].backlog.saturating_sub(1);
            return;
        }
        self.planes[line.plane].accept(line.key());
        let (way, keep_alive) = (self.planes[line.plane].model().way(), self.planes[line.plane].model().keep_alive.0);
        self.after(way, Coming::News(line, Event::Opened(line.stream)));
        self.after(keep_alive, Coming::KeepAlive(line));
    }

    fn request(&mut self, line: Line, request: Bytes) {
        if self.planes[line.plane].state != PlaneState::Up {
            return;
        }
        match self.planes[line.plane].hear(self.now, line.key(), &request, &mut self.choose) {
            Heard::Nothing | Heard::Wait => {}
            Heard::Work => self.queue_request(line, request),
            Heard::Admit(wait) => self.after(wait, Coming::Admit(line)),
            Heard::Refuse(come_back) => {
                self.moments[line.plane].at(self.now).refusals += 1;
                self.planes[line.plane].close(line.key());
                let message = "too many streams are being opened; come back later".to_owned();
                let away = CloseCause::Deferred { code: 14, message, come_back };
                let way = self.planes[line.plane].model().way();
                self.after(way, Coming::News(line, Event::Closed(line.stream, away)));
            }
        }
    }

    fn queue_request(&mut self, line: Line, request: Bytes) {
        let cost = self.planes[line.plane].model().message;
        let done = self.work(line.plane, cost);
        self.plan(done, Coming::Serve(line, request));
    }

    fn answer(&mut self, line: Line, responses: Vec<Bytes>) {
        for response in responses {
            let cost = self.planes[line.plane].model().message;
            let done = self.work(line.plane, cost);
            let sent = self.planes[line.plane].transmit(done, response.len());
            let seen = self.moments[line.plane].at(self.now);
            seen.answers += 1;
            seen.bytes += response.len() as u64;
            let way = self.planes[line.plane].model().way();
            self.plan(sent + way, Coming::News(line, Event::Received(line.stream, response)));
        }
    }

    fn work(&mut self, plane: usize, cost: Duration) -> Time {
        let wait = u64::try_from(self.planes[plane].queue(self.now).as_micros()).unwrap_or(u64::MAX);
        let seen = self.moments[plane].at(self.now);
        seen.queue = seen.queue.max(wait);
        self.planes[plane].work(self.now, cost)
    }

    fn happen(&mut self, step: Step) {
        match step {
            Step::Serve(plane, snapshot) => self.serve(plane, snapshot),
            Step::Kill(plane) => {
                self.planes[plane].state = PlaneState::Down;
                let way = self.planes[plane].model().way();
                for (client, stream) in self.planes[plane].cut() {
                    let Some(line) = self.line(client, stream) else { continue };
                    self.cut.insert(client);
                    let lost = CloseCause::ConnectionLost("the control plane is gone".to_owned());
                    self.after(way, Coming::News(line, Event::Closed(stream, lost)));
                }
            }
            Step::Silence(plane) => self.planes[plane].state = PlaneState::Silent,
            Step::Return(plane) => self.planes[plane].state = PlaneState::Up,
        }
    }

    fn serve(&mut self, plane: usize, snapshot: Snapshot) {
        for (client, stream) in self.planes[plane].set(snapshot) {
            let cost = self.planes[plane].model().message;
            let done = self.work(plane, cost);
            if let Some(line) = self.line(client, stream) {
                self.plan(done, Coming::Push(line));
            }
        }
    }

    // --- the end ---

    fn report(self, plan: &Plan) -> Report {
        let lives = || self.clients.iter().map(|client| &client.seen);
        let since_outage = |at: Time| at.since(self.outage_at);
        let configured = lives().filter_map(|life| Some(life.served?.since(life.began?))).collect();
        let updated: Vec<_> = match self.script.edition {
            1 => Vec::new(),
            last => lives()
                .filter_map(|life| life.edition.filter(|(it, _)| *it == last))
                .map(|(_, at)| since_outage(at))
                .collect(),
        };
        let mut report = Report {
            scenario: plan.scenario.name,
            clients: plan.clients,
            outage_at: self.script.outage_at,
            events: self.events,
            configured: Percentiles::of(configured),
            back: Percentiles::of(self.back.iter().flatten().map(|at| since_outage(*at)).collect()),
            updated: Percentiles::of(updated),
            failed: count(lives().filter(|life| life.failed.is_some())),
            absences: lives().map(|life| life.absences).sum(),
            nacks: lives().map(|life| life.nacks).sum(),
            fallbacks: lives().map(|life| life.fallbacks).sum(),
            planes: Vec::new(),
            violations: self.violations(),
            transcript: self.transcript,
        };
        let met = |plane| count(self.clients.iter().filter(|client| client.seen.met.contains(&plane)));
        let planes = self.moments.into_iter().enumerate();
        report.planes = planes.map(|(plane, moments)| PlaneReport { moments, met_by: met(plane) }).collect();
        report
    }

    /// What must hold of a fleet and does not (SC-20).
    fn violations(&self) -> Vec<String> {
        let script = &self.script;
        let mut violations = Vec::new();
        let mut must_not = |what: String, of: Vec<u32>| {
            if let Some(first) = of.first() {
                violations.push(format!("{} clients {what}, such as client {first}", of.len()));
            }
        };
        let those = |is_so: &dyn Fn(u32, &Client) -> bool| -> Vec<u32> {
            (0..).zip(&self.clients).filter(|(index, client)| is_so(*index, client)).map(|(index, _)| index).collect()
        };
        for (group, plane) in &script.untouched {
            let met = those(&|index, it| group_of(script, index) == *group && it.seen.met.contains(plane));
            must_not(
                format!("of group {group} were connected to control plane {plane}, which they had no need of"),
                met,
            );
        }
        must_not("were told that something does not exist".to_owned(), those(&|_, it| it.seen.absences > 0));
        must_not("failed RPCs after they had been served".to_owned(), those(&|_, it| it.seen.failed.is_some()));
        must_not(
            format!("were refused more than {REFUSALS} times in a row"),
            those(&|_, it| it.seen.refused > REFUSALS),
        );
        for why in ["never served", "failing in the end", "without the last edition"] {
            must_not(format!("are {why}"), those(&|_, it| ended_badly(&it.seen, script.edition) == Some(why)));
        }
        if let Some(bound) = script.updated_within {
            let late = |at: Time| at.since(self.outage_at) > bound;
            let late = those(&|_, it| it.seen.edition.is_some_and(|(last, at)| last == script.edition && late(at)));
            must_not(format!("had the last edition more than {bound:?} after the outage"), late);
        }
        for (index, plane) in self.planes.iter().enumerate() {
            if !plane.queue(self.now).is_zero() || plane.backlog > 0 {
                violations.push(format!("control plane {index} still has a queue in the end"));
            }
        }
        let connected: usize = self.planes.iter().map(Plane::len).sum();
        if connected < self.clients.len() {
            violations.push(format!("{connected} of {} clients have a stream in the end", self.clients.len()));
        }
        violations
    }
}

impl Line {
    fn key(self) -> (ClientId, StreamId) {
        (self.client, self.stream)
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

fn index(client: ClientId) -> usize {
    client.0 as usize
}

/// Clients belong to the groups by turns.
fn group_of(script: &Script, client: u32) -> usize {
    client as usize % script.groups.len()
}

fn count<T>(of: impl Iterator<Item = T>) -> u32 {
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}

/// The last-good files of all clients: each reads its own, without a network and without a queue.
fn files() -> Plane {
    let nothing = Duration::ZERO;
    let model = Model {
        round_trip: nothing,
        accept: nothing,
        message: nothing,
        workers: 1,
        bandwidth: u64::MAX,
        backlog: usize::MAX,
        ..Model::default()
    };
    let mut plane = Plane::new(model, Limits { streams_per_second: 0, ..Limits::default() });
    plane.set(edition(1).partial());
    plane
}

fn bootstrap(servers: usize, last_good: bool) -> (Arc<Bootstrap>, Target) {
    let mut builder = Bootstrap::builder().node(Node { id: "fleet".to_owned(), ..Node::default() });
    for server in 0..servers {
        builder = builder.server(ServerConfig::insecure(format!("{SERVER}{server}")));
    }
    let bootstrap = builder.build().expect("the servers are good ones");
    let bootstrap = if last_good { bootstrap.with_last_good(LastGood::new("last-good")) } else { bootstrap };
    let target = Target::resolve(&format!("xds:///{TARGET}"), &bootstrap).expect("a good target");
    (Arc::new(bootstrap), target)
}

const SERVER: &str = "server-";
/// More refusals in a row than this are not bad luck.
const REFUSALS: u32 = 5;
