//! Which virtual host is for an authority (L-31), without a copy of either in lower case.

use std::cmp::Ordering;

use mainstay_xds::resource::RouteConfig;
use mainstay_xds::resource::route::DomainPattern;

/// The domains of all virtual hosts, each with the place of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Domains {
    /// In order.
    exact: Box<[(Box<str>, usize)]>,
    /// The longest first.
    suffixes: Box<[(Box<str>, usize)]>,
    /// The longest first.
    prefixes: Box<[(Box<str>, usize)]>,
    any: Option<usize>,
}

impl Domains {
    pub(super) fn new(routes: &RouteConfig) -> Self {
        let (mut exact, mut suffixes, mut prefixes, mut any) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (place, host) in routes.virtual_hosts.iter().enumerate() {
            for domain in &host.domains {
                match domain {
                    DomainPattern::Exact(text) => exact.push((text.as_str().into(), place)),
                    DomainPattern::Suffix(text) => suffixes.push((text.as_str().into(), place)),
                    DomainPattern::Prefix(text) => prefixes.push((text.as_str().into(), place)),
                    DomainPattern::Any => any = any.or(Some(place)),
                }
            }
        }
        // Of equal patterns the first host stays.
        let by_text = |(a, _): &(Box<str>, usize), (b, _): &(Box<str>, usize)| a.cmp(b);
        exact.sort_by(by_text);
        exact.dedup_by(|(later, _), (earlier, _)| later == earlier);
        let longest_first = |(a, _): &(Box<str>, usize), (b, _): &(Box<str>, usize)| b.len().cmp(&a.len());
        suffixes.sort_by(longest_first);
        prefixes.sort_by(longest_first);
        Self { exact: exact.into(), suffixes: suffixes.into(), prefixes: prefixes.into(), any }
    }

    /// The place of the virtual host for `authority`.
    pub(super) fn find(&self, authority: &str) -> Option<usize> {
        let authority = authority.as_bytes();
        let compare =
            |domain: &str| -> Ordering { domain.bytes().cmp(authority.iter().map(|byte| byte.to_ascii_lowercase())) };
        if let Ok(at) = self.exact.binary_search_by(|(domain, _)| compare(domain)) {
            return Some(self.exact[at].1);
        }
        // A star stands for at least one character.
        let covers =
            |part: Option<&[u8]>, text: &str| part.is_some_and(|part| part.eq_ignore_ascii_case(text.as_bytes()));
        let ends_with = |(text, _): &&(Box<str>, usize)| {
            let start = authority.len().checked_sub(text.len()).filter(|start| *start > 0);
            covers(start.map(|start| &authority[start..]), text)
        };
        let starts_with =
            |(text, _): &&(Box<str>, usize)| text.len() < authority.len() && covers(authority.get(..text.len()), text);
        let found = self.suffixes.iter().find(ends_with).or_else(|| self.prefixes.iter().find(starts_with));
        found.map(|(_, place)| *place).or(self.any)
    }
}
