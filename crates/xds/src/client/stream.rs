//! One ADS stream: what was asked for on it, what must be answered, and what is being sent.
//!
//! At most one request is on its way at a time (P-23). What is due meanwhile is remembered per
//! type, and a request is made only when it can be sent: from the names that are watched then.
//! So any number of changes becomes one request per type, and each response is still answered
//! once, with its own nonce and its own error (P-35).
//!
//! Everything that a server says is kept here, name by name, whether it is in charge or not: see
//! [`Word`]. What the server in charge says is in the cache as well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::authority::AuthorityId;
use super::dialect::Protocol;
use super::life::Life;
use super::subscription::{Answer, Listed, Subscription, Waiting, Word};
use super::timers::{TimerKind, Timers};
use super::wire::{Claim, Request};
use super::{ErrorKind, ServerId, StreamId};
use crate::name::ResourceKey;
use crate::resource::{EndpointGlob, ResourceType};
use crate::{Choose, Time};

mod delta;
mod sotw;

/// A stream on a READY connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    id: StreamId,
    server: ServerId,
    protocol: Protocol,
    /// Whether a request was made on it: the first one carries the node (P-16).
    greeted: bool,
    pub sending: Option<Sending>,
    /// Types that may need a request, each once, longest waiting first.
    pub due: VecDeque<ResourceType>,
    /// Those of which other names may be wanted than the last request lists. An answer alone lists what is listed: to
    /// find out that this is still right would cost as much as all names together.
    stale: BTreeSet<ResourceType>,
    /// Types that were named on this stream (P-48: the others must not be, with an empty list).
    pub subscriptions: BTreeMap<ResourceType, Box<Subscription>>,
    /// How many names the server owes an answer about.
    waiting: usize,
    /// How many names it says do not exist.
    absent: usize,
    /// When these are subscribed once more, and how often they were (DX-15).
    pub insistence: Insistence,
    /// The authorities of which something was asked for that could have been claimed.
    pub owes: BTreeSet<AuthorityId>,
    /// Whether it was told that we have something.
    pub claimed: bool,
    /// How far the members of each glob collection have come. Only in delta.
    pub globs: BTreeMap<Arc<str>, Gathering>,
    pub life: Life,
}

/// Asks a delta server again for what it said does not exist: some forget who asked (DX-15).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Insistence {
    pub due: Option<Time>,
    pub times: u32,
    /// How many names it is for.
    names: usize,
}

/// The request that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sending {
    pub resource_type: ResourceType,
    /// Names in it that the server owes an answer about once it is written.
    pub asks: Vec<Arc<str>>,
}

/// The members of a glob collection on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Gathering {
    /// The first set, until it is complete as far as anybody can tell (GC-5).
    pub filling: Option<Filling>,
    /// Whether that is in use: what comes now are changes of it.
    pub is_filled: bool,
    /// What is wrong with which member, and since when.
    pub faults: BTreeMap<Arc<str>, (ErrorKind, Time)>,
}

/// Members that are not in use yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Filling {
    pub members: EndpointGlob,
    /// When the first of them came.
    pub began: Time,
    /// When they are put in use, unless more come.
    pub due: Time,
    /// Of the last response.
    pub version: Arc<str>,
}

/// How the list of a type differs from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub added: Vec<Arc<str>>,
    pub removed: Vec<Arc<str>>,
}

/// What a stream should list of a type.
pub(super) struct Wanted {
    /// The names that are watched, in order.
    pub names: Vec<Arc<str>>,
    /// Whether versions are trusted, the server is in charge of all of them and all of their values came from it: only
    /// then may a new stream tell the version, for a server that trusts versions need not send anything then (DX-30).
    pub current: bool,
    /// What may be claimed of each of them, if that was asked.
    pub claims: Vec<Claim>,
}

impl Stream {
    pub(super) fn new(id: StreamId, server: ServerId, protocol: Protocol) -> Self {
        Self {
            id,
            server,
            protocol,
            greeted: false,
            sending: None,
            due: ResourceType::ALL.into(),
            stale: ResourceType::ALL.into(),
            subscriptions: BTreeMap::new(),
            waiting: 0,
            absent: 0,
            insistence: Insistence::default(),
            owes: BTreeSet::new(),
            claimed: false,
            globs: BTreeMap::new(),
            life: Life::Proven,
        }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The names of a type may have changed.
    pub(super) fn mark(&mut self, resource_type: ResourceType) {
        self.stale.insert(resource_type);
        self.schedule(resource_type);
    }

    /// There is something to say of a type; its names are as they were.
    fn schedule(&mut self, resource_type: ResourceType) {
        if !self.due.contains(&resource_type) {
            self.due.push_back(resource_type);
        }
    }

    /// Whether other names may be wanted than are listed, as far as anybody has said since this was last asked.
    fn take_stale(&mut self, resource_type: ResourceType) -> bool {
        self.stale.remove(&resource_type) || !self.asked(resource_type)
    }

    /// The names of any type may have changed.
    pub(super) fn mark_all(&mut self) {
        ResourceType::ALL.into_iter().for_each(|resource_type| self.mark(resource_type));
    }

    /// The next request, if one is due and none is on its way.
    ///
    /// `wanted` tells what should be listed now, and if asked what may be claimed; `versions` are those in use.
    pub(super) fn next_request(
        &mut self,
        wanted: impl Fn(ResourceType, bool) -> Wanted,
        versions: &mut BTreeMap<ResourceType, Arc<str>>,
        timers: &mut Timers,
    ) -> Option<Request> {
        if self.sending.is_some() {
            return None;
        }
        match self.protocol {
            Protocol::Sotw => self.next_sotw(|kind| wanted(kind, false), versions, timers).map(Request::Sotw),
            Protocol::Delta => self.next_delta(wanted, timers).map(Request::Delta),
        }
    }

    /// Whether the request that is made now opens the stream.
    pub(super) fn greet(&mut self) -> bool {
        !std::mem::replace(&mut self.greeted, true)
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
        self.absent += usize::from(word.says_absent());
        let before = std::mem::replace(&mut listed.word, word);
        self.over(key.clone(), &before, timers);
        if let Some(until) = until {
            self.waiting += 1;
            timers.set(until, TimerKind::Missing(self.server, key.clone()));
        }
    }

    /// The value of a resource is not in the cache, or not any more: the server must send it once more.
    pub(super) fn ask_again(&mut self, key: &ResourceKey, timers: &mut Timers) {
        self.forget_glob(key, timers);
        self.set(key, Word::Asking, timers);
        if let Some(subscription) = self.subscriptions.get_mut(&key.resource_type)
            && let Some((name, _)) = subscription.names.get_key_value(&key.name)
        {
            subscription.again.insert(name.clone());
            self.schedule(key.resource_type);
        }
    }

    /// Sets when absent names are asked for again: after 30 s, and then after twice the time before, up to 10 minutes. A
    /// name that was not among them begins anew.
    pub(super) fn pace_insistence(&mut self, now: Time, choose: &mut dyn Choose, timers: &mut Timers) {
        let Self { insistence, absent, server, .. } = self;
        let is_longer = *absent > std::mem::replace(&mut insistence.names, *absent);
        if is_longer || *absent == 0 {
            insistence.times = 0;
            if let Some(at) = insistence.due.take() {
                timers.cancel(at, TimerKind::Insist(*server));
            }
        }
        if *absent > 0 && insistence.due.is_none() {
            let nominal = FIRST_INSISTENCE.saturating_mul(1 << insistence.times.min(MAX_DOUBLINGS)).min(MAX_INSISTENCE);
            let thousandths = 800 + u32::try_from(choose.choose(401).min(400)).unwrap_or_default();
            let at = now + nominal * thousandths / 1000;
            insistence.due = Some(at);
            timers.set(at, TimerKind::Insist(*server));
        }
    }

    /// Asks once more for what the server says does not exist. Its word stands meanwhile, and silence changes nothing.
    pub(super) fn insist(&mut self) {
        let mut due = Vec::new();
        for (resource_type, subscription) in &mut self.subscriptions {
            let absent = subscription.names.iter().filter(|(_, listed)| listed.word.says_absent());
            let before = subscription.again.len();
            subscription.again.extend(absent.map(|(name, _)| name.clone()));
            if subscription.again.len() > before {
                due.push(*resource_type);
            }
        }
        due.into_iter().for_each(|resource_type| self.schedule(resource_type));
    }

    /// A response must be answered.
    pub(super) fn owe(&mut self, resource_type: ResourceType, answer: Answer) {
        self.subscriptions.entry(resource_type).or_default().owe(answer);
        self.schedule(resource_type);
    }

    /// Ends every timer of the stream, which is over.
    pub(super) fn cancel_timers(&mut self, timers: &mut Timers) {
        self.life.prove(self.server, timers);
        if let Some(at) = self.insistence.due.take() {
            timers.cancel(at, TimerKind::Insist(self.server));
        }
        for (resource_type, subscription) in std::mem::take(&mut self.subscriptions) {
            for (name, listed) in subscription.names {
                let key = ResourceKey { resource_type, name };
                self.forget_glob(&key, timers);
                self.over(key, &listed.word, timers);
            }
        }
    }

    /// What came of a glob collection does not count any more.
    pub(super) fn forget_glob(&mut self, key: &ResourceKey, timers: &mut Timers) {
        if key.resource_type == ResourceType::EndpointGlob
            && let Some(Gathering { filling: Some(filling), .. }) = self.globs.remove(&key.name)
        {
            timers.cancel(filling.due, TimerKind::Filled(self.server, key.clone()));
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

    /// Whether the last request of its type lists these names and no others.
    fn lists_all(&self, resource_type: ResourceType, names: &[Arc<str>]) -> bool {
        self.subscriptions.get(&resource_type).is_some_and(|subscription| subscription.names.keys().eq(names))
    }

    /// Makes the list of a type what `names` says; what is new in it begins with `word`. Answers with the difference, if
    /// it is another one than before.
    pub(super) fn list(
        &mut self,
        resource_type: ResourceType,
        names: &[Arc<str>],
        first: bool,
        word: impl Fn(&Arc<str>) -> Word,
        timers: &mut Timers,
    ) -> Option<Changes> {
        let subscription = self.subscriptions.entry(resource_type).or_default();
        count(names.len());
        if subscription.names.keys().eq(names) {
            return None;
        }
        subscription.encoded = None;
        let mut before = std::mem::take(&mut subscription.names);
        let mut added = Vec::new();
        for name in names {
            let listed = before.remove(name).unwrap_or_else(|| {
                added.push(name.clone());
                Listed { covered: first, word: word(name) }
            });
            subscription.names.insert(name.clone(), listed);
        }
        subscription.again.retain(|name| !before.contains_key(name));
        let removed = before.keys().cloned().collect();
        for (name, listed) in before {
            let key = ResourceKey { resource_type, name };
            self.forget_glob(&key, timers);
            self.over(key, &listed.word, timers);
        }
        Some(Changes { added, removed })
    }

    /// A word does not stand any more: its timer ends.
    fn over(&mut self, key: ResourceKey, word: &Word, timers: &mut Timers) {
        if let Word::Waiting(Waiting { until, .. }) = *word {
            self.waiting -= 1;
            timers.cancel(until, TimerKind::Missing(self.server, key));
        }
        self.absent -= usize::from(word.says_absent());
    }

    fn listed(&self, key: &ResourceKey) -> Option<&Listed> {
        self.subscriptions.get(&key.resource_type)?.names.get(&key.name)
    }

    fn listed_mut(&mut self, key: &ResourceKey) -> Option<&mut Listed> {
        self.subscriptions.get_mut(&key.resource_type)?.names.get_mut(&key.name)
    }
}

/// Counts names that are looked through to make a request.
#[cfg(not(test))]
fn count(_: usize) {}

#[cfg(test)]
pub(super) use test_count::{count, names_looked_through};

/// How long after it was found to be absent a name is asked for again on a delta stream, and how long at most (DX-15).
const FIRST_INSISTENCE: Duration = Duration::from_secs(30);
const MAX_INSISTENCE: Duration = Duration::from_secs(600);
const MAX_DOUBLINGS: u32 = 5;

#[cfg(test)]
mod test_count {
    use std::cell::Cell;

    thread_local! {
        static NAMES: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts names, for tests that bound the work.
    pub(in crate::client) fn count(names: usize) {
        NAMES.set(NAMES.get() + names);
    }

    /// How many names this thread has looked through.
    pub(in crate::client) fn names_looked_through() -> usize {
        NAMES.get()
    }
}
