//! Events and deadlines in, actions out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::Node;

use super::authority::AuthorityId;
use super::intern::{Intern, Unshared};
use super::server::{Link, Opening, Server, ServerId};
use super::timers::TimerKind;
use super::{Action, ClientSettings, ErrorKind, Event, Output, Report, ResourceError, StreamId, XdsClient};
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
            Event::Alive(..) => {}
            Event::Received(_, message) => self.on_message(now, server, message, intern),
            Event::Closed(_, cause) => match self.take_stream(now, server) {
                Some(lived) => self.stream_ended(now, choose, server, lived, &cause.to_string()),
                None => self.attempt_failed(now, choose, server, &cause.to_string()),
            },
        }
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout(&mut self, now: Time, choose: &mut dyn Choose) {
        while let Some(timer) = self.timers.pop_due(now) {
            self.settled = false;
            match timer {
                TimerKind::Backoff(server) => {
                    self.servers[server.0].link = Link::Idle; // The next attempt begins when things are settled.
                }
                TimerKind::Silent(server) => self.on_silent(now, choose, server),
                TimerKind::Missing(server, key) => self.on_missing(now, server, key),
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
        let silent_timeout = self.settings.silent_stream_timeout;
        let opened = &mut self.servers[server.0];
        match opened.take_link() {
            Link::Opening(opening) => {
                opened.link = Link::Unanswered(opening.opened(now, silent_timeout, server, &mut self.timers));
                self.outputs.push_back(Action::Report(Report::Connected(opened.config.clone())));
            }
            link => opened.link = link, // Said twice.
        }
    }

    fn on_sent(&mut self, now: Time, server: ServerId) {
        let wait = self.resource_timeout(server).0;
        let Self { servers, cache, timers, .. } = self;
        let has_data = |key: &ResourceKey| {
            cache.get(key.resource_type, &key.name).is_some_and(|entry| entry.cached.held().is_some())
        };
        if let Some(stream) = servers[server.0].link.stream_mut() {
            stream.sent(now, wait, has_data, timers);
        }
    }

    /// A stream had no response for as long as the settings allow: as good as a failed one.
    fn on_silent(&mut self, now: Time, choose: &mut dyn Choose, server: ServerId) {
        let Some(stream) = self.servers[server.0].link.stream_id() else { return };
        self.outputs.push_back(Action::Close(stream));
        self.take_stream(now, server);
        let timeout = self.settings.silent_stream_timeout.unwrap_or_default();
        self.attempt_failed(now, choose, server, &format!("no response within {} s", timeout.as_secs_f64()));
    }

    /// A server has not sent a resource in time (P-58).
    fn on_missing(&mut self, now: Time, server: ServerId, key: ResourceKey) {
        let (wait, transient) = self.resource_timeout(server);
        let Self { servers, cache, authorities, timers, .. } = self;
        let Some(entry) = cache.get_mut(key.resource_type, &key.name) else { return };
        // A server that is not in charge proves nothing by its silence while the one in charge is well (C-54).
        let active = authorities[entry.authority.0].active();
        let is_down = active.is_some_and(|active| servers[active.0].outage.is_some());
        let proves = active == Some(server) || is_down;
        let from = &mut servers[server.0];
        if let Some(stream) = from.link.stream_mut() {
            stream.expired(&key, (!proves).then_some(now + wait), timers);
        }
        // Data that came meanwhile, from any server, is not taken away.
        if !proves || entry.cached.held().is_some() {
            return;
        }
        let kind =
            if transient { ErrorKind::TimedOut { after: wait } } else { ErrorKind::DoesNotExist { after: wait } };
        let error = ResourceError {
            resource: key.clone(),
            server: Some(from.uri.clone()),
            node_id: self.node_id.clone(),
            kind,
            at: now,
        };
        entry.fail(error, false);
        self.news.extend(&entry.watchers);
        let (id, uncached) = (entry.authority, entry.cached.is_uncached());
        let report = Report::TimedOut(from.config.clone(), key);
        self.report(report);
        // C-43: it may have been known to be absent before, and is uncached only now.
        if is_down && uncached {
            self.active_is_down(id, true);
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
        let is_listed = |key: &ResourceKey| {
            servers.iter().filter_map(|server| server.link.stream()).any(|stream| stream.lists(key))
        };
        for (key, entry) in cache.drop_orphans(is_listed) {
            if let (true, Some(held)) = (entry.deletion_ignored, entry.cached.held()) {
                let report = Report::DeletionOver(held.provenance.server.clone(), key);
                self.outputs.push_back(Action::Report(report));
            }
        }
    }

    fn settle_server(&mut self, id: ServerId) {
        let wanted = self.authorities.iter().any(|authority| authority.in_use().contains(&id));
        let server = &mut self.servers[id.0];
        if !wanted {
            // P-15: without a last word; the server sees the stream end.
            if let Some(stream) = server.release(id, &mut self.timers) {
                self.outputs.push_back(Action::Close(stream));
            }
        } else if server.link == Link::Idle {
            self.open(id);
        } else if let Some((stream, request)) = self.next_request(id) {
            self.outputs.push_back(Action::Send(stream, request));
        }
    }

    fn open(&mut self, id: ServerId) {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        let has_next = self.authorities.iter().any(|authority| authority.has_next(id));
        let connect_timeout = if has_next { self.settings.connect_timeout } else { self.settings.last_connect_timeout };
        let server = &mut self.servers[id.0];
        server.link = Link::Opening(Opening { id: stream });
        let config = server.config.clone();
        self.report(Report::Connecting(config.clone()));
        self.outputs.push_back(Action::Open { stream, server: config, connect_timeout });
    }

    fn next_request(&mut self, id: ServerId) -> Option<(StreamId, Bytes)> {
        let Self { bootstrap, settings, cache, authorities, servers, timers, .. } = self;
        let wanted = |resource_type| -> Vec<Arc<str>> {
            let entries = cache.of_type(resource_type);
            let watched = entries.filter(|(_, entry)| {
                !entry.watchers.is_empty() && authorities[entry.authority.0].in_use().contains(&id)
            });
            watched.map(|(name, _)| name.clone()).collect()
        };
        let (stream, request) = servers[id.0].next_request(wanted, timers)?;
        let bytes = request.encode(|| node(bootstrap, settings));
        Some((stream, bytes))
    }
}

/// Ourselves, as told to servers in the first request of a stream (P-16, P-67).
fn node(bootstrap: &Bootstrap, settings: &ClientSettings) -> Node {
    let mut features = vec![DOES_NOT_SUPPORT_OVERPROVISIONING, RESOURCE_IN_SOTW];
    if bootstrap.guards.endpoint_fallback {
        features.push(SUPPORTS_LB_ENDPOINT_COLLECTION);
    }
    bootstrap.node.to_proto(&settings.user_agent_name, &settings.user_agent_version, &features)
}

/// Client features told to ADS servers (P-67).
const DOES_NOT_SUPPORT_OVERPROVISIONING: &str = "envoy.lb.does_not_support_overprovisioning";
const RESOURCE_IN_SOTW: &str = "xds.config.resource-in-sotw";
const SUPPORTS_LB_ENDPOINT_COLLECTION: &str = "xds.endpoint.supports_lb_endpoint_collection";
