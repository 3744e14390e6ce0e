//! What was said of each resource, and what a client must therefore believe (A88: C-18, C-22).

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Received, ResourceState};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::ResourceType;

use super::{Charge, Oracle, PROBE_PATIENCE, View};
use crate::invariant::{Invariant, Violation};
use crate::plane::Response;
use crate::resources::Spec;
use crate::truth::Told;

/// What was said of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) watched: bool,
    /// The value in use.
    pub(crate) held: Option<Held>,
    /// The last word of the server in charge.
    pub(crate) word: Word,
    /// It is watched since this step, for the first time or again.
    is_new: bool,
    /// The value of another server, which the one in charge left out: whether it was asked for it in time is up to the
    /// client to say (P-50).
    left_out: Option<Held>,
    /// That there is none was told last, and why. It cannot be called off but by a value.
    told: Option<Verdict>,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) told: Arc<Told>,
    pub(crate) plane: usize,
    pub(crate) version: Arc<str>,
    /// Over delta: which name its server gave itself then.
    pub(super) era: Option<u32>,
}

/// The last word about a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Word {
    /// None yet.
    #[default]
    Nothing,
    /// The value.
    Good,
    /// Something that must be rejected.
    Bad { plane: usize, version: Arc<str> },
    /// It is not there any more.
    Gone { plane: usize },
    /// Silence of a server that is alive.
    Silence { plane: usize, transient: bool },
    /// An error with this code.
    Error { plane: usize, code: u8 },
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// A server said so.
    Denied(usize),
    /// It cannot be had at the moment.
    Trouble,
}

/// What may be made of a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known<'a> {
    Value(&'a Spec, usize),
    /// There is none to be had, by the word of this server, or because it is nobody's.
    Nothing(Option<usize>),
    /// There is none to be had at the moment.
    Trouble,
    Awaited,
}

impl Entry {
    /// Without a value, and not known to be absent.
    pub(super) fn is_uncached(&self) -> bool {
        let absent = matches!(
            self.word,
            Word::Gone { .. } | Word::Silence { transient: false, .. } | Word::Error { code: NOT_FOUND, .. }
        );
        self.held.is_none() && !absent
    }

    pub(crate) fn state(&self) -> ResourceState {
        match &self.word {
            Word::Nothing if self.held.is_none() => ResourceState::Requested,
            Word::Nothing | Word::Good => ResourceState::Acked,
            Word::Bad { .. } => ResourceState::Nacked,
            Word::Gone { .. } | Word::Silence { transient: false, .. } => ResourceState::DoesNotExist,
            Word::Silence { transient: true, .. } => ResourceState::TimedOut,
            Word::Error { .. } => ResourceState::ReceivedError,
        }
    }
}

impl Word {
    /// Who said it, if it is bad news.
    pub(super) fn said_by(&self) -> Option<usize> {
        match self {
            Self::Nothing | Self::Good => None,
            Self::Bad { plane, .. }
            | Self::Gone { plane }
            | Self::Silence { plane, .. }
            | Self::Error { plane, .. } => Some(*plane),
        }
    }
}

impl Oracle {
    /// What may be made of a resource now.
    pub(crate) fn known(&self, key: &ResourceKey) -> Known<'_> {
        let Some(authority) = self.rules.authority_of(key) else { return Known::Nothing(None) };
        let Some(entry) = self.entries.get(key).filter(|entry| entry.watched) else { return Known::Awaited };
        if let Some((held, spec)) = entry.held.as_ref().and_then(|held| Some((held, held.told.spec.as_ref()?))) {
            return Known::Value(spec, held.plane);
        }
        match self.verdict(authority, entry).or(entry.told) {
            None => Known::Awaited,
            Some(Verdict::Trouble) => Known::Trouble,
            Some(Verdict::Denied(by)) => Known::Nothing(Some(by)),
        }
    }

    /// Why there is no value, if that is known.
    fn verdict(&self, authority: &AuthorityKey, entry: &Entry) -> Option<Verdict> {
        if self.is_unreachable(authority) {
            return Some(Verdict::Trouble);
        }
        match entry.word {
            Word::Nothing | Word::Good => None,
            Word::Silence { transient: true, .. } => Some(Verdict::Trouble),
            Word::Error { plane, code: NOT_FOUND | PERMISSION_DENIED } => Some(Verdict::Denied(plane)),
            Word::Error { .. } => Some(Verdict::Trouble),
            Word::Bad { plane, .. } | Word::Gone { plane } | Word::Silence { plane, .. } => {
                Some(Verdict::Denied(plane))
            }
        }
    }

    /// Takes down what watchers were told.
    pub(super) fn take_verdicts(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        for (key, entry) in &mut entries {
            let verdict = self.rules.authority_of(key).and_then(|authority| self.verdict(authority, entry));
            entry.told = verdict.or(entry.told).filter(|_| entry.held.is_none() && entry.watched);
        }
        self.entries = entries;
    }

    /// Something is watched from now on.
    pub(crate) fn watching(&mut self, now: Time, key: &ResourceKey) {
        let Some(authority) = self.rules.authority_of(key).cloned() else { return };
        self.charges.entry(authority).or_insert(Charge { rank: 0, since: now });
        let entry = self.entries.entry(key.clone()).or_default();
        if !std::mem::replace(&mut entry.watched, true) {
            entry.is_new = true;
            self.changed = true;
            self.take_effect(key);
        }
    }

    /// The client says what it makes of a response: it reads each one once, in order.
    pub(super) fn was_read(
        &mut self,
        server: &ServerConfig,
        kind: ResourceType,
        version: &str,
        received: &Received,
        nack: Option<&str>,
    ) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        let uri = self.rules.uri(plane).to_owned();
        let stream = self.streams.values_mut().find(|stream| stream.plane == plane);
        let Some((stream, response)) = stream.and_then(|stream| {
            let response = stream.inbox.pop_front()?;
            Some((stream, response))
        }) else {
            return Err(Invariant::Answers.broken(format!("{uri} sent no {kind}, and one was read")));
        };
        let faulty = response.faulty().count();
        let honours_errors = self.rules.guards.data_error_handling;
        let errors = if honours_errors { response.errors.len() } else { 0 };
        let is_right = response.resource_type == kind
            && *response.version == *version
            && nack.is_some() == (faulty > 0)
            && received.resources == response.resources.len()
            && received.invalid == faulty + errors
            && received.valid <= response.resources.len() - faulty;
        Invariant::Answers.holds(is_right, || {
            format!(
                "{uri} sent {response} with {faulty} faults, and {kind} {version:?} was read: {received:?} {nack:?}"
            )
        })?;
        if faulty > 0 {
            let in_use = self.planes[plane].accepted.get(&kind).cloned().unwrap_or_default();
            stream.in_use_then.insert(response.nonce.clone(), in_use);
        }
        for told in &response.resources {
            stream.hear(&told.key);
        }
        for name in &response.errors {
            stream.hear(&ResourceKey { resource_type: kind, name: name.clone() });
        }
        // What it says about resources instead of sending them stays with the stream.
        for told in response.faulty() {
            let word = Word::Bad { plane, version: response.version_of(told).clone() };
            if stream.lists(&told.key) {
                stream.words.insert(told.key.clone(), word);
            }
        }
        for told in response.resources.iter().filter(|told| told.is_valid()) {
            stream.words.remove(&told.key);
        }
        for name in response.errors.iter().filter(|_| honours_errors) {
            let key = ResourceKey { resource_type: kind, name: name.clone() };
            if stream.lists(&key) {
                stream.words.insert(key, Word::Error { plane, code: response.code });
            }
        }
        self.answered(plane);
        self.heard_from(plane, &response);
        self.take_in(plane, &response);
        self.take_removals(plane, &response);
        if faulty == 0 && response.delta.is_none() {
            let view = &mut self.planes[plane];
            view.accepted.insert(kind, response.version.clone());
            view.lost_some.remove(&kind);
        }
        Ok(())
    }

    /// Takes down what a response says about the resources that its server is in charge of.
    fn take_in(&mut self, plane: usize, response: &Response) {
        self.changed = true;
        let kind = response.resource_type;
        let era = response.delta.as_ref().map(|_| self.planes[plane].manners.era);
        let keys: Vec<_> = self.entries.keys().filter(|key| key.resource_type == kind).cloned().collect();
        for key in keys {
            if self.in_charge_of(&key) != Some(plane) {
                continue;
            }
            let told = response.resources.iter().find(|told| told.key == key).filter(|told| told.is_valid());
            let is_named = response.faulty().any(|told| told.key == key)
                || (response.errors.contains(&key.name) && self.rules.guards.data_error_handling);
            let remembers_error = matches!(self.word_of(plane, &key), Some(Word::Error { .. })); // P-61
            // P-50: what crosses the request that leaves it out does not count.
            let is_listed = self.streams.values().any(|stream| stream.plane == plane && stream.lists(&key));
            if told.is_some() && !is_listed {
                continue;
            }
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if let Some(told) = told {
                let version = response.version_of(told).clone();
                let before = entry.held.replace(Held { told: told.clone(), plane, version, era });
                (entry.word, entry.left_out) = (Word::Good, None);
                if self.deletions.told.contains(&key) {
                    self.deletions.over.insert(key.clone());
                }
                if let Some(before) = before.filter(|before| before.plane != plane) {
                    self.planes[before.plane].lost_some.insert(kind);
                }
            } else if is_named {
                self.take_effect(&key);
            } else if kind.full_state()
                && response.delta.is_none()
                && response.asked.contains(&key.name)
                && entry.held.is_some()
                && !remembers_error
            {
                self.deleted(plane, &key);
            }
        }
    }

    /// A server leaves out what it once had, or what another had (P-49).
    pub(super) fn deleted(&mut self, plane: usize, key: &ResourceKey) {
        let features = self.rules.servers[plane].features;
        let old_rules = !self.rules.guards.data_error_handling;
        if self.ignores_deletions(plane) {
            // A53: not a word to watchers. Whether it was asked for what another had is up to the client (P-50).
            // Nor need it be told what nobody watches at the moment.
            let is_its = |held: &Held| held.plane == plane;
            let is_due = |entry: &Entry| entry.watched && entry.held.as_ref().is_some_and(is_its);
            if !self.deletions.told.contains(key) {
                self.deletions.begun.insert(key.clone(), self.entries.get(key).is_some_and(is_due));
            }
            return;
        }
        let drops = old_rules || features.fail_on_data_errors;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.left_out = entry.held.clone().filter(|held| held.plane != plane);
        }
        if let Some(stream) = self.streams.values_mut().find(|stream| stream.plane == plane) {
            stream.words.insert(key.clone(), Word::Gone { plane });
        }
        self.fail(key, Word::Gone { plane }, drops);
    }

    /// Whether what a server takes away stays in use without a word to watchers (A53).
    pub(super) fn ignores_deletions(&self, plane: usize) -> bool {
        !self.rules.guards.data_error_handling && self.rules.servers[plane].features.ignore_resource_deletion
    }

    /// What the server in charge said of a resource instead of sending it.
    fn word_of(&self, plane: usize, key: &ResourceKey) -> Option<&Word> {
        self.streams.values().find(|stream| stream.plane == plane)?.words.get(key)
    }

    /// Lets take effect what the server in charge has said.
    pub(super) fn take_effect(&mut self, key: &ResourceKey) {
        let Some(plane) = self.in_charge_of(key) else { return };
        let Some(word) = self.word_of(plane, key).cloned() else { return };
        let drops = match word {
            Word::Bad { .. } => self.rules.drops_data(plane),
            Word::Error { code, .. } => self.rules.drops_data(plane) && matches!(code, NOT_FOUND | PERMISSION_DENIED),
            Word::Gone { .. } => self.rules.drops_data(plane) || !self.rules.guards.data_error_handling,
            Word::Silence { .. } | Word::Nothing | Word::Good => false,
        };
        self.fail(key, word, drops);
    }

    fn fail(&mut self, key: &ResourceKey, word: Word, drops: bool) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if matches!(word, Word::Silence { .. }) && entry.held.is_some() {
            return; // It came from elsewhere meanwhile.
        }
        entry.word = word;
        self.changed = true;
        if drops && let Some(before) = entry.held.take() {
            self.planes[before.plane].lost_some.insert(key.resource_type);
        }
    }

    /// Another server is in charge: errors of others do not count any more, and what it has said does.
    pub(super) fn follow(&mut self, authority: &AuthorityKey) {
        self.changed = true;
        self.moved.insert(authority.clone());
        let Some(plane) = self.in_charge(authority) else { return };
        let is_its = |key: &&ResourceKey| self.rules.authority_of(key) == Some(authority);
        let keys: Vec<_> = self.entries.keys().filter(is_its).cloned().collect();
        for key in keys {
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.word.said_by().is_some_and(|by| by != plane)
            {
                entry.word = if entry.held.is_some() { Word::Good } else { Word::Nothing };
            }
            self.take_effect(&key);
        }
    }

    /// Something was not sent in time: only a live server proves anything by its silence (A57).
    pub(super) fn timed_out(&mut self, now: Time, server: &ServerConfig, key: &ResourceKey) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        let uri = self.rules.uri(plane);
        let stream = self.streams.values().find(|stream| stream.plane == plane && stream.opened.is_some());
        let asked = stream.and_then(|stream| Some((stream, stream.asked_at(key)?)));
        let Some((stream, asked)) = asked else {
            return Err(Invariant::Absence.broken(format!("{key} timed out on {uri}, which was not asked for it")));
        };
        let patience = self.rules.patience(plane);
        let waited = now.since(asked.at);
        Invariant::Absence.holds(waited >= patience, || {
            format!("{key} timed out on {uri} after {waited:?}: expected {patience:?}")
        })?;
        Invariant::Absence.holds(stream.is_proven_since(asked), || {
            format!("{key} timed out on {uri}, which was not shown to be alive since it was asked for it")
        })?;
        let due = asked.at + patience;
        // Everybody gets their time once more, but only once.
        let again = self.woke_before.is_some_and(|woke| woke >= asked.at);
        let overslept = self.woke.is_some_and(|woke| due + LATE < woke && now.since(woke) < PROBE_PATIENCE) && !again;
        Invariant::Absence
            .holds(!overslept, || format!("{key} timed out on {uri} when we woke: it may have been sent meanwhile"))?;
        Invariant::Absence.holds(self.in_charge_of(key) == Some(plane), || {
            format!("{key} timed out on {uri}, which is not in charge of it")
        })?;
        let is_missing = self.entries.get(key).is_some_and(|entry| entry.held.is_none());
        Invariant::Absence.holds(is_missing, || format!("{key} timed out on {uri} over data"))?;
        let word = Word::Silence { plane, transient: self.rules.is_transient_timer(plane) };
        if let Some(stream) = self.streams.values_mut().find(|stream| stream.plane == plane) {
            stream.words.insert(key.clone(), word.clone());
        }
        self.fail(key, word, false);
        Ok(())
    }

    /// Takes down what is watched, and which authorities that needs.
    pub(super) fn take_watches(&mut self, view: &View<'_>) {
        let watched: std::collections::BTreeSet<_> = view.dump.iter().map(|status| &status.resource).collect();
        for status in view.dump {
            if !self.entries.get(&status.resource).is_some_and(|entry| entry.watched) {
                self.watching(view.now, &status.resource);
            }
        }
        for (key, entry) in &mut self.entries {
            if entry.watched && !watched.contains(key) {
                entry.watched = false;
                self.changed = true;
            }
        }
        self.forget_unsubscribed();
        self.forget_unwatched();
        let rules = &self.rules;
        let entries = &self.entries;
        self.charges.retain(|authority, _| {
            entries.iter().any(|(key, entry)| entry.watched && rules.authority_of(key) == Some(authority))
        });
    }

    /// What nobody watches is known until the server that it came from is told so (P-95).
    pub(super) fn forget_unwatched(&mut self) {
        let streams = &self.streams;
        self.entries.retain(|key, entry| {
            let by = entry.held.as_ref().map(|held| held.plane).or(entry.word.said_by());
            let mut known = streams.values().filter(|stream| by.is_none_or(|by| stream.plane == by));
            entry.watched || known.any(|stream| stream.lists(key))
        });
    }

    /// What the client shows of each resource is what was said of it.
    pub(super) fn check_dump(&mut self, view: &View<'_>) -> Result<(), Violation> {
        for status in view.dump {
            let key = &status.resource;
            if self.rules.authority_of(key).is_none() {
                continue;
            }
            let server = |plane: usize| &self.rules.servers[plane];
            let shown = status.value.as_ref().map(|value| {
                let provenance = &value.provenance;
                (&value.bytes, &provenance.server, &provenance.version)
            });
            let Some(entry) = self.entries.get_mut(key) else { continue };
            let is_new = std::mem::take(&mut entry.is_new);
            if let Some(left_out) = entry.left_out.take()
                && status.state == ResourceState::Acked
            {
                (entry.held, entry.word) = (Some(left_out), Word::Good);
                for stream in self.streams.values_mut() {
                    if matches!(stream.words.get(key), Some(Word::Gone { .. })) {
                        stream.words.remove(key);
                    }
                }
            }
            if is_new && status.state == ResourceState::Requested {
                for stream in self.streams.values_mut() {
                    let asked = stream.types.get_mut(&key.resource_type);
                    if let Some(asked) = asked.filter(|asked| asked.doubtful.contains(&key.name)) {
                        asked.forget(&key.name);
                        stream.words.remove(key);
                        (entry.held, entry.word) = (None, Word::Nothing);
                    }
                }
            }
            // A server that takes over may have been silent about it for long enough already. So may one that was not
            // told yet that nobody watched it for a moment: its silence since it was asked still counts.
            let moved = self.rules.authority_of(key).is_some_and(|authority| self.moved.contains(authority));
            if (moved || is_new) && entry.held.is_none() && entry.word == Word::Nothing && status.error.is_some() {
                let by = status.error.as_ref().and_then(|error| error.server_uri());
                let plane = self.rules.servers.iter().position(|server| Some(server.server_uri.as_str()) == by);
                let stream = self.streams.values_mut().find(|stream| Some(stream.plane) == plane);
                if let (Some(plane), Some(stream)) = (plane, stream)
                    && let Some(asked) = stream.silent_since(key)
                    && view.now.since(asked.at) >= self.rules.patience(plane)
                    && (stream.data > asked.data || stream.pongs > asked.pongs)
                {
                    entry.word = Word::Silence { plane, transient: self.rules.is_transient_timer(plane) };
                    stream.words.insert(key.clone(), entry.word.clone());
                }
            }
            let held = entry.held.as_ref().map(|held| (&held.told.bytes, server(held.plane), &held.version));
            Invariant::Cache.holds(shown == held, || {
                let tell = |held: Option<(&bytes::Bytes, &Arc<ServerConfig>, &Arc<str>)>| match held {
                    Some((bytes, server, version)) => {
                        format!("{} bytes, version {version:?} of {}", bytes.len(), server.server_uri)
                    }
                    None => "nothing".to_owned(),
                };
                format!("{key}: the client has {}: expected {}", tell(shown), tell(held))
            })?;
            let expected = entry.state();
            Invariant::Cache.holds(status.state == expected, || {
                format!("{key} is shown as {:?}: expected {expected:?}, from {:?}", status.state, entry.word)
            })?;
            let by = status.error.as_ref().map(|error| error.server_uri().unwrap_or_default());
            let said_by = entry.word.said_by().map(|plane| server(plane).server_uri.as_str());
            Invariant::Ambient
                .holds(by == said_by, || format!("{key} shows an error of {by:?}: expected one of {said_by:?}"))?;
        }
        Ok(())
    }

    /// Nothing is awaited for longer than it may: a server that is dead or hangs is left, and one that is alive and
    /// silent does not have it.
    pub(super) fn check_patience(&self, view: &View<'_>) -> Result<(), Violation> {
        for stream in self.streams.values().filter(|stream| stream.opened.is_some()) {
            let uri = self.rules.uri(stream.plane);
            let patience = self.rules.patience(stream.plane);
            let owed = stream.owed_since().filter(|_| !self.asleep);
            if let (Some(owed), Some(timeout)) = (owed, self.rules.settings.silent_stream_timeout) {
                let waited = view.now.since(self.woke.map_or(owed, |woke| woke.max(owed)));
                Invariant::Life.holds(waited <= timeout, || {
                    format!("{uri} has said nothing for {waited:?}, and {timeout:?} is the limit (C-36)")
                })?;
            }
            // Who is held to be down, and owes nothing by which it could show that it is not, is asked at once.
            let forgotten = stream.owes_nothing() && stream.probed.is_none() && self.planes[stream.plane].down;
            if let Some(sent) = stream.last_sent.filter(|_| forgotten && !self.asleep) {
                Invariant::Life.holds(view.now <= sent.at, || {
                    format!("{uri} is held to be down, owes nothing, and is not asked for a sign of life")
                })?;
            }
            for (key, entry) in &self.entries {
                let is_awaited = entry.watched && entry.held.is_none() && entry.word == Word::Nothing;
                if !is_awaited || self.in_charge_of(key) != Some(stream.plane) {
                    continue;
                }
                let Some(asked) = stream.asked_at(key) else { continue };
                if self.asleep {
                    continue;
                }
                // A process that was stopped gives everybody their time once more.
                let slept = self.woke.filter(|woke| *woke > asked.at);
                let waited = view.now.since(slept.unwrap_or(asked.at));
                let proven = stream.is_proven_since(asked);
                let slack = if slept.is_some() { patience + 2 * PROBE_PATIENCE } else { Duration::ZERO };
                let bound = if proven { patience + slack } else { 2 * PROBE_PATIENCE + slack };
                Invariant::Absence.holds(waited <= bound, || {
                    format!("{key} was asked for on {uri} {waited:?} ago and is still awaited; alive: {proven}")
                })?;
            }
        }
        Ok(())
    }
}

/// gRPC status codes.
const NOT_FOUND: u8 = 5;
const PERMISSION_DENIED: u8 = 7;

/// A timer that is less late than this is in time.
const LATE: Duration = Duration::from_secs(1);
