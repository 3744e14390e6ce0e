//! What a set of resources amounts to that somebody holds: files, or the dump of another process (OP-1).

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::{Action, ConfigError, DependencyManager, DepsSettings, DnsName, Output, XdsConfig};
use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::client::{ErrorKind, Provenance, ResourceError, Update};
use crate::name::ResourceKey;
use crate::resource::{ParseContext, ResourceType, decode};
use crate::target::Target;
use crate::{Choose, Code, Time};

/// Resources that do not change while they are looked at.
pub struct HeldResources<'a> {
    bootstrap: &'a Bootstrap,
    /// Stands for whoever holds them.
    holder: Arc<ServerConfig>,
    node_id: Arc<str>,
    resources: BTreeMap<ResourceKey, Held>,
    look_up: &'a mut LookUp<'a>,
}

/// Finds the addresses of a DNS name, or says why there are none.
pub type LookUp<'a> = dyn FnMut(&DnsName) -> Result<Vec<SocketAddr>, String> + 'a;

/// The last word on a resource.
#[derive(Clone, Debug)]
struct Held {
    version: Arc<str>,
    content: Result<Bytes, String>,
}

impl<'a> HeldResources<'a> {
    /// Nothing yet. `holder` is what errors call it.
    pub fn new(bootstrap: &'a Bootstrap, holder: &str, node_id: &str, look_up: &'a mut LookUp<'a>) -> Self {
        let holder = Arc::new(ServerConfig::insecure(holder));
        Self { bootstrap, holder, node_id: node_id.into(), resources: BTreeMap::new(), look_up }
    }

    /// Adds a resource, or why there is none. One of a type or with a name that nobody can ask for is left out.
    pub fn insert(&mut self, type_url: &str, name: &str, version: &str, content: Result<Bytes, String>) {
        let key = ResourceType::from_type_url(type_url)
            .and_then(|resource_type| ResourceKey::parse(resource_type, name, true).ok());
        if let Some((key, _)) = key {
            self.resources.insert(key, Held { version: version.into(), content });
        }
    }

    /// The names of all Listeners.
    pub fn listeners(&self) -> impl Iterator<Item = &Arc<str>> {
        let listeners = self.resources.keys().filter(|key| key.resource_type == ResourceType::Listener);
        listeners.map(|key| &key.name)
    }

    /// The target with the Listener that is held for it. Who holds them may have asked by another name than our bootstrap
    /// makes of the target: then it is the only one whose name ends with that of the target, as templates make them.
    pub fn find_listener(&self, target: Target) -> Target {
        let mut listeners = self.listeners();
        let is_held = listeners.any(|name| *name == target.listener);
        let wanted = last_part(&target.canonical).to_owned();
        let mut alike = self.listeners().filter(|name| last_part(name) == wanted);
        match (is_held, alike.next(), alike.next()) {
            (false, Some(only), None) => Target { listener: Arc::clone(only), ..target },
            _ => target,
        }
    }

    /// The configuration that a channel to `target` makes of this, or the error in its place; nothing if it would still
    /// wait for something.
    pub fn resolve(&mut self, target: &Target) -> Option<Result<Arc<XdsConfig>, Arc<ConfigError>>> {
        let (listener, authority) = (Arc::clone(&target.listener), Arc::clone(&target.data_plane_authority));
        let node_id = Arc::clone(&self.node_id);
        let mut manager = DependencyManager::new(listener, authority, node_id, DepsSettings::default());
        let (mut now, mut waits) = (Time::ZERO, 0);
        loop {
            match manager.poll_output() {
                Output::Do(Action::Watch(resource)) => manager.handle_update(now, &resource, self.find(&resource)),
                Output::Do(Action::Resolve(name)) => {
                    let answer = (self.look_up)(&name);
                    manager.handle_dns(now, &mut First, &name, answer);
                }
                Output::Do(Action::Unwatch(_) | Action::StopResolving(_) | Action::Publish(_)) => {}
                // A name that cannot be looked up is given up after some attempts.
                Output::Wait(Some(due)) if manager.in_force().is_none() && waits < MAX_WAITS => {
                    (now, waits) = (now.max(due), waits + 1);
                    manager.handle_timeout(now);
                }
                Output::Wait(_) => return manager.in_force().map(|held| held.map(Arc::clone).map_err(Arc::clone)),
            }
        }
    }

    /// What a watcher of the resource hears.
    fn find(&self, resource: &ResourceKey) -> Update {
        let error = |kind| {
            let server = Some(Arc::clone(&self.holder));
            let (resource, node_id) = (resource.clone(), Arc::clone(&self.node_id));
            Update::Failed(Arc::new(ResourceError { resource, server, node_id, kind, at: Time::ZERO }))
        };
        let absent = |message| error(ErrorKind::FromServer { code: Code::NotFound.number().into(), message });
        let Some(Held { version, content }) = self.resources.get(resource) else {
            return absent("there is no such resource".to_owned());
        };
        let bytes = match content {
            Ok(bytes) => bytes,
            Err(why) => return absent(why.clone()),
        };
        let cx = ParseContext { bootstrap: self.bootstrap, server: &self.holder };
        match decode(resource.resource_type, bytes, cx).result {
            Ok(value) => {
                let (server, version) = (Arc::clone(&self.holder), Arc::clone(version));
                Update::Changed(value, Provenance { server, version, at: Time::ZERO })
            }
            Err(invalid) => error(ErrorKind::Rejected { version: Arc::clone(version), invalid }),
        }
    }
}

impl fmt::Debug for HeldResources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldResources").field("resources", &self.resources.keys()).finish_non_exhaustive()
    }
}

/// Draws for pauses, of which nobody sees anything.
struct First;

impl Choose for First {
    fn choose(&mut self, _: u64) -> u64 {
        0
    }
}

/// What a name or a target is for, without where it is and what it is told apart by.
fn last_part(name: &str) -> &str {
    let path = name.split('?').next().unwrap_or(name);
    path.rsplit('/').next().unwrap_or(path)
}

const MAX_WAITS: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Guards;

    fn found(target: &str, listeners: &[&str]) -> String {
        let json = r#"{"xds_servers": [{"server_uri": "server:1", "channel_creds": [{"type": "insecure"}]}]}"#;
        let bootstrap = Bootstrap::parse(json, Guards::default()).unwrap();
        let target = Target::resolve(target, &bootstrap).unwrap();
        let mut nobody = |_: &DnsName| Err(String::new());
        let mut held = HeldResources::new(&bootstrap, "holder", "node", &mut nobody);
        for name in listeners {
            held.insert(ResourceType::Listener.type_url(), name, "1", Ok(Bytes::new()));
        }
        held.find_listener(target).listener.to_string()
    }

    #[test]
    fn a_listener_by_another_name_is_found_and_one_for_something_else_is_not() {
        let made = "xdstp://auth/envoy.config.listener.v3.Listener/grpc/client/shop?zone=a";
        assert_eq!(found("xds:///shop", &["other", "shop", made]), "shop");
        assert_eq!(found("xds:///shop", &["other", made]), made);
        assert_eq!(found("xds:///shop", &["client/shop", "server/shop"]), "shop", "none of two");
        assert_eq!(found("xds:///shp", &["shop"]), "shp", "a misspelt target is no other one");
    }
}
