//! What happens to the streams between the clients and the control planes.

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use mainstay_xds::Choose;
use mainstay_xds::client::{self, CloseCause, Sign};
use prost::Message;

use super::{Event, Link, LinkId, Who, World};
use crate::invariant::{Invariant, Violation};
use crate::plane::Net;

impl World {
    pub(super) fn open_links(&self, plane: usize) -> Vec<LinkId> {
        let open = |link: &Link| link.plane == plane && !link.closed && link.connecting.is_none();
        self.links.iter().filter(|(_, link)| open(link)).map(|(id, _)| *id).collect()
    }

    pub(super) fn heal(&mut self, index: usize) {
        let plane = &mut self.planes[index];
        (plane.net, plane.mute, plane.cold) = (Net::Up, false, false);
        for link in self.links.values_mut().filter(|link| link.plane == index && !link.dead) {
            link.keepalive = None;
        }
    }

    pub(super) fn connect(&mut self, choose: &mut dyn Choose, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if self.planes[link.plane].net == Net::Refusing {
            return self.lose(choose, id, CloseCause::ConnectFailed("connection refused".to_owned()));
        }
        link.connecting = None;
        let now = self.now;
        if let Some(oracle) = self.oracle_of(id.0) {
            oracle.opened(now, id.1);
        }
        self.xds(choose, id.0, client::Event::Opened(id.1));
    }

    /// The stream is over, and the client is told.
    pub(super) fn lose(&mut self, choose: &mut dyn Choose, id: LinkId, cause: CloseCause) {
        self.links.remove(&id);
        let now = self.now;
        if let Some(oracle) = self.oracle_of(id.0) {
            oracle.lost(now, id.1, &cause);
        }
        self.xds(choose, id.0, client::Event::Closed(id.1, cause));
    }

    pub(super) fn sent(&mut self, choose: &mut dyn Choose, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(unsent) = link.unsent.take() else { return };
        link.to_plane.push_back(unsent);
        link.bytes = false;
        let now = self.now;
        if let Some(oracle) = self.oracle_of(id.0) {
            oracle.sent(now, id.1);
        }
        self.xds(choose, id.0, client::Event::Sent(id.1));
    }

    pub(super) fn arrive(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(bytes) = link.to_plane.pop_front() else { return };
        let plane = &mut self.planes[link.plane];
        if link.session.is_delta {
            if let Ok(request) = DeltaDiscoveryRequest::decode(bytes) {
                plane.take_delta(&mut link.session, &request);
            }
        } else if let Ok(request) = DiscoveryRequest::decode(bytes) {
            plane.take(&mut link.session, &request);
        }
    }

    pub(super) fn deliver(&mut self, choose: &mut dyn Choose, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(response) = link.to_client.pop_front() else { return };
        link.bytes = true;
        self.note(|_| format!("  < {}{response}", id.0.tell()));
        if let Some(oracle) = self.oracle_of(id.0) {
            oracle.delivered(id.1, &response);
        }
        if let (Who::Side, Some(side)) = (id.0, &mut self.side) {
            side.watchers.responded();
        }
        let message = match self.scenario.meddling {
            Some(meddling) => meddling.hear(&response).encode(),
            None => response.encode(),
        };
        self.xds(choose, id.0, client::Event::Received(id.1, message));
    }

    /// A sign of life arrives. One that was not asked for is told when it is.
    pub(super) fn show_life(&mut self, choose: &mut dyn Choose, event: &Event, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let sign = match event {
            Event::Pong(_) => {
                link.ping = false;
                // What came before it was asked for is told at once.
                if link.bytes { Sign::Data } else { Sign::Pong }
            }
            Event::Answer(_) => {
                link.call = false;
                Sign::Data
            }
            _ => {
                self.delays_left = self.delays_left.saturating_sub(1);
                link.bytes = true;
                if !link.probed {
                    return;
                }
                Sign::Data
            }
        };
        if let Some(oracle) = self.oracle_of(id.0) {
            oracle.alive(id.1, sign);
        }
        self.xds(choose, id.0, client::Event::Alive(id.1, sign));
    }

    pub(super) fn deliver_late(&mut self, choose: &mut dyn Choose, id: LinkId) -> Result<(), Violation> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let Some(response) = link.to_client.pop_front() else { return Ok(()) };
        if link.to_client.is_empty() {
            self.links.remove(&id);
        }
        let (core, side) = (self.core.clone(), self.side.as_ref().map(|side| side.client.clone()));
        self.xds(choose, id.0, client::Event::Received(id.1, response.encode()));
        let same = match id.0 {
            Who::Channel => self.core == core,
            Who::Side => self.side.as_ref().map(|side| &side.client) == side.as_ref(),
        };
        Invariant::Cache.holds(same, || {
            format!("{response} came on stream {}, which the client had closed, and changed something (P-26)", id.1.0)
        })
    }

    /// What answers to a question for a sign of life.
    pub(super) fn signs_of_life(&self) -> Vec<Event> {
        let mut signs = Vec::new();
        for (id, link) in self.links.iter().filter(|(_, link)| !link.closed && !link.dead) {
            let plane = &self.planes[link.plane];
            if plane.net != Net::Up || link.connecting.is_some() {
                continue;
            }
            signs.extend(link.ping.then_some(Event::Pong(*id)));
            signs.extend((link.call && !plane.mute).then_some(Event::Answer(*id)));
        }
        signs
    }
}
