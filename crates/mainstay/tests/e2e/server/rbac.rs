//! Servers that refuse RPCs as the control plane says (A41), and tell of it (A59).
//!
//! The rules and the calls of the first tests are those of gRPC's official authorization suite.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::rbac::v3::permission::{self, Rule};
use envoy_types::pb::envoy::config::rbac::v3::principal::{self, Identifier};
use envoy_types::pb::envoy::config::rbac::v3::rbac::audit_logging_options::{AuditCondition, AuditLoggerConfig};
use envoy_types::pb::envoy::config::rbac::v3::rbac::{Action, AuditLoggingOptions};
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::{NonForwardingAction, Route, RouteMatch, route, route_match};
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::{Rbac as Filter, RbacPerRoute};
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{PathMatcher, RegexMatcher, StringMatcher, path_matcher};
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use envoy_types::util::pack_any;
use mainstay::ServerBuilder;
use mainstay::audit::{AuditLogger, AuditLoggerFactory, AuditRecord};
use mainstay_control_plane::{RequestKind, TypeUrl, resources};
use mainstay_testservice::proto::{Empty, SimpleRequest};
use prost::Message;
use tonic::{Code, Request, Status};

use super::security::{Pki, Wanted};
use super::stage::{PlainClient, Stage, listener};
use crate::common::in_time;

// === the official suite ===

#[tokio::test]
async fn plaintext_allow() {
    let stage = filtered(|stage| official(Action::Allow, stage.address)).await;
    let mut caller = stage.caller().await;
    for (header, expected) in [
        (Some("host-wildcard"), Code::Ok),
        (Some("no-such-rule"), Code::PermissionDenied),
        (None, Code::PermissionDenied),
        (Some("header-regex-a"), Code::Ok),
        (Some("header-regex-aa"), Code::Ok),
        (Some("header-regex-"), Code::PermissionDenied),
        (Some("header-regex-ab"), Code::PermissionDenied),
        (Some("aheader-regex-a"), Code::PermissionDenied),
        (Some("host-match1"), Code::Ok),
        (Some("host-match2"), Code::Ok),
        (Some("never-match-host"), Code::PermissionDenied),
        (Some("never-match-port"), Code::PermissionDenied),
        (Some("principal-present"), Code::PermissionDenied),
    ] {
        assert_eq!(code(&mut caller, header).await, expected, "{header:?}");
    }
    assert_eq!(stage.seen.requests(), 5, "AZ-8: what is refused reaches no handler");
}

#[tokio::test]
async fn plaintext_deny() {
    let stage = filtered(|stage| official(Action::Deny, stage.address)).await;
    let mut caller = stage.caller().await;
    assert_eq!(code(&mut caller, Some("host-wildcard")).await, Code::PermissionDenied);
    assert_eq!(code(&mut caller, None).await, Code::Ok);
}

#[tokio::test]
async fn tls_allow() {
    let (pki, stage) = secured(Wanted::Nothing).await;
    let mut caller = pki.plain(&stage, None).await.unwrap();
    for (header, expected) in [
        (Some("host-wildcard"), Code::Ok),
        (None, Code::PermissionDenied),
        (Some("principal-present"), Code::PermissionDenied),
    ] {
        assert_eq!(code(&mut caller, header).await, expected, "{header:?}");
    }
}

#[tokio::test]
async fn mtls_allow() {
    let (pki, stage) = secured(Wanted::Required).await;
    let issued = pki.ca.issue_to_workload(&[CLIENT]);
    let mut caller = pki.plain(&stage, Some(&issued)).await.unwrap();
    for (header, expected) in [
        (Some("host-wildcard"), Code::Ok),
        (None, Code::PermissionDenied),
        (Some("principal-present"), Code::Ok),
        (Some("match-principal"), Code::Ok),
        (Some("never-match-principal"), Code::PermissionDenied),
    ] {
        assert_eq!(code(&mut caller, header).await, expected, "{header:?}");
    }
    // AZ-5: a name of another kind does not stand in for the one that counts.
    let other = pki.ca.issue_to_workload(&["spiffe://project.svc.id.goog/somebody/else"]);
    let mut caller = pki.plain(&stage, Some(&other)).await.unwrap();
    assert_eq!(code(&mut caller, Some("match-principal")).await, Code::PermissionDenied);
    assert_eq!(code(&mut caller, Some("principal-present")).await, Code::Ok);
}

// === filters, routes and updates ===

/// AZ-8: the caller is not told which policy it was.
#[tokio::test]
async fn a_refused_caller_learns_nothing_of_the_rules() {
    let stage = filtered(|_| filter(Action::Deny, [("secret-policy", anybody(Rule::Any(true)))])).await;
    let status = unary(&mut stage.caller().await, None).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "Unauthorized RPC request rejected"));
}

/// S-47, AZ-6: methods, addresses and headers as they are on the wire.
#[tokio::test]
async fn rules_see_what_is_on_the_wire() {
    let stage = Stage::empty().await;
    let of_anybody = |rule| (rule, Identifier::Any(true));
    let header = |name: &str, value: &str| of_anybody(Rule::Header(header_is(name, exact(value))));
    let path =
        |path: &str| of_anybody(Rule::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(exact(path))) }));
    let peer = |address: &str, len| {
        let range = CidrRange { address_prefix: address.into(), prefix_len: Some(UInt32Value { value: len }) };
        (Rule::Any(true), Identifier::RemoteIp(range))
    };
    let (address, port) = (stage.address.to_string(), u32::from(stage.address.port()));
    let table = [
        (header(":method", "POST"), true),
        (header(":method", "GET"), false),
        (header(":authority", &address), true),
        (header("Host", &address), true),
        (header(":path", METHOD), true),
        (header("te", "trailers"), false),
        (header("content-type", "application/grpc"), true),
        (header("X-Twice", "a,b"), true),
        (header("x-twice", "a"), false),
        (header("raw-bin", "AAECAw"), true),
        (path(METHOD), true),
        (path("/grpc.testing.TestService/EmptyCall"), false),
        (of_anybody(Rule::DestinationPort(port)), true),
        (of_anybody(Rule::DestinationPort(1)), false),
        (peer("127.0.0.1", 32), true),
        (peer("10.0.0.0", 8), false),
    ];
    // Each in a policy of its own, which is for RPCs with its number.
    let policies = table.iter().enumerate().map(|(number, (rule, _))| {
        let this = permission(Rule::Header(header_is("number", exact(&number.to_string()))));
        let (rule, identifier) = rule.clone();
        let both = Rule::AndRules(permission::Set { rules: vec![this, permission(rule)] });
        let principals = vec![principal(identifier)];
        (format!("{number}"), Policy { permissions: vec![permission(both)], principals, ..Default::default() })
    });
    let rules = Rbac { policies: policies.collect(), ..Default::default() };
    let filter = Filter { rules: Some(rules), ..Default::default() };
    stage.set(with_filters(stage.listener(), [("authz", filter)]));
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    for (number, (rule, expected)) in table.iter().enumerate() {
        let mut request = Request::new(SimpleRequest::default());
        let metadata = request.metadata_mut();
        metadata.insert("number", number.to_string().parse().unwrap());
        metadata.append("x-twice", "a".parse().unwrap());
        metadata.append("x-twice", "b".parse().unwrap());
        metadata.insert("x-forwarded-for", "10.1.1.1".parse().unwrap());
        metadata.insert_bin("raw-bin", tonic::metadata::MetadataValue::from_bytes(&[0, 1, 2, 3]));
        let code = in_time(caller.unary_call(request)).await.map_or_else(|status| status.code(), |_| Code::Ok);
        let expected = if *expected { Code::Ok } else { Code::PermissionDenied };
        assert_eq!(code, expected, "{rule:?}");
    }
}

/// AZ-10: routes have rules of their own, or none.
#[tokio::test]
async fn routes_override_filters() {
    let stage = Stage::empty().await;
    let nobody = || filter(Action::Allow, []);
    let route = |path: &str, with: Option<RbacPerRoute>| {
        let mut route = Route {
            r#match: Some(RouteMatch {
                path_specifier: Some(route_match::PathSpecifier::Path(path.into())),
                ..Default::default()
            }),
            action: Some(route::Action::NonForwardingAction(NonForwardingAction {})),
            ..Default::default()
        };
        route.typed_per_filter_config.extend(with.map(|with| ("authz".to_owned(), pack_any(with))));
        route
    };
    let empty_call = "/grpc.testing.TestService/EmptyCall";
    let table = |unary: Option<Option<Filter>>| {
        let over = |rbac: Option<Filter>| RbacPerRoute { rbac };
        resources::route_table("routes", [route(METHOD, unary.map(over)), route(empty_call, Some(over(None)))])
    };
    let with_routes = |unary| {
        let listener = with_filters(listener(stage.address, resources::rds("routes")), [("authz", nobody())]);
        stage.set_with_routes(listener, table(unary));
    };
    with_routes(None);
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    assert_eq!(code(&mut caller, None).await, Code::PermissionDenied);
    assert!(in_time(caller.empty_call(Empty {})).await.is_ok(), "switched off there");
    // SV-6: other routes are for running connections, too.
    with_routes(Some(Some(filter(Action::Allow, [("p", anybody(Rule::Any(true)))]))));
    in_time(async { while code(&mut caller, None).await != Code::Ok {} }).await;
    with_routes(Some(Some(filter(Action::Deny, [("p", anybody(Rule::Any(true)))]))));
    in_time(async { while code(&mut caller, None).await != Code::PermissionDenied {} }).await;
    assert_eq!(stage.seen.callers(), 1, "all on one connection");
}

/// SV-28: the filters come before the route that is missing.
#[tokio::test]
async fn an_rpc_without_a_route_is_judged_first() {
    let stage = Stage::empty().await;
    let nowhere = || resources::route_table("routes", []);
    let only_role = header_is("x-role", exact("admin"));
    let filter = filter(Action::Allow, [("p", anybody(Rule::Header(only_role)))]);
    stage.set(with_filters(listener(stage.address, nowhere()), [("authz", filter)]));
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    assert_eq!(code(&mut caller, None).await, Code::PermissionDenied);
    let mut request = Request::new(SimpleRequest::default());
    request.metadata_mut().insert("x-role", "admin".parse().unwrap());
    assert_eq!(in_time(caller.unary_call(request)).await.unwrap_err().code(), Code::Unavailable);
}

/// AZ-2: rules that are not understood are not in force, and those before them stay.
#[tokio::test]
async fn rules_that_are_not_understood_are_refused() {
    let mut stage = Stage::empty().await;
    let unknown = || {
        let policy = Policy {
            permissions: vec![permission(Rule::Any(true))],
            principals: vec![principal(Identifier::FilterState(Default::default()))],
            ..Default::default()
        };
        filter(Action::Deny, [("p", policy)])
    };
    stage.set(with_filters(stage.listener(), [("authz", unknown())]));
    let state = stage.next_state().await;
    let path = "typed_config.rules.policies[\"p\"].principals[0].filter_state: not supported";
    assert!(!state.is_serving() && state.to_string().contains(path), "{state}");
    stage.set(with_filters(stage.listener(), [("authz", filter(Action::Allow, []))]));
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    assert_eq!(code(&mut caller, None).await, Code::PermissionDenied);
    let mut events = stage.control.events();
    stage.set(with_filters(stage.listener(), [("authz", unknown())]));
    assert_eq!(in_time(events.answer(TypeUrl::LISTENER)).await.unwrap().kind, RequestKind::Nack);
    assert_eq!(code(&mut caller, None).await, Code::PermissionDenied);
    assert_eq!(code(&mut stage.caller().await, None).await, Code::PermissionDenied);
}

// === audit ===

/// AZ-7, AZ-9, S-50: each filter tells of its decision, to the loggers that the application has.
#[tokio::test]
async fn decisions_are_told() {
    let told = Told::default();
    let stage = Stage::with(|builder| told.heard_by(builder)).await;
    let audited = |action, policy: (&'static str, Policy), condition: AuditCondition| {
        let mut filter = filter(action, [policy]);
        let options = AuditLoggingOptions {
            audit_condition: condition as i32,
            logger_configs: vec![AuditLoggerConfig { audit_logger: Some(collector("noted")), is_optional: false }],
        };
        filter.rules.as_mut().unwrap().audit_logging_options = Some(options);
        filter
    };
    let only_role = anybody(Rule::Header(header_is("x-role", exact("admin"))));
    let first = audited(Action::Deny, ("intruders", only_role), AuditCondition::OnDenyAndAllow);
    let second = audited(Action::Allow, ("everybody", anybody(Rule::Any(true))), AuditCondition::OnAllow);
    stage.set(with_filters(stage.listener(), [("first", first), ("second", second)]));
    stage.until_serving().await;
    let mut caller = stage.caller().await;
    assert_eq!(code(&mut caller, None).await, Code::Ok);
    let allowed = ["noted first  true", "noted second everybody true"];
    assert_eq!(told.take(), allowed.map(|line| format!("{line} {METHOD} \"\"")));
    let mut request = Request::new(SimpleRequest::default());
    request.metadata_mut().insert("x-role", "admin".parse().unwrap());
    assert_eq!(in_time(caller.unary_call(request)).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(told.take(), [format!("noted first intruders false {METHOD} \"\"")]);
}

/// A59: a logger that nobody has, or whose config it refuses, is refused with its resource.
#[tokio::test]
async fn loggers_that_are_not_there_are_refused() {
    let told = Told::default();
    let mut stage = Stage::with(|builder| told.heard_by(builder)).await;
    let with_logger = |audit_logger, is_optional| {
        let mut filter = filter(Action::Allow, [("p", anybody(Rule::Any(true)))]);
        let audit_condition = AuditCondition::OnAllow as i32;
        let logger_configs = vec![AuditLoggerConfig { audit_logger: Some(audit_logger), is_optional }];
        filter.rules.as_mut().unwrap().audit_logging_options =
            Some(AuditLoggingOptions { audit_condition, logger_configs });
        with_filters(stage.listener(), [("authz", filter)])
    };
    let unknown = || TypedExtensionConfig {
        name: "l".into(),
        typed_config: Some(Any { type_url: "type.googleapis.com/example.Logger".into(), value: vec![] }),
    };
    let [refused, bad, fine] = [(unknown(), false), (collector(""), true), (unknown(), true)]
        .map(|(logger, is_optional)| with_logger(logger, is_optional));
    stage.set(refused);
    let state = stage.next_state().await.to_string();
    assert!(state.contains("audit logger type \"example.Logger\" is not supported"), "{state}");
    stage.set(bad);
    let state = stage.next_state().await.to_string();
    assert!(state.contains("the audit logger \"collector\" refuses its config: name must not be empty"), "{state}");
    stage.set(fine);
    stage.until_serving().await;
    assert_eq!(code(&mut stage.caller().await, None).await, Code::Ok);
    assert!(told.take().is_empty());
}

/// AZ-7: who called is in the record.
#[tokio::test]
async fn the_principal_is_told() {
    let (pki, told) = (Pki::new(), Told::default());
    let stage = pki.serving_with(Wanted::Required, pki.watched(), |builder| told.heard_by(builder)).await;
    let mut filter = filter(Action::Allow, []);
    filter.rules.as_mut().unwrap().audit_logging_options = Some(AuditLoggingOptions {
        audit_condition: AuditCondition::OnDeny as i32,
        logger_configs: vec![AuditLoggerConfig { audit_logger: Some(collector("who")), is_optional: false }],
    });
    stage.set(pki.secured(with_filters(stage.listener(), [("authz", filter)]), Wanted::Required));
    let issued = pki.ca.issue_to_workload(&[CLIENT]);
    in_time(async {
        loop {
            // The Listener before it may still be in force.
            let mut caller = pki.plain(&stage, Some(&issued)).await.unwrap();
            if code(&mut caller, None).await == Code::PermissionDenied {
                break;
            }
        }
    })
    .await;
    assert_eq!(told.take(), [format!("who authz  false {METHOD} {CLIENT:?}")]);
}

// === helpers ===

const METHOD: &str = "/grpc.testing.TestService/UnaryCall";
const CLIENT: &str = "spiffe://project.svc.id.goog/ns/default/sa/client";
const NOT_THE_CLIENT: &str = "spiffe://project.svc.id.goog/not/the/client";

/// The rules of the official suite.
fn official(action: Action, server: SocketAddr) -> Filter {
    let port = u32::from(server.port());
    let host = |pattern| permission(Rule::Header(header_is(":authority", text(pattern))));
    let any_host = || vec![host(MatchPattern::Suffix(format!(":{port}")))];
    let hosts = |names: &[String]| names.iter().map(|name| host(MatchPattern::Exact(name.clone()))).collect::<Vec<_>>();
    let destination = |hosts: Vec<Permission>, ports: &[u32], pattern: &str| {
        let ports = ports.iter().map(|port| permission(Rule::DestinationPort(*port))).collect();
        let header = permission(Rule::Header(header_is("test", regex(pattern))));
        let set = |rules| permission(Rule::OrRules(permission::Set { rules }));
        permission(Rule::AndRules(permission::Set { rules: vec![set(hosts), set(ports), header] }))
    };
    let everybody = || vec![principal(Identifier::Any(true))];
    let named =
        |matcher| principal(Identifier::Authenticated(principal::Authenticated { principal_name: Some(matcher) }));
    let policy = |permissions, principals| Policy { permissions, principals, ..Default::default() };
    let of_any_host = |pattern: &str, principals| policy(vec![destination(any_host(), &[port], pattern)], principals);
    let (this, wrong) = (server.to_string(), format!("not-the-host:{port}"));
    filter(
        action,
        [
            ("host-wildcard", of_any_host("host-wildcard", everybody())),
            ("header-regex", of_any_host("header-regex-a+", everybody())),
            (
                "host-match",
                policy(
                    vec![
                        destination(hosts(std::slice::from_ref(&this)), &[port], "host-match1"),
                        destination(
                            hosts(&[format!("a-not-it.com:{port}"), this, "z-not-it.com:1".to_owned()]),
                            &[1, port, 65_535],
                            "host-match2",
                        ),
                    ],
                    everybody(),
                ),
            ),
            (
                "never-match-host",
                policy(
                    vec![destination(hosts(&[wrong, "not-the-host".to_owned()]), &[port], "never-match-host")],
                    everybody(),
                ),
            ),
            ("never-match-port", policy(vec![destination(any_host(), &[1], "never-match-port")], everybody())),
            ("principal-present", of_any_host("principal-present", vec![named(regex(".+"))])),
            (
                "match-principal",
                of_any_host("match-principal", vec![named(exact(NOT_THE_CLIENT)), named(exact(CLIENT))]),
            ),
            ("never-match-principal", of_any_host("never-match-principal", vec![named(exact(NOT_THE_CLIENT))])),
        ],
    )
}

/// A server in plaintext with one RBAC filter.
async fn filtered(filter: impl FnOnce(&Stage) -> Filter) -> Stage {
    let stage = Stage::empty().await;
    stage.set(with_filters(stage.listener(), [("authz", filter(&stage))]));
    stage.until_serving().await;
    stage
}

/// A server with TLS and the rules of the official suite.
async fn secured(wanted: Wanted) -> (Pki, Stage) {
    let pki = Pki::new();
    let stage = pki.serving_with(wanted, pki.watched(), |builder| builder).await;
    let rules = official(Action::Allow, stage.address);
    stage.set(pki.secured(with_filters(stage.listener(), [("authz", rules)]), wanted));
    // The Listener before it lets everything in.
    let identity = (wanted == Wanted::Required).then(|| pki.ca.issue("early"));
    in_time(async {
        loop {
            let mut caller = pki.plain(&stage, identity.as_ref()).await.unwrap();
            if code(&mut caller, None).await == Code::PermissionDenied {
                break;
            }
        }
    })
    .await;
    (pki, stage)
}

/// Puts filters before the router, the first one first.
fn with_filters<const N: usize>(listener: Listener, filters: [(&str, Filter); N]) -> Listener {
    let put = |listener, (name, filter): (&str, Filter)| resources::with_filter(listener, name, pack_any(filter));
    filters.into_iter().rev().fold(listener, put)
}

async fn unary(caller: &mut PlainClient, header: Option<&'static str>) -> Result<(), Status> {
    let mut request = Request::new(SimpleRequest::default());
    if let Some(value) = header {
        request.metadata_mut().insert("test", value.parse().unwrap());
    }
    in_time(caller.unary_call(request)).await.map(drop)
}

async fn code(caller: &mut PlainClient, header: Option<&'static str>) -> Code {
    unary(caller, header).await.map_or_else(|status| status.code(), |()| Code::Ok)
}

fn filter<const N: usize>(action: Action, policies: [(&str, Policy); N]) -> Filter {
    let policies: HashMap<String, Policy> =
        policies.into_iter().map(|(name, policy)| (name.to_owned(), policy)).collect();
    let rules = Rbac { action: action as i32, policies, ..Default::default() };
    Filter { rules: Some(rules), ..Default::default() }
}

fn anybody(rule: Rule) -> Policy {
    let principals = vec![principal(Identifier::Any(true))];
    Policy { permissions: vec![permission(rule)], principals, ..Default::default() }
}

fn permission(rule: Rule) -> Permission {
    Permission { rule: Some(rule) }
}

fn principal(identifier: Identifier) -> Principal {
    Principal { identifier: Some(identifier) }
}

fn header_is(name: &str, matcher: StringMatcher) -> HeaderMatcher {
    let header_match_specifier = Some(HeaderMatchSpecifier::StringMatch(matcher));
    HeaderMatcher { name: name.into(), header_match_specifier, ..Default::default() }
}

fn exact(value: &str) -> StringMatcher {
    text(MatchPattern::Exact(value.into()))
}

fn regex(pattern: &str) -> StringMatcher {
    text(MatchPattern::SafeRegex(RegexMatcher { regex: pattern.into(), ..Default::default() }))
}

fn text(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ..Default::default() }
}

/// The logger `collector`, with a name in its config.
fn collector(name: &str) -> TypedExtensionConfig {
    #[derive(Clone, PartialEq, Message)]
    struct TypedStruct {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(message, optional, tag = "2")]
        value: Option<envoy_types::pb::google::protobuf::Struct>,
    }
    use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
    let fields = [("name".to_owned(), Value { kind: Some(Kind::StringValue(name.into())) })];
    let value = Some(Struct { fields: fields.into_iter().collect() });
    let inner = TypedStruct { type_url: "type.googleapis.com/collector".into(), value };
    let type_url = "type.googleapis.com/xds.type.v3.TypedStruct".to_owned();
    TypedExtensionConfig { name: "l".into(), typed_config: Some(Any { type_url, value: inner.encode_to_vec() }) }
}

/// What the loggers of an application were told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn heard_by(&self, builder: ServerBuilder) -> ServerBuilder {
        builder.audit_logger("collector", Arc::new(self.clone()))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl AuditLoggerFactory for Told {
    fn check(&self, config: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let config: serde_json::Value = serde_json::from_str(config)?;
        if config["name"] == "" { Err("name must not be empty".into()) } else { Ok(()) }
    }

    fn build(&self, config: &str) -> Arc<dyn AuditLogger> {
        let config: serde_json::Value = serde_json::from_str(config).unwrap();
        Arc::new(Named(config["name"].as_str().unwrap().to_owned(), self.clone()))
    }
}

struct Named(String, Told);

impl AuditLogger for Named {
    fn log(&self, record: &AuditRecord) {
        let AuditRecord { rpc_method, principal, policy_name, matched_rule, authorized, .. } = record;
        let name = &self.0;
        let line = format!("{name} {policy_name} {matched_rule} {authorized} {rpc_method} {principal:?}");
        self.1.0.lock().unwrap().push(line);
    }
}
