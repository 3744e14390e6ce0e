use std::net::IpAddr;

use mainstay_control_plane::TypeUrl;
use proptest::prelude::{any, proptest};

use super::*;
use crate::kubernetes::object::{ConfigMap, Endpoint, Family, Port, Readiness};

#[test]
fn each_tcp_port_has_listeners_a_route_a_cluster_and_endpoints_kb1() {
    let mut model = model();
    model.put(Key::new("prod", "greeter"), service(&[("grpc", 80), ("admin", 81)]));
    model.put(Key::new("prod", "greeter-x"), slice(Some("greeter"), &[("grpc", 8080)], &[1]));
    let (snapshots, problems) = model.snapshots().expect("it is new");
    assert!(problems.is_empty() && snapshots.nodes.is_empty());
    let mut expected = Snapshot::builder();
    for (port, endpoints) in [(80, &["10.0.0.1:8080"][..]), (81, &[])] {
        let name = format!("greeter.prod:{port}");
        for listener in
            [name.clone(), format!("greeter.prod.svc:{port}"), format!("greeter.prod.svc.cluster.local:{port}")]
        {
            expected = expected.listener(resources::listener(listener, resources::rds(&name)));
        }
        expected = expected.route(resources::route(&name, &name)).cluster(resources::eds_cluster(&name));
        let mut assignment = resources::endpoints(&name, endpoints);
        for locality in &mut assignment.endpoints {
            locality.locality = Some(envoy_types::pb::envoy::config::core::v3::Locality {
                region: "eu".to_owned(),
                zone: "z".to_owned(),
                ..Default::default()
            });
        }
        assignment.endpoints.retain(|locality| !locality.lb_endpoints.is_empty());
        expected = expected.endpoints(assignment);
    }
    assert_eq!(snapshots.default, expected.build());
}

#[test]
fn services_without_endpoints_of_their_own_are_left_out_kb6() {
    let mut model = model();
    model.put(Key::new("prod", "elsewhere"), Object::Service(Service::ExternalName("example.com".to_owned())));
    model.put(Key::new("prod", "no-ports"), service(&[]));
    model.put(Key::new("prod", "orphan"), slice(None, &[("", 80)], &[1]));
    model.put(Key::new("prod", "early"), slice(Some("not-there-yet"), &[("", 80)], &[1]));
    assert!(model.snapshots().expect("it is new").0.default.is_empty());
}

#[test]
fn a_change_has_its_own_service_made_anew_and_no_other_kb7() {
    let mut model = model();
    for n in 0..1_000 {
        model.put(Key::new("prod", format!("s{n}")), service(&[("", 80)]));
        model.put(Key::new("prod", format!("s{n}-x")), slice(Some(&format!("s{n}")), &[("", 80)], &[1, 2]));
    }
    model.snapshots();
    assert_eq!(model.computed, 1_000);
    model.put(Key::new("prod", "s7-x"), slice(Some("s7"), &[("", 80)], &[1, 3]));
    assert!(model.is_dirty() && model.snapshots().is_some());
    assert_eq!(model.computed, 1_001);
    // What is as it was costs nothing, and neither does what makes no difference.
    model.put(Key::new("prod", "s7-x"), slice(Some("s7"), &[("", 80)], &[1, 3]));
    assert!(!model.is_dirty() && model.snapshots().is_none());
    model.put(Key::new("prod", "s7-x"), slice(Some("s7"), &[("", 80)], &[3, 1]));
    assert!(model.is_dirty() && model.snapshots().is_none());
    // A slice that changes hands concerns both.
    model.put(Key::new("prod", "s7-x"), slice(Some("s8"), &[("", 80)], &[3]));
    assert!(model.snapshots().is_some());
    assert_eq!(model.computed, 1_004);
}

proptest! {
    /// Whatever happened before, what is served is what a walk over all that there is finds.
    #[test]
    fn any_history_ends_where_its_final_state_leads_kb7(history in proptest::collection::vec(any::<[u8; 8]>(), 0..60)) {
        let (mut model, mut world) = (model(), World::default());
        for step in history {
            world.step(&mut model, step);
            if step[7] % 3 == 0 {
                model.snapshots();
            }
        }
        model.changed = true;
        let (snapshots, _) = model.snapshots().expect("it is said to be new");
        assert_eq!(seen(&snapshots.default), world.expected());
        let mut anew = self::model();
        world.services.iter().for_each(|(key, service)| anew.put(key.clone(), service.clone()));
        world.slices.iter().for_each(|(key, slice)| anew.put(key.clone(), slice.clone()));
        world.good.iter().for_each(|(key, good)| anew.put(key.clone(), Object::ConfigMap(good.clone())));
        let all = |snapshot: &Snapshot| snapshot.resources().collect::<Vec<_>>();
        assert_eq!(all(&anew.snapshots().expect("it is new").0.default), all(&snapshots.default));
    }
}

/// All that there is, as nobody would keep it who has to be fast.
#[derive(Default)]
struct World {
    services: BTreeMap<Key, Object>,
    slices: BTreeMap<Key, Object>,
    good: BTreeMap<Key, ConfigMap>,
}

/// Names with the addresses to which they lead; resources of ConfigMaps lead nowhere.
type Seen = BTreeMap<String, BTreeSet<String>>;

impl World {
    fn step(&mut self, model: &mut Model, [what, which, a, b, c, d, e, _]: [u8; 8]) {
        let namespace = ["m", "n"][usize::from(which % 2)];
        let service_name = format!("s{}", (which / 2) % 3);
        let key = Key::new(namespace, &service_name);
        match what % 8 {
            0 | 1 => {
                let ports: Vec<_> =
                    [("a", 80), ("b", 81)].into_iter().filter(|(_, n)| a & (1 << (n % 2)) != 0).collect();
                let object =
                    if b % 8 == 0 { Object::Service(Service::ExternalName("x".to_owned())) } else { service(&ports) };
                self.services.insert(key.clone(), object.clone());
                model.put(key, object);
            }
            2 => {
                self.services.remove(&key);
                model.remove_service(key);
            }
            3..=5 => {
                let owner = (a % 7 != 0).then_some(service_name.as_str());
                let ports = [("a", 8000 + u16::from(b % 2)), ("b", 9000)];
                let mut object = slice(owner, &ports[..usize::from(b % 3)], &[c % 4, d % 4, e % 4]);
                if let Object::Slice(slice) = &mut object {
                    for (endpoint, bits) in slice.endpoints.iter_mut().zip([c, d, e]) {
                        endpoint.readiness =
                            [Readiness::Unready, Readiness::Draining, Readiness::Ready][usize::from(bits / 4 % 3)];
                    }
                }
                let key = Key::new(namespace, format!("slice{}", a % 5));
                self.slices.insert(key.clone(), object.clone());
                model.put(key, object);
            }
            6 => {
                let key = Key::new(namespace, format!("slice{}", a % 5));
                self.slices.remove(&key);
                model.remove_slice(&key);
            }
            _ => {
                let key = Key::new(namespace, format!("map{}", a % 2));
                let text = match b % 3 {
                    0 => "nonsense: yes".to_owned(),
                    _ => format!(
                        "{{'@type': envoy.config.route.v3.RouteConfiguration, name: {service_name}.{namespace}:80}}"
                    ),
                };
                let map = ConfigMap { data: [("r.yaml".to_owned(), text)].into(), ..ConfigMap::default() };
                if c % 4 == 0 {
                    self.good.remove(&key);
                    model.remove_config_map(key);
                } else {
                    if b % 3 != 0 {
                        self.good.insert(key.clone(), map.clone());
                    }
                    model.put(key, Object::ConfigMap(map));
                }
            }
        }
    }

    fn expected(&self) -> Seen {
        let mut seen = Seen::new();
        for (key, object) in &self.services {
            let Object::Service(Service::Sliced { ports, .. }) = object else { continue };
            for port in ports {
                let mut best = BTreeMap::<String, Readiness>::new();
                for (slice_key, object) in &self.slices {
                    let Object::Slice(slice) = object else { continue };
                    if slice_key.namespace != key.namespace || slice.service.as_deref() != Some(&key.name) {
                        continue;
                    }
                    for there in slice.ports.iter().filter(|there| there.name == port.name) {
                        for endpoint in &slice.endpoints {
                            let readiness = best
                                .entry(format!("{}:{}", endpoint.address, there.number))
                                .or_insert(endpoint.readiness);
                            *readiness = endpoint.readiness.max(*readiness);
                        }
                    }
                }
                let is_any_ready = best.values().any(|readiness| *readiness == Readiness::Ready);
                let addresses = best.into_iter().filter_map(|(address, readiness)| match (readiness, is_any_ready) {
                    (Readiness::Unready, _) => None,
                    (Readiness::Draining, true) => Some(format!("{address} draining")),
                    (Readiness::Draining, false) | (Readiness::Ready, _) => Some(address),
                });
                let of_map = self.good.iter().any(|(map, good)| {
                    map.namespace == key.namespace
                        && good.data["r.yaml"].contains(&format!("{}.{}:{}}}", key.name, key.namespace, port.number))
                });
                seen.insert(
                    format!("{}.{}:{}{}", key.name, key.namespace, port.number, if of_map { " own" } else { "" }),
                    addresses.collect(),
                );
            }
        }
        seen
    }
}

/// What clients would find: from each listener to the endpoints.
fn seen(snapshot: &Snapshot) -> Seen {
    use envoy_types::pb::envoy::config::core::v3::HealthStatus;
    use envoy_types::pb::envoy::config::core::v3::address::Address::SocketAddress;
    use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier::PortValue;
    use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
    use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    use mainstay_control_plane::Body;
    use prost::Message as _;
    let mut seen = Seen::new();
    for resource in snapshot.resources().filter(|resource| resource.type_url == TypeUrl::ENDPOINTS) {
        let name = &resource.name;
        let (service, port) = name.split_once(':').expect("a port");
        for form in ["", ".svc", ".svc.cluster.local"] {
            assert!(snapshot.contains(&TypeUrl::LISTENER, &format!("{service}{form}:{port}")));
        }
        assert!(snapshot.contains(&TypeUrl::CLUSTER, name));
        let Body::Message(any) = &resource.body else { panic!("{resource:?}") };
        let assignment = ClusterLoadAssignment::decode(&*any.value).expect("an assignment");
        let mut addresses = BTreeSet::new();
        for endpoint in assignment.endpoints.iter().flat_map(|locality| &locality.lb_endpoints) {
            let Some(HostIdentifier::Endpoint(host)) = &endpoint.host_identifier else { panic!("{endpoint:?}") };
            let Some(SocketAddress(socket)) = host.address.as_ref().and_then(|address| address.address.as_ref()) else {
                panic!("{host:?}")
            };
            let Some(PortValue(port)) = socket.port_specifier else { panic!("{socket:?}") };
            let draining = if endpoint.health_status() == HealthStatus::Draining { " draining" } else { "" };
            assert!(addresses.insert(format!("{}:{port}{draining}", socket.address)), "once each");
        }
        let made: Resource = resources::route(name, name).into();
        let route = snapshot.resources().find(|route| route.type_url == TypeUrl::ROUTE && route.name == *name);
        let is_own = route.is_none_or(|route| route != made);
        seen.insert(format!("{name}{}", if is_own { " own" } else { "" }), addresses);
    }
    seen
}

fn model() -> Model {
    let frame = Frame { domain: "cluster.local".to_owned(), region: "eu".to_owned() };
    Model::new(frame, Judge::new(|_: &_| Ok(())))
}

fn service(ports: &[(&str, u16)]) -> Object {
    Object::Service(Service::Sliced { ports: self::ports(ports), family: Family::V4 })
}

fn slice(service: Option<&str>, ports: &[(&str, u16)], endpoints: &[u8]) -> Object {
    let endpoints = endpoints.iter().map(|last| Endpoint {
        address: IpAddr::from([10, 0, 0, *last]),
        readiness: Readiness::Ready,
        zone: "z".to_owned(),
        target: None,
    });
    Object::Slice(Slice {
        service: service.map(str::to_owned),
        ports: self::ports(ports),
        endpoints: endpoints.collect(),
    })
}

fn ports(ports: &[(&str, u16)]) -> Vec<Port> {
    ports.iter().map(|(name, number)| Port { name: (*name).to_owned(), number: *number }).collect()
}
