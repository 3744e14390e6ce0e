//! The tree as a whole: clusters, routes, and when new routes take effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::{Observation, Outlook, XdsSecurity};
use mainstay_xds::deps::{ClusterChildren, XdsConfig};
use mainstay_xds::orca::OrcaLoadReport;
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::{Choose, Code, Time};

use super::leaf::{Cds, CdsConfig};
use super::pick::{Chosen, Counted, Loads, Pick, Picked, Picker, Reason, Rpc, Sent, Verdict};
use super::routes::{Routes, Session, inject};
use super::switch::Switch;
use super::{Books, Connections, Env, Key, Policy, State, What, Who, weights};

/// The whole tree.
#[derive(Clone, Debug)]
pub(in crate::policies) struct Naive {
    config: Config,
    nodes: BTreeMap<Arc<str>, Node>,
    last_cluster: u32,
    last_policy: u64,
    last_routes: u64,
    pub(in crate::policies) connections: Connections,
    pub(in crate::policies) books: Books,
    warming: Option<Warming>,
    bound: Option<Duration>,
    security: XdsSecurity,
    channel_id: Option<u64>,
    pub(in crate::policies) seen: Vec<Observation>,
    /// For load reports.
    pub(in crate::policies) loads: Loads,
    /// Drops for load reports, by category; those of the breaker have none.
    pub(in crate::policies) drops: BTreeMap<(String, String), BTreeMap<String, u64>>,
}

#[derive(Clone, Debug)]
enum Config {
    Nothing,
    Broken { text: String, no_config: bool },
    Works(Arc<XdsConfig>, Routes),
}

#[derive(Clone, Debug)]
struct Node {
    number: u32,
    config: CdsConfig,
    cds: Switch<Cds>,
    picker: Picker,
}

/// Routes that RPCs still go by.
#[derive(Clone, Debug)]
struct Warming {
    routes: Routes,
    cold: Vec<Arc<str>>,
    until: Option<Time>,
}

/// How an RPC ended.
#[derive(Clone, Debug)]
pub(in crate::policies) enum End {
    /// With a status, and perhaps a report.
    Status(Code, Option<OrcaLoadReport>),
    /// Before it reached the endpoint.
    Withdrawn,
    Cancelled,
}

impl Naive {
    pub(in crate::policies) fn new(bound: Option<Duration>, security: XdsSecurity) -> Self {
        Self {
            config: Config::Nothing,
            nodes: BTreeMap::new(),
            last_cluster: 0,
            last_policy: 0,
            last_routes: 0,
            connections: Connections::default(),
            books: Books::default(),
            warming: None,
            bound,
            security,
            channel_id: None,
            seen: Vec::new(),
            loads: BTreeMap::new(),
            drops: BTreeMap::new(),
        }
    }

    /// Puts a configuration in force.
    pub(in crate::policies) fn update(&mut self, now: Time, chance: &mut dyn Choose, config: &Arc<XdsConfig>) {
        let mut routes = Routes {
            number: self.last_routes + 1,
            host: config.virtual_host.clone(),
            chain: config.listener.filters.clone(),
            default_limit: config.listener.max_stream_duration,
        };
        let mut before = None;
        match &self.config {
            Config::Works(current, _) if current == config => return,
            Config::Works(_, current) => {
                if current.same_way(&routes) {
                    routes.number = current.number;
                }
                let current = Warming { routes: current.clone(), cold: Vec::new(), until: None };
                before = self.bound.map(|_| self.warming.take().unwrap_or(current));
            }
            Config::Nothing | Config::Broken { .. } => {}
        }
        self.last_routes = self.last_routes.max(routes.number);
        if self.channel_id.is_none() && routes.need_channel_id() {
            self.channel_id = Some(chance.choose(u64::MAX));
        }
        let named = routes.clusters();
        let served = before.as_ref().map(|before| before.routes.clusters()).unwrap_or_default();
        let mut names: BTreeSet<Arc<str>> = named.clone();
        names.extend(self.nodes.keys().cloned());
        names.extend(config.clusters.keys().cloned());
        for name in names {
            let wanted = named.contains(&name) || (config.clusters.contains_key(&name) && !is_below(config, &name));
            let held = served.contains(&name);
            let known = config.clusters.contains_key(&name);
            match self.nodes.contains_key(&name) {
                true if wanted || (held && known) => {
                    self.update_cluster(now, chance, &name, CdsConfig::of(&name, config, self.security));
                }
                false if wanted => self.add_cluster(now, chance, &name, CdsConfig::of(&name, config, self.security)),
                true if !held => self.remove_cluster(now, chance, &name),
                _ => {}
            }
        }
        self.config = Config::Works(config.clone(), routes);
        if let Some(before) = before {
            self.keep(now, chance, before);
        }
        self.settle();
    }

    /// An error in the place of a configuration; or the end.
    pub(in crate::policies) fn break_off(&mut self, now: Time, chance: &mut dyn Choose, text: String, no_config: bool) {
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.remove_cluster(now, chance, &name);
        }
        self.warming = None;
        self.config = Config::Broken { text, no_config };
        self.settle();
    }

    /// What a connection says of itself.
    pub(in crate::policies) fn hear(
        &mut self,
        now: Time,
        chance: &mut dyn Choose,
        key: &Key,
        (state, error): (State, Option<&Arc<str>>),
    ) {
        for who in self.connections.hear(key, state, error) {
            self.dispatch(now, chance, who, &What::Connection(key.clone()));
        }
        self.switch_if_warm(now, chance);
        self.settle();
    }

    pub(in crate::policies) fn wake(&mut self, now: Time, chance: &mut dyn Choose, who: Who) {
        self.dispatch(now, chance, who, &What::Wake);
        self.settle();
    }

    pub(in crate::policies) fn timeout(&mut self, now: Time, chance: &mut dyn Choose) {
        for _ in 0..10_000 {
            let Some((_, who, kind)) = self.deadlines().into_iter().filter(|(at, ..)| *at <= now).min() else { break };
            self.dispatch(now, chance, who, &What::Timer(kind));
        }
        self.switch_if_warm(now, chance);
        self.settle();
    }

    pub(in crate::policies) fn next_deadline(&self) -> Option<Time> {
        let warm = self.warming.as_ref().and_then(|warming| warming.until);
        self.deadlines().into_iter().map(|(at, ..)| at).chain(warm).min()
    }

    /// Whether new routes wait.
    pub(in crate::policies) fn is_warming(&self) -> bool {
        self.warming.is_some()
    }

    /// The clusters that must stay in the configuration.
    pub(in crate::policies) fn clusters_in_use(&self) -> BTreeSet<Arc<str>> {
        let newest = match &self.config {
            Config::Works(_, routes) => routes.clusters(),
            Config::Nothing | Config::Broken { .. } => return BTreeSet::new(),
        };
        let served = self.warming.as_ref().map(|warming| warming.routes.clusters()).unwrap_or_default();
        newest.union(&served).cloned().collect()
    }

    pub(in crate::policies) fn outlook(&self) -> Outlook {
        match &self.config {
            Config::Nothing => Outlook::Wait,
            Config::Broken { .. } => Outlook::Fail,
            Config::Works(..) => {
                let outlooks: Vec<Outlook> = self.nodes.values().map(|node| node.picker.outlook()).collect();
                [Outlook::Send, Outlook::Wait].into_iter().find(|o| outlooks.contains(o)).unwrap_or(Outlook::Fail)
            }
        }
    }

    /// What becomes of an RPC.
    pub(in crate::policies) fn decide(
        &mut self,
        rpc: &mut Rpc,
        chance: &mut dyn Choose,
        is_up: &dyn Fn(&Key) -> bool,
    ) -> Verdict {
        let routes = match (&self.config, &self.warming) {
            (Config::Nothing, _) => return Verdict::Wait(Reason { no_config: true, ..Reason::default() }),
            (Config::Broken { text, no_config }, _) => {
                return Verdict::Fail(Reason { no_config: *no_config, ..Reason::new(vec![text.clone()]) });
            }
            (Config::Works(..), Some(warming)) => warming.routes.clone(),
            (Config::Works(_, routes), None) => routes.clone(),
        };
        let (nodes, books, drops) = (&mut self.nodes, &mut self.books, &mut self.drops);
        let channel_id = self.channel_id.unwrap_or_default();
        if let Some(chosen) = rpc.route.clone()
            && let Some(node) = nodes.get_mut(&chosen.cluster)
        {
            let session = chosen.session.clone();
            let (endpoint, keep, wake) = (None, None, None);
            let mut pick = Pick { chance, books, is_up, rpc, hashing: None, session, endpoint, keep, wake, drops };
            let picked = node.picker.pick(&mut pick);
            // Nothing was sent: who fails with a cluster that the routes left goes by the routes (D-37).
            let is_left = !routes.host.clusters().any(|name| name == &*chosen.cluster);
            if !(is_left && matches!(picked, Picked::Fail(_))) {
                return pick.verdict(&chosen, picked, &mut self.loads);
            }
        }
        let path = rpc.path.clone();
        let found = match routes.find(&path, &rpc.headers.clone(), &mut rpc.route_draws, chance) {
            Ok(found) => found,
            Err(text) => return Verdict::Drop(Reason::new(text)),
        };
        let session = found.session.as_ref().and_then(|cookie| Session::read(cookie, &path, &rpc.headers));
        let wanted = session.as_ref().and_then(|session| session.cluster.as_deref());
        let wanted = wanted.filter(|wanted| found.forward.target.names(wanted));
        let cluster: Arc<str> = wanted.map_or(found.cluster, Arc::from);
        let limit = found.forward.max_stream_duration.or(routes.default_limit).filter(|limit| *limit > Duration::ZERO);
        let (retry, rewrite) = (found.forward.retry.clone(), found.forward.auto_host_rewrite);
        let chosen = Chosen { cluster, limit, retry, rewrite, session: session.clone() };
        let hashing = Some((&*found.forward.hash_policies, channel_id));
        let (endpoint, keep, wake) = (None, None, None);
        let mut pick = Pick { chance, books, is_up, rpc, hashing, session, endpoint, keep, wake, drops };
        if found.filtered && !std::mem::replace(&mut pick.rpc.filtered, true) {
            let effects = inject(&found.faults, &pick.rpc.headers, pick.chance);
            if !effects.is_empty() {
                pick.keep_hash();
                pick.rpc.route = Some(chosen);
                return Verdict::Inject(effects);
            }
        }
        let Some(node) = nodes.get_mut(&chosen.cluster) else {
            return Verdict::Fail(Reason::new(vec!["a route leads to a cluster that is not there".into()]));
        };
        let picked = node.picker.pick(&mut pick);
        let again = match &picked {
            Picked::Wait(_) | Picked::Fail(_) => true,
            Picked::Send(_) => chosen.retry.is_some(),
            Picked::Drop(_) => false,
        };
        if again {
            pick.keep_hash();
            pick.rpc.route = Some(chosen.clone());
        }
        pick.verdict(&chosen, picked, &mut self.loads)
    }

    /// An RPC that was sent has ended.
    pub(in crate::policies) fn end(&mut self, counted: Counted, end: &End) {
        if let Some(breaker) = counted.breaker {
            *self.books.in_flight.entry(breaker).or_default() -= 1;
        }
        if let Some(book) = counted.under_way {
            *self.books.under_way.entry(book).or_default() -= 1;
        }
        if let Some(counter) = counted.counter {
            let ended = self.books.ended.entry(counter).or_default();
            match end {
                End::Status(Code::Ok, _) => ended.0 += 1,
                End::Status(..) | End::Cancelled => ended.1 += 1,
                End::Withdrawn => {}
            }
        }
        if let (Some((book, weighing)), End::Status(_, Some(report))) = (counted.book, end) {
            self.report(book, weights::of_report(report, &weighing));
        }
        if let Some(load) = counted.load {
            let load = self.loads.entry(load).or_default();
            load[3] -= 1;
            match end {
                End::Status(Code::Ok, _) => load[1] += 1,
                End::Status(..) | End::Cancelled => load[2] += 1,
                End::Withdrawn => load[0] -= 1,
            }
        }
    }

    /// What an endpoint reports on a stream of its own.
    pub(in crate::policies) fn report_by_book(&mut self, book: u64, report: &OrcaLoadReport) {
        let weight = self.books.weighing.get(&book).and_then(|weighing| weights::of_report(report, weighing));
        self.report(book, weight);
    }

    fn report(&mut self, book: u64, weight: Option<f64>) {
        if let Some(weight) = weight {
            let (count, latest) = self.books.reports.entry(book).or_default();
            (*count, *latest) = (*count + 1, weight);
        }
    }

    fn keep(&mut self, now: Time, chance: &mut dyn Choose, mut before: Warming) {
        let (Config::Works(_, routes), Some(bound)) = (&self.config, self.bound) else { return };
        if routes.number == before.routes.number {
            return;
        }
        let (new, old) = (routes.clusters(), before.routes.clusters());
        let serves = old.iter().all(|name| self.is_of_use(name, new.contains(name)));
        let is_cold = |name: &&Arc<str>| serves && !old.contains(*name) && self.is_cold(name);
        before.cold = new.iter().filter(is_cold).cloned().collect();
        before.until = before.until.or(Some(now + bound));
        self.warming = Some(before);
        self.switch_if_warm(now, chance);
    }

    fn switch_if_warm(&mut self, now: Time, chance: &mut dyn Choose) {
        let Some(mut warming) = self.warming.take() else { return };
        while warming.cold.last().is_some_and(|name| !self.is_cold(name)) {
            warming.cold.pop();
        }
        let Config::Works(config, routes) = self.config.clone() else { return };
        let (new, old) = (routes.clusters(), warming.routes.clusters());
        let lost = old.iter().any(|name| !self.is_of_use(name, new.contains(name)));
        if !warming.cold.is_empty() && warming.until.is_none_or(|until| until > now) && !lost {
            self.warming = Some(warming);
            return;
        }
        for name in old {
            let wanted = new.contains(&name) || (config.clusters.contains_key(&name) && !is_below(&config, &name));
            if !wanted {
                self.remove_cluster(now, chance, &name);
            }
        }
    }

    fn is_cold(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.cds.state() == State::Connecting)
    }

    fn is_of_use(&self, name: &str, kept: bool) -> bool {
        match self.nodes.get(name).map(|node| node.cds.state()) {
            Some(State::Ready) => true,
            Some(State::Idle | State::Connecting) => kept,
            Some(State::Failing) | None => false,
        }
    }

    fn add_cluster(&mut self, now: Time, chance: &mut dyn Choose, name: &Arc<str>, config: CdsConfig) {
        self.last_cluster += 1;
        let number = self.last_cluster;
        let cds = self.with_env(now, chance, number, |env, _| Switch::new(env, &config));
        let picker = Picker::Wait(Vec::new());
        self.nodes.insert(name.clone(), Node { number, config, cds, picker });
    }

    fn update_cluster(&mut self, now: Time, chance: &mut dyn Choose, name: &Arc<str>, config: CdsConfig) {
        let Some(node) = self.nodes.get(name).filter(|node| node.config != config) else { return };
        self.with_env(now, chance, node.number, |env, nodes| {
            let Some(node) = nodes.get_mut(name) else { return };
            if config.is_abrupt(&node.config) {
                node.cds.close(env);
                node.cds = Switch::new(env, &config);
            } else {
                node.cds.update(env, &config);
            }
            node.config = config;
        });
    }

    fn remove_cluster(&mut self, now: Time, chance: &mut dyn Choose, name: &Arc<str>) {
        if let Some(mut node) = self.nodes.remove(name) {
            self.with_env(now, chance, node.number, |env, _| node.cds.close(env));
        }
    }

    fn dispatch(&mut self, now: Time, chance: &mut dyn Choose, who: Who, what: &What) {
        self.with_env(now, chance, who.cluster, |env, nodes| {
            let node = nodes.values_mut().find(|node| node.number == who.cluster);
            if let Some(node) = node {
                node.cds.handle(env, who, what);
            }
        });
    }

    fn with_env<T>(
        &mut self,
        now: Time,
        chance: &mut dyn Choose,
        cluster: u32,
        work: impl FnOnce(&mut Env<'_>, &mut BTreeMap<Arc<str>, Node>) -> T,
    ) -> T {
        let mut env = Env {
            now,
            chance,
            connections: &mut self.connections,
            books: &mut self.books,
            last_policy: &mut self.last_policy,
            cluster,
            health: None,
            deaf: false,
            bound: self.bound,
            seen: &mut self.seen,
        };
        work(&mut env, &mut self.nodes)
    }

    fn deadlines(&self) -> Vec<super::Deadline> {
        let mut deadlines = Vec::new();
        self.nodes.values().for_each(|node| node.cds.deadlines(&mut deadlines));
        deadlines
    }

    /// Lets go of what nobody uses, and makes pickers anew where they are others.
    fn settle(&mut self) {
        self.connections.tidy();
        for node in self.nodes.values_mut() {
            let picker = node.cds.picker(&self.connections);
            if node.picker != picker {
                node.picker = picker;
            }
        }
    }
}

/// Whether an aggregate of the configuration names this cluster.
fn is_below(config: &XdsConfig, name: &str) -> bool {
    config.clusters.values().filter_map(|entry| entry.as_ref().ok()).any(|cluster| match &cluster.cluster.kind {
        ClusterKind::Aggregate { clusters } if matches!(cluster.children, ClusterChildren::Aggregate(_)) => {
            clusters.iter().any(|child| child == name)
        }
        ClusterKind::Eds { .. } | ClusterKind::LogicalDns { .. } | ClusterKind::Aggregate { .. } => false,
    })
}

impl Pick<'_> {
    fn verdict(self, chosen: &Chosen, picked: Picked, loads: &mut Loads) -> Verdict {
        let named = |mut reason: Reason| {
            reason.text.push(format!("{:?}", chosen.cluster));
            reason
        };
        match picked {
            Picked::Wait(reason) => Verdict::Wait(named(reason)),
            Picked::Fail(reason) => Verdict::Fail(named(reason)),
            Picked::Drop(reason) => Verdict::Drop(reason),
            Picked::Send(send) => {
                let (ready, counted) = *send;
                self.rpc.forget_locality();
                if let Some(load) = &counted.load {
                    let load = loads.entry(load.clone()).or_default();
                    (load[0], load[3]) = (load[0] + 1, load[3] + 1);
                }
                let used = ready.addr.key.0;
                let endpoint = self.endpoint.unwrap_or_else(|| vec![used]);
                let cookie = self.session.and_then(|session| session.set_cookie(used, &endpoint, &chosen.cluster));
                Verdict::Send(Box::new(Sent {
                    authority: ready.addr.key.2.clone().filter(|_| chosen.rewrite),
                    addr: ready.addr,
                    cluster: chosen.cluster.clone(),
                    limit: chosen.limit,
                    cookie,
                    wake: self.wake,
                    keep: self.keep,
                    counted,
                }))
            }
        }
    }
}
