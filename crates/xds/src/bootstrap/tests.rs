//! The bootstrap from JSON and from code.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    AuthorityOptions, Bootstrap, BootstrapBuilder, CallCreds, CertificateFiles, CertificateProviderConfig,
    ChannelCreds, Guards, IdentityFiles, MetadataValue, Node, NodeLocality, ServerConfig, ServerFeatures, ServerUri,
};
use crate::invalid::Invalid;
use crate::name::AuthorityKey;

// === The whole text ===

#[test]
fn the_complete_example_is_understood() {
    // Spec section 11; B-9, B-12, B-21, B-29, B-37.
    let bootstrap = parse(&complete()).unwrap();
    let primary = ServerConfig {
        features: ServerFeatures { trusted_xds_server: true, ..Default::default() },
        ..ServerConfig::tls(
            "xds-primary.example:443",
            CertificateFiles { ca_certificate_file: Some("/c/ca.pem".into()), ..Default::default() },
        )
    };
    let expected = Bootstrap::builder()
        .server(primary)
        .server(ServerConfig::insecure("xds-fallback.example:443"))
        .node(Node {
            id: "client-1".to_owned(),
            cluster: "c".to_owned(),
            locality: NodeLocality { region: "r".to_owned(), zone: "z".to_owned(), sub_zone: "s".to_owned() },
            metadata: BTreeMap::from([("k".to_owned(), MetadataValue::String("v".to_owned()))]),
        })
        .authority(
            "eds.example",
            AuthorityOptions {
                servers: vec![ServerConfig::insecure("eds1:443"), ServerConfig::insecure("eds2:443")],
                fallback_on_reachability_only: true,
                ..Default::default()
            },
        )
        .certificate_provider(
            "default",
            CertificateFiles {
                identity: Some(identity("/c/cert.pem", "/c/key.pem")),
                ca_certificate_file: Some("/c/ca.pem".into()),
                refresh_interval: Duration::from_secs(60),
                ..Default::default()
            },
        )
        .server_listener_resource_name_template("grpc/server?xds.resource.listening_address=%s")
        .build();
    assert_eq!(Ok(bootstrap), expected);
}

#[test]
fn the_smallest_bootstrap_has_every_default() {
    let bootstrap = parse(&minimal("a:1")).unwrap();
    assert_eq!(Ok(&bootstrap), Bootstrap::builder().server(ServerConfig::insecure("a:1")).build().as_ref());
    assert_eq!(bootstrap.node, Node::default());
    assert_eq!(bootstrap.client_default_listener_resource_name_template, "%s");
    assert_eq!(bootstrap.server_listener_resource_name_template, None);
    assert!(bootstrap.authorities.is_empty() && bootstrap.certificate_providers.is_empty());
}

#[test]
fn unknown_fields_are_ignored_everywhere() {
    // B-6; B-43 belongs to features that we do not have.
    let mut value = complete();
    for path in ["", "/xds_servers/0", "/xds_servers/0/channel_creds/1", "/xds_servers/0/channel_creds/1/config"]
        .into_iter()
        .chain(["/node", "/node/locality", "/authorities/eds.example", "/certificate_providers/default"])
        .chain(["/certificate_providers/default/config"])
    {
        value.pointer_mut(path).unwrap()["new_field"] = json!([{"any": 1}]);
    }
    value["allowed_grpc_services"] = json!({"dns:///a:443": {"channel_creds": [{"type": "google_default"}]}});
    assert_eq!(parse(&value), parse(&complete()));
}

#[test]
fn null_is_the_same_as_absent() {
    let mut value = minimal("a:1");
    for field in ["node", "authorities", "certificate_providers", "server_listener_resource_name_template"] {
        value[field] = Value::Null;
    }
    value["xds_servers"][0]["server_features"] = Value::Null;
    assert_eq!(parse(&value), parse(&minimal("a:1")));
    value["xds_servers"] = Value::Null;
    assert_eq!(faults(&value), ["xds_servers: must be set"]);
}

#[test]
fn malformed_json_is_an_error_with_line_and_column() {
    // B-3
    for (text, place) in [
        ("", "line 1 column 0"),
        ("{\n  \"xds_servers\": [,]\n}", "line 2 column 19"),
        ("{\"a\": 1", "line 1 column 7"),
        ("{} trailing", "line 1 column 4"),
    ] {
        let error = Bootstrap::parse(text, Guards::default()).unwrap_err().to_string();
        assert!(error.starts_with("not valid JSON: ") && error.ends_with(place), "{text:?}: {error}");
    }
}

#[test]
fn deep_nesting_is_refused_and_does_not_overflow() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{{\"node\": {{\"metadata\": {}1{}}}}}", open.repeat(200_000), close.repeat(200_000));
        let error = Bootstrap::parse(&deep, Guards::default()).unwrap_err().to_string();
        assert!(error.contains("recursion limit exceeded at line 1"), "{error}");
    }
}

#[test]
fn a_missing_or_empty_server_list_is_invalid() {
    // B-8
    assert_eq!(faults(&json!({})), ["xds_servers: must be set"]);
    assert_eq!(faults(&json!({"xds_servers": []})), ["xds_servers: must not be empty"]);
    assert_eq!(faults(&json!([])), ["found an array, expected an object"]);
}

#[test]
fn a_wrong_type_says_what_was_found_and_expected() {
    // B-7, B-14, B-16
    for (path, wrong, fault) in [
        ("/xds_servers", json!({}), "xds_servers: found an object, expected an array"),
        ("/xds_servers/1", json!("a"), "xds_servers[1]: found a string, expected an object"),
        ("/xds_servers/1/server_uri", json!(1), "xds_servers[1].server_uri: found a number, expected a string"),
        ("/xds_servers/0/channel_creds", json!({}), "xds_servers[0].channel_creds: found an object, expected an array"),
        (
            "/xds_servers/0/channel_creds/0",
            json!(true),
            "xds_servers[0].channel_creds[0]: found a boolean, expected an object",
        ),
        (
            "/xds_servers/0/channel_creds/0/type",
            json!([]),
            "xds_servers[0].channel_creds[0].type: found an array, expected a string",
        ),
        (
            "/xds_servers/0/channel_creds/1/config",
            json!("x"),
            "xds_servers[0].channel_creds[1].config: found a string, expected an object",
        ),
        (
            "/xds_servers/0/channel_creds/1/config/ca_certificate_file",
            json!(7),
            "xds_servers[0].channel_creds[1].config.ca_certificate_file: found a number, expected a string",
        ),
        (
            "/xds_servers/0/server_features",
            json!("xds_v3"),
            "xds_servers[0].server_features: found a string, expected an array",
        ),
        ("/node", json!([]), "node: found an array, expected an object"),
        ("/node/id", json!(1), "node.id: found a number, expected a string"),
        ("/node/locality", json!("r"), "node.locality: found a string, expected an object"),
        ("/node/locality/sub_zone", json!({}), "node.locality.sub_zone: found an object, expected a string"),
        ("/node/metadata", json!([]), "node.metadata: found an array, expected an object"),
        ("/authorities", json!([]), "authorities: found an array, expected an object"),
        ("/authorities/eds.example", json!(1), "authorities[eds.example]: found a number, expected an object"),
        (
            "/authorities/eds.example/xds_servers/1/server_uri",
            json!(1),
            "authorities[eds.example].xds_servers[1].server_uri: found a number, expected a string",
        ),
        (
            "/authorities/eds.example/fallback_on_reachability_only",
            json!("true"),
            "authorities[eds.example].fallback_on_reachability_only: found a string, expected true or false",
        ),
        (
            "/client_default_listener_resource_name_template",
            json!(1),
            "client_default_listener_resource_name_template: found a number, expected a string",
        ),
        (
            "/server_listener_resource_name_template",
            json!(false),
            "server_listener_resource_name_template: found a boolean, expected a string",
        ),
        ("/certificate_providers", json!(1), "certificate_providers: found a number, expected an object"),
        (
            "/certificate_providers/default/plugin_name",
            json!(1),
            "certificate_providers[default].plugin_name: found a number, expected a string",
        ),
        (
            "/certificate_providers/default/config",
            json!("x"),
            "certificate_providers[default].config: found a string, expected an object",
        ),
        (
            "/certificate_providers/default/config/refresh_interval",
            json!(60),
            "certificate_providers[default].config.refresh_interval: found a number, expected a string",
        ),
    ] {
        let mut value = complete();
        *value.pointer_mut(path).unwrap() = wrong;
        assert_eq!(faults(&value), [fault]);
    }
}

#[test]
fn all_faults_are_named_at_once() {
    // B-7, B-46
    let value = json!({
        "xds_servers": [
            {"channel_creds": [{"type": "insecure"}]},
            {"server_uri": "", "server_features": 1,
             "channel_creds": [{"type": "tls", "config": {"refresh_interval": "1m"}}]},
        ],
        "node": {"id": 1, "cluster": 2},
        "authorities": {"a": {"client_listener_resource_name_template": "xdstp://b/x"}, "b": {"xds_servers": [{}]}},
        "certificate_providers": {"c": {}},
    });
    assert_eq!(
        faults(&value),
        [
            "xds_servers[0].server_uri: must be set",
            "xds_servers[1].server_uri: must not be empty",
            "xds_servers[1].channel_creds[0].config.refresh_interval: found \"1m\", \
             expected decimal seconds with the suffix s, such as \"600s\" or \"1.5s\"",
            "xds_servers[1].server_features: found a number, expected an array",
            "node.id: found a number, expected a string",
            "node.cluster: found a number, expected a string",
            "authorities[a].client_listener_resource_name_template: found \"xdstp://b/x\", \
             expected a template that starts with \"xdstp://a/\"",
            "authorities[b].xds_servers[0].server_uri: must be set",
            "authorities[b].xds_servers[0].channel_creds: must be set",
            "certificate_providers[c].plugin_name: must be set",
        ]
    );
}

// === Servers ===

#[test]
fn servers_keep_their_order_and_without_fallback_only_the_first_stays() {
    // B-9, B-10
    let mut value = two_servers();
    value["authorities"] = json!({"a": {"xds_servers": two_servers()["xds_servers"]}});
    let uris = |servers: &[Arc<ServerConfig>]| servers.iter().map(|s| s.server_uri.clone()).collect::<Vec<_>>();
    let on = parse(&value).unwrap();
    assert_eq!(
        (uris(&on.servers), uris(&on.authorities["a"].servers)),
        (vec!["a:1".into(), "b:2".into()], vec!["a:1".into(), "b:2".into()])
    );

    let guards = Guards { fallback: false, ..Guards::default() };
    let off = parse_with(&value, guards).unwrap();
    assert_eq!((uris(&off.servers), uris(&off.authorities["a"].servers)), (vec!["a:1".into()], vec!["a:1".into()]));

    // What is not used is still checked.
    value["xds_servers"][1]["server_uri"] = json!("");
    let error = parse_with(&value, guards).unwrap_err();
    assert_eq!(error.to_string(), "xds_servers[1].server_uri: must not be empty");
}

#[test]
fn a_server_needs_a_uri_but_not_a_usable_one() {
    // B-11, B-49
    let value = server(json!({"channel_creds": [{"type": "insecure"}]}));
    assert_eq!(faults(&value), ["xds_servers[0].server_uri: must be set"]);
    let bootstrap = parse(&minimal("gopher://nowhere")).unwrap();
    assert!(ServerUri::parse(&bootstrap.servers[0].server_uri).is_err());
}

#[test]
fn the_first_supported_channel_credentials_are_used() {
    // B-12
    for (creds, chosen) in [
        (json!([{"type": "insecure"}, {"type": "tls"}]), ChannelCreds::Insecure),
        (json!([{"type": "tls"}, {"type": "insecure"}]), ChannelCreds::Tls(CertificateFiles::default())),
        (
            json!([{"type": "google_default"}, {"type": "new", "config": {}}, {"type": "insecure"}]),
            ChannelCreds::Insecure,
        ),
    ] {
        let bootstrap = parse(&server(json!({"server_uri": "a", "channel_creds": creds}))).unwrap();
        assert_eq!(bootstrap.servers[0].channel_creds, chosen);
    }
}

#[test]
fn without_supported_channel_credentials_the_error_says_which_were_found() {
    // B-12, B-47
    for (creds, fault) in [
        (json!([]), "must not be empty: expected an entry of type \"insecure\" or \"tls\""),
        (
            json!([{"type": "google_default"}]),
            "no entry of a supported type: found \"google_default\", expected \"insecure\" or \"tls\"; in place of \
             \"google_default\" use \"tls\", and call_creds of type \"jwt_token_file\" if the server asks for a token",
        ),
        (
            json!([{"type": "alts"}, {"type": "other"}]),
            "no entry of a supported type: found \"alts\", \"other\", expected \"insecure\" or \"tls\"",
        ),
        (Value::Null, "must be set"),
    ] {
        let value = server(json!({"server_uri": "a", "channel_creds": creds}));
        assert_eq!(faults(&value), [format!("xds_servers[0].channel_creds: {fault}")]);
        let mut of_authority = minimal("b");
        of_authority["authorities"] = json!({"unused": {"xds_servers": value["xds_servers"]}});
        assert_eq!(faults(&of_authority), [format!("authorities[unused].xds_servers[0].channel_creds: {fault}")]);
    }
}

#[test]
fn every_supported_entry_is_checked_even_behind_the_chosen_one() {
    // B-13
    let creds = json!([{"type": "insecure"}, {"type": "tls", "config": {"certificate_file": "/c"}}]);
    let value = server(json!({"server_uri": "a", "channel_creds": creds}));
    assert_eq!(
        faults(&value),
        ["xds_servers[0].channel_creds[1].config.private_key_file: must be set, because certificate_file is"]
    );
    let value = server(json!({"server_uri": "a", "channel_creds": [{"config": {}}]}));
    assert_eq!(faults(&value), ["xds_servers[0].channel_creds[0].type: must be set"]);
}

#[test]
fn tls_credentials_may_have_no_fields_or_all() {
    // B-19, B-14
    let tls = |config: Value| -> Result<CertificateFiles, Invalid> {
        let creds = json!([{"type": "tls", "config": config}]);
        match parse(&server(json!({"server_uri": "a", "channel_creds": creds})))?.servers[0].channel_creds.clone() {
            ChannelCreds::Tls(config) => Ok(config),
            ChannelCreds::Insecure => panic!("tls is the only entry"),
        }
    };
    let none = tls(json!({})).unwrap();
    assert_eq!(none, tls(Value::Null).unwrap());
    assert_eq!((none.ca_certificate_file, none.identity), (None, None));
    assert_eq!(none.refresh_interval, Duration::from_secs(600));

    let all = json!({"ca_certificate_file": "/ca", "certificate_file": "/c", "private_key_file": "/k",
        "spiffe_trust_bundle_map_file": "/s", "refresh_interval": "1.5s"});
    assert_eq!(
        tls(all).unwrap(),
        CertificateFiles {
            ca_certificate_file: Some("/ca".into()),
            identity: Some(identity("/c", "/k")),
            spiffe_trust_bundle_map_file: Some("/s".into()),
            refresh_interval: Duration::from_millis(1500),
        }
    );
    for (config, fault) in [
        (json!({"certificate_file": "/c"}), "private_key_file: must be set, because certificate_file is"),
        (json!({"private_key_file": "/k"}), "certificate_file: must be set, because private_key_file is"),
        (json!({"ca_certificate_file": ""}), "ca_certificate_file: must not be empty"),
        (json!({"refresh_interval": "0s"}), "refresh_interval: must be greater than zero"),
    ] {
        let error = tls(config).unwrap_err().to_string();
        assert_eq!(error, format!("xds_servers[0].channel_creds[0].config.{fault}"));
    }
}

#[test]
fn every_supported_call_credential_is_used() {
    // B-15, B-20
    let with =
        |creds: Value| server(json!({"server_uri": "a", "channel_creds": [{"type": "insecure"}], "call_creds": creds}));
    let jwt = |path: &str| json!({"type": "jwt_token_file", "config": {"jwt_token_file": path}});
    let value = with(json!([jwt("/a"), {"type": "new", "config": {}}, jwt("/b")]));
    let both = vec![CallCreds::JwtTokenFile("/a".into()), CallCreds::JwtTokenFile("/b".into())];
    assert_eq!(parse(&value).unwrap().servers[0].call_creds, both);

    for (creds, fault) in [
        (json!({}), ": found an object, expected an array"),
        (json!([{"type": "jwt_token_file"}]), "[0].config.jwt_token_file: must be set"),
        (json!([{"type": "jwt_token_file", "config": {}}]), "[0].config.jwt_token_file: must be set"),
        (json!([jwt("")]), "[0].config.jwt_token_file: must not be empty"),
        (json!([{"type": "new"}, {"type": "new", "config": 1}]), "[1].config: found a number, expected an object"),
    ] {
        assert_eq!(faults(&with(creds.clone())), [format!("xds_servers[0].call_creds{fault}")]);
        // With the guard off the field is like an unknown one.
        let off = parse_with(&with(creds), Guards { call_creds: false, ..Guards::default() }).unwrap();
        assert!(off.servers[0].call_creds.is_empty());
    }
}

#[test]
fn known_features_are_recognized_and_others_ignored() {
    // B-16
    for (features, expected) in [
        (
            json!(["xds_v3", "new", 1, null, {"trusted_xds_server": true}, ["fail_on_data_errors"]]),
            ServerFeatures::default(),
        ),
        (json!(["ignore_resource_deletion"]), ServerFeatures { ignore_resource_deletion: true, ..Default::default() }),
        (json!(["fail_on_data_errors"]), ServerFeatures { fail_on_data_errors: true, ..Default::default() }),
        (
            json!([7, "resource_timer_is_transient_error"]),
            ServerFeatures { resource_timer_is_transient_error: true, ..Default::default() },
        ),
        (json!(["trusted_xds_server"]), ServerFeatures { trusted_xds_server: true, ..Default::default() }),
    ] {
        assert_eq!(parse(&with_features(features)).unwrap().servers[0].features, expected);
    }
}

#[test]
fn the_features_of_a88_need_its_guard() {
    // B-18
    let all = json!(["ignore_resource_deletion", "fail_on_data_errors", "resource_timer_is_transient_error"]);
    let off = Guards { data_error_handling: false, ..Guards::default() };
    assert_eq!(
        parse_with(&with_features(all), off).unwrap().servers[0].features,
        ServerFeatures { ignore_resource_deletion: true, ..Default::default() }
    );
}

#[test]
fn a_server_is_known_by_its_uri_credentials_and_recognized_features() {
    // B-17
    let identity = |value: Value| parse(&value).unwrap().servers[0].clone();
    let plain = identity(with_features(json!([])));
    assert_eq!(plain, identity(with_features(json!(["xds_v3", "unknown", 5]))));
    assert_eq!(plain, identity(minimal("a")));
    assert_ne!(plain, identity(with_features(json!(["trusted_xds_server"]))));
    assert_ne!(plain, identity(minimal("b")));
    let mut other = minimal("a");
    other["xds_servers"][0]["channel_creds"] = json!([{"type": "tls"}]);
    assert_ne!(plain, identity(other));
    let mut other = minimal("a");
    other["xds_servers"][0]["call_creds"] = json!([{"type": "jwt_token_file", "config": {"jwt_token_file": "/t"}}]);
    assert_ne!(plain, identity(other));
}

// === Authorities ===

#[test]
fn the_template_of_an_authority_must_start_with_it() {
    // B-27
    let with = |name: &str, template: &str| {
        let mut value = minimal("a");
        value["authorities"] = json!({name: {"client_listener_resource_name_template": template}});
        value
    };
    for (name, template) in [
        ("a.b", "xdstp://a.b/envoy.config.listener.v3.Listener/x/%s"),
        ("", "xdstp:///envoy.config.listener.v3.Listener/%s"),
        ("a b", "xdstp://a%20b/envoy.config.listener.v3.Listener/%s"),
        ("a b", "xdstp://a b/envoy.config.listener.v3.Listener/%s"),
    ] {
        let bootstrap = parse(&with(name, template)).unwrap();
        assert_eq!(bootstrap.authorities[name].client_listener_resource_name_template, template);
    }
    for (name, template) in [
        ("a", "%s"),
        ("a", "xdstp:///x/%s"),
        ("a", "xdstp://a"),
        ("a", "xdstp://ab/x"),
        ("a", "xdstp:a/x"),
        ("", "xdstp://a/x"),
        ("a b", "xdstp://a%2/x"),
    ] {
        let [fault] = &faults(&with(name, template))[..] else { panic!("one fault for {template}") };
        assert!(
            fault.starts_with(&format!(
                "authorities[{name}].client_listener_resource_name_template: found {template:?}"
            ))
        );
    }
}

#[test]
fn an_authority_has_defaults_for_everything() {
    // B-26, B-27, B-28, B-29
    let mut value = two_servers();
    value["authorities"] = json!({
        "": {}, "a/b": {"xds_servers": []}, "c": {"client_listener_resource_name_template": ""},
    });
    let bootstrap = parse(&value).unwrap();
    for (name, encoded) in [("", ""), ("a/b", "a%2Fb"), ("c", "c")] {
        let template = format!("xdstp://{encoded}/envoy.config.listener.v3.Listener/%s");
        assert_eq!(bootstrap.authorities[name].client_listener_resource_name_template, template);
        let (servers, reachability_only) = bootstrap.servers_of(&AuthorityKey::Named(name.into())).unwrap();
        assert_eq!((servers, reachability_only), (&bootstrap.servers[..], false));
    }
}

#[test]
fn an_authority_with_servers_uses_them_and_an_unknown_one_has_none() {
    // B-28, B-29, B-48, P-88
    let bootstrap = parse(&complete()).unwrap();
    let (servers, reachability_only) = bootstrap.servers_of(&AuthorityKey::Named("eds.example".into())).unwrap();
    assert_eq!(servers.iter().map(|s| &*s.server_uri).collect::<Vec<_>>(), ["eds1:443", "eds2:443"]);
    assert!(reachability_only);
    assert_eq!(bootstrap.servers_of(&AuthorityKey::TopLevel), Some((&bootstrap.servers[..], false)));
    // The empty authority is not the top level (B-26).
    assert_eq!(bootstrap.servers_of(&AuthorityKey::Named("".into())), None);
}

#[test]
fn the_reachability_switch_needs_the_guard_of_a95() {
    // B-29
    let off = Guards { endpoint_fallback: false, ..Guards::default() };
    let key = AuthorityKey::Named("eds.example".into());
    assert!(!parse_with(&complete(), off).unwrap().servers_of(&key).unwrap().1);
    let mut value = complete();
    value["authorities"]["eds.example"]["fallback_on_reachability_only"] = json!("not read");
    assert!(parse_with(&value, off).is_ok());
}

#[test]
fn without_federation_authorities_and_the_default_template_are_not_read() {
    // B-30
    let mut value = complete();
    value["authorities"] = json!("nonsense");
    value["client_default_listener_resource_name_template"] = json!(1);
    let bootstrap = parse_with(&value, Guards { federation: false, ..Guards::default() }).unwrap();
    assert!(bootstrap.authorities.is_empty());
    assert_eq!(bootstrap.client_default_listener_resource_name_template, "%s");
}

#[test]
fn templates_are_kept_and_empty_ones_count_as_absent() {
    // B-33, B-36
    let mut value = minimal("a");
    value["client_default_listener_resource_name_template"] = json!("x/%s");
    value["server_listener_resource_name_template"] = json!("y/%s");
    let bootstrap = parse(&value).unwrap();
    assert_eq!(bootstrap.client_default_listener_resource_name_template, "x/%s");
    assert_eq!(bootstrap.server_listener_resource_name_template.as_deref(), Some("y/%s"));
    value["client_default_listener_resource_name_template"] = json!("");
    value["server_listener_resource_name_template"] = json!("");
    assert_eq!(parse(&value), parse(&minimal("a")));
}

// === Certificate providers ===

#[test]
fn file_watchers_are_read_and_unknown_plugins_left_out() {
    // B-37, B-38
    let bootstrap = parse(&with_providers(json!({
        "mine": {"plugin_name": "file_watcher", "config": {"ca_certificate_file": "/ca"}},
        "other": {"plugin_name": "new", "config": {"certificate_file": 1}},
    })))
    .unwrap();
    let expected = CertificateFiles { ca_certificate_file: Some("/ca".into()), ..Default::default() };
    assert_eq!(expected.refresh_interval, Duration::from_secs(600)); // B-39
    assert_eq!(
        bootstrap.certificate_providers,
        BTreeMap::from([("mine".to_owned(), CertificateProviderConfig::FileWatcher(expected))])
    );
}

#[test]
fn the_files_of_a_file_watcher_are_checked() {
    // B-39
    let nothing = ": names no file: expected certificate_file, ca_certificate_file or spiffe_trust_bundle_map_file";
    for (config, fault) in [
        (Value::Null, nothing),
        (json!({}), nothing),
        (json!({"refresh_interval": "1s"}), nothing),
        (json!({"certificate_file": "/c"}), ".private_key_file: must be set, because certificate_file is"),
        (
            json!({"private_key_file": "/k", "ca_certificate_file": "/ca"}),
            ".certificate_file: must be set, because private_key_file is",
        ),
        (json!({"spiffe_trust_bundle_map_file": ""}), ".spiffe_trust_bundle_map_file: must not be empty"),
        (
            json!({"ca_certificate_file": "/ca", "refresh_interval": "0s"}),
            ".refresh_interval: must be greater than zero",
        ),
    ] {
        let value = with_providers(json!({"p": {"plugin_name": "file_watcher", "config": config}}));
        assert_eq!(faults(&value), [format!("certificate_providers[p].config{fault}")]);
    }
    for config in [
        json!({"certificate_file": "/c", "private_key_file": "/k"}),
        json!({"ca_certificate_file": "/ca"}),
        json!({"spiffe_trust_bundle_map_file": "/s"}),
    ] {
        assert!(parse(&with_providers(json!({"p": {"plugin_name": "file_watcher", "config": config}}))).is_ok());
    }
}

#[test]
fn both_names_of_the_spiffe_map_are_accepted_and_the_grfcs_wins() {
    // B-40
    for (config, file) in [
        (json!({"spiffe_trust_bundle_map_file": "/a"}), "/a"),
        (json!({"spiffe_bundle_map_file": "/b"}), "/b"),
        (json!({"spiffe_bundle_map_file": "/b", "spiffe_trust_bundle_map_file": "/a"}), "/a"),
    ] {
        let value = with_providers(json!({"p": {"plugin_name": "file_watcher", "config": config}}));
        let bootstrap = parse(&value).unwrap();
        assert_eq!(watched(&bootstrap).spiffe_trust_bundle_map_file.as_deref(), Some(Path::new(file)));
    }
}

#[test]
fn providers_with_equal_configs_are_equal_values() {
    // B-41: so that whoever starts them can share one.
    let config = json!({"plugin_name": "file_watcher", "config": {"ca_certificate_file": "/ca"}});
    let providers = parse(&with_providers(json!({"a": config, "b": config}))).unwrap().certificate_providers;
    assert_eq!(providers["a"], providers["b"]);
}

#[test]
fn durations_are_decimal_seconds() {
    // B-42
    let interval = |text: &str| {
        let config = json!({"ca_certificate_file": "/ca", "refresh_interval": text});
        let value = with_providers(json!({"p": {"plugin_name": "file_watcher", "config": config}}));
        parse(&value).map(|bootstrap| watched(&bootstrap).refresh_interval)
    };
    for (text, duration) in [
        ("60s", Duration::from_secs(60)),
        ("1.5s", Duration::from_millis(1500)),
        ("0.000000001s", Duration::from_nanos(1)),
        ("315576000000s", Duration::from_secs(315_576_000_000)),
    ] {
        assert_eq!(interval(text), Ok(duration), "{text}");
    }
    for text in
        ["", "s", "60", "1m", "-1s", "+1s", "1.s", ".5s", "1e3s", "1 s", "0.0000000001s", "315576000001s", "1.-5s"]
    {
        assert!(interval(text).is_err(), "{text}");
    }
}

// === In code ===

#[test]
fn a_bootstrap_made_in_code_passes_the_same_checks() {
    // B-46
    let bad_tls = CertificateFiles {
        ca_certificate_file: Some(PathBuf::new()),
        identity: Some(identity("", "/k")),
        refresh_interval: Duration::ZERO,
        ..Default::default()
    };
    let bad_server =
        ServerConfig { call_creds: vec![CallCreds::JwtTokenFile(PathBuf::new())], ..ServerConfig::tls("", bad_tls) };
    let bad_authority = AuthorityOptions {
        client_listener_resource_name_template: Some("%s".to_owned()),
        servers: vec![ServerConfig::insecure("")],
        ..Default::default()
    };
    let invalid = Bootstrap::builder()
        .server(bad_server)
        .authority("a", bad_authority)
        .client_default_listener_resource_name_template("")
        .server_listener_resource_name_template("")
        .certificate_provider("p", CertificateFiles::default())
        .build()
        .unwrap_err();
    let faults: Vec<_> = invalid.faults().iter().map(|fault| (&*fault.path, &*fault.message)).collect();
    let empty = "must not be empty";
    assert_eq!(
        faults,
        [
            ("xds_servers[0].server_uri", empty),
            ("xds_servers[0].channel_creds[0].config.certificate_file", empty),
            ("xds_servers[0].channel_creds[0].config.ca_certificate_file", empty),
            ("xds_servers[0].channel_creds[0].config.refresh_interval", "must be greater than zero"),
            ("xds_servers[0].call_creds[0].config.jwt_token_file", empty),
            (
                "authorities[a].client_listener_resource_name_template",
                "found \"%s\", expected a template that starts with \"xdstp://a/\""
            ),
            ("authorities[a].xds_servers[0].server_uri", empty),
            ("client_default_listener_resource_name_template", empty),
            ("server_listener_resource_name_template", empty),
            (
                "certificate_providers[p].config",
                "names no file: expected certificate_file, ca_certificate_file or spiffe_trust_bundle_map_file"
            ),
        ]
    );
}

#[test]
fn guards_hold_for_a_bootstrap_made_in_code() {
    // B-10, B-15, B-18, B-29, B-30
    let server = ServerConfig {
        call_creds: vec![CallCreds::JwtTokenFile("/t".into())],
        features: ServerFeatures { fail_on_data_errors: true, ..Default::default() },
        ..ServerConfig::insecure("a")
    };
    let builder = || -> BootstrapBuilder {
        let options = AuthorityOptions { fallback_on_reachability_only: true, ..Default::default() };
        Bootstrap::builder().server(server.clone()).server(server.clone()).authority("x", options)
    };
    let off = Guards {
        fallback: false,
        endpoint_fallback: false,
        data_error_handling: false,
        call_creds: false,
        ..Guards::default()
    };
    let bootstrap = builder().guards(off).build().unwrap();
    assert_eq!(bootstrap.servers, [Arc::new(ServerConfig::insecure("a"))]);
    assert!(!bootstrap.authorities["x"].fallback_on_reachability_only);
    let without_federation = builder().guards(Guards { federation: false, ..off }).build().unwrap();
    assert!(without_federation.authorities.is_empty());
}

// === Properties ===

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let parsed = Bootstrap::parse(&text, Guards::default());
        prop_assert!(parsed.is_err(), "no random text has servers");
    }

    #[test]
    fn a_valid_text_with_a_changed_byte_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = complete().to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        // Whatever still parses has servers (B-8).
        if let Ok(bootstrap) = Bootstrap::parse(&String::from_utf8_lossy(&bytes), Guards::default()) {
            prop_assert!(!bootstrap.servers.is_empty());
        }
    }

    #[test]
    fn a_valid_text_with_a_changed_value_never_panics(at in any::<prop::sample::Index>(), with in any_json()) {
        let mut value = complete();
        let count = count(&value);
        replace(&mut value, &Cell::new(at.index(count)), &with);
        match parse(&value) {
            Ok(bootstrap) => prop_assert!(!bootstrap.servers.is_empty()),
            Err(invalid) => prop_assert!(!invalid.faults().is_empty()),
        }
    }

    #[test]
    fn no_server_uri_panics(uri in any_uri()) {
        if let Err(error) = ServerUri::parse(&uri) {
            prop_assert_eq!(error.uri, uri);
        }
    }
}

fn any_uri() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "(dns|ipv4|ipv6|unix)?:?/{0,3}[a-f0-9:.,\\[\\]]{0,20}"]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let key = prop_oneof![Just("type".to_owned()), Just("config".to_owned()), "[a-z]{0,4}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Replaces the value that is `left` values further on.
fn replace(value: &mut Value, left: &Cell<usize>, with: &Value) {
    if left.get() == 0 {
        *value = with.clone();
        left.set(usize::MAX);
        return;
    }
    left.set(left.get() - 1);
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, left, with)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, left, with)),
        _ => {}
    }
}

// === Helpers ===

pub(super) fn parse(value: &Value) -> Result<Bootstrap, Invalid> {
    parse_with(value, Guards::default())
}

fn parse_with(value: &Value, guards: Guards) -> Result<Bootstrap, Invalid> {
    Bootstrap::parse(&value.to_string(), guards)
}

fn faults(value: &Value) -> Vec<String> {
    let invalid = parse(value).unwrap_err();
    let text =
        |path: &str, message: &str| if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") };
    invalid.faults().iter().map(|fault| text(&fault.path, &fault.message)).collect()
}

fn identity(certificate_file: &str, private_key_file: &str) -> IdentityFiles {
    IdentityFiles { certificate_file: certificate_file.into(), private_key_file: private_key_file.into() }
}

pub(super) fn minimal(server_uri: &str) -> Value {
    server(json!({"server_uri": server_uri, "channel_creds": [{"type": "insecure"}]}))
}

fn server(server: Value) -> Value {
    json!({"xds_servers": [server]})
}

pub(super) fn two_servers() -> Value {
    let server = |uri: &str| json!({"server_uri": uri, "channel_creds": [{"type": "insecure"}]});
    json!({"xds_servers": [server("a:1"), server("b:2")]})
}

fn with_features(features: Value) -> Value {
    let mut value = minimal("a");
    value["xds_servers"][0]["server_features"] = features;
    value
}

fn with_providers(providers: Value) -> Value {
    let mut value = minimal("a");
    value["certificate_providers"] = providers;
    value
}

/// The example of spec section 11.
fn complete() -> Value {
    json!({
        "xds_servers": [
            {"server_uri": "xds-primary.example:443",
             "channel_creds": [{"type": "google_default"},
                               {"type": "tls", "config": {"ca_certificate_file": "/c/ca.pem"}}],
             "server_features": ["xds_v3", "trusted_xds_server"]},
            {"server_uri": "xds-fallback.example:443", "channel_creds": [{"type": "insecure"}]}
        ],
        "node": {"id": "client-1", "cluster": "c", "locality": {"region": "r", "zone": "z", "sub_zone": "s"},
                 "metadata": {"k": "v"}},
        "client_default_listener_resource_name_template": "%s",
        "authorities": {
            "eds.example": {
                "xds_servers": [{"server_uri": "eds1:443", "channel_creds": [{"type": "insecure"}]},
                                {"server_uri": "eds2:443", "channel_creds": [{"type": "insecure"}]}],
                "fallback_on_reachability_only": true
            }
        },
        "certificate_providers": {
            "default": {"plugin_name": "file_watcher",
                        "config": {"certificate_file": "/c/cert.pem", "private_key_file": "/c/key.pem",
                                   "ca_certificate_file": "/c/ca.pem", "refresh_interval": "60s"}}
        },
        "server_listener_resource_name_template": "grpc/server?xds.resource.listening_address=%s"
    })
}

/// The files of the instance "p".
fn watched(bootstrap: &Bootstrap) -> &CertificateFiles {
    match &bootstrap.certificate_providers["p"] {
        CertificateProviderConfig::FileWatcher(config) => config,
        CertificateProviderConfig::Application => panic!("of the application"),
    }
}
