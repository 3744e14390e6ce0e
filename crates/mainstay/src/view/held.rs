//! Views of what others hold.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_xds::deps::{DnsName, HeldResources};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType as CoreType;
use mainstay_xds::target::Target;

use super::{
    Clock, ConfigError, ConfigView, ResourceError, ResourceErrorKind, ResourceState, ResourceStatus, ResourceValue,
    XdsConfig,
};
use crate::bootstrap::Bootstrap;
use crate::error::TargetError;
use crate::names::{Fault, ResourceName};

/// A resource that a client or a file holds, for [`ConfigView::of_resources`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldResource {
    /// The type URL.
    pub type_url: String,
    /// The name.
    pub name: String,
    /// The state of the resource.
    pub state: ResourceState,
    /// The version of the value in use; may be empty.
    pub version: String,
    /// The URI of the server that sent it; empty if that is not known.
    pub server: String,
    /// How long ago it was received.
    pub age: Duration,
    /// The encoded protobuf message of the value in use, if there is one.
    pub encoded: Option<Bytes>,
    /// What is wrong with the resource, in the words of who holds it.
    pub error: Option<String>,
}

impl HeldResource {
    /// Creates a resource that was asked for and has not come.
    pub fn new(type_url: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            type_url: type_url.into(),
            name: name.into(),
            state: ResourceState::Requested,
            version: String::new(),
            server: String::new(),
            age: Duration::ZERO,
            encoded: None,
            error: None,
        }
    }
}

impl ConfigView {
    /// Returns what a channel to `target` would make of resources that somebody else holds: another process, as its CSDS
    /// tells, or a set of files. No channel is made and nothing is connected to.
    ///
    /// `holder` is what errors call whoever holds them, and `node_id` the id by which servers know it. The Listener is the one
    /// that the bootstrap makes of the target, or else the only one whose name ends like it. `look_up` finds the addresses of
    /// DNS names of LOGICAL_DNS clusters. Glob collections are not part of such dumps, and so have no endpoints.
    ///
    /// # Errors
    ///
    /// Fails if the target is no `xds:` name that the bootstrap allows.
    pub fn of_resources(
        target: &str,
        bootstrap: &Bootstrap,
        holder: &str,
        node_id: &str,
        resources: &[HeldResource],
        mut look_up: impl FnMut(&str, u16) -> Result<Vec<SocketAddr>, String>,
    ) -> Result<Self, TargetError> {
        let target = Target::resolve(target, bootstrap.core()).map_err(TargetError::of)?;
        let mut look_up = |name: &DnsName| look_up(&name.host, name.port);
        let mut held = HeldResources::new(bootstrap.core(), holder, node_id, &mut look_up);
        for resource in resources {
            let content = resource.encoded.clone().ok_or_else(|| resource.absence());
            held.insert(&resource.type_url, &resource.name, &resource.version, content);
        }
        let target = held.find_listener(target);
        let (taken_at, clock) = (Instant::now(), Clock { start: Instant::now() });
        Ok(Self {
            target: target.canonical.to_string(),
            node_id: node_id.to_owned(),
            listener: target.listener.to_string(),
            config: held.resolve(&target).map(|config| match config {
                Ok(config) => Ok(XdsConfig::of(&config, clock)),
                Err(error) => Err(ConfigError::of(&error, clock)),
            }),
            resources: resources.iter().filter_map(|resource| resource.status(taken_at)).collect(),
            recording: None,
            servers: Vec::new(),
            taken_at,
        })
    }
}

impl HeldResource {
    /// Why there is no value.
    fn absence(&self) -> String {
        match (&self.error, self.state) {
            (Some(error), _) => error.clone(),
            (None, ResourceState::Requested) => "it was asked for and has not come".to_owned(),
            (None, _) => "no value is held".to_owned(),
        }
    }

    fn status(&self, taken_at: Instant) -> Option<ResourceStatus> {
        let resource_type = CoreType::from_type_url(&self.type_url)?;
        let name = ResourceKey::parse(resource_type, &self.name, true).map(|(key, _)| key);
        let name = name.unwrap_or_else(|_| ResourceKey { resource_type, name: self.name.as_str().into() });
        let resource = ResourceName::of(&name);
        let received_at = taken_at.checked_sub(self.age).unwrap_or(taken_at);
        let error = self.error.as_ref().map(|text| ResourceError {
            resource: resource.clone(),
            server: (!self.server.is_empty()).then(|| self.server.clone()),
            kind: match self.state {
                ResourceState::Nacked => {
                    let fault = Fault { path: String::new(), message: text.clone() };
                    ResourceErrorKind::Rejected { version: String::new(), faults: vec![fault] }
                }
                _ => ResourceErrorKind::FromServer { code: tonic::Code::Unknown, message: text.clone() },
            },
            at: taken_at,
            text: text.as_str().into(),
        });
        let value = self.encoded.as_ref().map(|encoded| ResourceValue {
            server: self.server.clone(),
            version: self.version.clone(),
            received_at,
            encoded: encoded.clone(),
        });
        Some(ResourceStatus { resource, state: self.state, value, error })
    }
}
