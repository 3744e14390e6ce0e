//! Domain patterns of virtual hosts (R-38, L-31).

use super::super::fields::excerpt;
use crate::invalid::Faults;

/// A domain pattern, lower case. The order of the variants is the order of preference (L-31).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DomainPattern {
    /// The whole authority.
    Exact(String),
    /// `*suffix`, without the star.
    Suffix(String),
    /// `prefix*`, without the star.
    Prefix(String),
    /// `*`.
    Any,
}

impl DomainPattern {
    /// Checks a domain pattern; `faults` is at it.
    pub(crate) fn parse(domain: &str, faults: &mut Faults) -> Option<Self> {
        let lower = |text: &str| text.to_ascii_lowercase();
        let pattern = match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
            _ if domain.is_empty() => {
                faults.add("must not be empty");
                return None;
            }
            _ if domain == "*" => Self::Any,
            (Some(suffix), _) if !suffix.contains('*') => Self::Suffix(lower(suffix)),
            (None, Some(prefix)) if !prefix.contains('*') => Self::Prefix(lower(prefix)),
            (None, None) if !domain.contains('*') => Self::Exact(lower(domain)),
            _ => {
                let domain = excerpt(domain);
                faults
                    .add(format!("{domain} is not a domain pattern: one star is allowed, at the start or at the end"));
                return None;
            }
        };
        Some(pattern)
    }

    /// Whether a lower case authority matches. A star stands for at least one character, except alone.
    pub fn matches(&self, authority: &str) -> bool {
        match self {
            Self::Exact(domain) => authority == domain,
            Self::Suffix(suffix) => authority.len() > suffix.len() && authority.ends_with(suffix.as_str()),
            Self::Prefix(prefix) => authority.len() > prefix.len() && authority.starts_with(prefix.as_str()),
            Self::Any => true,
        }
    }

    /// How well a lower case authority matches, if it does; greater is better: first the kind, then the length.
    pub(super) fn rank(&self, authority: &str) -> Option<(u8, usize)> {
        let rank = match self {
            Self::Exact(domain) => (3, domain.len()),
            Self::Suffix(suffix) => (2, suffix.len()),
            Self::Prefix(prefix) => (1, prefix.len()),
            Self::Any => (0, 0),
        };
        self.matches(authority).then_some(rank)
    }
}
