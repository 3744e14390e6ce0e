//! The usual resources, in one line each.
//!
//! Every function returns the plain protobuf message, so whatever a test needs beyond the usual can be set on it:
//!
//! ```
//! use mainstay_control_plane::{Snapshot, resources};
//!
//! let mut cluster = resources::eds_cluster("greeter");
//! cluster.respect_dns_ttl = true;
//! let snapshot = Snapshot::builder()
//!     .listener(resources::listener("greeter", resources::rds("routes")))
//!     .route(resources::weighted_route("routes", [("greeter", 90), ("canary", 10)]))
//!     .cluster(cluster)
//!     .cluster(resources::aggregate_cluster("canary", ["canary-eds", "canary-dns"]))
//!     .cluster(resources::eds_cluster("canary-eds"))
//!     .cluster(resources::logical_dns_cluster("canary-dns", "canary.example.com:443"))
//!     .endpoints(resources::endpoints("greeter", ["10.0.0.1:80", "[::1]:80"]))
//!     .endpoints(resources::localities("canary-eds", [resources::leds_locality("zone-a", "canary-list")]))
//!     .endpoint_collection("canary-list", resources::endpoint_collection(["10.0.0.2:80"]));
//! # assert_eq!(snapshot.build().len(), 9);
//! ```

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CustomClusterType, DiscoveryType, EdsClusterConfig, LbPolicy,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, HealthStatus, Locality, SelfConfigSource, SocketAddress,
};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LbEndpointCollection, LedsClusterLocalityConfig, LocalityLbEndpoints,
};
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType as NetworkFilterConfig;
use envoy_types::pb::envoy::config::listener::v3::{ApiListener, Filter, FilterChain, Listener};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use envoy_types::pb::envoy::config::route::v3::{
    NonForwardingAction, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, WeightedCluster,
};
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds,
};
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use envoy_types::pb::xds::core::v3::CollectionEntry;
use envoy_types::pb::xds::core::v3::collection_entry::{InlineEntry, ResourceSpecifier};
use envoy_types::util::pack_any;
use prost::Message;

pub use self::tls::{with_mtls, with_server_tls, with_tls};

mod tls;

/// Where a listener has its routes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Routes {
    /// From RDS, under this name.
    Rds(String),
    /// From the listener itself.
    Inline(Box<RouteConfiguration>),
}

impl From<RouteConfiguration> for Routes {
    fn from(routes: RouteConfiguration) -> Self {
        Self::Inline(Box::new(routes))
    }
}

/// Routes that come from RDS under this name.
pub fn rds(name: impl Into<String>) -> Routes {
    Routes::Rds(name.into())
}

/// The listener of a gRPC client: what `xds:///name` asks for first.
pub fn listener(name: impl Into<String>, routes: impl Into<Routes>) -> Listener {
    let api_listener = Some(pack_any(http_connection_manager(routes.into())));
    Listener { name: name.into(), api_listener: Some(ApiListener { api_listener }), ..Listener::default() }
}

/// The listener of a gRPC server that listens on `listen`.
pub fn server_listener(name: impl Into<String>, listen: impl ToString, routes: impl Into<Routes>) -> Listener {
    let filter = Filter {
        name: "http".to_owned(),
        config_type: Some(NetworkFilterConfig::TypedConfig(pack_any(http_connection_manager(routes.into())))),
    };
    Listener {
        name: name.into(),
        address: Some(address(listen)),
        default_filter_chain: Some(FilterChain { filters: vec![filter], ..FilterChain::default() }),
        ..Listener::default()
    }
}

/// Puts an HTTP filter before the others of a listener, such as fault injection on a client or RBAC on a server.
///
/// # Panics
///
/// If the listener is not one of [`listener`] or [`server_listener`].
pub fn with_filter(mut listener: Listener, name: impl Into<String>, config: Any) -> Listener {
    let of_client = listener.api_listener.as_mut().and_then(|api| api.api_listener.as_mut());
    let any = of_client.or_else(|| {
        let filter = listener.default_filter_chain.as_mut()?.filters.first_mut()?;
        match filter.config_type.as_mut()? {
            NetworkFilterConfig::TypedConfig(any) => Some(any),
            NetworkFilterConfig::ConfigDiscovery(_) => None,
        }
    });
    let any = any.expect("a listener with an HTTP connection manager");
    let mut manager = HttpConnectionManager::decode(&*any.value).expect("an HTTP connection manager");
    let config_type = Some(ConfigType::TypedConfig(config));
    manager.http_filters.insert(0, HttpFilter { name: name.into(), config_type, ..HttpFilter::default() });
    *any = pack_any(manager);
    listener
}

/// Routes that send everything to one cluster.
pub fn route(name: impl Into<String>, cluster: impl Into<String>) -> RouteConfiguration {
    route_table(name, [prefix_route("", cluster)])
}

/// Routes that spread everything over clusters by weight.
pub fn weighted_route<N: Into<String>>(
    name: impl Into<String>,
    clusters: impl IntoIterator<Item = (N, u32)>,
) -> RouteConfiguration {
    let clusters = clusters.into_iter().map(|(name, weight)| ClusterWeight {
        name: name.into(),
        weight: Some(UInt32Value { value: weight }),
        ..ClusterWeight::default()
    });
    let weighted = WeightedCluster { clusters: clusters.collect(), ..WeightedCluster::default() };
    route_table(name, [route_to("", ClusterSpecifier::WeightedClusters(weighted))])
}

/// Routes of a server: everything is handled here.
pub fn server_route(name: impl Into<String>) -> RouteConfiguration {
    let here = Action::NonForwardingAction(NonForwardingAction {});
    route_table(name, [Route { r#match: Some(prefix("")), action: Some(here), ..Route::default() }])
}

/// A table of routes for every domain; the first that matches is taken.
pub fn route_table(name: impl Into<String>, routes: impl IntoIterator<Item = Route>) -> RouteConfiguration {
    let host = VirtualHost {
        name: "all".to_owned(),
        domains: vec!["*".to_owned()],
        routes: routes.into_iter().collect(),
        ..VirtualHost::default()
    };
    RouteConfiguration { name: name.into(), virtual_hosts: vec![host], ..RouteConfiguration::default() }
}

/// One entry of a [`route_table`]: paths that begin with `prefix` go to `cluster`.
pub fn prefix_route(prefix: impl Into<String>, cluster: impl Into<String>) -> Route {
    route_to(prefix, ClusterSpecifier::Cluster(cluster.into()))
}

/// A cluster whose endpoints come from EDS under the same name.
pub fn eds_cluster(name: impl Into<String>) -> Cluster {
    Cluster {
        name: name.into(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), service_name: String::new() }),
        lb_policy: LbPolicy::RoundRobin.into(),
        ..Cluster::default()
    }
}

/// A cluster whose endpoints come from EDS under another name.
pub fn eds_cluster_named(name: impl Into<String>, eds_name: impl Into<String>) -> Cluster {
    let eds = EdsClusterConfig { eds_config: Some(ads()), service_name: eds_name.into() };
    Cluster { eds_cluster_config: Some(eds), ..eds_cluster(name) }
}

/// A cluster whose clients report its load to the server that it came from, with these metrics of its endpoints.
pub fn with_load_reports<M: Into<String>>(cluster: Cluster, metrics: impl IntoIterator<Item = M>) -> Cluster {
    let lrs_report_endpoint_metrics = metrics.into_iter().map(Into::into).collect();
    Cluster { lrs_server: Some(self_source()), lrs_report_endpoint_metrics, ..cluster }
}

/// A cluster with a circuit breaker: at most so many requests at once, instead of 1,024.
pub fn with_max_requests(cluster: Cluster, max: u32) -> Cluster {
    let thresholds = Thresholds { max_requests: Some(UInt32Value { value: max }), ..Thresholds::default() };
    let circuit_breakers = CircuitBreakers { thresholds: vec![thresholds], ..CircuitBreakers::default() };
    Cluster { circuit_breakers: Some(circuit_breakers), ..cluster }
}

/// A cluster whose address comes from DNS; `target` is `host:port`.
pub fn logical_dns_cluster(name: impl Into<String>, target: impl ToString) -> Cluster {
    let name = name.into();
    let locality = LocalityLbEndpoints { lb_endpoints: vec![bare_endpoint(target)], ..LocalityLbEndpoints::default() };
    Cluster {
        name: name.clone(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::LogicalDns.into())),
        load_assignment: Some(localities(name, [locality])),
        lb_policy: LbPolicy::RoundRobin.into(),
        ..Cluster::default()
    }
}

/// A cluster that is a list of other clusters, the most preferred first.
pub fn aggregate_cluster<N: Into<String>>(name: impl Into<String>, clusters: impl IntoIterator<Item = N>) -> Cluster {
    let config = ClusterConfig { clusters: clusters.into_iter().map(Into::into).collect() };
    let custom =
        CustomClusterType { name: "envoy.clusters.aggregate".to_owned(), typed_config: Some(pack_any(config)) };
    Cluster {
        name: name.into(),
        cluster_discovery_type: Some(ClusterDiscoveryType::ClusterType(custom)),
        lb_policy: LbPolicy::ClusterProvided.into(),
        ..Cluster::default()
    }
}

/// The endpoints of a cluster: healthy, of equal weight, in one locality. No addresses means that the cluster exists
/// and has no endpoints.
pub fn endpoints<A: ToString>(
    cluster: impl Into<String>,
    addresses: impl IntoIterator<Item = A>,
) -> ClusterLoadAssignment {
    localities(cluster, [locality("locality0", addresses)])
}

/// The endpoints of a cluster in localities of any weight and priority.
pub fn localities(
    cluster: impl Into<String>,
    localities: impl IntoIterator<Item = LocalityLbEndpoints>,
) -> ClusterLoadAssignment {
    ClusterLoadAssignment {
        cluster_name: cluster.into(),
        endpoints: localities.into_iter().collect(),
        ..ClusterLoadAssignment::default()
    }
}

/// One locality, of weight 1 and priority 0.
pub fn locality<A: ToString>(
    sub_zone: impl Into<String>,
    addresses: impl IntoIterator<Item = A>,
) -> LocalityLbEndpoints {
    LocalityLbEndpoints {
        locality: Some(Locality { region: "region".to_owned(), zone: "zone".to_owned(), sub_zone: sub_zone.into() }),
        lb_endpoints: addresses.into_iter().map(endpoint).collect(),
        load_balancing_weight: Some(UInt32Value { value: 1 }),
        ..LocalityLbEndpoints::default()
    }
}

/// One locality whose endpoints come from an LEDS list collection (A95).
pub fn leds_locality(sub_zone: impl Into<String>, collection: impl Into<String>) -> LocalityLbEndpoints {
    let leds = LedsClusterLocalityConfig { leds_config: Some(self_source()), leds_collection_name: collection.into() };
    LocalityLbEndpoints { lb_config: Some(LbConfig::LedsClusterLocalityConfig(leds)), ..locality::<&str>(sub_zone, []) }
}

/// A list of endpoints for [`leds_locality`]; its name is given where it is put into a snapshot.
pub fn endpoint_collection<A: ToString>(addresses: impl IntoIterator<Item = A>) -> LbEndpointCollection {
    let entries = addresses.into_iter().map(|address| {
        let name = address.to_string();
        let inline = InlineEntry { name, version: String::new(), resource: Some(pack_any(endpoint(address))) };
        CollectionEntry { resource_specifier: Some(ResourceSpecifier::InlineEntry(inline)) }
    });
    LbEndpointCollection { entries: entries.collect() }
}

/// One healthy endpoint of weight 1.
pub fn endpoint(address: impl ToString) -> LbEndpoint {
    LbEndpoint {
        health_status: HealthStatus::Healthy.into(),
        load_balancing_weight: Some(UInt32Value { value: 1 }),
        ..bare_endpoint(address)
    }
}

/// A socket address from `host:port` or `[v6]:port`. A port that is no number becomes 0, which clients reject.
pub fn address(host_port: impl ToString) -> Address {
    let host_port = host_port.to_string();
    let (host, port) = host_port.rsplit_once(':').unwrap_or((&host_port, "0"));
    let socket = SocketAddress {
        address: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(port.parse::<u16>().unwrap_or(0).into())),
        ..SocketAddress::default()
    };
    Address { address: Some(AddressKind::SocketAddress(socket)) }
}

/// "From the same ADS stream".
pub fn ads() -> ConfigSource {
    ConfigSource {
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
        ..ConfigSource::default()
    }
}

/// "From the server that this came from": what A95 demands where EDS names a collection.
pub fn self_source() -> ConfigSource {
    ConfigSource { config_source_specifier: Some(ConfigSourceSpecifier::Self_(SelfConfigSource::default())), ..ads() }
}

fn http_connection_manager(routes: Routes) -> HttpConnectionManager {
    let routes = match routes {
        Routes::Rds(name) => RouteSpecifier::Rds(Rds { config_source: Some(ads()), route_config_name: name }),
        Routes::Inline(routes) => RouteSpecifier::RouteConfig(*routes),
    };
    let router = HttpFilter {
        name: "router".to_owned(),
        config_type: Some(ConfigType::TypedConfig(pack_any(Router::default()))),
        ..HttpFilter::default()
    };
    HttpConnectionManager {
        route_specifier: Some(routes),
        http_filters: vec![router],
        ..HttpConnectionManager::default()
    }
}

fn route_to(path_prefix: impl Into<String>, cluster_specifier: ClusterSpecifier) -> Route {
    let action = RouteAction { cluster_specifier: Some(cluster_specifier), ..RouteAction::default() };
    Route { r#match: Some(prefix(path_prefix)), action: Some(Action::Route(action)), ..Route::default() }
}

fn prefix(path_prefix: impl Into<String>) -> RouteMatch {
    RouteMatch { path_specifier: Some(PathSpecifier::Prefix(path_prefix.into())), ..RouteMatch::default() }
}

fn bare_endpoint(host_port: impl ToString) -> LbEndpoint {
    let endpoint = Endpoint { address: Some(address(host_port)), ..Endpoint::default() };
    LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() }
}
