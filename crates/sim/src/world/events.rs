//! What can happen next.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use mainstay_lb::SubchannelId;
use mainstay_xds::client::StreamId;
use mainstay_xds::deps::DnsName;
use mainstay_xds::resource::ResourceType;

use super::{Link, LinkId, World};
use crate::plane::{Net, Speech};
use crate::scenario::Grain;

/// Something that can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A connection attempt to a control plane ends, one way or the other.
    Connect(LinkId),
    /// The transport takes a request.
    Sent(LinkId),
    /// A request reaches the control plane.
    Arrive(LinkId),
    /// The control plane says what is due about a type.
    Serve(LinkId, ResourceType),
    /// The control plane ends a stream of the incremental variant, which it does not know.
    Refuse(LinkId),
    /// A response reaches the client.
    Deliver(LinkId),
    /// A response of a stream that the client has closed reaches it.
    DeliverLate(LinkId),
    /// An answer to an HTTP/2 PING arrives.
    Pong(LinkId),
    /// An answer to a health check arrives.
    Answer(LinkId),
    /// A part of a response arrives.
    Trickle(LinkId),
    /// A stream of load reports takes its next step.
    Load(StreamId),
    /// A lookup succeeds or fails.
    Resolve(DnsName, bool),
    /// A connection to a backend takes its next step.
    Backend(SubchannelId),
    /// Time passes until something is due.
    Time,
    /// Our process is stopped for so many seconds.
    Stop(u64),
    /// So many things happen before anything is done about them.
    Together(u8),
    /// Everything that is under way happens.
    Lull,
    /// An RPC is made for this path.
    Rpc(u8),
    /// The oldest RPC ends.
    RpcEnd,
    /// Somebody subscribes to a cluster.
    Subscribe(String),
    /// Somebody does not need a cluster any more.
    Release(String),
    /// The other client begins to watch.
    Watch(usize),
    /// The oldest watch of the other client ends.
    Unwatch,
    /// The other client is told to forget past failures.
    Impatience,
    /// A control plane has news.
    Publish(usize),
    /// A control plane says everything of a type once more.
    Repeat(LinkId, ResourceType),
    /// A control plane and the network to it work again.
    Heal(usize),
    /// A control plane stops.
    Kill(usize),
    /// A control plane starts afresh, with nothing to serve yet.
    Restart(usize),
    /// Packets to and from a control plane vanish, or its process is stopped.
    BlackHole(usize),
    /// A control plane hangs: it answers PINGs and nothing else.
    Mute(usize),
    /// A control plane ends a stream.
    Cut(LinkId),
    /// The connection of a stream is lost and nobody is told.
    HalfOpen(LinkId),
    /// A control plane sends nonsense.
    Garbage(LinkId),
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
        let late = self.next_deadline().is_some_and(|next| next < self.now);
        if self.next_deadline().is_some() && (quiet || late || self.delays_left > 0) {
            events.push(Event::Time);
        }
        if self.scenario.grain == Grain::Fine {
            events.extend([Event::Rpc(0), Event::Rpc(1)]);
            events.extend((!self.rpcs.is_empty()).then_some(Event::RpcEnd));
            if !quiet {
                events.extend([Event::Lull, Event::Together(2), Event::Together(5)]);
            }
            self.add_users(&mut events);
            self.add_oddities(&mut events);
        }
        for (index, plane) in self.planes.iter().enumerate() {
            if plane.edition + 1 < self.scenario.planes[index].editions.len() {
                events.push(Event::Publish(index));
            }
            if plane.net != Net::Up || plane.mute || plane.cold {
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
            if link.session.is_delta && link.session.has_asked() && plane.speech == Speech::Refuses && !plane.mute {
                events.push(Event::Refuse(*id));
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
        events.extend(self.signs_of_life());
        events.extend(self.loads.under_way(&self.planes).map(Event::Load));
        events.extend(self.shell.under_way().map(Event::Backend));
        for name in &self.lookups {
            events.extend([Event::Resolve(name.clone(), true), Event::Resolve(name.clone(), false)]);
        }
        events
    }

    /// Who needs what comes and goes.
    fn add_users(&self, events: &mut Vec<Event>) {
        for cluster in &self.scenario.subscribable {
            events.push(Event::Subscribe(cluster.clone()));
        }
        events.extend(self.subscriptions.keys().cloned().map(Event::Release));
        if let Some(side) = &self.side {
            if side.watches.len() < MAX_WATCHES {
                events.extend((0..self.scenario.side.len()).map(Event::Watch));
            }
            if !side.watches.is_empty() {
                events.extend([Event::Unwatch, Event::Impatience]);
            }
        }
    }

    /// What servers may do, and seldom do.
    fn add_oddities(&self, events: &mut Vec<Event>) {
        if self.delays_left == 0 {
            return;
        }
        for (id, link) in &self.links {
            let plane = &self.planes[link.plane];
            if link.closed || link.dead || link.connecting.is_some() || plane.net != Net::Up || plane.mute {
                continue;
            }
            events.extend((!link.to_client.is_empty()).then_some(Event::Trickle(*id)));
            let asked = ResourceType::ALL.into_iter().filter(|kind| link.session.is_asked(*kind));
            events.extend(asked.map(|kind| Event::Repeat(*id, kind)));
        }
    }

    fn add_faults(&self, events: &mut Vec<Event>) {
        let kinds = self.scenario.limits.kinds;
        for (index, plane) in self.planes.iter().enumerate() {
            if plane.net == Net::Up {
                events.extend(kinds.kill.then_some(Event::Kill(index)));
                events.extend(kinds.black_hole.then_some(Event::BlackHole(index)));
                events.extend((kinds.mute && !plane.mute).then_some(Event::Mute(index)));
                events.extend((kinds.restart && !plane.cold).then_some(Event::Restart(index)));
            }
        }
        if kinds.stop {
            events.extend([3, 12, 40].map(Event::Stop));
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

/// So many watches of the other client at a time.
const MAX_WATCHES: usize = 6;
