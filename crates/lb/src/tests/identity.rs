//! Names of certificates against what clusters want.

use mainstay_xds::resource::matcher::{FullRegex, StringMatcher};
use mainstay_xds::resource::tls::{Roots, UpstreamTls};

use self::Kind::{Dns, Email, Ip, Uri};
use self::Pattern::{Contains, Exact, Prefix, Regex, Suffix};
use crate::identity::{SpiffeError, SpiffeId, SubjectAltNames, is_trust_domain};

/// TL-7: each row is a name in a certificate, what a matcher wants, and whether that is the same.
#[test]
fn an_exact_matcher_knows_wildcards_of_dns_names() {
    let rows = [
        ("shop.example.com", "shop.example.com", true),
        ("shop.example.com", "SHOP.example.COM", true),
        ("SHOP.Example.com", "shop.example.com", true),
        ("shop.example.com.", "shop.example.com", true),
        ("shop.example.com", "shop.example.com.", true),
        ("shop.example.com", "shop.example.org", false),
        ("shop.example.com", "example.com", false),
        ("*.example.com", "shop.example.com", true),
        ("*.example.com", "SHOP.EXAMPLE.COM", true),
        ("*.example.com.", "shop.example.com", true),
        ("*.example.com", "*.example.com", true),
        ("*.example.com", "example.com", false),
        ("*.example.com", ".example.com", false),
        ("*.example.com", "a.b.example.com", false),
        ("*.example.com", "shop.example.com.org", false),
        ("*.com", "example.com", false),
        ("*", "example", false),
        ("*.", "example.", false),
        ("f*.example.com", "foo.example.com", false),
        ("*f.example.com", "barf.example.com", false),
        ("shop.*.com", "shop.example.com", false),
        ("*.*.com", "shop.example.com", false),
        ("**.example.com", "shop.example.com", false),
        ("", "", false),
        ("shop.example.com", "", false),
        (".example.com", ".example.com", false),
    ];
    for (name, wanted, expected) in rows {
        let names = SubjectAltNames { dns: vec![name.to_owned()], ..SubjectAltNames::default() };
        assert_eq!(names.match_any(&[exact(wanted)]), expected, "{name:?} for {wanted:?}");
    }
}

/// TL-6, TL-7: every matcher on every kind of name, in the same case and in another, with and without `ignore_case`, and
/// on a wildcard.
#[test]
fn every_matcher_knows_every_kind_of_name() {
    let rows: &[(Kind, &str, Pattern, &str, bool, bool)] = &[
        // kind, name in the certificate, matcher, what it wants, ignore_case, the same
        (Dns, "shop.example.com", Exact, "shop.example.com", false, true),
        (Dns, "shop.example.com", Exact, "SHOP.example.com", false, true),
        (Dns, "Shop.Example.com", Exact, "shop.example.com", true, true),
        (Dns, "shop.example.com", Exact, "shop.example", false, false),
        (Dns, "*.example.com", Exact, "shop.example.com", false, true),
        (Dns, "*.example.com", Exact, "SHOP.example.com", true, true),
        (Dns, "*.example.com", Exact, "a.shop.example.com", false, false),
        (Dns, "shop.example.com", Prefix, "shop.", false, true),
        (Dns, "shop.example.com", Prefix, "Shop.", false, false),
        (Dns, "shop.example.com", Prefix, "Shop.", true, true),
        (Dns, "*.example.com", Prefix, "shop.", false, false),
        (Dns, "*.example.com", Prefix, "*.ex", false, true),
        (Dns, "shop.example.com", Suffix, ".example.com", false, true),
        (Dns, "shop.example.com", Suffix, ".Example.com", false, false),
        (Dns, "shop.example.com", Suffix, ".Example.com", true, true),
        (Dns, "*.example.com", Suffix, "shop.example.com", false, false),
        (Dns, "*.example.com", Suffix, ".example.com", false, true),
        (Dns, "shop.example.com", Contains, "p.example", false, true),
        (Dns, "shop.example.com", Contains, "P.example", false, false),
        (Dns, "shop.example.com", Contains, "P.example", true, true),
        (Dns, "*.example.com", Contains, "shop", false, false),
        (Dns, "shop.example.com", Regex, "shop\\..*", false, true),
        (Dns, "shop.example.com", Regex, "Shop\\..*", false, false),
        (Dns, "shop.example.com", Regex, "example", false, false),
        (Dns, "*.example.com", Regex, "shop\\.example\\.com", false, false),
        (Uri, "spiffe://example.com/Shop", Exact, "spiffe://example.com/Shop", false, true),
        (Uri, "spiffe://example.com/Shop", Exact, "spiffe://example.com/shop", false, false),
        (Uri, "spiffe://example.com/Shop", Exact, "spiffe://example.com/shop", true, true),
        (Uri, "*.example.com", Exact, "shop.example.com", false, false),
        (Uri, "spiffe://*.example.com/x", Exact, "spiffe://shop.example.com/x", false, false),
        (Uri, "spiffe://example.com/Shop", Prefix, "spiffe://example.com/", false, true),
        (Uri, "spiffe://example.com/Shop", Prefix, "SPIFFE://", false, false),
        (Uri, "spiffe://example.com/Shop", Prefix, "SPIFFE://", true, true),
        (Uri, "spiffe://example.com/Shop", Suffix, "/Shop", false, true),
        (Uri, "spiffe://example.com/Shop", Suffix, "/shop", false, false),
        (Uri, "spiffe://example.com/Shop", Suffix, "/shop", true, true),
        (Uri, "spiffe://example.com/Shop", Contains, "//example.com", false, true),
        (Uri, "spiffe://example.com/Shop", Contains, "//Example.com", false, false),
        (Uri, "spiffe://example.com/Shop", Contains, "//Example.com", true, true),
        (Uri, "spiffe://example.com/Shop", Regex, "spiffe://.*/Shop", false, true),
        (Uri, "spiffe://example.com/Shop", Regex, "spiffe://.*/shop", false, false),
        (Uri, "spiffe://example.com/Shop", Regex, "spiffe://example.com", false, false),
        (Email, "Shop@example.com", Exact, "Shop@example.com", false, true),
        (Email, "Shop@example.com", Exact, "shop@example.com", false, false),
        (Email, "Shop@example.com", Exact, "shop@example.com", true, true),
        (Email, "*.example.com", Exact, "shop.example.com", false, false),
        (Email, "Shop@example.com", Prefix, "Shop@", false, true),
        (Email, "Shop@example.com", Prefix, "shop@", false, false),
        (Email, "Shop@example.com", Prefix, "shop@", true, true),
        (Email, "Shop@example.com", Suffix, "@example.com", false, true),
        (Email, "Shop@example.com", Suffix, "@EXAMPLE.com", false, false),
        (Email, "Shop@example.com", Suffix, "@EXAMPLE.com", true, true),
        (Email, "Shop@example.com", Contains, "hop@ex", false, true),
        (Email, "Shop@example.com", Contains, "HOP@ex", false, false),
        (Email, "Shop@example.com", Contains, "HOP@ex", true, true),
        (Email, "Shop@example.com", Regex, "[A-Z].*@example\\.com", false, true),
        (Email, "Shop@example.com", Regex, "@example\\.com", false, false),
        (Ip, "10.0.0.1", Exact, "10.0.0.1", false, true),
        (Ip, "10.0.0.1", Exact, "10.0.0.10", false, false),
        (Ip, "10.0.0.1", Exact, "*.0.0.1", false, false),
        (Ip, "2001:db8::a", Exact, "2001:db8::a", false, true),
        (Ip, "2001:db8::a", Exact, "2001:DB8::A", false, false),
        (Ip, "2001:db8::a", Exact, "2001:DB8::A", true, true),
        (Ip, "2001:db8:0:0:0:0:0:a", Exact, "2001:db8::a", false, true),
        (Ip, "2001:db8::a", Exact, "2001:0db8::a", false, false),
        (Ip, "10.0.0.1", Prefix, "10.0.", false, true),
        (Ip, "10.0.0.1", Prefix, "10.1.", false, false),
        (Ip, "2001:db8::a", Suffix, "::a", false, true),
        (Ip, "2001:db8::a", Suffix, "::A", false, false),
        (Ip, "2001:db8::a", Suffix, "::A", true, true),
        (Ip, "10.0.0.1", Contains, ".0.0.", false, true),
        (Ip, "10.0.0.1", Contains, ".1.0.", false, false),
        (Ip, "10.0.0.1", Regex, "10\\..*", false, true),
        (Ip, "10.0.0.1", Regex, "0\\.0\\.1", false, false),
    ];
    for &(kind, name, pattern, wanted, ignore_case, expected) in rows {
        let names = kind.of(name);
        let matcher = pattern.wanting(wanted, ignore_case);
        let row = format!("{kind:?} {name:?} for {pattern:?} {wanted:?}, ignore_case {ignore_case}");
        assert_eq!(names.match_any(&[matcher]), expected, "{row}");
    }
}

/// TL-7: a wildcard is a wildcard in a DNS name, and for an exact matcher; everywhere else it is a character.
#[test]
fn nothing_else_knows_wildcards() {
    let wildcard = "*.example.com".to_owned();
    for names in [
        SubjectAltNames { uri: vec![wildcard.clone()], ..SubjectAltNames::default() },
        SubjectAltNames { email: vec![wildcard.clone()], ..SubjectAltNames::default() },
    ] {
        assert!(!names.match_any(&[exact("shop.example.com")]), "{names}");
        assert!(names.match_any(&[exact("*.example.com")]), "{names}");
    }
    let names = SubjectAltNames { dns: vec![wildcard], ..SubjectAltNames::default() };
    for (matcher, expected) in [
        (prefix("shop."), false),
        (prefix("*."), true),
        (suffix("shop.example.com"), false),
        (suffix(".example.com"), true),
        (contains("shop"), false),
        (contains("example"), true),
        (regex("shop\\.example\\.com"), false),
        (regex("\\*\\.example\\.com"), true),
    ] {
        assert_eq!(names.match_any(std::slice::from_ref(&matcher)), expected, "{matcher:?}");
    }
}

/// S-23: every kind of name counts, and each kind of matcher works on each.
#[test]
fn every_kind_of_name_is_looked_at() {
    let names = SubjectAltNames {
        dns: vec!["shop.example.com".to_owned()],
        uri: vec!["spiffe://example.com/ns/prod/sa/Shop".to_owned()],
        email: vec!["shop@example.com".to_owned()],
        ip: vec!["10.0.0.1".parse().unwrap(), "2001:db8:0:0:0:0:0:1".parse().unwrap()],
    };
    for (matcher, expected) in [
        (exact("shop.example.com"), true),
        (exact("spiffe://example.com/ns/prod/sa/Shop"), true),
        (exact("spiffe://example.com/ns/prod/sa/shop"), false),
        (exact_ignoring_case("spiffe://EXAMPLE.com/ns/prod/sa/shop"), true),
        (exact("shop@example.com"), true),
        (exact("Shop@example.com"), false),
        (exact("10.0.0.1"), true),
        (exact("10.0.0.01"), false),
        (exact("2001:db8::1"), true),
        (exact("2001:db8:0:0:0:0:0:1"), false),
        (exact("2001:DB8::1"), false),
        (prefix("spiffe://example.com/"), true),
        (prefix("spiffe://other.com/"), false),
        (prefix("10.0."), true),
        (suffix("/sa/Shop"), true),
        (suffix("/sa/shop"), false),
        (suffix("::1"), true),
        (contains("/ns/prod/"), true),
        (contains("@example"), true),
        (contains("other"), false),
        (regex("spiffe://example\\.com/.*"), true),
        (regex("spiffe://example\\.com"), false),
        (regex("10\\.0\\.0\\..*"), true),
    ] {
        assert_eq!(names.match_any(std::slice::from_ref(&matcher)), expected, "{matcher:?}");
    }
    assert!(names.match_any(&[exact("nobody"), exact("10.0.0.1")]), "any of the matchers");
    assert!(!names.match_any(&[]), "none wants nothing");
}

/// S-23: an empty name is no name, whatever the matcher would say to it.
#[test]
fn an_empty_name_never_matches() {
    let empty = || vec![String::new()];
    let names = SubjectAltNames { dns: empty(), uri: empty(), email: empty(), ip: Vec::new() };
    for matcher in [exact(""), prefix(""), suffix(""), contains(""), regex(".*")] {
        assert!(!names.match_any(std::slice::from_ref(&matcher)), "{matcher:?}");
    }
    assert!(!SubjectAltNames::default().match_any(&[prefix(""), regex(".*")]), "nor does no name");
}

/// S-30: where the server name is to be validated, it counts in place of the matchers, and only DNS names do.
#[test]
fn the_server_name_replaces_the_matchers_where_it_is_to_be_validated() {
    let names = |dns: &str| SubjectAltNames {
        dns: vec![dns.to_owned()],
        uri: vec!["shop".to_owned()],
        ..SubjectAltNames::default()
    };
    let tls = |auto_sni_san_validation, matchers: &[StringMatcher]| UpstreamTls {
        roots: Roots::System,
        identity_instance: None,
        match_subject_alt_names: matchers.to_vec(),
        sni: None,
        auto_host_sni: false,
        auto_sni_san_validation,
    };
    let wants_other = [exact("other")];
    assert!(names("shop").satisfy(&tls(true, &wants_other), Some("shop")));
    assert!(names("*.example.com").satisfy(&tls(true, &wants_other), Some("shop.example.com")));
    assert!(!names("other").satisfy(&tls(true, &wants_other), Some("shop")), "a URI of that text is not a DNS name");
    assert!(!names("shop").satisfy(&tls(true, &wants_other), None), "no server name was sent: the matchers");
    assert!(names("other").satisfy(&tls(true, &wants_other), None));
    assert!(!names("shop").satisfy(&tls(false, &wants_other), Some("shop")));
    assert!(names("anyone").satisfy(&tls(false, &[]), Some("shop")), "no matchers: any certificate of the roots");
    assert!(SubjectAltNames::default().satisfy(&tls(false, &[]), None));
}

#[test]
fn spiffe_ids_are_read_as_the_standard_has_them() {
    let long_domain = format!("spiffe://{}/x", "d".repeat(256));
    let longest_domain = format!("spiffe://{}/x", "d".repeat(255));
    let long = format!("spiffe://d/{}", "p".repeat(2048));
    let rows = [
        ("spiffe://example.com/ns/prod/sa/shop", Ok(("example.com", "/ns/prod/sa/shop"))),
        ("spiffe://example.com", Ok(("example.com", ""))),
        ("spiffe://a_b-c.1/X.y_z-0", Ok(("a_b-c.1", "/X.y_z-0"))),
        ("spiffe://example.com/...", Ok(("example.com", "/..."))),
        (&longest_domain, Ok((&longest_domain[9..264], "/x"))),
        ("", Err(SpiffeError::Scheme)),
        ("https://example.com/x", Err(SpiffeError::Scheme)),
        ("SPIFFE://example.com/x", Err(SpiffeError::Scheme)),
        ("spiffe:/example.com/x", Err(SpiffeError::Scheme)),
        ("spiffe:///x", Err(SpiffeError::TrustDomain)),
        ("spiffe://", Err(SpiffeError::TrustDomain)),
        ("spiffe://Example.com/x", Err(SpiffeError::TrustDomain)),
        ("spiffe://example.com:443/x", Err(SpiffeError::TrustDomain)),
        ("spiffe://me@example.com/x", Err(SpiffeError::TrustDomain)),
        ("spiffe://example.com?q", Err(SpiffeError::TrustDomain)),
        ("spiffe://example.com#f", Err(SpiffeError::TrustDomain)),
        ("spiffe://[::1]/x", Err(SpiffeError::TrustDomain)),
        ("spiffe://exa%6dple.com/x", Err(SpiffeError::TrustDomain)),
        (&long_domain, Err(SpiffeError::TrustDomain)),
        ("spiffe://example.com/", Err(SpiffeError::Path)),
        ("spiffe://example.com/x/", Err(SpiffeError::Path)),
        ("spiffe://example.com//x", Err(SpiffeError::Path)),
        ("spiffe://example.com/./x", Err(SpiffeError::Path)),
        ("spiffe://example.com/../x", Err(SpiffeError::Path)),
        ("spiffe://example.com/x?q", Err(SpiffeError::Path)),
        ("spiffe://example.com/x#f", Err(SpiffeError::Path)),
        ("spiffe://example.com/%41", Err(SpiffeError::Path)),
        ("spiffe://example.com/\u{e4}", Err(SpiffeError::Path)),
        (&long, Err(SpiffeError::TooLong(2059))),
    ];
    for (uri, expected) in rows {
        assert_eq!(SpiffeId::parse(uri).map(|id| (id.trust_domain, id.path)), expected, "{uri}");
    }
    assert!(is_trust_domain("example.com") && !is_trust_domain("") && !is_trust_domain("a/b"));
}

/// A87: who has two ids might be anyone.
#[test]
fn a_workload_has_one_uri_only() {
    let names = |uris: &[&str]| SubjectAltNames {
        uri: uris.iter().map(|uri| (*uri).to_owned()).collect(),
        ..SubjectAltNames::default()
    };
    assert_eq!(names(&[]).spiffe_id(), Err(SpiffeError::Count(0)));
    assert_eq!(names(&["spiffe://a/x", "https://b"]).spiffe_id(), Err(SpiffeError::Count(2)));
    assert_eq!(names(&["spiffe://a/x"]).spiffe_id().map(|id| id.trust_domain), Ok("a"));
}

/// Kinds of names.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Dns,
    Uri,
    Email,
    Ip,
}

impl Kind {
    fn of(self, name: &str) -> SubjectAltNames {
        let names = || vec![name.to_owned()];
        match self {
            Dns => SubjectAltNames { dns: names(), ..SubjectAltNames::default() },
            Uri => SubjectAltNames { uri: names(), ..SubjectAltNames::default() },
            Email => SubjectAltNames { email: names(), ..SubjectAltNames::default() },
            Ip => SubjectAltNames { ip: vec![name.parse().expect("an address")], ..SubjectAltNames::default() },
        }
    }
}

/// Kinds of matchers.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Exact,
    Prefix,
    Suffix,
    Contains,
    Regex,
}

impl Pattern {
    fn wanting(self, value: &str, ignore_case: bool) -> StringMatcher {
        // As the parser leaves it.
        let value = if ignore_case { value.to_ascii_lowercase() } else { value.to_owned() };
        match self {
            Exact => StringMatcher::Exact { value, ignore_case },
            Prefix => StringMatcher::Prefix { value, ignore_case },
            Suffix => StringMatcher::Suffix { value, ignore_case },
            Contains => StringMatcher::Contains { value, ignore_case },
            Regex => regex(&value),
        }
    }
}

fn exact(value: &str) -> StringMatcher {
    StringMatcher::Exact { value: value.to_owned(), ignore_case: false }
}

fn exact_ignoring_case(value: &str) -> StringMatcher {
    StringMatcher::Exact { value: value.to_ascii_lowercase(), ignore_case: true }
}

fn prefix(value: &str) -> StringMatcher {
    StringMatcher::Prefix { value: value.to_owned(), ignore_case: false }
}

fn suffix(value: &str) -> StringMatcher {
    StringMatcher::Suffix { value: value.to_owned(), ignore_case: false }
}

fn contains(value: &str) -> StringMatcher {
    StringMatcher::Contains { value: value.to_owned(), ignore_case: false }
}

fn regex(pattern: &str) -> StringMatcher {
    StringMatcher::Regex(FullRegex::new(pattern).expect("a valid pattern"))
}
