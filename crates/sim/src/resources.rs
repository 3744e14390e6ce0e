//! Resources in few words, and the protobuf messages they stand for.

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CustomClusterType, DiscoveryType, EdsClusterConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ConfigSource, HttpProtocolOptions, Locality, SelfConfigSource, SocketAddress,
};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LbEndpointCollection, LedsClusterLocalityConfig, LocalityLbEndpoints,
};
use envoy_types::pb::envoy::config::listener::v3::{ApiListener, Listener};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost};
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds,
};
use envoy_types::pb::google::protobuf::{Duration, UInt32Value};
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
    /// A RouteConfiguration. Paths below `/0` go to the first cluster, below `/1` to the second, all others to the first.
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
    /// A ClusterLoadAssignment: one locality for each priority.
    Endpoints {
        /// Where each priority's endpoints come from.
        priorities: Vec<Place>,
    },
    /// An LbEndpointCollection.
    Collection {
        /// See [`Place::Here`].
        backends: Vec<u16>,
    },
    /// A resource of this type that cannot be valid.
    Invalid(ResourceType),
}

/// Where the endpoints of a locality are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Here: backend `n` has the address 10.0.x.y, port 80.
    Here(Vec<u16>),
    /// In an LEDS collection of this name.
    Collection(String),
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
            Self::Eds { service, mark } => {
                let eds = EdsClusterConfig { eds_config: Some(ads()), service_name: service.clone() };
                let discovery = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
                Cluster { eds_cluster_config: Some(eds), ..cluster(name, discovery, *mark) }.encode_to_vec()
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
            Self::Endpoints { priorities } => {
                let endpoints = (0..).zip(priorities).map(|(priority, place)| locality(priority, place)).collect();
                ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints, ..Default::default() }.encode_to_vec()
            }
            Self::Collection { backends } => {
                let entries = backends.iter().map(|backend| {
                    let resource = Some(pack_any(lb_endpoint(&host(*backend))));
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
        ResourceType::Cluster => Spec::Eds { service: String::new(), mark: 0 },
        ResourceType::Endpoints => Spec::Endpoints { priorities: vec![Place::Here(vec![1, 2])] },
        ResourceType::EndpointCollection => Spec::Collection { backends: vec![1, 2] },
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
    let route = |prefix: String, cluster: &String| {
        let specifier = Some(ClusterSpecifier::Cluster(cluster.clone()));
        Route {
            r#match: Some(RouteMatch { path_specifier: Some(PathSpecifier::Prefix(prefix)), ..RouteMatch::default() }),
            action: Some(Action::Route(RouteAction { cluster_specifier: specifier, ..RouteAction::default() })),
            ..Route::default()
        }
    };
    let by_number = clusters.iter().enumerate().map(|(index, cluster)| route(format!("/{index}/"), cluster));
    let host = VirtualHost {
        name: format!("{name} {mark}"),
        domains: vec!["*".to_owned()],
        routes: by_number.chain(clusters.first().map(|cluster| route(String::new(), cluster))).collect(),
        ..VirtualHost::default()
    };
    RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host], ..RouteConfiguration::default() }
}

fn cluster(name: &str, discovery: ClusterDiscoveryType, mark: u32) -> Cluster {
    let max_requests = Some(UInt32Value { value: 1000 + mark });
    let thresholds = vec![Thresholds { max_requests, ..Thresholds::default() }];
    Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(discovery),
        circuit_breakers: Some(CircuitBreakers { thresholds, ..CircuitBreakers::default() }),
        ..Cluster::default()
    }
}

fn locality(priority: u32, place: &Place) -> LocalityLbEndpoints {
    let locality = LocalityLbEndpoints {
        locality: Some(Locality { region: format!("region{priority}"), ..Locality::default() }),
        load_balancing_weight: Some(UInt32Value { value: 1 }),
        priority,
        ..LocalityLbEndpoints::default()
    };
    match place {
        Place::Here(backends) => {
            let lb_endpoints = backends.iter().map(|backend| lb_endpoint(&host(*backend))).collect();
            LocalityLbEndpoints { lb_endpoints, ..locality }
        }
        Place::Collection(name) => {
            let leds = LedsClusterLocalityConfig { leds_config: Some(itself()), leds_collection_name: name.clone() };
            LocalityLbEndpoints { lb_config: Some(LbConfig::LedsClusterLocalityConfig(leds)), ..locality }
        }
    }
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
            let twice = vec![locality(0, &Place::Here(vec![1])); 2];
            ClusterLoadAssignment { cluster_name: name, endpoints: twice, ..Default::default() }.encode_to_vec()
        }
        ResourceType::EndpointCollection => {
            LbEndpointCollection { entries: vec![CollectionEntry::default()] }.encode_to_vec()
        }
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
