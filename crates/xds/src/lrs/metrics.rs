//! What endpoints report about their load, as it is passed on to load reporting servers (A64, A85).

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::orca::OrcaLoadReport;

/// Which metrics are passed on (C-80).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Forwarded {
    cpu: bool,
    memory: bool,
    application: bool,
    all_named: bool,
    named: BTreeSet<String>,
}

/// One metric in a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// How many RPCs ended with it.
    pub count: u64,
    /// The sum of its values, as bits: a report must be comparable.
    sum: u64,
}

/// The metrics of one locality: a list that only grows, so that RPCs add to it without a lock.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    first: OnceLock<Box<Total>>,
}

#[derive(Debug)]
struct Total {
    name: String,
    count: AtomicU64,
    /// The bits of a sum.
    sum: AtomicU64,
    next: OnceLock<Box<Total>>,
}

impl Forwarded {
    /// From `lrs_report_endpoint_metrics`; what is unknown is ignored.
    pub fn new(metrics: &[String]) -> Self {
        let mut forwarded = Self::default();
        for metric in metrics {
            match metric.as_str() {
                CPU => forwarded.cpu = true,
                MEMORY => forwarded.memory = true,
                APPLICATION => forwarded.application = true,
                other => match other.strip_prefix(NAMED) {
                    Some("*") => forwarded.all_named = true,
                    Some(key) => drop(forwarded.named.insert(key.to_owned())),
                    None => {}
                },
            }
        }
        forwarded
    }

    /// Whether nothing is passed on: then nobody need read what an endpoint says.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is passed on of a report. A metric that is zero was not reported.
    fn select<'a>(&'a self, report: &'a OrcaLoadReport) -> impl Iterator<Item = (String, f64)> + 'a {
        let top = [
            (self.cpu, CPU, report.cpu_utilization),
            (self.memory, MEMORY, report.mem_utilization),
            (self.application, APPLICATION, report.application_utilization),
        ];
        let top = top.into_iter().filter(|(wanted, _, value)| *wanted && *value != 0.0);
        let named = report.named_metrics.iter().filter(|(key, _)| self.all_named || self.named.contains(*key));
        let named = named.map(|(key, value)| (format!("{NAMED}{key}"), *value));
        top.map(|(_, name, value)| (name.to_owned(), value)).chain(named).filter(|(_, value)| value.is_finite())
    }
}

impl Metric {
    /// The sum of its values.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum)
    }
}

impl Metrics {
    /// An RPC ended with this report.
    pub(super) fn record(&self, report: &OrcaLoadReport, forwarded: &Forwarded) {
        for (name, value) in forwarded.select(report) {
            self.add(&name, 1, value);
        }
    }

    /// Adds a value that stands for `count` RPCs. Beyond a bound new names are left out: they come from outside.
    pub(super) fn add(&self, name: &str, count: u64, value: f64) {
        let mut cursor = &self.first;
        for _ in 0..MAX_METRICS {
            let new = || Box::new(Total { name: name.to_owned(), ..Total::default() });
            let total = cursor.get_or_init(new);
            if total.name == name {
                total.count.fetch_add(count, Ordering::Relaxed);
                let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
                let _ = total.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                return;
            }
            cursor = &total.next;
        }
    }

    /// What was added since the last call, by name.
    pub(super) fn take(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        let mut cursor = self.first.get();
        while let Some(total) = cursor {
            let count = total.count.swap(0, Ordering::Relaxed);
            let sum = total.sum.swap(0, Ordering::Relaxed);
            if count > 0 || sum != 0 {
                metrics.push(Metric { name: total.name.clone(), count, sum });
            }
            cursor = total.next.get();
        }
        metrics.sort_by(|a, b| a.name.cmp(&b.name));
        metrics
    }
}

impl Default for Total {
    fn default() -> Self {
        Self { name: String::new(), count: AtomicU64::new(0), sum: AtomicU64::new(0), next: OnceLock::new() }
    }
}

impl Drop for Metrics {
    /// One after the other: a long list must not use up the stack.
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut total) = next {
            next = total.next.take();
        }
    }
}

pub(super) const CPU: &str = "cpu_utilization";
pub(super) const MEMORY: &str = "mem_utilization";
pub(super) const APPLICATION: &str = "application_utilization";
const NAMED: &str = "named_metrics.";

/// How many names a locality keeps.
const MAX_METRICS: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_what_is_selected_is_passed_on() {
        let report = OrcaLoadReport {
            cpu_utilization: 0.5,
            mem_utilization: 0.25,
            application_utilization: 0.75,
            named_metrics: BTreeMap::from([("a".into(), 1.0), ("b".into(), 2.0), ("bad".into(), f64::NAN)]),
            ..Default::default()
        };
        let table = [
            (&[][..], "", "C-80: not configured, nothing"),
            (&["cpu_utilization", "mem_utilization"], "cpu_utilization 0.5, mem_utilization 0.25", "C-80"),
            (&["application_utilization"], "application_utilization 0.75", "C-80"),
            (&["named_metrics.b", "named_metrics.c"], "named_metrics.b 2", "C-80, C-81"),
            (&["named_metrics.*"], "named_metrics.a 1, named_metrics.b 2", "C-80, C-81"),
            (&["eps", "named_metrics"], "", "C-80: others are ignored"),
        ];
        for (selected, expected, rule) in table {
            let selected: Vec<String> = selected.iter().map(|name| (*name).to_owned()).collect();
            let forwarded = Forwarded::new(&selected);
            let passed_on: Vec<_> = forwarded.select(&report).map(|(name, value)| format!("{name} {value}")).collect();
            assert_eq!(passed_on.join(", "), expected, "{rule}");
        }
        let all = Forwarded::new(&["cpu_utilization".to_owned()]);
        assert_eq!(all.select(&OrcaLoadReport::default()).count(), 0, "zero was not reported");
    }

    #[test]
    fn values_are_summed_and_counted_until_taken() {
        let metrics = Metrics::default();
        let forwarded = Forwarded::new(&["cpu_utilization".to_owned()]);
        for cpu_utilization in [0.5, 0.25] {
            metrics.record(&OrcaLoadReport { cpu_utilization, ..Default::default() }, &forwarded);
        }
        let [taken] = &metrics.take()[..] else { panic!("one metric") };
        assert_eq!((taken.name.as_str(), taken.count, taken.sum()), (CPU, 2, 0.75), "C-79");
        assert!(metrics.take().is_empty(), "C-79: reset after each report");
    }

    #[test]
    fn names_without_end_are_bounded() {
        let metrics = Metrics::default();
        for name in 0..10_000 {
            metrics.add(&format!("n{name}"), 1, 1.0);
        }
        assert_eq!(metrics.take().len(), MAX_METRICS);
    }
}
