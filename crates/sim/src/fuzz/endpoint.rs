//! What endpoints send, from bytes: reports of their load, what they say about another attempt, and cookies, which come
//! back from their callers.
//!
//! A channel with two endpoints that are always connected takes it in. Whatever that is, RPCs are sent as before.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_lb::{
    Connectivity, Context, Counter, Decision, Ending, Helper, LoadSink, PushBack, Retry, Rpc, Snapshot, Subchannel,
    SubchannelId, SubchannelSpec, Tree,
};
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ResolvedEndpoints, XdsConfig};
use mainstay_xds::orca::ORCA_TRAILER;
use mainstay_xds::resource::cluster::{Cluster, ClusterKind, OverrideHostStatuses};
use mainstay_xds::resource::endpoint::{
    Addresses, Endpoint, EndpointCollection, EndpointSource, Endpoints, HealthStatus, Locality, LocalityEndpoints,
    Priority,
};
use mainstay_xds::resource::filter::{FilterConfig, HttpFilter, SessionCookie};
use mainstay_xds::resource::lb_policy::{LbPolicy, Metric, Weighing, WeightedRoundRobinConfig};
use mainstay_xds::resource::listener::{HttpConnectionManager, RouteSource};
use mainstay_xds::resource::matcher::PathMatcher;
use mainstay_xds::resource::route::{
    ClusterTarget, DomainPattern, ForwardAction, RetryPolicy, Route, RouteAction, RouteConfig, VirtualHost,
};
use mainstay_xds::{Choose, Code, Time};

use crate::choose::FromBytes;

/// Reports of load, in trailers and on streams of their own: weights stay in use, and what is passed on are numbers.
pub(super) fn orca(bytes: &[u8]) {
    let mut messages = Messages(bytes);
    let streams = messages.byte().is_some_and(|byte| byte % 2 == 1);
    let mut channel = Channel::new(streams);
    while let Some((kind, message)) = messages.next() {
        let endpoint = usize::from(kind % 2);
        let sinks: Vec<LoadSink> = channel.helper.sinks.values().cloned().collect();
        if let Some(sink) = sinks.get(endpoint) {
            sink.report(message);
        }
        let value = if kind < 128 { HeaderValue::try_from(STANDARD.encode(message)) } else { message.try_into() };
        let trailers = value.map(|value| HeaderMap::from_iter([(HeaderName::from_static(ORCA_TRAILER), value)]));
        channel.call(HeaderMap::new(), &trailers.unwrap_or_default());
        if kind % 8 == 0 {
            channel.wait(Duration::from_secs(1));
        }
    }
    channel.wait(Duration::from_secs(2));
    let mut answered = BTreeMap::new();
    for _ in 0..FAIR {
        *answered.entry(channel.call(HeaderMap::new(), &HeaderMap::new()).0).or_insert(0) += 1;
    }
    assert_eq!(answered.len(), 2, "every endpoint has its share: {answered:?}");
    let now = channel.now;
    for report in channel.tree.loads().take(now, &ServerConfig::insecure("lrs")) {
        for locality in report.localities {
            assert!(locality.metrics.len() <= 300, "names are bounded");
            for metric in locality.metrics {
                assert!(metric.sum().is_finite() && metric.name.len() < 300, "{metric:?}");
            }
        }
    }
}

/// The trailers of attempts that failed: there are never too many attempts, nor does a pause have no end.
pub(super) fn push_back(bytes: &[u8]) {
    let policy = RetryPolicy {
        retry_on: vec![Code::Cancelled, Code::ResourceExhausted, Code::Unavailable],
        num_retries: 4,
        base_interval: Duration::from_millis(25),
        max_interval: Duration::from_millis(250),
    };
    let mut retry = Retry::new(Arc::new(policy));
    let mut attempts = 1;
    let mut messages = Messages(bytes);
    while let Some((code, message)) = messages.next() {
        let value = HeaderValue::from_bytes(message);
        let trailers = value.map(|value| HeaderMap::from_iter([(HeaderName::from_static(PUSH_BACK), value)]));
        let push_back = PushBack::of(&trailers.unwrap_or_default());
        let code = Code::ALL[usize::from(code) % Code::ALL.len()];
        match retry.after_failure(code, push_back, None, &mut FromBytes::new(message)) {
            Some(pause) => {
                attempts += 1;
                assert!(
                    push_back != PushBack::Never && [1, 8, 14].contains(&code.number()),
                    "only where both allow it"
                );
                assert!(pause <= Duration::from_millis(i32::MAX as u64), "{pause:?}");
            }
            None => break,
        }
    }
    assert!(attempts <= 5, "R-57");
}

/// Cookies: an RPC is sent whatever its cookie says, and the cookie of the answer leads to the same endpoint.
pub(super) fn cookie(bytes: &[u8]) {
    let mut channel = Channel::new(false);
    let mut messages = Messages(bytes);
    while let Some((kind, message)) = messages.next() {
        let content = if kind % 2 == 0 { STANDARD.encode(message).into_bytes() } else { message.to_vec() };
        let header = |value: &[u8]| {
            let value = HeaderValue::from_bytes(&[b"sid=", value].concat());
            value.map(|value| HeaderMap::from_iter([(COOKIE, value)])).unwrap_or_default()
        };
        let (endpoint, set) = channel.call(header(&content), &HeaderMap::new());
        if let Some(set) = set {
            let set = set.to_str().expect("a text");
            let value = set.strip_prefix("sid=").and_then(|rest| rest.split(';').next()).expect("a value");
            let again = channel.call(header(value.as_bytes()), &HeaderMap::new());
            assert_eq!(again, (endpoint, None), "L-94, L-97: it stays, and needs no other cookie");
        }
    }
}

/// Messages with a byte and their length before each.
struct Messages<'a>(&'a [u8]);

/// A channel with two endpoints.
struct Channel {
    tree: Tree<Handle>,
    helper: Peers,
    now: Time,
    snapshot: Arc<Snapshot<Handle>>,
}

/// Connects at once.
#[derive(Default)]
struct Peers {
    asked: Vec<SubchannelId>,
    sinks: BTreeMap<SubchannelId, LoadSink>,
}

/// Always connected.
#[derive(Clone, Debug)]
struct Handle(SocketAddr);

/// Chance has no part in this.
struct Zero;

impl<'a> Messages<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (kind, length) = (self.byte()?, self.byte()?);
        // Long ones, too: sixteen bytes for each of the upper half.
        let length = usize::from(length) * if length < 128 { 1 } else { 16 };
        let (message, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        Some((kind, message))
    }
}

impl Channel {
    fn new(streams: bool) -> Self {
        let mut channel = Self {
            tree: Tree::new(),
            helper: Peers::default(),
            now: Time::ZERO,
            snapshot: Arc::new(Snapshot::empty()),
        };
        channel.with(|tree, cx| tree.update(cx, Ok(Arc::new(config(streams)))));
        for id in std::mem::take(&mut channel.helper.asked) {
            channel.with(|tree, cx| tree.handle_connectivity(cx, id, Connectivity::Ready));
        }
        channel
    }

    fn with(&mut self, work: impl FnOnce(&mut Tree<Handle>, &mut Context<'_, Peers>)) {
        work(&mut self.tree, &mut Context { now: self.now, choose: &mut Zero, helper: &mut self.helper });
        if let Some(snapshot) = self.tree.poll_snapshot() {
            self.snapshot = snapshot;
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.tree.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.with(|tree, cx| tree.handle_timeout(cx));
        }
        self.now = end;
    }

    /// An RPC with these headers that ends well with these trailers: who answered it, and the cookie that was set.
    fn call(&mut self, headers: HeaderMap, trailers: &HeaderMap) -> (SocketAddr, Option<HeaderValue>) {
        let snapshot = Arc::clone(&self.snapshot);
        let Decision::Send(to) = snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut Zero) else {
            panic!("an RPC was not sent although every endpoint is connected");
        };
        let (endpoint, cookie) = (to.subchannel.0, to.set_cookie);
        to.tracker.end(Ending { code: Code::Ok, trailers: Some(trailers) });
        if let Some(wake) = to.keep {
            self.with(|tree, cx| tree.wake(cx, wake));
        }
        (endpoint, cookie)
    }
}

impl Helper for Peers {
    type Subchannel = Handle;

    fn create_subchannel(&mut self, _: SubchannelId, spec: &SubchannelSpec) -> Handle {
        Handle(spec.address)
    }

    fn connect(&mut self, id: SubchannelId) {
        self.asked.push(id);
    }

    fn release(&mut self, _: SubchannelId) {}

    fn request_reresolution(&mut self) {}

    fn circuit_breaker(&mut self, _: &str, _: &str) -> Arc<Counter> {
        Arc::default()
    }

    fn watch_load(&mut self, id: SubchannelId, _: Duration, sink: LoadSink) {
        self.sinks.insert(id, sink);
    }
}

impl Subchannel for Handle {
    fn is_ready(&self) -> bool {
        true
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Choose for Zero {
    fn choose(&mut self, _: u64) -> u64 {
        0
    }
}

/// weighted_round_robin over two endpoints, with sessions, and load reports that tell everything.
fn config(streams: bool) -> XdsConfig {
    let names = ["application_utilization", "named_metrics.x", "utilization.x"];
    let policy = WeightedRoundRobinConfig {
        oob_reporting_period: streams.then_some(Duration::from_secs(1)),
        blackout_period: Duration::ZERO,
        weight_expiration_period: Duration::from_secs(180),
        weight_update_period: Duration::from_secs(1),
        weighing: Weighing { metrics: names.into_iter().filter_map(Metric::parse).collect(), ..Weighing::default() },
    };
    let endpoint = |port| Endpoint {
        addresses: Addresses::One(SocketAddr::from(([10, 0, 0, 1], port))),
        weight: 1,
        health: HealthStatus::Healthy,
        names: None,
    };
    let locality = LocalityEndpoints {
        locality: Arc::new(Locality::default()),
        weight: 1,
        source: EndpointSource::Inline(Arc::new(EndpointCollection { endpoints: [1, 2].map(endpoint).into() })),
        proxy: None,
    };
    let endpoints = Endpoints { priorities: vec![Priority { localities: vec![locality] }], drops: Vec::new() };
    let cluster = Cluster {
        kind: ClusterKind::Eds { service_name: None },
        lb_policy: LbPolicy::WeightedRoundRobin(Box::new(policy)),
        max_requests: 1024,
        outlier_detection: None,
        tls: None,
        http_connect: None,
        lrs_server: Some(Arc::new(ServerConfig::insecure("lrs"))),
        lrs_report_endpoint_metrics: vec!["cpu_utilization".into(), "named_metrics.*".into()],
        override_host_statuses: OverrideHostStatuses { unknown: true, healthy: true, draining: false },
        idle_timeout: Duration::from_secs(3600),
    };
    let resolved =
        ResolvedEndpoints { endpoints: Arc::new(endpoints), collections: BTreeMap::new(), globs: BTreeMap::new() };
    let cluster = ClusterConfig {
        name: "c".into(),
        cluster: Arc::new(cluster),
        children: ClusterChildren::Endpoints(Some(Arc::new(resolved))),
        note: "".into(),
    };
    let route = Route {
        path: PathMatcher::Prefix { value: String::new(), case_sensitive: true },
        headers: Vec::new(),
        fraction: None,
        action: RouteAction::Forward(ForwardAction {
            target: ClusterTarget::Cluster("c".into()),
            max_stream_duration: None,
            retry: None,
            hash_policies: Vec::new(),
            auto_host_rewrite: false,
        }),
        overrides: Default::default(),
    };
    let domains = vec![DomainPattern::Any];
    let host = VirtualHost { name: "host".into(), domains, routes: vec![route], overrides: Default::default() };
    let virtual_host = Arc::new(host);
    let route_config = Arc::new(RouteConfig { virtual_hosts: vec![Arc::clone(&virtual_host)] });
    let cookie = SessionCookie { name: "sid".into(), path: String::new(), ttl: Duration::ZERO };
    let sessions = FilterConfig::StatefulSession(Some(Arc::new(cookie)));
    let filters = vec![HttpFilter { name: "session".into(), config: sessions, disabled: false }];
    let routes = RouteSource::Inline(Arc::clone(&route_config));
    XdsConfig {
        listener: Arc::new(HttpConnectionManager { max_stream_duration: None, filters, routes }),
        route_config,
        virtual_host,
        clusters: [(Arc::clone(&cluster.name), Ok(Arc::new(cluster)))].into_iter().collect(),
        mixed_sources: false,
    }
}

/// So many RPCs reach every endpoint, however light: none has less than a hundredth of the mean.
const FAIR: usize = 500;

const PUSH_BACK: &str = "grpc-retry-pushback-ms";
