//! outlier_detection: takes endpoints that fail their RPCs out of use for a while (A50, A61, L-74 to L-83).
//!
//! It stands above everything else of a leaf cluster, so that an endpoint stays ejected wherever it moves (A75).
//! Below, the machine of each endpoint [joins](Health::join) here: it gets the counter of the endpoint, and hears when
//! the endpoint is ejected and when it returns. Without a configuration nobody joins, and nothing is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::deps::{ClusterChildren, ClusterConfig};
use mainstay_xds::resource::cluster::{FailurePercentageEjection, OutlierDetection as Config, SuccessRateEjection};
use mainstay_xds::{Choose, Time};

use super::cluster_impl::ClusterImpl;
use super::{Cx, Event, LeafCluster, Policy, What};
use crate::calls::{CallCounter, Calls};
use crate::endpoint::AddressSet;
use crate::helper::{DetectionMethod, Observation, UnenforcedReason};
use crate::owner::Owner;
use crate::picker::{Parts, Picker};
use crate::subchannel::{State, Subchannel};
use crate::timers::TimerKind;

/// A leaf cluster, with or without detection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutlierDetection {
    detector: Option<Box<Detector>>,
    child: ClusterImpl,
}

/// The endpoints of a cluster whose RPCs are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Health {
    endpoints: BTreeMap<AddressSet, Tracked>,
}

/// What an endpoint gets that joins.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) counter: Arc<CallCounter>,
    pub(crate) ejected: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Detector {
    owner: Owner,
    /// The name of the cluster.
    cluster: Arc<str>,
    config: Config,
    /// When the interval that runs began, and when it ends.
    began: Time,
    due: Time,
    health: Health,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Tracked {
    counter: Arc<CallCounter>,
    ejected_at: Option<Time>,
    /// How many base ejection times the next ejection lasts, less one.
    multiplier: u32,
    /// The machines that look after it.
    users: Vec<Owner>,
}

/// An endpoint and what was counted for it in the interval.
struct Judged<'a> {
    endpoint: &'a mut Tracked,
    calls: Calls,
}

/// Ejects as long as there may be more ejections (L-81).
struct Judge<'a> {
    choose: &'a mut dyn Choose,
    now: Time,
    total: usize,
    ejected: usize,
    max_percent: u32,
    cluster: &'a Arc<str>,
    observations: &'a mut Vec<Observation>,
}

// === impl OutlierDetection ===

impl Policy for OutlierDetection {
    type Config = LeafCluster;

    fn new(cx: &mut Cx<'_>, cluster: &LeafCluster) -> Self {
        let config = &cluster.config;
        let mut detector = cluster.outlier_detection().map(|settings| Box::new(Detector::new(cx, settings, config)));
        let child = with_health(&mut detector, cx, |cx| ClusterImpl::new(cx, cluster));
        Self { detector, child }
    }

    fn update(&mut self, cx: &mut Cx<'_>, cluster: &LeafCluster) {
        let config = &cluster.config;
        match (cluster.outlier_detection(), &mut self.detector) {
            (Some(settings), Some(detector)) => detector.update(cx, settings, config),
            (Some(settings), detector) => *detector = Some(Box::new(Detector::new(cx, settings, config))),
            // Everything returns: below, nobody finds anything to join any more (L-74).
            (None, detector) => {
                if let Some(detector) = detector.take() {
                    detector.stop_timer(cx);
                }
            }
        }
        with_health(&mut self.detector, cx, |cx| self.child.update(cx, cluster));
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let news = match &mut self.detector {
            Some(detector) if event.owner.policy == detector.owner.policy => detector.sweep(cx),
            detector => return with_health(detector, cx, |cx| self.child.handle(cx, event)),
        };
        for event in news {
            with_health(&mut self.detector, cx, |cx| self.child.handle(cx, &event));
        }
        true
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        with_health(&mut self.detector, cx, |cx| self.child.exit_idle(cx));
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        if let Some(detector) = self.detector.take() {
            detector.stop_timer(cx);
        }
        self.child.shut_down(cx);
    }

    fn state(&self) -> State {
        self.child.state()
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        self.child.picker(parts)
    }
}

/// Runs `work` of the child, whose endpoints may join.
fn with_health<T>(detector: &mut Option<Box<Detector>>, cx: &mut Cx<'_>, work: impl FnOnce(&mut Cx<'_>) -> T) -> T {
    let Some(detector) = detector else { return work(cx) };
    let outer = cx.health.replace(std::mem::take(&mut detector.health));
    let result = work(cx);
    detector.health = std::mem::replace(&mut cx.health, outer).unwrap_or_default();
    result
}

// === impl Health ===

impl Health {
    /// Has `owner` hear of the endpoint with these addresses. None if it is not in the configuration.
    pub(crate) fn join(&mut self, addresses: &AddressSet, owner: Owner) -> Option<Membership> {
        let endpoint = self.endpoints.get_mut(addresses)?;
        if !endpoint.users.contains(&owner) {
            endpoint.users.push(owner);
        }
        Some(Membership { counter: Arc::clone(&endpoint.counter), ejected: endpoint.ejected_at.is_some() })
    }

    pub(crate) fn leave(&mut self, addresses: &AddressSet, owner: Owner) {
        if let Some(endpoint) = self.endpoints.get_mut(addresses) {
            endpoint.users.retain(|user| *user != owner);
        }
    }

    /// Knows the endpoints of `config` and no others. What stays keeps its state (L-83).
    fn update(&mut self, cx: &mut Cx<'_>, config: &ClusterConfig) {
        let mut old = std::mem::take(&mut self.endpoints);
        let ClusterChildren::Endpoints(Some(resolved)) = &config.children else { return };
        for locality in resolved.priorities().flatten() {
            for endpoint in locality.endpoints {
                let addresses = AddressSet::of(endpoint);
                if self.endpoints.contains_key(&addresses) {
                    continue;
                }
                let tracked = old.remove(&addresses).unwrap_or_else(|| Tracked::new(cx.new_owner().policy));
                self.endpoints.insert(addresses, tracked);
            }
        }
    }
}

// === impl Detector ===

impl Detector {
    fn new(cx: &mut Cx<'_>, settings: &Config, config: &ClusterConfig) -> Self {
        let (owner, began) = (cx.new_owner(), cx.now);
        let mut detector = Self {
            owner,
            cluster: Arc::clone(&config.name),
            config: settings.clone(),
            began,
            due: began + interval(settings),
            health: Health::default(),
        };
        detector.health.update(cx, config);
        cx.timers.start(detector.due, owner, TimerKind::Interval);
        detector
    }

    /// The interval that runs takes as long as the new settings say (L-78).
    fn update(&mut self, cx: &mut Cx<'_>, settings: &Config, config: &ClusterConfig) {
        if self.config != *settings {
            self.config = settings.clone();
            self.stop_timer(cx);
            self.due = cx.now.max(self.began + interval(settings));
            cx.timers.start(self.due, self.owner, TimerKind::Interval);
        }
        self.health.update(cx, config);
    }

    /// Ends an interval (L-77). What the machines of endpoints have to hear: first who returns, so that a cluster is
    /// not without endpoints in between.
    fn sweep(&mut self, cx: &mut Cx<'_>) -> Vec<Event> {
        self.began = cx.now;
        self.due = cx.now + interval(&self.config);
        cx.timers.start(self.due, self.owner, TimerKind::Interval);

        let (addresses, mut endpoints): (Vec<&AddressSet>, Vec<Judged<'_>>) =
            self.health.endpoints.iter_mut().map(|(addresses, tracked)| (addresses, Judged::new(tracked))).unzip();
        let was_ejected: Vec<bool> = endpoints.iter().map(|judged| judged.endpoint.ejected_at.is_some()).collect();
        let mut judge = Judge {
            choose: &mut *cx.choose,
            now: cx.now,
            total: endpoints.len(),
            ejected: was_ejected.iter().filter(|ejected| **ejected).count(),
            max_percent: self.config.max_ejection_percent,
            cluster: &self.cluster,
            observations: &mut *cx.observations,
        };
        if let Some(algorithm) = &self.config.success_rate {
            judge.by_success_rate(&mut endpoints, algorithm);
        }
        if let Some(algorithm) = &self.config.failure_percentage {
            judge.by_failure_percentage(&mut endpoints, algorithm);
        }
        let (mut news, mut ejected) = (Vec::new(), Vec::new());
        for ((Judged { endpoint, .. }, was_ejected), addresses) in endpoints.into_iter().zip(was_ejected).zip(addresses)
        {
            endpoint.forgive(cx.now, &self.config);
            let is_ejected = endpoint.ejected_at.is_some();
            if is_ejected != was_ejected {
                let (cluster, addresses) = (Arc::clone(&self.cluster), addresses.iter().copied().collect());
                cx.observations.push(Observation::Ejection { cluster, addresses, ejected: is_ejected });
                let list = if is_ejected { &mut ejected } else { &mut news };
                let what = What::Health { ejected: is_ejected };
                list.extend(endpoint.users.iter().map(|owner| Event { owner: *owner, what }));
            }
        }
        news.append(&mut ejected);
        news
    }

    fn stop_timer(&self, cx: &mut Cx<'_>) {
        cx.timers.stop(self.due, self.owner, TimerKind::Interval);
    }
}

// === impl Judge ===

impl Judge<'_> {
    /// Ejects endpoints whose success rate is far below the mean (L-79).
    fn by_success_rate(&mut self, endpoints: &mut [Judged<'_>], algorithm: &SuccessRateEjection) {
        let mut busy = busy(endpoints, algorithm.request_volume);
        if busy.len() < algorithm.minimum_hosts.max(1) as usize {
            return;
        }
        let count = busy.len() as f64;
        let mean = busy.iter().map(|judged| judged.calls.success_rate()).sum::<f64>() / count;
        let variance = busy.iter().map(|judged| (judged.calls.success_rate() - mean).powi(2)).sum::<f64>() / count;
        let threshold = mean - variance.sqrt() * (f64::from(algorithm.stdev_factor) / 1000.0);
        let is_outlier = |judged: &Judged<'_>| judged.calls.success_rate() < threshold;
        let method = DetectionMethod::SuccessRate;
        self.eject(busy.iter_mut().map(|judged| &mut **judged), is_outlier, method, algorithm.enforcement);
    }

    /// Ejects endpoints that fail more than a share of their RPCs (L-80).
    fn by_failure_percentage(&mut self, endpoints: &mut [Judged<'_>], algorithm: &FailurePercentageEjection) {
        let mut busy = busy(endpoints, algorithm.request_volume);
        if busy.len() < algorithm.minimum_hosts as usize {
            return;
        }
        let is_outlier = |Judged { calls, .. }: &Judged<'_>| {
            u128::from(calls.failures) * 100 > u128::from(algorithm.threshold) * u128::from(calls.total())
        };
        let method = DetectionMethod::FailurePercentage;
        self.eject(busy.iter_mut().map(|judged| &mut **judged), is_outlier, method, algorithm.enforcement);
    }

    /// Ejects outliers. One that is out already does not count again for the calls that it still had.
    fn eject<'e, 'j: 'e>(
        &mut self,
        endpoints: impl Iterator<Item = &'e mut Judged<'j>>,
        is_outlier: impl Fn(&Judged<'_>) -> bool,
        method: DetectionMethod,
        enforcement: u32,
    ) {
        for judged in endpoints {
            if judged.endpoint.ejected_at.is_some() || !is_outlier(judged) {
                continue;
            }
            let unenforced = if self.ejected > 0 && self.ejected * 100 >= self.max_percent as usize * self.total {
                Some(UnenforcedReason::MaxEjectionOverflow) // L-81: but one may always be.
            } else if enforcement < 100 && self.choose.choose(100) >= u64::from(enforcement) {
                Some(UnenforcedReason::EnforcementPercentage)
            } else {
                judged.endpoint.eject(self.now);
                self.ejected += 1;
                None
            };
            self.observations.push(Observation::Outlier { cluster: Arc::clone(self.cluster), method, unenforced });
        }
    }
}

// === impl Judged ===

impl<'a> Judged<'a> {
    fn new(endpoint: &'a mut Tracked) -> Self {
        Self { calls: endpoint.counter.take(), endpoint }
    }
}

// === impl Tracked ===

impl Tracked {
    fn new(number: u64) -> Self {
        Self { counter: Arc::new(CallCounter::new(number)), ejected_at: None, multiplier: 0, users: Vec::new() }
    }

    fn eject(&mut self, now: Time) {
        self.ejected_at = Some(now);
        self.multiplier = self.multiplier.saturating_add(1);
    }

    /// Lets an endpoint return when its time is over; each interval in use makes its next ejection shorter (L-77).
    fn forgive(&mut self, now: Time, config: &Config) {
        let Some(at) = self.ejected_at else {
            self.multiplier = self.multiplier.saturating_sub(1);
            return;
        };
        let longest = config.base_ejection_time.max(config.max_ejection_time);
        let span = config.base_ejection_time.saturating_mul(self.multiplier).min(longest);
        if now.since(at) >= span && now > at {
            self.ejected_at = None;
        }
    }
}

/// Those with enough RPCs to be judged.
fn busy<'e, 'j>(endpoints: &'e mut [Judged<'j>], request_volume: u32) -> Vec<&'e mut Judged<'j>> {
    let enough = u64::from(request_volume).max(1); // No RPC, no rate.
    endpoints.iter_mut().filter(|judged| judged.calls.total() >= enough).collect()
}

/// Never so short that nothing else gets done.
fn interval(config: &Config) -> Duration {
    config.interval.max(SHORTEST_INTERVAL)
}

const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
