//! String, header and path matchers.

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::r#type::matcher::v3 as pb_matcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;

use crate::invalid::Faults;

mod error;
mod re2;
mod regex;
#[cfg(test)]
mod tests;

pub use self::error::RegexError;
pub use self::regex::{FullRegex, RegexRewrite};

/// `envoy.type.matcher.v3.StringMatcher`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StringMatcher {
    /// The whole value.
    Exact {
        /// What to compare with; lower case if `ignore_case`.
        value: String,
        /// Compare ASCII letters without case.
        ignore_case: bool,
    },
    /// The start of the value.
    Prefix {
        /// What to compare with; lower case if `ignore_case`.
        value: String,
        /// Compare ASCII letters without case.
        ignore_case: bool,
    },
    /// The end of the value.
    Suffix {
        /// What to compare with; lower case if `ignore_case`.
        value: String,
        /// Compare ASCII letters without case.
        ignore_case: bool,
    },
    /// Any part of the value.
    Contains {
        /// What to compare with; lower case if `ignore_case`.
        value: String,
        /// Compare ASCII letters without case.
        ignore_case: bool,
    },
    /// The whole value against a pattern; `ignore_case` does not apply.
    Regex(FullRegex),
}

/// `envoy.config.route.v3.HeaderMatcher`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatcher {
    /// Header name, lower case.
    pub name: String,
    /// What its value must be.
    pub kind: HeaderMatch,
    /// Turn the result round, for a header that is there (L-35).
    pub invert: bool,
}

/// What a header's value must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeaderMatch {
    /// A match on the text.
    String(StringMatcher),
    /// A decimal integer in `start..end` (L-36).
    Range {
        /// First value inside.
        start: i64,
        /// First value outside.
        end: i64,
    },
    /// The header is there (`true`) or not (`false`).
    Present(bool),
}

/// How a route matches `/service/method`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatcher {
    /// The start of the path; empty matches all.
    Prefix {
        /// As written.
        value: String,
        /// Whether letters must have the same case.
        case_sensitive: bool,
    },
    /// The whole path.
    Exact {
        /// As written.
        value: String,
        /// Whether letters must have the same case.
        case_sensitive: bool,
    },
    /// The whole path against a pattern.
    Regex(FullRegex),
}

// === impl StringMatcher ===

impl StringMatcher {
    /// Checks a StringMatcher; `faults` is at it.
    pub(crate) fn parse(pb: &pb_matcher::StringMatcher, faults: &mut Faults) -> Option<Self> {
        let ignore_case = pb.ignore_case;
        let text = |value: &String| if ignore_case { value.to_ascii_lowercase() } else { value.clone() };
        match &pb.match_pattern {
            Some(MatchPattern::Exact(value)) => Some(Self::Exact { value: text(value), ignore_case }),
            Some(MatchPattern::Prefix(value)) => Some(Self::Prefix { value: text(value), ignore_case }),
            Some(MatchPattern::Suffix(value)) => Some(Self::Suffix { value: text(value), ignore_case }),
            Some(MatchPattern::Contains(value)) => Some(Self::Contains { value: text(value), ignore_case }),
            Some(MatchPattern::SafeRegex(pb)) => faults.field("safe_regex", |f| full_regex(pb, f)).map(Self::Regex),
            Some(MatchPattern::Custom(_)) => {
                faults.field("custom", |f| f.add("not supported"));
                None
            }
            None => {
                faults.add("one of exact, prefix, suffix, contains and safe_regex must be set");
                None
            }
        }
    }

    /// Whether `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact { value, ignore_case } => same(text.as_bytes(), value.as_bytes(), *ignore_case),
            Self::Prefix { value, ignore_case } => starts_with(text, value, *ignore_case),
            Self::Suffix { value, ignore_case } => {
                let start = text.len().checked_sub(value.len());
                start.is_some_and(|start| same(&text.as_bytes()[start..], value.as_bytes(), *ignore_case))
            }
            Self::Contains { value, ignore_case: false } => text.contains(value),
            // A copy is better than a search that is quadratic.
            Self::Contains { value, ignore_case: true } => text.to_ascii_lowercase().contains(value),
            Self::Regex(regex) => regex.is_match(text),
        }
    }

    /// Whether `text` matches, byte by byte and without taking memory. To a pattern, what is not UTF-8 is U+FFFD.
    pub fn matches_bytes(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact { value, ignore_case } => same(text, value.as_bytes(), *ignore_case),
            Self::Prefix { value, ignore_case } => {
                text.get(..value.len()).is_some_and(|start| same(start, value.as_bytes(), *ignore_case))
            }
            Self::Suffix { value, ignore_case } => {
                let start = text.len().checked_sub(value.len());
                start.is_some_and(|start| same(&text[start..], value.as_bytes(), *ignore_case))
            }
            Self::Contains { value, ignore_case } => {
                // Windows must not be empty; every text contains nothing.
                value.is_empty() || text.windows(value.len()).any(|part| same(part, value.as_bytes(), *ignore_case))
            }
            Self::Regex(regex) => regex.is_match(&String::from_utf8_lossy(text)),
        }
    }
}

// === impl HeaderMatcher ===

impl HeaderMatcher {
    /// Checks a HeaderMatcher; `faults` is at it.
    pub(crate) fn parse(pb: &pb::HeaderMatcher, faults: &mut Faults) -> Option<Self> {
        let kind = HeaderMatch::parse(pb, faults)?;
        Some(Self { name: pb.name.to_ascii_lowercase(), kind, invert: pb.invert_match })
    }

    /// Whether a header with this value matches; `None` is a header that is not there (L-34).
    pub fn matches(&self, value: Option<&str>) -> bool {
        let matched = match (&self.kind, value) {
            (HeaderMatch::Present(wanted), value) => value.is_some() == *wanted,
            // What is not there does not match, inverted or not (L-35).
            (_, None) => return false,
            (HeaderMatch::String(matcher), Some(value)) => matcher.matches(value),
            (HeaderMatch::Range { start, end }, Some(value)) => {
                value.parse::<i64>().is_ok_and(|number| (*start..*end).contains(&number))
            }
        };
        matched != self.invert
    }

    /// The same for a value that may be any bytes.
    pub fn matches_bytes(&self, value: Option<&[u8]>) -> bool {
        let matched = match (&self.kind, value) {
            (HeaderMatch::Present(wanted), value) => value.is_some() == *wanted,
            (_, None) => return false,
            (HeaderMatch::String(matcher), Some(value)) => matcher.matches_bytes(value),
            (HeaderMatch::Range { start, end }, Some(value)) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                number.is_some_and(|number| (*start..*end).contains(&number))
            }
        };
        matched != self.invert
    }
}

impl HeaderMatch {
    // Control planes still send the fields that `string_match` has replaced.
    #[allow(deprecated)]
    fn parse(pb: &pb::HeaderMatcher, faults: &mut Faults) -> Option<Self> {
        let ignore_case = false;
        Some(match &pb.header_match_specifier {
            Some(HeaderMatchSpecifier::ExactMatch(value)) => {
                Self::String(StringMatcher::Exact { value: value.clone(), ignore_case })
            }
            Some(HeaderMatchSpecifier::PrefixMatch(value)) => {
                Self::String(StringMatcher::Prefix { value: value.clone(), ignore_case })
            }
            Some(HeaderMatchSpecifier::SuffixMatch(value)) => {
                Self::String(StringMatcher::Suffix { value: value.clone(), ignore_case })
            }
            Some(HeaderMatchSpecifier::ContainsMatch(value)) => {
                Self::String(StringMatcher::Contains { value: value.clone(), ignore_case })
            }
            Some(HeaderMatchSpecifier::SafeRegexMatch(pb)) => {
                Self::String(StringMatcher::Regex(faults.field("safe_regex_match", |f| full_regex(pb, f))?))
            }
            Some(HeaderMatchSpecifier::StringMatch(pb)) => {
                Self::String(faults.field("string_match", |f| StringMatcher::parse(pb, f))?)
            }
            Some(HeaderMatchSpecifier::RangeMatch(range)) if range.start > range.end => {
                faults.field("range_match", |f| {
                    f.add(format!("start {} is greater than end {}", range.start, range.end));
                });
                return None;
            }
            Some(HeaderMatchSpecifier::RangeMatch(range)) => Self::Range { start: range.start, end: range.end },
            Some(HeaderMatchSpecifier::PresentMatch(wanted)) => Self::Present(*wanted),
            None => {
                faults.add("a kind of match such as string_match must be set");
                return None;
            }
        })
    }
}

// === impl PathMatcher ===

impl PathMatcher {
    /// Checks the path of a RouteMatch; `faults` is at the RouteMatch.
    pub(crate) fn parse(pb: &pb::RouteMatch, faults: &mut Faults) -> Option<Self> {
        let case_sensitive = pb.case_sensitive.is_none_or(|pb| pb.value);
        let unsupported = match &pb.path_specifier {
            Some(PathSpecifier::Prefix(value)) => return Some(Self::Prefix { value: value.clone(), case_sensitive }),
            Some(PathSpecifier::Path(value)) => return Some(Self::Exact { value: value.clone(), case_sensitive }),
            Some(PathSpecifier::SafeRegex(pb)) => {
                return faults.field("safe_regex", |f| full_regex(pb, f)).map(Self::Regex);
            }
            Some(PathSpecifier::ConnectMatcher(_)) => "connect_matcher",
            Some(PathSpecifier::PathSeparatedPrefix(_)) => "path_separated_prefix",
            Some(PathSpecifier::PathMatchPolicy(_)) => "path_match_policy",
            None => {
                faults.add("one of prefix, path and safe_regex must be set");
                return None;
            }
        };
        faults.field(unsupported, |f| f.add("not supported: expected prefix, path or safe_regex"));
        None
    }

    /// Whether any `/service/method` can match at all. Patterns are not judged.
    pub(crate) fn can_match_a_method(&self) -> bool {
        match self {
            Self::Prefix { value, .. } => match value.strip_prefix('/').map(|path| path.split_once('/')) {
                Some(Some((service, method))) => !service.is_empty() && !method.contains('/'),
                Some(None) => true,
                None => value.is_empty(),
            },
            Self::Exact { value, .. } => {
                let parts = value.strip_prefix('/').and_then(|path| path.split_once('/'));
                parts
                    .is_some_and(|(service, method)| !service.is_empty() && !method.is_empty() && !method.contains('/'))
            }
            Self::Regex(_) => true,
        }
    }

    /// Whether `path`, such as `/service/method`, matches (L-33).
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Prefix { value, case_sensitive } => starts_with(path, value, !case_sensitive),
            Self::Exact { value, case_sensitive } => same(path.as_bytes(), value.as_bytes(), !case_sensitive),
            Self::Regex(regex) => regex.is_match(path),
        }
    }
}

// === helpers ===

/// Checks a RegexMatcher; `faults` is at it. Its engine and `max_program_size` are ignored.
fn full_regex(pb: &pb_matcher::RegexMatcher, faults: &mut Faults) -> Option<FullRegex> {
    faults.field("regex", |f| FullRegex::new(&pb.regex).map_err(|error| f.add(error.to_string())).ok())
}

fn same(text: &[u8], value: &[u8], ignore_case: bool) -> bool {
    if ignore_case { text.eq_ignore_ascii_case(value) } else { text == value }
}

fn starts_with(text: &str, value: &str, ignore_case: bool) -> bool {
    let start = text.as_bytes().get(..value.len());
    start.is_some_and(|start| same(start, value.as_bytes(), ignore_case))
}
