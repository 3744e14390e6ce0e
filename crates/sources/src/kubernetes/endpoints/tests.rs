use super::*;
use crate::kubernetes::object::{Endpoint, Port};

#[test]
fn zones_are_localities_of_as_much_weight_as_they_have_endpoints_kb4() {
    let slices =
        [slice(8080, &[("10.0.0.2", "b", READY), ("10.0.0.1", "a", READY)]), slice(8080, &[("10.0.0.3", "b", READY)])];
    let assignment = assignment("s.n:80".to_owned(), "grpc", Family::V4, "eu", &slices);
    assert_eq!(assignment.cluster_name, "s.n:80");
    assert!(assignment.endpoints.iter().all(|locality| locality.locality.as_ref().is_some_and(|l| l.region == "eu")));
    assert_eq!(told(&assignment), ["a*1 10.0.0.1:8080", "b*2 10.0.0.2:8080 10.0.0.3:8080"]);
}

#[test]
fn readiness_is_health_and_what_is_not_ready_is_left_out_kb3() {
    for (endpoints, expected) in [
        (&[("10.0.0.1", "a", READY), ("10.0.0.2", "a", Readiness::Unready)][..], &["a*1 10.0.0.1:1"][..]),
        (&[("10.0.0.1", "a", READY), ("10.0.0.2", "b", DRAINING)], &["a*1 10.0.0.1:1", "b*1 10.0.0.2:1(draining)"]),
        // As kube-proxy: the last that are there are used although they are going away.
        (&[("10.0.0.1", "a", Readiness::Unready), ("10.0.0.2", "a", DRAINING)], &["a*1 10.0.0.2:1"]),
        (&[("10.0.0.1", "a", Readiness::Unready)], &[]),
    ] {
        let assignment = assignment("c".to_owned(), "grpc", Family::V4, "", &[slice(1, endpoints)]);
        assert_eq!(told(&assignment), expected, "{endpoints:?}");
    }
}

#[test]
fn an_address_in_two_slices_counts_once_with_the_better_word_kb2() {
    let (one, other) = (slice(1, &[("10.0.0.1", "a", DRAINING)]), slice(1, &[("10.0.0.1", "b", READY)]));
    for slices in [[one.clone(), other.clone()], [other, one]] {
        let assignment = assignment("c".to_owned(), "grpc", Family::V4, "", &slices);
        assert_eq!(told(&assignment), ["b*1 10.0.0.1:1"]);
    }
}

#[test]
fn a_named_target_port_has_a_number_in_each_slice_kb2() {
    let slices = [slice(8080, &[("10.0.0.1", "", READY)]), slice(9090, &[("10.0.0.2", "", READY)])];
    let of = |port| told(&assignment("c".to_owned(), port, Family::V4, "", &slices));
    assert_eq!(of("grpc"), ["*2 10.0.0.1:8080 10.0.0.2:9090"]);
    assert!(of("other").is_empty());
}

#[test]
fn both_addresses_of_a_pod_are_one_endpoint_kb5() {
    let mut v4 = slice(1, &[("10.0.0.1", "a", READY), ("10.0.0.2", "a", READY)]);
    let mut v6 = slice(1, &[("fd00::2", "a", READY), ("fd00::1", "a", READY), ("fd00::3", "a", READY)]);
    for (slice, pods) in [(&mut v4, &["x", "y"][..]), (&mut v6, &["y", "x", "z"])] {
        for (endpoint, pod) in slice.endpoints.iter_mut().zip(pods) {
            endpoint.target = Some((*pod).to_owned());
        }
    }
    let of = |family| told(&assignment("c".to_owned(), "grpc", family, "", &[v4.clone(), v6.clone()]));
    assert_eq!(of(Family::V4), ["a*3 10.0.0.1:1+[fd00::1]:1 10.0.0.2:1+[fd00::2]:1 [fd00::3]:1"]);
    assert_eq!(of(Family::V6), ["a*3 [fd00::1]:1+10.0.0.1:1 [fd00::2]:1+10.0.0.2:1 [fd00::3]:1"]);
}

const READY: Readiness = Readiness::Ready;
const DRAINING: Readiness = Readiness::Draining;

fn slice(port: u16, endpoints: &[(&str, &str, Readiness)]) -> Slice {
    let endpoints = endpoints.iter().map(|(address, zone, readiness)| Endpoint {
        address: address.parse().expect("an address"),
        readiness: *readiness,
        zone: (*zone).to_owned(),
        target: None,
    });
    let ports = vec![Port { name: "grpc".to_owned(), number: port }];
    Slice { service: Some("s".to_owned()), ports, endpoints: endpoints.collect() }
}

/// Each locality as `zone*weight address…`.
fn told(assignment: &ClusterLoadAssignment) -> Vec<String> {
    use envoy_types::pb::envoy::config::core::v3::Address;
    use envoy_types::pb::envoy::config::core::v3::address::Address::SocketAddress;
    use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier::PortValue;
    let text = |address: &Address| match &address.address {
        Some(SocketAddress(socket)) => match socket.port_specifier {
            Some(PortValue(port)) => {
                SocketAddr::new(socket.address.parse().expect("an address"), u16::try_from(port).expect("a port"))
                    .to_string()
            }
            _ => panic!("{socket:?}"),
        },
        _ => panic!("{address:?}"),
    };
    let endpoint = |endpoint: &LbEndpoint| {
        let Some(HostIdentifier::Endpoint(host)) = &endpoint.host_identifier else { panic!("{endpoint:?}") };
        let others = host.additional_addresses.iter().filter_map(|other| other.address.as_ref());
        let all: Vec<_> = host.address.iter().chain(others).map(text).collect();
        let draining = if endpoint.health_status() == HealthStatus::Draining { "(draining)" } else { "" };
        format!(" {}{draining}", all.join("+"))
    };
    let localities = assignment.endpoints.iter().map(|locality| {
        let zone = &locality.locality.as_ref().expect("a locality").zone;
        let weight = locality.load_balancing_weight.expect("a weight").value;
        format!("{zone}*{weight}{}", locality.lb_endpoints.iter().map(endpoint).collect::<String>())
    });
    localities.collect()
}
