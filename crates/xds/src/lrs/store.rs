//! What RPCs count for load reports: per server, cluster, EDS service and locality (C-69).
//!
//! Whoever counts holds an [`Arc`] of a counter; the store holds another one. So what was counted is reported even if
//! the cluster or the locality is gone by then (C-78), and a counter that nobody else holds is forgotten after that.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::metrics::{Forwarded, Metric, Metrics};
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::orca::OrcaLoadReport;
use crate::resource::endpoint::Locality;

/// The counters of one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadStore {
    servers: Vec<(Arc<ServerConfig>, BTreeMap<Key, Entry>)>,
    /// Whether clusters came or went since someone last asked.
    changed: bool,
}

/// Cluster and EDS service name.
type Key = (Arc<str>, Arc<str>);

/// The counters of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    /// The time of the last report, or when it began to count.
    since: Time,
    circuit_drops: Arc<Tally>,
    drops: BTreeMap<Arc<str>, Arc<Tally>>,
    localities: BTreeMap<Arc<Locality>, Arc<LocalityLoad>>,
}

/// Where the RPCs of a cluster are counted. For pickers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterLoad {
    server: Arc<ServerConfig>,
    circuit_drops: Arc<Tally>,
    /// In the order of the categories.
    drops: Vec<Arc<Tally>>,
    localities: BTreeMap<SocketAddr, Arc<LocalityLoad>>,
    /// For addresses of no locality (L-88).
    elsewhere: Arc<LocalityLoad>,
    forwarded: Arc<Forwarded>,
}

/// A number that RPCs count up. Two are equal if they are the same one: what was counted is no part of what was decided,
/// but where it is counted is.
#[derive(Debug, Default)]
struct Tally(AtomicU64);

/// The counters of a locality. Two are equal if they are the same ones.
#[derive(Debug)]
struct LocalityLoad {
    locality: Arc<Locality>,
    issued: Tally,
    succeeded: Tally,
    failed: Tally,
    in_progress: Tally,
    metrics: Metrics,
}

/// One RPC that is counted. Dropped without a word, it has failed.
#[derive(Debug)]
pub struct Load(Option<(Arc<LocalityLoad>, Arc<Forwarded>)>);

/// What one cluster counted between two reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterReport {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// EDS service name; empty if there is none.
    pub eds_service: Arc<str>,
    /// When the counting began.
    since: Time,
    /// How long it went on.
    pub interval: Duration,
    /// RPCs that the circuit breaker dropped.
    pub circuit_drops: u64,
    /// RPCs that the control plane wanted dropped, by category.
    pub drops: Vec<(Arc<str>, u64)>,
    /// Those with something to tell.
    pub localities: Vec<LocalityReport>,
}

/// What one locality counted between two reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalityReport {
    /// Which one.
    pub locality: Arc<Locality>,
    /// RPCs that began.
    pub issued: u64,
    /// RPCs that ended with OK.
    pub succeeded: u64,
    /// RPCs that ended otherwise.
    pub failed: u64,
    /// RPCs that run.
    pub in_progress: u64,
    /// What the endpoints said about themselves, by name.
    pub metrics: Vec<Metric>,
}

impl LoadStore {
    /// The counters of a cluster with these drop categories and endpoints, for reports to `server`. An address of two
    /// localities counts for the first.
    #[expect(clippy::too_many_arguments, reason = "each says what is counted; there is one caller")]
    pub fn cluster<'a>(
        &mut self,
        now: Time,
        server: &Arc<ServerConfig>,
        cluster: &Arc<str>,
        eds_service: &Arc<str>,
        categories: impl Iterator<Item = &'a str>,
        endpoints: impl Iterator<Item = (&'a Arc<Locality>, SocketAddr)>,
        forwarded: Forwarded,
    ) -> ClusterLoad {
        self.changed = true;
        let entry = self.entry(now, server, (Arc::clone(cluster), Arc::clone(eds_service)));
        let mut localities = BTreeMap::new();
        for (locality, address) in endpoints {
            localities.entry(address).or_insert_with(|| Arc::clone(entry.locality(locality)));
        }
        ClusterLoad {
            server: Arc::clone(server),
            circuit_drops: Arc::clone(&entry.circuit_drops),
            drops: categories.map(|category| Arc::clone(entry.category(category))).collect(),
            localities,
            elsewhere: Arc::clone(entry.locality(&Arc::default())),
            forwarded: Arc::new(forwarded),
        }
    }

    /// A cluster has let go of its counters.
    pub fn release(&mut self) {
        self.changed = true;
    }

    /// Whether clusters came or went since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The servers that something is counted for.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<ServerConfig>> {
        self.servers.iter().map(|(server, _)| server)
    }

    /// Whether something is counted for a server, or was.
    pub(super) fn counts_for(&self, server: &ServerConfig) -> bool {
        self.servers.iter().any(|(known, _)| **known == *server)
    }

    /// What was counted for a server since the last call, cluster by cluster. What nobody counts any more is forgotten.
    pub fn take(&mut self, now: Time, server: &ServerConfig) -> Vec<ClusterReport> {
        let Some(at) = self.servers.iter().position(|(known, _)| **known == *server) else { return Vec::new() };
        let (_, clusters) = &mut self.servers[at];
        let mut reports = Vec::new();
        clusters.retain(|(cluster, eds_service), entry| {
            let (report, is_used) = entry.take(now, cluster, eds_service);
            reports.push(report);
            is_used
        });
        if clusters.is_empty() {
            self.servers.remove(at);
        }
        reports
    }

    /// Counts again what was taken and could not be told.
    pub(super) fn put_back(&mut self, server: &Arc<ServerConfig>, reports: Vec<ClusterReport>) {
        for report in reports {
            let entry = self.entry(report.since, server, (report.cluster, report.eds_service));
            entry.since = report.since;
            entry.circuit_drops.add(report.circuit_drops);
            for (category, count) in report.drops {
                entry.category(&category).add(count);
            }
            for locality in report.localities {
                let load = entry.locality(&locality.locality);
                load.issued.add(locality.issued);
                load.succeeded.add(locality.succeeded);
                load.failed.add(locality.failed);
                for metric in locality.metrics {
                    load.metrics.add(&metric.name, metric.count, metric.sum());
                }
            }
        }
    }

    /// Forgets a server.
    pub(super) fn forget(&mut self, server: &ServerConfig) {
        self.servers.retain(|(known, _)| **known != *server);
    }

    /// Whether someone may still count for a server.
    pub(super) fn is_used(&mut self, server: &ServerConfig) -> bool {
        let found = self.servers.iter_mut().find(|(known, _)| **known == *server);
        found.is_some_and(|(_, clusters)| clusters.values_mut().any(Entry::is_used))
    }

    fn entry(&mut self, now: Time, server: &Arc<ServerConfig>, key: Key) -> &mut Entry {
        let at = self.servers.iter().position(|(known, _)| known == server).unwrap_or_else(|| {
            self.servers.push((Arc::clone(server), BTreeMap::new()));
            self.servers.len() - 1
        });
        self.servers[at].1.entry(key).or_insert_with(|| Entry {
            since: now,
            circuit_drops: Arc::default(),
            drops: BTreeMap::new(),
            localities: BTreeMap::new(),
        })
    }
}

impl Entry {
    fn category(&mut self, category: &str) -> &Arc<Tally> {
        self.drops.entry(category.into()).or_default()
    }

    fn locality(&mut self, locality: &Arc<Locality>) -> &Arc<LocalityLoad> {
        self.localities.entry(Arc::clone(locality)).or_insert_with(|| Arc::new(LocalityLoad::new(locality)))
    }

    /// Whether anybody else holds a counter.
    fn is_used(&mut self) -> bool {
        is_shared(&mut self.circuit_drops)
            || self.drops.values_mut().any(is_shared)
            || self.localities.values_mut().any(is_shared)
    }

    /// What was counted, and whether someone may still count. Who may is asked first: what nobody holds does not change
    /// while it is read.
    fn take(&mut self, now: Time, cluster: &Arc<str>, eds_service: &Arc<str>) -> (ClusterReport, bool) {
        let since = std::mem::replace(&mut self.since, now);
        let mut is_used = is_shared(&mut self.circuit_drops);
        let mut drops = Vec::new();
        self.drops.retain(|category, tally| {
            let is_shared = is_shared(tally);
            let count = tally.take();
            if count > 0 {
                drops.push((Arc::clone(category), count));
            }
            is_used |= is_shared;
            is_shared
        });
        let mut localities = Vec::new();
        self.localities.retain(|_, load| {
            let is_shared = is_shared(load);
            let report = load.take();
            if !report.is_zero() {
                localities.push(report);
            }
            is_used |= is_shared;
            is_shared
        });
        let report = ClusterReport {
            cluster: Arc::clone(cluster),
            eds_service: Arc::clone(eds_service),
            since,
            interval: now.since(since),
            circuit_drops: self.circuit_drops.take(),
            drops,
            localities,
        };
        (report, is_used)
    }
}

impl ClusterLoad {
    /// An RPC is sent to this address.
    pub fn begin(&self, address: SocketAddr) -> Load {
        let load = self.localities.get(&address).unwrap_or(&self.elsewhere);
        load.issued.add(1);
        load.in_progress.add(1);
        Load(Some((Arc::clone(load), Arc::clone(&self.forwarded))))
    }

    /// An RPC was dropped by the category at this place.
    pub fn count_drop(&self, category: usize) {
        if let Some(tally) = self.drops.get(category) {
            tally.add(1);
        }
    }

    /// An RPC was dropped by the circuit breaker.
    pub fn count_circuit_drop(&self) {
        self.circuit_drops.add(1);
    }
}

impl Load {
    /// The RPC has ended. `orca` is what its endpoint said about itself, encoded as in the trailer (C-79).
    pub fn end(mut self, success: bool, orca: Option<&[u8]>) {
        let Some((load, forwarded)) = self.0.take() else { return };
        let report = orca.filter(|_| !forwarded.is_empty()).and_then(OrcaLoadReport::from_trailer);
        if let Some(report) = report {
            load.metrics.record(&report, &forwarded);
        }
        load.finish(success);
    }

    /// It was never sent after all. If it has been reported already, it has failed.
    pub fn withdraw(mut self) {
        let Some((load, _)) = self.0.take() else { return };
        if load.issued.take_one() {
            load.in_progress.take_one();
        } else {
            load.finish(false);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some((load, _)) = self.0.take() {
            load.finish(false);
        }
    }
}

impl LocalityLoad {
    fn new(locality: &Arc<Locality>) -> Self {
        let [issued, succeeded, failed, in_progress] = [(); 4].map(|()| Tally::default());
        let locality = Arc::clone(locality);
        Self { locality, issued, succeeded, failed, in_progress, metrics: Metrics::default() }
    }

    fn finish(&self, success: bool) {
        // Counted before it is gone from those in progress: a report between the two must not miss it.
        if success { &self.succeeded } else { &self.failed }.add(1);
        self.in_progress.take_one();
    }

    fn take(&self) -> LocalityReport {
        LocalityReport {
            locality: Arc::clone(&self.locality),
            issued: self.issued.take(),
            succeeded: self.succeeded.take(),
            failed: self.failed.take(),
            in_progress: self.in_progress.get(),
            metrics: self.metrics.take(),
        }
    }
}

impl ClusterReport {
    pub(super) fn is_zero(&self) -> bool {
        self.circuit_drops == 0 && self.drops.is_empty() && self.localities.is_empty()
    }
}

impl LocalityReport {
    fn is_zero(&self) -> bool {
        let counts = [self.issued, self.succeeded, self.failed, self.in_progress];
        counts == [0; 4] && self.metrics.is_empty()
    }
}

impl Tally {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes one away if there is one.
    fn take_one(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
    }

    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for Tally {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Tally {}

impl Hash for Tally {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for LocalityLoad {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for LocalityLoad {}

impl Hash for LocalityLoad {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.locality.hash(state);
    }
}

/// Whether someone else holds it. What they did before they let go is seen by whoever reads it after this.
fn is_shared<T>(counter: &mut Arc<T>) -> bool {
    Arc::get_mut(counter).is_none()
}
