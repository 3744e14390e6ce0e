//! `docs/rules/04` sections 6 and 7, rule by rule.

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::Cluster as PbCluster;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{self as core, address};
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::google::protobuf::{Any, Struct, UInt32Value, Value};
use envoy_types::pb::xds::core::v3::ResourceLocator;
use envoy_types::pb::xds::core::v3::collection_entry::InlineEntry;
use pb::cluster_load_assignment::Policy;
use pb::endpoint::AdditionalAddress;
use pb::locality_lb_endpoints::LbConfig;
use proptest::prelude::{Strategy, any, prop, proptest};
use proptest::test_runner::{Config, RngSeed};
use prost::Name;

use super::*;
use crate::bootstrap::{Bootstrap, Guards, Node, ServerConfig};
use crate::resource::{ParseContext, Resource, ResourceType, decode};

#[test]
fn an_endpoint_stays_small() {
    // A cluster may have a hundred thousand of them.
    assert!(size_of::<Endpoint>() <= 48, "{} bytes", size_of::<Endpoint>());
}

#[test]
fn r112_no_localities_is_valid() {
    assert_eq!(parse(&assignment([])).unwrap(), Endpoints::default());
}

#[test]
fn r135_everything_that_is_read_is_in_the_value() {
    let pb = pb::ClusterLoadAssignment {
        cluster_name: "c".into(),
        policy: Some(Policy { drop_overloads: vec![drop_overload("lb", 25, 0)], ..Default::default() }),
        ..assignment([
            locality("a", 0, 3, [endpoint("10.0.0.1", 80)]),
            locality("b", 1, 7, [weighted(endpoint("::1", 81), 5)]),
            locality("c", 0, 4, []),
        ])
    };
    let parsed = parse(&pb).unwrap();
    assert_eq!(parsed.drops, [DropCategory { category: "lb".into(), per_million: 250_000 }]);
    assert_eq!(parsed.priorities.len(), 2);
    let names = |p: usize| -> Vec<(&str, u32)> {
        parsed.priorities[p].localities.iter().map(|l| (l.locality.region.as_str(), l.weight)).collect()
    };
    assert_eq!(names(0), [("a", 3), ("c", 4)]);
    assert_eq!(names(1), [("b", 7)]);
    let [only] = inline(&parsed, 1, 0) else { panic!("one endpoint expected") };
    assert_eq!(only.addresses, Addresses::One("[::1]:81".parse().unwrap()));
    assert_eq!((only.weight, only.health, &only.names), (5, HealthStatus::Unknown, &None));
}

#[test]
fn r113_a_locality_without_weight_is_skipped_with_all_its_faults() {
    let unset = pb::LocalityLbEndpoints {
        load_balancing_weight: None,
        priority: 9,
        locality: None,
        ..locality("", 0, 1, [endpoint("not an address", 0)])
    };
    let zero = pb::LocalityLbEndpoints { load_balancing_weight: Some(UInt32Value { value: 0 }), ..unset.clone() };
    let parsed = parse(&assignment([unset, zero, locality("a", 0, 1, [])])).unwrap();
    assert_eq!(parsed.priorities.len(), 1);
    assert_eq!(parsed.priorities[0].localities.len(), 1);
}

#[test]
fn r114_a_used_locality_needs_its_name_which_may_be_empty() {
    let nameless = pb::LocalityLbEndpoints { locality: None, ..locality("", 0, 1, []) };
    assert_faults(&assignment([nameless]), &["endpoints[0].locality: must be set"]);
    let parsed = parse(&assignment([locality("", 0, 1, [])])).unwrap();
    assert_eq!(*parsed.priorities[0].localities[0].locality, Locality::default());
}

#[test]
fn r115_a_locality_may_be_in_two_priorities_but_not_twice_in_one() {
    let same = |priority| locality("a", priority, 1, []);
    assert_eq!(parse(&assignment([same(0), same(1)])).unwrap().priorities.len(), 2);
    assert_faults(
        &assignment([same(0), same(1), locality("b", 0, 1, []), same(0)]),
        &["endpoints[3].locality: same locality as endpoints[0] in priority 0"],
    );
    // All three parts make the name.
    let other_zone = pb::LocalityLbEndpoints {
        locality: Some(core::Locality { region: "a".into(), zone: "z".into(), sub_zone: String::new() }),
        ..same(0)
    };
    assert!(parse(&assignment([same(0), other_zone])).is_ok());
}

#[test]
fn r116_priorities_have_no_gaps_in_whatever_order_they_come() {
    let at = |priority: u32| locality(&priority.to_string(), priority, 1, []);
    assert_eq!(parse(&assignment([at(2), at(0), at(1)])).unwrap().priorities.len(), 3);
    assert_faults(
        &assignment([at(4), at(2), at(0)]),
        &[
            "endpoints: no locality has priority 1, but a larger priority is used",
            "endpoints: no locality has priority 3, but a larger priority is used",
        ],
    );
    assert_faults(&assignment([at(1)]), &["endpoints: no locality has priority 0, but a larger priority is used"]);
}

#[test]
fn r116_a_faulty_locality_still_fills_its_priority() {
    assert_faults(
        &assignment([locality("a", 0, 1, [endpoint("x", 1)]), locality("b", 1, 1, [])]),
        &["endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: \"x\" is not an IPv4 or IPv6 address"],
    );
}

#[test]
fn r116_a_huge_priority_is_rejected_by_its_number_alone() {
    assert_faults(
        &assignment([locality("a", 0, 1, []), locality("b", u32::MAX, 1, [])]),
        &["endpoints[1].priority: 4294967295 is too large: at most 128"],
    );
    let most = (0..=Endpoints::MAX_PRIORITY).map(|priority| locality("a", priority, 1, []));
    assert_eq!(parse(&assignment(most)).unwrap().priorities.len(), 129);
}

#[test]
fn r117_locality_weights_of_one_priority_fit_32_bits_together() {
    let heavy = |name, priority| locality(name, priority, u32::MAX, []);
    assert!(parse(&assignment([heavy("a", 0), heavy("b", 1)])).is_ok());
    assert_faults(
        &assignment([heavy("a", 0), locality("b", 0, 1, [])]),
        &["endpoints: the weights of priority 0 add up to 4294967296: at most 4294967295"],
    );
}

#[test]
fn r118_a_locality_without_endpoints_is_valid() {
    let parsed = parse(&assignment([locality("a", 0, 1, [])])).unwrap();
    assert_eq!(inline(&parsed, 0, 0), []);
}

#[test]
fn r119_unknown_healthy_and_draining_are_kept_and_the_rest_dropped_before_other_checks() {
    use PbHealthStatus::{Degraded, Draining, Healthy, Timeout, Unhealthy, Unknown};
    let good = [(Healthy, "10.0.0.1"), (Unknown, "10.0.0.2"), (Draining, "10.0.0.3")];
    let good = good.map(|(health, ip)| with_health(endpoint(ip, 80), health as i32));
    // Each of these would be a NACK if it were used: bad address, weight 0, a duplicate, a name.
    let dropped = [
        with_health(endpoint("nowhere", 0), Unhealthy as i32),
        with_health(weighted(endpoint("10.0.0.9", 80), 0), Timeout as i32),
        with_health(endpoint("10.0.0.1", 80), Degraded as i32),
        pb::LbEndpoint { health_status: 77, ..Default::default() },
    ];
    let parsed = parse(&assignment([locality("a", 0, 1, dropped.into_iter().chain(good))])).unwrap();
    let kept: Vec<_> = inline(&parsed, 0, 0).iter().map(|e| e.health).collect();
    assert_eq!(kept, [HealthStatus::Healthy, HealthStatus::Unknown, HealthStatus::Draining]);
}

#[test]
fn r120_endpoint_weight_is_one_by_default_and_never_zero() {
    let parsed = parse(&assignment([locality("a", 0, 1, [endpoint("10.0.0.1", 80)])])).unwrap();
    assert_eq!(inline(&parsed, 0, 0)[0].weight, 1);
    assert_faults(
        &assignment([locality("a", 0, 1, [endpoint("10.0.0.1", 80), weighted(endpoint("10.0.0.2", 80), 0)])]),
        &["endpoints[0].lb_endpoints[1].load_balancing_weight: must not be 0"],
    );
}

#[test]
fn r120_endpoint_weights_of_one_locality_fit_32_bits_together() {
    let heavy = |ip| weighted(endpoint(ip, 80), u32::MAX);
    let apart = [locality("a", 0, 1, [heavy("10.0.0.1")]), locality("b", 0, 1, [heavy("10.0.0.2")])];
    assert!(parse(&assignment(apart)).is_ok());
    assert_faults(
        &assignment([locality("a", 0, 1, [heavy("10.0.0.1"), endpoint("10.0.0.2", 80)])]),
        &["endpoints[0].lb_endpoints: the weights of the endpoints add up to 4294967296: at most 4294967295"],
    );
}

#[test]
fn r121_an_endpoint_needs_an_ip_address_and_a_port() {
    let pipe = core::Address { address: Some(address::Address::Pipe(core::Pipe::default())) };
    let named = core::Address {
        address: Some(address::Address::SocketAddress(core::SocketAddress {
            address: "10.0.0.1".into(),
            port_specifier: Some(PortSpecifier::NamedPort("http".into())),
            ..Default::default()
        })),
    };
    let bad = [
        pb::LbEndpoint::default(),
        pb::LbEndpoint { host_identifier: Some(HostIdentifier::EndpointName("e".into())), ..Default::default() },
        at_address(None),
        at_address(Some(core::Address::default())),
        at_address(Some(pipe)),
        at_address(Some(named)),
        endpoint("10.0.0.1", 65_536),
        endpoint("backend.example", 80),
        endpoint("fe80::1%eth0", 80),
    ];
    let in_address = |i: usize, rest: &str| format!("endpoints[0].lb_endpoints[{i}].endpoint.address{rest}");
    assert_faults(
        &assignment([locality("a", 0, 1, bad)]),
        &[
            "endpoints[0].lb_endpoints[0].endpoint: must be set",
            "endpoints[0].lb_endpoints[1].endpoint_name: not supported: expected endpoint",
            &in_address(2, ": must be set"),
            &in_address(3, ": must be set"),
            &in_address(4, ": only socket_address is supported"),
            &in_address(5, ".socket_address.named_port: not supported: expected port_value"),
            &in_address(6, ".socket_address.port_value: 65536 is not a port: expected at most 65535"),
            &in_address(7, ".socket_address.address: \"backend.example\" is not an IPv4 or IPv6 address"),
            &in_address(8, ".socket_address.address: \"fe80::1%eth0\" is not an IPv4 or IPv6 address"),
        ],
    );
}

#[test]
fn r121_additional_addresses_follow_the_first_in_order() {
    let many = with_additional(endpoint("10.0.0.1", 80), [address("::1", 80), address("10.0.0.2", 80)]);
    let parsed = parse(&assignment([locality("a", 0, 1, [many])])).unwrap();
    let addresses = &inline(&parsed, 0, 0)[0].addresses;
    let expected: Vec<SocketAddr> =
        ["10.0.0.1:80", "[::1]:80", "10.0.0.2:80"].map(|address| address.parse().unwrap()).into();
    assert_eq!(addresses.as_slice(), expected);
    assert_eq!(addresses.first(), expected[0]);
}

#[test]
fn r121_additional_addresses_are_checked_alike() {
    let mut bad = with_additional(endpoint("10.0.0.1", 80), [address("10.0.0.2", 80), address("x", 80)]);
    let Some(HostIdentifier::Endpoint(inner)) = &mut bad.host_identifier else { panic!("an endpoint") };
    inner.additional_addresses.push(AdditionalAddress { address: None });
    let path = "endpoints[0].lb_endpoints[0].endpoint.additional_addresses";
    assert_faults(
        &assignment([locality("a", 0, 1, [bad])]),
        &[
            &format!("{path}[1].address.socket_address.address: \"x\" is not an IPv4 or IPv6 address"),
            &format!("{path}[2].address: must be set"),
        ],
    );
}

#[test]
fn r122_an_address_is_unique_in_the_whole_resource() {
    let dup = assignment([
        locality("a", 0, 1, [endpoint("10.0.0.1", 80), endpoint("10.0.0.1", 81)]),
        locality(
            "b",
            1,
            1,
            [endpoint("::1", 80), with_additional(endpoint("10.0.0.3", 80), [address("10.0.0.1", 80)])],
        ),
        locality("c", 1, 1, [endpoint("0::1", 80)]),
    ]);
    assert_faults(
        &dup,
        &[
            "endpoints[1].lb_endpoints[1].endpoint.additional_addresses[0].address: \
             10.0.0.1:80 is in this resource more than once",
            "endpoints[2].lb_endpoints[0].endpoint.address: [::1]:80 is in this resource more than once",
        ],
    );
}

#[test]
fn r122_duplicates_are_reported_together_with_other_faults() {
    assert_faults(
        &assignment([locality("a", 0, 1, [endpoint("10.0.0.1", 80), endpoint("10.0.0.1", 80), endpoint("x", 80)])]),
        &[
            "endpoints[0].lb_endpoints[1].endpoint.address: 10.0.0.1:80 is in this resource more than once",
            "endpoints[0].lb_endpoints[2].endpoint.address.socket_address.address: \
             \"x\" is not an IPv4 or IPv6 address",
        ],
    );
}

#[test]
fn r123_hostname_and_hash_key_are_kept() {
    let mut named = with_hash_key(endpoint("10.0.0.1", 80), Kind::StringValue("k".into()));
    let Some(HostIdentifier::Endpoint(inner)) = &mut named.host_identifier else { panic!("an endpoint") };
    inner.hostname = "backend.example".into();
    let number = with_hash_key(endpoint("10.0.0.2", 80), Kind::NumberValue(1.0));
    let empty = with_hash_key(endpoint("10.0.0.3", 80), Kind::StringValue(String::new()));
    let parsed = parse(&assignment([locality("a", 0, 1, [named, number, empty])])).unwrap();
    let [named, number, empty] = inline(&parsed, 0, 0) else { panic!("three endpoints expected") };
    assert_eq!(
        (named.hostname().map(|name| &**name), named.hash_key().map(|key| &**key)),
        (Some("backend.example"), Some("k"))
    );
    assert_eq!((&number.names, &empty.names), (&None, &None));
}

#[test]
fn r123_metadata_of_a_known_type_is_checked_at_both_levels() {
    let broken = || core::Metadata {
        typed_filter_metadata: [
            ("proxy".to_owned(), Any { type_url: core::Address::type_url(), value: vec![] }),
            ("other".to_owned(), Any { type_url: "type.example/other.Type".into(), value: vec![0xff] }),
        ]
        .into(),
        ..Default::default()
    };
    let pb = pb::LocalityLbEndpoints {
        metadata: Some(broken()),
        ..locality("a", 0, 1, [pb::LbEndpoint { metadata: Some(broken()), ..endpoint("10.0.0.1", 80) }])
    };
    assert_faults(
        &assignment([pb]),
        &[
            "endpoints[0].metadata.typed_filter_metadata[proxy]: must be set",
            "endpoints[0].lb_endpoints[0].metadata.typed_filter_metadata[proxy]: must be set",
        ],
    );
}

/// A86: whether they are used, the cluster says.
#[test]
fn r123_endpoints_and_localities_name_proxies() {
    let named = |ip: &str, key: &str| {
        let address = endpoint(ip, 3128).host_identifier;
        let Some(HostIdentifier::Endpoint(endpoint)) = address else { panic!("an endpoint has an address") };
        let any = Any { type_url: core::Address::type_url(), value: endpoint.address.unwrap().encode_to_vec() };
        Some(core::Metadata { typed_filter_metadata: [(key.to_owned(), any)].into(), ..Default::default() })
    };
    const KEY: &str = "envoy.http11_proxy_transport_socket.proxy_address";
    let own = pb::LbEndpoint { metadata: named("10.0.9.1", KEY), ..endpoint("10.0.0.1", 80) };
    let other = pb::LbEndpoint { metadata: named("10.0.9.1", "other"), ..endpoint("10.0.0.2", 80) };
    let pb = pb::LocalityLbEndpoints { metadata: named("10.0.9.2", KEY), ..locality("a", 0, 1, [own, other]) };
    let parsed = parse(&assignment([pb])).unwrap();
    assert_eq!(parsed.priorities[0].localities[0].proxy, Some("10.0.9.2:3128".parse().unwrap()));
    let [own, other] = inline(&parsed, 0, 0) else { panic!("two endpoints expected") };
    assert_eq!((own.proxy(), &other.names), (Some("10.0.9.1:3128".parse().unwrap()), &None));
}

#[test]
fn r124_drops_are_scaled_to_a_million_and_capped() {
    let drops = vec![drop_overload("a", 50, 0), drop_overload("b", 5, 1), drop_overload("c", u32::MAX, 0)];
    let parsed = parse(&with_drops(drops)).unwrap();
    let shares: Vec<u32> = parsed.drops.iter().map(|drop| drop.per_million).collect();
    assert_eq!(shares, [500_000, 500, 1_000_000]);
}

#[test]
fn r124_a_drop_needs_a_category_and_a_share() {
    let drops = vec![
        drop_overload("", 1, 0),
        DropOverload { category: "b".into(), drop_percentage: None },
        drop_overload("c", 1, 9),
    ];
    assert_faults(
        &with_drops(drops),
        &[
            "policy.drop_overloads[0].category: must not be empty",
            "policy.drop_overloads[1].drop_percentage: must be set",
            "policy.drop_overloads[2].drop_percentage.denominator: \
             unknown value 9: expected HUNDRED, TEN_THOUSAND or MILLION",
        ],
    );
}

#[test]
fn r124_the_number_of_drops_is_bounded() {
    let drops = |n| with_drops(vec![drop_overload("a", 1, 0); n]);
    assert_eq!(parse(&drops(128)).unwrap().drops.len(), 128);
    assert_faults(&drops(129), &["policy.drop_overloads: has 129 entries: at most 128"]);
}

#[test]
fn r125_a_collection_takes_the_place_of_inline_endpoints() {
    let pb = pb::LocalityLbEndpoints {
        lb_config: leds("xdstp://a/envoy.config.endpoint.v3.LbEndpointCollection/x", self_source()),
        ..locality("a", 0, 1, [endpoint("not looked at", 0)])
    };
    let parsed = parse(&assignment([pb])).unwrap();
    assert_eq!(
        parsed.priorities[0].localities[0].source,
        EndpointSource::Collection("xdstp://a/envoy.config.endpoint.v3.LbEndpointCollection/x".into())
    );
}

/// A95: "All of the functionality described in this design will be guarded".
#[test]
fn with_the_guard_of_a95_off_collections_are_not_looked_at() {
    let pb = assignment([pb::LocalityLbEndpoints {
        lb_config: leds("x/*", None),
        ..locality("a", 0, 1, [endpoint("10.0.0.1", 80)])
    }]);
    let node = Node { id: "me".to_owned(), ..Node::default() };
    let of_guard = |endpoint_fallback| {
        let guards = Guards { endpoint_fallback, ..Guards::default() };
        let server = ServerConfig::insecure("a");
        let bootstrap = Bootstrap::builder().node(node.clone()).guards(guards).server(server).build().unwrap();
        let cx = ParseContext { bootstrap: &bootstrap, server: &bootstrap.servers[0] };
        decode(ResourceType::Endpoints, &pb.encode_to_vec().into(), cx).result
    };
    let Ok(Resource::Endpoints(endpoints)) = of_guard(false) else { panic!("the collection is looked at") };
    let source = &endpoints.priorities[0].localities[0].source;
    assert!(matches!(source, EndpointSource::Inline(_)), "{source:?}");
    assert!(of_guard(true).is_err());
}

#[test]
fn r125_a_collection_needs_self_and_the_name_of_a_list() {
    let with = |name: &str, source| {
        assignment([pb::LocalityLbEndpoints { lb_config: leds(name, source), ..locality("a", 0, 1, []) }])
    };
    let path = "endpoints[0].leds_cluster_locality_config";
    let ads = ConfigSourceSpecifier::Ads(core::AggregatedConfigSource::default());
    let ads = Some(core::ConfigSource { config_source_specifier: Some(ads), ..Default::default() });
    assert_faults(&with("x", ads), &[&format!("{path}.leds_config: must be self")]);
    assert_faults(
        &with("", None),
        &[&format!("{path}.leds_config: must be self"), &format!("{path}.leds_collection_name: must not be empty")],
    );
    let glob =
        format!("{path}.leds_collection_name: is a glob collection, which needs delta: expected a list collection");
    for name in ["x/*", "xdstp://a/t/x/*", "xdstp://a/t/x/*?zone=1", "xdstp://a/t/x/%2A", "xdstp://a/t/x/%2a?zone=1"] {
        assert_faults(&with(name, self_source()), &[&glob]);
    }
    // GC-2: a server that may speak delta can send it.
    let pb = with("xdstp://a/envoy.config.endpoint.v3.LbEndpoint/x/*", self_source());
    let pb = Assignment::decode(pb.encode_to_vec().as_slice()).unwrap();
    assert!(Endpoints::parse(&pb, Collections::Lists).is_err());
    let parsed = Endpoints::parse(&pb, Collections::ListsAndGlobs).unwrap();
    let source = &parsed.priorities[0].localities[0].source;
    assert!(matches!(source, EndpointSource::Collection(name) if name.ends_with("/x/*")), "{source:?}");
    for name in ["x/*y", "x*", "xdstp://a/t/x?y=/z", "x/%2A", "xdstp://a/t/x/%2Ay", "xdstp://a/t/x/%2"] {
        assert!(parse(&with(name, self_source())).is_ok(), "{name}");
    }
}

#[test]
fn r126_a_collection_parses_to_the_same_value_as_inline_endpoints() {
    let endpoints = [endpoint("10.0.0.1", 80), weighted(endpoint("10.0.0.2", 80), 3)];
    let inline_form = parse(&assignment([locality("a", 0, 1, endpoints.clone())])).unwrap();
    let collection = EndpointCollection::parse(&collection(endpoints)).unwrap();
    assert_eq!(inline_form.priorities[0].localities[0].source, EndpointSource::Inline(Arc::new(collection)));
}

#[test]
fn r127_an_empty_collection_is_valid() {
    assert_eq!(EndpointCollection::parse(&collection([])).unwrap(), EndpointCollection::default());
}

#[test]
fn r128_an_entry_must_be_an_inline_lb_endpoint() {
    let inline = |resource| CollectionEntry {
        resource_specifier: Some(ResourceSpecifier::InlineEntry(InlineEntry { resource, ..Default::default() })),
    };
    let entries = vec![
        CollectionEntry::default(),
        CollectionEntry { resource_specifier: Some(ResourceSpecifier::Locator(ResourceLocator::default())) },
        inline(None),
        inline(Some(Any { type_url: PbCluster::type_url(), value: vec![] })),
        inline(Some(Any { type_url: "no slash".into(), value: vec![] })),
    ];
    let faults = faults_of(EndpointCollection::parse(&pb::LbEndpointCollection { entries }));
    assert_eq!(
        faults,
        [
            "entries[0].inline_entry: must be set",
            "entries[1].locator: not supported: expected inline_entry",
            "entries[2].inline_entry.resource: must be set",
            "entries[3].inline_entry.resource.type_url: \
             is envoy.config.cluster.v3.Cluster: expected envoy.config.endpoint.v3.LbEndpoint",
            "entries[4].inline_entry.resource.type_url: \
             \"no slash\" is not a type URL: expected a prefix, a slash and a message name",
        ]
    );
}

#[test]
fn r128_an_entry_that_cannot_be_decoded_is_a_fault() {
    let mut pb = collection([endpoint("10.0.0.1", 80)]);
    let Some(ResourceSpecifier::InlineEntry(entry)) = &mut pb.entries[0].resource_specifier else { panic!("inline") };
    entry.resource.as_mut().unwrap().value = vec![0xff];
    let faults = faults_of(EndpointCollection::parse(&pb));
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].starts_with("entries[0].inline_entry.resource.value: is not a envoy.config.endpoint.v3.LbEndpoint")
    );
}

#[test]
fn r129_the_rules_for_endpoints_hold_in_a_collection() {
    let unhealthy = with_health(endpoint("x", 0), PbHealthStatus::Unhealthy as i32);
    let pb = collection([
        unhealthy,
        weighted(endpoint("10.0.0.1", 80), u32::MAX),
        endpoint("10.0.0.1", 80),
        weighted(endpoint("10.0.0.2", 80), 0),
    ]);
    assert_eq!(
        faults_of(EndpointCollection::parse(&pb)),
        [
            "entries[2].inline_entry.resource.endpoint.address: 10.0.0.1:80 is in this resource more than once",
            "entries[3].inline_entry.resource.load_balancing_weight: must not be 0",
            "entries: the weights of the endpoints add up to 4294967296: at most 4294967295",
        ]
    );
}

#[test]
fn r130_name_and_version_of_an_entry_are_not_used() {
    let mut pb = collection([endpoint("10.0.0.1", 80), endpoint("10.0.0.2", 80)]);
    let plain = EndpointCollection::parse(&pb).unwrap();
    for entry in &mut pb.entries {
        let Some(ResourceSpecifier::InlineEntry(entry)) = &mut entry.resource_specifier else { panic!("inline") };
        entry.name = "not/valid[]".into();
        entry.version = "same".into();
    }
    assert_eq!(EndpointCollection::parse(&pb).unwrap(), plain);
}

#[test]
fn a_resource_full_of_faults_makes_a_short_error() {
    let bad = (0..100_000).map(|_| endpoint("x", 80));
    let invalid = parse(&assignment([locality("a", 0, 1, bad)])).unwrap_err();
    assert_eq!(invalid.faults().len(), crate::invalid::MAX_FAULTS + 1);
}

#[test]
fn an_endpoint_that_cannot_be_decoded_is_named() {
    let mut assignment = Assignment::decode(sample().encode_to_vec().as_slice()).unwrap();
    assignment.endpoints[1].lb_endpoints.push(Bytes::from_static(&[0xff]));
    let faults = faults_of(Endpoints::parse(&assignment, Collections::Lists));
    assert!(faults[0].starts_with("endpoints[1].lb_endpoints[1]: cannot be decoded: "), "{faults:?}");
    assert_eq!(faults.len(), 1);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_bytes(&bytes);
    }

    #[test]
    fn mutated_messages_are_parsed_without_panic(mutations in mutations()) {
        check_bytes(&mutate(sample().encode_to_vec(), &mutations));
        check_bytes(&mutate(sample_collection().encode_to_vec(), &mutations));
    }

    /// What is accepted keeps what the rest of the house relies on.
    #[test]
    fn accepted_values_keep_the_invariants(
        localities in prop::collection::vec((0..3u32, 0..3u32, 0..4u32, prop::collection::vec((0..6u8, 0..3u32, 0..6), 0..4)), 0..5)
    ) {
        let localities = localities.into_iter().map(|(name, priority, weight, endpoints)| {
            locality(&name.to_string(), priority, weight, endpoints.into_iter().map(|(ip, weight, health)| {
                with_health(weighted(endpoint(&format!("10.0.0.{ip}"), 80), weight), health)
            }))
        });
        if let Ok(parsed) = parse(&assignment(localities)) {
            check_invariants(&parsed);
        }
    }
}

fn check_bytes(bytes: &[u8]) {
    if let Ok(pb) = Assignment::decode(bytes)
        && let Ok(parsed) = Endpoints::parse(&pb, Collections::Lists)
    {
        check_invariants(&parsed);
    }
    if let Ok(pb) = pb::LbEndpointCollection::decode(bytes)
        && let Ok(parsed) = EndpointCollection::parse(&pb)
    {
        check_endpoints(&parsed, &mut BTreeSet::new());
    }
}

fn check_invariants(parsed: &Endpoints) {
    let mut addresses = BTreeSet::new();
    for priority in &parsed.priorities {
        assert!(!priority.localities.is_empty());
        let names: BTreeSet<_> = priority.localities.iter().map(|l| &l.locality).collect();
        assert_eq!(names.len(), priority.localities.len());
        assert!(u32::try_from(priority.localities.iter().map(|l| u64::from(l.weight)).sum::<u64>()).is_ok());
        for locality in &priority.localities {
            assert_ne!(locality.weight, 0);
            if let EndpointSource::Inline(collection) = &locality.source {
                check_endpoints(collection, &mut addresses);
            }
        }
    }
    assert!(parsed.drops.iter().all(|drop| !drop.category.is_empty() && drop.per_million <= 1_000_000));
}

fn check_endpoints(collection: &EndpointCollection, addresses: &mut BTreeSet<SocketAddr>) {
    for endpoint in &collection.endpoints {
        assert_ne!(endpoint.weight, 0);
        assert!(!endpoint.addresses.as_slice().is_empty());
        assert!(endpoint.addresses.as_slice().iter().all(|address| addresses.insert(*address)));
    }
    assert!(u32::try_from(collection.endpoints.iter().map(|e| u64::from(e.weight)).sum::<u64>()).is_ok());
}

/// The same cases in every run.
fn config() -> Config {
    Config { rng_seed: RngSeed::Fixed(95), failure_persistence: None, cases: 512, ..Config::default() }
}

/// Places, as parts of the length, and what to do there.
fn mutations() -> impl Strategy<Value = Vec<(u16, u8, u8)>> {
    prop::collection::vec((any::<u16>(), 0..3u8, any::<u8>()), 1..6)
}

fn mutate(mut bytes: Vec<u8>, mutations: &[(u16, u8, u8)]) -> Vec<u8> {
    for &(place, kind, value) in mutations {
        let at = bytes.len() * usize::from(place) / (usize::from(u16::MAX) + 1);
        match kind {
            0 if at < bytes.len() => bytes[at] = value,
            1 => bytes.insert(at, value),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

fn sample() -> pb::ClusterLoadAssignment {
    pb::ClusterLoadAssignment {
        policy: Some(Policy { drop_overloads: vec![drop_overload("lb", 25, 0)], ..Default::default() }),
        ..assignment([
            locality("a", 0, 3, [with_additional(endpoint("10.0.0.1", 80), [address("::1", 80)])]),
            locality("b", 1, 7, [with_hash_key(endpoint("10.0.0.2", 81), Kind::StringValue("k".into()))]),
            pb::LocalityLbEndpoints { lb_config: leds("x", self_source()), ..locality("c", 1, 1, []) },
        ])
    }
}

fn sample_collection() -> pb::LbEndpointCollection {
    collection([endpoint("10.0.0.1", 80), weighted(endpoint("10.0.0.2", 80), 3)])
}

/// From a message of the library, by way of its bytes.
fn parse(pb: &pb::ClusterLoadAssignment) -> Result<Endpoints, Invalid> {
    Endpoints::parse(&Assignment::decode(pb.encode_to_vec().as_slice()).unwrap(), Collections::Lists)
}

#[track_caller]
fn assert_faults(pb: &pb::ClusterLoadAssignment, expected: &[&str]) {
    assert_eq!(faults_of(parse(pb)), expected);
}

#[track_caller]
fn faults_of<T: std::fmt::Debug>(result: Result<T, Invalid>) -> Vec<String> {
    result.unwrap_err().faults().iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
}

fn inline(parsed: &Endpoints, priority: usize, locality: usize) -> &[Endpoint] {
    match &parsed.priorities[priority].localities[locality].source {
        EndpointSource::Inline(collection) => &collection.endpoints,
        EndpointSource::Collection(name) => panic!("collection {name}"),
    }
}

fn assignment(localities: impl IntoIterator<Item = pb::LocalityLbEndpoints>) -> pb::ClusterLoadAssignment {
    pb::ClusterLoadAssignment { endpoints: localities.into_iter().collect(), ..Default::default() }
}

fn locality(
    region: &str,
    priority: u32,
    weight: u32,
    endpoints: impl IntoIterator<Item = pb::LbEndpoint>,
) -> pb::LocalityLbEndpoints {
    pb::LocalityLbEndpoints {
        locality: Some(core::Locality { region: region.into(), ..Default::default() }),
        priority,
        load_balancing_weight: Some(UInt32Value { value: weight }),
        lb_endpoints: endpoints.into_iter().collect(),
        ..Default::default()
    }
}

fn address(ip: &str, port: u32) -> core::Address {
    core::Address {
        address: Some(address::Address::SocketAddress(core::SocketAddress {
            address: ip.into(),
            port_specifier: Some(PortSpecifier::PortValue(port)),
            ..Default::default()
        })),
    }
}

fn at_address(address: Option<core::Address>) -> pb::LbEndpoint {
    let endpoint = pb::Endpoint { address, ..Default::default() };
    pb::LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..Default::default() }
}

fn endpoint(ip: &str, port: u32) -> pb::LbEndpoint {
    at_address(Some(address(ip, port)))
}

fn weighted(endpoint: pb::LbEndpoint, weight: u32) -> pb::LbEndpoint {
    pb::LbEndpoint { load_balancing_weight: Some(UInt32Value { value: weight }), ..endpoint }
}

fn with_health(endpoint: pb::LbEndpoint, health_status: i32) -> pb::LbEndpoint {
    pb::LbEndpoint { health_status, ..endpoint }
}

fn with_additional(mut endpoint: pb::LbEndpoint, more: impl IntoIterator<Item = core::Address>) -> pb::LbEndpoint {
    if let Some(HostIdentifier::Endpoint(inner)) = &mut endpoint.host_identifier {
        inner.additional_addresses = more.into_iter().map(|a| AdditionalAddress { address: Some(a) }).collect();
    }
    endpoint
}

fn with_hash_key(endpoint: pb::LbEndpoint, kind: Kind) -> pb::LbEndpoint {
    let fields = [("hash_key".to_owned(), Value { kind: Some(kind) })].into();
    let filter_metadata = [("envoy.lb".to_owned(), Struct { fields })].into();
    pb::LbEndpoint { metadata: Some(core::Metadata { filter_metadata, ..Default::default() }), ..endpoint }
}

fn drop_overload(category: &str, numerator: u32, denominator: i32) -> DropOverload {
    DropOverload { category: category.into(), drop_percentage: Some(FractionalPercent { numerator, denominator }) }
}

fn with_drops(drop_overloads: Vec<DropOverload>) -> pb::ClusterLoadAssignment {
    pb::ClusterLoadAssignment { policy: Some(Policy { drop_overloads, ..Default::default() }), ..Default::default() }
}

fn self_source() -> Option<core::ConfigSource> {
    let this = ConfigSourceSpecifier::Self_(core::SelfConfigSource::default());
    Some(core::ConfigSource { config_source_specifier: Some(this), ..Default::default() })
}

fn leds(name: &str, leds_config: Option<core::ConfigSource>) -> Option<LbConfig> {
    let leds_collection_name = name.to_owned();
    Some(LbConfig::LedsClusterLocalityConfig(pb::LedsClusterLocalityConfig { leds_config, leds_collection_name }))
}

fn collection(endpoints: impl IntoIterator<Item = pb::LbEndpoint>) -> pb::LbEndpointCollection {
    let entries = endpoints.into_iter().map(|endpoint| {
        let resource = Any { type_url: pb::LbEndpoint::type_url(), value: endpoint.encode_to_vec() };
        let entry = InlineEntry { resource: Some(resource), ..Default::default() };
        CollectionEntry { resource_specifier: Some(ResourceSpecifier::InlineEntry(entry)) }
    });
    pb::LbEndpointCollection { entries: entries.collect() }
}
