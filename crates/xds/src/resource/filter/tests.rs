//! Tests of filter chains and overrides, with the real registry and with one that has more to it.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3 as pb_common;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier::{
    self, FixedDelay, HeaderDelay,
};
use envoy_types::pb::envoy::extensions::filters::http::fault::v3 as pb_fault;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::HttpFault;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::http::stateful_session::v3::stateful_session_per_route::Override;
use envoy_types::pb::envoy::extensions::filters::http::stateful_session::v3::{
    StatefulSession, StatefulSessionPerRoute,
};
use envoy_types::pb::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use envoy_types::pb::envoy::r#type::http::v3::Cookie;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::google::protobuf::{Duration as PbDuration, UInt32Value};
use envoy_types::util::pack_any;
use prost::Message;

use super::super::extension::TypedStruct;
use super::super::route::fixture::{TestSource, any, paths};
use super::*;
use crate::Code;
use crate::invalid::Invalid;

// === chains ===

#[test]
fn a_chain_of_the_router_alone_is_accepted() {
    // R-23: its fields are ignored.
    let config = Router { suppress_envoy_headers: true, ..Default::default() };
    for side in [Side::Client, Side::Server] {
        let chain = parse(REGISTRY, side, &[filter("r", pack_any(config.clone()))]).unwrap();
        assert_eq!(chain, [HttpFilter { name: "r".to_owned(), config: FilterConfig::Router, disabled: false }]);
    }
}

#[test]
fn a_chain_needs_a_filter() {
    // R-19
    assert_eq!(paths(parse(REGISTRY, Side::Client, &[])), ["http_filters"]);
    let unknown = optional(filter("a", any("example.Unknown")));
    assert_eq!(paths(parse(REGISTRY, Side::Client, &[unknown])), ["http_filters"]);
}

#[test]
fn filter_names_must_be_unique_and_not_empty() {
    // R-20
    let chain = [filter("", any(PASSING_TYPE)), filter("a", any(PASSING_TYPE)), filter("a", any(ROUTER_TYPE))];
    assert_eq!(paths(parse(MORE, Side::Client, &chain)), ["http_filters[0].name", "http_filters[2].name"]);
    // The name of a filter that is left out counts as well.
    let chain = [optional(filter("a", any("example.Unknown"))), filter("a", any(ROUTER_TYPE))];
    assert_eq!(paths(parse(REGISTRY, Side::Client, &chain)), ["http_filters[1].name"]);
}

#[test]
fn a_filter_needs_a_typed_config() {
    // R-21
    let unset = pb::HttpFilter { name: "a".to_owned(), is_optional: true, ..Default::default() };
    let discovered =
        pb::HttpFilter { config_type: Some(ConfigType::ConfigDiscovery(Default::default())), ..unset.clone() };
    for bad in [unset, discovered] {
        assert_eq!(paths(parse(REGISTRY, Side::Client, &[bad, router()])), ["http_filters[0].typed_config"]);
    }
    let malformed = optional(filter("a", Any { type_url: "no-slash".to_owned(), value: Vec::new() }));
    assert_eq!(paths(parse(REGISTRY, Side::Client, &[malformed, router()])), ["http_filters[0].typed_config.type_url"]);
}

#[test]
fn unknown_filters_are_refused_unless_optional() {
    // R-21; R-28 to R-30 are filters that we do not have yet.
    let unknown = [
        any("example.Unknown"),
        any("envoy.extensions.filters.http.rbac.v3.RBAC"),
        any("envoy.extensions.filters.http.gcp_authn.v3.GcpAuthnFilterConfig"),
        any("envoy.extensions.common.matching.v3.ExtensionWithMatcher"),
        typed_struct("example.Unknown"),
    ];
    for config in unknown {
        let chain = [filter("a", config.clone()), router()];
        assert_eq!(paths(parse(REGISTRY, Side::Client, &chain)), ["http_filters[0].typed_config"]);
        let chain = [optional(filter("a", config)), router()];
        assert_eq!(parse(REGISTRY, Side::Client, &chain).unwrap().len(), 1);
    }
}

#[test]
fn filters_of_the_other_side_are_unknown() {
    // S-56
    // R-21
    let passing = filter("a", any(PASSING_TYPE));
    assert_eq!(parse(MORE, Side::Client, &[passing.clone(), router()]).unwrap().len(), 2);
    assert_eq!(paths(parse(MORE, Side::Server, &[passing.clone(), router()])), ["http_filters[0].typed_config"]);
    assert_eq!(parse(MORE, Side::Server, &[optional(passing), router()]).unwrap().len(), 1);
}

#[test]
fn a_known_filter_must_be_valid_even_if_optional() {
    // R-22, R-6
    let undecodable = Any { value: vec![0xff], ..any(ROUTER_TYPE) };
    for (config, path) in [
        (undecodable, "http_filters[0].typed_config.value"),
        (typed_struct(ROUTER_TYPE), "http_filters[0].typed_config"),
    ] {
        assert_eq!(paths(parse(REGISTRY, Side::Client, &[optional(filter("r", config))])), [path]);
    }
}

#[test]
fn an_override_is_no_filter() {
    // R-22
    let chain = [optional(filter("a", any(OVERRIDE_TYPE))), router()];
    assert_eq!(paths(parse(MORE, Side::Client, &chain)), ["http_filters[0].typed_config"]);
}

#[test]
fn exactly_the_last_filter_is_terminal() {
    // R-23
    let passing = filter("a", any(PASSING_TYPE));
    assert_eq!(paths(parse(MORE, Side::Client, &[router(), passing.clone()])), ["http_filters[1]"]);
    assert_eq!(paths(parse(MORE, Side::Client, &[filter("q", any(ROUTER_TYPE)), router()])), ["http_filters[1]"]);
    assert_eq!(paths(parse(MORE, Side::Client, &[passing])), ["http_filters"]);
    // What is left out does not count.
    let unknown = optional(filter("u", any("example.Unknown")));
    assert_eq!(parse(REGISTRY, Side::Client, &[router(), unknown]).unwrap().len(), 1);
}

#[test]
fn the_router_cannot_be_disabled() {
    // R-24
    let disabled = pb::HttpFilter { disabled: true, ..router() };
    assert_eq!(paths(parse(REGISTRY, Side::Client, &[disabled])), ["http_filters[0].disabled"]);
}

// === overrides ===

#[test]
fn unknown_overrides_are_refused_unless_optional() {
    // R-39
    let unknown = any("example.Unknown");
    let path = r#"typed_per_filter_config["a"]"#;
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", unknown.clone())])), [path]);
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", typed_struct("example.Unknown"))])), [path]);
    let wrapped = wrap(Some(unknown.clone()), false, false);
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", wrapped)])), [format!("{path}.config")]);
    let wrapped = wrap(Some(unknown), true, false);
    assert!(parse_overrides(REGISTRY, &[("a", wrapped)]).unwrap().is_empty());
}

#[test]
fn a_filter_without_overrides_cannot_be_overridden() {
    // R-39: also if the override is optional.
    let path = r#"typed_per_filter_config["a"]"#;
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", any(ROUTER_TYPE))])), [path]);
    let wrapped = wrap(Some(any(ROUTER_TYPE)), true, false);
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", wrapped)])), [format!("{path}.config")]);
}

#[test]
fn known_overrides_are_checked_even_if_optional() {
    // R-39
    let wrapped = wrap(Some(any(OVERRIDE_TYPE)), true, false);
    assert_eq!(
        paths(parse_overrides(MORE, &[("b", any(OVERRIDE_TYPE)), ("a", wrapped)])),
        [r#"typed_per_filter_config["a"].config.field"#, r#"typed_per_filter_config["b"].field"#],
        "sorted by name"
    );
}

#[test]
fn a_wrapper_needs_a_config_or_disables_its_filter() {
    // R-39, R-24
    let path = r#"typed_per_filter_config["a"]"#;
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", wrap(None, true, false))])), [format!("{path}.config")]);
    let overrides = parse_overrides(REGISTRY, &[("a", wrap(None, false, true))]).unwrap();
    assert_eq!(overrides["a"], FilterOverride::Disabled);
    let overrides =
        parse_overrides(REGISTRY, &[("a", wrap(Some(pack_any(HttpFault::default())), false, true))]).unwrap();
    assert_eq!(overrides["a"], FilterOverride::Disabled, "also with a config");
    let undecodable = Any { value: vec![0xff], ..any("envoy.config.route.v3.FilterConfig") };
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", undecodable)])), [format!("{path}.value")]);
    // A wrapper in a wrapper is one type too many.
    let twice = wrap(Some(wrap(None, false, true)), false, false);
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", twice)])), [format!("{path}.config")]);
}

#[test]
fn the_name_of_an_overridden_filter_must_not_be_empty() {
    // R-39
    let path = r#"typed_per_filter_config[""]"#;
    assert_eq!(paths(parse_overrides(REGISTRY, &[("", wrap(None, false, true))])), [path]);
}

#[test]
fn a_long_name_does_not_make_a_long_fault() {
    // R-2
    let name = "n".repeat(1 << 20);
    let invalid = parse_overrides(REGISTRY, &[(&name, any("example.Unknown"))]).unwrap_err();
    assert!(invalid.to_string().len() < 1000);
}

// === faults ===

#[test]
fn faults_are_parsed_in_the_chain_and_in_overrides() {
    // R-26
    let delay = FixedDelay(PbDuration { seconds: 1, nanos: 500_000_000 });
    let config = fault(Some((delay, 1, 1)), Some((ErrorType::GrpcStatus(10), 30, 2)), Some(5));
    let expected = Arc::new(Fault {
        delay: Some(FaultDelay {
            time: DelayTime::Fixed(Duration::from_millis(1500)),
            share: FaultShare { numerator: 1, denominator: 10_000 },
        }),
        abort: Some(FaultAbort {
            status: AbortStatus::Code(Code::Aborted),
            share: FaultShare { numerator: 30, denominator: 1_000_000 },
        }),
        max_active: 5,
    });
    let chain = parse(REGISTRY, Side::Client, &[filter("f", pack_any(config.clone())), router()]).unwrap();
    assert_eq!(chain[0].config, FilterConfig::Fault(expected.clone()));
    let overrides = parse_overrides(REGISTRY, &[("f", pack_any(config.clone()))]).unwrap();
    assert_eq!(overrides["f"], FilterOverride::Fault(expected));
    let disabled = pb::HttpFilter { disabled: true, ..filter("f", pack_any(config.clone())) };
    assert!(parse(REGISTRY, Side::Client, &[disabled, router()]).unwrap()[0].disabled, "R-24");
    let on_server = parse(REGISTRY, Side::Server, &[filter("f", pack_any(config)), router()]);
    assert_eq!(paths(on_server), ["http_filters[0].typed_config"], "R-21: clients only");
}

#[test]
fn what_a_fault_does_not_say_has_defaults() {
    let parse_fault = |config: HttpFault| match &parse(
        REGISTRY,
        Side::Client,
        &[filter("f", pack_any(config)), router()],
    )
    .unwrap()[0]
        .config
    {
        FilterConfig::Fault(fault) => fault.clone(),
        other => panic!("{other:?}"),
    };
    let none = parse_fault(HttpFault::default());
    assert_eq!(*none, Fault { delay: None, abort: None, max_active: u32::MAX }, "R-26");
    let mut bare = fault(Some((HeaderDelay(Default::default()), 0, 0)), Some((ErrorType::HttpStatus(503), 0, 0)), None);
    bare.delay.as_mut().unwrap().percentage = None;
    let bare = parse_fault(bare);
    let delay = bare.delay.as_ref().unwrap();
    assert_eq!((&delay.time, delay.share), (&DelayTime::Header, FaultShare { numerator: 0, denominator: 100 }), "S-55");
    assert_eq!(bare.abort.as_ref().unwrap().status, AbortStatus::Code(Code::Unavailable), "S-52");
    for (status, code) in [(200, 2), (404, 12), (70_000, 2)] {
        let fault = parse_fault(fault(None, Some((ErrorType::HttpStatus(status), 1, 0)), None));
        assert_eq!(
            fault.abort.as_ref().unwrap().status,
            AbortStatus::Code(Code::from_number(code).unwrap()),
            "S-52: {status}"
        );
    }
}

#[test]
fn bad_faults_are_refused() {
    // R-26, R-4
    let negative = PbDuration { seconds: -1, nanos: 0 };
    let bad = fault(Some((FixedDelay(negative), 1, 9)), Some((ErrorType::GrpcStatus(17), 1, 9)), None);
    let at = |field: &str| format!("http_filters[0].typed_config.{field}");
    assert_eq!(
        paths(parse(REGISTRY, Side::Client, &[filter("f", pack_any(bad)), router()])),
        [
            at("delay.percentage.denominator"),
            at("delay.fixed_delay"),
            at("abort.percentage.denominator"),
            at("abort.grpc_status")
        ]
    );
}

// === stateful sessions ===

#[test]
fn r27_a_session_has_a_cookie() {
    let cookie = Cookie { name: "sid".into(), ttl: Some(seconds(7)), path: "/s".into(), ..Default::default() };
    let parsed = SessionCookie { name: "sid".into(), path: "/s".into(), ttl: Duration::from_secs(7) };
    assert_eq!(session_of(with_cookie(Some(cookie))), Ok(Some(Arc::new(parsed))));
    let cookie = Cookie { name: "sid".into(), ..Default::default() };
    let parsed = SessionCookie { name: "sid".into(), path: String::new(), ttl: Duration::ZERO };
    assert_eq!(session_of(with_cookie(Some(cookie))), Ok(Some(Arc::new(parsed))));
    assert_eq!(session_of(StatefulSession::default()), Ok(None), "R-27: inactive");
}

#[test]
fn r27_faults_of_a_session_are_named() {
    let at = |path: &str| Err(vec![format!("http_filters[0].typed_config.session_state.typed_config{path}")]);
    assert_eq!(session_of(with_cookie(None)), at(".cookie"));
    assert_eq!(session_of(with_cookie(Some(Cookie::default()))), at(".cookie.name"));
    let cookie = Cookie { name: "sid".into(), ttl: Some(seconds(-1)), ..Default::default() };
    assert_eq!(session_of(with_cookie(Some(cookie))), at(".cookie.ttl"));
    let state = |typed_config| StatefulSession {
        session_state: Some(TypedExtensionConfig { name: "state".into(), typed_config }),
        ..Default::default()
    };
    assert_eq!(session_of(state(None)), at(""));
    assert_eq!(session_of(state(Some(any("example.HeaderBased")))), at(".type_url"));
}

#[test]
fn r27_a_session_is_overridden_or_switched_off() {
    let cookie = Cookie { name: "sid".into(), ..Default::default() };
    let parsed = SessionCookie { name: "sid".into(), path: String::new(), ttl: Duration::ZERO };
    for (wanted, expected) in [
        (Some(Override::StatefulSession(with_cookie(Some(cookie)))), Some(Arc::new(parsed))),
        (Some(Override::StatefulSession(StatefulSession::default())), None),
        (Some(Override::Disabled(true)), None),
        (None, None),
    ] {
        let any = pack_any(StatefulSessionPerRoute { r#override: wanted });
        let overrides = parse_overrides(REGISTRY, &[("a", any)]).unwrap();
        assert_eq!(overrides["a"], FilterOverride::StatefulSession(expected));
    }
    let bad = StatefulSessionPerRoute { r#override: Some(Override::StatefulSession(with_cookie(None))) };
    assert_eq!(
        paths(parse_overrides(REGISTRY, &[("a", pack_any(bad.clone()))])),
        ["typed_per_filter_config[\"a\"].stateful_session.session_state.typed_config.cookie"]
    );
    let chain = [filter("a", pack_any(bad)), router()];
    assert_eq!(paths(parse(REGISTRY, Side::Client, &chain)), ["http_filters[0].typed_config"], "R-22: overrides only");
    let chain = [filter("a", pack_any(StatefulSession::default())), router()];
    assert_eq!(paths(parse(REGISTRY, Side::Server, &chain)), ["http_filters[0].typed_config"], "R-21: for clients");
    let top_level = pack_any(StatefulSession::default());
    assert_eq!(paths(parse_overrides(REGISTRY, &[("a", top_level)])), ["typed_per_filter_config[\"a\"]"], "R-39");
}

// === helpers ===

/// The cookie, or the paths of the faults.
fn session_of(pb: StatefulSession) -> Result<Option<Arc<SessionCookie>>, Vec<String>> {
    let mut chain = match parse(REGISTRY, Side::Client, &[filter("a", pack_any(pb)), router()]) {
        Ok(chain) => chain,
        Err(invalid) => return Err(paths::<()>(Err(invalid))),
    };
    match chain.swap_remove(0).config {
        FilterConfig::StatefulSession(cookie) => Ok(cookie),
        other => panic!("not a session: {other:?}"),
    }
}

fn with_cookie(cookie: Option<Cookie>) -> StatefulSession {
    let typed_config = Some(pack_any(CookieBasedSessionState { cookie }));
    StatefulSession {
        session_state: Some(TypedExtensionConfig { name: "state".into(), typed_config }),
        ..Default::default()
    }
}

fn seconds(seconds: i64) -> PbDuration {
    PbDuration { seconds, nanos: 0 }
}

/// Delay and abort, each with numerator and denominator, and the limit.
fn fault(
    delay: Option<(FaultDelaySecifier, u32, i32)>,
    abort: Option<(ErrorType, u32, i32)>,
    max_active: Option<u32>,
) -> HttpFault {
    let percentage = |numerator, denominator| Some(FractionalPercent { numerator, denominator });
    HttpFault {
        delay: delay.map(|(time, numerator, denominator)| pb_common::FaultDelay {
            fault_delay_secifier: Some(time),
            percentage: percentage(numerator, denominator),
        }),
        abort: abort.map(|(status, numerator, denominator)| pb_fault::FaultAbort {
            error_type: Some(status),
            percentage: percentage(numerator, denominator),
            ..Default::default()
        }),
        max_active_faults: max_active.map(|value| UInt32Value { value }),
        ..Default::default()
    }
}

const ROUTER_TYPE: &str = "envoy.extensions.filters.http.router.v3.Router";
const PASSING_TYPE: &str = "example.Passing";
const OVERRIDE_TYPE: &str = "example.PassingPerRoute";

/// The real filters, and one for clients that passes RPCs on and has overrides, all of them bad.
static MORE: &[&FilterType] = &[&router::ROUTER, &PASSING];

static PASSING: FilterType = FilterType {
    config_type: PASSING_TYPE,
    on_client: true,
    on_server: false,
    terminal: false,
    parse: |_, _, _| Some(FilterConfig::Router),
    overrides: Some((OVERRIDE_TYPE, |_, _, faults| {
        faults.field("field", |f| f.add("bad"));
        None
    })),
};

fn parse(registry: &[&FilterType], side: Side, pb: &[pb::HttpFilter]) -> Result<Vec<HttpFilter>, Invalid> {
    let mut faults = Faults::new();
    let chain = faults.field("http_filters", |f| chain_of(registry, pb, side, TestSource::new(false).context(), f));
    faults.finish(chain)
}

fn parse_overrides(registry: &[&FilterType], pb: &[(&str, Any)]) -> Result<FilterOverrides, Invalid> {
    let pb: Vec<(String, Any)> = pb.iter().map(|(name, any)| ((*name).to_owned(), any.clone())).collect();
    let mut faults = Faults::new();
    let pb = pb.iter().map(|(name, any)| (name, any));
    let overrides =
        faults.field("typed_per_filter_config", |f| overrides_of(registry, pb, TestSource::new(false).context(), f));
    faults.finish(overrides)
}

fn filter(name: &str, config: Any) -> pb::HttpFilter {
    pb::HttpFilter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)), ..Default::default() }
}

fn router() -> pb::HttpFilter {
    filter("router", pack_any(Router::default()))
}

fn optional(filter: pb::HttpFilter) -> pb::HttpFilter {
    pb::HttpFilter { is_optional: true, ..filter }
}

fn typed_struct(message: &str) -> Any {
    let inner = TypedStruct { type_url: format!("type.googleapis.com/{message}") };
    Any { value: inner.encode_to_vec(), ..any("xds.type.v3.TypedStruct") }
}

fn wrap(config: Option<Any>, is_optional: bool, disabled: bool) -> Any {
    pack_any(pb_route::FilterConfig { config, is_optional, disabled })
}
