//! What the cores do, carried out, and told to their judges.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use mainstay_lb::Action;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Protocol, Report, StreamId};
use prost::Message;

use super::{Link, LinkId, Who, World, tell};
use crate::invariant::{Invariant, Violation};
use crate::plane::Session;
use crate::shell::Handle;

impl World {
    pub(super) fn act(&mut self, action: Action<Handle>) -> Result<(), Violation> {
        match action {
            Action::OpenStream { stream, server, connect_timeout, protocol } => {
                self.open_stream(Who::Channel, stream, &server, connect_timeout, protocol)
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
        protocol: Protocol,
    ) -> Result<(), Violation> {
        let plane = self.scenario.plane_of(server);
        let protocol = self.scenario.meddling.map_or(protocol, |meddling| meddling.open(protocol));
        let plane = plane.ok_or_else(|| Invariant::Attempts.broken("an attempt at an unknown server"))?;
        self.note(|_| format!("  > {}open {} {protocol:?}", who.tell(), server.server_uri));
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.open(now, plane, stream, connect_timeout, protocol)?;
        }
        let link = Link {
            plane,
            connecting: Some(self.now + connect_timeout),
            session: Session::new(protocol == Protocol::Delta),
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
        let bytes = self.meddle((who, stream), bytes);
        let broken = |error| Invariant::Answers.broken(format!("not a request: {error}"));
        let id = (who, stream);
        if self.links.get(&id).is_some_and(|link| link.session.is_delta) {
            let request = DeltaDiscoveryRequest::decode(bytes.clone()).map_err(broken)?;
            self.note(|world| format!("  > {}{}: {}", who.tell(), world.server_of(id), tell::delta_request(&request)));
            if let Some(oracle) = self.oracle_of(who) {
                oracle.send_delta(stream, &request)?;
            }
        } else {
            let request = DiscoveryRequest::decode(bytes.clone()).map_err(broken)?;
            self.note(|world| format!("  > {}{}: {}", who.tell(), world.server_of(id), tell::request(&request)));
            if let Some(oracle) = self.oracle_of(who) {
                oracle.send(stream, &request)?;
            }
        }
        if let Some(link) = self.links.get_mut(&id) {
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
        let now = self.now;
        if let Some(oracle) = self.oracle_of(who) {
            oracle.close(now, stream)?;
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
        Ok(())
    }

    /// What a client says, as it is heard by everybody else.
    fn meddle(&self, id: LinkId, bytes: Bytes) -> Bytes {
        let is_delta = self.links.get(&id).is_some_and(|link| link.session.is_delta);
        let Some(meddling) = self.scenario.meddling.filter(|_| is_delta) else { return bytes };
        let Ok(request) = DeltaDiscoveryRequest::decode(bytes.clone()) else { return bytes };
        let dump = match (id.0, &self.side) {
            (Who::Side, Some(side)) => side.client.dump(),
            _ => self.core.client().dump(),
        };
        let held = |name: &str| {
            let status = dump.iter().find(|status| *status.resource.name == *name)?;
            Some(status.value.as_ref()?.provenance.version.to_string()).filter(|version| !version.is_empty())
        };
        meddling.say(request, held).encode_to_vec().into()
    }
}
