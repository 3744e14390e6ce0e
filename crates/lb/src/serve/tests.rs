//! What servers do with connections and RPCs.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use mainstay_xds::resource::filter::{
    AuditCondition, AuditLoggerConfig, AuditOptions, FilterConfig, FilterOverride, Policy, Rbac, RbacAction, Rule,
};
use mainstay_xds::resource::listener::{RouteSource, ServerListener};
use mainstay_xds::resource::matcher::{HeaderMatch, HeaderMatcher, PathMatcher, StringMatcher};
use mainstay_xds::resource::route::{ClusterTarget, DomainPattern, ForwardAction, Route};
use mainstay_xds::serve::Generation;
use proptest::prelude::*;

use super::*;
use crate::authz::{Caller, Facts};
use crate::testbed::Script;

// === requests ===

#[test]
fn a_request_must_be_well_formed_before_any_rule_sees_it() {
    // SV-27, S-48
    let post = Method::POST;
    let headers = |hosts: &[&'static str]| {
        hosts.iter().map(|host| (http::header::HOST, HeaderValue::from_static(host))).collect::<HeaderMap>()
    };
    let check = |method: &Method, path: &str, authority: Option<&str>, hosts: &[&'static str]| {
        let headers = headers(hosts);
        let request = Request { method, path, authority, headers: &headers };
        request.check().map(|ok| (ok.authority.to_owned(), ok.path.to_owned()))
    };
    let ok = |authority: &str| Ok((authority.to_owned(), "/s/m".to_owned()));
    assert_eq!(check(&post, "/s/m", Some("a"), &[]), ok("a"));
    assert_eq!(check(&post, "/s/m", Some("a"), &["b"]), ok("a"), "host does not count beside an authority");
    assert_eq!(check(&post, "/s/m", Some("a"), &["b", "c"]), ok("a"));
    assert_eq!(check(&post, "/s/m", None, &["b"]), ok("b"));
    assert_eq!(check(&post, "/s/m", Some(""), &["b"]), ok("b"));
    assert_eq!(check(&post, "/s/m", None, &["b", "b"]), Err(Refusal::SeveralAuthorities));
    assert_eq!(check(&post, "/s/m", None, &["", "b"]), Err(Refusal::SeveralAuthorities));
    assert_eq!(check(&post, "/s/m", None, &[]), Err(Refusal::NoAuthority));
    assert_eq!(check(&post, "/s/m", None, &[""]), Err(Refusal::NoAuthority));
    for path in ["", "*", "/", "s/m", "/s", "/s/", "//m", "/s/m/", "/s/m/n", "//", "///"] {
        assert_eq!(check(&post, path, Some("a"), &[]), Err(Refusal::Path), "{path:?}");
    }
    for method in [Method::GET, Method::PUT, Method::HEAD, Method::from_bytes(b"post").unwrap()] {
        assert_eq!(check(&method, "/s/m", Some("a"), &[]), Err(Refusal::Method), "{method}");
    }
}

#[test]
fn refusals_have_their_codes_and_tell_callers_nothing_of_the_configuration() {
    // SV-27 to SV-29
    let table = [
        (Refusal::Path, Code::Unimplemented),
        (Refusal::Method, Code::Internal),
        (Refusal::NoAuthority, Code::Internal),
        (Refusal::SeveralAuthorities, Code::Internal),
        (Refusal::NoRoutes, Code::Unavailable),
        (Refusal::NoVirtualHost, Code::Unavailable),
        (Refusal::NoRoute, Code::Unavailable),
        (Refusal::Action("route"), Code::Unavailable),
    ];
    for (refusal, code) in table {
        assert_eq!(refusal.code(), code, "{refusal}");
        let is_ours = refusal.message() == "configuration of the server is incomplete";
        assert_eq!(is_ours, code == Code::Unavailable, "{refusal}");
    }
    assert_eq!(
        Refusal::Action("redirect").to_string(),
        "matching route has inappropriate action: redirect, expected non_forwarding_action"
    );
}

// === RPCs ===

#[test]
fn an_rpc_goes_by_virtual_host_and_route_to_the_application() {
    // SV-26, SV-28, S-16
    let routes = config(vec![
        host(&["a.example"], vec![route("/s/", RouteAction::NonForwarding), route("/t/", forward())]),
        host(&["*"], vec![route("/u/", RouteAction::Unsupported("redirect")), headed("x-a", "1")]),
    ]);
    let chain = ChainRoutes::new(&http(vec![router()]), Some(&routes));
    let decide = |authority: &str, path: &str, header: Option<&'static str>| {
        then(&chain, authority, path, header.map(|value| ("x-a", value)))
    };
    assert_eq!(decide("a.example", "/s/m", None), Ok(()));
    assert_eq!(decide("A.EXAMPLE", "/s/m", None), Ok(()));
    assert_eq!(decide("a.example", "/t/m", None), Err(Refusal::Action("route")));
    assert_eq!(decide("a.example", "/u/m", None), Err(Refusal::NoRoute), "of its virtual host");
    assert_eq!(decide("b.example", "/u/m", None), Err(Refusal::Action("redirect")));
    assert_eq!(decide("b.example", "/v/m", Some("1")), Ok(()));
    assert_eq!(decide("b.example", "/v/m", Some("2")), Err(Refusal::NoRoute));
    let nowhere = ChainRoutes::new(&http(vec![router()]), Some(&config(vec![host(&["x"], vec![])])));
    assert_eq!(then(&nowhere, "y", "/s/m", None), Err(Refusal::NoVirtualHost));
}

#[test]
fn without_routes_every_rpc_is_refused() {
    // S-17, SV-28
    let chain = ChainRoutes::new(&http(vec![router()]), None);
    let request = Request { method: &Method::POST, path: "/s/m", authority: Some("a"), headers: &HeaderMap::new() };
    assert_eq!(chain.decide(&request, &mut Script::default()), Decision::Refuse(Refusal::NoRoutes));
    let malformed = Request { path: "/s", ..request };
    assert_eq!(chain.decide(&malformed, &mut Script::default()), Decision::Refuse(Refusal::Path), "SV-26");
}

#[test]
fn a_share_of_rpcs_takes_a_route() {
    // L-37
    let mut half = route("/s/", RouteAction::NonForwarding);
    half.fraction = Some(500_000);
    let routes = config(vec![host(&["*"], vec![half])]);
    let chain = ChainRoutes::new(&http(vec![router()]), Some(&routes));
    let decide = |draw| {
        let headers = HeaderMap::new();
        let request = Request { method: &Method::POST, path: "/s/m", authority: Some("a"), headers: &headers };
        let mut script = Script { draws: [draw].into(), ..Default::default() };
        match chain.decide(&request, &mut script) {
            Decision::Pass { then, .. } => then,
            Decision::Refuse(refusal) => Err(refusal),
        }
    };
    assert_eq!(decide(499_999), Ok(()));
    assert_eq!(decide(500_000), Err(Refusal::NoRoute));
}

#[test]
fn filters_have_the_config_of_the_most_specific_override_whatever_becomes_of_the_rpc() {
    // SV-28, R-24, R-39, L-43, AZ-10
    let overridden = |code: usize| [("f".to_owned(), FilterOverride::Rbac(Some(refusing(code))))].into();
    let off = || [("f".to_owned(), FilterOverride::Disabled)].into();
    let with = |prefix: &str, overrides| Route { overrides, ..route(prefix, RouteAction::NonForwarding) };
    let mut one = host(&["one"], vec![with("/a/", overridden(3)), with("/b/", off()), route("/c/", forward())]);
    one.overrides = overridden(2);
    let two = host(&["two"], vec![with("/a/", overridden(4))]);
    let http = http(vec![filter("f", FilterConfig::Rbac(Some(refusing(1)))), router()]);
    let chain = ChainRoutes::new(&http, Some(&config(vec![one, two])));
    let codes = |authority: &str, path: &str| -> Vec<usize> {
        let headers = HeaderMap::new();
        let request = Request { method: &Method::POST, path, authority: Some(authority), headers: &headers };
        let Decision::Pass { filters, .. } = chain.decide(&request, &mut Script::default()) else { panic!() };
        refused_by(filters)
    };
    assert_eq!(codes("one", "/a/m"), [3]);
    assert_eq!(codes("one", "/b/m"), Vec::<usize>::new());
    assert_eq!(codes("one", "/c/m"), [2], "of the virtual host, though the route is not for servers");
    assert_eq!(codes("one", "/x/m"), [2], "no route");
    assert_eq!(codes("two", "/a/m"), [4]);
    assert_eq!(codes("two", "/x/m"), [1]);
    assert_eq!(codes("three", "/a/m"), [1], "no virtual host: as in the Listener");
    // A filter that is off is switched on by an override (R-24).
    let mut disabled = http;
    disabled.filters[0].disabled = true;
    let routes = config(vec![host(&["two"], vec![with("/a/", overridden(4)), route("/b/", forward())])]);
    let chain = ChainRoutes::new(&disabled, Some(&routes));
    let count = |path| {
        let headers = HeaderMap::new();
        let request = Request { method: &Method::POST, path, authority: Some("two"), headers: &headers };
        match chain.decide(&request, &mut Script::default()) {
            Decision::Pass { filters, .. } => refused_by(filters).len(),
            Decision::Refuse(_) => panic!(),
        }
    };
    assert_eq!((count("/a/m"), count("/b/m")), (1, 0));
}

proptest! {
    /// L-31: the same as looking at every pattern.
    #[test]
    fn virtual_hosts_are_found_as_the_plain_rule_finds_them(
        hosts in prop::collection::vec(prop::collection::vec(pattern(), 1..4), 0..5),
        authority in "[abAB.]{1,4}",
    ) {
        let hosts: Vec<_> = hosts.into_iter().map(|domains| VirtualHost { domains, ..host(&[], vec![]) }).collect();
        let routes = config(hosts);
        let expected = routes.virtual_host(&authority);
        let found = Domains::new(&routes).find(&authority).map(|place| &routes.virtual_hosts[place]);
        prop_assert_eq!(expected.map(Arc::as_ptr), found.map(Arc::as_ptr));
    }
}

fn pattern() -> impl Strategy<Value = DomainPattern> {
    let text = || "[ab.]{1,3}";
    prop_oneof![
        text().prop_map(DomainPattern::Exact),
        text().prop_map(DomainPattern::Suffix),
        text().prop_map(DomainPattern::Prefix),
        Just(DomainPattern::Any),
    ]
}

// === connections ===

#[test]
fn a_connection_is_secured_as_its_chain_says_or_closed() {
    // TL-1, TL-2, SV-19
    let tls = Arc::new(DownstreamTls {
        identity_instance: "i".to_owned(),
        roots_instance: None,
        require_client_certificate: false,
    });
    let serving = |tls: Option<&Arc<DownstreamTls>>| {
        let chain = FilterChain { name: "c".into(), tls: tls.cloned(), http: http(vec![router()]) };
        serve(ServerListener::new("10.0.0.1:80".parse().unwrap(), Some(Arc::new(chain))))
    };
    let (destination, source) = ("10.0.0.1".parse().unwrap(), "10.0.0.2:5".parse().unwrap());
    let (secure, plain) = (serving(Some(&tls)), serving(None));
    let nobody = serve(ServerListener::new("10.0.0.1:80".parse().unwrap(), None));
    assert_eq!(admit(None, destination, source, true), Admission::Close);
    assert_eq!(admit(Some(&nobody), destination, source, true), Admission::Close);
    assert_eq!(admit(Some(&secure), destination, source, true), Admission::Tls(0, &tls));
    assert_eq!(admit(Some(&secure), destination, source, false), Admission::Own(0));
    assert_eq!(admit(Some(&plain), destination, source, true), Admission::Own(0));
    assert_eq!(admit(Some(&plain), destination, source, true).chain(&plain).map(|chain| &*chain.name), Some("c"));
    assert_eq!(admit(None, destination, source, true).chain(&plain), None);
}

// === helpers ===

fn then(
    chain: &ChainRoutes,
    authority: &str,
    path: &str,
    header: Option<(&'static str, &'static str)>,
) -> Result<(), Refusal> {
    let mut headers = HeaderMap::new();
    headers.extend(header.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))));
    let request = Request { method: &Method::POST, path, authority: Some(authority), headers: &headers };
    match chain.decide(&request, &mut Script::default()) {
        Decision::Pass { then, filters, .. } => {
            assert!(filters.is_empty());
            then
        }
        Decision::Refuse(refusal) => panic!("{refusal}"),
    }
}

fn serve(listener: ServerListener) -> Serving {
    let routes = listener.chains.iter().map(|_| Ok(Arc::new(config(vec![])))).collect();
    Serving { generation: Generation(1), name: "l".into(), listener: Arc::new(listener), mixed_sources: false, routes }
}

fn config(hosts: Vec<VirtualHost>) -> RouteConfig {
    RouteConfig { virtual_hosts: hosts.into_iter().map(Arc::new).collect() }
}

fn host(domains: &[&str], routes: Vec<Route>) -> VirtualHost {
    let pattern = |domain: &&str| match *domain {
        "*" => DomainPattern::Any,
        other => DomainPattern::Exact(other.to_owned()),
    };
    VirtualHost {
        name: "host".to_owned(),
        domains: domains.iter().map(pattern).collect(),
        routes,
        overrides: Default::default(),
    }
}

fn route(prefix: &str, action: RouteAction) -> Route {
    Route {
        path: PathMatcher::Prefix { value: prefix.to_owned(), case_sensitive: true },
        headers: vec![],
        fraction: None,
        action,
        overrides: Default::default(),
    }
}

fn headed(name: &str, value: &str) -> Route {
    let matcher = StringMatcher::Exact { value: value.to_owned(), ignore_case: false };
    let header = HeaderMatcher { name: name.to_owned(), kind: HeaderMatch::String(matcher), invert: false };
    Route { headers: vec![header], ..route("", RouteAction::NonForwarding) }
}

fn forward() -> RouteAction {
    RouteAction::Forward(ForwardAction {
        target: ClusterTarget::Cluster("c".to_owned()),
        max_stream_duration: None,
        retry: None,
        hash_policies: vec![],
        auto_host_rewrite: false,
    })
}

fn http(filters: Vec<HttpFilter>) -> HttpConnectionManager {
    let max_stream_duration = Some(Duration::from_secs(1));
    HttpConnectionManager { max_stream_duration, filters, routes: RouteSource::Rds("r".to_owned()) }
}

fn router() -> HttpFilter {
    filter("router", FilterConfig::Router)
}

fn filter(name: &str, config: FilterConfig) -> HttpFilter {
    HttpFilter { name: name.to_owned(), config, disabled: false }
}

/// Rules that refuse every RPC, and say so under this number.
fn refusing(number: usize) -> Arc<Rbac> {
    let all = || vec![Rule::Always];
    let policy = Policy { name: number.to_string(), permissions: all(), principals: all() };
    let audit = AuditOptions { condition: AuditCondition::OnDeny, loggers: vec![AuditLoggerConfig::Stdout] };
    Arc::new(Rbac { action: RbacAction::Deny, policies: vec![policy], headers: vec![], audit })
}

/// The number of the rules that refuse an RPC; none if nobody does.
fn refused_by(filters: &Authorization) -> Vec<usize> {
    let address = ([127, 0, 0, 1], 1).into();
    let facts = Facts {
        path: "/s/m",
        authority: "a",
        method: "POST",
        headers: &HeaderMap::new(),
        local: address,
        peer: address,
        caller: Caller::Plaintext,
    };
    let mut numbers: Vec<usize> = Vec::new();
    let allowed = filters.allows(&facts, &mut |record| {
        numbers.extend(record.verdict.policy.map(|name| name.parse::<usize>().unwrap()));
    });
    assert_eq!(allowed, numbers.is_empty());
    numbers
}
