//! HTTP filters and their overrides (A39).
//!
//! A filter is one file with a `FilterType`, one line in `REGISTRY`, and a variant of
//! [`FilterConfig`] (and of [`FilterOverride`], if it has overrides).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::route::v3 as pb_route;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as pb;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use envoy_types::pb::google::protobuf::Any;

use super::ParseContext;
use super::extension::Extension;
use super::fields::excerpt;
use crate::invalid::Faults;

mod fault;
mod rbac;
mod router;
mod stateful_session;
#[cfg(test)]
mod tests;

pub use fault::{AbortStatus, DelayTime, Fault, FaultAbort, FaultDelay, FaultShare};
pub use rbac::{
    AuditCondition, AuditLoggerConfig, AuditOptions, HeaderRule, HeaderSource, Policy, Rbac, RbacAction, Rule,
};
pub use stateful_session::SessionCookie;

/// One entry of a filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpFilter {
    /// Instance name, unique in the chain.
    pub name: String,
    /// What it does.
    pub config: FilterConfig,
    /// Whether it does nothing unless an override says otherwise.
    pub disabled: bool,
}

/// The filters we know. The last filter of a chain is always [`FilterConfig::Router`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FilterConfig {
    /// `envoy.extensions.filters.http.router.v3.Router`: sends the request.
    Router,
    /// `envoy.extensions.filters.http.fault.v3.HTTPFault`: holds RPCs up, or aborts them.
    Fault(Arc<Fault>),
    /// `envoy.extensions.filters.http.stateful_session.v3.StatefulSession`: sends the RPCs of a session to one endpoint.
    /// Does nothing without a cookie.
    StatefulSession(Option<Arc<SessionCookie>>),
    /// `envoy.extensions.filters.http.rbac.v3.RBAC`: refuses RPCs. Refuses none without rules.
    Rbac(Option<Arc<Rbac>>),
}

/// Overrides by filter instance name, on a virtual host, route or weighted cluster.
pub type FilterOverrides = BTreeMap<String, FilterOverride>;

/// A replacement for the config of one filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FilterOverride {
    /// It does nothing here.
    Disabled,
    /// Other faults.
    Fault(Arc<Fault>),
    /// Another cookie, or none.
    StatefulSession(Option<Arc<SessionCookie>>),
    /// Other rules, or none.
    Rbac(Option<Arc<Rbac>>),
}

impl HttpFilter {
    /// The config in effect where these overrides are, the most specific first; none if the filter does nothing there
    /// (R-24, L-43). An override for a filter of another kind does not count.
    pub fn effective(&self, overrides: &[&FilterOverrides]) -> Option<FilterConfig> {
        let replaced = overrides.iter().find_map(|overrides| overrides.get(&self.name));
        match (&self.config, replaced) {
            (_, Some(FilterOverride::Disabled)) => None,
            (FilterConfig::Fault(_), Some(FilterOverride::Fault(fault))) => {
                Some(FilterConfig::Fault(Arc::clone(fault)))
            }
            (FilterConfig::StatefulSession(_), Some(FilterOverride::StatefulSession(cookie))) => {
                Some(FilterConfig::StatefulSession(cookie.clone()))
            }
            (FilterConfig::Rbac(_), Some(FilterOverride::Rbac(rbac))) => Some(FilterConfig::Rbac(rbac.clone())),
            (
                _,
                None | Some(FilterOverride::Fault(_) | FilterOverride::StatefulSession(_) | FilterOverride::Rbac(_)),
            ) => (!self.disabled).then(|| self.config.clone()),
        }
    }
}

/// Which end of a connection a filter chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A channel.
    Client,
    /// An xDS-enabled server.
    Server,
}

/// What the parsers know of a kind of filter.
struct FilterType {
    /// Message type of its config.
    config_type: &'static str,
    /// Whether it can be in the chain of a client.
    on_client: bool,
    /// Whether it can be in the chain of a server.
    on_server: bool,
    /// Whether it answers the request, so that nothing can come after it.
    terminal: bool,
    /// Checks its config.
    parse: fn(&Extension<'_>, ParseContext<'_>, &mut Faults) -> Option<FilterConfig>,
    /// Message type of its overrides, and how they are checked.
    overrides: Option<(&'static str, OverrideParser)>,
}

type OverrideParser = fn(&Extension<'_>, ParseContext<'_>, &mut Faults) -> Option<FilterOverride>;

/// Every filter we know.
static REGISTRY: &[&FilterType] = &[&fault::FAULT, &stateful_session::STATEFUL_SESSION, &rbac::RBAC, &router::ROUTER];

/// Checks `http_filters`; `faults` is at that field.
pub(crate) fn chain(pb: &[pb::HttpFilter], side: Side, cx: ParseContext<'_>, faults: &mut Faults) -> Vec<HttpFilter> {
    chain_of(REGISTRY, pb, side, cx, faults)
}

/// Checks `typed_per_filter_config` of a virtual host, route or weighted cluster; `faults` is at that field.
pub(crate) fn overrides<'a>(
    pb: impl IntoIterator<Item = (&'a String, &'a Any)>,
    cx: ParseContext<'_>,
    faults: &mut Faults,
) -> FilterOverrides {
    overrides_of(REGISTRY, pb, cx, faults)
}

fn chain_of(
    registry: &[&FilterType],
    pb: &[pb::HttpFilter],
    side: Side,
    cx: ParseContext<'_>,
    faults: &mut Faults,
) -> Vec<HttpFilter> {
    let faults_before = faults.count();
    let mut names = BTreeSet::new();
    let mut chain = Vec::new();
    let mut last_is_terminal = false;
    for (i, pb) in pb.iter().enumerate() {
        faults.index(i, |f| {
            if pb.name.is_empty() {
                f.field("name", |f| f.add("must not be empty"));
            } else if !names.insert(pb.name.as_str()) {
                f.field("name", |f| f.add(format!("{} is in the chain twice", excerpt(&pb.name))));
            }
            let Some((filter_type, config)) = filter(registry, pb, side, cx, f) else { return };
            if last_is_terminal {
                f.add("comes after a terminal filter: that one must be the last");
            }
            last_is_terminal = filter_type.terminal;
            chain.push(HttpFilter { name: pb.name.clone(), config, disabled: pb.disabled });
        });
    }
    // A filter that has faults may well have been the last one, so the shape is judged without them only.
    if faults.count() == faults_before {
        if chain.is_empty() {
            faults.add("must hold at least one filter that we support");
        } else if !last_is_terminal {
            faults.add("the last filter must be a terminal one, such as the router");
        }
    }
    chain
}

/// One filter of a chain; `None` if it has faults or is left out.
fn filter<'r>(
    registry: &[&'r FilterType],
    pb: &pb::HttpFilter,
    side: Side,
    cx: ParseContext<'_>,
    faults: &mut Faults,
) -> Option<(&'r FilterType, FilterConfig)> {
    let Some(ConfigType::TypedConfig(any)) = &pb.config_type else {
        faults.field("typed_config", |f| f.add("must be set"));
        return None;
    };
    let config = faults.field("typed_config", |f| {
        let extension = Extension::parse(any, f)?;
        let type_name = extension.type_name();
        let known = registry.iter().find(|t| t.config_type == type_name);
        let usable = known.filter(|t| match side {
            Side::Client => t.on_client,
            Side::Server => t.on_server,
        });
        let for_overrides = |t: &&FilterType| t.overrides.is_some_and(|(override_type, _)| override_type == type_name);
        match usable {
            Some(filter_type) => Some((*filter_type, (filter_type.parse)(&extension, cx, f)?)),
            None if known.is_none() && registry.iter().any(for_overrides) => {
                f.add(format!("{type_name} is for overrides only"));
                None
            }
            None if pb.is_optional => None,
            None => {
                f.add(format!("filter type {} is not supported", excerpt(type_name)));
                None
            }
        }
    })?;
    // without its last filter a chain cannot answer.
    if pb.disabled && config.0.terminal {
        faults.field("disabled", |f| f.add("a terminal filter cannot be disabled"));
        return None;
    }
    Some(config)
}

fn overrides_of<'a>(
    registry: &[&FilterType],
    pb: impl IntoIterator<Item = (&'a String, &'a Any)>,
    cx: ParseContext<'_>,
    faults: &mut Faults,
) -> FilterOverrides {
    // The map of the message has a random order; faults must not.
    let sorted: BTreeMap<&String, &Any> = pb.into_iter().collect();
    let mut overrides = FilterOverrides::new();
    for (name, any) in sorted {
        faults.key(&excerpt(name), |f| {
            if name.is_empty() {
                f.add("the name of a filter must not be empty");
            }
            if let Some(config) = filter_override(registry, any, cx, f) {
                overrides.insert(name.clone(), config);
            }
        });
    }
    overrides
}

/// One override; `None` if it has faults or no effect.
fn filter_override(
    registry: &[&FilterType],
    any: &Any,
    cx: ParseContext<'_>,
    faults: &mut Faults,
) -> Option<FilterOverride> {
    let extension = Extension::parse(any, faults)?;
    if extension.type_name() != "envoy.config.route.v3.FilterConfig" {
        return typed_override(registry, &extension, false, cx, faults);
    }
    let wrapper = extension.message::<pb_route::FilterConfig>(faults)?;
    let config = wrapper.config.as_ref().map(|any| {
        faults.field("config", |f| {
            let extension = Extension::parse(any, f)?;
            typed_override(registry, &extension, wrapper.is_optional, cx, f)
        })
    });
    match config {
        _ if wrapper.disabled => Some(FilterOverride::Disabled),
        Some(config) => config,
        None => {
            faults.field("config", |f| f.add("must be set unless the filter is disabled"));
            None
        }
    }
}

fn typed_override(
    registry: &[&FilterType],
    extension: &Extension<'_>,
    is_optional: bool,
    cx: ParseContext<'_>,
    faults: &mut Faults,
) -> Option<FilterOverride> {
    let type_name = extension.type_name();
    let mut parsers = registry.iter().filter_map(|t| t.overrides);
    if let Some((_, parse)) = parsers.find(|(override_type, _)| *override_type == type_name) {
        return parse(extension, cx, faults);
    }
    if registry.iter().any(|t| t.config_type == type_name) {
        faults.add(format!("{type_name} cannot be overridden"));
    } else if !is_optional {
        faults.add(format!("filter override type {} is not supported", excerpt(type_name)));
    }
    None
}
