//! MS3xx: which routes RPCs take, and which they never can.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, WeightedCluster,
};
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::resource::listener::{Listener as ParsedListener, RouteSource};
use mainstay_xds::resource::route::RouteConfig;
use mainstay_xds::resource::{Resource, ResourceType};
use mainstay_xds::target::Target;

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::Item;
use crate::parse::Parser;
use crate::set::{Decoded, Set, canonical};
use crate::walk::{self, Side, join};

mod shadow;

pub(crate) fn check(set: &Set<'_>, findings: &mut Findings) {
    walk::each_route_configuration(set, |item, path, routes, _| configuration(item, path, routes, findings));
}

pub(crate) fn check_across(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    walk::each_route_configuration(set, |item, path, routes, used| {
        let Some((side, _)) = used else { return };
        for (path, route) in walk::routes(path, routes) {
            wrong_kind(item, &path, route, side, findings);
        }
    });
    set.listeners.values().for_each(|listener| own_virtual_host(set, listener, parser, findings));
}

/// What a route configuration shows by itself.
fn configuration(item: &Item, path: &str, routes: &RouteConfiguration, findings: &mut Findings) {
    let mut domains: BTreeMap<String, usize> = BTreeMap::new();
    for (i, host) in routes.virtual_hosts.iter().enumerate() {
        let path = join(path, &format!("virtual_hosts[{i}]"));
        for (j, domain) in host.domains.iter().enumerate() {
            let first = *domains.entry(domain.to_ascii_lowercase()).or_insert(i);
            if first != i {
                let message = format!(
                    "domain {domain:?} is already in virtual_hosts[{first}]: that one is used and this one never for it, and \
                     Envoy rejects the resource"
                );
                findings.add(Id::MS302, item, &format!("{path}.domains[{j}]"), message);
            }
        }
        virtual_host(item, &path, host, findings);
    }
}

fn virtual_host(item: &Item, path: &str, host: &VirtualHost, findings: &mut Findings) {
    if let Some(retry) = &host.retry_policy {
        retry_policy(item, &format!("{path}.retry_policy"), retry, findings);
    }
    let ignored = [
        ("rate_limits", !host.rate_limits.is_empty()),
        ("request_headers_to_add", !host.request_headers_to_add.is_empty()),
        ("request_headers_to_remove", !host.request_headers_to_remove.is_empty()),
        ("response_headers_to_add", !host.response_headers_to_add.is_empty()),
        ("response_headers_to_remove", !host.response_headers_to_remove.is_empty()),
        ("request_mirror_policies", !host.request_mirror_policies.is_empty()),
    ];
    ignored_fields(item, path, &ignored, findings);
    for (i, route) in host.routes.iter().enumerate() {
        self::route(item, &format!("{path}.routes[{i}]"), route, findings);
    }
    for (covered, by) in shadow::covered(&host.routes) {
        let message = format!("no RPC comes this far: routes[{by}] takes every one that this route would match");
        findings.add(Id::MS301, item, &format!("{path}.routes[{covered}].match"), message);
    }
    fractions(item, path, host, findings);
    let is_default = |route: &Route| route.r#match.as_ref().is_some_and(shadow::takes_everything);
    if !host.routes.is_empty() && !host.routes.iter().any(is_default) {
        let message = "no route takes all RPCs: those that none of them matches fail with UNAVAILABLE";
        findings.add(Id::MS303, item, &format!("{path}.routes"), message);
    }
}

fn route(item: &Item, path: &str, route: &Route, findings: &mut Findings) {
    if let Some(matcher) = &route.r#match {
        route_match(item, &format!("{path}.match"), matcher, findings);
    }
    let ignored = [
        ("request_headers_to_add", !route.request_headers_to_add.is_empty()),
        ("request_headers_to_remove", !route.request_headers_to_remove.is_empty()),
        ("response_headers_to_add", !route.response_headers_to_add.is_empty()),
        ("response_headers_to_remove", !route.response_headers_to_remove.is_empty()),
    ];
    ignored_fields(item, path, &ignored, findings);
    match &route.action {
        Some(Action::Route(action)) => forward(item, &format!("{path}.route"), action, findings),
        Some(Action::Redirect(_)) => unsupported(item, path, "redirect", findings),
        Some(Action::DirectResponse(_)) => unsupported(item, path, "direct_response", findings),
        Some(Action::FilterAction(_)) => unsupported(item, path, "filter_action", findings),
        Some(Action::NonForwardingAction(_)) => {}
        None => unsupported(item, path, "no action", findings),
    }
}

fn unsupported(item: &Item, path: &str, action: &str, findings: &mut Findings) {
    let message = format!("gRPC does not know what to do with {action}: RPCs that match this route fail");
    findings.add(Id::MS311, item, path, message);
}

fn route_match(item: &Item, path: &str, matcher: &RouteMatch, findings: &mut Findings) {
    if !matcher.query_parameters.is_empty() {
        let message = "gRPC leaves this route out: RPCs have no query parameters";
        findings.add(Id::MS310, item, &format!("{path}.query_parameters"), message);
    } else if let Some((field, value)) = shadow::no_method(matcher) {
        let message =
            format!("gRPC leaves this route out: {value:?} matches no path of the form /package.Service/Method");
        findings.add(Id::MS310, item, &format!("{path}.{field}"), message);
    }
    if let Some(PathSpecifier::SafeRegex(regex)) = &matcher.path_specifier
        && EVERYTHING.contains(&regex.regex.trim_start_matches('^').trim_end_matches('$'))
    {
        let message =
            format!("the pattern {:?} matches every path: prefix: \"\" says the same and costs less", regex.regex);
        findings.add(Id::MS306, item, &format!("{path}.safe_regex.regex"), message);
    }
    for (i, header) in matcher.headers.iter().enumerate() {
        self::header(item, &format!("{path}.headers[{i}].name"), header, findings);
    }
    if let Some(0) = fraction(matcher) {
        let message = "a fraction of 0 matches no RPC";
        findings.add(Id::MS305, item, &format!("{path}.runtime_fraction"), message);
    }
}

fn header(item: &Item, path: &str, header: &HeaderMatcher, findings: &mut Findings) {
    let name = header.name.to_ascii_lowercase();
    if name != header.name {
        let message =
            format!("header names are in lower case on the wire: write {name:?}, as not every client converts it");
        findings.add(Id::MS309, item, path, message);
    }
    if name.ends_with("-bin") {
        let message = format!("{name:?} is a binary header: to gRPC's matchers it is never there");
        findings.add(Id::MS307, item, path, message);
    } else if name.starts_with("grpc-") || HIDDEN.contains(&name.as_str()) {
        let message = format!("{name:?} is added by the transport after routes are matched: here it is never there");
        findings.add(Id::MS308, item, path, message);
    }
}

fn forward(item: &Item, path: &str, action: &RouteAction, findings: &mut Findings) {
    match &action.cluster_specifier {
        Some(ClusterSpecifier::Cluster(_) | ClusterSpecifier::ClusterSpecifierPlugin(_)) => {}
        Some(ClusterSpecifier::WeightedClusters(weighted)) => {
            weights(item, &format!("{path}.weighted_clusters"), weighted, findings);
        }
        Some(ClusterSpecifier::ClusterHeader(_)) => {
            let message = "gRPC leaves this route out: it does not support cluster_header";
            findings.add(Id::MS310, item, &format!("{path}.cluster_header"), message);
        }
        Some(ClusterSpecifier::InlineClusterSpecifierPlugin(_)) | None => {
            findings.add(Id::MS310, item, path, "gRPC leaves this route out: it names no cluster");
        }
    }
    if let Some(retry) = &action.retry_policy {
        retry_policy(item, &format!("{path}.retry_policy"), retry, findings);
    }
    if action.timeout.is_some() {
        let message =
            "gRPC ignores timeout: RPCs are not limited by it. Say max_stream_duration: { max_stream_duration: … }";
        findings.add(Id::MS313, item, &format!("{path}.timeout"), message);
    }
    let ignored = [
        ("prefix_rewrite", !action.prefix_rewrite.is_empty()),
        ("regex_rewrite", action.regex_rewrite.is_some()),
        ("idle_timeout", action.idle_timeout.is_some()),
        ("request_mirror_policies", !action.request_mirror_policies.is_empty()),
        ("rate_limits", !action.rate_limits.is_empty()),
        ("hedge_policy", action.hedge_policy.is_some()),
    ];
    ignored_fields(item, path, &ignored, findings);
}

fn ignored_fields(item: &Item, path: &str, fields: &[(&str, bool)], findings: &mut Findings) {
    for (field, _) in fields.iter().filter(|(_, is_set)| *is_set) {
        findings.add(Id::MS313, item, &format!("{path}.{field}"), format!("gRPC ignores {field}: it changes nothing"));
    }
}

// Envoy took `total_weight` back; files still have it.
#[allow(deprecated)]
fn weights(item: &Item, path: &str, weighted: &WeightedCluster, findings: &mut Findings) {
    let sum: u64 = weighted.clusters.iter().filter_map(|it| it.weight).map(|weight| u64::from(weight.value)).sum();
    if let Some(total) = weighted.total_weight
        && u64::from(total.value) != sum
    {
        let message =
            format!("total_weight is {} but the weights add up to {sum}: gRPC takes shares of {sum}", total.value);
        findings.add(Id::MS315, item, &format!("{path}.total_weight"), message);
    }
}

fn retry_policy(item: &Item, path: &str, retry: &RetryPolicy, findings: &mut Findings) {
    let mut conditions = retry.retry_on.split(',').map(str::trim);
    if !conditions.any(|condition| RETRYABLE.contains(&condition)) {
        let message =
            format!("nothing is retried: gRPC knows only {} and ignores {:?}", RETRYABLE.join(", "), retry.retry_on);
        findings.add(Id::MS314, item, &format!("{path}.retry_on"), message);
    }
}

/// MS305: shares of the same RPCs, each of which is one of what the routes before it left.
fn fractions(item: &Item, path: &str, host: &VirtualHost, findings: &mut Findings) {
    let mut shares: Vec<(&RouteMatch, u64)> = Vec::new();
    for (i, route) in host.routes.iter().enumerate() {
        let Some(matcher) = &route.r#match else { continue };
        let Some(share) = fraction(matcher).filter(|share| *share > 0 && *share < MILLION) else { continue };
        let same =
            |other: &RouteMatch| other.path_specifier == matcher.path_specifier && other.headers == matcher.headers;
        let before: u64 = shares.iter().filter(|(other, _)| same(other)).map(|(_, share)| share).sum();
        if before > 0 && before + share >= MILLION {
            let message = format!(
                "the fractions of the routes with this match add up to {} %, but each is a share of what those before it \
                 left: some RPCs match none of them. The last one needs no fraction",
                (before + share) / 10_000
            );
            findings.add(Id::MS305, item, &format!("{path}.routes[{i}].match.runtime_fraction"), message);
        }
        shares.push((matcher, share));
    }
}

/// In parts of a million; nothing if the match has no fraction.
fn fraction(matcher: &RouteMatch) -> Option<u64> {
    per_million(matcher.runtime_fraction.as_ref()?.default_value.as_ref()?)
}

/// In parts of a million.
pub(crate) fn per_million(fraction: &FractionalPercent) -> Option<u64> {
    let factor = match DenominatorType::try_from(fraction.denominator).ok()? {
        DenominatorType::Hundred => 10_000,
        DenominatorType::TenThousand => 100,
        DenominatorType::Million => 1,
    };
    Some(u64::from(fraction.numerator) * factor)
}

/// MS312: clients forward, servers answer themselves.
fn wrong_kind(item: &Item, path: &str, route: &Route, side: Side, findings: &mut Findings) {
    match (&route.action, side) {
        (Some(Action::NonForwardingAction(_)), Side::Client) => {
            let message =
                "a client cannot take an RPC itself: RPCs that match this route fail. It needs route: { cluster: … }";
            findings.add(Id::MS312, item, &format!("{path}.non_forwarding_action"), message);
        }
        (Some(Action::Route(_)), Side::Server) => {
            let message =
                "a server does not forward: RPCs that match this route fail. It needs non_forwarding_action: {}";
            findings.add(Id::MS312, item, &format!("{path}.route"), message);
        }
        _ => {}
    }
}

/// MS304: a channel to `xds:///NAME` finds its virtual host by NAME.
fn own_virtual_host(set: &Set<'_>, listener: &Decoded<'_, Listener>, parser: &Parser<'_>, findings: &mut Findings) {
    let Some(Resource::Listener(value)) = &listener.value else { return };
    let ParsedListener::Api(http) = &**value else { return };
    let name = &listener.item.name;
    let plain;
    let bootstrap = match parser.real {
        Some(real) => real,
        None => {
            plain = Bootstrap::builder().server(ServerConfig::insecure("unknown")).build();
            match &plain {
                Ok(plain) => plain,
                Err(_) => return,
            }
        }
    };
    // Another template, or a name of an authority, may belong to a target of any name.
    let Ok(target) = Target::resolve(&format!("xds:///{name}"), bootstrap) else { return };
    if name.starts_with("xdstp:") || *target.listener != **name {
        return;
    }
    let told = |routes: &RouteConfig, item: &Item, path: &str, findings: &mut Findings| {
        if routes.virtual_host(&target.data_plane_authority).is_none() {
            let message = format!(
                "no virtual host has a domain that matches {:?}: all RPCs of a channel to xds:///{name} fail",
                &*target.data_plane_authority
            );
            findings.add(Id::MS304, item, path, message);
        }
    };
    match &http.routes {
        RouteSource::Inline(routes) => {
            let path = "api_listener.api_listener.route_config.virtual_hosts";
            told(routes, listener.item, path, findings);
        }
        RouteSource::Rds(rds) => {
            let Some(routes) = set.routes.get(&canonical(ResourceType::RouteConfig, rds)) else { return };
            if let Some(Resource::RouteConfig(value)) = &routes.value {
                told(value, routes.item, "virtual_hosts", findings);
            }
        }
    }
}

/// All of them.
const MILLION: u64 = 1_000_000;
/// What gRPC retries (A44).
const RETRYABLE: [&str; 5] = ["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"];
/// Patterns without anything that a path could lack.
const EVERYTHING: [&str; 6] = [".*", ".+", "/.*", "/.+", "(.*)", "/(.*)"];
/// What the transport adds beside `grpc-`: only custom metadata is visible to matchers (L-34).
const HIDDEN: [&str; 2] = ["te", "grpc-timeout"];
