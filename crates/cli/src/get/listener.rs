//! The Listener of a server in the words of the report.
//!
//! What it says is read from the resource as it came: a Listener that is in force has been checked, and one that is not
//! is shown with what is wrong with it.

use envoy_types::pb::envoy::{
    config::{
        listener::v3::{FilterChain, FilterChainMatch, Listener, filter, filter_chain_match::ConnectionSourceType},
        rbac::v3::rbac::Action,
        route::v3::{Route, RouteConfiguration, VirtualHost, route, route_match::PathSpecifier},
    },
    extensions::{
        filters::{
            http::rbac::v3::Rbac,
            network::http_connection_manager::v3::{
                HttpConnectionManager, HttpFilter, http_connection_manager::RouteSpecifier, http_filter,
            },
        },
        transport_sockets::tls::v3::{DownstreamTlsContext, common_tls_context::ValidationContextType},
    },
};
use envoy_types::pb::google::protobuf::Any;
use mainstay::{
    ResourceType, ServingState,
    view::{ListenerView, ServerView},
};
use prost::Message;
use serde::Serialize;

use super::report::{Facts, Named, ServerReport};

/// All there is to say about an address of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ListenerReport {
    pub(super) address: String,
    /// SERVING or NOT_SERVING.
    pub(super) state: &'static str,
    /// Why it is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) node: String,
    pub(super) servers: Vec<ServerReport>,
    pub(super) listener: Named,
    pub(super) filter_chains: Vec<ChainReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ChainReport {
    pub(super) name: String,
    /// Which connections it is for.
    #[serde(rename = "match")]
    pub(super) matches: String,
    /// How they are secured by servers with xDS credentials; absent if it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<TlsReport>,
    pub(super) http_filters: Vec<FilterReport>,
    pub(super) routes: RoutesReport,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TlsReport {
    /// The certificate provider instance with the certificate of the server.
    pub(super) identity: Option<String>,
    /// The one with the roots for clients; absent if they are not asked for certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) roots: Option<String>,
    /// Whether clients must have one.
    pub(super) client_certificate_required: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FilterReport {
    pub(super) name: String,
    /// The type of its config, without the package.
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rbac: Option<RbacReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RbacReport {
    pub(super) action: &'static str,
    /// The names of its policies, in the order in which they are asked.
    pub(super) policies: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RoutesReport {
    /// The RDS resource; absent if the routes are in the listener.
    #[serde(flatten)]
    pub(super) resource: Option<Named>,
    pub(super) virtual_hosts: Vec<HostReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct HostReport {
    pub(super) name: String,
    pub(super) domains: Vec<String>,
    pub(super) routes: Vec<RouteReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RouteReport {
    #[serde(rename = "match")]
    pub(super) matches: String,
    /// Why its RPCs fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unsupported: Option<&'static str>,
}

impl ListenerReport {
    pub(super) fn new(view: &ServerView, of: &ListenerView) -> Self {
        let (state, reason) = match &of.state {
            ServingState::Serving => ("SERVING", None),
            ServingState::NotServing { reason, .. } => ("NOT_SERVING", Some(reason.clone())),
            _ => ("UNKNOWN", None),
        };
        let listener: Option<Listener> = decoded(view, ResourceType::Listener, &of.name);
        let chains = listener.iter().flat_map(|listener| {
            let numbered = listener.filter_chains.iter().enumerate();
            let named = numbered.map(|(place, chain)| ChainReport::new(view, chain, format!("filter_chains[{place}]")));
            let default = listener.default_filter_chain.as_ref();
            named.chain(default.map(|chain| {
                let report = ChainReport::new(view, chain, "default_filter_chain".to_owned());
                ChainReport { matches: "all others".to_owned(), ..report }
            }))
        });
        Self {
            address: of.address.to_string(),
            state,
            reason,
            node: view.node_id.clone(),
            servers: view.servers.iter().map(ServerReport::new).collect(),
            listener: named(view, ResourceType::Listener, &of.name),
            filter_chains: chains.collect(),
        }
    }

    /// Whether people would see no difference.
    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        self.without_ages() == other.without_ages()
    }

    fn without_ages(&self) -> Self {
        let mut report = self.clone();
        report.listener.facts.age_ms = None;
        for chain in &mut report.filter_chains {
            chain.routes.resource.iter_mut().for_each(|resource| resource.facts.age_ms = None);
        }
        report
    }
}

impl ChainReport {
    fn new(view: &ServerView, chain: &FilterChain, unnamed: String) -> Self {
        let manager = chain.filters.iter().find_map(|filter| match &filter.config_type {
            Some(filter::ConfigType::TypedConfig(config)) => message::<HttpConnectionManager>(config),
            _ => None,
        });
        let routes = manager.as_ref().and_then(|manager| manager.route_specifier.as_ref());
        let (resource, routes) = match routes {
            Some(RouteSpecifier::RouteConfig(routes)) => (None, Some(routes.clone())),
            Some(RouteSpecifier::Rds(rds)) => {
                let name = &rds.route_config_name;
                (Some(named(view, ResourceType::RouteConfig, name)), decoded(view, ResourceType::RouteConfig, name))
            }
            _ => (None, None),
        };
        let hosts = |routes: RouteConfiguration| routes.virtual_hosts.iter().map(HostReport::new).collect();
        let socket = chain.transport_socket.as_ref().and_then(|socket| socket.config_type.as_ref());
        let tls = socket.and_then(|config| match config {
            envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType::TypedConfig(config) => {
                message(config)
            }
        });
        Self {
            name: if chain.name.is_empty() { unnamed } else { chain.name.clone() },
            matches: chain.filter_chain_match.as_ref().map_or_else(|| ANY.to_owned(), criteria),
            tls: tls.map(TlsReport::new),
            http_filters: manager.iter().flat_map(|manager| &manager.http_filters).map(FilterReport::new).collect(),
            routes: RoutesReport { resource, virtual_hosts: routes.map(hosts).unwrap_or_default() },
        }
    }
}

impl TlsReport {
    fn new(context: DownstreamTlsContext) -> Self {
        let common = context.common_tls_context.unwrap_or_default();
        let validation = common.validation_context_type.and_then(|kind| match kind {
            ValidationContextType::ValidationContext(validation) => Some(validation),
            ValidationContextType::CombinedValidationContext(combined) => combined.default_validation_context,
            _ => None,
        });
        let roots = validation.and_then(|validation| validation.ca_certificate_provider_instance);
        Self {
            identity: common.tls_certificate_provider_instance.map(|instance| instance.instance_name),
            roots: roots.map(|instance| instance.instance_name),
            client_certificate_required: context.require_client_certificate.is_some_and(|required| required.value),
        }
    }
}

impl FilterReport {
    fn new(filter: &HttpFilter) -> Self {
        let config = match &filter.config_type {
            Some(http_filter::ConfigType::TypedConfig(config)) => Some(config),
            _ => None,
        };
        let kind = config.and_then(|config| config.type_url.rsplit(['.', '/']).next());
        let rules = config.and_then(message::<Rbac>).and_then(|rbac| rbac.rules);
        let rbac = rules.map(|rules| {
            let mut policies: Vec<String> = rules.policies.keys().cloned().collect();
            policies.sort_unstable();
            let action = Action::try_from(rules.action).map_or("unknown", |action| action.as_str_name());
            RbacReport { action, policies }
        });
        Self { name: filter.name.clone(), kind: kind.unwrap_or_default().to_owned(), rbac }
    }
}

impl HostReport {
    fn new(host: &VirtualHost) -> Self {
        let routes = host.routes.iter().map(RouteReport::new).collect();
        Self { name: host.name.clone(), domains: host.domains.clone(), routes }
    }
}

impl RouteReport {
    fn new(route: &Route) -> Self {
        let specifier = route.r#match.as_ref().and_then(|matches| matches.path_specifier.as_ref());
        let matches = match specifier {
            Some(PathSpecifier::Prefix(prefix)) if prefix.is_empty() => "any path".to_owned(),
            Some(PathSpecifier::Prefix(prefix)) => format!("prefix {prefix:?}"),
            Some(PathSpecifier::Path(path)) => format!("path {path:?}"),
            Some(PathSpecifier::SafeRegex(pattern)) => format!("pattern {:?}", pattern.regex),
            _ => "?".to_owned(),
        };
        let headers = route.r#match.iter().flat_map(|matches| &matches.headers);
        let headers: String = headers.map(|header| format!(", header {:?}", header.name)).collect();
        let unsupported = match route.action {
            Some(route::Action::NonForwardingAction(_)) => None,
            Some(route::Action::Route(_)) => Some("route"),
            Some(_) | None => Some("its action"),
        };
        Self { matches: matches + &headers, unsupported }
    }
}

/// Which connections a filter chain is for.
fn criteria(matches: &FilterChainMatch) -> String {
    let ranges = |ranges: &[envoy_types::pb::envoy::config::core::v3::CidrRange]| {
        let range = ranges.iter().map(|range| {
            let len = range.prefix_len.map_or_else(String::new, |len| format!("/{}", len.value));
            format!("{}{len}", range.address_prefix)
        });
        range.collect::<Vec<_>>().join(" or ")
    };
    let mut parts = Vec::new();
    let mut part = |what: &str, text: String| {
        if !text.is_empty() {
            parts.push(format!("{what} {text}"));
        }
    };
    part("to", ranges(&matches.prefix_ranges));
    part("to port", matches.destination_port.map_or_else(String::new, |port| port.value.to_string()));
    part("server name", matches.server_names.join(" or "));
    part("transport protocol", matches.transport_protocol.clone());
    part("application protocol", matches.application_protocols.join(" or "));
    part(
        "from",
        match ConnectionSourceType::try_from(matches.source_type) {
            Ok(ConnectionSourceType::SameIpOrLoopback) => "this machine".to_owned(),
            Ok(ConnectionSourceType::External) => "other machines".to_owned(),
            Ok(ConnectionSourceType::Any) | Err(_) => String::new(),
        },
    );
    part("from", ranges(&matches.source_prefix_ranges));
    let ports: Vec<_> = matches.source_ports.iter().map(u32::to_string).collect();
    part("from port", ports.join(" or "));
    if parts.is_empty() { ANY.to_owned() } else { parts.join(", ") }
}

fn named(view: &ServerView, resource_type: ResourceType, name: &str) -> Named {
    let facts = view.resource(resource_type, name).map(|status| Facts::new(view.taken_at, status));
    Named { name: name.to_owned(), facts: facts.unwrap_or_default() }
}

fn decoded<M: Message + Default>(view: &ServerView, resource_type: ResourceType, name: &str) -> Option<M> {
    let value = view.resource(resource_type, name)?.value.as_ref()?;
    M::decode(value.encoded.clone()).ok()
}

/// The message inside, if it is of this type.
fn message<M: prost::Name + Default>(any: &Any) -> Option<M> {
    (any.type_url.rsplit('/').next() == Some(M::full_name().as_str())).then(|| M::decode(&*any.value).ok())?
}

const ANY: &str = "any connection";
