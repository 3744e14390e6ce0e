//! Rehearses outages of somebody's own setup: which of its calls would be lost, for how long, and what would help?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_lb::{Step, Trace};
use mainstay_xds::bootstrap::{Bootstrap, DeltaMode, LastGood, ServerConfig};
use mainstay_xds::client::{ClientSettings, Report};
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::local::LocalSet;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::target::{Target, TargetError};

mod probe;
mod stage;

pub use probe::Request;

use probe::{DRAWS, Draws};
use stage::{Fault, Stage, Verdict};

/// A client, its servers, and what all of them serve.
#[derive(Clone, Debug)]
pub struct Setup {
    target: Target,
    bootstrap: Arc<Bootstrap>,
    servers: Vec<Arc<ServerConfig>>,
    resources: Vec<(ResourceType, String, Bytes)>,
    client: ClientSettings,
    deps: DepsSettings,
    /// Calls that would wait longer are lost.
    deadline: Duration,
}

/// What a rehearsal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// The target of the client.
    pub target: String,
    /// Its servers, in order.
    pub servers: Vec<String>,
    /// The calls that were tried.
    pub calls: Vec<Call>,
    /// Routes for which no call was found.
    pub unreached: Vec<usize>,
    /// What happens without an outage, then with each.
    pub outages: Vec<Outage>,
    /// What would make outages cost less.
    pub remedies: Vec<Remedy>,
}

/// One way that calls go: a request, and where chance takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The request.
    pub request: Request,
    /// The cluster of the route; `None` if it does not come to that.
    pub cluster: Option<String>,
    /// How many of a hundred such requests go this way.
    pub percent: u64,
    /// What becomes of it when everything works.
    pub usual: Fate,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is sent to an endpoint.
    Sent,
    /// The configuration ends it: a fault filter, a drop, a limit.
    OnPurpose,
    /// It waits.
    Wait,
    /// It fails.
    Fail,
}

/// An outage, from beginning to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// What it is called in `--allow`, such as `down-at-start@primary:443`.
    pub id: String,
    /// What goes wrong, in words.
    pub title: String,
    /// When it begins and ends.
    pub span: (Duration, Duration),
    /// When nobody looks any more.
    pub end: Duration,
    /// What becomes of each call from when on, and why. The calls are those of the rehearsal.
    pub fates: Vec<Vec<(Duration, Fate, String)>>,
    /// What is seen of servers and client, in order.
    pub timeline: Vec<(Duration, String)>,
    /// Which calls it costs.
    pub costs: Vec<Cost>,
    /// The longest that a call waits which is not lost.
    pub longest_wait: Duration,
}

/// Calls that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Which of the rehearsal's.
    pub call: usize,
    /// For how long those that begin are lost.
    pub lost: Duration,
    /// Why, of the first of them.
    pub why: String,
}

/// Something that would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// What.
    pub what: String,
    /// The outages that cost nothing with it: all of them were played again.
    pub mended: Vec<String>,
}

impl Setup {
    /// A client for `target` with this bootstrap, every server of which serves these resources.
    ///
    /// # Errors
    /// If the bootstrap has no place for the target.
    pub fn new(
        target: &str,
        mut bootstrap: Bootstrap,
        resources: Vec<(ResourceType, String, Bytes)>,
    ) -> Result<Self, TargetError> {
        // Which variant of ADS a server speaks makes no difference to an outage; the planes here speak one.
        let own_lists = bootstrap.authorities.values_mut().map(|authority| &mut authority.servers);
        for server in own_lists.chain([&mut bootstrap.servers]).flatten() {
            if !server.is_local() {
                Arc::make_mut(server).features.delta = DeltaMode::Off;
            }
        }
        let target = Target::resolve(target, &bootstrap)?;
        let deps = DepsSettings { federation: bootstrap.guards.federation, ..DepsSettings::default() };
        Ok(Self {
            servers: servers(&bootstrap),
            target,
            bootstrap: Arc::new(bootstrap),
            resources,
            client: ClientSettings { reconnect_spread: Duration::ZERO, ..ClientSettings::default() },
            deps,
            deadline: Duration::from_secs(15),
        })
    }

    /// Sets how long calls may wait; 15 s by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The name of the Listener that the target needs.
    pub fn listener(&self) -> &str {
        &self.target.listener
    }

    /// Plays every outage, of each server and of all, from the start and in the middle; and what would help.
    pub fn rehearse(&self) -> Rehearsal {
        let (calm, calls, unreached, kept) = self.calm();
        let outages: Vec<Outage> =
            kinds(self).into_iter().map(|kind| self.play(&kind, &calls, kept.clone(), Some(&calm))).collect();
        let remedies = self.remedies(&calls, &outages);
        Rehearsal {
            target: self.target.canonical.to_string(),
            servers: self.servers.iter().map(|server| server.server_uri.clone()).collect(),
            calls,
            unreached,
            outages: [calm].into_iter().chain(outages).collect(),
            remedies,
        }
    }

    /// What happens when everything works: the outage that is none, which calls there are, routes for which none was found, and
    /// what last-good files would have after it.
    fn calm(&self) -> (Outage, Vec<Call>, Vec<usize>, Option<Arc<LocalSet>>) {
        let mut stage = Stage::new(self, None, &[]);
        while stage.step(CALM) {}
        let (requests, unreached) = requests(&stage);
        let mut calls: Vec<Call> = requests.iter().flat_map(|request| ways(&mut stage, request)).collect();
        let excluded = self.bootstrap.last_good.as_ref().map_or(&[][..], |last_good| &last_good.exclude_types);
        let kept = stage.kept(excluded);
        let kind =
            Kind { id: "no-outage".to_owned(), title: "no outage".to_owned(), faults: Vec::new(), at_start: true };
        let calm = self.play(&kind, &calls, kept.clone(), None);
        for (call, fates) in calls.iter_mut().zip(&calm.fates) {
            call.usual = fates.last().map_or(Fate::Wait, |(_, fate, _)| *fate);
        }
        (calm, calls, unreached, kept)
    }

    fn play(&self, kind: &Kind, calls: &[Call], kept: Option<Arc<LocalSet>>, calm: Option<&Outage>) -> Outage {
        let mut watch =
            Watch { calls, fates: vec![Vec::new(); calls.len()], timeline: Vec::new(), told: BTreeMap::new() };
        let begin = if kind.at_start { Duration::ZERO } else { CALM };
        let is_outage = !kind.faults.is_empty();
        let mut stage = Stage::new(self, kept, if kind.at_start { &kind.faults } else { &[] });
        if kind.at_start && is_outage {
            watch.timeline.push((begin, kind.title.clone()));
        }
        watch.look(&mut stage);
        if !kind.at_start {
            watch.run(&mut stage, begin);
            watch.timeline.push((begin, kind.title.clone()));
            stage.begin(&kind.faults);
            watch.look(&mut stage);
        }
        watch.run(&mut stage, begin + OUTAGE);
        if is_outage {
            watch.timeline.push((begin + OUTAGE, "everything works again".to_owned()));
        }
        stage.heal();
        watch.look(&mut stage);
        let end = begin + OUTAGE + AFTERMATH;
        watch.run(&mut stage, end);
        let Watch { fates, mut timeline, .. } = watch;
        timeline.sort_by_key(|(at, _)| *at);
        let mut outage = Outage {
            id: kind.id.clone(),
            title: kind.title.clone(),
            span: (begin, begin + OUTAGE),
            end,
            fates,
            timeline,
            costs: Vec::new(),
            longest_wait: Duration::ZERO,
        };
        outage.weigh(self.deadline, calm);
        outage
    }

    /// What of a few things would mend outages that cost calls. Each is tried.
    fn remedies(&self, calls: &[Call], outages: &[Outage]) -> Vec<Remedy> {
        let costly: Vec<&str> = outages.iter().filter(|outage| !outage.costs.is_empty()).map(|o| &*o.id).collect();
        if costly.is_empty() {
            return Vec::new();
        }
        let with = |what: &str, bootstrap: Bootstrap| {
            let setup = Self { servers: servers(&bootstrap), bootstrap: Arc::new(bootstrap), ..self.clone() };
            let (calm, _, _, kept) = setup.calm();
            let is_mended = |kind: &Kind| setup.play(kind, calls, kept.clone(), Some(&calm)).costs.is_empty();
            // Servers that there were before keep their places, so that outages of theirs have the same names.
            let kinds = kinds(&setup).into_iter().filter(|kind| costly.contains(&&*kind.id));
            let mended = kinds.filter(is_mended).map(|kind| kind.id).collect();
            Remedy { what: what.to_owned(), mended }
        };
        let bootstrap = || Bootstrap::clone(&self.bootstrap);
        let mut remedies = Vec::new();
        if self.bootstrap.last_good.is_none() {
            remedies.push(with(
                "last-good files (\"last_good\": {\"directory\": ...} in the bootstrap), from the second start on",
                bootstrap().with_last_good(LastGood::new("rehearsal")),
            ));
        }
        if self.servers.iter().filter(|server| !server.is_local()).count() == 1 {
            let mut more = bootstrap();
            let another = Arc::new(ServerConfig::insecure("another-server:443"));
            let own_lists = more.authorities.values_mut().map(|authority| &mut authority.servers);
            for list in own_lists.filter(|list| !list.is_empty()).chain([&mut more.servers]) {
                let place = list.iter().position(|server| server.is_local()).unwrap_or(list.len());
                list.insert(place, another.clone());
            }
            remedies.push(with("a second server in xds_servers", more));
        }
        remedies.retain(|remedy| !remedy.mended.is_empty());
        remedies
    }
}

/// Every server once, in the order in which they are asked.
fn servers(bootstrap: &Bootstrap) -> Vec<Arc<ServerConfig>> {
    let authorities = bootstrap.authorities.values().flat_map(|authority| &authority.servers);
    let mut servers: Vec<Arc<ServerConfig>> = Vec::new();
    for server in bootstrap.servers.iter().chain(authorities) {
        if !servers.iter().any(|known| known.server_uri == server.server_uri) {
            servers.push(server.clone());
        }
    }
    servers
}

// === Which outages ===

struct Kind {
    id: String,
    title: String,
    at_start: bool,
    faults: Vec<(usize, Fault)>,
}

fn kinds(setup: &Setup) -> Vec<Kind> {
    let remote = setup.servers.iter().enumerate().filter(|(_, server)| !server.is_local());
    let remote: Vec<(usize, &str)> = remote.map(|(at, server)| (at, &*server.server_uri)).collect();
    let each = remote.iter().map(|(at, uri)| (uri.to_string(), vec![*at]));
    let all = (remote.len() > 1).then(|| ("all".to_owned(), remote.iter().map(|(at, _)| *at).collect()));
    let mut kinds = Vec::new();
    for (who, places) in each.chain(all) {
        let name = if who == "all" { "every server" } else { &who };
        for (at_start, when) in [(true, "at-start"), (false, "in-use")] {
            for (fault, what, words) in [
                (Fault::Down, "down", "refuses connections"),
                (Fault::BlackHole, "unreachable", "cannot be reached: packets vanish"),
                (Fault::Mute, "silent", "is alive and sends no resources"),
            ] {
                kinds.push(Kind {
                    id: format!("{what}-{when}@{who}"),
                    title: format!("{name} {words}{}", if at_start { ", from the start" } else { "" }),
                    at_start,
                    faults: places.iter().map(|place| (*place, fault)).collect(),
                });
            }
        }
    }
    kinds
}

// === Which calls ===

/// A request for each route in force that can be reached, and the routes for which none was found.
fn requests(stage: &Stage) -> (Vec<Request>, Vec<usize>) {
    let routes = match stage.config() {
        Some(Ok(config)) => config.virtual_host.routes.clone(),
        Some(Err(_)) | None => Vec::new(),
    };
    let (mut found, mut unreached): (Vec<Request>, _) = (Vec::new(), Vec::new());
    for (at, route) in routes.iter().enumerate() {
        let draws =
            if route.fraction.is_some() || routes[..at].iter().any(|r| r.fraction.is_some()) { DRAWS } else { 1 };
        let reaches = |request: &Request| (0..draws).any(|draw| route_of(stage, request, draw) == Some(at));
        match probe::candidates(&routes, at).into_iter().find(reaches) {
            Some(request) if found.contains(&request) => {}
            Some(request) => found.push(request),
            None => unreached.push(at),
        }
    }
    if found.is_empty() {
        found.push(probe::any());
    }
    (found, unreached)
}

fn route_of(stage: &Stage, request: &Request, draw: u64) -> Option<usize> {
    let trace = Trace::default();
    stage.verdict(request, Draws::number(draw), Some(&trace));
    trace.into_steps().into_iter().find_map(|step| match step {
        Step::Matched { route, .. } => Some(route),
        _ => None,
    })
}

/// The ways that a request may go by chance.
fn ways(stage: &mut Stage, request: &Request) -> Vec<Call> {
    let mut ways: Vec<Call> = Vec::new();
    for draw in 0..DRAWS {
        stage.wake(request, Draws::number(draw));
        let trace = Trace::default();
        let verdict = stage.verdict(request, Draws::number(draw), Some(&trace));
        let cluster = trace.into_steps().into_iter().rev().find_map(|step| match step {
            Step::SessionCluster(cluster) | Step::Cluster(cluster) => Some(cluster.to_string()),
            _ => None,
        });
        let usual = verdict.fate();
        match ways
            .iter_mut()
            .find(|way| way.cluster == cluster && (way.usual == Fate::OnPurpose) == (usual == Fate::OnPurpose))
        {
            Some(way) => way.percent += 1,
            None => ways.push(Call { request: request.clone(), cluster, percent: 1, usual }),
        }
    }
    ways
}

impl Call {
    /// Draws with which the request goes this way, if it still does.
    fn draws(&self, stage: &Stage, hint: &mut Option<u64>) -> Draws {
        let goes = |draw: &u64| {
            let trace = Trace::default();
            let verdict = stage.verdict(&self.request, Draws::number(*draw), Some(&trace));
            let steps = trace.into_steps();
            let to = steps.iter().rev().find_map(|step| match step {
                Step::SessionCluster(cluster) | Step::Cluster(cluster) => Some(cluster),
                _ => None,
            });
            to.map(|cluster| &**cluster) == self.cluster.as_deref()
                && (verdict.fate() == Fate::OnPurpose) == (self.usual == Fate::OnPurpose)
        };
        let found = hint.filter(goes).or_else(|| (0..DRAWS).find(goes));
        *hint = found.or(*hint);
        Draws::number(found.unwrap_or_default())
    }
}

// === What is seen ===

struct Watch<'a> {
    calls: &'a [Call],
    fates: Vec<Vec<(Duration, Fate, String)>>,
    timeline: Vec<(Duration, String)>,
    /// Why servers cannot be reached, as told last.
    told: BTreeMap<String, String>,
}

impl Watch<'_> {
    /// Lets time pass.
    fn run(&mut self, stage: &mut Stage, until: Duration) {
        for _ in 0..MAX_EVENTS {
            let is_more = stage.step(until);
            self.look(stage);
            if !is_more {
                return;
            }
        }
    }

    /// Takes down what is new.
    fn look(&mut self, stage: &mut Stage) {
        let now = stage.age();
        for report in stage.take_reports() {
            if self.is_news(&report) {
                self.timeline.push((now, report.to_string()));
            }
        }
        if !stage.take_stirred() {
            return;
        }
        let mut hints = vec![None; self.calls.len()];
        for (call, hint) in self.calls.iter().zip(&mut hints) {
            let draws = call.draws(stage, hint);
            stage.wake(&call.request, draws);
        }
        stage.take_stirred();
        for ((call, fates), hint) in self.calls.iter().zip(&mut self.fates).zip(&mut hints) {
            let verdict = stage.verdict(&call.request, call.draws(stage, hint), None);
            let (fate, why) = (verdict.fate(), verdict.why());
            if fates.last().is_none_or(|(_, before, _)| *before != fate) {
                fates.push((now, fate, why));
            }
        }
    }

    /// Whether whoever operates the setup wants to know, and does not know yet.
    fn is_news(&mut self, report: &Report) -> bool {
        match report {
            Report::Unreachable(server, cause, _) => {
                self.told.insert(server.server_uri.clone(), cause.clone()).as_ref() != Some(cause)
            }
            Report::StreamEnded(server, ..) | Report::Recovered(_, server) => {
                self.told.remove(&server.server_uri);
                true
            }
            Report::FellBack(..) | Report::TimedOut(..) | Report::Nacked(..) => true,
            Report::Connecting(_)
            | Report::Connected(..)
            | Report::Answered(_)
            | Report::Alive(_)
            | Report::DeltaRefused(..)
            | Report::Acked(..)
            | Report::Ignored(..)
            | Report::DeletionIgnored(..)
            | Report::DeletionOver(..)
            | Report::SecurityIgnored(_) => false,
        }
    }
}

impl Outage {
    /// Finds out which calls are lost: those that fail, and those that wait for longer than they may, or wait and fail then.
    /// What is lost without an outage as well is no cost of this one.
    fn weigh(&mut self, deadline: Duration, calm: Option<&Self>) {
        for (call, fates) in self.fates.iter().enumerate() {
            if calm.is_some_and(|calm| calm.fates[call].last().is_some_and(|(_, fate, _)| *fate == Fate::Fail)) {
                continue;
            }
            let end_of = |at: usize| fates.get(at + 1).map_or(self.end, |(next, ..)| *next);
            let (mut lost, mut first) = (Duration::ZERO, None);
            for (at, (from, fate, why)) in fates.iter().enumerate() {
                let (from, to) = ((*from).max(self.span.0), end_of(at));
                let Some(length) = to.checked_sub(from) else { continue };
                let gone = match fate {
                    Fate::Sent | Fate::OnPurpose => Duration::ZERO,
                    Fate::Fail => length,
                    // Who comes late in it waits for less.
                    Fate::Wait => match fates.get(at + 1) {
                        Some((_, Fate::Sent | Fate::OnPurpose, _)) => length.saturating_sub(deadline),
                        Some(_) | None => length,
                    },
                };
                if *fate == Fate::Wait && gone < length {
                    self.longest_wait = self.longest_wait.max(length - gone);
                }
                if !gone.is_zero() {
                    lost += gone;
                    first.get_or_insert_with(|| why.clone());
                }
            }
            let usual = calm.filter(|_| self.span.0.is_zero()).map_or(Duration::ZERO, |calm| calm.lost(call));
            let lost = lost.saturating_sub(usual);
            if let Some(why) = first.filter(|_| lost >= LEAST) {
                self.costs.push(Cost { call, lost, why });
            }
        }
    }

    fn lost(&self, call: usize) -> Duration {
        self.costs.iter().find(|cost| cost.call == call).map_or(Duration::ZERO, |cost| cost.lost)
    }

    /// What becomes of a call that begins at this time.
    pub fn fate(&self, call: usize, at: Duration) -> Fate {
        let fates = self.fates.get(call).into_iter().flatten();
        fates.take_while(|(from, ..)| *from <= at).last().map_or(Fate::Wait, |(_, fate, _)| *fate)
    }
}

impl Verdict {
    fn fate(&self) -> Fate {
        match self {
            Self::Sent { .. } => Fate::Sent,
            Self::OnPurpose(_) => Fate::OnPurpose,
            Self::Waits(_) => Fate::Wait,
            Self::Fails(..) => Fate::Fail,
        }
    }

    fn why(&self) -> String {
        match self {
            Self::Sent { cluster } => format!("to cluster {cluster:?}"),
            Self::OnPurpose(why) | Self::Waits(why) => why.clone(),
            Self::Fails(code, why) => format!("{}: {why}", code.name()),
        }
    }
}

impl Fate {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::OnPurpose => "on purpose",
            Self::Wait => "wait",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.request)?;
        if let Some(cluster) = &self.cluster {
            write!(f, "  to {cluster}")?;
        }
        if self.percent < 100 {
            write!(f, " ({} %)", self.percent)?;
        }
        Ok(())
    }
}

/// How long is looked at what happens before an outage of something in use: longer than a resource is waited for.
const CALM: Duration = Duration::from_secs(20);

/// How long an outage takes.
const OUTAGE: Duration = Duration::from_secs(30);

/// How long is looked at what follows.
const AFTERMATH: Duration = Duration::from_secs(60);

/// Less than this is lost only in a world where nothing takes time.
const LEAST: Duration = Duration::from_millis(1);

/// At most so many events in one part.
const MAX_EVENTS: usize = 100_000;
