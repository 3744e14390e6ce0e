//! Of which resources is made what servers serve, when it is whole (FB-4).

use std::collections::{BTreeMap, BTreeSet};

use super::ServerCore;
use super::machine::Machine;
use crate::client::Capture;
use crate::deps::{State, key};
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::RouteConfig;

impl ServerCore {
    /// What is in force for all addresses, if it is whole: see [`crate::deps::DependencyManager::whole`].
    pub fn capture(&self) -> Option<BTreeMap<AuthorityKey, Capture>> {
        if !self.stale.is_empty() {
            return None;
        }
        let mut resources = BTreeSet::new();
        for machine in self.machines.values() {
            machine.whole(&mut resources)?;
        }
        self.client.capture(&resources).filter(|captures| !captures.is_empty())
    }
}

impl Machine {
    /// Adds the resources of what is in force; none if nothing is, as servers say that there is nothing. `None` if
    /// something is waited for, or if what is in force is not the newest.
    fn whole(&self, resources: &mut BTreeSet<ResourceKey>) -> Option<()> {
        if matches!(self.listener.state, State::Waiting(_)) || self.held_until.is_some() {
            return None;
        }
        let Some(serving) = &self.in_force else { return Some(()) };
        let is_newest = self.newest_listener().is_some_and(|listener| listener == serving.listener);
        let is_made_of_newest = self.results(&serving.listener).is_some_and(|routes| routes == serving.routes);
        if serving.mixed_sources || !is_newest || !is_made_of_newest {
            return None;
        }
        resources.insert(self.listener_key());
        for name in serving.listener.route_names().map(|name| self.canonical(name)) {
            if matches!(self.routes.get(&name)?.state, State::Waiting(_)) {
                return None;
            }
            resources.insert(key::<RouteConfig>(&name));
        }
        Some(())
    }
}
