//! Ways through messages, each with the path of what is found.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket;
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration};
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig as AggregateConfig;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::transport_sockets::http_11_proxy::v3::Http11ProxyUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, UpstreamTlsContext,
};
use prost::Message;

use crate::input::{Body, Item};
use crate::parse::unpack;
use crate::set::{Decoded, Set};

/// Who a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// An HTTP connection manager of a listener.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) path: String,
    pub(crate) side: Side,
    pub(crate) manager: HttpConnectionManager,
    /// The TLS of its filter chain, on servers.
    pub(crate) tls: Option<DownstreamTlsContext>,
}

/// Every HTTP connection manager of a listener that gRPC looks at.
pub(crate) fn http(listener: &Listener) -> Vec<Http> {
    if let Some(api) = &listener.api_listener {
        let manager = api.api_listener.as_ref().and_then(unpack::<HttpConnectionManager>);
        let path = "api_listener.api_listener".to_owned();
        return manager.map(|manager| Http { path, side: Side::Client, manager, tls: None }).into_iter().collect();
    }
    let chains = listener.filter_chains.iter().enumerate().map(|(i, chain)| (format!("filter_chains[{i}]"), chain));
    let default = listener.default_filter_chain.iter().map(|chain| ("default_filter_chain".to_owned(), chain));
    chains.chain(default).flat_map(|(path, chain)| managers(&path, chain)).collect()
}

fn managers(path: &str, chain: &FilterChain) -> Vec<Http> {
    let tls = chain.transport_socket.as_ref().and_then(typed_socket::<DownstreamTlsContext>);
    let filters = chain.filters.iter().enumerate();
    let filters = filters.filter_map(|(i, filter)| match &filter.config_type {
        Some(ConfigType::TypedConfig(any)) => Some((i, unpack::<HttpConnectionManager>(any)?)),
        Some(ConfigType::ConfigDiscovery(_)) | None => None,
    });
    let path = |i| format!("{path}.filters[{i}].typed_config");
    filters.map(|(i, manager)| Http { path: path(i), side: Side::Server, manager, tls: tls.clone() }).collect()
}

/// The name of the route configuration that it asks for.
pub(crate) fn rds(http: &Http) -> Option<(String, &str)> {
    match &http.manager.route_specifier {
        Some(RouteSpecifier::Rds(rds)) => {
            Some((format!("{}.rds.route_config_name", http.path), &rds.route_config_name))
        }
        Some(RouteSpecifier::RouteConfig(_) | RouteSpecifier::ScopedRoutes(_)) | None => None,
    }
}

/// The routes inside it.
pub(crate) fn inline(http: &Http) -> Option<(String, &RouteConfiguration)> {
    match &http.manager.route_specifier {
        Some(RouteSpecifier::RouteConfig(routes)) => Some((format!("{}.route_config", http.path), routes)),
        Some(RouteSpecifier::Rds(_) | RouteSpecifier::ScopedRoutes(_)) | None => None,
    }
}

/// Calls `visit` with each use of a route configuration: what it is part of, its path there, and by whom it is used; those
/// that no listener uses as well, with no side.
pub(crate) fn each_route_configuration(
    set: &Set<'_>,
    mut visit: impl FnMut(&Item, &str, &RouteConfiguration, Option<(Side, &Decoded<'_, Listener>)>),
) {
    let mut used = std::collections::BTreeSet::new();
    for listener in set.listeners.values() {
        for http in http(&listener.message) {
            if let Some((path, routes)) = inline(&http) {
                visit(listener.item, &path, routes, Some((http.side, listener)));
            }
            let name = rds(&http)
                .map(|(_, name)| crate::set::canonical(mainstay_xds::resource::ResourceType::RouteConfig, name));
            if let Some(routes) = name.as_ref().and_then(|name| set.routes.get(name)) {
                used.insert(name.clone().unwrap_or_default());
                visit(routes.item, "", &routes.message, Some((http.side, listener)));
            }
        }
    }
    for (name, routes) in set.routes.iter().filter(|(name, _)| !used.contains(*name)) {
        let _ = name;
        visit(routes.item, "", &routes.message, None);
    }
}

/// Every route of a configuration at `path`, with its own path.
pub(crate) fn routes<'r>(path: &str, routes: &'r RouteConfiguration) -> Vec<(String, &'r Route)> {
    let hosts = routes.virtual_hosts.iter().enumerate();
    let each = hosts.flat_map(|(i, host)| {
        host.routes
            .iter()
            .enumerate()
            .map(move |(j, route)| (join(path, &format!("virtual_hosts[{i}].routes[{j}]")), route))
    });
    each.collect()
}

/// The clusters that a route names, with the paths of their names.
pub(crate) fn clusters<'r>(path: &str, route: &'r Route) -> Vec<(String, &'r str)> {
    let Some(Action::Route(action)) = &route.action else { return Vec::new() };
    match &action.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => vec![(format!("{path}.route.cluster"), name.as_str())],
        Some(ClusterSpecifier::WeightedClusters(weighted)) => {
            let each = weighted.clusters.iter().enumerate();
            let used = each.filter(|(_, cluster)| cluster.weight.is_some_and(|weight| weight.value > 0));
            let name = |i| format!("{path}.route.weighted_clusters.clusters[{i}].name");
            used.map(|(i, cluster)| (name(i), cluster.name.as_str())).collect()
        }
        Some(
            ClusterSpecifier::ClusterHeader(_)
            | ClusterSpecifier::ClusterSpecifierPlugin(_)
            | ClusterSpecifier::InlineClusterSpecifierPlugin(_),
        )
        | None => Vec::new(),
    }
}

/// A path inside another one.
pub(crate) fn join(path: &str, rest: &str) -> String {
    if path.is_empty() { rest.to_owned() } else { format!("{path}.{rest}") }
}

/// The members of an aggregate cluster; nothing if it is none.
pub(crate) fn members(cluster: &Cluster) -> Option<Vec<String>> {
    let Some(ClusterDiscoveryType::ClusterType(custom)) = &cluster.cluster_discovery_type else { return None };
    custom.typed_config.as_ref().and_then(unpack::<AggregateConfig>).map(|config| config.clusters)
}

/// The name of the EDS resource of a cluster; nothing if it needs none.
pub(crate) fn eds_name(cluster: &Cluster) -> Option<&str> {
    match &cluster.cluster_discovery_type {
        Some(ClusterDiscoveryType::Type(kind)) if *kind == DiscoveryType::Eds as i32 => {}
        Some(ClusterDiscoveryType::Type(_) | ClusterDiscoveryType::ClusterType(_)) | None => return None,
    }
    let own = cluster.eds_cluster_config.as_ref().map(|config| config.service_name.as_str());
    Some(own.filter(|name| !name.is_empty()).unwrap_or(&cluster.name))
}

/// The TLS of a cluster, inside a proxy's socket too, and its path.
pub(crate) fn upstream_tls(cluster: &Cluster) -> Option<(&'static str, UpstreamTlsContext)> {
    let socket = cluster.transport_socket.as_ref()?;
    if let Some(proxy) = typed_socket::<Http11ProxyUpstreamTransport>(socket) {
        let tls = proxy.transport_socket.as_ref().and_then(typed_socket::<UpstreamTlsContext>)?;
        return Some(("transport_socket.typed_config.transport_socket.typed_config", tls));
    }
    Some(("transport_socket.typed_config", typed_socket::<UpstreamTlsContext>(socket)?))
}

fn typed_socket<M: Message + prost::Name + Default>(socket: &TransportSocket) -> Option<M> {
    match &socket.config_type {
        Some(transport_socket::ConfigType::TypedConfig(any)) => unpack(any),
        None => None,
    }
}

/// What a TLS context checks the other side's certificate for.
#[expect(clippy::wildcard_enum_match_arm, reason = "an enum of Envoy's, some of whose variants are deprecated")]
pub(crate) fn validation(common: &CommonTlsContext) -> Option<&CertificateValidationContext> {
    match common.validation_context_type.as_ref()? {
        ValidationContextType::ValidationContext(context) => Some(context),
        ValidationContextType::CombinedValidationContext(combined) => combined.default_validation_context.as_ref(),
        _ => None,
    }
}

/// The certificate provider instances that a resource names.
pub(crate) fn certificate_provider_instances(item: &Item) -> Vec<String> {
    let Body::Message(bytes) = &item.body else { return Vec::new() };
    let contexts: Vec<CommonTlsContext> = match item.kind() {
        "Cluster" => {
            let cluster = Cluster::decode(bytes.as_ref()).unwrap_or_default();
            upstream_tls(&cluster).and_then(|(_, tls)| tls.common_tls_context).into_iter().collect()
        }
        "Listener" => {
            let listener = Listener::decode(bytes.as_ref()).unwrap_or_default();
            let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
            let tls = chains.filter_map(|chain| typed_socket::<DownstreamTlsContext>(chain.transport_socket.as_ref()?));
            tls.filter_map(|tls| tls.common_tls_context).collect()
        }
        _ => Vec::new(),
    };
    contexts.iter().flat_map(instances).filter(|name| !name.is_empty()).collect()
}

// Control planes of gRPC meshes still send the fields that others have replaced.
#[allow(deprecated)]
fn instances(common: &CommonTlsContext) -> Vec<String> {
    let mut names = Vec::new();
    names.extend(common.tls_certificate_provider_instance.as_ref().map(|it| it.instance_name.clone()));
    names.extend(common.tls_certificate_certificate_provider_instance.as_ref().map(|it| it.instance_name.clone()));
    let context = validation(common);
    names
        .extend(context.and_then(|it| it.ca_certificate_provider_instance.as_ref()).map(|it| it.instance_name.clone()));
    match &common.validation_context_type {
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            let old = combined.validation_context_certificate_provider_instance.as_ref();
            names.extend(old.map(|it| it.instance_name.clone()));
        }
        Some(ValidationContextType::ValidationContextCertificateProviderInstance(old)) => {
            names.push(old.instance_name.clone());
        }
        _ => {}
    }
    names
}
