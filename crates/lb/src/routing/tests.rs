use http::{HeaderMap, HeaderValue};
use mainstay_xds::resource::filter::{Fault, FilterConfig, FilterOverride, FilterOverrides, HttpFilter};
use mainstay_xds::resource::matcher::{FullRegex, HeaderMatch, StringMatcher};
use mainstay_xds::resource::route::DomainPattern;
use proptest::prelude::*;

use super::*;
use crate::testbed::{Script, route, route_to};

#[test]
fn the_first_route_wins_also_over_a_more_special_one() {
    let table = table([prefix("/s/"), exact("/s/m"), prefix("")]);
    assert_eq!(find(&table, "/s/m"), Some(0), "L-32");
    assert_eq!(find(&table, "/t/m"), Some(2), "L-32");
}

#[test]
fn no_route_matches() {
    assert_eq!(find(&table([exact("/s/m")]), "/s/n"), None, "L-32");
    assert_eq!(find(&table([]), "/s/m"), None, "L-32");
}

#[test]
fn a_prefix_matches_through_longer_ones_that_do_not() {
    let table = table([prefix("/s/long"), prefix("/s/longer"), prefix("/s/"), prefix("/s/m")]);
    assert_eq!(find(&table, "/s/lo"), Some(2), "L-33");
    assert_eq!(find(&table, "/s/longest"), Some(0), "L-33");
    assert_eq!(find(&table, "/s"), None, "L-33");
}

#[test]
fn case_is_ignored_where_the_route_says_so() {
    let any_case = |path: PathMatcher| match path {
        PathMatcher::Prefix { value, .. } => PathMatcher::Prefix { value, case_sensitive: false },
        PathMatcher::Exact { value, .. } => PathMatcher::Exact { value, case_sensitive: false },
        PathMatcher::Regex(pattern) => PathMatcher::Regex(pattern),
    };
    let mut routes = [exact("/S/m"), exact("/S/n"), prefix("/T/")];
    routes[1].path = any_case(routes[1].path.clone());
    routes[2].path = any_case(routes[2].path.clone());
    let table = table(routes);
    assert_eq!(find(&table, "/s/m"), None, "L-33");
    assert_eq!(find(&table, "/s/N"), Some(1), "L-33");
    assert_eq!(find(&table, "/t/x"), Some(2), "L-33");
}

#[test]
fn several_values_of_a_header_are_joined() {
    let table = table([with_header(prefix(""), "x", text("a,b"))]);
    assert_eq!(find_with(&table, &[("x", "a"), ("x", "b")]), Some(0), "L-34");
    assert_eq!(find_with(&table, &[("x", "a")]), None, "L-34");
}

#[test]
fn binary_and_reserved_headers_count_as_absent() {
    for name in ["k-bin", "grpc-timeout", "te", "user-agent"] {
        let table = table([with_header(prefix(""), name, HeaderMatch::Present(true)), prefix("")]);
        assert_eq!(find_with(&table, &[(name, "v")]), Some(1), "L-34: {name}");
    }
}

#[test]
fn content_type_is_known_even_if_it_is_not_set() {
    let table = table([with_header(prefix(""), "content-type", text("application/grpc"))]);
    assert_eq!(find_with(&table, &[]), Some(0), "L-34");
    assert_eq!(find_with(&table, &[("content-type", "application/grpc+json")]), None, "L-34");
}

#[test]
fn an_absent_header_matches_only_as_absent() {
    let inverted = |kind| {
        let mut route = with_header(prefix(""), "x", kind);
        route.headers[0].invert = true;
        route
    };
    let present = |wanted| with_header(prefix(""), "x", HeaderMatch::Present(wanted));
    assert_eq!(find_with(&table([inverted(text("a"))]), &[]), None, "L-35: no match, inverted or not");
    assert_eq!(find_with(&table([inverted(text("a"))]), &[("x", "b")]), Some(0), "L-35");
    assert_eq!(find_with(&table([present(false)]), &[]), Some(0), "L-35");
    assert_eq!(find_with(&table([present(true)]), &[]), None, "L-35");
    assert_eq!(find_with(&table([inverted(HeaderMatch::Present(true))]), &[]), Some(0), "L-35");
}

#[test]
fn a_range_takes_whole_numbers_only() {
    let table = table([with_header(prefix(""), "x", HeaderMatch::Range { start: -5, end: 10 })]);
    let matching = |value| find_with(&table, &[("x", value)]).is_some();
    assert!(matching("-5") && matching("9"), "L-36");
    assert!(!matching("10") && !matching("-6") && !matching("1.0") && !matching(""), "L-36");
}

#[test]
fn the_fraction_is_drawn_last_and_a_lost_draw_goes_on() {
    let mut half = with_header(prefix(""), "x", text("a"));
    half.fraction = Some(500_000);
    let table = table([half, prefix("")]);
    let mut script = Script { draws: [500_000, 499_999].into(), ..Script::default() };
    let headers = headers(&[("x", "a")]);
    let rpc = Rpc { path: "/s/m", headers: &headers };
    assert_eq!(index(&table, table.find(rpc, &mut script, ())), Some(1), "L-37");
    assert_eq!(index(&table, table.find(rpc, &mut script, ())), Some(0), "L-37");
    let none = HeaderMap::new();
    assert_eq!(index(&table, table.find(Rpc { path: "/s/m", headers: &none }, &mut script, ())), Some(1));
    assert_eq!(script.bounds, [1_000_000, 1_000_000], "L-37: no draw where the headers do not match");
}

#[test]
fn a_weighted_cluster_has_the_filters_of_its_own_overrides() {
    let off = FilterOverrides::from([("f".into(), FilterOverride::Disabled)]);
    let weighted = |name: &str, overrides| WeightedCluster { name: name.into(), weight: 1, overrides };
    let target = ClusterTarget::Weighted(vec![weighted("z", off.clone()), weighted("a", Default::default())]);
    let fault = Fault { delay: None, abort: None, max_active: 1 };
    let chain = [HttpFilter { name: "f".into(), config: FilterConfig::Fault(Arc::new(fault)), disabled: false }];
    let with = |route: Route, chain| RouteTable::new(Arc::clone(table([route]).virtual_host()), chain);
    let is_filtered = |table: &RouteTable, draw: u64| {
        let mut script = Script { draws: [draw].into(), ..Script::default() };
        let headers = HeaderMap::new();
        let found = table.find(Rpc { path: "/s/m", headers: &headers }, &mut script, ());
        found.and_then(|found| found.filters).is_some_and(|filters| !filters.is_empty())
    };
    let table = with(route_to("", target), &chain);
    assert_eq!([is_filtered(&table, 0), is_filtered(&table, 1)], [false, true], "L-43");
    let of_route = Route { overrides: off, ..prefix("") };
    assert!(!is_filtered(&with(of_route, &chain), 0), "L-43");
    assert!(is_filtered(&with(prefix(""), &chain), 0), "L-43");
    assert_ne!(with(prefix(""), &chain), with(prefix(""), &[]), "a table is equal only with equal filters");
}

#[test]
fn weighted_clusters_share_exactly_by_weight() {
    let weighted = |name: &str, weight| WeightedCluster { name: name.into(), weight, overrides: Default::default() };
    let target = ClusterTarget::Weighted(vec![weighted("z", 1), weighted("a", 3), weighted("m", 2)]);
    let table = table([route_to("", target)]);
    let mut script = Script { draws: (0..6).collect(), ..Script::default() };
    let headers = HeaderMap::new();
    let mut cluster = || {
        let index = table.find(Rpc { path: "/s/m", headers: &headers }, &mut script, ())?.cluster;
        table.clusters().get(index?).map(|name| name.to_string())
    };
    let chosen: Vec<String> = (0..6).filter_map(|_| cluster()).collect();
    assert_eq!(chosen, ["z", "a", "a", "a", "m", "m"], "L-38");
    assert_eq!(script.bounds, [6; 6], "L-38: one draw");
}

#[test]
fn routes_behind_one_that_takes_everything_are_not_even_kept() {
    let table = table([prefix("/s"), with_header(prefix("/s"), "x", text("a")), prefix("/s")]);
    assert!(table.prefix.prefixes(b"/s/m").eq([[0]]));
}

proptest! {
    #[test]
    fn the_index_finds_what_a_plain_scan_finds(
        routes in prop::collection::vec(any_route(), 0..12),
        path in any_path(),
        header_list in prop::collection::vec((any_name(), "[ab1]{0,2}"), 0..4),
        draws in prop::collection::vec(0..1_000_000_u64, 0..8),
    ) {
        let table = table(routes);
        let headers = headers(&header_list);
        let rpc = Rpc { path: &path, headers: &headers };
        let script = Script { draws: draws.into(), ..Script::default() };
        let (mut indexed, mut plain) = (script.clone(), script);
        let found = index(&table, table.find(rpc, &mut indexed, ()));
        prop_assert_eq!(found, scan(&table.virtual_host, rpc, &mut plain), "L-32");
        prop_assert_eq!(indexed.bounds, plain.bounds, "the same draws");
    }
}

/// The rule as it is written.
fn scan(host: &VirtualHost, rpc: Rpc<'_>, choose: &mut dyn Choose) -> Option<usize> {
    let header = |name: &str| {
        let visible = !name.ends_with("-bin") && name != "te";
        let values = rpc.headers.iter().filter(|(key, _)| visible && key.as_str() == name);
        let values: Vec<&str> = values.map(|(_, value)| value.to_str().expect("ASCII")).collect();
        let default = (name == "content-type").then(|| "application/grpc".to_owned());
        if values.is_empty() { default } else { Some(values.join(",")) }
    };
    host.routes.iter().position(|route| {
        route.path.matches(rpc.path)
            && route.headers.iter().all(|matcher| matcher.matches(header(&matcher.name).as_deref()))
            && route.fraction.is_none_or(|fraction| choose.choose(1_000_000) < u64::from(fraction))
    })
}

fn any_route() -> impl Strategy<Value = Route> {
    let path = prop_oneof![
        4 => (any_path(), any::<bool>()).prop_map(|(value, case_sensitive)| PathMatcher::Prefix { value, case_sensitive }),
        4 => (any_path(), any::<bool>()).prop_map(|(value, case_sensitive)| PathMatcher::Exact { value, case_sensitive }),
        1 => prop::sample::select(vec!["/.*", "/a+", "[/ab]*"]).prop_map(regex),
    ];
    let kind = prop_oneof![
        any::<bool>().prop_map(HeaderMatch::Present),
        "[ab]{0,2}".prop_map(|value| text(&value)),
        Just(HeaderMatch::Range { start: 0, end: 2 }),
    ];
    let header =
        (any_name(), kind, any::<bool>()).prop_map(|(name, kind, invert)| HeaderMatcher { name, kind, invert });
    let headers = prop::collection::vec(header, 0..3);
    let fraction = prop::option::of(prop::sample::select(vec![0, 300_000, 1_000_000]));
    (path, headers, fraction).prop_map(|(path, headers, fraction)| Route { path, headers, fraction, ..route("", "c") })
}

fn any_path() -> impl Strategy<Value = String> {
    prop_oneof!["/?[aAb]{0,3}/?[aAb]{0,1}", "/package.S[aAb]{0,2}/?", "/package.Service[ab]{7,9}"]
}

fn any_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["x", "y", "k-bin", "content-type", "te"]).prop_map(str::to_owned)
}

fn table(routes: impl IntoIterator<Item = Route>) -> RouteTable {
    RouteTable::new(
        Arc::new(VirtualHost {
            name: "host".into(),
            domains: vec![DomainPattern::Any],
            routes: routes.into_iter().collect(),
            overrides: Default::default(),
        }),
        &[],
    )
}

fn find(table: &RouteTable, path: &str) -> Option<usize> {
    index(table, table.find(Rpc { path, headers: &HeaderMap::new() }, &mut Script::default(), ()))
}

fn find_with(table: &RouteTable, list: &[(&str, &str)]) -> Option<usize> {
    index(table, table.find(Rpc { path: "/s/m", headers: &headers(list) }, &mut Script::default(), ()))
}

fn index(table: &RouteTable, found: Option<Found<'_>>) -> Option<usize> {
    let found = found?.route;
    table.virtual_host.routes.iter().position(|route| std::ptr::eq(route, found))
}

fn headers<N: AsRef<str>, V: AsRef<str>>(list: &[(N, V)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        let name = HeaderName::from_bytes(name.as_ref().as_bytes()).expect("a header name");
        headers.append(name, HeaderValue::from_str(value.as_ref()).expect("a header value"));
    }
    headers
}

fn prefix(value: &str) -> Route {
    route(value, "c")
}

fn exact(value: &str) -> Route {
    Route { path: PathMatcher::Exact { value: value.into(), case_sensitive: true }, ..route("", "c") }
}

fn regex(pattern: &str) -> PathMatcher {
    PathMatcher::Regex(FullRegex::new(pattern).expect("a pattern"))
}

fn with_header(mut route: Route, name: &str, kind: HeaderMatch) -> Route {
    route.headers.push(HeaderMatcher { name: name.into(), kind, invert: false });
    route
}

fn text(value: &str) -> HeaderMatch {
    HeaderMatch::String(StringMatcher::Exact { value: value.into(), ignore_case: false })
}
