//! Connections secured as the control plane says (A29, A82, A87, A101), and never otherwise.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use envoy_types::util::pack_any;
use mainstay::bootstrap::{Bootstrap, CertificateFiles, Node, ServerConfig};
use mainstay::certificates::{CertificateError, CertificateProvider, Certificates, Identity, Trust};
use mainstay::{Channel, ChannelBuilder, Credentials};
use mainstay_control_plane::{Server, SnapshotBuilder, resources};
use mainstay_testservice::{Backend, ServerTlsConfig};
use rcgen::{CertificateParams, SanType};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tonic::Code;
use tonic::transport::Certificate;

use crate::common::{Client, backends, call, call_within, control_plane, in_time, until_answered_by};
use crate::no_downgrade::with_cluster;
use crate::pki::{Authority, Files, Issued};

mod downgrade;
mod facts;
mod rotation;
mod terminator;

/// A29: both sides prove who they are.
#[tokio::test]
async fn both_sides_prove_who_they_are() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    assert_eq!(call(&mut pki.client(&server)).await.unwrap(), "one");
}

/// TL-1: no matter what is wrong, RPCs fail with what it was, and nothing reaches anyone.
#[tokio::test]
async fn whatever_is_wrong_with_a_server_fails_the_connection() {
    let pki = Pki::new();
    let mut expired = CertificateParams::new(vec!["service".to_owned()]).unwrap();
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let mut early = CertificateParams::new(vec!["service".to_owned()]).unwrap();
    early.not_before = rcgen::date_time_ymd(2999, 1, 1);
    let nameless = CertificateParams::default();
    let mut for_clients = CertificateParams::new(vec!["service".to_owned()]).unwrap();
    for_clients.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    for (what, issued, expected) in [
        ("an expired certificate", pki.ca.issue_as(expired), "expired"),
        ("one that is not valid yet", pki.ca.issue_as(early), "not valid yet"),
        ("one of another authority", Authority::new().issue("service"), "UnknownIssuer"),
        ("one whose issuer is not shown", pki.ca.below().issue("service"), "UnknownIssuer"),
        (
            "one that is for clients only",
            pki.ca.issue_as(for_clients),
            "does not allow extended key usage for server authentication",
        ),
        (
            "another name",
            pki.ca.issue("other"),
            "presented DNS \"other\", DNS \"localhost\", IP 127.0.0.1; wanted \"service\"",
        ),
        ("no name", pki.ca.issue_as(nameless), "presented no name; wanted \"service\""),
    ] {
        let backend = pki.backend("one", &issued, true).await;
        let server = control_plane(secured(&backend, mtls(&["service"]))).await;
        let status = call(&mut pki.client(&server)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{what}: {status}");
        let text = format!("TLS handshake with {}", backend.addr());
        assert!(status.message().contains("cluster \"service\""), "{what}: {status}");
        assert!(status.message().contains(&text) && status.message().contains(expected), "{what}: {status}");
        assert_eq!(backend.requests(), 0, "{what}");
    }
}

/// TL-7, over a handshake: a wildcard of a certificate stands for one whole label of a DNS name, the first, and below two more.
#[tokio::test]
async fn wildcards_of_certificates_stand_for_one_label() {
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let uri = |name: &str| SanType::URI(name.try_into().unwrap());
    let email = |name: &str| SanType::Rfc822Name(name.try_into().unwrap());
    let pki = Pki::new();
    for (presented, wanted, is_let_through) in [
        (dns("*.example.com"), "shop.example.com", true),
        (dns("*.example.com"), "SHOP.example.com", true),
        (dns("*.example.com"), "example.com", false),
        (dns("*.example.com"), "a.b.example.com", false),
        (dns("*.example.com"), "shop.example.com.org", false),
        (dns("*.com"), "example.com", false),
        (dns("*"), "example", false),
        (dns("f*.example.com"), "foo.example.com", false),
        (dns("*f.example.com"), "oof.example.com", false),
        (dns("shop.*.com"), "shop.example.com", false),
        (dns("*.*.com"), "shop.example.com", false),
        (uri("*.example.com"), "shop.example.com", false),
        (email("*.example.com"), "shop.example.com", false),
        (SanType::IpAddress([10, 0, 0, 1].into()), "*.0.0.1", false),
    ] {
        let what = format!("{presented:?} for {wanted:?}");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![presented];
        let backend = pki.backend("one", &pki.ca.issue_as(params), true).await;
        let server = control_plane(secured(&backend, mtls(&[wanted]))).await;
        match call(&mut pki.client(&server)).await {
            Ok(answer) => assert!(is_let_through && answer == "one", "{what}"),
            Err(status) => {
                assert!(!is_let_through && status.code() == Code::Unavailable, "{what}: {status}");
                assert!(status.message().contains(&format!("wanted {wanted:?}")), "{what}: {status}");
            }
        }
        assert_eq!(backend.requests(), u64::from(is_let_through), "{what}");
    }
}

/// TL-7, over a handshake: each matcher, and that those other than exact take a wildcard for the text that it is.
#[tokio::test]
async fn names_are_matched_as_the_cluster_says() {
    use MatchPattern::{Contains, Exact, Prefix, SafeRegex, Suffix};
    let pattern = |regex: &str| SafeRegex(RegexMatcher { regex: regex.to_owned(), ..Default::default() });
    let wildcard = "*.example.com";
    let pki = Pki::new();
    for (presented, wanted, ignore_case, is_let_through) in [
        ("shop.example.com", Exact("shop.example.com".into()), false, true),
        ("shop.example.com", Exact("Shop.example.com".into()), false, true), // DNS knows no case, whatever the matcher says.
        ("shop.example.com", Exact("shop.example.co".into()), true, false),
        ("shop.example.com", Prefix("shop.".into()), false, true),
        ("shop.example.com", Prefix("Shop.".into()), false, false),
        ("shop.example.com", Prefix("Shop.".into()), true, true),
        ("shop.example.com", Prefix("example".into()), false, false),
        ("shop.example.com", Suffix(".example.com".into()), false, true),
        ("shop.example.com", Suffix(".EXAMPLE.com".into()), true, true),
        ("shop.example.com", Suffix("shop".into()), false, false),
        ("shop.example.com", Contains("exam".into()), false, true),
        ("shop.example.com", Contains("EXAM".into()), true, true),
        ("shop.example.com", Contains("EXAM".into()), false, false),
        ("shop.example.com", pattern("s[a-z]+[.]example[.]com"), false, true),
        ("shop.example.com", pattern("example"), false, false), // The whole name, not a part of it.
        ("shop.example.com", pattern("shop[.]example[.]com|x"), false, true),
        (wildcard, Prefix("shop".into()), false, false),
        (wildcard, Prefix("*.".into()), false, true),
        (wildcard, Suffix("shop.example.com".into()), false, false),
        (wildcard, Suffix(".example.com".into()), false, true),
        (wildcard, Contains("shop".into()), false, false),
        (wildcard, pattern("shop[.]example[.]com"), false, false),
        (wildcard, pattern("[a-z]+[.]example[.]com"), false, false),
    ] {
        let what = format!("{presented} for {wanted:?}, ignore_case: {ignore_case}");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(presented.try_into().unwrap())];
        let backend = pki.backend("one", &pki.ca.issue_as(params), true).await;
        let context = mtls_of(vec![StringMatcher { ignore_case, match_pattern: Some(wanted) }]);
        let server = control_plane(secured(&backend, context)).await;
        match call(&mut pki.client(&server)).await {
            Ok(answer) => assert!(is_let_through && answer == "one", "{what}"),
            Err(status) => {
                assert!(!is_let_through && status.code() == Code::Unavailable, "{what}: {status}");
                assert!(status.message().contains(&format!("presented DNS \"{presented}\"")), "{what}: {status}");
            }
        }
        assert_eq!(backend.requests(), u64::from(is_let_through), "{what}");
    }
}

/// TL-4: the way to the root may lead over authorities that the server shows.
#[tokio::test]
async fn an_authority_in_between_is_followed() {
    let pki = Pki::new();
    let between = pki.ca.below();
    let mut issued = between.issue("service");
    issued.certificate_pem.push_str(&between.pem());
    let backend = pki.backend("one", &issued, true).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    assert_eq!(call(&mut pki.client(&server)).await.unwrap(), "one");
}

/// TL-10: an empty map is a good one, and vouches for nobody.
#[tokio::test]
async fn an_empty_bundle_map_refuses_everyone() {
    let pki = Pki::new();
    pki.files.write("bundles.json", r#"{"trust_domains": {}}"#);
    let backend = pki.backend("one", &pki.ca.issue_to_workload(&["spiffe://example.com/shop"]), true).await;
    let server = control_plane(secured(&backend, mtls(&[]))).await;
    let watched = pki.file_watcher().with_spiffe_trust_bundle_map_file(pki.files.path("bundles.json"));
    let status = call(&mut Client::new(pki.builder_with(&server, watched).build().unwrap())).await.unwrap_err();
    assert!(status.message().contains("trust domain \"example.com\"") && backend.requests() == 0, "{status}");
}

/// TL-3: who is asked for other things is another one, at whatever address.
#[tokio::test]
async fn clusters_that_ask_for_other_things_share_no_connection() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    let serving = |context| control_plane(secured(&backend, context));
    let servers = [serving(mtls(&["service"])).await, serving(mtls(&["service"])).await, serving(mtls(&[])).await];
    // One channel each: connections are shared by all channels of the process.
    let [mut one, mut same] = [&servers[0], &servers[1]].map(|server| pki.client(server));
    assert_eq!(call(&mut one).await.unwrap(), "one");
    assert_eq!(call(&mut same).await.unwrap(), "one");
    assert_eq!(backend.open_connections(), 1, "equal contexts, with certificates from the same place");
    let mut other = pki.client(&servers[2]);
    assert_eq!(call(&mut other).await.unwrap(), "one");
    assert_eq!(
        backend.open_connections(),
        2,
        "one that wants any name must not lend its connection to one that does not"
    );
    let elsewhere = Pki { files: Files::new(), ca: pki.ca };
    elsewhere.files.write("ca.pem", &elsewhere.ca.pem());
    elsewhere.files.write_identity(&elsewhere.ca.issue("client"));
    let mut somebody_else = elsewhere.client(&servers[0]);
    assert_eq!(call(&mut somebody_else).await.unwrap(), "one");
    assert_eq!(backend.open_connections(), 3, "nor one that is somebody else");
}

/// A29: a server that asks for a certificate gets the one that the cluster speaks of, or none.
#[tokio::test]
async fn a_server_that_wants_a_certificate_refuses_those_without() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    let context = tls::CommonTlsContext { tls_certificate_provider_instance: None, ..mtls(&["service"]) };
    let server = control_plane(secured(&backend, context)).await;
    let status = call(&mut pki.client(&server)).await.unwrap_err();
    assert!(status.code() == Code::Unavailable && backend.requests() == 0, "{status}");
    assert!(status.message().contains("CertificateRequired"), "{status}");
}

/// TL-1: the fallback is not for servers that do not speak TLS.
#[tokio::test]
async fn a_server_in_plaintext_is_not_spoken_to_in_plaintext() {
    let pki = Pki::new();
    let [backend] = backends(["plain"]).await;
    let server = control_plane(secured(&backend, mtls(&[]))).await;
    let status = call(&mut pki.client(&server)).await.unwrap_err();
    assert!(status.code() == Code::Unavailable && backend.requests() == 0, "{status}");
}

/// And the other way around: plaintext that meets TLS is refused by the server, and says so.
#[tokio::test]
async fn plaintext_to_a_server_with_tls_fails() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), false).await;
    let server = control_plane(crate::common::service(&[&backend])).await;
    let status = call(&mut crate::common::client(&[&server])).await.unwrap_err();
    assert!(status.code() == Code::Unavailable && backend.requests() == 0, "{status}");
    assert!(status.message().contains(&backend.addr().to_string()), "{status}");
}

/// TL-11: HTTP/2 must be agreed on.
#[tokio::test]
async fn a_server_that_does_not_choose_h2_is_refused() {
    let pki = Pki::new();
    let mut config = pki.ca.server_config(None);
    config.alpn_protocols = Vec::new();
    let (address, _) = handshakes(config).await;
    let server = control_plane(with_cluster(pack_any(upstream(mtls(&[]))), resources::endpoints("service", [address])));
    let status = call(&mut pki.client(&server.await)).await.unwrap_err();
    assert!(status.message().contains("did not choose the protocol h2"), "{status}");
}

/// S-21: the fallback is for clusters that ask for nothing.
#[tokio::test]
async fn a_cluster_without_a_tls_context_is_reached_by_the_fallback() {
    let pki = Pki::new();
    let [plain] = backends(["plain"]).await;
    let server = control_plane(crate::common::service(&[&plain])).await;
    assert_eq!(call(&mut pki.client(&server)).await.unwrap(), "plain");
    let secure = pki.backend("secure", &pki.ca.issue("service"), false).await;
    let server = control_plane(crate::common::service(&[&secure])).await;
    let credentials = Credentials::xds(pki.ca.client_credentials());
    let channel = pki.builder(&server).credentials(credentials).build().unwrap();
    assert_eq!(call(&mut Client::new(channel)).await.unwrap(), "secure", "and that may be TLS");
}

/// A29: a cluster that begins to ask for TLS is not served in plaintext a moment longer.
#[tokio::test]
async fn a_cluster_that_begins_to_ask_for_tls_gets_it() {
    let pki = Pki::new();
    let ([plain], secure) = (backends(["plain"]).await, pki.backend("secure", &pki.ca.issue("service"), true).await);
    let server = control_plane(crate::common::service(&[&plain])).await;
    let mut client = pki.client(&server);
    assert_eq!(call(&mut client).await.unwrap(), "plain");
    server.control_plane().set(secured(&secure, mtls(&["service"])));
    until_answered_by(&mut client, "secure").await;
    let before = plain.requests();
    server.control_plane().set(secured(&plain, mtls(&["service"])));
    let status = crate::common::until_failed(&mut client).await;
    assert!(status.code() == Code::Unavailable && plain.requests() == before, "{status}");
}

/// TL-8, S-29, A101: which server name is asked for.
#[tokio::test]
async fn the_server_name_is_that_of_the_cluster_or_of_the_endpoint() {
    let pki = Pki::new();
    for (sni, auto_host_sni, hostname, expected) in [
        ("", false, "", None),
        ("shop.example.com", false, "", Some("shop.example.com")),
        ("shop.example.com", false, "host.example.com", Some("shop.example.com")),
        ("shop.example.com", true, "host.example.com:8080", Some("host.example.com")),
        ("shop.example.com", true, "", Some("shop.example.com")),
        ("", true, "", None),
    ] {
        let (address, mut seen) = handshakes(pki.ca.server_config(None)).await;
        let context = tls::UpstreamTlsContext { sni: sni.into(), auto_host_sni, ..upstream(mtls(&[])) };
        let endpoints = named(resources::endpoints("service", [address]), hostname);
        let server = control_plane(with_cluster(pack_any(context), endpoints)).await;
        let mut client = pki.client(&server);
        let calls = tokio::spawn(async move { call_within(&mut client, Duration::from_secs(30)).await });
        assert_eq!(in_time(seen.recv()).await.unwrap().as_deref(), expected, "{sni:?} {auto_host_sni} {hostname:?}");
        calls.abort();
    }
}

/// S-30, A101: the server must have the name that it was asked for, whatever the matchers say.
#[tokio::test]
async fn the_server_name_is_validated_where_the_cluster_says_so() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    for (sni, answered) in [("service", true), ("localhost", true), ("other", false)] {
        let context = tls::UpstreamTlsContext {
            sni: sni.to_owned(),
            auto_sni_san_validation: true,
            ..upstream(mtls(&["nobody"]))
        };
        let server = with_cluster(pack_any(context), resources::endpoints("service", [backend.addr()]));
        let answer = call(&mut pki.client(&control_plane(server).await)).await;
        assert_eq!(answer.is_ok(), answered, "{sni}: {answer:?}");
        if let Err(status) = answer {
            assert!(status.message().contains("the server name that was asked for"), "{status}");
        }
    }
}

/// TL-9, A82: the system's roots know nothing of ours.
#[tokio::test]
async fn the_roots_of_the_system_do_not_vouch_for_everyone() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), false).await;
    let context =
        tls::CertificateValidationContext { system_root_certs: Some(Default::default()), ..Default::default() };
    let context = tls::CommonTlsContext {
        validation_context_type: Some(tls::common_tls_context::ValidationContextType::ValidationContext(context)),
        ..Default::default()
    };
    let server = control_plane(secured(&backend, context)).await;
    let status = call(&mut pki.client(&server)).await.unwrap_err();
    assert!(status.code() == Code::Unavailable && backend.requests() == 0, "{status}");
}

/// A87: the trust domain of a workload says whose roots vouch for it.
#[tokio::test]
async fn workloads_are_vouched_for_by_the_roots_of_their_trust_domain() {
    let pki = Pki::new();
    pki.files.write("bundles.json", &pki.ca.bundle_map("example.com"));
    let mut may_sign = CertificateParams::default();
    may_sign.subject_alt_names = vec![rcgen::SanType::URI("spiffe://example.com/shop".try_into().unwrap())];
    may_sign.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::DigitalSignature];
    for (issued, expected) in [
        (pki.ca.issue_to_workload(&["spiffe://example.com/shop"]), None),
        (pki.ca.issue_to_workload(&["spiffe://example.com/other"]), Some("wanted \"spiffe://example.com/shop\"")),
        (pki.ca.issue_to_workload(&["spiffe://example.org/shop"]), Some("trust domain \"example.org\"")),
        (pki.ca.issue_to_workload(&["spiffe://example.com/shop", "spiffe://x/y"]), Some("has 2 URI names")),
        (pki.ca.issue("service"), Some("has 0 URI names")),
        (Authority::new().issue_to_workload(&["spiffe://example.com/shop"]), Some("UnknownIssuer")),
        (pki.ca.issue_as(may_sign), Some("may sign certificates")),
    ] {
        let backend = pki.backend("one", &issued, true).await;
        let server = control_plane(secured(&backend, mtls(&["spiffe://example.com/shop"]))).await;
        let watched = pki.file_watcher().with_spiffe_trust_bundle_map_file(pki.files.path("bundles.json"));
        let answer = call(&mut Client::new(pki.builder_with(&server, watched).build().unwrap())).await;
        match expected {
            None => assert_eq!(answer.unwrap(), "one"),
            Some(expected) => {
                let status = answer.unwrap_err();
                assert!(status.message().contains(expected) && backend.requests() == 0, "{expected}: {status}");
            }
        }
    }
}

/// S-26: RPCs wait for certificates that are on their way, and begin when these are there.
#[tokio::test]
async fn certificates_may_come_late() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    std::fs::rename(pki.files.path("key.pem"), pki.files.path("away.pem")).unwrap();
    let mut client = pki.client(&server);
    let status = call_within(&mut client, Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    std::fs::rename(pki.files.path("away.pem"), pki.files.path("key.pem")).unwrap();
    assert_eq!(call(&mut client).await.unwrap(), "one");
}

/// S-26: certificates that never come fail RPCs with the file that is missing.
#[tokio::test]
async fn certificates_that_never_come_are_named() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    std::fs::remove_file(pki.files.path("key.pem")).unwrap();
    let channel = pki.builder(&server).connect_timeout(Duration::from_millis(300)).build().unwrap();
    let status = call(&mut Client::new(channel)).await.unwrap_err();
    let expected = format!("certificate provider instance \"files\": {}", pki.files.path("key.pem").display());
    assert!(status.code() == Code::Unavailable && status.message().contains(&expected), "{status}");
}

/// S-26, S-32: new connections are made with new certificates, however they came into their place; running ones go on.
#[tokio::test]
async fn certificates_are_renewed_without_a_failed_rpc() {
    let pki = Pki::new();
    let old = Authority::new();
    pki.files.write_identity(&old.issue("client"));
    let before = pki.backend_for("before", &old).await;
    let after = pki.backend_for("after", &pki.ca).await;
    let server = control_plane(secured(&before, mtls(&["service"]))).await;
    let mut client = pki.client(&server);
    assert_eq!(call(&mut client).await.unwrap(), "before");
    // First a certificate that does not fit the key, then one that does.
    let renewed = pki.ca.issue("client");
    pki.files.write("new-cert.pem", &renewed.certificate_pem);
    std::fs::rename(pki.files.path("new-cert.pem"), pki.files.path("cert.pem")).unwrap();
    assert_eq!(call(&mut client).await.unwrap(), "before");
    pki.files.write("new-key.pem", &renewed.key_pem);
    std::fs::rename(pki.files.path("new-key.pem"), pki.files.path("key.pem")).unwrap();
    assert_eq!(call(&mut client).await.unwrap(), "before", "a connection that is there stays");
    // This one trusts the new certificate only. It is connected to until it does.
    let both = resources::endpoints("service", [before.addr(), after.addr()]);
    server.control_plane().set(with_cluster(pack_any(upstream(mtls(&["service"]))), both));
    until_answered_by(&mut client, "after").await;
    assert_eq!(before.open_connections(), 1, "it was never made again");
}

/// TL-12: the application may have certificates of its own.
#[tokio::test]
async fn the_application_may_provide_certificates() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), true).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    let provider = Arc::new(Provided(watch::Sender::new(Err(CertificateError::Pending))));
    let bootstrap =
        Bootstrap::builder().node(Node::new("provided")).server(ServerConfig::insecure(server.addr().to_string()));
    let channel = Channel::builder("xds:///service")
        .bootstrap(bootstrap.build().unwrap())
        .credentials(Credentials::xds(Credentials::insecure()))
        .certificate_provider("files", provider.clone())
        .build()
        .unwrap();
    let mut client = Client::new(channel);
    let early = call_within(&mut client, Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(early.code(), Code::DeadlineExceeded, "{early}");
    let issued = pki.ca.issue("client");
    let identity = Identity::from_pem(issued.certificate_pem.as_bytes(), issued.key_pem.as_bytes()).unwrap();
    let trust = Trust::from_pem(pki.ca.pem().as_bytes()).unwrap();
    drop(provider.0.send_replace(Ok(Certificates::new(Some(identity), Some(trust)))));
    assert_eq!(call(&mut client).await.unwrap(), "one");
}

/// Ordinary TLS and mTLS from PEM, to a server of another name than the target's.
#[tokio::test]
async fn credentials_are_made_of_pem() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("elsewhere"), true).await;
    let server = control_plane(crate::common::service(&[&backend])).await;
    let issued = pki.ca.issue("client");
    let identity = Identity::from_pem(issued.certificate_pem.as_bytes(), issued.key_pem.as_bytes()).unwrap();
    let credentials = |name: &str| {
        let credentials = Credentials::tls_from_pem(pki.ca.pem().as_bytes(), Some(identity.clone())).unwrap();
        pki.builder(&server).credentials(credentials.with_server_name(name).unwrap()).build().unwrap()
    };
    assert_eq!(call(&mut Client::new(credentials("elsewhere"))).await.unwrap(), "one");
    let status = call(&mut Client::new(credentials("nowhere"))).await.unwrap_err();
    assert!(status.message().contains("nowhere"), "{status}");
    let other = pki.ca.issue("other");
    let error = Identity::from_pem(issued.certificate_pem.as_bytes(), other.key_pem.as_bytes()).unwrap_err();
    assert!(matches!(error, CertificateError::Mismatch(_)), "{error}");
}

/// Certificates that are there when they are there.
struct Provided(watch::Sender<Result<Certificates, CertificateError>>);

impl CertificateProvider for Provided {
    fn certificates(&self) -> Result<Certificates, CertificateError> {
        self.0.borrow().clone()
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut changes = self.0.subscribe();
        Box::pin(async move {
            let _ = changes.changed().await;
        })
    }
}

/// An authority that everyone trusts, and files with what clients need.
pub(crate) struct Pki {
    pub(crate) ca: Authority,
    files: Files,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let (ca, files) = (Authority::new(), Files::new());
        files.write("ca.pem", &ca.pem());
        files.write_identity(&ca.issue("client"));
        Self { ca, files }
    }

    fn file_watcher(&self) -> CertificateFiles {
        CertificateFiles::default()
            .with_identity(self.files.path("cert.pem"), self.files.path("key.pem"))
            .with_ca_certificate_file(self.files.path("ca.pem"))
    }

    pub(crate) fn builder(&self, server: &Server) -> ChannelBuilder {
        self.builder_with(server, self.file_watcher())
    }

    fn builder_with(&self, server: &Server, watched: CertificateFiles) -> ChannelBuilder {
        let bootstrap = Bootstrap::builder()
            .node(Node::new("secure"))
            .server(ServerConfig::insecure(server.addr().to_string()))
            .certificate_provider("files", watched);
        Channel::builder("xds:///service")
            .bootstrap(bootstrap.build().expect("a valid bootstrap"))
            .backoff(Duration::from_millis(20), Duration::from_millis(100))
            .credentials(Credentials::xds(Credentials::insecure()))
    }

    fn client(&self, server: &Server) -> Client {
        Client::new(self.builder(server).build().expect("a channel"))
    }

    /// A backend with this certificate, which demands one of ours if `mtls`.
    pub(crate) async fn backend(&self, id: &str, issued: &Issued, mtls: bool) -> Backend {
        let identity = mainstay_testservice::Identity::from_pem(&issued.certificate_pem, &issued.key_pem);
        let mut tls = ServerTlsConfig::new().identity(identity);
        if mtls {
            tls = tls.client_ca_root(Certificate::from_pem(self.ca.pem()));
        }
        Backend::builder(id).tls(tls).spawn("127.0.0.1:0").await.expect("a free port")
    }

    /// A backend of ours that lets in whom `clients` vouches for.
    async fn backend_for(&self, id: &str, clients: &Authority) -> Backend {
        let issued = self.ca.issue("service");
        let identity = mainstay_testservice::Identity::from_pem(&issued.certificate_pem, &issued.key_pem);
        let tls = ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(clients.pem()));
        Backend::builder(id).tls(tls).spawn("127.0.0.1:0").await.expect("a free port")
    }
}

/// A TLS context with roots and our certificate from the files, for servers that have one of these names.
pub(crate) fn mtls(names: &[&str]) -> tls::CommonTlsContext {
    let exact = |name: &&str| StringMatcher {
        match_pattern: Some(MatchPattern::Exact((*name).to_owned())),
        ..Default::default()
    };
    mtls_of(names.iter().map(exact).collect())
}

fn mtls_of(match_subject_alt_names: Vec<StringMatcher>) -> tls::CommonTlsContext {
    let instance = || tls::CertificateProviderPluginInstance { instance_name: "files".into(), ..Default::default() };
    #[expect(deprecated)]
    let validation = tls::CertificateValidationContext {
        ca_certificate_provider_instance: Some(instance()),
        match_subject_alt_names,
        ..Default::default()
    };
    tls::CommonTlsContext {
        tls_certificate_provider_instance: Some(instance()),
        validation_context_type: Some(tls::common_tls_context::ValidationContextType::ValidationContext(validation)),
        ..Default::default()
    }
}

fn upstream(common: tls::CommonTlsContext) -> tls::UpstreamTlsContext {
    tls::UpstreamTlsContext { common_tls_context: Some(common), ..Default::default() }
}

/// A service whose cluster asks for TLS.
pub(crate) fn secured(backend: &Backend, context: tls::CommonTlsContext) -> SnapshotBuilder {
    with_cluster(pack_any(upstream(context)), resources::endpoints("service", [backend.addr()]))
}

/// The same endpoints with a host name.
fn named(mut endpoints: ClusterLoadAssignment, hostname: &str) -> ClusterLoadAssignment {
    let endpoint = &mut endpoints.endpoints[0].lb_endpoints[0];
    let Some(HostIdentifier::Endpoint(endpoint)) = &mut endpoint.host_identifier else { panic!("an endpoint") };
    endpoint.hostname = hostname.to_owned();
    endpoints
}

/// A server that shakes hands and says no more; which server name each client asked for.
async fn handshakes(config: rustls::ServerConfig) -> (SocketAddr, mpsc::UnboundedReceiver<Option<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (heard, seen) = mpsc::unbounded_channel();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = heard.send(stream.get_ref().1.server_name().map(str::to_owned));
                open.push(stream);
            }
        }
    });
    (address, seen)
}
