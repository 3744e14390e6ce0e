//! What a control plane serves: resources, and snapshots of them.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpointCollection};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use tonic::Code;

use crate::type_url::TypeUrl;

/// A complete configuration: every resource that a node may ask for.
///
/// A snapshot is put into force as a whole with [`ControlPlane::set`](crate::ControlPlane::set), so no client ever
/// sees half of one.
///
/// ```
/// use mainstay_control_plane::{Snapshot, TypeUrl, resources};
///
/// let snapshot = Snapshot::builder()
///     .listener(resources::listener("greeter", resources::route("greeter-routes", "greeter-cluster")))
///     .cluster(resources::eds_cluster("greeter-cluster"))
///     .endpoints(resources::endpoints("greeter-cluster", ["127.0.0.1:50051"]))
///     .build();
/// assert!(snapshot.contains(&TypeUrl::CLUSTER, "greeter-cluster"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub(crate) types: BTreeMap<TypeUrl, TypeContent>,
    pub(crate) wrap_all: bool,
    pub(crate) is_partial: bool,
}

impl Snapshot {
    /// Starts a snapshot.
    pub fn builder() -> SnapshotBuilder {
        SnapshotBuilder(Self::default())
    }

    /// Adds a resource; one with the same type and name is replaced.
    pub fn insert(&mut self, resource: impl Into<Resource>) {
        let Resource { type_url, name, body } = resource.into();
        let content = self.types.entry(type_url).or_default();
        content.versions.remove(&name);
        content.resources.insert(name, body);
    }

    /// Adds a resource with a version that somebody else gave it, such as the control plane that it is a copy of (FB-17).
    /// Clients are told this one; whether it changed is told by its content all the same.
    pub fn insert_with_version(&mut self, resource: impl Into<Resource>, version: impl Into<String>) {
        let Resource { type_url, name, body } = resource.into();
        let content = self.types.entry(type_url).or_default();
        content.versions.insert(name.clone(), version.into());
        content.resources.insert(name, body);
    }

    /// Says that there is more than what is in it, elsewhere. A name that it does not have is unknown, then, and nobody is
    /// told that it does not exist: who reads `resource_errors` is told UNAVAILABLE, others are left without an answer (FB-3).
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.is_partial = true;
        self
    }

    /// Removes a resource; whether it was there.
    ///
    /// For LDS and CDS this deletes the resource at the clients (P-49). The other types know no deletion (P-52).
    pub fn remove(&mut self, type_url: &TypeUrl, name: &str) -> bool {
        self.types.get_mut(type_url).is_some_and(|content| {
            content.versions.remove(name);
            content.resources.remove(name).is_some()
        })
    }

    /// Adds all of another snapshot; what is in both is the other's then.
    pub fn overlay(&mut self, above: Self) {
        for (type_url, content) in above.types {
            let below = self.types.entry(type_url).or_default();
            // A version that was given for one of them says nothing about both.
            below.version = if below.resources.is_empty() { content.version } else { None };
            below.versions.retain(|name, _| !content.resources.contains_key(name));
            below.versions.extend(content.versions);
            below.resources.extend(content.resources);
        }
        self.wrap_all |= above.wrap_all;
        self.is_partial |= above.is_partial;
    }

    /// Whether there is such a resource (or an error in its place).
    pub fn contains(&self, type_url: &TypeUrl, name: &str) -> bool {
        self.types.get(type_url).is_some_and(|content| content.resources.contains_key(name))
    }

    /// All resources, ordered by type and name.
    pub fn resources(&self) -> impl Iterator<Item = Resource> + '_ {
        self.types.iter().flat_map(|(type_url, content)| {
            content.resources.iter().map(|(name, body)| Resource {
                type_url: type_url.clone(),
                name: name.clone(),
                body: body.clone(),
            })
        })
    }

    /// How many resources there are.
    pub fn len(&self) -> usize {
        self.types.values().map(|content| content.resources.len()).sum()
    }

    /// Whether there are no resources.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<SnapshotBuilder> for Snapshot {
    fn from(builder: SnapshotBuilder) -> Self {
        builder.0
    }
}

/// Makes a [`Snapshot`].
#[derive(Clone, Debug, Default)]
pub struct SnapshotBuilder(Snapshot);

impl SnapshotBuilder {
    /// Adds an LDS resource.
    pub fn listener(self, listener: Listener) -> Self {
        self.resource(listener)
    }

    /// Adds an RDS resource.
    pub fn route(self, routes: RouteConfiguration) -> Self {
        self.resource(routes)
    }

    /// Adds a CDS resource.
    pub fn cluster(self, cluster: Cluster) -> Self {
        self.resource(cluster)
    }

    /// Adds an EDS resource.
    pub fn endpoints(self, endpoints: ClusterLoadAssignment) -> Self {
        self.resource(endpoints)
    }

    /// Adds an LEDS list collection (A95). The message has no name of its own, so it is given here.
    pub fn endpoint_collection(self, name: impl Into<String>, collection: LbEndpointCollection) -> Self {
        self.resource(Resource::new(TypeUrl::ENDPOINT_COLLECTION, name, collection.encode_to_vec()))
    }

    /// Adds a resource of any type.
    pub fn resource(mut self, resource: impl Into<Resource>) -> Self {
        self.0.insert(resource);
        self
    }

    /// Adds many resources.
    pub fn resources(self, resources: impl IntoIterator<Item = impl Into<Resource>>) -> Self {
        resources.into_iter().fold(self, Self::resource)
    }

    /// Answers requests for this name with an error instead of a resource (TP3, P-59).
    pub fn error(self, type_url: TypeUrl, name: impl Into<String>, code: Code, message: impl Into<String>) -> Self {
        self.resource(Resource::error(type_url, name, code, message))
    }

    /// Gives a type its version. Without this it is a hash of the content, so that equal content has equal versions on
    /// every replica and after every restart. A new version sends all resources of the type again, changed or not.
    pub fn version(mut self, type_url: TypeUrl, version: impl Into<String>) -> Self {
        self.0.types.entry(type_url).or_default().version = Some(version.into());
        self
    }

    /// Sends every resource wrapped in `envoy.service.discovery.v3.Resource` (P-64). Without this only those are that
    /// have no name of their own.
    pub fn wrap_all(mut self) -> Self {
        self.0.wrap_all = true;
        self
    }

    /// The snapshot.
    pub fn build(self) -> Snapshot {
        self.0
    }
}

/// One resource, as bytes: its type and name, and what is sent for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// What it is.
    pub type_url: TypeUrl,
    /// The name by which clients subscribe to it.
    pub name: String,
    /// What is sent for it.
    pub body: Body,
}

impl Resource {
    /// A resource of any type, from its encoded message. The bytes are not looked at.
    pub fn new(type_url: impl Into<TypeUrl>, name: impl Into<String>, message: impl Into<Vec<u8>>) -> Self {
        let type_url = type_url.into();
        let any = Any { type_url: type_url.as_str().to_owned(), value: message.into() };
        Self { type_url, name: name.into(), body: Body::Message(any) }
    }

    /// An error in the place of a resource (TP3).
    pub fn error(
        type_url: impl Into<TypeUrl>,
        name: impl Into<String>,
        code: Code,
        message: impl Into<String>,
    ) -> Self {
        let body = Body::Error { code, message: message.into() };
        Self { type_url: type_url.into(), name: name.into(), body }
    }
}

/// What is sent for a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The encoded message.
    Message(Any),
    /// An entry of `resource_errors`.
    Error {
        /// The status code; NOT_FOUND and PERMISSION_DENIED speak about the resource, all others are transient (P-60).
        code: Code,
        /// The text for people.
        message: String,
    },
}

impl From<Listener> for Resource {
    fn from(listener: Listener) -> Self {
        Self::new(TypeUrl::LISTENER, listener.name.clone(), listener.encode_to_vec())
    }
}

impl From<RouteConfiguration> for Resource {
    fn from(routes: RouteConfiguration) -> Self {
        Self::new(TypeUrl::ROUTE, routes.name.clone(), routes.encode_to_vec())
    }
}

impl From<Cluster> for Resource {
    fn from(cluster: Cluster) -> Self {
        Self::new(TypeUrl::CLUSTER, cluster.name.clone(), cluster.encode_to_vec())
    }
}

impl From<ClusterLoadAssignment> for Resource {
    fn from(endpoints: ClusterLoadAssignment) -> Self {
        Self::new(TypeUrl::ENDPOINTS, endpoints.cluster_name.clone(), endpoints.encode_to_vec())
    }
}

/// The resources of one type in a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TypeContent {
    /// The version that the caller gave, if any.
    pub(crate) version: Option<String>,
    pub(crate) resources: BTreeMap<String, Body>,
    /// The versions that somebody else gave to resources.
    pub(crate) versions: BTreeMap<String, String>,
}
