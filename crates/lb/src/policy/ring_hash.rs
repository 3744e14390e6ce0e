//! ring_hash: requests with the same hash go to the same endpoint (A42, A61, A76, L-111 to L-118).
//!
//! Endpoints are connected to when a request first needs them. While some fail, the policy itself connects to others
//! one at a time: it must find out whether any works, also while a parent sends no requests here.

use std::sync::Arc;

use http::HeaderName;
use mainstay_xds::resource::endpoint::Endpoint;
use mainstay_xds::resource::lb_policy::{LbPolicy, RingHashConfig};

use super::endpoint_sharding::{EndpointSharding, Member, Tally};
use super::{Cx, Event, Policy, leads_to_any};
use crate::endpoint::{PriorityConfig, weights};
use crate::owner::{Owner, Wake};
use crate::picker::{Parts, Picker, Ring, RingPicker, Spot};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};

/// Endpoints on a ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RingHash {
    endpoints: EndpointSharding<RingEntry>,
    sizes: (u32, u32),
    /// Made anew only when the endpoints or the sizes change.
    ring: Arc<Ring>,
    header: Option<HeaderName>,
}

/// What decides where an endpoint is on the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct RingEntry {
    key: String,
    weight: u32,
}

impl Policy for RingHash {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy =
            Self { endpoints: EndpointSharding::lazy(cx), sizes: (0, 0), ring: Arc::default(), header: None };
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        let LbPolicy::RingHash(settings) = &config.lb_policy else { return };
        self.header = settings.request_hash_header.as_ref().and_then(|name| name.parse().ok());
        let entries = |policy: &Self| policy.endpoints.in_order().map(|e| e.mark.clone()).collect::<Vec<_>>();
        let (sizes_before, entries_before) = (self.sizes, entries(self));

        self.sizes = sizes(settings);
        self.endpoints.members_mut().for_each(|endpoint| endpoint.mark.weight = 0);
        let mut weights = weights(config);
        self.endpoints.update(cx, config.endpoints(), |entry, endpoint| entry.add(endpoint, weights.next()));
        let entries = entries(self);
        if (self.sizes, &entries) != (sizes_before, &entries_before) {
            let (min, max) = self.sizes;
            let entries = entries.iter().map(|entry| (entry.key.as_str(), entry.weight));
            self.ring = Arc::new(Ring::new(entries, min, max));
        }
        self.keep_trying(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let mine = self.endpoints.handle(cx, event).is_some();
        if mine {
            self.keep_trying(cx);
        }
        mine
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        if self.state() == State::Idle {
            self.wake_any(cx);
            self.keep_trying(cx);
        }
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
        // L-114, in this order.
        match self.endpoints.tally() {
            Tally { ready: 1.., .. } => State::Ready,
            Tally { failing: 2.., .. } => State::TransientFailure,
            Tally { connecting: 1.., .. } => State::Connecting,
            Tally { failing: 1, .. } if self.endpoints.len() > 1 => State::Connecting,
            Tally { idle: 1.., .. } => State::Idle,
            Tally { .. } => State::TransientFailure,
        }
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        if let Tally { ready: 0, connecting: 0, idle: 0, .. } = self.endpoints.tally() {
            return self.endpoints.picker_without_ready(parts.pool);
        }
        let owner = self.endpoints.owner();
        let before = parts.before.and_then(|before| {
            let Picker::Ring(before) = before else { return None };
            Some(before.spots())
        });
        let spots = self.endpoints.runs(before, |endpoint| {
            Some(match endpoint.machine.state() {
                State::Ready => endpoint.machine.connection(parts.handles).map_or(Spot::Connecting, Spot::Ready),
                State::Connecting => Spot::Connecting,
                State::Idle => Spot::Idle(Wake(Owner { slot: endpoint.machine.slot(), ..owner })),
                State::TransientFailure => Spot::Failing,
            })
        });
        Picker::Ring(Box::new(RingPicker::new(&self.ring, spots, self.header.as_ref())))
    }
}

impl RingHash {
    /// Connects to some endpoint if requests alone would not find one that works (L-115).
    fn keep_trying(&mut self, cx: &mut Cx<'_>) {
        let is_stuck = |policy: &Self| {
            matches!(policy.state(), State::Connecting | State::TransientFailure)
                && policy.endpoints.tally().connecting == 0
        };
        // One that is woken is idle no more, though it may have failed at once.
        while is_stuck(self) && self.wake_any(cx) {}
    }

    /// Connects to an idle endpoint, whichever. Whether there was one.
    fn wake_any(&mut self, cx: &mut Cx<'_>) -> bool {
        let idle = self.endpoints.tally().idle;
        if idle == 0 {
            return false;
        }
        let which = if idle == 1 { 0 } else { cx.choose.choose(u64::from(idle)) as usize };
        let idle = |endpoint: &&Member<RingEntry>| endpoint.machine.state() == State::Idle;
        let slot = self.endpoints.in_order().filter(idle).nth(which).map(|endpoint| endpoint.machine.slot());
        slot.into_iter().for_each(|slot| self.endpoints.wake(cx, slot));
        slot.is_some()
    }
}

impl RingEntry {
    /// An endpoint that is listed twice has the weight of both.
    fn add(&mut self, endpoint: &Endpoint, weight: Option<u32>) {
        self.weight = self.weight.saturating_add(weight.unwrap_or(1));
        self.key = match endpoint.hash_key() {
            Some(key) if !key.is_empty() => key.to_string(), // A76
            _ => endpoint.addresses.first().to_string(),
        };
    }
}

/// The sizes that a ring may have, within what we allow (L-111).
fn sizes(config: &RingHashConfig) -> (u32, u32) {
    (config.min_ring_size.min(MAX_RING_SIZE), config.max_ring_size.min(MAX_RING_SIZE))
}

/// The largest ring that we make, whatever the configuration says (A42).
const MAX_RING_SIZE: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ring_is_larger_than_we_allow() {
        let of = |min_ring_size, max_ring_size| {
            sizes(&RingHashConfig { min_ring_size, max_ring_size, request_hash_header: None })
        };
        assert_eq!(of(1024, 8_388_608), (1024, 4096), "L-111");
        assert_eq!(of(8_388_608, 8_388_608), (4096, 4096), "L-111: both are capped");
        assert_eq!(of(1, 2), (1, 2), "L-111");
    }
}
