//! HTTP filters and their overrides (A39).

use std::collections::BTreeMap;

/// One entry of a filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpFilter {
    /// Instance name, unique in the chain.
    pub name: String,
    /// What it does.
    pub config: FilterConfig,
}

/// The filters we know. The last filter of a chain is always [`FilterConfig::Router`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FilterConfig {
    /// `envoy.extensions.filters.http.router.v3.Router`: sends the request.
    Router,
}

/// Overrides by filter instance name, on a virtual host, route or weighted cluster.
pub type FilterOverrides = BTreeMap<String, FilterOverride>;

/// A replacement for the config of one filter. No filter that we know has one yet, so this type has no value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FilterOverride {}
