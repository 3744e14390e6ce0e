//! What must hold after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_xds::Choose;
use mainstay_xds::client::StreamId;

use super::{Link, START, WARM_BOUND, Who, World};
use crate::invariant::{Invariant, Violation};
use crate::oracle::picture::{Part, Picture};
use crate::oracle::{Seen, View};

impl World {
    pub(super) fn check(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        self.stats.virtual_time = self.now.since(START);
        if let Some(misuse) = self.shell.misuse.take() {
            return Err(Invariant::Connections.broken(misuse));
        }
        let Some(mut oracle) = self.oracle.take() else { return Ok(()) };
        let before = oracle.1.picture.clone();
        let quiet = self.quiet_links(Who::Channel);
        let is_quiet =
            quiet.len() == self.links.keys().filter(|(who, _)| *who == Who::Channel).count() && self.lookups.is_empty();
        let dump = self.core.client().dump();
        let servers = self.core.client().server_states();
        let view = View { now: self.now, dump: &dump, servers: &servers, quiet: &quiet };
        let (client, config) = &mut *oracle;
        let counted: usize = self.core.client().count_resources().iter().map(|count| count.count).sum();
        let verdict = client
            .check(&view)
            .and_then(|()| config.check(client, &view, self.core.config(), is_quiet))
            .and_then(|()| {
                Invariant::States.holds(counted == dump.len(), || {
                    format!("{counted} resources are counted, and {} are shown", dump.len())
                })
            });
        self.oracle = Some(oracle);
        verdict?;
        self.check_side()?;
        let now = self.oracle.as_ref().and_then(|oracle| oracle.1.picture.as_ref());
        if let Some(before) = before
            && !now.is_some_and(|now| Arc::ptr_eq(now, &before))
        {
            self.note_failing(&before);
            self.recent.push((self.now + WARM_BOUND, before));
            self.loads.reconfigured(self.now + WARM_BOUND);
        }
        // Who was stopped has not had the time to end what was to end meanwhile.
        let is_asleep = self.oracle.as_ref().is_some_and(|oracle| oracle.0.is_asleep());
        self.recent.retain(|(until, _)| self.now <= *until || is_asleep);
        self.check_connections(is_quiet)?;
        self.check_traffic(choose, self.scenario.grain)
    }

    /// Takes down which clusters had a part that could not take an RPC: it had no endpoints, or all of them failed.
    fn note_failing(&mut self, before: &Picture) {
        for (name, part) in &before.parts {
            let Part::Leaf(_, Some(priorities)) = part else { continue };
            let addresses = before.addresses(name);
            let has_trouble = addresses.iter().any(|address| self.shell.troubled.contains(address));
            let is_empty = priorities.iter().flatten().any(|(_, endpoints)| endpoints.is_empty());
            if is_empty || (has_trouble && !self.shell.has_ready(&addresses)) {
                self.shell.failing.insert(name.clone());
            }
        }
    }

    /// There is one connection to each address at most, and none to an address that nobody needs.
    fn check_connections(&self, is_quiet: bool) -> Result<(), Violation> {
        if !is_quiet {
            return Ok(());
        }
        let picture = self.oracle.as_ref().and_then(|oracle| oracle.1.picture.as_ref());
        let pictures = picture.into_iter().chain(self.recent.iter().map(|(_, recent)| recent));
        let needed: BTreeSet<SocketAddr> = pictures.flat_map(|picture| picture.all_addresses()).collect();
        let mut seen = BTreeSet::new();
        for connection in self.shell.connections.values() {
            let address = connection.handle.address;
            Invariant::Connections.holds(seen.insert(address), || format!("two connections to {address}"))?;
            Invariant::Connections
                .holds(needed.contains(&address), || format!("{address} is connected and not needed"))?;
        }
        Ok(())
    }

    /// The open streams of a client through which nothing is under way, and what is at their other end.
    pub(super) fn quiet_links(&self, who: Who) -> BTreeMap<StreamId, Seen<'_>> {
        let is_quiet = |link: &Link| {
            link.connecting.is_none()
                && !link.closed
                && link.unsent.is_none()
                && link.to_plane.is_empty()
                && link.to_client.is_empty()
                && !link.session.has_news(&self.planes[link.plane])
        };
        let links = self.links.iter().filter(|((owner, _), link)| *owner == who && is_quiet(link));
        let seen = |link: &Link| {
            let plane = &self.planes[link.plane];
            let answers = plane.is_fine() && !link.dead && (plane.speaks_delta() || !link.session.is_delta);
            Seen { truth: answers.then_some(&**plane.truth()), deaf: link.session.deaf().collect() }
        };
        links.map(|((_, id), link)| (*id, seen(link))).collect()
    }
}
