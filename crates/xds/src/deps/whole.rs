//! Of which resources the configuration in force is made, when it is whole (FB-4).

use std::collections::BTreeSet;

use super::watch::{Watched, key};
use super::{DependencyManager, State};
use crate::name::ResourceKey;
use crate::resource::listener::RouteSource;
use crate::resource::{Listener, RouteConfig};

impl DependencyManager {
    /// The resources that the configuration in force is made of. `None` unless it is complete, of one server in each
    /// authority, and the newest: nothing that came in waits to replace a part of it, so what is known of these
    /// resources now is what it was made of. Some of them may have no value, as servers say that there is none; but none
    /// is missing only because servers are in trouble.
    pub fn whole(&self) -> Option<BTreeSet<ResourceKey>> {
        let config = self.published.as_ref().filter(|_| self.in_force == Some(Ok(())))?;
        if config.mixed_sources || self.stale.any || self.held_until.is_some() || self.failure.is_some() {
            return None;
        }
        let State::Valid(listener, _) = &self.listener.state else { return None };
        let Listener::Api(listener) = &**listener else { return None };
        let mut resources = BTreeSet::from([key::<Listener>(&self.listener_name)]);
        let route_config = match &listener.routes {
            RouteSource::Inline(route_config) => route_config,
            RouteSource::Rds(_) => {
                let name = self.route_name.as_ref()?;
                resources.insert(key::<RouteConfig>(name));
                self.routes.get(name).and_then(Watched::value)?
            }
        };
        if *config.listener != *listener || config.route_config != *route_config {
            return None;
        }
        self.graph.whole(&config.clusters, &mut resources)?;
        Some(resources)
    }
}
