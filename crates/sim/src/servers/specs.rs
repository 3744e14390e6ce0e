//! What control planes tell servers, in few words, and its bytes.

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType as SocketConfig;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, CidrRange, ConfigSource, SocketAddress, TransportSocket,
};
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::{ApiListener, Filter, FilterChain, FilterChainMatch, Listener};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{
    NonForwardingAction, RedirectAction, Route, RouteConfiguration, RouteMatch, VirtualHost,
};
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CommonTlsContext, DownstreamTlsContext,
};
use envoy_types::pb::google::protobuf::UInt32Value;
use envoy_types::util::pack_any;
use prost::Message;

/// A Listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListenerSpec {
    pub(super) kind: Kind,
    pub(super) chains: Vec<ChainSpec>,
    pub(super) default: Option<ChainSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// For clients.
    Client,
    /// For servers, on the address that is asked for.
    Server,
    /// For servers, on any port.
    AnyPort,
    /// For servers, on another port.
    Elsewhere,
    /// A client must refuse it.
    Invalid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainSpec {
    /// The length of the prefix of our address that it is for; not for the default one.
    pub(super) prefix: u32,
    pub(super) tls: bool,
    pub(super) routes: RoutesSpec,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoutesSpec {
    /// The RouteConfiguration with this number.
    Rds(usize),
    Inline(Mark),
}

/// The content of a RouteConfiguration: even ones serve, odd ones do not.
pub(super) type Mark = u32;

/// A mark that no client accepts.
pub(super) const INVALID: Mark = 1_000_000;

impl ListenerSpec {
    /// Whether a server on the address may use it.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.kind, Kind::Server | Kind::AnyPort)
    }

    pub(super) fn all_chains(&self) -> impl Iterator<Item = &ChainSpec> {
        self.chains.iter().chain(&self.default)
    }

    /// The RouteConfigurations that it names.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.all_chains().filter_map(|chain| match chain.routes {
            RoutesSpec::Rds(number) => Some(route_name(number)),
            RoutesSpec::Inline(_) => None,
        })
    }

    /// The chain of a connection that came in at an address which shares so many bits with ours: that of the longest
    /// prefix; else the default one; else none.
    pub(super) fn chain_for(&self, bits: u32) -> Option<usize> {
        let fitting = self.chains.iter().enumerate().filter(|(_, chain)| chain.prefix <= bits);
        let longest = fitting.max_by_key(|(_, chain)| chain.prefix).map(|(place, _)| place);
        longest.or_else(|| self.default.as_ref().map(|_| self.chains.len()))
    }

    /// Its bytes; with `grain`, others that mean the same.
    pub(super) fn encode(&self, name: &str, port: u16, grain: bool) -> Bytes {
        let port = match self.kind {
            Kind::AnyPort => 0,
            Kind::Elsewhere => port + 1_000,
            Kind::Client | Kind::Server | Kind::Invalid => port,
        };
        let socket = SocketAddress {
            address: "10.0.0.1".to_owned(),
            port_specifier: Some(PortSpecifier::PortValue(port.into())),
            ..SocketAddress::default()
        };
        let mut listener = Listener {
            name: name.to_owned(),
            address: Some(Address { address: Some(AddressKind::SocketAddress(socket)) }),
            filter_chains: self.chains.iter().map(|chain| chain.encode(true)).collect(),
            default_filter_chain: self.default.as_ref().map(|chain| chain.encode(false)),
            traffic_direction: i32::from(grain),
            ..Listener::default()
        };
        match self.kind {
            Kind::Client => {
                let manager = manager(&RoutesSpec::Rds(0));
                listener.api_listener = Some(ApiListener { api_listener: Some(pack_any(manager)) });
            }
            Kind::Invalid => (listener.filter_chains, listener.default_filter_chain) = (Vec::new(), None),
            Kind::Server | Kind::AnyPort | Kind::Elsewhere => {}
        }
        listener.encode_to_vec().into()
    }
}

impl ChainSpec {
    fn encode(&self, matched: bool) -> FilterChain {
        let instance = CertificateProviderPluginInstance { instance_name: "id".to_owned(), ..Default::default() };
        let common = CommonTlsContext { tls_certificate_provider_instance: Some(instance), ..Default::default() };
        let context = DownstreamTlsContext { common_tls_context: Some(common), ..Default::default() };
        let range =
            CidrRange { address_prefix: "10.0.0.1".to_owned(), prefix_len: Some(UInt32Value { value: self.prefix }) };
        FilterChain {
            filter_chain_match: matched
                .then(|| FilterChainMatch { prefix_ranges: vec![range], ..FilterChainMatch::default() }),
            filters: vec![Filter {
                name: "http".to_owned(),
                config_type: Some(ConfigType::TypedConfig(pack_any(manager(&self.routes)))),
            }],
            transport_socket: self.tls.then(|| TransportSocket {
                name: "tls".to_owned(),
                config_type: Some(SocketConfig::TypedConfig(pack_any(context))),
            }),
            ..FilterChain::default()
        }
    }
}

fn manager(routes: &RoutesSpec) -> HttpConnectionManager {
    let router = HttpFilter {
        name: "router".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(pack_any(Router::default()))),
        ..HttpFilter::default()
    };
    let ads = ConfigSourceSpecifier::Ads(AggregatedConfigSource {});
    let source = ConfigSource { config_source_specifier: Some(ads), ..ConfigSource::default() };
    let specifier = match routes {
        RoutesSpec::Rds(number) => {
            RouteSpecifier::Rds(Rds { config_source: Some(source), route_config_name: route_name(*number) })
        }
        RoutesSpec::Inline(mark) => RouteSpecifier::RouteConfig(route_config("inline", *mark)),
    };
    HttpConnectionManager { http_filters: vec![router], route_specifier: Some(specifier), ..Default::default() }
}

pub(super) fn route_name(number: usize) -> String {
    format!("routes{number}")
}

/// The bytes of a RouteConfiguration.
pub(super) fn encode_routes(name: &str, mark: Mark) -> Bytes {
    route_config(name, mark).encode_to_vec().into()
}

fn route_config(name: &str, mark: Mark) -> RouteConfiguration {
    let everything = RouteMatch { path_specifier: Some(PathSpecifier::Prefix(String::new())), ..RouteMatch::default() };
    let action = match mark % 2 {
        0 => Action::NonForwardingAction(NonForwardingAction {}),
        _ => Action::Redirect(RedirectAction::default()),
    };
    let host = VirtualHost {
        name: mark.to_string(),
        domains: if mark == INVALID { vec![] } else { vec!["*".to_owned()] },
        routes: vec![Route { r#match: Some(everything), action: Some(action), ..Route::default() }],
        ..VirtualHost::default()
    };
    RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host], ..RouteConfiguration::default() }
}
