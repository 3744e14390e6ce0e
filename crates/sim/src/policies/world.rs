//! A tree of policies and its reference, side by side through a random life.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::HeaderMap;
use mainstay_lb::{
    CallTracker, Chosen, Connectivity, Context, Decision, Ending, Failure, LoadSink, Snapshot, Trace, Tree, Wake,
    XdsSecurity,
};
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ConfigError, XdsConfig};
use mainstay_xds::orca::{ORCA_TRAILER, OrcaLoadReport};
use mainstay_xds::{Choose, Code, Time};
use prost::Message as _;

use super::make::{Maker, Plan};
use super::naive::{Counted, End, Key, Naive, Reason, Rpc, Sent, State, Verdict, Who};
use super::shell::{Handle, Shell};
use super::steps;
use super::tape::Tape;
use crate::choose::Seeded;
use crate::invariant::{Invariant, Violation};

/// Both, and what is around them.
pub(super) struct World {
    plan: Plan,
    chance: Seeded,
    now: Time,
    config: Arc<XdsConfig>,
    former: Vec<Arc<XdsConfig>>,
    /// Whether an error is in the place of the configuration.
    is_broken: bool,
    tree: Tree<Handle>,
    shell: Shell,
    tape: Tape,
    snapshot: Arc<Snapshot<Handle>>,
    in_use: BTreeSet<Arc<str>>,
    naive: Naive,
    /// RPCs that were not sent yet, or may be sent again.
    waiting: Vec<(Chosen, Rpc)>,
    running: Vec<(CallTracker, Counted, Key)>,
    /// Cookies that answers set.
    cookies: Vec<String>,
    /// Where reports of load go, and into which book of the reference.
    sinks: Vec<(LoadSink, u64)>,
    last_cause: u32,
    /// What happened.
    pub(super) transcript: Vec<String>,
    /// Every decision about an RPC.
    pub(super) decisions: Vec<String>,
    /// Whether somebody records how RPCs are decided about.
    is_recorded: bool,
}

type Checked = Result<(), Violation>;

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = Seeded::new(seed ^ 0x5eed_0000_0000);
        let plan = Plan::new(seed, &mut chance);
        let bound = match chance.choose(6) {
            0 => None,
            1 => Some(Duration::from_secs(3)),
            _ => Some(Duration::from_secs(5)),
        };
        let securities = [XdsSecurity::Ignore, XdsSecurity::Refuse, XdsSecurity::Follow];
        let security = if plan.tls { securities[chance.choose(3) as usize] } else { XdsSecurity::Ignore };
        let mut tree = Tree::new().with_security(security);
        if bound != Some(Duration::from_secs(5)) {
            tree = tree.with_warm_switching(bound);
        }
        let config = Arc::new(Maker { chance: &mut chance, plan: &plan }.config());
        Self {
            plan,
            chance,
            now: Time::from_nanos(1_000_000_000),
            config,
            former: Vec::new(),
            is_broken: false,
            tree,
            shell: Shell::default(),
            tape: Tape::new(seed),
            snapshot: Arc::new(Snapshot::empty()),
            in_use: BTreeSet::new(),
            naive: Naive::new(bound, security),
            waiting: Vec::new(),
            running: Vec::new(),
            cookies: Vec::new(),
            sinks: Vec::new(),
            last_cause: 0,
            transcript: Vec::new(),
            decisions: Vec::new(),
            is_recorded: false,
        }
    }

    /// With a recorder of decisions.
    pub(super) fn recorded(self) -> Self {
        Self { is_recorded: true, ..self }
    }

    /// Lives for so many events, then ends.
    pub(super) fn live(&mut self, events: usize) -> Checked {
        self.rpc()?;
        self.put_in_force(Arc::clone(&self.config))?;
        for _ in 0..events {
            match self.chance.choose(20) {
                0..=5 => self.connection_event()?,
                6..=11 => self.rpc()?,
                12 | 13 => self.end_one()?,
                14 => self.pass_time()?,
                15 if self.plan.outliers => self.trial()?,
                15 => self.pass_time()?,
                16 => self.report()?,
                17 => self.retry()?,
                18 => self.update()?,
                _ => self.do_nothing()?,
            }
        }
        self.shut_down()
    }

    /// Goes through the same configurations again and again: what is kept does not grow with that.
    pub(super) fn go_round(&mut self) -> Checked {
        let other = Arc::new(self.maker().config());
        let first = Arc::clone(&self.config);
        let mut sizes = Vec::new();
        for round in 0..24 {
            for config in [&first, &other, &first] {
                self.put_in_force(Arc::clone(config))?;
                for key in self.shell.connections.keys().cloned().collect::<Vec<_>>() {
                    self.hear(&key, State::Ready)?;
                }
                for _ in 0..3 {
                    let (path, headers) = self.maker().request(&[]);
                    self.decide(Chosen::default(), Rpc::new(path, headers))?;
                }
                while !self.running.is_empty() {
                    self.end(0, End::Status(Code::Ok, None))?;
                }
                self.now = self.now + Duration::from_secs(2 * 3600);
                self.timeout()?;
            }
            self.waiting.clear();
            // Numbers grow longer; lists must not.
            if round >= 4 {
                sizes.push(format!("{:?}", self.tree).matches(", ").count());
            }
        }
        let half = sizes.len() / 2;
        let (before, after) = (sizes[..half].iter().max(), sizes[half..].iter().min());
        Invariant::Leak.holds(before >= after, || format!("what is kept grows: {sizes:?}"))
    }

    fn maker(&mut self) -> Maker<'_> {
        Maker { chance: &mut self.chance, plan: &self.plan }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.chance.choose(n) == 0
    }

    // === events ===

    fn connection_event(&mut self) -> Checked {
        let keys: Vec<Key> = self.shell.connections.keys().cloned().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let key = self.maker().pick(&keys);
        let state = self.naive.connections.all.get(&key).map_or(State::Idle, |connection| connection.state);
        if state == State::Ready && self.one_in(4) {
            self.shell.set_up(&key, false); // Died, and nobody was told yet.
            self.transcript.push(format!("{} dies", key.0));
            return Ok(());
        }
        let next = match (state, self.chance.choose(8)) {
            (State::Idle, 0) => State::Idle,
            (State::Idle, 1) => State::Ready,
            (State::Idle, _) => State::Connecting,
            (State::Connecting, 0) => State::Idle,
            (State::Connecting, 1) => State::Connecting,
            (State::Connecting, 2..=3) => State::Failing,
            (State::Connecting, _) => State::Ready,
            (State::Ready, 0) => State::Failing,
            (State::Ready, 1) => State::Connecting,
            (State::Ready, 2..=3) => State::Idle,
            (State::Ready, _) => State::Ready,
            (State::Failing, 0) => State::Failing,
            (State::Failing, 1) => State::Connecting,
            (State::Failing, _) => State::Idle,
        };
        self.hear(&key, next)
    }

    fn hear(&mut self, key: &Key, state: State) -> Checked {
        let Some(id) = self.shell.connections.get(key).map(|handle| handle.id) else { return Ok(()) };
        self.shell.set_up(key, state == State::Ready);
        if state == State::Failing && !self.one_in(6) {
            self.last_cause += 1;
        }
        let cause: Arc<str> = format!("cause-{}.", self.last_cause).into();
        let error = (state == State::Failing).then_some(&cause);
        let told = match state {
            State::Idle => Connectivity::Idle,
            State::Connecting => Connectivity::Connecting,
            State::Ready => Connectivity::Ready,
            State::Failing => Connectivity::TransientFailure(cause.clone()),
        };
        self.call(
            format!("{} is {state:?}", key.0),
            |tree, cx| tree.handle_connectivity(cx, id, told),
            |naive, now, chance| naive.hear(now, chance, key, (state, error)),
        )
    }

    fn pass_time(&mut self) -> Checked {
        let due = self.naive.next_deadline();
        let span = match (due, self.chance.choose(6)) {
            (Some(due), 0..=2) => due.since(self.now),
            (Some(due), 3) if due > self.now => due.since(self.now) - Duration::from_nanos(1),
            (_, 4) => Duration::from_secs(self.maker().pick(&[1, 3, 5, 10, 15, 60])),
            _ => Duration::from_millis(self.chance.choose(2000)),
        };
        self.now = self.now + span;
        self.timeout()
    }

    fn timeout(&mut self) -> Checked {
        self.call(
            format!("it is {:?}", self.now.since_start()),
            |tree, cx| tree.handle_timeout(cx),
            |naive, now, chance| naive.timeout(now, chance),
        )
    }

    /// Many RPCs, of which those to some endpoints fail; then an interval of outlier detection ends.
    fn trial(&mut self) -> Checked {
        let bad = self.chance.choose(8) as u16;
        for _ in 0..15 {
            let (path, headers) = self.maker().request(&[]);
            let running = self.running.len();
            self.decide(Chosen::default(), Rpc::new(path, headers))?;
            if self.running.len() > running {
                let is_bad = self.running[running].2.0.port() % 8 == bad;
                let code = if is_bad || self.one_in(6) { Code::Unavailable } else { Code::Ok };
                self.end(running, End::Status(code, None))?;
            }
        }
        if let Some(due) = self.naive.next_deadline() {
            self.now = self.now.max(due);
        }
        self.timeout()
    }

    /// What must have no effect at all.
    fn do_nothing(&mut self) -> Checked {
        let before = self.tree.clone();
        let published = Arc::clone(&self.snapshot);
        match self.chance.choose(3) {
            0 if !self.is_broken => {
                let config = deep_clone(&self.config);
                self.put_in_force(config)?;
            }
            1 if self.naive.next_deadline().is_none_or(|due| due > self.now) => self.timeout()?,
            _ => return Ok(()),
        }
        let is_same = self.tree == before && Arc::ptr_eq(&published, &self.snapshot) && self.shell.requests == 0;
        Invariant::Work.holds(is_same, || "the same again has an effect".into())
    }

    fn update(&mut self) -> Checked {
        if self.one_in(30) {
            let error = ConfigError::NotApiListener("listener".into());
            let text = error.to_string();
            self.former.push(Arc::clone(&self.config));
            self.is_broken = true;
            return self.call(
                "no configuration".into(),
                |tree, cx| tree.update(cx, Err(Arc::new(error))),
                |naive, now, chance| naive.break_off(now, chance, text, true),
            );
        }
        let mut config = (*self.config).clone();
        let names: Vec<Arc<str>> = config.clusters.keys().cloned().collect();
        let name = self.maker().pick(&names);
        let entry = config.clusters.get(&name).cloned();
        let mut maker = Maker { chance: &mut self.chance, plan: &self.plan };
        match (maker.below(12), entry) {
            (0..=2, Some(Ok(mut cluster))) => {
                let changed = Arc::make_mut(&mut cluster);
                if let ClusterChildren::Endpoints(Some(resolved)) = &mut changed.children {
                    maker.change_endpoints(Arc::make_mut(resolved));
                } else if let ClusterChildren::Aggregate(_) = changed.children {
                    *changed = maker.aggregate_or_leaf(&name);
                }
                config.clusters.insert(name, Ok(cluster));
            }
            (3 | 4, Some(Ok(mut cluster))) => {
                let changed = Arc::make_mut(&mut cluster);
                if let ClusterChildren::Endpoints(children) = &mut changed.children {
                    *children = Some(Arc::new(maker.endpoints())).filter(|_| !maker.one_in(12));
                }
                config.clusters.insert(name, Ok(cluster));
            }
            (5, Some(Ok(mut cluster))) => {
                let changed = Arc::make_mut(&mut cluster);
                let settings = Arc::make_mut(&mut changed.cluster);
                match maker.below(5) {
                    0 | 1 => settings.lb_policy = maker.policy(),
                    2 => changed.note = maker.pick(&["note-1", "note-2"]).into(),
                    3 => settings.max_requests = maker.pick(&[1, 2, 5]),
                    _ => *settings = maker.settings(settings.kind.clone()),
                }
                config.clusters.insert(name, Ok(cluster));
            }
            (6, _) if self.plan.errors => {
                let error = maker.cluster_error(&name);
                config.clusters.insert(name, Err(Arc::new(error)));
            }
            (6, _) if config.clusters.len() > 1 && maker.one_in(2) => {
                config.clusters.remove(&name);
            }
            (7, _) => {
                config.virtual_host = Arc::new(maker.host());
            }
            (8, _) => {
                let fresh = maker.config();
                config.listener = fresh.listener;
            }
            (9, _) => config = maker.config(),
            (10, _) if !self.former.is_empty() => {
                config = (*maker.pick(&self.former)).clone();
            }
            (_, _) => {
                let is_above = name.starts_with('a');
                let fresh = if is_above { maker.aggregate_or_leaf(&name) } else { maker.cluster(&name) };
                config.clusters.insert(name, Ok(Arc::new(fresh)));
            }
        }
        self.put_in_force(Arc::new(config))
    }

    fn put_in_force(&mut self, config: Arc<XdsConfig>) -> Checked {
        if config != self.config {
            self.former.push(Arc::clone(&self.config));
        }
        self.config = Arc::clone(&config);
        self.is_broken = false;
        let given = Arc::clone(&config);
        self.call(
            format!("configuration {config:?}"),
            |tree, cx| tree.update(cx, Ok(given)),
            |naive, now, chance| naive.update(now, chance, &config),
        )
    }

    fn shut_down(&mut self) -> Checked {
        self.call(
            "the end".into(),
            |tree, cx| tree.shut_down(cx),
            |naive, now, chance| naive.break_off(now, chance, "shut down".into(), false),
        )?;
        self.rpc()?;
        while !self.running.is_empty() {
            self.end_one()?;
        }
        let clean = self.shell.connections.is_empty() && self.tree.next_deadline().is_none();
        Invariant::Leak.holds(clean, || "something is left".into())?;
        let counts = self.shell.counters.values().all(|counter| counter.in_flight() == 0);
        Invariant::Leak.holds(counts, || "RPCs are counted that are over".into())?;
        self.check_loads()
    }

    // === RPCs ===

    fn rpc(&mut self) -> Checked {
        let burst = if self.one_in(6) { 12 } else { 1 };
        for _ in 0..burst {
            let cookies = self.cookies.clone();
            let (path, headers) = self.maker().request(&cookies);
            let rpc = Rpc::new(path, headers);
            self.decide(Chosen::default(), rpc)?;
            if burst > 1 && !self.one_in(3) {
                self.end_one()?;
            }
        }
        Ok(())
    }

    /// Decides again about one that waits.
    fn retry(&mut self) -> Checked {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let at = self.chance.choose(self.waiting.len() as u64) as usize;
        let (chosen, rpc) = self.waiting.swap_remove(at);
        self.decide(chosen, rpc)
    }

    fn decide(&mut self, mut chosen: Chosen, mut rpc: Rpc) -> Checked {
        let snapshot = Arc::clone(&self.snapshot);
        let (path, headers) = (rpc.path.clone(), rpc.headers.clone());
        self.tape.drawn.clear();
        let asked = mainstay_lb::Rpc { path: &path, headers: &headers };
        let decision = if self.is_recorded {
            let trace = Trace::default();
            let decision = snapshot.decide_traced(asked, &mut chosen, &mut self.tape, &trace);
            steps::judge(&trace.into_steps(), &decision)?;
            decision
        } else {
            snapshot.decide_again(asked, &mut chosen, &mut self.tape)
        };
        self.decisions.push(format!("{decision:?}"));
        let mut chance = self.tape.play_back();
        let shell = &self.shell;
        let verdict = self.naive.decide(&mut rpc, &mut chance, &|key| shell.is_up(key));
        self.transcript.push(format!("RPC {path} {headers:?}: {}", brief(&decision)));
        let expected = || format!("{verdict:?}, and not {decision:?}");
        if let Some(trouble) = chance.trouble() {
            return Err(Invariant::Spread.broken(format!("an RPC: {trouble}: {}", expected())));
        }
        let memory = (chosen.cluster(), chosen.limit(), chosen.retry_policy());
        let route = rpc.route.as_ref();
        let known = (route.map(|r| &r.cluster), route.and_then(|r| r.limit), route.and_then(|r| r.retry.as_ref()));
        Invariant::Traffic.holds(memory == known, || format!("{known:?} is kept of an RPC, and not {memory:?}"))?;
        let mut wakes: Vec<(Wake, Who)> = Vec::new();
        let same = match (&decision, &verdict) {
            (Decision::Send(to), Verdict::Send(sent)) => {
                let cookie = to.set_cookie.as_ref().and_then(|value| value.to_str().ok());
                self.cookies.extend(cookie.and_then(|text| text.split(';').next()).map(str::to_owned));
                wakes.extend(to.wake.zip(sent.wake));
                wakes.extend(to.keep.zip(sent.keep));
                is_same_send(to, cookie, sent)
            }
            (Decision::Wait(failure, wake), Verdict::Wait(reason)) => {
                wakes.extend(wake.zip(reason.wake));
                wake.is_some() == reason.wake.is_some() && is_same_failure(failure, reason)
            }
            (Decision::Fail(failure), Verdict::Fail(reason)) | (Decision::Drop(failure), Verdict::Drop(reason)) => {
                is_same_failure(failure, reason)
            }
            (Decision::Inject(effects), Verdict::Inject(expected)) => effects == expected,
            _ => false,
        };
        Invariant::Traffic.holds(same, expected)?;
        let is_kept = rpc.route.is_some();
        if let (Decision::Send(to), Verdict::Send(sent)) = (decision, verdict) {
            self.running.push((to.tracker, sent.counted, sent.addr.key));
        }
        if is_kept && self.waiting.len() < 20 {
            self.waiting.push((chosen, rpc));
        }
        self.cookies.truncate(20);
        if !self.one_in(5) {
            for (wake, who) in wakes {
                self.call(
                    format!("wake {who:?}"),
                    |tree, cx| tree.wake(cx, wake),
                    |naive, now, chance| naive.wake(now, chance, who),
                )?;
            }
        }
        Ok(())
    }

    fn end_one(&mut self) -> Checked {
        if self.running.is_empty() {
            return Ok(());
        }
        let at = self.chance.choose(self.running.len() as u64) as usize;
        let end = match self.chance.choose(12) {
            0 => End::Withdrawn,
            1 => End::Cancelled,
            2..=5 => End::Status(self.maker().pick(&[Code::Cancelled, Code::Unknown, Code::Unavailable]), None),
            6..=9 => End::Status(Code::Ok, Some(self.maker().report())),
            _ => End::Status(Code::Ok, None),
        };
        self.end(at, end)
    }

    fn end(&mut self, at: usize, end: End) -> Checked {
        let (tracker, counted, _) = self.running.swap_remove(at);
        let end = match end {
            End::Status(code, report) => {
                let report = report.map(|report| report.encode_to_vec());
                let mut trailers = HeaderMap::new();
                let value = report.as_ref().and_then(|bytes| STANDARD_NO_PAD.encode(bytes).parse().ok());
                value.into_iter().for_each(|value| drop(trailers.insert(ORCA_TRAILER, value)));
                let broken = report.is_none() && self.one_in(3);
                tracker.end(Ending { code, trailers: Some(&trailers).filter(|_| !broken) });
                End::Status(code, report.and_then(|bytes| OrcaLoadReport::read(&bytes)))
            }
            End::Withdrawn => {
                tracker.withdraw();
                End::Withdrawn
            }
            End::Cancelled => {
                drop(tracker);
                End::Cancelled
            }
        };
        self.transcript.push(format!("an RPC ends: {end:?}"));
        self.naive.end(counted, &end);
        for (key, counter) in &self.shell.counters {
            let counted = self.naive.books.in_flight.get(key).copied().unwrap_or(0);
            let text = || format!("{counted} RPCs in flight to {key:?}, and not {}", counter.in_flight());
            Invariant::Breaker.holds(counter.in_flight() == counted, text)?;
        }
        Ok(())
    }

    /// An endpoint reports its load.
    fn report(&mut self) -> Checked {
        self.sinks.retain(|(sink, _)| sink.is_wanted());
        if self.sinks.is_empty() {
            return Ok(());
        }
        let at = self.chance.choose(self.sinks.len() as u64) as usize;
        let bytes = self.maker().report().encode_to_vec();
        let (sink, book) = &self.sinks[at];
        sink.report(&bytes);
        sink.report(b"\xff");
        self.transcript.push(format!("a report for {book}"));
        if let Some(report) = OrcaLoadReport::read(&bytes) {
            self.naive.report_by_book(*book, &report);
        }
        Ok(())
    }

    // === checks ===

    fn call(
        &mut self,
        what: String,
        core: impl FnOnce(&mut Tree<Handle>, &mut Context<'_, Shell>),
        naive: impl FnOnce(&mut Naive, Time, &mut dyn Choose),
    ) -> Checked {
        self.transcript.push(what);
        self.shell.look_away();
        self.tape.drawn.clear();
        let was_warming = self.naive.is_warming();
        core(&mut self.tree, &mut Context { now: self.now, choose: &mut self.tape, helper: &mut self.shell });
        if !self.shell.seen.is_empty() {
            self.transcript.push(format!("seen: {:?}", self.shell.seen));
        }
        let published = self.tree.poll_snapshot();
        if let Some(in_use) = self.tree.poll_clusters_in_use() {
            self.in_use = in_use;
        }
        let mut chance = self.tape.play_back();
        (self.naive.connections.asked, self.naive.connections.watched) = Default::default();
        self.naive.connections.reresolve = false;
        self.naive.seen.clear();
        naive(&mut self.naive, self.now, &mut chance);
        if let Some(published) = published {
            let warms = was_warming || self.naive.is_warming();
            let is_new = *published != *self.snapshot;
            Invariant::Work.holds(is_new || warms, || "the same snapshot was published again".into())?;
            self.snapshot = published;
        }
        if let Some(trouble) = chance.trouble() {
            return Err(Invariant::Spread.broken(trouble));
        }
        self.check()
    }

    fn check(&mut self) -> Checked {
        if let Some(misuse) = self.shell.misuse.take() {
            return Err(Invariant::Connections.broken(misuse));
        }
        let (shell, naive) = (&self.shell, &self.naive);
        let (live, wanted): (BTreeSet<&Key>, BTreeSet<&Key>) =
            (shell.connections.keys().collect(), naive.connections.all.keys().collect());
        Invariant::Connections.holds(live == wanted, || format!("{wanted:?} are wanted, and {live:?} are there"))?;
        let asked: BTreeSet<Key> = shell.asked.iter().cloned().collect();
        let text = || format!("{:?} are to connect, and {:?} are asked", naive.connections.asked, shell.asked);
        Invariant::Connections.holds(asked == naive.connections.asked && asked.len() == shell.asked.len(), text)?;
        let text = || format!("re-resolution is asked for: {}", shell.reresolved);
        Invariant::Connections.holds(shell.reresolved == naive.connections.reresolve, text)?;
        let text = || format!("{:?} is to be seen, and not {:?}", naive.seen, shell.seen);
        Invariant::Spread.holds(shell.seen == naive.seen, text)?;
        let watched: Vec<(Key, Duration)> = shell.watched.iter().map(|(k, p, _)| (k.clone(), *p)).collect();
        let to_watch: Vec<(Key, Duration)> =
            naive.connections.watched.iter().map(|(k, p, _)| (k.clone(), *p)).collect();
        Invariant::Connections.holds(watched == to_watch, || format!("{to_watch:?} report, and not {watched:?}"))?;
        let (due, expected) = (self.tree.next_deadline(), naive.next_deadline());
        let due_text = || format!("something is due at {expected:?}, and not {due:?}");
        Invariant::Work.holds(due == expected, due_text)?;
        let (outlook, expected) = (self.snapshot.outlook(), naive.outlook());
        Invariant::Traffic
            .holds(outlook == expected, || format!("the outlook is {expected:?}, and not {outlook:?}"))?;
        let expected = naive.clusters_in_use();
        let text = || format!("{expected:?} are in use, and not {:?}", self.in_use);
        Invariant::Config.holds(self.in_use == expected, text)?;
        self.check_sinks()
    }

    fn check_sinks(&mut self) -> Checked {
        let books = self.naive.connections.watched.iter().map(|(.., book)| *book);
        self.sinks.extend(self.shell.watched.drain(..).map(|(.., sink)| sink).zip(books));
        Ok(())
    }

    /// What load reports would say.
    fn check_loads(&mut self) -> Checked {
        let server = ServerConfig::insecure("lrs");
        let mut told: BTreeMap<_, [u64; 4]> = BTreeMap::new();
        let mut drops: BTreeMap<(String, String), BTreeMap<String, u64>> = BTreeMap::new();
        for report in self.tree.loads().take(self.now, &server) {
            let of = (report.cluster.to_string(), report.eds_service.to_string());
            for load in report.localities {
                let counts = [load.issued, load.succeeded, load.failed, load.in_progress];
                told.insert((of.clone(), load.locality), counts);
            }
            let dropped = drops.entry(of).or_default();
            dropped.extend(report.drops.into_iter().map(|(category, count)| (category.to_string(), count)));
            if report.circuit_drops > 0 {
                dropped.insert(String::new(), report.circuit_drops);
            }
        }
        drops.retain(|_, dropped| !dropped.is_empty());
        let mut expected = self.naive.loads.clone();
        expected.retain(|_, counts| *counts != [0; 4]);
        Invariant::Loads.holds(told == expected, || format!("{expected:?} is to be told, and not {told:?}"))?;
        let expected = &self.naive.drops;
        Invariant::Loads.holds(drops == *expected, || format!("{expected:?} were dropped, and not {drops:?}"))
    }
}

/// Equal, and nothing of it is shared.
fn deep_clone(config: &XdsConfig) -> Arc<XdsConfig> {
    let mut copy = config.clone();
    copy.listener = Arc::new((*config.listener).clone());
    copy.virtual_host = Arc::new((*config.virtual_host).clone());
    let deep = |entry: &Arc<ClusterConfig>| {
        let mut cluster = (**entry).clone();
        cluster.cluster = Arc::new((*cluster.cluster).clone());
        if let ClusterChildren::Endpoints(Some(resolved)) = &mut cluster.children {
            *resolved = Arc::new((**resolved).clone());
        }
        Arc::new(cluster)
    };
    let entries = config.clusters.iter();
    copy.clusters = entries.map(|(name, entry)| (name.clone(), entry.as_ref().map(deep).map_err(Arc::clone))).collect();
    Arc::new(copy)
}

fn is_same_send(to: &mainstay_lb::SendTo<'_, Handle>, cookie: Option<&str>, sent: &Sent) -> bool {
    to.subchannel.key == sent.addr.key
        && to.origin.cluster == sent.addr.cluster
        && to.origin.locality == sent.addr.locality
        && *to.cluster == sent.cluster
        && to.limit == sent.limit
        && to.authority == sent.authority.as_deref()
        && cookie == sent.cookie.as_deref()
        && to.wake.is_some() == sent.wake.is_some()
        && to.keep.is_some() == sent.keep.is_some()
}

fn is_same_failure(failure: &Failure, reason: &Reason) -> bool {
    let causes = |text: &str| text.matches("cause-").count() + text.matches("ejected").count();
    let expected: usize = reason.text.iter().map(|text| causes(text)).sum();
    failure.code == Code::Unavailable
        && failure.no_config == reason.no_config
        && failure.cluster == reason.leaf
        && reason.text.iter().all(|part| failure.message.contains(part))
        && causes(&failure.message) == expected
}

fn brief(decision: &Decision<'_, Handle>) -> String {
    match decision {
        Decision::Send(to) => format!("sent to {}", to.subchannel.key.0),
        other @ Decision::Wait(..)
        | other @ Decision::Fail(_)
        | other @ Decision::Drop(_)
        | other @ Decision::Inject(_) => format!("{other:?}"),
    }
}
