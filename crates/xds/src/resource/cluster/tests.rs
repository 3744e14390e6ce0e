//! `docs/rules/04` section 4, rule by rule. LB policies and TLS contexts have tests of their own.

use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::core::v3::{self as core, address};
use envoy_types::pb::envoy::config::endpoint::v3 as pb_endpoint;
use envoy_types::pb::envoy::extensions::filters::http::gcp_authn::v3::Audience;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as pb_tls;
use envoy_types::pb::google::protobuf::Any;
use pb::cluster::EdsClusterConfig;
use pb::cluster::LbPolicy as LegacyPolicy;
use proptest::prelude::{any, prop, proptest};
use proptest::test_runner::{Config, RngSeed};
use prost::{Message, Name};

use super::*;
use crate::bootstrap::{
    Bootstrap, CertificateFiles, CertificateProviderConfig, ChannelCreds, Guards, Node, ServerFeatures,
};
use crate::resource::{Resource, ResourceType, decode};

#[test]
fn an_eds_cluster_has_the_documented_defaults() {
    let parsed = parse(&eds("c")).unwrap();
    assert_eq!(
        parsed,
        Cluster {
            kind: ClusterKind::Eds { service_name: None },
            lb_policy: LbPolicy::WrrLocality(Box::new(LbPolicy::RoundRobin)),
            max_requests: 1024,
            outlier_detection: None,
            tls: None,
            http_connect: None,
            lrs_server: None,
            lrs_report_endpoint_metrics: vec![],
            override_host_statuses: OverrideHostStatuses { unknown: true, healthy: true, draining: false },
            idle_timeout: Duration::from_secs(3600),
        }
    );
}

#[test]
fn r60_other_discovery_types_are_rejected() {
    let reject = |discovery_type: Option<i32>, found: &str| {
        let pb = pb::Cluster {
            cluster_discovery_type: discovery_type.map(ClusterDiscoveryType::Type),
            ..pb::Cluster::default()
        };
        let expected = format!("type: {found} is not supported: expected EDS, LOGICAL_DNS or an aggregate cluster");
        assert_faults(&pb, &[&expected]);
    };
    reject(None, "STATIC");
    reject(Some(DiscoveryType::Static as i32), "STATIC");
    reject(Some(DiscoveryType::StrictDns as i32), "STRICT_DNS");
    reject(Some(DiscoveryType::OriginalDst as i32), "ORIGINAL_DST");
    reject(Some(77), "77");
}

#[test]
fn r61_the_eds_name_is_the_service_name_else_the_cluster_name() {
    let plain = parse(&eds("c")).unwrap();
    assert_eq!(plain.eds_resource_name("c"), Some("c"));
    let named = parse(&eds_with("c", "s", ads_source())).unwrap();
    assert_eq!(named.kind, ClusterKind::Eds { service_name: Some("s".into()) });
    assert_eq!(named.eds_resource_name("c"), Some("s"));
    assert_eq!(parse(&dns("db", 80)).unwrap().eds_resource_name("c"), None);
    assert_eq!(parse(&aggregate(["a"])).unwrap().eds_resource_name("c"), None);
}

#[test]
fn r61_eds_config_must_be_ads_or_self() {
    assert!(parse(&eds_with("c", "", self_source())).is_ok());
    let path_source = ConfigSourceSpecifier::PathConfigSource(core::PathConfigSource::default());
    let path_source = Some(core::ConfigSource { config_source_specifier: Some(path_source), ..Default::default() });
    assert_faults(&eds_with("c", "", path_source), &["eds_cluster_config.eds_config: must be ads or self"]);
    assert_faults(&eds_with("c", "", None), &["eds_cluster_config.eds_config: must be set to ads or self"]);
    assert_faults(&pb::Cluster { eds_cluster_config: None, ..eds("c") }, &["eds_cluster_config: must be set"]);
}

#[test]
fn r61_an_xdstp_cluster_needs_a_service_name() {
    let name = "xdstp://a/envoy.config.cluster.v3.Cluster/c";
    assert_faults(
        &eds(name),
        &["eds_cluster_config.service_name: must be set, because the name of the cluster starts with xdstp:"],
    );
    assert!(parse(&eds_with(name, "s", ads_source())).is_ok());
    // The rule is about EDS alone.
    assert!(parse(&pb::Cluster { name: name.into(), ..dns("db", 80) }).is_ok());
}

#[test]
fn r62_a_dns_cluster_has_one_host_and_port() {
    let kind = parse(&dns("db.example", 5432)).unwrap().kind;
    assert_eq!(kind, ClusterKind::LogicalDns { host: "db.example".into(), port: 5432 });
}

#[test]
fn r62_a_dns_cluster_of_another_shape_is_rejected() {
    let good = dns_locality("db", 80);
    let empty_locality = pb_endpoint::LocalityLbEndpoints::default();
    let two_endpoints = pb_endpoint::LocalityLbEndpoints {
        lb_endpoints: [good.lb_endpoints.clone(), good.lb_endpoints.clone()].concat(),
        ..Default::default()
    };
    let no_endpoint =
        pb_endpoint::LocalityLbEndpoints { lb_endpoints: vec![LbEndpoint::default()], ..Default::default() };
    let reject = |localities: Vec<pb_endpoint::LocalityLbEndpoints>, expected: &str| {
        assert_faults(&dns_with(localities), &[&format!("load_assignment.endpoints{expected}")]);
    };
    assert_faults(&pb::Cluster { load_assignment: None, ..dns("db", 80) }, &["load_assignment: must be set"]);
    reject(vec![], ": has 0 entries: expected exactly one");
    reject(vec![good.clone(), good], ": has 2 entries: expected exactly one");
    reject(vec![empty_locality], "[0].lb_endpoints: has 0 entries: expected exactly one");
    reject(vec![two_endpoints], "[0].lb_endpoints: has 2 entries: expected exactly one");
    reject(vec![no_endpoint], "[0].lb_endpoints[0].endpoint.address: must be set");
}

#[test]
fn r62_a_dns_address_needs_a_host_and_a_port_and_no_resolver() {
    let socket = core::SocketAddress { resolver_name: "r".into(), ..Default::default() };
    let path = "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address";
    assert_faults(
        &dns_with(vec![locality_at(address::Address::SocketAddress(socket))]),
        &[
            &format!("{path}.address: must not be empty"),
            &format!("{path}.resolver_name: not supported"),
            &format!("{path}.port_value: must be set"),
        ],
    );
    assert_faults(&dns("db", 65_536), &[&format!("{path}.port_value: 65536 is not a port: expected at most 65535")]);
    assert_faults(
        &dns_with(vec![locality_at(address::Address::Pipe(core::Pipe::default()))]),
        &["load_assignment.endpoints[0].lb_endpoints[0].endpoint.address: only socket_address is supported"],
    );
}

#[test]
fn r63_an_aggregate_names_its_clusters_in_order() {
    let kind = parse(&aggregate(["b", "a", "b"])).unwrap().kind;
    assert_eq!(kind, ClusterKind::Aggregate { clusters: vec!["b".into(), "a".into(), "b".into()] });
}

#[test]
fn r63_an_aggregate_needs_clusters_and_not_too_many() {
    let path = "cluster_type.typed_config.clusters";
    assert_faults(&aggregate::<&str>([]), &[&format!("{path}: must not be empty")]);
    assert_faults(&aggregate(["a", ""]), &[&format!("{path}[1]: must not be empty")]);
    assert!(parse(&aggregate(vec!["a"; 1000])).is_ok());
    assert_faults(&aggregate(vec!["a"; 1001]), &[&format!("{path}: has 1001 entries: at most 1000")]);
}

#[test]
fn r63_other_custom_types_are_rejected() {
    let custom = |typed_config| pb::Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
            name: "envoy.clusters.aggregate".into(),
            typed_config,
        })),
        ..Default::default()
    };
    let path = "cluster_type.typed_config";
    assert_faults(&custom(None), &[&format!("{path}: must be set")]);
    assert_faults(
        &custom(Some(pack(&RoundRobin::default()))),
        &[&format!(
            "{path}.type_url: is {}: expected envoy.extensions.clusters.aggregate.v3.ClusterConfig",
            RoundRobin::full_name()
        )],
    );
    let garbage = Any { type_url: AggregateConfig::type_url(), value: vec![0xff] };
    let faults = faults_of(&custom(Some(garbage)));
    assert!(faults[0].starts_with(&format!("{path}.value: is not a")), "{faults:?}");
}

#[test]
fn r70_the_lb_policy_of_an_aggregate_is_ignored() {
    let plain = parse(&aggregate(["a"])).unwrap();
    let provided = pb::Cluster { lb_policy: LegacyPolicy::ClusterProvided as i32, ..aggregate(["a"]) };
    assert_eq!(parse(&provided).unwrap(), plain);
    let empty = pb::Cluster { load_balancing_policy: Some(pb::LoadBalancingPolicy::default()), ..aggregate(["a"]) };
    assert_eq!(parse(&empty).unwrap(), plain);
}

#[test]
fn r71_max_requests_is_that_of_the_first_default_threshold() {
    let with = |thresholds: &[(RoutingPriority, Option<u32>)]| {
        let thresholds = thresholds.iter().map(|(priority, max_requests)| Thresholds {
            priority: *priority as i32,
            max_requests: max_requests.map(|value| UInt32Value { value }),
            ..Default::default()
        });
        let breakers = pb::CircuitBreakers { thresholds: thresholds.collect(), ..Default::default() };
        parse(&pb::Cluster { circuit_breakers: Some(breakers), ..eds("c") }).unwrap().max_requests
    };
    use RoutingPriority::{Default as Normal, High};
    assert_eq!(with(&[(High, Some(1)), (Normal, Some(7)), (Normal, Some(8))]), 7);
    assert_eq!(with(&[(Normal, None), (Normal, Some(8))]), 1024);
    assert_eq!(with(&[(High, Some(1))]), 1024);
    assert_eq!(with(&[(Normal, Some(0))]), 0);
}

#[test]
fn r72_zero_connections_per_host_are_rejected() {
    let with = |max: &[(RoutingPriority, u32)]| {
        let thresholds = max.iter().map(|(priority, value)| Thresholds {
            priority: *priority as i32,
            max_connections: Some(UInt32Value { value: *value }),
            ..Default::default()
        });
        let breakers = pb::CircuitBreakers { per_host_thresholds: thresholds.collect(), ..Default::default() };
        pb::Cluster { circuit_breakers: Some(breakers), ..eds("c") }
    };
    use RoutingPriority::{Default as Normal, High};
    assert!(parse(&with(&[(High, 0), (Normal, 1), (Normal, 0)])).is_ok());
    assert_faults(
        &with(&[(High, 1), (Normal, 0)]),
        &["circuit_breakers.per_host_thresholds[1].max_connections: must not be 0"],
    );
}

#[test]
fn r73_an_empty_outlier_detection_has_defaults() {
    let parsed = outliers(pb::OutlierDetection::default()).unwrap();
    assert_eq!(
        parsed,
        OutlierDetection {
            interval: Duration::from_secs(10),
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_percent: 10,
            success_rate: Some(SuccessRateEjection {
                stdev_factor: 1900,
                enforcement: 100,
                minimum_hosts: 5,
                request_volume: 100
            }),
            failure_percentage: None,
        }
    );
}

#[test]
fn r73_the_largest_ejection_time_is_at_least_the_base_unless_it_is_set() {
    let base = Some(seconds(400));
    let unset = outliers(pb::OutlierDetection { base_ejection_time: base, ..Default::default() }).unwrap();
    assert_eq!(unset.max_ejection_time, Duration::from_secs(400));
    let max_ejection_time = Some(seconds(350));
    let set = pb::OutlierDetection { base_ejection_time: base, max_ejection_time, ..Default::default() };
    assert_eq!(outliers(set).unwrap().max_ejection_time, Duration::from_secs(350));
}

#[test]
fn r73_bad_durations_and_percentages_are_rejected() {
    let bad = pb::OutlierDetection {
        interval: Some(seconds(-1)),
        base_ejection_time: Some(seconds(315_576_000_001)),
        max_ejection_time: Some(PbDuration { seconds: 0, nanos: -1 }),
        max_ejection_percent: Some(UInt32Value { value: 101 }),
        enforcing_success_rate: Some(UInt32Value { value: 102 }),
        enforcing_failure_percentage: Some(UInt32Value { value: 103 }),
        failure_percentage_threshold: Some(UInt32Value { value: u32::MAX }),
        ..Default::default()
    };
    let faults = faults_of(&pb::Cluster { outlier_detection: Some(bad), ..eds("c") });
    let paths: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').next()).collect();
    assert_eq!(
        paths,
        [
            "outlier_detection.base_ejection_time",
            "outlier_detection.interval",
            "outlier_detection.max_ejection_time",
            "outlier_detection.max_ejection_percent",
            "outlier_detection.enforcing_success_rate",
            "outlier_detection.enforcing_failure_percentage",
            "outlier_detection.failure_percentage_threshold",
        ]
    );
    assert_eq!(faults[3], "outlier_detection.max_ejection_percent: 101 is not a percentage: expected at most 100");
}

#[test]
fn r74_only_an_explicit_zero_turns_ejection_by_success_rate_off() {
    let with = |enforcing_success_rate| {
        outliers(pb::OutlierDetection {
            enforcing_success_rate,
            success_rate_stdev_factor: Some(UInt32Value { value: 1 }),
            success_rate_minimum_hosts: Some(UInt32Value { value: 2 }),
            success_rate_request_volume: Some(UInt32Value { value: 3 }),
            ..Default::default()
        })
        .unwrap()
        .success_rate
    };
    let on =
        |enforcement| Some(SuccessRateEjection { stdev_factor: 1, enforcement, minimum_hosts: 2, request_volume: 3 });
    assert_eq!(with(Some(UInt32Value { value: 0 })), None);
    assert_eq!(with(Some(UInt32Value { value: 40 })), on(40));
    assert_eq!(with(None), on(100));
}

#[test]
fn r75_only_a_share_above_zero_turns_ejection_by_failures_on() {
    let with = |enforcing: Option<u32>| {
        outliers(pb::OutlierDetection {
            enforcing_failure_percentage: enforcing.map(|value| UInt32Value { value }),
            ..Default::default()
        })
        .unwrap()
        .failure_percentage
    };
    assert_eq!(with(None), None);
    assert_eq!(with(Some(0)), None);
    let on = FailurePercentageEjection { threshold: 85, enforcement: 20, minimum_hosts: 5, request_volume: 50 };
    assert_eq!(with(Some(20)), Some(on));
}

#[test]
fn r76_override_statuses_keep_the_three_usable_states() {
    let with = |statuses: &[i32]| {
        let set = core::HealthStatusSet { statuses: statuses.to_vec() };
        let config = CommonLbConfig { override_host_status: Some(set), ..Default::default() };
        let parsed = parse(&pb::Cluster { common_lb_config: Some(config), ..eds("c") }).unwrap();
        let OverrideHostStatuses { unknown, healthy, draining } = parsed.override_host_statuses;
        (unknown, healthy, draining)
    };
    assert_eq!(with(&[]), (false, false, false));
    assert_eq!(with(&[HealthStatus::Draining as i32, HealthStatus::Unhealthy as i32, 77]), (false, false, true));
    assert_eq!(with(&[0, 1, 3]), (true, true, true));
    // A common_lb_config without the field is as good as none.
    let without = pb::Cluster { common_lb_config: Some(CommonLbConfig::default()), ..eds("c") };
    assert!(parse(&without).unwrap().override_host_statuses.healthy);
}

#[test]
fn r77_idle_timeout_comes_from_http_protocol_options() {
    let parsed = parse(&upstream_config(Some(pack(&idle_options(Some(seconds(5))))))).unwrap();
    assert_eq!(parsed.idle_timeout, Duration::from_secs(5));
    let unset = parse(&upstream_config(Some(pack(&HttpProtocolOptions::default())))).unwrap();
    assert_eq!(unset.idle_timeout, Duration::from_secs(3600));
}

#[test]
fn r77_another_upstream_config_is_rejected() {
    assert_faults(&upstream_config(None), &["upstream_config.typed_config: must be set"]);
    assert_faults(
        &upstream_config(Some(pack(&AggregateConfig::default()))),
        &["upstream_config.typed_config.type_url: is envoy.extensions.clusters.aggregate.v3.ClusterConfig: \
           expected envoy.extensions.upstreams.http.v3.HttpProtocolOptions"],
    );
    let faults = faults_of(&upstream_config(Some(pack(&idle_options(Some(seconds(-5)))))));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("upstream_config.typed_config.common_http_protocol_options.idle_timeout: duration"));
}

#[test]
fn r78_lrs_goes_to_the_server_that_sent_the_cluster() {
    let pb = pb::Cluster { lrs_server: self_source(), ..eds("c") };
    let bootstrap = bootstrap();
    for server in &bootstrap.servers {
        let parsed = Cluster::parse(&pb, ParseContext { bootstrap: &bootstrap, server }).unwrap();
        assert_eq!(parsed.lrs_server.as_ref(), Some(server), "C-68: always one of the bootstrap");
    }
    // C-68: no other server can be named.
    assert_faults(&pb::Cluster { lrs_server: ads_source(), ..eds("c") }, &["lrs_server: must be self"]);
    let unset = Some(core::ConfigSource::default());
    assert_faults(&pb::Cluster { lrs_server: unset, ..eds("c") }, &["lrs_server: must be self"]);
}

#[test]
fn r79_unknown_metrics_are_ignored() {
    let metrics = ["cpu_utilization", "named_metrics.foo", "other", "named_metrics.", "named_metrics.*", "mem"];
    let lrs_report_endpoint_metrics = metrics.map(str::to_owned).into();
    let parsed = parse(&pb::Cluster { lrs_report_endpoint_metrics, ..eds("c") }).unwrap();
    assert_eq!(parsed.lrs_report_endpoint_metrics, ["cpu_utilization", "named_metrics.foo", "named_metrics.*"]);
}

#[test]
fn r80_metadata_of_a_known_type_must_be_valid() {
    let with = |entries: Vec<(&str, Any)>| {
        let typed_filter_metadata = entries.into_iter().map(|(key, any)| (key.to_owned(), any)).collect();
        let metadata = core::Metadata { typed_filter_metadata, ..Default::default() };
        pb::Cluster { metadata: Some(metadata), ..eds("c") }
    };
    let audience = |url: &str| pack(&Audience { url: url.into(), ..Default::default() });
    let unknown = Any { type_url: "t/some.Type".into(), value: vec![0xff] };
    assert!(parse(&with(vec![("a", audience("https://x")), ("b", unknown)])).is_ok());
    assert_faults(
        &with(vec![("b", audience("")), ("a", Any::default()), ("c", pack(&core::Address::default()))]),
        &[
            "metadata.typed_filter_metadata[a].type_url: \
             \"\" is not a type URL: expected a prefix, a slash and a message name",
            "metadata.typed_filter_metadata[b].url: must not be empty",
            "metadata.typed_filter_metadata[c]: must be set",
        ],
    );
}

#[test]
fn r83_other_fields_are_ignored() {
    let pb = pb::Cluster {
        connect_timeout: Some(seconds(-1)),
        health_checks: vec![core::HealthCheck::default()],
        transport_socket_matches: vec![Default::default()],
        alt_stat_name: "other".into(),
        ..eds("c")
    };
    assert_eq!(parse(&pb).unwrap(), parse(&eds("c")).unwrap());
}

#[test]
fn r2_one_error_names_every_fault() {
    let pb = pb::Cluster {
        lb_policy: LegacyPolicy::Maglev as i32,
        lrs_server: ads_source(),
        transport_socket: Some(core::TransportSocket::default()),
        ..eds_with("c", "", None)
    };
    assert_faults(
        &pb,
        &[
            "eds_cluster_config.eds_config: must be set to ads or self",
            "lb_policy: MAGLEV is not supported: expected ROUND_ROBIN, RING_HASH or LEAST_REQUEST",
            "transport_socket.typed_config: must be set",
            "lrs_server: must be self",
        ],
    );
}

#[test]
fn r111_decoding_tells_the_name_of_the_resource() {
    let bootstrap = bootstrap();
    let cx = ParseContext { bootstrap: &bootstrap, server: &bootstrap.servers[0] };
    let decoded = decode(ResourceType::Cluster, &eds("c").encode_to_vec().into(), cx);
    assert_eq!(decoded.name.as_deref(), Some("c"));
    assert!(matches!(decoded.result, Ok(Resource::Cluster(_))));
    let assignment = pb_endpoint::ClusterLoadAssignment { cluster_name: "e".into(), ..Default::default() };
    let decoded = decode(ResourceType::Endpoints, &assignment.encode_to_vec().into(), cx);
    assert_eq!(decoded.name.as_deref(), Some("e"));
    assert!(matches!(decoded.result, Ok(Resource::Endpoints(_))));
}

proptest! {
    #![proptest_config(Config { rng_seed: RngSeed::Fixed(27), failure_persistence: None, cases: 512, ..Config::default() })]

    #[test]
    fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_bytes(&bytes);
    }

    #[test]
    fn mutated_messages_are_parsed_without_panic(
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
    ) {
        for sample in [sample(), aggregate(["a", "b"]), dns("db", 80)] {
            let mut bytes = sample.encode_to_vec();
            for (place, value) in &places {
                let at = place.index(bytes.len());
                bytes[at] = *value;
            }
            check_bytes(&bytes);
            check_bytes(&bytes[..end.index(bytes.len())]);
        }
    }
}

/// Whatever is accepted keeps what the rest of the house relies on.
fn check_bytes(bytes: &[u8]) {
    let Ok(pb) = pb::Cluster::decode(bytes) else { return };
    let Ok(parsed) = parse(&pb) else { return };
    match &parsed.kind {
        ClusterKind::Eds { service_name } => assert_ne!(service_name.as_deref(), Some("")),
        ClusterKind::LogicalDns { host, .. } => assert!(!host.is_empty()),
        ClusterKind::Aggregate { clusters } => assert!((1..=1000).contains(&clusters.len())),
    }
    if let Some(outliers) = &parsed.outlier_detection {
        assert!(outliers.max_ejection_percent <= 100);
    }
}

/// Uses every part that is parsed.
fn sample() -> pb::Cluster {
    let round_robin = policy(pack(&RoundRobin::default()));
    let wrr = WrrLocality { endpoint_picking_policy: Some(pb::LoadBalancingPolicy { policies: vec![round_robin] }) };
    let context = pb_tls::CertificateValidationContext {
        ca_certificate_provider_instance: Some(pb_tls::CertificateProviderPluginInstance {
            instance_name: "known".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let tls = pb_tls::UpstreamTlsContext {
        common_tls_context: Some(pb_tls::CommonTlsContext {
            validation_context_type: Some(pb_tls::common_tls_context::ValidationContextType::ValidationContext(
                context,
            )),
            ..Default::default()
        }),
        ..Default::default()
    };
    pb::Cluster {
        load_balancing_policy: Some(pb::LoadBalancingPolicy { policies: vec![policy(pack(&wrr))] }),
        outlier_detection: Some(pb::OutlierDetection { interval: Some(seconds(1)), ..Default::default() }),
        lrs_server: self_source(),
        transport_socket: Some(core::TransportSocket {
            name: "tls".into(),
            config_type: Some(ConfigType::TypedConfig(pack(&tls))),
        }),
        ..upstream_config(Some(pack(&idle_options(Some(seconds(5))))))
    }
}

#[track_caller]
fn assert_faults(pb: &pb::Cluster, expected: &[&str]) {
    assert_eq!(faults_of(pb), expected);
}

#[track_caller]
pub(in crate::resource) fn faults_of(pb: &pb::Cluster) -> Vec<String> {
    let invalid = parse(pb).unwrap_err();
    invalid.faults().iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
}

pub(in crate::resource) fn parse(pb: &pb::Cluster) -> Result<Cluster, Invalid> {
    let bootstrap = bootstrap();
    Cluster::parse(pb, ParseContext { bootstrap: &bootstrap, server: &bootstrap.servers[0] })
}

/// Two servers, and the certificate provider instance `known`.
fn bootstrap() -> Bootstrap {
    let server = |uri: &str| {
        Arc::new(ServerConfig {
            server_uri: uri.into(),
            channel_creds: ChannelCreds::Insecure,
            call_creds: vec![],
            features: ServerFeatures::default(),
        })
    };
    let files = CertificateFiles {
        identity: None,
        ca_certificate_file: Some("ca.pem".into()),
        spiffe_trust_bundle_map_file: None,
        refresh_interval: Duration::from_secs(600),
    };
    Bootstrap {
        servers: vec![server("primary:443"), server("fallback:443")],
        node: Node::default(),
        authorities: Default::default(),
        client_default_listener_resource_name_template: "%s".into(),
        server_listener_resource_name_template: None,
        certificate_providers: [("known".to_owned(), CertificateProviderConfig::FileWatcher(files))].into(),
        last_good: None,
        audit_loggers: Default::default(),
        guards: Guards::default(),
    }
}

/// A valid EDS cluster.
pub(in crate::resource) fn eds(name: &str) -> pb::Cluster {
    eds_with(name, "", ads_source())
}

fn eds_with(name: &str, service_name: &str, eds_config: Option<core::ConfigSource>) -> pb::Cluster {
    pb::Cluster {
        name: name.into(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(EdsClusterConfig { eds_config, service_name: service_name.into() }),
        ..Default::default()
    }
}

fn ads_source() -> Option<core::ConfigSource> {
    let ads = ConfigSourceSpecifier::Ads(core::AggregatedConfigSource::default());
    Some(core::ConfigSource { config_source_specifier: Some(ads), ..Default::default() })
}

fn self_source() -> Option<core::ConfigSource> {
    let this = ConfigSourceSpecifier::Self_(core::SelfConfigSource::default());
    Some(core::ConfigSource { config_source_specifier: Some(this), ..Default::default() })
}

pub(in crate::resource) fn dns(host: &str, port: u32) -> pb::Cluster {
    dns_with(vec![dns_locality(host, port)])
}

fn dns_with(endpoints: Vec<pb_endpoint::LocalityLbEndpoints>) -> pb::Cluster {
    pb::Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::LogicalDns as i32)),
        load_assignment: Some(pb_endpoint::ClusterLoadAssignment { endpoints, ..Default::default() }),
        ..Default::default()
    }
}

fn dns_locality(host: &str, port: u32) -> pb_endpoint::LocalityLbEndpoints {
    locality_at(address::Address::SocketAddress(core::SocketAddress {
        address: host.into(),
        port_specifier: Some(PortSpecifier::PortValue(port)),
        ..Default::default()
    }))
}

fn locality_at(address: address::Address) -> pb_endpoint::LocalityLbEndpoints {
    let address = Some(core::Address { address: Some(address) });
    let endpoint = HostIdentifier::Endpoint(pb_endpoint::Endpoint { address, ..Default::default() });
    pb_endpoint::LocalityLbEndpoints {
        lb_endpoints: vec![LbEndpoint { host_identifier: Some(endpoint), ..Default::default() }],
        ..Default::default()
    }
}

fn aggregate<S: Into<String>>(clusters: impl IntoIterator<Item = S>) -> pb::Cluster {
    let config = AggregateConfig { clusters: clusters.into_iter().map(Into::into).collect() };
    pb::Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
            name: "envoy.clusters.aggregate".into(),
            typed_config: Some(pack(&config)),
        })),
        ..Default::default()
    }
}

fn upstream_config(typed_config: Option<Any>) -> pb::Cluster {
    pb::Cluster { upstream_config: Some(TypedExtensionConfig { name: "u".into(), typed_config }), ..eds("c") }
}

fn idle_options(idle_timeout: Option<PbDuration>) -> HttpProtocolOptions {
    let common_http_protocol_options = Some(core::HttpProtocolOptions { idle_timeout, ..Default::default() });
    HttpProtocolOptions { common_http_protocol_options, ..Default::default() }
}

fn outliers(outlier_detection: pb::OutlierDetection) -> Option<OutlierDetection> {
    parse(&pb::Cluster { outlier_detection: Some(outlier_detection), ..eds("c") }).unwrap().outlier_detection
}

fn seconds(seconds: i64) -> PbDuration {
    PbDuration { seconds, nanos: 0 }
}

pub(in crate::resource) fn policy(any: Any) -> pb::load_balancing_policy::Policy {
    let config = TypedExtensionConfig { name: "p".into(), typed_config: Some(any) };
    pb::load_balancing_policy::Policy { typed_extension_config: Some(config) }
}

pub(in crate::resource) fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}
