//! Lookups for LOGICAL_DNS clusters: when to ask, when to ask again, and what an answer becomes.
//!
//! ```text
//!             Resolve            addresses: refresh, if set
//!  new name ──────────► Asking ─────────────────────────────► Resting ──► Asking …
//!     │                        failure: 1 s, 1.6 s, … 120 s      ▲
//!     └─ IP literal ─► Fixed                                     │ re-resolution moves the next
//!                                                                │ lookup forward, not below the floor
//! ```
//!
//! A name that cannot be looked up may be the fault of a name server. It is awaited as long as a configuration is in
//! force that can do without it, but not for ever: after a few failures, which take as long as A57 waits for a
//! resource, the name has no addresses. An answer without addresses says so at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::config::ResolvedEndpoints;
use super::{Action, DepsSettings};
use crate::resource::endpoint::{
    Addresses, Endpoint, EndpointNames, EndpointSource, HealthStatus, Locality, LocalityEndpoints, Priority,
};
use crate::resource::{EndpointCollection, Endpoints};
use crate::{Choose, Time};

/// A DNS name to resolve for a LOGICAL_DNS cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsName {
    /// Host name or IP literal.
    pub host: String,
    /// Port of every address.
    pub port: u16,
}

/// All names that clusters need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lookups {
    entries: BTreeMap<DnsName, Lookup>,
    /// The next lookup of every name that has one.
    due: BTreeSet<(Time, DnsName)>,
    /// Names that may have lost their last user.
    orphans: BTreeSet<DnsName>,
}

/// What is known of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lookup {
    /// The last good answer; later failures do not take it away (L-15).
    pub(super) answer: Option<Arc<ResolvedEndpoints>>,
    /// Why the last lookup failed.
    pub(super) failure: Option<Arc<str>>,
    /// Whether nothing is known of its addresses yet. Trouble with name servers is no answer, up to a point.
    pub(super) awaited: bool,
    /// How many lookups failed since the last good answer.
    failures: u32,
    phase: Phase,
    users: BTreeSet<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// An IP literal: nothing to ask.
    Fixed,
    /// Asked at this time; no answer yet.
    Asking(Time),
    /// Answered.
    Resting {
        /// When it was asked.
        asked: Time,
        /// When it is asked again by itself.
        next: Option<Time>,
    },
}

// === impl Lookups ===

impl Lookups {
    /// `user` needs the addresses of `name`. Looks them up if it is the first.
    pub(super) fn acquire(&mut self, now: Time, name: &DnsName, user: &Arc<str>, out: &mut VecDeque<Action>) {
        let lookup = self.entries.entry(name.clone()).or_insert_with(|| match name.literal() {
            Some(address) => {
                let answer = Some(endpoints_of(name, &[address]));
                Lookup { answer, awaited: false, ..Lookup::new(Phase::Fixed) }
            }
            None => {
                out.push_back(Action::Resolve(name.clone()));
                Lookup::new(Phase::Asking(now))
            }
        });
        lookup.users.insert(user.clone());
    }

    /// `user` does not need the addresses of `name` any more.
    pub(super) fn release(&mut self, name: &DnsName, user: &str) {
        if let Some(lookup) = self.entries.get_mut(name) {
            lookup.users.remove(user);
            if lookup.users.is_empty() {
                self.orphans.insert(name.clone());
            }
        }
    }

    /// Forgets the names that nobody needs.
    pub(super) fn sweep(&mut self, out: &mut VecDeque<Action>) {
        for name in std::mem::take(&mut self.orphans) {
            if self.entries.get(&name).is_none_or(|lookup| !lookup.users.is_empty()) {
                continue;
            }
            match self.entries.remove(&name).map(|lookup| lookup.phase) {
                Some(Phase::Asking(_)) => out.push_back(Action::StopResolving(name)),
                Some(Phase::Resting { next: Some(next), .. }) => drop(self.due.remove(&(next, name))),
                _ => (),
            }
        }
    }

    /// Takes in an answer. Answers with those who must look again. An answer that nobody asked for is ignored.
    pub(super) fn answer(
        &mut self,
        now: Time,
        choose: &mut dyn Choose,
        settings: &DepsSettings,
        name: &DnsName,
        answer: Result<Vec<SocketAddr>, String>,
    ) -> Option<&BTreeSet<Arc<str>>> {
        let lookup = self.entries.get_mut(name)?;
        let Phase::Asking(asked) = lookup.phase else { return None };
        let before = (lookup.answer.clone(), lookup.failure.take(), lookup.awaited);
        let next = match answer {
            Ok(addresses) if !addresses.is_empty() => {
                lookup.failures = 0;
                lookup.awaited = false;
                let fresh = endpoints_of(name, &addresses);
                if lookup.answer.as_ref() != Some(&fresh) {
                    lookup.answer = Some(fresh);
                }
                settings.resolution_refresh.map(|refresh| now + refresh)
            }
            failed => {
                lookup.awaited &= failed.is_err() && lookup.failures < PATIENCE;
                lookup.failure = Some(failed.map_or_else(Into::into, |_| "the answer has no addresses".into()));
                let pause = settings.resolution_backoff.delay(lookup.failures, choose);
                lookup.failures = lookup.failures.saturating_add(1);
                Some(now + pause)
            }
        };
        lookup.phase = Phase::Resting { asked, next };
        self.due.extend(next.map(|next| (next, name.clone())));
        (before != (lookup.answer.clone(), lookup.failure.clone(), lookup.awaited)).then_some(&lookup.users)
    }

    /// Wants fresh answers for every name, but not more often than the floor allows. A failed lookup keeps
    /// its backoff, and one under way is as fresh as can be.
    pub(super) fn refresh(&mut self, now: Time, settings: &DepsSettings) {
        for (name, lookup) in &mut self.entries {
            let Phase::Resting { asked, next } = &mut lookup.phase else { continue };
            let wanted = now.max(*asked + settings.min_resolution_interval);
            if lookup.failures > 0 || next.is_some_and(|next| next <= wanted) {
                continue;
            }
            if let Some(next) = next.replace(wanted) {
                self.due.remove(&(next, name.clone()));
            }
            self.due.insert((wanted, name.clone()));
        }
    }

    /// Asks for every name whose time has come.
    pub(super) fn expire(&mut self, now: Time, out: &mut VecDeque<Action>) {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.due.pop_first() else { return };
            if let Some(lookup) = self.entries.get_mut(&name) {
                lookup.phase = Phase::Asking(now);
                out.push_back(Action::Resolve(name));
            }
        }
    }

    /// When [`Lookups::expire`] has something to do.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(super) fn get(&self, name: &DnsName) -> Option<&Lookup> {
        self.entries.get(name)
    }
}

impl Lookup {
    fn new(phase: Phase) -> Self {
        Self { answer: None, failure: None, awaited: true, failures: 0, phase, users: BTreeSet::new() }
    }
}

// === impl DnsName ===

impl DnsName {
    /// The address itself, if the host is an IP literal. IPv6 may stand in brackets.
    fn literal(&self) -> Option<SocketAddr> {
        let host = self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host);
        host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port))
    }
}

impl fmt::Display for DnsName {
    /// `host:port`, with brackets around IPv6.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') && !host.starts_with('[') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// One priority, one locality without a name, one endpoint with all addresses (L-16). Never called without addresses.
fn endpoints_of(name: &DnsName, addresses: &[SocketAddr]) -> Arc<ResolvedEndpoints> {
    let mut seen = BTreeSet::new();
    let unique: Vec<_> = addresses.iter().copied().filter(|address| seen.insert(*address)).collect();
    let addresses = match unique[..] {
        [address] => Addresses::One(address),
        _ => Addresses::Many(unique.into()),
    };
    let endpoint = Endpoint {
        addresses,
        weight: 1,
        health: HealthStatus::Unknown,
        names: Some(Arc::new(EndpointNames { hostname: Some(name.to_string().into()), ..Default::default() })),
    };
    let locality = LocalityEndpoints {
        locality: Arc::new(Locality::default()),
        weight: 1,
        source: EndpointSource::Inline(Arc::new(EndpointCollection { endpoints: vec![endpoint] })),
        proxy: None,
    };
    let priority = Priority { localities: vec![locality] };
    let endpoints = Endpoints { priorities: vec![priority], ..Endpoints::default() };
    Arc::new(ResolvedEndpoints { endpoints: Arc::new(endpoints), collections: BTreeMap::new(), globs: BTreeMap::new() })
}

/// How many lookups may fail before a name counts as one without addresses: the pauses between them add up to the 15 s
/// after which a resource that does not come does not exist (A57).
const PATIENCE: u32 = 5;
