//! What can happen next.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use mainstay_lb::SubchannelId;
use mainstay_xds::client::StreamId;
use mainstay_xds::deps::DnsName;
use mainstay_xds::resource::ResourceType;

use super::{Link, World};
use crate::plane::Net;
use crate::scenario::Grain;

/// Something that can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A connection attempt to a control plane ends, one way or the other.
    Connect(StreamId),
    /// The transport takes a request.
    Sent(StreamId),
    /// A request reaches the control plane.
    Arrive(StreamId),
    /// The control plane says what is due about a type.
    Serve(StreamId, ResourceType),
    /// A response reaches the client.
    Deliver(StreamId),
    /// A response of a stream that the client has closed reaches it.
    DeliverLate(StreamId),
    /// A lookup succeeds or fails.
    Resolve(DnsName, bool),
    /// A connection to a backend takes its next step.
    Backend(SubchannelId),
    /// Time passes until something is due.
    Time,
    /// An RPC is made for this path.
    Rpc(u8),
    /// The oldest RPC ends.
    RpcEnd,
    /// A control plane has news.
    Publish(usize),
    /// A control plane and the network to it work again.
    Heal(usize),
    /// A control plane stops.
    Kill(usize),
    /// Packets to and from a control plane vanish.
    BlackHole(usize),
    /// A control plane does not answer any more.
    Mute(usize),
    /// A control plane ends a stream.
    Cut(StreamId),
    /// The connection of a stream is lost and nobody is told.
    HalfOpen(StreamId),
    /// A control plane sends nonsense.
    Garbage(StreamId),
    /// A backend refuses connections and drops those it has.
    BackendDown(SocketAddr),
    /// A backend works again.
    BackendUp(SocketAddr),
}

impl World {
    /// What can happen now. First what a world without faults and delays would do next.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.pending();
        let quiet = events.is_empty();
        if self.next_deadline().is_some() && (quiet || self.delays_left > 0) {
            events.push(Event::Time);
        }
        if self.scenario.grain == Grain::Fine {
            events.extend([Event::Rpc(0), Event::Rpc(1)]);
            events.extend((!self.rpcs.is_empty()).then_some(Event::RpcEnd));
        }
        for (index, plane) in self.planes.iter().enumerate() {
            if plane.edition + 1 < self.scenario.planes[index].editions.len() {
                events.push(Event::Publish(index));
            }
            if plane.net != Net::Up || plane.mute {
                events.push(Event::Heal(index));
            }
        }
        events.extend(self.shell.down.iter().map(|address| Event::BackendUp(*address)));
        if self.faults_left > 0 {
            self.add_faults(&mut events);
        }
        if self.backend_faults_left > 0 {
            let addresses: BTreeSet<_> = self.shell.connections.values().map(|c| c.handle.address).collect();
            events.extend(addresses.difference(&self.shell.down).map(|address| Event::BackendDown(*address)));
        }
        events
    }

    /// What is under way and will happen if nothing comes between.
    pub(super) fn pending(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (id, link) in &self.links {
            let plane = &self.planes[link.plane];
            if link.closed {
                events.extend((!link.to_client.is_empty()).then_some(Event::DeliverLate(*id)));
                continue;
            }
            if link.unsent.is_some() {
                events.push(Event::Sent(*id));
            }
            if plane.net == Net::BlackHole || link.dead {
                continue;
            }
            if link.connecting.is_some() {
                events.push(Event::Connect(*id));
                continue;
            }
            if !link.to_client.is_empty() {
                events.push(Event::Deliver(*id));
            }
            if !link.to_plane.is_empty() {
                events.push(Event::Arrive(*id));
            }
            let due = ResourceType::ALL.into_iter().filter(|kind| plane.is_due(&link.session, *kind));
            events.extend(due.map(|kind| Event::Serve(*id, kind)));
        }
        events.extend(self.shell.under_way().map(Event::Backend));
        for name in &self.lookups {
            events.extend([Event::Resolve(name.clone(), true), Event::Resolve(name.clone(), false)]);
        }
        events
    }

    fn add_faults(&self, events: &mut Vec<Event>) {
        let kinds = self.scenario.limits.kinds;
        for (index, plane) in self.planes.iter().enumerate() {
            if plane.net == Net::Up {
                events.extend(kinds.kill.then_some(Event::Kill(index)));
                events.extend(kinds.black_hole.then_some(Event::BlackHole(index)));
                events.extend((kinds.mute && !plane.mute).then_some(Event::Mute(index)));
            }
        }
        let is_live = |link: &Link| {
            !link.closed && link.connecting.is_none() && !link.dead && self.planes[link.plane].net == Net::Up
        };
        for (id, _) in self.links.iter().filter(|(_, link)| is_live(link)) {
            events.extend(kinds.cut.then_some(Event::Cut(*id)));
            events.extend(kinds.half_open.then_some(Event::HalfOpen(*id)));
            events.extend(kinds.garbage.then_some(Event::Garbage(*id)));
        }
    }
}
