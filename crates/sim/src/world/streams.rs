//! What happens to the streams between the channel and its control planes.

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_lb::Input;
use mainstay_xds::Choose;
use mainstay_xds::client::{self, CloseCause, StreamId};
use mainstay_xds::resource::ResourceType;
use prost::Message;

use super::{Link, World};
use crate::invariant::{Invariant, Violation};
use crate::mutant::Mutant;
use crate::plane::Net;

impl World {
    pub(super) fn open_links(&self, plane: usize) -> Vec<StreamId> {
        let open = |link: &Link| link.plane == plane && !link.closed && link.connecting.is_none();
        self.links.iter().filter(|(_, link)| open(link)).map(|(id, _)| *id).collect()
    }

    pub(super) fn heal(&mut self, index: usize) {
        let plane = &mut self.planes[index];
        plane.net = Net::Up;
        plane.mute = false;
        for link in self.links.values_mut().filter(|link| link.plane == index && !link.dead) {
            link.keepalive = None;
        }
    }

    pub(super) fn connect(&mut self, choose: &mut dyn Choose, id: StreamId) -> Result<(), Violation> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        if self.planes[link.plane].net == Net::Refusing {
            return self.lose(choose, id, CloseCause::ConnectFailed("connection refused".to_owned()));
        }
        link.connecting = None;
        self.memory.silent.insert(id, (link.plane, self.now));
        self.model.opened(self.now, id);
        self.input(choose, Input::Xds(client::Event::Opened(id)));
        Ok(())
    }

    /// The stream is over, and the client is told.
    pub(super) fn lose(&mut self, choose: &mut dyn Choose, id: StreamId, cause: CloseCause) -> Result<(), Violation> {
        self.links.remove(&id);
        self.memory.silent.remove(&id);
        self.model.lost(self.now, id)?;
        if self.has(Mutant::CloseUnheard) {
            return Ok(());
        }
        self.input(choose, Input::Xds(client::Event::Closed(id, cause)));
        Ok(())
    }

    pub(super) fn sent(&mut self, choose: &mut dyn Choose, id: StreamId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.to_plane.extend(link.unsent.take());
        self.model.sent(self.now, id);
        if self.has(Mutant::SentUnheard) {
            return;
        }
        self.input(choose, Input::Xds(client::Event::Sent(id)));
    }

    /// A server that can be reached shows that it is alive.
    pub(super) fn probe(&mut self, choose: &mut dyn Choose, id: StreamId) {
        let is_alive = |link: &Link| !link.dead && !link.closed && self.planes[link.plane].net == Net::Up;
        if self.links.get(&id).is_some_and(is_alive) {
            self.input(choose, Input::Xds(client::Event::Alive(id, client::Sign::Data)));
        }
    }

    pub(super) fn arrive(&mut self, id: StreamId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let request = link.to_plane.pop_front().and_then(|bytes| DiscoveryRequest::decode(bytes).ok());
        if let Some(request) = request {
            self.planes[link.plane].take(&mut link.session, &request);
        }
    }

    pub(super) fn deliver(&mut self, choose: &mut dyn Choose, id: StreamId) -> Result<(), Violation> {
        let Some(response) = self.links.get_mut(&id).and_then(|link| link.to_client.pop_front()) else {
            return Ok(());
        };
        self.note(|_| format!("  < {response}"));
        self.model.delivered(self.now, id, &response)?;
        self.memory.silent.remove(&id);
        let deaf = self.has(Mutant::DeafAfterNonsense) && self.memory.deaf.contains(&id);
        if deaf || self.has(Mutant::ResponseUnread) && response.resource_type != ResourceType::Listener {
            return Ok(());
        }
        self.input(choose, Input::Xds(client::Event::Received(id, response.encode())));
        Ok(())
    }

    pub(super) fn deliver_late(&mut self, choose: &mut dyn Choose, id: StreamId) -> Result<(), Violation> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let Some(response) = link.to_client.pop_front() else { return Ok(()) };
        if link.to_client.is_empty() {
            self.links.remove(&id);
        }
        let current = (0..self.planes.len()).flat_map(|plane| self.open_links(plane)).next();
        let taken_for = current.filter(|_| self.has(Mutant::LateData)).unwrap_or(id);
        let before = self.core.clone();
        self.input(choose, Input::Xds(client::Event::Received(taken_for, response.encode())));
        Invariant::Cache.holds(self.core == before, || {
            format!("{response} came on stream {}, which the client had closed, and changed something (P-26)", id.0)
        })
    }
}
