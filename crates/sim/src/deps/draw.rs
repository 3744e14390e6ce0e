//! What control planes and name servers may say.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Choose;
use mainstay_xds::client::ErrorKind;
use mainstay_xds::invalid::Invalid;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::cluster::{ClusterKind, OverrideHostStatuses};
use mainstay_xds::resource::endpoint::{
    Addresses, Endpoint, EndpointSource, HealthStatus, Locality, LocalityEndpoints, Priority,
};
use mainstay_xds::resource::filter::{FilterConfig, HttpFilter};
use mainstay_xds::resource::lb_policy::LbPolicy;
use mainstay_xds::resource::listener::{HttpConnectionManager, RouteSource, ServerListener};
use mainstay_xds::resource::matcher::PathMatcher;
use mainstay_xds::resource::route::{ClusterTarget, DomainPattern, ForwardAction, Route, RouteAction, VirtualHost};
use mainstay_xds::resource::{Cluster, EndpointCollection, Endpoints, Listener, Resource, ResourceType, RouteConfig};

use super::state::AUTHORITY;
use crate::choose::Seeded;

/// Draws from a seed.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    source: Seeded,
    /// How many clusters there are names for.
    clusters: usize,
    /// Aggregates name the next ones: chains and loops of any length.
    chains: bool,
    /// Some aggregates name very many clusters.
    wide: bool,
    /// Whether there are aggregates.
    aggregates: bool,
    /// Whether aggregates become leaves, and leaves aggregates.
    changes_kind: bool,
    /// Whether somebody subscribes to clusters.
    pub(super) subscribes: bool,
    /// Collections, and names of another authority, are common.
    pub(super) federated: bool,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        let mut this = Self {
            source: Seeded::new(seed),
            clusters: 0,
            chains: false,
            wide: false,
            aggregates: true,
            changes_kind: false,
            subscribes: false,
            federated: false,
        };
        this.chains = this.chance(6);
        this.clusters = if this.chains { 30 + this.below(10) } else { 2 + this.below(6) };
        this.wide = !this.chains && this.chance(40);
        if this.wide {
            this.clusters = 140;
        }
        this.aggregates = this.chains || this.wide || !this.chance(4);
        this.federated = this.chance(3);
        this.changes_kind = this.aggregates && this.chance(4);
        this.subscribes = !this.aggregates || this.chance(3);
        this
    }

    /// How many rounds it takes until everything has been told that is nested.
    pub(super) fn depth(&mut self) -> usize {
        match (self.chains, self.wide) {
            (true, _) if self.chance(2) => 22,
            (_, true) => 5,
            _ => 0,
        }
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.source.choose(bound.max(1) as u64)).unwrap_or_default()
    }

    /// Once in so many times.
    pub(super) fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(super) fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }

    pub(super) fn cluster_name(&mut self) -> String {
        if self.federated && self.chance(4) {
            // Two spellings of one name, another one, and none at all.
            return self.one_of(&FOREIGN).copied().unwrap_or_default().to_owned();
        }
        format!("c{}", self.below(self.clusters))
    }

    fn name(&mut self, letter: char, message: &str, count: usize) -> String {
        let number = self.below(count);
        if self.federated && self.chance(3) {
            return format!("xdstp://east/{message}/{letter}{number}");
        }
        format!("{letter}{number}")
    }

    /// Some resource, which may be watched or not.
    pub(super) fn key(&mut self) -> (ResourceType, String) {
        let resource_type = DRAWN[self.below(DRAWN.len())];
        let name = match resource_type {
            ResourceType::Listener => "other".to_owned(),
            ResourceType::RouteConfig => self.name('r', resource_type.message_name(), 3),
            ResourceType::Cluster => self.cluster_name(),
            ResourceType::Endpoints => self.name('e', resource_type.message_name(), 4),
            ResourceType::EndpointCollection | ResourceType::EndpointGlob => {
                self.name('g', resource_type.message_name(), 4)
            }
        };
        (resource_type, name)
    }

    /// A value for a resource.
    pub(super) fn value(&mut self, key: &ResourceKey) -> Resource {
        match key.resource_type {
            ResourceType::Listener => Resource::Listener(Arc::new(self.listener())),
            ResourceType::RouteConfig => Resource::RouteConfig(self.routes()),
            ResourceType::Cluster => Resource::Cluster(Arc::new(self.cluster(&key.name))),
            ResourceType::Endpoints => Resource::Endpoints(Arc::new(self.endpoints())),
            ResourceType::EndpointCollection | ResourceType::EndpointGlob => {
                let ports = 0..self.below(3);
                Resource::EndpointCollection(Arc::new(self.collection(ports.len())))
            }
        }
    }

    fn listener(&mut self) -> Listener {
        if self.chance(25) {
            return Listener::Server(Arc::new(ServerListener::new(address(443), None)));
        }
        let routes = if self.chance(2) {
            RouteSource::Inline(self.routes())
        } else {
            RouteSource::Rds(self.name('r', ResourceType::RouteConfig.message_name(), 3))
        };
        let filters = vec![HttpFilter { name: "router".to_owned(), config: FilterConfig::Router, disabled: false }];
        let max_stream_duration = self.chance(3).then(|| Duration::from_secs(self.below(3) as u64));
        Listener::Api(HttpConnectionManager { max_stream_duration, filters, routes })
    }

    fn routes(&mut self) -> Arc<RouteConfig> {
        let mut virtual_hosts = Vec::new();
        if self.chance(3) {
            virtual_hosts.push(self.host("other"));
        }
        if !self.chance(20) {
            virtual_hosts.push(self.host(AUTHORITY));
        }
        Arc::new(RouteConfig { virtual_hosts })
    }

    fn host(&mut self, domain: &str) -> Arc<VirtualHost> {
        let route = |target| Route {
            path: PathMatcher::Prefix { value: "/".to_owned(), case_sensitive: true },
            headers: Vec::new(),
            fraction: None,
            action: RouteAction::Forward(ForwardAction {
                target: ClusterTarget::Cluster(target),
                max_stream_duration: None,
                retry: None,
                hash_policies: Vec::new(),
                auto_host_rewrite: false,
            }),
            overrides: BTreeMap::new(),
        };
        let count = if self.chance(10) { 0 } else { 1 + self.below(3) };
        Arc::new(VirtualHost {
            name: format!("host{}", self.below(2)),
            domains: vec![DomainPattern::Exact(domain.to_owned())],
            routes: (0..count).map(|_| route(self.cluster_name())).collect(),
            overrides: BTreeMap::new(),
        })
    }

    fn cluster(&mut self, name: &str) -> Cluster {
        // Most aggregates stay what they are, so that there are chains and loops of them.
        let changes = self.changes_kind && self.chance(6);
        let is_aggregate = self.aggregates && changes != name.bytes().last().is_some_and(|last| last % 2 == 1);
        let kind = match self.below(6) {
            _ if is_aggregate => ClusterKind::Aggregate { clusters: self.children(name) },
            0..=3 => {
                let service = self.name('e', ResourceType::Endpoints.message_name(), 4);
                ClusterKind::Eds { service_name: (!self.chance(4)).then_some(service) }
            }
            _ => {
                let literals = ["192.0.2.7", "2001:db8::1", "[2001:db8::2]"];
                let host = match self.chance(4) {
                    true => self.one_of(&literals).copied().unwrap_or_default().to_owned(),
                    false => format!("host{}", self.below(3)),
                };
                ClusterKind::LogicalDns { host, port: 80 }
            }
        };
        Cluster {
            kind,
            lb_policy: LbPolicy::RoundRobin,
            max_requests: 1_000 + self.below(2) as u32,
            outlier_detection: None,
            tls: None,
            http_connect: None,
            lrs_server: None,
            lrs_report_endpoint_metrics: Vec::new(),
            override_host_statuses: OverrideHostStatuses { unknown: true, healthy: true, draining: false },
            idle_timeout: Duration::from_secs(3600),
        }
    }

    fn children(&mut self, name: &str) -> Vec<String> {
        let number = name.strip_prefix('c').and_then(|number| number.parse::<usize>().ok());
        match number {
            // The aggregates of a chain have the odd numbers.
            Some(number) if self.chains && !self.chance(4) => {
                let mut children = vec![format!("c{}", (number + 2) % self.clusters)];
                if self.chance(4) {
                    children.insert(self.below(2), self.cluster_name());
                }
                children
            }
            // All leaves.
            _ if self.wide && self.chance(2) => (0..self.clusters).step_by(2).map(|n| format!("c{n}")).collect(),
            _ => (0..1 + self.below(3)).map(|_| self.cluster_name()).collect(),
        }
    }

    fn endpoints(&mut self) -> Endpoints {
        let priorities = if self.chance(8) { 0 } else { 1 + self.below(2) };
        let priorities = (0..priorities).map(|_| {
            let localities = (0..1 + self.below(2)).map(|zone| LocalityEndpoints {
                locality: Arc::new(Locality { zone: format!("z{zone}"), ..Locality::default() }),
                weight: 1,
                source: match self.chance(2) {
                    true => {
                        EndpointSource::Collection(self.name('g', ResourceType::EndpointCollection.message_name(), 4))
                    }
                    false => {
                        let count = self.below(3);
                        EndpointSource::Inline(Arc::new(self.collection(count)))
                    }
                },
                proxy: None,
            });
            Priority { localities: localities.collect() }
        });
        Endpoints { priorities: priorities.collect(), drops: Vec::new() }
    }

    fn collection(&mut self, count: usize) -> EndpointCollection {
        let endpoint = |address| Endpoint {
            addresses: Addresses::One(address),
            weight: 1,
            health: HealthStatus::Unknown,
            names: None,
        };
        let first = self.below(6) as u16;
        EndpointCollection { endpoints: (0..count as u16).map(|n| endpoint(address(first + n))).collect() }
    }

    /// Why there is no value.
    pub(super) fn trouble(&mut self) -> ErrorKind {
        match self.below(8) {
            0 => ErrorKind::Deleted,
            1 => ErrorKind::DoesNotExist { after: Duration::from_secs(15) },
            2 => ErrorKind::TimedOut { after: Duration::from_secs(30) },
            3 => {
                let code = [5, 7, 13, 14][self.below(4)];
                ErrorKind::FromServer { code, message: "no".to_owned() }
            }
            4 => ErrorKind::Rejected { version: "2".into(), invalid: Invalid::one("name", "is bad") },
            5 => ErrorKind::UnknownAuthority("west".to_owned()),
            _ => ErrorKind::Unreachable(["cable cut", "refused"][self.below(2)].to_owned()),
        }
    }

    /// What a name server says.
    pub(super) fn addresses(&mut self) -> Result<Vec<SocketAddr>, String> {
        match self.below(8) {
            0 => Ok(Vec::new()),
            1..=3 => Err(["SERVFAIL", "timeout"][self.below(2)].to_owned()),
            _ => Ok((0..1 + self.below(3)).map(|_| address(1 + self.below(3) as u16)).collect()),
        }
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

const FOREIGN: [&str; 4] = [
    "xdstp://east/envoy.config.cluster.v3.Cluster/x?a=1&b=2",
    "xdstp://east/envoy.config.cluster.v3.Cluster/x?b=2&a=1",
    "xdstp://east/envoy.config.cluster.v3.Cluster/y",
    "xdstp:nonsense",
];

/// What is drawn of. Globs have a reference of their own in the tests of the core.
const DRAWN: [ResourceType; 5] = [
    ResourceType::Listener,
    ResourceType::RouteConfig,
    ResourceType::Cluster,
    ResourceType::Endpoints,
    ResourceType::EndpointCollection,
];
