//! Resource names.

use proptest::prelude::*;

use super::{AuthorityKey, NameError, ResourceKey, is_glob};
use crate::resource::ResourceType;

#[test]
fn an_old_style_name_is_one_opaque_string_of_the_top_level_servers() {
    // P-81: nothing in it is looked at.
    for name in ["greeter", "a/b?z=1&a=2#x", "%zz", "", "xds://authority/x", "XDSTP://a/b"] {
        assert_eq!(parse(name), Ok((name.to_owned(), AuthorityKey::TopLevel)), "{name}");
    }
}

#[test]
fn without_federation_every_name_is_old_style() {
    // B-30
    let name = "xdstp://a/wrong?z=1&a=2";
    let (key, authority) = ResourceKey::parse(ResourceType::Cluster, name, false).unwrap();
    assert_eq!((&*key.name, authority), (name, AuthorityKey::TopLevel));
}

#[test]
fn canonical_names_are_equal_when_their_parts_are() {
    // P-84, P-85, P-87
    for (name, canonical) in [
        ("xdstp://a/{T}/id", "xdstp://a/{T}/id"),
        ("xdstp://a/{T}/x/y/z", "xdstp://a/{T}/x/y/z"),
        ("xdstp://a/{T}/id?b=1&a=2", "xdstp://a/{T}/id?a=2&b=1"),
        ("xdstp://a/{T}/id?a=2&b=1", "xdstp://a/{T}/id?a=2&b=1"),
        ("xdstp://a/{T}/id?B=1&a=2&A=3", "xdstp://a/{T}/id?A=3&B=1&a=2"),
        ("xdstp://a/{T}/id?a=1&a=2", "xdstp://a/{T}/id?a=2"),
        ("xdstp://a/{T}/id?a&&b=x=y&", "xdstp://a/{T}/id?a=&b=x%3Dy"),
        ("xdstp://a/{T}/id?k=a/b?c", "xdstp://a/{T}/id?k=a/b?c"),
        ("xdstp://a/{T}/id?k%26=%3d%26", "xdstp://a/{T}/id?k%26=%3D%26"),
        ("xdstp://a/{T}/id?", "xdstp://a/{T}/id"),
        ("xdstp://a/{T}/id#entry=1", "xdstp://a/{T}/id"),
        ("xdstp://a/{T}/id?k=v#alt=x?y", "xdstp://a/{T}/id?k=v"),
        ("xdstp://a/{T}/%41%2d%7e%3a%20", "xdstp://a/{T}/A-~:%20"),
        ("xdstp://a/{T}/a b\u{e9}", "xdstp://a/{T}/a%20b%C3%A9"),
        ("xdstp://a/{T}/a%2fb", "xdstp://a/{T}/a%2Fb"),
        ("xdstp://a/{T}/%ff", "xdstp://a/{T}/%FF"),
        ("xdstp://a/{T}//x/", "xdstp://a/{T}//x/"),
        ("xdstp://a/{T}/[::]:80", "xdstp://a/{T}/%5B::%5D:80"),
        ("xdstp://%61%20b/{T}/id", "xdstp://a%20b/{T}/id"),
    ] {
        let (name, canonical) = (of_listener(name), of_listener(canonical));
        assert_eq!(parse(&name).unwrap().0, canonical, "{name}");
    }
}

#[test]
fn an_encoded_slash_does_not_part_the_id() {
    // P-84: different ids.
    assert_ne!(parse(&of_listener("xdstp://a/{T}/x%2Fy")), parse(&of_listener("xdstp://a/{T}/x/y")));
}

#[test]
fn the_authority_of_a_name_is_decoded_and_may_be_empty() {
    // P-83
    for (name, authority) in
        [("xdstp:///{T}/id", ""), ("xdstp://xds.example:1/{T}/id", "xds.example:1"), ("xdstp://a%2Fb/{T}/id", "a/b")]
    {
        let authority = AuthorityKey::Named(authority.into());
        assert_eq!(parse(&of_listener(name)).unwrap().1, authority, "{name}");
        assert_ne!(authority, AuthorityKey::TopLevel);
    }
}

#[test]
fn the_type_segment_must_be_the_type_that_is_watched() {
    // P-82
    let wrong = "xdstp://a/envoy.config.cluster.v3.Cluster/id";
    let error = parse(wrong).unwrap_err();
    let expected = "envoy.config.listener.v3.Listener";
    assert_eq!(error, NameError::WrongType { found: "envoy.config.cluster.v3.Cluster".to_owned(), expected });
    assert!(ResourceKey::parse(ResourceType::Cluster, wrong, true).is_ok());
}

#[test]
fn a_malformed_name_says_what_was_expected() {
    // P-81: xdstp://[authority]/type/id
    for name in [
        "xdstp:",
        "xdstp://",
        "xdstp:{T}/id",
        "xdstp:/{T}/id",
        "xdstp://authority",
        "xdstp://authority?a=b/{T}/id",
        "xdstp://a/{T}",
        "xdstp://a/{T}/",
        "xdstp://a/{T}?a=b",
    ] {
        let error = parse(&of_listener(name)).unwrap_err();
        assert!(error.to_string().contains("is not of the form xdstp://[authority]/type/id"), "{name}: {error}");
    }
    for name in ["xdstp://a/{T}/%", "xdstp://a/{T}/%4", "xdstp://a/{T}/%zz", "xdstp://%/{T}/x", "xdstp://a/{T}/x?%=y"] {
        let error = parse(&of_listener(name)).unwrap_err();
        assert!(error.to_string().contains("two hexadecimal digits"), "{name}: {error}");
    }
    let error = parse(&of_listener("xdstp://%ff/{T}/x")).unwrap_err();
    assert_eq!(error.to_string(), "authority \"%ff\" is not UTF-8 once its percent-encoding is undone");
    assert!(matches!(parse("xdstp://a//id"), Err(NameError::WrongType { .. })));
}

#[test]
fn context_parameters_of_the_reserved_space_are_carried() {
    // P-86 binds whoever makes names; a watch for one must still find its answer.
    let name = of_listener("xdstp://a/{T}/id?xds.resource.listening_address=1.2.3.4:80");
    assert_eq!(parse(&name).unwrap().0, name);
}

/// A server reads the canonical form, in which a star has no percent-encoding: what is no glob in one spelling must not be
/// sent as one.
#[test]
fn an_encoded_star_is_the_glob_that_servers_are_sent_p90() {
    let kind = ResourceType::EndpointCollection;
    for (id, glob) in [
        ("x/*", true),
        ("x/%2A", true),
        ("x/%2a?zone=1", true),
        ("%2A#y", true),
        ("x/%2Ay", false),
        ("x%2F%2A", false),
        ("x/%252A", false),
        ("x?y=/%2A", false),
        ("x#/%2A", false),
    ] {
        let name = format!("xdstp://a/{}/{id}", kind.message_name());
        let (key, _) = ResourceKey::parse(kind, &name, true).unwrap();
        assert_eq!([is_glob(&name), is_glob(&key.name)], [glob; 2], "{name} is sent as {}", key.name);
    }
}

// === Properties ===

proptest! {
    #[test]
    fn no_name_panics_and_canonical_names_stay(name in any_name()) {
        // P-84: the canonical form of a canonical form is itself.
        for resource_type in ResourceType::ALL {
            if let Ok((key, authority)) = ResourceKey::parse(resource_type, &name, true) {
                prop_assert_eq!(is_glob(&name), is_glob(&key.name)); // P-90: whatever its spelling.
                let again = ResourceKey::parse(resource_type, &key.name, true);
                prop_assert_eq!(again, Ok((key, authority)));
            }
        }
    }
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        any_part().prop_map(|rest| format!("xdstp:{rest}")),
        (any_part(), any_part()).prop_map(|(authority, id)| of_listener(&format!("xdstp://{authority}/{{T}}/{id}"))),
        any_part().prop_map(|id| of_listener(&format!("xdstp://a/{{T}}/x{id}"))),
    ]
}

/// A part of a name made of all that means something in one.
pub(crate) fn any_part() -> impl Strategy<Value = String> {
    const TOKENS: [&str; 19] = [
        "a", "b", "/", "?", "&", "=", "#", ":", "[", " ", "\u{e9}", "%2f", "%3D", "%61", "%20", "%ff", "%", "*", "%2A",
    ];
    prop::collection::vec(prop::sample::select(&TOKENS[..]), 0..10).prop_map(|tokens| tokens.concat())
}

// === Helpers ===

fn parse(name: &str) -> Result<(String, AuthorityKey), NameError> {
    ResourceKey::parse(ResourceType::Listener, name, true).map(|(key, authority)| (key.name.to_string(), authority))
}

fn of_listener(name: &str) -> String {
    name.replace("{T}", ResourceType::Listener.message_name())
}
