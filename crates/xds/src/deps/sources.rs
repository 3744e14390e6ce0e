//! Which servers stand behind a configuration, and how long a mixture of them is held back.
//!
//! Inside one authority a configuration is made of one server's resources (C-50). While an authority
//! moves from one server to another, some resources are from the old one and some from the new: the
//! configuration in force stays until all are from one server again, or until the bound has passed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::name::AuthorityKey;

/// An authority and the server behind one of its resources.
pub(crate) type Source = (AuthorityKey, Arc<ServerConfig>);

/// The servers behind all resources of one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sources {
    authorities: BTreeMap<AuthorityKey, Tally>,
}

/// The servers of one authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Tally {
    /// How many uses of resources each server stands behind; never zero.
    servers: BTreeMap<Arc<ServerConfig>, usize>,
    /// The server in charge.
    active: Option<Arc<ServerConfig>>,
    /// When the last switch began, or the mixture that it led to.
    begun: Option<Time>,
    /// Whether more than one server was behind it when last looked at.
    mixed: bool,
}

/// Whether a configuration may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Each authority speaks with one voice.
    Clean,
    /// Not before this time, unless the switch ends earlier.
    Hold(Time),
    /// Yes, although it is a mixture: the bound has passed.
    Mixed,
}

impl Sources {
    /// Another server is in charge of `authority`. Says whether that is news.
    pub(crate) fn switch(&mut self, now: Time, authority: &AuthorityKey, server: &Arc<ServerConfig>) -> bool {
        let tally = self.authorities.entry(authority.clone()).or_default();
        let is_new = tally.active.as_ref() != Some(server);
        if is_new {
            tally.active = Some(server.clone());
            // Servers that come and go do not hold a mixture back for longer than the bound.
            if tally.servers.len() < 2 {
                tally.begun = Some(now);
            }
        }
        is_new
    }

    /// Counts `new` in place of `old`.
    pub(crate) fn replace(&mut self, old: &[Source], new: &[Source]) {
        if old == new {
            return;
        }
        for (authority, server) in new {
            let tally = self.authorities.entry(authority.clone()).or_default();
            *tally.servers.entry(server.clone()).or_default() += 1;
        }
        for (authority, server) in old {
            let Some(tally) = self.authorities.get_mut(authority) else { continue };
            if let Some(uses) = tally.servers.get_mut(server) {
                *uses -= 1;
                if *uses == 0 {
                    tally.servers.remove(server);
                }
            }
        }
    }

    /// What `newest` comes to is in force now: a mixture goes on, and does not begin anew.
    pub(super) fn take_up(&mut self, newest: &Self) {
        for (authority, tally) in &mut self.authorities {
            if let Some(newest) = newest.authorities.get(authority) {
                (tally.begun, tally.mixed) = (newest.begun, newest.mixed);
            }
        }
    }

    /// Judges what is counted now.
    pub(crate) fn judge(&mut self, now: Time, bound: Duration) -> Verdict {
        let mut verdict = Verdict::Clean;
        for tally in self.authorities.values_mut() {
            let Some(until) = tally.held_until(now, bound) else { continue };
            verdict = match verdict {
                Verdict::Hold(other) => Verdict::Hold(other.max(until)),
                Verdict::Clean | Verdict::Mixed if now < until => Verdict::Hold(until),
                Verdict::Clean | Verdict::Mixed => Verdict::Mixed,
            };
        }
        verdict
    }
}

impl Tally {
    /// Until when the mixture is held back; `None` if there is only one server.
    fn held_until(&mut self, now: Time, bound: Duration) -> Option<Time> {
        let was_mixed = std::mem::replace(&mut self.mixed, self.servers.len() > 1);
        if !self.mixed {
            return None;
        }
        // A new server that is slow to answer has not used up its time, nor has one whose switch nobody told us of.
        let begun = self.begun.filter(|begun| was_mixed || now < *begun + bound).unwrap_or(now);
        self.begun = Some(begun);
        Some(begun + bound)
    }
}
