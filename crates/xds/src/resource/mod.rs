//! Resources: protobuf in, checked values out. Past these parsers there is no protobuf.
//!
//! Every parser reads the whole message, collects every fault with its field path, and answers
//! with a value that is safe to use or with all that is wrong with it.

use std::fmt;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use envoy_types::pb::envoy::config as pb;
use prost::Message;

use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::invalid::Invalid;

pub mod cluster;
pub mod endpoint;
pub mod filter;
pub mod lb_policy;
pub mod listener;
pub mod matcher;
pub mod route;
pub mod tls;

mod extension;
mod fields;

pub use cluster::Cluster;
pub use endpoint::{EndpointCollection, Endpoints};
pub use listener::Listener;
pub use route::RouteConfig;

/// The kinds of resource we subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// LDS.
    Listener,
    /// RDS.
    RouteConfig,
    /// CDS.
    Cluster,
    /// EDS.
    Endpoints,
    /// LEDS list collections (A95).
    EndpointCollection,
}

/// A parsed resource of any kind. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// LDS.
    Listener(Arc<Listener>),
    /// RDS.
    RouteConfig(Arc<RouteConfig>),
    /// CDS.
    Cluster(Arc<Cluster>),
    /// EDS.
    Endpoints(Arc<Endpoints>),
    /// LEDS list collections (A95).
    EndpointCollection(Arc<EndpointCollection>),
}

/// What a parser may ask about the place a resource came from.
#[derive(Clone, Copy, Debug)]
pub struct ParseContext<'a> {
    /// The bootstrap, for certificate provider instances and guards.
    pub bootstrap: &'a Bootstrap,
    /// The server that sent the resource, for `lrs_server` and `trusted_xds_server`.
    pub server: &'a Arc<ServerConfig>,
}

// === impl ResourceType ===

impl ResourceType {
    /// Every type, parents before children.
    pub const ALL: [ResourceType; 5] =
        [Self::Listener, Self::RouteConfig, Self::Cluster, Self::Endpoints, Self::EndpointCollection];

    /// Full name of the message.
    pub const fn message_name(self) -> &'static str {
        match self {
            Self::Listener => "envoy.config.listener.v3.Listener",
            Self::RouteConfig => "envoy.config.route.v3.RouteConfiguration",
            Self::Cluster => "envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::EndpointCollection => "envoy.config.endpoint.v3.LbEndpointCollection",
        }
    }

    /// Type URL on the wire (P-5).
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::RouteConfig => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::EndpointCollection => "type.googleapis.com/envoy.config.endpoint.v3.LbEndpointCollection",
        }
    }

    /// The type of a type URL, compared after the last `/` (P-5).
    pub fn from_type_url(type_url: &str) -> Option<Self> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        Self::ALL.into_iter().find(|t| t.message_name() == message)
    }

    /// Whether a state-of-the-world response must carry every subscribed resource, so that a
    /// missing one is deleted (P-49).
    pub const fn full_state(self) -> bool {
        matches!(self, Self::Listener | Self::Cluster)
    }
}

impl fmt::Display for ResourceType {
    /// The short name that operators use.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listener => "Listener",
            Self::RouteConfig => "RouteConfiguration",
            Self::Cluster => "Cluster",
            Self::Endpoints => "ClusterLoadAssignment",
            Self::EndpointCollection => "LbEndpointCollection",
        })
    }
}

// === impl Resource ===

impl Resource {
    /// Its kind.
    pub const fn resource_type(&self) -> ResourceType {
        match self {
            Self::Listener(_) => ResourceType::Listener,
            Self::RouteConfig(_) => ResourceType::RouteConfig,
            Self::Cluster(_) => ResourceType::Cluster,
            Self::Endpoints(_) => ResourceType::Endpoints,
            Self::EndpointCollection(_) => ResourceType::EndpointCollection,
        }
    }
}

/// A resource from the wire: its own name, if it has one that can be read, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The name inside the message; `None` if the bytes are no such message or the type has no name field (P-5).
    pub name: Option<String>,
    /// The value, or everything that is wrong with it.
    pub result: Result<Resource, Invalid>,
}

/// Decodes and checks the bytes of one resource.
pub fn decode(resource_type: ResourceType, bytes: &Bytes, cx: ParseContext<'_>) -> Decoded {
    fn message<M: Message + Default>(bytes: impl Buf) -> Result<M, Invalid> {
        M::decode(bytes).map_err(|error| Invalid::one("", format!("cannot be decoded: {error}")))
    }
    fn undecodable(invalid: Invalid) -> Decoded {
        Decoded { name: None, result: Err(invalid) }
    }
    match resource_type {
        ResourceType::Listener => match message::<pb::listener::v3::Listener>(bytes.as_ref()) {
            Ok(pb) => Decoded {
                result: Listener::parse(&pb, cx).map(|r| Resource::Listener(Arc::new(r))),
                name: Some(pb.name),
            },
            Err(invalid) => undecodable(invalid),
        },
        ResourceType::RouteConfig => match message::<pb::route::v3::RouteConfiguration>(bytes.as_ref()) {
            Ok(pb) => Decoded {
                result: RouteConfig::parse(&pb, cx).map(|r| Resource::RouteConfig(Arc::new(r))),
                name: Some(pb.name),
            },
            Err(invalid) => undecodable(invalid),
        },
        ResourceType::Cluster => match message::<pb::cluster::v3::Cluster>(bytes.as_ref()) {
            Ok(pb) => {
                Decoded { result: Cluster::parse(&pb, cx).map(|r| Resource::Cluster(Arc::new(r))), name: Some(pb.name) }
            }
            Err(invalid) => undecodable(invalid),
        },
        ResourceType::Endpoints => match message::<endpoint::Assignment>(bytes.clone()) {
            Ok(pb) => Decoded {
                result: Endpoints::parse(&pb, cx.bootstrap.guards.endpoint_fallback)
                    .map(|r| Resource::Endpoints(Arc::new(r))),
                name: Some(pb.cluster_name),
            },
            Err(invalid) => undecodable(invalid),
        },
        ResourceType::EndpointCollection => match message::<pb::endpoint::v3::LbEndpointCollection>(bytes.as_ref()) {
            Ok(pb) => Decoded {
                result: EndpointCollection::parse(&pb).map(|r| Resource::EndpointCollection(Arc::new(r))),
                name: None,
            },
            Err(invalid) => undecodable(invalid),
        },
    }
}
