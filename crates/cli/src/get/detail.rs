//! What is not in the view of a channel: what filters do, how outliers are found, and what of a resource is left out.

use bytes::Bytes;
use envoy_types::pb::envoy::config::{
    core::v3::{HealthStatus, Locality},
    endpoint::v3::ClusterLoadAssignment,
};
use mainstay_xds::{
    deps::XdsConfig,
    resource::{
        cluster::OutlierDetection,
        filter::{FilterConfig, FilterOverrides},
        route::{ClusterTarget, Route, RouteAction},
    },
};
use prost::Message as _;

use super::report::Report;
use crate::filters;

impl Report {
    /// Adds what the core knows of the same configuration.
    pub(crate) fn detail(&mut self, config: &XdsConfig) {
        let routes = self.routes.iter_mut().flat_map(|routes| &mut routes.routes);
        for (report, route) in routes.zip(&config.virtual_host.routes) {
            report.filters = filters(config, route);
        }
        for (name, report) in &mut self.clusters {
            let cluster = config.clusters.get(name.as_str()).and_then(|result| result.as_ref().ok());
            let detection = cluster.and_then(|cluster| cluster.cluster.outlier_detection.as_ref());
            report.outlier_detection = detection.map(outliers).or(report.outlier_detection.take());
        }
    }
}

/// What the filters of a route do, the router aside.
fn filters(config: &XdsConfig, route: &Route) -> Vec<String> {
    let host = &config.virtual_host.overrides;
    let under = |levels: &[(&'static str, &FilterOverrides)], of: &str| {
        let chain = config.listener.filters.iter().filter(|filter| filter.config != FilterConfig::Router);
        let chain: Vec<_> = chain.cloned().collect();
        let described = filters::describe(&chain, levels);
        described.into_iter().map(|filter| format!("{of}{filter}")).collect::<Vec<_>>()
    };
    let mut lines = under(&[("route", &route.overrides), ("virtual host", host)], "");
    if let RouteAction::Forward(forward) = &route.action
        && let ClusterTarget::Weighted(choices) = &forward.target
    {
        for choice in choices.iter().filter(|choice| !choice.overrides.is_empty()) {
            let levels = [("weighted cluster", &choice.overrides), ("route", &route.overrides), ("virtual host", host)];
            lines.extend(under(&levels, &format!("for cluster {}: ", choice.name)));
        }
    }
    lines
}

fn outliers(detection: &OutlierDetection) -> String {
    let OutlierDetection { interval, base_ejection_time, max_ejection_time, max_ejection_percent, .. } = detection;
    let rate = detection.success_rate.as_ref().map(|rate| {
        let factor = f64::from(rate.stdev_factor) / 1000.0;
        format!("a success rate {factor} deviations below the mean of {} endpoints", rate.minimum_hosts)
    });
    let failures = detection.failure_percentage.as_ref();
    let failures = failures.map(|failures| format!("more than {} % failures", failures.threshold));
    let signs: Vec<String> = rate.into_iter().chain(failures).collect();
    let signs = if signs.is_empty() { "nothing".to_owned() } else { signs.join(" or ") };
    format!(
        "every {interval:?}, for {signs}; ejects at most {max_ejection_percent} %, for {base_ejection_time:?} to \
         {max_ejection_time:?}"
    )
}

/// The localities and endpoints of a ClusterLoadAssignment that are not used, and why.
pub(super) fn left_out(encoded: &Bytes) -> Vec<String> {
    let Ok(assignment) = ClusterLoadAssignment::decode(encoded.as_ref()) else { return Vec::new() };
    let mut lines = Vec::new();
    for locality in &assignment.endpoints {
        let name = name(locality.locality.as_ref());
        if locality.load_balancing_weight.is_none_or(|weight| weight.value == 0) {
            lines.push(format!("{name} is not used: it has no load_balancing_weight"));
            continue;
        }
        for status in [HealthStatus::Unhealthy, HealthStatus::Timeout, HealthStatus::Degraded] {
            let count = locality.lb_endpoints.iter().filter(|one| one.health_status == status as i32).count();
            if count > 0 {
                let (name, health) = (&name, status.as_str_name());
                lines.push(format!(
                    "{count} of {} endpoints of {name} are not used: {health}",
                    locality.lb_endpoints.len()
                ));
            }
        }
    }
    lines
}

fn name(locality: Option<&Locality>) -> String {
    match locality {
        Some(Locality { region, zone, sub_zone }) if !(region.is_empty() && zone.is_empty() && sub_zone.is_empty()) => {
            format!("locality {region}/{zone}/{sub_zone}")
        }
        _ => "the locality without a name".to_owned(),
    }
}
