//! Warm switching: new routes take effect when the clusters that they bring in can take traffic.
//!
//! Until then RPCs go by the routes before, as a whole: no RPC sees half of an update. It is not worth the wait, and
//! so there is none, if a cluster that the new routes give up does not serve any more, or if one that they keep fails:
//! they may send elsewhere what the routes before would send there. The wait is bounded, and another update meanwhile
//! does not make it longer. The clusters of the routes before stay in the configuration meanwhile, and follow their
//! endpoints (see [`Tree::poll_clusters_in_use`]).

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;

use super::{Config, Tree, default_limit, is_wanted};
use crate::helper::{Context, Helper};
use crate::routing::RouteTable;
use crate::subchannel::{State, Subchannel};

/// How long new routes wait at most, unless someone sets another bound.
pub(super) const BOUND: Duration = Duration::from_secs(5);

/// The routes that RPCs still go by while newer ones wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Warming {
    pub(super) routes: Arc<RouteTable>,
    pub(super) default_limit: Option<Duration>,
    /// New clusters that could not take traffic when last looked at; the last one is looked at next.
    cold: Vec<Arc<str>>,
    /// When the wait is over in any case; set when it begins.
    pub(super) until: Option<Time>,
}

impl<S: Subchannel> Tree<S> {
    /// How long new routes may wait for the clusters that they bring in; `None` to switch at once.
    #[must_use]
    pub fn with_warm_switching(mut self, bound: Option<Duration>) -> Self {
        self.warm_bound = bound;
        self
    }

    /// What RPCs are routed by at the moment, if an update may leave them at that.
    pub(super) fn take_kept(&mut self) -> Option<Warming> {
        self.warm_bound?;
        match (self.warming.take(), &self.config) {
            (None, Config::Works { config, routes }) => Some(Warming {
                routes: Arc::clone(routes),
                default_limit: default_limit(config),
                cold: Vec::new(),
                until: None,
            }),
            (warming, _) => warming,
        }
    }

    /// Has RPCs go by the routes before as long as that is worth it.
    pub(super) fn keep<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, before: Warming) {
        let (Config::Works { routes, .. }, Some(bound)) = (&self.config, self.warm_bound) else { return };
        if Arc::ptr_eq(routes, &before.routes) {
            return;
        }
        let is_cold = |name: &&Arc<str>| !before.routes.names(name) && self.is_cold(name);
        let cold: Vec<Arc<str>> = routes.clusters().iter().filter(is_cold).cloned().collect();
        let is_of_use = |name: &Arc<str>| is_of_use(self.cluster_state(name), routes.names(name));
        let serves = before.routes.clusters().iter().all(is_of_use);
        let cold = if serves { cold } else { Vec::new() };
        let until = before.until.or(Some(cx.now + bound));
        self.warming = Some(Warming { cold, until, ..before });
        self.switch_if_warm(cx);
    }

    /// Lets the new routes take effect if there is nothing to wait for any more.
    pub(super) fn switch_if_warm<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) {
        let Some(mut warming) = self.warming.take() else { return };
        while warming.cold.pop_if(|name| !self.is_cold(name)).is_some() {}
        let due = warming.until.is_some_and(|until| until <= cx.now);
        if !warming.cold.is_empty() && !due && !self.lost_a_cluster(&warming) {
            self.warming = Some(warming);
            return;
        }
        (self.changed, self.rerouted) = (true, true);
        let Config::Works { config, routes } = &self.config else { return };
        let is_unwanted = |name: &&Arc<str>| !is_wanted(name, config, routes, &self.below);
        let unwanted: Vec<Arc<str>> = warming.routes.clusters().iter().filter(is_unwanted).cloned().collect();
        for name in unwanted {
            self.remove_cluster(cx, &name);
        }
    }

    /// Whether the routes before lost the use of one of their clusters since the last snapshot.
    fn lost_a_cluster(&self, warming: &Warming) -> bool {
        let Config::Works { routes, .. } = &self.config else { return true };
        self.touched.iter().filter_map(|number| self.clusters.get(number)).any(|node| {
            warming.routes.names(&node.name) && !is_of_use(Some(node.cds.state()), routes.names(&node.name))
        })
    }

    fn is_cold(&self, name: &str) -> bool {
        // One that is idle stays so until an RPC comes.
        self.cluster_state(name) == Some(State::Connecting)
    }

    fn cluster_state(&self, name: &str) -> Option<State> {
        let numbered = self.pickers.get(name)?;
        self.clusters.get(&numbered.number).map(|node| node.cds.state())
    }
}

/// Whether RPCs may go by routes to a cluster in this state while newer routes wait, which keep it or do not.
fn is_of_use(state: Option<State>, kept: bool) -> bool {
    match state {
        Some(State::Ready) => true,
        Some(State::Idle | State::Connecting) => kept,
        Some(State::TransientFailure) | None => false,
    }
}
