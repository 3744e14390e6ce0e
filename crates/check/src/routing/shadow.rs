//! Which routes others take everything away from.

use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteMatch};
use mainstay_xds::resource::matcher::FullRegex;

use super::{MILLION, fraction};

/// The routes that no RPC comes to, each with the earlier one that takes all of theirs. One that is not sure is left out.
pub(super) fn covered(routes: &[Route]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (i, later) in routes.iter().enumerate() {
        let Some(later) = &later.r#match else { continue };
        let earlier = routes[..i].iter().enumerate().filter_map(|(j, route)| Some((j, route.r#match.as_ref()?)));
        if let Some((j, _)) = earlier.into_iter().find(|(_, earlier)| covers(earlier, later)) {
            found.push((i, j));
        }
        if i > MOST {
            break; // Quadratic; nobody writes so many by hand.
        }
    }
    found
}

/// Whether every RPC matches.
pub(super) fn takes_everything(matcher: &RouteMatch) -> bool {
    takes_all_of_its_path(matcher) && matcher.headers.is_empty() && matches_all_paths(matcher)
}

/// The field and the value of a path that is not one of a method, as the client sees it.
pub(super) fn no_method(matcher: &RouteMatch) -> Option<(&'static str, &str)> {
    match matcher.path_specifier.as_ref()? {
        PathSpecifier::Prefix(value) => {
            let can = match value.strip_prefix('/').map(|path| path.split_once('/')) {
                Some(Some((service, method))) => !service.is_empty() && !method.contains('/'),
                Some(None) => true,
                None => value.is_empty(),
            };
            (!can).then_some(("prefix", value))
        }
        PathSpecifier::Path(value) => {
            let parts = value.strip_prefix('/').and_then(|path| path.split_once('/'));
            let can = parts
                .is_some_and(|(service, method)| !service.is_empty() && !method.is_empty() && !method.contains('/'));
            (!can).then_some(("path", value))
        }
        PathSpecifier::SafeRegex(_)
        | PathSpecifier::ConnectMatcher(_)
        | PathSpecifier::PathSeparatedPrefix(_)
        | PathSpecifier::PathMatchPolicy(_) => None,
    }
}

fn covers(earlier: &RouteMatch, later: &RouteMatch) -> bool {
    takes_all_of_its_path(earlier)
        && no_method(earlier).is_none()
        && earlier.headers.iter().all(|header| later.headers.contains(header))
        && path_covers(earlier, later)
}

/// Whether nothing but its path and its headers keeps RPCs from it.
fn takes_all_of_its_path(matcher: &RouteMatch) -> bool {
    fraction(matcher).is_none_or(|share| share >= MILLION)
        && matcher.runtime_fraction.as_ref().is_none_or(|it| it.default_value.is_some())
        && matcher.query_parameters.is_empty()
}

fn matches_all_paths(matcher: &RouteMatch) -> bool {
    match &matcher.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) => prefix.is_empty() || prefix == "/",
        Some(PathSpecifier::SafeRegex(regex)) => super::EVERYTHING.contains(&regex.regex.as_str()),
        Some(
            PathSpecifier::Path(_)
            | PathSpecifier::ConnectMatcher(_)
            | PathSpecifier::PathSeparatedPrefix(_)
            | PathSpecifier::PathMatchPolicy(_),
        )
        | None => false,
    }
}

fn path_covers(earlier: &RouteMatch, later: &RouteMatch) -> bool {
    if matches_all_paths(earlier) {
        return true;
    }
    let ignores_case = |matcher: &RouteMatch| matcher.case_sensitive.is_some_and(|on| !on.value);
    if ignores_case(later) && !ignores_case(earlier) {
        return false;
    }
    let text = |value: &str| if ignores_case(earlier) { value.to_ascii_lowercase() } else { value.to_owned() };
    match (&earlier.path_specifier, &later.path_specifier) {
        (Some(PathSpecifier::Prefix(prefix)), Some(PathSpecifier::Prefix(path) | PathSpecifier::Path(path))) => {
            text(path).starts_with(&text(prefix))
        }
        (Some(PathSpecifier::Path(one)), Some(PathSpecifier::Path(other))) => text(one) == text(other),
        (Some(PathSpecifier::SafeRegex(one)), Some(PathSpecifier::SafeRegex(other))) => one.regex == other.regex,
        (Some(PathSpecifier::SafeRegex(regex)), Some(PathSpecifier::Path(path))) => {
            FullRegex::new(&regex.regex).is_ok_and(|regex| regex.is_match(path))
        }
        _ => false,
    }
}

/// How many routes of a virtual host are compared with each other.
const MOST: usize = 2_000;
