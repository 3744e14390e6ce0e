//! What is known of the watched resources, and who needs them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Action;
use super::error::is_answer;
use crate::bootstrap::ServerConfig;
use crate::client::{ResourceError, Update};
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::{
    Cluster, EndpointCollection, EndpointGlob, Endpoints, Listener, Resource, ResourceType, RouteConfig,
};

/// What is known of one watched resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watched<T> {
    /// Whose it is.
    pub(crate) authority: AuthorityKey,
    /// The value, or why there is none.
    pub(crate) state: State<T>,
    /// What is wrong although the value stays in use (A88).
    pub(crate) ambient: Option<Arc<ResourceError>>,
}

/// The value of a resource, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State<T> {
    /// No answer yet; why not, if anybody knows. Trouble with servers is no answer.
    Waiting(Option<Arc<ResourceError>>),
    /// The value and the server that stands behind it.
    Valid(Arc<T>, Arc<ServerConfig>),
    /// It cannot be had.
    Failed(Arc<ResourceError>),
}

/// The watched resources of one type, each with the clusters that need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Table<T> {
    entries: BTreeMap<Arc<str>, Box<Entry<T>>>,
    /// Names that may have lost their last user. Their watches end in [`Table::sweep`], after new ones began (P-96).
    orphans: BTreeSet<Arc<str>>,
    last_number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry<T> {
    watched: Watched<T>,
    users: BTreeSet<Arc<str>>,
    /// No other entry of the table has, or had, the same.
    number: u32,
}

/// A name as caches and requests know it, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) canonical: Arc<str>,
    pub(crate) authority: AuthorityKey,
}

/// The resource types that the manager watches.
pub(crate) trait Kind: Eq + Sized {
    /// Which one.
    const TYPE: ResourceType;

    /// The value, if the resource is of this type.
    fn from_resource(resource: Resource) -> Option<Arc<Self>>;
}

// === impl Watched ===

impl<T: Kind> Watched<T> {
    pub(crate) fn new(authority: AuthorityKey) -> Self {
        Self { authority, state: State::Waiting(None), ambient: None }
    }

    /// Takes in news. Says whether anything is different now.
    pub(crate) fn hear(&mut self, update: Update) -> bool {
        let before = (self.ambient.clone(), self.server().cloned());
        match update {
            Update::Changed(resource, provenance) => {
                let Some(value) = T::from_resource(resource) else { return false };
                self.ambient = None;
                let equal = self.value().filter(|held| **held == value).cloned();
                let is_new = equal.is_none();
                self.state = State::Valid(equal.unwrap_or(value), provenance.server);
                if is_new {
                    return true;
                }
            }
            Update::Confirmed(provenance) => {
                // Without a value there is nothing to confirm.
                let State::Valid(_, server) = &mut self.state else { return false };
                *server = provenance.server;
                self.ambient = None;
            }
            Update::Failed(error) => {
                self.ambient = None;
                let failed = match &self.state {
                    State::Waiting(_) if !is_answer(&error.kind) => State::Waiting(Some(error)),
                    State::Waiting(_) | State::Valid(..) | State::Failed(_) => State::Failed(error),
                };
                let is_new = self.state != failed;
                self.state = failed;
                return is_new;
            }
            Update::Ambient(error) => self.ambient = error,
        }
        before != (self.ambient.clone(), self.server().cloned())
    }

    /// The value in use.
    pub(crate) fn value(&self) -> Option<&Arc<T>> {
        match &self.state {
            State::Valid(value, _) => Some(value),
            State::Waiting(_) | State::Failed(_) => None,
        }
    }

    /// Why there is no answer yet.
    pub(super) fn trouble(&self) -> Option<&Arc<ResourceError>> {
        match &self.state {
            State::Waiting(trouble) => trouble.as_ref(),
            State::Valid(..) | State::Failed(_) => None,
        }
    }

    /// Authority and server behind the answer that there is no value.
    pub(super) fn denial(&self) -> Option<(AuthorityKey, Arc<ServerConfig>)> {
        match &self.state {
            State::Failed(error) => error.server.clone().map(|server| (self.authority.clone(), server)),
            State::Waiting(_) | State::Valid(..) => None,
        }
    }

    /// Authority and server behind the value.
    pub(crate) fn source(&self) -> Option<(AuthorityKey, Arc<ServerConfig>)> {
        self.server().map(|server| (self.authority.clone(), server.clone()))
    }

    fn server(&self) -> Option<&Arc<ServerConfig>> {
        match &self.state {
            State::Valid(_, server) => Some(server),
            State::Waiting(_) | State::Failed(_) => None,
        }
    }
}

// === impl Table ===

impl<T: Kind> Table<T> {
    pub(super) fn new() -> Self {
        Self { entries: BTreeMap::new(), orphans: BTreeSet::new(), last_number: 0 }
    }

    /// `user` needs the resource. Watches it if it is the first.
    pub(super) fn acquire(&mut self, name: &Name, user: &Arc<str>, out: &mut VecDeque<Action>) {
        let entry = self.entries.entry(name.canonical.clone()).or_insert_with(|| {
            out.push_back(Action::Watch(key::<T>(&name.canonical)));
            self.last_number += 1;
            let watched = Watched::new(name.authority.clone());
            Box::new(Entry { watched, users: BTreeSet::new(), number: self.last_number })
        });
        entry.users.insert(user.clone());
    }

    /// `user` does not need the resource any more.
    pub(super) fn release(&mut self, canonical: &Arc<str>, user: &str) {
        if let Some(entry) = self.entries.get_mut(canonical) {
            entry.users.remove(user);
            if entry.users.is_empty() {
                self.orphans.insert(canonical.clone());
            }
        }
    }

    /// Nobody needs the others any more.
    pub(super) fn keep_only(&mut self, names: &BTreeSet<&Arc<str>>) {
        for (name, entry) in self.entries.iter_mut().filter(|(name, _)| !names.contains(name)) {
            entry.users.clear();
            self.orphans.insert(name.clone());
        }
    }

    /// Ends the watches that nobody needs.
    pub(super) fn sweep(&mut self, out: &mut VecDeque<Action>) {
        for name in std::mem::take(&mut self.orphans) {
            if self.entries.get(&name).is_some_and(|entry| entry.users.is_empty()) {
                self.entries.remove(&name);
                out.push_back(Action::Unwatch(key::<T>(&name)));
            }
        }
    }

    /// Takes in news. Answers with those who must look again; nobody for a name that is not watched.
    pub(super) fn hear(&mut self, canonical: &str, update: Update) -> Option<&BTreeSet<Arc<str>>> {
        let entry = self.entries.get_mut(canonical)?;
        entry.watched.hear(update).then_some(&entry.users)
    }

    pub(super) fn get(&self, canonical: &str) -> Option<&Watched<T>> {
        self.entries.get(canonical).map(|entry| &entry.watched)
    }

    /// The number of a watched resource, however its name is spelt.
    pub(super) fn number(&self, canonical: &str) -> Option<u32> {
        self.entries.get(canonical).map(|entry| entry.number)
    }
}

/// The key of a resource in actions.
pub(crate) fn key<T: Kind>(canonical: &Arc<str>) -> ResourceKey {
    ResourceKey { resource_type: T::TYPE, name: canonical.clone() }
}

// === impl Name ===

impl Name {
    /// Reads a name that a resource uses. One that cannot be read is watched as it is: the client
    /// answers with the reason (C-8).
    pub(crate) fn new<T: Kind>(name: &str, federation: bool) -> Self {
        match ResourceKey::parse(T::TYPE, name, federation) {
            Ok((key, authority)) => Self { canonical: key.name, authority },
            Err(_) => Self { canonical: name.into(), authority: AuthorityKey::TopLevel },
        }
    }
}

macro_rules! kinds {
    ($($name:ident),*) => {
        $(impl Kind for $name {
            const TYPE: ResourceType = ResourceType::$name;

            fn from_resource(resource: Resource) -> Option<Arc<Self>> {
                match resource {
                    Resource::$name(value) => Some(value),
                    _ => None,
                }
            }
        })*
    };
}

kinds!(Listener, RouteConfig, Cluster, Endpoints, EndpointCollection, EndpointGlob);
