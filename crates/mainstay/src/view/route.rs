//! Which RPCs go where.

use std::fmt;
use std::time::Duration;

use mainstay_xds::resource::{matcher, route};
use tonic::Code;

use crate::code;

/// A route: which RPCs it is for, and what happens to them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// Which RPCs the route is for.
    pub matches: RouteMatch,
    /// What happens to them.
    pub action: RouteAction,
}

/// Which RPCs a route is for: those for which all parts are true. [`Display`](fmt::Display) puts it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteMatch {
    /// What the path must be.
    pub path: PathMatch,
    /// What headers must be.
    pub headers: Vec<HeaderMatch>,
    /// The share of the RPCs, in parts of a million; all of them if absent.
    pub fraction_per_million: Option<u32>,
}

/// What the path of an RPC, `/service/method`, must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathMatch {
    /// The path starts with a text. The empty text matches every path.
    #[non_exhaustive]
    Prefix {
        /// The text.
        prefix: String,
        /// Whether letters must have the same case.
        case_sensitive: bool,
    },
    /// The path is equal to a text.
    #[non_exhaustive]
    Exact {
        /// The text.
        path: String,
        /// Whether letters must have the same case.
        case_sensitive: bool,
    },
    /// The whole path matches a regular expression.
    #[non_exhaustive]
    Regex {
        /// The regular expression.
        pattern: String,
    },
}

/// What a header of an RPC must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeaderMatch {
    /// The name of the header, in lower case.
    pub name: String,
    /// What its value must be.
    pub kind: HeaderMatchKind,
    /// Whether the value must not be like this.
    pub invert: bool,
}

/// What the value of a header must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderMatchKind {
    /// The value is equal to a text.
    #[non_exhaustive]
    Exact {
        /// The text.
        value: String,
        /// Whether letters may have another case.
        ignore_case: bool,
    },
    /// The value starts with a text.
    #[non_exhaustive]
    Prefix {
        /// The text.
        value: String,
        /// Whether letters may have another case.
        ignore_case: bool,
    },
    /// The value ends with a text.
    #[non_exhaustive]
    Suffix {
        /// The text.
        value: String,
        /// Whether letters may have another case.
        ignore_case: bool,
    },
    /// The value contains a text.
    #[non_exhaustive]
    Contains {
        /// The text.
        value: String,
        /// Whether letters may have another case.
        ignore_case: bool,
    },
    /// The whole value matches a regular expression.
    #[non_exhaustive]
    Regex {
        /// The regular expression.
        pattern: String,
    },
    /// The value is a decimal integer in `start..end`.
    #[non_exhaustive]
    Range {
        /// The first number inside.
        start: i64,
        /// The first number outside.
        end: i64,
    },
    /// The header is there.
    Present,
    /// The header is not there.
    Absent,
}

/// What happens to the RPCs of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteAction {
    /// They are sent to a cluster.
    Forward(ForwardAction),
    /// They fail: the route is one for servers.
    NonForwarding,
    /// They fail: the action is not supported.
    #[non_exhaustive]
    Unsupported {
        /// The name of the action.
        action: String,
    },
}

/// How the RPCs of a route are sent to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwardAction {
    /// The clusters that share the RPCs; at least one.
    pub clusters: Vec<WeightedCluster>,
    /// The longest time of an RPC. Zero: no limit. `None`: that of the Listener holds.
    pub max_stream_duration: Option<Duration>,
    /// When RPCs are tried again; never if absent.
    pub retry: Option<RetryPolicy>,
    /// How the request hash is made, for ring_hash and session affinity.
    pub hash_policies: Vec<HashPolicy>,
    /// Whether the hostname of the endpoint is sent as `:authority` (gRFC A81).
    pub auto_host_rewrite: bool,
}

/// A cluster with its share of the RPCs of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightedCluster {
    /// The name of the cluster.
    pub name: String,
    /// Its weight among the clusters of the route; never zero.
    pub weight: u32,
}

/// When an RPC is tried again (gRFC A44).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The status codes after which it is tried again.
    pub retry_on: Vec<Code>,
    /// How often it is tried again at most.
    pub num_retries: u32,
    /// The first backoff.
    pub base_interval: Duration,
    /// The longest backoff.
    pub max_interval: Duration,
}

/// One step of the request hash (gRFC A42).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HashPolicy {
    /// The header that is hashed; `None` for the random id of the channel.
    pub header: Option<String>,
    /// Whether later steps are left out once there is a hash.
    pub terminal: bool,
}

// === impl Route ===

impl Route {
    pub(super) fn of(core: &route::Route) -> Self {
        Self {
            matches: RouteMatch {
                path: PathMatch::of(&core.path),
                headers: core.headers.iter().map(HeaderMatch::of).collect(),
                fraction_per_million: core.fraction,
            },
            action: match &core.action {
                route::RouteAction::Forward(forward) => RouteAction::Forward(ForwardAction::of(forward)),
                route::RouteAction::NonForwarding => RouteAction::NonForwarding,
                route::RouteAction::Unsupported(action) => RouteAction::Unsupported { action: (*action).to_owned() },
            },
        }
    }
}

// === impl matches ===

impl PathMatch {
    fn of(core: &matcher::PathMatcher) -> Self {
        match core {
            matcher::PathMatcher::Prefix { value, case_sensitive } => {
                Self::Prefix { prefix: value.clone(), case_sensitive: *case_sensitive }
            }
            matcher::PathMatcher::Exact { value, case_sensitive } => {
                Self::Exact { path: value.clone(), case_sensitive: *case_sensitive }
            }
            matcher::PathMatcher::Regex(regex) => Self::Regex { pattern: regex.pattern().to_owned() },
        }
    }
}

impl HeaderMatch {
    fn of(core: &matcher::HeaderMatcher) -> Self {
        Self { name: core.name.clone(), kind: HeaderMatchKind::of(&core.kind), invert: core.invert }
    }
}

impl HeaderMatchKind {
    fn of(core: &matcher::HeaderMatch) -> Self {
        match core {
            matcher::HeaderMatch::String(text) => Self::of_string(text),
            matcher::HeaderMatch::Range { start, end } => Self::Range { start: *start, end: *end },
            matcher::HeaderMatch::Present(true) => Self::Present,
            matcher::HeaderMatch::Present(false) => Self::Absent,
        }
    }

    pub(super) fn of_string(core: &matcher::StringMatcher) -> Self {
        match core {
            matcher::StringMatcher::Exact { value, ignore_case } => {
                Self::Exact { value: value.clone(), ignore_case: *ignore_case }
            }
            matcher::StringMatcher::Prefix { value, ignore_case } => {
                Self::Prefix { value: value.clone(), ignore_case: *ignore_case }
            }
            matcher::StringMatcher::Suffix { value, ignore_case } => {
                Self::Suffix { value: value.clone(), ignore_case: *ignore_case }
            }
            matcher::StringMatcher::Contains { value, ignore_case } => {
                Self::Contains { value: value.clone(), ignore_case: *ignore_case }
            }
            matcher::StringMatcher::Regex(regex) => Self::Regex { pattern: regex.pattern().to_owned() },
        }
    }
}

impl fmt::Display for RouteMatch {
    /// Writes the condition in words, such as `prefix "/shop." and header x-user present`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)?;
        for header in &self.headers {
            write!(f, " and {header}")?;
        }
        match self.fraction_per_million {
            Some(millionths) => write!(f, " and {} % of the RPCs", f64::from(millionths) / 10_000.0),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { prefix, .. } if prefix.is_empty() => f.write_str("any path"),
            Self::Prefix { prefix, case_sensitive } => write!(f, "prefix {prefix:?}{}", case(!case_sensitive)),
            Self::Exact { path, case_sensitive } => write!(f, "path {path:?}{}", case(!case_sensitive)),
            Self::Regex { pattern } => write!(f, "regex {pattern:?}"),
        }
    }
}

impl fmt::Display for HeaderMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header {} {}{}", self.name, if self.invert { "not " } else { "" }, self.kind)
    }
}

impl fmt::Display for HeaderMatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact { value, ignore_case } => write!(f, "{value:?}{}", case(*ignore_case)),
            Self::Prefix { value, ignore_case } => write!(f, "prefix {value:?}{}", case(*ignore_case)),
            Self::Suffix { value, ignore_case } => write!(f, "suffix {value:?}{}", case(*ignore_case)),
            Self::Contains { value, ignore_case } => write!(f, "with {value:?}{}", case(*ignore_case)),
            Self::Regex { pattern } => write!(f, "regex {pattern:?}"),
            Self::Range { start, end } => write!(f, "in {start}..{end}"),
            Self::Present => f.write_str("present"),
            Self::Absent => f.write_str("absent"),
        }
    }
}

fn case(ignored: bool) -> &'static str {
    if ignored { " in any case" } else { "" }
}

// === impl actions ===

impl ForwardAction {
    fn of(core: &route::ForwardAction) -> Self {
        Self {
            clusters: match &core.target {
                route::ClusterTarget::Cluster(name) => vec![WeightedCluster { name: name.clone(), weight: 1 }],
                route::ClusterTarget::Weighted(choices) => {
                    let cluster = |choice: &route::WeightedCluster| WeightedCluster {
                        name: choice.name.clone(),
                        weight: choice.weight,
                    };
                    choices.iter().map(cluster).collect()
                }
            },
            max_stream_duration: core.max_stream_duration,
            retry: core.retry.as_deref().map(RetryPolicy::of),
            hash_policies: core.hash_policies.iter().map(HashPolicy::of).collect(),
            auto_host_rewrite: core.auto_host_rewrite,
        }
    }
}

impl RetryPolicy {
    fn of(core: &route::RetryPolicy) -> Self {
        Self {
            retry_on: core.retry_on.iter().map(|code| code::to_tonic(*code)).collect(),
            num_retries: core.num_retries,
            base_interval: core.base_interval,
            max_interval: core.max_interval,
        }
    }
}

impl HashPolicy {
    fn of(core: &route::HashPolicy) -> Self {
        let header = match &core.source {
            route::HashSource::Header { name, .. } => Some(name.clone()),
            route::HashSource::ChannelId => None,
        };
        Self { header, terminal: core.terminal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_put_in_words() {
        let header =
            |name: &str, kind: HeaderMatchKind, invert: bool| HeaderMatch { name: name.to_owned(), kind, invert };
        let text = |value: &str| value.to_owned();
        let matches = RouteMatch {
            path: PathMatch::Prefix { prefix: text("/shop."), case_sensitive: false },
            headers: vec![
                header("a", HeaderMatchKind::Exact { value: text("1"), ignore_case: true }, true),
                header("b", HeaderMatchKind::Range { start: 1, end: 5 }, false),
                header("c", HeaderMatchKind::Absent, false),
            ],
            fraction_per_million: Some(125_000),
        };
        assert_eq!(
            matches.to_string(),
            "prefix \"/shop.\" in any case and header a not \"1\" in any case and header b in 1..5 \
             and header c absent and 12.5 % of the RPCs"
        );
        let every = PathMatch::Prefix { prefix: String::new(), case_sensitive: true };
        assert_eq!(every.to_string(), "any path");
    }
}
