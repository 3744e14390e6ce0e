//! All kinds together: what is served, and how fresh it is. Decides without I/O; [`follow`](super::follow) does it.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use mainstay_control_plane::Snapshots;

use crate::freshness::{Freshness, Limits, Standing};
use crate::kubernetes::model::Model;
use crate::kubernetes::object::{Key, Kind, Object, Service};
use crate::kubernetes::reflector::{Action, Change, Listed, Reflector, Told, Trouble};

/// What one list and its watch are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// All of them, without one.
    pub(crate) namespace: Option<String>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} of namespace {namespace}", self.kind.word()),
            None => write!(f, "{} of all namespaces", self.kind.word()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Replica {
    reflectors: Vec<(Target, Reflector<Object>)>,
    model: Model,
    freshness: Freshness,
    /// Not before this is anything brought again.
    bring_at: Duration,
    orders: VecDeque<Order>,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Order {
    /// For the target with this index.
    Do(usize, Action),
    /// Serve this, and tell what cannot be served.
    Bring(Snapshots, Vec<String>),
    /// A Service that is not served, and of what it is another name.
    Skipped(Key, String),
}

impl Replica {
    /// Without namespaces, for all of them.
    pub(crate) fn new(namespaces: &[String], model: Model, limits: Limits, has_view: bool) -> Self {
        let scopes: Vec<_> =
            if namespaces.is_empty() { vec![None] } else { namespaces.iter().cloned().map(Some).collect() };
        let targets = scopes.into_iter().flat_map(|namespace| {
            Kind::ALL.map(|kind| (Target { kind, namespace: namespace.clone() }, Reflector::new()))
        });
        Self {
            reflectors: targets.collect(),
            model,
            freshness: Freshness::new(limits, has_view),
            bring_at: Duration::ZERO,
            orders: VecDeque::new(),
        }
    }

    pub(crate) fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    pub(crate) fn target(&self, index: usize) -> Option<&Target> {
        self.reflectors.get(index).map(|(target, _)| target)
    }

    pub(crate) fn targets(&self) -> usize {
        self.reflectors.len()
    }

    pub(crate) fn standing(&self, now: Duration) -> Standing {
        self.freshness.standing(now)
    }

    pub(crate) fn confirmed(&self) -> Option<Duration> {
        self.freshness.confirmed()
    }

    pub(crate) fn differences(&self) -> u64 {
        self.reflectors.iter().map(|(_, reflector)| reflector.differences()).sum()
    }

    /// What is wrong, and with what.
    pub(crate) fn trouble(&self) -> Option<String> {
        let mut troubles =
            self.reflectors.iter().filter_map(|(target, reflector)| Some((target, reflector.trouble()?)));
        troubles.next().map(|(target, why)| format!("{target}: {why}"))
    }

    pub(crate) fn deadline(&self, now: Duration) -> Duration {
        let of_reflectors = self.reflectors.iter().map(|(_, reflector)| reflector.deadline());
        let bring = (self.is_complete() && self.model.is_dirty()).then_some(self.bring_at);
        of_reflectors.chain(bring).chain(self.freshness.changes_at(now)).min().unwrap_or(now + PAUSE)
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration, jitter: f64) {
        self.reflectors.iter_mut().for_each(|(_, reflector)| reflector.handle_timeout(now, jitter));
    }

    pub(crate) fn handle_asked(&mut self, now: Duration) {
        self.reflectors.iter_mut().for_each(|(_, reflector)| reflector.handle_asked(now));
    }

    pub(crate) fn handle(&mut self, now: Duration, jitter: f64, index: usize, news: News) {
        let Some((_, reflector)) = self.reflectors.get_mut(index) else { return };
        match news {
            News::Listed { attempt, listed } => reflector.handle_listed(now, jitter, attempt, listed),
            News::Open { attempt } => reflector.handle_open(now, attempt),
            News::Told { attempt, told } => reflector.handle_told(attempt, told),
            News::End { attempt, end } => reflector.handle_watch_end(now, jitter, attempt, end),
            News::Compared { listed } => reflector.handle_compared(listed),
            News::Read { sent, outcome } => reflector.handle_read(now, sent, outcome),
        }
    }

    /// Draws the conclusions from what was handled; then there may be orders.
    pub(crate) fn settle(&mut self, now: Duration) {
        for (index, (target, reflector)) in self.reflectors.iter_mut().enumerate() {
            while let Some(action) = reflector.poll_action() {
                self.orders.push_back(Order::Do(index, action));
            }
            while let Some(Change { key, value }) = reflector.poll_change() {
                match (value, target.kind) {
                    (Some(object), _) => {
                        if let Object::Service(Service::ExternalName(of)) = &object {
                            self.orders.push_back(Order::Skipped(key.clone(), of.clone()));
                        }
                        self.model.put(key, object);
                    }
                    (None, Kind::Services) => self.model.remove_service(key),
                    (None, Kind::EndpointSlices) => self.model.remove_slice(&key),
                    (None, Kind::ConfigMaps) => self.model.remove_config_map(key),
                }
            }
        }
        if !self.is_complete() {
            return;
        }
        if self.model.is_dirty() {
            if now < self.bring_at {
                return;
            }
            if let Some((snapshots, problems)) = self.model.snapshots() {
                self.bring_at = now + PAUSE;
                self.orders.push_back(Order::Bring(snapshots, problems));
            }
        }
        // All that is known is in force, so it is as fresh as the oldest of the answers.
        let confirmed = self.reflectors.iter().map(|(_, reflector)| reflector.confirmed()).min().flatten();
        confirmed.into_iter().for_each(|at| self.freshness.confirm(at));
    }

    /// Not before everything is there: otherwise clients would be told that the rest does not exist.
    fn is_complete(&self) -> bool {
        self.reflectors.iter().all(|(_, reflector)| reflector.is_complete())
    }
}

/// What has happened to a list, a watch or a question.
#[derive(Debug)]
pub(crate) enum News {
    Listed { attempt: u64, listed: Result<Listed<Object>, Trouble> },
    Open { attempt: u64 },
    Told { attempt: u64, told: Told<Object> },
    End { attempt: u64, end: Result<(), Trouble> },
    Compared { listed: Option<Listed<Object>> },
    Read { sent: Duration, outcome: Result<(), Trouble> },
}

/// What comes in this time after something was brought is brought together: pods come and go by the dozen.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
