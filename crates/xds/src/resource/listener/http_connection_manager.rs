//! The HTTP connection manager of a listener, for clients and for servers.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as pb;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;

use super::super::filter::{self, HttpFilter, Side};
use super::super::route::RouteConfig;
use super::super::{ParseContext, fields};
use crate::invalid::Faults;

/// The parts of `HttpConnectionManager` that gRPC uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpConnectionManager {
    /// Default time limit of RPCs on routes without one.
    pub max_stream_duration: Option<Duration>,
    /// The filter chain; the router is last.
    pub filters: Vec<HttpFilter>,
    /// Where the routes come from.
    pub routes: RouteSource,
}

/// Where a Listener's routes come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouteSource {
    /// Inside the Listener.
    Inline(Arc<RouteConfig>),
    /// An RDS resource of this name.
    Rds(String),
}

impl HttpConnectionManager {
    /// Checks an HttpConnectionManager; `faults` is at it. What gRPC does not use is ignored.
    pub(super) fn parse(
        pb: &pb::HttpConnectionManager,
        side: Side,
        cx: ParseContext<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        if pb.xff_num_trusted_hops != 0 {
            faults.field("xff_num_trusted_hops", |f| f.add("must be zero"));
        }
        if !pb.original_ip_detection_extensions.is_empty() {
            faults.field("original_ip_detection_extensions", |f| f.add("must be empty"));
        }
        let options = pb.common_http_protocol_options.as_ref();
        let max_stream_duration = options.and_then(|pb| pb.max_stream_duration.as_ref()).and_then(|pb| {
            faults.field("common_http_protocol_options.max_stream_duration", |f| fields::duration(pb, f))
        });
        let filters = faults.field("http_filters", |f| filter::chain(&pb.http_filters, side, cx, f));
        let routes = RouteSource::parse(pb, cx, faults)?;
        Some(Self { max_stream_duration, filters, routes })
    }
}

impl RouteSource {
    /// Checks where the routes come from; `faults` is at the HttpConnectionManager.
    fn parse(pb: &pb::HttpConnectionManager, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        match &pb.route_specifier {
            Some(RouteSpecifier::RouteConfig(pb)) => {
                Some(Self::Inline(Arc::new(faults.field("route_config", |f| RouteConfig::parse_at(pb, cx, f)))))
            }
            Some(RouteSpecifier::Rds(pb)) => faults.field("rds", |f| {
                f.field("config_source", |f| fields::ads_config_source(pb.config_source.as_ref(), f));
                if pb.route_config_name.is_empty() {
                    f.field("route_config_name", |f| f.add("must not be empty"));
                }
                Some(Self::Rds(pb.route_config_name.clone()))
            }),
            Some(RouteSpecifier::ScopedRoutes(_)) => {
                faults.field("scoped_routes", |f| f.add("not supported: expected route_config or rds"));
                None
            }
            None => {
                faults.add("route_config or rds must be set");
                None
            }
        }
    }
}
