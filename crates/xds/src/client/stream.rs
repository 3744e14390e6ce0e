//! One ADS stream: what was asked for on it, what must be answered, and what is being sent.
//!
//! At most one request is on its way at a time (P-23). What is due meanwhile is remembered per
//! type, and a request is made only when it can be sent: from the names that are watched then.
//! So any number of changes becomes one request per type, and each response is still answered
//! once, with its own nonce and its own error (P-35).
//!
//! Everything that a server says is kept here, name by name, whether it is in charge or not: see
//! [`Word`]. What the server in charge says is in the cache as well.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::life::Life;
use super::subscription::{Answer, Listed, Subscription, Waiting, Word};
use super::timers::{TimerKind, Timers};
use super::wire::Request;
use super::{ServerId, StreamId};
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
    sending: Option<Sending>,
    /// Types that may need a request, each once, longest waiting first.
    due: VecDeque<ResourceType>,
    /// Types that were named on this stream (P-48: the others must not be, with an empty list).
    subscriptions: BTreeMap<ResourceType, Box<Subscription>>,
    /// How many names the server owes an answer about.
    waiting: usize,
    pub life: Life,
}

/// The request that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sending {
    resource_type: ResourceType,
    /// Names in it that the server owes an answer about once it is written.
    asks: Vec<Arc<str>>,
}

/// What a stream should list of a type.
pub(super) struct Wanted {
    /// The names that are watched, in order.
    pub names: Vec<Arc<str>>,
    /// Whether the server is in charge of all of them and all of their values came from it: only then may a new
    /// stream tell the version, for a server that trusts versions need not send anything then.
    pub current: bool,
}

impl Stream {
    pub(super) fn new(id: StreamId, server: ServerId) -> Self {
        Self {
            id,
            server,
            greeted: false,
            sending: None,
            due: ResourceType::ALL.into(),
            subscriptions: BTreeMap::new(),
            waiting: 0,
            life: Life::Proven,
        }
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

    /// The next request, if one is due and none is on its way.
    ///
    /// `wanted` tells what should be listed now; `versions` are those in use.
    pub(super) fn next_request(
        &mut self,
        wanted: impl Fn(ResourceType) -> Wanted,
        versions: &mut BTreeMap<ResourceType, Arc<str>>,
        timers: &mut Timers,
    ) -> Option<Request> {
        if self.sending.is_some() {
            return None;
        }
        while let Some(resource_type) = self.due.pop_front() {
            let Wanted { names, current } = wanted(resource_type);
            let first = !self.asked(resource_type);
            if names.is_empty() && first {
                continue; // P-48: an empty first list would be a wildcard.
            }
            if first && !current {
                versions.remove(&resource_type);
            }
            let version = versions.get(&resource_type).cloned().unwrap_or_default();
            let resumes = first && !version.is_empty();
            let changed = self.list(resource_type, &names, first, resumes, timers);
            let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { continue };
            let answer = subscription.next_answer();
            let repeats = !subscription.again.is_empty();
            if answer.is_none() && changed.is_none() && !repeats {
                continue;
            }
            let mut asks = changed.unwrap_or_default();
            if subscription.answers.is_empty() {
                asks.extend(std::mem::take(&mut subscription.again)); // Servers look at the latest nonce only (P-46).
            } else {
                self.due.push_back(resource_type);
            }
            let (version, nonce, error) = match answer {
                Some(answer) => (answer.version, answer.nonce, answer.error),
                None => (version, subscription.nonce.clone(), None),
            };
            let version = if repeats { Arc::default() } else { version };
            self.sending = Some(Sending { resource_type, asks });
            let first = !std::mem::replace(&mut self.greeted, true);
            return Some(Request { resource_type, names, version, nonce, error, first });
        }
        None
    }

    /// The request on its way was written: the server owes an answer about what is new in it (P-55). Tells whether it
    /// owes any that it did not owe before.
    pub(super) fn sent(&mut self, now: Time, wait: Duration, timers: &mut Timers) -> bool {
        let Some(Sending { resource_type, asks }) = self.sending.take() else { return false };
        let owed = self.waiting;
        for name in asks {
            let key = ResourceKey { resource_type, name };
            if self.word(&key) == Some(&Word::Asking) {
                let waiting = Waiting { since: now, until: now + wait, prolonged: false };
                self.set(&key, Word::Waiting(waiting), timers);
            }
        }
        self.waiting > owed
    }

    /// The server said something about a resource.
    pub(super) fn heard(&mut self, key: &ResourceKey, word: Word, timers: &mut Timers) {
        let Some(listed) = self.listed_mut(key) else { return };
        listed.covered = true;
        if listed.word != word {
            self.set(key, word, timers);
        }
    }

    /// What stands about a resource changes, without a word of the server.
    pub(super) fn set(&mut self, key: &ResourceKey, word: Word, timers: &mut Timers) {
        let Some(subscription) = self.subscriptions.get_mut(&key.resource_type) else { return };
        let Some(listed) = subscription.names.get_mut(&key.name) else { return };
        let until = match word {
            Word::Waiting(Waiting { until, .. }) => Some(until),
            Word::Asking | Word::Adopted | Word::Said(_) => None,
        };
        if word != Word::Asking {
            subscription.again.remove(&key.name);
        }
        let before = std::mem::replace(&mut listed.word, word);
        self.over(key.clone(), &before, timers);
        if let Some(until) = until {
            self.waiting += 1;
            timers.set(until, TimerKind::Missing(self.server, key.clone()));
        }
    }

    /// The value of a resource is not in the cache, or not any more: the server must send it once more.
    pub(super) fn ask_again(&mut self, key: &ResourceKey, timers: &mut Timers) {
        self.set(key, Word::Asking, timers);
        if let Some(subscription) = self.subscriptions.get_mut(&key.resource_type)
            && let Some((name, _)) = subscription.names.get_key_value(&key.name)
        {
            subscription.again.insert(name.clone());
            self.mark(key.resource_type);
        }
    }

    /// A response must be answered.
    pub(super) fn owe(&mut self, resource_type: ResourceType, answer: Answer) {
        self.subscriptions.entry(resource_type).or_default().owe(answer);
        self.mark(resource_type);
    }

    /// Ends every timer of the stream, which is over.
    pub(super) fn cancel_timers(&mut self, timers: &mut Timers) {
        self.life.prove(self.server, timers);
        for (resource_type, subscription) in std::mem::take(&mut self.subscriptions) {
            for (name, listed) in subscription.names {
                self.over(ResourceKey { resource_type, name }, &listed.word, timers);
            }
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

    /// Whether a response that leaves this resource out says that there is none (P-50).
    pub(super) fn covers(&self, key: &ResourceKey) -> bool {
        self.listed(key).is_some_and(|listed| listed.covered)
    }

    /// What stands about a resource on this stream.
    pub(super) fn word(&self, key: &ResourceKey) -> Option<&Word> {
        self.listed(key).map(|listed| &listed.word)
    }

    /// Whether a request is on its way.
    pub(super) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Whether the server owes an answer to what was written.
    pub(super) fn is_owed(&self) -> bool {
        self.waiting > 0
    }

    /// Since when the server has owed an answer.
    pub(super) fn owed_since(&self) -> Option<Time> {
        let listed = self.subscriptions.values().flat_map(|subscription| subscription.names.values());
        let since = |listed: &Listed| match listed.word {
            Word::Waiting(Waiting { since, .. }) => Some(since),
            Word::Asking | Word::Adopted | Word::Said(_) => None,
        };
        listed.filter_map(since).min()
    }

    /// Makes the list of a type what `names` says. Answers with what is new in it, if it is another one than before.
    fn list(
        &mut self,
        resource_type: ResourceType,
        names: &[Arc<str>],
        first: bool,
        resumes: bool,
        timers: &mut Timers,
    ) -> Option<Vec<Arc<str>>> {
        let subscription = self.subscriptions.entry(resource_type).or_default();
        if subscription.names.keys().eq(names) {
            return None;
        }
        let mut before = std::mem::take(&mut subscription.names);
        let mut new = Vec::new();
        for name in names {
            let listed = before.remove(name).unwrap_or_else(|| {
                let word = if resumes { Word::Adopted } else { Word::Asking };
                if word == Word::Asking {
                    new.push(name.clone());
                }
                Listed { covered: first, word }
            });
            subscription.names.insert(name.clone(), listed);
        }
        subscription.again.retain(|name| !before.contains_key(name));
        for (name, listed) in before {
            self.over(ResourceKey { resource_type, name }, &listed.word, timers);
        }
        Some(new)
    }

    /// A word does not stand any more: its timer ends.
    fn over(&mut self, key: ResourceKey, word: &Word, timers: &mut Timers) {
        if let Word::Waiting(Waiting { until, .. }) = *word {
            self.waiting -= 1;
            timers.cancel(until, TimerKind::Missing(self.server, key));
        }
    }

    fn listed(&self, key: &ResourceKey) -> Option<&Listed> {
        self.subscriptions.get(&key.resource_type)?.names.get(&key.name)
    }

    fn listed_mut(&mut self, key: &ResourceKey) -> Option<&mut Listed> {
        self.subscriptions.get_mut(&key.resource_type)?.names.get_mut(&key.name)
    }
}
