//! wrr_locality and the weighted_target below it: localities by weight (A28, A52, L-99 to L-101).
//!
//! A locality that leaves the configuration is let go at once: keeping it for 15 minutes, as A28
//! has it, keeps connections to endpoints that are gone (A115 gives that up for priority).

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_xds::resource::endpoint::Locality;
use mainstay_xds::resource::lb_policy::LbPolicy;

use super::{Cx, Event, Policy, leads_to_any};
use crate::endpoint::{LocalityConfig, PriorityConfig};
use crate::owner::Owner;
use crate::picker::{Parts, Picker, Weighted};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel};

/// One child per locality that has endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WeightedTarget<P> {
    /// In boxes: a map has room for more than it holds, and most clusters have a locality or two.
    targets: BTreeMap<Arc<Locality>, Box<Target<P>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target<P> {
    weight: u32,
    config: PriorityConfig,
    policy: P,
    /// Failed, and not ready since (L-49).
    failing: bool,
}

impl<P: Policy<Config = PriorityConfig>> Policy for WeightedTarget<P> {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let mut policy = Self { targets: BTreeMap::new() };
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        let child = if let LbPolicy::WrrLocality(child) = &config.lb_policy { Some(&**child) } else { None };
        let lb_policy = child.unwrap_or(&config.lb_policy);
        // Room for all localities at once: one after the other they would move the pool again and again.
        let before: usize = self.targets.values().map(|target| count(&target.config)).sum();
        cx.pool.expect(count(config).saturating_sub(before));
        let mut old = std::mem::take(&mut self.targets);
        for locality in &config.localities {
            // A locality without endpoints is no target (L-99); one listed twice counts as first seen.
            if locality.endpoints().next().is_none() || self.targets.contains_key(&locality.locality) {
                continue;
            }
            let config = child_config(lb_policy, locality, config.counted);
            let target = match old.remove(&locality.locality) {
                Some(mut target) => {
                    if target.config != config {
                        target.policy.update(cx, &config);
                        target.config = config;
                    }
                    target.weight = locality.weight;
                    target.settle(cx);
                    target
                }
                None => Box::new(Target::new(cx, locality.weight, config)),
            };
            self.targets.insert(Arc::clone(&locality.locality), target);
        }
        for mut gone in old.into_values() {
            gone.policy.shut_down(cx);
        }
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let found = self.targets.values_mut().find_map(|target| target.policy.handle(cx, event).then_some(target));
        match found {
            Some(target) => {
                target.settle(cx);
                true
            }
            None => false,
        }
    }

    fn serves(&self, owner: Owner) -> bool {
        self.targets.values().any(|target| target.policy.serves(owner))
    }

    fn keeps(&self, pool: &Pool, config: &PriorityConfig) -> bool {
        leads_to_any(config, pool, |owner| self.serves(owner))
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        for target in self.targets.values_mut() {
            target.policy.shut_down(cx);
        }
    }

    fn state(&self) -> State {
        let any = |state| self.targets.values().any(|target| target.state() == state);
        let order = [State::Ready, State::Connecting, State::Idle];
        order.into_iter().find(|state| any(*state)).unwrap_or(State::TransientFailure)
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        let state = self.state();
        let mut relevant = self.targets.iter().filter(|(_, target)| target.state() == state);
        if state == State::Ready {
            // Localities that are as they were mostly stand where they stood; if not, they share nothing this time.
            let pickers = relevant.enumerate().map(|(index, (_, target))| {
                let of_target = parts.below(|before| {
                    if let Picker::Weighted(before) = before { before.picker(index) } else { Some(before) }
                });
                (target.weight, target.policy.picker(of_target))
            });
            let mut pickers: Vec<_> = pickers.collect();
            return match pickers.pop() {
                Some((_, only)) if pickers.is_empty() => only,
                last => Picker::Weighted(Weighted::new(pickers.into_iter().chain(last))),
            };
        }
        let mut texts: Vec<String> = Vec::new();
        for (locality, target) in relevant.by_ref().take(MAX_TEXTS) {
            let picker = target.policy.picker(parts.below(|_| None));
            texts.push(format!("locality {}: {}", name(locality), picker.text().unwrap_or("failing")));
        }
        match relevant.count() {
            0 => {}
            more => texts.push(format!("and {more} more")),
        }
        match state {
            State::TransientFailure if texts.is_empty() => Picker::Fail("no endpoints".into()),
            State::TransientFailure => Picker::Fail(texts.join("; ")),
            State::Ready | State::Connecting | State::Idle => Picker::Wait(texts.join("; ")),
        }
    }
}

impl<P: Policy<Config = PriorityConfig>> Target<P> {
    fn new(cx: &mut Cx<'_>, weight: u32, config: PriorityConfig) -> Self {
        let policy = P::new(cx, &config);
        let mut target = Self { weight, config, policy, failing: false };
        target.settle(cx);
        target
    }

    /// Keeps the policy from idling (L-100), and notes its state.
    fn settle(&mut self, cx: &mut Cx<'_>) {
        if self.policy.state() == State::Idle {
            self.policy.exit_idle(cx);
        }
        match self.policy.state() {
            State::Ready => self.failing = false,
            State::TransientFailure => self.failing = true,
            State::Idle | State::Connecting => {}
        }
    }

    fn state(&self) -> State {
        if self.failing { State::TransientFailure } else { self.policy.state() }
    }
}

fn child_config(lb_policy: &LbPolicy, locality: &Arc<LocalityConfig>, counted: bool) -> PriorityConfig {
    // The weight is for the choice between localities only: alone, a locality has all of it.
    let locality = match locality.weight {
        1 => Arc::clone(locality),
        _ => Arc::new(LocalityConfig { weight: 1, ..(**locality).clone() }),
    };
    let localities = vec![locality];
    PriorityConfig { lb_policy: lb_policy.clone(), localities, counted }
}

/// How many endpoints there are.
fn count(config: &PriorityConfig) -> usize {
    config.localities.iter().map(|locality| locality.endpoints.endpoints.len()).sum()
}

fn name(locality: &Locality) -> String {
    let parts = [&locality.region, &locality.zone, &locality.sub_zone];
    let parts: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "\"\"".into() } else { parts.join("/") }
}

/// How many localities a text names.
const MAX_TEXTS: usize = 3;
