//! What is read of the objects of Kubernetes: plain values, without what does not matter here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Which object of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The kinds that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Services,
    EndpointSlices,
    ConfigMaps,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Services, Self::EndpointSlices, Self::ConfigMaps];

    /// As in RBAC and in paths of the API.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::ConfigMaps => "configmaps",
        }
    }
}

/// An object of any of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Service(Service),
    Slice(Slice),
    ConfigMap(ConfigMap),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Its endpoints are in EndpointSlices: one with a cluster IP, a headless one, one without a selector.
    Sliced {
        /// Those of TCP.
        ports: Vec<Port>,
        /// The first of its IP families: of a pod with addresses of both, that one is tried first.
        family: Family,
    },
    /// Another name for something that has no endpoints here.
    ExternalName(String),
}

/// A port by name and number; the name of an only port may be empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) number: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    #[default]
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The name of the Service, in the same namespace.
    pub(crate) service: Option<String>,
    /// The ports of TCP, with the numbers that named target ports have there.
    pub(crate) ports: Vec<Port>,
    pub(crate) endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) readiness: Readiness,
    pub(crate) zone: String,
    /// Which pod this is, if that is known.
    pub(crate) target: Option<String>,
}

/// What an endpoint is good for, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Readiness {
    /// Nothing: it is starting, or fails its probe.
    Unready,
    /// It is going away and still answers.
    Draining,
    Ready,
}

impl Readiness {
    /// What the conditions of an endpoint mean; those that are not said are as Kubernetes defines them.
    pub(crate) fn new(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        let ready = ready.unwrap_or(true);
        match (ready, serving.unwrap_or(ready), terminating.unwrap_or(false)) {
            // Services with publishNotReadyAddresses have endpoints that are ready and terminating: they are meant.
            (true, _, _) => Self::Ready,
            (false, true, true) => Self::Draining,
            (false, _, _) => Self::Unready,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigMap {
    pub(crate) data: BTreeMap<String, String>,
    /// Keys whose data are bytes.
    pub(crate) binary: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_mean_what_kubernetes_defines_kb3() {
        let (yes, no) = (Some(true), Some(false));
        for (ready, serving, terminating, expected) in [
            (None, None, None, Readiness::Ready),
            (yes, yes, no, Readiness::Ready),
            (yes, yes, yes, Readiness::Ready),
            (no, no, no, Readiness::Unready),
            (no, None, None, Readiness::Unready),
            (no, yes, no, Readiness::Unready),
            (no, yes, yes, Readiness::Draining),
            (no, no, yes, Readiness::Unready),
            (no, None, yes, Readiness::Unready),
        ] {
            assert_eq!(Readiness::new(ready, serving, terminating), expected, "{ready:?} {serving:?} {terminating:?}");
        }
    }
}
