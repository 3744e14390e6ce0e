//! The page of a process: for each of its xDS clients the tree from the listener to the endpoints, and its channels.

use std::time::Duration;

use maud::{Markup, html};

use super::{badge, form_escape};
use crate::{
    dash::watched::{Health, Watched},
    get::{ClusterReport, Facts, Report, RouteReport, Status},
    inspect::{ChannelReport, Client},
};

/// Everything that is known of a process.
pub(super) fn process(process: &Watched) -> Markup {
    html! {
        section id="process" {
            p { (badge(process.health, &process.words)) " "
                a href={ "/explain?at=" (form_escape(&process.address)) } { "Explain a call" } " · "
                a href={ "/check?at=" (form_escape(&process.address)) } { "Check what it holds" }
            }
            @if let Some(error) = &process.error { p class="error" { (error) " What follows is what it held before." } }
            @if let Some(held) = &process.held {
                @for one in &held.clients { (client(one)) }
                @match &held.channels {
                    Some(all) => { (channels(all)) }
                    None => { p { "Its channels are not known: it has no channelz." } }
                }
            }
        }
    }
}

fn client(client: &Client) -> Markup {
    let row = &client.row;
    html! {
        section {
            h2 { "Client " code { (row.target.as_deref().unwrap_or(if client.scope.is_empty() { "without a name" } else { &client.scope })) } }
            dl {
                @if let Some(node) = &row.node { dt { "Node" } dd { (node) } }
                @if let Some(agent) = &row.user_agent { dt { "Implementation" } dd { (agent) } }
                @if let Some(server) = &row.in_charge {
                    dt { "Served by" }
                    dd { (server) @if row.fallback == Some(true) { " " (badge(Health::Warn, "fallback")) } }
                }
                @if let Some(age) = row.age_ms { dt { "Last resource" } dd { (ago(age)) } }
                dt { "Resources" } dd { (row.counts()) }
            }
            @if let Some(servers) = &row.servers {
                div class="wide" { table {
                    caption { "xDS servers" }
                    thead { tr { th scope="col" { "Server" } th scope="col" { "State" } } }
                    tbody { @for (uri, state) in servers { tr {
                        th scope="row" { (uri) }
                        td { (badge(if state.starts_with("TRANSIENT_FAILURE") { Health::Bad } else { Health::Good }, state)) }
                    } } }
                } }
            }
            @for report in &client.reports { (tree(report)) }
            @let wrong: Vec<_> = client.resources.iter().filter(|held| held.error.is_some() || client.reports.is_empty()).collect();
            @if !wrong.is_empty() {
                div class="wide" { table {
                    caption { "Resources" @if !client.reports.is_empty() { " with errors" } }
                    thead { tr { th scope="col" { "Type" } th scope="col" { "Name" } th scope="col" { "State" } th scope="col" { "Version" } th scope="col" { "Error" } } }
                    tbody { @for held in wrong { tr {
                        td { (held.kind) } th scope="row" { (held.name) } td { (held.state) } td { (held.version) }
                        td { (held.error.as_deref().unwrap_or("")) }
                    } } }
                } }
            }
        }
    }
}

/// From the listener to the endpoints.
fn tree(report: &Report) -> Markup {
    let (health, words) = match report.status {
        Status::Complete => (Health::Good, "complete"),
        Status::Partial => (Health::Warn, "partial"),
        Status::Failed => (Health::Bad, "no configuration"),
    };
    html! {
        h3 { "Target " code { (report.target) } " " (badge(health, words)) }
        @if let Some(error) = &report.error { p class="error" { (error) } }
        @if let Some(listener) = &report.listener { p { "Listener " b { (listener.name) } " " (facts(&listener.facts)) } }
        @if let Some(routes) = &report.routes {
            p { "Routes " @if let Some(resource) = &routes.resource { b { (resource.name) } " " (facts(&resource.facts)) " " }
                "of virtual host " b { (routes.virtual_host) } }
            div class="wide" { table {
                thead { tr { th scope="col" { "Match" } th scope="col" { "Cluster" } th scope="col" { "Timeout" } th scope="col" { "Retry" } th scope="col" { "Filters" } } }
                tbody { @for one in routes.routes.iter().take(SHOWN) { (route(one)) } }
            } }
            @if routes.routes.len() > SHOWN { p { "and " (routes.routes.len() - SHOWN) " more" } }
        }
        @for (name, one) in report.clusters.iter().take(SHOWN) { (cluster(name, one)) }
        @if report.clusters.len() > SHOWN { p { "and " (report.clusters.len() - SHOWN) " more clusters" } }
        @if !report.watched.is_empty() {
            div class="wide" { table {
                caption { "What was asked for" }
                thead { tr { th scope="col" { "Type" } th scope="col" { "Name" } th scope="col" { "State" } } }
                tbody { @for one in &report.watched { tr {
                    td { (one.kind) } th scope="row" { (one.resource.name) } td { (facts(&one.resource.facts)) }
                } } }
            } }
        }
    }
}

fn route(route: &RouteReport) -> Markup {
    let total: u64 = route.clusters.iter().map(|cluster| u64::from(cluster.weight)).sum();
    let share = |weight: u32| format!(" {:.1} %", f64::from(weight) * 100.0 / total.max(1) as f64);
    html! {
        tr {
            th scope="row" { (route.matches) }
            td {
                @for cluster in &route.clusters { span { (cluster.name) @if route.clusters.len() > 1 { (share(cluster.weight)) } } " " }
                @if let Some(why) = &route.unsupported { (badge(Health::Bad, "RPCs fail")) " " (why) }
            }
            td { @if let Some(timeout) = route.timeout_ms { (timeout) " ms" } }
            td { (route.retry.as_deref().unwrap_or("")) }
            td { (route.filters.join(", ")) }
        }
    }
}

fn cluster(name: &str, cluster: &ClusterReport) -> Markup {
    html! {
        section {
            h4 { "Cluster " code { (name) } }
            p {
                (facts(&cluster.facts)) " " (cluster.kind.unwrap_or("")) " " (cluster.lb_policy.as_deref().unwrap_or(""))
                @if cluster.tls.is_some() { " over TLS" }
                @if let Some(detection) = &cluster.outlier_detection { "; outlier detection: " (detection) }
                @if !cluster.drops.is_empty() { "; drops " (cluster.drops.join(", ")) }
            }
            @if let Some(why) = &cluster.unusable { p class="error" { (why) } }
            @for left_out in &cluster.left_out { p class="error" { (left_out) } }
            @if !cluster.children.is_empty() { p { "Aggregate of " (cluster.children.join(", ")) } }
            @if let Some(endpoints) = &cluster.endpoints {
                div class="wide" { table {
                    thead { tr { th scope="col" { "Priority" } th scope="col" { "Locality" } th scope="col" { "Endpoint" } th scope="col" { "Weight" } th scope="col" { "Health" } th scope="col" { "Connection" } } }
                    tbody {
                        @for (priority, localities) in endpoints.priorities.iter().enumerate() {
                            @for locality in localities { @for endpoint in locality.endpoints.iter().take(SHOWN) { tr {
                                td { (priority) }
                                td { (locality.name) " (" (locality.weight) ")" }
                                th scope="row" { (endpoint.addresses.join(", ")) }
                                td { (endpoint.weight) }
                                td { (endpoint.health) }
                                td { (endpoint.connection.as_deref().unwrap_or("-")) }
                            } } }
                        }
                    }
                } }
            }
        }
    }
}

fn channels(channels: &[ChannelReport]) -> Markup {
    html! {
        @for channel in channels {
            section {
                h2 { "Channel " code { (channel.target) } }
                p { (channel.state) ", " (channel.started) " calls, " (channel.failed) " failed" }
                @if !channel.subchannels.is_empty() { ul { @for one in channel.subchannels.iter().take(SHOWN) { li { (one) } } } }
                @if !channel.trace.is_empty() { ol { @for event in &channel.trace { li { (event) } } } }
            }
        }
    }
}

fn facts(facts: &Facts) -> Markup {
    html! {
        span class="facts" {
            (facts.state)
            @if let Some(version) = &facts.version { ", version " (version) }
            @if let Some(server) = &facts.server { ", from " (server) }
            @if let Some(error) = &facts.error { " " (badge(Health::Bad, "error")) " " (error) }
        }
    }
}

/// Roughly: what changes each second would have to be sent each second.
fn ago(age_ms: u64) -> String {
    let minutes = Duration::from_millis(age_ms).as_secs() / 60;
    match minutes {
        0 => "less than a minute ago".to_owned(),
        minutes => format!("{} ago", humantime::format_duration(Duration::from_secs(minutes * 60))),
    }
}

/// Rows of one kind that are shown; JSON has all of them.
const SHOWN: usize = 200;
