//! The subchannels of a tree, shared between policies that want the same one.
//!
//! Policies acquire and release; what the shell has to do about it is collected and done once, at
//! the end of a call into the tree. So a locality that moves from one priority to another lets go
//! of its connections and takes them back without one being closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{Address, Identity};
use crate::helper::Helper;
use crate::index::Index;
use crate::orca::LoadSink;
use crate::owner::Owner;
use crate::subchannel::{Connectivity, State, Subchannel, SubchannelId};

/// Handles of subchannels, for pickers. The pool keeps it up to date.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handles<S>(Vec<Option<S>>);

/// Which subchannels there are, who uses them, and in what state they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    /// The low half of an id is an index here, the high half says how often the entry was taken before.
    /// A list, because with many endpoints a map is twice as large.
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_address: Index,
    /// Why the last attempt to connect failed, where it did.
    errors: BTreeMap<SubchannelId, Arc<str>>,
    created: Vec<SubchannelId>,
    to_connect: Vec<SubchannelId>,
    unused: BTreeSet<SubchannelId>,
    load_watches: Vec<(SubchannelId, Duration, LoadSink)>,
    reresolve: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    taken_before: u32,
    state: State,
    /// Whether the shell was asked to connect since the last report.
    asked: bool,
    users: Users,
}

/// Who uses a subchannel, each with where it found the address, so that no list is kept that nobody uses. Without a
/// heap block for the common case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Users {
    /// There is no subchannel.
    Free,
    /// Nobody. It is let go at the end of the call, unless someone comes.
    Nobody(Address),
    One(User),
    /// More than one.
    Many(Vec<User>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct User {
    owner: Owner,
    address: Address,
}

impl Pool {
    /// Makes room for so many more.
    pub(crate) fn expect(&mut self, more: usize) {
        let more = more.saturating_sub(self.free.len());
        self.entries.reserve_exact(more);
        self.by_address.reserve(more, identity_at(&self.entries));
    }

    /// The subchannel for `address`, made if there is none.
    pub(crate) fn acquire(&mut self, address: &Address, owner: Owner) -> SubchannelId {
        let user = User { owner, address: address.clone() };
        let new = self.free.last().copied().unwrap_or(self.entries.len() as u32);
        let at = self.by_address.find_or_insert(&Some(address.identity()), new, identity_at(&self.entries));
        if at != new {
            let entry = &mut self.entries[at as usize];
            entry.users.add(user);
            let id = id(at, entry);
            self.unused.remove(&id);
            return id;
        }
        if self.free.pop().is_none() {
            self.entries.push(Entry { taken_before: 0, state: State::Idle, asked: false, users: Users::Free });
        }
        let entry = &mut self.entries[at as usize];
        (entry.state, entry.asked, entry.users) = (State::Idle, false, Users::One(user));
        let id = id(at, entry);
        self.created.push(id);
        id
    }

    /// Notes that a user now finds the address, which is the same, elsewhere.
    pub(crate) fn renew(&mut self, id: SubchannelId, owner: Owner, address: &Address) {
        if let Some(entry) = self.entry_mut(id)
            && let Some(user) = entry.users.as_mut_slice().iter_mut().find(|user| user.owner == owner)
        {
            user.address = address.clone();
        }
    }

    /// Ends one use; the last one lets the subchannel go at the end of the call.
    pub(crate) fn release(&mut self, id: SubchannelId, owner: Owner) {
        if let Some(entry) = self.entry_mut(id) {
            entry.users.remove(owner);
            if matches!(entry.users, Users::Nobody(_)) {
                self.unused.insert(id);
            }
        }
    }

    /// Asks an idle subchannel to connect, once.
    pub(crate) fn connect(&mut self, id: SubchannelId) {
        if let Some(entry) = self.entry_mut(id)
            && entry.state == State::Idle
            && !entry.asked
        {
            entry.asked = true;
            self.to_connect.push(id);
        }
    }

    /// Has a connection bring reports of the load at its other end, until it is lost or nobody wants them (L-109).
    pub(crate) fn watch_load(&mut self, id: SubchannelId, period: Duration, sink: LoadSink) {
        self.load_watches.push((id, period, sink));
    }

    /// Asks for fresh DNS answers, once per call into the tree.
    pub(crate) fn request_reresolution(&mut self) {
        self.reresolve = true;
    }

    pub(crate) fn state(&self, id: SubchannelId) -> State {
        self.entry(id).map_or(State::Idle, |entry| entry.state)
    }

    /// The subchannel for `address`, if someone below this cluster has it.
    pub(crate) fn find(&self, address: &Address, cluster: u32) -> Option<SubchannelId> {
        let at = self.by_address.find(&Some(address.identity()), identity_at(&self.entries))?;
        let entry = self.entries.get(at as usize)?;
        entry.users.as_slice().iter().any(|user| user.owner.cluster == cluster).then(|| id(at, entry))
    }

    /// Who uses the subchannel for `address`.
    pub(crate) fn users(&self, address: &Address) -> impl Iterator<Item = Owner> {
        let at = self.by_address.find(&Some(address.identity()), identity_at(&self.entries));
        let entry = at.and_then(|at| self.entries.get(at as usize));
        entry.into_iter().flat_map(|entry| entry.users.as_slice()).map(|user| user.owner)
    }

    /// Why the last attempt to connect failed, with the address.
    pub(crate) fn last_error(&self, id: SubchannelId) -> Option<String> {
        let error = self.errors.get(&id)?;
        let address = self.entry(id)?.users.address()?;
        Some(format!("{}: {error}", address.socket()))
    }

    /// Takes in a report. The users that have to hear of it; none if nothing changed.
    pub(crate) fn set_state(&mut self, id: SubchannelId, connectivity: Connectivity) -> Vec<Owner> {
        let last_error = self.errors.get(&id).cloned();
        let Some(entry) = self.entry_mut(id) else { return Vec::new() };
        let (state, error) = match connectivity {
            Connectivity::Idle => (State::Idle, None),
            Connectivity::Connecting => (State::Connecting, None),
            Connectivity::Ready => (State::Ready, None),
            Connectivity::TransientFailure(error) => (State::TransientFailure, Some(error)),
        };
        if entry.state == state && (error.is_none() || last_error == error) {
            if entry.asked {
                self.to_connect.push(id); // Still idle, or idle again before we heard of it: ask again.
            }
            return Vec::new();
        }
        entry.asked = false;
        entry.state = state;
        let users = entry.users.as_slice().iter().map(|user| user.owner).collect();
        match error {
            Some(error) => _ = self.errors.insert(id, error),
            None if state == State::Ready => _ = self.errors.remove(&id),
            None => {}
        }
        users
    }

    /// Has the shell do what was collected.
    pub(crate) fn flush<S: Subchannel>(&mut self, helper: &mut dyn Helper<Subchannel = S>, handles: &mut Handles<S>) {
        handles.expect(self.entries.len());
        for id in std::mem::take(&mut self.created) {
            // What was made and let go in one call, the shell never hears of.
            if !self.unused.contains(&id)
                && let Some(address) = self.entry(id).and_then(|entry| entry.users.address())
            {
                handles.insert(id, helper.create_subchannel(id, &address.spec()));
            }
        }
        for id in std::mem::take(&mut self.to_connect) {
            if !self.unused.contains(&id) {
                helper.connect(id);
            }
        }
        for (id, period, sink) in std::mem::take(&mut self.load_watches) {
            if !self.unused.contains(&id) {
                helper.watch_load(id, period, sink);
            }
        }
        for id in std::mem::take(&mut self.unused) {
            self.remove(id);
            if handles.remove(id).is_some() {
                helper.release(id);
            }
        }
        if std::mem::take(&mut self.reresolve) {
            helper.request_reresolution();
        }
    }

    fn remove(&mut self, id: SubchannelId) {
        self.errors.remove(&id);
        let (at, taken_before) = parts(id);
        let entry = self.entries.get_mut(at).filter(|entry| entry.taken_before == taken_before);
        if let Some(entry) = entry
            && let Some(address) = entry.users.address()
        {
            self.by_address.remove(&Some(address.identity()), at as u32);
            entry.users = Users::Free;
            if let Some(taken_before) = entry.taken_before.checked_add(1) {
                entry.taken_before = taken_before;
                self.free.push(at as u32);
            }
        }
    }

    fn entry(&self, id: SubchannelId) -> Option<&Entry> {
        let (at, taken_before) = parts(id);
        self.entries.get(at).filter(|entry| entry.taken_before == taken_before)
    }

    fn entry_mut(&mut self, id: SubchannelId) -> Option<&mut Entry> {
        let (at, taken_before) = parts(id);
        self.entries.get_mut(at).filter(|entry| entry.taken_before == taken_before)
    }
}

impl<S> Handles<S> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn get(&self, id: SubchannelId) -> Option<&S> {
        self.0.get(parts(id).0)?.as_ref()
    }

    /// Makes room for the handles of so many subchannels.
    fn expect(&mut self, entries: usize) {
        if self.0.len() < entries {
            self.0.reserve_exact(entries - self.0.len());
            self.0.resize_with(entries, || None);
        }
    }

    fn insert(&mut self, id: SubchannelId, handle: S) {
        if let Some(entry) = self.0.get_mut(parts(id).0) {
            *entry = Some(handle);
        }
    }

    fn remove(&mut self, id: SubchannelId) -> Option<S> {
        self.0.get_mut(parts(id).0)?.take()
    }
}

impl Users {
    fn as_slice(&self) -> &[User] {
        match self {
            Self::Free | Self::Nobody(_) => &[],
            Self::One(user) => std::slice::from_ref(user),
            Self::Many(users) => users,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [User] {
        match self {
            Self::Free | Self::Nobody(_) => &mut [],
            Self::One(user) => std::slice::from_mut(user),
            Self::Many(users) => users,
        }
    }

    /// The address that all of them use.
    fn address(&self) -> Option<&Address> {
        match self {
            Self::Nobody(address) => Some(address),
            Self::Free | Self::One(_) | Self::Many(_) => self.as_slice().first().map(|user| &user.address),
        }
    }

    fn add(&mut self, user: User) {
        *self = match std::mem::replace(self, Self::Free) {
            Self::Free | Self::Nobody(_) => Self::One(user),
            Self::One(first) => Self::Many(vec![first, user]),
            Self::Many(mut users) => {
                users.push(user);
                Self::Many(users)
            }
        };
    }

    /// Takes one use away, if there is one.
    fn remove(&mut self, owner: Owner) {
        *self = match std::mem::replace(self, Self::Free) {
            Self::One(only) if only.owner == owner => Self::Nobody(only.address),
            Self::Many(mut users) => {
                if let Some(at) = users.iter().position(|user| user.owner == owner) {
                    users.remove(at);
                }
                match <[User; 1]>::try_from(users) {
                    Ok([only]) => Self::One(only),
                    Err(users) => Self::Many(users),
                }
            }
            others @ (Self::Free | Self::Nobody(_) | Self::One(_)) => others,
        };
    }
}

/// Says what is at an index.
fn identity_at<'a>(entries: &'a [Entry]) -> impl Fn(u32) -> Option<Identity<'a>> {
    |at| entries.get(at as usize)?.users.address().map(Address::identity)
}

/// The subchannel at an index.
fn id(at: u32, entry: &Entry) -> SubchannelId {
    SubchannelId(u64::from(entry.taken_before) << 32 | u64::from(at))
}

/// The index of a subchannel, and how often its entry was taken before.
fn parts(id: SubchannelId) -> (usize, u32) {
    (id.0 as u32 as usize, (id.0 >> 32) as u32)
}
