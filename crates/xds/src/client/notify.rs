//! What watchers are told.
//!
//! Nothing is queued for a watcher. It is only noted that there may be news, and what to say is
//! found when it is asked for: the difference between what the watcher was told last and what
//! stands now. So news coalesce, nothing is told twice, and an error that is over is always
//! called off, whatever ended it.

use std::sync::Arc;

use super::authority::Unreachable;
use super::cache::Entry;
use super::{ErrorKind, ResourceError, ServerId, Update, WatchId, XdsClient};
use crate::name::ResourceKey;

/// One watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watch {
    /// Of a resource.
    Of(ResourceKey, Told),
    /// Of a name that cannot be used (C-8). It never causes traffic.
    Unusable { error: Arc<ResourceError>, told: bool },
}

/// What a watcher was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Told {
    /// The value that it may use: its generation, and the server that confirmed it last.
    value: Option<(u64, ServerId)>,
    /// What is wrong.
    error: Option<Arc<ResourceError>>,
}

impl XdsClient {
    /// The next thing to tell, and to whom.
    pub(super) fn next_update(&mut self) -> Option<(WatchId, Update)> {
        while let Some(&watch) = self.news.first() {
            if let Some(update) = self.update_for(watch) {
                return Some((watch, update)); // Perhaps not all: it stays among those with news.
            }
            self.news.remove(&watch);
        }
        None
    }

    fn update_for(&mut self, watch: WatchId) -> Option<Update> {
        match self.watches.get_mut(&watch)? {
            Watch::Unusable { error, told } => {
                (!std::mem::replace(told, true)).then(|| Update::Failed(Arc::clone(error)))
            }
            Watch::Of(key, told) => {
                let entry = self.cache.get(key.resource_type, &key.name)?;
                // An unreachable server is the latest news: whatever the server said, it said before.
                let error = match &self.authorities[entry.authority.0].unreachable {
                    Some(unreachable) => Some(Arc::new(unreachable.error_for(key, &self.node_id))),
                    None => entry.cached.error().cloned(),
                };
                told.next(entry, error)
            }
        }
    }
}

impl Told {
    /// The next step from what was told to what stands now (C-11, C-13).
    fn next(&mut self, entry: &Entry, error: Option<Arc<ResourceError>>) -> Option<Update> {
        let Some(held) = entry.cached.held() else {
            if error.is_none() || (self.value.is_none() && self.error == error) {
                return None;
            }
            *self = Self { value: None, error: error.clone() };
            return error.map(Update::Failed);
        };
        let value = (entry.generation, held.server);
        if self.value != Some(value) {
            let same = self.value.is_some_and(|(generation, _)| generation == entry.generation);
            *self = Self { value: Some(value), error: None };
            let provenance = held.provenance.clone();
            return Some(if same {
                Update::Confirmed(provenance)
            } else {
                Update::Changed(held.resource.clone(), provenance)
            });
        }
        if self.error == error {
            return None;
        }
        self.error.clone_from(&error);
        Some(Update::Ambient(error))
    }
}

impl Unreachable {
    fn error_for(&self, resource: &ResourceKey, node_id: &Arc<str>) -> ResourceError {
        ResourceError {
            resource: resource.clone(),
            server: Some(self.server.clone()),
            node_id: node_id.clone(),
            kind: ErrorKind::Unreachable(self.cause.to_string()),
            at: self.since,
        }
    }
}
