//! What is not in the view of a channel: what filters do, and how outliers are found.

use mainstay_xds::{
    deps::XdsConfig,
    resource::{
        cluster::OutlierDetection,
        filter::{FilterConfig, FilterOverrides},
        route::{ClusterTarget, Route, RouteAction},
    },
};

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
