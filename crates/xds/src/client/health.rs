//! Failure, fallback and recovery of servers (A57, A71, A95).

use std::sync::Arc;
use std::time::Duration;

use super::authority::{AuthorityId, Unreachable};
use super::server::{Answered, Link, Outage, Paused, ServerId};
use super::timers::TimerKind;
use super::{Action, Report, XdsClient};
use crate::bootstrap::ServerConfig;
use crate::name::AuthorityKey;
use crate::resource::ResourceType;
use crate::{Choose, Time};

impl XdsClient {
    /// An attempt ended without an answer: a connectivity failure (P-17, C-32).
    pub(super) fn attempt_failed(&mut self, now: Time, choose: &mut dyn Choose, server: ServerId, cause: &str) {
        let failed = &mut self.servers[server.0];
        let pause = failed.pacing.failed(&self.settings, choose);
        let since = failed.outage.as_ref().map_or(now, |outage| outage.since);
        failed.outage = Some(Outage { cause: cause.into(), since });
        let report = Report::Unreachable(failed.config.clone(), cause.to_owned(), pause);
        self.report(report);
        self.pause(now, server, pause);
        for authority in self.authorities_led_by(server) {
            let due = self.authorities[authority.0].reachability_only || self.cache.any_uncached(authority);
            self.active_is_down(authority, due);
        }
    }

    /// A stream that had answers is over. That is no failure (P-18): the next one follows at once, unless such
    /// streams end again and again.
    pub(super) fn stream_ended(
        &mut self,
        now: Time,
        choose: &mut dyn Choose,
        server: ServerId,
        lived: Duration,
        cause: &str,
    ) {
        let ended = &mut self.servers[server.0];
        let pause = ended.pacing.ended(lived, &self.settings, choose);
        let report = Report::StreamEnded(ended.config.clone(), cause.to_owned(), pause);
        self.report(report);
        if !pause.is_zero() {
            self.pause(now, server, pause);
        }
    }

    /// The server in charge of an authority is known to be down. Falls back if that is `due` (C-40, C-42), and past
    /// servers that are known to be down too (C-45). Watchers hear of it if no server is left to hope for (C-48).
    pub(super) fn active_is_down(&mut self, id: AuthorityId, due: bool) {
        let authority = &mut self.authorities[id.0];
        let is_down = |server: ServerId| self.servers[server.0].outage.is_some();
        let before = authority.active();
        if due {
            while authority.active().is_some_and(is_down) && authority.step_down().is_some() {}
        }
        let active = authority.active();
        if active != before {
            self.active_changed(id, Report::FellBack);
        }
        let unreachable = active.map(|server| &self.servers[server.0]).and_then(|server| {
            let Outage { cause, since } = server.outage.clone()?;
            Some(Unreachable { server: server.uri.clone(), cause, since })
        });
        self.set_unreachable(id, unreachable);
    }

    /// A response came: the server is reachable (C-31), and failures are forgiven (P-20).
    pub(super) fn server_answered(&mut self, server: ServerId) {
        let answered = &mut self.servers[server.0];
        answered.pacing.answered();
        answered.outage = None;
        answered.link = match answered.take_link() {
            Link::Unanswered(unanswered) => {
                self.outputs.push_back(Action::Report(Report::Answered(answered.config.clone())));
                Link::Answered(unanswered.answered(server, &mut self.timers))
            }
            link => link,
        };
        for authority in self.authorities_led_by(server) {
            self.set_unreachable(authority, None);
        }
    }

    /// A valid response came: the server takes over every authority that fell back below it (C-49).
    pub(super) fn recover(&mut self, server: ServerId) {
        for index in 0..self.authorities.len() {
            let id = AuthorityId(index);
            if self.authorities[index].return_to(server) {
                self.active_changed(id, Report::Recovered);
                self.set_unreachable(id, None);
            }
        }
    }

    /// A response of this type was taken from `server`: the servers above it must send theirs again when they are
    /// back, so they must not be told that we have it.
    pub(super) fn forget_above(&mut self, server: ServerId, resource_type: ResourceType) {
        for authority in self.authorities.iter().filter(|authority| authority.active() == Some(server)) {
            for above in authority.above_active() {
                self.servers[above.0].forget_version(resource_type);
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

    fn pause(&mut self, now: Time, server: ServerId, pause: Duration) {
        let until = now + pause;
        self.servers[server.0].link = Link::Paused(Paused { until });
        self.timers.set(until, TimerKind::Backoff(server));
    }

    /// Takes a stream that is over out of its state. Answers with how long it lived, if it was answered.
    pub(super) fn take_stream(&mut self, now: Time, server: ServerId) -> Option<Duration> {
        let link = self.servers[server.0].take_link();
        let lived = match &link {
            Link::Answered(Answered { since, .. }) => Some(now.since(*since)),
            _ => None,
        };
        link.cancel_timers(server, &mut self.timers);
        lived
    }
}
