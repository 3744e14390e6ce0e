//! The router: the last filter of every chain. It sends the request.

use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;

use super::{FilterConfig, FilterType};

/// Its fields are ignored and it has no override.
pub(super) static ROUTER: FilterType = FilterType {
    config_type: "envoy.extensions.filters.http.router.v3.Router",
    on_client: true,
    on_server: true,
    terminal: true,
    parse: |extension, _, faults| extension.message::<Router>(faults).map(|_| FilterConfig::Router),
    overrides: None,
};
