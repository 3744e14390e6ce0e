//! The collections that endpoints name: lists (A95) and globs (GC-2), told apart by their names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::client::Update;
use crate::deps::Action;
use crate::deps::config::ResolvedEndpoints;
use crate::deps::sources::Source;
use crate::deps::watch::{Kind, Name, State, Table, Watched};
use crate::name::is_glob;
use crate::resource::{EndpointCollection, EndpointGlob, Endpoints};

/// What is known of the collections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Collections {
    lists: Table<EndpointCollection>,
    globs: Table<EndpointGlob>,
}

/// What is found of the collections of a cluster.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) resolved: ResolvedEndpoints,
    pub(super) notes: Vec<String>,
    pub(super) sources: Vec<Source>,
    /// Those that are missing for the sake of trouble with servers, as written.
    pub(super) troubled: Vec<Arc<str>>,
}

/// The name of a collection, as endpoints write it.
pub(super) fn name(as_written: &str, federation: bool) -> Name {
    if is_glob(as_written) {
        Name::new::<EndpointGlob>(as_written, federation)
    } else {
        Name::new::<EndpointCollection>(as_written, federation)
    }
}

impl Collections {
    pub(super) fn new() -> Self {
        Self { lists: Table::new(), globs: Table::new() }
    }

    pub(super) fn acquire(&mut self, name: &Name, user: &Arc<str>, out: &mut VecDeque<Action>) {
        if is_glob(&name.canonical) {
            self.globs.acquire(name, user, out);
        } else {
            self.lists.acquire(name, user, out);
        }
    }

    pub(super) fn release(&mut self, canonical: &Arc<str>, user: &str) {
        if is_glob(canonical) {
            self.globs.release(canonical, user);
        } else {
            self.lists.release(canonical, user);
        }
    }

    pub(super) fn sweep(&mut self, out: &mut VecDeque<Action>) {
        self.lists.sweep(out);
        self.globs.sweep(out);
    }

    pub(super) fn hear(&mut self, canonical: &str, update: Update) -> Option<&BTreeSet<Arc<str>>> {
        if is_glob(canonical) { self.globs.hear(canonical, update) } else { self.lists.hear(canonical, update) }
    }

    /// Puts endpoints together with their collections; `None` if one has no answer and nobody knows why.
    pub(super) fn find<'a>(
        &self,
        endpoints: &Arc<Endpoints>,
        collections: impl IntoIterator<Item = (&'a Arc<str>, &'a Name)>,
    ) -> Option<Found> {
        let resolved =
            ResolvedEndpoints { endpoints: endpoints.clone(), collections: BTreeMap::new(), globs: BTreeMap::new() };
        let mut found = Found { resolved, notes: Vec::new(), sources: Vec::new(), troubled: Vec::new() };
        for (as_written, name) in collections {
            if is_glob(&name.canonical) {
                let value = found.look(as_written, self.globs.get(&name.canonical)?)?;
                found.resolved.globs.extend(value.map(|value| (as_written.clone(), value)));
            } else {
                let value = found.look(as_written, self.lists.get(&name.canonical)?)?;
                found.resolved.collections.extend(value.map(|value| (as_written.clone(), value)));
            }
        }
        Some(found)
    }
}

impl Found {
    /// The value of a collection, if it has one; `None` if there is no answer.
    fn look<T: Kind>(&mut self, as_written: &Arc<str>, watched: &Watched<T>) -> Option<Option<Arc<T>>> {
        self.notes.extend(watched.ambient.iter().map(ToString::to_string));
        match &watched.state {
            State::Waiting(None) => return None,
            State::Waiting(Some(error)) => {
                self.notes.push(error.to_string());
                self.troubled.push(as_written.clone());
            }
            State::Failed(error) => self.notes.push(error.to_string()),
            State::Valid(value, _) => {
                self.sources.extend(watched.source());
                return Some(Some(value.clone()));
            }
        }
        Some(None)
    }
}
