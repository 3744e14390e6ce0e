//! One ADS stream: what was asked for on it, what must be answered, and what is being sent.
//!
//! At most one request is on its way at a time (P-23). What is due meanwhile is remembered per
//! type, and a request is made only when it can be sent: from the names that are watched then.
//! So any number of changes becomes one request per type, and each response is still answered
//! once, with its own nonce and its own error (P-35).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::StreamId;
use super::server::ServerId;
use super::timers::{TimerKind, Timers};
use super::wire::Request;
use crate::Time;
use crate::name::ResourceKey;
use crate::resource::ResourceType;

/// A stream on a READY connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    id: StreamId,
    server: ServerId,
    /// Whether a request was made on it: the first one carries the node (P-16).
    greeted: bool,
    /// Type of the request that is on its way.
    sending: Option<ResourceType>,
    /// Types that may need a request, each once, longest waiting first.
    due: VecDeque<ResourceType>,
    /// Types that were named on this stream (P-48: the others must not be, with an empty list).
    subscriptions: BTreeMap<ResourceType, Box<Subscription>>,
}

/// What the server knows about one type, and what it is owed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Subscription {
    /// The names in the last request.
    names: BTreeMap<Arc<str>, Listed>,
    /// Of the last response (P-30).
    nonce: Arc<str>,
    /// Responses without an answer, oldest first.
    answers: VecDeque<Answer>,
    /// The version was forgotten after it had been told on this stream: tell that too.
    repeat: bool,
}

/// How far one name of a subscription has come, for the does-not-exist timer (P-55, P-57).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Listed {
    /// First listed in the request that is on its way.
    Sending,
    /// The server knows of it and has until then.
    Waiting(Time),
    /// It was seen, or timed out, or there was data already: no timer on this stream any more.
    Settled,
}

/// The ACK or NACK of one response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Answer {
    pub nonce: Arc<str>,
    /// The version in use after the response.
    pub version: Arc<str>,
    /// What is wrong with the response; `None` for an ACK.
    pub error: Option<String>,
}

impl Stream {
    pub(super) fn new(id: StreamId, server: ServerId) -> Self {
        let due = ResourceType::ALL.into();
        Self { id, server, greeted: false, sending: None, due, subscriptions: BTreeMap::new() }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    /// The names of a type may have changed.
    pub(super) fn mark(&mut self, resource_type: ResourceType) {
        if !self.due.contains(&resource_type) {
            self.due.push_back(resource_type);
        }
    }

    /// The names of any type may have changed.
    pub(super) fn mark_all(&mut self) {
        ResourceType::ALL.into_iter().for_each(|resource_type| self.mark(resource_type));
    }

    /// The version of a type is forgotten: the server must hear of it, if it was told the old one.
    pub(super) fn repeat(&mut self, resource_type: ResourceType) {
        if let Some(subscription) = self.subscriptions.get_mut(&resource_type) {
            subscription.repeat = true;
            self.mark(resource_type);
        }
    }

    /// The next request, if one is due and none is on its way.
    ///
    /// `wanted` tells the names that are watched now, in order; `version` the version in use.
    pub(super) fn next_request(
        &mut self,
        wanted: impl Fn(ResourceType) -> Vec<Arc<str>>,
        version: impl Fn(ResourceType) -> Arc<str>,
        timers: &mut Timers,
    ) -> Option<Request> {
        if self.sending.is_some() {
            return None;
        }
        while let Some(resource_type) = self.due.pop_front() {
            let names = wanted(resource_type);
            if names.is_empty() && !self.asked(resource_type) {
                continue; // P-48: an empty first list would be a wildcard.
            }
            let subscription = self.subscriptions.entry(resource_type).or_default();
            let changed = subscription.list(self.server, resource_type, &names, timers);
            let answer = subscription.answers.pop_front();
            if subscription.answers.is_empty() {
                subscription.answers.shrink_to_fit(); // It may be long until the next one.
            }
            if answer.is_none() && !changed && !subscription.repeat {
                continue;
            }
            subscription.repeat = false;
            let (version, nonce, error) = match answer {
                Some(answer) => (answer.version, answer.nonce, answer.error),
                None => (version(resource_type), subscription.nonce.clone(), None),
            };
            if !subscription.answers.is_empty() {
                self.due.push_back(resource_type);
            }
            self.sending = Some(resource_type);
            let first = !std::mem::replace(&mut self.greeted, true);
            return Some(Request { resource_type, names, version, nonce, error, first });
        }
        None
    }

    /// The request on its way was handed to the transport: timers start for names that are new in
    /// it and that have no data (P-55, P-57).
    pub(super) fn sent(
        &mut self,
        now: Time,
        wait: Duration,
        has_data: impl Fn(&ResourceKey) -> bool,
        timers: &mut Timers,
    ) {
        let Some(resource_type) = self.sending.take() else { return };
        let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { return };
        for (name, listed) in &mut subscription.names {
            if *listed != Listed::Sending {
                continue;
            }
            let key = ResourceKey { resource_type, name: name.clone() };
            *listed = if has_data(&key) {
                Listed::Settled
            } else {
                timers.set(now + wait, TimerKind::Missing(self.server, key));
                Listed::Waiting(now + wait)
            };
        }
    }

    /// The server said something about a resource, good or bad: its timer ends for this stream.
    pub(super) fn seen(&mut self, resource_type: ResourceType, name: &str, timers: &mut Timers) {
        let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { return };
        let Some((name, _)) = subscription.names.get_key_value(name) else { return };
        let name = name.clone();
        let listed = subscription.names.insert(name.clone(), Listed::Settled);
        if let Some(Listed::Waiting(at)) = listed {
            timers.cancel(at, TimerKind::Missing(self.server, ResourceKey { resource_type, name }));
        }
    }

    /// The timer of a resource fired. `again` starts it once more, for a server whose silence proves nothing.
    pub(super) fn expired(&mut self, key: &ResourceKey, again: Option<Time>, timers: &mut Timers) {
        let listed = self.subscriptions.get_mut(&key.resource_type).and_then(|s| s.names.get_mut(&key.name));
        let Some(listed) = listed else { return };
        *listed = match again {
            Some(at) => {
                timers.set(at, TimerKind::Missing(self.server, key.clone()));
                Listed::Waiting(at)
            }
            None => Listed::Settled,
        };
    }

    /// A response must be answered.
    pub(super) fn owe(&mut self, resource_type: ResourceType, answer: Answer) {
        let subscription = self.subscriptions.entry(resource_type).or_default();
        subscription.nonce = answer.nonce.clone();
        if subscription.answers.len() == MAX_ANSWERS {
            subscription.answers.pop_front();
        }
        subscription.answers.push_back(answer);
        self.mark(resource_type);
    }

    /// Ends every timer of the stream, which is over.
    pub(super) fn cancel_timers(&mut self, timers: &mut Timers) {
        for (resource_type, subscription) in std::mem::take(&mut self.subscriptions) {
            subscription.names.into_iter().for_each(|(name, listed)| {
                cancel(self.server, resource_type, name, listed, timers);
            });
        }
    }

    /// Whether names of this type were ever sent on this stream.
    pub(super) fn asked(&self, resource_type: ResourceType) -> bool {
        self.subscriptions.contains_key(&resource_type)
    }

    /// Whether the last request of its type lists this resource.
    pub(super) fn lists(&self, key: &ResourceKey) -> bool {
        self.listed(key).is_some()
    }

    /// Whether a request that lists this resource has left.
    pub(super) fn requested(&self, key: &ResourceKey) -> bool {
        self.listed(key).is_some_and(|listed| listed != Listed::Sending)
    }

    fn listed(&self, key: &ResourceKey) -> Option<Listed> {
        self.subscriptions.get(&key.resource_type)?.names.get(&key.name).copied()
    }
}

impl Subscription {
    /// Makes the list what `names` says; tells whether it is another one than before.
    fn list(&mut self, server: ServerId, resource_type: ResourceType, names: &[Arc<str>], timers: &mut Timers) -> bool {
        if self.names.keys().eq(names) {
            return false;
        }
        let mut before = std::mem::take(&mut self.names);
        for name in names {
            let listed = before.remove(name).unwrap_or(Listed::Sending);
            self.names.insert(name.clone(), listed);
        }
        for (name, listed) in before {
            cancel(server, resource_type, name, listed, timers);
        }
        true
    }
}

fn cancel(server: ServerId, resource_type: ResourceType, name: Arc<str>, listed: Listed, timers: &mut Timers) {
    if let Listed::Waiting(at) = listed {
        timers.cancel(at, TimerKind::Missing(server, ResourceKey { resource_type, name }));
    }
}

/// How many responses of one type may wait for their answer. A server that sends more while it does
/// not read is owed answers only to the latest ones; servers look at the last anyway (P-46).
const MAX_ANSWERS: usize = 64;
