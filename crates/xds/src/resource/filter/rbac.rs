//! Authorization: which RPCs a server refuses (A41).
//!
//! The rules are parsed to a closed tree. Whatever we do not know is a fault and never a rule that says nothing: one
//! that is passed over would let RPCs in, or with `not` around it all of them (AZ-2).

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::rbac::v3 as pb;
use envoy_types::pb::envoy::config::rbac::v3::permission;
use envoy_types::pb::envoy::config::rbac::v3::principal;
use envoy_types::pb::envoy::config::rbac::v3::rbac::Action;
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher as PbHeaderMatcher;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3 as pb_filter;
use envoy_types::pb::envoy::r#type::matcher::v3::{PathMatcher, path_matcher};
use envoy_types::pb::envoy::r#type::v3::Int32Range;
use prost::Message;

use super::super::ParseContext;
use super::super::cidr::Cidr;
use super::super::fields::excerpt;
use super::super::matcher::{HeaderMatch, HeaderMatcher, StringMatcher};
use super::{FilterConfig, FilterOverride, FilterType};
use crate::invalid::{Faults, Invalid};

mod audit;
#[cfg(test)]
mod tests;

pub use audit::{AuditCondition, AuditLoggerConfig, AuditOptions};

/// Which RPCs are refused (S-40 to S-42).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rbac {
    /// What becomes of an RPC that a policy matches; the others meet the contrary.
    pub action: RbacAction,
    /// In the order of their names, which is that in which they are asked (AZ-7).
    pub policies: Vec<Policy>,
    /// The names of the headers that rules look at, each once; see [`HeaderSource::Named`].
    pub headers: Vec<String>,
    /// Who is told of decisions.
    pub audit: AuditOptions,
}

/// What becomes of an RPC that a policy matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbacAction {
    /// It is let in, and no other.
    Allow,
    /// It is refused, and no other.
    Deny,
}

/// Who does what. Matches an RPC if one of the permissions and one of the principals do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Its key.
    pub name: String,
    /// What is done; never empty.
    pub permissions: Vec<Rule>,
    /// By whom; never empty.
    pub principals: Vec<Rule>,
}

/// A permission or a principal (S-44, S-45). What never matches stays in the tree, as there may be a `Not` around it (S-49).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// All of these; never empty.
    All(Vec<Rule>),
    /// At least one of these; never empty.
    OneOf(Vec<Rule>),
    /// Everything but this.
    Not(Box<Rule>),
    /// Every RPC.
    Always,
    /// No RPC: what Envoy's metadata says, of which there is none here.
    Never,
    /// RPCs with such a header.
    Header(HeaderRule),
    /// RPCs with such a path, without its query (AZ-4).
    Path(StringMatcher),
    /// RPCs on connections to such an address of ours.
    LocalIp(Cidr),
    /// RPCs on connections to one of these ports.
    LocalPort {
        /// The first of them.
        first: u16,
        /// The last of them.
        last: u16,
    },
    /// All RPCs or none: server names are taken to be empty.
    ServerName(StringMatcher),
    /// RPCs on TLS connections, of clients with such a name if one is given (S-46).
    Authenticated(Option<StringMatcher>),
    /// RPCs from such an address: that of the connection, whatever headers say (AZ-6).
    PeerIp(Cidr),
}

/// What a header must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderRule {
    /// Where its value comes from.
    pub source: HeaderSource,
    /// What the value must be.
    pub matcher: HeaderMatcher,
    /// Whether a header that is not there counts as an empty one.
    pub missing_is_empty: bool,
}

/// Where the value of a header comes from (S-47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeaderSource {
    /// `:method`.
    Method,
    /// `:authority` or `host`, which are the same.
    Authority,
    /// `:path`, with its query.
    Path,
    /// A header of one connection, such as `te`: never there.
    Hidden,
    /// The metadata with the name at this place of [`Rbac::headers`].
    Named(usize),
}

pub(super) static RBAC: FilterType = FilterType {
    config_type: "envoy.extensions.filters.http.rbac.v3.RBAC",
    on_client: false,
    on_server: true,
    terminal: false,
    parse: |extension, cx, faults| {
        let pb: pb_filter::Rbac = extension.message(faults)?;
        Some(FilterConfig::Rbac(Rbac::parse(&pb, cx, faults)))
    },
    overrides: Some(("envoy.extensions.filters.http.rbac.v3.RBACPerRoute", |extension, cx, faults| {
        let pb: pb_filter::RbacPerRoute = extension.message(faults)?;
        // AZ-10: all of the config is replaced; without another one there are no rules here.
        let rbac = pb.rbac.as_ref().and_then(|pb| faults.field("rbac", |f| Rbac::parse(pb, cx, f)));
        Some(FilterOverride::Rbac(rbac))
    })),
};

impl Rbac {
    /// Reads the config of a filter that is not part of a Listener; `None` if it refuses nothing.
    pub fn decode(bytes: &[u8], cx: ParseContext<'_>) -> Result<Option<Arc<Self>>, Invalid> {
        let pb = pb_filter::Rbac::decode(bytes).map_err(|e| Invalid::one("", format!("cannot be decoded: {e}")))?;
        let mut faults = Faults::new();
        let rbac = Self::parse(&pb, cx, &mut faults);
        faults.finish(rbac)
    }

    /// Checks an RBAC filter; `faults` is at it. `None` if it has faults or refuses nothing: it has no rules, or the
    /// action LOG, which is as if it were not there (S-40, S-41).
    fn parse(pb: &pb_filter::Rbac, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Arc<Self>> {
        // Rules in another language, which nobody here reads, and not rules for practice as those in the shadow.
        if pb.matcher.is_some() {
            faults.field("matcher", |f| f.add("not supported: expected rules"));
        }
        let pb = pb.rules.as_ref()?;
        faults.field("rules", |f| {
            let action = match Action::try_from(pb.action) {
                Ok(Action::Allow) => RbacAction::Allow,
                Ok(Action::Deny) => RbacAction::Deny,
                Ok(Action::Log) => return None,
                Err(_) => {
                    f.field("action", |f| f.add(format!("unknown value {}: expected ALLOW, DENY or LOG", pb.action)));
                    return None;
                }
            };
            let mut headers = Headers::default();
            let policies = f.field("policies", |f| {
                // The map of the message has a random order.
                let sorted: BTreeMap<&String, &pb::Policy> = pb.policies.iter().collect();
                let parse = |(name, pb): (&String, &pb::Policy)| {
                    f.key(&excerpt(name), |f| Policy::parse(name, pb, &mut headers, f))
                };
                sorted.into_iter().map(parse).collect()
            });
            let audit = pb.audit_logging_options.as_ref();
            let audit = audit.map(|pb| f.field("audit_logging_options", |f| AuditOptions::parse(pb, cx, f)));
            Some(Arc::new(Self { action, policies, headers: headers.names, audit: audit.unwrap_or_default() }))
        })
    }
}

impl Policy {
    /// Checks a Policy; `faults` is at it. It may be used only if nothing was reported.
    fn parse(name: &str, pb: &pb::Policy, headers: &mut Headers, faults: &mut Faults) -> Self {
        // S-43: expressions, which nobody here evaluates.
        for (field, is_set) in
            [("condition", pb.condition.is_some()), ("checked_condition", pb.checked_condition.is_some())]
        {
            if is_set {
                faults.field(field, |f| f.add("not supported"));
            }
        }
        let permissions =
            faults.field("permissions", |f| some_of(&pb.permissions, f, |pb, f| permission(pb, 0, headers, f)));
        let principals =
            faults.field("principals", |f| some_of(&pb.principals, f, |pb, f| principal(pb, 0, headers, f)));
        Self { name: name.to_owned(), permissions, principals }
    }
}

/// Checks a Permission with so many others around it; `faults` is at it (S-44).
// Control planes still send `metadata`.
#[allow(deprecated)]
fn permission(pb: &pb::Permission, depth: usize, headers: &mut Headers, faults: &mut Faults) -> Option<Rule> {
    let Some(rule) = &pb.rule else {
        // Also a kind that came after the messages that we were built with.
        faults.add("must be set to a kind of permission that is supported");
        return None;
    };
    let depth = deeper(depth, faults)?;
    let mut set = |pb: &permission::Set, faults: &mut Faults| {
        faults.field("rules", |f| some_of(&pb.rules, f, |pb, f| permission(pb, depth, headers, f)))
    };
    let unsupported = match rule {
        permission::Rule::AndRules(pb) => return Some(Rule::All(faults.field("and_rules", |f| set(pb, f)))),
        permission::Rule::OrRules(pb) => return Some(Rule::OneOf(faults.field("or_rules", |f| set(pb, f)))),
        permission::Rule::NotRule(pb) => {
            let rule = faults.field("not_rule", |f| permission(pb, depth, headers, f))?;
            return Some(Rule::Not(Box::new(rule)));
        }
        permission::Rule::Any(value) => return any(*value, faults),
        permission::Rule::Header(pb) => return faults.field("header", |f| header(pb, headers, f)),
        permission::Rule::UrlPath(pb) => return faults.field("url_path", |f| path(pb, f)),
        permission::Rule::DestinationIp(pb) => {
            return faults.field("destination_ip", |f| Cidr::parse(pb, f)).map(Rule::LocalIp);
        }
        permission::Rule::DestinationPort(port) => {
            return faults.field("destination_port", |f| match u16::try_from(*port) {
                Ok(port) => Some(Rule::LocalPort { first: port, last: port }),
                Err(_) => {
                    f.add(format!("{port} is not a port: expected at most 65535"));
                    None
                }
            });
        }
        permission::Rule::DestinationPortRange(pb) => {
            return faults.field("destination_port_range", |f| ports(pb, f));
        }
        permission::Rule::Metadata(pb) => return Some(metadata(pb.invert)),
        permission::Rule::RequestedServerName(pb) => {
            return faults.field("requested_server_name", |f| StringMatcher::parse(pb, f)).map(Rule::ServerName);
        }
        permission::Rule::Matcher(_) => "matcher",
        permission::Rule::UriTemplate(_) => "uri_template",
        permission::Rule::SourcedMetadata(_) => "sourced_metadata",
    };
    faults.field(unsupported, |f| f.add("not supported"));
    None
}

/// Checks a Principal with so many others around it; `faults` is at it (S-45).
// Control planes still send `source_ip` and `metadata`.
#[allow(deprecated)]
fn principal(pb: &pb::Principal, depth: usize, headers: &mut Headers, faults: &mut Faults) -> Option<Rule> {
    let Some(identifier) = &pb.identifier else {
        faults.add("must be set to a kind of principal that is supported");
        return None;
    };
    let depth = deeper(depth, faults)?;
    let mut set = |pb: &principal::Set, faults: &mut Faults| {
        faults.field("ids", |f| some_of(&pb.ids, f, |pb, f| principal(pb, depth, headers, f)))
    };
    let unsupported = match identifier {
        principal::Identifier::AndIds(pb) => return Some(Rule::All(faults.field("and_ids", |f| set(pb, f)))),
        principal::Identifier::OrIds(pb) => return Some(Rule::OneOf(faults.field("or_ids", |f| set(pb, f)))),
        principal::Identifier::NotId(pb) => {
            let rule = faults.field("not_id", |f| principal(pb, depth, headers, f))?;
            return Some(Rule::Not(Box::new(rule)));
        }
        principal::Identifier::Any(value) => return any(*value, faults),
        principal::Identifier::Authenticated(pb) => {
            let Some(name) = &pb.principal_name else { return Some(Rule::Authenticated(None)) };
            let name = faults.field("authenticated.principal_name", |f| StringMatcher::parse(name, f))?;
            return Some(Rule::Authenticated(Some(name)));
        }
        principal::Identifier::SourceIp(pb) => {
            return faults.field("source_ip", |f| Cidr::parse(pb, f)).map(Rule::PeerIp);
        }
        principal::Identifier::DirectRemoteIp(pb) => {
            return faults.field("direct_remote_ip", |f| Cidr::parse(pb, f)).map(Rule::PeerIp);
        }
        principal::Identifier::RemoteIp(pb) => {
            return faults.field("remote_ip", |f| Cidr::parse(pb, f)).map(Rule::PeerIp);
        }
        principal::Identifier::Header(pb) => return faults.field("header", |f| header(pb, headers, f)),
        principal::Identifier::UrlPath(pb) => return faults.field("url_path", |f| path(pb, f)),
        principal::Identifier::Metadata(pb) => return Some(metadata(pb.invert)),
        principal::Identifier::FilterState(_) => "filter_state",
        principal::Identifier::SourcedMetadata(_) => "sourced_metadata",
        principal::Identifier::Custom(_) => "custom",
    };
    faults.field(unsupported, |f| f.add("not supported"));
    None
}

/// Checks a list that must not be empty; `faults` is at it. No rule at all means either nothing or everything,
/// depending on where it stands, and is never what somebody meant.
fn some_of<P>(pb: &[P], faults: &mut Faults, mut parse: impl FnMut(&P, &mut Faults) -> Option<Rule>) -> Vec<Rule> {
    if pb.is_empty() {
        faults.add("must not be empty");
    }
    pb.iter().enumerate().filter_map(|(i, pb)| faults.index(i, |f| parse(pb, f))).collect()
}

/// S-43.
fn deeper(depth: usize, faults: &mut Faults) -> Option<usize> {
    if depth > MAX_DEPTH {
        faults.add(format!("is nested more than {MAX_DEPTH} deep"));
        return None;
    }
    Some(depth + 1)
}

fn any(value: bool, faults: &mut Faults) -> Option<Rule> {
    if !value {
        faults.field("any", |f| f.add("must be true"));
        return None;
    }
    Some(Rule::Always)
}

/// There is no metadata of Envoy's, so that no matcher finds what it looks for.
fn metadata(invert: bool) -> Rule {
    if invert { Rule::Always } else { Rule::Never }
}

/// Checks a PathMatcher; `faults` is at it.
fn path(pb: &PathMatcher, faults: &mut Faults) -> Option<Rule> {
    faults.field("path", |f| match &pb.rule {
        Some(path_matcher::Rule::Path(pb)) => StringMatcher::parse(pb, f).map(Rule::Path),
        None => {
            f.add("must be set");
            None
        }
    })
}

/// Checks a range of ports, of which the end is not a part; `faults` is at it.
fn ports(pb: &Int32Range, faults: &mut Faults) -> Option<Rule> {
    let (start, end) = (pb.start, pb.end);
    match (u16::try_from(start), u16::try_from(i64::from(end) - 1)) {
        (Ok(first), Ok(last)) if first <= last => Some(Rule::LocalPort { first, last }),
        _ => {
            faults.add(format!("from {start} to before {end} there is no port: expected 0 to at most 65536"));
            None
        }
    }
}

/// Checks a HeaderMatcher; `faults` is at it (S-43, S-47).
fn header(pb: &PbHeaderMatcher, headers: &mut Headers, faults: &mut Faults) -> Option<Rule> {
    let matcher = HeaderMatcher::parse(pb, faults);
    // AZ-3: requests have names in lower case only; the guards must not be evaded by writing them otherwise.
    let name = pb.name.to_ascii_lowercase();
    let source = faults.field("name", |f| headers.source(&name, f));
    let matcher = matcher?;
    // Whether a header is there is asked of what came.
    let missing_is_empty = pb.treat_missing_header_as_empty && !matches!(matcher.kind, HeaderMatch::Present(_));
    Some(Rule::Header(HeaderRule { source: source?, matcher, missing_is_empty }))
}

/// The names of the headers that rules look at.
#[derive(Default)]
struct Headers {
    names: Vec<String>,
}

impl Headers {
    /// Where the value of a header comes from; `faults` is at its name, which is in lower case.
    fn source(&mut self, name: &str, faults: &mut Faults) -> Option<HeaderSource> {
        Some(match name {
            ":method" => HeaderSource::Method,
            ":authority" | "host" => HeaderSource::Authority,
            ":path" => HeaderSource::Path,
            _ if name == ":scheme" || name.starts_with("grpc-") => {
                faults.add(format!("{} cannot be matched: neither can :scheme nor grpc-*", excerpt(name)));
                return None;
            }
            _ if !is_field_name(name) => {
                faults.add(format!("{} is not the name of a header", excerpt(name)));
                return None;
            }
            _ if OF_ONE_CONNECTION.contains(&name) => HeaderSource::Hidden,
            _ => {
                let known = self.names.iter().position(|known| known == name);
                HeaderSource::Named(known.unwrap_or_else(|| {
                    self.names.push(name.to_owned());
                    self.names.len() - 1
                }))
            }
        })
    }
}

/// Whether a header of a request can have this name, which is in lower case.
fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Headers that are not the RPC's but the connection's, and so taken not to be there (S-47).
const OF_ONE_CONNECTION: [&str; 6] =
    ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// How many rules may be around another one (S-43).
const MAX_DEPTH: usize = 16;
