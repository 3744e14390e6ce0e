//! Tests of route configurations: what is accepted, what is refused and where.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{RuntimeFractionalPercent, TypedExtensionConfig};
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{self, PolicySpecifier};
use envoy_types::pb::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HashPolicy as PbHashPolicy, HostRewriteSpecifier, MaxStreamDuration,
};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher};
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::google::protobuf::{Any, BoolValue, Duration as PbDuration, UInt32Value};
use proptest::prelude::*;
use prost::Message;

use super::super::{Resource, ResourceType, decode};
use super::fixture::{
    TestSource, any as any_of, millis, paths, route, route_config, seconds, to_cluster, uint32, virtual_host,
};
use super::retry::RetryPolicy;
use super::*;
use crate::Code;

// === the whole ===

#[test]
fn a_simple_configuration_is_accepted() {
    // R-1, R-133
    let parsed = parse(&route_config(vec![route(to_cluster("c"))])).unwrap();
    let expected = VirtualHost {
        name: "host".to_owned(),
        domains: vec![DomainPattern::Any],
        routes: vec![Route {
            path: PathMatcher::Prefix { value: String::new(), case_sensitive: true },
            headers: Vec::new(),
            fraction: None,
            action: RouteAction::Forward(ForwardAction {
                target: ClusterTarget::Cluster("c".to_owned()),
                max_stream_duration: None,
                retry: None,
                hash_policies: Vec::new(),
                auto_host_rewrite: false,
            }),
            overrides: FilterOverrides::new(),
        }],
        overrides: FilterOverrides::new(),
    };
    assert_eq!(parsed.virtual_hosts, [Arc::new(expected)]);
}

#[test]
fn the_name_comes_from_the_message() {
    // R-12 for routes: it is compared by those who asked.
    let source = TestSource::new(false);
    let bytes = route_config(vec![]).encode_to_vec();
    let decoded = decode(ResourceType::RouteConfig, &bytes.into(), source.context());
    assert_eq!(decoded.name.as_deref(), Some("routes"));
    assert!(matches!(decoded.result, Ok(Resource::RouteConfig(_))));
}

#[test]
fn nothing_at_all_is_a_configuration() {
    // R-37: without virtual hosts nothing matches, which is not the resource's fault.
    assert_eq!(parse(&pb::RouteConfiguration::default()).unwrap().virtual_hosts, []);
}

#[test]
fn every_fault_of_every_virtual_host_is_reported() {
    // R-2, R-37
    let bad = pb::Route { r#match: None, ..route(to_cluster("")) };
    let config = pb::RouteConfiguration {
        virtual_hosts: vec![
            virtual_host(&["a"], vec![route(to_cluster("c")), bad.clone()]),
            virtual_host(&["", "b"], vec![bad]),
        ],
        ..Default::default()
    };
    assert_eq!(
        paths(parse(&config)),
        [
            "virtual_hosts[0].routes[1].match",
            "virtual_hosts[0].routes[1].route.cluster",
            "virtual_hosts[1].domains[0]",
            "virtual_hosts[1].routes[0].match",
            "virtual_hosts[1].routes[0].route.cluster",
        ]
    );
}

#[test]
fn fields_that_grpc_does_not_use_are_ignored() {
    // R-1, R-46, R-55, R-59
    let action = pb::RouteAction {
        prefix_rewrite: "/x".to_owned(),
        timeout: Some(seconds(-1)),
        idle_timeout: Some(seconds(-1)),
        request_mirror_policies: vec![Default::default()],
        retry_policy: Some(pb::RetryPolicy {
            retry_on: "internal".to_owned(),
            per_try_timeout: Some(seconds(-1)),
            retriable_status_codes: vec![7],
            host_selection_retry_max_attempts: -1,
            retriable_headers: vec![pb::HeaderMatcher::default()],
            ..Default::default()
        }),
        ..to_cluster("c")
    };
    let mut odd = route(action);
    let matcher = odd.r#match.as_mut().unwrap();
    matcher.grpc = Some(Default::default());
    matcher.tls_context = Some(Default::default());
    matcher.dynamic_metadata = vec![Default::default()];
    let mut config = route_config(vec![odd]);
    config.virtual_hosts[0].rate_limits = vec![Default::default()];
    config.virtual_hosts[0].virtual_clusters = vec![Default::default()];
    assert_eq!(parse(&config).unwrap().virtual_hosts[0].routes.len(), 1);
}

// === domains ===

#[test]
fn domains_are_exact_suffix_prefix_or_any() {
    // R-38
    let domains = ["A.Example:80", "*.Example", "A.*", "*", "*-x"];
    let config = pb::RouteConfiguration { virtual_hosts: vec![virtual_host(&domains, vec![])], ..Default::default() };
    assert_eq!(
        parse(&config).unwrap().virtual_hosts[0].domains,
        [
            DomainPattern::Exact("a.example:80".to_owned()),
            DomainPattern::Suffix(".example".to_owned()),
            DomainPattern::Prefix("a.".to_owned()),
            DomainPattern::Any,
            DomainPattern::Suffix("-x".to_owned()),
        ]
    );
}

#[test]
fn bad_domains_are_refused() {
    // R-38
    for domain in ["", "a*b", "**", "*a*", "a**", "**a", "*a*b"] {
        let config =
            pb::RouteConfiguration { virtual_hosts: vec![virtual_host(&["a", domain], vec![])], ..Default::default() };
        assert_eq!(paths(parse(&config)), ["virtual_hosts[0].domains[1]"], "{domain:?}");
    }
    let config = pb::RouteConfiguration { virtual_hosts: vec![virtual_host(&[], vec![])], ..Default::default() };
    assert_eq!(paths(parse(&config)), ["virtual_hosts[0].domains"]);
}

#[test]
fn the_best_domain_decides() {
    // L-31
    let hosts: &[(&str, &[&str])] = &[
        ("any", &["*"]),
        ("prefix", &["foo.*", "x"]),
        ("suffix", &["*.com"]),
        ("longer suffix", &["*.bar.com", "y"]),
        ("longer prefix", &["foo.bar.*"]),
        ("exact", &["z", "Foo.Bar.com"]),
        ("exact again", &["foo.bar.com"]),
        ("any again", &["*"]),
        ("suffix again", &["*.com"]),
    ];
    let virtual_hosts = hosts
        .iter()
        .map(|(name, domains)| pb::VirtualHost { name: (*name).to_owned(), ..virtual_host(domains, vec![]) });
    let config = pb::RouteConfiguration { virtual_hosts: virtual_hosts.collect(), ..Default::default() };
    let config = parse(&config).unwrap();
    for (authority, expected) in [
        ("foo.bar.com", "exact"),
        ("FOO.bar.COM", "exact"),
        ("foo.bar.com:80", "longer prefix"),
        ("x.bar.com", "longer suffix"),
        (".bar.com", "suffix"),
        ("foo.com", "suffix"),
        ("foo.bar.", "prefix"),
        ("foo.bar.net", "longer prefix"),
        ("foo.net", "prefix"),
        ("foo.", "any"),
        ("other", "any"),
        ("", "any"),
        ("x", "prefix"),
        ("Y", "longer suffix"),
        ("z", "exact"),
    ] {
        assert_eq!(config.virtual_host(authority).unwrap().name, expected, "{authority:?}");
    }
    let config = RouteConfig { virtual_hosts: config.virtual_hosts[1..7].to_vec() };
    assert!(config.virtual_host("other").is_none());
}

// === matches ===

#[test]
fn a_route_needs_a_match_with_a_path() {
    // R-41, R-43
    let unmatched = pb::Route { r#match: None, ..route(to_cluster("c")) };
    assert_eq!(route_faults(unmatched), ["match"]);
    let pathless = with_match(pb::RouteMatch::default());
    assert_eq!(route_faults(pathless), ["match"]);
    let separated = PathSpecifier::PathSeparatedPrefix("/a".to_owned());
    assert_eq!(route_faults(with_path(separated)), ["match.path_separated_prefix"]);
    let connect = PathSpecifier::ConnectMatcher(Default::default());
    assert_eq!(route_faults(with_path(connect)), ["match.connect_matcher"]);
    let regex = PathSpecifier::SafeRegex(RegexMatcher { regex: "a)|(b".to_owned(), engine_type: None });
    assert_eq!(route_faults(with_path(regex)), ["match.safe_regex.regex"]);
}

#[test]
fn paths_of_all_three_kinds_are_accepted() {
    // R-43, R-45
    let regex = RegexMatcher { regex: "/s/.*".to_owned(), engine_type: None };
    let insensitive = pb::RouteMatch {
        path_specifier: Some(PathSpecifier::Path("/S/m".to_owned())),
        case_sensitive: Some(BoolValue { value: false }),
        ..Default::default()
    };
    let routes = vec![
        with_path(PathSpecifier::Prefix("/s/".to_owned())),
        with_match(insensitive),
        with_path(PathSpecifier::SafeRegex(regex)),
    ];
    let routes = parse_routes(routes).unwrap();
    assert_eq!(routes[0].path, PathMatcher::Prefix { value: "/s/".to_owned(), case_sensitive: true });
    assert_eq!(routes[1].path, PathMatcher::Exact { value: "/S/m".to_owned(), case_sensitive: false });
    assert!(routes[2].path.matches("/s/m") && !routes[2].path.matches("x/s/m"));
}

#[test]
fn a_route_with_query_parameters_is_ignored() {
    // R-42: as a whole, whatever else it holds.
    let matcher = pb::RouteMatch { query_parameters: vec![Default::default()], ..Default::default() };
    let ignored = pb::Route { action: Some(Action::Route(to_cluster(""))), ..with_match(matcher) };
    assert_eq!(clusters(vec![ignored, route(to_cluster("c"))]), ["c"]);
}

#[test]
fn a_route_that_no_method_can_match_is_ignored() {
    // R-44
    let prefix = |path: &str| with_path(PathSpecifier::Prefix(path.to_owned()));
    let exact = |path: &str| with_path(PathSpecifier::Path(path.to_owned()));
    for ignored in [prefix("s"), prefix("/s/m/x"), prefix("//"), exact(""), exact("s/m"), exact("/s"), exact("//m")] {
        assert_eq!(parse_routes(vec![ignored]).unwrap(), []);
    }
    assert_eq!(parse_routes(vec![prefix(""), prefix("/"), prefix("/s/m"), exact("/s/m")]).unwrap().len(), 4);
}

#[test]
#[allow(deprecated)]
fn header_matchers_are_kept_and_checked() {
    // R-46, R-10
    let present = pb::header_matcher::HeaderMatchSpecifier::PresentMatch(true);
    let good = pb::HeaderMatcher {
        name: "X-A".to_owned(),
        invert_match: true,
        header_match_specifier: Some(present),
        ..Default::default()
    };
    let matcher = |headers| pb::RouteMatch { headers, ..any_path() };
    let routes = parse_routes(vec![with_match(matcher(vec![good.clone()]))]).unwrap();
    assert_eq!(routes[0].headers.len(), 1);
    assert_eq!((routes[0].headers[0].name.as_str(), routes[0].headers[0].invert), ("x-a", true));
    let bad = pb::HeaderMatcher { header_match_specifier: None, ..good.clone() };
    assert_eq!(route_faults(with_match(matcher(vec![good, bad]))), ["match.headers[1]"]);
}

#[test]
fn a_runtime_fraction_is_in_parts_of_a_million() {
    // R-46, R-4
    let fraction = |numerator, denominator| {
        let default_value = Some(FractionalPercent { numerator, denominator });
        let runtime_key = "ignored".to_owned();
        let fraction = RuntimeFractionalPercent { default_value, runtime_key };
        with_match(pb::RouteMatch { runtime_fraction: Some(fraction), ..any_path() })
    };
    for (numerator, denominator, expected) in [
        (0, 0, 0),
        (25, 0, 250_000),
        (25, 1, 2_500),
        (25, 2, 25),
        (101, 0, 1_000_000),
        (u32::MAX, 0, 1_000_000),
        (u32::MAX, 2, 1_000_000),
    ] {
        assert_eq!(parse_routes(vec![fraction(numerator, denominator)]).unwrap()[0].fraction, Some(expected));
    }
    assert_eq!(route_faults(fraction(1, 3)), ["match.runtime_fraction.default_value.denominator"]);
    let empty = pb::RouteMatch { runtime_fraction: Some(Default::default()), ..any_path() };
    assert_eq!(route_faults(with_match(empty)), ["match.runtime_fraction.default_value"]);
}

// === actions ===

#[test]
fn other_actions_are_kept_for_the_rpc_to_fail() {
    // R-47, R-48
    let with_action = |action| pb::Route { action, ..route(to_cluster("c")) };
    let routes = parse_routes(vec![
        with_action(Some(Action::NonForwardingAction(Default::default()))),
        with_action(Some(Action::Redirect(Default::default()))),
        with_action(Some(Action::DirectResponse(Default::default()))),
        with_action(Some(Action::FilterAction(Default::default()))),
        with_action(None),
    ])
    .unwrap();
    assert_eq!(
        routes.into_iter().map(|route| route.action).collect::<Vec<_>>(),
        [
            RouteAction::NonForwarding,
            RouteAction::Unsupported("redirect"),
            RouteAction::Unsupported("direct_response"),
            RouteAction::Unsupported("filter_action"),
            RouteAction::Unsupported("none"),
        ]
    );
}

#[test]
fn a_route_without_a_usable_cluster_specifier_is_ignored() {
    // R-49
    let with = |specifier| route(pb::RouteAction { cluster_specifier: specifier, ..Default::default() });
    let routes = vec![
        with(None),
        with(Some(ClusterSpecifier::ClusterHeader("x".to_owned()))),
        with(Some(ClusterSpecifier::InlineClusterSpecifierPlugin(Default::default()))),
        route(to_cluster("c")),
    ];
    assert_eq!(clusters(routes), ["c"]);
    assert_eq!(route_faults(route(to_cluster(""))), ["route.cluster"]);
}

#[test]
#[allow(deprecated)]
fn weighted_clusters_are_kept_without_those_of_no_weight() {
    // R-50
    let weighted = pb::WeightedCluster {
        clusters: vec![choice("a", Some(1)), choice("b", Some(0)), choice("c", Some(u32::MAX - 1))],
        total_weight: Some(UInt32Value { value: 7 }),
        ..Default::default()
    };
    let routes = parse_routes(vec![to_weighted(weighted)]).unwrap();
    let ClusterTarget::Weighted(choices) = &forward(&routes[0]).target else { panic!("{routes:?}") };
    let choices: Vec<_> = choices.iter().map(|choice| (choice.name.as_str(), choice.weight)).collect();
    assert_eq!(choices, [("a", 1), ("c", u32::MAX - 1)]);
}

#[test]
fn bad_weights_are_refused() {
    // R-50
    let faults = |clusters| route_faults(to_weighted(pb::WeightedCluster { clusters, ..Default::default() }));
    assert_eq!(
        faults(vec![choice("", Some(1)), choice("b", None), choice("", None)]),
        [
            "route.weighted_clusters.clusters[0].name",
            "route.weighted_clusters.clusters[1].weight",
            "route.weighted_clusters.clusters[2].name",
            "route.weighted_clusters.clusters[2].weight",
        ]
    );
    assert_eq!(faults(vec![]), ["route.weighted_clusters"]);
    assert_eq!(faults(vec![choice("a", Some(0))]), ["route.weighted_clusters"]);
    assert_eq!(faults(vec![choice("a", Some(u32::MAX)), choice("b", Some(1))]), ["route.weighted_clusters"]);
}

#[test]
fn the_clusters_of_a_virtual_host_are_listed() {
    // L-5
    let weighted =
        pb::WeightedCluster { clusters: vec![choice("b", Some(1)), choice("a", Some(2))], ..Default::default() };
    let unsupported = pb::Route { action: None, ..route(to_cluster("x")) };
    let routes = vec![route(to_cluster("a")), unsupported, to_weighted(weighted), route(to_cluster("c"))];
    assert_eq!(clusters(routes), ["a", "b", "a", "c"]);
}

#[test]
fn routes_with_an_optional_unknown_plugin_are_ignored() {
    // R-51: we know no plugin, and RLS is none either.
    for plugin_type in ["example.Plugin", "grpc.lookup.v1.RouteLookupClusterSpecifier"] {
        let config = with_plugins(vec![plugin("p", plugin_type, true)], "p");
        let parsed = parse(&config).unwrap();
        assert_eq!(parsed.virtual_hosts[0].clusters().collect::<Vec<_>>(), ["c"]);
        let config = with_plugins(vec![plugin("p", plugin_type, false)], "p");
        assert_eq!(paths(parse(&config)), ["cluster_specifier_plugins[0].extension.typed_config"]);
    }
}

#[test]
fn bad_plugins_are_refused() {
    // R-51
    let config = with_plugins(vec![plugin("p", "example.Plugin", true)], "q");
    assert_eq!(paths(parse(&config)), ["virtual_hosts[0].routes[0].route.cluster_specifier_plugin"]);
    let config = with_plugins(vec![plugin("p", "a.B", true), plugin("p", "a.B", true)], "p");
    assert_eq!(paths(parse(&config)), ["cluster_specifier_plugins[1].extension.name"]);
    let untyped = TypedExtensionConfig { name: "p".to_owned(), typed_config: None };
    for (extension, path) in [(None, ""), (Some(untyped), ".typed_config")] {
        let plugins = vec![pb::ClusterSpecifierPlugin { extension, is_optional: true }];
        let config = pb::RouteConfiguration { cluster_specifier_plugins: plugins, ..Default::default() };
        assert_eq!(paths(parse(&config)), [format!("cluster_specifier_plugins[0].extension{path}")]);
    }
}

#[test]
fn the_grpc_timeout_limit_comes_before_the_stream_limit() {
    // R-52
    let duration = |grpc_timeout_header_max, max_stream_duration| MaxStreamDuration {
        grpc_timeout_header_max,
        max_stream_duration,
        grpc_timeout_header_offset: Some(seconds(-1)),
    };
    let action = |pb| route(pb::RouteAction { max_stream_duration: Some(pb), ..to_cluster("c") });
    for (pb, expected) in [
        (duration(None, None), None),
        (duration(None, Some(seconds(2))), Some(2)),
        (duration(Some(seconds(1)), Some(seconds(2))), Some(1)),
        (duration(Some(seconds(0)), Some(seconds(2))), Some(0)),
    ] {
        let routes = parse_routes(vec![action(pb)]).unwrap();
        assert_eq!(forward(&routes[0]).max_stream_duration, expected.map(Duration::from_secs));
    }
    assert_eq!(
        route_faults(action(duration(Some(seconds(-1)), None))),
        ["route.max_stream_duration.grpc_timeout_header_max"]
    );
    assert_eq!(
        route_faults(action(duration(None, Some(seconds(315_576_000_001))))),
        ["route.max_stream_duration.max_stream_duration"]
    );
}

#[test]
fn durations_have_bounds() {
    // R-3
    let with = |seconds, nanos| {
        let max_stream_duration = Some(PbDuration { seconds, nanos });
        let pb = MaxStreamDuration { max_stream_duration, ..Default::default() };
        route(pb::RouteAction { max_stream_duration: Some(pb), ..to_cluster("c") })
    };
    for (seconds, nanos) in [(0, 0), (0, 999_999_999), (315_576_000_000, 999_999_999)] {
        let routes = parse_routes(vec![with(seconds, nanos)]).unwrap();
        let expected = Duration::new(seconds.unsigned_abs(), nanos.unsigned_abs());
        assert_eq!(forward(&routes[0]).max_stream_duration, Some(expected));
    }
    for (seconds, nanos) in [(-1, 0), (0, -1), (315_576_000_001, 0), (0, 1_000_000_000), (i64::MIN, i32::MIN)] {
        assert_eq!(route_faults(with(seconds, nanos)), ["route.max_stream_duration.max_stream_duration"]);
    }
}

#[test]
fn hash_policies_of_supported_kinds_are_kept() {
    // R-53
    let rewrite = RegexMatchAndSubstitute {
        pattern: Some(RegexMatcher { regex: "(a)b".to_owned(), engine_type: None }),
        substitution: r"\1".to_owned(),
    };
    let state = |key: &str| PolicySpecifier::FilterState(hash_policy::FilterState { key: key.to_owned() });
    let policies = vec![
        hash(header("X-A", None), true),
        hash(header("b", Some(rewrite)), false),
        hash(state("io.grpc.channel_id"), true),
        hash(state("other"), false),
        hash(PolicySpecifier::Cookie(Default::default()), false),
        hash(PolicySpecifier::ConnectionProperties(Default::default()), false),
        hash(PolicySpecifier::QueryParameter(Default::default()), false),
        PbHashPolicy::default(),
    ];
    let routes = parse_routes(vec![route(pb::RouteAction { hash_policy: policies, ..to_cluster("c") })]).unwrap();
    let policies = &forward(&routes[0]).hash_policies;
    assert_eq!(policies.len(), 3);
    assert_eq!(
        policies[0],
        HashPolicy { source: HashSource::Header { name: "x-a".to_owned(), rewrite: None }, terminal: true }
    );
    let HashSource::Header { name, rewrite: Some(rewrite) } = &policies[1].source else { panic!("{policies:?}") };
    assert_eq!((name.as_str(), rewrite.replace("xabab").as_ref()), ("b", "xaa"));
    assert_eq!(policies[2], HashPolicy { source: HashSource::ChannelId, terminal: true });
}

#[test]
fn bad_hash_policies_are_refused() {
    // R-53
    let rewrite = |regex: Option<&str>, substitution: &str| {
        let pattern = regex.map(|regex| RegexMatcher { regex: regex.to_owned(), engine_type: None });
        Some(RegexMatchAndSubstitute { pattern, substitution: substitution.to_owned() })
    };
    for (name, rewrite, path) in [
        ("", None, "header_name"),
        ("a", rewrite(None, ""), "regex_rewrite.pattern"),
        ("a", rewrite(Some("("), ""), "regex_rewrite.pattern.regex"),
        ("a", rewrite(Some("a"), r"\1"), "regex_rewrite.substitution"),
    ] {
        let hash_policy = vec![hash(header("ok", None), false), hash(header(name, rewrite), false)];
        let action = pb::RouteAction { hash_policy, ..to_cluster("c") };
        assert_eq!(route_faults(route(action)), [format!("route.hash_policy[1].header.{path}")]);
    }
}

#[test]
fn the_authority_is_rewritten_for_trusted_servers_only() {
    // R-54
    let rewrite = |specifier| pb::RouteAction { host_rewrite_specifier: Some(specifier), ..to_cluster("c") };
    let auto = |value| rewrite(HostRewriteSpecifier::AutoHostRewrite(BoolValue { value }));
    let literal = rewrite(HostRewriteSpecifier::HostRewriteLiteral("h".to_owned()));
    let rewrites = |source: &TestSource, action: pb::RouteAction| {
        let parsed = RouteConfig::parse(&route_config(vec![route(action)]), source.context()).unwrap();
        forward(&parsed.virtual_hosts[0].routes[0]).auto_host_rewrite
    };
    let mut trusted = TestSource::new(true);
    assert!(rewrites(&trusted, auto(true)));
    assert!(!rewrites(&trusted, auto(false)));
    assert!(!rewrites(&trusted, literal));
    assert!(!rewrites(&trusted, to_cluster("c")));
    assert!(!rewrites(&TestSource::new(false), auto(true)));
    trusted.bootstrap.guards.authority_rewrite = false;
    assert!(!rewrites(&trusted, auto(true)));
}

// === retries ===

#[test]
fn retry_conditions_are_status_codes() {
    // R-56, R-57, R-58
    let policy = |retry_on: &str| {
        let pb = pb::RetryPolicy { retry_on: retry_on.to_owned(), ..Default::default() };
        let mut faults = Faults::new();
        let policy = RetryPolicy::parse(&pb, &mut faults);
        faults.finish(policy).unwrap()
    };
    let all = "unavailable,cancelled, internal ,deadline-exceeded,5xx,resource-exhausted,cancelled";
    assert_eq!(
        policy(all).unwrap(),
        RetryPolicy {
            retry_on: [1, 4, 8, 13, 14].into_iter().filter_map(Code::from_number).collect(),
            num_retries: 1,
            base_interval: Duration::from_millis(25),
            max_interval: Duration::from_millis(250),
        }
    );
    assert_eq!(policy("unavailable").unwrap().retry_on, [Code::Unavailable]);
    for nothing in ["", "5xx,gateway-error", "Unavailable", ","] {
        assert_eq!(policy(nothing), None, "{nothing:?}");
    }
}

#[test]
fn retry_backoff_has_defaults_and_a_floor() {
    // R-58
    let micros = |micros: i32| PbDuration { seconds: 0, nanos: micros * 1000 };
    for (base, max, expected_base, expected_max) in [
        (millis(10), None, 10_000, 100_000),
        (millis(10), Some(millis(10)), 10_000, 10_000),
        (millis(10), Some(millis(20)), 10_000, 20_000),
        (micros(1), None, 1_000, 10_000),
        (micros(1), Some(micros(2)), 1_000, 1_000),
        (micros(1), Some(millis(5)), 1_000, 5_000),
    ] {
        let policy = parse_retry(None, Some((Some(base), max))).unwrap();
        assert_eq!(policy.base_interval, Duration::from_micros(expected_base));
        assert_eq!(policy.max_interval, Duration::from_micros(expected_max));
    }
    assert_eq!(parse_retry(uint32(7), None).unwrap().num_retries, 7);
    let longest = seconds(315_576_000_000);
    assert!(
        parse_retry(None, Some((Some(longest), None))).unwrap().max_interval > Duration::from_secs(315_576_000_000)
    );
}

#[test]
fn bad_retry_policies_are_refused() {
    // R-57, R-58
    let faults = |num_retries, back_off| {
        let action = pb::RouteAction { retry_policy: Some(retry(num_retries, back_off)), ..to_cluster("c") };
        route_faults(route(action))
    };
    assert_eq!(faults(uint32(0), None), ["route.retry_policy.num_retries"]);
    for (base, max, path) in [
        (None, None, "base_interval"),
        (None, Some(seconds(1)), "base_interval"),
        (Some(seconds(0)), None, "base_interval"),
        (Some(seconds(-1)), None, "base_interval"),
        (Some(seconds(1)), Some(seconds(0)), "max_interval"),
        (Some(seconds(1)), Some(seconds(-1)), "max_interval"),
        (Some(seconds(2)), Some(seconds(1)), "max_interval"),
    ] {
        assert_eq!(faults(None, Some((base, max))), [format!("route.retry_policy.retry_back_off.{path}")]);
    }
    assert_eq!(
        faults(uint32(0), Some((None, Some(seconds(0))))),
        [
            "route.retry_policy.num_retries",
            "route.retry_policy.retry_back_off.base_interval",
            "route.retry_policy.retry_back_off.max_interval"
        ]
    );
    // R-40: the virtual host's policy is checked alike, and also if it retries nothing.
    let mut config = route_config(vec![]);
    config.virtual_hosts[0].retry_policy = Some(pb::RetryPolicy { retry_on: String::new(), ..retry(uint32(0), None) });
    assert_eq!(paths(parse(&config)), ["virtual_hosts[0].retry_policy.num_retries"]);
}

#[test]
fn the_retry_policy_of_a_route_replaces_that_of_its_virtual_host() {
    // R-59, R-40
    let with_policy = |policy| route(pb::RouteAction { retry_policy: policy, ..to_cluster("c") });
    let nothing = pb::RetryPolicy { retry_on: "5xx".to_owned(), ..Default::default() };
    let mut config =
        route_config(vec![with_policy(None), with_policy(Some(retry(uint32(3), None))), with_policy(Some(nothing))]);
    config.virtual_hosts[0].retry_policy = Some(retry(uint32(2), None));
    let parsed = parse(&config).unwrap();
    let retries =
        parsed.virtual_hosts[0].routes.iter().map(|route| forward(route).retry.as_ref().map(|r| r.num_retries));
    // A44: a policy that is given in the route is the one that is used, even if it retries nothing.
    assert_eq!(retries.collect::<Vec<_>>(), [Some(2), Some(3), None]);
}

// === overrides ===

#[test]
fn overrides_are_checked_at_all_three_levels() {
    // R-39
    let unknown = || [("f".to_owned(), any_of("example.Unknown"))].into_iter().collect();
    let weighted = ClusterWeight { typed_per_filter_config: unknown(), ..choice("a", Some(1)) };
    let weighted = to_weighted(pb::WeightedCluster { clusters: vec![weighted], ..Default::default() });
    let mut config = route_config(vec![pb::Route { typed_per_filter_config: unknown(), ..weighted }]);
    config.virtual_hosts[0].typed_per_filter_config = unknown();
    let mut paths = paths(parse(&config));
    paths.sort();
    assert_eq!(
        paths,
        [
            r#"virtual_hosts[0].routes[0].route.weighted_clusters.clusters[0].typed_per_filter_config["f"]"#,
            r#"virtual_hosts[0].routes[0].typed_per_filter_config["f"]"#,
            r#"virtual_hosts[0].typed_per_filter_config["f"]"#,
        ]
    );
}

// === hostile input ===

#[test]
fn a_flood_of_faults_stays_small() {
    // R-2
    let domains = vec!["a*b".repeat(100_000); 100];
    let virtual_host = pb::VirtualHost { domains, ..Default::default() };
    let config = pb::RouteConfiguration { virtual_hosts: vec![virtual_host], ..Default::default() };
    assert!(parse(&config).unwrap_err().to_string().len() < 20_000);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let source = TestSource::new(true);
        let _ = decode(ResourceType::RouteConfig, &bytes.into(), source.context());
    }

    #[test]
    fn mutated_configurations_never_panic_and_stay_sound(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..8),
    ) {
        let mut bytes = rich_config().encode_to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        let source = TestSource::new(true);
        if let Ok(Resource::RouteConfig(config)) = decode(ResourceType::RouteConfig, &bytes.into(), source.context()).result {
            let _ = config.virtual_host("a.example");
            for host in &config.virtual_hosts {
                prop_assert!(!host.domains.is_empty());
                prop_assert!(host.clusters().all(|name| !name.is_empty()));
                for route in &host.routes {
                    let _ = route.path.matches("/s/m");
                    prop_assert!(route.fraction.is_none_or(|fraction| fraction <= 1_000_000));
                    prop_assert!(is_sound(&route.action));
                }
            }
        }
    }
}

/// What the types promise in their documentation.
fn is_sound(action: &RouteAction) -> bool {
    let RouteAction::Forward(forward) = action else { return true };
    let weights_are_sound = match &forward.target {
        ClusterTarget::Cluster(_) => true,
        ClusterTarget::Weighted(choices) => {
            let sum = choices.iter().try_fold(0_u32, |sum, choice| sum.checked_add(choice.weight));
            !choices.is_empty() && choices.iter().all(|choice| choice.weight > 0) && sum.is_some()
        }
    };
    let retry_is_sound = forward.retry.as_ref().is_none_or(|retry| {
        !retry.retry_on.is_empty() && retry.num_retries > 0 && retry.base_interval <= retry.max_interval
    });
    weights_are_sound && retry_is_sound
}

// === helpers ===

fn parse(pb: &pb::RouteConfiguration) -> Result<RouteConfig, Invalid> {
    RouteConfig::parse(pb, TestSource::new(false).context())
}

fn parse_routes(routes: Vec<pb::Route>) -> Result<Vec<Route>, Invalid> {
    parse(&route_config(routes)).map(|config| config.virtual_hosts[0].routes.clone())
}

/// The paths of the faults of a single route, below it.
fn route_faults(route: pb::Route) -> Vec<String> {
    let paths = paths(parse_routes(vec![route])).into_iter();
    paths.map(|path| path.strip_prefix("virtual_hosts[0].routes[0].").expect("in the route").to_owned()).collect()
}

fn clusters(routes: Vec<pb::Route>) -> Vec<String> {
    let config = parse(&route_config(routes)).unwrap();
    config.virtual_hosts[0].clusters().map(str::to_owned).collect()
}

fn forward(route: &Route) -> &ForwardAction {
    match &route.action {
        RouteAction::Forward(forward) => forward,
        other => panic!("{other:?}"),
    }
}

fn any_path() -> pb::RouteMatch {
    pb::RouteMatch { path_specifier: Some(PathSpecifier::Prefix(String::new())), ..Default::default() }
}

fn with_match(matcher: pb::RouteMatch) -> pb::Route {
    pb::Route { r#match: Some(matcher), ..route(to_cluster("c")) }
}

fn with_path(path: PathSpecifier) -> pb::Route {
    with_match(pb::RouteMatch { path_specifier: Some(path), ..Default::default() })
}

fn choice(name: &str, weight: Option<u32>) -> ClusterWeight {
    ClusterWeight { name: name.to_owned(), weight: weight.and_then(uint32), ..Default::default() }
}

fn to_weighted(weighted: pb::WeightedCluster) -> pb::Route {
    let cluster_specifier = Some(ClusterSpecifier::WeightedClusters(weighted));
    route(pb::RouteAction { cluster_specifier, ..Default::default() })
}

fn plugin(name: &str, plugin_type: &str, is_optional: bool) -> pb::ClusterSpecifierPlugin {
    let extension = TypedExtensionConfig { name: name.to_owned(), typed_config: Some(any_of(plugin_type)) };
    pb::ClusterSpecifierPlugin { extension: Some(extension), is_optional }
}

/// A route to plugin `used`, and then one to cluster `c`.
fn with_plugins(plugins: Vec<pb::ClusterSpecifierPlugin>, used: &str) -> pb::RouteConfiguration {
    let cluster_specifier = Some(ClusterSpecifier::ClusterSpecifierPlugin(used.to_owned()));
    let to_plugin = route(pb::RouteAction { cluster_specifier, ..Default::default() });
    let config = route_config(vec![to_plugin, route(to_cluster("c"))]);
    pb::RouteConfiguration { cluster_specifier_plugins: plugins, ..config }
}

fn hash(policy: PolicySpecifier, terminal: bool) -> PbHashPolicy {
    PbHashPolicy { terminal, policy_specifier: Some(policy) }
}

fn header(name: &str, regex_rewrite: Option<RegexMatchAndSubstitute>) -> PolicySpecifier {
    PolicySpecifier::Header(hash_policy::Header { header_name: name.to_owned(), regex_rewrite })
}

type BackOff = (Option<PbDuration>, Option<PbDuration>);

fn retry(num_retries: Option<UInt32Value>, back_off: Option<BackOff>) -> pb::RetryPolicy {
    let retry_back_off =
        back_off.map(|(base_interval, max_interval)| pb::retry_policy::RetryBackOff { base_interval, max_interval });
    pb::RetryPolicy { retry_on: "unavailable".to_owned(), num_retries, retry_back_off, ..Default::default() }
}

fn parse_retry(num_retries: Option<UInt32Value>, back_off: Option<BackOff>) -> Option<RetryPolicy> {
    let mut faults = Faults::new();
    let policy = RetryPolicy::parse(&retry(num_retries, back_off), &mut faults);
    faults.finish(policy).unwrap()
}

/// A configuration that uses everything.
fn rich_config() -> pb::RouteConfiguration {
    let header = pb::HeaderMatcher {
        name: "x".to_owned(),
        header_match_specifier: Some(pb::header_matcher::HeaderMatchSpecifier::PresentMatch(true)),
        ..Default::default()
    };
    let regex = RegexMatcher { regex: "/[a-z]+/.*".to_owned(), engine_type: None };
    let matcher = pb::RouteMatch {
        path_specifier: Some(PathSpecifier::SafeRegex(regex.clone())),
        headers: vec![header],
        runtime_fraction: Some(RuntimeFractionalPercent {
            default_value: Some(FractionalPercent { numerator: 5, denominator: 0 }),
            runtime_key: String::new(),
        }),
        ..Default::default()
    };
    let rewrite = RegexMatchAndSubstitute { pattern: Some(regex), substitution: r"\0".to_owned() };
    let weighted =
        pb::WeightedCluster { clusters: vec![choice("a", Some(1)), choice("b", Some(2))], ..Default::default() };
    let action = pb::RouteAction {
        cluster_specifier: Some(ClusterSpecifier::WeightedClusters(weighted)),
        max_stream_duration: Some(MaxStreamDuration { max_stream_duration: Some(seconds(1)), ..Default::default() }),
        retry_policy: Some(retry(uint32(2), Some((Some(seconds(1)), Some(seconds(2)))))),
        hash_policy: vec![hash(self::header("h", Some(rewrite)), true)],
        ..Default::default()
    };
    let optional =
        pb::FilterConfig { config: Some(any_of("example.Unknown")), is_optional: true, ..Default::default() };
    let optional: Any = envoy_types::util::pack_any(optional);
    let rich = pb::Route {
        r#match: Some(matcher),
        action: Some(Action::Route(action)),
        typed_per_filter_config: [("f".to_owned(), optional)].into_iter().collect(),
        ..Default::default()
    };
    let mut config = with_plugins(vec![plugin("p", "a.B", true)], "p");
    config.virtual_hosts[0].routes.push(rich);
    config.virtual_hosts.push(virtual_host(&["a.example", "*.example", "a.*"], vec![route(to_cluster("c"))]));
    config
}
