//! What DNS said of hosts, and whether anybody must still know it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What was said of each host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookups {
    hosts: BTreeMap<String, Host>,
}

/// What was said of one host.
#[derive(Clone, Debug, Default)]
struct Host {
    /// The last good answer. No failure takes it away as long as the host is needed (L-15).
    addresses: Option<Vec<SocketAddr>>,
    /// Whether the last lookup failed.
    failed: bool,
    /// Whether nothing needed it at some time since the last answer: that may be forgotten.
    released: bool,
    /// Whether it was looked up after that, and the answer of before was not in force since. It is remembered if RPCs
    /// still went by older routes, which cannot be seen: as soon as it is in force it was.
    forgotten: bool,
}

/// What is known of a host.
pub(crate) enum Answer<'a> {
    /// Nothing yet.
    Awaited,
    /// It could not be looked up, and never could.
    Failed,
    Addresses(&'a [SocketAddr]),
}

impl Lookups {
    pub(crate) fn get(&self, host: &str) -> Answer<'_> {
        match self.hosts.get(host) {
            Some(Host { addresses: Some(addresses), forgotten: false, .. }) => Answer::Addresses(addresses),
            Some(Host { failed: true, .. }) => Answer::Failed,
            Some(_) | None => Answer::Awaited,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// A host is looked up, for the first time, once more, or after it was forgotten.
    pub(crate) fn begun(&mut self, host: &str) {
        let host = self.hosts.entry(host.to_owned()).or_default();
        if std::mem::take(&mut host.released) {
            (host.forgotten, host.failed) = (true, false);
        }
    }

    /// The answer is not wanted any more: nobody needs the host, and nothing of it is remembered.
    pub(crate) fn ended(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    pub(crate) fn answered(&mut self, host: &str, answer: &Result<Vec<SocketAddr>, String>) {
        let host = self.hosts.entry(host.to_owned()).or_default();
        match answer {
            Ok(addresses) => *host = Host { addresses: Some(addresses.clone()), ..Host::default() },
            Err(_) => host.failed = true,
        }
    }

    /// What is in force was not forgotten.
    pub(crate) fn look_at(&mut self, in_force: &BTreeSet<SocketAddr>) {
        for host in self.hosts.values_mut() {
            host.forgotten &= !host.is_among(in_force);
        }
    }

    /// These hosts are needed, and those of which the addresses are in force.
    pub(crate) fn need(&mut self, needed: &BTreeSet<String>, in_force: &BTreeSet<SocketAddr>) {
        for (name, host) in &mut self.hosts {
            host.released = !needed.contains(name) && !host.is_among(in_force);
        }
    }
}

impl Host {
    fn is_among(&self, addresses: &BTreeSet<SocketAddr>) -> bool {
        self.addresses.iter().flatten().any(|address| addresses.contains(address))
    }
}
