//! Resources in few words, and the protobuf messages they stand for.

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CustomClusterType, DiscoveryType, EdsClusterConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::load_balancing_policy::Policy as PolicyEntry;
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, LoadBalancingPolicy, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ConfigSource, HealthStatus, HttpProtocolOptions, Locality, SelfConfigSource,
    SocketAddress, TypedExtensionConfig,
};
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy as AssignmentPolicy;
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::policy::DropOverload;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LbEndpointCollection, LedsClusterLocalityConfig, LocalityLbEndpoints,
};
use envoy_types::pb::envoy::config::listener::v3::{ApiListener, Listener};
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{Header, PolicySpecifier};
use envoy_types::pb::envoy::config::route::v3::route_action::{ClusterSpecifier, HashPolicy};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, NonForwardingAction, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost,
    WeightedCluster,
};
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds,
};
use envoy_types::pb::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use envoy_types::pb::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use envoy_types::pb::envoy::extensions::load_balancing_policies::pick_first::v3::PickFirst;
use envoy_types::pb::envoy::extensions::load_balancing_policies::random_subsetting::v3::RandomSubsetting;
use envoy_types::pb::envoy::extensions::load_balancing_policies::ring_hash::v3::RingHash;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions as UpstreamOptions;
use envoy_types::pb::envoy::r#type::matcher::v3::RegexMatcher;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, Int64Range};
use envoy_types::pb::google::protobuf::{Any, BoolValue, Duration, UInt32Value, UInt64Value};
use envoy_types::pb::xds::core::v3::CollectionEntry;
use envoy_types::pb::xds::core::v3::collection_entry::{InlineEntry, ResourceSpecifier};
use envoy_types::util::pack_any;
use mainstay_xds::resource::ResourceType;
use prost::Message;

/// What a resource says. `mark` makes versions of it differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// A Listener whose routes come from RDS.
    Listener {
        /// Name of the RouteConfiguration.
        routes: String,
        /// See [`Spec`].
        mark: u32,
    },
    /// A Listener with routes of its own.
    InlineListener {
        /// As in [`Spec::Routes`].
        clusters: Vec<String>,
        /// See [`Spec`].
        mark: u32,
    },
    /// A RouteConfiguration; `route` tells where RPCs go.
    Routes {
        /// The clusters.
        clusters: Vec<String>,
        /// See [`Spec`].
        mark: u32,
    },
    /// A Cluster with endpoints from EDS.
    Eds {
        /// Name of the ClusterLoadAssignment; the cluster's if empty.
        service: String,
        /// See [`Spec`].
        mark: u32,
        /// How load is spread.
        lb: Lb,
    },
    /// A LOGICAL_DNS Cluster. An IP literal needs no lookup.
    Dns {
        /// Host name.
        host: String,
        /// See [`Spec`].
        mark: u32,
    },
    /// An aggregate Cluster.
    Aggregate {
        /// The clusters below it, most preferred first.
        clusters: Vec<String>,
    },
    /// A ClusterLoadAssignment.
    Endpoints {
        /// Where each priority's endpoints come from.
        priorities: Vec<PrioritySpec>,
        /// Percentage of RPCs to drop.
        drop: u32,
    },
    /// An LbEndpointCollection.
    Collection {
        /// See [`PrioritySpec::Here`].
        backends: Vec<u16>,
    },
    /// A resource of this type that cannot be valid.
    Invalid(ResourceType),
}

/// Where the endpoints of a priority are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PrioritySpec {
    /// Here, in one locality: backend `n` has the address 10.0.x.y, port 80. Those from `SICK` on are unhealthy.
    Here(Vec<u16>),
    /// Here, in several localities with these weights.
    Spread(Vec<(u32, Vec<u16>)>),
    /// In an LEDS collection of this name.
    Collection(String),
}

/// How a cluster spreads load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lb {
    /// Among the endpoints of a priority.
    pub policy: Policy,
    /// Circuit breaker; 1024 if absent.
    pub max_requests: Option<u32>,
    /// Endpoints that fail more than half of their RPCs are ejected.
    pub outlier_detection: bool,
    /// Load is reported to the server that tells of the cluster.
    pub reports_load: bool,
}

/// A load-balancing policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Localities by weight, then each endpoint in turn.
    #[default]
    RoundRobin,
    /// Localities by weight, then the one of two with the fewest RPCs under way.
    LeastRequest,
    /// By the header `x-h`.
    RingHash,
    /// The first endpoint that answers.
    PickFirst,
    /// Localities by weight, then each endpoint as often as the load that it reports allows.
    Weighted,
    /// Each of two endpoints in turn.
    Subset,
}

/// Where the routes of [`Spec::Routes`] lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way<'a> {
    To(&'a str),
    /// To each of these with its weight.
    Split(Vec<(&'a str, u32)>),
    /// Nowhere: the RPC fails.
    Nowhere,
}

/// Where an RPC for this path goes, by the plain rule of the tables that [`Spec::Routes`] stands for: with `n` clusters,
/// `/i/...` to the `i`th; `/exact/PATH` in any case, `/re/a` to `/re/c` and repetitions of these, and `/head/` with
/// `x-c: last` to the last; `/head/` with a number from 10 to 19 in `x-n` to the second; `/split/` to all, each with one
/// more in weight than the one before; `/dead/` nowhere; all others to the first.
pub(crate) fn route<'a>(clusters: &'a [String], path: &str, header: Option<(&str, &str)>) -> Option<Way<'a>> {
    let (first, last) = (clusters.first()?, clusters.last()?);
    let own = (0..clusters.len()).find(|index| path.starts_with(&format!("/{index}/")));
    if let Some(cluster) = own.and_then(|index| clusters.get(index)) {
        return Some(Way::To(cluster));
    }
    let is_pattern = |rest: &str| !rest.is_empty() && rest.chars().all(|c| ('a'..='c').contains(&c));
    let is_teen = |value: &str| value.parse::<i64>().is_ok_and(|value| (10..20).contains(&value));
    Some(match header {
        _ if path.eq_ignore_ascii_case("/exact/PATH") => Way::To(last),
        _ if path.strip_prefix("/re/").is_some_and(is_pattern) => Way::To(last),
        Some(("x-c", "last")) if path.starts_with("/head/") => Way::To(last),
        Some(("x-n", value)) if path.starts_with("/head/") && is_teen(value) => Way::To(&clusters[1 % clusters.len()]),
        _ if path.starts_with("/split/") => Way::Split(clusters.iter().map(String::as_str).zip(1..).collect()),
        _ if path.starts_with("/dead/") => Way::Nowhere,
        _ => Way::To(first),
    })
}

impl Spec {
    /// Which type of resource it is.
    pub const fn resource_type(&self) -> ResourceType {
        match self {
            Self::Listener { .. } | Self::InlineListener { .. } => ResourceType::Listener,
            Self::Routes { .. } => ResourceType::RouteConfig,
            Self::Eds { .. } | Self::Dns { .. } | Self::Aggregate { .. } => ResourceType::Cluster,
            Self::Endpoints { .. } => ResourceType::Endpoints,
            Self::Collection { .. } => ResourceType::EndpointCollection,
            Self::Invalid(resource_type) => *resource_type,
        }
    }

    /// The message under this name.
    pub fn encode(&self, name: &str) -> Bytes {
        match self {
            Self::Listener { routes, mark } => {
                let rds = Rds { config_source: Some(ads()), route_config_name: routes.clone() };
                listener(name, RouteSpecifier::Rds(rds), *mark).encode_to_vec()
            }
            Self::InlineListener { clusters, mark } => {
                listener(name, RouteSpecifier::RouteConfig(routes(name, clusters, *mark)), *mark).encode_to_vec()
            }
            Self::Routes { clusters, mark } => routes(name, clusters, *mark).encode_to_vec(),
            Self::Eds { service, mark, lb } => {
                let eds = EdsClusterConfig { eds_config: Some(ads()), service_name: service.clone() };
                let discovery = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
                let cluster = Cluster { eds_cluster_config: Some(eds), ..cluster(name, discovery, *mark) };
                lb.put_into(cluster).encode_to_vec()
            }
            Self::Dns { host, mark } => {
                let locality = LocalityLbEndpoints { lb_endpoints: vec![lb_endpoint(host)], ..Default::default() };
                let load_assignment = Some(ClusterLoadAssignment { endpoints: vec![locality], ..Default::default() });
                let discovery = ClusterDiscoveryType::Type(DiscoveryType::LogicalDns.into());
                Cluster { load_assignment, ..cluster(name, discovery, *mark) }.encode_to_vec()
            }
            Self::Aggregate { clusters } => {
                let config = ClusterConfig { clusters: clusters.clone() };
                let custom = CustomClusterType {
                    name: "envoy.clusters.aggregate".to_owned(),
                    typed_config: Some(pack_any(config)),
                };
                cluster(name, ClusterDiscoveryType::ClusterType(custom), 0).encode_to_vec()
            }
            Self::Endpoints { priorities, drop } => {
                let endpoints = (0..).zip(priorities).flat_map(|(priority, spec)| localities(priority, spec)).collect();
                let drop_percentage =
                    Some(FractionalPercent { numerator: *drop, denominator: DenominatorType::Hundred.into() });
                let drop_overloads =
                    vec![DropOverload { category: "spare".to_owned(), drop_percentage }; usize::from(*drop > 0)];
                let policy = Some(AssignmentPolicy { drop_overloads, ..Default::default() });
                ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints, policy, ..Default::default() }
                    .encode_to_vec()
            }
            Self::Collection { backends } => {
                let entries = backends.iter().map(|backend| {
                    let resource = Some(pack_any(of_backend(*backend)));
                    let entry = InlineEntry { name: backend.to_string(), version: String::new(), resource };
                    CollectionEntry { resource_specifier: Some(ResourceSpecifier::InlineEntry(entry)) }
                });
                LbEndpointCollection { entries: entries.collect() }.encode_to_vec()
            }
            Self::Invalid(resource_type) => invalid(*resource_type, name),
        }
        .into()
    }
}

/// A valid resource of a type.
pub(crate) fn sample(resource_type: ResourceType, name: &str) -> Spec {
    match resource_type {
        ResourceType::Listener => Spec::Listener { routes: name.to_owned(), mark: 0 },
        ResourceType::RouteConfig => Spec::Routes { clusters: vec![name.to_owned()], mark: 0 },
        ResourceType::Cluster => Spec::Eds { service: String::new(), mark: 0, lb: Lb::default() },
        ResourceType::Endpoints => Spec::Endpoints { priorities: vec![PrioritySpec::Here(vec![1, 2])], drop: 0 },
        // Members of globs come over delta, which no plane of this kind speaks: there is no word for them here.
        ResourceType::EndpointCollection | ResourceType::EndpointGlob => Spec::Collection { backends: vec![1, 2] },
    }
}

/// Host of a backend.
pub(crate) fn host(backend: u16) -> String {
    let [high, low] = backend.to_be_bytes();
    format!("10.0.{high}.{low}")
}

fn listener(name: &str, routes: RouteSpecifier, mark: u32) -> Listener {
    let router = HttpFilter {
        name: "router".to_owned(),
        config_type: Some(ConfigType::TypedConfig(pack_any(Router::default()))),
        ..HttpFilter::default()
    };
    let limit = Duration { seconds: mark.into(), nanos: 0 };
    let manager = HttpConnectionManager {
        route_specifier: Some(routes),
        http_filters: vec![router],
        common_http_protocol_options: Some(HttpProtocolOptions {
            max_stream_duration: Some(limit),
            ..Default::default()
        }),
        ..HttpConnectionManager::default()
    };
    let api_listener = Some(ApiListener { api_listener: Some(pack_any(manager)) });
    Listener { name: name.to_owned(), api_listener, ..Listener::default() }
}

fn routes(name: &str, clusters: &[String], mark: u32) -> RouteConfiguration {
    let specifier = |cluster: &String| ClusterSpecifier::Cluster(cluster.clone());
    let prefix = |prefix: &str| RouteMatch {
        path_specifier: Some(PathSpecifier::Prefix(prefix.to_owned())),
        ..RouteMatch::default()
    };
    let headed = |name: &str, specifier| RouteMatch {
        headers: vec![HeaderMatcher {
            name: name.to_owned(),
            header_match_specifier: Some(specifier),
            ..HeaderMatcher::default()
        }],
        ..prefix("/head/")
    };
    let mut routes: Vec<Route> = (clusters.iter().enumerate())
        .map(|(index, cluster)| to(prefix(&format!("/{index}/")), specifier(cluster)))
        .collect();
    if let (Some(first), Some(last)) = (clusters.first(), clusters.last()) {
        let exact = RouteMatch {
            path_specifier: Some(PathSpecifier::Path("/exact/PATH".to_owned())),
            case_sensitive: Some(BoolValue { value: false }),
            ..RouteMatch::default()
        };
        #[allow(deprecated, reason = "the message names its engine in a field that is")]
        let regex = RegexMatcher { regex: "/re/[a-c]+".to_owned(), ..RegexMatcher::default() };
        let pattern = RouteMatch { path_specifier: Some(PathSpecifier::SafeRegex(regex)), ..RouteMatch::default() };
        let teens = HeaderMatchSpecifier::RangeMatch(Int64Range { start: 10, end: 20 });
        #[allow(deprecated, reason = "still in use, and the shortest form")]
        let is_last = HeaderMatchSpecifier::ExactMatch("last".to_owned());
        let weighted = |(cluster, weight): (&String, u32)| ClusterWeight {
            name: cluster.clone(),
            weight: Some(UInt32Value { value: weight }),
            ..ClusterWeight::default()
        };
        let split =
            WeightedCluster { clusters: clusters.iter().zip(1..).map(weighted).collect(), ..Default::default() };
        routes.extend([
            to(exact, specifier(last)),
            to(pattern, specifier(last)),
            to(headed("x-c", is_last), specifier(last)),
            to(headed("x-n", teens), specifier(&clusters[1 % clusters.len()])),
            to(prefix("/split/"), ClusterSpecifier::WeightedClusters(split)),
            Route {
                r#match: Some(prefix("/dead/")),
                action: Some(Action::NonForwardingAction(NonForwardingAction {})),
                ..Route::default()
            },
            to(prefix(""), specifier(first)),
        ]);
    }
    let host =
        VirtualHost { name: format!("{name} {mark}"), domains: vec!["*".to_owned()], routes, ..VirtualHost::default() };
    RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host], ..RouteConfiguration::default() }
}

fn to(r#match: RouteMatch, specifier: ClusterSpecifier) -> Route {
    let header = Header { header_name: "x-h".to_owned(), ..Header::default() };
    let hash_policy = vec![HashPolicy { policy_specifier: Some(PolicySpecifier::Header(header)), terminal: false }];
    let action = RouteAction { cluster_specifier: Some(specifier), hash_policy, ..RouteAction::default() };
    Route { r#match: Some(r#match), action: Some(Action::Route(action)), ..Route::default() }
}

/// The mark is in the idle timeout, where it does nothing else.
fn cluster(name: &str, discovery: ClusterDiscoveryType, mark: u32) -> Cluster {
    let options = UpstreamOptions {
        common_http_protocol_options: Some(HttpProtocolOptions {
            idle_timeout: Some(Duration { seconds: i64::from(MARKS) + i64::from(mark), nanos: 0 }),
            ..HttpProtocolOptions::default()
        }),
        ..UpstreamOptions::default()
    };
    let upstream_config =
        Some(TypedExtensionConfig { name: "upstream".to_owned(), typed_config: Some(pack_any(options)) });
    Cluster { name: name.to_owned(), cluster_discovery_type: Some(discovery), upstream_config, ..Cluster::default() }
}

/// The idle timeout of a cluster with mark 0, in seconds.
pub(crate) const MARKS: u32 = 3_600;

impl Lb {
    fn put_into(self, cluster: Cluster) -> Cluster {
        let thresholds =
            |limit: u32| Thresholds { max_requests: Some(UInt32Value { value: limit }), ..Thresholds::default() };
        let of_localities = |child: Any| WrrLocality { endpoint_picking_policy: Some(policy(child)) };
        let load_balancing_policy = match self.policy {
            Policy::RoundRobin => policy(pack_any(of_localities(pack_any(RoundRobin::default())))),
            Policy::LeastRequest => policy(pack_any(of_localities(pack_any(LeastRequest::default())))),
            Policy::RingHash => {
                policy(pack_any(RingHash { minimum_ring_size: Some(UInt64Value { value: 64 }), ..RingHash::default() }))
            }
            Policy::PickFirst => policy(pack_any(PickFirst::default())),
            Policy::Weighted => policy(pack_any(of_localities(pack_any(ClientSideWeightedRoundRobin::default())))),
            Policy::Subset => policy(pack_any(RandomSubsetting {
                subset_size: Some(UInt32Value { value: SUBSET }),
                child_policy: Some(policy(pack_any(RoundRobin::default()))),
            })),
        };
        let number = |value| Some(UInt32Value { value });
        let outlier_detection = OutlierDetection {
            interval: Some(Duration { seconds: 10, nanos: 0 }),
            base_ejection_time: Some(Duration { seconds: 30, nanos: 0 }),
            max_ejection_percent: number(50),
            enforcing_success_rate: number(0),
            failure_percentage_threshold: number(50),
            enforcing_failure_percentage: number(100),
            failure_percentage_minimum_hosts: number(2),
            failure_percentage_request_volume: number(5),
            ..OutlierDetection::default()
        };
        Cluster {
            load_balancing_policy: Some(load_balancing_policy),
            circuit_breakers: self
                .max_requests
                .map(|limit| CircuitBreakers { thresholds: vec![thresholds(limit)], ..CircuitBreakers::default() }),
            outlier_detection: self.outlier_detection.then_some(outlier_detection),
            lrs_server: self.reports_load.then(itself),
            ..cluster
        }
    }
}

fn policy(config: Any) -> LoadBalancingPolicy {
    let extension = TypedExtensionConfig { name: String::new(), typed_config: Some(config) };
    LoadBalancingPolicy { policies: vec![PolicyEntry { typed_extension_config: Some(extension) }] }
}

fn localities(priority: u32, spec: &PrioritySpec) -> Vec<LocalityLbEndpoints> {
    let locality = |zone: usize, weight: u32, backends: &[u16]| LocalityLbEndpoints {
        locality: Some(Locality {
            region: format!("region{priority}"),
            zone: format!("zone{zone}"),
            ..Locality::default()
        }),
        load_balancing_weight: Some(UInt32Value { value: weight }),
        priority,
        lb_endpoints: backends.iter().map(|backend| of_backend(*backend)).collect(),
        ..LocalityLbEndpoints::default()
    };
    match spec {
        PrioritySpec::Here(backends) => vec![locality(0, 1, backends)],
        PrioritySpec::Spread(localities) => {
            let localities = localities.iter().enumerate();
            localities.map(|(zone, (weight, backends))| locality(zone, *weight, backends)).collect()
        }
        PrioritySpec::Collection(name) => {
            let leds = LedsClusterLocalityConfig { leds_config: Some(itself()), leds_collection_name: name.clone() };
            let lb_config = Some(LbConfig::LedsClusterLocalityConfig(leds));
            vec![LocalityLbEndpoints { lb_config, ..locality(0, 1, &[]) }]
        }
    }
}

/// How many endpoints a subset has.
pub(crate) const SUBSET: u32 = 2;

/// Backends from this number on are told to be unhealthy.
pub(crate) const SICK: u16 = 60_000;

fn of_backend(backend: u16) -> LbEndpoint {
    let health = if backend >= SICK { HealthStatus::Unhealthy } else { HealthStatus::Unknown };
    LbEndpoint { health_status: health.into(), ..lb_endpoint(&host(backend)) }
}

fn lb_endpoint(host: &str) -> LbEndpoint {
    let socket = SocketAddress {
        address: host.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(80)),
        ..SocketAddress::default()
    };
    let address = Some(Address { address: Some(AddressKind::SocketAddress(socket)) });
    let endpoint = Endpoint { address, ..Endpoint::default() };
    LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() }
}

/// The least that is wrong: what is required is missing.
fn invalid(resource_type: ResourceType, name: &str) -> Vec<u8> {
    let name = name.to_owned();
    match resource_type {
        ResourceType::Listener => Listener { name, ..Listener::default() }.encode_to_vec(),
        ResourceType::RouteConfig => {
            let host = VirtualHost::default(); // Without a domain.
            RouteConfiguration { name, virtual_hosts: vec![host], ..RouteConfiguration::default() }.encode_to_vec()
        }
        ResourceType::Cluster => Cluster { name, ..Cluster::default() }.encode_to_vec(),
        ResourceType::Endpoints => {
            let twice =
                [localities(0, &PrioritySpec::Here(vec![1])), localities(0, &PrioritySpec::Here(vec![1]))].concat();
            ClusterLoadAssignment { cluster_name: name, endpoints: twice, ..Default::default() }.encode_to_vec()
        }
        ResourceType::EndpointCollection => {
            LbEndpointCollection { entries: vec![CollectionEntry::default()] }.encode_to_vec()
        }
        ResourceType::EndpointGlob => LbEndpoint::default().encode_to_vec(),
    }
}

fn itself() -> ConfigSource {
    let specifier = Some(ConfigSourceSpecifier::Self_(SelfConfigSource::default()));
    ConfigSource { config_source_specifier: specifier, ..ConfigSource::default() }
}

fn ads() -> ConfigSource {
    let specifier = Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {}));
    ConfigSource { config_source_specifier: specifier, ..ConfigSource::default() }
}
