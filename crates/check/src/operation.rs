//! MS6xx: what makes a configuration hard to operate.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::HostRewriteSpecifier;
use mainstay_xds::resource::ResourceType;

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::{Body, Item};
use crate::parse::Parser;
use crate::set::Set;
use crate::walk;

pub(crate) fn check(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    sizes(set, findings);
    authority_rewrites(set, parser, findings);
}

/// MS601: clients that ask for everything of a type are sent it in one message.
fn sizes(set: &Set<'_>, findings: &mut Findings) {
    let mut by_type: BTreeMap<ResourceType, (usize, usize, &Item)> = BTreeMap::new();
    for item in &set.items {
        let (Some(resource_type), Body::Message(bytes)) = (ResourceType::from_type_url(&item.message_name), &item.body)
        else {
            continue;
        };
        let (sum, largest, which) = by_type.entry(resource_type).or_insert((0, 0, item));
        *sum += bytes.len();
        if bytes.len() > *largest {
            (*largest, *which) = (bytes.len(), item);
        }
    }
    for (resource_type, (sum, largest, item)) in by_type {
        // Only these are sent as a whole; of the others a client asks for what it needs.
        let counted = if resource_type.full_state() { sum } else { largest };
        if counted > NEAR {
            let what = if resource_type.full_state() {
                format!("all {resource_type}s together have")
            } else {
                "it has".to_owned()
            };
            let message = format!(
                "{what} {:.1} MiB: gRPC receives no message above 4 MiB unless told otherwise",
                counted as f64 / f64::from(1 << 20)
            );
            findings.add(Id::MS601, item, "", message);
        }
    }
}

/// MS604: only a server that the bootstrap trusts may change the authority (A81).
fn authority_rewrites(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    let Some(bootstrap) = parser.real else { return };
    if bootstrap.servers.iter().any(|server| server.features.trusted_xds_server) {
        return;
    }
    walk::each_route_configuration(set, |item, path, routes, _| {
        for (path, route) in walk::routes(path, routes) {
            let Some(Action::Route(action)) = &route.action else { continue };
            if let Some(HostRewriteSpecifier::AutoHostRewrite(on)) = &action.host_rewrite_specifier
                && on.value
            {
                let message = "clients ignore auto_host_rewrite: no server of the bootstrap has \"trusted_xds_server\" in \
                               its server_features";
                findings.add(Id::MS604, item, &format!("{path}.route.auto_host_rewrite"), message);
            }
        }
    });
}

/// Three quarters of what gRPC receives by default: what grows should be seen before it is too late.
const NEAR: usize = 3 << 20;
