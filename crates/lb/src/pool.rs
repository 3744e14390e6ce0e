//! The subchannels of a tree, shared between policies that want the same one.
//!
//! Policies acquire and release; what the shell has to do about it is collected and done once, at
//! the end of a call into the tree. So a locality that moves from one priority to another lets go
//! of its connections and takes them back without one being closed.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::orca::LoadSink;
use crate::policy::State;
use crate::timers::Owner;
use crate::tree::{Connectivity, Host, Subchannel, SubchannelId, SubchannelSpec};

/// Handles of subchannels, for pickers. The pool keeps it up to date.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handles<S>(Vec<Option<S>>);

/// Which subchannels there are, who uses them, and in what state they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    /// The low half of an id is a place here, the high half says how often the place was taken before.
    /// A list, because with many endpoints a map is twice as large.
    places: Vec<Place>,
    free: Vec<u32>,
    by_spec: BTreeMap<Arc<SubchannelSpec>, SubchannelId>,
    created: Vec<SubchannelId>,
    to_connect: Vec<SubchannelId>,
    unused: BTreeSet<SubchannelId>,
    load_watches: Vec<(SubchannelId, Duration, LoadSink)>,
    reresolve: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    taken_before: u32,
    entry: Option<Entry>,
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
        match self.by_spec.entry(Arc::clone(spec)) {
            MapEntry::Occupied(known) => {
                let id = *known.get();
                self.unused.remove(&id);
                self.entry_mut(id).expect("every spec in the index has an entry").users.add(owner);
                id
            }
            MapEntry::Vacant(new) => {
                let (state, last_error, users) = (State::Idle, None, Users::One(owner));
                let entry = Entry { spec: Arc::clone(spec), state, last_error, asked: false, users };
                let id = *new.insert(take_place(&mut self.places, &mut self.free, entry));
                self.created.push(id);
                id
            }
        }
    }

    /// Ends one use; the last one lets the subchannel go at the end of the call.
    pub(crate) fn release(&mut self, id: SubchannelId, owner: Owner) {
        if let Some(entry) = self.entry_mut(id) {
            entry.users.remove(owner);
            if entry.users.as_slice().is_empty() {
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

    /// The subchannel for `spec`, if someone below this cluster has it.
    pub(crate) fn find(&self, spec: &SubchannelSpec, cluster: u32) -> Option<SubchannelId> {
        let id = *self.by_spec.get(spec)?;
        let users = self.entry(id)?.users.as_slice();
        users.iter().any(|user| user.cluster == cluster).then_some(id)
    }

    /// Why the last attempt to connect failed, with the address.
    pub(crate) fn last_error(&self, id: SubchannelId) -> Option<String> {
        let entry = self.entry(id)?;
        let error = entry.last_error.as_ref()?;
        Some(format!("{}: {error}", entry.spec.address))
    }

    /// Takes in a report. The users that have to hear of it; none if nothing changed.
    pub(crate) fn set_state(&mut self, id: SubchannelId, connectivity: Connectivity) -> Vec<Owner> {
        let Some(entry) = self.entry_mut(id) else { return Vec::new() };
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
        for id in std::mem::take(&mut self.created) {
            // What was made and let go in one call, the shell never hears of.
            if !self.unused.contains(&id)
                && let Some(entry) = self.entry(id)
            {
                handles.insert(id, host.create_subchannel(id, &entry.spec));
            }
        }
        for id in std::mem::take(&mut self.to_connect) {
            if !self.unused.contains(&id) {
                host.connect(id);
            }
        }
        for (id, period, sink) in std::mem::take(&mut self.load_watches) {
            if !self.unused.contains(&id) {
                host.watch_load(id, period, sink);
            }
        }
        for id in std::mem::take(&mut self.unused) {
            self.remove(id);
            if handles.remove(id).is_some() {
                host.release(id);
            }
        }
        if std::mem::take(&mut self.reresolve) {
            host.request_reresolution();
        }
    }

    fn remove(&mut self, id: SubchannelId) {
        let (at, taken_before) = parts(id);
        let place = self.places.get_mut(at).filter(|place| place.taken_before == taken_before);
        if let Some(place) = place
            && let Some(entry) = place.entry.take()
        {
            self.by_spec.remove(&entry.spec);
            if let Some(taken_before) = place.taken_before.checked_add(1) {
                place.taken_before = taken_before;
                self.free.push(at as u32);
            }
        }
    }

    fn entry(&self, id: SubchannelId) -> Option<&Entry> {
        let (at, taken_before) = parts(id);
        self.places.get(at).filter(|place| place.taken_before == taken_before)?.entry.as_ref()
    }

    fn entry_mut(&mut self, id: SubchannelId) -> Option<&mut Entry> {
        let (at, taken_before) = parts(id);
        self.places.get_mut(at).filter(|place| place.taken_before == taken_before)?.entry.as_mut()
    }
}

impl<S> Handles<S> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn get(&self, id: SubchannelId) -> Option<&S> {
        self.0.get(parts(id).0)?.as_ref()
    }

    fn insert(&mut self, id: SubchannelId, handle: S) {
        let (at, _) = parts(id);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(handle);
    }

    fn remove(&mut self, id: SubchannelId) -> Option<S> {
        self.0.get_mut(parts(id).0)?.take()
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

/// Puts an entry in a free place.
fn take_place(places: &mut Vec<Place>, free: &mut Vec<u32>, entry: Entry) -> SubchannelId {
    let at = free.pop().unwrap_or(places.len() as u32);
    match places.get_mut(at as usize) {
        Some(place) => {
            place.entry = Some(entry);
            SubchannelId(u64::from(place.taken_before) << 32 | u64::from(at))
        }
        None => {
            places.push(Place { taken_before: 0, entry: Some(entry) });
            SubchannelId(u64::from(at))
        }
    }
}

/// The place of a subchannel, and how often the place was taken before.
fn parts(id: SubchannelId) -> (usize, u32) {
    (id.0 as u32 as usize, (id.0 >> 32) as u32)
}
