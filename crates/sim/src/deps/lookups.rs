//! When names must be looked up, and what the answers mean.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::deps::{DepsSettings, DnsName, ResolvedEndpoints};
use mainstay_xds::resource::endpoint::{
    Addresses, Endpoint, EndpointNames, EndpointSource, HealthStatus, Locality, LocalityEndpoints, Priority,
};
use mainstay_xds::resource::{EndpointCollection, Endpoints};

/// What is known of a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lookup {
    /// The last good answer.
    answer: Option<Vec<SocketAddr>>,
    pub(super) failure: Option<String>,
    /// How many lookups failed since.
    failures: u32,
    /// An answer without addresses came, or lookups failed for as long as one waits for a resource.
    hopeless: bool,
    asked: Time,
    /// When it is looked up next; `None` if not by itself, or if a lookup is under way.
    pub(super) next: Option<Time>,
    pub(super) is_asking: bool,
}

impl Lookup {
    pub(super) fn begun(now: Time) -> Self {
        Self { answer: None, failure: None, failures: 0, hopeless: false, asked: now, next: None, is_asking: true }
    }

    /// A lookup begins.
    pub(super) fn ask(&mut self, now: Time) {
        (self.asked, self.next, self.is_asking) = (now, None, true);
    }

    pub(super) fn answered(&mut self, now: Time, settings: &DepsSettings, answer: Result<Vec<SocketAddr>, String>) {
        if !std::mem::take(&mut self.is_asking) {
            return;
        }
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                let mut distinct = Vec::new();
                for address in addresses {
                    if !distinct.contains(&address) {
                        distinct.push(address);
                    }
                }
                self.answer = Some(distinct);
                (self.failure, self.failures, self.hopeless) = (None, 0, true);
                self.next = settings.resolution_refresh.map(|refresh| now + refresh);
            }
            other => {
                // The pauses so far add up to the 15 s that one waits for a resource (A57).
                let waited: Duration = (0..self.failures).map(pause).sum();
                self.hopeless |= other.is_ok() || waited >= Duration::from_secs(15);
                self.failure = Some(other.err().unwrap_or_else(|| "the answer has no addresses".to_owned()));
                self.next = Some(now + pause(self.failures));
                self.failures += 1;
            }
        }
    }

    /// Somebody could not connect: looked up again, at most every so often. After failures it is anyway.
    pub(super) fn refresh(&mut self, now: Time, settings: &DepsSettings) {
        if self.is_asking || self.failures > 0 {
            return;
        }
        let soonest = (self.asked + settings.min_resolution_interval).max(now);
        self.next = Some(self.next.map_or(soonest, |next| next.min(soonest)));
    }

    /// What clusters are made of.
    pub(super) fn known(&self) -> (Option<Vec<SocketAddr>>, Option<String>, bool) {
        (self.answer.clone(), self.failure.clone(), self.hopeless)
    }

    /// Whether nothing at all is known.
    pub(super) fn is_open(&self) -> bool {
        self.answer.is_none() && self.failure.is_none()
    }

    /// Whether it may be the name server that is to blame.
    pub(super) fn is_trouble(&self) -> bool {
        self.failure.is_some() && !self.hopeless
    }

    pub(super) fn endpoints(&self, name: &DnsName) -> Option<Arc<ResolvedEndpoints>> {
        self.answer.as_ref().map(|addresses| endpoints(name, addresses))
    }
}

/// The address of a name that needs no lookup.
pub(super) fn literal(name: &DnsName) -> Option<SocketAddr> {
    let host = name.host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, name.port))
}

/// One endpoint with all addresses (A37, A61).
pub(super) fn endpoints(name: &DnsName, addresses: &[SocketAddr]) -> Arc<ResolvedEndpoints> {
    let addresses = match addresses {
        [one] => Addresses::One(*one),
        many => Addresses::Many(many.into()),
    };
    let names = EndpointNames { hostname: Some(name.to_string().into()), ..EndpointNames::default() };
    let endpoint = Endpoint { addresses, weight: 1, health: HealthStatus::Unknown, names: Some(Arc::new(names)) };
    let locality = LocalityEndpoints {
        locality: Arc::new(Locality::default()),
        weight: 1,
        source: EndpointSource::Inline(Arc::new(EndpointCollection { endpoints: vec![endpoint] })),
        proxy: None,
    };
    let endpoints = Endpoints { priorities: vec![Priority { localities: vec![locality] }], drops: Vec::new() };
    Arc::new(ResolvedEndpoints { endpoints: Arc::new(endpoints), collections: BTreeMap::new(), globs: BTreeMap::new() })
}

/// gRPC's backoff: 1 s, 1.6 s and so on up to 120 s; chance takes the middle here.
fn pause(failures: u32) -> Duration {
    let mut nanos: u64 = 1_000_000_000;
    for _ in 0..failures.min(20) {
        nanos = nanos * 8 / 5;
    }
    Duration::from_nanos(nanos).min(Duration::from_secs(120))
}
