//! Which policies an RPC can be for (AZ-11).
//!
//! A policy that asks for a text, or for one of some, can match only RPCs that have one of them. So policies are found by
//! the texts of an RPC, and of a hundred that each want another path, header or name one is asked. Of all that a policy
//! asks for, it is found by what the fewest others ask for. Those that ask for no text are asked always.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_xds::resource::filter::{HeaderRule, HeaderSource, Policy, Rule};
use mainstay_xds::resource::matcher::{HeaderMatch, StringMatcher};

use crate::text_index::TextIndex;

/// The positions of policies, by the texts that they ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PolicyIndex {
    by_text: Box<[(Comparison, TextIndex)]>,
    /// Those that ask for no text, in order.
    others: Box<[u32]>,
}

/// The text of an RPC that a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// The path, without its query.
    Path,
    /// A header.
    Header(HeaderSource),
    /// Any of the names of the caller.
    Name,
}

/// How a rule compares a text of an RPC with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Comparison {
    subject: Subject,
    /// Whether the start of the RPC's text is enough.
    is_prefix: bool,
    any_case: bool,
}

/// A rule that compares texts.
type Term<'a> = (Comparison, &'a str);

impl PolicyIndex {
    pub(super) fn new(policies: &[Policy]) -> Self {
        let mut uses = BTreeMap::new();
        let rules = policies.iter().flat_map(|policy| policy.permissions.iter().chain(&policy.principals));
        rules.for_each(|rule| count(rule, &mut uses));

        let mut others = Vec::new();
        let mut by_text: BTreeMap<Comparison, BTreeMap<Box<[u8]>, Vec<u32>>> = BTreeMap::new();
        for (at, policy) in (0..).zip(policies) {
            let parts = [&policy.permissions, &policy.principals].map(|rules| one_of(rules, &uses));
            let Some(terms) = rarest(parts.into_iter().flatten(), &uses) else {
                others.push(at);
                continue;
            };
            for (comparison, text) in terms {
                by_text.entry(comparison).or_default().entry(text.as_bytes().into()).or_default().push(at);
            }
        }
        let index = |(comparison, by_text): (Comparison, _)| (comparison, TextIndex::new(comparison.any_case, by_text));
        Self { by_text: by_text.into_iter().map(index).collect(), others: others.into() }
    }

    /// Tells lists of policies that an RPC can be for, each in order, until all have been told. `values` tells the texts of
    /// the RPC.
    pub(super) fn candidates(&self, values: impl Fn(Subject, &mut dyn FnMut(&[u8])), tell: &mut impl FnMut(&[u32])) {
        for (Comparison { subject, is_prefix, .. }, index) in &self.by_text {
            values(*subject, &mut |value| match is_prefix {
                true => index.prefixes(value).for_each(&mut *tell),
                false => index.equal(value).into_iter().for_each(&mut *tell),
            });
        }
        tell(&self.others);
    }
}

/// Counts how often rules ask for a text. What is turned round asks for anything else.
fn count<'a>(rule: &'a Rule, uses: &mut BTreeMap<Term<'a>, usize>) {
    match rule {
        Rule::All(rules) | Rule::OneOf(rules) => rules.iter().for_each(|rule| count(rule, uses)),
        Rule::Header(_) | Rule::Path(_) | Rule::Authenticated(_) => {
            term(rule).into_iter().for_each(|term| *uses.entry(term).or_default() += 1);
        }
        Rule::Not(_)
        | Rule::Always
        | Rule::Never
        | Rule::LocalIp(_)
        | Rule::LocalPort { .. }
        | Rule::ServerName(_)
        | Rule::PeerIp(_) => {}
    }
}

/// Terms of which one must match for the rule to match; `None` if it can match without any that we know.
fn needed<'a>(rule: &'a Rule, uses: &BTreeMap<Term<'a>, usize>) -> Option<BTreeSet<Term<'a>>> {
    match rule {
        Rule::All(rules) => rarest(rules.iter().filter_map(|rule| needed(rule, uses)), uses),
        Rule::OneOf(rules) => one_of(rules, uses),
        Rule::Never => Some(BTreeSet::new()),
        Rule::Header(_) | Rule::Path(_) | Rule::Authenticated(_) => term(rule).map(|term| BTreeSet::from([term])),
        Rule::Not(_)
        | Rule::Always
        | Rule::LocalIp(_)
        | Rule::LocalPort { .. }
        | Rule::ServerName(_)
        | Rule::PeerIp(_) => None,
    }
}

/// The same for rules of which one must match.
fn one_of<'a>(rules: &'a [Rule], uses: &BTreeMap<Term<'a>, usize>) -> Option<BTreeSet<Term<'a>>> {
    rules.iter().try_fold(BTreeSet::new(), |mut terms, rule| {
        terms.extend(needed(rule, uses)?);
        Some(terms)
    })
}

/// Of several sets, each of which will do, the one that tells most.
fn rarest<'a>(
    sets: impl Iterator<Item = BTreeSet<Term<'a>>>,
    uses: &BTreeMap<Term<'a>, usize>,
) -> Option<BTreeSet<Term<'a>>> {
    sets.min_by_key(|terms| terms.iter().filter_map(|term| uses.get(term)).sum::<usize>())
}

/// The rule as a comparison of texts, if it is one.
fn term(rule: &Rule) -> Option<Term<'_>> {
    let (subject, matcher) = match rule {
        Rule::Path(matcher) => (Subject::Path, matcher),
        Rule::Authenticated(Some(matcher)) => (Subject::Name, matcher),
        Rule::Header(HeaderRule { source, matcher, missing_is_empty }) => match &matcher.kind {
            // An RPC without the header would not be found by what the header is.
            HeaderMatch::String(text) if !(matcher.invert || *missing_is_empty && text.matches_bytes(b"")) => {
                (Subject::Header(*source), text)
            }
            HeaderMatch::String(_) | HeaderMatch::Range { .. } | HeaderMatch::Present(_) => return None,
        },
        Rule::All(_)
        | Rule::OneOf(_)
        | Rule::Not(_)
        | Rule::Always
        | Rule::Never
        | Rule::LocalIp(_)
        | Rule::LocalPort { .. }
        | Rule::ServerName(_)
        | Rule::Authenticated(None)
        | Rule::PeerIp(_) => return None,
    };
    let (is_prefix, value, any_case) = match matcher {
        StringMatcher::Exact { value, ignore_case } => (false, value, *ignore_case),
        StringMatcher::Prefix { value, ignore_case } => (true, value, *ignore_case),
        StringMatcher::Suffix { .. } | StringMatcher::Contains { .. } | StringMatcher::Regex(_) => return None,
    };
    Some((Comparison { subject, is_prefix, any_case }, value))
}

#[cfg(test)]
mod tests {
    use mainstay_xds::resource::matcher::HeaderMatcher;

    use super::*;

    #[test]
    fn az11_policies_are_found_by_what_tells_them_apart() {
        let path = |n| Rule::Path(prefix(&format!("/shop.v{n}/")));
        let role = |n| header(exact(&format!("role-{n}")), false, false);
        let name = |n| Rule::Authenticated(Some(exact(&format!("spiffe://shop/{n}"))));
        let policy = |[path_of, role_of, name_of]: [usize; 3]| Policy {
            name: String::new(),
            permissions: vec![Rule::All(vec![path(path_of), role(role_of)])],
            principals: vec![name(name_of), name(name_of + 1_000)],
        };
        for distinct in 0..3 {
            let differs = |n: usize| std::array::from_fn(|at| if at == distinct { n } else { 7 });
            let policies: Vec<Policy> = (0..100).map(|n| policy(differs(n))).collect();
            let rpc: [String; 3] = ["/shop.v7/x".into(), "role-7".into(), "spiffe://shop/7".into()];
            assert_eq!(asked(&policies, &rpc), [7], "{distinct}");
            let rpc: [String; 3] = ["/shop.v700/x".into(), "role-700".into(), "spiffe://shop/700".into()];
            assert_eq!(asked(&policies, &rpc), [0_u32; 0], "{distinct}");
        }
    }

    #[test]
    fn az11_a_policy_that_can_match_without_a_text_is_always_asked() {
        let wanted = || Rule::Path(exact("/other/path"));
        let (any, elsewhere) = (vec![Rule::Always], ["", "", ""].map(str::to_owned));
        for (rule, is_asked) in [
            (wanted(), false),
            (Rule::Never, false),
            (Rule::OneOf(vec![wanted(), Rule::Never]), false),
            (Rule::All(vec![wanted(), Rule::Always]), false),
            (Rule::OneOf(vec![wanted(), Rule::Always]), true),
            (Rule::Not(Box::new(wanted())), true),
            (Rule::Not(Box::new(Rule::Never)), true),
            (Rule::Authenticated(None), true),
            (Rule::Path(StringMatcher::Suffix { value: "x".into(), ignore_case: false }), true),
            (header(exact("a"), false, false), false),
            (header(exact("a"), true, false), true),
            (header(exact("a"), false, true), false),
            (header(exact(""), false, true), true),
            (header(prefix(""), false, true), true),
        ] {
            for (permissions, principals) in [(vec![rule.clone()], any.clone()), (any.clone(), vec![rule.clone()])] {
                let policies = [Policy { name: String::new(), permissions, principals }];
                assert_eq!(asked(&policies, &elsewhere).len(), usize::from(is_asked), "{rule:?}");
            }
        }
    }

    /// Which policies are asked about an RPC with this path, header and name; empty is absent.
    fn asked(policies: &[Policy], [path, role, name]: &[String; 3]) -> Vec<u32> {
        let mut asked = Vec::new();
        PolicyIndex::new(policies).candidates(
            |subject, tell| {
                let text = match subject {
                    Subject::Path => path,
                    Subject::Header(_) => role,
                    Subject::Name => name,
                };
                Some(text.as_bytes()).filter(|text| !text.is_empty()).into_iter().for_each(tell);
            },
            &mut |policies| asked.extend(policies),
        );
        asked
    }

    fn header(matcher: StringMatcher, invert: bool, missing_is_empty: bool) -> Rule {
        let matcher = HeaderMatcher { name: "x-role".into(), kind: HeaderMatch::String(matcher), invert };
        Rule::Header(HeaderRule { source: HeaderSource::Named(0), matcher, missing_is_empty })
    }

    fn exact(value: &str) -> StringMatcher {
        StringMatcher::Exact { value: value.into(), ignore_case: false }
    }

    fn prefix(value: &str) -> StringMatcher {
        StringMatcher::Prefix { value: value.into(), ignore_case: false }
    }
}
