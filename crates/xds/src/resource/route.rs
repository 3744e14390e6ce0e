//! RouteConfiguration (RDS or inline), `docs/rules/04` section 3.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::config::route::v3::route::Action;

use super::extension::Extension;
use super::fields::{self, excerpt};
use super::filter::{self, FilterOverrides};
use super::matcher::{HeaderMatcher, PathMatcher};
use super::{FromWire, ParseContext};
use crate::invalid::{Faults, Invalid};

mod action;
mod domain;
#[cfg(test)]
pub(super) mod fixture;
mod retry;
#[cfg(test)]
mod tests;

pub use action::{ClusterTarget, ForwardAction, HashPolicy, HashSource, WeightedCluster};
pub use domain::DomainPattern;
pub use retry::RetryPolicy;

/// All virtual hosts of a route configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteConfig {
    /// In the order of the resource.
    pub virtual_hosts: Vec<Arc<VirtualHost>>,
}

/// Routes for a set of domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualHost {
    /// As given; for messages only.
    pub name: String,
    /// Domain patterns, never empty.
    pub domains: Vec<DomainPattern>,
    /// First match wins.
    pub routes: Vec<Route>,
    /// Filter overrides for all routes here.
    pub overrides: FilterOverrides,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Which path.
    pub path: PathMatcher,
    /// Which headers; all must match.
    pub headers: Vec<HeaderMatcher>,
    /// Which share of the RPCs, in parts of a million; all if absent (L-37).
    pub fraction: Option<u32>,
    /// What happens to an RPC that matches.
    pub action: RouteAction,
    /// Filter overrides for this route.
    pub overrides: FilterOverrides,
}

/// What happens to an RPC that matches a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouteAction {
    /// Send it to a cluster.
    Forward(ForwardAction),
    /// For servers; on a client the RPC fails.
    NonForwarding,
    /// An action we do not support, by name; the RPC fails.
    Unsupported(&'static str),
}

/// What the parser of a route may ask about its surroundings.
#[derive(Clone, Copy)]
struct Scope<'a> {
    cx: ParseContext<'a>,
    /// Names of the cluster specifier plugins. We support none, so they only tell known names from unknown ones.
    plugins: &'a BTreeSet<&'a str>,
    /// Retry policy of the virtual host.
    retry: Option<&'a Arc<RetryPolicy>>,
}

// === impl RouteConfig ===

impl FromWire for RouteConfig {
    type Message = pb::RouteConfiguration;

    fn name(message: &mut Self::Message) -> Option<String> {
        Some(std::mem::take(&mut message.name))
    }

    fn from_message(message: &Self::Message, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        Self::parse(message, cx)
    }
}

impl RouteConfig {
    /// Checks a RouteConfiguration.
    pub fn parse(pb: &pb::RouteConfiguration, cx: ParseContext<'_>) -> Result<Self, Invalid> {
        let mut faults = Faults::new();
        let config = Self::parse_at(pb, cx, &mut faults);
        faults.finish(config)
    }

    /// Checks a RouteConfiguration that is part of something larger; `faults` is at it. The value may be used only
    /// if nothing was reported.
    pub(crate) fn parse_at(pb: &pb::RouteConfiguration, cx: ParseContext<'_>, faults: &mut Faults) -> Self {
        let plugins = faults.field("cluster_specifier_plugins", |f| plugins(&pb.cluster_specifier_plugins, f));
        let virtual_hosts = faults.field("virtual_hosts", |f| {
            // All of them, not only the one that will be used.
            each(&pb.virtual_hosts, f, |pb, f| Some(Arc::new(VirtualHost::parse(pb, cx, &plugins, f))))
        });
        Self { virtual_hosts }
    }

    /// The virtual host for a data plane authority (L-31): its best pattern decides, and of equals the first.
    pub fn virtual_host(&self, authority: &str) -> Option<&Arc<VirtualHost>> {
        let authority = authority.to_ascii_lowercase();
        let mut best = None;
        for virtual_host in &self.virtual_hosts {
            for rank in virtual_host.domains.iter().filter_map(|domain| domain.rank(&authority)) {
                if best.is_none_or(|(best_rank, _)| rank > best_rank) {
                    best = Some((rank, virtual_host));
                }
            }
        }
        best.map(|(_, virtual_host)| virtual_host)
    }
}

// === impl VirtualHost ===

impl VirtualHost {
    fn parse(pb: &pb::VirtualHost, cx: ParseContext<'_>, plugins: &BTreeSet<&str>, faults: &mut Faults) -> Self {
        let domains = faults.field("domains", |f| {
            if pb.domains.is_empty() {
                f.add("must not be empty");
            }
            each(&pb.domains, f, |domain, f| DomainPattern::parse(domain, f))
        });
        let retry = pb.retry_policy.as_ref();
        let retry = retry.and_then(|pb| faults.field("retry_policy", |f| RetryPolicy::parse(pb, f))).map(Arc::new);
        let scope = Scope { cx, plugins, retry: retry.as_ref() };
        let routes = faults.field("routes", |f| each(&pb.routes, f, |pb, f| Route::parse(pb, scope, f)));
        let overrides =
            faults.field("typed_per_filter_config", |f| filter::overrides(&pb.typed_per_filter_config, cx, f));
        Self { name: pb.name.clone(), domains, routes, overrides }
    }

    /// The clusters that its routes name, in order; a name may come more than once.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().flat_map(|route| {
            let (single, weighted) = match &route.action {
                RouteAction::Forward(ForwardAction { target: ClusterTarget::Cluster(name), .. }) => {
                    (Some(name), &[][..])
                }
                RouteAction::Forward(ForwardAction { target: ClusterTarget::Weighted(choices), .. }) => {
                    (None, &choices[..])
                }
                RouteAction::NonForwarding | RouteAction::Unsupported(_) => (None, &[][..]),
            };
            single.into_iter().chain(weighted.iter().map(|choice| &choice.name)).map(String::as_str)
        })
    }
}

// === impl Route ===

impl Route {
    /// Checks a Route; `None` if it has faults or is ignored.
    fn parse(pb: &pb::Route, scope: Scope<'_>, faults: &mut Faults) -> Option<Self> {
        let overrides =
            faults.field("typed_per_filter_config", |f| filter::overrides(&pb.typed_per_filter_config, scope.cx, f));
        let matcher = faults.field("match", |f| match &pb.r#match {
            Some(pb) => RouteMatch::parse(pb, f),
            None => {
                f.add("must be set");
                RouteMatch::Faulty
            }
        });
        if matches!(matcher, RouteMatch::Ignored) {
            return None;
        }
        let action = match &pb.action {
            Some(Action::Route(pb)) => {
                RouteAction::Forward(faults.field("route", |f| ForwardAction::parse(pb, scope, f))?)
            }
            Some(Action::NonForwardingAction(_)) => RouteAction::NonForwarding,
            // Not a fault: only an RPC that meets it fails.
            Some(Action::Redirect(_)) => RouteAction::Unsupported("redirect"),
            Some(Action::DirectResponse(_)) => RouteAction::Unsupported("direct_response"),
            Some(Action::FilterAction(_)) => RouteAction::Unsupported("filter_action"),
            None => RouteAction::Unsupported("none"),
        };
        match matcher {
            RouteMatch::Usable { path, headers, fraction } => Some(Self { path, headers, fraction, action, overrides }),
            RouteMatch::Faulty | RouteMatch::Ignored => None,
        }
    }
}

/// What becomes of the match of a route.
enum RouteMatch {
    Usable {
        path: PathMatcher,
        headers: Vec<HeaderMatcher>,
        fraction: Option<u32>,
    },
    /// Faults were reported.
    Faulty,
    /// No RPC can match, or we do not support what it needs: the route is left out.
    Ignored,
}

impl RouteMatch {
    fn parse(pb: &pb::RouteMatch, faults: &mut Faults) -> Self {
        if !pb.query_parameters.is_empty() {
            return Self::Ignored;
        }
        let path = PathMatcher::parse(pb, faults);
        if path.as_ref().is_some_and(|path| !path.can_match_a_method()) {
            return Self::Ignored;
        }
        let headers = faults.field("headers", |f| each(&pb.headers, f, HeaderMatcher::parse));
        let fraction = pb.runtime_fraction.as_ref().and_then(|pb| {
            faults.field("runtime_fraction.default_value", |f| match &pb.default_value {
                Some(pb) => fields::per_million(pb, f),
                None => {
                    f.add("must be set");
                    None
                }
            })
        });
        match path {
            Some(path) => Self::Usable { path, headers, fraction },
            None => Self::Faulty,
        }
    }
}

// === helpers ===

/// Checks the cluster specifier plugins and collects their names. We support none, so one that is not
/// optional is a fault.
fn plugins<'a>(pb: &'a [pb::ClusterSpecifierPlugin], faults: &mut Faults) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (i, plugin) in pb.iter().enumerate() {
        faults.index(i, |f| {
            f.field("extension", |f| {
                let Some(extension) = &plugin.extension else {
                    f.add("must be set");
                    return;
                };
                if !names.insert(extension.name.as_str()) {
                    f.field("name", |f| f.add(format!("{} is there twice", excerpt(&extension.name))));
                }
                f.field("typed_config", |f| {
                    let Some(any) = &extension.typed_config else {
                        f.add("must be set");
                        return;
                    };
                    let Some(extension) = Extension::parse(any, f) else { return };
                    if !plugin.is_optional {
                        f.add(format!("plugin type {} is not supported", excerpt(extension.type_name())));
                    }
                });
            });
        });
    }
    names
}

/// Parses each element of a repeated field and keeps what comes out; `faults` is at the field.
fn each<P, T>(pb: &[P], faults: &mut Faults, parse: impl Fn(&P, &mut Faults) -> Option<T>) -> Vec<T> {
    let parsed = pb.iter().enumerate().map(|(i, pb)| faults.index(i, |f| parse(pb, f)));
    let mut parsed: Vec<T> = parsed.flatten().collect();
    parsed.shrink_to_fit(); // Kept as long as the resource.
    parsed
}
