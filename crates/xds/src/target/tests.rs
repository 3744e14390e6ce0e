//! Targets and server listener names.

use proptest::prelude::*;

use super::{ServerListenerError, Target, TargetError};
use crate::bootstrap::{AuthorityOptions, Bootstrap, BootstrapBuilder, Guards, ServerConfig};
use crate::name::NameError;
use crate::name::tests::any_part;

#[test]
fn the_worked_examples_of_a47_hold() {
    // B-31, B-32, B-33: the table of spec section 5.
    let federated =
        build(with_authority(builder(), "xds.authority.com").client_default_listener_resource_name_template(
            "xdstp://xds.authority.com/envoy.config.listener.v3.Listener/%s",
        ));
    let name = "xdstp://xds.authority.com/envoy.config.listener.v3.Listener/server.example.com";
    assert_eq!(&*resolve("xds:server.example.com", &federated).listener, name);
    assert_eq!(&*resolve("xds://xds.authority.com/server.example.com", &federated).listener, name);
    let error = Target::resolve("xds://nope/server.example.com", &federated).unwrap_err();
    let target = "xds://nope/server.example.com".to_owned();
    assert_eq!(error, TargetError::UnknownAuthority { target, authority: "nope".to_owned() });
    assert_eq!(&*resolve("xds:server.example.com", &build(builder())).listener, "server.example.com");
}

#[test]
fn every_form_of_a_target_has_one_canonical_form() {
    // B-31, C-1
    let bootstrap = build(with_authority(with_authority(builder(), "auth"), "a b"));
    for (target, canonical, listener) in [
        ("xds:greeter", "xds:///greeter", "greeter"),
        ("xds:/greeter", "xds:///greeter", "greeter"),
        ("xds:///greeter", "xds:///greeter", "greeter"),
        ("xds:host:50051", "xds:///host:50051", "host:50051"),
        ("xds:///host:50051", "xds:///host:50051", "host:50051"),
        ("xds:///a/b", "xds:///a/b", "a/b"),
        ("xds:////a", "xds:////a", "/a"),
        ("xds:///a%20b", "xds:///a%20b", "a b"),
        ("xds:///100%", "xds:///100%25", "100%"),
        ("xds:///greeter?x=y#z", "xds:///greeter", "greeter"),
        ("xds://auth/g", "xds://auth/g", "xdstp://auth/envoy.config.listener.v3.Listener/g"),
        ("xds://a%20b/g", "xds://a%20b/g", "xdstp://a%20b/envoy.config.listener.v3.Listener/g"),
    ] {
        let resolved = resolve(target, &bootstrap);
        assert_eq!((&*resolved.canonical, &*resolved.listener), (canonical, listener), "{target}");
        assert_eq!(resolve(canonical, &bootstrap), resolved, "{target}");
    }
}

#[test]
fn a_target_without_a_service_is_invalid() {
    // B-31
    let bootstrap = build(with_authority(builder(), "auth"));
    for target in
        ["xds:", "xds:/", "xds:///", "xds://", "xds://auth", "xds://auth/", "xds:///a/", "xds:?q", "xds:a/", "xds:a%2F"]
    {
        assert_eq!(Target::resolve(target, &bootstrap), Err(TargetError::Path(target.to_owned())), "{target}");
    }
    for target in ["", "greeter", "dns:///greeter", "http://greeter", "XDS:a"] {
        assert_eq!(Target::resolve(target, &bootstrap), Err(TargetError::Scheme(target.to_owned())), "{target}");
    }
    assert_eq!(Target::resolve("xds:///%ff", &bootstrap), Err(TargetError::NotUtf8("xds:///%ff".to_owned())));
}

#[test]
fn the_template_of_the_targets_authority_is_used_and_no_other() {
    // B-32, B-34: every %s is replaced by the encoded path.
    let template = "xdstp://auth/envoy.config.listener.v3.Listener/x/%s?id=%s";
    let options =
        AuthorityOptions { client_listener_resource_name_template: Some(template.to_owned()), ..Default::default() };
    let bootstrap =
        build(builder().authority("auth", options).client_default_listener_resource_name_template(
            "xdstp://auth/envoy.config.listener.v3.Listener/default/%s",
        ));
    let named = resolve("xds://auth/a%20b/[c]", &bootstrap);
    let encoded = "a%20b/%5Bc%5D";
    assert_eq!(*named.listener, format!("xdstp://auth/envoy.config.listener.v3.Listener/x/{encoded}?id={encoded}"));
    // B-33: the entry of the default template's authority is only looked up.
    let default = resolve("xds:///svc", &bootstrap);
    assert_eq!(&*default.listener, "xdstp://auth/envoy.config.listener.v3.Listener/default/svc");
}

#[test]
fn a_template_may_have_any_number_of_places() {
    // B-34; old-style templates do not encode (B-33).
    for (template, listener) in [("%s", "a b%"), ("fixed", "fixed"), ("%s-%s?x=%s", "a b%-a b%?x=a b%")] {
        let bootstrap = build(builder().client_default_listener_resource_name_template(template));
        assert_eq!(&*resolve("xds:///a%20b%25", &bootstrap).listener, listener);
    }
    let template = "xdstp://auth/envoy.config.listener.v3.Listener/%s";
    let bootstrap = build(with_authority(builder(), "auth").client_default_listener_resource_name_template(template));
    assert_eq!(
        &*resolve("xds:///a%20b%25", &bootstrap).listener,
        "xdstp://auth/envoy.config.listener.v3.Listener/a%20b%25"
    );
}

#[test]
fn the_authority_of_the_default_template_must_be_known() {
    // B-33; B-26: "" is a key like any other.
    let template = |authority| format!("xdstp://{authority}/envoy.config.listener.v3.Listener/%s");
    for authority in ["nope", ""] {
        let bootstrap = builder().client_default_listener_resource_name_template(template(authority));
        let error = Target::resolve("xds:///svc", &build(bootstrap.clone())).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("target \"xds:///svc\": authority {authority:?} is not in the bootstrap's authorities")
        );
        let known = resolve("xds:///svc", &build(with_authority(bootstrap, authority)));
        assert_eq!(*known.listener, template(authority).replace("%s", "svc"));
    }
}

#[test]
fn a_template_that_makes_no_listener_name_is_an_error_of_the_target() {
    let template = "xdstp://auth/envoy.config.cluster.v3.Cluster/%s";
    let bootstrap = build(with_authority(builder(), "auth").client_default_listener_resource_name_template(template));
    let error = Target::resolve("xds:///svc", &bootstrap).unwrap_err();
    assert!(matches!(&error, TargetError::Listener { error: NameError::WrongType { .. }, .. }), "{error}");
}

#[test]
fn the_data_plane_authority_does_not_depend_on_the_template() {
    // B-35
    for template in ["%s", "other", "xdstp://auth/envoy.config.listener.v3.Listener/%s"] {
        let bootstrap =
            build(with_authority(builder(), "auth").client_default_listener_resource_name_template(template));
        for (target, authority) in [
            ("xds:///svc.example:8080", "svc.example:8080"),
            ("xds:///a/b/c", "a%2Fb%2Fc"),
            ("xds://auth/a/b", "a%2Fb"),
            ("xds:///[::1]:80", "[::1]:80"),
            ("xds:///a%20b", "a%20b"),
        ] {
            assert_eq!(&*resolve(target, &bootstrap).data_plane_authority, authority, "{target}");
        }
    }
}

#[test]
fn without_federation_targets_have_no_authorities_and_no_template() {
    // B-30
    let bootstrap = build(
        with_authority(builder(), "auth")
            .client_default_listener_resource_name_template("x/%s")
            .guards(Guards { federation: false, ..Guards::default() }),
    );
    assert_eq!(&*resolve("xds:///svc", &bootstrap).listener, "svc");
    assert_eq!(&*resolve("xds:xdstp://auth/x", &bootstrap).listener, "xdstp://auth/x");
    assert!(matches!(Target::resolve("xds://auth/svc", &bootstrap), Err(TargetError::UnknownAuthority { .. })));
}

// === Server listener names ===

#[test]
fn a_server_listener_name_has_the_listening_address() {
    // B-36: encoded in xdstp: names only, also in a query.
    let xdstp = "xdstp://auth/envoy.config.listener.v3.Listener/server/%s";
    for (template, address, name) in [
        ("grpc/server?addr=%s", "0.0.0.0:8080", "grpc/server?addr=0.0.0.0:8080"),
        ("grpc/server?addr=%s", "[::1]:80", "grpc/server?addr=[::1]:80"),
        ("fixed", "[::1]:80", "fixed"),
        (xdstp, "0.0.0.0:8080", "xdstp://auth/envoy.config.listener.v3.Listener/server/0.0.0.0:8080"),
        (xdstp, "[::]:8080", "xdstp://auth/envoy.config.listener.v3.Listener/server/%5B::%5D:8080"),
    ] {
        let bootstrap = build(with_authority(builder(), "auth").server_listener_resource_name_template(template));
        assert_eq!(bootstrap.server_listener_name(address.parse().unwrap()).as_deref(), Ok(name));
    }
}

#[test]
fn a_server_without_a_usable_template_has_no_listener() {
    // B-36
    let address = "[::]:1".parse().unwrap();
    assert_eq!(build(builder()).server_listener_name(address), Err(ServerListenerError::NoTemplate));

    let unknown = builder().server_listener_resource_name_template("xdstp://a/envoy.config.listener.v3.Listener/%s");
    let error = build(unknown).server_listener_name(address).unwrap_err();
    assert!(matches!(&error, ServerListenerError::UnknownAuthority { authority, .. } if authority == "a"), "{error}");

    let malformed = builder().server_listener_resource_name_template("xdstp:%s");
    let error = build(malformed).server_listener_name(address).unwrap_err();
    assert!(matches!(&error, ServerListenerError::Listener { error: NameError::Malformed(_), .. }), "{error}");
}

// === Properties ===

proptest! {
    #[test]
    fn no_target_panics_and_canonical_targets_stay(target in any_target()) {
        let bootstrap = build(with_authority(builder(), "a"));
        if let Ok(resolved) = Target::resolve(&target, &bootstrap) {
            prop_assert_eq!(Target::resolve(&resolved.canonical, &bootstrap), Ok(resolved));
        }
    }
}

fn any_target() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), ("xds:(//a?/)?", any_part()).prop_map(|(start, rest)| start + &rest)]
}

// === Helpers ===

fn resolve(target: &str, bootstrap: &Bootstrap) -> Target {
    Target::resolve(target, bootstrap).unwrap()
}

fn builder() -> BootstrapBuilder {
    Bootstrap::builder().server(ServerConfig::insecure("xds.example:443"))
}

fn with_authority(builder: BootstrapBuilder, name: &str) -> BootstrapBuilder {
    builder.authority(name, AuthorityOptions::default())
}

fn build(builder: BootstrapBuilder) -> Bootstrap {
    builder.build().unwrap()
}
