//! The report as a tree on the terminal.

use std::{collections::BTreeSet, time::Duration};

use anstyle::Style;

use super::listener::{self, ChainReport, FilterReport, ListenerReport, RbacReport};
use super::report::{
    ClusterReport, EndpointReport, EndpointsReport, Facts, LocalityReport, Named, Report, RouteReport, ServerReport,
    Status, TlsReport, Watched, Weighted,
};
use crate::output::{BAD, DIM, GOOD, TITLE, styled};

/// Draws it; the last line has no line break.
pub(crate) fn draw(report: &Report) -> String {
    let (style, status) = match report.status {
        Status::Complete => (GOOD, "complete"),
        Status::Partial => (BAD, "partial"),
        Status::Failed => (BAD, "failed"),
    };
    let mixed = if report.mixed_sources { ", from more than one server" } else { "" };
    let node = styled(DIM, clean(&format!("for node {:?}", report.node)));
    let mut lines = vec![format!("{} {}{mixed}  {node}", styled(TITLE, clean(&report.target)), styled(style, status))];
    let parts =
        [report.error.as_deref().map(problem), report.listener.as_ref().map(|named| client_listener(report, named))];
    let tree = report.servers.iter().map(server).chain(parts.into_iter().flatten());
    let tree = Branch { label: String::new(), children: tree.chain(report.watched.iter().map(watched)).collect() };
    tree.draw("", &mut lines);
    lines.join("\n")
}

/// Draws the Listener of a server; the last line has no line break.
pub(super) fn draw_listener(report: &ListenerReport) -> String {
    let ListenerReport { address, state, reason, node, servers, listener, filter_chains } = report;
    let style = if reason.is_none() { GOOD } else { BAD };
    let node = styled(DIM, clean(&format!("for node {node:?}")));
    let state = styled(style, state.to_lowercase().replace('_', " "));
    let mut lines = vec![format!("server at {} {state}  {node}", styled(TITLE, clean(address)))];
    // What is wrong with the resource stands below it.
    let reason = reason.as_deref().filter(|_| listener.facts.error.is_none()).map(problem);
    let listener = resource("listener", listener).with(filter_chains.iter().map(chain));
    let children = servers.iter().map(server).chain(reason).chain([listener]).collect();
    Branch { label: String::new(), children }.draw("", &mut lines);
    lines.join("\n")
}

fn chain(chain: &ChainReport) -> Branch {
    let ChainReport { name, matches, tls, http_filters, routes } = chain;
    let tls = tls.as_ref().map_or_else(|| "as the credentials of the server say".to_owned(), server_security);
    let filter = |filter: &FilterReport| {
        let rules = filter.rbac.as_ref().map(|RbacReport { action, policies }| {
            let count = policies.len();
            let names: Vec<_> = policies.iter().take(SHOWN_POLICIES).map(|name| format!("{name:?}")).collect();
            let more = if count > SHOWN_POLICIES { ", …" } else { "" };
            let noun = if count == 1 { "policy" } else { "policies" };
            Branch::new(clean(&format!("{action}, {count} {noun}: {}{more}", names.join(", "))))
        });
        Branch::new(clean(&format!("filter {} {}", filter.name, filter.kind))).with(rules)
    };
    let route = |route: &listener::RouteReport| {
        let unsupported = route.unsupported.map(|action| problem(&format!("RPCs fail: {action} is not for servers")));
        Branch::new(clean(&route.matches)).with(unsupported)
    };
    let host = |host: &listener::HostReport| {
        let label = format!("virtual host {} for {}", host.name, host.domains.join(", "));
        Branch::new(clean(&label)).with(host.routes.iter().map(route))
    };
    let head = match &routes.resource {
        Some(rds) => resource("routes", rds),
        None => Branch::new("routes in the listener"),
    };
    Branch::new(clean(&format!("filter chain {name} for {matches}")))
        .with([Branch::new(clean(&format!("secured {tls}")))])
        .with(http_filters.iter().map(filter))
        .with([head.with(routes.virtual_hosts.iter().map(host))])
}

fn server_security(tls: &listener::TlsReport) -> String {
    let clients = match (&tls.roots, tls.client_certificate_required) {
        (None, _) => "clients are not asked for certificates".to_owned(),
        (Some(roots), true) => format!("clients need a certificate of {roots:?}"),
        (Some(roots), false) => format!("clients may have a certificate of {roots:?}"),
    };
    let kind = if tls.client_certificate_required { "mTLS" } else { "TLS" };
    format!("by {kind}: certificate {:?}, {clients}", tls.identity.as_deref().unwrap_or_default())
}

/// A line of the tree and what hangs on it.
struct Branch {
    label: String,
    children: Vec<Branch>,
}

impl Branch {
    fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), children: Vec::new() }
    }

    fn with(mut self, children: impl IntoIterator<Item = Branch>) -> Self {
        self.children.extend(children);
        self
    }

    fn draw(&self, indent: &str, lines: &mut Vec<String>) {
        for (index, child) in self.children.iter().enumerate() {
            let last = index + 1 == self.children.len();
            let (edge, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            lines.push(format!("{}{}", styled(DIM, format_args!("{indent}{edge}")), child.label));
            child.draw(&format!("{indent}{below}"), lines);
        }
    }
}

fn server(server: &ServerReport) -> Branch {
    let style = if server.state == "unreachable" { BAD } else { GOOD };
    let delta = if server.delta { ", delta" } else { "" };
    let label = format!("server {} {}{delta}", clean(&server.uri), styled(style, server.state));
    Branch::new(label).with(server.error.as_deref().map(problem))
}

fn client_listener(report: &Report, named: &Named) -> Branch {
    let mut seen = BTreeSet::new();
    let Some(routes) = &report.routes else { return resource("listener", named) };
    let host = format!("virtual host {}", clean(&routes.virtual_host));
    let host = Branch::new(host).with(routes.routes.iter().map(|entry| route(report, entry, &mut seen)));
    // Clusters that no route names are held by RPCs or by subscriptions.
    let held: Vec<_> = report.clusters.keys().filter(|name| !seen.contains(name.as_str())).collect();
    let held = held.into_iter().filter_map(|name| {
        let is_new = !seen.contains(name.as_str());
        is_new.then(|| cluster(report, name, " held", &mut seen))
    });
    let held: Vec<_> = held.collect();
    match &routes.resource {
        Some(rds) => resource("listener", named).with([resource("routes", rds).with([host]).with(held)]),
        None => resource("listener", named).with([Branch::new("routes in the listener").with([host]).with(held)]),
    }
}

fn route<'a>(report: &'a Report, route: &'a RouteReport, seen: &mut BTreeSet<&'a str>) -> Branch {
    let total: u64 = route.clusters.iter().map(|choice| u64::from(choice.weight)).sum();
    let is_weighted = route.clusters.len() > 1;
    let target = |Weighted { name, weight }: &'a Weighted| {
        let share = if is_weighted { format!(" {weight} of {total}") } else { String::new() };
        cluster(report, name, &share, seen)
    };
    let unsupported = route.unsupported.as_deref();
    let unsupported = unsupported.map(|action| problem(&format!("RPCs fail: {action} is not supported")));
    let timeout = route.timeout_ms.map(|limit| format!("timeout {:?}", Duration::from_millis(limit)));
    let retry = route.retry.as_ref().map(|retry| format!("retried {retry}"));
    let filters = route.filters.iter().map(|filter| format!("filter {filter}"));
    let notes: Vec<_> = timeout.into_iter().chain(retry).chain(filters).map(|note| Branch::new(clean(&note))).collect();
    Branch::new(clean(&route.matches)).with(notes).with(route.clusters.iter().map(target)).with(unsupported)
}

/// A cluster with all below it where it comes first, and its name alone after that: aggregates may be deep and loop.
fn cluster<'a>(report: &'a Report, name: &'a str, share: &str, seen: &mut BTreeSet<&'a str>) -> Branch {
    let head = format!("cluster {}{share}", clean(name));
    if !seen.insert(name) {
        return Branch::new(format!("{head} {}", styled(DIM, "see above")));
    }
    let Some(found) = report.clusters.get(name) else { return Branch::new(head) };
    let ClusterReport { facts, unusable, kind, lb_policy, dns, tls, children, endpoints, .. } = found;
    let traits: Vec<_> = kind.map(str::to_owned).into_iter().chain(dns.clone()).chain(lb_policy.clone()).collect();
    let traits = if traits.is_empty() { String::new() } else { format!(" {}", clean(&traits.join(", "))) };
    let mut branch = Branch::new(format!("{head}{traits}{}", aside(facts)))
        .with(facts.error.as_deref().map(problem))
        .with(unusable.as_deref().map(problem))
        .with(tls.as_ref().map(security))
        .with(limits(found));
    for child in children {
        branch.children.push(cluster(report, child, "", seen));
    }
    match endpoints {
        None => branch,
        Some(EndpointsReport { resource: Some(eds), priorities }) => {
            branch.with([resource("endpoints", eds).with(localities(priorities))])
        }
        Some(EndpointsReport { resource: None, priorities }) => branch.with(localities(priorities)),
    }
}

/// What keeps RPCs from its endpoints.
fn limits(cluster: &ClusterReport) -> Vec<Branch> {
    let breaker = cluster.max_requests.map(|limit| format!("circuit breaker at {limit} RPCs in flight"));
    let outliers = cluster.outlier_detection.as_ref().map(|text| format!("outlier detection {text}"));
    let drops = (!cluster.drops.is_empty()).then(|| format!("drops {}", cluster.drops.join(", ")));
    let plain = breaker.into_iter().chain(outliers).chain(drops).map(|text| Branch::new(clean(&text)));
    plain.chain(cluster.left_out.iter().map(|text| problem(text))).collect()
}

fn security(tls: &TlsReport) -> Branch {
    let TlsReport { roots, identity, subject_alt_names, sni } = tls;
    let kind = if identity.is_some() { "mTLS" } else { "TLS" };
    let roots = roots.as_ref().map_or("those of the system".to_owned(), |instance| format!("{instance:?}"));
    let mut parts = vec![format!("{kind}: roots {roots}")];
    parts.extend(identity.as_ref().map(|instance| format!("our certificate {instance:?}")));
    parts.extend(sni.as_ref().map(|name| format!("server name {name}")));
    parts.push(match &subject_alt_names[..] {
        [] => "any name".to_owned(),
        names => format!("name {}", names.join(" or ")),
    });
    Branch::new(clean(&parts.join(", ")))
}

fn localities(priorities: &[Vec<LocalityReport>]) -> Vec<Branch> {
    let priority = |(number, localities): (usize, &Vec<LocalityReport>)| {
        Branch::new(format!("priority {number}")).with(localities.iter().map(locality))
    };
    priorities.iter().enumerate().map(priority).collect()
}

fn locality(locality: &LocalityReport) -> Branch {
    let LocalityReport { name, weight, collection, endpoints } = locality;
    let name = if name == "//" { "no locality".to_owned() } else { format!("locality {}", clean(name)) };
    let endpoints = match &endpoints[..] {
        [] => vec![problem("no endpoints")],
        some => some.iter().map(endpoint).collect(),
    };
    let branch = Branch::new(format!("{name} weight {weight}"));
    match collection {
        Some(list) => branch.with([resource("collection", list).with(endpoints)]),
        None => branch.with(endpoints),
    }
}

fn endpoint(endpoint: &EndpointReport) -> Branch {
    let EndpointReport { addresses, health, weight, connection } = endpoint;
    let connection = connection.as_ref().map_or_else(String::new, |state| format!(", {state}"));
    Branch::new(clean(&format!("{} {health}, weight {weight}{connection}", addresses.join(", "))))
}

fn watched(watched: &Watched) -> Branch {
    resource(&watched.kind, &watched.resource)
}

fn resource(kind: &str, Named { name, facts }: &Named) -> Branch {
    let label = format!("{kind} {}{}", clean(name), aside(facts));
    Branch::new(label).with(facts.error.as_deref().map(problem))
}

/// Version, age and source; without them, the state.
fn aside(facts: &Facts) -> String {
    let Facts { state, version, age_ms, server, .. } = facts;
    let text = match (version, age_ms, server) {
        // Files have no versions.
        (Some(version), _, Some(server)) if version.is_empty() && !server.is_empty() => format!("from {server}"),
        (Some(version), Some(age), Some(server)) if server.is_empty() => {
            format!("version {version}, {} old", span(*age))
        }
        (Some(version), Some(age), Some(server)) => format!("version {version}, {} old, from {server}", span(*age)),
        _ => state.replace('_', " "),
    };
    if text.is_empty() { text } else { format!("  {}", styled(DIM, clean(&text))) }
}

/// How many policies of a filter are named.
const SHOWN_POLICIES: usize = 8;

fn problem(text: &str) -> Branch {
    const MARK: Style = BAD;
    Branch::new(format!("{} {}", styled(MARK, "!"), clean(text)))
}

/// Whole seconds are enough for people.
fn span(age_ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(age_ms / 1000)).to_string()
}

/// Names come from servers: one that carries control characters must not control the terminal.
pub(crate) fn clean(text: &str) -> String {
    let shown = |character: char| -> String {
        if character.is_control() { character.escape_default().collect() } else { character.into() }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
    }

    #[test]
    fn a_server_that_is_spoken_to_in_delta_is_said_to_be() {
        for (told, expected) in [
            ("READY, delta", "server a ready, delta"),
            ("READY", "server a ready"),
            ("READY, no answer since: lost", "server a ready"),
            ("CONNECTING", "server a connecting"),
        ] {
            let label = server(&ServerReport::told("a", told)).label;
            assert_eq!(anstream::adapter::strip_str(&label).to_string(), expected);
        }
        assert_eq!(ServerReport::told("a", "READY, delta").error, None);
        assert!(ServerReport::told("a", "READY, delta").delta);
    }

    #[test]
    fn ages_are_whole_seconds() {
        assert_eq!([span(0), span(1999), span(61_000)], ["0s", "1s", "1m 1s"]);
    }
}
