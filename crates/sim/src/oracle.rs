//! The oracle: what a client promises, judged from outside.
//!
//! It knows the truth of the world: what each control plane holds, when it could be reached, and every word that passed
//! between it and the client. It runs no rules of the client beside the client. It keeps a record of what was said
//! ([`record`]), and judges by it and by the truth:
//!
//! - what passes over the wire, as the server sees it ([`wire`]), and when it is called ([`attempts`]);
//! - at once: that nothing is believed which nobody said, and that what was said is believed;
//! - as soon as nothing is under way: that what is believed is what the server in charge really has, and that this is
//!   the right server;
//! - in time: that a server that is dead, hung or mute is left within a bound, and that only a live one is believed to
//!   lack something.
//!
//! What follows for RPCs is in [`config`](crate::oracle::config), made naively from the words of which resources are made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::{Guards, ServerConfig};
use mainstay_xds::client::{ClientSettings, Report, ResourceStatus, ServerState, ServerStatus, StreamId};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::ResourceType;

use crate::invariant::{Invariant, Violation};
use crate::scenario::Scenario;
use crate::truth::Truth;

mod attempts;
pub(crate) mod config;
mod delta;
mod lookups;
pub(crate) mod picture;
mod record;
pub(crate) mod watchers;
mod wire;

pub(crate) use record::{Entry, Known, Word};

use attempts::PlaneView;
use wire::StreamView;

/// What one client was told, said and did.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    pub(crate) rules: Arc<Rules>,
    planes: Vec<PlaneView>,
    streams: BTreeMap<StreamId, StreamView>,
    /// The authorities in use.
    charges: BTreeMap<AuthorityKey, Charge>,
    /// What was said of each resource that is watched, or that a server believes to be watched.
    pub(crate) entries: BTreeMap<ResourceKey, Entry>,
    /// Whether entries changed since somebody looked.
    pub(crate) changed: bool,
    /// When our process last went on after it had been stopped, and when it did before that.
    woke: Option<Time>,
    woke_before: Option<Time>,
    /// Whether it has not yet had the time to do what was due meanwhile.
    asleep: bool,
    /// Authorities of which another server is in charge since this step.
    moved: BTreeSet<AuthorityKey>,
    /// What must be told of deletions that are ignored.
    deletions: Deletions,
    /// Messages that make no sense, of which nothing was told yet.
    nonsense: u32,
}

/// Deletions that are not heeded (A53): what is to be told of them, and was.
#[derive(Clone, Debug, Default)]
struct Deletions {
    /// Resources that a server took away, and that stay in use. Whether that has to be told by now.
    begun: BTreeMap<ResourceKey, bool>,
    /// Those of which it was told.
    told: BTreeSet<ResourceKey>,
    /// Those that are back.
    over: BTreeSet<ResourceKey>,
    /// Those that are said to be over without being back: nobody may want them any more.
    let_go: BTreeSet<ResourceKey>,
}

/// What never changes.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) servers: Vec<Arc<ServerConfig>>,
    /// The servers of each authority, most preferred first, and whether A95's knob is set.
    authorities: BTreeMap<AuthorityKey, (Vec<usize>, bool)>,
    pub(crate) guards: Guards,
    settings: ClientSettings,
}

/// Which server an authority goes by.
#[derive(Clone, Debug)]
struct Charge {
    /// Its rank in the list of the authority.
    rank: usize,
    since: Time,
}

/// A link to a control plane, as it really is.
#[derive(Clone, Debug)]
pub(crate) struct Seen<'a> {
    /// What the control plane has; `None` if it or the way to it does not work.
    pub(crate) truth: Option<&'a Truth>,
    /// What it has forgotten that it was asked for.
    pub(crate) deaf: BTreeSet<ResourceKey>,
}

/// What the client shows after a step.
pub(crate) struct View<'a> {
    pub(crate) now: Time,
    pub(crate) dump: &'a [ResourceStatus],
    pub(crate) servers: &'a [ServerStatus],
    /// The streams through which nothing is under way, and what is at their other end.
    pub(crate) quiet: &'a BTreeMap<StreamId, Seen<'a>>,
}

impl Rules {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let bootstrap = &scenario.bootstrap;
        let plane_of = |server: &Arc<ServerConfig>| scenario.plane_of(server);
        let usable = |servers: &[Arc<ServerConfig>]| -> Vec<usize> {
            let mut planes: Vec<usize> = Vec::new();
            for plane in servers.iter().filter_map(plane_of) {
                if !planes.contains(&plane) {
                    planes.push(plane);
                }
            }
            planes.truncate(if bootstrap.guards.fallback { planes.len() } else { 1 });
            planes
        };
        let mut authorities = BTreeMap::from([(AuthorityKey::TopLevel, (usable(&bootstrap.servers), false))]);
        for (name, authority) in &bootstrap.authorities {
            let servers = if authority.servers.is_empty() { &bootstrap.servers } else { &authority.servers };
            let knob = authority.fallback_on_reachability_only && bootstrap.guards.endpoint_fallback;
            authorities.insert(AuthorityKey::Named(name.as_str().into()), (usable(servers), knob));
        }
        Self {
            servers: scenario.planes.iter().map(|plane| plane.server.clone()).collect(),
            authorities,
            guards: bootstrap.guards,
            settings: scenario.client.clone(),
        }
    }

    /// Whose a resource is; `None` if nobody's.
    pub(crate) fn authority_of(&self, key: &ResourceKey) -> Option<&AuthorityKey> {
        let named = key.name.strip_prefix("xdstp://").filter(|_| self.guards.federation);
        let authority = match named.and_then(|rest| rest.split_once('/')) {
            Some((name, _)) => AuthorityKey::Named(name.into()),
            None => AuthorityKey::TopLevel,
        };
        self.authorities.get_key_value(&authority).map(|(key, _)| key)
    }

    /// The servers of an authority.
    pub(crate) fn authority_servers(&self, authority: &AuthorityKey) -> impl Iterator<Item = &Arc<ServerConfig>> {
        self.servers_of(authority).iter().map(|plane| &self.servers[*plane])
    }

    fn uri(&self, plane: usize) -> &str {
        &self.servers[plane].server_uri
    }

    fn plane(&self, server: &ServerConfig) -> Option<usize> {
        self.servers.iter().position(|known| known.server_uri == server.server_uri)
    }

    fn servers_of(&self, authority: &AuthorityKey) -> &[usize] {
        self.authorities.get(authority).map_or(&[], |(servers, _)| servers)
    }

    fn falls_back_on_loss(&self, authority: &AuthorityKey) -> bool {
        self.authorities.get(authority).is_some_and(|(_, knob)| *knob)
    }

    /// How long a resource may be missing on a server (P-56).
    fn patience(&self, plane: usize) -> Duration {
        match self.is_transient_timer(plane) {
            true => self.settings.transient_resource_timeout,
            false => self.settings.resource_timeout,
        }
    }

    fn is_transient_timer(&self, plane: usize) -> bool {
        self.guards.data_error_handling && self.servers[plane].features.resource_timer_is_transient_error
    }

    /// Whether a data error of this server takes away what we have (A88; the rule before it for deletions).
    fn drops_data(&self, plane: usize) -> bool {
        self.guards.data_error_handling && self.servers[plane].features.fail_on_data_errors
    }
}

impl Oracle {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        Self {
            planes: vec![PlaneView::default(); rules.servers.len()],
            rules,
            streams: BTreeMap::new(),
            charges: BTreeMap::new(),
            entries: BTreeMap::new(),
            changed: false,
            woke: None,
            woke_before: None,
            moved: BTreeSet::new(),
            asleep: false,
            deletions: Deletions::default(),
            nonsense: 0,
        }
    }

    /// Our process was stopped and goes on.
    pub(crate) fn woke(&mut self, now: Time) {
        self.woke_before = self.woke.replace(now);
        self.asleep = true;
    }

    /// Whether our process has not yet had the time to do what was due while it was stopped.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// What is due is done.
    pub(crate) fn timers_ran(&mut self) {
        self.asleep = false;
    }

    // --- Who is in charge ---

    pub(crate) fn in_charge(&self, authority: &AuthorityKey) -> Option<usize> {
        let rank = self.charges.get(authority)?.rank;
        self.rules.servers_of(authority).get(rank).copied()
    }

    /// The server in charge of each authority in use.
    pub(crate) fn all_in_charge(&self) -> impl Iterator<Item = (&AuthorityKey, &Arc<ServerConfig>)> {
        let server = |authority| self.in_charge(authority).map(|plane| (authority, &self.rules.servers[plane]));
        self.charges.keys().filter_map(server)
    }

    fn in_charge_of(&self, key: &ResourceKey) -> Option<usize> {
        self.in_charge(self.rules.authority_of(key)?)
    }

    /// Whether the server in charge of an authority is known to be down.
    pub(crate) fn is_unreachable(&self, authority: &AuthorityKey) -> bool {
        self.in_charge(authority).is_some_and(|plane| self.planes[plane].down)
    }

    /// When the charge of an authority moved last.
    pub(crate) fn switched_at(&self, authority: &AuthorityKey) -> Option<Time> {
        self.charges.get(authority).map(|charge| charge.since)
    }

    fn is_in_use(&self, plane: usize) -> bool {
        self.charges.iter().any(|(authority, charge)| self.rules.servers_of(authority)[..=charge.rank].contains(&plane))
    }

    /// Whether another server is next in line for an authority that uses this one.
    fn has_next(&self, plane: usize) -> bool {
        self.charges.iter().any(|(authority, charge)| {
            let servers = self.rules.servers_of(authority);
            servers[..=charge.rank].contains(&plane) && servers.last() != Some(&plane)
        })
    }

    /// Whether something of an authority is awaited: watched, without a value, and not known to be absent.
    fn lacks_something(&self, authority: &AuthorityKey) -> bool {
        self.entries
            .iter()
            .any(|(key, entry)| entry.watched && entry.is_uncached() && self.rules.authority_of(key) == Some(authority))
    }

    fn fell_back(&mut self, now: Time, authority: &AuthorityKey, server: &ServerConfig) -> Result<(), Violation> {
        let servers = self.rules.servers_of(authority);
        let before = self.charges.get(authority).map_or(0, |charge| charge.rank);
        let rank = servers.iter().position(|plane| self.rules.plane(server) == Some(*plane)).unwrap_or(0);
        let down = servers[before.min(rank)..rank].iter().all(|plane| self.planes[*plane].down);
        Invariant::Fallback.holds(rank > before && down, || {
            format!("{authority} fell back to {}, and a better server was not shown to be down", server.server_uri)
        })?;
        self.charges.insert(authority.clone(), Charge { rank, since: now });
        self.planes[servers[rank]].fallbacks.insert(authority.clone());
        // Those above must show by an answer that they are back: they are told no versions.
        let servers = servers.to_vec();
        for above in &servers[..rank] {
            self.planes[*above].lost_some.extend(ResourceType::ALL);
        }
        self.follow(authority);
        Ok(())
    }

    fn recovered(&mut self, now: Time, authority: &AuthorityKey, server: &ServerConfig) -> Result<(), Violation> {
        let servers = self.rules.servers_of(authority);
        let plane = self.rules.plane(server);
        let rank = servers.iter().position(|known| plane == Some(*known));
        let before = self.charges.get(authority).map_or(0, |charge| charge.rank);
        let (Some(plane), Some(rank)) = (plane, rank.filter(|rank| *rank < before)) else {
            return Err(Invariant::Recovery.broken(format!("{authority} returned to {}", server.server_uri)));
        };
        // The word that brings it back is being read now: it must have something of use for this authority (A71).
        let brings = |told: &Arc<crate::truth::Told>| {
            told.is_valid()
                && self.rules.authority_of(&told.key) == Some(authority)
                && self.entries.get(&told.key).is_some_and(|entry| entry.watched)
        };
        let inbox =
            self.streams.values().filter(|stream| stream.plane == plane).flat_map(|stream| &stream.inbox).next();
        Invariant::Recovery.holds(inbox.is_some_and(|response| response.resources.iter().any(brings)), || {
            format!("{authority} returned to {}, which has sent nothing that is watched and of use", server.server_uri)
        })?;
        self.charges.insert(authority.clone(), Charge { rank, since: now });
        self.follow(authority);
        // What is released now and needed again in the same moment starts afresh.
        for released in (0..self.planes.len()).filter(|plane| !self.is_in_use(*plane)).collect::<Vec<_>>() {
            let ended = self.planes[released].attempt;
            self.planes[released].start_afresh();
            self.planes[released].attempt = ended;
        }
        Ok(())
    }

    /// The client tells something of itself.
    pub(crate) fn report(&mut self, now: Time, report: &Report) -> Result<(), Violation> {
        match report {
            Report::FellBack(authority, server) => self.fell_back(now, authority, server),
            Report::Recovered(authority, server) => self.recovered(now, authority, server),
            Report::TimedOut(server, key) => self.timed_out(now, server, key),
            Report::Acked(server, kind, version, received) => self.was_read(server, *kind, version, received, None),
            Report::Nacked(server, kind, version, received, text) => {
                self.was_read(server, *kind, version, received, Some(text))
            }
            Report::Unreachable(server, _, pause) => self.gave_up(now, server, *pause),
            Report::StreamEnded(server, _, pause) => self.stream_ended(now, server, *pause),
            Report::DeltaRefused(server, _) => self.refused(now, server),
            Report::Alive(server) => self.is_alive_again(server),
            Report::Connecting(server) => self.connecting(server),
            Report::Connected(server, _) => self.connected(server),
            Report::Answered(server) => self.has_answered(server),
            Report::DeletionIgnored(_, key) => {
                Invariant::Cache.holds(self.deletions.begun.remove(key).is_some(), || {
                    format!("the deletion of {key} is said to be ignored, and nobody deleted it")
                })?;
                let is_new = self.deletions.told.insert(key.clone());
                Invariant::Cache.holds(is_new, || format!("the deletion of {key} is said to be ignored twice"))
            }
            Report::DeletionOver(_, key) => {
                let was_told = self.deletions.told.remove(key);
                Invariant::Cache.holds(was_told, || format!("the deletion of {key} is over, and was never told"))?;
                if !self.deletions.over.remove(key) {
                    self.deletions.let_go.insert(key.clone());
                }
                Ok(())
            }
            Report::Ignored(..) => {
                self.nonsense = self.nonsense.saturating_sub(1);
                Ok(())
            }
            Report::SecurityIgnored(_) => Ok(()),
        }
    }

    /// A message arrives that makes no sense.
    pub(crate) fn nonsense(&mut self, stream: StreamId) {
        self.nonsense += u32::from(self.streams.contains_key(&stream));
        self.alive(stream, mainstay_xds::client::Sign::Data);
    }

    /// What happened was told, once and when it happened.
    fn check_told(&mut self, view: &View<'_>) -> Result<(), Violation> {
        let Deletions { begun, told, over, let_go } = &mut self.deletions;
        let untold = begun.iter().find(|(_, is_due)| **is_due).map(|(key, _)| key);
        Invariant::Cache.holds(untold.is_none(), || format!("{untold:?} stays in use, and nobody is told"))?;
        Invariant::Cache.holds(over.is_empty(), || format!("{over:?} are back, and nobody is told"))?;
        let is_watched = |key: &&ResourceKey| view.dump.iter().any(|status| status.resource == **key);
        let early = let_go.iter().find(is_watched);
        Invariant::Cache.holds(early.is_none(), || format!("the deletion of {early:?} is over, and it is not back"))?;
        begun.clear();
        let_go.clear();
        let entries = &self.entries;
        told.retain(|key| entries.contains_key(key));
        Invariant::Answers.holds(self.nonsense == 0, || "nobody is told of a message without sense".to_owned())
    }

    // --- After a step ---

    /// Judges what the client shows.
    pub(crate) fn check(&mut self, view: &View<'_>) -> Result<(), Violation> {
        self.take_watches(view);
        self.check_attempts(view.now)?;
        self.check_fallback()?;
        self.check_dump(view)?;
        self.check_patience(view)?;
        self.check_silence(view.now)?;
        self.check_wire(view)?;
        self.check_truth(view)?;
        self.check_states(view)?;
        self.check_told(view)?;
        self.moved.clear();
        self.take_verdicts();
        Ok(())
    }

    /// A server that is down is not waited for while something is missing and another one is next (A71, A95).
    fn check_fallback(&mut self) -> Result<(), Violation> {
        for (authority, charge) in &self.charges {
            let lacks = self.lacks_something(authority);
            let knob = self.rules.falls_back_on_loss(authority);
            let servers = self.rules.servers_of(authority);
            let moved = self.planes.iter().any(|plane| plane.fallbacks.contains(authority));
            let before = self.planes.iter().any(|plane| plane.lacked.contains(authority));
            Invariant::Fallback.holds(!moved || knob || lacks || before, || {
                format!("{authority} fell back although it lacks nothing (C-40)")
            })?;
            let stays = self.planes[servers[charge.rank]].down && charge.rank + 1 < servers.len();
            Invariant::Fallback.holds(!(stays && (lacks || knob)), || {
                format!(
                    "{authority}: {} is down, and the next server is not asked",
                    self.rules.uri(servers[charge.rank])
                )
            })?;
        }
        let lacked: BTreeSet<_> = self.charges.keys().filter(|key| self.lacks_something(key)).cloned().collect();
        for plane in &mut self.planes {
            plane.fallbacks.clear();
            plane.lacked.clone_from(&lacked);
        }
        Ok(())
    }

    /// What is believed is what the server in charge has, and it is the best server that has anything.
    fn check_truth(&self, view: &View<'_>) -> Result<(), Violation> {
        for (id, Seen { truth, deaf }) in view.quiet {
            let (Some(stream), Some(truth)) = (self.streams.get(id), truth) else { continue };
            let uri = self.rules.uri(stream.plane);
            for (key, entry) in self.entries.iter().filter(|(key, entry)| entry.watched && !deaf.contains(*key)) {
                let Some(authority) = self.rules.authority_of(key) else { continue };
                let told = truth.resources.get(key);
                let is_usable = told.is_some_and(|told| told.is_valid());
                let rank = self.rules.servers_of(authority).iter().position(|plane| *plane == stream.plane);
                let charge = self.charges.get(authority).map(|charge| charge.rank);
                // Over delta it was told what we have: it shows that it is back by what it was not told of, and may keep
                // quiet about that if it does not have it. Then there is nothing to do but wait.
                let owes = stream.claims && stream.owes_any(|key| self.rules.authority_of(key) == Some(authority));
                Invariant::Recovery.holds(!(is_usable && rank < charge && rank.is_some()) || owes, || {
                    format!("{authority} did not return to {uri}, which works and has {key}")
                })?;
                if rank != charge || rank.is_none() {
                    continue;
                }
                let is_right = match told {
                    Some(told) if told.is_valid() => {
                        matches!(entry.word, Word::Good | Word::Nothing)
                            && entry.held.as_ref().is_some_and(|held| held.plane == stream.plane && held.told == *told)
                    }
                    Some(_) => matches!(&entry.word, Word::Bad { plane, .. } if *plane == stream.plane),
                    None => true, // Who lacks something may be silent about it; that is a matter of patience.
                };
                Invariant::Convergence.holds(is_right, || {
                    format!("{key} is not what {uri}, which is in charge, says of it: {:?}", entry)
                })?;
            }
        }
        Ok(())
    }

    /// What the client says of its servers is so.
    fn check_states(&self, view: &View<'_>) -> Result<(), Violation> {
        for status in view.servers {
            let Some(plane) = self.rules.plane(&status.server) else { continue };
            let attempt = self.planes[plane].attempt.and_then(|id| self.streams.get(&id));
            let is_open = attempt.is_some_and(|stream| stream.opened.is_some());
            let down = self.planes[plane].down;
            let uri = self.rules.uri(plane);
            Invariant::States.holds(status.last_error.is_some() == down, || {
                format!("{uri} shows the error {:?}, and is down: {down}", status.last_error)
            })?;
            let expected = match (self.is_in_use(plane), is_open) {
                (false, _) => ServerState::Idle,
                (true, true) => ServerState::Ready,
                (true, false) if down => ServerState::TransientFailure,
                (true, false) => ServerState::Connecting,
            };
            Invariant::States.holds(status.state == expected, || {
                format!("{uri} shows the state {:?}: expected {expected:?}", status.state)
            })?;
        }
        Ok(())
    }

    /// After a long time in which everything worked: nothing is awaited, each authority is where it should be, and
    /// nobody is held to be down.
    pub(crate) fn check_at_rest(&self, dump: &[ResourceStatus]) -> Result<(), Violation> {
        let silent = self.rules.settings.silent_stream_timeout.is_some();
        let awaited = dump.iter().find(|status| status.state == mainstay_xds::client::ResourceState::Requested);
        Invariant::Convergence.holds(awaited.is_none() || silent, || {
            format!("{} is still awaited", awaited.map(|status| status.resource.to_string()).unwrap_or_default())
        })?;
        let down = (0..self.planes.len()).find(|plane| self.planes[*plane].down);
        Invariant::Convergence.holds(down.is_none() || silent, || {
            format!("{} is held to be down, and everything works", self.rules.uri(down.unwrap_or_default()))
        })
    }
}

/// How long a server has to answer when it is asked for a sign of life.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
