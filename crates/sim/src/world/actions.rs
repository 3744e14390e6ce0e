//! What the cores do, carried out, and told to their judges.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_lb::Action;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Report, StreamId};
use prost::Message;

use super::{Link, Who, World, tell};
use crate::invariant::{Invariant, Violation};
use crate::plane::Session;
use crate::shell::Handle;

impl World {
    pub(super) fn act(&mut self, action: Action<Handle>) -> Result<(), Violation> {
        match action {
            Action::OpenStream { stream, server, connect_timeout, .. } => {
                self.open_stream(Who::Channel, stream, &server, connect_timeout)
            }
            Action::Send(stream, bytes) => self.send(Who::Channel, stream, bytes),
            Action::Probe { stream, call } => self.probe(Who::Channel, stream, call),
            Action::CloseStream(stream) => self.close_stream(Who::Channel, stream),
            Action::Load(action) => self.load(action),
            Action::Resolve(name) => {
                self.note(|_| format!("  > resolve {name}"));
                if let Some(oracle) = &mut self.oracle {
                    oracle.1.resolves(&name);
                }
                let is_new = self.lookups.insert(name.clone());
                Invariant::Work.holds(is_new, || format!("{name} is looked up twice at a time"))
            }
            Action::StopResolving(name) => {
                if let Some(oracle) = &mut self.oracle {
                    oracle.1.stops_resolving(&name);
                }
                let was_there = self.lookups.remove(&name);
                Invariant::Leak.holds(was_there, || format!("{name} is not looked up, and that was to stop"))
            }
            Action::Report(report) => self.report(Who::Channel, report),
            Action::Publish(snapshot) => {
                self.stats.configs += 1;
                self.note(|world| format!("  = {}", tell::config(&world.core)));
                self.snapshot = snapshot;
                Ok(())
            }
        }
    }

    pub(super) fn open_stream(
        &mut self,
        who: Who,
        stream: StreamId,
        server: &ServerConfig,
        connect_timeout: Duration,
    ) -> Result<(), Violation> {
        let plane = self.scenario.plane_of(server);
        let plane = plane.ok_or_else(|| Invariant::Attempts.broken("an attempt at an unknown server"))?;
        self.note(|_| format!("  > {}open {}", who.tell(), server.server_uri));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.open(now, plane, stream, connect_timeout)?;
        }
        let link = Link {
            plane,
            connecting: Some(self.now + connect_timeout),
            session: Session::default(),
            unsent: None,
            to_plane: VecDeque::new(),
            to_client: VecDeque::new(),
            ping: false,
            call: false,
            probed: false,
            bytes: false,
            dead: false,
            keepalive: None,
            closed: false,
        };
        self.links.insert((who, stream), link);
        Ok(())
    }

    pub(super) fn send(&mut self, who: Who, stream: StreamId, bytes: Bytes) -> Result<(), Violation> {
        let request = DiscoveryRequest::decode(bytes.clone());
        let request = request.map_err(|error| Invariant::Answers.broken(format!("not a request: {error}")))?;
        self.note(|world| format!("  > {}{}: {}", who.tell(), world.server_of((who, stream)), tell::request(&request)));
        if let Some(oracle) = self.oracle_of(who) {
            oracle.send(stream, &request)?;
        }
        if let Some(link) = self.links.get_mut(&(who, stream)) {
            link.unsent = Some(bytes);
        }
        Ok(())
    }

    pub(super) fn probe(&mut self, who: Who, stream: StreamId, call: bool) -> Result<(), Violation> {
        self.note(|world| format!("  > {}{}: PING, call: {call}", who.tell(), world.server_of((who, stream))));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.probe(now, stream, call)?;
        }
        if let Some(link) = self.links.get_mut(&(who, stream)) {
            (link.ping, link.probed) = (true, true);
            link.call |= call;
        }
        Ok(())
    }

    pub(super) fn close_stream(&mut self, who: Who, stream: StreamId) -> Result<(), Violation> {
        self.note(|world| format!("  > {}close {}", who.tell(), world.server_of((who, stream))));
        if let Some(oracle) = self.oracle_of(who) {
            oracle.close(stream)?;
        }
        if let Some(mut link) = self.links.remove(&(who, stream))
            && !link.to_client.is_empty()
        {
            link.closed = true;
            self.links.insert((who, stream), link);
        }
        Ok(())
    }

    pub(super) fn report(&mut self, who: Who, report: Report) -> Result<(), Violation> {
        self.stats.fallbacks += u64::from(matches!(report, Report::FellBack(..)));
        self.note(|_| format!("  ! {}{}", who.tell(), report));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.report(now, &report)?;
        }
        if let Some(reports) = self.reports.as_mut().filter(|_| who == Who::Channel) {
            reports.push(report);
        }
        Ok(())
    }
}
