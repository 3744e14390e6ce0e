//! through the Cluster that carries them.

use std::time::Duration;

use envoy_types::pb::google::protobuf::{
    BoolValue, Duration as PbDuration, FloatValue, ListValue, UInt32Value, UInt64Value,
};
use pb::cluster::{LeastRequestLbConfig, RingHashLbConfig};
use pb_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use pb_policies::least_request::v3::LeastRequest;
use pb_policies::maglev::v3::Maglev;
use pb_policies::pick_first::v3::PickFirst;
use pb_policies::random_subsetting::v3::RandomSubsetting;
use pb_policies::ring_hash::v3::RingHash;
use pb_policies::round_robin::v3::RoundRobin;
use pb_policies::wrr_locality::v3::WrrLocality;
use prost::Name;

use super::*;
use crate::resource::cluster::tests::{eds, faults_of, pack, parse, policy};

#[test]
fn r65_the_old_field_does_not_count_beside_the_new_one() {
    let pb = pb::Cluster { lb_policy: LegacyPolicy::RingHash as i32, ..cluster([pack(&RoundRobin::default())]) };
    assert_eq!(parse(&pb).unwrap().lb_policy, LbPolicy::RoundRobin);
}

#[test]
fn r66_the_first_supported_policy_is_taken() {
    let unknown = Any { type_url: "type.example/my.Policy".into(), value: vec![0xff] };
    let list = [
        unknown,
        pack(&Maglev::default()),
        pack(&PickFirst { shuffle_address_list: true }),
        // Not looked at any more.
        Any::default(),
    ];
    assert_eq!(policy_of(list), LbPolicy::PickFirst { shuffle: true });
}

#[test]
fn r66_a_list_without_a_supported_policy_is_rejected() {
    let path = "load_balancing_policy.policies";
    assert_eq!(faults_of(&cluster([])), [format!("{path}: must not be empty")]);
    assert_eq!(
        faults_of(&cluster([pack(&Maglev::default()), Any { type_url: "t/my.Policy".into(), value: vec![] }])),
        [format!("{path}: no policy is supported: found {}, my.Policy", Maglev::full_name())]
    );
}

#[test]
fn r66_a_supported_policy_that_cannot_be_read_ends_the_search() {
    let broken = Any { type_url: PickFirst::type_url(), value: vec![0xff] };
    let faults = faults_of(&cluster([broken, pack(&RoundRobin::default())]));
    assert_eq!(faults.len(), 1);
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    assert!(faults[0].starts_with(&format!("{path}.value: is not a {}", PickFirst::full_name())), "{faults:?}");
}

#[test]
fn r66_an_entry_without_config_or_type_is_rejected() {
    let mut pb = cluster([Any::default()]);
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    assert_eq!(
        faults_of(&pb),
        [format!("{path}.type_url: \"\" is not a type URL: expected a prefix, a slash and a message name")]
    );
    pb.load_balancing_policy = Some(pb::LoadBalancingPolicy { policies: vec![Default::default()] });
    assert_eq!(faults_of(&pb), [format!("{path}: must be set")]);
}

#[test]
fn r66_nesting_ends_at_sixteen_levels() {
    let mut expected = LbPolicy::RoundRobin;
    for _ in 1..16 {
        expected = LbPolicy::WrrLocality(Box::new(expected));
    }
    let nested = |levels| nested(levels, pack(&RoundRobin::default()));
    assert_eq!(policy_of([nested(16)]), expected);
    let faults = faults_of(&cluster([nested(17)]));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].ends_with(".endpoint_picking_policy: policies are nested more than 16 deep"), "{faults:?}");
    // However deep it goes on.
    assert_eq!(faults_of(&cluster([nested(200)])), faults);
}

#[test]
fn r67_wrr_locality_needs_a_child_that_is_supported() {
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config.endpoint_picking_policy";
    assert_eq!(faults_of(&cluster([pack(&WrrLocality::default())])), [format!("{path}: must be set")]);
    let child = pb::LoadBalancingPolicy { policies: vec![policy(pack(&Maglev::default()))] };
    let wrr = WrrLocality { endpoint_picking_policy: Some(child) };
    // An unsupported child makes the parent unusable; the next entry is not tried.
    assert_eq!(
        faults_of(&cluster([pack(&wrr), pack(&RoundRobin::default())])),
        [format!("{path}.policies: no policy is supported: found {}", Maglev::full_name())]
    );
}

#[test]
fn r67_every_supported_message_is_read() {
    let round_robin = pb::LoadBalancingPolicy { policies: vec![policy(pack(&RoundRobin::default()))] };
    let wrr = WrrLocality { endpoint_picking_policy: Some(round_robin) };
    assert_eq!(policy_of([pack(&wrr)]), LbPolicy::WrrLocality(Box::new(LbPolicy::RoundRobin)));
    assert_eq!(policy_of([pack(&RoundRobin::default())]), LbPolicy::RoundRobin);
    assert_eq!(policy_of([pack(&PickFirst::default())]), LbPolicy::PickFirst { shuffle: false });
}

#[test]
fn r67_a_typed_struct_names_a_registered_policy() {
    for wrapper in ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"] {
        let with = |name: &str, config| typed_struct(wrapper, &format!("type.googleapis.com/{name}"), config);
        assert_eq!(policy_of([with("round_robin", None)]), LbPolicy::RoundRobin);
        assert_eq!(policy_of([with("pick_first", None)]), LbPolicy::PickFirst { shuffle: false });
        let shuffle = object([("shuffleAddressList", Kind::BoolValue(true))]);
        assert_eq!(policy_of([with("pick_first", Some(shuffle))]), LbPolicy::PickFirst { shuffle: true });
        // Not registered: skipped. The message's name is not a registered name.
        let skipped = [with("my_policy", None), with(&RoundRobin::full_name(), None), pack(&PickFirst::default())];
        assert_eq!(policy_of(skipped), LbPolicy::PickFirst { shuffle: false });
    }
}

#[test]
fn r67_a_typed_struct_may_nest_policies() {
    let unknown = Kind::StructValue(object([("my_policy", Kind::StructValue(Struct::default()))]));
    let known = Kind::StructValue(object([("round_robin", Kind::StructValue(Struct::default()))]));
    let config = object([("childPolicy", list([unknown.clone(), known]))]);
    let wrr = |config| typed_struct("xds.type.v3.TypedStruct", "t/xds_wrr_locality_experimental", Some(config));
    let expected = LbPolicy::WrrLocality(Box::new(LbPolicy::RoundRobin));
    assert_eq!(policy_of([wrr(config)]), expected, "L-128: the first that is known");

    // L-128: everything else makes the whole list invalid.
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config.value.childPolicy";
    let reject = |config, expected: &str| assert_eq!(faults_of(&cluster([wrr(config)])), [format!("{path}{expected}")]);
    reject(Struct::default(), ": must be a list of policies");
    reject(object([("childPolicy", list([]))]), ": must not be empty");
    reject(object([("childPolicy", list([unknown]))]), ": no policy is supported: found my_policy");
    let empty = || Kind::StructValue(Struct::default());
    for odd in [Kind::BoolValue(true), Kind::StructValue(object([("round_robin", empty()), ("pick_first", empty())]))] {
        reject(
            object([("childPolicy", list([odd]))]),
            "[0]: must be an object with one key, the name of a policy, and its config, an object",
        );
    }
    let bad = Kind::StructValue(object([("shuffleAddressList", Kind::NumberValue(1.0))]));
    let bad = Kind::StructValue(object([("pick_first", bad)]));
    let good = Kind::StructValue(object([("round_robin", empty())]));
    let faults = faults_of(&cluster([wrr(object([("childPolicy", list([bad, good]))]))]));
    assert!(matches!(&*faults, [fault] if fault.starts_with(&format!("{path}[0]"))), "L-128: {faults:?}");
}

#[test]
fn r66_lists_in_json_count_as_levels_too() {
    let round_robin = Kind::StructValue(object([("round_robin", Kind::StructValue(Struct::default()))]));
    let inner = Kind::StructValue(object([("childPolicy", list([round_robin]))]));
    let outer =
        object([("childPolicy", list([Kind::StructValue(object([("xds_wrr_locality_experimental", inner)]))]))]);
    // Two lists in JSON, so fourteen around them are the most.
    let json = typed_struct("xds.type.v3.TypedStruct", "t/xds_wrr_locality_experimental", Some(outer));
    assert!(parse(&cluster([nested(14, json.clone())])).is_ok());
    let faults = faults_of(&cluster([nested(15, json)]));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].ends_with("childPolicy: policies are nested more than 16 deep"), "{faults:?}");
}

#[test]
fn json_that_is_nested_without_end_is_rejected() {
    let mut kind = Kind::BoolValue(true);
    for _ in 0..1000 {
        kind = list([kind]);
    }
    let deep = typed_struct("xds.type.v3.TypedStruct", "t/round_robin", Some(object([("x", kind)])));
    let faults = faults_of(&cluster([deep]));
    assert!(faults[0].contains(".typed_config.value: is not a TypedStruct: "), "{faults:?}");
}

#[test]
fn r5_a_broken_typed_struct_is_rejected() {
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config.value";
    let nameless = typed_struct("xds.type.v3.TypedStruct", "", None);
    assert_eq!(
        faults_of(&cluster([nameless])),
        [format!("{path}.type_url: \"\" is not a type URL: expected a prefix, a slash and a message name")]
    );
    let garbage = Any { type_url: "t/xds.type.v3.TypedStruct".into(), value: vec![0xff] };
    assert!(faults_of(&cluster([garbage]))[0].starts_with(&format!("{path}: is not a TypedStruct")));
    let number = object([("shuffleAddressList", Kind::NumberValue(1.0))]);
    assert_eq!(
        faults_of(&cluster([typed_struct("xds.type.v3.TypedStruct", "t/pick_first", Some(number))])),
        [format!("{path}.shuffleAddressList: must be true or false")]
    );
}

#[test]
fn r68_the_old_field_means_round_robin_in_weighted_localities() {
    let pb = pb::Cluster { lb_policy: LegacyPolicy::RoundRobin as i32, ..eds("c") };
    assert_eq!(parse(&pb).unwrap().lb_policy, LbPolicy::WrrLocality(Box::new(LbPolicy::RoundRobin)));
}

#[test]
fn r68_other_values_of_the_old_field_are_rejected() {
    let reject = |lb_policy, expected: &str| assert_eq!(faults_of(&pb::Cluster { lb_policy, ..eds("c") }), [expected]);
    let expected = "expected ROUND_ROBIN, RING_HASH or LEAST_REQUEST";
    reject(3, &format!("lb_policy: RANDOM is not supported: {expected}"));
    reject(6, &format!("lb_policy: CLUSTER_PROVIDED is not supported: {expected}"));
    reject(7, &format!("lb_policy: LOAD_BALANCING_POLICY_CONFIG is not supported: {expected}"));
    reject(99, &format!("lb_policy: unknown value 99: {expected}"));
}

#[test]
fn r67_the_ring_of_ring_hash_has_bounds() {
    let config = |min: u32, max: u32| {
        LbPolicy::RingHash(RingHashConfig { min_ring_size: min, max_ring_size: max, request_hash_header: None })
    };
    let size = |value| Some(UInt64Value { value });
    let with = |min, max| RingHash { minimum_ring_size: min, maximum_ring_size: max, ..Default::default() };
    assert_eq!(policy_of([pack(&RingHash::default())]), config(1024, 8_388_608), "R-69");
    assert_eq!(policy_of([pack(&with(size(1), size(1)))]), config(1, 1));
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    let reject = |pb: RingHash, expected: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|text| format!("{path}.{text}")).collect();
        assert_eq!(faults_of(&cluster([pack(&pb)])), expected);
    };
    reject(
        with(size(0), size(8_388_609)),
        &["minimum_ring_size: is 0: expected 1 to 8388608", "maximum_ring_size: is 8388609: expected 1 to 8388608"],
    );
    reject(with(size(2000), size(1999)), &["minimum_ring_size: is 2000, above maximum_ring_size, which is 1999"]);
    let murmur = RingHash { hash_function: 2, ..Default::default() };
    reject(murmur, &["hash_function: value 2 is not supported: expected XX_HASH"]);
}

#[test]
fn r67_ring_hash_in_json_may_name_a_header() {
    let with = |config| typed_struct("xds.type.v3.TypedStruct", "t/ring_hash_experimental", Some(config));
    let config = |min_ring_size, max_ring_size, header: Option<&str>| {
        let request_hash_header = header.map(str::to_owned);
        LbPolicy::RingHash(RingHashConfig { min_ring_size, max_ring_size, request_hash_header })
    };
    assert_eq!(policy_of([with(Struct::default())]), config(1024, 4096, None), "L-111");
    let text = |text: &str| Kind::StringValue(text.into());
    let fields = object([("minRingSize", text("7")), ("requestHashHeader", text("X-User"))]);
    assert_eq!(policy_of([with(fields)]), config(7, 4096, Some("x-user")), "L-111: A76");
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config.value";
    for name in ["user-bin", "no name", ":path", "User-BIN"] {
        let fault = format!("{name:?} cannot be hashed: expected the name of a header that is not binary");
        let faults = faults_of(&cluster([with(object([("requestHashHeader", text(name))]))]));
        assert_eq!(faults, [format!("{path}.requestHashHeader: {fault}")], "L-111");
    }
}

#[test]
fn r67_least_request_compares_two_to_ten() {
    let with =
        |count: u32| pack(&LeastRequest { choice_count: Some(UInt32Value { value: count }), ..Default::default() });
    assert_eq!(policy_of([pack(&LeastRequest::default())]), LbPolicy::LeastRequest { choices: 2 }, "L-105");
    assert_eq!(policy_of([with(10)]), LbPolicy::LeastRequest { choices: 10 });
    assert_eq!(policy_of([with(u32::MAX)]), LbPolicy::LeastRequest { choices: 10 }, "L-105: capped");
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    assert_eq!(faults_of(&cluster([with(1)])), [format!("{path}.choice_count: is 1: expected at least 2")], "L-105");
    let json = object([("choiceCount", Kind::NumberValue(3.0))]);
    let json = typed_struct("xds.type.v3.TypedStruct", "t/least_request_experimental", Some(json));
    assert_eq!(policy_of([json]), LbPolicy::LeastRequest { choices: 3 });
}

#[test]
fn r67_weighted_round_robin_has_defaults_and_bounds() {
    let seconds = |seconds| Some(PbDuration { seconds, nanos: 0 });
    let config = |pb: &ClientSideWeightedRoundRobin| match policy_of([pack(pb)]) {
        LbPolicy::WeightedRoundRobin(config) => *config,
        other => panic!("{other}"),
    };
    let defaults = config(&ClientSideWeightedRoundRobin::default());
    assert_eq!(
        defaults,
        WeightedRoundRobinConfig {
            oob_reporting_period: None,
            blackout_period: Duration::from_secs(10),
            weight_expiration_period: Duration::from_secs(180),
            weight_update_period: Duration::from_secs(1),
            weighing: Weighing { error_utilization_penalty: Penalty::new(1.0).unwrap(), metrics: vec![] },
        },
        "L-106"
    );
    let pb = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(BoolValue { value: true }),
        weight_update_period: seconds(0),
        blackout_period: seconds(0),
        error_utilization_penalty: Some(FloatValue { value: 0.5 }),
        metric_names_for_computing_utilization: vec!["named_metrics.a.b".into(), "rps".into(), "x.y".into()],
        ..Default::default()
    };
    let found = config(&pb);
    assert_eq!(found.oob_reporting_period, Some(Duration::from_secs(10)), "L-106");
    assert_eq!(found.weight_update_period, Duration::from_millis(100), "L-106: no less");
    assert_eq!(found.blackout_period, Duration::ZERO);
    assert_eq!(found.weighing.metrics, [Metric::Named("a.b".into())], "A114: the first period; others are unknown");
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    for value in [-0.5, f32::NAN, f32::INFINITY] {
        let pb = ClientSideWeightedRoundRobin { error_utilization_penalty: Some(FloatValue { value }), ..pb.clone() };
        let fault = format!("{path}.error_utilization_penalty: is {value}: expected a number that is not negative");
        assert_eq!(faults_of(&cluster([pack(&pb)])), [fault], "L-106");
    }
    let pb = ClientSideWeightedRoundRobin { blackout_period: seconds(-1), ..Default::default() };
    assert!(faults_of(&cluster([pack(&pb)]))[0].starts_with(&format!("{path}.blackout_period: duration of -1 s")));

    let json =
        object([("blackoutPeriod", Kind::StringValue("1.5s".into())), ("weightUpdatePeriod", Kind::NullValue(0))]);
    let json = typed_struct("xds.type.v3.TypedStruct", "t/weighted_round_robin", Some(json));
    let expected = WeightedRoundRobinConfig { blackout_period: Duration::from_millis(1500), ..defaults };
    assert_eq!(policy_of([json]), LbPolicy::WeightedRoundRobin(Box::new(expected)));
}

#[test]
fn r67_random_subsetting_needs_a_size_and_a_child() {
    let child = || Some(pb::LoadBalancingPolicy { policies: vec![policy(pack(&RoundRobin::default()))] });
    let with = |size, child_policy| {
        let subset_size = Some(UInt32Value { value: size });
        pack(&RandomSubsetting { subset_size, child_policy })
    };
    let expected = LbPolicy::RandomSubsetting { size: 3, child: Box::new(LbPolicy::RoundRobin) };
    assert_eq!(policy_of([with(3, child())]), expected);
    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config";
    assert_eq!(
        faults_of(&cluster([with(0, None)])),
        [format!("{path}.subset_size: is 0: expected 1 to 4294967295"), format!("{path}.child_policy: must be set")]
    );
    let round_robin = Kind::StructValue(object([("round_robin", Kind::StructValue(Struct::default()))]));
    let json = object([("subsetSize", Kind::NumberValue(3.0)), ("childPolicy", list([round_robin]))]);
    let json = typed_struct("xds.type.v3.TypedStruct", "t/random_subsetting_experimental", Some(json));
    assert_eq!(policy_of([json]), expected);
}

#[test]
fn r68_old_policies_have_old_configs() {
    let parsed = |policy: LegacyPolicy, lb_config| {
        parse(&pb::Cluster { lb_policy: policy as i32, lb_config, ..eds("c") }).unwrap().lb_policy
    };
    let least = |choices| LbPolicy::WrrLocality(Box::new(LbPolicy::LeastRequest { choices }));
    let ring = |min_ring_size, max_ring_size| {
        LbPolicy::RingHash(RingHashConfig { min_ring_size, max_ring_size, request_hash_header: None })
    };
    assert_eq!(parsed(LegacyPolicy::LeastRequest, None), least(2));
    assert_eq!(parsed(LegacyPolicy::RingHash, None), ring(1024, 8_388_608));
    let choice_count = Some(UInt32Value { value: 4 });
    let config = LbConfig::LeastRequestLbConfig(LeastRequestLbConfig { choice_count, ..Default::default() });
    assert_eq!(parsed(LegacyPolicy::LeastRequest, Some(config.clone())), least(4));
    // A config of another policy does not count.
    assert_eq!(parsed(LegacyPolicy::RingHash, Some(config)), ring(1024, 8_388_608));
    let minimum_ring_size = Some(UInt64Value { value: 9 });
    let config = RingHashLbConfig { minimum_ring_size, ..Default::default() };
    assert_eq!(parsed(LegacyPolicy::RingHash, Some(LbConfig::RingHashLbConfig(config))), ring(9, 8_388_608));
    let config = Some(LbConfig::RingHashLbConfig(RingHashLbConfig { hash_function: 1, ..config }));
    let pb = pb::Cluster { lb_policy: LegacyPolicy::RingHash as i32, lb_config: config, ..eds("c") };
    assert_eq!(faults_of(&pb), ["ring_hash_lb_config.hash_function: value 1 is not supported: expected XX_HASH"]);
}

#[test]
fn the_registry_names_the_messages_as_they_are_called() {
    let names: Vec<&str> = POLICIES.iter().map(|policy| policy.message).collect();
    let messages = [
        WrrLocality::full_name(),
        RoundRobin::full_name(),
        PickFirst::full_name(),
        RingHash::full_name(),
        LeastRequest::full_name(),
        ClientSideWeightedRoundRobin::full_name(),
        RandomSubsetting::full_name(),
    ];
    assert_eq!(names, messages);
}

fn cluster(policies: impl IntoIterator<Item = Any>) -> pb::Cluster {
    let policies = policies.into_iter().map(policy).collect();
    pb::Cluster { load_balancing_policy: Some(pb::LoadBalancingPolicy { policies }), ..eds("c") }
}

#[track_caller]
fn policy_of(policies: impl IntoIterator<Item = Any>) -> LbPolicy {
    parse(&cluster(policies)).unwrap().lb_policy
}

/// `levels` lists of policies, one in the other; the last has `any`.
fn nested(levels: usize, mut any: Any) -> Any {
    for _ in 1..levels {
        let child = pb::LoadBalancingPolicy { policies: vec![policy(any)] };
        any = pack(&WrrLocality { endpoint_picking_policy: Some(child) });
    }
    any
}

fn typed_struct(wrapper: &str, type_url: &str, value: Option<Struct>) -> Any {
    let inner = TypedStruct { type_url: type_url.into(), value };
    Any { type_url: format!("type.googleapis.com/{wrapper}"), value: inner.encode_to_vec() }
}

fn object<const N: usize>(fields: [(&str, Kind); N]) -> Struct {
    Struct { fields: fields.into_iter().map(|(key, kind)| (key.to_owned(), Value { kind: Some(kind) })).collect() }
}

fn list<const N: usize>(values: [Kind; N]) -> Kind {
    Kind::ListValue(ListValue { values: values.into_iter().map(|kind| Value { kind: Some(kind) }).collect() })
}
