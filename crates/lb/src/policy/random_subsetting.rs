//! random_subsetting: hands some of the endpoints to its child, others in each client (A68, L-110).
//!
//! Endpoints are ranked by a hash with a seed of the policy's own, and the first ones are taken: so an endpoint that
//! comes or goes changes at most one of them.

use std::sync::Arc;

use mainstay_xds::resource::endpoint::{Endpoint, EndpointCollection};
use mainstay_xds::resource::lb_policy::LbPolicy;
use xxhash_rust::xxh64::xxh64;

use super::{Cx, Event, Policy};
use crate::endpoint::{LocalityConfig, PriorityConfig};
use crate::owner::Owner;
use crate::picker::{Parts, Picker};
use crate::pool::Pool;
use crate::request_hash::random_hash;
use crate::subchannel::{State, Subchannel};

/// A policy among some endpoints. In a box, as it has the size of all policies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RandomSubsetting<P> {
    seed: u64,
    child: Box<P>,
}

impl<P: Policy<Config = PriorityConfig>> Policy for RandomSubsetting<P> {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let seed = random_hash(cx.choose);
        Self { seed, child: Box::new(P::new(cx, &subset(config, seed))) }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        self.child.update(cx, &subset(config, self.seed));
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        self.child.handle(cx, event)
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        self.child.exit_idle(cx);
    }

    fn serves(&self, owner: Owner) -> bool {
        self.child.serves(owner)
    }

    fn keeps(&self, pool: &Pool, config: &PriorityConfig) -> bool {
        self.child.keeps(pool, &subset(config, self.seed))
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.child.shut_down(cx);
    }

    fn state(&self) -> State {
        self.child.state()
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        self.child.picker(parts)
    }
}

/// What the child gets: its policy, and the endpoints that rank first, where they were.
fn subset(config: &PriorityConfig, seed: u64) -> PriorityConfig {
    let LbPolicy::RandomSubsetting { size, child } = &config.lb_policy else { return config.clone() };
    let (lb_policy, size) = ((**child).clone(), *size as usize);
    let rank = |endpoint: &Endpoint| {
        (xxh64(endpoint.addresses.first().to_string().as_bytes(), seed), endpoint.addresses.first())
    };
    let mut ranks: Vec<_> = config.endpoints().map(|endpoint| rank(&endpoint)).collect();
    if ranks.len() <= size {
        return PriorityConfig { lb_policy, ..config.clone() };
    }
    // The first that is left out.
    let (_, first_out, _) = ranks.select_nth_unstable(size);
    let first_out = *first_out;
    let localities = config.localities.iter().map(|locality| {
        let chosen = locality.endpoints().filter(|endpoint| rank(endpoint) < first_out);
        let chosen = chosen.map(|endpoint| endpoint.endpoint.clone()).collect();
        let endpoints = Arc::new(EndpointCollection { endpoints: chosen });
        Arc::new(LocalityConfig { endpoints, ..(**locality).clone() })
    });
    PriorityConfig { lb_policy, localities: localities.collect(), ..config.clone() }
}
