//! Which names are made of a Service (KB-1).

use crate::kubernetes::object::Key;

/// The name of the route configuration, the cluster and its endpoints, and the shortest name of the listener:
/// `service.namespace:port`.
pub(crate) fn cluster(service: &Key, port: u16) -> String {
    format!("{}.{}:{port}", service.name, service.namespace)
}

/// The names by which clients ask: those that DNS has in a cluster, so that `dns:///` only becomes `xds:///`.
pub(crate) fn listeners(service: &Key, port: u16, domain: &str) -> [String; 3] {
    let Key { namespace, name } = service;
    [
        cluster(service, port),
        format!("{name}.{namespace}.svc:{port}"),
        format!("{name}.{namespace}.svc.{domain}:{port}"),
    ]
}

/// The namespace in a name that is made like those of Services, whether there is such a Service or not.
pub(crate) fn namespace_of(name: &str) -> Option<&str> {
    let (host, port) = name.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let mut labels = host.split('.');
    let (_, namespace) = (labels.next()?, labels.next()?);
    match labels.next() {
        None | Some("svc") => Some(namespace),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_find_a_service_by_the_names_that_dns_has_kb1() {
        let names = listeners(&Key::new("prod", "greeter"), 50051, "cluster.local");
        let expected =
            ["greeter.prod:50051", "greeter.prod.svc:50051", "greeter.prod.svc.cluster.local:50051"].map(str::to_owned);
        assert_eq!(names, expected);
        assert!(names.iter().all(|name| namespace_of(name) == Some("prod")));
        for of_nobody in ["greeter", "greeter:50051", "greeter.prod", "a.b.c:1", "greeter.prod:http"] {
            assert_eq!(namespace_of(of_nobody), None, "{of_nobody}");
        }
    }
}
