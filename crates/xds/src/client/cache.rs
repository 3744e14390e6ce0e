//! The cache: what is known of every watched resource (C-17 to C-19), whatever server it came from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::authority::AuthorityId;
use super::dialect::Era;
use super::subscription::{Effect, NOT_FOUND, Verdict};
use super::{ErrorKind, Provenance, ResourceError, ServerId, WatchId};
use crate::name::ResourceKey;
use crate::resource::{Resource, ResourceType};

/// The entries by type and canonical name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Cache {
    /// In boxes: a map has room for more than it holds, and most have a name or two.
    types: BTreeMap<ResourceType, BTreeMap<Arc<str>, Box<Entry>>>,
    /// Entries without a watcher. They stay until no server believes any more that we have them (P-95).
    orphans: BTreeSet<ResourceKey>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub authority: AuthorityId,
    pub watchers: BTreeSet<WatchId>,
    pub cached: Cached,
    /// Counts values, so that a watcher can be told each one once.
    pub generation: u64,
    /// A53, with A88 off: the server took it away and nobody was told.
    pub deletion_ignored: bool,
}

/// What is known of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cached {
    /// Nothing yet.
    Requested,
    /// The last word of the server is a good value.
    Valid(Held),
    /// An older value is in use; the last word of the server is an error.
    Stale(Held, Fault),
    /// There is no value, for this reason.
    Absent(Fault),
}

/// The last word of a server about a resource, if it is an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fault {
    pub error: Arc<ResourceError>,
    pub server: ServerId,
}

/// A value in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub resource: Resource,
    /// As it came; a copy, so that it does not keep the whole response in memory.
    pub raw: Bytes,
    pub server: ServerId,
    pub provenance: Provenance,
    /// When it came over delta, where its version is its own and can be claimed (DX-16).
    pub era: Option<Era>,
}

/// The states of A88, as in `envoy.admin.v3.ClientResourceStatus` (C-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceState {
    /// Subscribed, nothing came yet.
    Requested,
    /// It was not sent in time, or it was deleted.
    DoesNotExist,
    /// The last update was valid.
    Acked,
    /// The last update was rejected.
    Nacked,
    /// The server answered with an error.
    ReceivedError,
    /// It was not sent in time by a server for which that is a transient error.
    TimedOut,
}

// === impl Cache ===

impl Cache {
    pub(super) fn get(&self, resource_type: ResourceType, name: &str) -> Option<&Entry> {
        self.types.get(&resource_type)?.get(name).map(|entry| &**entry)
    }

    /// The entry with the name it has here, which can be shared.
    pub(super) fn get_key_value(&self, resource_type: ResourceType, name: &str) -> Option<(&Arc<str>, &Entry)> {
        self.types.get(&resource_type)?.get_key_value(name).map(|(name, entry)| (name, &**entry))
    }

    pub(super) fn get_mut(&mut self, resource_type: ResourceType, name: &str) -> Option<&mut Entry> {
        self.types.get_mut(&resource_type)?.get_mut(name).map(|entry| &mut **entry)
    }

    /// Adds a watcher, with the entry if there is none. Tells whether it is the first of the resource.
    pub(super) fn add_watcher(&mut self, key: &ResourceKey, authority: AuthorityId, watch: WatchId) -> bool {
        let names = self.types.entry(key.resource_type).or_default();
        let entry = names.entry(key.name.clone()).or_insert_with(|| Box::new(Entry::new(authority)));
        let first = entry.watchers.is_empty();
        entry.watchers.insert(watch);
        self.orphans.remove(key);
        first
    }

    /// Removes a watcher. If it was the last, tells the authority of the resource.
    pub(super) fn remove_watcher(&mut self, key: &ResourceKey, watch: WatchId) -> Option<AuthorityId> {
        let entry = self.get_mut(key.resource_type, &key.name)?;
        if !entry.watchers.remove(&watch) || !entry.watchers.is_empty() {
            return None;
        }
        let authority = entry.authority;
        self.orphans.insert(key.clone());
        Some(authority)
    }

    /// Drops the entries without a watcher, except those to `keep`.
    pub(super) fn drop_orphans(&mut self, keep: impl Fn(&ResourceKey, &Entry) -> bool) -> Vec<(ResourceKey, Entry)> {
        let Self { types, orphans } = self;
        let mut dropped = Vec::new();
        orphans.retain(|key| {
            let Some(names) = types.get_mut(&key.resource_type) else { return false };
            if names.get(&key.name).is_some_and(|entry| keep(key, entry)) {
                return true;
            }
            dropped.extend(names.remove(&key.name).map(|entry| (key.clone(), *entry)));
            false
        });
        dropped
    }

    /// The watched resources of all types, in order.
    pub(super) fn watched(&self) -> impl Iterator<Item = (ResourceKey, &Entry)> {
        self.types.iter().flat_map(|(&resource_type, names)| {
            names
                .iter()
                .filter(|(_, entry)| !entry.watchers.is_empty())
                .map(move |(name, entry)| (ResourceKey { resource_type, name: name.clone() }, &**entry))
        })
    }

    /// The same without their names.
    pub(super) fn watched_entries(&self) -> impl Iterator<Item = (ResourceType, &Entry)> {
        let entries = self.types.iter().flat_map(|(&kind, names)| names.values().map(move |entry| (kind, &**entry)));
        entries.filter(|(_, entry)| !entry.watchers.is_empty())
    }

    /// The entries of one type, in order of their names.
    pub(super) fn of_type(&self, resource_type: ResourceType) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.types.get(&resource_type).into_iter().flatten().map(|(name, entry)| (name, &**entry))
    }

    /// The same, to be changed.
    pub(super) fn of_type_mut(&mut self, resource_type: ResourceType) -> impl Iterator<Item = (&Arc<str>, &mut Entry)> {
        self.types.get_mut(&resource_type).into_iter().flatten().map(|(name, entry)| (name, &mut **entry))
    }

    /// The resources of an authority, watched or not.
    pub(super) fn of_authority(&self, authority: AuthorityId) -> impl Iterator<Item = ResourceKey> {
        self.types.iter().flat_map(move |(&resource_type, names)| {
            let of_authority = names.iter().filter(move |(_, entry)| entry.authority == authority);
            of_authority.map(move |(name, _)| ResourceKey { resource_type, name: name.clone() })
        })
    }

    /// Watchers of every resource of an authority.
    pub(super) fn watchers_of(&self, authority: AuthorityId) -> impl Iterator<Item = WatchId> {
        let entries = self.types.values().flat_map(BTreeMap::values);
        entries.filter(move |entry| entry.authority == authority).flat_map(|entry| entry.watchers.iter().copied())
    }

    /// Whether a watcher of the authority waits for a resource that is not cached (C-40).
    pub(super) fn any_uncached(&self, authority: AuthorityId) -> bool {
        let mut entries = self.types.values().flat_map(BTreeMap::values);
        entries.any(|entry| entry.authority == authority && !entry.watchers.is_empty() && entry.cached.is_uncached())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.types.values().map(BTreeMap::len).sum()
    }
}

// === impl Entry ===

impl Entry {
    fn new(authority: AuthorityId) -> Self {
        Self { authority, watchers: BTreeSet::new(), cached: Cached::Requested, generation: 0, deletion_ignored: false }
    }

    /// A good value came.
    pub(super) fn accept(&mut self, new: Held) {
        self.deletion_ignored = false;
        let before = match std::mem::replace(&mut self.cached, Cached::Requested) {
            Cached::Valid(held) | Cached::Stale(held, _) => {
                Some(held.resource).filter(|before| *before == new.resource)
            }
            Cached::Requested | Cached::Absent(_) => None,
        };
        // Equal in meaning: the old value stays, so that whoever shares it goes on sharing it (C-86).
        if before.is_none() {
            self.generation += 1;
        }
        self.cached = Cached::Valid(Held { resource: before.unwrap_or(new.resource), ..new });
    }

    /// The value in use came once more, with the same bytes from the same server.
    pub(super) fn confirm(&mut self, provenance: Provenance, era: Option<Era>) {
        self.deletion_ignored = false;
        self.cached = match std::mem::replace(&mut self.cached, Cached::Requested) {
            Cached::Valid(held) | Cached::Stale(held, _) => Cached::Valid(Held { provenance, era, ..held }),
            without_value @ (Cached::Requested | Cached::Absent(_)) => without_value,
        };
    }

    /// A server says something else than a value. An error that is the same as the one before keeps its time: "since
    /// when". Answers with the server whose value was dropped.
    pub(super) fn heed(&mut self, verdict: &Verdict, server: ServerId) -> Option<ServerId> {
        if verdict.effect == Effect::None && self.cached.held().is_some() {
            return None;
        }
        let (held, before) = match std::mem::replace(&mut self.cached, Cached::Requested) {
            Cached::Requested => (None, None),
            Cached::Valid(held) => (Some(held), None),
            Cached::Stale(held, fault) => (Some(held), Some(fault)),
            Cached::Absent(fault) => (None, Some(fault)),
        };
        let fault = match before {
            Some(before) if before.server == server && is_same(&before.error.kind, &verdict.error.kind) => before,
            _ => Fault { error: Arc::clone(&verdict.error), server },
        };
        match held {
            Some(held) if verdict.effect == Effect::Ambient => {
                self.cached = Cached::Stale(held, fault);
                None
            }
            held => {
                self.cached = Cached::Absent(fault);
                held.map(|held| held.server)
            }
        }
    }

    /// The value in use, if the last word about it is that value. Else who is told that we have it, and has it again,
    /// would see no reason to say so.
    pub(super) fn sound(&self) -> Option<&Held> {
        match &self.cached {
            Cached::Valid(held) if !self.deletion_ignored => Some(held),
            Cached::Valid(_) | Cached::Stale(..) | Cached::Requested | Cached::Absent(_) => None,
        }
    }

    /// Forgets what a server found wrong that is not this one. Tells whether there was anything.
    pub(super) fn forget_faults_except_of(&mut self, server: ServerId) -> bool {
        if self.cached.fault().is_none_or(|fault| fault.server == server) {
            return false;
        }
        self.cached = match std::mem::replace(&mut self.cached, Cached::Requested) {
            Cached::Stale(held, _) | Cached::Valid(held) => Cached::Valid(held),
            Cached::Absent(_) | Cached::Requested => Cached::Requested,
        };
        true
    }
}

// === impl Cached ===

impl Cached {
    pub(super) fn held(&self) -> Option<&Held> {
        match self {
            Self::Valid(held) | Self::Stale(held, _) => Some(held),
            Self::Requested | Self::Absent(_) => None,
        }
    }

    pub(super) fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Stale(_, fault) | Self::Absent(fault) => Some(fault),
            Self::Requested | Self::Valid(_) => None,
        }
    }

    pub(super) fn error(&self) -> Option<&Arc<ResourceError>> {
        self.fault().map(|fault| &fault.error)
    }

    /// The server that what is known came from: its last value, or else its last word.
    pub(super) fn server(&self) -> Option<ServerId> {
        self.held().map(|held| held.server).or_else(|| self.fault().map(|fault| fault.server))
    }

    /// Whether there is no usable data and it is not known that there is none (A71, D-15): it was
    /// only ever requested, rejected, timed out as transient, or answered by an error other than NOT_FOUND.
    pub(super) fn is_uncached(&self) -> bool {
        match self {
            Self::Requested => true,
            Self::Valid(_) | Self::Stale(..) => false,
            Self::Absent(Fault { error, .. }) => {
                self::state(&error.kind) != ResourceState::DoesNotExist && !says_not_found(&error.kind)
            }
        }
    }

    /// The state that CSDS shows (C-18).
    pub(super) fn state(&self) -> ResourceState {
        match self {
            Self::Requested => ResourceState::Requested,
            Self::Valid(_) => ResourceState::Acked,
            Self::Stale(_, fault) | Self::Absent(fault) => state(&fault.error.kind),
        }
    }
}

/// Whether an error says the same as the one before. That there is none is said again on each stream, and over delta
/// whenever it is asked for once more (DX-15), sooner or later after that.
fn is_same(before: &ErrorKind, now: &ErrorKind) -> bool {
    before == now || matches!((before, now), (ErrorKind::DoesNotExist { .. }, ErrorKind::DoesNotExist { .. }))
}

/// The state of an entry whose last word is this error.
fn state(kind: &ErrorKind) -> ResourceState {
    match kind {
        ErrorKind::Rejected { .. } => ResourceState::Nacked,
        ErrorKind::DoesNotExist { .. } | ErrorKind::Deleted => ResourceState::DoesNotExist,
        ErrorKind::FromServer { .. } => ResourceState::ReceivedError,
        ErrorKind::TimedOut { .. } => ResourceState::TimedOut,
        // The server was never asked.
        ErrorKind::NeedsDelta => ResourceState::Requested,
        // Not kept in entries: they are facts about names and servers.
        ErrorKind::InvalidName(_) | ErrorKind::UnknownAuthority(_) | ErrorKind::Unreachable(_) => {
            ResourceState::Requested
        }
    }
}

/// Whether the server itself said that there is no such resource.
fn says_not_found(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::FromServer { code: NOT_FOUND, .. })
}
