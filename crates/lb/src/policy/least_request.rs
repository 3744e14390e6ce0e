//! least_request: endpoints as round_robin has them, and of a few of them the one with the fewest RPCs under way
//! (A48, L-105).

use std::sync::Arc;

use mainstay_xds::resource::lb_policy::LbPolicy;

use super::endpoint_sharding::EndpointSharding;
use super::{Cx, Event, Policy, leads_to_any};
use crate::breaker::Counter;
use crate::endpoint::PriorityConfig;
use crate::owner::Owner;
use crate::picker::{LeastRequestPicker, Parts, Picker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};

/// Connects to every endpoint, and counts the RPCs of each. The counts are its own: of no other policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeastRequest {
    endpoints: EndpointSharding<Arc<Counter>>,
    choices: u8,
}

impl Policy for LeastRequest {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy = Self { endpoints: EndpointSharding::new(cx), choices: 0 };
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        if let LbPolicy::LeastRequest { choices } = config.lb_policy {
            self.choices = choices;
        }
        self.endpoints.update(cx, config.endpoints(), |_, _| {});
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        self.endpoints.handle(cx, event).is_some()
    }

    fn serves(&self, owner: Owner) -> bool {
        self.endpoints.serves(owner)
    }

    fn keeps(&self, pool: &Pool, config: &PriorityConfig) -> bool {
        leads_to_any(config, pool, |owner| self.serves(owner))
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.endpoints.shut_down(cx);
    }

    fn state(&self) -> State {
        self.endpoints.state()
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        if self.state() != State::Ready {
            return self.endpoints.picker_without_ready(parts.pool);
        }
        let before = parts.before.and_then(|before| {
            let Picker::LeastRequest(before) = before else { return None };
            Some(before.endpoints())
        });
        let ready = self
            .endpoints
            .runs(before, |endpoint| Some((endpoint.machine.connection(parts.handles)?, Arc::clone(&endpoint.mark))));
        Picker::LeastRequest(LeastRequestPicker::new(ready, self.choices))
    }
}
