//! What A41 and A59 say, read off the messages each time anew.

use std::collections::BTreeMap;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::CidrRange;
use envoy_types::pb::envoy::config::rbac::v3::permission::Rule;
use envoy_types::pb::envoy::config::rbac::v3::principal::Identifier;
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy, Principal};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::Rbac;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{PathMatcher, StringMatcher, path_matcher};

use super::draw::{Certificate, Rpc};
use super::{Defect, Outcome};

/// Whether a rule matches, or why it must be refused.
type Answer = Result<bool, String>;

const ALLOW: i32 = 0;
const DENY: i32 = 1;
const LOG: i32 = 2;

/// The reference. With a defect it says what an implementation in the field said.
pub(super) struct Naive(pub(super) Option<Defect>);

impl Naive {
    /// Says why a filter must be refused. Everything in it is asked about an RPC, whatever the answer is.
    pub(super) fn check(&self, pb: &Rbac) -> Result<(), String> {
        if pb.matcher.is_some() {
            return Err("a tree of matchers".into());
        }
        let Some(rules) = pb.rules.as_ref().filter(|rules| rules.action != LOG) else { return Ok(()) };
        if rules.action != ALLOW && rules.action != DENY {
            return Err("action".into());
        }
        for policy in rules.policies.values() {
            if policy.condition.is_some() || policy.checked_condition.is_some() {
                return Err("condition".into());
            }
            self.matches_policy(policy, &nobody())?;
        }
        let Some(audit) = &rules.audit_logging_options else { return Ok(()) };
        if !(0..=3).contains(&audit.audit_condition) {
            return Err("audit condition".into());
        }
        for logger in &audit.logger_configs {
            let any = logger.audit_logger.as_ref().and_then(|logger| logger.typed_config.as_ref());
            let any = any.ok_or("a logger without a type")?;
            if !any.type_url.ends_with("/envoy.extensions.rbac.audit_loggers.stream.v3.StdoutAuditLog")
                && !logger.is_optional
            {
                return Err("an unknown logger".into());
            }
        }
        Ok(())
    }

    /// What becomes of an RPC, if the filter is right. The policy is named only where it is told.
    pub(super) fn decide(&self, pb: &Rbac, rpc: &Rpc) -> Outcome {
        let Some(rules) = pb.rules.as_ref().filter(|rules| rules.action != LOG) else {
            return Outcome { allowed: true, policy: None, told: false };
        };
        let sorted: BTreeMap<&String, &Policy> = rules.policies.iter().collect();
        let matching: Vec<&String> = sorted
            .into_iter()
            .filter(|(_, policy)| self.matches_policy(policy, rpc) == Ok(true))
            .map(|(name, _)| name)
            .collect();
        let allowed = if rules.action == ALLOW { !matching.is_empty() } else { matching.is_empty() };
        let told = rules.audit_logging_options.as_ref().is_some_and(|audit| {
            let stdout = audit.logger_configs.iter().any(|logger| {
                let any = logger.audit_logger.as_ref().and_then(|logger| logger.typed_config.as_ref());
                any.is_some_and(|any| any.type_url.ends_with("StdoutAuditLog"))
            });
            let wanted = [[false, true, false, true], [false, false, true, true]][usize::from(allowed)];
            stdout && wanted[audit.audit_condition as usize]
        });
        Outcome { allowed, told, policy: matching.first().filter(|_| told).map(|name| (*name).clone()) }
    }

    fn matches_policy(&self, policy: &Policy, rpc: &Rpc) -> Answer {
        let permission = any(policy.permissions.iter().map(|pb| self.permission(pb, 0, rpc)).collect())?;
        let principal = any(policy.principals.iter().map(|pb| self.principal(pb, 0, rpc)).collect())?;
        Ok(permission && principal)
    }

    #[allow(deprecated)]
    fn permission(&self, pb: &Permission, depth: usize, rpc: &Rpc) -> Answer {
        if depth > 16 {
            return Err("too deep".into());
        }
        let each =
            |rules: &[Permission]| rules.iter().map(|pb| self.permission(pb, depth + 1, rpc)).collect::<Vec<Answer>>();
        match pb.rule.as_ref().ok_or("no rule")? {
            Rule::AndRules(set) => all(each(&set.rules)),
            Rule::OrRules(set) => any(each(&set.rules)),
            Rule::NotRule(pb) => self.permission(pb, depth + 1, rpc).map(|matched| !matched),
            Rule::Any(true) => Ok(true),
            Rule::Any(false) => Err("not any".into()),
            Rule::Header(pb) => self.header(pb, rpc),
            Rule::UrlPath(pb) => self.path(pb, rpc),
            Rule::DestinationIp(pb) => self.cidr(pb, rpc.local.ip()),
            Rule::DestinationPort(port) if *port > 65_535 => Err("no port".into()),
            Rule::DestinationPort(port) => Ok(u32::from(rpc.local.port()) == *port),
            Rule::DestinationPortRange(range) => {
                if range.start < 0 || range.start >= range.end || range.end > 65_536 {
                    return Err("no ports".into());
                }
                Ok((range.start..range.end).any(|port| port == i32::from(rpc.local.port())))
            }
            Rule::Metadata(pb) => Ok(pb.invert),
            Rule::RequestedServerName(pb) => self.string(pb, b""),
            Rule::Matcher(_) | Rule::UriTemplate(_) | Rule::SourcedMetadata(_) => self.unknown(),
        }
    }

    #[allow(deprecated)]
    fn principal(&self, pb: &Principal, depth: usize, rpc: &Rpc) -> Answer {
        if depth > 16 {
            return Err("too deep".into());
        }
        let each = |ids: &[Principal]| ids.iter().map(|pb| self.principal(pb, depth + 1, rpc)).collect::<Vec<Answer>>();
        match pb.identifier.as_ref().ok_or("no identifier")? {
            Identifier::AndIds(set) => all(each(&set.ids)),
            Identifier::OrIds(set) => any(each(&set.ids)),
            Identifier::NotId(pb) => self.principal(pb, depth + 1, rpc).map(|matched| !matched),
            Identifier::Any(true) => Ok(true),
            Identifier::Any(false) => Err("not any".into()),
            Identifier::Authenticated(pb) => match &pb.principal_name {
                None => Ok(!matches!(rpc.certificate, Certificate::Plaintext)),
                Some(pb) => self.authenticated(pb, &rpc.certificate),
            },
            Identifier::SourceIp(pb) | Identifier::DirectRemoteIp(pb) | Identifier::RemoteIp(pb) => {
                self.cidr(pb, rpc.peer.ip())
            }
            Identifier::Header(pb) => self.header(pb, rpc),
            Identifier::UrlPath(pb) => self.path(pb, rpc),
            Identifier::Metadata(pb) => Ok(pb.invert),
            Identifier::FilterState(_) | Identifier::SourcedMetadata(_) | Identifier::Custom(_) => self.unknown(),
        }
    }

    fn authenticated(&self, pb: &StringMatcher, certificate: &Certificate) -> Answer {
        let one = |names: &[String]| {
            let matched: Result<Vec<bool>, String> =
                names.iter().map(|name| self.string(pb, name.as_bytes())).collect();
            matched.map(|matched| matched.contains(&true))
        };
        match certificate {
            Certificate::Shown { uri, dns, subject } if self.has(Defect::FallsThrough) => {
                one(&[&uri[..], &dns[..], std::slice::from_ref(subject)].concat())
            }
            // Asked all the same, as it may be wrong.
            Certificate::Plaintext => self.string(pb, b"").map(|_| false),
            Certificate::None => self.string(pb, b""),
            Certificate::Shown { uri, .. } if !uri.is_empty() => one(uri),
            Certificate::Shown { dns, .. } if !dns.is_empty() => one(dns),
            Certificate::Shown { subject, .. } => self.string(pb, subject.as_bytes()),
        }
    }

    fn path(&self, pb: &PathMatcher, rpc: &Rpc) -> Answer {
        let Some(path_matcher::Rule::Path(pb)) = &pb.rule else { return Err("no path".into()) };
        let end = rpc.path.find(['?', '#']).unwrap_or(rpc.path.len());
        self.string(pb, &rpc.path.as_bytes()[..end])
    }

    /// Addresses as texts of zeros and ones, with the family in front.
    fn cidr(&self, pb: &CidrRange, address: IpAddr) -> Answer {
        let prefix: IpAddr = pb.address_prefix.parse().map_err(|_| "no address")?;
        if pb.prefix_len.is_none() && self.has(Defect::WantsPrefixLength) {
            return Err("no prefix_len".into());
        }
        let len = pb.prefix_len.map_or(0, |len| len.value) as usize;
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => format!("{:032b}", u32::from(address)),
            IpAddr::V6(address) => format!("{:0128b}", u128::from(address)),
        };
        let is_mapped =
            |bits: &str| bits.len() == 128 && bits.starts_with(&(" ".repeat(80).replace(' ', "0") + &"1".repeat(16)));
        let range = bits(prefix);
        let range_of_v4 = range.len() == 32 || (is_mapped(&range) && len >= 96);
        let range = range.get(..len).ok_or("too long")?;
        let range = if range_of_v4 && prefix.is_ipv6() { &range[96..] } else { range };
        let address = bits(address);
        let address_of_v4 = address.len() == 32 || is_mapped(&address);
        let address = if address_of_v4 && address.len() == 128 { &address[96..] } else { &address };
        Ok(range_of_v4 == address_of_v4 && address.starts_with(range))
    }

    #[allow(deprecated)]
    fn header(&self, pb: &HeaderMatcher, rpc: &Rpc) -> Answer {
        let name = if self.has(Defect::HeaderCase) { pb.name.clone() } else { pb.name.to_lowercase() };
        if name == ":scheme" || name.starts_with("grpc-") {
            return Err("guarded".into());
        }
        let value = match name.as_str() {
            ":method" => Some(b"POST".to_vec()),
            ":path" => Some(rpc.path.clone().into_bytes()),
            ":authority" | "host" => Some(rpc.authority.clone().into_bytes()),
            "te" | "connection" => None,
            name if name.is_empty() || name.contains([':', ' ']) => return Err("no name".into()),
            name => {
                let values = rpc.headers.iter().filter(|(sent, _)| *sent == name).map(|(_, value)| *value);
                values.map(<[u8]>::to_vec).reduce(|joined, value| [joined, value].join(&b','))
            }
        };
        let is_there = value.is_some();
        let value = value.or_else(|| pb.treat_missing_header_as_empty.then(Vec::new));
        // Asked of some value in any case, as it may be wrong.
        let some = value.clone().unwrap_or_default();
        let matched = match pb.header_match_specifier.as_ref().ok_or("no specifier")? {
            HeaderMatchSpecifier::PresentMatch(wanted) => return Ok((is_there == *wanted) != pb.invert_match),
            HeaderMatchSpecifier::ExactMatch(text) => some == text.as_bytes(),
            HeaderMatchSpecifier::PrefixMatch(text) => some.starts_with(text.as_bytes()),
            HeaderMatchSpecifier::SuffixMatch(text) => some.ends_with(text.as_bytes()),
            HeaderMatchSpecifier::ContainsMatch(text) => contains(&some, text.as_bytes()),
            HeaderMatchSpecifier::SafeRegexMatch(pb) => self.pattern(&pb.regex, &some),
            HeaderMatchSpecifier::StringMatch(pb) => self.string(pb, &some)?,
            HeaderMatchSpecifier::RangeMatch(range) if range.start > range.end => return Err("no range".into()),
            HeaderMatchSpecifier::RangeMatch(range) => {
                let number = String::from_utf8(some).ok().and_then(|text| text.parse::<i64>().ok());
                number.is_some_and(|number| range.start <= number && number < range.end)
            }
        };
        Ok(value.is_some() && matched != pb.invert_match)
    }

    fn string(&self, pb: &StringMatcher, text: &[u8]) -> Answer {
        let case = |bytes: &[u8]| if pb.ignore_case { bytes.to_ascii_lowercase() } else { bytes.to_vec() };
        let folded = case(text);
        Ok(match pb.match_pattern.as_ref().ok_or("no pattern")? {
            MatchPattern::Exact(value) => folded == case(value.as_bytes()),
            MatchPattern::Prefix(value) => folded.starts_with(&case(value.as_bytes())),
            MatchPattern::Suffix(value) => folded.ends_with(&case(value.as_bytes())),
            MatchPattern::Contains(value) => contains(&folded, &case(value.as_bytes())),
            MatchPattern::SafeRegex(pb) => self.pattern(&pb.regex, text),
            MatchPattern::Custom(_) => return Err("custom".into()),
        })
    }

    /// Whether the whole text is one of the patterns between bars: letters, dots, and `*`, `+` and `?` after them.
    fn pattern(&self, pattern: &str, text: &[u8]) -> bool {
        let text: Vec<char> = String::from_utf8_lossy(text).chars().collect();
        if self.has(Defect::PartialMatch) {
            let mut parts = (0..=text.len()).flat_map(|start| (start..=text.len()).map(move |end| start..end));
            let is_one = |part: &[char]| pattern.split('|').any(|one| sequence(&one.chars().collect::<Vec<_>>(), part));
            return parts.any(|part| is_one(&text[part]));
        }
        pattern.split('|').any(|one| sequence(&one.chars().collect::<Vec<char>>(), &text))
    }

    fn unknown(&self) -> Answer {
        if self.has(Defect::DropsUnknown) { Ok(true) } else { Err("unknown".into()) }
    }

    fn has(&self, defect: Defect) -> bool {
        self.0 == Some(defect)
    }
}

fn all(answers: Vec<Answer>) -> Answer {
    if answers.is_empty() {
        return Err("empty".into());
    }
    answers.into_iter().collect::<Result<Vec<bool>, _>>().map(|answers| !answers.contains(&false))
}

fn any(answers: Vec<Answer>) -> Answer {
    if answers.is_empty() {
        return Err("empty".into());
    }
    answers.into_iter().collect::<Result<Vec<bool>, _>>().map(|answers| answers.contains(&true))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    (0..=text.len()).any(|start| text[start..].starts_with(part))
}

fn sequence(pattern: &[char], text: &[char]) -> bool {
    let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
    let is_first = |c: &&char| first == '.' || **c == first;
    let (least, most, rest) = match rest.split_first() {
        Some(('*', rest)) => (0, usize::MAX, rest),
        Some(('+', rest)) => (1, usize::MAX, rest),
        Some(('?', rest)) => (0, 1, rest),
        _ => (1, 1, rest),
    };
    let can = text.iter().take_while(is_first).count().min(most);
    (least..=can).any(|taken| sequence(rest, &text[taken..]))
}

/// An RPC to ask rules about when only their faults count.
fn nobody() -> Rpc {
    let address = ([127, 0, 0, 1], 1).into();
    let certificate = Certificate::Plaintext;
    Rpc { path: String::new(), authority: String::new(), headers: vec![], local: address, peer: address, certificate }
}
