//! Two reports side by side.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use super::Wire;
use crate::{
    get::{ClusterReport, Report, RouteReport, clean},
    output::{BAD, GOOD, TITLE, styled},
};

/// What a cluster has in one respect.
type Field = fn(&ClusterReport) -> Option<String>;

/// All that differs.
#[derive(Debug, Default, Serialize)]
pub(super) struct Difference {
    pub(super) same: bool,
    /// What traffic would notice, in sentences.
    notice: Vec<String>,
    changes: Vec<Change>,
    #[serde(skip)]
    count: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Change {
    #[serde(skip_serializing_if = "String::is_empty")]
    target: String,
    /// target, routes, route, cluster or endpoint; with --wire the type of the resource.
    part: String,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
    before: Option<String>,
    after: Option<String>,
}

/// What traffic would notice, counted.
#[derive(Debug, Default)]
struct Counts {
    /// Targets without a configuration that had one, and the other way round.
    lost_targets: usize,
    gained_targets: usize,
    /// Clusters whose last endpoint goes.
    emptied: usize,
    filled: usize,
    endpoints_gone: usize,
    endpoints_new: usize,
    routes_moved: usize,
    routes_gone: usize,
    routes_new: usize,
    reordered: usize,
    /// Routes and clusters that treat calls otherwise.
    treated: usize,
    secured: usize,
}

impl Difference {
    /// Compares what both sides have for a target; nothing is a side that has nothing for it.
    pub(super) fn add(&mut self, target: &str, before: Option<&Report>, after: Option<&Report>) {
        let works =
            |report: Option<&Report>| report.is_some_and(|report| report.error.is_none() && report.routes.is_some());
        match (works(before), works(after)) {
            (true, false) => self.count.lost_targets += 1,
            (false, true) => self.count.gained_targets += 1,
            _ => {}
        }
        let state = |report: Option<&Report>| {
            report.map(|report| report.error.clone().unwrap_or_else(|| "has a configuration".to_owned()))
        };
        self.note(target, "target", target, "", state(before), state(after));
        let (Some(before), Some(after)) = (before, after) else { return };
        let host = |report: &Report| report.routes.as_ref().map(|routes| routes.virtual_host.clone());
        self.note(target, "routes", "virtual host", "", host(before), host(after));
        self.routes(target, routes(before), routes(after));
        let names: BTreeSet<&String> = before.clusters.keys().chain(after.clusters.keys()).collect();
        for name in names {
            self.cluster(target, name, before.clusters.get(name), after.clusters.get(name));
        }
    }

    /// The sentences, once everything is compared.
    pub(super) fn finish(mut self) -> Self {
        let Counts { lost_targets, gained_targets, emptied, filled, endpoints_gone, endpoints_new, .. } = self.count;
        let Counts { routes_moved, routes_gone, routes_new, reordered, treated, secured, .. } = self.count;
        let sentences = [
            (lost_targets, "target loses its configuration", "targets lose their configuration"),
            (gained_targets, "target gets a configuration", "targets get a configuration"),
            (emptied, "cluster loses all its endpoints", "clusters lose all their endpoints"),
            (filled, "cluster gets its first endpoints", "clusters get their first endpoints"),
            (endpoints_gone, "endpoint goes", "endpoints go"),
            (endpoints_new, "endpoint comes", "endpoints come"),
            (routes_moved, "route moves to other clusters or shares", "routes move to other clusters or shares"),
            (routes_gone, "route goes", "routes go"),
            (routes_new, "route comes", "routes come"),
            (reordered, "table of routes has another order", "tables of routes have another order"),
            (treated, "route or cluster treats calls otherwise", "routes or clusters treat calls otherwise"),
            (
                secured,
                "cluster replaces its connections for other TLS",
                "clusters replace their connections for other TLS",
            ),
        ];
        let told = sentences.into_iter().filter(|(count, ..)| *count > 0);
        self.notice =
            told.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many })).collect();
        self.same = self.changes.is_empty();
        self
    }

    /// Compares the bytes of resources.
    pub(super) fn of_bytes(before: &Wire, after: &Wire) -> Self {
        let mut difference = Self::default();
        let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        for key in keys {
            let (kind, name) = key;
            let (old, new) = (before.get(key), after.get(key));
            if old != new {
                let size = |bytes: Option<&Vec<u8>>| bytes.map(|bytes| format!("{} bytes", bytes.len()));
                let (part, name, field) = (kind.clone(), name.clone(), String::new());
                let target = String::new();
                difference.changes.push(Change { target, part, name, field, before: size(old), after: size(new) });
            }
        }
        difference.same = difference.changes.is_empty();
        difference
    }

    /// Adds a change if there is one.
    fn note(
        &mut self,
        target: &str,
        part: &str,
        name: &str,
        field: &str,
        before: Option<String>,
        after: Option<String>,
    ) -> bool {
        let is_change = before != after;
        if is_change {
            let [target, part, name, field] = [target, part, name, field].map(str::to_owned);
            self.changes.push(Change { target, part, name, field, before, after });
        }
        is_change
    }

    fn routes(&mut self, target: &str, before: &[RouteReport], after: &[RouteReport]) {
        let (old, new) = (by_match(before), by_match(after));
        let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let name = key_name(key);
            let (old, new) = (old.get(key).copied(), new.get(key).copied());
            match (old, new) {
                (Some(_), None) => self.count.routes_gone += 1,
                (None, Some(_)) => self.count.routes_new += 1,
                _ => {}
            }
            let moved = self.note(target, "route", &name, "clusters", old.map(clusters), new.map(clusters));
            if let (Some(old), Some(new)) = (old, new) {
                self.count.routes_moved += usize::from(moved);
                let treated = [
                    self.note(target, "route", &name, "timeout", timeout(old), timeout(new)),
                    self.note(target, "route", &name, "retry", old.retry.clone(), new.retry.clone()),
                    self.note(target, "route", &name, "filters", joined(&old.filters), joined(&new.filters)),
                    self.note(target, "route", &name, "action", old.unsupported.clone(), new.unsupported.clone()),
                ];
                self.count.treated += usize::from(treated.contains(&true));
            }
        }
        // The order of routes that both sides have.
        let common = |of: &[RouteReport], other: &BTreeMap<(String, usize), &RouteReport>| -> Vec<(String, usize)> {
            keys_of(of).into_iter().filter(|key| other.contains_key(key)).collect()
        };
        let (a, b) = (common(before, &new), common(after, &old));
        if a != b {
            self.count.reordered += 1;
            let text = |keys: &[(String, usize)]| Some(keys.iter().map(key_name).collect::<Vec<_>>().join(" | "));
            self.note(target, "routes", "order", "", text(&a), text(&b));
        }
    }

    fn cluster(&mut self, target: &str, name: &str, before: Option<&ClusterReport>, after: Option<&ClusterReport>) {
        let kind = |cluster: Option<&ClusterReport>| {
            cluster.map(|cluster| cluster.kind.map_or_else(|| "unusable".to_owned(), str::to_owned))
        };
        let of = |cluster: Option<&ClusterReport>, field: fn(&ClusterReport) -> Option<String>| cluster.and_then(field);
        let replaced = self.note(target, "cluster", name, "", kind(before), kind(after));
        if before.is_some() && after.is_some() {
            let fields: [(&str, Field); 7] = [
                ("lb_policy", |cluster| cluster.lb_policy.clone()),
                ("dns", |cluster| cluster.dns.clone()),
                ("circuit breaker", |cluster| cluster.max_requests.map(|limit| limit.to_string())),
                ("outlier detection", |cluster| cluster.outlier_detection.clone()),
                ("drops", |cluster| joined(&cluster.drops)),
                ("children", |cluster| joined(&cluster.children)),
                ("endpoints resource", |cluster| Some(cluster.endpoints.as_ref()?.resource.as_ref()?.name.clone())),
            ];
            let mut treated = replaced;
            for (field, get) in fields {
                treated |= self.note(target, "cluster", name, field, of(before, get), of(after, get));
            }
            self.count.treated += usize::from(treated);
            let tls = |cluster: &ClusterReport| cluster.tls.as_ref().map(|tls| format!("{tls:?}"));
            self.count.secured +=
                usize::from(self.note(target, "cluster", name, "tls", of(before, tls), of(after, tls)));
        }
        let (old, new) = (endpoints(before), endpoints(after));
        self.count.emptied += usize::from(!old.is_empty() && new.is_empty() && after.is_some());
        self.count.filled += usize::from(old.is_empty() && !new.is_empty() && before.is_some());
        let addresses: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for address in addresses {
            let (old, new) = (old.get(address).cloned(), new.get(address).cloned());
            self.count.endpoints_gone += usize::from(new.is_none());
            self.count.endpoints_new += usize::from(old.is_none());
            self.note(target, "endpoint", name, address, old, new);
        }
    }
}

fn routes(report: &Report) -> &[RouteReport] {
    report.routes.as_ref().map_or(&[], |routes| &routes.routes)
}

/// Routes are known by what they match; of equal ones by which it is.
fn keys_of(routes: &[RouteReport]) -> Vec<(String, usize)> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let key = |route: &RouteReport| (route.matches.clone(), 0);
    routes
        .iter()
        .map(|route| {
            let count = seen.entry(route.matches.as_str()).or_default();
            *count += 1;
            (key(route).0, *count - 1)
        })
        .collect()
}

fn by_match(routes: &[RouteReport]) -> BTreeMap<(String, usize), &RouteReport> {
    keys_of(routes).into_iter().zip(routes).collect()
}

fn key_name((matches, at): &(String, usize)) -> String {
    if *at == 0 { matches.clone() } else { format!("{matches} ({})", at + 1) }
}

/// Shares, not weights: 1 of 2 is 50 of 100. In any order.
fn clusters(route: &RouteReport) -> String {
    let total: u64 = route.clusters.iter().map(|one| u64::from(one.weight)).sum();
    let mut shares: Vec<String> = route
        .clusters
        .iter()
        .map(|one| match route.clusters.len() {
            1 => one.name.clone(),
            _ => format!("{} {:.2} %", one.name, f64::from(one.weight) * 100.0 / total.max(1) as f64),
        })
        .collect();
    shares.sort();
    shares.join(", ")
}

fn timeout(route: &RouteReport) -> Option<String> {
    route.timeout_ms.map(|limit| format!("{limit} ms"))
}

fn joined(texts: &[String]) -> Option<String> {
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Endpoints as a set: each address with where it is and what it weighs.
fn endpoints(cluster: Option<&ClusterReport>) -> BTreeMap<String, String> {
    let endpoints = cluster.and_then(|cluster| cluster.endpoints.as_ref());
    let priorities = endpoints.map_or(&[][..], |endpoints| &endpoints.priorities);
    let mut all = BTreeMap::new();
    for (priority, localities) in priorities.iter().enumerate() {
        for locality in localities {
            for endpoint in &locality.endpoints {
                let (name, share) = (&locality.name, locality.weight);
                let place = format!("priority {priority}, locality {name} of weight {share}");
                let text = format!("{place}, {}, weight {}", endpoint.health, endpoint.weight);
                all.insert(endpoint.addresses.join(","), text);
            }
        }
    }
    all
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.same, &self.notice[..]) {
            (true, _) => return f.write_str(&styled(GOOD, "no difference")),
            (false, []) => f.write_str(&styled(TITLE, "traffic would notice nothing"))?,
            (false, notice) => f.write_str(&styled(TITLE, notice.join("; ")))?,
        }
        for Change { target, part, name, field, before, after } in &self.changes {
            let subject = [target, part, name, field].into_iter().filter(|text| !text.is_empty());
            let mut subject: Vec<&str> = subject.map(String::as_str).collect();
            subject.dedup();
            let subject = clean(&subject.join(" "));
            match (before, after) {
                (Some(before), None) => write!(f, "\n{} {subject}: {}", styled(BAD, "-"), clean(before))?,
                (None, Some(after)) => write!(f, "\n{} {subject}: {}", styled(GOOD, "+"), clean(after))?,
                (before, after) => {
                    let shown = |text: &Option<String>| clean(text.as_deref().unwrap_or("-"));
                    write!(f, "\n~ {subject}: {} → {}", shown(before), shown(after))?;
                }
            }
        }
        Ok(())
    }
}
