//! round_robin: every endpoint that is connected, in turn (A61, L-102 to L-104).

use super::endpoint_sharding::{Change, EndpointSharding};
use super::{Cx, Event, Policy, leads_to_any};
use crate::endpoint::PriorityConfig;
use crate::owner::Owner;
use crate::picker::{InTurn, Parts, Picker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};

/// Connects to every endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoundRobin {
    endpoints: EndpointSharding<()>,
    /// Where the next picker starts.
    start: u32,
}

impl Policy for RoundRobin {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy = Self { endpoints: EndpointSharding::new(cx), start: 0 };
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        self.endpoints.update(cx, config.endpoints(), |(), _| {});
        self.draw_start(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let Some(change) = self.endpoints.handle(cx, event) else { return false };
        if change.is_some_and(Change::is_about_ready) {
            self.draw_start(cx);
        }
        true
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
            let Picker::InTurn(before) = before else { return None };
            Some(before.ready())
        });
        let ready = self.endpoints.runs(before, |endpoint| endpoint.machine.connection(parts.handles));
        Picker::InTurn(InTurn::new(ready, self.start))
    }
}

impl RoundRobin {
    /// A random start for the next picker, so that clients do not move in step (L-103).
    fn draw_start(&mut self, cx: &mut Cx<'_>) {
        self.start = match self.endpoints.tally().ready {
            0 | 1 => 0,
            ready => cx.choose.choose(u64::from(ready)) as u32,
        };
    }
}
