//! An exporter to memory, and what it got.

use std::fmt::Debug;
use std::time::Duration;

use mainstay::{Telemetry, TelemetryBuilder};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, HistogramDataPoint, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

/// Collects metrics on demand.
pub(super) struct Metrics {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

/// What was collected of one metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Collected {
    pub(super) unit: String,
    /// Labels as `name=value`, in order of their names, and the value; of a histogram how often and the sum.
    pub(super) points: Vec<(String, Value)>,
    /// Of a histogram.
    pub(super) bounds: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Number(i64),
    Histogram(u64, f64),
}

impl Metrics {
    pub(super) fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(3600)).build();
        Self { provider: SdkMeterProvider::builder().with_reader(reader).build(), exporter }
    }

    /// Telemetry that sends its metrics here.
    pub(super) fn telemetry(&self) -> TelemetryBuilder {
        Telemetry::builder().meter_provider(&self.provider)
    }

    /// The names of all metrics that have points.
    pub(super) fn names(&self) -> Vec<String> {
        self.with_last(|last| {
            let metrics = last.scope_metrics().flat_map(|scope| scope.metrics());
            let mut names: Vec<_> = metrics.map(|metric| metric.name().to_owned()).collect();
            names.sort();
            names
        })
        .unwrap_or_default()
    }

    /// What there is of a metric now.
    pub(super) fn of(&self, name: &str) -> Option<Collected> {
        self.with_last(|last| {
            let mut metrics = last.scope_metrics().flat_map(|scope| scope.metrics());
            let metric = metrics.find(|metric| metric.name() == name)?;
            let (mut points, mut bounds) = match metric.data() {
                AggregatedMetrics::F64(data) => points(data, |value| value as i64, |sum| sum),
                AggregatedMetrics::U64(data) => points(data, |value| value as i64, |sum| sum as f64),
                AggregatedMetrics::I64(data) => points(data, |value| value, |sum| sum as f64),
            };
            points.sort_by(|(one, _), (other, _)| one.cmp(other));
            bounds.dedup();
            Some(Collected { unit: metric.unit().to_owned(), points, bounds })
        })?
    }

    /// The numbers of a metric by labels.
    pub(super) fn numbers(&self, name: &str) -> Vec<(String, i64)> {
        let number = |(labels, value): (String, Value)| match value {
            Value::Number(number) => (labels, number),
            Value::Histogram(count, _) => (labels, i64::try_from(count).expect("a small number")),
        };
        self.of(name).map(|found| found.points.into_iter().map(number).collect()).unwrap_or_default()
    }

    /// Collects until a metric has these numbers.
    pub(super) async fn until(&self, name: &str, expected: &[(&str, i64)]) {
        let mut last = Vec::new();
        let reached = async {
            loop {
                last = self.numbers(name);
                if last.iter().map(|(labels, number)| (labels.as_str(), *number)).eq(expected.iter().copied()) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(10), reached).await.is_err() {
            panic!("{name} is {last:#?}, expected {expected:#?}");
        }
    }

    fn with_last<T>(&self, look: impl FnOnce(&ResourceMetrics) -> T) -> Option<T> {
        self.exporter.reset();
        self.provider.force_flush().expect("a flush");
        let collected = self.exporter.get_finished_metrics().expect("metrics");
        collected.last().map(look)
    }
}

fn points<T: Copy + Debug>(
    data: &MetricData<T>,
    number: impl Fn(T) -> i64,
    sum: impl Fn(T) -> f64,
) -> (Vec<(String, Value)>, Vec<f64>) {
    let mut bounds = Vec::new();
    let points = match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|p| (labels(p.attributes()), Value::Number(number(p.value())))).collect()
        }
        MetricData::Sum(total) => {
            total.data_points().map(|p| (labels(p.attributes()), Value::Number(number(p.value())))).collect()
        }
        MetricData::Histogram(histogram) => {
            bounds = histogram.data_points().next().map(|p| p.bounds().collect()).unwrap_or_default();
            let point = |p: &HistogramDataPoint<T>| (labels(p.attributes()), Value::Histogram(p.count(), sum(p.sum())));
            histogram.data_points().map(point).collect()
        }
        MetricData::ExponentialHistogram(_) => panic!("no metric of ours"),
    };
    (points, bounds)
}

fn labels<'a>(attributes: impl Iterator<Item = &'a opentelemetry::KeyValue>) -> String {
    let mut labels: Vec<_> = attributes.map(|label| format!("{}={}", label.key, label.value)).collect();
    labels.sort();
    labels.join(" ")
}
