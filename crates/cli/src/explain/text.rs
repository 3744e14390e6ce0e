//! The report of a decision as text.

use std::{fmt, time::Duration};

use super::decision::{Decided, Passed};
use crate::get::{Facts, clean};
use crate::output::{BAD, DIM, TITLE, styled};

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<String> = self.headers.iter().map(|(name, value)| format!("  {name}: {value}")).collect();
        writeln!(f, "{}  {}{}", styled(TITLE, clean(&self.target)), clean(&self.path), clean(&headers.concat()))?;
        let mut lines = Lines(Vec::new());
        lines.add("listener", format!("{}{}", self.listener.name, aside(&self.listener.facts)));
        let others = match &self.virtual_host.others[..] {
            [] => String::new(),
            others => format!("; would also match: {}", others.join(", ")),
        };
        lines.add("virtual host", format!("{}  domain {}{others}", self.virtual_host.name, self.virtual_host.domain));
        match &self.route {
            Some(route) => {
                let draw = route.draw.as_ref().map_or_else(String::new, |draw| format!(" ({draw})"));
                lines.add("route", format!("#{} {}{draw}", route.index, route.matches));
                lines.passed(&route.passed);
            }
            None => {
                lines.add("route", "none matches".to_owned());
                lines.passed(&self.passed);
            }
        }
        let filters: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
        lines.maybe("filters", (!filters.is_empty()).then(|| filters.join("  ·  ")));
        for injected in &self.injected {
            lines.add("", format!("this call: {injected}"));
        }
        if let Some(cluster) = &self.cluster {
            let share = self.weight.as_ref().map_or_else(String::new, |weight| {
                let all: Vec<_> = weight.clusters.iter().map(|(name, weight)| format!("{name} {weight}")).collect();
                format!("  drew {} of {} in {{{}}}", weight.drawn, weight.total, all.join(", "))
            });
            let facts = self.cluster_resource.as_ref().map_or_else(String::new, aside);
            lines.add("cluster", format!("{cluster}{share}{facts}"));
        }
        lines.maybe("leaf", self.leaf.clone());
        lines.maybe("drops", (!self.drops.is_empty()).then(|| self.drops.join("  ·  ")));
        lines.maybe(
            "priority",
            self.priority.as_ref().map(|step| {
                let skipped: String = step.skipped.iter().map(|why| format!("  skipped {why}")).collect();
                format!("{} of {}{skipped}", step.index, step.count)
            }),
        );
        lines.maybe(
            "locality",
            self.locality.as_ref().map(|step| {
                let name = if step.name == "//" { "no locality" } else { &step.name };
                let share = step.share.as_ref().map_or_else(String::new, |share| {
                    format!("  weight {} of {} (drew {})", share.weight, share.total, share.drawn)
                });
                format!("{name}{share}")
            }),
        );
        if let (Some(policy), false) = (&self.lb_policy, self.endpoints.is_empty()) {
            let hash = self.hash.as_ref().map_or_else(String::new, |hash| format!("  hash {hash}"));
            lines.add("endpoints", format!("{policy} over {}{hash}", list(&self.endpoints)));
        }
        lines.maybe("this call", self.picked.clone());
        lines.maybe("authority", self.authority.clone());
        let timeout = match (self.timeout_ms, self.timeout_from) {
            (Some(limit), Some(from)) => format!("{:?} ({from})", Duration::from_millis(limit)),
            _ => "none but that of the call".to_owned(),
        };
        lines.add("timeout", timeout);
        lines.add(
            "retry",
            self.retry.as_ref().map_or_else(
                || "never".to_owned(),
                |retry| {
                    let (codes, count) = (retry.retry_on.join(", "), retry.num_retries);
                    format!("{codes}, {count} times, after {} to {} ms", retry.base_interval_ms, retry.max_interval_ms)
                },
            ),
        );
        lines.maybe(
            "circuit breaker",
            self.circuit_breaker.as_ref().map(|it| format!("{} of {}", it.in_flight, it.limit)),
        );
        lines.maybe("tls", self.tls.map(str::to_owned));
        if let (Some(error), Some(code)) = (&self.error, self.code) {
            lines.0.push(format!("{}  {code}: {}", styled(BAD, format_args!("{:WIDTH$}", "error")), clean(error)));
        }
        f.write_str(&lines.0.join("\n"))
    }
}

/// The lines of a table with two columns.
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, name: &str, text: String) {
        self.0.push(format!("{}  {}", styled(DIM, format_args!("{name:WIDTH$}")), clean(&text)));
    }

    fn maybe(&mut self, name: &str, text: Option<String>) {
        text.into_iter().for_each(|text| self.add(name, text));
    }

    fn passed(&mut self, passed: &[Passed]) {
        for one in passed.iter().take(SHOWN) {
            self.add("", format!("#{} {}  no: {}", one.index, one.matches, one.why));
        }
        if passed.len() > SHOWN {
            self.add("", format!("and {} more; --json has all", passed.len() - SHOWN));
        }
    }
}

fn list(endpoints: &[String]) -> String {
    match endpoints.len().checked_sub(SHOWN) {
        None | Some(0) => endpoints.join(", "),
        Some(more) => format!("{}, and {more} more", endpoints[..SHOWN].join(", ")),
    }
}

fn aside(facts: &Facts) -> String {
    let parts = [
        facts.version.as_ref().filter(|version| !version.is_empty()).map(|version| format!("version {version}")),
        facts
            .age_ms
            .filter(|_| facts.version.as_ref().is_some_and(|version| !version.is_empty()))
            .map(|age| format!("{} old", humantime::format_duration(Duration::from_secs(age / 1000)))),
        facts.server.as_ref().filter(|server| !server.is_empty()).map(|server| format!("from {server}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("  {}", parts.join(", ")) }
}

const WIDTH: usize = 15;

/// How many routes or endpoints are listed.
const SHOWN: usize = 20;
