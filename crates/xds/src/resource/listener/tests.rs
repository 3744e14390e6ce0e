//! Tests of listeners: what is accepted, what is refused and where.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, CidrRange, ConfigSource, HttpProtocolOptions, Pipe, SelfConfigSource,
    SocketAddress, TransportSocket, address, transport_socket,
};
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as pb_hcm;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CommonTlsContext, DownstreamTlsContext,
};
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use envoy_types::util::pack_any;
use proptest::prelude::*;
use prost::Message;

use super::super::filter::{FilterConfig, HttpFilter};
use super::super::route::fixture::{
    TestSource, any as any_of, paths, route, route_config, seconds, to_cluster, uint32,
};
use super::super::{Resource, ResourceType, decode};
use super::*;
use crate::bootstrap::CertificateProviderConfig;

mod chains;

// === kinds ===

#[test]
fn an_api_listener_is_for_clients() {
    // R-13, R-15, R-17, R-18, R-132
    let hcm = pb_hcm::HttpConnectionManager {
        common_http_protocol_options: Some(HttpProtocolOptions {
            max_stream_duration: Some(seconds(5)),
            ..Default::default()
        }),
        ..hcm()
    };
    let expected = HttpConnectionManager {
        max_stream_duration: Some(Duration::from_secs(5)),
        filters: vec![HttpFilter { name: "router".to_owned(), config: FilterConfig::Router, disabled: false }],
        routes: RouteSource::Rds("routes".to_owned()),
    };
    assert_eq!(parse(&api(hcm)), Ok(Listener::Api(expected)));
}

#[test]
fn the_name_comes_from_the_message() {
    // R-12: it is compared by those who asked.
    let source = TestSource::new(false);
    let decoded = decode(ResourceType::Listener, &api(hcm()).encode_to_vec().into(), source.context());
    assert_eq!(decoded.name.as_deref(), Some("listener"));
    assert!(matches!(decoded.result, Ok(Resource::Listener(_))));
}

#[test]
fn a_listener_with_both_is_for_clients() {
    // R-13: what only servers read is not looked at.
    let both =
        pb::Listener { address: Some(Address::default()), listener_filters: vec![Default::default()], ..api(hcm()) };
    assert!(matches!(parse(&both), Ok(Listener::Api(_))));
}

#[test]
fn a_listener_with_neither_is_refused() {
    // R-13
    assert_eq!(paths(parse(&pb::Listener::default())), [""]);
}

#[test]
fn a_listener_with_an_address_is_for_servers() {
    // R-13, R-14, R-31
    let listener = parse_server(&server(vec![chain(None)]));
    assert_eq!(listener.address, "192.0.2.1:8080".parse().unwrap());
    let [only] = &listener.chains[..] else { panic!("{:?}", listener.chains) };
    let http = HttpConnectionManager {
        max_stream_duration: None,
        filters: vec![HttpFilter { name: "router".to_owned(), config: FilterConfig::Router, disabled: false }],
        routes: RouteSource::Rds("routes".to_owned()),
    };
    assert_eq!(**only, FilterChain { name: "filter_chains[0]".into(), tls: None, http });
}

// === API listeners ===

#[test]
fn an_api_listener_must_hold_a_connection_manager() {
    // R-15
    let with =
        |api_listener| pb::Listener { api_listener: Some(pb::ApiListener { api_listener }), ..Default::default() };
    let undecodable = Any { value: vec![0xff], ..any_of(HCM_TYPE) };
    for (config, path) in [
        (None, "api_listener.api_listener"),
        (Some(any_of("example.Other")), "api_listener.api_listener.type_url"),
        (Some(Any::default()), "api_listener.api_listener.type_url"),
        (Some(undecodable), "api_listener.api_listener.value"),
    ] {
        assert_eq!(paths(parse(&with(config))), [path]);
    }
}

// === connection managers ===

#[test]
fn forwarded_addresses_are_not_supported() {
    // R-16: on both sides.
    let hcm = pb_hcm::HttpConnectionManager {
        xff_num_trusted_hops: 1,
        original_ip_detection_extensions: vec![Default::default()],
        ..hcm()
    };
    assert_eq!(hcm_faults(hcm.clone()), ["xff_num_trusted_hops", "original_ip_detection_extensions"]);
    let chain = pb::FilterChain { filters: vec![hcm_filter(hcm)], ..Default::default() };
    assert_eq!(
        paths(parse(&server(vec![chain]))),
        [
            "filter_chains[0].filters[0].typed_config.xff_num_trusted_hops",
            "filter_chains[0].filters[0].typed_config.original_ip_detection_extensions"
        ]
    );
}

#[test]
fn the_default_time_limit_is_checked() {
    // R-17, R-3
    let options = HttpProtocolOptions { max_stream_duration: Some(seconds(-1)), ..Default::default() };
    let hcm = pb_hcm::HttpConnectionManager { common_http_protocol_options: Some(options), ..hcm() };
    assert_eq!(hcm_faults(hcm), ["common_http_protocol_options.max_stream_duration"]);
    let Ok(Listener::Api(hcm)) = parse(&api(self::hcm())) else { panic!("not accepted") };
    assert_eq!(hcm.max_stream_duration, None);
}

#[test]
fn routes_may_be_inline() {
    // R-18
    let Ok(Listener::Api(hcm)) = parse(&api(with_routes(inline("c")))) else { panic!("not accepted") };
    let RouteSource::Inline(routes) = hcm.routes else { panic!("{:?}", hcm.routes) };
    assert_eq!(routes.virtual_hosts[0].clusters().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn faults_of_inline_routes_have_their_path_in_the_listener() {
    // R-18, R-2
    let listener = api(with_routes(inline("")));
    assert_eq!(
        paths(parse(&listener)),
        ["api_listener.api_listener.route_config.virtual_hosts[0].routes[0].route.cluster"]
    );
}

#[test]
fn routes_come_from_ads() {
    // R-18, R-8
    for source in [
        ConfigSourceSpecifier::Ads(AggregatedConfigSource::default()),
        ConfigSourceSpecifier::Self_(SelfConfigSource::default()),
    ] {
        assert!(parse(&api(with_routes(rds("r", Some(source))))).is_ok());
    }
    for (source, path) in [
        (rds("r", None), "rds.config_source"),
        (rds("r", Some(ConfigSourceSpecifier::PathConfigSource(Default::default()))), "rds.config_source"),
        (rds("", Some(ads())), "rds.route_config_name"),
        (
            RouteSpecifier::Rds(pb_hcm::Rds { config_source: None, route_config_name: "r".to_owned() }),
            "rds.config_source",
        ),
        (RouteSpecifier::ScopedRoutes(Default::default()), "scoped_routes"),
    ] {
        assert_eq!(hcm_faults(with_routes(source)), [path]);
    }
    let nowhere = pb_hcm::HttpConnectionManager { route_specifier: None, ..hcm() };
    assert_eq!(paths(parse(&api(nowhere))), ["api_listener.api_listener"]);
}

#[test]
fn the_filter_chain_is_checked() {
    // R-19 to R-23: in full in the tests of filters.
    let with = |http_filters| pb_hcm::HttpConnectionManager { http_filters, ..hcm() };
    assert_eq!(hcm_faults(with(vec![])), ["http_filters"]);
    let unknown = pb_hcm::HttpFilter {
        name: "u".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any_of("example.Unknown"))),
        ..Default::default()
    };
    assert_eq!(hcm_faults(with(vec![unknown.clone(), router()])), ["http_filters[0].typed_config"]);
    let optional = pb_hcm::HttpFilter { is_optional: true, ..unknown };
    assert!(parse(&api(with(vec![optional, router()]))).is_ok());
    assert_eq!(hcm_faults(with(vec![router(), router()])), ["http_filters[1].name", "http_filters[1]"]);
}

#[test]
fn other_fields_of_a_connection_manager_are_ignored() {
    // R-25, R-1
    let hcm = pb_hcm::HttpConnectionManager {
        stat_prefix: "x".to_owned(),
        request_timeout: Some(seconds(-1)),
        access_log: vec![Default::default()],
        upgrade_configs: vec![Default::default()],
        ..hcm()
    };
    assert_eq!(parse(&api(hcm)), parse(&api(self::hcm())));
}

#[test]
fn every_fault_of_a_listener_is_reported() {
    // R-2
    let hcm =
        pb_hcm::HttpConnectionManager { xff_num_trusted_hops: 1, http_filters: vec![], ..with_routes(rds("", None)) };
    assert_eq!(hcm_faults(hcm), ["xff_num_trusted_hops", "http_filters", "rds.config_source", "rds.route_config_name"]);
}

// === server listeners ===

#[test]
fn a_server_needs_a_tcp_address() {
    // R-31, R-7
    let socket = |change: &dyn Fn(&mut SocketAddress)| {
        let mut socket = socket_address();
        change(&mut socket);
        Some(address::Address::SocketAddress(socket))
    };
    for (address, path) in [
        (None, "address"),
        (Some(address::Address::Pipe(Pipe::default())), "address"),
        (socket(&|s| s.protocol = 1), "address.socket_address.protocol"),
        (socket(&|s| s.address = "localhost".to_owned()), "address.socket_address.address"),
        (socket(&|s| s.address = String::new()), "address.socket_address.address"),
        (socket(&|s| s.port_specifier = None), "address.socket_address.port_value"),
        (socket(&|s| s.port_specifier = Some(PortSpecifier::PortValue(65_536))), "address.socket_address.port_value"),
        (
            socket(&|s| s.port_specifier = Some(PortSpecifier::NamedPort("x".to_owned()))),
            "address.socket_address.named_port",
        ),
    ] {
        let listener = pb::Listener { address: Some(Address { address }), ..server(vec![chain(None)]) };
        assert_eq!(paths(parse(&listener)), [path]);
    }
    let v6 = socket(&|s| s.address = "::1".to_owned());
    let listener = pb::Listener { address: Some(Address { address: v6 }), ..server(vec![chain(None)]) };
    assert_eq!(parse_server(&listener).address, "[::1]:8080".parse().unwrap());
}

#[test]
fn listener_filters_and_original_destinations_are_not_supported() {
    // R-32
    let listener = pb::Listener {
        listener_filters: vec![Default::default()],
        use_original_dst: Some(BoolValue { value: true }),
        ..server(vec![chain(None)])
    };
    assert_eq!(paths(parse(&listener)), ["listener_filters", "use_original_dst"]);
    let listener = pb::Listener { use_original_dst: Some(BoolValue { value: false }), ..server(vec![chain(None)]) };
    assert!(parse(&listener).is_ok());
}

#[test]
fn a_server_needs_a_filter_chain() {
    // R-33
    assert_eq!(paths(parse(&server(vec![]))), [""]);
    let listener = pb::Listener { default_filter_chain: Some(chain(None)), ..server(vec![]) };
    assert!(parse(&listener).is_ok());
}

#[test]
fn a_filter_chain_is_one_connection_manager() {
    // R-34
    let with = |filters| pb::FilterChain { filters, ..Default::default() };
    let other = |config_type| pb::Filter { name: "x".to_owned(), config_type };
    for (filters, expected) in [
        (vec![], vec!["filters"]),
        (vec![other(None)], vec!["filters[0].typed_config"]),
        (vec![other(Some(ConfigType::ConfigDiscovery(Default::default())))], vec!["filters[0].typed_config"]),
        (vec![other(Some(ConfigType::TypedConfig(any_of("example.Tcp"))))], vec!["filters[0].typed_config.type_url"]),
        (vec![hcm_filter(hcm()), hcm_filter(hcm())], vec!["filters", "filters[1].name"]),
        (
            vec![hcm_filter(hcm()), other(Some(ConfigType::TypedConfig(any_of("example.Tcp"))))],
            vec!["filters", "filters[1].typed_config.type_url"],
        ),
    ] {
        for (listener, place) in [
            (server(vec![with(filters.clone())]), "filter_chains[0]"),
            (
                pb::Listener { default_filter_chain: Some(with(filters)), ..server(vec![chain(None)]) },
                "default_filter_chain",
            ),
        ] {
            let expected: Vec<_> = expected.iter().map(|path| format!("{place}.{path}")).collect();
            assert_eq!(paths(parse(&listener)), expected);
        }
    }
}

#[test]
fn the_routes_of_a_server_are_checked() {
    // R-34, R-18
    let chain = pb::FilterChain { filters: vec![hcm_filter(with_routes(inline("")))], ..Default::default() };
    assert_eq!(
        paths(parse(&server(vec![chain]))),
        ["filter_chains[0].filters[0].typed_config.route_config.virtual_hosts[0].routes[0].route.cluster"]
    );
}

#[test]
fn bad_filter_chain_matches_are_refused() {
    // R-35
    let bad = pb::FilterChainMatch {
        prefix_ranges: vec![cidr("10.0.0.0", 8), cidr("nonsense", 8)],
        source_prefix_ranges: vec![cidr("", 0)],
        source_type: 3,
        ..Default::default()
    };
    assert_eq!(
        paths(parse(&server(vec![chain(Some(bad))]))),
        [
            "filter_chains[0].filter_chain_match.prefix_ranges[1].address_prefix",
            "filter_chains[0].filter_chain_match.source_prefix_ranges[0].address_prefix",
            "filter_chains[0].filter_chain_match.source_type",
        ]
    );
}

#[test]
fn two_chains_must_not_match_the_same_connections() {
    // R-35
    let base = pb::FilterChainMatch::default;
    let ranges = |prefix_ranges| pb::FilterChainMatch { prefix_ranges, ..base() };
    let sources = |source_prefix_ranges| pb::FilterChainMatch { source_prefix_ranges, ..base() };
    let ports = |source_ports: &[u32]| pb::FilterChainMatch { source_ports: source_ports.to_vec(), ..base() };
    let names = |names: &[&str]| {
        let server_names = names.iter().map(|&name| name.to_owned()).collect();
        pb::FilterChainMatch { server_names, ..base() }
    };
    let protocols = |names: &[&str]| {
        let application_protocols = names.iter().map(|&name| name.to_owned()).collect();
        pb::FilterChainMatch { application_protocols, ..base() }
    };
    let transport = |name: &str| pb::FilterChainMatch { transport_protocol: name.to_owned(), ..base() };
    let port = |port| pb::FilterChainMatch { destination_port: uint32(port), ..base() };
    let source_type = |source_type| pb::FilterChainMatch { source_type, ..base() };
    let unset_length = CidrRange { address_prefix: "10.1.2.3".to_owned(), prefix_len: None };
    for (first, second, same) in [
        (base(), base(), true),
        (base(), ranges(vec![cidr("0.0.0.0", 0)]), false),
        // Host bits do not count, an absent length is zero, a length has a maximum.
        (ranges(vec![cidr("10.1.2.3", 8)]), ranges(vec![cidr("10.9.9.9", 8)]), true),
        (ranges(vec![cidr("10.1.2.3", 8)]), ranges(vec![cidr("10.1.2.3", 9)]), false),
        (ranges(vec![unset_length]), ranges(vec![cidr("0.0.0.0", 0)]), true),
        (ranges(vec![cidr("10.1.2.3", 32)]), ranges(vec![cidr("10.1.2.3", 99)]), true),
        (ranges(vec![cidr("::1", 128)]), ranges(vec![cidr("::1", u32::MAX)]), true),
        (ranges(vec![cidr("2001:db8::1", 32)]), ranges(vec![cidr("2001:db8:ffff::", 32)]), true),
        (ranges(vec![cidr("::", 0)]), ranges(vec![cidr("0.0.0.0", 0)]), false),
        // One combination in common is enough.
        (ranges(vec![cidr("10.0.0.0", 8), cidr("11.0.0.0", 8)]), ranges(vec![cidr("11.0.0.0", 8)]), true),
        (sources(vec![cidr("10.0.0.0", 8)]), sources(vec![cidr("10.0.0.0", 8), cidr("11.0.0.0", 8)]), true),
        (sources(vec![cidr("10.0.0.0", 8)]), ranges(vec![cidr("10.0.0.0", 8)]), false),
        (ports(&[1, 2]), ports(&[2, 3]), true),
        (ports(&[1, 2]), ports(&[3]), false),
        (ports(&[1]), base(), false),
        // These can never match, which does not matter.
        (names(&["A.example"]), names(&["a.EXAMPLE"]), true),
        (names(&["a"]), names(&["b"]), false),
        (protocols(&["h2"]), protocols(&["x", "h2"]), true),
        (protocols(&["h2"]), names(&["h2"]), false),
        (transport("raw_buffer"), transport("raw_buffer"), true),
        (transport("raw_buffer"), transport(""), false),
        (port(1), port(1), true),
        (port(1), port(2), false),
        (source_type(1), source_type(1), true),
        (source_type(1), source_type(2), false),
    ] {
        let result = parse(&server(vec![chain(Some(first.clone())), chain(Some(second.clone()))]));
        if same {
            assert_eq!(paths(result), ["filter_chains[1].filter_chain_match"], "{first:?} {second:?}");
        } else {
            assert!(result.is_ok(), "{first:?} {second:?}");
        }
    }
    // No match at all is an empty one.
    let result = parse(&server(vec![chain(None), chain(Some(ports(&[1]))), chain(Some(base()))]));
    assert_eq!(paths(result), ["filter_chains[2].filter_chain_match"]);
}

#[test]
fn a_chain_may_repeat_itself() {
    // R-35: only two chains can be in each other's way.
    let pb = pb::FilterChainMatch { source_ports: vec![1, 1], ..Default::default() };
    assert!(parse(&server(vec![chain(Some(pb))])).is_ok());
}

#[test]
fn combinations_of_a_match_are_bounded() {
    // R-35: a few kilobytes must not become millions of matches.
    let pb = pb::FilterChainMatch {
        source_ports: (0..1000).collect(),
        server_names: (0..1000).map(|i| i.to_string()).collect(),
        ..Default::default()
    };
    assert_eq!(paths(parse(&server(vec![chain(Some(pb))]))), ["filter_chains[0].filter_chain_match"]);
}

#[test]
fn the_transport_socket_of_a_server_is_tls() {
    // R-36
    let with = |config_type| {
        let socket = TransportSocket { name: "envoy.transport_sockets.tls".to_owned(), config_type };
        server(vec![pb::FilterChain { transport_socket: Some(socket), ..chain(None) }])
    };
    let typed = |config| Some(transport_socket::ConfigType::TypedConfig(config));
    assert!(parse(&with(typed(pack_any(tls_context())))).is_ok());
    for (config, path) in [
        (None, ""),
        (typed(any_of("envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport")), ".type_url"),
        (typed(any_of("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext")), ".type_url"),
    ] {
        assert_eq!(paths(parse(&with(config))), [format!("filter_chains[0].transport_socket.typed_config{path}")]);
    }
}

#[test]
fn chains_are_kept_with_their_names_tls_and_routes() {
    // R-132
    let config = transport_socket::ConfigType::TypedConfig(pack_any(tls_context()));
    let socket = TransportSocket { name: "tls".to_owned(), config_type: Some(config) };
    let secure = pb::FilterChain { name: "secure".to_owned(), transport_socket: Some(socket), ..chain(None) };
    let default = pb::FilterChain { filters: vec![hcm_filter(with_routes(inline("c")))], ..Default::default() };
    let listener = parse_server(&pb::Listener { default_filter_chain: Some(default), ..server(vec![secure]) });
    let names: Vec<_> = listener.chains.iter().map(|chain| &*chain.name).collect();
    assert_eq!(names, ["secure", "default_filter_chain"]);
    assert_eq!(listener.chains[0].tls.as_ref().map(|tls| &*tls.identity_instance), Some("known"));
    assert_eq!(listener.chains[1].tls, None);
    assert_eq!(listener.route_names().collect::<Vec<_>>(), ["routes"]);
    // SV-30: the direction is not looked at.
    let directed = pb::Listener { traffic_direction: 2, ..server(vec![chain(None)]) };
    assert_eq!(parse(&directed), parse(&server(vec![chain(None)])));
}

// === hostile input ===

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let source = TestSource::new(true);
        let _ = decode(ResourceType::Listener, &bytes.into(), source.context());
    }

    /// Random content where the parser expects a connection manager.
    #[test]
    fn random_connection_managers_never_panic(value in prop::collection::vec(any::<u8>(), 0..200)) {
        let api_listener = pb::ApiListener { api_listener: Some(Any { value, ..any_of(HCM_TYPE) }) };
        let _ = parse(&pb::Listener { api_listener: Some(api_listener), ..Default::default() });
    }

    #[test]
    fn mutated_listeners_never_panic_and_stay_sound(
        for_clients in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..8),
    ) {
        let mut bytes = if for_clients { api(with_routes(inline("c"))) } else { rich_server() }.encode_to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        let source = TestSource::new(false);
        let decoded = decode(ResourceType::Listener, &bytes.into(), source.context());
        if let Ok(Resource::Listener(listener)) = decoded.result
            && let Listener::Api(hcm) = &*listener
        {
            prop_assert_eq!(hcm.filters.last().map(|filter| &filter.config), Some(&FilterConfig::Router));
            prop_assert_ne!(&hcm.routes, &RouteSource::Rds(String::new()));
        }
    }
}

// === helpers ===

const HCM_TYPE: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

fn parse(pb: &pb::Listener) -> Result<Listener, Invalid> {
    let mut source = TestSource::new(false);
    source.bootstrap.certificate_providers = [("known".to_owned(), CertificateProviderConfig::Application)].into();
    Listener::parse(pb, source.context())
}

#[track_caller]
fn parse_server(pb: &pb::Listener) -> Arc<ServerListener> {
    match parse(pb) {
        Ok(Listener::Server(listener)) => listener,
        other => panic!("{other:?}"),
    }
}

/// A TLS context with our certificate, and nothing of clients.
fn tls_context() -> DownstreamTlsContext {
    let instance = CertificateProviderPluginInstance { instance_name: "known".to_owned(), ..Default::default() };
    let common = CommonTlsContext { tls_certificate_provider_instance: Some(instance), ..Default::default() };
    DownstreamTlsContext { common_tls_context: Some(common), ..Default::default() }
}

/// The paths of the faults of a client's connection manager, below it.
fn hcm_faults(hcm: pb_hcm::HttpConnectionManager) -> Vec<String> {
    let paths = paths(parse(&api(hcm))).into_iter();
    paths.map(|path| path.strip_prefix("api_listener.api_listener.").expect("in the HCM").to_owned()).collect()
}

fn api(hcm: pb_hcm::HttpConnectionManager) -> pb::Listener {
    let api_listener = pb::ApiListener { api_listener: Some(pack_any(hcm)) };
    pb::Listener { name: "listener".to_owned(), api_listener: Some(api_listener), ..Default::default() }
}

/// A connection manager with the router and RDS.
fn hcm() -> pb_hcm::HttpConnectionManager {
    pb_hcm::HttpConnectionManager {
        http_filters: vec![router()],
        route_specifier: Some(rds("routes", Some(ads()))),
        ..Default::default()
    }
}

fn with_routes(source: RouteSpecifier) -> pb_hcm::HttpConnectionManager {
    pb_hcm::HttpConnectionManager { route_specifier: Some(source), ..hcm() }
}

fn router() -> pb_hcm::HttpFilter {
    let config_type = Some(http_filter::ConfigType::TypedConfig(pack_any(Router::default())));
    pb_hcm::HttpFilter { name: "router".to_owned(), config_type, ..Default::default() }
}

fn rds(name: &str, source: Option<ConfigSourceSpecifier>) -> RouteSpecifier {
    let config_source = ConfigSource { config_source_specifier: source, ..Default::default() };
    RouteSpecifier::Rds(pb_hcm::Rds { config_source: Some(config_source), route_config_name: name.to_owned() })
}

fn ads() -> ConfigSourceSpecifier {
    ConfigSourceSpecifier::Ads(AggregatedConfigSource::default())
}

fn inline(cluster: &str) -> RouteSpecifier {
    RouteSpecifier::RouteConfig(route_config(vec![route(to_cluster(cluster))]))
}

fn server(filter_chains: Vec<pb::FilterChain>) -> pb::Listener {
    let address = Address { address: Some(address::Address::SocketAddress(socket_address())) };
    pb::Listener { name: "listener".to_owned(), address: Some(address), filter_chains, ..Default::default() }
}

fn socket_address() -> SocketAddress {
    SocketAddress {
        address: "192.0.2.1".to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(8080)),
        ..Default::default()
    }
}

fn chain(filter_chain_match: Option<pb::FilterChainMatch>) -> pb::FilterChain {
    pb::FilterChain { filter_chain_match, filters: vec![hcm_filter(hcm())], ..Default::default() }
}

fn hcm_filter(hcm: pb_hcm::HttpConnectionManager) -> pb::Filter {
    pb::Filter { name: "hcm".to_owned(), config_type: Some(ConfigType::TypedConfig(pack_any(hcm))) }
}

fn cidr(address: &str, len: u32) -> CidrRange {
    CidrRange { address_prefix: address.to_owned(), prefix_len: uint32(len) }
}

/// A server's listener that uses everything.
fn rich_server() -> pb::Listener {
    let pb = pb::FilterChainMatch {
        destination_port: uint32(1),
        prefix_ranges: vec![cidr("10.0.0.0", 8), cidr("::1", 128)],
        source_prefix_ranges: vec![cidr("10.0.0.0", 8)],
        source_ports: vec![1, 2],
        server_names: vec!["a".to_owned()],
        application_protocols: vec!["h2".to_owned()],
        source_type: 1,
        ..Default::default()
    };
    let config = transport_socket::ConfigType::TypedConfig(pack_any(tls_context()));
    let socket = TransportSocket { name: "tls".to_owned(), config_type: Some(config) };
    let secure = pb::FilterChain { transport_socket: Some(socket), ..chain(Some(pb)) };
    pb::Listener { default_filter_chain: Some(chain(None)), ..server(vec![chain(None), secure]) }
}
