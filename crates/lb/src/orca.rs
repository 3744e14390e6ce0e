//! What endpoints report about their load (A51, L-107, L-109).

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use http::HeaderMap;
use mainstay_xds::orca::{ORCA_TRAILER, OrcaLoadReport};
use mainstay_xds::resource::lb_policy::{Metric, Weighing};

/// The weight that the reports of one endpoint give it. Two are equal if they are the same one: what endpoints say is no
/// part of the state of a policy before it has looked, but whom they say it to is.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    weighing: Weighing,
    /// Bits of an `f64`.
    weight: AtomicU64,
    /// How many reports there were that say anything.
    count: AtomicU32,
}

/// Where the shell brings the reports that an endpoint sends on a stream of its own.
#[derive(Clone, Debug)]
pub struct LoadSink(Weak<Reports>);

impl Reports {
    pub(crate) fn new(weighing: &Weighing) -> Self {
        Self { weighing: weighing.clone(), ..Self::default() }
    }

    /// Takes in the report that came with the answer to an RPC, if one did. What cannot be read is no report.
    pub(crate) fn read_trailers(&self, trailers: &HeaderMap) {
        if let Some(value) = trailers.get(ORCA_TRAILER)
            && let Some(report) = OrcaLoadReport::from_trailer(value.as_bytes())
        {
            self.weigh(&report);
        }
    }

    /// How many reports there were, and the weight after the last.
    pub(crate) fn latest(&self) -> (u32, f64) {
        let count = self.count.load(Ordering::Acquire);
        (count, f64::from_bits(self.weight.load(Ordering::Relaxed)))
    }

    fn weigh(&self, report: &OrcaLoadReport) {
        if let Some(weight) = weigh(report, &self.weighing) {
            self.weight.store(weight.to_bits(), Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Release);
        }
    }
}

impl LoadSink {
    pub(crate) fn new(reports: &Arc<Reports>) -> Self {
        Self(Arc::downgrade(reports))
    }

    /// Whether anyone still wants reports.
    pub fn is_wanted(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Takes in an encoded `OrcaLoadReport`.
    pub fn report(&self, bytes: &[u8]) {
        if let Some(reports) = self.0.upgrade()
            && let Some(report) = OrcaLoadReport::read(bytes)
        {
            reports.weigh(&report);
        }
    }
}

/// The weight of an endpoint with this report; none if the report does not say enough (L-107).
fn weigh(report: &OrcaLoadReport, weighing: &Weighing) -> Option<f64> {
    let qps = report.rps_fractional;
    let mut utilization = utilization(report, &weighing.metrics);
    if !(utilization > 0.0 && qps > 0.0) {
        return None;
    }
    let penalty = report.eps / qps * f64::from(weighing.error_utilization_penalty.get());
    if penalty > 0.0 {
        utilization += penalty;
    }
    Some(qps / utilization).filter(|weight| weight.is_finite() && *weight > 0.0)
}

fn utilization(report: &OrcaLoadReport, metrics: &[Metric]) -> f64 {
    let value = |metric: &Metric| match metric {
        Metric::ApplicationUtilization => Some(report.application_utilization),
        Metric::CpuUtilization => Some(report.cpu_utilization),
        Metric::MemUtilization => Some(report.mem_utilization),
        Metric::Named(key) => report.named_metrics.get(key).copied(),
        Metric::Utilization(key) => report.utilization.get(key).copied(),
    };
    // NaN is not above zero.
    let largest = metrics.iter().filter_map(value).filter(|value| *value > 0.0).max_by(f64::total_cmp);
    match largest {
        Some(largest) => largest,
        None if report.application_utilization > 0.0 => report.application_utilization,
        None => report.cpu_utilization,
    }
}

impl PartialEq for Reports {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Reports {}

impl Hash for Reports {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for LoadSink {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for LoadSink {}

impl Hash for LoadSink {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
pub(crate) mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    use mainstay_xds::resource::lb_policy::Penalty;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_weight_is_requests_per_utilization() {
        assert_eq!(weight(&[("qps", 100.0), ("app", 0.5)], &[]), Some(200.0), "L-107");
        assert_eq!(weight(&[("qps", 100.0), ("cpu", 0.25)], &[]), Some(400.0), "L-107: else cpu");
        assert_eq!(
            weight(&[("qps", 100.0), ("app", 0.5), ("cpu", 0.25)], &[]),
            Some(200.0),
            "L-107: application first"
        );
        assert_eq!(weight(&[("qps", 100.0), ("app", 0.5), ("eps", 50.0)], &[]), Some(100.0), "L-107: penalty 1.0");
    }

    #[test]
    fn a_report_that_says_too_little_is_none() {
        assert_eq!(weight(&[("qps", 100.0)], &[]), None, "L-107: no utilization");
        assert_eq!(weight(&[("cpu", 0.5)], &[]), None, "L-107: no qps");
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(weight(&[("qps", odd), ("cpu", 0.5)], &[]).filter(|weight| !weight.is_finite()), None);
            assert_eq!(weight(&[("qps", 1.0), ("cpu", odd)], &[]), None);
        }
        assert_eq!(weight(&[("qps", 10.0), ("cpu", 1.0), ("eps", -50.0)], &[]), Some(10.0), "no reward for errors");
    }

    #[test]
    fn named_metrics_count_where_the_configuration_says_so() {
        let report = [("qps", 100.0), ("app", 0.1), ("mem", 0.2), ("named.x", 0.4), ("util.x.y", 0.5)];
        assert_eq!(weight(&report, &["named_metrics.x"]), Some(250.0), "L-107: A114");
        assert_eq!(
            weight(&report, &["named_metrics.x", "utilization.x.y", "mem_utilization"]),
            Some(200.0),
            "the largest"
        );
        assert_eq!(weight(&report, &["named_metrics.z", "utilization.x"]), Some(1000.0), "none there: as without");
        let odd = [("qps", 100.0), ("app", 0.1), ("named.x", f64::NAN), ("named.y", -1.0), ("mem", 0.2)];
        assert_eq!(weight(&odd, &["named_metrics.x", "named_metrics.y", "mem_utilization"]), Some(500.0), "A114");
        assert_eq!(weight(&odd, &["named_metrics.x", "named_metrics.y"]), Some(1000.0), "A114");
    }

    #[test]
    fn reports_come_in_trailers() {
        let reports = Reports::new(&weighing(&[]));
        let bytes = encode(&[("qps", 100.0), ("app", 0.5)]);
        let read = |text: &str| {
            let mut trailers = HeaderMap::new();
            trailers.insert(ORCA_TRAILER, text.parse().expect("a value"));
            reports.read_trailers(&trailers);
            reports.latest()
        };
        assert_eq!(read("!"), (0, 0.0));
        assert_eq!(read("////"), (0, 0.0), "no protobuf");
        assert_eq!(read(&base64(&bytes)), (1, 200.0), "L-109");
        reports.read_trailers(&HeaderMap::new());
        assert_eq!(reports.latest(), (1, 200.0));
    }

    proptest! {
        #[test]
        fn whatever_is_reported_a_weight_is_a_positive_number(
            numbers in prop::collection::vec(any_number(), 8),
            penalty in prop::sample::select(vec![0.0, 1.0, f32::MAX]),
        ) {
            let names = ["qps", "eps", "app", "cpu", "mem", "named.x", "util.x", "util.y"];
            let fields: Vec<(&str, f64)> = names.into_iter().zip(numbers).collect();
            let penalty = Penalty::new(penalty).expect("a penalty");
            for metrics in [&[][..], &["named_metrics.x", "utilization.x"]] {
                let reports = Arc::new(Reports::new(&Weighing { error_utilization_penalty: penalty, ..weighing(metrics) }));
                LoadSink::new(&reports).report(&encode(&fields));
                let (count, weight) = reports.latest();
                prop_assert!(count == 0 || (weight.is_finite() && weight > 0.0), "{}", weight);
            }
        }

        #[test]
        fn whatever_comes_as_a_report_is_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let reports = Arc::new(Reports::new(&weighing(&["named_metrics.x"])));
            LoadSink::new(&reports).report(&bytes);
            for value in [http::HeaderValue::from_bytes(&bytes).ok(), base64(&bytes).parse().ok()].into_iter().flatten() {
                reports.read_trailers(&HeaderMap::from_iter([(http::HeaderName::from_static(ORCA_TRAILER), value)]));
            }
            prop_assert!(reports.latest().1.is_finite());
        }
    }

    /// The odd ones more often than by chance.
    pub(crate) fn any_number() -> impl Strategy<Value = f64> {
        let odd = [0.0, -0.0, 1.0, -1.0, 1e308, -1e308, f64::MIN_POSITIVE, 5e-324, f64::NAN, f64::INFINITY];
        prop_oneof![prop::sample::select(odd.to_vec()), any::<f64>(), 0.0..1e6]
    }

    fn weight(fields: &[(&str, f64)], metrics: &[&str]) -> Option<f64> {
        weigh(&report(fields), &weighing(metrics))
    }

    fn weighing(metrics: &[&str]) -> Weighing {
        let metrics = metrics.iter().filter_map(|name| Metric::parse(name)).collect();
        Weighing { error_utilization_penalty: Penalty::new(1.0).expect("a penalty"), metrics }
    }

    fn report(fields: &[(&str, f64)]) -> OrcaLoadReport {
        let mut report = OrcaLoadReport::default();
        for (name, value) in fields {
            match name.split_once('.') {
                Some(("named", key)) => drop(report.named_metrics.insert(key.to_owned(), *value)),
                Some((_, key)) => drop(report.utilization.insert(key.to_owned(), *value)),
                None => match *name {
                    "qps" => report.rps_fractional = *value,
                    "eps" => report.eps = *value,
                    "app" => report.application_utilization = *value,
                    "mem" => report.mem_utilization = *value,
                    _ => report.cpu_utilization = *value,
                },
            }
        }
        report
    }

    /// An encoded report.
    pub(crate) fn encode(fields: &[(&str, f64)]) -> Vec<u8> {
        report(fields).encode_to_vec()
    }

    /// Without padding, as gRPC sends it.
    pub(crate) fn base64(bytes: &[u8]) -> String {
        STANDARD_NO_PAD.encode(bytes)
    }
}
