//! What a set of resources amounts to that somebody holds: files, or the dump of another process (OP-1).

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Action, ConfigError, DependencyManager, DepsSettings, DnsName, Output, XdsConfig};
use crate::client::Update;
use crate::name::ResourceKey;
use crate::target::Target;
use crate::{Choose, Time};

/// Resources that do not change while they are looked at.
pub trait Holdings {
    /// The last word on a resource.
    fn find(&mut self, resource: &ResourceKey) -> Update;

    /// The addresses of a DNS name, or why there are none.
    fn look_up(&mut self, name: &DnsName) -> Result<Vec<SocketAddr>, String>;
}

/// The configuration that a channel to `target` makes of what is held, or the error in its place; nothing if something is
/// neither there nor known to be absent.
pub fn resolve(
    target: &Target,
    node_id: &str,
    holdings: &mut dyn Holdings,
) -> Option<Result<Arc<XdsConfig>, Arc<ConfigError>>> {
    let (listener, authority) = (Arc::clone(&target.listener), Arc::clone(&target.data_plane_authority));
    let mut manager = DependencyManager::new(listener, authority, node_id.into(), DepsSettings::default());
    let (mut now, mut waits) = (Time::ZERO, 0);
    loop {
        match manager.poll_output() {
            Output::Do(Action::Watch(resource)) => {
                let update = holdings.find(&resource);
                manager.handle_update(now, &resource, update);
            }
            Output::Do(Action::Resolve(name)) => {
                let answer = holdings.look_up(&name);
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

/// Draws for pauses, of which nobody sees anything.
struct First;

impl Choose for First {
    fn choose(&mut self, _: u64) -> u64 {
        0
    }
}

const MAX_WAITS: u32 = 100;
