//! Configurations and RPCs by chance.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::deps::{
    ClusterChildren, ClusterConfig, ClusterError, ClusterErrorKind, ResolvedEndpoints, XdsConfig,
};
use mainstay_xds::orca::OrcaLoadReport;
use mainstay_xds::resource::cluster::{
    Cluster, ClusterKind, FailurePercentageEjection, OutlierDetection, OverrideHostStatuses, SuccessRateEjection,
};
use mainstay_xds::resource::endpoint::{
    Addresses, DropCategory, Endpoint, EndpointCollection, EndpointNames, EndpointSource, Endpoints, HealthStatus,
    Locality, LocalityEndpoints, Priority,
};
use mainstay_xds::resource::filter::{
    AbortStatus, DelayTime, Fault, FaultAbort, FaultDelay, FaultShare, FilterConfig, FilterOverride, FilterOverrides,
    HttpFilter, SessionCookie,
};
use mainstay_xds::resource::lb_policy::{
    LbPolicy, Metric, Penalty, RingHashConfig, Weighing, WeightedRoundRobinConfig,
};
use mainstay_xds::resource::listener::{HttpConnectionManager, RouteSource};
use mainstay_xds::resource::matcher::{
    FullRegex, HeaderMatch, HeaderMatcher, PathMatcher, RegexRewrite, StringMatcher,
};
use mainstay_xds::resource::route::{
    ClusterTarget, DomainPattern, ForwardAction, HashPolicy, HashSource, RetryPolicy, Route, RouteAction, RouteConfig,
    VirtualHost, WeightedCluster,
};
use mainstay_xds::resource::tls::{HttpConnect, Roots, UpstreamTls};
use mainstay_xds::shared::SharedMap;
use mainstay_xds::{Choose, Code};

use crate::choose::Seeded;

/// What a world has. Few things at a time: then they meet.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) clusters: u64,
    pub(super) aggregates: bool,
    /// Which policies, by number.
    pub(super) policies: Vec<u64>,
    pub(super) priorities: u64,
    pub(super) localities: u64,
    pub(super) endpoints: u64,
    pub(super) addresses: u64,
    pub(super) several_addresses: bool,
    pub(super) names: bool,
    pub(super) proxies: bool,
    pub(super) outliers: bool,
    pub(super) sessions: bool,
    pub(super) drops: bool,
    pub(super) breakers: bool,
    pub(super) loads: bool,
    pub(super) collections: bool,
    pub(super) tls: bool,
    pub(super) draining: bool,
    pub(super) errors: bool,
    pub(super) faults: bool,
    /// Many routes with all kinds of matchers.
    pub(super) routes: bool,
    pub(super) retries: bool,
    pub(super) hashes: bool,
}

/// Makes things by chance.
pub(super) struct Maker<'a> {
    pub(super) chance: &'a mut Seeded,
    pub(super) plan: &'a Plan,
}

impl Plan {
    /// A theme, and some of everything else.
    pub(super) fn new(seed: u64, chance: &mut Seeded) -> Self {
        let theme = seed % THEMES;
        let mut one_in = |n: u64| chance.choose(n) == 0;
        let mut plan = Self {
            clusters: 1,
            aggregates: false,
            policies: vec![0],
            priorities: 1,
            localities: 1,
            endpoints: 3,
            addresses: 6,
            several_addresses: one_in(6),
            names: one_in(6),
            proxies: one_in(12),
            outliers: one_in(8),
            sessions: one_in(10),
            drops: one_in(10),
            breakers: one_in(10),
            loads: one_in(6),
            collections: one_in(10),
            tls: one_in(12),
            draining: one_in(8),
            errors: one_in(8),
            faults: false,
            routes: false,
            retries: one_in(6),
            hashes: false,
        };
        match theme {
            // Everything below one cluster.
            0 => (plan.priorities, plan.localities, plan.policies) = (3, 2, vec![1, 1, 1, 0, 2]),
            1 => (plan.policies, plan.several_addresses, plan.names) = (vec![6, 6, 6, 0], true, one_in(2)),
            2 => (plan.policies, plan.hashes, plan.endpoints) = (vec![3], true, 4),
            3 => (plan.policies, plan.endpoints) = (vec![5], 4),
            4 => (plan.outliers, plan.policies, plan.endpoints) = (true, vec![0, 0, 1, 2, 3], 5),
            5 => (plan.sessions, plan.draining, plan.policies) = (true, true, vec![0, 1, 3, 6]),
            6 => (plan.policies, plan.localities, plan.priorities) = (vec![0, 1, 2, 3, 4, 5, 6], 2, 2),
            // Several clusters.
            7 => (plan.clusters, plan.policies) = (4, vec![0, 0, 3, 6]),
            8 => (plan.aggregates, plan.clusters, plan.priorities) = (true, 3, 2),
            // What happens to RPCs.
            9 => (plan.routes, plan.clusters, plan.endpoints, plan.hashes) = (true, 3, 1, one_in(2)),
            10 => (plan.faults, plan.routes, plan.clusters, plan.endpoints) = (true, one_in(2), 2, 1),
            11 => (plan.drops, plan.breakers, plan.loads) = (true, true, one_in(2)),
            12 => (plan.policies, plan.endpoints) = (vec![4, 4, 4, 2, 0, 1], 6),
            13 => (plan.policies, plan.outliers, plan.sessions, plan.priorities) = (vec![1, 0], true, true, 2),
            _ => (plan.policies, plan.localities, plan.drops) = (vec![1, 2, 3, 5, 6, 7, 8], 5, one_in(3)),
        }
        plan
    }
}

/// How many kinds of worlds there are.
pub(super) const THEMES: u64 = 15;

impl Maker<'_> {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.chance.choose(bound)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }

    fn seconds(&mut self, list: &[u64]) -> Duration {
        Duration::from_secs(self.pick(list))
    }

    // === clusters ===

    pub(super) fn config(&mut self) -> XdsConfig {
        let mut clusters = SharedMap::new();
        for n in 0..self.plan.clusters {
            if n > 0 && self.one_in(5) {
                continue;
            }
            let name: Arc<str> = format!("c{n}").into();
            clusters.insert(name.clone(), Ok(Arc::new(self.cluster(&name))));
        }
        if self.plan.aggregates {
            for name in ["a0", "a1"] {
                let aggregate = self.aggregate_or_leaf(name);
                clusters.insert(name.into(), Ok(Arc::new(aggregate)));
            }
        }
        let host = Arc::new(self.host());
        let filters = self.filters();
        let max_stream_duration = self.limit();
        let route_config = Arc::new(RouteConfig { virtual_hosts: vec![host.clone()] });
        let routes = RouteSource::Inline(route_config.clone());
        let listener = Arc::new(HttpConnectionManager { max_stream_duration, filters, routes });
        XdsConfig { listener, route_config, virtual_host: host, clusters, mixed_sources: false }
    }

    pub(super) fn cluster(&mut self, name: &Arc<str>) -> ClusterConfig {
        let kind = match self.below(if self.plan.policies.contains(&6) { 3 } else { 8 }) {
            0 => ClusterKind::LogicalDns { host: "host".into(), port: 1 },
            1 => ClusterKind::Eds { service_name: Some(self.pick(&["s0", "s1"]).into()) },
            _ => ClusterKind::Eds { service_name: None },
        };
        let children = ClusterChildren::Endpoints(Some(Arc::new(self.endpoints())));
        let cluster = Arc::new(self.settings(kind));
        ClusterConfig { name: name.clone(), cluster, children, note: "note-0".into() }
    }

    pub(super) fn settings(&mut self, kind: ClusterKind) -> Cluster {
        let plan = self.plan;
        let max_requests = if plan.breakers { self.pick(&[0, 1, 2, 3]) } else { 1024 };
        let loads = plan.loads && !self.one_in(4);
        Cluster {
            kind,
            lb_policy: self.policy(),
            max_requests,
            outlier_detection: (plan.outliers && !self.one_in(6)).then(|| self.outliers()),
            tls: (plan.tls && self.one_in(2)).then(|| {
                Arc::new(UpstreamTls {
                    roots: Roots::System,
                    identity_instance: None,
                    match_subject_alt_names: Vec::new(),
                    sni: self.pick(&[None, Some("a".to_owned())]),
                    auto_host_sni: false,
                    auto_sni_san_validation: false,
                })
            }),
            http_connect: (plan.proxies && !self.one_in(3))
                .then(|| HttpConnect { default: self.pick(&[None, Some(proxy(0)), Some(proxy(1))]) }),
            lrs_server: loads.then(|| Arc::new(ServerConfig::insecure("lrs"))),
            lrs_report_endpoint_metrics: Vec::new(),
            override_host_statuses: OverrideHostStatuses {
                unknown: !self.one_in(4),
                healthy: !self.one_in(4),
                draining: plan.draining && !self.one_in(3),
            },
            idle_timeout: self.seconds(&[2, 20, 21, 60, 3600]),
        }
    }

    pub(super) fn policy(&mut self) -> LbPolicy {
        let kind = self.pick(&self.plan.policies.clone());
        self.policy_of(kind)
    }

    fn policy_of(&mut self, kind: u64) -> LbPolicy {
        match kind {
            0 => LbPolicy::RoundRobin,
            1 => {
                let child = self.pick(&[0, 0, 0, 2, 3, 4, 5, 6]);
                LbPolicy::WrrLocality(Box::new(self.policy_of(child)))
            }
            2 => LbPolicy::LeastRequest { choices: self.pick(&[2, 3, 10]) },
            3 => {
                let min_ring_size = self.pick(&[1, 2, 5, 16, 40, 5000]);
                let header = self.pick(&[None, None, Some("user"), Some("x-hash"), Some("bad name")]);
                let max_ring_size = min_ring_size + self.pick(&[0, 1, 60, 9000]);
                LbPolicy::RingHash(RingHashConfig {
                    min_ring_size: if min_ring_size == 5000 && !self.one_in(8) { 7 } else { min_ring_size },
                    max_ring_size,
                    request_hash_header: header.map(str::to_owned),
                })
            }
            4 => {
                let child = self.pick(&[0, 0, 2, 6]);
                let size = self.pick(&[1, 2, 3, 4]);
                LbPolicy::RandomSubsetting { size, child: Box::new(self.policy_of(child)) }
            }
            5 => LbPolicy::WeightedRoundRobin(Box::new(self.weighted())),
            6 => LbPolicy::PickFirst { shuffle: self.one_in(3) },
            // Below localities.
            kind => {
                let child = if kind == 7 { 5 } else { 3 };
                LbPolicy::WrrLocality(Box::new(self.policy_of(child)))
            }
        }
    }

    fn weighted(&mut self) -> WeightedRoundRobinConfig {
        let metrics =
            ["application_utilization", "cpu_utilization", "mem_utilization", "named_metrics.x", "utilization.y"];
        let count = self.below(3);
        let metrics = (0..count).filter_map(|_| Metric::parse(self.pick(&metrics))).collect();
        let penalty = Penalty::new(self.pick(&[0.0, 1.0, 1.0, 2.5])).unwrap_or_else(|| unreachable!("a penalty"));
        WeightedRoundRobinConfig {
            oob_reporting_period: self.pick(&[None, None, Some(Duration::from_secs(1)), Some(Duration::from_secs(10))]),
            blackout_period: self.seconds(&[0, 0, 1, 10]),
            weight_expiration_period: self.seconds(&[3, 30, 180]),
            weight_update_period: self.pick(&[Duration::from_millis(100), Duration::from_secs(1)]),
            weighing: Weighing { error_utilization_penalty: penalty, metrics },
        }
    }

    fn outliers(&mut self) -> OutlierDetection {
        let enforcement = [0, 50, 100, 100, 100];
        let success_rate = self.one_in(2).then(|| SuccessRateEjection {
            stdev_factor: self.pick(&[0, 500, 1000, 1900]),
            enforcement: self.pick(&enforcement),
            minimum_hosts: self.pick(&[0, 1, 2, 3]),
            request_volume: self.pick(&[0, 1, 2, 4]),
        });
        let failure_percentage = (success_rate.is_none() || self.one_in(2)).then(|| FailurePercentageEjection {
            threshold: self.pick(&[0, 33, 50, 85, 100]),
            enforcement: self.pick(&enforcement),
            minimum_hosts: self.pick(&[0, 1, 2, 3]),
            request_volume: self.pick(&[0, 1, 2, 4]),
        });
        let nothing = self.one_in(10);
        OutlierDetection {
            interval: self.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(10)]),
            base_ejection_time: self.seconds(&[0, 2, 10, 30]),
            max_ejection_time: self.seconds(&[3, 25, 300]),
            max_ejection_percent: self.pick(&[0, 20, 40, 50, 100]),
            success_rate: success_rate.filter(|_| !nothing),
            failure_percentage: failure_percentage.filter(|_| !nothing),
        }
    }

    /// An aggregate, or now and then a leaf of the same name.
    pub(super) fn aggregate_or_leaf(&mut self, name: &str) -> ClusterConfig {
        if self.one_in(4) { self.cluster(&name.into()) } else { self.aggregate(name) }
    }

    fn aggregate(&mut self, name: &str) -> ClusterConfig {
        let mut leaves: Vec<String> = (0..self.plan.clusters).map(|n| format!("c{n}")).collect();
        for at in 0..leaves.len() {
            let other = self.below(leaves.len() as u64) as usize;
            leaves.swap(at, other);
        }
        leaves.truncate(1 + self.below(self.plan.clusters) as usize);
        if self.plan.errors && self.one_in(4) {
            leaves.push("missing".into());
        }
        let children = ClusterChildren::Aggregate(leaves.iter().map(|leaf| leaf.as_str().into()).collect());
        let cluster = Arc::new(self.settings(ClusterKind::Aggregate { clusters: leaves }));
        ClusterConfig { name: name.into(), cluster, children, note: "note-a".into() }
    }

    pub(super) fn cluster_error(&mut self, name: &Arc<str>) -> ClusterError {
        let kind = if self.one_in(2) { ClusterErrorKind::TooDeep } else { ClusterErrorKind::NoLeaves(Vec::new()) };
        ClusterError { cluster: name.clone(), kind }
    }

    // === endpoints ===

    pub(super) fn endpoints(&mut self) -> ResolvedEndpoints {
        let plan = self.plan;
        let mut free: Vec<SocketAddr> = (1..=plan.addresses).map(address).collect();
        if plan.several_addresses {
            free.extend((1..=plan.addresses).map(address_v6));
        }
        for at in 0..free.len() {
            let other = self.below(free.len() as u64) as usize;
            if self.one_in(2) {
                free.swap(at, other);
            }
        }
        let mut zones: Vec<u64> = (0..6).collect();
        let mut collections = BTreeMap::new();
        let mut priorities = Vec::new();
        let count = if self.one_in(12) { 0 } else { 1 + self.below(plan.priorities) };
        for _ in 0..count {
            let mut localities = Vec::new();
            for _ in 0..1 + self.below(plan.localities) {
                let at = self.below((zones.len() as u64).min(plan.localities * plan.priorities)) as usize;
                let zone = zones.remove(at);
                let mut endpoints = Vec::new();
                let many = if self.one_in(10) { 0 } else { 1 + self.below(plan.endpoints) };
                for _ in 0..many {
                    endpoints.extend(self.endpoint(&mut free));
                }
                let list = Arc::new(EndpointCollection { endpoints });
                let source = if plan.collections && self.one_in(2) {
                    let name = format!("l{zone}");
                    if !self.one_in(6) {
                        collections.insert(name.as_str().into(), list);
                    }
                    EndpointSource::Collection(name)
                } else {
                    EndpointSource::Inline(list)
                };
                let locality = Arc::new(Locality { zone: format!("zone{zone}"), ..Locality::default() });
                let proxy = if plan.proxies { self.pick(&[None, Some(proxy(2))]) } else { None };
                localities.push(LocalityEndpoints { locality, weight: self.pick(&[1, 1, 2, 7]), source, proxy });
                // Two localities of one priority; another priority takes others.
            }
            priorities.push(Priority { localities });
        }
        let drops = if plan.drops { self.drops() } else { Vec::new() };
        if plan.collections && self.one_in(3) {
            share_an_address(&mut collections);
        }
        ResolvedEndpoints { endpoints: Arc::new(Endpoints { priorities, drops }), collections, globs: BTreeMap::new() }
    }

    pub(super) fn drops(&mut self) -> Vec<DropCategory> {
        let count = self.below(3);
        let drop = |n: u64, maker: &mut Self| DropCategory {
            category: format!("category{n}"),
            per_million: maker.pick(&[0, 1, 300_000, 999_999, 1_000_000]),
        };
        (0..count).map(|n| drop(n, self)).collect()
    }

    fn endpoint(&mut self, free: &mut Vec<SocketAddr>) -> Option<Endpoint> {
        let count = if self.plan.several_addresses { 1 + self.below(3) } else { 1 };
        let mut addresses = Vec::new();
        for _ in 0..count {
            if !free.is_empty() {
                addresses.push(free.remove(self.below((free.len() as u64).min(3)) as usize));
            }
        }
        let addresses = match addresses[..] {
            [] => return None,
            [one] => Addresses::One(one),
            _ => Addresses::Many(addresses.into()),
        };
        let health = match self.below(6) {
            0 if self.plan.draining => HealthStatus::Draining,
            0 | 1 => HealthStatus::Unknown,
            _ => HealthStatus::Healthy,
        };
        let names = (self.plan.names || self.plan.proxies).then(|| {
            Arc::new(EndpointNames {
                hostname: if self.plan.names { self.pick(&[None, Some("h1".into()), Some("h2".into())]) } else { None },
                hash_key: self.pick(&[None, None, Some("".into()), Some("k1".into()), Some("k2".into())]),
                proxy: if self.plan.proxies { self.pick(&[None, None, Some(proxy(3))]) } else { None },
            })
        });
        Some(Endpoint { addresses, weight: self.pick(&[1, 1, 1, 2, 9]), health, names })
    }

    /// A small change.
    pub(super) fn change_endpoints(&mut self, resolved: &mut ResolvedEndpoints) {
        if self.plan.drops && self.one_in(3) {
            Arc::make_mut(&mut resolved.endpoints).drops = self.drops();
            return;
        }
        let fresh = self.endpoints();
        let edits = self.below(8);
        let endpoints = Arc::make_mut(&mut resolved.endpoints);
        if endpoints.priorities.len() > 1 && edits == 0 {
            endpoints.priorities.rotate_left(1);
            return;
        }
        let Some(priority) = endpoints.priorities.last_mut() else {
            endpoints.priorities = fresh.endpoints.priorities.clone();
            return;
        };
        match edits {
            1 => {
                endpoints.priorities.pop();
            }
            2 => priority.localities.reverse(),
            3 => priority.localities.iter_mut().for_each(|locality| locality.weight += 1),
            4 if priority.localities.len() > 1 => {
                let moved = priority.localities.pop();
                endpoints.priorities.push(Priority { localities: moved.into_iter().collect() });
            }
            _ => {
                let at = self.below(endpoints.priorities.len() as u64) as usize;
                let localities = &mut endpoints.priorities[at].localities;
                let Some(locality) = localities.first_mut() else { return };
                let EndpointSource::Inline(list) = &mut locality.source else { return };
                let list = &mut Arc::make_mut(list).endpoints;
                match self.below(7) {
                    0 => drop(list.pop()),
                    1 => list.reverse(),
                    2 => list.iter_mut().for_each(|endpoint| endpoint.weight += 1),
                    3 => {
                        let health = [HealthStatus::Unknown, HealthStatus::Healthy, HealthStatus::Draining];
                        let health = self.pick(&health[..if self.plan.draining { 3 } else { 2 }]);
                        list.iter_mut().take(1).for_each(|endpoint| endpoint.health = health);
                    }
                    4 => {
                        for endpoint in list.iter_mut().take(1) {
                            let mut reversed = endpoint.addresses.as_slice().to_vec();
                            reversed.reverse();
                            if reversed.len() > 1 {
                                endpoint.addresses = Addresses::Many(reversed.into());
                            }
                        }
                    }
                    _ => {
                        let taken: Vec<SocketAddr> = all_addresses(endpoints);
                        let mut free: Vec<SocketAddr> = (1..=self.plan.addresses + 2).map(address).collect();
                        free.retain(|address| !taken.contains(address));
                        let added = self.endpoint(&mut free);
                        let localities = &mut endpoints.priorities[at].localities;
                        if let Some(LocalityEndpoints { source: EndpointSource::Inline(list), .. }) =
                            localities.first_mut()
                        {
                            Arc::make_mut(list).endpoints.extend(added);
                        }
                    }
                }
            }
        }
    }

    // === routes ===

    fn limit(&mut self) -> Option<Duration> {
        self.pick(&[None, None, Some(Duration::ZERO), Some(Duration::from_secs(7)), Some(Duration::from_secs(9))])
    }

    pub(super) fn host(&mut self) -> VirtualHost {
        let count = if self.plan.routes { 1 + self.below(12) } else { 1 + self.below(2) };
        let mut routes: Vec<Route> = (0..count).map(|_| self.route()).collect();
        if !self.plan.routes || self.one_in(2) {
            let mut last = self.route();
            (last.path, last.headers, last.fraction) =
                (PathMatcher::Prefix { value: String::new(), case_sensitive: true }, Vec::new(), None);
            routes.push(last);
        }
        VirtualHost { name: "host".into(), domains: vec![DomainPattern::Any], routes, overrides: self.overrides() }
    }

    fn route(&mut self) -> Route {
        let action = match self.below(20) {
            0 if self.plan.routes => RouteAction::NonForwarding,
            1 if self.plan.routes => RouteAction::Unsupported("redirect"),
            _ => RouteAction::Forward(self.forward()),
        };
        let count = if self.plan.routes { self.below(3) } else { 0 };
        Route {
            path: self.path(),
            headers: (0..count).map(|_| self.header_matcher()).collect(),
            fraction: self.pick(&[None, None, None, Some(0), Some(1), Some(500_000), Some(999_999), Some(1_000_000)]),
            action,
            overrides: self.overrides(),
        }
    }

    fn path(&mut self) -> PathMatcher {
        if !self.plan.routes {
            let value = self.pick(&["", "/s/", "/s/m", "/t"]).to_owned();
            return PathMatcher::Prefix { value, case_sensitive: true };
        }
        let case_sensitive = !self.one_in(3);
        match self.below(5) {
            0 => {
                let pattern = self.pick(&["/s/.*", "/[st]/m", ".*more", "/s/m"]);
                FullRegex::new(pattern)
                    .map_or(PathMatcher::Prefix { value: "/".into(), case_sensitive }, PathMatcher::Regex)
            }
            1 | 2 => PathMatcher::Exact { value: self.path_text(), case_sensitive },
            _ => PathMatcher::Prefix { value: self.path_text(), case_sensitive },
        }
    }

    fn path_text(&mut self) -> String {
        let paths = [
            "",
            "/",
            "/s",
            "/S",
            "/s/",
            "/s/m",
            "/s/M",
            "/s/more",
            "/s/moreover",
            "/s/mo",
            "/t/m",
            "/t/",
            "/service/a",
            "/service/ab",
            "/service/abcdefghijk",
            "/service/abcdefghijkl",
            "/service/abcdefgh",
            "/SERVICE/abcdefghijk",
            "/service/abcdefghijkz",
            "/service/abd",
            "/tt/",
            "/u",
            "x",
        ];
        self.pick(&paths).to_owned()
    }

    fn header_matcher(&mut self) -> HeaderMatcher {
        let name =
            self.pick(&["user", "user", "n", "x-bin", "grpc-x", "user-agent", "content-type", "te", "bad name", "x"]);
        let text = self.pick(&["a", "b", "ab", "", "application/grpc", "5", "A", "a,b"]).to_owned();
        let ignore_case = self.one_in(3);
        let value = if ignore_case { text.to_ascii_lowercase() } else { text };
        let kind = match self.below(8) {
            0 => HeaderMatch::String(StringMatcher::Prefix { value, ignore_case }),
            1 => HeaderMatch::String(StringMatcher::Suffix { value, ignore_case }),
            2 => HeaderMatch::String(StringMatcher::Contains { value, ignore_case }),
            3 => HeaderMatch::Range { start: self.pick(&[-1, 0, 5]), end: self.pick(&[5, 6, 100]) },
            4 | 5 => HeaderMatch::Present(self.one_in(2)),
            6 => FullRegex::new("a.*")
                .map_or(HeaderMatch::Present(true), |p| HeaderMatch::String(StringMatcher::Regex(p))),
            _ => HeaderMatch::String(StringMatcher::Exact { value, ignore_case }),
        };
        HeaderMatcher { name: name.into(), kind, invert: self.one_in(4) }
    }

    fn some_cluster(&mut self) -> String {
        if self.plan.aggregates && !self.one_in(3) {
            return self.pick(&["a0", "a1"]).into();
        }
        if self.plan.errors && self.one_in(15) {
            return "missing".into();
        }
        format!("c{}", self.below(self.plan.clusters))
    }

    fn forward(&mut self) -> ForwardAction {
        let target = if self.plan.clusters > 1 && self.one_in(3) {
            let count = 1 + self.below(3);
            let choice = |maker: &mut Self| WeightedCluster {
                name: maker.some_cluster(),
                weight: maker.pick(&[1, 2, 50]),
                overrides: maker.overrides(),
            };
            ClusterTarget::Weighted((0..count).map(|_| choice(self)).collect())
        } else {
            ClusterTarget::Cluster(self.some_cluster())
        };
        let hashes = if self.plan.hashes { self.below(4) } else { 0 };
        ForwardAction {
            target,
            max_stream_duration: self.limit(),
            retry: (self.plan.retries && self.one_in(2)).then(|| Arc::new(self.retry())),
            hash_policies: (0..hashes).map(|_| self.hash_policy()).collect(),
            auto_host_rewrite: self.one_in(2),
        }
    }

    pub(super) fn retry(&mut self) -> RetryPolicy {
        RetryPolicy {
            retry_on: self.pick(&[
                vec![Code::Unavailable],
                vec![Code::ResourceExhausted, Code::Unavailable],
                vec![Code::Cancelled, Code::DeadlineExceeded],
            ]),
            num_retries: self.pick(&[1, 2, 3, 4, 5, u32::MAX]),
            base_interval: self.pick(&[Duration::from_millis(25), Duration::from_millis(100), Duration::MAX]),
            max_interval: self.pick(&[Duration::from_millis(250), Duration::from_secs(1), Duration::MAX]),
        }
    }

    fn hash_policy(&mut self) -> HashPolicy {
        let source = match self.below(4) {
            0 => HashSource::ChannelId,
            1 => {
                let rewrite = RegexRewrite::new("[0-9]+", "n").ok();
                HashSource::Header { name: "user".into(), rewrite }
            }
            _ => {
                let name = self.pick(&["user", "user", "n", "x-bin", "bad name", "grpc-x"]).to_owned();
                HashSource::Header { name, rewrite: None }
            }
        };
        HashPolicy { source, terminal: self.one_in(3) }
    }

    // === filters ===

    pub(super) fn filters(&mut self) -> Vec<HttpFilter> {
        let mut filters = Vec::new();
        if self.plan.faults && !self.one_in(8) {
            for name in ["f", "g"].into_iter().take(1 + self.below(2) as usize) {
                let config = FilterConfig::Fault(Arc::new(self.fault()));
                filters.push(HttpFilter { name: name.into(), config, disabled: self.one_in(4) });
            }
        }
        if self.plan.sessions && !self.one_in(8) {
            let cookie = (!self.one_in(6)).then(|| Arc::new(self.cookie()));
            let config = FilterConfig::StatefulSession(cookie);
            filters.push(HttpFilter { name: "session".into(), config, disabled: self.one_in(6) });
            if self.one_in(5) {
                let config = FilterConfig::StatefulSession(Some(Arc::new(self.cookie())));
                filters.push(HttpFilter { name: "second".into(), config, disabled: false });
            }
        }
        filters.push(HttpFilter { name: "router".into(), config: FilterConfig::Router, disabled: false });
        filters
    }

    fn cookie(&mut self) -> SessionCookie {
        SessionCookie {
            name: self.pick(&["sid", "sid", "other"]).into(),
            path: self.pick(&["", "", "/", "/s", "/s/", "/s/m", "/t"]).into(),
            ttl: self.seconds(&[0, 120]),
        }
    }

    fn share(&mut self) -> FaultShare {
        FaultShare { numerator: self.pick(&[0, 1, 30, 99, 100, 101, 5000]), denominator: self.pick(&[100, 10_000]) }
    }

    fn fault(&mut self) -> Fault {
        let time = if self.one_in(2) { DelayTime::Header } else { DelayTime::Fixed(self.seconds(&[0, 1])) };
        let status =
            if self.one_in(2) { AbortStatus::Header } else { AbortStatus::Code(self.pick(&[Code::Ok, Code::Aborted])) };
        Fault {
            delay: (!self.one_in(3)).then(|| FaultDelay { time, share: self.share() }),
            abort: (!self.one_in(3)).then(|| FaultAbort { status, share: self.share() }),
            max_active: self.pick(&[0, 7, u32::MAX]),
        }
    }

    fn overrides(&mut self) -> FilterOverrides {
        let mut overrides = FilterOverrides::new();
        if (self.plan.faults || self.plan.sessions) && self.one_in(4) {
            let name = self.pick(&["f", "g", "session", "session", "second"]);
            let fault = FilterOverride::Fault(Arc::new(self.fault()));
            let cookie = (!self.one_in(4)).then(|| Arc::new(self.cookie()));
            let session = FilterOverride::StatefulSession(cookie);
            overrides.insert(name.into(), self.pick(&[FilterOverride::Disabled, fault, session]));
        }
        overrides
    }

    // === RPCs ===

    pub(super) fn request(&mut self, cookies: &[String]) -> (String, HeaderMap) {
        let path = match self.below(4) {
            0 => self.path_text(),
            1 => self.path_text().to_ascii_uppercase(),
            _ => self.pick(&["/s/m", "/s/more", "/t/m"]).to_owned(),
        };
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.append(HeaderName::from_static(name), value);
            }
        };
        if !self.one_in(4) {
            add("user", self.pick(&["a", "b", "ab", "", "A", "user17", "user4711", "z"]));
            if self.one_in(6) {
                add("user", self.pick(&["b", "c"]));
            }
        }
        if self.one_in(3) {
            add("n", self.pick(&["-1", "0", "4", "5", "6", "99", "100", "x"]));
        }
        for name in ["x-bin", "grpc-x", "user-agent", "content-type", "te", "x", "x-hash"] {
            if (self.plan.routes || self.plan.hashes) && self.one_in(4) {
                add(name, self.pick(&["a", "5", "b", ""]));
            }
        }
        if self.plan.routes && self.one_in(10) {
            headers.append("user", HeaderValue::from_bytes(b"\xff").unwrap_or_else(|_| HeaderValue::from_static("")));
        }
        if self.plan.faults {
            for (name, values) in FAULT_HEADERS {
                if self.one_in(2) {
                    let count = 1 + self.below(2);
                    for _ in 0..count {
                        headers.append(HeaderName::from_static(name), HeaderValue::from_static(self.pick(values)));
                    }
                }
            }
        }
        if self.plan.sessions && !self.one_in(4) {
            let text = self.cookie_header(cookies);
            headers.extend(HeaderValue::try_from(text).ok().map(|value| (http::header::COOKIE, value)));
        }
        (path, headers)
    }

    fn cookie_header(&mut self, cookies: &[String]) -> String {
        if !cookies.is_empty() && !self.one_in(4) {
            return self.pick(cookies);
        }
        let mut hosts: Vec<String> = Vec::new();
        for _ in 0..1 + self.below(3) {
            hosts.push(address(1 + self.below(self.plan.addresses + 1)).to_string());
        }
        if self.one_in(12) {
            hosts.push("nonsense".into());
        }
        if self.one_in(12) {
            let last = address(1).to_string();
            hosts = vec![address(99).to_string(); self.pick(&[30, 31, 32]) as usize];
            hosts.push(last);
        }
        let cluster = match self.below(4) {
            0 => String::new(),
            1 => ";c0".into(),
            _ => format!(";cluster:{}", self.some_cluster()),
        };
        let value = STANDARD.encode(format!("{}{cluster}", hosts.join(",")));
        match self.below(8) {
            0 => format!("sid=\"{value}\""),
            1 => format!("a=b; sid={value}; sid=x"),
            2 => format!("sid2=x;sid={value}"),
            3 => format!("sid={}", "A".repeat(self.pick(&[4092, 4096, 4100]))),
            4 => "sid=%".into(),
            _ => format!("sid={value}"),
        }
    }

    pub(super) fn report(&mut self) -> OrcaLoadReport {
        let mut report = OrcaLoadReport {
            rps_fractional: self.pick(&[0.0, 1.0, 10.0, 100.0, 3000.0, f64::MIN_POSITIVE]),
            application_utilization: self.pick(&[0.0, 0.0, 0.2, 1.0, 1e30]),
            cpu_utilization: self.pick(&[0.0, 0.0, 0.1, 0.5, 0.9]),
            mem_utilization: self.pick(&[0.0, 0.3, -1.0]),
            eps: self.pick(&[0.0, 0.0, 1.0, 50.0]),
            ..OrcaLoadReport::default()
        };
        if self.one_in(2) {
            report.named_metrics.insert("x".into(), self.pick(&[0.0, 0.4, -0.5]));
        }
        if self.one_in(2) {
            report.utilization.insert("y".into(), self.pick(&[0.0, 0.7, 0.05]));
        }
        report
    }
}

const FAULT_HEADERS: [(&str, &[&str]); 5] = [
    ("x-envoy-fault-delay-request", &["0", "53", "x", "-1", "4294967295", "4294967296"]),
    ("x-envoy-fault-delay-request-percentage", &["0", "1", "50", "200", "x"]),
    ("x-envoy-fault-abort-grpc-request", &["0", "5", "16", "17", "300", "x"]),
    ("x-envoy-fault-abort-request", &["503", "404", "200", "99999", "x"]),
    ("x-envoy-fault-abort-request-percentage", &["0", "1", "50", "200", "x"]),
];

/// An endpoint of one collection is in another one, too.
fn share_an_address(collections: &mut BTreeMap<Arc<str>, Arc<EndpointCollection>>) {
    let first = collections.values().find_map(|list| list.endpoints.first()).cloned();
    if let (Some(first), Some(mut last)) = (first, collections.last_entry()) {
        Arc::make_mut(last.get_mut()).endpoints.push(first);
    }
}

fn all_addresses(endpoints: &Endpoints) -> Vec<SocketAddr> {
    let localities = endpoints.priorities.iter().flat_map(|priority| &priority.localities);
    let lists = localities.filter_map(|locality| match &locality.source {
        EndpointSource::Inline(list) => Some(list),
        EndpointSource::Collection(_) => None,
    });
    lists.flat_map(|list| &list.endpoints).flat_map(|endpoint| endpoint.addresses.as_slice()).copied().collect()
}

fn address(n: u64) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 1000 + n as u16))
}

fn address_v6(n: u64) -> SocketAddr {
    SocketAddr::from((Ipv6Addr::LOCALHOST, 2000 + n as u16))
}

fn proxy(n: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 3000 + n))
}
