//! What watchers hear (C-10 to C-16): each value once and whole, what is wrong with it, and when that is over.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{ErrorKind, Update, WatchId};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::listener::RouteSource;
use mainstay_xds::resource::{Listener, Resource};

use super::picture;
use super::{Oracle, Word};
use crate::invariant::{Invariant, Violation};
use crate::resources::Spec;

/// The watchers of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchers {
    all: BTreeMap<WatchId, Watcher>,
    /// How many responses came since watchers were last told anything.
    responses: u32,
}

/// One watcher and what it was told.
#[derive(Clone, Debug)]
struct Watcher {
    key: ResourceKey,
    value: Option<(Resource, Arc<ServerConfig>)>,
    error: Option<Wrong>,
    /// Who is to blame, and since when.
    blamed: Option<Arc<ServerConfig>>,
    since: Option<Time>,
}

/// What is wrong, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Name,
    Unreachable,
    Absent,
    TimedOut,
    Deleted,
    Rejected,
    FromServer(u16),
}

impl Watchers {
    pub(crate) fn add(&mut self, id: WatchId, key: ResourceKey) {
        self.all.insert(id, Watcher { key, value: None, error: None, blamed: None, since: None });
    }

    pub(crate) fn remove(&mut self, id: WatchId) {
        self.all.remove(&id);
    }

    /// A response reaches the client.
    pub(crate) fn responded(&mut self) {
        self.responses += 1;
    }

    /// A watcher is told something. Nothing is told twice, and nothing is told of what is not there.
    pub(crate) fn told(&mut self, id: WatchId, update: Update, oracle: &Oracle) -> Result<(), Violation> {
        // Of two responses at once the second may take back what the first says.
        let is_sure = self.responses < 2;
        let Some(watcher) = self.all.get_mut(&id) else {
            return Err(Invariant::Notifications.broken("somebody is told who does not watch"));
        };
        let key = watcher.key.clone();
        let broken = |what: &str| Err(Invariant::Notifications.broken(format!("{key}: {what}")));
        match update {
            Update::Changed(resource, provenance) => {
                if is_sure && watcher.value.as_ref().is_some_and(|(before, _)| *before == resource) {
                    return broken("the same value is told twice");
                }
                watcher.value = Some((resource, provenance.server));
                watcher.error = None;
            }
            Update::Confirmed(provenance) => {
                let Some((_, server)) = &mut watcher.value else { return broken("nothing is confirmed") };
                if *server == provenance.server {
                    return broken("a value is confirmed by the server that sent it");
                }
                *server = provenance.server;
                watcher.error = None;
            }
            Update::Failed(error) => {
                let wrong = Some(Wrong::of(&error.kind));
                // Another server was in charge meanwhile: then it is news again.
                let moved = oracle.rules.authority_of(&key).and_then(|authority| oracle.switched_at(authority));
                let same = watcher.value.is_none()
                    && watcher.error == wrong
                    && watcher.blamed == error.server
                    && moved < watcher.since;
                watcher.since = Some(error.at);
                // A server that cannot be reached, for another reason each time, is worth a word; so is each version.
                if same && !matches!(wrong, Some(Wrong::Unreachable | Wrong::Rejected)) {
                    return broken("the same failure is told twice");
                }
                (watcher.value, watcher.error) = (None, wrong);
                watcher.blamed.clone_from(&error.server);
            }
            Update::Ambient(error) => {
                if watcher.value.is_none() {
                    return broken("an error beside a value that is not there");
                }
                let wrong = error.as_ref().map(|error| Wrong::of(&error.kind));
                if wrong.is_none() && watcher.error.is_none() {
                    return broken("an error is called off that was not told");
                }
                watcher.error = wrong;
            }
        }
        Ok(())
    }

    /// What watchers know is what was said.
    pub(crate) fn check(&mut self, oracle: &Oracle) -> Result<(), Violation> {
        self.responses = 0;
        for Watcher { key, value, error, .. } in self.all.values() {
            let Some(authority) = oracle.rules.authority_of(key) else {
                Invariant::Notifications.holds(*error == Some(Wrong::Name) && value.is_none(), || {
                    format!("{key} is nobody's, and its watcher was told {error:?}")
                })?;
                continue;
            };
            let Some(entry) = oracle.entries.get(key) else { continue };
            let held = entry.held.as_ref();
            let same = match (value, held) {
                (None, None) => true,
                (Some((resource, server)), Some(held)) => {
                    *server == oracle.rules.servers[held.plane]
                        && held.told.spec.as_ref().is_none_or(|spec| is_made_of(resource, spec))
                }
                _ => false,
            };
            Invariant::Notifications
                .holds(same, || format!("{key}: a watcher was told {value:?}, and what was said last is {held:?}"))?;
            let expected = match entry.word {
                _ if oracle.is_unreachable(authority) => Some(Wrong::Unreachable),
                Word::Nothing | Word::Good => None,
                Word::Bad { .. } => Some(Wrong::Rejected),
                Word::Gone { .. } => Some(Wrong::Deleted),
                Word::Silence { transient: false, .. } => Some(Wrong::Absent),
                Word::Silence { transient: true, .. } => Some(Wrong::TimedOut),
                Word::Error { code, .. } => Some(Wrong::FromServer(code.into())),
            };
            // That there is none cannot be called off but by a value.
            let is_stuck = value.is_none() && expected.is_none();
            Invariant::Notifications.holds(*error == expected || is_stuck, || {
                format!("{key}: a watcher was told {error:?} last: expected {expected:?}")
            })?;
        }
        Ok(())
    }
}

impl Wrong {
    fn of(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidName(_) | ErrorKind::UnknownAuthority(_) => Self::Name,
            ErrorKind::Unreachable(_) => Self::Unreachable,
            ErrorKind::DoesNotExist { .. } => Self::Absent,
            ErrorKind::TimedOut { .. } => Self::TimedOut,
            ErrorKind::Deleted => Self::Deleted,
            ErrorKind::NeedsDelta => Self::Name, // As little as the name of an unknown authority can it be asked for.
            ErrorKind::Rejected { .. } => Self::Rejected,
            ErrorKind::FromServer { code, .. } => Self::FromServer(*code),
        }
    }
}

/// Whether a parsed resource is what these words say, as far as its mark tells.
fn is_made_of(resource: &Resource, spec: &Spec) -> bool {
    match (resource, spec) {
        (Resource::Listener(listener), Spec::Listener { mark, routes }) => match &**listener {
            Listener::Api(api) => {
                picture::listener_mark(api) == *mark && matches!(&api.routes, RouteSource::Rds(name) if name == routes)
            }
            _ => false,
        },
        (Resource::Listener(listener), Spec::InlineListener { mark, .. }) => match &**listener {
            Listener::Api(api) => picture::listener_mark(api) == *mark,
            _ => false,
        },
        (Resource::RouteConfig(routes), Spec::Routes { mark, .. }) => {
            routes.virtual_hosts.first().is_some_and(|host| host.name.ends_with(&format!(" {mark}")))
        }
        (Resource::Cluster(cluster), Spec::Eds { mark, .. } | Spec::Dns { mark, .. }) => {
            picture::cluster_mark(cluster) == *mark
        }
        (Resource::Cluster(_), Spec::Aggregate { .. })
        | (Resource::Endpoints(_), Spec::Endpoints { .. })
        | (Resource::EndpointCollection(_), Spec::Collection { .. }) => true,
        _ => false,
    }
}
