//! The reference model: what a client should be doing, written as plainly as possible, beside the real one.
//!
//! It hears of everything that passes between the client and the world, and keeps only what the rules speak of. It
//! decides nothing for the client: after each step it compares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{ClientSettings, ErrorKind, Report, ResourceState, ResourceStatus, StreamId};
use mainstay_xds::deps::{ConfigError, XdsConfig};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::ResourceType;

use crate::invariant::{Invariant, Violation};
use crate::plane::Response;
use crate::scenario::Scenario;
use crate::truth::{Told, Truth};

mod config;
mod wire;

use config::ConfigModel;
use wire::{Listed, Stream};

/// What is known of the client from outside.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    rules: Arc<Rules>,
    servers: Vec<Server>,
    authorities: BTreeMap<AuthorityKey, Authority>,
    streams: BTreeMap<StreamId, Stream>,
    /// What the client must hold: every resource that it watches, or that a server believes it watches (P-95).
    cache: BTreeMap<ResourceKey, Entry>,
    /// What was uncached after the last step, by authority.
    uncached: BTreeSet<AuthorityKey>,
    /// Authorities that fell back in this step.
    fell_back: BTreeSet<AuthorityKey>,
    /// Authorities whose recovery must be reported in this step.
    to_recover: BTreeSet<AuthorityKey>,
    config: ConfigModel,
}

/// What never changes.
#[derive(Debug)]
struct Rules {
    bootstrap: Arc<Bootstrap>,
    servers: Vec<Arc<ServerConfig>>,
    settings: ClientSettings,
}

/// One server, from the client's side.
#[derive(Clone, Debug, Default)]
struct Server {
    attempt: Option<StreamId>,
    /// When the next attempt may begin at the earliest, and must at the latest.
    next: Option<(Time, Time)>,
    /// Known to be down (C-31).
    outage: bool,
    failures: u32,
    ends: u32,
    /// The version of each type that was taken from it (P-32).
    versions: BTreeMap<ResourceType, Arc<str>>,
}

/// The servers of an authority, most preferred first.
#[derive(Clone, Debug)]
struct Authority {
    servers: Vec<usize>,
    reachability_only: bool,
    /// Place of the server in charge; `None`: nothing is watched.
    active: Option<usize>,
    active_since: Time,
}

/// What the client must know of a resource.
#[derive(Clone, Debug, Default)]
struct Entry {
    watched: bool,
    /// The value and the server it came from.
    held: Option<(Arc<Told>, usize)>,
    /// The watcher was told that there is none, and has heard nothing better since.
    failed: bool,
    /// The last word about it was an error.
    error: bool,
}

/// What the client shows after a step.
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) dump: &'a [ResourceStatus],
    pub(crate) config: Option<Result<&'a Arc<XdsConfig>, &'a Arc<ConfigError>>>,
}

// === impl Model ===

impl Model {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let bootstrap = &scenario.bootstrap;
        let named = bootstrap.authorities.keys().map(|name| AuthorityKey::Named(name.as_str().into()));
        let authority = |key: AuthorityKey| {
            let (servers, reachability_only) = bootstrap.servers_of(&key)?;
            let servers = servers.iter().filter_map(|server| scenario.plane_of(server)).collect();
            let authority = Authority { servers, reachability_only, active: None, active_since: Time::ZERO };
            Some((key, authority))
        };
        let rules = Rules {
            bootstrap: bootstrap.clone(),
            servers: scenario.planes.iter().map(|plane| plane.server.clone()).collect(),
            settings: scenario.client.clone(),
        };
        Self {
            rules: Arc::new(rules),
            servers: vec![Server::default(); scenario.planes.len()],
            authorities: named.chain([AuthorityKey::TopLevel]).filter_map(authority).collect(),
            streams: BTreeMap::new(),
            cache: BTreeMap::new(),
            uncached: BTreeSet::new(),
            fell_back: BTreeSet::new(),
            to_recover: BTreeSet::new(),
            config: ConfigModel::new(scenario),
        }
    }

    fn uri(&self, server: usize) -> &str {
        &self.rules.servers[server].server_uri
    }

    fn server_index(&self, server: &ServerConfig) -> Option<usize> {
        self.rules.servers.iter().position(|known| **known == *server)
    }

    // --- Attempts ---

    /// The client begins an attempt.
    pub(crate) fn open(&mut self, now: Time, server: usize, stream: StreamId) -> Result<(), Violation> {
        let uri = self.uri(server).to_owned();
        let state = &mut self.servers[server];
        Invariant::Attempts.holds(state.attempt.is_none(), || format!("a second attempt at {uri}"))?;
        if let Some((earliest, latest)) = state.next.take() {
            Invariant::Backoff.holds(earliest <= now && now <= latest, || {
                format!("an attempt at {uri} at {now:?}: expected between {earliest:?} and {latest:?}")
            })?;
        }
        state.attempt = Some(stream);
        self.streams.insert(stream, Stream::new(server));
        Ok(())
    }

    /// The connection is there and the stream is open.
    pub(crate) fn opened(&mut self, now: Time, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.opened = Some(now);
        }
    }

    /// The world ends an attempt.
    pub(crate) fn lost(&mut self, now: Time, stream: StreamId) -> Result<(), Violation> {
        let Some(Stream { server, opened, answered, .. }) = self.streams.remove(&stream) else { return Ok(()) };
        self.servers[server].attempt = None;
        match opened.filter(|_| answered) {
            Some(opened) => self.ended(now, server, now.since(opened)),
            None => self.failed(now, server),
        }
        Ok(())
    }

    /// The client ends an attempt: nobody needs the server, or it was silent for too long.
    pub(crate) fn close(&mut self, now: Time, stream: StreamId) -> Result<(), Violation> {
        let Some(Stream { server, opened, answered, .. }) = self.streams.remove(&stream) else {
            return Err(Invariant::Attempts.broken("a stream was closed that was not open"));
        };
        self.servers[server].attempt = None;
        let silent = self.rules.settings.silent_stream_timeout;
        if !answered && silent.is_some() && opened.map(|at| now.since(at)) == silent {
            self.failed(now, server);
        }
        Ok(())
    }

    fn failed(&mut self, now: Time, server: usize) {
        let pause = self.pause(self.servers[server].failures);
        let server = &mut self.servers[server];
        server.failures += 1;
        server.outage = true;
        server.next = Some(around(now, pause));
    }

    fn ended(&mut self, now: Time, server: usize, lived: Duration) {
        let pause = self.servers[server].ends.checked_sub(1).map(|ends| self.pause(ends));
        let server = &mut self.servers[server];
        server.next = Some(match pause {
            Some(pause) if lived < pause => {
                server.ends += 1;
                around(now, pause)
            }
            _ => {
                server.ends = 1;
                (now, now)
            }
        });
    }

    /// The pause after so many failures, without jitter (P-19).
    fn pause(&self, failures: u32) -> Duration {
        let ClientSettings { backoff_base, backoff_max, .. } = &self.rules.settings;
        let factor = 1.6f64.powi(i32::try_from(failures.min(100)).unwrap_or(100));
        Duration::from_secs_f64((backoff_base.as_secs_f64() * factor).min(backoff_max.as_secs_f64()))
    }

    /// Every server in use is being tried; no other is.
    fn check_attempts(&mut self, now: Time) -> Result<(), Violation> {
        for index in 0..self.servers.len() {
            let uri = self.rules.servers[index].server_uri.clone();
            let in_use = self.in_use(index);
            let server = &mut self.servers[index];
            if !in_use {
                let idle = server.attempt.is_none();
                Invariant::Attempts.holds(idle, || format!("{uri} is not in use and has a stream"))?;
                *server = Server::default();
                continue;
            }
            let waits = server.next.is_some_and(|(_, latest)| now <= latest);
            Invariant::Attempts.holds(server.attempt.is_some() || waits, || {
                format!("{uri} is in use, has no stream, and its next attempt is overdue or not planned")
            })?;
        }
        Ok(())
    }

    // --- Authorities ---

    fn authority_of(&self, key: &ResourceKey) -> Option<(&AuthorityKey, &Authority)> {
        let federation = self.rules.bootstrap.guards.federation;
        if !federation || !key.name.starts_with("xdstp:") {
            return self.authorities.get_key_value(&AuthorityKey::TopLevel); // Most are, and parsing costs.
        }
        let (_, authority) = ResourceKey::parse(key.resource_type, &key.name, federation).ok()?;
        self.authorities.get_key_value(&authority)
    }

    /// The server in charge of a resource.
    fn in_charge(&self, key: &ResourceKey) -> Option<usize> {
        self.authority_of(key)?.1.in_charge()
    }

    fn in_use(&self, server: usize) -> bool {
        self.authorities.values().any(|authority| authority.in_use().contains(&server))
    }

    /// The client reports something.
    pub(crate) fn report(&mut self, now: Time, report: &Report) -> Result<(), Violation> {
        match report {
            Report::FellBack(key, server) => self.fell_back(now, key, server),
            Report::Recovered(key, server) => {
                let expected = self.to_recover.remove(key);
                let in_charge = self.authorities.get(key).and_then(Authority::in_charge);
                Invariant::Recovery.holds(expected && in_charge == self.server_index(server), || {
                    format!("{key} returned to {}, which has sent nothing of use in this step", server.server_uri)
                })
            }
            Report::TimedOut(server, key) => self.timed_out(now, server, key),
            _ => Ok(()),
        }
    }

    fn fell_back(&mut self, now: Time, key: &AuthorityKey, server: &ServerConfig) -> Result<(), Violation> {
        let index = self.server_index(server);
        let Some(authority) = self.authorities.get_mut(key) else {
            return Err(Invariant::Fallback.broken(format!("{key} is not in the bootstrap and fell back")));
        };
        let before = authority.active.unwrap_or(0);
        let place = authority.servers.iter().position(|known| Some(*known) == index).unwrap_or(0);
        let down = authority.servers[before.min(place)..place].iter().all(|server| self.servers[*server].outage);
        Invariant::Fallback.holds(place > before && down, || {
            format!("{key} fell back to {}, and a better server is not down", server.server_uri)
        })?;
        authority.active = Some(place);
        authority.active_since = now;
        self.config.switched(now, key);
        self.fell_back.insert(key.clone());
        Ok(())
    }

    /// Fallback as A71 and A95 allow, and always when they require.
    fn check_authorities(&mut self, view: &View<'_>) -> Result<(), Violation> {
        let mut uncached = BTreeSet::new();
        let mut watched = BTreeSet::new();
        for status in view.dump {
            let Some((key, _)) = self.authority_of(&status.resource) else { continue };
            let key = key.clone();
            if is_uncached(status) {
                uncached.insert(key.clone());
            }
            watched.insert(key);
        }
        for (key, authority) in &mut self.authorities {
            match (watched.contains(key), authority.active) {
                (true, None) => {
                    authority.active = Some(0);
                    authority.active_since = view.now;
                    self.config.switched(view.now, key);
                }
                (false, _) => authority.active = None,
                (true, Some(_)) => {}
            }
            let missing = uncached.contains(key) || self.uncached.contains(key);
            Invariant::Fallback
                .holds(!self.fell_back.contains(key) || authority.reachability_only || missing, || {
                    format!("{key} fell back although everything is cached (C-40)")
                })?;
            let down = authority.in_charge().is_some_and(|server| self.servers[server].outage);
            let has_next = authority.active.is_some_and(|place| place + 1 < authority.servers.len());
            let due = authority.reachability_only || uncached.contains(key);
            Invariant::Fallback.holds(!(down && has_next && due), || {
                format!("{key}: the server in charge is down and something is missing, and the next one is not asked")
            })?;
        }
        let late = self.to_recover.pop_first();
        Invariant::Recovery.holds(late.is_none(), || format!("{late:?} did not return to a better server"))?;
        self.fell_back.clear();
        self.uncached = uncached;
        Ok(())
    }

    // --- The cache ---

    /// A response reaches the client, on a stream that it has open.
    pub(crate) fn delivered(&mut self, now: Time, stream: StreamId, response: &Response) -> Result<(), Violation> {
        let Some(server) = self.streams.get(&stream).map(|stream| stream.server) else { return Ok(()) };
        let resource_type = response.resource_type;
        let state = &mut self.servers[server];
        state.outage = false;
        state.failures = 0;
        let faulty: Vec<_> = response.faulty().map(|told| told.key.name.clone()).collect();
        let of_use = |told: &&Arc<Told>| told.value.is_some() && self.cache.contains_key(&told.key);
        let valid = faulty.is_empty() || response.resources.iter().any(|told| of_use(&told));
        if valid {
            self.recover(now, server);
            self.forget_above(server, resource_type);
        }
        self.take_in(server, stream, response);
        let state = &mut self.servers[server];
        if faulty.is_empty() {
            state.versions.insert(resource_type, response.version.clone());
        }
        let version = state.versions.get(&resource_type).cloned().unwrap_or_default();
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.delivered(response, version, faulty);
        }
        Ok(())
    }

    /// A valid response puts a server in charge of every authority that fell back below it (C-49).
    fn recover(&mut self, now: Time, server: usize) {
        for (key, authority) in &mut self.authorities {
            let place = authority.servers.iter().position(|known| *known == server);
            if let (Some(place), Some(active)) = (place, authority.active)
                && place < active
            {
                authority.active = Some(place);
                authority.active_since = now;
                self.config.switched(now, key);
                self.to_recover.insert(key.clone());
            }
        }
        // What is released now and needed again in the same moment starts afresh.
        for index in (0..self.servers.len()).filter(|index| !self.in_use(*index)).collect::<Vec<_>>() {
            let attempt = self.servers[index].attempt;
            self.servers[index] = Server { attempt, ..Server::default() };
        }
    }

    /// Servers above the one in charge must send what it has overwritten once more.
    fn forget_above(&mut self, server: usize, resource_type: ResourceType) {
        for authority in self.authorities.values().filter(|authority| authority.in_charge() == Some(server)) {
            for above in authority.in_use().iter().filter(|above| **above != server) {
                self.servers[*above].versions.remove(&resource_type);
            }
        }
    }

    fn take_in(&mut self, server: usize, stream: StreamId, response: &Response) {
        let drops =
            self.rules.bootstrap.guards.data_error_handling && self.rules.servers[server].features.fail_on_data_errors;
        let mut cache = std::mem::take(&mut self.cache);
        for (key, entry) in &mut cache {
            if key.resource_type != response.resource_type || self.in_charge(key) != Some(server) {
                continue;
            }
            let told = response.resources.iter().find(|told| told.key == *key);
            let errored = response.errors.contains(&key.name);
            match told {
                Some(told) if told.value.is_some() => {
                    if let Some((_, owner)) = entry.held.as_ref().filter(|(_, owner)| *owner != server) {
                        self.servers[*owner].versions.remove(&key.resource_type); // It must send it again.
                    }
                    *entry = Entry { held: Some((told.clone(), server)), error: false, ..entry.clone() };
                }
                _ if told.is_some() || errored || self.is_deleted(key, entry, server, stream) => {
                    entry.error = true;
                    if drops && let Some((_, owner)) = entry.held.take() {
                        self.servers[owner].versions.remove(&key.resource_type); // It must send it again.
                    }
                }
                _ => {}
            }
        }
        self.cache = cache;
    }

    /// Whether the absence of a resource from a response means that it is deleted (P-49, P-50, C-52).
    fn is_deleted(&self, key: &ResourceKey, entry: &Entry, server: usize, stream: StreamId) -> bool {
        let Some((_, from)) = &entry.held else { return false };
        let asked = self.streams.get(&stream).and_then(|stream| stream.listed(key));
        key.resource_type.full_state() && (*from == server || asked.is_some_and(|listed| *listed != Listed::Sending))
    }

    fn check_cache(&mut self, view: &View<'_>) -> Result<(), Violation> {
        for entry in self.cache.values_mut() {
            entry.watched = false;
        }
        for status in view.dump {
            let key = &status.resource;
            let down = self.in_charge(key).is_some_and(|server| self.servers[server].outage);
            let entry = self.cache.entry(key.clone()).or_default();
            entry.watched = true;
            let held = status.value.as_ref().map(|value| (&value.bytes, &value.provenance.server));
            let expected = entry.held.as_ref().map(|(told, server)| (&told.bytes, &self.rules.servers[*server]));
            if held != expected {
                let tell = |held: Option<(&bytes::Bytes, &Arc<ServerConfig>)>| match held {
                    Some((bytes, server)) => format!("{} bytes from {}", bytes.len(), server.server_uri),
                    None => "nothing".to_owned(),
                };
                let text = format!("{key}: the client has {}: expected {}", tell(held), tell(expected));
                return Err(Invariant::Cache.broken(text));
            }
            if entry.held.is_some() {
                entry.failed = false;
            } else if down || status.error.is_some() {
                entry.failed = true;
            }
            let good = entry.held.is_some() && !entry.error;
            Invariant::Ambient.holds(!good || status.state == ResourceState::Acked, || {
                format!("{key}: the last word of the server was good, and its state is {:?}", status.state)
            })?;
        }
        let streams = &self.streams;
        self.cache.retain(|key, entry| {
            entry.failed &= entry.watched;
            entry.watched || streams.values().any(|stream| stream.listed(key).is_some())
        });
        Ok(())
    }

    // --- The does-not-exist timer ---

    /// How long a resource may be missing on a server (P-56).
    fn patience(&self, server: usize) -> Duration {
        let transient = self.rules.servers[server].features.resource_timer_is_transient_error;
        if transient && self.rules.bootstrap.guards.data_error_handling {
            self.rules.settings.transient_resource_timeout
        } else {
            self.rules.settings.resource_timeout
        }
    }

    fn timed_out(&mut self, now: Time, server: &ServerConfig, key: &ResourceKey) -> Result<(), Violation> {
        let index = self.server_index(server).unwrap_or(usize::MAX);
        let stream = self.streams.values_mut().find(|stream| stream.server == index);
        let listed = stream.and_then(|stream| stream.listed_mut(key));
        let since = match listed {
            Some(Listed::Since(since)) => Some(*since),
            _ => None,
        };
        if let Some(listed) = listed {
            *listed = Listed::Settled;
        }
        let waited = since.map(|since| now.since(since));
        let uri = &server.server_uri;
        Invariant::Absence.holds(waited.is_some_and(|waited| waited >= self.patience(index)), || {
            format!("{key} timed out on {uri}, where it was asked for {waited:?} ago on a live stream")
        })?;
        let entry = self.cache.entry(key.clone()).or_default();
        Invariant::Absence.holds(entry.held.is_none(), || format!("{key} timed out on {uri} over data"))?;
        entry.error = true;
        Ok(())
    }

    /// What a server in charge has not sent in time is known to be missing.
    fn check_absence(&self, view: &View<'_>) -> Result<(), Violation> {
        for status in view.dump.iter().filter(|status| status.state == ResourceState::Requested) {
            let key = &status.resource;
            let Some((_, authority)) = self.authority_of(key) else { continue };
            let Some(server) = authority.in_charge() else { continue };
            let stream = self.streams.values().find(|stream| stream.server == server);
            let Some(Listed::Since(since)) = stream.and_then(|stream| stream.listed(key)) else { continue };
            // A timer that runs out while the server is not in charge runs once more.
            let waited = view.now.since((*since).max(authority.active_since));
            Invariant::Absence.holds(waited <= self.patience(server), || {
                format!("{key} was asked for on {} {waited:?} ago and is still awaited", self.uri(server))
            })?;
        }
        Ok(())
    }

    // --- After a step ---

    /// Compares.
    pub(crate) fn check(&mut self, view: &View<'_>) -> Result<(), Violation> {
        self.check_authorities(view)?;
        self.check_attempts(view.now)?;
        self.check_cache(view)?;
        self.check_names()?;
        self.check_absence(view)?;
        self.check_config(view)
    }

    /// Once everything works, all must be as the first server of each authority says.
    pub(crate) fn check_converged(&self, truths: &[Arc<Truth>]) -> Result<(), Violation> {
        for (key, entry) in self.cache.iter().filter(|(_, entry)| entry.watched) {
            let Some((name, authority)) = self.authority_of(key) else { continue };
            let Some(&first) = authority.servers.first() else { continue };
            let says_something = |key: &ResourceKey| {
                let of_authority = self.authority_of(key).is_some_and(|(other, _)| other == name);
                of_authority && truths[first].resources.get(key).is_some_and(|told| told.value.is_some())
            };
            let watched = self.cache.iter().filter(|(_, entry)| entry.watched);
            if !watched.map(|(key, _)| key).any(says_something) {
                continue; // It has nothing of use to say, so nothing can come back.
            }
            let uri = self.uri(first);
            Invariant::Convergence.holds(authority.active == Some(0), || {
                format!("{name} did not return to {uri}, which works and has something to say")
            })?;
            let Some(told) = truths[first].resources.get(key).filter(|told| told.value.is_some()) else { continue };
            Invariant::Convergence.holds(entry.held.as_ref() == Some(&(told.clone(), first)), || {
                format!("{key} is not what {uri} says")
            })?;
        }
        Ok(())
    }
}

// === impl Authority ===

impl Authority {
    fn in_charge(&self) -> Option<usize> {
        self.servers.get(self.active?).copied()
    }

    fn in_use(&self) -> &[usize] {
        self.active.and_then(|active| self.servers.get(..=active)).unwrap_or_default()
    }
}

/// Whether a watcher waits for a resource of which nothing is known (C-41, as the design decides it).
fn is_uncached(status: &ResourceStatus) -> bool {
    let not_found = |kind: &ErrorKind| matches!(kind, ErrorKind::FromServer { code: 5, .. });
    status.value.is_none()
        && status.state != ResourceState::DoesNotExist
        && !status.error.as_ref().is_some_and(|error| not_found(&error.kind))
}

/// A fifth to either side (P-19), and a little for rounding.
fn around(now: Time, pause: Duration) -> (Time, Time) {
    let rounding = Duration::from_millis(2);
    (now + pause.mul_f64(0.8) - rounding, now + pause.mul_f64(1.2) + rounding)
}
