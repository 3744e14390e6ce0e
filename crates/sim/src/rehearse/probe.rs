//! Requests for somebody's own routes: one for each route that can be reached.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_xds::Choose;
use mainstay_xds::resource::matcher::{FullRegex, HeaderMatch, HeaderMatcher, PathMatcher, StringMatcher};
use mainstay_xds::resource::route::Route;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::choose::Seeded;

/// A call that somebody could make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `/service/method`.
    pub path: String,
    /// Its metadata.
    pub headers: HeaderMap,
}

/// What chance says about the call number `at` of [`DRAWS`]: all of them together draw evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    at: u64,
    asked: u64,
}

/// So many calls are looked at to see where a request may lead.
pub(super) const DRAWS: u64 = 100;

impl Draws {
    pub(super) fn number(at: u64) -> Self {
        Self { at, asked: 0 }
    }
}

impl Choose for Draws {
    fn choose(&mut self, bound: u64) -> u64 {
        // Each question walks through all hundredths, in an order of its own.
        const STEPS: [u64; 3] = [1, 37, 61];
        let asked = self.asked;
        self.asked += 1;
        match STEPS.get(usize::try_from(asked).unwrap_or(usize::MAX)) {
            Some(step) => {
                let hundredth = (self.at * step) % DRAWS;
                let place = u128::from(bound) * u128::from(2 * hundredth + 1) / u128::from(2 * DRAWS);
                u64::try_from(place).unwrap_or_default()
            }
            None => Seeded::new(self.at.wrapping_mul(1_000_003).wrapping_add(asked)).choose(bound),
        }
    }
}

/// Requests that may reach a route, the plainest first. Whether one does is for whoever tries it to see.
pub(super) fn candidates(routes: &[Route], at: usize) -> Vec<Request> {
    let Some(route) = routes.get(at) else { return Vec::new() };
    let Some(headers) = headers(&route.headers) else { return Vec::new() };
    // Routes before it may be for calls without a header.
    let mut with_more = headers.clone();
    for matcher in routes[..at].iter().flat_map(|earlier| &earlier.headers) {
        let is_for_absence =
            matches!((&matcher.kind, matcher.invert), (HeaderMatch::Present(present), invert) if *present == invert);
        if let (true, Ok(name)) = (is_for_absence, HeaderName::from_bytes(matcher.name.as_bytes())) {
            with_more.entry(name).or_insert(HeaderValue::from_static("rehearsal"));
        }
    }
    let variants = if with_more == headers { vec![headers] } else { vec![headers, with_more] };
    let paths = paths(&route.path);
    let all = variants
        .iter()
        .flat_map(|headers| paths.iter().map(|path| Request { path: path.clone(), headers: headers.clone() }));
    all.collect()
}

/// The call that stands for all where there are no routes to go by.
pub(super) fn any() -> Request {
    Request { path: format!("/{SERVICE}/{}", METHODS[0]), headers: HeaderMap::new() }
}

fn paths(matcher: &PathMatcher) -> Vec<String> {
    match matcher {
        PathMatcher::Exact { value, .. } => vec![value.clone()],
        PathMatcher::Prefix { value, .. } => {
            let complete = |method: &&str| match value.as_str() {
                "" | "/" => format!("/{SERVICE}/{method}"),
                prefix if prefix.ends_with('/') => format!("{prefix}{method}"),
                prefix if prefix.matches('/').count() < 2 => format!("{prefix}/{method}"),
                prefix => format!("{prefix}{method}"),
            };
            let whole = (value.matches('/').count() == 2 && !value.ends_with('/')).then(|| value.clone());
            whole.into_iter().chain(METHODS.iter().map(complete)).collect()
        }
        PathMatcher::Regex(regex) => samples(regex),
    }
}

/// Headers that match all of these; `None` if it cannot be told which.
fn headers(matchers: &[HeaderMatcher]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for matcher in matchers {
        let Some(value) = value(matcher)? else { continue };
        let name = HeaderName::from_bytes(matcher.name.as_bytes()).ok()?;
        headers.entry(name).or_insert(HeaderValue::from_str(&value).ok()?);
    }
    Some(headers)
}

/// A value that matches; `Some(None)` if the header must not be there.
fn value(matcher: &HeaderMatcher) -> Option<Option<String>> {
    let other = || Some(Some("rehearsal".to_owned()));
    match (&matcher.kind, matcher.invert) {
        (HeaderMatch::Present(present), invert) if *present == invert => Some(None),
        (HeaderMatch::Present(_), _) => other(),
        (HeaderMatch::Range { start, .. }, false) => Some(Some(start.to_string())),
        (HeaderMatch::String(text), false) => match text {
            StringMatcher::Exact { value, .. }
            | StringMatcher::Prefix { value, .. }
            | StringMatcher::Suffix { value, .. }
            | StringMatcher::Contains { value, .. } => Some(Some(value.clone())),
            StringMatcher::Regex(regex) => samples(regex).into_iter().next().map(Some),
        },
        (HeaderMatch::Range { .. } | HeaderMatch::String(_), true) => other(),
    }
}

/// A few texts that match.
fn samples(regex: &FullRegex) -> Vec<String> {
    let Ok(hir) = regex_syntax::parse(regex.pattern()) else { return Vec::new() };
    let texts = (0..3).map(|turn| {
        let mut text = String::new();
        write(&hir, turn, &mut text);
        text
    });
    let mut samples: Vec<String> = texts.filter(|text| regex.is_match(text)).collect();
    samples.dedup();
    samples
}

/// Writes a text that the expression matches, if it does not look around itself. `turn` is for another one.
fn write(hir: &Hir, turn: usize, text: &mut String) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => text.push_str(&String::from_utf8_lossy(&literal.0)),
        HirKind::Class(Class::Unicode(class)) => {
            // Letters where they will do: a path or header value of them is a plain one.
            let has = |letter: &char| class.iter().any(|range| (range.start()..=range.end()).contains(letter));
            let plain = ['a', 'A', '0', 'x'].into_iter().cycle().skip(turn).take(4).find(has);
            text.extend(plain.or_else(|| class.iter().map(|range| range.start()).next()));
        }
        HirKind::Class(Class::Bytes(class)) => text.extend(class.iter().map(|range| char::from(range.start())).next()),
        HirKind::Repetition(repetition) => {
            let wanted = repetition.min.max(u32::try_from(turn.min(1) + usize::from(repetition.min == 0)).unwrap_or(1));
            let times = wanted.min(repetition.max.unwrap_or(u32::MAX));
            (0..times).for_each(|_| write(&repetition.sub, turn, text));
        }
        HirKind::Capture(capture) => write(&capture.sub, turn, text),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, turn, text)),
        HirKind::Alternation(ways) => {
            if let Some(way) = ways.get(turn % ways.len().max(1)) {
                write(way, turn, text);
            }
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        for (name, value) in &self.headers {
            write!(f, "  {name}: {}", value.to_str().unwrap_or("?"))?;
        }
        Ok(())
    }
}

const SERVICE: &str = "rehearsal.Service";
const METHODS: [&str; 3] = ["Method", "Rehearse", "Q7"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn draws_are_even_in_each_question() {
        for question in 0..3 {
            let mut seen = BTreeMap::new();
            for at in 0..DRAWS {
                let mut draws = Draws::number(at);
                (0..question).for_each(|_| _ = draws.choose(7));
                *seen.entry(draws.choose(10)).or_insert(0) += 1;
            }
            assert_eq!(seen, (0..10).map(|value| (value, 10)).collect(), "question {question}");
        }
    }

    #[test]
    fn texts_are_found_for_patterns() {
        for pattern in [
            "/hello\\.Greeter/Say.*",
            "/(a|b)\\.[A-Z][a-z]+/[^/]{2,5}",
            "^/svc/Get$",
            "(?i)/x/y",
            "v[0-9]+",
            ".*",
            "/a/\\d{3}",
        ] {
            let regex = FullRegex::new(pattern).unwrap();
            assert!(!samples(&regex).is_empty(), "{pattern}");
        }
    }
}
