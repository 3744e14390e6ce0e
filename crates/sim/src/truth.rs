//! What a control plane would tell, in one version.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::{ParseContext, Resource, ResourceType, decode};

use crate::resources::Spec;

/// One version of everything that a control plane serves.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// Its version, as told to clients.
    pub version: Arc<str>,
    /// The resources by canonical name.
    pub resources: BTreeMap<ResourceKey, Arc<Told>>,
}

/// A resource as a control plane tells it, and what a client must make of it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Which resource.
    pub key: ResourceKey,
    /// The message.
    pub bytes: Bytes,
    /// Its value; `None` if it must be rejected.
    pub value: Option<Resource>,
}

impl Truth {
    /// A version of the given resources, as `server` tells them.
    pub fn new(
        version: impl Into<Arc<str>>,
        resources: impl IntoIterator<Item = (ResourceType, String, Bytes)>,
        bootstrap: &Bootstrap,
        server: &Arc<ServerConfig>,
    ) -> Self {
        let tell = |(resource_type, name, bytes): (ResourceType, String, Bytes)| {
            let (key, _) = ResourceKey::parse(resource_type, &name, bootstrap.guards.federation).ok()?;
            let value = decode(resource_type, &bytes, ParseContext { bootstrap, server }).result.ok();
            Some((key.clone(), Arc::new(Told { key, bytes, value })))
        };
        Self { version: version.into(), resources: resources.into_iter().filter_map(tell).collect() }
    }

    /// The same from resources in few words.
    pub fn of(
        version: impl Into<Arc<str>>,
        specs: &[(String, Spec)],
        bootstrap: &Bootstrap,
        server: &Arc<ServerConfig>,
    ) -> Self {
        let encoded = specs.iter().map(|(name, spec)| (spec.resource_type(), name.clone(), spec.encode(name)));
        Self::new(version, encoded, bootstrap, server)
    }
}

impl PartialEq for Told {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.bytes == other.bytes
    }
}

impl Eq for Told {}

impl Hash for Told {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.bytes.hash(state);
    }
}
