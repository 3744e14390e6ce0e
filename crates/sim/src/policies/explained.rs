//! Whether what is told of a decision is true, and whether telling it changes it (OP-3).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_lb::explain::{Explanation, Outcome, Surroundings, explain};
use mainstay_lb::{
    Chosen, Connectivity, Context, Decision, Effect, Helper as _, Rpc, Snapshot, Step, SubchannelId, SubchannelSpec,
    Tree,
};
use mainstay_xds::deps::{ClusterConfig, XdsConfig};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::{Choose as _, Time};

use super::make::{Maker, Plan};
use super::shell::{Handle, Shell};
use super::steps;
use super::world::World;
use super::{EVENTS, NAME};
use crate::choose::{Choices, Seeded};
use crate::invariant::{Invariant, Violation};
use crate::run::Failure;

type Checked = Result<(), Violation>;

/// One random life, lived twice: RPCs are decided about with and without a recorder. Then RPCs on channels that are new,
/// as `explain` has them and as channels do. Answers how many decisions were compared.
///
/// # Errors
/// If they differ, or what was recorded is not what was decided.
pub fn run(seed: u64) -> Result<usize, Box<Failure>> {
    let (mut plain, mut recorded) = (World::new(seed), World::new(seed).recorded());
    let outcome = plain
        .live(EVENTS)
        .and_then(|()| recorded.live(EVENTS))
        .and_then(|()| {
            let same = plain.decisions == recorded.decisions;
            let differs = || {
                let pair = plain.decisions.iter().zip(&recorded.decisions).find(|(plain, recorded)| plain != recorded);
                format!("a recorder changes a decision: {pair:?}")
            };
            Invariant::Traffic.holds(same, differs)
        })
        .and_then(|()| explain_new(seed));
    match outcome {
        Ok(()) => Ok(plain.decisions.len() + RPCS),
        Err(violation) => {
            let (violation, scenario) = (Some(violation), format!("{NAME}{seed}"));
            let transcript = recorded.transcript;
            Err(Box::new(Failure { violation, scenario, choices: Choices::default(), transcript }))
        }
    }
}

/// What becomes of connections.
#[derive(Clone)]
struct Weather {
    seed: u64,
    busy: BTreeMap<String, u32>,
}

impl Surroundings for Weather {
    fn connect(&mut self, to: &SubchannelSpec) -> Connectivity {
        self.at(to.address)
    }

    fn in_flight(&mut self, cluster: &str, _: &str) -> u32 {
        self.busy.get(cluster).copied().unwrap_or(0)
    }
}

impl Weather {
    fn at(&self, address: SocketAddr) -> Connectivity {
        let mark = address.to_string().bytes().fold(self.seed, |mark, byte| mark.wrapping_mul(31) ^ u64::from(byte));
        match Seeded::new(mark).choose(4) {
            0 => Connectivity::TransientFailure("refused".into()),
            _ => Connectivity::Ready,
        }
    }
}

/// RPCs on channels that are new: what `explain` says, and what a channel does.
fn explain_new(seed: u64) -> Checked {
    let mut chance = Seeded::new(seed ^ 0xe5_0000_0000);
    let plan = Plan::new(seed, &mut chance);
    let config = Arc::new(Maker { chance: &mut chance, plan: &plan }.config());
    for at in 0..RPCS as u64 {
        let (path, headers) = Maker { chance: &mut chance, plan: &plan }.request(&[]);
        let rpc = Rpc { path: &path, headers: &headers };
        let mut weather = Weather { seed: seed * 1_000 + at, busy: BTreeMap::new() };
        for cluster in config.clusters.keys() {
            weather.busy.insert(cluster.to_string(), chance.choose(3) as u32);
        }
        let draws = Seeded::new(seed ^ at << 32);
        let told = explain(Ok(Arc::clone(&config)), &mut weather.clone(), rpc, &mut draws.clone());
        let done = do_it(&config, &weather, rpc, draws);
        let is_same = done == brief(&told);
        Invariant::Traffic.holds(is_same, || format!("{path} {headers:?}: {done}, and not as explained: {told:?}"))?;
        let is_matched = told.steps.iter().any(|step| matches!(step, Step::Matched { .. }));
        let (routes, passed) = (config.virtual_host.routes.len(), steps::passed(&told.steps).len());
        let text = || format!("{passed} of {routes} routes are passed: {told:?}");
        Invariant::Traffic.holds(is_matched || passed == routes, text)?;
    }
    Ok(())
}

/// What a channel does, with the shell of this simulator.
fn do_it(config: &Arc<XdsConfig>, weather: &Weather, rpc: Rpc<'_>, mut draws: Seeded) -> String {
    let (mut shell, mut tree) = (Shell::default(), Tree::<Handle>::new());
    let now = Time::from_nanos(7);
    let mut busy = Vec::new();
    for (name, cluster) in config.clusters.iter() {
        let eds = cluster.as_ref().ok().map_or(String::new(), |cluster| eds_service(cluster));
        let counter = shell.circuit_breaker(name, &eds);
        busy.extend((0..weather.busy[&**name]).map(|_| counter.acquire()));
    }
    tree.update(&mut Context { now, choose: &mut draws, helper: &mut shell }, Ok(Arc::clone(config)));
    let (mut snapshot, mut chosen) = (Arc::new(Snapshot::empty()), Chosen::default());
    for _ in 0..1_000 {
        let mut asked: VecDeque<_> = std::mem::take(&mut shell.asked).into();
        while let Some(key) = asked.pop_front() {
            let Some(id) = shell.connections.get(&key).map(|handle| handle.id) else { continue };
            let state = weather.at(key.0);
            shell.set_up(&key, state == Connectivity::Ready);
            connect(&mut tree, &mut shell, &mut draws, id, Connectivity::Connecting);
            connect(&mut tree, &mut shell, &mut draws, id, state);
            asked.extend(std::mem::take(&mut shell.asked));
        }
        snapshot = tree.poll_snapshot().unwrap_or(snapshot);
        match snapshot.decide_again(rpc, &mut chosen, &mut draws) {
            Decision::Send(to) => {
                return format!(
                    "{} {:?} {} {:?} {:?}",
                    to.subchannel.key.0, to.origin, to.cluster, to.limit, to.authority
                );
            }
            Decision::Wait(_, Some(wake)) => {
                tree.wake(&mut Context { now, choose: &mut draws, helper: &mut shell }, wake);
            }
            Decision::Wait(failure, None) => return format!("waits {failure:?}"),
            Decision::Fail(failure) => return format!("fails {failure:?}"),
            Decision::Drop(failure) => return format!("dropped {failure:?}"),
            Decision::Inject(effects) => {
                for injected in effects {
                    if let Effect::Abort(code) = injected.effect {
                        return format!("aborted {code:?}");
                    }
                }
            }
        }
    }
    "never".into()
}

fn connect(tree: &mut Tree<Handle>, shell: &mut Shell, draws: &mut Seeded, id: SubchannelId, state: Connectivity) {
    let now = Time::from_nanos(7);
    tree.handle_connectivity(&mut Context { now, choose: draws, helper: shell }, id, state);
}

fn eds_service(config: &ClusterConfig) -> String {
    match &config.cluster.kind {
        ClusterKind::Eds { service_name } => service_name.clone().unwrap_or_default(),
        ClusterKind::LogicalDns { .. } | ClusterKind::Aggregate { .. } => String::new(),
    }
}

fn brief(told: &Explanation) -> String {
    match &told.outcome {
        Outcome::Sent { address, origin, cluster, limit, authority } => {
            format!("{address} {origin:?} {cluster} {limit:?} {:?}", authority.as_deref())
        }
        Outcome::Aborted(code) => format!("aborted {code:?}"),
        Outcome::Waits(failure) => format!("waits {failure:?}"),
        Outcome::Fails(failure) => format!("fails {failure:?}"),
        Outcome::Dropped(failure) => format!("dropped {failure:?}"),
    }
}

/// How many RPCs on new channels for each seed.
const RPCS: usize = 20;
