//! Numbers: weights of endpoints, rings, strides.

use mainstay_xds::orca::OrcaLoadReport;
use mainstay_xds::resource::lb_policy::{Metric, Weighing};
use xxhash_rust::xxh64::xxh64;

use super::Part;

/// The weight of each endpoint that may get traffic: its share in its locality times the share of that, in parts of
/// 2^31, at least one (A113).
pub(super) fn of_endpoints(part: &Part) -> Vec<u32> {
    let one = 1_u128 << 31;
    let all: u128 = part.localities.iter().map(|area| u128::from(area.weight)).sum();
    let mut weights = Vec::new();
    for area in &part.localities {
        let sites = area.sites();
        let sum: u128 = sites.iter().map(|site| u128::from(site.endpoint.weight)).sum();
        for site in sites {
            let of_area = u128::from(area.weight) * one / all.max(1);
            let of_site = u128::from(site.endpoint.weight) * one / sum.max(1);
            weights.push(((of_area * of_site) >> 31).max(1) as u32);
        }
    }
    weights
}

/// The ring of endpoints by key and weight: where each entry is, and whose it is (A42, L-112).
pub(super) fn ring(endpoints: &[(String, u32)], min: u32, max: u32) -> Vec<(u64, usize)> {
    let (min, max) = (u128::from(min.min(4096)), u128::from(max.min(4096)));
    let sum: u128 = endpoints.iter().map(|(_, weight)| u128::from(*weight)).sum::<u128>().max(1);
    let least = endpoints.iter().map(|(_, weight)| u128::from(*weight)).min().unwrap_or(1).max(1);
    // scale = min(ceil(least / sum * min) / (least / sum), max), as a fraction.
    let for_least = (least * min).div_ceil(sum);
    let (above, below) = if for_least * sum > max * least { (max, 1) } else { (for_least * sum, least) };
    let mut ring: Vec<(u64, usize)> = Vec::new();
    let mut before = 0;
    for (at, (key, weight)) in endpoints.iter().enumerate() {
        before += u128::from(*weight);
        let mut count = 0;
        while (ring.len() as u128) * below * sum < above * before {
            ring.push((xxh64(format!("{key}_{count}").as_bytes(), 0), at));
            count += 1;
        }
    }
    ring.sort();
    ring
}

/// The weight that follows from a report, if it says enough (L-107).
pub(super) fn of_report(report: &OrcaLoadReport, weighing: &Weighing) -> Option<f64> {
    let mut utilization: f64 = 0.0;
    for metric in &weighing.metrics {
        let value = match metric {
            Metric::ApplicationUtilization => report.application_utilization,
            Metric::CpuUtilization => report.cpu_utilization,
            Metric::MemUtilization => report.mem_utilization,
            Metric::Named(name) => report.named_metrics.get(name).copied().unwrap_or(0.0),
            Metric::Utilization(name) => report.utilization.get(name).copied().unwrap_or(0.0),
        };
        if value > utilization {
            utilization = value;
        }
    }
    if utilization <= 0.0 {
        utilization = report.application_utilization;
    }
    if utilization <= 0.0 {
        utilization = report.cpu_utilization;
    }
    if utilization <= 0.0 || report.rps_fractional <= 0.0 {
        return None;
    }
    let penalty = report.eps / report.rps_fractional * f64::from(weighing.error_utilization_penalty.get());
    Some(report.rps_fractional / (utilization + penalty.max(0.0))).filter(|weight| *weight > 0.0)
}

/// How many of 65535 rounds each has a turn in: the heaviest in all, nobody more than ten times or less than a hundredth
/// of the mean, the unknown as often as the mean; nothing if fewer than two are known (L-108).
pub(super) fn strides(weights: &[Option<f64>]) -> Option<Vec<u16>> {
    let known: Vec<f64> = weights.iter().flatten().copied().collect();
    if known.len() < 2 {
        return None;
    }
    let largest = known.iter().copied().fold(0.0, f64::max);
    let mean = known.iter().map(|weight| weight / largest).sum::<f64>() / known.len() as f64;
    let top = if mean * 10.0 < 1.0 { mean * 10.0 } else { 1.0 };
    let least = (mean * (65535.0 / top) * 0.01).ceil().max(1.0);
    let stride = |weight: &Option<f64>| {
        let part = weight.map_or(mean, |weight| weight / largest);
        (part * (65535.0 / top)).round().clamp(least, 65535.0) as u16
    };
    Some(weights.iter().map(stride).collect())
}
