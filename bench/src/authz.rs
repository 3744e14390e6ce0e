//! What it costs to decide whether an RPC is let in.

use std::time::Instant;

use envoy_types::pb::envoy::config::rbac::v3::permission::{self, Rule};
use envoy_types::pb::envoy::config::rbac::v3::principal::{self, Identifier};
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac as PbRbac};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::Rbac as PbFilter;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{PathMatcher, StringMatcher, path_matcher};
use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_lb::identity::SubjectAltNames;
use mainstay_lb::{Authorizer, Caller, CallerCertificate, Facts};
use mainstay_xds::bootstrap::{Bootstrap, Guards};
use mainstay_xds::resource::ParseContext;
use mainstay_xds::resource::filter::Rbac;
use prost::Message;

use crate::plot::{Plot, number};
use crate::report::Report;
use crate::{Options, Result, alloc, stats};

const POLICIES: [usize; 3] = [1, 10, 100];

pub(crate) fn measure(options: &Options) -> Result<Report> {
    let mut report = Report::new("authz", &["policies", "rules", "ns per decision", "allocations"]);
    let mut plot = Plot::new("Authorization", "ns");
    let (turns, calls) = if options.quick { (20, 2_000) } else { (100, 10_000) };
    let mut most_allocations = 0;
    for policies in POLICIES {
        for (name, kind) in KINDS {
            let subject = Subject::new(policies, kind)?;
            let (nanos, allocations) = subject.cost(turns, calls);
            most_allocations = allocations.max(most_allocations);
            report.set(&["ns", name, &policies.to_string()], nanos);
            plot.bar(format!("{policies} policies, {name}"), nanos, true);
            let allocations = number(allocations as f64 / f64::from(calls));
            report.row([policies.to_string(), name.to_owned(), number(nanos), allocations]);
        }
    }
    report.set(&["allocations"], most_allocations as f64 / f64::from(calls));
    report.plot(plot);
    report.note("the last policy is the one that matches; the best of many turns");
    Ok(report)
}

/// What the rules of a policy look at.
#[derive(Clone, Copy)]
enum Kind {
    /// Each policy is for a prefix of its own, with a header and a principal; the path tells them apart.
    Prefixes,
    /// All are for one prefix, and a header tells them apart.
    Headers,
    /// All are for one prefix and one header, and the name of the caller tells them apart.
    Principals,
}

const KINDS: [(&str, Kind); 3] =
    [("prefixes", Kind::Prefixes), ("headers", Kind::Headers), ("principals", Kind::Principals)];

/// Rules, and an RPC that only the last of them is for.
struct Subject {
    authorizer: Authorizer,
    path: String,
    headers: HeaderMap,
    certificate: CallerCertificate,
}

impl Subject {
    fn new(policies: usize, kind: Kind) -> Result<Self> {
        let last = policies - 1;
        let place = |n: usize, differs: bool| if differs { n } else { last };
        let path = |n| format!("/shop.v1.Service{:05}/", place(n, matches!(kind, Kind::Prefixes)));
        let role = |n| format!("role-{:05}", place(n, matches!(kind, Kind::Headers)));
        let caller = |n| format!("spiffe://shop.example/ns/{:05}", place(n, matches!(kind, Kind::Principals)));
        let policy = |n| {
            let rules =
                [Rule::UrlPath(path_of(MatchPattern::Prefix(path(n)))), Rule::Header(header("x-role", role(n)))];
            let rules = rules.map(|rule| Permission { rule: Some(rule) }).to_vec();
            let permission = Permission { rule: Some(Rule::AndRules(permission::Set { rules })) };
            let principal_name = Some(text(MatchPattern::Exact(caller(n))));
            let authenticated = principal::Authenticated { principal_name };
            let principal = Principal { identifier: Some(Identifier::Authenticated(authenticated)) };
            let policy = Policy { permissions: vec![permission], principals: vec![principal], ..Default::default() };
            (format!("policy-{n:05}"), policy)
        };
        let rules = PbRbac { policies: (0..policies).map(policy).collect(), ..Default::default() };
        let filter = PbFilter { rules: Some(rules), ..Default::default() };
        let json = r#"{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "insecure"}]}]}"#;
        let bootstrap = Bootstrap::parse(json, Guards::default())?;
        let cx = ParseContext { bootstrap: &bootstrap, server: &bootstrap.servers[0] };
        let rbac = Rbac::decode(&filter.encode_to_vec(), cx)?.ok_or("the filter has no rules")?;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "tonic/0.14"),
            ("x-request-id", "0123456789abcdef"),
            ("x-role", &role(last)),
        ] {
            headers.append(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(value)?);
        }
        let names = SubjectAltNames { uri: vec![caller(last)], ..Default::default() };
        let certificate = CallerCertificate { names, subject: "CN=shop".into() };
        let subject = Self { authorizer: Authorizer::new(rbac), path: path(last) + "Method", headers, certificate };
        let verdict = subject.authorizer.decide(&subject.facts());
        if verdict.policy != Some(&format!("policy-{last:05}")) {
            return Err(format!("decided by {:?} and not by the last policy", verdict.policy).into());
        }
        Ok(subject)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            path: &self.path,
            authority: "shop.example",
            method: "POST",
            headers: &self.headers,
            local: ([10, 0, 0, 1], 443).into(),
            peer: ([10, 0, 0, 2], 40_000).into(),
            caller: Caller::Certified(&self.certificate),
        }
    }

    /// Nanoseconds of a decision and allocations of a turn: the least of all turns.
    fn cost(&self, turns: u32, calls: u32) -> (f64, u64) {
        let facts = self.facts();
        let mut nanos = Vec::new();
        let mut allocations = u64::MAX;
        for _ in 0..turns {
            let (before, start) = (alloc::calls(), Instant::now());
            for _ in 0..calls {
                std::hint::black_box(self.authorizer.decide(std::hint::black_box(&facts)));
            }
            let took = start.elapsed();
            allocations = allocations.min(alloc::calls() - before);
            nanos.push(took.as_nanos() as f64 / f64::from(calls));
        }
        (stats::least(nanos), allocations)
    }
}

fn path_of(pattern: MatchPattern) -> PathMatcher {
    PathMatcher { rule: Some(path_matcher::Rule::Path(text(pattern))) }
}

fn header(name: &str, value: String) -> HeaderMatcher {
    let exact = HeaderMatchSpecifier::StringMatch(text(MatchPattern::Exact(value)));
    HeaderMatcher { name: name.into(), header_match_specifier: Some(exact), ..Default::default() }
}

fn text(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn az11_a_decision_takes_no_memory() {
        for (name, kind) in KINDS {
            let subject = Subject::new(100, kind).unwrap();
            // Other tests run beside this one, and the counter is everybody's.
            let (_, allocations) = subject.cost(50, 20);
            assert_eq!(allocations, 0, "{name}");
        }
    }
}
