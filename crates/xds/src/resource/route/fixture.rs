//! Builders for the tests of routes, filters and listeners.

use std::sync::Arc;

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::google::protobuf::{Any, Duration as PbDuration, UInt32Value};

use super::super::ParseContext;
use crate::bootstrap::{Bootstrap, ChannelCreds, Guards, Node, ServerConfig, ServerFeatures};
use crate::invalid::Invalid;

/// Where resources come from in tests.
pub(crate) struct TestSource {
    pub(crate) bootstrap: Bootstrap,
    pub(crate) server: Arc<ServerConfig>,
}

impl TestSource {
    pub(crate) fn new(trusted_xds_server: bool) -> Self {
        let server = Arc::new(ServerConfig {
            server_uri: "xds.example:443".to_owned(),
            channel_creds: ChannelCreds::Insecure,
            call_creds: Vec::new(),
            features: ServerFeatures { trusted_xds_server, ..Default::default() },
        });
        let guards = Guards::default();
        let bootstrap = Bootstrap {
            servers: vec![server.clone()],
            node: Node::default(),
            authorities: Default::default(),
            client_default_listener_resource_name_template: "%s".to_owned(),
            server_listener_resource_name_template: None,
            certificate_providers: Default::default(),
            last_good: None,
            audit_loggers: Default::default(),
            guards,
        };
        Self { bootstrap, server }
    }

    pub(crate) fn context(&self) -> ParseContext<'_> {
        ParseContext { bootstrap: &self.bootstrap, server: &self.server }
    }
}

/// A RouteConfiguration with one virtual host for all domains.
pub(crate) fn route_config(routes: Vec<pb::Route>) -> pb::RouteConfiguration {
    let virtual_host = virtual_host(&["*"], routes);
    pb::RouteConfiguration { name: "routes".to_owned(), virtual_hosts: vec![virtual_host], ..Default::default() }
}

pub(crate) fn virtual_host(domains: &[&str], routes: Vec<pb::Route>) -> pb::VirtualHost {
    let domains = domains.iter().map(|&domain| domain.to_owned()).collect();
    pb::VirtualHost { name: "host".to_owned(), domains, routes, ..Default::default() }
}

/// A route for everything.
pub(crate) fn route(action: pb::RouteAction) -> pb::Route {
    let everything =
        pb::RouteMatch { path_specifier: Some(PathSpecifier::Prefix(String::new())), ..Default::default() };
    pb::Route { r#match: Some(everything), action: Some(Action::Route(action)), ..Default::default() }
}

/// The action that sends all RPCs to one cluster.
pub(crate) fn to_cluster(name: &str) -> pb::RouteAction {
    pb::RouteAction { cluster_specifier: Some(ClusterSpecifier::Cluster(name.to_owned())), ..Default::default() }
}

/// An Any with a type and no content.
pub(crate) fn any(message: &str) -> Any {
    Any { type_url: format!("type.googleapis.com/{message}"), value: Vec::new() }
}

pub(crate) fn seconds(seconds: i64) -> PbDuration {
    PbDuration { seconds, nanos: 0 }
}

pub(crate) fn millis(millis: i32) -> PbDuration {
    PbDuration { seconds: 0, nanos: millis * 1_000_000 }
}

pub(crate) fn uint32(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

/// The paths of all faults.
pub(crate) fn paths<T: std::fmt::Debug>(result: Result<T, Invalid>) -> Vec<String> {
    result.expect_err("should be refused").faults().iter().map(|fault| fault.path.clone()).collect()
}
