//! What a control plane would tell, in one version.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;

use crate::resources::Spec;

/// One version of everything that a control plane serves.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// Its version, as told to clients.
    pub version: Arc<str>,
    /// The resources by canonical name.
    pub resources: BTreeMap<ResourceKey, Arc<Told>>,
}

/// A resource as a control plane tells it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Which resource.
    pub key: ResourceKey,
    /// The message.
    pub bytes: Bytes,
    /// What it says; `None` for resources of somebody's own, of which nothing but the bytes is known.
    pub spec: Option<Spec>,
}

impl Truth {
    /// A version of resources of somebody's own.
    pub fn foreign(
        version: impl Into<Arc<str>>,
        resources: impl IntoIterator<Item = (ResourceType, String, Bytes)>,
        federation: bool,
    ) -> Self {
        let tell = |(resource_type, name, bytes): (ResourceType, String, Bytes)| {
            let (key, _) = ResourceKey::parse(resource_type, &name, federation).ok()?;
            Some((key.clone(), Arc::new(Told { key, bytes, spec: None })))
        };
        Self { version: version.into(), resources: resources.into_iter().filter_map(tell).collect() }
    }

    /// A version of resources in few words. Names are canonical.
    pub fn of(version: impl Into<Arc<str>>, specs: &[(String, Spec)]) -> Self {
        let tell = |(name, spec): &(String, Spec)| {
            let key = ResourceKey { resource_type: spec.resource_type(), name: name.as_str().into() };
            (key.clone(), Arc::new(Told { key, bytes: spec.encode(name), spec: Some(spec.clone()) }))
        };
        Self { version: version.into(), resources: specs.iter().map(tell).collect() }
    }
}

impl Told {
    /// Whether a client must take it.
    pub(crate) fn is_valid(&self) -> bool {
        !matches!(self.spec, Some(Spec::Invalid(_)))
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
