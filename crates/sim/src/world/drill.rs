//! Drills at the end of a world, when everything works: where RPCs go, how they spread over endpoints, and what they
//! do when endpoints fail.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_lb::{CallTracker, Chosen, Decision, Ending, Input, Rpc};
use mainstay_xds::Code;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::orca::ORCA_TRAILER;
use mainstay_xds::resource::ResourceType;
use prost::Message;

use super::{Event, World};
use crate::choose::Seeded;
use crate::invariant::{Invariant, Violation};
use crate::oracle::Known;
use crate::oracle::picture::{Part, Picture, Priority};
use crate::resources::{Lb, Policy, Spec, Way, route};

/// What became of an RPC.
enum Fate {
    Sent(Sent),
    Dropped,
    Failed(String),
}

/// An RPC on its way.
struct Sent {
    cluster: String,
    address: SocketAddr,
    tracker: CallTracker,
}

/// A cluster with endpoints of its own.
struct Leaf {
    /// A path that leads to it.
    path: String,
    lb: Lb,
    drop: u32,
    priorities: Vec<Priority>,
}

impl World {
    /// Tries out everything that the routes lead to.
    pub(super) fn drill(&mut self) -> Result<(), Violation> {
        let picture = self.oracle.as_ref().and_then(|oracle| oracle.1.picture.clone());
        let Some(picture) = picture.filter(|_| matches!(self.core.config(), Some(Ok(_)))) else { return Ok(()) };
        self.note(|_| "a drill:".to_owned());
        let choose = &mut Seeded::new(DRILL);
        self.drill_routes(choose, &picture)?;
        if !self.scenario.drills && self.scenario.grain == crate::scenario::Grain::Coarse {
            return Ok(());
        }
        let leaves = self.leaves(&picture);
        for leaf in &leaves {
            self.drill_spread(choose, leaf)?;
            self.drill_breaker(choose, leaf)?;
        }
        if self.scenario.drills {
            for leaf in leaves.iter().take(1) {
                self.drill_weights(choose, leaf)?;
                self.drill_outlier(choose, leaf)?;
                self.drill_failover(choose, leaf)?;
                self.drill_outage(choose, leaf)?;
            }
        }
        Ok(())
    }

    /// Every kind of route leads where it should.
    fn drill_routes(&mut self, choose: &mut Seeded, picture: &Picture) -> Result<(), Violation> {
        let numbered = (0..picture.roots.len().min(3)).map(|index| (format!("/{index}/x"), None));
        let others: [(&str, Option<(&str, &str)>); 13] = [
            ("/exact/path", None),
            ("/exact/paths", None),
            ("/re/abc", None),
            ("/re/abd", None),
            ("/re/", None),
            ("/head/x", None),
            ("/head/x", Some(("x-c", "last"))),
            ("/head/x", Some(("x-c", "first"))),
            ("/head/x", Some(("x-n", "9"))),
            ("/head/x", Some(("x-n", "10"))),
            ("/head/x", Some(("x-n", "19"))),
            ("/head/x", Some(("x-n", "20"))),
            ("/dead/x", None),
        ];
        for (path, header) in numbered.chain(others.map(|(path, header)| (path.to_owned(), header))) {
            let Some(way) = route(&picture.roots, &path, header) else { continue };
            let expected = match way {
                Way::To(cluster) => Some(cluster),
                Way::Nowhere => None,
                Way::Split(_) => continue,
            };
            let fate = self.call(choose, &path, header)?;
            let went = match &fate {
                Fate::Sent(sent) => Some(sent.cluster.as_str()),
                Fate::Dropped | Fate::Failed(_) => None,
            };
            let can_go = expected.is_some_and(|cluster| self.can_serve(picture, cluster));
            let is_right = if can_go { went == expected || matches!(fate, Fate::Dropped) } else { went.is_none() };
            let went = went.map(str::to_owned);
            if let Fate::Sent(sent) = fate {
                sent.tracker.end(OK);
            }
            Invariant::Traffic.holds(is_right, || {
                format!("{path} with {header:?} went to {went:?}: expected {expected:?}, which can serve: {can_go}")
            })?;
        }
        self.drill_split(choose, picture)
    }

    /// Weighted clusters get their shares.
    fn drill_split(&mut self, choose: &mut Seeded, picture: &Picture) -> Result<(), Violation> {
        let Some(Way::Split(shares)) = route(&picture.roots, "/split/x", None) else { return Ok(()) };
        let all_serve = shares.iter().all(|(cluster, _)| self.can_serve(picture, cluster));
        if !all_serve || shares.len() > 4 || self.shell.is_limited() {
            return Ok(());
        }
        let mut went: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..DRAWS {
            if let Fate::Sent(sent) = self.call(choose, "/split/x", None)? {
                *went.entry(sent.cluster).or_default() += 1;
                sent.tracker.end(OK);
            }
        }
        let whole: u32 = shares.iter().map(|(_, weight)| weight).sum();
        for (cluster, weight) in shares {
            let got = went.get(cluster).copied().unwrap_or_default();
            let share = f64::from(weight) / f64::from(whole);
            is_about(got, DRAWS, share)
                .map_err(|what| Invariant::Spread.broken(format!("weighted cluster {cluster} got {what}")))?;
        }
        Ok(())
    }

    /// RPCs spread over the endpoints of the first priority that has any.
    fn drill_spread(&mut self, choose: &mut Seeded, leaf: &Leaf) -> Result<(), Violation> {
        let Leaf { path, lb, drop, priorities } = leaf;
        let Some(localities) = priorities.iter().find(|localities| localities.iter().any(|(_, all)| !all.is_empty()))
        else {
            return Ok(());
        };
        let endpoints: Vec<&Vec<SocketAddr>> = localities.iter().flat_map(|(_, all)| all).collect();
        let place = |address: SocketAddr| endpoints.iter().position(|addresses| addresses.contains(&address));
        let rounds = 4 * u32::try_from(endpoints.len()).unwrap_or(1);
        let is_random = matches!(lb.policy, Policy::LeastRequest | Policy::Weighted);
        let wanted = if localities.len() > 1 || is_random { DRAWS } else { rounds };
        let mut got = vec![0u32; endpoints.len()];
        let (mut sent, mut dropped) = (0, 0);
        let mut by_key: BTreeMap<u32, usize> = BTreeMap::new();
        // Idle endpoints of some policies connect only when RPCs come: let all of them be asked for once.
        for number in 0..WARM_UP {
            let key = format!("key{number}");
            if let Fate::Sent(sent) = self.call(choose, path, Some(("x-h", &key)))? {
                sent.tracker.end(OK);
            }
        }
        while sent < wanted && dropped < 4 * wanted {
            let key = (sent / 2) % (wanted / 2).max(1);
            let text = format!("key{key}");
            match self.call(choose, path, Some(("x-h", &text)))? {
                Fate::Dropped => dropped += 1,
                Fate::Failed(why) => {
                    return Err(Invariant::Traffic.broken(format!("{path} fails although everything works: {why}")));
                }
                Fate::Sent(call) => {
                    sent += 1;
                    let Some(place) = place(call.address) else {
                        let what = format!("{path} went to {}, which is not of the first priority", call.address);
                        return Err(Invariant::Spread.broken(what));
                    };
                    got[place] += 1;
                    if lb.policy == Policy::RingHash {
                        let before = *by_key.entry(key).or_insert(place);
                        Invariant::Spread.holds(before == place, || {
                            format!("{path}: RPCs with the same hash went to endpoints {before} and {place}")
                        })?;
                    }
                    call.tracker.end(OK);
                }
            }
        }
        Invariant::Traffic.holds(*drop > 0 || dropped == 0, || format!("{path}: {dropped} RPCs were dropped"))?;
        let share = f64::from(*drop) / 100.0;
        is_about(dropped, sent + dropped, share)
            .map_err(|what| Invariant::Spread.broken(format!("{path}: dropped were {what}")))?;
        let used = got.iter().filter(|count| **count > 0).count();
        match lb.policy {
            Policy::PickFirst => {
                Invariant::Spread.holds(used == 1, || format!("{path}: pick_first uses {used} endpoints"))
            }
            Policy::RingHash => Invariant::Spread.holds(used > 1 || endpoints.len() < 3 || sent < 24, || {
                format!("{path}: of {} endpoints one gets everything", endpoints.len())
            }),
            Policy::Subset => Invariant::Spread.holds(used == endpoints.len().min(2), || {
                format!("{path}: two of {} endpoints should be in use: {got:?}", endpoints.len())
            }),
            Policy::RoundRobin | Policy::LeastRequest | Policy::Weighted => {
                let whole: u32 = localities.iter().filter(|(_, all)| !all.is_empty()).map(|(weight, _)| weight).sum();
                let mut at = 0;
                for (weight, all) in localities {
                    let counts = &got[at..at + all.len()];
                    at += all.len();
                    if all.is_empty() {
                        continue;
                    }
                    let (most, least) = (counts.iter().max(), counts.iter().min());
                    let is_even = most.zip(least).is_none_or(|(most, least)| most - least <= 1);
                    Invariant::Spread.holds(is_even || lb.policy != Policy::RoundRobin, || {
                        format!("{path}: the endpoints of one locality got {counts:?}")
                    })?;
                    Invariant::Spread.holds(least.is_some_and(|least| *least > 0), || {
                        format!("{path}: an endpoint gets nothing: {counts:?}")
                    })?;
                    let share = f64::from(*weight) / f64::from(whole);
                    is_about(counts.iter().sum(), sent, share)
                        .map_err(|what| Invariant::Spread.broken(format!("{path}: a locality got {what}")))?;
                }
                Ok(())
            }
        }
    }

    /// As many RPCs as the circuit breaker allows, and not one more.
    fn drill_breaker(&mut self, choose: &mut Seeded, leaf: &Leaf) -> Result<(), Violation> {
        let Some(limit) = leaf.lb.max_requests.filter(|_| leaf.drop == 0) else { return Ok(()) };
        if leaf.priorities.iter().flatten().all(|(_, all)| all.is_empty()) {
            return Ok(());
        }
        for round in 0..2 {
            let mut sent = 0;
            for _ in 0..limit + 3 {
                if let Fate::Sent(call) = self.call(choose, &leaf.path, None)? {
                    sent += 1;
                    self.rpcs.push_back((call.address, Arc::new(call.tracker)));
                }
            }
            Invariant::Breaker.holds(sent == limit, || {
                format!("{}: {sent} RPCs at a time in round {round}, and {limit} are allowed", leaf.path)
            })?;
            self.end_rpcs();
        }
        Ok(())
    }

    /// An endpoint that fails its RPCs is ejected, and comes back (A50).
    fn drill_outlier(&mut self, choose: &mut Seeded, leaf: &Leaf) -> Result<(), Violation> {
        let is_simple = leaf.lb.policy == Policy::RoundRobin && leaf.drop == 0 && leaf.lb.max_requests.is_none();
        let Some([(_, all)]) = leaf.priorities.first().map(Vec::as_slice) else { return Ok(()) };
        if !leaf.lb.outlier_detection || !is_simple || all.len() < 3 {
            return Ok(());
        }
        let bad: BTreeSet<SocketAddr> = all[0].iter().copied().collect();
        // A new interval begins, so that nothing counts that was before it.
        self.run_on(choose, INTERVAL)?;
        self.send_all(choose, leaf, 8 * all.len(), |address| if bad.contains(&address) { FAILED } else { OK })?;
        self.run_on(choose, INTERVAL)?;
        let hit = self.send_all(choose, leaf, 4 * all.len(), |_| OK)?;
        Invariant::Spread.holds(!hit.iter().any(|address| bad.contains(address)), || {
            format!("{}: an endpoint that failed all its RPCs is still in use", leaf.path)
        })?;
        Invariant::Spread.holds(hit.len() + 1 == all.len(), || {
            format!("{}: of {} endpoints {} are in use, and one failed", leaf.path, all.len(), hit.len())
        })?;
        self.run_on(choose, INTERVAL)?;
        let hit = self.send_all(choose, leaf, 4 * all.len(), |_| OK)?;
        Invariant::Spread.holds(!hit.iter().any(|address| bad.contains(address)), || {
            format!("{}: an endpoint is back before its time", leaf.path)
        })?;
        self.run_on(choose, 3 * INTERVAL)?;
        let hit = self.send_all(choose, leaf, 4 * all.len(), |_| OK)?;
        Invariant::Spread.holds(hit.len() == all.len(), || {
            format!("{}: of {} endpoints {} are in use after the ejection", leaf.path, all.len(), hit.len())
        })
    }

    /// Endpoints that report less load get more (A58).
    fn drill_weights(&mut self, choose: &mut Seeded, leaf: &Leaf) -> Result<(), Violation> {
        let is_simple = leaf.lb.policy == Policy::Weighted && leaf.drop == 0 && leaf.lb.max_requests.is_none();
        let Some([(_, all)]) = leaf.priorities.first().map(Vec::as_slice) else { return Ok(()) };
        if !is_simple || all.len() < 2 {
            return Ok(());
        }
        let loads: Vec<f64> = (1..=all.len()).map(|place| 0.2 * place as f64).collect();
        let reports: Vec<HeaderMap> = loads.iter().map(|load| load_report(*load)).collect();
        let place = |address: SocketAddr| all.iter().position(|addresses| addresses.contains(&address));
        let report = |address| Ending { code: Code::Ok, trailers: place(address).and_then(|place| reports.get(place)) };
        // They must have reported for ten seconds before it counts.
        for _ in 0..13 {
            self.send_all(choose, leaf, 3 * all.len(), report)?;
            self.run_on(choose, Duration::from_secs(1))?;
        }
        let mut got = vec![0; all.len()];
        for _ in 0..DRAWS {
            if let Fate::Sent(call) = self.call(choose, &leaf.path, None)? {
                if let Some(place) = place(call.address) {
                    got[place] += 1;
                }
                call.tracker.end(report(call.address));
            }
        }
        let whole: f64 = loads.iter().map(|load| 1.0 / load).sum();
        for (count, load) in got.iter().zip(&loads) {
            is_about(*count, DRAWS, 1.0 / load / whole).map_err(|what| {
                Invariant::Spread.broken(format!("{}: an endpoint with load {load} got {what}", leaf.path))
            })?;
        }
        Invariant::Spread
            .holds(got.first() > got.last(), || format!("{}: endpoints with loads {loads:?} got {got:?}", leaf.path))
    }

    /// Sends so many RPCs and ends them; the addresses that got any.
    fn send_all<'e>(
        &mut self,
        choose: &mut Seeded,
        leaf: &Leaf,
        count: usize,
        ending: impl Fn(SocketAddr) -> Ending<'e>,
    ) -> Result<BTreeSet<SocketAddr>, Violation> {
        let mut hit = BTreeSet::new();
        for _ in 0..count {
            match self.call(choose, &leaf.path, None)? {
                Fate::Sent(call) => {
                    hit.insert(call.address);
                    call.tracker.end(ending(call.address));
                }
                Fate::Dropped => {}
                Fate::Failed(why) => {
                    return Err(Invariant::Traffic.broken(format!("{} fails in a drill: {why}", leaf.path)));
                }
            }
        }
        Ok(hit)
    }

    /// When a whole priority fails the next one takes over in time, and gives back in time (A56).
    fn drill_failover(&mut self, choose: &mut Seeded, leaf: &Leaf) -> Result<(), Violation> {
        let addresses = |localities: &Priority| -> BTreeSet<SocketAddr> {
            localities.iter().flat_map(|(_, all)| all).flatten().copied().collect()
        };
        let used: Vec<_> = leaf.priorities.iter().map(addresses).filter(|all| !all.is_empty()).collect();
        let [first, second, ..] = used.as_slice() else { return Ok(()) };
        if !first.is_disjoint(second) {
            return Ok(());
        }
        for address in first {
            self.step(choose, &Event::BackendDown(*address))?;
        }
        self.run_on(choose, FAILOVER)?;
        let hit = self.send_all(choose, leaf, 8, |_| OK)?;
        Invariant::Spread.holds(hit.is_subset(second), || {
            format!("{}: the first priority is down, and RPCs go to {hit:?}: expected {second:?}", leaf.path)
        })?;
        for address in first {
            self.step(choose, &Event::BackendUp(*address))?;
        }
        self.run_on(choose, FAILOVER)?;
        let hit = self.send_all(choose, leaf, 8, |_| OK)?;
        Invariant::Spread.holds(hit.is_subset(first), || {
            format!(
                "{} by {:?}: the first priority is back, and RPCs go to {hit:?}: expected {first:?}",
                leaf.path, leaf.lb
            )
        })
    }

    /// RPCs fail when all endpoints do, and are sent again soon after these are back. An endpoint with several addresses
    /// is there as long as one of them is.
    fn drill_outage(&mut self, choose: &mut Seeded, leaf: &Leaf) -> Result<(), Violation> {
        let endpoints: Vec<&Vec<SocketAddr>> = leaf.priorities.iter().flatten().flat_map(|(_, all)| all).collect();
        let Some(last) = endpoints.last().filter(|_| leaf.lb.policy != Policy::Subset) else { return Ok(()) };
        let down: Vec<SocketAddr> =
            endpoints.iter().copied().flatten().copied().filter(|a| Some(a) != last.last()).collect();
        for address in &down {
            self.step(choose, &Event::BackendDown(*address))?;
        }
        self.run_on(choose, 2 * FAILOVER)?;
        let hit = self.send_all(choose, leaf, 4, |_| OK)?;
        Invariant::Spread.holds(hit.iter().all(|address| Some(address) == last.last()), || {
            format!("{}: one address works, and RPCs go to {hit:?}", leaf.path)
        })?;
        if let Some(address) = last.last() {
            self.step(choose, &Event::BackendDown(*address))?;
        }
        self.run_on(choose, 2 * FAILOVER)?;
        match self.call(choose, &leaf.path, None)? {
            Fate::Failed(_) | Fate::Dropped => {}
            Fate::Sent(sent) => {
                return Err(
                    Invariant::Traffic.broken(format!("{} is sent to {}, which is down", leaf.path, sent.address))
                );
            }
        }
        for address in endpoints.into_iter().flatten() {
            self.step(choose, &Event::BackendUp(*address))?;
        }
        self.run_on(choose, FAILOVER)?;
        self.shell.troubled.clear();
        self.shell.failing.clear();
        self.drill_spread(choose, leaf)
    }

    /// Makes an RPC and waits until it is decided about.
    fn call(&mut self, choose: &mut Seeded, path: &str, header: Option<(&str, &str)>) -> Result<Fate, Violation> {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header
            && let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value))
        {
            headers.insert(name, value);
        }
        let mut chosen = Chosen::default();
        for _ in 0..MAX_WAITS {
            self.shell.lend();
            self.stats.rpcs += 1;
            let snapshot = self.snapshot.clone();
            let wake = match snapshot.decide_again(Rpc { path, headers: &headers }, &mut chosen, choose) {
                Decision::Send(to) => {
                    self.stats.rpcs_sent += 1;
                    self.loads.picked(&to.origin.cluster);
                    let (cluster, address) = (to.cluster.to_string(), to.subchannel.address);
                    let wake = to.wake;
                    let sent = Sent { cluster, address, tracker: to.tracker };
                    if let Some(wake) = wake {
                        self.input(choose, Input::Wake(wake));
                    }
                    return Ok(Fate::Sent(sent));
                }
                Decision::Drop(failure) if failure.message.contains("matching route") => {
                    return Ok(Fate::Failed(failure.message));
                }
                Decision::Drop(_) => return Ok(Fate::Dropped),
                Decision::Fail(failure) => return Ok(Fate::Failed(failure.message)),
                Decision::Wait(_, wake) => wake,
                Decision::Inject(_) => None,
            };
            if let Some(wake) = wake {
                self.input(choose, Input::Wake(wake));
                self.settle(choose)?;
            }
            match self.pending().into_iter().next() {
                Some(event) => self.step(choose, &event)?,
                None => self.step(choose, &Event::Time)?,
            }
        }
        Err(Invariant::Traffic.broken(format!("{path}: an RPC waits for ever although everything works")))
    }

    /// Lets the world go on for so long.
    fn run_on(&mut self, choose: &mut Seeded, span: Duration) -> Result<(), Violation> {
        let end = self.now + span;
        loop {
            if let Some(event) = self.pending().into_iter().next() {
                self.step(choose, &event)?;
            } else if self.next_deadline().is_some_and(|next| next <= end) {
                self.step(choose, &Event::Time)?;
            } else {
                self.now = end;
                return Ok(());
            }
        }
    }

    /// The leaves that paths lead to.
    fn leaves(&self, picture: &Picture) -> Vec<Leaf> {
        let roots = picture.roots.iter().enumerate().take(2);
        roots.filter_map(|(index, cluster)| self.leaf(picture, format!("/{index}/x"), cluster)).collect()
    }

    fn leaf(&self, picture: &Picture, path: String, cluster: &str) -> Option<Leaf> {
        let oracle = &self.oracle.as_ref()?.0;
        let Some(Part::Leaf(_, Some(priorities))) = picture.parts.get(cluster) else { return None };
        let key = |resource_type, name: &str| ResourceKey { resource_type, name: name.into() };
        let (lb, drop) = match oracle.known(&key(ResourceType::Cluster, cluster)) {
            Known::Value(Spec::Eds { service, lb, .. }, _) => {
                let service = if service.is_empty() { cluster } else { service };
                let drop = match oracle.known(&key(ResourceType::Endpoints, service)) {
                    Known::Value(Spec::Endpoints { drop, .. }, _) => *drop,
                    Known::Value(..) | Known::Nothing(_) | Known::Trouble | Known::Awaited => 0,
                };
                (*lb, drop)
            }
            Known::Value(..) | Known::Nothing(_) | Known::Trouble | Known::Awaited => (Lb::default(), 0),
        };
        Some(Leaf { path, lb, drop, priorities: priorities.clone() })
    }

    /// Whether a cluster has an endpoint.
    fn can_serve(&self, picture: &Picture, cluster: &str) -> bool {
        !picture.addresses(cluster).is_empty()
    }
}

/// Trailers with a report of load: utilization, at a hundred RPCs per second.
fn load_report(utilization: f64) -> HeaderMap {
    let report = Report { rps: 100.0, utilization };
    let mut trailers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&base64(&report.encode_to_vec())) {
        trailers.insert(ORCA_TRAILER, value);
    }
    trailers
}

/// The fields of `xds.data.orca.v3.OrcaLoadReport` that weights are made of.
#[derive(Clone, PartialEq, Message)]
struct Report {
    #[prost(double, tag = "6")]
    rps: f64,
    #[prost(double, tag = "9")]
    utilization: f64,
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Whether so many of so many are about this share of them: within six standard deviations, and a few for small numbers.
fn is_about(got: u32, of: u32, share: f64) -> Result<(), String> {
    let expected = f64::from(of) * share;
    let deviation = (f64::from(of) * share * (1.0 - share)).sqrt();
    let is_near = (f64::from(got) - expected).abs() <= 6.0 * deviation + 3.0;
    if is_near || share >= 1.0 { Ok(()) } else { Err(format!("{got} of {of}: expected about {expected:.0}")) }
}

const OK: Ending<'static> = Ending { code: Code::Ok, trailers: None };
const FAILED: Ending<'static> = Ending { code: Code::Unavailable, trailers: None };

/// Where the draws of a drill come from: it is the same each time.
const DRILL: u64 = 77;

/// How many RPCs show a share.
const DRAWS: u32 = 120;

/// How many hash keys are tried first.
const WARM_UP: u32 = 8;

/// How long one RPC may take to be decided about, in events.
const MAX_WAITS: usize = 400;

/// The interval of outlier detection in these worlds.
const INTERVAL: Duration = Duration::from_secs(10);

/// How long a priority may take to fail over and back: the failover timer, and a backoff.
const FAILOVER: Duration = Duration::from_secs(12);
