//! Tests of decisions, rule by rule. The reference that all of it is compared with is in `mainstay-sim`.

use http::HeaderValue;
use mainstay_xds::resource::cidr::Cidr;
use mainstay_xds::resource::filter::{AuditCondition, AuditOptions, FilterOverride};
use mainstay_xds::resource::matcher::{FullRegex, HeaderMatch, HeaderMatcher, StringMatcher};

use super::*;

// === each kind of rule, and its contrary ===

#[test]
fn az1_each_rule_matches_what_it_says_and_not_the_contrary() {
    let facts = Sample::default();
    let table = [
        (Rule::Always, true),
        (Rule::Never, false),
        (Rule::All(vec![Rule::Always, Rule::Always]), true),
        (Rule::All(vec![Rule::Always, Rule::Never]), false),
        (Rule::OneOf(vec![Rule::Never, Rule::Always]), true),
        (Rule::OneOf(vec![Rule::Never, Rule::Never]), false),
        (Rule::Path(exact("/shop.Cart/Add")), true),
        (Rule::Path(prefix("/shop.Cart/")), true),
        (Rule::Path(exact("/shop.cart/add")), false),
        (Rule::Path(exact("shop.Cart/Add")), false),
        (Rule::LocalIp(range("10.0.0.0/8")), true),
        (Rule::LocalIp(range("11.0.0.0/8")), false),
        (Rule::LocalIp(range("::/0")), false),
        (Rule::LocalPort { first: 443, last: 443 }, true),
        (Rule::LocalPort { first: 442, last: 442 }, false),
        (Rule::LocalPort { first: 1, last: 443 }, true),
        (Rule::LocalPort { first: 444, last: 65_535 }, false),
        (Rule::ServerName(exact("")), true),
        (Rule::ServerName(prefix("")), true),
        (Rule::ServerName(regex(".*")), true),
        (Rule::ServerName(regex(".+")), false),
        (Rule::ServerName(exact("shop.example")), false),
        (Rule::PeerIp(range("192.0.2.7/32")), true),
        (Rule::PeerIp(range("192.0.2.8/32")), false),
        (Rule::PeerIp(range("0.0.0.0/0")), true),
        (header(HeaderSource::Method, exact("POST")), true),
        (header(HeaderSource::Method, exact("GET")), false),
        (header(HeaderSource::Authority, exact("shop.example:443")), true),
        (header(HeaderSource::Authority, exact("shop.example")), false),
        (header(HeaderSource::Path, exact("/shop.Cart/Add?x=1")), true),
        (header(HeaderSource::Hidden, prefix("")), false),
        (header(ROLE, exact("admin")), true),
        (header(ROLE, exact("Admin")), false),
        (header(MISSING, prefix("")), false),
        (Rule::Authenticated(None), false),
        (Rule::Authenticated(Some(prefix(""))), false),
    ];
    for (rule, expected) in table {
        assert_eq!(facts.matches(&rule), expected, "{rule:?}");
        let not = Rule::Not(Box::new(rule.clone()));
        assert_eq!(facts.matches(&not), !expected, "S-49: not {rule:?}");
        let twice = Rule::Not(Box::new(not));
        assert_eq!(facts.matches(&twice), expected, "S-49: not not {rule:?}");
    }
}

#[test]
fn az1_rules_as_deep_as_they_may_be_nested_are_looked_at() {
    for (depth, expected) in [(15, false), (16, true)] {
        let rule = (0..depth).fold(Rule::Always, |rule, _| Rule::Not(Box::new(rule)));
        assert_eq!(Sample::default().matches(&rule), expected);
    }
}

#[test]
fn az4_the_path_is_compared_without_its_query_and_as_it_came() {
    let table = [
        ("/s/m", "/s/m", true),
        ("/s/m?a=b", "/s/m", true),
        ("/s/m?", "/s/m", true),
        ("/s/m#f", "/s/m", true),
        ("/s/m?a#b?c", "/s/m", true),
        ("/s/m/", "/s/m", false),
        ("//s/m", "/s/m", false),
        ("/s/%6d", "/s/m", false),
        ("/s/./m", "/s/m", false),
        ("/S/m", "/s/m", false),
    ];
    for (path, rule, expected) in table {
        let facts = Sample { path, ..Default::default() };
        assert_eq!(facts.matches(&Rule::Path(exact(rule))), expected, "{path}");
        assert!(facts.matches(&header(HeaderSource::Path, exact(path))), "{path}: all of it is in the header");
    }
}

#[test]
fn az4_patterns_match_the_whole_value() {
    let facts = |role| Sample { headers: vec![("x-role", role)], ..Default::default() };
    let rule = header(ROLE, regex("header-regex-a+"));
    for (role, expected) in [
        ("header-regex-a", true),
        ("header-regex-aa", true),
        ("header-regex-", false),
        ("header-regex-ab", false),
        ("aheader-regex-a", false),
        ("header-regex-a,header-regex-a", false),
    ] {
        assert_eq!(facts(role).matches(&rule), expected, "{role}");
    }
    let principal = Rule::Authenticated(Some(regex("match-principal")));
    let named = |name: &str| CallerCertificate { subject: name.into(), ..Default::default() };
    for (name, expected) in [("match-principal", true), ("never-match-principal", false), ("match-principal2", false)] {
        assert_eq!(Sample::default().matches_as(Caller::Certified(&named(name)), &principal), expected, "{name}");
    }
}

// === headers ===

#[test]
fn s47_values_of_a_repeated_header_are_joined() {
    let facts = Sample { headers: vec![("x-role", "a"), ("x-other", "-"), ("x-role", "b")], ..Default::default() };
    assert!(facts.matches(&header(ROLE, exact("a,b"))));
    assert!(!facts.matches(&header(ROLE, exact("a"))));
    assert!(!facts.matches(&header(ROLE, exact("b"))));
    assert!(!facts.matches(&header(ROLE, exact("a, b"))));
    assert!(facts.matches(&header(ROLE, regex("a,b"))));
    let one = Sample { headers: vec![("x-role", "a,b")], ..Default::default() };
    assert!(one.matches(&header(ROLE, exact("a,b"))));
    // Two numbers are no number.
    let range = HeaderMatch::Range { start: 0, end: 10 };
    let numbers = Sample { headers: vec![("x-role", "5"), ("x-role", "6")], ..Default::default() };
    assert!(!numbers.matches(&header_with(ROLE, range.clone(), false)));
    assert!(Sample { headers: vec![("x-role", "5")], ..Default::default() }.matches(&header_with(ROLE, range, false)));
}

#[test]
fn s47_binary_headers_are_seen_as_they_came() {
    let facts = Sample { headers: vec![("trace-bin", "AAECAw")], ..Default::default() };
    assert!(facts.matches(&header(TRACE, exact("AAECAw"))));
    assert!(!facts.matches(&header(TRACE, exact("\0\u{1}\u{2}\u{3}"))));
    assert!(facts.matches(&header_with(TRACE, HeaderMatch::Present(true), false)));
}

#[test]
fn s47_a_header_that_is_not_there_matches_only_by_its_absence() {
    let facts = Sample::default();
    for kind in [
        HeaderMatch::String(exact("")),
        HeaderMatch::String(regex(".*")),
        HeaderMatch::Range { start: i64::MIN, end: i64::MAX },
        HeaderMatch::Present(true),
    ] {
        for invert in [false, true] {
            let expected = invert && kind == HeaderMatch::Present(true);
            for source in [MISSING, HeaderSource::Hidden] {
                assert_eq!(facts.matches(&header_with(source, kind.clone(), invert)), expected, "{kind:?} {invert}");
            }
        }
    }
    assert!(facts.matches(&header_with(MISSING, HeaderMatch::Present(false), false)));
    assert!(!facts.matches(&header_with(ROLE, HeaderMatch::Present(false), false)));
    assert!(!facts.matches(&header_with(ROLE, HeaderMatch::Present(true), true)));
}

#[test]
fn az3_a_missing_header_counts_as_empty_where_a_rule_says_so() {
    let rule = |matcher, invert| match header_with(MISSING, HeaderMatch::String(matcher), invert) {
        Rule::Header(rule) => Rule::Header(HeaderRule { missing_is_empty: true, ..rule }),
        other => other,
    };
    assert!(Sample::default().matches(&rule(exact(""), false)));
    assert!(!Sample::default().matches(&rule(exact(""), true)));
    assert!(!Sample::default().matches(&rule(exact("a"), false)));
    assert!(Sample::default().matches(&rule(exact("a"), true)));
}

#[test]
fn values_that_are_not_text_hide_nothing() {
    let facts = Sample { raw: Some(("x-evil", b"evil\xff")), ..Default::default() };
    for (matcher, expected) in [
        (prefix("evil"), true),
        (StringMatcher::Contains { value: "vil".into(), ignore_case: false }, true),
        (StringMatcher::Contains { value: "evil".into(), ignore_case: true }, true),
        (StringMatcher::Suffix { value: "l".into(), ignore_case: false }, false),
        (exact("evil"), false),
        (regex("evil.*"), true),
        (regex("evil"), false),
    ] {
        assert_eq!(facts.matches(&header(EVIL, matcher.clone())), expected, "{matcher:?}");
    }
}

#[test]
fn more_headers_than_are_kept_are_seen_as_well() {
    let names: Vec<String> = (0..2 * KEPT).map(|n| format!("x-{n}")).collect();
    let mut headers = HeaderMap::new();
    for name in &names {
        headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(name).unwrap());
        headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("z"));
    }
    let rules = names.iter().enumerate();
    let rules = rules.map(|(n, name)| header(HeaderSource::Named(n), exact(&format!("{name},z")))).collect();
    let policy = Policy { name: "p".into(), permissions: vec![Rule::All(rules)], principals: vec![Rule::Always] };
    let rbac = Rbac { action: RbacAction::Allow, policies: vec![policy], headers: names, audit: Default::default() };
    let sample = Sample::default();
    let facts = sample.facts(&headers, Caller::Plaintext);
    assert!(Authorizer::new(Arc::new(rbac)).decide(&facts).allowed);
}

// === callers ===

#[test]
fn az5_only_the_first_source_of_names_counts() {
    let certificate = |uri: &[&str], dns: &[&str], subject: &str| {
        let texts = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let names = SubjectAltNames { uri: texts(uri), dns: texts(dns), ..Default::default() };
        CallerCertificate { names, subject: subject.into() }
    };
    let all = certificate(&["spiffe://a/b", "spiffe://a/c"], &["a.example"], "CN=a");
    let dns = certificate(&[], &["a.example", "b.example"], "CN=a");
    let subject = certificate(&[], &[], "CN=a,O=b");
    let empty = certificate(&[], &[], "");
    let table = [
        (Caller::Certified(&all), "spiffe://a/b", true),
        (Caller::Certified(&all), "spiffe://a/c", true),
        (Caller::Certified(&all), "a.example", false),
        (Caller::Certified(&all), "CN=a", false),
        (Caller::Certified(&all), "", false),
        (Caller::Certified(&dns), "b.example", true),
        (Caller::Certified(&dns), "CN=a", false),
        (Caller::Certified(&subject), "CN=a,O=b", true),
        (Caller::Certified(&subject), "", false),
        (Caller::Certified(&empty), "", true),
        (Caller::Anonymous, "", true),
        (Caller::Anonymous, "a.example", false),
        (Caller::Plaintext, "", false),
    ];
    for (caller, name, expected) in table {
        let rule = Rule::Authenticated(Some(exact(name)));
        assert_eq!(Sample::default().matches_as(caller, &rule), expected, "S-46: {caller:?} {name:?}");
    }
    let anybody = Rule::Authenticated(None);
    assert!(Sample::default().matches_as(Caller::Certified(&empty), &anybody));
    assert!(Sample::default().matches_as(Caller::Anonymous, &anybody), "S-46: TLS is enough");
    assert!(!Sample::default().matches_as(Caller::Plaintext, &anybody), "S-46");
    let principals = [&all, &dns, &subject].map(|certificate| Caller::Certified(certificate).principal());
    assert_eq!(principals, ["spiffe://a/b", "a.example", "CN=a,O=b"]);
    assert_eq!([Caller::Anonymous, Caller::Plaintext].map(Caller::principal), ["", ""]);
}

#[test]
fn az5_other_names_of_a_certificate_are_not_looked_at() {
    let names =
        SubjectAltNames { email: vec!["a@b".into()], ip: vec!["10.0.0.1".parse().unwrap()], ..Default::default() };
    let certificate = CallerCertificate { names, subject: "CN=a".into() };
    for (name, expected) in [("a@b", false), ("10.0.0.1", false), ("CN=a", true)] {
        let rule = Rule::Authenticated(Some(exact(name)));
        assert_eq!(Sample::default().matches_as(Caller::Certified(&certificate), &rule), expected, "{name}");
    }
}

#[test]
fn az6_no_header_says_where_an_rpc_comes_from() {
    let forwarded = vec![("x-forwarded-for", "10.9.9.9"), ("forwarded", "for=10.9.9.9"), ("x-real-ip", "10.9.9.9")];
    let facts = Sample { headers: forwarded, ..Default::default() };
    assert!(!facts.matches(&Rule::PeerIp(range("10.9.9.9/32"))));
    assert!(facts.matches(&Rule::PeerIp(range("192.0.2.7/32"))));
}

#[test]
fn az4_addresses_are_those_of_their_own_family() {
    let facts = Sample { peer: "[::ffff:192.0.2.7]:1".parse().unwrap(), ..Sample::default() };
    assert!(facts.matches(&Rule::PeerIp(range("192.0.2.0/24"))));
    assert!(!facts.matches(&Rule::PeerIp(range("::/0"))));
}

// === policies and filters ===

#[test]
fn az7_the_first_policy_by_name_is_named() {
    let policies = |matching: &[&str]| {
        let policy = |name: &str| Policy {
            name: name.into(),
            permissions: vec![if matching.contains(&name) { Rule::Always } else { Rule::Never }],
            principals: vec![Rule::Always],
        };
        ["a", "b", "c"].map(policy).to_vec()
    };
    let verdict = |action, matching: &[&str]| {
        let rbac = Rbac { action, policies: policies(matching), headers: vec![], audit: Default::default() };
        let authorizer = Authorizer::new(Arc::new(rbac));
        let headers = HeaderMap::new();
        let sample = Sample::default();
        let Verdict { allowed, policy } = authorizer.decide(&sample.facts(&headers, Caller::Plaintext));
        (allowed, policy.map(str::to_owned))
    };
    assert_eq!(verdict(RbacAction::Allow, &["b", "c"]), (true, Some("b".into())), "S-42");
    assert_eq!(verdict(RbacAction::Deny, &["b", "c"]), (false, Some("b".into())), "S-42");
    assert_eq!(verdict(RbacAction::Allow, &[]), (false, None), "S-41");
    assert_eq!(verdict(RbacAction::Deny, &[]), (true, None), "S-41");
}

#[test]
fn s42_a_policy_needs_a_permission_and_a_principal() {
    for (permissions, principals, expected) in [
        (vec![Rule::Never, Rule::Always], vec![Rule::Never, Rule::Always], true),
        (vec![Rule::Never], vec![Rule::Always], false),
        (vec![Rule::Always], vec![Rule::Never], false),
    ] {
        let rbac = rbac(RbacAction::Allow, permissions, principals, AuditCondition::Never);
        assert_eq!(decide(&[("a", Some(rbac))], &[]).0, expected);
    }
}

#[test]
fn az7_each_filter_decides_and_tells_until_one_refuses() {
    let filter = |action, rule| Some(rbac(action, vec![rule], vec![Rule::Always], AuditCondition::OnDenyAndAllow));
    let allow = || filter(RbacAction::Allow, Rule::Always);
    let deny = || filter(RbacAction::Deny, Rule::Always);
    let deny_nobody = || filter(RbacAction::Deny, Rule::Never);
    let (allowed, told) = decide(&[("one", deny_nobody()), ("two", allow())], &[]);
    assert_eq!((allowed, told), (true, vec!["one - allowed".to_owned(), "two p allowed".to_owned()]));
    let (allowed, told) = decide(&[("one", allow()), ("two", deny()), ("three", allow())], &[]);
    assert_eq!((allowed, told), (false, vec!["one p allowed".to_owned(), "two p denied".to_owned()]));
    let (allowed, told) = decide(&[("one", filter(RbacAction::Allow, Rule::Never))], &[]);
    assert_eq!((allowed, told), (false, vec!["one - denied".to_owned()]));
}

#[test]
fn s50_what_is_told_depends_on_the_decision_and_not_on_the_action() {
    let table = [
        (AuditCondition::Never, [false, false]),
        (AuditCondition::OnDeny, [true, false]),
        (AuditCondition::OnAllow, [false, true]),
        (AuditCondition::OnDenyAndAllow, [true, true]),
    ];
    for (condition, [when_denied, when_allowed]) in table {
        for (action, rule, allowed) in [
            (RbacAction::Allow, Rule::Always, true),
            (RbacAction::Allow, Rule::Never, false),
            (RbacAction::Deny, Rule::Always, false),
            (RbacAction::Deny, Rule::Never, true),
        ] {
            let rbac = rbac(action, vec![rule], vec![Rule::Always], condition);
            let (decided, told) = decide(&[("a", Some(rbac))], &[]);
            assert_eq!(decided, allowed);
            assert_eq!(told.len() == 1, if allowed { when_allowed } else { when_denied }, "{condition:?} {action:?}");
        }
    }
}

#[test]
fn az10_overrides_replace_rules_and_switch_filters_off_and_on() {
    let nobody = || Some(rbac(RbacAction::Allow, vec![Rule::Never], vec![Rule::Always], AuditCondition::Never));
    let deny = || Some(rbac(RbacAction::Deny, vec![Rule::Always], vec![Rule::Always], AuditCondition::Never));
    let overridden = |with| FilterOverrides::from([("a".to_owned(), with)]);
    let off = overridden(FilterOverride::Rbac(None));
    let disabled = overridden(FilterOverride::Disabled);
    let other = overridden(FilterOverride::StatefulSession(None));
    let anybody = Some(rbac(RbacAction::Allow, vec![Rule::Always], vec![Rule::Always], AuditCondition::Never));
    let anybody = overridden(FilterOverride::Rbac(anybody));
    let none = FilterOverrides::new();
    assert!(!decide(&[("a", nobody())], &[&none, &none]).0);
    assert!(decide(&[("a", nobody())], &[&off]).0, "S-40");
    assert!(decide(&[("a", nobody())], &[&disabled]).0, "R-24");
    assert!(decide(&[("a", nobody())], &[&none, &anybody]).0, "S-40");
    assert!(!decide(&[("a", nobody())], &[&other, &anybody]).0, "the most specific one is for another kind");
    assert!(!decide(&[("b", nobody())], &[&off]).0, "of another filter");
    assert!(!decide(&[("a", nobody()), ("b", deny())], &[&anybody]).0, "only one of two");
    assert!(decide(&[("a", None)], &[]).0, "S-40: no rules");
    let chain = [HttpFilter { name: "a".into(), config: FilterConfig::Rbac(deny()), disabled: true }];
    assert!(Authorization::new(&chain, &[]).is_empty(), "R-24");
    assert!(!Authorization::new(&chain, &[&anybody]).is_empty(), "R-24: an override switches it on");
}

#[test]
fn a59_what_is_told_names_method_principal_filter_and_policy() {
    let rbac = rbac(RbacAction::Deny, vec![Rule::Always], vec![Rule::Always], AuditCondition::OnDeny);
    let chain = [HttpFilter { name: "authz".into(), config: FilterConfig::Rbac(Some(rbac)), disabled: false }];
    let names = SubjectAltNames { uri: vec!["spiffe://a/b".into()], ..Default::default() };
    let certificate = CallerCertificate { names, subject: "CN=a".into() };
    let (sample, headers) = (Sample::default(), HeaderMap::new());
    let mut told = 0;
    let allowed = Authorization::new(&chain, &[]).allows(
        &sample.facts(&headers, Caller::Certified(&certificate)),
        &mut |record| {
            told += 1;
            let verdict = Verdict { allowed: false, policy: Some("p") };
            let loggers = &[AuditLoggerConfig::Stdout][..];
            let (path, principal) = ("/shop.Cart/Add", "spiffe://a/b");
            assert_eq!(*record, AuditRecord { path, principal, filter: "authz", verdict, loggers });
        },
    );
    assert_eq!((allowed, told), (false, 1));
}

// === helpers ===

const ROLE: HeaderSource = HeaderSource::Named(0);
const TRACE: HeaderSource = HeaderSource::Named(1);
const MISSING: HeaderSource = HeaderSource::Named(2);
const EVIL: HeaderSource = HeaderSource::Named(3);

/// An RPC of a test.
struct Sample {
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    raw: Option<(&'static str, &'static [u8])>,
    peer: SocketAddr,
}

impl Default for Sample {
    fn default() -> Self {
        let headers = vec![("x-role", "admin")];
        Self { path: "/shop.Cart/Add?x=1", headers, raw: None, peer: "192.0.2.7:40000".parse().unwrap() }
    }
}

impl Sample {
    fn facts<'a>(&'a self, headers: &'a HeaderMap, caller: Caller<'a>) -> Facts<'a> {
        Facts {
            path: self.path,
            authority: "shop.example:443",
            method: "POST",
            headers,
            local: "10.1.2.3:443".parse().unwrap(),
            peer: self.peer,
            caller,
        }
    }

    fn matches(&self, rule: &Rule) -> bool {
        self.matches_as(Caller::Plaintext, rule)
    }

    /// As a permission and as a principal, which must be the same.
    fn matches_as(&self, caller: Caller<'_>, rule: &Rule) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(*name, HeaderValue::from_static(value));
        }
        if let Some((name, value)) = self.raw {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let [permission, principal] = [(rule, &Rule::Always), (&Rule::Always, rule)].map(|(permission, principal)| {
            let permissions = vec![permission.clone()];
            let rbac = rbac(RbacAction::Allow, permissions, vec![principal.clone()], AuditCondition::Never);
            Authorizer::new(rbac).decide(&self.facts(&headers, caller)).allowed
        });
        assert_eq!(permission, principal, "{rule:?}");
        permission
    }
}

fn rbac(action: RbacAction, permissions: Vec<Rule>, principals: Vec<Rule>, condition: AuditCondition) -> Arc<Rbac> {
    let policy = Policy { name: "p".into(), permissions, principals };
    let headers = ["x-role", "trace-bin", "x-missing", "x-evil"].map(str::to_owned).to_vec();
    let audit = AuditOptions { condition, loggers: vec![AuditLoggerConfig::Stdout] };
    Arc::new(Rbac { action, policies: vec![policy], headers, audit })
}

/// Whether an RPC is let in by these filters, and what was told.
fn decide(filters: &[(&str, Option<Arc<Rbac>>)], overrides: &[&FilterOverrides]) -> (bool, Vec<String>) {
    let filter = |(name, rbac): &(&str, Option<Arc<Rbac>>)| HttpFilter {
        name: (*name).to_owned(),
        config: FilterConfig::Rbac(rbac.clone()),
        disabled: false,
    };
    let mut chain: Vec<HttpFilter> = filters.iter().map(filter).collect();
    chain.push(HttpFilter { name: "router".into(), config: FilterConfig::Router, disabled: false });
    let (sample, headers) = (Sample::default(), HeaderMap::new());
    let mut told = Vec::new();
    let allowed =
        Authorization::new(&chain, overrides).allows(&sample.facts(&headers, Caller::Plaintext), &mut |record| {
            let verdict = if record.verdict.allowed { "allowed" } else { "denied" };
            told.push(format!("{} {} {verdict}", record.filter, record.verdict.policy.unwrap_or("-")));
        });
    (allowed, told)
}

fn header(source: HeaderSource, matcher: StringMatcher) -> Rule {
    header_with(source, HeaderMatch::String(matcher), false)
}

fn header_with(source: HeaderSource, kind: HeaderMatch, invert: bool) -> Rule {
    let matcher = HeaderMatcher { name: "of the place".into(), kind, invert };
    Rule::Header(HeaderRule { source, matcher, missing_is_empty: false })
}

fn exact(value: &str) -> StringMatcher {
    StringMatcher::Exact { value: value.into(), ignore_case: false }
}

fn prefix(value: &str) -> StringMatcher {
    StringMatcher::Prefix { value: value.into(), ignore_case: false }
}

fn regex(pattern: &str) -> StringMatcher {
    StringMatcher::Regex(FullRegex::new(pattern).unwrap())
}

fn range(text: &str) -> Cidr {
    let (address, len) = text.split_once('/').unwrap();
    Cidr::new(address.parse().unwrap(), len.parse().unwrap())
}
