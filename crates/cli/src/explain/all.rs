//! Every route of a target, and those that can never match (OP-6).

use std::fmt;

use mainstay::view::ConfigView;
use mainstay_xds::{
    deps::XdsConfig,
    resource::{
        matcher::PathMatcher,
        route::{Route, RouteAction},
    },
};
use serde::Serialize;

use super::{decision, words};
use crate::get::clean;
use crate::output::{BAD, DIM, TITLE, styled};

/// All routes of a virtual host.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    target: String,
    virtual_host: String,
    routes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    index: usize,
    #[serde(rename = "match")]
    matches: String,
    clusters: Vec<Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u128>,
    /// Why no call ever takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable: Option<String>,
    /// Why its calls fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Share {
    name: String,
    percent: f64,
    kind: &'static str,
}

impl Table {
    pub(super) fn new(view: &ConfigView, config: &XdsConfig) -> Self {
        let routes = &config.virtual_host.routes;
        let row = |(index, route): (usize, &Route)| Row {
            index,
            matches: decision::matches(view, index),
            clusters: shares(config, route),
            timeout_ms: decision::forward(route)
                .and_then(|forward| forward.max_stream_duration.or(config.listener.max_stream_duration))
                .filter(|limit| !limit.is_zero())
                .map(|limit| limit.as_millis()),
            unreachable: unreachable(routes, index),
            error: match &route.action {
                RouteAction::Forward(_) => None,
                RouteAction::NonForwarding => Some("non_forwarding_action is for servers".to_owned()),
                RouteAction::Unsupported(action) => Some(format!("{action} is not supported")),
            },
        };
        Self {
            target: view.target.clone(),
            virtual_host: config.virtual_host.name.clone(),
            routes: routes.iter().enumerate().map(row).collect(),
        }
    }
}

fn shares(config: &XdsConfig, route: &Route) -> Vec<Share> {
    let Some(forward) = decision::forward(route) else { return Vec::new() };
    let shares = words::shares(forward);
    let total: u64 = shares.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let share = |(name, weight): (String, u32)| {
        let kind = match config.clusters.get(name.as_str()) {
            Some(Ok(cluster)) => decision::kind(cluster),
            Some(Err(_)) | None => "unusable",
        };
        Share { name, percent: (f64::from(weight) / total.max(1) as f64 * 10_000.0).round() / 100.0, kind }
    };
    shares.into_iter().map(share).collect()
}

/// Why no call ever takes a route, if that can be told from the table alone.
fn unreachable(routes: &[Route], at: usize) -> Option<String> {
    let route = routes.get(at)?;
    if route.fraction == Some(0) {
        return Some(format!("#{at} is for 0 % of the calls"));
    }
    let earlier = routes[..at].iter().position(|earlier| covers(earlier, route))?;
    Some(format!("#{at} can never match: #{earlier} covers it"))
}

/// Whether whatever matches `inner` matches `outer`, too. What cannot be told counts as no.
fn covers(outer: &Route, inner: &Route) -> bool {
    let takes_all = outer.fraction.is_none_or(|fraction| fraction >= 1_000_000);
    takes_all
        && covers_path(&outer.path, &inner.path)
        && outer.headers.iter().all(|header| inner.headers.contains(header))
}

fn covers_path(outer: &PathMatcher, inner: &PathMatcher) -> bool {
    match (outer, inner) {
        (PathMatcher::Prefix { value, .. }, _) if value.is_empty() => true,
        // Every path begins so.
        (PathMatcher::Prefix { value, .. }, _) if value == "/" => true,
        (
            PathMatcher::Prefix { value: outer, case_sensitive },
            PathMatcher::Prefix { value: inner, case_sensitive: inner_sensitive }
            | PathMatcher::Exact { value: inner, case_sensitive: inner_sensitive },
        ) => match (case_sensitive, inner_sensitive) {
            (true, true) => inner.starts_with(outer.as_str()),
            (false, _) => inner.to_ascii_lowercase().starts_with(&outer.to_ascii_lowercase()),
            (true, false) => false,
        },
        (
            PathMatcher::Exact { value: outer, case_sensitive },
            PathMatcher::Exact { value: inner, case_sensitive: inner_sensitive },
        ) => match (case_sensitive, inner_sensitive) {
            (true, true) => outer == inner,
            (false, _) => outer.eq_ignore_ascii_case(inner),
            (true, false) => false,
        },
        (PathMatcher::Regex(outer), PathMatcher::Regex(inner)) => {
            outer.pattern() == inner.pattern() || outer.pattern() == ".*"
        }
        (PathMatcher::Regex(outer), PathMatcher::Exact { value, case_sensitive: true }) => outer.is_match(value),
        (PathMatcher::Regex(outer), PathMatcher::Prefix { .. } | PathMatcher::Exact { .. }) => outer.pattern() == ".*",
        (PathMatcher::Exact { .. }, PathMatcher::Prefix { .. } | PathMatcher::Regex(_))
        | (PathMatcher::Prefix { .. }, PathMatcher::Regex(_)) => false,
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = styled(DIM, clean(&format!("virtual host {}", self.virtual_host)));
        write!(f, "{}  {host}", styled(TITLE, clean(&self.target)))?;
        let width = self.routes.iter().map(|row| row.matches.chars().count()).max().unwrap_or(0).min(60);
        for row in &self.routes {
            let clusters: Vec<String> = match &row.clusters[..] {
                [only] => vec![format!("{}{}", only.name, unusable(only))],
                shares => shares.iter().map(|one| format!("{} {} %{}", one.name, one.percent, unusable(one))).collect(),
            };
            let timeout = row.timeout_ms.map_or_else(String::new, |limit| format!("  timeout {limit} ms"));
            let line = format!("#{:<3} {:width$}  {}{timeout}", row.index, row.matches, clusters.join(", "));
            write!(f, "\n{}", clean(&line).trim_end())?;
            for problem in row.unreachable.iter().chain(&row.error) {
                write!(f, "\n     {} {}", styled(BAD, "!"), clean(problem))?;
            }
        }
        Ok(())
    }
}

fn unusable(share: &Share) -> &'static str {
    if share.kind == "unusable" { " (unusable)" } else { "" }
}
