//! The subchannels of a tree, shared between policies that want the same one.
//!
//! Policies acquire and release; what the shell has to do about it is collected and done once, at
//! the end of a call into the tree. So a locality that moves from one priority to another lets go
//! of its connections and takes them back without one being closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::policy::State;
use crate::timers::Owner;
use crate::tree::{Connectivity, Host, Subchannel, SubchannelId, SubchannelSpec};

/// Handles of subchannels, for pickers.
pub(crate) type Handles<S> = BTreeMap<SubchannelId, S>;

/// Which subchannels there are, who uses them, and in what state they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    entries: BTreeMap<SubchannelId, Entry>,
    by_spec: BTreeMap<Arc<SubchannelSpec>, SubchannelId>,
    last_id: u64,
    created: Vec<SubchannelId>,
    to_connect: Vec<SubchannelId>,
    unused: BTreeSet<SubchannelId>,
    reresolve: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    spec: Arc<SubchannelSpec>,
    state: State,
    last_error: Option<Arc<str>>,
    /// Whether the shell was asked to connect since the last report.
    asked: bool,
    users: Users,
}

/// Who uses a subchannel; without a heap block for the common case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Users {
    One(Owner),
    Many(Vec<Owner>),
}

impl Pool {
    /// The subchannel for `spec`, made if there is none.
    pub(crate) fn acquire(&mut self, spec: &Arc<SubchannelSpec>, owner: Owner) -> SubchannelId {
        if let Some(&id) = self.by_spec.get(spec) {
            let entry = self.entries.get_mut(&id).expect("every spec in the index has an entry");
            entry.users.add(owner);
            self.unused.remove(&id);
            return id;
        }
        self.last_id += 1;
        let id = SubchannelId(self.last_id);
        let users = Users::One(owner);
        let entry = Entry { spec: Arc::clone(spec), state: State::Idle, last_error: None, asked: false, users };
        self.entries.insert(id, entry);
        self.by_spec.insert(Arc::clone(spec), id);
        self.created.push(id);
        id
    }

    /// Ends one use; the last one lets the subchannel go at the end of the call.
    pub(crate) fn release(&mut self, id: SubchannelId, owner: Owner) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.users.remove(owner);
            if entry.users.as_slice().is_empty() {
                self.unused.insert(id);
            }
        }
    }

    /// Asks an idle subchannel to connect, once.
    pub(crate) fn connect(&mut self, id: SubchannelId) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.state == State::Idle
            && !entry.asked
        {
            entry.asked = true;
            self.to_connect.push(id);
        }
    }

    /// Asks for fresh DNS answers, once per call into the tree.
    pub(crate) fn request_reresolution(&mut self) {
        self.reresolve = true;
    }

    pub(crate) fn state(&self, id: SubchannelId) -> State {
        self.entries.get(&id).map_or(State::Idle, |entry| entry.state)
    }

    /// Why the last attempt to connect failed, with the address.
    pub(crate) fn last_error(&self, id: SubchannelId) -> Option<String> {
        let entry = self.entries.get(&id)?;
        let error = entry.last_error.as_ref()?;
        Some(format!("{}: {error}", entry.spec.address))
    }

    /// Takes in a report. The users that have to hear of it; none if nothing changed.
    pub(crate) fn set_state(&mut self, id: SubchannelId, connectivity: Connectivity) -> Vec<Owner> {
        let Some(entry) = self.entries.get_mut(&id) else { return Vec::new() };
        let (state, error) = match connectivity {
            Connectivity::Idle => (State::Idle, None),
            Connectivity::Connecting => (State::Connecting, None),
            Connectivity::Ready => (State::Ready, None),
            Connectivity::TransientFailure(error) => (State::TransientFailure, Some(error)),
        };
        if entry.state == state && (error.is_none() || entry.last_error == error) {
            if entry.asked {
                self.to_connect.push(id); // Still idle, or idle again before we heard of it: ask again.
            }
            return Vec::new();
        }
        entry.asked = false;
        entry.state = state;
        if error.is_some() || state == State::Ready {
            entry.last_error = error;
        }
        entry.users.as_slice().to_vec()
    }

    /// Has the shell do what was collected.
    pub(crate) fn flush<S: Subchannel>(&mut self, host: &mut dyn Host<Subchannel = S>, handles: &mut Handles<S>) {
        for id in self.created.drain(..) {
            if self.unused.contains(&id) {
                continue; // Made and let go in one call: the shell never hears of it.
            }
            if let Some(entry) = self.entries.get(&id) {
                handles.insert(id, host.create_subchannel(id, &entry.spec));
            }
        }
        for id in self.to_connect.drain(..) {
            if !self.unused.contains(&id) && self.entries.contains_key(&id) {
                host.connect(id);
            }
        }
        for id in std::mem::take(&mut self.unused) {
            if let Some(entry) = self.entries.remove(&id) {
                self.by_spec.remove(&entry.spec);
            }
            if handles.remove(&id).is_some() {
                host.release(id);
            }
        }
        if std::mem::take(&mut self.reresolve) {
            host.request_reresolution();
        }
    }
}

impl Users {
    fn as_slice(&self) -> &[Owner] {
        match self {
            Self::One(owner) => std::slice::from_ref(owner),
            Self::Many(owners) => owners,
        }
    }

    fn add(&mut self, owner: Owner) {
        match self {
            Self::One(first) => *self = Self::Many(vec![*first, owner]),
            Self::Many(owners) if owners.is_empty() => *self = Self::One(owner),
            Self::Many(owners) => owners.push(owner),
        }
    }

    fn remove(&mut self, owner: Owner) {
        match self {
            Self::One(only) if *only == owner => *self = Self::Many(Vec::new()),
            Self::One(_) => {}
            Self::Many(owners) => {
                if let Some(at) = owners.iter().position(|o| *o == owner) {
                    owners.remove(at);
                }
            }
        }
    }
}
