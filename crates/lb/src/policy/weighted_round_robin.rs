//! weighted_round_robin: every endpoint that is connected, as often as the load that it reports allows
//! (A58, A114, L-106 to L-109).
//!
//! Reports are counted as they come; the policy looks at them once in each update period. So the path of an RPC has no
//! clock, and times are right to within one period.

use std::sync::Arc;

use mainstay_xds::Time;
use mainstay_xds::resource::endpoint::Locality;
use mainstay_xds::resource::lb_policy::{LbPolicy, Weighing, WeightedRoundRobinConfig};

use super::endpoint_sharding::{Change, EndpointSharding};
use super::{Cx, Event, Policy, What, leads_to_any};
use crate::endpoint::PriorityConfig;
use crate::helper::Observation;
use crate::orca::{LoadSink, Reports};
use crate::owner::Owner;
use crate::picker::{Parts, Picker, Position, Reporting, StridePicker};
use crate::pool::Pool;
use crate::subchannel::{State, Subchannel, SubchannelId};
use crate::timers::TimerKind;

/// Connects to every endpoint, and weighs them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WeightedRoundRobin {
    endpoints: EndpointSharding<Weighed>,
    config: Option<Box<WeightedRoundRobinConfig>>,
    /// The leaf cluster, and the locality if there is only one.
    origin: (Arc<str>, Option<Arc<Locality>>),
    /// When weights are looked at next.
    due: Option<Time>,
    next: Arc<Position>,
}

/// What is known of the load of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Weighed {
    reports: Option<Arc<Reports>>,
    /// How many reports were seen.
    seen: u32,
    /// When it was found to have reported last, and the weight that followed from that, as bits.
    latest: Option<(Time, u64)>,
    /// Since when it has reported without a break (`non_empty_since` in A58).
    since: Option<Time>,
    /// The connection as of the last look.
    connection: Option<SubchannelId>,
    /// Whether that was asked for reports of its own.
    is_watched: bool,
    /// Bits of the weight as of the last look; absent if it does not count.
    weight: Option<u64>,
}

/// Why a weight does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    /// There was no report, or they began too short a time ago.
    NotYet,
    /// The last report is too old.
    Stale,
}

impl Policy for WeightedRoundRobin {
    type Config = PriorityConfig;

    fn new(cx: &mut Cx<'_>, config: &PriorityConfig) -> Self {
        let endpoints = EndpointSharding::new(cx);
        // Somewhere, so that clients do not move in step.
        let next = Arc::new(Position::at(cx.choose.choose(1 << 32) as usize));
        let mut policy = Self { endpoints, config: None, origin: Default::default(), due: None, next };
        policy.update(cx, config);
        policy
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &PriorityConfig) {
        let LbPolicy::WeightedRoundRobin(settings) = &config.lb_policy else { return };
        // Whoever reports by other rules reports anew; what is known of its load still counts.
        let rules = |config: &WeightedRoundRobinConfig| (config.weighing.clone(), config.oob_reporting_period);
        let anew = self.config.as_deref().map(rules) != Some(rules(settings));
        self.config = Some(settings.clone());
        let cluster = config.localities.first().map(|locality| Arc::clone(&locality.origin.cluster));
        let locality = match &*config.localities {
            [only] => Some(Arc::clone(&only.locality)),
            _ => None,
        };
        self.origin = (cluster.unwrap_or_default(), locality);
        self.endpoints.update(cx, config.endpoints(), |endpoint, _| endpoint.join(&settings.weighing, anew));
        self.look(cx);
        self.restart_timer(cx);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        if event.owner == self.endpoints.owner() && event.what == What::Timer(TimerKind::Weights) {
            self.due = None;
            self.look(cx);
            self.restart_timer(cx);
            return true;
        }
        let Some(change) = self.endpoints.handle(cx, event) else { return false };
        if change.is_some_and(Change::is_about_ready) {
            self.look(cx);
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
        self.stop_timer(cx);
        self.endpoints.shut_down(cx);
    }

    fn state(&self) -> State {
        self.endpoints.state()
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        if self.state() != State::Ready {
            return self.endpoints.picker_without_ready(parts.pool);
        }
        let with_rpcs = self.config.as_ref().is_some_and(|config| config.oob_reporting_period.is_none());
        let ready = self.endpoints.in_order().filter_map(|endpoint| {
            let ready = endpoint.machine.connection(parts.handles)?;
            let reports = endpoint.mark.reports.clone().filter(|_| with_rpcs);
            Some((Reporting { ready, reports }, endpoint.mark.weight.map(f64::from_bits)))
        });
        let (ready, weights): (Vec<_>, Vec<_>) = ready.unzip();
        Picker::Stride(StridePicker::new(ready.into(), &weights, &self.next))
    }
}

impl WeightedRoundRobin {
    /// Weighs all endpoints, and tells of those that the next picker has.
    fn look(&mut self, cx: &mut Cx<'_>) {
        let Some(config) = &self.config else { return };
        let (mut not_yet_usable, mut stale, mut weights) = (0, 0, Vec::new());
        for endpoint in self.endpoints.members_mut() {
            let weight = endpoint.mark.look(cx, endpoint.machine.ready(), config);
            if endpoint.machine.state() == State::Ready {
                match weight {
                    Ok(_) => {}
                    Err(Unusable::NotYet) => not_yet_usable += 1,
                    Err(Unusable::Stale) => stale += 1,
                }
                weights.push(weight.map_or(0.0, f64::from_bits));
            }
        }
        if !weights.is_empty() {
            let (cluster, locality) = self.origin.clone();
            cx.observations.push(Observation::Weights { cluster, locality, not_yet_usable, stale, weights });
        }
    }

    fn restart_timer(&mut self, cx: &mut Cx<'_>) {
        self.stop_timer(cx);
        if let Some(config) = &self.config {
            let at = cx.now + config.weight_update_period;
            cx.timers.start(at, self.endpoints.owner(), TimerKind::Weights);
            self.due = Some(at);
        }
    }

    fn stop_timer(&mut self, cx: &mut Cx<'_>) {
        if let Some(at) = self.due.take() {
            cx.timers.stop(at, self.endpoints.owner(), TimerKind::Weights);
        }
    }
}

impl Weighed {
    fn join(&mut self, weighing: &Weighing, anew: bool) {
        if anew || self.reports.is_none() {
            self.reports = Some(Arc::new(Reports::new(weighing)));
            self.seen = 0;
            self.is_watched = false;
        }
    }

    /// The weight now, as bits, if it counts.
    fn look(
        &mut self,
        cx: &mut Cx<'_>,
        connection: Option<SubchannelId>,
        config: &WeightedRoundRobinConfig,
    ) -> Result<u64, Unusable> {
        if self.connection != connection {
            self.connection = connection;
            self.since = None; // L-107: the blackout begins anew.
            self.is_watched = false;
        }
        if let (Some(id), Some(reports)) = (connection, &self.reports) {
            let (count, weight) = reports.latest();
            if count != self.seen {
                self.seen = count;
                self.latest = Some((cx.now, weight.to_bits()));
                self.since.get_or_insert(cx.now);
            }
            if let Some(period) = config.oob_reporting_period
                && !self.is_watched
            {
                self.is_watched = true;
                cx.pool.watch_load(id, period, LoadSink::new(reports));
            }
        }
        let weight = self.weight_at(cx.now, config);
        self.weight = weight.ok();
        weight
    }

    /// The weight, unless it is too old or too new (L-107).
    fn weight_at(&mut self, now: Time, config: &WeightedRoundRobinConfig) -> Result<u64, Unusable> {
        let (updated, weight) = self.latest.ok_or(Unusable::NotYet)?;
        if now.since(updated) >= config.weight_expiration_period {
            self.since = None;
            return Err(Unusable::Stale);
        }
        let blackout = config.blackout_period;
        let is_proven = blackout.is_zero() || self.since.is_some_and(|since| now.since(since) >= blackout);
        is_proven.then_some(weight).ok_or(Unusable::NotYet)
    }
}
