//! Tests of the dependency manager. They talk to it in a small language: calls say what the control
//! plane or DNS does, and [`Testbed::take`] tells what the manager did about it, as text.
//!
//! | text | meaning |
//! |---|---|
//! | `+CDS a`, `-CDS a` | a watch begins, ends |
//! | `?host:80`, `!host:80` | a lookup begins, is given up |
//! | `{a=1,2 b=none x! agg>a,b}` | published: endpoints by port, no endpoints, an error, leaves |
//! | `{…}mixed` | the same, marked as made of several servers |
//! | `error LDS l` | an error is published for that resource |

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::{
    Action, ClusterChildren, ClusterConfig, ClusterError, ConfigError, DependencyManager, DepsSettings, DnsName,
    Output, XdsConfig,
};
use crate::bootstrap::{ChannelCreds, ServerConfig, ServerFeatures};
use crate::client::{ErrorKind, Provenance, ResourceError, Update};
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::cluster::{Cluster, ClusterKind, OverrideHostStatuses};
use crate::resource::endpoint::{
    Addresses, Endpoint, EndpointCollection, EndpointSource, Endpoints, HealthStatus, Locality, LocalityEndpoints,
    Priority,
};
use crate::resource::filter::{FilterConfig, HttpFilter};
use crate::resource::lb_policy::LbPolicy;
use crate::resource::listener::{HttpConnectionManager, Listener, RouteSource, ServerListener};
use crate::resource::matcher::PathMatcher;
use crate::resource::route::{
    ClusterTarget, DomainPattern, ForwardAction, Route, RouteAction, RouteConfig, VirtualHost,
};
use crate::resource::{Resource, ResourceType};
use crate::{Choose, Time};

mod aggregates;
mod clusters;
mod collections;
mod dns;
mod following;
mod globs;
mod routes;
mod scale;
mod sources;
mod trouble;
mod whole;

const LDS: ResourceType = ResourceType::Listener;
const RDS: ResourceType = ResourceType::RouteConfig;
const CDS: ResourceType = ResourceType::Cluster;
const EDS: ResourceType = ResourceType::Endpoints;
const LEDS: ResourceType = ResourceType::EndpointCollection;

/// A manager for Listener `l`, and what is around it.
#[derive(Clone)]
struct Testbed {
    manager: DependencyManager,
    now: Time,
    /// Where updates come from.
    server: Arc<ServerConfig>,
    watched: BTreeSet<ResourceKey>,
    asked: BTreeSet<DnsName>,
    log: Vec<String>,
    config: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    /// Whether calls wait for [`Testbed::settle`] instead of polling at once.
    batching: bool,
}

impl Testbed {
    /// A testbed in which nothing has come yet.
    fn new() -> Self {
        Self::with(DepsSettings::default())
    }

    fn with(settings: DepsSettings) -> Self {
        let mut bed = Self {
            manager: DependencyManager::new("l".into(), "svc".into(), "node-1".into(), settings),
            now: Time::ZERO,
            server: server("A"),
            watched: BTreeSet::new(),
            asked: BTreeSet::new(),
            log: Vec::new(),
            config: None,
            batching: false,
        };
        bed.settle();
        assert_eq!(bed.take(), "+LDS l");
        bed
    }

    /// A testbed with an inline route to each of `clusters`; nothing else has come yet.
    fn routed(clusters: &[&str]) -> Self {
        let mut bed = Self::new();
        bed.inline(clusters);
        bed.log.clear();
        bed
    }

    /// A testbed with an inline route to each of `clusters`, which are EDS clusters with endpoint 1.
    fn serving(clusters: &[&str]) -> Self {
        let mut bed = Self::routed(clusters);
        for cluster in clusters {
            bed.eds(cluster);
            bed.endpoints(cluster, &[1]);
        }
        assert!(matches!(bed.config, Some(Ok(_))));
        bed.log.clear();
        bed
    }

    // --- What the control plane does ---

    fn inline(&mut self, clusters: &[&str]) {
        self.changed(
            "l",
            Resource::Listener(Arc::new(Listener::Api(hcm(RouteSource::Inline(routes("svc", clusters)))))),
        );
    }

    fn rds(&mut self, name: &str) {
        self.changed("l", Resource::Listener(Arc::new(Listener::Api(hcm(RouteSource::Rds(name.to_owned()))))));
    }

    fn routes(&mut self, name: &str, clusters: &[&str]) {
        self.changed(name, Resource::RouteConfig(routes("svc", clusters)));
    }

    fn eds(&mut self, name: &str) {
        self.cluster(name, ClusterKind::Eds { service_name: None });
    }

    fn eds_named(&mut self, name: &str, service: &str) {
        self.cluster(name, ClusterKind::Eds { service_name: Some(service.to_owned()) });
    }

    fn logical_dns(&mut self, name: &str, host: &str) {
        self.cluster(name, ClusterKind::LogicalDns { host: host.to_owned(), port: 80 });
    }

    fn aggregate(&mut self, name: &str, children: &[&str]) {
        self.cluster(name, ClusterKind::Aggregate { clusters: strings(children) });
    }

    fn cluster(&mut self, name: &str, kind: ClusterKind) {
        self.changed(name, Resource::Cluster(Arc::new(cluster(kind))));
    }

    /// One locality with an endpoint for each port.
    fn endpoints(&mut self, name: &str, ports: &[u16]) {
        let source = EndpointSource::Inline(Arc::new(collection(ports)));
        self.changed(name, Resource::Endpoints(Arc::new(localities(vec![source]))));
    }

    /// Localities that each name a collection.
    fn endpoints_in(&mut self, name: &str, collections: &[&str]) {
        let sources = collections.iter().map(|name| EndpointSource::Collection((*name).to_owned())).collect();
        self.changed(name, Resource::Endpoints(Arc::new(localities(sources))));
    }

    fn collection(&mut self, name: &str, ports: &[u16]) {
        self.changed(name, Resource::EndpointCollection(Arc::new(collection(ports))));
    }

    fn changed(&mut self, name: &str, resource: Resource) {
        let provenance = self.provenance();
        self.update(resource.resource_type(), name, Update::Changed(resource, provenance));
    }

    fn confirmed(&mut self, resource_type: ResourceType, name: &str) {
        let provenance = self.provenance();
        self.update(resource_type, name, Update::Confirmed(provenance));
    }

    /// No server can be reached.
    fn fail(&mut self, resource_type: ResourceType, name: &str) {
        let error = self.error(resource_type, name);
        self.update(resource_type, name, Update::Failed(error));
    }

    /// A server that is alive says that there is no such thing.
    fn deny(&mut self, resource_type: ResourceType, name: &str) {
        let kind = ErrorKind::DoesNotExist { after: seconds(15) };
        self.fail_with(resource_type, name, kind);
    }

    fn fail_with(&mut self, resource_type: ResourceType, name: &str, kind: ErrorKind) {
        let error = ResourceError { kind, ..(*self.error(resource_type, name)).clone() };
        self.update(resource_type, name, Update::Failed(Arc::new(error)));
    }

    fn ambient(&mut self, resource_type: ResourceType, name: &str) {
        let error = self.error(resource_type, name);
        self.update(resource_type, name, Update::Ambient(Some(error)));
    }

    fn clear(&mut self, resource_type: ResourceType, name: &str) {
        self.update(resource_type, name, Update::Ambient(None));
    }

    fn update(&mut self, resource_type: ResourceType, name: &str, update: Update) {
        self.manager.handle_update(self.now, &ResourceKey { resource_type, name: name.into() }, update);
        self.poll();
    }

    /// Updates come from `name` from now on, which is in charge of the top-level authority.
    fn switch(&mut self, name: &str) {
        self.server = server(name);
        let server = self.server.clone();
        self.manager.handle_active_server(self.now, &AuthorityKey::TopLevel, &server);
        self.poll();
    }

    // --- What DNS, the channel and the clock do ---

    fn answer(&mut self, host: &str, answer: Result<&[u16], &str>) {
        let name = DnsName { host: host.to_owned(), port: 80 };
        self.asked.remove(&name);
        let answer = answer.map(|ports| ports.iter().copied().map(address).collect()).map_err(str::to_owned);
        self.manager.handle_dns(self.now, &mut Middle, &name, answer);
        self.poll();
    }

    fn reresolve(&mut self) {
        self.manager.request_reresolution(self.now);
        self.poll();
    }

    fn subscribe(&mut self, cluster: &str) {
        self.manager.subscribe_cluster(self.now, cluster);
        self.poll();
    }

    fn release(&mut self, cluster: &str) {
        self.manager.release_cluster(self.now, cluster);
        self.poll();
    }

    /// Lets time pass; deadlines on the way are kept.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.settle().filter(|at| *at <= end) {
            self.now = at;
            self.manager.handle_timeout(at);
        }
        self.now = end;
    }

    /// Does several things before the manager is polled.
    fn together(&mut self, calls: impl FnOnce(&mut Self)) {
        self.batching = true;
        calls(self);
        self.batching = false;
        self.settle();
    }

    fn poll(&mut self) {
        if !self.batching {
            self.settle();
        }
    }

    /// Does what the manager wants, and says when it wants to be called again.
    fn settle(&mut self) -> Option<Time> {
        loop {
            let action = match self.manager.poll_output() {
                Output::Wait(at) => return at,
                Output::Do(action) => action,
            };
            self.log.push(match action {
                Action::Watch(key) => {
                    let text = format!("+{} {}", service(key.resource_type), key.name);
                    assert!(self.watched.insert(key), "{text} twice");
                    text
                }
                Action::Unwatch(key) => {
                    let text = format!("-{} {}", service(key.resource_type), key.name);
                    assert!(self.watched.remove(&key), "{text} without a watch");
                    text
                }
                Action::Resolve(name) => {
                    let text = format!("?{name}");
                    assert!(self.asked.insert(name), "{text} twice");
                    text
                }
                Action::StopResolving(name) => {
                    let text = format!("!{name}");
                    assert!(self.asked.remove(&name), "{text} without a lookup");
                    text
                }
                Action::Publish(config) => {
                    let text = describe(&config);
                    self.config = Some(config);
                    text
                }
            });
        }
    }

    // --- What can be seen ---

    /// What the manager did since the last call.
    fn take(&mut self) -> String {
        std::mem::take(&mut self.log).join(" ")
    }

    /// The configuration in force.
    fn config(&self) -> &Arc<XdsConfig> {
        self.config.as_ref().expect("something is published").as_ref().expect("it is a configuration")
    }

    fn config_error(&self) -> String {
        self.config.as_ref().expect("something is published").as_ref().expect_err("it is an error").to_string()
    }

    fn cluster_config(&self, name: &str) -> &Arc<ClusterConfig> {
        self.config().clusters[name].as_ref().expect("the cluster can be used")
    }

    fn cluster_error(&self, name: &str) -> &Arc<ClusterError> {
        self.config().clusters[name].as_ref().expect_err("the cluster cannot be used")
    }

    fn note(&self, name: &str) -> &str {
        &self.cluster_config(name).note
    }

    fn provenance(&self) -> Provenance {
        Provenance { server: self.server.clone(), version: "1".into(), at: self.now }
    }

    fn error(&self, resource_type: ResourceType, name: &str) -> Arc<ResourceError> {
        Arc::new(ResourceError {
            resource: ResourceKey { resource_type, name: name.into() },
            server: Some(self.server.clone()),
            node_id: "node-1".into(),
            kind: ErrorKind::Unreachable("cable cut".to_owned()),
            at: self.now,
        })
    }
}

/// A source of chance that always takes the middle: no jitter.
struct Middle;

impl Choose for Middle {
    fn choose(&mut self, bound: u64) -> u64 {
        bound / 2
    }
}

/// The name of the discovery service.
fn service(resource_type: ResourceType) -> &'static str {
    match resource_type {
        LDS => "LDS",
        RDS => "RDS",
        CDS => "CDS",
        EDS => "EDS",
        LEDS => "LEDS",
        ResourceType::EndpointGlob => "GLOB",
    }
}

fn describe(config: &Result<Arc<XdsConfig>, Arc<ConfigError>>) -> String {
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            return match &**error {
                ConfigError::Resource(error) => {
                    format!("error {} {}", service(error.resource.resource_type), error.resource.name)
                }
                ConfigError::NotApiListener(name) => format!("error server listener {name}"),
                ConfigError::NoVirtualHost { authority, route_config } => {
                    format!("error {authority} in {route_config}")
                }
            };
        }
    };
    let clusters = config.clusters.iter().map(|(name, result)| match result {
        Err(_) => format!("{name}!"),
        Ok(cluster) => match &cluster.children {
            ClusterChildren::Aggregate(leaves) => format!("{name}>{}", leaves.join(",")),
            ClusterChildren::Endpoints(None) => format!("{name}=none"),
            ClusterChildren::Endpoints(Some(endpoints)) => {
                let ports = endpoints.priorities().flatten().flat_map(|locality| locality.endpoints);
                let ports = ports.flat_map(|endpoint| endpoint.addresses.as_slice()).map(|a| a.port().to_string());
                format!("{name}={}", ports.collect::<Vec<_>>().join(","))
            }
        },
    });
    let mixed = if config.mixed_sources { "mixed" } else { "" };
    format!("{{{}}}{mixed}", clusters.collect::<Vec<_>>().join(" "))
}

fn server(name: &str) -> Arc<ServerConfig> {
    Arc::new(ServerConfig {
        server_uri: format!("{name}:443"),
        channel_creds: ChannelCreds::Insecure,
        call_creds: Vec::new(),
        features: ServerFeatures::default(),
    })
}

fn hcm(routes: RouteSource) -> HttpConnectionManager {
    let filters = vec![HttpFilter { name: "router".to_owned(), config: FilterConfig::Router, disabled: false }];
    HttpConnectionManager { max_stream_duration: None, filters, routes }
}

/// A virtual host for `domain` with a route to each cluster.
fn routes(domain: &str, clusters: &[&str]) -> Arc<RouteConfig> {
    let route = |cluster: &&str| Route {
        path: PathMatcher::Prefix { value: format!("/{cluster}"), case_sensitive: true },
        headers: Vec::new(),
        fraction: None,
        action: RouteAction::Forward(ForwardAction {
            target: ClusterTarget::Cluster((*cluster).to_owned()),
            max_stream_duration: None,
            retry: None,
            hash_policies: Vec::new(),
            auto_host_rewrite: false,
        }),
        overrides: BTreeMap::new(),
    };
    let host = VirtualHost {
        name: domain.to_owned(),
        domains: vec![DomainPattern::Exact(domain.to_owned())],
        routes: clusters.iter().map(route).collect(),
        overrides: BTreeMap::new(),
    };
    Arc::new(RouteConfig { virtual_hosts: vec![Arc::new(host)] })
}

fn cluster(kind: ClusterKind) -> Cluster {
    Cluster {
        kind,
        lb_policy: LbPolicy::RoundRobin,
        max_requests: 1024,
        outlier_detection: None,
        tls: None,
        http_connect: None,
        lrs_server: None,
        lrs_report_endpoint_metrics: Vec::new(),
        override_host_statuses: OverrideHostStatuses { unknown: true, healthy: true, draining: false },
        idle_timeout: Duration::from_secs(3600),
    }
}

/// One priority with a locality for each source.
fn localities(sources: Vec<EndpointSource>) -> Endpoints {
    let locality = |(index, source)| LocalityEndpoints {
        locality: Arc::new(Locality { zone: format!("z{index}"), ..Locality::default() }),
        weight: 1,
        source,
        proxy: None,
    };
    let localities = sources.into_iter().enumerate().map(locality).collect();
    Endpoints { priorities: vec![Priority { localities }], drops: Vec::new() }
}

fn collection(ports: &[u16]) -> EndpointCollection {
    let endpoint = |port: &u16| Endpoint {
        addresses: Addresses::One(address(*port)),
        weight: 1,
        health: HealthStatus::Unknown,
        names: None,
    };
    EndpointCollection { endpoints: ports.iter().map(endpoint).collect() }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn server_listener() -> Resource {
    Resource::Listener(Arc::new(Listener::Server(Arc::new(ServerListener::new(address(443), None)))))
}
