//! Whether an RPC is let in: the RBAC filters of a server (A41).
//!
//! A decision is a function of the rules and of what is known of the RPC. It cannot fail and takes no memory, but for a
//! header that came more than once, whose values are joined.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use mainstay_xds::resource::filter::{
    AuditLoggerConfig, FilterConfig, FilterOverrides, HeaderRule, HeaderSource, HttpFilter, Policy, Rbac, RbacAction,
    Rule,
};

use crate::identity::SubjectAltNames;

mod index;

use index::{PolicyIndex, Subject};

/// What is known of an RPC when it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// `:path` as it came: `/service/method`, and a query if there is one.
    pub path: &'a str,
    /// `:authority`, the only one (S-48).
    pub authority: &'a str,
    /// `:method`.
    pub method: &'a str,
    /// Metadata as it came: binary headers in base64, and whatever the transport left in.
    pub headers: &'a HeaderMap,
    /// The local address of the connection.
    pub local: SocketAddr,
    /// The address that it comes from.
    pub peer: SocketAddr,
    /// Who the handshake says it is.
    pub caller: Caller<'a>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller<'a> {
    /// Anybody: the connection is in plaintext.
    Plaintext,
    /// A client that has shown no certificate, over TLS.
    Anonymous,
    /// A client with a certificate that was found to be good.
    Certified(&'a CallerCertificate),
}

/// The names in the certificate of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallerCertificate {
    /// The subject alternative names.
    pub names: SubjectAltNames,
    /// The distinguished name of the subject, as RFC 2253 writes it.
    pub subject: String,
}

/// The RBAC filters of a route, overrides applied, in the order of the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Authorization {
    filters: Box<[(Arc<str>, Arc<Authorizer>)]>,
}

/// Makes rules ready for use, each only once, however many routes have them.
#[derive(Debug, Default)]
pub(crate) struct Authorizers {
    /// By where the rules are, which `Authorizer`s keep there.
    ready: BTreeMap<*const Rbac, Arc<Authorizer>>,
}

/// One set of rules, ready for use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authorizer {
    rbac: Arc<Rbac>,
    /// One for each of the headers that the rules name; absent if no request can have it.
    headers: Box<[Option<HeaderName>]>,
    index: PolicyIndex,
}

/// What one filter decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict<'a> {
    /// Whether the RPC may go on.
    pub allowed: bool,
    /// The first policy that matches, in the order of names (AZ-7).
    pub policy: Option<&'a str>,
}

/// What is told of a decision (A59).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuditRecord<'a> {
    /// The path of the RPC, without its query.
    pub path: &'a str,
    /// Who calls; empty if nobody knows.
    pub principal: &'a str,
    /// The name of the filter in its chain.
    pub filter: &'a str,
    /// What it decided.
    pub verdict: Verdict<'a>,
    /// To whom it is told.
    pub loggers: &'a [AuditLoggerConfig],
}

// === impl Caller ===

impl<'a> Caller<'a> {
    /// One name for the caller: the first of those that rules about principals look at; empty if there is none.
    pub fn principal(self) -> &'a str {
        self.names(&mut |_| true).unwrap_or_default()
    }

    /// The first name that is `wanted`, of those that count: the URIs if there are any, else the DNS names, else the
    /// subject. The others are not looked at, or a certificate could pass for another one (AZ-5).
    fn names(self, wanted: &mut dyn FnMut(&str) -> bool) -> Option<&'a str> {
        match self {
            Self::Plaintext => None,
            Self::Anonymous => wanted("").then_some(""),
            Self::Certified(CallerCertificate { names, subject }) => {
                let names = [&names.uri, &names.dns].into_iter().find(|names| !names.is_empty());
                match names {
                    Some(names) => names.iter().map(String::as_str).find(|name| wanted(name)),
                    None => wanted(subject).then_some(subject),
                }
            }
        }
    }
}

// === impl Authorization ===

impl Authorization {
    /// Applies overrides, the most specific first (AZ-10).
    pub fn new(chain: &[HttpFilter], overrides: &[&FilterOverrides]) -> Self {
        Self::sharing(&mut Authorizers::default(), chain, overrides)
    }

    /// The same, with what is ready for use already.
    pub(crate) fn sharing(ready: &mut Authorizers, chain: &[HttpFilter], overrides: &[&FilterOverrides]) -> Self {
        let filter = |filter: &HttpFilter| match filter.effective(overrides)? {
            FilterConfig::Rbac(rbac) => Some((Arc::from(filter.name.as_str()), ready.of(rbac?))),
            // Of these, none does anything on a server.
            FilterConfig::Router | FilterConfig::Fault(_) | FilterConfig::StatefulSession(_) => None,
        };
        Self { filters: chain.iter().filter_map(filter).collect() }
    }

    /// Whether every RPC is let in, and nobody told.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// What each filter says of an RPC, by name and in order; whoever asks stops at the first that refuses it (OP-5).
    pub fn verdicts<'a>(&'a self, facts: &'a Facts<'_>) -> impl Iterator<Item = (&'a str, Verdict<'a>)> {
        self.filters.iter().map(|(filter, authorizer)| (&**filter, authorizer.decide(facts)))
    }

    /// Whether an RPC is let in. Each filter decides and tells of it, up to the first that refuses the RPC.
    pub fn allows(&self, facts: &Facts<'_>, tell: &mut dyn FnMut(&AuditRecord<'_>)) -> bool {
        self.filters.iter().all(|(filter, authorizer)| {
            let verdict = authorizer.decide(facts);
            let loggers = authorizer.rbac.audit.loggers_of(verdict.allowed);
            if !loggers.is_empty() {
                let (path, principal) = (without_query(facts.path), facts.caller.principal());
                tell(&AuditRecord { path, principal, filter, verdict, loggers });
            }
            verdict.allowed
        })
    }
}

// === impl Authorizers ===

impl Authorizers {
    fn of(&mut self, rbac: Arc<Rbac>) -> Arc<Authorizer> {
        Arc::clone(self.ready.entry(Arc::as_ptr(&rbac)).or_insert_with(|| Arc::new(Authorizer::new(rbac))))
    }
}

// === impl Authorizer ===

impl Authorizer {
    /// Makes rules ready for use.
    pub fn new(rbac: Arc<Rbac>) -> Self {
        let headers = rbac.headers.iter().map(|name| HeaderName::from_bytes(name.as_bytes()).ok()).collect();
        Self { headers, index: PolicyIndex::new(&rbac.policies), rbac }
    }

    /// Decides about an RPC.
    pub fn decide(&self, facts: &Facts<'_>) -> Verdict<'_> {
        let request = Request {
            facts,
            path: without_query(facts.path),
            headers: &self.headers,
            values: std::array::from_fn(|_| OnceCell::new()),
        };
        let policy = self.first_policy(&request);
        let allowed = match self.rbac.action {
            RbacAction::Allow => policy.is_some(),
            RbacAction::Deny => policy.is_none(),
        };
        Verdict { allowed, policy: policy.map(|policy| policy.name.as_str()) }
    }

    /// The first policy that the RPC is for.
    fn first_policy(&self, request: &Request<'_>) -> Option<&Policy> {
        let policies = &self.rbac.policies;
        let mut first = policies.len();
        self.index.candidates(|subject, tell| request.values(subject, tell), &mut |candidates| {
            let before = candidates.iter().map(|at| *at as usize).take_while(|at| *at < first);
            if let Some(found) = before.into_iter().find(|at| request.is_of(&policies[*at])) {
                first = found;
            }
        });
        policies.get(first)
    }
}

/// An RPC while rules look at it.
struct Request<'a> {
    facts: &'a Facts<'a>,
    /// Without the query.
    path: &'a str,
    headers: &'a [Option<HeaderName>],
    /// The values of the first of `headers`: many rules look at the same one.
    values: [OnceCell<Option<Cow<'a, [u8]>>>; KEPT],
}

impl<'a> Request<'a> {
    fn is_of(&self, policy: &Policy) -> bool {
        let matches = |rule: &Rule| self.matches(rule);
        policy.permissions.iter().any(matches) && policy.principals.iter().any(matches)
    }

    /// As deep as the rule is nested, which the parser bounds.
    fn matches(&self, rule: &Rule) -> bool {
        match rule {
            Rule::All(rules) => rules.iter().all(|rule| self.matches(rule)),
            Rule::OneOf(rules) => rules.iter().any(|rule| self.matches(rule)),
            Rule::Not(rule) => !self.matches(rule),
            Rule::Always => true,
            Rule::Never => false,
            Rule::Header(rule) => self.header_matches(rule),
            Rule::Path(matcher) => matcher.matches_bytes(self.path.as_bytes()),
            Rule::LocalIp(range) => range.contains(self.facts.local.ip()),
            Rule::LocalPort { first, last } => (*first..=*last).contains(&self.facts.local.port()),
            Rule::ServerName(matcher) => matcher.matches_bytes(b""),
            Rule::Authenticated(None) => self.facts.caller != Caller::Plaintext,
            Rule::Authenticated(Some(matcher)) => {
                self.facts.caller.names(&mut |name| matcher.matches_bytes(name.as_bytes())).is_some()
            }
            Rule::PeerIp(range) => range.contains(self.facts.peer.ip()),
        }
    }

    /// Tells each text that rules about this subject look at.
    fn values(&self, subject: Subject, tell: &mut dyn FnMut(&[u8])) {
        match subject {
            Subject::Path => tell(self.path.as_bytes()),
            Subject::Header(source) => self.with_header(source, |value| value.into_iter().for_each(tell)),
            Subject::Name => {
                self.facts.caller.names(&mut |name| {
                    tell(name.as_bytes());
                    false
                });
            }
        }
    }

    fn header_matches(&self, rule: &HeaderRule) -> bool {
        self.with_header(rule.source, |value| {
            rule.matcher.matches_bytes(value.or(rule.missing_is_empty.then_some(b"")))
        })
    }

    /// Looks at the value of a header; `None` if it is not there.
    fn with_header<T>(&self, source: HeaderSource, look: impl FnOnce(Option<&[u8]>) -> T) -> T {
        let named;
        look(match source {
            HeaderSource::Method => Some(self.facts.method.as_bytes()),
            HeaderSource::Authority => Some(self.facts.authority.as_bytes()),
            HeaderSource::Path => Some(self.facts.path.as_bytes()),
            HeaderSource::Hidden => None,
            HeaderSource::Named(place) => match self.values.get(place) {
                Some(kept) => kept.get_or_init(|| self.value(place)).as_deref(),
                None => {
                    named = self.value(place);
                    named.as_deref()
                }
            },
        })
    }

    /// The value of the header that rules know by this place; several are joined with commas (S-47).
    fn value(&self, place: usize) -> Option<Cow<'a, [u8]>> {
        let name = self.headers.get(place)?.as_ref()?;
        let mut values = self.facts.headers.get_all(name).iter();
        let mut joined = Cow::Borrowed(values.next()?.as_bytes());
        for value in values {
            let bytes = joined.to_mut();
            bytes.push(b',');
            bytes.extend_from_slice(value.as_bytes());
        }
        Some(joined)
    }
}

/// The path without a query (AZ-4), and without a fragment, which has no business in a request.
fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// How many headers are looked up once for all rules. More than most policies name.
const KEPT: usize = 8;

#[cfg(test)]
mod tests;
