//! What clients report about their load (LRS), added up.

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Locality;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterStats, UpstreamLocalityStats};

/// One report of a client, as it was read from the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    /// The id of the client's node.
    pub node: String,
    /// What it counted since its last report.
    pub clusters: Vec<ClusterStats>,
}

/// What clients are asked to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// How often.
    pub interval: Duration,
    /// Of which clusters; of all if absent.
    pub clusters: Option<Vec<String>>,
    /// Whether reports are read and forgotten, and no [`Event`](crate::Event) tells of them.
    pub is_dropped: bool,
}

/// All reports of all clients since the server was made, added up. It survives a stop and a start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadTotals {
    /// By cluster and EDS service name.
    pub clusters: BTreeMap<(String, String), ClusterTotals>,
}

/// The load of one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterTotals {
    /// RPCs that were dropped, for whatever reason.
    pub dropped: u64,
    /// Those that the control plane wanted dropped, by category.
    pub dropped_by_category: BTreeMap<String, u64>,
    /// By region, zone and sub-zone, joined with slashes.
    pub localities: BTreeMap<String, LocalityTotals>,
}

/// The load of one locality.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalityTotals {
    /// RPCs that began.
    pub issued: u64,
    /// RPCs that ended with OK.
    pub succeeded: u64,
    /// RPCs that ended otherwise.
    pub failed: u64,
    /// Metrics of endpoints: in how many RPCs, and the sum of their values.
    pub metrics: BTreeMap<String, (u64, f64)>,
}

impl Default for LoadRequest {
    /// All clusters, every ten seconds.
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), clusters: None, is_dropped: false }
    }
}

impl LoadTotals {
    /// The sum over all localities of a cluster, whatever its EDS service name.
    pub fn cluster(&self, name: &str) -> LocalityTotals {
        let mut sum = LocalityTotals::default();
        let clusters = self.clusters.iter().filter(|((cluster, _), _)| cluster == name);
        for locality in clusters.flat_map(|(_, totals)| totals.localities.values()) {
            sum.issued += locality.issued;
            sum.succeeded += locality.succeeded;
            sum.failed += locality.failed;
            for (metric, (count, value)) in &locality.metrics {
                sum.add_metric(metric, *count, *value);
            }
        }
        sum
    }

    pub(crate) fn add(&mut self, stats: &ClusterStats) {
        let key = (stats.cluster_name.clone(), stats.cluster_service_name.clone());
        let totals = self.clusters.entry(key).or_default();
        totals.dropped += stats.total_dropped_requests;
        for drop in &stats.dropped_requests {
            *totals.dropped_by_category.entry(drop.category.clone()).or_default() += drop.dropped_count;
        }
        for locality in &stats.upstream_locality_stats {
            totals.localities.entry(locality_name(locality.locality.as_ref())).or_default().add(locality);
        }
    }
}

impl LocalityTotals {
    fn add(&mut self, stats: &UpstreamLocalityStats) {
        self.issued += stats.total_issued_requests;
        self.succeeded += stats.total_successful_requests;
        self.failed += stats.total_error_requests;
        let unnamed = [
            ("cpu_utilization", &stats.cpu_utilization),
            ("mem_utilization", &stats.mem_utilization),
            ("application_utilization", &stats.application_utilization),
        ];
        for (name, metric) in unnamed {
            if let Some(metric) = metric {
                self.add_metric(name, metric.num_requests_finished_with_metric, metric.total_metric_value);
            }
        }
        for metric in &stats.load_metric_stats {
            self.add_metric(&metric.metric_name, metric.num_requests_finished_with_metric, metric.total_metric_value);
        }
    }

    fn add_metric(&mut self, name: &str, count: u64, value: f64) {
        let (counts, sum) = self.metrics.entry(name.to_owned()).or_default();
        *counts += count;
        *sum += value;
    }
}

/// Region, zone and sub-zone, joined with slashes.
pub fn locality_name(locality: Option<&Locality>) -> String {
    let Some(locality) = locality else { return String::new() };
    let parts = [&locality.region, &locality.zone, &locality.sub_zone];
    let parts: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    parts.join("/")
}
