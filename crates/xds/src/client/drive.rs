//! Events and deadlines in, actions out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::Node;

use super::authority::AuthorityId;
use super::cache::{Entry, Held};
use super::dialect::{Identity, Protocol};
use super::intern::{Intern, Unshared};
use super::life::{self, Life, Probed};
use super::server::{Link, Opening, Server};
use super::stream::Wanted;
use super::subscription::{Effect, Verdict, Waiting, Word};
use super::timers::TimerKind;
use super::wire::Claim;
use super::{
    Action, ClientSettings, CloseCause, ErrorKind, Event, Output, Report, ResourceError, ServerId, Sign, StreamId,
    XdsClient,
};
use crate::bootstrap::Bootstrap;
use crate::name::ResourceKey;
use crate::resource::ResourceType;
use crate::{Choose, Time};

impl XdsClient {
    /// Takes in what happened outside.
    pub fn handle_event(&mut self, now: Time, choose: &mut dyn Choose, event: Event) {
        self.handle_event_sharing(now, choose, &mut Unshared, event);
    }

    /// Takes in what happened outside, and shares parsed resources with other clients.
    pub fn handle_event_sharing(&mut self, now: Time, choose: &mut dyn Choose, intern: &mut dyn Intern, event: Event) {
        let (Event::Opened(stream)
        | Event::Sent(stream)
        | Event::Alive(stream, _)
        | Event::Received(stream, _)
        | Event::Closed(stream, _)) = &event;
        let of_stream = |server: &Server| server.link.stream_id() == Some(*stream);
        let Some(server) = self.servers.iter().position(of_stream).map(ServerId) else {
            return; // P-26: a stream that we closed.
        };
        self.settled = false;
        match event {
            Event::Opened(_) => self.on_opened(now, server),
            Event::Sent(_) => self.on_sent(now, server),
            Event::Alive(_, sign) => self.on_alive(server, sign),
            Event::Received(_, message) => {
                self.on_message(now, server, message, intern);
                self.seek_proof(server);
                self.pace_insistence(now, choose, server);
            }
            Event::Closed(_, cause) => self.on_closed(now, choose, server, &cause),
        }
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout(&mut self, now: Time, choose: &mut dyn Choose) {
        while let Some((at, timer)) = self.timers.pop_due(now) {
            self.settled = false;
            let late = life::is_late(now, at);
            match timer {
                TimerKind::Backoff(server) => {
                    self.servers[server.0].link = Link::Idle; // The next attempt begins when things are settled.
                }
                TimerKind::Silent(server) => self.on_silent(now, late, choose, server),
                TimerKind::Life(server) => self.on_life(now, late, choose, server),
                TimerKind::Missing(server, key) => {
                    self.on_missing(now, late, server, &key);
                    self.seek_proof(server);
                    self.pace_insistence(now, choose, server);
                }
                TimerKind::Filled(server, key) => self.on_filled(now, server, &key),
                TimerKind::Insist(server) => {
                    if let Some(stream) = self.servers[server.0].link.stream_mut() {
                        stream.insistence.due = None;
                        stream.insistence.times += 1;
                        stream.insist();
                    }
                    self.pace_insistence(now, choose, server);
                }
            }
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Output {
        self.settle();
        if let Some(action) = self.outputs.pop_front() {
            return Output::Do(action);
        }
        match self.next_update() {
            Some((watch, update)) => Output::Do(Action::Notify(watch, update)),
            None => Output::Wait(self.timers.next()),
        }
    }

    /// Ourselves, as told to servers (B-24).
    pub fn node(&self) -> Node {
        node(&self.bootstrap, &self.settings)
    }

    fn on_opened(&mut self, now: Time, server: ServerId) {
        let delay = life::probe_delay(self.resource_timeout(server).0);
        let opened = &mut self.servers[server.0];
        match opened.take_link() {
            Link::Opening(opening) => {
                let report = Report::Connected(opened.config.clone(), opening.protocol);
                opened.link = Link::Unanswered(opening.opened(now, delay, server, &mut self.timers));
                self.outputs.push_back(Action::Report(report));
            }
            // Said twice.
            link @ (Link::Idle | Link::Unanswered(_) | Link::Answered(_) | Link::Paused(_)) => opened.link = link,
        }
    }

    /// A request was written. Who owes an answer to it has some time; who owes none is asked for a sign of life if it
    /// is still held to be down, and is left alone otherwise.
    fn on_sent(&mut self, now: Time, server: ServerId) {
        let wait = self.resource_timeout(server).0;
        let patience = self.patience(server);
        let Self { servers, timers, .. } = self;
        let to = &mut servers[server.0];
        let Some(stream) = to.link.stream_mut().filter(|stream| stream.is_sending()) else { return };
        if stream.sent(now, wait, timers) {
            stream.life.ask(now, life::probe_delay(wait), server, timers);
        } else if !stream.is_owed() {
            match to.outage {
                Some(_) => stream.life.ask_at_once(now, server, timers),
                None => stream.life.prove(server, timers),
            }
        }
        if let (Link::Unanswered(unanswered), Some(timeout)) = (&mut to.link, patience)
            && unanswered.stream.is_owed()
            && unanswered.silent_at.is_none()
        {
            unanswered.set_silent_at(Some(now + timeout), server, timers);
        }
    }

    /// A sign of life came. While another server is next in line, a PONG alone is none: a server that hangs must not
    /// keep us from that one. Nor is it one of a server that was just left, for it may hang as well.
    fn on_alive(&mut self, server: ServerId, sign: Sign) {
        if sign == Sign::Data || (self.is_in_use(server) && !self.has_next(server)) {
            self.server_is_alive(server);
        } else if let Some(stream) = self.servers[server.0].link.stream_mut() {
            stream.life.pong();
        }
    }

    /// A sign of life is wanted, or did not come.
    fn on_life(&mut self, now: Time, late: bool, choose: &mut dyn Choose, server: ServerId) {
        let (call, delay) = (self.has_next(server), life::probe_delay(self.resource_timeout(server).0));
        let Self { servers, timers, outputs, .. } = self;
        let of = &mut servers[server.0];
        let Some(stream) = of.link.stream_mut() else { return };
        let is_wanted = stream.is_sending() || stream.is_owed() || of.outage.is_some();
        match stream.life {
            _ if !is_wanted => stream.life.prove(server, timers),
            Life::Proven => {}
            // Wanted at once, but there is more to write first.
            Life::Unproven { since, .. } if stream.is_sending() && now < since + delay => {
                stream.life.put_off(since + delay, server, timers);
            }
            Life::Unproven { since, .. } => {
                stream.life.probe(now, since, false, server, timers);
                outputs.push_back(Action::Probe { stream: stream.id(), call });
            }
            Life::Probed(Probed { since, repeated: false, .. }) if late => {
                stream.life.probe(now, since, true, server, timers);
                outputs.push_back(Action::Probe { stream: stream.id(), call });
            }
            Life::Probed(probed) => self.give_up(now, choose, server, &probed.verdict(now)),
        }
    }

    /// A stream is over, or never came to be.
    fn on_closed(&mut self, now: Time, choose: &mut dyn Choose, server: ServerId, cause: &CloseCause) {
        let of = &self.servers[server.0];
        let asked = match cause {
            CloseCause::Deferred { come_back, .. } => Some(*come_back),
            CloseCause::ConnectFailed(_) | CloseCause::ConnectionLost(_) | CloseCause::Ended { .. } => None,
        };
        let protocol = of.link.protocol().filter(|_| !matches!(of.link, Link::Answered(_)));
        let refuses_delta = matches!(cause, CloseCause::Ended { code: UNIMPLEMENTED, .. });
        let cause = match protocol {
            Some(Protocol::Delta) if refuses_delta && of.dialect.can_do_without(Protocol::Delta) => {
                return self.do_without_delta(now, server, cause.to_string());
            }
            // DX-5.
            Some(Protocol::Delta) if refuses_delta => format!("it does not speak delta, which it must: {cause}"),
            Some(_) | None => cause.to_string(),
        };
        match self.take_stream(now, server) {
            Some(lived) => self.stream_ended(now, choose, server, lived, &cause, asked),
            None => self.attempt_failed(now, choose, server, &cause, asked),
        }
    }

    /// The server does not speak delta. That is no failure: the next stream, which follows at once, speaks the other
    /// variant (DX-3).
    fn do_without_delta(&mut self, now: Time, server: ServerId, cause: String) {
        self.take_stream(now, server);
        let of = &mut self.servers[server.0];
        of.dialect.refused(now);
        let report = Report::DeltaRefused(of.config.clone(), cause);
        self.report(report);
    }

    /// How long a stream may be without any response while it owes one, if there is a limit.
    fn patience(&self, server: ServerId) -> Option<Duration> {
        let of = &self.servers[server.0];
        let is_flexible = of.link.protocol().is_some_and(|protocol| of.dialect.can_do_without(protocol));
        let limits = [self.settings.silent_stream_timeout, is_flexible.then_some(DELTA_SILENCE)];
        limits.into_iter().flatten().min()
    }

    /// What a delta server says does not exist is asked for again after a while, as some servers forget who asked
    /// (DX-15). In the other variant each request names everything.
    fn pace_insistence(&mut self, now: Time, choose: &mut dyn Choose, server: ServerId) {
        let Self { servers, timers, .. } = self;
        let Some(stream) = servers[server.0].link.stream_mut() else { return };
        if stream.protocol() == Protocol::Delta {
            stream.pace_insistence(now, choose, timers);
        }
    }

    /// Claims are for whom we take the server to be, and leave it little to answer. If it does not have what it was asked
    /// for in spite of them, it is asked for something else, until it has said who it is (DX-16), and has sent something
    /// of use if another server is in charge in its place (DX-22).
    fn seek_proof(&mut self, server: ServerId) {
        let Self { servers, timers, cache, authorities, .. } = self;
        let link = &mut servers[server.0].link;
        let is_answered = matches!(link, Link::Answered(_));
        let Some(stream) = link.stream_mut().filter(|stream| stream.claimed) else { return };
        for (index, authority) in authorities.iter().enumerate() {
            let is_proven = is_answered && authority.active() == Some(server);
            if is_proven || !authority.uses(server) {
                continue;
            }
            let mut claimed = None;
            let mut is_owed = false;
            for key in cache.of_authority(AuthorityId(index)) {
                match stream.word(&key) {
                    Some(Word::Asking | Word::Waiting(_)) => is_owed = true,
                    Some(Word::Adopted) => claimed = claimed.or(Some(key)),
                    Some(Word::Said(_)) | None => {}
                }
            }
            if let Some(key) = claimed.filter(|_| !is_owed) {
                stream.ask_again(&key, timers);
            }
        }
    }

    /// A stream had no response for as long as the settings allow: as good as a failed one. With a server that may not
    /// speak delta it is a hint about that, if the server is alive (DX-4).
    fn on_silent(&mut self, now: Time, late: bool, choose: &mut dyn Choose, server: ServerId) {
        let Some(timeout) = self.patience(server) else { return };
        let limit = self.settings.silent_stream_timeout;
        let of = &mut self.servers[server.0];
        let is_flexible = of.link.protocol().is_some_and(|protocol| of.dialect.can_do_without(protocol));
        let Link::Unanswered(unanswered) = &mut of.link else { return };
        let owed = unanswered.stream.owed_since().map(|since| (since, now.since(since)));
        let next = match owed {
            None => None,
            Some((_, span)) if span < timeout => Some(now + (timeout - span)),
            Some(_) if late && !std::mem::replace(&mut unanswered.prolonged, true) => Some(now + timeout),
            Some((asked, span)) if is_flexible && unanswered.stream.life.is_proven_since(asked) => {
                let stream = unanswered.stream.id();
                self.outputs.push_back(Action::Close(stream));
                let cause = format!("it is alive and did not answer within {} s", span.as_secs_f64());
                return self.do_without_delta(now, server, cause);
            }
            Some((_, span)) if limit.is_none_or(|limit| span < limit) => {
                // It may be dead, which is about to be found out.
                let next = now + LOOK_AGAIN;
                Some(limit.map_or(next, |limit| next.min(now + (limit - span))))
            }
            Some((_, span)) => {
                let cause = format!("it did not answer within {} s", limit.unwrap_or(span).as_secs_f64());
                return self.give_up(now, choose, server, &cause);
            }
        };
        unanswered.silent_at = None;
        unanswered.set_silent_at(next, server, &mut self.timers);
    }

    /// A stream is open and of no use: closes it and treats it as a failed attempt.
    fn give_up(&mut self, now: Time, choose: &mut dyn Choose, server: ServerId, cause: &str) {
        let Some(stream) = self.servers[server.0].link.stream_id() else { return };
        self.outputs.push_back(Action::Close(stream));
        self.take_stream(now, server);
        self.attempt_failed(now, choose, server, cause, None);
    }

    /// A server has not sent a resource in time (P-58). That means something only if the server was alive all the
    /// same, and if we were there to hear it.
    fn on_missing(&mut self, now: Time, late: bool, server: ServerId, key: &ResourceKey) {
        let (wait, transient) = self.resource_timeout(server);
        let fails_first = self.patience(server).is_some_and(|limit| limit <= wait);
        let Self { servers, timers, .. } = self;
        let from = &mut servers[server.0];
        let silent_at = from.link.silent_at().filter(|at| fails_first && now < *at);
        let Some(stream) = from.link.stream_mut() else { return };
        let Some(&Word::Waiting(waiting)) = stream.word(key) else { return };
        if late && !waiting.prolonged {
            let waiting = Waiting { since: now, until: now + wait, prolonged: true };
            stream.set(key, Word::Waiting(waiting), timers);
            return stream.life.ask(now, life::probe_delay(wait), server, timers);
        }
        // C-36: a stream without any response fails before its silence says anything, also if that was put off.
        if let Some(until) = silent_at {
            return stream.set(key, Word::Waiting(Waiting { until, ..waiting }), timers);
        }
        if let Some(until) = stream.life.decided_by()
            && !stream.life.is_proven_since(waiting.since)
        {
            return stream.set(key, Word::Waiting(Waiting { until, ..waiting }), timers);
        }
        let kind =
            if transient { ErrorKind::TimedOut { after: wait } } else { ErrorKind::DoesNotExist { after: wait } };
        let error = ResourceError {
            resource: key.clone(),
            server: Some(from.config.clone()),
            node_id: self.node_id.clone(),
            kind,
            at: now,
        };
        let verdict = Verdict { error: Arc::new(error), effect: Effect::None };
        stream.set(key, Word::Said(verdict), timers);
        let Some(entry) = self.cache.get(key.resource_type, &key.name) else { return };
        // Data that came meanwhile, from any server, is not taken away; one that is not in charge decides nothing yet.
        if entry.cached.held().is_none() && self.authorities[entry.authority.0].active() == Some(server) {
            let report = Report::TimedOut(from.config.clone(), key.clone());
            self.report(report);
            self.heed(key);
        }
    }

    /// How long a resource may be missing on this server, and whether that is then a transient error (P-56, C-28).
    fn resource_timeout(&self, server: ServerId) -> (Duration, bool) {
        let features = self.servers[server.0].config.features;
        if self.bootstrap.guards.data_error_handling && features.resource_timer_is_transient_error {
            (self.settings.transient_resource_timeout, true)
        } else {
            (self.settings.resource_timeout, false)
        }
    }

    /// Starts to use the first server of an authority, if it uses none.
    pub(super) fn start(&mut self, id: AuthorityId) {
        let authority = &mut self.authorities[id.0];
        if authority.start()
            && let Some(active) = authority.active()
        {
            let action = Action::ActiveServer(authority.key.clone(), self.servers[active.0].config.clone());
            self.outputs.push_back(action);
            self.mark_all_streams();
            self.follow(id, active); // What another server found wrong before the last watch ended does not count (D-17).
        }
    }

    /// The names of a type may have changed on every stream that an authority uses.
    pub(super) fn mark_streams(&mut self, id: AuthorityId, resource_type: ResourceType) {
        self.settled = false;
        for server in self.authorities[id.0].in_use() {
            if let Some(stream) = self.servers[server.0].link.stream_mut() {
                stream.mark(resource_type);
            }
        }
    }

    /// The names of any type may have changed on any stream.
    pub(super) fn mark_all_streams(&mut self) {
        self.settled = false;
        self.servers.iter_mut().filter_map(|server| server.link.stream_mut()).for_each(|stream| stream.mark_all());
    }

    /// Makes streams and requests follow from what is watched. It runs only when something is to be handed out, so
    /// that a name that is released and watched again in the meantime costs nothing and loses nothing (P-95).
    fn settle(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let mut released = false;
        for authority in &mut self.authorities {
            if authority.watched == 0 && authority.active().is_some() {
                authority.stop();
                released = true;
            }
        }
        if released {
            self.mark_all_streams();
            self.settled = true;
        }
        for index in 0..self.servers.len() {
            self.settle_server(ServerId(index));
        }
        let Self { servers, cache, .. } = self;
        let lists = |server: &Server, key: &ResourceKey| server.link.stream().is_some_and(|stream| stream.lists(key));
        // P-95: what we have stays until the server that it came from knows that we do not want it any more.
        let is_kept = |key: &ResourceKey, entry: &Entry| match entry.cached.server() {
            Some(server) => lists(&servers[server.0], key),
            None => servers.iter().any(|server| lists(server, key)),
        };
        for (key, entry) in cache.drop_orphans(is_kept) {
            if let (true, Some(held)) = (entry.deletion_ignored, entry.cached.held()) {
                let report = Report::DeletionOver(held.provenance.server.clone(), key);
                self.outputs.push_back(Action::Report(report));
            }
        }
    }

    fn settle_server(&mut self, id: ServerId) {
        let wanted = self.is_in_use(id);
        let server = &mut self.servers[id.0];
        if !wanted {
            // P-15: without a last word; the server sees the stream end.
            if let Some(stream) = server.release(id, &mut self.timers) {
                self.outputs.push_back(Action::Close(stream));
            }
        } else if server.link == Link::Idle {
            self.open(id);
        } else {
            self.refuse_globs(id);
            if let Some((stream, request)) = self.next_request(id) {
                self.outputs.push_back(Action::Send(stream, request));
            }
        }
    }

    fn open(&mut self, id: ServerId) {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        let connect_timeout =
            if self.has_next(id) { self.settings.connect_timeout } else { self.settings.last_connect_timeout };
        let server = &mut self.servers[id.0];
        let protocol = server.dialect.next();
        server.link = Link::Opening(Opening { id: stream, protocol });
        let config = server.config.clone();
        self.report(Report::Connecting(config.clone()));
        self.outputs.push_back(Action::Open { stream, server: config, connect_timeout, protocol });
    }

    /// Whether an authority goes by this server, or would rather.
    fn is_in_use(&self, server: ServerId) -> bool {
        self.authorities.iter().any(|authority| authority.uses(server))
    }

    /// Whether another server is next in line after this one.
    fn has_next(&self, server: ServerId) -> bool {
        self.authorities.iter().any(|authority| authority.has_next(server))
    }

    fn next_request(&mut self, id: ServerId) -> Option<(StreamId, Bytes)> {
        let Self { bootstrap, settings, cache, authorities, servers, timers, .. } = self;
        let identity = servers[id.0].identity.clone();
        let wanted = |resource_type, with_claims: bool| {
            let mut wanted = Wanted { names: Vec::new(), current: settings.trust_versions, claims: Vec::new() };
            for (name, entry) in cache.of_type(resource_type) {
                let authority = &authorities[entry.authority.0];
                if !entry.watchers.is_empty() && authority.uses(id) {
                    wanted.names.push(name.clone());
                    let is_ours = entry.cached.held().is_some_and(|held| held.server == id);
                    wanted.current &= is_ours && authority.active() == Some(id);
                    if with_claims {
                        // Of members that are gone nobody might tell us: a glob is gathered anew.
                        let held = entry.sound().filter(|_| resource_type != ResourceType::EndpointGlob);
                        let version = held.and_then(|held| held.claim(id, &identity, settings));
                        wanted.claims.push(Claim { name: name.clone(), authority: entry.authority, version });
                    }
                }
            }
            wanted
        };
        let (stream, request) = servers[id.0].next_request(wanted, timers)?;
        let bytes = request.encode(|| node(bootstrap, settings));
        Some((stream, bytes))
    }
}

impl Held {
    /// The version that its server may be told that we have (DX-16, DX-20): its own, of the same name as ever, and no
    /// count that may have begun anew.
    fn claim(&self, server: ServerId, identity: &Identity, settings: &ClientSettings) -> Option<Arc<str>> {
        let shortest = if settings.trust_versions { 1 } else { MIN_CLAIMED_VERSION };
        let is_claimable = self.server == server
            && self.provenance.version.len() >= shortest
            && self.era.is_some_and(|era| identity.vouches_for(era, settings.trust_versions));
        is_claimable.then(|| self.provenance.version.clone())
    }
}

/// Ourselves, as told to servers in the first request of a stream (P-16, P-67).
fn node(bootstrap: &Bootstrap, settings: &ClientSettings) -> Node {
    let mut features = vec![DOES_NOT_SUPPORT_OVERPROVISIONING, RESOURCE_IN_SOTW];
    if bootstrap.guards.endpoint_fallback {
        features.push(SUPPORTS_LB_ENDPOINT_COLLECTION);
    }
    if bootstrap.guards.data_error_handling {
        features.push(READS_RESOURCE_ERRORS);
    }
    bootstrap.node.to_proto(&settings.user_agent_name, &settings.user_agent_version, &features)
}

/// Shorter versions are not claimed: they may be counts, which mean something else after a restart, and not every server
/// that counts has another name then. Hashes and times are longer.
const MIN_CLAIMED_VERSION: usize = 16;

/// gRPC status code.
const UNIMPLEMENTED: u16 = 12;

/// How long a server that may not speak delta may say nothing in it (DX-4).
const DELTA_SILENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Client features told to ADS servers (P-67).
const DOES_NOT_SUPPORT_OVERPROVISIONING: &str = "envoy.lb.does_not_support_overprovisioning";
const RESOURCE_IN_SOTW: &str = "xds.config.resource-in-sotw";
/// Ours: a control plane that knows it says at once what it does not have (TP3). There is no feature for it that all know.
const READS_RESOURCE_ERRORS: &str = "mainstay.reads-resource-errors";
const SUPPORTS_LB_ENDPOINT_COLLECTION: &str = "xds.endpoint.supports_lb_endpoint_collection";
