//! Tests of RBAC filters: what is understood, and that everything else is refused with its path.

use std::sync::LazyLock;

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use envoy_types::pb::envoy::config::rbac::v3::principal::Authenticated;
use envoy_types::pb::envoy::config::rbac::v3::rbac::AuditLoggingOptions;
use envoy_types::pb::envoy::config::rbac::v3::rbac::audit_logging_options::AuditLoggerConfig as PbLogger;
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Principal};
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::extensions::rbac::audit_loggers::stream::v3::StdoutAuditLog;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    FilterStateMatcher, MetadataMatcher, RegexMatcher, StringMatcher as PbStringMatcher,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, ListValue, Struct, UInt32Value, Value};
use envoy_types::util::pack_any;
use permission::Rule as P;
use principal::Identifier as I;

use super::super::super::matcher::HeaderMatch;
use super::super::super::route::fixture::{TestSource, any, paths};
use super::*;
use crate::bootstrap::AuditLoggerKind;

// === rules ===

#[test]
#[allow(deprecated)]
fn az1_every_permission_is_understood() {
    let table = [
        (P::Any(true), Rule::Always),
        (P::AndRules(all([P::Any(true)])), Rule::All(vec![Rule::Always])),
        (P::OrRules(all([P::Any(true)])), Rule::OneOf(vec![Rule::Always])),
        (P::NotRule(Box::new(permission(P::Any(true)))), Rule::Not(Box::new(Rule::Always))),
        (P::UrlPath(path_of(exact("/s/m"))), Rule::Path(text("/s/m"))),
        (P::DestinationIp(cidr("10.1.0.0", Some(16))), Rule::LocalIp(range("10.1.0.0", 16))),
        (P::DestinationPort(80), Rule::LocalPort { first: 80, last: 80 }),
        (P::DestinationPortRange(ports_of(80, 90)), Rule::LocalPort { first: 80, last: 89 }),
        (P::DestinationPortRange(ports_of(0, 65536)), Rule::LocalPort { first: 0, last: 65535 }),
        (P::Metadata(MetadataMatcher::default()), Rule::Never),
        (P::Metadata(MetadataMatcher { invert: true, ..Default::default() }), Rule::Always),
        (P::RequestedServerName(exact("a")), Rule::ServerName(text("a"))),
        (P::Header(header_of("a", exact("b"))), named_header(0, "a", "b")),
    ];
    for (pb, expected) in table {
        assert_eq!(permission_rule(pb.clone()), Ok(expected), "S-44: {pb:?}");
    }
}

#[test]
#[allow(deprecated)]
fn az1_every_principal_is_understood() {
    let net = || cidr("10.1.0.0", Some(16));
    let authenticated = |principal_name| I::Authenticated(Authenticated { principal_name });
    let table = [
        (I::Any(true), Rule::Always),
        (I::AndIds(any_of([I::Any(true)])), Rule::All(vec![Rule::Always])),
        (I::OrIds(any_of([I::Any(true)])), Rule::OneOf(vec![Rule::Always])),
        (I::NotId(Box::new(principal(I::Any(true)))), Rule::Not(Box::new(Rule::Always))),
        (authenticated(None), Rule::Authenticated(None)),
        (authenticated(Some(exact("a"))), Rule::Authenticated(Some(text("a")))),
        (I::SourceIp(net()), Rule::PeerIp(range("10.1.0.0", 16))),
        (I::DirectRemoteIp(net()), Rule::PeerIp(range("10.1.0.0", 16))),
        (I::RemoteIp(net()), Rule::PeerIp(range("10.1.0.0", 16))),
        (I::RemoteIp(cidr("10.1.0.0", None)), Rule::PeerIp(range("0.0.0.0", 0))),
        (I::Header(header_of("a", exact("b"))), named_header(0, "a", "b")),
        (I::UrlPath(path_of(exact("/s/m"))), Rule::Path(text("/s/m"))),
        (I::Metadata(MetadataMatcher::default()), Rule::Never),
        (I::Metadata(MetadataMatcher { invert: true, ..Default::default() }), Rule::Always),
    ];
    for (pb, expected) in table {
        assert_eq!(principal_rule(pb.clone()), Ok(expected), "S-45: {pb:?}");
    }
}

#[test]
fn az2_what_is_not_understood_is_refused() {
    let bad_regex = PbStringMatcher {
        match_pattern: Some(MatchPattern::SafeRegex(RegexMatcher { regex: "(".into(), ..Default::default() })),
        ..Default::default()
    };
    let permissions = [
        (None, ""),
        (Some(P::Any(false)), ".any"),
        (Some(P::Matcher(TypedExtensionConfig::default())), ".matcher"),
        (Some(P::UriTemplate(TypedExtensionConfig::default())), ".uri_template"),
        (Some(P::SourcedMetadata(Default::default())), ".sourced_metadata"),
        (Some(P::AndRules(Default::default())), ".and_rules.rules"),
        (Some(P::OrRules(Default::default())), ".or_rules.rules"),
        (Some(P::NotRule(Default::default())), ".not_rule"),
        (Some(P::UrlPath(Default::default())), ".url_path.path"),
        (Some(P::UrlPath(path_of(Default::default()))), ".url_path.path"),
        (Some(P::UrlPath(path_of(bad_regex.clone()))), ".url_path.path.safe_regex.regex"),
        (Some(P::DestinationIp(cidr("10.0.0.0", Some(33)))), ".destination_ip.prefix_len"),
        (Some(P::DestinationIp(cidr("ten", None))), ".destination_ip.address_prefix"),
        (Some(P::DestinationPort(65_536)), ".destination_port"),
        (Some(P::DestinationPortRange(ports_of(0, 0))), ".destination_port_range"),
        (Some(P::DestinationPortRange(ports_of(-1, 1))), ".destination_port_range"),
        (Some(P::DestinationPortRange(ports_of(9, 8))), ".destination_port_range"),
        (Some(P::DestinationPortRange(ports_of(1, 65_537))), ".destination_port_range"),
        (Some(P::DestinationPortRange(ports_of(i32::MIN, i32::MIN))), ".destination_port_range"),
        (Some(P::RequestedServerName(Default::default())), ".requested_server_name"),
        (Some(P::Header(PbHeaderMatcher { name: "a".into(), ..Default::default() })), ".header"),
        (Some(P::NotRule(Box::new(permission(P::Matcher(Default::default()))))), ".not_rule.matcher"),
        (Some(P::AndRules(all([P::Any(true), P::Any(false)]))), ".and_rules.rules[1].any"),
        (Some(P::OrRules(all([P::Any(true), P::DestinationPort(70_000)]))), ".or_rules.rules[1].destination_port"),
    ];
    for (rule, path) in permissions {
        let found = paths(parse(policy(vec![Permission { rule: rule.clone() }], vec![principal(I::Any(true))])));
        assert_eq!(found, [format!("rules.policies[\"p\"].permissions[0]{path}")], "{rule:?}");
    }
    let named = |name| I::Authenticated(Authenticated { principal_name: Some(name) });
    let principals = [
        (None, ""),
        (Some(I::Any(false)), ".any"),
        (Some(I::FilterState(FilterStateMatcher::default())), ".filter_state"),
        (Some(I::SourcedMetadata(Default::default())), ".sourced_metadata"),
        (Some(I::Custom(TypedExtensionConfig::default())), ".custom"),
        (Some(I::AndIds(Default::default())), ".and_ids.ids"),
        (Some(I::OrIds(Default::default())), ".or_ids.ids"),
        (Some(I::NotId(Default::default())), ".not_id"),
        (Some(I::DirectRemoteIp(cidr("", None))), ".direct_remote_ip.address_prefix"),
        (Some(I::RemoteIp(cidr("::", Some(129)))), ".remote_ip.prefix_len"),
        (Some(named(Default::default())), ".authenticated.principal_name"),
        (Some(named(bad_regex)), ".authenticated.principal_name.safe_regex.regex"),
        (Some(I::UrlPath(Default::default())), ".url_path.path"),
        (Some(I::NotId(Box::new(principal(I::FilterState(Default::default()))))), ".not_id.filter_state"),
        (Some(I::OrIds(any_of([I::Any(true), I::Custom(Default::default())]))), ".or_ids.ids[1].custom"),
    ];
    for (identifier, path) in principals {
        let pb = policy(vec![permission(P::Any(true))], vec![Principal { identifier: identifier.clone() }]);
        assert_eq!(paths(parse(pb)), [format!("rules.policies[\"p\"].principals[0]{path}")], "{identifier:?}");
    }
}

#[test]
fn az2_a_policy_names_somebody_and_something_and_has_no_expression() {
    let found = paths(parse(policy(vec![], vec![])));
    assert_eq!(found, ["rules.policies[\"p\"].permissions", "rules.policies[\"p\"].principals"]);
    let mut pb = policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))]);
    let inner = pb.rules.as_mut().unwrap().policies.get_mut("p").unwrap();
    inner.condition = Some(Default::default());
    inner.checked_condition = Some(Default::default());
    let at = |field| format!("rules.policies[\"p\"].{field}");
    assert_eq!(paths(parse(pb)), [at("condition"), at("checked_condition")], "S-43");
}

/// AZ-1
#[test]
fn az1_rules_are_nested_sixteen_deep_at_most() {
    let nots = |depth| (0..depth).fold(P::Any(true), |rule, _| P::NotRule(Box::new(permission(rule))));
    assert!(permission_rule(nots(16)).is_ok(), "S-43");
    assert_eq!(permission_rule(nots(17)).unwrap_err(), [format!(".{}", ["not_rule"; 17].join("."))], "S-43");
    let sets = |depth| (0..depth).fold(I::Any(true), |id, _| I::AndIds(any_of([id])));
    assert!(principal_rule(sets(16)).is_ok(), "S-43");
    assert_eq!(principal_rule(sets(17)).unwrap_err(), [format!(".{}", ["and_ids.ids[0]"; 17].join("."))], "S-43");
    // Deeper than protobuf itself allows.
    assert!(Rbac::decode(&policy(vec![permission(nots(500))], vec![]).encode_to_vec(), cx()).is_err());
}

// === headers ===

#[test]
fn az3_names_of_headers_are_lower_case_before_they_are_judged() {
    for name in ["grpc-status", "Grpc-Status", "GRPC-TIMEOUT", "gRPC-", "grpc-x-bin", ":scheme", ":Scheme", ":SCHEME"] {
        assert_eq!(permission_rule(P::Header(header_of(name, exact("a")))), Err(vec![".header.name".into()]), "{name}");
    }
    assert_eq!(permission_rule(P::Header(header_of("X-Role", exact("a")))), Ok(named_header(0, "x-role", "a")));
    // Only the beginning, and only with the hyphen.
    for name in ["grpc", "xgrpc-", "x-grpc-a", "scheme"] {
        assert!(permission_rule(P::Header(header_of(name, exact("a")))).is_ok(), "{name}");
    }
}

#[test]
fn az3_guards_hold_wherever_a_rule_is() {
    let header = || P::Header(header_of("Grpc-Status", exact("a")));
    let rule = P::AndRules(all([P::OrRules(all([P::NotRule(Box::new(permission(header())))]))]));
    assert_eq!(permission_rule(rule), Err(vec![".and_rules.rules[0].or_rules.rules[0].not_rule.header.name".into()]));
    let id = I::NotId(Box::new(principal(I::Header(header_of(":scheme", exact("http"))))));
    assert_eq!(principal_rule(id), Err(vec![".not_id.header.name".into()]));
}

#[test]
fn az2_a_name_that_no_header_has_is_refused() {
    for name in ["", " ", "a b", "a:", ":status", ":protocol", ":", "ä", "a\n", "a,b"] {
        assert_eq!(
            permission_rule(P::Header(header_of(name, exact("a")))),
            Err(vec![".header.name".into()]),
            "{name:?}"
        );
    }
}

#[test]
fn headers_come_from_where_they_are() {
    // S-47
    let source = |name: &str| match permission_rule(P::Header(header_of(name, exact("a")))) {
        Ok(Rule::Header(rule)) => rule.source,
        other => panic!("{name}: {other:?}"),
    };
    for (name, expected) in [
        (":method", HeaderSource::Method),
        (":Authority", HeaderSource::Authority),
        ("host", HeaderSource::Authority),
        ("Host", HeaderSource::Authority),
        (":path", HeaderSource::Path),
        ("TE", HeaderSource::Hidden),
        ("connection", HeaderSource::Hidden),
        ("Keep-Alive", HeaderSource::Hidden),
        ("proxy-connection", HeaderSource::Hidden),
        ("transfer-encoding", HeaderSource::Hidden),
        ("upgrade", HeaderSource::Hidden),
        ("trace-bin", HeaderSource::Named(0)),
        ("user-agent", HeaderSource::Named(0)),
        ("content-type", HeaderSource::Named(0)),
    ] {
        assert_eq!(source(name), expected, "{name}");
    }
}

#[test]
fn a_header_that_several_rules_look_at_is_listed_once() {
    let header = |name| permission(P::Header(header_of(name, exact("a"))));
    let pb =
        policy(vec![header("b"), header("A"), header("B")], vec![principal(I::Header(header_of("a", exact("a"))))]);
    let rbac = parse(pb).unwrap().unwrap();
    assert_eq!(rbac.headers, ["b", "a"]);
    assert_eq!(rbac.policies[0].permissions[2], named_header(0, "b", "a"));
    assert_eq!(rbac.policies[0].principals[0], named_header(1, "a", "a"));
}

#[test]
fn a_missing_header_may_count_as_empty_but_is_not_present() {
    let rule = |specifier| {
        let pb = PbHeaderMatcher {
            name: "a".into(),
            header_match_specifier: Some(specifier),
            treat_missing_header_as_empty: true,
            ..Default::default()
        };
        match permission_rule(P::Header(pb)) {
            Ok(Rule::Header(rule)) => rule.missing_is_empty,
            other => panic!("{other:?}"),
        }
    };
    assert!(rule(HeaderMatchSpecifier::StringMatch(exact(""))));
    assert!(!rule(HeaderMatchSpecifier::PresentMatch(true)));
}

// === filters ===

#[test]
fn az8_without_rules_or_with_the_action_log_nothing_is_refused() {
    assert_eq!(parse(pb_filter::Rbac::default()), Ok(None), "S-40");
    let mut log = policy(vec![Permission::default()], vec![]);
    log.rules.as_mut().unwrap().action = Action::Log as i32;
    assert_eq!(parse(log), Ok(None), "S-41: not even its faults count");
    let shadow = pb_filter::Rbac {
        shadow_rules: policy(vec![Permission::default()], vec![]).rules,
        shadow_matcher: Some(Default::default()),
        ..Default::default()
    };
    assert_eq!(parse(shadow), Ok(None), "S-40: shadow rules are ignored");
}

#[test]
fn s41_allow_and_deny_are_told_apart_and_other_actions_refused() {
    for (action, expected) in [(Action::Allow, RbacAction::Allow), (Action::Deny, RbacAction::Deny)] {
        let mut pb = policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))]);
        pb.rules.as_mut().unwrap().action = action as i32;
        assert_eq!(parse(pb).unwrap().unwrap().action, expected);
    }
    let mut pb = policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))]);
    pb.rules.as_mut().unwrap().action = 3;
    assert_eq!(paths(parse(pb)), ["rules.action"], "AZ-2");
}

#[test]
fn az2_a_tree_of_matchers_is_refused_and_not_passed_over() {
    let pb = pb_filter::Rbac { matcher: Some(Default::default()), ..Default::default() };
    assert_eq!(paths(parse(pb)), ["matcher"]);
}

#[test]
fn az7_policies_are_in_the_order_of_their_names() {
    let mut pb = policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))]);
    let policies = &mut pb.rules.as_mut().unwrap().policies;
    for name in ["z", "a", "B", "", "ä"] {
        policies.insert(name.into(), policies["p"].clone());
    }
    let rbac = parse(pb).unwrap().unwrap();
    let names: Vec<&str> = rbac.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["", "B", "a", "p", "z", "ä"], "S-42");
}

#[test]
fn no_policies_are_allowed_and_match_nothing() {
    let pb = pb_filter::Rbac { rules: Some(Default::default()), ..Default::default() };
    assert!(parse(pb).unwrap().unwrap().policies.is_empty());
}

#[test]
fn az10_an_override_replaces_the_whole_config_or_switches_it_off() {
    let parse_override = |pb: pb_filter::RbacPerRoute| {
        let mut faults = Faults::new();
        let pb = [("a".to_owned(), pack_any(pb))];
        let overrides = super::super::overrides(pb.iter().map(|(name, any)| (name, any)), cx(), &mut faults);
        faults.finish(overrides).map(|overrides| overrides["a"].clone())
    };
    let rbac = policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))]);
    let expected = parse(rbac.clone()).unwrap();
    let found = parse_override(pb_filter::RbacPerRoute { rbac: Some(rbac) });
    assert_eq!(found, Ok(FilterOverride::Rbac(expected)), "S-40");
    let found = parse_override(pb_filter::RbacPerRoute { rbac: None });
    assert_eq!(found, Ok(FilterOverride::Rbac(None)), "S-40");
    let bad = pb_filter::RbacPerRoute { rbac: Some(policy(vec![], vec![principal(I::Any(true))])) };
    assert_eq!(paths(parse_override(bad)), [r#"["a"].rbac.rules.policies["p"].permissions"#]);
}

// === audit ===

#[test]
fn s50_conditions_and_loggers_are_read() {
    let loggers = vec![
        logger(Some(pack_any(StdoutAuditLog {})), false),
        logger(Some(typed_struct("stdout_logger", None)), false),
        logger(Some(typed_struct("picky", Some(object([("level", Kind::NumberValue(3.0))])))), false),
        logger(Some(any("example.Unknown")), true),
        logger(Some(typed_struct("unknown", None)), true),
    ];
    for (number, condition) in [
        (0, AuditCondition::Never),
        (1, AuditCondition::OnDeny),
        (2, AuditCondition::OnAllow),
        (3, AuditCondition::OnDenyAndAllow),
    ] {
        let audit = audit_of(number, loggers.clone()).unwrap();
        assert_eq!(audit.condition, condition);
        let picky = AuditLoggerConfig::Application { name: "picky".into(), config: r#"{"level":3}"#.into() };
        assert_eq!(audit.loggers, [AuditLoggerConfig::Stdout, AuditLoggerConfig::Stdout, picky]);
        let told = |allowed| !audit.loggers_of(allowed).is_empty();
        assert_eq!((told(false), told(true)), (number & 1 != 0, number & 2 != 0), "{condition:?}");
    }
    assert_eq!(
        parse(policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))])).unwrap().unwrap().audit,
        AuditOptions::default()
    );
}

#[test]
fn s50_unknown_loggers_and_conditions_are_refused() {
    let faults = |condition, loggers| paths(audit_of(condition, loggers));
    let at = |path: &str| vec![format!("rules.audit_logging_options.{path}")];
    assert_eq!(faults(4, vec![]), at("audit_condition"));
    let typed_config = "logger_configs[0].audit_logger.typed_config";
    for unknown in [any("example.Unknown"), typed_struct("unknown", None), any("t/picky")] {
        assert_eq!(faults(1, vec![logger(Some(unknown), false)]), at(typed_config));
    }
    // These are wrong and not unknown.
    for (broken, path) in [
        (None, ""),
        (Some(Any { type_url: "nonsense".into(), value: vec![] }), ".type_url"),
        (Some(Any { value: vec![0xff], ..pack_any(StdoutAuditLog {}) }), ".value"),
        (Some(typed_struct("picky", None)), ""),
    ] {
        assert_eq!(faults(1, vec![logger(broken, true)]), at(&format!("{typed_config}{path}")));
    }
    let unset = PbLogger { audit_logger: None, is_optional: true };
    assert_eq!(faults(1, vec![unset]), at(typed_config));
    let refused = audit_of(1, vec![logger(Some(typed_struct("picky", None)), false)]).unwrap_err();
    assert!(
        refused.to_string().ends_with("the audit logger \"picky\" refuses its config: {} has no level"),
        "{refused}"
    );
}

#[test]
fn a_config_of_a_logger_is_json_in_a_steady_order() {
    let inner = object([("b", Kind::BoolValue(true)), ("a", Kind::NullValue(0)), ("c", Kind::NumberValue(0.5))]);
    let list = ListValue { values: vec![Value { kind: Some(Kind::StringValue("ä\"".into())) }, Value { kind: None }] };
    let fields = [
        ("level", Kind::NumberValue(-9_007_199_254_740_991.0)),
        ("inner", Kind::StructValue(inner)),
        ("list", Kind::ListValue(list)),
        ("nan", Kind::NumberValue(f64::NAN)),
        ("large", Kind::NumberValue(1e300)),
    ];
    let audit = audit_of(1, vec![logger(Some(typed_struct("picky", Some(object(fields)))), false)]).unwrap();
    let AuditLoggerConfig::Application { config, .. } = &audit.loggers[0] else { panic!("{audit:?}") };
    let expected = r#"{"inner":{"a":null,"b":true,"c":0.5},"large":1e+300,"level":-9007199254740991,"list":["ä\"",null],"nan":null}"#;
    assert_eq!(config, expected);
}

// === helpers ===

/// A bootstrap with an audit logger of the application, which wants a level.
static ORIGIN: LazyLock<TestSource> = LazyLock::new(|| {
    struct Picky;
    impl AuditLoggerKind for Picky {
        fn check(&self, config: &str) -> Result<(), String> {
            if config.contains("\"level\":") { Ok(()) } else { Err(format!("{config} has no level")) }
        }
    }
    let mut source = TestSource::new(false);
    source.bootstrap.audit_loggers.insert("picky".into(), Arc::new(Picky));
    source
});

fn cx() -> ParseContext<'static> {
    ORIGIN.context()
}

fn parse(pb: pb_filter::Rbac) -> Result<Option<Arc<Rbac>>, Invalid> {
    Rbac::decode(&pb.encode_to_vec(), cx())
}

fn policy(permissions: Vec<Permission>, principals: Vec<Principal>) -> pb_filter::Rbac {
    let policy = pb::Policy { permissions, principals, ..Default::default() };
    let rules = pb::Rbac { policies: [("p".to_owned(), policy)].into(), ..Default::default() };
    pb_filter::Rbac { rules: Some(rules), ..Default::default() }
}

/// The rule, or the paths of its faults below itself.
fn permission_rule(rule: P) -> Result<Rule, Vec<String>> {
    let rbac = parse(policy(vec![permission(rule)], vec![principal(I::Any(true))]));
    rule_of(rbac, "rules.policies[\"p\"].permissions[0]", |policy| policy.permissions[0].clone())
}

fn principal_rule(identifier: I) -> Result<Rule, Vec<String>> {
    let rbac = parse(policy(vec![permission(P::Any(true))], vec![principal(identifier)]));
    rule_of(rbac, "rules.policies[\"p\"].principals[0]", |policy| policy.principals[0].clone())
}

fn rule_of(
    rbac: Result<Option<Arc<Rbac>>, Invalid>,
    place: &str,
    rule: impl Fn(&Policy) -> Rule,
) -> Result<Rule, Vec<String>> {
    match rbac {
        Ok(rbac) => Ok(rule(&rbac.unwrap().policies[0])),
        Err(invalid) => {
            let below = |path: String| path.strip_prefix(place).unwrap_or_else(|| panic!("{path}")).to_owned();
            Err(paths::<()>(Err(invalid)).into_iter().map(below).collect())
        }
    }
}

fn permission(rule: P) -> Permission {
    Permission { rule: Some(rule) }
}

fn principal(identifier: I) -> Principal {
    Principal { identifier: Some(identifier) }
}

fn all<const N: usize>(rules: [P; N]) -> permission::Set {
    permission::Set { rules: rules.into_iter().map(permission).collect() }
}

fn any_of<const N: usize>(ids: [I; N]) -> principal::Set {
    principal::Set { ids: ids.into_iter().map(principal).collect() }
}

fn exact(value: &str) -> PbStringMatcher {
    PbStringMatcher { match_pattern: Some(MatchPattern::Exact(value.into())), ..Default::default() }
}

fn text(value: &str) -> StringMatcher {
    StringMatcher::Exact { value: value.into(), ignore_case: false }
}

fn path_of(matcher: PbStringMatcher) -> PathMatcher {
    PathMatcher { rule: Some(path_matcher::Rule::Path(matcher)) }
}

fn header_of(name: &str, matcher: PbStringMatcher) -> PbHeaderMatcher {
    let header_match_specifier = Some(HeaderMatchSpecifier::StringMatch(matcher));
    PbHeaderMatcher { name: name.into(), header_match_specifier, ..Default::default() }
}

fn named_header(place: usize, name: &str, value: &str) -> Rule {
    let matcher = HeaderMatcher { name: name.into(), kind: HeaderMatch::String(text(value)), invert: false };
    Rule::Header(HeaderRule { source: HeaderSource::Named(place), matcher, missing_is_empty: false })
}

fn cidr(address: &str, len: Option<u32>) -> CidrRange {
    CidrRange { address_prefix: address.into(), prefix_len: len.map(|value| UInt32Value { value }) }
}

fn range(address: &str, len: u8) -> Cidr {
    Cidr::new(address.parse().unwrap(), len)
}

fn ports_of(start: i32, end: i32) -> Int32Range {
    Int32Range { start, end }
}

fn audit_of(audit_condition: i32, logger_configs: Vec<PbLogger>) -> Result<AuditOptions, Invalid> {
    let mut pb = policy(vec![permission(P::Any(true))], vec![principal(I::Any(true))]);
    let options = AuditLoggingOptions { audit_condition, logger_configs };
    pb.rules.as_mut().unwrap().audit_logging_options = Some(options);
    parse(pb).map(|rbac| rbac.unwrap().audit.clone())
}

fn logger(typed_config: Option<Any>, is_optional: bool) -> PbLogger {
    PbLogger { audit_logger: Some(TypedExtensionConfig { name: "l".into(), typed_config }), is_optional }
}

fn typed_struct(name: &str, value: Option<Struct>) -> Any {
    #[derive(Clone, PartialEq, Message)]
    struct TypedStruct {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(message, optional, tag = "2")]
        value: Option<Struct>,
    }
    let inner = TypedStruct { type_url: format!("grpc.authz.audit_logging/{name}"), value };
    Any { value: inner.encode_to_vec(), ..any("xds.type.v3.TypedStruct") }
}

fn object<const N: usize>(fields: [(&str, Kind); N]) -> Struct {
    Struct { fields: fields.into_iter().map(|(key, kind)| (key.to_owned(), Value { kind: Some(kind) })).collect() }
}
