//! The names of things that bootstraps, views and events have in common.

use std::fmt;

use mainstay_xds::bootstrap::NodeLocality;
use mainstay_xds::{invalid, name, resource};

/// The kinds of xDS resource that a channel subscribes to.
///
/// ```
/// use mainstay::ResourceType;
///
/// assert_eq!(ResourceType::RouteConfig.to_string(), "RouteConfiguration");
/// assert_eq!(ResourceType::Cluster.type_url(), "type.googleapis.com/envoy.config.cluster.v3.Cluster");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ResourceType {
    /// `envoy.config.listener.v3.Listener`, by LDS.
    Listener,
    /// `envoy.config.route.v3.RouteConfiguration`, by RDS.
    RouteConfig,
    /// `envoy.config.cluster.v3.Cluster`, by CDS.
    Cluster,
    /// `envoy.config.endpoint.v3.ClusterLoadAssignment`, by EDS.
    Endpoints,
    /// `envoy.config.endpoint.v3.LbEndpointCollection`, by LEDS (gRFC A95).
    EndpointCollection,
    /// `envoy.config.endpoint.v3.LbEndpoint`: glob collections of endpoints, by LEDS over the incremental variant of the
    /// protocol. The name of one ends in `/*`.
    EndpointGlob,
}

/// The type and the name of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ResourceName {
    /// The type of the resource.
    pub resource_type: ResourceType,
    /// The name of the resource, in canonical form if it is an `xdstp:` name.
    pub name: String,
}

/// The locality of an endpoint or of a node.
///
/// ```
/// let here = mainstay::Locality::new("europe", "north-1", "");
/// assert_eq!(here.to_string(), "europe/north-1/");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Locality {
    /// The region.
    pub region: String,
    /// The zone in the region.
    pub zone: String,
    /// The part of the zone.
    pub sub_zone: String,
}

/// One thing that is wrong with a bootstrap or with a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fault {
    /// The path of the field, such as `virtual_hosts[0].routes[1].match.prefix`; empty for the whole.
    pub path: String,
    /// What was found, and what was expected.
    pub message: String,
}

// === impl ResourceType ===

impl ResourceType {
    /// Returns the type URL of the resource type in the xDS protocol.
    pub fn type_url(self) -> &'static str {
        self.core().type_url()
    }

    pub(crate) fn core(self) -> resource::ResourceType {
        match self {
            Self::Listener => resource::ResourceType::Listener,
            Self::RouteConfig => resource::ResourceType::RouteConfig,
            Self::Cluster => resource::ResourceType::Cluster,
            Self::Endpoints => resource::ResourceType::Endpoints,
            Self::EndpointCollection => resource::ResourceType::EndpointCollection,
            Self::EndpointGlob => resource::ResourceType::EndpointGlob,
        }
    }

    pub(crate) fn of(core: resource::ResourceType) -> Self {
        match core {
            resource::ResourceType::Listener => Self::Listener,
            resource::ResourceType::RouteConfig => Self::RouteConfig,
            resource::ResourceType::Cluster => Self::Cluster,
            resource::ResourceType::Endpoints => Self::Endpoints,
            resource::ResourceType::EndpointCollection => Self::EndpointCollection,
            resource::ResourceType::EndpointGlob => Self::EndpointGlob,
        }
    }
}

impl fmt::Display for ResourceType {
    /// Writes the short name that operators use, such as `Listener` or `RouteConfiguration`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core().fmt(f)
    }
}

// === impl ResourceName ===

impl ResourceName {
    pub(crate) fn of(core: &name::ResourceKey) -> Self {
        Self { resource_type: ResourceType::of(core.resource_type), name: core.name.to_string() }
    }
}

impl fmt::Display for ResourceName {
    /// Writes the type and the quoted name, such as `Cluster "greeter"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.resource_type, self.name)
    }
}

// === impl Locality ===

impl Locality {
    /// Creates a locality. Parts that are not known are empty.
    pub fn new(region: impl Into<String>, zone: impl Into<String>, sub_zone: impl Into<String>) -> Self {
        Self { region: region.into(), zone: zone.into(), sub_zone: sub_zone.into() }
    }

    pub(crate) fn of(core: &NodeLocality) -> Self {
        Self::new(&*core.region, &*core.zone, &*core.sub_zone)
    }

    pub(crate) fn into_core(self) -> NodeLocality {
        NodeLocality { region: self.region, zone: self.zone, sub_zone: self.sub_zone }
    }
}

impl fmt::Display for Locality {
    /// Writes `region/zone/sub_zone`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.region, self.zone, self.sub_zone)
    }
}

// === impl Fault ===

impl Fault {
    pub(crate) fn all(core: &invalid::Invalid) -> Vec<Self> {
        let fault = |fault: &invalid::Fault| Self { path: fault.path.clone(), message: fault.message.clone() };
        core.faults().iter().map(fault).collect()
    }
}

impl fmt::Display for Fault {
    /// Writes the path and the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}
