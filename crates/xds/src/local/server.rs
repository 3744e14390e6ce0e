//! What a server of this process answers, in the incremental variant of ADS.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::ControlPlane;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource, ResourceError, ResourceName,
};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::google::rpc::Status;
use prost::Message;

use super::file::Stored;
use crate::name::{ResourceKey, is_glob};
use crate::resource::endpoint::glob_of;
use crate::resource_type::ResourceType;

/// The resources of a local server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalSet {
    /// By type and canonical name; members of glob collections one by one.
    pub resources: BTreeMap<ResourceKey, LocalValue>,
}

/// A resource of a local server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalValue {
    /// Its version.
    pub version: Arc<str>,
    /// Its bytes.
    pub value: Bytes,
}

/// One stream to a local server. Not knowing a resource is not the same as its deletion: what is not in the set is
/// answered by an error that says so, and what goes from the set is not spoken of (FB-3).
#[derive(Clone, Debug)]
pub struct LocalServer {
    uri: Arc<str>,
    set: Arc<LocalSet>,
    subscribed: BTreeMap<ResourceType, BTreeSet<Arc<str>>>,
    nonces: u64,
}

impl FromIterator<Stored> for LocalSet {
    fn from_iter<I: IntoIterator<Item = Stored>>(stored: I) -> Self {
        let value = |stored: Stored| (stored.resource, LocalValue { version: stored.version, value: stored.value });
        Self { resources: stored.into_iter().map(value).collect() }
    }
}

impl LocalSet {
    /// What a name stands for: a resource, or the members of a collection.
    fn find<'a>(
        &'a self,
        resource_type: ResourceType,
        name: &'a Arc<str>,
    ) -> impl Iterator<Item = (&'a ResourceKey, &'a LocalValue)> {
        let is_collection = resource_type == ResourceType::EndpointGlob && is_glob(name);
        let start = ResourceKey { resource_type, name: if is_collection { "".into() } else { name.clone() } };
        let of_type = self.resources.range(start..).take_while(move |(key, _)| key.resource_type == resource_type);
        let is_meant = move |key: &ResourceKey| match is_collection {
            true => glob_of(&key.name).as_deref() == Some(&**name),
            false => key.name == *name,
        };
        let most = if is_collection { usize::MAX } else { 1 };
        of_type.take(most).filter(move |(key, _)| is_meant(key))
    }
}

impl LocalServer {
    /// A new stream to the server of this URI.
    pub fn new(uri: impl Into<Arc<str>>, set: Arc<LocalSet>) -> Self {
        Self { uri: uri.into(), set, subscribed: BTreeMap::new(), nonces: 0 }
    }

    /// Takes in a request; answers it if it asks for anything.
    ///
    /// # Errors
    /// If it is no request.
    pub fn handle_request(&mut self, request: &[u8]) -> Result<Option<Bytes>, String> {
        let request = DeltaDiscoveryRequest::decode(request).map_err(|error| error.to_string())?;
        let Some(resource_type) = ResourceType::from_type_url(&request.type_url) else {
            return Err(format!("{:?} is not a type of resource", request.type_url));
        };
        let names = self.subscribed.entry(resource_type).or_default();
        for name in &request.resource_names_unsubscribe {
            names.remove(name.as_str());
        }
        let asked: BTreeSet<Arc<str>> =
            request.resource_names_subscribe.iter().map(|name| name.as_str().into()).collect();
        names.extend(asked.iter().cloned());
        if asked.is_empty() {
            return Ok(None);
        }
        let (mut resources, mut resource_errors) = (Vec::new(), Vec::new());
        for name in &asked {
            let before = resources.len();
            resources.extend(self.set.find(resource_type, name).map(resource));
            if resources.len() == before {
                resource_errors.push(self.unknown(name));
            }
        }
        Ok(Some(self.respond(resource_type, resources, resource_errors)))
    }

    /// Another set is there. Answers with the responses that tell what is new of what is subscribed to.
    pub fn replace(&mut self, set: Arc<LocalSet>) -> Vec<Bytes> {
        let before = std::mem::replace(&mut self.set, set);
        let mut responses = Vec::new();
        for (resource_type, names) in self.subscribed.clone() {
            let found = names.iter().flat_map(|name| self.set.find(resource_type, name));
            let new = found.filter(|(key, value)| before.resources.get(*key) != Some(*value));
            let new: Vec<_> = new.map(resource).collect();
            if !new.is_empty() {
                responses.push(self.respond(resource_type, new, Vec::new()));
            }
        }
        responses
    }

    fn unknown(&self, name: &str) -> ResourceError {
        let message = format!("{} does not have it, which says nothing of whether it exists", self.uri);
        ResourceError {
            resource_name: Some(ResourceName { name: name.to_owned(), ..ResourceName::default() }),
            error_detail: Some(Status { code: UNAVAILABLE, message, details: Vec::new() }),
        }
    }

    fn respond(
        &mut self,
        resource_type: ResourceType,
        resources: Vec<Resource>,
        resource_errors: Vec<ResourceError>,
    ) -> Bytes {
        self.nonces += 1;
        let response = DeltaDiscoveryResponse {
            type_url: resource_type.type_url().to_owned(),
            nonce: self.nonces.to_string(),
            control_plane: Some(ControlPlane { identifier: self.uri.to_string() }),
            resources,
            resource_errors,
            ..DeltaDiscoveryResponse::default()
        };
        response.encode_to_vec().into()
    }
}

fn resource((key, value): (&ResourceKey, &LocalValue)) -> Resource {
    Resource {
        name: key.name.to_string(),
        version: value.version.to_string(),
        resource: Some(Any { type_url: key.resource_type.type_url().to_owned(), value: value.value.to_vec() }),
        ..Resource::default()
    }
}

/// gRPC status code: a transient error, which never takes away what is in use (P-60).
const UNAVAILABLE: i32 = 14;
