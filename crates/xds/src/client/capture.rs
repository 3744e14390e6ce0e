//! What of a client is worth to be kept: the resources of a configuration in force (FB-4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::server::Link;
use super::{Provenance, ServerId, XdsClient};
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::Resource;

/// The resources of one authority, all of them from one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The server.
    pub server: Arc<ServerConfig>,
    /// Whether it has answered on the present stream: what it said holds now.
    pub is_current: bool,
    /// By type and name; members of glob collections one by one.
    pub resources: Vec<Captured>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Which one.
    pub resource: ResourceKey,
    /// Its version.
    pub version: Arc<str>,
    /// Its bytes.
    pub value: Bytes,
    /// When it came.
    pub at: Time,
}

impl XdsClient {
    /// What is in use of these resources, by authority. Those without a value are left out, and so are authorities whose
    /// resources came from this process: what was read from a file is not written to it again. `None` if an authority
    /// is a mixture of servers, or if something cannot be kept.
    pub fn capture(&self, resources: &BTreeSet<ResourceKey>) -> Option<BTreeMap<AuthorityKey, Capture>> {
        let mut captures: BTreeMap<AuthorityKey, (ServerId, Capture)> = BTreeMap::new();
        for key in resources {
            let Some(entry) = self.cache.get(key.resource_type, &key.name) else { continue };
            let (Some(held), Some(authority)) = (entry.cached.held(), self.authorities.get(entry.authority.0)) else {
                continue;
            };
            let (server, capture) = captures.entry(authority.key.clone()).or_insert_with(|| {
                let from = &self.servers[held.server.0];
                let is_current = matches!(from.link, Link::Answered(_)) && authority.active() == Some(held.server);
                let capture = Capture { server: from.config.clone(), is_current, resources: Vec::new() };
                (held.server, capture)
            });
            if *server != held.server {
                return None;
            }
            capture.add(key, &held.resource, &held.raw, &held.provenance)?;
        }
        let kept = captures.into_iter().filter(|(_, (_, capture))| !capture.server.is_local());
        let sorted = kept.map(|(authority, (_, mut capture))| {
            capture.resources.sort_by(|a, b| a.resource.cmp(&b.resource)); // Members are not among their collections.
            (authority, capture)
        });
        Some(sorted.collect())
    }
}

impl Capture {
    /// `None` if it could not be read again as it is.
    fn add(&mut self, key: &ResourceKey, value: &Resource, raw: &Bytes, from: &Provenance) -> Option<()> {
        let captured = |name: &Arc<str>, value: Bytes| Captured {
            resource: ResourceKey { resource_type: key.resource_type, name: name.clone() },
            version: from.version.clone(),
            value,
            at: from.at,
        };
        let Resource::EndpointGlob(members) = value else {
            self.resources.push(captured(&key.name, raw.clone()));
            return Some(());
        };
        for (name, endpoint) in members.iter() {
            self.resources.push(captured(name, endpoint.to_member()?.encode_to_vec().into()));
        }
        Some(())
    }
}
