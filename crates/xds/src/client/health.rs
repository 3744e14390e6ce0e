//! Failure, fallback and recovery of servers (A57, A71, A95).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::authority::{Authority, AuthorityId, Unreachable};
use super::server::{Answered, Link, Outage, Pause, Paused};
use super::subscription::Word;
use super::timers::TimerKind;
use super::{Action, Report, ServerId, XdsClient};
use crate::bootstrap::ServerConfig;
use crate::name::{AuthorityKey, ResourceKey};
use crate::{Backoff, Choose, Time};

impl XdsClient {
    /// An attempt ended without an answer: a connectivity failure (P-17, C-32), also if the server only asked us to come
    /// back later.
    pub(super) fn attempt_failed(
        &mut self,
        now: Time,
        choose: &mut dyn Choose,
        server: ServerId,
        cause: &str,
        asked: Option<Duration>,
    ) {
        let paced = self.servers[server.0].pacing.failed(&self.settings, choose);
        let (pause, reason) = self.defer(choose, server, (paced, Pause::Backoff), asked);
        let failed = &mut self.servers[server.0];
        let since = failed.outage.as_ref().map_or(now, |outage| outage.since);
        failed.outage = Some(Outage { cause: cause.into(), since });
        let report = Report::Unreachable(failed.config.clone(), cause.to_owned(), pause);
        self.report(report);
        self.pause(now, server, pause, reason);
        for authority in self.authorities_led_by(server) {
            let due = self.authorities[authority.0].reachability_only || self.cache.any_uncached(authority);
            self.active_is_down(authority, due);
        }
        self.try_next(server);
    }

    /// Authorities whose last server is in charge ahead of its turn go on to the next one (FB-10).
    fn try_next(&mut self, failed: ServerId) {
        let is_down = |server: ServerId| self.servers[server.0].outage.is_some();
        let mut moved = false;
        for authority in self.authorities.iter_mut().filter(|authority| authority.tried() == Some(failed)) {
            while authority.tried().is_some_and(is_down) {
                authority.try_next();
                moved = true;
            }
        }
        if moved {
            self.mark_all_streams();
        }
    }

    /// A stream that had answers is over. That is no failure (P-18): the next one follows at once, unless such
    /// streams end again and again, or nothing is missing and there is time.
    pub(super) fn stream_ended(
        &mut self,
        now: Time,
        choose: &mut dyn Choose,
        server: ServerId,
        lived: Duration,
        cause: &str,
        asked: Option<Duration>,
    ) {
        let paced = self.servers[server.0].pacing.ended(lived, &self.settings, choose);
        let paced = match paced {
            Duration::ZERO => (self.spread(choose, server), Pause::Spread),
            paced => (paced, Pause::Backoff),
        };
        let (pause, reason) = self.defer(choose, server, paced, asked);
        let report = Report::StreamEnded(self.servers[server.0].config.clone(), cause.to_owned(), pause);
        self.report(report);
        if !pause.is_zero() {
            self.pause(now, server, pause, reason);
        }
    }

    /// How long to stay away from a server that was lost. Ten thousand clients that lack nothing should not come back
    /// in the same instant; one that lacks something, is on a fallback or falls back readily should not wait.
    fn spread(&self, choose: &mut dyn Choose, server: ServerId) -> Duration {
        let nanos = u64::try_from(self.settings.reconnect_spread.as_nanos()).unwrap_or(u64::MAX);
        let is_in_need = |(index, authority): (usize, &Authority)| {
            let is_on_fallback = !authority.above_active().is_empty();
            authority.uses(server)
                && (is_on_fallback || authority.reachability_only || self.cache.any_uncached(AuthorityId(index)))
        };
        if nanos == 0 || self.authorities.iter().enumerate().any(is_in_need) {
            return Duration::ZERO;
        }
        Duration::from_nanos(choose.choose(nanos).min(nanos))
    }

    /// How long to stay away if the server asked for it (SC-10). Never shorter than without, and never for long if something
    /// is missing; a new need ends it where nothing was.
    fn defer(
        &self,
        choose: &mut dyn Choose,
        server: ServerId,
        paced: (Duration, Pause),
        asked: Option<Duration>,
    ) -> (Duration, Pause) {
        let Some(asked) = asked else { return paced };
        let lacks_something = |(index, authority): (usize, &Authority)| {
            authority.uses(server) && self.cache.any_uncached(AuthorityId(index))
        };
        let (bound, reason) = match self.authorities.iter().enumerate().any(lacks_something) {
            true => (LONGEST_IN_NEED, Pause::Backoff),
            false => (LONGEST_DEFERRAL, Pause::Spread),
        };
        let asked = Backoff::spread(asked.min(bound), choose);
        if asked > paced.0 { (asked, reason) } else { paced }
    }

    /// The server in charge of an authority is known to be down. Falls back if that is `due` (C-40, C-42), and past
    /// servers that are known to be down too (C-45). Watchers hear of it if no server is left to hope for (C-48).
    pub(super) fn active_is_down(&mut self, id: AuthorityId, due: bool) {
        let authority = &mut self.authorities[id.0];
        let is_down = |server: ServerId| self.servers[server.0].outage.is_some();
        let (before, was_ahead) = (authority.active(), authority.tried().is_some());
        if due {
            while authority.active().is_some_and(is_down) && authority.step_down().is_some() {}
        }
        let active = authority.active();
        if active != before {
            // One that was ahead of its turn has nothing: what it was ahead of is in charge again.
            self.active_changed(id, if was_ahead { Report::Recovered } else { Report::FellBack });
            self.hurry(id); // Another authority may have been in no hurry with that server.
        }
        let unreachable = active.map(|server| &self.servers[server.0]).and_then(|server| {
            let Outage { cause, since } = server.outage.clone()?;
            Some(Unreachable { server: server.config.clone(), cause, since })
        });
        self.set_unreachable(id, unreachable);
    }

    /// Something of an authority is missing: whoever was to be come back to at leisure is tried at once.
    pub(super) fn hurry(&mut self, id: AuthorityId) {
        for server in self.authorities[id.0].in_use() {
            self.servers[server.0].hurry(server, &mut self.timers);
        }
    }

    /// A response came: the server is reachable (C-31), and failures are forgiven (P-20).
    pub(super) fn server_answered(&mut self, server: ServerId) {
        let answered = &mut self.servers[server.0];
        answered.pacing.answered();
        answered.link = match answered.take_link() {
            Link::Unanswered(unanswered) => {
                self.outputs.push_back(Action::Report(Report::Answered(answered.config.clone())));
                Link::Answered(unanswered.answered(server, &mut self.timers))
            }
            link @ (Link::Idle | Link::Opening(_) | Link::Answered(_) | Link::Paused(_)) => link,
        };
        if let Some(stream) = answered.link.stream_mut() {
            stream.life.prove(server, &mut self.timers);
        }
        self.outage_is_over(server);
    }

    /// A sign of life came that is no response. It ends an outage, but forgives no failure (A57).
    pub(super) fn server_is_alive(&mut self, server: ServerId) {
        let alive = &mut self.servers[server.0];
        let Some(stream) = alive.link.stream_mut() else { return };
        stream.life.prove(server, &mut self.timers);
        // What is on its way may still be lost: it needs a sign of its own.
        if stream.is_sending() || alive.outage.is_none() {
            return;
        }
        let report = Report::Alive(alive.config.clone());
        self.report(report);
        self.outage_is_over(server);
    }

    fn outage_is_over(&mut self, server: ServerId) {
        self.servers[server.0].outage = None;
        for authority in self.authorities_led_by(server) {
            self.set_unreachable(authority, None);
        }
    }

    /// The server sent usable resources of these authorities: it takes over each that fell back below it (C-49).
    pub(super) fn recover(&mut self, server: ServerId, authorities: BTreeSet<AuthorityId>) {
        for id in authorities {
            if self.authorities[id.0].return_to(server) {
                self.active_changed(id, Report::Recovered);
                self.set_unreachable(id, None);
            }
        }
    }

    /// Another server is in charge. Every stream is checked for what it must list now, also one that another
    /// authority shares and that is open already.
    fn active_changed(&mut self, id: AuthorityId, report: impl FnOnce(AuthorityKey, Arc<ServerConfig>) -> Report) {
        let authority = &self.authorities[id.0];
        let Some(active) = authority.active() else { return };
        let (key, config) = (authority.key.clone(), self.servers[active.0].config.clone());
        self.outputs.push_back(Action::ActiveServer(key.clone(), config.clone()));
        self.report(report(key, config));
        self.mark_all_streams();
        self.follow(id, active);
    }

    /// The cache follows the server that is in charge now: errors of others do not count any more, and what this one
    /// said before it was in charge takes effect. Those above it must send everything again, so that they show by
    /// their answer that they are back.
    pub(super) fn follow(&mut self, id: AuthorityId, active: ServerId) {
        let keys: Vec<_> = self.cache.of_authority(id).collect();
        for key in keys {
            for above in self.authorities[id.0].above_active() {
                self.servers[above.0].ask_for_proof(&key, &mut self.timers);
            }
            let Some(entry) = self.cache.get_mut(key.resource_type, &key.name) else { continue };
            if entry.forget_faults_except_of(active) {
                self.news.extend(&entry.watchers);
            }
            self.heed(&key);
        }
    }

    /// Lets take effect what the server in charge said of a resource instead of sending it.
    pub(super) fn heed(&mut self, key: &ResourceKey) {
        let Some(entry) = self.cache.get_mut(key.resource_type, &key.name) else { return };
        let Some(active) = self.authorities[entry.authority.0].active() else { return };
        let word = self.servers[active.0].link.stream().and_then(|stream| stream.word(key));
        let Some(Word::Said(verdict)) = word else { return };
        let dropped = entry.heed(verdict, active);
        self.news.extend(&entry.watchers);
        match dropped {
            Some(server) if server == active => self.servers[server.0].forget_version(key.resource_type),
            Some(other) => self.servers[other.0].ask_again(key, &mut self.timers),
            None => {}
        }
    }

    fn set_unreachable(&mut self, id: AuthorityId, unreachable: Option<Unreachable>) {
        let authority = &mut self.authorities[id.0];
        if authority.unreachable != unreachable {
            authority.unreachable = unreachable;
            self.news.extend(self.cache.watchers_of(id));
        }
    }

    fn authorities_led_by(&self, server: ServerId) -> Vec<AuthorityId> {
        let led = |id: &AuthorityId| self.authorities[id.0].active() == Some(server);
        (0..self.authorities.len()).map(AuthorityId).filter(led).collect()
    }

    fn pause(&mut self, now: Time, server: ServerId, pause: Duration, reason: Pause) {
        let until = now + pause;
        self.servers[server.0].link = Link::Paused(Paused { until, reason });
        self.timers.set(until, TimerKind::Backoff(server));
    }

    /// Takes a stream that is over out of its state. Answers with how long it lived, if it was answered.
    pub(super) fn take_stream(&mut self, now: Time, server: ServerId) -> Option<Duration> {
        self.servers[server.0].dialect.ended(now);
        let link = self.servers[server.0].take_link();
        let lived = match &link {
            Link::Answered(Answered { since, .. }) => Some(now.since(*since)),
            Link::Idle | Link::Opening(_) | Link::Unanswered(_) | Link::Paused(_) => None,
        };
        link.cancel_timers(server, &mut self.timers);
        lived
    }
}

/// How long a server may keep away a client that lacks nothing (SC-10),
const LONGEST_DEFERRAL: Duration = Duration::from_secs(60);
/// and one that lacks something.
const LONGEST_IN_NEED: Duration = Duration::from_secs(5);
