//! Random filters and RPCs, of few names and values, so that they meet.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use envoy_types::pb::envoy::config::rbac::v3::permission::Rule;
use envoy_types::pb::envoy::config::rbac::v3::principal::{Authenticated, Identifier};
use envoy_types::pb::envoy::config::rbac::v3::rbac::AuditLoggingOptions;
use envoy_types::pb::envoy::config::rbac::v3::rbac::audit_logging_options::AuditLoggerConfig;
use envoy_types::pb::envoy::config::rbac::v3::{self as pb, Permission, Policy, Principal, permission, principal};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::Rbac;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    MetadataMatcher, PathMatcher, RegexMatcher, StringMatcher, path_matcher,
};
use envoy_types::pb::envoy::r#type::v3::{Int32Range, Int64Range};
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use mainstay_xds::Choose;

/// Makes things at random.
pub(super) struct Draw<'a> {
    choose: &'a mut dyn Choose,
    /// Whether to leave out what other implementations are known to read otherwise.
    alike: bool,
}

/// An RPC as it comes.
#[derive(Clone, Debug)]
pub(super) struct Rpc {
    pub(super) path: String,
    pub(super) authority: String,
    pub(super) headers: Vec<(&'static str, &'static [u8])>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) certificate: Certificate,
}

/// What a client has shown of itself.
#[derive(Clone, Debug)]
pub(super) enum Certificate {
    Plaintext,
    None,
    Shown { uri: Vec<String>, dns: Vec<String>, subject: String },
}

impl<'a> Draw<'a> {
    pub(super) fn new(choose: &'a mut dyn Choose) -> Self {
        Self { choose, alike: false }
    }

    /// Makes only what grpc-go is known to read as we do. It takes empty lists and unknown ports for valid, knows no
    /// ranges of ports and no headers that count as empty, refuses empty prefixes, takes an empty header for none, decodes
    /// binary ones, looks at the query of a path, and does not unwrap IPv4 addresses in ranges.
    pub(super) fn alike(choose: &'a mut dyn Choose) -> Self {
        Self { choose, alike: true }
    }

    pub(super) fn rpc(&mut self) -> Rpc {
        let address = |draw: &mut Self| SocketAddr::new(draw.of(ADDRESSES).parse().expect("an address"), 0);
        let (mut local, peer) = (address(self), address(self));
        local.set_port(*self.of(PORTS) as u16);
        let certificate = match self.upto(4) {
            0 => Certificate::Plaintext,
            1 => Certificate::None,
            _ => Certificate::Shown { uri: self.names(), dns: self.names(), subject: self.text() },
        };
        let mut headers: Vec<_> = (0..self.upto(5)).map(|_| (*self.of(SENT_HEADERS), *self.of(VALUES))).collect();
        let mut path = (*self.of(PATHS)).to_owned();
        let mut authority = self.text();
        let mut certificate = certificate;
        if self.alike {
            headers.retain(|(name, value)| name.starts_with("x-") && !name.ends_with("-bin") && value.is_ascii());
            headers.retain(|(_, value)| !value.is_empty());
            if !path.starts_with('/') || path.contains(['?', '#']) {
                path = PATHS[0].to_owned();
            }
            if authority.is_empty() {
                authority = "a".to_owned();
            }
            if let Certificate::Shown { subject, .. } = &mut certificate {
                *subject = "CN=a".to_owned();
            }
        }
        Rpc { path, authority, headers, local, peer, certificate }
    }

    pub(super) fn filter(&mut self) -> Rbac {
        let rules = self.mostly().then(|| pb::Rbac {
            action: if self.alike || self.mostly() { self.upto(2) as i32 } else { self.upto(4) as i32 },
            policies: self.policies().into_iter().collect(),
            audit_logging_options: (!self.alike && self.seldom()).then(|| self.audit()),
        });
        let matcher = (!self.alike && self.rarely()).then(Default::default);
        Rbac { rules, matcher, ..Default::default() }
    }

    fn audit(&mut self) -> AuditLoggingOptions {
        let logger = |draw: &mut Self| {
            let type_url = format!("t/{}", draw.of(LOGGERS));
            let typed_config = (!draw.rarely()).then(|| Any { type_url, value: vec![] });
            let audit_logger = Some(TypedExtensionConfig { name: "l".into(), typed_config });
            AuditLoggerConfig { audit_logger, is_optional: draw.flip() }
        };
        let audit_condition = if self.rarely() { 4 } else { self.upto(4) as i32 };
        AuditLoggingOptions { audit_condition, logger_configs: (0..self.upto(3)).map(|_| logger(self)).collect() }
    }

    /// Few, as most filters have; or seldom many, so that several ask for the same thing.
    fn policies(&mut self) -> Vec<(String, Policy)> {
        if self.seldom() {
            return (0..self.upto(16)).map(|n| (format!("{}{n}", self.of(POLICIES)), self.policy())).collect();
        }
        (0..self.upto(4)).map(|_| ((*self.of(POLICIES)).to_owned(), self.policy())).collect()
    }

    fn policy(&mut self) -> Policy {
        Policy {
            permissions: self.some(|draw| draw.permission(0)),
            principals: self.some(|draw| draw.principal(0)),
            condition: self.rarely().then(Default::default),
            ..Default::default()
        }
    }

    #[allow(deprecated)]
    fn permission(&mut self, depth: usize) -> Permission {
        if self.rarely() {
            let rule = match self.upto(6) {
                0 => None,
                1 | 5 if self.alike => Some(Rule::Any(true)),
                1 => Some(Rule::Any(false)),
                2 => Some(Rule::Matcher(Default::default())),
                3 => Some(Rule::UriTemplate(Default::default())),
                4 => Some(Rule::SourcedMetadata(Default::default())),
                _ => {
                    return self
                        .deep(|inner| Permission { rule: Some(Rule::NotRule(Box::new(inner))) }, Rule::Any(true));
                }
            };
            return Permission { rule };
        }
        let kinds = if depth < 3 { 11 } else { 8 };
        let rule = match self.upto(kinds) {
            0 => Rule::Any(true),
            1 => Rule::Header(self.header()),
            2 => Rule::UrlPath(self.path()),
            3 => Rule::DestinationIp(self.cidr()),
            4 => Rule::DestinationPort(self.port()),
            5 if self.alike => Rule::DestinationPort(self.port()),
            5 => Rule::DestinationPortRange(Int32Range { start: *self.of(PORTS) as i32, end: *self.of(PORTS) as i32 }),
            6 => Rule::Metadata(MetadataMatcher { invert: self.flip(), ..Default::default() }),
            7 => Rule::RequestedServerName(self.string()),
            8 => Rule::NotRule(Box::new(self.permission(depth + 1))),
            9 => Rule::AndRules(permission::Set { rules: self.some(|draw| draw.permission(depth + 1)) }),
            _ => Rule::OrRules(permission::Set { rules: self.some(|draw| draw.permission(depth + 1)) }),
        };
        Permission { rule: Some(rule) }
    }

    #[allow(deprecated)]
    fn principal(&mut self, depth: usize) -> Principal {
        if self.rarely() {
            let identifier = match self.upto(5) {
                0 => None,
                1 => Some(Identifier::Any(self.alike)),
                2 => Some(Identifier::FilterState(Default::default())),
                3 => Some(Identifier::SourcedMetadata(Default::default())),
                _ => Some(Identifier::Custom(Default::default())),
            };
            return Principal { identifier };
        }
        let kinds = if depth < 3 { 11 } else { 8 };
        let identifier = match self.upto(kinds) {
            0 => Identifier::Any(true),
            1 => Identifier::Header(self.header()),
            2 => Identifier::UrlPath(self.path()),
            3 => Identifier::SourceIp(self.cidr()),
            4 => Identifier::DirectRemoteIp(self.cidr()),
            5 => Identifier::RemoteIp(self.cidr()),
            6 => Identifier::Metadata(MetadataMatcher { invert: self.flip(), ..Default::default() }),
            7 => {
                let principal_name = self.mostly().then(|| self.string());
                Identifier::Authenticated(Authenticated { principal_name })
            }
            8 => Identifier::NotId(Box::new(self.principal(depth + 1))),
            9 => Identifier::AndIds(principal::Set { ids: self.some(|draw| draw.principal(depth + 1)) }),
            _ => Identifier::OrIds(principal::Set { ids: self.some(|draw| draw.principal(depth + 1)) }),
        };
        Principal { identifier: Some(identifier) }
    }

    /// A rule about as deep as one may be.
    fn deep(&mut self, wrap: impl Fn(Permission) -> Permission, rule: Rule) -> Permission {
        let depth = 15 + self.upto(3);
        (0..depth).fold(Permission { rule: Some(rule) }, |inner, _| wrap(inner))
    }

    #[allow(deprecated)]
    fn header(&mut self) -> HeaderMatcher {
        use HeaderMatchSpecifier::{
            ContainsMatch, ExactMatch, PrefixMatch, PresentMatch, RangeMatch, SafeRegexMatch, StringMatch, SuffixMatch,
        };
        let specifier = match self.upto(16) {
            0 => ExactMatch(self.text()),
            1 => PrefixMatch(self.text()),
            2 => SuffixMatch(self.text()),
            3 => ContainsMatch(self.text()),
            4 => SafeRegexMatch(self.regex()),
            5 | 6 => {
                let (start, end) = (self.number(), self.number());
                let end = if self.alike { end.max(start) } else { end };
                RangeMatch(Int64Range { start, end })
            }
            7 | 8 => PresentMatch(self.flip()),
            _ => StringMatch(self.string()),
        };
        HeaderMatcher {
            name: self.header_name().into(),
            header_match_specifier: (!self.rarely()).then_some(specifier),
            invert_match: self.flip(),
            treat_missing_header_as_empty: !self.alike && self.seldom(),
        }
    }

    fn header_name(&mut self) -> &'static str {
        let name = *if self.rarely() { self.of(BAD_HEADERS) } else { self.of(HEADERS) };
        let is_seen_alike = name.to_lowercase().starts_with(['x', ':', 'g', 'h', 't']) && !name.ends_with("-bin");
        let is_bad = ["", "x a", ":status"].contains(&name);
        if self.alike && (!is_seen_alike || is_bad) { "x-a" } else { name }
    }

    fn port(&mut self) -> u32 {
        let port = *self.of(PORTS);
        if self.alike { port.min(65_535) } else { port }
    }

    fn path(&mut self) -> PathMatcher {
        let matcher = if self.mostly() {
            let path = (*self.of(PATHS)).to_owned();
            let pattern = match self.upto(3) {
                0 => MatchPattern::Exact(path),
                1 => MatchPattern::Prefix(path[..self.upto(path.len() as u64 + 1) as usize].to_owned()),
                _ => MatchPattern::Suffix(path[self.upto(path.len() as u64 + 1) as usize..].to_owned()),
            };
            StringMatcher { match_pattern: Some(self.not_empty(pattern)), ignore_case: self.flip() }
        } else {
            self.string()
        };
        PathMatcher { rule: (!self.rarely()).then_some(path_matcher::Rule::Path(matcher)) }
    }

    fn string(&mut self) -> StringMatcher {
        let pattern = match self.upto(12) {
            0..3 => MatchPattern::Exact(self.text()),
            3..6 => MatchPattern::Prefix(self.text()),
            6..8 => MatchPattern::Suffix(self.text()),
            8..11 => MatchPattern::Contains(self.text()),
            _ => MatchPattern::SafeRegex(self.regex()),
        };
        let pattern = self.not_empty(pattern);
        StringMatcher { match_pattern: (!self.rarely()).then_some(pattern), ignore_case: self.flip() }
    }

    fn not_empty(&self, pattern: MatchPattern) -> MatchPattern {
        use MatchPattern::{Contains, Exact, Prefix, Suffix};
        match pattern {
            Prefix(text) | Suffix(text) | Contains(text) if self.alike && text.is_empty() => Exact(text),
            pattern => pattern,
        }
    }

    fn regex(&mut self) -> RegexMatcher {
        RegexMatcher { regex: (*self.of(PATTERNS)).into(), ..Default::default() }
    }

    fn cidr(&mut self) -> CidrRange {
        let mut address = if self.rarely() { "nowhere" } else { *self.of(ADDRESSES) };
        if self.alike && address.starts_with("::ffff") {
            address = "::";
        }
        CidrRange {
            address_prefix: address.into(),
            prefix_len: self.mostly().then(|| UInt32Value { value: *self.of(LENGTHS) }),
        }
    }

    fn number(&mut self) -> i64 {
        self.upto(14) as i64 - 4
    }

    fn names(&mut self) -> Vec<String> {
        (0..self.upto(3)).map(|_| self.text()).collect()
    }

    fn text(&mut self) -> String {
        let text = *self.of(TEXTS);
        if self.alike && !text.is_ascii() { "b" } else { text }.into()
    }

    /// One to three of something; seldom none.
    fn some<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = if !self.alike && self.rarely() { 0 } else { 1 + self.upto(2) };
        (0..count).map(|_| make(self)).collect()
    }

    fn of<T>(&mut self, values: &'static [T]) -> &'static T {
        &values[self.upto(values.len() as u64) as usize]
    }

    fn upto(&mut self, bound: u64) -> u64 {
        self.choose.choose(bound)
    }

    fn flip(&mut self) -> bool {
        self.upto(2) == 1
    }

    fn mostly(&mut self) -> bool {
        self.upto(8) != 0
    }

    fn seldom(&mut self) -> bool {
        self.upto(8) == 7
    }

    /// Seldom enough for most filters to be right.
    fn rarely(&mut self) -> bool {
        self.upto(64) == 63
    }
}

const POLICIES: &[&str] = &["", "a", "B", "b", "zz"];
const PATHS: &[&str] =
    &["/a.A/x", "/a.A/y", "/b.B/x", "/a.A/x?q=1", "/a.A/x#f", "//a.A/x", "/A.a/X", "/a.A/x/", "?", ""];
const TEXTS: &[&str] =
    &["", "a", "b", "ab", "A", "aB", "a,b", "5", "-3", "POST", "/a.A/x", "spiffe://a/b", "CN=a", "ä"];
const VALUES: &[&[u8]] =
    &[b"", b"a", b"b", b"ab", b"A", b"aB", b"a,b", b"5", b"-3", b"+5", b"99", b"a\xff", b"\xc3\xa4"];
const PATTERNS: &[&str] =
    &["", ".*", ".+", "a", "a+", "a*b", "ab?", "a.b", ".", "a.*|b", "5|-3", "spiffe://a/.*", "/a.A/.+"];
const SENT_HEADERS: &[&str] = &["x-a", "x-b", "x-c-bin", "te", "host", "user-agent", "grpc-x", "connection"];
const HEADERS: &[&str] = &[
    "x-a",
    "x-a",
    "X-A",
    "x-b",
    "x-c-bin",
    "te",
    "Te",
    "host",
    "Host",
    ":authority",
    ":path",
    ":method",
    "user-agent",
    "connection",
    "x-1",
    "x-2",
    "x-3",
    "x-4",
    "x-5",
];
const BAD_HEADERS: &[&str] = &["grpc-x", "Grpc-X", ":scheme", ":Scheme", "", "x a", ":status", "grpc-"];
const ADDRESSES: &[&str] =
    &["10.0.0.1", "10.0.0.2", "10.1.0.1", "192.0.2.1", "::1", "2001:db8::1", "::ffff:10.0.0.1", "0.0.0.0", "::"];
const LENGTHS: &[u32] = &[0, 1, 7, 8, 15, 16, 24, 30, 31, 32, 32, 64, 96, 104, 127, 128, 33, 129];
const PORTS: &[u32] = &[0, 1, 80, 443, 443, 444, 65_535, 65_536];
const LOGGERS: &[&str] =
    &["envoy.extensions.rbac.audit_loggers.stream.v3.StdoutAuditLog", "example.Unknown", "stdout_logger"];
