//! through the Cluster that carries them.

use envoy_types::pb::google::protobuf::ListValue;
use pb_policies::least_request::v3::LeastRequest;
use pb_policies::pick_first::v3::PickFirst;
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
        pack(&RingHash::default()),
        pack(&LeastRequest::default()),
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
        faults_of(&cluster([pack(&RingHash::default()), Any { type_url: "t/my.Policy".into(), value: vec![] }])),
        [format!("{path}: no policy is supported: found {}, my.Policy", RingHash::full_name())]
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
    let child = pb::LoadBalancingPolicy { policies: vec![policy(pack(&RingHash::default()))] };
    let wrr = WrrLocality { endpoint_picking_policy: Some(child) };
    // An unsupported child makes the parent unusable; the next entry is not tried.
    assert_eq!(
        faults_of(&cluster([pack(&wrr), pack(&RoundRobin::default())])),
        [format!("{path}.policies: no policy is supported: found {}", RingHash::full_name())]
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
    assert_eq!(policy_of([wrr(config)]), LbPolicy::WrrLocality(Box::new(LbPolicy::RoundRobin)));

    let path = "load_balancing_policy.policies[0].typed_extension_config.typed_config.value.childPolicy";
    let reject = |config, expected: &str| assert_eq!(faults_of(&cluster([wrr(config)])), [format!("{path}{expected}")]);
    reject(Struct::default(), ": must be a list of policies");
    reject(object([("childPolicy", list([]))]), ": must not be empty");
    reject(object([("childPolicy", list([unknown]))]), ": no policy is supported: found my_policy");
    reject(
        object([("childPolicy", list([Kind::BoolValue(true)]))]),
        "[0]: must be an object with one key, the name of a policy, and its config, an object",
    );
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
    reject(1, "lb_policy: LEAST_REQUEST is not supported: expected ROUND_ROBIN");
    reject(2, "lb_policy: RING_HASH is not supported: expected ROUND_ROBIN");
    reject(3, "lb_policy: RANDOM is not supported: expected ROUND_ROBIN");
    reject(6, "lb_policy: CLUSTER_PROVIDED is not supported: expected ROUND_ROBIN");
    reject(7, "lb_policy: LOAD_BALANCING_POLICY_CONFIG is not supported: expected ROUND_ROBIN");
    reject(99, "lb_policy: unknown value 99: expected ROUND_ROBIN");
}

#[test]
fn the_registry_names_the_messages_as_they_are_called() {
    let names: Vec<&str> = POLICIES.iter().map(|policy| policy.message).collect();
    assert_eq!(names, [WrrLocality::full_name(), RoundRobin::full_name(), PickFirst::full_name()]);
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
