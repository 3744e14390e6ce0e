//! What goes wrong.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use mainstay_lb::{Connectivity, Input};
use mainstay_xds::Choose;
use mainstay_xds::client::{self, CloseCause};

use super::{Event, KEEPALIVE, World};
use crate::plane::Net;
use crate::shell::State;

impl World {
    pub(super) fn fault(&mut self, choose: &mut dyn Choose, event: &Event) {
        self.faults_left = self.faults_left.saturating_sub(1);
        self.stats.faults += 1;
        match event {
            Event::Kill(index) => {
                self.planes[*index].stop();
                self.reset_links(choose, *index);
            }
            Event::Restart(index) => {
                self.planes[*index].restart();
                self.reset_links(choose, *index);
            }
            Event::BlackHole(index) => {
                self.planes[*index].net = Net::BlackHole;
                let keepalive = self.now + KEEPALIVE;
                for id in self.open_links(*index) {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.keepalive.get_or_insert(keepalive);
                    }
                }
            }
            Event::Mute(index) => self.planes[*index].mute = true,
            Event::Cut(id) => {
                self.lose(choose, *id, CloseCause::Ended { code: 14, message: "restarting".to_owned() });
            }
            Event::HalfOpen(id) => {
                if let Some(link) = self.links.get_mut(id) {
                    link.dead = true;
                    link.keepalive.get_or_insert(self.now + KEEPALIVE);
                }
            }
            Event::Garbage((who, id)) => {
                if let Some(link) = self.links.get_mut(&(*who, *id)) {
                    link.bytes = true;
                }
                if let Some(oracle) = self.oracle_of(*who) {
                    oracle.nonsense(*id);
                }
                let nonsense = Bytes::from_static(b"\xff\xffnonsense");
                self.xds(choose, *who, client::Event::Received(*id, nonsense));
            }
            _ => {}
        }
    }

    pub(super) fn reset_links(&mut self, choose: &mut dyn Choose, plane: usize) {
        for id in self.open_links(plane) {
            self.lose(choose, id, CloseCause::ConnectionLost("connection reset".to_owned()));
        }
        self.lose_loads(choose, plane);
    }

    /// Our process stops for so long: what was due meanwhile is late, and what came meanwhile waits to be read.
    pub(super) fn stop(&mut self, seconds: u64) {
        self.faults_left = self.faults_left.saturating_sub(1);
        self.stats.faults += 1;
        self.now = self.now + Duration::from_secs(seconds);
        if let Some(oracle) = &mut self.oracle {
            oracle.0.woke(self.now);
        }
        if let Some(side) = &mut self.side {
            side.oracle.woke(self.now);
        }
    }

    pub(super) fn backend_down(&mut self, choose: &mut dyn Choose, address: SocketAddr) {
        self.backend_faults_left = self.backend_faults_left.saturating_sub(1);
        self.stats.faults += 1;
        self.shell.down.insert(address);
        self.shell.troubled.insert(address);
        let mut lost = Vec::new();
        for (id, connection) in &mut self.shell.connections {
            if connection.handle.address == address && connection.state == State::Ready {
                connection.state = State::Idle;
                lost.push(*id);
            }
        }
        for id in lost {
            self.input(choose, Input::Connectivity(id, Connectivity::Idle));
        }
    }
}
