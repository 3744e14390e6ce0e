//! Another client of the same process: `#server`, with watchers of its own that come and go.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{Action, Output, WatchId, XdsClient};
use mainstay_xds::name::{AuthorityKey, ResourceKey};

use super::{Who, World};
use crate::invariant::{Invariant, Violation};
use crate::oracle::watchers::Watchers;
use crate::oracle::{Oracle, Rules, View};
use crate::scenario::Scenario;

/// A client, its watchers and its judge.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) client: XdsClient,
    pub(super) watches: BTreeMap<WatchId, ResourceKey>,
    pub(super) watchers: Watchers,
    pub(super) oracle: Oracle,
    /// The server that was said to be in charge of each authority.
    active: BTreeMap<AuthorityKey, Arc<ServerConfig>>,
    deadline: Option<Time>,
}

impl Side {
    pub(super) fn new(scenario: &Scenario, rules: &Arc<Rules>) -> Self {
        Self {
            client: XdsClient::new(scenario.bootstrap.clone(), scenario.client_settings()),
            watches: BTreeMap::new(),
            watchers: Watchers::default(),
            oracle: Oracle::new(rules.clone()),
            active: BTreeMap::new(),
            deadline: None,
        }
    }

    fn told_active(&mut self, authority: AuthorityKey, server: Arc<ServerConfig>) -> Result<(), Violation> {
        let what = format!("{authority} is said to go by {}", server.server_uri);
        let is_usable = self.oracle.rules.authority_servers(&authority).any(|known| *known == server);
        Invariant::States.holds(is_usable, || format!("{what}, which is none of its servers"))?;
        self.active.insert(authority, server);
        Ok(())
    }

    /// Whoever asks which server is in charge was told.
    fn check_active(&self) -> Result<(), Violation> {
        for (authority, server) in self.oracle.all_in_charge() {
            let told = self.active.get(authority);
            Invariant::States.holds(told == Some(server), || {
                let told = told.map(|told| &told.server_uri);
                format!("{authority} goes by {}, and what was told is {told:?}", server.server_uri)
            })?;
        }
        Ok(())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}

impl World {
    pub(super) fn watch(&mut self, index: usize) {
        let key = self.scenario.side[index].clone();
        let Some(side) = &mut self.side else { return };
        let id = side.client.watch(self.now, key.resource_type, &key.name);
        side.watches.insert(id, key.clone());
        side.watchers.add(id, key.clone());
        side.oracle.watching(self.now, &key);
    }

    /// The oldest watch ends.
    pub(super) fn unwatch(&mut self) {
        let Some(side) = &mut self.side else { return };
        if let Some((id, _)) = side.watches.pop_first() {
            side.client.unwatch(self.now, id);
            side.watchers.remove(id);
        }
    }

    /// Every watch ends.
    pub(super) fn unwatch_all(&mut self) {
        while self.side.as_ref().is_some_and(|side| !side.watches.is_empty()) {
            self.unwatch();
        }
    }

    /// Does what the other client says.
    pub(super) fn settle_side(&mut self) -> Result<(), Violation> {
        loop {
            let Some(side) = &mut self.side else { return Ok(()) };
            let action = match side.client.poll_output() {
                Output::Do(action) => action,
                Output::Wait(deadline) => {
                    side.deadline = deadline;
                    return Ok(());
                }
            };
            self.actions += 1;
            match action {
                Action::Open { stream, server, connect_timeout, protocol } => {
                    self.open_stream(Who::Side, stream, &server, connect_timeout, protocol)?;
                }
                Action::Send(stream, bytes) => self.send(Who::Side, stream, bytes)?,
                Action::Probe { stream, call } => self.probe(Who::Side, stream, call)?,
                Action::Close(stream) => self.close_stream(Who::Side, stream)?,
                Action::Notify(watch, update) => side.watchers.told(watch, update, &side.oracle)?,
                Action::Report(report) => self.report(Who::Side, report)?,
                Action::ActiveServer(authority, server) => side.told_active(authority, server)?,
            }
        }
    }

    pub(super) fn check_side(&mut self) -> Result<(), Violation> {
        let Some(mut side) = self.side.take() else { return Ok(()) };
        let (dump, servers) = (side.client.dump(), side.client.server_states());
        let quiet = self.quiet_links(Who::Side);
        let view = View { now: self.now, dump: &dump, servers: &servers, quiet: &quiet };
        let verdict = side.oracle.check(&view).and_then(|()| {
            let mut watched: Vec<_> = side.watches.values().collect();
            watched.sort();
            watched.dedup();
            watched.retain(|key| side.oracle.rules.authority_of(key).is_some());
            let shown: Vec<_> = dump.iter().map(|status| &status.resource).collect();
            Invariant::Watches
                .holds(watched == shown, || format!("{watched:?} are watched, and {shown:?} are shown"))?;
            let is_idle = side.watches.is_empty() && !self.links.keys().any(|(who, _)| *who == Who::Side);
            Invariant::Leak.holds(!is_idle || side.deadline.is_none(), || {
                format!("nothing is watched, and something is due at {:?}", side.deadline)
            })?;
            side.check_active()?;
            side.watchers.check(&side.oracle)
        });
        self.side = Some(side);
        verdict
    }
}
