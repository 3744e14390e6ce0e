//! The testbed: a tree with a helper that records what it is asked, virtual time, and chance by script.
//!
//! Endpoints are known by their port. `"a=1,2 b*3=3|c=4+5"` is two priorities: in the first, locality
//! `a` with endpoints 1 and 2 and locality `b` of weight 3 with endpoint 3; in the second, locality `c`
//! with one endpoint that has the addresses 4 and 5.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ClusterError, ConfigError, ResolvedEndpoints, XdsConfig};
use mainstay_xds::resource::cluster::{Cluster, ClusterKind, OverrideHostStatuses};
use mainstay_xds::resource::endpoint::{
    Addresses, Endpoint, EndpointCollection, EndpointSource, Endpoints, HealthStatus, Locality, LocalityEndpoints,
    Priority,
};
use mainstay_xds::resource::filter::{FilterConfig, HttpFilter, SessionCookie};
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::listener::{HttpConnectionManager, RouteSource};
use mainstay_xds::resource::matcher::PathMatcher;
use mainstay_xds::resource::route::{
    ClusterTarget, DomainPattern, ForwardAction, Route, RouteAction, RouteConfig, VirtualHost,
};
use mainstay_xds::{Choose, Code, Time};

use crate::{
    CallTracker, Chosen, Connectivity, Context, Counter, Decision, Ending, Helper, LoadSink, Observation, Rpc,
    Snapshot, Subchannel, SubchannelId, SubchannelSpec, Tree,
};

/// A tree and everything around it.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) tree: Tree<Handle>,
    pub(crate) helper: FakeHelper,
    pub(crate) script: Script,
    pub(crate) now: Time,
    pub(crate) snapshot: Arc<Snapshot<Handle>>,
    /// How many snapshots were published.
    pub(crate) published: usize,
}

/// The shell, as far as the tree sees it.
#[derive(Debug, Default)]
pub(crate) struct FakeHelper {
    pub(crate) live: BTreeMap<u16, (SubchannelId, Handle)>,
    /// The ports of all, also of several to one port.
    ports: BTreeMap<SubchannelId, u16>,
    /// What was asked for: `create 1`, `connect 1`, `release 1`, `reresolve`.
    log: Vec<String>,
    pub(crate) counters: BTreeMap<(String, String), Arc<Counter>>,
    pub(crate) observations: Vec<Observation>,
    /// Where the load of a port is to be reported to.
    pub(crate) sinks: BTreeMap<u16, LoadSink>,
}

/// A subchannel as pickers see it.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) port: u16,
    ready: Arc<AtomicBool>,
}

/// Draws from a list; zero when the list is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) draws: VecDeque<u64>,
    /// The bounds that were asked for.
    pub(crate) bounds: Vec<u64>,
}

impl Testbed {
    pub(crate) fn new() -> Self {
        Self {
            tree: Tree::new(),
            helper: FakeHelper::default(),
            script: Script::default(),
            now: Time::ZERO,
            snapshot: Arc::new(Snapshot::empty()),
            published: 0,
        }
    }

    /// A testbed with one cluster `c` with round_robin below wrr_locality.
    pub(crate) fn with_endpoints(endpoints: &str) -> Self {
        let mut bed = Self::new();
        bed.update(config([eds("c", endpoints)]));
        bed
    }

    pub(crate) fn update(&mut self, config: XdsConfig) {
        self.call(|tree, cx| tree.update(cx, Ok(Arc::new(config))));
    }

    pub(crate) fn update_endpoints(&mut self, endpoints: &str) {
        self.update(config([eds("c", endpoints)]));
    }

    pub(crate) fn break_config(&mut self, error: ConfigError) {
        self.call(|tree, cx| tree.update(cx, Err(Arc::new(error))));
    }

    pub(crate) fn ready(&mut self, port: u16) {
        self.report(port, Connectivity::Ready);
    }

    pub(crate) fn connecting(&mut self, port: u16) {
        self.report(port, Connectivity::Connecting);
    }

    pub(crate) fn idle(&mut self, port: u16) {
        self.report(port, Connectivity::Idle);
    }

    pub(crate) fn fail(&mut self, port: u16) {
        self.report(port, Connectivity::TransientFailure("refused".into()));
    }

    fn report(&mut self, port: u16, state: Connectivity) {
        let (id, handle) = self.helper.live.get(&port).unwrap_or_else(|| panic!("no subchannel for {port}"));
        handle.ready.store(state == Connectivity::Ready, Ordering::Relaxed);
        let id = *id;
        self.call(|tree, cx| tree.handle_connectivity(cx, id, state));
    }

    /// The connection dies, and the tree has not heard of it yet.
    pub(crate) fn die_silently(&mut self, port: u16) {
        self.helper.live[&port].1.ready.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_ready(&self, port: u16) -> bool {
        self.helper.live.get(&port).is_some_and(|(_, handle)| handle.is_ready())
    }

    /// Lets time pass, stopping at each deadline.
    pub(crate) fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.tree.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.call(|tree, cx| tree.handle_timeout(cx));
        }
        self.now = end;
    }

    /// What becomes of an RPC for `/s/m`: `send 1`, `wait …`, `fail …` or `drop …`.
    pub(crate) fn rpc(&mut self) -> String {
        self.rpc_to("/s/m")
    }

    pub(crate) fn rpc_to(&mut self, path: &str) -> String {
        self.decide(path, &HeaderMap::new(), &mut Chosen::default())
    }

    /// What becomes of an RPC with the header `user`.
    pub(crate) fn rpc_of(&mut self, user: &str) -> String {
        let headers = HeaderMap::from_iter([(HeaderName::from_static("user"), user.parse().expect("a value"))]);
        self.decide("/s/m", &headers, &mut Chosen::default())
    }

    /// What becomes of an RPC that may have been decided about before.
    pub(crate) fn decide(&mut self, path: &str, headers: &HeaderMap, chosen: &mut Chosen) -> String {
        let snapshot = Arc::clone(&self.snapshot);
        match snapshot.decide_again(Rpc { path, headers }, chosen, &mut self.script) {
            Decision::Send(to) => {
                if let Some(wake) = to.wake {
                    self.call(|tree, cx| tree.wake(cx, wake));
                }
                format!("send {}", to.subchannel.port)
            }
            Decision::Wait(failure, wake) => {
                if let Some(wake) = wake {
                    self.call(|tree, cx| tree.wake(cx, wake));
                }
                format!("wait {}: {}", failure.code.number(), failure.message)
            }
            Decision::Fail(failure) => format!("fail {}: {}", failure.code.number(), failure.message),
            Decision::Drop(failure) => format!("drop {}: {}", failure.code.number(), failure.message),
            Decision::Inject(effects) => format!("inject {effects:?}"),
        }
    }

    /// Sends `n` RPCs that end with the code that `code` says for the port. The ports.
    pub(crate) fn calls(&mut self, n: usize, mut code: impl FnMut(u16) -> u8) -> Vec<u16> {
        let (snapshot, headers) = (Arc::clone(&self.snapshot), HeaderMap::new());
        let mut call = || match snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut self.script) {
            Decision::Send(to) => {
                to.tracker.end(Ending { code: Code::ALL[usize::from(code(to.subchannel.port))], trailers: None });
                to.subchannel.port
            }
            other => panic!("not sent: {other:?}"),
        };
        (0..n).map(|_| call()).collect()
    }

    /// What becomes of an RPC whose cookie `sid` has this content: as [`Testbed::rpc`] says, and the content of the
    /// cookie that the answer sets. What the decision asks for is done.
    pub(crate) fn rpc_of_session(&mut self, path: &str, cookie: &str) -> (String, String) {
        let mut headers = HeaderMap::new();
        if !cookie.is_empty() {
            let value = format!("sid={}", STANDARD.encode(cookie));
            headers.insert(http::header::COOKIE, value.parse().expect("a header value"));
        }
        let snapshot = Arc::clone(&self.snapshot);
        let (outcome, set, wake) = match snapshot.decide(Rpc { path, headers: &headers }, &mut self.script) {
            Decision::Send(to) => (format!("send {}", to.subchannel.port), to.set_cookie, to.keep),
            Decision::Wait(_, wake) => ("wait".to_owned(), None, wake),
            other => (format!("{other:?}"), None, None),
        };
        if let Some(wake) = wake {
            self.call(|tree, cx| tree.wake(cx, wake));
        }
        let set = set.map(|set| {
            let text = set.to_str().expect("a text");
            let value = text.strip_prefix("sid=").and_then(|rest| rest.split(';').next()).expect("a value");
            String::from_utf8(STANDARD.decode(value).expect("base64")).expect("a text")
        });
        (outcome, set.unwrap_or_default())
    }

    /// The ports that `n` RPCs would go to; they are not counted.
    pub(crate) fn look(&mut self, n: usize) -> Vec<u16> {
        let (snapshot, headers) = (Arc::clone(&self.snapshot), HeaderMap::new());
        let mut look = || match snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut self.script) {
            Decision::Send(to) => {
                to.tracker.withdraw();
                to.subchannel.port
            }
            other => panic!("not sent: {other:?}"),
        };
        (0..n).map(|_| look()).collect()
    }

    /// Begins an RPC that must be sent: to which port, and who hears how it ends.
    pub(crate) fn begin(&mut self, snapshot: &Snapshot<Handle>) -> (u16, CallTracker) {
        match snapshot.decide(Rpc { path: "/s/m", headers: &HeaderMap::new() }, &mut self.script) {
            Decision::Send(to) => (to.subchannel.port, to.tracker),
            other => panic!("{other:?}"),
        }
    }

    /// `send`, `wait`, `fail` or `drop`.
    pub(crate) fn outcome(&mut self) -> String {
        self.rpc().split(' ').next().unwrap_or_default().to_owned()
    }

    /// The ports that `n` RPCs go to.
    pub(crate) fn ports(&mut self, n: usize) -> Vec<u16> {
        (0..n).map(|_| self.rpc().strip_prefix("send ").and_then(|port| port.parse().ok()).unwrap_or(0)).collect()
    }

    /// What the helper was asked since the last call.
    pub(crate) fn log(&mut self) -> String {
        std::mem::take(&mut self.helper.log).join(", ")
    }

    pub(crate) fn call(&mut self, work: impl FnOnce(&mut Tree<Handle>, &mut Context<'_, FakeHelper>)) {
        let mut cx = Context { now: self.now, choose: &mut self.script, helper: &mut self.helper };
        work(&mut self.tree, &mut cx);
        if let Some(snapshot) = self.tree.poll_snapshot() {
            self.snapshot = snapshot;
            self.published += 1;
        }
    }
}

impl Helper for FakeHelper {
    type Subchannel = Handle;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Handle {
        // Connections to one address that differ in their TLS are told apart by the number that their SNI is.
        let sni = spec.tls.as_ref().and_then(|tls| tls.sni.as_ref()?.parse::<u16>().ok());
        let port = spec.address.port() + sni.unwrap_or(0);
        self.log.push(format!("create {port}"));
        let handle = Handle { port, ready: Arc::default() };
        self.live.insert(port, (id, handle.clone()));
        self.ports.insert(id, port);
        handle
    }

    fn connect(&mut self, id: SubchannelId) {
        let port = self.port(id);
        self.log.push(format!("connect {port}"));
    }

    fn release(&mut self, id: SubchannelId) {
        let port = self.port(id);
        self.log.push(format!("release {port}"));
        self.ports.remove(&id);
        if self.live.get(&port).is_some_and(|(live, _)| *live == id) {
            self.live.remove(&port);
        }
    }

    fn watch_load(&mut self, id: SubchannelId, period: Duration, sink: LoadSink) {
        let port = self.port(id);
        self.log.push(format!("watch {port} each {period:?}"));
        self.sinks.insert(port, sink);
    }

    fn request_reresolution(&mut self) {
        self.log.push("reresolve".into());
    }

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        Arc::clone(self.counters.entry((cluster.to_owned(), eds_service.to_owned())).or_default())
    }

    fn observe(&mut self, observation: &Observation) {
        self.observations.push(observation.clone());
    }
}

impl FakeHelper {
    fn port(&self, id: SubchannelId) -> u16 {
        *self.ports.get(&id).unwrap_or_else(|| panic!("{id:?} was never made, or released before"))
    }
}

impl Subchannel for Handle {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ready, &other.ready)
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.port.hash(state);
    }
}

impl Choose for Script {
    fn choose(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "bound is never zero");
        self.bounds.push(bound);
        self.draws.pop_front().unwrap_or(0) % bound
    }
}

/// A configuration whose one route leads to the first cluster.
pub(crate) fn config(clusters: impl IntoIterator<Item = ClusterConfig>) -> XdsConfig {
    let clusters: Vec<ClusterConfig> = clusters.into_iter().collect();
    let first = clusters.first().map_or("none", |cluster| &cluster.name).to_owned();
    routed([route("", &first)], clusters)
}

/// A configuration with these routes.
pub(crate) fn routed(
    routes: impl IntoIterator<Item = Route>,
    clusters: impl IntoIterator<Item = ClusterConfig>,
) -> XdsConfig {
    let virtual_host = Arc::new(VirtualHost {
        name: "host".into(),
        domains: vec![DomainPattern::Any],
        routes: routes.into_iter().collect(),
        overrides: Default::default(),
    });
    let route_config = Arc::new(RouteConfig { virtual_hosts: vec![Arc::clone(&virtual_host)] });
    let routes = RouteSource::Inline(Arc::clone(&route_config));
    XdsConfig {
        listener: Arc::new(HttpConnectionManager { max_stream_duration: None, filters: Vec::new(), routes }),
        route_config,
        virtual_host,
        clusters: clusters.into_iter().map(|cluster| (Arc::clone(&cluster.name), Ok(Arc::new(cluster)))).collect(),
        mixed_sources: false,
    }
}

/// The same with a filter chain that gives RPCs a session with the cookie `sid`.
pub(crate) fn with_sessions(mut config: XdsConfig) -> XdsConfig {
    let cookie = SessionCookie { name: "sid".into(), path: String::new(), ttl: Duration::ZERO };
    let config_of = FilterConfig::StatefulSession(Some(Arc::new(cookie)));
    let filter = HttpFilter { name: "session".into(), config: config_of, disabled: false };
    Arc::make_mut(&mut config.listener).filters.insert(0, filter);
    config
}

/// Puts an error in the place of a cluster.
pub(crate) fn broken(mut config: XdsConfig, error: ClusterError) -> XdsConfig {
    config.clusters.insert(Arc::clone(&error.cluster), Err(Arc::new(error)));
    config
}

/// A route for paths that start with `prefix`.
pub(crate) fn route(prefix: &str, cluster: &str) -> Route {
    route_to(prefix, ClusterTarget::Cluster(cluster.into()))
}

/// A route for paths that start with `prefix`.
pub(crate) fn route_to(prefix: &str, target: ClusterTarget) -> Route {
    Route {
        path: PathMatcher::Prefix { value: prefix.into(), case_sensitive: true },
        headers: Vec::new(),
        fraction: None,
        action: RouteAction::Forward(ForwardAction {
            target,
            max_stream_duration: None,
            retry: None,
            hash_policies: Vec::new(),
            auto_host_rewrite: false,
        }),
        overrides: Default::default(),
    }
}

/// An EDS cluster with round_robin below wrr_locality.
pub(crate) fn eds(name: &str, endpoints: &str) -> ClusterConfig {
    let kind = ClusterKind::Eds { service_name: None };
    cluster(name, kind, ClusterChildren::Endpoints(Some(Arc::new(resolved(endpoints)))))
}

/// A LOGICAL_DNS cluster with round_robin below wrr_locality.
pub(crate) fn dns(name: &str, endpoints: &str) -> ClusterConfig {
    let kind = ClusterKind::LogicalDns { host: "host".into(), port: 1 };
    cluster(name, kind, ClusterChildren::Endpoints(Some(Arc::new(resolved(endpoints)))))
}

/// An EDS cluster whose endpoints cannot be had.
pub(crate) fn without_endpoints(name: &str) -> ClusterConfig {
    cluster(name, ClusterKind::Eds { service_name: None }, ClusterChildren::Endpoints(None))
}

/// An aggregate.
pub(crate) fn aggregate(name: &str, leaves: &[&str]) -> ClusterConfig {
    let clusters = leaves.iter().map(|leaf| (*leaf).to_owned()).collect();
    let leaves = leaves.iter().map(|leaf| Arc::from(*leaf)).collect();
    cluster(name, ClusterKind::Aggregate { clusters }, ClusterChildren::Aggregate(leaves))
}

fn cluster(name: &str, kind: ClusterKind, children: ClusterChildren) -> ClusterConfig {
    let cluster = Cluster {
        kind,
        lb_policy: LbPolicy::WrrLocality(Box::new(LbPolicy::RoundRobin)),
        max_requests: 1024,
        outlier_detection: None,
        tls: None,
        http_connect: None,
        lrs_server: None,
        lrs_report_endpoint_metrics: Vec::new(),
        override_host_statuses: OverrideHostStatuses { unknown: true, healthy: true, draining: false },
        idle_timeout: Duration::from_secs(3600),
    };
    ClusterConfig { name: name.into(), cluster: Arc::new(cluster), children, note: "xDS node ID:n".into() }
}

/// Another LB policy.
pub(crate) fn with_policy(config: ClusterConfig, lb_policy: LbPolicy) -> ClusterConfig {
    edit_cluster(config, |cluster| cluster.lb_policy = lb_policy)
}

/// Another CDS resource.
pub(crate) fn edit_cluster(mut config: ClusterConfig, edit: impl FnOnce(&mut Cluster)) -> ClusterConfig {
    edit(Arc::make_mut(&mut config.cluster));
    config
}

/// Other endpoints in a locality of the first priority.
pub(crate) fn edit_locality(endpoints: &mut Endpoints, index: usize, edit: impl FnOnce(&mut [Endpoint])) {
    if let EndpointSource::Inline(collection) = &mut endpoints.priorities[0].localities[index].source {
        edit(&mut Arc::make_mut(collection).endpoints);
    }
}

/// Other endpoints than the text can say.
pub(crate) fn edit_endpoints(mut config: ClusterConfig, edit: impl FnOnce(&mut Endpoints)) -> ClusterConfig {
    if let ClusterChildren::Endpoints(Some(resolved)) = &mut config.children {
        edit(Arc::make_mut(&mut Arc::make_mut(resolved).endpoints));
    }
    config
}

fn resolved(text: &str) -> ResolvedEndpoints {
    let priorities = text
        .split('|')
        .map(|localities| Priority { localities: localities.split_whitespace().map(locality).collect() });
    let endpoints = Endpoints { priorities: priorities.collect(), drops: Vec::new() };
    ResolvedEndpoints { endpoints: Arc::new(endpoints), collections: BTreeMap::new(), globs: BTreeMap::new() }
}

fn locality(text: &str) -> LocalityEndpoints {
    let (name, endpoints) = text.split_once('=').expect("name=endpoints");
    let (name, weight) = name.split_once('*').unwrap_or((name, "1"));
    let endpoints = endpoints.split(',').filter(|text| !text.is_empty()).map(endpoint).collect();
    LocalityEndpoints {
        locality: Arc::new(Locality { zone: name.into(), ..Locality::default() }),
        weight: weight.parse().expect("a weight"),
        source: EndpointSource::Inline(Arc::new(EndpointCollection { endpoints })),
        proxy: None,
    }
}

fn endpoint(text: &str) -> Endpoint {
    let address = |port: &str| SocketAddr::from(([10, 0, 0, 1], port.parse().expect("a port")));
    let addresses: Vec<SocketAddr> = text.split('+').map(address).collect();
    Endpoint {
        addresses: match addresses[..] {
            [one] => Addresses::One(one),
            _ => Addresses::Many(addresses.into()),
        },
        weight: 1,
        health: HealthStatus::Healthy,
        names: None,
    }
}
