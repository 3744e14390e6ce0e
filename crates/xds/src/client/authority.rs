//! An authority: an ordered list of servers, of which the lowest one in use is in charge (A71).

use std::sync::Arc;

use super::ServerId;
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::name::AuthorityKey;

/// Index of an authority in its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AuthorityId(pub usize);

/// The servers that are asked for the resources of one authority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Authority {
    pub key: AuthorityKey,
    /// In order of preference; each once.
    servers: Vec<ServerId>,
    /// How many of them are in use. The last of these is in charge; those before it failed, and keep trying (C-47).
    open: usize,
    /// Whether it starts with the last server in charge, until another has answered (FB-10).
    eager: bool,
    /// Whether the last server is in charge ahead of its turn. It is in use besides the first ones, of which the last is
    /// being tried.
    ahead: bool,
    /// A95: a lost server is reason enough to fall back.
    pub reachability_only: bool,
    /// How many of its resources have watchers.
    pub watched: usize,
    /// What its watchers hear while the server in charge cannot be reached (C-48).
    pub unreachable: Option<Unreachable>,
}

/// A server cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unreachable {
    pub server: Arc<ServerConfig>,
    pub cause: Arc<str>,
    /// Since when.
    pub since: Time,
}

impl Authority {
    /// An authority that uses none of its servers yet. `servers` has each server once.
    pub(super) fn new(key: AuthorityKey, servers: Vec<ServerId>, reachability_only: bool, eager: bool) -> Self {
        Self { key, servers, open: 0, eager, ahead: false, reachability_only, watched: 0, unreachable: None }
    }

    /// Starts to use the first server, if none is in use (C-39), and the last one besides if that is wanted (FB-10).
    /// Tells whether it did.
    pub(super) fn start(&mut self) -> bool {
        let starts = self.open == 0;
        self.open = self.open.max(1).min(self.servers.len());
        self.ahead |= starts && self.eager && self.servers.len() > 1;
        starts
    }

    /// Uses no server any more.
    pub(super) fn stop(&mut self) {
        self.open = 0;
        self.ahead = false;
        self.unreachable = None;
    }

    /// Puts the next server in charge, if there is one. After one that is ahead of its turn, that is the one being tried.
    pub(super) fn step_down(&mut self) -> Option<ServerId> {
        if std::mem::take(&mut self.ahead) {
            return self.active();
        }
        let next = *self.servers.get(self.open)?;
        self.open += 1;
        Some(next)
    }

    /// The server that is tried while the last one is in charge ahead of its turn.
    pub(super) fn tried(&self) -> Option<ServerId> {
        self.open.checked_sub(1).filter(|_| self.ahead).and_then(|last| self.servers.get(last)).copied()
    }

    /// The server that is tried is down: tries the next one, until the turn of the last one has come.
    pub(super) fn try_next(&mut self) {
        self.open += 1;
        self.ahead = self.open < self.servers.len();
    }

    /// Puts `server` in charge if it stands above the one that is, and releases all below it (C-49).
    pub(super) fn return_to(&mut self, server: ServerId) -> bool {
        match self.above_active().iter().position(|&s| s == server) {
            Some(index) => {
                self.open = index + 1;
                self.ahead = false;
                true
            }
            None => false,
        }
    }

    /// The server in charge.
    pub(super) fn active(&self) -> Option<ServerId> {
        if self.ahead {
            return self.servers.last().copied();
        }
        self.open.checked_sub(1).and_then(|last| self.servers.get(last)).copied()
    }

    /// The servers in use that are preferred to the one in charge.
    pub(super) fn above_active(&self) -> &[ServerId] {
        let above = if self.ahead { self.open } else { self.open.saturating_sub(1) };
        self.servers.get(..above).unwrap_or_default()
    }

    /// The servers whose streams carry the resources of this authority.
    pub(super) fn in_use(&self) -> impl Iterator<Item = ServerId> {
        self.above_active().iter().copied().chain(self.active())
    }

    /// Whether this is one of them.
    pub(super) fn uses(&self, server: ServerId) -> bool {
        self.in_use().any(|used| used == server)
    }

    /// Whether another server comes after this one in the list.
    pub(super) fn has_next(&self, server: ServerId) -> bool {
        self.uses(server) && self.servers.last() != Some(&server)
    }
}
