//! The last-good files of one client.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_channel::mpsc::UnboundedSender;
use mainstay_xds::bootstrap::{Bootstrap, LastGood, ServerConfig};
use mainstay_xds::local::{Age, Expected, LastGoodFile, LocalSet, file_name, servers_digest};
use mainstay_xds::name::{AuthorityKey, ResourceKey};

use super::disk::{self, SystemDisk};
use crate::event::Event;

/// The files of one client, and what is known of them.
pub(crate) struct Store {
    pub(super) settings: LastGood,
    /// Whose they are.
    key: Arc<str>,
    bootstrap: Arc<Bootstrap>,
    events: UnboundedSender<Event>,
    state: Mutex<State>,
    /// Held while a file is written, so that an older one never replaces a newer one.
    writing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// What this process itself had last, by authority: newer than what is on disk, if it is not the same.
    newest: BTreeMap<AuthorityKey, Arc<LastGoodFile>>,
    /// What was read last, as far as it is served.
    served: BTreeMap<AuthorityKey, Arc<LastGoodFile>>,
    /// Whether the last attempt to write failed: it is told once.
    is_failing: bool,
}

impl Store {
    /// None if the bootstrap does not ask for it.
    pub(crate) fn new(bootstrap: &Arc<Bootstrap>, key: Arc<str>, events: UnboundedSender<Event>) -> Option<Arc<Self>> {
        let settings = bootstrap.last_good.clone()?;
        let (bootstrap, state) = (bootstrap.clone(), Mutex::default());
        Some(Arc::new(Self { settings, key, bootstrap, events, state, writing: Mutex::default() }))
    }

    /// What a server that stands for these files has: the files of all authorities that it is a server of. Each that
    /// cannot be used is told.
    ///
    /// # Errors
    /// If there is none at all, with the reasons.
    pub(crate) fn load(&self, server: &ServerConfig) -> Result<LocalSet, String> {
        let mut served = BTreeMap::new();
        let mut refused = Vec::new();
        for authority in self.authorities_of(server) {
            match self.read(&authority) {
                Ok((file, age)) => {
                    let resources = file.resources.len();
                    if let Age::ClockSetBack(_) = age {
                        tracing::warn!(target = %self.key, "last-good resources of {} are {age}", self.key);
                    }
                    let server = server.server_uri.clone();
                    self.tell(Event::LastGoodLoaded { server, resources, age: age.duration() });
                    served.insert(authority, file);
                }
                Err(reason) => refused.push(reason),
            }
        }
        if served.is_empty() {
            return Err(refused.join("; "));
        }
        for reason in refused {
            tracing::warn!(target = %self.key, "last-good resources are not used: {reason}");
        }
        let set = served.values().flat_map(|file| file.resources.iter().cloned()).collect();
        self.state().served = served;
        Ok(set)
    }

    /// The file of an authority, or why there is none.
    fn read(&self, authority: &AuthorityKey) -> Result<(Arc<LastGoodFile>, Age), String> {
        let expected = self.expected(authority);
        let max_age = Some(self.settings.max_age).filter(|_| !self.settings.allow_expired);
        let check =
            |file: &LastGoodFile| file.check(&expected, wall_clock(), max_age).map_err(|error| error.to_string());
        if let Some(newest) = self.state().newest.get(authority).cloned() {
            return check(&newest).map(|age| (newest, age));
        }
        let current = self.path(&expected);
        let mut reasons = Vec::new();
        for path in [disk::previous(&current), current].into_iter().rev() {
            let read = disk::read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
                let said = |reason: String| format!("{}: {reason}", path.display());
                let file = LastGoodFile::decode(&bytes).map_err(|refusal| said(refusal.to_string()))?;
                let age = check(&file).map_err(said)?;
                Ok((Arc::new(file), age))
            });
            match read {
                Ok(read) => return Ok(read),
                Err(reason) => reasons.push(reason),
            }
        }
        // Without a first one there is hardly ever a second, which would say nothing new.
        reasons.dedup_by(|second, _| second.ends_with("there is no such file"));
        reasons.dedup();
        Err(reasons.join("; "))
    }

    /// Takes note of what is to be written next.
    pub(super) fn keep(&self, authority: &AuthorityKey, file: &Arc<LastGoodFile>) {
        self.state().newest.insert(authority.clone(), file.clone());
    }

    /// Writes what is to be written of an authority. It may block.
    pub(super) fn write(&self, authority: &AuthorityKey) {
        let _one_by_one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = self.state().newest.get(authority).cloned() else { return };
        let name = file_name(&self.expected(authority));
        let directory = self.settings.directory.display().to_string();
        let written = disk::replace(&SystemDisk, &self.settings.directory, &name, &file.encode());
        let was_failing = std::mem::replace(&mut self.state().is_failing, written.is_err());
        match written {
            Ok(()) => self.tell(Event::LastGoodWritten { directory, resources: file.resources.len() }),
            Err(error) if !was_failing => {
                tracing::warn!(target = %self.key, "last-good resources cannot be kept: {error}");
                self.tell(Event::LastGoodFailed { directory, cause: error.to_string() });
            }
            Err(_) => {}
        }
    }

    pub(super) fn expected(&self, authority: &AuthorityKey) -> Expected {
        let servers = self.bootstrap.servers_of(authority).map_or(&[][..], |(servers, _)| servers);
        Expected {
            key: self.key.to_string(),
            authority: LastGoodFile::authority_text(authority),
            node_id: self.bootstrap.node.id.clone(),
            servers: servers_digest(servers),
        }
    }

    /// Since when the content is known to be good that is served, or that would be, for metrics.
    pub(crate) fn created_at(&self) -> Option<Duration> {
        let state = self.state();
        let files = if state.served.is_empty() { &state.newest } else { &state.served };
        files.values().map(|file| file.created_at).min()
    }

    /// When a resource that is served from a file came from its server.
    pub(crate) fn received_at(&self, resource: &ResourceKey) -> Option<SystemTime> {
        let state = self.state();
        let mut stored = state.served.values().flat_map(|file| &file.resources);
        let received_at = stored.find(|stored| stored.resource == *resource)?.received_at;
        Some(SystemTime::UNIX_EPOCH + received_at)
    }

    /// How old what is served is, for people.
    pub(crate) fn age(&self) -> Option<Age> {
        let state = self.state();
        let oldest = state.served.values().min_by_key(|file| file.created_at)?;
        Some(oldest.age(wall_clock()))
    }

    /// The files are left for a server that has answered.
    pub(crate) fn left(&self) {
        self.state().served.clear();
    }

    fn authorities_of(&self, server: &ServerConfig) -> Vec<AuthorityKey> {
        let named = self.bootstrap.authorities.keys().map(|name| AuthorityKey::Named(name.as_str().into()));
        let has_it = |authority: &AuthorityKey| {
            let servers = self.bootstrap.servers_of(authority).map_or(&[][..], |(servers, _)| servers);
            servers.last().is_some_and(|last| **last == *server)
        };
        [AuthorityKey::TopLevel].into_iter().chain(named).filter(has_it).collect()
    }

    fn path(&self, expected: &Expected) -> PathBuf {
        self.settings.directory.join(file_name(expected))
    }

    /// Whoever listened may be gone.
    fn tell(&self, event: Event) {
        let _ = self.events.unbounded_send(event);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time since 1970.
pub(super) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
