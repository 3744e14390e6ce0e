//! MS5xx: who is let in, and who is believed.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::rbac::v3::rbac::Action as RbacAction;
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac, permission, principal};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::{Rbac as RbacFilter, RbacPerRoute};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::resource::ResourceType;

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::Item;
use crate::parse::unpack;
use crate::set::{Set, canonical};
use crate::walk::{self, Http, Side, join};

pub(crate) fn check(set: &Set<'_>, findings: &mut Findings) {
    for cluster in set.clusters.values() {
        if let Some((path, tls)) = walk::upstream_tls(&cluster.message) {
            let common = tls.common_tls_context.as_ref();
            // It is checked against the name that was asked for, then (A101).
            if common.is_some_and(has_no_names) && !tls.auto_sni_san_validation {
                let path = format!("{path}.common_tls_context");
                let message = "match_subject_alt_names is empty: a certificate of these roots for any name is believed";
                findings.add(Id::MS502, cluster.item, &path, message);
            }
        }
    }
    for listener in set.listeners.values() {
        for http in walk::http(&listener.message).iter().filter(|http| http.side == Side::Server) {
            filters(listener.item, http, findings);
            if let Some((path, routes)) = walk::inline(http) {
                overrides(listener.item, &path, routes, findings);
            }
        }
    }
    set.routes.values().for_each(|routes| overrides(routes.item, "", &routes.message, findings));
}

/// MS501.
pub(crate) fn check_across(set: &Set<'_>, findings: &mut Findings) {
    walk::each_route_configuration(set, |item, path, routes, _| {
        for (path, route) in walk::routes(path, routes) {
            let names = walk::clusters(&path, route);
            let mut leaves = BTreeSet::new();
            names.iter().for_each(|(_, name)| leaves_of(set, name, 0, &mut leaves));
            let with_tls = |name: &&String| {
                set.clusters.get(*name).is_some_and(|cluster| walk::upstream_tls(&cluster.message).is_some())
            };
            let (secure, plain): (Vec<_>, Vec<_>) = leaves.iter().partition(with_tls);
            if !secure.is_empty() && !plain.is_empty() {
                let message = format!(
                    "RPCs of this route go over TLS to {} and in plaintext to {}",
                    secure.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
                    plain.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
                );
                findings.add(Id::MS501, item, &format!("{path}.route"), message);
            }
        }
    });
}

fn leaves_of(set: &Set<'_>, name: &str, depth: usize, leaves: &mut BTreeSet<String>) {
    let name = canonical(ResourceType::Cluster, name);
    let Some(cluster) = set.clusters.get(&name) else { return };
    match walk::members(&cluster.message) {
        Some(members) if depth < 16 => members.iter().for_each(|member| leaves_of(set, member, depth + 1, leaves)),
        Some(_) => {}
        None => {
            leaves.insert(name);
        }
    }
}

#[allow(deprecated)] // The newer field is one that gRPC does not read.
fn has_no_names(common: &envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::CommonTlsContext) -> bool {
    walk::validation(common).is_none_or(|context| context.match_subject_alt_names.is_empty())
}

/// The RBAC filters of a chain.
fn filters(item: &Item, http: &Http, findings: &mut Findings) {
    for (i, filter) in http.manager.http_filters.iter().enumerate() {
        let Some(ConfigType::TypedConfig(any)) = &filter.config_type else { continue };
        let Some(RbacFilter { rules: Some(rules), .. }) = unpack::<RbacFilter>(any) else { continue };
        let path = format!("{}.http_filters[{i}].typed_config.rules", http.path);
        self::rules(item, &path, &rules, findings);
        principals(item, &path, &rules, http, findings);
    }
}

/// Those that routes have in place of them.
fn overrides(item: &Item, path: &str, routes: &RouteConfiguration, findings: &mut Findings) {
    let mut look = |path: String, any: &Any| {
        if let Some(RbacPerRoute { rbac: Some(RbacFilter { rules: Some(rules), .. }) }) = unpack::<RbacPerRoute>(any) {
            self::rules(item, &format!("{path}.rbac.rules"), &rules, findings);
        }
    };
    for (i, host) in routes.virtual_hosts.iter().enumerate() {
        let path = join(path, &format!("virtual_hosts[{i}]"));
        for (name, any) in &host.typed_per_filter_config {
            look(format!("{path}.typed_per_filter_config[{name}]"), any);
        }
    }
    for (path, route) in walk::routes(path, routes) {
        for (name, any) in &route.typed_per_filter_config {
            look(format!("{path}.typed_per_filter_config[{name}]"), any);
        }
    }
}

fn rules(item: &Item, path: &str, rules: &Rbac, findings: &mut Findings) {
    if rules.policies.is_empty() {
        if rules.action == RbacAction::Allow as i32 {
            findings.add(Id::MS503, item, path, "ALLOW without policies refuses every RPC");
        } else if rules.action == RbacAction::Deny as i32 {
            findings.add(Id::MS505, item, path, "DENY without policies refuses nothing");
        }
    }
    for (name, policy) in &rules.policies {
        let path = format!("{path}.policies[{name}]");
        let permits = policy.permissions.iter().any(can_permit);
        let applies = policy.principals.iter().any(can_apply);
        if !(policy.permissions.is_empty() || policy.principals.is_empty() || permits && applies) {
            let what = if permits { "principals" } else { "permissions" };
            let message = format!(
                "policy {name:?} matches no RPC: none of its {what} can, as gRPC has no metadata of Envoy's and no headers \
                 of single connections"
            );
            findings.add(Id::MS504, item, &format!("{path}.{what}"), message);
        }
        for header in headers(policy) {
            if header.name.chars().any(|letter| letter.is_ascii_uppercase()) {
                let message = format!("header names are in lower case: write {:?}", header.name.to_ascii_lowercase());
                findings.add(Id::MS506, item, &path, message);
            }
        }
    }
}

/// MS507 and MS508: names of clients come from their certificates.
fn principals(item: &Item, path: &str, rules: &Rbac, http: &Http, findings: &mut Findings) {
    let roots = http.tls.as_ref().and_then(|tls| tls.common_tls_context.as_ref());
    let asks_for_certificates = roots.is_some_and(|common| common.validation_context_type.is_some());
    for (name, policy) in &rules.policies {
        let authenticated = policy.principals.iter().filter_map(authenticated).max();
        let path = format!("{path}.policies[{name}].principals");
        match (authenticated, &http.tls) {
            (Some(_), None) => {
                let message =
                    format!("policy {name:?} asks for authenticated clients, but connections are in plaintext");
                findings.add(Id::MS507, item, &path, message);
            }
            (Some(true), Some(_)) if !asks_for_certificates => {
                let message = format!(
                    "policy {name:?} asks for names of clients, but the server asks them for no certificate: \
                     no client has a name"
                );
                findings.add(Id::MS508, item, &path, message);
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// Whether it asks for authenticated clients, and if so for their names.
#[expect(clippy::wildcard_enum_match_arm, reason = "an enum of Envoy's, some of whose variants are deprecated")]
fn authenticated(principal: &Principal) -> Option<bool> {
    match principal.identifier.as_ref()? {
        principal::Identifier::Authenticated(it) => Some(it.principal_name.is_some()),
        principal::Identifier::AndIds(set) | principal::Identifier::OrIds(set) => {
            set.ids.iter().filter_map(authenticated).max()
        }
        principal::Identifier::NotId(inner) => authenticated(inner),
        _ => None,
    }
}

/// Whether a permission can match any RPC; in doubt it can.
#[allow(deprecated)] // Control planes still send `metadata`.
fn can_permit(permission: &Permission) -> bool {
    match &permission.rule {
        Some(permission::Rule::Metadata(metadata)) => metadata.invert,
        Some(permission::Rule::AndRules(set)) => set.rules.iter().all(can_permit),
        Some(permission::Rule::OrRules(set)) => set.rules.iter().any(can_permit),
        Some(permission::Rule::Header(header)) => !is_hidden(header),
        _ => true,
    }
}

#[allow(deprecated)]
fn can_apply(principal: &Principal) -> bool {
    match &principal.identifier {
        Some(principal::Identifier::Metadata(metadata)) => metadata.invert,
        Some(principal::Identifier::AndIds(set)) => set.ids.iter().all(can_apply),
        Some(principal::Identifier::OrIds(set)) => set.ids.iter().any(can_apply),
        Some(principal::Identifier::Header(header)) => !is_hidden(header),
        _ => true,
    }
}

/// Headers of a single connection, which are taken not to be there (S-47).
fn is_hidden(header: &HeaderMatcher) -> bool {
    let hidden = ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];
    hidden.contains(&header.name.to_ascii_lowercase().as_str()) && !header.invert_match
}

/// Every header that a policy looks at.
fn headers(policy: &Policy) -> Vec<&HeaderMatcher> {
    fn of_permission<'p>(permission: &'p Permission, out: &mut Vec<&'p HeaderMatcher>) {
        match &permission.rule {
            Some(permission::Rule::Header(header)) => out.push(header),
            Some(permission::Rule::AndRules(set) | permission::Rule::OrRules(set)) => {
                set.rules.iter().for_each(|rule| of_permission(rule, out));
            }
            Some(permission::Rule::NotRule(inner)) => of_permission(inner, out),
            _ => {}
        }
    }
    fn of_principal<'p>(principal: &'p Principal, out: &mut Vec<&'p HeaderMatcher>) {
        match &principal.identifier {
            Some(principal::Identifier::Header(header)) => out.push(header),
            Some(principal::Identifier::AndIds(set) | principal::Identifier::OrIds(set)) => {
                set.ids.iter().for_each(|id| of_principal(id, out));
            }
            Some(principal::Identifier::NotId(inner)) => of_principal(inner, out),
            _ => {}
        }
    }
    let mut found = Vec::new();
    policy.permissions.iter().for_each(|permission| of_permission(permission, &mut found));
    policy.principals.iter().for_each(|principal| of_principal(principal, &mut found));
    found
}
