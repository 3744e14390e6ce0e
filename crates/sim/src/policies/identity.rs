//! Names of certificates, against a naive reading of what clusters and SPIFFE say of them (A29, A87, A101).

use std::net::{IpAddr, Ipv4Addr};

use mainstay_lb::identity::{SpiffeError, SpiffeId, SubjectAltNames, is_trust_domain};
use mainstay_xds::Choose;
use mainstay_xds::resource::matcher::{FullRegex, StringMatcher};
use mainstay_xds::resource::tls::{Roots, UpstreamTls};

use crate::choose::Seeded;
use crate::invariant::{Invariant, Violation};

/// Some certificates and what may be asked of them.
pub(super) fn run(seed: u64) -> Result<(), Violation> {
    let mut draw = Draw(Seeded::new(seed ^ 0x1d));
    for _ in 0..ROUNDS {
        let names = draw.names();
        let matchers: Vec<_> = (0..draw.below(3)).map(|_| draw.matcher()).collect();
        let sni = draw.chance(2).then(|| draw.host());
        let auto = draw.chance(2);
        let tls = UpstreamTls {
            roots: Roots::System,
            identity_instance: None,
            match_subject_alt_names: matchers.iter().map(|(matcher, _)| matcher.clone()).collect(),
            sni: None,
            auto_host_sni: false,
            auto_sni_san_validation: auto,
        };
        let expected = match sni.as_ref().filter(|_| auto) {
            Some(sni) => names.dns.iter().any(|name| covers(name, sni)),
            None => matchers.is_empty() || matchers.iter().any(|(_, meaning)| meaning.is_met(&names)),
        };
        let is = names.satisfy(&tls, sni.as_deref());
        Invariant::Connections
            .holds(is == expected, || format!("{names} for {tls:?} and {sni:?}: {is}, expected {expected}"))?;
        let is_empty = names.dns.len() + names.uri.len() + names.email.len() + names.ip.len() == 0;
        Invariant::Connections.holds(names.is_empty() == is_empty, || format!("{names} is empty: {is_empty}"))?;

        let uri = draw.uri();
        let (read, expected) = (SpiffeId::parse(&uri), spiffe(&uri));
        let read = read.map(|id| (id.trust_domain, id.path));
        Invariant::Connections.holds(read == expected, || format!("{uri:?} is {read:?}: expected {expected:?}"))?;
        let domain = draw.domain();
        let is = is_trust_domain(&domain);
        Invariant::Connections.holds(is == is_domain(&domain), || format!("{domain:?} is a trust domain: {is}"))?;
        let id = names.spiffe_id().map(|id| (id.trust_domain, id.path));
        let expected =
            if names.uri.len() == 1 { spiffe(&names.uri[0]) } else { Err(SpiffeError::Count(names.uri.len())) };
        Invariant::Connections.holds(id == expected, || format!("{names} has {id:?}: expected {expected:?}"))?;
    }
    Ok(())
}

/// What a matcher means.
enum Meaning {
    Exact(String, bool),
    /// Whether a text is what it wants.
    Other(Box<dyn Fn(&str) -> bool>),
}

impl Meaning {
    fn is_met(&self, names: &SubjectAltNames) -> bool {
        let mut texts: Vec<String> = names.uri.iter().chain(&names.email).cloned().collect();
        texts.extend(names.ip.iter().map(ToString::to_string));
        texts.retain(|text| !text.is_empty());
        match self {
            Self::Exact(wanted, false) => names.dns.iter().any(|name| covers(name, wanted)) || texts.contains(wanted),
            Self::Exact(wanted, true) => {
                let is_same = |text: &String| text.eq_ignore_ascii_case(wanted);
                names.dns.iter().any(|name| covers(name, wanted)) || texts.iter().any(is_same)
            }
            Self::Other(fits) => texts.iter().chain(&names.dns).any(|text| !text.is_empty() && fits(text)),
        }
    }
}

/// Whether a DNS name of a certificate is, or covers, another one: label by label.
fn covers(name: &str, wanted: &str) -> bool {
    let labels = |text: &str| -> Vec<String> {
        let text = text.to_ascii_lowercase();
        let text = text.strip_suffix('.').unwrap_or(&text);
        text.split('.').map(str::to_owned).collect()
    };
    let (name, wanted) = (labels(name), labels(wanted));
    if name[0].is_empty() || wanted[0].is_empty() {
        return false;
    }
    let first_is_any = name[0] == "*" && name.len() > 2;
    let rest = if first_is_any { &name[1..] } else { &name[..] };
    !rest.concat().contains('*') && name.len() == wanted.len() && wanted.ends_with(rest)
}

/// Trust domain and path of a SPIFFE id, part by part.
fn spiffe(uri: &str) -> Result<(&str, &str), SpiffeError> {
    if uri.len() > 2048 {
        return Err(SpiffeError::TooLong(uri.len()));
    }
    if !uri.starts_with("spiffe://") {
        return Err(SpiffeError::Scheme);
    }
    let parts: Vec<&str> = uri["spiffe://".len()..].split('/').collect();
    if !is_domain(parts[0]) {
        return Err(SpiffeError::TrustDomain);
    }
    let is_good = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        !["", ".", ".."].contains(&part) && part.chars().all(is_plain)
    };
    if !parts[1..].iter().all(|part| is_good(part)) {
        return Err(SpiffeError::Path);
    }
    Ok((parts[0], &uri["spiffe://".len() + parts[0].len()..]))
}

fn is_domain(name: &str) -> bool {
    let allowed = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
    (1..=255).contains(&name.len()) && name.chars().all(|c| allowed.contains(c))
}

/// Names that are right, and almost right.
struct Draw(Seeded);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.0.choose(bound.max(1) as u64)).unwrap_or_default()
    }

    fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn one_of(&mut self, all: &[&str]) -> String {
        all[self.below(all.len())].to_owned()
    }

    fn host(&mut self) -> String {
        let first = self.one_of(&["*", "a", "A", "b", "", "f*", "**"]);
        let mut labels = vec![first];
        labels.extend((0..self.below(4)).map(|_| self.one_of(&["a", "b", "com", "COM", "*", ""])));
        labels.join(".") + if self.chance(5) { "." } else { "" }
    }

    /// Mostly of few parts, so that names and what is wanted meet.
    fn text(&mut self) -> String {
        match self.below(4) {
            0 => self.host(),
            1 => self.uri(),
            2 => self.one_of(&["a@b", "A@B", ""]),
            _ => self.one_of(&["10.0.0.1", "10.0.0.2"]),
        }
    }

    fn names(&mut self) -> SubjectAltNames {
        SubjectAltNames {
            dns: (0..self.below(3)).map(|_| self.host()).collect(),
            uri: (0..self.below(3)).map(|_| self.uri()).collect(),
            email: (0..self.below(2)).map(|_| self.one_of(&["a@b", "A@B", ""])).collect(),
            ip: (0..self.below(2)).map(|_| IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + self.below(2) as u8))).collect(),
        }
    }

    fn matcher(&mut self) -> (StringMatcher, Meaning) {
        let (value, ignore_case) = (self.text(), self.chance(3));
        // A matcher that ignores case has its text in lower case.
        let value = if ignore_case { value.to_ascii_lowercase() } else { value };
        let wanted = value.clone();
        let as_is = move |text: &str| if ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
        match self.below(5) {
            0 | 1 => (StringMatcher::Exact { value, ignore_case }, Meaning::Exact(wanted, ignore_case)),
            2 => {
                let fits = move |text: &str| as_is(text).find(&wanted) == Some(0);
                (StringMatcher::Prefix { value, ignore_case }, Meaning::Other(Box::new(fits)))
            }
            3 => {
                let fits = move |text: &str| {
                    let text = as_is(text);
                    text.len() >= wanted.len() && text.as_bytes()[text.len() - wanted.len()..] == *wanted.as_bytes()
                };
                (StringMatcher::Suffix { value, ignore_case }, Meaning::Other(Box::new(fits)))
            }
            _ if self.chance(3) => {
                let regex = FullRegex::new("a.*m").expect("a good pattern");
                let fits = |text: &str| text.len() > 1 && text.starts_with('a') && text.ends_with('m');
                (StringMatcher::Regex(regex), Meaning::Other(Box::new(fits)))
            }
            _ => {
                let fits = move |text: &str| as_is(text).find(&wanted).is_some();
                (StringMatcher::Contains { value, ignore_case }, Meaning::Other(Box::new(fits)))
            }
        }
    }

    fn domain(&mut self) -> String {
        match self.below(6) {
            0 => String::new(),
            1 => "d".repeat(254 + self.below(3)),
            2 => self.one_of(&["A", "a:1", "a b", "é", "a%20"]),
            _ => self.one_of(&["a", "example.org", "a-b_c.0"]),
        }
    }

    fn uri(&mut self) -> String {
        let scheme = if self.chance(8) {
            self.one_of(&["SPIFFE://", "spiffe:/", "https://", ""])
        } else {
            "spiffe://".to_owned()
        };
        let mut uri = scheme + &self.domain();
        for _ in 0..self.below(3) {
            uri += "/";
            uri += &self.one_of(&["ns", "A-b_c.1", "x", "", ".", "..", "a b", "%41", "a?b"]);
        }
        if self.chance(16) {
            // About as long as allowed.
            let length = 2047 + self.below(3);
            uri += "/";
            uri += &"p".repeat(length.saturating_sub(uri.len()));
        }
        uri
    }
}

/// How many certificates in one life.
const ROUNDS: usize = 12;
