//! From the objects of the API to plain values. What cannot be understood is left out, and told.

use std::fmt::Debug;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Resource;
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;

use crate::kubernetes::object::{ConfigMap, Endpoint, Family, Key, Kind, Object, Port, Readiness, Service, Slice};

/// An object of the API that is read.
pub(crate) trait Parse:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
    const KIND: Kind;

    /// What it says; what of it cannot be understood goes to `faults`.
    fn parse(self, faults: &mut Vec<String>) -> Object;
}

/// Which object this is, and in which version.
pub(crate) fn identity(meta: &ObjectMeta) -> (Key, String) {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    (Key::new(part(&meta.namespace), part(&meta.name)), part(&meta.resource_version))
}

impl Parse for core::Service {
    const KIND: Kind = Kind::Services;

    fn parse(self, faults: &mut Vec<String>) -> Object {
        let spec = self.spec.unwrap_or_default();
        if spec.type_.as_deref() == Some("ExternalName") {
            return Object::Service(Service::ExternalName(spec.external_name.unwrap_or_default()));
        }
        let family = match spec.ip_families.unwrap_or_default().first().map(String::as_str) {
            Some("IPv6") => Family::V6,
            _ => Family::V4,
        };
        let mut ports = Vec::new();
        for (i, port) in spec.ports.unwrap_or_default().into_iter().enumerate() {
            if is_tcp(port.protocol.as_deref()) {
                let name = port.name.unwrap_or_default();
                ports.extend(
                    number(port.port, || format!("spec.ports[{i}].port"), faults).map(|number| Port { name, number }),
                );
            }
        }
        Object::Service(Service::Sliced { ports, family })
    }
}

impl Parse for discovery::EndpointSlice {
    const KIND: Kind = Kind::EndpointSlices;

    fn parse(self, faults: &mut Vec<String>) -> Object {
        let service = self.metadata.labels.unwrap_or_default().remove(SERVICE_NAME);
        let mut ports = Vec::new();
        for (i, port) in self.ports.unwrap_or_default().into_iter().enumerate() {
            // Without a number it stands for every port, of which none can be connected to.
            let Some(there) = port.port.filter(|_| is_tcp(port.protocol.as_deref())) else { continue };
            let name = port.name.unwrap_or_default();
            ports.extend(number(there, || format!("ports[{i}].port"), faults).map(|number| Port { name, number }));
        }
        let mut endpoints = Vec::new();
        // Host names in the place of addresses are deprecated, and no controller of Kubernetes writes them.
        let all = if self.address_type == "FQDN" {
            faults.push("addressType is FQDN: expected IPv4 or IPv6".to_owned());
            Vec::new()
        } else {
            self.endpoints
        };
        for (i, endpoint) in all.into_iter().enumerate() {
            // More than one has no meaning that is defined; kube-proxy takes the first, too.
            let Some(address) = endpoint.addresses.first() else { continue };
            let Ok(address) = address.parse() else {
                faults.push(format!("endpoints[{i}].addresses[0]: expected an IP address, found {address:?}"));
                continue;
            };
            let conditions = endpoint.conditions.unwrap_or_default();
            endpoints.push(Endpoint {
                address,
                readiness: Readiness::new(conditions.ready, conditions.serving, conditions.terminating),
                zone: endpoint.zone.unwrap_or_default(),
                target: endpoint.target_ref.and_then(|target| target.uid.or(target.name)),
            });
        }
        Object::Slice(Slice { service, ports, endpoints })
    }
}

impl Parse for core::ConfigMap {
    const KIND: Kind = Kind::ConfigMaps;

    fn parse(self, _faults: &mut Vec<String>) -> Object {
        let binary = self.binary_data.unwrap_or_default().into_keys().collect();
        Object::ConfigMap(ConfigMap { data: self.data.unwrap_or_default(), binary })
    }
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

fn number(port: i32, field: impl Fn() -> String, faults: &mut Vec<String>) -> Option<u16> {
    let number = u16::try_from(port).ok().filter(|number| *number != 0);
    if number.is_none() {
        faults.push(format!("{}: expected 1 to 65535, found {port}", field()));
    }
    number
}

/// The label by which EndpointSlices name their Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_its_tcp_ports_kb1() {
        let service = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "s", "resourceVersion": "7"},
            "spec": {"clusterIP": "None", "ipFamilies": ["IPv6", "IPv4"], "ports": [
                {"name": "grpc", "port": 50051, "targetPort": "grpc"}, {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "wrong", "port": 70000, "protocol": "TCP"}]}}"#;
        let service: core::Service = serde_json::from_str(service).expect("a Service");
        assert_eq!(identity(&service.metadata), (Key::new("n", "s"), "7".to_owned()));
        let (object, faults) = parse(service);
        let ports = vec![Port { name: "grpc".to_owned(), number: 50051 }];
        assert_eq!(object, Object::Service(Service::Sliced { ports, family: Family::V6 }));
        assert_eq!(faults, ["spec.ports[2].port: expected 1 to 65535, found 70000"]);
        let external = r#"{"spec": {"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80}]}}"#;
        let (object, _) = parse::<core::Service>(serde_json::from_str(external).expect("a Service"));
        assert_eq!(object, Object::Service(Service::ExternalName("example.com".to_owned())));
    }

    #[test]
    fn a_slice_is_what_can_be_connected_to_kb2() {
        let slice = r#"{"metadata": {"labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
            "ports": [{"name": "grpc", "port": 8080}, {"name": "all"}, {"port": 1, "protocol": "SCTP"}],
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.9"], "zone": "a", "targetRef": {"kind": "Pod", "name": "p", "uid": "u"}},
                {"addresses": ["ten"]},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}}]}"#;
        let (object, faults) =
            parse::<discovery::EndpointSlice>(serde_json::from_str(slice).expect("an EndpointSlice"));
        let endpoint = |address: &str, readiness, zone: &str, target: Option<&str>| Endpoint {
            address: address.parse().expect("an address"),
            readiness,
            zone: zone.to_owned(),
            target: target.map(str::to_owned),
        };
        let expected = Slice {
            service: Some("s".to_owned()),
            ports: vec![Port { name: "grpc".to_owned(), number: 8080 }],
            endpoints: vec![
                endpoint("10.0.0.1", Readiness::Ready, "a", Some("u")),
                endpoint("10.0.0.2", Readiness::Draining, "", None),
            ],
        };
        assert_eq!(object, Object::Slice(expected));
        assert_eq!(faults, ["endpoints[1].addresses[0]: expected an IP address, found \"ten\""]);
    }

    #[test]
    fn a_slice_without_endpoints_may_say_null_kb2() {
        let slice = r#"{"metadata": {}, "addressType": "IPv4", "ports": null, "endpoints": null}"#;
        let (object, faults) =
            parse::<discovery::EndpointSlice>(serde_json::from_str(slice).expect("an EndpointSlice"));
        assert_eq!(object, Object::Slice(Slice { service: None, ports: Vec::new(), endpoints: Vec::new() }));
        assert!(faults.is_empty());
        let (_, faults) = parse::<discovery::EndpointSlice>(
            serde_json::from_str(r#"{"addressType": "FQDN", "endpoints": []}"#).expect("an EndpointSlice"),
        );
        assert_eq!(faults, ["addressType is FQDN: expected IPv4 or IPv6"]);
    }

    fn parse<T: Parse>(object: T) -> (Object, Vec<String>) {
        let mut faults = Vec::new();
        (object.parse(&mut faults), faults)
    }
}
