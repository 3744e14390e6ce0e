//! Tests of the matchers: what is accepted, what is refused and where, what matches.

use envoy_types::pb::envoy::r#type::v3::Int64Range;
use envoy_types::pb::google::protobuf::{BoolValue, UInt32Value};
use proptest::prelude::*;

use super::*;

// === regular expressions ===

#[test]
fn a_pattern_must_match_the_whole_text() {
    // R-9
    let regex = FullRegex::new("a|ab").unwrap();
    assert_eq!(regex.pattern(), "a|ab");
    assert!(regex.is_match("a"));
    assert!(regex.is_match("ab"));
    assert!(!regex.is_match("abc"));
    assert!(!regex.is_match("xa"));
    assert!(!regex.is_match("a\n"));
    assert!(FullRegex::new("").unwrap().is_match(""));
    assert!(!FullRegex::new("").unwrap().is_match("a"));
}

#[test]
fn no_flag_lifts_the_anchors() {
    // R-9
    for pattern in ["(?m)a", "(?m)^a$", "(?i)A", "(?s)a", "(?U)a", "(?m:^a$)", "a|(?m)a"] {
        let regex = FullRegex::new(pattern).unwrap();
        assert!(regex.is_match("a"), "{pattern}");
        assert!(!regex.is_match("a\nb") && !regex.is_match("b\na") && !regex.is_match("ab"), "{pattern}");
    }
}

#[test]
fn a_pattern_cannot_leave_the_anchored_group() {
    // R-9
    for pattern in ["a)|(b", ")(", "a)|(?:b", r"a\Q(\E)|(b", "[(]a)|(b"] {
        assert_eq!(FullRegex::new(pattern), Err(RegexError::Parentheses), "{pattern}");
    }
    for pattern in ["(?x)#", "(?x: a #)\n)", "(?ix)a"] {
        assert_eq!(FullRegex::new(pattern), Err(RegexError::Flag('x')), "{pattern}");
    }
    assert_eq!(FullRegex::new("(?P<a[>x)|(?P<b>]y)"), Err(RegexError::GroupName));
    assert_eq!(FullRegex::new(r"a\"), Err(RegexError::Escape('\\')));
}

#[test]
fn invalid_patterns_are_refused_with_one_line() {
    // R-9
    for pattern in [
        "(",
        ")",
        "[",
        "[^",
        "[a-",
        "*",
        "(?u)a",
        "(?-u)a",
        "(?R)a",
        "(?=a)",
        "(?<=a)",
        "(?!a)",
        "(?P=a)",
        "(?#a)",
        r"(a)\1",
        r"\C",
        r"\ ",
        r"\",
        r"\u{61}",
        r"\p{Nonsense}",
        r"\x{zz}",
        r"\x{61",
        "[[:nonsense:]]",
        "[z-a]",
        r"[a-\d]",
        "{2}",
        "(?P<>a)",
        "(?P<a>x)(?P<a>y)",
    ] {
        let error = FullRegex::new(pattern).expect_err(pattern);
        assert!(!error.to_string().contains('\n'), "{pattern}: {error}");
    }
}

#[test]
fn what_re2_does_not_repeat_is_refused() {
    for pattern in ["a++", "a**", "a*+", "a{2}{3}", "a???", "a{2000}", "a{1,1001}", "a{99999999999}"] {
        assert_eq!(FullRegex::new(pattern), Err(RegexError::Repetition), "{pattern}");
    }
    for (pattern, text) in
        [("a+?", "aa"), ("a??b", "b"), ("a{2}?", "aa"), ("(a+)+", "aaa"), ("(?i)a", "A"), ("a{,2}", "a{,2}")]
    {
        assert!(FullRegex::new(pattern).is_ok_and(|regex| regex.is_match(text)), "{pattern}");
    }
}

#[test]
fn huge_patterns_are_refused() {
    // R-9: a few bytes must not cost many megabytes.
    for pattern in [r"\pL{1000}", "((a{100}){100}){100}", r"(?:[^\x00]{999}){999}"] {
        assert_eq!(FullRegex::new(pattern), Err(RegexError::TooLarge), "{pattern}");
    }
    assert_eq!(FullRegex::new(&"a".repeat(1 << 20)), Err(RegexError::TooLarge));
    assert!(FullRegex::new(&"(".repeat(super::error::MAX_PATTERN)).is_err());
    assert!(FullRegex::new(&format!("{}{}", "(".repeat(10_000), ")".repeat(10_000))).is_err());
}

#[test]
fn patterns_mean_what_they_mean_in_re2() {
    // R-9
    for (pattern, yes, no) in [
        // Perl classes are ASCII.
        (r"\d", "7", "٣"),
        (r"\D", "٣", "7"),
        (r"\w", "a", "é"),
        (r"\W", "é", "_"),
        (r"\s", "\t", "\u{b}"),
        (r"\S", "\u{a0}", " "),
        (r"[\d.]+", "1.2", "1a"),
        (r"[^\D]", "1", "a"),
        (r"é\bx", "éx", "éy"),
        (r"a\Bb", "ab", "a"),
        // No set operations and no nested classes.
        ("[a&&b]", "&", "x"),
        ("[a~~b]", "~", "x"),
        ("[+--]", ",", "/"),
        ("[--/]", ".", "0"),
        ("[a-]", "-", "b"),
        ("[[a]", "[", "x"),
        ("[[:a]", ":", "x"),
        ("[]a]", "]", "x"),
        ("[^]a]", "x", "]"),
        ("[a^]", "^", "x"),
        (r"[\]\-\\]", "\\", "x"),
        ("[[:alpha:]]", "a", "1"),
        ("[[:^alpha:]]", "1", "a"),
        (r"[\x{61}\x62\t]", "b", "c"),
        (r"[\pL]", "é", "1"),
        // Braces that are no repetition.
        ("a{", "a{", "a"),
        ("a{,2}", "a{,2}", "aa"),
        ("a{b}", "a{b}", "a"),
        ("/v1/{id}", "/v1/{id}", "/v1/id"),
        ("a{2}", "aa", "a"),
        ("a{2,}", "aaa", "a"),
        ("a{1,2}", "aa", "aaa"),
        (r"x\b{start}", "x{start}", "x"),
        // Escapes.
        (r"\<a\>", "<a>", "a"),
        (r"\Qa.b\E+", "a.bb", "axb"),
        (r"\Q(\", r"(\", "("),
        (r"\.\*\/\-\#\&\~", ".*/-#&~", "a"),
        (r"\x41\x{42}\t", "AB\t", "AB"),
        (r"\pL\p{Greek}\PN", "aαb", "a11"),
        (r"\Aa\z", "a", "b"),
        // Groups.
        ("(?P<n>a)(?<m>b)", "ab", "a"),
        ("(?i)ab(?-i:c)", "ABc", "abC"),
        ("(?i:a)b", "Ab", "AB"),
    ] {
        let regex = FullRegex::new(pattern).expect(pattern);
        assert!(regex.is_match(yes), "{pattern} should match {yes:?}");
        assert!(!regex.is_match(no), "{pattern} should not match {no:?}");
    }
}

#[test]
fn a_rewrite_replaces_every_match() {
    // R-53, L-42
    let rewrite =
        |pattern, substitution, text| RegexRewrite::new(pattern, substitution).unwrap().replace(text).into_owned();
    assert_eq!(rewrite("b", "x", "abcb"), "axcx");
    assert_eq!(rewrite("(a)(b)?", r"[\2\1\0\\]", "ab-a"), r"[baab\]-[aa\]");
    assert_eq!(rewrite("a", "$0", "a"), "$0");
    assert_eq!(rewrite("z", "x", "abc"), "abc");
    assert_eq!(rewrite("b*", "-", "abc"), "-a-c-");
    let same = RegexRewrite::new("a", "b").unwrap();
    assert_eq!((same.pattern(), same.substitution()), ("a", "b"));
    assert_eq!(same, RegexRewrite::new("a", "b").unwrap());
    assert_ne!(same, RegexRewrite::new("a", "c").unwrap());
}

#[test]
fn a_rewrite_with_a_bad_substitution_is_refused() {
    // R-53, R-1
    assert_eq!(RegexRewrite::new("(a)", r"\2"), Err(RegexError::NoSuchGroup(2)));
    assert_eq!(RegexRewrite::new("(a)", r"\x"), Err(RegexError::Substitution));
    assert_eq!(RegexRewrite::new("(a)", r"\"), Err(RegexError::Substitution));
    assert_eq!(RegexRewrite::new("a)(", ""), Err(RegexError::Parentheses));
}

proptest! {
    /// What we accept is a pattern of its own: it does not need our group to be one (R-9).
    #[test]
    fn accepted_patterns_stand_alone(pattern in r"[\[\]()?:|\\#^x\-&~{},0-9aQEdpP<>imsU*+.$ ]{0,24}", text in "[a0()#]{0,4}") {
        if let Ok(full) = FullRegex::new(&pattern) {
            let alone = ::regex::Regex::new(&re2::translate(&pattern).unwrap()).expect("balanced");
            prop_assert!(!full.is_match(&text) || alone.is_match(&text));
        }
    }

    #[test]
    fn no_pattern_panics(pattern in any::<String>(), substitution in any::<String>(), text in any::<String>()) {
        if let Ok(full) = FullRegex::new(&pattern) {
            let _ = full.is_match(&text);
        }
        if let Ok(rewrite) = RegexRewrite::new(&pattern, &substitution) {
            let _ = rewrite.replace(&text);
        }
    }
}

// === strings ===

#[test]
fn string_matchers_match() {
    // R-9, R-11
    for (pattern, text, as_written, ignoring_case) in [
        (MatchPattern::Exact("Ab".into()), "Ab", true, true),
        (MatchPattern::Exact("Ab".into()), "aB", false, true),
        (MatchPattern::Exact("Ab".into()), "Abc", false, false),
        (MatchPattern::Prefix("Ab".into()), "Abc", true, true),
        (MatchPattern::Prefix("Ab".into()), "aBc", false, true),
        (MatchPattern::Prefix("Ab".into()), "A", false, false),
        (MatchPattern::Prefix("".into()), "x", true, true),
        (MatchPattern::Prefix("é".into()), "e", false, false),
        (MatchPattern::Suffix("Bc".into()), "aBc", true, true),
        (MatchPattern::Suffix("Bc".into()), "abC", false, true),
        (MatchPattern::Suffix("Bc".into()), "c", false, false),
        (MatchPattern::Suffix("".into()), "", true, true),
        (MatchPattern::Suffix("c".into()), "é", false, false),
        (MatchPattern::Contains("Bc".into()), "aBcd", true, true),
        (MatchPattern::Contains("Bc".into()), "aBCd", false, true),
        (MatchPattern::Contains("Bc".into()), "abd", false, false),
        // Case is not ignored in patterns (A63).
        (MatchPattern::SafeRegex(regex("A.")), "Ab", true, true),
        (MatchPattern::SafeRegex(regex("A.")), "ab", false, false),
        (MatchPattern::SafeRegex(regex("A.")), "Abc", false, false),
    ] {
        for (ignore_case, expected) in [(false, as_written), (true, ignoring_case)] {
            let pb = pb_matcher::StringMatcher { ignore_case, match_pattern: Some(pattern.clone()) };
            let matcher = StringMatcher::parse(&pb, &mut Faults::new()).unwrap();
            assert_eq!(matcher.matches(text), expected, "{matcher:?} on {text:?}");
        }
    }
}

#[test]
fn string_matchers_without_a_usable_pattern_are_refused() {
    // R-9
    let custom = envoy_types::pb::xds::core::v3::TypedExtensionConfig::default();
    for (pattern, path) in [
        (None, ""),
        (Some(MatchPattern::Custom(custom)), "custom"),
        (Some(MatchPattern::SafeRegex(regex("("))), "safe_regex.regex"),
    ] {
        let pb = pb_matcher::StringMatcher { ignore_case: false, match_pattern: pattern };
        assert_eq!(fault(|f| StringMatcher::parse(&pb, f)), path);
    }
}

// === headers ===

#[test]
#[allow(deprecated)]
fn header_matchers_match() {
    // R-10, L-34 to L-36
    use HeaderMatchSpecifier as S;
    let string =
        |pattern, ignore_case| S::StringMatch(pb_matcher::StringMatcher { ignore_case, match_pattern: Some(pattern) });
    let range = |start, end| S::RangeMatch(Int64Range { start, end });
    for (specifier, value, plain, inverted) in [
        (S::ExactMatch("a".into()), Some("a"), true, false),
        (S::ExactMatch("a".into()), Some("A"), false, true),
        (S::ExactMatch("a".into()), None, false, false),
        (S::ExactMatch("".into()), None, false, false),
        (S::PrefixMatch("a".into()), Some("ab"), true, false),
        (S::PrefixMatch("".into()), Some(""), true, false),
        (S::SuffixMatch("b".into()), Some("ab"), true, false),
        (S::ContainsMatch("b".into()), Some("abc"), true, false),
        (S::SafeRegexMatch(regex("a+")), Some("aa"), true, false),
        (S::SafeRegexMatch(regex("a+")), Some("aab"), false, true),
        (S::SafeRegexMatch(regex(".*")), None, false, false),
        (string(MatchPattern::Exact("A".into()), true), Some("a"), true, false),
        (string(MatchPattern::Exact("A".into()), false), None, false, false),
        (range(-1, 3), Some("-1"), true, false),
        (range(-1, 3), Some("2"), true, false),
        (range(-1, 3), Some("3"), false, true),
        (range(-1, 3), Some("1.0"), false, true),
        (range(-1, 3), Some("9223372036854775808"), false, true),
        (range(-1, 3), None, false, false),
        (range(1, 1), Some("1"), false, true),
        (S::PresentMatch(true), Some(""), true, false),
        (S::PresentMatch(true), None, false, true),
        (S::PresentMatch(false), Some("a"), false, true),
        (S::PresentMatch(false), None, true, false),
    ] {
        for (invert_match, expected) in [(false, plain), (true, inverted)] {
            let pb = pb::HeaderMatcher {
                name: "X-Name".into(),
                invert_match,
                treat_missing_header_as_empty: true,
                header_match_specifier: Some(specifier.clone()),
            };
            let matcher = HeaderMatcher::parse(&pb, &mut Faults::new()).unwrap();
            assert_eq!(matcher.name, "x-name");
            assert_eq!(matcher.matches(value), expected, "{matcher:?} on {value:?}");
        }
    }
}

#[test]
#[allow(deprecated)]
fn header_matchers_without_a_usable_kind_are_refused() {
    // R-10
    use HeaderMatchSpecifier as S;
    for (specifier, path) in [
        (None, ""),
        (Some(S::SafeRegexMatch(regex("["))), "safe_regex_match.regex"),
        (Some(S::StringMatch(pb_matcher::StringMatcher::default())), "string_match"),
        (Some(S::RangeMatch(Int64Range { start: 2, end: 1 })), "range_match"),
    ] {
        let pb = pb::HeaderMatcher { header_match_specifier: specifier, ..Default::default() };
        assert_eq!(fault(|f| HeaderMatcher::parse(&pb, f)), path);
    }
}

#[test]
fn the_old_unsafe_regex_match_is_refused() {
    // R-10: field 5 of the v2 message is gone, so a matcher that has only it has no kind.
    let bytes: &[u8] = &[0x0a, 1, b'a', 0x2a, 1, b'b'];
    let pb: pb::HeaderMatcher = prost::Message::decode(bytes).unwrap();
    assert_eq!(pb.name, "a");
    assert_eq!(fault(|f| HeaderMatcher::parse(&pb, f)), "");
}

// === paths ===

#[test]
fn paths_match() {
    // R-43, R-45, L-33
    for (specifier, path, sensitive, insensitive) in [
        (PathSpecifier::Prefix("".into()), "/s/m", true, true),
        (PathSpecifier::Prefix("/S/".into()), "/S/m", true, true),
        (PathSpecifier::Prefix("/S/".into()), "/s/m", false, true),
        (PathSpecifier::Prefix("/S/m".into()), "/S/", false, false),
        (PathSpecifier::Path("/S/m".into()), "/S/m", true, true),
        (PathSpecifier::Path("/S/m".into()), "/s/M", false, true),
        (PathSpecifier::Path("/S/m".into()), "/S/mm", false, false),
        (PathSpecifier::SafeRegex(regex("/S/.")), "/S/m", true, true),
        (PathSpecifier::SafeRegex(regex("/S/.")), "/s/m", false, false),
        (PathSpecifier::SafeRegex(regex("/S/.")), "/S/mm", false, false),
    ] {
        for (case_sensitive, expected) in [
            (None, sensitive),
            (Some(BoolValue { value: true }), sensitive),
            (Some(BoolValue { value: false }), insensitive),
        ] {
            let pb = pb::RouteMatch { path_specifier: Some(specifier.clone()), case_sensitive, ..Default::default() };
            let matcher = PathMatcher::parse(&pb, &mut Faults::new()).unwrap();
            assert_eq!(matcher.matches(path), expected, "{matcher:?} on {path:?}");
        }
    }
}

#[test]
fn paths_of_other_kinds_are_refused() {
    // R-43
    for (specifier, path) in [
        (None, ""),
        (Some(PathSpecifier::ConnectMatcher(Default::default())), "connect_matcher"),
        (Some(PathSpecifier::PathSeparatedPrefix("/a".into())), "path_separated_prefix"),
        (Some(PathSpecifier::PathMatchPolicy(Default::default())), "path_match_policy"),
        (Some(PathSpecifier::SafeRegex(regex("("))), "safe_regex.regex"),
    ] {
        let pb = pb::RouteMatch { path_specifier: specifier, ..Default::default() };
        assert_eq!(fault(|f| PathMatcher::parse(&pb, f)), path);
    }
}

#[test]
#[allow(deprecated)]
fn the_program_size_of_the_resource_is_ignored() {
    // R-43
    let engine = pb_matcher::regex_matcher::GoogleRe2 { max_program_size: Some(UInt32Value { value: 1 }) };
    let regex = pb_matcher::RegexMatcher {
        engine_type: Some(pb_matcher::regex_matcher::EngineType::GoogleRe2(engine)),
        ..regex("/long/pattern/.*")
    };
    let pb = pb::RouteMatch { path_specifier: Some(PathSpecifier::SafeRegex(regex)), ..Default::default() };
    assert!(PathMatcher::parse(&pb, &mut Faults::new()).is_some());
}

#[test]
fn paths_that_no_method_has_are_known() {
    // R-44
    let prefix = |value: &str| PathMatcher::Prefix { value: value.into(), case_sensitive: true }.can_match_a_method();
    for value in ["", "/", "/s", "/s/", "/s/m"] {
        assert!(prefix(value), "{value:?}");
    }
    for value in ["s", "s/m", "//", "//m", "/s/m/", "/s/m/x", "/s//"] {
        assert!(!prefix(value), "{value:?}");
    }
    let exact = |value: &str| PathMatcher::Exact { value: value.into(), case_sensitive: true }.can_match_a_method();
    assert!(exact("/s/m"));
    for value in ["", "/", "s/m", "/s", "/s/", "//m", "/s/m/", "/s/m/x"] {
        assert!(!exact(value), "{value:?}");
    }
    assert!(PathMatcher::Regex(FullRegex::new("x").unwrap()).can_match_a_method());
}

// === helpers ===

fn regex(pattern: &str) -> pb_matcher::RegexMatcher {
    pb_matcher::RegexMatcher { regex: pattern.to_owned(), engine_type: None }
}

/// The path of the only fault.
fn fault<T: std::fmt::Debug>(parse: impl FnOnce(&mut Faults) -> Option<T>) -> String {
    let mut faults = Faults::new();
    assert!(parse(&mut faults).is_none());
    let invalid = faults.finish(()).unwrap_err();
    assert_eq!(invalid.faults().len(), 1, "{invalid}");
    invalid.faults()[0].path.clone()
}
