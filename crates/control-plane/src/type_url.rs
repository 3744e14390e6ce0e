//! Type URLs: which kind of resource a request, a response or a resource is about.

use std::borrow::Cow;
use std::fmt;

/// The type URL of a resource, in the one form that goes over the wire: `type.googleapis.com/` and the full name of
/// the message.
///
/// Whatever stands before the last `/` does not matter (P-5), so it is normalized when a `TypeUrl` is made.
///
/// ```
/// use mainstay_control_plane::TypeUrl;
///
/// assert_eq!(TypeUrl::from("envoy.config.listener.v3.Listener"), TypeUrl::LISTENER);
/// assert_eq!(TypeUrl::LISTENER.as_str(), "type.googleapis.com/envoy.config.listener.v3.Listener");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeUrl(Cow<'static, str>);

impl TypeUrl {
    /// LDS: `envoy.config.listener.v3.Listener`.
    pub const LISTENER: Self = Self(Cow::Borrowed("type.googleapis.com/envoy.config.listener.v3.Listener"));
    /// RDS: `envoy.config.route.v3.RouteConfiguration`.
    pub const ROUTE: Self = Self(Cow::Borrowed("type.googleapis.com/envoy.config.route.v3.RouteConfiguration"));
    /// CDS: `envoy.config.cluster.v3.Cluster`.
    pub const CLUSTER: Self = Self(Cow::Borrowed("type.googleapis.com/envoy.config.cluster.v3.Cluster"));
    /// EDS: `envoy.config.endpoint.v3.ClusterLoadAssignment`.
    pub const ENDPOINTS: Self =
        Self(Cow::Borrowed("type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"));
    /// LEDS list collections (A95): `envoy.config.endpoint.v3.LbEndpointCollection`.
    pub const ENDPOINT_COLLECTION: Self =
        Self(Cow::Borrowed("type.googleapis.com/envoy.config.endpoint.v3.LbEndpointCollection"));
    /// Members of LEDS glob collections: `envoy.config.endpoint.v3.LbEndpoint`.
    pub const ENDPOINT: Self = Self(Cow::Borrowed("type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint"));
    /// The wrapper that gives a resource a name and a version: `envoy.service.discovery.v3.Resource` (P-64).
    pub const RESOURCE: Self = Self(Cow::Borrowed("type.googleapis.com/envoy.service.discovery.v3.Resource"));

    /// The whole URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The full name of the message, such as `envoy.config.cluster.v3.Cluster`.
    pub fn message_name(&self) -> &str {
        after_last_slash(&self.0)
    }

    /// The name that people use, such as `CDS`; for a type that has none, the name of the message.
    pub fn short_name(&self) -> &str {
        match self {
            t if *t == Self::LISTENER => "LDS",
            t if *t == Self::ROUTE => "RDS",
            t if *t == Self::CLUSTER => "CDS",
            t if *t == Self::ENDPOINTS => "EDS",
            t if *t == Self::ENDPOINT_COLLECTION || *t == Self::ENDPOINT => "LEDS",
            _ => self.message_name(),
        }
    }

    /// Whether every response must carry every subscribed resource, so that absence means deletion (P-49). These are
    /// also the types that know a wildcard (P-47).
    pub(crate) fn is_state_of_the_world(&self) -> bool {
        *self == Self::LISTENER || *self == Self::CLUSTER
    }

    /// Whether the message has no field for its own name, so that it can only be sent inside a wrapper.
    pub(crate) fn is_nameless(&self) -> bool {
        *self == Self::ENDPOINT_COLLECTION || *self == Self::ENDPOINT || self.message_name() == AGGREGATE_CLUSTER_CONFIG
    }

    /// The place of this type when several are sent: whoever is referred to goes before who refers to it (P-91).
    pub(crate) fn rank(&self) -> u8 {
        match self {
            t if *t == Self::CLUSTER => 0,
            t if *t == Self::ENDPOINTS => 1,
            t if *t == Self::ENDPOINT_COLLECTION || *t == Self::ENDPOINT => 2,
            t if *t == Self::LISTENER => 3,
            t if *t == Self::ROUTE => 4,
            _ => 5,
        }
    }
}

impl From<&str> for TypeUrl {
    fn from(url: &str) -> Self {
        let known =
            [Self::LISTENER, Self::ROUTE, Self::CLUSTER, Self::ENDPOINTS, Self::ENDPOINT_COLLECTION, Self::ENDPOINT];
        for known in known {
            if known.message_name() == after_last_slash(url) {
                return known;
            }
        }
        Self(Cow::Owned(format!("{PREFIX}{}", after_last_slash(url))))
    }
}

impl From<String> for TypeUrl {
    fn from(url: String) -> Self {
        Self::from(url.as_str())
    }
}

impl fmt::Display for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short_name())
    }
}

fn after_last_slash(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}

const PREFIX: &str = "type.googleapis.com/";
const AGGREGATE_CLUSTER_CONFIG: &str = "envoy.extensions.clusters.aggregate.v3.ClusterConfig";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_last_slash_does_not_matter() {
        // P-5.
        assert_eq!(TypeUrl::from("example.com/a/envoy.config.cluster.v3.Cluster"), TypeUrl::CLUSTER);
        assert_eq!(TypeUrl::from("my.Type"), TypeUrl::from("x/my.Type"));
        assert_eq!(TypeUrl::from("my.Type").as_str(), "type.googleapis.com/my.Type");
    }
}
